//! Routes with several hops: which way flows take, and what happens when a hop goes.
//!
//! ```text
//!   client  c0 ── ra  router  rb ── s0  server  192.0.2.5, 2001:db8::5 on lo
//!                             rc ── t0  other   192.0.2.5, 2001:db8::5 on lo
//! ```
//! Both ends say which one they are, so that each flow tells its way.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    ops::Range,
    thread,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};

use crate::{
    instance::{BOUND, Folder, counter, report, run},
    network::{Host, Network, call, with_network},
    paths::{forward, has_programs},
};

/// The address and the port of both ends. All ports are fixed, so that the ways are the same in each run.
const TO: &str = "192.0.2.5";
const TO_V6: &str = "2001:db8::5";
const PORT: u16 = 7000;
/// The ports of flows that begin when both hops live, and of those that begin later.
const FIRST: Range<u16> = 20_000..20_200;
const LATER: Range<u16> = 21_000..21_050;

/// Answers by UDP and TCP with a name. Ends with the test.
fn serve(host: &Host, name: &'static str) {
    for to in [TO, TO_V6] {
        let to: IpAddr = to.parse().expect("an address");
        let (datagrams, streams) = host.inside(|| {
            let datagrams = UdpSocket::bind((to, PORT)).expect("the port");
            (datagrams, TcpListener::bind((to, PORT)).expect("the port"))
        });
        thread::spawn(move || {
            let mut message = [0; 100];
            while let Ok((count, from)) = datagrams.recv_from(&mut message) {
                let answer = format!("{} {name}", String::from_utf8_lossy(&message[..count]));
                drop(datagrams.send_to(answer.as_bytes(), from));
            }
        });
        thread::spawn(move || {
            for stream in streams.incoming() {
                drop(stream.map(|mut stream| stream.write_all(name.as_bytes())));
            }
        });
    }
}

/// Adds the second way, and the end of each.
fn fork(network: &Network) -> Host {
    let other = Host::new();
    network.wire("rc", "10.3.0.1/24", &other, "t0", "10.3.0.2/24");
    other.run("ip route add default via 10.3.0.1");
    for (host, far, near, net) in
        [(&network.server, "s0", "rb", "fd02"), (&other, "t0", "rc", "fd03")]
    {
        network.router.run(&format!("ip addr add {net}::1/64 dev {near} nodad"));
        host.run(&format!("ip addr add {net}::2/64 dev {far} nodad"));
        host.run(&format!("ip route add default via {net}::1"));
        host.run(&format!("ip addr add {TO}/32 dev lo; ip addr add {TO_V6}/128 dev lo nodad"));
    }
    network.router.run("ip addr add fd01::1/64 dev ra nodad");
    network.client.run("ip addr add fd01::2/64 dev c0 nodad; ip route add default via fd01::1");
    serve(&network.server, "server");
    serve(&other, "other");
    other
}

const WAYS: &str = "ip route add 192.0.2.0/24 nexthop via 10.2.0.2 weight 3 nexthop via 10.3.0.2; \
     ip route add 2001:db8::/64 nexthop via fd02::2 weight 3 nexthop via fd03::2";

/// Calls from a fixed port. Returns who answers.
fn call_from(network: &Network, port: u16, to: &str) -> String {
    let from: IpAddr = if to == TO { [0; 4].into() } else { [0; 16].into() };
    let socket = network.client.inside(|| UdpSocket::bind((from, port)).expect("the port"));
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
    if to == TO { call(&socket, TO, PORT) } else { call(&socket, "[2001:db8::5]", PORT) }
}

/// Connects from a fixed port. Returns who answers.
fn connect_from(network: &Network, port: u16) -> String {
    let mut stream = network.client.inside(|| {
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&stream, true).expect("a socket");
        bind(&stream, &SocketAddr::from(([0; 4], port))).expect("the port");
        connect(&stream, &SocketAddr::new(TO.parse().expect("one"), PORT)).expect("it listens");
        TcpStream::from(stream)
    });
    stream.set_read_timeout(Some(BOUND)).expect("a socket");
    let mut name = String::new();
    stream.read_to_string(&mut name).expect("an answer");
    name
}

/// The end of each flow: of datagrams of both versions, and of connections.
type Ways = BTreeMap<(&'static str, u16), String>;

/// Uses all flows, those of datagrams several times, which then must have one end.
fn ways(network: &Network, ports: Range<u16>) -> Ways {
    let mut ways = Ways::new();
    for port in ports {
        for (kind, to) in [("datagrams", TO), ("datagrams of IPv6", TO_V6)] {
            let ends = [(); 3].map(|()| call_from(network, port, to));
            assert!(ends.iter().all(|end| *end == ends[0]), "{kind} of {port} went to {ends:?}");
            let [end, ..] = ends;
            ways.insert((kind, port), end);
        }
        ways.insert(("a connection", port), connect_from(network, port));
    }
    ways
}

/// Checks a split of 3 to 1.
fn check_split(ways: &Ways) {
    for kind in ["datagrams", "datagrams of IPv6", "a connection"] {
        let of_kind = ways.iter().filter(|((one, _), _)| *one == kind);
        let by_first = of_kind.filter(|(_, end)| *end == "server").count();
        // Three quarters of 200, and five times what they deviate by chance.
        assert!((150 - 30..=150 + 30).contains(&by_first), "{by_first} of 200 {kind}");
    }
}

/// The datagrams and segments of TCP that have reached a host so far.
fn arrived(host: &Host) -> u64 {
    let (snmp, snmp6) = host.inside(|| {
        let read = |name| {
            std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).expect("counters")
        };
        (read("snmp"), read("snmp6"))
    });
    let of = |protocol: &str, name: &str| {
        let mut lines = snmp.lines().filter_map(|line| line.strip_prefix(protocol));
        let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
        let at = names.split_whitespace().position(|one| one == name).expect("it is counted");
        values.split_whitespace().nth(at).and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    let datagrams6 = snmp6.lines().find_map(|line| line.strip_prefix("Udp6InDatagrams"));
    let datagrams6 = datagrams6.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0);
    datagrams6 + of("Udp:", "InDatagrams") + of("Tcp:", "InSegs")
}

/// Checks that the counters of hops are what has reached both ends since the router's start, and returns the packets of the host and of the
/// program. The last packets may still be on their way.
#[track_caller]
fn check_counters(folder: &Folder, ends: [(&str, &Host, u64); 2]) -> (u64, u64) {
    let mut tries = BOUND.as_millis() / 50;
    loop {
        let report = report(&folder.path("stats"));
        let hops = report["flows"][0]["hops"].as_array().expect("a list").clone();
        let sum = |name: &str, interface: Option<&str>| -> u64 {
            let hops =
                hops.iter().filter(|hop| interface.is_none_or(|one| hop["interface"] == one));
            hops.map(|hop| hop[name].as_u64().expect("a number")).sum()
        };
        let counted = |near| sum("host_packets", Some(near)) + sum("nic_packets", Some(near));
        let pairs = ends.map(|(near, far, before)| (counted(near), arrived(far) - before));
        if pairs.iter().all(|(counted, arrived)| counted == arrived && *arrived > 0) {
            let bytes = sum("host_bytes", None) + sum("nic_bytes", None);
            let packets = pairs[0].0 + pairs[1].0;
            assert!((60 * packets..200 * packets).contains(&bytes), "{bytes} of {packets}");
            return (sum("host_packets", None), sum("nic_packets", None));
        }
        assert!(tries > 0, "{pairs:?}\n{report:#}");
        tries -= 1;
        thread::park_timeout(Duration::from_millis(50));
    }
}

/// Calls from a port until another end answers.
fn until_moved(network: &Network, port: u16, end: &str) {
    while call_from(network, port, TO) != end {}
}

/// Returns a port whose datagrams end there.
fn port_to(ways: &Ways, name: &str) -> u16 {
    let found = ways.iter().find(|((kind, _), end)| *kind == "datagrams" && *end == name);
    found.map(|((_, port), _)| *port).expect("one")
}

/// Goal: the flows of a route with two hops of weights 3 and 1 are split so, each takes one way, and when a hop's link goes down all go by the
/// other, new ones too; when it is up again, all are where they were; the ways are the same by the host and by a program; and as many packets are
/// counted for each hop as its end gets. Method: 600 flows of UDP and TCP, of both versions of IP, to two hosts with the same address, with
/// each hop down once.
#[test]
fn flows_are_spread() {
    const TEST: &str = "hops::flows_are_spread";
    with_network(TEST, |network| {
        let other = fork(network);
        network.router.run(WAYS);
        let mut first = None;
        for path in ["af-packet", "tcx"] {
            if path == "tcx" && !has_programs(TEST) {
                continue;
            }
            let folder = Folder::new();
            let router = forward(network, &folder, &["l3", "ra", "rb", "rc", "--path", path]);
            let far = [("rb", &network.server), ("rc", &other)];
            let far = far.map(|(near, host)| (near, host, arrived(host)));
            let before = ways(network, FIRST);
            check_split(&before);
            let (by_host, by_program) = check_counters(&folder, far);
            assert_eq!(path == "tcx", by_program > 1_000, "{by_program} and {by_host}");
            let first = first.get_or_insert_with(|| before.clone());
            assert_eq!(*first, before, "{path}");
            for (interface, gone, left) in [("rb", "server", "other"), ("rc", "other", "server")] {
                network.router.run(&format!("ip link set {interface} down"));
                until_moved(network, port_to(&before, gone), left);
                let mut all = ways(network, FIRST);
                all.extend(ways(network, LATER));
                assert!(all.values().all(|end| end == left), "{path}: {all:?}");
                network.router.run(&format!("ip link set {interface} up"));
                // The kernel removes addresses and routes of IPv6 with a link.
                let net = if interface == "rb" { "fd02" } else { "fd03" };
                network.router.run(&format!("ip addr replace {net}::1/64 dev {interface} nodad"));
                network.router.run(
                    "ip route replace 2001:db8::/64 nexthop via fd02::2 weight 3 nexthop via fd03::2",
                );
                until_moved(network, port_to(&before, gone), gone);
                let moved = |((kind, _), end): (&(&str, u16), &String)| {
                    *kind == "datagrams of IPv6" && end == gone
                };
                let (&(_, port), _) = before.iter().find(|one| moved(*one)).expect("one");
                while call_from(network, port, TO_V6) != gone {}
                assert_eq!(ways(network, FIRST), before, "{path}");
            }
            if path == "tcx" {
                let by_program = counter(&folder.path("stats"), "l3", "nic: sent_packets");
                assert!(by_program > 4_000, "{by_program}");
            }
            assert_eq!(router.end().code(), 0);
        }
    });
}

/// Goal: flows leave a router that does not answer although its link is up, and return when it does; a group of next hops that routes name by
/// number is followed, also when only the group changes; a flow that moves between host and program stays on its way. Method: the address of one router is removed and
/// added again; then a group of both, and of one.
#[test]
fn silent_hops_are_left() {
    const TEST: &str = "hops::silent_hops_are_left";
    with_network(TEST, |network| {
        let _other = fork(network);
        network.router.run(
            "ip nexthop add id 1 via 10.2.0.2 dev rb; ip nexthop add id 2 via 10.3.0.2 dev rc; \
             ip nexthop add id 10 group 1,3/2,1; ip route add 192.0.2.0/24 nhid 10",
        );
        let folder = Folder::new();
        let has_program = has_programs(TEST);
        let path = if has_program { "tcx" } else { "af-packet" };
        let router = forward(network, &folder, &["l3", "ra", "rb", "rc", "--path", path]);
        let all = || FIRST.map(|port| call_from(network, port, TO)).collect::<Vec<_>>();
        let before = all();
        let by_first = before.iter().filter(|end| *end == "server").count();
        assert!((150 - 30..=150 + 30).contains(&by_first), "{by_first} of 200");
        if has_program {
            for side in ["host", "nic"] {
                let socket = folder.path("stats");
                let path = socket.to_str().expect("text");
                let (code, _, errors) = run(&folder, &["move", "l3", side, "--socket", path]);
                assert_eq!(code, 0, "{errors}");
                assert_eq!(all(), before, "{side}");
            }
        }
        let at = before.iter().position(|end| end == "server").expect("one");
        let port = FIRST.start + u16::try_from(at).expect("few");
        network.server.run("ip addr del 10.2.0.2/24 dev s0");
        network.router.run("ip neigh flush dev rb");
        until_moved(network, port, "other");
        assert!(all().iter().all(|end| end == "other"));
        network.server.run("ip addr add 10.2.0.2/24 dev s0; ip route add default via 10.2.0.1");
        until_moved(network, port, "server");
        assert_eq!(all(), before);

        network.router.run("ip nexthop replace id 10 group 2");
        until_moved(network, port, "other");
        assert!(all().iter().all(|end| end == "other"));
        network.router.run("ip nexthop replace id 10 group 1,3/2,1");
        until_moved(network, port, "server");
        assert_eq!(all(), before);
        network.router.run("ip nexthop del id 1");
        until_moved(network, port, "other");
        assert_eq!(router.end().code(), 0);
    });
}
