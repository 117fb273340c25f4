//! The [`Detector`] trait: a kind of event, and the methods that can detect it.

use std::io;

use super::{
    blocker::Blocker,
    driver_handle::DriverHandle,
    methods::Methods,
    poll_context::{Pending, PollContext},
    readiness_event::PollerEvent,
};
use crate::{
    clock::Instant,
    request::{CancelOutcome, Key, Mode},
};

/// The outcome of handing a request to a detector.
#[derive(Debug)]
#[must_use = "a request whose outcome is dropped is waited for without end"]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to return every case")]
pub enum SubmitOutcome<E> {
    /// The event is not there yet.
    Pending,
    /// The detector must do work of its own before the event can happen (flush a batch of
    /// submissions), or leaves an event that is there for a poll to find: the host polls soon, on its
    /// own thread.
    Queued,
    /// The event was already there. In [`Mode::Once`] the request is over; in [`Mode::Stream`] this
    /// is the first event and the request stays pending.
    Ready(E),
    /// The request cannot be served; the waiter receives the error.
    Rejected(io::Error),
}

/// The result of preparing for a sleep, as in [`Detector::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an event that arrived before arming is lost if it is not polled for"]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to return every case")]
pub enum ArmOutcome {
    /// The next event will announce itself.
    Armed,
    /// An event may be there already: poll again instead of sleeping.
    Ready,
}

impl ArmOutcome {
    /// Returns [`Ready`](Self::Ready) if an event may be there already.
    pub const fn ready_if(is_ready: bool) -> Self {
        if is_ready { Self::Ready } else { Self::Armed }
    }

    /// Returns whether an event may be there already.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        matches!(self, Self::Ready)
    }
}

/// The times at which a detector that notifies must be armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to return every case")]
pub enum Arming {
    /// Before every sleep; it is then polled once more: completion queues, ring buffers.
    BeforeSleep,
    /// Never: every event announces itself, by an edge on a watched descriptor, by a notifier, or by
    /// [`Detector::next_deadline`].
    Permanent,
}

/// A kind of event and the methods that can detect it.
///
/// A detector is registered once ([`Server::register`](crate::Server::register)) and serves many
/// requests: each [`Handle::wait`](crate::Handle::wait) makes one. A detector only offers methods;
/// the scheduler decides which one to use and when.
///
/// # Source
/// [bouge02, §2.2, §3.1]: `thread_IO_register(params{poll, group, blocking_system_call, frequency})`.
///
/// # Implementing
/// Implement as little as you need. A library with a test call offers [`Methods::CHECK`] and
/// implements
/// [`check`](Self::check). One that can test all requests at once (`MPI_Testany`, a completion
/// queue) offers [`Methods::GROUP`] and implements [`poll`](Self::poll), and [`group`](Self::group)
/// if it needs a rebuilt set. One with a descriptor to sleep on offers [`Methods::NOTIFY`], watches
/// the descriptor through the [`DriverHandle`] passed to [`attach`](Self::attach), and implements
/// [`arm`](Self::arm). The tutorial is [`docs::write_a_detector`](crate::docs::write_a_detector).
///
/// # Contract
/// 1. No callback blocks, waits on a handle of the same server, or registers there: the server holds
///    the handle's lock during all of them. They run on any thread, one at a time.
/// 2. An event that happened before [`submit`](Self::submit) and belongs to the request is reported
///    by `submit`, or by the poll that [`SubmitOutcome::Queued`] asks for: it is not lost for lack of a
///    waiter.
/// 3. An event between [`arm`](Self::arm) and the sleep makes the watched descriptor readable, or
///    calls the notifier, or `arm` returns [`ArmOutcome::Ready`]. `Ready` means that the next poll reports an event or
///    has other work to do; a detector that returns it for nothing keeps a core busy.
/// 4. Each event is reported once, to one request.
/// 5. After [`cancel`](Self::cancel) returned [`CancelOutcome::Released`] the detector no longer touches
///    the request. After [`CancelOutcome::InFlight`] it completes the key exactly once, at any later time.
/// 6. A request stays at its address from `submit` to its end; nothing that a kernel or a device
///    may touch is freed before that.
/// 7. [`poll`](Self::poll) with nothing pending does no harm.
/// 8. An event caused by time alone is announced by [`next_deadline`](Self::next_deadline), from `submit`
///    on, and reported by the first poll at that time; [`hard_deadline`](Self::hard_deadline) and
///    [`wake_at`](Self::wake_at) say how long that poll may be delayed.
/// 9. The events of one request are reported in the order in which they happened. An event that a full
///    waiter gave back ([`EmitOutcome::Full`](crate::EmitOutcome::Full)) is emitted in a later poll; no event
///    is skipped.
/// 10. When the server ends, every pending request is cancelled once. Requests then in flight are
///     completed by [`poll`](Self::poll), which is called repeatedly for a bounded time.
///
/// # Panics in callbacks
/// A panic is caught. In `submit`, `check` or `cancel` it ends that request with
/// [`WaitError::Panicked`](crate::WaitError::Panicked); in any other callback it ends all pending
/// requests of the handle that way and closes the handle. Whatever those requests owned is leaked,
/// since a device may still write to it.
///
/// # Conformance
/// [`conformance::check`](crate::conformance::check) tests the contract on any implementation; every
/// detector of this crate passes.
pub trait Detector: Sized + Send + 'static {
    /// A waiter's request. It may own memory that a kernel or a device writes to.
    type Request: Send + 'static;
    /// The event that the waiter receives.
    type Event: Send + 'static;

    /// Returns the methods that this detector offers; constant over its life.
    fn methods(&self) -> Methods;

    /// Returns whether [`arm`](Self::arm) must be called before a sleep; constant over its life.
    fn arming(&self) -> Arming {
        Arming::BeforeSleep
    }

    /// Gives the detector its driver handle, once, at registration: watch descriptors here, and get a
    /// [`Notifier`](crate::Notifier) and the time from it.
    ///
    /// # Errors
    /// An error refuses the registration.
    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        let _ = driver;
        Ok(())
    }

    /// Takes a new request. By default [checks](Self::check) it once, so that an event that is already there needs
    /// no wait; without [`Methods::CHECK`], asks for a poll.
    fn submit(
        &mut self,
        key: Key,
        request: &mut Self::Request,
        mode: Mode,
    ) -> SubmitOutcome<Self::Event> {
        let _ = mode;
        if !self.methods().contains(Methods::CHECK) {
            return SubmitOutcome::Queued;
        }
        self.check(key, request).map_or(SubmitOutcome::Pending, SubmitOutcome::Ready)
    }

    /// Tests one request without blocking ([`Methods::CHECK`]).
    ///
    /// # Panics
    /// By default: a detector that implements neither this nor [`poll`](Self::poll) can report no event, so its requests end with
    /// [`WaitError::Panicked`](crate::WaitError::Panicked) instead of waiting for ever.
    fn check(&mut self, key: Key, request: &mut Self::Request) -> Option<Self::Event> {
        let _ = (key, request);
        panic!("the detector can report no event: implement `check` or `poll`")
    }

    /// Tells the detector that the set of pending requests has changed since the last poll, so that
    /// it can rebuild what the poll needs ([`Methods::GROUP`]). Called at most once per poll.
    fn group(&mut self, pending: &Pending<'_, Self>) {
        let _ = pending;
    }

    /// Polls for events of all requests at once ([`Methods::GROUP`]) and reports them to `context`. By
    /// default checks each pending request, oldest first.
    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        context.check_each(self);
    }

    /// Takes readiness events of watched descriptors ([`Methods::NOTIFY`]). By default polls.
    fn notified(&mut self, ready_events: &[PollerEvent], context: &mut PollContext<'_, Self>) {
        let _ = ready_events;
        self.poll(context);
    }

    /// Prepares for a sleep: from now on the next event announces itself ([`Methods::NOTIFY`]). The
    /// server polls once more afterwards.
    ///
    /// # Errors
    /// An error ends all pending requests of the handle.
    fn arm(&mut self) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::Armed)
    }

    /// Forgets a request whose waiter is gone, or reports that it cannot yet.
    fn cancel(&mut self, key: Key, request: &mut Self::Request) -> CancelOutcome {
        let _ = (key, request);
        CancelOutcome::Released
    }

    /// Takes back an event reported to a request whose waiter left without taking it, so that another
    /// request gets it; or returns it to be dropped, which is the default. Of several events of a stream
    /// the newest comes first: push each to the front of your queue to keep them in order.
    fn unclaimed(&mut self, event: Self::Event) -> Option<Self::Event> {
        Some(event)
    }

    /// Returns the earliest time at which a poll can succeed without an outside event: timers,
    /// retransmissions.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Returns the latest time of the poll that [`next_deadline`](Self::next_deadline) asks for, if the host is busy
    /// or combines wake-ups. Never before that deadline, which is the default.
    fn hard_deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Returns when a host that is about to sleep should wake up and poll: between
    /// [`next_deadline`](Self::next_deadline) and [`hard_deadline`](Self::hard_deadline), chosen so
    /// that one wake-up finds several events. Called once per sleep. Default: `next_deadline`.
    fn wake_at(&self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Returns a call that blocks until an event may be there ([`Methods::BLOCK`]); called once, after
    /// [`attach`](Self::attach). The call runs on its own kernel thread while requests are pending; on
    /// the user-level flavor, if the detector can also be polled, only while there is nothing else to
    /// run. After each return the host [`poll`](Self::poll)s.
    fn blocker(&mut self) -> Option<Blocker> {
        None
    }

    /// Returns the number of the POSIX signal that announces events ([`Methods::SIGNAL`]); called once, before
    /// [`attach`](Self::attach). Each arrival makes the host [`poll`](Self::poll), at its next switch or out of
    /// its sleep; [`DriverHandle::signal_arrivals`] counts them. For a real-time signal the server also listens to
    /// SIGIO, which the kernel sends when its queue is full.
    ///
    /// A signal that cannot be caught or that reports a fault makes the registration fail with
    /// [`RegisterError::ForbiddenSignal`](crate::RegisterError::ForbiddenSignal).
    fn signal(&self) -> Option<i32> {
        None
    }

    /// Merges `newer` into an event of the same stream that its waiter has not taken yet. Returns
    /// `newer` if the two must stay separate, which is the default.
    fn merge(queued: &mut Self::Event, newer: Self::Event) -> Option<Self::Event> {
        let _ = queued;
        Some(newer)
    }

    /// Says in a few words what a request waits for, for [`Server::waits`](crate::Server::waits): `descriptor 7, to read`.
    /// Default: nothing, so that only the handle's name is shown.
    fn describe(&self, request: &Self::Request) -> String {
        let _ = request;
        String::new()
    }
}
