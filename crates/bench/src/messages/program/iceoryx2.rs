//! iceoryx2, by a program of ours that cargo builds at first use.
//!
//! It is not a dependency, not even an optional one: its build needs libclang, and its tree has licences
//! that `deny.toml` does not know. The built program is kept in the user's cache directory, since
//! building it takes a minute.

use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{arguments, life, parse};
use crate::error::{BenchError, Failure, Missing};
use crate::host::{Program, cache, describe, is_installed, output_of, write_if_new};
use crate::messages::{Carrier, Measure, MeasureResult, Prepared, Run};

const MANIFEST: &str = include_str!("iceoryx2.manifest.txt");
const SOURCE: &str = include_str!("iceoryx2.source.txt");

/// What building it may take.
const BUILDING: Duration = Duration::from_secs(1_800);

/// Publish and subscribe with a copy on both sides.
pub(crate) static COPY: Carrier = Carrier {
    name: "iceoryx2",
    label: "iceoryx2, copied",
    family: "iceoryx2",
    has: Measure::is_plain,
    program: Some(prepare),
    ..Carrier::PROGRAM
};

/// Publish and subscribe in loaned samples.
pub(crate) static ZERO_COPY: Carrier = Carrier {
    name: "iceoryx2-zero-copy",
    label: "iceoryx2, zero-copy",
    has: |measure| matches!(measure, Measure::Loaned { .. }),
    ..COPY
};

fn prepare() -> Result<Box<dyn Prepared>, Missing> {
    if !is_installed("cargo") {
        return Err(Missing::new("there is no cargo to build it", "https://rustup.rs"));
    }
    let program = build().map_err(|error| {
        let remedy = "it needs libclang (on Debian: apt install libclang-dev) and, the first \
                      time, the registry";
        Missing::new(format!("cargo cannot build it: {}", describe(&error)), remedy)
    })?;
    Ok(Box::new(BuiltPeer { program }))
}

/// The program, built.
#[derive(Debug)]
struct BuiltPeer {
    program: PathBuf,
}

impl Prepared for BuiltPeer {
    fn measure(&self, run: &Run) -> Result<Vec<MeasureResult>, BenchError> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let name = format!("vigie-bench/{}/{number}", process::id());
        let start = |rank: u32| {
            let cores = run.cores_of(rank);
            let list: Vec<_> = cores.iter().map(usize::to_string).collect();
            let mut command = Command::new("taskset");
            command.args(["-c", &list.join(",")]).arg(&self.program);
            command.arg(&name).arg(rank.to_string()).args(arguments(run, &cores));
            Program::start(command)
        };
        let follower = start(1)?;
        let leader = start(0)?;
        let output = leader.finish(life(run))?;
        follower.finish(run.timeout())?;
        parse(&output, run).map_err(|failure| BenchError::Failed { role: "peer", failure })
    }
}

/// Writes the program if it is new, and lets cargo see to the rest.
fn build() -> Result<PathBuf, BenchError> {
    let folder = cache("iceoryx2");
    write_if_new(&folder.join("Cargo.toml"), MANIFEST)?;
    write_if_new(&folder.join("src/main.rs"), SOURCE)?;
    let target = folder.join("target");
    let program = target.join("release/vigie-bench-iceoryx2");
    if !program.exists() {
        eprintln!("building the iceoryx2 peer in {}: this takes minutes", folder.display());
    }
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--quiet"]).current_dir(&folder);
    command.env("CARGO_TARGET_DIR", &target);
    output_of(command, BUILDING)?;
    if program.exists() {
        return Ok(program);
    }
    let failure = Failure::runtime("cargo built something else");
    Err(BenchError::Failed { role: "compiler", failure })
}
