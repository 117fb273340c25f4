//! The [`Detector`] trait: a kind of event, and the methods by which it may be seen.

use std::io;

use super::{
    blocker::Blocker,
    methods::Methods,
    notice::Notice,
    round::{Pending, Round},
    site::Site,
};
use crate::{
    clock::Instant,
    request::{Cancel, Key, Mode},
};

/// What became of a request that was just handed to a detector.
#[derive(Debug)]
#[must_use = "a request whose outcome is dropped is waited for without end"]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to return every case")]
pub enum Submitted<E> {
    /// The event is not there yet.
    Pending,
    /// The detector has work of its own to do before the event can be there (a batch of submissions to
    /// flush), or leaves it to a poll to find an event that is there: the host polls soon, on its own
    /// thread.
    Queued,
    /// The event was already there. In [`Mode::Once`] the request is over; in [`Mode::Stream`] this
    /// is the first event and the request stays pending.
    Ready(E),
    /// The request cannot be served; the waiter gets the error.
    Rejected(io::Error),
}

/// What [`Detector::arm`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an event that arrived before arming is lost if it is not polled for"]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to return every case")]
pub enum Armed {
    /// The next event will announce itself.
    Armed,
    /// An event may be there already: poll again instead of sleeping.
    Ready,
}

/// When a notifying detector has to be armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to return every case")]
pub enum Arming {
    /// Before every sleep, and polled once more after: completion queues, rings.
    BeforeSleep,
    /// Never: every event announces itself, by an edge on a watched descriptor, by a bell, or by
    /// [`Detector::next_deadline`].
    Permanent,
}

/// A kind of event and the ways to see it.
///
/// A detector is registered once ([`Server::register`](crate::Server::register)) and serves many
/// requests: each [`Handle::wait`](crate::Handle::wait) makes one. The scheduler decides which
/// method it uses and when; a detector only offers them.
///
/// # Source
/// [bouge02, §2.2, §3.1]: `thread_IO_register(params{poll, group, blocking_system_call, frequency})`.
///
/// # Implementing
/// Give the least you have. A library with a test call offers [`Methods::CHECK`] and implements
/// [`check`](Self::check). One that can test all requests at once (`MPI_Testany`, a completion
/// queue) offers [`Methods::GROUP`] and implements [`poll`](Self::poll), and [`group`](Self::group)
/// if it needs a rebuilt set. One with a descriptor to sleep on offers [`Methods::NOTIFY`], watches
/// the descriptor through the [`Site`] that [`attach`](Self::attach) brings, and implements
/// [`arm`](Self::arm). The tutorial is [`docs::write_a_detector`](crate::docs::write_a_detector).
///
/// # Contract
/// 1. No callback blocks, waits on a handle of the same server, or registers there: the server holds
///    the handle's lock during all of them. They run on any thread, one at a time.
/// 2. An event that happened before [`submit`](Self::submit) and belongs to the request is reported
///    by `submit`, or by the poll that [`Submitted::Queued`] asks for: it is not lost because nobody
///    waited.
/// 3. An event between [`arm`](Self::arm) and the sleep makes the watched descriptor readable, or
///    rings the bell, or `arm` returns [`Armed::Ready`].
/// 4. Each event is reported once, to one request.
/// 5. After [`cancel`](Self::cancel) returned [`Cancel::Released`] the detector touches the request
///    no more. After [`Cancel::InFlight`] it completes the key once, in its own time.
/// 6. A request stays at its address from `submit` to its end; nothing that a kernel or a device
///    may touch is freed before that.
/// 7. [`poll`](Self::poll) with nothing pending is harmless.
/// 8. An event that time alone brings is announced by [`next_deadline`](Self::next_deadline), from
///    `submit` on, and reported by the first poll at that time; [`hard_deadline`](Self::hard_deadline) and
///    [`wakeup`](Self::wakeup) say how long the poll may be put off.
/// 9. The events of one request are reported in the order in which they happened. What a full waiter
///    gave back ([`Emitted::Full`](crate::Emitted::Full)) is emitted in a later round; none is left out.
/// 10. When the server ends, every pending request is cancelled once. What is in flight then is
///     completed by [`poll`](Self::poll), called again and again for a bounded time.
///
/// # Panics in callbacks
/// A panic is caught. One in `submit`, `check` or `cancel` ends that request in
/// [`WaitError::Panicked`](crate::WaitError::Panicked); one in any other callback ends all pending
/// requests of the handle so and closes it. What a request owned is leaked then, since nobody can
/// tell any more whether a device still writes to it.
///
/// # Conformance
/// [`conformance::check`](crate::conformance::check) tries the contract on any implementation; every
/// detector of this crate passes it.
pub trait Detector: Sized + Send + 'static {
    /// What one waiter asks for. It may own what a kernel or a device writes to.
    type Request: Send + 'static;
    /// What the waiter gets.
    type Event: Send + 'static;

    /// Returns which methods this detector offers; constant over its life.
    fn methods(&self) -> Methods;

    /// Returns whether [`arm`](Self::arm) must be called before a sleep; constant over its life.
    fn arming(&self) -> Arming {
        Arming::BeforeSleep
    }

    /// Brings the detector to its site, once, at registration: the place to watch descriptors and
    /// to get a [`Bell`](crate::Bell) and the time from.
    ///
    /// # Errors
    /// An error refuses the registration.
    fn attach(&mut self, site: &Site) -> io::Result<()> {
        let _ = site;
        Ok(())
    }

    /// Takes a new request. By default checks it once, so that an event that is already there costs
    /// no wait; without [`Methods::CHECK`], asks for a poll.
    fn submit(
        &mut self,
        key: Key,
        request: &mut Self::Request,
        mode: Mode,
    ) -> Submitted<Self::Event> {
        let _ = mode;
        match self.check(key, request) {
            Some(event) => Submitted::Ready(event),
            None if self.methods().contains(Methods::CHECK) => Submitted::Pending,
            None => Submitted::Queued,
        }
    }

    /// Tests one request without blocking ([`Methods::CHECK`]).
    fn check(&mut self, key: Key, request: &mut Self::Request) -> Option<Self::Event> {
        let _ = (key, request);
        None
    }

    /// Learns that the set of pending requests has changed since the last poll, to rebuild what the
    /// poll needs ([`Methods::GROUP`]). Called at most once per round.
    fn group(&mut self, pending: &Pending<'_, Self>) {
        let _ = pending;
    }

    /// Looks for events of all requests at once ([`Methods::GROUP`]) and reports them to `round`. By
    /// default checks each pending request in turn, oldest first.
    fn poll(&mut self, round: &mut Round<'_, Self>) {
        round.check_each(self);
    }

    /// Takes announcements of watched descriptors ([`Methods::NOTIFY`]). By default polls.
    fn notified(&mut self, notices: &[Notice], round: &mut Round<'_, Self>) {
        let _ = notices;
        self.poll(round);
    }

    /// Prepares for sleep: from now on the next event announces itself ([`Methods::NOTIFY`]). The
    /// server polls once more afterwards.
    ///
    /// # Errors
    /// An error ends all pending requests of the handle.
    fn arm(&mut self) -> io::Result<Armed> {
        Ok(Armed::Armed)
    }

    /// Forgets a request whose waiter has gone, or says that it cannot yet.
    fn cancel(&mut self, key: Key, request: &mut Self::Request) -> Cancel {
        let _ = (key, request);
        Cancel::Released
    }

    /// Takes back an event that was reported to a request whose waiter left without taking it, so
    /// that another request gets it; or gives it back to be dropped, as by default. Of several events of a
    /// stream the newest comes first: put in front of those that are left, they stand in their order.
    fn unclaimed(&mut self, event: Self::Event) -> Option<Self::Event> {
        Some(event)
    }

    /// Returns the earliest time at which a poll can succeed without outside help: timers,
    /// retransmissions.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Returns the latest time to which the host may put off the poll for
    /// [`next_deadline`](Self::next_deadline) when it has other things to do: not earlier than that, which
    /// is the default.
    fn hard_deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Returns when a host that is about to sleep should wake up and poll, from
    /// [`next_deadline`](Self::next_deadline) to [`hard_deadline`](Self::hard_deadline): such that one
    /// wake-up finds several events. Asked once for each sleep. Default `next_deadline`.
    fn wakeup(&self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Returns a call that blocks until an event may be there ([`Methods::BLOCK`]); asked once, after
    /// [`attach`](Self::attach). It runs on a kernel thread of its own while requests are pending, on the
    /// user-level flavor only with nothing else to run if the detector can also be polled; after each
    /// return the host [`poll`](Self::poll)s.
    fn block(&mut self) -> Option<Blocker> {
        None
    }

    /// Returns the number of the POSIX signal that announces events ([`Methods::SIGNAL`]); asked once,
    /// before [`attach`](Self::attach). Each arrival makes the host [`poll`](Self::poll), at its next
    /// switch or out of its sleep; [`Site::signal_arrivals`] counts them. For a real-time signal, SIGIO is
    /// listened to as well, which the kernel sends when its queue is full.
    ///
    /// A signal that cannot be caught, or reports a fault, refuses the registration with
    /// [`RegisterError::ForbiddenSignal`](crate::RegisterError::ForbiddenSignal).
    fn signal(&self) -> Option<i32> {
        None
    }

    /// Joins `newer` into an event of the same stream that its waiter has not taken yet; gives it
    /// back if the two must stay apart, as they do by default.
    fn merge(queued: &mut Self::Event, newer: Self::Event) -> Option<Self::Event> {
        let _ = queued;
        Some(newer)
    }
}
