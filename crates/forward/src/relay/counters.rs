//! What a relay has done, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows, or a gauge. Statistics: nothing is published by it.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// Counts one, and returns how many there were before.
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// The living numbers.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        impl Counters {
            pub(super) fn snapshot(&self) -> RelayStats {
                RelayStats { $($name: self.$name.value(),)* }
            }
        }

        /// What a relay has done so far. Read one by one while it runs, so that sums may be off by what happened
        /// in between.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct RelayStats {
            $($(#[$meta])* pub $name: u64,)*
        }
    };
}

counters! {
    /// Connections that were accepted.
    accepted,
    /// Connections that are being relayed, or are about to be.
    active,
    /// Connections that ended in both directions.
    finished,
    /// Connections for which no upstream could be reached.
    refused,
    /// Connections that one of the peers reset, or that failed otherwise.
    reset,
    /// Connections in which nothing moved for the idle time-out.
    timed_out,
    /// Attempts to reach an upstream that failed, for whatever reason.
    connects_failed,
    /// Attempts to reach an upstream that took longer than the connect time-out.
    connects_timed_out,
    /// Connections whose upstream was sent something, and had answered nothing when it failed or the idle time-out came.
    unanswered,
    /// Connections whose peer broke the protocol: a header of the PROXY protocol, a length of a message.
    malformed,
    /// Connections that a drain cut off at its deadline.
    cut,
    /// How often accepting paused for want of descriptors or memory.
    pauses,
    /// Bytes from clients to upstreams.
    bytes_up,
    /// Bytes from upstreams to clients.
    bytes_down,
    /// Bytes that went through buffers.
    bytes_copied,
    /// Bytes that went through pipes.
    bytes_spliced,
    /// How often bytes were copied since there was no pipe for them.
    pipes_missing,
    /// Messages that were forwarded, in framed relays.
    messages,
    /// Of these, how many began to leave before they had arrived.
    messages_cut_through,
    /// Messages that went cut-through for want of memory to store them.
    messages_unstored,
    /// Messages of which a receiver got a part only, and then a reset: they were cut through, and their sender
    /// broke off.
    messages_torn,
    /// Messages of which a part arrived, and nothing was forwarded.
    messages_dropped,
}
