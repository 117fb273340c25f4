//! Real-time priority of the load generator, so that it measures the server and not itself.
//!
//! On a machine with as many busy threads as cores a client of ordinary priority waits for its own
//! turn after the echo has arrived, and that wait would be counted as the server's. `SCHED_FIFO`
//! runs the client as soon as the kernel has its message.
#![expect(unsafe_code, reason = "rustix has no sched_setscheduler")]

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// Any real-time priority stands above all ordinary threads; 10 of 99 leaves room above us.
const PRIORITY: i32 = 10;

/// How the client's threads were scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Priority {
    /// `SCHED_FIFO`: figures are the server's.
    RealTime {
        /// The priority, of 99.
        priority: i32,
    },
    /// The ordinary policy, because the client never sleeps: it needs a core for itself.
    Spinning,
    /// The ordinary policy: figures include the client's own wait for a core.
    Ordinary {
        /// Why real-time priority was refused.
        reason: String,
    },
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RealTime { priority } => write!(f, "real-time (SCHED_FIFO {priority})"),
            Self::Spinning => f.write_str("ordinary, spinning"),
            Self::Ordinary { reason } => write!(
                f,
                "ordinary (SCHED_FIFO refused: {reason}; it needs CAP_SYS_NICE or RLIMIT_RTPRIO): \
                 the times include the client's own wait for a core"
            ),
        }
    }
}

/// Asks for real-time priority for the calling thread, and tells what it got.
pub(crate) fn raise() -> Priority {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: `parameters` is initialised and outlives the call, which only reads it; 0 names the
    // calling thread.
    let status = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if status == 0 {
        Priority::RealTime { priority: PRIORITY }
    } else {
        Priority::Ordinary { reason: io::Error::last_os_error().to_string() }
    }
}
