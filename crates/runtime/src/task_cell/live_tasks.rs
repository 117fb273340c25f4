//! All live tasks of a runtime, so that a shutdown finds them wherever they wait.
//!
//! Every spawn and every end of a task on any thread goes through this list. So tasks are kept in *shards*,
//! each with its own lock, reference count and cache lines, and a thread adds tasks to its own shard. A task
//! leaves the shard that it was added to, under a lock that is uncontended unless the task has moved to
//! another thread.
//!
//! The invariant holds for each shard separately, under its lock: a task is either added before the shard is
//! closed, and then woken by [`LiveTasks::close`], or it is refused.
//!
//! Tasks leave in a different order than they came, so a shard has holes after a burst; free places at its
//! end are given back.

use std::task::Waker;

use crossbeam::utils::CachePadded;
use slab::Slab;

use super::info::TaskInfo;
use crate::sync::{
    Arc, AtomicBool, Mutex, Ordering,
    count::{AtomicU64, RELAXED},
    lock, thread, thread_local,
};

/// The maximum number of shards; more threads share them.
const SHARDS_MAX: usize = 256;

/// Shards per processor, so that two busy threads rarely share one.
const SHARDS_PER_PROCESSOR: usize = 4;

/// The number of places kept in a shard, however few are in use.
const KEPT: usize = 1024;

/// The live tasks, by the waker that brings each of them to a worker, with the scheduler's information about each.
#[derive(Debug)]
pub(crate) struct LiveTasks<I = &'static TaskInfo> {
    /// A power of two.
    shards: Box<[Arc<Shard<I>>]>,
}

#[derive(Debug)]
struct Shard<I> {
    live: CachePadded<Mutex<ShardTasks<I>>>,
    /// Set before all tasks are woken to be dropped; read by each poll that leaves its task pending.
    is_closing: CachePadded<AtomicBool>,
}

#[derive(Debug)]
struct ShardTasks<I> {
    /// The information may be in the task's memory, which the waker keeps (task-1).
    wakers: ShrinkingSlab<(Waker, I)>,
    /// The names of those tasks that have one.
    names: ShrinkingSlab<Arc<str>>,
    is_closed: bool,
}

/// A slab that returns memory as it empties: when the second half of its places has become free.
#[derive(Debug)]
struct ShrinkingSlab<T> {
    slab: Slab<T>,
    /// One past the last place in use so far.
    end: usize,
    /// The beginning of the second half, or a little earlier.
    half: usize,
    /// The number of places from `half` on that are in use.
    upper: usize,
}

impl<T> ShrinkingSlab<T> {
    const fn new() -> Self {
        Self { slab: Slab::new(), end: 0, half: 0, upper: 0 }
    }

    fn insert(&mut self, value: T) -> usize {
        let key = self.slab.insert(value);
        self.upper += usize::from(key >= self.half);
        if key >= self.end {
            self.end = key + 1;
            if self.end >= 4 * self.half.max(KEPT / 4) {
                self.halve();
            }
        }
        key
    }

    fn remove(&mut self, key: usize) -> Option<T> {
        let removed = self.slab.try_remove(key);
        if removed.is_some() && key >= self.half {
            self.upper -= 1;
            if self.upper == 0 && self.end > KEPT {
                self.trim();
            }
        }
        removed
    }

    /// Gives back the free places at the end, at least half of all, so that all the scans together cost less
    /// than the burst.
    #[cold]
    fn trim(&mut self) {
        self.slab.shrink_to_fit();
        self.end = self.slab.iter().next_back().map_or(0, |(key, _)| key + 1);
        self.halve();
    }

    #[cold]
    fn halve(&mut self) {
        self.half = self.end / 2;
        self.upper = self.slab.iter().rev().take_while(|(key, _)| *key >= self.half).count();
    }
}

/// A place among the live tasks, released on drop.
#[derive(Debug)]
pub(crate) struct Membership<I = &'static TaskInfo> {
    shard: Arc<Shard<I>>,
    /// `None` for a task that came after the shutdown, which does not wait for it.
    key: Option<usize>,
    /// The place of its name in the shard.
    name: Option<usize>,
}

impl<I> LiveTasks<I> {
    pub(crate) fn new() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::with_shards((processors * SHARDS_PER_PROCESSOR).min(SHARDS_MAX))
    }

    /// Makes at least `count` shards.
    pub(crate) fn with_shards(count: usize) -> Self {
        let shards = (0..count.next_power_of_two()).map(|_| Arc::new(Shard::new())).collect();
        Self { shards }
    }

    /// Adds the task that `make` creates from its place and the key of its name (zero for no name). Returns
    /// what `make` returned besides the task's waker, and whether the task is accepted.
    ///
    /// `make` runs under the shard's lock and must not drop the place that it gets.
    pub(crate) fn enter<T>(
        &self,
        name: Option<Arc<str>>,
        make: impl FnOnce(Membership<I>, u32) -> (T, Waker, I),
    ) -> (T, bool) {
        let index = thread_index() & (self.shards.len() - 1);
        let shard = &self.shards[index];
        let mut live = lock(&shard.live);
        if live.is_closed {
            drop(live);
            let outside = Membership { shard: Arc::clone(shard), key: None, name: None };
            return (make(outside, 0).0, false);
        }
        let key = live.wakers.slab.vacant_key();
        let name = name.map(|name| live.names.insert(name));
        let name_key = name.map_or(0, |name| self.name_key(index, name));
        let membership = Membership { shard: Arc::clone(shard), key: Some(key), name };
        let (made, waker, info) = make(membership, name_key);
        live.wakers.insert((waker, info));
        (made, true)
    }

    /// Returns how many tasks have not ended. Tasks that come or go during the call may be counted or not.
    /// After [`close`](Self::close) no task is added, so zero then means that all have ended.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.live).wakers.slab.len()).sum()
    }

    /// Calls `note` with each live task. Runs under the lock of its shard: `note` must not spawn, end or wake tasks.
    pub(crate) fn for_each(&self, mut note: impl FnMut(&Waker, &I)) {
        for shard in &self.shards {
            lock(&shard.live).wakers.slab.iter().for_each(|(_, (waker, info))| note(waker, info));
        }
    }

    /// Accepts no more tasks.
    pub(crate) fn refuse(&self) {
        for shard in &self.shards {
            lock(&shard.live).is_closed = true;
        }
    }

    /// Accepts no more tasks, and wakes all live ones.
    pub(crate) fn close(&self) {
        for shard in &self.shards {
            shard.is_closing.store(true, Ordering::Release);
        }
        let mut wakers: Vec<Waker> = Vec::new();
        for shard in &self.shards {
            let mut live = lock(&shard.live);
            live.is_closed = true;
            wakers.extend(live.wakers.slab.iter().map(|(_, (waker, _))| waker.clone()));
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Returns the name of the live task with this key, which [`enter`](Self::enter) gave out.
    pub(crate) fn name(&self, name_key: u32) -> Option<Arc<str>> {
        let place = usize::try_from(name_key.checked_sub(1)?).ok()?;
        let (shard, name) = (place % self.shards.len(), place / self.shards.len());
        lock(&self.shards[shard].live).names.slab.get(name).cloned()
    }

    /// Zero for a name whose place is too large for a key.
    fn name_key(&self, shard: usize, name: usize) -> u32 {
        u32::try_from(name * self.shards.len() + shard + 1).unwrap_or(0)
    }
}

impl<I> Shard<I> {
    fn new() -> Self {
        let live = ShardTasks {
            wakers: ShrinkingSlab::new(),
            names: ShrinkingSlab::new(),
            is_closed: false,
        };
        Self {
            live: CachePadded::new(Mutex::new(live)),
            is_closing: CachePadded::new(AtomicBool::new(false)),
        }
    }
}

impl<I> Membership<I> {
    /// Returns whether all tasks have been woken to be dropped, or are about to be.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.shard.is_closing.load(Ordering::Acquire)
    }

    /// Returns the name of the task.
    pub(crate) fn name(&self) -> Option<Arc<str>> {
        lock(&self.shard.live).names.slab.get(self.name?).cloned()
    }
}

impl<I> Drop for Membership<I> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut live = lock(&self.shard.live);
        let waker = live.wakers.remove(key);
        let name = self.name.and_then(|name| live.names.remove(name));
        // A waker may be the last reference to a task.
        drop(live);
        drop((waker, name));
    }
}

/// A number for the calling thread, which selects its shard.
fn thread_index() -> usize {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static INDEX: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
    }
    INDEX.with(|index| {
        if index.get() == usize::MAX {
            // It may wrap: threads then share shards.
            let next = usize::try_from(NEXT.fetch_add(1, RELAXED)).unwrap_or(0);
            index.set(next & (usize::MAX >> 1));
        }
        index.get()
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::{sync::atomic::AtomicUsize, task::Wake};

    use super::*;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn enter(
        live: &LiveTasks<()>,
        name: Option<&str>,
    ) -> (Option<Membership<()>>, u32, Arc<Count>) {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let (made, accepted) =
            live.enter(name.map(Arc::from), |membership, key| ((membership, key), waker, ()));
        (accepted.then_some(made.0), made.1, count)
    }

    /// Goal: names are found by their keys in any shard, and are gone with their tasks.
    /// Method: many threads, so that every shard is used; named tasks among unnamed ones.
    #[test]
    fn names_are_found_by_key_in_every_shard() {
        let live = LiveTasks::with_shards(8);
        let entered: Vec<_> = thread::scope(|scope| {
            let live = &live;
            let threads: Vec<_> = (0..32)
                .map(|thread| {
                    scope.spawn(move || {
                        let unnamed = enter(live, None);
                        assert_eq!(unnamed.1, 0);
                        let name = format!("task {thread}");
                        let (membership, key, _) = enter(live, Some(&name));
                        (membership, key, name)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(live.count(), 32);
        for (membership, key, name) in &entered {
            assert_eq!(live.name(*key).as_deref(), Some(name.as_str()));
            let own = membership.as_ref().and_then(Membership::name);
            assert_eq!(own.as_deref(), Some(name.as_str()));
        }
        let keys: Vec<u32> = entered.iter().map(|entered| entered.1).collect();
        drop(entered);
        assert_eq!(live.count(), 0);
        for key in keys.into_iter().chain([0, 1_000_000, u32::MAX]) {
            assert_eq!(live.name(key), None);
        }
    }

    /// Goal: a close wakes every task that is live then, in all shards, and no other; later ones are
    /// refused. Method: tasks entered by many threads, of which some have ended.
    #[test]
    fn a_close_wakes_all_live_tasks() {
        let live = LiveTasks::with_shards(4);
        let tasks: Vec<_> = thread::scope(|scope| {
            let live = &live;
            let threads: Vec<_> = (0..16)
                .map(|_| scope.spawn(|| [enter(live, None), enter(live, Some("n"))]))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        let (mut living, mut ended) = (Vec::new(), Vec::new());
        for (place, (membership, _, count)) in tasks.into_iter().enumerate() {
            if place % 3 == 0 { ended.push(count) } else { living.push((membership, count)) }
        }
        assert_eq!(live.count(), living.len());
        assert!(
            living.iter().all(|(task, _)| task.as_ref().is_some_and(|task| !task.is_closing()))
        );
        live.close();
        assert!(living.iter().all(|(_, count)| count.0.load(Ordering::SeqCst) == 1));
        assert!(ended.iter().all(|count| count.0.load(Ordering::SeqCst) == 0));
        assert!(living.iter().all(|(task, _)| task.as_ref().is_some_and(Membership::is_closing)));
        assert!(enter(&live, Some("late")).0.is_none(), "refused");
        drop(living);
        assert_eq!(live.count(), 0);
    }

    /// Returns how many places the only shard has room for, with and without names.
    fn room(live: &LiveTasks<()>) -> [usize; 2] {
        let live = lock(&live.shards[0].live);
        [live.wakers.slab.capacity(), live.names.slab.capacity()]
    }

    /// Goal: after a burst the memory of its places is given back, and what is left is found by key as before.
    /// Method: bursts that end from the front, from the back, and at random, but for a few tasks that came first.
    #[test]
    fn a_burst_is_forgotten() {
        const BURST: usize = 50_000;
        let live = LiveTasks::with_shards(1);
        let early: Vec<_> = (0..10).map(|index| enter(&live, Some(&format!("{index}")))).collect();
        for order in 0..3 {
            let mut burst: Vec<_> = (0..BURST).map(|_| enter(&live, Some("burst"))).collect();
            assert!(room(&live).iter().all(|&room| room >= BURST));
            match order {
                0 => burst.reverse(),
                1 => fastrand::Rng::with_seed(7).shuffle(&mut burst),
                _ => {}
            }
            while let Some(task) = burst.pop() {
                drop(task);
            }
            assert_eq!(live.count(), early.len());
            assert!(room(&live).iter().all(|&room| room <= KEPT), "{:?}", room(&live));
            for (index, (membership, key, _)) in early.iter().enumerate() {
                assert_eq!(live.name(*key).as_deref(), Some(index.to_string().as_str()));
                assert!(membership.is_some());
            }
        }
        // The last one keeps its place, and the others theirs, until it leaves.
        let mut burst: Vec<_> = (0..BURST).map(|_| enter(&live, None)).collect();
        let last = burst.pop();
        drop(burst);
        assert!(room(&live)[0] >= BURST);
        drop(last);
        drop(early);
        assert_eq!(live.count(), 0);
        assert!(room(&live).iter().all(|&room| room <= KEPT), "{:?}", room(&live));
    }

    /// Goal: the count that tells when to give memory back is right, whatever comes and goes. Method: a slab of
    /// a thousand and more places that grows and empties at random, beside a count by hand.
    #[test]
    fn upper_places_are_counted() {
        let mut random = fastrand::Rng::with_seed(15);
        let (mut places, mut keys) = (ShrinkingSlab::new(), Vec::new());
        for round in 0..10_000 {
            let grows = round / 2_500 % 2 == 0;
            if keys.is_empty() || random.u8(..10) < if grows { 9 } else { 1 } {
                keys.push(places.insert(round));
            } else {
                let key = keys.swap_remove(random.usize(..keys.len()));
                assert!(places.remove(key).is_some());
                assert!(places.remove(key).is_none());
            }
            let upper = keys.iter().filter(|&&key| key >= places.half).count();
            assert_eq!((places.upper, places.slab.len()), (upper, keys.len()));
            assert!(keys.iter().all(|&key| key < places.end));
            assert!(upper > 0 || places.end <= KEPT || keys.is_empty(), "{places:?}");
        }
    }

    /// Goal: say what it takes to enter a task and to let it go, and how much of that is taking the lock
    /// twice. Method: many of them, on one thread; nothing is judged.
    #[test]
    #[ignore = "measures, and judges nothing"]
    fn what_a_place_costs() {
        const COUNT: u32 = 2_000_000;
        let live = LiveTasks::new();
        let waker = Waker::noop();
        let each = |what: &str, step: &mut dyn FnMut()| {
            let began = vigie_detect::clock::monotonic_now();
            (0..COUNT).for_each(|_| step());
            let took = vigie_detect::clock::monotonic_now() - began;
            println!("{what}: {:.1} ns", took.as_secs_f64() * 1e9 / f64::from(COUNT));
        };
        each("a place, taken and given up", &mut || {
            drop(live.enter(None, |membership, _| (membership, waker.clone(), ())));
        });
        let mutex = Mutex::new(());
        each("a lock, taken twice", &mut || {
            drop(lock(&mutex));
            drop(lock(&mutex));
        });
    }
}
