//! One member as a state machine: packets and time in; packets, deadlines and events out.
//!
//! ```text
//!              1 enter                    2 last step done: Exited
//!   Outside ─────────────▶ Inside ───────────────────────────────▶ Outside, one epoch later
//!      │                     │
//!      └──────────┬──────────┘ 3 a member is dead: Failed
//!                 ▼
//!              Failing ──────▶ Agreed ──────▶ Outside, in the smaller group
//!                 │  4 all      5 shrink
//!                 │  survivors say the same: Agreed
//!                 └─▶ Excluded: the others believe that this member is dead
//! ```
//! 1 [`Member::enter`]; 2 `advance`; 3 `fail`; 4 in `agreement`; 5 [`Member::shrink`].
//!
//! # Recovery
//! Messages of a barrier never overtake a barrier [eth-barrier, §2.3]: a member that has entered epoch e + 1 has left e, so all
//! have entered e. A member in epoch e therefore only receives packets of e − 1 (requests from members that have not left it),
//! e, and e + 1 (messages from members that have left e before it). Two colours, the lowest bit of the epoch, separate what it
//! stores. Packets carry 32 bits of the epoch, so packets that the network has held back for long are recognised as old.
//!
//! While nothing is lost, only the schedule's messages are sent: by entering the next barrier, a member acknowledges everything
//! before. A member that waits for longer than [`MemberConfig::repeat_after`] asks for the messages that it misses, at
//! growing intervals. A member that has sent such a message sends it again to the one that asks; one that has not says that it
//! is alive, and sends the message twice when it gets that far. A lossy network rarely answers, so a few questions in a row
//! without an answer do not lengthen the interval, nor does a question after which something came. Each member keeps what it
//! has sent in this barrier and in the last one. If a schedule has two networks, questions and their answers alternate between
//! them, since one may be down.
//!
//! # Failures
//! A member is dead if it does not answer for half of [`MemberConfig::failure_timeout`] while another one waits for its
//! message; transports that know earlier [report](Member::report_dead) it. Silence is counted in intervals between questions,
//! not in time: a clock that jumps, or a process that was stopped, kills no member. A clock that leaps ahead costs one
//! question; one that goes back takes the deadlines along as soon as the state machine is called. To be believed dead wrongly,
//! a member must be silent for that many questions, the last of which come a 64th of the timeout apart, or the clock must leap
//! as often. A host that is suspended for longer than the timeout is really silent: the others continue without it, and tell it
//! when it is back. A member that learns of a death tells all others, and asks those that do not confirm; the rest of the
//! timeout is for this. If any member leaves a barrier successfully, all have entered it, even if others then learn of a
//! failure instead of leaving. After a failure the group is unusable until its survivors have agreed on who is left, which they
//! do on their own, and each of them has [shrunk](Member::shrink) its member.
//!
//! A member must be driven (packets delivered, deadlines handled) while it is outside the barrier too: it answers for its
//! process. If the network splits, each part believes the others dead; the [`Quorum`] decides which part may continue.

mod agreement;
mod config;
mod counters;
mod plan;
mod retry;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use thiserror::Error;
use vigie_detect::Instant;

use self::{
    agreement::{Agreement, AgreementUpdate},
    plan::{MemberPlan, PlanStep},
    retry::RetryTimer,
};
pub use self::{
    config::{MemberConfig, MemberError, Quorum},
    counters::{DropReason, MemberCounters},
};
use crate::{
    checker::Join,
    group::Rank,
    packet::{Body, DEAD_MAX, Packet},
    schedule::{Network, Round, Schedule, Target},
};

/// A clock that goes back by less counts as standing still: threads that read it one after the other may arrive in a different
/// order.
const BACK_MAX: Duration = Duration::from_secs(1);

/// A packet to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transmit {
    /// The receivers. Without multicast, "everyone" is each other member in turn.
    pub to: Target,
    /// The network.
    pub network: Network,
    /// Its bytes.
    pub packet: Vec<u8>,
}

/// An event of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// All members have entered the barrier of that epoch, and this member has left it.
    Exited {
        /// The epoch, counted from 0, wrapping around.
        epoch: u32,
        /// The values of all members, reduced; empty without a reduction.
        value: Vec<u8>,
    },
    /// Members are dead, and the group is unusable. Reported again when more deaths are known.
    Failed {
        /// All members known to be dead, in order.
        ranks: Vec<Rank>,
        /// The evidence for the latest death.
        reason: DeathReason,
    },
    /// The survivors agree on who is left: the group can be shrunk.
    Agreed {
        /// The remaining ranks, in order: their indices are their ranks in the smaller group.
        survivors: Vec<Rank>,
    },
    /// The remaining members agree on who is left, and are too few for a group of their own: the others may continue without
    /// them.
    Minority {
        /// The remaining members.
        survivors: Vec<Rank>,
    },
}

/// The evidence that a member is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeathReason {
    /// It has not answered.
    Silent,
    /// The transport has seen its end.
    Reported,
    /// It has announced that it leaves.
    Left,
    /// Another member has reported it.
    Told,
    /// The others believe that this member itself is dead; the only rank is its own.
    Excluded,
}

/// A member cannot enter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnterError {
    /// It has entered, and not left yet.
    #[error("this member is inside the barrier: it can enter the next one when it has left")]
    Inside,
    /// Members are dead.
    #[error("members are dead ({}): shrink the group, or end", names(.ranks))]
    Failed {
        /// All members known to be dead, in order.
        ranks: Vec<Rank>,
    },
    /// The others believe that this member is dead, or it has left.
    #[error("this member no longer belongs to the group")]
    Excluded,
    /// The value's length differs from the reduction's.
    #[error("a value of {found} bytes, where all members have {expected}")]
    Value {
        /// The required length.
        expected: usize,
        /// The given length.
        found: usize,
    },
}

/// A group cannot shrink.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShrinkError {
    /// No member is dead.
    #[error("no member is dead: there is nothing to shrink")]
    Whole,
    /// The survivors have not agreed yet.
    #[error("the survivors have not agreed yet: wait for `Event::Agreed`")]
    Undecided,
    /// The others believe that this member is dead, or it has left.
    #[error("this member no longer belongs to the group")]
    Excluded,
    /// Too few members are left, while the others may have formed a smaller group.
    #[error(
        "{survivors} of the first {size} members are left, and the others may go on without them: form a new group, or \
         let any number go on (`Quorum::Any`)"
    )]
    Minority {
        /// The number of members that are left.
        survivors: u32,
        /// The size of the group when it was formed: more than half of it is enough, or the half with its rank 0.
        size: u32,
    },
    /// More members are dead than a packet can name.
    #[error("more than {DEAD_MAX} members are dead: form a new group")]
    TooMany,
    /// The schedule's size differs from the number of survivors.
    #[error("a schedule for {found} members, but {expected} have survived")]
    Size {
        /// The number of survivors.
        expected: u32,
        /// The size of the schedule.
        found: u32,
    },
    /// The schedule and the settings do not fit together.
    #[error(transparent)]
    Member(#[from] MemberError),
}

fn names(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")
}

const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Member>();
};

#[derive(Debug)]
enum Phase {
    Outside,
    /// Its present step, and the value as far as it is known.
    Inside {
        step: usize,
        value: Box<[u8]>,
    },
    Failing(Box<Agreement>),
}

/// The stored messages of the barriers of one colour.
#[derive(Clone, Debug)]
struct Colour {
    /// By index of the plan's sources: the messages that have arrived.
    arrived: Vec<Option<Box<[u8]>>>,
    /// By index of the plan's sends: the messages that were sent.
    sent: Vec<Option<Box<[u8]>>>,
}

/// One member of a group.
#[derive(Debug)]
pub struct Member {
    schedule: Arc<Schedule>,
    rank: Rank,
    config: MemberConfig,
    plan: MemberPlan,
    /// The barrier that it is in, or enters next.
    epoch: u32,
    phase: Phase,
    colours: [Colour; 2],
    retry_timer: RetryTimer,
    now: Instant,
    outbox: VecDeque<Transmit>,
    events: VecDeque<Event>,
    counters: MemberCounters,
    /// The agreement of the previous, larger group: others may still ask for its outcome.
    previous_agreement: Option<Box<Agreement>>,
    /// Members that have asked in this barrier for a message that was not sent yet.
    deferred_replies: BTreeSet<Rank>,
}

impl Member {
    /// Creates the member with that rank, outside the first barrier. All members need the same schedule and settings.
    ///
    /// The schedule must be a barrier: for schedules of your own, [`prove`](crate::checker::prove) checks that once.
    ///
    /// # Errors
    /// [`MemberError`] if the rank is not in the group, a setting is out of range, or the schedule cannot carry the reduction.
    pub fn new(
        schedule: Arc<Schedule>,
        rank: Rank,
        config: MemberConfig,
    ) -> Result<Self, MemberError> {
        config.check()?;
        let plan = MemberPlan::new(&schedule, rank, config.reduction.as_ref())?;
        let colour =
            Colour { arrived: vec![None; plan.sources.len()], sent: vec![None; plan.sends.len()] };
        Ok(Self {
            retry_timer: RetryTimer::new(&config),
            schedule,
            rank,
            config,
            plan,
            epoch: 0,
            phase: Phase::Outside,
            colours: [colour.clone(), colour],
            now: Instant::from_nanos(0),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            counters: MemberCounters::default(),
            previous_agreement: None,
            deferred_replies: BTreeSet::new(),
        })
    }

    /// Returns its rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns its settings; shrinking changes the group's name.
    pub(crate) const fn config(&self) -> &MemberConfig {
        &self.config
    }

    /// Returns its schedule.
    #[must_use]
    pub const fn schedule(&self) -> &Arc<Schedule> {
        &self.schedule
    }

    /// Returns the epoch that it is in, or enters next.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns whether it has entered and not left yet.
    #[must_use]
    pub const fn is_inside(&self) -> bool {
        matches!(self.phase, Phase::Inside { .. })
    }

    /// Returns how many steps of its schedule are done in the present barrier; `None` outside.
    #[must_use]
    pub const fn steps_done(&self) -> Option<usize> {
        match &self.phase {
            Phase::Inside { step, .. } => Some(*step),
            Phase::Outside | Phase::Failing(_) => None,
        }
    }

    /// Returns the members that it sends messages to, and those that it gets messages from.
    pub(crate) fn neighbours(&self) -> (BTreeSet<Rank>, BTreeSet<Rank>) {
        let others = self.schedule.group().ranks().filter(|rank| *rank != self.rank);
        let is_sent = |rank: &Rank| {
            let is_for = |to| to == Target::Everyone || to == Target::Member(*rank);
            self.plan.sends.iter().any(|send| is_for(send.to))
        };
        let sources = self.plan.sources.iter().map(|source| source.rank);
        (others.filter(is_sent).collect(), sources.collect())
    }

    /// Returns whether it sends messages to that member, or gets some from it.
    pub(crate) fn exchanges_with(&self, rank: Rank) -> bool {
        let is_for = |to| to == Target::Everyone || to == Target::Member(rank);
        self.plan.sends.iter().any(|send| is_for(send.to))
            || self.plan.sources.iter().any(|source| source.rank == rank)
    }

    /// Returns what it has counted.
    #[must_use]
    pub const fn counters(&self) -> &MemberCounters {
        &self.counters
    }

    /// Returns the members known to be dead, in order.
    #[must_use]
    pub fn dead(&self) -> Vec<Rank> {
        match &self.phase {
            Phase::Failing(agreement) => agreement.dead().iter().copied().collect(),
            Phase::Outside | Phase::Inside { .. } => Vec::new(),
        }
    }

    /// Enters the barrier, with a value if there is a reduction: the arrival of a split-phase barrier. It has left when
    /// [`Event::Exited`] comes, which may be at once.
    ///
    /// # Errors
    /// [`EnterError`] if it is inside already, the group has failed, or the value's length differs from the group's.
    pub fn enter(&mut self, now: Instant, value: &[u8]) -> Result<(), EnterError> {
        self.observe_clock(now);
        match &self.phase {
            Phase::Inside { .. } => return Err(EnterError::Inside),
            Phase::Failing(agreement) if agreement.is_excluded() => {
                return Err(EnterError::Excluded);
            }
            Phase::Failing(_) => return Err(EnterError::Failed { ranks: self.dead() }),
            Phase::Outside => {}
        }
        let expected = self.config.value_bytes();
        if value.len() != expected {
            return Err(EnterError::Value { expected, found: value.len() });
        }
        self.phase = Phase::Inside { step: 0, value: value.into() };
        self.retry_timer.start(self.now);
        self.advance();
        Ok(())
    }

    /// Handles a packet that has arrived.
    ///
    /// # Errors
    /// [`DropReason`] says why it was not useful; it is counted, and you need not do anything.
    pub fn receive(&mut self, now: Instant, packet: &[u8]) -> Result<(), DropReason> {
        self.observe_clock(now);
        let result = self.handle_packet(packet);
        match result {
            Ok(()) => self.counters.accepted += 1,
            Err(why) => self.counters.count(why),
        }
        result
    }

    /// Returns the next packet to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when [`Self::handle_deadline`] is due, if ever.
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Outside => None,
            Phase::Inside { .. } => self.retry_timer.deadline(),
            Phase::Failing(agreement) => agreement.deadline(),
        }
    }

    /// Does what is due, if anything.
    pub fn handle_deadline(&mut self, now: Instant) {
        self.observe_clock(now);
        match &mut self.phase {
            Phase::Outside => {}
            Phase::Inside { .. } => self.send_nacks(),
            Phase::Failing(agreement) => {
                let update = agreement.handle_deadline(self.now);
                self.apply_update(update, DeathReason::Silent);
            }
        }
    }

    /// Reports on behalf of the transport that a member is dead. Ignored for ranks outside the group and its own.
    pub fn report_dead(&mut self, now: Instant, rank: Rank) {
        self.observe_clock(now);
        if rank != self.rank && self.schedule.group().contains(rank) {
            self.fail(&[rank].into(), DeathReason::Reported);
        }
    }

    /// Leaves the group for good, and tells the others once, so that they need not find out on their own.
    pub fn leave(&mut self, now: Instant) {
        self.observe_clock(now);
        let own = BTreeSet::from([self.rank]);
        self.fail_quietly(&own);
        self.flush();
    }

    /// Becomes a member of the survivors' group, outside its first barrier. As long as it lives, it answers members that have
    /// not agreed yet. Its rank is its index among the [survivors](Event::Agreed).
    ///
    /// # Errors
    /// [`ShrinkError`] if no member is dead, the survivors have not agreed, or the schedule has another size.
    pub fn shrink(&mut self, schedule: Arc<Schedule>) -> Result<(), ShrinkError> {
        let Phase::Failing(agreement) = &self.phase else { return Err(ShrinkError::Whole) };
        if agreement.is_excluded() {
            return Err(ShrinkError::Excluded);
        }
        if agreement.has_too_many_dead() {
            return Err(ShrinkError::TooMany);
        }
        let Some((survivors, id)) = agreement.outcome() else { return Err(ShrinkError::Undecided) };
        let expected = u32::try_from(survivors.len()).unwrap_or(u32::MAX);
        if !agreement.has_quorum() {
            let size = self.config.size_at_first(self.schedule.group());
            return Err(ShrinkError::Minority { survivors: expected, size });
        }
        let found = schedule.group().size();
        if expected != found {
            return Err(ShrinkError::Size { expected, found });
        }
        let place = survivors.iter().position(|rank| *rank == self.rank);
        let place = place.and_then(|place| u32::try_from(place).ok());
        let rank = Rank(place.ok_or(ShrinkError::Excluded)?);
        let mut config = self.config.clone();
        config.group = id;
        config.lost += agreement.dead().len();
        config.has_first &= !agreement.dead().contains(&Rank(0));
        let mut smaller = Self::new(schedule, rank, config)?;
        smaller.now = self.now;
        smaller.counters = self.counters;
        // Packets that are not sent yet are for the larger group, with its ranks.
        smaller.events = std::mem::take(&mut self.events);
        let larger = std::mem::replace(self, smaller);
        if let Phase::Failing(agreement) = larger.phase {
            let place = |rank: &Rank| survivors.iter().position(|survivor| survivor == rank);
            let late: Vec<usize> = agreement.late_dead().iter().filter_map(place).collect();
            self.previous_agreement = Some(agreement);
            for place in late {
                self.report_dead(self.now, Rank(u32::try_from(place).unwrap_or(u32::MAX)));
            }
        }
        Ok(())
    }

    // ------------------------------------------------------------ the barrier

    /// A clock that goes back a little counts as standing still; one that goes back far takes the deadlines along.
    fn observe_clock(&mut self, now: Instant) {
        let back = self.now - now;
        if back < BACK_MAX {
            self.now = self.now.max(now);
            return;
        }
        self.now = now;
        self.retry_timer.rewind(back);
        if let Phase::Failing(agreement) = &mut self.phase {
            agreement.rewind(back);
        }
    }

    const fn colour(&mut self, epoch: u32) -> &mut Colour {
        &mut self.colours[if epoch.is_multiple_of(2) { 0 } else { 1 }]
    }

    /// Does as many steps as possible.
    fn advance(&mut self) {
        while let Phase::Inside { step, value } = &mut self.phase {
            let colour = &mut self.colours[if self.epoch.is_multiple_of(2) { 0 } else { 1 }];
            match self.plan.steps.get(*step) {
                None => return self.exit(),
                Some(PlanStep::Send(index)) => {
                    let index = *index;
                    colour.sent[index] = Some(value.clone());
                    *step += 1;
                    let (to, network) = (self.plan.sends[index].to, self.plan.sends[index].network);
                    self.counters.signals += 1;
                    self.signal(self.epoch, index, to, network);
                    if !self.deferred_replies.is_empty() {
                        self.complete_send(index, to, network);
                    }
                }
                Some(PlanStep::Receive(range)) => {
                    let arrived = &colour.arrived[range.clone()];
                    if arrived.iter().any(Option::is_none) {
                        return;
                    }
                    if let Some(reduction) = &self.config.reduction {
                        for (other, join) in arrived.iter().flatten().zip(self.plan.joins(range)) {
                            match join {
                                Join::Adds | Join::Overlaps => reduction.reduce(value, other),
                                Join::Covers => value.clone_from(other),
                                Join::Repeats => {}
                            }
                        }
                    }
                    *step += 1;
                    self.retry_timer.start(self.now);
                }
            }
        }
    }

    fn exit(&mut self) {
        let Phase::Inside { value, .. } = std::mem::replace(&mut self.phase, Phase::Outside) else {
            return;
        };
        let epoch = self.epoch;
        self.events.push_back(Event::Exited { epoch, value: value.into_vec() });
        self.colour(epoch).arrived.fill(None);
        self.deferred_replies.clear();
        self.epoch = epoch.wrapping_add(1);
        // All have entered this epoch, so all have left the one before: its messages will not be asked for any more.
        self.colour(self.epoch).sent.fill(None);
    }

    /// Sends a message of the schedule to all its receivers, or again to one.
    fn signal(&mut self, epoch: u32, index: usize, to: Target, network: Network) {
        let round = self.plan.sends[index].round;
        let Some(value) = self.colour(epoch).sent[index].take() else { return };
        self.send(to, network, epoch, Body::Signal { round, value: &value });
        self.colour(epoch).sent[index] = Some(value);
    }

    /// Sends a message once more to the members that have asked for it before: their questions have become rare, so another
    /// loss would cost them much.
    fn complete_send(&mut self, index: usize, to: Target, network: Network) {
        let is_for = |rank: &Rank| to == Target::Everyone || to == Target::Member(*rank);
        let due: Vec<Rank> = self.deferred_replies.iter().copied().filter(is_for).collect();
        self.deferred_replies.retain(|rank| !due.contains(rank));
        let targets = match (&due[..], to) {
            // One more multicast is less work than many messages.
            ([_, _, ..], Target::Everyone) => vec![to],
            _ => due.into_iter().map(Target::Member).collect(),
        };
        for target in targets {
            self.counters.retransmitted += 1;
            self.signal(self.epoch, index, target, network);
        }
    }

    fn send(&mut self, to: Target, network: Network, epoch: u32, body: Body<'_>) {
        let packet = Packet::new(self.config.group, epoch, self.rank, body);
        let packet = packet.encode(self.config.key.as_ref());
        self.outbox.push_back(Transmit { to, network, packet });
    }

    /// Answers one member. If the transport has not taken earlier answers, this one is dropped: a member that needs it asks
    /// again.
    fn reply(&mut self, to: Rank, network: Network, epoch: u32, body: Body<'_>) {
        if self.may_reply() {
            self.send(Target::Member(to), network, epoch, body);
        }
    }

    fn may_reply(&self) -> bool {
        self.outbox.len() < 64 + 4 * Rank(self.schedule.group().size()).index()
    }

    /// Asks for missing messages, if that is due, and finds out which members are dead.
    fn send_nacks(&mut self) {
        let Phase::Inside { step, .. } = &self.phase else { return };
        let Some(PlanStep::Receive(range)) = self.plan.steps.get(*step) else { return };
        let arrived = &self.colours[if self.epoch.is_multiple_of(2) { 0 } else { 1 }].arrived;
        let missing = range.clone().filter(|index| arrived[*index].is_none());
        let missing: Vec<_> = missing.map(|index| self.plan.sources[index]).collect();
        let Some(attempt) =
            self.retry_timer.handle_timeout(self.now, missing.iter().map(|from| from.rank))
        else {
            return;
        };
        let dead = self.retry_timer.dead();
        if !dead.is_empty() {
            return self.fail(&dead, DeathReason::Silent);
        }
        for source in missing {
            self.counters.nacks += 1;
            let body = Body::Nack { round: source.round, attempt };
            let network = self.plan.network(source.network, attempt);
            self.send(Target::Member(source.rank), network, self.epoch, body);
        }
    }

    // ------------------------------------------------------------ packets

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DropReason> {
        let packet = Packet::parse(packet, self.config.key.as_ref())?;
        if packet.group != self.config.group {
            return self.handle_other_group(&packet);
        }
        if packet.sender == self.rank || !self.schedule.group().contains(packet.sender) {
            return Err(DropReason::Sender);
        }
        match packet.body {
            Body::Signal { round, value } => self.handle_signal(&packet, round, value),
            Body::Nack { round, attempt } => self.handle_nack(&packet, round, attempt),
            Body::AliveReply { attempt } => {
                if !self.is_inside() || packet.epoch != self.epoch {
                    return Err(DropReason::Stale);
                }
                if self.retry_timer.record_reply(packet.sender, attempt) {
                    Ok(())
                } else {
                    Err(DropReason::Stale)
                }
            }
            // A state machine that leaves does not wait for it.
            Body::LeaveAck => Err(DropReason::Unexpected),
            Body::View { dead, wants_reply } => {
                let dead: BTreeSet<Rank> = dead.ranks().collect();
                self.handle_view(packet.sender, dead, wants_reply)
            }
            Body::Decided { dead } => {
                let dead: BTreeSet<Rank> = dead.ranks().collect();
                self.check_dead(&dead)?;
                self.fail_quietly(&BTreeSet::new());
                let Phase::Failing(agreement) = &mut self.phase else { return Ok(()) };
                let update = agreement.decided(packet.sender, dead);
                self.apply_update(update, DeathReason::Told);
                Ok(())
            }
        }
    }

    fn handle_signal(
        &mut self,
        packet: &Packet<'_>,
        round: Round,
        value: &[u8],
    ) -> Result<(), DropReason> {
        let index = self.plan.source(packet.sender, round).ok_or(DropReason::Unexpected)?;
        if value.len() != self.config.value_bytes() {
            return Err(DropReason::Value);
        }
        match (&self.phase, packet.epoch.wrapping_sub(self.epoch)) {
            (Phase::Failing(_), _) => return Err(DropReason::Stale),
            (_, 0) | (Phase::Inside { .. }, 1) => {}
            (_, ahead) if ahead < u32::MAX / 2 => return Err(DropReason::Future),
            _ => return Err(DropReason::Stale),
        }
        let slot = &mut self.colour(packet.epoch).arrived[index];
        if slot.is_some() {
            return Err(DropReason::Duplicate);
        }
        *slot = Some(value.into());
        if packet.epoch == self.epoch {
            self.retry_timer.reset_backoff();
            self.advance();
        }
        Ok(())
    }

    fn handle_nack(
        &mut self,
        packet: &Packet<'_>,
        round: Round,
        attempt: u32,
    ) -> Result<(), DropReason> {
        let (sender, epoch) = (packet.sender, packet.epoch);
        let index = self.plan.send(sender, round).ok_or(DropReason::Unexpected)?;
        let network = self.plan.network(self.plan.sends[index].network, attempt);
        if let Phase::Failing(agreement) = &mut self.phase {
            agreement.send_view_to(sender);
            self.flush();
            return Ok(());
        }
        let is_sent = match epoch.wrapping_sub(self.epoch) {
            // The last barrier and this one.
            u32::MAX | 0 => self.colour(epoch).sent[index].is_some(),
            1 if self.is_inside() => false,
            ahead if ahead < u32::MAX / 2 => return Err(DropReason::Future),
            _ => return Err(DropReason::Stale),
        };
        if is_sent {
            if self.may_reply() {
                self.counters.retransmitted += 1;
                self.signal(epoch, index, Target::Member(sender), network);
            }
        } else if epoch.wrapping_add(1) == self.epoch {
            // It has left that barrier, so it has sent everything: no such message exists.
            return Err(DropReason::Stale);
        } else {
            if epoch == self.epoch {
                self.deferred_replies.insert(sender);
            }
            self.counters.alive_replies += 1;
            self.reply(sender, network, epoch, Body::AliveReply { attempt });
        }
        Ok(())
    }

    /// Handles a packet of the group before this one, or of the one after it.
    fn handle_other_group(&mut self, packet: &Packet<'_>) -> Result<(), DropReason> {
        if let Some(previous_agreement) = &mut self.previous_agreement
            && previous_agreement.id() == packet.group
        {
            // Only questions about the outcome matter there. Answers are not answered, or they would never end.
            let is_question = matches!(packet.body, Body::Nack { .. } | Body::View { .. });
            if !is_question {
                return Err(DropReason::Stale);
            }
            if !previous_agreement.answer(packet.sender) {
                return Err(DropReason::Sender);
            }
            self.flush();
            return Ok(());
        }
        if let Phase::Failing(agreement) = &self.phase
            && let Some((survivors, id)) = agreement.outcome()
            && id == packet.group
            && let Some(asker) = survivors.get(packet.sender.index())
            && let Some(own) = survivors.iter().position(|rank| *rank == self.rank)
        {
            // Other members have shrunk already. This one is alive, and will follow.
            if let Body::Nack { attempt, .. } = packet.body
                && self.may_reply()
                && let Ok(own) = u32::try_from(own)
            {
                let here = Packet::new(id, packet.epoch, Rank(own), Body::AliveReply { attempt });
                let packet = here.encode(self.config.key.as_ref());
                let to = Target::Member(*asker);
                self.outbox.push_back(Transmit { to, network: Network::First, packet });
                self.counters.alive_replies += 1;
            }
            return Ok(());
        }
        Err(DropReason::Foreign)
    }

    // ------------------------------------------------------------ failures

    fn check_dead(&self, dead: &BTreeSet<Rank>) -> Result<(), DropReason> {
        let group = self.schedule.group();
        if dead.is_empty() || !dead.iter().all(|rank| group.contains(*rank)) {
            return Err(DropReason::Unexpected);
        }
        // A member that believes this one dead, but has too few left to continue without it, does not stop it.
        if dead.contains(&self.rank) && !self.config.may_go_on(group, dead) {
            return Err(DropReason::Minority);
        }
        Ok(())
    }

    fn handle_view(
        &mut self,
        sender: Rank,
        dead: BTreeSet<Rank>,
        wants_reply: bool,
    ) -> Result<(), DropReason> {
        self.check_dead(&dead)?;
        self.fail_quietly(&BTreeSet::new());
        let reason = if dead.contains(&sender) { DeathReason::Left } else { DeathReason::Told };
        let Phase::Failing(agreement) = &mut self.phase else { return Ok(()) };
        let update = agreement.view(self.now, sender, dead, wants_reply);
        self.apply_update(update, reason);
        Ok(())
    }

    /// Members are dead.
    fn fail(&mut self, ranks: &BTreeSet<Rank>, reason: DeathReason) {
        self.fail_quietly(&BTreeSet::new());
        let Phase::Failing(agreement) = &mut self.phase else { return };
        let update = agreement.report_dead(self.now, ranks);
        self.apply_update(update, reason);
    }

    /// Begins to fail, if it has not. With its own rank, it leaves.
    fn fail_quietly(&mut self, own: &BTreeSet<Rank>) {
        if !matches!(self.phase, Phase::Failing(_)) {
            let group = self.schedule.group();
            let agreement = Agreement::new(group, self.rank, self.epoch, &self.config);
            self.phase = Phase::Failing(Box::new(agreement));
        }
        if let Phase::Failing(agreement) = &mut self.phase
            && own.contains(&self.rank)
        {
            agreement.leave();
        }
    }

    /// Reports the state of the agreement to the user.
    fn apply_update(&mut self, update: AgreementUpdate, reason: DeathReason) {
        self.flush();
        let Phase::Failing(agreement) = &self.phase else { return };
        match update {
            AgreementUpdate::Unchanged => return,
            AgreementUpdate::Excluded => {
                let ranks = vec![self.rank];
                self.events.push_back(Event::Failed { ranks, reason: DeathReason::Excluded });
                return;
            }
            AgreementUpdate::NewDead | AgreementUpdate::NewDeadAndDecided => {
                let ranks = agreement.dead().iter().copied().collect();
                self.events.push_back(Event::Failed { ranks, reason });
            }
            AgreementUpdate::Decided => {}
        }
        if let (
            Some((survivors, _)),
            AgreementUpdate::Decided | AgreementUpdate::NewDeadAndDecided,
        ) = (agreement.outcome(), update)
        {
            let event = if agreement.has_quorum() {
                Event::Agreed { survivors }
            } else {
                Event::Minority { survivors }
            };
            self.events.push_back(event);
        }
    }

    /// Takes over the packets of an agreement.
    fn flush(&mut self) {
        let mut transmits = Vec::new();
        if let Phase::Failing(agreement) = &mut self.phase {
            transmits = agreement.take_transmits();
        }
        if let Some(previous_agreement) = &mut self.previous_agreement {
            // The agreement uses the old ranks, transports use the present ones.
            let survivors =
                previous_agreement.outcome().map_or(Vec::new(), |(survivors, _)| survivors);
            for mut transmit in previous_agreement.take_transmits() {
                let Target::Member(old) = transmit.to else { continue };
                let place = survivors.iter().position(|rank| *rank == old);
                let Some(new) = place.and_then(|place| u32::try_from(place).ok()) else { continue };
                transmit.to = Target::Member(Rank(new));
                transmits.push(transmit);
            }
        }
        if self.may_reply() {
            self.counters.views += u64::try_from(transmits.len()).unwrap_or(u64::MAX);
            self.outbox.extend(transmits);
        }
    }
}

#[cfg(test)]
mod tests;
