//! Barriers of tasks.
//!
//! A barrier of many tasks costs each of them a wake-up and a poll, whatever the barrier does; but it can let all
//! workers take part without getting in each other's way. So members are divided into *teams*, one per processor. The
//! last member of a team to arrive counts for the whole team, and later wakes it: so the whole team is queued on that
//! member's worker, and stays there from then on, with its counter and its wakers in that processor's cache, whatever
//! the executor is.
//!
//! ```text
//!  member     team's counter        counter of all teams
//!    │ arrive (1) ──▶ early: asleep
//!    │ arrive (1) ──▶ last: ────────▶ arrive (2) ──▶ last: passed; wakes its own team and all whose
//!    │                                 │             last member is away (4)
//!    │                                 ▼ early
//!    │        spins for a moment (3), on its worker, which has nothing else to do for this barrier
//!    │             │ passed: wakes its own team          │ not passed: away, asleep
//! ```
//!
//! (3) saves a sleep of the whole worker, whose wake-up costs more than the barrier. It is skipped if the other teams
//! were last seen on the same thread, and mostly if it failed before.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use vigie_detect::Bursts;

use super::{
    absence::Absences,
    central::{Arrival, Central},
    topology::{ThreadNumber, team_count},
    wakers::Wakers,
};
use crate::{
    error::{Arrived, BarrierError, Passed},
    group::{Group, Rank, next_group},
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// A barrier of tasks, in one runtime or several: no member ever enters the kernel for it.
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
/// Per member, an atomic addition and a wake-up; per processor, a lock and one exchange with the others. A member may
/// be woken spuriously.
#[derive(Debug)]
#[must_use = "a barrier does nothing before its members wait"]
pub struct TaskBarrier {
    shared: Arc<TaskShared>,
}

#[derive(Debug)]
struct TaskShared {
    group: Group,
    number: u64,
    /// Counts teams.
    central: Central,
    absences: Absences,
    teams: Box<[Team]>,
}

/// Members that are woken by one of them.
#[derive(Debug)]
#[repr(align(64))]
struct Team {
    /// Counts members.
    central: Central,
    wakers: CachePadded<Wakers>,
    /// The spin state of its last member: set to [`SPINNING`] or [`NOT_SPINNING`] before that member counts for the team.
    /// The member that passes the barrier last stores [`DONE`], and wakes the team unless it found [`SPINNING`]; the
    /// spinning member wakes the team if it finds that the barrier was passed, or `DONE`. Both exchanges order
    /// everything before them (`SeqCst` is stronger than needed): a member that finds `DONE` sees the count. If the
    /// exchange is late, the team may already be in the next barrier, and one side wakes it once more than needed,
    /// but never less: the two sides exchange one word.
    spin_state: CachePadded<AtomicU32>,
    /// The lowest rank. From here on, a cache line that others read and that rarely changes.
    first: u32,
    size: u32,
    /// The thread on which its last member was last seen: a hint.
    last_thread: AtomicU64,
    /// The bursts in which its last member spins, if it does.
    bursts: Bursts,
}

/// Data that no other processor should fetch together with its neighbours.
#[derive(Debug)]
#[repr(align(64))]
struct CachePadded<T>(T);

const NOT_SPINNING: u32 = 0;
const SPINNING: u32 = 1;
const DONE: u32 = 2;

impl TaskBarrier {
    /// Creates a barrier for a group, which no member has entered.
    pub fn new(group: Group) -> Self {
        let (size, count) = (group.size(), team_count(group.size()));
        let teams = (0..count).map(|team| {
            // If the division leaves a remainder, the first teams have one member more.
            let (each, rest) = (size / count, size % count);
            let first = team * each + team.min(rest);
            Team::new(first, each + u32::from(team < rest), count)
        });
        let (central, absences) = (Central::new(), Absences::new(group));
        let teams = teams.collect();
        let shared = TaskShared { group, number: next_group(), central, absences, teams };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the members, in the order of their ranks. Give each to one task: it is the right to enter as that
    /// rank, once in each barrier. A member that is dropped has left the group.
    #[must_use = "members that are dropped have left the group"]
    pub fn into_members(self) -> impl ExactSizeIterator<Item = TaskMember> {
        let Self { shared } = self;
        // All of them exist at once: a member never taken from the iterator would otherwise be waited for.
        let member = |rank: Rank| TaskMember {
            team: shared.teams.iter().rposition(|team| team.first <= rank.0).unwrap_or(0),
            shared: Arc::clone(&shared),
            rank,
            epoch: 0,
            is_entered: false,
            registered: (0, 0),
        };
        shared.group.ranks().map(member).collect::<Vec<_>>().into_iter()
    }
}

impl Team {
    fn new(first: u32, size: u32, team_count: u32) -> Self {
        Self {
            central: Central::new(),
            first,
            size,
            wakers: CachePadded(Wakers::new(Rank(size).index())),
            spin_state: CachePadded(AtomicU32::new(NOT_SPINNING)),
            last_thread: AtomicU64::new(0),
            bursts: Bursts::new(team_count),
        }
    }

    /// Wakes all members except `by`, if that is one of them.
    fn wake(&self, by: Rank) {
        self.wakers.0.wake(self.waker_index(by));
    }

    /// The index of a member's waker.
    fn waker_index(&self, rank: Rank) -> Option<usize> {
        rank.0.checked_sub(self.first).map(|index| Rank(index).index())
    }
}

impl TaskShared {
    /// The count of teams at which barrier `epoch` is passed.
    fn target(&self, epoch: u32) -> u32 {
        // At most the number of members, which fits.
        let count = u32::try_from(self.teams.len()).unwrap_or(u32::MAX);
        epoch.wrapping_add(1).wrapping_mul(count)
    }

    /// Wakes all waiting members except `by`.
    fn wake_all(&self, by: Rank) {
        self.teams.iter().for_each(|team| team.wake(by));
    }

    /// A member arrives, and does its part for its team. Returns whether the barrier is passed.
    fn arrive(&self, rank: Rank, team: &Team, epoch: u32) -> bool {
        let target = epoch.wrapping_add(1).wrapping_mul(team.size);
        if team.central.arrive(target) == Arrival::Early {
            return false;
        }
        let target = self.target(epoch);
        let current = ThreadNumber::current();
        if team.last_thread.load(Ordering::Relaxed) != current.0 {
            team.last_thread.store(current.0, Ordering::Relaxed);
        }
        let is_elsewhere =
            |other: &Team| current.is_other(other.last_thread.load(Ordering::Relaxed));
        let spins = self.teams.iter().any(is_elsewhere) && team.bursts.spinning_pays();
        // Before the team is counted, so that the last arrival finds it. Until then nothing else changes it, except
        // the end of a late exchange, which both sides tolerate.
        team.spin_state.0.store(if spins { SPINNING } else { NOT_SPINNING }, Ordering::SeqCst);
        if self.central.arrive(target) == Arrival::Last {
            self.release(rank, team);
            return true;
        }
        let is_passed = spins && self.spin(team, target);
        if is_passed {
            team.wake(rank);
        }
        is_passed
    }

    /// All have arrived, this member last.
    fn release(&self, rank: Rank, own: &Team) {
        // First the teams that can start at once, on other processors.
        for team in &self.teams {
            if !std::ptr::eq(team, own)
                && team.spin_state.0.swap(DONE, Ordering::SeqCst) != SPINNING
            {
                team.wake(rank);
            }
        }
        own.wake(rank);
    }

    /// Spins for a moment until the barrier is passed. If it is not, the last arrival wakes the team.
    fn spin(&self, team: &Team, target: u32) -> bool {
        if team.bursts.spin(|| self.central.is_passed(target)) {
            return true;
        }
        // Either the last arrival finds this, or this finds that it was there. The value found may belong to the
        // barrier before, whose last member was slow: hence the check.
        team.spin_state.0.swap(NOT_SPINNING, Ordering::SeqCst) == DONE
            && self.central.is_passed(target)
    }
}

/// One member of a [`TaskBarrier`].
///
/// Dropping it leaves the group: barriers that it has not entered fail for all others with [`BarrierError::Lost`],
/// which names its rank. The same happens if its task panics.
#[derive(Debug)]
#[must_use = "dropping a member leaves the group"]
pub struct TaskMember {
    shared: Arc<TaskShared>,
    rank: Rank,
    /// The index of its team.
    team: usize,
    /// The barrier that it is in, or enters next.
    epoch: u32,
    is_entered: bool,
    /// The parts of this member's registered waker, which only the member changes: saves a lock.
    registered: (usize, usize),
}

impl TaskMember {
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

    /// Enters, unless it has entered already, and waits until all members have.
    ///
    /// # Cancel safety
    /// Cancel safe: the member enters at the future's first poll and stays entered if the future is dropped after
    /// that; the next call waits for the same barrier. Nothing is entered twice and no result is lost, so it can be
    /// used in a `select!` inside a loop.
    ///
    /// # Errors
    /// [`BarrierError::Lost`].
    pub fn wait(&mut self) -> Depart<'_> {
        Depart { member: self, refused: None }
    }

    /// Enters without waiting: work before [`depart`](Self::depart) overlaps with the other members' arrival.
    ///
    /// # Errors
    /// [`BarrierError::AlreadyEntered`], [`BarrierError::Lost`].
    pub fn arrive(&mut self) -> Result<Arrived, BarrierError> {
        let epoch = self.epoch;
        if self.is_entered {
            return Err(BarrierError::AlreadyEntered { epoch });
        }
        let _ = self.enter()?;
        Ok(Arrived { rank: self.rank, epoch, group: self.shared.number })
    }

    /// Waits until all members have entered the barrier in which this one has [arrived](Self::arrive).
    ///
    /// # Cancel safety
    /// Cancel safe: the member stays entered; [`wait`](Self::wait) goes on with the same barrier.
    ///
    /// # Errors
    /// [`BarrierError::Lost`]; [`BarrierError::ForeignToken`] for a token of another member or barrier.
    pub fn depart(&mut self, token: Arrived) -> Depart<'_> {
        let own = Arrived { rank: self.rank, epoch: self.epoch, group: self.shared.number };
        let refused = (!self.is_entered || token != own).then_some(token);
        Depart { member: self, refused }
    }

    /// Enters. Returns whether all members have.
    fn enter(&mut self) -> Result<bool, BarrierError> {
        let shared = &*self.shared;
        if shared.absences.fails(self.epoch) {
            return Err(shared.absences.error(self.epoch));
        }
        self.is_entered = true;
        let team = shared.teams.get(self.team);
        Ok(team.is_some_and(|team| shared.arrive(self.rank, team, self.epoch)))
    }

    fn depart_now(&mut self) -> Passed {
        let passed = Passed::new(self.epoch);
        self.epoch = self.epoch.wrapping_add(1);
        self.is_entered = false;
        passed
    }

    /// Registers the waker.
    #[inline]
    fn register(&mut self, cx: &Context<'_>) {
        let waker = cx.waker();
        // Like `Waker::will_wake`. The team keeps what these point to alive, so the addresses are not reused.
        let parts = (waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr());
        if parts != self.registered {
            self.registered = parts;
            self.register_new(waker);
        }
    }

    #[cold]
    fn register_new(&self, waker: &Waker) {
        self.set_waker(Some(waker.clone()));
    }

    fn set_waker(&self, waker: Option<Waker>) {
        if let Some(team) = self.shared.teams.get(self.team)
            && let Some(index) = team.waker_index(self.rank)
        {
            team.wakers.0.set(index, waker);
        }
    }

    fn poll_wait(&mut self, cx: &Context<'_>) -> Poll<Result<Passed, BarrierError>> {
        if !self.is_entered {
            // Before it enters: the member that wakes its team finds the waker, and no second check is needed.
            self.register(cx);
            if self.enter()? {
                return Poll::Ready(Ok(self.depart_now()));
            }
            // A failure before the waker was registered was seen on entering; a later one wakes the task.
            return Poll::Pending;
        }
        if let Some(outcome) = self.outcome() {
            return Poll::Ready(outcome);
        }
        self.register(cx);
        // For anything that happened before the waker was registered.
        self.outcome().map_or(Poll::Pending, Poll::Ready)
    }

    fn outcome(&mut self) -> Option<Result<Passed, BarrierError>> {
        let shared = &*self.shared;
        if shared.central.is_passed(shared.target(self.epoch)) {
            return Some(Ok(self.depart_now()));
        }
        // A member that left may have entered this barrier before: only one that has not makes it fail.
        let fails = shared.absences.fails(self.epoch);
        fails.then(|| Err(shared.absences.error(self.epoch)))
    }
}

impl Drop for TaskMember {
    fn drop(&mut self) {
        let missing = self.epoch.wrapping_add(u32::from(self.is_entered));
        self.shared.absences.leave(self.rank, missing);
        self.shared.wake_all(self.rank);
        self.set_waker(None);
    }
}

/// The future of [`TaskMember::wait`] and [`TaskMember::depart`].
#[derive(Debug)]
#[must_use = "no member enters or departs before the future is polled"]
pub struct Depart<'a> {
    member: &'a mut TaskMember,
    /// A token that is not for this barrier.
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
