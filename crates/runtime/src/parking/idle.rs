//! The workers that sleep, and the choice of the one to wake.
//!
//! A worker that runs out of work *searches*; one that finds nothing *sleeps*. A thread that queues work
//! wakes a sleeper, unless a worker is searching already: a searcher that finds work wakes the next one
//! before it starts, and the last searcher checks all queues once more after it has announced its sleep. So
//! work is never left behind, and a burst of it wakes one worker after another instead of all at once.
//!
//! ```text
//!   running ── out of work (1) ──▶ searching ── nothing found (2) ──▶ sleeping
//!      ▲                              │  ▲                              │
//!      └───────── found (3) ──────────┘  └────────── woken (4) ─────────┘
//! ```
//!
//! (1) [`Idle::begin_search`], (2) [`Idle::begin_sleep`], (3) [`Idle::end_search`], (4) [`Idle::choose`]. A
//! sleeper that an event wakes leaves through [`Idle::end_sleep`].

use crate::sync::{AtomicUsize, Mutex, Ordering, fence, lock};

#[derive(Debug)]
pub(crate) struct Idle {
    /// The number of sleepers in the upper half, of searchers in the lower. Changed by the workers themselves
    /// and by the threads that wake them, always `SeqCst`: the order relative to the queues matters (see
    /// [`choose`](Self::choose)).
    counts: AtomicUsize,
    sleepers: Mutex<Vec<usize>>,
    worker_count: usize,
}

/// The result of taking over a call to a worker when another worker may have woken in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a worker that was called sleeps on otherwise"]
pub(crate) enum SearcherSwap {
    /// The called worker is a sleeper again, and the caller is a searcher in its place.
    Changed,
    /// Both were chosen: the called worker must be woken.
    BothChosen,
    /// The called worker has woken, or was not chosen for any work.
    NoneNeeded,
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

    /// Returns whether the worker may search: at most half of the workers do, so that they do not get in each
    /// other's way. If it may not, another worker is searching already.
    pub(crate) fn begin_search(&self) -> bool {
        if 2 * (self.counts.load(Ordering::SeqCst) & SEARCHERS) >= self.worker_count {
            return false;
        }
        self.counts.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// The searcher found work. Returns whether it was the last searcher: it must then wake another one.
    #[must_use = "further work is left behind if the last searcher wakes no worker"]
    pub(crate) fn end_search(&self) -> bool {
        self.counts.fetch_sub(1, Ordering::SeqCst) & SEARCHERS == 1
    }

    /// The worker goes to sleep. Returns whether it was the last searcher: it must then check all queues
    /// once more.
    #[must_use = "work that came during the search is left behind if the last searcher does not check again"]
    pub(crate) fn begin_sleep(&self, worker: usize, was_searching: bool) -> bool {
        let mut sleepers = lock(&self.sleepers);
        sleepers.push(worker);
        let before = self.counts.fetch_add(SLEEPER - usize::from(was_searching), Ordering::SeqCst);
        // Between the announcement and the caller's last check of the queues: see `choose`.
        fence(Ordering::SeqCst);
        was_searching && before & SEARCHERS == 1
    }

    /// The worker woke without being chosen. Returns whether it still was a sleeper; if not, it has been
    /// chosen meanwhile, and is a searcher.
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

    /// The kernel may have woken `worker` in place of `called`: they change places if only the latter was
    /// chosen. `take_back` withdraws the call, unless `called` has woken as well.
    pub(crate) fn swap_with_searcher(
        &self,
        worker: usize,
        called: usize,
        take_back: impl FnOnce() -> bool,
    ) -> SearcherSwap {
        // A worker that wakes learns under this lock whether it is still a sleeper.
        let mut sleepers = lock(&self.sleepers);
        let is_chosen = !sleepers.contains(&called);
        let Some(place) = sleepers.iter().position(|&sleeper| sleeper == worker) else {
            return if is_chosen { SearcherSwap::BothChosen } else { SearcherSwap::NoneNeeded };
        };
        if !take_back() || !is_chosen {
            return SearcherSwap::NoneNeeded;
        }
        sleepers[place] = called;
        SearcherSwap::Changed
    }

    /// Returns a sleeping worker other than `worker`, which remains a sleeper.
    pub(crate) fn other_sleeper(&self, worker: usize) -> Option<usize> {
        lock(&self.sleepers).iter().copied().find(|&sleeper| sleeper != worker)
    }

    /// Returns whether [`choose`](Self::choose) would probably find a worker: a hint, for work that is safe
    /// where it is.
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

    /// Chooses a sleeper to wake for work that was just queued, and makes it a searcher.
    pub(crate) fn choose(&self) -> Option<usize> {
        // Between our push to a queue, before this call, and the load. The fence in `begin_sleep`, between
        // the announcement of a sleep and the last check of the queues, pairs with it: either we see the
        // sleeper, or it sees the work.
        fence(Ordering::SeqCst);
        if !is_needed(self.counts.load(Ordering::SeqCst)) {
            return None;
        }
        let mut sleepers = lock(&self.sleepers);
        if !is_needed(self.counts.load(Ordering::SeqCst)) {
            return None;
        }
        let worker = sleepers.pop()?;
        // One sleeper fewer, one searcher more.
        self.counts.fetch_sub(SLEEPER - 1, Ordering::SeqCst);
        Some(worker)
    }
}

/// A worker sleeps and none searches.
const fn is_needed(counts: usize) -> bool {
    counts & SEARCHERS == 0 && counts >= SLEEPER
}

// The models of `tests/loom.rs` compile this file too, but not the tests below.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Worker {
        Running,
        Searching,
        Sleeping,
    }

    /// Goal: a worker that is woken in place of another one does what that one was chosen for, which sleeps on; if both were chosen, or
    /// the other one is awake, they stay as they are. Method: every case of two workers out of three.
    #[test]
    fn who_is_woken_instead_answers() {
        for case in 0..1 << 3 {
            let [is_chosen, is_called_chosen, is_awake] = [1, 2, 4].map(|bit| case & bit > 0);
            let idle = Idle::new(3);
            for worker in 0..3 {
                let _ = idle.begin_sleep(worker, false);
            }
            let leave = |worker| assert!(idle.end_sleep(worker));
            [(1, is_chosen), (2, is_called_chosen)]
                .into_iter()
                .filter(|(_, is_out)| *is_out)
                .for_each(|(worker, _)| leave(worker));
            let counts = idle.counts.load(Ordering::SeqCst);
            let places = idle.swap_with_searcher(1, 2, || !is_awake);
            let expected = match (is_chosen, is_called_chosen) {
                (true, true) => SearcherSwap::BothChosen,
                (false, true) if !is_awake => SearcherSwap::Changed,
                _ => SearcherSwap::NoneNeeded,
            };
            assert_eq!(places, expected, "{case}");
            assert_eq!(idle.counts.load(Ordering::SeqCst), counts, "as many sleepers");
            let has_changed = places == SearcherSwap::Changed;
            assert_eq!(idle.is_sleeping(1), !is_chosen && !has_changed, "{case}");
            assert_eq!(idle.is_sleeping(2), !is_called_chosen || has_changed, "{case}");
            assert_eq!(
                idle.other_sleeper(0),
                [1, 2].into_iter().find(|&worker| idle.is_sleeping(worker))
            );
        }
    }

    proptest! {
        /// Goal: the counts are those of the workers' states; at most half of the workers search; the last
        /// to fall asleep is woken, and only while no worker searches. Method: random steps of up to five
        /// workers, one at a time, against a list of their states.
        #[test]
        fn the_counts_agree_with_the_states(count in 1usize..6, steps in prop::collection::vec((0u8..4, 0usize..5), 0..200)) {
            let idle = Idle::new(count);
            let mut states = vec![Worker::Running; count];
            // In the order in which they fell asleep.
            let mut asleep: Vec<usize> = Vec::new();
            for (kind, worker) in steps {
                let worker = worker % count;
                let searchers = states.iter().filter(|&&state| state == Worker::Searching).count();
                match (kind, states[worker]) {
                    // A thread that queues work.
                    (0, _) => {
                        let expected = if searchers == 0 { asleep.pop() } else { None };
                        prop_assert_eq!(idle.choose(), expected);
                        if let Some(woken) = expected {
                            states[woken] = Worker::Searching;
                        }
                    }
                    (1, Worker::Running) => {
                        let may_search = 2 * searchers < count;
                        prop_assert_eq!(idle.begin_search(), may_search);
                        if may_search {
                            states[worker] = Worker::Searching;
                        }
                    }
                    (1, Worker::Searching) => {
                        prop_assert_eq!(idle.end_search(), searchers == 1);
                        states[worker] = Worker::Running;
                    }
                    (_, Worker::Running | Worker::Searching) => {
                        let was_searching = states[worker] == Worker::Searching;
                        let was_last = was_searching && searchers == 1;
                        prop_assert_eq!(idle.begin_sleep(worker, was_searching), was_last);
                        states[worker] = Worker::Sleeping;
                        asleep.push(worker);
                    }
                    // An event wakes it.
                    (_, Worker::Sleeping) => {
                        prop_assert!(idle.end_sleep(worker));
                        states[worker] = Worker::Running;
                        let at = asleep.iter().position(|&sleeper| sleeper == worker);
                        asleep.swap_remove(at.expect("it sleeps"));
                    }
                }
                let searches = states.contains(&Worker::Searching);
                let sleeps = states.contains(&Worker::Sleeping);
                prop_assert_eq!(idle.may_need_waking(), sleeps && !searches);
                prop_assert_eq!(idle.has_sleepers(), sleeps);
                prop_assert_eq!(idle.is_everyone_asleep(), asleep.len() == count);
                for (worker, &state) in states.iter().enumerate() {
                    prop_assert_eq!(idle.is_sleeping(worker), state == Worker::Sleeping);
                    if state != Worker::Sleeping {
                        prop_assert!(!idle.end_sleep(worker));
                    }
                }
            }
        }
    }
}
