//! How a goal finds its figure in the rows of its experiment.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::cluster;
use crate::forward;
use crate::loads;
use crate::messages;
use crate::report::{Figure, Row, largest, smallest};

/// What a goal takes from the rows: a figure of one row or of several, or what a measurement has worked out itself.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) enum Measurement {
    Figure(RowFigure),
    /// The largest ratio of a row's figure to that of the next row.
    Order {
        key: String,
        rows: Vec<RowSelector>,
    },
    MeanErrorOfTheCluster,
    GoldenDifference,
    RecoveryCost,
    TableDistance,
    SimulationError,
    GainDistance {
        window: u64,
    },
    PlannersChoice,
    PredictionError,
    AddedBySocat,
    ShareOfRandom,
    ShareOfNamed,
    WorstOfRandom,
    FourthOfMessages,
}

impl Measurement {
    /// Finds the figure, if all that it needs was measured.
    pub(super) fn find(&self, rows: &[Row]) -> Option<Figure> {
        match self {
            Self::Figure(figure) => figure.find(rows),
            Self::Order { key, rows: order } => {
                let figure = |selector: &RowSelector| {
                    let row = selector.find(rows)?;
                    Some(Figure::new(row.figure(key)?, row.samples()))
                };
                let figures = order.iter().map(figure).collect::<Option<Vec<_>>>()?;
                largest(figures.windows(2).map(|pair| pair[0].to(pair[1])))
            }
            Self::MeanErrorOfTheCluster => cluster::mean_error(rows, "calibrated"),
            Self::GoldenDifference => cluster::golden_difference(rows),
            Self::RecoveryCost => cluster::recovery_cost(rows),
            Self::TableDistance => forward::table_distance(rows),
            Self::SimulationError => forward::simulation_error(rows),
            Self::GainDistance { window } => forward::gain_distance(rows, *window),
            Self::PlannersChoice => forward::via::choice(rows),
            Self::PredictionError => forward::via::prediction_error(rows),
            Self::AddedBySocat => forward::relay::added_by_socat(rows),
            Self::ShareOfRandom => loads::share(rows, true),
            Self::ShareOfNamed => loads::share(rows, false),
            Self::WorstOfRandom => loads::worst_of_random(rows),
            Self::FourthOfMessages => messages::fourth(rows),
        }
    }

    /// Makes sure that all rows are of a case.
    ///
    /// # Errors
    /// What is wrong.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), String> {
        let selectors = match self {
            Self::Figure(figure) => vec![&figure.of],
            Self::Order { rows, .. } => rows.iter().collect(),
            _ => Vec::new(),
        };
        for selector in selectors {
            let case = selector.0.get("case").and_then(Value::as_str).ok_or("no case")?;
            if !CASES.contains(&case) {
                return Err(format!("no rows are of the case {case:?}"));
            }
        }
        Ok(())
    }
}

/// A figure of a row, or its ratio to that of another one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RowFigure {
    /// The row, or several rows.
    of: RowSelector,
    /// What the row that it is compared with has different; or several rows.
    by: Option<RowSelector>,
    /// The figure.
    key: String,
    /// Where samples are too few for this percentile, the next lower one that they carry: the figure is that or more. A system so
    /// slow that few samples fit in has not escaped its goal.
    #[serde(default)]
    or_more: bool,
    /// The figure of the same row by which that one is divided.
    per: Option<String>,
    /// The figure of the same row from which that one's distance is taken.
    minus: Option<String>,
    /// The figure that counts the samples.
    #[serde(default = "samples")]
    samples: String,
    /// What is taken for the base if that is less.
    base_min: Option<f64>,
    #[serde(default)]
    shown_as: Shown,
    /// Which of several figures counts.
    #[serde(default)]
    pick: Pick,
    /// The samples are the fewest of any of them, not those of the one that counts.
    #[serde(default)]
    counts_all: bool,
    /// Rows that are absent are left out. Otherwise they leave the goal open.
    #[serde(default)]
    skips_absent: bool,
}

fn samples() -> String {
    "samples".to_owned()
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Shown {
    #[default]
    Itself,
    /// 1 / x.
    Inverse,
    /// |x − 1|.
    Error,
    /// 1 − x.
    Saved,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Pick {
    #[default]
    Largest,
    Smallest,
    /// The largest by the smallest.
    Spread,
}

impl RowFigure {
    fn find(&self, rows: &[Row]) -> Option<Figure> {
        let mut figures = Vec::new();
        for own in self.of.each() {
            let bases = match &self.by {
                Some(by) => own.with(by).each().into_iter().map(Some).collect(),
                None => vec![None],
            };
            for base in bases {
                match self.compare(rows, &own, base.as_ref()) {
                    Some(figure) => figures.push(self.shown(figure)),
                    None if self.skips_absent => {}
                    None => return None,
                }
            }
        }
        let fewest = figures.iter().map(|figure| figure.samples).min()?;
        let is_least = figures.iter().any(|figure| figure.is_least);
        let picked = match self.pick {
            Pick::Largest => largest(figures)?,
            Pick::Smallest => smallest(figures)?,
            Pick::Spread => largest(figures.iter().copied())?.to(smallest(figures)?),
        };
        let samples = if self.counts_all { fewest } else { picked.samples };
        Some(Figure { samples, is_least, ..picked })
    }

    fn compare(
        &self,
        rows: &[Row],
        own: &RowSelector,
        base: Option<&RowSelector>,
    ) -> Option<Figure> {
        let own = self.figure(own.find(rows)?)?;
        let Some(base) = base else { return Some(own) };
        let base = self.figure(base.find(rows)?)?;
        let value = base.value.max(self.base_min.unwrap_or(f64::NEG_INFINITY));
        Some(own.to(Figure { value, ..base })).filter(|ratio| ratio.value.is_finite())
    }

    /// The figure of one row.
    fn figure(&self, row: &Row) -> Option<Figure> {
        let mut figure = if self.or_more {
            percentile(row, &self.key)?
        } else {
            let counted = row.figures.get(&self.samples).and_then(Value::as_u64);
            Figure::new(row.figure(&self.key)?, counted.unwrap_or_else(|| row.samples()))
        };
        if let Some(key) = &self.per {
            figure.value /= row.figure(key)?;
        }
        if let Some(key) = &self.minus {
            figure.value = (figure.value - row.figure(key)?).abs();
        }
        Some(figure)
    }

    fn shown(&self, figure: Figure) -> Figure {
        let value = match self.shown_as {
            Shown::Itself => figure.value,
            Shown::Inverse => 1.0 / figure.value,
            Shown::Error => (figure.value - 1.0).abs(),
            Shown::Saved => 1.0 - figure.value,
        };
        Figure { value, ..figure }
    }
}

/// A percentile of a row, or the next lower one. What stands before it names the samples, if they are not the row's own.
fn percentile(row: &Row, key: &str) -> Option<Figure> {
    const UPWARDS: [&str; 4] = ["p50_us", "p90_us", "p99_us", "p99.9_us"];
    let asked = UPWARDS.iter().position(|known| key.ends_with(known))?;
    let prefix = key.strip_suffix(UPWARDS[asked])?;
    let samples = row.figures.get(&format!("{prefix}samples")).and_then(Value::as_u64)?;
    let mut found = UPWARDS[..=asked].iter().enumerate().rev();
    let (position, value) =
        found.find_map(|(at, key)| Some((at, row.figure(&format!("{prefix}{key}"))?)))?;
    Some(Figure { value, samples, is_least: position < asked })
}

/// Which row: its `system`, its `case`, and the parameters that tell it from others. A list stands for a row each.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct RowSelector(BTreeMap<String, Value>);

impl RowSelector {
    /// Returns the selectors that differ from this one.
    fn with(&self, different: &Self) -> Self {
        let mut all = self.0.clone();
        all.extend(different.0.clone());
        Self(all)
    }

    /// Returns a selector for each row.
    fn each(&self) -> Vec<Self> {
        let list = self.0.iter().find_map(|(key, value)| Some((key, value.as_array()?)));
        let Some((key, values)) = list else { return vec![self.clone()] };
        let one = |value: &Value| Self(BTreeMap::from([(key.clone(), value.clone())]));
        values.iter().flat_map(|value| self.with(&one(value)).each()).collect()
    }

    fn find<'a>(&self, rows: &'a [Row]) -> Option<&'a Row> {
        rows.iter().find(|row| self.0.iter().all(|(key, value)| has(row, key, value)))
    }
}

fn has(row: &Row, key: &str, value: &Value) -> bool {
    let found = match key {
        "system" => return value == row.system.name(),
        "case" => return value == row.case,
        key => row.parameters.get(key),
    };
    let numbers = found.and_then(Value::as_f64).zip(value.as_f64());
    // Some parameters are calculated.
    numbers.map_or_else(|| found == Some(value), |(found, asked)| (found - asked).abs() < 1e-6)
}

/// The cases of all rows.
#[cfg(test)]
const CASES: [&str; 59] = [
    "alltoall",
    "any",
    "backlog",
    "barrier",
    "barrier-sim",
    "barrier-sim-four-ary",
    "busyreceiver",
    "busysender",
    "container",
    "crowd",
    "drawn",
    "echo",
    "fairness",
    "files",
    "foreign-calls",
    "frames",
    "http busy",
    "http hello",
    "http overload",
    "idle",
    "late",
    "latency",
    "lateround",
    "loads",
    "loaned",
    "manytoone",
    "nic-rate",
    "operations",
    "pending",
    "periodic",
    "quiet",
    "rate",
    "reaction",
    "relay-datagrams",
    "relay-echo",
    "relay-framed-latency",
    "relay-framed-stream",
    "relay-stream",
    "relay-throughput",
    "relay-tls",
    "relay-tls-echo",
    "repository",
    "requests",
    "ring",
    "segments",
    "service",
    "simulation",
    "simulators",
    "slowdown-holds",
    "start",
    "switches",
    "synchronous",
    "threshold",
    "timers",
    "unexpected",
    "waiting",
    "waits",
    "window",
    "worlds",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedulers::System;

    fn figure(text: &str) -> RowFigure {
        toml::from_str(text).expect("a figure")
    }

    fn row(system: System, compute: u32, p50: f64, samples: u64) -> Row {
        let row = Row::new(system, "reaction").parameter("compute", compute);
        row.with_figure("p50_us", p50).with_figure("samples", samples)
    }

    const OWN: &str = "{ system = \"vigie\", case = \"reaction\", compute = [2, 5] }";

    #[test]
    fn several_rows_need_all_of_them() {
        // Goal: largest, smallest and their ratio, with the samples of the poorest row, and nothing if a row is missing,
        // unless that is allowed. Method: rows with known figures.
        let of = |rest: &str| figure(&format!("key = \"p50_us\"\nof = {OWN}\n{rest}"));
        let mut rows = vec![row(System::Vigie, 2, 4.0, 90), row(System::Tokio, 5, 99.0, 5)];
        assert_eq!(of("").find(&rows), None);
        assert_eq!(of("skips-absent = true").find(&rows), Some(Figure::new(4.0, 90)));
        rows.push(row(System::Vigie, 5, 5.0, 60));
        assert_eq!(of("").find(&rows), Some(Figure::new(5.0, 60)));
        assert_eq!(of("pick = \"smallest\"").find(&rows), Some(Figure::new(4.0, 90)));
        let fewest = of("pick = \"smallest\"\ncounts-all = true");
        assert_eq!(fewest.find(&rows), Some(Figure::new(4.0, 60)));
        assert_eq!(of("pick = \"spread\"").find(&rows), Some(Figure::new(1.25, 60)));
        rows.push(row(System::Vigie, 9, 4.5, 12));
        let own = OWN.replace("5]", "5, 9]");
        let fewest = format!("key = \"p50_us\"\nof = {own}\npick = \"spread\"\ncounts-all = true");
        assert_eq!(figure(&fewest).find(&rows), Some(Figure::new(1.25, 12)), "one between them");
    }

    #[test]
    fn ratios_compare_the_right_rows() {
        // Goal: the own figure above, the peer's below, with the same parameters but those that differ; the base has a
        // floor. Method: rows with known figures.
        let rows = [
            row(System::Vigie, 2, 30.0, 9),
            row(System::Tokio, 2, 120.0, 7),
            row(System::Vigie, 5, 10.0, 9),
            row(System::Tokio, 5, 0.0, 8),
        ];
        let of = |rest: &str| figure(&format!("key = \"p50_us\"\n{rest}")).find(&rows);
        let two = "of = { system = \"vigie\", case = \"reaction\", compute = 2 }\n";
        let tokio = "by = { system = \"tokio\" }";
        assert_eq!(of(&format!("{two}{tokio}")), Some(Figure::new(0.25, 7)));
        assert_eq!(of(&format!("{two}by = {{ compute = 5 }}")), Some(Figure::new(3.0, 9)));
        assert_eq!(of(&format!("{two}by = {{ system = \"smol\" }}")), None);
        assert_eq!(of(&format!("of = {OWN}\n{tokio}")), None, "nothing is infinite");
        let floor = of(&format!("of = {OWN}\n{tokio}\nbase-min = 0.1"));
        assert_eq!(floor, Some(Figure::new(100.0, 8)));
    }

    #[test]
    fn a_figure_is_shown_in_several_ways() {
        // Goal: each way, and both relations to another figure of the row. Method: one row.
        let row = row(System::Vigie, 2, 4.0, 9).with_figure("paper_us", 5.0).with_figure("n", 100);
        let of = |rest: &str| {
            let text = format!(
                "key = \"p50_us\"\nof = {{ case = \"reaction\" }}\nsamples = \"n\"\n{rest}"
            );
            figure(&text).find(std::slice::from_ref(&row)).expect("a figure")
        };
        assert_eq!(of("shown-as = \"inverse\""), Figure::new(0.25, 100));
        assert_eq!(of("per = \"paper_us\""), Figure::new(0.8, 100));
        assert_eq!(of("minus = \"paper_us\""), Figure::new(1.0, 100));
        let ratio = |shown: &str| of(&format!("per = \"paper_us\"\nshown-as = \"{shown}\"")).value;
        assert!((ratio("error") - 0.2).abs() < 1e-9 && (ratio("saved") - 0.2).abs() < 1e-9);
    }

    #[test]
    fn a_missing_percentile_is_a_lower_bound() {
        // Goal: the next lower percentile stands for one that few samples cannot carry, also of other samples than the
        // row's own. Method: a row with known figures.
        let row = row(System::Vigie, 2, 4.0, 20).with_figure("new_p90_us", 7.0);
        let row = row.with_figure("new_samples", 200);
        let least = |key, value, samples| {
            assert_eq!(
                percentile(&row, key),
                Some(Figure { is_least: true, ..Figure::new(value, samples) })
            );
        };
        least("p99_us", 4.0, 20);
        least("new_p99.9_us", 7.0, 200);
        assert_eq!(percentile(&row, "p50_us"), Some(Figure::new(4.0, 20)));
        assert_eq!(percentile(&row, "new_p50_us"), None);
    }
}
