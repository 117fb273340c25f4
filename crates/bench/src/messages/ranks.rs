//! Ranks that are this program, started again.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::carrier::{Carrier, Kind, PingPong, Prepared, Run};
use super::measure::Measure;
use super::played::Played;
use super::seat;
use super::seat::Seat;
use crate::error::{BenchError, Failure};
use crate::host::arena::{BOARD_BYTES, SharedFile};
use crate::host::missing::Missing;
use crate::process::{Child, Role};

/// A system whose ranks are processes of this program.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a new system is written as a literal of this")]
pub struct Own {
    /// The name on the command line and in results.
    pub name: &'static str,
    /// The label of rows in tables.
    pub label: &'static str,
    /// The word of `--peers` for it and its kin.
    pub family: &'static str,
    /// What sort of system this is.
    pub kind: Kind,
    /// Tells whether it has a measure.
    pub has: fn(Measure) -> bool,
    /// Shared memory that it needs for each rank, in bytes; zeroed, for use by the system. A system
    /// that shares its memory by its own means needs none.
    pub link_bytes: usize,
    /// Opens a rank in the calling process, and connects it to its neighbours. All ranks of a run do
    /// so at the same time.
    pub open: fn(&Seat) -> Result<Box<dyn PingPong>, Failure>,
}

impl Carrier for Own {
    fn name(&self) -> &'static str {
        self.name
    }

    fn label(&self) -> &'static str {
        self.label
    }

    fn family(&self) -> &'static str {
        self.family
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn has(&self, measure: Measure) -> bool {
        (self.has)(measure)
    }

    fn prepare(&self) -> Result<Box<dyn Prepared + '_>, Missing> {
        Ok(Box::new(Started { own: self }))
    }
}

/// A system of this program: there is nothing to prepare.
#[derive(Debug)]
struct Started<'a> {
    own: &'a Own,
}

impl Prepared for Started<'_> {
    fn measure(&self, run: &Run) -> Result<Vec<Played>, BenchError> {
        let meeting = Meeting::new(self.own, run.ranks).map_err(failed)?;
        let mut ranks = Vec::new();
        for rank in 0..run.ranks {
            let mut seat = meeting.seat(rank, run.cores_of(rank));
            seat.namespace = run.namespace_of(rank);
            let carrier = self.own.name.to_owned();
            let (measures, budget) = (run.measures.clone(), run.budget);
            ranks.push(Child::start(&RankPlan { carrier, seat, measures, budget })?);
        }
        let mut results = Vec::new();
        for _ in &run.measures {
            let mut ranks = ranks.iter_mut();
            let mut result = Played::default();
            if let Some(leader) = ranks.next() {
                result = played(leader, run.patience())?;
            }
            for follower in ranks {
                result.add_follower(&played(follower, run.patience())?);
            }
            results.push(result);
        }
        Ok(results)
    }
}

fn played(rank: &mut Child, patience: Duration) -> Result<Played, BenchError> {
    rank.found(patience)
}

pub(super) fn failed(failure: Failure) -> BenchError {
    BenchError::Failed { role: "rank", failure }
}

/// The memory that the ranks of a run share, and their token.
#[derive(Debug)]
pub(super) struct Meeting {
    memory: SharedFile,
    ranks: u32,
    token: u64,
}

impl Meeting {
    pub(super) fn new(own: &Own, ranks: u32) -> Result<Self, Failure> {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let count = usize::try_from(ranks).map_err(Failure::runtime)?;
        let memory = SharedFile::create(BOARD_BYTES + count * own.link_bytes)?;
        // Process ids have at most 22 bits; the rest numbers the runs of this one.
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { memory, ranks, token: run << 32 | u64::from(process::id()) })
    }

    pub(super) fn seat(&self, rank: u32, cores: Vec<usize>) -> Seat {
        let (ranks, token) = (self.ranks, self.token);
        Seat { rank, ranks, cores, memory: self.memory.path(), token, namespace: None }
    }
}

/// What one rank's process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankPlan {
    pub(super) carrier: String,
    pub(super) seat: Seat,
    pub(super) measures: Vec<Measure>,
    pub(super) budget: Duration,
}

impl Role for RankPlan {
    const NAME: &'static str = "rank";
}

/// The cores that a run of this process takes.
pub(super) fn cores() -> Vec<usize> {
    seat::cores()
}
