//! Detectors that panic in each of their callbacks: their requests end in errors, the runtime lives.

use std::{
    future::Future,
    io::{self, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use vigie_detect::{
    Adaptive, ArmOutcome, Arming, CancelOutcome, Decision, Detector, DriverHandle, EmitOutcome,
    EventStream, Fixed, Frequency, Handle, Instant, Interest, Key, Methods, Mode, Notifier,
    Pending, Policy, PollContext, PollerEvent, RegisterError, Registration, Server, Situation,
    Strategy, SubmitOutcome, WaitError,
};
use vigie_runtime::{Flavor, Runtime, spawn, yield_now};

use super::alive::assert_alive;
use crate::{
    flavors::{FLAVORS, runtime},
    kit::guard::against_hang,
};

/// Where to panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Methods,
    Arming,
    Attach,
    Submit,
    Check,
    Group,
    Poll,
    Notified,
    Arm,
    Cancel,
    Unclaimed,
    NextDeadline,
    Merge,
    /// In the destructor of the detector.
    Drop,
    /// In the destructor of a request that the host drops.
    DropRequest,
    /// Nowhere.
    Nowhere,
}

/// Has an event for each request once its notifier was called or its descriptor became readable.
struct Faulty {
    place: Place,
    /// Panics only once this is set.
    is_armed: Arc<AtomicBool>,
    events: Arc<AtomicUsize>,
    notifier: Option<Notifier>,
    watched: Option<UnixStream>,
    cancelled: Vec<Key>,
}

struct Request {
    panics: bool,
}

impl Drop for Request {
    fn drop(&mut self) {
        assert!(!self.panics, "planted: the destructor of a request");
    }
}

/// The test's end of a detector.
struct Controls {
    is_armed: Arc<AtomicBool>,
    events: Arc<AtomicUsize>,
    peer: UnixStream,
}

impl Faulty {
    fn new(place: Place) -> (Self, Controls) {
        let (watched, peer) = UnixStream::pair().expect("a pair of sockets");
        let is_armed = Arc::new(AtomicBool::new(true));
        let events = Arc::new(AtomicUsize::new(0));
        let controls =
            Controls { is_armed: Arc::clone(&is_armed), events: Arc::clone(&events), peer };
        let this = Self {
            place,
            is_armed,
            events,
            notifier: None,
            watched: Some(watched),
            cancelled: Vec::new(),
        };
        (this, controls)
    }

    fn at(&self, place: Place) {
        if place == self.place && self.is_armed.load(Ordering::SeqCst) {
            panic!("planted: {place:?}");
        }
    }

    fn take(&self) -> bool {
        let taken = self
            .events
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
        taken.is_ok()
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.at(Place::Drop);
    }
}

impl Detector for Faulty {
    type Request = Request;
    type Event = ();

    fn methods(&self) -> Methods {
        self.at(Place::Methods);
        Methods::CHECK | Methods::GROUP | Methods::NOTIFY
    }

    fn arming(&self) -> Arming {
        self.at(Place::Arming);
        Arming::BeforeSleep
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        self.at(Place::Attach);
        self.notifier = Some(driver.notifier());
        let watched = self.watched.as_ref().expect("not attached yet");
        driver.watch(watched.as_fd(), 0, Interest::Readable)
    }

    fn submit(&mut self, _: Key, _: &mut Request, _: Mode) -> SubmitOutcome<()> {
        self.at(Place::Submit);
        SubmitOutcome::Pending
    }

    fn check(&mut self, _: Key, _: &mut Request) -> Option<()> {
        self.at(Place::Check);
        self.take().then_some(())
    }

    fn group(&mut self, _: &Pending<'_, Self>) {
        self.at(Place::Group);
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        self.at(Place::Poll);
        for key in self.cancelled.drain(..) {
            context.complete(key, ());
        }
        while let Some(key) = context.oldest() {
            if !self.take() {
                return;
            }
            match context.emit(key, ()) {
                EmitOutcome::Kept | EmitOutcome::Ended => {}
                EmitOutcome::Full(()) | EmitOutcome::Gone(()) => return,
            }
        }
    }

    fn notified(&mut self, _: &[PollerEvent], context: &mut PollContext<'_, Self>) {
        self.at(Place::Notified);
        self.poll(context);
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        self.at(Place::Arm);
        Ok(ArmOutcome::Armed)
    }

    fn cancel(&mut self, key: Key, request: &mut Request) -> CancelOutcome {
        self.at(Place::Cancel);
        if self.place == Place::DropRequest {
            request.panics = true;
            self.cancelled.push(key);
            self.notifier.as_ref().expect("attached").notify();
            return CancelOutcome::InFlight;
        }
        CancelOutcome::Released
    }

    fn unclaimed(&mut self, (): ()) -> Option<()> {
        self.at(Place::Unclaimed);
        None
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.at(Place::NextDeadline);
        None
    }

    fn merge((): &mut (), (): ()) -> Option<()> {
        panic!("planted: {:?}", Place::Merge);
    }
}

fn every(micros: u64) -> Frequency {
    Frequency::Time(Duration::from_micros(micros))
}

fn register(server: &Server, place: Place, policy: impl Policy) -> (Handle<Faulty>, Controls) {
    let (detector, controls) = Faulty::new(place);
    let registration = Registration::named("faulty").policy(policy);
    (server.register(detector, registration).expect("registered"), controls)
}

/// Waits in a task, so that a host that dies takes no other thread along.
fn wait(runtime: &Runtime, handle: &Handle<Faulty>) -> Result<(), WaitError> {
    let handle = handle.clone();
    let task = runtime.spawn(async move { handle.wait(Request { panics: false }).await });
    runtime.block_on(task).expect("the task does not panic")
}

#[track_caller]
fn assert_panicked(result: Result<(), WaitError>, expected: &str, what: impl std::fmt::Debug) {
    match result {
        Err(WaitError::Panicked { callback, message }) => {
            assert_eq!(callback, expected, "{what:?}");
            assert!(message.starts_with("planted: "), "{message}");
        }
        other => panic!("{what:?}: the wait ended in {other:?}"),
    }
}

fn for_each_flavor(test: fn(&Runtime)) {
    for flavor in FLAVORS {
        against_hang(move || {
            let runtime = runtime(flavor);
            test(&runtime);
            assert_alive(&runtime);
        });
    }
}

/// Goal: a panic in a callback that serves a request ends it in an error that names the callback, and
/// the runtime lives. Method: each such callback under the strategy that calls it.
#[test]
fn panics_while_a_request_is_served() {
    for_each_flavor(|runtime| {
        let sleep = Strategy::Sleep { every: every(50) };
        let cases = [
            (Place::Submit, sleep, "submit", true),
            (Place::Check, Strategy::CheckEach { every: every(50) }, "check", true),
            (Place::Group, Strategy::PollGroup { every: every(50) }, "group", false),
            (Place::Poll, Strategy::PollGroup { every: every(50) }, "poll", false),
            (Place::Arm, sleep, "arm", false),
            (Place::Notified, sleep, "notified", false),
            (Place::NextDeadline, sleep, "next_deadline", false),
        ];
        for (place, strategy, callback, goes_on) in cases {
            let (handle, mut controls) = register(runtime.server(), place, Fixed(strategy));
            if place == Place::Notified {
                controls.peer.write_all(&[1]).expect("the socket has room");
            }
            assert_panicked(wait(runtime, &handle), callback, place);
            controls.is_armed.store(false, Ordering::SeqCst);
            if goes_on {
                // The panic ended the request alone: the next one is served.
                controls.events.store(1, Ordering::SeqCst);
                controls.peer.write_all(&[1]).expect("the socket has room");
                wait(runtime, &handle).expect("the next request is served");
            } else {
                assert_panicked(wait(runtime, &handle), callback, place);
            }
        }
    });
}

/// Goal: a panic outside any request does not reach the runtime either. Method: the callbacks of
/// registration, which is refused; the destructor.
#[test]
fn panics_beside_requests() {
    for_each_flavor(|runtime| {
        for place in [Place::Methods, Place::Arming, Place::Attach] {
            let (detector, _controls) = Faulty::new(place);
            let refused = runtime.server().register(detector, Registration::named("faulty"));
            let Err(RegisterError::Panicked { message }) = refused else { panic!("{refused:?}") };
            assert!(message.contains(&format!("planted: {place:?}")), "{message}");
        }

        let sleep = Strategy::Sleep { every: every(50) };
        let (handle, _controls) = register(runtime.server(), Place::Drop, Fixed(sleep));
        let task = runtime.spawn(async move { drop(handle) });
        // The last user's task, or the host, drops the detector: the panic stays there.
        let _ = runtime.block_on(task);
    });
}

/// Goal: panics about requests whose waiter has gone do no harm. Method: `cancel`; `unclaimed`, of an
/// event that was delivered but not taken; the destructor of a request that the host drops.
#[test]
fn panics_after_the_waiter_has_gone() {
    for_each_flavor(|runtime| {
        let sleep = Strategy::Sleep { every: every(50) };
        for place in [Place::Cancel, Place::Unclaimed, Place::DropRequest] {
            let (handle, mut controls) = register(runtime.server(), place, Fixed(sleep));
            let events = Arc::clone(&controls.events);
            let task = runtime.spawn(async move {
                {
                    let mut wait = pin!(handle.wait(Request { panics: false }));
                    assert!(is_pending(wait.as_mut()));
                    if place == Place::Unclaimed {
                        events.store(1, Ordering::SeqCst);
                        controls.peer.write_all(&[1]).expect("the socket has room");
                        while handle.pending_count() > 0 {
                            yield_now().await;
                        }
                    }
                }
                (handle, controls)
            });
            let (handle, _controls) = runtime.block_on(task).expect("the panic was caught");
            assert_alive(runtime);
            drop(handle);
        }
    });
}

fn is_pending<F: Future>(future: Pin<&mut F>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Goal: a panic while two events are merged ends the stream in an error. Method: a stream that no task
/// reads gets two events.
#[test]
fn panics_in_merge() {
    for_each_flavor(|runtime| {
        let polling = Strategy::PollGroup { every: every(50) };
        let (handle, controls) = register(runtime.server(), Place::Merge, Fixed(polling));
        let task = runtime.spawn(async move {
            let stream = handle.stream(Request { panics: false }).expect("a stream");
            controls.events.store(2, Ordering::SeqCst);
            while handle.pending_count() > 0 {
                yield_now().await;
            }
            let first = next(&stream);
            let second = next(&stream);
            (first, second)
        });
        let (first, second) = runtime.block_on(task).expect("the task does not panic");
        assert!(matches!(first, Some(Ok(()))), "the first event came before: {first:?}");
        assert_panicked(second.expect("the end is told"), "poll", Place::Merge);
    });
}

fn next(stream: &EventStream<Faulty>) -> Option<Result<(), WaitError>> {
    match stream.poll_event(&Context::from_waker(Waker::noop())) {
        Poll::Ready(event) => event,
        Poll::Pending => None,
    }
}

/// Panics once, when it is asked in a round.
#[derive(Debug)]
struct FaultyPolicy {
    is_armed: Arc<AtomicBool>,
}

impl Policy for FaultyPolicy {
    fn decide(&self, situation: &Situation<'_>) -> Decision {
        assert!(!self.is_armed.swap(false, Ordering::SeqCst), "planted: a policy");
        Decision { until: situation.now, ..Adaptive::default().decide(situation) }
    }
}

/// Goal: a policy that panics does not take its host along. Method: one that wants to be asked again at
/// each round; events until it was. A host may ask it as late as before its next poll pass.
#[test]
fn a_policy_that_panics() {
    for_each_flavor(|runtime| {
        let is_armed = Arc::new(AtomicBool::new(false));
        let policy = FaultyPolicy { is_armed: Arc::clone(&is_armed) };
        let (handle, controls) = register(runtime.server(), Place::Nowhere, policy);
        is_armed.store(true, Ordering::SeqCst);
        let task = runtime.spawn(async move {
            while is_armed.load(Ordering::SeqCst) {
                let events = Arc::clone(&controls.events);
                let mut peer = controls.peer.try_clone().expect("a descriptor is free");
                let trigger = spawn(async move {
                    events.store(1, Ordering::SeqCst);
                    peer.write_all(&[1]).expect("the socket has room");
                });
                handle.wait(Request { panics: false }).await.expect("served");
                trigger.await.expect("it does not panic");
            }
        });
        runtime.block_on(task).expect("the task does not panic");
        assert_alive(runtime);
    });
}

/// Goal: a detector that panics disturbs no other one. Method: bells and sockets are used before,
/// meanwhile and after.
#[test]
fn others_go_on_meanwhile() {
    for flavor in FLAVORS {
        against_hang(move || {
            let runtime = runtime(flavor);
            let polling = Strategy::PollGroup { every: every(50) };
            let failing: Vec<_> = (0..20)
                .map(|_| {
                    let server = runtime.server().clone();
                    runtime.spawn(async move {
                        let (handle, controls) = register(&server, Place::Poll, Fixed(polling));
                        controls.is_armed.store(false, Ordering::SeqCst);
                        let arm = Arc::clone(&controls.is_armed);
                        spawn(async move {
                            yield_now().await;
                            arm.store(true, Ordering::SeqCst);
                        })
                        .detach();
                        handle.wait(Request { panics: false }).await
                    })
                })
                .collect();
            assert_alive(&runtime);
            for task in failing {
                let ended = runtime.block_on(task).expect("the task does not panic");
                assert_panicked(ended, "poll", Flavor::Hybrid);
            }
            assert_alive(&runtime);
        });
    }
}
