//! The activity of an idle server: none, if it is well made.
//!
//! A server with connections open and tasks waiting on them is left alone for some seconds. Every
//! context switch of one of its threads is a wake-up; strace, where it is installed, shows the
//! system calls.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::client::{Connections, PingPong};
use crate::clock;
use crate::error::BenchError;
use crate::host::Trace;
use crate::report::{Case, Repetition, Row, Show, Turn, table};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub(crate) const CASE: &str = "idle";

/// Time between the last message and the beginning of the idle span: timers of the way there, and
/// spinning, are over by then.
const SETTLE: Duration = Duration::from_secs(1);

/// Connections that are open meanwhile, each with a task that waits.
const CONNECTIONS: u32 = 100;

/// How long servers are watched.
const SPAN: Duration = Duration::from_secs(5);

/// Which systems are watched doing nothing.
#[derive(Clone, Debug, Args)]
pub(crate) struct IdlePlan {
    /// The systems.
    #[arg(long, value_delimiter = ',', default_value = "vigie-user-level,vigie")]
    only: Vec<System>,
}

impl Case for IdlePlan {
    type Setting = System;

    fn rounds(&self) -> u32 {
        1
    }

    fn rows(&self) -> Vec<(System, Row)> {
        let row = |&system: &System| {
            let row = Row::new(system, CASE).parameter("connections", CONNECTIONS);
            (system, row.parameter("span_s", SPAN.as_secs_f64()))
        };
        self.only.iter().map(row).collect()
    }

    /// Watches first the context switches of a system and then, with strace, its system calls.
    fn measure(&self, &system: &System, turn: &Turn<'_>) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, idle"));
        let found = Repetition::default().note("context_switches", context_switches(system)?);
        if !Trace::is_possible() {
            return Ok(found);
        }
        let calls = system_calls(system)?;
        Ok(found.note("system_calls", calls.len()).note("calls", calls))
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("context switches", Show::Count("context_switches")),
            ("system calls", Show::Count("system_calls")),
        ];
        table("Servers that are left alone", rows, &columns)
    }
}

/// Opens the connections from this process; each is proven by an echo, then all are silent.
fn connect(address: SocketAddr) -> Result<Connections, BenchError> {
    let connections = PingPong::new(address).connections(CONNECTIONS).open();
    connections.map_err(|failure| BenchError::Failed { role: "client", failure })
}

fn context_switches(system: System) -> Result<u64, BenchError> {
    let server = ServerPlan::new(system).connections(CONNECTIONS).start()?;
    let _open = connect(server.address())?;
    clock::sleep(SETTLE);
    let before = switches_of(server.process())?;
    clock::sleep(SPAN);
    let after = switches_of(server.process())?;
    // A thread that did not exist before counts with all it did.
    let risen = after
        .iter()
        .map(|(thread, count)| count.saturating_sub(before.get(thread).copied().unwrap_or(0)));
    Ok(risen.sum())
}

fn system_calls(system: System) -> Result<Vec<String>, BenchError> {
    let trace = Trace::new();
    let plan = ServerPlan::new(system).connections(CONNECTIONS);
    let server = plan.start_under(&trace.dating())?;
    let _open = connect(server.address())?;
    clock::sleep(SETTLE);
    let from = since_epoch();
    clock::sleep(SPAN);
    let to = since_epoch();
    drop(server);
    trace.calls_between(from, to)
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the context switches so far of each thread of a process.
fn switches_of(process: u32) -> Result<BTreeMap<PathBuf, u64>, BenchError> {
    let folder = PathBuf::from(format!("/proc/{process}/task"));
    let error = |source| BenchError::File { path: folder.clone(), source };
    let read = || -> io::Result<BTreeMap<PathBuf, u64>> {
        fs::read_dir(&folder)?
            .map(|thread| thread.and_then(|thread| switches_in(&thread.path())))
            .collect()
    };
    read().map_err(error)
}

fn switches_in(thread: &Path) -> io::Result<(PathBuf, u64)> {
    let status = fs::read_to_string(thread.join("status"))?;
    Ok((thread.to_owned(), count_switches(&status)))
}

/// Sums voluntary and other context switches of a `status` file.
fn count_switches(status: &str) -> u64 {
    let lines = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
    lines.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_of_both_kinds_count() {
        // Goal: neither line is missed. Method: the end of a status file.
        let status = "Threads:\t3\nvoluntary_ctxt_switches:\t41\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(count_switches(status), 43);
    }
}
