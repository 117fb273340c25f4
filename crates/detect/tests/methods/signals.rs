//! Signals: as events of their own, and as readiness events of descriptors.

use std::{
    collections::BTreeMap,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
};

use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use vigie_detect::{
    Arming, Detected, Detector, DriverHandle, EmitOutcome, Flavor, Handle, Key, Methods, Mode,
    PollContext, Ready, RegisterError, Registration, Server, Strategy, SubmitOutcome,
    conformance::{EventIdentity, Harness, HostKinds, Profile, Rule, Trigger, Unclaimed, World},
    detectors::{
        readiness::Direction,
        signal::{Arrived, SignalKind, Signals, signal},
        signal_io::{SignalIo, SignalIoRequest, signal_io},
    },
};

use crate::{kit::child::in_child, pass, seen};

/// Detects that the handler of a signal has finished, on any thread: its action was registered last,
/// and therefore runs last.
struct Witness {
    handle: Handle<Signals>,
    _server: Server,
    /// The one in virtual time, whose process has signals of its own.
    simulated: Option<Server>,
}

impl Witness {
    /// For everything registered for `signal` until now, at `watched` and elsewhere.
    fn new(signal: Signal, watched: &Server) -> Result<Arc<Self>, RegisterError> {
        let server = Server::new(Flavor::UserLevel).expect("a server");
        let handle = self::signal(&server, SignalKind::from_raw(signal.as_raw()))?;
        let simulated = watched.is_virtual().then(|| watched.clone());
        Ok(Arc::new(Self { handle, _server: server, simulated }))
    }

    fn arrivals(&self) -> u64 {
        self.handle.with_detector(|signals| signals.arrivals()).expect("the server is kept")
    }

    /// Sends `signal` to this process and waits until the handler has run: another thread may do that.
    fn send(&self, signal: Signal) {
        if let Some(server) = &self.simulated {
            return server.raise(signal.as_raw());
        }
        let before = self.arrivals();
        kill_process(getpid(), signal).expect("this process may send to itself");
        while self.arrivals() == before {
            thread::yield_now();
        }
    }
}

struct SignalHarness {
    handle: Handle<Signals>,
    signal: Signal,
    witness: Arc<Witness>,
    /// Of the stream: which arrival is the next.
    streamed: usize,
}

impl Harness for SignalHarness {
    type Detector = Signals;

    fn handle(&self) -> &Handle<Signals> {
        &self.handle
    }

    fn request(&mut self, _: usize) {}

    fn trigger(&mut self, _: usize) -> Trigger {
        let (witness, signal) = (Arc::clone(&self.witness), self.signal);
        Box::new(move || witness.send(signal))
    }

    fn identify(&mut self, _: usize, arrived: Arrived) -> EventIdentity {
        match arrived.count {
            1 => EventIdentity::Unmarked,
            count => EventIdentity::Nothing(format!("{count} arrivals for one wait")),
        }
    }

    fn profile(&self) -> Profile {
        Profile::shared(Unclaimed::Returned)
    }

    fn stream_request(&mut self) -> Option<()> {
        Some(())
    }

    fn identify_stream(&mut self, arrived: Arrived) -> EventIdentity {
        let first = self.streamed;
        self.streamed += usize::try_from(arrived.count).expect("few arrivals");
        EventIdentity::Events((first..self.streamed).collect())
    }
}

#[test]
fn signals_conform() {
    pass("signals::signals_conform", |world: &World| {
        let handle = signal(world.server(), SignalKind::USER_DEFINED_1)?;
        let witness = Witness::new(Signal::USR1, world.server())?;
        Ok(SignalHarness { handle, signal: Signal::USR1, witness, streamed: 0 })
    });
}

struct Pair {
    descriptor: Arc<OwnedFd>,
    other: Arc<OwnedFd>,
}

struct SignalIoHarness {
    handle: Handle<SignalIo>,
    pairs: BTreeMap<usize, Pair>,
}

fn pair() -> io::Result<Pair> {
    let (near, far) = UnixStream::pair()?;
    near.set_nonblocking(true)?;
    Ok(Pair { descriptor: Arc::new(near.into()), other: Arc::new(far.into()) })
}

impl SignalIoHarness {
    fn pair(&mut self, index: usize) -> &Pair {
        self.pairs.entry(index).or_insert_with(|| pair().expect("a pair of sockets"))
    }
}

impl Harness for SignalIoHarness {
    type Detector = SignalIo;
    const HOST_KINDS: HostKinds = HostKinds::Real;

    fn handle(&self) -> &Handle<SignalIo> {
        &self.handle
    }

    fn request(&mut self, index: usize) -> SignalIoRequest {
        let descriptor = Arc::clone(&self.pair(index).descriptor);
        SignalIoRequest { descriptor, direction: Direction::Read }
    }

    fn trigger(&mut self, index: usize) -> Trigger {
        let other = Arc::clone(&self.pair(index).other);
        Box::new(move || {
            rustix::io::write(other.as_fd(), &[7]).expect("room for a byte");
        })
    }

    fn identify(&mut self, request: usize, ready: Ready) -> EventIdentity {
        let pair = self.pairs.remove(&request).expect("it was requested");
        match rustix::io::read(pair.descriptor.as_fd(), &mut [0; 8]) {
            Ok(1) if ready.intersects(Ready::READABLE) => EventIdentity::Unmarked,
            read => EventIdentity::Nothing(format!("{ready:?}, and a read gave {read:?}")),
        }
    }

    fn profile(&self) -> Profile {
        Profile::addressed().index_count_max(64)
    }
}

#[test]
fn readiness_by_signal_conforms() {
    pass("signals::readiness_by_signal_conforms", |world: &World| {
        let kind = SignalKind::real_time(1).ok_or("no real-time signal")?;
        let handle = signal_io(world.server(), kind)?;
        Ok(SignalIoHarness { handle, pairs: BTreeMap::new() })
    });
}

/// A signal-only detector with one fault.
struct Faulty {
    fault: Fault,
    signal: Signal,
    taken: u64,
    driver: Option<DriverHandle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Its events come with a signal other than the one it names.
    NamesAnother,
    /// Arrivals before the wait are ignored.
    ForgetsWhatWasBefore,
    /// Each arrival is reported to every waiter.
    TakesNothing,
}

impl Faulty {
    fn arrivals(&self) -> u64 {
        self.driver.as_ref().expect("attached").signal_arrivals()
    }

    fn take(&mut self) -> bool {
        let is_there = self.arrivals() > self.taken;
        if is_there && self.fault != Fault::TakesNothing {
            self.taken += 1;
        }
        is_there
    }
}

impl Detector for Faulty {
    type Request = ();
    type Event = ();

    fn methods(&self) -> Methods {
        Methods::SIGNAL
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn signal(&self) -> Option<i32> {
        Some(match self.fault {
            Fault::NamesAnother => Signal::WINCH.as_raw(),
            _ => self.signal.as_raw(),
        })
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        self.driver = Some(driver.clone());
        Ok(())
    }

    fn submit(&mut self, _: Key, (): &mut (), _: Mode) -> SubmitOutcome<()> {
        if self.fault == Fault::ForgetsWhatWasBefore {
            self.taken = self.arrivals();
        }
        if self.take() { SubmitOutcome::Ready(()) } else { SubmitOutcome::Pending }
    }

    fn poll(&mut self, round: &mut PollContext<'_, Self>) {
        while let Some(key) = round.oldest()
            && self.take()
        {
            if !matches!(round.emit(key, ()), EmitOutcome::Kept | EmitOutcome::Ended) {
                self.taken -= 1;
            }
        }
    }

    fn unclaimed(&mut self, (): ()) -> Option<()> {
        self.taken -= 1;
        None
    }
}

struct FaultyHarness {
    handle: Handle<Faulty>,
    fault: Fault,
    signal: Signal,
    witness: Arc<Witness>,
}

impl Harness for FaultyHarness {
    type Detector = Faulty;

    fn handle(&self) -> &Handle<Faulty> {
        &self.handle
    }

    fn request(&mut self, _: usize) {}

    fn trigger(&mut self, _: usize) -> Trigger {
        let (witness, fault, signal) = (Arc::clone(&self.witness), self.fault, self.signal);
        Box::new(move || {
            if fault != Fault::NamesAnother {
                witness.send(signal);
            }
        })
    }

    fn identify(&mut self, _: usize, (): ()) -> EventIdentity {
        EventIdentity::Unmarked
    }

    fn profile(&self) -> Profile {
        Profile::shared(Unclaimed::Returned)
    }
}

fn faulty(
    fault: Fault,
    signal: Signal,
) -> impl FnMut(&World) -> Result<FaultyHarness, crate::SetupError> {
    move |world| {
        let detector = Faulty { fault, signal, taken: 0, driver: None };
        let handle = world.server().register(detector, Registration::named("faulty"))?;
        let witness = Witness::new(signal, world.server())?;
        Ok(FaultyHarness { handle, fault, signal, witness })
    }
}

/// Goal: the suite detects the possible faults of a signal detector. Method: one fault each; without
/// one, it conforms. Signals are process-wide: one after the other.
#[test]
fn planted_faults_are_seen() {
    pass("signals::planted_faults_are_seen", faulty(Fault::None, Signal::USR2));
    let violation = seen(faulty(Fault::NamesAnother, Signal::USR2));
    assert!(matches!(violation.rule(), Some(Rule::Before | Rule::Announced)), "{violation}");
    let violation = seen(faulty(Fault::ForgetsWhatWasBefore, Signal::USR2));
    assert_eq!(violation.rule(), Some(Rule::Before), "{violation}");
    let violation = seen(faulty(Fault::TakesNothing, Signal::USR2));
    assert_eq!(violation.rule(), Some(Rule::Once), "{violation}");
}

/// Goal: a signal that cannot or must not be caught is a typed error, and so is a detector that
/// returns no signal. Method: each kind; the numbers beside the ranges.
#[test]
fn impossible_signals_are_refused() {
    let server = Server::new(Flavor::UserLevel).expect("a server");
    for number in [0, -1, 9, 19, 11, 7, 4, 8, 32, 33, 65, 1000] {
        let refused = signal(&server, SignalKind::from_raw(number)).expect_err("not a signal");
        assert!(
            matches!(refused, RegisterError::ForbiddenSignal { signal } if signal == number),
            "{refused}"
        );
    }
    struct Nameless;
    impl Detector for Nameless {
        type Request = ();
        type Event = ();
        fn methods(&self) -> Methods {
            Methods::SIGNAL
        }
    }
    let refused = server.register(Nameless, Registration::named("nameless"));
    assert!(matches!(refused, Err(RegisterError::NoSignal)));
}

/// Polls a wait once.
fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Goal: a busy host sees a signal at its next switch, a sleeping one is woken by it, and several
/// handles see each arrival. Method: a host by hand; only the signal ends the sleep.
#[test]
fn a_signal_reaches_busy_and_sleeping_hosts() {
    let server = Server::new(Flavor::UserLevel).expect("a server");
    let mut driver = server.driver();
    let first = signal(&server, SignalKind::CHILD).expect("a signal");
    let second = signal(&server, SignalKind::CHILD).expect("the same signal");
    let witness = Witness::new(Signal::CHILD, &server).expect("the same signal");
    assert_eq!(first.history().1, Strategy::Signal);
    let (mut one, mut other) = (first.wait(()), second.wait(()));
    assert!(poll(&mut one).is_pending() && poll(&mut other).is_pending());
    driver.detect();
    let far_ahead = server.now();
    assert!(!driver.is_due(vigie_detect::Instant::from_nanos(far_ahead.as_nanos() / 2)));
    witness.send(Signal::CHILD);
    assert!(driver.is_due(vigie_detect::Instant::from_nanos(0)), "whatever the time is");
    assert_eq!(driver.detect(), Detected::Events(2));
    assert!(poll(&mut one).is_ready() && poll(&mut other).is_ready());
    let mut one = first.wait(());
    assert!(poll(&mut one).is_pending());
    let sender = thread::spawn(move || witness.send(Signal::CHILD));
    while poll(&mut one).is_pending() {
        driver.park(None);
    }
    sender.join().expect("it has sent");
}

/// Goal: after the server is gone there are no waiters and no counts; the signal does no harm.
/// Method: shut down, then send.
#[test]
fn a_signal_after_the_end_is_ignored() {
    let server = Server::new(Flavor::UserLevel).expect("a server");
    let handle = signal(&server, SignalKind::from_raw(Signal::IO.as_raw())).expect("a signal");
    server.shutdown();
    assert!(handle.with_detector(|_| ()).is_none());
    kill_process(getpid(), Signal::IO).expect("sent");
}

/// Goal: when the queue of real-time signals is full, the SIGIO in their place has the same effect.
/// Method: a process whose queue has no place at all; without the handler of SIGIO, it would end
/// here.
#[test]
fn an_overflow_of_the_signal_queue_is_no_loss() {
    in_child("signals::an_overflow_of_the_signal_queue_is_no_loss", || {
        let maximum = getrlimit(Resource::Sigpending).maximum;
        let none = Rlimit { current: Some(0), maximum };
        setrlimit(Resource::Sigpending, none).expect("the limit may be lowered");
        let server = Server::new(Flavor::UserLevel).expect("a server");
        let mut driver = server.driver();
        let kind = SignalKind::real_time(2).expect("a real-time signal");
        let handle = signal_io(&server, kind).expect("registered");
        // Beside it, so that the overflow is seen to have happened.
        let overflow = SignalKind::from_raw(Signal::IO.as_raw());
        let overflow = signal(&server, overflow).expect("registered");
        for round in 0..10 {
            let Pair { descriptor, other } = pair().expect("a pair of sockets");
            let mut wait = handle.wait(SignalIoRequest { descriptor, direction: Direction::Read });
            assert!(poll(&mut wait).is_pending());
            rustix::io::write(&*other, &[1]).expect("room for a byte");
            while poll(&mut wait).is_pending() {
                driver.park(None);
            }
            // The handler calls both, one after the other, perhaps on another thread.
            let arrivals = || overflow.with_detector(|signals| signals.arrivals());
            let has_overflowed = (0..1_000_000).any(|_| {
                thread::yield_now();
                arrivals() > Some(round)
            });
            assert!(has_overflowed, "{:?} overflows in round {round}", arrivals());
        }
    });
}

/// Goal: signals that come at once do not overflow the stack on which their handlers run. Method: many signals in a row,
/// many times; where handlers nest, the process soon ends by SIGSEGV.
#[test]
fn signals_at_once_fit_the_stack() {
    const ROUNDS: u64 = 500;
    in_child("signals::signals_at_once_fit_the_stack", || {
        let named = [
            Signal::HUP,
            Signal::INT,
            Signal::QUIT,
            Signal::USR1,
            Signal::USR2,
            Signal::PIPE,
            Signal::ALARM,
            Signal::TERM,
            Signal::CHILD,
            Signal::WINCH,
            Signal::IO,
            Signal::VTALARM,
        ];
        let server = Server::new(Flavor::UserLevel).expect("a server");
        let handles =
            named.map(|it| signal(&server, SignalKind::from_raw(it.as_raw())).expect("registered"));
        let arrivals = |index: usize| {
            let handle: &Handle<Signals> = &handles[index];
            handle.with_detector(|signals| signals.arrivals()).expect("open")
        };
        for round in 0..ROUNDS {
            for signal in named {
                kill_process(getpid(), signal).expect("sent");
            }
            while (0..named.len()).any(|index| arrivals(index) <= round) {
                thread::yield_now();
            }
        }
    });
}
