//! Leaving in order: whom a member that leaves still serves, and who may wait for word of it.
//!
//! ```text
//!    who leaves                                      others
//!    leaves(first) ─────────── to all ─────────────▶ know whom not to wait for in barrier `first`
//!                 ◀── here(epoch) ─────────────────  those with whom it has exchanged messages confirm
//!    leaves(first) ─── to those that have not ─────▶ again after a while, less and less often
//!    gone(first)   ─── to those that may ask later ▶ confirm nothing to it, and ask it nothing
//! ```
//! It stays until all to whom it has sent messages have passed its last barrier: they leave too, confirm so from a later
//! barrier, or are dead. And it stays until all that have sent messages to it know that it has passed: they stay for it.
//! Of these a few questions without an answer are enough, since nothing can go wrong then: they have gone, or will find
//! that out. Where nothing is lost, all this takes one round trip.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vigie_detect::Instant;

use crate::{
    group::Rank,
    member::{Member, Settings},
    packet::{Body, Packet, list, may_be_view},
    schedule::{Network, Target},
};

/// Questions to one who need not be served, after which it is taken for gone.
const QUESTIONS_MAX: u32 = 4;

/// How long one has not answered: the sum of the intervals after which it was asked.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    lasts: Duration,
    questions: u32,
}

/// The state of one that leaves.
#[derive(Debug)]
struct Leaving {
    /// The first barrier that it does not enter.
    first: u32,
    /// Who may miss its messages.
    served: BTreeSet<Rank>,
    /// Who may wait for word that it misses none.
    told: BTreeSet<Rank>,
    /// Who is to hear that it has gone.
    neighbours: BTreeSet<Rank>,
    silent: BTreeMap<Rank, Silence>,
    interval: Duration,
    interval_max: Duration,
    silence_max: Option<Duration>,
    deadline: Instant,
}

impl Leaving {
    fn new(
        now: Instant,
        first: u32,
        (receivers, sources): (BTreeSet<Rank>, BTreeSet<Rank>),
        settings: &Settings,
    ) -> Self {
        Self {
            first,
            neighbours: receivers.union(&sources).copied().collect(),
            served: receivers,
            told: sources,
            silent: BTreeMap::new(),
            interval: settings.repeat_after,
            interval_max: settings.interval_max(),
            silence_max: settings.silence_max(),
            deadline: now.saturating_add(settings.repeat_after),
        }
    }

    /// Returns whether nobody needs this member any more.
    fn is_done(&self) -> bool {
        self.served.is_empty() && self.told.is_empty()
    }

    /// Returns when [`handle_deadline`](Self::handle_deadline) is due.
    fn deadline(&self) -> Option<Instant> {
        (!self.is_done()).then_some(self.deadline)
    }

    /// A member enters that barrier next, or is in it. Returns whether this one has no part in that any more.
    fn passed(&mut self, rank: Rank, epoch: u32) -> bool {
        let is_late = epoch.wrapping_sub(self.first) < u32::MAX / 2;
        if is_late {
            self.served.remove(&rank);
        }
        is_late
    }

    /// A member leaves too: it wants no more messages, but may stay until it has heard of this one.
    fn leaves(&mut self, rank: Rank, stays: bool) {
        self.silent.remove(&rank);
        self.served.remove(&rank);
        if !stays {
            self.told.remove(&rank);
            self.neighbours.remove(&rank);
        }
    }

    /// If it is time, gives up those that have been silent for too long. Returns whom to tell again that this member
    /// leaves, and by which of two networks.
    fn handle_deadline(&mut self, now: Instant) -> Vec<(Rank, Network)> {
        if now < self.deadline {
            return Vec::new();
        }
        let waiting: Vec<Rank> = self.served.union(&self.told).copied().collect();
        let mut again = Vec::new();
        for rank in waiting {
            let silence = self.silent.entry(rank).or_default();
            // However late this is called, nobody was asked for longer.
            silence.lasts += self.interval;
            let is_needless = silence.questions >= QUESTIONS_MAX && !self.served.contains(&rank);
            if is_needless || self.silence_max.is_some_and(|most| silence.lasts >= most) {
                self.served.remove(&rank);
                self.told.remove(&rank);
                continue;
            }
            let second = silence.questions % 2 == 1;
            silence.questions += 1;
            again.push((rank, if second { Network::Second } else { Network::First }));
        }
        self.interval = (self.interval * 2).min(self.interval_max);
        self.deadline = now.saturating_add(self.interval);
        again
    }
}

/// What a member knows of those who leave, itself among them.
#[derive(Debug, Default)]
pub(super) struct Farewells {
    /// Who has left in order, and the first barrier that it does not enter.
    pub(super) leavers: BTreeMap<Rank, u32>,
    /// Who of them waits for nothing.
    gone: BTreeSet<Rank>,
    /// This member itself.
    leaving: Option<Leaving>,
    /// To whom it is to be confirmed that it leaves, and who is to be told of this one.
    confirm: BTreeSet<Rank>,
    tell: BTreeSet<Rank>,
    /// By which network confirmations go: by both in turn, as one may be down.
    network: Network,
}

impl Farewells {
    /// Takes a packet that only they are for. Returns whether it was.
    #[inline]
    pub(super) fn take(&mut self, member: &Member, packet: &[u8]) -> bool {
        (self.leaving.is_some() || may_be_view(packet)) && self.take_seldom(member, packet)
    }

    #[cold]
    fn take_seldom(&mut self, member: &Member, packet: &[u8]) -> bool {
        let settings = member.settings();
        let Ok(packet) = Packet::parse(packet, settings.key.as_ref()) else { return false };
        let (sender, epoch) = (packet.sender, packet.epoch);
        let is_other = sender != member.rank() && member.schedule().group().contains(sender);
        if packet.group != settings.group || !is_other || !member.dead().is_empty() {
            return false;
        }
        if let Body::View { dead, wants_reply } = packet.body
            && dead.ranks().eq([sender])
        {
            let is_repeated = self.leavers.insert(sender, epoch).is_some();
            if !wants_reply {
                self.gone.insert(sender);
            } else if is_repeated || member.exchanges_with(sender) {
                // Who repeats it waits for it, if only because of the schedule before a renewal.
                self.confirm.insert(sender);
            }
            if let Some(leaving) = &mut self.leaving {
                leaving.leaves(sender, wants_reply);
            }
            return true;
        }
        let Some(leaving) = &mut self.leaving else { return false };
        leaving.silent.remove(&sender);
        match packet.body {
            Body::Signal { .. } => {
                leaving.passed(sender, epoch);
                false
            }
            Body::Here { .. } => {
                leaving.told.remove(&sender);
                leaving.passed(sender, epoch);
                !member.is_inside()
            }
            Body::Ask { .. } => {
                let is_late = leaving.passed(sender, epoch);
                if is_late {
                    self.tell.insert(sender);
                }
                is_late
            }
            // The group has failed there, and needs nothing any more of one that is not a member.
            Body::View { dead, wants_reply } => {
                if wants_reply && dead.ranks().all(|rank| rank != member.rank()) {
                    self.tell.insert(sender);
                }
                leaving.leaves(sender, false);
                true
            }
            Body::Decided { .. } => {
                leaving.leaves(sender, false);
                true
            }
        }
    }

    /// The transport has seen the end of a member. Returns whether that is of no interest otherwise.
    pub(super) fn end(&mut self, rank: Rank) -> bool {
        self.leaving.as_mut().map(|leaving| leaving.leaves(rank, false)).is_some()
    }

    /// This member leaves; `before` is the one that it was before its [renewal](super::engine::Engine::renew).
    pub(super) fn leave(&mut self, now: Instant, member: &Member, before: Option<&Member>) {
        let (mut receivers, mut sources) = member.neighbours();
        if let Some((more, others)) = before.map(Member::neighbours) {
            receivers.extend(more);
            sources.extend(others);
        }
        let entered = u32::from(member.is_inside());
        let first = member.epoch().wrapping_add(entered);
        let mut leaving = Leaving::new(now, first, (receivers, sources), member.settings());
        for rank in self.leavers.keys() {
            leaving.leaves(*rank, !self.gone.contains(rank));
        }
        self.leaving = Some(leaving);
    }

    /// Returns whether this member has left, and nobody needs it any more.
    pub(super) fn is_done(&self) -> bool {
        self.leaving.as_ref().is_some_and(Leaving::is_done)
    }

    /// Returns when [`say`](Self::say) is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.leaving.as_ref().and_then(Leaving::deadline)
    }

    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.leaving.is_none() && self.confirm.is_empty()
    }

    /// Calls `send` with each packet that is to be sent now.
    #[cold]
    pub(super) fn say(
        &mut self,
        now: Instant,
        member: &Member,
        mut send: impl FnMut(Rank, Network, &[u8]),
    ) {
        let settings = member.settings();
        for rank in std::mem::take(&mut self.confirm) {
            let here = Body::Here { attempt: 0 };
            let here = Packet::new(settings.group, member.epoch(), member.rank(), here);
            send(rank, self.network, &here.encode(settings.key.as_ref()));
            self.network = match self.network {
                Network::First => Network::Second,
                Network::Second => Network::First,
            };
        }
        let Some(leaving) = &mut self.leaving else { return };
        let mut again = leaving.handle_deadline(now);
        again.extend(std::mem::take(&mut self.tell).into_iter().map(|rank| (rank, Network::First)));
        for (rank, network) in again {
            if let Some(packet) = leaves(member, leaving.first, true) {
                send(rank, network, &packet);
            }
        }
    }

    /// Returns to whom this member is to say that it has gone: to all if it has said nothing yet.
    pub(super) fn last_words(&self, member: &Member) -> Vec<Target> {
        let Some(leaving) = &self.leaving else { return vec![Target::Everyone] };
        if leaving.neighbours.len() * 2 > Rank(member.schedule().group().size()).index() {
            return vec![Target::Everyone];
        }
        leaving.neighbours.iter().copied().map(Target::Member).collect()
    }

    /// Returns the packet by which this member says that it leaves.
    pub(super) fn packet(&self, member: &Member, wants_reply: bool) -> Option<Vec<u8>> {
        let next = member.epoch().wrapping_add(u32::from(member.is_inside()));
        let first = self.leaving.as_ref().map_or(next, |leaving| leaving.first);
        leaves(member, first, wants_reply)
    }
}

/// A member that names itself alone leaves; the machine would bury it at once, though messages of a barrier that it has
/// entered may still be on their way. If it wants a reply, it stays until it has that.
fn leaves(member: &Member, first: u32, wants_reply: bool) -> Option<Vec<u8>> {
    let settings = member.settings();
    let list = list(&BTreeSet::from([member.rank()]))?;
    let body = Body::view(&list, wants_reply);
    let packet = Packet::new(settings.group, first, member.rank(), body);
    Some(packet.encode(settings.key.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::GroupId;

    fn ranks(ranks: &[u32]) -> BTreeSet<Rank> {
        ranks.iter().copied().map(Rank).collect()
    }

    fn leaving(served: &[u32], told: &[u32]) -> Leaving {
        let settings = Settings::new(GroupId(1));
        Leaving::new(Instant::from_nanos(0), 5, (ranks(served), ranks(told)), &settings)
    }

    /// Lets time pass until nobody is waited for. Returns how long that takes, and how often each was asked.
    fn give_up(leaving: &mut Leaving) -> (Duration, BTreeMap<Rank, u32>) {
        let mut asked = BTreeMap::new();
        let mut last = Instant::from_nanos(0);
        while let Some(due) = leaving.deadline() {
            assert!(due > last, "time goes on");
            last = due;
            for (rank, _) in leaving.handle_deadline(due) {
                *asked.entry(rank).or_default() += 1;
            }
        }
        (last - Instant::from_nanos(0), asked)
    }

    /// Goal: who may miss messages is waited for as long as the dead are, who only waits for word a few questions long.
    /// Method: nobody answers, with half of the failure timeout, 5 s, as the bound of silence.
    #[test]
    fn silence_ends_a_leave() {
        let (lasts, asked) = give_up(&mut leaving(&[], &[1]));
        assert!(lasts < Duration::from_millis(500), "{lasts:?}");
        assert_eq!(asked, BTreeMap::from([(Rank(1), QUESTIONS_MAX)]));
        let (lasts, asked) = give_up(&mut leaving(&[1], &[2]));
        let most = Duration::from_secs(5);
        assert!(lasts >= most && lasts < most + Duration::from_millis(500), "{lasts:?}");
        assert!(asked[&Rank(1)] > 20 && asked[&Rank(2)] == QUESTIONS_MAX, "{asked:?}");
    }

    /// Goal: each kind of evidence counts for what it proves, and no more. Method: one after the other, of one that is
    /// served and told.
    #[test]
    fn evidence_counts_for_what_it_proves() {
        let both = || leaving(&[1], &[1]);
        let mut one = both();
        assert!(!one.passed(Rank(1), 4), "it may be inside of the last barrier");
        assert_eq!((one.served.len(), one.told.len()), (1, 1));
        assert!(one.passed(Rank(1), 5));
        assert_eq!((one.served.len(), one.told.len()), (0, 1));
        let mut one = both();
        one.leaves(Rank(1), true);
        assert_eq!((one.served.len(), one.told.len()), (0, 1));
        let mut one = both();
        one.leaves(Rank(1), false);
        assert!(one.is_done() && one.neighbours.is_empty());
    }

    /// Goal: epochs count round the corner. Method: the last barrier before it.
    #[test]
    fn epochs_go_round() {
        let settings = Settings::new(GroupId(1));
        let sets = (ranks(&[1]), ranks(&[]));
        let mut one = Leaving::new(Instant::from_nanos(0), 0, sets, &settings);
        assert!(!one.passed(Rank(1), u32::MAX));
        assert!(one.passed(Rank(1), 0) && one.is_done());
    }
}
