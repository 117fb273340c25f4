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

use std::time::Duration;

use serde_json::json;

use self::oracle::{Discipline, Job, Processors, responses};
use crate::compute::Pace;
use crate::error::BenchError;
use crate::loads::{Figures, Run, quantile};
use crate::mix::{Behaviour, Mix, ServiceTime, arrivals};
use crate::report::progress::Progress;
use crate::report::table::{Table, three_digits, time};
use crate::report::{Outcome, Row, Subject};
use crate::schedulers::System;

/// Name of the case in rows.
pub const CASE: &str = "slowdown";

/// Name of the rows that say up to which load a system holds.
pub const HOLDS: &str = "slowdown-holds";

/// Key of the load up to which the slowdown stays within [`SLOWDOWN_MAX`].
pub const LOAD: &str = "load_max";

/// The slowdown of 99.9 % of requests that a load must stay within.
pub const SLOWDOWN_MAX: f64 = 50.0;

/// Requests per second and what they compute when the client's cost is measured.
const CALIBRATION: (u32, ServiceTime) = (10_000, ServiceTime::Fixed { us: 10.0 });

/// A distribution of service times with a name.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Service {
    /// Its name on the command line.
    pub name: &'static str,
    /// The distribution.
    pub time: ServiceTime,
}

/// All distributions.
pub const SERVICES: [Service; 4] = [
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
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowdownPlan {
    /// The systems.
    pub systems: Vec<System>,
    /// The distributions of service times.
    pub services: Vec<Service>,
    /// The loads, in rising order.
    pub loads: Vec<f64>,
    /// Connections, of which each request takes one that is idle.
    pub connections: u32,
    /// How long each run is measured.
    pub span: Duration,
    /// Worker threads, where a system has a choice.
    pub workers: usize,
    /// Processors of this machine.
    pub cores: usize,
    /// Seed of arrivals and sizes.
    pub seed: u64,
}

impl SlowdownPlan {
    /// Plans the first three distributions at loads from 0.1 to 0.9, for 2 s each.
    #[must_use]
    pub fn new(systems: Vec<System>, cores: usize) -> Self {
        let tenths = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        Self {
            systems,
            services: vec![SERVICES[0], SERVICES[1], SERVICES[3]],
            loads: tenths.map(|tenths| tenths / 10.0).to_vec(),
            connections: 500,
            span: Duration::from_secs(2),
            workers: 2,
            cores,
            seed: 1,
        }
    }

    /// Returns how many runs [`run`](Self::run) makes, for its progress bar.
    #[must_use]
    pub fn cases(&self) -> usize {
        1 + self.systems.len() * self.services.len() * self.loads.len()
    }

    /// Measures all loads on all systems in turns, and simulates the oracles.
    ///
    /// # Errors
    /// Those of the processes. A system that does not serve a load is not an error: its row says so.
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        self.systems.iter().try_for_each(|system| system.prepare())?;
        let pace = Pace::measure();
        let (mut outcome, client_us) = self.calibrate(pace, progress)?;
        for service in &self.services {
            for &load in &self.loads {
                let rate = self.rate(service.time, load, client_us);
                let mix = self.mix(service.time, rate);
                for discipline in [Discipline::ShortestRemaining, Discipline::Sharing] {
                    let figures = self.simulate(&mix, rate, client_us, discipline);
                    outcome.rows.push(row(subject(discipline), *service, load, rate, &figures));
                }
                for &system in &self.systems {
                    progress.case(format!("{system}, {}, load {load}", service.name));
                    let measured = self.run_on(system, pace).measure_undisturbed(&mix);
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
            self.services.iter().flat_map(|service| self.held(*service, &outcome.rows)).collect();
        outcome.rows.extend(held);
        Ok(outcome)
    }

    /// Measures what a request costs the client, in microseconds.
    fn calibrate(&self, pace: Pace, progress: &mut Progress) -> Result<(Outcome, f64), BenchError> {
        progress.case("cost of the client");
        let mix = self.mix(CALIBRATION.1, f64::from(CALIBRATION.0));
        let (figures, priority) = self.run_on(System::Threads, pace).measure_undisturbed(&mix)?;
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
        let behaviour = Behaviour::Service { connections: self.connections, per_s, service };
        Mix { name: CASE.to_owned(), seed: self.seed, behaviours: vec![behaviour] }
    }

    fn run_on(&self, system: System, pace: Pace) -> Run {
        Run {
            system,
            workers: self.workers,
            pace,
            warm_up: Duration::from_millis(300),
            span: self.span,
            opened_per_s: 0,
            counts_from_due: true,
        }
    }

    /// Has the same requests served in virtual time, by what the client leaves of the processors.
    fn simulate(&self, mix: &Mix, rate: f64, client_us: f64, discipline: Discipline) -> Figures {
        let left = self.cores as f64 - rate * client_us / 1e6;
        let on = Processors { count: self.cores, speed: left / self.cores as f64 };
        let jobs: Vec<_> = arrivals(mix, self.span)
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

    /// Returns a table for each distribution, with what each system holds.
    #[must_use]
    pub fn tables(&self, rows: &[Row]) -> String {
        let mut shown = String::new();
        for service in &self.services {
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
    let figure = |key| row.figure(key).map_or_else(|| "–".to_owned(), three_digits);
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
        let plan = SlowdownPlan::new(Vec::new(), 2);
        for load in [0.1, 0.5, 0.9] {
            let rate = plan.rate(SERVICES[0].time, load, 17.0) / 1e6;
            let offered = rate * SERVICES[0].time.mean_us() / (2.0 - rate * 17.0);
            assert!((offered - load).abs() < 1e-9, "{offered}");
        }
    }

    #[test]
    fn the_oracle_gets_slower_with_load() {
        // Goal: the simulated rows are a curve over the load, with the arrivals of the measured ones.
        // Method: two loads, by their 99.9th percentile, with at least as many arrivals.
        let plan = SlowdownPlan::new(Vec::new(), 2);
        let tail = |load| {
            let rate = plan.rate(SERVICES[0].time, load, 10.0);
            let mix = plan.mix(SERVICES[0].time, rate);
            let figures = plan.simulate(&mix, rate, 10.0, Discipline::Sharing);
            (quantile(&figures.slowdowns, 0.999).unwrap(), figures.slowdowns.len())
        };
        let (light, heavy) = (tail(0.1), tail(0.9));
        assert!(light.0 >= 1_000 && light.0 < heavy.0, "{light:?} {heavy:?}");
        assert!(light.1 < heavy.1);
    }
}
