//! The errors of registering and waiting.

use std::{
    any::Any,
    error::Error,
    fmt, io,
    panic::{self, AssertUnwindSafe},
};

use crate::sync::callbacks;

/// The reason why a detector could not be registered.
#[derive(Debug)]
#[non_exhaustive]
pub enum RegisterError {
    /// The detector offers no method at all.
    NoMethod,
    /// The policy's strategy needs a method that the detector does not offer.
    Unsupported {
        /// The strategy, as its `Display` shows it.
        strategy: String,
    },
    /// The detector offers [`Methods::BLOCK`](crate::Methods::BLOCK), but `blocker()` returns `None`.
    NoBlocker,
    /// The detector offers [`Methods::SIGNAL`](crate::Methods::SIGNAL), but `signal()` returns
    /// `None`.
    NoSignal,
    /// The signal cannot be caught (SIGKILL, SIGSTOP), reports a fault of the running code (SIGSEGV,
    /// SIGBUS, SIGILL, SIGFPE), is reserved by the C library, or does not exist.
    ForbiddenSignal {
        /// The signal's number.
        signal: i32,
    },
    /// The kernel refused to install the signal's handler.
    Signal(io::Error),
    /// [`Detector::attach`](crate::Detector::attach) failed, or the detector needs what a simulation has not.
    Attach(io::Error),
    /// A callback of the detector panicked during the registration.
    Panicked {
        /// The callback's name and the panic's message.
        message: String,
    },
    /// The server has been shut down.
    ServerClosed,
    /// The server holds as many handles as a token can address.
    TooManyHandles {
        /// The maximum number of handles per server.
        limit: usize,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMethod => {
                f.write_str("the detector offers no method: `methods()` must return at least one")
            }
            Self::Unsupported { strategy } => {
                write!(f, "the strategy {strategy} needs a method that the detector does not offer")
            }
            Self::NoBlocker => {
                f.write_str("the detector offers the method BLOCK: `blocker()` must return a call")
            }
            Self::NoSignal => f.write_str(
                "the detector offers the method SIGNAL: `signal()` must return a signal",
            ),
            Self::ForbiddenSignal { signal } => write!(f, "signal {signal} cannot announce events"),
            Self::Signal(error) => {
                write!(f, "the handler of the signal could not be installed: {error}")
            }
            Self::Attach(error) => {
                write!(f, "the detector could not be attached to its driver: {error}")?;
                if error.kind() == io::ErrorKind::PermissionDenied {
                    f.write_str(
                        ". If it watches a file: epoll takes no regular files and no directories; read them by `vigie::fs` or `spawn_blocking`",
                    )?;
                }
                Ok(())
            }
            Self::Panicked { message } => {
                write!(f, "the detector could not be registered: {message}")
            }
            Self::ServerClosed => {
                f.write_str("the runtime or detection server of this handle has been shut down")
            }
            Self::TooManyHandles { limit } => {
                write!(f, "the detection server holds its maximum of {limit} handles")
            }
        }
    }
}

impl Error for RegisterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Signal(error) | Self::Attach(error) => Some(error),
            _ => None,
        }
    }
}

/// The reason why a wait ended without an event.
#[derive(Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// The detection server was shut down before or during the wait.
    ServerClosed,
    /// The detector rejected the request or failed it later.
    Failed(io::Error),
    /// A callback of the detector panicked.
    Panicked {
        /// The name of the callback.
        callback: &'static str,
        /// The panic's message.
        message: String,
    },
    /// The handle has as many pending requests as its registration allows.
    TooManyPending {
        /// The limit that was reached.
        limit: usize,
    },
    /// The request ended without an event: the caller waited on a stream that had already ended.
    Ended,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerClosed => {
                f.write_str("the runtime or detection server of this handle has been shut down")
            }
            Self::Failed(error) => write!(f, "the detector failed the request: {error}"),
            Self::Panicked { callback, message } => {
                write!(f, "the detector panicked in `{callback}`: {message}")
            }
            Self::TooManyPending { limit } => write!(
                f,
                "{limit} requests are pending already; raise `Registration::max_pending` or wait for some"
            ),
            Self::Ended => f.write_str("the request has ended"),
        }
    }
}

impl Error for WaitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for WaitError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl WaitError {
    /// Returns whether the detection server is gone, in which case no later wait can succeed.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self, Self::ServerClosed)
    }

    /// Returns a copy, for when one failure ends several requests.
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Self::ServerClosed => Self::ServerClosed,
            Self::Failed(error) => Self::Failed(duplicate(error)),
            Self::Panicked { callback, message } => {
                Self::Panicked { callback, message: message.clone() }
            }
            Self::TooManyPending { limit } => Self::TooManyPending { limit: *limit },
            Self::Ended => Self::Ended,
        }
    }
}

impl From<RegisterError> for io::Error {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Signal(error) | RegisterError::Attach(error) => error,
            RegisterError::ServerClosed => Self::new(io::ErrorKind::NotConnected, error),
            RegisterError::ForbiddenSignal { .. } => Self::new(io::ErrorKind::InvalidInput, error),
            _ => Self::other(error),
        }
    }
}

impl From<WaitError> for io::Error {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Failed(error) => error,
            WaitError::ServerClosed => Self::new(io::ErrorKind::NotConnected, error),
            WaitError::TooManyPending { .. } => Self::new(io::ErrorKind::QuotaExceeded, error),
            _ => Self::other(error),
        }
    }
}

fn duplicate(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Calls foreign code and turns a panic into an error that names the callback.
pub(crate) fn caught<T>(callback: &'static str, call: impl FnOnce() -> T) -> Result<T, WaitError> {
    // A panicking callback may leave the detector half-changed: the server closes the handle or ends
    // the request, and does not touch the detector's state again on that request's behalf.
    let call = AssertUnwindSafe(|| in_callback(call));
    panic::catch_unwind(call).map_err(|payload| {
        let message = panic_message(&*payload);
        tracing::error!(callback, message, "a detector panicked");
        WaitError::Panicked { callback, message }
    })
}

/// Calls foreign code while a lock of the server may be held.
pub(crate) fn in_callback<T>(call: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            callbacks(|count| count.set(count.get() - 1));
        }
    }
    callbacks(|count| count.set(count.get() + 1));
    let _leave = Leave;
    call()
}

/// Returns whether this thread is in a callback and must not wake a task: a waker runs foreign code, which may take the
/// lock.
pub(crate) fn is_in_callback() -> bool {
    callbacks(|count| count.get() > 0)
}

/// Drops a foreign value on a host's thread: a destructor that panics must not lose the events that
/// the host is about to deliver.
pub(crate) fn discard<T>(value: T) {
    let _ = caught("drop", || drop(value));
}

/// Returns the message of a panic.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|message| (*message).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}
