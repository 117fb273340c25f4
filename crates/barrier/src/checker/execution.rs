//! The second pass: one execution, which represents all.

use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use super::{Join, MessageId, ScheduleError};
use crate::{
    group::{Group, Rank},
    schedule::{Schedule, Source, Step, Target},
};

/// A set of members.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RankSet(Vec<u64>);

impl RankSet {
    fn only(rank: Rank, group: Group) -> Self {
        let mut words = vec![0; Rank(group.size()).index().div_ceil(64)];
        words[rank.index() / 64] = 1 << (rank.index() % 64);
        Self(words)
    }

    fn contains(&self, rank: Rank) -> bool {
        self.0[rank.index() / 64] >> (rank.index() % 64) & 1 == 1
    }

    /// Adds the members of `other`, and returns how they relate to those that were in.
    fn join(&mut self, others: &Self) -> Join {
        let (mut common, mut new, mut missing) = (0, 0, 0);
        for (own, other) in self.0.iter_mut().zip(&others.0) {
            common |= *own & other;
            new |= other & !*own;
            missing |= *own & !other;
            *own |= other;
        }
        match (common != 0, new != 0, missing != 0) {
            (_, false, _) => Join::Repeats,
            (_, _, false) => Join::Covers,
            (false, _, _) => Join::Adds,
            (true, _, true) => Join::Overlaps,
        }
    }
}

/// The progress of a member.
#[derive(Debug)]
struct MemberProgress {
    step: usize,
    /// Shared with the messages sent since the last reception.
    known: Rc<RankSet>,
    hops: u32,
    joins: Vec<Join>,
}

/// Executes the schedule, each member as far as possible, until none can go further. Returns the longest chain of
/// messages, and how the members that each message tells of relate to those that its receiver knew.
pub(super) fn run(schedule: &Schedule) -> Result<(u32, Vec<Vec<Join>>), ScheduleError> {
    let group = schedule.group();
    let mut members: Vec<MemberProgress> = group
        .ranks()
        .map(|rank| MemberProgress {
            step: 0,
            known: Rc::new(RankSet::only(rank, group)),
            hops: 0,
            joins: Vec::new(),
        })
        .collect();
    let mut sent = BTreeMap::new();
    let mut ready: VecDeque<Rank> = group.ranks().collect();
    while let Some(rank) = ready.pop_front() {
        let member = &mut members[rank.index()];
        while let Some(step) = schedule.steps(rank).get(member.step) {
            match step {
                Step::Send { to, round, .. } => {
                    sent.insert((rank, *round), (Rc::clone(&member.known), member.hops + 1));
                    match to {
                        Target::Member(other) => ready.push_back(*other),
                        Target::Everyone => ready.extend(group.ranks()),
                    }
                }
                Step::Receive(sources) if !receive(member, sources, &sent) => break,
                Step::Receive(_) => {}
            }
            member.step += 1;
        }
    }
    verdict(schedule, members)
}

/// Takes messages if all of them have arrived.
fn receive(
    member: &mut MemberProgress,
    sources: &[Source],
    sent: &BTreeMap<MessageId, (Rc<RankSet>, u32)>,
) -> bool {
    let names = sources.iter().map(|source| (source.rank, source.round));
    let Some(messages) = names.map(|name| sent.get(&name)).collect::<Option<Vec<_>>>() else {
        return false;
    };
    for (others, hops) in messages {
        member.joins.push(Rc::make_mut(&mut member.known).join(others));
        member.hops = member.hops.max(*hops);
    }
    true
}

fn verdict(
    schedule: &Schedule,
    members: Vec<MemberProgress>,
) -> Result<(u32, Vec<Vec<Join>>), ScheduleError> {
    let group = schedule.group();
    let is_stuck = |rank: &Rank| members[rank.index()].step < schedule.steps(*rank).len();
    let mut stuck = group.ranks().filter(is_stuck);
    if let Some(rank) = stuck.next() {
        return Err(ScheduleError::Deadlock { rank, others: stuck.count() });
    }
    for (rank, member) in group.ranks().zip(&members) {
        if let Some(unheard) = group.ranks().find(|other| !member.known.contains(*other)) {
            return Err(ScheduleError::EarlyExit { rank, unheard });
        }
    }
    let hops = members.iter().map(|member| member.hops).max().unwrap_or(0);
    Ok((hops, members.into_iter().map(|member| member.joins).collect()))
}
