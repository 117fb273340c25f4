//! The counters of threads, and snapshots of them. Public as [`metrics`](crate::metrics).

mod cgroup;
mod counters;
mod histogram;
mod hogs;
mod readings;

pub use self::{
    cgroup::Throttling,
    histogram::Histogram,
    readings::{CurrentPoll, LaneMetrics, LongPoll, Metrics, ReserveMetrics, ThreadMetrics},
};
pub(crate) use self::{
    counters::{ReserveCounters, Sampler, ThreadCounters, foreign_ready_time},
    hogs::Hogs,
};
