//! The cost of sleeping and waking on this machine, measured from sleeps that happen anyway.
//!
//! The processor time of a sleep is the difference between the thread's CPU times before and after, measured
//! at the first sleeps and then at every 64th. The delay of a wake-up can be measured when it is known at
//! which moment the sleeper should have been awake: a deadline, or another thread's notification. A server
//! that has slept several times without either sets itself a deadline a few times and never again: an idle
//! process is not woken.
//!
//! *Deviation:* the delay between a packet's arrival and its reader is not observable. Deadlines stand
//! in for it; on a virtual machine they are late by up to twice as much. Polling first corrects what a
//! policy infers from a wrong delay: see [`History`](crate::History).

use std::time::Duration;

use crate::{
    clock::{Instant, Timeout, nanos, thread_cpu_time},
    sync::{AtomicU64, AtomicUsize, OnceLock, Ordering},
};

/// The cost of sleeping and waking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Costs {
    /// Processor time of falling asleep and waking up. 3 µs until measured.
    pub sleep_cpu: Duration,
    /// From the moment at which a sleeper should be awake until it is. 20 µs until measured.
    pub wake_delay: Duration,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            sleep_cpu: Duration::from_nanos(SLEEP_CPU_NS),
            wake_delay: Duration::from_nanos(WAKE_DELAY_NS),
        }
    }
}

const SLEEP_CPU_NS: u64 = 3_000;
const WAKE_DELAY_NS: u64 = 20_000;

/// A longer delay comes from a busy machine, on which hosts do not poll, or from a stopped process.
const DELAY_MAX_NS: u64 = 500_000;

/// The sleeps whose processor time is measured: the first `SAMPLED_FIRST`, then one in `SAMPLED_ONE_IN`.
const SAMPLED_FIRST: usize = 16;
const SAMPLED_ONE_IN: usize = 64;

/// After this many sleeps without a known moment of waking, the server sets one, a limited number
/// of times.
const PROBES_AFTER: usize = 32;
const PROBES_MAX: usize = 4;
const PROBE_SLEEP: Duration = Duration::from_micros(100);

/// Measures [`Costs`]. Written by the thread that drives the server, except for `notified_ns`; read
/// by any thread. `Relaxed` throughout: the values are independent, and a stale one does no harm.
#[derive(Debug)]
pub(crate) struct CostMeter {
    sleep_cpu_ns: AtomicU64,
    wake_delay_ns: AtomicU64,
    sleeps: AtomicUsize,
    delays: AtomicUsize,
    probes: AtomicUsize,
    /// The time at which another thread notified the sleeping host; zero for never.
    notified_ns: AtomicU64,
}

/// One sleep that is being measured.
#[derive(Debug)]
#[must_use = "a sleep that is not ended measures nothing"]
pub(crate) struct MeasuredSleep {
    cpu_before: Option<Duration>,
    probe: Option<Instant>,
    pub(crate) timeout: Timeout,
}

impl CostMeter {
    pub(crate) fn new() -> Self {
        Self {
            sleep_cpu_ns: AtomicU64::new(SLEEP_CPU_NS),
            wake_delay_ns: AtomicU64::new(WAKE_DELAY_NS),
            sleeps: AtomicUsize::new(0),
            delays: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
            notified_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn costs(&self) -> Costs {
        Costs {
            sleep_cpu: Duration::from_nanos(self.sleep_cpu_ns.load(Ordering::Relaxed)),
            wake_delay: Duration::from_nanos(self.wake_delay_ns.load(Ordering::Relaxed)),
        }
    }

    /// Called when a thread is about to wake the sleeping host.
    pub(crate) fn notify(&self, now: Instant) {
        self.notified_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Called when the host goes to sleep, for `timeout` or, to measure, for less.
    pub(crate) fn begin(&self, timeout: Timeout, now: impl FnOnce() -> Instant) -> MeasuredSleep {
        let sleeps = self.sleeps.load(Ordering::Relaxed);
        self.sleeps.store(sleeps.wrapping_add(1), Ordering::Relaxed);
        self.notified_ns.store(0, Ordering::Relaxed);
        let is_sampled = sleeps < SAMPLED_FIRST || sleeps.is_multiple_of(SAMPLED_ONE_IN);
        let mut sleep =
            MeasuredSleep { cpu_before: is_sampled.then(thread_cpu_time), probe: None, timeout };
        match timeout {
            Timeout::Until(deadline) => sleep.probe = Some(deadline),
            Timeout::Never if self.wants_probe(sleeps) => {
                let probe = now() + PROBE_SLEEP;
                sleep.probe = Some(probe);
                sleep.timeout = Timeout::Until(probe);
            }
            _ => {}
        }
        sleep
    }

    fn wants_probe(&self, sleeps: usize) -> bool {
        let probes = self.probes.load(Ordering::Relaxed);
        let wants = sleeps >= PROBES_AFTER
            && probes < PROBES_MAX
            && self.delays.load(Ordering::Relaxed) < PROBES_MAX;
        if wants {
            self.probes.store(probes + 1, Ordering::Relaxed);
        }
        wants
    }

    /// Called when the host is awake again. `is_alone` means that nothing was announced: then a past
    /// deadline is what woke it.
    pub(crate) fn end(&self, sleep: &MeasuredSleep, now: Instant, is_alone: bool) {
        if let Some(before) = sleep.cpu_before {
            let spent = thread_cpu_time().saturating_sub(before);
            average(&self.sleep_cpu_ns, nanos(spent).min(DELAY_MAX_NS));
        }
        let notified_ns = self.notified_ns.load(Ordering::Relaxed);
        let due_ns = if notified_ns > 0 {
            Some(notified_ns)
        } else {
            sleep.probe.filter(|_| is_alone).map(Instant::as_nanos)
        };
        if let Some(delay) = due_ns.and_then(|due| now.as_nanos().checked_sub(due)) {
            self.woke(delay);
        }
    }

    /// Records how late a sleeper was awake. If it was still awake at that moment, the delay is short and tells nothing.
    fn woke(&self, delay: u64) {
        if (1_000..DELAY_MAX_NS).contains(&delay) {
            average(&self.wake_delay_ns, delay);
            let delays = self.delays.load(Ordering::Relaxed);
            self.delays.store(delays.saturating_add(1), Ordering::Relaxed);
        }
    }
}

/// The costs of threads that sleep outside any server: of the whole process.
pub(crate) fn of_threads() -> &'static CostMeter {
    static METER: OnceLock<CostMeter> = OnceLock::new();
    METER.get_or_init(CostMeter::new)
}

impl CostMeter {
    /// Runs `sleep`, which returns when another thread should have woken this one, if one did.
    pub(crate) fn thread_sleeps(
        &self,
        sleep: impl FnOnce() -> Option<Instant>,
        now: impl FnOnce() -> Instant,
    ) {
        let sleeps = self.sleeps.fetch_add(1, Ordering::Relaxed);
        let is_sampled = sleeps < SAMPLED_FIRST || sleeps.is_multiple_of(SAMPLED_ONE_IN);
        let before = is_sampled.then(thread_cpu_time);
        let woken = sleep();
        if let Some(before) = before {
            let spent = thread_cpu_time().saturating_sub(before);
            average(&self.sleep_cpu_ns, nanos(spent).min(DELAY_MAX_NS));
            if let Some(woken) = woken {
                self.woke(now().as_nanos().saturating_sub(woken.as_nanos()));
            }
        }
    }
}

/// Measures the cost of yielding the core, until it is back: 0.25 µs here if no thread wants it, 1.4 µs if one other
/// process polls and gives it back, and as long as others compute if they do. Kept by each waiter, since it depends on
/// the threads with which it shares the core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct YieldMeter {
    /// Zero until measured.
    usual_ns: u64,
}

impl YieldMeter {
    /// Returns the usual cost, once measured.
    pub(crate) const fn usual(self) -> Option<Duration> {
        match self.usual_ns {
            0 => None,
            usual => Some(Duration::from_nanos(usual)),
        }
    }

    /// Records that the core was back after `time`.
    pub(crate) fn took(&mut self, time: Duration) {
        let took = nanos(time).clamp(1, DELAY_MAX_NS);
        self.usual_ns = if self.usual_ns == 0 { took } else { moved(self.usual_ns, took).max(1) };
    }
}

/// Moves an average towards a new value: by a quarter down, by a sixteenth up, since disturbances
/// only ever make a measurement longer.
fn average(average_ns: &AtomicU64, value: u64) {
    let before = average_ns.load(Ordering::Relaxed);
    average_ns.store(moved(before, value), Ordering::Relaxed);
}

const fn moved(before: u64, value: u64) -> u64 {
    if value < before { before - (before - value) / 4 } else { before + (value - before) / 16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    fn sleep(meter: &CostMeter, timeout: Timeout, begin: u64, end: u64) -> Timeout {
        let sleep = meter.begin(timeout, || at(begin));
        meter.end(&sleep, at(end), true);
        sleep.timeout
    }

    /// Goal: the delay of wake-ups is learnt from deadlines and from notifications, and outliers do not spoil
    /// it. Method: sleeps that end 40 µs late, some of them much later.
    #[test]
    fn delays_are_learnt() {
        let meter = CostMeter::new();
        for round in 0..200_u64 {
            let begin = round * 10_000;
            let late = if round % 10 == 9 { 5_000 } else { 40 };
            sleep(&meter, Timeout::Until(at(begin + 100)), begin, begin + 100 + late);
        }
        let delay = meter.costs().wake_delay;
        assert!(
            delay > Duration::from_micros(38) && delay <= Duration::from_micros(40),
            "{delay:?}"
        );
        for round in 0..50_u64 {
            let begin = 10_000_000 + round * 10_000;
            let sleep = meter.begin(Timeout::Never, || at(begin));
            meter.notify(at(begin + 500));
            meter.end(&sleep, at(begin + 505), false);
        }
        assert!(meter.costs().wake_delay <= Duration::from_micros(6));
    }

    /// Goal: a server that sees neither deadlines nor notifications sets itself a probe a few times, and an
    /// idle one sets none. Method: sleeps without end, counted.
    #[test]
    fn probes_are_few() {
        let meter = CostMeter::new();
        let probes: Vec<_> = (0..100_000)
            .filter(|round| sleep(&meter, Timeout::Never, *round, *round) != Timeout::Never)
            .collect();
        assert_eq!(probes.len(), PROBES_MAX);
        assert_eq!(probes.first(), Some(&(PROBES_AFTER as u64)));
    }
}
