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

use clap::Args;
use rustix::event::poll;
use rustix::thread::futex;
use vigie_runtime::{Runtime, metrics::Metrics};

use super::{Interrupted, is_cut_short, micros};
use crate::clock;
use crate::error::{BenchError, Failure};
use crate::report::{Outcome, Plan, Progress, Row, Show, table};
use crate::schedulers::System;
use crate::system;
use crate::system::Sockets;
use crate::system::vigie::VigieHybrid;

/// Name of the case in rows.
pub(crate) const CASE: &str = "foreign-calls";

/// Key of the number of calls that a signal ended.
pub(crate) const ENDED: &str = "ended_early";

/// How long each call sleeps, in microseconds.
const SLEEP_US: u32 = 200;

/// One call in this many is a `recv`, which sleeps for a tick of the kernel.
const RECEIVE_ONE_IN: u64 = 64;

/// A task computes for up to so long before a call.
const COMPUTE_US_MAX: u64 = 100;

/// Tasks that make calls.
const TASKS: u32 = 32;

/// Tasks that never yield.
const HOGS: u32 = 2;

/// Worker threads.
const WORKERS: usize = 2;

/// The number of foreign calls.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ForeignCallsPlan {
    /// Instead of sources, count how many of N sleeping system calls inside tasks end early, beside tasks that never yield
    /// (a minute for a million).
    #[arg(long = "runtime", value_name = "N", conflicts_with_all = ["calls", "mixed", "period", "only"])]
    foreign: Option<u64>,
}

/// State shared by tasks and hogs.
#[derive(Debug, Default)]
struct CallCounters {
    made: AtomicU64,
    ended: AtomicU64,
    is_over: AtomicBool,
}

impl Plan for ForeignCallsPlan {
    fn cases(&self) -> usize {
        1
    }

    /// Makes the calls on a hybrid runtime in this process.
    fn run(&self, seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        progress.case("foreign calls beside hogs");
        let failed = |failure| BenchError::Failed { role: "foreign calls", failure };
        let begin = clock::now();
        let (found, metrics, echoes) = self.measure(seed).map_err(failed)?;
        let row = Row::new(System::Vigie, CASE)
            .parameter("tasks", TASKS)
            .parameter("hogs", HOGS)
            .parameter("workers", WORKERS)
            .with_figure("samples", found.calls)
            .with_figure(ENDED, found.ended)
            .with_figure("seconds", begin.elapsed().as_secs_f64())
            .with_figure("echoes", echoes)
            .with_figure("reserve_calls", metrics.reserve.map_or(0, |reserve| reserve.calls))
            .with_figure("long_polls", metrics.long_polls);
        progress.case_done();
        Ok(Outcome { rows: vec![row], priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        let title = format!(
            "Foreign calls in {TASKS} tasks of the hybrid flavor, beside {HOGS} hogs and an echo"
        );
        let columns = [
            ("calls", Show::Count("samples")),
            ("ended early", Show::Count(ENDED)),
            ("seconds", Show::Count("seconds")),
            ("echoes", Show::Count("echoes")),
            ("reserve calls", Show::Count("reserve_calls")),
            ("long polls", Show::Count("long_polls")),
        ];
        table(&title, rows, &columns)
    }
}

impl ForeignCallsPlan {
    /// Tells whether foreign calls were asked for.
    pub(crate) const fn is_asked(&self) -> bool {
        self.foreign.is_some()
    }

    fn measure(self, seed: u64) -> Result<(Interrupted, Metrics, u64), Failure> {
        let runtime = Runtime::builder().workers(WORKERS).build().map_err(Failure::runtime)?;
        let shared = Arc::new(CallCounters::default());
        for _ in 0..HOGS {
            let shared = Arc::clone(&shared);
            runtime.spawn(async move { hog(&shared) }).detach();
        }
        let count = self.foreign.unwrap_or_default();
        let calls = (0..TASKS).map(|task| {
            let shared = Arc::clone(&shared);
            let random = fastrand::Rng::with_seed(seed ^ u64::from(task));
            runtime.spawn(async move { call_again_and_again(count, &shared, random).await })
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
}

/// Computes without a yield until the calls are made.
fn hog(shared: &CallCounters) {
    while !shared.is_over.load(Ordering::Relaxed) {
        black_box(super::compute(10_000));
    }
}

async fn call_again_and_again(
    count: u64,
    shared: &CallCounters,
    mut random: fastrand::Rng,
) -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_millis(1)))?;
    loop {
        let number = shared.made.fetch_add(1, Ordering::Relaxed);
        if number >= count {
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
