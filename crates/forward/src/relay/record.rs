//! What is known of a connection at its end, for a log.

use std::{error::Error, fmt, net::SocketAddr, sync::Arc, time::Duration};

use super::error::{Peer, RelayError};

named! {
    /// How a connection, or a session of datagrams, ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum ConnectionEnd {
        /// Both peers ended their streams.
        Finished => "finished",
        /// No target was reachable.
        NoTarget => "no_target",
        /// The access lists refused the client.
        Denied => "denied",
        /// The client's source had as many connections as it may.
        OverSourceMax => "over_source_max",
        /// There were as many sessions of datagrams as there may be, or the relay was draining.
        Refused => "refused",
        /// The client reset the connection, or it failed.
        ClientReset => "client_reset",
        /// The target reset the connection, or it failed; of datagrams, a network reported that they do not arrive.
        TargetReset => "target_reset",
        /// The client had ended its stream, and then did not take what the target still sent: it has closed the connection.
        ClientClosed => "client_closed",
        /// The target had ended its stream, and then did not take what the client still sent: it has closed the connection.
        TargetClosed => "target_closed",
        /// The client closed the connection without TLS's `close_notify`: what it had sent may have been cut.
        ClientUnclean => "client_unclean",
        /// The target closed the connection without TLS's `close_notify`: what it had sent may have been cut.
        TargetUnclean => "target_unclean",
        /// A peer broke off in the middle of a message.
        Torn => "torn",
        /// Nothing moved for the idle time-out. Sessions of datagrams end so.
        Idle => "idle",
        /// The client's PROXY protocol header, or the length of a message, was invalid.
        Malformed => "malformed",
        /// The TLS handshake with the client failed.
        TlsFailed => "tls_failed",
        /// A drain cut it at its deadline.
        Cut => "cut",
    }
}

/// A connection, or a session of datagrams, at its end.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConnectionRecord<'a> {
    /// The client's address, from its PROXY protocol header if that is trusted; `None` for clients of Unix sockets.
    pub client: Option<SocketAddr>,
    /// The target that it got, such as `tcp://192.0.2.1:80`.
    pub target: Option<&'a str>,
    /// The time since it was accepted; of a refused datagram, zero.
    pub duration: Duration,
    /// Bytes from the client to the target.
    pub bytes_up: u64,
    /// Bytes from the target to the client.
    pub bytes_down: u64,
    /// How it ended.
    pub end: ConnectionEnd,
    /// The error that ended it.
    pub error: Option<&'a (dyn Error + 'static)>,
}

/// A function that is called with each connection at its end, on the connection's task: it should neither block nor panic. A task that is dropped or
/// panics leaves no record.
#[derive(Clone)]
pub(super) struct ConnectionObserver(Arc<dyn Fn(&ConnectionRecord<'_>) + Send + Sync>);

impl ConnectionObserver {
    pub(super) fn new(observe: impl Fn(&ConnectionRecord<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(super) fn note(&self, record: &ConnectionRecord<'_>) {
        (self.0)(record);
    }
}

impl fmt::Debug for ConnectionObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectionObserver").finish()
    }
}

impl ConnectionEnd {
    pub(super) fn of(ended: &Result<(), RelayError>) -> Self {
        match ended {
            Ok(()) => Self::Finished,
            Err(RelayError::NoUpstream { .. } | RelayError::OverRetryBudget { .. }) => {
                Self::NoTarget
            }
            Err(RelayError::Denied(_)) => Self::Denied,
            Err(RelayError::OverSourceMax { .. }) => Self::OverSourceMax,
            Err(RelayError::Failed { peer: Peer::Client, .. }) => Self::ClientReset,
            Err(RelayError::Failed { peer: Peer::Upstream, .. }) => Self::TargetReset,
            Err(RelayError::Closed { peer: Peer::Client, .. }) => Self::ClientClosed,
            Err(RelayError::Closed { peer: Peer::Upstream, .. }) => Self::TargetClosed,
            Err(RelayError::Unclean { peer: Peer::Client }) => Self::ClientUnclean,
            Err(RelayError::Unclean { peer: Peer::Upstream }) => Self::TargetUnclean,
            Err(RelayError::Torn { .. }) => Self::Torn,
            Err(RelayError::Idle { .. }) => Self::Idle,
            Err(RelayError::Frame { .. } | RelayError::Proxy(_)) => Self::Malformed,
            #[cfg(feature = "tls")]
            Err(RelayError::Tls(_)) => Self::TlsFailed,
            Err(RelayError::Cut) => Self::Cut,
        }
    }
}

/// The setter of a builder's observer.
macro_rules! observer_setter {
    () => {
        /// Calls `observe` with each connection, or session of datagrams, at its end, those that are refused included: of datagrams, once for those
        /// that were received together. It is called by the relay's tasks, and should neither block nor panic. Default: none.
        pub fn observe(
            mut self,
            observe: impl Fn(&super::record::ConnectionRecord<'_>) + Send + Sync + 'static,
        ) -> Self {
            self.observer = Some(super::record::ConnectionObserver::new(observe));
            self
        }
    };
}
pub(super) use observer_setter;
