//! Names of interfaces, of cases and of keys.

/// The ends of both pairs, where frames come from and where they arrive.
pub(super) const ENDS: [&str; 2] = ["vf-a", "vf-b"];
/// Their other ends, which the forwarder has.
pub(super) const PORTS: [&str; 2] = ["vf-in", "vf-out"];
pub(super) const FORWARDER: &str = "forwarder";
pub(super) const RATE: &str = "rate";
pub(super) const LATENCY: &str = "latency";
pub(super) const DELIVERED_KPPS: &str = "delivered_kpps";
pub(super) const OFFERED_KPPS: &str = "offered_kpps";
pub(super) const ADDED_P50_US: &str = "added_p50_us";
pub(super) const ADDED_P99_US: &str = "added_p99_us";
pub(super) const ONE_WAY_P50_US: &str = "one_way_p50_us";
/// The most frames that were lost in a turn.
pub(super) const LOST: &str = "lost_max";
