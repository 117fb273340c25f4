//! Queues and the names of objects.

use std::{collections::BTreeSet, io::IoSlice};

use super::{
    Clause, Fixture,
    testbed::{ConformanceCase, Party, Queues, Testbed, descriptor},
};
use crate::vi::{
    Connect, CqId, Data, MemoryHandle, Operation, Provider, Queue, ReceiveDescriptor,
    SendDescriptor, Status, ViAttributes, ViError, ViId,
};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, ConformanceCase<F>)> {
    vec![
        ("many VIs share a completion queue", shared),
        ("the receive queue is full", receive_queue_full),
        ("the send queue is full", send_queue_full),
        ("objects that are gone", gone),
        ("completions of a destroyed VI", destroyed),
        ("names are never used twice", names),
    ]
}

use super::violation::CaseResult;

const VIS: usize = 40;

fn shared<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let cq = testbed.nics[1].create_cq();
    let cq = testbed.call(Clause::Name, "create_cq", cq)?;
    let mut pairs = Vec::new();
    for index in 0..VIS {
        // From two NICs to one queue of the third.
        let one = testbed.party(if index % 2 == 0 { 0 } else { 2 }, Queues::Shared)?;
        let other = testbed.party(1, Queues::Given(cq))?;
        testbed.connect(&one, &other)?;
        pairs.push((one, other));
    }

    let rounds = 3;
    for round in 0..rounds {
        for (one, other) in &pairs {
            testbed.post_receive(other, round, &[])?;
            testbed.post_receive(one, round, &[])?;
        }
        for (one, other) in &pairs {
            for (from, to) in [(one, other), (other, one)] {
                let pieces = [IoSlice::new(b"12345678")];
                let place = Some(to.place(0));
                let write = descriptor(Operation::RdmaWrite, round, place, Data::Inline(&pieces));
                testbed.post(from, &SendDescriptor { immediate: Some(1), ..write })?;
            }
        }
    }

    // Per VI and queue, the cookies come in order, each once.
    let mut seen = BTreeSet::new();
    let (_, any) = &pairs[0];
    let expected = pairs.len() * 2 * usize::try_from(rounds).unwrap_or(0);
    for _ in 0..expected {
        let found = testbed.completion(any, Queue::Receive)?;
        testbed.expect(Clause::Status, "the status", &found.status, &Status::Done)?;
        if !pairs.iter().any(|(_, other)| other.vi == found.vi) {
            return Err(testbed.broken(Clause::Once, format!("{found:?} of no VI")));
        }
        let is_send = found.queue == Queue::Send;
        let is_early = found.cookie > 0 && !seen.contains(&(found.vi, is_send, found.cookie - 1));
        if is_early {
            return Err(testbed.broken(Clause::Order, format!("{found:?} came too early")));
        }
        if !seen.insert((found.vi, is_send, found.cookie)) {
            return Err(testbed.broken(Clause::Once, format!("{found:?} came twice")));
        }
    }

    testbed.expect_no_completion(Clause::Once, any, Queue::Receive)?;
    for (_, other) in &pairs {
        for queue in [Queue::Send, Queue::Receive] {
            if let Some(found) = testbed.nics[1].poll_queue(other.vi, queue) {
                let saw = format!("{found:?} is found beside its completion queue");
                return Err(testbed.broken(Clause::Once, saw));
            }
        }
    }

    Ok(())
}

fn receive_queue_full<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    let most = u64::try_from(testbed.attributes().descriptors_max).unwrap_or(0);
    let full = |error: &ViError| matches!(error, ViError::QueueFull { queue: Queue::Receive });
    for _ in 0..2 {
        for cookie in 0..most {
            testbed.post_receive(&other, cookie, &[])?;
        }
        let one_more = ReceiveDescriptor { cookie: most, segments: &[] };
        let result = testbed.nics[1].post_receive(other.vi, &one_more);
        testbed.refused(Clause::Limit, "one receive descriptor too many", result, full)?;
        for cookie in 0..most {
            let pieces = [IoSlice::new(&[])];
            let write =
                descriptor(Operation::RdmaWrite, 0, Some(other.place(0)), Data::Inline(&pieces));
            testbed.post(&one, &SendDescriptor { immediate: Some(1), ..write })?;
            testbed.expect_end(&other, Queue::Receive, cookie, Status::Done)?;
            testbed.expect_end(&one, Queue::Send, 0, Status::Done)?;
        }
    }

    for cookie in 0..most {
        testbed.post_receive(&other, cookie, &[])?;
    }
    let result = testbed.nics[1].disconnect(other.vi);
    testbed.call(Clause::State, "disconnect", result)?;
    for cookie in 0..most {
        testbed.expect_flushed(&other, cookie)?;
    }
    testbed.expect_no_completion(Clause::Once, &other, Queue::Receive)
}

fn send_queue_full<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    let most = u64::try_from(testbed.attributes().descriptors_max).unwrap_or(0);
    let full = |error: &ViError| matches!(error, ViError::QueueFull { queue: Queue::Send });
    let mut posted = 0;
    // A provider may or may not count completions that wait: it may take more descriptors than it says,
    // but not permanently fewer.
    for cookie in 0..most + 64 {
        let pieces = [IoSlice::new(b"12345678")];
        let place = Some(other.place(0));
        let write = descriptor(Operation::RdmaWrite, cookie, place, Data::Inline(&pieces));
        let result = testbed.nics[0].post_send(one.vi, &write);
        if result.is_err() {
            testbed.refused(Clause::Limit, "one send descriptor too many", result, full)?;
            break;
        }
        posted += 1;
    }

    if posted < most {
        let saw = format!("the send queue took {posted} descriptors of {most}");
        return Err(testbed.broken(Clause::Limit, saw));
    }

    for cookie in 0..posted {
        testbed.expect_end(&one, Queue::Send, cookie, Status::Done)?;
    }
    testbed.expect_no_completion(Clause::Once, &one, Queue::Send)?;
    testbed.expect_alive(&one, &other)
}

fn gone<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let party = testbed.party(0, Queues::Shared)?;
    let Party { vi, region, send_cq, .. } = party.clone();
    let Some(cq) = send_cq else { return Ok(()) };
    let in_use = |error: &ViError| matches!(error, ViError::InUse { .. });
    let result = testbed.nics[0].destroy_cq(cq);
    testbed.refused(Clause::Name, "to destroy a queue with a VI", result, in_use)?;
    let result = testbed.nics[0].destroy_vi(vi);
    testbed.call(Clause::Name, "destroy_vi", result)?;
    let result = testbed.nics[0].destroy_cq(cq);
    testbed.call(Clause::Name, "destroy_cq", result)?;
    let result = testbed.nics[0].deregister(region.handle);
    testbed.call(Clause::Name, "deregister", result)?;
    let (address, deadline) = (testbed.nics[1].address(), testbed.later());
    let pieces = [IoSlice::new(b"gone")];
    let send = descriptor(Operation::Send, 1, None, Data::Inline(&pieces));
    let received = ReceiveDescriptor { cookie: 1, segments: &[] };
    for vi in [vi, ViId(u32::MAX)] {
        let nic = &mut testbed.nics[0];
        let results = [
            ("state of no VI", nic.state(vi).map(drop)),
            ("destroy no VI", nic.destroy_vi(vi)),
            ("connect no VI", nic.connect(Connect::new(vi, &address, b"x", deadline))),
            (
                "connect no VI to a peer",
                nic.connect_peer(Connect::new(vi, &address, b"x", deadline)),
            ),
            ("disconnect no VI", nic.disconnect(vi)),
            ("send by no VI", nic.post_send(vi, &send)),
            ("receive by no VI", nic.post_receive(vi, &received)),
        ];
        let none = [nic.poll_queue(vi, Queue::Send), nic.poll_queue(vi, Queue::Receive)];
        testbed.expect(Clause::Name, "completions of no VI", &none, &[None, None])?;
        for (what, result) in results {
            let is_right = |error: &ViError| matches!(error, ViError::UnknownVi(_));
            testbed.refused(Clause::Name, what, result, is_right)?;
        }
    }

    for cq in [cq, CqId(u32::MAX)] {
        let result = testbed.nics[0].destroy_cq(cq);
        let is_right = |error: &ViError| matches!(error, ViError::UnknownCq(_));
        testbed.refused(Clause::Name, "to destroy no queue", result, is_right)?;
        let none = testbed.nics[0].poll_cq(cq);
        testbed.expect(Clause::Name, "completions of no queue", &none, &None)?;
        let attributes = ViAttributes {
            reliability: testbed.level(),
            tag: party.tag,
            send_cq: None,
            receive_cq: Some(cq),
            allows_write: true,
            allows_read: true,
        };
        let result = testbed.nics[0].create_vi(attributes);
        testbed.refused(Clause::Name, "a VI with no queue", result, is_right)?;
    }

    for memory in [region.handle, MemoryHandle(u32::MAX)] {
        let result = testbed.nics[0].deregister(memory);
        let is_right = |error: &ViError| matches!(error, ViError::UnknownMemory(_));
        testbed.refused(Clause::Name, "to deregister no memory", result, is_right)?;
    }

    Ok(())
}

fn destroyed<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let one = testbed.party(0, Queues::Own)?;
    let other = testbed.party(1, Queues::Shared)?;
    let Some(cq) = other.receive_cq else { return Ok(()) };
    let staying = testbed.party(1, Queues::Given(cq))?;
    let friend = testbed.party(0, Queues::Own)?;
    testbed.connect(&one, &other)?;
    testbed.connect(&friend, &staying)?;
    for (from, to) in [(&one, &other), (&friend, &staying), (&one, &other)] {
        testbed.post_receive(to, 5, &[])?;
        let pieces = [IoSlice::new(b"12345678")];
        let write = descriptor(Operation::RdmaWrite, 1, Some(to.place(0)), Data::Inline(&pieces));
        testbed.post(from, &SendDescriptor { immediate: Some(1), ..write })?;
        testbed.expect_end(from, Queue::Send, 1, Status::Done)?;
    }
    testbed.calm();
    let result = testbed.nics[1].disconnect(other.vi);
    testbed.call(Clause::State, "disconnect", result)?;
    let result = testbed.nics[1].destroy_vi(other.vi);
    testbed.call(Clause::Name, "destroy_vi", result)?;
    let found = testbed.completion(&staying, Queue::Receive)?;
    testbed.expect(Clause::Name, "whose completion is left", &found.vi, &staying.vi)?;
    testbed.expect_no_completion(Clause::Name, &staying, Queue::Receive)
}

fn names<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let mut names = BTreeSet::new();
    let mut keys = BTreeSet::new();
    for _ in 0..20 {
        let Party { vi, tag, region, send_cq, .. } = testbed.party(0, Queues::Shared)?;
        let Some(cq) = send_cq else { return Ok(()) };
        let is_new = [
            names.insert(("VI", vi.0)),
            names.insert(("tag", tag.0)),
            names.insert(("memory", region.handle.0)),
            names.insert(("queue", cq.0)),
            keys.insert(region.key),
        ];
        testbed.expect(Clause::Name, "whether names are new", &is_new, &[true; 5])?;
        testbed.expect(
            Clause::Name,
            "the size",
            &region.memory.len(),
            &super::testbed::REGION_BYTES,
        )?;
        // New objects must not reuse a name that has become free.
        let nic = &mut testbed.nics[0];
        let results = [nic.destroy_vi(vi), nic.destroy_cq(cq), nic.deregister(region.handle)];
        for result in results {
            testbed.call(Clause::Name, "destroy", result)?;
        }
    }

    Ok(())
}
