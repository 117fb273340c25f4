//! The agreement of the survivors on who is left.
//!
//! Each member tells all others which members it believes dead, and adopts what it is told: these sets only grow, and
//! a member in the set of a live member is excluded. A member that has heard its own set from all members outside
//! that set has decided, and from then on answers with that decision. This is safe as long as silence means death:
//! for another member to decide differently, it would need this one's view, and this one states no other any more. If
//! one more member dies meanwhile, so that some members decide with it and others without it, those that have decided
//! answer the others, which adopt the decision.
//!
//! Under [`Quorum::Majority`](super::Quorum::Majority), members that remain in a smaller part have no say: their sets
//! are not believed, they answer only each other, and once they agree they learn that they are too few. Sets only
//! grow, so they stay too few, unless a member that has decided accepts them. Two decisions with a quorum have a
//! member in common, and that member enters the barriers of only one of them.
//!
//! The name of the smaller group is derived from the old name and the dead. Its barriers succeed only among members
//! that have made the same decision, whatever happened before.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use vigie_detect::Instant;

use super::{Transmit, config::MemberConfig, retry::earlier};
use crate::{
    group::{Group, Rank},
    packet::{Body, DEAD_MAX, GroupId, Key, Packet, encode_ranks},
    schedule::{Network, Target},
};

/// The result of a packet or a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgreementUpdate {
    Unchanged,
    /// More members are dead.
    NewDead,
    /// All agree.
    Decided,
    NewDeadAndDecided,
    /// This member is excluded.
    Excluded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgreementState {
    Undecided,
    Decided,
    /// The others continue without this member.
    Excluded,
}

#[derive(Debug)]
pub(super) struct Agreement {
    group: Group,
    own: Rank,
    id: GroupId,
    key: Option<Key>,
    /// The barrier that this member was in, or would have entered next: all members have entered the earlier ones.
    epoch: u32,
    dead: BTreeSet<Rank>,
    /// The last view of each other member.
    views: BTreeMap<Rank, BTreeSet<Rank>>,
    /// As in a wait for messages: how long other members have not answered.
    silent: BTreeMap<Rank, Duration>,
    /// Members whose end the transport has seen after the decision.
    late_dead: BTreeSet<Rank>,
    state: AgreementState,
    config: MemberConfig,
    interval_min: Duration,
    interval_max: Duration,
    silence_max: Option<Duration>,
    interval: Duration,
    deadline: Option<Instant>,
    transmits: Vec<Transmit>,
}

impl Agreement {
    pub(super) fn new(group: Group, own: Rank, epoch: u32, config: &MemberConfig) -> Self {
        Self {
            group,
            own,
            id: config.group,
            key: config.key.clone(),
            epoch,
            dead: BTreeSet::new(),
            views: BTreeMap::new(),
            silent: BTreeMap::new(),
            late_dead: BTreeSet::new(),
            state: AgreementState::Undecided,
            config: config.clone(),
            interval_min: config.repeat_after,
            interval_max: config.interval_max(),
            silence_max: config.silence_max(),
            interval: config.repeat_after,
            deadline: None,
            transmits: Vec::new(),
        }
    }

    pub(super) const fn id(&self) -> GroupId {
        self.id
    }

    pub(super) const fn dead(&self) -> &BTreeSet<Rank> {
        &self.dead
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(super) fn is_excluded(&self) -> bool {
        self.state == AgreementState::Excluded
    }

    /// Returns whether enough members are left to continue.
    pub(super) fn has_quorum(&self) -> bool {
        self.config.may_go_on(self.group, &self.dead)
    }

    /// Returns whether more members are dead than a packet can name.
    pub(super) fn has_too_many_dead(&self) -> bool {
        self.dead.len() > DEAD_MAX
    }

    /// Returns the survivors, in order, and the name of their group, once that is decided.
    pub(super) fn outcome(&self) -> Option<(Vec<Rank>, GroupId)> {
        if self.state != AgreementState::Decided {
            return None;
        }
        let survivors = self.group.ranks().filter(|rank| !self.dead.contains(rank)).collect();
        Some((survivors, self.id.without(&self.dead)))
    }

    /// Returns the members whose end the transport has seen after the decision.
    pub(super) const fn late_dead(&self) -> &BTreeSet<Rank> {
        &self.late_dead
    }

    pub(super) fn take_transmits(&mut self) -> Vec<Transmit> {
        mem::take(&mut self.transmits)
    }

    /// This member has itself found out that members are dead.
    pub(super) fn report_dead(&mut self, now: Instant, ranks: &BTreeSet<Rank>) -> AgreementUpdate {
        match self.state {
            AgreementState::Undecided => self.extend_dead(now, ranks),
            AgreementState::Decided => {
                self.late_dead.extend(ranks);
                AgreementUpdate::Unchanged
            }
            AgreementState::Excluded => AgreementUpdate::Unchanged,
        }
    }

    /// The clock has gone back by `back`.
    pub(super) fn rewind(&mut self, back: Duration) {
        self.deadline = self.deadline.map(|deadline| earlier(deadline, back));
    }

    /// Another member has sent its view.
    pub(super) fn view(
        &mut self,
        now: Instant,
        sender: Rank,
        dead: BTreeSet<Rank>,
        wants_reply: bool,
    ) -> AgreementUpdate {
        if self.state == AgreementState::Excluded {
            return AgreementUpdate::Unchanged;
        }
        if dead.contains(&self.own) {
            return self.accept_exclusion(sender);
        }
        if self.state == AgreementState::Decided {
            if wants_reply || dead != self.dead {
                self.send_view_to(sender);
            }
            return AgreementUpdate::Unchanged;
        }
        self.silent.remove(&sender);
        let update = {
            let view = self.views.entry(sender).or_default();
            // A view that was overtaken by a later one is not news.
            if dead.is_superset(view) {
                view.clone_from(&dead);
            }
            self.extend_dead(now, &dead)
        };
        if wants_reply {
            self.send_view_to(sender);
        }
        update
    }

    /// Another member has decided.
    pub(super) fn decided(&mut self, sender: Rank, dead: BTreeSet<Rank>) -> AgreementUpdate {
        if dead.contains(&self.own) && self.state == AgreementState::Undecided {
            return self.accept_exclusion(sender);
        }
        if self.state != AgreementState::Undecided || dead.contains(&sender) {
            return AgreementUpdate::Unchanged;
        }
        let is_news = self.dead != dead;
        self.dead = dead;
        self.decide();
        if is_news { AgreementUpdate::NewDeadAndDecided } else { AgreementUpdate::Decided }
    }

    /// Asks the members that have not confirmed again, and finds out which of them are dead.
    pub(super) fn handle_deadline(&mut self, now: Instant) -> AgreementUpdate {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return AgreementUpdate::Unchanged;
        }
        let unconfirmed: Vec<Rank> =
            self.others().filter(|rank| self.views.get(rank) != Some(&self.dead)).collect();
        let mut dead = BTreeSet::new();
        for rank in &unconfirmed {
            let silent = self.silent.entry(*rank).or_default();
            *silent += self.interval;
            if self.silence_max.is_some_and(|most| *silent >= most) {
                dead.insert(*rank);
            }
        }
        if !dead.is_empty() {
            return self.extend_dead(now, &dead);
        }
        self.interval = (self.interval * 2).min(self.interval_max);
        self.deadline = Some(now.saturating_add(self.interval));
        for rank in unconfirmed {
            self.send_view(Target::Member(rank), true);
        }
        AgreementUpdate::Unchanged
    }

    /// Sends a member the present view.
    pub(super) fn send_view_to(&mut self, rank: Rank) {
        // Members that may continue without this one are not to be disturbed.
        if self.dead.contains(&rank) && !self.has_quorum() {
            return;
        }
        self.send_view(Target::Member(rank), false);
    }

    /// Sends the outcome to a member, if it belongs to the group.
    pub(super) fn answer(&mut self, rank: Rank) -> bool {
        let is_other = rank != self.own && self.group.contains(rank);
        if is_other {
            self.send_view_to(rank);
        }
        is_other
    }

    /// Leaves the group, and tells the others.
    pub(super) fn leave(&mut self) {
        if self.state == AgreementState::Undecided {
            self.dead.insert(self.own);
            self.send_view(Target::Everyone, false);
        }
        self.state = AgreementState::Excluded;
        self.deadline = None;
    }

    /// Another member believes this one dead. A dead member's opinion does not count.
    fn accept_exclusion(&mut self, sender: Rank) -> AgreementUpdate {
        if self.dead.contains(&sender) {
            return AgreementUpdate::Unchanged;
        }
        self.state = AgreementState::Excluded;
        self.deadline = None;
        self.transmits.clear();
        AgreementUpdate::Excluded
    }

    fn others(&self) -> impl Iterator<Item = Rank> {
        self.group.ranks().filter(|rank| *rank != self.own && !self.dead.contains(rank))
    }

    /// Adopts a set of dead members, and tells all others if that is news.
    fn extend_dead(&mut self, now: Instant, dead: &BTreeSet<Rank>) -> AgreementUpdate {
        let is_news = !dead.is_subset(&self.dead);
        if is_news {
            self.dead.extend(dead);
            self.send_view(Target::Everyone, false);
            self.interval = self.interval_min;
            self.deadline =
                Some(now.saturating_add(self.interval)).filter(|_| !self.has_too_many_dead());
        }
        let is_decided = !self.has_too_many_dead()
            && self.others().all(|rank| self.views.get(&rank) == Some(&self.dead));
        if is_decided {
            self.decide();
        }
        match (is_news, is_decided) {
            (false, false) => AgreementUpdate::Unchanged,
            (true, false) => AgreementUpdate::NewDead,
            (false, true) => AgreementUpdate::Decided,
            (true, true) => AgreementUpdate::NewDeadAndDecided,
        }
    }

    fn decide(&mut self) {
        self.state = AgreementState::Decided;
        self.deadline = None;
    }

    fn send_view(&mut self, to: Target, wants_reply: bool) {
        let Some(list) = encode_ranks(&self.dead) else { return };
        let body = match self.state {
            AgreementState::Decided => Body::decided(&list),
            AgreementState::Undecided | AgreementState::Excluded => Body::view(&list, wants_reply),
        };
        let packet = Packet::new(self.id, self.epoch, self.own, body).encode(self.key.as_ref());
        self.transmits.push(Transmit { to, network: Network::First, packet });
    }
}
