//! Peers that violate the protocol, and peers that fall silent: only their own connection ends.

use std::{io::IoSlice, time::Duration};

use vigie_detect::Instant;
use vigie_via::{
    protocol::{
        Control, EngineConfig, EngineEvent, Envelope, FrameKind, MessageEngine, Opening, Payload,
        RequestError, SendMode,
    },
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{
        Connect, Data, DisconnectReason, Operation, Provider, ReceiveDescriptor, Reliability,
        RemoteKey, RemoteSegment, SendDescriptor, ViAttributes, ViId,
    },
};

use crate::cluster::{Cluster, bytes_of, from};

/// A peer that has the keys, but ignores the rules of the protocol.
struct Forger {
    nic: SimNic,
    vi: ViId,
    area: RemoteKey,
    control: RemoteKey,
    random: fastrand::Rng,
}

impl Forger {
    /// Posts a frame or random bytes at a random place, with a random or a plausible immediate.
    fn attack(&mut self, pointer: &mut u64) {
        let random = &mut self.random;
        let kinds = [
            FrameKind::Eager,
            FrameKind::First,
            FrameKind::Data,
            FrameKind::Abort,
            FrameKind::Loaned,
            FrameKind::Reserved,
        ];
        let length = random.u32(0..100);
        let envelope = Envelope {
            kind: kinds[random.usize(0..6)],
            flags: random.u8(0..32),
            context: random.u16(0..2),
            tag: random.u32(0..3),
            id: random.u32(0..4),
            length: if random.u8(0..8) == 0 { random.u32(..) } else { length },
        };
        let mut bytes = envelope.encode().to_vec();
        let mut word = |likely: u64| if random.bool() { likely } else { random.u64(..) };
        let opening =
            Opening { total: word(200), request: word(1 << 32), key: word(1), offset: word(0) };
        if matches!(envelope.kind, FrameKind::First | FrameKind::Loaned) {
            bytes.extend_from_slice(&opening.encode());
        }
        bytes.extend(std::iter::repeat_n(7, length as usize));
        let frame = i32::try_from(bytes.len()).expect("short");
        let control = [
            Control::Matched { request: self.random.u64(0..4) },
            Control::Grant { request: 1 << 32, limit: self.random.u64(..) },
            Control::Finished { request: 1 << 32 },
            Control::Cancel { request: self.random.u64(0..4) },
            Control::Cancelled { request: 1 << 32, is_cancelled: self.random.bool() },
            Control::Unreserve { offset: self.random.u64(0..4096) },
            Control::Pause,
            Control::Resume,
            Control::Invite { request: 1 << 32, limit: self.random.u64(..) },
            Control::Admit { through: self.random.u64(0..8) },
            Control::Admit { through: self.random.u64(..) },
        ][self.random.usize(0..11)];
        let (key, offset, immediate) = match self.random.u8(0..12) {
            0 => (self.control, self.random.u64(0..32) * 8, Some(1 << 30)),
            1 => (self.control, self.random.u64(0..2) * 8, Some(0)),
            2 => (self.control, 8, Some((1 << 30) + 1)),
            3 => (self.area, self.random.u64(0..4000), Some(self.random.i32(..))),
            4 => (self.control, 64, Some(1 << 30)),
            _ => (self.area, *pointer, Some(frame)),
        };
        if key == self.control {
            bytes = control.encode().to_vec();
            bytes.truncate(if offset < 64 { 8 } else { 32 });
        } else {
            *pointer += u64::try_from(bytes.len()).expect("short").next_multiple_of(64);
        }
        let descriptor = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: 0,
            immediate,
            is_signaled: false,
            remote: Some(RemoteSegment { key, offset }),
            data: Data::Inline(&[IoSlice::new(&bytes)]),
        };
        // Fails, as it should, once the connection is gone.
        drop(self.nic.post_send(self.vi, &descriptor));
    }
}

/// Connects a forger as rank 1 of 2. Returns it with the engine it attacks.
fn forger(seed: u64) -> (SimNetwork, MessageEngine<SimNic>, Forger) {
    let network = SimNetwork::new(seed, FaultPlan::reliable());
    let config = EngineConfig::default().area_bytes(16 << 10).frame_bytes_max(512);
    let mut nic = network.nic();
    nic.listen(b"messages").expect("listens");
    let mut engine = MessageEngine::new(nic, 0, 2, config).expect("an engine");
    let mut honest = MessageEngine::new(network.nic(), 1, 2, config).expect("an engine");
    let (_, greeting) = honest.greeting(0).expect("a greeting");
    let mut nic = network.nic();
    let (tag, cq) = (nic.create_tag(), nic.create_cq().expect("a queue"));
    let vi = nic
        .create_vi(ViAttributes {
            reliability: Reliability::ReliableDelivery,
            tag,
            send_cq: Some(cq),
            receive_cq: Some(cq),
            allows_write: true,
            allows_read: true,
        })
        .expect("a VI");
    for _ in 0..500 {
        nic.post_receive(vi, &ReceiveDescriptor { cookie: 0, segments: &[] }).expect("posted");
    }
    let address = engine.nic().address();
    nic.connect(Connect::new(vi, &address, b"messages", Instant::MAX).greeting(&greeting))
        .expect("asks");
    let mut answer = None;
    for _ in 0..100 {
        network.step();
        engine.progress(network.now());
        while let Some(event) = engine.next_event() {
            if let EngineEvent::Requested { request, rank: Some(1), .. } = event {
                engine.accept(request, 1).expect("accepts");
            }
        }
        while let Some(event) = nic.next_event() {
            if let vigie_via::vi::NicEvent::Connected { greeting, .. } = event {
                answer = Some(greeting);
            }
        }
    }
    let answer = answer.expect("connected");
    let key = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&answer[at..at + 8]);
        RemoteKey(u64::from_le_bytes(word))
    };
    let random = fastrand::Rng::with_seed(seed);
    (network, engine, Forger { nic, vi, area: key(28), control: key(36), random })
}

/// Goal: whatever a peer writes and announces, nothing panics, nothing outside is touched, and if it is cut
/// off then with an error that says so; the rank goes on with others (here: itself). Method: random frames,
/// control entries, credits and immediates, while requests of all kinds wait.
#[test]
fn a_forger_hurts_only_its_own_connection() {
    let mut faults = 0;
    let mut survived = 0;
    for seed in 0..400 {
        let (network, mut engine, mut forger) = forger(seed);
        let body = bytes_of(seed, 5000);
        let mut pointer = 0;
        let mut receives: Vec<_> = (0..3).map(|tag| engine.post_receive(from(1, tag))).collect();
        let mode = if seed.is_multiple_of(2) { SendMode::Synchronous } else { SendMode::Standard };
        let sent = engine.send(1, 0, 0, mode, Payload::Borrowed(&[IoSlice::new(&body)]));
        assert!(sent.is_ok(), "{sent:?}");
        for _ in 0..30 {
            forger.attack(&mut pointer);
            for _ in 0..10 {
                network.step();
                engine.progress(network.now());
            }
            receives.retain(|id| engine.poll_receive(*id, &mut Vec::new()).is_pending());
            let _ = engine.arm().expect("arms");
        }
        match engine.failure(1) {
            Some(DisconnectReason::PeerFault(_)) => faults += 1,
            Some(_) => {}
            None => survived += 1,
        }
        if let Some(reason) = engine.failure(1) {
            for id in receives {
                let polled = engine.poll_receive(id, &mut Vec::new());
                let error = RequestError::PeerFailed { rank: 1, reason };
                assert_eq!(polled, std::task::Poll::Ready(Err(error)));
            }
        }
        let own = engine.post_receive(from(0, 9));
        let sent = engine.send(0, 0, 9, SendMode::Standard, Payload::Owned(vec![1, 2]));
        assert!(sent.is_ok(), "{sent:?}");
        let mut found = Vec::new();
        assert!(engine.poll_receive(own, &mut found).is_ready(), "its own messages go on");
        assert_eq!(found, [1, 2]);
    }
    println!("{faults} forgers were cut off, {survived} were lucky");
    assert!(faults > 200, "{faults}");
}

/// Goal: greetings of other versions, ranks and sizes are refused, and none panics. Method: damage each byte.
#[test]
fn damaged_greetings_are_refused_or_harmless() {
    let network = SimNetwork::new(1, FaultPlan::reliable());
    let mut other =
        MessageEngine::new(network.nic(), 1, 2, EngineConfig::default()).expect("an engine");
    let (_, good) = other.greeting(0).expect("a greeting");
    for index in 0..=good.len() {
        for value in [0, 1, 127, 255] {
            let mut engine =
                MessageEngine::new(network.nic(), 0, 2, EngineConfig::default()).expect("one");
            engine.greeting(1).expect("prepares");
            let mut bytes = good.clone();
            match bytes.get_mut(index) {
                Some(byte) => *byte = value,
                None => bytes.push(value),
            }
            let accepted = engine.accept_greeting(1, &bytes);
            let is_head = index < 12 || index == good.len();
            assert!(!(is_head && bytes != good && accepted.is_ok()), "byte {index} is {value}");
        }
    }
}

/// Goal: a peer that falls silent over an unreliable VI fails after the configured time, and what waits for
/// it says so. Method: freeze it, and send.
#[test]
fn silence_over_an_unreliable_vi_has_an_end() {
    let config = EngineConfig::default()
        .reliability(Reliability::Unreliable)
        .give_up_after(Duration::from_millis(500));
    let mut cluster = Cluster::new(1, FaultPlan::lossy(0.1), 2, config);
    let silent = cluster.engine(1).nic().id();
    cluster.network.freeze(silent);
    let state = cluster.send(0, 1, 1, SendMode::Synchronous, &[1]);
    let begin = cluster.network.now();
    let error = cluster.finish(0, state, &[1]).expect_err("no answer");
    assert_eq!(
        error,
        RequestError::PeerFailed { rank: 1, reason: DisconnectReason::TransportFailed }
    );
    let waited = cluster.network.now().saturating_duration_since(begin);
    assert!(waited >= Duration::from_millis(500) && waited < Duration::from_secs(2), "{waited:?}");
}
