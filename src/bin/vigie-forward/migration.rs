//! Decides when a flow moves between host and network interface: without I/O, with time as an argument.
//!
//! ```text
//!            above `to_nic_above` for `hold`  (1)
//!   host ────────────────────────────────────────▶ network interface
//!     ◀────────────────────────────────────────────
//!            below `to_host_below` for `hold` (2)
//! ```
//! Between the two thresholds nothing happens, and a load that crosses back restarts `hold`: so a flow moves at most
//! once in `hold`.

use vigie::Instant;

use crate::{cli::FlowSide, config::Thresholds};

/// Watches the load of one flow.
#[derive(Debug)]
pub(crate) struct Migration {
    thresholds: Thresholds,
    side: FlowSide,
    /// The time since which the load has been beyond the threshold.
    since: Option<Instant>,
    /// The last check: the time, and the number of packets so far.
    last: Option<(Instant, u64)>,
}

impl Migration {
    pub(crate) const fn new(thresholds: Thresholds, side: FlowSide) -> Self {
        Self { thresholds, side, since: None, last: None }
    }

    /// Takes the number of packets so far. Returns the side to which the flow should move now, and the load in packets
    /// per second that justifies it.
    #[must_use = "a flow that is not moved is asked to move again at the next check"]
    pub(crate) fn check(&mut self, packets: u64, now: Instant) -> Option<(FlowSide, u64)> {
        let (before, packets_before) = self.last.replace((now, packets))?;
        let nanos = (now - before).as_nanos();
        let packets = packets.saturating_sub(packets_before);
        if nanos == 0 {
            return None;
        }
        let load = u64::try_from(u128::from(packets) * 1_000_000_000 / nanos).unwrap_or(u64::MAX);
        let (other, asks) = match self.side {
            FlowSide::Host => (FlowSide::Nic, load > self.thresholds.to_nic_above),
            FlowSide::Nic => (FlowSide::Host, load < self.thresholds.to_host_below),
        };
        if !asks {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(before);
        (now - since >= self.thresholds.hold).then_some((other, load))
    }

    /// Records that the flow has moved, for any reason.
    pub(crate) const fn moved(&mut self, side: FlowSide) {
        self.side = side;
        self.pause();
    }

    /// Forgets the load so far: the next check begins anew.
    pub(crate) const fn pause(&mut self) {
        self.since = None;
        // Each side has its own count.
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vigie::detect::clock::monotonic_now;

    use super::*;

    struct Load {
        migration: Migration,
        now: Instant,
        packets: u64,
    }

    impl Load {
        fn new() -> Self {
            let hold = Duration::from_secs(5);
            let thresholds = Thresholds { to_nic_above: 1000, to_host_below: 100, hold };
            let mut migration = Migration::new(thresholds, FlowSide::Host);
            let now = monotonic_now();
            assert_eq!(migration.check(0, now), None);
            Self { migration, now, packets: 0 }
        }

        /// Continues for some seconds; returns after how many of them the flow moved.
        fn at(&mut self, load: u64, seconds: u64) -> Option<u64> {
            (1..=seconds).find(|_| {
                self.now += Duration::from_secs(1);
                self.packets += load;
                match self.migration.check(self.packets, self.now) {
                    Some((side, said)) => {
                        assert_eq!(said, load);
                        self.migration.moved(side);
                        assert_eq!(self.migration.check(self.packets, self.now), None);
                        true
                    }
                    None => false,
                }
            })
        }
    }

    /// Goal: a flow moves when the load has been beyond a threshold for `hold`, both ways. Method: steady loads.
    #[test]
    fn steady_loads_move_a_flow() {
        let mut load = Load::new();
        assert_eq!(load.at(1000, 60), None);
        assert_eq!(load.at(1001, 60), Some(5));
        assert_eq!(load.at(100, 60), None);
        assert_eq!(load.at(99, 60), Some(5));
        assert_eq!(load.at(0, 60), None);
    }

    /// Goal: a load that oscillates moves nothing. Method: loads that cross each threshold for less than `hold`.
    #[test]
    fn swinging_loads_move_nothing() {
        let mut load = Load::new();
        for _ in 0..20 {
            assert_eq!(load.at(1_000_000, 4), None);
            assert_eq!(load.at(1000, 1), None);
        }
        assert_eq!(load.at(1_000_000, 60), Some(5));
        for _ in 0..20 {
            assert_eq!(load.at(0, 4), None);
            assert_eq!(load.at(100, 1), None);
        }
    }

    /// Goal: counters that are reset, and two checks at the same time, do not count as load. Method: both.
    #[test]
    fn odd_numbers_are_no_load() {
        let mut load = Load::new();
        assert_eq!(load.at(1_000_000, 4), None);
        load.packets = 0;
        assert_eq!(load.at(0, 60), None);
        assert_eq!(load.migration.check(u64::MAX, load.now), None);
    }
}
