//! Open MPI and MPICH, by a program in C.

use super::{arguments, life, parse};
use crate::error::{BenchError, Missing};
use crate::host::mpi::{self, BuiltMpi, Mpi};
use crate::host::output_of;
use crate::messages::{Carrier, Measure, MeasureResult, Prepared, Run};

/// The program.
const SOURCE: &str = include_str!("mpi.c");

/// Open MPI as it is installed.
pub(crate) static OPEN_MPI: Carrier = Carrier {
    name: "openmpi",
    label: "Open MPI",
    family: "openmpi",
    has: |measure| !matches!(measure, Measure::Loaned { .. }),
    program: Some(|| prepare(&mpi::OPEN_MPI, &[])),
    ..Carrier::PROGRAM
};

/// Open MPI without the kernel's copies from process to process, by whatever component of its version.
pub(crate) static OPEN_MPI_COPY: Carrier = Carrier {
    name: "openmpi-copy",
    label: "Open MPI without CMA",
    program: Some(|| {
        let vader = ("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
        prepare(&mpi::OPEN_MPI, &[vader, ("OMPI_MCA_smsc", "^cma")])
    }),
    ..OPEN_MPI
};

/// MPICH as it is installed.
pub(crate) static MPICH: Carrier = Carrier {
    name: "mpich",
    label: "MPICH",
    family: "mpich",
    program: Some(|| prepare(&mpi::MPICH, &[])),
    ..OPEN_MPI
};

/// The program that was built, and the environment of its ranks.
#[derive(Debug)]
struct BuiltPeer {
    built: BuiltMpi,
    environment: Vec<(&'static str, &'static str)>,
}

fn prepare(
    mpi: &'static Mpi,
    environment: &[(&'static str, &'static str)],
) -> Result<Box<dyn Prepared>, Missing> {
    Ok(Box::new(BuiltPeer { built: mpi.build(SOURCE)?, environment: environment.to_vec() }))
}

impl Prepared for BuiltPeer {
    fn measure(&self, run: &Run) -> Result<Vec<MeasureResult>, BenchError> {
        let mut command = self.built.command(run.ranks);
        command.args(arguments(run, &run.cores)).envs(self.environment.iter().copied());
        let output = output_of(command, life(run))?;
        parse(&output, run).map_err(|failure| BenchError::Failed { role: "peer", failure })
    }
}
