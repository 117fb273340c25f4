//! The resources that all connections of a relay share: memory, pipes, measured costs, cooperative yields, counters.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use vigie_detect::Server;

use super::{
    buffers::Buffers,
    chooser::{Chooser, Transfer, TransferEngine},
    counters::RelayCounters,
    pipes::Pipes,
    yielder::Yielder,
};

#[derive(Debug)]
pub(super) struct RelayResources {
    pub(super) server: Server,
    /// The relay's name in log lines.
    pub(super) relay: Arc<str>,
    pub(super) buffers: Buffers,
    pub(super) pipes: Pipes,
    pub(super) chooser: Chooser,
    pub(super) yielder: Yielder,
    pub(super) counters: RelayCounters,
    pub(super) streams: Arc<AtomicU64>,
}

/// Counts a direction that fills its buffers, while it exists.
#[derive(Debug)]
pub(super) struct StreamCount(Arc<AtomicU64>);

impl Drop for StreamCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RelayResources {
    pub(super) fn new(server: Server, budget_bytes: usize, pipes: usize, how: Transfer) -> Self {
        // Pipes are the kernel's: it has none of a simulation's bytes.
        let how = if server.is_virtual() { Transfer::Copy } else { how };
        Self {
            server,
            relay: Arc::default(),
            buffers: Buffers::new(budget_bytes),
            pipes: Pipes::new(pipes),
            chooser: Chooser::new(how),
            yielder: Yielder::default(),
            counters: RelayCounters::default(),
            streams: Arc::default(),
        }
    }

    pub(super) fn of_relay(self, relay: Arc<str>) -> Self {
        Self { relay, ..self }
    }

    /// Returns the number of directions that fill their buffers: a statistic.
    pub(super) fn streams(&self) -> u64 {
        self.streams.load(Ordering::Relaxed)
    }

    pub(super) fn count_stream(&self) -> StreamCount {
        self.streams.fetch_add(1, Ordering::Relaxed);
        StreamCount(Arc::clone(&self.streams))
    }

    /// Counts bytes moved by `engine`.
    pub(super) fn count_bytes(&self, engine: TransferEngine, bytes: u64) {
        if bytes > 0 {
            match engine {
                TransferEngine::Copy => self.counters.bytes_copied.add(bytes),
                TransferEngine::Splice => self.counters.bytes_spliced.add(bytes),
            }
        }
    }

    /// Counts a fallback to copying for lack of a pipe.
    pub(super) fn count_missing_pipe(&self) {
        if self.counters.pipes_missing.next() == 0 {
            tracing::warn!(
                relay = %self.relay,
                "no pipe is left, or may be made: bytes are copied instead of spliced \
                 (descriptors: `ulimit -n`; memory of pipes: /proc/sys/fs/pipe-user-pages-soft)"
            );
        }
    }
}
