//! The message engine of one rank, on its host.

use std::{
    fmt, io,
    sync::{Arc, OnceLock},
};

use vigie_detect::{
    ArmOutcome, EngineContext, EngineHost, Instant, Notifier, PollerEvent, Progress, RegisterError,
    Registration, Server, SharedWaiter, WaitError, WatchedDescriptor,
};

use super::{Communicator, context::ContextTable, watch::Watch};
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
}

#[derive(Debug)]
pub(super) enum EndpointOutput {
    Probed(Result<Status, RequestError>),
    Event(EngineEvent),
}

/// Makes the message engine an engine of a detection server. Requests are served by their numbers.
pub(super) struct EndpointEngine<P: Provider> {
    engine: MessageEngine<P>,
    /// The engine's work count when it was armed.
    worked: u64,
    /// Empty between two calls.
    ready: Vec<RequestId>,
}

impl<P: Provider> EndpointEngine<P> {
    #[inline]
    pub(super) const fn engine(&mut self) -> &mut MessageEngine<P> {
        &mut self.engine
    }
}

impl<P: Provider> vigie_detect::Engine for EndpointEngine<P> {
    type Request = EndpointRequest;
    type Output = EndpointOutput;

    fn take(&mut self, want: &EndpointRequest) -> Option<EndpointOutput> {
        let Self { engine, .. } = self;
        match *want {
            EndpointRequest::Event => engine.next_event().map(EndpointOutput::Event),
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
            EndpointOutput::Probed(_) => Some(found),
        }
    }

    fn progress(&mut self, turn: &EngineContext<'_>) -> Progress {
        self.engine.progress(turn.now());
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
        self.engine.next_deadline()
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
        let endpoint_engine = EndpointEngine { engine, worked: 0, ready: Vec::new() };
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
            EndpointOutput::Probed(_) => unreachable!("invariant: a wait gets what it wants"),
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
