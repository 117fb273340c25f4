//! The word between hosts that go to sleep and those who ring for them.
//!
//! ```text
//!              begin_park (1)
//!      awake ─────────────────▶ parked
//!        │  ▲     end_park (2)    │
//!   ring │  └─────────────────────┘ ring: the ringer wakes a host
//!        ▼
//!      rung: begin_park refuses, the host looks again
//! ```
//!
//! All transitions are read-modify-writes of one word, so they have one total order: either the host
//! sees the ring when it parks, or the ringer sees the parked host and wakes it. There is no third
//! case in which a wake-up is lost.
//!
//! The word counts the hosts that are parked. A ring wakes one of them, and no one can say which: a host
//! that takes a ring which may be for another one [hands it on](crate::Lookout::park_unless).

use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, order_for_loom};

const RUNG: u32 = 1;
/// One parked host: they are counted above `RUNG`.
const PARKED: u32 = 2;

#[derive(Debug)]
pub(crate) struct ParkWord {
    /// Written by hosts (`PARKED`, clear `RUNG`) and by ringers (`RUNG`). The ringer's release
    /// pairs with the host's acquire in [`take_ring`](Self::take_ring) and
    /// [`begin_park`](Self::begin_park), so that the host sees what the ringer did before it rang.
    /// `SeqCst` because deadlines and requests are published beside the word: see
    /// [`begin_park`](Self::begin_park).
    bits: AtomicU32,
}

/// What a host finds when it wants to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a host that sleeps although it was rung for loses an event"]
pub(crate) enum Park {
    Sleep,
    Rung,
}

impl ParkWord {
    pub(crate) fn new() -> Self {
        Self { bits: AtomicU32::new(0) }
    }

    /// Announces that the host will sleep, unless somebody rang.
    ///
    /// What others publish beside the word with a `SeqCst` read-modify-write, before they look whether
    /// the host [is parked](Self::is_parked), a `SeqCst` load after this sees; or else they see the
    /// parked host: all four operations stand in the one order of `SeqCst` operations.
    pub(crate) fn begin_park(&self) -> Park {
        let before = self.bits.fetch_add(PARKED, Ordering::SeqCst);
        order_for_loom();
        if before & RUNG == 0 { Park::Sleep } else { Park::Rung }
    }

    /// Announces that the host is awake: once for each [`begin_park`](Self::begin_park).
    pub(crate) fn end_park(&self) {
        self.bits.fetch_sub(PARKED, Ordering::SeqCst);
    }

    /// Returns whether a host sleeps or is about to.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked_count() > 0
    }

    /// Returns how many hosts sleep or are about to.
    pub(crate) fn parked_count(&self) -> u32 {
        order_for_loom();
        self.bits.load(Ordering::SeqCst) / PARKED
    }

    /// Returns whether somebody rang since the last [`take_ring`](Self::take_ring): one load.
    pub(crate) fn is_rung(&self) -> bool {
        self.bits.load(Ordering::Relaxed) & RUNG != 0
    }

    /// Takes the ring: what was done before it is visible now.
    pub(crate) fn take_ring(&self) -> bool {
        self.is_rung() && self.bits.fetch_and(!RUNG, Ordering::SeqCst) & RUNG != 0
    }

    /// Lowers a deadline that the host reads after [`begin_park`](Self::begin_park). Returns whether
    /// the host may be sleeping past it: then it must be rung for.
    #[must_use = "a parked host sleeps past the deadline if it is not rung for"]
    pub(crate) fn lower(&self, deadline: &AtomicU64, nanos: u64) -> bool {
        deadline.fetch_min(nanos, Ordering::SeqCst) > nanos && self.is_parked()
    }

    /// Publishes a count of requests that the host reads after [`begin_park`](Self::begin_park).
    /// Returns whether the host may be sleeping without them: then it must be rung for.
    #[must_use = "a parked host sleeps over the request if it is not rung for"]
    pub(crate) fn raise(&self, known_count: &AtomicUsize, count: usize) -> bool {
        // A swap: a plain store may pass the load that follows it.
        known_count.swap(count, Ordering::SeqCst);
        self.is_parked()
    }

    /// Rings. Returns whether the caller must wake a host: one sleeps, and this ring was the first.
    #[must_use = "a parked host sleeps on if it is not woken"]
    pub(crate) fn ring(&self) -> bool {
        let before = self.bits.fetch_or(RUNG, Ordering::SeqCst);
        before & RUNG == 0 && before >= PARKED
    }
}

/// A host that [is parked](ParkWord::begin_park), until this is dropped: also by a panic, since looks are left to parked hosts.
#[must_use = "the host is awake at once otherwise"]
pub(crate) struct Parked<'a>(pub(crate) &'a ParkWord);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.end_park();
    }
}

// The models of `tests/loom.rs` compile this file, too: the tests below are none of them.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Goal: a ring is kept until it is taken, asleep or awake, and only the first one of a sleep wakes.
    /// Method: the transitions of the drawing, one after the other, with all that can be asked in between.
    #[test]
    fn rings_are_kept_until_they_are_taken() {
        let word = ParkWord::new();
        let is = || (word.is_parked(), word.is_rung());
        assert_eq!((is(), word.take_ring()), ((false, false), false));
        assert!(!word.ring(), "nobody sleeps");
        assert_eq!(is(), (false, true));
        assert_eq!(word.begin_park(), Park::Rung);
        assert_eq!((is(), word.ring()), ((true, true), false));
        word.end_park();
        assert_eq!(is(), (false, true));
        assert!(word.take_ring() && !word.take_ring());
        assert_eq!(is(), (false, false));

        assert_eq!(word.begin_park(), Park::Sleep);
        assert_eq!((is(), word.take_ring()), ((true, false), false));
        assert!(word.ring() && !word.ring());
        assert!(word.take_ring(), "by another host that looks");
        assert_eq!(is(), (true, false));
        assert!(word.ring());
        word.end_park();
        assert_eq!(is(), (false, true));
    }

    /// Goal: a ring wakes one of several hosts, and each counts until it is awake. Method: two hosts, one after the other.
    #[test]
    fn several_hosts_are_counted() {
        let word = ParkWord::new();
        assert_eq!(word.begin_park(), Park::Sleep);
        assert_eq!(word.begin_park(), Park::Sleep);
        assert_eq!(word.parked_count(), 2);
        assert!(word.ring() && !word.ring());
        word.end_park();
        assert!(word.take_ring());
        assert_eq!(
            (word.parked_count(), word.ring()),
            (1, true),
            "the other one is woken for the next ring"
        );
        word.end_park();
        assert_eq!((word.parked_count(), word.take_ring()), (0, true));
    }

    /// Goal: a host is rung for if it may sleep past a deadline or over a request. Method: deadlines around
    /// the present one, asleep and awake.
    #[test]
    fn sleepers_are_rung_for() {
        for sleeps in [false, true] {
            let (word, deadline, count) =
                (ParkWord::new(), AtomicU64::new(100), AtomicUsize::new(3));
            if sleeps {
                assert_eq!(word.begin_park(), Park::Sleep);
            }
            for (nanos, is_sooner, left) in [(101, false, 100), (100, false, 100), (99, true, 99)] {
                assert_eq!(word.lower(&deadline, nanos), sleeps && is_sooner);
                assert_eq!(deadline.load(Ordering::SeqCst), left);
            }
            assert_eq!((word.raise(&count, 5), count.load(Ordering::SeqCst)), (sleeps, 5));
        }
    }
}
