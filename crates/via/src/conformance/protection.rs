//! Every kind of access to memory that does not exist or is not allowed.

use super::{
    Clause, Fixture, Violation,
    testbed::{ConformanceCase, Party, Queues, REGION_BYTES, Testbed, descriptor},
};
use crate::vi::{
    Data, LocalSegment, MemoryAttributes, MemoryHandle, Operation, Provider, Queue, RemoteKey,
    RemoteSegment, SendDescriptor, Status, ViAttributes,
};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, ConformanceCase<F>)> {
    vec![
        ("local memory is out of reach", local),
        ("memory to receive into is out of reach", receiving),
        ("a peer's memory is out of reach", remote),
        ("a VI without rights", vi_rights),
        ("a key that was taken back", revoked),
    ]
}

use super::violation::CaseResult;

/// The same as [`REGION_BYTES`].
const SIZE: u64 = 8192;
const _: () = assert!(REGION_BYTES == 8192, "the two sizes must agree");

/// Offsets and lengths outside of a region, at its ends and where sums wrap around.
const OUTSIDE: [(u64, u64); 6] =
    [(SIZE, 1), (SIZE - 7, 8), (0, SIZE + 1), (u64::MAX, 1), (u64::MAX - 7, 8), (1, u64::MAX)];

impl<F: Fixture> Testbed<'_, F> {
    /// Segments that a VI with the tag of `party` must not use.
    fn bad_segments(&mut self, party: &Party) -> Result<Vec<LocalSegment>, Violation> {
        let nic = party.nic;
        let tag = self.nics[nic].create_tag();
        let foreign = self.region(nic, MemoryAttributes::private(tag), REGION_BYTES)?;
        let gone = self.region(nic, MemoryAttributes::private(party.tag), REGION_BYTES)?;
        let result = self.nics[nic].deregister(gone.handle);
        self.call(Clause::Name, "deregister", result)?;
        let handles = [foreign.handle, gone.handle, MemoryHandle(u32::MAX)];
        let mut segments: Vec<_> =
            handles.map(|memory| LocalSegment { memory, offset: 0, length: 8 }).to_vec();
        segments.extend(OUTSIDE.map(|(offset, length)| party.piece(offset, length)));
        Ok(segments)
    }
}

fn local<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let reads = testbed.attributes().has_rdma_read && testbed.is_reliable();
    let mut operations = vec![Operation::Send, Operation::RdmaWrite];
    operations.extend(reads.then_some(Operation::RdmaRead));
    let largest = testbed.attributes().transfer_bytes_max;
    for operation in operations {
        let mut index = 0;
        loop {
            let (one, other) = testbed.pair()?;
            let segments = testbed.bad_segments(&one)?;
            let Some(bad) = segments.get(index) else { break };
            index += 1;
            let data = [one.piece(0, 4), *bad];
            let place = (operation != Operation::Send).then(|| other.place(0));
            testbed.post_receive(&other, 1, &[other.piece(0, 64)])?;
            testbed.post(&one, &descriptor(operation, 2, place, Data::Segments(&data)))?;
            let found = testbed.completion(&one, Queue::Send)?;
            // Exceeding the longest transfer is another error, which may be found first.
            let is_long = bad.length > largest && found.status == Status::LengthError;
            if found.status != Status::ProtectionError && !is_long {
                let saw = format!("{operation:?} with {bad:?} ended as {:?}", found.status);
                return Err(testbed.broken(Clause::Protection, saw));
            }
            if testbed.is_reliable() {
                testbed.expect_both_broken(&one, &other)?;
                testbed.expect_flushed(&other, 1)?;
            } else {
                let what = Clause::ReceiveDescriptor;
                testbed.expect_no_completion(what, &other, Queue::Receive)?;
            }
            let found = testbed.get(&other.region, 0, 64)?;
            testbed.expect(Clause::Protection, "the peer's memory", &found, &vec![0; 64])?;
        }
    }

    Ok(())
}

fn receiving<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let mut index = 0;
    loop {
        let (one, other) = testbed.pair()?;
        let segments = testbed.bad_segments(&other)?;
        let Some(bad) = segments.get(index) else { return Ok(()) };
        index += 1;
        let intact = other.piece(0, 4);
        testbed.post_receive(&other, 1, &[intact, *bad])?;
        testbed.fill(&one, 0, 8)?;
        let data = [one.piece(0, 8)];
        testbed.post(&one, &descriptor(Operation::Send, 2, None, Data::Segments(&data)))?;
        testbed.expect_end(&other, Queue::Receive, 1, Status::ProtectionError)?;
        testbed.expect_remote_error(&one, &other, 2, Status::RemoteDescriptorError)?;
        if !testbed.is_reliable() {
            testbed.expect_alive(&one, &other)?;
        }
    }
}

/// Tries to write, to write with immediate data, and to read an inaccessible place.
fn reach<F: Fixture>(
    testbed: &mut Testbed<'_, F>,
    place: RemoteSegment,
    length: u64,
    (one, other): (&Party, &Party),
    how: Reach,
) -> CaseResult {
    let data = [one.piece(0, length)];
    testbed.fill(one, 0, usize::try_from(length).unwrap_or(0))?;
    testbed.post_receive(other, 1, &[])?;
    let operation = if how == Reach::Read { Operation::RdmaRead } else { Operation::RdmaWrite };
    let reached = descriptor(operation, 2, Some(place), Data::Segments(&data));
    let immediate = (how == Reach::Tell).then_some(1);
    testbed.post(one, &SendDescriptor { immediate, ..reached })?;
    let status = Status::RdmaProtectionError;
    if how == Reach::Read {
        let found = testbed.completion(one, Queue::Send)?;
        testbed.expect(
            Clause::Protection,
            "the end of a forbidden read",
            &found.status,
            &status,
        )?;
        return testbed.expect_both_broken(one, other);
    }

    testbed.forbidden_write(one, other, status)
}

impl<F: Fixture> Testbed<'_, F> {
    fn forbidden_write(&mut self, one: &Party, other: &Party, status: Status) -> CaseResult {
        let judged = self.expect_remote_error(one, other, 2, status);
        // If it succeeded, protection is broken, whichever clause failed first.
        judged.map_err(|violation| match violation {
            Violation::Broken { saw, at, .. } => {
                let saw = format!("a write that is not allowed: {saw}");
                Violation::Broken { clause: Clause::Protection, saw, at }
            }
            other => other,
        })?;
        if self.is_reliable() {
            return self.expect_flushed(other, 1);
        }
        self.expect_no_completion(Clause::ReceiveDescriptor, other, Queue::Receive)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Write,
    Tell,
    Read,
}

fn reaches<F: Fixture>(testbed: &Testbed<'_, F>) -> Vec<Reach> {
    let mut all = vec![Reach::Write, Reach::Tell];
    if testbed.attributes().has_rdma_read && testbed.is_reliable() {
        all.push(Reach::Read);
    }
    all
}

fn remote<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    for how in reaches(testbed) {
        for length in [8_u64, 1000] {
            for number in 0..9 {
                let pair = testbed.pair()?;
                remote_at(testbed, &pair, how, length, number)?;
            }
        }
    }
    Ok(())
}

fn remote_at<F: Fixture>(
    testbed: &mut Testbed<'_, F>,
    (one, other): &(Party, Party),
    how: Reach,
    length: u64,
    number: usize,
) -> CaseResult {
    let tag = testbed.nics[other.nic].create_tag();
    let all = MemoryAttributes { tag: other.tag, allows_write: true, allows_read: true };
    let attributes = match number {
        0 => MemoryAttributes { tag, ..all },
        1 if how == Reach::Read => MemoryAttributes { allows_read: false, ..all },
        1 => MemoryAttributes { allows_write: false, ..all },
        2 => MemoryAttributes::private(other.tag),
        _ => all,
    };

    let region = testbed.region(other.nic, attributes, REGION_BYTES)?;
    // The third key is of the sender's own memory, unknown at the peer.
    let key = match number {
        3 => one.region.key,
        4 => RemoteKey(region.key.0 ^ (1 << 40)),
        _ => region.key,
    };

    let offset = match number {
        5 => SIZE,
        6 => SIZE - length + 1,
        7 => u64::MAX - length + 1,
        8 => u64::MAX,
        _ => 0,
    };

    reach(testbed, RemoteSegment { key, offset }, length, (one, other), how)?;
    let found = testbed.get(&region, 0, REGION_BYTES)?;
    testbed.expect(Clause::Protection, "memory out of reach", &found, &vec![0; REGION_BYTES])
}

fn vi_rights<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    for how in reaches(testbed) {
        let (one, mut other) = (testbed.party(0, Queues::Own)?, testbed.party(1, Queues::Own)?);
        let attributes = ViAttributes {
            reliability: testbed.level(),
            tag: other.tag,
            send_cq: None,
            receive_cq: None,
            allows_write: how == Reach::Read,
            allows_read: how != Reach::Read,
        };
        let vi = testbed.nics[1].create_vi(attributes);
        other.vi = testbed.call(Clause::Name, "create_vi", vi)?;
        testbed.connect(&one, &other)?;
        reach(testbed, other.place(0), 8, (&one, &other), how)?;
        let found = testbed.get(&other.region, 0, REGION_BYTES)?;
        testbed.expect(
            Clause::Protection,
            "memory out of reach",
            &found,
            &vec![0; REGION_BYTES],
        )?;
    }
    Ok(())
}

fn revoked<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    for how in reaches(testbed) {
        for length in [8_u64, 1000] {
            let (one, other) = testbed.pair()?;
            let attributes =
                MemoryAttributes { tag: other.tag, allows_write: true, allows_read: true };
            let region = testbed.region(other.nic, attributes, REGION_BYTES)?;
            let place = RemoteSegment { key: region.key, offset: 0 };
            // It is used first, so that a provider that caches lookups has something cached.
            testbed.fill(&one, 0, 8)?;
            let data = [one.piece(0, 8)];
            testbed.post_receive(&other, 8, &[])?;
            let write = descriptor(Operation::RdmaWrite, 9, Some(place), Data::Segments(&data));
            testbed.post(&one, &SendDescriptor { immediate: Some(1), ..write })?;
            testbed.expect_end(&other, Queue::Receive, 8, Status::Done)?;
            testbed.expect_end(&one, Queue::Send, 9, Status::Done)?;
            testbed.put(&region, 0, &[0; REGION_BYTES])?;
            let result = testbed.nics[other.nic].deregister(region.handle);
            testbed.call(Clause::Name, "deregister", result)?;
            reach(testbed, place, length, (&one, &other), how)?;
            let found = testbed.get(&region, 0, REGION_BYTES)?;
            let what = "memory that was deregistered";
            testbed.expect(Clause::Protection, what, &found, &vec![0; REGION_BYTES])?;
        }
    }

    Ok(())
}
