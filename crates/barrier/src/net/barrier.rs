//! The user's side: one member of a barrier over the network.

use std::{
    fmt, future,
    task::{Context, Poll},
    time::Duration,
};

use vigie_detect::{EngineHost, HostThread, Instant, Registration, Server, WaitError, Waiter};

use super::{
    async_engine::{AsyncEngine, PollGuard, USER, WaitCondition},
    engine::{BarrierEngine, Exit, NetCounters},
    measure::Measurement,
    plan::{PlannerInput, WaitMode},
    transport::Transport,
};
use crate::{
    algorithm::Algorithm,
    deadline::with_deadline,
    error::{Arrived, BarrierError, Passed},
    group::{Group, Rank, next_group},
    logp::WaitHistory,
    member::{Member, ShrinkError},
};

/// Polls of the transport per reading of the clock.
const POLLS: u32 = 4;

/// The state of multicast, which decides how packets for all members are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MulticastState {
    /// One multicast reaches all: this was tested when the group was formed.
    Works,
    /// The algorithm uses none, or was not to use it.
    Unused,
    /// It does not work here, so packets are sent to each member separately.
    Unavailable {
        /// The obstacle, and how to remove it.
        why: String,
    },
}

/// One member of a barrier over the network. [`NetBarrier::builder`] forms groups.
///
/// Dropping it leaves the group: barriers that it has not entered fail for all others.
///
/// # How it waits
/// A waiting member first polls in bursts of at most 20 µs, during which it also yields the processor to others;
/// other tasks run between the bursts. Once it has waited for as long as a barrier takes whose members all sleep, the scheduler
/// that hosts the barrier decides how it sleeps; [`WaitMode`](super::WaitMode) overrides this. While the member is
/// outside the barrier, or computes between [`arrive`](Self::arrive) and [`depart`](Self::depart), the host answers
/// for it.
#[must_use = "dropping a member leaves the group"]
pub struct NetBarrier {
    pub(super) host: EngineHost<AsyncEngine>,
    pub(super) server: Server,
    waiter: Waiter,
    multicast: MulticastState,
    pub(super) planner_input: PlannerInput,
    /// The durations of the latest waits.
    pub(super) waits: WaitHistory,
    pub(super) number: u64,
    /// The progress of a measurement.
    pub(super) progress: Option<Measurement>,
    /// Dropped last; `None` if another server hosts.
    _thread: Option<HostThread>,
}

impl NetBarrier {
    pub(super) fn new(
        (server, thread): (Server, Option<HostThread>),
        (algorithm, multicast): (Algorithm, MulticastState),
        planner_input: PlannerInput,
        member: Member,
        transport: Box<dyn Transport>,
    ) -> Result<Self, BarrierError> {
        let size = member.schedule().group().size();
        let async_engine = AsyncEngine::new(BarrierEngine::new(member, algorithm, transport));
        let host = EngineHost::new(&server, async_engine, Registration::named("barrier"))?;
        host.run_in_background()?;
        let waiter = Waiter::at(&server, size, POLLS);
        Ok(Self {
            host,
            server,
            waiter,
            multicast,
            planner_input,
            waits: WaitHistory::default(),
            number: next_group(),
            progress: None,
            _thread: thread,
        })
    }

    /// Calls `f` with the engine, under its lock.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut BarrierEngine) -> T) -> T {
        self.host.post(|async_engine| f(&mut async_engine.engine))
    }

    /// Like [`with`](Self::with), but also makes the host poll.
    pub(super) fn with_host<T>(&self, f: impl FnOnce(&mut BarrierEngine) -> T) -> T {
        self.host.post(|async_engine| {
            async_engine.request_poll();
            f(&mut async_engine.engine)
        })
    }

    /// Returns this member's rank; shrinking changes it.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.with(|engine| engine.member.rank())
    }

    /// Returns the group.
    #[must_use]
    pub fn group(&self) -> Group {
        self.with(|engine| engine.member.schedule().group())
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.with(|engine| engine.algorithm)
    }

    /// Returns how packets for all members are sent.
    #[must_use]
    pub const fn multicast(&self) -> &MulticastState {
        &self.multicast
    }

    /// Returns what was sent, received and dropped.
    #[must_use]
    pub fn counters(&self) -> NetCounters {
        self.with(|engine| engine.counters())
    }

    /// Enters the barrier, unless it has been entered already, and waits until all members have.
    ///
    /// # Cancel safety
    /// Cancel safe: the member has then entered, and its next wait is for the same barrier.
    ///
    /// # Errors
    /// [`BarrierError::Lost`] if members are gone, or, with this member's own rank, if the others believe it gone.
    /// [`shrink`](Self::shrink) makes a smaller group of those that are left. [`BarrierError::Value`] if the group
    /// reduces: call [`reduce`](Self::reduce). [`BarrierError::Measuring`] if a measurement was cancelled.
    pub async fn wait(&mut self) -> Result<Passed, BarrierError> {
        self.is_measured()?;
        if self.with(|engine| engine.entered()).is_some() {
            return self.exit().await.map(|(passed, _)| passed);
        }
        self.enter_and_exit(&[]).await.map(|(passed, _)| passed)
    }

    /// Like [`wait`](Self::wait), and also reduces a value of each member by the
    /// [reduction](super::NetBuilder::reduction) of the group. Returns the result, the same at all members.
    ///
    /// # Cancel safety
    /// Cancel safe: this member has then entered with this value. The next call waits for the same barrier and
    /// returns its result, ignoring its own value; the same holds after [`arrive`](Self::arrive).
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait), and [`BarrierError::Value`].
    pub async fn reduce(&mut self, value: &[u8]) -> Result<(Passed, Vec<u8>), BarrierError> {
        self.is_measured()?;
        if self.with(|engine| engine.entered()).is_some() {
            return self.exit().await;
        }
        self.enter_and_exit(value).await
    }

    /// Enters the barrier without waiting, with a value if the group has a reduction: the first half of a split-phase
    /// barrier. Other members' packets are answered meanwhile.
    ///
    /// # Errors
    /// [`BarrierError::AlreadyEntered`], and the errors of [`wait`](Self::wait).
    pub fn arrive(&mut self, value: &[u8]) -> Result<Arrived, BarrierError> {
        self.is_measured()?;
        let epoch = self.enter(self.server.now(), value)?;
        self.with_host(|_| ());
        Ok(Arrived { rank: self.rank(), epoch, group: self.number })
    }

    /// Waits until all members have entered the barrier in which this one has arrived. Also returns the reduced
    /// value, which is empty without a reduction.
    ///
    /// # Cancel safety
    /// The same as [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`BarrierError::ForeignToken`], and the errors of [`wait`](Self::wait).
    pub async fn depart(&mut self, token: Arrived) -> Result<(Passed, Vec<u8>), BarrierError> {
        let is_own = token.group == self.number
            && self.with(|engine| {
                token.rank == engine.member.rank() && engine.entered() == Some(token.epoch)
            });
        if !is_own {
            return Err(BarrierError::ForeignToken { token });
        }
        self.exit().await
    }

    /// Waits until the members that are left after a failure agree on who they are, and moves this member to the
    /// smaller group. Returns their ranks in the larger group, in order: their indices are their new ranks. All
    /// survivors must call it.
    ///
    /// # Cancel safety
    /// Cancel safe: call it again.
    ///
    /// # Errors
    /// [`BarrierError::Minority`] if too few are left by the [quorum](super::NetBuilder::quorum);
    /// [`BarrierError::Lost`] with this member's own rank if the others believe it gone; [`BarrierError::Io`] if no
    /// member is gone, or more than a packet can name.
    pub async fn shrink(&mut self) -> Result<Vec<Rank>, BarrierError> {
        let refused = |what: String| BarrierError::Io {
            doing: "shrinking the group",
            source: std::io::Error::other(what),
        };
        if !self.with_host(|engine| engine.has_failed()) {
            return Err(refused(ShrinkError::Whole.to_string()));
        }
        self.sleep(WaitCondition::Agreement).await?;
        let survivors = self.with_host(|engine| {
            if engine.survivors.is_none() {
                return Err(engine.refusal());
            }
            engine.shrink().map_err(refused)
        })?;
        self.number = next_group();
        self.progress = None;
        Ok(survivors)
    }

    /// Fails if others wait for the rest of a measurement. After a failure of the group, none do.
    fn is_measured(&self) -> Result<(), BarrierError> {
        match &self.progress {
            Some(progress) if !self.with(|engine| engine.has_failed()) => {
                Err(BarrierError::Measuring { call: progress.call })
            }
            _ => Ok(()),
        }
    }

    /// Leaves in order: tells the others, and serves them until none can need that any more, or for `timeout` at
    /// most. That is until all members that get messages from this one have passed its last barrier, or have left or
    /// died, and until those that wait for word of it know that it leaves. If all members leave, or stay, and nothing
    /// is lost, this takes one round trip after the last has passed. Dropping a member tells the others as well, but
    /// it can then no longer repeat lost messages of the last barrier.
    ///
    /// # Cancel safety
    /// The member has left.
    ///
    /// # Errors
    /// [`BarrierError::Wait`] if the server has shut down.
    pub async fn leave(self, timeout: Duration) -> Result<(), BarrierError> {
        let now = self.server.now();
        self.with_host(|engine| engine.leave(now));
        let free = self.sleep(WaitCondition::Released);
        with_deadline(&self.server, now + timeout, free).await.transpose()?;
        Ok(())
    }

    pub(super) fn enter(&self, now: Instant, value: &[u8]) -> Result<u32, BarrierError> {
        self.host.post(|async_engine| {
            async_engine.begin_poll(false);
            async_engine.engine.enter(now, value)
        })
    }

    /// A whole barrier, timed.
    async fn enter_and_exit(&mut self, value: &[u8]) -> Result<Exit, BarrierError> {
        let entered = self.server.now();
        self.enter(entered, value)?;
        let exit = self.exit().await?;
        self.waits.add(self.server.now() - entered);
        Ok(exit)
    }

    /// Waits for the end of the barrier that was entered.
    pub(super) async fn exit(&mut self) -> Result<Exit, BarrierError> {
        // If this future is dropped, the host continues.
        let mut guard = PollGuard::begin(&self.host, false);
        let exit = loop {
            if self.planner_input.wait_mode != WaitMode::Sleeping
                && let Some(exit) = self.poll().await
            {
                break exit;
            }
            if self.planner_input.wait_mode == WaitMode::Polling {
                yield_now().await;
                continue;
            }
            self.sleep(WaitCondition::Exit).await?;
            self.waiter.slept();
            if let Some(exit) = self.with(BarrierEngine::take_exit) {
                break exit;
            }
        };
        // After a failure there is more to send and to receive.
        guard.is_over = exit.is_ok();
        exit
    }

    /// Sleeps as the host decides.
    pub(super) async fn sleep(&self, until: WaitCondition) -> Result<(), WaitError> {
        let mut waiter = self.host.waiter(USER);
        future::poll_fn(|cx: &mut Context<'_>| {
            if waiter.renew_waker(cx) {
                return Poll::Pending;
            }
            let now = self.server.now();
            waiter.poll(cx, |async_engine| async_engine.sleep(until, now))
        })
        .await
    }

    /// Polls for a while, without the host. Between two bursts the executor's other tasks run, and the host if there
    /// is something for it.
    async fn poll(&mut self) -> Option<Result<Exit, BarrierError>> {
        let (server, host) = (&self.server, &self.host);
        let (waiter, mut now, mut polls) = (&mut self.waiter, server.now(), 0_u32);
        waiter.begin();
        future::poll_fn(|cx| {
            host.post(|async_engine| async_engine.begin_poll(true));
            let found = waiter.poll_spin(cx, || {
                // Nothing is due so soon that it matters, and reading the clock costs as much as the rest of a poll.
                if polls > 0 && polls.is_multiple_of(POLLS) {
                    now = server.now();
                }
                polls += 1;
                host.post(|async_engine| {
                    // The last member to arrive finds everything there.
                    if polls > 1 {
                        async_engine.poll(now);
                    }
                    async_engine.engine.take_exit()
                })
            });
            host.post(AsyncEngine::end_poll);
            found
        })
        .await
    }
}

/// Lets the runtime's other tasks run.
pub(super) async fn yield_now() {
    let mut has_yielded = false;
    future::poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Drop for NetBarrier {
    fn drop(&mut self) {
        // A forked child's copy says nothing on behalf of its parent's member.
        if self.host.is_inherited() {
            return;
        }
        let now = self.server.now();
        let transport = self.with(|engine| {
            // Members that have agreed may be further along, and would wait for this member there.
            if !engine.has_left && engine.survivors.is_some() {
                let _ = engine.shrink();
            }
            engine.announce_departure(now);
            engine.close()
        });
        // It may hold a reference to the owner of this.
        drop(transport);
    }
}

impl fmt::Debug for NetBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetBarrier")
            .field("rank", &self.rank())
            .field("group", &self.group())
            .field("algorithm", &self.algorithm())
            .field("multicast", &self.multicast)
            .finish_non_exhaustive()
    }
}
