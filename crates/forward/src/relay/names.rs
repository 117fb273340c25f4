//! Names among a relay's upstreams: resolved when it begins to serve, and again now and then.
//!
//! The host's resolver is asked (`getaddrinfo`), so a name means here what it means to every other program of the host. It does not
//! tell for how long an answer holds; `docs/design/forward-relay.md` says why that is enough.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::sync::watch;
use vigie_detect::{Server, net::lookup_host};

use super::{
    target::{HostName, TargetAddress, Targets},
    wait::{Either, join_all, select, timeout},
};

/// The time between attempts to resolve names of which no address is known; it doubles, up to the usual time.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The maximum number of addresses of a name that are used.
const ADDRESSES_MAX: usize = 64;

/// Resolves all names of these groups of targets, before clients are served: for at most `time`.
pub(super) async fn resolve_first<A: TargetAddress>(
    server: &Server,
    groups: &[Arc<Targets<A>>],
    time: Duration,
) -> io::Result<()> {
    let all = groups.iter().map(|targets| Box::pin(resolve_all(server, targets)));
    timeout(server, time, join_all(all.collect())).await
}

/// Resolves all names every so often, until the relay no longer serves.
pub(super) async fn follow<A: TargetAddress>(
    server: Server,
    targets: Arc<Targets<A>>,
    every: Duration,
    mut serving: watch::Receiver<()>,
) {
    let mut retry = RETRY_FIRST;
    loop {
        let pause = if targets.are_all_known() { every } else { retry.min(every) };
        retry = if targets.are_all_known() { RETRY_FIRST } else { retry.saturating_mul(2) };
        let resolved = async {
            server.timers().wait(server.now() + pause).await?;
            resolve_all(&server, &targets).await;
            Ok::<(), io::Error>(())
        };
        // The sender says nothing, and is gone when the relay is.
        let Either::Right(Ok(())) = select(serving.changed(), resolved).await else { return };
    }
}

async fn resolve_all<A: TargetAddress>(server: &Server, targets: &Targets<A>) {
    let names = targets.names();
    let lookups = names.map(|(index, name)| Box::pin(resolve(server, targets, index, name)));
    join_all(lookups.collect()).await;
}

async fn resolve<A: TargetAddress>(
    server: &Server,
    targets: &Targets<A>,
    index: usize,
    name: &HostName,
) {
    let found = lookup_host((name.host.as_str(), name.port)).await.and_then(|found| {
        let found: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
        if found.is_empty() { Err(io::Error::other("it has no address")) } else { Ok(found) }
    });
    match found {
        Ok(addresses) => {
            name.health.note_resolved(|| server.now());
            if let Some((new, gone)) = targets.set(index, addresses) {
                name.health.note_changed(&new, &gone);
            }
        }
        // The addresses from before stay.
        Err(error) => name.health.note_unresolved(&error, server.now()),
    }
}
