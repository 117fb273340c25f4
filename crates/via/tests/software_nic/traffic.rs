//! Random traffic against an oracle, over increasingly lossy networks.

use std::collections::VecDeque;

use fastrand::Rng;
use vigie_via::{
    software_nic::SoftwareNicConfig,
    vi::{
        Data, LocalSegment, Operation, Provider, Queue, ReceiveDescriptor, Reliability,
        RemoteSegment, SendDescriptor, Status,
    },
};

use crate::{
    kit::seeds::for_each_seed,
    network::{Faults, Network, SECOND, Seen},
    pair::{Cluster, End},
};

/// The parts of a region: for sends, receives, writes, read sources and read destinations; each has this
/// many slots.
const SLOTS: u64 = 4;
const SLOT_BYTES: u64 = 1 << 13;
const SEND_AT: u64 = 0;
const RECEIVE_AT: u64 = SLOTS * SLOT_BYTES;
const WRITE_AT: u64 = 2 * SLOTS * SLOT_BYTES;
const READ_FROM: u64 = 3 * SLOTS * SLOT_BYTES;
const READ_TO: u64 = 4 * SLOTS * SLOT_BYTES;

/// What a receiver is due.
struct Owed {
    operation: Operation,
    bytes: Vec<u8>,
    slot: u64,
    immediate: i32,
}

/// One direction of a connection.
struct Direction {
    from: End,
    to: End,
    level: Reliability,
    posted: u64,
    received: u64,
    sent: u64,
    /// Send descriptors that were reported.
    told: u64,
    owed: VecDeque<Owed>,
    reads: VecDeque<(u64, Vec<u8>)>,
}

impl Direction {
    fn new(from: &End, to: &End, level: Reliability) -> Self {
        Self {
            from: from.clone(),
            to: to.clone(),
            level,
            posted: 0,
            received: 0,
            sent: 0,
            told: 0,
            owed: VecDeque::new(),
            reads: VecDeque::new(),
        }
    }

    fn is_over(&self, count: u64) -> bool {
        let is_reliable = self.level != Reliability::Unreliable;
        self.sent >= count && self.told == self.sent && (!is_reliable || self.owed.is_empty())
    }

    /// Posts a receive descriptor and, if there is room, something to send.
    fn go_on(&mut self, cluster: &mut Cluster, random: &mut Rng, count: u64) {
        while self.posted - self.received < SLOTS {
            let offset = RECEIVE_AT + self.posted % SLOTS * SLOT_BYTES;
            let memory = self.to.region.handle;
            let segments = [LocalSegment { memory, offset, length: SLOT_BYTES }];
            let descriptor = ReceiveDescriptor { cookie: self.posted, segments: &segments };
            cluster.nics[self.to.nic].post_receive(self.to.vi, &descriptor).expect("room");
            self.posted += 1;
        }
        // Data that an unreliable VI is due may never arrive.
        let is_reliable = self.level != Reliability::Unreliable;
        let is_full = is_reliable && wide(self.owed.len() + self.reads.len()) >= SLOTS
            || self.sent - self.told >= SLOTS;
        if self.sent >= count || is_full || random.bool() {
            return;
        }
        let length = if random.bool() { random.u64(..32) } else { random.u64(..SLOT_BYTES) };
        let slot = self.sent % SLOTS;
        let bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
        let memory = self.from.region.handle;
        let is_read = self.level != Reliability::Unreliable && random.u8(..4) == 0;
        let (operation, at, remote_at) = match (is_read, random.bool()) {
            (true, _) => (Operation::RdmaRead, READ_TO, Some(READ_FROM)),
            (false, true) => (Operation::RdmaWrite, SEND_AT, Some(WRITE_AT)),
            (false, false) => (Operation::Send, SEND_AT, None),
        };
        let offset = at + slot * SLOT_BYTES;
        let immediate = i32::try_from(self.sent).expect("few");
        if is_read {
            let place = READ_FROM + slot * SLOT_BYTES;
            self.to.region.memory.write(place, &bytes).expect("inside");
            self.reads.push_back((self.sent, bytes));
        } else {
            self.from.region.memory.write(offset, &bytes).expect("inside");
            self.owed.push_back(Owed { operation, bytes, slot, immediate });
        }
        let segments = [LocalSegment { memory, offset, length }];
        let key = self.to.region.key;
        let descriptor = SendDescriptor {
            operation,
            cookie: self.sent,
            immediate: (!is_read).then_some(immediate),
            is_signaled: true,
            remote: remote_at
                .map(|remote_at| RemoteSegment { key, offset: remote_at + slot * SLOT_BYTES }),
            data: Data::Segments(&segments),
        };
        cluster.nics[self.from.nic].post_send(self.from.vi, &descriptor).expect("connected");
        self.sent += 1;
    }

    /// Compares what has arrived with what is due.
    fn judge(&mut self, cluster: &mut Cluster) {
        while let Some(found) = cluster.nics[self.to.nic].poll_queue(self.to.vi, Queue::Receive) {
            assert_eq!((found.status, found.cookie), (Status::Done, self.received));
            let place = RECEIVE_AT + self.received % SLOTS * SLOT_BYTES;
            self.received += 1;
            let owed = loop {
                let owed = self.owed.pop_front().expect("something was sent");
                if Some(owed.immediate) == found.immediate {
                    break owed;
                }
                assert_eq!(self.level, Reliability::Unreliable, "nothing is left out");
            };
            assert_eq!(found.length, wide(owed.bytes.len()));
            let place = match owed.operation {
                Operation::RdmaWrite => WRITE_AT + owed.slot * SLOT_BYTES,
                _ => place,
            };
            let bytes = self.to.region.memory.read_to_vec(place, owed.bytes.len());
            // No completion is awaited if data may be lost, so a later write may be here already.
            if self.level != Reliability::Unreliable || owed.operation == Operation::Send {
                assert!(bytes.expect("inside") == owed.bytes, "the data of {}", owed.immediate);
            }
        }
        while let Some(found) = cluster.nics[self.from.nic].poll_queue(self.from.vi, Queue::Send) {
            assert_eq!((found.status, found.cookie), (Status::Done, self.told));
            self.told += 1;
            if let Some((_, bytes)) = self.reads.pop_front_if(|(read, _)| *read == found.cookie) {
                let place = READ_TO + found.cookie % SLOTS * SLOT_BYTES;
                let read = self.from.region.memory.read_to_vec(place, bytes.len());
                assert!(read.expect("inside") == bytes, "what read {} found", found.cookie);
            }
        }
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("few")
}

/// Runs traffic over three connections between two NICs, in both directions at once.
fn traffic(seed: u64, faults: Faults, count: u64) -> (Seen, u64) {
    // Tags and CRCs take turns.
    let config = SoftwareNicConfig::default().is_tagged(seed.is_multiple_of(2));
    traffic_with(config, seed, faults, count)
}

fn traffic_with(config: SoftwareNicConfig, seed: u64, faults: Faults, count: u64) -> (Seen, u64) {
    let network = Network::new(seed, faults);
    let mut cluster = Cluster::new(network, 2, config);
    let mut random = Rng::with_seed(seed);
    let mut directions = Vec::new();
    for level in
        [Reliability::Unreliable, Reliability::ReliableDelivery, Reliability::ReliableReception]
    {
        let [one, other] = cluster.connect(0, 1, level);
        directions.push(Direction::new(&one, &other, level));
        directions.push(Direction::new(&other, &one, level));
    }
    let is_over = cluster.until(600 * SECOND, |cluster| {
        for direction in &mut directions {
            direction.judge(cluster);
            direction.go_on(cluster, &mut random, count);
        }
        directions.iter().all(|direction| direction.is_over(count))
    });
    let left: Vec<_> = directions.iter().map(|it| (it.sent, it.told, it.owed.len())).collect();
    assert!(is_over, "{left:?} {:?} {:?}", cluster.events, cluster.nics);
    let again = cluster.nics.iter().map(|nic| nic.counters().fragments_sent_again).sum();
    let seen = cluster.network.lock().seen;
    (seen, again)
}

/// Goal: a limit of packets beyond its range counts as the nearest one, and nothing else suffers. Method: traffic with the extremes.
#[test]
fn extreme_limits_of_packets_carry_traffic() {
    for bytes in [0, usize::MAX] {
        let config = SoftwareNicConfig::default().packet_bytes_max(bytes);
        // It checks all bytes, and that all arrive.
        traffic_with(config, 1, Faults::default(), 20);
    }
}

/// Goal: reliable VIs deliver everything once, in order and whole, and unreliable ones nothing wrong,
/// whatever the network does. Method: random transfers in both directions, with loss from 0.1 % to 30 %,
/// one packet in 50 late, duplicated or with a wrong bit, for many seeds, with tags and without.
#[test]
fn transfers_survive_the_network() {
    for (lost, seeds, count) in [(1, 12, 60), (10, 12, 60), (100, 12, 40), (300, 12, 20)] {
        let mut all = Seen::default();
        let mut again = 0;
        for_each_seed(seeds, |seed| {
            let faults = Faults { lost, doubled: 20, late: 20, changed: 20 };
            let (seen, repeats) = traffic(seed, faults, count);
            all.lost += seen.lost;
            all.doubled += seen.doubled;
            all.late += seen.late;
            all.changed += seen.changed;
            again += repeats;
        });
        let counts = [all.lost, all.doubled, all.late, all.changed, again];
        assert!(counts.iter().all(|count| *count > 0), "{lost} of 1000: {counts:?}");
    }
}

/// Goal: the same seed leads to the same run. Method: twice, comparing counts.
#[test]
fn a_run_can_be_repeated() {
    let faults = Faults { lost: 50, doubled: 20, late: 50, changed: 0 };
    let runs = [0, 1].map(|_| {
        let (seen, again) = traffic(7, faults, 40);
        (seen.lost, seen.doubled, seen.late, again)
    });
    assert_eq!(runs[0], runs[1]);
}
