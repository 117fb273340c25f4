//! Runs the workloads in a child process: one implementation for all async runtimes, and others for
//! peers without one.

mod epoll;
mod generic;
mod go;
mod interface;

use self::epoll::Epoll;
use self::generic::Async;
use self::go::Go;
use self::interface::Runner;
use crate::error::{BenchError, Failure};
use crate::host::{control_group, limits};
use crate::mix::LoadServer;
use crate::schedulers::{System, SystemError};
use crate::server::ServerPlan;
#[cfg(feature = "smol")]
use crate::system::smol::Smol;
use crate::system::threads::KernelThreads;
use crate::system::tokio::{TokioCurrentThread, TokioMultiThread};
use crate::system::vigie::{
    VigieBlocking, VigieCheckpoint, VigieEnhanced, VigieHybrid, VigieInTokio, VigieKernelLevel,
    VigieLowCpu, VigieLowLatency, VigieNaive, VigieUserLevel,
};

impl System {
    /// Tells whether this machine has what the system needs.
    pub(crate) fn is_installed(self) -> bool {
        self != Self::Go || Go::is_installed()
    }

    /// Makes ready what the system needs beside this program. May take a minute the first time.
    pub(crate) fn prepare(self) -> Result<(), BenchError> {
        if self == Self::Go { Go::build() } else { Ok(()) }
    }

    /// Returns what runs this system.
    pub(crate) fn runner(self) -> Result<&'static dyn Runner, SystemError> {
        Ok(match self {
            Self::VigieNaive => &Async::<VigieNaive>::NEW,
            Self::VigieEnhanced => &Async::<VigieEnhanced>::NEW,
            Self::VigieBlocking => &Async::<VigieBlocking>::NEW,
            Self::VigieUserLevel => &Async::<VigieUserLevel>::NEW,
            Self::Vigie => &Async::<VigieHybrid>::NEW,
            Self::VigieKernelLevel => &Async::<VigieKernelLevel>::NEW,
            Self::VigieLowLatency => &Async::<VigieLowLatency>::NEW,
            Self::VigieLowCpu => &Async::<VigieLowCpu>::NEW,
            Self::VigieCheckpoint => &Async::<VigieCheckpoint>::NEW,
            Self::VigieInTokio => &Async::<VigieInTokio>::NEW,
            Self::Tokio => &Async::<TokioMultiThread>::NEW,
            Self::TokioCurrentThread => &Async::<TokioCurrentThread>::NEW,
            #[cfg(feature = "smol")]
            Self::Smol => &Async::<Smol>::NEW,
            #[cfg(not(feature = "smol"))]
            Self::Smol => {
                return Err(SystemError::NotCompiled { name: self.name(), feature: "smol" });
            }
            Self::Threads => &Async::<KernelThreads>::NEW,
            Self::BusyPoll => &Epoll { sleeps: false },
            Self::EpollThread => &Epoll { sleeps: true },
            Self::Go => &Go,
        })
    }
}

/// Serves `plan` in this process, until it is killed.
pub(crate) fn serve(plan: &ServerPlan) -> Result<(), Failure> {
    if let Some(group) = &plan.group {
        control_group::join(group).map_err(Failure::io("joining the control group"))?;
    }
    limits::allow_connections(plan.connections)?;
    plan.system.runner().map_err(Failure::runtime)?.serve(plan)
}

/// Carries out a mix of behaviour in this process, until it is killed.
pub(crate) fn load(plan: &LoadServer) -> Result<(), Failure> {
    plan.system.runner().map_err(Failure::runtime)?.load(plan)
}
