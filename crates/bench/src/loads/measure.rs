//! One run: a mix on a system, in processes of its own.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::clock;
use crate::compute::Pace;
use crate::error::BenchError;
use crate::host::{Priority, Usage, threads_of};
use crate::mix::{ClosedClients, LoadServer, Mix, PacedClient, ResponseTimes};
use crate::process::{Child, Message};
use crate::schedulers::System;
use crate::statistics::microseconds;

/// How long a process may take to get ready; opening connections beside floods takes its time.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How often the server's threads are counted.
const COUNT_EVERY: Duration = Duration::from_millis(10);

/// From when on the number of threads must have settled.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

/// How a mix is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) system: System,
    pub(crate) workers: usize,
    pub(crate) pace: Pace,
    pub(crate) warm_up: Duration,
    pub(crate) span: Duration,
    pub(crate) opened_per_s: u32,
    pub(crate) counts_from_due: bool,
}

/// The results of a run. Times are in nanoseconds, sorted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) probes: Vec<u64>,
    pub(crate) opened: Vec<u64>,
    pub(crate) requests: Vec<u64>,
    pub(crate) slowdowns: Vec<u64>,
    /// How late the client's requests left, by its own doing.
    pub(crate) lateness: Vec<u64>,
    pub(crate) unanswered: u64,
    /// Cores that computation got.
    pub(crate) compute_cores: f64,
    /// Cores that the server's process used.
    pub(crate) cpu_cores: f64,
    /// Cores used by the client that sends by the clock.
    pub(crate) client_cores: f64,
    /// Answers to clients in a closed loop, per second.
    pub(crate) closed_per_s: f64,
    /// Messages passed, timers fired, calls made, tasks ended, per second.
    pub(crate) operations_per_s: f64,
    /// Threads at most in the first 100 ms, and after them; without those of the measurement.
    pub(crate) threads_early: usize,
    pub(crate) threads: usize,
    /// Share of the machine's time that its host gave to others.
    pub(crate) stolen: f64,
}

/// Returns a quantile of sorted values by the nearest rank, as it is also for few values.
pub(crate) fn quantile(sorted: &[u64], quantile: f64) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, reason = "a rank is at most a length")]
    #[expect(clippy::cast_sign_loss, reason = "quantiles are positive")]
    let rank = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

impl Figures {
    /// Tells whether the machine's host took so much time away that times mean little.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.stolen > STOLEN_MAX
    }

    /// Merges another run of the same load into this one.
    pub(crate) fn join(&mut self, other: Self) {
        let times = |figures: &mut Vec<u64>, others: Vec<u64>| {
            figures.extend(others);
            figures.sort_unstable();
        };
        times(&mut self.probes, other.probes);
        times(&mut self.opened, other.opened);
        times(&mut self.requests, other.requests);
        times(&mut self.slowdowns, other.slowdowns);
        times(&mut self.lateness, other.lateness);
        self.unanswered += other.unanswered;
        self.threads_early = self.threads_early.max(other.threads_early);
        self.threads = self.threads.max(other.threads);
        for (own, other) in [
            (&mut self.compute_cores, other.compute_cores),
            (&mut self.cpu_cores, other.cpu_cores),
            (&mut self.client_cores, other.client_cores),
            (&mut self.closed_per_s, other.closed_per_s),
            (&mut self.operations_per_s, other.operations_per_s),
            (&mut self.stolen, other.stolen),
        ] {
            *own = f64::midpoint(*own, other);
        }
    }

    /// Returns what a request cost the client, in microseconds.
    pub(crate) fn client_us(&self, per_s: f64) -> f64 {
        self.client_cores / per_s * 1e6
    }

    /// Returns the figures with their units in the keys, as rows have them.
    pub(crate) fn to_map(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("samples".to_owned(), json!(self.probes.len()));
        let kinds = [
            ("event", &self.probes),
            ("new", &self.opened),
            ("requests", &self.requests),
            ("client_late", &self.lateness),
        ];
        for (name, times) in kinds {
            map.insert(format!("{name}_samples"), json!(times.len()));
            for (key, q) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
                if let Some(time) = quantile(times, q) {
                    map.insert(format!("{name}_{key}_us"), json!(microseconds(time)));
                }
            }
        }
        for (key, value) in [
            ("unanswered", json!(self.unanswered)),
            ("compute_cores", json!(self.compute_cores)),
            ("cpu_cores", json!(self.cpu_cores)),
            ("client_cores", json!(self.client_cores)),
            ("closed_per_s", json!(self.closed_per_s)),
            ("operations_per_s", json!(self.operations_per_s)),
            ("threads_early_max", json!(self.threads_early)),
            ("threads_max", json!(self.threads)),
            ("stolen", json!(self.stolen)),
        ] {
            map.insert(key.to_owned(), value);
        }
        map
    }
}

/// Share of stolen time beyond which a run counts as disturbed.
pub(crate) const STOLEN_MAX: f64 = 0.01;

/// How often a disturbed run is made again, at most.
const TRIES: u32 = 3;

impl Run {
    /// Measures `mix`, again if the machine's host took too much time away, and returns the run that lost
    /// least.
    pub(crate) fn measure_undisturbed(&self, mix: &Mix) -> Result<(Figures, Priority), BenchError> {
        let mut best = self.measure(mix)?;
        for _ in 1..TRIES {
            if best.0.stolen <= STOLEN_MAX {
                break;
            }
            let next = self.measure(mix)?;
            if next.0.stolen < best.0.stolen {
                best = next;
            }
        }
        Ok(best)
    }

    /// Runs `mix` and returns what was found, and how the client was scheduled.
    pub(super) fn measure(&self, mix: &Mix) -> Result<(Figures, Priority), BenchError> {
        let plan = LoadServer {
            system: self.system,
            workers: self.workers,
            mix: mix.clone(),
            pace: self.pace,
        };
        let own_threads = plan.own_threads();
        let mut server = Child::start(&plan)?;
        let (process, address, _) = server.listening()?;
        let mut closed = None;
        if ClosedClients::are_in(mix) {
            let clients = ClosedClients { address, mix: mix.clone() };
            closed = Some(Child::start_ready(&clients, TIMEOUT)?.0);
        }
        let client = PacedClient {
            address,
            mix: mix.clone(),
            warm_up: self.warm_up,
            span: self.span,
            opened_per_s: self.opened_per_s,
            counts_from_due: self.counts_from_due,
        };
        let (mut paced, priority) = Child::start_ready(&client, TIMEOUT)?;
        if let Some(closed) = &mut closed {
            closed.go();
        }
        paced.go();

        let mut threads = Threads::new(process, own_threads);
        threads.watch_until(&mut paced, self.warm_up + TIMEOUT)?;
        let host = HostTime::now();
        let before = (server.usage()?, closed.as_mut().map(Child::usage).transpose()?);
        threads.watch_for(self.span);
        let after = (server.usage()?, closed.as_mut().map(Child::usage).transpose()?);
        let stolen = HostTime::now().stolen_since(host);
        let answers = paced.result(TIMEOUT)?;
        let used = after.0.since(before.0);
        let asked = after.1.zip(before.1).map(|(after, before)| after.since(before));
        let figures = self.figures(answers, used, asked, &threads);
        Ok((Figures { stolen, ..figures }, priority))
    }

    fn figures(
        &self,
        mut answers: ResponseTimes,
        used: Usage,
        asked: Option<Usage>,
        threads: &Threads,
    ) -> Figures {
        for times in [
            &mut answers.probes,
            &mut answers.opened,
            &mut answers.requests,
            &mut answers.slowdowns,
            &mut answers.lateness,
        ] {
            times.sort_unstable();
        }
        let span = Duration::from_nanos(used.at_ns.max(1));
        let per_s = |usage: Usage| usage.operations as f64 / (usage.at_ns.max(1) as f64 / 1e9);
        Figures {
            probes: answers.probes,
            opened: answers.opened,
            requests: answers.requests,
            slowdowns: answers.slowdowns,
            lateness: answers.lateness,
            unanswered: answers.unanswered,
            compute_cores: self.pace.cores(used.work, span),
            cpu_cores: used.cpu_ns as f64 / used.at_ns.max(1) as f64,
            client_cores: answers.cpu_ns as f64 / clock::nanoseconds(self.span).max(1) as f64,
            closed_per_s: asked.map_or(0.0, per_s),
            operations_per_s: per_s(used),
            threads_early: threads.early,
            threads: threads.settled,
            stolen: 0.0,
        }
    }
}

/// What a hypervisor has given to this machine and to others, in ticks.
#[derive(Clone, Copy, Debug, Default)]
struct HostTime {
    all: u64,
    stolen: u64,
}

impl HostTime {
    fn now() -> Self {
        Self::of(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Reads the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal, and
    /// two that are parts of the first ones.
    fn of(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        Self { all: ticks.iter().sum(), stolen: ticks.get(7).copied().unwrap_or_default() }
    }

    fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

/// Counts the threads of a process again and again.
struct Threads {
    process: u32,
    /// Threads that are not the system's.
    own: usize,
    start: Instant,
    early: usize,
    settled: usize,
}

impl Threads {
    fn new(process: u32, own: usize) -> Self {
        Self { process, own, start: clock::now(), early: 0, settled: 0 }
    }

    fn count(&mut self) {
        let threads = threads_of(self.process).saturating_sub(self.own);
        let is_early = self.start.elapsed() < SETTLED_AFTER;
        let most = if is_early { &mut self.early } else { &mut self.settled };
        *most = threads.max(*most);
    }

    /// Counts until the client says that the measurement begins.
    fn watch_until(&mut self, client: &mut Child, timeout: Duration) -> Result<(), BenchError> {
        loop {
            match client.next(COUNT_EVERY) {
                Ok(Message::MeasurementBegins) => return Ok(()),
                Ok(other) => return Err(client.unexpected(&other)),
                Err(BenchError::Silent { .. }) if self.start.elapsed() < timeout => self.count(),
                Err(error) => return Err(error),
            }
        }
    }

    fn watch_for(&mut self, span: Duration) {
        let end = clock::now() + span;
        while clock::now() < end {
            thread::park_timeout(COUNT_EVERY);
            self.count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_number() {
        // Goal: what the host took is found, and guests' time is not counted twice. Method: two lines.
        let before = HostTime::of("cpu  100 0 50 800 0 0 0 10 7 7\ncpu0 1 2 3\n");
        let after = HostTime::of("cpu  150 0 70 820 0 0 0 20 9 9\n");
        assert_eq!((before.all, before.stolen), (960, 10));
        assert!((after.stolen_since(before) - 0.1).abs() < 1e-9);
        assert!(HostTime::default().stolen_since(after).abs() < 1e-9);
    }

    #[test]
    fn quantiles_by_the_nearest_rank() {
        // Goal: quantiles are values that occurred, for few and many. Method: known answers.
        let ramp: Vec<u64> = (1..=1_000).collect();
        let of = |q| quantile(&ramp, q);
        assert_eq!(
            (of(0.5), of(0.99), of(0.999), of(1.0)),
            (Some(500), Some(990), Some(999), Some(1_000))
        );
        assert_eq!((quantile(&[7], 0.0), quantile(&[7], 0.999)), (Some(7), Some(7)));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
