//! Wires over the simulated network's time and events, which lose, repeat, reorder and change packets as one seed says.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use fastrand::Rng;
use vigie_detect::{Instant, SimulatedNetwork};
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
    random: Rng,
    pub(crate) faults: Faults,
    pub(crate) seen: Seen,
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
}

#[derive(Clone, Debug)]
pub(crate) struct Network {
    world: Arc<Mutex<World>>,
    /// Has the time, and the packets under way.
    time: SimulatedNetwork,
}

impl Network {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let time = SimulatedNetwork::new(seed);
        time.advance_to(Instant::from_nanos(SECOND));
        let world = World {
            random: time.fork_random(),
            faults,
            seen: Seen::default(),
            arrived: BTreeMap::new(),
            nodes: 0,
            cut: BTreeSet::new(),
            heals_at: u64::MAX,
            record: None,
        };
        Self { world: Arc::new(Mutex::new(world)), time }
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
        self.time.now().as_nanos()
    }

    /// Advances time to the next arrival, but by at most `most`.
    pub(crate) fn step(&self, most: u64) {
        let until = self.time.now() + Duration::from_nanos(most);
        self.time.advance_to(self.time.next_event().map_or(until, |next| next.min(until)));
    }

    /// Sends a forged packet.
    pub(crate) fn inject(&self, from: Node, to: Node, packet: Vec<u8>) {
        self.schedule(&mut self.lock(), (from, to), packet);
    }

    fn send(&self, from: Node, to: Node, packet: &[u8]) {
        let world = &mut *self.lock();
        if let Some(record) = world.record.as_mut() {
            record.push((from, to, packet.to_vec()));
        }
        if world.cut.contains(&(from, to)) && self.now() < world.heals_at {
            world.seen.cut += 1;
            return;
        }
        if world.chance(world.faults.lost) {
            world.seen.lost += 1;
            return;
        }
        let mut packet = packet.to_vec();
        if world.chance(world.faults.changed) {
            world.seen.changed += 1;
            let bit = world.random.usize(..packet.len() * 8);
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        if world.chance(world.faults.doubled) {
            world.seen.doubled += 1;
            self.schedule(world, (from, to), packet.clone());
        }
        self.schedule(world, (from, to), packet);
    }

    fn schedule(&self, world: &mut World, (from, to): (Node, Node), packet: Vec<u8>) {
        let mut delay = DELAY;
        if world.chance(world.faults.late) {
            world.seen.late += 1;
            delay += world.random.u64(..4 * MILLISECOND);
        }
        let (at, world) =
            (self.time.now() + Duration::from_nanos(delay), Arc::downgrade(&self.world));
        self.time.call_at(at, u64::from(to.0), move || {
            if let Some(world) = world.upgrade() {
                let mut world = world.lock().expect("no test goes on after a panic");
                world.arrived.entry(to).or_default().push_back((from, packet));
            }
        });
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
        for packet in packets.chunks(packet_bytes) {
            self.network.send(self.node, to, packet);
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
