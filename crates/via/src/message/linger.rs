//! The end of an endpoint: what was sent is handed over first.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::Duration,
};

use thiserror::Error;
use vigie_detect::{Instant, Server, WaitError};

use crate::{protocol::MessageEngine, vi::Provider};

/// The longest pause between two polls of an engine without a server.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// The reason why an endpoint was closed before all that was sent had been handed over.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CloseError {
    /// The deadline came first: the ranks have not taken what was sent to them.
    #[error("the deadline came before ranks {ranks:?} had taken what was sent to them")]
    TimedOut {
        /// The ranks, in ascending order.
        ranks: Vec<u32>,
    },
    /// The detection server ended.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// Hands over what was sent without a server, as long as `until` is not over; in virtual time, which does not pass here, not at all.
#[expect(clippy::disallowed_methods, reason = "no server is left that could wait for this")]
pub(super) fn hand_over<P: Provider>(engine: &mut MessageEngine<P>, until: Instant) {
    let is_virtual = Server::current().is_ok_and(|server| server.is_virtual());
    // Also after a panic of the engine: the thread that drops an endpoint gets no second one.
    let handed_over = catch_unwind(AssertUnwindSafe(|| {
        let mut pause = Duration::from_micros(20);
        loop {
            let ranks = engine.unreached();
            let now = Instant::now();
            let may_wait = engine.descriptor().is_some() && !is_virtual && !thread::panicking();
            if ranks.is_empty() || now >= until || !may_wait {
                return ranks;
            }
            if engine.progress(now) {
                continue;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }));
    match handed_over {
        Ok(ranks) => report(&ranks),
        Err(_) => tracing::error!("the engine of an endpoint panicked while it handed over"),
    }
}

/// Reports what a dropped endpoint could not hand over.
fn report(ranks: &BTreeSet<u32>) {
    if !ranks.is_empty() {
        tracing::warn!(?ranks, "an endpoint was dropped before ranks had taken what was sent");
    }
}
