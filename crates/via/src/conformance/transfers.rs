//! Transfers: order, pieces, sizes, and the moment when data is in place.

use std::{
    io::IoSlice,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    Clause, Fixture, Violation,
    testbed::{ConformanceCase, Party, REGION_BYTES, Testbed, descriptor, pattern},
};
use crate::vi::{
    Data, LocalSegment, MemoryAttributes, Operation, Provider, Queue, ReceiveDescriptor, Region,
    SendDescriptor, Status, ViError,
};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, ConformanceCase<F>)> {
    vec![
        ("descriptors stay in order", order),
        ("writes are silent", silent_writes),
        ("descriptors that are not signaled", unsignaled),
        ("pieces are gathered and scattered", pieces),
        ("empty transfers", empty),
        ("inline data and segments have limits", limits),
        ("earlier writes are in place", earlier_writes),
        ("largest transfers", largest),
        ("reads", reads),
        ("words are written whole", words),
        ("words are read whole", words_read),
        ("registered memory is as good as allocated", registered),
    ]
}

use super::violation::CaseResult;

fn order<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    for (from, to) in [(&one, &other), (&other, &one)] {
        for round in 0..4_u64 {
            for number in 0..32_u64 {
                testbed.post_receive(to, round * 100 + number, &[to.piece(number * 16, 16)])?;
            }
            for number in 0..32_u64 {
                let bytes = pattern(round * 1000 + number, 16);
                let pieces = [IoSlice::new(&bytes)];
                let is_send = number % 3 != 0;
                let (operation, remote) = if is_send {
                    (Operation::Send, None)
                } else {
                    (Operation::RdmaWrite, Some(to.place(number * 16)))
                };
                let immediate = i32::try_from(number).ok().map(|number| number - 16);
                let sent =
                    descriptor(operation, round * 100 + number, remote, Data::Inline(&pieces));
                testbed.post(from, &SendDescriptor { immediate, ..sent })?;
            }
            for number in 0..32_u64 {
                let cookie = round * 100 + number;
                let received = testbed.expect_end(to, Queue::Receive, cookie, Status::Done)?;
                let immediate = i32::try_from(number).ok().map(|number| number - 16);
                testbed.expect(Clause::Placement, "the length", &received.length, &16)?;
                testbed.expect(
                    Clause::Placement,
                    "the immediate",
                    &received.immediate,
                    &immediate,
                )?;
                let found = testbed.get(&to.region, number * 16, 16)?;
                let expected = pattern(round * 1000 + number, 16);
                testbed.expect(Clause::Placement, "received data", &found, &expected)?;
            }
            for number in 0..32_u64 {
                testbed.expect_end(from, Queue::Send, round * 100 + number, Status::Done)?;
            }
        }
        testbed.expect_no_completion(Clause::Once, to, Queue::Receive)?;
        testbed.expect_no_completion(Clause::Once, from, Queue::Send)?;
    }

    Ok(())
}

/// Cuts `length` bytes from `offset` into `count` pieces of different lengths, in reverse order of address.
fn cut(party: &Party, offset: u64, length: u64, count: u64) -> Vec<LocalSegment> {
    let mut pieces = Vec::new();
    let (mut left, mut end) = (length, offset + length);
    for number in 0..count {
        let piece = if number + 1 == count { left } else { (left / 3).max(left.min(1)) };
        end -= piece;
        pieces.push(party.piece(end, piece));
        left -= piece;
    }
    pieces
}

fn gathered<F: Fixture>(
    testbed: &Testbed<'_, F>,
    region: &Region,
    pieces: &[LocalSegment],
) -> Result<Vec<u8>, Violation> {
    let mut bytes = Vec::new();
    for piece in pieces {
        let length = usize::try_from(piece.length).unwrap_or(usize::MAX);
        bytes.extend(testbed.get(region, piece.offset, length)?);
    }
    Ok(bytes)
}

fn pieces<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    let most = u64::try_from(testbed.attributes().segments_max).unwrap_or(1).min(64);
    testbed.fill(&one, 0, REGION_BYTES)?;
    for (count, length) in [(1, 1000_u64), (2, 7), (most, 1), (most, 777), (most, 4000)] {
        let from = cut(&one, 13, length, count);
        let to = cut(&other, 101, length, most + 1 - count);
        testbed.put(&other.region, 0, &[0; REGION_BYTES])?;
        testbed.post_receive(&other, 1, &to)?;
        testbed.post(&one, &descriptor(Operation::Send, 2, None, Data::Segments(&from)))?;
        let received = testbed.expect_end(&other, Queue::Receive, 1, Status::Done)?;
        testbed.expect(Clause::Placement, "the length", &received.length, &length)?;
        testbed.expect(Clause::Placement, "no immediate data", &received.immediate, &None)?;
        let sent = testbed.expect_end(&one, Queue::Send, 2, Status::Done)?;
        testbed.expect(Clause::Placement, "the sent length", &sent.length, &length)?;
        let expected = gathered(testbed, &one.region, &from)?;
        let found = gathered(testbed, &other.region, &to)?;
        testbed.expect(Clause::Placement, "scattered data", &found, &expected)?;
        let around = testbed.get(&other.region, 0, 101)?;
        testbed.expect(Clause::Placement, "what is before it", &around, &vec![0; 101])?;
        let behind = testbed.get(&other.region, 101 + length, 100)?;
        testbed.expect(Clause::Placement, "what is behind it", &behind, &vec![0; 100])?;
        // The same with a write, whose receive descriptor needs no memory.
        testbed.post_receive(&other, 3, &[])?;
        let write =
            descriptor(Operation::RdmaWrite, 4, Some(other.place(4097)), Data::Segments(&from));
        testbed.post(&one, &SendDescriptor { immediate: Some(-1), ..write })?;
        let received = testbed.expect_end(&other, Queue::Receive, 3, Status::Done)?;
        testbed.expect(Clause::Placement, "the length", &received.length, &length)?;
        testbed.expect_end(&one, Queue::Send, 4, Status::Done)?;
        let length = usize::try_from(length).unwrap_or(0);
        let found = testbed.get(&other.region, 4097, length)?;
        testbed.expect(Clause::Placement, "written data", &found, &expected)?;
    }

    short_message(testbed, &one, &other)
}

/// A message shorter than its receive descriptor fills it from the front.
fn short_message<F: Fixture>(
    testbed: &mut Testbed<'_, F>,
    one: &Party,
    other: &Party,
) -> CaseResult {
    testbed.put(&other.region, 0, &[0; 64])?;
    testbed.post_receive(other, 5, &[other.piece(8, 16), other.piece(32, 16)])?;
    let pieces = [IoSlice::new(&[1; 10]), IoSlice::new(&[]), IoSlice::new(&[2; 10])];
    testbed.post(one, &descriptor(Operation::Send, 6, None, Data::Inline(&pieces)))?;
    let received = testbed.expect_end(other, Queue::Receive, 5, Status::Done)?;
    testbed.expect(Clause::Placement, "the length", &received.length, &20)?;
    testbed.expect_end(one, Queue::Send, 6, Status::Done)?;
    let mut expected = vec![0; 64];
    expected[8..18].fill(1);
    expected[18..24].fill(2);
    expected[32..36].fill(2);
    let found = testbed.get(&other.region, 0, 64)?;
    testbed.expect(Clause::Placement, "a short message", &found, &expected)
}

fn empty<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    testbed.fill(&other, 0, REGION_BYTES)?;
    let nothing = [one.piece(8, 0)];
    for data in [Data::Segments(&[]), Data::Segments(&nothing), Data::Inline(&[])] {
        for immediate in [None, Some(i32::MIN), Some(i32::MAX)] {
            testbed.post_receive(&other, 1, &[other.piece(0, 8)])?;
            let send = descriptor(Operation::Send, 2, None, data);
            testbed.post(&one, &SendDescriptor { immediate, ..send })?;
            let received = testbed.expect_end(&other, Queue::Receive, 1, Status::Done)?;
            let found = (received.length, received.immediate);
            testbed.expect(Clause::Placement, "an empty message", &found, &(0, immediate))?;
            testbed.expect_end(&one, Queue::Send, 2, Status::Done)?;
        }
        testbed.post_receive(&other, 3, &[])?;
        let write = descriptor(Operation::RdmaWrite, 4, Some(other.place(0)), data);
        testbed.post(&one, &SendDescriptor { immediate: Some(0), ..write })?;
        let received = testbed.expect_end(&other, Queue::Receive, 3, Status::Done)?;
        let found = (received.length, received.immediate);
        testbed.expect(Clause::Placement, "an empty write", &found, &(0, Some(0)))?;
        testbed.expect_end(&one, Queue::Send, 4, Status::Done)?;
        testbed.post(&one, &write)?;
        testbed.expect_end(&one, Queue::Send, 4, Status::Done)?;
    }

    if testbed.attributes().has_rdma_read && testbed.is_reliable() {
        let read = Data::Segments(&nothing);
        testbed.post(&one, &descriptor(Operation::RdmaRead, 5, Some(other.place(0)), read))?;
        testbed.expect_end(&one, Queue::Send, 5, Status::Done)?;
    }

    let found = testbed.get(&other.region, 0, REGION_BYTES)?;
    testbed.expect(Clause::Placement, "untouched memory", &found, &pattern(0, REGION_BYTES))
}

fn limits<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    let attributes = testbed.attributes();
    let most = usize::try_from(attributes.inline_bytes_max).unwrap_or(0).min(REGION_BYTES);
    let bytes = pattern(3, most + 1);
    let place = Some(other.place(0));
    let (first, second) = bytes[..most].split_at(most / 3);
    let exact = [IoSlice::new(first), IoSlice::new(second)];
    testbed.post_receive(&other, 9, &[])?;
    let sent = SendDescriptor {
        immediate: Some(1),
        ..descriptor(Operation::RdmaWrite, 1, place, Data::Inline(&exact))
    };

    testbed.post(&one, &sent)?;
    testbed.expect_end(&other, Queue::Receive, 9, Status::Done)?;
    testbed.expect_end(&one, Queue::Send, 1, Status::Done)?;
    let found = testbed.get(&other.region, 0, most)?;
    testbed.expect(Clause::Placement, "the most inline data", &found, &bytes[..most].to_vec())?;
    let too_much = |error: &ViError| matches!(error, ViError::TooMuch { .. });
    if u64::try_from(most) == Ok(attributes.inline_bytes_max) {
        let pieces = [IoSlice::new(&bytes)];
        let write = descriptor(Operation::RdmaWrite, 1, place, Data::Inline(&pieces));
        let result = testbed.nics[0].post_send(one.vi, &write);
        testbed.refused(Clause::Limit, "too much inline data", result, too_much)?;
    }

    let segments = vec![one.piece(0, 1); attributes.segments_max + 1];
    let write = descriptor(Operation::RdmaWrite, 1, place, Data::Segments(&segments));
    let result = testbed.nics[0].post_send(one.vi, &write);
    testbed.refused(Clause::Limit, "too many segments to send", result, too_much)?;
    let segments = vec![other.piece(0, 1); attributes.segments_max + 1];
    let received = ReceiveDescriptor { cookie: 1, segments: &segments };
    let result = testbed.nics[1].post_receive(other.vi, &received);
    testbed.refused(Clause::Limit, "too many segments to receive", result, too_much)?;
    testbed.expect_alive(&one, &other)
}

fn silent_writes<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    testbed.fill(&one, 0, 4096)?;
    testbed.post_receive(&other, 1, &[])?;
    let lengths = [1_u64, 7, 8, 9, 40, 41, 64, 100, 256, 257, 1000, 4000];
    for length in lengths {
        let data = [one.piece(5, length)];
        let place = Some(other.place(3));
        testbed.post(&one, &descriptor(Operation::RdmaWrite, 2, place, Data::Segments(&data)))?;
        let sent = testbed.expect_end(&one, Queue::Send, 2, Status::Done)?;
        testbed.expect(Clause::Placement, "the sent length", &sent.length, &length)?;
        let length = usize::try_from(length).unwrap_or(0);
        let memory = other.region.memory.clone();
        let expected = pattern(5, length);
        let arrived = testbed.until(|_| {
            let found = memory.read_to_vec(3, length).ok()?;
            (found == expected).then_some(())
        });
        if arrived.is_none() {
            let saw = format!("{length} bytes were written and did not arrive as sent");
            return Err(testbed.broken(Clause::Placement, saw));
        }
        // No receive descriptor was consumed.
        testbed.expect_no_completion(Clause::ReceiveDescriptor, &other, Queue::Receive)?;
    }

    let pieces = [IoSlice::new(b"told")];
    let told = descriptor(Operation::RdmaWrite, 3, Some(other.place(0)), Data::Inline(&pieces));
    testbed.post(&one, &SendDescriptor { immediate: Some(4), ..told })?;
    let received = testbed.completion(&other, Queue::Receive)?;
    let found = (received.cookie, received.immediate);
    testbed.expect(Clause::ReceiveDescriptor, "the descriptor left", &found, &(1, Some(4)))
}

fn earlier_writes<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    for round in 0..50_u64 {
        let tells = round % 2 == 0;
        testbed.post_receive(&other, round, &[other.piece(8000, 8)])?;
        let bytes = pattern(round * 77, 3000);
        testbed.put(&one.region, 0, &bytes)?;
        let data = [one.piece(0, 3000)];
        let silent = descriptor(
            Operation::RdmaWrite,
            1000 + round,
            Some(other.place(0)),
            Data::Segments(&data),
        );
        testbed.post(&one, &SendDescriptor { is_signaled: false, ..silent })?;
        let small = [IoSlice::new(&bytes[..8])];
        let (operation, remote) = if tells {
            (Operation::RdmaWrite, Some(other.place(4000)))
        } else {
            (Operation::Send, None)
        };
        let told = descriptor(operation, round, remote, Data::Inline(&small));
        testbed.post(&one, &SendDescriptor { immediate: Some(1), ..told })?;
        let received = testbed.completion(&other, Queue::Receive)?;
        let found = testbed.get(&other.region, 0, 3000)?;
        testbed.expect(Clause::Placement, "an earlier write", &found, &bytes)?;
        testbed.expect(Clause::Order, "the cookie", &received.cookie, &round)?;
        let found = testbed.get(&other.region, if tells { 4000 } else { 8000 }, 8)?;
        testbed.expect(Clause::Placement, "the told data", &found, &bytes[..8].to_vec())?;
        testbed.expect_end(&one, Queue::Send, round, Status::Done)?;
    }

    Ok(())
}

fn largest<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    let limit = testbed.attributes().transfer_bytes_max;
    let most = limit.min(testbed.profile.transfer_max);
    let length = usize::try_from(most).unwrap_or(0);
    let attributes = |tag| MemoryAttributes { tag, allows_write: true, allows_read: true };
    let source = testbed.region(0, attributes(one.tag), length)?;
    let target = testbed.region(1, attributes(other.tag), length)?;
    let bytes = pattern(5, length);
    testbed.put(&source, 0, &bytes)?;
    let whole = |region: &Region, length| LocalSegment { memory: region.handle, offset: 0, length };
    let data = [whole(&source, most)];
    testbed.post_receive(&other, 1, &[whole(&target, most)])?;
    testbed.post(&one, &descriptor(Operation::Send, 2, None, Data::Segments(&data)))?;
    let received = testbed.expect_end(&other, Queue::Receive, 1, Status::Done)?;
    testbed.expect(Clause::Placement, "the length", &received.length, &most)?;
    testbed.expect_end(&one, Queue::Send, 2, Status::Done)?;
    let found = testbed.get(&target, 0, length)?;
    testbed.expect(Clause::Placement, "a largest message", &(found == bytes), &true)?;
    testbed.put(&target, 0, &vec![0; length])?;
    let place = crate::vi::RemoteSegment { key: target.key, offset: 0 };
    let write = descriptor(Operation::RdmaWrite, 3, Some(place), Data::Segments(&data));
    testbed.post_receive(&other, 4, &[])?;
    testbed.post(&one, &SendDescriptor { immediate: Some(1), ..write })?;
    testbed.expect_end(&other, Queue::Receive, 4, Status::Done)?;
    testbed.expect_end(&one, Queue::Send, 3, Status::Done)?;
    let found = testbed.get(&target, 0, length)?;
    testbed.expect(Clause::Placement, "a largest write", &(found == bytes), &true)?;
    if most < limit {
        testbed.skip("longer than the largest transfer: the profile allows no such memory");
        return Ok(());
    }

    let data = [whole(&source, most), whole(&source, 1)];
    testbed.post(&one, &descriptor(Operation::Send, 5, None, Data::Segments(&data)))?;
    testbed.expect_end(&one, Queue::Send, 5, Status::LengthError)?;
    if testbed.is_reliable() {
        testbed.expect_both_broken(&one, &other)
    } else {
        testbed.expect_alive(&one, &other)
    }
}

fn reads<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    if !testbed.attributes().has_rdma_read || !testbed.is_reliable() {
        testbed.skip("reads are for reliable VIs, where they are offered");
        return Ok(());
    }

    let (one, other) = testbed.pair()?;
    testbed.fill(&other, 0, REGION_BYTES)?;
    testbed.post_receive(&other, 9, &[])?;
    for (number, length) in [(1, 1_u64), (2, 8), (3, 9), (4, 300), (5, 4000)] {
        let to = cut(&one, 17, length, 3);
        let read = Data::Segments(&to);
        testbed
            .post(&one, &descriptor(Operation::RdmaRead, number, Some(other.place(21)), read))?;
        let done = testbed.expect_end(&one, Queue::Send, number, Status::Done)?;
        testbed.expect(Clause::Placement, "the length read", &done.length, &length)?;
        let found = gathered(testbed, &one.region, &to)?;
        let expected = pattern(21, found.len());
        testbed.expect(Clause::Placement, "data read", &found, &expected)?;
    }

    // A read sees the writes that were posted before it.
    let bytes = pattern(99, 64);
    let pieces = [IoSlice::new(&bytes)];
    let write = descriptor(Operation::RdmaWrite, 6, Some(other.place(0)), Data::Inline(&pieces));
    testbed.post(&one, &write)?;
    let to = [one.piece(0, 64)];
    let read = descriptor(Operation::RdmaRead, 7, Some(other.place(0)), Data::Segments(&to));
    testbed.post(&one, &read)?;
    testbed.expect_end(&one, Queue::Send, 6, Status::Done)?;
    testbed.expect_end(&one, Queue::Send, 7, Status::Done)?;
    let found = testbed.get(&one.region, 0, 64)?;
    testbed.expect(Clause::Order, "what was written before", &found, &bytes)?;
    testbed.expect_no_completion(Clause::ReceiveDescriptor, &other, Queue::Receive)
}

fn unsignaled<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    for cookie in 0..20 {
        testbed.post_receive(&other, cookie, &[other.piece(0, 8)])?;
    }
    for cookie in 0..20 {
        let pieces = [IoSlice::new(b"silence!")];
        let send = descriptor(Operation::Send, cookie, None, Data::Inline(&pieces));
        testbed.post(&one, &SendDescriptor { is_signaled: cookie == 19, ..send })?;
    }
    for cookie in 0..20 {
        testbed.expect_end(&other, Queue::Receive, cookie, Status::Done)?;
    }
    let found = testbed.completion(&one, Queue::Send)?;
    testbed.expect(Clause::End, "the only signaled descriptor", &found.cookie, &19)?;
    testbed.expect_no_completion(Clause::End, &one, Queue::Send)
}

/// The number of words that are written while a thread reads them.
const WORDS: u64 = 2000;

fn words<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    let memory = other.region.memory.clone();
    let is_over = AtomicBool::new(false);
    let torn = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for offset in [0, 72] {
                    let word = memory.load(offset).unwrap_or(1);
                    if !is_whole(word) {
                        return Some(word);
                    }
                }
                std::thread::yield_now();
            }
            None
        });
        let written = write_words(testbed, &one, &other);
        is_over.store(true, Ordering::Relaxed);
        // A watcher that panicked has seen nothing.
        let torn = watcher.join().unwrap_or(None);
        written.map(|()| torn)
    })?;
    match torn {
        Some(word) => {
            Err(testbed.broken(Clause::Atomicity, format!("a thread saw the word {word:#x}")))
        }
        None => Ok(()),
    }
}

/// Returns whether a word is one of those that were written: one byte, eight times.
const fn is_whole(word: u64) -> bool {
    word == whole(word)
}

fn write_words<F: Fixture>(testbed: &mut Testbed<'_, F>, one: &Party, other: &Party) -> CaseResult {
    let memory = other.region.memory.clone();
    for number in 0..WORDS {
        let bytes = [number.to_le_bytes()[0]; 8];
        let pieces = [IoSlice::new(&bytes)];
        testbed.put(&one.region, 64, &bytes)?;
        let segments = [one.piece(64, 8)];
        // Inline and from memory, alternately.
        let (offset, data) = if number % 2 == 0 {
            (0, Data::Inline(&pieces[..]))
        } else {
            (72, Data::Segments(&segments[..]))
        };
        let write = descriptor(Operation::RdmaWrite, number, Some(other.place(offset)), data);
        testbed.post(one, &write)?;
        let mut torn = None;
        testbed.until(|_| {
            let word = memory.load(offset).unwrap_or(1);
            if !is_whole(word) {
                torn = Some(word);
            }
            (torn.is_some() || word == u64::from_ne_bytes(bytes)).then_some(())
        });
        if let Some(word) = torn {
            let saw = format!("the word {word:#x}, half written");
            return Err(testbed.broken(Clause::Atomicity, saw));
        }
        testbed.expect_end(one, Queue::Send, number, Status::Done)?;
    }

    Ok(())
}

/// Returns the word of one byte, eight times.
const fn whole(number: u64) -> u64 {
    (number & 0xff) * 0x0101_0101_0101_0101
}

fn words_read<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    if !testbed.attributes().has_rdma_read || !testbed.is_reliable() {
        testbed.skip("reads are for reliable VIs, where they are offered");
        return Ok(());
    }
    let (one, other) = testbed.pair()?;
    let memory = other.region.memory.clone();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) && memory.store(64, whole(number)).is_ok() {
                number += 1;
                std::thread::yield_now();
            }
        });
        let read = read_words(testbed, &one, &other);
        is_over.store(true, Ordering::Relaxed);
        read
    })
}

/// Reads a word that changes between reads, and one that a thread changes.
fn read_words<F: Fixture>(testbed: &mut Testbed<'_, F>, one: &Party, other: &Party) -> CaseResult {
    let memory = other.region.memory.clone();
    for number in 0..WORDS / 2 {
        let offset = number % 2 * 64;
        let data = [one.piece(8, 8)];
        let place = Some(other.place(offset));
        let read = descriptor(Operation::RdmaRead, number, place, Data::Segments(&data));
        testbed.post(one, &read)?;
        let mut polls = number;
        let vi = one.vi;
        let found = testbed.until(|nics| {
            polls += 1;
            let is_stored = offset != 0 || memory.store(0, whole(polls)).is_ok();
            nics[0].poll_queue(vi, Queue::Send).filter(|_| is_stored)
        });
        let Some(found) = found else {
            return Err(testbed.broken(Clause::End, format!("read {number} did not end")));
        };
        testbed.expect(Clause::Status, "the status", &found.status, &Status::Done)?;
        testbed.expect(Clause::Order, "whose completion", &found.cookie, &number)?;
        let word = one.region.memory.load(8).unwrap_or(1);
        if !is_whole(word) {
            let saw = format!("a read found the word {word:#x}, half written");
            return Err(testbed.broken(Clause::Atomicity, saw));
        }
    }

    Ok(())
}

fn registered<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    let mut regions = Vec::new();
    for party in [&one, &other] {
        let memory = crate::vi::Memory::allocate(REGION_BYTES)
            .map_err(|error| testbed.broken(Clause::Limit, format!("no memory: {error}")))?;
        let attributes = MemoryAttributes { tag: party.tag, allows_write: true, allows_read: true };
        let region = testbed.nics[party.nic].register(memory.clone(), attributes);
        let region = testbed.call(Clause::Limit, "register", region)?;
        testbed.expect(Clause::Name, "the same memory", &region.memory.is_same(&memory), &true)?;
        regions.push(region);
    }

    let (one, other) =
        (Party { region: regions.remove(0), ..one }, Party { region: regions.remove(0), ..other });
    for (round, length) in [8_usize, 40, 100, 5000].into_iter().enumerate() {
        let cookie = u64::try_from(round).unwrap_or(0);
        let bytes = testbed.fill(&one, 64, length)?;
        let data = [one.piece(64, u64::try_from(length).unwrap_or(0))];
        testbed.post_receive(&other, cookie, &[])?;
        let write =
            descriptor(Operation::RdmaWrite, cookie, Some(other.place(8)), Data::Segments(&data));
        testbed.post(&one, &SendDescriptor { immediate: Some(1), ..write })?;
        testbed.expect_end(&other, Queue::Receive, cookie, Status::Done)?;
        testbed.expect_end(&one, Queue::Send, cookie, Status::Done)?;
        let found = testbed.get(&other.region, 8, length)?;
        testbed.expect(Clause::Placement, "a write to registered memory", &found, &bytes)?;
        if testbed.attributes().has_rdma_read && testbed.is_reliable() {
            testbed.put(&one.region, 64, &vec![0; length])?;
            let place = Some(other.place(8));
            let read = descriptor(Operation::RdmaRead, 50, place, Data::Segments(&data));
            testbed.post(&one, &read)?;
            testbed.expect_end(&one, Queue::Send, 50, Status::Done)?;
            let found = testbed.get(&one.region, 64, length)?;
            testbed.expect(Clause::Placement, "a read of registered memory", &found, &bytes)?;
        }
    }

    Ok(())
}
