//! Error control for unreliable VIs, which the paper leaves for later [via-lam, §6].
//!
//! Frames and control entries travel in numbered packets, each in the slot of the peer's RDMA area that its
//! number names, and are kept until they are acknowledged. The receiver copies a packet out at once and
//! trusts it only if its checksum is right, so that a late duplicate that overwrites a newer packet is just a
//! loss. Acknowledgements are cumulative and selective, and may be lost like everything else. Packets that
//! are not acknowledged in time are retransmitted, after a longer time-out each time.

use std::{collections::VecDeque, io::IoSlice, time::Duration};

use crc_fast::crc32_iscsi as crc32c;
use vigie_detect::Instant;

use super::{
    EngineConfig,
    envelope::{CONTROL_BYTES, Control},
    link::{LocalResources, PeerParameters, SendOutcome, Staging},
    loopback::LoopbackItem,
    to_u64,
};
use crate::vi::{
    Data, Operation, Provider, ReceiveDescriptor, RemoteSegment, SendDescriptor, ViError,
};

/// The immediate of an acknowledgement; immediates of packets are not negative.
const ACK_IMMEDIATE: i32 = -1;
/// The header of a packet, in bytes.
pub(super) const HEADER_BYTES: usize = 40;
/// The most packets under way: as many as a selective acknowledgement can report.
const WINDOW_MAX: u64 = 64;
/// A packet counts as lost when this many later ones have been acknowledged.
const OVERTAKEN: u32 = 3;
/// The fewest tries before a silent peer is given up: a machine that was suspended must not give up all its peers.
const TRIES_MIN: u32 = 8;
/// The longest time-out, as a power of two times the first.
const BACKOFF_MAX: u32 = 6;

const FRAME: u32 = 1;
const CONTROL: u32 = 2;
const ACK: u32 = 3;

/// The header that precedes the bytes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReliableHeader {
    kind: u32,
    length: u32,
    number: u64,
    /// All packets below this number have arrived.
    acknowledged: u64,
    /// Bit `n`: the packet `acknowledged + 1 + n` has arrived.
    selective: u64,
}

impl ReliableHeader {
    /// Writes the header into the room in front of the data in `bytes`, and the checksum over all.
    fn seal(&self, bytes: &mut [u8]) {
        bytes[4..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..16].fill(0);
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.selective.to_le_bytes());
        let sum = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
    }

    fn read(bytes: &[u8; HEADER_BYTES]) -> Self {
        let long = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let word = |at: usize| u32::try_from(long(at) & 0xffff_ffff).unwrap_or_default();
        Self {
            kind: word(4),
            length: word(8),
            number: long(16),
            acknowledged: long(24),
            selective: long(32),
        }
    }
}

/// A packet that is not acknowledged yet.
#[derive(Debug)]
struct UnackedPacket {
    number: u64,
    kind: u32,
    bytes: Vec<u8>,
    first_sent: Instant,
    due: Instant,
    tries: u32,
    has_arrived: bool,
    /// The number of later packets that were acknowledged since it was last sent.
    overtaken: u32,
}

/// The counters of error control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorControlCounters {
    /// Packets sent, not counting retransmissions.
    pub packets: u64,
    /// Retransmitted packets.
    pub retransmissions: u64,
    /// Packets that had already arrived before.
    pub duplicates: u64,
    /// Packets and acknowledgements whose checksum was wrong.
    pub damaged: u64,
    /// Packets that arrived before one with a lower number.
    pub out_of_order: u64,
}

/// Both directions of a connection over an unreliable VI.
#[derive(Debug)]
pub(super) struct UnreliableLink {
    pub(super) own: LocalResources,
    parameters: PeerParameters,
    slot_bytes_out: u64,
    slots_out: u64,
    slot_bytes_in: u64,
    slots_in: u64,
    next_out: u64,
    packets: VecDeque<UnackedPacket>,
    next_in: u64,
    /// The packets that have arrived from `next_in` on; the first is missing.
    early: VecDeque<Option<Vec<u8>>>,
    whole: VecDeque<Vec<u8>>,
    pub(super) owes_ack: bool,
    retransmit_after: Duration,
    give_up_after: Duration,
    pub(super) counters: ErrorControlCounters,
}

/// Returns the size of a slot for frames of at most `frame_bytes`, in bytes.
fn slot_bytes(frame_bytes: u32) -> u64 {
    (u64::from(frame_bytes) + to_u64(HEADER_BYTES)).next_multiple_of(64)
}

impl UnreliableLink {
    pub(super) fn new(
        own: LocalResources,
        parameters: PeerParameters,
        config: &EngineConfig,
    ) -> Self {
        let count = |area: u32, slot: u64| (u64::from(area) / slot).clamp(1, WINDOW_MAX);
        let slot_bytes_out = slot_bytes(parameters.frame_bytes_max);
        let slot_bytes_in = slot_bytes(config.frame_bytes_max);
        Self {
            slots_out: count(parameters.area_bytes, slot_bytes_out),
            slots_in: count(own.area_bytes, slot_bytes_in),
            own,
            parameters,
            slot_bytes_out,
            slot_bytes_in,
            next_out: 0,
            packets: VecDeque::new(),
            next_in: 0,
            early: VecDeque::new(),
            whole: VecDeque::new(),
            owes_ack: false,
            retransmit_after: config.retransmit_after,
            give_up_after: config.give_up_after,
            counters: ErrorControlCounters::default(),
        }
    }

    // ------------------------------------------------------------------ sending

    /// Returns whether everything that was sent has been acknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        to_u64(self.packets.len()) < self.slots_out
    }

    pub(super) fn send<P: Provider>(
        &mut self,
        nic: &mut P,
        staging: &mut Staging,
        now: Instant,
        is_control: bool,
        slices: &[IoSlice<'_>],
    ) -> SendOutcome {
        if !self.has_room() {
            return SendOutcome::Blocked;
        }

        let mut bytes = vec![0; HEADER_BYTES];
        for slice in slices {
            bytes.extend_from_slice(slice);
        }

        let number = self.next_out;
        self.next_out += 1;
        self.counters.packets += 1;

        // The packet is kept before it is sent: if the queue does not take it, it is sent again later.
        let kind = if is_control { CONTROL } else { FRAME };
        self.packets.push_back(UnackedPacket {
            number,
            kind,
            bytes,
            first_sent: now,
            due: now,
            tries: 0,
            has_arrived: false,
            overtaken: 0,
        });

        let last = self.packets.len() - 1;
        self.transmit(nic, staging, now, last)
    }

    /// Sends a packet, for the first time or again. If the queue does not take it, it is due again at once.
    fn transmit<P: Provider>(
        &mut self,
        nic: &mut P,
        staging: &mut Staging,
        now: Instant,
        index: usize,
    ) -> SendOutcome {
        let (acknowledged, selective) = self.received();
        let Some(packet) = self.packets.get_mut(index) else { return SendOutcome::Done };
        let length = u32::try_from(packet.bytes.len() - HEADER_BYTES).unwrap_or_default();
        packet.overtaken = 0;
        let (kind, number) = (packet.kind, packet.number);
        ReliableHeader { kind, length, number, acknowledged, selective }.seal(&mut packet.bytes);

        let offset = number % self.slots_out * self.slot_bytes_out;
        let remote = RemoteSegment { key: self.parameters.area_key, offset };
        let immediate = i32::try_from(number & 0x7fff_ffff).unwrap_or_default();
        let slices = [IoSlice::new(&packet.bytes)];
        let vi = self.own.vi;
        let length = to_u64(packet.bytes.len());
        let mut cookie = self.own.cookie;

        let sent = if staging.is_needed(length) {
            let Some((staged, segment)) = staging.stage(&slices, length, cookie, self.own.staged)
            else {
                packet.due = now.saturating_add(self.retransmit_after / 8);
                return SendOutcome::Done;
            };
            cookie = staged;
            let sent = post(nic, vi, Data::Segments(&[segment]), remote, immediate, cookie, true);
            if sent != SendOutcome::Done {
                staging.give_back(cookie);
            }
            sent
        } else {
            let is_signaled = number.is_multiple_of(16);
            post(nic, vi, Data::Inline(&slices), remote, immediate, cookie, is_signaled)
        };

        if sent == SendOutcome::Done {
            let wait = self.retransmit_after * (1 << packet.tries.min(BACKOFF_MAX));
            packet.due = now.saturating_add(wait);
            packet.tries += 1;
            self.owes_ack = false;
        } else {
            packet.due = now.saturating_add(self.retransmit_after / 8);
        }
        if matches!(sent, SendOutcome::Fault(_)) { sent } else { SendOutcome::Done }
    }

    fn received(&self) -> (u64, u64) {
        let mut selective = 0;
        for (index, one) in self.early.iter().skip(1).enumerate() {
            selective |= u64::from(one.is_some()) << index;
        }
        (self.next_in, selective)
    }

    /// Acknowledges what has arrived, unless a packet has already done so.
    pub(super) fn acknowledge<P: Provider>(&mut self, nic: &mut P) -> SendOutcome {
        if !self.owes_ack {
            return SendOutcome::Done;
        }
        let (acknowledged, selective) = self.received();
        let mut bytes = [0; HEADER_BYTES];
        ReliableHeader { kind: ACK, length: 0, number: 0, acknowledged, selective }
            .seal(&mut bytes);
        let remote = RemoteSegment { key: self.parameters.control_key, offset: 0 };
        let slices = [IoSlice::new(&bytes)];
        let data = Data::Inline(&slices);
        let is_signaled = acknowledged.is_multiple_of(16);
        let sent =
            post(nic, self.own.vi, data, remote, ACK_IMMEDIATE, self.own.cookie, is_signaled);
        if sent == SendOutcome::Done {
            self.owes_ack = false;
        }
        sent
    }

    /// Retransmits what is due. Fails if the peer has been silent for too long or the VI is broken.
    pub(super) fn service<P: Provider>(
        &mut self,
        nic: &mut P,
        staging: &mut Staging,
        now: Instant,
    ) -> Result<bool, ()> {
        let mut has_worked = false;
        for index in 0..self.packets.len() {
            let Some(packet) = self.packets.get(index) else { break };
            if packet.has_arrived || (packet.due > now && packet.overtaken < OVERTAKEN) {
                continue;
            }

            if packet.tries >= TRIES_MIN
                && now.saturating_duration_since(packet.first_sent) >= self.give_up_after
            {
                return Err(());
            }

            // A packet that the queue has never taken is sent for the first time now.
            self.counters.retransmissions += u64::from(packet.tries > 0);
            has_worked = true;
            if matches!(self.transmit(nic, staging, now, index), SendOutcome::Fault(_)) {
                return Err(());
            }
        }
        Ok(has_worked)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.packets.iter().filter(|packet| !packet.has_arrived).map(|packet| packet.due).min()
    }

    // ------------------------------------------------------------------ receiving

    /// Posts the descriptor again that a completion consumed.
    pub(super) fn repost<P: Provider>(&self, nic: &mut P) {
        let descriptor = ReceiveDescriptor { cookie: self.own.cookie, segments: &[] };
        // If this fails, a packet is lost and retransmitted.
        drop(nic.post_receive(self.own.vi, &descriptor));
    }

    /// Takes what an immediate announces. The peer may announce anything.
    pub(super) fn arrived(&mut self, immediate: i32) -> Result<(), &'static str> {
        let (memory, offset) = match u64::try_from(immediate) {
            Ok(number) => (&self.own.area.memory, number % self.slots_in * self.slot_bytes_in),
            Err(_) => (&self.own.control.memory, 0),
        };
        let outside = |_| "a packet outside the area";
        let mut head = [0; HEADER_BYTES];
        memory.read(offset, &mut head).map_err(outside)?;
        let header = ReliableHeader::read(&head);

        let is_ack = immediate < 0;
        if u64::from(header.length) > self.slot_bytes_in - to_u64(HEADER_BYTES)
            || (is_ack && header.length != 0)
        {
            self.counters.damaged += 1;
            return Ok(());
        }

        // The whole packet is copied once and then checked; it may have changed since the header was read.
        let length = HEADER_BYTES + header.length as usize;
        let bytes = memory.read_to_vec(offset, length).map_err(outside)?;
        let mut sum = [0; 4];
        sum.copy_from_slice(&bytes[..4]);
        let is_whole =
            crc32c(&bytes[4..]) == u32::from_le_bytes(sum) && bytes[..HEADER_BYTES] == head;
        if !is_whole || (header.kind == ACK) != is_ack {
            self.counters.damaged += 1;
            return Ok(());
        }

        self.acknowledged(&header)?;
        if !is_ack {
            self.packet(&header, bytes);
        }
        Ok(())
    }

    fn packet(&mut self, header: &ReliableHeader, bytes: Vec<u8>) {
        // A duplicate is acknowledged too: its sender may have missed the first acknowledgement.
        self.owes_ack = true;
        let Some(ahead) = header.number.checked_sub(self.next_in) else {
            self.counters.duplicates += 1;
            return;
        };

        // A sender has no more packets under way than there are slots.
        if ahead >= self.slots_in {
            self.counters.damaged += 1;
            return;
        }

        let index = usize::try_from(ahead).unwrap_or_default();
        while self.early.len() <= index {
            self.early.push_back(None);
        }

        if self.early[index].is_some() {
            self.counters.duplicates += 1;
            return;
        }

        self.counters.out_of_order += u64::from(index > 0);
        self.early[index] = Some(bytes);

        // After this, `early` begins with a missing packet again.
        while let Some(Some(bytes)) = self.early.front_mut().map(Option::take) {
            self.early.pop_front();
            self.next_in += 1;
            self.whole.push_back(bytes);
        }
    }

    fn acknowledged(&mut self, header: &ReliableHeader) -> Result<(), &'static str> {
        if header.acknowledged > self.next_out {
            return Err("an acknowledgement of what was never sent");
        }
        while self.packets.front().is_some_and(|packet| packet.number < header.acknowledged) {
            self.packets.pop_front();
        }
        let highest = header.acknowledged + 64 - u64::from(header.selective.leading_zeros());
        for packet in &mut self.packets {
            let behind = packet.number.checked_sub(header.acknowledged + 1);
            if behind.is_some_and(|bit| bit < 64 && header.selective >> bit & 1 == 1) {
                packet.has_arrived = true;
            } else if packet.number < highest {
                packet.overtaken += 1;
            }
        }
        Ok(())
    }

    /// Takes the next item in order: the bytes of a frame behind [`HEADER_BYTES`], or a control entry.
    pub(super) fn take(&mut self) -> Option<Result<LoopbackItem, &'static str>> {
        let bytes = self.whole.pop_front()?;
        let head = bytes.first_chunk::<HEADER_BYTES>()?;
        match ReliableHeader::read(head).kind {
            FRAME => Some(Ok(LoopbackItem::Frame(bytes))),
            CONTROL => {
                let entry = bytes[HEADER_BYTES..].first_chunk::<CONTROL_BYTES>();
                let control = entry.and_then(|entry| Control::decode(*entry));
                Some(control.map(LoopbackItem::Control).ok_or("an unknown control entry"))
            }
            _ => Some(Err("an unknown kind of packet")),
        }
    }
}

fn post<P: Provider>(
    nic: &mut P,
    vi: crate::vi::ViId,
    data: Data<'_>,
    remote: RemoteSegment,
    immediate: i32,
    cookie: u64,
    is_signaled: bool,
) -> SendOutcome {
    let descriptor = SendDescriptor {
        operation: Operation::RdmaWrite,
        cookie,
        immediate: Some(immediate),
        is_signaled,
        remote: Some(remote),
        data,
    };
    match nic.post_send(vi, &descriptor) {
        Ok(()) => SendOutcome::Done,
        // As over a reliable VI: the event of a broken VI says why.
        Err(ViError::QueueFull { .. } | ViError::WrongState { .. }) => SendOutcome::Blocked,
        Err(_) => SendOutcome::Fault("the VI takes no descriptors"),
    }
}

#[cfg(test)]
mod tests;
