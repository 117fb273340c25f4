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

static KINDS: [Known; SLOTS] = [const { Known::new() }; SLOTS];

struct Known {
    /// In the upper half the kind, zero while there is none; then the mark of trust, and what early polls use, in
    /// nanoseconds.
    word: AtomicU64,
    /// What pays short tasks of the kind: as much as one task may use. So who spawns many of them, as an acceptor
    /// does, keeps its own credit.
    credit: SharedCredit,
}

/// Tasks of the kind have had only short polls until they were trusted, lately.
const TRUSTED: u32 = 1 << 31;

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
        let hash = hasher.finish();
        Self(NonZeroU32::MIN | ((hash >> 32 ^ hash) as u32))
    }

    fn slot(self) -> &'static Known {
        &KINDS[(self.0.get() >> 1) as usize % SLOTS]
    }

    /// Returns what is known: the mark of trust, and what early polls use.
    fn known(self) -> Option<u32> {
        let known = self.slot().word.load(RELAXED);
        (known >> 32 == u64::from(self.0.get())).then_some(known as u32)
    }

    /// Returns what an early poll of such a task will probably use, in nanoseconds, if one was seen.
    pub(crate) fn expected_ns(self) -> Option<u32> {
        Some(self.known()? & !TRUSTED)
    }

    /// Returns whether such tasks have had only short polls until they were trusted, lately.
    pub(crate) fn is_trusted(self) -> bool {
        self.known().is_some_and(|known| known & TRUSTED != 0)
    }

    /// Pays a new task at `now` for some polls, if such tasks are short and the kind has credit left.
    pub(crate) fn pay(self, now: u64) -> Option<Credit> {
        self.slot().credit.pay_short(now, self.expected_ns()?)
    }

    /// Takes note of an early poll of such a task, which is not trusted by itself yet: what it has used in
    /// nanoseconds, whether it was long, and whether the task is trusted now.
    pub(crate) fn note_poll(self, used_ns: u64, was_long: bool, is_proven: bool) {
        let used = u32::try_from(used_ns).unwrap_or(u32::MAX) & !TRUSTED;
        let known = self.known();
        let trust = if was_long {
            0
        } else if is_proven {
            TRUSTED
        } else {
            known.unwrap_or(0) & TRUSTED
        };
        let expected = match known.map(|known| known & !TRUSTED) {
            None => used,
            Some(before) => {
                let expected = before - before / 4 + used / 4;
                // Many threads spawn the same: the cache line stays shared while it says enough.
                if expected.abs_diff(before) <= before / 8 { before } else { expected }
            }
        };
        let next = trust | expected;
        if known != Some(next) {
            self.slot().word.store(u64::from(self.0.get()) << 32 | u64::from(next), RELAXED);
        }
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
        one.note_poll(10_000_000, true, false);
        assert_eq!((one.expected_ns(), other.expected_ns()), (Some(10_000_000), None));
        for _ in 0..40 {
            one.note_poll(20_000, false, false);
        }
        let expected = one.expected_ns().expect("known");
        assert!((10_000..40_000).contains(&expected), "an eighth is not worth a store: {expected}");
        other.note_poll(u64::MAX, true, false);
        assert_eq!(other.expected_ns(), Some(u32::MAX >> 1));
    }

    /// Goal: a kind is trusted once a task has proven to be short, until one proves the opposite. Method: polls in
    /// a row.
    #[test]
    fn trust_is_earned_and_lost() {
        let kind = kind(async { 2 });
        kind.note_poll(1_000, false, false);
        assert!(!kind.is_trusted(), "a short beginning proves nothing");
        kind.note_poll(1_000, false, true);
        assert!(kind.is_trusted());
        kind.note_poll(1_000, false, false);
        assert!(kind.is_trusted());
        kind.note_poll(1_000, true, false);
        assert!(!kind.is_trusted(), "long, if not by computation");
    }
}
