//! The choice of an algorithm for a group.

use std::{fmt, num::NonZeroU32, time::Duration};

use super::LogP;
use crate::{
    algorithm::{Algorithm, AlgorithmError, Networks},
    group::Group,
    schedule::Step,
};

/// The largest group whose waits are counted.
const COUNTED_MAX: u32 = 256;

/// The cores of the members: one for each, or some that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CoreAllocation {
    /// Each member has a core of its own, like the nodes of a cluster.
    Dedicated,
    /// All members share this many cores.
    Shared(NonZeroU32),
}

/// The expected cost of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The time by LogP's closed form.
    pub predicted: Duration,
    /// The same if polling members share cores, and take turns. Equal to `predicted` if each has its own.
    pub predicted_sharing: Duration,
    /// All members' work, divided by their cores; zero if each has its own.
    pub work: Duration,
    /// The number of times that its members wait for messages, in total; 0 for groups of more than 256.
    pub waits: u64,
}

impl Candidate {
    /// Returns the larger of the message chain's time and the work: a barrier takes at least that long.
    #[must_use]
    pub fn expected(&self) -> Duration {
        self.predicted_sharing.max(self.work)
    }

    /// Orders by time; equal times by waits, if the work counts, since each wait is a switch to another member, then
    /// by LogP. Otherwise the simpler candidate, which comes first, stays.
    fn order(&self) -> (Duration, u64, Duration) {
        let waits = if self.work > self.predicted_sharing { self.waits } else { 0 };
        (self.expected(), waits, self.predicted.min(self.work))
    }
}

/// The planner's choice, and the time observed with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// The algorithm to use.
    pub algorithm: Algorithm,
    /// The expected time of a barrier.
    pub expected: Duration,
    /// The reason, in words.
    pub reason: String,
    /// All candidates, the best first.
    pub candidates: Vec<Candidate>,
    /// The observed time of a barrier, once it was [recorded](Self::observe).
    pub observed: Option<Duration>,
}

impl Advice {
    /// Records the observed time of a barrier, for example the median of many.
    pub const fn observe(&mut self, observed: Duration) {
        self.observed = Some(observed);
    }

    /// Returns the factor by which the observation exceeds the expectation, if both are known.
    #[must_use]
    pub fn deviation(&self) -> Option<f64> {
        let expected = Some(self.expected.as_secs_f64()).filter(|expected| *expected > 0.0)?;
        Some(self.observed?.as_secs_f64() / expected)
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; expected {}", self.algorithm, self.reason, micros(self.expected))?;
        if let (Some(observed), Some(deviation)) = (self.observed, self.deviation()) {
            write!(f, ", observed {} ({deviation:.2} times as much)", micros(observed))?;
        }
        Ok(())
    }
}

/// Returns the algorithms worth considering for a group, the simpler ones first.
#[must_use]
pub fn candidates(group: Group, logp: &LogP, has_multicast: bool) -> Vec<Algorithm> {
    let mut all = vec![Algorithm::ShuffleExchange, Algorithm::Pairwise, Algorithm::DISSEMINATION];
    all.extend([2, 3, 4, 7].map(|ways| Algorithm::Dissemination { ways }));
    all.extend([Algorithm::Central, Algorithm::Tournament]);
    if has_multicast {
        let networks = Networks::One;
        all.push(Algorithm::Concurrent { networks });
        all.extend([2, 3, 4, 8].map(|k| Algorithm::Nomial { k }));
        all.extend([2, 3, 7].map(|children| Algorithm::Heap { children, networks }));
        all.push(Algorithm::Optimal(logp.timing()));
    }
    all.retain(|algorithm| algorithm.check(group).is_ok());
    all
}

/// Chooses the algorithm whose barrier takes the least time: the larger of LogP's prediction and the work of all
/// members divided by their cores. On few cores, LogP alone would choose the algorithm that sends the most messages
/// at once. There the prediction is for members that [take turns](LogP::predict_sharing), since the work alone would
/// favour long chains of few messages.
///
/// # Errors
/// [`AlgorithmError`] if there are no candidates, or one does not suit the group.
pub fn plan(
    group: Group,
    logp: &LogP,
    cores: CoreAllocation,
    candidates: &[Algorithm],
) -> Result<Advice, AlgorithmError> {
    let mut found = Vec::new();
    for algorithm in candidates.iter().copied() {
        algorithm.check(group)?;
        let work = match cores {
            CoreAllocation::Dedicated => Duration::ZERO,
            CoreAllocation::Shared(cores) => logp.work(algorithm, group) / cores.get(),
        };
        let predicted = logp.predict(algorithm, group);
        let in_turns = match cores {
            CoreAllocation::Dedicated => predicted,
            CoreAllocation::Shared(cores) => logp.predict_sharing(algorithm, group, cores),
        };
        let waits = waits(algorithm, group);
        found.push(Candidate { algorithm, predicted, predicted_sharing: in_turns, work, waits });
    }
    found.sort_by_key(Candidate::order);
    let best = *found.first().ok_or(AlgorithmError::NoCandidates)?;
    Ok(Advice {
        algorithm: best.algorithm,
        expected: best.expected(),
        reason: reason(&found, best, group, cores),
        candidates: found,
        observed: None,
    })
}

/// Counts the waits of a barrier, for groups small enough to share a host.
///
/// Each wait gives a processor to another member, which LogP does not know.
fn waits(algorithm: Algorithm, group: Group) -> u64 {
    if group.size() > COUNTED_MAX {
        return 0;
    }
    let Ok(schedule) = algorithm.schedule(group) else { return 0 };
    let steps = group.ranks().flat_map(|rank| schedule.steps(rank));
    steps.filter(|step| matches!(step, Step::Receive(_))).map(|_| 1).sum()
}

fn reason(found: &[Candidate], best: Candidate, group: Group, cores: CoreAllocation) -> String {
    let size = group.size();
    let mut reason = match cores {
        CoreAllocation::Shared(cores) if best.work > best.predicted_sharing => format!(
            "{size} members share {cores} cores, and its messages are the least work, {} against {} by LogP alone",
            micros(best.work),
            micros(best.predicted)
        ),
        CoreAllocation::Shared(cores) if best.predicted_sharing > best.predicted => format!(
            "the shortest chain of messages for {size} members that take turns on {cores} cores, {} if each had its own",
            micros(best.predicted)
        ),
        _ => format!("the shortest chain of messages for {size} members"),
    };
    if let Some(next) = found.get(1) {
        reason.push_str(&format!(
            "; next best is {} with {}",
            next.algorithm,
            micros(next.expected())
        ));
    }
    let by_logp = found.iter().min_by_key(|candidate| candidate.predicted);
    if let Some(other) = by_logp.filter(|other| other.expected() > best.expected()) {
        reason.push_str(&format!(
            "; {}, with {} the best if each member had a core, would take {}",
            other.algorithm,
            micros(other.predicted),
            micros(other.expected())
        ));
    }
    reason
}

fn micros(duration: Duration) -> String {
    format!("{:.1} µs", duration.as_secs_f64() * 1e6)
}
