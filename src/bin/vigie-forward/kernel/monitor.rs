//! The kernel's routing socket: queried once, then followed.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        netlink::SocketAddrNetlink, recv, send, socket_with, sockopt,
    },
};
use thiserror::Error;
use vigie::{
    Instant,
    detect::{AsyncFd, clock::monotonic_now},
    detectors::readiness::Direction,
    time::timeout_at,
};

use super::{
    cache::{CacheState, Change, NetlinkCache},
    message::{DumpRequest, ParsedPacket, read},
};

/// Multicast groups for interfaces, neighbours, addresses and routes of both families, and next hops.
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x100 | 0x400 | 0x8000_0000;
/// Larger than any packet that the kernel makes.
const BUFFER_BYTES: usize = 64 * 1024;
/// The receive buffer: enough for some ten thousand changes. If more are lost, that is noticed.
const RECEIVE_BYTES: usize = 8 << 20;
/// The number of times that a query is repeated if the tables changed during the answer.
const TRIES_MAX: u32 = 5;
/// The maximum number of packets of one answer: of 16 KiB or more, so some ten million routes.
const PACKETS_MAX: u32 = 100_000;
/// The number of packets handled before the tables are updated.
const PACKETS_AT_ONCE: u32 = 64;
/// The delay of a query after a silent change by the kernel.
const SETTLE: Duration = Duration::from_millis(50);
/// The minimum interval between queries.
const ASK_PERIOD: Duration = Duration::from_millis(200);

/// The reason why the kernel's routes are unknown.
#[derive(Debug, Error)]
pub(crate) enum MonitorError {
    #[error("the routing socket of the kernel: {0}")]
    Socket(#[from] io::Error),
    #[error("the kernel does not report its {what:?}: {source}")]
    Refused { what: String, source: io::Error },
    #[error(
        "the routes change faster than the kernel can report them; try again when they are stable"
    )]
    Restless,
}

impl From<Errno> for MonitorError {
    fn from(error: Errno) -> Self {
        Self::Socket(error.into())
    }
}

fn open(groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    if groups != 0 {
        // As far as the kernel's limit allows, which is half of this without privileges.
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES)?;
    }
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Queries the whole state. The kernel answers within the calls, so this never blocks.
pub(crate) fn snapshot(table: u32) -> Result<NetlinkCache, MonitorError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    for _ in 0..TRIES_MAX {
        let mut events = Vec::new();
        let mut is_consistent = true;
        for request in DumpRequest::ALL {
            let socket = open(0)?;
            send(&socket, &request.bytes(), SendFlags::DONTWAIT)?;
            is_consistent &= answer(&socket, request, table, &mut buffer, &mut events)?;
        }
        if is_consistent {
            return Ok(NetlinkCache::of(events));
        }
    }
    Err(MonitorError::Restless)
}

/// Reads one answer to its end. Returns whether it is consistent.
fn answer(
    socket: &OwnedFd,
    request: DumpRequest,
    table: u32,
    buffer: &mut [u8],
    events: &mut Vec<super::cache::NetlinkEvent>,
) -> Result<bool, MonitorError> {
    for _ in 0..PACKETS_MAX {
        let (length, _) = match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        let ParsedPacket { events: some, is_done, is_inconsistent, refusal, .. } =
            read(buffer.get(..length).unwrap_or_default(), table);
        if let Some(code) = refusal {
            let source = io::Error::from_raw_os_error(code);
            return Err(MonitorError::Refused { what: format!("{request:?}"), source });
        }
        events.extend(some);
        if is_inconsistent {
            return Ok(false);
        }
        if is_done {
            return Ok(true);
        }
    }
    Err(MonitorError::Restless)
}

/// Follows the kernel's messages.
#[derive(Debug)]
pub(crate) struct NetlinkMonitor {
    socket: AsyncFd<OwnedFd>,
    table: u32,
    buffer: Vec<u8>,
    cache: NetlinkCache,
    /// The time at which to query the whole state, if necessary.
    dump_at: Option<Instant>,
    dumped_at: Instant,
    /// The number of queries since the start.
    pub(crate) dump_count: u64,
    /// Packets with parts that could not be parsed.
    pub(crate) unreadable: u64,
}

impl NetlinkMonitor {
    /// Starts listening, and queries the present state.
    pub(crate) fn open(table: u32) -> Result<Self, MonitorError> {
        // Listen first, then query, so that no change is missed.
        let socket = AsyncFd::new(open(GROUPS)?)?;
        let cache = snapshot(table)?;
        let (buffer, dumped_at) = (vec![0; BUFFER_BYTES], monotonic_now());
        let (dump_at, dump_count, unreadable) = (None, 0, 0);
        Ok(Self { socket, table, buffer, cache, dump_at, dumped_at, dump_count, unreadable })
    }

    /// Returns the current state.
    pub(crate) const fn cache(&self) -> &NetlinkCache {
        &self.cache
    }

    /// Waits for changes, and returns them.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is awaited between a change and its return.
    pub(crate) async fn changes(&mut self) -> Result<Vec<Change>, MonitorError> {
        loop {
            let mut changes = Vec::new();
            let is_due = match self.dump_at {
                Some(at) if at <= monotonic_now() => true,
                Some(at) => match timeout_at(at, self.socket.ready(Direction::Read)).await {
                    Ok(ready) => {
                        ready?;
                        false
                    }
                    Err(_) => true,
                },
                None => {
                    self.socket.ready(Direction::Read).await?;
                    false
                }
            };
            if is_due {
                self.dump(&mut changes)?;
            }
            self.listen(&mut changes)?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    fn dump(&mut self, changes: &mut Vec<Change>) -> Result<(), MonitorError> {
        self.dump_at = None;
        self.dumped_at = monotonic_now();
        self.dump_count += 1;
        match snapshot(self.table) {
            Ok(cache) => self.cache.replace(cache, changes),
            // Later, then.
            Err(MonitorError::Restless) => self.schedule_dump(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn schedule_dump(&mut self) {
        let at = (monotonic_now() + SETTLE).max(self.dumped_at + ASK_PERIOD);
        self.dump_at = self.dump_at.or(Some(at));
    }

    /// Handles the kernel's messages.
    fn listen(&mut self, changes: &mut Vec<Change>) -> Result<(), MonitorError> {
        for _ in 0..PACKETS_AT_ONCE {
            let buffer = self.buffer.as_mut_slice();
            let received = self.socket.try_io(Direction::Read, |socket| {
                Ok(recv(socket, &mut *buffer, RecvFlags::DONTWAIT)?.0)
            });
            let length = match received {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Messages were lost: only the present state matters.
                Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                    self.schedule_dump();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let read = read(self.buffer.get(..length).unwrap_or_default(), self.table);
            self.unreadable += read.unreadable;
            for event in read.events {
                if self.cache.take(event, changes) == CacheState::Stale {
                    self.schedule_dump();
                }
            }
        }
        Ok(())
    }
}
