//! A peer that breaks the rules, driven by bytes.
//!
//! The attacker knows the format, so it gets further than noise would. It does what the bytes say:
//! entries of any content, scribbling over everything that it may write, packets with right and wrong
//! files, floods. Meanwhile the victim posts descriptors of its own. At the end the victim must have
//! lost nothing but that connection.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, OwnedFd},
};

use rustix::fs::{MemfdFlags, SealFlags};
use vigie_detect::Instant;

use crate::{
    shm::{
        entry::{DataLocation, Draft, EntryKind, RingEntry},
        layout::{CONSUMED_AT, PAGE_BYTES, REFUSAL_AT, RING_BYTES, STAGING_BYTES, size, wide},
        nic::Shm,
        ring::Producer,
        sys::{self, SocketRead},
        wire::{ConnectionParameters, ControlPacket, Hello, PACKET_MAX, ShmAddress as Address},
    },
    vi::{
        CACHE_LINE, Connect, CqId, Data, DisconnectReason, HeadedPoll, LocalSegment, Memory,
        MemoryAttributes, NicEvent, Operation, Provider, Queue, ReceiveDescriptor, Region,
        Reliability, RemoteKey, RemoteSegment, SendDescriptor, ViAttributes, ViId, ViState,
    },
};

/// Decodes bytes as a packet of the socket, and encodes the result again.
///
/// # Errors
/// A description of the bug if decoder and encoder disagree.
pub(super) fn try_packet(bytes: &[u8]) -> Result<bool, String> {
    let Ok(packet) = ControlPacket::decode(bytes) else { return Ok(false) };
    // A refusal's text is not sent.
    if packet.encode() == bytes { Ok(true) } else { Err(format!("{packet:?} from {bytes:?}")) }
}

/// Decodes bytes as a ring entry, and checks that an accepted entry respects every bound.
///
/// # Errors
/// A description of the decoder's bug.
pub(super) fn try_entry(bytes: &[u8]) -> Result<bool, String> {
    let mut line = [0; CACHE_LINE];
    for (place, byte) in line.iter_mut().zip(bytes) {
        *place = *byte;
    }
    let Ok(entry) = RingEntry::decode(&line) else { return Ok(false) };
    let is_bounded = match entry.place {
        DataLocation::PlacedBody => entry.total >= 16,
        DataLocation::Inline { length } => length <= 40 && entry.is_last,
        DataLocation::Staged { at, length } => {
            length > 0 && u64::from(at) + u64::from(length) <= STAGING_BYTES
        }
        DataLocation::Placed => {
            entry.is_last && !matches!(entry.kind, EntryKind::Send | EntryKind::ReadData)
        }
    };
    let again = Draft::of(&line);
    entry.encode(&again);
    if is_bounded && entry.total < 1 << 31 && RingEntry::decode(&again.line()) == Ok(entry) {
        Ok(true)
    } else {
        Err(format!("{entry:?} from {line:?}"))
    }
}

/// The outcome of an attack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub(super) struct AttackOutcome {
    /// Why the victim broke the connection, if it did.
    pub(super) broken: Option<DisconnectReason>,
    /// Completions that the victim saw.
    pub(super) completions: u64,
}

/// The bytes that drive the attack, followed by zeros.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns a number that is mostly small or near a bound, sometimes any.
    fn number(&mut self, bound: u64) -> u64 {
        match self.byte() % 6 {
            0 => self.byte().into(),
            1 => bound,
            2 => bound.wrapping_sub(u64::from(self.byte())),
            3 => bound.wrapping_add(u64::from(self.byte())),
            4 => self.word() % bound.max(1),
            _ => self.word(),
        }
    }
}

struct Attacker {
    socket: OwnedFd,
    producer: Producer,
    /// The victim's ring file, and the attacker's own.
    victims: Memory,
    own: Memory,
}

/// The victim's side of the connection.
struct Victim {
    nic: Shm,
    cq: CqId,
    vi: ViId,
    shared: Region,
    private: Region,
    /// Canary regions with another tag and no rights: they must never change.
    canaries: [Region; 2],
}

const REGION_BYTES: usize = 8192;
const CANARY: u8 = 0xa5;

impl Victim {
    fn new(reliability: Reliability) -> Result<Self, String> {
        let mut nic = Shm::open().map_err(text)?;
        let (tag, other) = (nic.create_tag(), nic.create_tag());
        let open = |tag| MemoryAttributes { tag, allows_write: true, allows_read: true };
        let memory = || Memory::allocate(REGION_BYTES).map_err(text);
        let shared = nic.allocate(REGION_BYTES, open(tag)).map_err(text)?;
        let private = nic.register(memory()?, open(tag)).map_err(text)?;
        let canaries = [
            nic.allocate(REGION_BYTES, open(other)).map_err(text)?,
            nic.register(memory()?, MemoryAttributes::private(tag)).map_err(text)?,
        ];
        for canary in &canaries {
            canary.memory.write(0, &[CANARY; REGION_BYTES]).map_err(text)?;
        }
        let cq = nic.create_cq().map_err(text)?;
        let vi = nic
            .create_vi(ViAttributes {
                reliability,
                tag,
                send_cq: None,
                receive_cq: Some(cq),
                allows_write: true,
                allows_read: true,
            })
            .map_err(text)?;
        for region in [&shared, &private] {
            nic.take_headed_writes(vi, region.handle);
        }
        nic.listen(b"victim").map_err(text)?;
        Ok(Self { nic, cq, vi, shared, private, canaries })
    }

    fn post(&mut self, script: &mut Script<'_>, key: RemoteKey) {
        let which = script.byte();
        let memory = if which & 1 == 0 { self.private.handle } else { self.shared.handle };
        let segment = [LocalSegment {
            memory,
            offset: script.number(64) % 4096,
            length: script.number(4096) % 4097,
        }];

        if which & 2 != 0 {
            let receive = ReceiveDescriptor { cookie: 1, segments: &segment };
            // A queue that is full stays full.
            let _ = self.nic.post_receive(self.vi, &receive);
            return;
        }

        let operation = match which >> 2 & 3 {
            0 => Operation::Send,
            1 => Operation::RdmaRead,
            _ => Operation::RdmaWrite,
        };

        let bytes = [7; 24];
        let inline = [IoSlice::new(&bytes)];
        let data = if which & 16 == 0 || operation == Operation::RdmaRead {
            Data::Segments(&segment)
        } else {
            Data::Inline(&inline)
        };

        let descriptor = SendDescriptor {
            operation,
            cookie: 2,
            immediate: (which & 32 != 0 && operation != Operation::RdmaRead).then_some(3),
            is_signaled: which & 64 != 0,
            remote: (operation != Operation::Send)
                .then_some(RemoteSegment { key, offset: script.byte().into() }),
            data,
        };

        let _ = self.nic.post_send(self.vi, &descriptor);
    }

    fn take(&mut self, outcome: &mut AttackOutcome) {
        while self.nic.poll_queue(self.vi, Queue::Send).is_some() {
            outcome.completions += 1;
        }
        loop {
            match self.nic.poll_headed_write(self.cq, Some(self.vi)) {
                HeadedPoll::Write(write) => {
                    let end = write.offset + u64::from(write.body.len()) + 16;
                    let is_known = [self.shared.key, self.private.key].contains(&write.key);
                    assert!(is_known && end <= wide(REGION_BYTES), "{write:?}");
                }
                HeadedPoll::Nothing => break,
                HeadedPoll::Other if self.nic.poll_cq(self.cq).is_none() => break,
                HeadedPoll::Other => {}
            }
            outcome.completions += 1;
        }
        while let Some(event) = self.nic.next_event() {
            if let NicEvent::Broken { reason, .. } = event {
                outcome.broken = Some(reason);
            }
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Makes a file as a peer should, or in one of the ways it should not.
fn bad_file(how: u8, length: u64) -> io::Result<OwnedFd> {
    let file =
        rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let length = if how & 1 == 0 { length } else { length / 2 };
    rustix::fs::ftruncate(&file, length.min(1 << 30))?;
    if how & 2 == 0 {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    }
    Ok(file)
}

impl Attacker {
    fn connect(victim: &mut Victim, reliability: Reliability) -> Result<Self, String> {
        let to = victim.nic.place;
        let socket = sys::connect(&to.socket_name()).map_err(text)?;
        let (file, own) = sys::make_file(size(RING_BYTES), false).map_err(text)?;
        let (page, _) = sys::make_file(size(PAGE_BYTES), false).map_err(text)?;
        let parameters = ConnectionParameters { reliability, has_barrier: false };
        let (discriminator, greeting) = (b"victim".to_vec(), Vec::new());
        let hello = Hello { token: to.token, parameters, from: None, discriminator, greeting };
        let files = [file.as_fd(), page.as_fd()];
        sys::send(socket.as_fd(), &ControlPacket::Hello(hello).encode(), &files).map_err(text)?;
        // Accepted in the first round, identified in the second, confirmed in the third.
        let mut polls = 0;
        let request = loop {
            victim.nic.quiet();
            if let Some(NicEvent::Requested { request, .. }) = victim.nic.next_event() {
                break request;
            }
            polls += 1;
            if polls > 100 {
                return Err("the victim does not hear an honest hello".into());
            }
        };

        victim.nic.accept(request, victim.vi, &[]).map_err(text)?;
        let mut bytes = [0; PACKET_MAX];
        let SocketRead::Packet(_, files) = sys::receive(socket.as_fd(), &mut bytes) else {
            return Err("no welcome".into());
        };
        let ring = files.first().ok_or("a welcome without files")?;
        let victims = sys::map_file(ring.as_fd(), size(RING_BYTES), true)?;
        sys::send(socket.as_fd(), &ControlPacket::Confirm.encode(), &[]).map_err(text)?;
        victim.nic.quiet();
        if !matches!(victim.nic.next_event(), Some(NicEvent::Connected { .. })) {
            return Err("the victim does not connect".into());
        }
        Ok(Self { socket, producer: Producer::new(victims.clone()), victims, own })
    }

    /// Pushes an entry that is mostly right, or not at all.
    fn push(&mut self, script: &mut Script<'_>, keys: &[RemoteKey]) {
        let mut draft = Draft::of(&std::array::from_fn(|_| 0x5a));
        let shape = script.byte();
        let key = keys
            .get(usize::from(script.byte()) % (keys.len() + 1))
            .map_or_else(|| RemoteKey(script.word()), |key| *key);
        let place = match shape >> 3 & 3 {
            0 => DataLocation::Inline { length: script.byte() % 48 },
            1 => DataLocation::Staged {
                at: u32::try_from(script.number(STAGING_BYTES)).unwrap_or(u32::MAX),
                length: u32::try_from(script.number(4096)).unwrap_or(u32::MAX),
            },
            _ => DataLocation::Placed,
        };

        let kinds = [
            EntryKind::Send,
            EntryKind::Write,
            EntryKind::ReadRequest,
            EntryKind::ReadData,
            EntryKind::ReadRefused,
        ];

        RingEntry {
            kind: kinds[usize::from(shape & 7) % kinds.len()],
            place,
            immediate: (shape & 32 != 0).then_some(-1),
            is_last: shape & 64 != 0,
            key,
            offset: script.number(8192) & 0xffff_ffff_ffff,
            total: match place {
                DataLocation::Staged { length, .. } if shape & 128 == 0 => length.into(),
                _ => script.number(8192),
            },
        }
        .encode(&draft);
        if shape >> 3 & 3 == 3 {
            // A write with a head.
            let mut line = draft.line();
            line[4] |= 1 << 5;
            draft = Draft::of(&line);
        }
        if script.byte() == 0 {
            draft = Draft::of(&std::array::from_fn(|_| script.byte()));
        }
        self.publish(&draft);
    }

    /// Takes the count of consumed entries on trust, so as to continue.
    fn publish(&mut self, draft: &Draft) {
        if matches!(self.producer.has_room(), Ok(true)) {
            self.producer.push(draft.words());
        }
    }

    fn scribble(&self, script: &mut Script<'_>) {
        let memory = if script.byte() & 1 == 0 { &self.victims } else { &self.own };
        let at = script.number(RING_BYTES) % (RING_BYTES - 8);
        for step in 0..u64::from(script.byte() & 15) {
            // Out-of-bounds writes fail.
            let _ = memory.write(at + step, &[script.byte()]);
        }
    }

    fn send(&self, script: &mut Script<'_>) {
        let what = script.byte();
        let length = script.number(8192);
        let packet = match what & 7 {
            0 => ControlPacket::Wakeup,
            1 => ControlPacket::Revoke { key: RemoteKey(script.word() & 3) },
            2 => ControlPacket::Confirm,
            3 => ControlPacket::Refusal { reason: DisconnectReason::Rejected },
            _ => {
                let key = RemoteKey(script.word() & 3);
                ControlPacket::Grant { key, length, allows_write: what & 8 != 0, allows_read: true }
            }
        };
        let mut bytes = packet.encode();
        if what & 64 != 0 {
            bytes = (0..script.byte()).map(|_| script.byte()).collect();
        }
        let file = bad_file(script.byte(), length);
        let files: Vec<_> = match (&file, what >> 4 & 3) {
            (Ok(file), 0 | 1) if packet.file_count() == 1 => vec![file.as_fd()],
            (Ok(file), 2) => vec![file.as_fd(); 2],
            _ => Vec::new(),
        };
        let _ = sys::send(self.socket.as_fd(), &bytes, &files);
    }
}

/// Runs an attack on a victim that has a second, honest peer in the same NIC.
///
/// # Errors
/// A description of any harm to the victim beyond the loss of the connection.
pub(super) fn attack(bytes: &[u8]) -> Result<AttackOutcome, String> {
    let mut script = Script(bytes);
    let levels =
        [Reliability::ReliableReception, Reliability::ReliableDelivery, Reliability::Unreliable];
    let level = levels[usize::from(script.byte()) % levels.len()];
    let mut victim = Victim::new(level)?;
    let mut attacker = Attacker::connect(&mut victim, level)?;
    let keys =
        [victim.shared.key, victim.private.key, victim.canaries[0].key, victim.canaries[1].key];
    let mut outcome = AttackOutcome::default();
    let mut now = Instant::from_nanos(1);
    while !script.0.is_empty() {
        match script.byte() % 12 {
            0..=3 => attacker.push(&mut script, &keys),
            4 => attacker.scribble(&mut script),
            5 => attacker.send(&mut script),
            6 | 7 => {
                let key = RemoteKey(u64::from(script.byte() & 3));
                victim.post(&mut script, key);
            }
            8 => {
                let (word, value) = (script.byte(), script.number(4));
                let at = if word & 1 == 0 { CONSUMED_AT } else { REFUSAL_AT };
                let _ = attacker.own.store(at, value);
            }
            9 => {
                if victim.nic.arm().is_err() {
                    return Err("the victim cannot sleep".into());
                }
            }
            10 => victim.take(&mut outcome),
            _ => {
                now += std::time::Duration::from_millis(1);
                victim.nic.progress(now);
            }
        }
    }

    for _ in 0..40 {
        now += std::time::Duration::from_millis(1);
        victim.nic.progress(now);
        victim.take(&mut outcome);
    }

    judge(victim, attacker, &mut outcome, now)?;
    Ok(outcome)
}

/// The kind of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(super) enum Flood {
    /// Wake-ups for a victim that does not sleep.
    Wakeups,
    /// Small regions of memory.
    Grants,
    /// A region that is larger than any memory.
    Addresses,
    /// Files that can shrink.
    Unsealed,
    /// Files that are shorter than claimed.
    Short,
}

/// Floods a victim.
///
/// # Errors
/// A description of any harm to the victim beyond the loss of the connection.
pub(super) fn flood(what: Flood) -> Result<AttackOutcome, String> {
    let level = Reliability::ReliableDelivery;
    let mut victim = Victim::new(level)?;
    let attacker = Attacker::connect(&mut victim, level)?;
    let mut outcome = AttackOutcome::default();
    let mut now = Instant::from_nanos(1);
    let good = bad_file(0, 4096).map_err(text)?;
    let how = if what == Flood::Unsealed { 2 } else { 1 };
    let bad = bad_file(how, 4096).map_err(text)?;
    for number in 0..2048 {
        let key = RemoteKey(number);
        let length = if what == Flood::Addresses { 1 << 46 } else { 4096 };
        let grant = ControlPacket::Grant { key, length, allows_write: false, allows_read: true };
        let _ = match what {
            Flood::Wakeups => {
                sys::send(attacker.socket.as_fd(), &ControlPacket::Wakeup.encode(), &[])
            }
            Flood::Grants | Flood::Addresses => {
                sys::send(attacker.socket.as_fd(), &grant.encode(), &[good.as_fd()])
            }
            Flood::Unsealed | Flood::Short => {
                sys::send(attacker.socket.as_fd(), &grant.encode(), &[bad.as_fd()])
            }
        };
        now += std::time::Duration::from_millis(1);
        victim.nic.progress(now);
        victim.take(&mut outcome);
    }

    judge(victim, attacker, &mut outcome, now)?;
    Ok(outcome)
}

fn judge(
    mut victim: Victim,
    attacker: Attacker,
    outcome: &mut AttackOutcome,
    mut now: Instant,
) -> Result<(), String> {
    for canary in &victim.canaries {
        let bytes = canary.memory.read_to_vec(0, REGION_BYTES).map_err(text)?;
        if bytes.iter().any(|byte| *byte != CANARY) {
            return Err("memory was written that the peer has no right to".into());
        }
    }

    let is_connected = victim.nic.state(victim.vi).map_err(text)? == ViState::Connected;
    if is_connected == outcome.broken.is_some() {
        return Err(format!("connected: {is_connected}, and broken: {:?}", outcome.broken));
    }
    drop(attacker);
    for _ in 0..40 {
        now += std::time::Duration::from_millis(1);
        victim.nic.progress(now);
        victim.take(outcome);
    }

    if outcome.broken.is_none() {
        return Err("the death of the peer went unnoticed".into());
    }
    // Every descriptor has ended: the queues have room for as many again.
    let limit = victim.nic.attributes().descriptors_max;
    victim.nic.disconnect(victim.vi).map_err(text)?;
    victim.take(outcome);
    for _ in 0..limit {
        let empty = ReceiveDescriptor { cookie: 0, segments: &[] };
        victim.nic.post_receive(victim.vi, &empty).map_err(text)?;
    }

    // The NIC and the VI can be used as before.
    let token = victim.nic.place;
    let again = reconnect(&mut victim, token, now);
    again.map_err(|what| format!("after the attack: {what}"))
}

/// An honest peer connects to what is left, and one message arrives.
fn reconnect(victim: &mut Victim, to: Address, mut now: Instant) -> Result<(), String> {
    let mut peer = Shm::open().map_err(text)?;
    let tag = peer.create_tag();
    let reliability = victim.nic.vis.get(victim.vi.0).map(|vi| vi.core.attributes.reliability);
    let vi = peer
        .create_vi(ViAttributes {
            reliability: reliability.unwrap_or_default(),
            tag,
            send_cq: None,
            receive_cq: None,
            allows_write: false,
            allows_read: false,
        })
        .map_err(text)?;
    let deadline = now + std::time::Duration::from_secs(1);
    peer.connect(Connect::new(vi, &to.to_address(), b"victim", deadline)).map_err(text)?;
    let sent = SendDescriptor {
        operation: Operation::Send,
        cookie: 1,
        immediate: Some(9),
        is_signaled: false,
        remote: None,
        data: Data::Inline(&[]),
    };

    let mut is_sent = false;
    while now < deadline {
        now += std::time::Duration::from_millis(1);
        peer.progress(now);
        victim.nic.progress(now);
        if let Some(NicEvent::Requested { request, .. }) = victim.nic.next_event() {
            victim.nic.accept(request, victim.vi, &[]).map_err(text)?;
        }
        if !is_sent && peer.state(vi).map_err(text)? == ViState::Connected {
            peer.post_send(vi, &sent).map_err(text)?;
            is_sent = true;
        }
        if let Some(found) = victim.nic.poll_cq(victim.cq)
            && found.immediate == Some(9)
        {
            return Ok(());
        }
    }

    Err("an honest peer does not get through".into())
}
