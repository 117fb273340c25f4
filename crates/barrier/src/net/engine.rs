//! A member and its transport, without waiting.

use std::{collections::BTreeSet, io, os::fd::BorrowedFd, sync::Arc, task::Waker};

use vigie_detect::Instant;

use super::{
    leaving::Farewells,
    probe::{Probe, Probes, Say, may_be_probe},
    transport::Transport,
};
use crate::{
    algorithm::Algorithm,
    error::{BarrierError, LostRanks, Passed},
    group::{Group, Rank},
    member::{Dropped, EnterError, Event, Member, MemberError},
    packet::{Body, Packet, may_be_view},
    schedule::{Network, Schedule, Target},
};

/// What a barrier over the network has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetCounters {
    /// What the member has sent, taken and dropped.
    pub member: crate::member::Counters,
    /// Packets that the transport did not take: they are as if lost on the way.
    pub unsent: u64,
    /// Probes that were of others, forged or of no use, and dropped.
    pub probes_dropped: u64,
}

/// What came of a barrier: its number and the reduced value.
pub(super) type Exit = (Passed, Vec<u8>);

pub(super) struct Engine {
    pub(super) member: Member,
    /// That of its schedule.
    pub(super) algorithm: Algorithm,
    transport: Box<dyn Transport>,
    /// The barrier that the user has entered and not taken the exit of.
    entered: Option<u32>,
    exit: Option<Exit>,
    /// Everybody who is known to be dead; this member alone if the others take it for dead.
    dead: Vec<Rank>,
    pub(super) survivors: Option<Vec<Rank>>,
    /// How many are left, if they are too few.
    minority: Option<u32>,
    farewells: Farewells,
    held: Held,
    unsent: u64,
    /// The transport has ended.
    broken: Option<io::Error>,
    /// Somebody looks by himself.
    pub(super) is_looked_at: bool,
    /// How often somebody has entered or looked.
    pub(super) turns: u64,
    pub(super) has_left: bool,
    pub(super) probes: Probes,
    /// The member before this one's [renewal](Self::renew), for those who still ask for its last barrier.
    retired: Option<Box<Retired>>,
    /// Packets of others who have renewed theirs already, if this member is about to.
    early: Option<Vec<Vec<u8>>>,
}

struct Retired {
    member: Member,
    algorithm: Algorithm,
}

/// Packets of the next group that are kept.
const EARLY_MAX: usize = 256;

/// Deaths that are kept from a member inside a barrier that all have entered: the messages that it still waits for may
/// have been overtaken by the word.
#[derive(Default)]
struct Held {
    words: Vec<Word>,
    /// How often the member has asked for what it misses since.
    questions: u32,
}

enum Word {
    /// What a member says that has passed the barrier.
    View(Vec<u8>),
    /// The transport reports the end of one that has said that it leaves.
    Dead(Rank),
}

/// Words that are kept. Who says more says it again until it is confirmed.
const HELD_MAX: usize = 64;

/// Questions after which those that could answer have not.
const HELD_QUESTIONS: u32 = 2;

impl Engine {
    pub(super) fn new(member: Member, algorithm: Algorithm, transport: Box<dyn Transport>) -> Self {
        Self {
            member,
            algorithm,
            transport,
            entered: None,
            exit: None,
            dead: Vec::new(),
            survivors: None,
            minority: None,
            farewells: Farewells::default(),
            held: Held::default(),
            unsent: 0,
            broken: None,
            is_looked_at: false,
            turns: 0,
            has_left: false,
            probes: Probes::default(),
            retired: None,
            early: None,
        }
    }

    pub(super) const fn entered(&self) -> Option<u32> {
        self.entered
    }

    pub(super) const fn counters(&self) -> NetCounters {
        NetCounters {
            member: *self.member.counters(),
            unsent: self.unsent,
            probes_dropped: self.probes.dropped,
        }
    }

    pub(super) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// Enters the next barrier, and sends what is to be sent.
    pub(super) fn enter(&mut self, now: Instant, value: &[u8]) -> Result<u32, BarrierError> {
        self.turns += 1;
        if let Some(epoch) = self.entered {
            return Err(BarrierError::AlreadyEntered { epoch });
        }
        let epoch = self.member.epoch();
        self.error(epoch).map_or(Ok(()), Err)?;
        match self.member.enter(now, value) {
            Ok(()) => {}
            Err(EnterError::Value { expected, found }) => {
                return Err(BarrierError::Value { expected, found });
            }
            Err(EnterError::Inside) => return Err(BarrierError::AlreadyEntered { epoch }),
            Err(_) => return Err(self.lost(epoch)),
        }
        self.entered = Some(epoch);
        self.flush();
        self.bury_leavers(now);
        Ok(epoch)
    }

    /// Takes in what has arrived and does what is due.
    #[inline]
    pub(super) fn look(&mut self, now: Instant, waker: &Waker) {
        let Self { member, transport, farewells, held, probes, retired, early, .. } = self;
        let mut take = |packet: &[u8]| {
            if may_be_probe(packet) {
                let settings = member.settings();
                let place = (member.rank(), member.schedule().group().size());
                probes.take(packet, (settings.group, settings.key.as_ref()), place);
                return;
            }
            if let Some(old) = retired
                && old.member.receive(now, packet) != Err(Dropped::Foreign)
            {
                return;
            }
            if farewells.take(member, packet) {
                return;
            }
            if member.is_inside() && may_be_view(packet) && is_ahead(member, packet) {
                if held.words.len() < HELD_MAX {
                    held.words.push(Word::View(packet.to_vec()));
                }
                return;
            }
            // What is dropped has been counted.
            if member.receive(now, packet) == Err(Dropped::Foreign)
                && let Some(early) = early
                && early.len() < EARLY_MAX
            {
                early.push(packet.to_vec());
            }
        };
        if let Err(error) = transport.receive(waker, &mut take) {
            self.broken = Some(error);
        }
        while let Some(rank) = self.transport.next_dead() {
            if self.farewells.end(rank) {
                continue;
            }
            if self.member.is_inside() && self.farewells.leavers.contains_key(&rank) {
                self.held.words.push(Word::Dead(rank));
            } else {
                self.member.report_dead(now, rank);
            }
        }
        if self.member.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.member.handle_deadline(now);
            self.held.questions += u32::from(!self.held.words.is_empty());
        }
        self.flush();
        if !self.held.words.is_empty() {
            self.release(now);
        }
        if !self.farewells.leavers.is_empty() {
            self.bury_leavers(now);
        }
        if !self.farewells.is_quiet() {
            self.say_farewells(now);
        }
    }

    /// Takes a member for dead, by what is known outside of barriers.
    pub(super) fn report_dead(&mut self, now: Instant, rank: Rank) {
        self.member.report_dead(now, rank);
        self.flush();
    }

    /// Returns whether a member has said that it leaves.
    pub(super) fn has_said_farewell(&self, rank: Rank) -> bool {
        self.farewells.leavers.contains_key(&rank)
    }

    /// Puts something between this and its transport.
    #[cfg(test)]
    pub(super) fn wrap(&mut self, f: impl FnOnce(Box<dyn Transport>) -> Box<dyn Transport>) {
        let inner = std::mem::replace(&mut self.transport, Box::new(Closed));
        self.transport = f(inner);
    }

    /// Gives the member what was kept from it, if it need not wait any more.
    #[cold]
    fn release(&mut self, now: Instant) {
        if self.member.is_inside() && self.held.questions < HELD_QUESTIONS {
            return;
        }
        for word in std::mem::take(&mut self.held).words {
            match word {
                Word::View(packet) => {
                    // What is dropped has been counted.
                    let _ = self.member.receive(now, &packet);
                }
                Word::Dead(rank) => self.member.report_dead(now, rank),
            }
        }
        self.flush();
    }

    /// Those who have left are dead for the barriers that they do not enter; those that they have entered can be passed.
    fn bury_leavers(&mut self, now: Instant) {
        let epoch = self.member.epoch();
        if !self.member.is_inside() {
            return;
        }
        let is_missing = |first: u32| epoch.wrapping_sub(first) < u32::MAX / 2;
        let missing: Vec<Rank> = self
            .farewells
            .leavers
            .iter()
            .filter(|(_, first)| is_missing(**first))
            .map(|(rank, _)| *rank)
            .collect();
        for rank in missing {
            self.farewells.leavers.remove(&rank);
            self.member.report_dead(now, rank);
        }
        self.flush();
    }

    /// Returns whether this member has left, and nobody needs it any more.
    pub(super) fn is_free(&self) -> bool {
        self.farewells.is_done() || self.has_failed()
    }

    /// Prepares for sleep. Returns whether something may be there.
    pub(super) fn arm(&mut self, waker: &Waker) -> io::Result<bool> {
        self.transport.arm(waker)
    }

    /// Returns whether there is something to do though nothing has come.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Returns when to look though nothing has come.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.member.next_deadline(), self.farewells.deadline()].into_iter().flatten().min()
    }

    fn flush(&mut self) {
        if self.probes.has_replies() || self.retired.is_some() {
            self.flush_beside();
        }
        while let Some(transmit) = self.member.poll_transmit() {
            let sent = self.transport.send(transmit.to, transmit.network, &transmit.packet);
            self.unsent += u64::from(sent.is_err());
        }
        while let Some(event) = self.member.poll_event() {
            match event {
                Event::Exited { epoch, value } => {
                    // All have entered this one, so nobody asks for those before the renewal.
                    self.retired = None;
                    self.exit = Some((Passed::new(epoch), value));
                }
                Event::Failed { ranks, .. } => self.dead = ranks,
                Event::Agreed { survivors } => self.survivors = Some(survivors),
                Event::Minority { survivors } => {
                    self.minority = Some(u32::try_from(survivors.len()).unwrap_or(u32::MAX));
                }
            }
        }
    }

    /// Sends what is no part of a barrier of this group.
    #[cold]
    fn flush_beside(&mut self) {
        let Self { member, transport, probes, retired, unsent, .. } = self;
        let mut send = |to, packet: &[u8]| {
            *unsent += u64::from(transport.send(to, Network::First, packet).is_err());
        };
        let mut failed = Vec::new();
        if let Some(old) = retired {
            while let Some(transmit) = old.member.poll_transmit() {
                send(transmit.to, &transmit.packet);
            }
            // What happens after a failure is for the member as which this one goes on.
            while failed.is_empty()
                && let Some(event) = old.member.poll_event()
            {
                if let Event::Failed { ranks, .. } = event {
                    failed = ranks;
                }
            }
        }
        let settings = member.settings();
        probes.reply((settings.group, settings.key.as_ref()), member.rank(), |to, packet| {
            send(Target::Member(to), packet);
        });
        if !failed.is_empty()
            && let Some(old) = retired.take()
        {
            // Somebody could not pass the barrier before the renewal: all agree on the survivors there.
            let Retired { member: old, algorithm } = *old;
            *member = old;
            self.algorithm = algorithm;
            self.dead = failed;
        }
    }

    /// Keeps what others say who renew their group before this member does.
    pub(super) fn expect_renewal(&mut self, is_expected: bool) {
        self.early = is_expected.then(|| self.early.take().unwrap_or_default());
    }

    /// Sends a probe.
    pub(super) fn send_probe(&mut self, to: Target, number: u32, say: Say<'_>) {
        self.turns += 1;
        let settings = self.member.settings();
        let probe = Probe { group: settings.group, number, sender: self.member.rank(), say };
        let packet = probe.encode(settings.key.as_ref());
        self.send_beside(to, &packet);
    }

    /// Goes on with another schedule, as all others do after the same barrier: a new group with the same members.
    pub(super) fn renew(
        &mut self,
        now: Instant,
        algorithm: Algorithm,
        schedule: Arc<Schedule>,
    ) -> Result<(), MemberError> {
        let mut settings = self.member.settings().clone();
        settings.group = settings.group.without(&BTreeSet::new());
        let member = Member::new(schedule, self.member.rank(), settings)?;
        let member = std::mem::replace(&mut self.member, member);
        let algorithm = std::mem::replace(&mut self.algorithm, algorithm);
        self.retired = Some(Box::new(Retired { member, algorithm }));
        self.farewells = Farewells::default();
        for packet in self.early.take().unwrap_or_default() {
            if !self.farewells.take(&self.member, &packet) {
                let _ = self.member.receive(now, &packet);
            }
        }
        self.flush();
        Ok(())
    }

    /// Returns what came of the barrier, if that is known.
    #[inline]
    pub(super) fn take_exit(&mut self) -> Option<Result<Exit, BarrierError>> {
        if let Some(exit) = self.exit.take() {
            self.entered = None;
            return Some(Ok(exit));
        }
        let error = self.error(self.entered?)?;
        self.entered = None;
        Some(Err(error))
    }

    /// Returns whether [`take_exit`](Self::take_exit) would return something.
    pub(super) const fn is_over(&self) -> bool {
        self.exit.is_some() || self.has_failed()
    }

    pub(super) const fn has_failed(&self) -> bool {
        !self.dead.is_empty() || self.broken.is_some()
    }

    /// Returns whether somebody will have agreed on something, or never.
    pub(super) fn is_settled(&self) -> bool {
        self.survivors.is_some()
            || self.minority.is_some()
            || self.broken.is_some()
            || self.is_excluded()
    }

    fn is_excluded(&self) -> bool {
        self.dead == [self.member.rank()]
    }

    fn error(&mut self, epoch: u32) -> Option<BarrierError> {
        if let Some(error) = &self.broken {
            let source = io::Error::new(error.kind(), error.to_string());
            return Some(BarrierError::Io { doing: "receiving from the network", source });
        }
        (!self.dead.is_empty()).then(|| self.lost(epoch))
    }

    /// Why no smaller group was agreed on.
    pub(super) fn refusal(&self) -> BarrierError {
        match self.minority {
            Some(survivors) if !self.is_excluded() => {
                let group = self.member.schedule().group();
                let size = self.member.settings().size_at_first(group);
                BarrierError::Minority { survivors, size }
            }
            _ => self.lost(self.member.epoch()),
        }
    }

    pub(super) fn lost(&self, epoch: u32) -> BarrierError {
        let mut ranks = self.dead.clone();
        if ranks.is_empty() {
            ranks = self.member.dead();
        }
        BarrierError::Lost { ranks: LostRanks::new(ranks), epoch }
    }

    /// Becomes a member of the smaller group on which the survivors have agreed, with the same algorithm, unless that is
    /// for some sizes only. Returns who they are, or says why not.
    pub(super) fn shrink(&mut self) -> Result<Vec<Rank>, String> {
        let survivors = self.survivors.clone().unwrap_or_default();
        let size = u32::try_from(survivors.len()).unwrap_or(u32::MAX);
        let group = Group::new(size).map_err(|error| error.to_string())?;
        let algorithm = Some(self.algorithm).filter(|algorithm| algorithm.check(group).is_ok());
        let algorithm = algorithm.unwrap_or(Algorithm::Pairwise);
        let schedule = algorithm.schedule(group).map_err(|error| error.to_string())?;
        self.member.shrink(Arc::new(schedule)).map_err(|error| error.to_string())?;
        self.transport.shrink(&survivors);
        self.algorithm = algorithm;
        self.retired = None;
        self.farewells = Farewells::default();
        self.held = Held::default();
        self.dead.clear();
        self.survivors = None;
        self.exit = None;
        self.entered = None;
        self.flush();
        Ok(survivors)
    }

    /// Ends the transport, and returns it to be dropped where nothing is locked.
    pub(super) fn close(&mut self) -> Box<dyn Transport> {
        self.broken = Some(io::ErrorKind::NotConnected.into());
        std::mem::replace(&mut self.transport, Box::new(Closed))
    }

    /// Tells the others that this member leaves for good, and stays for a while.
    pub(super) fn leave(&mut self, now: Instant) {
        self.has_left = true;
        if self.has_failed() {
            self.member.leave(now);
            return self.flush();
        }
        let before = self.retired.as_ref().map(|old| &old.member);
        self.farewells.leave(now, &self.member, before);
        if let Some(packet) = self.farewells.packet(&self.member, true) {
            self.send_beside(Target::Everyone, &packet);
        }
    }

    /// Tells the others that this member has gone.
    pub(super) fn go(&mut self, now: Instant) {
        if self.has_failed() {
            if !self.has_left {
                self.member.leave(now);
            }
            return self.flush();
        }
        let Some(packet) = self.farewells.packet(&self.member, false) else { return };
        for to in self.farewells.last_words(&self.member) {
            self.send_beside(to, &packet);
        }
    }

    fn send_beside(&mut self, to: Target, packet: &[u8]) {
        let sent = self.transport.send(to, Network::First, packet);
        self.unsent += u64::from(sent.is_err());
    }

    #[cold]
    fn say_farewells(&mut self, now: Instant) {
        let Self { farewells, member, transport, unsent, .. } = self;
        farewells.say(now, member, |to, network, packet| {
            *unsent += u64::from(transport.send(Target::Member(to), network, packet).is_err());
        });
    }
}

/// Returns whether another member says who is dead in the barrier after the one in which this member is: by then all have
/// entered this one.
fn is_ahead(member: &Member, packet: &[u8]) -> bool {
    let settings = member.settings();
    let Ok(packet) = Packet::parse(packet, settings.key.as_ref()) else { return false };
    packet.group == settings.group
        && packet.epoch == member.epoch().wrapping_add(1)
        && matches!(packet.body, Body::View { .. })
}

#[cfg(test)]
mod renewal;
#[cfg(test)]
mod tests;

/// The end of a transport.
struct Closed;

impl Transport for Closed {
    fn send(&mut self, _: Target, _: Network, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn receive(&mut self, _: &Waker, _: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn arm(&mut self, _: &Waker) -> io::Result<bool> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn next_dead(&mut self) -> Option<Rank> {
        None
    }

    fn shrink(&mut self, _: &[Rank]) {}
}
