//! Open MPI and MPICH, by a program in C.

use super::{arguments, life, parse};
use crate::error::BenchError;
use crate::host::mpi::{self, BuiltMpi};
use crate::host::{Missing, output_of};
use crate::messages::{Carrier, CarrierKind, Measure, MeasureResult, Prepared, Run};

/// The program.
const SOURCE: &str = include_str!("mpi.c");

/// Open MPI as it is installed.
pub(crate) static OPEN_MPI: MpiPeer = MpiPeer {
    name: "openmpi",
    label: "Open MPI",
    family: "openmpi",
    mpi: &mpi::OPEN_MPI,
    environment: &[],
};

/// Open MPI without the kernel's copies from process to process, by whatever component of its version.
pub(crate) static OPEN_MPI_COPY: MpiPeer = MpiPeer {
    name: "openmpi-copy",
    label: "Open MPI without CMA",
    environment: &[("OMPI_MCA_btl_vader_single_copy_mechanism", "none"), ("OMPI_MCA_smsc", "^cma")],
    ..OPEN_MPI
};

/// MPICH as it is installed.
pub(crate) static MPICH: MpiPeer =
    MpiPeer { name: "mpich", label: "MPICH", family: "mpich", mpi: &mpi::MPICH, environment: &[] };

/// An implementation, and how its ranks are started.
#[derive(Debug)]
pub(crate) struct MpiPeer {
    name: &'static str,
    label: &'static str,
    family: &'static str,
    mpi: &'static mpi::Mpi,
    environment: &'static [(&'static str, &'static str)],
}

/// The program that was built.
#[derive(Debug)]
struct BuiltPeer<'a> {
    peer: &'a MpiPeer,
    built: BuiltMpi,
}

impl Carrier for MpiPeer {
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
        Ok(Box::new(BuiltPeer { peer: self, built: self.mpi.build(SOURCE)? }))
    }
}

impl Prepared for BuiltPeer<'_> {
    fn measure(&self, run: &Run) -> Result<Vec<MeasureResult>, BenchError> {
        let mut command = self.built.command(run.ranks);
        command.args(arguments(run, &run.cores)).envs(self.peer.environment.iter().copied());
        let output = output_of(command, life(run))?;
        parse(&output, run).map_err(|failure| BenchError::Failed { role: "peer", failure })
    }
}
