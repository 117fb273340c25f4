//! Foreign calls inside tasks of a runtime that defends itself against hogs: how many end early.
//!
//! Question: does the help against hogs cut short calls of code that knows nothing of it? Prediction:
//! none, with any source of signals, since only computing threads are signalled. Method: tasks of the
//! hybrid flavor compute for up to 0.3 ms and then call what a driver or a C library calls
//! (`nanosleep`, `ppoll`, a futex with a time-out, `recv` with `SO_RCVTIMEO`), again and again, each on
//! the thread that polls it; others never yield, and a connection brings events, so that reserve
//! threads serve and hogs are asked to yield. Calls that end in `EINTR` are counted.

use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::poll;
use rustix::thread::futex;
use vigie_runtime::{Runtime, metrics::Metrics};

use super::{Interrupted, is_cut_short, micros};
use crate::clock;
use crate::error::{BenchError, Failure};
use crate::report::progress::Progress;
use crate::report::table::Table;
use crate::report::{Outcome, Row};
use crate::schedulers::System;
use crate::system;
use crate::system::AsyncSystem;
use crate::system::vigie::VigieHybrid;

/// Name of the case in rows.
pub const CASE: &str = "foreign-calls";

/// Key of the number of calls that a signal ended.
pub const ENDED: &str = "ended_early";

/// How long each call sleeps, in microseconds.
const SLEEP_US: u32 = 200;

/// One call in this many is a `recv`, which sleeps for a tick of the kernel.
const RECEIVE_ONE_IN: u64 = 64;

/// A task computes for up to so long before a call.
const COMPUTE_US_MAX: u64 = 100;

/// The number of foreign calls, and their callers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ForeignCallsPlan {
    /// Calls in all.
    pub calls: u64,
    /// Tasks that make them.
    pub tasks: u32,
    /// Tasks that never yield.
    pub hogs: u32,
    /// Worker threads.
    pub workers: usize,
    /// Seed of all chance.
    pub seed: u64,
}

impl Default for ForeignCallsPlan {
    fn default() -> Self {
        Self { calls: 1_000_000, tasks: 32, hogs: 2, workers: 2, seed: 0 }
    }
}

/// State shared by tasks and hogs.
#[derive(Debug, Default)]
struct CallCounters {
    made: AtomicU64,
    ended: AtomicU64,
    is_over: AtomicBool,
}

impl ForeignCallsPlan {
    /// Makes the calls on a hybrid runtime in this process.
    ///
    /// # Errors
    /// What the kernel or the runtime refused.
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        progress.case("foreign calls beside hogs");
        let failed = |failure| BenchError::Failed { role: "foreign calls", failure };
        let begin = clock::now();
        let (found, metrics, echoes) = self.measure().map_err(failed)?;
        let row = Row::new(System::Vigie, CASE)
            .parameter("tasks", self.tasks)
            .parameter("hogs", self.hogs)
            .parameter("workers", self.workers)
            .with_figure("samples", found.calls)
            .with_figure(ENDED, found.ended)
            .with_figure("seconds", begin.elapsed().as_secs_f64())
            .with_figure("echoes", echoes)
            .with_figure("reserve_calls", metrics.reserve.map_or(0, |reserve| reserve.calls))
            .with_figure("long_polls", metrics.long_polls);
        progress.case_done();
        let mut outcome = Outcome::default();
        outcome.rows.push(row);
        Ok(outcome)
    }

    fn measure(&self) -> Result<(Interrupted, Metrics, u64), Failure> {
        let runtime = Runtime::builder().workers(self.workers).build().map_err(Failure::runtime)?;
        let shared = Arc::new(CallCounters::default());
        for _ in 0..self.hogs {
            let shared = Arc::clone(&shared);
            runtime.spawn(async move { hog(&shared) }).detach();
        }
        let plan = *self;
        let calls = (0..self.tasks).map(|task| {
            let shared = Arc::clone(&shared);
            let random = fastrand::Rng::with_seed(plan.seed ^ u64::from(task));
            runtime.spawn(async move { call_again_and_again(&plan, &shared, random).await })
        });
        let calls: Vec<_> = calls.collect();
        let (done, echoes) = runtime.block_on(async {
            let (listener, address) =
                VigieHybrid::listen().map_err(Failure::io("listening on 127.0.0.1"))?;
            let over = Arc::clone(&shared);
            let pinger = thread::spawn(move || ping(TcpStream::connect(address)?, &over));
            let stream = VigieHybrid::accept(&listener).await.map_err(Failure::io("accepting"))?;
            vigie_runtime::spawn(system::echo::<VigieHybrid>(stream)).detach();
            let mut done = Ok(());
            for call in calls {
                let ended = call.await.map_err(Failure::runtime)?;
                if let Err(error) = ended {
                    done = Err(Failure::io("making a foreign call")(error));
                }
            }
            shared.is_over.store(true, Ordering::Relaxed);
            let echoes = pinger.join().expect("a pinger never panics");
            Ok((done, echoes.map_err(Failure::io("exchanging a message"))?))
        })?;
        done?;
        let load =
            |count: &AtomicU64| u32::try_from(count.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let found = Interrupted { ended: load(&shared.ended), calls: load(&shared.made) };
        Ok((found, runtime.handle().metrics(), echoes))
    }

    /// Shows what was found.
    pub fn table(&self, rows: &[Row]) -> Table {
        let headings = ["calls", "ended early", "seconds", "echoes", "reserve calls", "long polls"];
        let title = format!(
            "Foreign calls in {} tasks of the hybrid flavor, beside {} hogs and an echo",
            self.tasks, self.hogs
        );
        let mut table = Table::new(title, headings.map(str::to_owned));
        for row in rows {
            let keys = ["samples", ENDED, "seconds", "echoes", "reserve_calls", "long_polls"];
            table.row(keys.map(|key| format!("{:.0}", row.figure(key).unwrap_or(f64::NAN))));
        }
        table
    }
}

/// Computes without a yield until the calls are made.
fn hog(shared: &CallCounters) {
    while !shared.is_over.load(Ordering::Relaxed) {
        black_box(super::compute(10_000));
    }
}

async fn call_again_and_again(
    plan: &ForeignCallsPlan,
    shared: &CallCounters,
    mut random: fastrand::Rng,
) -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_millis(1)))?;
    loop {
        let number = shared.made.fetch_add(1, Ordering::Relaxed);
        if number >= plan.calls {
            shared.made.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        // A signal that is on its way when the call begins is the hard case.
        let computing = Duration::from_micros(random.u64(0..COMPUTE_US_MAX));
        let end = clock::now() + computing;
        while clock::now() < end {}
        if call(number, &socket) {
            shared.ended.fetch_add(1, Ordering::Relaxed);
        }
        // Polls of several calls each: a hog's signals are started for long ones.
        if number.is_multiple_of(16) {
            vigie_runtime::yield_now().await;
        }
    }
}

/// Makes one call that sleeps. Returns whether a signal ended it.
fn call(number: u64, socket: &UdpSocket) -> bool {
    if number.is_multiple_of(RECEIVE_ONE_IN) {
        let received = socket.recv(&mut [0]);
        return received.is_err_and(|error| error.kind() == ErrorKind::Interrupted);
    }
    match number % 3 {
        0 => is_cut_short(SLEEP_US * 1_000),
        1 => {
            matches!(poll(&mut [], Some(&micros(SLEEP_US.into()))), Err(rustix::io::Errno::INTR))
        }
        _ => {
            let word = AtomicU32::new(0);
            let timeout = micros(SLEEP_US.into());
            let waited = futex::wait(&word, futex::Flags::PRIVATE, 0, Some(&timeout));
            matches!(waited, Err(rustix::io::Errno::INTR))
        }
    }
}

/// Sends a message every millisecond until the calls are made. Returns how many came back.
fn ping(mut stream: TcpStream, shared: &CallCounters) -> io::Result<u64> {
    stream.set_nodelay(true)?;
    let mut echoes = 0;
    while !shared.is_over.load(Ordering::Relaxed) {
        let mut message = [0; 8];
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        echoes += 1;
        clock::sleep(Duration::from_millis(1));
    }
    Ok(echoes)
}
