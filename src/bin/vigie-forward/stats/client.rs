//! The client side.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::event::{Timespec, poll};
use serde::Deserialize;
use thiserror::Error;

use super::{
    plot::Plots,
    rendezvous::{RendezvousError, find},
    report::{FORMAT_VERSION, InstanceReport},
    table,
};
use crate::cli::StatsArgs;

/// The time that an instance may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why there is no answer.
#[derive(Debug, Error)]
pub(crate) enum ClientError {
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error("{}: {source}; {}", path.display(), socket_hint(source))]
    Socket { path: PathBuf, source: io::Error },
    #[error("{}: the answer is not from a vigie-forward of this version: {source}", path.display())]
    Format { path: PathBuf, source: serde_json::Error },
    #[error("{}: the instance uses version {version} of the format, but this program uses {FORMAT_VERSION}", path.display())]
    Version { path: PathBuf, version: u32 },
    #[error("the instance refuses: {0}")]
    Refused(String),
    #[error("standard output: {0}")]
    Output(io::Error),
}

/// Returns advice for an error.
fn socket_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "no instance has its stats socket there: without --socket the only one is found"
        }
        _ => "is the instance of another user?",
    }
}

#[derive(Deserialize)]
struct ErrorReply {
    error: String,
}

/// A connection to an instance.
struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    fn open(path: Option<&Path>) -> Result<Self, ClientError> {
        let path = path.map_or_else(find, |path| Ok(path.to_owned()))?;
        let open = || {
            let stream = UnixStream::connect(&path)?;
            stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
            stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
            Ok(BufReader::new(stream))
        };
        match open() {
            Ok(stream) => Ok(Self { path, stream }),
            Err(source) => Err(ClientError::Socket { path, source }),
        }
    }

    fn ask(&mut self, line: &str) -> Result<String, ClientError> {
        let failed = |source| ClientError::Socket { path: self.path.clone(), source };
        writeln!(self.stream.get_mut(), "{line}").map_err(failed)?;
        let mut answer = String::new();
        if self.stream.read_line(&mut answer).map_err(failed)? == 0 {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        match serde_json::from_str::<ErrorReply>(&answer) {
            Ok(refusal) => Err(ClientError::Refused(refusal.error)),
            Err(_) => Ok(answer),
        }
    }
}

impl Client {
    /// Asks for a report. Returns it, and its text.
    fn report(&mut self) -> Result<(InstanceReport, String), ClientError> {
        let answer = self.ask("report")?;
        let report: InstanceReport = serde_json::from_str(&answer)
            .map_err(|source| ClientError::Format { path: self.path.clone(), source })?;
        if report.vigie_forward != FORMAT_VERSION {
            let version = report.vigie_forward;
            return Err(ClientError::Version { path: self.path.clone(), version });
        }
        Ok((report, answer))
    }
}

/// Sends one request to the instance at `path`, or to the only one.
pub(crate) fn request(path: Option<&Path>, line: &str) -> Result<String, ClientError> {
    Client::open(path)?.ask(line)
}

/// Returns the report of the instance at `path`, or of the only one.
pub(crate) fn report(path: Option<&Path>) -> Result<InstanceReport, ClientError> {
    Client::open(path)?.report().map(|(report, _)| report)
}

/// Shows the report of an instance, once or repeatedly.
pub(crate) fn stats(arguments: &StatsArgs) -> Result<(), ClientError> {
    let mut client = Client::open(arguments.socket.as_deref())?;
    let path = client.path.clone();
    let mut before: Option<InstanceReport> = None;
    let mut plots = if arguments.json { None } else { Plots::for_terminal() };
    let reports = arguments.every.map_or(1, |_| arguments.count.unwrap_or(u64::MAX));
    for number in 0..reports {
        if let (Some(every), 1..) = (arguments.every, number) {
            let _ = pause(every.0);
            // The instance ends connections that last.
            client = Client::open(Some(&path))?;
        }
        let (report, answer) = client.report()?;
        // Another process may have its place, whose counters began anew.
        if before.as_ref().is_some_and(|before| !is_successor(&report, before)) {
            before = None;
            plots = plots.and_then(|_| Plots::for_terminal());
        }
        let mut text =
            if arguments.json { answer } else { table::render(&report, before.as_ref()) };
        if let (Some(plots), Some(before)) = (&mut plots, &before) {
            plots.add(before, &report);
            text += &plots.text();
        }
        let mut output = io::stdout().lock();
        match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
            // The reader of the output has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(ClientError::Output)?,
        }
        before = Some(report);
    }
    Ok(())
}

/// Returns whether a report is a later one of the same process.
fn is_successor(report: &InstanceReport, before: &InstanceReport) -> bool {
    report.pid == before.pid && report.uptime_ms >= before.uptime_ms
}

/// Waits for the time, or for a signal.
fn pause(time: Duration) -> rustix::io::Result<usize> {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let time = Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
    poll(&mut [], Some(&time))
}
