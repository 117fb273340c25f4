//! The ranks' agreement on a context that is free at each of them.

use std::sync::Arc;

use super::{
    Communicator, MessageError, MessageErrorKind, context::AGREEMENT, lease::ContextLease,
};
use crate::{
    protocol::RequestError,
    vi::{DisconnectReason, Provider},
};

/// The proposals of the ranks of a part of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Proposals {
    lowest: u16,
    highest: u16,
    /// A rank that does not answer.
    failed: Option<u32>,
}

impl Proposals {
    const BYTES: usize = 9;

    const fn of(own: u16) -> Self {
        Self { lowest: own, highest: own, failed: None }
    }

    fn join(self, other: Self) -> Self {
        Self {
            lowest: self.lowest.min(other.lowest),
            highest: self.highest.max(other.highest),
            failed: self.failed.or(other.failed),
        }
    }

    fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&self.lowest.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.highest.to_le_bytes());
        bytes[4] = u8::from(self.failed.is_some());
        bytes[5..].copy_from_slice(&self.failed.unwrap_or_default().to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let [a, b, c, d, has_failed, rank @ ..] = *bytes;
        Some(Self {
            lowest: u16::from_le_bytes([a, b]),
            highest: u16::from_le_bytes([c, d]),
            failed: (has_failed != 0).then_some(u32::from_le_bytes(rank)),
        })
    }
}

impl<P: Provider> Communicator<P> {
    /// Makes another communicator of the same ranks, in a context that comes back when each rank has dropped its last clone:
    /// `MPI_Comm_dup`. All ranks must call this on the same communicator in the same order, one call at a time. At most 65 534
    /// contexts are in use at once, together with those of [`duplicate`](Self::duplicate).
    ///
    /// Messages that were not received when their communicator was dropped are discarded.
    ///
    /// # Cost
    /// The ranks agree on a context that is free at each of them: usually in one round of two messages for each rank, along a
    /// binomial tree.
    ///
    /// # Cancel safety
    /// Not cancel safe: the ranks wait for each other.
    ///
    /// # Errors
    /// [`MessageErrorKind::NoContext`] at all ranks, if one has none left; [`RequestError::PeerFailed`] at all that are left, if a rank
    /// has failed before. A rank that dies meanwhile may be named to some, while others get their duplicate: their first use of it
    /// that waits for that rank fails.
    pub async fn duplicate_together(&self) -> Result<Self, MessageError> {
        let mut most = AGREEMENT - 1;
        loop {
            let lease = ContextLease::take(&self.inner, most);
            let own = lease.as_ref().map_or(0, |lease| lease.context);
            let all = self.agree(own).await?;
            if all.lowest == 0 {
                return Err(MessageErrorKind::NoContext.into());
            }
            if let Some(lease) = lease.filter(|_| all.lowest == all.highest) {
                return Ok(self.in_context(own, Some(Arc::new(lease))));
            }
            most = all.lowest;
        }
    }

    /// Returns what all ranks propose. A rank that fails does not keep the others waiting: it is named to all.
    async fn agree(&self, own: u16) -> Result<Proposals, MessageError> {
        let (agreement, tag) = (self.in_context(AGREEMENT, None), u32::from(self.context()));
        let (rank, size) = (self.rank(), self.size());
        let mut all = Proposals::of(own);
        let mut bit = 1;
        while bit < size && rank & bit == 0 {
            if rank | bit < size {
                all = all.join(agreement.proposals_of(rank | bit, tag).await?);
            }
            bit <<= 1;
        }
        if rank != 0 {
            let parent = rank & !bit;
            // If it has failed, that is the answer.
            let sent = agreement.send(parent, tag, &all.encode()).await;
            all = match sent {
                Ok(()) => agreement.proposals_of(parent, tag).await?,
                Err(error) if error.failed_rank().is_some() => {
                    Proposals { failed: Some(parent), ..all }
                }
                Err(error) => return Err(error),
            };
        }
        while bit > 1 {
            bit >>= 1;
            if rank | bit < size {
                // If it has failed, it needs no answer.
                drop(agreement.send(rank | bit, tag, &all.encode()).await);
            }
        }
        match all.failed {
            None => Ok(all),
            Some(rank) => {
                Err(RequestError::PeerFailed { rank, reason: DisconnectReason::PeerDied }.into())
            }
        }
    }

    async fn proposals_of(&self, rank: u32, tag: u32) -> Result<Proposals, MessageError> {
        let failed = Proposals { failed: Some(rank), ..Proposals::of(0) };
        match self.recv(rank, tag).await {
            Ok(message) => Ok(Proposals::decode(&message.bytes).unwrap_or(failed)),
            Err(error) if error.failed_rank().is_some() => Ok(failed),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: proposals survive their way. Method: encode and decode each kind, and refuse other lengths.
    #[test]
    fn proposals_travel() {
        for failed in [None, Some(0), Some(u32::MAX)] {
            let sent = Proposals { lowest: 3, highest: 40_000, failed };
            assert_eq!(Proposals::decode(&sent.encode()), Some(sent));
            assert_eq!(sent.join(Proposals::of(2)), Proposals { lowest: 2, ..sent });
        }
        assert_eq!(Proposals::decode(&[0; 8]), None);
    }
}
