//! A goal, its bound, and how a measurement is held against it.

use std::fmt;

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json};

use super::measurement::Measurement;
use crate::report::{Row, name_of, three_digits};

/// A figure that vigie must reach.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Goal {
    /// What the goal is about.
    pub(super) area: Area,
    /// System and load.
    pub(super) case: String,
    /// The command that measures this case alone.
    pub(crate) command: String,
    /// The figure that is compared with the bound.
    pub(super) figure: String,
    pub(super) bound: Bound,
    /// Samples below which the figure says nothing.
    #[serde(default)]
    samples_min: u64,
    /// Finds the figure in the rows of the experiment.
    pub(super) measured: Measurement,
    /// What is known of a goal that is missed.
    pub(super) known: Option<Known>,
}

/// By how much a goal is missed, on machines of two cores at least, and why.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Known {
    /// The measured quantity.
    pub(crate) measured: String,
    /// The name of the reason.
    pub(super) reason: String,
}

/// Why goals are missed, as far as that is known.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reason {
    pub(crate) text: String,
    /// The page of the repository, and its section, that says what was tried.
    pub(crate) page: String,
}

impl Goal {
    /// Compares what was measured with the bound.
    pub(super) fn evaluate(&self, rows: &[Row]) -> Verdict {
        match self.measured.find(rows) {
            None => Verdict::Unmeasured(unmeasured_because(rows)),
            Some(figure) if figure.is_least && !self.bound.holds(figure.value) => {
                Verdict::Missed(figure.value)
            }
            Some(figure) if figure.is_least => Verdict::Unmeasured(format!(
                "{} samples are too few for this percentile",
                figure.samples
            )),
            Some(figure) if figure.samples < self.samples_min => Verdict::Unmeasured(format!(
                "{} samples, {} are needed",
                figure.samples, self.samples_min
            )),
            Some(figure) if self.bound.holds(figure.value) => Verdict::Met(figure.value),
            Some(figure) => Verdict::Missed(figure.value),
        }
    }
}

fn unmeasured_because(rows: &[Row]) -> String {
    let failure = rows.iter().find_map(|row| row.failure.clone());
    failure.unwrap_or_else(|| {
        "no such figure; system calls need perf or strace (`apt install strace`)".into()
    })
}

/// What goals are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Area {
    /// Reaction beside tasks that compute and yield as in the paper, or more often.
    Reaction,
    /// Reaction beside tasks that compute and seldom yield, and what those tasks lose.
    Hogs,
    /// Reaction of a service with many clients.
    Service,
    /// Processor time of tasks beside other processes, and reaction within a quota.
    Fairness,
    /// Time and processor time of an echo on an idle machine.
    Echo,
    /// Run time of a task beside waiting tasks.
    Pending,
    /// The activity of an idle server.
    Idle,
    /// Allocations and system calls of a task switch.
    Costs,
    /// Messages between processes of one host.
    Messages,
    /// Messages between hosts, simulated by network namespaces.
    Remote,
    /// Barriers of the paper's cluster, in simulation.
    BarrierSim,
    /// Barriers of members on one host.
    BarrierLocal,
    /// Barriers between hosts, simulated by network namespaces.
    BarrierNet,
    /// The model of forwarding, beside its simulation and its paper.
    ForwardModel,
    /// Messages through a forwarding process, beside the model.
    ForwardVia,
    /// Frames that are forwarded in user space between interfaces.
    ForwardLive,
    /// Frames that are forwarded by programs at the driver.
    ForwardNic,
    /// Relays of streams, beside others.
    ForwardRelay,
    /// Random mixes of tasks, and the named loads of docs/measurements/promise.md.
    Loads,
    /// A hyper service, beside the same service on tokio.
    Http,
    /// Cached files.
    Files,
    /// Slowdown of requests, by offered load.
    Slowdown,
    /// Processor time and lateness of timers.
    Timers,
    /// Reaction beside tasks that wait for peers.
    Waits,
    /// The scheduler in virtual time, under loads drawn by seed.
    Simulation,
    /// What simulated worlds cost.
    Worlds,
    /// The size of the repository, and the time of a first build and of all tests.
    Repository,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&name_of(*self))
    }
}

/// The bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Bound {
    /// The figure must be this or less.
    AtMost(f64),
    /// The figure must be less than this.
    Below(f64),
    /// The figure must be this or more.
    AtLeast(f64),
}

impl Bound {
    /// Tells whether `figure` is within this bound; what is not a number never is.
    fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtMost(bound) => figure <= bound,
            Self::Below(bound) => figure < bound,
            Self::AtLeast(bound) => figure >= bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "≤ {bound}"),
            Self::Below(bound) => write!(f, "< {bound}"),
            Self::AtLeast(bound) => write!(f, "≥ {bound}"),
        }
    }
}

impl TryFrom<String> for Bound {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let error = || format!("{text:?} is no bound, such as \"≤ 1.2\", \"< 1\" or \"≥ 0.9\"");
        let (direction, number) = text.split_once(' ').ok_or_else(error)?;
        let number = number.parse().map_err(|_| error())?;
        match direction {
            "≤" => Ok(Self::AtMost(number)),
            "<" => Ok(Self::Below(number)),
            "≥" => Ok(Self::AtLeast(number)),
            _ => Err(error()),
        }
    }
}

/// How a goal and its figure stand to each other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The figure is within the bound.
    Met(f64),
    /// The figure is beyond the bound.
    Missed(f64),
    /// There is no figure, or too few samples carry it. This is not a success.
    Unmeasured(String),
}

impl Verdict {
    /// Tells whether the goal is met.
    pub(crate) const fn is_met(&self) -> bool {
        matches!(self, Self::Met(_))
    }

    const fn value(&self) -> Option<f64> {
        match self {
            Self::Met(value) | Self::Missed(value) => Some(*value),
            Self::Unmeasured(_) => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Met(_) => f.write_str("met"),
            Self::Missed(_) => f.write_str("MISSED"),
            Self::Unmeasured(reason) => write!(f, "NOT MEASURED: {reason}"),
        }
    }
}

/// A goal and what became of it.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) goal: &'static Goal,
    pub(super) reason: Option<&'static Reason>,
    pub(crate) verdict: Verdict,
}

impl Checked {
    /// Returns what is known of a goal that is not met.
    pub(crate) fn shortfall(&self) -> Option<(&'static Known, &'static Reason)> {
        self.goal.known.as_ref().zip(self.reason).filter(|_| !self.verdict.is_met())
    }

    /// Returns why there is no figure, if there is none.
    pub(crate) fn unmeasured_because(&self) -> Option<&str> {
        match &self.verdict {
            Verdict::Unmeasured(reason) => Some(reason),
            Verdict::Met(_) | Verdict::Missed(_) => None,
        }
    }

    /// Returns goal and figure for a result file.
    pub(crate) fn to_json(&self) -> Value {
        let Goal { area, case, command, figure, bound, .. } = self.goal;
        json!({
            "area": area.to_string(), "case": case, "command": command, "figure": figure,
            "bound": bound.to_string(), "value": self.verdict.value(),
            "verdict": self.verdict.to_string(),
            "known": self.shortfall().map(|(known, _)| &known.measured),
        })
    }

    /// Returns the cells of this goal's row: area, case, figure, bound, value, verdict.
    pub(crate) fn cells(&self) -> [String; 6] {
        let Goal { area, case, figure, bound, .. } = self.goal;
        let value = self.verdict.value().map_or_else(|| "–".to_owned(), three_digits);
        let known = if self.shortfall().is_some() { " (known)" } else { "" };
        let verdict = match &self.verdict {
            // The reason does not fit into a column; it is shown below the table.
            Verdict::Unmeasured(_) => "NOT MEASURED".to_owned(),
            verdict => format!("{verdict}{known}"),
        };
        [area.to_string(), case.clone(), figure.clone(), bound.to_string(), value, verdict]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedulers::System;

    fn goal(bound: &str, measured: &str) -> Goal {
        let text = format!(
            "area = \"costs\"\ncase = \"a case\"\ncommand = \"a command\"\nfigure = \"a figure\"\n\
             bound = \"{bound}\"\nsamples-min = 10\nmeasured.figure = {measured}"
        );
        toml::from_str(&text).expect("a goal")
    }

    const VALUE: &str = "{ key = \"value\", of = { case = \"case\" } }";

    fn row(value: f64, samples: u64) -> [Row; 1] {
        let row = Row::new(System::Vigie, "case").with_figure("samples", samples);
        [row.with_figure("value", value)]
    }

    #[test]
    fn bounds_at_their_edges() {
        // Goal: "at most" includes the bound, "below" does not, and NaN is within none; a bound is read as it is shown.
        // Method: a table.
        for (bound, figure, holds) in [
            ("≤ 1", 1.0, true),
            ("≤ 1", 1.001, false),
            ("< 1", 0.999, true),
            ("< 1", 1.0, false),
            ("≥ 5", 5.0, true),
            ("≥ 5", 4.9, false),
            ("≤ 1", f64::NAN, false),
            ("≥ 1", f64::NAN, false),
        ] {
            let read = Bound::try_from(bound.to_owned()).expect("a bound");
            assert_eq!((read.holds(figure), read.to_string()), (holds, bound.to_owned()));
        }
        assert!(Bound::try_from("> 1".to_owned()).is_err());
    }

    #[test]
    fn verdicts() {
        // Goal: met, missed, too few samples, and nothing measured are told apart. Method: each once.
        let goal = goal("≤ 1.3", VALUE);
        assert_eq!(goal.evaluate(&row(1.2, 10)), Verdict::Met(1.2));
        assert_eq!(goal.evaluate(&row(1.4, 10)), Verdict::Missed(1.4));
        let Verdict::Unmeasured(reason) = goal.evaluate(&row(1.2, 9)) else { panic!("9 < 10") };
        assert_eq!(reason, "9 samples, 10 are needed");
        assert!(matches!(goal.evaluate(&[]), Verdict::Unmeasured(_)));
        assert!(!goal.evaluate(&[]).is_met());
    }

    #[test]
    fn reasons_stay_out_of_the_table() {
        // Goal: a long reason why there is no figure does not widen the table, and is not lost. Method: too few samples, and a miss.
        let goal: &'static Goal = Box::leak(Box::new(goal("≤ 1.3", VALUE)));
        let check =
            |samples| Checked { goal, reason: None, verdict: goal.evaluate(&row(1.4, samples)) };
        assert_eq!(check(9).cells()[5], "NOT MEASURED");
        assert_eq!(check(9).unmeasured_because(), Some("9 samples, 10 are needed"));
        assert_eq!(check(10).cells()[5], "MISSED");
        assert_eq!(check(10).unmeasured_because(), None);
    }

    #[test]
    fn a_lower_percentile_can_only_miss() {
        // Goal: a system so slow that its samples are few has missed its goal; one that is not slow but
        // has few samples has met nothing. Method: a row without the percentile, on both sides of a limit.
        let row = Row::new(System::Vigie, "case").with_figure("samples", 20);
        let rows = [row.with_figure("p50_us", 5.0)];
        let p99 = "{ key = \"p99_us\", or-more = true, of = { case = \"case\" } }";
        assert_eq!(goal("≤ 4", p99).evaluate(&rows), Verdict::Missed(5.0));
        assert!(matches!(goal("≤ 6", p99).evaluate(&rows), Verdict::Unmeasured(_)));
    }

    #[test]
    fn a_failed_case_gives_its_reason() {
        // Goal: the table says why there is no figure. Method: a row with a failure.
        let mut failed = Row::new(System::Vigie, "case");
        failed.failure = Some("no echo within 3s".to_owned());
        let verdict = goal("≤ 1", VALUE).evaluate(&[failed]);
        assert_eq!(verdict, Verdict::Unmeasured("no echo within 3s".to_owned()));
    }
}
