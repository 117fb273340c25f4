//! An inspection of a handle: its counts, and what waits there for what.

use super::{
    handle_inner::{HandleCore, HandleInner},
    metrics::{Detection, HandleReport},
    waits::{WaitReport, WaiterId},
};
use crate::{
    detector::Detector,
    error::caught,
    sync::{Ordering, thread, try_lock},
};

/// The number of times that a report tries to lock a handle, yielding the processor in between. Bounded: the caller must not hang with a
/// detector that hangs in a callback.
const TRIES: u32 = 100;

impl<D: Detector> HandleInner<D> {
    /// Calls `read` with the handle's core, unless a callback runs all the time.
    fn try_read<T>(&self, read: impl FnOnce(&HandleCore<D>) -> T) -> Option<T> {
        let core = (0..TRIES).find_map(|_| {
            let core = try_lock(&self.core);
            if core.is_none() {
                thread::yield_now();
            }
            core
        })?;
        Some(read(&core))
    }

    pub(super) fn detection_report(&self) -> HandleReport {
        let pending = self.watch.known_count.load(Ordering::Relaxed);
        let detection = self.try_read(|core| Detection {
            strategy: core.decision.strategy,
            polls: core.history.polls(),
            hits: core.history.hits(),
            events: core.history.events(),
        });
        HandleReport { name: self.name, pending, detection }
    }

    pub(super) fn append_waits(&self, waits: &mut Vec<WaitReport>) {
        self.try_read(|core| {
            for (request, waiters) in core.pending.waiters(WaiterId::of) {
                if waiters.is_empty() {
                    continue;
                }
                let describe =
                    |detector: &D| caught("describe", || detector.describe(request)).ok();
                let what = core.detector.as_ref().and_then(describe).unwrap_or_default();
                let report = |waiter| WaitReport { handle: self.name, what: what.clone(), waiter };
                waits.extend(waiters.into_iter().map(report));
            }
        });
    }
}
