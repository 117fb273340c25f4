//! Decides whether a second host sleeps in the poller: only while it pays.
//!
//! The kernel wakes a host that sleeps there for any event, while other hosts run tasks. That is useful during long polls. If
//! the others switch quickly and events come quickly, the wake-ups are spurious: the others would have seen the event a moment
//! later and handled it together with others. So a few spurious wake-ups in a short time make the second host sleep elsewhere
//! for a while.
//!
//! ```text
//!   shares ── more than 4 spurious wake-ups in 10 ms ───▶ pauses, 20 ms at first, twice as long each time, 0.6 s at most
//!     ▲                                                          │
//!     └────────────────────── the pause is over ─────────────────┘
//! ```

use crate::{
    clock::Instant,
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// The number of spurious wake-ups tolerated within a window: at 10 µs each, less than half a per cent of a
/// processor.
const WASTED_MAX: u32 = 4;
const WINDOW_NS: u64 = 10_000_000;

const PAUSE_NS_MIN: u64 = 20_000_000;
const PAUSE_NS_MAX: u64 = 640_000_000;

/// If hosts have shared for this long since the last pause, the next pause is short again.
const FORGOTTEN_NS: u64 = 1_000_000_000;

/// `Relaxed` throughout: hints, written by any host that notices something. Of two concurrent writes one is lost.
#[derive(Debug)]
pub(crate) struct Sharing {
    wasted: AtomicU32,
    window_began_ns: AtomicU64,
    /// The end of the present or last pause.
    pause_end_ns: AtomicU64,
    pause_ns: AtomicU64,
}

impl Sharing {
    pub(crate) fn new() -> Self {
        Self {
            wasted: AtomicU32::new(0),
            window_began_ns: AtomicU64::new(0),
            pause_end_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(PAUSE_NS_MIN),
        }
    }

    /// Returns whether a second host may sleep in the poller.
    pub(crate) fn is_allowed(&self, now: Instant) -> bool {
        now.as_nanos() >= self.pause_end_ns.load(Ordering::Relaxed)
    }

    /// Records a spurious wake-up of a host.
    pub(crate) fn note_wasted(&self, now: Instant) {
        let now = now.as_nanos();
        let is_old = now.saturating_sub(self.window_began_ns.load(Ordering::Relaxed)) > WINDOW_NS;
        if is_old {
            self.window_began_ns.store(now, Ordering::Relaxed);
        }
        let wasted = if is_old { 1 } else { self.wasted.load(Ordering::Relaxed) + 1 };
        self.wasted.store(wasted, Ordering::Relaxed);
        if wasted > WASTED_MAX {
            self.pause(Instant::from_nanos(now));
        }
    }

    /// One host sleeps alone for a while.
    #[cold]
    pub(crate) fn pause(&self, now: Instant) {
        let now = now.as_nanos();
        let shared_for = now.saturating_sub(self.pause_end_ns.load(Ordering::Relaxed));
        let pause = if shared_for > FORGOTTEN_NS {
            PAUSE_NS_MIN
        } else {
            self.pause_ns.load(Ordering::Relaxed)
        };
        self.pause_ns.store((2 * pause).min(PAUSE_NS_MAX), Ordering::Relaxed);
        self.pause_end_ns.store(now + pause, Ordering::Relaxed);
        self.window_began_ns.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    /// Goal: hosts share until spurious wake-ups come quickly. Method: four of them, then the fifth on both sides of the window's
    /// end.
    #[test]
    fn a_few_vain_wakeups_are_borne() {
        for (last, is_allowed) in [(WINDOW_NS, false), (WINDOW_NS + 1, true)] {
            let (sharing, begin) = (Sharing::new(), 5_000 * MS);
            for _ in 0..WASTED_MAX {
                assert!(sharing.is_allowed(at(begin)));
                sharing.note_wasted(at(begin));
            }
            sharing.note_wasted(at(begin + last));
            assert_eq!(sharing.is_allowed(at(begin + last)), is_allowed);
        }
    }

    /// Goal: pauses double up to their bound, and are short again after hosts have shared for a second. Method: as many spurious
    /// wake-ups as it takes, right after each pause.
    #[test]
    fn pauses_double() {
        let sharing = Sharing::new();
        let mut now = 5_000 * MS;
        let pause = |now: &mut u64| {
            (0..=WASTED_MAX).for_each(|_| sharing.note_wasted(at(*now)));
            let began = *now;
            while !sharing.is_allowed(at(*now)) {
                *now += MS;
            }
            (*now - began) / MS
        };
        let pauses: Vec<_> = (0..7).map(|_| pause(&mut now)).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 640]);
        now += FORGOTTEN_NS;
        assert_eq!(pause(&mut now), 640, "not for long enough");
        now += FORGOTTEN_NS + 1;
        assert_eq!(pause(&mut now), 20);
    }
}
