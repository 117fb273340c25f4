//! A blocking call that a detector gives its server.

use std::{fmt, io, time::Duration};

pub(crate) type Call = Box<dyn FnMut(Option<Duration>) -> io::Result<()> + Send>;
pub(crate) type Interrupt = Box<dyn Fn() + Send + Sync>;

/// A call that blocks until an event may be there: what [`Detector::blocker`](crate::Detector::blocker)
/// returns.
///
/// It runs on its own kernel thread, with no lock held, while requests are pending; the server polls the
/// detector after each return.
///
/// # Contract
/// 1. It returns at once if there is an event that no poll has taken, no matter when it happened; a call
///    that starts after the event must not sleep through it.
/// 2. It may return without an event. [`io::ErrorKind::Interrupted`] is such a return; any other error
///    ends all pending requests of the handle and closes it, as a panic does.
/// 3. Without an interrupt, each call is given a time, at most [`UNINTERRUPTED_MAX`](Self::UNINTERRUPTED_MAX), after which
///    it must return. One that does not keeps its thread beyond the server's end, but delays no
///    other handle.
/// 4. With an interrupt, a call in progress returns soon after the interrupt is called, if necessary
///    several times; it is then given no time.
pub struct Blocker {
    pub(crate) call: Call,
    pub(crate) interrupt: Option<Interrupt>,
}

impl Blocker {
    /// The longest time that a call without an interrupt may be given.
    pub const UNINTERRUPTED_MAX: Duration = Duration::from_secs(1);

    /// Creates a blocker whose calls return on their own after the time that they are given.
    #[must_use]
    pub fn new(call: impl FnMut(Option<Duration>) -> io::Result<()> + Send + 'static) -> Self {
        Self { call: Box::new(call), interrupt: None }
    }

    /// Creates a blocker whose call in progress is ended by `interrupt`, from another thread.
    #[must_use]
    pub fn interruptible(
        call: impl FnMut(Option<Duration>) -> io::Result<()> + Send + 'static,
        interrupt: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self { call: Box::new(call), interrupt: Some(Box::new(interrupt)) }
    }
}

impl fmt::Debug for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocker")
            .field("is_interruptible", &self.interrupt.is_some())
            .finish_non_exhaustive()
    }
}
