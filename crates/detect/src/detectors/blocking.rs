//! Any blocking closure as events: a detector whose only method is to block.
//!
//! The closure runs on a helper thread of the handle, repeatedly while there are waiters: a read from a
//! device without readiness, `waitpid`, another process's lock, a foreign library's queue. Each return
//! is one event. Without a waiter it is not called. A value returned for a waiter that has left is kept
//! for the next one, so at most one value is unclaimed, apart from those that waiters gave back.
//!
//! For a single call, use `spawn_blocking` of the runtime.
//!
//! # Examples
//! ```
//! use std::{io::Read, os::unix::net::UnixStream};
//! use vigie_detect::{Server, detectors::blocking::blocking};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let host = Server::spawn_thread()?;
//! let mut child = std::process::Command::new("true").spawn()?;
//! let ended = blocking(host.server(), move || child.wait())?;
//! assert!(ended.recv().await??.success());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{collections::VecDeque, fmt, io};

use crate::{
    detector::{
        Arming, Blocker, Detector, EmitOutcome, Key, Methods, Mode, PollContext, SubmitOutcome,
    },
    error::RegisterError,
    server::{Handle, Registration, Server, Wait},
    sync::{Arc, PoisonError, RealGuard, RealMutex},
};

/// The detector of a closure's return values: created by [`blocking`] and [`interruptible`].
pub struct Blocking<T> {
    returned: Arc<Returned<T>>,
    /// Until the server asks for it.
    blocker: Option<Blocker>,
}

impl<T: Send + 'static> Handle<Blocking<T>> {
    /// Receives what the next call returns.
    ///
    /// # Cancel safety
    /// Cancel safe: the value of a dropped wait goes to the next one.
    ///
    /// # Errors
    /// [`WaitError`](crate::WaitError); inside, the error of the call.
    pub fn recv(&self) -> Wait<Blocking<T>, &Self> {
        self.wait(())
    }
}

/// Values that calls have returned and no waiter has taken, oldest first.
struct Returned<T>(RealMutex<VecDeque<io::Result<T>>>);

impl<T> Returned<T> {
    fn lock(&self) -> RealGuard<'_, VecDeque<io::Result<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a handle whose events are the return values of `call`, including errors. A call in
/// progress cannot be ended: when the server is shut down, its thread is abandoned until it
/// returns.
///
/// # Errors
/// Same as [`Server::register`].
pub fn blocking<T: Send + 'static>(
    server: &Server,
    mut call: impl FnMut() -> io::Result<T> + Send + 'static,
) -> Result<Handle<Blocking<T>>, RegisterError> {
    register(server, move |returned| {
        Blocker::new(move |_| {
            returned.call_unless_full(|| call().map(Some));
            Ok(())
        })
    })
}

/// Like [`blocking`], for a call that `interrupt` ends from another thread. `None` means that there was
/// nothing, because of the interrupt or otherwise; the closure is called again if there still is a
/// waiter.
///
/// # Errors
/// Same as [`Server::register`].
pub fn interruptible<T: Send + 'static>(
    server: &Server,
    mut call: impl FnMut() -> io::Result<Option<T>> + Send + 'static,
    interrupt: impl Fn() + Send + Sync + 'static,
) -> Result<Handle<Blocking<T>>, RegisterError> {
    register(server, move |returned| {
        let call = move |_| {
            returned.call_unless_full(&mut call);
            Ok(())
        };
        Blocker::interruptible(call, interrupt)
    })
}

fn register<T: Send + 'static>(
    server: &Server,
    make: impl FnOnce(Arc<Returned<T>>) -> Blocker,
) -> Result<Handle<Blocking<T>>, RegisterError> {
    let returned = Arc::new(Returned(RealMutex::new(VecDeque::new())));
    let blocker = Some(make(Arc::clone(&returned)));
    server.register(Blocking { returned, blocker }, Registration::named("blocking"))
}

impl<T> Returned<T> {
    /// Creates a call and keeps its value, unless there is a value that no waiter has taken yet.
    fn call_unless_full(&self, call: impl FnOnce() -> io::Result<Option<T>>) {
        if !self.lock().is_empty() {
            return;
        }
        match call() {
            Ok(Some(value)) => self.lock().push_back(Ok(value)),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.lock().push_back(Err(error)),
        }
    }
}

impl<T: Send + 'static> Detector for Blocking<T> {
    type Request = ();
    type Event = io::Result<T>;

    fn methods(&self) -> Methods {
        Methods::BLOCK
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn blocker(&mut self) -> Option<Blocker> {
        self.blocker.take()
    }

    fn submit(&mut self, _: Key, (): &mut (), _: Mode) -> SubmitOutcome<io::Result<T>> {
        self.returned.lock().pop_front().map_or(SubmitOutcome::Pending, SubmitOutcome::Ready)
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        while let Some(key) = context.oldest() {
            if context.is_full() {
                context.more();
                return;
            }
            let Some(value) = self.returned.lock().pop_front() else { return };
            if let EmitOutcome::Full(value) | EmitOutcome::Gone(value) = context.emit(key, value) {
                self.returned.lock().push_front(value);
                return;
            }
        }
    }

    fn unclaimed(&mut self, value: io::Result<T>) -> Option<io::Result<T>> {
        // Newest first.
        self.returned.lock().push_front(value);
        None
    }
}

impl<T> fmt::Debug for Blocking<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").finish_non_exhaustive()
    }
}
