//! Barriers of threads, outside of any runtime.

use std::sync::Arc;

use rustix::thread::futex;
use vigie_detect::{Instant, Waiter, clock::monotonic_now, sleep_thread};

use super::{
    LOOKS,
    absence::Absences,
    central::{Arrival, Central, Position},
    next_group,
};
use crate::{
    error::{Arrived, BarrierError, Passed},
    group::{Group, Rank},
    sync::{AtomicU64, Ordering},
};

/// A barrier of threads, which block in it: not for tasks, whose executor would stand still.
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
/// One atomic addition for each member. Waiting looks for a while, then gives the processor away for a while, then
/// sleeps: a member that is late by 100 ms costs the others less than 1 % of a processor together.
#[derive(Debug)]
#[must_use = "a barrier does nothing before its members wait"]
pub struct ThreadBarrier {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    group: Group,
    number: u64,
    central: Central,
    absences: Absences,
    /// When sleepers were woken last, in nanoseconds. `Relaxed`: a measurement.
    woken_ns: AtomicU64,
}

impl ThreadBarrier {
    /// Makes a barrier of a group, in which nobody has entered.
    pub fn new(group: Group) -> Self {
        let (central, absences) = (Central::new(), Absences::new(group));
        let (number, woken_ns) = (next_group(), AtomicU64::new(0));
        Self { shared: Arc::new(Shared { group, number, central, absences, woken_ns }) }
    }

    /// Returns the members, in the order of their ranks. Each is handed to one thread: it is the right to enter
    /// as that rank, once in each barrier. One that is dropped has left the group.
    #[must_use = "members that are dropped have left the group"]
    pub fn into_members(self) -> impl ExactSizeIterator<Item = ThreadMember> {
        let Self { shared } = self;
        let size = shared.group.size();
        let member = |rank| ThreadMember {
            shared: Arc::clone(&shared),
            rank,
            position: Position::first(size),
            is_entered: false,
            waiter: Waiter::new(size, LOOKS),
        };
        // All of them exist at once: one that is never taken from the iterator would be waited for.
        shared.group.ranks().map(member).collect::<Vec<_>>().into_iter()
    }
}

impl Shared {
    fn wake_sleepers(&self) {
        if self.central.must_wake() {
            self.woken_ns.store(monotonic_now().as_nanos(), Ordering::Relaxed);
            // It fails for addresses that are none only.
            let _ =
                futex::wake(self.central.gate(), futex::Flags::PRIVATE, i32::MAX.unsigned_abs());
        }
    }

    /// Returns once something may have happened that [`wake_sleepers`](Self::wake_sleepers) tells of after the
    /// call of `is_over`, unless that says that it has happened before.
    fn sleep_unless(&self, is_over: impl FnOnce() -> bool) {
        let gate = self.central.begin_sleep();
        if !is_over() {
            sleep_thread(|| {
                // Woken, changed before, or a signal: the caller looks again in each case.
                let woken = futex::wait(self.central.gate(), futex::Flags::PRIVATE, gate, None);
                let at = Instant::from_nanos(self.woken_ns.load(Ordering::Relaxed));
                woken.is_ok().then_some(at)
            });
        }
    }
}

/// One member of a [`ThreadBarrier`].
///
/// Dropping it leaves the group: barriers that it has not entered fail for all others with
/// [`BarrierError::Lost`], which names its rank. So does a thread that panics.
#[derive(Debug)]
#[must_use = "dropping a member leaves the group"]
pub struct ThreadMember {
    shared: Arc<Shared>,
    rank: Rank,
    /// The barrier in which it is, or which it enters next.
    position: Position,
    is_entered: bool,
    waiter: Waiter,
}

impl ThreadMember {
    /// Returns which member this is.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns who takes part.
    #[must_use]
    pub fn group(&self) -> Group {
        self.shared.group
    }

    /// Enters, unless it has [arrived](Self::arrive) already, and blocks the thread until all have.
    ///
    /// # Errors
    /// [`BarrierError::Lost`].
    #[inline]
    pub fn wait(&mut self) -> Result<Passed, BarrierError> {
        if !self.is_entered && self.enter()? == Arrival::Last {
            return Ok(self.depart_now());
        }
        self.depart_blocking()
    }

    /// Enters, and does not wait: what is done before [`depart`](Self::depart) overlaps with the others' way
    /// to the barrier.
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

    /// Blocks the thread until all have entered the barrier in which this member has [arrived](Self::arrive).
    ///
    /// # Errors
    /// [`BarrierError::Lost`]; [`BarrierError::ForeignToken`] for a token of another member or barrier.
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
        if waiter.look_blocking(|| is_over().then_some(())).is_none() {
            while !is_over() {
                shared.sleep_unless(is_over);
            }
            waiter.slept();
        }
        // Whoever has left may have entered this one before: only if it was not passed has it failed.
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
