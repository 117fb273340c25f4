//! The network processor in the kernel: the verifier accepts random programs, they do what the host does, and packets
//! really travel between namespaces. These tests need root, and are skipped without.

mod headerless;
#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
mod namespace;
mod traffic;

use std::{
    env,
    net::{IpAddr, UdpSocket},
    time::Duration,
};

use fastrand::Rng;
use vigie_detect::{Instant, clock::monotonic_now};
use vigie_forward::{
    bpf::{
        Assembler, AttachMode, Attachment, BpfMap, Condition, Generator, Helper, LoadedProgram,
        MapSpec, Program, ProgramKind, Register::*, Size, TCX_DROP, TCX_NEXT, TCX_REDIRECT,
        XDP_DROP, XDP_PASS, XDP_REDIRECT,
    },
    nic::{
        FollowError, NicConfig, NicCounters, NicError, NicPipeline, NicPipelineBuilder, PassAll,
    },
    packet::{Packet, Port},
    pipeline::{BuiltinStage, DropReason, Offload, Stage},
    stages::{Nat, NatRule, Rewrite, RouteStage, Ttl},
    tables::{Fib, Interface, NatEndpoint, NatTable, NatTuple, Route},
};
use vigie_via::link::{Capability, EtherType, HEADER_BYTES, Link, MacAddress};

use crate::{
    kit::child::{command_in, role, run as run_child},
    namespace::{Namespace, index, inside, run},
    traffic::{PORTS, borrowed, change_fib, frame, may_go_up, on_host, stages},
};

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

fn has(stages: &[Box<dyn Stage>], what: impl Fn(&BuiltinStage<'_>) -> bool) -> bool {
    stages.iter().any(|stage| matches!(stage.offload(), Offload::Builtin(stock) if what(&stock)))
}

fn reason(before: &NicCounters, after: &NicCounters) -> Option<DropReason> {
    let differs = |reason: &&DropReason| before.traffic.of(**reason) != after.traffic.of(**reason);
    DropReason::ALL.iter().find(differs).copied()
}

/// Three interfaces, for ports 0 to 2.
fn interfaces() -> [u32; 3] {
    // Without packets of the kernel's own, which would count.
    run("for i in 0 1 2; do ip link add p$i type veth peer name q$i; \
         for n in p$i q$i; do ip link set $n addrgenmode none up; done; done");
    ["p0", "p1", "p2"].map(index)
}

/// Maps that are created quickly.
fn small() -> NicConfig {
    NicConfig::new().ports(3).routes(128).neighbours(128).flows(128)
}

/// The outcomes so far, so that a test that covers nothing fails.
#[derive(Debug, Default)]
struct Seen {
    pipelines: u64,
    packets: u64,
    sent: u64,
    dropped: u64,
    went_up: u64,
}

/// The number of an action, as a test run returns it.
fn action(number: i32) -> u32 {
    number.cast_unsigned()
}

/// Whether the kernel runs a program of tcx on a frame in a test: not if its IP header is cut off.
fn is_testable(frame: &[u8]) -> bool {
    frame.len() >= HEADER_BYTES + if frame[12..14] == [0x86, 0xdd] { 40 } else { 20 }
}

fn compare_in_kernel(seed: u64, place: AttachMode, interfaces: [u32; 3], seen: &mut Seen) {
    let [up, redirected, drop] = match place {
        AttachMode::Tcx => [TCX_NEXT, TCX_REDIRECT, TCX_DROP].map(action),
        _ => [XDP_PASS, XDP_REDIRECT, XDP_DROP].map(action),
    };
    let (mut host, fib) = stages(seed);
    // Its time is the kernel's own.
    if has(&host, |stock| matches!(stock, BuiltinStage::Meter(_))) {
        return;
    }
    let mut builder = NicPipeline::builder().config(small()).attach_modes(&[place]);
    for (port, interface) in PORTS.into_iter().zip(interfaces) {
        builder = builder.port(port, interface);
    }
    let mut nic = match builder.start(&borrowed(&host)) {
        Ok(nic) => nic,
        Err(NicError::Compile(_)) => return,
        Err(error) => panic!("pipeline {seed}: {error}"),
    };
    seen.pipelines += 1;
    let translates = has(&host, |stock| matches!(stock, BuiltinStage::Nat(_)));
    let copies = has(&host, |stock| matches!(stock, BuiltinStage::Mirror(_)));
    let mut rng = Rng::with_seed(seed ^ 0x5eed);
    for number in 0..60 {
        let frame = frame(&mut rng);
        let ingress = PORTS[rng.usize(..3)];
        if place == AttachMode::Tcx && !is_testable(&frame) {
            continue;
        }
        let before = nic.counters().expect("counters");
        let program = nic.program(ingress).expect("a program");
        let tested = program.test_run(&frame, 0, 1).expect("run");
        let after = nic.counters().expect("counters");
        let made = on_host(&mut host, ingress, &frame, None, Instant::from_nanos(1_000_000_000));
        let said =
            || format!("pipeline {seed}, packet {number} {frame:02x?}: {made:?}, {tested:02x?}");
        seen.packets += 1;
        match tested.action {
            action if action == up => {
                seen.went_up += 1;
                assert_eq!(tested.frame, frame, "{}", said());
                assert!(may_go_up(&frame, translates) || made.needs_host, "{}", said());
            }
            action if action == redirected && made.dropped.is_none() => {
                seen.sent += 1;
                assert_eq!(tested.frame, made.bytes, "{}", said());
                let count = after.traffic.sent.packets - before.traffic.sent.packets;
                assert_eq!(count, 1 + u64::from(made.copy.is_some()), "{}", said());
            }
            action if action == drop || action == redirected => {
                seen.dropped += 1;
                assert_eq!(made.dropped, reason(&before, &after), "{}", said());
                assert!(copies || action == drop, "{}", said());
            }
            other => panic!("{other}: {}", said()),
        }
        if let Some(fib) = &fib
            && rng.bool()
        {
            change_fib(&mut rng, fib);
        }
        nic.follow().expect("room");
    }
}

/// Goal: the verifier accepts every program that the compiler makes, and the kernel does with it what the host does.
/// Method: random pipelines and packets, by test runs.
#[test]
fn the_kernel_does_what_stages_do() {
    inside("the_kernel_does_what_stages_do", || {
        let interfaces = interfaces();
        let first = number("VIGIE_FUZZ_SEED").unwrap_or(1) << 32;
        let end = number("VIGIE_FUZZ_SECONDS")
            .map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let mut seen = [Seen::default(), Seen::default()];
        for seed in first.. {
            // Every third program at tcx.
            let is_tcx = seed.is_multiple_of(3);
            let place = if is_tcx { AttachMode::Tcx } else { AttachMode::Generic };
            compare_in_kernel(seed, place, interfaces, &mut seen[usize::from(is_tcx)]);
            if end.map_or(seed >= first + 180, |end| Instant::now() >= end) {
                break;
            }
        }
        println!("{seen:?}");
        for seen in seen {
            assert!(seen.sent > 100 && seen.dropped > 100 && seen.went_up > 50, "{seen:?}");
        }
    });
}

/// Goal: three capabilities suffice, and if the third is missing it is named. Method: as above, in a process with no
/// others; then without the third.
#[test]
fn three_rights_suffice() {
    const TEST: &str = "three_rights_suffice";
    inside(TEST, || {
        let interfaces_of_child = || ["p0", "p1", "p2"].map(index);
        match role(TEST).as_deref() {
            Some("three") => {
                let mut seen = Seen::default();
                for seed in (2 << 32)..(2 << 32) + 40 {
                    compare_in_kernel(seed, AttachMode::Generic, interfaces_of_child(), &mut seen);
                    compare_in_kernel(seed, AttachMode::Tcx, interfaces_of_child(), &mut seen);
                }
                assert!(seen.pipelines > 10, "{seen:?}");
                return;
            }
            Some(_) => {
                let [p0, ..] = interfaces_of_child();
                let ttl = Ttl::new();
                for mode in AttachMode::ALL {
                    let builder = NicPipeline::builder().port(Port(0), p0).attach_modes(&[mode]);
                    let error = builder.start(&[&ttl]).expect_err("no right");
                    assert_eq!(error.missing_capability(), Some(Capability::PerfMon), "{error}");
                }
                // Programs that read no headers need only two.
                let rewrite = Rewrite::new().source_mac(MACS[0]).send(Port(0));
                NicPipeline::builder()
                    .port(Port(0), p0)
                    .start(&[&rewrite])
                    .map(drop)
                    .expect("started");
                return;
            }
            None => {}
        }
        if run("setpriv --bounding-set -all true && echo yes || echo no") != "yes\n" {
            eprintln!("SKIPPED: three_rights_suffice needs `setpriv`");
            return;
        }
        interfaces();
        for (name, set) in
            [("three", "-all,+bpf,+net_admin,+perfmon"), ("two", "-all,+bpf,+net_admin")]
        {
            let program = ["setpriv", "--bounding-set", set, "--inh-caps", "-all"];
            run_child(command_in(name, &program, TEST), TEST);
        }
    });
}

const MACS: [MacAddress; 4] = [
    MacAddress([2, 0, 0, 0, 0, 0xa]),
    MacAddress([2, 0, 0, 0, 0, 0xf]),
    MacAddress([2, 0, 0, 0, 1, 0xf]),
    MacAddress([2, 0, 0, 0, 0, 0xb]),
];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A sender and a receiver in namespaces of their own, and the interfaces here between them: f0 and f1.
struct Line {
    sender: Namespace,
    receiver: Namespace,
    /// So that frames redirected to them arrive.
    pass: Vec<PassAll>,
}

impl Line {
    fn new() -> Self {
        let (sender, receiver) = (Namespace::new(), Namespace::new());
        let [a, f, g, b] = MACS;
        run(&format!(
            "ip link set lo up; \
             ip link add f0 address {f} type veth peer name a0 address {a} netns {}; \
             ip link add f1 address {g} type veth peer name b0 address {b} netns {}; \
             ip addr add 10.1.0.1/24 dev f0; ip addr add 10.2.0.1/24 dev f1; \
             ip link set f0 addrgenmode none up; \
             ip link set f1 addrgenmode none up",
            sender.id(),
            receiver.id()
        ));
        sender.run(
            "ip addr add 10.1.0.2/24 dev a0; ip link set a0 addrgenmode none up; ip route add default via 10.1.0.1",
        );
        receiver.run(
            "ip addr add 10.2.0.2/24 dev b0; ip link set b0 addrgenmode none up; ip route add default via 10.2.0.1",
        );
        let pass = |namespace: &Namespace, name: &str| {
            let found = namespace.run(&format!("ip -o link show dev {name}"));
            let interface = found.split(':').next().expect("an index").parse().expect("a number");
            let file = std::fs::File::open(format!("/proc/{}/ns/net", namespace.id()));
            PassAll::inside(std::os::fd::AsFd::as_fd(&file.expect("a namespace")), interface)
        };
        let pass =
            vec![pass(&sender, "a0").expect("attached"), pass(&receiver, "b0").expect("attached")];
        Self { sender, receiver, pass }
    }

    fn interface_of_receiver(&self) -> u32 {
        let found = self.receiver.run("ip -o link show dev b0");
        found.split(':').next().expect("an index").parse().expect("a number")
    }

    fn nic(config: NicConfig) -> NicPipelineBuilder {
        let builder = NicPipeline::builder().config(config);
        builder.port(Port(0), index("f0")).port(Port(1), index("f1"))
    }

    /// Sends a handmade UDP datagram from the sender's interface.
    fn send(&self, to: (&str, u16), from: (&str, u16), text: &[u8]) {
        let frame = datagram(to, from, text);
        self.sender.enter(|| send_frame("a0", &frame));
    }

    /// Runs `send` while a socket of the receiver waits; returns what it gets, and the sender's address.
    fn received(&self, address: &str, send: impl FnOnce() + Send) -> Option<(Vec<u8>, String)> {
        self.receiver.enter(|| {
            let socket = UdpSocket::bind(address).expect("bound");
            socket.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
            send();
            let mut bytes = [0; 2000];
            let (length, from) = socket.recv_from(&mut bytes).ok()?;
            Some((bytes[..length].to_vec(), from.to_string()))
        })
    }
}

/// Sends a frame of IPv4 from an interface of this thread's namespace.
fn send_frame(interface: &str, frame: &[u8]) {
    let link = Link::builder(interface).ether_type(EtherType::IPV4).open();
    let mut link = link.expect("a link");
    let to = MacAddress(frame[..6].try_into().expect("six"));
    link.send(to, &[&frame[14..]]).expect("room");
    link.flush().expect("sent");
}

fn datagram(to: (&str, u16), from: (&str, u16), text: &[u8]) -> Vec<u8> {
    let mut frame = [MACS[1].0, MACS[0].0].concat();
    frame.extend([8, 0, 0x45, 0]);
    let udp = u16::try_from(8 + text.len()).expect("short");
    frame.extend((20 + udp).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    for (address, _) in [from, to] {
        let IpAddr::V4(address) = ip(address) else { panic!("version 4") };
        frame.extend(address.octets());
    }
    frame.extend(from.1.to_be_bytes());
    frame.extend(to.1.to_be_bytes());
    frame.extend(udp.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(text);
    let mut packet = Packet::new(Port(0), &frame);
    packet.fill_checksums().expect("UDP");
    packet.bytes().to_vec()
}

fn router() -> Fib {
    let fib = Fib::default();
    fib.set_interface(Port(0), Some(Interface::new(MACS[1], 1500)));
    fib.set_interface(Port(1), Some(Interface::new(MACS[2], 1500)));
    fib.set_route("10.1.0.0/24".parse().expect("a prefix"), Some(Route::on_link(Port(0))));
    fib.set_route("10.2.0.0/24".parse().expect("a prefix"), Some(Route::on_link(Port(1))));
    fib.set_neighbour(Port(0), ip("10.1.0.2"), Some(MACS[0]));
    fib.set_neighbour(Port(1), ip("10.2.0.2"), Some(MACS[3]));
    fib
}

/// Goal: datagrams are routed between namespaces by the program, in each attach mode, while the
/// kernel's own forwarding is off; ARP goes up. Method: real sockets behind veth pairs.
#[test]
fn datagrams_are_routed() {
    inside("datagrams_are_routed", || {
        run("sysctl -q net.ipv4.ip_forward=0 2>/dev/null || true");
        let line = Line::new();
        let fib = router();
        let stages: [&dyn Stage; 2] = [&Ttl::new(), &RouteStage::new(fib.clone())];
        for place in AttachMode::ALL {
            let up = [
                DropReason::NotIp,
                DropReason::NoRoute,
                DropReason::NoNeighbour,
                DropReason::TtlExpired,
            ];
            let builder = Line::nic(NicConfig::new().pass_up(&up)).attach_modes(&[place]);
            let nic = builder.start(&stages).unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(nic.attach_mode(Port(0)), Some(place));
            let got = line.received("10.2.0.2:4000", || {
                line.send(("10.2.0.2", 4000), ("10.1.0.2", 5000), b"routed");
            });
            let wanted = (b"routed".to_vec(), "10.1.0.2:5000".to_owned());
            assert_eq!(got, Some(wanted), "{place}: {:?}", nic.counters());
            let counters = nic.counters().expect("counters");
            assert_eq!(counters.traffic.sent.packets, 1, "{place}: {counters:?}");
            // The router itself is asked for its address: by the kernel.
            line.sender.run("ip neigh flush dev a0");
            let asked = line.sender.enter(|| {
                let socket = UdpSocket::bind("10.1.0.2:0").expect("bound");
                socket.send_to(b"to the router", "10.1.0.1:9").expect("sent");
                run("for i in $(seq 40); do ip neigh show 10.1.0.1 | grep -q lladdr && break; \
                     sleep 0.05; done; ip neigh show 10.1.0.1")
            });
            assert!(asked.contains(&MACS[1].to_string()), "{place}: {asked}");
            assert!(nic.counters().expect("counters").passed_up > 0, "{place}");
        }
    });
}

/// Goal: the program translates flows that the host has begun, in both directions, with checksums that sockets accept; the
/// host learns that they are in use, also before it would evict one. Method: a datagram out, its answer back; then a flow for which there is no
/// port.
#[test]
fn datagrams_are_translated() {
    inside("datagrams_are_translated", || {
        let line = Line::new();
        let table = NatTable::builder().ports(3000, 3000).seed(1).build();
        let from = "10.1.0.0/24".parse().expect("a prefix");
        let external = ip("10.2.0.77");
        let nat =
            Nat::new(table.clone()).rule(NatRule::Source { ingress: Port(0), from, external });
        let stages: [&dyn Stage; 3] = [&nat, &Ttl::new(), &RouteStage::new(router())];
        let mut nic = Line::nic(NicConfig::new()).start(&stages).expect("started");
        let send = || line.send(("10.2.0.2", 4000), ("10.1.0.2", 5000), b"hello");
        send();
        run("sleep 0.1");
        // The flow is unknown: the packet went up.
        assert_eq!(nic.counters().expect("counters").passed_up, 1);
        let mut host =
            Packet::new(Port(0), &datagram(("10.2.0.2", 4000), ("10.1.0.2", 5000), b"hello"));
        let now = monotonic_now();
        assert!(matches!(
            (Nat::new(table.clone()).rule(nat.rules()[0])).process(&mut host, now),
            vigie_forward::pipeline::Verdict::Pass
        ));
        assert_eq!(nic.follow().expect("room"), 1);
        let got = line.received("10.2.0.2:4000", send);
        assert_eq!(got, Some((b"hello".to_vec(), "10.2.0.77:3000".to_owned())));
        // The answer comes from the other side.
        let answer = {
            let mut packet =
                Packet::new(Port(1), &datagram(("10.2.0.77", 3000), ("10.2.0.2", 4000), b"back"));
            packet.set_destination_mac(MACS[2]);
            packet.bytes().to_vec()
        };
        let arrived = line.sender.enter(|| {
            let socket = UdpSocket::bind("10.1.0.2:5000").expect("bound");
            socket.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
            line.receiver.enter(|| send_frame("b0", &answer));
            let mut bytes = [0; 100];
            socket.recv(&mut bytes).map(|length| bytes[..length].to_vec()).ok()
        });
        assert_eq!(arrived, Some(b"back".to_vec()), "{:?}", nic.counters());
        let original = table.flows()[0].original;
        let source = NatEndpoint::new(original.source.address, 5001);
        let more = NatTuple { source, ..original };
        assert!(table.open(more, (Some(external), None), None, now).is_err());
        assert_eq!((table.flows()[0].original, table.usage().evicted), (original, 0));
        assert_eq!(nic.refresh(now, 100).expect("read"), 2);
        assert_eq!(nic.refresh(now, 100).expect("read"), 0);
        // A flow that has ended is not translated any more.
        assert_eq!(table.expire(now + Duration::from_secs(100_000)), 1);
        assert_eq!(nic.follow().expect("room"), 1);
        let before = nic.counters().expect("counters").passed_up;
        send();
        run("sleep 0.1");
        assert_eq!(nic.counters().expect("counters").passed_up, before + 1);
    });
}

/// Checks that a port whose interface is gone is left out when the programs are attached again.
fn is_left_out(nic: &mut NicPipeline) {
    nic.pause();
    assert_eq!(nic.lost_ports(), []);
    nic.resume().expect("the other one is there");
    assert_eq!((nic.lost_ports(), nic.attach_mode(Port(1))), (vec![Port(1)], None));
    assert!(nic.attach_mode(Port(0)).is_some());
}

/// Goal: removed interfaces, deleted namespaces and full maps are errors or counted drops, and forwarding continues when
/// they are back. Method: each of them, with live traffic.
#[test]
fn interfaces_go_and_maps_fill() {
    inside("interfaces_go_and_maps_fill", || {
        let line = Line::new();
        let fib = router();
        let route = RouteStage::new(fib.clone());
        let stages: [&dyn Stage; 2] = [&Ttl::new(), &route];
        let mut nic = Line::nic(NicConfig::new().routes(3)).start(&stages).expect("started");
        let send = || line.send(("10.2.0.2", 4000), ("10.1.0.2", 5000), b"hello");
        assert!(line.received("10.2.0.2:4000", send).is_some());
        let dropped =
            |nic: &NicPipeline, reason| nic.counters().expect("counters").traffic.of(reason);
        // Closed by the code that watches it, and opened again.
        nic.close(Port(1)).expect("closed");
        send();
        run("sleep 0.1");
        assert_eq!(dropped(&nic, DropReason::Gone), 1);
        nic.open(Port(1)).expect("open");
        assert!(line.received("10.2.0.2:4000", send).is_some());
        // The outgoing interface takes only short packets now.
        fib.set_interface(Port(1), Some(Interface::new(MACS[2], 30)));
        nic.follow().expect("room");
        send();
        run("sleep 0.1");
        assert_eq!(dropped(&nic, DropReason::TooLong), 1);
        fib.set_interface(Port(1), Some(Interface::new(MACS[2], 1500)));
        // More routes than the map holds: the programs are detached, so that no packet is misrouted.
        for number in 0..3 {
            fib.set_route(
                format!("10.9.{number}.0/24").parse().expect("a prefix"),
                Some(Route::on_link(Port(1))),
            );
        }
        let full = nic.follow().expect_err("no room");
        assert!(
            matches!(full, NicError::Follow(FollowError::Full { table: "routes", entries_max: 3 })),
            "{full}"
        );
        assert_eq!(nic.attach_mode(Port(0)), None);
        for number in 0..3 {
            fib.set_route(format!("10.9.{number}.0/24").parse().expect("a prefix"), None);
        }
        nic.resume().expect("room again");
        assert!(line.received("10.2.0.2:4000", send).is_some());
        // The receiver's namespace is deleted, and with it the pair.
        let Line { sender, receiver, pass } = line;
        drop(receiver);
        let is_lost = (0..100).any(|_| {
            run("sleep 0.05");
            nic.lost_ports() == [Port(1)]
        });
        assert!(is_lost, "{nic:?}");
        let frame = datagram(("10.2.0.2", 4000), ("10.1.0.2", 5000), b"hello");
        sender.enter(|| send_frame("a0", &frame));
        run("sleep 0.1");
        assert_eq!(dropped(&nic, DropReason::Gone), 2);
        assert!(matches!(nic.open(Port(1)), Err(NicError::Port { port: Port(1), .. })));
        is_left_out(&mut nic);
        // Another one takes its place.
        let receiver = Namespace::new();
        run(&format!(
            "ip link add f1 address {} type veth peer name b0 address {} netns {}; ip link set f1 up",
            MACS[2],
            MACS[3],
            receiver.id()
        ));
        receiver.run("ip addr add 10.2.0.2/24 dev b0; ip link set b0 up");
        nic.pause();
        nic.replace(Port(1), index("f1")).expect("it is there");
        assert_eq!((nic.lost_ports(), nic.attach_mode(Port(1))), (vec![], None));
        nic.resume().expect("both are there");
        let there = Line { sender, receiver, pass };
        let interface = there.interface_of_receiver();
        let _peer = there.receiver.enter(|| PassAll::new(interface)).expect("attached");
        let send = || there.send(("10.2.0.2", 4000), ("10.1.0.2", 5000), b"hello");
        there.received("10.2.0.2:4000", send).expect("it goes on");
    });
}

/// Goal: tables change at full rate without a lost packet. Method: live frames through the program, while routes,
/// neighbours and a flow's next hop change all the time; every frame arrives at the other end.
#[test]
fn changes_lose_nothing() {
    inside("changes_lose_nothing", || {
        let mut line = Line::new();
        let fib = router();
        let stages: [&dyn Stage; 2] = [&Rewrite::new(), &RouteStage::new(fib.clone())];
        let mut nic = Line::nic(NicConfig::new()).start(&stages).expect("started");
        // In place of the program that passes everything: one that counts IPv4 frames.
        line.pass.pop();
        let counter = LoadedProgram::load(&counting()).expect("loaded");
        let interface = line.interface_of_receiver();
        let attached =
            line.receiver.enter(|| Attachment::new(&counter, interface, AttachMode::Native));
        let _attached = attached.expect("attached");
        let frame = datagram(("10.2.0.2", 4000), ("10.1.0.2", 5000), b"hello");
        let rounds = 6;
        let program = nic.program(Port(0)).expect("a program");
        let ingress = index("f0");
        let feeder = std::thread::scope(|scope| {
            let feeder = scope.spawn(|| {
                let generator = Generator::new(&program, &frame, ingress);
                (0..rounds).try_for_each(|_| generator.burst(65_536))
            });
            let mut changes = 0_u32;
            while !feeder.is_finished() {
                let router = Route::via(Port(1), ip("10.2.0.2"));
                let route =
                    if changes.is_multiple_of(2) { router } else { Route::on_link(Port(1)) };
                fib.set_route("10.2.0.0/24".parse().expect("a prefix"), Some(route));
                let shorter = changes.is_multiple_of(3).then_some(route);
                fib.set_route("10.2.0.2/32".parse().expect("a prefix"), shorter);
                let other = changes.is_multiple_of(5).then_some(MACS[0]);
                fib.set_neighbour(Port(1), ip("10.2.0.9"), other);
                nic.follow().expect("room");
                changes += 1;
            }
            println!("{changes} changes of up to three entries");
            assert!(changes > 100, "{changes}");
            feeder.join().expect("no panic")
        });
        feeder.expect("frames");
        let counters = nic.counters().expect("counters");
        assert_eq!(counters.traffic.sent.packets, rounds * 65_536, "{counters:?}");
        let count = counter.maps()[0].value(&[0; 4]).expect("a value");
        let count: u64 = count.as_chunks::<8>().0.iter().map(|one| u64::from_ne_bytes(*one)).sum();
        assert_eq!(count, rounds * 65_536, "{counters:?}");
    });
}

/// Counts frames of IPv4, and drops all.
fn counting() -> Program {
    let mut a = Assembler::new("counting", ProgramKind::Xdp);
    let counts = a.map(MapSpec::per_cpu_array(8, 1));
    let end = a.label();
    a.load(Size::Word, R2, R1, 0).load(Size::Word, R3, R1, 4).set(R4, R2).add(R4, 14);
    a.branch(Condition::Greater, R4, R3, end).load(Size::Half, R4, R2, 12);
    a.branch(Condition::NotEqual, R4, i32::from(0x0800_u16.to_be()), end);
    a.store(Size::Word, R10, -4, 0).set(R2, R10).add(R2, -4).load_map(R1, counts);
    a.call(Helper::MapLookup).branch(Condition::Equal, R0, 0, end);
    a.load(Size::Double, R1, R0, 0).add(R1, 1).store(Size::Double, R0, 0, R1);
    a.bind(end).set(R0, XDP_DROP).exit();
    a.finish().expect("a program")
}
