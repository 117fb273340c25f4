//! What senders are told of packets that go no further: by sockets as `traceroute` has them, and by what kernels learn.

use std::{
    cell::Cell,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};

use crate::{
    instance::{BOUND, Folder, counter},
    network::{Host, Network, SERVER, call, with_network},
    paths::{forward, has_programs, stream},
};

/// The addresses of the router at the client's link.
const ROUTER: &str = "10.1.0.1";
const ROUTER_V6: &str = "fd01::1";
const SERVER_V6: &str = "fd02::2";
/// Nobody leads there.
const NOWHERE: &str = "10.9.0.1";
/// Unused addresses of the server's link.
const SILENT: &str = "10.2.0.77";
const SILENT_V6: &str = "fd02::77";
/// Nobody listens at it, nor at those that follow: they are below the ports that kernels choose (33434, where `traceroute` begins, is
/// among those, and the router's own socket may have got it).
const FIRST_PORT: u16 = 3434;

/// What the client is told of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    by: IpAddr,
    kind: u8,
    code: u8,
}

/// Sends datagrams of the client, and hears errors about them.
pub(crate) struct Prober<'a> {
    router: &'a Host,
    errors: UdpSocket,
    sender: UdpSocket,
    is_v6: bool,
    /// Another port for each question: what is told late of one before is not about this one.
    port: Cell<u16>,
}

impl<'a> Prober<'a> {
    pub(crate) fn new(network: &'a Network, is_v6: bool) -> Self {
        let (family, protocol, any) = if is_v6 {
            (AddressFamily::INET6, ipproto::ICMPV6, "[::]:0")
        } else {
            (AddressFamily::INET, ipproto::ICMP, "0.0.0.0:0")
        };
        let (errors, sender) = network.client.inside(|| {
            let errors = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol));
            (UdpSocket::from(errors.expect("a right")), UdpSocket::bind(any).expect("a port"))
        });
        errors.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        Self { router: &network.router, errors, sender, is_v6, port: Cell::new(FIRST_PORT) }
    }

    /// Sends datagrams that may cross `hops` routers until one is told about: some are lost while neighbours are asked for.
    #[track_caller]
    pub(crate) fn probe(&self, to: &str, hops: u8) -> Told {
        if self.is_v6 {
            sockopt::set_ipv6_unicast_hops(&self.sender, Some(hops)).expect("a socket");
        } else {
            self.sender.set_ttl(hops.into()).expect("a socket");
        }
        self.port.set(self.port.get() + 1);
        let to = SocketAddr::new(to.parse().expect("an address"), self.port.get());
        for _ in 0..BOUND.as_millis() / 100 {
            // An error that was heard of already is told again by the next call.
            let _ = self.sender.send_to(b"probe", to);
            if let Some(told) = self.heard() {
                return told;
            }
        }
        panic!(
            "nobody tells what became of packets to {to} over {hops} hops; the router has\n{}{}",
            self.router.run("cat /proc/net/udp /proc/net/snmp"),
            self.router.run("ip neigh"),
        );
    }

    /// Returns the first error about a datagram of ours.
    fn heard(&self) -> Option<Told> {
        let mut bytes = [0; 2000];
        let (count, by) = self.errors.recv_from(&mut bytes).ok()?;
        // Version 4 shows its header, and version 6 does not.
        let (at, quoted) = if self.is_v6 { (0, 48) } else { (20, 48) };
        let message = bytes.get(at..count)?;
        let ports = [self.sender.local_addr().expect("bound").port(), self.port.get()];
        let is_ours = bytes.get(quoted..quoted + 4)? == ports.map(u16::to_be_bytes).concat();
        is_ours.then(|| Told { by: by.ip(), kind: message[0], code: message[1] })
    }
}

pub(crate) fn told(by: &str, kind: u8, code: u8) -> Told {
    Told { by: by.parse().expect("an address"), kind, code }
}

/// Walks to the server as `traceroute` does, asks for what is nowhere, and learns the MTU of the path by datagrams that are too long
/// for it.
#[track_caller]
fn discover(network: &Network) {
    let prober = Prober::new(network, false);
    assert_eq!(prober.probe(SERVER, 1), told(ROUTER, 11, 0));
    assert_eq!(prober.probe(SERVER, 2), told(SERVER, 3, 3));
    assert_eq!(prober.probe(NOWHERE, 9), told(ROUTER, 3, 0));
    // A neighbour that does not answer, once packets have waited for it.
    assert_eq!(prober.probe(SILENT, 9), told(ROUTER, 3, 1));
    // To the router itself: its kernel says that nobody listens, and nothing has expired.
    assert_eq!(prober.probe(ROUTER, 1), told(ROUTER, 3, 3));
    let (port, caller) = (network.echo(), network.caller());
    let learned = || network.client.run(&format!("ip route get {SERVER}")).contains("mtu 1300");
    call(&caller, SERVER, port);
    assert!(!learned());
    let long = [b'x'; 1400];
    for _ in 0..BOUND.as_millis() / 100 {
        // Refused here once the MTU is known: then it is sent again, in fragments.
        let _ = caller.send_to(&long, format!("{SERVER}:{port}"));
        let mut answer = [0; 2000];
        if caller.recv(&mut answer).is_ok_and(|count| count > long.len()) {
            assert!(learned());
            return;
        }
    }
    panic!("datagrams of {} bytes vanish", long.len());
}

/// Makes the link to the server shorter than the client's.
fn narrow(network: &Network) {
    network.router.run("ip link set dev rb mtu 1300");
    network.server.run("ip link set dev s0 mtu 1300");
}

/// Goal: whoever sends through a router learns why packets go no further, and goes on with shorter ones; streams are cut to what the
/// next link takes. Method: a walk, an address without a route, datagrams of 1400 bytes and a stream over a link of 1300.
#[test]
fn a_router_tells() {
    with_network("errors::a_router_tells", |network| {
        let folder = Folder::new();
        narrow(network);
        let router = forward(network, &folder, &["l3", "ra", "rb", "--path", "af-packet"]);
        discover(network);
        stream(network, SERVER);
        let socket = folder.path("stats");
        assert!(counter(&socket, "l3", "ICMP errors sent") >= 3);
        assert_eq!(counter(&socket, "l3", "ICMP errors suppressed"), 0);
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: the same where a program at the interfaces forwards: what it cannot say, it leaves to the host. Method: as before.
#[test]
fn a_router_with_a_program_tells() {
    with_network("errors::a_router_with_a_program_tells", |network| {
        if !has_programs("errors::a_router_with_a_program_tells") {
            return;
        }
        let folder = Folder::new();
        narrow(network);
        let router = forward(network, &folder, &["l3", "ra", "rb", "--path", "xdp-generic"]);
        discover(network);
        let socket = folder.path("stats");
        assert!(counter(&socket, "l3", "nic: sent_packets") > 0);
        assert!(counter(&socket, "l3", "ICMP errors sent") >= 3);
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: in version 6 as well. Method: a walk, an address without a route, and datagrams that are too long, by addresses that the
/// router was given while it ran.
#[test]
fn a_router_tells_in_version_6() {
    with_network("errors::a_router_tells_in_version_6", |network| {
        let folder = Folder::new();
        // The shortest of version 6 is 1280.
        narrow(network);
        let router = forward(network, &folder, &["l3", "ra", "rb", "--path", "af-packet"]);
        for (host, name, address) in [
            (&network.router, "ra", ROUTER_V6),
            (&network.router, "rb", "fd02::1"),
            (&network.client, "c0", "fd01::2"),
            (&network.server, "s0", SERVER_V6),
        ] {
            host.run(&format!("ip -6 addr add {address}/64 dev {name} nodad"));
        }
        network.client.run("ip -6 route add default via fd01::1");
        network.server.run("ip -6 route add default via fd02::1");
        let prober = Prober::new(network, true);
        assert_eq!(prober.probe(SERVER_V6, 1), told(ROUTER_V6, 3, 0));
        assert_eq!(prober.probe(SERVER_V6, 2), told(SERVER_V6, 1, 4));
        assert_eq!(prober.probe("fd09::1", 9), told(ROUTER_V6, 1, 0));
        assert_eq!(prober.probe(SILENT_V6, 9), told(ROUTER_V6, 1, 3));
        let learned =
            || network.client.run(&format!("ip -6 route get {SERVER_V6}")).contains("mtu 1300");
        assert!(!learned());
        sockopt::set_ipv6_unicast_hops(&prober.sender, Some(9)).expect("a socket");
        for _ in 0..BOUND.as_millis() / 100 {
            let _ = prober
                .sender
                .send_to(&[b'x'; 1400], format!("[{SERVER_V6}]:{}", prober.port.get()));
            if prober.heard() == Some(told(ROUTER_V6, 2, 0)) {
                break;
            }
        }
        assert!(learned());
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: a translator tells those inside about packets as they sent them. Method: a walk through it, whose second answer comes from
/// the server and is translated back.
#[test]
fn a_translator_tells() {
    with_network("errors::a_translator_tells", |network| {
        let folder = Folder::new();
        network.server.run("ip route del default");
        narrow(network);
        let arguments = ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9"];
        let router =
            forward(network, &folder, &[&arguments[..], &["--path", "af-packet"]].concat());
        discover(network);
        assert!(counter(&folder.path("stats"), "nat", "ICMP errors sent") >= 3);
        assert_eq!(router.end().code(), 0);
    });
}
