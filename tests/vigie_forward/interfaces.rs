//! Interfaces of other kinds than Ethernet cards, and flows with routing tables of their own.
//!
//! Kernels without VLANs, WireGuard or tunnels skip tests; `scripts/forward-vm` boots one that has all of them.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    errors::{Prober, told},
    instance::{Folder, PROGRAM, counter, report, run, run_command},
    kit::{namespace::try_near, skip::skip},
    logging::until,
    network::{
        CLIENT, Host, Network, SERVER, call, calls_through, ip_frame, send_frames, with_network,
    },
    paths::{MOVES, forward, has_programs, stream, stream_between},
};

/// Returns whether the kernel has a kind of interface; says so if not.
fn has_kind(test: &str, kind: &str, settings: &str) -> bool {
    try_near("ip link add name below type bridge").expect("a bridge");
    let made = try_near(&format!(
        "ip link add link below name probe type {kind} {settings} && ip link del probe"
    ));
    try_near("ip link del below").expect("it is there");
    if let Err(said) = made {
        skip(test, &format!("a kernel with interfaces of type {kind} ({})", said.trim()));
        return false;
    }
    true
}

/// Moves an address of each host to a VLAN of its interface.
fn tag_all(network: &Network) {
    for (host, below, number, address) in [
        (&network.client, "c0", 10, "10.1.0.2/24"),
        (&network.router, "ra", 10, "10.1.0.1/24"),
        (&network.router, "rb", 20, "10.2.0.1/24"),
        (&network.server, "s0", 20, "10.2.0.2/24"),
    ] {
        let name = format!("{below}.{number}");
        host.run(&format!("ip addr flush dev {below}"));
        host.run(&format!("ip link add link {below} name {name} type vlan id {number}"));
        host.run(&format!("ip addr add {address} dev {name}; ip link set {name} up"));
    }
    network.client.run("ip route add default via 10.1.0.1");
    network.server.run("ip route add default via 10.2.0.1");
}

/// Calls until the program has sent some packets: it leaves some to the host while that may have packets for a new neighbour.
fn until_the_program_sends(network: &Network, folder: &Folder, port: u16) {
    let (socket, caller) = (folder.path("stats"), network.caller());
    until("packets that the program sends", || {
        call(&caller, SERVER, port);
        (counter(&socket, "l3", "nic: sent_packets") >= 10).then_some(())
    });
}

/// Goal: packets are routed between VLANs, by interfaces of the kernel on top of others, also of the same one. Method: client and server
/// with tagged interfaces alone, UDP and TCP with its segments, on every path; then both VLANs on the router's one interface.
#[test]
fn vlans_are_routed() {
    const TEST: &str = "interfaces::vlans_are_routed";
    with_network(TEST, |network| {
        if !has_kind(TEST, "vlan", "id 9") {
            return;
        }
        tag_all(network);
        let with_programs = has_programs(TEST);
        let port = network.echo();
        for (path, taken) in [
            ("af-packet", "af-packet"),
            ("auto", "tcx"),
            ("tcx", "tcx"),
            ("xdp-generic", "xdp-generic"),
        ] {
            if path != "af-packet" && !with_programs {
                continue;
            }
            let folder = Folder::new();
            let router = forward(network, &folder, &["l3", "ra.10", "rb.20", "--path", path]);
            assert_eq!(report(&folder.path("stats"))["flows"][0]["path"], taken);
            assert!(call(&network.caller(), SERVER, port).starts_with(CLIENT));
            stream(network, SERVER);
            stream_between(&network.server, &network.client, CLIENT);
            if path != "af-packet" {
                until_the_program_sends(network, &folder, port);
            }
            assert_eq!(counter(&folder.path("stats"), "l3", "dropped: malformed"), 0, "{path}");
            assert_eq!(router.end().code(), 0);
        }

        // The server's VLAN moves to the client's wire.
        network.client.run("ip link add link c0 name c0.20 type vlan id 20");
        let id = network.server.id();
        network.client.run(&format!("ip link add br0 type bridge; ip link set c0.20 master br0; ip link set c0.20 up; ip link set br0 up; ip link add name cs type veth peer name sc netns {id}; ip link set cs master br0; ip link set cs up"));
        network.server.run("ip link del dev s0.20; ip addr add 10.2.0.2/24 dev sc; ip link set sc up; ip route add default via 10.2.0.1");
        network.router.run("ip link del dev rb.20; ip link add link ra name ra.20 type vlan id 20; ip addr add 10.2.0.1/24 dev ra.20; ip link set ra.20 up");
        for path in ["af-packet", "tcx", "xdp-generic"] {
            if path != "af-packet" && !with_programs {
                continue;
            }
            let folder = Folder::new();
            let router = forward(network, &folder, &["l3", "ra.10", "ra.20", "--path", path]);
            assert!(call(&network.caller(), SERVER, port).starts_with(CLIENT));
            stream(network, SERVER);
            if path != "af-packet" {
                until_the_program_sends(network, &folder, port);
            }
            assert_eq!(router.end().code(), 0);
        }
    });
}

/// Goal: what arrives with a tag at an interface that is named itself is left to the kernel, also where its tag is in the frame, and `auto` keeps
/// away from XDP there. Method: a flow between an untagged interface, on which only tagged packets arrive, and another one's VLAN, to whose neighbour a
/// program would forward them.
#[test]
fn tagged_packets_are_left_to_the_kernel() {
    const TEST: &str = "interfaces::tagged_packets_are_left_to_the_kernel";
    with_network(TEST, |network| {
        if !has_kind(TEST, "vlan", "id 9") || !has_programs(TEST) {
            return;
        }
        tag_all(network);
        network.client.run("ethtool -K c0 txvlan off");
        let (port, caller) = (network.echo(), network.caller());
        for path in ["af-packet", "tcx", "xdp-generic"] {
            assert!(call(&network.router.caller(), SERVER, port).starts_with("10.2.0.1"));
            let folder = Folder::new();
            let mut router = forward(network, &folder, &["l3", "ra", "rb.20", "--path", path]);
            if path == "xdp-generic" {
                router.until("ra has the VLAN ra.10");
            }
            for number in 0..20 {
                assert!(!calls_through(&caller, SERVER, port, &format!("{path} {number}")));
            }
            let socket = folder.path("stats");
            let report = report(&socket);
            for name in ["nic: sent_packets", "host: sent_packets"] {
                assert_eq!(report["flows"][0]["counters"][name], 0, "{path}: {name}");
            }
            assert_eq!(router.end().code(), 0);
        }
        let folder = Folder::new();
        let mut router = forward(network, &folder, &["l3", "ra", "rb.20"]);
        router.until("; xdp-generic: ra has the VLAN ra.10");
        assert_eq!(report(&folder.path("stats"))["flows"][0]["path"], "tcx");
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: each flow routes by its own table, whose changes it alone follows, from the start and after a reload. Method: two flows to the same
/// destination, which each table knows by another hop, seen by the address that the hop answers from; then one table changes, and one flow
/// gets the other's table.
#[test]
fn each_flow_has_its_table() {
    const TEST: &str = "interfaces::each_flow_has_its_table";
    with_network(TEST, |network| {
        let (router, folder) = (&network.router, Folder::new());
        // Two more links: of another client, and to another server.
        let (client, server) = (Host::new(), Host::new());
        network.wire("rc", "10.3.0.1/24", &client, "c1", "10.3.0.2/24");
        network.wire("rd", "10.4.0.1/24", &server, "s1", "10.4.0.2/24");
        client.run("ip route add default via 10.3.0.1");
        server.run("ip route add default via 10.4.0.1");
        for host in [&network.server, &server] {
            host.run("ip addr add 10.9.0.1/32 dev lo");
        }
        let back =
            "ip route add 10.1.0.0/24 dev ra table 100; ip route add 10.3.0.0/24 dev rc table 200";
        router.run(&format!("{back}; ip route add 10.9.0.0/24 via 10.2.0.2 table 100"));
        router.run("ip route add 10.9.0.0/24 via 10.4.0.2 table 200");
        let flows = |tables: [u32; 2]| {
            format!(
                "[[l3]]\nname = 'one'\ninterfaces = ['ra', 'rb']\npath = 'af-packet'\ntable = {}\n\
                 [[l3]]\nname = 'two'\ninterfaces = ['rc', 'rd']\npath = 'af-packet'\ntable = {}\n",
                tables[0], tables[1]
            )
        };
        let file = folder.path("flows.toml");
        let write = |tables| std::fs::write(&file, flows(tables)).expect("a file");
        write([100, 200]);
        let arguments = ["run", "--config", file.to_str().expect("text")];
        let mut instance = router.forwarder(&folder, &arguments).ready();

        let (near, far) = (network.echo(), server.echo());
        let callers = [network.caller(), client.caller()];
        assert!(call(&callers[0], "10.9.0.1", near).starts_with(CLIENT));
        assert!(call(&callers[1], "10.9.0.1", far).starts_with("10.3.0.2"));
        // Nobody knows the main table's way.
        router.run("ip route add 10.8.0.0/24 via 10.2.0.2");
        assert!(!calls_through(&callers[0], "10.8.0.1", near, "main"));

        router.run(
            "ip route del 10.9.0.0/24 table 200; ip route add 10.9.0.0/24 via 10.2.0.2 table 200",
        );
        until("the new route", || {
            (!calls_through(&callers[1], "10.9.0.1", far, "gone")).then_some(())
        });
        assert!(calls_through(&callers[0], "10.9.0.1", near, "stays"));

        router.run("ip route add 10.9.0.0/24 via 10.4.0.2 table 300; ip route add 10.3.0.0/24 dev rc table 300");
        write([100, 300]);
        instance.signal(Signal::HUP);
        instance.until("flows: 1 unchanged, 1 ended, 1 new");
        assert!(call(&callers[1], "10.9.0.1", far).starts_with("10.3.0.2"));
        assert!(calls_through(&callers[0], "10.9.0.1", near, "stays, too"));
        assert_eq!(instance.end().code(), 0);
    });
}

/// Passes packets between two interfaces that it makes, with their headers about segments.
const PUMP: &str = "
import fcntl, os, select, struct, sys
def tun(name):
    fd = os.open('/dev/net/tun', os.O_RDWR)
    fcntl.ioctl(fd, 0x400454ca, struct.pack('16sH22x', name, 0x5001))
    for features in (0x67, 0x07):
        try:
            fcntl.ioctl(fd, 0x400454d0, features)
            break
        except OSError:
            pass
    return fd
ends = [tun(name.encode()) for name in sys.argv[1:]]
print('ready', flush=True)
while True:
    for fd in select.select(ends, [], [])[0]:
        try:
            os.write(ends[fd == ends[0]], os.read(fd, 70000))
        except OSError:
            pass
";

/// A pump between an interface of a host and one of the router.
struct Pump(Child);

impl Pump {
    /// Between `ct` of the client and `rt` of the router.
    fn new(network: &Network) -> Self {
        Self::between(("ct", &network.client), ("rt", &network.router))
    }

    fn between(far: (&str, &Host), near: (&str, &Host)) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", PUMP, far.0, near.0])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        for (name, host) in [far, near] {
            try_near(&format!("ip link set {name} netns {}", host.id())).expect("it is there");
        }
        Self(child)
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The addresses of a tunnel between client and router.
const TUNNEL_CLIENT: &str = "10.5.0.2";

/// The versions of IP that a tunnel carries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Versions {
    Ipv4,
    Both,
}

fn join_by_ipv4(network: &Network, near: &str, far: &str) {
    network.client.run(&format!("ip addr add {TUNNEL_CLIENT}/24 dev {far}; ip link set {far} up"));
    network.router.run(&format!("ip addr add 10.5.0.1/24 dev {near}; ip link set {near} up"));
    network.client.run(&format!("ip route replace default via 10.5.0.1 dev {far}"));
}

/// Gives an interface of the client and one of the router their addresses, and routes by them.
fn join(network: &Network, near: &str, far: &str) {
    join_by_ipv4(network, near, far);
    let both = [
        (&network.client, far, "fd05::2"),
        (&network.router, near, "fd05::1"),
        (&network.router, "rb", "fd02::1"),
        (&network.server, "s0", "fd02::2"),
    ];
    for (host, name, address) in both {
        host.run(&format!("ip addr add {address}/64 dev {name} nodad"));
    }
    network.client.run(&format!("ip route add default via fd05::1 dev {far}"));
    network.server.run("ip route add default via fd02::1");
}

/// Routes between an interface without headers and an Ethernet one, by the host and by a program at tcx, which `auto` takes; XDP and wires are
/// refused.
fn routes_without_headers(test: &str, network: &Network, near: &str, versions: Versions) {
    let with_programs = has_programs(test);
    for (path, taken) in [("af-packet", "af-packet"), ("auto", "tcx"), ("tcx", "tcx")] {
        if path != "af-packet" && !with_programs {
            continue;
        }
        let folder = Folder::new();
        let mut router = forward(network, &folder, &["l3", near, "rb", "--path", path]);
        let (port, socket) = (network.echo(), folder.path("stats"));
        assert!(call(&network.caller(), SERVER, port).starts_with(TUNNEL_CLIENT));
        if path == "tcx" {
            until_the_program_sends(network, &folder, port);
        }
        let before = counter(&socket, "l3", "nic: sent_packets");
        stream(network, SERVER);
        stream_between(&network.server, &network.client, TUNNEL_CLIENT);
        let packets = counter(&socket, "l3", "units");
        let segments = (4 << 20) * 2 / 1500;
        // Others may deliver each packet alone.
        assert!(
            near != "rt" || packets < segments,
            "{packets} packets: segments have not passed whole"
        );
        let by_program = counter(&socket, "l3", "nic: sent_packets") - before;
        assert_eq!(by_program > 20, taken == "tcx", "{by_program} packets");
        assert_eq!(Prober::new(network, false).probe(SERVER, 1), told("10.5.0.1", 11, 0));
        if versions == Versions::Both {
            stream(network, "[fd02::2]");
            stream_between(&network.server, &network.client, "[fd05::2]");
            assert_eq!(Prober::new(network, true).probe("fd02::2", 1), told("fd05::1", 3, 0));
        }
        assert_eq!(counter(&socket, "l3", "dropped: malformed"), 0);
        assert_eq!(report(&socket)["flows"][0]["path"], taken);
        if path == "auto" {
            let sentence = report(&socket)["flows"][0]["sentence"].to_string();
            let because = format!("xdp-native: packets of {near} have no Ethernet header");
            assert!(sentence.contains(&because), "{sentence}");
            router.until(&format!("not available: {because}"));
        }
        assert_eq!(router.end().code(), 0);
    }
    let id = network.router.id().to_string();
    for arguments in
        [["l3", near, "rb", "--path", "xdp-generic"], ["l2", near, "rb", "--path", "af-packet"]]
    {
        let mut command = Command::new("nsenter");
        let (code, _, said) =
            run_command(command.args(["-t", &id, "-n", "--", PROGRAM]).args(arguments));
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("have no Ethernet header"), "{said}");
    }
}

/// Translates packets from an interface without headers, and packets that leave by it, behind its address, which is one of this host: by the host
/// and by a program; UDP, and TCP with its segments.
fn translates_without_headers(test: &str, network: &Network, near: &str) {
    let (outward, inward) = ((near, "rb"), ("rb", near));
    for ((inside, outside), address, path) in [
        (outward, "10.2.0.9", "af-packet"),
        (outward, "10.2.0.9", "tcx"),
        // That of the interface, which only a program keeps from the kernel.
        (outward, "10.2.0.1", "auto"),
        (inward, "10.5.0.1", "auto"),
    ] {
        if path != "af-packet" && !has_programs(test) {
            continue;
        }
        let (from, to, at) = if inside == near {
            (&network.client, &network.server, SERVER)
        } else {
            (&network.server, &network.client, TUNNEL_CLIENT)
        };
        let folder = Folder::new();
        let mut arguments = vec!["nat", "--inside", inside, "--outside", outside, "--path", path];
        if path != "auto" {
            arguments.extend(["--address", address]);
        }
        let router = forward(network, &folder, &arguments);
        let (port, socket, caller) = (to.echo(), folder.path("stats"), from.caller());
        let heard = call(&caller, at, port);
        assert!(heard.starts_with(&format!("{address}:")), "{heard}");
        stream_between(from, to, at);
        let by_program = counter(&socket, "nat", "nic: sent_packets");
        assert_eq!(by_program > 20, path != "af-packet", "{by_program} packets");
        let taken = if path == "auto" { "tcx" } else { path };
        assert_eq!(report(&socket)["flows"][0]["path"], taken);
        assert_eq!(router.end().code(), 0);
    }
}

/// Goal: packets are routed and translated to and from interfaces without Ethernet headers, whole segments of TCP, too, and errors are sent by them. Method: a
/// pair of tun interfaces that a program joins, whose segments it passes on.
#[test]
fn tun_is_routed() {
    const TEST: &str = "interfaces::tun_is_routed";
    with_network(TEST, |network| {
        let _pump = Pump::new(network);
        join(network, "rt", "ct");
        routes_without_headers(TEST, network, "rt", Versions::Both);
        translates_without_headers(TEST, network, "rt");
    });
}

/// Goal: an interface that returns as one of the other kind is forwarded by the host, since the program is made for what it was, and by the program again
/// when it is what it was. Method: a tun interface, a veth pair of its name, and a tun interface again.
#[test]
fn an_interface_returns_as_another_kind() {
    const TEST: &str = "interfaces::an_interface_returns_as_another_kind";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let pump = Pump::new(network);
        join_by_ipv4(network, "rt", "ct");
        let folder = Folder::new();
        let mut router = forward(network, &folder, &["l3", "rt", "rb"]);
        let (port, socket) = (network.echo(), folder.path("stats"));
        until_the_program_sends(network, &folder, port);

        drop(pump);
        router.until("interface rt is gone");
        network.wire("rt", "10.5.0.1/24", &network.client, "ct", "10.5.0.2/24");
        network.client.run("ip route replace default via 10.5.0.1 dev ct");
        router.until("the host forwards: packets of rt have an Ethernet header now");
        let before = counter(&socket, "l3", "nic: sent_packets");
        assert!(call(&network.caller(), SERVER, port).starts_with(TUNNEL_CLIENT));
        stream(network, SERVER);
        assert_eq!(counter(&socket, "l3", "nic: sent_packets"), before);
        let flow = report(&socket)["flows"][0].clone();
        assert_eq!((&flow["path"], &flow["side"]), (&"af-packet".into(), &"host".into()));
        let sentence = flow["sentence"].as_str().expect("a sentence");
        let waits = "since its program waits until rt is what it was";
        assert!(sentence.contains(waits) && !sentence.contains("available"), "{sentence}");

        network.router.run("ip link del rt");
        let _pump = Pump::new(network);
        join_by_ipv4(network, "rt", "ct");
        router.until("its program is attached again");
        let caller = network.caller();
        until("packets that the program sends", || {
            call(&caller, SERVER, port);
            (counter(&socket, "l3", "nic: sent_packets") >= before + 10).then_some(())
        });
        let flow = report(&socket)["flows"][0].clone();
        assert_eq!(flow["path"], "tcx");
        let sentence = flow["sentence"].as_str().expect("a sentence");
        assert!(sentence.contains("the least of the paths available here"), "{sentence}");
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: each change of an interface's carrier is told once, on every path, from that at the start on. Method: the other end of a pair, which goes down and up.
#[test]
fn the_carrier_is_told() {
    const TEST: &str = "interfaces::the_carrier_is_told";
    with_network(TEST, |network| {
        for arguments in [
            &["l3", "ra", "rb", "--path", "af-packet"][..],
            &["l2", "ra", "rb", "--path", "af-packet"],
            &["l2", "ra", "rb", "--path", "tcx"],
        ] {
            if arguments[4] == "tcx" && !has_programs(TEST) {
                continue;
            }
            network.client.run("ip link set c0 down");
            // Which takes a moment.
            until("no carrier", || {
                network.router.run("ip link show ra").contains("NO-CARRIER").then_some(())
            });
            let folder = Folder::new();
            let mut flow = forward(network, &folder, arguments);
            flow.until("interface ra is down or has no carrier: waiting for it");
            network.client.run("ip link set c0 up");
            flow.until("interface ra is up");
            network.client.run("ip link set c0 down");
            let name = arguments[0];
            flow.until(&format!("flow `{name}`: interface ra is down or has no carrier"));
            let said = flow.end().said;
            assert_eq!(said.matches("interface ra is up").count(), 1, "{said}");
            assert_eq!(said.matches("interface ra is down").count(), 2, "{said}");
        }
    });
}

/// Goal: with several such interfaces the host forwards until all of them are what they were, and another one that is gone is left out. Method: two tun
/// interfaces that return as veth pairs and then, one after the other, as tun interfaces, while a third interface is renamed and removed.
#[test]
fn several_interfaces_return_as_another_kind() {
    const TEST: &str = "interfaces::several_interfaces_return_as_another_kind";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let far = || Pump::between(("st", &network.server), ("ru", &network.router));
        let join_far = || {
            network.router.run("ip addr add 10.6.0.1/24 dev ru; ip link set ru up");
            network.server.run("ip addr add 10.6.0.2/24 dev st; ip link set st up");
            network.server.run("ip route replace default via 10.6.0.1 dev st");
        };
        let pumps = [Pump::new(network), far()];
        join_by_ipv4(network, "rt", "ct");
        join_far();
        let folder = Folder::new();
        let mut router = forward(network, &folder, &["l3", "rt", "ru", "rb"]);
        let (port, socket, caller) = (network.echo(), folder.path("stats"), network.caller());
        let sent = || counter(&socket, "l3", "nic: sent_packets");
        let until_sent = |count: u64| {
            until("packets that the program sends", || {
                call(&caller, "10.6.0.2", port);
                (sent() >= count).then_some(())
            });
        };
        until_sent(10);

        for (pump, name) in pumps.into_iter().zip(["rt", "ru"]) {
            drop(pump);
            router.until(&format!("interface {name} is gone"));
        }
        network.wire("rt", "10.5.0.1/24", &network.client, "ct", "10.5.0.2/24");
        network.client.run("ip route replace default via 10.5.0.1 dev ct");
        router.until("packets of rt have an Ethernet header now");
        network.wire("ru", "10.6.0.1/24", &network.server, "st", "10.6.0.2/24");
        network.server.run("ip route replace default via 10.6.0.1 dev st");
        router.until("packets of ru have an Ethernet header now");
        let before = sent();
        call(&caller, "10.6.0.2", port);

        network.router.run("ip link del rt");
        let _near = Pump::new(network);
        join_by_ipv4(network, "rt", "ct");
        router.until("interface rt is back");
        for _ in 0..20 {
            call(&caller, "10.6.0.2", port);
        }
        let flow = report(&socket)["flows"][0].clone();
        assert_eq!((&flow["path"], &flow["side"]), (&"af-packet".into(), &"host".into()));
        assert_eq!(sent(), before, "{flow}");
        for change in ["set rb down", "set rb name rz", "del rz"] {
            network.router.run(&format!("ip link {change}"));
        }
        router.until("interface rb is gone (its name is rz now)");

        network.router.run("ip link del ru");
        let _far = far();
        join_far();
        router.until("its program is attached again");
        until_sent(before + 10);
        let flow = report(&socket)["flows"][0].clone();
        assert_eq!((&flow["path"], &flow["side"]), (&"tcx".into(), &"nic".into()));
        let ended = router.end();
        assert_eq!(ended.code(), 0);
        assert!(!ended.said.contains("its program cannot be attached"), "{}", ended.said);
    });
}

/// Goal: while an interface is of the other kind, load moves nothing, a `move` is remembered, and both go on when it is what it was. Method: a load
/// over the threshold and each `move` meanwhile; then a tun interface again, without load.
#[test]
fn a_move_waits_for_the_kind() {
    const TEST: &str = "interfaces::a_move_waits_for_the_kind";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let pump = Pump::new(network);
        join_by_ipv4(network, "rt", "ct");
        let folder = Folder::new();
        let mut router = forward(network, &folder, &[&["l3", "rt", "rb"][..], &MOVES].concat());
        let (port, socket, caller) = (network.echo(), folder.path("stats"), network.caller());
        let side = || report(&socket)["flows"][0]["side"].as_str().expect("a side").to_owned();
        drop(pump);
        router.until("interface rt is gone");
        network.wire("rt", "10.5.0.1/24", &network.client, "ct", "10.5.0.2/24");
        network.client.run("ip route replace default via 10.5.0.1 dev ct");
        router.until("packets of rt have an Ethernet header now");
        for _ in 0..100 {
            call(&caller, SERVER, port);
            thread::park_timeout(Duration::from_millis(11));
        }
        let to = |side, code| {
            let path = socket.to_str().expect("text");
            let (found, answer, said) = run(&folder, &["move", "l3", side, "--socket", path]);
            assert_eq!(found == 0, code == 0, "{said}");
            answer + &said
        };
        let deferred = to("nic", 0);
        let waits = "its program waits until rt is what it was";
        assert!(deferred.contains(r#""deferred":"l3""#) && deferred.contains(waits), "{deferred}");
        assert!(to("nic", 1).contains(waits));
        assert!(to("host", 0).contains(r#""moved":"l3""#));
        to("nic", 0);
        router.until(&format!("does not move to the nic yet: {waits}"));
        assert_eq!((&side()[..], counter(&socket, "l3", "migrations")), ("host", 0));

        network.router.run("ip link del rt");
        let _pump = Pump::new(network);
        join_by_ipv4(network, "rt", "ct");
        router.until("its program is attached again");
        router.until("flow `l3` moved to the host: ");
        assert_eq!((&side()[..], counter(&socket, "l3", "migrations")), ("host", 1));
        let ended = router.end();
        assert_eq!(ended.code(), 0);
        assert!(!ended.said.contains("does not move any more"), "{}", ended.said);
    });
}

/// Goal: the same for a tunnel of the kernel. Method: IPv4 in IPv4 over the wire between client and router.
#[test]
fn ipip_is_routed() {
    const TEST: &str = "interfaces::ipip_is_routed";
    with_network(TEST, |network| {
        if !has_kind(TEST, "ipip", "local 127.0.0.1 remote 127.0.0.2") {
            return;
        }
        let tunnel =
            |from, to| format!("ip link add name tunnel type ipip local {from} remote {to}");
        network.client.run(&tunnel(CLIENT, "10.1.0.1"));
        network.router.run(&tunnel("10.1.0.1", CLIENT));
        join(network, "tunnel", "tunnel");
        routes_without_headers(TEST, network, "tunnel", Versions::Ipv4);
        translates_without_headers(TEST, network, "tunnel");
    });
}

/// Goal: the same for WireGuard. Method: as before, with keys made by `wg`.
#[test]
fn wireguard_is_routed() {
    const TEST: &str = "interfaces::wireguard_is_routed";
    with_network(TEST, |network| {
        if !has_kind(TEST, "wireguard", "") {
            return;
        }
        if try_near("wg --version").is_err() {
            return skip(TEST, "wg (wireguard-tools)");
        }
        let folder = Folder::new();
        let key = |name: &str| {
            let path = folder.path(name);
            let path = path.to_str().expect("text").to_owned();
            let public = try_near(&format!("umask 077; wg genkey >{path}; wg pubkey <{path}"));
            (path, public.expect("a key").trim().to_owned())
        };
        let (client, router) = (key("client"), key("router"));
        for (host, own, peer, at, allowed) in [
            (&network.client, &client, &router, "10.1.0.1", "0.0.0.0/0,::/0"),
            (&network.router, &router, &client, CLIENT, "10.5.0.2/32,fd05::2/128"),
        ] {
            host.run("ip link add name wg0 type wireguard");
            host.run(&format!(
                "wg set wg0 listen-port 51820 private-key {} peer {} endpoint {at}:51820 allowed-ips {allowed}",
                own.0, peer.1
            ));
        }
        join(network, "wg0", "wg0");
        routes_without_headers(TEST, network, "wg0", Versions::Both);
        translates_without_headers(TEST, network, "wg0");
    });
}

/// Goal: packets that the host has not taken in time are told, with what to do about it, which depends on `segments`. Method: a router that stands still while more
/// packets come than its sockets have places for.
#[test]
fn late_packets_are_told() {
    with_network("interfaces::late_packets_are_told", |network| {
        let ends = ([10, 1, 0, 2], [10, 2, 0, 2]);
        let datagram = [0, 7, 0, 9, 0, 8, 0, 0];
        let frame = ip_frame(network.address_of("ra"), ends, (17, 1, 0x4000), &datagram);
        for (segments, words) in [("cut", "`--segments refuse`"), ("refuse", "processor time")] {
            let folder = Folder::new();
            let more = ["--path", "af-packet", "--segments", segments];
            let mut router = forward(network, &folder, &[&["l3", "ra", "rb"][..], &more].concat());
            router.signal(Signal::STOP);
            let frames = (0..9000).map(|_| frame.clone());
            network.client.inside(|| send_frames("c0", frames));
            router.signal(Signal::CONT);
            let said = router.until("flow `l3`: the host has not taken ");
            assert!(said.contains(words), "{said}");
            assert!(counter(&folder.path("stats"), "l3", "dropped: not taken in time") > 0);
            assert_eq!(router.end().code(), 0);
        }
    });
}
