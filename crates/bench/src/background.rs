//! Foreign processes, as on a machine that a server shares: each computes for ever on one thread,
//! at ordinary priority.

use std::process;
use std::time::Duration;

use crate::process::{Child, Message, Role};
use serde::{Deserialize, Serialize};

use crate::compute::counted;
use crate::error::{BenchError, Failure};
use crate::host::Usage;

/// How long one step of it is: it never yields, so the length says nothing.
const STEP: Duration = Duration::from_secs(1);

/// The plan of such a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct BackgroundPlan;

impl Role for BackgroundPlan {
    const NAME: &'static str = "outside";
}

/// Computes until the process is killed.
pub(crate) fn compute(BackgroundPlan: BackgroundPlan) -> Result<(), Failure> {
    Message::Computing { process: process::id() }.print();
    loop {
        counted(STEP);
    }
}

/// Some processes that compute; dropping them kills them.
#[derive(Debug)]
pub(crate) struct BackgroundLoad {
    children: Vec<Child>,
}

impl BackgroundLoad {
    /// Starts `count` processes.
    pub(crate) fn start(count: u32) -> Result<Self, BenchError> {
        let children = (0..count).map(|_| Child::start_computing(&BackgroundPlan));
        Ok(Self { children: children.collect::<Result<_, _>>()? })
    }

    /// Returns what each has used so far.
    pub(crate) fn usage(&mut self) -> Result<Vec<Usage>, BenchError> {
        self.children.iter_mut().map(Child::usage).collect()
    }
}
