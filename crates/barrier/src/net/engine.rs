//! A member and its transport, without waiting.

use std::{collections::BTreeSet, io, sync::Arc, task::Waker};

use vigie_detect::{ArmOutcome, Instant};

use super::{
    leaving::LeaveTracker,
    probe::{Probe, ProbeBody, Probes, is_probe},
    transport::Transport,
};
use crate::{
    algorithm::Algorithm,
    error::{BarrierError, LostRanks, Passed},
    group::{Group, Rank},
    member::{DropReason, EnterError, Event, Member, MemberError},
    packet::{Body, Packet, is_view},
    schedule::{Network, Schedule, Target},
};

/// The counters of a barrier over the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetCounters {
    /// The packets that the member has sent, received and dropped.
    pub member: crate::member::MemberCounters,
    /// Packets that the transport did not accept: they count as lost on the way.
    pub unsent: u64,
    /// Probes that were dropped: of other groups, forged, or useless.
    pub probes_dropped: u64,
}

/// The result of a barrier: its number and the reduced value.
pub(super) type Exit = (Passed, Vec<u8>);

pub(super) struct BarrierEngine {
    pub(super) member: Member,
    /// The algorithm of the member's schedule.
    pub(super) algorithm: Algorithm,
    transport: Box<dyn Transport>,
    /// The barrier that the user has entered and whose exit it has not taken.
    entered: Option<u32>,
    exit: Option<Exit>,
    /// All members known to be dead; only this member if the others believe it dead.
    dead: Vec<Rank>,
    pub(super) survivors: Option<Vec<Rank>>,
    /// The number of members that are left, if they are too few.
    minority: Option<u32>,
    leave_tracker: LeaveTracker,
    deferred: DeferredDeaths,
    unsent: u64,
    /// The transport has failed.
    transport_error: Option<io::Error>,
    pub(super) has_left: bool,
    pub(super) probes: Probes,
    /// The member before this one's [renewal](Self::renew), for others that still ask for its last barrier.
    previous: Option<Box<PreviousMember>>,
    /// Packets of members that have renewed already, if this one is about to.
    early_packets: Option<Vec<Vec<u8>>>,
}

struct PreviousMember {
    member: Member,
    algorithm: Algorithm,
}

/// The maximum number of packets kept for the next group.
const EARLY_MAX: usize = 256;

/// Reports of deaths withheld from a member inside a barrier that all have entered: they may have overtaken the
/// messages that it still waits for.
#[derive(Default)]
struct DeferredDeaths {
    reports: Vec<DeferredDeath>,
    /// The number of times that the member has asked for missing messages since.
    retries: u32,
}

enum DeferredDeath {
    /// The view of a member that has passed the barrier.
    View(Vec<u8>),
    /// The transport reports the end of a member that has announced its leave.
    Dead(Rank),
}

/// The maximum number of reports kept. Further ones are repeated until they are confirmed.
const DEFERRED_MAX: usize = 64;

/// After this many questions, members that could answer have answered.
const DEFERRED_RETRIES: u32 = 2;

impl BarrierEngine {
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
            leave_tracker: LeaveTracker::default(),
            deferred: DeferredDeaths::default(),
            unsent: 0,
            transport_error: None,
            has_left: false,
            probes: Probes::default(),
            previous: None,
            early_packets: None,
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

    /// Enters the next barrier, and sends its packets.
    pub(super) fn enter(&mut self, now: Instant, value: &[u8]) -> Result<u32, BarrierError> {
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
        self.report_leavers_dead(now);
        Ok(epoch)
    }

    /// Handles what has arrived and what is due.
    #[inline]
    pub(super) fn poll(&mut self, now: Instant, waker: &Waker) {
        let Self {
            member,
            transport,
            leave_tracker,
            deferred,
            probes,
            previous,
            early_packets,
            ..
        } = self;

        let mut take = |packet: &[u8]| {
            if is_probe(packet) {
                let config = member.config();
                let own = (member.rank(), member.schedule().group().size());
                probes.take(packet, (config.group, config.key.as_ref()), own);
                return;
            }
            if let Some(old) = previous
                && old.member.receive(now, packet) != Err(DropReason::Foreign)
            {
                return;
            }
            if leave_tracker.take(member, packet) {
                return;
            }
            if member.is_inside() && is_view(packet) && is_ahead(member, packet) {
                if deferred.reports.len() < DEFERRED_MAX {
                    deferred.reports.push(DeferredDeath::View(packet.to_vec()));
                }
                return;
            }
            // Dropped packets have been counted.
            if member.receive(now, packet) == Err(DropReason::Foreign)
                && let Some(early_packets) = early_packets
                && early_packets.len() < EARLY_MAX
            {
                early_packets.push(packet.to_vec());
            }
        };

        if let Err(error) = transport.recv_each(waker, &mut take) {
            self.transport_error = Some(error);
        }

        while let Some(rank) = self.transport.next_dead() {
            if self.leave_tracker.end(rank) {
                continue;
            }
            if self.member.is_inside() && self.leave_tracker.leavers.contains_key(&rank) {
                self.deferred.reports.push(DeferredDeath::Dead(rank));
            } else {
                self.member.report_dead(now, rank);
            }
        }

        if self.member.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.member.handle_deadline(now);
            self.deferred.retries += u32::from(!self.deferred.reports.is_empty());
        }

        self.flush();
        if !self.deferred.reports.is_empty() {
            self.report_deferred(now);
        }
        if !self.leave_tracker.leavers.is_empty() {
            self.report_leavers_dead(now);
        }
        if !self.leave_tracker.is_quiet() {
            self.send_leave_messages(now);
        }
    }

    /// Reports a member dead because of something known outside barriers.
    pub(super) fn report_dead(&mut self, now: Instant, rank: Rank) {
        self.member.report_dead(now, rank);
        self.flush();
    }

    /// Returns whether a member has announced that it leaves.
    pub(super) fn has_announced_leave(&self, rank: Rank) -> bool {
        self.leave_tracker.leavers.contains_key(&rank)
    }

    /// Wraps the transport.
    #[cfg(test)]
    pub(super) fn wrap(&mut self, f: impl FnOnce(Box<dyn Transport>) -> Box<dyn Transport>) {
        let inner = std::mem::replace(&mut self.transport, Box::new(Closed));
        self.transport = f(inner);
    }

    /// Gives the member the withheld reports, if it no longer has to wait.
    #[cold]
    fn report_deferred(&mut self, now: Instant) {
        if self.member.is_inside() && self.deferred.retries < DEFERRED_RETRIES {
            return;
        }
        for report in std::mem::take(&mut self.deferred).reports {
            match report {
                DeferredDeath::View(packet) => {
                    // Dropped packets have been counted.
                    let _ = self.member.receive(now, &packet);
                }
                DeferredDeath::Dead(rank) => self.member.report_dead(now, rank),
            }
        }
        self.flush();
    }

    /// Members that have left are dead for barriers that they do not enter; those that they have entered can be
    /// passed.
    fn report_leavers_dead(&mut self, now: Instant) {
        let epoch = self.member.epoch();
        if !self.member.is_inside() {
            return;
        }
        let is_missing = |first: u32| epoch.wrapping_sub(first) < u32::MAX / 2;
        let missing: Vec<Rank> = self
            .leave_tracker
            .leavers
            .iter()
            .filter(|(_, first)| is_missing(**first))
            .map(|(rank, _)| *rank)
            .collect();
        for rank in missing {
            self.leave_tracker.leavers.remove(&rank);
            self.member.report_dead(now, rank);
        }
        self.flush();
    }

    /// Returns whether this member has left, and no other member needs it any more.
    pub(super) fn is_released(&self) -> bool {
        self.leave_tracker.is_done() || self.has_failed()
    }

    /// Prepares for sleep.
    pub(super) fn arm(&mut self, waker: &Waker) -> io::Result<ArmOutcome> {
        self.transport.arm(waker)
    }

    /// Returns whether something is due although nothing has arrived.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Returns when to poll although nothing has arrived.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.member.next_deadline(), self.leave_tracker.deadline()].into_iter().flatten().min()
    }

    fn flush(&mut self) {
        if self.probes.has_replies() || self.previous.is_some() {
            self.flush_out_of_band();
        }
        while let Some(transmit) = self.member.poll_transmit() {
            let sent = self.transport.send(transmit.to, transmit.network, &transmit.packet);
            self.unsent += u64::from(sent.is_err());
        }
        while let Some(event) = self.member.poll_event() {
            match event {
                Event::Exited { epoch, value } => {
                    // All have entered this one, so barriers before the renewal will not be asked for.
                    self.previous = None;
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

    /// Sends packets that do not belong to a barrier of this group.
    #[cold]
    fn flush_out_of_band(&mut self) {
        let Self { member, transport, probes, previous, unsent, .. } = self;
        let mut send = |to, packet: &[u8]| {
            *unsent += u64::from(transport.send(to, Network::First, packet).is_err());
        };
        let mut failed = Vec::new();
        if let Some(old) = previous {
            while let Some(transmit) = old.member.poll_transmit() {
                send(transmit.to, &transmit.packet);
            }
            // Events after a failure are for the member that this one becomes.
            while failed.is_empty()
                && let Some(event) = old.member.poll_event()
            {
                if let Event::Failed { ranks, .. } = event {
                    failed = ranks;
                }
            }
        }
        let config = member.config();
        probes.reply((config.group, config.key.as_ref()), member.rank(), |to, packet| {
            send(Target::Member(to), packet);
        });
        if !failed.is_empty()
            && let Some(old) = previous.take()
        {
            // Another member could not pass the barrier before the renewal: all agree on the survivors there.
            let PreviousMember { member: old, algorithm } = *old;
            *member = old;
            self.algorithm = algorithm;
            self.dead = failed;
        }
    }

    /// Keeps the packets of members that renew their group before this one does.
    pub(super) fn expect_renewal(&mut self, is_expected: bool) {
        self.early_packets = is_expected.then(|| self.early_packets.take().unwrap_or_default());
    }

    /// Sends a probe.
    pub(super) fn send_probe(&mut self, to: Target, number: u32, body: ProbeBody<'_>) {
        let config = self.member.config();
        let probe = Probe { group: config.group, number, sender: self.member.rank(), body };
        let packet = probe.encode(config.key.as_ref());
        self.send_out_of_band(to, &packet);
    }

    /// Continues with another schedule, as all others do after the same barrier: a new group with the same members.
    pub(super) fn renew(
        &mut self,
        now: Instant,
        algorithm: Algorithm,
        schedule: Arc<Schedule>,
    ) -> Result<(), MemberError> {
        let mut config = self.member.config().clone();
        config.group = config.group.without(&BTreeSet::new());
        let member = Member::new(schedule, self.member.rank(), config)?;
        let member = std::mem::replace(&mut self.member, member);
        let algorithm = std::mem::replace(&mut self.algorithm, algorithm);
        self.previous = Some(Box::new(PreviousMember { member, algorithm }));
        self.leave_tracker = LeaveTracker::default();
        for packet in self.early_packets.take().unwrap_or_default() {
            if !self.leave_tracker.take(&self.member, &packet) {
                let _ = self.member.receive(now, &packet);
            }
        }
        self.flush();
        Ok(())
    }

    /// Returns the result of the barrier, if it is known.
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
        !self.dead.is_empty() || self.transport_error.is_some()
    }

    /// Marks the transport as failed.
    pub(super) fn fail(&mut self, error: io::Error) {
        self.transport_error.get_or_insert(error);
    }

    /// Returns whether the agreement is complete, or will never be.
    pub(super) fn is_settled(&self) -> bool {
        self.survivors.is_some()
            || self.minority.is_some()
            || self.transport_error.is_some()
            || self.is_excluded()
    }

    fn is_excluded(&self) -> bool {
        self.dead == [self.member.rank()]
    }

    fn error(&mut self, epoch: u32) -> Option<BarrierError> {
        if let Some(error) = &self.transport_error {
            let source = io::Error::new(error.kind(), error.to_string());
            return Some(BarrierError::Io { doing: "receiving from the network", source });
        }
        (!self.dead.is_empty()).then(|| self.lost(epoch))
    }

    /// Returns why no smaller group was agreed on.
    pub(super) fn refusal(&self) -> BarrierError {
        match self.minority {
            Some(survivors) if !self.is_excluded() => {
                let group = self.member.schedule().group();
                let size = self.member.config().size_at_first(group);
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

    /// Moves to the smaller group on which the survivors have agreed, with the same algorithm, unless that does not
    /// suit the new size. Returns its members, or the reason for the failure.
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
        self.previous = None;
        self.leave_tracker = LeaveTracker::default();
        self.deferred = DeferredDeaths::default();
        self.dead.clear();
        self.survivors = None;
        self.exit = None;
        self.entered = None;
        self.flush();
        Ok(survivors)
    }

    /// Closes the transport, and returns it to be dropped where no lock is held.
    pub(super) fn close(&mut self) -> Box<dyn Transport> {
        self.transport_error = Some(io::ErrorKind::NotConnected.into());
        std::mem::replace(&mut self.transport, Box::new(Closed))
    }

    /// Tells the others that this member leaves for good, and stays for a while.
    pub(super) fn leave(&mut self, now: Instant) {
        self.has_left = true;
        if self.has_failed() {
            self.member.leave(now);
            return self.flush();
        }
        let before = self.previous.as_ref().map(|old| &old.member);
        self.leave_tracker.leave(now, &self.member, before);
        if let Some(packet) = self.leave_tracker.packet(&self.member, true) {
            self.send_out_of_band(Target::Everyone, &packet);
        }
    }

    /// Tells the others that this member is gone.
    pub(super) fn announce_departure(&mut self, now: Instant) {
        if self.has_failed() {
            if !self.has_left {
                self.member.leave(now);
            }
            return self.flush();
        }
        let Some(packet) = self.leave_tracker.packet(&self.member, false) else { return };
        for to in self.leave_tracker.final_targets(&self.member) {
            self.send_out_of_band(to, &packet);
        }
    }

    fn send_out_of_band(&mut self, to: Target, packet: &[u8]) {
        let sent = self.transport.send(to, Network::First, packet);
        self.unsent += u64::from(sent.is_err());
    }

    #[cold]
    fn send_leave_messages(&mut self, now: Instant) {
        let Self { leave_tracker, member, transport, unsent, .. } = self;
        leave_tracker.send_due(now, member, |to, network, packet| {
            *unsent += u64::from(transport.send(Target::Member(to), network, packet).is_err());
        });
    }
}

/// Returns whether a packet is another member's view in the barrier after this member's present one: by then all have
/// entered this one.
fn is_ahead(member: &Member, packet: &[u8]) -> bool {
    let config = member.config();
    let Ok(packet) = Packet::parse(packet, config.key.as_ref()) else { return false };
    packet.group == config.group
        && packet.epoch == member.epoch().wrapping_add(1)
        && matches!(packet.body, Body::View { .. })
}

#[cfg(test)]
mod tests;

/// A transport that is closed.
struct Closed;

impl Transport for Closed {
    fn send(&mut self, _: Target, _: Network, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn recv_each(&mut self, _: &Waker, _: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn arm(&mut self, _: &Waker) -> io::Result<ArmOutcome> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn shrink(&mut self, _: &[Rank]) {}
}
