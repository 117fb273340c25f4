//! vigie's Virtual Interface layer over shared memory: RDMA writes with immediate data, and nothing on
//! top of them.
//!
//! A message is written to the next of the slots of the receiver's area, and its length is the immediate
//! data. Receive descriptors are posted again as they are consumed. There are no credits: no measure has
//! more messages under way than there are slots and descriptors. Two ranks share one connection; of more, each has one
//! to the next and one from the rank before.
//!
//! Messages longer than an Ethernet frame stay in registered memory on both sides, the purpose of VIs: only their
//! beginning is written before each send, and read after it.

use std::hint;
use std::io::IoSlice;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use vigie_detect::{ArmOutcome, Instant};
use vigie_via::shm::Shm;
use vigie_via::vi::{
    Address, Completion, Connect, CqId, Data, LocalSegment, MemoryAttributes, NicEvent, Operation,
    Provider, Queue, ReceiveDescriptor, Region, Reliability, RemoteKey, RemoteSegment,
    SendDescriptor, ViAttributes, ViError, ViId,
};

use super::socket::wait_posted;
use super::{Carrier, CarrierKind, Channel, Measure, RankContext, VIGIE_VI, blocking};
use crate::error::Failure;
use crate::host::{Arena, CONTROL_BYTES};

/// vigie's Virtual Interface layer.
pub(crate) static VIRTUAL_INTERFACE: Carrier = Carrier {
    name: VIGIE_VI,
    label: "vigie, Virtual Interface",
    family: "vigie",
    kind: CarrierKind::Vigie,
    has: |measure| {
        let fits = measure.bytes() <= SLOT_BYTES && measure.window() <= SLOTS / 2;
        let is_asked =
            measure.is_plain() || matches!(measure, Measure::Waiting { .. } | Measure::Quiet);
        fits && is_asked
    },
    link_bytes: ADDRESS_BYTES,
    is_remote: false,
    open: |context| blocking(VirtualInterface::open(Shm::open, context, SLOT_BYTES * SLOTS)),
    program: None,
};

/// The same with messages as long as a frame of Ethernet: beyond [`SLOT_BYTES`] their data is in registered
/// memory.
pub(super) static VIRTUAL_INTERFACE_MTU: Carrier = Carrier {
    name: "vigie-vi-mtu",
    label: "vigie, Virtual Interface, shared memory",
    has: |measure| {
        let fits = measure.bytes() <= MTU_BYTES && measure.window() <= SLOTS / 2;
        fits && measure.is_plain()
    },
    open: |context| blocking(VirtualInterface::open(Shm::open, context, MTU_BYTES * SLOTS)),
    ..VIRTUAL_INTERFACE
};

/// Bytes of a slot: what fits into a descriptor.
const SLOT_BYTES: u32 = 256;

/// Bytes of a slot for a frame of Ethernet.
const MTU_BYTES: u32 = 1_536;

/// Slots, and receive descriptors posted.
const SLOTS: u32 = 256;

/// Room for an address on the board: its length, and its bytes.
pub(crate) const ADDRESS_BYTES: usize = 512;

/// The discriminator of all connections of a run.
const DISCRIMINATOR: &[u8] = b"pingpong";

/// How long ranks wait for each other at the beginning.
const MEETING: Duration = Duration::from_secs(20);

/// Looks at the completion queue before a rank sleeps: about 100 µs, far beyond a round trip.
const LOOKS: u32 = 2_000;

/// One rank's NIC, its connection to the next rank and the one from the rank before.
#[derive(Debug)]
pub(super) struct VirtualInterface<P> {
    nic: P,
    cq: CqId,
    next: ViId,
    before: ViId,
    /// The area of the next rank.
    key: RemoteKey,
    /// This rank's own area.
    area: Region,
    area_bytes: u32,
    /// Where long messages wait to be taken, if there are any, in slots as in the area.
    staging: Option<Region>,
    sent: u32,
    received: u32,
}

fn failed(error: ViError) -> Failure {
    Failure::runtime(error)
}

fn unusable(completion: Completion) -> Failure {
    Failure::runtime(format!("{:?} queue: {}", completion.queue, completion.status))
}

impl<P: Provider> VirtualInterface<P> {
    pub(super) fn open(
        nic: impl FnOnce() -> Result<P, ViError>,
        context: &RankContext,
        area_bytes: u32,
    ) -> Result<Self, Failure> {
        let mut nic = nic().map_err(failed)?;
        let (tag, cq) = (nic.create_tag(), nic.create_cq().map_err(failed)?);
        let memory = MemoryAttributes { tag, allows_write: true, allows_read: false };
        let length = usize::try_from(area_bytes).map_err(Failure::runtime)?;
        let area = nic.allocate(length, memory).map_err(failed)?;
        let is_long = area_bytes > SLOT_BYTES * SLOTS;
        let staging = is_long.then(|| nic.allocate(length, memory)).transpose().map_err(failed)?;
        let attributes = ViAttributes {
            reliability: Reliability::ReliableDelivery,
            tag,
            send_cq: Some(cq),
            receive_cq: Some(cq),
            allows_write: true,
            allows_read: false,
        };
        let next = nic.create_vi(attributes).map_err(failed)?;
        let is_pair = context.next() == context.before();
        let before = if is_pair { next } else { nic.create_vi(attributes).map_err(failed)? };
        for _ in 0..SLOTS {
            let descriptor = ReceiveDescriptor { cookie: 0, segments: &[] };
            nic.post_receive(before, &descriptor).map_err(failed)?;
        }
        nic.listen(DISCRIMINATOR).map_err(failed)?;
        leave_address(context, &nic.address())?;
        if let Some(staging) = &staging {
            staging.memory.write(0, &vec![0; length]).map_err(Failure::runtime)?;
        }
        let deadline = Instant::now().saturating_add(MEETING);
        if !is_pair || context.rank < context.next() {
            let address = address_of(context, context.next())?;
            let greeting = area.key.0.to_le_bytes();
            nic.connect(Connect::new(next, &address, DISCRIMINATOR, deadline).greeting(&greeting))
                .map_err(failed)?;
        }
        let key = RemoteKey(0);
        let mut own =
            Self { nic, cq, next, before, key, area, area_bytes, staging, sent: 0, received: 0 };
        own.connect(deadline)?;
        Ok(own)
    }

    /// Accepts the rank before and waits until the next one has accepted.
    fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        let greeting = self.area.key.0.to_le_bytes();
        let is_pair = self.next == self.before;
        let (mut has_next, mut has_before) = (false, is_pair);
        while !(has_next && has_before) {
            self.nic.progress(Instant::now());
            match self.nic.next_event() {
                Some(NicEvent::Requested { request, .. }) => {
                    self.nic.accept(request, self.before, &greeting).map_err(failed)?;
                }
                Some(NicEvent::Connected { vi, greeting }) if vi == self.next => {
                    let key = <[u8; 8]>::try_from(greeting).map_err(|greeting| {
                        Failure::runtime(format!("{greeting:?} is not a key of an area"))
                    })?;
                    (self.key, has_next) = (RemoteKey(u64::from_le_bytes(key)), true);
                }
                Some(NicEvent::Connected { .. }) => has_before = true,
                Some(event) => return Err(Failure::runtime(format!("not connected: {event:?}"))),
                None if Instant::now() > deadline => {
                    return Err(Failure::runtime("the other ranks did not connect"));
                }
                None => hint::spin_loop(),
            }
        }
        Ok(())
    }

    /// Where the `number`th message goes. All messages under way have the same length.
    #[inline]
    fn offset(&self, number: u32, length: usize) -> u64 {
        let slot_bytes = u32::try_from(length).unwrap_or(u32::MAX).max(SLOT_BYTES);
        let slots = (self.area_bytes / slot_bytes).clamp(1, SLOTS);
        u64::from(number % slots) * u64::from(slot_bytes)
    }

    /// Sleeps until the NIC has something to do.
    #[cold]
    fn sleep(&mut self) -> Result<(), Failure> {
        let cannot = Failure::io("sleeping on a NIC");
        if let ArmOutcome::Armed = self.nic.arm().map_err(cannot)? {
            let Some(descriptor) = self.nic.descriptor() else { return Ok(()) };
            let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
            match poll(&mut descriptors, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(Failure::io("sleeping on a NIC")(error.into())),
            }
            self.nic.quiet();
        }
        self.nic.progress(Instant::now());
        Ok(())
    }
}

/// Leaves this rank's address for the others.
pub(crate) fn leave_address(context: &RankContext, own: &Address) -> Result<(), Failure> {
    let arena = Arena::open(&context.memory)?;
    arena.write(place(context.rank)?, &own.0);
    arena.post(context.rank, own.0.len() as u64);
    Ok(())
}

/// Returns the address that `rank` has left, once it has.
pub(super) fn address_of(context: &RankContext, rank: u32) -> Result<Address, Failure> {
    let arena = Arena::open(&context.memory)?;
    let length = usize::try_from(wait_posted(&arena, rank)?).map_err(Failure::runtime)?;
    let mut address = vec![0; length.min(ADDRESS_BYTES)];
    arena.read(place(rank)?, &mut address);
    Ok(Address(address))
}

fn place(rank: u32) -> Result<usize, Failure> {
    let rank = usize::try_from(rank).map_err(Failure::runtime)?;
    Ok(CONTROL_BYTES + rank * ADDRESS_BYTES)
}

/// Returns how many bytes of a message are copied between the program's buffer and registered
/// memory.
const fn copied(length: usize) -> usize {
    if length > MTU_BYTES as usize { SLOT_BYTES as usize } else { length }
}

impl<P: Provider> Channel for VirtualInterface<P> {
    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        let offset = self.offset(self.sent, message.len());
        self.sent = self.sent.wrapping_add(1);
        let data = [IoSlice::new(message)];
        let mut segments = [LocalSegment { memory: self.area.handle, offset, length: 0 }];
        let data = match &self.staging {
            // No measure has as many messages under way as there are slots: this one is free again.
            Some(staging) if message.len() as u64 > u64::from(SLOT_BYTES) => {
                let copied = &message[..copied(message.len())];
                staging.memory.write(offset, copied).map_err(Failure::runtime)?;
                segments[0].memory = staging.handle;
                segments[0].length = message.len() as u64;
                Data::Segments(&segments)
            }
            _ => Data::Inline(&data),
        };
        let descriptor = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: 0,
            immediate: Some(i32::try_from(message.len()).map_err(Failure::runtime)?),
            is_signaled: false,
            remote: Some(RemoteSegment { key: self.key, offset }),
            data,
        };
        loop {
            match self.nic.post_send(self.next, &descriptor) {
                Err(ViError::QueueFull { .. }) => self.nic.progress(Instant::now()),
                result => return result.map_err(failed),
            };
        }
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> Result<(), Failure> {
        let mut looks = 0;
        let completion = loop {
            if let Some(completion) = self.nic.poll_cq(self.cq) {
                break completion;
            }
            looks += 1;
            if looks >= LOOKS {
                looks = 0;
                self.sleep()?;
            }
            hint::spin_loop();
        };
        let is_whole = completion.length == message.len() as u64;
        if completion.queue != Queue::Receive || !completion.status.is_done() || !is_whole {
            return Err(unusable(completion));
        }
        let length = message.len();
        let offset = self.offset(self.received, length);
        self.received = self.received.wrapping_add(1);
        let copied = &mut message[..copied(length)];
        self.area.memory.read(offset, copied).map_err(Failure::runtime)?;
        let descriptor = ReceiveDescriptor { cookie: 0, segments: &[] };
        self.nic.post_receive(self.before, &descriptor).map_err(failed)
    }
}
