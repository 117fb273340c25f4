//! The lives of servers, handles, requests and their contents: created, dropped and ended at every
//! point, nothing hangs and nothing is left behind.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[expect(dead_code, reason = "these tests use a part of it")]
mod scripted;

use std::{
    fs,
    future::Future,
    io,
    os::unix::net::UnixStream,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use scripted::{Ask, Call, Order, Script, Scripted, Stage, Told, Woken, register};
use vigie_detect::{
    AsyncFd, CancelOutcome, Decision, Detected, Fixed, Flavor, Frequency, Handle, HostThread,
    Instant, Interest, Policy, RegisterError, Registration, Server, Simulation, Situation,
    Strategy, WaitError,
    detectors::{
        channel::channel,
        doorbell::doorbell,
        readiness::{Direction, ReadinessRequest},
    },
};

use crate::kit::{child::in_child, guard::against_hang};

/// How long a test waits for operations that must not hang.
const GUARD: Duration = Duration::from_secs(30);

fn named() -> Registration {
    Registration::named("scripted")
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park_timeout(GUARD);
    }
}

/// Counts its drops.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn is_closed<T>(result: &Poll<Result<T, WaitError>>) -> bool {
    matches!(result, Poll::Ready(Err(WaitError::ServerClosed)))
}

fn script(cancel: CancelOutcome) -> Script {
    Script { cancel, ..Script::default() }
}

mod requests {
    use super::*;

    /// Goal: a future may be dropped at any point. Method: drop it after each number of polls, with
    /// its event before, after, or never; then a later request works.
    #[test]
    fn a_future_may_be_dropped_after_any_poll() {
        let mut stage = Stage::new();
        let (author, handle) =
            register(&stage.server, script(CancelOutcome::Released), named()).expect("a handle");
        let drops = Arc::new(AtomicUsize::new(0));
        let mut id = 0;
        for polls in 0..4 {
            for event_after in 0..5 {
                id += 1;
                let mut wait = handle.wait(Ask::owning(id, Dropped(Arc::clone(&drops))));
                if event_after == 0 {
                    author.script().ready.insert(id, id);
                }
                for poll in 0..polls {
                    if poll > 0 && poll == event_after {
                        author.order(Order::Complete(id, id));
                        stage.step();
                    }
                    let is_over = stage.poll(&mut wait).is_ready();
                    assert_eq!(is_over, poll == event_after);
                    if is_over {
                        break;
                    }
                }
                author.order(Order::Complete(id, id));
                stage.step();
                drop(wait);
                stage.step();
                assert_eq!(drops.swap(0, Ordering::SeqCst), 1, "the request goes, once");
                assert_eq!(handle.pending_count(), 0);
            }
        }
        let mut wait = handle.wait(Ask::new(0));
        assert!(stage.poll(&mut wait).is_pending());
        author.order(Order::Complete(0, 7));
        stage.step();
        assert!(matches!(stage.poll(&mut wait), Poll::Ready(Ok(Told { value: 7, .. }))));
    }

    #[test]
    #[should_panic(expected = "polled after it had returned its result")]
    fn a_wait_is_not_polled_after_its_result() {
        let stage = Stage::new();
        let (author, handle) =
            register(&stage.server, Script::default(), named()).expect("a handle");
        author.script().ready.insert(1, 1);
        let mut wait = handle.wait(Ask::new(1));
        assert!(stage.poll(&mut wait).is_ready());
        let _ = stage.poll(&mut wait);
    }

    /// Goal: a wait may move between tasks; the last one that polled is woken.
    #[test]
    fn the_last_waker_is_woken() {
        let mut stage = Stage::new();
        let (author, handle) =
            register(&stage.server, Script::default(), named()).expect("a handle");
        let wakers: [Arc<Woken>; 3] = Default::default();
        let mut wait = handle.wait(Ask::new(1));
        for woken in [&wakers[0], &wakers[1], &wakers[1], &wakers[2]] {
            let waker = Waker::from(Arc::clone(woken));
            let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        // Only the slot and the array hold the last waker; the others are forgotten.
        assert_eq!(wakers.each_ref().map(Arc::strong_count), [1, 1, 2]);
        author.order(Order::Complete(1, 1));
        stage.step();
        assert_eq!(wakers.each_ref().map(|woken| woken.count()), [0, 0, 1]);
        assert!(stage.poll(&mut wait).is_ready());
    }

    #[test]
    fn too_many_pending_is_an_error_and_passes() {
        let mut stage = Stage::new();
        let (author, handle) =
            register(&stage.server, Script::default(), named().max_pending(2)).expect("a handle");
        let mut first = handle.wait(Ask::new(1));
        let mut second = handle.wait(Ask::new(2));
        assert!(stage.poll(&mut first).is_pending());
        assert!(stage.poll(&mut second).is_pending());
        let third = stage.poll(&mut handle.wait(Ask::new(3)));
        assert!(matches!(third, Poll::Ready(Err(WaitError::TooManyPending { limit: 2 }))));
        let error = io::Error::from(WaitError::TooManyPending { limit: 2 });
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        // The detector was not called for it.
        assert!(!author.calls().contains(&Call::Submit(3)));
        drop(first);
        let mut fourth = handle.wait(Ask::new(4));
        assert!(stage.poll(&mut fourth).is_pending());
        author.order(Order::Complete(4, 4));
        stage.step();
        assert!(matches!(stage.poll(&mut fourth), Poll::Ready(Ok(Told { value: 4, .. }))));
    }

    /// Goal: everything is bounded. With a device that answers no cancellation, requests must not
    /// pile up without end.
    #[test]
    fn requests_in_cancellation_count_as_pending() {
        let mut stage = Stage::new();
        let registration = named().max_pending(2);
        let (author, handle) =
            register(&stage.server, script(CancelOutcome::InFlight), registration)
                .expect("a handle");
        for id in 0..2 {
            let mut wait = handle.wait(Ask::new(id));
            assert!(stage.poll(&mut wait).is_pending());
        }
        let refused = stage.poll(&mut handle.wait(Ask::new(2)));
        assert!(matches!(refused, Poll::Ready(Err(WaitError::TooManyPending { .. }))));
        author.order(Order::Finish(0));
        stage.step();
        assert!(stage.poll(&mut handle.wait(Ask::new(3))).is_pending());
    }

    /// Goal: nothing that a request or an event owns is dropped under a lock of the server. Method:
    /// the owned value calls the handle when it is dropped.
    #[test]
    fn owned_things_may_use_the_handle_when_they_are_dropped() {
        struct Curious(Handle<Scripted>, Arc<AtomicUsize>);
        impl Drop for Curious {
            fn drop(&mut self) {
                let _ = self.0.pending_count();
                self.1.fetch_add(1, Ordering::SeqCst);
            }
        }
        against_hang(|| {
            for cancel in [CancelOutcome::Released, CancelOutcome::InFlight] {
                let mut stage = Stage::new();
                let (author, handle) =
                    register(&stage.server, script(cancel), named()).expect("a handle");
                let drops = Arc::new(AtomicUsize::new(0));
                let curious = || Curious(handle.clone(), Arc::clone(&drops));

                // Completed.
                let mut wait = handle.wait(Ask::owning(1, curious()));
                assert!(stage.poll(&mut wait).is_pending());
                author.script().owned.insert(1, Box::new(curious()));
                author.order(Order::Complete(1, 1));
                stage.step();
                drop(stage.poll(&mut wait));
                assert_eq!(drops.swap(0, Ordering::SeqCst), 2);

                // Cancelled, with and without the memory in flight.
                let mut wait = handle.wait(Ask::owning(2, curious()));
                assert!(stage.poll(&mut wait).is_pending());
                drop(wait);
                author.script().owned.insert(2, Box::new(curious()));
                author.order(Order::Complete(2, 2));
                stage.step();
                author.script().owned.clear();
                assert_eq!(drops.swap(0, Ordering::SeqCst), 2);

                // A stream that is dropped with several events in it.
                let stream = handle.stream(Ask::owning(3, curious())).expect("a stream");
                for value in 10..13 {
                    author.script().owned.insert(value, Box::new(curious()));
                    author.order(Order::Emit(3, value));
                }
                stage.step();
                drop(stream);
                author.order(Order::Finish(3));
                stage.step();
                assert_eq!(drops.swap(0, Ordering::SeqCst), 4);

                // The end of the server.
                author.script().cancel = CancelOutcome::Released;
                let mut wait = handle.wait(Ask::owning(4, curious()));
                assert!(stage.poll(&mut wait).is_pending());
                stage.server.shutdown();
                assert!(is_closed(&stage.poll(&mut wait)));
                drop(wait);
                assert_eq!(drops.swap(0, Ordering::SeqCst), 1);
            }
        });
    }

    /// Goal: the end of a stream wakes its waiter before the host sleeps. Method: the detector ends it
    /// in the poll that follows arming; the host must not sleep then.
    #[test]
    fn an_end_that_is_found_before_the_sleep_wakes_at_once() {
        let mut stage = Stage::new();
        let (author, handle) =
            register(&stage.server, Script::default(), named()).expect("a handle");
        let stream = handle.stream(Ask::new(1)).expect("a stream");
        stage.step();
        assert!(stream.poll_event(&Context::from_waker(&stage.waker())).is_pending());
        // Without a notification: the poll after arming finds it.
        author.script().orders.push_back(Order::Finish(1));
        author.calls();
        let sleeps = stage.server.metrics().sleeps;
        stage.driver.park(Some(stage.server.now() + GUARD));
        assert_eq!(author.calls().first(), Some(&Call::Arm));
        assert_eq!(stage.server.metrics().sleeps, sleeps, "the host slept over a wake-up");
        assert_eq!(stage.woken.count(), 1);
        assert!(matches!(
            stream.poll_event(&Context::from_waker(&stage.waker())),
            Poll::Ready(None)
        ));
    }

    /// Goal: requests cancelled in flight are collected under every strategy.
    #[test]
    fn a_checked_detector_completes_what_was_cancelled() {
        let mut stage = Stage::new();
        let every = Frequency::Switches(1);
        let registration = named().policy(Fixed(Strategy::CheckEach { every }));
        let (author, handle) =
            register(&stage.server, script(CancelOutcome::InFlight), registration)
                .expect("a handle");
        let drops = Arc::new(AtomicUsize::new(0));
        let mut wait = handle.wait(Ask::owning(1, Dropped(Arc::clone(&drops))));
        assert!(stage.poll(&mut wait).is_pending());
        drop(wait);
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        author.order(Order::Complete(1, 1));
        stage.step();
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        drop(handle);
    }

    #[test]
    fn a_failed_request_has_the_detectors_error() {
        let mut stage = Stage::new();
        let (author, handle) =
            register(&stage.server, Script::default(), named()).expect("a handle");
        let mut wait = handle.wait(Ask::new(1));
        let stream = handle.stream(Ask::new(2)).expect("a stream");
        assert!(stage.poll(&mut wait).is_pending());
        author.order(Order::Fail(1));
        author.order(Order::Emit(2, 5));
        author.order(Order::Fail(2));
        stage.step();
        let error = match stage.poll(&mut wait) {
            Poll::Ready(Err(error)) => io::Error::from(error),
            other => panic!("{other:?}"),
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let waker = stage.waker();
        let cx = Context::from_waker(&waker);
        // The event before the error comes first; the error is returned once.
        assert!(matches!(stream.poll_event(&cx), Poll::Ready(Some(Ok(Told { value: 5, .. })))));
        assert!(matches!(stream.poll_event(&cx), Poll::Ready(Some(Err(WaitError::Failed(_))))));
        assert!(matches!(stream.poll_event(&cx), Poll::Ready(None)));
        assert!(matches!(stream.poll_event(&cx), Poll::Ready(None)));
    }

    /// Goal: a descriptor that is no longer watched does not leave its waits behind.
    #[test]
    fn unwatching_ends_waits() {
        let mut stage = Stage::new();
        let (near, _far) = UnixStream::pair().expect("a pair of sockets");
        let readiness = stage.server.readiness().clone();
        use std::os::fd::AsFd;
        let source = readiness.watch(near.as_fd(), Interest::Both).expect("a source");
        stage.step();
        let awaited =
            || ReadinessRequest { source: Arc::clone(&source), direction: Direction::Read };
        let mut wait = readiness.wait(awaited());
        assert!(stage.poll(&mut wait).is_pending());
        readiness.unwatch(near.as_fd(), &source);
        stage.step();
        assert!(matches!(stage.poll(&mut wait), Poll::Ready(Err(WaitError::Failed(_)))));
        let late = stage.poll(&mut readiness.wait(awaited()));
        assert!(matches!(late, Poll::Ready(Err(WaitError::Failed(_)))));
    }
}

mod handles {
    use super::*;

    /// Goal: the last handle goes while a device still writes: the memory and the detector stay
    /// until the completion has arrived, then both go.
    #[test]
    fn the_last_handle_may_go_with_requests_in_flight() {
        let mut stage = Stage::new();
        let (author, handle) =
            register(&stage.server, script(CancelOutcome::InFlight), named()).expect("a handle");
        let drops = Arc::new(AtomicUsize::new(0));
        let mut wait = handle.wait_owned(Ask::owning(1, Dropped(Arc::clone(&drops))));
        assert!(stage.poll(&mut wait).is_pending());
        drop(handle);
        drop(wait);
        stage.step();
        stage.step();
        assert_eq!(drops.load(Ordering::SeqCst), 0, "the device still writes");
        assert_eq!(author.calls().iter().filter(|call| **call == Call::Cancel(1)).count(), 1);
        author.order(Order::Complete(1, 1));
        stage.step();
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        stage.step();
        assert!(author.is_alone(), "the server still holds the detector");
    }

    #[test]
    fn the_detector_goes_with_the_last_handle() {
        let mut stage = Stage::new();
        let (author, handle) =
            register(&stage.server, Script::default(), named()).expect("a handle");
        let clone = handle.clone();
        drop(handle);
        assert!(!author.is_alone());
        let mut wait = clone.wait_owned(Ask::new(1));
        drop(clone);
        assert!(stage.poll(&mut wait).is_pending());
        author.order(Order::Complete(1, 1));
        stage.step();
        assert!(stage.poll(&mut wait).is_ready());
        drop(wait);
        stage.step();
        assert!(author.is_alone());
    }

    /// Goal: a place in the table is reused, and notifications for its former owner go nowhere.
    #[test]
    fn places_are_used_again() {
        let mut stage = Stage::new();
        for _ in 0..600 {
            let (button, bell) = doorbell(&stage.server).expect("a handle");
            let mut wait = bell.wait_owned(());
            assert!(stage.poll(&mut wait).is_pending());
            button.press();
            drop((bell, wait));
            // The notifier outlives its handle.
            button.press();
            stage.driver.detect();
        }
    }

    /// Goal: a wait that is forgotten (leaked) costs its memory and nothing else.
    #[test]
    fn a_leaked_wait_is_only_leaked() {
        let mut stage = Stage::new();
        for cancel in [CancelOutcome::Released, CancelOutcome::InFlight] {
            let (author, handle) =
                register(&stage.server, script(cancel), named()).expect("a handle");
            let mut wait = handle.wait(Ask::new(1));
            assert!(stage.poll(&mut wait).is_pending());
            std::mem::forget(wait);
            let mut other = handle.wait(Ask::new(2));
            assert!(stage.poll(&mut other).is_pending());
            author.order(Order::Complete(2, 2));
            stage.step();
            assert!(stage.poll(&mut other).is_ready());
            drop(other);
            drop(handle);
            stage.step();
        }
    }
}

mod servers {
    use super::*;

    #[test]
    fn nothing_works_after_shutdown_and_says_so() {
        let stage = Stage::new();
        let (author, handle) =
            register(&stage.server, Script::default(), named()).expect("a handle");
        let timers = stage.server.timers().clone();
        assert!(!stage.server.is_closed());
        stage.server.shutdown();
        stage.server.shutdown();
        assert!(stage.server.is_closed());
        assert!(author.is_alone(), "the detector is freed");
        let refused = register(&stage.server, Script::default(), named()).map(drop);
        assert!(matches!(refused, Err(RegisterError::ServerClosed)), "{refused:?}");
        assert!(matches!(doorbell(&stage.server), Err(RegisterError::ServerClosed)));
        assert!(is_closed(&stage.poll(&mut handle.wait(Ask::new(1)))));
        assert!(matches!(handle.stream(Ask::new(1)), Err(WaitError::ServerClosed)));
        assert!(is_closed(&stage.poll(&mut timers.wait(Instant::from_nanos(0)))));
        assert!(handle.with_detector(|_| ()).is_none());
        let (near, _far) = UnixStream::pair().expect("a pair of sockets");
        let watched = AsyncFd::new_on(&stage.server, near).map(drop);
        assert_eq!(watched.map_err(|error| error.kind()), Err(io::ErrorKind::NotConnected));
    }

    /// Goal: the end of a server ends its waits, on any thread. Method: a host that sleeps, waits of
    /// all kinds on other threads.
    #[test]
    fn shutdown_from_another_thread_ends_waits() {
        against_hang(|| {
            for is_dropped in [false, true] {
                let host = Server::spawn_thread().expect("a host");
                let server = host.server().clone();
                let (_button, bell) = doorbell(&server).expect("a doorbell");
                let (_sender, receiver) = channel::<u8>(&server, 1).expect("a channel");
                let timers = server.timers().clone();
                let (started, starts) = mpsc::channel();
                let waits: Vec<thread::JoinHandle<WaitError>> = vec![
                    waiter(&started, move || async move { bell.rung().await.map(drop) }),
                    waiter(&started, move || async move { receiver.recv().await.map(drop) }),
                    waiter(&started, move || async move { timers.wait(Instant::MAX).await }),
                ];
                for _ in 0..waits.len() {
                    starts.recv().expect("the waits begin");
                }
                if is_dropped {
                    drop(host);
                } else {
                    server.shutdown();
                }
                for wait in waits {
                    let error = wait.join().expect("no panic");
                    assert!(error.is_closed(), "{error:?}");
                }
            }
        });
    }

    /// Waits on its own thread, and reports when the wait is pending.
    fn waiter<F: Future<Output = Result<(), WaitError>>>(
        started: &mpsc::Sender<()>,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> thread::JoinHandle<WaitError> {
        let started = started.clone();
        thread::spawn(move || {
            let mut wait = pin!(make());
            let mut is_started = false;
            let ended = block_on(std::future::poll_fn(|cx| {
                let polled = wait.as_mut().poll(cx);
                if !std::mem::replace(&mut is_started, true) {
                    started.send(()).expect("the test listens");
                }
                polled
            }));
            ended.expect_err("nothing happened")
        })
    }

    /// Goal: a server that goes with its last user ends the waits of the handles that are left.
    #[test]
    fn the_last_server_ends_waits() {
        let stage = Stage::new();
        let (author, handle) =
            register(&stage.server, Script::default(), named()).expect("a handle");
        let mut wait = handle.wait(Ask::new(1));
        assert!(stage.poll(&mut wait).is_pending());
        let Stage { server, driver, woken } = stage;
        let clone = server.clone();
        drop(server);
        assert_eq!(woken.count(), 0);
        drop(clone);
        assert_eq!(woken.count(), 1);
        let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop()));
        assert!(is_closed(&polled));
        drop(wait);
        assert!(author.is_alone());
        drop(driver);
    }

    /// Goal: requests that a device still writes to are waited for, and leaked after a while; one
    /// that is already being cancelled is not cancelled again.
    #[test]
    fn shutdown_waits_for_what_is_in_flight_and_leaks_it_after_that() {
        for completes in [true, false] {
            let mut stage = Stage::new();
            let (author, handle) =
                register(&stage.server, script(CancelOutcome::InFlight), named())
                    .expect("a handle");
            let drops = Arc::new(AtomicUsize::new(0));
            let mut pending = handle.wait(Ask::owning(1, Dropped(Arc::clone(&drops))));
            let mut gone = handle.wait(Ask::owning(2, Dropped(Arc::clone(&drops))));
            assert!(stage.poll(&mut pending).is_pending());
            assert!(stage.poll(&mut gone).is_pending());
            drop(gone);
            stage.step();
            // A detector that has forgotten a cancelled request would answer so now.
            author.script().cancel = CancelOutcome::InFlight;
            if completes {
                author.script().orders.extend([Order::Finish(1), Order::Complete(2, 2)]);
            }
            stage.server.shutdown();
            assert!(is_closed(&stage.poll(&mut pending)));
            drop(pending);
            assert_eq!(drops.load(Ordering::SeqCst), if completes { 2 } else { 0 });
            assert_eq!(author.is_alone(), completes);
            let cancels: Vec<_> =
                author.calls().into_iter().filter(|call| matches!(call, Call::Cancel(_))).collect();
            assert_eq!(cancels, [Call::Cancel(2), Call::Cancel(1)]);
        }
    }

    /// Goal: a detector learns of all requests before it is polled for the last time.
    #[test]
    fn shutdown_groups_before_it_polls() {
        let stage = Stage::new();
        let (author, handle) =
            register(&stage.server, script(CancelOutcome::InFlight), named()).expect("a handle");
        let mut wait = handle.wait(Ask::new(1));
        assert!(stage.poll(&mut wait).is_pending());
        author.script().orders.push_back(Order::Finish(1));
        author.calls();
        stage.server.shutdown();
        assert_eq!(author.calls(), [Call::Cancel(1), Call::Group(1), Call::Poll]);
    }

    /// Goal: registering and shutting down at the same time is an error, not a panic. Method: a policy
    /// that shuts the server down at each moment in which it is asked.
    #[test]
    fn shutdown_while_registering_is_an_error() {
        #[derive(Debug)]
        struct Closing(Server, AtomicUsize, usize);
        impl Policy for Closing {
            fn decide(&self, _: &Situation<'_>) -> Decision {
                if self.1.fetch_add(1, Ordering::SeqCst) == self.2 {
                    self.0.shutdown();
                }
                let every = Frequency::Switches(1);
                Decision { strategy: Strategy::Sleep { every }, until: Instant::MAX }
            }
        }
        for moment in 0..2 {
            let stage = Stage::new();
            let policy = Closing(stage.server.clone(), AtomicUsize::new(0), moment);
            let refused = register(&stage.server, Script::default(), named().policy(policy));
            assert!(matches!(refused.map(drop), Err(RegisterError::ServerClosed)));
        }
    }

    /// Goal: a policy is foreign code too. Method: it panics at each moment in which it is asked.
    #[test]
    fn a_policy_that_panics_is_replaced() {
        #[derive(Debug)]
        struct Panicking;
        impl Policy for Panicking {
            fn decide(&self, _: &Situation<'_>) -> Decision {
                panic!("no idea");
            }
        }
        let mut stage = Stage::new();
        let (author, handle) =
            register(&stage.server, Script::default(), named().policy(Panicking))
                .expect("a handle with the default policy");
        let mut wait = handle.wait(Ask::new(1));
        assert!(stage.poll(&mut wait).is_pending());
        author.order(Order::Complete(1, 1));
        stage.step();
        assert!(stage.poll(&mut wait).is_ready());
    }

    /// Goal: a host thread may be dropped by code that it wakes.
    #[test]
    fn a_host_thread_may_be_dropped_on_itself() {
        struct DropsHost(Mutex<Option<HostThread>>, mpsc::Sender<()>);
        impl Wake for DropsHost {
            fn wake(self: Arc<Self>) {
                drop(self.0.lock().expect("no panic").take());
                self.1.send(()).expect("the test listens");
            }
        }
        against_hang(|| {
            let host = Server::spawn_thread().expect("a host");
            let (button, bell) = doorbell(host.server()).expect("a doorbell");
            let (sender, receiver) = mpsc::channel();
            let mut wait = bell.rung();
            let waker = Waker::from(Arc::new(DropsHost(Mutex::new(Some(host)), sender)));
            assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
            button.press();
            receiver.recv().expect("the host was dropped");
            assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_ready());
        });
    }

    /// Goal: a waker is foreign code: its panic does not end the host for others.
    #[test]
    fn a_waker_that_panics_does_not_end_the_host() {
        struct Panicking;
        impl Wake for Panicking {
            fn wake(self: Arc<Self>) {
                panic!("a waker panicked");
            }
        }
        against_hang(|| {
            let host = Server::spawn_thread().expect("a host");
            let (button, bell) = doorbell(host.server()).expect("a doorbell");
            let mut bad = bell.rung();
            let waker = Waker::from(Arc::new(Panicking));
            assert!(Pin::new(&mut bad).poll(&mut Context::from_waker(&waker)).is_pending());
            button.press();
            let timers = host.server().timers().clone();
            block_on(async {
                timers.wait(host.server().now() + Duration::from_millis(1)).await?;
                button.press();
                bell.rung().await
            })
            .expect("the host lives");
        });
    }

    #[test]
    fn turning_a_closed_server_is_harmless() {
        let mut stage = Stage::new();
        let (_author, _handle) =
            register(&stage.server, Script::default(), named()).expect("a handle");
        stage.driver.detect();
        stage.server.shutdown();
        for _ in 0..3 {
            assert_eq!(stage.driver.detect(), Detected::Nothing);
            assert_eq!(stage.driver.park(Some(stage.server.now())), Detected::Nothing);
        }
    }
}

mod current {
    use super::*;

    #[test]
    fn without_a_server_the_error_says_what_to_do() {
        let error = Server::current().expect_err("none was entered");
        let text = error.to_string();
        assert!(text.contains("no vigie runtime runs here"), "{text}");
        assert!(text.contains("Server::spawn_thread"), "{text}");
        assert!(text.contains("enter"), "{text}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotConnected);
        let (near, _far) = UnixStream::pair().expect("a pair of sockets");
        let watched = AsyncFd::new(near).map(drop);
        assert_eq!(watched.map_err(|error| error.kind()), Err(io::ErrorKind::NotConnected));
    }

    #[test]
    fn servers_are_entered_like_brackets() {
        let (outer, inner) = (Stage::new().server, Simulation::new(3));
        {
            let _outer = outer.enter();
            assert_eq!(Server::current().expect("entered").flavor(), outer.flavor());
            {
                let _inner = inner.server().enter();
                assert_eq!(Instant::now(), Instant::from_nanos(0), "the inner clock");
            }
            assert!(Instant::now() > Instant::from_nanos(0), "the outer clock");
            // One thread's server is no other thread's.
            let other = thread::spawn(|| Server::current().is_err());
            assert!(other.join().expect("no panic"));
        }
        assert!(Server::current().is_err());
    }

    /// Goal: the last server may be dropped with the guard that holds it.
    #[test]
    fn the_bracket_may_be_the_last_user() {
        let server = Server::new(Flavor::Hybrid).expect("an epoll");
        let (_button, bell) = doorbell(&server).expect("a doorbell");
        let mut wait = bell.rung();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut wait).poll(&mut cx).is_pending());
        let entered = server.enter();
        drop(server);
        assert!(Pin::new(&mut wait).poll(&mut cx).is_pending());
        drop(entered);
        assert!(is_closed(&Pin::new(&mut wait).poll(&mut cx)));
    }
}

mod descriptors {
    use super::*;

    /// Goal: servers leave no descriptor behind, however they end. Method: a process of its own, so that
    /// no other test opens any, which counts `/proc/self/fd`.
    #[test]
    fn no_descriptor_is_left() {
        in_child("descriptors::no_descriptor_is_left", || {
            // Everything that std and the test harness open once and keep.
            lives();
            let before = (open_count(), thread_count());
            for _ in 0..25 {
                lives();
            }
            assert_eq!((open_count(), thread_count()), before);
        });
    }

    fn open_count() -> usize {
        fs::read_dir("/proc/self/fd").expect("procfs").count()
    }

    fn thread_count() -> usize {
        fs::read_dir("/proc/self/task").expect("procfs").count()
    }

    /// One server for each way to end.
    fn lives() {
        // With nothing in it.
        drop(Stage::new());
        // With a handle that outlives it, waits and watched descriptors.
        let mut stage = Stage::new();
        let (_author, handle) =
            register(&stage.server, Script::default(), named()).expect("a handle");
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let near = AsyncFd::new_on(&stage.server, near).expect("a watched descriptor");
        let mut wait = handle.wait_owned(Ask::new(1));
        assert!(stage.poll(&mut wait).is_pending());
        stage.step();
        drop(stage);
        drop((near, far, wait, handle));
        // A host thread that sleeps when it ends, with handles registered and gone.
        let host = Server::spawn_thread().expect("a host");
        let (button, bell) = doorbell(host.server()).expect("a doorbell");
        button.press();
        block_on(bell.rung()).expect("a ring");
        let (sender, receiver) = channel::<u8>(host.server(), 1).expect("a channel");
        drop(host);
        drop((button, bell, sender, receiver));
        // Shut down by another thread than its host, in every order of the three.
        for order in 0..3 {
            let host = Server::spawn_thread().expect("a host");
            let server = host.server().clone();
            let timers = server.timers().clone();
            let mut wait = timers.wait(Instant::MAX);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut wait).poll(&mut cx).is_pending());
            match order {
                0 => {
                    server.shutdown();
                    drop(host);
                }
                1 => drop(host),
                _ => {
                    let thread = thread::spawn(move || drop(server));
                    drop(host);
                    thread.join().expect("no panic");
                }
            }
        }
        // A driver that outlives its server, and one that was driving it when it ended.
        let Stage { server, mut driver, .. } = Stage::new();
        let doorbell = doorbell(&server).expect("a doorbell");
        driver.detect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                driver.park(None);
            }
        });
        while server.metrics().sleeps == 0 {
            thread::yield_now();
        }
        stop.store(true, Ordering::SeqCst);
        // The last user goes while the host sleeps, and the host goes as it wakes.
        drop(server);
        thread.join().expect("no panic");
        drop(doorbell);
        // Virtual ones have none to leave.
        drop(Simulation::new(1));
    }
}
