//! The kernel's own ways: streams over loopback TCP and between Unix sockets, polled or waited for.

use std::hint;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::Duration;

use super::{Carrier, CarrierKind, Channel, Measure, RankContext, blocking};
use crate::clock::{now, sleep};
use crate::error::Failure;
use crate::host::Arena;

/// How long ranks wait for each other at the beginning.
const MEETING: Duration = Duration::from_secs(20);

/// Loopback TCP, read again and again.
pub(crate) static TCP: Carrier = Carrier {
    name: "tcp",
    label: "TCP, polling",
    family: "tcp",
    kind: CarrierKind::Peer,
    has: Measure::is_plain,
    link_bytes: 0,
    is_remote: false,
    open: |context| blocking(Streams::tcp(context, ReceiveMode::Polling, |_| Ipv4Addr::LOCALHOST)),
    program: None,
};

/// Loopback TCP whose receiver sleeps in `read`.
pub(crate) static TCP_BLOCKING: Carrier = Carrier {
    name: "tcp-blocking",
    label: "TCP, blocking",
    has: Measure::is_blocking,
    open: |context| blocking(Streams::tcp(context, ReceiveMode::Blocking, |_| Ipv4Addr::LOCALHOST)),
    ..TCP
};

/// A pair of Unix sockets, read again and again.
pub(crate) static UDS: Carrier = Carrier {
    name: "uds",
    label: "Unix socket, polling",
    family: "uds",
    open: |context| blocking(Streams::unix(context, ReceiveMode::Polling)),
    ..TCP
};

/// A pair of Unix sockets whose receiver sleeps in `read`.
pub(crate) static UDS_BLOCKING: Carrier = Carrier {
    name: "uds-blocking",
    label: "Unix socket, blocking",
    family: "uds",
    open: |context| blocking(Streams::unix(context, ReceiveMode::Blocking)),
    ..TCP_BLOCKING
};

/// How a receiver waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveMode {
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
        context: &RankContext,
        receive_mode: ReceiveMode,
        address: impl Fn(u32) -> Ipv4Addr,
    ) -> Result<Self, Failure> {
        let cannot = |error| Failure::io("connecting ranks by TCP")(error);
        let arena = Arena::open(&context.memory)?;
        let listener = TcpListener::bind((address(context.rank), 0)).map_err(cannot)?;
        let own = listener.local_addr().map_err(cannot)?;
        arena.post(context.rank, own.port().into());
        let port = wait_posted(&arena, context.next())?;
        let port = u16::try_from(port).map_err(Failure::runtime)?;
        let next = TcpStream::connect(SocketAddr::from((address(context.next()), port)));
        let next = next.map_err(cannot)?;
        let (before, _) = listener.accept().map_err(cannot)?;
        for stream in [&next, &before] {
            stream.set_nodelay(true).map_err(cannot)?;
            stream.set_nonblocking(receive_mode == ReceiveMode::Polling).map_err(cannot)?;
        }
        Ok(Self { next, before })
    }
}

impl Streams<UnixStream> {
    fn unix(context: &RankContext, receive_mode: ReceiveMode) -> Result<Self, Failure> {
        let cannot = |error| Failure::io("connecting ranks by Unix sockets")(error);
        let arena = Arena::open(&context.memory)?;
        let address = |rank: u32| {
            let name = format!("vigie-bench-{:016x}-{rank}", context.token);
            UnixAddress::from_abstract_name(name).map_err(cannot)
        };
        let listener = UnixListener::bind_addr(&address(context.rank)?).map_err(cannot)?;
        arena.post(context.rank, 1);
        wait_posted(&arena, context.next())?;
        let next = UnixStream::connect_addr(&address(context.next())?).map_err(cannot)?;
        let (before, _) = listener.accept().map_err(cannot)?;
        for stream in [&next, &before] {
            stream.set_nonblocking(receive_mode == ReceiveMode::Polling).map_err(cannot)?;
        }
        Ok(Self { next, before })
    }
}

/// Waits until `rank` listens; returns what it has posted.
pub(super) fn wait_posted(arena: &Arena, rank: u32) -> Result<u64, Failure> {
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
