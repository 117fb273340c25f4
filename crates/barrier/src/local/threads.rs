//! Barriers of threads, outside any runtime.

use std::sync::Arc;

use rustix::thread::futex;
use vigie_detect::{Instant, Waiter, clock::monotonic_now, refuse_in_simulation, sleep_thread};

use super::{
    SPINS,
    absence::Absences,
    central::{Arrival, Central, Position},
};
use crate::{
    error::{Arrived, BarrierError, Passed},
    group::{Group, Rank, next_group},
    sync::{AtomicU64, Ordering},
};

/// A barrier of threads, which block in it: not for tasks, whose executor would stall.
///
/// ```
/// use std::thread;
/// use vigie_barrier::{Group, local::ThreadBarrier};
///
/// let threads: Vec<_> = ThreadBarrier::new(Group::new(4)?)
///     .into_members()
///     .map(|mut member| thread::spawn(move || (0..10).try_for_each(|_| member.wait().map(drop))))
///     .collect();
/// for thread in threads {
///     thread.join().expect("no panic")?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cost
/// One atomic addition per member. A waiting member first spins, then yields the processor repeatedly, then sleeps:
/// if one member is 100 ms late, the others together use less than 1 % of a processor.
#[derive(Debug)]
#[must_use = "a barrier does nothing before its members wait"]
pub struct ThreadBarrier {
    shared: Arc<ThreadShared>,
}

#[derive(Debug)]
struct ThreadShared {
    group: Group,
    number: u64,
    central: Central,
    absences: Absences,
    /// The time at which sleepers were last woken, in nanoseconds. `Relaxed`: a measurement.
    woken_ns: AtomicU64,
}

impl ThreadBarrier {
    /// Creates a barrier for a group, which no member has entered.
    pub fn new(group: Group) -> Self {
        let (central, absences) = (Central::new(), Absences::new(group));
        let (number, woken_ns) = (next_group(), AtomicU64::new(0));
        Self { shared: Arc::new(ThreadShared { group, number, central, absences, woken_ns }) }
    }

    /// Returns the members, in the order of their ranks. Give each to one thread: it is the right to enter as that
    /// rank, once in each barrier. A member that is dropped has left the group.
    #[must_use = "members that are dropped have left the group"]
    pub fn into_members(self) -> impl ExactSizeIterator<Item = ThreadMember> {
        let Self { shared } = self;
        let size = shared.group.size();
        let member = |rank| ThreadMember {
            shared: Arc::clone(&shared),
            rank,
            position: Position::first(size),
            is_entered: false,
            waiter: Waiter::new(size, SPINS),
        };
        // All of them exist at once: a member never taken from the iterator would otherwise be waited for.
        shared.group.ranks().map(member).collect::<Vec<_>>().into_iter()
    }
}

impl ThreadShared {
    fn wake_sleepers(&self) {
        if self.central.must_wake() {
            self.woken_ns.store(monotonic_now().as_nanos(), Ordering::Relaxed);
            // It fails only for invalid addresses.
            let _ = futex::wake(
                self.central.futex_word(),
                futex::Flags::PRIVATE,
                i32::MAX.unsigned_abs(),
            );
        }
    }

    /// Returns once something may have happened that is followed by [`wake_sleepers`](Self::wake_sleepers), or at
    /// once if `is_over` says that it has happened already.
    fn sleep_unless(&self, is_over: impl FnOnce() -> bool) {
        let expected = self.central.begin_sleep();
        if !is_over() {
            sleep_thread(|| {
                // Woken, changed before, or a signal: the caller checks again in each case.
                let woken =
                    futex::wait(self.central.futex_word(), futex::Flags::PRIVATE, expected, None);
                let at = Instant::from_nanos(self.woken_ns.load(Ordering::Relaxed));
                woken.is_ok().then_some(at)
            });
        }
    }
}

/// One member of a [`ThreadBarrier`].
///
/// Dropping it leaves the group: barriers that it has not entered fail for all others with [`BarrierError::Lost`],
/// which names its rank. The same happens if its thread panics.
#[derive(Debug)]
#[must_use = "dropping a member leaves the group"]
pub struct ThreadMember {
    shared: Arc<ThreadShared>,
    rank: Rank,
    /// The barrier that it is in, or enters next.
    position: Position,
    is_entered: bool,
    waiter: Waiter,
}

impl ThreadMember {
    /// Returns this member's rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the group.
    #[must_use]
    pub fn group(&self) -> Group {
        self.shared.group
    }

    /// Enters, unless it has [arrived](Self::arrive) already, and blocks the thread until all members have.
    ///
    /// # Errors
    /// [`BarrierError::Lost`]; [`BarrierError::Io`] in a simulation, whose one thread would wait for itself.
    #[inline]
    pub fn wait(&mut self) -> Result<Passed, BarrierError> {
        if !self.is_entered && self.enter()? == Arrival::Last {
            return Ok(self.depart_now());
        }
        self.depart_blocking()
    }

    /// Enters without waiting: work before [`depart`](Self::depart) overlaps with the other members' arrival.
    ///
    /// # Errors
    /// [`BarrierError::AlreadyEntered`], [`BarrierError::Lost`].
    pub fn arrive(&mut self) -> Result<Arrived, BarrierError> {
        let epoch = self.position.epoch;
        if self.is_entered {
            return Err(BarrierError::AlreadyEntered { epoch });
        }
        let _ = self.enter()?;
        Ok(Arrived { rank: self.rank, epoch, group: self.shared.number })
    }

    /// Blocks the thread until all members have entered the barrier in which this one has [arrived](Self::arrive).
    ///
    /// # Errors
    /// [`BarrierError::Lost`]; [`BarrierError::ForeignToken`] for a token of another member or barrier; as [`wait`](Self::wait).
    pub fn depart(&mut self, token: Arrived) -> Result<Passed, BarrierError> {
        let own =
            Arrived { rank: self.rank, epoch: self.position.epoch, group: self.shared.number };
        if !self.is_entered || token != own {
            return Err(BarrierError::ForeignToken { token });
        }
        self.depart_blocking()
    }

    #[inline]
    fn enter(&mut self) -> Result<Arrival, BarrierError> {
        let shared = &*self.shared;
        if shared.absences.fails(self.position.epoch) {
            return Err(shared.absences.error(self.position.epoch));
        }
        self.is_entered = true;
        let arrival = shared.central.arrive(self.position.target);
        if arrival == Arrival::Last {
            shared.wake_sleepers();
        }
        Ok(arrival)
    }

    #[inline]
    fn depart_now(&mut self) -> Passed {
        let passed = Passed::new(self.position.epoch);
        self.position = self.position.next(self.shared.group.size());
        self.is_entered = false;
        passed
    }

    #[inline]
    fn depart_blocking(&mut self) -> Result<Passed, BarrierError> {
        let Self { shared, position, waiter, .. } = self;
        let is_over =
            || shared.central.is_passed(position.target) || shared.absences.fails(position.epoch);
        if waiter.spin_blocking(|| is_over().then_some(())).is_none() {
            refuse_in_simulation("other threads to wait for", "use a `TaskBarrier`")
                .map_err(BarrierError::io("blocking a thread"))?;
            while !is_over() {
                shared.sleep_unless(is_over);
            }
            waiter.slept();
        }
        // A member that left may have entered this barrier before: it has failed only if it was not passed.
        if shared.central.is_passed(position.target) {
            return Ok(self.depart_now());
        }
        Err(shared.absences.error(position.epoch))
    }
}

impl Drop for ThreadMember {
    fn drop(&mut self) {
        let next = self.position.next(self.shared.group.size());
        let missing = if self.is_entered { next } else { self.position };
        self.shared.absences.leave(self.rank, missing.epoch);
        self.shared.wake_sleepers();
    }
}
