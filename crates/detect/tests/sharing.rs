//! Two hosts in one poller: while one runs tasks, the other one watches.

use std::{
    future::Future,
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    pin::{Pin, pin},
    sync::{Arc, Mutex, mpsc},
    task::{Context, Waker},
    thread,
    time::Duration,
};

use vigie_detect::{
    ArmOutcome, CancelOutcome, Detected, Detector, Driver, DriverHandle, Flavor, Instant, Interest,
    Key, Methods, Mode, PollContext, Registration, Server, SubmitOutcome,
    detectors::readiness::{Direction, ReadinessRequest},
};

/// How long a test waits for operations that must not hang.
const GUARD: Duration = Duration::from_secs(30);

/// Hosts that each sleep once, on their own threads, and then do nothing.
struct Hosts {
    server: Server,
    woken: mpsc::Sender<Detected>,
    slept: mpsc::Receiver<Detected>,
}

impl Hosts {
    fn new() -> Self {
        let server = Server::new(Flavor::Hybrid).expect("a server");
        // Takes over the changes.
        server.driver().detect();
        let (woken, slept) = mpsc::channel();
        Self { server, woken, slept }
    }

    /// Adds a host, and returns once it sleeps, or is about to.
    fn sleep(&self, mut driver: Driver) {
        let count = self.server.sleeper_count() + 1;
        let woken = self.woken.clone();
        thread::spawn(move || woken.send(driver.park(None)));
        while self.server.sleeper_count() < count {
            thread::yield_now();
        }
    }

    fn sleep_sharing(&self) {
        self.sleep(self.server.driver().sharing());
    }

    /// Adds a host that sleeps repeatedly.
    fn sleep_on_and_on(&self, mut driver: Driver) {
        let woken = self.woken.clone();
        let count = self.server.sleeper_count() + 1;
        thread::spawn(move || while woken.send(driver.park(None)).is_ok() {});
        while self.server.sleeper_count() < count {
            thread::yield_now();
        }
    }

    fn next(&self) -> Detected {
        self.slept.recv_timeout(GUARD).expect("a host wakes up")
    }
}

fn is_pending<F: Future>(future: &mut Pin<&mut F>) -> bool {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Goal: an event that comes while the host that had the last one is awake is delivered by the other host. Method:
/// two sockets, and two hosts that sleep once each.
#[test]
fn the_other_host_sees_the_next_event() {
    let hosts = Hosts::new();
    let server = &hosts.server;
    let _entered = server.enter();
    let pairs = [(); 2].map(|()| UnixStream::pair().expect("a pair of sockets"));
    let mut waits = pairs.each_ref().map(|(ours, _)| {
        ours.set_nonblocking(true).expect("it can be non-blocking");
        let source =
            server.readiness().watch(ours.as_fd(), Interest::Readable).expect("it is watched");
        Box::pin(server.readiness().wait(ReadinessRequest { source, direction: Direction::Read }))
    });
    assert!(waits.iter_mut().all(|wait| is_pending(&mut wait.as_mut())));
    hosts.sleep_sharing();
    hosts.sleep_sharing();
    for ((_, theirs), wait) in pairs.iter().zip(&mut waits) {
        assert!(server.is_watched());
        (&*theirs).write_all(b"x").expect("there is room");
        assert_eq!(hosts.next(), Detected::Events(1));
        assert!(!is_pending(&mut wait.as_mut()));
    }
    assert_eq!(server.sleeper_count(), 0);
}

/// Goal: the sleeping host does not learn at once of a deadline that an awake host submits, but before the awake host could miss it:
/// at its next poll, or when it finds no room to sleep. Method: an hour, and what the sleeper then covers; a moment, and which host
/// handles it.
#[test]
fn a_sleeper_sees_the_deadlines_of_others() {
    for is_full in [false, true] {
        let hosts = Hosts::new();
        let server = &hosts.server;
        hosts.sleep_on_and_on(server.driver().sharing());
        if is_full {
            hosts.sleep_on_and_on(server.driver().sharing());
        }
        let mut own = server.driver().sharing();
        assert_eq!(own.detect(), Detected::Busy, "it is left to those who sleep");
        // While one of them is awake, there is room after all.
        let mut pass = || if is_full { own.park(Some(server.now())) } else { own.detect() };
        assert!(server.is_watched());
        let mut late = pin!(server.timers().wait(server.now() + Duration::from_secs(3600)));
        assert!(is_pending(&mut late));
        assert!(!server.is_watched(), "no sleeper knows of it");
        assert!(hosts.slept.try_recv().is_err(), "no host was woken for it");
        assert_eq!(pass(), Detected::Busy);
        // A host that still holds a lock is woken instead, or told at the next poll.
        while !server.is_watched() {
            pass();
            thread::yield_now();
        }
        let mut soon = pin!(server.timers().wait(server.now() + Duration::from_millis(1)));
        assert!(is_pending(&mut soon));
        pass();
        if server.is_watched() {
            while is_pending(&mut soon) {
                hosts.next();
            }
        }
        server.shutdown();
    }
}

/// Goal: the deadline of a thread that may never poll again wakes a sleeping host. Method: a thread that has polled, and does
/// not share the poller.
#[test]
fn a_sleeper_is_rung_for_by_who_does_not_share() {
    let hosts = Hosts::new();
    let server = &hosts.server;
    let mut own = server.driver();
    own.detect();
    hosts.sleep_sharing();
    own.detect();
    let mut wait = pin!(server.timers().wait(server.now() + Duration::from_secs(3600)));
    assert!(is_pending(&mut wait));
    assert_eq!(hosts.next(), Detected::Nothing);
}

/// Goal: no host sleeps beside a watcher, whose calls it could not answer, nor does a watcher sleep beside others. Method: each of
/// them first.
#[test]
fn watchers_sleep_alone() {
    for watcher_is_first in [false, true] {
        let hosts = Hosts::new();
        let server = &hosts.server;
        let watcher = || server.driver().for_watcher();
        let host = || server.driver().sharing();
        let (first, mut second) =
            if watcher_is_first { (watcher(), host()) } else { (host(), watcher()) };
        hosts.sleep(first);
        assert_eq!(second.park(None), Detected::Busy);
        server.unpark();
        assert_eq!(hosts.next(), Detected::Nothing);
    }
}

/// Letters that are announced once, and only if the mailbox was armed after the last poll, as with completion queues.
#[derive(Debug, Default)]
struct Letters {
    count: usize,
    is_armed: bool,
}

struct Mailbox {
    letters: Arc<Mutex<Letters>>,
    notifier: UnixStream,
    readers: Vec<Key>,
    /// The poll that follows `arm` must not disarm it.
    was_armed_now: bool,
    deadline: Option<Instant>,
}

impl Detector for Mailbox {
    /// When to poll at the latest.
    type Request = Option<Instant>;
    type Event = ();

    fn methods(&self) -> Methods {
        Methods::GROUP | Methods::NOTIFY
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        driver.watch(self.notifier.as_fd(), 0, Interest::Readable)
    }

    fn submit(&mut self, key: Key, deadline: &mut Option<Instant>, _: Mode) -> SubmitOutcome<()> {
        self.deadline = self.deadline.or(*deadline);
        self.readers.push(key);
        SubmitOutcome::Pending
    }

    fn poll(&mut self, round: &mut PollContext<'_, Self>) {
        let mut letters = self.letters.lock().expect("no panic");
        self.deadline = self.deadline.filter(|&deadline| deadline > round.now());
        let _ = self.notifier.read(&mut [0; 8]);
        letters.is_armed &= std::mem::take(&mut self.was_armed_now);
        let count = letters.count.min(self.readers.len());
        letters.count -= count;
        for key in self.readers.drain(..count) {
            round.complete(key, ());
        }
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        let mut letters = self.letters.lock().expect("no panic");
        letters.is_armed = letters.count == 0;
        self.was_armed_now = letters.is_armed;
        Ok(ArmOutcome::ready_if(!letters.is_armed))
    }

    fn cancel(&mut self, key: Key, _: &mut Option<Instant>) -> CancelOutcome {
        self.readers.retain(|&reader| reader != key);
        CancelOutcome::Released
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

/// Goal: a detector that announces an event only if it was armed after the last poll is armed whenever hosts sleep, whatever an awake host
/// does. Method: a watcher sleeps that has armed it, or two hosts that slept before it came; another one polls, or finds no room to sleep,
/// with and without an expired deadline of the detector, and does no more; then a letter comes.
#[test]
fn what_a_sleeper_armed_stays_armed() {
    for (comes_late, parks, has_deadline) in
        (0..8).map(|bits| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0))
    {
        let hosts = Hosts::new();
        let server = &hosts.server;
        let (notifier, post) = UnixStream::pair().expect("a pair of sockets");
        notifier.set_nonblocking(true).expect("it can be non-blocking");
        let letters = Arc::new(Mutex::new(Letters::default()));
        let mailbox = Mailbox {
            letters: Arc::clone(&letters),
            notifier,
            readers: Vec::new(),
            was_armed_now: false,
            deadline: None,
        };
        if comes_late {
            hosts.sleep_on_and_on(server.driver().sharing());
            hosts.sleep_on_and_on(server.driver().sharing());
        }
        let handle = server.register(mailbox, Registration::named("mailbox")).expect("a handle");
        let mut own = server.driver().sharing();
        for round in 0..3 {
            let mut wait = pin!(handle.wait(None));
            assert!(is_pending(&mut wait));
            if !comes_late && round == 0 {
                hosts.sleep_on_and_on(server.driver().for_watcher());
            }
            let mut pass = || if parks { own.park(Some(server.now())) } else { own.detect() };
            pass();
            let mut other = pin!(handle.wait(has_deadline.then(|| server.now())));
            assert!(is_pending(&mut other));
            pass();
            let mut letters_now = letters.lock().expect("no panic");
            letters_now.count += 1;
            if std::mem::take(&mut letters_now.is_armed) {
                (&post).write_all(b"x").expect("there is room");
            }
            drop(letters_now);
            while is_pending(&mut wait) {
                hosts.next();
            }
        }
        server.shutdown();
    }
}
