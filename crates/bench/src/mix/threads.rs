//! The server of a load on kernel threads: each behaviour with a thread for each task.
//!
//! The kernel's scheduler is the reference by which runtimes are judged.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::behaviour::{Behaviour, Stage};
use super::call::BlockingLock;
use super::server::LoadServer;
use super::tasks::cannot;
use super::wire::{HELLO_BYTES, Hello, REQUEST_BYTES, Request};
use crate::clock;
use crate::compute::{Pace, note_operation};
use crate::error::Failure;
use crate::host::limits;
use crate::process::Message;
use crate::system::blocking_calls::{STACK_BYTES, accept};

/// Serves `plan` until the process is killed.
pub(crate) fn serve(plan: &LoadServer) -> Result<(), Failure> {
    limits::allow_connections(plan.descriptors())?;
    let doing = || Failure::io("listening on 127.0.0.1");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(doing())?;
    let echo = listener.local_addr().map_err(doing())?;
    let server = Arc::new(ThreadServer::start(plan.clone()));
    Message::Listening { process: process::id(), echo, control: None }.print();
    loop {
        let stream = accept(&listener).map_err(Failure::io("accepting"))?;
        let server = Arc::clone(&server);
        spawn(move || handle(stream, &server));
    }
}

/// Starts the thread of a task. A load that has not all of its threads is not the one described.
fn spawn(task: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().stack_size(STACK_BYTES).spawn(task) {
        let failure = Failure::io("starting a thread (see `ulimit -u`)")(error);
        Message::Failed { failure }.print();
        process::exit(0);
    }
}

/// State shared by the handlers.
struct ThreadServer {
    plan: LoadServer,
    /// For each behaviour: the threads of its first stage.
    stages: Vec<Vec<Sender<StageJob>>>,
    /// For each behaviour: the thread that is woken.
    woken: Vec<Option<Sender<WakeProbe>>>,
}

/// A request on its way through stages.
struct StageJob {
    number: usize,
    done: Sender<()>,
}

/// The instant of a wake-up, and where to say how long it took.
struct WakeProbe {
    at: Instant,
    took: Sender<Duration>,
}

impl ThreadServer {
    /// Starts the threads to which handlers pass requests.
    fn start(plan: LoadServer) -> Self {
        let (mut stages, mut woken) = (Vec::new(), Vec::new());
        for behaviour in &plan.mix.behaviours {
            let (mut first, mut wakes) = (Vec::new(), None);
            match behaviour {
                Behaviour::Stages { stages, .. } => {
                    for stage in stages.iter().rev() {
                        first = start_stage(*stage, plan.pace, &first);
                    }
                }
                Behaviour::WakeThenCompute { .. } => {
                    let (sender, receiver) = mpsc::channel::<WakeProbe>();
                    wakes = Some(sender);
                    spawn(move || {
                        for wake in receiver {
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
    fn pass(&self, index: usize, number: usize) {
        let stage = &self.stages[index];
        let (done, is_done) = mpsc::channel();
        if stage[number % stage.len()].send(StageJob { number, done }).is_ok() {
            let _ = is_done.recv();
        }
    }

    /// Wakes a thread, computes, and returns how long the wake-up took.
    fn wake(&self, index: usize, step: Duration) -> Duration {
        let (took, has_taken) = mpsc::channel();
        if let Some(sender) = &self.woken[index] {
            let _ = sender.send(WakeProbe { at: clock::now(), took });
        }
        self.plan.pace.spend(step);
        has_taken.recv().unwrap_or_default()
    }
}

/// Starts the threads of one stage and returns where to send to.
fn start_stage(stage: Stage, pace: Pace, next: &[Sender<StageJob>]) -> Vec<Sender<StageJob>> {
    let step = Duration::from_micros(stage.step_us);
    let start = |_| {
        let (sender, receiver) = mpsc::channel::<StageJob>();
        let next = next.to_vec();
        spawn(move || {
            for job in receiver {
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
fn handle(mut stream: TcpStream, server: &ThreadServer) {
    let mut hello = [0; HELLO_BYTES];
    if stream.read_exact(&mut hello).is_err() {
        return;
    }
    let Some(hello) = Hello::from_bytes(hello) else { return };
    let mut number = 0;
    let mut bytes = [0; REQUEST_BYTES];
    while stream.read_exact(&mut bytes).is_ok() {
        let mut request = Request::from_bytes(bytes);
        match hello {
            Hello::Begin if number == 0 => begin(&server.plan),
            Hello::Begin | Hello::Compute => server.plan.pace.spend(request.time()),
            Hello::Block => clock::sleep(request.time()),
            Hello::Behaviour(index) if server.plan.is_wake(index) => {
                request = request.measured(server.wake(index.into(), request.time()));
            }
            Hello::Behaviour(index) => server.pass(index.into(), number),
        }
        number += 1;
        if stream.write_all(&request.to_bytes()).is_err() {
            return;
        }
    }
}

/// Starts the behaviours that run without requests.
fn begin(plan: &LoadServer) {
    for behaviour in &plan.mix.behaviours {
        start_behaviour(behaviour, plan.pace);
    }
}

fn start_behaviour(behaviour: &Behaviour, pace: Pace) {
    let us = Duration::from_micros;
    match *behaviour {
        Behaviour::Compute { tasks, step_us, yields } => each(tasks, || {
            spawn(move || {
                loop {
                    pace.spend_counted(us(step_us));
                    if yields {
                        thread::yield_now();
                    }
                }
            });
        }),
        Behaviour::Resting { tasks, rest_us, step_us } => each(tasks, || {
            spawn(move || {
                loop {
                    clock::sleep(us(rest_us));
                    pace.spend_counted(us(step_us));
                }
            });
        }),
        // Whichever thread starts the others: the kernel makes no difference.
        Behaviour::Burst { tasks, step_us, every_us, is_foreign: _ } => spawn(move || {
            loop {
                clock::sleep(us(every_us));
                each(tasks, || {
                    spawn(move || {
                        pace.spend_counted(us(step_us));
                        note_operation();
                    });
                });
            }
        }),
        Behaviour::Calls { tasks, call, span_us } => each(tasks, || {
            spawn(move || {
                loop {
                    let start = clock::now();
                    while start.elapsed() < us(span_us) {
                        if let Err(error) = call.make() {
                            return cannot(&error);
                        }
                        note_operation();
                    }
                    thread::yield_now();
                }
            });
        }),
        Behaviour::Lock { tasks, hold_us } => {
            let lock = Arc::new(BlockingLock::default());
            each(tasks, || {
                let lock = Arc::clone(&lock);
                spawn(move || {
                    loop {
                        lock.lock();
                        clock::sleep(us(hold_us));
                        lock.unlock();
                        note_operation();
                        thread::yield_now();
                    }
                });
            });
        }
        _ => start_messages(behaviour, pace),
    }
}

/// Starts the behaviours in which threads wake each other, or timers wake them.
fn start_messages(behaviour: &Behaviour, pace: Pace) {
    let us = Duration::from_micros;
    match *behaviour {
        Behaviour::PingPong { pairs, step_us } => each(pairs, || {
            let (to_second, second) = mpsc::channel::<()>();
            let (to_first, first) = mpsc::channel::<()>();
            let _ = to_first.send(());
            spawn(move || {
                for () in first {
                    pace.spend(us(step_us));
                    let _ = to_second.send(());
                }
            });
            spawn(move || {
                for () in second {
                    pace.spend(us(step_us));
                    note_operation();
                    let _ = to_first.send(());
                }
            });
        }),
        Behaviour::Timers { tasks, period_us } => each(tasks, || {
            spawn(move || {
                loop {
                    clock::sleep(us(period_us));
                    note_operation();
                }
            });
        }),
        Behaviour::Broadcast { tasks, step_us, every_us } => {
            let news = Arc::new((Mutex::new(0_u64), Condvar::new()));
            each(tasks, || {
                let news = Arc::clone(&news);
                spawn(move || {
                    let mut seen = 0;
                    loop {
                        let edition = news.0.lock().unwrap_or_else(PoisonError::into_inner);
                        let fresh = news.1.wait_while(edition, |edition| *edition == seen);
                        seen = *fresh.unwrap_or_else(PoisonError::into_inner);
                        pace.spend(us(step_us));
                        note_operation();
                    }
                });
            });
            spawn(move || {
                loop {
                    clock::sleep(us(every_us));
                    *news.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                    news.1.notify_all();
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
