//! Two VIs that are connected, under `--cfg loom` only: everything but the handshake as in [`Shm`](super::Shm).

use std::{
    collections::VecDeque,
    io::IoSlice,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{
    connection::ShmConnection,
    layout::{PAGE_BYTES, RING_BYTES, size, wide},
    posted::PostedReceive,
    ring::{Consumer, Producer},
    sys,
    table::RegionTable,
    vi::{NicState, ShmVi},
    wakeup::{NicPage, PeerPage},
    wire::{ControlPacket, PACKET_MAX},
};
use crate::{
    slots::Slots,
    vi::{
        Data, HeadedPoll, HeadedWrite, LocalSegment, Memory, MemoryAttributes, Operation,
        ProtectionTag, Queue, ReceiveDescriptor, Region, Reliability, RemoteKey, RemoteSegment,
        SendDescriptor, ViAttributes, ViEvent, ViId, objects::ViCore,
    },
};

const TAG: ProtectionTag = ProtectionTag(1);

/// One side before it is connected.
struct Side {
    nic_state: NicState,
    ring: (OwnedFd, Memory),
    area: (OwnedFd, Region),
    socket: OwnedFd,
}

impl Side {
    fn new(area_bytes: u64, socket: OwnedFd) -> Self {
        let page = NicPage::new().expect("a page");
        let (table, cqs, events) = (RegionTable::new(), Slots::new(), VecDeque::new());
        let mut nic_state = NicState { table, cqs, page, events };
        let (file, memory) = sys::make_file(size(area_bytes), false).expect("an area");
        let attributes = MemoryAttributes { tag: TAG, allows_write: true, allows_read: false };
        let own = file.try_clone().expect("a descriptor");
        let NicState { table, page, .. } = &mut nic_state;
        let region = table.register(memory, attributes, Some(own.into()), page).expect("room");
        let ring = sys::make_file(size(RING_BYTES), false).expect("a ring");
        Self { nic_state, ring, area: (file, region), socket }
    }

    fn connect(&self, peer: &Self, is_fenced: bool) -> (ShmVi, RemoteKey) {
        let page = sys::map_file(peer.nic_state.page.file(), size(PAGE_BYTES), false);
        let page = PeerPage::new(page.expect("a page"), is_fenced);
        let ring = sys::map_file(peer.ring.0.as_fd(), size(RING_BYTES), true).expect("a ring");
        let socket = self.socket.try_clone().expect("a descriptor");
        let (producer, consumer) = (Producer::new(ring), Consumer::new(self.ring.1.clone()));
        let mut connection = ShmConnection::new(socket, producer, consumer, page);
        let (file, region) = &peer.area;
        let (key, length) = (region.key, wide(region.memory.len()));
        let grant = ControlPacket::Grant { key, length, allows_write: true, allows_read: false };
        connection.map(&grant, file).expect("an area");

        let attributes = ViAttributes {
            reliability: Reliability::ReliableDelivery,
            tag: TAG,
            send_cq: None,
            receive_cq: None,
            allows_write: true,
            allows_read: false,
        };
        let mut vi = ShmVi::new(ViCore::new(ViId(0), attributes));
        vi.core.change(ViEvent::Connect);
        vi.core.change(ViEvent::Establish);
        vi.connection = Some(connection);
        let own = &self.area.1;
        vi.headed_writes.add(own.key, wide(own.memory.len()));
        (vi, key)
    }
}

/// One end of a connection, with memory that the peer may write.
#[derive(Debug)]
pub struct ModelVi {
    vi: ShmVi,
    nic_state: NicState,
    area: Region,
    peers_area: RemoteKey,
    /// The peer's end of the socket.
    peers_socket: OwnedFd,
}

/// Returns two connected VIs, each with an area of `area_bytes` for the other. If `is_fenced`, they have no `membarrier`, and fence before
/// each look at the sleep word (wakeup-2). Otherwise neither may sleep: the models would lack the fences of wakeup-1.
///
/// # Panics
/// If the system has no descriptors left.
#[must_use]
pub fn connected_vis(area_bytes: u64, is_fenced: bool) -> [ModelVi; 2] {
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("sockets");
    let sides = [Side::new(area_bytes, one), Side::new(area_bytes, other)];
    let connected =
        [sides[0].connect(&sides[1], is_fenced), sides[1].connect(&sides[0], is_fenced)];
    let sockets = [&sides[1], &sides[0]].map(|peer| peer.socket.try_clone().expect("a descriptor"));
    let [first, second] = sides;
    let [of_first, of_second] = connected;
    let [to_first, to_second] = sockets;
    [(first, of_first, to_first), (second, of_second, to_second)].map(
        |(side, (vi, peers_area), peers_socket)| {
            let Side { nic_state, area: (_, region), .. } = side;
            ModelVi { vi, nic_state, area: region, peers_area, peers_socket }
        },
    )
}

impl ModelVi {
    /// Posts a receive descriptor, for which `length` bytes of the own area are.
    pub fn post_receive(&mut self, offset: u64, length: u64) {
        let segments = &[LocalSegment { memory: self.area.handle, offset, length }];
        self.vi.receives.push_back(PostedReceive::of(&ReceiveDescriptor { cookie: 0, segments }));
    }

    /// As [`Provider::post_headed_write`](crate::vi::Provider::post_headed_write), into the peer's area.
    pub fn post_headed_write(
        &mut self,
        offset: u64,
        immediate: i32,
        head: u128,
        body: &[u8],
    ) -> bool {
        let to = RemoteSegment { key: self.peers_area, offset };
        self.vi.post_headed_write(to, immediate, head, body)
    }

    /// Posts a write of bytes into the peer's area.
    ///
    /// # Panics
    /// If it is refused.
    pub fn post_write(&mut self, offset: u64, immediate: Option<i32>, bytes: &[u8]) {
        let to = RemoteSegment { key: self.peers_area, offset };
        self.post(Operation::RdmaWrite, Some(to), immediate, bytes);
    }

    /// Posts a send of bytes.
    ///
    /// # Panics
    /// If it is refused.
    pub fn post_send(&mut self, immediate: i32, bytes: &[u8]) {
        self.post(Operation::Send, None, Some(immediate), bytes);
    }

    fn post(
        &mut self,
        operation: Operation,
        remote: Option<RemoteSegment>,
        immediate: Option<i32>,
        bytes: &[u8],
    ) {
        let descriptor = SendDescriptor {
            operation,
            cookie: 0,
            immediate,
            is_signaled: false,
            remote,
            data: Data::Inline(&[IoSlice::new(bytes)]),
        };
        self.vi.post(&mut self.nic_state, &descriptor).expect("connected");
    }

    /// Returns whether the ring has room for an entry.
    ///
    /// # Panics
    /// If the peer's count is impossible.
    pub fn has_room(&mut self) -> bool {
        self.vi.connection.as_mut().is_some_and(|it| it.producer.has_room().expect("possible"))
    }

    /// Returns whether the peer's consumption is waited for.
    #[must_use]
    pub fn waits_for_peer(&self) -> bool {
        self.vi.waits_for_peer()
    }

    /// Takes the next headed write, if it has arrived.
    ///
    /// # Panics
    /// If something else has.
    pub fn take_headed_write(&mut self) -> Option<HeadedWrite> {
        match self.vi.take_headed_write() {
            HeadedPoll::Write(write) => Some(write),
            HeadedPoll::Nothing => None,
            HeadedPoll::Other => panic!("something else than a headed write"),
        }
    }

    /// Works as the usual poll. Returns whether anything was done.
    ///
    /// # Panics
    /// If the connection broke.
    pub fn work(&mut self) -> bool {
        let has_worked = self.vi.work(&mut self.nic_state);
        assert!(self.nic_state.events.is_empty(), "broken: {:?}", self.nic_state.events);
        has_worked
    }

    /// Returns the immediate data of the next completed receive.
    pub fn take_received(&mut self) -> Option<i32> {
        self.vi.core.take(Queue::Receive)?.immediate
    }

    /// Takes all completed receives, and returns their number.
    pub fn take_all_received(&mut self) -> u64 {
        std::iter::from_fn(|| self.take_received()).map(|_| 1).sum()
    }

    /// Returns bytes of the own area.
    ///
    /// # Panics
    /// If they are outside.
    #[must_use]
    pub fn read_area(&self, offset: u64, length: usize) -> Vec<u8> {
        self.area.memory.read_to_vec(offset, length).expect("inside")
    }

    /// Returns a word of the own area.
    ///
    /// # Panics
    /// If it is outside.
    #[must_use]
    pub fn load_area(&self, offset: u64) -> u64 {
        self.area.memory.load(offset).expect("inside")
    }

    /// Announces that this side sleeps, as [`Provider::arm`](crate::vi::Provider::arm); [`work`](Self::work) once more after it.
    ///
    /// # Panics
    /// If the kernel refuses the barrier.
    pub fn fall_asleep(&mut self) {
        let waits = self.vi.waits_for_peer();
        if let Some(connection) = &mut self.vi.connection {
            connection.set_wakeup_wanted(waits);
        }
        self.nic_state.page.fall_asleep().expect("a barrier");
    }

    /// Ends the sleep, as [`Provider::progress`](crate::vi::Provider::progress).
    pub fn wake_up(&mut self) {
        self.nic_state.page.wake_up();
        if let Some(connection) = &mut self.vi.connection {
            connection.set_wakeup_wanted(false);
        }
    }

    /// Returns how many wake-ups this side has sent since the last call.
    ///
    /// # Panics
    /// If it has sent anything else.
    #[must_use]
    pub fn sent_wakeups(&self) -> u64 {
        let mut bytes = [0; PACKET_MAX];
        let mut count = 0;
        loop {
            match sys::receive(self.peers_socket.as_fd(), &mut bytes) {
                sys::SocketRead::Nothing => return count,
                sys::SocketRead::Packet(..) => count += 1,
                other => panic!("no wake-up but {other:?}"),
            }
        }
    }
}
