//! The rendezvous over a Unix socket that the launcher has left in this process.

#![expect(unsafe_code, reason = "a descriptor that was inherited is known by its number alone")]

use std::{
    ffi::OsStr,
    fmt,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{FdFlags, fcntl_setfd},
    net::{AddressFamily, SendFlags, SocketType, send, sockopt},
};
use vigie_detect::{AsyncFd, Instant, Server, stock::readiness::Direction};

use super::{
    RENDEZVOUS_VARIABLE, WorldError,
    attached::{Attached, Link},
    member::Member,
    wire::{Decoder, Request},
};

/// Whether this process has taken its descriptor: there is one, and it has one owner. Swapped by
/// whoever joins; the value alone carries meaning.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the socket whose number is `value`. Checks that it can be a launcher's before anything is
/// said, and keeps it from programs that this process starts.
///
/// Invariant world-1: the descriptor is owned by nobody. It was open before this program began, in
/// which nothing but this function takes it, and that once.
pub(super) fn inherited(value: &OsStr) -> Result<UnixStream, WorldError> {
    let bad = |problem: String| WorldError::Environment { variable: RENDEZVOUS_VARIABLE, problem };
    let shown = value.display();
    let number = value.to_str().and_then(|text| text.parse::<RawFd>().ok());
    // The standard streams have owners in every program.
    let number = number.filter(|&number| number > 2);
    let number = number.ok_or_else(|| bad(format!("`{shown}` is no descriptor's number")))?;
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(WorldError::AlreadyJoined);
    }
    // SAFETY: used for calls that fail cleanly on a number that is not open; world-1 says that nobody
    // closes it meanwhile if it is the launcher's.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    if let Err(problem) = check(descriptor) {
        IS_TAKEN.store(false, Ordering::Relaxed);
        return Err(bad(format!("descriptor {number} {problem}")));
    }
    fcntl_setfd(descriptor, FdFlags::CLOEXEC).map_err(io::Error::from)?;
    let flags = fcntl_getfl(descriptor).map_err(io::Error::from)?;
    fcntl_setfl(descriptor, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    // SAFETY: it is open, as the calls above have shown, and nobody else owns it: world-1.
    Ok(unsafe { OwnedFd::from_raw_fd(number) }.into())
}

/// Says what keeps the descriptor from being a launcher's.
fn check(descriptor: BorrowedFd<'_>) -> Result<(), String> {
    let Ok(domain) = sockopt::socket_domain(descriptor) else {
        return Err(
            "is no socket; was the program started by a rank, and not by the launcher?".to_owned()
        );
    };
    let kind = sockopt::socket_type(descriptor).map_err(|error| error.to_string())?;
    if (domain, kind) != (AddressFamily::UNIX, SocketType::STREAM) {
        return Err("is a socket of another kind".to_owned());
    }
    let peer = sockopt::socket_peercred(descriptor).map_err(|error| error.to_string())?;
    let (own, root) = (rustix::process::geteuid(), rustix::process::Uid::ROOT);
    if peer.uid != own && peer.uid != root {
        return Err(format!("belongs to user {}, and not to this one", peer.uid.as_raw()));
    }
    Ok(())
}

/// Greets the launcher at the other end of `socket`, which must be in non-blocking mode.
pub(super) async fn join(
    server: &Server,
    socket: UnixStream,
    deadline: Instant,
) -> Result<Attached<SocketLink>, WorldError> {
    let link = SocketLink {
        socket: AsyncFd::new_on(server, socket)?,
        state: Mutex::new(State::default()),
    };
    Attached::greet(link, server.timers().clone(), deadline).await
}

/// A rank's socket to its launcher.
pub(super) struct SocketLink {
    socket: AsyncFd<UnixStream>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    member: Member,
    decoder: Decoder,
    /// What is still to be sent. Bounded by what a member may ask before it hears an answer.
    outgoing: Vec<u8>,
}

impl SocketLink {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No foreign code runs under this lock, so a poisoned one says nothing about what it holds.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, state: &mut State) {
        while !state.outgoing.is_empty() {
            let sent = self.socket.try_io(Direction::Write, |socket| {
                Ok(send(socket, &state.outgoing, SendFlags::NOSIGNAL)?)
            });
            match sent {
                Ok(count) => drop(state.outgoing.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The launcher does not listen any more. Why, may still be there to be read.
                Err(_) => state.outgoing.clear(),
            }
        }
    }

    fn hear(&self, state: &mut State) {
        let mut buffer = [0; 4096];
        while !state.member.is_over() {
            match self.socket.try_io(Direction::Read, |mut socket| socket.read(&mut buffer)) {
                Ok(0) => state.member.lose(),
                Ok(count) => {
                    state.decoder.feed(&buffer[..count]);
                    loop {
                        match state.decoder.next_frame() {
                            Ok(Some(frame)) => state.member.receive(frame),
                            Ok(None) => break,
                            Err(error) => {
                                state.member.receive_nonsense(error);
                                break;
                            }
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => state.member.lose(),
            }
        }
    }
}

impl Link for SocketLink {
    fn act<T>(
        &self,
        act: impl FnOnce(&mut Member) -> Result<(T, Option<Request>), WorldError>,
    ) -> Result<T, WorldError> {
        let mut state = self.lock();
        let (result, request) = act(&mut state.member)?;
        if let Some(request) = request {
            state.outgoing.extend_from_slice(&request.encode());
        }
        Ok(result)
    }

    fn pump(&self) -> bool {
        let mut state = self.lock();
        let before = state.member.generation;
        self.send(&mut state);
        self.hear(&mut state);
        let is_sent = state.outgoing.is_empty();
        let has_heard = state.member.generation != before;
        let waiters = if has_heard { state.member.take_waiters() } else { Vec::new() };
        drop(state);
        for (_, waker) in waiters {
            waker.wake();
        }
        is_sent
    }

    async fn readable(&self) -> io::Result<()> {
        self.socket.ready(Direction::Read).await.map(drop)
    }

    async fn writable(&self) -> io::Result<()> {
        self.socket.ready(Direction::Write).await.map(drop)
    }
}

impl fmt::Debug for SocketLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketLink")
            .field("descriptor", &self.socket.as_fd())
            .finish_non_exhaustive()
    }
}
