//! Files: what a runtime's own path costs where the kernel has the bytes already.
//!
//! | load | what runs | figure |
//! | --- | --- | --- |
//! | read 1 | one task that reads 4 KiB at random places of a cached file | operations per second, processor time |
//! | read 32 | 32 such tasks, each with a descriptor of its own | the same |
//! | append | one task that appends 4 KiB and syncs | operations per second |
//! | hogs | read 1 beside ten tasks that compute without end | time until a read is done |
//!
//! Question: what does a service pay for a file that is in the page cache? tokio hands each operation to a thread of its pool.
//! Prediction: a read that does not wait costs vigie a system call and no switch; what waits costs both the same.
//! Method: a process for each row, in turns; the file is written and read once before. Beside hogs the quiet row of the same
//! system is the peer.

mod inside;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

pub(crate) use self::inside::run_here;
use crate::error::BenchError;
use crate::process::{Child, Role};
use crate::report::{Amount, Case, REACTION, Repetition, Row, Show, Turn, by_default, table};
use crate::schedulers::System;

/// Name of the case in rows.
const CASE: &str = "files";

/// Key of the operations per second.
const PER_S: &str = "per_s";

/// Key of the processor time for each of them, in microseconds.
const CPU_US: &str = "cpu_us";

/// How long a process may take beyond what it measures.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What is done with files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum FileLoad {
    Read1,
    Read32,
    Append,
    Hogs,
}

impl FileLoad {
    const ALL: [Self; 4] = [Self::Read1, Self::Read32, Self::Append, Self::Hogs];

    const fn name(self) -> &'static str {
        match self {
            Self::Read1 => "read 1",
            Self::Read32 => "read 32",
            Self::Append => "append",
            Self::Hogs => "hogs",
        }
    }
}

/// Which systems use files, and where.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("8s")), mut_arg("rounds", by_default("4")))]
pub(crate) struct FilesPlan {
    /// Folder for the test file, on the file system that you want to measure [default: the folder for temporary files].
    #[arg(long, value_name = "PATH")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    amount: Amount,
}

impl Case for FilesPlan {
    type Setting = FileLoadPlan;

    fn rounds(&self) -> u32 {
        self.amount.rounds()
    }

    fn rows(&self) -> Vec<(FileLoadPlan, Row)> {
        let folder = self.folder.clone().unwrap_or_else(std::env::temp_dir);
        let mut rows = Vec::new();
        for load in FileLoad::ALL {
            for system in self.amount.systems(&[System::Vigie]) {
                let (workers, time) = (self.amount.workers(), self.amount.of_turn());
                let plan =
                    FileLoadPlan { system, load, workers, time, folder: folder.clone(), seed: 0 };
                let row = Row::new(system, CASE)
                    .parameter("load", load.name())
                    .parameter("workers", workers);
                rows.push((plan, row));
            }
        }
        rows
    }

    fn measure(&self, plan: &FileLoadPlan, turn: &Turn<'_>) -> Result<Repetition, BenchError> {
        turn.shows(format!("{}, files: {}", plan.system, plan.load.name()));
        let plan = FileLoadPlan { seed: turn.seed, ..plan.clone() };
        let figures: FileFigures = Child::start(&plan)?.result(plan.time + TIMEOUT)?;
        let done = figures.times_ns.len() as f64;
        Ok(Repetition::default()
            .samples(REACTION, figures.times_ns.into_iter().collect())
            .figure(PER_S, done / figures.elapsed_ns as f64 * 1e9)
            .figure(CPU_US, figures.cpu_ns as f64 / 1e3 / done.max(1.0)))
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("load", Show::Parameter("load")),
            ("operations / s", Show::Count(PER_S)),
            ("processor time / operation", Show::Time(CPU_US)),
            ("p50", Show::Time("p50_us")),
            ("p99", Show::Time("p99_us")),
        ];
        table("Files: 4 KiB at random places of a cached file; append and sync", rows, &columns)
    }
}

/// The load of one process, and its system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileLoadPlan {
    system: System,
    load: FileLoad,
    workers: usize,
    time: Duration,
    folder: PathBuf,
    seed: u64,
}

impl Role for FileLoadPlan {
    const NAME: &'static str = "files";
}

/// The result.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FileFigures {
    /// Of each operation.
    times_ns: Vec<u64>,
    cpu_ns: u64,
    elapsed_ns: u64,
}
