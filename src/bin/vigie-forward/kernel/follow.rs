//! The kernel's routing socket: asked once, then listened to.

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
    stock::readiness::Direction,
    time::timeout_at,
};

use super::{
    message::{Question, Read, read},
    picture::{Change, Picture, Trust},
};

/// Interfaces, neighbours, addresses and routes of both families.
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x100 | 0x400;
/// Larger than any packet that the kernel makes.
const BUFFER_BYTES: usize = 64 * 1024;
/// What the kernel keeps for us: some ten thousand changes. More are lost, which is noticed.
const RECEIVE_BYTES: usize = 8 << 20;
/// How often an answer is asked for again that changed while it was given.
const TRIES_MAX: u32 = 5;
/// Packets of one answer: of 16 KiB or more, so some ten million routes.
const PACKETS_MAX: u32 = 100_000;
/// Packets that are taken in before the tables hear of them.
const PACKETS_AT_ONCE: u32 = 64;
/// How long after something that the kernel does in silence it is asked.
const SETTLE: Duration = Duration::from_millis(50);
/// How often it is asked at most, whatever happens.
const ASK_PERIOD: Duration = Duration::from_millis(200);

/// Why the kernel's routes are not known.
#[derive(Debug, Error)]
pub(crate) enum FollowError {
    #[error("the routing socket of the kernel: {0}")]
    Socket(#[from] io::Error),
    #[error("the kernel does not tell its {what:?}: {source}")]
    Refused { what: String, source: io::Error },
    #[error("the routes change faster than the kernel can tell them; try again when they are calm")]
    Restless,
}

impl From<Errno> for FollowError {
    fn from(error: Errno) -> Self {
        Self::Socket(error.into())
    }
}

fn open(groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    if groups != 0 {
        // As far as the kernel's limit allows, which is half of it without privilege.
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES)?;
    }
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Asks the kernel for everything. It answers within the calls, so that this waits for nobody.
pub(crate) fn snapshot(table: u32) -> Result<Picture, FollowError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    for _ in 0..TRIES_MAX {
        let mut events = Vec::new();
        let mut is_consistent = true;
        for question in Question::ALL {
            let socket = open(0)?;
            send(&socket, &question.bytes(), SendFlags::DONTWAIT)?;
            is_consistent &= answer(&socket, question, table, &mut buffer, &mut events)?;
        }
        if is_consistent {
            return Ok(Picture::of(events));
        }
    }
    Err(FollowError::Restless)
}

/// Reads one answer to its end. Returns whether it can be believed.
fn answer(
    socket: &OwnedFd,
    question: Question,
    table: u32,
    buffer: &mut [u8],
    events: &mut Vec<super::picture::Event>,
) -> Result<bool, FollowError> {
    for _ in 0..PACKETS_MAX {
        let (length, _) = match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        let Read { events: some, is_done, is_inconsistent, refusal, .. } =
            read(buffer.get(..length).unwrap_or_default(), table);
        if let Some(code) = refusal {
            let source = io::Error::from_raw_os_error(code);
            return Err(FollowError::Refused { what: format!("{question:?}"), source });
        }
        events.extend(some);
        if is_inconsistent {
            return Ok(false);
        }
        if is_done {
            return Ok(true);
        }
    }
    Err(FollowError::Restless)
}

/// Follows what the kernel says.
#[derive(Debug)]
pub(crate) struct Follower {
    socket: AsyncFd<OwnedFd>,
    table: u32,
    buffer: Vec<u8>,
    picture: Picture,
    /// When to ask the kernel for everything, if that is necessary.
    ask_at: Option<Instant>,
    asked_at: Instant,
    /// How often it was asked since the start.
    pub(crate) asked: u64,
    /// Packets with something that could not be read.
    pub(crate) unreadable: u64,
}

impl Follower {
    /// Begins to listen, and asks for what is there.
    pub(crate) fn open(table: u32) -> Result<Self, FollowError> {
        // First listen, then ask, so that nothing falls in between.
        let socket = AsyncFd::new(open(GROUPS)?)?;
        let picture = snapshot(table)?;
        let (buffer, asked_at) = (vec![0; BUFFER_BYTES], monotonic_now());
        let (ask_at, asked, unreadable) = (None, 0, 0);
        Ok(Self { socket, table, buffer, picture, ask_at, asked_at, asked, unreadable })
    }

    /// Returns what is known now.
    pub(crate) const fn picture(&self) -> &Picture {
        &self.picture
    }

    /// Waits until something changes, and returns what.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is awaited between a change and its return.
    pub(crate) async fn changes(&mut self) -> Result<Vec<Change>, FollowError> {
        loop {
            let mut changes = Vec::new();
            let is_due = match self.ask_at {
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
                self.ask(&mut changes)?;
            }
            self.listen(&mut changes)?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    fn ask(&mut self, changes: &mut Vec<Change>) -> Result<(), FollowError> {
        self.ask_at = None;
        self.asked_at = monotonic_now();
        self.asked += 1;
        match snapshot(self.table) {
            Ok(picture) => self.picture.replace(picture, changes),
            // Later, then.
            Err(FollowError::Restless) => self.ask_soon(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn ask_soon(&mut self) {
        let at = (monotonic_now() + SETTLE).max(self.asked_at + ASK_PERIOD);
        self.ask_at = self.ask_at.or(Some(at));
    }

    /// Takes in what the kernel has said.
    fn listen(&mut self, changes: &mut Vec<Change>) -> Result<(), FollowError> {
        for _ in 0..PACKETS_AT_ONCE {
            let buffer = self.buffer.as_mut_slice();
            let received = self.socket.try_io(Direction::Read, |socket| {
                Ok(recv(socket, &mut *buffer, RecvFlags::DONTWAIT)?.0)
            });
            let length = match received {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Messages were lost: what counts is how it is now.
                Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                    self.ask_soon();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let read = read(self.buffer.get(..length).unwrap_or_default(), self.table);
            self.unreadable += read.unreadable;
            for event in read.events {
                if self.picture.take(event, changes) == Trust::Lost {
                    self.ask_soon();
                }
            }
        }
        Ok(())
    }
}
