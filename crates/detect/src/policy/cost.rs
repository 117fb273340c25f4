//! What sleeping and waking cost on this machine, measured from the sleeps that happen anyway.
//!
//! The processor time of a sleep is that of the thread before and after, at the first sleeps and then
//! at every 64th. The delay of a wake-up shows where the moment is known at which the sleeper should
//! have been awake: a deadline, or the ring of another thread. A server that has slept a while and saw
//! neither sets itself a deadline a few times, never again after that: an idle process is not woken.
//!
//! *Deviation:* the delay between a packet's arrival and its reader cannot be seen. Deadlines stand in
//! for it; on a virtual machine they are late by up to twice as much. What a policy infers from a
//! wrong delay, polling first corrects: see [`History`](crate::History).

use std::time::Duration;

use crate::{
    clock::{Instant, Timeout, nanos, thread_cpu_time},
    sync::{AtomicU64, AtomicUsize, OnceLock, Ordering},
};

/// What sleeping and waking cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Costs {
    /// Processor time of falling asleep and waking up. 3 µs until it was measured.
    pub sleep_cpu: Duration,
    /// From the moment at which a sleeper should be awake until it is. 20 µs until it was measured.
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

/// A longer delay is that of a busy machine, on which nobody polls, or of a stopped process.
const DELAY_MAX_NS: u64 = 500_000;

/// How often the processor time is measured: at the first sleeps, then once in so many.
const SAMPLED_FIRST: usize = 16;
const SAMPLED_ONE_IN: usize = 64;

/// After so many sleeps without a known moment of waking, the server sets one, so many times.
const ALARMS_AFTER: usize = 32;
const ALARMS_MAX: usize = 4;
const ALARM: Duration = Duration::from_micros(100);

/// Measures [`Costs`]. Written by the thread that turns the server, but for `rung_ns`; read by
/// anybody. `Relaxed` throughout: each is a number for itself, and an old one does no harm.
#[derive(Debug)]
pub(crate) struct CostMeter {
    sleep_cpu_ns: AtomicU64,
    wake_delay_ns: AtomicU64,
    sleeps: AtomicUsize,
    delays: AtomicUsize,
    alarms: AtomicUsize,
    /// When another thread rang for the sleeping host; zero for never.
    rung_ns: AtomicU64,
}

/// One sleep that is being measured.
#[derive(Debug)]
#[must_use = "a sleep that is not ended measures nothing"]
pub(crate) struct Sleep {
    cpu_before: Option<Duration>,
    alarm: Option<Instant>,
    pub(crate) timeout: Timeout,
}

impl CostMeter {
    pub(crate) fn new() -> Self {
        Self {
            sleep_cpu_ns: AtomicU64::new(SLEEP_CPU_NS),
            wake_delay_ns: AtomicU64::new(WAKE_DELAY_NS),
            sleeps: AtomicUsize::new(0),
            delays: AtomicUsize::new(0),
            alarms: AtomicUsize::new(0),
            rung_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn costs(&self) -> Costs {
        Costs {
            sleep_cpu: Duration::from_nanos(self.sleep_cpu_ns.load(Ordering::Relaxed)),
            wake_delay: Duration::from_nanos(self.wake_delay_ns.load(Ordering::Relaxed)),
        }
    }

    /// A thread is about to wake the sleeping host.
    pub(crate) fn ring(&self, now: Instant) {
        self.rung_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// The host sleeps now, for `timeout` or, to measure, shorter.
    pub(crate) fn begin(&self, timeout: Timeout, now: impl FnOnce() -> Instant) -> Sleep {
        let sleeps = self.sleeps.load(Ordering::Relaxed);
        self.sleeps.store(sleeps.wrapping_add(1), Ordering::Relaxed);
        self.rung_ns.store(0, Ordering::Relaxed);
        let is_sampled = sleeps < SAMPLED_FIRST || sleeps.is_multiple_of(SAMPLED_ONE_IN);
        let mut sleep =
            Sleep { cpu_before: is_sampled.then(thread_cpu_time), alarm: None, timeout };
        match timeout {
            Timeout::Until(deadline) => sleep.alarm = Some(deadline),
            Timeout::Never if self.wants_alarm(sleeps) => {
                let alarm = now() + ALARM;
                sleep.alarm = Some(alarm);
                sleep.timeout = Timeout::Until(alarm);
            }
            _ => {}
        }
        sleep
    }

    fn wants_alarm(&self, sleeps: usize) -> bool {
        let alarms = self.alarms.load(Ordering::Relaxed);
        let wants = sleeps >= ALARMS_AFTER
            && alarms < ALARMS_MAX
            && self.delays.load(Ordering::Relaxed) < ALARMS_MAX;
        if wants {
            self.alarms.store(alarms + 1, Ordering::Relaxed);
        }
        wants
    }

    /// The host is awake again. `is_alone` says that nothing was announced: then a deadline that has
    /// passed is what woke it.
    pub(crate) fn end(&self, sleep: &Sleep, now: Instant, is_alone: bool) {
        if let Some(before) = sleep.cpu_before {
            let spent = thread_cpu_time().saturating_sub(before);
            average(&self.sleep_cpu_ns, nanos(spent).min(DELAY_MAX_NS));
        }
        let rung_ns = self.rung_ns.load(Ordering::Relaxed);
        let due_ns = if rung_ns > 0 {
            Some(rung_ns)
        } else {
            sleep.alarm.filter(|_| is_alone).map(Instant::as_nanos)
        };
        if let Some(delay) = due_ns.and_then(|due| now.as_nanos().checked_sub(due)) {
            self.woke(delay);
        }
    }

    /// A sleeper was awake so long after it should have been. One that was still awake says nothing: such a delay is short.
    fn woke(&self, delay: u64) {
        if (1_000..DELAY_MAX_NS).contains(&delay) {
            average(&self.wake_delay_ns, delay);
            let delays = self.delays.load(Ordering::Relaxed);
            self.delays.store(delays.saturating_add(1), Ordering::Relaxed);
        }
    }
}

/// The costs of threads that sleep at no server: of the whole process.
pub(crate) fn of_threads() -> &'static CostMeter {
    static METER: OnceLock<CostMeter> = OnceLock::new();
    METER.get_or_init(CostMeter::new)
}

impl CostMeter {
    /// A thread sleeps in `sleep`, which returns when another one should have woken it, if one did.
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

/// What it costs to give the core away, until it is back: 0.25 µs here where nobody wants it, 1.4 µs where one other
/// process looks and gives it back, as long as they compute where others do. Known to each waiter for itself, since it
/// depends on with whom it shares the core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct YieldMeter {
    /// Zero until it was measured.
    usual_ns: u64,
}

impl YieldMeter {
    /// Returns what it usually costs, once that was measured.
    pub(crate) const fn usual(self) -> Option<Duration> {
        match self.usual_ns {
            0 => None,
            usual => Some(Duration::from_nanos(usual)),
        }
    }

    /// The core was back after so long.
    pub(crate) fn took(&mut self, time: Duration) {
        let took = nanos(time).clamp(1, DELAY_MAX_NS);
        self.usual_ns = if self.usual_ns == 0 { took } else { moved(self.usual_ns, took).max(1) };
    }
}

/// Moves an average towards a new value: by a quarter down, by a sixteenth up. What disturbs a
/// measurement only ever makes it longer.
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

    /// Goal: the delay of wake-ups is learnt from deadlines and from rings, and outliers do not spoil
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
            meter.ring(at(begin + 500));
            meter.end(&sleep, at(begin + 505), false);
        }
        assert!(meter.costs().wake_delay <= Duration::from_micros(6));
    }

    /// Goal: a server that sees neither deadlines nor rings sets itself an alarm a few times, and an
    /// idle one none. Method: sleeps without end, counted.
    #[test]
    fn alarms_are_few() {
        let meter = CostMeter::new();
        let alarms: Vec<_> = (0..100_000)
            .filter(|round| sleep(&meter, Timeout::Never, *round, *round) != Timeout::Never)
            .collect();
        assert_eq!(alarms.len(), ALARMS_MAX);
        assert_eq!(alarms.first(), Some(&(ALARMS_AFTER as u64)));
    }
}
