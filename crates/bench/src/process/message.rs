//! The messages of a child.

use std::io::{self, Write};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Failure;
use crate::host::{Priority, Usage};
use crate::inside::Counts;

/// The messages of a child.
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
    /// A background process computes, or sends its requests.
    Computing { process: u32 },
    /// The resources that this process has used so far, on request.
    Usage(Usage),
    /// The counters of this process's runtime so far, on request.
    Counts(Option<Counts>),
    /// Messages sent from now on count.
    MeasurementBegins,
    /// The results, in the format of the measurement's two sides: see [`print_result`].
    Result(Value),
    /// Nothing more will come, and all went well.
    Finished,
    /// Nothing more will come.
    Failed { failure: Failure },
}

impl Message {
    /// Prints this message for the parent. A parent that has gone away is not an error: the end of
    /// standard input is about to end this process.
    pub(crate) fn print(&self) {
        print(self);
    }
}

/// Prints what was found, for [`Child::result`](super::Child::result).
pub(crate) fn print_result<T: Serialize>(found: &T) {
    /// As [`Message::Result`] is written.
    #[derive(Serialize)]
    enum Printed<'a, T> {
        Result(&'a T),
    }
    print(&Printed::Result(found));
}

fn print(message: &impl Serialize) {
    let mut line = serde_json::to_string(message).expect("invariant: a message is plain data");
    line.push('\n');
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(line.as_bytes());
    let _ = stdout.flush();
}
