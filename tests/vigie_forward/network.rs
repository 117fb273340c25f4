//! A client, a router and a server in network namespaces, without privilege where the host allows it.
//!
//! ```text
//!   client  c0 ── ra  router  rb ── s0  server
//!      10.1.0.2    10.1.0.1  10.2.0.1    10.2.0.2
//! ```
//! A test runs itself again under `unshare`: as root in a network namespace, or else in a user namespace too, where
//! packet sockets work and programs at interfaces do not. Where neither is possible it is skipped, and says so on the
//! standard error of the whole run.

use std::{net::UdpSocket, process::Command, thread, time::Duration};

use vigie::{
    forward::packet::{Packet, Port},
    via::link::{EtherType, Link, LinkError, MacAddress},
};

use crate::{
    instance::{BOUND, Folder, Instance, PROGRAM},
    kit::namespace::{Namespace, inside},
};

/// Runs `body` with a network; `test` is the name of the test that calls.
#[track_caller]
pub(crate) fn with_network(test: &str, body: impl FnOnce(&Network)) {
    // As root first: programs at interfaces need it.
    inside(test, &[&["-n"], &["-Urn"]], || body(&Network::new()));
}

/// A namespace.
pub(crate) struct Host(Namespace);

impl Host {
    pub(crate) fn new() -> Self {
        let host = Self(Namespace::new());
        host.run("ip link set dev lo up");
        host
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Runs a command there, which succeeds.
    #[track_caller]
    pub(crate) fn run(&self, command: &str) -> String {
        self.0.run(command)
    }

    /// Sets one of the kernel's settings there.
    #[track_caller]
    pub(crate) fn set(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/{name}");
        self.inside(|| {
            // Where that is not allowed, it may be so already.
            let written = std::fs::write(&path, value);
            let found = std::fs::read_to_string(&path).expect("a setting");
            assert_eq!(found.trim(), value, "{path}: {written:?}");
        });
    }

    /// Calls a function on a thread that is there.
    pub(crate) fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        self.0.enter(body)
    }

    /// Sends back what comes to a port of UDP, behind the sender's address. Ends with the test.
    pub(crate) fn echo(&self) -> u16 {
        let socket = self.inside(|| UdpSocket::bind("0.0.0.0:0").expect("a port"));
        let port = socket.local_addr().expect("bound").port();
        thread::spawn(move || {
            let mut message = [0; 2000];
            while let Ok((count, from)) = socket.recv_from(&mut message) {
                let reply = format!("{} {from}", String::from_utf8_lossy(&message[..count]));
                drop(socket.send_to(reply.as_bytes(), from));
            }
        });
        port
    }

    /// A socket of which a receive takes a moment.
    pub(crate) fn caller(&self) -> UdpSocket {
        let socket = self.inside(|| UdpSocket::bind("0.0.0.0:0").expect("a port"));
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        socket
    }

    /// Starts a forwarder there.
    pub(crate) fn forwarder(&self, folder: &Folder, arguments: &[&str]) -> Instance {
        let id = self.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &id, "-n", "--", PROGRAM]).args(arguments);
        Instance::of(&mut command, folder)
    }
}

pub(crate) struct Network {
    pub(crate) client: Host,
    pub(crate) router: Host,
    pub(crate) server: Host,
}

/// Addresses of the four ends.
pub(crate) const CLIENT: &str = "10.1.0.2";
pub(crate) const SERVER: &str = "10.2.0.2";

impl Network {
    fn new() -> Self {
        let network = Self { client: Host::new(), router: Host::new(), server: Host::new() };
        network.router.set("net/ipv4/ip_forward", "0");
        network.wire("ra", "10.1.0.1/24", &network.client, "c0", "10.1.0.2/24");
        network.wire("rb", "10.2.0.1/24", &network.server, "s0", "10.2.0.2/24");
        network.client.run("ip route add default via 10.1.0.1");
        network.server.run("ip route add default via 10.2.0.1");
        network
    }

    /// Makes a pair of interfaces between the router and another host.
    pub(crate) fn wire(&self, near: &str, address: &str, host: &Host, far: &str, its: &str) {
        let (router, id) = (&self.router, host.id());
        router.run(&format!("ip link add name {near} type veth peer name {far} netns {id}"));
        for (host, name, address) in [(router, near, address), (host, far, its)] {
            host.run(&format!("ip addr add {address} dev {name}"));
            host.run(&format!("ip link set dev {name} up"));
        }
    }

    /// Returns the address of an interface of the router.
    pub(crate) fn address_of(&self, near: &str) -> MacAddress {
        let text = self.router.run(&format!("ip -br link show dev {near}"));
        text.split_whitespace().nth(2).expect("three columns").parse().expect("an address")
    }

    /// Sends back, from the server, what comes to a port of UDP, behind the sender's address. Ends with the test.
    pub(crate) fn echo(&self) -> u16 {
        self.server.echo()
    }

    /// A socket of the client, of which a receive takes a moment.
    pub(crate) fn caller(&self) -> UdpSocket {
        self.client.caller()
    }
}

/// An IPv4 packet with right checksums, as a frame to `to`.
pub(crate) fn ip_frame(
    to: MacAddress,
    (source, destination): ([u8; 4], [u8; 4]),
    (protocol, number, fragment): (u8, u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).expect("it fits");
    let mut frame = [&to.0[..], &[2, 0, 0, 0, 0, 0x99, 8, 0, 0x45, 0]].concat();
    for word in [length, number, fragment] {
        frame.extend(word.to_be_bytes());
    }
    frame.extend([64, protocol, 0, 0]);
    frame.extend([source, destination].concat());
    frame.extend(payload);
    let mut packet = Packet::new(Port(0), &frame);
    packet.fill_checksums().expect("it is whole");
    packet.bytes().to_vec()
}

/// Sends frames by an interface of this thread's namespace; those for which there is no room are sent again.
pub(crate) fn send_frames(interface: &str, frames: impl Iterator<Item = Vec<u8>>) {
    let mut link = Link::builder(interface).ether_type(EtherType::ALL).open().expect("a link");
    for frame in frames {
        while let Err(error) = link.send_frame(&frame) {
            assert!(matches!(error, LinkError::Full), "{error}");
            link.flush().expect("it is up");
            thread::yield_now();
        }
    }
    while link.has_unsent() || link.is_sending() {
        link.flush().expect("it is up");
        thread::yield_now();
    }
}

/// Calls until there is an answer: some packets are lost while neighbours are asked for. Returns what came back.
#[track_caller]
pub(crate) fn call(socket: &UdpSocket, to: &str, port: u16) -> String {
    let tries = BOUND.as_millis() / 100;
    for number in 0..tries {
        let question = format!("call-{number}");
        if socket.send_to(question.as_bytes(), format!("{to}:{port}")).is_err() {
            thread::park_timeout(Duration::from_millis(100));
            continue;
        }
        if let Some(answer) = answer_to(socket, &question) {
            return answer;
        }
    }
    panic!("nobody answers at {to}:{port}");
}

/// Returns whether a call is answered now, without another try.
pub(crate) fn calls_through(socket: &UdpSocket, to: &str, port: u16, question: &str) -> bool {
    socket.send_to(question.as_bytes(), format!("{to}:{port}")).is_ok()
        && answer_to(socket, question).is_some()
}

fn answer_to(socket: &UdpSocket, question: &str) -> Option<String> {
    let mut answer = [0; 2000];
    // Those before it may still come.
    while let Ok(count) = socket.recv(&mut answer) {
        let text = String::from_utf8_lossy(&answer[..count]);
        if let Some(rest) = text.strip_prefix(question)
            && let Some(from) = rest.strip_prefix(' ')
        {
            return Some(from.to_owned());
        }
    }
    None
}
