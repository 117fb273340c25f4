//! POSIX signals as events: the detector whose only method is a signal.
//!
//! Inside a vigie runtime use `vigie::signal` (`vigie_runtime::signal`), which has tokio's names and finds the server itself. This module
//! is for you if you have a server without a runtime, or if several tasks wait through clones of one handle, or if you need the number
//! of arrivals.
//!
//! Arrivals are counted, and each wait takes one; an arrival before the wait is not lost. A stream
//! merges unread arrivals into one event with a count. Each handle counts separately, so several
//! handles for one signal all see every arrival.
//!
//! # What the kernel merges
//! A standard signal that is sent again before its handler ran counts as one arrival [signal(7)];
//! real-time signals are queued and counted one by one. A count therefore means "at least one since the
//! last time", which is enough for a reload or a shutdown.
//!
//! # Side effects of a handler
//! The signal's default action is disabled as soon as the handle is registered, and stays so when the
//! handle is gone: a SIGTERM without a waiter is then ignored. A handler installed earlier is still
//! called. The handler runs on any thread that the kernel chooses, with `SA_RESTART`; a few system calls
//! (`poll`, `epoll_wait`, `nanosleep`) still fail with `EINTR`. Threads that block the signal are
//! skipped; if all block it, it does not arrive.
//!
//! # In virtual time
//! A simulated process has signals of its own, and no handler is installed: what `vigie::simulation::Node::signal` raises at its
//! node arrives, and nothing else.
//!
//! # Examples
//! ```
//! use rustix::process::{Signal, getpid, kill_process};
//! use vigie_detect::{Server, detectors::signal::{SignalKind, signal}};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let host = Server::spawn_thread()?;
//! let reload = signal(host.server(), SignalKind::HANGUP)?;
//! kill_process(getpid(), Signal::HUP)?;
//! assert_eq!(reload.recv().await?.count, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{fmt, io};

use crate::{
    detector::{
        Arming, Detector, DriverHandle, EmitOutcome, Key, Methods, Mode, PollContext, SubmitOutcome,
    },
    error::RegisterError,
    server::{Handle, Registration, Server, Wait},
};

/// A POSIX signal to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SignalKind(i32);

/// The constants, by tokio's names.
macro_rules! kinds {
    ($($name:ident = $constant:ident),+ $(,)?) => {
        impl SignalKind {
            $(
                #[doc = concat!("Returns [`", stringify!($constant), "`](Self::", stringify!($constant), ").")]
                #[must_use]
                pub const fn $name() -> Self {
                    Self::$constant
                }
            )+
        }
    };
}

kinds! {
    alarm = ALARM, child = CHILD, hangup = HANGUP, interrupt = INTERRUPT, io = IO, pipe = PIPE, quit = QUIT,
    terminate = TERMINATE, user_defined1 = USER_DEFINED_1, user_defined2 = USER_DEFINED_2, window_change = WINDOW_CHANGE,
}

impl SignalKind {
    /// SIGALRM: a timer of the process has expired.
    pub const ALARM: Self = Self(libc::SIGALRM);
    /// SIGCHLD: a child process ended or stopped.
    pub const CHILD: Self = Self(libc::SIGCHLD);
    /// SIGHUP: the terminal is gone; for services, by convention, reload the configuration.
    pub const HANGUP: Self = Self(libc::SIGHUP);
    /// SIGINT: interrupted from the terminal.
    pub const INTERRUPT: Self = Self(libc::SIGINT);
    /// SIGIO: a descriptor that asked for it is ready.
    pub const IO: Self = Self(libc::SIGIO);
    /// SIGPIPE: a write to a pipe without readers.
    pub const PIPE: Self = Self(libc::SIGPIPE);
    /// SIGQUIT: interrupted from the terminal, with a core dump requested.
    pub const QUIT: Self = Self(libc::SIGQUIT);
    /// SIGTERM: the process is asked to terminate.
    pub const TERMINATE: Self = Self(libc::SIGTERM);
    /// SIGUSR1.
    pub const USER_DEFINED_1: Self = Self(libc::SIGUSR1);
    /// SIGUSR2.
    pub const USER_DEFINED_2: Self = Self(libc::SIGUSR2);
    /// SIGWINCH: the terminal's size changed.
    pub const WINDOW_CHANGE: Self = Self(libc::SIGWINCH);

    /// Creates a kind from a signal number; [`signal`] checks whether it can be waited for.
    #[must_use]
    pub const fn from_raw(number: i32) -> Self {
        Self(number)
    }

    /// Returns the real-time signal `offset` places above the lowest one; `None` beyond the highest.
    #[must_use]
    pub fn real_time(offset: u8) -> Option<Self> {
        let number = libc::SIGRTMIN() + i32::from(offset);
        (number <= libc::SIGRTMAX()).then_some(Self(number))
    }

    /// Returns the signal's number.
    #[must_use]
    pub const fn as_raw(self) -> i32 {
        self.0
    }

    /// Returns the signal's number, by tokio's name.
    #[must_use]
    pub const fn as_raw_value(&self) -> i32 {
        self.0
    }
}

impl fmt::Display for SignalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            libc::SIGABRT => "SIGABRT",
            libc::SIGALRM => "SIGALRM",
            libc::SIGCHLD => "SIGCHLD",
            libc::SIGCONT => "SIGCONT",
            libc::SIGHUP => "SIGHUP",
            libc::SIGINT => "SIGINT",
            libc::SIGIO => "SIGIO",
            libc::SIGKILL => "SIGKILL",
            libc::SIGPIPE => "SIGPIPE",
            libc::SIGQUIT => "SIGQUIT",
            libc::SIGSTOP => "SIGSTOP",
            libc::SIGTERM => "SIGTERM",
            libc::SIGTSTP => "SIGTSTP",
            libc::SIGUSR1 => "SIGUSR1",
            libc::SIGUSR2 => "SIGUSR2",
            libc::SIGWINCH => "SIGWINCH",
            number => return write!(f, "signal {number}"),
        })
    }
}

/// The event of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrived {
    /// The number of arrivals that this event stands for: one, or more in a stream that was not
    /// read.
    pub count: u64,
}

/// The detector of one signal: created by [`signal`].
pub struct Signals {
    kind: SignalKind,
    /// Arrivals that a wait has taken.
    taken: u64,
    driver: Option<DriverHandle>,
}

/// Creates a detector of `kind` at `server`.
///
/// # Errors
/// [`RegisterError::ForbiddenSignal`] for a signal that cannot be caught, reports a fault, or does not
/// exist; otherwise as [`Server::register`].
pub fn signal(server: &Server, kind: SignalKind) -> Result<Handle<Signals>, RegisterError> {
    let signals = Signals { kind, taken: 0, driver: None };
    server.register(signals, Registration::named("signal"))
}

impl Handle<Signals> {
    /// Waits for the next arrival, and takes it.
    ///
    /// # Cancel safety
    /// Cancel safe: no arrival is lost.
    ///
    /// # Errors
    /// [`WaitError`](crate::WaitError).
    pub fn recv(&self) -> Wait<Signals, &Self> {
        self.wait(())
    }
}

impl Signals {
    /// Returns the signal.
    #[must_use]
    pub const fn kind(&self) -> SignalKind {
        self.kind
    }

    /// Returns how many times the signal has arrived since the registration.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.driver.as_ref().map_or(0, DriverHandle::signal_arrivals)
    }

    fn take(&mut self) -> Option<Arrived> {
        if self.arrivals() == self.taken {
            return None;
        }
        self.taken += 1;
        Some(Arrived { count: 1 })
    }

    fn put_back(&mut self, arrived: Arrived) {
        self.taken -= arrived.count;
    }
}

impl Detector for Signals {
    type Request = ();
    type Event = Arrived;

    fn methods(&self) -> Methods {
        Methods::SIGNAL
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn signal(&self) -> Option<i32> {
        Some(self.kind.0)
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        self.driver = Some(driver.clone());
        Ok(())
    }

    fn submit(&mut self, _: Key, (): &mut (), _: Mode) -> SubmitOutcome<Arrived> {
        self.take().map_or(SubmitOutcome::Pending, SubmitOutcome::Ready)
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        while let Some(key) = context.oldest() {
            if context.is_full() {
                context.more();
                return;
            }
            let Some(arrived) = self.take() else { return };
            if let EmitOutcome::Full(arrived) | EmitOutcome::Gone(arrived) =
                context.emit(key, arrived)
            {
                self.put_back(arrived);
                return;
            }
        }
    }

    fn unclaimed(&mut self, arrived: Arrived) -> Option<Arrived> {
        self.put_back(arrived);
        None
    }

    fn merge(queued: &mut Arrived, newer: Arrived) -> Option<Arrived> {
        queued.count += newer.count;
        None
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals")
            .field("kind", &self.kind)
            .field("arrivals", &self.arrivals())
            .finish_non_exhaustive()
    }
}
