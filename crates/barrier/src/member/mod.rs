//! One member as a machine: packets and time in; packets, deadlines and what happened out.
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
//! Messages of a barrier never overtake a barrier [eth-barrier, §2.3]: who has entered epoch e + 1 has left e, so all
//! have entered e. A member in epoch e therefore hears only of e − 1 (questions of those that have not left), e, and
//! e + 1 (messages of those that have left before it), and two colours, the lowest bit of the epoch, keep apart what it
//! stores. Packets carry 32 bits of the epoch, so that what the network has kept for long is known for old.
//!
//! While nothing is lost, nothing is sent but the schedule's messages: that a member enters the next barrier
//! acknowledges everything before. Who waits for longer than [`Settings::repeat_after`] asks for the messages that it
//! misses, less and less often; who has sent them sends them again to the one that asks, and who has not says that it
//! is alive, and sends twice when it gets so far. What loses packets answers seldom: a few questions in a row without an
//! answer are no reason to ask less often, nor is one after which something came. Each member keeps what it has sent in
//! this barrier and in the last one. If a schedule has two networks, questions and their answers take both in turn: one
//! may be down.
//!
//! # Failures
//! A member that does not answer for half of [`Settings::failure_timeout`] while somebody waits for its message is dead;
//! transports that know better [report](Member::report_dead) it. Silence is counted in intervals between questions, not
//! in time: if the clock jumps, or this process was stopped, nobody is dead for that. A clock that leaps ahead costs one
//! question; one that goes back takes the deadlines along, as soon as the machine is called. To be taken for dead wrongly,
//! a member must be silent for as many questions, of which the last ones come a 64th of the timeout apart, or the clock
//! must leap as often. A host that is suspended for longer than the timeout is really silent: the others go on without it,
//! and it is told so when it is back. Whoever learns of a death tells all others, and asks those that do not confirm; the
//! rest of the timeout is for this. That a member leaves a barrier with success means that all have entered, even if
//! others then learn of a failure instead of leaving. After a failure the group is of no use, until its survivors have
//! agreed on who they are, which they do by themselves, and every one of them has [shrunk](Member::shrink) its member.
//!
//! A member must be driven (packets delivered, deadlines handled) also while it is outside: it answers for its process.
//! Where the network falls apart, each part takes the others for dead; which of them may go on is up to the [`Quorum`].

mod agreement;
mod counters;
mod plan;
mod settings;
mod waiting;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use thiserror::Error;
use vigie_detect::Instant;

use self::{
    agreement::{Agreement, Heard},
    plan::{Action, Plan},
    waiting::Waiting,
};
pub use self::{
    counters::{Counters, Dropped},
    settings::{MemberError, Quorum, Settings},
};
use crate::{
    checker::Join,
    group::Rank,
    packet::{Body, DEAD_MAX, Packet},
    schedule::{Network, Round, Schedule, Target},
};

/// A clock that goes back by less stands still: threads that read it one after the other may come in another order.
const BACK_MAX: Duration = Duration::from_secs(1);

/// A packet to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transmit {
    /// To whom. Where there is no multicast, "everyone" is each other member in turn.
    pub to: Target,
    /// By which network.
    pub network: Network,
    /// Its bytes.
    pub packet: Vec<u8>,
}

/// What happened to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// All members have entered the barrier of that epoch, and this one has left it.
    Exited {
        /// Which one, counted from 0 and round the corner.
        epoch: u32,
        /// The values of all members, reduced; empty without a reduction.
        value: Vec<u8>,
    },
    /// Members are dead, and the group is of no use. Comes again when more are known.
    Failed {
        /// Everybody who is known to be dead, in order.
        ranks: Vec<Rank>,
        /// How the latest of them is known.
        reason: Reason,
    },
    /// The survivors agree on who they are: the group can be shrunk.
    Agreed {
        /// The ranks that are left, in order: their places are their ranks in the smaller group.
        survivors: Vec<Rank>,
    },
    /// Those that are left agree on who they are, and are too few for a group of their own: the others may go on
    /// without them.
    Minority {
        /// Who is left.
        survivors: Vec<Rank>,
    },
}

/// How it is known that a member is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// It has not answered.
    Silent,
    /// The transport has seen its end.
    Reported,
    /// It has said that it leaves.
    Left,
    /// Another member has said so.
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
        /// Everybody who is known to be dead, in order.
        ranks: Vec<Rank>,
    },
    /// The others believe that this member is dead, or it has left.
    #[error("this member is no longer of the group")]
    Excluded,
    /// The value has not the length of the reduction's.
    #[error("a value of {found} bytes, where all members have {expected}")]
    Value {
        /// What it must be.
        expected: usize,
        /// What it is.
        found: usize,
    },
}

/// A group cannot shrink.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShrinkError {
    /// Nobody is dead.
    #[error("nobody is dead: there is nothing to shrink")]
    Whole,
    /// The survivors have not agreed yet.
    #[error("the survivors have not agreed yet: wait for `Event::Agreed`")]
    Undecided,
    /// The others believe that this member is dead, or it has left.
    #[error("this member is no longer of the group")]
    Excluded,
    /// Too few are left, while the others may have made a smaller group.
    #[error(
        "{survivors} of the first {size} members are left, and the others may go on without them: form a new group, or \
         let any number go on (`Quorum::Any`)"
    )]
    Minority {
        /// How many are left.
        survivors: u32,
        /// How many the group had when it was formed: more than half of them are enough, or the half with its rank 0.
        size: u32,
    },
    /// More are dead than members can tell each other.
    #[error("more than {DEAD_MAX} members are dead: form a new group")]
    TooMany,
    /// The schedule is for more or fewer members than have survived.
    #[error("a schedule for {found} members, of which {expected} have survived")]
    Size {
        /// How many have survived.
        expected: u32,
        /// For how many the schedule is.
        found: u32,
    },
    /// The schedule and the settings do not go together.
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
    /// The step it is at, and the value as far as it is known.
    Inside {
        step: usize,
        value: Box<[u8]>,
    },
    Failing(Box<Agreement>),
}

/// What is stored for the barriers of one colour.
#[derive(Clone, Debug)]
struct Colour {
    /// By the plan's sources: what has arrived.
    arrived: Vec<Option<Box<[u8]>>>,
    /// By the plan's sends: what was sent.
    sent: Vec<Option<Box<[u8]>>>,
}

/// One member of a group.
#[derive(Debug)]
pub struct Member {
    schedule: Arc<Schedule>,
    rank: Rank,
    settings: Settings,
    plan: Plan,
    /// The barrier that it is inside of, or will enter next.
    epoch: u32,
    phase: Phase,
    colours: [Colour; 2],
    waiting: Waiting,
    now: Instant,
    outbox: VecDeque<Transmit>,
    events: VecDeque<Event>,
    counters: Counters,
    /// That of the larger group before: others may still ask for its outcome.
    ancestor: Option<Box<Agreement>>,
    /// Who has asked in this barrier for a message that it had not sent.
    owed: BTreeSet<Rank>,
}

impl Member {
    /// Makes the member of that rank, outside of the first barrier. All members need the same schedule and settings.
    ///
    /// The schedule must be a barrier: [`prove`](crate::checker::prove) finds out, once, for schedules of one's own.
    ///
    /// # Errors
    /// [`MemberError`] if the rank is not of the group, a setting is out of range, or the schedule does not carry the
    /// reduction.
    pub fn new(
        schedule: Arc<Schedule>,
        rank: Rank,
        settings: Settings,
    ) -> Result<Self, MemberError> {
        settings.check()?;
        let plan = Plan::new(&schedule, rank, settings.reduction.as_ref())?;
        let colour =
            Colour { arrived: vec![None; plan.sources.len()], sent: vec![None; plan.sends.len()] };
        Ok(Self {
            waiting: Waiting::new(&settings),
            schedule,
            rank,
            settings,
            plan,
            epoch: 0,
            phase: Phase::Outside,
            colours: [colour.clone(), colour],
            now: Instant::from_nanos(0),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            ancestor: None,
            owed: BTreeSet::new(),
        })
    }

    /// Returns its rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns its settings; shrinking changes the group's name.
    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns its schedule.
    #[must_use]
    pub const fn schedule(&self) -> &Arc<Schedule> {
        &self.schedule
    }

    /// Returns the epoch that it is inside of, or will enter next.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns whether it has entered and not left yet.
    #[must_use]
    pub const fn is_inside(&self) -> bool {
        matches!(self.phase, Phase::Inside { .. })
    }

    /// Returns how many steps of its schedule are behind it in the present barrier; `None` outside.
    #[must_use]
    pub const fn steps_done(&self) -> Option<usize> {
        match &self.phase {
            Phase::Inside { step, .. } => Some(*step),
            Phase::Outside | Phase::Failing(_) => None,
        }
    }

    /// Returns to whom it sends messages, and from whom it gets some.
    pub(crate) fn neighbours(&self) -> (BTreeSet<Rank>, BTreeSet<Rank>) {
        let others = self.schedule.group().ranks().filter(|rank| *rank != self.rank);
        let is_sent = |rank: &Rank| {
            let is_for = |to| to == Target::Everyone || to == Target::Member(*rank);
            self.plan.sends.iter().any(|sending| is_for(sending.to))
        };
        let sources = self.plan.sources.iter().map(|source| source.rank);
        (others.filter(is_sent).collect(), sources.collect())
    }

    /// Returns whether it sends messages to that one, or gets some from it.
    pub(crate) fn exchanges_with(&self, rank: Rank) -> bool {
        let is_for = |to| to == Target::Everyone || to == Target::Member(rank);
        self.plan.sends.iter().any(|sending| is_for(sending.to))
            || self.plan.sources.iter().any(|source| source.rank == rank)
    }

    /// Returns what it has counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns who is known to be dead, in order.
    #[must_use]
    pub fn dead(&self) -> Vec<Rank> {
        match &self.phase {
            Phase::Failing(agreement) => agreement.dead().iter().copied().collect(),
            Phase::Outside | Phase::Inside { .. } => Vec::new(),
        }
    }

    /// Enters the barrier, with a value if there is a reduction: arrives, in split phase. It has left when
    /// [`Event::Exited`] comes, which may be at once.
    ///
    /// # Errors
    /// [`EnterError`] if it is inside already, the group has failed, or the value has another length than all others'.
    pub fn enter(&mut self, now: Instant, value: &[u8]) -> Result<(), EnterError> {
        self.see(now);
        match &self.phase {
            Phase::Inside { .. } => return Err(EnterError::Inside),
            Phase::Failing(agreement) if agreement.is_out() => return Err(EnterError::Excluded),
            Phase::Failing(_) => return Err(EnterError::Failed { ranks: self.dead() }),
            Phase::Outside => {}
        }
        let expected = self.settings.value_bytes();
        if value.len() != expected {
            return Err(EnterError::Value { expected, found: value.len() });
        }
        self.phase = Phase::Inside { step: 0, value: value.into() };
        self.waiting.start(self.now);
        self.advance();
        Ok(())
    }

    /// Takes a packet that has arrived.
    ///
    /// # Errors
    /// [`Dropped`] says why it was of no use; it is counted, and nothing needs to be done.
    pub fn receive(&mut self, now: Instant, packet: &[u8]) -> Result<(), Dropped> {
        self.see(now);
        let result = self.take(packet);
        match result {
            Ok(()) => self.counters.accepted += 1,
            Err(why) => self.counters.count(why),
        }
        result
    }

    /// Returns the next packet that is to be sent.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.pop_front()
    }

    /// Returns the next thing that has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when [`Self::handle_deadline`] is due, if ever.
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Outside => None,
            Phase::Inside { .. } => self.waiting.deadline(),
            Phase::Failing(agreement) => agreement.deadline(),
        }
    }

    /// Does what is due; nothing if nothing is.
    pub fn handle_deadline(&mut self, now: Instant) {
        self.see(now);
        match &mut self.phase {
            Phase::Outside => {}
            Phase::Inside { .. } => self.ask(),
            Phase::Failing(agreement) => {
                let heard = agreement.handle_deadline(self.now);
                self.after(heard, Reason::Silent);
            }
        }
    }

    /// Takes the transport's word that a member is dead. Ignored for strangers, and for itself.
    pub fn report_dead(&mut self, now: Instant, rank: Rank) {
        self.see(now);
        if rank != self.rank && self.schedule.group().contains(rank) {
            self.fail(&[rank].into(), Reason::Reported);
        }
    }

    /// Leaves the group for good, and tells the others once: they need not find out by themselves.
    pub fn leave(&mut self, now: Instant) {
        self.see(now);
        let own = BTreeSet::from([self.rank]);
        self.fail_quietly(&own);
        self.flush();
    }

    /// Becomes a member of the group of the survivors, outside of its first barrier, and answers those that have not
    /// agreed yet for as long as it lives. Its rank is its place among the [survivors](Event::Agreed).
    ///
    /// # Errors
    /// [`ShrinkError`] if nobody is dead, the survivors have not agreed, or the schedule is not for as many.
    pub fn shrink(&mut self, schedule: Arc<Schedule>) -> Result<(), ShrinkError> {
        let Phase::Failing(agreement) = &self.phase else { return Err(ShrinkError::Whole) };
        if agreement.is_out() {
            return Err(ShrinkError::Excluded);
        }
        if agreement.is_hopeless() {
            return Err(ShrinkError::TooMany);
        }
        let Some((survivors, id)) = agreement.outcome() else { return Err(ShrinkError::Undecided) };
        let expected = u32::try_from(survivors.len()).unwrap_or(u32::MAX);
        if !agreement.has_quorum() {
            let size = self.settings.size_at_first(self.schedule.group());
            return Err(ShrinkError::Minority { survivors: expected, size });
        }
        let found = schedule.group().size();
        if expected != found {
            return Err(ShrinkError::Size { expected, found });
        }
        let place = survivors.iter().position(|rank| *rank == self.rank);
        let place = place.and_then(|place| u32::try_from(place).ok());
        let rank = Rank(place.ok_or(ShrinkError::Excluded)?);
        let mut settings = self.settings.clone();
        settings.group = id;
        settings.lost += agreement.dead().len();
        settings.has_first &= !agreement.dead().contains(&Rank(0));
        let mut smaller = Self::new(schedule, rank, settings)?;
        smaller.now = self.now;
        smaller.counters = self.counters;
        // What is not sent yet is for the larger group, by its ranks.
        smaller.events = std::mem::take(&mut self.events);
        let larger = std::mem::replace(self, smaller);
        if let Phase::Failing(agreement) = larger.phase {
            let place = |rank: &Rank| survivors.iter().position(|survivor| survivor == rank);
            let late: Vec<usize> = agreement.late().iter().filter_map(place).collect();
            self.ancestor = Some(agreement);
            for place in late {
                self.report_dead(self.now, Rank(u32::try_from(place).unwrap_or(u32::MAX)));
            }
        }
        Ok(())
    }

    // ------------------------------------------------------------ the barrier

    /// A clock that goes back a little stands still here; one that goes back far takes the deadlines along.
    fn see(&mut self, now: Instant) {
        let back = self.now - now;
        if back < BACK_MAX {
            self.now = self.now.max(now);
            return;
        }
        self.now = now;
        self.waiting.set_back(back);
        if let Phase::Failing(agreement) = &mut self.phase {
            agreement.set_back(back);
        }
    }

    const fn colour(&mut self, epoch: u32) -> &mut Colour {
        &mut self.colours[if epoch.is_multiple_of(2) { 0 } else { 1 }]
    }

    /// Goes through the steps as far as possible.
    fn advance(&mut self) {
        while let Phase::Inside { step, value } = &mut self.phase {
            let colour = &mut self.colours[if self.epoch.is_multiple_of(2) { 0 } else { 1 }];
            match self.plan.actions.get(*step) {
                None => return self.exit(),
                Some(Action::Send(index)) => {
                    let index = *index;
                    colour.sent[index] = Some(value.clone());
                    *step += 1;
                    let (to, network) = (self.plan.sends[index].to, self.plan.sends[index].network);
                    self.counters.signals += 1;
                    self.signal(self.epoch, index, to, network);
                    if !self.owed.is_empty() {
                        self.settle(index, to, network);
                    }
                }
                Some(Action::Receive(range)) => {
                    let arrived = &colour.arrived[range.clone()];
                    if arrived.iter().any(Option::is_none) {
                        return;
                    }
                    if let Some(reduction) = &self.settings.reduction {
                        for (other, join) in arrived.iter().flatten().zip(self.plan.joins(range)) {
                            match join {
                                Join::Adds | Join::Overlaps => reduction.reduce(value, other),
                                Join::Covers => value.clone_from(other),
                                Join::Repeats => {}
                            }
                        }
                    }
                    *step += 1;
                    self.waiting.start(self.now);
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
        self.owed.clear();
        self.epoch = epoch.wrapping_add(1);
        // All have entered this epoch, so all have left the one before it: nobody asks for its messages any more.
        self.colour(self.epoch).sent.fill(None);
    }

    /// Sends a message of the schedule, to all it is for or again to one.
    fn signal(&mut self, epoch: u32, index: usize, to: Target, network: Network) {
        let round = self.plan.sends[index].round;
        let Some(value) = self.colour(epoch).sent[index].take() else { return };
        self.send(to, network, epoch, Body::Signal { round, value: &value });
        self.colour(epoch).sent[index] = Some(value);
    }

    /// Sends a message once more to those that have asked for it before: they ask seldom by now, so that it would cost
    /// them much if it were lost.
    fn settle(&mut self, index: usize, to: Target, network: Network) {
        let is_for = |rank: &Rank| to == Target::Everyone || to == Target::Member(*rank);
        let due: Vec<Rank> = self.owed.iter().copied().filter(is_for).collect();
        self.owed.retain(|rank| !due.contains(rank));
        let targets = match (&due[..], to) {
            // One more multicast is less work than many messages.
            ([_, _, ..], Target::Everyone) => vec![to],
            _ => due.into_iter().map(Target::Member).collect(),
        };
        for target in targets {
            self.counters.repeated += 1;
            self.signal(self.epoch, index, target, network);
        }
    }

    fn send(&mut self, to: Target, network: Network, epoch: u32, body: Body<'_>) {
        let packet = Packet::new(self.settings.group, epoch, self.rank, body);
        let packet = packet.encode(self.settings.key.as_ref());
        self.outbox.push_back(Transmit { to, network, packet });
    }

    /// Answers one member. If the transport does not take what was said before, it is not said: who needs it asks again.
    fn reply(&mut self, to: Rank, network: Network, epoch: u32, body: Body<'_>) {
        if self.may_reply() {
            self.send(Target::Member(to), network, epoch, body);
        }
    }

    fn may_reply(&self) -> bool {
        self.outbox.len() < 64 + 4 * Rank(self.schedule.group().size()).index()
    }

    /// Asks for what is missing, if that is due, and finds out who is dead.
    fn ask(&mut self) {
        let Phase::Inside { step, .. } = &self.phase else { return };
        let Some(Action::Receive(range)) = self.plan.actions.get(*step) else { return };
        let arrived = &self.colours[if self.epoch.is_multiple_of(2) { 0 } else { 1 }].arrived;
        let missing = range.clone().filter(|index| arrived[*index].is_none());
        let missing: Vec<_> = missing.map(|index| self.plan.sources[index]).collect();
        let Some(attempt) = self.waiting.elapse(self.now, missing.iter().map(|from| from.rank))
        else {
            return;
        };
        let dead = self.waiting.dead();
        if !dead.is_empty() {
            return self.fail(&dead, Reason::Silent);
        }
        for source in missing {
            self.counters.asked += 1;
            let body = Body::Ask { round: source.round, attempt };
            let network = self.plan.network(source.network, attempt);
            self.send(Target::Member(source.rank), network, self.epoch, body);
        }
    }

    // ------------------------------------------------------------ packets

    fn take(&mut self, packet: &[u8]) -> Result<(), Dropped> {
        let packet = Packet::parse(packet, self.settings.key.as_ref())?;
        if packet.group != self.settings.group {
            return self.take_of_other_group(&packet);
        }
        if packet.sender == self.rank || !self.schedule.group().contains(packet.sender) {
            return Err(Dropped::Sender);
        }
        match packet.body {
            Body::Signal { round, value } => self.take_signal(&packet, round, value),
            Body::Ask { round, attempt } => self.take_ask(&packet, round, attempt),
            Body::Here { attempt } => {
                if !self.is_inside() || packet.epoch != self.epoch {
                    return Err(Dropped::Stale);
                }
                if self.waiting.hear(packet.sender, attempt) { Ok(()) } else { Err(Dropped::Stale) }
            }
            Body::View { dead, wants_reply } => {
                let dead: BTreeSet<Rank> = dead.ranks().collect();
                self.take_view(packet.sender, dead, wants_reply)
            }
            Body::Decided { dead } => {
                let dead: BTreeSet<Rank> = dead.ranks().collect();
                self.check_dead(&dead)?;
                self.fail_quietly(&BTreeSet::new());
                let Phase::Failing(agreement) = &mut self.phase else { return Ok(()) };
                let heard = agreement.decided(packet.sender, dead);
                self.after(heard, Reason::Told);
                Ok(())
            }
        }
    }

    fn take_signal(
        &mut self,
        packet: &Packet<'_>,
        round: Round,
        value: &[u8],
    ) -> Result<(), Dropped> {
        let index = self.plan.source(packet.sender, round).ok_or(Dropped::Unexpected)?;
        if value.len() != self.settings.value_bytes() {
            return Err(Dropped::Value);
        }
        match (&self.phase, packet.epoch.wrapping_sub(self.epoch)) {
            (Phase::Failing(_), _) => return Err(Dropped::Stale),
            (_, 0) | (Phase::Inside { .. }, 1) => {}
            (_, ahead) if ahead < u32::MAX / 2 => return Err(Dropped::Future),
            _ => return Err(Dropped::Stale),
        }
        let slot = &mut self.colour(packet.epoch).arrived[index];
        if slot.is_some() {
            return Err(Dropped::Duplicate);
        }
        *slot = Some(value.into());
        if packet.epoch == self.epoch {
            self.waiting.progress();
            self.advance();
        }
        Ok(())
    }

    fn take_ask(&mut self, packet: &Packet<'_>, round: Round, attempt: u32) -> Result<(), Dropped> {
        let (sender, epoch) = (packet.sender, packet.epoch);
        let index = self.plan.send(sender, round).ok_or(Dropped::Unexpected)?;
        let network = self.plan.network(self.plan.sends[index].network, attempt);
        if let Phase::Failing(agreement) = &mut self.phase {
            agreement.inform(sender);
            self.flush();
            return Ok(());
        }
        let is_sent = match epoch.wrapping_sub(self.epoch) {
            // The last one, and this one.
            u32::MAX | 0 => self.colour(epoch).sent[index].is_some(),
            1 if self.is_inside() => false,
            ahead if ahead < u32::MAX / 2 => return Err(Dropped::Future),
            _ => return Err(Dropped::Stale),
        };
        if is_sent {
            if self.may_reply() {
                self.counters.repeated += 1;
                self.signal(epoch, index, Target::Member(sender), network);
            }
        } else if epoch.wrapping_add(1) == self.epoch {
            // It has left that barrier, so it has sent everything: nobody has ever been there.
            return Err(Dropped::Stale);
        } else {
            if epoch == self.epoch {
                self.owed.insert(sender);
            }
            self.counters.answered += 1;
            self.reply(sender, network, epoch, Body::Here { attempt });
        }
        Ok(())
    }

    /// Takes what is said in the group before this one, or in the one after it.
    fn take_of_other_group(&mut self, packet: &Packet<'_>) -> Result<(), Dropped> {
        if let Some(ancestor) = &mut self.ancestor
            && ancestor.id() == packet.group
        {
            // Only questions for the outcome matter there. Answers are not answered, or they would never end.
            let is_question = matches!(packet.body, Body::Ask { .. } | Body::View { .. });
            if !is_question {
                return Err(Dropped::Stale);
            }
            if !ancestor.answer(packet.sender) {
                return Err(Dropped::Sender);
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
            // Others have shrunk already. This member is alive, and will follow.
            if let Body::Ask { attempt, .. } = packet.body
                && self.may_reply()
                && let Ok(own) = u32::try_from(own)
            {
                let here = Packet::new(id, packet.epoch, Rank(own), Body::Here { attempt });
                let packet = here.encode(self.settings.key.as_ref());
                let to = Target::Member(*asker);
                self.outbox.push_back(Transmit { to, network: Network::First, packet });
                self.counters.answered += 1;
            }
            return Ok(());
        }
        Err(Dropped::Foreign)
    }

    // ------------------------------------------------------------ failures

    fn check_dead(&self, dead: &BTreeSet<Rank>) -> Result<(), Dropped> {
        let group = self.schedule.group();
        if dead.is_empty() || !dead.iter().all(|rank| group.contains(*rank)) {
            return Err(Dropped::Unexpected);
        }
        // Who takes this member for dead, and has too few left to go on without it, does not stop it.
        if dead.contains(&self.rank) && !self.settings.may_go_on(group, dead) {
            return Err(Dropped::Minority);
        }
        Ok(())
    }

    fn take_view(
        &mut self,
        sender: Rank,
        dead: BTreeSet<Rank>,
        wants_reply: bool,
    ) -> Result<(), Dropped> {
        self.check_dead(&dead)?;
        self.fail_quietly(&BTreeSet::new());
        let reason = if dead.contains(&sender) { Reason::Left } else { Reason::Told };
        let Phase::Failing(agreement) = &mut self.phase else { return Ok(()) };
        let heard = agreement.view(self.now, sender, dead, wants_reply);
        self.after(heard, reason);
        Ok(())
    }

    /// Members are dead.
    fn fail(&mut self, ranks: &BTreeSet<Rank>, reason: Reason) {
        self.fail_quietly(&BTreeSet::new());
        let Phase::Failing(agreement) = &mut self.phase else { return };
        let heard = agreement.bury(self.now, ranks);
        self.after(heard, reason);
    }

    /// Begins to fail, if it has not. With its own rank it leaves.
    fn fail_quietly(&mut self, own: &BTreeSet<Rank>) {
        if !matches!(self.phase, Phase::Failing(_)) {
            let group = self.schedule.group();
            let agreement = Agreement::new(group, self.rank, self.epoch, &self.settings);
            self.phase = Phase::Failing(Box::new(agreement));
        }
        if let Phase::Failing(agreement) = &mut self.phase
            && own.contains(&self.rank)
        {
            agreement.leave();
        }
    }

    /// Tells the user what the agreement has come to.
    fn after(&mut self, heard: Heard, reason: Reason) {
        self.flush();
        let Phase::Failing(agreement) = &self.phase else { return };
        match heard {
            Heard::Nothing => return,
            Heard::Excluded => {
                let ranks = vec![self.rank];
                self.events.push_back(Event::Failed { ranks, reason: Reason::Excluded });
                return;
            }
            Heard::More | Heard::MoreAndDecided => {
                let ranks = agreement.dead().iter().copied().collect();
                self.events.push_back(Event::Failed { ranks, reason });
            }
            Heard::Decided => {}
        }
        if let (Some((survivors, _)), Heard::Decided | Heard::MoreAndDecided) =
            (agreement.outcome(), heard)
        {
            let event = if agreement.has_quorum() {
                Event::Agreed { survivors }
            } else {
                Event::Minority { survivors }
            };
            self.events.push_back(event);
        }
    }

    /// Takes over what an agreement wants to say.
    fn flush(&mut self) {
        let mut transmits = Vec::new();
        if let Phase::Failing(agreement) = &mut self.phase {
            transmits = agreement.take_transmits();
        }
        if let Some(ancestor) = &mut self.ancestor {
            // It knows others by the ranks that they had, and transports by those that they have.
            let survivors = ancestor.outcome().map_or(Vec::new(), |(survivors, _)| survivors);
            for mut transmit in ancestor.take_transmits() {
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

impl Settings {
    fn value_bytes(&self) -> usize {
        self.reduction.as_ref().map_or(0, crate::reduction::Reduction::bytes)
    }
}

#[cfg(test)]
mod tests;
