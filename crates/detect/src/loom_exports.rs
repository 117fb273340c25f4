//! Doors to the parts that `tests/loom.rs` checks, open under `--cfg loom` only.

use std::{
    fmt, io,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use crate::{
    builtin::{Direction, Readable, Source},
    clock::Instant,
    detector::{Armed, Blocker, Detector, Ready},
    engine,
    error::WaitError,
    request::{End, Taken, Waiter, slot},
    server::{
        helper,
        own_point::{self, Place},
        park,
    },
    stock,
    sync::{AtomicU64, AtomicUsize, Ordering},
};

/// The park word, and what is published beside it.
#[derive(Debug)]
pub struct ParkWord {
    word: park::ParkWord,
    deadline: AtomicU64,
    known_count: AtomicUsize,
}

impl ParkWord {
    /// Returns a word of a host that is awake, without deadlines and requests.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self {
            word: park::ParkWord::new(),
            deadline: AtomicU64::new(u64::MAX),
            known_count: AtomicUsize::new(0),
        }
    }

    /// Returns whether the host may sleep.
    pub fn begin_park(&self) -> bool {
        self.word.begin_park() == park::Park::Sleep
    }

    /// The host is awake.
    pub fn end_park(&self) {
        self.word.end_park();
    }

    /// Takes the ring.
    pub fn take_ring(&self) -> bool {
        self.word.take_ring()
    }

    /// Returns whether the ringer must wake the host.
    pub fn ring(&self) -> bool {
        self.word.ring()
    }

    /// As `Shared::publish_deadline`: returns whether the host must be rung for.
    pub fn publish_deadline(&self, deadline: Instant) -> bool {
        self.word.lower(&self.deadline, deadline.as_nanos())
    }

    /// As the host in `prepare`.
    pub fn deadline(&self) -> Option<Instant> {
        let nanos = self.deadline.load(Ordering::SeqCst);
        (nanos < u64::MAX).then(|| Instant::from_nanos(nanos))
    }

    /// As `Inner::submit`: returns whether the host must be rung for.
    pub fn publish_request(&self) -> bool {
        self.word.raise(&self.known_count, 1)
    }

    /// As `Driver::active`.
    pub fn has_request(&self) -> bool {
        self.known_count.load(Ordering::SeqCst) > 0
    }
}

/// The slot between a round and a waiter.
#[derive(Debug)]
pub struct Slot(slot::Slot<u32>);

impl Slot {
    /// Returns an empty slot.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self(slot::Slot::new())
    }

    /// The round's side: an event. Returns whom it wakes.
    ///
    /// # Errors
    /// The event, if the slot is full.
    pub fn push(&self, event: u32, capacity: usize) -> Result<Vec<Waker>, u32> {
        let mut woken = Vec::new();
        self.0.push(event, capacity, |_, newer| Some(newer), &mut woken)?;
        Ok(woken)
    }

    /// The round's side: the end. Returns whom it wakes.
    pub fn finish(&self) -> Vec<Waker> {
        let mut woken = Vec::new();
        self.0.finish(End::Finished, &mut woken);
        woken
    }

    /// The waiter's side: an event, and whether the detector must be told of room; or the end.
    pub fn poll(&self, cx: &Context<'_>) -> Poll<Option<(u32, bool)>> {
        self.0.poll(cx).map(|taken| match taken {
            Taken::Event(event) => Some((event, false)),
            Taken::Relief(event) => Some((event, true)),
            Taken::End(_) => None,
        })
    }
}

/// The readiness of a descriptor.
#[derive(Debug)]
pub struct Readiness(Source);

impl Readiness {
    /// Returns the readiness of a descriptor that was announced as readable once.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        let source = Source::new(0);
        source.announce(Ready::READABLE);
        Self(source)
    }

    /// The round's side.
    pub fn announce(&self) {
        self.0.announce(Ready::READABLE);
    }

    /// The owner's side: what it sees before it tries.
    pub fn seen(&self) -> Readable {
        self.0.ready(Direction::Read)
    }

    /// The owner's side: it tried, and would have blocked.
    pub fn clear(&self, seen: Readable) {
        self.0.clear(seen);
    }
}

/// One direction of a watched descriptor: its readiness, and who waits for it.
#[derive(Debug)]
pub struct Awaited {
    source: Source,
    slot: slot::Slot<Readable>,
}

/// A waiter's place beside others.
#[derive(Debug, Default)]
pub struct Seat(Option<slot::Place>);

impl Awaited {
    /// Returns a descriptor that is not ready, for which nobody waits.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self { source: Source::new(0), slot: slot::Slot::new() }
    }

    /// The round's side, first: what became ready. As in `Readiness::notified`.
    pub fn raise(&self) -> Readable {
        self.source.announce(Ready::READABLE)
    }

    /// The round's side, then: an event. Returns whom it wakes. As `Round::emit`.
    pub fn emit(&self, readable: Readable) -> Vec<Waker> {
        let mut woken = Vec::new();
        let merge = <stock::readiness::Readiness as Detector>::merge;
        self.slot.push(readable, 1, merge, &mut woken).expect("readiness merges");
        woken
    }

    /// The round's side: the end. Returns whom it wakes.
    pub fn finish(&self) -> Vec<Waker> {
        let mut woken = Vec::new();
        self.slot.finish(End::Failed(WaitError::ServerClosed), &mut woken);
        woken
    }

    /// The waiter's side, as `AsyncFd::poll_as`: what is ready, or the end.
    pub fn poll(&self, cx: &Context<'_>, seat: &mut Seat) -> Poll<Option<Readable>> {
        let register = || self.register(cx, seat);
        self.source.poll_ready(Direction::Read, cx, register).map(Result::ok)
    }

    /// The waiter's side: what it sees without waiting.
    pub fn seen(&self) -> Readable {
        self.source.ready(Direction::Read)
    }

    /// The waiter's side: leaves its waker.
    ///
    /// # Errors
    /// The end.
    pub fn register(&self, cx: &Context<'_>, seat: &mut Seat) -> Result<(), WaitError> {
        self.slot.register(cx.waker(), Waiter::Beside(&mut seat.0))
    }

    /// The waiter's side: it tried, and would have blocked.
    pub fn clear(&self, seen: Readable) {
        self.source.clear(seen);
    }

    /// The waiter's side: it goes.
    pub fn leave(&self, seat: &mut Seat) {
        if let Some(place) = seat.0.take() {
            self.slot.unregister(place);
        }
    }
}

/// The word of a thread that has a wait point of its own.
#[derive(Debug)]
pub struct SleepWord(own_point::SleepWord);

impl SleepWord {
    /// Returns the word of a thread that is awake.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self(own_point::SleepWord::new())
    }

    /// Returns whether the thread may sleep, in `poll(2)` if it `polls`, parked otherwise.
    pub fn begin_sleep(&self, polls: bool) -> bool {
        self.0.begin_sleep(if polls { Place::Polling } else { Place::Parked })
    }

    /// Returns whether the thread must not go on sleeping.
    pub fn is_rung(&self) -> bool {
        self.0.is_rung()
    }

    /// The thread is awake, and takes the ring.
    pub fn end_sleep(&self) {
        self.0.end_sleep();
    }

    /// Returns whether the ringer must wake the thread.
    pub fn ring(&self) -> bool {
        self.0.ring().is_some()
    }
}

/// What a handle and its helper thread share.
pub struct Control(helper::Control);

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Control {
    /// Returns what is shared about a blocking call.
    pub fn new(blocker: Blocker) -> Self {
        Self(helper::Control::new(blocker))
    }

    /// The host's side: wants a call, if none is under way.
    pub fn want(&self) {
        self.0.want();
    }

    /// The host's side: the end. Returns whether the thread has ended.
    pub fn close(&self) -> bool {
        self.0.close(true).1
    }

    /// The thread's side.
    pub fn run(&self, ring: impl Fn()) {
        self.0.run(ring);
    }
}

/// A lock around a counter.
pub struct Lock(engine::Lock<AtomicU64>);

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}

impl Lock {
    /// Returns a lock that leans to nobody.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self(engine::Lock::new(AtomicU64::new(0)))
    }

    /// Adds one, in two steps without any order of their own: whoever is not kept out gets lost, and so does
    /// what one does not see. Returns whether the calling thread entered by the bias.
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
    /// Of a model, so that it shows who reaches it.
    count: AtomicU64,
    served: Vec<u64>,
}

impl engine::Engine for Counter {
    type Want = ();
    type Found = ();

    fn take(&mut self, (): &()) -> Option<()> {
        None
    }

    fn arm(&mut self, _: &engine::Turn<'_>) -> io::Result<Armed> {
        Ok(Armed::Armed)
    }

    fn served(&mut self, names: &mut Vec<u64>) {
        names.append(&mut self.served);
    }

    fn has_served(&self) -> bool {
        !self.served.is_empty()
    }
}

/// What an engine's callers and those who wait by name share, without a server.
pub struct Named(Arc<engine::Shared<Counter>>);

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").finish_non_exhaustive()
    }
}

/// The name under which all wait.
const NAME: u64 = 1;

impl Named {
    /// Returns an engine that has counted nothing.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        let counter = Counter { count: AtomicU64::new(0), served: Vec::new() };
        Self(Arc::new(engine::Shared::new(counter)))
    }

    /// A caller's side, as `EngineHost::post`: adds `count`, and serves those who wait if they `are_served`.
    pub fn post(&self, count: u64, are_served: bool) {
        self.0.post(|counter| {
            counter.count.fetch_add(count, Ordering::Relaxed);
            counter.served.extend(are_served.then_some(NAME));
        });
    }

    /// The waiter's side, as `EngineWaiter::poll`: takes one if `looks` and if there is one, or leaves a waker. `None` is the end.
    pub fn poll(
        &self,
        cx: &Context<'_>,
        number: &mut Option<u64>,
        looks: bool,
    ) -> Poll<Option<()>> {
        let look = |counter: &mut Counter| {
            let count = counter.count.load(Ordering::Relaxed);
            if !looks || count == 0 {
                return None;
            }
            counter.count.store(count - 1, Ordering::Relaxed);
            Some(())
        };
        match self.0.look_or_wait((NAME, number), cx.waker(), look) {
            Some(engine::Looked::Found(())) => Poll::Ready(Some(())),
            Some(engine::Looked::Waits) => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    /// The waiter's side, as `EngineWaiter::still_waits`.
    pub fn still_waits(&self, cx: &Context<'_>, number: Option<u64>) -> bool {
        number.is_some() && self.0.renew(NAME, number, cx.waker())
    }

    /// The waiter's side: it goes.
    pub fn leave(&self, number: &mut Option<u64>) {
        self.0.leave(NAME, number);
    }

    /// The server's side: the end.
    pub fn end(&self) {
        Arc::clone(&self.0).wake();
    }
}
