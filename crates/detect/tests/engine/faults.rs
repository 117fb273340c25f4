//! Failures: waiters that leave, engines that panic or fail, servers that end, descriptors that are refused.

use std::{
    fs::File,
    future::Future,
    io::{self, Read},
    mem,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Waker},
};

use vigie_detect::{
    ArmOutcome, Detected, Driver, Engine, EngineContext, EngineHost, EngineWait, Flavor, Instant,
    Notifier, PollerEvent, Progress, RegisterError, Registration, Server, WaitError,
    WatchedDescriptor,
};

use super::{Datagrams, Numbers, send};

/// A server driven by the test.
pub(crate) fn server() -> (Server, Driver) {
    let server = Server::new(Flavor::UserLevel).expect("the kernel gives a server");
    let driver = server.driver();
    (server, driver)
}

/// Prepares for a sleep like a host with nothing to run, and wakes up at once.
pub(crate) fn prepare(driver: &mut Driver) {
    driver.park_unless(None, || true);
}

pub(crate) fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Drives the server, as a host with nothing to run does, until the wait is over. A hanging wait is ended by the test
/// harness.
fn finish<E: Engine>(driver: &mut Driver, wait: EngineWait<'_, E>) -> Result<E::Output, WaitError> {
    let mut wait = pin!(wait);
    loop {
        if let Poll::Ready(ended) = poll(wait.as_mut()) {
            return ended;
        }
        if driver.detect() == Detected::Nothing {
            driver.park(None);
        }
    }
}

fn numbers(server: &Server) -> EngineHost<Numbers> {
    let host = EngineHost::new(server, Numbers::default(), Registration::named("numbers"));
    host.expect("it is registered")
}

/// Goal: what was found for a waiter that leaves goes to the next one, before later events. Method: drop the first of two
/// waits after its event was reported.
#[test]
fn a_waiter_that_leaves_with_its_event() {
    let (server, mut driver) = server();
    let host = numbers(&server);
    let mut first = Box::pin(host.wait(()));
    let mut second = Box::pin(host.wait(()));
    assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
    host.with(|engine| engine.ready.push_back(1));
    assert!(matches!(driver.detect(), Detected::Events(_)));
    drop(first);
    host.with(|engine| engine.ready.push_back(2));
    driver.detect();
    assert!(matches!(poll(second.as_mut()), Poll::Ready(Ok(1))));
    drop(second);
    assert_eq!(host.try_take(&()), Some(2));
}

/// Goal: a wait can be dropped after any number of polls, and nothing is lost. Method: drop it before the first, after each, with
/// its event on the way.
#[test]
fn a_wait_that_is_dropped_at_any_poll() {
    for polls in 0..5 {
        let (server, mut driver) = server();
        let host = numbers(&server);
        let mut wait = Box::pin(host.wait(()));
        for at in 0..polls {
            assert!(poll(wait.as_mut()).is_pending());
            driver.detect();
            if at == 2 {
                host.with(|engine| engine.ready.push_back(7));
                break;
            }
        }
        if polls > 3 {
            driver.detect();
        }
        drop(wait);
        assert_eq!(host.waiter_count(), 0);
        if polls < 3 {
            host.with(|engine| engine.ready.push_back(7));
        }
        assert_eq!(finish(&mut driver, host.wait(())).expect("it is there"), 7, "{polls} polls");
    }
}

/// Goal: events that find no room in a stream stay in the engine, in order. Method: a stream of two places and ten events.
#[test]
fn a_stream_without_room() {
    let (server, mut driver) = server();
    let registration = Registration::named("numbers").stream_capacity(2);
    let host = EngineHost::new(&server, Numbers::default(), registration).expect("registered");
    let events = host.events(()).expect("the server is there");
    host.with(|engine| engine.ready.extend(0..10));
    let cx = Context::from_waker(Waker::noop());
    for number in 0..10 {
        loop {
            match events.poll_next(&cx) {
                Poll::Ready(event) => {
                    assert_eq!(event.expect("no end").expect("no error"), number);
                    break;
                }
                Poll::Pending => drop(driver.detect()),
            }
        }
    }
    host.with(|engine| engine.ready.extend([10, 11, 12]));
    driver.detect();
    drop(events);
    assert_eq!(host.try_take(&()), Some(10), "what a stream has left goes back in order");
}

/// Where an engine panics or fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    TakeOfNew,
    TakeInRound,
    Progress,
    Arm,
    ArmFails,
    Announced,
    NextDeadline,
    PutBack,
    /// Its second descriptor cannot be watched.
    Descriptor,
}

/// An engine that fails in one place.
struct Fragile {
    place: Place,
    polls: u32,
    number: Option<u64>,
    socket: UnixStream,
    file: Option<File>,
    closed: Arc<AtomicU32>,
}

impl Fragile {
    fn trip(&self, place: Place) {
        assert_ne!(self.place, place, "tripped");
    }
}

impl Engine for Fragile {
    type Request = u64;
    type Output = u64;

    fn take(&mut self, _: &u64) -> Option<u64> {
        self.polls += 1;
        // The first two polls are those of two new waiters.
        match self.polls {
            1 => self.trip(Place::TakeOfNew),
            2 => {}
            _ => self.trip(Place::TakeInRound),
        }
        self.number.take()
    }

    fn put_back(&mut self, _: &u64, number: u64) -> Option<u64> {
        self.trip(Place::PutBack);
        self.number = Some(number);
        None
    }

    fn progress(&mut self, _: &EngineContext<'_>) -> Progress {
        self.trip(Place::Progress);
        Progress::Done
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        self.trip(Place::Arm);
        if self.place == Place::ArmFails {
            return Err(io::Error::other("no arming"));
        }
        if self.place == Place::Descriptor {
            self.file = Some(File::open("/proc/self/exe")?);
        }
        Ok(ArmOutcome::Armed)
    }

    fn notified(&mut self, _: &[PollerEvent]) {
        self.trip(Place::Announced);
        let _ = self.socket.read(&mut [0; 16]);
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        each(WatchedDescriptor::readable(self.socket.as_fd()));
        if let Some(file) = &self.file {
            each(WatchedDescriptor::readable(file.as_fd()).key(1));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.trip(Place::NextDeadline);
        None
    }

    fn closed(&mut self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// An engine that fails in a place, the other end of its socket, and how often it was closed.
fn fragile(place: Place) -> (Fragile, UnixStream, Arc<AtomicU32>) {
    let (socket, peer) = UnixStream::pair().expect("a pair of sockets");
    for end in [&socket, &peer] {
        end.set_nonblocking(true).expect("it is a socket");
    }
    let closed = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&closed);
    let engine = Fragile { place, polls: 0, number: None, socket, file: None, closed };
    (engine, peer, count)
}

/// Returns whether the other end is closed; unread bytes make that an error.
fn is_closed(mut peer: &UnixStream) -> bool {
    match peer.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

/// Provokes the fault of `place`: polls, a sleep, a readiness event, a waiter that leaves.
fn provoke(
    place: Place,
    host: &EngineHost<Fragile>,
    peer: &UnixStream,
    driver: &mut Driver,
) -> Option<WaitError> {
    let mut wait = Box::pin(host.wait(0));
    let mut other = Box::pin(host.wait(1));
    let first = poll(wait.as_mut());
    if let Poll::Ready(ended) = first {
        return ended.err();
    }
    assert!(poll(other.as_mut()).is_pending());
    match place {
        Place::Announced => {
            driver.detect();
            assert_eq!(rustix::io::write(peer, b"x").ok(), Some(1));
        }
        Place::PutBack => {
            host.with(|engine| engine.number = Some(1));
            driver.detect();
            drop(wait);
            wait = Box::pin(host.wait(0));
        }
        _ => {}
    }
    // Rounds; then what comes before a sleep.
    for _ in 0..100 {
        driver.detect();
        prepare(driver);
        if let Poll::Ready(ended) = poll(other.as_mut()) {
            let error = ended.err();
            assert_eq!(error.is_some(), poll(wait.as_mut()).map(|ended| ended.is_err()).is_ready());
            return error;
        }
    }
    None
}

/// Goal: a panic or an error in any function of an engine ends all waits with a typed error, and the engine is freed with its
/// host, and its descriptors with it. Method: one place after the other, beside an engine that must continue.
#[test]
fn an_engine_that_fails() {
    for place in [
        Place::TakeInRound,
        Place::Progress,
        Place::Arm,
        Place::ArmFails,
        Place::Announced,
        Place::NextDeadline,
        Place::PutBack,
        Place::Descriptor,
    ] {
        let (server, mut driver) = server();
        let beside = numbers(&server);
        let (engine, peer, closed) = fragile(place);
        let host = EngineHost::new(&server, engine, Registration::named("fragile"));
        let host = match host {
            Ok(host) => host,
            Err(RegisterError::Panicked { message }) if place == Place::NextDeadline => {
                assert!(message.contains("next_deadline"), "{message}");
                continue;
            }
            Err(error) => panic!("{place:?}: {error}"),
        };
        let is_failed = |error: &WaitError| match place {
            Place::ArmFails | Place::Descriptor => matches!(error, WaitError::Failed(_)),
            _ => {
                matches!(error, WaitError::Panicked { message, .. } if message.contains("tripped"))
            }
        };
        let error = provoke(place, &host, &peer, &mut driver);
        assert!(error.as_ref().is_some_and(is_failed), "{place:?}: {error:?}");
        let later = poll(pin!(host.wait(2)));
        assert!(matches!(&later, Poll::Ready(Err(error)) if is_failed(error)), "{place:?}");
        assert_eq!(host.with(|engine| engine.place), place, "calls still reach it");
        beside.with(|engine| engine.ready.push_back(3));
        assert_eq!(finish(&mut driver, beside.wait(())).expect("it goes on"), 3);
        let is_told = matches!(place, Place::ArmFails | Place::Descriptor);
        assert_eq!(closed.load(Ordering::Relaxed), u32::from(is_told), "{place:?}");
        drop(host);
        // A panic in a function that only reads the engine leaks it.
        assert_eq!(is_closed(&peer), place != Place::NextDeadline, "{place:?}");
    }
}

/// Goal: a panic in a new waiter's own poll is that waiter's alone. Method: the first poll panics, later ones do not.
#[test]
fn a_panic_in_the_poll_of_a_new_waiter() {
    let (server, mut driver) = server();
    let (engine, peer, _) = fragile(Place::TakeOfNew);
    let host =
        EngineHost::new(&server, engine, Registration::named("fragile")).expect("registered");
    let error = provoke(Place::TakeOfNew, &host, &peer, &mut driver);
    assert!(matches!(error, Some(WaitError::Panicked { .. })), "{error:?}");
    host.with(|engine| engine.number = Some(5));
    assert_eq!(finish(&mut driver, host.wait(0)).expect("it goes on"), 5);
}

/// Goal: a panic in a caller's closure is the caller's, and so is one by using the host inside. Method: both; then go on.
#[test]
fn a_panic_in_a_call() {
    let (server, mut driver) = server();
    let host = numbers(&server);
    let panicked = |call: &dyn Fn()| std::panic::catch_unwind(AssertUnwindSafe(call)).is_err();
    assert!(panicked(&|| host.with(|_| panic!("of the caller"))));
    assert!(panicked(&|| host.with(|_| host.with(|_| ()))));
    host.with(|engine| engine.ready.push_back(1));
    assert_eq!(finish(&mut driver, host.wait(())).expect("it goes on"), 1);
}

/// Goal: a server that ends ends the waits, tells the engine once, and leaves it usable by calls. Method: shut down with a
/// wait and a stream; then drop everything.
#[test]
fn a_server_that_ends() {
    let (server, mut driver) = server();
    let (engine, peer, closed) = fragile(Place::Nowhere);
    let host =
        EngineHost::new(&server, engine, Registration::named("fragile")).expect("registered");
    let mut wait = Box::pin(host.wait(0));
    let events = host.events(1).expect("the server is there");
    assert!(poll(wait.as_mut()).is_pending());
    driver.detect();
    server.shutdown();
    assert!(matches!(poll(wait.as_mut()), Poll::Ready(Err(WaitError::ServerClosed))));
    let cx = Context::from_waker(Waker::noop());
    let end = events.poll_next(&cx);
    assert!(matches!(end, Poll::Ready(Some(Err(WaitError::ServerClosed)))));
    assert!(matches!(poll(pin!(host.wait(0))), Poll::Ready(Err(WaitError::ServerClosed))));
    assert_eq!(closed.load(Ordering::Relaxed), 1);
    host.with(|engine| engine.number = Some(1));
    assert_eq!(host.try_take(&0), Some(1));
    drop((wait, events));
    drop(host);
    assert!(is_closed(&peer));
    assert_eq!(closed.load(Ordering::Relaxed), 1);
}

/// Goal: the last user ends the engine, even if it is a stream. Method: drop the host first.
#[test]
fn a_host_that_is_dropped() {
    let (server, mut driver) = server();
    let (engine, peer, closed) = fragile(Place::Nowhere);
    let host =
        EngineHost::new(&server, engine, Registration::named("fragile")).expect("registered");
    let events = host.events(1).expect("the server is there");
    drop(host);
    driver.detect();
    assert_eq!(closed.load(Ordering::Relaxed), 0);
    drop(events);
    driver.detect();
    assert_eq!(closed.load(Ordering::Relaxed), 1);
    assert!(is_closed(&peer));
}

/// Goal: a descriptor that cannot be watched refuses the registration, and everything is freed. Method: a regular file.
#[test]
fn a_descriptor_that_is_refused() {
    let (server, _driver) = server();
    let (mut engine, peer, _) = fragile(Place::Nowhere);
    engine.file = Some(File::open("/proc/self/exe").expect("this program is a file"));
    let refused = EngineHost::new(&server, engine, Registration::named("fragile"));
    assert!(matches!(refused, Err(RegisterError::Attach(_))));
    assert!(is_closed(&peer));
}

/// An engine whose socket changes after each arming.
struct Changing {
    sockets: Vec<OwnedFd>,
    generation: u32,
    told: Vec<u32>,
}

impl Engine for Changing {
    type Request = ();
    type Output = u32;

    fn take(&mut self, (): &()) -> Option<u32> {
        self.told.pop()
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        if self.sockets.len() > 1 {
            self.sockets.remove(0);
            self.generation += 1;
        }
        Ok(ArmOutcome::Armed)
    }

    fn notified(&mut self, ready_events: &[PollerEvent]) {
        self.told.extend(ready_events.iter().map(|ready_event| ready_event.key));
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        if let Some(socket) = self.sockets.first() {
            let named = WatchedDescriptor::readable(socket.as_fd());
            each(named.key(self.generation % 2).generation(self.generation));
        }
    }
}

/// Goal: a descriptor that replaces another one is watched, and the old one is not. Method: write to the old peer and to the new
/// one.
#[test]
fn descriptors_that_change() {
    let (server, mut driver) = server();
    let (old, old_peer) = UnixStream::pair().expect("a pair");
    let (new, new_peer) = UnixStream::pair().expect("a pair");
    let engine =
        Changing { sockets: vec![old.into(), new.into()], generation: 0, told: Vec::new() };
    let host = EngineHost::new(&server, engine, Registration::named("changing"));
    let host = host.expect("registered");
    let mut wait = Box::pin(host.wait(()));
    assert!(poll(wait.as_mut()).is_pending());
    driver.detect();
    // Arms, and changes.
    prepare(&mut driver);
    let _ = rustix::io::write(&old_peer, b"x");
    driver.detect();
    assert!(poll(wait.as_mut()).is_pending(), "the old one is not watched");
    assert_eq!(rustix::io::write(&new_peer, b"x").ok(), Some(1));
    assert_eq!(finish_boxed(&mut driver, wait), 1);
}

/// An engine that has a socket, and decides whether it is watched.
struct Pausing {
    socket: OwnedFd,
    is_watched: bool,
    told: u32,
    worked: u32,
    waker: Waker,
}

impl Engine for Pausing {
    type Request = ();
    type Output = u32;

    fn take(&mut self, (): &()) -> Option<u32> {
        (self.told > 0).then(|| mem::take(&mut self.told))
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::Armed)
    }

    fn notified(&mut self, _: &[PollerEvent]) {
        self.told += 1;
    }

    fn progress(&mut self, _: &EngineContext<'_>) -> Progress {
        self.worked += 1;
        Progress::Done
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        each(WatchedDescriptor::readable(self.socket.as_fd()).watched(self.is_watched));
    }

    fn attach(&mut self, notifier: Notifier) -> io::Result<()> {
        self.waker = Waker::from(Arc::new(notifier));
        Ok(())
    }
}

/// A server with such an engine, kept running, and the socket's peer.
fn pausing() -> (Server, Driver, EngineHost<Pausing>, UnixStream) {
    let (server, driver) = server();
    let (socket, peer) = UnixStream::pair().expect("a pair");
    let waker = Waker::noop().clone();
    let engine = Pausing { socket: socket.into(), is_watched: true, told: 0, worked: 0, waker };
    let host = EngineHost::new(&server, engine, Registration::named("pausing"));
    let host = host.expect("registered");
    host.run_in_background().expect("the server is there");
    (server, driver, host, peer)
}

/// Goal: a named but unwatched descriptor announces nothing until it is watched again, which needs no other descriptor and
/// announces what is there already. Method: write while it is watched, and while it is not; the engine closes its own meanwhile,
/// so that the host's duplicate is watched again.
#[test]
fn a_descriptor_that_pauses() {
    let (_server, mut driver, host, peer) = pausing();
    let told = |driver: &mut Driver| {
        assert_eq!(rustix::io::write(&peer, b"x").ok(), Some(1));
        driver.detect();
        host.try_take(&())
    };
    let watch = |driver: &mut Driver, is_watched| {
        host.post(|engine| engine.is_watched = is_watched);
        driver.detect();
        prepare(driver);
        driver.detect();
        host.try_take(&())
    };
    assert_eq!(told(&mut driver), Some(1));
    host.post(|engine| engine.is_watched = false);
    assert_eq!(told(&mut driver), Some(1), "it is told the last time");
    assert_eq!(told(&mut driver), None, "without a sleep");
    assert_eq!(watch(&mut driver, true), Some(1));
    for _ in 0..2 {
        assert_eq!(watch(&mut driver, false), None);
        assert_eq!(told(&mut driver), None);
        host.post(|engine| engine.socket = File::open("/dev/null").expect("a file").into());
        assert_eq!(watch(&mut driver, true), Some(1), "what came meanwhile");
        assert_eq!(told(&mut driver), Some(1));
    }
}

/// Goal: a notifier is a waker, so that an engine can wait for another one. Method: wake it, after the host has armed the engine.
#[test]
fn a_bell_that_is_woken() {
    let (_server, mut driver, host, _peer) = pausing();
    driver.detect();
    prepare(&mut driver);
    driver.detect();
    assert_eq!(host.try_take(&()), None, "nothing was announced");
    let (before, waker) = host.post(|engine| (engine.worked, engine.waker.clone()));
    waker.wake_by_ref();
    driver.detect();
    assert_eq!(host.post(|engine| engine.worked), before + 1);
    waker.wake();
    driver.detect();
    assert_eq!(host.post(|engine| engine.worked), before + 2);
}

fn finish_boxed<E: Engine>(
    driver: &mut Driver,
    mut wait: Pin<Box<EngineWait<'_, E>>>,
) -> E::Output {
    loop {
        if let Poll::Ready(ended) = poll(wait.as_mut()) {
            return ended.expect("no error");
        }
        if driver.detect() == Detected::Nothing {
            driver.park(None);
        }
    }
}

/// Goal: a host with spurious announcements stops watching if the engine says so, and only then; a wait makes it watch again.
/// Method: count the engine's notifications.
#[test]
fn announcements_in_vain() {
    for (vain_max, told) in [(None, 3), (Some(2), 1)] {
        let (server, mut driver) = server();
        let (mut engine, peer) = Datagrams::pair().expect("a pair");
        engine.vain_max = vain_max;
        let host = EngineHost::new(&server, engine, Registration::named("datagrams"));
        let host = host.expect("registered");
        for number in 0..3 {
            send(&peer, number);
            driver.detect();
        }
        assert_eq!(host.with(|engine| engine.told), told, "{vain_max:?}");
        for number in 0..3 {
            assert_eq!(finish(&mut driver, host.wait(())).expect("it is there"), number);
        }
        let mut wait = Box::pin(host.wait(()));
        assert!(poll(wait.as_mut()).is_pending());
        driver.detect();
        prepare(&mut driver);
        send(&peer, 3);
        assert_eq!(finish_boxed(&mut driver, wait), 3, "it is watched again");
    }
}

/// Goal: a posted call wakes the server only if it has armed the engine, and a call only if there is a waiter. Method: ask
/// the server whether a notifier was called.
#[test]
fn who_is_rung_for() {
    let (server, mut driver) = server();
    let host = numbers(&server);
    let is_notified = || server.has_announced_events(server.now());
    host.with(|_| ());
    host.post(|_| ());
    assert!(!is_notified(), "no waiter");
    let mut wait = Box::pin(host.wait(()));
    assert!(poll(wait.as_mut()).is_pending());
    driver.detect();
    host.post(|_| ());
    assert!(!is_notified(), "the host polls before it sleeps");
    host.with(|_| ());
    assert!(is_notified(), "a waiter may have got something");
    driver.detect();
    prepare(&mut driver);
    host.post(|_| ());
    assert!(is_notified(), "the host sleeps, and knows nothing of new work");
}
