//! The steps of one member, prepared for looking up messages.

use std::ops::Range;

use super::config::MemberError;
use crate::{
    checker::{Join, prove},
    group::Rank,
    reduction::{Counting, Reduction},
    schedule::{Network, Round, Schedule, Source, Step, Target},
};

#[derive(Clone, Debug)]
pub(super) enum PlanStep {
    /// Index of a send.
    Send(usize),
    /// Indices of sources.
    Receive(Range<usize>),
}

#[derive(Clone, Debug)]
pub(super) struct ScheduledSend {
    pub(super) to: Target,
    pub(super) round: Round,
    pub(super) network: Network,
}

#[derive(Clone, Debug)]
pub(super) struct MemberPlan {
    pub(super) steps: Vec<PlanStep>,
    pub(super) sends: Vec<ScheduledSend>,
    pub(super) sources: Vec<Source>,
    /// Indices of the sends, by round.
    by_round: Vec<(Round, usize)>,
    /// Indices of the sources, by sender and round.
    by_name: Vec<((Rank, Round), usize)>,
    /// True if the schedule has a second network, which questions can use if the first one is down.
    has_two_networks: bool,
    /// By source; empty if the reduction does not need them.
    joins: Vec<Join>,
}

impl MemberPlan {
    pub(super) fn new(
        schedule: &Schedule,
        rank: Rank,
        reduction: Option<&Reduction>,
    ) -> Result<Self, MemberError> {
        let size = schedule.group().size();
        if !schedule.group().contains(rank) {
            return Err(MemberError::Rank { rank, size });
        }

        let (mut steps, mut sends, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for step in schedule.steps(rank) {
            match step {
                Step::Send { to, round, network } => {
                    steps.push(PlanStep::Send(sends.len()));
                    sends.push(ScheduledSend { to: *to, round: *round, network: *network });
                }
                Step::Receive(from) => {
                    let first = sources.len();
                    sources.extend_from_slice(from);
                    steps.push(PlanStep::Receive(first..sources.len()));
                }
            }
        }

        let mut by_round: Vec<_> =
            sends.iter().enumerate().map(|(index, send)| (send.round, index)).collect();
        let mut by_name: Vec<_> = sources
            .iter()
            .enumerate()
            .map(|(index, source)| ((source.rank, source.round), index))
            .collect();
        by_round.sort_unstable();
        by_name.sort_unstable();

        let mut joins = Vec::new();
        if reduction.is_some_and(|reduction| reduction.counting() == Counting::Once) {
            let proof = prove(schedule)?;
            if !proof.is_exact() {
                return Err(MemberError::CountsTwice);
            }
            joins = proof.joins(rank).to_vec();
        }

        let is_second = |step: &Step| matches!(step, Step::Send { network: Network::Second, .. });
        let has_two_networks =
            schedule.group().ranks().any(|rank| schedule.steps(rank).iter().any(is_second));
        Ok(Self { steps, sends, sources, by_round, by_name, has_two_networks, joins })
    }

    /// Returns the network for the question with that number, and for its answer, about a message on this network:
    /// questions alternate between both, since one may be down.
    pub(super) const fn network(&self, network: Network, attempt: u32) -> Network {
        match network {
            Network::First if self.has_two_networks && attempt % 2 == 1 => Network::Second,
            Network::Second if attempt % 2 == 1 => Network::First,
            Network::First | Network::Second => network,
        }
    }

    /// Returns the source that a message matches, if this member waits for it at all.
    pub(super) fn source(&self, sender: Rank, round: Round) -> Option<usize> {
        let at = self.by_name.binary_search_by_key(&(sender, round), |(name, _)| *name).ok()?;
        Some(self.by_name[at].1)
    }

    /// Returns the send that a message is, if it is for that receiver.
    pub(super) fn send(&self, receiver: Rank, round: Round) -> Option<usize> {
        let at = self.by_round.binary_search_by_key(&round, |(round, _)| *round).ok()?;
        let index = self.by_round[at].1;
        let to = self.sends[index].to;
        (to == Target::Everyone || to == Target::Member(receiver)).then_some(index)
    }

    /// Returns how the values of some sources are combined with the member's own.
    pub(super) fn joins(&self, range: &Range<usize>) -> impl Iterator<Item = Join> {
        let joins = self.joins.get(range.clone()).unwrap_or_default();
        joins.iter().copied().chain(std::iter::repeat(Join::Adds))
    }
}
