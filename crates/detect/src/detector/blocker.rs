//! A call that blocks, as a detector gives it to its server.

use std::{fmt, io, time::Duration};

pub(crate) type Call = Box<dyn FnMut(Option<Duration>) -> io::Result<()> + Send>;
pub(crate) type Interrupt = Box<dyn Fn() + Send + Sync>;

/// A call that blocks until an event may be there: what [`Detector::block`](crate::Detector::block)
/// returns.
///
/// It runs on a kernel thread kept for it, without any lock held, while requests are pending; the server
/// polls the detector after each return.
///
/// # Contract
/// 1. It returns at once if an event is there that no poll has taken, whenever that has happened; a call
///    that came too late must not sleep over it.
/// 2. It may return although there is none. [`io::ErrorKind::Interrupted`] is such a return; any other
///    error ends all pending requests of the handle and closes it, as a panic does.
/// 3. Without an interrupt it returns after the given time, which it may then be given, at most
///    [`LIMIT`](Self::LIMIT). One that does not keeps its thread beyond the server's end, and delays
///    nobody else.
/// 4. With an interrupt, a call under way returns soon after that is called, at least after it is called
///    several times; it then is given no time.
pub struct Blocker {
    pub(crate) call: Call,
    pub(crate) interrupt: Option<Interrupt>,
}

impl Blocker {
    /// The longest time that a call without an interrupt is given.
    pub const LIMIT: Duration = Duration::from_secs(1);

    /// Makes a blocker whose calls end by themselves after the time that they are given.
    #[must_use]
    pub fn new(call: impl FnMut(Option<Duration>) -> io::Result<()> + Send + 'static) -> Self {
        Self { call: Box::new(call), interrupt: None }
    }

    /// Makes a blocker whose call under way is ended by `interrupt`, from another thread.
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
