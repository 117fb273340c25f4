//! Time: the one clock that detection, timers and schedulers read.
//!
//! Time enters through a [`Clock`], so that the simulator can replace it. The real clock is
//! `CLOCK_MONOTONIC`, which the poller's timerfd uses too.

use std::{
    fmt,
    ops::{Add, AddAssign, Sub, SubAssign},
    sync::OnceLock,
    time::Duration,
};

use crate::sync::{Arc, AtomicU64, Ordering};

/// A point in time: nanoseconds since the origin of the clock that made it.
///
/// The real clock's origin is that of `CLOCK_MONOTONIC` (the machine's start on Linux), a virtual
/// clock's is zero. Do not compare instants of different clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The latest representable instant, about 584 years after the origin.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the instant `nanos` nanoseconds after the clock's origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the clock's origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later, as std's instant does.
    #[must_use]
    pub const fn duration_since(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// Returns the time from `earlier` to `self`, or `None` if `earlier` is later.
    #[must_use]
    pub fn checked_duration_since(self, earlier: Self) -> Option<Duration> {
        self.0.checked_sub(earlier.0).map(Duration::from_nanos)
    }

    /// Returns `self + duration`, or `None` if that is later than [`Instant::MAX`].
    #[must_use]
    pub fn checked_add(self, duration: Duration) -> Option<Self> {
        self.0.checked_add(u64::try_from(duration.as_nanos()).ok()?).map(Self)
    }

    /// Returns `self - duration`, or `None` if that is before the clock's origin.
    #[must_use]
    pub fn checked_sub(self, duration: Duration) -> Option<Self> {
        self.0.checked_sub(u64::try_from(duration.as_nanos()).ok()?).map(Self)
    }

    /// Converts from an instant of the standard library, which is one of the real clock. `from_std` and
    /// [`into_std`](Self::into_std) are the inverse of each other, as far as `u64` nanoseconds reach; beyond, the
    /// nearest instant is returned.
    #[must_use]
    pub fn from_std(instant: std::time::Instant) -> Self {
        let Pair { own, std } = *Pair::get();
        match instant.checked_duration_since(std) {
            Some(later) => own + later,
            None => own.checked_sub(std - instant).unwrap_or(Self(0)),
        }
    }

    /// Converts to an instant of the standard library. Only an instant of the real clock has a meaning there.
    #[must_use]
    pub fn into_std(self) -> std::time::Instant {
        let Pair { own, std } = *Pair::get();
        match self.checked_duration_since(own) {
            Some(later) => std.checked_add(later).unwrap_or(std),
            None => std.checked_sub(own - self).unwrap_or(std),
        }
    }

    /// Returns `self + duration`, or [`Instant::MAX`] on overflow.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at [`Instant::MAX`].
    fn add(self, duration: Duration) -> Self {
        self.saturating_add(duration)
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Saturates at zero.
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Saturates at the clock's origin.
    fn sub(self, duration: Duration) -> Self {
        self.checked_sub(duration).unwrap_or(Self(0))
    }
}

impl AddAssign<Duration> for Instant {
    /// Saturates at [`Instant::MAX`].
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl SubAssign<Duration> for Instant {
    /// Saturates at the clock's origin.
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl From<std::time::Instant> for Instant {
    fn from(instant: std::time::Instant) -> Self {
        Self::from_std(instant)
    }
}

impl From<Instant> for std::time::Instant {
    fn from(instant: Instant) -> Self {
        instant.into_std()
    }
}

/// The same point in time on the real clock and in the standard library, read once: what lies between the two
/// readings is the error of every conversion.
struct Pair {
    own: Instant,
    std: std::time::Instant,
}

impl Pair {
    fn get() -> &'static Self {
        static PAIR: OnceLock<Pair> = OnceLock::new();
        #[expect(clippy::disallowed_methods, reason = "the standard library's clock is asked for")]
        PAIR.get_or_init(|| Self { own: monotonic_now(), std: std::time::Instant::now() })
    }
}

/// The limit of a host's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeout {
    /// Do not sleep: poll and return.
    Zero,
    Until(Instant),
    Never,
}

/// A source of instants.
///
/// # Contract
/// `now` never goes back, does not block and does not allocate: schedulers call it at every switch.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the present instant.
    fn now(&self) -> Instant;
}

/// A clock that moves only when told to: the simulator's.
#[derive(Debug)]
pub struct VirtualClock {
    /// Written by the simulation's thread only; read by any thread that asks for the time. `Relaxed`
    /// suffices: the value alone carries meaning.
    nanos: AtomicU64,
}

impl VirtualClock {
    /// Returns a clock that starts at zero.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a clock is made on purpose, never by default")]
    pub fn new() -> Self {
        Self { nanos: AtomicU64::new(0) }
    }

    /// Moves the clock forward to `instant`; does nothing if `instant` is in the past.
    pub fn advance_to(&self, instant: Instant) {
        // Only one thread moves it.
        if instant > self.now() {
            self.nanos.store(instant.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Moves the clock forward by `duration`.
    pub fn advance(&self, duration: Duration) {
        self.advance_to(self.now() + duration);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        Instant(self.nanos.load(Ordering::Relaxed))
    }
}

/// The clock of one server: the real one without a virtual call, or any other behind one.
#[derive(Clone, Debug)]
pub(crate) enum ClockSource {
    Monotonic,
    Other(Arc<dyn Clock>),
}

impl ClockSource {
    pub(crate) fn now(&self) -> Instant {
        match self {
            Self::Monotonic => monotonic_now(),
            Self::Other(clock) => clock.now(),
        }
    }
}

/// Returns the present instant of the real clock, whatever server is current.
///
/// # Cost
/// `CLOCK_MONOTONIC` through the vDSO: about 25 ns, no system call.
#[must_use]
pub fn monotonic_now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant(seconds * 1_000_000_000 + nanos)
}

/// Returns the CPU time that the calling thread has used.
///
/// # Cost
/// A system call, about 200 ns.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}

/// Returns a duration in nanoseconds, saturating at `u64::MAX`.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: arithmetic saturates at both ends. Method: the extremes.
    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant::from_nanos(1) + Duration::MAX, Instant::MAX);
        assert_eq!(Instant::from_nanos(1) - Instant::from_nanos(5), Duration::ZERO);
        assert_eq!(Instant::from_nanos(7) - Instant::from_nanos(5), Duration::from_nanos(2));
        assert_eq!(Instant::from_nanos(1) - Duration::from_nanos(2), Instant::from_nanos(0));
        assert_eq!(Instant::MAX.checked_add(Duration::from_nanos(1)), None);
        assert_eq!(Instant::from_nanos(1).checked_sub(Duration::MAX), None);
        assert_eq!(Instant::from_nanos(1).checked_duration_since(Instant::from_nanos(2)), None);
    }

    /// Goal: an instant survives the way to the standard library and back, and two that were read in turn keep
    /// their order. Method: instants before and after now, both ways.
    #[test]
    fn std_instants_convert_both_ways() {
        let (before, now) = (monotonic_now(), monotonic_now());
        #[expect(clippy::disallowed_methods, reason = "the standard library's clock is compared")]
        let later = std::time::Instant::now();
        for nanos in [0, 1, 999_999_999, 5_000_000_000] {
            let step = Duration::from_nanos(nanos);
            assert_eq!(Instant::from((now + step).into_std()), now + step);
            assert_eq!(Instant::from((now - step).into_std()), now - step);
            assert_eq!(std::time::Instant::from(Instant::from_std(later + step)), later + step);
        }
        assert!(before.into_std() <= now.into_std());
        assert_eq!(Instant::from_std(later + Duration::from_secs(1 << 60)), Instant::MAX);
    }

    /// Goal: a virtual clock never goes back. Method: move it to a past instant.
    #[test]
    fn a_virtual_clock_never_goes_back() {
        let clock = VirtualClock::new();
        clock.advance(Duration::from_secs(2));
        clock.advance_to(Instant::from_nanos(1));
        assert_eq!(clock.now(), Instant::from_nanos(2_000_000_000));
    }
}
