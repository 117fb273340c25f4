//! The verbs provider on real devices. `scripts/verbs-vm` runs these tests in a virtual machine with
//! software devices. `VIGIE_VERBS_ADDRESSES` holds the addresses of the devices to use, one or more;
//! NICs take them in turn.

#![cfg(vigie_verbs)]

use std::{
    env,
    future::Future,
    net::IpAddr,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use vigie_detect::{ArmOutcome, Instant, Server};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::{
    conformance::{Fixture, Profile, SetupError, check},
    message::{Communicator, Endpoint},
    protocol::{EngineConfig, SendMode},
    verbs::{OpenError, Verbs, VerbsConfig, VerbsSecret},
    vi::{
        Address, Connect, Data, DisconnectReason, LocalSegment, MemoryAttributes, NicEvent,
        Operation, ProtectionTag, Provider, Queue, ReceiveDescriptor, Region, Reliability,
        RemoteKey, RemoteSegment, SendDescriptor, Status, ViAttributes, ViId, ViState,
    },
    world::{World, local},
};

/// A bound for each test, longer than it takes even on an emulated processor.
const BOUND: Duration = Duration::from_secs(100);

/// The address of the NIC with this number.
fn address(number: usize) -> IpAddr {
    let text = env::var("VIGIE_VERBS_ADDRESSES").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let addresses: Vec<IpAddr> =
        text.split(',').map(|ip| ip.parse().expect("addresses, with commas")).collect();
    addresses[number % addresses.len()]
}

/// Whether the devices' network loses packets.
fn is_lossy() -> bool {
    env::var_os("VIGIE_VERBS_LOSSY").is_some()
}

fn open(number: usize, secret: [u8; 32]) -> Verbs {
    Verbs::open(&VerbsConfig::new(address(number), VerbsSecret::new(secret))).expect("a device")
}

/// Runs `body` on its own thread, with a time limit.
fn bounded(body: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || {
        body();
        let _ = sender.send(());
    });
    match receiver.recv_timeout(BOUND) {
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

// -------------------------------------------------------------------------------------------- the contract

struct Devices(usize);

impl Fixture for Devices {
    type Nic = Verbs;

    fn nic(&mut self) -> Result<Verbs, SetupError> {
        self.0 += 1;
        Ok(open(self.0 - 1, [7; 32]))
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn pass(&mut self, until: Instant) -> bool {
        thread::yield_now();
        Instant::now() < until
    }

    fn profile(&self) -> Profile {
        // An unreliable queue pair drops what the network loses, and an emulated processor is slow.
        let profile = Profile::new().calm(Duration::from_millis(5));
        // A call whose first packet is lost is repeated after 1 s, and once more after 2 s.
        let (profile, notice) = match is_lossy() {
            true => (profile.loses(), Duration::from_secs(5)),
            false => (profile, Duration::from_millis(500)),
        };
        profile.notice(notice).timeout(Duration::from_secs(30))
    }
}

/// Goal: consumers can rely on the contract with every provider. Method: the conformance suite at both
/// reliable levels, between NICs of one process.
#[test]
#[ignore = "needs an RDMA device"]
fn the_contract_is_kept() {
    let report = match check(&mut || Ok(Devices(0))) {
        Ok(report) => report,
        Err(violation) => panic!("{violation}"),
    };
    println!("{report}");
    assert!(report.cases.len() > 60, "{report}");
    let tries_unreliable = report.cases.iter().any(|(_, level)| *level == Reliability::Unreliable);
    assert_eq!(tries_unreliable, !is_lossy(), "{report}");
}

// -------------------------------------------------------------------------------------------- messages

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251 + seed).to_le_bytes()[0]).collect()
}

/// Runs `body` in a task for each of `size` ranks, with that rank's communicator.
fn on_ranks<F>(
    size: u32,
    config: EngineConfig,
    body: impl Fn(Communicator<Verbs>) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    bounded(move || {
        let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
        let server = runtime.server().clone();
        runtime.block_on(async move {
            let (_launcher, worlds) = local(&server, size).expect("a world");
            let ranks: Vec<_> = worlds
                .into_iter()
                .enumerate()
                .map(|(rank, world)| {
                    let (server, body) = (server.clone(), body.clone());
                    vigie_runtime::spawn(async move {
                        let endpoint = join(&server, rank, &world, config).await;
                        body(endpoint.communicator()).await;
                        // No rank leaves while others still need it.
                        let deadline = Instant::now() + BOUND;
                        world.barrier(deadline).await.expect("all come");
                    })
                })
                .collect();
            for rank in ranks {
                rank.await.expect("no panic");
            }
        });
    });
}

async fn join(
    server: &Server,
    rank: usize,
    world: &World,
    config: EngineConfig,
) -> Endpoint<Verbs> {
    let nic = open(rank, world.identity().secret);
    let deadline = Instant::now() + BOUND;
    Endpoint::join_over(server, world, nic, config, deadline).await.expect("all ranks come")
}

const LENGTHS: [usize; 7] = [0, 1, 8, 1000, 40_000, 70_000, 300_000];

async fn ping_pong(rank: Communicator<Verbs>) {
    let (own, rounds) = (rank.rank(), 10);
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        for round in 0..rounds {
            let tag = u32::try_from(round).expect("small");
            let bytes = pattern(length, seed + round);
            if own == 0 {
                rank.send(1, tag, &bytes).await.expect("sent");
            }
            let message = rank.recv(1 - own, tag).await.expect("received");
            assert_eq!(message.bytes, bytes, "{length} bytes, round {round}");
            if own == 1 {
                rank.send(0, tag, &bytes).await.expect("sent");
            }
        }
    }
}

async fn all_to_all(rank: Communicator<Verbs>) {
    let (own, size) = (rank.rank(), rank.size());
    let seed = |from: u32, to: u32, round: u32| usize::try_from(from * 100 + to * 10 + round);
    for (round, length) in (0..).zip([16, 1024, 50_000]) {
        let others: Vec<u32> = (0..size).filter(|other| *other != own).collect();
        let mut sends = Vec::new();
        for to in &others {
            let bytes = pattern(length, seed(own, *to, round).expect("small"));
            sends.push(rank.start_send(*to, 5, SendMode::Standard, bytes).expect("begun"));
        }
        for from in &others {
            let message = rank.recv(*from, 5).await.expect("received");
            let expected = pattern(length, seed(*from, own, round).expect("small"));
            assert_eq!(message.bytes, expected, "{length} bytes from {from} to {own}");
        }
        for mut send in sends {
            send.wait().await.expect("sent");
        }
    }
}

/// Goal: the message protocol works over queue pairs, eager and by rendezvous, asleep and awake. Method:
/// two ranks send each other messages of various lengths, and check every byte.
#[test]
#[ignore = "needs an RDMA device"]
fn two_ranks_play_ping_pong() {
    on_ranks(2, EngineConfig::default(), ping_pong);
}

/// Goal: many connections of one NIC do not disturb each other. Method: four ranks send each other three rounds of
/// messages, all at once.
#[test]
#[ignore = "needs an RDMA device"]
fn all_ranks_send_to_all() {
    on_ranks(4, EngineConfig::default(), all_to_all);
}

/// Goal: over unreliable queue pairs the engine's own error control repairs losses. Method: both
/// exchanges, on VIs without guarantees.
#[test]
#[ignore = "needs an RDMA device"]
fn messages_over_unreliable_vis() {
    let config = EngineConfig::default().reliability(Reliability::Unreliable);
    // An emulated processor answers late.
    let config = config.retransmit_after(Duration::from_millis(50));
    on_ranks(2, config, ping_pong);
    on_ranks(3, config, all_to_all);
}

// -------------------------------------------------------------------------------------------- losses

/// One end of an unreliable connection.
struct Party {
    nic: Verbs,
    vi: ViId,
    region: Region,
}

impl Party {
    fn new(number: usize) -> Self {
        let mut nic = open(number, [4; 32]);
        let tag = nic.create_tag();
        let vi = create_vi(&mut nic, tag, Reliability::Unreliable);
        let rights = MemoryAttributes { tag, allows_write: true, allows_read: false };
        let region = nic.allocate(REGION_BYTES, rights).expect("memory");
        Self { nic, vi, region }
    }

    /// Takes the number of the next message, if there is one.
    fn receive(&mut self) -> Option<i32> {
        self.nic.progress(Instant::now());
        let found = self.nic.poll_queue(self.vi, Queue::Receive)?;
        assert_eq!(found.status, Status::Done, "what is lost fails no descriptor");
        self.nic
            .post_receive(self.vi, &ReceiveDescriptor { cookie: 0, segments: &[] })
            .expect("room");
        found.immediate
    }
}

/// Four packets of the longest kind.
const REGION_BYTES: usize = 4 * 4096;

/// Returns the two ends of a connection, and the key of the second one's memory.
fn unreliable_parties() -> (Party, Party, RemoteKey) {
    let (mut one, mut two) = (Party::new(0), Party::new(1));
    for _ in 0..63 {
        two.nic
            .post_receive(two.vi, &ReceiveDescriptor { cookie: 0, segments: &[] })
            .expect("room");
    }
    let deadline = Instant::now() + BOUND;
    let (of_one, of_two) = (one.nic.address(), two.nic.address());
    one.nic.connect_peer(Connect::new(one.vi, &of_two, b"door", deadline)).expect("begun");
    two.nic.connect_peer(Connect::new(two.vi, &of_one, b"door", deadline)).expect("begun");
    for (first, second) in [(0, 1), (1, 0)] {
        let mut nics = [&mut one.nic, &mut two.nic];
        let [near, far] = nics.get_disjoint_mut([first, second]).expect("two");
        let event = event_of(&mut [near, far]);
        assert!(matches!(event, NicEvent::Connected { .. }), "{event:?}");
    }
    let key = two.region.key;
    (one, two, key)
}

/// Writes `length` bytes to the other end `count` times, with a number as immediate data, a few in
/// flight. Returns the numbers that arrive.
fn write(one: &mut Party, two: &mut Party, key: RemoteKey, count: i32, length: u64) -> Vec<i32> {
    let mut received = Vec::new();
    for number in 0..count {
        let segments = [LocalSegment { memory: one.region.handle, offset: 0, length }];
        let write = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: 0,
            immediate: Some(number),
            is_signaled: true,
            remote: Some(RemoteSegment { key, offset: 0 }),
            data: Data::Segments(&segments),
        };
        one.nic.post_send(one.vi, &write).expect("room");
        // One after the other: only the network loses any.
        let end = Instant::now() + Duration::from_millis(20);
        let mut is_sent = false;
        while !is_sent || (received.last() != Some(&number) && Instant::now() < end) {
            one.nic.progress(Instant::now());
            if let Some(found) = one.nic.poll_queue(one.vi, Queue::Send) {
                assert_eq!(
                    found.status,
                    Status::Done,
                    "a lost message is done when it has departed"
                );
                is_sent = true;
            }
            received.extend(two.receive());
            assert!(Instant::now() < end + BOUND, "it hangs");
        }
    }
    received
}

/// Goal: over an unreliable VI a lost message is merely lost, and nothing breaks. Method: many writes of
/// one packet each, of which the network loses some if configured; those that arrive are in order, each
/// once.
#[test]
#[ignore = "needs an RDMA device"]
fn an_unreliable_vi_loses_what_the_network_loses() {
    bounded(|| {
        let count = if is_lossy() { 1500 } else { 200 };
        let (mut one, mut two, key) = unreliable_parties();
        let packet = one.nic.attributes().unreliable_bytes;
        let received = write(&mut one, &mut two, key, count, packet);
        let lost = usize::try_from(count).expect("small") - received.len();
        println!("{lost} of {count} messages of {packet} B were lost");
        assert!(received.is_sorted_by(|one, next| one < next), "in order and once: {received:?}");
        assert_eq!(lost > 0, is_lossy(), "as many as the network loses");
        assert!(lost < 200, "no more than the network loses: {lost}");
        for party in [&one, &two] {
            assert_eq!(party.nic.state(party.vi).expect("it is there"), ViState::Connected);
        }
    });
}

/// Goal: document the fate of messages of several packets, which the engine above never sends: Soft-RoCE
/// of Linux 6.1 never recovers from the loss of a packet behind the first. That is a bug of Soft-RoCE:
/// when this test fails, it was fixed, and `docs/design/verbs.md` must be updated. Method: many writes
/// of several packets; then writes of one packet, all of which arrive if nothing is lost.
#[test]
#[ignore = "needs an RDMA device"]
fn a_lost_packet_of_a_longer_message_is_not_got_over() {
    bounded(|| {
        let (mut one, mut two, key) = unreliable_parties();
        let packet = one.nic.attributes().unreliable_bytes;
        let arrived = write(&mut one, &mut two, key, 400, 4 * packet).len();
        let after = write(&mut one, &mut two, key, 50, packet).len();
        println!(
            "{arrived} of 400 messages of 4 packets arrived, then {after} of 50 of one packet"
        );
        let expected = if is_lossy() { 0 } else { 50 };
        assert_eq!(after, expected, "of one packet, after {arrived} longer ones");
        assert_eq!(one.nic.state(one.vi).expect("it is there"), ViState::Connected);
    });
}

// -------------------------------------------------------------------------------------------- authentication

fn idle_vi(nic: &mut Verbs) -> ViId {
    let tag = nic.create_tag();
    create_vi(nic, tag, Reliability::ReliableDelivery)
}

/// Makes a VI without completion queues, with one receive descriptor.
fn create_vi(nic: &mut Verbs, tag: ProtectionTag, reliability: Reliability) -> ViId {
    let attributes = ViAttributes {
        reliability,
        tag,
        send_cq: None,
        receive_cq: None,
        allows_write: true,
        allows_read: true,
    };
    let vi = nic.create_vi(attributes).expect("a VI");
    nic.post_receive(vi, &ReceiveDescriptor { cookie: 1, segments: &[] }).expect("room");
    vi
}

/// Lets NICs work until the first has an event.
fn event_of(nics: &mut [&mut Verbs]) -> NicEvent {
    let end = Instant::now() + BOUND;
    while Instant::now() < end {
        for nic in nics.iter_mut() {
            nic.progress(Instant::now());
        }
        if let Some(event) = nics[0].next_event() {
            return event;
        }
        thread::yield_now();
    }
    panic!("no event");
}

/// Goal: a caller that does not know the secret gets no answer, and a caller of a stranger notices.
/// Method: a NIC with another secret calls one that listens; then the caller's own VI connects to a NIC
/// that knows the secret.
#[test]
#[ignore = "needs an RDMA device"]
fn another_secret_does_not_connect() {
    let (mut server, mut stranger) = (open(0, [1; 32]), open(1, [2; 32]));
    server.listen(b"door").expect("free");
    let vi = idle_vi(&mut stranger);
    let (address, deadline) = (server.address(), Instant::now() + BOUND);
    stranger.connect(Connect::new(vi, &address, b"door", deadline)).expect("begun");
    let event = event_of(&mut [&mut stranger, &mut server]);
    let is_refused = matches!(
        event,
        NicEvent::Refused { vi: refused, reason: DisconnectReason::PeerFault(_) | DisconnectReason::Rejected } if refused == vi
    );
    assert!(is_refused, "{event:?}");
    assert_eq!(stranger.state(vi).expect("it is there"), ViState::Idle);
    assert!(server.next_event().is_none(), "the listener hears nothing of it");

    let mut friend = open(1, [2; 32]);
    friend.listen(b"door").expect("free");
    stranger.connect(Connect::new(vi, &friend.address(), b"door", deadline)).expect("begun");
    let event = event_of(&mut [&mut friend, &mut stranger]);
    assert!(matches!(event, NicEvent::Requested { .. }), "{event:?}");
}

/// Goal: errors say why a call failed. Method: addresses without a listener, and configurations that fit
/// no machine.
#[test]
#[ignore = "needs an RDMA device"]
fn failures_have_reasons() {
    let mut caller = open(0, [1; 32]);
    let vi = idle_vi(&mut caller);
    let gone = open(0, [1; 32]).address();
    let deadline = Instant::now() + BOUND;
    caller.connect(Connect::new(vi, &gone, b"door", deadline)).expect("begun");
    let event = event_of(&mut [&mut caller]);
    assert_eq!(event, NicEvent::Refused { vi, reason: DisconnectReason::NotListening });

    let config = VerbsConfig::new(address(0), VerbsSecret::new([1; 32]));
    let error = Verbs::open(&config.clone().device("no such device")).expect_err("no device");
    assert!(matches!(&error, OpenError::NoDevice { name, .. } if name == "no such device"));
    let nowhere = VerbsConfig::new([192, 0, 2, 77].into(), VerbsSecret::new([1; 32]));
    let error = Verbs::open(&nowhere).expect_err("no such address");
    assert!(matches!(error, OpenError::NoAddress { .. }), "{error}");
    let anywhere = VerbsConfig::new([0, 0, 0, 0].into(), VerbsSecret::new([1; 32]));
    let error = Verbs::open(&anywhere).expect_err("no address of one host");
    assert!(matches!(error, OpenError::Unspecified(_)), "{error}");
    let taken = open(0, [1; 32]);
    // The provider defines where the port is, and this is its test.
    let port = u16::from_le_bytes([taken.address().0[23], taken.address().0[24]]);
    let error = Verbs::open(&config.tcp_port(port)).expect_err("the port is taken");
    assert!(matches!(error, OpenError::Listen { .. }), "{error}");
}

// -------------------------------------------------------------------------------------------- death

/// The variable that makes this program a peer that connects to the NIC whose address it holds, in hexadecimal.
const PEER_OF: &str = "VIGIE_VERBS_TEST_PEER_OF";

/// Goal: the other side of the next test. Method: connect, and stay until killed.
#[test]
#[ignore = "needs an RDMA device"]
fn peer_that_is_killed() {
    let Ok(text) = env::var(PEER_OF) else { return };
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("digits"));
    let bytes = digits.map(|pair| u8::from_str_radix(pair, 16).expect("digits"));
    let address = Address(bytes.collect());
    let mut nic = open(1, [3; 32]);
    let vi = idle_vi(&mut nic);
    let deadline = Instant::now() + BOUND;
    nic.connect(Connect::new(vi, &address, b"door", deadline)).expect("begun");
    while Instant::now() < deadline {
        nic.progress(Instant::now());
        thread::yield_now();
    }
}

/// Goal: the death of a peer's process breaks the connection, even if nothing is sent, and wakes a
/// sleeping NIC. Method: a process that connects is killed; the NIC is armed, and its descriptor
/// watched.
#[test]
#[ignore = "needs an RDMA device"]
fn a_killed_peer_is_noticed() {
    let mut nic = open(0, [3; 32]);
    nic.listen(b"door").expect("free");
    let vi = idle_vi(&mut nic);
    let address: String = nic.address().0.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut peer = std::process::Command::new(env::current_exe().expect("a path"))
        .args(["--exact", "peer_that_is_killed", "--ignored"])
        .env(PEER_OF, address)
        .spawn()
        .expect("a process");
    let NicEvent::Requested { request, .. } = event_of(&mut [&mut nic]) else {
        panic!("a request comes first");
    };
    nic.accept(request, vi, b"").expect("it waits");
    let event = event_of(&mut [&mut nic]);
    assert!(matches!(event, NicEvent::Connected { .. }), "{event:?}");
    while nic.arm().expect("it can sleep") == ArmOutcome::Ready {
        nic.progress(Instant::now());
    }
    peer.kill().expect("it runs");
    peer.wait().expect("it has ended");
    let descriptor = nic.descriptor().expect("it has one");
    let mut watched =
        [rustix::event::PollFd::from_borrowed_fd(descriptor, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    let woken = rustix::event::poll(&mut watched, Some(&patience)).expect("a poll");
    assert_eq!(woken, 1, "not woken");
    nic.quiet();
    let event = event_of(&mut [&mut nic]);
    assert_eq!(event, NicEvent::Broken { vi, reason: DisconnectReason::PeerDied });
}
