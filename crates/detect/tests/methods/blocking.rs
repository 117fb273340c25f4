//! Blocking calls on helper threads.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vigie_detect::{
    Arming, Blocker, Detector, Driver, EmitOutcome, Flavor, Handle, Key, Methods, Mode,
    PollContext, RegisterError, Registration, Server, Strategy, SubmitOutcome, WaitError,
    conformance::{
        EventIdentity, Harness, HostKinds, Profile, Rule, SetupError, Trigger, Unclaimed,
        Violation, World,
    },
    detectors::blocking::{Blocking, blocking, interruptible},
};

use crate::{kit::child::in_child, pass, seen};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Sleeps as the host until `wait` is over. The test runner ends a hang.
fn finish<F: Future + Unpin>(driver: &mut Driver, wait: &mut F) -> F::Output {
    loop {
        if let Poll::Ready(ended) = poll(wait) {
            return ended;
        }
        driver.park(None);
    }
}

/// Marks, read by a closure that blocks in `read(2)`.
struct ReadHarness {
    handle: Handle<Blocking<usize>>,
    writer: Arc<io::PipeWriter>,
}

/// Not a mark: ends the read.
const INTERRUPT: [u8; 8] = u64::MAX.to_le_bytes();

impl ReadHarness {
    fn new(world: &World) -> Result<Self, SetupError> {
        let (mut reader, writer) = io::pipe()?;
        let writer = Arc::new(writer);
        let interrupted = Arc::clone(&writer);
        let call = move || {
            let mut mark = [0; 8];
            reader.read_exact(&mut mark)?;
            Ok(if mark == INTERRUPT { None } else { Some(usize::from_le_bytes(mark)) })
        };
        let interrupt = move || {
            let _ = (&*interrupted).write_all(&INTERRUPT);
        };
        let handle = interruptible(world.server(), call, interrupt)?;
        Ok(Self { handle, writer })
    }
}

impl Harness for ReadHarness {
    type Detector = Blocking<usize>;
    const HOST_KINDS: HostKinds = HostKinds::Real;

    fn handle(&self) -> &Handle<Blocking<usize>> {
        &self.handle
    }

    fn request(&mut self, _: usize) {}

    fn trigger(&mut self, index: usize) -> Trigger {
        let writer = Arc::clone(&self.writer);
        Box::new(move || {
            // After the shutdown there may be no reader left.
            let _ = (&*writer).write_all(&index.to_le_bytes());
        })
    }

    fn identify(&mut self, _: usize, read: io::Result<usize>) -> EventIdentity {
        match read {
            Ok(mark) => EventIdentity::Events(vec![mark]),
            Err(error) => EventIdentity::Nothing(error.to_string()),
        }
    }

    fn profile(&self) -> Profile {
        Profile::shared(Unclaimed::Returned)
    }

    fn stream_request(&mut self) -> Option<()> {
        Some(())
    }
}

#[test]
fn blocking_closures_conform() {
    pass("blocking::blocking_closures_conform", ReadHarness::new);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A call that starts after the event sleeps through it.
    SleepsOverEvents,
    /// Events left by a waiter are lost.
    DropsTheUnclaimed,
    /// The fifth call fails.
    Fails,
    /// The fifth call panics.
    Panics,
}

/// Letters, and a call that blocks until there is one.
struct Letterbox {
    post: Arc<Post>,
    methods: Methods,
    fault: Fault,
}

#[derive(Default)]
struct Post {
    letters: Mutex<Letters>,
    changed: Condvar,
    calls: AtomicUsize,
}

#[derive(Default)]
struct Letters {
    queue: VecDeque<usize>,
    is_interrupted: bool,
}

impl Post {
    fn drop_in(&self, letter: usize) {
        lock(&self.letters).queue.push_back(letter);
        self.changed.notify_all();
    }

    fn interrupt(&self) {
        lock(&self.letters).is_interrupted = true;
        self.changed.notify_all();
    }

    fn block(&self, fault: Fault) -> io::Result<()> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let mut letters = lock(&self.letters);
        let known = if fault == Fault::SleepsOverEvents { letters.queue.len() } else { 0 };
        while letters.queue.len() <= known && !letters.is_interrupted {
            letters = self.changed.wait(letters).unwrap_or_else(PoisonError::into_inner);
        }
        match fault {
            Fault::Fails if call == 5 => Err(io::Error::other("the fifth call")),
            Fault::Panics if call == 5 => panic!("planted: the fifth call"),
            _ => Ok(()),
        }
    }
}

impl Detector for Letterbox {
    type Request = ();
    type Event = usize;

    fn methods(&self) -> Methods {
        self.methods
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn blocker(&mut self) -> Option<Blocker> {
        let (post, called) = (Arc::clone(&self.post), Arc::clone(&self.post));
        let fault = self.fault;
        Some(Blocker::interruptible(move |_| called.block(fault), move || post.interrupt()))
    }

    fn submit(&mut self, _: Key, (): &mut (), _: Mode) -> SubmitOutcome<usize> {
        lock(&self.post.letters)
            .queue
            .pop_front()
            .map_or(SubmitOutcome::Pending, SubmitOutcome::Ready)
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        while let Some(key) = context.oldest() {
            if context.is_full() {
                return context.more();
            }
            let Some(letter) = lock(&self.post.letters).queue.pop_front() else { return };
            if let EmitOutcome::Full(letter) | EmitOutcome::Gone(letter) = context.emit(key, letter)
            {
                return lock(&self.post.letters).queue.push_front(letter);
            }
        }
    }

    fn unclaimed(&mut self, letter: usize) -> Option<usize> {
        if self.fault == Fault::DropsTheUnclaimed {
            return Some(letter);
        }
        lock(&self.post.letters).queue.push_front(letter);
        None
    }
}

/// Registers a letterbox at `server`.
fn letterbox(
    server: &Server,
    methods: Methods,
    fault: Fault,
) -> Result<(Arc<Post>, Handle<Letterbox>), RegisterError> {
    let post = Arc::new(Post::default());
    let detector = Letterbox { post: Arc::clone(&post), methods, fault };
    let registration =
        Registration::named("letterbox").policy(vigie_detect::Fixed(Strategy::Block));
    Ok((post, server.register(detector, registration)?))
}

struct LetterboxHarness {
    handle: Handle<Letterbox>,
    post: Arc<Post>,
    unclaimed: Unclaimed,
}

impl LetterboxHarness {
    fn make(methods: Methods, fault: Fault) -> impl FnMut(&World) -> Result<Self, SetupError> {
        move |world| {
            let (post, handle) = letterbox(world.server(), methods, fault)?;
            // Streams return several letters at once, in the wrong order: they are not tested.
            Ok(Self { handle, post, unclaimed: Unclaimed::Returned })
        }
    }
}

impl Harness for LetterboxHarness {
    type Detector = Letterbox;
    const HOST_KINDS: HostKinds = HostKinds::Real;

    fn handle(&self) -> &Handle<Letterbox> {
        &self.handle
    }

    fn request(&mut self, _: usize) {}

    fn trigger(&mut self, index: usize) -> Trigger {
        let post = Arc::clone(&self.post);
        Box::new(move || post.drop_in(index))
    }

    fn identify(&mut self, _: usize, letter: usize) -> EventIdentity {
        EventIdentity::Events(vec![letter])
    }

    fn profile(&self) -> Profile {
        Profile::shared(self.unclaimed)
    }
}

/// Goal: the suite detects the possible faults of a blocking detector. Method: one fault each; without
/// one it conforms, with blocking alone and with polls while tasks run.
#[test]
fn planted_faults_are_seen() {
    for methods in [Methods::BLOCK, Methods::BLOCK | Methods::GROUP] {
        let make = LetterboxHarness::make(methods, Fault::None);
        pass("blocking::planted_faults_are_seen", make);
    }
    let with = |fault| seen(LetterboxHarness::make(Methods::BLOCK, fault));
    let violation = with(Fault::SleepsOverEvents);
    assert!(matches!(violation, Violation::EventLost { .. }), "{violation}");
    let violation = with(Fault::DropsTheUnclaimed);
    assert_eq!(violation.rule(), Some(Rule::Cancelled), "{violation}");
    let violation = with(Fault::Fails);
    assert!(matches!(violation, Violation::Failed { .. }), "{violation}");
    let violation = with(Fault::Panics);
    assert!(matches!(violation, Violation::Panicked { callback: "block", .. }), "{violation}");
}

/// Goal: the thread makes calls only while there is a waiter, and no more than there are events.
/// Method: counts of calls.
#[test]
fn nobody_waits_nobody_calls() {
    let server = Server::new(Flavor::Hybrid).expect("a server");
    let mut driver = server.driver();
    let (post, handle) = letterbox(&server, Methods::BLOCK, Fault::None).expect("registered");
    driver.detect();
    post.drop_in(0);
    driver.detect();
    assert_eq!(post.calls.load(Ordering::SeqCst), 0, "there was no waiter");
    assert_eq!(finish(&mut driver, &mut handle.wait(())).expect("it was there"), 0);
    assert_eq!(post.calls.load(Ordering::SeqCst), 0, "the event was there already");
    for letter in 1..20 {
        let mut wait = handle.wait(());
        assert!(poll(&mut wait).is_pending());
        post.drop_in(letter);
        assert_eq!(finish(&mut driver, &mut wait).expect("it comes"), letter);
    }
    assert!(post.calls.load(Ordering::SeqCst) <= 19, "one call for one event");
}

/// Goal: on the user-level flavor a detector that can be polled is blocked on only with nothing else to
/// run. Method: polls at switches see an event without a call; the first sleep makes one.
#[test]
fn user_level_blocks_only_when_idle() {
    let server = Server::new(Flavor::UserLevel).expect("a server");
    let mut driver = server.driver();
    let methods = Methods::BLOCK | Methods::GROUP;
    let (post, handle) = letterbox(&server, methods, Fault::None).expect("registered");
    let mut wait = handle.wait(());
    assert!(poll(&mut wait).is_pending());
    for _ in 0..3 {
        driver.detect();
    }
    post.drop_in(1);
    let seen = loop {
        // Polled every 50 µs.
        driver.detect();
        if let Poll::Ready(seen) = poll(&mut wait) {
            break seen;
        }
    };
    assert_eq!(seen.expect("a letter"), 1);
    assert_eq!(post.calls.load(Ordering::SeqCst), 0, "the host was never idle");
    let mut wait = handle.wait(());
    assert!(poll(&mut wait).is_pending());
    let sender = thread::spawn({
        let post = Arc::clone(&post);
        move || {
            while post.calls.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            post.drop_in(2);
        }
    });
    assert_eq!(finish(&mut driver, &mut wait).expect("a letter"), 2);
    sender.join().expect("it has sent");
}

/// Goal: a call that nothing ends does not delay a shutdown. Method: a closure that waits for the
/// test; the shutdown returns first, then the closure is released and its thread ends.
#[test]
fn a_stuck_call_does_not_hang_the_shutdown() {
    let server = Server::new(Flavor::Hybrid).expect("a server");
    let (release, released) = mpsc::channel::<()>();
    let (begin, has_begun) = mpsc::channel();
    let handle = blocking(&server, move || {
        begin.send(()).map_err(io::Error::other)?;
        released.recv().map_err(io::Error::other)
    });
    let handle = handle.expect("registered");
    let mut wait = handle.wait(());
    assert!(poll(&mut wait).is_pending());
    has_begun.recv().expect("it begins");
    server.shutdown();
    assert!(matches!(poll(&mut wait), Poll::Ready(Err(WaitError::ServerClosed))));
    release.send(()).expect("the closure still waits");
    // The closure goes with its thread.
    has_begun.recv().expect_err("it was called again");
}

/// Goal: the error of a call reaches every waiter, and the handle is then closed. Method: an error
/// and a panic.
#[test]
fn a_failure_ends_all_waits() {
    for fault in [Fault::Fails, Fault::Panics] {
        let server = Server::new(Flavor::Hybrid).expect("a server");
        let mut driver = server.driver();
        let (post, handle) = letterbox(&server, Methods::BLOCK, fault).expect("registered");
        for letter in 0..4 {
            let mut wait = handle.wait(());
            assert!(poll(&mut wait).is_pending());
            // No call is skipped, so that the fifth one is that of the two waits below.
            while post.calls.load(Ordering::SeqCst) <= letter {
                thread::yield_now();
            }
            post.drop_in(letter);
            assert_eq!(finish(&mut driver, &mut wait).expect("a letter"), letter);
        }
        let (mut one, mut other) = (handle.wait(()), handle.wait(()));
        assert!(poll(&mut one).is_pending() && poll(&mut other).is_pending());
        post.interrupt();
        for wait in [&mut one, &mut other] {
            let error = finish(&mut driver, wait).expect_err("the call failed");
            match fault {
                Fault::Fails => assert!(matches!(error, WaitError::Failed(_)), "{error}"),
                _ => assert!(
                    matches!(&error, WaitError::Panicked { callback: "block", .. }),
                    "{error}"
                ),
            }
        }
        assert!(matches!(poll(&mut handle.wait(())), Poll::Ready(Err(_))));
    }
}

/// Goal: without a thread the handle is polled, and blocked on again once there is one. Method: a
/// process whose address space has no room for another stack, for a while.
#[test]
fn without_a_thread_the_handle_is_polled() {
    in_child("blocking::without_a_thread_the_handle_is_polled", || {
        let server = Server::new(Flavor::Hybrid).expect("a server");
        let mut driver = server.driver();
        let (post, handle) = letterbox(&server, Methods::BLOCK, Fault::None).expect("registered");
        let limit = getrlimit(Resource::As);
        let none = Rlimit { current: Some(1 << 20), maximum: limit.maximum };
        let mut wait = handle.wait(());
        setrlimit(Resource::As, none).expect("the limit may be lowered");
        let polled = poll(&mut wait);
        assert!(polled.is_pending(), "{polled:?}");
        post.drop_in(1);
        assert_eq!(finish(&mut driver, &mut wait).expect("it is polled for"), 1);
        assert_eq!(post.calls.load(Ordering::SeqCst), 0, "there was no thread");
        let mut wait = handle.wait(());
        assert!(poll(&mut wait).is_pending());
        setrlimit(Resource::As, limit).expect("the limit may be raised again");
        let sender = thread::spawn({
            let post = Arc::clone(&post);
            move || {
                while post.calls.load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
                post.drop_in(2);
            }
        });
        // The thread is requested again every 10 ms, by the host's own polls.
        assert_eq!(finish(&mut driver, &mut wait).expect("it is blocked for"), 2);
        sender.join().expect("it has sent");
    });
}

/// Goal: a detector that offers to block but returns no call is refused. Method: register one.
#[test]
fn a_missing_call_is_refused() {
    struct Nothing;
    impl Detector for Nothing {
        type Request = ();
        type Event = ();
        fn methods(&self) -> Methods {
            Methods::BLOCK
        }
    }
    let server = Server::new(Flavor::Hybrid).expect("a server");
    let refused = server.register(Nothing, Registration::named("nothing"));
    assert!(matches!(refused, Err(RegisterError::NoBlocker)));
}
