//! A network in virtual time that loses, repeats, reorders and changes packets, derived from one seed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard},
};

use fastrand::Rng;
use vigie_detect::Instant;
use vigie_via::software_nic::{Path, Secret, SoftwareNic, SoftwareNicConfig, Wire};

pub(crate) const MICROSECOND: u64 = 1000;
pub(crate) const MILLISECOND: u64 = 1000 * MICROSECOND;
pub(crate) const SECOND: u64 = 1000 * MILLISECOND;

/// The one-way delay without faults.
const DELAY: u64 = 50 * MICROSECOND;

pub(crate) type SimNic = SoftwareNic<SimWire>;

/// An end of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node(pub(crate) u32);

impl Path for Node {
    fn to_bytes(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(u32::from_le_bytes).map(Self)
    }
}

/// The planned faults, each in parts of a thousand packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    pub(crate) late: u32,
    pub(crate) changed: u32,
}

/// Counts of the faults that occurred.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) late: u64,
    pub(crate) changed: u64,
    pub(crate) cut: u64,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: u64,
    random: Rng,
    pub(crate) faults: Faults,
    pub(crate) seen: Seen,
    number: u64,
    /// Packets in flight, by time of arrival.
    under_way: BTreeMap<(u64, u64), (Node, Node, Vec<u8>)>,
    arrived: BTreeMap<Node, VecDeque<(Node, Vec<u8>)>>,
    nodes: u32,
    /// Directions that are cut.
    pub(crate) cut: BTreeSet<(Node, Node)>,
    /// Until when they are cut.
    pub(crate) heals_at: u64,
    /// Every packet sent, if recording is on.
    pub(crate) record: Option<Vec<(Node, Node, Vec<u8>)>>,
}

impl World {
    fn chance(&mut self, per_thousand: u32) -> bool {
        self.random.u32(..1000) < per_thousand
    }

    fn send(&mut self, from: Node, to: Node, packet: &[u8]) {
        if let Some(record) = self.record.as_mut() {
            record.push((from, to, packet.to_vec()));
        }
        if self.now < self.heals_at && self.cut.contains(&(from, to)) {
            self.seen.cut += 1;
            return;
        }
        if self.chance(self.faults.lost) {
            self.seen.lost += 1;
            return;
        }
        let mut packet = packet.to_vec();
        if self.chance(self.faults.changed) {
            self.seen.changed += 1;
            let bit = self.random.usize(..packet.len() * 8);
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        if self.chance(self.faults.doubled) {
            self.seen.doubled += 1;
            self.schedule(from, to, packet.clone());
        }
        self.schedule(from, to, packet);
    }

    fn schedule(&mut self, from: Node, to: Node, packet: Vec<u8>) {
        let mut delay = DELAY;
        if self.chance(self.faults.late) {
            self.seen.late += 1;
            delay += self.random.u64(..4 * MILLISECOND);
        }
        self.number += 1;
        self.under_way.insert((self.now + delay, self.number), (from, to, packet));
    }

    /// Advances time.
    fn advance_to(&mut self, instant: u64) {
        self.now = self.now.max(instant);
        while let Some(next) = self.under_way.first_entry() {
            if next.key().0 > self.now {
                return;
            }
            let (from, to, packet) = next.remove();
            self.arrived.entry(to).or_default().push_back((from, packet));
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Network {
    world: Arc<Mutex<World>>,
}

impl Network {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let world = World {
            now: SECOND,
            random: Rng::with_seed(seed),
            faults,
            seen: Seen::default(),
            number: 0,
            under_way: BTreeMap::new(),
            arrived: BTreeMap::new(),
            nodes: 0,
            cut: BTreeSet::new(),
            heals_at: u64::MAX,
            record: None,
        };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no test goes on after a panic")
    }

    pub(crate) fn wire(&self) -> SimWire {
        let mut world = self.lock();
        world.nodes += 1;
        SimWire { network: self.clone(), node: Node(world.nodes) }
    }

    pub(crate) fn nic(&self, secret: u8, config: SoftwareNicConfig) -> SimNic {
        let wire = self.wire();
        let mut seed = [secret; 16];
        seed[..4].copy_from_slice(&wire.node.0.to_le_bytes());
        seed[4] = self.lock().random.u8(..);
        SoftwareNic::new(wire, Secret::new([secret; 16]), config, seed)
    }

    pub(crate) fn now(&self) -> u64 {
        self.lock().now
    }

    /// Advances time to the next arrival, but by at most `most`.
    pub(crate) fn step(&self, most: u64) {
        let mut world = self.lock();
        let until = world.now + most;
        let next = world.under_way.first_key_value().map_or(until, |((at, _), _)| *at);
        world.advance_to(next.min(until));
    }

    /// Sends a forged packet.
    pub(crate) fn inject(&self, from: Node, to: Node, packet: Vec<u8>) {
        self.lock().schedule(from, to, packet);
    }
}

#[derive(Debug)]
pub(crate) struct SimWire {
    network: Network,
    pub(crate) node: Node,
}

impl Wire for SimWire {
    type Path = Node;

    const NAME: &'static str = "simulated wire";

    fn now(&self) -> Instant {
        Instant::from_nanos(self.network.now())
    }

    fn path(&self) -> Node {
        self.node
    }

    fn send(&mut self, to: Node, packets: &[u8], packet_bytes: usize) -> io::Result<()> {
        let mut world = self.network.lock();
        for packet in packets.chunks(packet_bytes) {
            world.send(self.node, to, packet);
        }
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, Node)>> {
        let found = self.network.lock().arrived.get_mut(&self.node).and_then(VecDeque::pop_front);
        Ok(found.map(|(from, packet)| {
            buffer[..packet.len()].copy_from_slice(&packet);
            (packet.len(), from)
        }))
    }

    fn packets_max(&self) -> usize {
        8
    }

    fn packet_bytes(&mut self, _to: Node) -> usize {
        1472
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
