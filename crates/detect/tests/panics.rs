//! A panic in a callback ends requests with an error, and nothing else: the server continues.
//!
//! Method: one detector that panics where it is told to, watched in every way, beside a doorbell at the
//! same server that must keep working.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    os::{fd::AsFd, unix::net::UnixStream},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use vigie_detect::{
    ArmOutcome, CancelOutcome, Detected, Detector, Driver, DriverHandle, EmitOutcome, Fixed,
    Flavor, Frequency, Handle, Instant, Interest, Key, Methods, Mode, Notifier, Pending,
    PollContext, PollerEvent, RegisterError, Registration, Server, Strategy, SubmitOutcome,
    WaitError,
    detectors::doorbell::{Button, Doorbell, doorbell},
};

/// Where the detector panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Methods,
    Arming,
    Attach,
    Submit,
    Check,
    Group,
    Poll,
    CompleteWith,
    Merge,
    Notified,
    Arm,
    Cancel,
    NextDeadlineInSubmit,
    NextDeadlineInPoll,
    Unclaimed,
    Drop,
}

struct Fragile {
    place: Place,
    /// Numbers that wait for a request.
    queue: Arc<Mutex<VecDeque<u32>>>,
    polls: u32,
    bell: Option<Notifier>,
    /// Watched, so that there are readiness events.
    socket: Option<UnixStream>,
}

#[derive(Debug)]
struct Number(u32);

/// The request that panics; others do not.
const BAD: u32 = 13;

impl Fragile {
    fn trip(&self, place: Place) {
        assert_ne!(self.place, place, "tripped");
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        self.trip(Place::Drop);
    }
}

impl Detector for Fragile {
    type Request = u32;
    type Event = Number;

    fn methods(&self) -> Methods {
        self.trip(Place::Methods);
        Methods::CHECK | Methods::GROUP | Methods::NOTIFY
    }

    fn arming(&self) -> vigie_detect::Arming {
        self.trip(Place::Arming);
        vigie_detect::Arming::BeforeSleep
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        self.trip(Place::Attach);
        self.bell = Some(driver.notifier());
        if let Some(socket) = &self.socket {
            driver.watch(socket.as_fd(), 7, Interest::Readable)?;
        }
        Ok(())
    }

    fn submit(&mut self, _: Key, request: &mut u32, _: Mode) -> SubmitOutcome<Number> {
        if *request == BAD {
            self.trip(Place::Submit);
        }
        SubmitOutcome::Pending
    }

    fn check(&mut self, _: Key, request: &mut u32) -> Option<Number> {
        if *request == BAD {
            self.trip(Place::Check);
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front().map(Number)
    }

    fn group(&mut self, pending: &Pending<'_, Self>) {
        if !pending.is_empty() {
            self.trip(Place::Group);
        }
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        self.polls += 1;
        if context.pending_count() > 0 {
            self.trip(Place::Poll);
        }
        while let Some(key) = context.oldest() {
            if self.place == Place::CompleteWith {
                context.complete_with(key, |_| panic!("tripped"));
            }
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(number) = queue.pop_front() else { return };
            drop(queue);
            let number = Number(if self.place == Place::Merge { BAD } else { number });
            match context.emit(key, number) {
                EmitOutcome::Kept | EmitOutcome::Ended => {}
                EmitOutcome::Full(_) | EmitOutcome::Gone(_) => return,
            }
        }
    }

    fn notified(&mut self, ready_events: &[PollerEvent], context: &mut PollContext<'_, Self>) {
        assert!(ready_events.iter().all(|ready_event| ready_event.key == 7));
        self.trip(Place::Notified);
        self.poll(context);
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        self.trip(Place::Arm);
        Ok(ArmOutcome::Armed)
    }

    fn cancel(&mut self, _: Key, request: &mut u32) -> CancelOutcome {
        if *request == BAD {
            self.trip(Place::Cancel);
        }
        CancelOutcome::Released
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.trip(Place::NextDeadlineInSubmit);
        if self.polls > 0 {
            self.trip(Place::NextDeadlineInPoll);
        }
        None
    }

    fn unclaimed(&mut self, event: Number) -> Option<Number> {
        self.trip(Place::Unclaimed);
        Some(event)
    }

    fn merge(_: &mut Number, newer: Number) -> Option<Number> {
        assert_ne!(newer.0, BAD, "tripped");
        Some(newer)
    }
}

struct Nothing;

impl Wake for Nothing {
    fn wake(self: Arc<Self>) {}
}

struct Stage {
    server: Server,
    driver: Driver,
    waker: Waker,
    button: Button,
    doorbell: Handle<Doorbell>,
    queue: Arc<Mutex<VecDeque<u32>>>,
    place: Place,
}

impl Stage {
    fn new(place: Place) -> Self {
        let server = Server::new(Flavor::UserLevel).expect("an epoll");
        let (button, doorbell) = doorbell(&server).expect("a doorbell");
        let waker = Waker::from(Arc::new(Nothing));
        let queue = Arc::default();
        Self { driver: server.driver(), server, waker, button, doorbell, queue, place }
    }

    fn register(&self) -> Result<Handle<Fragile>, RegisterError> {
        self.register_as(Registration::named("fragile"), None)
    }

    fn register_as(
        &self,
        registration: Registration,
        socket: Option<UnixStream>,
    ) -> Result<Handle<Fragile>, RegisterError> {
        let fragile = Fragile {
            place: self.place,
            queue: Arc::clone(&self.queue),
            polls: 0,
            bell: None,
            socket,
        };
        self.server.register(fragile, registration)
    }

    fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(&self.waker))
    }

    fn push(&self, number: u32) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(number);
    }

    /// A whole step of a host: a poll pass, and a sleep that ends at once.
    fn step(&mut self) {
        self.driver.detect();
        self.driver.park(Some(self.server.now()));
    }

    /// The server and its other handles continue.
    fn expect_alive(&mut self) {
        let mut ring = self.doorbell.rung();
        assert!(self.poll(&mut ring).is_pending());
        let timers = self.server.timers().clone();
        let mut timer = timers.wait(self.server.now() + Duration::from_micros(10));
        while self.poll(&mut timer).is_pending() {
            self.driver.park(None);
        }
        self.button.press();
        self.driver.park(None);
        assert!(matches!(self.poll(&mut ring), Poll::Ready(Ok(()))));
    }
}

fn expect_panicked(result: Poll<Result<Number, WaitError>>, name: &str) {
    match result {
        Poll::Ready(Err(WaitError::Panicked { callback, message })) => {
            assert_eq!(callback, name);
            assert!(message.contains("tripped"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

/// A panic in `place` ends everything pending, and later requests, with an error that names `name`.
fn closes_the_handle(place: Place, name: &str, registration: Registration) {
    let mut stage = Stage::new(place);
    let handle = stage.register_as(registration, None).expect("a registration");
    let mut waits = [handle.wait(1), handle.wait(2)];
    for wait in &mut waits {
        assert!(stage.poll(wait).is_pending());
    }
    let stream = handle.stream(3).expect("a stream");
    stage.step();
    for wait in &mut waits {
        expect_panicked(stage.poll(wait), name);
    }
    let cx = Context::from_waker(&stage.waker);
    let ended = stream.poll_event(&cx);
    assert!(
        matches!(&ended, Poll::Ready(Some(Err(WaitError::Panicked { callback, .. })))
            if *callback == name),
        "{ended:?}"
    );
    assert!(matches!(stream.poll_event(&cx), Poll::Ready(None)));
    expect_panicked(stage.poll(&mut handle.wait(4)), name);
    assert!(handle.stream(5).is_err());
    assert_eq!(handle.pending_count(), 0);
    stage.expect_alive();
}

fn polled() -> Registration {
    let every = Frequency::Switches(1);
    Registration::named("fragile").policy(Fixed(Strategy::PollGroup { every }))
}

#[test]
fn in_methods() {
    let mut stage = Stage::new(Place::Methods);
    let refused = stage.register();
    assert!(matches!(refused, Err(RegisterError::Panicked { .. })), "{refused:?}");
    stage.expect_alive();
}

#[test]
fn in_arming() {
    let mut stage = Stage::new(Place::Arming);
    let refused = stage.register();
    assert!(matches!(refused, Err(RegisterError::Panicked { .. })), "{refused:?}");
    stage.expect_alive();
}

#[test]
fn in_attach() {
    let mut stage = Stage::new(Place::Attach);
    let refused = stage.register();
    assert!(
        matches!(&refused, Err(RegisterError::Panicked { message }) if message.contains("tripped")),
        "{refused:?}"
    );
    stage.expect_alive();
}

#[test]
fn in_submit() {
    let mut stage = Stage::new(Place::Submit);
    let handle = stage.register().expect("a registration");
    let mut good = handle.wait(1);
    assert!(stage.poll(&mut good).is_pending());
    expect_panicked(stage.poll(&mut handle.wait(BAD)), "submit");
    assert!(matches!(handle.stream(BAD), Err(WaitError::Panicked { callback: "submit", .. })));
    // Only that request has ended.
    stage.push(1);
    stage.step();
    assert!(matches!(stage.poll(&mut good), Poll::Ready(Ok(Number(1)))));
    stage.expect_alive();
}

#[test]
fn in_check() {
    let mut stage = Stage::new(Place::Check);
    let every = Frequency::Switches(1);
    let registration = Registration::named("fragile").policy(Fixed(Strategy::CheckEach { every }));
    let handle = stage.register_as(registration, None).expect("a registration");
    let mut bad = handle.wait(BAD);
    let mut good = handle.wait(1);
    assert!(stage.poll(&mut bad).is_pending());
    assert!(stage.poll(&mut good).is_pending());
    stage.push(1);
    stage.step();
    expect_panicked(stage.poll(&mut bad), "check");
    assert!(matches!(stage.poll(&mut good), Poll::Ready(Ok(Number(1)))));
    stage.expect_alive();
}

#[test]
fn in_group() {
    closes_the_handle(Place::Group, "group", Registration::named("fragile"));
    closes_the_handle(Place::Group, "group", polled());
}

#[test]
fn in_poll() {
    closes_the_handle(Place::Poll, "poll", Registration::named("fragile"));
    closes_the_handle(Place::Poll, "poll", polled());
}

#[test]
fn in_the_making_of_an_event() {
    closes_the_handle(Place::CompleteWith, "poll", Registration::named("fragile"));
}

#[test]
fn in_arm() {
    closes_the_handle(Place::Arm, "arm", Registration::named("fragile"));
}

#[test]
fn in_next_deadline_after_a_poll() {
    closes_the_handle(Place::NextDeadlineInPoll, "next_deadline", Registration::named("fragile"));
    closes_the_handle(Place::NextDeadlineInPoll, "next_deadline", polled());
}

#[test]
fn in_next_deadline_after_submit() {
    let mut stage = Stage::new(Place::NextDeadlineInSubmit);
    let handle = stage.register().expect("a registration");
    expect_panicked(stage.poll(&mut handle.wait(1)), "next_deadline");
    expect_panicked(stage.poll(&mut handle.wait(2)), "next_deadline");
    stage.expect_alive();
}

#[test]
fn in_merge() {
    let mut stage = Stage::new(Place::Merge);
    let handle = stage.register().expect("a registration");
    let stream = handle.stream(1).expect("a stream");
    let mut wait = handle.wait(2);
    assert!(stage.poll(&mut wait).is_pending());
    stage.push(1);
    stage.push(2);
    stage.step();
    let cx = Context::from_waker(&stage.waker);
    // The first event was there before.
    assert!(matches!(stream.poll_event(&cx), Poll::Ready(Some(Ok(Number(BAD))))));
    assert!(matches!(stream.poll_event(&cx), Poll::Ready(Some(Err(WaitError::Panicked { .. })))));
    assert!(matches!(stream.poll_event(&cx), Poll::Ready(None)));
    expect_panicked(stage.poll(&mut wait), "poll");
    stage.expect_alive();
}

#[test]
fn in_notified() {
    let mut stage = Stage::new(Place::Notified);
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let registration = Registration::named("fragile");
    let handle = stage.register_as(registration, Some(near)).expect("a registration");
    let mut wait = handle.wait(1);
    assert!(stage.poll(&mut wait).is_pending());
    stage.step();
    assert!(stage.poll(&mut wait).is_pending());
    rustix::io::write(&far, &[1]).expect("room for a byte");
    assert!(matches!(stage.driver.detect(), Detected::Events(1)));
    expect_panicked(stage.poll(&mut wait), "notified");
    expect_panicked(stage.poll(&mut handle.wait(2)), "notified");
    stage.expect_alive();
}

#[test]
fn in_cancel() {
    let mut stage = Stage::new(Place::Cancel);
    let handle = stage.register().expect("a registration");
    let mut bad = handle.wait(BAD);
    let mut good = handle.wait(1);
    assert!(stage.poll(&mut bad).is_pending());
    assert!(stage.poll(&mut good).is_pending());
    drop(bad);
    assert_eq!(handle.pending_count(), 1);
    stage.push(1);
    stage.step();
    assert!(matches!(stage.poll(&mut good), Poll::Ready(Ok(Number(1)))));
    stage.expect_alive();

    // Also at the server's end.
    let mut bad = handle.wait(BAD);
    let mut good = handle.wait(1);
    assert!(stage.poll(&mut bad).is_pending());
    assert!(stage.poll(&mut good).is_pending());
    stage.server.shutdown();
    assert!(matches!(stage.poll(&mut bad), Poll::Ready(Err(WaitError::ServerClosed))));
    assert!(matches!(stage.poll(&mut good), Poll::Ready(Err(WaitError::ServerClosed))));
}

#[test]
fn in_unclaimed() {
    let mut stage = Stage::new(Place::Unclaimed);
    let handle = stage.register().expect("a registration");
    let mut left = handle.wait(1);
    let mut other = handle.wait(2);
    assert!(stage.poll(&mut left).is_pending());
    assert!(stage.poll(&mut other).is_pending());
    stage.push(1);
    stage.step();
    drop(left);
    stage.step();
    expect_panicked(stage.poll(&mut other), "unclaimed");
    expect_panicked(stage.poll(&mut handle.wait(3)), "unclaimed");
    stage.expect_alive();
}

#[test]
fn in_drop() {
    let mut stage = Stage::new(Place::Drop);
    let handle = stage.register().expect("a registration");
    let mut wait = handle.wait_owned(1);
    assert!(stage.poll(&mut wait).is_pending());
    drop(wait);
    // The last user: the detector is dropped.
    drop(handle);
    stage.expect_alive();
    let handle = stage.register().expect("a registration");
    let mut wait = handle.wait(1);
    assert!(stage.poll(&mut wait).is_pending());
    stage.server.shutdown();
    assert!(matches!(stage.poll(&mut wait), Poll::Ready(Err(WaitError::ServerClosed))));
}

/// A detector that implements nothing by which it could report an event.
struct Silent(Methods);

impl Detector for Silent {
    type Request = ();
    type Event = ();

    fn methods(&self) -> Methods {
        self.0
    }
}

/// Goal: requests of a detector with neither `check` nor `poll` end with the reason instead of waiting for ever. Method: such a detector with
/// each method that leads to a check, and poll passes until its request is over.
#[test]
fn without_a_test_of_its_own() {
    for methods in [Methods::CHECK, Methods::NOTIFY] {
        let mut stage = Stage::new(Place::Drop);
        let silent = stage.server.register(Silent(methods), Registration::named("silent"));
        let handle = silent.expect("a registration");
        let mut wait = handle.wait(());
        let mut ended = stage.poll(&mut wait);
        for _ in 0..100 {
            if ended.is_ready() {
                break;
            }
            stage.step();
            ended = stage.poll(&mut wait);
        }
        assert!(
            matches!(&ended, Poll::Ready(Err(WaitError::Panicked { message, .. })) if message.contains("implement `check` or `poll`")),
            "{ended:?}"
        );
    }
}
