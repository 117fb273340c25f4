//! Contexts: which numbers communicators have.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The context in which ranks agree on contexts.
pub(super) const AGREEMENT: u16 = u16::MAX;

/// The contexts that are taken. Those of [`Communicator::duplicate`](super::Communicator::duplicate) are counted upwards and stay taken; those that the ranks agree
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
    pub(super) fn take(&self, most: u16) -> Option<u16> {
        let mut taken = self.lock();
        let free = (taken.next..=most).rev().find(|context| !taken.agreed.contains(context))?;
        taken.agreed.insert(free);
        Some(free)
    }

    pub(super) fn release(&self, context: u16) {
        self.lock().agreed.remove(&context);
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
}
