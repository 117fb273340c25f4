//! A detector that does what a test tells it to, and records what the server asks of it.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use vigie_detect::{
    ArmOutcome, Arming, CancelOutcome, Detector, Driver, DriverHandle, EmitOutcome, Flavor, Handle,
    Instant, Key, Methods, Mode, Notifier, Pending, PollContext, RegisterError, Registration,
    Server, SubmitOutcome,
};

/// A call by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Submit(u64),
    Check(u64),
    Group(usize),
    Poll,
    Arm,
    Cancel(u64),
    Unclaimed(u64),
}

/// What the detector does in its next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The last event of request `.0`.
    Complete(u64, u64),
    /// One event of request `.0`.
    Emit(u64, u64),
    /// The end of request `.0`.
    Finish(u64),
    /// An error for request `.0`.
    Fail(u64),
}

/// A request: a number, and what it owns.
pub(crate) struct Ask {
    pub(crate) id: u64,
    pub(crate) owned: Option<Box<dyn Any + Send>>,
}

impl Ask {
    pub(crate) const fn new(id: u64) -> Self {
        Self { id, owned: None }
    }

    pub(crate) fn owning(id: u64, owned: impl Any + Send) -> Self {
        Self { id, owned: Some(Box::new(owned)) }
    }
}

/// An event: a number, and what it owns.
pub(crate) struct Told {
    pub(crate) value: u64,
    pub(crate) owned: Option<Box<dyn Any + Send>>,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Told({})", self.value)
    }
}

pub(crate) struct Script {
    pub(crate) methods: Methods,
    pub(crate) arming: Arming,
    /// The result of `cancel`.
    pub(crate) cancel: CancelOutcome,
    pub(crate) deadline: Option<Instant>,
    /// By the request's number; those that are being cancelled too.
    pub(crate) known: BTreeMap<u64, Key>,
    pub(crate) orders: VecDeque<Order>,
    /// By the request's number: the result of `submit` or `check`.
    pub(crate) ready: BTreeMap<u64, u64>,
    /// What the next events own, by value.
    pub(crate) owned: BTreeMap<u64, Box<dyn Any + Send>>,
    /// Events that did not fit, by request.
    pub(crate) refused: Vec<(u64, u64)>,
    /// Whether events that waiters left are kept here.
    pub(crate) keeps_unclaimed: bool,
    pub(crate) unclaimed: Vec<u64>,
    pub(crate) calls: Vec<Call>,
    pub(crate) notifier: Option<Notifier>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            methods: Methods::CHECK | Methods::GROUP | Methods::NOTIFY,
            arming: Arming::BeforeSleep,
            cancel: CancelOutcome::Released,
            deadline: None,
            known: BTreeMap::new(),
            orders: VecDeque::new(),
            ready: BTreeMap::new(),
            owned: BTreeMap::new(),
            refused: Vec::new(),
            keeps_unclaimed: false,
            unclaimed: Vec::new(),
            calls: Vec::new(),
            notifier: None,
        }
    }
}

impl Script {
    fn event(&mut self, value: u64) -> Told {
        Told { value, owned: self.owned.remove(&value) }
    }
}

/// The test's side.
#[derive(Clone)]
pub(crate) struct Author(Arc<Mutex<Script>>);

impl Author {
    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order, and notifies.
    pub(crate) fn order(&self, order: Order) {
        let notifier = {
            let mut script = self.script();
            script.orders.push_back(order);
            script.notifier.clone()
        };
        if let Some(notifier) = notifier {
            notifier.notify();
        }
    }

    /// Returns whether no one else holds the script: the detector is gone.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Takes the calls recorded since.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.script().calls)
    }
}

pub(crate) struct Scripted(Arc<Mutex<Script>>);

impl Scripted {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers a scripted detector.
pub(crate) fn register(
    server: &Server,
    script: Script,
    registration: Registration,
) -> Result<(Author, Handle<Scripted>), RegisterError> {
    let script = Arc::new(Mutex::new(script));
    let handle = server.register(Scripted(Arc::clone(&script)), registration)?;
    Ok((Author(script), handle))
}

impl Detector for Scripted {
    type Request = Ask;
    type Event = Told;

    fn methods(&self) -> Methods {
        self.script().methods
    }

    fn arming(&self) -> Arming {
        self.script().arming
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        self.script().notifier = Some(driver.notifier());
        Ok(())
    }

    fn submit(&mut self, key: Key, ask: &mut Ask, mode: Mode) -> SubmitOutcome<Told> {
        let mut script = self.script();
        script.calls.push(Call::Submit(ask.id));
        let ready = script.ready.remove(&ask.id);
        if ready.is_none() || mode == Mode::Stream {
            script.known.insert(ask.id, key);
        }
        match ready {
            Some(value) => SubmitOutcome::Ready(script.event(value)),
            None => SubmitOutcome::Pending,
        }
    }

    fn check(&mut self, _: Key, ask: &mut Ask) -> Option<Told> {
        let mut script = self.script();
        script.calls.push(Call::Check(ask.id));
        let value = script.ready.remove(&ask.id)?;
        script.known.remove(&ask.id);
        Some(script.event(value))
    }

    fn group(&mut self, pending: &Pending<'_, Self>) {
        self.script().calls.push(Call::Group(pending.len()));
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        self.script().calls.push(Call::Poll);
        loop {
            // No lock of ours is held while the server's code runs.
            let mut script = self.script();
            let Some(order) = script.orders.pop_front() else { return };
            match order {
                Order::Complete(id, value) => {
                    let Some(key) = script.known.remove(&id) else { continue };
                    let event = script.event(value);
                    drop(script);
                    context.complete(key, event);
                }
                Order::Emit(id, value) => {
                    let Some(&key) = script.known.get(&id) else { continue };
                    let event = script.event(value);
                    drop(script);
                    match context.emit(key, event) {
                        EmitOutcome::Kept => {}
                        EmitOutcome::Ended => drop(self.script().known.remove(&id)),
                        EmitOutcome::Full(event) | EmitOutcome::Gone(event) => {
                            self.script().refused.push((id, event.value));
                        }
                    }
                }
                Order::Finish(id) => {
                    let Some(key) = script.known.remove(&id) else { continue };
                    drop(script);
                    context.finish(key);
                }
                Order::Fail(id) => {
                    let Some(key) = script.known.remove(&id) else { continue };
                    drop(script);
                    context.fail(key, io::ErrorKind::ConnectionReset.into());
                }
            }
        }
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        self.script().calls.push(Call::Arm);
        Ok(ArmOutcome::Armed)
    }

    fn cancel(&mut self, _: Key, ask: &mut Ask) -> CancelOutcome {
        let mut script = self.script();
        script.calls.push(Call::Cancel(ask.id));
        if script.cancel == CancelOutcome::Released {
            script.known.remove(&ask.id);
        }
        script.cancel
    }

    fn unclaimed(&mut self, told: Told) -> Option<Told> {
        let mut script = self.script();
        script.calls.push(Call::Unclaimed(told.value));
        if script.keeps_unclaimed {
            script.unclaimed.push(told.value);
            return None;
        }
        Some(told)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.script().deadline
    }
}

/// Counts the wake-ups of a task.
#[derive(Default)]
pub(crate) struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Woken {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// A server on a real host that the test drives itself.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) driver: Driver,
    pub(crate) woken: Arc<Woken>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let server = Server::new(Flavor::UserLevel).expect("an epoll");
        Self { driver: server.driver(), server, woken: Arc::default() }
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.woken))
    }

    pub(crate) fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(&self.waker()))
    }

    /// A whole step of a host with nothing to run: a poll pass, and a sleep that ends at once.
    pub(crate) fn step(&mut self) {
        self.driver.detect();
        self.driver.park(Some(self.server.now()));
    }
}
