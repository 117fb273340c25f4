//! Active checks: a relay connects to each target now and then, so that one that does not answer is passed over before a client meets
//! it.
//!
//! ```text
//!            1 `fall` checks in a row have failed (at the start, the first)
//!   up ───────────────────────────────────────────────────────────────────▶ down
//!      ◀───────────────────────────────────────────────────────────────────
//!            2 `rise` checks in a row have passed
//! ```

use std::{
    io,
    sync::{Arc, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

#[cfg(feature = "tls")]
use super::stream::RelayStream;
use super::{
    connection::Connection,
    endpoint::Endpoint,
    peer_stream::PeerStream,
    proxy::ProxyHeader,
    relay::RelayShared,
    target::Target,
    upstream::introduce,
    wait::{Either, is_exhausted, join_all, select, timeout_at},
};

/// How a relay checks its targets: see [`RelayBuilder::check`](super::RelayBuilder::check).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthCheckConfig {
    every: Duration,
    timeout: Duration,
    rise: u32,
    fall: u32,
}

impl Default for HealthCheckConfig {
    fn default() -> Self {
        let (every, timeout) = (Duration::from_secs(2), Duration::from_secs(1));
        Self { every, timeout, rise: 2, fall: 3 }
    }
}

impl HealthCheckConfig {
    vigie_detect::setters! {
        /// Sets the time between two checks of a target. Default 2 s; at least 1 ms.
        every: Duration,

        /// Sets how long a check may take. Default 1 s; at least 1 ms, and at most the time between two checks.
        timeout: Duration,

        /// Sets how many checks in a row must pass before a target that is down is used again. Default 2; at least 1.
        rise: u32,

        /// Sets how many checks in a row must fail before a target is down. Default 3; at least 1.
        fall: u32,
    }

    pub(super) fn is_possible(&self) -> bool {
        let Self { every, timeout, rise, fall } = self;
        *timeout >= Duration::from_millis(1) && timeout <= every && *rise > 0 && *fall > 0
    }
}

/// What the checks of a target have shown.
#[derive(Debug, Default)]
pub(super) struct CheckHistory {
    /// `None` before the first check.
    is_up: Option<bool>,
    /// Checks in a row that contradict this.
    streak: u32,
}

impl CheckHistory {
    /// Whether no check has ended yet, so that the target is only presumed to be up.
    pub(super) const fn is_empty(&self) -> bool {
        self.is_up.is_none()
    }

    /// Takes the result of a check. Returns whether the target is up, if that has changed.
    #[must_use = "the change is not returned again"]
    fn checked(&mut self, has_passed: bool, config: &HealthCheckConfig) -> Option<bool> {
        let needed = if has_passed { config.rise } else { config.fall };
        match self.is_up {
            Some(is_up) if is_up == has_passed => {
                self.streak = 0;
                return None;
            }
            Some(_) => {
                self.streak += 1;
                if self.streak < needed {
                    return None;
                }
            }
            None => {}
        }
        self.streak = 0;
        let was = self.is_up.replace(has_passed);
        // A target is up until a check says otherwise.
        (was.is_some() || !has_passed).then_some(has_passed)
    }
}

/// Checks all targets now and every so often, and new ones at once, until the relay no longer serves.
pub(super) async fn watch(
    shared: Arc<RelayShared>,
    config: HealthCheckConfig,
    mut serving: watch::Receiver<()>,
) {
    let server = &shared.resources.server;
    let mut next = server.now();
    loop {
        let due = select(server.timers().wait_owned(next), shared.targets_changed.notified());
        // The sender says nothing, and is gone when the relay is.
        let which = match select(serving.changed(), due).await {
            Either::Right(Either::Left(Ok(()))) => {
                next = server.now() + config.every;
                Which::All
            }
            Either::Right(Either::Right(())) => Which::New,
            _ => return,
        };
        let checks = check_all(&shared, &config, which);
        if let Either::Left(_) = select(serving.changed(), checks).await {
            return;
        }
    }
}

/// Which targets are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    All,
    /// Those that have not been checked yet.
    New,
}

/// Checks targets once, at the same time.
pub(super) async fn check_all(shared: &RelayShared, config: &HealthCheckConfig, which: Which) {
    let is_new = |target: &Target<Endpoint>| {
        target.checks.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    };
    let targets = shared.targets();
    let checked = targets.iter().filter(|target| which == Which::All || is_new(target));
    let checks = checked.map(|target| Box::pin(check(shared, config, target)));
    join_all(checks.collect()).await;
}

async fn check(shared: &RelayShared, config: &HealthCheckConfig, target: &Target<Endpoint>) {
    let server = &shared.resources.server;
    let error = match timeout_at(server, server.now() + config.timeout, probe(shared, target)).await
    {
        Ok(Some(Ok(()))) => None,
        Ok(Some(Err(error))) => Some(error),
        Ok(None) => Some(io::ErrorKind::TimedOut.into()),
        // The server was shut down.
        Err(_) => return,
    };
    // If this process lacks resources, the target may be healthy.
    if error.as_ref().is_some_and(is_exhausted) {
        return;
    }
    let mut history = target.checks.lock().unwrap_or_else(PoisonError::into_inner);
    let changed = history.checked(error.is_none(), config);
    drop(history);
    match (changed, &error) {
        (Some(true), _) => target.health.note_up(),
        (Some(false), Some(error)) => target.health.note_down(error),
        _ => {}
    }
    if error.is_some() {
        target.counters.checks_failed.add(1);
    }
}

/// Connects, as for a client, and closes the connection. A target that expects a header gets one that says that there is no client.
async fn probe(shared: &RelayShared, target: &Target<Endpoint>) -> io::Result<()> {
    let connection = Connection::connect_on(&shared.resources.server, &target.address).await?;
    let header = shared.settings.sends_proxy.then_some(ProxyHeader::Local);
    let connection = introduce(shared, target, connection, header).await?;
    match connection {
        PeerStream::Plain(_) => Ok(()),
        // As TLS ends, so that the target logs no cut connection.
        #[cfg(feature = "tls")]
        stream @ PeerStream::Tls(_) => std::future::poll_fn(|cx| stream.poll_finish(cx)).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the first check decides alone; later, as many in a row as are set, and a contrary one in between starts the count again.
    /// Method: results by hand; each line is what is said of a change.
    #[test]
    fn rows_of_checks_decide() {
        let config = HealthCheckConfig::default().rise(2).fall(3);
        for (results, changes) in [
            ("+", "."),
            ("-", "D"),
            ("--+", "D.."),
            ("-+-++", "D...U"),
            ("+--+---", "......D"),
            ("+---++---", "...D.U..D"),
        ] {
            let mut history = CheckHistory::default();
            let said = results.chars().map(|one| match history.checked(one == '+', &config) {
                None => '.',
                Some(true) => 'U',
                Some(false) => 'D',
            });
            assert_eq!(said.collect::<String>(), changes, "{results}");
        }
    }
}
