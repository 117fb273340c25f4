//! Kinds of tasks: what is known of a task before its first poll.
//!
//! A service spawns the same futures again and again. So a new task is expected to be like the others of
//! its future's type: one that will be short need not wait behind long ones, and need not be paid for more.
//! The type tells more than the place of the spawn, which may be a function through which all of them go.
//!
//! The table is the process's, small, and forgets: two kinds with the same slot displace each other, and what
//! is not known costs a wait, nothing else.

use std::{
    any::TypeId,
    hash::{Hash, Hasher},
    num::NonZeroU32,
};

use crate::sync::count::{AtomicU64, RELAXED};

/// The type of a task's future, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(NonZeroU32);

/// A power of two.
const SLOTS: usize = 256;

/// In the upper half the kind, in the lower half what its first polls use, in nanoseconds. Zero while empty.
static KINDS: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

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

    fn slot(self) -> &'static AtomicU64 {
        &KINDS[(self.0.get() >> 1) as usize % SLOTS]
    }

    /// Returns what the first poll of such a task will probably use, in nanoseconds, if one was seen.
    pub(crate) fn expected_ns(self) -> Option<u32> {
        let known = self.slot().load(RELAXED);
        (known >> 32 == u64::from(self.0.get())).then_some(known as u32)
    }

    /// Takes note of what a first poll has used, in nanoseconds.
    pub(crate) fn note_first_poll(self, used_ns: u64) {
        let used = u32::try_from(used_ns).unwrap_or(u32::MAX);
        let expected = match self.expected_ns() {
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
        self.slot().store(u64::from(self.0.get()) << 32 | u64::from(expected), RELAXED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a kind is known by what first polls use, and follows when that changes; another kind is not
    /// mistaken for it. Method: two types of futures.
    #[test]
    fn kinds_are_told_apart() {
        fn kind<F: Future + 'static>(_future: F) -> Kind {
            Kind::of::<F>()
        }
        let (one, other) = (kind(async { 1 }), kind(async { 1 }));
        assert_ne!(one, other);
        assert_eq!(one.expected_ns(), None);
        one.note_first_poll(10_000_000);
        assert_eq!((one.expected_ns(), other.expected_ns()), (Some(10_000_000), None));
        for _ in 0..40 {
            one.note_first_poll(20_000);
        }
        let expected = one.expected_ns().expect("known");
        assert!((10_000..40_000).contains(&expected), "an eighth is not worth a store: {expected}");
        other.note_first_poll(u64::MAX);
        assert_eq!(other.expected_ns(), Some(u32::MAX));
    }
}
