//! A member, the way it waits, and its watch at a detection server.

use std::{fmt, future, io, sync::Arc, time::Duration};

use rustix::thread::futex;
use vigie_detect::{
    Armed, Detector, Handle, Interest, Key, Methods, Mode, Notice, Registration, Round, Server,
    Site, Submitted, Waiter,
};

use super::{doors::Doors, segment::Segment};
use crate::{
    error::{Arrived, BarrierError, LostRanks, Passed},
    group::{Group, Rank},
    local::{
        LOOKS,
        central::{Arrival, Position},
        next_group,
    },
    sync::Ordering,
};

/// How long a thread sleeps before it looks whether somebody is gone: what bounds the delay until it tells of a
/// member that was killed, and what a lost wake-up of a hostile member can cost.
const NAP: Duration = Duration::from_millis(100);

/// What a member's own handle and its watch have in common.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) group: Group,
    pub(super) rank: Rank,
    pub(super) segment: Segment,
    pub(super) doors: Doors,
}

impl Seat {
    /// Returns those who are gone and have not entered barrier `epoch`.
    #[cold]
    fn missing(&self, epoch: u32) -> Vec<Rank> {
        const HALF: u32 = 1 << 31;
        let has_not_entered = |&rank: &Rank| {
            let line = self.segment.line(rank);
            // Not more than all barriers up to this one.
            line.is_none_or(|line| epoch.wrapping_sub(line.entered.load(Ordering::Acquire)) < HALF)
        };
        self.doors.gone().filter(has_not_entered).collect()
    }

    /// Returns why the barrier cannot be passed, as far as is known.
    #[inline]
    fn failure(&self, epoch: u32) -> Option<BarrierError> {
        if !self.doors.has_gone() {
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
        // It may have entered, and been the last one, before it died.
        let is_passed = self.segment.central().is_passed(position.target);
        Some(if is_passed { Ok(()) } else { Err(failure) })
    }

    /// Wakes all who sleep, in whatever way.
    fn wake_sleepers(&self) {
        if self.segment.central().must_wake() {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Not `PRIVATE`: others share it. It fails for addresses that are none only.
        let all = i32::MAX.unsigned_abs();
        let _ = futex::wake(self.segment.central().gate(), futex::Flags::empty(), all);
        for (rank, line) in (0..).map(Rank).zip(self.segment.lines()) {
            if line.is_asleep.load(Ordering::SeqCst) != 0
                && line.is_asleep.swap(0, Ordering::SeqCst) != 0
            {
                self.doors.knock(rank);
            }
        }
    }

    /// Looks who is gone; if that is news, others may sleep who should know.
    fn look(&self) -> io::Result<()> {
        if self.doors.look()? {
            self.wake_sleepers();
        }
        Ok(())
    }
}

/// One member of a barrier of processes: made by [`Meeting::join`](super::Meeting::join).
///
/// Dropping it leaves the group, and so does the end of its process, however it comes: barriers that it has not
/// entered fail for all others with [`BarrierError::Lost`], which names its rank.
///
/// # Cost
/// One atomic addition and one store for each member; no system call while nobody sleeps. Waiting looks for a
/// while, then gives the processor away for a while, then sleeps: in the scheduler of the detection server, or on a
/// futex.
#[must_use = "dropping a member leaves the group"]
pub struct ShmMember {
    seat: Arc<Seat>,
    handle: Handle<Watch>,
    number: u64,
    /// The barrier in which it is, or which it enters next.
    position: Position,
    is_entered: bool,
    waiter: Waiter,
}

impl ShmMember {
    pub(super) fn new(server: &Server, seat: Seat) -> Result<Self, BarrierError> {
        let size = seat.group.size();
        let seat = Arc::new(seat);
        let watch = Watch { seat: Arc::clone(&seat), error: None };
        let handle = server.register(watch, Registration::named("barrier"))?;
        Ok(Self {
            seat,
            handle,
            number: next_group(),
            position: Position::first(size),
            is_entered: false,
            waiter: Waiter::at(server, size, LOOKS),
        })
    }

    /// Returns which member this is.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.seat.rank
    }

    /// Returns who takes part.
    #[must_use]
    pub fn group(&self) -> Group {
        self.seat.group
    }

    /// Enters, unless it has entered already, and waits until all have.
    ///
    /// # Cancel safety
    /// Cancel safe: the member enters when the future is polled first, and stays entered when it is dropped
    /// after that; the next call waits for the same barrier. Nothing is entered twice and no result is lost, so
    /// that it may stand in a `select!` inside a loop.
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

    /// Enters, unless it has entered already, and blocks the thread until all have: for programs without tasks.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_blocking(&mut self) -> Result<Passed, BarrierError> {
        if !self.is_entered && self.enter()? == Arrival::Last {
            return Ok(self.depart_now());
        }
        self.finish_blocking()
    }

    /// Enters, and does not wait: what is done before [`depart`](Self::depart) overlaps with the others' way
    /// to the barrier.
    ///
    /// # Errors
    /// [`BarrierError::AlreadyEntered`], [`BarrierError::Lost`].
    pub fn arrive(&mut self) -> Result<Arrived, BarrierError> {
        if self.is_entered {
            return Err(BarrierError::AlreadyEntered { epoch: self.position.epoch });
        }
        let _ = self.enter()?;
        Ok(self.token())
    }

    /// Waits until all have entered the barrier in which this member has [arrived](Self::arrive).
    ///
    /// # Cancel safety
    /// Cancel safe: the member stays entered; [`wait`](Self::wait) goes on with the same barrier.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); [`BarrierError::ForeignToken`] for a token of another member or barrier.
    pub async fn depart(&mut self, token: Arrived) -> Result<Passed, BarrierError> {
        self.check(token)?;
        self.finish().await
    }

    /// Like [`depart`](Self::depart), but blocks the thread.
    ///
    /// # Errors
    /// As [`depart`](Self::depart).
    pub fn depart_blocking(&mut self, token: Arrived) -> Result<Passed, BarrierError> {
        self.check(token)?;
        self.finish_blocking()
    }

    fn token(&self) -> Arrived {
        Arrived { rank: self.seat.rank, epoch: self.position.epoch, group: self.number }
    }

    fn check(&self, token: Arrived) -> Result<(), BarrierError> {
        let is_own = self.is_entered && token == self.token();
        if is_own { Ok(()) } else { Err(BarrierError::ForeignToken { token }) }
    }

    #[inline]
    fn enter(&mut self) -> Result<Arrival, BarrierError> {
        let (seat, position) = (&*self.seat, self.position);
        if let Some(failure) = seat.failure(position.epoch) {
            return Err(failure);
        }
        self.is_entered = true;
        self.waiter.begin();
        let arrival = seat.segment.central().arrive(position.target);
        // After the arrival: if this process dies in between, it is told as missing from a barrier that may be
        // passed all the same, and not awaited in one that can never be.
        if let Some(line) = seat.segment.line(seat.rank) {
            line.entered.store(position.epoch.wrapping_add(1), Ordering::Release);
        }
        if arrival == Arrival::Last {
            seat.wake_sleepers();
        }
        Ok(arrival)
    }

    #[inline]
    fn depart_now(&mut self) -> Passed {
        let passed = Passed::new(self.position.epoch);
        self.position = self.position.next(self.seat.group.size());
        self.is_entered = false;
        passed
    }

    async fn finish(&mut self) -> Result<Passed, BarrierError> {
        let (seat, position) = (&*self.seat, self.position);
        let waiter = &mut self.waiter;
        let mut outcome =
            future::poll_fn(|cx| waiter.poll_look(cx, || seat.outcome(position))).await;
        let has_given_up = outcome.is_none();
        while outcome.is_none() {
            self.handle.wait(position).await?;
            outcome = seat.outcome(position);
        }
        if has_given_up {
            self.waiter.slept();
        }
        outcome.unwrap_or(Ok(()))?;
        Ok(self.depart_now())
    }

    fn finish_blocking(&mut self) -> Result<Passed, BarrierError> {
        let (seat, position) = (&*self.seat, self.position);
        let mut outcome = self.waiter.look_blocking(|| seat.outcome(position));
        let nap =
            futex::Timespec::try_from(NAP).unwrap_or(futex::Timespec { tv_sec: 1, tv_nsec: 0 });
        let has_given_up = outcome.is_none();
        while outcome.is_none() {
            let gate = seat.segment.central().begin_sleep();
            outcome = seat.outcome(position);
            if outcome.is_none() {
                // Woken, changed before, over, or a signal: look again in each case.
                let flags = futex::Flags::empty();
                let _ = futex::wait(seat.segment.central().gate(), flags, gate, Some(&nap));
                seat.look().map_err(BarrierError::io("looking whether members are gone"))?;
                outcome = seat.outcome(position);
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
        // The watch may live a little longer.
        self.seat.doors.leave();
    }
}

impl fmt::Debug for ShmMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmMember")
            .field("rank", &self.seat.rank)
            .field("position", &self.position)
            .field("is_entered", &self.is_entered)
            .finish_non_exhaustive()
    }
}

/// The keys of what is watched.
const OWN: u32 = 0;
const HANG_UPS: u32 = 1;

/// The detector: a request is the barrier that is waited for, its event that waiting is over, one way or the
/// other.
///
/// It can be polled at any time, which reads two words. Before a sleep it says in its line that it needs a knock.
struct Watch {
    seat: Arc<Seat>,
    /// Why looking for those who are gone failed.
    error: Option<io::Error>,
}

impl Detector for Watch {
    type Request = Position;
    type Event = ();

    fn methods(&self) -> Methods {
        Methods::CHECK | Methods::GROUP | Methods::NOTIFY
    }

    fn attach(&mut self, site: &Site) -> io::Result<()> {
        site.watch(self.seat.doors.own(), OWN, Interest::Readable)?;
        site.watch(self.seat.doors.hang_ups(), HANG_UPS, Interest::Readable)
    }

    fn submit(&mut self, _: Key, position: &mut Position, _: Mode) -> Submitted<()> {
        if let Some(error) = self.error.take() {
            return Submitted::Rejected(error);
        }
        // Not `Pending`: the host sleeps only after it was armed.
        if self.seat.outcome(*position).is_some() {
            Submitted::Ready(())
        } else {
            Submitted::Queued
        }
    }

    fn check(&mut self, _: Key, position: &mut Position) -> Option<()> {
        self.seat.outcome(*position).map(drop)
    }

    fn notified(&mut self, notices: &[Notice], round: &mut Round<'_, Self>) {
        for notice in notices {
            match notice.key {
                HANG_UPS => self.error = self.seat.look().err(),
                _ => self.seat.doors.answer(),
            }
        }
        self.poll(round);
    }

    fn arm(&mut self) -> io::Result<Armed> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if let Some(line) = self.seat.segment.line(self.seat.rank) {
            // Before `sleepers`: whoever sees that sees this.
            line.is_asleep.store(1, Ordering::SeqCst);
        }
        let _ = self.seat.segment.central().begin_sleep();
        // The server polls once more now: what happened before is seen there.
        Ok(Armed::Armed)
    }
}
