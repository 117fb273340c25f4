//! The state that the connections of a relay share: its settings and resources, its targets, and the state of its drain.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{Notify, Semaphore, watch};
use vigie_detect::Instant;

use super::{
    access::{Access, SourcePermit, Sources},
    balance::Balancer,
    connection::Connection,
    endpoint::Endpoint,
    error::RelayError,
    health::HeaderHealth,
    listener::WeakListener,
    proxy::ProxyHeader,
    resources::RelayResources,
    retries::Retries,
    settings::RelayBuilder,
    target::{Target, Targets},
    wait::{Either, select, timeout_at},
};

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Connections that ended on their own after the drain began.
    pub finished: u64,
    /// Connections cut at the deadline.
    pub cut: u64,
}

/// The state shared by all connections.
#[derive(Debug)]
pub(super) struct RelayShared {
    pub(super) settings: RelayBuilder,
    pub(super) resources: RelayResources,
    /// The relay's own targets, then those of routes.
    pub(super) groups: Vec<TargetGroup>,
    /// Notified when a name has got other addresses.
    pub(super) targets_changed: Arc<Notify>,
    pub(super) access: Access,
    pub(super) sources: Arc<Sources>,
    /// Notified when a connection has ended and freed its descriptors.
    pub(super) ended: Notify,
    pub(super) emptied: Notify,
    /// Set before `cut` tells connections to end, so that they need not check at every poll.
    pub(super) is_cutting: AtomicBool,
    pub(super) cut: Notify,
    /// The deadline of a drain, once one has begun.
    pub(super) draining: watch::Sender<Option<Instant>>,
    /// Closed once the relay accepts no more.
    pub(super) accepting: watch::Sender<()>,
    pub(super) listener: WeakListener,
    /// Where it listens, of TCP.
    pub(super) own_address: Option<SocketAddr>,
    pub(super) headers: HeaderHealth,
    pub(super) permits: Arc<Semaphore>,
}

/// Targets of which a client gets one.
#[derive(Debug)]
pub(super) struct TargetGroup {
    pub(super) targets: Arc<Targets<Endpoint>>,
    pub(super) balancer: Balancer,
    pub(super) retries: Retries,
}

/// The bytes that a client's target gets first, and the group of targets to choose from.
#[derive(Debug, Default)]
pub(super) struct Opening {
    /// An index of the groups.
    pub(super) group: usize,
    pub(super) header: Option<ProxyHeader>,
    /// Bytes of the client that were read already.
    pub(super) first: Vec<u8>,
}

impl RelayShared {
    /// Waits for the remaining connections, and cuts them at the deadline.
    pub(super) async fn drained(&self) -> io::Result<Drained> {
        let counters = &self.resources.counters;
        let (active, cut) = (counters.active.value(), counters.cut.value());
        let mut draining = self.draining.subscribe();
        loop {
            let Some(deadline) = *draining.borrow_and_update() else { break };
            let waited = select(self.empty(), draining.changed());
            match timeout_at(&self.resources.server, deadline, waited).await? {
                Some(Either::Left(())) => break,
                // The deadline has changed.
                Some(Either::Right(_)) => {}
                None => {
                    // Release: a connection that is notified next sees it (acquire, in `Cut::poll`).
                    self.is_cutting.store(true, Ordering::Release);
                    self.cut.notify_waiters();
                    self.empty().await;
                    break;
                }
            }
        }
        let cut = counters.cut.value() - cut;
        Ok(Drained { finished: active.saturating_sub(cut), cut })
    }

    /// Waits until no connection is left.
    async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.resources.counters.active.value() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Waits until connections are to be cut.
    pub(super) async fn cut_requested(&self) {
        loop {
            let cut = self.cut.notified();
            if self.is_cutting.load(Ordering::Acquire) {
                return;
            }
            cut.await;
        }
    }

    /// All targets of the moment.
    pub(super) fn targets(&self) -> Vec<Arc<Target<Endpoint>>> {
        self.groups.iter().flat_map(|group| group.targets.list().to_vec()).collect()
    }

    pub(super) fn admit(&self, client: Option<IpAddr>) -> Result<SourcePermit, RelayError> {
        let unknown = IpAddr::from([0, 0, 0, 0]);
        self.access.admit(client)?;
        let refused = || RelayError::OverSourceMax { client: client.unwrap_or(unknown) };
        self.sources.admit(client).ok_or_else(refused)
    }

    pub(super) fn is_trusted(&self, client: &Connection) -> bool {
        let trusted = &self.settings.trusted;
        match client {
            Connection::Unix(_) => !trusted.is_empty(),
            Connection::Tcp(stream) => stream
                .peer_addr()
                .is_ok_and(|peer| trusted.iter().any(|network| network.contains(peer.ip()))),
        }
    }

    pub(super) fn count(&self, ended: &Result<(), RelayError>) {
        let counters = &self.resources.counters;
        let counter = match ended {
            Ok(()) => &counters.finished,
            Err(RelayError::NoUpstream { .. }) => &counters.refused,
            Err(RelayError::OverRetryBudget { .. }) => &counters.over_retry_budget,
            Err(RelayError::Denied(_)) => &counters.denied,
            Err(RelayError::OverSourceMax { .. }) => &counters.over_source_max,
            Err(RelayError::Idle { .. }) => &counters.timed_out,
            Err(RelayError::Frame { .. } | RelayError::Proxy(_)) => &counters.malformed,
            #[cfg(feature = "tls")]
            Err(RelayError::Tls(_)) => &counters.tls_clients_failed,
            Err(RelayError::Cut) => &counters.cut,
            Err(
                RelayError::Failed { .. }
                | RelayError::Closed { .. }
                | RelayError::Unclean { .. }
                | RelayError::Torn { .. },
            ) => &counters.reset,
        };
        counter.add(1);
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended before its time");
        }
    }
}
