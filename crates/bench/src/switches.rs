//! The costs of a task switch other than time: allocations and system calls.
//!
//! Two tasks that yield to each other, or one that waits for a socket again and again, run in a
//! process with a counting allocator; the same process under `perf` or `strace -c` shows the system calls.

use std::time::Duration;

use clap::Args;

use crate::counting;
use crate::error::{BenchError, Failure};
use crate::host::Trace;
use crate::process::{Child, Role, print_result};
use crate::report::{Case, Repetition, Row, Show, Turn, table};
use crate::schedulers::System;
pub(crate) use crate::workload::switches::{SwitchCounts, SwitchKind, SwitchPlan};

/// Name of the case in rows.
pub(crate) const CASE: &str = "switches";

/// How long counting may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What is counted: so many switches, and so many waits.
const COUNTED: [(SwitchKind, u64); 2] = [(SwitchKind::Yield, 200_000), (SwitchKind::Wait, 20_000)];

/// Which systems have their switches and waits counted.
#[derive(Clone, Debug, Args)]
pub(crate) struct SwitchesPlan {
    /// The systems.
    #[arg(long, value_delimiter = ',', default_value = "vigie-user-level,vigie")]
    only: Vec<System>,
}

impl Case for SwitchesPlan {
    type Setting = SwitchPlan;

    fn rounds(&self) -> u32 {
        1
    }

    fn rows(&self) -> Vec<(SwitchPlan, Row)> {
        let row = |system, (kind, switches): (SwitchKind, u64)| {
            let row = Row::new(system, CASE).parameter("kind", kind.name());
            (SwitchPlan::new(system, kind, switches), row)
        };
        let rows = |&system: &System| COUNTED.map(|counted| row(system, counted));
        self.only.iter().flat_map(rows).collect()
    }

    /// Counts in processes of their own; system calls only where perf or strace is installed.
    fn measure(&self, plan: &SwitchPlan, turn: &Turn<'_>) -> Result<Repetition, BenchError> {
        let SwitchPlan { system, kind, switches } = *plan;
        turn.shows(format!("{system}, switches: {}", kind.name()));
        let counts = plan.count()?;
        let found = Repetition::default()
            .note("switches", counts.switches)
            .note("allocations", counts.allocations)
            .figure("ns_per_switch", counts.elapsed.as_nanos() as f64 / switches as f64);
        if kind != SwitchKind::Yield {
            return Ok(found);
        }
        // What the process does before and after, it does in the empty run as well.
        let beside = SwitchPlan::new(system, kind, 0).system_calls()?;
        Ok(match (beside, plan.system_calls()?) {
            (Some(beside), Some(calls)) => found.note("system_calls", calls.saturating_sub(beside)),
            _ => found,
        })
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("kind", Show::Parameter("kind")),
            ("switches", Show::Count("switches")),
            ("allocations", Show::Count("allocations")),
            ("system calls", Show::Count("system_calls")),
            ("ns / switch", Show::Number("ns_per_switch")),
        ];
        table("Task switches", rows, &columns)
    }
}

impl Role for SwitchPlan {
    const NAME: &'static str = "switches";
}

impl SwitchPlan {
    /// Counts in a process of its own.
    ///
    /// # Errors
    /// [`Failure::Unsupported`] if this program has no counting allocator; others if the process
    /// fails.
    pub(crate) fn count(&self) -> Result<SwitchCounts, BenchError> {
        self.count_under(&[])
    }

    /// Counts the system calls of the whole process, its start included; `None` where nothing can count them.
    ///
    /// # Errors
    /// Of the process, or of the file with the sum.
    pub(crate) fn system_calls(&self) -> Result<Option<u64>, BenchError> {
        let trace = Trace::new();
        let Some(counting) = trace.counting() else { return Ok(None) };
        self.count_under(&counting)?;
        trace.total_calls().map(Some)
    }

    fn count_under(&self, wrapper: &[String]) -> Result<SwitchCounts, BenchError> {
        let mut child = Child::start_under(wrapper, self)?;
        let counts = child.result(TIMEOUT)?;
        // The child says that it ends, then ends; strace writes its summary after that.
        while child.next(TIMEOUT).is_ok() {}
        Ok(counts)
    }
}

/// Counts in this process, and prints it for the parent.
pub(crate) fn count_here(plan: &SwitchPlan) -> Result<(), Failure> {
    if !counting::is_counting() {
        return Err(Failure::unsupported(
            plan.system,
            "this program has no counting allocator; run the command `vigie-bench`",
        ));
    }
    let counts = plan.system.runner().map_err(Failure::runtime)?.switch(plan)?;
    print_result(&counts);
    Ok(())
}
