//! The client's own process: sends and times as the plan says, and reports to the parent.

use std::mem;
use std::time::{Duration, Instant};

use super::connections::Connections;
use super::ping_pong::PingPong;
use crate::clock;
use crate::error::Failure;
use crate::host::realtime::{self, Priority};
use crate::process::Message;

/// How often samples are handed to the parent: seldom, because each report wakes it on a core that
/// the server could use.
const REPORT_EVERY: Duration = Duration::from_millis(250);

/// Runs `plan` in this process and prints what it measures.
pub(crate) fn generate(plan: &PingPong) -> Result<(), Failure> {
    let priority = if plan.is_spinning { Priority::Spinning } else { realtime::raise() };
    let mut connections = Connections::open(plan)?;
    Message::Ready { priority }.print();

    let start = clock::now();
    let mut samples = PendingSamples { nanoseconds: Vec::new(), last: start };
    if plan.task.is_some() {
        let elapsed = connections.exchange_until_completed(&mut |time| samples.push(time))?;
        Message::Completed { nanoseconds: clock::nanoseconds(elapsed) }.print();
    } else {
        let mut sent = 0;
        while sent < plan.samples && start.elapsed() < plan.budget {
            samples.push(connections.exchange()?);
            sent += 1;
        }
    }
    samples.flush();
    Message::Sent { messages: connections.sent() }.print();
    Ok(())
}

/// Samples that the parent has not got yet.
struct PendingSamples {
    nanoseconds: Vec<u64>,
    last: Instant,
}

impl PendingSamples {
    fn push(&mut self, round_trip: Duration) {
        self.nanoseconds.push(clock::nanoseconds(round_trip));
        if self.last.elapsed() >= REPORT_EVERY {
            self.flush();
        }
    }

    fn flush(&mut self) {
        Message::RoundTrips { nanoseconds: mem::take(&mut self.nanoseconds) }.print();
        self.last = clock::now();
    }
}
