//! Which signals interrupt code that sleeps in the kernel.
//!
//! Question: which source may signal a thread that computes without cutting short the calls in which the
//! same thread sleeps? Prediction: a source that counts only processor time in user mode interrupts
//! nothing; a wall-clock timer interrupts sleeps that are longer than its period, or under way when it
//! fires. Method: one thread at a time, armed by each [`InterruptSource`]; calls that end early are
//! counted, out of sleeps in a row, and of sleeps that follow a computation of random length, at whose
//! end a signal may be on its way. The cost of a signal is the difference in processor time of the same
//! loop, the median over seven turns with a tenth of the period. [`ForeignCallsPlan`] makes such calls
//! inside tasks of a runtime that interrupts hogs.

mod runtime;
mod source;

use std::hint::black_box;
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{Timespec, poll};
use rustix::thread::futex;
use rustix::thread::{NanosleepRelativeResult, nanosleep};
use rustix::time::{ClockId, clock_gettime};

pub(crate) use self::runtime::ForeignCallsPlan;
pub(crate) use self::source::{ArmedSource, InterruptSource, handled};
use crate::clock::{self, nanoseconds};
use crate::compute::parse_duration;
use crate::report::Table;
use crate::statistics::median;

/// How the loop of the cost is divided.
const TURNS: usize = 7;

/// Steps of that loop in one turn.
const STEPS: u64 = 40_000_000;

/// Which sources are measured, with how many calls.
#[derive(Clone, Debug, Args)]
pub(crate) struct InterruptsPlan {
    // Calls with `SO_RCVTIMEO` last a tick of the kernel, and are a fiftieth of it.
    /// Number of sleeping calls of each kind, for each source of signals.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    calls: u32,
    /// Number of sleeping calls that each follow a computation.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    mixed: u32,
    /// Time between two signals.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_duration)]
    period: Duration,
    /// Measure only the sources whose names contain this.
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// Seed for the lengths of computations.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

/// Calls that were made, and that a signal has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted {
    /// Ended early.
    pub(crate) ended: u32,
    /// Made.
    pub(crate) calls: u32,
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.ended, self.calls)
    }
}

/// What one source did.
#[derive(Clone, Debug)]
pub(crate) struct InterruptRow {
    /// `nanosleep` of 10 to 50 µs.
    pub(crate) sleeps: Interrupted,
    /// `ppoll` of nothing for 20 µs.
    pub(crate) polls: Interrupted,
    /// A wait of 20 µs on a futex.
    pub(crate) futexes: Interrupted,
    /// `recv` with `SO_RCVTIMEO`.
    pub(crate) reads: Interrupted,
    /// `nanosleep` after a computation of up to two periods of 50 µs.
    pub(crate) mixed: Interrupted,
    /// In a loop that computes.
    pub(crate) signals_per_s: f64,
    /// Processor time of one signal, in nanoseconds; `None` if there was none.
    pub(crate) nanoseconds_per_signal: Option<f64>,
    /// Time to stop and start it again, in nanoseconds.
    pub(crate) restart: f64,
}

impl InterruptsPlan {
    /// Measures the sources one after another, and shows them.
    pub(crate) fn run(&self) -> Table {
        let sources =
            InterruptSource::ALL.into_iter().filter(|source| source.name().contains(&self.only));
        let rows: Vec<_> = sources.map(|source| (source, self.run_source(source))).collect();
        self.table(&rows)
    }

    /// Measures `source` in a thread of its own.
    ///
    /// # Errors
    /// What the kernel refused.
    ///
    /// # Panics
    /// Panics if no thread can be made.
    fn run_source(&self, source: InterruptSource) -> io::Result<InterruptRow> {
        std::thread::scope(|scope| {
            scope.spawn(|| self.measure(source)).join().expect("invariant: nothing here panics")
        })
    }

    fn measure(&self, source: InterruptSource) -> io::Result<InterruptRow> {
        // Without it, the kernel lets each short sleep last 50 µs longer.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut count = |calls: u32, call: &mut dyn FnMut(&mut fastrand::Rng) -> bool| {
            let ended = (0..calls).filter(|_| call(&mut random)).count();
            Interrupted { ended: u32::try_from(ended).unwrap_or(u32::MAX), calls }
        };
        let armed = source.arm(self.period)?;
        let sleeps = count(self.calls, &mut |random| is_cut_short(random.u32(10_000..50_000)));
        let polls = count(self.calls, &mut |_| {
            matches!(poll(&mut [], Some(&micros(20))), Err(rustix::io::Errno::INTR))
        });
        let word = AtomicU32::new(0);
        let futexes = count(self.calls, &mut |_| {
            let waited = futex::wait(&word, futex::Flags::PRIVATE, 0, Some(&micros(20)));
            matches!(waited, Err(rustix::io::Errno::INTR))
        });
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(1)))?;
        let reads = count((self.calls / 50).max(1), &mut |_| {
            socket.recv(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::Interrupted)
        });
        let begin = clock::now();
        let before = handled();
        while begin.elapsed() < Duration::from_secs(1) {
            black_box(compute(10_000));
        }
        let signals_per_s = (handled() - before) as f64 / begin.elapsed().as_secs_f64();
        let restart = restart_time(&armed);
        drop(armed);

        // Often, so that many fall upon the end of a computation.
        let often = Duration::from_micros(50);
        let armed = source.arm(often)?;
        let mixed = count(self.mixed, &mut |random| {
            let end = clock::now() + Duration::from_nanos(random.u64(0..2 * nanoseconds(often)));
            while clock::now() < end {}
            is_cut_short(10_000)
        });
        drop(armed);
        let nanoseconds_per_signal = self.cost(source)?;
        Ok(InterruptRow {
            sleeps,
            polls,
            futexes,
            reads,
            mixed,
            signals_per_s,
            nanoseconds_per_signal,
            restart,
        })
    }

    /// Compares the loop with and without signals, in turns.
    fn cost(&self, source: InterruptSource) -> io::Result<Option<f64>> {
        let mut costs = Vec::new();
        for _ in 0..TURNS {
            let without = loop_time();
            let armed = source.arm(self.period / 10)?;
            let before = handled();
            let with = loop_time();
            let signals = handled() - before;
            drop(armed);
            if signals > 0 {
                costs.push((with - without) / signals as f64);
            }
        }
        Ok(median(&costs))
    }

    /// Shows the rows; a source that the kernel refused has its reason there.
    fn table(&self, rows: &[(InterruptSource, io::Result<InterruptRow>)]) -> Table {
        let headings = [
            "source",
            "nanosleep",
            "ppoll",
            "futex",
            "recv",
            "mixed",
            "signals/s",
            "ns a signal",
            "ns off and on",
        ];
        let title = format!(
            "Calls that ended with EINTR; a signal every {:?}, mixed every 50µs (seed {})",
            self.period, self.seed
        );
        let mut table = Table::new(title, headings.map(str::to_owned));
        for (source, row) in rows {
            let name = source.name().to_owned();
            match row {
                Err(error) => table.row([name, error.to_string()]),
                Ok(row) => table.row([
                    name,
                    row.sleeps.to_string(),
                    row.polls.to_string(),
                    row.futexes.to_string(),
                    row.reads.to_string(),
                    row.mixed.to_string(),
                    format!("{:.0}", row.signals_per_s),
                    row.nanoseconds_per_signal.map_or_else(|| "–".into(), |ns| format!("{ns:.0}")),
                    format!("{:.0}", row.restart),
                ]),
            }
        }
        table
    }
}

/// Sleeps, and returns whether a signal ended it.
fn is_cut_short(nanos: u32) -> bool {
    let time = Timespec { tv_sec: 0, tv_nsec: i64::from(nanos) };
    matches!(nanosleep(&time), NanosleepRelativeResult::Interrupted(_))
}

const fn micros(micros: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: micros * 1_000 }
}

fn compute(steps: u64) -> u64 {
    (0..steps).fold(0, |sum, step| black_box(sum ^ step))
}

/// Returns the processor time of one turn of the loop, in nanoseconds.
fn loop_time() -> f64 {
    let time = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let begin = time();
    black_box(compute(STEPS));
    time() - begin
}

fn restart_time(armed: &ArmedSource) -> f64 {
    const RESTARTS: u32 = 10_000;
    let begin: Instant = clock::now();
    for _ in 0..RESTARTS {
        armed.restart();
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(RESTARTS)
}
