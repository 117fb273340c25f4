//! Reserve threads: they watch and serve the reaction lane while every worker is inside a long poll, and both
//! lanes in the place of a thread that sleeps in the kernel.
//!
//! ```text
//!             activate (1)                nothing to serve (2)
//!   no thread ───────────▶ serving ◀──────────────────────▶ in the poller: the sentinel
//!       ▲                   │   ▲ activate (1)
//!       │ keep-alive over   ▼   │ retire (3): another thread watches
//!       └───────────────── spare
//! ```
//! Only the supervisor does (1), when no other thread can watch or serve; the thread itself does (2) and (3).

use std::{panic::Location, time::Duration};

use crate::{
    measure::ReserveMetrics,
    refusal::{self, Resource},
    sync::{
        Arc, AtomicU64, AtomicUsize, Condvar, Ordering, PoisonError, RealGuard, RealMutex,
        thread::{self, JoinHandle},
    },
};

use super::{shared::HybridShared, worker};

/// The maximum number of reserve threads, the same as of blocking threads: each takes a stack, and a
/// descriptor if the kernel helps against hogs.
pub(crate) const RESERVES_MAX: usize = 512;

/// This many spare threads, plus as many as recently replaced sleepers, are kept for the time set in the
/// builder; further ones for this time.
const SPARES: usize = 2;
const SURPLUS: Duration = Duration::from_millis(10);

/// One bit for each slot.
const WORDS: usize = RESERVES_MAX / 64;

pub(crate) struct Reserves {
    /// One bit for each thread that is not a spare. Set by the supervisor, cleared by the thread.
    serving: [AtomicU64; WORDS],
    /// The number of bits that are set, or about to be.
    serving_count: AtomicUsize,
    state: RealMutex<ReservesState>,
    /// One per slot: signalled when its spare is called, and for the shutdown.
    called: Box<[Condvar]>,
    keep_alive: Duration,
}

struct ReservesState {
    slots: Vec<ReserveSlot>,
    /// Threads that wait to be called; the last one is called first, so that the surplus times out.
    spares: Vec<usize>,
    demand: Demand,
    threads: Vec<JoinHandle<()>>,
    is_shutdown: bool,
    /// The kernel refused a thread, and that was logged.
    was_refused: bool,
    /// More threads were needed than are allowed, and that was logged.
    was_at_bound: bool,
}

/// The number of threads that recently slept in the kernel at once: that many will probably do so again, so their
/// substitutes are kept. Threads called for other reasons do not count: they are few, and needed rarely.
#[derive(Debug, Default)]
struct Demand {
    peak: usize,
}

impl Demand {
    /// Records how many threads are asleep.
    fn note(&mut self, blocked: usize) {
        self.peak = self.peak.max(blocked);
    }

    /// A spare was not called within its time and ends; `left` threads remain.
    fn forget_one(&mut self, left: usize) {
        self.peak = self.peak.min(left + 1).saturating_sub(1);
    }

    /// Returns how long the thread that is now the last of `spares` spare ones is kept. In each `keep_alive`,
    /// half of those kept for sleepers end. A quarter more than were asleep are kept, since threads on their
    /// way into the kernel are not yet counted.
    fn keep_alive(&self, spares: usize, keep_alive: Duration) -> Duration {
        if spares <= SPARES {
            return keep_alive;
        }
        match ((self.peak + self.peak / 4) / spares).checked_ilog2() {
            Some(halvings) => keep_alive.saturating_mul(halvings + 1),
            None => keep_alive.min(SURPLUS),
        }
    }
}

enum ReserveSlot {
    /// No thread.
    Empty,
    Spare,
    Serving,
}

/// The result of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activated {
    Spare,
    NewThread,
    /// All of them serve, or the kernel refused a thread.
    Refused,
}

impl Reserves {
    pub(crate) fn new(limit: usize, keep_alive: Duration) -> Self {
        Self {
            serving: std::array::from_fn(|_| AtomicU64::new(0)),
            serving_count: AtomicUsize::new(0),
            state: RealMutex::new(ReservesState {
                slots: (0..limit).map(|_| ReserveSlot::Empty).collect(),
                spares: Vec::with_capacity(limit),
                demand: Demand::default(),
                threads: Vec::new(),
                is_shutdown: false,
                was_refused: false,
                was_at_bound: false,
            }),
            called: (0..limit).map(|_| Condvar::new()).collect(),
            keep_alive,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.called.len()
    }

    /// Returns whether any of them serves: one load.
    #[inline]
    pub(crate) fn is_serving(&self) -> bool {
        self.serving_count() > 0
    }

    /// Returns how many threads are not spares.
    pub(crate) fn serving_count(&self) -> usize {
        self.serving_count.load(Ordering::Relaxed)
    }

    /// The slots of the threads that are not spares.
    pub(crate) fn serving(&self) -> impl Iterator<Item = usize> + '_ {
        let words = if self.is_serving() { &self.serving[..] } else { &[] };
        words.iter().enumerate().flat_map(|(word, bits)| {
            let mut bits = bits.load(Ordering::Acquire);
            std::iter::from_fn(move || {
                let slot = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (slot < u64::BITS).then_some(64 * word + slot as usize)
            })
        })
    }

    fn begin_serving(&self, slot: usize) {
        self.serving_count.fetch_add(1, Ordering::AcqRel);
        self.serving[slot / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel);
    }

    fn end_serving(&self, slot: usize) {
        let bit = 1 << (slot % 64);
        if self.serving[slot / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            self.serving_count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Makes one more thread serve.
    pub(crate) fn activate(&self, shared: &Arc<HybridShared>) -> Activated {
        let mut state = self.lock();
        if state.is_shutdown {
            return Activated::Refused;
        }
        state.demand.note(shared.blocked_count());

        if let Some(slot) = state.spares.pop() {
            state.slots[slot] = ReserveSlot::Serving;
            self.begin_serving(slot);
            drop(state);
            self.called[slot].notify_one();
            return Activated::Spare;
        }

        let is_empty = |slot: &ReserveSlot| matches!(slot, ReserveSlot::Empty);
        let Some(slot) = state.slots.iter().position(is_empty) else {
            // A thread that is ending still has its slot.
            let is_at_bound = self.serving().count() == self.limit();
            let is_news = is_at_bound && !std::mem::replace(&mut state.was_at_bound, true);
            drop(state);
            if is_news {
                log_thread_limit(shared, self.limit());
            }
            return Activated::Refused;
        };

        state.slots[slot] = ReserveSlot::Serving;
        let runtime = Arc::clone(shared);
        shared.begin_thread();
        self.begin_serving(slot);

        let name = format!("{}-reserve-{slot}", shared.options.thread_name);
        let body = move || worker::run_reserve(runtime, slot);
        let spawned = thread::Builder::new().name(name).spawn(body);
        match spawned {
            Ok(thread) => {
                state.threads.retain(|thread| !thread.is_finished());
                state.threads.push(thread);
                Activated::NewThread
            }
            Err(error) => {
                self.end_serving(slot);
                state.slots[slot] = ReserveSlot::Empty;
                let was_refused = std::mem::replace(&mut state.was_refused, true);
                drop(state);
                // Never the last: the supervisor, which calls this, counts too.
                shared.end_thread();
                if !was_refused {
                    tracing::warn!(
                        %error,
                        "no reserve thread could be made{}; events wait while every worker is inside a \
                         long poll",
                        refusal::cause(Resource::Thread, &error)
                    );
                }
                Activated::Refused
            }
        }
    }

    /// The thread of `slot` has nothing to do while `blocked` threads are asleep. Returns whether it is
    /// called again within its keep-alive; otherwise it must end, and give its queues back.
    pub(crate) fn rest(&self, slot: usize, blocked: usize) -> bool {
        let mut state = self.lock();
        self.end_serving(slot);
        state.slots[slot] = ReserveSlot::Spare;
        state.spares.push(slot);
        state.demand.note(blocked);
        let keep_alive = state.demand.keep_alive(state.spares.len(), self.keep_alive);
        let is_spare = |state: &mut ReservesState| {
            matches!(state.slots[slot], ReserveSlot::Spare) && !state.is_shutdown
        };
        let (mut state, _) = self.called[slot]
            .wait_timeout_while(state, keep_alive, is_spare)
            .unwrap_or_else(PoisonError::into_inner);
        if state.is_shutdown {
            return false;
        }
        if matches!(state.slots[slot], ReserveSlot::Spare) {
            state.spares.retain(|&spare| spare != slot);
            let left = self.serving_count() + state.spares.len();
            state.demand.forget_one(left);
            // Neither spare nor empty: it will not be called any more.
            state.slots[slot] = ReserveSlot::Serving;
            return false;
        }
        true
    }

    /// The thread of `slot` ends: another one may take its place.
    pub(crate) fn leave(&self, slot: usize) {
        let mut state = self.lock();
        self.end_serving(slot);
        state.slots[slot] = ReserveSlot::Empty;
    }

    /// Calls all spares, which end.
    pub(crate) fn shutdown(&self) {
        self.lock().is_shutdown = true;
        self.called.iter().for_each(Condvar::notify_one);
    }

    /// Returns how many serve, how many are spare, and the maximum; the other fields are not known here.
    pub(crate) fn metrics(&self) -> ReserveMetrics {
        let (serving, spare) = (self.serving().count(), self.lock().spares.len());
        let (limit, has_sentinel) = (self.limit(), false);
        ReserveMetrics { serving, spare, limit, has_sentinel, calls: 0, new_threads: 0, refused: 0 }
    }

    pub(crate) fn take_threads(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.lock().threads)
    }

    fn lock(&self) -> RealGuard<'_, ReservesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most stuck threads that the warning names.
const NAMED_MAX: usize = 8;

/// Names some of the stuck threads: where their tasks were spawned, and where they sleep in the kernel.
pub(crate) fn examples(caught: &[(&'static Location<'static>, Option<String>)]) -> String {
    let name = |(site, place): &(&'static Location<'static>, Option<String>)| match place {
        Some(place) => format!("the task spawned at {site} sleeps in {place}"),
        None => format!("the task spawned at {site} computes"),
    };
    caught.iter().take(NAMED_MAX).map(name).collect::<Vec<_>>().join("; ")
}

/// Logs what all threads are stuck in.
fn log_thread_limit(shared: &HybridShared, reserve_threads: usize) {
    let caught = shared.caught_in();
    let asleep = caught.iter().filter(|(_, place)| place.is_some()).count();
    let raise = if reserve_threads < RESERVES_MAX {
        "Raise `RuntimeBuilder::reserve_threads`, or call"
    } else {
        "Call"
    };
    tracing::warn!(
        reserve_threads,
        caught = caught.len(),
        asleep,
        examples = %examples(&caught),
        "every worker and every reserve thread is inside a long poll: tasks wait until the first of \
         these polls ends, or for ever if all of them wait for another task. {raise} blocking code through \
         `spawn_blocking`"
    );
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(1);

    /// Goal: spares beyond two end at once, unless they recently replaced sleepers; of those, half end in each
    /// keep-alive. Method: by their number, with and without sleepers.
    #[test]
    fn substitutes_of_sleepers_are_kept() {
        let mut demand = Demand::default();
        let kept = |demand: &Demand| {
            [1, 2, 3, 9, 10, 18, 19, 37, 38, 75, 76]
                .map(|spares| demand.keep_alive(spares, KEEP).as_millis())
        };
        let usual = [1000, 1000, 10, 10, 10, 10, 10, 10, 10, 10, 10];
        assert_eq!(kept(&demand), usual);
        demand.note(2);
        assert_eq!(kept(&demand), usual, "no more than two");
        demand.note(60);
        demand.note(9);
        assert_eq!(kept(&demand), [1000, 1000, 5000, 4000, 3000, 3000, 2000, 2000, 1000, 1000, 10]);
        assert_eq!(demand.keep_alive(3, Duration::MAX), Duration::MAX);
        assert_eq!(demand.keep_alive(76, Duration::ZERO), Duration::ZERO);
    }

    /// Goal: past demand is forgotten as spares end that were not called, also if there are fewer threads
    /// by now. Method: as many ends, and one when most threads have gone in another way.
    #[test]
    fn demand_is_forgotten() {
        let mut demand = Demand::default();
        demand.note(60);
        for left in (40..60).rev() {
            demand.forget_one(left);
        }
        assert_eq!(demand.peak, 40);
        demand.forget_one(4);
        assert_eq!(demand.peak, 4);
        for left in [3, 2, 1, 0, 0] {
            demand.forget_one(left);
        }
        assert_eq!(demand.peak, 0);
    }
}
