//! A process that forks without exec: how its child uses inherited objects, and the effect on the
//! parent's. Each child is a real one.

#![cfg(not(loom))]
#![expect(unsafe_code, reason = "a signal is raised")]

#[path = "../../../tests/kit/forked.rs"]
mod forked;

use std::{
    fs,
    future::Future,
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use vigie_detect::{
    ArmOutcome, AsyncFd, Detected, Detector, Driver, Engine, EngineContext, EngineHost, Flavor,
    Handle, Registration, Server, WaitError,
    detectors::{channel::channel, doorbell::doorbell, readiness::Direction, signal},
    net,
};

use crate::forked::ends_in_fork;

/// Returns the descriptors that the server's epoll watches, and their events, as reported by the
/// kernel.
fn watched(server: &Server) -> Vec<String> {
    let epoll = server.poller_fd().expect("a real poller").as_raw_fd();
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")).expect("/proc is there");
    let mut lines: Vec<_> =
        told.lines().filter(|line| line.starts_with("tfd:")).map(str::to_owned).collect();
    lines.sort();
    assert!(lines.len() >= 2, "the eventfd and the timerfd: {told}");
    lines
}

fn server() -> (Server, Driver) {
    let server = Server::new(Flavor::UserLevel).expect("an epoll");
    let driver = server.driver();
    (server, driver)
}

/// A watched end of a connection that is not ready, and the other end.
fn connection(server: &Server) -> (AsyncFd<UnixStream>, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a pair");
    for end in [&near, &far] {
        end.set_nonblocking(true).expect("it can be");
    }
    let near = AsyncFd::new_on(server, near).expect("it is watched");
    let tried = near.try_io(Direction::Read, |mut end| end.read(&mut [0]));
    assert_eq!(tried.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
    (near, far)
}

type Waiting = Pin<Box<dyn Future<Output = bool>>>;

/// A wait for `near` to be readable, which holds it.
fn reading(near: AsyncFd<UnixStream>) -> Waiting {
    Box::pin(async move { near.ready(Direction::Read).await.is_ok() })
}

fn poll(waiting: &mut Waiting) -> Poll<bool> {
    waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// A pending wait for one event of `handle`.
fn wait<D: Detector>(handle: &Handle<D>, request: D::Request) -> Waiting
where
    D::Request: 'static,
{
    let wait = handle.wait_owned(request);
    let mut waiting: Waiting = Box::pin(async move { wait.await.is_ok() });
    assert_eq!(poll(&mut waiting), Poll::Pending);
    waiting
}

/// Goal: dropping objects in a child neither unwatches nor cancels anything for the parent. Method: a
/// connection, a timer, a channel, a doorbell and a signal are waited for at the fork; the child drops
/// everything, the server last. The parent's epoll watches the same as before; then each event comes.
#[test]
fn what_a_child_drops_stays_with_the_parent() {
    let (server, mut driver) = server();
    let (near, mut far) = connection(&server);
    let (idle, _idle_far) = connection(&server);
    let (sender, receiver) = channel(&server, 1).expect("registered");
    let (button, bell) = doorbell(&server).expect("registered");
    let hangup = signal::signal(&server, signal::SignalKind::WINDOW_CHANGE).expect("registered");
    let long = server.now() + Duration::from_secs(3600);
    let mut waits = vec![reading(near), wait(&receiver, ()), wait(&bell, ()), wait(&hangup, ())];
    assert_eq!(poll(&mut waits[0]), Poll::Pending);
    let timer = wait(server.timers(), long);
    let before = watched(&server);
    let handles = (receiver, bell, hangup);
    let mut held = Some((waits, timer, idle, sender, button, handles, server));
    assert!(ends_in_fork(|| drop(held.take())), "the child hangs or panics");

    let (mut waits, timer, _idle, sender, button, _handles, server) = held.expect("it is ours");
    assert_eq!(watched(&server), before);
    assert_eq!(server.timers().pending_count(), 1);
    drop(timer);
    far.write_all(b"ahoy").expect("there is room");
    sender.try_send(1).expect("there is room");
    button.press();
    // SAFETY: the signal has a handler, and goes to this thread alone.
    assert_eq!(unsafe { libc::raise(libc::SIGWINCH) }, 0);
    assert!(matches!(driver.detect(), Detected::Events(_)));
    for waiting in &mut waits {
        assert_eq!(poll(waiting), Poll::Ready(true));
    }
}

/// Goal: a child that waits for an inherited descriptor gets an error at once, from each kind of wait. Method: one that
/// is not ready; a wait that was pending at the fork, and new ones.
#[test]
fn a_child_does_not_wait_for_what_it_inherits() {
    let (server, _driver) = server();
    let (near, _far) = connection(&server);
    let near = Arc::new(near);
    let waited = Arc::clone(&near);
    let mut pending: Waiting =
        Box::pin(async move { waited.async_io(Direction::Read, |_| Ok(())).await.is_ok() });
    assert_eq!(poll(&mut pending), Poll::Pending);
    let ended = ends_in_fork(|| {
        assert_eq!(poll(&mut pending), Poll::Ready(false));
        let polled = near.poll_ready(Direction::Read, &Context::from_waker(Waker::noop()));
        let Poll::Ready(Err(error)) = polled else { panic!("it waits") };
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        let waited = Arc::clone(&near);
        // There is room, but the server is the parent's.
        let mut late: Waiting =
            Box::pin(async move { waited.ready(Direction::Write).await.is_ok() });
        assert_eq!(poll(&mut late), Poll::Ready(false));
    });
    assert!(ended, "the child hangs or panics");
    assert_eq!(poll(&mut pending), Poll::Pending);
}

/// Goal: a child does not hang at a lock held at the fork. Method: fork under the lock of a handle; the
/// child drops waits, streams and clones of that handle, and its server.
#[test]
fn a_child_waits_for_no_lock() {
    let (server, mut driver) = server();
    let (near, mut far) = connection(&server);
    let timers = server.timers().clone();
    let readiness = server.readiness().clone();
    let mut held = Some((near, wait(&timers, server.now() + Duration::from_secs(1)), server));
    let ended =
        readiness.with_detector(|_| timers.with_detector(|_| ends_in_fork(|| drop(held.take()))));
    assert_eq!(ended, Some(Some(true)), "the child hangs or panics");
    let (near, _timer, _server) = held.expect("it is ours");
    far.write_all(b"ahoy").expect("there is room");
    assert!(matches!(driver.detect(), Detected::Events(_)));
    assert_eq!(poll(&mut reading(near)), Poll::Ready(true));
}

struct Mailbox(Vec<u8>);

impl Engine for Mailbox {
    type Request = ();
    type Output = u8;

    fn take(&mut self, (): &()) -> Option<u8> {
        self.0.pop()
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::Armed)
    }
}

/// Goal: a child recognizes an engine that it must not call, and waits for none of its locks. Method: fork under the
/// lock of an engine; the child checks, waits, and drops everything.
#[test]
fn a_child_knows_the_engines_of_its_parent() {
    let (server, _driver) = server();
    let registration = Registration::named("mailbox");
    let mailbox = EngineHost::new(&server, Mailbox(vec![7]), registration).expect("registered");
    assert!(!mailbox.is_inherited());
    let mut held = Some((mailbox.clone(), server));
    // Waits, and keeps the engine working.
    let waiting = mailbox.clone();
    let mut waiter = waiting.waiter(1);
    let cx = Context::from_waker(Waker::noop());
    assert!(waiter.poll(&cx, |_| None::<()>).is_pending());
    let mut waiters = Some(waiter);
    let ended = mailbox.with(|_| {
        ends_in_fork(|| {
            let (mailbox, server) = held.take().expect("copied");
            assert!(mailbox.is_inherited());
            let waiter = mailbox.clone();
            let mut waiting: Waiting = Box::pin(async move { waiter.wait(()).await.is_ok() });
            assert_eq!(poll(&mut waiting), Poll::Ready(false));
            let cx = Context::from_waker(Waker::noop());
            let later = mailbox.waiter(1).poll(&cx, |_| Some(()));
            assert!(matches!(later, Poll::Ready(Err(WaitError::ServerClosed))));
            let mut by_name = waiters.take().expect("copied");
            assert!(!by_name.renew_waker(&cx));
            let ended = by_name.poll(&cx, |_| Some(()));
            assert!(matches!(ended, Poll::Ready(Err(WaitError::ServerClosed))));
            drop((by_name, waiting, mailbox, server));
        })
    });
    assert!(ended, "the child hangs or panics");
    assert!(waiters.is_some_and(|waiter| waiter.renew_waker(&cx)), "it is still the parent's");
    assert_eq!(mailbox.try_take(&()), Some(7), "it is still the parent's");
}

/// Goal: a child neither joins a thread that it does not have, nor ends the parent's. Method: it drops the
/// thread that hosts a server, and the parent uses it.
#[test]
fn a_child_leaves_the_host_thread() {
    let host = Server::spawn_thread().expect("a thread");
    let (button, bell) = doorbell(host.server()).expect("registered");
    let mut held = Some(host);
    assert!(ends_in_fork(|| drop(held.take())), "the child hangs or panics");
    let host = held.expect("it is ours");
    assert!(!host.server().is_closed() && !host.server().is_inherited());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    button.press();
    runtime.block_on(bell.rung()).expect("the thread runs");
}

/// Goal: a child does not end the parent's connection. Method: it drops the write half; the peer finds no
/// end of the stream, and then what the parent writes.
#[test]
fn a_child_ends_no_connection() {
    let (server, _driver) = server();
    let _entered = server.enter();
    let (near, mut far) = UnixStream::pair().expect("a pair");
    far.set_nonblocking(true).expect("it can be");
    let (read, write) = net::UnixStream::from_std(near).expect("it is watched").into_split();
    let mut held = Some((read, write));
    assert!(ends_in_fork(|| drop(held.take())), "the child hangs or panics");
    let nothing = far.read(&mut [0; 4]).map_err(|error| error.kind());
    assert_eq!(nothing, Err(io::ErrorKind::WouldBlock));
    drop(held);
    assert_eq!(far.read(&mut [0; 4]).expect("the end"), 0);
}

/// Goal: a child that uses inherited objects gets errors and changes nothing; its own server works
/// without restriction. Method: both, in one child.
#[test]
fn a_child_uses_a_server_of_its_own() {
    let (inherited, _driver) = server();
    let (timers, now) = (inherited.timers().clone(), inherited.now());
    let before = watched(&inherited);
    let ended = ends_in_fork(|| {
        assert!(inherited.is_inherited());
        let (near, _far) = UnixStream::pair().expect("a pair");
        let refused = AsyncFd::new_on(&inherited, near).expect_err("it is the parent's");
        assert_eq!(refused.kind(), io::ErrorKind::NotConnected);
        let mut waiting = Box::pin(timers.wait(now));
        let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Err(WaitError::ServerClosed))));
        assert!(doorbell(&inherited).is_err());
        inherited.unpark();
        inherited.shutdown();

        let (own, mut driver) = server();
        assert!(!own.is_inherited());
        let (near, mut far) = connection(&own);
        far.write_all(b"ahoy").expect("there is room");
        assert!(matches!(driver.detect(), Detected::Events(_)));
        assert_eq!(poll(&mut reading(near)), Poll::Ready(true));
    });
    assert!(ended, "the child hangs or panics");
    assert_eq!(watched(&inherited), before);
    assert!(!inherited.is_closed() && !inherited.has_announced_events(now));
}
