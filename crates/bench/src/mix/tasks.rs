//! The server of a load on an async runtime: each behaviour as tasks.

use std::future;
use std::io;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::behaviour::{Behaviour, Stage};
use super::call::BlockingLock;
use super::server::LoadServer;
use super::wire::{HELLO_BYTES, Hello, REQUEST_BYTES, Request};
use crate::clock;
use crate::compute::{Pace, note_operation};
use crate::error::Failure;
use crate::host::limits;
use crate::inside;
use crate::process::Message;
use crate::system::{AsyncSystem, fill};

/// Serves `plan` on `S` until the process is killed.
pub(crate) fn serve<S: AsyncSystem>(plan: &LoadServer) -> Result<(), Failure> {
    limits::allow_connections(plan.descriptors())?;
    let system = S::start(plan.workers)?;
    let plan = plan.clone();
    system.block_on(async move {
        inside::take_note();
        let (listener, echo) = S::listen().map_err(Failure::io("listening on 127.0.0.1"))?;
        let server = Arc::new(TaskServer::start::<S>(plan));
        // As a task, since a program's acceptor is one.
        S::spawn(async move {
            loop {
                match S::accept(&listener).await {
                    Ok(stream) => S::spawn(handle::<S>(stream, Arc::clone(&server))),
                    Err(error) => eprintln!("accepting: {error}"),
                }
            }
        });
        Message::Listening { process: process::id(), echo, control: None }.print();
        future::pending().await
    })
}

/// State shared by the handlers.
struct TaskServer {
    plan: LoadServer,
    /// For each behaviour: the tasks of its first stage.
    stages: Vec<Vec<mpsc::UnboundedSender<StageJob>>>,
    /// For each behaviour: the task that is woken.
    woken: Vec<Option<mpsc::UnboundedSender<WakeProbe>>>,
}

/// A request on its way through stages.
struct StageJob {
    number: usize,
    done: oneshot::Sender<()>,
}

/// The instant of a wake-up, and where to say how long it took.
struct WakeProbe {
    at: Instant,
    took: oneshot::Sender<Duration>,
}

impl TaskServer {
    /// Starts the tasks to which handlers pass requests.
    fn start<S: AsyncSystem>(plan: LoadServer) -> Self {
        let (mut stages, mut woken) = (Vec::new(), Vec::new());
        for behaviour in &plan.mix.behaviours {
            let (mut first, mut wakes) = (Vec::new(), None);
            match behaviour {
                Behaviour::Stages { stages, .. } => {
                    for stage in stages.iter().rev() {
                        first = start_stage::<S>(*stage, plan.pace, &first);
                    }
                }
                Behaviour::WakeThenCompute { .. } => {
                    let (sender, mut receiver) = mpsc::unbounded_channel::<WakeProbe>();
                    wakes = Some(sender);
                    S::spawn(async move {
                        while let Some(wake) = receiver.recv().await {
                            let _ = wake.took.send(wake.at.elapsed());
                        }
                    });
                }
                _ => {}
            }
            stages.push(first);
            woken.push(wakes);
        }
        Self { plan, stages, woken }
    }

    /// Passes a request through the stages of a behaviour.
    async fn pass(&self, index: usize, number: usize) {
        let stage = &self.stages[index];
        let (done, is_done) = oneshot::channel();
        if stage[number % stage.len()].send(StageJob { number, done }).is_ok() {
            let _ = is_done.await;
        }
    }

    /// Wakes a task, computes, and returns how long the wake-up took.
    async fn wake(&self, index: usize, step: Duration) -> Duration {
        let (took, has_taken) = oneshot::channel();
        if let Some(sender) = &self.woken[index] {
            let _ = sender.send(WakeProbe { at: clock::now(), took });
        }
        self.plan.pace.spend(step);
        has_taken.await.unwrap_or_default()
    }
}

/// Starts the tasks of one stage and returns where to send to.
fn start_stage<S: AsyncSystem>(
    stage: Stage,
    pace: Pace,
    next: &[mpsc::UnboundedSender<StageJob>],
) -> Vec<mpsc::UnboundedSender<StageJob>> {
    let step = Duration::from_micros(stage.step_us);
    let start = |_| {
        let (sender, mut receiver) = mpsc::unbounded_channel::<StageJob>();
        let next = next.to_vec();
        S::spawn(async move {
            while let Some(job) = receiver.recv().await {
                pace.spend(step);
                let passed = match next.len() {
                    0 => job.done.send(()).is_ok(),
                    count => next[job.number % count].send(job).is_ok(),
                };
                if !passed {
                    return;
                }
            }
        });
        sender
    };
    (0..stage.tasks).map(start).collect()
}

/// Answers the requests of one connection until the peer closes it.
async fn handle<S: AsyncSystem>(mut stream: S::Stream, server: Arc<TaskServer>) {
    let mut hello = [0; HELLO_BYTES];
    if !matches!(fill::<S>(&mut stream, &mut hello).await, Ok(true)) {
        return;
    }
    let Some(hello) = Hello::from_bytes(hello) else { return };
    let mut number = 0;
    loop {
        let mut bytes = [0; REQUEST_BYTES];
        if !matches!(fill::<S>(&mut stream, &mut bytes).await, Ok(true)) {
            return;
        }
        let mut request = Request::from_bytes(bytes);
        match hello {
            Hello::Begin if number == 0 => begin::<S>(&server.plan),
            Hello::Begin | Hello::Compute => server.plan.pace.spend(request.time()),
            Hello::Block => clock::sleep(request.time()),
            Hello::Behaviour(index) if server.plan.is_wake(index) => {
                let took = server.wake(index.into(), request.time()).await;
                request = request.measured(took);
            }
            Hello::Behaviour(index) => server.pass(index.into(), number).await,
        }
        number += 1;
        if S::write_all(&mut stream, &request.to_bytes()).await.is_err() {
            return;
        }
    }
}

/// Starts the behaviours that run without requests.
fn begin<S: AsyncSystem>(plan: &LoadServer) {
    for behaviour in &plan.mix.behaviours {
        start_behaviour::<S>(behaviour, plan.pace);
    }
}

fn start_behaviour<S: AsyncSystem>(behaviour: &Behaviour, pace: Pace) {
    let us = Duration::from_micros;
    match *behaviour {
        Behaviour::Compute { tasks, step_us, yields } => each(tasks, || {
            S::spawn(async move {
                loop {
                    pace.spend_counted(us(step_us));
                    if yields {
                        S::yield_now().await;
                    }
                }
            });
        }),
        Behaviour::Resting { tasks, rest_us, step_us } => each(tasks, || {
            S::spawn(async move {
                loop {
                    S::sleep(us(rest_us)).await;
                    pace.spend_counted(us(step_us));
                }
            });
        }),
        Behaviour::Burst { tasks, step_us, every_us, is_foreign } => {
            start_bursts::<S>(tasks, us(step_us), us(every_us), is_foreign, pace);
        }
        Behaviour::Calls { tasks, call, span_us } => each(tasks, || {
            S::spawn(async move {
                loop {
                    let start = clock::now();
                    while start.elapsed() < us(span_us) {
                        if let Err(error) = call.make() {
                            return cannot(&error);
                        }
                        note_operation();
                    }
                    S::yield_now().await;
                }
            });
        }),
        Behaviour::Lock { tasks, hold_us } => {
            let lock = Arc::new(BlockingLock::default());
            each(tasks, || {
                let lock = Arc::clone(&lock);
                S::spawn(async move {
                    loop {
                        lock.lock();
                        S::sleep(us(hold_us)).await;
                        lock.unlock();
                        note_operation();
                        S::yield_now().await;
                    }
                });
            });
        }
        _ => start_messages::<S>(behaviour, pace),
    }
}

/// Spawns `tasks` tasks of `step` again and again, from a thread outside of the runtime or from a task.
fn start_bursts<S: AsyncSystem>(
    tasks: u32,
    step: Duration,
    every: Duration,
    is_foreign: bool,
    pace: Pace,
) {
    let task = move || async move {
        pace.spend_counted(step);
        note_operation();
    };
    if is_foreign {
        let spawn = S::spawner();
        thread::spawn(move || {
            loop {
                clock::sleep(every);
                each(tasks, || spawn(Box::pin(task())));
            }
        });
    } else {
        S::spawn(async move {
            loop {
                S::sleep(every).await;
                each(tasks, || S::spawn(task()));
            }
        });
    }
}

/// Starts the behaviours in which tasks wake each other, or timers wake them.
fn start_messages<S: AsyncSystem>(behaviour: &Behaviour, pace: Pace) {
    let us = Duration::from_micros;
    match *behaviour {
        Behaviour::PingPong { pairs, step_us } => each(pairs, || {
            let (to_second, mut second) = mpsc::unbounded_channel::<()>();
            let (to_first, mut first) = mpsc::unbounded_channel::<()>();
            let _ = to_first.send(());
            S::spawn(async move {
                while first.recv().await.is_some() {
                    pace.spend(us(step_us));
                    let _ = to_second.send(());
                }
            });
            S::spawn(async move {
                while second.recv().await.is_some() {
                    pace.spend(us(step_us));
                    note_operation();
                    let _ = to_first.send(());
                }
            });
        }),
        Behaviour::Timers { tasks, period_us } => each(tasks, || {
            S::spawn(async move {
                loop {
                    S::sleep(us(period_us)).await;
                    note_operation();
                }
            });
        }),
        Behaviour::Broadcast { tasks, step_us, every_us } => {
            let (sender, receiver) = watch::channel(());
            each(tasks, || {
                let mut receiver = receiver.clone();
                S::spawn(async move {
                    while receiver.changed().await.is_ok() {
                        pace.spend(us(step_us));
                        note_operation();
                    }
                });
            });
            S::spawn(async move {
                loop {
                    S::sleep(us(every_us)).await;
                    let _ = sender.send(());
                }
            });
        }
        // The rest is what handlers do.
        _ => {}
    }
}

fn each(count: u32, mut start: impl FnMut()) {
    for _ in 0..count {
        start();
    }
}

/// Ends a load that is not the one described.
fn cannot(error: &io::Error) {
    Message::Failed { failure: Failure::io("making a blocking call")(error.kind().into()) }.print();
    process::exit(0);
}
