//! Metrics of a runtime: [`Handle::metrics`](crate::Handle::metrics), and [`serve`] for other programs such
//! as `vigie-bench watch`.
//!
//! ```
//! use vigie_runtime::{Flavor, Runtime, spawn};
//!
//! // One thread, which counts a poll before it goes on; other threads may count a little later.
//! let runtime = Runtime::builder().flavor(Flavor::UserLevel).build()?;
//! let metrics = runtime.block_on(async {
//!     spawn(async {}).await?;
//!     Ok::<_, Box<dyn std::error::Error>>(vigie_runtime::Handle::current().metrics())
//! })?;
//! assert_eq!(metrics.reaction.polls + metrics.compute.polls, 1);
//! println!("p99 from event to poll: {:?}", metrics.event_delay.percentile(99.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Cost
//! A poll costs a few additions in its own thread's memory, and no reading of the clock. A wake-up by an
//! event or by a foreign thread reads the clock once; wake-ups by tasks read it once in about 16. The reader
//! pays for the rest.
//!
//! # Consistency
//! Counters only grow. Each is written by one thread. They are read one after the other while the runtime
//! runs, so two of them may differ by what happened in between.

mod json;
mod prometheus;
mod socket;

pub use self::socket::{MetricsSocket, ServeError, serve};
pub use crate::{
    dump::{Dump, TaskReport},
    json::FORMAT_VERSION,
    lane::Lane,
    measure::{
        CurrentPoll, Histogram, LaneMetrics, LongPoll, Metrics, ReserveMetrics, ThreadMetrics,
        Throttling,
    },
    stack::{Frame, NoStack, Stack},
    task_cell::TaskState,
};
