//! Frames and packets between namespaces.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use rustix::{
    process::Signal,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

use crate::{
    instance::{BOUND, Folder, Instance, PROGRAM, counter, report, run},
    kit::skip::skip,
    network::{
        CLIENT, Host, Network, SERVER, call, calls_through, ip_frame, send_frames, with_network,
    },
};

/// Starts a forwarder on the router whose stats are at `stats` in the folder.
pub(crate) fn forward(network: &Network, folder: &Folder, arguments: &[&str]) -> Instance {
    let socket = folder.path("stats");
    let named = ["--stats-socket", socket.to_str().expect("text")];
    network.router.forwarder(folder, &[arguments, &named].concat()).ready()
}

/// Sends many bytes by TCP from the client to the server, and compares what arrives: segments are cut, checksums
/// completed.
#[track_caller]
pub(crate) fn stream(network: &Network, to: &str) {
    stream_between(&network.client, &network.server, to);
}

/// The same from one host to another.
#[track_caller]
pub(crate) fn stream_between(client: &Host, server: &Host, to: &str) {
    let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let listener = server.inside(|| TcpListener::bind(any).expect("a port"));
    let port = listener.local_addr().expect("bound").port();
    let bytes: Vec<u8> = (0..4 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    let expected = bytes.clone();
    let server = thread::spawn(move || {
        let (mut stream, from) = listener.accept().expect("a connection");
        let mut heard = Vec::new();
        stream.set_read_timeout(Some(BOUND)).expect("a socket");
        stream.read_to_end(&mut heard).expect("all of it");
        assert!(heard == expected, "{} bytes arrived", heard.len());
        stream.write_all(b"thanks").expect("it is taken");
        from.ip().to_string()
    });
    let to = format!("{to}:{port}").parse().expect("an address");
    let connect = || TcpStream::connect_timeout(&to, BOUND).expect("a connection");
    let mut client = client.inside(connect);
    client.set_read_timeout(Some(BOUND)).expect("a socket");
    client.set_write_timeout(Some(BOUND)).expect("a socket");
    client.write_all(&bytes).expect("it is taken");
    client.shutdown(Shutdown::Write).expect("it is connected");
    let mut thanks = String::new();
    client.read_to_string(&mut thanks).expect("an answer");
    assert_eq!(thanks, "thanks");
    drop(server.join().expect("it does not panic"));
}

/// Goal: packets are routed both ways by the kernel's routes, with neighbours found out, and the kernel's own
/// packets stay its own. Method: UDP and TCP through the router, and to it.
#[test]
fn l3_routes() {
    with_network("paths::l3_routes", |network| {
        let folder = Folder::new();
        let mut router = forward(network, &folder, &["l3", "ra", "rb", "--path", "af-packet"]);
        let logged = router.until("forwards by af-packet: 2.221µs a packet");
        assert!(logged.contains("as configured"), "{logged}");
        let (port, caller) = (network.echo(), network.caller());
        let from = call(&caller, SERVER, port);
        assert!(from.starts_with(CLIENT), "{from}");
        stream(network, SERVER);
        // The router's own address answers, by its kernel alone.
        let own = network.router.inside(|| TcpListener::bind("10.1.0.1:0").expect("a port"));
        let address = own.local_addr().expect("bound");
        network.client.inside(|| TcpStream::connect_timeout(&address, BOUND).expect("it listens"));
        let socket = folder.path("stats");
        assert!(counter(&socket, "l3", "bytes") > 4 << 20);
        assert!(counter(&socket, "l3", "left_to_kernel") > 0);
        assert_eq!(counter(&socket, "l3", "dropped: malformed"), 0);
        assert_eq!(report(&socket)["rights"], serde_json::json!(["CAP_NET_RAW"]));
        let ended = router.end();
        assert_eq!(ended.code(), 0, "{}", ended.said);
    });
}

/// Goal: private addresses are hidden behind a public one that no kernel has, and a published port leads inside.
/// Method: the server sees the public address; it reaches the client by the published port.
#[test]
fn nat_translates() {
    with_network("paths::nat_translates", |network| {
        let folder = Folder::new();
        let arguments = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"];
        let publish = ["--publish", "tcp:80=10.1.0.2:8080", "--path", "af-packet"];
        // The server must not know another way.
        network.server.run("ip route del default");
        let router = forward(network, &folder, &[&arguments[..], &publish].concat());
        let (port, caller) = (network.echo(), network.caller());
        let from = call(&caller, SERVER, port);
        assert!(from.starts_with("10.2.0.9:"), "{from}");
        stream(network, SERVER);
        let listener =
            network.client.inside(|| TcpListener::bind("10.1.0.2:8080").expect("the port"));
        let inside = thread::spawn(move || listener.accept().expect("a connection").1);
        let outside = "10.2.0.9:80".parse().expect("an address");
        network.server.inside(|| TcpStream::connect_timeout(&outside, BOUND).expect("published"));
        let seen = inside.join().expect("it does not panic");
        assert!(seen.to_string().starts_with("10.2.0.2:"), "{seen}");
        assert!(counter(&folder.path("stats"), "nat", "translations") > 0);
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: with `--clamp-mss` both ends of a connection send no longer segments than the smallest MTU takes, and without it they do. Method: a
/// router whose outer interface has an MTU of 1400, which neither end sees; by the host and, where it may be, by a program.
#[test]
fn segments_are_as_long_as_the_smallest_mtu() {
    const TEST: &str = "paths::segments_are_as_long_as_the_smallest_mtu";
    with_network(TEST, |network| {
        network.router.run("ip link set rb mtu 1400");
        let with_program = has_programs(TEST);
        for (clamps, path) in [(false, "af-packet"), (true, "af-packet"), (true, "tcx")] {
            if path == "tcx" && !with_program {
                continue;
            }
            let folder = Folder::new();
            let arguments = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"];
            let more: &[&str] = if clamps { &["--clamp-mss"] } else { &[] };
            let router =
                forward(network, &folder, &[&arguments[..], &["--path", path], more].concat());
            let listener =
                network.server.inside(|| TcpListener::bind("10.2.0.2:0").expect("a port"));
            let to = listener.local_addr().expect("bound");
            let client = network
                .client
                .inside(|| TcpStream::connect_timeout(&to, BOUND).expect("it listens"));
            let (server, _) = listener.accept().expect("a connection");
            let port = to.port();
            for host in [&network.client, &network.server] {
                let said = host.run(&format!(
                    "ss -tinH state established '( sport = :{port} or dport = :{port} )'"
                ));
                let found = said.split_whitespace().find_map(|word| word.strip_prefix("mss:"));
                let bytes: u32 =
                    found.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{said}"));
                // Without the options of each segment.
                assert_eq!(bytes <= 1400 - 40, clamps, "{path}: {said}");
            }
            drop((client, server));
            assert_eq!(router.end().code(), 0);
        }
    });
}

/// Goal: 30 000 unanswered SYNs from one host, each from a port of its own, stop no new flow of another host inside, and
/// what they cost is counted and said. Method: the client sends them from a second address, raw, and calls from its
/// first one afterwards, each call from a new socket and answered at the first try; by the host, and beside a program.
#[test]
fn a_flood_stops_no_other_host() {
    const TEST: &str = "paths::a_flood_stops_no_other_host";
    with_network(TEST, |network| {
        network.client.run("ip addr add 10.1.0.66/24 dev c0");
        flood(network, "af-packet");
        if has_programs(TEST) {
            flood(network, "tcx");
        }
    });
}

fn flood(network: &Network, path: &str) {
    let folder = Folder::new();
    let arguments = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"];
    let mut router = forward(network, &folder, &[&arguments[..], &["--path", path]].concat());
    let port = network.echo();
    call(&network.caller(), SERVER, port);
    network.router.run("ip neigh replace 10.2.0.77 lladdr 02:00:00:00:00:77 dev rb nud permanent");
    let socket = folder.path("stats");
    let begun = || {
        let of = |name| counter(&socket, "nat", name);
        of("translations") + of("translations: ended for others")
    };
    let near = network.address_of("ra");
    let ends = ([10, 1, 0, 66], [10, 2, 0, 77]);
    let syn = |from: u16| {
        let ports = [from.to_be_bytes(), [0, 80]].concat();
        let segment = [&ports[..], &[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 4, 0, 0, 0, 0, 0]].concat();
        ip_frame(near, ends, (6, from, 0x4000), &segment)
    };
    let syns: Vec<_> = (1..=30_000).map(syn).collect();
    // Some may be lost on the way in.
    while begun() < 30_000 {
        network.client.inside(|| send_frames("c0", syns.iter().cloned()));
    }
    for number in 0..200 {
        let caller = network.caller();
        caller.set_read_timeout(Some(BOUND)).expect("a socket");
        let question = format!("call-{number}");
        assert!(calls_through(&caller, SERVER, port, &question), "{question} was lost");
    }
    router.until("has no room for new translations");
    assert!(counter(&socket, "nat", "translations: ended for others") > 10_000);
    assert_eq!(counter(&socket, "nat", "translations: refused"), 0);
    assert!(counter(&socket, "nat", "translations: percent full") >= 50);
    assert_eq!(router.end().code(), 0);
}

/// Goal: a wire carries everything between two interfaces, ARP included, and bytes of TCP stay what they are. Method:
/// client and server in one network, whose router is a wire.
#[test]
fn l2_is_a_wire() {
    with_network("paths::l2_is_a_wire", |network| {
        let folder = Folder::new();
        network.server.run("ip addr add 10.1.0.7/24 dev s0");
        for name in ["ra", "rb"] {
            network.router.run(&format!("ip addr flush dev {name}"));
        }
        let router = forward(network, &folder, &["l2", "ra", "rb", "--path", "af-packet"]);
        let (port, caller) = (network.echo(), network.caller());
        let from = call(&caller, "10.1.0.7", port);
        assert!(from.starts_with(CLIENT), "{from}");
        stream(network, "10.1.0.7");
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: routes that come and go are followed, also those that the kernel removes in silence. Method: the way to the
/// server changes between two addresses of the same host; then the interface goes down and up.
#[test]
fn l3_follows_routes() {
    with_network("paths::l3_follows_routes", |network| {
        let folder = Folder::new();
        let router = forward(network, &folder, &["l3", "ra", "rb", "--path", "af-packet"]);
        let (port, caller) = (network.echo(), network.caller());
        network.server.run("ip addr add 192.0.2.5/32 dev lo");
        for _ in 0..5 {
            network.router.run("ip route add 192.0.2.0/24 via 10.2.0.2");
            call(&caller, "192.0.2.5", port);
            network.router.run("ip route del 192.0.2.0/24");
        }
        let socket = folder.path("stats");
        let lost = |socket: &std::path::Path| counter(socket, "l3", "dropped: no route");
        let before = lost(&socket);
        // No route, no answer: it is counted.
        while lost(&socket) == before {
            drop(caller.send_to(b"anybody?", format!("192.0.2.5:{port}")));
        }
        network.router.run("ip link set dev rb down");
        while report(&socket)["routes"]["asked_again"] == 0 {
            thread::yield_now();
        }
        network.router.run("ip link set dev rb up");
        call(&caller, SERVER, port);
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: an interface that is removed and made again is attached again by the rights that were kept. Method: the
/// pair towards the server is removed, with the namespace's end of it, and made again.
#[test]
fn an_interface_returns() {
    with_network("paths::an_interface_returns", |network| {
        let folder = Folder::new();
        let mut router = forward(network, &folder, &["l3", "ra", "rb", "--path", "af-packet"]);
        router.until("keeps CAP_NET_RAW");
        let (port, caller) = (network.echo(), network.caller());
        call(&caller, SERVER, port);
        network.router.run("ip link del dev rb");
        router.until("interface rb is gone");
        network.wire("rb", "10.2.0.1/24", &network.server, "s0", "10.2.0.2/24");
        network.server.run("ip route add default via 10.2.0.1");
        router.until("interface rb is back");
        call(&caller, SERVER, port);
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: with all rights given up an interface that returns is not attached, as was said; the others go on. Method:
/// as before, with the flag.
#[test]
fn without_rights_nothing_returns() {
    with_network("paths::without_rights_nothing_returns", |network| {
        let folder = Folder::new();
        let arguments = ["l3", "ra", "rb", "--path", "af-packet", "--drop-all-rights"];
        let mut router = forward(network, &folder, &arguments);
        router.until("does not attach again");
        let (port, caller) = (network.echo(), network.caller());
        call(&caller, SERVER, port);
        assert_eq!(report(&folder.path("stats"))["rights"], serde_json::json!([]));
        network.router.run("ip link del dev rb");
        router.until("interface rb is gone");
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: what would forward twice, or answer for another, is refused with what to do. Method: kernel forwarding, a
/// public address of the host's own, and an interface that is not there.
#[test]
fn what_cannot_work_is_refused() {
    with_network("paths::what_cannot_work_is_refused", |network| {
        let folder = Folder::new();
        let ended = network.router.forwarder(&folder, &["l3", "ra", "no-such-one"]).wait();
        assert_eq!(ended.code(), 2, "{}", ended.said);
        assert!(ended.said.contains("no interface `no-such-one`"), "{}", ended.said);
        let nat = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.1"];
        let nat = [&nat[..], &["--ports", "61000-65535", "--path", "af-packet"]].concat();
        let ended = network.router.forwarder(&folder, &nat).wait();
        assert_eq!(ended.code(), 2, "{}", ended.said);
        assert!(ended.said.contains("Another address of the outside network"), "{}", ended.said);
        network.router.set("net/ipv4/conf/rb/forwarding", "1");
        let ended = network.router.forwarder(&folder, &["l3", "ra", "rb"]).wait();
        assert_eq!(ended.code(), 2, "{}", ended.said);
        assert!(ended.said.contains("sysctl -w net.ipv4.conf.rb.forwarding=0"), "{}", ended.said);
        network.router.set("net/ipv4/conf/ra/forwarding", "1");
        let ended = network.router.forwarder(&folder, &["l3", "ra", "rb"]).wait();
        let both = "`ra` and `rb` too";
        let off = "net.ipv4.conf.ra.forwarding=0 net.ipv4.conf.rb.forwarding=0";
        assert!(ended.said.contains(both) && ended.said.contains(off), "{}", ended.said);
        for setting in ["net/ipv4/conf/ra/forwarding", "net/ipv4/conf/rb/forwarding"] {
            network.router.set(setting, "0");
        }
        let publish = |to: &str| {
            let published = format!("tcp:8080={to}:80");
            let nat = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"];
            let more = ["--path", "af-packet", "--publish", &published];
            network.router.forwarder(&folder, &[&nat[..], &more].concat()).ready().end().said
        };
        let warning = "but no network that ra reaches has this address";
        assert!(publish("10.77.0.2").contains(warning));
        assert!(!publish("10.1.0.2").contains(warning));
    });
}

/// Goal: nothing stays attached when a forwarder is killed. Method: kill -9 of one of each kind; the interfaces have
/// no program, no other mode and no socket, and the next one takes them.
#[test]
fn nothing_stays_after_kill() {
    with_network("paths::nothing_stays_after_kill", |network| {
        let folder = Folder::new();
        for arguments in [&["l2", "ra", "rb"][..], &["l3", "ra", "rb"]] {
            let killed = forward(network, &folder, arguments);
            killed.signal(Signal::KILL);
            killed.wait();
            let links = network.router.run("ip -d link show");
            assert!(!links.contains("xdp"), "{links}");
            assert!(!links.contains("promiscuity 1"), "{links}");
            let sockets = network.router.run("cat /proc/net/packet");
            assert_eq!(sockets.lines().count(), 1, "{sockets}");
        }
        let mut next = forward(network, &folder, &["l3", "ra", "rb"]);
        next.until("left by a dead instance");
        assert_eq!(next.end().code(), 0);
    });
}

/// Whether programs can be attached here: rights of the first user namespace.
pub(crate) fn has_programs(test: &str) -> bool {
    let ids = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_first = ids.split_whitespace().eq(["0", "0", "4294967295"]);
    if !is_first || !rustix::process::geteuid().is_root() {
        skip(test, "CAP_BPF and CAP_NET_ADMIN in the first user namespace");
        return false;
    }
    true
}

/// Goal: a program at the interfaces forwards what it can and leaves the rest to the host, and moving between the
/// two loses no packet. Method: calls one after the other, each answered without another try, while the flow is moved
/// to and fro, more than the program leaves to the host while that may have packets for a new neighbour; then TCP, whose segments only
/// the host can cut.
#[test]
fn moving_loses_nothing() {
    with_network("paths::moving_loses_nothing", |network| {
        if !has_programs("paths::moving_loses_nothing") {
            return;
        }
        let folder = Folder::new();
        let mut router = forward(network, &folder, &["l3", "ra", "rb"]);
        router.until("not available: xdp-native: ra is one end of a veth pair");
        let socket = folder.path("stats");
        assert_eq!(report(&socket)["flows"][0]["path"], "tcx");
        let (port, caller) = (network.echo(), network.caller());
        caller.set_read_timeout(Some(BOUND)).expect("a socket");
        // Until neighbours are known on the way out and back.
        let waiter = network.caller();
        call(&waiter, SERVER, port);
        for round in 0..10 {
            let side = if round % 2 == 0 { "host" } else { "nic" };
            let path = socket.to_str().expect("text");
            let (code, _, errors) = run(&folder, &["move", "l3", side, "--socket", path]);
            assert_eq!(code, 0, "{errors}");
            for number in 0..150 {
                let question = format!("call-{round}-{number}");
                assert!(calls_through(&caller, SERVER, port, &question), "{question} was lost");
            }
        }
        assert_eq!(counter(&socket, "l3", "migrations"), 10);
        assert!(counter(&socket, "l3", "nic: sent_packets") >= 500);
        assert!(counter(&socket, "l3", "host: sent_packets") >= 1_500);
        stream(network, SERVER);
        let ended = router.end();
        assert_eq!(ended.code(), 0, "{}", ended.said);
        let links = network.router.run("ip -d link show");
        assert!(!links.contains("xdp"), "{links}");
    });
}

/// Load that a few packets are.
pub(crate) const MOVES: [&str; 6] =
    ["--to-nic-above", "20", "--to-host-below", "5", "--hold", "300ms"];

/// Goal: load moves a flow to the interface, and its end moves it back, both counted and said. Method: thresholds that
/// a few packets cross.
#[test]
fn load_moves_a_flow() {
    with_network("paths::load_moves_a_flow", |network| {
        if !has_programs("paths::load_moves_a_flow") {
            return;
        }
        let folder = Folder::new();
        let mut router = forward(network, &folder, &[&["l3", "ra", "rb"][..], &MOVES].concat());
        let logged = router.until("forwards by af-packet: ");
        assert!(logged.contains("as its load decides"), "{logged}");
        let socket = folder.path("stats");
        assert_eq!(report(&socket)["flows"][0]["side"], "host");
        let (port, caller) = (network.echo(), network.caller());
        let mut number = 0;
        while counter(&socket, "l3", "migrations") == 0 {
            for _ in 0..20 {
                number += 1;
                let _ = calls_through(&caller, SERVER, port, &format!("call-{number}"));
            }
        }
        router.until("flow `l3` moved to the nic: ");
        assert_eq!(report(&socket)["flows"][0]["side"], "nic");
        router.until("flow `l3` moved to the host: ");
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: addresses are translated by the program too, once the host has begun a flow. Method: many calls of one flow.
#[test]
fn a_program_translates() {
    with_network("paths::a_program_translates", |network| {
        if !has_programs("paths::a_program_translates") {
            return;
        }
        let folder = Folder::new();
        network.server.run("ip route del default");
        let arguments = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"];
        let router = forward(network, &folder, &arguments);
        let (port, caller) = (network.echo(), network.caller());
        assert!(call(&caller, SERVER, port).starts_with("10.2.0.9:"));
        let socket = folder.path("stats");
        let mut number = 0;
        while counter(&socket, "nat", "nic: sent_packets") < 10 {
            number += 1;
            let _ = calls_through(&caller, SERVER, port, &format!("call-{number}"));
        }
        stream(network, SERVER);
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: a program translates also while the interface of one of its ports is gone. Method: a flow of three interfaces whose first one is removed, before
/// the program is attached again.
#[test]
fn a_program_translates_without_a_port() {
    const TEST: &str = "paths::a_program_translates_without_a_port";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let folder = Folder::new();
        network.wire("rc", "10.3.0.1/24", &network.client, "c1", "10.3.0.2/24");
        let inside = ["nat", "--inside", "rc", "--inside", "ra"];
        let outside = ["--outside", "rb", "--address", "10.2.0.9"];
        let mut router = forward(network, &folder, &[&inside[..], &outside].concat());
        let (port, caller, socket) = (network.echo(), network.caller(), folder.path("stats"));
        network.router.run("ip link del rc");
        router.until("interface rc is gone");
        for side in ["host", "nic"] {
            let path = socket.to_str().expect("text");
            let (code, _, errors) = run(&folder, &["move", "nat", side, "--socket", path]);
            assert_eq!(code, 0, "{errors}");
        }
        assert!(call(&caller, SERVER, port).starts_with("10.2.0.9:"));
        for number in 0..100 {
            thread::park_timeout(Duration::from_millis(11));
            let _ = calls_through(&caller, SERVER, port, &format!("call-{number}"));
        }
        let by_program = counter(&socket, "nat", "nic: sent_packets");
        assert!(by_program >= 50, "{by_program} packets");
        assert_eq!(router.end().code(), 0);
    });
}

/// Sends 200 numbered datagrams, some 10 µs apart, from one processor, by a new socket of the client to an address of the server. Returns
/// whether one came after a later one.
fn comes_late(network: &Network, server: &UdpSocket, to: &str, flow: u32) -> bool {
    let to = (to, server.local_addr().expect("bound").port());
    // The first may be on its way for long on a busy machine; behind it, a silence is the end.
    let wait =
        |millis| server.set_read_timeout(Some(Duration::from_millis(millis))).expect("a socket");
    wait(10_000);
    let socket = network.caller();
    network.client.inside(|| {
        let processor = sched_getaffinity(None).expect("a mask");
        let first = (0..CpuSet::MAX_CPU).find(|number| processor.is_set(*number));
        let mut one = CpuSet::new();
        one.set(first.expect("a processor"));
        sched_setaffinity(None, &one).expect("it is allowed");
        for number in 0..200_u32 {
            let message = [flow.to_le_bytes(), number.to_le_bytes()].concat();
            // Those for which there is no room are lost.
            let _ = socket.send_to(&message, to);
            (0..300).for_each(|_| std::hint::spin_loop());
        }
    });
    let (mut highest, mut message, mut is_late) = (None, [0; 8], false);
    while server.recv(&mut message).is_ok() {
        let [of, number] = *message.as_chunks::<4>().0 else { unreachable!("8 bytes") };
        // One of an earlier flow, on a machine that is busy elsewhere.
        if u32::from_le_bytes(of) == flow {
            let number = Some(u32::from_le_bytes(number));
            is_late |= highest > number;
            highest = highest.max(number);
            wait(200);
        }
    }
    assert!(highest.is_some(), "nothing of flow {flow} has arrived");
    is_late
}

/// Goal: a flow of datagrams that begins at full rate keeps its order while the program takes it over from the host, as
/// through the kernel. Method: 20 sockets send 200 numbered datagrams each, some 10 µs apart, from one processor; no number
/// comes after a higher one, and what comes later goes by the program. The program waits for 10 ms, in which a host that other programs keep from
/// its processor may not have sent what it has: so the host goes before them, where that is allowed, and this is tried again, four times.
#[test]
fn a_flow_that_begins_keeps_its_order() {
    const TEST: &str = "paths::a_flow_that_begins_keeps_its_order";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let folder = Folder::new();
        let arguments = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"];
        let router = forward(network, &folder, &arguments);
        router.goes_before_others();
        let (port, caller) = (network.echo(), network.caller());
        call(&caller, SERVER, port);
        let server = network.server.inside(|| UdpSocket::bind("0.0.0.0:0").expect("a port"));
        let is_late = |flow: u32| comes_late(network, &server, SERVER, flow);
        let keep_order = |round: u32| !(20 * round..20 * (round + 1)).any(is_late);
        assert!((0..5).any(keep_order), "in each round, datagrams came after later ones");
        let socket = folder.path("stats");
        let before = counter(&socket, "nat", "nic: sent_packets");
        while counter(&socket, "nat", "nic: sent_packets") < before + 10 {
            call(&caller, SERVER, port);
        }
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: datagrams to a neighbour that is not known yet, which come at full rate while it is found out, arrive in their order, as through the
/// kernel: by the host, and beside a program that takes over from it. Method: as above, 20 addresses of the server that none has asked for
/// before get 200 numbered datagrams each. Beside a program it is tried again, four times, for the same reason.
#[test]
fn a_flow_to_a_new_neighbour_keeps_its_order() {
    const TEST: &str = "paths::a_flow_to_a_new_neighbour_keeps_its_order";
    with_network(TEST, |network| {
        let add = |address: &str| format!("ip addr add {address}/24 dev s0");
        let ways = ["af-packet", "tcx"];
        let server = network.server.inside(|| UdpSocket::bind("0.0.0.0:0").expect("a port"));
        for way in ways.iter().filter(|way| **way == "af-packet" || has_programs(TEST)) {
            let folder = Folder::new();
            let router = forward(network, &folder, &["l3", "ra", "rb", "--path", way]);
            router.goes_before_others();
            let mut next = 20;
            let mut is_late = |flow: u32| {
                let to = format!("10.2.0.{next}");
                network.server.run(&add(&to));
                let is_late = comes_late(network, &server, &to, flow);
                network.server.run(&format!("ip addr del {to}/24 dev s0"));
                network.router.run(&format!("ip neigh flush to {to}"));
                next += 1;
                is_late
            };
            let rounds = if *way == "tcx" { 5 } else { 1 };
            let mut keep_order = |round: u32| !(20 * round..20 * (round + 1)).any(&mut is_late);
            assert!((0..rounds).any(&mut keep_order), "{way}: datagrams came after later ones");
            let socket = folder.path("stats");
            if *way == "tcx" {
                let (port, caller) = (network.echo(), network.caller());
                let sent = || counter(&socket, "l3", "nic: sent_packets");
                let before = sent();
                while sent() < before + 10 {
                    call(&caller, SERVER, port);
                    thread::park_timeout(Duration::from_millis(11));
                }
            }
            assert_eq!(router.end().code(), 0);
        }
    });
}

/// Goal: what was asked for by name and cannot be had is an error and no fallback, and without rights for programs the
/// host takes over and says why. Method: a place that veth does not lack but rights do, in a process without them.
#[test]
fn fallbacks_are_named() {
    with_network("paths::fallbacks_are_named", |network| {
        let folder = Folder::new();
        let id = network.router.id().to_string();
        let start = |arguments: &[&str]| {
            let mut command = std::process::Command::new("nsenter");
            command.args([
                "-t",
                &id,
                "-n",
                "--",
                "setpriv",
                "--bounding-set=-bpf,-net_admin,-sys_admin",
            ]);
            command.arg("--inh-caps=-bpf,-net_admin,-sys_admin").arg(PROGRAM).args(arguments);
            Instance::of(&mut command, &folder)
        };
        let mut auto = start(&["l3", "ra", "rb"]).ready();
        let said = auto.until("forwards by af-packet: 2.221µs a packet");
        assert!(said.contains("CAP_BPF and CAP_NET_ADMIN"), "{said}");
        let (port, caller) = (network.echo(), network.caller());
        call(&caller, SERVER, port);
        assert_eq!(auto.end().code(), 0);
        let named = start(&["l3", "ra", "rb", "--path", "xdp-generic"]).wait();
        assert_eq!(named.code(), 3, "{}", named.said);
    });
}

/// The sentence of the only flow, from `stats`.
fn sentence(folder: &Folder) -> String {
    let report = report(&folder.path("stats"));
    report["flows"][0]["sentence"].as_str().expect("a sentence").to_owned()
}

/// Goal: the planner's order is the one that is tried, and each flow is one sentence: the terms of its path, of dearer ones, and why others are not
/// available; also when it has moved, and by `plan`. Method: every kind of flow of frames between veth pairs, where the driver is left out; one
/// that moves, one by name, and one without rights.
#[test]
fn each_flow_is_explained() {
    const TEST: &str = "paths::each_flow_is_explained";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let kinds = [
            (&["l3", "ra", "rb"][..], "by tcx: 430ns a packet and 640ns", "xdp-generic 560ns"),
            (&["l2", "ra", "rb"], "by tcx: 400ns a packet and 590ns", "af-packet 2.218µs"),
            (
                &["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"],
                "by tcx: 470ns a packet and 750ns",
                "xdp-generic 570ns",
            ),
        ];
        for (arguments, taken, dearer) in kinds {
            let folder = Folder::new();
            let mut flow = network.router.forwarder(
                &folder,
                &[arguments, &["--stats-socket", folder.path("stats").to_str().expect("text")]]
                    .concat(),
            );
            let logged = flow.until("forwards by tcx: ");
            let mut flow = flow.ready();
            let said = sentence(&folder);
            for words in [
                taken,
                dearer,
                ", the least of the paths available here",
                "not available: xdp-native: ",
            ] {
                assert!(
                    said.contains(words) && logged.contains(words),
                    "{words}: {said}\n{logged}"
                );
            }
            let at = said.find(dearer).expect("it is there");
            assert!(said[at..].contains("af-packet 2."), "packet sockets come last: {said}");
            let socket = folder.path("stats");
            let socket = socket.to_str().expect("text");
            if arguments[0] == "l3" {
                call(&network.caller(), SERVER, network.echo());
                assert!(sentence(&folder).contains("; the program has sent "));
                let (code, _, errors) = run(&folder, &["move", "l3", "host", "--socket", socket]);
                assert_eq!(code, 0, "{errors}");
                let said = sentence(&folder);
                let moved = "is forwarded by af-packet: 2.221µs";
                assert!(said.contains(moved) && said.contains("since it was moved here"), "{said}");
                let text = network.router.run(&format!("{PROGRAM} plan --socket {socket}"));
                let line = text.lines().find(|line| line.contains(moved)).expect("the sentence");
                assert!(line.contains("measured now, the model places it on the"), "{line}");
                let (code, text, _) = run(&folder, &["stats", "--socket", socket]);
                assert!(code == 0 && text.contains(&sentence(&folder)), "{text}");
                flow.until("moved to the host as requested");
            }
            assert_eq!(flow.end().code(), 0);
        }

        let folder = Folder::new();
        let named = forward(network, &folder, &["l3", "ra", "rb", "--path", "xdp-generic"]);
        let said = sentence(&folder);
        assert!(said.contains("by xdp-generic: 560ns") && said.contains("as configured"), "{said}");
        assert_eq!(named.end().code(), 0);
    });
}

/// Goal: XDP in the driver of a veth pair, where frames may vanish uncounted, is not taken without a word. Method: a wire
/// by that name.
#[test]
fn a_pair_that_loses_frames_is_named() {
    with_network("paths::a_pair_that_loses_frames_is_named", |network| {
        if !has_programs("paths::a_pair_that_loses_frames_is_named") {
            return;
        }
        let folder = Folder::new();
        let mut wire = forward(network, &folder, &["l2", "ra", "rb", "--path", "xdp-native"]);
        assert_eq!(report(&folder.path("stats"))["flows"][0]["path"], "xdp-native");
        wire.until("ra is one end of a veth pair: frames that are redirected there vanish");
        assert_eq!(wire.end().code(), 0);
    });
}

/// Goal: a program is attached again at an interface that was removed and made again. Method: as with packet sockets,
/// and the program must have sent what comes afterwards.
#[test]
fn a_program_returns() {
    with_network("paths::a_program_returns", |network| {
        if !has_programs("paths::a_program_returns") {
            return;
        }
        let folder = Folder::new();
        let mut router = forward(network, &folder, &["l3", "ra", "rb"]);
        let (port, caller) = (network.echo(), network.caller());
        call(&caller, SERVER, port);
        network.router.run("ip link del dev rb");
        router.until("interface rb is gone");
        network.wire("rb", "10.2.0.1/24", &network.server, "s0", "10.2.0.2/24");
        network.server.run("ip route add default via 10.2.0.1");
        router.until("its program is attached again at");
        call(&caller, SERVER, port);
        let socket = folder.path("stats");
        let before = counter(&socket, "l3", "nic: sent_packets");
        while counter(&socket, "l3", "nic: sent_packets") < before + 10 {
            call(&caller, SERVER, port);
        }
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: segments pass whole where a router's program runs by default on veth pairs, with right addresses and checksums;
/// those that are too long for the outgoing interface are reported to their sender. Method: TCP through a router and a
/// translator, with frames counted; then with a smaller MTU of the outgoing interface alone.
#[test]
fn segments_pass_whole() {
    const TEST: &str = "paths::segments_pass_whole";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let nat = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"];
        for (flow, arguments) in [("l3", &["l3", "ra", "rb"][..]), ("nat", &nat)] {
            let folder = Folder::new();
            let router = forward(network, &folder, arguments);
            let socket = folder.path("stats");
            assert_eq!(report(&socket)["flows"][0]["path"], "tcx");
            call(&network.caller(), SERVER, network.echo());
            let count = |name: &str| counter(&socket, flow, name);
            let before = ["host: sent_packets", "nic: sent_packets", "nic: sent_bytes"].map(count);
            stream(network, SERVER);
            let after = ["host: sent_packets", "nic: sent_packets", "nic: sent_bytes"].map(count);
            let [by_host, frames, bytes] = [0, 1, 2].map(|at| after[at] - before[at]);
            // What opens and closes connections, the last segments among it, which the host cuts.
            assert!(by_host < 100, "{flow}: {by_host} frames by the host");
            assert!(bytes > 3 << 20 && frames < bytes / 1448, "{flow}: {frames} frames, {bytes}");
            network.router.run("ip link set dev rb mtu 1400");
            // The change is followed soon, not at once.
            while count("ICMP errors sent") == 0 {
                stream(network, SERVER);
            }
            network.router.run("ip link set dev rb mtu 1500");
            network.client.run("ip route flush cache");
            assert_eq!(router.end().code(), 0);
        }
    });
}

/// Goal: segments pass whole by packet sockets, too, and arrive unchanged; where the outgoing interface's MTU is too small
/// for them they are cut. Method: TCP through a router, a translator and a wire, with frames counted; through the first
/// two also with an MTU of 1400 of the outgoing interface alone.
#[test]
fn segments_pass_whole_by_the_host() {
    with_network("paths::segments_pass_whole_by_the_host", |network| {
        let nat = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"];
        for (flow, arguments) in
            [("l3", &["l3", "ra", "rb"][..]), ("nat", &nat), ("l2", &["l2", "ra", "rb"])]
        {
            let to = if flow == "l2" { "10.1.0.7" } else { SERVER };
            if flow == "l2" {
                network.server.run("ip addr add 10.1.0.7/24 dev s0");
                for name in ["ra", "rb"] {
                    network.router.run(&format!("ip addr flush dev {name}"));
                }
            }
            let folder = Folder::new();
            let arguments = [arguments, &["--path", "af-packet"]].concat();
            let router = forward(network, &folder, &arguments);
            let socket = folder.path("stats");
            call(&network.caller(), to, network.echo());
            let count = |name: &str| counter(&socket, flow, name);
            let sent = || ["host: sent_packets", "host: sent_bytes"].map(count);
            let before = sent();
            stream(network, to);
            let [frames, bytes] = [0, 1].map(|at| sent()[at] - before[at]);
            // Half of the frames are acknowledgements.
            assert!(bytes > 3 << 20 && frames < bytes / 2000, "{flow}: {frames} frames, {bytes}");
            // A wire cannot tell senders of an MTU.
            if flow != "l2" {
                network.router.run("ip link set dev rb mtu 1400");
                stream(network, to);
                network.router.run("ip link set dev rb mtu 1500");
            }
            assert_eq!(count("dropped: uncut segments"), 0, "{flow}");
            assert_eq!(count("dropped: bad segment header"), 0, "{flow}");
            assert_eq!(router.end().code(), 0);
        }
    });
}

/// Goal: a wire by a program carries segments whole and each frame once, and where the host would forward the same
/// frames again a program is refused. Method: calls and TCP through a wire at tcx, where the host takes nothing; a wire
/// there that moves.
#[test]
fn a_program_is_a_wire() {
    with_network("paths::a_program_is_a_wire", |network| {
        if !has_programs("paths::a_program_is_a_wire") {
            return;
        }
        let folder = Folder::new();
        let ended = network
            .router
            .forwarder(&folder, &[&["l2", "ra", "rb", "--path", "tcx"][..], &MOVES].concat())
            .wait();
        assert_eq!(ended.code(), 2, "{}", ended.said);
        assert!(ended.said.contains("would be forwarded twice"), "{}", ended.said);
        network.server.run("ip addr add 10.1.0.7/24 dev s0");
        for name in ["ra", "rb"] {
            network.router.run(&format!("ip addr flush dev {name}"));
        }
        let mut router = forward(network, &folder, &["l2", "ra", "rb"]);
        router.until("; xdp-generic: it drops frames of several segments");
        let socket = folder.path("stats");
        assert_eq!(report(&socket)["flows"][0]["path"], "tcx");
        let (port, caller) = (network.echo(), network.caller());
        call(&caller, "10.1.0.7", port);
        stream(network, "10.1.0.7");
        assert!(counter(&socket, "l2", "nic: sent_packets") > 60);
        assert_eq!(counter(&socket, "l2", "host: received_packets"), 0);
        assert_eq!(counter(&socket, "l2", "dropped"), 0);
        let path = socket.to_str().expect("text");
        let (code, _, errors) = run(&folder, &["move", "l2", "host", "--socket", path]);
        assert_eq!(code, 1);
        assert!(errors.contains("no host beside the program"), "{errors}");
        assert_eq!(router.end().code(), 0);
    });
}
