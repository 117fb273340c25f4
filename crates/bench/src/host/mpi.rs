//! Open MPI and MPICH, by programs in C that each one's own compiler builds.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::program::{TempDir, describe, is_installed, output_of};
use crate::error::{BenchError, Missing};

/// The time limit of the compiler.
const BUILDING: Duration = Duration::from_secs(120);

/// An implementation, as Debian has it.
#[derive(Debug)]
pub(crate) struct Mpi {
    compiler: &'static str,
    launcher: &'static str,
    /// Arguments of the launcher before the number of ranks.
    arguments: &'static [&'static str],
    packages: &'static str,
}

pub(crate) static OPEN_MPI: Mpi = Mpi {
    compiler: "mpicc.openmpi",
    launcher: "mpiexec.openmpi",
    arguments: &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"],
    packages: "openmpi-bin libopenmpi-dev",
};

pub(crate) static MPICH: Mpi = Mpi {
    compiler: "mpicc.mpich",
    launcher: "mpiexec.mpich",
    arguments: &["-bind-to", "none", "-n"],
    packages: "mpich libmpich-dev",
};

/// A program that was built; its folder is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct BuiltMpi {
    mpi: &'static Mpi,
    program: PathBuf,
    _folder: TempDir,
}

impl Mpi {
    /// Builds a program in C.
    pub(crate) fn build(&'static self, source: &str) -> Result<BuiltMpi, Missing> {
        let remedy = || format!("on Debian: apt install {}", self.packages);
        for program in [self.compiler, self.launcher] {
            if !is_installed(program) {
                return Err(Missing::new(format!("there is no {program}"), remedy()));
            }
        }
        self.compile(source).map_err(|error| {
            Missing::new(format!("{} cannot build: {}", self.compiler, describe(&error)), remedy())
        })
    }

    fn compile(&'static self, text: &str) -> Result<BuiltMpi, BenchError> {
        let io = |error| BenchError::Start { role: "compiler", source: error };
        let folder = TempDir::create().map_err(io)?;
        let (source, program) = (folder.path().join("mpi.c"), folder.path().join("mpi"));
        fs::write(&source, text).map_err(io)?;
        let mut command = Command::new(self.compiler);
        command.arg("-O2").arg("-o").arg(&program).arg(&source);
        output_of(command, BUILDING)?;
        Ok(BuiltMpi { mpi: self, program, _folder: folder })
    }
}

impl BuiltMpi {
    /// Returns the command that starts so many ranks, without the program's own arguments.
    pub(crate) fn command(&self, ranks: u32) -> Command {
        let mut command = Command::new(self.mpi.launcher);
        command.args(self.mpi.arguments).arg(ranks.to_string()).arg(&self.program);
        command
    }
}
