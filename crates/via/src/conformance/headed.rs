//! Writes with a head: see [`Provider::post_headed_write`].

use std::io::IoSlice;

use super::{
    Clause, Fixture,
    testbed::{ConformanceCase, Party, Queues, Testbed, descriptor, pattern},
    violation::CaseResult,
};
use crate::vi::{
    CqId, Data, HEAD_BYTES, HeadedBody, HeadedPoll, HeadedWrite, Operation, Provider, Queue,
    RemoteSegment, SHORT_BODY_MAX, SendDescriptor, Status, ViId,
};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, ConformanceCase<F>)> {
    vec![
        ("writes with a head arrive", arrive),
        ("writes with a head and others keep their order", keep_order),
        ("a write with a head waits for what was posted before", wait_for_others),
        ("of two writes to one place the later one stays", overwrite),
        ("a write with a head needs a receive descriptor", need_descriptor),
        ("no VI waits while writes with a head come for another", take_turns),
        ("a write with a head reaches only memory that was named and is registered", protected),
    ]
}

const HEAD: u128 = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100;
/// The polls, each of which finds something, within which each VI is served.
const TURNS_MAX: usize = 100;
const NOT_OFFERED: &str = "the provider carries out no writes with a head at once";

/// Returns two connected VIs, the second of which takes writes with a head into its memory.
fn pair<F: Fixture>(testbed: &mut Testbed<'_, F>) -> Result<(Party, Party), super::Violation> {
    let (one, other) = (testbed.party(0, Queues::Shared)?, testbed.party(1, Queues::Shared)?);
    testbed.connect(&one, &other)?;
    testbed.nics[1].take_headed_writes(other.vi, other.region.handle);
    Ok((one, other))
}

/// Posts a write with a head, or as a descriptor if the provider cannot do that at once. Returns whether it could.
fn post<F: Fixture>(
    testbed: &mut Testbed<'_, F>,
    from: &Party,
    to: RemoteSegment,
    immediate: i32,
    body: &[u8],
) -> Result<bool, super::Violation> {
    if testbed.nics[from.nic].post_headed_write(from.vi, to, immediate, HEAD, body) {
        return Ok(true);
    }
    let head = HEAD.to_le_bytes();
    let pieces = [IoSlice::new(&head), IoSlice::new(body)];
    let write = descriptor(Operation::RdmaWrite, 0, Some(to), Data::Inline(&pieces));
    let immediate = Some(immediate);
    testbed.post(from, &SendDescriptor { immediate, is_signaled: false, ..write })?;
    Ok(false)
}

/// Waits for a write, whichever way it is found; `None` if it came as a completion.
fn next<F: Fixture>(
    testbed: &mut Testbed<'_, F>,
    party: &Party,
) -> Result<Option<HeadedWrite>, super::Violation> {
    let Some(cq) = party.receive_cq else { return Ok(None) };
    let poll = |nics: &mut Vec<F::Nic>| match nics[party.nic].poll_headed_write(cq, Some(party.vi))
    {
        HeadedPoll::Write(write) => Some(Some(write)),
        HeadedPoll::Nothing => None,
        HeadedPoll::Other => nics[party.nic].poll_cq(cq).map(|_| None),
    };
    // First without progress, in which the NIC may take it as any other.
    let found = poll(&mut testbed.nics).or_else(|| testbed.until(&poll));
    found.ok_or_else(|| testbed.broken(Clause::End, "a write did not come"))
}

fn arrive<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = pair(testbed)?;
    // One descriptor, which stays posted.
    testbed.post_receive(&other, 5, &[])?;
    for (round, length) in
        [0, 1, 8, 23, 24, 25, 64, 300, 4000].into_iter().cycle().take(90).enumerate()
    {
        let offset = u64::try_from(round % 7 * 512).unwrap_or(0);
        let body = pattern(u64::try_from(round).unwrap_or(0), length);
        testbed.put(&other.region, offset, &[0; HEAD_BYTES + 4000])?;
        let immediate = -i32::try_from(length).unwrap_or(0);
        if !post(testbed, &one, other.place(offset), immediate, &body)? && round == 0 {
            testbed.skip(NOT_OFFERED);
            return Ok(());
        }
        let Some(found) = next(testbed, &other)? else {
            // A provider may deliver it like any other: then it is in place, and its descriptor is gone.
            testbed.post_receive(&other, 5, &[])?;
            continue;
        };
        let seen = (found.vi, found.key, found.cookie, found.immediate, found.offset, found.head);
        let due = (other.vi, other.region.key, 5, immediate, offset, HEAD);
        testbed.expect(Clause::Placement, "the write", &seen, &due)?;
        let placed = testbed.get(&other.region, offset, HEAD_BYTES + length)?;
        match found.body {
            HeadedBody::Here(short) => {
                testbed.expect(Clause::Placement, "the bytes", &short.to_vec(), &body)?;
                testbed.expect(Clause::Placement, "the memory", &placed, &vec![0; placed.len()])?;
            }
            HeadedBody::InPlace(count) => {
                testbed.expect(Clause::Placement, "the length", &(count as usize), &length)?;
                testbed.expect(
                    Clause::Placement,
                    "the memory",
                    &&placed[HEAD_BYTES..],
                    &&body[..],
                )?;
            }
        }
    }
    Ok(())
}

fn keep_order<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = pair(testbed)?;
    let count = 60_u64;
    for cookie in 0..count {
        testbed.post_receive(&other, cookie, &[])?;
    }
    for number in 0..count / 2 {
        let body = pattern(number, usize::try_from(number % 5 * 20).unwrap_or(0));
        let to = other.place(number * 128);
        let immediate = i32::try_from(number).unwrap_or(0);
        if number % 3 != 1 {
            if !post(testbed, &one, to, immediate, &body)? && number == 0 {
                testbed.skip(NOT_OFFERED);
                return Ok(());
            }
        } else {
            let pieces = [IoSlice::new(&body)];
            let write = descriptor(Operation::RdmaWrite, number, Some(to), Data::Inline(&pieces));
            let immediate = Some(immediate);
            testbed.post(&one, &SendDescriptor { immediate, is_signaled: false, ..write })?;
        }
    }

    // By both ways of polling in turn, as they like.
    let Some(cq) = other.receive_cq else { return Ok(()) };
    for number in 0..count / 2 {
        let poll = |nics: &mut Vec<F::Nic>| {
            let polled = nics[1].poll_headed_write(cq, (number % 2 == 0).then_some(other.vi));
            match polled {
                HeadedPoll::Write(write) => Some(write.immediate),
                HeadedPoll::Nothing => None,
                HeadedPoll::Other => nics[1].poll_cq(cq).and_then(|done| done.immediate),
            }
        };
        let found = poll(&mut testbed.nics).or_else(|| testbed.until(&poll));
        let due = i32::try_from(number).unwrap_or(0);
        testbed.expect(Clause::Order, "the immediate data", &found, &Some(due))?;
    }
    testbed.expect_no_completion(Clause::Once, &other, Queue::Receive)
}

/// Returns the next write's immediate data, whichever way it is found.
fn poll_immediate<N: Provider>(nic: &mut N, cq: CqId, vi: Option<ViId>) -> Option<i32> {
    match nic.poll_headed_write(cq, vi) {
        HeadedPoll::Write(write) => Some(write.immediate),
        HeadedPoll::Nothing => None,
        HeadedPoll::Other => nic.poll_cq(cq).and_then(|done| done.immediate),
    }
}

/// One VI gets one write after the other, a second one a single one, a third one what is no write.
fn take_turns<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (flooding, flooded) = pair(testbed)?;
    let Some(cq) = flooded.receive_cq else { return Ok(()) };
    let mut others = Vec::new();
    for _ in 0..2 {
        let (from, to) = (testbed.party(0, Queues::Shared)?, testbed.party(1, Queues::Given(cq))?);
        testbed.connect(&from, &to)?;
        testbed.nics[1].take_headed_writes(to.vi, to.region.handle);
        others.push((from, to));
    }
    for (vi, progresses) in [(Some(flooded.vi), false), (None, false), (None, true)] {
        let mut waiting = Vec::new();
        for (number, (from, to)) in (1..).zip(&others) {
            testbed.post_receive(to, 0, &[to.piece(0, 64)])?;
            if number == 1 {
                if !post(testbed, from, to.place(0), number, &[7; 8])? {
                    testbed.skip(NOT_OFFERED);
                    return Ok(());
                }
            } else {
                let bytes = [IoSlice::new(&[7; 8])];
                let send = descriptor(Operation::Send, 0, None, Data::Inline(&bytes));
                let immediate = Some(number);
                testbed.post(from, &SendDescriptor { immediate, is_signaled: false, ..send })?;
            }
            waiting.push(number);
        }
        let poll = |nics: &mut Vec<F::Nic>| poll_immediate(&mut nics[1], cq, vi);
        for turn in 0..TURNS_MAX + others.len() {
            if turn < TURNS_MAX {
                testbed.post_receive(&flooded, 0, &[])?;
                post(testbed, &flooding, flooded.place(0), 0, &[7; 8])?;
            } else {
                testbed.expect(Clause::End, "VIs that still wait", &waiting, &Vec::new())?;
            }
            if progresses {
                testbed.tick();
            }
            let found = poll(&mut testbed.nics).or_else(|| testbed.until(&poll));
            testbed.expect(Clause::Once, "something was found", &found.is_some(), &true)?;
            waiting.retain(|number| Some(*number) != found);
        }
    }
    Ok(())
}

fn wait_for_others<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = pair(testbed)?;
    let Some(cq) = other.receive_cq else { return Ok(()) };
    let count = i32::try_from(testbed.attributes().descriptors_max - 1).unwrap_or(i32::MAX);
    for cookie in 0..=count {
        testbed.post_receive(&other, u64::try_from(cookie).unwrap_or(0), &[])?;
    }
    // More than a provider carries out before the peer takes any.
    let pieces = [IoSlice::new(&[7; 8])];
    let write = descriptor(Operation::RdmaWrite, 0, Some(other.place(0)), Data::Inline(&pieces));
    for number in 0..count {
        let immediate = Some(number);
        testbed.post(&one, &SendDescriptor { immediate, is_signaled: false, ..write })?;
    }
    let mut found = Vec::new();
    for _ in 0..count / 4 {
        found.extend(poll_immediate(&mut testbed.nics[1], cq, Some(other.vi)));
    }
    if testbed.nics[0].post_headed_write(one.vi, other.place(64), count, HEAD, &[1; 8]) {
        while i32::try_from(found.len()).unwrap_or(0) <= count {
            let next = testbed.until(|nics| poll_immediate(&mut nics[1], cq, Some(other.vi)));
            found.push(next.ok_or_else(|| testbed.broken(Clause::End, "a write did not come"))?);
        }
        testbed.expect(Clause::Order, "the writes", &found, &(0..=count).collect())?;
    } else {
        testbed.skip("the provider does not carry it out while others wait");
    }
    Ok(())
}

fn overwrite<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = pair(testbed)?;
    let Some(cq) = other.receive_cq else { return Ok(()) };
    for cookie in 0..4 {
        testbed.post_receive(&other, cookie, &[])?;
    }
    if !post(testbed, &one, other.place(0), 0, &[])? {
        testbed.skip(NOT_OFFERED);
        return Ok(());
    }
    // A long one, so that the peer's memory is reached directly from now on, if it can be.
    post(testbed, &one, other.place(0), 1, &pattern(0, 300))?;
    for _ in 0..2 {
        let found = testbed.until(|nics| poll_immediate(&mut nics[1], cq, Some(other.vi)));
        found.ok_or_else(|| testbed.broken(Clause::End, "a write did not come"))?;
    }
    testbed.calm();

    // The peer has not taken the first of these when the second is posted.
    let pieces = [IoSlice::new(&[9; 32])];
    let write = descriptor(Operation::RdmaWrite, 0, Some(other.place(0)), Data::Inline(&pieces));
    testbed.post(&one, &SendDescriptor { immediate: Some(2), is_signaled: false, ..write })?;
    let body = pattern(7, 300);
    post(testbed, &one, other.place(0), 3, &body)?;
    for due in [2, 3] {
        let found = testbed.until(|nics| poll_immediate(&mut nics[1], cq, Some(other.vi)));
        testbed.expect(Clause::Order, "the immediate data", &found, &Some(due))?;
    }
    let whole = [&HEAD.to_le_bytes()[..], &body].concat();
    let placed = testbed.get(&other.region, 0, whole.len())?;
    testbed.expect(Clause::Order, "the memory", &placed, &whole)?;

    // A head that the peer has yet to write is overwritten by a silent write.
    for cookie in 0..2 {
        testbed.post_receive(&other, cookie, &[])?;
    }
    post(testbed, &one, other.place(512), 4, &body)?;
    let pieces = [IoSlice::new(&[5; HEAD_BYTES])];
    let write = descriptor(Operation::RdmaWrite, 0, Some(other.place(512)), Data::Inline(&pieces));
    testbed.post(&one, &SendDescriptor { is_signaled: false, ..write })?;
    post(testbed, &one, other.place(0), 5, &[])?;
    for due in [4, 5] {
        let found = testbed.until(|nics| nics[1].poll_cq(cq)?.immediate);
        testbed.expect(Clause::Order, "the immediate data", &found, &Some(due))?;
    }
    let placed = testbed.get(&other.region, 512, HEAD_BYTES)?;
    testbed.expect(Clause::Order, "the memory", &placed, &vec![5; HEAD_BYTES])
}

fn need_descriptor<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = pair(testbed)?;
    if !post(testbed, &one, other.place(0), 1, &[7; 8])? {
        testbed.skip(NOT_OFFERED);
        return Ok(());
    }
    let Some(cq) = other.receive_cq else { return Ok(()) };
    let poll = |nics: &mut Vec<F::Nic>| match nics[1].poll_headed_write(cq, Some(other.vi)) {
        HeadedPoll::Write(write) => Some(write),
        HeadedPoll::Nothing => None,
        HeadedPoll::Other => nics[1].poll_cq(cq).and(None),
    };
    let found = poll(&mut testbed.nics);
    testbed.calm();
    if let Some(found) = found.or_else(|| poll(&mut testbed.nics)) {
        let saw = format!("{found:?} without a receive descriptor");
        return Err(testbed.broken(Clause::ReceiveDescriptor, saw));
    }
    Ok(())
}

fn protected<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = pair(testbed)?;
    let body = [7; SHORT_BODY_MAX];
    testbed.post_receive(&other, 1, &[])?;
    if !post(testbed, &one, other.place(0), 1, &body)? {
        testbed.skip(NOT_OFFERED);
        return Ok(());
    }
    next(testbed, &other)?;

    // Memory that was not named: as any other write.
    let attributes =
        crate::vi::MemoryAttributes { tag: other.tag, allows_write: true, allows_read: true };
    let unnamed = testbed.region(1, attributes, 64)?;
    testbed.post_receive(&other, 2, &[])?;
    post(testbed, &one, RemoteSegment { key: unnamed.key, offset: 8 }, 2, &body)?;
    if let Some(found) = next(testbed, &other)? {
        return Err(
            testbed.broken(Clause::Protection, format!("{found:?} of memory that was not named"))
        );
    }
    let whole = [&HEAD.to_le_bytes()[..], &body].concat();
    testbed.expect(
        Clause::Placement,
        "the memory",
        &testbed.get(&unnamed, 8, whole.len())?,
        &whole,
    )?;

    // Memory that is too short, and that is gone: nothing arrives.
    let result = testbed.nics[1].deregister(other.region.handle);
    testbed.call(Clause::Name, "deregister", result)?;
    let to = RemoteSegment { key: other.region.key, offset: 0 };
    if post(testbed, &one, to, 3, &body)? {
        let Some(cq) = other.receive_cq else { return Ok(()) };
        let poll = |nics: &mut Vec<F::Nic>| match nics[1].poll_headed_write(cq, Some(other.vi)) {
            HeadedPoll::Write(write) => Some(Err(write)),
            HeadedPoll::Nothing => None,
            HeadedPoll::Other => {
                let done = nics[1].poll_cq(cq);
                done.filter(|done| done.status != Status::Done).map(Ok)
            }
        };
        let found = poll(&mut testbed.nics).or_else(|| testbed.until(&poll));
        match found {
            Some(Ok(_)) => {}
            other => {
                let saw = format!("{other:?} of memory that is not registered");
                return Err(testbed.broken(Clause::Protection, saw));
            }
        }
    }
    Ok(())
}
