//! When a relay lets others have its processor.
//!
//! Where the other ends of a stream share the relay's processor, a relay that goes on while it can fills the receiver's queue with
//! megabytes, which have left the caches by the time they are read. Who yields after each poll lets them take their turn while
//! the bytes are near. Where nobody else waits for the processor, that costs a system call.
//!
//! But a turn that is given to somebody who computes comes back milliseconds later. So a turn that was away for long
//! is followed by a pause without any, twice as long as the one before.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use vigie_detect::{Instant, clock::monotonic_now};

/// After so many bytes in one poll, others are let run: other connections, and whoever waits for the processor. What was moved is
/// still in the caches then.
pub(super) const POLL_BYTES_MAX: u64 = 256 << 10;

/// Others who move a poll's bytes on need less; who computes has the processor until the kernel's next tick, 1 to 4 ms.
const LONG: Duration = Duration::from_millis(1);

/// The pause after a turn that was away for long is so many times as long as that was: of turns up to a tenth of a second, no more than a fiftieth
/// of the time is lost.
const PAUSES: u32 = 50;

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Yields, unless that was dear of late.
///
/// Two threads that learn at once may lose what one of them learnt, which the next turn shows again.
#[derive(Debug, Default)]
pub(super) struct Courtesy {
    /// Until when no turn is given, in nanoseconds of the clock.
    paused_until: AtomicU64,
    /// How long the last pause was; 0 after a turn that came back soon.
    pause: AtomicU64,
}

impl Courtesy {
    /// Lets others have the processor, if they need it and that is no loss.
    pub(super) fn yield_now(&self) {
        let before = monotonic_now();
        if self.is_paused(before) {
            return;
        }
        thread::yield_now();
        self.learn(before, monotonic_now());
    }

    fn is_paused(&self, now: Instant) -> bool {
        now.as_nanos() < self.paused_until.load(Ordering::Relaxed)
    }

    /// Learns when a turn was given, and when it came back.
    fn learn(&self, before: Instant, after: Instant) {
        let away = after.saturating_duration_since(before);
        if away < LONG {
            self.pause.store(0, Ordering::Relaxed);
            return;
        }
        let last = Duration::from_nanos(self.pause.load(Ordering::Relaxed));
        let pause = (away * PAUSES).max(last * 2).min(PAUSE_MAX);
        let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        self.pause.store(pause, Ordering::Relaxed);
        self.paused_until.store(after.as_nanos().saturating_add(pause), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a turn of `away` at `now`, and returns how long none is given after it.
    fn pause_after(courtesy: &Courtesy, now: &mut Instant, away: Duration) -> Duration {
        let back = *now + away;
        courtesy.learn(*now, back);
        let until = Instant::from_nanos(courtesy.paused_until.load(Ordering::Relaxed)).max(back);
        *now = until;
        assert!(!courtesy.is_paused(until), "turns are given again");
        until - back
    }

    /// Goal: turns that come back soon are given without a pause, dear ones ever less often, to a bound; and one that came back
    /// soon makes all good. Method: turns by hand.
    #[test]
    fn dear_turns_become_rare() {
        let (courtesy, mut now) = (Courtesy::default(), Instant::from_nanos(1));
        let (soon, late) = (Duration::from_micros(300), Duration::from_millis(3));
        assert_eq!(pause_after(&courtesy, &mut now, soon), Duration::ZERO);
        let pauses = [(); 7].map(|()| pause_after(&courtesy, &mut now, late).as_millis());
        assert_eq!(pauses, [150, 300, 600, 1200, 2400, 4800, 5000]);
        assert_eq!(pause_after(&courtesy, &mut now, soon), Duration::ZERO);
        assert_eq!(pause_after(&courtesy, &mut now, late).as_millis(), 150);
        assert_eq!(pause_after(&courtesy, &mut now, Duration::from_secs(3600)), PAUSE_MAX);
        assert!(!courtesy.is_paused(now), "{now:?}");
        assert!(courtesy.is_paused(Instant::from_nanos(now.as_nanos() - 1)));
    }
}
