//! A world of simulated runtimes, one for each node of a network: one thread, one clock, one event queue and one seed.

use std::{
    any::Any,
    cell::RefCell,
    collections::BTreeSet,
    future::Future,
    panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind},
    pin::pin,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use vigie_detect::{NodeChange, NodeId, SimulatedNetwork, VirtualHost, WaiterId};

use super::{
    SimulatedShared,
    pace::{POLLS_MAX, Pace, PolledIn},
    recorder::Recorder,
};
use crate::{
    context::EnteredContext,
    dump::Dump,
    panics::contained,
    sync::{
        Arc, AtomicBool, Ordering, RealGuard, RealMutex, TryLockError,
        count::{AtomicU64, RELAXED},
        lock_real,
        thread::{self, ThreadId},
        thread_local,
    },
    task_cell::Runnable,
};

/// After this many polls without the clock moving, each further one takes [`POLL_COST`], so that tasks which wake
/// themselves until some time has passed come to their end.
const FREE_POLLS: u32 = 10_000;

const POLL_COST: Duration = Duration::from_micros(1);

thread_local! {
    static RUNS: RefCell<Option<Arc<SimulatedWorld>>> = const { RefCell::new(None) };
}

/// Returns whether the calling thread runs `world`, or any.
pub(super) fn runs_here(world: Option<&SimulatedWorld>) -> bool {
    let is_it = |runs: &RefCell<Option<Arc<SimulatedWorld>>>| {
        let runs = runs.borrow();
        runs.as_ref().is_some_and(|it| world.is_none_or(|world| std::ptr::eq(&**it, world)))
    };
    RUNS.try_with(is_it).unwrap_or(false)
}

/// What a task wants to happen to a node before the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The machine stops.
    Crash(NodeId),
    /// The process ends.
    Kill(NodeId),
    Restart(NodeId),
}

/// Why a run fails between two polls.
pub(crate) enum Failure {
    /// The panic of a node's program, whose message was printed.
    Panic(Box<dyn Any + Send>),
    /// Something else.
    Message(String),
}

impl Failure {
    /// Panics.
    pub(crate) fn raise(self) -> ! {
        match self {
            Self::Panic(panic) => resume_unwind(panic),
            Self::Message(message) => panic!("{message}"),
        }
    }
}

pub(crate) struct SimulatedWorld {
    pub(crate) seed: u64,
    pub(crate) network: SimulatedNetwork,
    pub(crate) recorder: Recorder,
    host: RealMutex<VirtualHost>,
    /// By their index; a single one only while it runs.
    nodes: RealMutex<Vec<Arc<SimulatedShared>>>,
    /// Those whose tasks are not polled.
    paused: RealMutex<BTreeSet<NodeId>>,
    /// The thread of the first `block_on`, which all later ones need too.
    thread: RealMutex<Option<ThreadId>>,
    /// The trace's hash when `block_on` last ended.
    trace: AtomicU64,
    faults: RealMutex<Vec<Fault>>,
    /// So many polls without a pause are a livelock, instead of the default.
    polls_max: RealMutex<Option<u64>>,
    /// Of a node's program, or an escape.
    failure: RealMutex<Option<Failure>>,
    /// There are faults, or a failure.
    has_news: AtomicBool,
}

impl SimulatedWorld {
    pub(super) fn new(seed: u64, host: VirtualHost) -> Self {
        Self {
            seed,
            network: host.network().clone(),
            recorder: Recorder::new(seed, &host),
            trace: AtomicU64::new(host.trace_hash()),
            host: RealMutex::new(host),
            nodes: RealMutex::new(Vec::new()),
            paused: RealMutex::new(BTreeSet::new()),
            thread: RealMutex::new(None),
            faults: RealMutex::new(Vec::new()),
            polls_max: RealMutex::new(None),
            failure: RealMutex::new(None),
            has_news: AtomicBool::new(false),
        }
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.trace.load(RELAXED)
    }

    /// Returns whether it runs on another thread.
    pub(super) fn is_elsewhere(&self) -> bool {
        lock_real(&self.thread).is_some_and(|it| it != thread::current().id())
    }

    /// Calls `use_them` with the nodes, by their index.
    pub(crate) fn with_nodes<T>(
        &self,
        use_them: impl FnOnce(&mut Vec<Arc<SimulatedShared>>) -> T,
    ) -> T {
        use_them(&mut lock_real(&self.nodes))
    }

    /// Calls `use_it` with the host, while nothing runs.
    pub(crate) fn with_host<T>(&self, use_it: impl FnOnce(&mut VirtualHost) -> T) -> T {
        use_it(&mut lock_real(&self.host))
    }

    /// Stops polling the tasks of a node, or goes on.
    pub(crate) fn pause(&self, node: NodeId, is_paused: bool) {
        let mut paused = lock_real(&self.paused);
        let has_changed = if is_paused { paused.insert(node) } else { paused.remove(&node) };
        if has_changed {
            let change = if is_paused { NodeChange::Paused } else { NodeChange::Resumed };
            self.recorder.changed(node, change);
        }
    }

    pub(crate) fn set_polls_max(&self, polls_max: u64) {
        *lock_real(&self.polls_max) = Some(polls_max);
    }

    pub(crate) fn request(&self, fault: Fault) {
        lock_real(&self.faults).push(fault);
        self.has_news.store(true, Ordering::SeqCst);
    }

    /// Records that the run has failed, by a panic or an error, unless that has been recorded.
    pub(crate) fn note_failure(&self, panic: Option<&(dyn Any + Send)>) {
        if let Some(main) = self.network.node("main") {
            self.recorder.failed(main, panic.map_or("the test returned an error", panic_message));
        }
    }

    /// Returns whether a node is about to end.
    pub(crate) fn is_to_end(&self, node: NodeId) -> bool {
        let ends =
            |fault: &Fault| matches!(fault, Fault::Crash(it) | Fault::Kill(it) if *it == node);
        lock_real(&self.faults).iter().any(ends)
    }

    /// Fails the run before the next poll.
    pub(crate) fn fail(&self, failure: Failure) {
        lock_real(&self.failure).get_or_insert(failure);
        self.has_news.store(true, Ordering::SeqCst);
    }

    /// Returns the faults that were requested, and a failure.
    pub(crate) fn take_news(&self) -> Option<(Vec<Fault>, Option<Failure>)> {
        if !self.has_news.swap(false, Ordering::SeqCst) {
            return None;
        }
        let faults = std::mem::take(&mut *lock_real(&self.faults));
        Some((faults, lock_real(&self.failure).take()))
    }

    /// Runs `future` on the node `main`, and the tasks of all nodes, on the calling thread until the future is ready. Calls
    /// `between` before each poll. Records a panic that leaves it. The caller is at `site`.
    ///
    /// # Panics
    /// If nothing can happen any more; on another thread than the first call's.
    pub(crate) fn block_on<F: Future>(
        self: &Arc<Self>,
        main: &Arc<SimulatedShared>,
        (future, site): (F, &'static Location<'static>),
        between: &mut dyn FnMut(&mut VirtualHost),
    ) -> F::Output {
        match catch_unwind(AssertUnwindSafe(|| self.run(main, (future, site), between))) {
            Ok(value) => value,
            Err(panic) => {
                self.note_failure(Some(&*panic));
                resume_unwind(panic);
            }
        }
    }

    fn run<F: Future>(
        self: &Arc<Self>,
        main: &Arc<SimulatedShared>,
        (future, site): (F, &'static Location<'static>),
        between: &mut dyn FnMut(&mut VirtualHost),
    ) -> F::Output {
        let here = thread::current().id();
        assert!(
            *lock_real(&self.thread).get_or_insert(here) == here,
            "a simulation runs on one thread: call `block_on` where it was called first"
        );
        let _entered = main.entered();
        let mut run = WorldRun::new(self);
        let awake = Arc::new(MainWaker { is_woken: AtomicBool::new(true) });
        let waker = Waker::from(Arc::clone(&awake));
        let mut future = pin!(future);
        let mut visit = Visit { home: main, away: None };
        let mut polls = (run.host.now(), 0);
        let mut pace = Pace::new(lock_real(&self.polls_max).unwrap_or(POLLS_MAX));
        loop {
            between(&mut run.host);
            let is_woken = awake.is_woken.load(Ordering::SeqCst);
            match run.draw(is_woken) {
                Drawn::Task(node, task) => {
                    visit.enter(&node);
                    let polled = PolledIn::new(self, node.node, task.metadata().site).enter();
                    node.poll(task);
                    let polled = polled.leave();
                    pace.note(&polled);
                }
                Drawn::Main => {
                    visit.away = None;
                    self.recorder.polls_main(main.node, site);
                    awake.is_woken.store(false, Ordering::SeqCst);
                    let mut context = Context::from_waker(&waker);
                    let polled = PolledIn::new(self, main.node, site).enter();
                    if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                        return value;
                    }
                    let polled = polled.leave();
                    pace.note(&polled);
                }
                Drawn::Nothing => {
                    pace.rest();
                    let has_ready =
                        || awake.is_woken.load(Ordering::SeqCst) || self.ready_count() > 0;
                    if let Err(deadlock) = run.host.advance(has_ready) {
                        drop(run);
                        self.report(&deadlock.to_string(), &waker, site);
                    }
                    let is_late = self.recorder.is_too_late(run.host.now());
                    assert!(!is_late, "without some of its faults, the run takes much longer");
                }
            }
            if let Some(livelock) = pace.livelock() {
                let now = run.host.now();
                drop(run);
                let seed = self.seed;
                let text =
                    format!("livelock at {now:?} of the simulation with seed {seed}: {livelock}");
                self.report(&text, &waker, site);
            }
            let now = run.host.now();
            polls = if polls.0 == now { (now, polls.1 + 1) } else { (now, 0) };
            if polls.1 > FREE_POLLS {
                run.host.elapse(POLL_COST);
            }
        }
    }

    /// Returns how many tasks can be polled.
    fn ready_count(&self) -> usize {
        let paused = lock_real(&self.paused);
        let nodes = lock_real(&self.nodes);
        let awake = nodes.iter().filter(|node| !paused.contains(&node.node));
        awake.map(|node| node.ready().len()).sum()
    }

    /// Takes the ready task with this index among those of all nodes.
    fn take_ready(&self, mut index: usize) -> Option<(Arc<SimulatedShared>, Runnable)> {
        let paused = lock_real(&self.paused);
        for node in lock_real(&self.nodes).iter().filter(|node| !paused.contains(&node.node)) {
            let mut ready = node.ready();
            if index < ready.len() {
                return Some((Arc::clone(node), ready.swap_remove(index)));
            }
            index -= ready.len();
        }
        None
    }

    fn report(&self, what: &str, main: &Waker, site: &Location<'_>) -> ! {
        let nodes = lock_real(&self.nodes).clone();
        let mut text = String::new();
        for node in &nodes {
            if nodes.len() > 1 {
                text.push_str(&format!("node {}: ", self.network.name(node.node)));
            }
            text.push_str(&Dump::new(&node.live, &node.server).to_string());
        }
        let waits = nodes.first().map(|node| node.server.waits()).unwrap_or_default();
        for wait in waits.into_iter().filter(|wait| wait.waiter == WaiterId::of(main)) {
            text.push_str(&format!(
                "the future of `block_on`, for {}: {}\n",
                wait.handle, wait.what
            ));
        }
        panic!(
            "{what}, in `block_on` at {site}. What waits (a wake-up from another thread does not count):\n{text}"
        )
    }
}

/// Returns the text of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

/// Forgets the nodes when it is dropped.
pub(super) struct ForgetNodes<'a>(pub(super) &'a SimulatedWorld);

impl Drop for ForgetNodes<'_> {
    fn drop(&mut self) {
        // Outside the lock: they may be the last references.
        let nodes = self.0.with_nodes(std::mem::take);
        drop(nodes);
    }
}

/// The node whose runtime is current.
struct Visit<'a> {
    /// Entered for the whole run.
    home: &'a Arc<SimulatedShared>,
    away: Option<(Arc<SimulatedShared>, EnteredContext)>,
}

impl Visit<'_> {
    fn enter(&mut self, node: &Arc<SimulatedShared>) {
        let current = self.away.as_ref().map_or(self.home, |(node, _)| node);
        if Arc::ptr_eq(current, node) {
            return;
        }
        self.away = None;
        if !Arc::ptr_eq(self.home, node) {
            self.away = Some((Arc::clone(node), node.entered()));
        }
    }
}

/// What runs next.
enum Drawn {
    Task(Arc<SimulatedShared>, Runnable),
    /// The future of `block_on`.
    Main,
    Nothing,
}

/// The thread inside `block_on`, which has the host.
struct WorldRun<'a> {
    world: &'a SimulatedWorld,
    host: RealGuard<'a, VirtualHost>,
}

impl<'a> WorldRun<'a> {
    fn new(world: &'a Arc<SimulatedWorld>) -> Self {
        let host = match world.host.try_lock() {
            Ok(host) => host,
            // A task or the main future panicked, and left the host between two steps.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                unreachable!("one thread, which `Handle::block_on` has asked")
            }
        };
        RUNS.with(|runs| *runs.borrow_mut() = Some(Arc::clone(world)));
        Self { world, host }
    }

    fn draw(&mut self, is_main_woken: bool) -> Drawn {
        if self.host.random().bool() {
            let host = &mut *self.host;
            contained("a look", || host.detect());
        }
        let count = self.world.ready_count() + usize::from(is_main_woken);
        if count == 0 {
            return Drawn::Nothing;
        }
        let index = self.host.draw_below(count);
        self.host.note_run(index as u64);
        self.host.note_run(count as u64);
        match self.world.take_ready(index) {
            Some((node, task)) => Drawn::Task(node, task),
            None => Drawn::Main,
        }
    }
}

impl Drop for WorldRun<'_> {
    fn drop(&mut self) {
        self.world.trace.store(self.host.trace_hash(), RELAXED);
        // Outside the borrow: it may be the last reference.
        let left = RUNS.try_with(|runs| runs.borrow_mut().take());
        drop(left);
        if thread::panicking() && !self.world.recorder.is_quiet() {
            let (seed, now) = (self.world.seed, self.host.now());
            eprintln!("a simulation with seed {seed} failed at {now:?}");
        }
    }
}

struct MainWaker {
    is_woken: AtomicBool,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
    }
}
