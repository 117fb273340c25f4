//! The states of a VI, as the VIA specification defines them.

use std::fmt;

/// The state of a VI. You may post descriptors to the receive queue in every state, to the send queue while
/// connected; otherwise they are flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ViState {
    /// New, or disconnected by its own side.
    #[default]
    Idle,
    /// A connection was requested, and the request is not answered yet.
    PendingConnect,
    /// Connected to one VI of a peer.
    Connected,
    /// The connection broke or the peer left. [`Provider::disconnect`](super::Provider::disconnect)
    /// makes it idle again.
    Error,
}

/// A transition of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ViEvent {
    /// The consumer asks for a connection, or offers this VI to a request.
    Connect,
    /// Both sides agree.
    Establish,
    /// The peer refuses, does not answer in time, or is not there.
    Refuse,
    /// An error that breaks the connection, or the peer's disconnect or death.
    Break,
    /// The consumer disconnects.
    Disconnect,
}

impl ViState {
    /// Returns the state after `event`, or `None` if that cannot happen in this state.
    #[must_use]
    pub const fn after(self, event: ViEvent) -> Option<Self> {
        match (self, event) {
            (Self::Idle, ViEvent::Connect) => Some(Self::PendingConnect),
            (Self::PendingConnect, ViEvent::Establish) => Some(Self::Connected),
            (Self::PendingConnect, ViEvent::Refuse) => Some(Self::Idle),
            (Self::PendingConnect | Self::Connected | Self::Error, ViEvent::Break) => {
                Some(Self::Error)
            }
            (_, ViEvent::Disconnect) => Some(Self::Idle),
            _ => None,
        }
    }

    /// Returns whether descriptors of the send queue are carried out.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        matches!(self, Self::Connected)
    }
}

impl fmt::Display for ViState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::PendingConnect => "waiting for its connection",
            Self::Connected => "connected",
            Self::Error => "in error",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the diagram of the specification, transition by transition, and no others. Method: all pairs.
    #[test]
    fn the_diagram_is_kept() {
        use ViEvent::{Break, Connect, Disconnect, Establish, Refuse};
        use ViState::{Connected, Error, Idle, PendingConnect};
        let allowed = [
            (Idle, Connect, PendingConnect),
            (PendingConnect, Establish, Connected),
            (PendingConnect, Refuse, Idle),
            (PendingConnect, Break, Error),
            (Connected, Break, Error),
            (Error, Break, Error),
            (Idle, Disconnect, Idle),
            (PendingConnect, Disconnect, Idle),
            (Connected, Disconnect, Idle),
            (Error, Disconnect, Idle),
        ];
        for state in [Idle, PendingConnect, Connected, Error] {
            for event in [Connect, Establish, Refuse, Break, Disconnect] {
                let expected = allowed
                    .iter()
                    .find(|(from, what, _)| (*from, *what) == (state, event))
                    .map(|(_, _, to)| *to);
                assert_eq!(state.after(event), expected, "{state:?} {event:?}");
            }
        }
    }
}
