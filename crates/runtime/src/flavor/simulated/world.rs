//! A world of simulated runtimes, one for each node of a network: one thread, one clock, one event queue and one seed.

use std::{
    any::Any,
    cell::RefCell,
    future::Future,
    panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind},
    pin::pin,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use vigie_detect::{NodeChange, NodeId, SimulatedHost, SimulatedNetwork, WaiterId};

use super::{
    SimulatedShared,
    pace::{POLLS_MAX, Pace, PolledIn},
    recorder::Recorder,
};
use crate::{
    context::{EnteredContext, EnteredOnce},
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

/// A fault that a task causes at a node before the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The machine stops.
    Crash(NodeId),
    /// The process ends.
    Kill(NodeId),
    Restart(NodeId),
}

/// The ready tasks of all nodes.
#[derive(Default)]
pub(super) struct ReadyTasks {
    /// By the node's index.
    nodes: Vec<ReadyOfNode>,
    /// Those of nodes that are not paused.
    count: usize,
}

#[derive(Default)]
struct ReadyOfNode {
    tasks: Vec<Runnable>,
    is_paused: bool,
}

impl ReadyTasks {
    fn of(&mut self, node: NodeId) -> &mut ReadyOfNode {
        if self.nodes.len() <= node.index() {
            self.nodes.resize_with(node.index() + 1, ReadyOfNode::default);
        }
        &mut self.nodes[node.index()]
    }

    pub(super) fn push(&mut self, node: NodeId, task: Runnable) {
        let of_node = self.of(node);
        of_node.tasks.push(task);
        self.count += usize::from(!of_node.is_paused);
    }

    /// Takes one of a node.
    pub(super) fn pop(&mut self, node: NodeId) -> Option<Runnable> {
        let of_node = self.of(node);
        let task = of_node.tasks.pop()?;
        self.count -= usize::from(!of_node.is_paused);
        Some(task)
    }

    /// Takes the one with this index among those that can be polled. Returns the index of its node, too.
    fn take(&mut self, mut index: usize) -> Option<(usize, Runnable)> {
        for (at, node) in self.nodes.iter_mut().enumerate().filter(|(_, node)| !node.is_paused) {
            if index < node.tasks.len() {
                self.count -= 1;
                return Some((at, node.tasks.swap_remove(index)));
            }
            index -= node.tasks.len();
        }
        None
    }

    /// Returns whether that is a change.
    fn pause(&mut self, node: NodeId, is_paused: bool) -> bool {
        let of_node = self.of(node);
        let has_changed = of_node.is_paused != is_paused;
        of_node.is_paused = is_paused;
        let count = of_node.tasks.len();
        if has_changed && is_paused {
            self.count -= count;
        } else if has_changed {
            self.count += count;
        }
        has_changed
    }
}

/// The reason why a run fails between two polls.
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
    host: RealMutex<SimulatedHost>,
    /// By their index; a single one only while it runs.
    nodes: RealMutex<Vec<Arc<SimulatedShared>>>,
    ready: RealMutex<ReadyTasks>,
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
    pub(super) fn new(seed: u64, host: SimulatedHost) -> Self {
        Self {
            seed,
            network: host.network().clone(),
            recorder: Recorder::new(seed, &host),
            trace: AtomicU64::new(host.trace_hash()),
            host: RealMutex::new(host),
            nodes: RealMutex::new(Vec::new()),
            ready: RealMutex::default(),
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
    pub(crate) fn with_host<T>(&self, use_it: impl FnOnce(&mut SimulatedHost) -> T) -> T {
        use_it(&mut lock_real(&self.host))
    }

    /// Stops polling the tasks of a node, or goes on.
    pub(crate) fn pause(&self, node: NodeId, is_paused: bool) {
        let has_changed = lock_real(&self.ready).pause(node, is_paused);
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
        if !self.has_news.load(Ordering::Relaxed) || !self.has_news.swap(false, Ordering::SeqCst) {
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
        between: &mut dyn FnMut(&mut SimulatedHost),
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
        between: &mut dyn FnMut(&mut SimulatedHost),
    ) -> F::Output {
        let here = thread::current().id();
        assert!(
            *lock_real(&self.thread).get_or_insert(here) == here,
            "a simulation runs on one thread: call `block_on` where it was called first"
        );
        let mut visit = Visit::new(main);
        let mut run = WorldRun::new(self, main.node);
        let awake = Arc::new(MainWaker { is_woken: AtomicBool::new(true) });
        let waker = Waker::from(Arc::clone(&awake));
        let mut future = pin!(future);
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
                    visit.enter(main);
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
                        || awake.is_woken.load(Ordering::SeqCst) || self.ready().count > 0;
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

    /// Returns the tasks that can be polled.
    pub(super) fn ready(&self) -> RealGuard<'_, ReadyTasks> {
        lock_real(&self.ready)
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
struct Visit {
    entered: EnteredContext,
    current: Arc<SimulatedShared>,
    /// The runtimes that were entered, by the index of their node.
    known: Vec<Option<(Arc<SimulatedShared>, EnteredOnce)>>,
}

impl Visit {
    fn new(home: &Arc<SimulatedShared>) -> Self {
        Self { entered: home.entered(), current: Arc::clone(home), known: Vec::new() }
    }

    fn enter(&mut self, node: &Arc<SimulatedShared>) {
        if Arc::ptr_eq(&self.current, node) {
            return;
        }
        let index = node.node.index();
        if self.known.len() <= index {
            self.known.resize_with(index + 1, || None);
        }
        let known = &mut self.known[index];
        // A restarted node has another one.
        if known.as_ref().is_none_or(|(known, _)| !Arc::ptr_eq(known, node)) {
            let once = EnteredOnce::of(&node.entered(), &node.server);
            *known = Some((Arc::clone(node), once));
        }
        if let Some((_, once)) = known {
            self.entered.switch(once);
        }
        self.current = Arc::clone(node);
    }
}

/// The next to run.
enum Drawn {
    Task(Arc<SimulatedShared>, Runnable),
    /// The future of `block_on`.
    Main,
    Nothing,
}

/// The thread inside `block_on`, which has the host.
struct WorldRun<'a> {
    world: &'a SimulatedWorld,
    /// The node of the future of `block_on`.
    main: NodeId,
    host: RealGuard<'a, SimulatedHost>,
}

impl<'a> WorldRun<'a> {
    fn new(world: &'a Arc<SimulatedWorld>, main: NodeId) -> Self {
        let host = match world.host.try_lock() {
            Ok(host) => host,
            // A task or the main future panicked, and left the host between two steps.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                unreachable!("one thread, which `Handle::block_on` has asked")
            }
        };
        RUNS.with(|runs| *runs.borrow_mut() = Some(Arc::clone(world)));
        Self { world, main, host }
    }

    fn draw(&mut self, is_main_woken: bool) -> Drawn {
        // With nothing ready, `advance` looks at all nodes.
        if self.world.ready().count + usize::from(is_main_woken) == 0 {
            return Drawn::Nothing;
        }
        if self.host.random().bool() {
            let host = &mut *self.host;
            contained("a look", || host.detect());
        }
        let mut ready = self.world.ready();
        let count = ready.count + usize::from(is_main_woken);
        let index = self.host.draw_below(count);
        let taken = ready.take(index);
        drop(ready);
        let drawn = match taken {
            Some((at, task)) => {
                Drawn::Task(self.world.with_nodes(|nodes| Arc::clone(&nodes[at])), task)
            }
            None => Drawn::Main,
        };
        let node = if let Drawn::Task(node, _) = &drawn { node.node } else { self.main };
        self.host.note_run_of(node, index as u64, count as u64);
        drawn
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
