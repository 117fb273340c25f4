//! The first pass: every message has one sender, and receivers that wait for it.

use std::collections::{BTreeMap, BTreeSet};

use super::error::ScheduleError;
use crate::{
    algorithm::MessageCounts,
    group::{Group, Rank},
    schedule::{Network, Round, Schedule, Source, Step, Target},
};

/// A message, as a key for the tables of both passes.
pub(super) type MessageId = (Rank, Round);

/// Checks the ranks and messages that steps name. Returns the number of messages.
pub(super) fn check(schedule: &Schedule) -> Result<MessageCounts, ScheduleError> {
    let sent = sent(schedule)?;
    let awaited = awaited(schedule, &sent)?;
    let mut messages = MessageCounts::default();
    for ((sender, round), (to, _)) in &sent {
        let unheard = |receiver: &Rank| !awaited.contains(&(*receiver, (*sender, *round)));
        let forgotten = match to {
            Target::Member(receiver) => {
                messages.unicast += 1;
                Some(*receiver).filter(unheard)
            }
            Target::Everyone => {
                messages.multicast += 1;
                let mut others = schedule.group().ranks().filter(|rank| rank != sender);
                others.find(unheard)
            }
        };
        if let Some(receiver) = forgotten {
            return Err(ScheduleError::NeverAwaited { receiver, sender: *sender, round: *round });
        }
    }
    Ok(messages)
}

/// Collects the messages that are sent.
fn sent(schedule: &Schedule) -> Result<BTreeMap<MessageId, (Target, Network)>, ScheduleError> {
    let mut sent = BTreeMap::new();
    for rank in schedule.group().ranks() {
        for step in schedule.steps(rank) {
            let Step::Send { to, round, network } = step else { continue };
            if let Target::Member(other) = to {
                is_other(schedule.group(), rank, *other)?;
            }
            if sent.insert((rank, *round), (*to, *network)).is_some() {
                return Err(ScheduleError::SameRound { rank, round: *round });
            }
        }
    }
    Ok(sent)
}

/// Collects the awaited messages, each of which must be sent to the member that awaits it.
fn awaited(
    schedule: &Schedule,
    sent: &BTreeMap<MessageId, (Target, Network)>,
) -> Result<BTreeSet<(Rank, MessageId)>, ScheduleError> {
    let mut awaited = BTreeSet::new();
    for receiver in schedule.group().ranks() {
        for step in schedule.steps(receiver) {
            let Step::Receive(sources) = step else { continue };
            for Source { rank: sender, round, network } in sources.iter().copied() {
                is_other(schedule.group(), receiver, sender)?;
                let is_sent = sent.get(&(sender, round)).is_some_and(|(to, by)| {
                    *by == network && [Target::Everyone, Target::Member(receiver)].contains(to)
                });
                if !is_sent {
                    return Err(ScheduleError::NeverSent { receiver, sender, round, network });
                }
                if !awaited.insert((receiver, (sender, round))) {
                    return Err(ScheduleError::AwaitedTwice { receiver, sender, round });
                }
            }
        }
    }
    Ok(awaited)
}

fn is_other(group: Group, rank: Rank, other: Rank) -> Result<(), ScheduleError> {
    if group.contains(other) && other != rank {
        Ok(())
    } else {
        Err(ScheduleError::Outsider { rank, other })
    }
}
