//! Translations behind an address that the router has itself, beside the router's own connections.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    path::Path,
    thread,
};

use rustix::net::{AddressFamily, SocketType, ipproto, socket};

use crate::{
    instance::{BOUND, Folder, counter, report, run},
    network::{CLIENT, Host, Network, SERVER, call, calls_through, with_network},
    paths::{forward, has_programs, stream},
};

/// The router's address on the outside network.
const PUBLIC: &str = "10.2.0.1";
const NAT: [&str; 7] = ["nat", "--inside", "ra", "--outside", "rb", "--address", PUBLIC];
const PORTS: [&str; 2] = ["--ports", "61000-65535"];

/// The number of messages in each direction of a conversation.
const ROUNDS: u32 = 200;

/// Connects from one host to a listener of another one, to which `address` leads, and speaks in both directions. Returns the address
/// from which the listener sees the connection come.
#[track_caller]
fn converse(from: &Host, listens: &Host, at: &str, to: &str) -> String {
    let listener = listens.inside(|| TcpListener::bind(at).expect("a port"));
    let port = listener.local_addr().expect("bound").port();
    let to = if to.contains(':') { to.to_owned() } else { format!("{to}:{port}") };
    let server = thread::spawn(move || {
        let (mut stream, from) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(BOUND)).expect("a socket");
        for _ in 0..ROUNDS {
            let mut heard = [0; 4];
            stream.read_exact(&mut heard).expect("it comes");
            stream.write_all(&heard).expect("it is connected");
        }
        from.to_string()
    });
    let to = to.parse().expect("an address");
    let stream = from.inside(|| TcpStream::connect_timeout(&to, BOUND));
    let mut stream = stream.expect("a connection");
    stream.set_read_timeout(Some(BOUND)).expect("a socket");
    for round in 0..ROUNDS {
        stream.write_all(&round.to_ne_bytes()).expect("it is connected");
        let mut heard = [0; 4];
        stream.read_exact(&mut heard).expect("it comes");
        assert_eq!(heard, round.to_ne_bytes());
    }
    server.join().expect("it ends")
}

/// Sends an ICMP echo, and waits for the reply.
#[track_caller]
fn echo(from: &Host, to: &str) {
    from.set("net/ipv4/ping_group_range", "0\t0");
    let socket = from.inside(|| {
        let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
        UdpSocket::from(socket(family, kind, Some(ipproto::ICMP)).expect("a socket"))
    });
    socket.set_read_timeout(Some(BOUND)).expect("a socket");
    // The kernel fills in the checksum and the identifier.
    socket.send_to(&[8, 0, 0, 0, 0, 0, 0, 1, 7, 7], (to, 0)).expect("a route");
    let mut reply = [0; 64];
    let count = socket.recv(&mut reply).expect("a reply");
    assert_eq!((reply[0], &reply[count - 2..count]), (0, &[7, 7][..]));
}

/// All that passes while translations and the router share the address.
fn share(network: &Network, stats: &Path) {
    let Network { client, router, server } = network;
    let (port, caller) = (network.echo(), network.caller());
    let translated = |from: &str| {
        let port: u16 = from.strip_prefix("10.2.0.1:").expect(from).parse().expect("a port");
        assert!(port >= 61000, "{from}");
    };
    translated(&call(&caller, SERVER, port));
    translated(&converse(client, server, "0.0.0.0:0", SERVER));
    stream(network, SERVER);

    // The router's own, in both directions, and by its public address from inside.
    let own = converse(router, server, "0.0.0.0:0", SERVER);
    let own: u16 = own.strip_prefix("10.2.0.1:").expect(&own).parse().expect("a port");
    assert!(own < 61000, "{own}");
    let socket = router.inside(|| UdpSocket::bind("0.0.0.0:0").expect("a port"));
    socket.set_read_timeout(Some(std::time::Duration::from_millis(100))).expect("a socket");
    assert!(call(&socket, SERVER, port).starts_with("10.2.0.1:"));
    assert!(converse(server, router, "0.0.0.0:0", PUBLIC).starts_with("10.2.0.2:"));
    assert!(converse(client, router, "0.0.0.0:0", PUBLIC).starts_with("10.1.0.2:"));
    // Fragments, of which the kernel keeps only the router's own.
    let long = "x".repeat(1800);
    for one in [&caller, &socket] {
        one.set_read_timeout(Some(BOUND)).expect("a socket");
    }
    // Fragments go through the process; on a busy machine it may come late, which is counted.
    let late = || counter(stats, "nat", "dropped: not taken in time");
    let mut before = late();
    while !calls_through(&caller, SERVER, port, &long) {
        let losses = |host: &Host| host.run("cat /proc/net/softnet_stat /proc/net/snmp");
        let lost = || [client, router, server].map(losses).concat();
        assert!(late() > before, "{}\n{}", report(stats), lost());
        before = late();
    }
    let waiting = router.run("cat /proc/net/sockstat");
    assert!(waiting.contains("FRAG: inuse 0 memory 0"), "{waiting}");
    assert!(calls_through(&socket, SERVER, port, &long));

    for (host, to) in [(server, PUBLIC), (client, PUBLIC), (client, SERVER)] {
        echo(host, to);
    }

    // A published port, also from inside.
    let published = format!("{PUBLIC}:8080");
    assert!(converse(server, client, "0.0.0.0:80", &published).starts_with("10.2.0.2:"));
    let inside = converse(client, client, "0.0.0.0:80", &published);
    assert!(inside.starts_with("10.2.0.1:"), "{inside}");
}

/// Goal: translations and the router's own connections share its address, on every path and on either side; what the kernel gets is not
/// counted as lost; and without the program the kernel refuses what it does not know. Method: datagrams, connections, echoes and a
/// published port.
#[test]
fn the_host_has_the_public_address() {
    const TEST: &str = "own_address::the_host_has_the_public_address";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let publish = format!("tcp:8080={CLIENT}:80");
        let folder = Folder::new();
        let stats = folder.path("stats");
        for path in ["tcx", "xdp-generic"] {
            let publish = ["--publish", &publish, "--path", path];
            let mut nat = forward(network, &folder, &[&NAT[..], &PORTS, &publish].concat());
            share(network, &stats);

            // The program is before the one that keeps packets from the kernel: answers, too, leave by it.
            let by_host = || counter(&stats, "nat", "host: sent_packets");
            let before = by_host();
            converse(&network.client, &network.server, "0.0.0.0:0", SERVER);
            assert!(by_host() - before < u64::from(ROUNDS) / 2, "{path}");

            let socket = stats.to_str().expect("text");
            let (code, _, errors) = run(&folder, &["move", "nat", "host", "--socket", socket]);
            assert_eq!(code, 0, "{errors}");
            share(network, &stats);
            for lost in ["NAT knows no such flow", "NAT cannot translate it", "no route"] {
                assert_eq!(counter(&stats, "nat", &format!("dropped: {lost}")), 0, "{path}");
            }
            assert!(counter(&stats, "nat", "left_to_kernel") > 0);
            if path == "tcx" {
                network.router.run("ip addr del 10.2.0.1/24 dev rb");
                nat.until("10.2.0.1 is no address of this host any more");
                network.router.run("ip addr add 10.2.0.1/24 dev rb");
                nat.until("10.2.0.1 is an address of this host again");
                call(&network.caller(), SERVER, network.echo());
            }
            assert_eq!(nat.end().code(), 0);
        }
        let refused = network.server.inside(|| {
            TcpStream::connect_timeout(&"10.2.0.1:8080".parse().expect("an address"), BOUND)
        });
        let refused = refused.expect_err("nobody listens");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

/// Goal: ports that the router's own connections may have are refused at the start, with the remedy, and so is a path without the program.
/// Method: the default ports, a reservation, sockets that have one of the ports, and packet sockets.
#[test]
fn ports_of_the_host_are_refused() {
    const TEST: &str = "own_address::ports_of_the_host_are_refused";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let folder = Folder::new();
        let refused = |more: &[&str], expected: &str| {
            let ended = network.router.forwarder(&folder, &[&NAT[..], more].concat()).wait();
            assert_eq!(ended.code(), 2, "{}", ended.said);
            assert!(ended.said.contains(expected), "{}", ended.said);
        };
        refused(
            &["--ports", "32768-60999"],
            "choose ports outside of net.ipv4.ip_local_port_range (32768 to 60999)",
        );
        refused(&["--ports", "60999-62000"], "gives port 60999 of 60999-62000");
        let publish = ["--publish", "tcp:40000=10.1.0.2:80"];
        refused(&[&PORTS[..], &publish].concat(), "gives port 40000 of 40000");
        refused(&[&PORTS[..], &["--path", "af-packet"]].concat(), "needs no program");
        let used = "for translations (`ports`, `publish`), but a socket of this host has it";
        {
            let _socket = network.router.inside(|| UdpSocket::bind("0.0.0.0:61234").expect("free"));
            refused(&PORTS, &format!("udp port 61234 of 10.2.0.1 is {used}"));
        }
        {
            let _listener = network.router.inside(|| TcpListener::bind("[::]:8080").expect("free"));
            let publish = ["--publish", "tcp:8080=10.1.0.2:80"];
            refused(
                &[&PORTS[..], &publish].concat(),
                &format!("tcp port 8080 of 10.2.0.1 is {used}"),
            );
        }
        network.router.set("net/ipv4/ip_local_reserved_ports", "40000-50000");
        let nat = forward(network, &folder, &[&NAT[..], &["--ports", "40000-50000"]].concat());
        assert!(call(&network.caller(), SERVER, network.echo()).starts_with("10.2.0.1:4"));
        assert_eq!(nat.end().code(), 0);
    });
}

/// Goal: without an address, translations hide behind the one that the outside interface has, by ports above the kernel's, and follow it; an
/// interface without one is refused, and so are addresses that no host of the outside network can have. Method: another address instead,
/// as by DHCP, after none for a while.
#[test]
fn the_address_of_the_interface_is_followed() {
    const TEST: &str = "own_address::the_address_of_the_interface_is_followed";
    const NAT: [&str; 5] = ["nat", "--inside", "ra", "--outside", "rb"];
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let folder = Folder::new();
        let mut nat = forward(network, &folder, &NAT);
        let port = network.echo();
        let behind = |address: &str| {
            let seen = call(&network.caller(), SERVER, port);
            let by: u16 = seen
                .strip_prefix(address)
                .and_then(|rest| rest.strip_prefix(':'))
                .and_then(|port| port.parse().ok())
                .unwrap_or_else(|| panic!("{seen}"));
            assert!(by >= 61000, "{seen}");
        };
        behind("10.2.0.1");
        network.router.run("ip addr del 10.2.0.1/24 dev rb");
        nat.until("waits for another one of `rb`");
        // At the start this would be an error.
        let socket = network.router.inside(|| UdpSocket::bind("0.0.0.0:61234").expect("free"));
        network.router.run("ip addr add 10.2.0.7/24 dev rb");
        nat.until("udp port 61234 of 10.2.0.7 is for translations");
        nat.until("the address that it hides behind has changed");
        drop(socket);
        behind("10.2.0.7");
        converse(&network.router, &network.server, "0.0.0.0:0", SERVER);
        assert_eq!(nat.end().code(), 0);

        let refused = |more: &[&str], expected: &str| {
            let ended = network.router.forwarder(&folder, &[&NAT[..], more].concat()).wait();
            assert_eq!(ended.code(), 2, "{}", ended.said);
            assert!(ended.said.contains(expected), "{}", ended.said);
        };
        refused(&["--address", "10.1.0.9"], "10.1.0.9 is in a network behind `ra`");
        for address in ["10.2.0.0", "10.2.0.255", "10.1.0.255"] {
            refused(&["--address", address], "is the address of all hosts of 10.");
        }
        network.router.run("ip route add 10.0.0.0/8 via 10.1.0.2 dev ra");
        refused(&["--address", "10.3.0.9"], "10.3.0.9 is in a network behind `ra`");
        let nat = forward(network, &folder, &[&NAT[..], &["--address", "10.2.0.9"]].concat());
        assert!(call(&network.caller(), SERVER, port).starts_with("10.2.0.9:"));
        assert_eq!(nat.end().code(), 0);
        refused(&["--publish", "tcp:61001=10.1.0.2:80"], "port 61001 is published, but also");
        network.router.run("ip addr del 10.2.0.7/24 dev rb");
        refused(&[], "interface `rb` has no address of IPv4 behind which to hide");
    });
}
