//! The [`Engine`] trait: a device or a protocol that never waits, and what its host asks of it.

use std::{io, os::fd::BorrowedFd};

use crate::{
    clock::Instant,
    detector::{Armed, Arming, Bell, Interest, Notice, Site},
};

/// A device or a protocol without waiting: it takes in packets and time, and gives out what waiters ask for.
///
/// An [`EngineHost`](crate::EngineHost) does the rest: it holds the lock, the waiters and their wake-ups, watches the
/// descriptors and the deadline, and gives what a waiter has left to the next one. This is the way to bring your own
/// device or protocol to vigie; where one event belongs to one request with memory of its own, or where a library offers
/// something else than a descriptor, implement [`Detector`](crate::Detector) instead.
///
/// # Implementing
/// Two functions are needed: [`take`](Self::take) gives out what a waiter names, if it is there, and
/// [`arm`](Self::arm) prepares for a sleep. Everything else has a default:
///
/// - An engine with a descriptor names it in [`descriptors`](Self::descriptors). One that another thread drives keeps the
///   bell that [`attach`](Self::attach) brings, and rings it. One that can do neither says so in
///   [`can_announce`](Self::can_announce), and is polled.
/// - An engine that works by itself (retransmissions, acknowledgements) does that in [`progress`](Self::progress), and
///   says in [`next_deadline`](Self::next_deadline) when it wants to be called although nothing has come.
/// - An engine whose events must not get lost takes them back in [`put_back`](Self::put_back).
/// - An engine that fills its callers' own buffers, request by request, gives each request a name. Its callers wait by
///   [`EngineHost::waiter`](crate::EngineHost::waiter), and [`served`](Self::served) says whose turn it is.
///
/// The tutorial is [`docs::bring_a_device`](crate::docs::bring_a_device).
///
/// # Contract
/// 1. No function blocks, and none uses the host of this engine or the [`Server`](crate::Server): the host holds the
///    engine's lock during all of them. They run on any thread, one at a time.
/// 2. [`take`](Self::take) is a look. It is called often, and it ends nothing that [`arm`](Self::arm) has begun: an engine
///    that is armed stays so.
/// 3. An event that comes after [`arm`](Self::arm) returned [`Armed::Armed`] makes one of the
///    [`descriptors`](Self::descriptors) ready or rings the bell. An event that was there before is found by the
///    [`take`](Self::take) that follows at once, or `arm` returns [`Armed::Ready`].
/// 4. The host calls no [`progress`](Self::progress) between an [`arm`](Self::arm) that returned [`Armed::Armed`] and the
///    first announcement, ring or deadline after it.
/// 5. A descriptor keeps its key and its generation for as long as it is open. One with another generation is another
///    descriptor. The host watches a duplicate, so the engine may close its own at any time.
/// 6. [`take`](Self::take) gives out each event once. What [`put_back`](Self::put_back) takes back, the next
///    [`take`](Self::take) gives out before younger events.
/// 7. What time alone brings is announced by [`next_deadline`](Self::next_deadline), and a `progress` or a `take` at that
///    time finds it.
/// 8. Who waits by name is woken by [`served`](Self::served) alone. Whatever makes a look of that waiter succeed, in whichever
///    function of the engine or call of anybody, makes [`has_served`](Self::has_served) true until `served` has named it.
///
/// # Panics
/// A panic in [`take`](Self::take) for a waiter that has just come ends that wait in
/// [`WaitError::Panicked`](crate::WaitError::Panicked). A panic that meets the host anywhere else ends all waits so, and
/// all later ones: the host touches the engine no more, and drops it with the last [`EngineHost`](crate::EngineHost).
/// So does one that meets the host on a caller's thread, after a call that went well: the server is told of it.
/// A panic in a closure that [`EngineHost::with`](crate::EngineHost::with) or a waiter calls, and one in
/// [`EngineHost::look`](crate::EngineHost::look) or [`has_served`](Self::has_served), is the caller's.
///
/// # Conformance
/// [`conformance::check_engine`](crate::conformance::check_engine) tries the contract on any engine, on its host.
pub trait Engine: Send + 'static {
    /// What a waiter names.
    type Want: Clone + Send + 'static;
    /// What the waiter gets.
    type Found: Send + 'static;

    /// Takes what `want` names, if it is there.
    fn take(&mut self, want: &Self::Want) -> Option<Self::Found>;

    /// Takes back what was found for a waiter that has left, so that the next one gets it. Returns what may be dropped, which
    /// is everything by default; the host drops it once the engine is unlocked.
    fn put_back(&mut self, want: &Self::Want, found: Self::Found) -> Option<Self::Found> {
        let _ = want;
        Some(found)
    }

    /// Works: takes in what has come, and does what is due. Called in every round of the server but the one right after
    /// [`arm`](Self::arm). Default nothing.
    fn progress(&mut self, turn: &Turn<'_>) -> Progress {
        let _ = turn;
        Progress::Done
    }

    /// Prepares for sleep: from here on everything that comes announces itself.
    ///
    /// # Errors
    /// An error ends all waits, and all later ones.
    fn arm(&mut self, turn: &Turn<'_>) -> io::Result<Armed>;

    /// Takes note of what the descriptors have announced: reads what must be read before they can announce again.
    fn announced(&mut self, notices: &[Notice]) {
        let _ = notices;
    }

    /// Names the descriptors that are to be watched now. Asked once at the registration, and before and after each
    /// [`arm`](Self::arm). Default none.
    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        let _ = each;
    }

    /// Returns when the engine wants a [`progress`](Self::progress) although nothing has come. Default never.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Adds the names that calls and turns have served since the last call of this method. The host wakes every waiter of such a name
    /// ([`EngineHost::waiter`](crate::EngineHost::waiter)), which looks again. A name may be added more than once, or without a waiter.
    /// Default: none.
    fn served(&mut self, names: &mut Vec<u64>) {
        let _ = names;
    }

    /// Returns whether [`served`](Self::served) has somebody to name. Asked after each call, on the caller's thread, and so at
    /// the price of each: a look at a field. Default false.
    fn has_served(&self) -> bool {
        false
    }

    /// Returns whether there is work that nobody would announce, because it came up after [`arm`](Self::arm): the host makes the
    /// server look then. Asked after calls to an engine that is armed. Default true, which costs a ring for the first of them.
    fn has_silent_work(&self) -> bool {
        true
    }

    /// Returns whether something has happened since [`arm`](Self::arm) that may be what somebody wants. Asked as
    /// [`has_silent_work`](Self::has_silent_work), if anybody waits for a [`Want`](Self::Want). Default true.
    fn has_news(&self) -> bool {
        true
    }

    /// Brings the bell, once, at the registration: whoever drives the engine from another thread rings it.
    ///
    /// # Errors
    /// An error refuses the registration.
    fn attach(&mut self, bell: Bell) -> io::Result<()> {
        let _ = bell;
        Ok(())
    }

    /// Returns whether events announce themselves once the engine is armed; constant over its life. The host polls an engine
    /// that cannot. Default true.
    fn can_announce(&self) -> bool {
        true
    }

    /// Returns whether [`arm`](Self::arm) must be called before a sleep; constant over its life.
    fn arming(&self) -> Arming {
        Arming::BeforeSleep
    }

    /// Returns after how many announcements in a row for which nobody waited the host watches the descriptors no more,
    /// until somebody waits: for an engine whose user looks by itself, and would be disturbed by a host that looks too.
    /// Watching begins with an announcement if something is there already. Default never.
    fn vain_announcements_max(&self) -> Option<u32> {
        None
    }

    /// Learns that the host calls no more: the server has ended, or the last user of the host has gone. An engine that is to
    /// close its sockets then, and not with the last [`EngineHost`](crate::EngineHost), does it here.
    fn closed(&mut self) {}
}

/// What an engine is told when it works.
#[derive(Debug)]
pub struct Turn<'a> {
    site: &'a Site,
    has_waiters: bool,
}

impl<'a> Turn<'a> {
    pub(super) const fn new(site: &'a Site, has_waiters: bool) -> Self {
        Self { site, has_waiters }
    }

    /// Returns the present instant. Each call reads the clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.site.now()
    }

    /// Returns whether anybody waits: an engine that works for nobody else has nothing to do then.
    #[must_use]
    pub const fn has_waiters(&self) -> bool {
        self.has_waiters
    }
}

/// What [`Engine::progress`] has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "work that is left waits for the next announcement if nobody says that it is there"]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to return every case")]
pub enum Progress {
    /// Everything is done that could be.
    Done,
    /// There is more to do: the host calls again soon, after others had their turn.
    More,
}

/// A descriptor that an engine wants to be watched.
#[derive(Clone, Copy, Debug)]
#[must_use = "a descriptor is watched only if it is handed over"]
pub struct WatchedDescriptor<'a> {
    pub(super) descriptor: BorrowedFd<'a>,
    pub(super) key: u32,
    pub(super) generation: u32,
    pub(super) interest: Interest,
}

impl<'a> WatchedDescriptor<'a> {
    /// Names a descriptor that announces when it can be read, under key 0 and generation 0.
    pub const fn readable(descriptor: BorrowedFd<'a>) -> Self {
        Self { descriptor, key: 0, generation: 0, interest: Interest::Readable }
    }

    /// Sets the key: each of several descriptors has its own, and a [`Notice`] says it.
    pub const fn key(mut self, key: u32) -> Self {
        self.key = key;
        self
    }

    /// Sets the generation: it tells a descriptor from those that had its key before.
    pub const fn generation(mut self, generation: u32) -> Self {
        self.generation = generation;
        self
    }

    /// Sets which edges are announced. Default those of reading.
    pub const fn interest(mut self, interest: Interest) -> Self {
        self.interest = interest;
        self
    }
}
