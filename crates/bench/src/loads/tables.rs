//! Tables of the runs for a terminal.

use std::fmt;

use super::judge::MARK;
use super::measure::quantile;
use super::{Figures, LoadRun, LoadsOutcome, MixOutcome};
use crate::report::{Table, three_digits, time};

impl MixOutcome {
    /// Returns a table with a line for each system, and below it what is missed.
    pub(crate) fn table(&self) -> String {
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
            "stolen",
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
    pub(crate) fn line(&self) -> String {
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
        format!("{:.1} %", 100.0 * figures.stolen),
    ]
}

fn absent() -> String {
    "–".to_owned()
}

/// How many mixes one system holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SystemSummary {
    /// The system's name.
    pub(crate) label: String,
    /// Mixes that were measured.
    pub(crate) mixes: usize,
    /// Mixes of which all bounds hold.
    pub(crate) hold: usize,
    /// Mixes that are beyond five times a bound, or failed.
    pub(crate) marked: usize,
    /// Mixes in which the machine's host disturbed neither the system nor the reference.
    pub(crate) undisturbed: usize,
    /// Mixes among these of which all bounds hold.
    pub(crate) undisturbed_hold: usize,
}

/// How many mixes hold, by system; shows itself as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// The systems, in the order of the table.
    pub(crate) systems: Vec<SystemSummary>,
}

impl LoadsOutcome {
    /// Counts the mixes that hold. A mix whose reference failed counts for no system.
    pub(crate) fn summary(&self) -> Summary {
        let mut systems: Vec<SystemSummary> = Vec::new();
        for mix in &self.mixes {
            let reference = mix.runs.first().and_then(|run| run.figures.as_ref().ok());
            let Some(reference) = reference else { continue };
            for run in mix.runs.iter().skip(1) {
                let label = run.label();
                let index = systems.iter().position(|system| system.label == label);
                let index = index.unwrap_or_else(|| {
                    systems.push(SystemSummary { label, ..SystemSummary::default() });
                    systems.len() - 1
                });
                let system = &mut systems[index];
                let is_disturbed = |figures: &Figures| figures.is_disturbed();
                let disturbs =
                    is_disturbed(reference) || run.figures.as_ref().is_ok_and(is_disturbed);
                system.mixes += 1;
                system.hold += usize::from(run.holds());
                system.marked += usize::from(run.worst() > MARK);
                system.undisturbed += usize::from(!disturbs);
                system.undisturbed_hold += usize::from(!disturbs && run.holds());
            }
        }
        Summary { systems }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings =
            ["system", "mixes", "hold", "share", "beyond 5x", "undisturbed", "hold", "share"];
        let mut table = Table::new("Mixes within all bounds", headings.map(str::to_owned));
        let share = |part: usize, all: usize| {
            if all == 0 { absent() } else { format!("{:.0} %", 100.0 * part as f64 / all as f64) }
        };
        for system in &self.systems {
            let SystemSummary { label, mixes, hold, marked, undisturbed, undisturbed_hold } =
                system;
            table.row([
                label.clone(),
                mixes.to_string(),
                hold.to_string(),
                share(*hold, *mixes),
                marked.to_string(),
                undisturbed.to_string(),
                undisturbed_hold.to_string(),
                share(*undisturbed_hold, *undisturbed),
            ]);
        }
        write!(f, "{table}")
    }
}
