//! A member and its transport, without waiting.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::BorrowedFd,
    sync::Arc,
    task::Waker,
};

use vigie_detect::Instant;

use super::transport::Transport;
use crate::{
    algorithm::Algorithm,
    error::{BarrierError, LostRanks, Passed},
    group::{Group, Rank},
    member::{EnterError, Event, Member},
    packet::{Body, Packet, list, may_be_view},
    schedule::{Network, Target},
};

/// What a barrier over the network has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetCounters {
    /// What the member has sent, taken and dropped.
    pub member: crate::member::Counters,
    /// Packets that the transport did not take: they are as if lost on the way.
    pub unsent: u64,
}

/// What came of a barrier: its number and the reduced value.
pub(super) type Exit = (Passed, Vec<u8>);

pub(super) struct Engine {
    pub(super) member: Member,
    transport: Box<dyn Transport>,
    /// The barrier that the user has entered and not taken the exit of.
    entered: Option<u32>,
    exit: Option<Exit>,
    /// Everybody who is known to be dead; this member alone if the others take it for dead.
    dead: Vec<Rank>,
    pub(super) survivors: Option<Vec<Rank>>,
    /// Who has left in order, and the first barrier that it does not enter.
    leavers: BTreeMap<Rank, u32>,
    unsent: u64,
    /// The transport has ended.
    broken: Option<io::Error>,
    /// Somebody looks by himself.
    pub(super) is_looked_at: bool,
    /// How often somebody has entered or looked.
    pub(super) turns: u64,
    pub(super) has_left: bool,
}

impl Engine {
    pub(super) fn new(member: Member, transport: Box<dyn Transport>) -> Self {
        Self {
            member,
            transport,
            entered: None,
            exit: None,
            dead: Vec::new(),
            survivors: None,
            leavers: BTreeMap::new(),
            unsent: 0,
            broken: None,
            is_looked_at: false,
            turns: 0,
            has_left: false,
        }
    }

    pub(super) const fn entered(&self) -> Option<u32> {
        self.entered
    }

    pub(super) const fn counters(&self) -> NetCounters {
        NetCounters { member: *self.member.counters(), unsent: self.unsent }
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
                let what = format!("a value of {found} bytes, where all members have {expected}");
                let source = io::Error::new(io::ErrorKind::InvalidInput, what);
                return Err(BarrierError::Io { doing: "entering", source });
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
        let Self { member, transport, leavers, .. } = self;
        let mut take = |packet: &[u8]| {
            if may_be_view(packet)
                && let Some((rank, epoch)) = leaver(member, packet)
            {
                leavers.insert(rank, epoch);
                return;
            }
            // It has been counted.
            let _ = member.receive(now, packet);
        };
        if let Err(error) = transport.receive(waker, &mut take) {
            self.broken = Some(error);
        }
        while let Some(rank) = self.transport.next_dead() {
            self.member.report_dead(now, rank);
        }
        if self.member.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.member.handle_deadline(now);
        }
        self.flush();
        if !self.leavers.is_empty() {
            self.bury_leavers(now);
        }
    }

    /// Those who have left are dead for the barriers that they do not enter; those that they have entered can be passed.
    fn bury_leavers(&mut self, now: Instant) {
        let epoch = self.member.epoch();
        if !self.member.is_inside() {
            return;
        }
        let is_missing = |first: u32| epoch.wrapping_sub(first) < u32::MAX / 2;
        let missing: Vec<Rank> = self
            .leavers
            .iter()
            .filter(|(_, first)| is_missing(**first))
            .map(|(rank, _)| *rank)
            .collect();
        for rank in missing {
            self.leavers.remove(&rank);
            self.member.report_dead(now, rank);
        }
        self.flush();
    }

    /// Returns whether all others have left, or are known to be dead.
    pub(super) fn is_alone(&self) -> bool {
        let size = Rank(self.member.schedule().group().size()).index();
        self.leavers.len() + 1 >= size || self.has_failed()
    }

    /// Prepares for sleep. Returns whether something may be there.
    pub(super) fn arm(&mut self, waker: &Waker) -> io::Result<bool> {
        self.transport.arm(waker)
    }

    fn flush(&mut self) {
        while let Some(transmit) = self.member.poll_transmit() {
            let sent = self.transport.send(transmit.to, transmit.network, &transmit.packet);
            self.unsent += u64::from(sent.is_err());
        }
        while let Some(event) = self.member.poll_event() {
            match event {
                Event::Exited { epoch, value } => self.exit = Some((Passed::new(epoch), value)),
                Event::Failed { ranks, .. } => self.dead = ranks,
                Event::Agreed { survivors } => self.survivors = Some(survivors),
            }
        }
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
        self.survivors.is_some() || self.broken.is_some() || self.is_excluded()
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

    pub(super) fn lost(&self, epoch: u32) -> BarrierError {
        let mut ranks = self.dead.clone();
        if ranks.is_empty() {
            ranks = self.member.dead();
        }
        BarrierError::Lost { ranks: LostRanks::new(ranks), epoch }
    }

    /// Becomes a member of the smaller group on which the survivors have agreed. Returns who they are, and the algorithm:
    /// the same, unless that is for some sizes only. Or says why not.
    pub(super) fn shrink(
        &mut self,
        algorithm: Algorithm,
    ) -> Result<(Vec<Rank>, Algorithm), String> {
        let survivors = self.survivors.clone().unwrap_or_default();
        let size = u32::try_from(survivors.len()).unwrap_or(u32::MAX);
        let group = Group::new(size).map_err(|error| error.to_string())?;
        let algorithm =
            if algorithm.check(group).is_ok() { algorithm } else { Algorithm::Pairwise };
        let schedule = algorithm.schedule(group).map_err(|error| error.to_string())?;
        self.member.shrink(Arc::new(schedule)).map_err(|error| error.to_string())?;
        self.transport.shrink(&survivors);
        self.leavers.clear();
        self.dead.clear();
        self.survivors = None;
        self.exit = None;
        self.entered = None;
        self.flush();
        Ok((survivors, algorithm))
    }

    /// Ends the transport, and returns it to be dropped where nothing is locked.
    pub(super) fn close(&mut self) -> Box<dyn Transport> {
        self.broken = Some(io::ErrorKind::NotConnected.into());
        std::mem::replace(&mut self.transport, Box::new(Closed))
    }

    /// Tells the others that this member leaves for good.
    pub(super) fn leave(&mut self, now: Instant) {
        self.has_left = true;
        let entered = u32::from(self.member.is_inside());
        if self.has_failed() {
            self.member.leave(now);
        } else if let Some(list) = list(&BTreeSet::from([self.member.rank()])) {
            let settings = self.member.settings();
            let first = self.member.epoch().wrapping_add(entered);
            let body = Body::view(&list, false);
            let packet = Packet::new(settings.group, first, self.member.rank(), body);
            let packet = packet.encode(settings.key.as_ref());
            let sent = self.transport.send(Target::Everyone, Network::First, &packet);
            self.unsent += u64::from(sent.is_err());
        }
        self.flush();
    }
}

/// Returns who leaves by this packet, and the first barrier that it does not enter: a member that names itself alone. The
/// machine would bury it at once, though messages of a barrier that it has entered may still be on their way.
fn leaver(member: &Member, packet: &[u8]) -> Option<(Rank, u32)> {
    let settings = member.settings();
    let packet = Packet::parse(packet, settings.key.as_ref()).ok()?;
    let Body::View { dead, wants_reply: false } = packet.body else { return None };
    let is_own =
        packet.group == settings.group && member.schedule().group().contains(packet.sender);
    let is_leaving = is_own && packet.sender != member.rank() && member.dead().is_empty();
    (is_leaving && dead.ranks().eq([packet.sender])).then_some((packet.sender, packet.epoch))
}

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
