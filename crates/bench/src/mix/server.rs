//! The server of a load, in a process of its own.

use serde::{Deserialize, Serialize};

use super::behaviour::Behaviour;
use super::draw::Mix;
use crate::compute::Pace;
use crate::process::Role;
use crate::schedulers::System;

/// Descriptors for new connections that are open at the same time.
const CONNECTIONS_BESIDE: u32 = 1_024;

/// A server: which system, with which mix.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LoadServer {
    pub(crate) system: System,
    pub(crate) workers: usize,
    pub(crate) mix: Mix,
    pub(crate) pace: Pace,
}

impl Role for LoadServer {
    const NAME: &'static str = "load server";
}

impl LoadServer {
    /// Returns how many workers and descriptors it has, if it only computes what requests say.
    pub(crate) fn as_service(&self) -> Option<(usize, u32)> {
        let serves = |behaviour: &Behaviour| matches!(behaviour, Behaviour::Service { .. });
        self.mix.behaviours.iter().all(serves).then(|| (self.workers, self.descriptors()))
    }

    pub(crate) fn descriptors(&self) -> u32 {
        self.mix.connections() + CONNECTIONS_BESIDE
    }

    /// Tells whether a behaviour measures wake-ups itself.
    pub(crate) fn is_wake(&self, index: u8) -> bool {
        let behaviour = self.mix.behaviours.get(usize::from(index));
        matches!(behaviour, Some(Behaviour::WakeThenCompute { .. }))
    }

    /// Returns how many threads of this process are not the system's: the main thread, the one that
    /// answers questions, and those outside of the runtime that spawn.
    pub(crate) fn own_threads(&self) -> usize {
        let foreign =
            |behaviour: &&Behaviour| matches!(behaviour, Behaviour::Burst { is_foreign: true, .. });
        2 + self.mix.behaviours.iter().filter(foreign).count()
    }
}
