//! Messages in virtual time, in one thread: every node ticks in turn, and the network makes its steps.

use std::sync::Arc;

use vigie_via::sim::{FaultPlan, NicId, SimNetwork, SimNic};
use vigie_via::vi::{Address, DisconnectReason};

use super::algorithm::{Algorithm, MessageVerdict, algorithm_fn};
use super::forwarder::{ForwarderEngine, assemble};
use super::node::NodeMachine;
use super::program_channel::HostProgram;
use super::sink::SinkNode;
use super::source::SourceNode;
use super::*;
use crate::model::{Path, Sees};

/// One sink, one forwarder, some sources.
struct World {
    network: SimNetwork,
    sink: SinkNode<SimNic>,
    /// How many messages the sink takes before it is slow.
    appetite: usize,
    engine: ForwarderEngine<SimNic>,
    is_ready: bool,
    program: Option<HostProgram>,
    sources: Vec<SourceNode<SimNic>>,
    received: Vec<Received>,
    finished: Vec<(u32, u32)>,
    lost: Vec<DisconnectReason>,
    nics: Vec<NicId>,
}

const DESTINATION: u32 = 9;

fn config(network: &SimNetwork) -> NodeConfig {
    NodeConfig::new().packet_bytes(64).packets(8).window(4).clock(Arc::new(network.clone()))
}

/// An algorithm that sees and changes the header: both modes must give the same bytes.
fn stamp() -> impl Algorithm {
    algorithm_fn(Sees::Header, |envelope, bytes| {
        envelope.set_tag(envelope.tag() + 1000);
        bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3).wrapping_add(1));
        MessageVerdict::Forward
    })
}

impl World {
    fn new(
        network: SimNetwork,
        config: &NodeConfig,
        path: Path,
        algorithm: impl Algorithm,
        sources: usize,
    ) -> Self {
        let (sink_nic, nic) = (network.nic(), network.nic());
        let mut nics = vec![sink_nic.id(), nic.id()];
        let sink = SinkNode::open(sink_nic, config.clone()).expect("a sink");
        let (mut engine, program) =
            assemble(nic, config, path, Box::new(algorithm)).expect("an engine");
        engine.connect(&[(DESTINATION, sink.address())]).expect("a route");
        let address = engine.address();
        let mut world = Self {
            network,
            sink,
            appetite: usize::MAX,
            engine,
            is_ready: false,
            program,
            sources: Vec::new(),
            received: Vec::new(),
            finished: Vec::new(),
            lost: Vec::new(),
            nics: Vec::new(),
        };
        world.until("the forwarder is ready", |world| world.engine.is_ready().expect("ready"));
        world.is_ready = true;
        for _ in 0..sources {
            let nic = world.network.nic();
            nics.push(nic.id());
            world.connect(nic, &address, config);
        }
        world.nics = nics;
        world
    }

    fn connect(&mut self, nic: SimNic, address: &Address, config: &NodeConfig) {
        let mut source = SourceNode::begin(nic, address, config.clone()).expect("a source");
        self.until("a source is connected", |world| {
            world.tick();
            let _ = source.tick().expect("a source");
            source.is_open().expect("connected")
        });
        self.sources.push(source);
    }

    /// Ticks every node, and steps the network.
    fn tick(&mut self) {
        while self.received.len() < self.appetite {
            match self.sink.try_next_event().expect("a sink") {
                Some(SinkEvent::Message(message)) => self.received.push(message),
                Some(SinkEvent::Finished { source, messages }) => {
                    self.finished.push((source, messages));
                }
                Some(SinkEvent::Lost { reason }) => self.lost.push(reason),
                None => break,
            }
        }
        let _ = self.sink.tick().expect("a sink");
        if self.is_ready {
            let _ = self.engine.tick().expect("an engine");
        }
        while self.program.as_mut().is_some_and(HostProgram::tick) {}
        for source in &mut self.sources {
            let _ = source.tick().expect("a source");
        }
        self.network.step();
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut is_done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..200_000 {
            if is_done(self) {
                return;
            }
            self.tick();
        }
        panic!("it never came that {what}");
    }

    /// Sends messages of all sources in turn, as windows allow.
    fn send_all(&mut self, messages: &[Vec<Vec<u8>>]) {
        let mut places: Vec<_> = messages.iter().map(|_| (0, None)).collect();
        self.until("all is sent", |world| {
            let mut is_done = true;
            for ((source, list), (at, sending)) in
                world.sources.iter_mut().zip(messages).zip(&mut places)
            {
                let Some(bytes) = list.get(*at) else { continue };
                is_done = false;
                let tag = u32::try_from(*at).expect("few");
                let one = sending.get_or_insert_with(|| {
                    source.begin_send(DESTINATION, tag, bytes).expect("short enough")
                });
                if source.pump(one, bytes).expect("sent") {
                    (*at, *sending) = (*at + 1, None);
                }
            }
            is_done
        });
    }

    /// Sends until the source gets an error, or until the sink learns that the source is dead. A crashed NIC fails
    /// every call, which ends that node's ticks.
    fn send_until_error(&mut self, sent: &[Vec<u8>], source_dies: bool) -> Option<MessagesError> {
        let mut at = 0;
        let mut sending = None;
        for _ in 0..100_000 {
            loop {
                match self.sink.try_next_event() {
                    Ok(Some(SinkEvent::Message(message))) => self.received.push(message),
                    Ok(Some(SinkEvent::Lost { reason })) => self.lost.push(reason),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
            let _ = self.engine.tick();
            while self.program.as_mut().is_some_and(HostProgram::tick) {}
            let source = &mut self.sources[0];
            let _ = source.tick();
            let bytes = &sent[at % sent.len()];
            let one = sending
                .get_or_insert_with(|| source.begin_send(DESTINATION, 0, bytes).expect("short"));
            match source.pump(one, bytes) {
                Ok(true) => (at, sending) = (at + 1, None),
                Ok(false) => {}
                Err(error) => return Some(error),
            }
            let is_quiet = !self.network.step();
            if source_dies && is_quiet && self.network.has_crashed(self.nics[2]) {
                return None;
            }
        }
        panic!("no node noticed; {} sent", at);
    }

    fn finish_all(&mut self) -> Vec<DeliveryReport> {
        let mut found = Vec::new();
        for at in 0..self.sources.len() {
            let mut is_asked = false;
            let mut finished = None;
            self.until("it is acknowledged", |world| {
                let source = &mut world.sources[at];
                is_asked = is_asked || source.request_finish(DESTINATION).expect("asked");
                finished = source.finished(DESTINATION).expect("a source");
                is_asked && finished.is_some()
            });
            found.extend(finished);
        }
        found
    }
}

/// Messages of all lengths around the limits of packets.
fn messages(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let lengths = [0, 1, 63, 64, 65, 128, 129, 255, 256];
    (0..count)
        .map(|_| {
            let length = if random.bool() {
                random.choice(lengths).unwrap_or(0)
            } else {
                random.usize(..250)
            };
            (0..length).map(|_| random.u8(..)).collect()
        })
        .collect()
}

const PATHS: [Path; 3] = [Path::HOST, Path::NIC, Path::NIC_CUT_THROUGH];

/// Goal: nothing is lost, duplicated, or reordered within a source, and all paths deliver the same bytes: the
/// algorithm's output. Method: three sources with random messages, on a network with jitter, for some seeds.
#[test]
fn every_path_forwards_every_message_once_and_in_order() {
    for seed in 0..12 {
        let sent: Vec<_> = (0..3).map(|source| messages(seed * 3 + source, 60)).collect();
        for path in PATHS {
            let plan = FaultPlan::reliable().jitter(std::time::Duration::from_micros(5));
            let network = SimNetwork::new(seed, plan);
            let config = config(&network);
            let mut world = World::new(network, &config, path, stamp(), 3);
            world.send_all(&sent);
            for finished in world.finish_all() {
                assert_eq!((finished.delivered, finished.dropped), (60, 0), "{path} {seed}");
            }
            for (number, sent) in (1..).zip(&sent) {
                let from = world.received.iter().filter(|message| message.source == number);
                let found: Vec<_> =
                    from.map(|message| (message.tag, message.bytes.clone())).collect();
                let expected: Vec<_> = (1000..)
                    .zip(sent)
                    .map(|(tag, bytes)| {
                        let mut bytes = bytes.clone();
                        bytes
                            .iter_mut()
                            .take(HEAD_BYTES)
                            .for_each(|byte| *byte = byte.wrapping_mul(3).wrapping_add(1));
                        (tag, bytes)
                    })
                    .collect();
                assert_eq!(found, expected, "{path} {seed} source {number}");
            }
            assert_eq!(world.engine.report().forwarded, 180);
            assert_eq!((world.lost.len(), world.finished.len()), (0, 3));
        }
    }
}

/// Goal: messages dropped by the algorithm are counted at the end, and do not use up the window. Method: every second
/// message is dropped, with more messages than the window, on every path.
#[test]
fn dropped_messages_are_counted_and_hold_no_window() {
    let sent = messages(7, 41);
    for path in PATHS {
        let network = SimNetwork::new(3, FaultPlan::reliable());
        let config = config(&network);
        let algorithm = algorithm_fn(Sees::Nothing, |envelope, _| {
            if envelope.tag() % 2 == 0 { MessageVerdict::Drop } else { MessageVerdict::Forward }
        });
        let mut world = World::new(network, &config, path, algorithm, 1);
        world.send_all(std::slice::from_ref(&sent));
        let finished = world.finish_all();
        assert_eq!((finished[0].delivered, finished[0].dropped), (20, 21), "{path}");
        let tags: Vec<_> = world.received.iter().map(|message| message.tag).collect();
        let expected: Vec<_> = (0..41).filter(|tag| tag % 2 == 1).collect();
        assert_eq!(tags, expected, "{path}");
        assert_eq!(world.engine.report().dropped, 21, "{path}");
    }
}

/// Goal: an algorithm that sees everything gets all bytes in one piece, wherever it runs, and cut-through refuses it
/// with a reason. Method: a checksum of the message in its last byte, compared with one computed here.
#[test]
fn an_algorithm_may_see_everything() {
    let sum = |bytes: &[u8]| bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_mul(31) ^ byte);
    let algorithm = move || {
        algorithm_fn(Sees::Everything, move |_, bytes| {
            let found = sum(bytes);
            bytes.iter_mut().rev().take(1).for_each(|last| *last = found);
            MessageVerdict::Forward
        })
    };
    let sent = messages(11, 40);
    for path in [Path::HOST, Path::NIC] {
        let network = SimNetwork::new(5, FaultPlan::reliable());
        let config = config(&network);
        let mut world = World::new(network, &config, path, algorithm(), 1);
        world.send_all(std::slice::from_ref(&sent));
        world.finish_all();
        for (message, sent) in world.received.iter().zip(&sent) {
            let mut expected = sent.clone();
            let found = sum(sent);
            expected.iter_mut().rev().take(1).for_each(|last| *last = found);
            assert_eq!(message.bytes, expected, "{path}");
        }
        assert_eq!(world.received.len(), 40);
    }
    let network = SimNetwork::new(5, FaultPlan::reliable());
    let config = config(&network);
    let refused = |path| {
        assemble(network.nic(), &config, path, Box::new(algorithm())).err().expect("refused")
    };
    assert!(matches!(refused(Path::NIC_CUT_THROUGH), MessagesError::WholeMessage));
    assert!(matches!(refused(Path::HOST_CUT_THROUGH), MessagesError::HostCutThrough));
}

/// Goal: a slow sink stops the nodes before it, and memory stays bounded: an endless source sends only as many messages
/// as windows and buffers hold; when the sink continues, so does everything. Method: a sink that takes three messages,
/// then all.
#[test]
fn a_slow_sink_stops_the_source() {
    for path in PATHS {
        let network = SimNetwork::new(1, FaultPlan::reliable());
        // The window exceeds all buffers, so that credit runs out first.
        let config = config(&network).window(1000);
        let mut world = World::new(network, &config, path, Basic, 1);
        world.appetite = 3;
        let bytes = vec![7; 200];
        let mut sent = 0;
        for tag in 0..400 {
            let mut sending = world.sources[0].begin_send(DESTINATION, tag, &bytes).expect("short");
            let mut patience = 300;
            while patience > 0 && !world.sources[0].pump(&mut sending, &bytes).expect("sent") {
                world.tick();
                patience -= 1;
            }
            if patience == 0 {
                sent = tag;
                break;
            }
        }
        // Four packets each: eight in each node, and on the host's path 64 messages in addition.
        let bound = if path == Path::HOST { 64 + 10 } else { 10 };
        assert!((3..=bound).contains(&sent), "{path}: {sent} messages left");
        world.appetite = usize::MAX;
        let before = world.received.len();
        world.until("everything that was sent arrives", |world| {
            world.received.len() >= usize::try_from(sent).expect("few")
        });
        assert!(before <= 4, "{path}: {before}");
    }
}

/// Goal: a message that the next node does not accept is refused before any of it is sent, and the next one is
/// delivered. Method: on the interface, with store-and-forward, where half of its packets is the limit.
#[test]
fn a_message_that_is_too_long_is_refused() {
    let network = SimNetwork::new(1, FaultPlan::reliable());
    let config = config(&network);
    let mut world = World::new(network, &config, Path::NIC, Basic, 1);
    let most = world.sources[0].message_bytes_max();
    assert_eq!(most, 4 * 64);
    let bytes = vec![1; 257];
    let error = world.sources[0].begin_send(DESTINATION, 0, &bytes).expect_err("too long");
    assert!(matches!(error, MessagesError::TooLong { bytes: 257, most: 256 }), "{error}");
    world.send_all(&[vec![bytes[1..].to_vec()]]);
    assert_eq!(world.finish_all()[0].delivered, 1);
}

/// Goal: a source learns that a destination does not exist, and others are not disturbed. Method: one message each.
#[test]
fn an_unknown_destination_is_told() {
    let network = SimNetwork::new(1, FaultPlan::reliable());
    let config = config(&network);
    let mut world = World::new(network, &config, Path::NIC_CUT_THROUGH, Basic, 2);
    let mut sending = world.sources[0].begin_send(77, 0, b"lost").expect("short");
    assert!(world.sources[0].pump(&mut sending, b"lost").expect("sent"));
    world.until("the source knows", |world| {
        matches!(world.sources[0].finished(77), Err(MessagesError::Gone { destination: 77 }))
    });
    world.send_all(&[Vec::new(), messages(1, 20)]);
    assert_eq!(world.finish_all()[1].delivered, 20);
    assert_eq!(world.engine.report().lost, 1);
}

/// Goal: what a source had sent completely before it left is not lost, even if messages and end arrive together.
/// Method: no node polls between its last message and its death; to a sink, and on every path to a forwarder that ends
/// with its sources.
#[test]
fn what_came_before_the_end_counts() {
    let sent: Vec<_> = [10, 70, 64].map(|length| vec![7; length]).into();
    let quiet = |network: &SimNetwork| assert!((0..10_000).any(|_| !network.step()), "endless");
    let send = |source: &mut SourceNode<SimNic>| {
        for bytes in &sent {
            let mut sending = source.begin_send(DESTINATION, 0, bytes).expect("short");
            assert!(source.pump(&mut sending, bytes).expect("sent"));
        }
    };
    let network = SimNetwork::new(1, FaultPlan::reliable());
    let config = config(&network).ends_with_sources(true);
    let mut sink = SinkNode::open(network.nic(), config.clone()).expect("a sink");
    let nic = network.nic();
    let dies = nic.id();
    let mut source = SourceNode::begin(nic, &sink.address(), config.clone()).expect("a source");
    while !source.is_open().expect("connected") {
        let _ = source.tick().expect("a source");
        assert_eq!(sink.try_next_event().expect("a sink"), None);
        network.step();
    }
    send(&mut source);
    quiet(&network);
    network.crash(dies);
    quiet(&network);
    let mut found = Vec::new();
    while let Some(event) = sink.try_next_event().expect("a sink") {
        found.push(event);
    }
    assert!(matches!(found.pop(), Some(SinkEvent::Lost { .. })), "{found:?}");
    let found = found.into_iter().map(|event| match event {
        SinkEvent::Message(message) => message.bytes,
        other => panic!("{other:?}"),
    });
    assert_eq!(found.collect::<Vec<_>>(), sent);

    for path in PATHS {
        let network = SimNetwork::new(1, FaultPlan::reliable());
        let config = config.clone().clock(Arc::new(network.clone()));
        let mut world = World::new(network, &config, path, Basic, 1);
        send(&mut world.sources[0]);
        quiet(&world.network);
        world.network.crash(world.nics[2]);
        quiet(&world.network);
        world.sources.clear();
        world.until("all arrives", |world| world.received.len() == sent.len());
        world.until("the forwarder is over", |world| world.engine.is_over());
    }
}

/// Goal: a sink that has nothing for its caller, and rests, has announced all credit to its sender. Method: the start
/// of a message longer than all buffers; after one call that returns nothing, the source has room again without another
/// call.
#[test]
fn credit_is_told_before_a_rest() {
    let network = SimNetwork::new(1, FaultPlan::reliable());
    let config = config(&network);
    let mut sink = Sink::open(network.nic(), config.clone()).expect("a sink");
    let mut source = SourceNode::begin(network.nic(), &sink.address(), config).expect("a source");
    while !source.is_open().expect("connected") {
        let _ = source.tick().expect("a source");
        assert_eq!(sink.try_next_event().expect("a sink"), None);
        network.step();
    }
    let bytes = vec![1; 64 * 13];
    let mut sending = source.begin_send(DESTINATION, 0, &bytes).expect("short");
    assert!(!source.pump(&mut sending, &bytes).expect("sent"), "eight packets have room");
    while network.step() {}
    assert_eq!(sink.next_event_until(network.now()).expect("a sink"), None);
    while network.step() {}
    let _ = source.tick().expect("a source");
    assert!(source.pump(&mut sending, &bytes).expect("sent"), "the rest has room now");
}

/// Goal: whichever node dies, the others get a typed error and nothing is invented: the sink has a prefix of the
/// messages sent, each complete. Method: the forwarder, the sink and the source crash at many moments of a run, on
/// every path.
#[test]
fn a_node_that_dies_is_noticed() {
    for path in PATHS {
        for victim in 0..3_usize {
            for moment in [5, 30, 31, 32, 33, 60, 90] {
                let network = SimNetwork::new(moment, FaultPlan::reliable());
                let config = config(&network);
                let mut world = World::new(network, &config, path, Basic, 1);
                let sent = messages(moment, 200);
                let nic = world.nics[victim];
                let before = world.network.transmissions(nic);
                world.network.crash_at_transmission(nic, before + moment);
                let error = world.send_until_error(&sent, victim == 2);
                match (victim, error) {
                    (0, Some(MessagesError::Gone { destination: DESTINATION }))
                    | (1, Some(MessagesError::Lost { .. }))
                    | (2, _) => {}
                    (victim, error) => panic!("{path} {victim} {moment}: {error:?}"),
                }
                if victim > 0 {
                    assert!(world.received.len() < sent.len());
                }
                for (at, message) in world.received.iter().enumerate() {
                    assert_eq!(message.bytes, sent[at], "{path} {victim} {moment}");
                }
            }
        }
    }
}
