//! The readiness of descriptors, announced by a real-time signal: `F_SETSIG`, without an epoll.
//!
//! The kernel sends the signal when a descriptor becomes ready; the handler only notifies the host,
//! whose next poll finds out with one `poll(2)` which of the awaited descriptors it is. An overflow
//! of the signal queue is therefore harmless: the SIGIO that the kernel sends instead has the same
//! effect.
//!
//! It demonstrates the signal method where nothing else announces events; for sockets,
//! [`readiness`](super::readiness) is cheaper. A poll costs one `poll(2)` over all pending waits.
//!
//! # Examples
//! ```
//! use std::{io::Write, os::{fd::OwnedFd, unix::net::UnixStream}, sync::Arc};
//! use vigie_detect::{
//!     Ready, Server,
//!     detectors::{readiness::Direction, signal::SignalKind, signal_io::{SignalIoRequest, signal_io}},
//! };
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let host = Server::spawn_thread()?;
//! let kind = SignalKind::real_time(3).expect("there are at least eight");
//! let readiness = signal_io(host.server(), kind)?;
//! let (near, mut far) = UnixStream::pair()?;
//! let descriptor = Arc::new(OwnedFd::from(near));
//! std::thread::spawn(move || far.write_all(b"ahoy"));
//! let ready = readiness.wait(SignalIoRequest { descriptor, direction: Direction::Read }).await?;
//! assert!(ready.intersects(Ready::READABLE));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![expect(
    unsafe_code,
    reason = "fcntl's F_SETSIG, F_SETOWN and O_ASYNC, which rustix does not offer"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    process,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::signal::SignalKind;
use crate::{
    builtin::{Direction, ready_of},
    detector::{Arming, Detector, Key, Methods, Mode, Pending, PollContext, Ready, SubmitOutcome},
    error::RegisterError,
    server::{Handle, Registration, Server},
    sync::Arc,
};

/// A request for the readiness of one descriptor in one direction. It sets the descriptor's `O_ASYNC`,
/// owner and signal, and does not reset them.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a request is its two parts")]
pub struct SignalIoRequest {
    /// The descriptor: a socket, pipe or terminal. Kept open while the wait is pending.
    pub descriptor: Arc<OwnedFd>,
    /// The direction.
    pub direction: Direction,
}

/// The detector: created by [`signal_io`].
#[derive(Debug)]
pub struct SignalIo {
    kind: SignalKind,
    /// The pending requests, oldest first: rebuilt when they have changed.
    set: Vec<(Key, SignalIoRequest)>,
}

/// Creates a detector whose descriptors send `kind` to this process; use a real-time signal that
/// nothing else uses.
///
/// # Errors
/// Same as [`signal`](super::signal::signal); [`RegisterError::Attach`] in virtual time, where descriptors send no signals.
pub fn signal_io(server: &Server, kind: SignalKind) -> Result<Handle<SignalIo>, RegisterError> {
    server
        .refuse_in_simulation("signals of descriptors", "use its sockets, by `vigie::net`")
        .map_err(RegisterError::Attach)?;
    let detector = SignalIo { kind, set: Vec::new() };
    server.register(detector, Registration::named("signal-io"))
}

impl SignalIo {
    /// Makes the kernel send the signal for `descriptor` from now on.
    fn announce(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let own = process::id().cast_signed();
        control(descriptor, libc::F_SETOWN, own)?;
        control(descriptor, F_SETSIG, self.kind.as_raw())?;
        let flags = control(descriptor, libc::F_GETFL, 0)?;
        if flags & libc::O_ASYNC == 0 {
            control(descriptor, libc::F_SETFL, flags | libc::O_ASYNC)?;
        }
        Ok(())
    }
}

/// Sets the signal that announces the descriptor [fcntl(2)]; libc lacks this number.
const F_SETSIG: libc::c_int = 10;

/// An fcntl with an integer.
fn control(descriptor: BorrowedFd<'_>, command: libc::c_int, value: i32) -> io::Result<i32> {
    // SAFETY: the descriptor is open for as long as it is borrowed; the commands used here take an
    // integer and touch no memory.
    let result = unsafe { libc::fcntl(descriptor.as_raw_fd(), command, value) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

const fn wanted(direction: Direction) -> PollFlags {
    match direction {
        Direction::Read => PollFlags::IN.union(PollFlags::RDHUP),
        Direction::Write => PollFlags::OUT,
    }
}

/// Polls once, without waiting.
fn ask(fds: &mut [PollFd<'_>]) -> io::Result<()> {
    match poll(fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Detector for SignalIo {
    type Request = SignalIoRequest;
    type Event = Ready;

    fn methods(&self) -> Methods {
        Methods::GROUP | Methods::SIGNAL
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn signal(&self) -> Option<i32> {
        Some(self.kind.as_raw())
    }

    fn submit(
        &mut self,
        _: Key,
        awaited: &mut SignalIoRequest,
        mode: Mode,
    ) -> SubmitOutcome<Ready> {
        if mode == Mode::Stream {
            let error = "readiness by signal has single waits only";
            return SubmitOutcome::Rejected(io::Error::new(io::ErrorKind::Unsupported, error));
        }
        if let Err(error) = self.announce(awaited.descriptor.as_fd()) {
            return SubmitOutcome::Rejected(error);
        }
        // Checked after the signal is on: later events announce themselves.
        let mut fds = [PollFd::new(&*awaited.descriptor, wanted(awaited.direction))];
        match ask(&mut fds) {
            Ok(()) if fds[0].revents().is_empty() => SubmitOutcome::Pending,
            Ok(()) => SubmitOutcome::Ready(ready_of(fds[0].revents())),
            Err(error) => SubmitOutcome::Rejected(error),
        }
    }

    fn group(&mut self, pending: &Pending<'_, Self>) {
        self.set.clear();
        self.set.extend(pending.iter().map(|(key, awaited)| (key, awaited.clone())));
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        let mut fds: Vec<_> = self
            .set
            .iter()
            .map(|(_, awaited)| PollFd::new(&*awaited.descriptor, wanted(awaited.direction)))
            .collect();
        if fds.is_empty() {
            return;
        }
        if let Err(error) = ask(&mut fds) {
            tracing::error!(%error, "the awaited descriptors could not be polled");
            return;
        }
        for ((key, _), fd) in self.set.iter().zip(&fds) {
            if fd.revents().is_empty() {
                continue;
            }
            if context.is_full() {
                context.more();
                return;
            }
            context.complete(*key, ready_of(fd.revents()));
        }
    }
}
