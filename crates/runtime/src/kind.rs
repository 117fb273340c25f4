//! Kinds of tasks: what is known of a task before its first poll.
//!
//! A service spawns the same futures again and again. So a new task is expected to be like the others of
//! its future's type were in their first polls: one that will be short need not wait behind long ones, and
//! does not cost its parent's credit.
//! The type tells more than the place of the spawn, which may be a function through which all of them go.
//!
//! The table is the process's, small, and forgets: two kinds with the same slot displace each other, and what
//! is not known costs a wait, nothing else.

use std::{
    any::TypeId,
    hash::{Hash, Hasher},
    num::NonZeroU32,
};

use crate::{
    lane::{Credit, SharedCredit},
    sync::count::{AtomicU64, RELAXED},
};

/// The type of a task's future, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(NonZeroU32);

/// A power of two.
const SLOTS: usize = 256;

/// What is known of kinds.
pub(crate) struct Kinds([Known; SLOTS]);

static KINDS: Kinds = Kinds::new();

struct Known {
    /// In the upper half the kind, zero while there is none; in the lower half what early polls use, in
    /// nanoseconds.
    word: AtomicU64,
    /// What pays short tasks of the kind: as much as one task may use. So who spawns many of them, as an acceptor
    /// does, keeps its own credit.
    credit: SharedCredit,
}

impl Known {
    const fn new() -> Self {
        Self { word: AtomicU64::new(0), credit: SharedCredit::new() }
    }
}

/// Takes the hash that a type has already.
#[derive(Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 ^= hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Kind {
    /// Returns the kind of tasks whose future is an `F`.
    pub(crate) fn of<F: 'static>() -> Self {
        let mut hasher = Taken::default();
        TypeId::of::<F>().hash(&mut hasher);
        Self::of_hash(hasher.finish())
    }

    pub(crate) fn of_hash(hash: u64) -> Self {
        let folded = (hash >> 32) ^ (hash & u64::from(u32::MAX));
        Self(NonZeroU32::MIN | u32::try_from(folded).unwrap_or_default())
    }

    /// Returns what an early poll of such a task will probably use, in nanoseconds, if one was seen.
    pub(crate) fn expected_ns(self) -> Option<u32> {
        KINDS.expected_ns(self)
    }

    /// Pays a new task at `now` for some polls, if such tasks are short and the kind has credit left.
    pub(crate) fn pay(self, now: u64) -> Option<Credit> {
        KINDS.pay(self, now)
    }

    /// Takes note of what an early poll of such a task has used, in nanoseconds.
    pub(crate) fn note_poll(self, used_ns: u64) {
        KINDS.note_poll(self, used_ns);
    }
}

impl Kinds {
    pub(crate) const fn new() -> Self {
        Self([const { Known::new() }; SLOTS])
    }

    fn slot(&self, kind: Kind) -> &Known {
        &self.0[(kind.0.get() >> 1) as usize % SLOTS]
    }

    /// See [`Kind::expected_ns`].
    pub(crate) fn expected_ns(&self, kind: Kind) -> Option<u32> {
        let known = self.slot(kind).word.load(RELAXED);
        let expected = u32::try_from(known & u64::from(u32::MAX)).ok()?;
        (known >> 32 == u64::from(kind.0.get())).then_some(expected)
    }

    /// See [`Kind::pay`].
    pub(crate) fn pay(&self, kind: Kind, now: u64) -> Option<Credit> {
        self.slot(kind).credit.pay_short(now, self.expected_ns(kind)?)
    }

    /// See [`Kind::note_poll`].
    pub(crate) fn note_poll(&self, kind: Kind, used_ns: u64) {
        let used = u32::try_from(used_ns).unwrap_or(u32::MAX);
        let expected = match self.expected_ns(kind) {
            None => used,
            Some(before) => {
                let expected = before - before / 4 + used / 4;
                // Many threads spawn the same: the slot's cache line stays shared while it says enough.
                if expected.abs_diff(before) <= before / 8 {
                    return;
                }
                expected
            }
        };
        let word = u64::from(kind.0.get()) << 32 | u64::from(expected);
        self.slot(kind).word.store(word, RELAXED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind<F: Future + 'static>(_future: F) -> Kind {
        Kind::of::<F>()
    }

    /// Goal: a kind is known by what early polls use, and follows when that changes; another kind is not
    /// mistaken for it. Method: two types of futures.
    #[test]
    fn kinds_are_told_apart() {
        let (one, other) = (kind(async { 1 }), kind(async { 1 }));
        assert_ne!(one, other);
        assert_eq!(one.expected_ns(), None);
        one.note_poll(10_000_000);
        assert_eq!((one.expected_ns(), other.expected_ns()), (Some(10_000_000), None));
        for _ in 0..40 {
            one.note_poll(20_000);
        }
        let expected = one.expected_ns().expect("known");
        assert!((10_000..40_000).contains(&expected), "an eighth is not worth a store: {expected}");
        other.note_poll(u64::MAX);
        assert_eq!(other.expected_ns(), Some(u32::MAX));
    }
}
