//! The server that is current on a thread, and its clock.

use std::{cell::RefCell, error::Error, fmt, io, marker::PhantomData, mem, time::Duration};

use super::{Server, handle::Handle};
use crate::{
    builtin::Timers,
    clock::{Instant, monotonic_now},
    sync::thread_local,
};

/// The error if no detection server is current where the caller runs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NoServer;

impl fmt::Display for NoServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no vigie runtime runs here: call this inside `Runtime::block_on` or a task of a runtime, or \
             make a detection server with `Server::spawn_thread` and `enter` it",
        )
    }
}

impl Error for NoServer {}

impl From<NoServer> for io::Error {
    fn from(error: NoServer) -> Self {
        Self::new(io::ErrorKind::NotConnected, error)
    }
}

/// The error where something would leave the simulation.
pub(super) fn in_simulation(what: &str, remedy: &str) -> io::Error {
    let text = format!("a simulation has no {what}, which would leave it: {remedy}");
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Refuses what would leave the simulation in which the calling task runs, for libraries that use devices, memory or threads of
/// the kernel: `a simulation has no {what}, which would leave it: {remedy}`. Does nothing on a server of real time, or without one.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] if the [current](Server::current) server is in virtual time.
///
/// # Examples
/// ```
/// use vigie_detect::{Simulation, refuse_in_simulation};
///
/// let open = || refuse_in_simulation("serial ports", "give the test a `tokio::io::duplex`");
/// assert!(open().is_ok());
/// let refused = Simulation::new(0).block_on(async move { open() })?;
/// assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::Unsupported);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn refuse_in_simulation(what: &str, remedy: &str) -> io::Result<()> {
    with_current(|server| match server {
        Some(server) => server.refuse_in_simulation(what, remedy),
        None => Ok(()),
    })
}

impl Server {
    /// Returns the server that hosts the running task, or that this thread has
    /// [entered](Self::enter).
    ///
    /// # Errors
    /// [`NoServer`] if there is no such server.
    pub fn current() -> Result<Self, NoServer> {
        with_current(|server| server.cloned()).ok_or(NoServer)
    }

    /// Returns the [timers](Self::timers) of the [current](Self::current) server.
    ///
    /// # Errors
    /// [`NoServer`] if there is no such server.
    pub fn current_timers() -> Result<Handle<Timers>, NoServer> {
        with_current(|server| server.map(|server| server.timers().clone())).ok_or(NoServer)
    }

    /// Refuses `what` in virtual time: see [`refuse_in_simulation`].
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if this server [is in virtual time](Self::is_virtual).
    pub fn refuse_in_simulation(&self, what: &str, remedy: &str) -> io::Result<()> {
        if !self.is_virtual() {
            return Ok(());
        }
        Err(in_simulation(what, remedy))
    }

    /// Makes this server [current](Self::current) on this thread until the guard is dropped.
    pub fn enter(&self) -> ServerGuard {
        // Not at all while the thread's variables are being destroyed, a runtime among them.
        let previous = CURRENT.try_with(|current| current.borrow_mut().replace(self.clone()));
        let previous = previous.ok().flatten();
        ServerGuard { previous, _not_send: PhantomData }
    }
}

impl Instant {
    /// Returns the present instant of the clock of [`Server::current`](crate::Server::current), or
    /// of the real clock if no server hosts the caller.
    #[must_use]
    pub fn now() -> Self {
        with_current(|server| server.map_or_else(monotonic_now, |s| s.now()))
    }

    /// Returns the time elapsed since `self` on the clock of the current server.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// Calls `f` with the current server, if there is one. `f` must not enter another.
pub(crate) fn with_current<T>(f: impl FnOnce(Option<&Server>) -> T) -> T {
    let mut f = Some(f);
    let mut call = |server: Option<&Server>| (f.take().expect("invariant: called once"))(server);
    match CURRENT.try_with(|current| call(current.borrow().as_ref())) {
        Ok(value) => value,
        // The thread is ending and its thread-locals are gone.
        Err(_) => call(None),
    }
}

/// Keeps a server [current](Server::current) on this thread.
#[must_use = "the server is current only until this is dropped"]
pub struct ServerGuard {
    previous: Option<Server>,
    /// The guard must be dropped on the thread that created it.
    _not_send: PhantomData<*mut ()>,
}

impl ServerGuard {
    /// Makes another server current in place of this one, until the guard is dropped: for schedulers that run tasks of several
    /// servers by turns. Puts the one that was current in its place.
    pub fn switch(&mut self, server: &mut Server) {
        let _ = CURRENT.try_with(|current| {
            if let Some(current) = &mut *current.borrow_mut() {
                mem::swap(current, server);
            }
        });
    }
}

impl Drop for ServerGuard {
    fn drop(&mut self) {
        let previous = self.previous.take();
        // This may drop the server, and its detectors with it: outside the borrow.
        let left = CURRENT.try_with(|current| mem::replace(&mut *current.borrow_mut(), previous));
        drop(left);
    }
}

impl fmt::Debug for ServerGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerGuard").finish_non_exhaustive()
    }
}
