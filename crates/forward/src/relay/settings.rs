//! The settings of a relay, and their checks.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use thiserror::Error;

use super::{
    access::{AccessList, access_setters},
    balance::Balance,
    buffers::{FLOOR_BYTES, budget_for},
    check::HealthCheckConfig,
    chooser::Transfer,
    endpoint::Endpoint,
    framed::{FrameMode, Framing},
    listener::RelayListener,
    proxy::AddressRange,
    record::{ConnectionObserver, observer_setter},
    retries::RetryBudget,
    target::EarlierTargets,
    upstream::{Upstream, are_weights},
};

/// Builds a [`Relay`](super::Relay).
#[derive(Clone, Debug)]
#[must_use = "`bind` makes the relay"]
pub struct RelayBuilder {
    pub(super) listen: Endpoint,
    pub(super) name: Option<Arc<str>>,
    pub(super) earlier: EarlierTargets<Endpoint>,
    pub(super) listener: Option<RelayListener>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) balance: Balance,
    pub(super) check: Option<HealthCheckConfig>,
    pub(super) resolve_every: Duration,
    pub(super) retries: RetryBudget,
    pub(super) setup_timeout: Duration,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) connections_max: usize,
    pub(super) memory_bytes_max: usize,
    pub(super) pipes_max: usize,
    pub(super) transfer: Transfer,
    pub(super) framing: Option<Framing>,
    pub(super) sends_proxy: bool,
    pub(super) trusted: Vec<AddressRange>,
    pub(super) access: AccessList,
    pub(super) per_source_max: Option<usize>,
    pub(super) observer: Option<ConnectionObserver>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<super::tls::TlsRouter>,
}

/// The setter of a builder's name.
macro_rules! name_setter {
    () => {
        /// Sets the name of the relay in log lines (`tracing`, field `relay`). Default: the endpoint on which it listens.
        pub fn name(mut self, name: impl Into<std::sync::Arc<str>>) -> Self {
            self.name = Some(name.into());
            self
        }
    };
}
pub(super) use name_setter;

/// The usual time between two attempts to resolve names.
pub(super) const RESOLVE_EVERY: Duration = Duration::from_secs(30);

/// Descriptors left to the rest of the program, if the limit is derived from the process's.
const DESCRIPTORS_LEFT: u64 = 64;

impl RelayBuilder {
    pub(super) fn new(listen: Endpoint) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let usable = limit.unwrap_or(1 << 20).saturating_sub(DESCRIPTORS_LEFT).clamp(4, 1 << 20);
        // An eighth for pipes, of two descriptors each; the rest for connections, of two each.
        let to_usize = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Self {
            listen,
            name: None,
            earlier: EarlierTargets::default(),
            listener: None,
            upstreams: Vec::new(),
            balance: Balance::First,
            check: None,
            resolve_every: RESOLVE_EVERY,
            retries: RetryBudget::default(),
            setup_timeout: Duration::from_secs(5),
            idle_timeout: None,
            connections_max: to_usize(usable * 7 / 16).max(1),
            memory_bytes_max: 256 << 20,
            pipes_max: to_usize(usable / 16).min(1024),
            transfer: Transfer::Adaptive,
            framing: None,
            sends_proxy: false,
            trusted: Vec::new(),
            access: AccessList::default(),
            per_source_max: None,
            observer: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    name_setter!();

    /// Adds an upstream: an endpoint, or an [`Upstream`] with a weight. [`balance`](Self::balance) says which one a connection gets.
    pub fn upstream(mut self, upstream: impl Into<Upstream>) -> Self {
        self.upstreams.push(upstream.into());
        self
    }

    /// Connects to each upstream now and then, and passes over those that do not answer, before a client meets them. Upstreams are
    /// presumed to answer until their first check has ended, so that no client waits for it; meanwhile a client tries one that may be passed over
    /// for at most 1 s. With [`send_proxy_header`](Self::send_proxy_header), an upstream gets a header
    /// that says that there is no client (`LOCAL`). Default: none; an upstream's health is what clients' connections meet.
    pub fn check(mut self, config: HealthCheckConfig) -> Self {
        self.check = Some(config);
        self
    }

    vigie_detect::setters! {
        /// Sets the time between two attempts to resolve the [names](Upstream::named) of upstreams. Default 30 s; at least 1 ms.
        /// Clients are accepted once all names were resolved for the first time, or the set-up time-out is over.
        resolve_every: Duration,

        /// Sets how many connections may try another upstream after one that was not reached; further ones fail at once, and are counted as
        /// `over_retry_budget`. It holds for the relay's own upstreams, and for those of each route of TLS. Default: 20 for 100 connections,
        /// and 10 a second.
        retries: RetryBudget,

        /// Sets how connections are divided among the upstreams. Default [`Balance::First`]. Those that fail are passed over.
        balance: Balance,

        /// Sets the time limit for each step of a connection's set-up: for the client to send its PROXY protocol header, and
        /// for its TLS handshake, and for connecting to one upstream, with its handshake. Default 5 s; at least 1 ms.
        setup_timeout: Duration,

        /// Sets the time without a byte in either direction after which a connection is closed. Default `None`: never.
        idle_timeout: Option<Duration>,

        /// Sets the maximum number of concurrent connections, at least 1; further ones wait in the kernel's queue.
        /// Default: as many as the process's limit of descriptors allows when this builder is created, less 64
        /// descriptors and those for pipes.
        connections_max: usize,

        /// Sets the maximum number of concurrent connections of one source, at least 1: an address of IPv4, or a network of 64 bits of
        /// IPv6. Further ones are reset, and counted as `over_source_max`. Default: no limit.
        per_source_max: usize => Some,

        /// Sets the memory for buffers. Default 256 MiB. In addition each connection may take 8 KiB, and 60 KiB for each of
        /// its sides that speaks TLS, while something is on its way. Half is for stored
        /// messages; when that is used up, messages are cut through, or wait if they must be stored.
        memory_bytes_max: usize,

        /// Sets the maximum number of pipes in use, 0 for none. Default: a sixteenth of the descriptors, at most 1024.
        pipes_max: usize,

        /// Sets how raw bytes are moved. Default [`Transfer::Adaptive`].
        transfer: Transfer,

        /// Divides the streams into messages, in both directions. Default: no framing, bytes are relayed as they
        /// arrive.
        framing: Framing => Some,
    }

    /// Accepts from the listener of another relay, which is to [hand it over](super::RelayHandle::hand_over), instead of
    /// listening itself. It stays with the server that watches it. Default: the relay has its own.
    pub fn listener(mut self, listener: RelayListener) -> Self {
        self.listen = listener.endpoint().clone();
        self.listener = Some(listener);
        self
    }

    /// Tells upstreams the client's address, in a PROXY protocol header, version 2. Default off.
    pub const fn send_proxy_header(mut self) -> Self {
        self.sends_proxy = true;
        self
    }

    /// Takes the client's address from the PROXY protocol header, version 2, that clients in `network` send first. Such
    /// a client must send one; other clients' bytes are relayed unchanged, even if they look like a header. Default: no
    /// client is trusted. Clients of a Unix socket are trusted if any network is: let the permissions of its path
    /// decide who may connect.
    pub fn trust_proxy_header(mut self, network: impl Into<AddressRange>) -> Self {
        self.trusted.push(network.into());
        self
    }

    access_setters! {
        /// Serves only clients in `network`, and in other networks that you add. Default: all. Others are reset, and counted as `denied`.
        /// The client's address is that of the PROXY protocol header, if there is a trusted one. Clients of a Unix socket have none and
        /// are served.
    }

    observer_setter!();

    /// Serves clients that speak TLS, and no others: the router says what happens to each. Clients have the set-up time-out for their
    /// handshake, during which they count as connections. Default: what clients send is passed on, TLS or not.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, router: super::tls::TlsRouter) -> Self {
        self.tls = Some(router);
        self
    }

    /// The targets of clients that no route of TLS sends elsewhere, and then those of each such route.
    pub(super) fn groups(&self) -> impl Iterator<Item = &[Upstream]> {
        let own = std::iter::once(self.upstreams.as_slice());
        #[cfg(feature = "tls")]
        let own = own.chain(self.tls.iter().flat_map(super::tls::TlsRouter::upstreams));
        own
    }

    /// Checks that a relay can have these settings.
    pub(super) fn validate(&self) -> Result<(), BindError> {
        if self.upstreams.is_empty() && self.needs_upstreams() {
            return Err(BindError::NoUpstream);
        }
        if !self.groups().all(are_weights) {
            return Err(BindError::Weight);
        }
        if self.check.as_ref().is_some_and(|check| !check.is_possible()) {
            return Err(BindError::Check);
        }
        if self.resolve_every < Duration::from_millis(1) {
            return Err(BindError::ResolveEvery);
        }
        if self.connections_max == 0 || self.per_source_max == Some(0) {
            return Err(BindError::NoConnections);
        }
        if self.setup_timeout < Duration::from_millis(1) {
            return Err(BindError::SetupTimeout { time: self.setup_timeout });
        }
        if self.idle_timeout.is_some_and(|time| time < Duration::from_millis(1)) {
            return Err(BindError::IdleTimeout);
        }

        if let Some(framing) = &self.framing
            && framing.mode != FrameMode::CutThrough
        {
            let message = usize::try_from(framing.message_bytes_max).unwrap_or(usize::MAX);
            // With its header, and the bytes read beyond it.
            let needed = budget_for(message.saturating_add(2 * FLOOR_BYTES));
            if self.memory_bytes_max < needed {
                let given = self.memory_bytes_max;
                return Err(BindError::Memory { needed, given });
            }
        }

        Ok(())
    }

    /// Returns whether a client may have to be sent to the targets that belong to no route.
    fn needs_upstreams(&self) -> bool {
        #[cfg(feature = "tls")]
        if let Some(router) = &self.tls {
            return router.needs_upstreams();
        }
        true
    }
}

/// The reason why a relay could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// No upstream was given.
    #[error("there is nowhere to relay to: give at least one upstream")]
    NoUpstream,
    /// A weight is out of range.
    #[error("weights must be 1 to 256")]
    Weight,
    /// Checks would never pass or fail.
    #[error(
        "checks need a time-out from 1 ms to the time between two of them, and counts of at least 1 to rise and to fall"
    )]
    Check,
    /// Names would be resolved without a pause.
    #[error("at least 1 ms must be between two attempts to resolve names")]
    ResolveEvery,
    /// The limit of connections is zero.
    #[error("at least one connection must be allowed")]
    NoConnections,
    /// The set-up time-out is too short.
    #[error("a set-up time-out of {time:?}: give at least 1 ms")]
    SetupTimeout {
        /// The value given.
        time: Duration,
    },
    /// The idle time-out is too short.
    #[error("an idle time-out below 1 ms would close every connection: use a longer one, or none")]
    IdleTimeout,
    /// A message may exceed the memory for messages.
    #[error(
        "{needed} bytes of memory are needed to store the longest message, but only {given} are allowed: raise \
         `memory_bytes_max`, lower `message_bytes_max`, or let messages be cut through"
    )]
    Memory {
        /// Bytes needed.
        needed: usize,
        /// Bytes allowed.
        given: usize,
    },
    /// The limit of sessions of datagrams is zero, or they would expire too soon.
    #[error("at least one session must be allowed, and sessions must last for at least 1 ms")]
    Sessions,
    /// Listening for datagrams failed.
    #[error("cannot listen on udp://{address}: {source}")]
    ListenUdp {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Listening on the endpoint failed.
    #[error("cannot listen on {endpoint}: {source}")]
    Listen {
        /// The endpoint.
        endpoint: Endpoint,
        /// The cause.
        #[source]
        source: io::Error,
    },
}
