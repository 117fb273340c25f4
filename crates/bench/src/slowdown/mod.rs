//! Tail slowdown against offered load, with service times that differ widely.
//!
//! Requests come by a Poisson process on a schedule that does not wait for answers. A request's time
//! begins when it is due, and its slowdown is that time divided by what it computes. The client shares
//! the cores with the server, so the load is offered relative to what is left: with service time *S*,
//! client cost *c* for each request and *n* cores, load *l* is the rate *r* for which
//! *r S = l (n - r c)*. A server without any cost of its own carries every load below 1.
//!
//! Each request takes the connection that has been idle for longest: requests that wait behind a long
//! one on their own connection would say nothing of the scheduler.
//!
//! Beside the systems stand two simulations with the same arrivals (`oracle.rs`).

mod oracle;

use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use self::oracle::{Discipline, Job, Processors, responses};
use crate::compute::{Pace, parse_duration};
use crate::error::BenchError;
use crate::loads::{Figures, Run, quantile};
use crate::mix::{Behaviour, Mix, ServiceTime, arrivals};
use crate::report::{Outcome, Plan, Progress, Row, Subject, Table, or_dash, three_digits, time};
use crate::schedulers::System;

/// Name of the case in rows.
pub(crate) const CASE: &str = "slowdown";

/// Name of the rows that say up to which load a system holds.
pub(crate) const HOLDS: &str = "slowdown-holds";

/// Key of the load up to which the slowdown stays within [`SLOWDOWN_MAX`].
pub(crate) const LOAD: &str = "load_max";

/// The slowdown of 99.9 % of requests that a load must stay within.
pub(crate) const SLOWDOWN_MAX: f64 = 50.0;

/// Requests per second and what they compute when the client's cost is measured.
const CALIBRATION: (u32, ServiceTime) = (10_000, ServiceTime::Fixed { us: 10.0 });

/// A distribution of service times with a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Service {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// The distribution.
    pub(crate) time: ServiceTime,
}

impl Service {
    fn named(name: &str) -> Result<Self, String> {
        let known = SERVICES.into_iter().find(|service| service.name == name);
        known.ok_or_else(|| {
            let names = SERVICES.map(|service| service.name);
            format!("there are {}", names.join(", "))
        })
    }
}

/// All distributions.
pub(crate) const SERVICES: [Service; 4] = [
    Service {
        name: "99.5-0.5",
        time: ServiceTime::Bimodal { short_us: 10.0, long_us: 10_000.0, long_share: 0.005 },
    },
    Service {
        name: "50-50",
        time: ServiceTime::Bimodal { short_us: 1.0, long_us: 100.0, long_share: 0.5 },
    },
    Service { name: "exponential-10", time: ServiceTime::Exponential { mean_us: 10.0 } },
    Service { name: "exponential-25", time: ServiceTime::Exponential { mean_us: 25.0 } },
];

/// Which systems serve which loads.
#[derive(Clone, Debug, Args)]
pub(crate) struct SlowdownPlan {
    /// Distributions of the requests' computation: 99.5-0.5 (percent of 10 µs and of 10 ms), 50-50 (percent of 1 µs and of
    /// 100 µs), exponential-10, exponential-25 (mean in µs).
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,…",
        default_value = "99.5-0.5,50-50,exponential-25",
        value_parser = Service::named
    )]
    service: Vec<Service>,
    /// Loads, in rising order; 1 is what a server without overhead could do beside the client.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LOAD,…",
        default_value = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9"
    )]
    loads: Vec<f64>,
    /// Number of connections; each request takes the one that has been idle for longest.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Time per run, after 0.3 s of warm-up.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    budget: Duration,
    /// Systems to measure [default: vigie,threads,tokio, and go if it is installed].
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM,…")]
    peers: Vec<System>,
    /// Worker threads of systems that let you choose their number.
    #[arg(long, default_value_t = 2)]
    workers: usize,
}

impl Plan for SlowdownPlan {
    fn cases(&self) -> usize {
        1 + self.systems().len() * self.service.len() * self.loads.len()
    }

    /// Measures all loads on all systems in turns, and simulates the oracles.
    fn run(&self, seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let systems = self.systems();
        systems.iter().try_for_each(|system| system.prepare())?;
        let cores = available_parallelism().map_or(1, NonZero::get);
        let run = SlowdownRun { plan: self, cores, pace: Pace::of_this_machine(), seed };
        let (mut outcome, client_us) = run.calibrate(progress)?;
        for service in &self.service {
            for &load in &self.loads {
                let rate = run.rate(service.time, load, client_us);
                let mix = run.mix(service.time, rate);
                for discipline in [Discipline::ShortestRemaining, Discipline::Sharing] {
                    let figures = run.simulate(&mix, rate, client_us, discipline);
                    outcome.rows.push(row(subject(discipline), *service, load, rate, &figures));
                }
                for &system in &systems {
                    progress.case(format!("{system}, {}, load {load}", service.name));
                    let measured = run.run_on(system).measure_undisturbed(&mix);
                    outcome.rows.push(match measured {
                        Ok((figures, _)) => row(system.into(), *service, load, rate, &figures),
                        Err(error @ (BenchError::Start { .. } | BenchError::Protocol { .. })) => {
                            return Err(error);
                        }
                        Err(error) => {
                            let figures = Figures::default();
                            let mut row = row(system.into(), *service, load, rate, &figures);
                            row.failure = Some(error.to_string());
                            row
                        }
                    });
                    progress.case_done();
                }
            }
        }
        let held: Vec<_> =
            self.service.iter().flat_map(|service| self.held(*service, &outcome.rows)).collect();
        outcome.rows.extend(held);
        Ok(outcome)
    }

    /// Shows a table for each distribution, with what each system holds.
    fn tables(&self, rows: &[Row]) -> String {
        let mut shown = String::new();
        for service in &self.service {
            let title = format!(
                "Slowdown p99 / p99.9 (and time p99.9) of requests of {}, by load; 50 up to",
                service.time
            );
            let headings = ["system".to_owned()]
                .into_iter()
                .chain(self.loads.iter().map(|load| format!("{load}")))
                .chain(["load for 50".to_owned()]);
            let mut table = Table::new(title, headings);
            let own = |row: &&Row| row.parameters.get("service") == Some(&json!(service.name));
            for held in rows.iter().filter(own).filter(|row| row.case == HOLDS) {
                let cells = rows
                    .iter()
                    .filter(own)
                    .filter(|row| row.case == CASE && row.system == held.system)
                    .map(cell);
                let load = held.figure(LOAD).map_or_else(String::new, three_digits);
                let label = held.system.label().to_owned();
                table.row([label].into_iter().chain(cells).chain([load]));
            }
            shown.push_str(&format!("{table}\n{}\n\n", self.floor(*service, rows)));
        }
        shown
    }
}

impl SlowdownPlan {
    fn systems(&self) -> Vec<System> {
        if !self.peers.is_empty() {
            return self.peers.clone();
        }
        let systems = [System::Vigie, System::Threads, System::Tokio, System::Go];
        systems.into_iter().filter(|system| system.is_installed()).collect()
    }

    /// Returns a row for each subject that says up to which load it holds.
    fn held(&self, service: Service, rows: &[Row]) -> Vec<Row> {
        let own = |row: &&Row| row.parameters.get("service") == Some(&json!(service.name));
        let mut subjects: Vec<Subject> = Vec::new();
        for row in rows.iter().filter(own) {
            if !subjects.contains(&row.system) {
                subjects.push(row.system);
            }
        }
        let held = subjects.into_iter().map(|subject| {
            let rows = rows.iter().filter(own).filter(|row| row.system == subject);
            let curve: Vec<_> = rows
                .map(|row| {
                    let load = row.parameters.get("load").and_then(|load| load.as_f64());
                    let slowdown = row.figure("slowdown_p99.9").filter(|_| row.failure.is_none());
                    (load.unwrap_or_default(), slowdown.unwrap_or(f64::INFINITY))
                })
                .collect();
            Row::new(subject, HOLDS)
                .parameter("service", service.name)
                .with_figure(LOAD, load_within(&curve, SLOWDOWN_MAX))
                .with_figure("samples", curve.len())
        });
        held.collect()
    }

    /// Says what the client and the machine's host have added to the times of a distribution.
    fn floor(&self, service: Service, rows: &[Row]) -> String {
        let own = |row: &&Row| row.parameters.get("service") == Some(&json!(service.name));
        let most = |key: &'static str| {
            let figures = rows.iter().filter(own).filter_map(move |row| row.figure(key));
            figures.fold(0.0, f64::max)
        };
        let (middle, late) = (most("client_late_p50_us"), most("client_late_p99.9_us"));
        format!(
            "the client's own lateness, which counts: p50 up to {}, p99.9 up to {}; stolen by the host up to {:.1} %",
            time(middle * 1e3),
            time(late * 1e3),
            100.0 * most("stolen"),
        )
    }
}

/// A plan on this machine.
#[derive(Debug)]
struct SlowdownRun<'a> {
    plan: &'a SlowdownPlan,
    cores: usize,
    pace: Pace,
    /// Seed of arrivals and sizes.
    seed: u64,
}

impl SlowdownRun<'_> {
    /// Measures what a request costs the client, in microseconds.
    fn calibrate(&self, progress: &mut Progress) -> Result<(Outcome, f64), BenchError> {
        progress.case("cost of the client");
        let mix = self.mix(CALIBRATION.1, f64::from(CALIBRATION.0));
        let (figures, priority) = self.run_on(System::Threads).measure_undisturbed(&mix)?;
        progress.case_done();
        let client_us = figures.client_us(f64::from(CALIBRATION.0));
        Ok((Outcome { rows: Vec::new(), priority: Some(priority) }, client_us))
    }

    /// The rate at which a load is offered, in requests per second.
    fn rate(&self, service: ServiceTime, load: f64, client_us: f64) -> f64 {
        load * self.cores as f64 / (service.mean_us() + load * client_us) * 1e6
    }

    #[expect(clippy::cast_possible_truncation, reason = "a rate is far below 2^32")]
    #[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
    fn mix(&self, service: ServiceTime, rate: f64) -> Mix {
        let per_s = (rate.round() as u32).max(1);
        let behaviour = Behaviour::Service { connections: self.plan.connections, per_s, service };
        Mix { name: CASE.to_owned(), seed: self.seed, behaviours: vec![behaviour] }
    }

    fn run_on(&self, system: System) -> Run {
        Run {
            system,
            workers: self.plan.workers,
            pace: self.pace,
            warm_up: Duration::from_millis(300),
            span: self.plan.budget,
            opened_per_s: 0,
            counts_from_due: true,
        }
    }

    /// Has the same requests served in virtual time, by what the client leaves of the processors.
    fn simulate(&self, mix: &Mix, rate: f64, client_us: f64, discipline: Discipline) -> Figures {
        let left = self.cores as f64 - rate * client_us / 1e6;
        let on = Processors { count: self.cores, speed: left / self.cores as f64 };
        let jobs: Vec<_> = arrivals(mix, self.plan.budget)
            .map(|(at, size)| Job { arrival_ns: at as f64, size_ns: size as f64 })
            .collect();
        let responses = responses(&jobs, on, discipline);
        let nanoseconds = |response: f64| {
            // Both clocks count from zero, in nanoseconds.
            clock_ns(response)
        };
        let mut requests: Vec<_> = responses.iter().copied().map(nanoseconds).collect();
        let slow = |(job, response): (&Job, &f64)| clock_ns(1e3 * response / job.size_ns.max(1.0));
        let mut slowdowns: Vec<_> = jobs.iter().zip(&responses).map(slow).collect();
        requests.sort_unstable();
        slowdowns.sort_unstable();
        Figures { requests, slowdowns, ..Figures::default() }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "times of a run are far below 2^63 ns")]
#[expect(clippy::cast_sign_loss, reason = "times are positive")]
const fn clock_ns(value: f64) -> u64 {
    value as u64
}

const fn subject(discipline: Discipline) -> Subject {
    match discipline {
        Discipline::ShortestRemaining => {
            Subject::Model { name: "oracle", label: "oracle: shortest remaining time (simulated)" }
        }
        Discipline::Sharing => {
            Subject::Model { name: "sharing", label: "ideal processor sharing (simulated)" }
        }
    }
}

fn row(subject: Subject, service: Service, load: f64, rate: f64, figures: &Figures) -> Row {
    let mut row = Row::new(subject, CASE)
        .parameter("service", service.name)
        .parameter("load", load)
        .parameter("per_s", rate)
        .with_figure("samples", figures.slowdowns.len())
        .with_figure("unanswered", figures.unanswered)
        .with_figure("cpu_cores", figures.cpu_cores)
        .with_figure("client_cores", figures.client_cores)
        .with_figure("stolen", figures.stolen);
    for (key, q) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
        if let Some(slowdown) = quantile(&figures.slowdowns, q) {
            row = row.with_figure(&format!("slowdown_{key}"), slowdown as f64 / 1e3);
        }
        if let Some(late) = quantile(&figures.lateness, q) {
            row = row.with_figure(&format!("client_late_{key}_us"), late as f64 / 1e3);
        }
        if let Some(time) = quantile(&figures.requests, q) {
            row = row.with_figure(&format!("{key}_us"), time as f64 / 1e3);
        }
    }
    row
}

fn cell(row: &Row) -> String {
    let figure = |key| or_dash(row.figure(key).map(three_digits));
    if row.failure.is_some() {
        return "failed".to_owned();
    }
    let late = row.figure("p99.9_us").map_or_else(String::new, |us| time(us * 1e3));
    format!("{} / {} ({late})", figure("slowdown_p99"), figure("slowdown_p99.9"))
}

/// Returns the load up to which a curve of (load, slowdown) stays within `bound`: between the last load
/// that holds and the first that does not, the logarithm of the slowdown is taken for a line.
fn load_within(curve: &[(f64, f64)], bound: f64) -> f64 {
    let mut last: Option<(f64, f64)> = None;
    for &(load, slowdown) in curve {
        if slowdown > bound {
            let Some((below, held)) = last else { return 0.0 };
            if slowdown.is_infinite() {
                return below;
            }
            let part = (bound.ln() - held.ln()) / (slowdown.ln() - held.ln());
            return below + part * (load - below);
        }
        last = Some((load, slowdown));
    }
    last.map_or(0.0, |(load, _)| load)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::planned;

    fn on_two_cores(plan: &SlowdownPlan) -> SlowdownRun<'_> {
        SlowdownRun { plan, cores: 2, pace: Pace::of_this_machine(), seed: 1 }
    }

    #[test]
    fn the_load_that_holds_lies_on_the_curve() {
        // Goal: nothing holds, all holds, and between two loads the logarithm decides; what comes down
        // again later does not count. Method: made-up curves.
        assert!(load_within(&[(0.1, 60.0), (0.2, 10.0)], 50.0).abs() < 1e-9);
        assert!((load_within(&[(0.1, 2.0), (0.2, 50.0)], 50.0) - 0.2).abs() < 1e-9);
        let between = load_within(&[(0.1, 5.0), (0.2, 500.0), (0.3, 1.0)], 50.0);
        assert!((between - 0.15).abs() < 1e-9, "{between}");
        assert!((load_within(&[(0.1, 5.0), (0.2, f64::INFINITY)], 50.0) - 0.1).abs() < 1e-9);
        assert!(load_within(&[], 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_load_is_relative_to_what_the_client_leaves() {
        // Goal: the rate solves r S = l (n - r c). Method: put it back into the equation.
        let plan = planned::<SlowdownPlan>("");
        let run = on_two_cores(&plan);
        for load in [0.1, 0.5, 0.9] {
            let rate = run.rate(SERVICES[0].time, load, 17.0) / 1e6;
            let offered = rate * SERVICES[0].time.mean_us() / (2.0 - rate * 17.0);
            assert!((offered - load).abs() < 1e-9, "{offered}");
        }
    }

    #[test]
    fn the_oracle_gets_slower_with_load() {
        // Goal: the simulated rows are a curve over the load, with the arrivals of the measured ones.
        // Method: two loads, by their 99.9th percentile, with at least as many arrivals.
        let plan = planned::<SlowdownPlan>("");
        let run = on_two_cores(&plan);
        let tail = |load| {
            let rate = run.rate(SERVICES[0].time, load, 10.0);
            let mix = run.mix(SERVICES[0].time, rate);
            let figures = run.simulate(&mix, rate, 10.0, Discipline::Sharing);
            (quantile(&figures.slowdowns, 0.999).unwrap(), figures.slowdowns.len())
        };
        let (light, heavy) = (tail(0.1), tail(0.9));
        assert!(light.0 >= 1_000 && light.0 < heavy.0, "{light:?} {heavy:?}");
        assert!(light.1 < heavy.1);
    }
}
