//! A long run under stress: everything at once, with faults, in turns of some seconds on fresh runtimes.
//!
//! In each turn, tasks yield, send through channels, ask over Unix and TCP sockets, sleep, come and go;
//! beside them, [every kind of fault](SoakReport::missing) happens. All is checked: each message arrives
//! once, each question is answered, each task ends or is cancelled once, nothing of a runtime is left
//! when it is dropped. A turn that does not end is shown, thread by thread, and ends the process.

mod actors;
mod outside;
mod tally;

use std::fs;
use std::panic;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use vigie_runtime::{BuildError, Flavor, KernelHelp, Runtime, time};

use self::actors::PLANTED;
use self::tally::{ActorContext, Expected, Fault, RuntimeState, Tally};
use crate::clock;
use crate::compute::parse_duration;
use crate::report::Table;

/// How long a turn may take beside its time before it counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A turn that exceeds its time by this much is shown with its phases.
const SLOW: Duration = Duration::from_secs(2);

/// How often the progress is shown.
const PROGRESS: Duration = Duration::from_secs(10);

/// How long to soak, and from which seed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SoakPlan {
    /// Minimum duration in minutes; at least four turns are made.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = minutes)]
    minutes: f64,
    /// Minimum number of task switches, however long they take.
    #[arg(long, value_name = "N", default_value_t = 0)]
    switches: u64,
    /// Duration of a turn; each has a runtime of its own.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    turn: Duration,
    /// Seed of the first turn; the next turns take the next numbers. Default: random, and printed.
    #[arg(long)]
    seed: Option<u64>,
}

const MINUTES_MAX: f64 = 100_000.0;

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "a number of minutes, such as 60 or 0.5")?;
    if (0.0..=MINUTES_MAX).contains(&minutes) {
        Ok(minutes)
    } else {
        Err(format!("minutes must be between 0 and {MINUTES_MAX}"))
    }
}

/// The observations of a run.
#[derive(Debug)]
pub(crate) struct SoakReport {
    /// The number of turns.
    pub(crate) turns: u64,
    /// How long they took.
    pub(crate) time: Duration,
    /// Polls of tasks.
    pub(crate) switches: u64,
    /// Violations: events that must not happen.
    pub(crate) violations: Vec<String>,
    tally: Arc<Tally>,
}

impl SoakPlan {
    /// Soaks, and shows what came of it. Returns whether all is well: nothing was wrong, and each kind of fault happened.
    pub(crate) fn run_and_show(&self) -> bool {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        println!("soak --seed {seed}");
        let report = self.run(seed, &mut |line| println!("{line}"));
        println!("\n{}", report.table());
        for violation in &report.violations {
            println!("VIOLATION: {violation}");
        }
        let missing = report.missing();
        if !missing.is_empty() {
            println!("NOT HIT: {}", missing.join(", "));
        }
        let is_fine = report.violations.is_empty() && missing.is_empty();
        println!("{}", if is_fine { "all is well" } else { "FAILED" });
        is_fine
    }

    /// Runs all turns, up to the first in which something is wrong. Each turn, and the progress every
    /// ten seconds, are passed to `say`. A turn that hangs ends the process with status 1.
    fn run(&self, first_seed: u64, say: &mut dyn FnMut(&str)) -> SoakReport {
        let time = Duration::from_secs_f64(self.minutes * 60.0);
        hide_planted_panics();
        outside::give_up_privilege();
        let tally = Arc::<Tally>::default();
        let begin = clock::now();
        let mut next_progress = begin + PROGRESS;
        let mut turns = 0;
        while turns < 4 || begin.elapsed() < time || tally.switches() < self.switches {
            let seed = first_seed.wrapping_add(turns);
            let shape = RuntimeShape::of_turn(seed);
            say(&format!("turn {turns}: --seed {seed}: {shape:?}"));
            let state = Arc::<RuntimeState>::default();
            let phases = Arc::<Phases>::default();
            let (done, is_done) = mpsc::channel();
            let turn = SoakRun {
                shape,
                time: self.turn,
                tally: Arc::clone(&tally),
                state: Arc::clone(&state),
                phases: Arc::clone(&phases),
            };
            let thread = thread::spawn(move || {
                turn.run(seed);
                let _ = done.send(());
            });
            let deadline = clock::now() + self.turn + TIMEOUT;
            loop {
                let until = next_progress.min(deadline).saturating_duration_since(clock::now());
                match is_done.recv_timeout(until) {
                    Ok(()) => break,
                    // It has panicked.
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) if clock::now() >= deadline => {
                        hang(seed, &state, &phases);
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        next_progress += PROGRESS;
                        say(&progress(begin, turns, &tally));
                    }
                }
            }
            if thread.join().is_err() {
                tally.violate("the thread of a turn panicked");
            }
            let phases = phases.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let (Some((_, first)), Some((_, last))) = (phases.first(), phases.last())
                && *last - *first > self.turn + SLOW
            {
                let since = phases.iter().map(|(name, at)| (*name, *at - *first));
                say(&format!("  slow: {:?}", since.collect::<Vec<_>>()));
            }
            turns += 1;
            if !tally.violations().is_empty() {
                break;
            }
        }
        let (switches, violations) = (tally.switches(), tally.violations());
        SoakReport { turns, time: begin.elapsed(), switches, violations, tally }
    }
}

impl SoakReport {
    /// The kinds of fault that have not happened.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let faults = Fault::ALL.into_iter();
        faults.filter(|(fault, _)| self.tally.hits(*fault) == 0).map(|(_, name)| name).collect()
    }

    /// All counters.
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new("Soak", ["what", "how often"].map(str::to_owned));
        let mut row = |name: &str, count: u64| table.row([name.to_owned(), count.to_string()]);
        row("turns", self.turns);
        row("seconds", self.time.as_secs());
        row("task switches", self.switches);
        for (name, count) in self.tally.counts() {
            row(name, count);
        }
        for (fault, name) in Fault::ALL {
            row(&format!("fault: {name}"), self.tally.hits(fault));
        }
        row("violations", self.violations.len() as u64);
        table
    }
}

/// The properties of a runtime.
#[derive(Clone, Copy, Debug)]
struct RuntimeShape {
    flavor: Flavor,
    workers: usize,
    reserve_threads: usize,
    quantum: Duration,
    has_help: bool,
    /// A long poll is one of 20 µs.
    is_tiny: bool,
}

impl RuntimeShape {
    fn random(random: &mut fastrand::Rng) -> Self {
        Self {
            flavor: Flavor::Hybrid,
            workers: random.usize(1..4),
            reserve_threads: if random.u8(..4) == 0 { random.usize(..3) } else { 64 },
            quantum: Duration::from_micros(random.u64(10..2000)),
            has_help: random.bool(),
            is_tiny: random.bool(),
        }
    }

    /// Of each four turns, two are hybrid.
    fn of_turn(seed: u64) -> Self {
        let mut shape = Self::random(&mut fastrand::Rng::with_seed(seed));
        shape.flavor = match seed % 4 {
            1 => Flavor::UserLevel,
            3 => Flavor::KernelLevel,
            _ => Flavor::Hybrid,
        };
        // On in one of the hybrid turns, off in the other.
        shape.has_help = seed % 4 != 2;
        shape
    }

    fn build(&self, tally: &Tally) -> Result<Runtime, BuildError> {
        let mut builder = Runtime::builder()
            .flavor(self.flavor)
            .workers(self.workers)
            .reserve_threads(self.reserve_threads)
            .quantum(self.quantum);
        tally.fault(if self.has_help { Fault::HelpOn } else { Fault::HelpOff });
        if !self.has_help {
            builder = builder.kernel_help(KernelHelp::NONE);
        }
        if self.is_tiny {
            tally.fault(Fault::TinyLongPoll);
            builder = builder.long_poll(Duration::from_micros(20));
        }
        builder.build()
    }
}

/// The phases of a turn, with their times.
type Phases = Mutex<Vec<(&'static str, Instant)>>;

fn enter(phases: &Phases, phase: &'static str) {
    phases.lock().unwrap_or_else(PoisonError::into_inner).push((phase, clock::now()));
}

struct SoakRun {
    shape: RuntimeShape,
    time: Duration,
    tally: Arc<Tally>,
    state: Arc<RuntimeState>,
    phases: Arc<Phases>,
}

impl SoakRun {
    fn enter(&self, phase: &'static str) {
        enter(&self.phases, phase);
    }

    fn run(&self, seed: u64) {
        self.enter("begins");
        let tally = &self.tally;
        let mut random = fastrand::Rng::with_seed(seed);
        let runtime = match self.shape.build(tally) {
            Ok(runtime) => runtime,
            Err(error) => return tally.violate(format!("no runtime: {error}")),
        };
        let context = ActorContext {
            tally: Arc::clone(tally),
            state: Arc::clone(&self.state),
            handle: runtime.handle().clone(),
        };
        let handles = match actors::enter_all(&context, &mut random) {
            Ok(handles) => handles,
            Err(error) => return tally.violate(format!("no sockets: {error}")),
        };
        let rounds = Arc::new(AtomicU64::new(0));
        let harm = {
            let (tally, state, rounds) =
                (Arc::clone(tally), Arc::clone(&self.state), Arc::clone(&rounds));
            let phases = Arc::clone(&self.phases);
            thread::spawn(move || outside::harm(&tally, &state, &phases, &rounds, &mut random))
        };
        self.enter("works");
        runtime.block_on(async {
            time::sleep(self.time).await;
            while rounds.load(Ordering::SeqCst) == 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
            self.enter("waits for its actors");
            self.state.end();
            for task in handles.tasks {
                context.enter("an actor", task.await, Expected::End);
            }
        });
        self.enter("waits for foreign threads");
        for thread in handles.threads.into_iter().chain([harm]) {
            if thread.join().is_err() {
                tally.violate("a foreign thread panicked");
            }
        }
        self.enter("ends its runtime");
        if let Err(error) = runtime.shutdown_timeout(TIMEOUT / 2) {
            tally.violate(format!("a runtime did not end: {error}"));
        }
        let (begun, gone) = self.state.tasks();
        if begun != gone {
            tally.violate(format!("{begun} tasks made, {gone} gone"));
        }
        let (broken, refused) = (&self.state.broken, &self.state.refused);
        if broken.load(Ordering::SeqCst) > refused.load(Ordering::SeqCst) {
            tally.violate(format!("{broken:?} connections broke, {refused:?} tasks were refused"));
        }
        self.enter("is over");
    }
}

fn progress(begin: Instant, turns: u64, tally: &Tally) -> String {
    let (seconds, switches) = (begin.elapsed().as_secs(), tally.switches());
    let faults: u64 = Fault::ALL.into_iter().map(|(fault, _)| tally.hits(fault)).sum();
    format!(
        "{seconds} s: {turns} turns, {switches} switches, {faults} faults, {} violations",
        tally.violations().len()
    )
}

/// Shows what hangs, and ends the process.
fn hang(seed: u64, state: &RuntimeState, phases: &Phases) -> ! {
    let (begun, gone) = state.tasks();
    let phases = phases.lock().unwrap_or_else(PoisonError::into_inner);
    let phase = phases.last().map_or("begins", |(phase, _)| *phase);
    eprintln!("HANG: --seed {seed}: the turn {phase}; {begun} tasks made, {gone} gone");
    eprintln!("  actors that have not ended: {:?}", state.present());
    eprintln!(
        "  the storm waits for {}",
        state.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    );
    for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |file| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let state = read("stat");
        let state = state.rsplit(") ").next().unwrap_or("").chars().next().unwrap_or('?');
        let (name, place, call) = (read("comm"), read("wchan"), read("syscall"));
        let call = call.split(' ').next().unwrap_or_default().trim().to_owned();
        eprintln!(
            "  thread {:?} {}: {state}, {place}, call {call}",
            thread.file_name(),
            name.trim()
        );
    }
    process::exit(1);
}

/// Silences the thousands of messages of planted panics.
fn hide_planted_panics() {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() != Some(PLANTED) {
            previous(info);
        }
    }));
}
