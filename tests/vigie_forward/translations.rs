//! Translations that outlive their process.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    process::Command,
    time::Duration,
};

use rustix::process::Signal;
use vigie::via::link::{EtherType, Link};

use crate::{
    instance::{BOUND, Folder, Instance, PROGRAM, counter, report},
    network::{Network, SERVER, call, with_network},
    paths::{forward, has_programs},
};

const NAT: [&str; 7] = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"];

/// Starts a translator that keeps its state in `state` of the folder.
fn keeping(network: &Network, folder: &Folder) -> Instance {
    keeping_with(network, folder, &[])
}

fn keeping_with(network: &Network, folder: &Folder, more: &[&str]) -> Instance {
    let state = folder.path("state");
    let state = ["--state", state.to_str().expect("text")];
    forward(network, folder, &[&NAT[..], &state, more].concat())
}

/// Goal: connections and sessions go on after the translator was ended and started again, from the same public ports; a translator
/// that was killed goes on with what it wrote before. Method: a connection and a socket of UDP that call before and after, and again after
/// a kill.
#[test]
fn connections_outlive_a_restart() {
    with_network("translations::connections_outlive_a_restart", |network| {
        let folder = Folder::new();
        let router = keeping(network, &folder);
        let (port, caller) = (network.echo(), network.caller());
        let from = call(&caller, SERVER, port);
        assert!(from.starts_with("10.2.0.9:"), "{from}");
        let listener = network.server.inside(|| TcpListener::bind("0.0.0.0:0").expect("a port"));
        let to = format!("{SERVER}:{}", listener.local_addr().expect("bound").port());
        let to = to.parse().expect("an address");
        let mut client =
            network.client.inside(|| TcpStream::connect_timeout(&to, BOUND).expect("a connection"));
        let (mut server, _) = listener.accept().expect("a connection");
        client.set_read_timeout(Some(BOUND)).expect("a socket");
        server.set_read_timeout(Some(BOUND)).expect("a socket");
        let mut speak = || {
            let mut heard = [0; 4];
            client.write_all(b"ping").expect("it is connected");
            server.read_exact(&mut heard).expect("it comes");
            server.write_all(b"pong").expect("it is connected");
            client.read_exact(&mut heard).expect("it comes");
            assert_eq!(&heard, b"pong");
        };
        speak();
        assert_eq!(router.end().code(), 0);

        let mut router = keeping(network, &folder);
        router.until("goes on with ");
        speak();
        assert_eq!(call(&caller, SERVER, port), from);
        router.signal(Signal::KILL);
        let _ = router.wait();

        let mut router = keeping(network, &folder);
        router.until("goes on with ");
        speak();
        assert_eq!(call(&caller, SERVER, port), from);
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: a file that is cut off, or is something else, is said and stops nothing, while a folder that does
/// not exist is refused. Method: a start with each; the file is whole again after the end.
#[test]
fn a_bad_file_stops_nothing() {
    with_network("translations::a_bad_file_stops_nothing", |network| {
        let folder = Folder::new();
        let (port, caller) = (network.echo(), network.caller());
        let router = keeping(network, &folder);
        call(&caller, SERVER, port);
        assert_eq!(router.end().code(), 0);
        let whole = std::fs::read(folder.path("state")).expect("it was written");
        for (bytes, word) in [
            (&whole[..whole.len() - 1], "was not written to the end"),
            (&b"[[nat]]"[..], "holds no translated flows"),
        ] {
            std::fs::write(folder.path("state"), bytes).expect("it is ours");
            let mut router = keeping(network, &folder);
            router.until(word);
            call(&caller, SERVER, port);
            assert!(counter(&folder.path("stats"), "nat", "translations") > 0);
            assert_eq!(router.end().code(), 0);
            let mut router = keeping(network, &folder);
            router.until("goes on with ");
            assert_eq!(router.end().code(), 0);
        }

        let config = format!(
            "[[nat]]\nname = 'nat'\ninside = ['ra']\noutside = 'rb'\naddress = '10.2.0.9'\nstate = '{}'\n",
            folder.path("none/state").display()
        );
        let file = folder.write("config.toml", &config);
        let arguments = ["run", "--config", file.to_str().expect("text")];
        let ended = network.router.forwarder(&folder, &arguments).wait();
        assert_eq!(ended.code(), 2, "{}", ended.said);
        for words in ["line 6", "`state`: ", "its folder does not exist"] {
            assert!(ended.said.contains(words), "{}", ended.said);
        }
    });
}

/// Goal: on a full disk the old file stays, nothing else does, and that is said. Method: a file system of 16 KiB, in a mount namespace of
/// the translator, with 600 flows.
#[test]
fn a_full_disk_is_told() {
    const TEST: &str = "translations::a_full_disk_is_told";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let folder = Folder::new();
        let disk = folder.path("disk");
        std::fs::create_dir(&disk).expect("it is ours");
        let id = network.router.id().to_string();
        let script = format!(
            "mount -t tmpfs -o size=16k tmpfs {0} && echo old > {0}/state && exec \"$@\"",
            disk.display()
        );
        let state = disk.join("state");
        let stats = folder.path("stats");
        let mut command = Command::new("nsenter");
        command.args(["-t", &id, "-n", "--", "unshare", "-m", "sh", "-c"]);
        command.args([&script, "sh", PROGRAM]).args(NAT);
        command.arg("--state").arg(&state).arg("--stats-socket").arg(&stats);
        let mut router = Instance::of(&mut command, &folder).ready();
        router.until("holds no translated flows");
        let (port, caller) = (network.echo(), network.caller());
        call(&caller, SERVER, port);
        let sockets: Vec<UdpSocket> = (0..600).map(|_| network.caller()).collect();
        while counter(&stats, "nat", "translations") < 500 {
            for socket in &sockets {
                let _ = socket.send_to(b"one", (SERVER, port));
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        let said = router.until("its translations are not kept");
        assert!(said.contains("No space left on device"), "{said}");
        let seen = format!("/proc/{}/root{}", router.id(), disk.display());
        let files = std::fs::read_dir(&seen).expect("it runs");
        assert_eq!(files.count(), 1);
        assert_eq!(std::fs::read(format!("{seen}/state")).expect("it stays"), b"old\n");
    });
}

/// Goal: one state file has one flow at a time, of this process or another; the one that is refused says which file and whose; and
/// a killed holder frees it. Method: two translators between other interfaces, while the first one runs, after it was killed, and one
/// file with both.
#[test]
fn a_state_file_has_one_flow() {
    with_network("translations::a_state_file_has_one_flow", |network| {
        let folder = Folder::new();
        network.router.run("ip link add rc type veth peer name rd");
        let state = folder.path("state");
        let state = state.to_str().expect("text");
        let other = ["nat", "--inside", "rc", "--outside", "rd", "--address", "10.4.0.9"];
        let other = [&other[..], &["--from", "10.3.0.0/24", "--state", state]].concat();
        let refused = |other: &[&str], words: &str| {
            let ended = network.router.forwarder(&Folder::new(), other).wait();
            assert_eq!(ended.code(), 2, "{}", ended.said);
            let expected = format!("{state} keeps the translations of another flow{words}");
            assert!(ended.said.contains(&expected), "{}", ended.said);
        };
        let first = keeping(network, &folder);
        let call_once = || call(&network.caller(), SERVER, network.echo());
        call_once();
        // `nsenter` has become the forwarder.
        refused(&other, &format!(" (process {})", first.id()));
        call_once();
        first.signal(Signal::KILL);
        let _ = first.wait();
        let second = network.router.forwarder(&folder, &other).ready();
        assert_eq!(second.end().code(), 0);

        // By another path, so that only the lock shows it.
        let same = folder.path("same");
        std::os::unix::fs::symlink(&folder.0, &same).expect("it is ours");
        let flows = format!(
            "[[nat]]\nname = 'one'\ninside = ['ra']\noutside = 'rb'\naddress = '10.2.0.9'\nstate = '{state}'\n\
             [[nat]]\nname = 'two'\ninside = ['rc']\noutside = 'rd'\naddress = '10.4.0.9'\nfrom = ['10.3.0.0/24']\n\
             state = '{}/state'\n",
            same.display()
        );
        let file = folder.write("config.toml", &flows);
        let file = ["run", "--config", file.to_str().expect("text")];
        let ended = network.router.forwarder(&Folder::new(), &file).wait();
        assert_eq!(ended.code(), 2, "{}", ended.said);
        let expected = format!(
            "{}/state keeps the translations of another flow of this process",
            same.display()
        );
        assert!(ended.said.contains(&expected), "{}", ended.said);
    });
}

/// Goal: with `--ports-per-host`, each inside host gets ports of its own block alone; a host with a full block is refused and named, another
/// one is not; and after a restart connections go on from the same ports, unless the settings give these to another host. Method: two hosts
/// with four ports each, datagrams, and connections that fill a block.
#[test]
fn hosts_have_their_own_ports() {
    with_network("translations::hosts_have_their_own_ports", |network| {
        own_ports(network, "af-packet");
    });
}

/// Goal: the same by a program, which only gets what the host has translated. Method: the same.
#[test]
fn hosts_have_their_own_ports_in_a_program() {
    const TEST: &str = "translations::hosts_have_their_own_ports_in_a_program";
    with_network(TEST, |network| {
        if has_programs(TEST) {
            own_ports(network, "tcx");
        }
    });
}

/// A socket of a certain address of the client.
fn caller_from(network: &Network, from: &str) -> UdpSocket {
    let socket = network.client.inside(|| UdpSocket::bind(from).expect("a port"));
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
    socket
}

/// Calls from a socket. Returns the port that the server sees.
fn public_port(caller: &UdpSocket, port: u16) -> u16 {
    let seen = call(caller, SERVER, port);
    let found = seen.strip_prefix("10.2.0.9:").and_then(|port| port.parse().ok());
    found.unwrap_or_else(|| panic!("{seen}"))
}

fn speak((client, server): &mut (TcpStream, TcpStream)) {
    let mut heard = [0; 4];
    client.write_all(b"ping").expect("it is connected");
    server.read_exact(&mut heard).expect("it comes");
    server.write_all(b"pong").expect("it is connected");
    client.read_exact(&mut heard).expect("it comes");
}

/// Waits until a flow has asked its program which translations are in use: it does so every 100 ms.
fn until_refreshed(folder: &Folder) {
    let uptime = || report(&folder.path("stats"))["uptime_ms"].as_u64().expect("a number");
    let from = uptime();
    while uptime() < from + 300 {
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn own_ports(network: &Network, path: &str) {
    network.client.run("ip addr add 10.1.0.3/24 dev c0");
    let (folder, port) = (Folder::new(), network.echo());
    let start = |from: &str| {
        let blocks = ["--from", from, "--ports", "40000-40031", "--ports-per-host", "4"];
        let more = [&blocks[..], &["--path", path]].concat();
        keeping_with(network, &folder, &more)
    };
    let mut nat = start("10.1.0.0/29");
    // Also where the source's port is a low one.
    for (from, block) in [("10.1.0.2:700", 40008..=40011), ("10.1.0.3:0", 40012..=40015)] {
        for _ in 0..3 {
            let seen = public_port(&caller_from(network, from), port);
            assert!(block.contains(&seen), "{from}: {seen}");
        }
    }

    let listener = network.server.inside(|| TcpListener::bind("0.0.0.0:0").expect("a port"));
    let to = format!("{SERVER}:{}", listener.local_addr().expect("bound").port());
    let to = to.parse().expect("an address");
    let connect = || network.client.inside(|| TcpStream::connect_timeout(&to, BOUND));
    let connected = || {
        let client = connect().expect("it has a port");
        let (server, from) = listener.accept().expect("a connection");
        client.set_read_timeout(Some(BOUND)).expect("a socket");
        server.set_read_timeout(Some(BOUND)).expect("a socket");
        assert!((40008..=40011).contains(&from.port()), "{from}");
        (client, server)
    };
    let mut connections = [(); 4].map(|()| connected());
    connections.iter_mut().for_each(speak);
    until_refreshed(&folder);
    connect().expect_err("it has no port left");
    nat.until("10.1.0.2, which uses all of its ports (40008-40011)");
    let other = caller_from(network, "10.1.0.3:0");
    let of_other = public_port(&other, port);
    assert!((40012..=40015).contains(&of_other), "{of_other}");
    assert_eq!(counter(&folder.path("stats"), "nat", "translations: ended for others"), 0);
    assert_eq!(nat.end().code(), 0);

    let mut nat = start("10.1.0.0/29");
    nat.until("goes on with ");
    connections.iter_mut().for_each(speak);
    connect().expect_err("it has no port left");
    assert_eq!(public_port(&other, port), of_other);
    if path == "tcx" {
        let by_program = counter(&folder.path("stats"), "nat", "nic: sent_packets");
        assert!(by_program >= 8, "{by_program}");
    }
    assert_eq!(nat.end().code(), 0);

    let mut nat = start("10.1.0.2/31");
    nat.until("have no place in its settings");
    let seen = public_port(&caller_from(network, "10.1.0.2:0"), port);
    assert!((40000..=40003).contains(&seen), "{seen}");
    assert_eq!(nat.end().code(), 0);
}

/// Goal: a public address that another host of the outside network has is refused, with that host's Ethernet address, and one that may not be reached is told; a
/// translator that was killed does not stand in the way of the next one. Method: addresses of the server, one that it has lost, one of no network,
/// and no carrier.
#[test]
fn an_address_of_another_host_is_refused() {
    const TEST: &str = "translations::an_address_of_another_host_is_refused";
    with_network(TEST, |network| {
        let nat = |address: &str| {
            let nat = ["nat", "--inside", "ra", "--outside", "rb", "--path", "af-packet"];
            network.router.forwarder(&Folder::new(), &[&nat[..], &["--address", address]].concat())
        };
        network.server.run("ip addr add 10.2.0.9/24 dev s0");
        let link = network.server.run("ip -br link show dev s0");
        let mac = link.split_whitespace().nth(2).expect("three columns");
        for address in ["10.2.0.9", SERVER] {
            let ended = nat(address).wait();
            assert_eq!(ended.code(), 2, "{}", ended.said);
            let expected =
                format!("another host at `rb` has {address} (its Ethernet address is {mac})");
            assert!(ended.said.contains(&expected), "{}", ended.said);
        }
        network.server.run("ip addr del 10.2.0.9/24 dev s0");
        let mut first = nat("10.2.0.9").ready();
        assert!(call(&network.caller(), SERVER, network.echo()).starts_with("10.2.0.9:"));
        network.server.run("ip addr add 10.2.0.9/24 dev s0");
        // From this address, it asks for another one.
        let sender = network.server.inside(|| UdpSocket::bind("10.2.0.9:0").expect("its own"));
        sender.send_to(b"x", "10.2.0.77:9").expect("it asks for the neighbour first");
        first.until(&format!("has 10.2.0.9, too (its Ethernet address is {mac})"));
        network.server.run("ip addr del 10.2.0.9/24 dev s0");
        first.signal(Signal::KILL);
        drop(first.wait());
        let ended = nat("10.2.0.9").ready().end();
        assert_eq!(ended.code(), 0);
        assert!(!ended.said.contains("is in no network"), "{}", ended.said);

        // As a router with proxy ARP does, it answers for an address of no network on the link.
        network.server.run("ip addr add 203.0.113.9/32 dev lo");
        let mut elsewhere = nat("203.0.113.9").ready();
        elsewhere.until(&format!(
            "another host at `rb` answers for 203.0.113.9 (its Ethernet address is {mac}): unless it is a router"
        ));
        elsewhere.until("203.0.113.9 is in no network of `rb`");
        assert_eq!(elsewhere.end().code(), 0);
        network.server.run("ip link set s0 down");
        let mut down = nat("10.2.0.9").ready();
        down.until("whether another host at rb has the address 10.2.0.9 is unknown: the interface");
        assert_eq!(down.end().code(), 0);
        if has_programs(TEST) {
            let nat = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.1.0.1"];
            let mut inside = network.router.forwarder(&Folder::new(), &nat).ready();
            inside.until("10.1.0.1 is in the network of an inside interface (ra)");
            assert_eq!(inside.end().code(), 0);
        }
    });
}

/// Goal: a reload to an address that another host has, or to an outside interface where one has it, is refused before anything ends, at the key, and translations go on; one that keeps the address only
/// names the host, and an answer of the running flow itself does not count. Method: addresses of the server, another `idle`, and another outside interface on the same link.
#[test]
fn reloads_ask_for_new_addresses() {
    with_network("translations::reloads_ask_for_new_addresses", |network| {
        network.server.run("ip link add br0 type bridge");
        network.server.run("ip addr flush dev s0");
        network.server.run("ip addr add 10.2.0.2/24 dev br0");
        network.wire("rc", "10.2.255.4/16", &network.server, "s1", "10.9.0.1/24");
        for name in ["s0", "s1"] {
            network.server.run(&format!("ip link set {name} master br0"));
        }
        network.server.run("ip link set br0 up");
        network.server.run("ip route add default via 10.2.0.1");
        let folder = Folder::new();
        let write = |outside: &str, address: &str, idle: &str| {
            let text = format!(
                "[[nat]]\nname = 'nat'\ninside = ['ra']\noutside = '{outside}'\naddress = '{address}'\nidle = '{idle}'\n\
                 path = 'af-packet'\n"
            );
            folder.write("nat.toml", &text)
        };
        let file = write("rb", "10.2.0.9", "5m");
        let arguments = ["run", "--config", file.to_str().expect("text")];
        let mut nat = network.router.forwarder(&folder, &arguments).ready();
        let (port, caller) = (network.echo(), network.caller());
        let seen = call(&caller, SERVER, port);
        assert!(seen.starts_with("10.2.0.9:"), "{seen}");
        let mut reload = |outside: &str, address: &str, idle: &str, expected: &[&str]| {
            write(outside, address, idle);
            nat.said.clear();
            nat.signal(Signal::HUP);
            nat.until("SIGHUP: ");
            for words in expected {
                let said = nat.said.join("\n");
                assert!(said.contains(words), "{words}: {said}");
            }
        };
        network.server.run("ip addr add 10.2.0.8/24 dev br0");
        let at = "SIGHUP: all flows go on as before: ";
        let key = "nat.toml, line 5, column 11: flow `nat`: another host at `rb` has 10.2.0.8";
        reload("rb", "10.2.0.8", "5m", &[at, key, "stop that host or take the address from it"]);
        assert_eq!(call(&caller, SERVER, port), seen);
        reload("rc", "10.2.0.9", "5m", &["SIGHUP: flows: 0 unchanged, 1 ended, 1 new, 0 failed"]);
        reload("rb", "10.2.0.9", "5m", &["SIGHUP: flows: 0 unchanged, 1 ended, 1 new, 0 failed"]);
        let seen = call(&caller, SERVER, port);
        network.server.run("ip addr add 10.2.0.9/24 dev br0");
        let answers = "flow `nat`: another host at `rb` answers for 10.2.0.9";
        reload("rb", "10.2.0.9", "6m", &[answers, "1 ended, 1 new, 0 failed"]);
        reload("rc", "10.2.0.9", "6m", &[at, "another host at `rc` has 10.2.0.9"]);
        network.server.run("ip addr del 10.2.0.9/24 dev br0");
        assert!(call(&caller, SERVER, port).starts_with("10.2.0.9:"), "{seen}");
        assert_eq!(nat.end().code(), 0);
    });
}

/// Returns the number of ARP packets that have arrived for an address since the last call.
fn asked_for(link: &mut Link, address: [u8; 4]) -> usize {
    let mut count = 0;
    let received = link.recv_each(64, |frame| {
        let mut bytes = vec![0; frame.len()];
        frame.read(0, &mut bytes);
        count += usize::from(bytes.get(38..42) == Some(&address));
    });
    received.expect("it is up");
    count
}

/// Goal: while a reload asks for an address, the instance answers. Method: a report after the first of three probes has come and before the last one; a busy machine gets several tries.
#[test]
fn reports_go_on_while_a_reload_asks() {
    with_network("translations::reports_go_on_while_a_reload_asks", |network| {
        let folder = Folder::new();
        let stats = folder.path("stats");
        let write = |last: u8| {
            let text = format!(
                "[process]\nstats_socket = '{}'\n[[nat]]\nname = 'nat'\ninside = ['ra']\noutside = 'rb'\npath = 'af-packet'\n\
                 address = '10.2.0.{last}'\n",
                stats.display()
            );
            folder.write("nat.toml", &text)
        };
        let file = write(9);
        let arguments = ["run", "--config", file.to_str().expect("text")];
        let mut nat = network.router.forwarder(&folder, &arguments).ready();
        let link = || Link::builder("s0").ether_type(EtherType::ARP).open().expect("a link");
        let mut link = network.server.inside(link);
        let is_answered = (20..30).any(|last| {
            write(last);
            nat.said.clear();
            nat.signal(Signal::HUP);
            let address = [10, 2, 0, last];
            let mut waits = 0..BOUND.as_millis();
            let mut probes = 0;
            while probes == 0 {
                assert!(waits.next().is_some(), "no probe has come");
                std::thread::park_timeout(Duration::from_millis(1));
                probes = asked_for(&mut link, address);
            }
            report(&stats);
            probes += asked_for(&mut link, address);
            nat.until("SIGHUP: flows: 0 unchanged, 1 ended, 1 new");
            probes < 3
        });
        assert!(is_answered, "each report came after all probes");
        assert_eq!(nat.end().code(), 0);
    });
}

/// Goal: packets that leave to the outside with their own address are counted and told once, on every path; and `from` that names no network inside is told at
/// the start. Method: calls from a host that `from` leaves out, and from one that it has.
#[test]
fn what_is_not_translated_is_told() {
    const TEST: &str = "translations::what_is_not_translated_is_told";
    with_network(TEST, |network| {
        for path in ["af-packet", "tcx"] {
            if path == "tcx" && !has_programs(TEST) {
                continue;
            }
            let (folder, port, caller) = (Folder::new(), network.echo(), network.caller());
            let start = |from| {
                forward(network, &folder, &[&NAT[..], &["--from", from, "--path", path]].concat())
            };
            let untranslated = || counter(&folder.path("stats"), "nat", "untranslated");
            let right = start("10.1.0.0/30");
            assert!(call(&caller, SERVER, port).starts_with("10.2.0.9:"));
            assert_eq!(untranslated(), 0);
            let said = right.end().said;
            assert!(!said.contains("`from` has"), "{said}");

            let mut wrong = start("10.9.0.0/24");
            wrong
                .until("`from` has 10.9.0.0/24, but ra reaches no address of it, only 10.1.0.0/24");
            for _ in 0..3 {
                assert!(call(&caller, SERVER, port).starts_with("10.1.0.2:"));
            }
            wrong.until("forwards packets from 10.1.0.2 to the outside untranslated");
            assert!(untranslated() >= 3);
            let ended = wrong.end();
            assert_eq!(ended.code(), 0);
            assert_eq!(ended.said.matches("untranslated, since").count(), 1, "{}", ended.said);

            let mut wide = start("10.0.0.0/8");
            assert!(call(&caller, SERVER, port).starts_with("10.1.0.2:"));
            wide.until("untranslated, since their destination is in the networks");
            assert_eq!(wide.end().code(), 0);
        }
    });
}
