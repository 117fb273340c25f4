//! The failure of a rank: everything that waits for it ends in an error that names it.

use super::{
    EngineEvent, MessageEngine, RequestError,
    matching::Pattern,
    peer::PeerLink,
    request::{ReceiveState, RequestEntry},
};
use crate::vi::{DisconnectReason, Provider};

impl<P: Provider> MessageEngine<P> {
    /// Cuts off a peer that broke the protocol, and no other.
    #[cold]
    pub(super) fn peer_fault(&mut self, rank: u32, what: &'static str) {
        self.peer_failed(rank, DisconnectReason::PeerFault(what));
    }

    /// Records that a rank has failed. Sends to it and receives from it end in [`RequestError::PeerFailed`],
    /// as do posted receives from any source, since they may have waited for it; later ones wait for the
    /// remaining ranks. Messages that had wholly arrived can still be received. Does nothing if the rank has
    /// failed before.
    #[cold]
    pub fn peer_failed(&mut self, rank: u32, reason: DisconnectReason) {
        let own = self.rank;
        let Some(peer) = self.peers.get_mut(rank as usize).filter(|_| rank != own) else { return };
        if peer.failed.is_some() {
            return;
        }

        peer.failed = Some(reason);
        self.broken.retain(|broken| broken.rank != rank);
        self.failures.push(rank);
        peer.outbox.clear();
        peer.pumps.clear();
        peer.controls.clear();
        peer.stalled.clear();
        peer.paused.clear();
        peer.streams_in.clear();
        (peer.announcements_in, peer.announcements_out) = Default::default();

        let vi = match &peer.link {
            PeerLink::Reliable(direct) => {
                Some((direct.vi, &direct.area, &direct.control, direct.staged))
            }
            PeerLink::Unreliable(lossy) => {
                let own = &lossy.own;
                Some((own.vi, &own.area, &own.control, own.staged))
            }
            PeerLink::Prepared(own) => Some((own.vi, &own.area, &own.control, own.staged)),
            PeerLink::Absent | PeerLink::Loopback(_) => None,
        };
        if let Some((vi, area, control, staged)) = vi {
            // Whatever this returns, the peer is now out of reach.
            drop(self.nic.disconnect(vi));
            for memory in [Some(area.handle), Some(control.handle), staged].into_iter().flatten() {
                drop(self.nic.deregister(memory));
            }
        }
        self.end_approach(rank);

        self.events.push_back(EngineEvent::Failed { rank, reason });
        let error = RequestError::PeerFailed { rank, reason };
        let incomplete: Vec<u64> = self
            .messages
            .keys()
            .filter(|key| {
                self.messages.get(*key).is_some_and(|message| {
                    message.label.source == rank && !message.has_all_arrived()
                })
            })
            .collect();
        for key in incomplete {
            self.fail_message(key, error);
        }
        self.fail_requests(rank, error);
    }

    fn fail_requests(&mut self, rank: u32, error: RequestError) {
        for key in self.requests.keys().collect::<Vec<_>>() {
            match self.requests.get_mut(key) {
                Some(RequestEntry::Send(send)) if send.peer == rank => {
                    send.stage = super::request::SendPhase::Sent;
                    if send.result.is_none() {
                        self.end_send(key, Err(error));
                    } else if send.is_detached {
                        self.requests.remove(key);
                    }
                }
                Some(RequestEntry::Receive(receive)) => {
                    let ReceiveState::Posted { node } = receive.state else { continue };
                    if receive.pattern.source.is_none_or(|source| source == rank) {
                        receive.state = ReceiveState::Failed(error);
                        self.posted.remove(node);
                        self.announce(key);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns why no message that fits can arrive any more; `None` if one can.
    pub(super) fn hopeless(&self, pattern: &Pattern) -> Option<RequestError> {
        let failed = |rank: u32| {
            let reason = self.peers.get(rank as usize)?.failed?;
            Some(RequestError::PeerFailed { rank, reason })
        };
        match pattern.source {
            Some(rank) if rank as usize >= self.peers.len() => {
                Some(RequestError::NoSuchRank { rank })
            }
            Some(rank) => failed(rank),
            None => {
                let mut others = (0..self.size()).filter(|rank| *rank != self.rank).peekable();
                others.peek()?;
                others.map(failed).collect::<Option<Vec<_>>>()?.pop()
            }
        }
    }

    /// Returns the number of ranks that have failed.
    pub(crate) const fn failure_count(&self) -> usize {
        self.failures.len()
    }

    /// Returns the ranks that have failed, in the order in which the failures were found, without the first
    /// `known`.
    pub(crate) fn failures_after(&self, known: usize) -> &[u32] {
        self.failures.get(known..).unwrap_or_default()
    }

    /// Returns why a probe that has waited since `failure_count` ranks had failed must end: for the same
    /// reasons as a posted receive with its pattern.
    pub(crate) fn gave_up(&self, pattern: &Pattern, failure_count: usize) -> Option<RequestError> {
        self.hopeless(pattern).or_else(|| {
            let rank = *self.failures.get(failure_count)?;
            let reason = self.failure(rank)?;
            pattern.source.is_none().then_some(RequestError::PeerFailed { rank, reason })
        })
    }

    /// Returns why a rank has failed, if it has.
    #[must_use]
    pub fn failure(&self, rank: u32) -> Option<DisconnectReason> {
        self.peers.get(rank as usize)?.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::{Control, EngineConfig, incoming::CONTROLS_WAITING_MAX},
        sim::{FaultPlan, SimNetwork},
    };

    /// Goal: a peer that keeps asking and takes no answer is cut off before it uses all memory. Method: as
    /// many answers as are kept, to a rank that takes none, and one more.
    #[test]
    fn answers_that_nobody_takes_are_bounded() {
        let network = SimNetwork::new(1, FaultPlan::reliable());
        let config = EngineConfig { unexpected_messages_max: 0, ..EngineConfig::default() };
        let mut engine = MessageEngine::new(network.nic(), 0, 3, config).expect("an engine");
        for _ in 0..CONTROLS_WAITING_MAX {
            engine.queue_control(1, Control::Cancelled { request: 1, is_cancelled: false });
        }
        assert_eq!(
            (engine.failure(1), engine.peers[1].controls.len()),
            (None, CONTROLS_WAITING_MAX)
        );
        engine.queue_control(1, Control::Cancelled { request: 1, is_cancelled: false });
        assert!(matches!(engine.failure(1), Some(DisconnectReason::PeerFault(_))));
        assert!(engine.peers[1].controls.is_empty());
        assert_eq!(engine.failure(2), None, "no other rank fails");
    }
}
