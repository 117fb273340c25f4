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
//!   ▲               │ future is ready               │ future is ready: every waiting thread is rung
//!   └───────────────┴───────────────────────────────┘
//! ```
//!
//! No ring is lost (home-1): whoever rings sets `is_rung`, or what it rings for, and then reads `stay`; the
//! thread writes `stay` and then reads those, all of them `SeqCst`. So the ring reaches the place where the
//! thread is about to sleep, or the thread sees what it was rung for.

use std::{collections::VecDeque, mem};

use vigie_detect::Server;

use crate::{
    measure::{Counters, Metrics},
    sync::{
        Arc, AtomicBool, AtomicU8, Ordering, PoisonError, RealGuard, RealMutex,
        thread::{self, Thread},
    },
    task_cell::Runnable,
};

/// A thread that has entered the runtime, and may again.
pub(crate) struct HomeThread {
    thread: Thread,
    /// One of [`Stay`]. Written by the thread, read by whoever rings.
    stay: AtomicU8,
    /// Somebody wants the thread to look around. Set by anybody, taken by the thread.
    is_rung: AtomicBool,
    /// Local tasks that other threads made ready, or that the thread left behind.
    inbox: RealMutex<VecDeque<Runnable>>,
    /// Of what the thread does while it waits. Written by the thread.
    pub(crate) counters: Counters,
}

/// What a thread does for the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// It is not inside `block_on`.
    Away = 0,
    /// It has the core, and sleeps in the server's wait point.
    Driving = 1,
    /// It has no core, and sleeps by itself.
    Waiting = 2,
}

impl HomeThread {
    fn of_this_thread() -> Self {
        Self {
            thread: thread::current(),
            stay: AtomicU8::new(Stay::Away as u8),
            is_rung: AtomicBool::new(false),
            inbox: RealMutex::default(),
            counters: Counters::new(),
        }
    }

    /// The thread is about to sleep elsewhere: `is_rung` must be read after this (home-1).
    pub(crate) fn set_stay(&self, stay: Stay) {
        self.stay.store(stay as u8, Ordering::SeqCst);
    }

    /// Makes the thread look around soon, if it is inside `block_on`.
    pub(crate) fn ring(&self, server: &Server) {
        self.is_rung.store(true, Ordering::SeqCst);
        let stay = self.stay.load(Ordering::SeqCst);
        if stay == Stay::Driving as u8 {
            server.unpark();
        } else if stay == Stay::Waiting as u8 {
            self.thread.unpark();
        }
    }

    /// Returns whether [`take_posted`](Self::take_posted) must be called.
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Ordering::SeqCst)
    }

    /// Gives the thread a task of its own to poll.
    pub(crate) fn post(&self, task: Runnable, server: &Server) {
        self.inbox().push_back(task);
        self.ring(server);
    }

    /// Keeps tasks of its own that the thread leaves unpolled.
    pub(crate) fn keep(&self, tasks: impl Iterator<Item = Runnable>) {
        self.inbox().extend(tasks);
        // For the thread's next stay.
        self.is_rung.store(true, Ordering::SeqCst);
    }

    /// Takes what was posted, and the ring.
    pub(crate) fn take_posted(&self) -> VecDeque<Runnable> {
        self.is_rung.store(false, Ordering::SeqCst);
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
    /// What those have counted that are not in the list any more. Written under the lock.
    gone: Counters,
}

impl Default for List {
    fn default() -> Self {
        Self { threads: Vec::new(), gone: Counters::new() }
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

    /// Adds what threads have counted while they waited. Returns how often they polled and slept.
    pub(crate) fn add_to(&self, metrics: &mut Metrics) -> (u64, u64) {
        let list = self.lock();
        let all = list.threads.iter().map(|home| &home.counters).chain([&list.gone]);
        all.fold((0, 0), |(polls, sleeps), counters| {
            counters.add_to(metrics);
            (polls + counters.polls(), sleeps + counters.sleeps())
        })
    }

    /// Rings for every thread that waits for the core, which was released before.
    pub(crate) fn ring_waiting(&self, server: &Server) {
        let waiting: Vec<_> = {
            let list = self.lock();
            let is_waiting =
                |home: &&Arc<HomeThread>| home.stay.load(Ordering::SeqCst) == Stay::Waiting as u8;
            list.threads.iter().filter(is_waiting).map(Arc::clone).collect()
        };
        for home in waiting {
            home.ring(server);
        }
    }

    /// Takes a ready local task of any thread, to be cancelled.
    pub(crate) fn take_any(&self) -> Option<Runnable> {
        let homes = self.lock().threads.clone();
        homes.iter().find_map(|home| home.inbox().pop_front())
    }
}
