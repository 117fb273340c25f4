//! A rank that knows the message protocol and breaks it: it may lose its own connection, and nothing
//! else. `VIGIE_HOSTILE_SEEDS` is the number of attacks.

use std::{env, io::IoSlice, task::Poll};

use fastrand::Rng;
use vigie_detect::Instant;
use vigie_via::{
    protocol::{
        Control, EngineConfig, EngineEvent, Envelope, FrameKind, MessageEngine, Opening, Pattern,
        Payload, RequestId, SendMode, SendState,
    },
    shm::Shm,
    vi::{
        Connect, Data, DisconnectReason, MemoryAttributes, NicEvent, Operation, Provider, Queue,
        ReceiveDescriptor, Region, Reliability, RemoteKey, RemoteSegment, SendDescriptor,
        ViAttributes, ViId,
    },
};

const POLLS_MAX: u32 = 100_000;
const AREA_BYTES: u32 = 256 << 10;
const CONTROL_IMMEDIATE: i32 = 1 << 30;

/// What was sent to the victim, and whatever else is needed to send more that looks right.
struct Attacker {
    nic: Shm,
    vi: ViId,
    area: RemoteKey,
    control: RemoteKey,
    written: u64,
    controls: u64,
    streams: u32,
    /// The message in several frames that is in progress: stream, bytes sent, and total.
    open: Option<(u32, u64, u64)>,
    _regions: [Region; 2],
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Attacker {
    /// Connects as rank 1 of 3, with a correct greeting.
    fn connect(victim: &mut MessageEngine<Shm>) -> Self {
        let mut nic = Shm::open().expect("a NIC");
        let tag = nic.create_tag();
        let open = MemoryAttributes { tag, allows_write: true, allows_read: true };
        let regions =
            [65_536, 64 + 64 * 32].map(|bytes| nic.allocate(bytes, open).expect("memory"));
        let vi = nic
            .create_vi(ViAttributes {
                reliability: Reliability::ReliableDelivery,
                tag,
                send_cq: None,
                receive_cq: None,
                allows_write: true,
                allows_read: true,
            })
            .expect("a VI");
        let mut greeting = Vec::new();
        for word in [u32::from_be_bytes(*b"vgm5"), 1, 3, 65_536, 512, 64, 128 << 10] {
            greeting.extend(word.to_le_bytes());
        }
        greeting.extend(regions.iter().flat_map(|region| region.key.0.to_le_bytes()));
        greeting.extend([0, 16 << 10, 64].iter().flat_map(|word: &u32| word.to_le_bytes()));
        // No key is shared with the victim, so no proof is asked for.
        greeting.extend([0; 16]);
        let address = victim.nic().address();
        nic.connect(Connect::new(vi, &address, b"messages", Instant::MAX).greeting(&greeting))
            .expect("idle");
        let mut this = Self {
            nic,
            vi,
            area: RemoteKey(0),
            control: RemoteKey(0),
            written: 0,
            controls: 0,
            streams: 0,
            open: None,
            _regions: regions,
        };
        for _ in 0..POLLS_MAX {
            let now = Instant::now();
            victim.progress(now);
            this.nic.progress(now);
            if let Some(EngineEvent::Requested { request, rank: Some(1), .. }) = victim.next_event()
            {
                victim.accept(request, 1).expect("accepts");
            }
            match this.nic.next_event() {
                Some(NicEvent::Connected { greeting, .. }) => {
                    this.area = RemoteKey(number(&greeting, 28));
                    this.control = RemoteKey(number(&greeting, 36));
                    this.post_receives();
                    return this;
                }
                None => {}
                event => panic!("{event:?}"),
            }
        }
        panic!("not connected");
    }

    fn post_receives(&mut self) {
        let receive = ReceiveDescriptor { cookie: 0, segments: &[] };
        while self.nic.post_receive(self.vi, &receive).is_ok() {}
    }

    fn write(&mut self, key: RemoteKey, offset: u64, bytes: &[u8], immediate: Option<i32>) {
        let slices = [IoSlice::new(bytes)];
        let descriptor = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: 0,
            immediate,
            is_signaled: false,
            remote: Some(RemoteSegment { key, offset }),
            data: Data::Inline(&slices),
        };
        // The victim may have disconnected.
        let _ = self.nic.post_send(self.vi, &descriptor);
    }

    /// Takes the next step by the rules or, once in `wrong_every` times, perhaps not.
    fn step(&mut self, rng: &mut Rng, wrong_every: u32) {
        if rng.u32(..wrong_every) > 0 {
            return self.step_rightly(rng);
        }
        match rng.u8(..20) {
            0..=10 => self.frame(rng),
            11..=15 => {
                let offset = 64 + 32 * (self.controls % 64);
                self.controls += 1;
                let bytes = control(rng);
                self.write(self.control, offset, &bytes, Some(CONTROL_IMMEDIATE));
            }
            16 => {
                let word = if rng.bool() { rng.u64(..64) } else { rng.u64(..) };
                let immediate = rng.bool().then_some(0);
                self.write(self.control, 0, &word.to_le_bytes(), immediate);
            }
            17 => self.write(self.control, 8, &[0; 8], Some(CONTROL_IMMEDIATE + 1)),
            18 => {
                // Even over what the victim may be reading.
                let junk: [u8; 64] = std::array::from_fn(|_| rng.u8(..));
                self.write(self.area, 64 * rng.u64(..4096), &junk, None);
            }
            _ => {
                let any = [i32::MIN, i32::MAX, -1, 1, rng.i32(..)];
                let immediate = any[rng.usize(..any.len())];
                self.write(self.area, 0, &[], rng.bool().then_some(immediate));
            }
        }
        self.breathe();
    }

    fn breathe(&mut self) {
        while self.nic.poll_queue(self.vi, Queue::Receive).is_some() {}
        self.post_receives();
        self.nic.progress(Instant::now());
    }

    /// A frame of a message, or a control entry that a peer may send at any time.
    fn step_rightly(&mut self, rng: &mut Rng) {
        if rng.u8(..4) == 0 {
            let request = request(rng);
            let control = match rng.u8(..4) {
                0 => Control::Grant { request, limit: rng.u64(..) },
                1 => Control::Cancel { request },
                2 => Control::Pause,
                _ => Control::Resume,
            };
            let offset = 64 + 32 * (self.controls % 64);
            self.controls += 1;
            self.write(self.control, offset, &control.encode(), Some(CONTROL_IMMEDIATE));
            return self.breathe();
        }
        let payload: Vec<u8> = (0..rng.usize(1..150)).map(|_| rng.u8(..)).collect();
        let length = u32::try_from(payload.len()).expect("short");
        let (context, tag) = (rng.u16(..2), rng.u32(..3));
        let mut head =
            Envelope { kind: FrameKind::Eager, flags: rng.u8(..4), context, tag, id: 0, length };
        let bytes = if let Some((stream, sent, total)) = self.open {
            let left = usize::try_from(total - sent).expect("small");
            let piece = &payload[..payload.len().min(left)];
            let is_last = piece.len() == left;
            let count = u64::try_from(piece.len()).expect("short");
            self.open = (!is_last).then_some((stream, sent + count, total));
            head.length = u32::try_from(piece.len()).expect("short");
            (head.kind, head.flags, head.id) = (FrameKind::Data, 8 * u8::from(is_last), stream);
            if rng.u8(..8) == 0 {
                (head.kind, head.length, self.open) = (FrameKind::Abort, 0, None);
                head.encode().to_vec()
            } else {
                [&head.encode(), piece].concat()
            }
        } else if rng.bool() {
            [head.encode().as_slice(), &payload].concat()
        } else {
            let total = u64::from(length) + rng.u64(1..2000);
            self.streams += 1;
            self.open = Some((self.streams, u64::from(length), total));
            (head.kind, head.id) = (FrameKind::First, self.streams);
            let opening = Opening { total, request: request(rng), key: 0, offset: 0 };
            [head.encode().as_slice(), &opening.encode(), &payload].concat()
        };
        self.announce(&bytes);
        self.breathe();
    }

    /// Writes a frame to its place, and announces it.
    fn announce(&mut self, bytes: &[u8]) {
        let units = 64 * u64::try_from(bytes.len().div_ceil(64)).expect("short");
        let mut immediate = i32::try_from(bytes.len()).expect("short");
        if self.written + units > u64::from(AREA_BYTES) {
            immediate = -immediate;
            self.written = 0;
        }
        // Where the bytes behind the envelope begin at a line, if that takes no more room; no frame here is longer than 1024 bytes.
        let lead = if bytes.len() > 64 && matches!(bytes.len() % 64, 1..=16) { 48 } else { 0 };
        self.write(self.area, self.written + lead, bytes, Some(immediate));
        self.written += units;
    }

    fn frame(&mut self, rng: &mut Rng) {
        let ids = [0, 1, 2, 0xffff, 0x1_0000, u32::MAX, rng.u32(..)];
        let kinds = [
            FrameKind::Eager,
            FrameKind::First,
            FrameKind::Data,
            FrameKind::Abort,
            FrameKind::Loaned,
            FrameKind::Reserved,
        ];
        let kind = kinds[if rng.u8(..4) > 0 { rng.usize(..3) } else { rng.usize(..6) }];
        let payload: Vec<u8> = (0..rng.usize(..150)).map(|_| rng.u8(..)).collect();
        let length = u32::try_from(payload.len()).expect("short");
        let known = if rng.bool() { 3 } else { ids.len() };
        let envelope = Envelope {
            kind,
            flags: rng.u8(..16),
            context: rng.u16(..2),
            tag: rng.u32(..3),
            id: ids[rng.usize(..known)],
            length: if rng.u8(..10) > 0 { length } else { rng.u32(..) },
        };
        let mut bytes = envelope.encode().to_vec();
        if kind == FrameKind::First {
            let totals = [0, u64::from(length), 100_000, u64::MAX, rng.u64(..)];
            let opening = Opening {
                total: totals[rng.usize(..totals.len())],
                request: request(rng),
                key: rng.u64(..),
                offset: if rng.bool() { u64::MAX } else { rng.u64(..) },
            };
            bytes.extend(opening.encode());
        }
        bytes.extend(payload);
        if rng.u8(..20) == 0 {
            bytes.truncate(rng.usize(..bytes.len()));
        }
        self.announce(&bytes);
    }
}

/// A request of the victim that may well exist.
fn request(rng: &mut Rng) -> u64 {
    match rng.u8(..4) {
        0 => rng.u64(..),
        1 => rng.u64(..4),
        _ => rng.u64(..4) | rng.u64(1..5) << 32,
    }
}

/// How much of a message, or how many messages: few, as many as there may be, or any number.
fn limit(rng: &mut Rng) -> u64 {
    if rng.bool() { rng.u64(..64) } else { rng.u64(..) }
}

fn control(rng: &mut Rng) -> [u8; 32] {
    let request = request(rng);
    let control = match rng.u8(..10) {
        0 => Control::Matched { request: rng.u64(..4) },
        1 => Control::Grant { request, limit: rng.u64(..) },
        2 => Control::Finished { request },
        3 => Control::Cancel { request },
        4 => Control::Pause,
        5 => Control::Resume,
        6 => Control::Cancelled { request, is_cancelled: rng.bool() },
        7 => Control::Invite { request, limit: limit(rng) },
        8 => Control::Admit { through: limit(rng) },
        _ => return std::array::from_fn(|_| rng.u8(..)),
    };
    control.encode()
}

/// The victim's work meanwhile: receives of any kind, and sends to the attacker.
fn work(
    victim: &mut MessageEngine<Shm>,
    sends: &mut Vec<RequestId>,
    receives: &mut Vec<RequestId>,
    rng: &mut Rng,
) {
    match rng.u8(..10) {
        0..=2 => {
            let (source, tag) = (rng.bool().then_some(1), rng.bool().then(|| rng.u32(..3)));
            receives.push(victim.post_receive(Pattern { context: 0, source, tag }));
        }
        3..=6 => {
            let mode = if rng.bool() { SendMode::Synchronous } else { SendMode::Standard };
            let body = vec![1; *rng.choice(&[8, 1000, 50_000]).expect("some")];
            let slices = [IoSlice::new(&body)];
            let payload =
                if rng.bool() { Payload::Owned(body) } else { Payload::Borrowed(&slices) };
            if let Ok(SendState::Pending(id)) = victim.send(1, 0, 0, mode, payload) {
                sends.push(id);
            }
        }
        7 => sends.iter().for_each(|id| {
            let _ = victim.cancel_send(*id);
        }),
        8 => sends.drain(..).for_each(|id| victim.drop_send(id)),
        _ => receives.drain(..).for_each(|id| victim.drop_receive(id)),
    }
    receives.retain(|id| victim.poll_receive(*id, &mut Vec::new()).is_pending());
    sends.retain(|id| victim.poll_send(*id, None).is_pending());
    let any = Pattern { context: 1, source: None, tag: None };
    if rng.bool() {
        let _ = victim.probe(any);
    } else {
        let _ = victim.try_recv(any, &mut Vec::new());
    }
    victim.progress(Instant::now());
}

fn seed_count(default: u64) -> u64 {
    let wanted = env::var("VIGIE_HOSTILE_SEEDS").ok();
    wanted.map_or(default, |count| count.parse().expect("a number"))
}

fn engine(rank: u32) -> MessageEngine<Shm> {
    let mut nic = Shm::open().expect("a NIC");
    nic.listen(b"messages").expect("no other listener");
    MessageEngine::new(nic, rank, 3, EngineConfig::default()).expect("an engine")
}

fn befriend(victim: &mut MessageEngine<Shm>, friend: &mut MessageEngine<Shm>) {
    let address = friend.nic().address();
    victim.connect(2, &address, b"messages", Instant::MAX).expect("asks");
    for _ in 0..POLLS_MAX {
        victim.progress(Instant::now());
        friend.progress(Instant::now());
        if let Some(EngineEvent::Requested { request, .. }) = friend.next_event() {
            friend.accept(request, 0).expect("accepts");
        }
        if let Some(EngineEvent::Connected { rank: 2 }) = victim.next_event() {
            return;
        }
    }
    panic!("not connected");
}

fn receive(one: &mut MessageEngine<Shm>, other: &mut MessageEngine<Shm>, from: u32) -> Vec<u8> {
    let id = one.post_receive(Pattern { context: 5, source: Some(from), tag: Some(5) });
    let mut found = Vec::new();
    for _ in 0..POLLS_MAX {
        one.progress(Instant::now());
        other.progress(Instant::now());
        if let Poll::Ready(result) = one.poll_receive(id, &mut found) {
            result.expect("a message");
            return found;
        }
    }
    panic!("nothing came from rank {from}");
}

/// Goal: whatever a rank sends, no other suffers: the victim never panics nor hangs, its messages with a
/// third rank continue, and if it disconnects the attacker, it reports which rank that was. Method:
/// frames, control entries, credits and immediates, mostly plausible, from one seed each, while the
/// victim sends and receives.
#[test]
fn a_hostile_rank_hurts_itself_alone() {
    let seed_count = seed_count(400);
    let (mut cut_off, mut endured) = (0, 0);
    for seed in 0..seed_count {
        let mut rng = Rng::with_seed(seed);
        let (mut victim, mut friend) = (engine(0), engine(2));
        befriend(&mut victim, &mut friend);
        let mut attacker = Attacker::connect(&mut victim);
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let wrong_every = rng.choice([1, 10, 100, 1000]).expect("some");
        for _ in 0..rng.u32(1..300) {
            attacker.step(&mut rng, wrong_every);
            work(&mut victim, &mut sends, &mut receives, &mut rng);
        }
        match victim.failure(1) {
            Some(DisconnectReason::PeerFault(_)) => cut_off += 1,
            Some(reason) => panic!("seed {seed}: {reason}"),
            None => endured += 1,
        }
        assert_eq!(victim.failure(2), None, "seed {seed}");
        for (body, to) in [(vec![3; 60_000], 2), (vec![4; 9], 0)] {
            let (one, other) =
                if to == 2 { (&mut victim, &mut friend) } else { (&mut friend, &mut victim) };
            let payload = Payload::Owned(body.clone());
            if let Ok(SendState::Pending(id)) = one.send(to, 5, 5, SendMode::Standard, payload) {
                one.drop_send(id);
            }
            assert!(receive(other, one, 2 - to) == body, "seed {seed}");
        }
        drop(attacker);
        for _ in 0..POLLS_MAX {
            victim.progress(Instant::now());
            if victim.failure(1).is_some() {
                break;
            }
        }
        assert!(victim.failure(1).is_some(), "seed {seed}: the end is not noticed");
        for id in sends {
            assert!(victim.poll_send(id, None).is_ready(), "seed {seed}: a send hangs");
        }
    }
    println!("{cut_off} attackers were cut off, {endured} were not");
    assert!(cut_off > 50 && endured > 50, "{cut_off} {endured}");
}

/// Goal: a rank that writes wherever it can harms its own connections alone: what a pair shares, no third rank can map or
/// reach. Method: a rank that is connected with both others scribbles over all that is mapped of them, and writes to the keys
/// of the others' own areas, which it knows, while those exchange messages.
#[test]
fn a_third_rank_scribbles_in_vain() {
    let mut scribbled = 0;
    for seed in 0..seed_count(40) {
        let mut rng = Rng::with_seed(seed);
        let (mut one, mut other) = (engine(0), engine(2));
        let greetings = [one.greeting(2), other.greeting(0)];
        let keys: Vec<RemoteKey> = greetings
            .into_iter()
            .map(|prepared| prepared.expect("a greeting").1)
            .flat_map(|greeting| [28, 36].map(|at| RemoteKey(number(&greeting, at))))
            .collect();
        befriend(&mut one, &mut other);
        let mut attackers = [Attacker::connect(&mut one), Attacker::connect(&mut other)];
        for attacker in &attackers {
            let is_mapped = |key: &RemoteKey| attacker.nic.window(attacker.vi, *key).is_some();
            assert!(!keys.iter().any(is_mapped), "seed {seed}: it maps what others share");
        }
        for round in 0..20 {
            for attacker in &mut attackers {
                let junk: [u8; 4096] = std::array::from_fn(|_| rng.u8(..));
                for key in [attacker.area, attacker.control] {
                    let Some(window) = attacker.nic.window(attacker.vi, key) else { continue };
                    let length = rng.usize(1..=junk.len().min(window.len()));
                    let at = rng.usize(0..=window.len() - length);
                    let at = u64::try_from(at).expect("small");
                    window.write(at, &junk[..length]).expect("inside");
                    scribbled += 1;
                }
                if rng.u8(..8) == 0 {
                    let key = *rng.choice(&keys).expect("some");
                    attacker.write(key, 64 * rng.u64(..64), &junk[..64], rng.bool().then_some(64));
                }
                attacker.breathe();
            }
            let body: Vec<u8> = (0..rng.usize(0..60_000)).map(|_| rng.u8(..)).collect();
            for (from, to) in [(&mut one, 2), (&mut other, 0)] {
                let payload = Payload::Owned(body.clone());
                if let Ok(SendState::Pending(id)) = from.send(to, 5, 5, SendMode::Standard, payload)
                {
                    from.drop_send(id);
                }
            }
            assert!(receive(&mut one, &mut other, 2) == body, "seed {seed}, round {round}");
            assert!(receive(&mut other, &mut one, 0) == body, "seed {seed}, round {round}");
        }
        assert_eq!((one.failure(2), other.failure(0)), (None, None), "seed {seed}");
    }
    assert!(scribbled > 100, "{scribbled}");
}
