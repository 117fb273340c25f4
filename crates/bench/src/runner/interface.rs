//! The workloads that each system runs.

use crate::error::Failure;
use crate::mix::LoadServer;
use crate::server::ServerPlan;
use crate::workload::switches::{SwitchCounts, SwitchPlan};

/// Runs the workloads on one system, in this process.
pub(crate) trait Runner: Sync {
    /// Serves until the process is killed.
    fn serve(&self, plan: &ServerPlan) -> Result<(), Failure>;

    /// Carries out a mix of behaviour until the process is killed.
    fn load(&self, plan: &LoadServer) -> Result<(), Failure>;

    /// Makes tasks switch, and counts what that costs.
    fn switch(&self, plan: &SwitchPlan) -> Result<SwitchCounts, Failure>;
}
