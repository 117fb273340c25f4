//! What a table reports of its flows, for a log.

use std::{fmt, sync::Arc, time::Duration};

use super::NatFlow;

named! {
    /// Why a flow ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum NatEnd {
        /// No packet came for its time-out.
        TimedOut => "timed_out",
        /// Its connection was closed or reset, and no packet came for the time-out of such a one.
        Closed => "closed",
        /// Its connection was closed, and another one began with the same ends.
        Replaced => "replaced",
        /// It was evicted to make room for another one.
        Evicted => "evicted",
    }
}

/// A flow that begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatEvent {
    /// It has begun.
    Began(NatFlow),
    /// It has ended.
    Ended {
        /// The flow.
        flow: NatFlow,
        /// The time since it began, or since it was restored.
        duration: Duration,
        /// Why.
        end: NatEnd,
    },
}

/// A function that is called with each event.
#[derive(Clone)]
pub(super) struct NatObserver(Arc<dyn Fn(&NatEvent) + Send + Sync>);

impl NatObserver {
    pub(super) fn new(observe: impl Fn(&NatEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(super) fn note(&self, event: &NatEvent) {
        (self.0)(event);
    }
}

impl fmt::Debug for NatObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NatObserver").finish()
    }
}
