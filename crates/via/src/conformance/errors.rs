//! Descriptor errors, and their effect on the connection.

use std::io::IoSlice;

use super::{
    Clause, Fixture,
    testbed::{ConformanceCase, Party, Queues, Testbed, descriptor, pattern},
};
use crate::vi::{
    Data, DisconnectReason, Operation, Provider, Queue, Reliability, SendDescriptor, Status,
};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, ConformanceCase<F>)> {
    vec![
        ("a receive descriptor is missing", missing),
        ("a message is too long", too_long),
        ("descriptors that make no sense", formats),
        ("what is posted behind a failure is flushed", flushed),
        ("a break is no other connection's", isolated),
    ]
}

use super::violation::CaseResult;

impl<F: Fixture> Testbed<'_, F> {
    /// Expects that a send or write of `from` met an error at `to`: `status` under reliable reception.
    pub(super) fn expect_remote_error(
        &mut self,
        from: &Party,
        to: &Party,
        cookie: u64,
        status: Status,
    ) -> CaseResult {
        match self.level() {
            Reliability::ReliableReception => {
                self.expect_end(from, Queue::Send, cookie, status)?;
                self.expect_both_broken(from, to)
            }
            Reliability::ReliableDelivery => {
                self.expect_either_end(from, cookie, &[Status::Done, Status::TransportError])?;
                self.expect_both_broken(from, to)
            }
            Reliability::Unreliable => {
                self.expect_end(from, Queue::Send, cookie, Status::Done)?;
                self.expect_no_event(from.nic)?;
                self.expect_no_event(to.nic)
            }
        }
    }

    fn expect_either_end(&mut self, party: &Party, cookie: u64, statuses: &[Status]) -> CaseResult {
        let found = self.expect_next(party, Queue::Send, cookie)?;
        if statuses.contains(&found.status) {
            return Ok(());
        }
        let saw = format!("the status {:?}, where one of {statuses:?} is right", found.status);
        Err(self.broken(Clause::Status, saw))
    }
}

fn missing<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    for operation in [Operation::Send, Operation::RdmaWrite] {
        for length in [4_usize, 1000] {
            let (one, other) = testbed.pair()?;
            let bytes = testbed.fill(&one, 0, length)?;
            let data = [one.piece(0, u64::try_from(length).unwrap_or(0))];
            let remote = (operation == Operation::RdmaWrite).then(|| other.place(64));
            let lost = SendDescriptor {
                immediate: Some(5),
                ..descriptor(operation, 3, remote, Data::Segments(&data))
            };
            testbed.post(&one, &lost)?;
            testbed.expect_remote_error(&one, &other, 3, Status::RemoteDescriptorError)?;
            if testbed.is_reliable() {
                continue;
            }
            // Nor does it arrive later.
            testbed.post_receive(&other, 4, &[other.piece(64, 1000)])?;
            testbed.expect_no_completion(Clause::ReceiveDescriptor, &other, Queue::Receive)?;
            testbed.post(&one, &lost)?;
            let received = testbed.expect_end(&other, Queue::Receive, 4, Status::Done)?;
            testbed.expect(Clause::Placement, "the immediate", &received.immediate, &Some(5))?;
            let found = testbed.get(&other.region, 64, length)?;
            testbed.expect(Clause::Placement, "the message after it", &found, &bytes)?;
            testbed.expect_end(&one, Queue::Send, 3, Status::Done)?;
        }
    }

    Ok(())
}

fn too_long<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    for length in [9_usize, 200, 3000] {
        let (one, other) = testbed.pair()?;
        testbed.fill(&one, 0, length)?;
        testbed.post_receive(&other, 1, &[other.piece(16, 4), other.piece(32, 4)])?;
        let data = [one.piece(0, u64::try_from(length).unwrap_or(0))];
        testbed.post(&one, &descriptor(Operation::Send, 2, None, Data::Segments(&data)))?;
        testbed.expect_end(&other, Queue::Receive, 1, Status::LengthError)?;
        testbed.expect_remote_error(&one, &other, 2, Status::LengthError)?;
        for (offset, length) in [(0, 16), (20, 12), (36, 4000)] {
            let found = testbed.get(&other.region, offset, length)?;
            let what = "memory beside the receive descriptor's";
            testbed.expect(Clause::Protection, what, &found, &vec![0; length])?;
        }
        if !testbed.is_reliable() {
            testbed.expect_alive(&one, &other)?;
        }
    }
    Ok(())
}

fn formats<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let has_read = testbed.attributes().has_rdma_read;
    for number in 0..if testbed.is_reliable() { 5_u64 } else { 2 } {
        let (one, other) = testbed.pair()?;
        let pieces = [IoSlice::new(b"nonsense")];
        let (inline, place) = (Data::Inline(&pieces), Some(other.place(0)));
        let segments = [one.piece(0, 8)];
        let read = Data::Segments(&segments);
        let senseless = match number {
            0 => descriptor(Operation::Send, 1, place, inline),
            1 => descriptor(Operation::RdmaWrite, 1, None, inline),
            2 => descriptor(Operation::RdmaRead, 1, place, inline),
            3 => descriptor(Operation::RdmaRead, 1, None, read),
            _ if has_read => {
                let read = descriptor(Operation::RdmaRead, 1, place, read);
                SendDescriptor { immediate: Some(1), ..read }
            }
            // A read, on a level that offers none.
            _ => descriptor(Operation::RdmaRead, 1, place, read),
        };
        testbed.post(&one, &senseless)?;
        let found = testbed.completion(&one, Queue::Send)?;
        if found.status != Status::FormatError {
            let saw = format!("{senseless:?} ended as {:?}", found.status);
            return Err(testbed.broken(Clause::Status, saw));
        }
        testbed.after_local_error(&one, &other)?;
    }

    Ok(())
}

impl<F: Fixture> Testbed<'_, F> {
    /// Checks the state after an error of `one` only.
    pub(super) fn after_local_error(&mut self, one: &Party, other: &Party) -> CaseResult {
        if self.is_reliable() {
            self.expect_both_broken(one, other)
        } else {
            self.expect_alive(one, other)
        }
    }
}

fn flushed<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    if !testbed.is_reliable() {
        testbed.skip("errors do not break unreliable connections");
        return Ok(());
    }

    let (one, other) = testbed.pair()?;
    for cookie in 0..10 {
        testbed.post_receive(&one, cookie, &[])?;
        testbed.post_receive(&other, cookie, &[])?;
    }

    let bytes = pattern(0, 8);
    let pieces = [IoSlice::new(&bytes)];
    for cookie in 0..10 {
        let place = other.place(if cookie == 4 { u64::MAX } else { 8 * cookie });
        let write = descriptor(Operation::RdmaWrite, cookie, Some(place), Data::Inline(&pieces));
        let is_signaled = cookie % 2 == 1;
        let sent = SendDescriptor { immediate: Some(1), is_signaled, ..write };
        let result = testbed.nics[0].post_send(one.vi, &sent);
        // An eager provider has already broken the connection.
        if cookie <= 4 {
            testbed.call(Clause::Limit, "post_send", result)?;
        } else if result.is_err() {
            return testbed.after_failure(&one, &other, cookie);
        }
    }

    testbed.after_failure(&one, &other, 10)
}

impl<F: Fixture> Testbed<'_, F> {
    /// Descriptor 4 of `count` fails; those with odd numbers are signaled.
    fn after_failure(&mut self, one: &Party, other: &Party, count: u64) -> CaseResult {
        for cookie in [1, 3] {
            self.expect_end(one, Queue::Send, cookie, Status::Done)?;
        }
        // Under reliable delivery the error is the peer's, and this side learns of it when the
        // connection breaks.
        let is_told = self.level() == Reliability::ReliableReception;
        if is_told {
            self.expect_end(one, Queue::Send, 4, Status::RdmaProtectionError)?;
        }
        let mut last = 4;
        let mut ends = Vec::new();
        self.expect_both_broken(one, other)?;
        while let Some(found) = self.nics[one.nic].poll_queue(one.vi, Queue::Send) {
            let expected = [Status::Flushed, Status::TransportError];
            let may_be_done = !is_told && found.status.is_done();
            if !(expected.contains(&found.status) || may_be_done) {
                let saw = format!("{found:?} behind a failure");
                return Err(self.broken(Clause::End, saw));
            }
            let is_next = found.cookie > last || (found.cookie == 4 && last == 4 && !is_told);
            if !is_next {
                return Err(self.broken(Clause::Order, format!("{found:?} after {last}")));
            }
            last = found.cookie;
            ends.push(found.cookie);
        }

        for cookie in 5..count {
            // Under reliable delivery, an unsignaled one may be done for its sender.
            let may_be_silent = !is_told && cookie % 2 == 0;
            if !ends.contains(&cookie) && !may_be_silent {
                let saw = format!("descriptor {cookie}, posted behind a failure, did not end");
                return Err(self.broken(Clause::End, saw));
            }
        }

        for cookie in 0..10 {
            let status = if cookie < 4 { Status::Done } else { Status::Flushed };
            let found = self.expect_next(other, Queue::Receive, cookie)?;
            self.expect(Clause::End, "how a receive descriptor ended", &found.status, &status)?;
        }

        for cookie in 0..10 {
            self.expect_flushed(one, cookie)?;
        }
        // In the error state, a receive descriptor ends by the time of the disconnect at the latest.
        self.post_receive(one, 50, &[])?;
        let result = self.nics[one.nic].disconnect(one.vi);
        self.call(Clause::State, "disconnect", result)?;
        self.expect_flushed(one, 50)?;
        for queue in [Queue::Send, Queue::Receive] {
            self.expect_no_completion(Clause::Once, one, queue)?;
            self.expect_no_completion(Clause::Once, other, queue)?;
        }

        Ok(())
    }
}

fn isolated<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    let (same, third) = (testbed.party(0, Queues::Own)?, testbed.party(2, Queues::Own)?);
    testbed.connect(&same, &third)?;
    let (next, beside) = testbed.pair()?;
    let pieces = [IoSlice::new(b"beyond")];
    let bad =
        descriptor(Operation::RdmaWrite, 1, Some(other.place(u64::MAX - 3)), Data::Inline(&pieces));
    testbed.post(&one, &bad)?;
    testbed.expect_remote_error(&one, &other, 1, Status::RdmaProtectionError)?;
    for (from, to) in [(&same, &third), (&third, &same), (&next, &beside), (&beside, &next)] {
        testbed.expect_isolated(from, to)?;
    }
    let result = testbed.nics[0].disconnect(next.vi);
    testbed.call(Clause::State, "disconnect", result)?;
    testbed.expect_broken(&beside, &[DisconnectReason::Disconnected])?;
    testbed.expect_isolated(&same, &third)
}

impl<F: Fixture> Testbed<'_, F> {
    /// Expects that a connection still works while others end.
    pub(super) fn expect_isolated(&mut self, from: &Party, to: &Party) -> CaseResult {
        self.calm();
        for party in [from, to] {
            let state = self.call(Clause::State, "state", self.nics[party.nic].state(party.vi))?;
            let expected = crate::vi::ViState::Connected;
            self.expect(Clause::Isolation, "a VI of another connection", &state, &expected)?;
        }
        self.expect_alive(from, to)
    }
}
