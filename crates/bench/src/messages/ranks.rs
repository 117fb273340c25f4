//! Ranks that are this program, started again.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{CarrierKind, Measure, MeasureResult, PingPong, Prepared, RankContext, Run};
use crate::error::{BenchError, Failure, Missing};
use crate::host::{CONTROL_BYTES, Namespaces, SharedFile};
use crate::process::{Child, Role};

/// A system that can be measured now, or what is missing.
type PreparedOrMissing = Result<Box<dyn Prepared>, Missing>;

/// A system that carries messages between processes of one host.
#[derive(Debug)]
pub struct Carrier {
    /// The name on the command line and in results.
    pub name: &'static str,
    /// The label of rows in tables.
    pub label: &'static str,
    /// The word of `--peers` for it and its kin.
    pub family: &'static str,
    /// The kind of system.
    pub kind: CarrierKind,
    /// Tells whether it has a measure.
    pub has: fn(Measure) -> bool,
    /// Shared memory that it needs for each rank, in bytes; zeroed, for use by the system. A system
    /// that shares its memory by its own means needs none.
    pub link_bytes: usize,
    /// Whether its two ranks are in network namespaces of their own, with a veth pair between them.
    pub is_remote: bool,
    /// Opens a rank in the calling process, and connects it to its neighbours. All ranks of a run do
    /// so at the same time.
    pub open: fn(&RankContext) -> Result<Box<dyn PingPong>, Failure>,
    /// How it is built, if its ranks are processes of another program.
    pub(crate) program: Option<fn() -> PreparedOrMissing>,
}

impl Carrier {
    /// A peer whose ranks are processes of another program: what all of them have.
    pub(super) const PROGRAM: Self = Self {
        name: "",
        label: "",
        family: "",
        kind: CarrierKind::Peer,
        has: |_| false,
        link_bytes: 0,
        is_remote: false,
        open: |_| Err(Failure::runtime("its ranks are processes of another program")),
        program: None,
    };
}

impl Carrier {
    /// Makes sure that the system is on this machine, and builds what it needs.
    ///
    /// # Errors
    /// What is missing, and how to get it. The system is then skipped.
    pub(crate) fn prepare(&self) -> Result<Box<dyn Prepared + '_>, Missing> {
        if let Some(prepare) = self.program {
            return prepare();
        }
        let namespaces = self.is_remote.then(Namespaces::make).transpose()?;
        Ok(Box::new(OwnRanks { own: self, namespaces }))
    }
}

/// A system of this program, and the namespaces of its ranks, which end with this.
#[derive(Debug)]
struct OwnRanks<'a> {
    own: &'a Carrier,
    namespaces: Option<Namespaces>,
}

impl Prepared for OwnRanks<'_> {
    fn measure(&self, run: &Run) -> Result<Vec<MeasureResult>, BenchError> {
        let bootstrap = RunBootstrap::new(self.own.link_bytes, run.ranks).map_err(failed)?;
        let namespaces = self.namespaces.as_ref().map(Namespaces::paths).unwrap_or_default();
        let mut paths = namespaces.into_iter();
        let mut ranks = Vec::new();
        for rank in 0..run.ranks {
            let mut context = bootstrap.context(rank, run.cores_of(rank));
            context.namespace = paths.next();
            let carrier = self.own.name.to_owned();
            let (measures, budget) = (run.measures.clone(), run.budget);
            ranks.push(Child::start(&RankPlan { carrier, context, measures, budget })?);
        }
        let mut results = Vec::new();
        for _ in &run.measures {
            let mut ranks = ranks.iter_mut();
            let mut result: MeasureResult = match ranks.next() {
                Some(leader) => leader.result(run.timeout())?,
                None => MeasureResult::default(),
            };
            for follower in ranks {
                result.add_follower(&follower.result(run.timeout())?);
            }
            results.push(result);
        }
        Ok(results)
    }
}

pub(super) fn failed(failure: Failure) -> BenchError {
    BenchError::Failed { role: "rank", failure }
}

/// The memory that the ranks of a run share, and their token.
#[derive(Debug)]
pub(crate) struct RunBootstrap {
    memory: SharedFile,
    ranks: u32,
    token: u64,
}

impl RunBootstrap {
    /// Makes the memory, with `link_bytes` for each rank.
    pub(crate) fn new(link_bytes: usize, ranks: u32) -> Result<Self, Failure> {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let count = usize::try_from(ranks).map_err(Failure::runtime)?;
        let memory = SharedFile::create(CONTROL_BYTES + count * link_bytes)?;
        // Process ids have at most 22 bits; the rest numbers the runs of this one.
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { memory, ranks, token: run << 32 | u64::from(process::id()) })
    }

    /// Returns what a rank is told.
    pub(crate) fn context(&self, rank: u32, cores: Vec<usize>) -> RankContext {
        let (ranks, token) = (self.ranks, self.token);
        RankContext { rank, ranks, cores, memory: self.memory.path(), token, namespace: None }
    }
}

/// The plan of one rank's process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankPlan {
    pub(super) carrier: String,
    pub(super) context: RankContext,
    pub(super) measures: Vec<Measure>,
    pub(super) budget: Duration,
}

impl Role for RankPlan {
    const NAME: &'static str = "rank";
}
