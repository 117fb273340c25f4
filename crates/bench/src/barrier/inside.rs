//! Groups within one process: tasks and threads.
#![expect(unsafe_code, reason = "pthread_barrier_t has no safe interface")]

use std::cell::UnsafeCell;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Barrier};
use std::thread;

use vigie_barrier::local::{TaskBarrier, TaskMember, ThreadBarrier};
use vigie_barrier::{Group, Rank};
use vigie_runtime::{Flavor, Runtime};

use super::lap::{GroupCosts, Laps, MemberCosts, MemberTimer, run};
use crate::clock::sleep;
use crate::error::Failure;
use crate::host::Usage;

/// Threads that run tasks, where a runtime has several.
const WORKERS: usize = 2;

/// A member's task.
type Task = Pin<Box<dyn Future<Output = Result<MemberCosts, Failure>> + Send>>;

/// Measures the processor time beside.
fn timed(run: impl FnOnce() -> Result<Vec<MemberCosts>, Failure>) -> Result<GroupCosts, Failure> {
    let before = Usage::of_this_process();
    let members = run()?;
    let used = Usage::of_this_process().since(before);
    Ok(GroupCosts { wall_ns: used.at_ns, cpu_ns: used.cpu_ns, ..GroupCosts::of(members) })
}

fn group(laps: Laps) -> Result<Group, Failure> {
    Group::new(laps.members).map_err(Failure::runtime)
}

/// Waits for the tasks of all members.
async fn costs_of<E: ToString>(
    tasks: Vec<impl Future<Output = Result<Result<MemberCosts, Failure>, E>>>,
) -> Result<Vec<MemberCosts>, Failure> {
    let mut members = Vec::new();
    for task in tasks {
        members.push(task.await.map_err(|error| Failure::runtime(error.to_string()))??);
    }
    Ok(members)
}

/// The loop of one task.
async fn lap<F: ToString>(
    laps: Laps,
    rank: u32,
    end: Arc<AtomicU64>,
    mut wait: impl AsyncFnMut() -> Result<(), F>,
) -> Result<MemberCosts, Failure> {
    let mut member = MemberTimer::new(laps, rank, &*end);
    loop {
        let lateness = member.lateness();
        if !lateness.is_zero() {
            // On a thread of its own: timers of the runtimes are not what is measured.
            let (said, heard) = tokio::sync::oneshot::channel();
            thread::spawn(move || {
                sleep(lateness);
                let _ = said.send(());
            });
            let _ = heard.await;
        }
        member.enter();
        wait().await.map_err(|error| Failure::runtime(error.to_string()))?;
        if !member.leave() {
            return Ok(member.finish());
        }
    }
}

/// The members' tasks with vigie's barrier.
fn own_tasks(laps: Laps) -> Result<Vec<Task>, Failure> {
    let end = Arc::new(AtomicU64::new(0));
    let task = |mut member: TaskMember| {
        let (Rank(rank), end) = (member.rank(), Arc::clone(&end));
        Box::pin(lap(laps, rank, end, async move || member.wait().await.map(drop))) as Task
    };
    Ok(TaskBarrier::new(group(laps)?).into_members().map(task).collect())
}

/// vigie's barrier on one of vigie's flavors.
fn on_vigie(laps: Laps, flavor: Flavor) -> Result<GroupCosts, Failure> {
    let runtime = Runtime::builder().flavor(flavor).workers(WORKERS).build();
    let runtime = runtime.map_err(Failure::runtime)?;
    let tasks = own_tasks(laps)?;
    timed(|| {
        let tasks: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(task)).collect();
        runtime.block_on(costs_of(tasks))
    })
}

pub(super) fn user_level(laps: Laps) -> Result<GroupCosts, Failure> {
    on_vigie(laps, Flavor::UserLevel)
}

pub(super) fn hybrid(laps: Laps) -> Result<GroupCosts, Failure> {
    on_vigie(laps, Flavor::Hybrid)
}

/// Tasks on tokio.
fn on_tokio(tasks: Vec<Task>) -> Result<GroupCosts, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).build();
    let runtime = runtime.map_err(Failure::io("starting tokio"))?;
    timed(|| {
        let tasks: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(task)).collect();
        runtime.block_on(costs_of(tasks))
    })
}

/// vigie's barrier on tokio.
pub(super) fn own_on_tokio(laps: Laps) -> Result<GroupCosts, Failure> {
    on_tokio(own_tasks(laps)?)
}

/// tokio's own barrier.
pub(super) fn tokio(laps: Laps) -> Result<GroupCosts, Failure> {
    let size = usize::try_from(laps.members).map_err(Failure::runtime)?;
    let end = Arc::new(AtomicU64::new(0));
    let barrier = Arc::new(tokio::sync::Barrier::new(size));
    let task = |rank| {
        let (barrier, end) = (Arc::clone(&barrier), Arc::clone(&end));
        let wait = async move || {
            barrier.wait().await;
            Ok::<_, String>(())
        };
        Box::pin(lap(laps, rank, end, wait)) as Task
    };
    on_tokio((0..laps.members).map(task).collect())
}

/// A thread for each member.
fn on_threads<W, F>(laps: Laps, waits: impl IntoIterator<Item = W>) -> Result<GroupCosts, Failure>
where
    W: FnMut() -> Result<(), F> + Send,
    F: ToString + Send,
{
    let end = AtomicU64::new(0);
    timed(|| {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..laps.members)
                .zip(waits)
                .map(|(rank, wait)| {
                    let end = &end;
                    scope.spawn(move || run(laps, rank, end, wait))
                })
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<MemberCosts, F>>| {
                let costs = thread.join().map_err(|_| Failure::runtime("a member panicked"))?;
                costs.map_err(|error| Failure::runtime(error.to_string()))
            };
            threads.into_iter().map(join).collect()
        })
    })
}

pub(super) fn threads(laps: Laps) -> Result<GroupCosts, Failure> {
    let members = ThreadBarrier::new(group(laps)?).into_members();
    on_threads(laps, members.map(|mut member| move || member.wait().map(drop)))
}

pub(super) fn std(laps: Laps) -> Result<GroupCosts, Failure> {
    let size = usize::try_from(laps.members).map_err(Failure::runtime)?;
    let barrier = Barrier::new(size);
    let wait = || {
        barrier.wait();
        Ok::<_, String>(())
    };
    on_threads(laps, (0..laps.members).map(|_| wait))
}

#[cfg(feature = "hurdles")]
pub(super) fn hurdles(laps: Laps) -> Result<GroupCosts, Failure> {
    let size = usize::try_from(laps.members).map_err(Failure::runtime)?;
    let barrier = hurdles::Barrier::new(size);
    let wait = |_| {
        let mut barrier = barrier.clone();
        move || {
            barrier.wait();
            Ok::<_, String>(())
        }
    };
    on_threads(laps, (0..laps.members).map(wait).collect::<Vec<_>>())
}

/// Without the feature.
#[cfg(not(feature = "hurdles"))]
pub(super) fn hurdles(_: Laps) -> Result<GroupCosts, Failure> {
    Err(Failure::runtime("this program is built without the feature `hurdles`"))
}

/// The floor set by the kernel's scheduler: threads only yield the processor, until each has had it.
/// Before a barrier of threads is passed, each of them must run once.
pub(super) fn kernel_floor(laps: Laps) -> Result<GroupCosts, Failure> {
    let wait = || {
        thread::yield_now();
        Ok::<_, String>(())
    };
    on_threads(laps, (0..laps.members).map(|_| wait))
}

/// pthread's barrier.
///
/// - **pthread-1**: it is initialised by `new`, stays at its address, and is destroyed once, when no thread can
///   wait.
struct Pthread(Box<UnsafeCell<MaybeUninit<libc::pthread_barrier_t>>>);

// SAFETY: it is made for threads to share; all access is by pthread's own calls.
unsafe impl Sync for Pthread {}

impl Pthread {
    fn new(size: u32) -> Result<Self, Failure> {
        let this = Self(Box::new(UnsafeCell::new(MaybeUninit::uninit())));
        // SAFETY: the place is valid for a barrier, and no other code knows it yet.
        let error =
            unsafe { libc::pthread_barrier_init(this.0.get().cast(), std::ptr::null(), size) };
        if error == 0 {
            Ok(this)
        } else {
            std::mem::forget(this);
            Err(Failure::runtime(format!("pthread_barrier_init: error {error}")))
        }
    }

    fn wait(&self) {
        // SAFETY: initialised, and at its address (pthread-1).
        let _ = unsafe { libc::pthread_barrier_wait(self.0.get().cast()) };
    }
}

impl Drop for Pthread {
    fn drop(&mut self) {
        // SAFETY: initialised (pthread-1), and no thread waits: all borrows of `self` have ended.
        let _ = unsafe { libc::pthread_barrier_destroy(self.0.get().cast()) };
    }
}

pub(super) fn pthread(laps: Laps) -> Result<GroupCosts, Failure> {
    let barrier = Pthread::new(laps.members)?;
    let wait = || {
        barrier.wait();
        Ok::<_, String>(())
    };
    on_threads(laps, (0..laps.members).map(|_| wait))
}
