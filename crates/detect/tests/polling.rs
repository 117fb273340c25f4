//! Hosts that poll before they sleep, and what looks are for.

use std::{
    future::Future,
    io::Write,
    os::{fd::AsFd, unix::net::UnixStream},
    pin::pin,
    sync::mpsc,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use vigie_detect::{
    Detected, Fixed, Flavor, Frequency, Interest, Server, Strategy,
    stock::readiness::{Awaited, Direction},
};

/// How long a test waits for what must not hang.
const GUARD: Duration = Duration::from_secs(30);

/// Runs `test` on a thread of its own; a hang becomes a failure.
fn guarded(test: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        sender.send(()).expect("the test waits");
    });
    match receiver.recv_timeout(GUARD) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        _ => thread.join().expect("the test failed"),
    }
}

/// Polls for an hour before it sleeps.
fn poll_long() -> Fixed {
    let every = Frequency::Time(Duration::from_micros(50));
    Fixed(Strategy::PollThenSleep { every, spin: Duration::from_secs(3600) })
}

/// Goal: a host that polls before its sleep is called away from it like a sleeper. Method: each
/// way to call it, while it polls for an hour or is about to.
#[test]
fn a_polling_host_is_called_away() {
    let calls: [fn(&Server); 2] = [Server::unpark, Server::shutdown];
    for call in calls {
        guarded(move || {
            let server =
                Server::with_readiness_policy(Flavor::Hybrid, poll_long()).expect("a server");
            let mut lookout = server.lookout();
            // Takes over what has changed: a strategy is known to the look after.
            lookout.detect();
            let host = thread::spawn(move || lookout.park(None));
            call(&server);
            host.join().expect("no panic");
        });
    }
}

/// Goal: an event that comes while the host polls is delivered then, not after it. Method: a
/// socket that is written to while the host polls for an hour.
#[test]
fn a_polling_host_sees_events() {
    guarded(|| {
        let server = Server::with_readiness_policy(Flavor::Hybrid, poll_long()).expect("a server");
        let entered = server.enter();
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("it can be non-blocking");
        let source =
            server.readiness().watch(ours.as_fd(), Interest::Readable).expect("it is watched");
        let awaited = Awaited { source, direction: Direction::Read };
        let mut wait = pin!(server.readiness().wait(awaited));
        let waker = Waker::noop();
        assert!(wait.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        let mut lookout = server.lookout();
        lookout.detect();
        let host = thread::spawn(move || lookout.park(None));
        (&theirs).write_all(b"x").expect("there is room");
        assert_eq!(host.join().expect("no panic"), Detected::Events(1));
        assert!(wait.as_mut().poll(&mut Context::from_waker(waker)).is_ready());
        drop(entered);
    });
}

/// Goal: looks while tasks run are for watched descriptors alone; bells and deadlines say by
/// themselves when one is due. Method: a server with timers only, which then watches a socket.
#[test]
fn looks_are_for_what_is_watched() {
    let server = Server::new(Flavor::UserLevel).expect("a server");
    let mut lookout = server.lookout();
    lookout.detect();
    let later = server.now() + Duration::from_secs(3600);
    assert!(!lookout.is_due(later), "nobody asked for looks");
    let deadline = later + Duration::from_secs(1);
    let slack = Duration::from_millis(3);
    let mut sleep = pin!(server.timers().wait(deadline).slack(slack));
    let waker = Waker::noop();
    assert!(sleep.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    lookout.detect();
    assert!(!lookout.is_due(later), "the deadline has not come");
    assert!(!lookout.is_due(deadline), "what runs is not disturbed before the slack is used up");
    assert!(lookout.is_due(deadline + slack));
    let (ours, _theirs) = UnixStream::pair().expect("a pair of sockets");
    let watched =
        server.readiness().watch(ours.as_fd(), Interest::Readable).expect("it is watched");
    assert!(lookout.is_due(server.now()), "what has changed is taken over at once");
    lookout.detect();
    assert!(lookout.is_due(later), "descriptors are looked for");
    server.readiness().unwatch(ours.as_fd(), &watched);
}

/// Goal: a poll in vain is one look too many, not a sleep too few: the host sleeps after it, and the
/// history knows. Method: a host that polls shortly and sleeps until a deadline, with nothing to come.
#[test]
fn a_poll_in_vain_is_recorded() {
    guarded(|| {
        let every = Frequency::Time(Duration::from_micros(50));
        let policy = Fixed(Strategy::PollThenSleep { every, spin: Duration::from_nanos(1) });
        let server = Server::with_readiness_policy(Flavor::UserLevel, policy).expect("a server");
        let mut lookout = server.lookout();
        lookout.detect();
        for count in 1..=3 {
            let until = server.now() + Duration::from_millis(1);
            assert_eq!(lookout.park(Some(until)), Detected::Nothing);
            let (history, _) = server.readiness().history();
            assert_eq!((history.spin_misses(), history.spin_hits()), (count, 0));
            assert_eq!(server.metrics().sleeps, count);
            assert!(history.spin_balance() < 0, "{history:?}");
        }
    });
}
