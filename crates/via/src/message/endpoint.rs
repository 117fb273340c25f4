//! The message engine of one rank, on its host.

use std::{
    collections::BTreeSet,
    fmt, io,
    sync::{Arc, OnceLock},
};

use vigie_detect::{
    ArmOutcome, EngineContext, EngineHost, Instant, Notifier, PollerEvent, Progress, RegisterError,
    Registration, Server, SharedWaiter, WaitError, WatchedDescriptor,
};

use super::{CloseError, Communicator, context::ContextTable, linger, watch::Watch};
use crate::{
    protocol::{EngineEvent, MessageEngine, Pattern, RequestError, RequestId, Status},
    vi::Provider,
};

/// Polls between two reads of the clock: about 1 µs.
const POLLS_PER_CLOCK_READ: u32 = 16;

/// The purpose of a wait on an endpoint. Requests are not listed: they are polled with their owners' buffers.
#[derive(Clone, Copy, Debug)]
pub(super) enum EndpointRequest {
    /// A message that fits, to be left where it is, and the number of ranks that had failed when the wait
    /// began.
    Probe(Pattern, usize),
    /// Events of the engine: connections, failures.
    Event,
    /// That all has left that was sent; `None`: as long as a dropped endpoint lingers.
    AllLeft(Option<Instant>),
}

#[derive(Debug)]
pub(super) enum EndpointOutput {
    Probed(Result<Status, RequestError>),
    Event(EngineEvent),
    /// The ranks that have not taken all in time.
    AllLeft(BTreeSet<u32>),
}

/// Makes the message engine an engine of a detection server. Requests are served by their numbers.
pub(super) struct EndpointEngine<P: Provider> {
    engine: MessageEngine<P>,
    /// The engine's work count when it was armed.
    worked: u64,
    /// Empty between two calls.
    ready: Vec<RequestId>,
    /// When a wait for all that was sent gives up.
    close_by: Option<Instant>,
    /// The end of an endpoint that was dropped before all had left.
    leaving: Option<Leaving>,
}

/// A dropped endpoint whose engine still hands over what was sent.
struct Leaving {
    /// Set by the first turn.
    until: Option<Instant>,
    /// The process in which it was dropped: a forked child leaves the rest to that.
    process: u32,
}

impl<P: Provider> EndpointEngine<P> {
    #[inline]
    pub(super) const fn engine(&mut self) -> &mut MessageEngine<P> {
        &mut self.engine
    }

    /// The endpoint is dropped. Returns whether anything has still to leave.
    pub(super) fn begin_to_leave(&mut self) -> bool {
        let lingers = !self.engine.config.linger.is_zero();
        if lingers && !self.engine.unreached().is_empty() {
            self.leaving = Some(Leaving { until: None, process: std::process::id() });
        }
        self.leaving.is_some()
    }

    /// Returns the ranks that have not taken all that was sent, once there is no more time, or none.
    fn all_left(&mut self, deadline: Option<Instant>) -> Option<BTreeSet<u32>> {
        let unreached = self.engine.unreached();
        // Before the first turn, the time is not known.
        let deadline = deadline.or_else(|| self.leaving.as_ref().and_then(|it| it.until));
        let deadline = deadline.unwrap_or(Instant::MAX);
        if unreached.is_empty() || deadline <= self.engine.now() {
            return Some(unreached);
        }
        self.close_by = Some(self.close_by.map_or(deadline, |other| other.min(deadline)));
        None
    }
}

impl<P: Provider> Drop for EndpointEngine<P> {
    fn drop(&mut self) {
        let Some(Leaving { until, process }) = self.leaving.take() else { return };
        if process == std::process::id() {
            let linger = self.engine.config.linger;
            let until = until.unwrap_or_else(|| Instant::now().saturating_add(linger));
            linger::hand_over(&mut self.engine, until);
        }
    }
}

impl<P: Provider> vigie_detect::Engine for EndpointEngine<P> {
    type Request = EndpointRequest;
    type Output = EndpointOutput;

    fn take(&mut self, want: &EndpointRequest) -> Option<EndpointOutput> {
        let Self { engine, .. } = self;
        match *want {
            EndpointRequest::Event => engine.next_event().map(EndpointOutput::Event),
            EndpointRequest::AllLeft(until) => self.all_left(until).map(EndpointOutput::AllLeft),
            EndpointRequest::Probe(pattern, failure_count) => {
                let found = engine.probe(pattern).map(Ok);
                found
                    .or_else(|| engine.gave_up(&pattern, failure_count).map(Err))
                    .map(EndpointOutput::Probed)
            }
        }
    }

    fn put_back(&mut self, _: &EndpointRequest, found: EndpointOutput) -> Option<EndpointOutput> {
        match found {
            EndpointOutput::Event(event) => {
                self.engine.give_back_event(event);
                None
            }
            EndpointOutput::Probed(_) | EndpointOutput::AllLeft(_) => Some(found),
        }
    }

    fn progress(&mut self, turn: &EngineContext<'_>) -> Progress {
        let now = turn.now();
        // Those that still wait say so again.
        self.close_by = None;
        if let Some(leaving) = &mut self.leaving {
            let until = now.saturating_add(self.engine.config.linger);
            leaving.until.get_or_insert(until);
        }
        self.engine.progress(now);
        Progress::Done
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        let armed = self.engine.arm();
        self.worked = self.engine.worked();
        armed
    }

    fn notified(&mut self, _: &[PollerEvent]) {
        self.engine.quiet();
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        if let Some(descriptor) = self.engine.descriptor() {
            each(WatchedDescriptor::readable(descriptor));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let first_turn = self.leaving.as_ref().filter(|leaving| leaving.until.is_none());
        let first_turn = first_turn.map(|_| self.engine.now());
        [self.engine.next_deadline(), self.close_by, first_turn].into_iter().flatten().min()
    }

    fn can_announce(&self) -> bool {
        self.engine.nic().can_announce()
    }

    fn attach(&mut self, bell: Notifier) -> io::Result<()> {
        self.engine.nic_mut().attach_notifier(bell);
        Ok(())
    }

    fn served(&mut self, names: &mut Vec<u64>) {
        self.engine.take_ready(&mut self.ready);
        names.extend(self.ready.drain(..).map(|request| request.0));
    }

    #[inline]
    fn has_served(&self) -> bool {
        self.engine.has_ready()
    }

    fn has_unannounced_work(&self) -> bool {
        self.engine.has_silent_work()
    }

    fn has_new_events(&self) -> bool {
        self.engine.worked() != self.worked || self.engine.has_events()
    }
}

pub(super) struct EndpointInner<P: Provider> {
    pub(super) host: EngineHost<EndpointEngine<P>>,
    pub(super) waiter: SharedWaiter,
    pub(super) contexts: ContextTable,
    /// The watch that tells how the ranks of a world fare.
    pub(super) watch: OnceLock<Arc<Watch>>,
}

impl<P: Provider> EndpointInner<P> {
    /// Calls `f` with the engine, then notifies the owners of the requests that became ready.
    #[inline]
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut MessageEngine<P>) -> T) -> T {
        self.host.post(|endpoint_engine| f(&mut endpoint_engine.engine))
    }

    /// As [`with`](Self::with), for values dropped with their owner: in a forked child the copy does nothing
    /// and leaves it to the parent.
    pub(super) fn drop_with(&self, f: impl FnOnce(&mut MessageEngine<P>)) {
        if !self.host.is_inherited() {
            self.with(f);
        }
    }
}

/// The message engine of one rank, hosted by a detection server. Clones share the endpoint; its connections
/// end with the last clone and the last of its communicators and requests.
///
/// # The end
/// A send is done before its receiver has the message: the message may wait for credit, for its receive, or for an acknowledgement.
/// [`close`](Self::close) waits until nothing does. After a drop, the server goes on with that for at most
/// [`EngineConfig::linger`](crate::protocol::EngineConfig::linger); if the server ends meanwhile, as it does with its runtime, its end
/// takes that long at most. What is not handed over then is lost, and logged as a warning. A process that ends without dropping its
/// runtime, as by [`std::process::exit`], loses it without a word: call `close` before.
pub struct Endpoint<P: Provider> {
    pub(super) inner: Arc<EndpointInner<P>>,
}

impl<P: Provider> Endpoint<P> {
    /// Registers an engine with a detection server: [`Server::current`] inside a vigie runtime, a host
    /// thread's elsewhere.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn new(server: &Server, engine: MessageEngine<P>) -> Result<Self, RegisterError> {
        let registration = Registration::named(engine.nic().attributes().name);
        let waiter = SharedWaiter::at(server, engine.size(), POLLS_PER_CLOCK_READ);
        let (ready, close_by, leaving) = (Vec::new(), None, None);
        let endpoint_engine = EndpointEngine { engine, worked: 0, ready, close_by, leaving };
        let host = EngineHost::new(server, endpoint_engine, registration)?;
        host.run_in_background().map_err(|_| RegisterError::ServerClosed)?;
        let inner =
            EndpointInner { host, waiter, contexts: ContextTable::new(), watch: OnceLock::new() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Calls `f` with the engine, under the endpoint's lock. Use it for everything that does not wait.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut MessageEngine<P>) -> T) -> T {
        self.inner.with(f)
    }

    /// Returns the communicator of all ranks, in context 0. Each call returns the same context.
    #[must_use]
    pub fn communicator(&self) -> Communicator<P> {
        Communicator::new(Arc::clone(&self.inner), 0)
    }

    /// Waits for the next event of the engine: a connection that was made, refused or requested, or a rank
    /// that failed.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`WaitError`] when the server ends.
    pub async fn next_event(&self) -> Result<EngineEvent, WaitError> {
        match self.inner.host.wait(EndpointRequest::Event).await? {
            EndpointOutput::Event(event) => Ok(event),
            _ => unreachable!("invariant: a wait gets what it wants"),
        }
    }

    /// Waits until everything that was sent has been handed over, to this rank's communicators' peers and at most until `deadline`, and
    /// drops this clone of the endpoint: `MPI_Finalize`. Handed over is what the receiver's process has, or has acknowledged, whether or
    /// not a receive has matched it; of a message that is sent piece by piece, or that the receiver has only heard of, that is
    /// all of it. What was sent to ranks that have failed is not waited for.
    ///
    /// # Cancel safety
    /// Cancel safe: what is left is handed over as after a drop.
    ///
    /// # Errors
    /// [`CloseError`]. What has not been handed over by then is handed over as after a drop.
    pub async fn close(self, deadline: Instant) -> Result<(), CloseError> {
        match self.inner.host.wait(EndpointRequest::AllLeft(Some(deadline))).await? {
            EndpointOutput::AllLeft(ranks) if ranks.is_empty() => Ok(()),
            EndpointOutput::AllLeft(ranks) => {
                Err(CloseError::TimedOut { ranks: ranks.into_iter().collect() })
            }
            _ => unreachable!("invariant: a wait gets what it wants"),
        }
    }
}

impl<P: Provider> Clone for Endpoint<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Provider> fmt::Debug for Endpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("host", &self.inner.host).finish_non_exhaustive()
    }
}
