//! The registration of a detector.

use crate::policy::Policy;

/// The most requests of one handle: one index is reserved to mean "no request".
pub(crate) const PENDING_MAX: usize = 1 << 31;

/// The registration of a detector: its name, policy and limits.
///
/// # Source
/// [bouge02, §2.2]: `thread_IO_registration_t`.
#[derive(Debug)]
#[must_use = "a registration does nothing before it is given to `Server::register`"]
pub struct Registration {
    pub(crate) name: &'static str,
    pub(crate) policy: Option<Box<dyn Policy>>,
    pub(crate) max_pending: usize,
    pub(crate) stream_capacity: usize,
    pub(crate) batch: usize,
}

impl Registration {
    /// Creates a registration with a name for metrics and traces.
    pub const fn named(name: &'static str) -> Self {
        Self { name, policy: None, max_pending: 1 << 20, stream_capacity: 1024, batch: 256 }
    }

    /// Sets the policy that chooses the strategy. Default: [`Adaptive`](crate::Adaptive).
    pub fn policy(mut self, policy: impl Policy) -> Self {
        self.policy = Some(Box::new(policy));
        self
    }

    /// Sets how many requests may be pending at once, 1 to 2^31; more fail with
    /// [`WaitError::TooManyPending`](crate::WaitError::TooManyPending). Default: 2^20.
    pub fn max_pending(mut self, count: usize) -> Self {
        self.max_pending = count.clamp(1, PENDING_MAX);
        self
    }

    /// Sets how many events of one stream may wait for their waiter, at least 1; beyond that the
    /// detector must hold them back. Default: 1024.
    pub fn stream_capacity(mut self, events: usize) -> Self {
        self.stream_capacity = events.max(1);
        self
    }

    /// Sets the number of events after which a poll leaves the rest to the next one, at least 1.
    /// Default: 256.
    pub fn batch(mut self, events: usize) -> Self {
        self.batch = events.max(1);
        self
    }
}

impl Default for Registration {
    fn default() -> Self {
        Self::named("detector")
    }
}
