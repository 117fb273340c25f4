//! What a switch between tasks costs beside time: allocations and system calls.
//!
//! Two tasks that yield to each other, or one that waits for a socket again and again, run in a
//! process with a counting allocator; the same process under `strace -c` shows the system calls.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::child::{Child, Message, Role};
use crate::clock;
use crate::counting;
use crate::error::{BenchError, Failure};
use crate::progress::Progress;
use crate::report::{Outcome, Row};
use crate::strace::Trace;
use crate::system::{AsyncSystem, System};
use crate::workload;

/// Name of the case in rows.
pub const CASE: &str = "switches";

/// Switches or waits before counting begins: tables and queues have their size by then.
const WARM_UP: u64 = 10_000;

/// How long counting may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SwitchKind {
    /// Two tasks yield, turn by turn.
    Yield,
    /// A task echoes what a plain thread sends: each message is a wait, a wake-up and a poll.
    Wait,
}

impl SwitchKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Yield => "yield",
            Self::Wait => "wait",
        }
    }
}

/// Which systems have their switches and waits counted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SwitchesPlan {
    /// The systems.
    pub systems: Vec<System>,
    /// Switches per system.
    pub switches: u64,
    /// Waits per system.
    pub waits: u64,
}

impl SwitchesPlan {
    /// Plans 200 000 switches and 20 000 waits.
    #[must_use]
    pub const fn new(systems: Vec<System>) -> Self {
        Self { systems, switches: 200_000, waits: 20_000 }
    }

    /// Counts on each system, in processes of their own; system calls only where strace is installed.
    ///
    /// # Errors
    /// Those of [`SwitchPlan::count`].
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let can_trace = Trace::is_possible();
        let mut outcome = Outcome::default();
        for &system in &self.systems {
            progress.case(format!("{system}, switches"));
            for (kind, switches) in
                [(SwitchKind::Yield, self.switches), (SwitchKind::Wait, self.waits)]
            {
                let plan = SwitchPlan::new(system, kind, switches);
                let counts = plan.count()?;
                let mut row = Row::new(system, CASE)
                    .parameter("kind", kind.name())
                    .with_figure("switches", counts.switches)
                    .with_figure("allocations", counts.allocations)
                    .with_figure(
                        "ns_per_switch",
                        counts.elapsed.as_nanos() as f64 / switches as f64,
                    );
                if can_trace && kind == SwitchKind::Yield {
                    // What the process does before and after, it does in the empty run as well.
                    let beside = SwitchPlan::new(system, kind, 0).system_calls()?;
                    let calls = plan.system_calls()?.saturating_sub(beside);
                    row = row.with_figure("system_calls", calls);
                }
                outcome.rows.push(row);
            }
            progress.case_done();
        }
        Ok(outcome)
    }
}

/// How often which tasks switch, on which system.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[must_use = "a plan counts nothing before `count`"]
pub struct SwitchPlan {
    pub(crate) system: System,
    pub(crate) kind: SwitchKind,
    pub(crate) switches: u64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SwitchCounts {
    /// Switches, or waits.
    pub switches: u64,
    /// Allocations of the whole process during them.
    pub allocations: u64,
    /// Time that they took.
    pub elapsed: Duration,
}

impl SwitchPlan {
    /// Plans `switches` switches of `kind` on `system`.
    pub const fn new(system: System, kind: SwitchKind, switches: u64) -> Self {
        Self { system, kind, switches }
    }

    /// Counts in a process of its own.
    ///
    /// # Errors
    /// [`Failure::Unsupported`] if this program has no counting allocator; others if the process
    /// fails.
    pub fn count(&self) -> Result<SwitchCounts, BenchError> {
        self.count_under(&[])
    }

    /// Counts the system calls of the whole process, its start included, with `strace`.
    ///
    /// # Errors
    /// [`BenchError::Start`] if there is no strace.
    pub fn system_calls(&self) -> Result<u64, BenchError> {
        let trace = Trace::new();
        self.count_under(&trace.counting())?;
        trace.total_calls()
    }

    fn count_under(&self, wrapper: &[String]) -> Result<SwitchCounts, BenchError> {
        let mut child = Child::start_under(wrapper, &Role::Switches(*self))?;
        let counts = match child.next(PATIENCE)? {
            Message::Switches(counts) => counts,
            other => return Err(child.unexpected(&other)),
        };
        // The child says that it ends, then ends; strace writes its summary after that.
        while child.next(PATIENCE).is_ok() {}
        Ok(counts)
    }
}

/// Counts in this process, and prints it for the parent.
pub(crate) fn count_here(plan: &SwitchPlan) -> Result<(), Failure> {
    if !counting::is_counting() {
        return Err(Failure::Unsupported {
            system: plan.system.name().to_owned(),
            reason: "this program has no counting allocator; run the command `vigie-bench`"
                .to_owned(),
        });
    }
    let counts = plan.system.runner().map_err(Failure::runtime)?.switch(plan)?;
    Message::Switches(counts).print();
    Ok(())
}

/// Makes the tasks of `plan` switch on `S`.
pub(crate) fn run<S: AsyncSystem>(plan: &SwitchPlan) -> Result<SwitchCounts, Failure> {
    let system = S::start(1)?;
    let plan = *plan;
    system.block_on(async move {
        match plan.kind {
            SwitchKind::Yield => Ok(S::call(run_yields::<S>(plan.switches)).await),
            SwitchKind::Wait => run_waits::<S>(plan.switches).await,
        }
    })
}

async fn run_yields<S: AsyncSystem>(switches: u64) -> SwitchCounts {
    // The partner outlives the counting; it ends with the process.
    S::spawn(async {
        loop {
            S::yield_now().await;
        }
    });
    for _ in 0..WARM_UP {
        S::yield_now().await;
    }
    let before = Counter::start();
    for _ in 0..switches / 2 {
        S::yield_now().await;
    }
    before.stop(switches)
}

async fn run_waits<S: AsyncSystem>(waits: u64) -> Result<SwitchCounts, Failure> {
    let (listener, address) = S::listen().map_err(Failure::io("listening on 127.0.0.1"))?;
    let pinger = thread::spawn(move || ping(address, waits));
    let stream = S::accept(&listener).await.map_err(Failure::io("accepting"))?;
    // The echo ends when the pinger closes its socket, and the pinger is done then.
    S::call(workload::echo::<S>(stream)).await;
    let counts = pinger.join().expect("a pinger never panics");
    counts.map_err(Failure::io("exchanging a message"))
}

/// Sends from a plain thread, which allocates nothing itself.
fn ping(address: SocketAddr, waits: u64) -> io::Result<SwitchCounts> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut exchange = |count: u64| -> io::Result<()> {
        let mut message = [0; 8];
        for _ in 0..count {
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
        }
        Ok(())
    };
    exchange(WARM_UP.min(waits))?;
    let before = Counter::start();
    exchange(waits)?;
    Ok(before.stop(waits))
}

struct Counter {
    allocations: u64,
    start: Instant,
}

impl Counter {
    fn start() -> Self {
        Self { allocations: counting::allocations(), start: clock::now() }
    }

    fn stop(self, switches: u64) -> SwitchCounts {
        let elapsed = self.start.elapsed();
        SwitchCounts { switches, allocations: counting::allocations() - self.allocations, elapsed }
    }
}
