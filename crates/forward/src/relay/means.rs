//! What all connections of a relay share: memory, pipes, measured costs, courtesy, counters.

use vigie_detect::Server;

use super::{
    buffers::Buffers,
    chooser::{Chooser, Engine, Transfer},
    counters::Counters,
    courtesy::Courtesy,
    pipes::Pipes,
};

#[derive(Debug)]
pub(super) struct Means {
    pub(super) server: Server,
    pub(super) buffers: Buffers,
    pub(super) pipes: Pipes,
    pub(super) chooser: Chooser,
    pub(super) courtesy: Courtesy,
    pub(super) counters: Counters,
}

impl Means {
    pub(super) fn new(server: Server, budget_bytes: usize, pipes: usize, how: Transfer) -> Self {
        Self {
            server,
            buffers: Buffers::new(budget_bytes),
            pipes: Pipes::new(pipes),
            chooser: Chooser::new(how),
            courtesy: Courtesy::default(),
            counters: Counters::default(),
        }
    }

    /// Counts the bytes that `engine` has moved.
    pub(super) fn tally(&self, engine: Engine, bytes: u64) {
        if bytes > 0 {
            match engine {
                Engine::Copy => self.counters.bytes_copied.add(bytes),
                Engine::Splice => self.counters.bytes_spliced.add(bytes),
            }
        }
    }

    /// Counts that bytes are copied since there was no pipe.
    pub(super) fn note_no_pipe(&self) {
        if self.counters.pipes_missing.next() == 0 {
            tracing::warn!(
                "no pipe is left, or may be made: bytes are copied instead of spliced \
                 (descriptors: `ulimit -n`; memory of pipes: /proc/sys/fs/pipe-user-pages-soft)"
            );
        }
    }
}
