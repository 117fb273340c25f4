//! The counters of a relay.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter or a gauge. Statistics only: it synchronises no other memory.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// Adds one, and returns the previous value.
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($counters:ident; $(#[$meta:meta])* pub struct $stats:ident { $($(#[$docs:meta])* $name:ident,)* }) => {
        /// The live counters.
        #[derive(Debug, Default)]
        pub(super) struct $counters {
            $(pub(super) $name: Counter,)*
        }

        impl $counters {
            pub(super) fn snapshot(&self) -> $stats {
                $stats { $($name: self.$name.value(),)* }
            }
        }

        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $stats {
            $($(#[$docs])* pub $name: u64,)*
        }

        impl $stats {
            /// Returns all counters with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}
pub(super) use counters;

counters! {
    RelayCounters;
    /// The counters of a relay. They are read one by one while it runs, so sums may be off by changes in between.
    pub struct RelayStats {
        /// Connections accepted.
        accepted,
        /// Connections being relayed, or about to be.
        active,
        /// Connections that ended in both directions.
        finished,
        /// Connections for which no upstream was reachable.
        refused,
        /// Connections that could not reach an upstream, and could not try another one, since the budget of retries was used up.
        over_retry_budget,
        /// Connections of clients that are denied, or not allowed.
        denied,
        /// Connections of sources that had as many as they may.
        over_source_max,
        /// Connections reset by a peer, or failed otherwise.
        reset,
        /// Connections without traffic for the idle time-out.
        timed_out,
        /// Failed attempts to reach an upstream, for any reason.
        connects_failed,
        /// Attempts to reach an upstream that exceeded the set-up time-out.
        connects_timed_out,
        /// Attempts to reach another upstream after a failed one.
        retries,
        /// Connections whose upstream was sent data, but failed or reached the idle time-out without an answer.
        unanswered,
        /// Connections whose peer violated the protocol: a PROXY protocol header, or the length of a message.
        malformed,
        /// TLS handshakes with clients that succeeded.
        tls_clients_ok,
        /// TLS handshakes with clients that failed; the reasons are counted beside.
        tls_clients_failed,
        /// Clients that began with something else than TLS, or with a first message that is malformed or longer than 16 KiB.
        tls_clients_not_tls,
        /// Clients that did not end their TLS handshake within the set-up time-out.
        tls_clients_timed_out,
        /// Clients that ended their connection in the middle of the TLS handshake.
        tls_clients_closed,
        /// Clients that asked for a name of which there is no route.
        tls_clients_no_route,
        /// Clients that refused the relay by an alert, such as that they do not trust its certificate.
        tls_clients_alert,
        /// Clients without a certificate where one is asked for, or with one that was refused: signed by no trusted authority, or expired.
        tls_clients_bad_certificate,
        /// Clients with which the relay has no version, cipher or protocol of ALPN in common, or that violated TLS.
        tls_clients_incompatible,
        /// Connections that were passed on by the name that the client asked for, without ending TLS.
        tls_passed_through,
        /// TLS handshakes with upstreams that succeeded, those of checks included.
        tls_upstreams_ok,
        /// Upstreams whose certificate has expired, or is not valid yet.
        tls_upstreams_expired,
        /// Upstreams whose certificate was signed by no trusted authority.
        tls_upstreams_unknown_issuer,
        /// Upstreams whose certificate is for other names.
        tls_upstreams_wrong_name,
        /// Upstreams whose certificate was refused for another reason.
        tls_upstreams_bad_certificate,
        /// Upstreams that refused the relay by an alert, such as that they want a certificate.
        tls_upstreams_alert,
        /// Upstreams that ended the connection in the middle of the TLS handshake.
        tls_upstreams_closed,
        /// Upstreams with which the relay has no version, cipher or protocol of ALPN in common, or that violated TLS.
        tls_upstreams_incompatible,
        /// Connections that a drain cut at its deadline.
        cut,
        /// The number of times that accepting paused for lack of descriptors or memory.
        pauses,
        /// Bytes from clients to upstreams.
        bytes_up,
        /// Bytes from upstreams to clients.
        bytes_down,
        /// Bytes moved through buffers.
        bytes_copied,
        /// Bytes moved through pipes.
        bytes_spliced,
        /// The number of times that bytes were copied because no pipe was available.
        pipes_missing,
        /// Messages forwarded, in framed relays.
        messages,
        /// Messages that began to leave before they had arrived completely.
        messages_cut_through,
        /// Messages that were cut through for lack of memory to store them.
        messages_unstored,
        /// Messages of which a receiver got only a part, and then a reset: they were cut through, and their sender
        /// broke off.
        messages_torn,
        /// Messages that arrived incomplete and were not forwarded.
        messages_dropped,
    }
}
