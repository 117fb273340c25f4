//! Waiters by name: what wakes them, and what ends them.

use std::{
    io,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use vigie_detect::{
    ArmOutcome, Driver, Engine, EngineContext, EngineHost, EngineWaiter, Instant, Progress,
    Registration, Server, WaitError,
};

use super::{
    Boxes,
    faults::{poll as poll_future, prepare, server},
    send,
};

/// Counts its wake-ups.
#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Count {
    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

fn boxes(server: &Server) -> (EngineHost<Boxes>, Arc<std::os::unix::net::UnixDatagram>) {
    let (boxes, peer) = Boxes::pair().expect("a pair");
    let host = EngineHost::new(server, boxes, Registration::named("boxes"));
    (host.expect("it is registered"), peer)
}

fn poll(
    waiter: &mut EngineWaiter<'_, Boxes>,
    name: u64,
    count: &Arc<Count>,
) -> Poll<Result<(), WaitError>> {
    let waker = Waker::from(Arc::clone(count));
    waiter.poll(&Context::from_waker(&waker), |boxes| boxes.take_one(name).then_some(()))
}

/// Goal: a call itself wakes the waiters that it has served, and no others, once; the server is not involved. Method: three
/// waiters of two names, and no poll pass of the server.
#[test]
fn calls_wake_whom_they_serve() {
    let (server, _driver) = server();
    let (host, _peer) = boxes(&server);
    let counts: [Arc<Count>; 3] = Default::default();
    let names = [1, 1, 2];
    let mut waiters = names.map(|name| host.waiter(name));
    for ((waiter, name), count) in waiters.iter_mut().zip(names).zip(&counts) {
        assert!(poll(waiter, name, count).is_pending());
    }
    assert_eq!(host.waiter_count(), 3);
    host.with(|boxes| boxes.put(1));
    host.post(|_| ());
    assert_eq!(counts.each_ref().map(|count| count.get()), [1, 1, 0]);
    assert_eq!(host.waiter_count(), 1);
    assert!(matches!(poll(&mut waiters[1], 1, &counts[1]), Poll::Ready(Ok(()))));
    assert!(poll(&mut waiters[0], 1, &counts[0]).is_pending(), "there was one for both");
    host.post(|boxes| (boxes.put(1), boxes.put(2)));
    assert_eq!(counts.each_ref().map(|count| count.get()), [2, 1, 1]);
    assert!(matches!(poll(&mut waiters[0], 1, &counts[0]), Poll::Ready(Ok(()))));
    assert!(matches!(poll(&mut waiters[2], 2, &counts[2]), Poll::Ready(Ok(()))));
    assert_eq!(host.waiter_count(), 0);
    host.post(|boxes| boxes.put(1));
    assert_eq!(counts.each_ref().map(|count| count.get()), [2, 1, 1], "no waiter");
}

/// Goal: a poll for a want wakes the waiters that it serves besides, and so does the first poll of a wait, through the
/// server. Method: a datagram that both could have.
#[test]
fn polls_wake_whom_they_serve() {
    let (server, mut driver) = server();
    let (host, peer) = boxes(&server);
    let count = Arc::default();
    let mut waiter = host.waiter(7);
    assert!(poll(&mut waiter, 7, &count).is_pending());
    send(&peer, 7);
    assert_eq!(host.try_take(&()), Some(7));
    assert_eq!(count.get(), 1);
    assert!(matches!(poll(&mut waiter, 7, &count), Poll::Ready(Ok(()))));
    assert!(poll(&mut waiter, 7, &count).is_pending());
    send(&peer, 7);
    assert!(matches!(poll_future(pin!(host.wait(()))), Poll::Ready(Ok(7))));
    assert_eq!(count.get(), 1, "the server wakes, once its locks are released");
    driver.detect();
    assert_eq!(count.get(), 2);
}

/// Goal: a waiter that leaves gives up only its own place. Method: the first of two leaves before it is served, and the first of
/// two others after it was, when another task waits under its name.
#[test]
fn waiters_that_leave() {
    let (server, _driver) = server();
    let (host, _peer) = boxes(&server);
    let [first, second, third]: [Arc<Count>; 3] = Default::default();
    let (mut leaver, mut stays) = (host.waiter(1), host.waiter(1));
    assert!(poll(&mut leaver, 1, &first).is_pending() && poll(&mut stays, 1, &second).is_pending());
    drop(leaver);
    host.post(|boxes| boxes.put(1));
    assert_eq!((first.get(), second.get()), (0, 1));
    // Served, and gone without a poll.
    let mut late = host.waiter(1);
    assert!(matches!(poll(&mut late, 1, &third), Poll::Ready(Ok(()))));
    assert!(poll(&mut late, 1, &third).is_pending());
    drop(stays);
    assert_eq!(host.waiter_count(), 1);
    host.post(|boxes| boxes.put(1));
    assert_eq!(third.get(), 1);
}

/// Goal: more waiters than a round may report are all woken, in rounds. Method: a thousand, and a batch of ten.
#[test]
fn many_waiters() {
    let (server, mut driver) = server();
    let (boxes, _peer) = Boxes::pair().expect("a pair");
    let registration = Registration::named("boxes").batch(10);
    let host = EngineHost::new(&server, boxes, registration).expect("registered");
    let count = Arc::default();
    let mut waiters: Vec<_> = (0..1000).map(|name| host.waiter(name)).collect();
    for (waiter, name) in waiters.iter_mut().zip(0..) {
        assert!(poll(waiter, name, &count).is_pending());
    }
    driver.detect();
    prepare(&mut driver);
    host.post(|boxes| boxes.posted.extend(0..1000));
    driver.detect();
    assert_eq!(count.get(), 10, "a round is bounded");
    // A call does not wait for the rounds to come.
    host.post(|boxes| boxes.put(5000));
    assert_eq!(count.get(), 1000);
    for (waiter, name) in waiters.iter_mut().zip(0..) {
        assert!(matches!(poll(waiter, name, &count), Poll::Ready(Ok(()))), "{name}");
    }
}

/// Goal: a call makes a sleeping server poll only for what the engine reports: silent work, and news if there is a waiter for
/// a want. Method: ask the server whether a notifier was called.
#[test]
fn who_is_rung_for() {
    let (server, mut driver) = server();
    let (host, _peer) = boxes(&server);
    host.run_in_background().expect("the server is there");
    let is_notified = || server.has_announced_events(server.now());
    let asleep = |driver: &mut Driver| {
        driver.detect();
        prepare(driver);
        driver.detect();
        prepare(driver);
    };
    asleep(&mut driver);
    host.post(|_| ());
    host.post(|boxes| boxes.arrived.push_back(1));
    host.post(|boxes| boxes.put(1));
    assert!(!is_notified(), "there is nothing to do, and no waiter");
    host.post(|boxes| boxes.posted.push(1));
    assert!(is_notified(), "there is work");
    host.post(|boxes| boxes.arrived.clear());
    let mut wait = pin!(host.wait(()));
    assert!(poll_future(wait.as_mut()).is_pending());
    asleep(&mut driver);
    host.post(|_| ());
    assert!(!is_notified(), "there is nothing new");
    host.post(|boxes| boxes.arrived.push_back(1));
    assert!(is_notified(), "there is a waiter for it");
    driver.detect();
    assert!(matches!(poll_future(wait), Poll::Ready(Ok(1))));
}

/// An engine that panics where it is told to, once it has been waited for.
struct Brittle {
    place: Option<&'static str>,
    served: Vec<u64>,
    deadline: Option<Instant>,
}

impl Brittle {
    fn trip(&self, place: &str) {
        assert_ne!(self.place, Some(place), "tripped");
    }
}

impl Engine for Brittle {
    type Request = ();
    type Output = ();

    fn take(&mut self, (): &()) -> Option<()> {
        None
    }

    fn progress(&mut self, _: &EngineContext<'_>) -> Progress {
        self.trip("progress");
        Progress::Done
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        self.trip("arm");
        if self.place == Some("an error") {
            return Err(io::Error::other("no arming"));
        }
        Ok(ArmOutcome::Armed)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.trip("next_deadline");
        self.deadline
    }

    fn served(&mut self, names: &mut Vec<u64>) {
        self.trip("served");
        names.append(&mut self.served);
    }

    fn has_served(&self) -> bool {
        !self.served.is_empty()
    }

    fn has_unannounced_work(&self) -> bool {
        self.trip("has_unannounced_work");
        false
    }

    fn has_new_events(&self) -> bool {
        self.trip("has_new_events");
        false
    }
}

/// Goal: a panic or an error in a function of the engine ends all waiters with one typed error, wherever it meets the host: in
/// the server, or on the thread of a caller, which gets what it called for. Method: one place after the other, with a waiter by
/// name and one for a want.
#[test]
fn an_engine_that_fails() {
    for place in [
        "progress",
        "arm",
        "an error",
        "next_deadline",
        "served",
        "has_unannounced_work",
        "has_new_events",
    ] {
        let (server, mut driver) = server();
        let engine = Brittle { place: None, served: Vec::new(), deadline: None };
        let host = EngineHost::new(&server, engine, Registration::named("brittle"));
        let host = host.expect("registered");
        let (count, waker) = {
            let count = Arc::new(Count::default());
            (Arc::clone(&count), Waker::from(count))
        };
        let cx = Context::from_waker(&waker);
        let mut waiter = host.waiter(1);
        let mut wait = pin!(host.wait(()));
        assert!(poll_future(wait.as_mut()).is_pending());
        assert!(waiter.poll(&cx, |_| None::<()>).is_pending());
        driver.detect();
        prepare(&mut driver);
        let answer = host.post(|engine| {
            engine.place = Some(place);
            engine.served.extend((place == "served").then_some(2));
            42
        });
        assert_eq!(answer, 42, "{place}: the caller has what it called for");
        if matches!(place, "progress" | "arm" | "an error") {
            // These meet the server, which sleeps.
            host.with(|_| ());
        }
        for _ in 0..10 {
            driver.detect();
            prepare(&mut driver);
        }
        let is_typed = |error: &WaitError| match place {
            "an error" => matches!(error, WaitError::Failed(_)),
            _ => {
                matches!(error, WaitError::Panicked { message, .. } if message.contains("tripped"))
            }
        };
        assert!(count.get() > 0, "{place}: it is woken");
        assert!(!waiter.renew_waker(&cx), "{place}");
        for mut waiter in [waiter, host.waiter(3)] {
            let ended = waiter.poll(&cx, |_| None::<()>);
            assert!(
                matches!(&ended, Poll::Ready(Err(error)) if is_typed(error)),
                "{place}: {ended:?}"
            );
            let found = waiter.poll(&cx, |_| Some(9));
            assert!(matches!(found, Poll::Ready(Ok(9))), "{place}: a poll still reaches it");
        }
        let ended = poll_future(wait);
        assert!(matches!(&ended, Poll::Ready(Err(error)) if is_typed(error)), "{place}: {ended:?}");
        assert_eq!((host.post(|_| 43), host.waiter_count()), (43, 0));
    }
}

/// Goal: a panic in a waiter's own poll is that caller's alone. Method: panic in a first poll and in a later one; then go on.
#[test]
fn a_panic_in_a_poll() {
    let (server, _driver) = server();
    let (host, _peer) = boxes(&server);
    let count = Arc::default();
    let mut waiter = host.waiter(1);
    for _ in 0..2 {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let _ = waiter.poll(&Context::from_waker(Waker::noop()), |_| -> Option<()> {
                panic!("of the caller")
            });
        }));
        assert!(polled.is_err());
        assert!(poll(&mut waiter, 1, &count).is_pending());
    }
    host.post(|boxes| boxes.put(1));
    assert!(matches!(poll(&mut waiter, 1, &count), Poll::Ready(Ok(()))));
}

/// A waker that uses the host, as one may whose task is dropped with it.
struct Calls(EngineHost<Boxes>, AtomicU32);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.0.post(|_| ());
    }
}

/// Goal: wakers are dropped with the engine unlocked. Method: wakers that call the host as they are dropped: replaced, left behind,
/// woken.
#[test]
fn wakers_that_call() {
    let (server, _driver) = server();
    let (host, _peer) = boxes(&server);
    let calls = || Waker::from(Arc::new(Calls(host.clone(), AtomicU32::new(0))));
    let mut waiter = host.waiter(1);
    for _ in 0..2 {
        let polled = waiter.poll(&Context::from_waker(&calls()), |_| None::<()>);
        assert!(polled.is_pending());
        assert!(waiter.renew_waker(&Context::from_waker(&calls())));
    }
    host.post(|boxes| boxes.put(1));
    assert!(waiter.poll(&Context::from_waker(&calls()), |_| None::<()>).is_pending());
    let polled =
        waiter.poll(&Context::from_waker(Waker::noop()), |boxes| boxes.take_one(1).then_some(()));
    assert!(matches!(polled, Poll::Ready(Ok(()))));
    assert!(waiter.poll(&Context::from_waker(&calls()), |_| None::<()>).is_pending());
    drop(waiter);
}

/// An engine that uses another one in its work, as a barrier over messages does.
struct Outer(EngineHost<Boxes>, Arc<Count>);

impl Engine for Outer {
    type Request = ();
    type Output = ();

    fn take(&mut self, (): &()) -> Option<()> {
        None
    }

    fn progress(&mut self, _: &EngineContext<'_>) -> Progress {
        let before = self.1.get();
        self.0.post(|boxes| boxes.put(1));
        assert_eq!(self.1.get(), before, "a lock of the server is held");
        Progress::Done
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::Armed)
    }
}

/// Goal: waiters served by a call that another detector makes, under its lock, are woken by the server, without a lock. Method: an
/// engine within another one.
#[test]
fn calls_inside_a_callback_wake_nobody_themselves() {
    let (server, mut driver) = server();
    let (host, _peer) = boxes(&server);
    let count = Arc::default();
    let mut waiter = host.waiter(1);
    assert!(poll(&mut waiter, 1, &count).is_pending());
    let outer = Outer(host.clone(), Arc::clone(&count));
    let outer = EngineHost::new(&server, outer, Registration::named("outer")).expect("registered");
    let mut wait = pin!(outer.wait(()));
    assert!(poll_future(wait.as_mut()).is_pending());
    for _ in 0..2 {
        driver.detect();
    }
    assert!(poll_future(wait).is_pending(), "it has not panicked");
    assert_eq!(count.get(), 1);
    assert!(matches!(poll(&mut waiter, 1, &count), Poll::Ready(Ok(()))));
}

/// Goal: an engine that is kept running works without waiters, even after a sleep, and no longer than its host lives. Method:
/// posted work, datagrams, and checks of what the engine has.
#[test]
fn work_without_waiters() {
    let (server, mut driver) = server();
    let (host, peer) = boxes(&server);
    host.post(|boxes| boxes.posted.push(1));
    driver.detect();
    prepare(&mut driver);
    driver.detect();
    assert_eq!(host.with(|boxes| boxes.numbers.len()), 0, "it was not asked to");
    host.run_in_background().expect("the server is there");
    host.run_in_background().expect("once is enough");
    for name in 2..4 {
        send(&peer, name);
        driver.detect();
        driver.park(Some(server.now() + Duration::from_millis(10)));
        driver.detect();
        assert!(host.with(|boxes| boxes.numbers.contains_key(&name)), "{name}");
    }
    assert_eq!(host.waiter_count(), 0);
    let host_twice = host.clone();
    drop(host);
    assert_eq!(host_twice.waiter_count(), 0);
    drop(host_twice);
    driver.detect();
    assert!(peer.send(&[0; 8]).is_err(), "its socket is closed");
}
