//! The [`Engine`] trait: a device or a protocol that never waits, and what its host requires of it.

use std::{io, os::fd::BorrowedFd};

use crate::{
    clock::Instant,
    detector::{ArmOutcome, Arming, DriverHandle, Interest, Notifier, PollerEvent},
};

/// A device or a protocol without waiting: it takes packets and the time as input and returns what waiters
/// ask for.
///
/// An [`EngineHost`](crate::EngineHost) does the rest: it holds the lock, the waiters and their wakers, watches the
/// descriptors and the deadline, and passes on to the next waiter what an earlier one left behind. This is the way to
/// bring your own device or protocol to vigie. If each event belongs to one request with its own memory, or if a library
/// offers something other than a descriptor, implement [`Detector`](crate::Detector) instead.
///
/// # Implementing
/// Two functions are required: [`take`](Self::take) returns what a waiter asks for, if it is there,
/// and [`arm`](Self::arm) prepares for a sleep. Everything else has a default:
///
/// - An engine with a descriptor lists it in [`descriptors`](Self::descriptors). An engine driven by another thread keeps
///   the notifier passed to [`attach`](Self::attach) and notifies it. An engine that can do neither returns false from
///   [`can_announce`](Self::can_announce) and is polled.
/// - An engine with background work (retransmissions, acknowledgements) does it in [`progress`](Self::progress), and
///   returns from [`next_deadline`](Self::next_deadline) when it must be called even if nothing arrives.
/// - An engine whose events must not be lost takes them back in [`put_back`](Self::put_back).
/// - An engine that fills its callers' own buffers, request by request, gives each request a name. Its callers wait
///   with [`EngineHost::waiter`](crate::EngineHost::waiter), and [`served`](Self::served) lists the names to wake.
///
/// The tutorial is [`docs::bring_a_device`](crate::docs::bring_a_device).
///
/// # Contract
/// 1. No function blocks, and none uses this engine's host or the [`Server`](crate::Server): the host holds the
///    engine's lock during all of them. They run on any thread, one at a time.
/// 2. [`take`](Self::take) is a poll: it is called often, and undoes nothing that [`arm`](Self::arm) has done: an armed
///    engine stays armed.
/// 3. An event that comes after [`arm`](Self::arm) returned [`ArmOutcome::Armed`] makes one of the
///    [`descriptors`](Self::descriptors) ready or calls the notifier. An event that was there before is found by the
///    [`take`](Self::take) that follows at once, or `arm` returns [`ArmOutcome::Ready`].
///    `Ready` means that a present waiter will take something, or that `progress` has work: an engine that returns it again and again
///    for an event that has no waiter keeps a core busy.
/// 4. The host calls no [`progress`](Self::progress) between an [`arm`](Self::arm) that returned [`ArmOutcome::Armed`] and the
///    first readiness event, notification or deadline after it.
/// 5. A descriptor keeps its key and its generation while it is open. Another generation means another descriptor.
///    The host watches a duplicate, so the engine may close its own at any time.
/// 6. [`take`](Self::take) returns each event once. An event returned with [`put_back`](Self::put_back) is
///    taken again before younger events.
/// 7. An event caused by time alone is announced by [`next_deadline`](Self::next_deadline); a `progress` or a `take` at
///    that time finds it.
/// 8. A waiter by name is woken only through [`served`](Self::served). Anything that makes that waiter's poll succeed, in any
///    function of the engine or any call, makes [`has_served`](Self::has_served) true until `served` has listed the name.
///
/// # Panics
/// A panic in [`take`](Self::take) for a waiter that has just come ends that wait with
/// [`WaitError::Panicked`](crate::WaitError::Panicked). A panic that the host meets anywhere else ends all waits that
/// way, and all later ones: the host no longer touches the engine and drops it with the last
/// [`EngineHost`](crate::EngineHost). This includes a panic in a function that the host calls on a caller's thread
/// after a successful call: the server is told of it. A panic in a closure called by
/// [`EngineHost::with`](crate::EngineHost::with) or a waiter, in [`EngineHost::try_take`](crate::EngineHost::try_take) or in
/// [`has_served`](Self::has_served) propagates to the caller.
///
/// # Conformance
/// [`conformance::check_engine`](crate::conformance::check_engine) tests the contract on any engine and its host.
pub trait Engine: Send + 'static {
    /// A waiter's request.
    type Request: Clone + Send + 'static;
    /// The output that the waiter receives.
    type Output: Send + 'static;

    /// Takes what `request` asks for, if it is there.
    fn take(&mut self, request: &Self::Request) -> Option<Self::Output>;

    /// Takes back what was found for a waiter that has left, so that the next one gets it. Returns what may be dropped: by
    /// default, all of it. The host drops it once the engine is unlocked.
    fn put_back(&mut self, request: &Self::Request, output: Self::Output) -> Option<Self::Output> {
        let _ = request;
        Some(output)
    }

    /// Works: takes in what has arrived, and does what is due. Called in every poll of the server except the one right
    /// after [`arm`](Self::arm). Default: nothing.
    fn progress(&mut self, context: &EngineContext<'_>) -> Progress {
        let _ = context;
        Progress::Done
    }

    /// Prepares for a sleep: from here on everything that arrives announces itself.
    ///
    /// # Errors
    /// An error ends all waits, and all later ones.
    fn arm(&mut self, context: &EngineContext<'_>) -> io::Result<ArmOutcome>;

    /// Handles the announcements of descriptors: reads what must be read before they can announce again.
    fn notified(&mut self, ready_events: &[PollerEvent]) {
        let _ = ready_events;
    }

    /// Lists the descriptors to watch now. Called once at the registration, and before and after each [`arm`](Self::arm). Also
    /// called after each readiness event, to find those that are [no longer to be](WatchedDescriptor::watched) watched. Default:
    /// none.
    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        let _ = each;
    }

    /// Returns when the engine needs a [`progress`](Self::progress) even if nothing arrives. Default: never.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Adds the names that calls and polls have served since the last call of this method. The host wakes every waiter of such a name
    /// ([`EngineHost::waiter`](crate::EngineHost::waiter)), which polls again. A name may be added more than once, or without a waiter.
    /// Default: none.
    fn served(&mut self, names: &mut Vec<u64>) {
        let _ = names;
    }

    /// Returns whether [`served`](Self::served) has a name to report. Called after each call, on the caller's thread, so it
    /// adds to the cost of each: let it only read a field. Default: false.
    fn has_served(&self) -> bool {
        false
    }

    /// Returns whether there is work that nothing would announce, because it came up after [`arm`](Self::arm): the host then makes the
    /// server poll. Called after calls to an armed engine. Default: true, which costs a notification for the first such call.
    fn has_unannounced_work(&self) -> bool {
        true
    }

    /// Returns whether something has happened since [`arm`](Self::arm) that a waiter may want. Called like
    /// [`has_unannounced_work`](Self::has_unannounced_work), if anyone waits for a [`Request`](Self::Request). Default: true.
    fn has_new_events(&self) -> bool {
        true
    }

    /// Passes the notifier, once, at the registration: a thread that drives the engine notifies it.
    ///
    /// # Errors
    /// An error refuses the registration.
    fn attach(&mut self, notifier: Notifier) -> io::Result<()> {
        let _ = notifier;
        Ok(())
    }

    /// Returns whether events announce themselves once the engine is armed; constant over its life. The host polls an engine
    /// for which this is false. Default: true.
    fn can_announce(&self) -> bool {
        true
    }

    /// Returns whether [`arm`](Self::arm) must be called before a sleep; constant over its life.
    fn arming(&self) -> Arming {
        Arming::BeforeSleep
    }

    /// Returns how many readiness events in a row may arrive without a waiter before the host stops watching the
    /// descriptors until there is one: for an engine whose user polls for events itself and would be disturbed by a host
    /// that polls too. If something is there already, watching begins with a readiness event. Default: never.
    fn spurious_events_max(&self) -> Option<u32> {
        None
    }

    /// Called when the host makes no more calls: the server has ended, or the last user of the host is gone. Close sockets
    /// here if they must not stay open until the last [`EngineHost`](crate::EngineHost) is dropped.
    fn closed(&mut self) {}
}

/// The context in which an engine works.
#[derive(Debug)]
pub struct EngineContext<'a> {
    driver: &'a DriverHandle,
    has_waiters: bool,
}

impl<'a> EngineContext<'a> {
    pub(super) const fn new(driver: &'a DriverHandle, has_waiters: bool) -> Self {
        Self { driver, has_waiters }
    }

    /// Returns the present instant. Reads the clock on each call.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.driver.now()
    }

    /// Returns whether there are waiters: an engine that works only for them has nothing to do
    /// otherwise.
    #[must_use]
    pub const fn has_waiters(&self) -> bool {
        self.has_waiters
    }
}

/// The result of [`Engine::progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "work that is left waits for the next announcement unless `More` reports it"]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to return every case")]
pub enum Progress {
    /// Everything that could be done is done.
    Done,
    /// There is more to do: the host calls again soon, after others have had their turn.
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
    pub(super) is_watched: bool,
}

impl<'a> WatchedDescriptor<'a> {
    /// Names a descriptor to watch for reading, under key 0 and generation 0.
    pub const fn readable(descriptor: BorrowedFd<'a>) -> Self {
        Self { descriptor, key: 0, generation: 0, interest: Interest::Readable, is_watched: true }
    }

    /// Sets the key, which must be unique among the descriptors; a [`PollerEvent`] carries it.
    pub const fn key(mut self, key: u32) -> Self {
        self.key = key;
        self
    }

    /// Sets the generation, which tells a descriptor from earlier ones with the same key.
    pub const fn generation(mut self, generation: u32) -> Self {
        self.generation = generation;
        self
    }

    /// Sets the edges to watch. Default: reading.
    pub const fn interest(mut self, interest: Interest) -> Self {
        self.interest = interest;
        self
    }

    /// Sets whether the descriptor is watched now. Default: true. An unwatched descriptor announces nothing, but the host keeps
    /// its duplicate, so that watching it again needs no new descriptor: for an engine whose user polls for events itself for a
    /// while.
    pub const fn watched(mut self, is_watched: bool) -> Self {
        self.is_watched = is_watched;
        self
    }
}
