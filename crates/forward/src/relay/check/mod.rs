//! Active checks: a relay connects to each target now and then, so that one that does not answer is passed over before a client meets
//! it.

mod config;
mod history;

use std::{
    io,
    sync::{Arc, PoisonError},
};

use tokio::sync::watch;

pub use self::config::HealthCheckConfig;
pub(super) use self::history::CheckHistory;
#[cfg(feature = "tls")]
use super::stream::RelayStream;
use super::{
    connecting::{connect_to, introduce},
    endpoint::Endpoint,
    peer_stream::PeerStream,
    proxy::ProxyHeader,
    shared::RelayShared,
    target::Target,
    wait::{Either, is_exhausted, join_all, select, timeout_at},
};

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

/// The targets that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    All,
    /// Those that have not been checked yet.
    New,
}

/// Checks targets once, at the same time.
pub(super) async fn check_all(shared: &RelayShared, config: &HealthCheckConfig, which: Which) {
    let targets = shared.targets();
    let checked = targets.iter().filter(|target| which == Which::All || target.is_unchecked());
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
    let connection = connect_to(shared, target).await?;
    let header = shared.settings.sends_proxy.then_some(ProxyHeader::Local);
    let connection = introduce(shared, target, connection, header).await?;
    match connection {
        PeerStream::Plain(_) => Ok(()),
        // As TLS ends, so that the target logs no cut connection.
        #[cfg(feature = "tls")]
        stream @ PeerStream::Tls(_) => std::future::poll_fn(|cx| stream.poll_finish(cx)).await,
    }
}
