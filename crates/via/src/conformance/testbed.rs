//! The test bed of the cases: NICs, connected pairs of VIs, bounded waits, and judgements.

use std::{collections::BTreeSet, fmt};

use super::{Clause, ConformanceReport, Fixture, Location, Profile, Violation};
use crate::vi::{
    Completion, Connect, CqId, Data, DisconnectReason, LocalSegment, MemoryAttributes,
    NicAttributes, NicEvent, Operation, ProtectionTag, Provider, Queue, ReceiveDescriptor, Region,
    Reliability, RemoteSegment, SendDescriptor, Status, ViAttributes, ViError, ViId, ViState,
};

use vigie_detect::Instant;

/// A case of the suite.
pub(super) type ConformanceCase<F> = fn(&mut Testbed<'_, F>) -> Result<(), Violation>;

/// The size of the memory of a [`Party`], in bytes.
pub(super) const REGION_BYTES: usize = 8192;

/// Three NICs, and what was observed of them.
pub(super) struct Testbed<'f, F: Fixture> {
    pub(super) fixture: &'f mut F,
    pub(super) nics: Vec<F::Nic>,
    pub(super) at: Location,
    pub(super) profile: Profile,
    pub(super) report: &'f mut ConformanceReport,
    /// The cookies of the receive descriptors that were posted on each VI.
    posted: BTreeSet<(usize, ViId, u64)>,
    /// The completion that was taken last.
    last: Option<(usize, Completion)>,
}

/// One VI with its queues and its memory, which the peer may write and read.
#[derive(Clone, Debug)]
pub(super) struct Party {
    pub(super) nic: usize,
    pub(super) vi: ViId,
    pub(super) tag: ProtectionTag,
    pub(super) send_cq: Option<CqId>,
    pub(super) receive_cq: Option<CqId>,
    pub(super) region: Region,
}

impl Party {
    /// A piece of its memory.
    pub(super) fn piece(&self, offset: u64, length: u64) -> LocalSegment {
        LocalSegment { memory: self.region.handle, offset, length }
    }

    /// A place in its memory, for its peer.
    pub(super) fn place(&self, offset: u64) -> RemoteSegment {
        RemoteSegment { key: self.region.key, offset }
    }
}

/// The completion queues of a new VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queues {
    /// None.
    Own,
    /// One new queue for both.
    Shared,
    /// This queue for both.
    Given(CqId),
}

/// A signaled send descriptor without immediate data.
pub(super) const fn descriptor(
    operation: Operation,
    cookie: u64,
    remote: Option<RemoteSegment>,
    data: Data<'_>,
) -> SendDescriptor<'_> {
    SendDescriptor { operation, cookie, immediate: None, is_signaled: true, remote, data }
}

impl<'f, F: Fixture> Testbed<'f, F> {
    pub(super) fn new(
        fixture: &'f mut F,
        at: Location,
        report: &'f mut ConformanceReport,
    ) -> Result<Self, Violation> {
        let mut nics = Vec::new();
        for _ in 0..3 {
            nics.push(fixture.nic().map_err(|error| Violation::Setup { error, at })?);
        }
        let profile = fixture.profile();
        let (posted, last) = (BTreeSet::new(), None);
        Ok(Self { fixture, nics, at, profile, report, posted, last })
    }

    pub(super) fn attributes(&self) -> NicAttributes {
        self.nics[0].attributes()
    }

    pub(super) const fn level(&self) -> Reliability {
        self.at.level
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.level() != Reliability::Unreliable
    }

    pub(super) fn skip(&mut self, why: &'static str) {
        self.report.skipped.push((self.at.case, why));
    }

    // -------------------------------------------------------------- judgements

    pub(super) fn broken(&self, clause: Clause, saw: impl Into<String>) -> Violation {
        Violation::Broken { clause, saw: saw.into(), at: self.at }
    }

    pub(super) fn expect<T: PartialEq + fmt::Debug>(
        &self,
        clause: Clause,
        what: &str,
        found: &T,
        expected: &T,
    ) -> Result<(), Violation> {
        if found == expected {
            return Ok(());
        }
        let found = shortened(&format!("{found:?}"));
        let expected = shortened(&format!("{expected:?}"));
        Err(self.broken(clause, format!("{what}: found {found}, expected {expected}")))
    }

    pub(super) fn call<T>(
        &self,
        clause: Clause,
        call: &'static str,
        result: Result<T, ViError>,
    ) -> Result<T, Violation> {
        result.map_err(|error| Violation::CallFailed { clause, call, error, at: self.at })
    }

    /// Expects a call to fail with an error that `is_right` accepts.
    pub(super) fn refused<T>(
        &self,
        clause: Clause,
        what: &str,
        result: Result<T, ViError>,
        is_right: impl FnOnce(&ViError) -> bool,
    ) -> Result<(), Violation> {
        match result {
            Err(error) if is_right(&error) => Ok(()),
            Err(error) => {
                Err(self.broken(clause, format!("{what} failed with another error: {error:?}")))
            }
            Ok(_) => Err(self.broken(clause, format!("{what} was allowed"))),
        }
    }

    // -------------------------------------------------------------- time

    pub(super) fn tick(&mut self) {
        let now = self.fixture.now();
        for nic in &mut self.nics {
            nic.progress(now);
        }
    }

    /// Lets time pass until `check` finds something.
    pub(super) fn until<T>(
        &mut self,
        mut check: impl FnMut(&mut Vec<F::Nic>) -> Option<T>,
    ) -> Option<T> {
        let end = self.later();
        loop {
            self.tick();
            if let Some(found) = check(&mut self.nics) {
                return Some(found);
            }
            if !self.fixture.pass(end) {
                // Events of the last step.
                self.tick();
                return check(&mut self.nics);
            }
        }
    }

    /// Lets a little time pass.
    pub(super) fn step(&mut self) {
        self.fixture.pass(self.fixture.now() + self.profile.calm);
        self.tick();
    }

    /// Lets everything that is pending happen.
    pub(super) fn calm(&mut self) {
        let end = self.fixture.now() + self.profile.calm;
        loop {
            self.tick();
            if !self.fixture.pass(end) {
                self.tick();
                return;
            }
        }
    }

    pub(super) fn later(&self) -> Instant {
        self.fixture.now() + self.profile.timeout
    }

    // -------------------------------------------------------------- events and completions

    /// Returns the next event of a NIC, which must come.
    pub(super) fn event(&mut self, nic: usize) -> Result<NicEvent, Violation> {
        let event = self.until(|nics| nics[nic].next_event());
        self.report.events += u64::from(event.is_some());
        event.ok_or_else(|| self.broken(Clause::Connection, "an event did not come"))
    }

    pub(super) fn expect_event(
        &mut self,
        nic: usize,
        expected: &NicEvent,
    ) -> Result<(), Violation> {
        let event = self.event(nic)?;
        self.expect(Clause::Connection, "an event", &event, expected)
    }

    pub(super) fn expect_no_event(&mut self, nic: usize) -> Result<(), Violation> {
        self.calm();
        match self.nics[nic].next_event() {
            Some(event) => Err(self.broken(Clause::Connection, format!("unasked for: {event:?}"))),
            None => Ok(()),
        }
    }

    /// Expects the VI to break for one of these reasons.
    pub(super) fn expect_broken(
        &mut self,
        party: &Party,
        reasons: &[DisconnectReason],
    ) -> Result<(), Violation> {
        match self.event(party.nic)? {
            NicEvent::Broken { vi, reason } if vi == party.vi && reasons.contains(&reason) => {}
            event => {
                let saw = format!("{event:?} instead of a break for one of {reasons:?}");
                return Err(self.broken(Clause::Connection, saw));
            }
        }
        self.expect_state(party, ViState::Error)
    }

    /// Expects both sides to break because a descriptor failed.
    pub(super) fn expect_both_broken(
        &mut self,
        one: &Party,
        other: &Party,
    ) -> Result<(), Violation> {
        for party in [one, other] {
            self.expect_broken(party, &[DisconnectReason::DescriptorFailed])?;
        }
        Ok(())
    }

    pub(super) fn expect_state(&self, party: &Party, state: ViState) -> Result<(), Violation> {
        let found = self.call(Clause::State, "state", self.nics[party.nic].state(party.vi))?;
        self.expect(Clause::State, "the state", &found, &state)
    }

    fn poll(nic: &mut F::Nic, party: &Party, queue: Queue) -> Option<Completion> {
        let cq = match queue {
            Queue::Send => party.send_cq,
            Queue::Receive => party.receive_cq,
        };
        match cq {
            Some(cq) => nic.poll_cq(cq),
            None => nic.poll_queue(party.vi, queue),
        }
    }

    /// Returns the next completion of a queue, which must come; of a shared completion queue, of any VI.
    pub(super) fn completion(
        &mut self,
        party: &Party,
        queue: Queue,
    ) -> Result<Completion, Violation> {
        let completion = self.until(|nics| Self::poll(&mut nics[party.nic], party, queue));
        self.report.completions += u64::from(completion.is_some());
        completion
            .ok_or_else(|| self.broken(Clause::End, format!("a {queue:?} completion did not come")))
    }

    /// Expects the next completion to be this descriptor's, with this status.
    pub(super) fn expect_end(
        &mut self,
        party: &Party,
        queue: Queue,
        cookie: u64,
        status: Status,
    ) -> Result<Completion, Violation> {
        let found = self.expect_next(party, queue, cookie)?;
        self.expect(Clause::Status, "the status", &found.status, &status)?;
        Ok(found)
    }

    /// Expects the next completion to be this descriptor's.
    pub(super) fn expect_next(
        &mut self,
        party: &Party,
        queue: Queue,
        cookie: u64,
    ) -> Result<Completion, Violation> {
        let before = self.last.take();
        let found = self.completion(party, queue)?;
        self.last = Some((party.nic, found));
        if (found.vi, found.queue, found.cookie) == (party.vi, queue, cookie) {
            return Ok(found);
        }
        let place = (party.nic, found.vi, found.cookie);
        let is_told = before.is_some_and(|(nic, before)| nic == party.nic && before == found);
        let (clause, what) = if is_told {
            (Clause::Once, "came again")
        } else if found.queue == Queue::Receive && !self.posted.contains(&place) {
            (Clause::ReceiveDescriptor, "is of a descriptor that was never posted; it came")
        } else {
            (Clause::Order, "came")
        };
        let due = (party.vi, queue, cookie);
        Err(self.broken(clause, format!("{found:?} {what} where {due:?} was due")))
    }

    pub(super) fn expect_no_completion(
        &mut self,
        clause: Clause,
        party: &Party,
        queue: Queue,
    ) -> Result<(), Violation> {
        self.calm();
        match Self::poll(&mut self.nics[party.nic], party, queue) {
            Some(found) => Err(self.broken(clause, format!("one completion too many: {found:?}"))),
            None => Ok(()),
        }
    }

    // -------------------------------------------------------------- objects

    pub(super) fn region(
        &mut self,
        nic: usize,
        attributes: MemoryAttributes,
        length: usize,
    ) -> Result<Region, Violation> {
        let region = self.nics[nic].allocate(length, attributes);
        let region = self.call(Clause::Limit, "allocate", region)?;
        let found = self.get(&region, 0, length)?;
        let is_zeroed = found.iter().all(|byte| *byte == 0);
        self.expect(Clause::Name, "whether new memory is zeroed", &is_zeroed, &true)?;
        Ok(region)
    }

    /// Makes a VI that is not connected.
    pub(super) fn party(&mut self, nic: usize, queues: Queues) -> Result<Party, Violation> {
        let tag = self.nics[nic].create_tag();
        let level = self.level();
        self.party_with(nic, queues, tag, level)
    }

    pub(super) fn party_with(
        &mut self,
        nic: usize,
        queues: Queues,
        tag: ProtectionTag,
        reliability: Reliability,
    ) -> Result<Party, Violation> {
        let cq = match queues {
            Queues::Own => None,
            Queues::Given(cq) => Some(cq),
            Queues::Shared => {
                let cq = self.nics[nic].create_cq();
                Some(self.call(Clause::Name, "create_cq", cq)?)
            }
        };

        let attributes = ViAttributes {
            reliability,
            tag,
            send_cq: cq,
            receive_cq: cq,
            allows_write: true,
            allows_read: true,
        };

        let vi = self.nics[nic].create_vi(attributes);
        let vi = self.call(Clause::Name, "create_vi", vi)?;
        let memory = MemoryAttributes { tag, allows_write: true, allows_read: true };
        let region = self.region(nic, memory, REGION_BYTES)?;
        Ok(Party { nic, vi, tag, send_cq: cq, receive_cq: cq, region })
    }

    /// Makes two connected VIs, of the first two NICs.
    pub(super) fn pair(&mut self) -> Result<(Party, Party), Violation> {
        let (one, other) = (self.party(0, Queues::Own)?, self.party(1, Queues::Own)?);
        self.connect(&one, &other)?;
        Ok((one, other))
    }

    /// Connects two VIs, peer to peer.
    pub(super) fn connect(&mut self, one: &Party, other: &Party) -> Result<(), Violation> {
        let deadline = self.later();
        for (caller, called) in [(one, other), (other, one)] {
            let address = self.nics[called.nic].address();
            let result = self.nics[caller.nic]
                .connect_peer(Connect::new(caller.vi, &address, b"pair", deadline));
            self.call(Clause::Connection, "connect_peer", result)?;
        }
        for party in [one, other] {
            let expected = NicEvent::Connected { vi: party.vi, greeting: Vec::new() };
            self.expect_event(party.nic, &expected)?;
            self.expect_state(party, ViState::Connected)?;
        }
        Ok(())
    }

    /// Fills memory with a pattern that depends on the offset.
    pub(super) fn fill(
        &self,
        party: &Party,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Violation> {
        let bytes = pattern(offset, length);
        self.put(&party.region, offset, &bytes)?;
        Ok(bytes)
    }

    pub(super) fn put(&self, region: &Region, offset: u64, bytes: &[u8]) -> Result<(), Violation> {
        region
            .memory
            .write(offset, bytes)
            .map_err(|error| self.broken(Clause::Limit, format!("memory is too short: {error}")))
    }

    pub(super) fn get(
        &self,
        region: &Region,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Violation> {
        region
            .memory
            .read_to_vec(offset, length)
            .map_err(|error| self.broken(Clause::Limit, format!("memory is too short: {error}")))
    }

    // -------------------------------------------------------------- posting

    pub(super) fn post(
        &mut self,
        party: &Party,
        descriptor: &SendDescriptor<'_>,
    ) -> Result<(), Violation> {
        let result = self.nics[party.nic].post_send(party.vi, descriptor);
        self.call(Clause::Limit, "post_send", result)
    }

    pub(super) fn post_receive(
        &mut self,
        party: &Party,
        cookie: u64,
        segments: &[LocalSegment],
    ) -> Result<(), Violation> {
        let result =
            self.nics[party.nic].post_receive(party.vi, &ReceiveDescriptor { cookie, segments });
        self.posted.insert((party.nic, party.vi, cookie));
        self.call(Clause::Limit, "post_receive", result)
    }

    /// Expects a message to arrive: the connection works.
    pub(super) fn expect_alive(&mut self, from: &Party, to: &Party) -> Result<(), Violation> {
        let (immediate, data) = (Some(77), [from.piece(0, 8)]);
        let sent = SendDescriptor {
            immediate,
            ..descriptor(Operation::RdmaWrite, 7700, Some(to.place(0)), Data::Segments(&data))
        };
        self.post_receive(to, 7701, &[])?;
        self.post(from, &sent)?;
        let received = self.expect_end(to, Queue::Receive, 7701, Status::Done)?;
        self.expect(Clause::Placement, "the immediate data", &received.immediate, &immediate)?;
        self.expect_end(from, Queue::Send, 7700, Status::Done)?;
        Ok(())
    }
}

/// Returns bytes that depend on their offset, none of them zero.
pub(super) fn pattern(offset: u64, length: usize) -> Vec<u8> {
    (offset..)
        .take(length)
        .map(|place| (place ^ (place >> 8) ^ (place >> 16)).to_le_bytes()[0] | 1)
        .collect()
}

fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(300).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
