//! What a thread does before it sleeps again, if something has arrived that it does not wait for.

use std::time::Duration;

use super::{SpinBackend, SystemBackend};
use crate::{
    detector::Flavor,
    policy::{Peers, YieldBackoff, processor_count},
    server::Server,
};

/// A yield that takes longer has cost a time slice of another program, of 3 ms and more. Among 16 peers on two cores that all have
/// something to do, one takes 1 ms.
const YIELD_MAX: Duration = Duration::from_millis(2);

/// Gives the core away once instead of sleeping, among more peers than cores: while something arrives from some of them, the others are
/// awake too, and what the thread waits for comes from them in their turn. Otherwise each of them wakes it for itself.
#[derive(Clone, Debug)]
pub struct YieldBeforeSleep {
    peers: Peers,
    backoff: YieldBackoff,
}

impl YieldBeforeSleep {
    /// For sleeps of `server`'s host, which is one of `count` peers on this machine's cores. Only a host of the user-level flavor yields, since
    /// its thread has nothing else to do: workers and event threads of others serve reactions. Nor is there any yield in virtual time.
    #[must_use]
    pub fn at(server: &Server, count: u32) -> Self {
        let yields = server.flavor() == Flavor::UserLevel && !server.is_virtual();
        let processors = u32::try_from(processor_count()).unwrap_or(u32::MAX);
        let cores = if yields { processors } else { u32::MAX };
        Self { peers: Peers { count, cores }, backoff: YieldBackoff::new() }
    }

    /// Call this before a sleep if something has arrived since the last one that none of the waits asked for. Returns whether the core was given
    /// away: poll again then. Never does so where each peer has a core, and [seldom](YieldBackoff) while yields cost time slices of other
    /// programs.
    pub fn yield_core(&mut self) -> bool {
        self.yield_to(&mut SystemBackend)
    }

    fn yield_to(&mut self, backend: &mut impl SpinBackend) -> bool {
        if !self.peers.are_oversubscribed() {
            return false;
        }
        let before = backend.now();
        if self.backoff.is_paused(before) {
            return false;
        }
        backend.yield_core();
        let after = backend.now();
        self.backoff.learn(after.saturating_duration_since(before), YIELD_MAX, after);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Instant;

    /// A clock that only yields move.
    struct Model {
        now: Instant,
        yields: u32,
        takes: Duration,
    }

    impl SpinBackend for Model {
        fn now(&mut self) -> Instant {
            self.now
        }

        fn spin_once(&mut self) {}

        fn yield_core(&mut self) {
            self.yields += 1;
            self.now = self.now.saturating_add(self.takes);
        }
    }

    fn yields(count: u32, takes: Duration, sleeps: u32) -> u32 {
        let mut before =
            YieldBeforeSleep { peers: Peers { count, cores: 2 }, backoff: YieldBackoff::new() };
        let mut model = Model { now: Instant::from_nanos(0), yields: 0, takes };
        let put_off = (0..sleeps).filter(|_| before.yield_to(&mut model)).count();
        assert_eq!(put_off, usize::try_from(model.yields).expect("few"));
        model.yields
    }

    /// Goal: only crowds put a sleep off, and rarely once that has cost them two slices. Method: a model of the core.
    #[test]
    fn crowds_give_the_core_away() {
        let (short, slice) = (Duration::from_micros(900), Duration::from_millis(3));
        assert_eq!(yields(2, short, 100), 0);
        assert_eq!(yields(3, short, 100), 100);
        assert_eq!(yields(3, slice, 100), 2);
    }
}
