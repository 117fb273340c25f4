//! The user's side: one member's place in a barrier over the network.

use std::{fmt, future, sync::Arc, task::Poll, time::Duration};

use vigie_detect::{EventStream, Handle, HostThread, Registration, Server, Waiter};

use super::{
    engine::{Engine, Exit, NetCounters},
    measure::Progress,
    meeting::within,
    plan::{Basis, Waiting},
    transport::Transport,
    watch::{Shared, Want, Watch},
};
use crate::{
    algorithm::Algorithm,
    error::{Arrived, BarrierError, Passed},
    group::{Group, Rank},
    local::next_group,
    logp::Waits,
    member::{Member, ShrinkError},
    sync::lock,
};

/// Looks at the transport for each one at the clock.
const LOOKS: u32 = 4;

/// How packets for everyone are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MulticastState {
    /// One multicast reaches all: it was tried when the group was formed.
    Works,
    /// The algorithm has none, or was not to use it.
    Unused,
    /// It does not work here, and each member is sent to by itself.
    Blocked {
        /// What is wrong, and what to do.
        why: String,
    },
}

/// One member of a barrier over the network. [`NetBarrier::builder`] forms groups.
///
/// Dropping it leaves the group: barriers that it has not entered fail for all others.
///
/// # How it waits
/// A member that waits first looks in bursts of at most 20 µs, in which it also gives the processor to others, and other tasks run between
/// the bursts. After as much time as it would cost if all members slept, it sleeps, by
/// the decision of the scheduler that hosts the barrier; [`Waiting`](super::Waiting) says otherwise. While the member is outside of the barrier, or computes between
/// [`arrive`](Self::arrive) and [`depart`](Self::depart), the host answers for it.
#[must_use = "dropping a member leaves the group"]
pub struct NetBarrier {
    pub(super) shared: Arc<Shared>,
    pub(super) handle: Handle<Watch>,
    background: Option<EventStream<Watch>>,
    pub(super) server: Server,
    waiter: Waiter,
    multicast: MulticastState,
    pub(super) basis: Basis,
    /// What waits have taken.
    pub(super) waits: Waits,
    pub(super) number: u64,
    /// How far a measurement has come.
    pub(super) progress: Option<Progress>,
    pub(super) waker: std::task::Waker,
    /// Ends after the rest, if nobody else hosts.
    _host: Option<HostThread>,
}

impl NetBarrier {
    pub(super) fn new(
        (server, host): (Server, Option<HostThread>),
        (algorithm, multicast): (Algorithm, MulticastState),
        basis: Basis,
        member: Member,
        transport: Box<dyn Transport>,
    ) -> Result<Self, BarrierError> {
        let size = member.schedule().group().size();
        let shared = Shared::new(Engine::new(member, algorithm, transport));
        let watch = Watch::new(&shared).map_err(BarrierError::io("watching the transport"))?;
        let handle = server.register(watch, Registration::named("barrier"))?;
        let waiter = Waiter::at(&server, size, LOOKS);
        let background = Some(handle.stream(Want::Background)?);
        let waker = std::task::Waker::from(Arc::clone(&shared));
        Ok(Self {
            shared,
            handle,
            background,
            server,
            waiter,
            multicast,
            basis,
            waits: Waits::default(),
            number: next_group(),
            progress: None,
            waker,
            _host: host,
        })
    }

    /// Returns this member's rank; shrinking changes it.
    #[must_use]
    pub fn rank(&self) -> Rank {
        lock(&self.shared.engine).member.rank()
    }

    /// Returns who takes part.
    #[must_use]
    pub fn group(&self) -> Group {
        lock(&self.shared.engine).member.schedule().group()
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        lock(&self.shared.engine).algorithm
    }

    /// Returns how packets for everyone are sent.
    #[must_use]
    pub const fn multicast(&self) -> &MulticastState {
        &self.multicast
    }

    /// Returns what was sent, taken and dropped.
    #[must_use]
    pub fn counters(&self) -> NetCounters {
        lock(&self.shared.engine).counters()
    }

    /// Enters the barrier, unless it has been entered already, and waits until all members have.
    ///
    /// # Cancel safety
    /// Cancel safe: this member has entered then, and its next wait is for the same barrier.
    ///
    /// # Errors
    /// [`BarrierError::Lost`] if members are gone, or if the others take this one for gone: then its own rank is named.
    /// [`shrink`](Self::shrink) makes a smaller group of those that are left. [`BarrierError::Value`] if the group reduces:
    /// take [`reduce`](Self::reduce). [`BarrierError::Measuring`] if a measurement was cancelled.
    pub async fn wait(&mut self) -> Result<Passed, BarrierError> {
        self.is_measured()?;
        if lock(&self.shared.engine).entered().is_some() {
            return self.exit().await.map(|(passed, _)| passed);
        }
        self.enter_and_exit(&[]).await.map(|(passed, _)| passed)
    }

    /// As [`wait`](Self::wait), and reduces a value of each member by the [reduction](super::NetBuilder::reduction) of
    /// the group. Returns the result, the same at all members.
    ///
    /// # Cancel safety
    /// Cancel safe: this member has entered with this value then. The next call waits for the same barrier and returns its
    /// result, and its own value does not count; so it is too after [`arrive`](Self::arrive).
    ///
    /// # Errors
    /// As [`wait`](Self::wait); [`BarrierError::Value`].
    pub async fn reduce(&mut self, value: &[u8]) -> Result<(Passed, Vec<u8>), BarrierError> {
        self.is_measured()?;
        if lock(&self.shared.engine).entered().is_some() {
            return self.exit().await;
        }
        self.enter_and_exit(value).await
    }

    /// Enters the barrier without waiting, with a value if the group has a reduction: the first half of a split phase.
    /// Packets of the others are served meanwhile.
    ///
    /// # Errors
    /// [`BarrierError::AlreadyEntered`]; as [`wait`](Self::wait).
    pub fn arrive(&mut self, value: &[u8]) -> Result<Arrived, BarrierError> {
        self.is_measured()?;
        let epoch = self.enter(value)?;
        self.shared.ring();
        Ok(Arrived { rank: self.rank(), epoch, group: self.number })
    }

    /// Waits until all members have entered the barrier in which this one has arrived. Returns the reduced value too,
    /// which is empty without a reduction.
    ///
    /// # Cancel safety
    /// As [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`BarrierError::ForeignToken`]; as [`wait`](Self::wait).
    pub async fn depart(&mut self, token: Arrived) -> Result<(Passed, Vec<u8>), BarrierError> {
        let is_own = {
            let engine = lock(&self.shared.engine);
            token.group == self.number
                && token.rank == engine.member.rank()
                && engine.entered() == Some(token.epoch)
        };
        if !is_own {
            return Err(BarrierError::ForeignToken { token });
        }
        self.exit().await
    }

    /// Waits until the members that are left after a failure agree on who they are, and makes this member one of the
    /// smaller group. Returns their ranks in the larger one, in order: their places are their ranks now. All survivors
    /// must call it.
    ///
    /// # Cancel safety
    /// Cancel safe: call it again.
    ///
    /// # Errors
    /// [`BarrierError::Minority`] if too few are left by the [quorum](super::NetBuilder::quorum); [`BarrierError::Lost`]
    /// with this member's own rank if the others take it for gone; [`BarrierError::Io`] if nobody is gone, or more than
    /// members can tell each other.
    pub async fn shrink(&mut self) -> Result<Vec<Rank>, BarrierError> {
        let refused = |what: String| BarrierError::Io {
            doing: "shrinking the group",
            source: std::io::Error::other(what),
        };
        if !lock(&self.shared.engine).has_failed() {
            return Err(refused(ShrinkError::Whole.to_string()));
        }
        self.shared.ring();
        self.handle.wait(Want::Agreement).await?;
        let mut engine = lock(&self.shared.engine);
        if engine.survivors.is_none() {
            return Err(engine.refusal());
        }
        let survivors = engine.shrink().map_err(refused)?;
        drop(engine);
        self.number = next_group();
        self.progress = None;
        self.shared.ring();
        Ok(survivors)
    }

    /// Errs if others wait for the rest of a measurement. After a failure nobody does.
    fn is_measured(&self) -> Result<(), BarrierError> {
        match &self.progress {
            Some(progress) if !lock(&self.shared.engine).has_failed() => {
                Err(BarrierError::Measuring { call: progress.call })
            }
            _ => Ok(()),
        }
    }

    /// Leaves in order: tells the others, and serves them until nobody can need that any more, or for `patience` at most:
    /// until all have passed this member's last barrier that get messages of it there, or have left or died; and until
    /// those know that it leaves that wait for word of it. Where all leave, or stay, and nothing is lost, that takes one
    /// round trip after the last has passed. Who drops a member tells the others as well, but cannot repeat any more what
    /// they have lost of the last barrier.
    ///
    /// # Cancel safety
    /// The member has left.
    ///
    /// # Errors
    /// [`BarrierError::Wait`] if the server has ended.
    pub async fn leave(self, patience: Duration) -> Result<(), BarrierError> {
        lock(&self.shared.engine).leave(self.server.now());
        self.shared.ring();
        let until = self.server.now() + patience;
        within(&self.server, until, self.handle.wait(Want::Freedom)).await.transpose()?;
        Ok(())
    }

    pub(super) fn enter(&mut self, value: &[u8]) -> Result<u32, BarrierError> {
        lock(&self.shared.engine).enter(self.server.now(), value)
    }

    /// A whole barrier, which is timed.
    async fn enter_and_exit(&mut self, value: &[u8]) -> Result<Exit, BarrierError> {
        let entered = self.server.now();
        lock(&self.shared.engine).enter(entered, value)?;
        let exit = self.exit().await?;
        self.waits.add(self.server.now() - entered);
        Ok(exit)
    }

    /// Waits for the end of the barrier that was entered.
    pub(super) async fn exit(&mut self) -> Result<Exit, BarrierError> {
        // Should this future be dropped, the host goes on.
        let mut rest = Rest { shared: Arc::clone(&self.shared), is_over: false };
        let exit = loop {
            if self.basis.waiting != Waiting::Sleeping
                && let Some(exit) = self.look().await
            {
                break exit;
            }
            if self.basis.waiting == Waiting::Polling {
                yield_now().await;
                continue;
            }
            self.handle.wait(Want::Exit).await?;
            self.waiter.slept();
            let exit = lock(&self.shared.engine).take_exit();
            if let Some(exit) = exit {
                break exit;
            }
        };
        // After a failure there is more to say and to hear.
        rest.is_over = exit.is_ok();
        exit
    }

    /// Looks for a while, without the host. Between two bursts the executor's other tasks run, and the host if there is something for it.
    async fn look(&mut self) -> Option<Result<Exit, BarrierError>> {
        let (server, shared, waker) = (&self.server, &*self.shared, &self.waker);
        let (waiter, mut now, mut looks) = (&mut self.waiter, server.now(), 0_u32);
        waiter.begin();
        future::poll_fn(|cx| {
            {
                let mut engine = lock(&shared.engine);
                engine.is_looked_at = true;
                engine.turns += 1;
            }
            let found = waiter.poll_look(cx, || {
                let mut engine = lock(&shared.engine);
                // Whoever comes last finds everything there.
                if looks > 0 {
                    // Nothing is due so soon that it matters, and the clock costs as much as the rest of a look.
                    if looks.is_multiple_of(LOOKS) {
                        now = server.now();
                    }
                    engine.look(now, waker);
                }
                looks += 1;
                engine.take_exit()
            });
            lock(&shared.engine).is_looked_at = false;
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

/// Makes the host go on where the user stops.
struct Rest {
    shared: Arc<Shared>,
    is_over: bool,
}

impl Drop for Rest {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.ring();
        }
    }
}

impl Drop for NetBarrier {
    fn drop(&mut self) {
        let mut engine = lock(&self.shared.engine);
        // Those who have agreed may be further already, and would wait for this member there.
        if !engine.has_left && engine.survivors.is_some() {
            let _ = engine.shrink();
        }
        engine.go(self.server.now());
        // It may hold what holds this.
        let transport = engine.close();
        drop(engine);
        drop(transport);
        drop(self.background.take());
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
