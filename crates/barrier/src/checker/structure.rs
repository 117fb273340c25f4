//! The first pass: every message has one sender, and receivers that wait for it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fault, Name};
use crate::{
    algorithm::Messages,
    group::{Group, Rank},
    schedule::{Network, Schedule, Source, Step, Target},
};

/// Checks who is named by whom. Returns the number of messages.
pub(super) fn check(schedule: &Schedule) -> Result<Messages, Fault> {
    let sent = sent(schedule)?;
    let awaited = awaited(schedule, &sent)?;
    let mut messages = Messages::default();
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
            return Err(Fault::Unheard { receiver, sender: *sender, round: *round });
        }
    }
    Ok(messages)
}

/// Collects what is sent.
fn sent(schedule: &Schedule) -> Result<BTreeMap<Name, (Target, Network)>, Fault> {
    let mut sent = BTreeMap::new();
    for rank in schedule.group().ranks() {
        for step in schedule.steps(rank) {
            let Step::Send { to, round, network } = step else { continue };
            if let Target::Member(other) = to {
                is_other(schedule.group(), rank, *other)?;
            }
            if sent.insert((rank, *round), (*to, *network)).is_some() {
                return Err(Fault::SameRound { rank, round: *round });
            }
        }
    }
    Ok(sent)
}

/// Collects who waits for what, which must be sent to it.
fn awaited(
    schedule: &Schedule,
    sent: &BTreeMap<Name, (Target, Network)>,
) -> Result<BTreeSet<(Rank, Name)>, Fault> {
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
                    return Err(Fault::NeverSent { receiver, sender, round, network });
                }
                if !awaited.insert((receiver, (sender, round))) {
                    return Err(Fault::AwaitedTwice { receiver, sender, round });
                }
            }
        }
    }
    Ok(awaited)
}

fn is_other(group: Group, rank: Rank, other: Rank) -> Result<(), Fault> {
    if group.contains(other) && other != rank {
        Ok(())
    } else {
        Err(Fault::Outsider { rank, other })
    }
}
