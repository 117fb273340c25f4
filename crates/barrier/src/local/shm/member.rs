//! A member, how it waits, and how it sleeps at a detection server.

use std::{fmt, future, io, sync::Arc, time::Duration};

use rustix::thread::futex;
use vigie_detect::{
    ArmOutcome, Engine, EngineContext, EngineHost, PollerEvent, Registration, Server, WaitError,
    Waiter, WatchedDescriptor,
};

use super::{liveness::LivenessSockets, segment::Segment};
use crate::{
    error::{Arrived, BarrierError, LostRanks, Passed},
    group::{Group, Rank, next_group},
    local::{
        SPINS,
        central::{Arrival, Position},
    },
    sync::Ordering,
};

/// The time that a thread sleeps before it checks whether a member is gone: this bounds the time until it reports a killed
/// member, and the damage of a lost wake-up of a hostile member.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// The state that a member shares with its sleeper.
#[derive(Debug)]
pub(super) struct MemberState {
    pub(super) group: Group,
    pub(super) rank: Rank,
    pub(super) segment: Segment,
    pub(super) sockets: LivenessSockets,
}

impl MemberState {
    /// Returns the members that are gone and have not entered barrier `epoch`.
    #[cold]
    fn missing(&self, epoch: u32) -> Vec<Rank> {
        const HALF: u32 = 1 << 31;
        let has_not_entered = |&rank: &Rank| {
            let slot = self.segment.slot(rank);
            // Not more than all barriers up to this one.
            slot.is_none_or(|slot| epoch.wrapping_sub(slot.entered.load(Ordering::Acquire)) < HALF)
        };
        self.sockets.gone().filter(has_not_entered).collect()
    }

    /// Returns why the barrier cannot be passed, as far as is known.
    #[inline]
    fn failure(&self, epoch: u32) -> Option<BarrierError> {
        if !self.sockets.has_gone() {
            return None;
        }
        let missing = self.missing(epoch);
        let is_lost = !missing.is_empty();
        is_lost.then(|| BarrierError::Lost { ranks: LostRanks::new(missing), epoch })
    }

    #[inline]
    fn outcome(&self, position: Position) -> Option<Result<(), BarrierError>> {
        if self.segment.central().is_passed(position.target) {
            return Some(Ok(()));
        }
        let failure = self.failure(position.epoch)?;
        // It may have entered, as the last one, before it died.
        let is_passed = self.segment.central().is_passed(position.target);
        Some(if is_passed { Ok(()) } else { Err(failure) })
    }

    /// Wakes all sleeping members, however they sleep.
    fn wake_sleepers(&self) {
        if self.segment.central().must_wake() {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Not `PRIVATE`: other processes share it. It fails only for invalid addresses.
        let all = i32::MAX.unsigned_abs();
        let _ = futex::wake(self.segment.central().futex_word(), futex::Flags::empty(), all);
        for (rank, slot) in (0..).map(Rank).zip(self.segment.slots()) {
            if slot.is_asleep.load(Ordering::SeqCst) != 0
                && slot.is_asleep.swap(0, Ordering::SeqCst) != 0
            {
                self.sockets.wake(rank);
            }
        }
    }

    /// Checks which members are gone; if there is a new one, wakes sleepers that should know.
    fn check_gone(&self) -> io::Result<()> {
        if self.sockets.poll_hang_ups()? {
            self.wake_sleepers();
        }
        Ok(())
    }
}

/// One member of a barrier of processes: made by [`ShmBootstrap::join`](super::ShmBootstrap::join).
///
/// Dropping it leaves the group, and so does any end of its process: barriers that it has not entered fail for all
/// others with [`BarrierError::Lost`], which names its rank. A forked child's copy is not a member: dropping it has
/// no effect, and using it fails with [`BarrierError::Wait`]. As long as the child has the copy, the end of its
/// parent is not noticed.
///
/// # Cost
/// One atomic addition and one store per member; no system call while no member sleeps. A waiting member first spins,
/// then yields the processor repeatedly, then sleeps: in the scheduler of the detection server, or on a futex.
#[must_use = "dropping a member leaves the group"]
pub struct ShmMember {
    state: Arc<MemberState>,
    host: EngineHost<Sleeper>,
    number: u64,
    /// The barrier that it is in, or enters next.
    position: Position,
    is_entered: bool,
    waiter: Waiter,
}

impl ShmMember {
    pub(super) fn new(server: &Server, state: MemberState) -> Result<Self, BarrierError> {
        let size = state.group.size();
        let state = Arc::new(state);
        let sleeper = Sleeper { state: Arc::clone(&state), error: None };
        let host = EngineHost::new(server, sleeper, Registration::named("barrier"))?;
        Ok(Self {
            state,
            host,
            number: next_group(),
            position: Position::first(size),
            is_entered: false,
            waiter: Waiter::at(server, size, SPINS),
        })
    }

    /// Returns this member's rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.state.rank
    }

    /// Returns the group.
    #[must_use]
    pub fn group(&self) -> Group {
        self.state.group
    }

    /// Enters, unless it has entered already, and waits until all members have.
    ///
    /// # Cancel safety
    /// Cancel safe: the member enters at the future's first poll and stays entered if the future is dropped after
    /// that; the next call waits for the same barrier. Nothing is entered twice and no result is lost, so it can be
    /// used in a `select!` inside a loop.
    ///
    /// # Errors
    /// [`BarrierError::Lost`]; [`BarrierError::Wait`] once the detection server is shut down;
    /// [`BarrierError::Io`].
    pub async fn wait(&mut self) -> Result<Passed, BarrierError> {
        if !self.is_entered && self.enter()? == Arrival::Last {
            return Ok(self.depart_now());
        }
        self.finish().await
    }

    /// Enters, unless it has entered already, and blocks the thread until all members have: for programs without
    /// tasks.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub fn wait_blocking(&mut self) -> Result<Passed, BarrierError> {
        if !self.is_entered && self.enter()? == Arrival::Last {
            return Ok(self.depart_now());
        }
        self.finish_blocking()
    }

    /// Enters without waiting: work before [`depart`](Self::depart) overlaps with the other members' arrival.
    ///
    /// # Errors
    /// [`BarrierError::AlreadyEntered`], [`BarrierError::Lost`].
    pub fn arrive(&mut self) -> Result<Arrived, BarrierError> {
        self.is_own()?;
        if self.is_entered {
            return Err(BarrierError::AlreadyEntered { epoch: self.position.epoch });
        }
        let _ = self.enter()?;
        Ok(self.token())
    }

    /// Waits until all members have entered the barrier in which this one has [arrived](Self::arrive).
    ///
    /// # Cancel safety
    /// Cancel safe: the member stays entered; [`wait`](Self::wait) goes on with the same barrier.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait), and [`BarrierError::ForeignToken`] for a token of another member or
    /// barrier.
    pub async fn depart(&mut self, token: Arrived) -> Result<Passed, BarrierError> {
        self.check(token)?;
        self.finish().await
    }

    /// Like [`depart`](Self::depart), but blocks the thread.
    ///
    /// # Errors
    /// The same as [`depart`](Self::depart).
    pub fn depart_blocking(&mut self, token: Arrived) -> Result<Passed, BarrierError> {
        self.check(token)?;
        self.finish_blocking()
    }

    fn token(&self) -> Arrived {
        Arrived { rank: self.state.rank, epoch: self.position.epoch, group: self.number }
    }

    fn check(&self, token: Arrived) -> Result<(), BarrierError> {
        let is_own = self.is_entered && token == self.token();
        if is_own { Ok(()) } else { Err(BarrierError::ForeignToken { token }) }
    }

    /// Fails in a forked child, whose calls would count for its parent's member.
    #[inline]
    fn is_own(&self) -> Result<(), BarrierError> {
        if self.host.is_inherited() { Err(WaitError::ServerClosed.into()) } else { Ok(()) }
    }

    #[inline]
    fn enter(&mut self) -> Result<Arrival, BarrierError> {
        self.is_own()?;
        let (state, position) = (&*self.state, self.position);
        if let Some(failure) = state.failure(position.epoch) {
            return Err(failure);
        }
        self.is_entered = true;
        self.waiter.begin();
        let arrival = state.segment.central().arrive(position.target);
        // After the arrival: if this process dies in between, it is reported as missing from a barrier that may still
        // be passed, instead of being awaited in one that never can be.
        if let Some(slot) = state.segment.slot(state.rank) {
            slot.entered.store(position.epoch.wrapping_add(1), Ordering::Release);
        }
        if arrival == Arrival::Last {
            state.wake_sleepers();
        }
        Ok(arrival)
    }

    #[inline]
    fn depart_now(&mut self) -> Passed {
        let passed = Passed::new(self.position.epoch);
        self.position = self.position.next(self.state.group.size());
        self.is_entered = false;
        passed
    }

    async fn finish(&mut self) -> Result<Passed, BarrierError> {
        self.is_own()?;
        let (state, position) = (&*self.state, self.position);
        let waiter = &mut self.waiter;
        let mut outcome =
            future::poll_fn(|cx| waiter.poll_spin(cx, || state.outcome(position))).await;
        let has_given_up = outcome.is_none();
        while outcome.is_none() {
            self.host.wait(position).await?;
            outcome = state.outcome(position);
        }
        if has_given_up {
            self.waiter.slept();
        }
        outcome.unwrap_or(Ok(()))?;
        Ok(self.depart_now())
    }

    fn finish_blocking(&mut self) -> Result<Passed, BarrierError> {
        self.is_own()?;
        let (state, position) = (&*self.state, self.position);
        let mut outcome = self.waiter.spin_blocking(|| state.outcome(position));
        let sleep_max = futex::Timespec::try_from(SLEEP_MAX)
            .unwrap_or(futex::Timespec { tv_sec: 1, tv_nsec: 0 });
        let has_given_up = outcome.is_none();
        while outcome.is_none() {
            let expected = state.segment.central().begin_sleep();
            outcome = state.outcome(position);
            if outcome.is_none() {
                // Woken, changed before, over, or a signal: check again in each case.
                let flags = futex::Flags::empty();
                let _ = futex::wait(
                    state.segment.central().futex_word(),
                    flags,
                    expected,
                    Some(&sleep_max),
                );
                state
                    .check_gone()
                    .map_err(BarrierError::io("checking whether members are gone"))?;
                outcome = state.outcome(position);
            }
        }
        if has_given_up {
            self.waiter.slept();
        }
        outcome.unwrap_or(Ok(()))?;
        Ok(self.depart_now())
    }
}

impl Drop for ShmMember {
    fn drop(&mut self) {
        // Both processes have the same socket: a forked child's copy would shut down the liveness socket of its
        // parent's member.
        if self.host.is_inherited() {
            return;
        }
        // The engine may live a little longer.
        self.state.sockets.leave();
    }
}

impl fmt::Debug for ShmMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmMember")
            .field("rank", &self.state.rank)
            .field("position", &self.position)
            .field("is_entered", &self.is_entered)
            .finish_non_exhaustive()
    }
}

/// The keys of the watched descriptors.
const OWN: u32 = 0;
const HANG_UPS: u32 = 1;

/// The engine with which a member sleeps: its request is that the wait for a barrier is over, with success or
/// failure. It is not used while the member does not sleep.
///
/// Before a sleep, the member's slot says that it needs a wake.
struct Sleeper {
    state: Arc<MemberState>,
    /// The error with which checking for gone members failed.
    error: Option<io::Error>,
}

impl Engine for Sleeper {
    type Request = Position;
    type Output = ();

    fn take(&mut self, position: &Position) -> Option<()> {
        self.state.outcome(*position).map(drop)
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if let Some(slot) = self.state.segment.slot(self.state.rank) {
            // Before `sleepers`: a member that sees that also sees this.
            slot.is_asleep.store(1, Ordering::SeqCst);
        }
        let _ = self.state.segment.central().begin_sleep();
        // The host polls once more after this: anything that happened before is seen there.
        Ok(ArmOutcome::Armed)
    }

    fn notified(&mut self, notices: &[PollerEvent]) {
        for notice in notices {
            match notice.key {
                HANG_UPS => self.error = self.state.check_gone().err(),
                _ => self.state.sockets.drain_wakes(),
            }
        }
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        let sockets = &self.state.sockets;
        each(WatchedDescriptor::readable(sockets.own()).key(OWN));
        each(WatchedDescriptor::readable(sockets.hang_ups()).key(HANG_UPS));
    }
}
