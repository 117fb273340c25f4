//! The second pass: one execution, which represents all.

use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use super::{
    error::ScheduleError,
    rank_set::{Join, RankSet},
    structure::MessageId,
};
use crate::{
    group::Rank,
    schedule::{Schedule, Source, Step, Target},
};

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
