//! Datagrams through a relay, as many as it takes with a few under way: source and sink are one thread, which never sleeps.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use vigie_via::link::{BackEnd, Link, LinkError};

use super::echo::{echoed, processor_time};
use super::links::{MACS, SOURCE, SOURCE_INTERFACE};
use super::role::{LoadResult, LoadRole, PING_BYTES, WARM_UP};
use crate::clock::{nanoseconds, now, sleep};
use crate::error::Failure;
use crate::forward::live_frames::FrameEnds;
use crate::host::enter;

/// Datagrams under way, of all clients together.
const UNDER_WAY: usize = 32;

/// When nothing has arrived for so long, what is under way is lost.
const LOST: Duration = Duration::from_millis(20);

/// Bytes of a frame before the datagram: Ethernet, IPv4, UDP.
const HEADER_BYTES: usize = 14 + 20 + 8;

/// The port of the first client.
const FIRST_PORT: u16 = 20_000;

/// Sends datagrams of `clients` in turn, and takes the time until each has arrived.
pub(super) fn datagrams(role: &LoadRole, clients: u32) -> Result<LoadResult, Failure> {
    let (Some([source, sink]), IpAddr::V4(target)) = (&role.namespaces, role.target.ip()) else {
        return Err(Failure::because("sending datagrams", "there are no links"));
    };
    enter(source)?;
    // An unused protocol: this link receives nothing.
    let link = Link::builder(SOURCE_INTERFACE).back_end(BackEnd::PacketRings).promiscuous();
    let link = link.send_frames(512).bypass_queue().open();
    let link = link.map_err(|error| Failure::other("opening the source's interface", &error))?;
    enter(sink)?;
    let sink = UdpSocket::bind(role.sink).map_err(Failure::io("binding the sink"))?;
    sink.set_nonblocking(true).map_err(Failure::io("binding the sink"))?;
    let clients =
        (0..clients).filter_map(|client| FIRST_PORT.checked_add(u16::try_from(client).ok()?));
    let clients = clients.map(|port| frame((port, role.target.port()), target)).collect();
    let mut load = DatagramLoad {
        sink,
        link,
        clients,
        began: now(),
        under_way: 0,
        next: 0,
        last_arrival: now(),
        nanos: Vec::new(),
    };
    // Until the relay listens.
    for _ in 0..500 {
        load.run(now() + Duration::from_millis(5))?;
        if !load.nanos.is_empty() {
            break;
        }
        sleep(Duration::from_millis(5));
    }
    load.run(now() + WARM_UP)?;
    load.nanos.clear();
    let before = processor_time(role.relay);
    load.run(now() + role.budget)?;
    echoed(role, load.nanos, before)
}

/// A client's frame. What is measured is written into it, so it has no checksum (RFC 768), as a frame between network namespaces of one host has none that is
/// ever looked at.
fn frame(ports: (u16, u16), target: Ipv4Addr) -> Vec<u8> {
    let addresses = (SOURCE.octets(), target.octets());
    let ends = FrameEnds { macs: (MACS[0], MACS[1]), addresses, ports };
    let mut frame = ends.frame_of(HEADER_BYTES + PING_BYTES);
    frame[HEADER_BYTES - 2..HEADER_BYTES].fill(0);
    frame
}

struct DatagramLoad {
    sink: UdpSocket,
    link: Link,
    /// The frame of each client.
    clients: Vec<Vec<u8>>,
    /// What the times in datagrams are counted from.
    began: Instant,
    under_way: usize,
    next: usize,
    last_arrival: Instant,
    /// How long each datagram took.
    nanos: Vec<u64>,
}

impl DatagramLoad {
    fn run(&mut self, until: Instant) -> Result<(), Failure> {
        let mut message = [0; PING_BYTES];
        let failed = |error: LinkError| Failure::other("sending datagrams", &error);
        while now() < until {
            loop {
                match self.sink.recv(&mut message) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(Failure::io("receiving datagrams")(error)),
                }
                let sent = message.first_chunk().map_or(0, |stamp| u64::from_ne_bytes(*stamp));
                self.last_arrival = now();
                self.nanos.push(nanoseconds(self.last_arrival - self.began).saturating_sub(sent));
                self.under_way = self.under_way.saturating_sub(1);
            }
            if self.under_way == UNDER_WAY && now() - self.last_arrival > LOST {
                self.under_way = 0;
            }
            while self.under_way < UNDER_WAY {
                let stamp = nanoseconds(now() - self.began);
                self.next = (self.next + 1) % self.clients.len();
                let frame = &mut self.clients[self.next];
                frame[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&stamp.to_ne_bytes());
                match self.link.send_frame(frame) {
                    Ok(()) => self.under_way += 1,
                    Err(LinkError::Full) => break,
                    Err(error) => return Err(failed(error)),
                }
            }
            self.link.flush().map_err(failed)?;
        }
        Ok(())
    }
}
