//! Compares a system with kernel threads in the same run.

use std::fmt;

use super::measure::{Figures, quantile};
use crate::mix::{Behaviour, Mix};
use crate::report::{three_digits, time};

/// How much longer than with threads a time may be.
const TIME_FACTOR: f64 = 1.2;

/// Beyond this many times its bound, a figure is marked.
pub(crate) const MARK: f64 = 5.0;

/// Threads beside the workers that loads may have in which nothing blocks.
const THREADS_BESIDE: usize = 4;

/// The same in the first 100 ms.
const THREADS_EARLY: usize = 16;

/// The required share of threads' computation.
const COMPUTE_SHARE: f64 = 0.9;

/// The required share of threads' answers to clients whose handlers block.
const BLOCKING_SHARE: f64 = 0.95;

/// Below this many cores, computation is noise.
const CORES_MIN: f64 = 0.02;

/// The judged quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadMeasure {
    /// Time until an old connection is answered, percentile 99.
    EventP99,
    /// The same, percentile 99.9.
    EventP999,
    /// Time until a new connection is answered, percentile 99.
    NewP99,
    /// Cores that computation got.
    Compute,
    /// Threads once the load has settled.
    Threads,
    /// Threads in the first 100 ms.
    ThreadsEarly,
    /// Answers to clients whose handlers block, per second.
    BlockingPerSecond,
    /// Time until a woken task runs while its waker computes, median.
    WokenP50,
}

impl fmt::Display for LoadMeasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EventP99 => "event p99",
            Self::EventP999 => "event p99.9",
            Self::NewP99 => "new connection p99",
            Self::Compute => "compute cores",
            Self::Threads => "threads",
            Self::ThreadsEarly => "threads in the first 100 ms",
            Self::BlockingPerSecond => "blocking handlers, requests/s",
            Self::WokenP50 => "wake-up p50",
        })
    }
}

/// A figure and its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judged {
    /// The kind of figure.
    pub(crate) measure: LoadMeasure,
    /// The figure: nanoseconds, cores, threads or a rate.
    pub(crate) value: f64,
    /// Its bound.
    pub(crate) bound: f64,
}

impl Judged {
    /// Returns how many times the bound the figure is; above one, the bound is missed.
    pub(crate) fn factor(&self) -> f64 {
        let (value, bound) = (self.value, self.bound);
        match self.measure {
            LoadMeasure::Compute | LoadMeasure::BlockingPerSecond => bound / value.max(1e-9),
            _ => value / bound,
        }
    }

    /// Tells whether the figure is within its bound.
    pub(crate) fn holds(&self) -> bool {
        self.factor() <= 1.0
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { measure, value, bound } = self;
        let show = |figure: f64| match measure {
            LoadMeasure::EventP99
            | LoadMeasure::EventP999
            | LoadMeasure::NewP99
            | LoadMeasure::WokenP50 => time(figure),
            _ => three_digits(figure),
        };
        let sign = match measure {
            LoadMeasure::Compute | LoadMeasure::BlockingPerSecond => '<',
            _ => '>',
        };
        let mark = if self.factor() > MARK { " !!" } else { "" };
        let factor = three_digits(self.factor());
        write!(f, "{measure} {} {sign} {} ({factor}x{mark})", show(*value), show(*bound))
    }
}

/// Compares a system's figures with those of threads. `is_threads`: the system is threads itself, whose
/// number has no bound.
pub(crate) fn judge(
    mix: &Mix,
    workers: usize,
    own: &Figures,
    threads: &Figures,
    is_threads: bool,
) -> Vec<Judged> {
    let mut judged = Vec::new();
    let mut add = |measure, value: f64, bound: f64| judged.push(Judged { measure, value, bound });
    let bound = |times: fn(&Figures) -> &[u64], q: f64, least_ns: f64| {
        // A request that was never answered waited for ever.
        let value = quantile(times(own), q).map_or(f64::INFINITY, |time| time as f64);
        let reference = quantile(times(threads), q).map_or(0.0, |time| time as f64);
        (value, (TIME_FACTOR * reference).max(least_ns))
    };
    let (value, limit) = bound(|figures| &figures.probes, 0.99, 200e3);
    add(LoadMeasure::EventP99, value, limit);
    let (value, limit) = bound(|figures| &figures.probes, 0.999, 2e6);
    add(LoadMeasure::EventP999, value, limit);
    let (value, limit) = bound(|figures| &figures.opened, 0.99, 1e6);
    add(LoadMeasure::NewP99, value, limit);
    if mix.computes() && threads.compute_cores >= CORES_MIN {
        add(LoadMeasure::Compute, own.compute_cores, COMPUTE_SHARE * threads.compute_cores);
    }
    if !is_threads && !mix.blocks() {
        let settled = (workers + THREADS_BESIDE) as f64;
        add(LoadMeasure::Threads, own.threads as f64, settled);
        add(LoadMeasure::ThreadsEarly, own.threads_early as f64, THREADS_EARLY as f64);
    }
    let has = |is: fn(&Behaviour) -> bool| mix.behaviours.iter().any(is);
    let closed = |behaviour: &Behaviour| matches!(behaviour, Behaviour::Flood { .. });
    // Answers to both kinds of clients cannot be told apart.
    if has(|behaviour| matches!(behaviour, Behaviour::BlockingHandlers { .. })) && !has(closed) {
        let least = BLOCKING_SHARE * threads.closed_per_s;
        add(LoadMeasure::BlockingPerSecond, own.closed_per_s, least);
    }
    if let [Behaviour::WakeThenCompute { .. }] = mix.behaviours[..] {
        let (value, limit) = bound(|figures| &figures.requests, 0.5, 200e3);
        add(LoadMeasure::WokenP50, value, limit);
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(probe_ns: u64, cores: f64, threads: usize) -> Figures {
        Figures {
            probes: vec![probe_ns; 2_000],
            opened: vec![probe_ns; 100],
            compute_cores: cores,
            threads,
            ..Figures::default()
        }
    }

    fn missed(judged: &[Judged]) -> Vec<LoadMeasure> {
        judged.iter().filter(|judged| !judged.holds()).map(|judged| judged.measure).collect()
    }

    #[test]
    fn bounds_follow_threads_and_have_a_floor() {
        // Goal: each bound is the larger of 1.2 of threads' time and its floor; computation is at least
        // nine tenths; threads are bounded. Method: figures just within and just beyond each.
        let mix = Mix::named("flood-2").unwrap();
        let judge_one =
            |own: &Figures, reference: &Figures| missed(&judge(&mix, 2, own, reference, false));
        let fast = figures(20_000, 1.0, 4);
        assert_eq!(judge_one(&figures(200_000, 0.9, 6), &fast), []);
        assert_eq!(judge_one(&figures(200_001, 0.9, 6), &fast), [LoadMeasure::EventP99]);
        assert_eq!(judge_one(&figures(20_000, 0.89, 6), &fast), [LoadMeasure::Compute]);
        assert_eq!(judge_one(&figures(20_000, 1.0, 7), &fast), [LoadMeasure::Threads]);
        let beyond = [LoadMeasure::EventP99, LoadMeasure::EventP999, LoadMeasure::NewP99];
        assert_eq!(judge_one(&figures(2_000_001, 1.0, 2), &fast), beyond);
        let slow = figures(10_000_000, 1.0, 4);
        assert_eq!(judge_one(&figures(12_000_000, 1.0, 2), &slow), []);
        assert_eq!(judge_one(&figures(12_000_001, 1.0, 2), &slow), beyond);
        assert_eq!(missed(&judge(&mix, 2, &figures(20_000, 1.0, 99), &fast, true)), []);
    }

    #[test]
    fn silence_is_the_worst_answer() {
        // Goal: a system that answers nothing misses, however slow threads are. Method: no samples.
        let mix = Mix::named("hogs-10").unwrap();
        let judged = judge(&mix, 2, &Figures::default(), &figures(1_000_000_000, 0.0, 4), false);
        assert!(judged[..3].iter().all(|judged| judged.factor() > MARK), "{judged:?}");
        assert!(judged[0].to_string().contains("!!"));
    }

    #[test]
    fn a_factor_says_how_far_beyond() {
        // Goal: times count up, shares count down. Method: known figures.
        let time = Judged { measure: LoadMeasure::EventP99, value: 3e6, bound: 2e5 };
        assert!((time.factor() - 15.0).abs() < 1e-9 && !time.holds());
        assert_eq!(time.to_string(), "event p99 3.00 ms > 200 µs (15.0x !!)");
        let share = Judged { measure: LoadMeasure::Compute, value: 0.3, bound: 0.9 };
        assert!((share.factor() - 3.0).abs() < 1e-9);
        assert_eq!(share.to_string(), "compute cores 0.300 < 0.900 (3.00x)");
    }

    #[test]
    fn blocking_handlers_and_wake_ups_have_bounds_of_their_own() {
        // Goal: requests per second and the wake-up are judged where they are the load. Method: the named
        // cases.
        let rate = |per_s| Figures { closed_per_s: per_s, ..figures(1_000, 0.0, 400) };
        let mix = Mix::named("blocking-60").unwrap();
        assert_eq!(missed(&judge(&mix, 2, &rate(570.0), &rate(600.0), false)), []);
        let slow = judge(&mix, 2, &rate(569.0), &rate(600.0), false);
        assert_eq!(missed(&slow), [LoadMeasure::BlockingPerSecond]);
        let mix = Mix::named("wake-then-compute").unwrap();
        let woken = |ns| Figures { requests: vec![ns; 9], ..figures(1_000, 0.0, 4) };
        let judged = judge(&mix, 2, &woken(720_000), &woken(30_000), false);
        assert_eq!(missed(&judged), [LoadMeasure::WokenP50]);
    }
}
