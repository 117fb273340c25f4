//! Barriers of tasks.
//!
//! A barrier of many tasks costs a wake-up and a poll of each, whatever the barrier does; what it can do is let all
//! workers take part in them without getting in each other's way. So members are divided into *teams*, as many as
//! there are processors. The last of a team to arrive counts for all of it, and is the one that later wakes it: so
//! the whole team is queued on that member's worker, and is at home there from then on, its counter and its wakers
//! in that processor's cache, whatever the executor is.
//!
//! ```text
//!  member     team's counter        counter of all teams
//!    │ arrive (1) ──▶ early: asleep
//!    │ arrive (1) ──▶ last: ────────▶ arrive (2) ──▶ last: passed; wakes its own team and all whose
//!    │                                 │             last member is away (4)
//!    │                                 ▼ early
//!    │        looks for a moment (3), on its worker, which has nothing else to do for this barrier
//!    │             │ passed: wakes its own team          │ not passed: away, asleep
//! ```
//!
//! (3) spares a sleep of the whole worker, whose wake-up costs more than the barrier; it is left out where
//! the other teams were last seen on the same thread, and mostly where it was in vain before.

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
    next_group,
    place::{Place, team_count},
    wakers::Wakers,
};
use crate::{
    error::{Arrived, BarrierError, Passed},
    group::{Group, Rank},
    sync::{AtomicU32, AtomicU64, Ordering},
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
/// An atomic addition and a wake-up for each member; for each processor a lock, and one exchange with the others. Members that have nothing to wait for may be woken.
#[derive(Debug)]
#[must_use = "a barrier does nothing before its members wait"]
pub struct TaskBarrier {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
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
    wakers: Padded<Wakers>,
    /// Whether its last member looks: [`LOOKING`] from before that counts for the team, or [`AWAY`]. Whoever passes
    /// the barrier last puts [`DONE`] there, and wakes the team unless it found [`LOOKING`]; who looked and finds
    /// that it was passed, or `DONE`, wakes the team. Both exchanges order what was before them (`SeqCst` is more
    /// than that takes): who finds `DONE` sees the count. If the exchange is late, the team may be in the next barrier
    /// already, and is woken once more than needed by the one or the other, but never less: the two sides
    /// exchange one word.
    watch: Padded<AtomicU32>,
    /// Which ranks. From here on a line that others read and that seldom changes.
    first: u32,
    size: u32,
    /// Where its last member was last seen: a hint.
    place: AtomicU64,
    /// How its last member looks, and whether.
    bursts: Bursts,
}

/// Something that no other processor should take away together with what is beside it.
#[derive(Debug)]
#[repr(align(64))]
struct Padded<T>(T);

const AWAY: u32 = 0;
const LOOKING: u32 = 1;
const DONE: u32 = 2;

impl TaskBarrier {
    /// Makes a barrier of a group, in which nobody has entered.
    pub fn new(group: Group) -> Self {
        let (size, count) = (group.size(), team_count(group.size()));
        let teams = (0..count).map(|team| {
            // The first ones have one more if it does not come out even.
            let (each, rest) = (size / count, size % count);
            let first = team * each + team.min(rest);
            Team::new(first, each + u32::from(team < rest), count)
        });
        let (central, absences) = (Central::new(), Absences::new(group));
        let teams = teams.collect();
        let shared = Shared { group, number: next_group(), central, absences, teams };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the members, in the order of their ranks. Each is handed to one task: it is the right to enter as
    /// that rank, once in each barrier. One that is dropped has left the group.
    #[must_use = "members that are dropped have left the group"]
    pub fn into_members(self) -> impl ExactSizeIterator<Item = TaskMember> {
        let Self { shared } = self;
        // All of them exist at once: one that is never taken from the iterator would be waited for.
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
            wakers: Padded(Wakers::new(Rank(size).index())),
            watch: Padded(AtomicU32::new(AWAY)),
            place: AtomicU64::new(0),
            bursts: Bursts::new(team_count),
        }
    }

    /// Wakes all members, `by` excepted if it is one of them.
    fn wake(&self, by: Rank) {
        self.wakers.0.wake(self.place_of(by));
    }

    /// Where the waker of a member is.
    fn place_of(&self, rank: Rank) -> Option<usize> {
        rank.0.checked_sub(self.first).map(|place| Rank(place).index())
    }
}

impl Shared {
    /// The count of teams at which barrier `epoch` is passed.
    fn target(&self, epoch: u32) -> u32 {
        // Not more than the members, which fit.
        let count = u32::try_from(self.teams.len()).unwrap_or(u32::MAX);
        epoch.wrapping_add(1).wrapping_mul(count)
    }

    /// Wakes all who wait, `by` excepted.
    fn wake_all(&self, by: Rank) {
        self.teams.iter().for_each(|team| team.wake(by));
    }

    /// A member arrives, and does for its team what is its part. Returns whether the barrier is passed.
    fn arrive(&self, rank: Rank, team: &Team, epoch: u32) -> bool {
        let target = epoch.wrapping_add(1).wrapping_mul(team.size);
        if team.central.arrive(target) == Arrival::Early {
            return false;
        }
        let target = self.target(epoch);
        let here = Place::here();
        if team.place.load(Ordering::Relaxed) != here.0 {
            team.place.store(here.0, Ordering::Relaxed);
        }
        let is_elsewhere = |other: &Team| here.is_not(other.place.load(Ordering::Relaxed));
        let looks = self.teams.iter().any(is_elsewhere) && team.bursts.is_hopeful();
        // Before the team is counted: whoever counts last finds it. Nobody else changes it until then, except for
        // the end of a late exchange, which both sides can bear.
        team.watch.0.store(if looks { LOOKING } else { AWAY }, Ordering::SeqCst);
        if self.central.arrive(target) == Arrival::Last {
            self.release(rank, team);
            return true;
        }
        let is_passed = looks && self.look(team, target);
        if is_passed {
            team.wake(rank);
        }
        is_passed
    }

    /// All have arrived, this member as the last one.
    fn release(&self, rank: Rank, own: &Team) {
        // First those who may start at once, on other processors.
        for team in &self.teams {
            if !std::ptr::eq(team, own) && team.watch.0.swap(DONE, Ordering::SeqCst) != LOOKING {
                team.wake(rank);
            }
        }
        own.wake(rank);
    }

    /// Looks whether the barrier is passed, for a moment. If not, whoever passes it wakes the team.
    fn look(&self, team: &Team, target: u32) -> bool {
        if team.bursts.look(|| self.central.is_passed(target)) {
            return true;
        }
        // Either the last one finds this, or this finds that it was there. What it finds may be of the barrier
        // before, whose last member was slow: hence the look.
        team.watch.0.swap(AWAY, Ordering::SeqCst) == DONE && self.central.is_passed(target)
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
    /// Its place among the teams.
    team: usize,
    /// The barrier in which it is, or which it enters next.
    epoch: u32,
    is_entered: bool,
    /// What this member's waker is made of, which it alone changes: spares a lock.
    registered: (usize, usize),
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
        let epoch = self.epoch;
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
        let own = Arrived { rank: self.rank, epoch: self.epoch, group: self.shared.number };
        let refused = (!self.is_entered || token != own).then_some(token);
        Depart { member: self, refused }
    }

    /// Returns whether all have entered.
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

    /// Leaves the waker to be woken with.
    #[inline]
    fn register(&mut self, cx: &Context<'_>) {
        let waker = cx.waker();
        // As `Waker::will_wake`. The team keeps what these point at alive, so that nothing else is there.
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
            && let Some(place) = team.place_of(self.rank)
        {
            team.wakers.0.set(place, waker);
        }
    }

    fn poll_wait(&mut self, cx: &Context<'_>) -> Poll<Result<Passed, BarrierError>> {
        if !self.is_entered {
            // Before it enters: whoever wakes its team finds the waker, and nobody has to look once more.
            self.register(cx);
            if self.enter()? {
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
        if shared.central.is_passed(shared.target(self.epoch)) {
            return Some(Ok(self.depart_now()));
        }
        // Who has left may have entered this one before: only those who have not make it fail.
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
