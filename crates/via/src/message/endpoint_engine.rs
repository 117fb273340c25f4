//! The message engine as an engine of a detection server, and what endpoints, communicators and requests share of it.

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::{Context, Wake, Waker},
};

use vigie_detect::{
    ArmOutcome, EngineContext, EngineEvents, EngineHost, Instant, Notifier, PollerEvent, Progress,
    Server, SharedWaiter, WatchedDescriptor, YieldBeforeSleep,
};

use super::{context::ContextTable, linger, watch::Watch};
use crate::{
    protocol::{EngineEvent, MessageEngine, Pattern, RequestError, RequestId, Status},
    vi::Provider,
};

/// The purpose of a wait on an endpoint. Requests are not listed: they are polled with their owners' buffers.
#[derive(Clone, Copy, Debug)]
pub(super) enum EndpointRequest {
    /// A message that fits, to be left where it is, and the number of failed ranks that the communicator had been told when the
    /// wait began.
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

/// How often in a row a sleep is put off, before the engine is armed in any case.
const IN_A_ROW_MAX: u32 = 16;

/// Makes the message engine an engine of a detection server. Requests are served by their numbers.
pub(super) struct EndpointEngine<P: Provider> {
    engine: MessageEngine<P>,
    /// The engine's work count when it was armed.
    worked: u64,
    /// The number of unexpected messages so far when the host last wanted to sleep.
    unexpected: u64,
    /// How often in a row a sleep has been put off.
    in_a_row: u32,
    before_sleep: YieldBeforeSleep,
    /// Empty between two calls.
    ready: Vec<RequestId>,
    /// The time at which a wait for all that was sent gives up.
    close_by: Option<Instant>,
    /// The end of an endpoint that was dropped before all had left.
    leaving: Option<Leaving>,
}

/// A dropped endpoint whose engine still hands over what was sent.
struct Leaving {
    /// Set by the first poll pass.
    until: Option<Instant>,
    /// The process in which it was dropped: a forked child leaves the rest to that.
    process: u32,
}

impl<P: Provider> EndpointEngine<P> {
    pub(super) fn new(server: &Server, engine: MessageEngine<P>) -> Self {
        Self {
            before_sleep: YieldBeforeSleep::at(server, engine.size()),
            engine,
            worked: 0,
            unexpected: 0,
            in_a_row: 0,
            ready: Vec::new(),
            close_by: None,
            leaving: None,
        }
    }

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
        // Before the first poll pass, the time is not known.
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
            EndpointRequest::Probe(pattern, known) => {
                engine.probe_or_fail(pattern, known).map(EndpointOutput::Probed)
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

    fn progress(&mut self, context: &EngineContext<'_>) -> Progress {
        let now = context.now();
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
        let unexpected = self.engine.counters().unexpected;
        if std::mem::replace(&mut self.unexpected, unexpected) != unexpected
            && self.in_a_row < IN_A_ROW_MAX
        {
            // Others may need them to send theirs.
            self.engine.return_all_credits();
            if self.before_sleep.yield_core() {
                self.in_a_row += 1;
                return Ok(ArmOutcome::Ready);
            }
        }
        self.in_a_row = 0;
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
        let first_pass = self.leaving.as_ref().filter(|leaving| leaving.until.is_none());
        let first_pass = first_pass.map(|_| self.engine.now());
        [self.engine.next_deadline(), self.close_by, first_pass].into_iter().flatten().min()
    }

    fn can_announce(&self) -> bool {
        self.engine.nic().can_announce()
    }

    fn attach(&mut self, notifier: Notifier) -> io::Result<()> {
        self.engine.nic_mut().attach_notifier(notifier);
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

/// Keeps the engine of a dropped endpoint working on its server until all has left. Its waker holds it.
struct Linger<P: Provider> {
    events: Mutex<Option<EngineEvents<EndpointEngine<P>>>>,
}

impl<P: Provider> Linger<P> {
    fn poll(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(waiting) = &*events else { return };
        if waiting.poll_next(&Context::from_waker(&waker)).is_ready() {
            // All has left, or time is up, or the server has ended: the engine is dropped, unlocked.
            let ended = events.take();
            drop(events);
            drop(ended);
        }
    }
}

impl<P: Provider> Wake for Linger<P> {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}

impl<P: Provider> Drop for EndpointInner<P> {
    fn drop(&mut self) {
        // A forked child's copy leaves everything to the parent.
        if self.host.is_inherited() || !self.host.post(EndpointEngine::begin_to_leave) {
            return;
        }
        // Without a server, the engine itself hands over when it is dropped.
        if let Ok(events) = self.host.events(EndpointRequest::AllLeft(None)) {
            Arc::new(Linger { events: Mutex::new(Some(events)) }).poll();
        }
    }
}
