//! A goal, its bound, and how a measurement is held against it.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};
use thiserror::Error;

use super::experiment::Experiment;
use super::shortfalls::Shortfall;
use crate::report::Row;
use crate::report::figure::Figure;
use crate::report::table::three_digits;

/// A figure that vigie must reach.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Goal {
    /// What the goal is about.
    pub area: Area,
    /// System and load.
    pub case: &'static str,
    /// The command that measures this case alone.
    pub command: &'static str,
    /// The figure that is compared with the bound.
    pub figure: &'static str,
    /// The bound.
    pub bound: Bound,
    /// Samples below which the figure says nothing.
    pub samples_min: u64,
    /// What has to be measured.
    pub(crate) experiment: Experiment,
    /// Finds the figure in the rows of the experiment.
    pub(crate) measure: fn(&[Row]) -> Option<Figure>,
}

impl Goal {
    /// Compares what was measured with the bound.
    #[must_use]
    pub fn evaluate(&self, rows: &[Row]) -> Verdict {
        match (self.measure)(rows) {
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
    failure
        .unwrap_or_else(|| "no such figure; system calls need strace (`apt install strace`)".into())
}

/// What goals are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Area {
    /// Time until a message is echoed, beside compute tasks that yield as in the paper, or often.
    Reaction,
    /// The same, beside compute tasks that yield seldom, and what those tasks lose.
    Hogs,
    /// The same, of a service with many clients.
    Service,
    /// What compute tasks keep beside others, and reaction within a quota.
    Fairness,
    /// Time and processor time of an echo while nothing else runs.
    Echo,
    /// Time of a task, beside waiting tasks.
    Pending,
    /// The activity of an idle server.
    Idle,
    /// The costs of a task switch other than time.
    Costs,
    /// Messages between processes of one host.
    Messages,
    /// Messages between hosts, for which network namespaces stand.
    Remote,
    /// Barriers of the paper's cluster, in simulation.
    BarrierSim,
    /// Barriers of members on one host.
    BarrierLocal,
    /// Barriers between hosts, for which network namespaces stand.
    BarrierNet,
    /// The model of forwarding, beside its simulation and its paper.
    ForwardModel,
    /// Messages through a node in the middle, live, beside the model.
    ForwardVia,
    /// Frames that are forwarded in user space between interfaces.
    ForwardLive,
    /// Frames that programs at the driver forward.
    ForwardNic,
    /// Relays of streams, beside others.
    ForwardRelay,
    /// Random mixes of behaviour, and those of the promise's table.
    Loads,
    /// A service on hyper, beside the same on tokio.
    Http,
    /// Tail slowdown against offered load.
    Slowdown,
    /// The cost and the lateness of timers.
    Timers,
    /// An event beside tasks that wait for peers.
    Waits,
    /// The scheduler's own code in virtual time, under loads drawn by seed.
    Simulation,
}

impl Area {
    /// All areas.
    pub const ALL: [Self; 24] = [
        Self::Reaction,
        Self::Hogs,
        Self::Service,
        Self::Fairness,
        Self::Echo,
        Self::Pending,
        Self::Idle,
        Self::Costs,
        Self::Messages,
        Self::Remote,
        Self::BarrierSim,
        Self::BarrierLocal,
        Self::BarrierNet,
        Self::ForwardModel,
        Self::ForwardVia,
        Self::ForwardLive,
        Self::ForwardNic,
        Self::ForwardRelay,
        Self::Loads,
        Self::Http,
        Self::Slowdown,
        Self::Timers,
        Self::Waits,
        Self::Simulation,
    ];

    /// Returns the name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reaction => "reaction",
            Self::Hogs => "hogs",
            Self::Service => "service",
            Self::Fairness => "fairness",
            Self::Echo => "echo",
            Self::Pending => "pending",
            Self::Idle => "idle",
            Self::Costs => "costs",
            Self::Messages => "messages",
            Self::Remote => "remote",
            Self::BarrierSim => "barrier-sim",
            Self::BarrierLocal => "barrier-local",
            Self::BarrierNet => "barrier-net",
            Self::ForwardModel => "forward-model",
            Self::ForwardVia => "forward-via",
            Self::ForwardLive => "forward-live",
            Self::ForwardNic => "forward-nic",
            Self::ForwardRelay => "forward-relay",
            Self::Loads => "loads",
            Self::Http => "http",
            Self::Slowdown => "slowdown",
            Self::Timers => "timers",
            Self::Waits => "waits",
            Self::Simulation => "simulation",
        }
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Area {
    type Err = UnknownArea;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|area| area.name() == name);
        known.ok_or_else(|| UnknownArea { name: name.to_owned() })
    }
}

/// A name that stands for no area.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no goals are about {name:?}; there are {}", Area::ALL.map(Area::name).join(", "))]
#[non_exhaustive]
pub struct UnknownArea {
    /// The given text.
    pub name: String,
}

/// The bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "there is no other comparison")]
pub enum Bound {
    /// The figure must be this or less.
    AtMost(f64),
    /// The figure must be less than this.
    Below(f64),
    /// The figure must be this or more.
    AtLeast(f64),
}

impl Bound {
    /// Tells whether `figure` is within this bound; what is not a number never is.
    #[must_use]
    pub fn holds(self, figure: f64) -> bool {
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

/// How a goal and its figure stand to each other.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a goal is met, missed, or undecided")]
pub enum Verdict {
    /// The figure is within the bound.
    Met(f64),
    /// The figure is beyond the bound.
    Missed(f64),
    /// There is no figure, or too few samples carry it. This is not a success.
    Unmeasured(String),
}

impl Verdict {
    /// Tells whether the goal is met.
    #[must_use]
    pub const fn is_met(&self) -> bool {
        matches!(self, Self::Met(_))
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
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checked {
    /// The goal.
    pub goal: &'static Goal,
    /// What became of it.
    pub verdict: Verdict,
}

impl Checked {
    /// Returns what is known of a goal that is not met.
    #[must_use]
    pub fn shortfall(&self) -> Option<&'static Shortfall> {
        Shortfall::of(self.goal).filter(|_| !self.verdict.is_met())
    }

    /// Returns goal and figure for a result file.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Goal { area, case, command, figure, bound, .. } = self.goal;
        let value = match self.verdict {
            Verdict::Met(value) | Verdict::Missed(value) => Some(value),
            Verdict::Unmeasured(_) => None,
        };
        json!({
            "area": area.name(), "case": case, "command": command, "figure": figure,
            "bound": bound.to_string(), "value": value, "verdict": self.verdict.to_string(),
            "known": self.shortfall().map(|known| known.measured),
        })
    }

    /// Returns the cells of this goal's row: area, case, figure, bound, value, verdict.
    #[must_use]
    pub fn cells(&self) -> [String; 6] {
        let Goal { area, case, figure, bound, .. } = self.goal;
        let value = match self.verdict {
            Verdict::Met(value) | Verdict::Missed(value) => three_digits(value),
            Verdict::Unmeasured(_) => "–".to_owned(),
        };
        let (case, figure) = ((*case).to_owned(), (*figure).to_owned());
        let known = if self.shortfall().is_some() { " (known)" } else { "" };
        let verdict = format!("{}{known}", self.verdict);
        [area.to_string(), case, figure, bound.to_string(), value, verdict]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedulers::System;

    fn goal(bound: Bound) -> Goal {
        Goal {
            area: Area::Costs,
            case: "a case",
            command: "a command",
            figure: "a figure",
            bound,
            samples_min: 10,
            experiment: Experiment::Switches,
            measure: |rows| {
                let row = rows.first()?;
                Some(Figure::new(row.figure("value")?, row.samples()))
            },
        }
    }

    fn row(value: f64, samples: u64) -> [Row; 1] {
        let row = Row::new(System::Vigie, "case").with_figure("samples", samples);
        [row.with_figure("value", value)]
    }

    #[test]
    fn bounds_at_their_edges() {
        // Goal: "at most" includes the bound, "below" does not, and NaN is within none.
        // Method: a table.
        for (bound, figure, holds) in [
            (Bound::AtMost(1.0), 1.0, true),
            (Bound::AtMost(1.0), 1.001, false),
            (Bound::Below(1.0), 0.999, true),
            (Bound::Below(1.0), 1.0, false),
            (Bound::AtLeast(5.0), 5.0, true),
            (Bound::AtLeast(5.0), 4.9, false),
            (Bound::AtMost(1.0), f64::NAN, false),
            (Bound::AtLeast(1.0), f64::NAN, false),
        ] {
            assert_eq!(bound.holds(figure), holds, "{figure} {bound}");
        }
    }

    #[test]
    fn verdicts() {
        // Goal: met, missed, too few samples, and nothing measured are told apart. Method: each once.
        let goal = goal(Bound::AtMost(1.3));
        assert_eq!(goal.evaluate(&row(1.2, 10)), Verdict::Met(1.2));
        assert_eq!(goal.evaluate(&row(1.4, 10)), Verdict::Missed(1.4));
        let Verdict::Unmeasured(reason) = goal.evaluate(&row(1.2, 9)) else { panic!("9 < 10") };
        assert_eq!(reason, "9 samples, 10 are needed");
        assert!(matches!(goal.evaluate(&[]), Verdict::Unmeasured(_)));
        assert!(!goal.evaluate(&[]).is_met());
    }

    #[test]
    fn a_lower_percentile_can_only_miss() {
        // Goal: a system so slow that its samples are few has missed its goal; one that is not slow but
        // has few samples has met nothing. Method: the same lower bound on both sides of a limit.
        let least = |bound| Goal {
            measure: |_| Some(Figure { is_least: true, ..Figure::new(5.0, 20) }),
            ..goal(Bound::AtMost(bound))
        };
        assert_eq!(least(4.0).evaluate(&[]), Verdict::Missed(5.0));
        assert!(matches!(least(6.0).evaluate(&[]), Verdict::Unmeasured(_)));
    }

    #[test]
    fn a_failed_case_gives_its_reason() {
        // Goal: the table says why there is no figure. Method: a row with a failure.
        let mut failed = Row::new(System::Vigie, "case");
        failed.failure = Some("no echo within 3s".to_owned());
        let verdict = goal(Bound::AtMost(1.0)).evaluate(&[failed]);
        assert_eq!(verdict, Verdict::Unmeasured("no echo within 3s".to_owned()));
    }
}
