//! Jobs: what a resource does for one packet or message.

/// The work of a resource for a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum JobStep {
    Receive,
    BusIn,
    Algorithm,
    BusOut,
    Send,
}

/// A packet, or for [`JobStep::Algorithm`] a message, that a resource processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceJob {
    pub(super) flow: usize,
    pub(super) message: u32,
    pub(super) step: JobStep,
}

impl ResourceJob {
    /// Returns whether it goes before others on a half-duplex bus: departures make room for arrivals.
    pub(super) const fn is_urgent(self) -> bool {
        matches!(self.step, JobStep::BusOut)
    }
}
