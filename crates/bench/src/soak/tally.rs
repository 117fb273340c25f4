//! Counts of switches, messages, ended tasks and faults; and violations.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use vigie_runtime::{Handle, JoinError, JoinHandle};

/// The faults inflicted on a runtime beside its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Panic,
    HogComputes,
    HogBlocks,
    HogReacts,
    Reset,
    Abort,
    Drop,
    Signal,
    Exec,
    Descriptors,
    Threads,
    ForeignWake,
    Bell,
    HelpOff,
    HelpOn,
    TinyLongPoll,
}

impl Fault {
    pub(super) const ALL: [(Self, &str); 16] = [
        (Self::Panic, "tasks that panic"),
        (Self::HogComputes, "hogs that compute"),
        (Self::HogBlocks, "hogs that block in a system call"),
        (Self::HogReacts, "hogs inside reaction handlers"),
        (Self::Reset, "connections reset"),
        (Self::Abort, "aborts at random moments"),
        (Self::Drop, "runtimes dropped at work"),
        (Self::Signal, "signals to threads"),
        (Self::Exec, "fork and exec in a task"),
        (Self::Descriptors, "descriptors exhausted"),
        (Self::Threads, "threads refused"),
        (Self::ForeignWake, "wakes by foreign threads"),
        (Self::Bell, "bells rung by foreign threads"),
        (Self::HelpOff, "runtimes without kernel help"),
        (Self::HelpOn, "runtimes with kernel help"),
        (Self::TinyLongPoll, "runtimes with a long poll of 20 µs"),
    ];
}

/// Counters on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

const STRIPES: usize = 16;

/// The counters of the whole run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    polls: [Stripe; STRIPES],
    faults: [AtomicU64; Fault::ALL.len()],
    counts: Mutex<BTreeMap<&'static str, Arc<AtomicU64>>>,
    violations: Mutex<Vec<String>>,
    next_stripe: AtomicUsize,
}

impl Tally {
    pub(super) fn fault(&self, fault: Fault) {
        self.faults[fault as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn hits(&self, fault: Fault) -> u64 {
        self.faults[fault as usize].load(Ordering::Relaxed)
    }

    pub(super) fn switches(&self) -> u64 {
        self.polls.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }

    /// The counter called `name`.
    pub(super) fn count(&self, name: &'static str) -> Arc<AtomicU64> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(counts.entry(name).or_default())
    }

    pub(super) fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|(name, count)| (*name, count.load(Ordering::Relaxed))).collect()
    }

    /// Takes note of something that must not happen.
    pub(super) fn violate(&self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("VIOLATION: {what}");
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// State shared by the tasks of one runtime.
#[derive(Debug, Default)]
pub(super) struct RuntimeState {
    is_over: AtomicBool,
    /// What a storm waits for, to be shown if it hangs.
    pub(super) awaited: Mutex<String>,
    /// The runtime is going to be dropped: any task may be cancelled.
    is_doomed: bool,
    begun: AtomicU64,
    gone: AtomicU64,
    /// Tasks for which the kernel refused a thread; connections that broke although neither end
    /// reset them.
    pub(super) refused: AtomicU64,
    pub(super) broken: AtomicU64,
    /// The actors that are waited for: name, and whether it has ended.
    actors: Mutex<Vec<(&'static str, Arc<AtomicBool>)>>,
}

impl RuntimeState {
    /// The life of a runtime that is dropped while it works.
    pub(super) fn doomed() -> Self {
        Self { is_doomed: true, ..Self::default() }
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The names of those that have not ended.
    pub(super) fn present(&self) -> Vec<&'static str> {
        let actors = self.actors.lock().unwrap_or_else(PoisonError::into_inner);
        actors
            .iter()
            .filter(|(_, end)| !end.load(Ordering::Acquire))
            .map(|(name, _)| *name)
            .collect()
    }

    /// Tasks made, and futures dropped.
    pub(super) fn tasks(&self) -> (u64, u64) {
        (self.begun.load(Ordering::SeqCst), self.gone.load(Ordering::SeqCst))
    }
}

/// The state of an actor.
#[derive(Clone, Debug)]
pub(super) struct ActorContext {
    pub(super) tally: Arc<Tally>,
    pub(super) state: Arc<RuntimeState>,
    pub(super) handle: Handle,
}

/// How a task may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    End,
    EndOrCancel,
    Panic,
}

impl ActorContext {
    pub(super) fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// Spawns a task whose polls and end are counted.
    pub(super) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.state.begun.fetch_add(1, Ordering::SeqCst);
        let stripe = self.tally.next_stripe.fetch_add(1, Ordering::Relaxed) % STRIPES;
        let guard = TaskGuard(Arc::clone(&self.state));
        let tally = Arc::clone(&self.tally);
        self.handle.spawn(Counted { future: Box::pin(future), tally, stripe, _guard: guard })
    }

    /// Spawns a task that ends soon after the life is over.
    pub(super) fn act<F>(&self, name: &'static str, actor: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let end = Arc::new(AtomicBool::new(false));
        let mut actors = self.state.actors.lock().unwrap_or_else(PoisonError::into_inner);
        actors.push((name, Arc::clone(&end)));
        drop(actors);
        self.spawn(async move {
            actor.await;
            end.store(true, Ordering::Release);
        })
    }

    /// Enters how a task ended. Each handle gives its answer once.
    pub(super) fn enter<T>(&self, what: &str, answer: Result<T, JoinError>, expected: Expected) {
        let (name, is_fine) = match &answer {
            Ok(_) => ("tasks that ended", expected != Expected::Panic),
            Err(error) if error.is_refused() => {
                self.state.refused.fetch_add(1, Ordering::SeqCst);
                ("tasks refused", true)
            }
            Err(error) if error.is_panic() => ("tasks that panicked", expected == Expected::Panic),
            Err(_) => {
                let is_fine = expected == Expected::EndOrCancel || self.state.is_doomed;
                ("tasks cancelled", is_fine)
            }
        };
        self.tally.count(name).fetch_add(1, Ordering::Relaxed);
        if !is_fine {
            let end = answer.err().map_or_else(|| "its end".to_owned(), |error| error.to_string());
            self.tally.violate(format!("{what}: expected {expected:?}, got {end}"));
        }
    }
}

struct TaskGuard(Arc<RuntimeState>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.gone.fetch_add(1, Ordering::SeqCst);
    }
}

/// Counts polls.
struct Counted<F> {
    future: Pin<Box<F>>,
    tally: Arc<Tally>,
    stripe: usize,
    _guard: TaskGuard,
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.tally.polls[this.stripe].0.fetch_add(1, Ordering::Relaxed);
        this.future.as_mut().poll(cx)
    }
}
