//! The rendezvous over a Unix socket that this process has inherited from its launcher.

#![expect(unsafe_code, reason = "a descriptor that was inherited is known by its number alone")]

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{FdFlags, fcntl_setfd},
    net::{AddressFamily, SocketType, sockopt},
};
use vigie_detect::{Instant, Server};

use super::{
    WorldError,
    attached::Attached,
    socket::{Framed, SocketLink},
};

/// True if this process has taken its descriptor: there is one, and it has one owner. Swapped by the thread
/// that joins; the value alone carries meaning.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the socket whose number is `value`, from the environment's `variable`. Checks that it can be a launcher's
/// before anything is sent, and keeps it from programs that this process starts.
///
/// Invariant world-1: the descriptor has no owner. It was open before this program began, and nothing in the
/// program but this function takes it, and that only once.
pub(super) fn inherited(variable: &'static str, value: &OsStr) -> Result<UnixStream, WorldError> {
    let bad = |problem: String| WorldError::Environment { variable, problem };
    let shown = value.display();
    let number = value.to_str().and_then(|text| text.parse::<RawFd>().ok());
    // The standard streams have owners in every program.
    let number = number.filter(|&number| number > 2);
    let number = number.ok_or_else(|| bad(format!("`{shown}` is neither the number of a descriptor that a launcher has opened nor `tcp://ADDRESS:PORT`")))?;
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(WorldError::AlreadyJoined);
    }
    // SAFETY: used for calls that fail cleanly on a number that is not open; by world-1, no other code closes
    // it meanwhile if it is the launcher's.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    if let Err(problem) = check(descriptor) {
        IS_TAKEN.store(false, Ordering::Relaxed);
        return Err(bad(format!("descriptor {number} {problem}")));
    }
    fcntl_setfd(descriptor, FdFlags::CLOEXEC).map_err(io::Error::from)?;
    let flags = fcntl_getfl(descriptor).map_err(io::Error::from)?;
    fcntl_setfl(descriptor, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    // SAFETY: it is open, as the calls above have shown, and has no other owner: world-1.
    Ok(unsafe { OwnedFd::from_raw_fd(number) }.into())
}

/// Returns an error if the descriptor cannot be a launcher's.
fn check(descriptor: BorrowedFd<'_>) -> Result<(), String> {
    let Ok(domain) = sockopt::socket_domain(descriptor) else {
        return Err(
            "is not a socket; did a rank start the program, and not the launcher?".to_owned()
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
) -> Result<Attached<SocketLink<UnixStream, Framed>>, WorldError> {
    let link = SocketLink::new(server, socket, Framed::default())?;
    Attached::greet(link, server.timers().clone(), deadline).await
}
