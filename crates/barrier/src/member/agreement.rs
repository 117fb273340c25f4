//! How survivors agree on who they are.
//!
//! Everybody tells everybody whom it takes for dead, and takes up what it is told: these sets only grow, and a member
//! that is in the set of another that is alive for it is out. Whoever has heard its own set from all that are not in it
//! has decided, and from then on answers with that. This is safe as long as silence means death: for another to decide
//! otherwise, it would need the word of this one, which says nothing else any more. Should one more member die on the
//! way, so that some decide with it and others without, those that have decided answer the others, which take it over.
//!
//! Under [`Quorum::Majority`](super::Quorum::Majority) those that are left over from a smaller part than that have no say: nobody believes their
//! sets, they answer only each other, and once they agree they are told that they are too few. Sets only grow, so that
//! they stay too few, unless somebody that has decided takes them in. Two decisions with a quorum have a member in
//! common, and that one enters the barriers of one of them only.
//!
//! The name of the smaller group is made of the old name and of the dead. Its barriers succeed only among members that
//! have decided the same, whatever happened before.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use vigie_detect::Instant;

use super::{Transmit, settings::Settings, waiting::earlier};
use crate::{
    group::{Group, Rank},
    packet::{Body, DEAD_MAX, GroupId, Key, Packet, list},
    schedule::{Network, Target},
};

/// What came out of a packet or a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Nothing,
    /// More members are dead.
    More,
    /// All agree.
    Decided,
    MoreAndDecided,
    /// This member is out.
    Excluded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Undecided,
    Decided,
    /// The others go on without this one.
    Out,
}

#[derive(Debug)]
pub(super) struct Agreement {
    group: Group,
    own: Rank,
    id: GroupId,
    key: Option<Key>,
    /// The barrier that this member was in, or would have entered next: all have entered those before.
    epoch: u32,
    dead: BTreeSet<Rank>,
    /// What each other has said last.
    views: BTreeMap<Rank, BTreeSet<Rank>>,
    /// As in a wait for messages: how long others have not answered.
    silent: BTreeMap<Rank, Duration>,
    /// Of whom the transport has seen the end after the decision.
    late: BTreeSet<Rank>,
    standing: Standing,
    settings: Settings,
    interval_min: Duration,
    interval_max: Duration,
    silence_max: Option<Duration>,
    interval: Duration,
    deadline: Option<Instant>,
    transmits: Vec<Transmit>,
}

impl Agreement {
    pub(super) fn new(group: Group, own: Rank, epoch: u32, settings: &Settings) -> Self {
        Self {
            group,
            own,
            id: settings.group,
            key: settings.key.clone(),
            epoch,
            dead: BTreeSet::new(),
            views: BTreeMap::new(),
            silent: BTreeMap::new(),
            late: BTreeSet::new(),
            standing: Standing::Undecided,
            settings: settings.clone(),
            interval_min: settings.repeat_after,
            interval_max: settings.interval_max(),
            silence_max: settings.silence_max(),
            interval: settings.repeat_after,
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

    pub(super) fn is_out(&self) -> bool {
        self.standing == Standing::Out
    }

    /// Whether enough are left to go on.
    pub(super) fn has_quorum(&self) -> bool {
        self.settings.may_go_on(self.group, &self.dead)
    }

    /// Whether more members are dead than can be named.
    pub(super) fn is_hopeless(&self) -> bool {
        self.dead.len() > DEAD_MAX
    }

    /// Returns who is left, in order, and the name of their group, once that is decided.
    pub(super) fn outcome(&self) -> Option<(Vec<Rank>, GroupId)> {
        if self.standing != Standing::Decided {
            return None;
        }
        let survivors = self.group.ranks().filter(|rank| !self.dead.contains(rank)).collect();
        Some((survivors, self.id.without(&self.dead)))
    }

    /// Returns of whom the transport has seen the end after the decision.
    pub(super) const fn late(&self) -> &BTreeSet<Rank> {
        &self.late
    }

    pub(super) fn take_transmits(&mut self) -> Vec<Transmit> {
        mem::take(&mut self.transmits)
    }

    /// Members are dead, as this one has found out by itself.
    pub(super) fn bury(&mut self, now: Instant, ranks: &BTreeSet<Rank>) -> Heard {
        match self.standing {
            Standing::Undecided => self.grow(now, ranks),
            Standing::Decided => {
                self.late.extend(ranks);
                Heard::Nothing
            }
            Standing::Out => Heard::Nothing,
        }
    }

    /// The clock has gone back by so much.
    pub(super) fn set_back(&mut self, back: Duration) {
        self.deadline = self.deadline.map(|deadline| earlier(deadline, back));
    }

    /// Another member has said who is dead.
    pub(super) fn view(
        &mut self,
        now: Instant,
        sender: Rank,
        dead: BTreeSet<Rank>,
        wants_reply: bool,
    ) -> Heard {
        if self.standing == Standing::Out {
            return Heard::Nothing;
        }
        if dead.contains(&self.own) {
            return self.shun(sender);
        }
        if self.standing == Standing::Decided {
            if wants_reply || dead != self.dead {
                self.inform(sender);
            }
            return Heard::Nothing;
        }
        self.silent.remove(&sender);
        let heard = {
            let view = self.views.entry(sender).or_default();
            // A view that was overtaken by a later one is no news.
            if dead.is_superset(view) {
                view.clone_from(&dead);
            }
            self.grow(now, &dead)
        };
        if wants_reply {
            self.inform(sender);
        }
        heard
    }

    /// Another member has decided.
    pub(super) fn decided(&mut self, sender: Rank, dead: BTreeSet<Rank>) -> Heard {
        if dead.contains(&self.own) && self.standing == Standing::Undecided {
            return self.shun(sender);
        }
        if self.standing != Standing::Undecided || dead.contains(&sender) {
            return Heard::Nothing;
        }
        let is_news = self.dead != dead;
        self.dead = dead;
        self.decide();
        if is_news { Heard::MoreAndDecided } else { Heard::Decided }
    }

    /// Asks again those that have not confirmed, and finds out who is dead among them.
    pub(super) fn handle_deadline(&mut self, now: Instant) -> Heard {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Heard::Nothing;
        }
        let waiting: Vec<Rank> =
            self.others().filter(|rank| self.views.get(rank) != Some(&self.dead)).collect();
        let mut dead = BTreeSet::new();
        for rank in &waiting {
            let silent = self.silent.entry(*rank).or_default();
            *silent += self.interval;
            if self.silence_max.is_some_and(|most| *silent >= most) {
                dead.insert(*rank);
            }
        }
        if !dead.is_empty() {
            return self.grow(now, &dead);
        }
        self.interval = (self.interval * 2).min(self.interval_max);
        self.deadline = Some(now.saturating_add(self.interval));
        for rank in waiting {
            self.say(Target::Member(rank), true);
        }
        Heard::Nothing
    }

    /// Tells a member how things stand.
    pub(super) fn inform(&mut self, rank: Rank) {
        // Those who may go on without this one are not to be disturbed.
        if self.dead.contains(&rank) && !self.has_quorum() {
            return;
        }
        self.say(Target::Member(rank), false);
    }

    /// Tells the outcome to a member of the group, if it is one.
    pub(super) fn answer(&mut self, rank: Rank) -> bool {
        let is_other = rank != self.own && self.group.contains(rank);
        if is_other {
            self.inform(rank);
        }
        is_other
    }

    /// Leaves the group, and says so.
    pub(super) fn leave(&mut self) {
        if self.standing == Standing::Undecided {
            self.dead.insert(self.own);
            self.say(Target::Everyone, false);
        }
        self.standing = Standing::Out;
        self.deadline = None;
    }

    /// Another member takes this one for dead: who is dead itself has no say.
    fn shun(&mut self, sender: Rank) -> Heard {
        if self.dead.contains(&sender) {
            return Heard::Nothing;
        }
        self.standing = Standing::Out;
        self.deadline = None;
        self.transmits.clear();
        Heard::Excluded
    }

    fn others(&self) -> impl Iterator<Item = Rank> {
        self.group.ranks().filter(|rank| *rank != self.own && !self.dead.contains(rank))
    }

    /// Takes up who is dead, and tells all others if that is news.
    fn grow(&mut self, now: Instant, dead: &BTreeSet<Rank>) -> Heard {
        let is_news = !dead.is_subset(&self.dead);
        if is_news {
            self.dead.extend(dead);
            self.say(Target::Everyone, false);
            self.interval = self.interval_min;
            self.deadline = Some(now.saturating_add(self.interval)).filter(|_| !self.is_hopeless());
        }
        let is_decided = !self.is_hopeless()
            && self.others().all(|rank| self.views.get(&rank) == Some(&self.dead));
        if is_decided {
            self.decide();
        }
        match (is_news, is_decided) {
            (false, false) => Heard::Nothing,
            (true, false) => Heard::More,
            (false, true) => Heard::Decided,
            (true, true) => Heard::MoreAndDecided,
        }
    }

    fn decide(&mut self) {
        self.standing = Standing::Decided;
        self.deadline = None;
    }

    fn say(&mut self, to: Target, wants_reply: bool) {
        let Some(list) = list(&self.dead) else { return };
        let body = match self.standing {
            Standing::Decided => Body::decided(&list),
            Standing::Undecided | Standing::Out => Body::view(&list, wants_reply),
        };
        let packet = Packet::new(self.id, self.epoch, self.own, body).encode(self.key.as_ref());
        self.transmits.push(Transmit { to, network: Network::First, packet });
    }
}
