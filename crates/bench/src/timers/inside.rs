//! The process whose timers are measured.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use vigie_runtime::time as vigie;

use super::{TimerFigures, TimerLoad, TimerPlan};
use crate::clock::{self, nanoseconds};
use crate::error::Failure;
use crate::host::Usage;
use crate::host::realtime::{self, Priority};
use crate::process::print_result;
use crate::schedulers::System;
use crate::system;
use crate::system::AsyncSystem;
use crate::system::tokio::{Tokio, TokioCurrentThread, TokioMultiThread};
use crate::system::vigie::{Setting, Vigie, VigieHybrid, VigieUserLevel};

/// How long timers run before anything is counted.
const WARM_UP: Duration = Duration::from_millis(300);

/// The lateness of one timer in this many is recorded.
const LATENESS_ONE_IN: u64 = 16;

/// The most times that are kept of one task.
const KEPT_MAX: usize = 50_000;

/// An echo, then a pause of this and up to twice as much.
const PAUSE_US: u64 = 500;

/// Timers as programs use them.
trait TimerSystem: AsyncSystem {
    /// Sleeps for `time`, with a slack where there is such a thing.
    fn sleep_with(time: Duration, slack: Option<Duration>) -> impl Future<Output = ()> + Send;

    /// Waits for a deadline that passed a millisecond ago.
    fn sleep_until_past() -> impl Future<Output = ()> + Send;
}

/// How long ago.
const AGO: Duration = Duration::from_millis(1);

impl<S: Setting> TimerSystem for Vigie<S> {
    async fn sleep_with(time: Duration, slack: Option<Duration>) {
        let sleep = vigie::sleep(time);
        match slack {
            Some(slack) => sleep.slack(slack).await,
            None => sleep.await,
        }
    }

    async fn sleep_until_past() {
        let now = vigie_detect::Instant::now().as_nanos();
        vigie::sleep_until(vigie_detect::Instant::from_nanos(now - nanoseconds(AGO))).await;
    }
}

impl<S: system::tokio::Scheduler> TimerSystem for Tokio<S> {
    async fn sleep_with(time: Duration, _: Option<Duration>) {
        tokio::time::sleep(time).await;
    }

    async fn sleep_until_past() {
        tokio::time::sleep_until(tokio::time::Instant::now() - AGO).await;
    }
}

/// The progress of the tasks.
#[derive(Debug, Default)]
struct Seen {
    fired: AtomicU64,
    lateness_ns: Mutex<Vec<u64>>,
}

impl Seen {
    fn note(&self, deadline: Instant, count: u64) {
        self.fired.fetch_add(1, Ordering::Relaxed);
        if count.is_multiple_of(LATENESS_ONE_IN) {
            let late = clock::now().saturating_duration_since(deadline);
            let mut all = self.lateness_ns.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() < KEPT_MAX {
                all.push(nanoseconds(late));
            }
        }
    }
}

/// Measures in this process, and prints it for the parent.
pub(crate) fn run_here(plan: &TimerPlan) -> Result<(), Failure> {
    let figures = match plan.system {
        System::Vigie => run::<VigieHybrid>(*plan),
        System::VigieUserLevel => run::<VigieUserLevel>(*plan),
        System::Tokio => run::<TokioMultiThread>(*plan),
        System::TokioCurrentThread => run::<TokioCurrentThread>(*plan),
        other => Err(Failure::unsupported(other, "its timers are not measured")),
    }?;
    print_result(&figures);
    Ok(())
}

fn run<S: TimerSystem>(plan: TimerPlan) -> Result<TimerFigures, Failure> {
    let system = S::start(plan.workers)?;
    system.block_on(async move {
        let (listener, address) = S::listen().map_err(Failure::io("listening on 127.0.0.1"))?;
        let seen = Arc::new(Seen::default());
        let slack = plan.slack_us.map(Duration::from_micros);
        let mut random = fastrand::Rng::with_seed(plan.seed);
        match plan.load {
            TimerLoad::Periodic => {
                start::<S>(100, &seen, slack, || Duration::from_millis(1));
            }
            TimerLoad::Beside => {
                start::<S>(2_000, &seen, slack, || Duration::from_micros(100));
            }
            TimerLoad::One => {
                let period = move || Duration::from_micros(random.u64(1_000..2_000));
                start::<S>(1, &seen, slack, period);
            }
            TimerLoad::Past => return Ok(S::call(wait_for_the_past::<S>(plan.time)).await),
        }
        // Counts and echoes from a plain thread: it is not part of the runtime.
        let observer = thread::spawn(move || observe(&plan, &seen, address));
        if plan.load == TimerLoad::Beside {
            let stream = S::accept(&listener).await.map_err(Failure::io("accepting"))?;
            S::spawn(system::echo::<S>(stream));
        }
        while !observer.is_finished() {
            S::sleep(Duration::from_millis(100)).await;
        }
        let observed = observer.join().expect("an observer never panics");
        observed.map_err(Failure::io("exchanging a message"))
    })
}

/// Starts `tasks` that sleep again and again, each for a time that its own `period` gives.
fn start<S: TimerSystem>(
    tasks: u32,
    seen: &Arc<Seen>,
    slack: Option<Duration>,
    period: impl FnMut() -> Duration + Clone + Send + 'static,
) {
    for task in 0..tasks {
        let (seen, mut period) = (Arc::clone(seen), period.clone());
        S::spawn(async move {
            for count in u64::from(task).. {
                let period = period();
                let deadline = clock::now() + period;
                S::sleep_with(period, slack).await;
                seen.note(deadline, count);
            }
        });
    }
}

/// Waits for deadlines that passed a millisecond ago, for `time`.
async fn wait_for_the_past<S: TimerSystem>(time: Duration) -> TimerFigures {
    let (begin, usage) = (clock::now(), Usage::of_this_process());
    let mut reaction_ns = Vec::with_capacity(KEPT_MAX);
    let mut fired = 0;
    while begin.elapsed() < time {
        let before = clock::now();
        S::sleep_until_past().await;
        let taken = before.elapsed();
        fired += 1;
        if reaction_ns.len() < KEPT_MAX {
            reaction_ns.push(nanoseconds(taken));
        }
    }
    let spent = Usage::of_this_process().since(usage);
    TimerFigures {
        fired,
        cpu_ns: spent.cpu_ns,
        elapsed_ns: spent.at_ns,
        lateness_ns: Vec::new(),
        reaction_ns,
        priority: Priority::Spinning,
    }
}

/// Waits until the load runs, and tells what it did in the time that follows; sends messages meanwhile if
/// there is a task to echo them.
fn observe(plan: &TimerPlan, seen: &Seen, address: SocketAddr) -> io::Result<TimerFigures> {
    let priority = realtime::raise();
    let stream =
        (plan.load == TimerLoad::Beside).then(|| TcpStream::connect(address)).transpose()?;
    clock::sleep(WARM_UP);
    let lateness = || {
        let mut all = seen.lateness_ns.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *all)
    };
    drop(lateness());
    let (usage, fired) = (Usage::of_this_process(), seen.fired.load(Ordering::Relaxed));
    let reaction_ns = match stream {
        Some(stream) => echoes(stream, plan)?,
        None => {
            clock::sleep(plan.time);
            Vec::new()
        }
    };
    let spent = Usage::of_this_process().since(usage);
    Ok(TimerFigures {
        fired: seen.fired.load(Ordering::Relaxed) - fired,
        cpu_ns: spent.cpu_ns,
        elapsed_ns: spent.at_ns,
        lateness_ns: lateness(),
        reaction_ns,
        priority,
    })
}

/// Sends messages one by one, and returns how long each took.
fn echoes(mut stream: TcpStream, plan: &TimerPlan) -> io::Result<Vec<u64>> {
    stream.set_nodelay(true)?;
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let mut taken = Vec::new();
    let begin = clock::now();
    while begin.elapsed() < plan.time {
        clock::sleep(Duration::from_micros(random.u64(PAUSE_US..3 * PAUSE_US)));
        let (before, mut message) = (clock::now(), [0; 8]);
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        taken.push(nanoseconds(before.elapsed()));
    }
    Ok(taken)
}
