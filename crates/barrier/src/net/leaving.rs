//! Leaving in order: which members a leaving one still serves, and which may wait for word of it.
//!
//! ```text
//!    a leaving member                                others
//!    leaves(first) ─────────── to all ─────────────▶ know not to wait for it in barrier `first`
//!                 ◀── ack(epoch) ──────────────────  those with which it has exchanged messages confirm
//!    leaves(first) ─── to those that have not ─────▶ again after a while, less and less often
//!    gone(first)   ─── to those that may ask later ▶ confirm nothing to it, and ask it nothing
//! ```
//! It stays until all members to which it has sent messages have passed its last barrier: they leave too, confirm
//! from a later barrier, or are dead. It also stays until all members that have sent messages to it know that it has
//! passed, since they stay for it. For the latter, a number of unanswered questions is enough: a member that answers
//! none of so many is gone, and needs nothing. An answer to a question of the barrier is not a confirmation: it may
//! be late, and its sender may not know yet that this member leaves. If nothing is lost, all this takes one round
//! trip.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vigie_detect::Instant;

use crate::{
    group::Rank,
    member::{Member, MemberConfig},
    packet::{Body, Packet, encode_ranks, is_view},
    schedule::{Network, Target},
};

/// The number of questions to a member that need not be served, after which it is believed gone. If it is not, and
/// all of them were lost, it waits for this member until the failure timeout: once in a hundred million times if
/// every third packet is lost.
const RETRIES_MAX: u32 = 16;

/// The longest time between two questions, as a multiple of the first: members that wait for an answer wait for only
/// a few of these intervals, however long the failure timeout is.
const INTERVALS_MAX: u32 = 8;

/// The time for which a member has not answered: the sum of the intervals after which it was asked.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    duration: Duration,
    retries: u32,
}

/// The state of a leaving member.
#[derive(Debug)]
struct Leaving {
    /// The first barrier that it does not enter.
    first: u32,
    /// Members that may miss its messages.
    served: BTreeSet<Rank>,
    /// Members that may wait for word that it misses none.
    informed: BTreeSet<Rank>,
    /// Members that must hear when it is gone.
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
        config: &MemberConfig,
    ) -> Self {
        Self {
            first,
            neighbours: receivers.union(&sources).copied().collect(),
            served: receivers,
            informed: sources,
            silent: BTreeMap::new(),
            interval: config.repeat_after,
            interval_max: config.interval_max().min(config.repeat_after * INTERVALS_MAX),
            silence_max: config.silence_max(),
            deadline: now.saturating_add(config.repeat_after),
        }
    }

    /// Returns whether no member needs this one any more.
    fn is_done(&self) -> bool {
        self.served.is_empty() && self.informed.is_empty()
    }

    /// Returns when [`handle_deadline`](Self::handle_deadline) is due.
    fn deadline(&self) -> Option<Instant> {
        (!self.is_done()).then_some(self.deadline)
    }

    /// A member enters that barrier next, or is in it. Returns whether this member no longer has a part in that
    /// barrier.
    fn passed(&mut self, rank: Rank, epoch: u32) -> bool {
        let is_late = epoch.wrapping_sub(self.first) < u32::MAX / 2;
        if is_late {
            self.served.remove(&rank);
        }
        is_late
    }

    /// A member leaves too: it wants no more messages, but may stay until it has heard of this one.
    fn mark_leaver(&mut self, rank: Rank, stays: bool) {
        self.silent.remove(&rank);
        self.served.remove(&rank);
        if !stays {
            self.informed.remove(&rank);
            self.neighbours.remove(&rank);
        }
    }

    /// If it is time, gives up members that have been silent for too long. Returns those to be told again that this
    /// member leaves, and on which of two networks.
    fn handle_deadline(&mut self, now: Instant) -> Vec<(Rank, Network)> {
        if now < self.deadline {
            return Vec::new();
        }
        let waiting: Vec<Rank> = self.served.union(&self.informed).copied().collect();
        let mut again = Vec::new();
        for rank in waiting {
            let silence = self.silent.entry(rank).or_default();
            // However late this is called, no member was asked for longer.
            silence.duration += self.interval;
            let is_needless = silence.retries >= RETRIES_MAX && !self.served.contains(&rank);
            if is_needless || self.silence_max.is_some_and(|most| silence.duration >= most) {
                self.served.remove(&rank);
                self.informed.remove(&rank);
                continue;
            }
            let second = silence.retries % 2 == 1;
            silence.retries += 1;
            again.push((rank, if second { Network::Second } else { Network::First }));
        }
        self.interval = (self.interval * 2).min(self.interval_max);
        self.deadline = now.saturating_add(self.interval);
        again
    }
}

/// The state that a member keeps about leaving members, including itself.
#[derive(Debug, Default)]
pub(super) struct LeaveTracker {
    /// Members that have left in order, with the first barrier that each does not enter.
    pub(super) leavers: BTreeMap<Rank, u32>,
    /// Those of them that wait for nothing.
    gone: BTreeSet<Rank>,
    /// This member's own leave.
    leaving: Option<Leaving>,
    /// Members to which a confirmation of their leave is due, and those to be told of this one's.
    confirm: BTreeSet<Rank>,
    tell: BTreeSet<Rank>,
    /// The network of the next confirmation: they alternate, as one may be down.
    network: Network,
}

impl LeaveTracker {
    /// Handles a packet about leaving. Returns whether it was one.
    #[inline]
    pub(super) fn take(&mut self, member: &Member, packet: &[u8]) -> bool {
        (self.leaving.is_some() || is_view(packet)) && self.take_cold(member, packet)
    }

    #[cold]
    fn take_cold(&mut self, member: &Member, packet: &[u8]) -> bool {
        let config = member.config();
        let Ok(packet) = Packet::parse(packet, config.key.as_ref()) else { return false };
        let (sender, epoch) = (packet.sender, packet.epoch);
        let is_other = sender != member.rank() && member.schedule().group().contains(sender);
        if packet.group != config.group || !is_other || !member.dead().is_empty() {
            return false;
        }

        if let Body::View { dead, wants_reply } = packet.body
            && dead.ranks().eq([sender])
        {
            let is_repeated = self.leavers.insert(sender, epoch).is_some();
            if !wants_reply {
                self.gone.insert(sender);
            } else if is_repeated || member.exchanges_with(sender) {
                // A member that repeats it waits for it, if only because of the schedule before a renewal.
                self.confirm.insert(sender);
            }
            if let Some(leaving) = &mut self.leaving {
                leaving.mark_leaver(sender, wants_reply);
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
            Body::LeaveAck => {
                leaving.informed.remove(&sender);
                leaving.passed(sender, epoch);
                true
            }
            // It answers a question of the last barrier, maybe late: its sender need not know that this member
            // leaves.
            Body::AliveReply { .. } => !member.is_inside(),
            Body::Nack { .. } => {
                let is_late = leaving.passed(sender, epoch);
                if is_late {
                    self.tell.insert(sender);
                }
                is_late
            }
            // The group has failed there, and needs nothing any more from a leaver.
            Body::View { dead, wants_reply } => {
                if wants_reply && dead.ranks().all(|rank| rank != member.rank()) {
                    self.tell.insert(sender);
                }
                leaving.mark_leaver(sender, false);
                true
            }
            Body::Decided { .. } => {
                leaving.mark_leaver(sender, false);
                true
            }
        }
    }

    /// The transport has seen the end of a member. Returns whether that needs no further handling.
    pub(super) fn end(&mut self, rank: Rank) -> bool {
        self.leaving.as_mut().map(|leaving| leaving.mark_leaver(rank, false)).is_some()
    }

    /// This member leaves; `before` is the member before its [renewal](super::engine::BarrierEngine::renew).
    pub(super) fn leave(&mut self, now: Instant, member: &Member, before: Option<&Member>) {
        let (mut receivers, mut sources) = member.neighbours();
        if let Some((more, others)) = before.map(Member::neighbours) {
            receivers.extend(more);
            sources.extend(others);
        }
        let entered = u32::from(member.is_inside());
        let first = member.epoch().wrapping_add(entered);
        let mut leaving = Leaving::new(now, first, (receivers, sources), member.config());
        for rank in self.leavers.keys() {
            leaving.mark_leaver(*rank, !self.gone.contains(rank));
        }
        self.leaving = Some(leaving);
    }

    /// Returns whether this member has left, and no member needs it any more.
    pub(super) fn is_done(&self) -> bool {
        self.leaving.as_ref().is_some_and(Leaving::is_done)
    }

    /// Returns when [`send_due`](Self::send_due) is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.leaving.as_ref().and_then(Leaving::deadline)
    }

    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.leaving.is_none() && self.confirm.is_empty()
    }

    /// Calls `send` with each packet to be sent now.
    #[cold]
    pub(super) fn send_due(
        &mut self,
        now: Instant,
        member: &Member,
        mut send: impl FnMut(Rank, Network, &[u8]),
    ) {
        let config = member.config();
        for rank in std::mem::take(&mut self.confirm) {
            let (epoch, own) = (member.epoch(), member.rank());
            let ack = Packet::new(config.group, epoch, own, Body::LeaveAck);
            send(rank, self.network, &ack.encode(config.key.as_ref()));
            self.network = match self.network {
                Network::First => Network::Second,
                Network::Second => Network::First,
            };
        }
        let Some(leaving) = &mut self.leaving else { return };
        let mut again = leaving.handle_deadline(now);
        again.extend(std::mem::take(&mut self.tell).into_iter().map(|rank| (rank, Network::First)));
        for (rank, network) in again {
            if let Some(packet) = encode_leave(member, leaving.first, true) {
                send(rank, network, &packet);
            }
        }
    }

    /// Returns the receivers of the final word that this member is gone: all if it has sent nothing yet.
    pub(super) fn final_targets(&self, member: &Member) -> Vec<Target> {
        let Some(leaving) = &self.leaving else { return vec![Target::Everyone] };
        if leaving.neighbours.len() * 2 > Rank(member.schedule().group().size()).index() {
            return vec![Target::Everyone];
        }
        leaving.neighbours.iter().copied().map(Target::Member).collect()
    }

    /// Returns the packet that announces this member's leave.
    pub(super) fn packet(&self, member: &Member, wants_reply: bool) -> Option<Vec<u8>> {
        let next = member.epoch().wrapping_add(u32::from(member.is_inside()));
        let first = self.leaving.as_ref().map_or(next, |leaving| leaving.first);
        encode_leave(member, first, wants_reply)
    }
}

/// A view in which a member names only itself announces its leave. The state machine would treat it as dead at once,
/// though messages of a barrier that it has entered may still be under way. If it wants a reply, it stays until it
/// has one.
fn encode_leave(member: &Member, first: u32, wants_reply: bool) -> Option<Vec<u8>> {
    let config = member.config();
    let list = encode_ranks(&BTreeSet::from([member.rank()]))?;
    let body = Body::view(&list, wants_reply);
    let packet = Packet::new(config.group, first, member.rank(), body);
    Some(packet.encode(config.key.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::GroupId;

    fn ranks(ranks: &[u32]) -> BTreeSet<Rank> {
        ranks.iter().copied().map(Rank).collect()
    }

    fn leaving(served: &[u32], informed: &[u32]) -> Leaving {
        let config = MemberConfig::new(GroupId(1));
        Leaving::new(Instant::from_nanos(0), 5, (ranks(served), ranks(informed)), &config)
    }

    /// Lets time pass until no member is waited for. Returns how long that takes, and how often each was asked.
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

    /// Goal: a member that may miss messages is waited for as long as a dead one, one that only waits for word for a
    /// few questions. Method: no member answers, with half of the failure timeout, 5 s, as the bound of silence.
    #[test]
    fn silence_ends_a_leave() {
        let (duration, asked) = give_up(&mut leaving(&[], &[1]));
        assert!(duration < Duration::from_millis(1500), "{duration:?}");
        assert_eq!(asked, BTreeMap::from([(Rank(1), RETRIES_MAX)]));
        let (duration, asked) = give_up(&mut leaving(&[1], &[2]));
        let most = Duration::from_secs(5);
        assert!(duration >= most && duration < most + Duration::from_millis(500), "{duration:?}");
        assert!(asked[&Rank(1)] > 20 && asked[&Rank(2)] == RETRIES_MAX, "{asked:?}");
    }

    /// Goal: each kind of evidence counts for what it proves, and no more. Method: one after the other, of one that is
    /// served and told.
    #[test]
    fn evidence_counts_for_what_it_proves() {
        let both = || leaving(&[1], &[1]);
        let mut one = both();
        assert!(!one.passed(Rank(1), 4), "it may be inside of the last barrier");
        assert_eq!((one.served.len(), one.informed.len()), (1, 1));
        assert!(one.passed(Rank(1), 5));
        assert_eq!((one.served.len(), one.informed.len()), (0, 1));
        let mut one = both();
        one.mark_leaver(Rank(1), true);
        assert_eq!((one.served.len(), one.informed.len()), (0, 1));
        let mut one = both();
        one.mark_leaver(Rank(1), false);
        assert!(one.is_done() && one.neighbours.is_empty());
    }

    /// Goal: epochs count round the corner. Method: the last barrier before it.
    #[test]
    fn epochs_go_round() {
        let config = MemberConfig::new(GroupId(1));
        let sets = (ranks(&[1]), ranks(&[]));
        let mut one = Leaving::new(Instant::from_nanos(0), 0, sets, &config);
        assert!(!one.passed(Rank(1), u32::MAX));
        assert!(one.passed(Rank(1), 0) && one.is_done());
    }
}
