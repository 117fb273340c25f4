//! The readiness of descriptors: one handle for all sockets of a server, so that one check of the
//! poller serves them all.
//!
//! Each watched descriptor is an [`IoSource`], shared by its owner and the detector. The kernel announces
//! edges; the source keeps the announced bits together with a *tick*, which every readiness event
//! increments. An owner that finds the descriptor not ready after all clears the bits *with the tick that
//! it saw*: a newer readiness event has incremented the tick, and its bits stay.
//!
//! A request names a source and a direction. It is ready at once if the source's bits say so. An
//! [`AsyncFd`](crate::AsyncFd) makes one stream for each direction; its waiters register their wakers in the slots
//! of these streams (`IoSource::poll_ready`), so that waiting takes no lock shared between sockets.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    task::{Context, Poll, ready},
};

use rustix::event::PollFlags;
use slab::Slab;

use crate::{
    budget,
    detector::{
        Arming, CancelOutcome, Detector, DriverHandle, EmitOutcome, Interest, Key, Methods, Mode,
        Notifier, PollContext, PollerEvent, Ready, SubmitOutcome,
    },
    sync::{Arc, AtomicU8, AtomicU64, Ordering},
};

/// The direction of a descriptor that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a descriptor has two directions")]
pub enum Direction {
    /// Bytes, datagrams or connections arrive.
    Read,
    /// There is room to write.
    Write,
}

impl Direction {
    /// Returns all bits that end a wait in this direction.
    #[must_use]
    pub const fn mask(self) -> Ready {
        match self {
            Self::Read => Ready::FOR_READ,
            Self::Write => Ready::FOR_WRITE,
        }
    }
}

/// The readiness of a source, and the tick of the readiness event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadyEvent {
    /// The bits.
    pub ready: Ready,
    /// Incremented by every readiness event; pass it back to [`IoSource::clear`].
    pub tick: u64,
}

/// The readiness of one descriptor.
#[derive(Debug)]
pub struct IoSource {
    /// Bits in the lowest byte, the tick above. Incremented by the poll that delivers a readiness
    /// event (release: what the kernel has queued is visible); read by owners (acquire); cleared by
    /// owners.
    state: AtomicU64,
    key: u32,
    /// One of the three below. Written under the handle's lock, or by the one thread that polls it.
    watching: AtomicU8,
}

/// The server's poller watches the source.
const BY_SERVER: u8 = 0;
/// The threads that wait for the source watch it in their own pollers.
const BY_THREADS: u8 = 1;
/// The server's poller watches the source from its next wait on.
const BY_SERVER_SOON: u8 = 2;

impl IoSource {
    pub(crate) fn new(key: u32) -> Self {
        Self { state: AtomicU64::new(0), key, watching: AtomicU8::new(BY_SERVER) }
    }

    pub(crate) const fn key(&self) -> u32 {
        self.key
    }

    /// Returns whether the server's poller watches it: one load.
    #[inline]
    pub(crate) fn is_watched_by_server(&self) -> bool {
        self.watching.load(Ordering::Acquire) == BY_SERVER
    }

    pub(crate) fn is_for_thread_pollers(&self) -> bool {
        self.watching.load(Ordering::Acquire) == BY_THREADS
    }

    /// Makes the server's poller watch it from the next wait on.
    pub(crate) fn leave_thread_pollers(&self) {
        let (from, to) = (BY_THREADS, BY_SERVER_SOON);
        // Otherwise the server watches it already.
        let _ = self.watching.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Returns what the source is ready for now, limited to the bits that matter in `direction`.
    #[inline]
    #[must_use]
    pub fn ready(&self, direction: Direction) -> ReadyEvent {
        let state = unpack(self.state.load(Ordering::Acquire));
        ReadyEvent { ready: state.ready.intersection(direction.mask()), tick: state.tick }
    }

    /// Returns what the source is ready for in `direction`. If that is nothing, calls `register` to add the waker of
    /// `cx` to the waiters that [`Readiness::notified`] wakes, and checks again. At the end of the poll's budget it
    /// yields.
    ///
    /// No readiness event is missed: an event sets the bits, and then wakes the registered waiters. The lock of the
    /// waiters orders the two sides. If the event took it first, the second check sees the bits, unless another waiter has
    /// found the descriptor not ready and cleared them; if the waiter took it first, it is woken.
    #[inline]
    pub(crate) fn poll_ready<E>(
        &self,
        direction: Direction,
        cx: &Context<'_>,
        register: impl FnOnce() -> Result<(), E>,
    ) -> Poll<Result<ReadyEvent, E>> {
        let mut readable = self.ready(direction);
        if readable.ready.is_empty() {
            register()?;
            readable = self.ready(direction);
            if readable.ready.is_empty() {
                return Poll::Pending;
            }
        }
        ready!(budget::poll_proceed(cx));
        Poll::Ready(Ok(readable))
    }

    /// Clears what `seen` showed, after an operation that would block, unless something was announced
    /// since.
    ///
    /// This includes errors and closed directions, since an operation that finds one does not block.
    /// If it blocks nevertheless, the condition has ended (the error of an earlier datagram, which
    /// epoll announces as a closed direction) or never existed (a readiness event for a predecessor),
    /// and a caller that kept the bit would retry for ever.
    pub fn clear(&self, seen: ReadyEvent) {
        self.clear_bits(seen, seen.ready);
    }

    /// Clears what `seen` showed, after a stream moved fewer bytes than it was asked to, unless
    /// something was announced since.
    ///
    /// A closed direction and an error stay: they are announced once, and the next operation sees
    /// them. Once the source has had urgent data, all bits stay: a read stops before its place in the
    /// stream, and bytes may follow it.
    pub(crate) fn clear_used_up(&self, seen: ReadyEvent) {
        let current = unpack(self.state.load(Ordering::Acquire));
        if !current.ready.intersects(Ready::PRIORITY) {
            self.clear_bits(seen, seen.ready.intersection(Ready::READABLE | Ready::WRITABLE));
        }
    }

    fn clear_bits(&self, seen: ReadyEvent, ready: Ready) {
        let current = self.state.load(Ordering::Acquire);
        if unpack(current).tick == seen.tick {
            // If the exchange fails, something was announced or cleared meanwhile. Then the bit
            // stays and costs one more attempt, which is always safe.
            let _ = self.state.compare_exchange(
                current,
                current & !u64::from(ready.bits()),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// Lets the owner try an operation before the first readiness event.
    pub(crate) fn assume_ready(&self) {
        let bits = Ready::READABLE | Ready::WRITABLE;
        self.state.fetch_or(u64::from(bits.bits()), Ordering::AcqRel);
    }

    pub(crate) fn announce(&self, ready: Ready) -> ReadyEvent {
        let raised = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            Some((state + TICK) | u64::from(ready.bits()))
        });
        match raised {
            Ok(before) | Err(before) => unpack((before + TICK) | u64::from(ready.bits())),
        }
    }
}

const TICK: u64 = 1 << 8;

fn unpack(state: u64) -> ReadyEvent {
    ReadyEvent { ready: Ready::from_bits(state.to_le_bytes()[0]), tick: state >> 8 }
}

/// Converts the result of `poll(2)` to readiness bits.
pub(crate) fn ready_of(found: PollFlags) -> Ready {
    let mut ready = Ready::NONE;
    for (flags, bits) in [
        (PollFlags::IN, Ready::READABLE),
        (PollFlags::OUT, Ready::WRITABLE),
        (PollFlags::RDHUP, Ready::READ_CLOSED),
        (PollFlags::HUP, Ready::READ_CLOSED.union(Ready::WRITE_CLOSED)),
        (PollFlags::ERR, Ready::ERROR),
        // Closed by someone other than the owner: the next operation returns the error.
        (PollFlags::NVAL, Ready::ERROR),
    ] {
        if found.intersects(flags) {
            ready = ready | bits;
        }
    }
    ready
}

/// A request for the readiness of one source in one direction.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a request is its two parts")]
pub struct ReadinessRequest {
    /// The descriptor.
    pub source: Arc<IoSource>,
    /// The direction.
    pub direction: Direction,
}

/// The detector of descriptors' readiness: see [`Server::readiness`](crate::Server::readiness).
///
/// It uses the server's poller: readiness events arrive through [`notified`](Detector::notified)
/// and need no arming.
#[derive(Debug, Default)]
pub struct Readiness {
    driver: Option<DriverHandle>,
    sources: Slab<WatchedSource>,
    /// Incremented with every source, so that a readiness event for a closed one does not reach its
    /// successor in the slab.
    generation: u8,
    /// Single waits for sources that are no longer watched, until the next poll ends them.
    abandoned: Vec<Key>,
}

#[derive(Debug)]
struct WatchedSource {
    source: Arc<IoSource>,
    descriptor: RawFd,
    /// Nearly always one reader and one writer.
    waiters: Vec<ReadinessWaiter>,
}

#[derive(Clone, Copy, Debug)]
struct ReadinessWaiter {
    key: Key,
    direction: Direction,
    mode: Mode,
}

impl Readiness {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Watches `descriptor`, which must stay open until [`unwatch`](Self::unwatch); without an interest, leaves
    /// that to the threads that will wait for it.
    pub(crate) fn watch(
        &mut self,
        descriptor: BorrowedFd<'_>,
        interest: Option<Interest>,
    ) -> io::Result<Arc<IoSource>> {
        let driver = self.driver.as_ref().expect("invariant: attached at registration");
        let entry = self.sources.vacant_entry();
        if entry.key() >= SOURCES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "16 777 215 descriptors are watched already",
            ));
        }
        self.generation = self.generation.wrapping_add(1);
        let index = u32::try_from(entry.key()).expect("invariant: below SOURCES_MAX");
        let key = u32::from(self.generation) << 24 | index;
        let source = IoSource::new(key);
        match interest {
            Some(interest) => driver.watch(descriptor, key, interest)?,
            None => source.watching.store(BY_THREADS, Ordering::Release),
        }
        let source = Arc::new(source);
        entry.insert(WatchedSource {
            source: Arc::clone(&source),
            descriptor: descriptor.as_raw_fd(),
            waiters: Vec::with_capacity(2),
        });
        Ok(source)
    }

    /// Makes the server's poller watch a source that threads have watched, unless it is gone.
    pub(crate) fn watch_from_now_on(
        &mut self,
        descriptor: RawFd,
        source: &IoSource,
    ) -> io::Result<()> {
        if source.is_watched_by_server() || self.watched(source.key).is_none() {
            return Ok(());
        }
        let driver = self.driver.as_ref().expect("invariant: attached at registration");
        driver.watch_raw(descriptor, source.key, Interest::Both)?;
        source.watching.store(BY_SERVER, Ordering::Release);
        Ok(())
    }

    /// Stops watching `descriptor`. Returns the notifier to call, outside the handle's lock, if waits
    /// must be ended.
    pub(crate) fn unwatch(
        &mut self,
        descriptor: BorrowedFd<'_>,
        source: &IoSource,
    ) -> Option<Notifier> {
        let driver = self.driver.as_ref().expect("invariant: attached at registration");
        if source.is_watched_by_server()
            && let Err(error) = driver.unwatch(descriptor)
        {
            // The descriptor was closed by someone other than its owner; the kernel has then
            // forgotten it.
            tracing::debug!(%error, "a descriptor was closed before its source");
        }
        self.watched(source.key)?;
        let watched = self.sources.remove(index_of(source.key));
        let single = watched.waiters.iter().filter(|waiter| waiter.mode == Mode::Once);
        let count = self.abandoned.len();
        self.abandoned.extend(single.map(|waiter| waiter.key));
        if self.abandoned.len() > count {
            self.driver.as_ref().map(DriverHandle::notifier)
        } else {
            None
        }
    }

    fn watched(&mut self, key: u32) -> Option<&mut WatchedSource> {
        self.sources.get_mut(index_of(key)).filter(|watched| watched.source.key == key)
    }
}

const SOURCES_MAX: usize = (1 << 24) - 1;

fn index_of(key: u32) -> usize {
    (key & 0x00FF_FFFF) as usize
}

fn not_watched() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the descriptor is not watched any more")
}

impl Detector for Readiness {
    type Request = ReadinessRequest;
    type Event = ReadyEvent;

    fn methods(&self) -> Methods {
        Methods::CHECK | Methods::GROUP | Methods::NOTIFY
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        self.driver = Some(driver.clone());
        Ok(())
    }

    fn submit(
        &mut self,
        key: Key,
        awaited: &mut ReadinessRequest,
        mode: Mode,
    ) -> SubmitOutcome<ReadyEvent> {
        let ReadinessRequest { source, direction } = awaited;
        let Some(watched) = self.watched(source.key) else {
            return SubmitOutcome::Rejected(not_watched());
        };
        // No readiness event can come between this check and the insertion: both run under the
        // handle's lock, as `notified` does.
        let readable = source.ready(*direction);
        if mode == Mode::Once && !readable.ready.is_empty() {
            return SubmitOutcome::Ready(readable);
        }
        watched.waiters.push(ReadinessWaiter { key, direction: *direction, mode });
        if readable.ready.is_empty() {
            SubmitOutcome::Pending
        } else {
            SubmitOutcome::Ready(readable)
        }
    }

    fn check(&mut self, _: Key, awaited: &mut ReadinessRequest) -> Option<ReadyEvent> {
        let readable = awaited.source.ready(awaited.direction);
        (!readable.ready.is_empty()).then_some(readable)
    }

    fn describe(&self, ReadinessRequest { source, direction }: &ReadinessRequest) -> String {
        let Some(watched) = self.sources.get(index_of(source.key)) else { return String::new() };
        let purpose = match direction {
            Direction::Read => "to read",
            Direction::Write => "to write",
        };
        let named = self.driver.as_ref().and_then(|driver| driver.describe(watched.descriptor));
        match named {
            Some(name) => format!("{name}, {purpose}"),
            None => format!("descriptor {}, {purpose}", watched.descriptor),
        }
    }

    /// Ends abandoned waits. Events from the poller come through `notified`.
    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        for key in self.abandoned.drain(..) {
            context.fail(key, not_watched());
        }
    }

    fn notified(&mut self, ready_events: &[PollerEvent], context: &mut PollContext<'_, Self>) {
        for ready_event in ready_events {
            let Some(watched) = self.watched(ready_event.key) else { continue };
            let readable = watched.source.announce(ready_event.ready);
            watched.waiters.retain(|&ReadinessWaiter { key, direction, .. }| {
                let ready = readable.ready.intersection(direction.mask());
                if !ready_event.ready.intersects(direction.mask()) {
                    return true;
                }
                matches!(
                    context.emit(key, ReadyEvent { ready, tick: readable.tick }),
                    EmitOutcome::Kept | EmitOutcome::Full(_)
                )
            });
        }
    }

    fn cancel(&mut self, key: Key, awaited: &mut ReadinessRequest) -> CancelOutcome {
        if let Some(watched) = self.watched(awaited.source.key) {
            watched.waiters.retain(|waiter| waiter.key != key);
        }
        CancelOutcome::Released
    }

    fn merge(queued: &mut ReadyEvent, newer: ReadyEvent) -> Option<ReadyEvent> {
        *queued = ReadyEvent { ready: queued.ready.union(newer.ready), tick: newer.tick };
        None
    }
}
