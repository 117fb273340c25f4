//! Open MPI and MPICH, by a program in C that each one's own compiler builds.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::{arguments, life, parse};
use crate::error::BenchError;
use crate::host::missing::Missing;
use crate::host::program::{TempDir, describe, is_installed, output_of};
use crate::messages::carrier::{Carrier, CarrierKind, Prepared, Run};
use crate::messages::measure::Measure;
use crate::messages::measure_result::MeasureResult;

/// The program.
const SOURCE: &str = include_str!("mpi.c");

/// The time limit of the compiler.
const BUILDING: Duration = Duration::from_secs(120);

/// Open MPI as it is installed.
pub(crate) static OPEN_MPI: Mpi = Mpi {
    name: "openmpi",
    label: "Open MPI",
    family: "openmpi",
    compiler: "mpicc.openmpi",
    launcher: "mpiexec.openmpi",
    launcher_arguments: OPEN_MPI_ARGUMENTS,
    environment: &[],
    packages: "openmpi-bin libopenmpi-dev",
};

/// Open MPI that copies through shared memory instead of reading the other process's.
pub(crate) static OPEN_MPI_COPY: Mpi = Mpi {
    name: "openmpi-copy",
    label: "Open MPI without CMA",
    // The component was renamed between 4 and 5; the variable of the other is ignored.
    environment: &[("OMPI_MCA_btl_vader_single_copy_mechanism", "none"), ("OMPI_MCA_smsc", "^cma")],
    ..OPEN_MPI
};

/// MPICH as it is installed.
pub(crate) static MPICH: Mpi = Mpi {
    name: "mpich",
    label: "MPICH",
    family: "mpich",
    compiler: "mpicc.mpich",
    launcher: "mpiexec.mpich",
    launcher_arguments: &["-bind-to", "none", "-n"],
    environment: &[],
    packages: "mpich libmpich-dev",
};

/// Ranks keep to their cores by themselves; more ranks than cores have to be allowed; and it refuses to
/// run as root unless told so.
const OPEN_MPI_ARGUMENTS: &[&str] =
    &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"];

/// An implementation of MPI.
#[derive(Debug)]
pub(crate) struct Mpi {
    name: &'static str,
    label: &'static str,
    family: &'static str,
    compiler: &'static str,
    launcher: &'static str,
    /// What stands between the launcher and the number of ranks.
    launcher_arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    packages: &'static str,
}

/// The program, built for one implementation.
#[derive(Debug)]
struct BuiltPeer<'a> {
    mpi: &'a Mpi,
    program: PathBuf,
    // The program is in it.
    _folder: TempDir,
}

impl Mpi {
    fn build(&self) -> Result<BuiltPeer<'_>, BenchError> {
        let io = |error| BenchError::Start { role: "compiler", source: error };
        let folder = TempDir::create().map_err(io)?;
        let source = folder.path().join("mpi.c");
        let program = folder.path().join("mpi");
        fs::write(&source, SOURCE).map_err(io)?;
        let mut command = Command::new(self.compiler);
        command.arg("-O2").arg("-o").arg(&program).arg(&source);
        output_of(command, BUILDING)?;
        Ok(BuiltPeer { mpi: self, program, _folder: folder })
    }
}

impl Carrier for Mpi {
    fn name(&self) -> &'static str {
        self.name
    }

    fn label(&self) -> &'static str {
        self.label
    }

    fn family(&self) -> &'static str {
        self.family
    }

    fn kind(&self) -> CarrierKind {
        CarrierKind::Peer
    }

    fn has(&self, measure: Measure) -> bool {
        !matches!(measure, Measure::Loaned { .. })
    }

    fn prepare(&self) -> Result<Box<dyn Prepared + '_>, Missing> {
        for program in [self.compiler, self.launcher] {
            if !is_installed(program) {
                let remedy = format!("on Debian: apt install {}", self.packages);
                return Err(Missing::new(format!("there is no {program}"), remedy));
            }
        }
        let built = self.build().map_err(|error| {
            let what = format!("{} cannot build: {}", self.compiler, describe(&error));
            Missing::new(what, format!("on Debian: apt install {}", self.packages))
        })?;
        Ok(Box::new(built))
    }
}

impl Prepared for BuiltPeer<'_> {
    fn measure(&self, run: &Run) -> Result<Vec<MeasureResult>, BenchError> {
        let mut command = Command::new(self.mpi.launcher);
        command.args(self.mpi.launcher_arguments).arg(run.ranks.to_string());
        command.arg(&self.program).args(arguments(run, &run.cores));
        command.envs(self.mpi.environment.iter().copied());
        let output = output_of(command, life(run))?;
        parse(&output, run).map_err(|failure| BenchError::Failed { role: "peer", failure })
    }
}
