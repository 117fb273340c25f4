//! The planner: where a pipeline should run, and why.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use super::message::Message;
use super::parameters::{Node, Parameters};
use super::path::{Path, Placement, SwitchingMode};
use super::prediction::Prediction;
use super::stage::StageModel;
use crate::error::ModelError;

/// The path on which a pipeline should run, with the prediction and the reason.
///
/// ```
/// # use std::time::Duration;
/// # use vigie_forward::{Bandwidth, Cost, Message, Node, Path, StageModel};
/// let micros = Duration::from_micros;
/// // The paper's node: 15 µs on a link and 11 µs on the bus for 2048 bytes.
/// let node = Node::new(
///     Cost::per_byte(Bandwidth::measured(2048, micros(15))?),
///     Cost::per_byte(Bandwidth::measured(2048, micros(11))?),
/// );
/// let message = Message::cut(8192, 2048)?;
/// let route = StageModel::new("route").on_nic(Cost::fixed(micros(2)));
/// let plan = node.plan(message, std::slice::from_ref(&route))?;
/// assert_eq!(plan.path(), Path::NIC_CUT_THROUGH);
///
/// let closure = StageModel::new("closure").not_on_nic("a closure is no program for it");
/// let plan = node.plan(message, &[route, closure])?;
/// assert_eq!(plan.path(), Path::HOST);
/// println!("{plan}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a plan only says what should be done"]
pub struct Plan {
    parameters: Parameters,
    chosen: Prediction,
    t_algo_h: Duration,
    t_algo_n: Option<Duration>,
    candidates: [Candidate; 4],
}

/// A path, and the planner's verdict on it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The path.
    pub path: Path,
    /// The prediction, or why the path cannot be taken.
    pub outcome: Result<Prediction, Refusal>,
}

/// The reason why a path cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A stage cannot run on the interface.
    #[error("the stage `{stage}` cannot run on the network interface: {because}")]
    Stage {
        /// Name of the stage.
        stage: String,
        /// The reason.
        because: String,
    },
    /// A stage needs the whole message.
    #[error("the stage `{stage}` needs the whole message before its first byte may leave")]
    WholeMessage {
        /// Name of the stage.
        stage: String,
    },
    /// The bus carries one direction at a time [fast-forward, §3.2].
    #[error("the bus is half-duplex, so the host receives a message before it sends it")]
    HalfDuplex,
}

impl Node {
    /// Plans for one message and the stages that it passes, in order.
    ///
    /// The fastest path wins; among equally fast ones the interface, which relieves the host's processor, and
    /// store-and-forward. There is always one: the host can do everything.
    ///
    /// # Cost
    /// One check per stage, a few dozen operations per path, and one allocation per refusal.
    ///
    /// # Errors
    /// [`ModelError`] if the parameters for this message are out of range.
    pub fn plan(&self, message: Message, stages: &[StageModel]) -> Result<Plan, ModelError> {
        let host = stages.iter().map(StageModel::host_cost);
        let t_algo_h =
            host.fold(Duration::ZERO, |sum, cost| sum.saturating_add(cost.at(message.bytes())));
        let t_algo_n = stages.iter().try_fold(Duration::ZERO, |sum, stage| {
            let cost = stage.nic_cost().map_err(|because| Refusal::Stage {
                stage: stage.name().to_owned(),
                because: because.to_owned(),
            })?;
            Ok(sum.saturating_add(cost.at(message.bytes())))
        });
        let whole = stages.iter().find(|stage| !stage.allows_cut_through());
        let whole = whole.map(|stage| Refusal::WholeMessage { stage: stage.name().to_owned() });
        let parameters = self.parameters(message)?;
        Ok(Plan::new(parameters, t_algo_h, &t_algo_n, whole.as_ref()))
    }
}

impl Plan {
    fn new(
        parameters: Parameters,
        t_algo_h: Duration,
        t_algo_n: &Result<Duration, Refusal>,
        whole: Option<&Refusal>,
    ) -> Self {
        let judge = |path: Path| {
            let t_algo = match path.placement {
                Placement::Host => t_algo_h,
                Placement::Nic => t_algo_n.clone()?,
            };
            if let (SwitchingMode::CutThrough, Some(refusal)) = (path.mode, whole) {
                return Err(refusal.clone());
            }
            parameters.predict(path, t_algo).ok_or(Refusal::HalfDuplex)
        };
        let candidates = Path::ALL.map(|path| Candidate { path, outcome: judge(path) });
        let open = candidates.iter().filter_map(|one| one.outcome.as_ref().ok());
        // Spans are exact, while bandwidths are rounded; of equal ones the first is taken.
        let fastest = open.min_by_key(|one| one.span).copied();
        let host = || parameters.predicted(Path::HOST, parameters.t_h(t_algo_h), t_algo_h);
        let chosen = fastest.unwrap_or_else(host);
        let t_algo_n = t_algo_n.as_ref().ok().copied();
        Self { parameters, chosen, t_algo_h, t_algo_n, candidates }
    }

    /// Returns the path to take.
    #[must_use]
    pub const fn path(&self) -> Path {
        self.chosen.path
    }

    /// Returns the prediction for that path.
    #[must_use]
    pub const fn prediction(&self) -> Prediction {
        self.chosen
    }

    /// Returns the parameters on which the plan is based.
    #[must_use]
    pub const fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// Returns each path with its prediction or refusal. Of equally fast paths, the first is chosen.
    #[must_use]
    pub const fn candidates(&self) -> &[Candidate; 4] {
        &self.candidates
    }

    /// Returns δ = T_algoN − T_algoH in nanoseconds; `None` if the algorithm cannot run on the interface.
    #[must_use]
    pub fn delta_ns(&self) -> Option<i64> {
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        Some(nanos(self.t_algo_n?).saturating_sub(nanos(self.t_algo_h)))
    }

    /// Returns the ratio of this path's bandwidth to that of the best path with the *other* placement; `None` if there
    /// is no other. If it is close to 1, measure.
    #[must_use]
    pub fn margin(&self) -> Option<f64> {
        let other = self.best_of_other_placement()?;
        Some(other.span.as_secs_f64() / self.chosen.span.as_secs_f64())
    }

    /// Returns the reason in words, one sentence or two.
    #[must_use]
    pub fn reason(&self) -> String {
        let mut reason = match (self.path().placement, self.best_of_other_placement()) {
            (Placement::Nic, Some(host)) => {
                let star = self.threshold();
                format!(
                    "{} against {} by the {}: the interface's algorithm takes {} than the host's, \
                     and it may take {:?} longer before the host is faster",
                    self.chosen.bandwidth,
                    host.bandwidth,
                    host.path,
                    self.delta_in_words(),
                    star
                )
            }
            (Placement::Host, Some(nic)) => format!(
                "{} against {} by the {}: the interface's algorithm takes {} than the host's",
                self.chosen.bandwidth,
                nic.bandwidth,
                nic.path,
                self.delta_in_words()
            ),
            (_, None) => {
                let refusals = self.candidates.iter().filter_map(|one| one.outcome.as_ref().err());
                let stage = refusals.into_iter().find(|one| matches!(one, Refusal::Stage { .. }));
                stage.map_or_else(String::new, ToString::to_string)
            }
        };

        let is_whole = |one: &&Candidate| {
            one.path.placement == self.path().placement
                && matches!(one.outcome, Err(Refusal::WholeMessage { .. }))
        };

        if let Some(Candidate { outcome: Err(refusal), .. }) = self.candidates.iter().find(is_whole)
        {
            reason = format!("{reason}; no cut-through, since {refusal}");
        }

        format!("{reason}; limited by the {}", self.chosen.limit)
    }

    /// δ* for the chosen mode, against the host's fastest path.
    fn threshold(&self) -> Duration {
        let Some(host) = self.best_of_other_placement() else { return Duration::ZERO };
        self.parameters.crossover_to(self.path().mode, host.span, self.t_algo_h)
    }

    fn delta_in_words(&self) -> String {
        match self.delta_ns() {
            None | Some(0) => "no longer".to_owned(),
            Some(ns) => {
                let time = Duration::from_nanos(ns.unsigned_abs());
                format!("{time:?} {}", if ns < 0 { "less" } else { "longer" })
            }
        }
    }

    fn best_of_other_placement(&self) -> Option<Prediction> {
        let others = self.candidates.iter().filter_map(|one| one.outcome.as_ref().ok());
        let others = others.filter(|one| one.path.placement != self.path().placement);
        others.min_by_key(|one| one.span).copied()
    }
}

/// Shows the path, and the reason.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path(), self.reason())
    }
}
