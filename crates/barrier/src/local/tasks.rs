//! Barriers of tasks.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{
    absence::Absences,
    central::{Arrival, Central, Position},
    next_group,
};
use crate::{
    error::{Arrived, BarrierError, Passed},
    group::{Group, Rank},
    sync::{Mutex, lock},
};

/// A barrier of tasks, of one runtime or of several: no member ever enters the kernel for it.
///
/// ```
/// use vigie_barrier::{Group, local::TaskBarrier};
///
/// # tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?.block_on(async {
/// let members = TaskBarrier::new(Group::new(8)?).into_members();
/// let tasks: Vec<_> = members
///     .map(|mut member| {
///         tokio::spawn(async move {
///             for step in 0..100 {
///                 let passed = member.wait().await?;
///                 assert_eq!(passed.epoch, step);
///             }
///             Ok::<_, vigie_barrier::BarrierError>(())
///         })
///     })
///     .collect();
/// for task in tasks {
///     task.await??;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cost
/// One atomic addition and one uncontended lock for each member; the last to arrive wakes all others.
#[derive(Debug)]
#[must_use = "a barrier does nothing before its members wait"]
pub struct TaskBarrier {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    group: Group,
    number: u64,
    central: Central,
    absences: Absences,
    slots: Box<[Slot]>,
}

/// Where a member waits. A cache line of its own, since members run on different processors.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    /// Who is to be woken. It stays from barrier to barrier: a task's waker seldom changes.
    waker: Mutex<Option<Waker>>,
}

impl TaskBarrier {
    /// Makes a barrier of a group, in which nobody has entered.
    pub fn new(group: Group) -> Self {
        let slots = group.ranks().map(|_| Slot { waker: Mutex::new(None) }).collect();
        let (central, absences) = (Central::new(), Absences::new(group));
        let shared = Shared { group, number: next_group(), central, absences, slots };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the members, in the order of their ranks. Each is handed to one task: it is the right to enter as
    /// that rank, once in each barrier. One that is dropped has left the group.
    pub fn into_members(self) -> impl ExactSizeIterator<Item = TaskMember> {
        let Self { shared } = self;
        // All of them exist at once: one that is never taken from the iterator would be waited for.
        let member = |rank| TaskMember {
            shared: Arc::clone(&shared),
            rank,
            position: Position::first(shared.group.size()),
            is_entered: false,
        };
        shared.group.ranks().map(member).collect::<Vec<_>>().into_iter()
    }
}

impl Shared {
    /// Wakes all who wait, `by` excepted.
    fn wake_others(&self, by: Rank) {
        for (rank, slot) in (0..).map(Rank).zip(&self.slots) {
            if rank != by
                && let Some(waker) = &*lock(&slot.waker)
            {
                waker.wake_by_ref();
            }
        }
    }
}

/// One member of a [`TaskBarrier`].
///
/// Dropping it leaves the group: barriers that it has not entered fail for all others with
/// [`BarrierError::Lost`], which names its rank. So does a task that panics.
#[derive(Debug)]
#[must_use = "dropping a member leaves the group"]
pub struct TaskMember {
    shared: Arc<Shared>,
    rank: Rank,
    /// The barrier in which it is, or which it enters next.
    position: Position,
    is_entered: bool,
}

impl TaskMember {
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

    /// Enters, unless it has entered already, and waits until all have.
    ///
    /// # Cancel safety
    /// Cancel safe: the member enters when the future is polled first, and stays entered when it is dropped
    /// after that; the next call waits for the same barrier. Nothing is entered twice and no result is lost, so
    /// that it may stand in a `select!` inside a loop.
    ///
    /// # Errors
    /// [`BarrierError::Lost`].
    pub fn wait(&mut self) -> Depart<'_> {
        Depart { member: self, refused: None }
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

    /// Waits until all have entered the barrier in which this member has [arrived](Self::arrive).
    ///
    /// # Cancel safety
    /// Cancel safe: the member stays entered; [`wait`](Self::wait) goes on with the same barrier.
    ///
    /// # Errors
    /// [`BarrierError::Lost`]; [`BarrierError::ForeignToken`] for a token of another member or barrier.
    pub fn depart(&mut self, token: Arrived) -> Depart<'_> {
        let own = Arrived {
            rank: self.rank,
            epoch: self.position.epoch,
            group: self.shared.number,
        };
        let refused = (!self.is_entered || token != own).then_some(token);
        Depart { member: self, refused }
    }

    /// Returns whether all have entered; only then it has departed.
    fn enter(&mut self) -> Result<Arrival, BarrierError> {
        let shared = &*self.shared;
        if shared.absences.fails(self.position.epoch) {
            return Err(shared.absences.error(self.position.epoch));
        }
        self.is_entered = true;
        let arrival = shared.central.arrive(self.position.target);
        if arrival == Arrival::Last {
            shared.wake_others(self.rank);
        }
        Ok(arrival)
    }

    fn depart_now(&mut self) -> Passed {
        let passed = Passed::new(self.position.epoch);
        self.position = self.position.next(self.shared.group.size());
        self.is_entered = false;
        passed
    }

    /// Leaves the waker to be woken with.
    fn register(&self, cx: &Context<'_>) {
        let Some(slot) = self.shared.slots.get(self.rank.index()) else { return };
        let replaced;
        {
            let mut waker = lock(&slot.waker);
            match &*waker {
                Some(waker) if waker.will_wake(cx.waker()) => return,
                _ => replaced = waker.replace(cx.waker().clone()),
            }
        }
        // Outside the lock: it may be the last reference to a task.
        drop(replaced);
    }

    fn poll_wait(&mut self, cx: &Context<'_>) -> Poll<Result<Passed, BarrierError>> {
        if !self.is_entered {
            // Before it enters: whoever arrives last finds the waker, and nobody has to look once more.
            self.register(cx);
            if self.enter()? == Arrival::Last {
                return Poll::Ready(Ok(self.depart_now()));
            }
            // A failure that came before the waker was there was seen on entering; one that comes later
            // wakes.
            return Poll::Pending;
        }
        if let Some(outcome) = self.outcome() {
            return Poll::Ready(outcome);
        }
        self.register(cx);
        // What happened before the waker was there.
        self.outcome().map_or(Poll::Pending, Poll::Ready)
    }

    fn outcome(&mut self) -> Option<Result<Passed, BarrierError>> {
        let shared = &*self.shared;
        if shared.central.is_passed(self.position.target) {
            return Some(Ok(self.depart_now()));
        }
        let epoch = self.position.epoch;
        // Who has left may have entered this one before: only those who have not make it fail.
        shared.absences.fails(epoch).then(|| Err(shared.absences.error(epoch)))
    }
}

impl Drop for TaskMember {
    fn drop(&mut self) {
        let next = self.position.next(self.shared.group.size());
        let missing = if self.is_entered { next } else { self.position };
        self.shared.absences.leave(self.rank, missing.epoch);
        self.shared.wake_others(self.rank);
        let slot = self.shared.slots.get(self.rank.index());
        // Outside the lock: it may be the last reference to a task.
        let waker = slot.and_then(|slot| lock(&slot.waker).take());
        drop(waker);
    }
}

/// The future of [`TaskMember::wait`] and [`TaskMember::depart`].
#[derive(Debug)]
#[must_use = "nobody enters or departs before the future is polled"]
pub struct Depart<'a> {
    member: &'a mut TaskMember,
    /// A token that is not of this barrier.
    refused: Option<Arrived>,
}

impl Future for Depart<'_> {
    type Output = Result<Passed, BarrierError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(token) = this.refused.take() {
            return Poll::Ready(Err(BarrierError::ForeignToken { token }));
        }
        this.member.poll_wait(cx)
    }
}
