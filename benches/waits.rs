//! How late an unrelated task's event is while others wait in barriers.
//!
//! **Question.** Does a wait in a barrier keep its executor from other tasks?
//!
//! **Prediction.** A poll of a waiting member does one burst, no longer than a sleep costs and never over 20 µs; the core that it gives
//! away is one that others want. So an event is as late as beside tasks that wait for sockets, and a burst at most.
//!
//! **Method.** Four tasks wait: for datagrams, in a barrier of tasks, or in one of shared memory, whose last member is a thread that comes again
//! and again. A thread sends a datagram every 500 µs to another task, which compares the time in it with the clock. Clock:
//! `CLOCK_MONOTONIC`. Unit: µs, p50 and p99 of one second. With other programs on the cores the figures say nothing.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use vigie_barrier::Group;
use vigie_barrier::local::TaskBarrier;
use vigie_barrier::local::shm::{Meeting, MeetingPoint};
use vigie_bench::clock;
use vigie_detect::Instant;
use vigie_detect::net::UnixDatagram;
use vigie_runtime::{Flavor, Runtime};

/// Tasks that wait.
const WAITERS: u32 = 4;

/// How often the last one comes.
const PERIODS: [Duration; 2] = [Duration::from_micros(100), Duration::from_micros(300)];

/// How often the other task has an event.
const EVENTS_EVERY: Duration = Duration::from_micros(500);

/// Events of a case.
const EVENTS: usize = 2_000;

/// A task that waits.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

type Failure = Box<dyn Error + Send + Sync>;

/// What the four tasks wait for: the tasks, and what makes them go on once.
type Waits = (Vec<Task>, Box<dyn FnMut() + Send>);

fn sockets() -> Result<Waits, Failure> {
    let (mut tasks, mut senders) = (Vec::new(), Vec::new());
    for _ in 0..WAITERS {
        let (sender, receiver) = UnixDatagram::pair()?;
        tasks.push(Box::pin(async move {
            while receiver.recv(&mut [0]).await.is_ok_and(|size| size > 0) {}
        }) as Task);
        senders.push(sender);
    }
    let go = move || senders.iter().for_each(|sender| drop(sender.try_send(&[1])));
    Ok((tasks, Box::new(go)))
}

fn of_tasks() -> Result<Waits, Failure> {
    let mut members: Vec<_> = TaskBarrier::new(Group::new(WAITERS + 1)?).into_members().collect();
    let mut last = members.pop().ok_or("no members")?;
    let tasks = members
        .into_iter()
        .map(|mut member| Box::pin(async move { while member.wait().await.is_ok() {} }) as Task);
    let go = move || {
        let mut wait = last.wait();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        while Pin::new(&mut wait).poll(&mut cx).is_pending() {
            thread::yield_now();
        }
    };
    Ok((tasks.collect(), Box::new(go)))
}

fn of_shared_memory(runtime: &Runtime) -> Result<Waits, Failure> {
    let point = MeetingPoint::random()?;
    let group = Group::new(WAITERS + 1)?;
    let joining: Vec<_> = group
        .ranks()
        .map(|rank| {
            let meeting = Meeting::new(group, rank, point.clone());
            runtime.spawn(meeting.join(Instant::now() + Duration::from_secs(60)))
        })
        .collect();
    let mut members = runtime.block_on(async {
        let mut members = Vec::new();
        for one in joining {
            members.push(one.await??);
        }
        Ok::<_, Failure>(members)
    })?;
    let mut last = members.pop().ok_or("no members")?;
    let tasks = members
        .into_iter()
        .map(|mut member| Box::pin(async move { while member.wait().await.is_ok() {} }) as Task);
    let go = move || drop(last.wait_blocking());
    Ok((tasks.collect(), Box::new(go)))
}

/// The lateness of events in nanoseconds, sorted.
fn lateness(runtime: Runtime, waits: Waits, period: Duration) -> Result<Vec<u64>, Failure> {
    let (tasks, mut go) = waits;
    let tasks: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(task)).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let goes = Arc::clone(&is_over);
    let last = thread::spawn(move || {
        while !goes.load(Ordering::Relaxed) {
            clock::sleep(period);
            go();
        }
    });
    let (sender, receiver) = runtime.block_on(async { UnixDatagram::pair() })?;
    let events = runtime.spawn(async move {
        let (mut late, mut sent) = (Vec::with_capacity(EVENTS), [0; 8]);
        for _ in 0..EVENTS {
            receiver.recv(&mut sent).await?;
            late.push(Instant::now().as_nanos().saturating_sub(u64::from_ne_bytes(sent)));
        }
        Ok::<_, io::Error>(late)
    });
    let source = thread::spawn(move || {
        for _ in 0..EVENTS {
            clock::sleep(EVENTS_EVERY);
            let _ = sender.try_send(&Instant::now().as_nanos().to_ne_bytes());
        }
    });
    let mut late = runtime.block_on(events)??;
    is_over.store(true, Ordering::Relaxed);
    source.join().map_err(|_| "the source panicked")?;
    // The last one may wait for members that nobody polls any more: it finds them gone.
    drop((tasks, runtime));
    last.join().map_err(|_| "the last member panicked")?;
    late.sort_unstable();
    Ok(late)
}

fn main() -> Result<(), Failure> {
    for (name, flavor) in [("user-level", Flavor::UserLevel), ("hybrid", Flavor::Hybrid)] {
        for period in PERIODS {
            for what in ["sockets", "barrier of tasks", "barrier over shared memory"] {
                let runtime = Runtime::builder().flavor(flavor).workers(2).build()?;
                let waits = match what {
                    "sockets" => runtime.block_on(async { sockets() })?,
                    "barrier of tasks" => of_tasks()?,
                    _ => of_shared_memory(&runtime)?,
                };
                let late = lateness(runtime, waits, period)?;
                let at = |part: usize| late[(late.len() - 1) * part / 100] / 100;
                let micros = |tenths: u64| format!("{}.{}", tenths / 10, tenths % 10);
                println!(
                    "{name}, {what}, every {period:?}: p50 {} p99 {}",
                    micros(at(50)),
                    micros(at(99)),
                );
            }
        }
    }
    Ok(())
}
