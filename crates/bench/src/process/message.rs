//! What a child says.

use std::io::{self, Write};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Failure;
use crate::host::realtime::Priority;
use crate::host::usage::Usage;
use crate::inside::Counts;

/// What a child says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A server waits for connections.
    Listening { process: u32, echo: SocketAddr, control: Option<SocketAddr> },
    /// A client has proven each of its connections by one echo, and begins.
    Ready { priority: Priority },
    /// Round trips, in the order in which they were made.
    RoundTrips { nanoseconds: Vec<u64> },
    /// A client has sent this many messages since it was ready, and had an answer to each.
    Sent { messages: u64 },
    /// A compute task that the client asked for has ended.
    Completed { nanoseconds: u64 },
    /// A process of others computes, or sends its requests.
    Computing { process: u32 },
    /// What this process has used so far, because it was asked.
    Usage(Usage),
    /// What the runtime of this process has counted so far, because it was asked.
    Counts(Option<Counts>),
    /// Messages that were still without an answer at the end; their samples are what they had waited.
    Unanswered { messages: u64 },
    /// So many bytes came through a relay.
    Carried { bytes: u64, nanoseconds: u64 },
    /// What is sent from now on counts.
    MeasurementBegins,
    /// What was found, as the two sides of a measurement know it: see [`say_found`].
    Found(Value),
    /// Nothing more will come, and all went well.
    Finished,
    /// Nothing more will come.
    Failed { failure: Failure },
}

impl Message {
    /// Prints this message for the parent. A parent that has gone away is no error: the end of
    /// standard input is about to end this process.
    pub(crate) fn print(&self) {
        print(self);
    }
}

/// Prints what was found, for [`Child::found`](super::Child::found).
pub(crate) fn say_found<T: Serialize>(found: &T) {
    /// As [`Message::Found`] is written.
    #[derive(Serialize)]
    enum Said<'a, T> {
        Found(&'a T),
    }
    print(&Said::Found(found));
}

fn print(message: &impl Serialize) {
    let mut line = serde_json::to_string(message).expect("invariant: a message is plain data");
    line.push('\n');
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(line.as_bytes());
    let _ = stdout.flush();
}
