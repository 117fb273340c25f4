//! Access to the parts that `tests/loom.rs` checks, only under `--cfg loom`.

use std::{
    fmt, io,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use crate::{
    builtin::{Direction, IoSource, ReadyEvent},
    clock::Instant,
    detector::{ArmOutcome, Blocker, Detector, Ready},
    detectors, engine,
    error::WaitError,
    request::{SlotEnd, SlotItem, WaiterKind, slot},
    server::{
        helper, park_state,
        thread_poller::{self, SleepPlace},
    },
    sync::{AtomicU64, AtomicUsize, Ordering},
};

/// The park state, and the data published beside it.
#[derive(Debug)]
pub struct ParkState {
    state: park_state::ParkState,
    deadline: AtomicU64,
    known_count: AtomicUsize,
}

impl ParkState {
    /// Returns the state of an awake host without deadlines and requests.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self {
            state: park_state::ParkState::new(),
            deadline: AtomicU64::new(u64::MAX),
            known_count: AtomicUsize::new(0),
        }
    }

    /// Returns whether the host may sleep.
    pub fn begin_park(&self) -> bool {
        self.state.begin_park() == park_state::Park::Sleep
    }

    /// The host is awake.
    pub fn end_park(&self) {
        self.state.end_park();
    }

    /// Takes the notification.
    pub fn take_notification(&self) -> bool {
        self.state.take_notification()
    }

    /// Returns whether the notifier must wake the host.
    pub fn notify(&self) -> bool {
        self.state.notify()
    }

    /// Like `ServerShared::publish_deadline`: returns whether the host must be notified.
    pub fn publish_deadline(&self, deadline: Instant) -> bool {
        self.state.lower(&self.deadline, deadline.as_nanos())
    }

    /// Like the host in `prepare`.
    pub fn deadline(&self) -> Option<Instant> {
        let nanos = self.deadline.load(Ordering::SeqCst);
        (nanos < u64::MAX).then(|| Instant::from_nanos(nanos))
    }

    /// Like `HandleInner::submit`: returns whether the host must be notified.
    pub fn publish_request(&self) -> bool {
        self.state.raise(&self.known_count, 1)
    }

    /// Like `DriverState::active`.
    pub fn has_request(&self) -> bool {
        self.known_count.load(Ordering::SeqCst) > 0
    }
}

/// The slot between a poll and a waiter.
#[derive(Debug)]
pub struct Slot(slot::EventSlot<u32>);

impl Slot {
    /// Returns an empty slot.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self(slot::EventSlot::new())
    }

    /// The poll's side: an event. Returns the wakers to call.
    ///
    /// # Errors
    /// The event, if the slot is full.
    pub fn push(&self, event: u32, capacity: usize) -> Result<Vec<Waker>, u32> {
        let mut woken = Vec::new();
        self.0.push(event, capacity, |_, newer| Some(newer), &mut woken)?;
        Ok(woken)
    }

    /// The poll's side: the end. Returns the wakers to call.
    pub fn finish(&self) -> Vec<Waker> {
        let mut woken = Vec::new();
        self.0.finish(SlotEnd::Finished, &mut woken);
        woken
    }

    /// The waiter's side: an event, and whether the detector must be told of the new room; or the
    /// end.
    pub fn poll(&self, cx: &Context<'_>) -> Poll<Option<(u32, bool)>> {
        self.0.poll(cx).map(|taken| match taken {
            SlotItem::Event(event) => Some((event, false)),
            SlotItem::Relief(event) => Some((event, true)),
            SlotItem::End(_) => None,
        })
    }
}

/// The readiness of a descriptor.
#[derive(Debug)]
pub struct Readiness(IoSource);

impl Readiness {
    /// Returns the readiness of a descriptor that was announced as readable once.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        let source = IoSource::new(0);
        source.announce(Ready::READABLE);
        Self(source)
    }

    /// The poll's side.
    pub fn announce(&self) {
        self.0.announce(Ready::READABLE);
    }

    /// The owner's side: what it sees before it tries.
    pub fn seen(&self) -> ReadyEvent {
        self.0.ready(Direction::Read)
    }

    /// The owner's side: it tried, and the operation would have blocked.
    pub fn clear(&self, seen: ReadyEvent) {
        self.0.clear(seen);
    }
}

/// One direction of a watched descriptor: its readiness, and its waiters.
#[derive(Debug)]
pub struct WatchedSource {
    source: IoSource,
    slot: slot::EventSlot<ReadyEvent>,
}

/// A waiter's place beside others.
#[derive(Debug, Default)]
pub struct WaiterToken(Option<slot::WaiterToken>);

impl WatchedSource {
    /// Returns a descriptor that is not ready and has no waiters.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self { source: IoSource::new(0), slot: slot::EventSlot::new() }
    }

    /// The poll's side, first: what became ready. Like `Readiness::notified`.
    pub fn raise(&self) -> ReadyEvent {
        self.source.announce(Ready::READABLE)
    }

    /// The poll's side, then: an event. Returns the wakers to call. Like `PollContext::emit`.
    pub fn emit(&self, readable: ReadyEvent) -> Vec<Waker> {
        let mut woken = Vec::new();
        let merge = <detectors::readiness::Readiness as Detector>::merge;
        self.slot.push(readable, 1, merge, &mut woken).expect("readiness merges");
        woken
    }

    /// The poll's side: the end. Returns the wakers to call.
    pub fn finish(&self) -> Vec<Waker> {
        let mut woken = Vec::new();
        self.slot.finish(SlotEnd::Failed(WaitError::ServerClosed), &mut woken);
        woken
    }

    /// The waiter's side, like `AsyncFd::poll_as`: what is ready, or the end.
    pub fn poll(&self, cx: &Context<'_>, token: &mut WaiterToken) -> Poll<Option<ReadyEvent>> {
        let register = || self.register(cx, token);
        self.source.poll_ready(Direction::Read, cx, register).map(Result::ok)
    }

    /// The waiter's side: what it sees without waiting.
    pub fn seen(&self) -> ReadyEvent {
        self.source.ready(Direction::Read)
    }

    /// The waiter's side: registers its waker.
    ///
    /// # Errors
    /// The end.
    pub fn register(&self, cx: &Context<'_>, token: &mut WaiterToken) -> Result<(), WaitError> {
        self.slot.register(cx.waker(), WaiterKind::Beside(&mut token.0))
    }

    /// The waiter's side: it tried, and the operation would have blocked.
    pub fn clear(&self, seen: ReadyEvent) {
        self.source.clear(seen);
    }

    /// The waiter's side: it leaves.
    pub fn leave(&self, token: &mut WaiterToken) {
        if let Some(place) = token.0.take() {
            self.slot.unregister(place);
        }
    }
}

/// The sleep state of a thread with its own poller.
#[derive(Debug)]
pub struct SleepState(thread_poller::SleepState);

impl SleepState {
    /// Returns the state of an awake thread.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self(thread_poller::SleepState::new())
    }

    /// Returns whether the thread may sleep, in `poll(2)` if it `polls`, parked otherwise.
    pub fn begin_sleep(&self, polls: bool) -> bool {
        self.0.begin_sleep(if polls { SleepPlace::Polling } else { SleepPlace::Parked })
    }

    /// Returns whether the thread must not sleep on.
    pub fn is_notified(&self) -> bool {
        self.0.is_notified()
    }

    /// The thread is awake, and takes the notification.
    pub fn end_sleep(&self) {
        self.0.end_sleep();
    }

    /// Returns whether the notifier must wake the thread.
    pub fn notify(&self) -> bool {
        self.0.notify().is_some()
    }
}

/// The state that a handle and its helper thread share.
pub struct HelperControl(helper::HelperControl);

impl fmt::Debug for HelperControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HelperControl").finish_non_exhaustive()
    }
}

impl HelperControl {
    /// Returns the shared state of a blocking call.
    pub fn new(blocker: Blocker) -> Self {
        Self(helper::HelperControl::new(blocker))
    }

    /// The host's side: wants a call, if none is in progress.
    pub fn want(&self) {
        self.0.want();
    }

    /// The host's side: the end. Returns whether the thread has ended.
    pub fn close(&self) -> bool {
        self.0.close(true).1
    }

    /// The thread's side.
    pub fn run(&self, notify: impl Fn()) {
        self.0.run(notify);
    }
}

/// A lock around a counter.
pub struct BiasedLock(engine::BiasedLock<AtomicU64>);

impl fmt::Debug for BiasedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedLock").finish_non_exhaustive()
    }
}

impl BiasedLock {
    /// Returns a lock that is not biased.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self(engine::BiasedLock::new("counter", AtomicU64::new(0)))
    }

    /// Adds one, in two unordered steps: without mutual exclusion an addition is lost, and so is one that
    /// another thread does not see. Returns whether the calling thread entered by the bias.
    pub fn add(&self) -> bool {
        let value = self.0.lock();
        value.store(value.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        value.is_by_bias()
    }

    /// Returns the sum.
    pub fn sum(&self) -> u64 {
        self.0.lock().load(Ordering::Relaxed)
    }
}

/// An engine that counts, and serves names.
struct Counter {
    /// A model's atomic, so that the model sees who accesses it.
    count: AtomicU64,
    served: Vec<u64>,
}

impl engine::Engine for Counter {
    type Request = ();
    type Output = ();

    fn take(&mut self, (): &()) -> Option<()> {
        None
    }

    fn arm(&mut self, _: &engine::EngineContext<'_>) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::Armed)
    }

    fn served(&mut self, names: &mut Vec<u64>) {
        names.append(&mut self.served);
    }

    fn has_served(&self) -> bool {
        !self.served.is_empty()
    }
}

/// The state that an engine's callers and its waiters by name share, without a server.
pub struct Named(Arc<engine::EngineShared<Counter>>);

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").finish_non_exhaustive()
    }
}

/// The name of all waiters.
const NAME: u64 = 1;

impl Named {
    /// Returns an engine that has counted nothing.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        let counter = Counter { count: AtomicU64::new(0), served: Vec::new() };
        Self(Arc::new(engine::EngineShared::new("counter", counter)))
    }

    /// A caller's side, like `EngineHost::post`: adds `count`, and serves the waiters if they `are_served`.
    pub fn post(&self, count: u64, are_served: bool) {
        self.0.post(|counter| {
            counter.count.fetch_add(count, Ordering::Relaxed);
            counter.served.extend(are_served.then_some(NAME));
        });
    }

    /// The waiter's side, like `EngineWaiter::poll`: takes one if `takes` is set and one is there, or registers a waker. `None` is the
    /// end.
    pub fn poll(
        &self,
        cx: &Context<'_>,
        number: &mut Option<u64>,
        takes: bool,
    ) -> Poll<Option<()>> {
        let take = |counter: &mut Counter| {
            let count = counter.count.load(Ordering::Relaxed);
            if !takes || count == 0 {
                return None;
            }
            counter.count.store(count - 1, Ordering::Relaxed);
            Some(())
        };
        match self.0.poll_or_register((NAME, number), cx.waker(), take) {
            Some(engine::Polled::Ready(())) => Poll::Ready(Some(())),
            Some(engine::Polled::Waits) => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    /// The waiter's side, like `EngineWaiter::renew_waker`.
    pub fn renew_waker(&self, cx: &Context<'_>, number: Option<u64>) -> bool {
        number.is_some() && self.0.renew(NAME, number, cx.waker())
    }

    /// The waiter's side: it leaves.
    pub fn leave(&self, number: &mut Option<u64>) {
        self.0.leave(NAME, number);
    }

    /// The server's side: the end.
    pub fn end(&self) {
        Arc::clone(&self.0).wake();
    }
}
