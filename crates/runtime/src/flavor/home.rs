//! The threads that enter a user-level runtime, and the local tasks that belong to each.
//!
//! One thread at a time *drives* the runtime: it has the core, hosts the server and runs all tasks that may
//! move. Every other thread inside `block_on` *waits*: it polls its own future and its own local tasks, and
//! takes the core over when the driver leaves. A local task that is woken from another thread is posted to
//! the inbox of its home thread, where it stays until that thread is inside `block_on`, now or later.
//!
//! ```text
//!         enter                  core is free
//!  Away ────────▶ Waiting ─────────────────────▶ Driving
//!   ▲               │ future is ready               │ future is ready: every waiting thread is notified
//!   └───────────────┴───────────────────────────────┘
//! ```
//! A thread whose foreign event loop calls for ticks is `Driving` in a tick, and `Embedded` between two.
//!
//! No notification is lost (home-1): the notifying thread sets `is_notified`, or what it notifies of, and
//! then reads `block_on_state`; the home thread writes `block_on_state` and then reads those, all of them
//! `SeqCst`. So the notification reaches the place where the thread is about to sleep, or the thread sees
//! what it was notified of.

use std::{collections::VecDeque, mem};

use vigie_detect::Server;

use crate::{
    measure::{Metrics, ThreadCounters},
    sync::{
        Arc, AtomicBool, AtomicU8, Ordering, PoisonError, RealGuard, RealMutex,
        thread::{self, Thread},
    },
    task_cell::Runnable,
};

/// A thread that has entered the runtime, and may do so again.
pub(crate) struct HomeThread {
    thread: Thread,
    /// One of [`BlockOnState`]. Written by the thread, read by threads that notify it.
    block_on_state: AtomicU8,
    /// The thread should check for work. Set by any thread, cleared by its own.
    is_notified: AtomicBool,
    /// Local tasks that other threads made ready, or that the thread left behind.
    inbox: RealMutex<VecDeque<Runnable>>,
    /// Counts the thread's work while it waits. Written by the thread.
    pub(crate) counters: ThreadCounters,
}

/// The thread's part in the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockOnState {
    /// It is not inside `block_on`.
    Away = 0,
    /// It has the core, and sleeps in the server's poller.
    Driving = 1,
    /// It does not have the core, and sleeps on its own thread.
    Waiting = 2,
    /// It is in a foreign event loop, which watches the server's poller and comes back for a tick.
    Embedded = 3,
}

impl HomeThread {
    fn of_this_thread() -> Self {
        Self {
            thread: thread::current(),
            block_on_state: AtomicU8::new(BlockOnState::Away as u8),
            is_notified: AtomicBool::new(false),
            inbox: RealMutex::default(),
            counters: ThreadCounters::new(),
        }
    }

    /// The thread is about to sleep elsewhere: `is_notified` must be read after this (home-1).
    pub(crate) fn set_block_on_state(&self, block_on_state: BlockOnState) {
        self.block_on_state.store(block_on_state as u8, Ordering::SeqCst);
    }

    /// Makes the thread check for work soon, if it is inside `block_on`.
    pub(crate) fn notify(&self, server: &Server) {
        self.is_notified.store(true, Ordering::SeqCst);
        let block_on_state = self.block_on_state.load(Ordering::SeqCst);
        let in_poller = [BlockOnState::Driving as u8, BlockOnState::Embedded as u8];
        if in_poller.contains(&block_on_state) {
            server.unpark();
        } else if block_on_state == BlockOnState::Waiting as u8 {
            self.thread.unpark();
        }
    }

    /// Returns whether [`take_posted`](Self::take_posted) must be called.
    pub(crate) fn is_notified(&self) -> bool {
        self.is_notified.load(Ordering::SeqCst)
    }

    /// Posts a ready task to its home thread.
    pub(crate) fn post(&self, task: Runnable, server: &Server) {
        self.inbox().push_back(task);
        self.notify(server);
    }

    /// Keeps local tasks that the thread leaves unpolled.
    pub(crate) fn keep(&self, tasks: impl Iterator<Item = Runnable>) {
        self.inbox().extend(tasks);
        // For the next time the thread is in `block_on`.
        self.is_notified.store(true, Ordering::SeqCst);
    }

    /// Takes the posted tasks, and clears the notification.
    pub(crate) fn take_posted(&self) -> VecDeque<Runnable> {
        self.is_notified.store(false, Ordering::SeqCst);
        mem::take(&mut self.inbox())
    }

    fn inbox(&self) -> RealGuard<'_, VecDeque<Runnable>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All threads that have entered the runtime and may still be needed.
#[derive(Default)]
pub(crate) struct HomeThreads {
    list: RealMutex<List>,
}

struct List {
    threads: Vec<Arc<HomeThread>>,
    /// The counts of threads that are no longer in the list. Written under the lock.
    gone: ThreadCounters,
}

impl Default for List {
    fn default() -> Self {
        Self { threads: Vec::new(), gone: ThreadCounters::new() }
    }
}

impl HomeThreads {
    fn lock(&self) -> RealGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the calling thread's own.
    pub(crate) fn of_this_thread(&self) -> Arc<HomeThread> {
        let mut list = self.lock();
        let List { threads, gone } = &mut *list;
        let id = thread::current().id();
        threads.retain(|home| {
            // A local task, ready or not, holds the home that it is posted to.
            let is_needed = Arc::strong_count(home) > 1 || home.thread.id() == id;
            if !is_needed {
                gone.absorb(&home.counters);
            }
            is_needed
        });
        if let Some(home) = threads.iter().find(|home| home.thread.id() == id) {
            return Arc::clone(home);
        }
        let home = Arc::new(HomeThread::of_this_thread());
        threads.push(Arc::clone(&home));
        home
    }

    /// Adds the counts of threads while they waited. Returns how often they polled and slept.
    pub(crate) fn add_to(&self, metrics: &mut Metrics) -> (u64, u64) {
        let list = self.lock();
        let all = list.threads.iter().map(|home| &home.counters).chain([&list.gone]);
        all.fold((0, 0), |(polls, sleeps), counters| {
            counters.add_to(metrics);
            (polls + counters.polls(), sleeps + counters.sleeps())
        })
    }

    /// Notifies every thread that waits for the core. The core must be released before.
    pub(crate) fn notify_waiting(&self, server: &Server) {
        let waiting: Vec<_> = {
            let list = self.lock();
            let is_waiting = |home: &&Arc<HomeThread>| {
                home.block_on_state.load(Ordering::SeqCst) == BlockOnState::Waiting as u8
            };
            list.threads.iter().filter(is_waiting).map(Arc::clone).collect()
        };
        for home in waiting {
            home.notify(server);
        }
    }

    /// Takes a ready local task of any thread, to be cancelled.
    pub(crate) fn take_any(&self) -> Option<Runnable> {
        let homes = self.lock().threads.clone();
        homes.iter().find_map(|home| home.inbox().pop_front())
    }
}
