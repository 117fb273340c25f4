//! Tasks that switch, in a process that counts what that costs.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::counting;
use crate::error::Failure;
use crate::schedulers::System;
use crate::system::{self, AsyncSystem};

/// Switches or waits before counting begins: tables and queues have their size by then.
const WARM_UP: u64 = 10_000;

/// The work of the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SwitchKind {
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

/// How often which tasks switch, on which system.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[must_use = "a plan counts nothing before `count`"]
pub(crate) struct SwitchPlan {
    pub(crate) system: System,
    pub(crate) kind: SwitchKind,
    pub(crate) switches: u64,
}

/// The counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SwitchCounts {
    /// Switches, or waits.
    pub(crate) switches: u64,
    /// Allocations of the whole process during them.
    pub(crate) allocations: u64,
    /// Time that they took.
    pub(crate) elapsed: Duration,
}

impl SwitchPlan {
    /// Plans `switches` switches of `kind` on `system`.
    pub(crate) const fn new(system: System, kind: SwitchKind, switches: u64) -> Self {
        Self { system, kind, switches }
    }
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
    let before = SwitchCounter::start();
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
    S::call(system::echo::<S>(stream)).await;
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
    let before = SwitchCounter::start();
    exchange(waits)?;
    Ok(before.stop(waits))
}

struct SwitchCounter {
    allocations: u64,
    start: Instant,
}

impl SwitchCounter {
    fn start() -> Self {
        Self { allocations: counting::allocations(), start: clock::now() }
    }

    fn stop(self, switches: u64) -> SwitchCounts {
        let elapsed = self.start.elapsed();
        SwitchCounts { switches, allocations: counting::allocations() - self.allocations, elapsed }
    }
}
