//! An engine as a detector: the callbacks for the server, and the watched descriptors.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    panic::resume_unwind,
};

use super::{
    contract::{Engine, EngineContext, Progress, WatchedDescriptor},
    shared::EngineShared,
};
use crate::{
    clock::Instant,
    detector::{
        ArmOutcome, Arming, CancelOutcome, Detector, DriverHandle, EmitOutcome, Interest, Key,
        Methods, Mode, PollContext, PollerEvent, SubmitOutcome,
    },
    sync::Arc,
};

/// A request to an engine's detector.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked<W> {
    Request(W),
    /// To work while there are no waiters.
    Background,
}

/// An output of the engine, and the request that it is for, so that it can be put back.
pub(crate) struct EngineEvent<E: Engine> {
    request: E::Request,
    output: E::Output,
}

impl<E: Engine> EngineEvent<E> {
    pub(crate) fn into_output(self) -> E::Output {
        self.output
    }
}

/// The detector that an [`EngineHost`](crate::EngineHost) registers.
pub(crate) struct EngineDetector<E: Engine> {
    methods: Methods,
    arming: Arming,
    /// `None` after a panic in the engine or an error in arming: the server never frees such a detector, and the
    /// engine's descriptors must not stay open because of that.
    state: Option<Box<DetectorState<E>>>,
}

struct DetectorState<E> {
    shared: Arc<EngineShared<E>>,
    descriptors: Descriptors,
    /// Armed just now: the next poll must not disarm it.
    is_armed: bool,
    /// The number of requests that only keep the engine working.
    background: usize,
    /// Readiness events in a row that arrived without a waiter.
    spurious: u32,
}

impl<E: Engine> EngineDetector<E> {
    pub(super) fn new(shared: Arc<EngineShared<E>>) -> Self {
        let guarded = shared.lock();
        let methods = if guarded.engine.can_announce() {
            Methods::GROUP | Methods::NOTIFY
        } else {
            Methods::GROUP
        };
        let arming = guarded.engine.arming();
        drop(guarded);
        let descriptors = Descriptors { driver: None, watched: Vec::new() };
        let state =
            DetectorState { shared, descriptors, is_armed: false, background: 0, spurious: 0 };
        Self { methods, arming, state: Some(Box::new(state)) }
    }

    /// Calls `f` with the state, which is dropped by unwinding if `f` panics.
    fn call<T>(&mut self, f: impl FnOnce(&mut DetectorState<E>) -> T) -> T {
        let mut state = self.state.take().expect("invariant: no call after a panic or an error");
        let result = f(&mut state);
        self.state = Some(state);
        result
    }

    fn release_engine(&mut self) {
        if let Some(state) = self.state.take()
            && !state.shared.is_inherited()
        {
            state.shared.lock().engine.closed();
        }
    }
}

impl<E: Engine> DetectorState<E> {
    /// Lets the engine work, unless it has just been armed, and delivers what it has.
    fn serve(
        &mut self,
        ready_events: &[PollerEvent],
        context: &mut PollContext<'_, EngineDetector<E>>,
    ) {
        let mut guarded = self.shared.lock();
        if let Some(payload) = guarded.panicked.take() {
            resume_unwind(payload);
        }

        let has_waiters = self.is_awaited(context);
        if !ready_events.is_empty() {
            guarded.engine.notified(ready_events);
            self.is_armed = false;
        }

        if !std::mem::take(&mut self.is_armed)
            && let Some(driver) = &self.descriptors.driver
        {
            let engine_context =
                EngineContext::new(driver, has_waiters || !guarded.waiters.is_empty());
            if guarded.engine.progress(&engine_context) == Progress::More {
                context.more();
            }
            guarded.is_asleep = false;
        }

        if !ready_events.is_empty() {
            self.descriptors.pause(&guarded.engine);
        }

        let engine = &mut guarded.engine;
        let mut key = context.oldest();
        while let Some(waiter) = key {
            key = context.next_after(waiter);
            while let Some(Asked::Request(request)) = context.request_mut(waiter) {
                let Some(output) = engine.take(request) else { break };
                let event = EngineEvent { request: request.clone(), output };
                match context.emit(waiter, event) {
                    EmitOutcome::Kept if context.is_full() => break,
                    EmitOutcome::Kept => {}
                    EmitOutcome::Ended => break,
                    EmitOutcome::Full(EngineEvent { request, output })
                    | EmitOutcome::Gone(EngineEvent { request, output }) => {
                        drop(engine.put_back(&request, output));
                        break;
                    }
                }
            }
            if context.is_full() {
                context.more();
                return;
            }
        }

        guarded.has_waiters = self.is_awaited(context);
        // Last: polls also take in what has come for others.
        guarded.note_served();

        while let Some(waker) = guarded.waiters.next_served() {
            context.wake(waker);
            if context.is_full() {
                context.more();
                return;
            }
        }
    }

    /// Returns whether there is a waiter for a want.
    fn is_awaited(&self, context: &PollContext<'_, EngineDetector<E>>) -> bool {
        context.pending_count() > self.background
    }

    fn notified(
        &mut self,
        ready_events: &[PollerEvent],
        context: &mut PollContext<'_, EngineDetector<E>>,
    ) {
        let guarded = self.shared.lock();
        let is_spurious = !self.is_awaited(context) && guarded.waiters.is_empty();
        let spurious_max = guarded.engine.spurious_events_max();
        drop(guarded);
        self.spurious = if is_spurious { self.spurious.saturating_add(1) } else { 0 };
        if spurious_max.is_some_and(|max| self.spurious >= max) {
            self.descriptors.unwatch();
        } else {
            self.serve(ready_events, context);
        }
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        self.spurious = 0;
        let mut guarded = self.shared.lock();
        self.descriptors.follow(&guarded.engine)?;
        let Some(driver) = &self.descriptors.driver else { return Ok(ArmOutcome::Ready) };
        let armed = guarded.engine.arm(&EngineContext::new(driver, true))?;
        self.is_armed = armed == ArmOutcome::Armed;
        guarded.is_asleep = self.is_armed;
        guarded.asleep_until = guarded.engine.next_deadline();
        // A descriptor watched only now announces what is there already.
        self.descriptors.follow(&guarded.engine)?;
        Ok(armed)
    }
}

impl<E: Engine> Detector for EngineDetector<E> {
    type Request = Asked<E::Request>;
    type Event = EngineEvent<E>;

    fn methods(&self) -> Methods {
        self.methods
    }

    fn arming(&self) -> Arming {
        self.arming
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        self.call(|state| {
            state.shared.attach(driver.notifier());
            state.descriptors.driver = Some(driver.clone());
            let mut guarded = state.shared.lock();
            guarded.engine.attach(driver.notifier())?;
            state.descriptors.follow(&guarded.engine)
        })
    }

    fn submit(
        &mut self,
        _: Key,
        asked: &mut Asked<E::Request>,
        _: Mode,
    ) -> SubmitOutcome<Self::Event> {
        let state = self.state.as_mut().expect("invariant: no call after a panic or an error");
        let mut guarded = state.shared.lock();
        let Asked::Request(request) = asked else {
            state.background += 1;
            guarded.is_kept_running = true;
            return SubmitOutcome::Pending;
        };
        let others_wait = std::mem::replace(&mut guarded.has_waiters, true);
        let output = guarded.engine.take(request);
        // If there is no output, the server polls for all waiters. If there is one, this poll may have taken in what others wait for,
        // which a descriptor no longer announces.
        state.shared.leave_to_server(guarded, others_wait && output.is_some());
        // An engine may have to work to get what is wanted.
        output.map_or(SubmitOutcome::Queued, |output| {
            SubmitOutcome::Ready(EngineEvent { request: request.clone(), output })
        })
    }

    fn cancel(&mut self, _: Key, asked: &mut Asked<E::Request>) -> CancelOutcome {
        if let (Asked::Background, Some(state)) = (asked, &mut self.state) {
            state.background -= 1;
        }
        CancelOutcome::Released
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        self.call(|state| state.serve(&[], context));
    }

    fn notified(&mut self, ready_events: &[PollerEvent], context: &mut PollContext<'_, Self>) {
        self.call(|state| state.notified(ready_events, context));
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        let armed = self.call(DetectorState::arm);
        if armed.is_err() {
            self.release_engine();
        }
        armed
    }

    fn unclaimed(&mut self, event: Self::Event) -> Option<Self::Event> {
        self.call(|state| {
            let EngineEvent { request, output } = event;
            let mut guarded = state.shared.lock();
            let given_back = guarded.engine.put_back(&request, output);
            let may_serve = given_back.is_none() && guarded.has_waiters;
            state.shared.leave_to_server(guarded, may_serve);
            Some(EngineEvent { request, output: given_back? })
        })
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.state.as_ref()?.shared.lock().engine.next_deadline()
    }
}

impl<E: Engine> Drop for EngineDetector<E> {
    fn drop(&mut self) {
        self.release_engine();
    }
}

/// The watched descriptors of an engine.
struct Descriptors {
    /// Set at the registration.
    driver: Option<DriverHandle>,
    watched: Vec<WatchedFd>,
}

/// One descriptor.
struct WatchedFd {
    /// The host's duplicate: it stays open until it is no longer watched.
    descriptor: OwnedFd,
    key: u32,
    generation: u32,
    interest: Interest,
    is_watched: bool,
    /// The `is_watched` with which the engine has just named it, if it has.
    named: Option<bool>,
}

impl WatchedFd {
    fn is(&self, named: &WatchedDescriptor<'_>) -> bool {
        (self.key, self.generation, self.interest) == (named.key, named.generation, named.interest)
    }

    fn unwatch(&mut self, driver: &DriverHandle) {
        if std::mem::take(&mut self.is_watched) {
            // If the server no longer knows it, it announces nothing.
            let _ = driver.unwatch(self.descriptor.as_fd());
        }
    }
}

impl Descriptors {
    /// Watches exactly what the engine names.
    fn follow<E: Engine>(&mut self, engine: &E) -> io::Result<()> {
        let Self { driver: Some(driver), watched } = self else { return Ok(()) };
        let mut is_named = Ok(());
        engine.descriptors(&mut |named| match watched.iter_mut().find(|fd| fd.is(&named)) {
            Some(fd) => fd.named = Some(named.is_watched),
            None => match named.descriptor.try_clone_to_owned() {
                Ok(descriptor) => watched.push(WatchedFd {
                    descriptor,
                    key: named.key,
                    generation: named.generation,
                    interest: named.interest,
                    is_watched: false,
                    named: Some(named.is_watched),
                }),
                Err(error) => is_named = Err(error),
            },
        });
        is_named?;

        for fd in &mut *watched {
            if fd.named != Some(true) {
                fd.unwatch(driver);
            }
        }

        watched.retain(|fd| fd.named.is_some());
        for fd in watched {
            if fd.named.take() == Some(true) && !fd.is_watched {
                driver.watch(fd.descriptor.as_fd(), fd.key, fd.interest)?;
                fd.is_watched = true;
            }
        }
        Ok(())
    }

    /// Stops watching what the engine does not want watched for now.
    fn pause<E: Engine>(&mut self, engine: &E) {
        let Self { driver: Some(driver), watched } = self else { return };
        engine.descriptors(&mut |named| {
            if !named.is_watched
                && let Some(fd) = watched.iter_mut().find(|fd| fd.is(&named))
            {
                fd.unwatch(driver);
            }
        });
    }

    /// Watches nothing until the next [`follow`](Self::follow).
    #[cold]
    fn unwatch(&mut self) {
        let Some(driver) = &self.driver else { return };
        self.watched.iter_mut().for_each(|fd| fd.unwatch(driver));
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        self.unwatch();
    }
}
