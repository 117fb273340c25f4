//! Contexts: which numbers communicators have, and how the ranks agree on one that is free again.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Communicator, MessageError, MessageErrorKind, endpoint::EndpointInner};
use crate::{
    protocol::RequestError,
    vi::{DisconnectReason, Provider},
};

/// The context in which ranks agree on contexts.
pub(super) const AGREEMENT: u16 = u16::MAX;

/// The contexts that are taken. Those of [`Communicator::duplicate`] are counted upwards and stay taken; those that the ranks agree
/// on are taken from the other end, and come back.
#[derive(Debug)]
pub(super) struct ContextTable(Mutex<TakenContexts>);

#[derive(Debug)]
struct TakenContexts {
    next: u16,
    agreed: BTreeSet<u16>,
}

impl ContextTable {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(TakenContexts { next: 1, agreed: BTreeSet::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, TakenContexts> {
        // No foreign code runs under this lock, so a poisoned one says nothing about what it holds.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next context that no agreement is needed for.
    pub(super) fn next(&self) -> Option<u16> {
        let mut taken = self.lock();
        let next = taken.next;
        if next == AGREEMENT || taken.agreed.contains(&next) {
            return None;
        }
        taken.next += 1;
        Some(next)
    }

    /// Takes the highest free context that is at most `most`.
    fn take(&self, most: u16) -> Option<u16> {
        let mut taken = self.lock();
        let free = (taken.next..=most).rev().find(|context| !taken.agreed.contains(context))?;
        taken.agreed.insert(free);
        Some(free)
    }

    fn release(&self, context: u16) {
        self.lock().agreed.remove(&context);
    }
}

/// A context that comes back when this is dropped.
pub(super) struct ContextLease<P: Provider> {
    inner: Arc<EndpointInner<P>>,
    context: u16,
}

impl<P: Provider> ContextLease<P> {
    /// Takes the highest context up to `most` of which nothing is left in the engine.
    fn take(inner: &Arc<EndpointInner<P>>, mut most: u16) -> Option<Self> {
        loop {
            let context = inner.contexts.take(most)?;
            let lease = Self { inner: Arc::clone(inner), context };
            let is_idle = inner.with(|engine| {
                // Messages that came after the last communicator of this context was dropped.
                engine.forget_context(context);
                engine.is_context_idle(context)
            });
            if is_idle {
                return Some(lease);
            }
            most = context - 1;
        }
    }
}

impl<P: Provider> Drop for ContextLease<P> {
    fn drop(&mut self) {
        self.inner.drop_with(|engine| engine.forget_context(self.context));
        self.inner.contexts.release(self.context);
    }
}

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
    /// has failed.
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

    /// Goal: contexts of both kinds never meet, and released ones come back. Method: take some from both ends, until none is left.
    #[test]
    fn contexts_from_both_ends() {
        let table = ContextTable::new();
        assert_eq!((table.next(), table.next()), (Some(1), Some(2)));
        assert_eq!((table.take(AGREEMENT - 1), table.take(5)), (Some(AGREEMENT - 1), Some(5)));
        assert_eq!((table.take(5), table.take(5), table.take(5)), (Some(4), Some(3), None));
        assert_eq!(table.next(), None, "3 is taken");
        table.release(3);
        assert_eq!((table.next(), table.take(3)), (Some(3), None));
        table.release(5);
        assert_eq!(table.take(5), Some(5));
    }

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
