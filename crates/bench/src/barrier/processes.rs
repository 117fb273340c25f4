//! Groups of processes: vigie's over shared memory.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vigie_barrier::local::shm::{BootstrapPoint, ShmBootstrap};
use vigie_barrier::{Group, Rank};
use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime};

use super::lap::{GroupCosts, Laps, MemberResult, StopCount, run, run_async};
use crate::error::{BenchError, Failure};
use crate::host::{Arena, CONTROL_BYTES, SharedFile, Usage};
use crate::process::{Child, Role, print_result};

/// The time for forming a group and for the barriers under way, beside the budget.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The plan of one member's process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemberPlan {
    laps: Laps,
    rank: u32,
    /// Whether it blocks its thread; else it awaits on the user-level flavor.
    blocks: bool,
    name: String,
    /// The shared word that says after how many barriers the run ends.
    memory: PathBuf,
}

impl Role for MemberPlan {
    const NAME: &'static str = "member";
}

/// The word that the processes share.
pub(super) struct SharedStopCount(pub(super) Arena);

impl StopCount for SharedStopCount {
    fn set(&self, count: u64) {
        self.0.post(0, count);
    }

    fn count(&self) -> u64 {
        self.0.posted(0)
    }
}

/// Starts a process for each member.
pub(super) fn measure(laps: Laps, blocks: bool) -> Result<GroupCosts, BenchError> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let failed = |failure| BenchError::Failed { role: "member", failure };
    let memory = SharedFile::create(CONTROL_BYTES).map_err(failed)?;
    let run = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("vigie-bench-barrier-{}-{run}", std::process::id());
    let mut children = Vec::new();
    for rank in 0..laps.members {
        let (name, memory) = (name.clone(), memory.path());
        let plan = MemberPlan { laps, rank, blocks, name, memory };
        children.push(Child::start(&plan)?);
    }
    GroupCosts::of_processes(&mut children, TIMEOUT + laps.budget * 4)
}

/// Runs one member in this process.
pub(crate) fn play(plan: &MemberPlan) -> Result<(), Failure> {
    let stop_count = SharedStopCount(Arena::open(&plan.memory)?);
    let group = Group::new(plan.laps.members).map_err(Failure::runtime)?;
    // Its processes are of one user, and the name is of this run alone.
    let point = BootstrapPoint::new(&plan.name, *b"vigie-bench 0001");
    let point = point.map_err(Failure::runtime)?;
    let bootstrap = ShmBootstrap::new(group, Rank(plan.rank), point);
    let deadline = Instant::now() + TIMEOUT;
    let (costs, used) = if plan.blocks {
        let host = Server::spawn_thread().map_err(Failure::io("starting a server"))?;
        let joining = bootstrap.join_on(host.server(), deadline);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(Failure::io("starting tokio"))?;
        let mut member = runtime.block_on(joining).map_err(Failure::runtime)?;
        let before = Usage::of_this_process();
        let costs = run(plan.laps, plan.rank, &stop_count, || member.wait_blocking().map(drop));
        (costs.map_err(Failure::runtime)?, Usage::of_this_process().since(before))
    } else {
        let runtime = Runtime::builder().flavor(Flavor::UserLevel).build();
        runtime.map_err(Failure::runtime)?.block_on(async {
            let mut member = bootstrap.join(deadline).await.map_err(Failure::runtime)?;
            let before = Usage::of_this_process();
            let wait = async || member.wait().await.map(drop);
            let costs = run_async(plan.laps, plan.rank, &stop_count, wait).await;
            let used = Usage::of_this_process().since(before);
            Ok::<_, Failure>((costs.map_err(Failure::runtime)?, used))
        })?
    };
    print_result(&MemberResult { costs, used, found: None });
    Ok(())
}
