//! The kernel's own ways: streams over loopback TCP and between Unix sockets, polled or waited for.

use std::hint;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::Duration;

use super::blocking::{Blocking, Channel};
use super::carrier::Kind;
use super::measure::Measure;
use super::ranks::Own;
use super::seat::Seat;
use crate::clock::{now, sleep};
use crate::error::Failure;
use crate::host::arena::Arena;

/// How long ranks wait for each other at the beginning.
const MEETING: Duration = Duration::from_secs(20);

/// Loopback TCP, read again and again.
pub(crate) static TCP: Own = Own {
    name: "tcp",
    label: "TCP, polling",
    family: "tcp",
    kind: Kind::Peer,
    has: |measure| matches!(measure, Measure::Latency { .. } | Measure::Window { .. }),
    link_bytes: 0,
    open: |seat| {
        Ok(Box::new(Blocking::new(Streams::tcp(seat, Reading::Polling, |_| Ipv4Addr::LOCALHOST)?)))
    },
};

/// Loopback TCP whose receiver sleeps in `read`.
pub(crate) static TCP_BLOCKING: Own = Own {
    name: "tcp-blocking",
    label: "TCP, blocking",
    has: |measure| !matches!(measure, Measure::Synchronous { .. } | Measure::Loaned { .. }),
    open: |seat| {
        Ok(Box::new(Blocking::new(Streams::tcp(seat, Reading::Blocking, |_| Ipv4Addr::LOCALHOST)?)))
    },
    ..TCP
};

/// A pair of Unix sockets, read again and again.
pub(crate) static UDS: Own = Own {
    name: "uds",
    label: "Unix socket, polling",
    family: "uds",
    open: |seat| Ok(Box::new(Blocking::new(Streams::unix(seat, Reading::Polling)?))),
    ..TCP
};

/// A pair of Unix sockets whose receiver sleeps in `read`.
pub(crate) static UDS_BLOCKING: Own = Own {
    name: "uds-blocking",
    label: "Unix socket, blocking",
    family: "uds",
    open: |seat| Ok(Box::new(Blocking::new(Streams::unix(seat, Reading::Blocking)?))),
    ..TCP_BLOCKING
};

/// How a receiver waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Polling,
    Blocking,
}

/// A stream to the next rank and one from the one before.
#[derive(Debug)]
pub(super) struct Streams<S> {
    next: S,
    before: S,
}

impl Streams<TcpStream> {
    /// `address` tells that of a rank.
    pub(super) fn tcp(
        seat: &Seat,
        reading: Reading,
        address: impl Fn(u32) -> Ipv4Addr,
    ) -> Result<Self, Failure> {
        let cannot = |error| Failure::io("connecting ranks by TCP")(error);
        let arena = Arena::open(&seat.memory)?;
        let listener = TcpListener::bind((address(seat.rank), 0)).map_err(cannot)?;
        let own = listener.local_addr().map_err(cannot)?;
        arena.post(seat.rank, own.port().into());
        let port = meet(&arena, seat.next())?;
        let port = u16::try_from(port).map_err(Failure::runtime)?;
        let next = TcpStream::connect(SocketAddr::from((address(seat.next()), port)));
        let next = next.map_err(cannot)?;
        let (before, _) = listener.accept().map_err(cannot)?;
        for stream in [&next, &before] {
            stream.set_nodelay(true).map_err(cannot)?;
            stream.set_nonblocking(reading == Reading::Polling).map_err(cannot)?;
        }
        Ok(Self { next, before })
    }
}

impl Streams<UnixStream> {
    fn unix(seat: &Seat, reading: Reading) -> Result<Self, Failure> {
        let cannot = |error| Failure::io("connecting ranks by Unix sockets")(error);
        let arena = Arena::open(&seat.memory)?;
        let address = |rank: u32| {
            let name = format!("vigie-bench-{:016x}-{rank}", seat.token);
            UnixAddress::from_abstract_name(name).map_err(cannot)
        };
        let listener = UnixListener::bind_addr(&address(seat.rank)?).map_err(cannot)?;
        arena.post(seat.rank, 1);
        meet(&arena, seat.next())?;
        let next = UnixStream::connect_addr(&address(seat.next())?).map_err(cannot)?;
        let (before, _) = listener.accept().map_err(cannot)?;
        for stream in [&next, &before] {
            stream.set_nonblocking(reading == Reading::Polling).map_err(cannot)?;
        }
        Ok(Self { next, before })
    }
}

/// Waits until `rank` listens; returns what it has posted.
pub(super) fn meet(arena: &Arena, rank: u32) -> Result<u64, Failure> {
    let begun = now();
    loop {
        match arena.posted(rank) {
            0 if begun.elapsed() > MEETING => {
                return Err(Failure::runtime(format!("rank {rank} did not come")));
            }
            0 => sleep(Duration::from_millis(1)),
            posted => return Ok(posted),
        }
    }
}

impl<S: Read + Write> Channel for Streams<S> {
    fn send(&mut self, mut message: &[u8]) -> Result<(), Failure> {
        while !message.is_empty() {
            match self.next.write(message) {
                Ok(written) => message = &message[written..],
                Err(error) => wait_after(error)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> Result<(), Failure> {
        let mut done = 0;
        while done < message.len() {
            match self.before.read(&mut message[done..]) {
                Ok(0) => return Err(Failure::runtime("the rank before has gone")),
                Ok(read) => done += read,
                Err(error) => wait_after(error)?,
            }
        }
        Ok(())
    }
}

fn wait_after(error: io::Error) -> Result<(), Failure> {
    match error.kind() {
        io::ErrorKind::WouldBlock => hint::spin_loop(),
        io::ErrorKind::Interrupted => {}
        _ => return Err(Failure::io("a stream between ranks")(error)),
    }
    Ok(())
}
