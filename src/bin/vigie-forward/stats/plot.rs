//! Rates over time, as a line of characters for each flow and target.

use std::{
    collections::VecDeque,
    env,
    fmt::Write,
    io::{self, IsTerminal},
};

use super::report::InstanceReport;

/// The samples that are shown: with names of up to 20 characters, they fit on 80 columns.
const SAMPLES: usize = 30;

/// The characters from none to the highest rate of a line.
type Levels = [char; 8];
const BLOCKS: Levels = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: Levels = ['_', '.', '-', '=', '+', '*', '%', '#'];

/// The last rates of all flows and targets.
#[derive(Debug)]
pub(super) struct Plots {
    levels: Levels,
    /// In the order of the report: a name, and its units or connections per second, the latest last.
    lines: Vec<(String, VecDeque<u64>)>,
}

impl Plots {
    /// Returns plots for standard output, if it is a terminal.
    pub(super) fn for_terminal() -> Option<Self> {
        let locale = locale(|name| env::var(name).ok());
        io::stdout().is_terminal().then(|| Self::new(&locale))
    }

    fn new(locale: &str) -> Self {
        let locale = locale.to_ascii_lowercase();
        let is_utf8 = locale.contains("utf-8") || locale.contains("utf8");
        Self { levels: if is_utf8 { BLOCKS } else { ASCII }, lines: Vec::new() }
    }

    /// Adds the rates between two reports. What is no longer reported is forgotten.
    pub(super) fn add(&mut self, before: &InstanceReport, report: &InstanceReport) {
        let millis = report.uptime_ms.saturating_sub(before.uptime_ms).max(1);
        let (old, new) = (counts(before), counts(report));
        let mut lines = Vec::<(String, VecDeque<u64>)>::new();
        for (name, count) in new {
            // After a reload, a flow that drains may have the name of one that runs, which comes first.
            if lines.iter().any(|(other, _)| *other == name) {
                continue;
            }
            let known = self.lines.iter_mut().find(|(other, _)| *other == name);
            let mut rates = known.map(|(_, rates)| std::mem::take(rates)).unwrap_or_default();
            let before =
                old.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count);
            let per_s = u128::from(count.saturating_sub(before)) * 1000 / u128::from(millis);
            rates.push_back(u64::try_from(per_s).unwrap_or(u64::MAX));
            if rates.len() > SAMPLES {
                rates.pop_front();
            }
            lines.push((name, rates));
        }
        self.lines = lines;
    }

    /// Returns a line for each flow and target, each to the scale of its own highest rate.
    pub(super) fn text(&self) -> String {
        let width = self.lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, rates) in &self.lines {
            let most = rates.iter().copied().max().unwrap_or(0);
            let line: String = rates.iter().map(|rate| self.level(*rate, most)).collect();
            let last = rates.back().copied().unwrap_or(0);
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<width$}  {line}  {last}/s, at most {most}/s");
        }
        text
    }

    /// The lowest level is for nothing alone.
    fn level(&self, rate: u64, most: u64) -> char {
        let steps = self.levels.len() - 1;
        let level = (u128::from(rate) * steps as u128).div_ceil(u128::from(most.max(1)));
        self.levels[usize::try_from(level).unwrap_or(steps).min(steps)]
    }
}

/// Returns the locale of characters, as `setlocale(3)` finds it.
fn locale(of: impl Fn(&str) -> Option<String>) -> String {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(of);
    set.into_iter().find(|value| !value.is_empty()).unwrap_or_default()
}

/// The units of each flow, and the connections of its targets.
fn counts(report: &InstanceReport) -> Vec<(String, u64)> {
    let mut counts = Vec::new();
    for flow in &report.flows {
        counts.push((flow.name.clone(), flow.units));
        let targets = flow.targets.iter();
        counts
            .extend(targets.map(|one| (format!("{} {}", flow.name, one.target), one.connections)));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{FlowReport, ReloadReport, TargetReport};

    fn report(seconds: u64, units: u64, connections: u64) -> InstanceReport {
        let target = "tcp://[::1]:80".to_owned();
        let targets = vec![TargetReport { target, connections, ..TargetReport::default() }];
        let web = FlowReport { name: "web".to_owned(), units, targets, ..FlowReport::default() };
        // One that drains, of the same name.
        let old = FlowReport { name: "web".to_owned(), units: 9999, ..FlowReport::default() };
        InstanceReport {
            vigie_forward: 1,
            pid: 7,
            uptime_ms: seconds * 1000,
            state: "running".to_owned(),
            rights: Vec::new(),
            reload: ReloadReport::default(),
            down: Vec::new(),
            log_lines_written: None,
            log_lines_lost: None,
            flows: vec![web, old],
            routes: None,
            journal: Vec::new(),
        }
    }

    /// Goal: each flow and target has a line to its own scale, in which nothing differs from a little; the oldest samples leave; a counter that begins
    /// anew is no huge rate. Method: reports by hand, in both kinds of locale.
    #[test]
    fn rates_are_drawn() {
        let totals = [(0, 0), (1, 0), (71, 8), (71, 16), (0, 16)];
        for (locale, flow, target) in [
            ("de_DE.UTF-8", "▂█▁▁", "▁██▁"),
            ("C.utf8", "▂█▁▁", "▁██▁"),
            ("C", ".#__", "_##_"),
            ("", ".#__", "_##_"),
        ] {
            let mut plots = Plots::new(locale);
            assert_eq!(plots.text(), "");
            for (second, pair) in (0..).zip(totals.windows(2)) {
                let [before, after] = [pair[0], pair[1]];
                plots.add(
                    &report(2 * second, before.0, before.1),
                    &report(2 * second + 2, after.0, after.1),
                );
            }
            // 1 in 2 s is less than one a second: nothing.
            let flow = flow.replacen(plots.levels[1], &plots.levels[0].to_string(), 1);
            let expected = format!(
                "web                 {flow}  0/s, at most 35/s\nweb tcp://[::1]:80  {target}  0/s, at most 4/s\n"
            );
            assert_eq!(plots.text(), expected, "{locale}");
        }
        let mut plots = Plots::new("C");
        for second in 0..50 {
            plots.add(&report(second, second, 0), &report(second + 1, second + 1, 0));
        }
        assert!(
            plots.text().starts_with(&format!("web                 {}  1/s", "#".repeat(SAMPLES)))
        );
    }

    /// Goal: the locale is that of setlocale(3). Method: variables that hide each other, or are empty.
    #[test]
    fn the_locale_is_found() {
        for (set, expected) in [
            (&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")][..], "C"),
            (&[("LC_ALL", ""), ("LC_CTYPE", "C.UTF-8"), ("LANG", "C")], "C.UTF-8"),
            (&[("LANG", "C")], "C"),
            (&[], ""),
        ] {
            let of = |name: &str| {
                set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(locale(of), expected);
        }
    }
}
