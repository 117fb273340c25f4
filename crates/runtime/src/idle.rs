//! Which workers sleep, and whom to wake.
//!
//! A worker that runs out of work *searches*; one that finds nothing *sleeps*. Whoever makes work
//! wakes a sleeper, unless somebody searches already: a searcher that finds work wakes the next one
//! before it starts, and the last searcher looks once more after it has announced its sleep. So work
//! is never left lying, and a burst of it wakes one worker at a time instead of all.
//!
//! ```text
//!   running ── out of work (1) ──▶ searching ── nothing found (2) ──▶ sleeping
//!      ▲                              │  ▲                              │
//!      └───────── found (3) ──────────┘  └────────── woken (4) ─────────┘
//! ```
//!
//! (1) [`Idle::begin_search`], (2) [`Idle::begin_sleep`], (3) [`Idle::end_search`],
//! (4) [`Idle::choose`]. A sleeper that an event wakes leaves by [`Idle::end_sleep`].

use crate::sync::{AtomicUsize, Mutex, Ordering, fence, lock};

#[derive(Debug)]
pub(crate) struct Idle {
    /// The number of sleepers in the upper half, of searchers in the lower. Changed by the workers
    /// themselves and by those who wake them, always `SeqCst`: the order against the queues matters
    /// (see [`choose`](Self::choose)).
    counts: AtomicUsize,
    sleepers: Mutex<Vec<usize>>,
    worker_count: usize,
}

const SLEEPER: usize = 1 << 16;
const SEARCHERS: usize = SLEEPER - 1;

impl Idle {
    pub(crate) fn new(worker_count: usize) -> Self {
        Self {
            counts: AtomicUsize::new(0),
            sleepers: Mutex::new(Vec::with_capacity(worker_count)),
            worker_count,
        }
    }

    /// Returns whether the worker may search: at most half of the workers do, so that they do not get
    /// in each other's way. Where it may not, somebody else searches on its behalf.
    pub(crate) fn begin_search(&self) -> bool {
        if 2 * (self.counts.load(Ordering::SeqCst) & SEARCHERS) >= self.worker_count {
            return false;
        }
        self.counts.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// The searcher found work. Returns whether it was the last: it must wake another one then.
    #[must_use = "further work lies still if the last searcher wakes nobody"]
    pub(crate) fn end_search(&self) -> bool {
        self.counts.fetch_sub(1, Ordering::SeqCst) & SEARCHERS == 1
    }

    /// The worker goes to sleep. Returns whether it was the last searcher: it must look at all queues
    /// once more then.
    #[must_use = "work that came during the search lies still if the last searcher does not look again"]
    pub(crate) fn begin_sleep(&self, worker: usize, was_searching: bool) -> bool {
        let mut sleepers = lock(&self.sleepers);
        sleepers.push(worker);
        let before = self.counts.fetch_add(SLEEPER - usize::from(was_searching), Ordering::SeqCst);
        // Between the announcement and the caller's last look at the queues: see `choose`.
        fence(Ordering::SeqCst);
        was_searching && before & SEARCHERS == 1
    }

    /// The worker wakes up by itself. Returns whether it still was a sleeper; if not, somebody has
    /// chosen it, and it is a searcher.
    pub(crate) fn end_sleep(&self, worker: usize) -> bool {
        let mut sleepers = lock(&self.sleepers);
        let place = sleepers.iter().position(|&sleeper| sleeper == worker);
        if let Some(place) = place {
            sleepers.swap_remove(place);
            self.counts.fetch_sub(SLEEPER, Ordering::SeqCst);
        }
        place.is_some()
    }

    /// Returns whether the worker still is a sleeper.
    pub(crate) fn is_sleeping(&self, worker: usize) -> bool {
        lock(&self.sleepers).contains(&worker)
    }

    /// Returns whether it looks as if [`choose`](Self::choose) would find somebody: a hint, for work
    /// that is safe where it is.
    pub(crate) fn may_need_waking(&self) -> bool {
        is_needed(self.counts.load(Ordering::Relaxed))
    }

    /// Returns whether a worker sleeps: a hint.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.counts.load(Ordering::Relaxed) >= SLEEPER
    }

    /// Returns whether no worker is awake: a hint.
    pub(crate) fn is_everyone_asleep(&self) -> bool {
        self.counts.load(Ordering::Relaxed) == SLEEPER * self.worker_count
    }

    /// Chooses a sleeper to wake for work that was just queued, and makes a searcher of it.
    pub(crate) fn choose(&self) -> Option<usize> {
        // Between our push to a queue, before this call, and the load; its counterpart stands in
        // `begin_sleep`, between the announcement of a sleep and the last look at the queues. Either we
        // see the sleeper, or it sees the work.
        fence(Ordering::SeqCst);
        if !is_needed(self.counts.load(Ordering::SeqCst)) {
            return None;
        }
        let mut sleepers = lock(&self.sleepers);
        if !is_needed(self.counts.load(Ordering::SeqCst)) {
            return None;
        }
        let worker = sleepers.pop()?;
        // One sleeper less, one searcher more.
        self.counts.fetch_sub(SLEEPER - 1, Ordering::SeqCst);
        Some(worker)
    }
}

/// Somebody sleeps and nobody searches.
const fn is_needed(counts: usize) -> bool {
    counts & SEARCHERS == 0 && counts >= SLEEPER
}
