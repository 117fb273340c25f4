//! Forwarders between real veth pairs, in network namespaces of their own.
//!
//! ```text
//!   a0 ═══ a1 │ forwarder │ b1 ═══ b0
//! ```

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "../../via/tests/link/namespace.rs"]
#[expect(dead_code, reason = "pairs are made here in another way")]
mod namespace;

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    pin::pin,
    process::{Child, Command, Stdio},
    task::{Context, Poll, Waker},
    time::Duration,
};

use vigie_detect::{Fixed, Frequency, Registration, Server, Strategy, clock::monotonic_now};
use vigie_forward::{
    Sees, StageModel,
    host::{self, AsyncForwarder, Forwarder, HostEvent, Segments},
    packet::{Packet, Port, Tag, Verified},
    pipeline::{DropReason, OnFull, Pipeline, PipelineBuilder, Stage, Verdict},
    stages::{Mirror, Rewrite, StageFn},
};
use vigie_via::link::{BackEnd, Checksum, EtherType, Link, LinkBuilder, LinkEvent, MacAddress};

use crate::{
    kit::namespace::{Namespace, PRIVILEGED, WAYS, inside},
    namespace::ip,
};

/// Longer than anything here takes; ends whatever hangs.
const BOUND: Duration = Duration::from_secs(20);

/// Makes both pairs, up.
fn make_wires() {
    for (one, other) in [("a0", "a1"), ("b0", "b1")] {
        ip(&format!("link add {one} type veth peer name {other}"));
        for name in [one, other] {
            // Otherwise the kernel sends packets of its own.
            let _ = Command::new("sysctl")
                .args(["-q", "-w", &format!("net.ipv6.conf.{name}.disable_ipv6=1")])
                .output();
            ip(&format!("link set {name} up"));
        }
    }
}

/// Calls `step` until it is done.
#[track_caller]
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let begin = monotonic_now();
    while !step() {
        assert!(monotonic_now() - begin < BOUND, "{what}");
        std::thread::yield_now();
    }
}

/// Sends everything to the other port.
fn cross() -> impl Stage {
    let model = StageModel::new("cross").sees(Sees::Header);
    StageFn::new(model, |packet: &mut Packet, _| Verdict::SetEgress(Port(1 - packet.ingress().0)))
}

fn link(name: &str, back_end: BackEnd) -> LinkBuilder {
    host::link(name).receive_frames(256).send_frames(256).back_end(back_end)
}

fn forwarder(pipeline: PipelineBuilder, back_end: BackEnd) -> Forwarder {
    Forwarder::builder(pipeline.build().expect("a pipeline"))
        .port(Port(0), link("a1", back_end))
        .port(Port(1), link("b1", back_end))
        .build()
        .expect("a forwarder")
}

/// The far end of a pair.
fn end(name: &str) -> Link {
    Link::builder(name).ether_type(EtherType::ALL).promiscuous().open().expect("a link")
}

fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5];
    frame.extend(number.to_be_bytes());
    frame.resize(length.max(18), u8::try_from(number % 251).expect("small"));
    frame
}

fn take(link: &mut Link) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let _ = link.recv_each(64, |frame| frames.push(frame.to_vec()));
    frames
}

/// Sends frames of every length one way, in bursts, and checks that all arrive, rewritten, in order.
fn frames_pass(forwarder: &mut Forwarder, from: &mut Link, to: &mut Link) {
    for burst in 0..20_u32 {
        let sizes = [18, 60, 64, 65, 500, 1513, 1514];
        let sent: Vec<_> =
            (0..).zip(sizes).map(|(number, length)| frame(burst * 10 + number, length)).collect();
        for frame in &sent {
            from.send_frame(frame).expect("room");
        }
        from.flush().expect("sent");
        let mut arrived = Vec::new();
        until("frames arrive", || {
            forwarder.tick(monotonic_now());
            arrived.extend(take(to));
            arrived.len() >= sent.len()
        });
        for (mut sent, arrived) in sent.into_iter().zip(arrived) {
            sent[..6].copy_from_slice(&[4; 6]);
            assert_eq!(arrived[..sent.len()], sent);
        }
    }
}

fn rewriting() -> PipelineBuilder {
    Pipeline::builder().stage(Rewrite::new().destination_mac(MacAddress([4; 6]))).stage(cross())
}

/// Goal: frames of every length pass both ways, changed, complete, in order, with their tags, and the counters agree.
/// Method: bursts between the far ends, by rings and by calls.
#[test]
fn frames_pass_over_af_packet() {
    inside("frames_pass_over_af_packet", WAYS, || {
        make_wires();
        for back_end in [BackEnd::PacketRings, BackEnd::PacketCalls] {
            let mut forwarder = forwarder(rewriting(), back_end);
            let (mut a, mut b) = (end("a0"), end("b0"));
            frames_pass(&mut forwarder, &mut a, &mut b);
            frames_pass(&mut forwarder, &mut b, &mut a);
            let counted = forwarder.counters().snapshot();
            assert_eq!((counted.received.packets, counted.sent.packets), (280, 280));
            assert_eq!((counted.received, counted.dropped_total()), (counted.sent, 0));
            tags_pass(&mut forwarder, &mut a, &mut b);
        }
    });
}

/// A tag that the kernel strips on reception is in the sent frame again.
fn tags_pass(forwarder: &mut Forwarder, from: &mut Link, to: &mut Link) {
    for tag in [Tag::of_vlan(7), Tag::of_vlan(4095)] {
        let mut packet = Packet::new(Port(0), &frame(1, 1514));
        packet.push_tag(tag).expect("a tag");
        from.send_frame(packet.bytes()).expect("tags do not count");
        from.flush().expect("sent");
        let mut seen = None;
        until("a tagged frame arrives", || {
            forwarder.tick(monotonic_now());
            let _ = to.recv_each(1, |frame| seen = Some((frame.vlan_tag(), frame.len())));
            seen.is_some()
        });
        let (found, length) = seen.expect("seen");
        let found = found.expect("a tag");
        assert_eq!((found.protocol, found.control), (tag.ether_type, tag.control));
        assert_eq!(length, 1514, "without the tag");
    }
}

/// Goal: the same over AF_XDP. Method: the same.
#[test]
#[ignore = "needs privilege: CAP_BPF in the first user namespace"]
fn frames_pass_over_af_xdp() {
    inside("frames_pass_over_af_xdp", PRIVILEGED, || {
        make_wires();
        let mut forwarder = forwarder(rewriting(), BackEnd::Xdp);
        println!("{:?}", forwarder.xdp_mode(Port(0)).expect("AF_XDP"));
        let (mut a, mut b) = (end("a0"), end("b0"));
        frames_pass(&mut forwarder, &mut a, &mut b);
        frames_pass(&mut forwarder, &mut b, &mut a);
        let counted = forwarder.counters().snapshot();
        assert_eq!((counted.received, counted.dropped_total()), (counted.sent, 0));
    });
}

/// Goal: a forwarder at a detection server forwards in every strategy, asleep or polling, as long as its events
/// are kept; a mirror's copies come too. Method: frames one by one, each waited for.
#[test]
fn hosted_forwarders_wake_for_frames() {
    inside("hosted_forwarders_wake_for_frames", WAYS, || {
        make_wires();
        let every = Frequency::Switches(1);
        for strategy in [Strategy::Sleep { every }, Strategy::PollGroup { every }] {
            let host = Server::spawn_thread().expect("a host");
            let pipeline =
                Pipeline::builder().stage(Mirror::to(Port(1)).from(Port(1))).stage(cross());
            let forwarder = forwarder(pipeline, BackEnd::PacketRings);
            let registration = Registration::named("forwarder").policy(Fixed(strategy));
            let async_forwarder =
                AsyncForwarder::with_registration(host.server(), forwarder, registration);
            let async_forwarder = async_forwarder.expect("registered");
            let (mut a, mut b) = (end("a0"), end("b0"));
            let events = async_forwarder.start().expect("started");
            for number in 0..200 {
                a.send_frame(&frame(number, 60)).expect("room");
                a.flush().expect("sent");
                let mut arrived = Vec::new();
                until("a frame wakes the host", || {
                    arrived.extend(take(&mut b));
                    !arrived.is_empty()
                });
                assert_eq!(arrived, [frame(number, 60)]);
            }
            b.send_frame(&frame(7, 60)).expect("room");
            b.flush().expect("sent");
            let mut arrived = [0, 0];
            until("both arrive", || {
                arrived[0] += take(&mut a).len();
                arrived[1] += take(&mut b).len();
                arrived == [1, 1]
            });
            let sent = async_forwarder.with(|one| one.counters().snapshot().sent.packets);
            assert_eq!(sent, Some(202));
            drop(events);
        }
    });
}

/// Takes the pending events.
fn events(forwarder: &mut Forwarder) -> Vec<HostEvent> {
    std::iter::from_fn(|| forwarder.next_event()).collect()
}

/// Ticks until an event occurs that `is` accepts.
#[track_caller]
fn await_event(forwarder: &mut Forwarder, is: impl Fn(&HostEvent) -> bool) {
    let mut seen = Vec::new();
    until("an event", || {
        forwarder.tick(monotonic_now());
        seen.extend(events(forwarder));
        seen.iter().any(&is)
    });
}

/// Goal: an interface that goes down, changes its MTU, or disappears is reported; packets for it are dropped with their
/// reason; and all continues when it is back. Method: each in turn, with frames before and after.
#[test]
fn interfaces_come_and_go() {
    inside("interfaces_come_and_go", WAYS, || {
        make_wires();
        let mut forwarder = forwarder(rewriting(), BackEnd::PacketRings);
        let (mut a, mut b) = (end("a0"), end("b0"));
        frames_pass(&mut forwarder, &mut a, &mut b);
        let on_1 = |wanted: LinkEvent| move |event: &HostEvent| matches!(event, HostEvent::Link(Port(1), is) if *is == wanted);
        let lose = |forwarder: &mut Forwarder, a: &mut Link, reason: DropReason, length: usize| {
            let before = forwarder.counters().snapshot().of(reason);
            a.send_frame(&frame(1, length)).expect("room");
            a.flush().expect("sent");
            until("a frame is dropped", || {
                forwarder.tick(monotonic_now());
                forwarder.counters().snapshot().of(reason) > before
            });
        };
        ip("link set b1 down");
        await_event(&mut forwarder, on_1(LinkEvent::Down));
        lose(&mut forwarder, &mut a, DropReason::Down, 60);
        ip("link set b1 up");
        await_event(&mut forwarder, on_1(LinkEvent::Up));
        let mut b = {
            drop(b);
            end("b0")
        };
        frames_pass(&mut forwarder, &mut a, &mut b);
        ip("link set b1 mtu 600");
        await_event(&mut forwarder, on_1(LinkEvent::MtuChanged(600)));
        lose(&mut forwarder, &mut a, DropReason::TooLong, 615);
        for name in ["a0", "a1", "b0", "b1"] {
            ip(&format!("link set {name} mtu 9000"));
        }
        await_event(&mut forwarder, |event| matches!(event, HostEvent::Reopened(Port(1))));
        await_event_or_open(&mut forwarder, 9000);
        let (mut a, mut b) = (end("a0"), end("b0"));
        a.send_frame(&frame(5, 9014)).expect("room");
        a.flush().expect("sent");
        until("a long frame arrives", || {
            forwarder.tick(monotonic_now());
            take(&mut b).iter().any(|frame| frame.len() == 9014)
        });
        ip("link del b0");
        await_event(&mut forwarder, on_1(LinkEvent::Removed));
        lose(&mut forwarder, &mut a, DropReason::Gone, 60);
        ip("link add b0 type veth peer name b1");
        ip("link set b0 up");
        ip("link set b1 up");
        await_event(&mut forwarder, |event| matches!(event, HostEvent::Reopened(Port(1))));
        let mut b = end("b0");
        until("it is up", || {
            forwarder.tick(monotonic_now());
            forwarder.link_of(Port(1)).is_some_and(Link::is_up)
        });
        frames_pass(&mut forwarder, &mut a, &mut b);
    });
}

/// Ticks until both links were reopened for a larger MTU.
fn await_event_or_open(forwarder: &mut Forwarder, mtu: usize) {
    until("both are open", || {
        forwarder.tick(monotonic_now());
        let is_open = |port| forwarder.link_of(port).is_some_and(|link| link.payload_max() == mtu);
        is_open(Port(0)) && is_open(Port(1))
    });
}

/// Goal: a sleeping forwarder learns that a namespace at the other end was deleted, and forwards again when the
/// interface is back. Method: the far end in a namespace of its own, which is ended.
#[test]
fn deleted_namespaces_are_told() {
    inside("deleted_namespaces_are_told", WAYS, || {
        make_wires();
        let far = Namespace::new();
        ip(&format!("link set b0 netns {}", far.id()));
        let host = Server::spawn_thread().expect("a host");
        let forwarder = forwarder(rewriting(), BackEnd::PacketRings);
        let async_forwarder = AsyncForwarder::new(host.server(), forwarder).expect("registered");
        let mut events = async_forwarder.start().expect("started");
        drop(far);
        let mut next = |what: &str, is: &dyn Fn(&HostEvent) -> bool| {
            until(what, || {
                let mut event = pin!(events.next());
                let mut context = Context::from_waker(Waker::noop());
                match event.as_mut().poll(&mut context) {
                    Poll::Ready(event) => is(&event.expect("more").expect("an event")),
                    Poll::Pending => false,
                }
            });
        };
        next("it is gone", &|event| matches!(event, HostEvent::Link(Port(1), LinkEvent::Removed)));
        ip("link add b0 type veth peer name b1");
        ip("link set b0 up");
        ip("link set b1 up");
        next("it is back", &|event| matches!(event, HostEvent::Reopened(Port(1))));
        let (mut a, mut b) = (end("a0"), end("b0"));
        until("frames pass again", || {
            // The carrier comes up some time later.
            let _ = a.send_frame(&frame(3, 60));
            let _ = a.flush();
            !take(&mut b).is_empty()
        });
    });
}

/// Returns the command that runs a program in a namespace.
fn there(namespace: &Namespace, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["-t", &namespace.id().to_string(), "-n", "--", program]);
    command
}

const ROLE: &str = "VIGIE_FORWARD_ROLE";
/// The length of a stream, long enough that the kernel sends segments of 64 KiB.
const STREAM_BYTES: usize = 4 << 20;

/// Sends a stream, or receives one and answers its length.
fn play(role: &str) {
    if role == "server" {
        let listener = TcpListener::bind("10.9.8.2:7777").expect("a listener");
        println!("listening");
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(BOUND)).expect("set");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("bytes");
        assert!(bytes.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 251));
        stream.write_all(&bytes.len().to_be_bytes()).expect("an answer");
        return;
    }
    let mut stream = TcpStream::connect("10.9.8.2:7777").expect("a connection");
    stream.set_read_timeout(Some(BOUND)).expect("set");
    let bytes: Vec<u8> = (0..251).cycle().take(STREAM_BYTES).collect();
    stream.write_all(&bytes).expect("sent");
    stream.shutdown(Shutdown::Write).expect("shut");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(usize::from_be_bytes(answer), STREAM_BYTES);
}

/// Two processes in namespaces of their own, of which one sends a stream to the other.
struct Talk {
    server: Child,
    client: Child,
    _namespaces: [Namespace; 2],
}

impl Talk {
    /// Puts the far ends into namespaces, and starts. The named test must `play` when asked to.
    fn begin(test: &str) -> Self {
        let (left, right) = (Namespace::new(), Namespace::new());
        for (end, namespace, address) in
            [("a0", &left, "10.9.8.1/24"), ("b0", &right, "10.9.8.2/24")]
        {
            ip(&format!("link set {end} netns {}", namespace.id()));
            namespace.run(&format!("ip addr add {address} dev {end}"));
            namespace.run(&format!("ip link set {end} up"));
        }
        let role = |namespace: &Namespace, role: &str| {
            there(namespace, "env")
                .arg(format!("{ROLE}={role}"))
                .arg(env::current_exe().expect("this test's program"))
                .args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("another process")
        };
        let mut server = role(&right, "server");
        let mut said = BufReader::new(server.stdout.take().expect("its output")).lines();
        assert!(said.any(|line| line.expect("a line").contains("listening")));
        let client = role(&left, "client");
        Self { server, client, _namespaces: [left, right] }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        for child in [&mut self.server, &mut self.client] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Lets two processes communicate through a forwarder until they end.
fn a_stream_passes(test: &str, mut forwarder: Forwarder) -> Forwarder {
    let mut talk = Talk::begin(test);
    let mut ended = None;
    until("the client is done", || {
        for _ in 0..64 {
            forwarder.tick(monotonic_now());
        }
        ended = talk.client.try_wait().expect("waited");
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{:?}", forwarder.counters());
    forwarder
}

/// A pipeline that also verifies the checksums of TCP.
fn checking() -> PipelineBuilder {
    let model = StageModel::new("checks").sees(Sees::Everything);
    let checks = StageFn::new(model, |packet: &mut Packet, _| {
        if packet.verify() == Ok(Verified::Wrong) {
            Verdict::Drop(DropReason::ChecksumWrong)
        } else {
            Verdict::Pass
        }
    });
    Pipeline::builder().stage(checks).stage(cross())
}

/// Goal: a TCP stream between two kernels passes complete: segments that the sender left uncut are cut, and checksums
/// that it left out are right afterwards. Method: a stream of 4 MiB, and a stage that verifies.
#[test]
fn tcp_passes_with_what_its_sender_left_undone() {
    let test = "tcp_passes_with_what_its_sender_left_undone";
    inside(test, WAYS, || {
        if let Ok(role) = env::var(ROLE) {
            return play(&role);
        }
        make_wires();
        let link = |name: &str| {
            host::link(name).back_end(BackEnd::PacketRings).segments().receive_frames(64)
        };
        let forwarder = Forwarder::builder(checking().build().expect("a pipeline"))
            .port_with(Port(0), link("a1"), Segments::Cut)
            .port_with(Port(1), link("b1"), Segments::Cut)
            .build()
            .expect("a forwarder");
        let forwarder = a_stream_passes(test, forwarder);
        let counted = forwarder.counters().snapshot();
        let (checksum, segments) =
            (counted.of(DropReason::ChecksumWrong), counted.of(DropReason::Segments));
        assert_eq!((checksum, segments), (0, 0), "{counted}");
        assert!(counted.sent.packets > counted.received.packets, "something was cut: {counted}");
    });
}

/// Goal: the same over AF_XDP, where the kernel of the sender cuts the segments. Method: the same.
#[test]
#[ignore = "needs privilege: CAP_BPF in the first user namespace"]
fn tcp_passes_over_af_xdp() {
    let test = "tcp_passes_over_af_xdp";
    inside(test, PRIVILEGED, || {
        if let Ok(role) = env::var(ROLE) {
            return play(&role);
        }
        make_wires();
        let forwarder = a_stream_passes(test, forwarder(checking(), BackEnd::Xdp));
        let counted = forwarder.counters().snapshot();
        assert_eq!(counted.of(DropReason::ChecksumWrong), 0, "{counted}");
    });
}

/// Goal: refused segments are dropped and counted, and short ones pass. Method: a stream whose sender leaves segments
/// uncut, until some came.
#[test]
fn uncut_segments_are_refused_and_counted() {
    let test = "uncut_segments_are_refused_and_counted";
    inside(test, WAYS, || {
        if let Ok(role) = env::var(ROLE) {
            return play(&role);
        }
        make_wires();
        let mut forwarder = forwarder(checking(), BackEnd::PacketRings);
        let talk = Talk::begin(test);
        until("segments were refused, and packets passed", || {
            for _ in 0..64 {
                forwarder.tick(monotonic_now());
            }
            let counted = forwarder.counters().snapshot();
            counted.of(DropReason::Segments) > 2 && counted.sent.packets > 6
        });
        drop(talk);
    });
}

/// Goal: for a receiver that takes nothing, frames wait in the kernel or are dropped and counted, as configured, and
/// memory stays bounded. Method: a short send ring on an interface that is down behind a queue, so that nothing leaves,
/// with more frames than fit.
#[test]
fn slow_receivers_hold_up_or_lose_frames() {
    inside("slow_receivers_hold_up_or_lose_frames", WAYS, || {
        make_wires();
        for on_full in [OnFull::Wait, OnFull::Drop] {
            let pipeline = Pipeline::builder().stage(cross()).on_full(on_full);
            let small = |name: &str| link(name, BackEnd::PacketRings).send_frames(1);
            let mut forwarder = Forwarder::builder(pipeline.build().expect("a pipeline"))
                .port(Port(0), small("a1"))
                .port(Port(1), small("b1"))
                .waiting_packets(10)
                .batch(8)
                .build()
                .expect("a forwarder");
            let mut a = end("a0");
            let mut b = end("b0");
            let mut arrived = 0;
            for number in 0..2000 {
                a.send_frame(&frame(number, 60)).expect("room");
                a.flush().expect("sent");
                if number % 100 == 0 {
                    forwarder.tick(monotonic_now());
                    arrived += take(&mut b).len();
                }
                assert!(forwarder.waiting() <= 18, "{}", forwarder.waiting());
            }
            until("all that was taken has left", || {
                let moved = forwarder.tick(monotonic_now());
                let took = take(&mut b).len();
                arrived += took;
                moved == 0 && took == 0
            });
            let lost = forwarder.kernel_drops().expect("counters");
            let counted = forwarder.counters().snapshot();
            let arrived = u64::try_from(arrived).expect("small");
            assert_eq!(counted.received.packets + lost, 2000, "{on_full:?}: {counted}");
            assert_eq!(counted.received.packets, counted.sent.packets + counted.dropped_total());
            assert_eq!(arrived, counted.sent.packets);
            assert!(lost > 0, "the kernel's ring is smaller than what came");
            assert!(forwarder.drain(100));
        }
    });
}

/// Goal: the forwarder follows what AF_PACKET says of checksums. Method: a datagram of the kernel's own, whose checksum
/// is left out on a veth pair.
#[test]
fn left_out_checksums_are_told_by_the_kernel() {
    inside("left_out_checksums_are_told_by_the_kernel", WAYS, || {
        make_wires();
        ip("addr add 10.9.7.1/24 dev a0");
        ip("neigh replace 10.9.7.9 lladdr 02:00:00:00:00:09 dev a0");
        let mut forwarder = forwarder(checking(), BackEnd::PacketRings);
        let mut b = end("b0");
        let socket = std::net::UdpSocket::bind("10.9.7.1:0").expect("a socket");
        socket.send_to(b"hello there", "10.9.7.9:9").expect("sent");
        let mut seen = None;
        until("it arrives", || {
            forwarder.tick(monotonic_now());
            let _ = b.recv_each(1, |frame| seen = Some((frame.to_vec(), frame.checksum())));
            seen.as_ref().is_some_and(|(frame, _)| frame[12..14] == [8, 0])
        });
        let (frame, checksum) = seen.expect("seen");
        assert_ne!(checksum, Checksum::Missing);
        assert_eq!(Packet::new(Port(0), &frame).verify(), Ok(Verified::Right));
        assert_eq!(forwarder.counters().snapshot().of(DropReason::ChecksumWrong), 0);
    });
}
