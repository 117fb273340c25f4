//! What the runs look like on a terminal.

use std::fmt;

use super::judge::MARK;
use super::measure::quantile;
use super::{Figures, LoadRun, LoadsOutcome, MixOutcome};
use crate::table::{Table, three_digits, time};

impl MixOutcome {
    /// Returns a table with a line for each system, and below it what is missed.
    #[must_use]
    pub fn table(&self) -> String {
        let headings = [
            "system",
            "event p50",
            "p99",
            "p99.9",
            "max",
            "new p50",
            "p99",
            "compute",
            "requests p50",
            "p99",
            "closed/s",
            "operations/s",
            "threads",
            "early",
            "cpu",
            "verdict",
        ];
        let mut table = Table::new(self.mix.to_string(), headings.map(str::to_owned));
        for run in &self.runs {
            let verdict = if run.judged.is_empty() {
                "–"
            } else if run.holds() {
                "holds"
            } else {
                "MISSED"
            };
            let cells = match &run.figures {
                Ok(figures) => cells(figures),
                Err(_) => vec!["failed".to_owned(); headings.len() - 2],
            };
            let cells = [run.label()].into_iter().chain(cells).chain([verdict.to_owned()]);
            table.row(cells);
        }
        let missed: String = self.runs.iter().map(|run| format!("{}\n", run.words())).collect();
        format!("{table}\n{missed}")
    }

    /// Returns one line: seed, and what each system missed.
    #[must_use]
    pub fn line(&self) -> String {
        let runs = self.runs.iter().skip(1).map(LoadRun::words).collect::<Vec<_>>();
        format!("{}\n    {}", self.mix, runs.join("\n    "))
    }
}

impl LoadRun {
    /// Says what is missed.
    fn words(&self) -> String {
        let missed = self.judged.iter().filter(|judged| !judged.holds());
        let missed: Vec<_> = missed.map(ToString::to_string).collect();
        let words = match &self.figures {
            Err(failure) => format!("FAILED: {failure}"),
            Ok(_) if self.judged.is_empty() => "is the reference".to_owned(),
            Ok(_) if missed.is_empty() => "holds".to_owned(),
            Ok(_) => missed.join(", "),
        };
        format!("{}: {words}", self.label())
    }
}

fn cells(figures: &Figures) -> Vec<String> {
    let at = |times: &[u64], q| quantile(times, q).map_or_else(absent, |ns| time(ns as f64));
    let rate = |rate: f64| if rate > 0.0 { three_digits(rate) } else { absent() };
    let (probes, opened, requests) = (&figures.probes, &figures.opened, &figures.requests);
    vec![
        at(probes, 0.5),
        at(probes, 0.99),
        at(probes, 0.999),
        at(probes, 1.0),
        at(opened, 0.5),
        at(opened, 0.99),
        format!("{:.2}", figures.compute_cores),
        at(requests, 0.5),
        at(requests, 0.99),
        rate(figures.closed_per_s),
        rate(figures.operations_per_s),
        figures.threads.to_string(),
        figures.threads_early.to_string(),
        format!("{:.2}", figures.cpu_cores),
    ]
}

fn absent() -> String {
    "–".to_owned()
}

/// Shares of mixes that hold, by system; shows itself as a few lines.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// For each system: its label, mixes that hold, mixes beyond five times a bound, and all.
    pub systems: Vec<(String, usize, usize, usize)>,
}

impl LoadsOutcome {
    /// Counts the mixes that hold. A mix whose reference failed counts for nobody.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut systems: Vec<(String, usize, usize, usize)> = Vec::new();
        for mix in &self.mixes {
            if mix.runs.first().is_none_or(|reference| reference.figures.is_err()) {
                continue;
            }
            for run in mix.runs.iter().skip(1) {
                let label = run.label();
                let index = systems.iter().position(|system| system.0 == label);
                let index = index.unwrap_or_else(|| {
                    systems.push((label, 0, 0, 0));
                    systems.len() - 1
                });
                let (_, holds, marked, all) = &mut systems[index];
                *holds += usize::from(run.holds());
                *marked += usize::from(run.worst() > MARK);
                *all += 1;
            }
        }
        Summary { systems }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = ["system", "mixes", "hold", "share", "beyond 5x"].map(str::to_owned);
        let mut table = Table::new("Mixes within all bounds", headings);
        for (label, holds, marked, all) in &self.systems {
            let share = 100.0 * *holds as f64 / (*all).max(1) as f64;
            let share = format!("{} %", three_digits(share));
            let cells = [all.to_string(), holds.to_string(), share, marked.to_string()];
            table.row([label.clone()].into_iter().chain(cells));
        }
        write!(f, "{table}")
    }
}
