//! Datagrams through a relay, as many as it takes with a few under way: source and sink are one thread, which never sleeps if the relay has a
//! core of its own.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use super::echo::{echoed, processor_time};
use super::role::{LoadResult, LoadRole, PING_BYTES, WARM_UP};
use crate::clock::{nanoseconds, now, sleep};
use crate::error::Failure;

/// Datagrams under way, of all clients together.
const UNDER_WAY: usize = 32;

/// When nothing has arrived for so long, what is under way is lost.
const LOST: Duration = Duration::from_millis(20);

/// Sends datagrams of `clients` in turn, and takes the time until each has arrived.
pub(super) fn datagrams(role: &LoadRole, clients: u32) -> Result<LoadResult, Failure> {
    let sink = UdpSocket::bind(role.sink).map_err(Failure::io("binding the sink"))?;
    let open = || -> io::Result<Vec<UdpSocket>> {
        sink.set_nonblocking(true)?;
        let client = |_| {
            let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            client.connect(role.target).map(|()| client)
        };
        (0..clients).map(client).collect()
    };
    let clients = open().map_err(Failure::io("opening clients"))?;
    let mut load = DatagramLoad {
        sink,
        clients,
        began: now(),
        under_way: 0,
        next: 0,
        last_arrival: now(),
        nanos: Vec::new(),
    };
    let broken = |error| Failure::io("sending datagrams through the relay")(error);
    // Until the relay listens.
    for _ in 0..500 {
        load.run(now() + Duration::from_millis(5)).map_err(broken)?;
        if !load.nanos.is_empty() {
            break;
        }
        sleep(Duration::from_millis(5));
    }
    load.run(now() + WARM_UP).map_err(broken)?;
    load.nanos.clear();
    let before = processor_time(role.relay);
    load.run(now() + role.budget).map_err(broken)?;
    echoed(role, load.nanos, before)
}

struct DatagramLoad {
    sink: UdpSocket,
    clients: Vec<UdpSocket>,
    /// What the times in datagrams are counted from.
    began: Instant,
    under_way: usize,
    next: usize,
    last_arrival: Instant,
    /// How long each datagram took.
    nanos: Vec<u64>,
}

impl DatagramLoad {
    fn run(&mut self, until: Instant) -> io::Result<()> {
        let mut message = [0; PING_BYTES];
        while now() < until {
            loop {
                match self.sink.recv(&mut message) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
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
                message[..8].copy_from_slice(&stamp.to_ne_bytes());
                self.next = (self.next + 1) % self.clients.len();
                match self.clients[self.next].send(&message) {
                    Ok(_) => self.under_way += 1,
                    // The relay does not listen yet.
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}
