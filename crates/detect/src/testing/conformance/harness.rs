//! The suite's requirements of an implementation, and its expectations.

use std::error::Error;

use crate::{
    clock::{Instant, VirtualClock},
    detector::Detector,
    server::{Handle, Server},
    sync::Arc,
};

/// Makes an event happen, once, on the thread that calls it.
pub type Trigger = Box<dyn FnOnce() + Send>;

/// The error of a factory.
pub type SetupError = Box<dyn Error + Send + Sync>;

/// The suite's requirements of an implementation: its requests, and a way to make its events
/// happen.
///
/// Requests and events are numbered from 0. The suite makes events happen in numerical order and skips none. It makes each
/// request at most once (if events are [shared](Addressing::Shared), the number of a request means nothing and may repeat),
/// in any order, before or after the event of the same number, and drops some before their event. Each case starts with
/// its own harness. A trigger may be called after the server was shut down; requests and triggers are made before.
pub trait Harness: Sized + 'static {
    /// The implementation.
    type Detector: Detector;

    /// The kinds of hosts on which it works: in virtual time, in real time, or both (default). A detector with descriptors of
    /// the kernel works in real time only.
    const HOST_KINDS: HostKinds = HostKinds::Both;

    /// Returns the handle of the detector, registered at the server of the [`World`].
    fn handle(&self) -> &Handle<Self::Detector>;

    /// Makes request number `index`.
    fn request(&mut self, index: usize) -> <Self::Detector as Detector>::Request;

    /// Returns a call that makes event number `index` happen: it has happened once the call
    /// returns.
    fn trigger(&mut self, index: usize) -> Trigger;

    /// Returns which event request number `request` received, and consumes it: what a program would
    /// read, it reads.
    fn identify(
        &mut self,
        request: usize,
        event: <Self::Detector as Detector>::Event,
    ) -> EventIdentity;

    /// Returns what the suite may expect. Default: [`Profile::addressed`].
    fn profile(&self) -> Profile {
        Profile::addressed()
    }

    /// Returns the time at which event `index` happens without a trigger, for detectors of time,
    /// whose [`trigger`](Self::trigger) moves the clock there. Default: none.
    fn happens_at(&self, index: usize) -> Option<Instant> {
        let _ = index;
        None
    }

    /// Makes the request of a stream; `None`, the default, if its streams need no test.
    fn stream_request(&mut self) -> Option<<Self::Detector as Detector>::Request> {
        None
    }

    /// Makes event number `index` of the stream happen. Default: [`trigger`](Self::trigger).
    fn stream_trigger(&mut self, index: usize) -> Trigger {
        self.trigger(index)
    }

    /// Returns which events of the stream it is, and consumes them. Default:
    /// [`identify`](Self::identify) as request 0.
    fn identify_stream(&mut self, event: <Self::Detector as Detector>::Event) -> EventIdentity {
        self.identify(0, event)
    }

    /// Returns a call that ends the stream; `None`, the default, if it never ends.
    fn end_stream(&mut self) -> Option<Trigger> {
        None
    }

    /// Reports on the memory of requests, for detectors whose kernel or device writes to it: the
    /// harness's device checks whether its target is still there. Default: none.
    fn memory(&self) -> Option<Memory> {
        None
    }
}

/// The surroundings of a harness, passed to its factory.
#[derive(Clone, Debug)]
pub struct World {
    server: Server,
    clock: Option<Arc<VirtualClock>>,
    seed: u64,
}

impl World {
    pub(super) fn new(server: Server, clock: Option<Arc<VirtualClock>>, seed: u64) -> Self {
        Self { server, clock, seed }
    }

    /// Returns the server at which to register the detector.
    #[must_use]
    pub const fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the clock of a virtual host, or `None` on a real one.
    #[must_use]
    pub const fn clock(&self) -> Option<&Arc<VirtualClock>> {
        self.clock.as_ref()
    }

    /// Returns the seed from which all randomness of a harness must come.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }
}

/// The hosts on which a detector works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two kinds of hosts")]
pub enum HostKinds {
    /// Only where time is virtual.
    Virtual,
    /// Only where descriptors can be watched.
    Real,
    /// Both.
    Both,
}

/// The identity of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to return every case")]
pub enum EventIdentity {
    /// These, in this order: more than one if the detector merges events.
    Events(Vec<usize>),
    /// One event that looks like any other.
    Unmarked,
    /// No event that has happened, with the evidence: memory returned when the server ended.
    Nothing(String),
    /// The announcement that no event will follow.
    End,
}

/// The assignment of events to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "an event is for one request, or for any")]
pub enum Addressing {
    /// Event `i` is for request `i`.
    Addressed,
    /// Any event is for any request: the first to wait gets it.
    Shared,
}

/// The fate of an event whose waiter left without taking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it is kept or it is not")]
pub enum Unclaimed {
    /// It is lost with the waiter.
    Dropped,
    /// Another request receives it: see [`Detector::unclaimed`].
    Returned,
}

/// The suite's expectations of a detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a profile says something only to the suite"]
pub struct Profile {
    pub(super) addressing: Addressing,
    pub(super) unclaimed: Unclaimed,
    pub(super) stream_capacity: usize,
    pub(super) index_count_max: usize,
}

impl Profile {
    /// Event `i` is for request `i`; events left by a waiter are dropped.
    pub const fn addressed() -> Self {
        Self {
            addressing: Addressing::Addressed,
            unclaimed: Unclaimed::Dropped,
            stream_capacity: 1024,
            index_count_max: 512,
        }
    }

    /// Any event is for any request.
    pub const fn shared(unclaimed: Unclaimed) -> Self {
        Self { addressing: Addressing::Shared, unclaimed, ..Self::addressed() }
    }

    /// Sets the capacity with which the handle was registered
    /// ([`Registration::stream_capacity`](crate::Registration::stream_capacity)). Default 1024.
    pub const fn stream_capacity(mut self, events: usize) -> Self {
        self.stream_capacity = events;
        self
    }

    /// Sets how many requests and events one harness can make, at least 40: a bound on the
    /// descriptors that it needs. Default 512.
    pub const fn index_count_max(mut self, count: usize) -> Self {
        self.index_count_max = count;
        self
    }
}

/// The memory of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "implementers must be able to make one")]
pub struct Memory {
    /// Requests whose memory is not freed yet.
    pub live: usize,
    /// The number of these that the kernel or a device may write to at this moment.
    pub in_flight: usize,
    /// The number that were freed while the kernel or a device could still write to them.
    pub freed_in_flight: usize,
}
