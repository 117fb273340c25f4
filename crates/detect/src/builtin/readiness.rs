//! The readiness of descriptors: one handle for all sockets of a server, so that one look at the wait
//! point serves them all.
//!
//! Each watched descriptor is a [`Source`], shared by its owner and the detector. The kernel announces
//! edges; the source keeps what was announced as bits with a *tick*, which every announcement raises.
//! An owner that found the descriptor not ready after all clears the bits *with the tick it had seen*:
//! a newer announcement has raised it, and stays.
//!
//! A request names a source and a direction. It is ready at once if the source's bits say so. An
//! [`AsyncFd`](crate::AsyncFd) makes one stream for each direction; its waiters leave their wakers in the slots of
//! these (`Source::poll_ready`), so that waiting takes no lock that sockets share.

use std::{
    io,
    os::fd::{BorrowedFd, RawFd},
    task::{Context, Poll, ready},
};

use rustix::event::PollFlags;
use slab::Slab;

use crate::{
    budget,
    detector::{
        Arming, Bell, Cancel, Detector, Emitted, Interest, Key, Methods, Mode, Notice, Ready,
        Round, Site, Submitted,
    },
    sync::{Arc, AtomicU8, AtomicU64, Ordering},
};

/// Which of a descriptor's directions a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a descriptor has two directions")]
pub enum Direction {
    /// Bytes, datagrams, connections come in.
    Read,
    /// There is room for bytes to go out.
    Write,
}

impl Direction {
    /// Returns all bits that end the wait in this direction.
    #[must_use]
    pub const fn mask(self) -> Ready {
        match self {
            Self::Read => Ready::FOR_READ,
            Self::Write => Ready::FOR_WRITE,
        }
    }
}

/// What a source was ready for, and the tick of the announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readable {
    /// The bits.
    pub ready: Ready,
    /// Raised by every announcement; give it back to [`Source::clear`].
    pub tick: u64,
}

/// The readiness of one descriptor.
#[derive(Debug)]
pub struct Source {
    /// Bits in the lowest byte, the tick above. Raised by the round that delivers an announcement
    /// (release: what the kernel has queued is there); read by owners (acquire); cleared by owners.
    state: AtomicU64,
    key: u32,
    /// One of the three below. Written under the handle's lock, or by the one thread that polls it.
    watching: AtomicU8,
}

/// The server's wait point watches the source.
const BY_SERVER: u8 = 0;
/// Threads that wait for it watch it in their own wait points.
const BY_THREADS: u8 = 1;
/// Its next wait is for the server's wait point to watch.
const BY_SERVER_SOON: u8 = 2;

impl Source {
    pub(crate) fn new(key: u32) -> Self {
        Self { state: AtomicU64::new(0), key, watching: AtomicU8::new(BY_SERVER) }
    }

    pub(crate) const fn key(&self) -> u32 {
        self.key
    }

    /// Returns whether the server's wait point watches it: one load.
    #[inline]
    pub(crate) fn is_watched_by_server(&self) -> bool {
        self.watching.load(Ordering::Acquire) == BY_SERVER
    }

    pub(crate) fn is_for_own_points(&self) -> bool {
        self.watching.load(Ordering::Acquire) == BY_THREADS
    }

    /// Lets the server's wait point watch it from the next wait on.
    pub(crate) fn leave_own_points(&self) {
        let (from, to) = (BY_THREADS, BY_SERVER_SOON);
        // Else the server watches it already.
        let _ = self.watching.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Returns what the source is ready for now, of the bits that matter in `direction`.
    #[inline]
    #[must_use]
    pub fn ready(&self, direction: Direction) -> Readable {
        let state = unpack(self.state.load(Ordering::Acquire));
        Readable { ready: state.ready.intersection(direction.mask()), tick: state.tick }
    }

    /// Returns what the source is ready for in `direction`. If that is nothing, lets `register` leave the waker of
    /// `cx` with the waiters whom [`Readiness::notified`] wakes, and looks again. At the end of the poll's budget it
    /// gives way.
    ///
    /// No announcement is missed: it raises the bits, and then wakes who is registered. The lock of the waiters orders
    /// the two sides. If the announcement took it first, the second look sees the bits, unless another waiter has
    /// found the descriptor not ready and cleared them; if the waiter took it first, it is woken.
    #[inline]
    pub(crate) fn poll_ready<E>(
        &self,
        direction: Direction,
        cx: &Context<'_>,
        register: impl FnOnce() -> Result<(), E>,
    ) -> Poll<Result<Readable, E>> {
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
    /// That goes for errors and closed directions too: an operation that finds one does not block. One
    /// that blocks all the same shows that it is over (the error of an earlier datagram, which epoll
    /// announces as a closed direction) or was never there (an announcement for a predecessor), and
    /// whoever kept the bit would try again without end.
    pub fn clear(&self, seen: Readable) {
        self.clear_bits(seen, seen.ready);
    }

    /// Clears what `seen` showed, after a stream moved fewer bytes than it was asked to, unless
    /// something was announced since.
    ///
    /// A closed direction and an error stay: they are announced once, and seen by the next operation.
    /// So does all, once the source had urgent data: a read stops short of their place in the stream,
    /// and bytes may lie behind it.
    pub(crate) fn clear_used_up(&self, seen: Readable) {
        let current = unpack(self.state.load(Ordering::Acquire));
        if !current.ready.intersects(Ready::PRIORITY) {
            self.clear_bits(seen, seen.ready.intersection(Ready::READABLE | Ready::WRITABLE));
        }
    }

    fn clear_bits(&self, seen: Readable, ready: Ready) {
        let current = self.state.load(Ordering::Acquire);
        if unpack(current).tick == seen.tick {
            // Should the exchange fail, something was announced or cleared meanwhile. Then the bit
            // stays and costs one more attempt, which is never wrong.
            let _ = self.state.compare_exchange(
                current,
                current & !u64::from(ready.bits()),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// Lets the owner try before the first announcement.
    pub(crate) fn assume_ready(&self) {
        let bits = Ready::READABLE | Ready::WRITABLE;
        self.state.fetch_or(u64::from(bits.bits()), Ordering::AcqRel);
    }

    pub(crate) fn announce(&self, ready: Ready) -> Readable {
        let raised = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            Some((state + TICK) | u64::from(ready.bits()))
        });
        match raised {
            Ok(before) | Err(before) => unpack((before + TICK) | u64::from(ready.bits())),
        }
    }
}

const TICK: u64 = 1 << 8;

fn unpack(state: u64) -> Readable {
    Readable { ready: Ready::from_bits(state.to_le_bytes()[0]), tick: state >> 8 }
}

/// What `poll(2)` found, as the bits of a readiness.
pub(crate) fn ready_of(found: PollFlags) -> Ready {
    let mut ready = Ready::NONE;
    for (flags, bits) in [
        (PollFlags::IN, Ready::READABLE),
        (PollFlags::OUT, Ready::WRITABLE),
        (PollFlags::RDHUP, Ready::READ_CLOSED),
        (PollFlags::HUP, Ready::READ_CLOSED.union(Ready::WRITE_CLOSED)),
        (PollFlags::ERR, Ready::ERROR),
        // Closed behind our back: the operation that follows says so.
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
pub struct Awaited {
    /// The descriptor.
    pub source: Arc<Source>,
    /// The direction.
    pub direction: Direction,
}

/// The detector of descriptors' readiness: see [`Server::readiness`](crate::Server::readiness).
///
/// Its poll is the wait point's own: announcements come in through
/// [`notified`](Detector::notified) and need no arming.
#[derive(Debug, Default)]
pub struct Readiness {
    site: Option<Site>,
    sources: Slab<Watched>,
    /// Raised with every source, so that an announcement for a closed one does not reach its
    /// successor in the slab.
    generation: u8,
    /// Single waits for sources that are watched no more, until the next poll ends them.
    abandoned: Vec<Key>,
}

#[derive(Debug)]
struct Watched {
    source: Arc<Source>,
    /// Nearly always one reader and one writer.
    waiters: Vec<Waiter>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    key: Key,
    direction: Direction,
    mode: Mode,
}

impl Readiness {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Watches `descriptor`, which must stay open until [`unwatch`](Self::unwatch); or leaves that to the
    /// threads that will wait for it, if none is given.
    pub(crate) fn watch(
        &mut self,
        descriptor: Option<BorrowedFd<'_>>,
        interest: Interest,
    ) -> io::Result<Arc<Source>> {
        let site = self.site.as_ref().expect("invariant: attached at registration");
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
        let source = Source::new(key);
        match descriptor {
            Some(descriptor) => site.watch(descriptor, key, interest)?,
            None => source.watching.store(BY_THREADS, Ordering::Release),
        }
        let source = Arc::new(source);
        entry.insert(Watched { source: Arc::clone(&source), waiters: Vec::with_capacity(2) });
        Ok(source)
    }

    /// Lets the server's wait point watch a source that threads have watched, unless it is gone.
    pub(crate) fn watch_from_now_on(
        &mut self,
        descriptor: RawFd,
        source: &Source,
    ) -> io::Result<()> {
        if source.is_watched_by_server() || self.watched(source.key).is_none() {
            return Ok(());
        }
        let site = self.site.as_ref().expect("invariant: attached at registration");
        site.watch_raw(descriptor, source.key, Interest::Both)?;
        source.watching.store(BY_SERVER, Ordering::Release);
        Ok(())
    }

    /// Watches `descriptor` no more. Returns the bell to ring, outside the handle's lock, if waits
    /// are to be ended.
    pub(crate) fn unwatch(&mut self, descriptor: BorrowedFd<'_>, source: &Source) -> Option<Bell> {
        let site = self.site.as_ref().expect("invariant: attached at registration");
        if source.is_watched_by_server()
            && let Err(error) = site.unwatch(descriptor)
        {
            // The descriptor was closed behind our back; the kernel has forgotten it then.
            tracing::debug!(%error, "a descriptor was closed before its source");
        }
        self.watched(source.key)?;
        let watched = self.sources.remove(index_of(source.key));
        let single = watched.waiters.iter().filter(|waiter| waiter.mode == Mode::Once);
        let count = self.abandoned.len();
        self.abandoned.extend(single.map(|waiter| waiter.key));
        if self.abandoned.len() > count { self.site.as_ref().map(Site::bell) } else { None }
    }

    fn watched(&mut self, key: u32) -> Option<&mut Watched> {
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
    type Request = Awaited;
    type Event = Readable;

    fn methods(&self) -> Methods {
        Methods::CHECK | Methods::GROUP | Methods::NOTIFY
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn attach(&mut self, site: &Site) -> io::Result<()> {
        self.site = Some(site.clone());
        Ok(())
    }

    fn submit(&mut self, key: Key, awaited: &mut Awaited, mode: Mode) -> Submitted<Readable> {
        let Awaited { source, direction } = awaited;
        let Some(watched) = self.watched(source.key) else {
            return Submitted::Rejected(not_watched());
        };
        // An announcement between this look and the insertion cannot be: both run under the
        // handle's lock, as `notified` does.
        let readable = source.ready(*direction);
        if mode == Mode::Once && !readable.ready.is_empty() {
            return Submitted::Ready(readable);
        }
        watched.waiters.push(Waiter { key, direction: *direction, mode });
        if readable.ready.is_empty() { Submitted::Pending } else { Submitted::Ready(readable) }
    }

    fn check(&mut self, _: Key, awaited: &mut Awaited) -> Option<Readable> {
        let readable = awaited.source.ready(awaited.direction);
        (!readable.ready.is_empty()).then_some(readable)
    }

    /// Ends abandoned waits. What the wait point has for this detector comes through `notified`.
    fn poll(&mut self, round: &mut Round<'_, Self>) {
        for key in self.abandoned.drain(..) {
            round.fail(key, not_watched());
        }
    }

    fn notified(&mut self, notices: &[Notice], round: &mut Round<'_, Self>) {
        for notice in notices {
            let Some(watched) = self.watched(notice.key) else { continue };
            let readable = watched.source.announce(notice.ready);
            watched.waiters.retain(|&Waiter { key, direction, .. }| {
                let ready = readable.ready.intersection(direction.mask());
                if !notice.ready.intersects(direction.mask()) {
                    return true;
                }
                matches!(
                    round.emit(key, Readable { ready, tick: readable.tick }),
                    Emitted::Kept | Emitted::Full(_)
                )
            });
        }
    }

    fn cancel(&mut self, key: Key, awaited: &mut Awaited) -> Cancel {
        if let Some(watched) = self.watched(awaited.source.key) {
            watched.waiters.retain(|waiter| waiter.key != key);
        }
        Cancel::Released
    }

    fn merge(queued: &mut Readable, newer: Readable) -> Option<Readable> {
        *queued = Readable { ready: queued.ready.union(newer.ready), tick: newer.tick };
        None
    }
}
