//! The messages between the clients of a load and its server.
//!
//! A connection begins with a [`Hello`]; then [`Request`]s follow, each of which is answered by one of
//! the same size, in their order.

use crate::clock;

use std::time::Duration;

/// Size of a [`Hello`].
pub(crate) const HELLO_BYTES: usize = 2;

/// Size of a [`Request`].
pub(crate) const REQUEST_BYTES: usize = 16;

/// What the server does with the requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// Computes as long as the request says, and answers.
    Compute,
    /// Sleeps in the kernel as long as the request says, and answers.
    Block,
    /// Hands requests to the behaviour with this index in the mix.
    Behaviour(u8),
    /// Begins the behaviours that run by themselves at the first request; then as `Compute`.
    Begin,
}

impl Hello {
    pub(crate) const fn to_bytes(self) -> [u8; HELLO_BYTES] {
        match self {
            Self::Compute => [0, 0],
            Self::Block => [1, 0],
            Self::Behaviour(index) => [2, index],
            Self::Begin => [3, 0],
        }
    }

    pub(crate) const fn from_bytes(bytes: [u8; HELLO_BYTES]) -> Option<Self> {
        match bytes {
            [0, 0] => Some(Self::Compute),
            [1, 0] => Some(Self::Block),
            [2, index] => Some(Self::Behaviour(index)),
            [3, 0] => Some(Self::Begin),
            _ => None,
        }
    }
}

/// A request, or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// When it was due, in nanoseconds of the client's clock; the answer repeats it.
    pub(crate) due_ns: u64,
    /// How long the server is to compute, in nanoseconds. In the answer: a time that the server has
    /// measured, if the behaviour measures one, else what the request had.
    pub(crate) time_ns: u64,
}

impl Request {
    pub(crate) fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..8].copy_from_slice(&self.due_ns.to_le_bytes());
        bytes[8..].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; REQUEST_BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self { due_ns: word(0), time_ns: word(8) }
    }

    pub(crate) const fn time(self) -> Duration {
        Duration::from_nanos(self.time_ns)
    }

    /// The answer, with a time that was measured.
    pub(crate) fn measured(self, time: Duration) -> Self {
        Self { time_ns: clock::nanoseconds(time), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_survives_its_bytes() {
        // Goal: client and server agree. Method: there and back, and bytes that mean nothing.
        for hello in [Hello::Compute, Hello::Block, Hello::Behaviour(7), Hello::Begin] {
            assert_eq!(Hello::from_bytes(hello.to_bytes()), Some(hello));
        }
        assert_eq!(Hello::from_bytes([9, 0]), None);
        let request = Request { due_ns: 1 << 40, time_ns: 77 };
        assert_eq!(Request::from_bytes(request.to_bytes()), request);
    }
}
