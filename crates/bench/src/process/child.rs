//! A child, as its parent sees it.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::message::Message;
use super::role::{ASKS_COUNTS, ASKS_USAGE, GO, Role, VARIABLE};
use crate::error::BenchError;
use crate::host::{Priority, Usage};
use crate::inside::Counts;

/// How long a child may take to begin.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a child may take to report its usage, beside the computations there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A running child; dropping it kills it.
#[derive(Debug)]
pub(crate) struct Child {
    role: &'static str,
    process: process::Child,
    lines: Receiver<String>,
    /// Open as long as the child is to live.
    stdin: ChildStdin,
}

impl Child {
    /// Starts this program again in `role`.
    pub(crate) fn start<R: Role>(role: &R) -> Result<Self, BenchError> {
        Self::start_under(&[], role)
    }

    /// Starts this program again in `role`, under a tracer: `wrapper` is its command line, to which
    /// ours is appended.
    pub(crate) fn start_under<R: Role>(wrapper: &[String], role: &R) -> Result<Self, BenchError> {
        let name = R::NAME;
        let cannot = |source| BenchError::Start { role: name, source };
        let program = env::current_exe().map_err(cannot)?;
        let mut command = match wrapper {
            [] => Command::new(program),
            [tracer, arguments @ ..] => {
                let mut command = Command::new(tracer);
                command.args(arguments).arg(program);
                command
            }
        };
        let role = serde_json::to_string(&(R::KEY, role));
        let role = role.expect("invariant: a role is plain data");
        command.env(VARIABLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(cannot)?;
        let stdin = process.stdin.take().expect("invariant: standard input was asked for");
        let stdout = process.stdout.take().expect("invariant: standard output was asked for");
        Ok(Self { role: name, process, lines: lines_of(stdout), stdin })
    }

    /// Returns the next message, waiting at most `timeout`.
    pub(crate) fn next(&mut self, timeout: Duration) -> Result<Message, BenchError> {
        let role = self.role;
        match self.lines.recv_timeout(timeout) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Message::Failed { failure }) => Err(BenchError::Failed { role, failure }),
                Ok(message) => Ok(message),
                Err(_) => Err(BenchError::Protocol { role, line }),
            },
            Err(RecvTimeoutError::Timeout) => Err(BenchError::Silent { role, waited: timeout }),
            Err(RecvTimeoutError::Disconnected) => match self.process.wait() {
                Ok(status) => Err(BenchError::Ended { role, status }),
                Err(source) => Err(BenchError::Start { role, source }),
            },
        }
    }

    /// Returns the child's results, waiting at most `timeout`.
    pub(crate) fn result<T: DeserializeOwned>(
        &mut self,
        timeout: Duration,
    ) -> Result<T, BenchError> {
        match self.next(timeout)? {
            Message::Result(found) => {
                let read = serde_json::from_value(found);
                read.map_err(|error| BenchError::Protocol {
                    role: self.role,
                    line: error.to_string(),
                })
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Starts a process, and waits until it is ready.
    pub(crate) fn start_ready<R: Role>(
        role: &R,
        timeout: Duration,
    ) -> Result<(Self, Priority), BenchError> {
        let mut child = Self::start(role)?;
        match child.next(timeout)? {
            Message::Ready { priority } => Ok((child, priority)),
            other => Err(child.unexpected(&other)),
        }
    }

    /// Starts a process, and waits until it computes.
    pub(crate) fn start_computing<R: Role>(role: &R) -> Result<Self, BenchError> {
        let mut child = Self::start(role)?;
        match child.next(START_TIMEOUT)? {
            Message::Computing { .. } => Ok(child),
            other => Err(child.unexpected(&other)),
        }
    }

    /// Waits until the process listens, and returns its number and the addresses of its echo and of its control connection.
    pub(crate) fn listening(
        &mut self,
    ) -> Result<(u32, SocketAddr, Option<SocketAddr>), BenchError> {
        match self.next(START_TIMEOUT)? {
            Message::Listening { process, echo, control } => Ok((process, echo, control)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Does something, and returns with what came of it what the process has used meanwhile.
    ///
    /// # Errors
    /// Those of `run`, and of the process.
    pub(crate) fn spent<T>(
        &mut self,
        run: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, Usage), BenchError> {
        let before = self.usage()?;
        let found = run()?;
        Ok((found, self.usage()?.since(before)))
    }

    /// Asks the child for its usage so far.
    pub(crate) fn usage(&mut self) -> Result<Usage, BenchError> {
        match self.ask(ASKS_USAGE)? {
            Message::Usage(usage) => Ok(usage),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Asks the child for its runtime's counters so far; nothing if the runtime is not vigie's.
    pub(crate) fn counts(&mut self) -> Result<Option<Counts>, BenchError> {
        match self.ask(ASKS_COUNTS)? {
            Message::Counts(counts) => Ok(counts),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Lets a child go on that waits in [`wait_for_go`](super::wait_for_go).
    pub(crate) fn go(&mut self) {
        // If the child has ended, the wait for its next message reports how.
        let _ = self.stdin.write_all(&[GO]).and_then(|()| self.stdin.flush());
    }

    fn ask(&mut self, question: u8) -> Result<Message, BenchError> {
        // If the child has ended, waiting for its answer tells how.
        let _ = self.stdin.write_all(&[question]).and_then(|()| self.stdin.flush());
        self.next(ANSWER_TIMEOUT)
    }

    /// Returns the error for a message that does not belong here.
    pub(crate) fn unexpected(&self, message: &Message) -> BenchError {
        BenchError::Protocol { role: self.role, line: format!("{message:?}") }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only if the child has ended already and was waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads lines on a thread of its own, because a pipe cannot be read with a time limit. The thread
/// ends with the child, which closes the pipe.
fn lines_of(stdout: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
