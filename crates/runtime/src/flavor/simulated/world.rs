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
    pace::{POLLS_MAX, Pace, PolledTask},
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

/// After this many polls without the clock moving by itself, each further one takes [`POLL_COST`], so that tasks which wake
/// themselves until some time has passed come to their end.
const FREE_POLLS: u32 = 10_000;

const POLL_COST: Duration = Duration::from_micros(1);

/// The world that a thread runs.
struct RunningWorld {
    world: Arc<SimulatedWorld>,
    /// Those that this thread has made ready, without a lock.
    ready: ReadyTasks,
}

thread_local! {
    static RUNS: RefCell<Option<RunningWorld>> = const { RefCell::new(None) };
}

/// Returns whether the calling thread runs `world`, or any.
pub(super) fn runs_here(world: Option<&SimulatedWorld>) -> bool {
    let is_it = |runs: &RefCell<Option<RunningWorld>>| {
        let runs = runs.borrow();
        runs.as_ref().is_some_and(|it| world.is_none_or(|world| std::ptr::eq(&*it.world, world)))
    };
    RUNS.try_with(is_it).unwrap_or(false)
}

/// Returns the world that the calling thread runs.
pub(super) fn running() -> Option<Arc<SimulatedWorld>> {
    let world = |runs: &RefCell<Option<RunningWorld>>| {
        runs.try_borrow().ok()?.as_ref().map(|running| Arc::clone(&running.world))
    };
    RUNS.try_with(world).ok().flatten()
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
    fn of(&mut self, node: usize) -> &mut ReadyOfNode {
        if self.nodes.len() <= node {
            self.nodes.resize_with(node + 1, ReadyOfNode::default);
        }
        &mut self.nodes[node]
    }

    /// Adds a task of the node with this index.
    fn push(&mut self, node: usize, task: Runnable) {
        let of_node = self.of(node);
        of_node.tasks.push(task);
        self.count += usize::from(!of_node.is_paused);
    }

    fn append(&mut self, others: Self) {
        for (node, of_node) in others.nodes.into_iter().enumerate() {
            of_node.tasks.into_iter().for_each(|task| self.push(node, task));
        }
    }

    /// Takes one of a node.
    fn pop(&mut self, node: NodeId) -> Option<Runnable> {
        let of_node = self.of(node.index());
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
        let of_node = self.of(node.index());
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
    /// Those that became ready while nothing ran, or on another thread.
    ready: RealMutex<ReadyTasks>,
    /// There may be some.
    has_foreign: AtomicBool,
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
            has_foreign: AtomicBool::new(false),
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
        let has_changed = self.with_ready(|ready| ready.pause(node, is_paused));
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

    /// Returns whether there are faults, or a failure.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed)
    }

    /// Returns the faults that were requested, and a failure.
    pub(crate) fn take_news(&self) -> Option<(Vec<Fault>, Option<Failure>)> {
        if !self.has_news() || !self.has_news.swap(false, Ordering::SeqCst) {
            return None;
        }
        let faults = std::mem::take(&mut *lock_real(&self.faults));
        Some((faults, lock_real(&self.failure).take()))
    }

    /// Runs `future` on the node `main`, and the tasks of all nodes, on the calling thread until the future is ready. Calls
    /// `between` before each poll if there are [news](Self::has_news), or always. Records a panic that leaves it. The caller is at `site`.
    ///
    /// # Panics
    /// If nothing can happen any more; on another thread than the first call's.
    pub(crate) fn block_on<F: Future>(
        self: &Arc<Self>,
        main: &Arc<SimulatedShared>,
        (future, site): (F, &'static Location<'static>),
        between: Between<'_>,
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
        mut between: Between<'_>,
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
        // The time of the last poll, and the number of polls since the clock jumped.
        let mut polls = (run.host.now(), 0);
        let mut pace = Pace::new(lock_real(&self.polls_max).unwrap_or(POLLS_MAX));
        let end = self.recorder.end();
        loop {
            run.call(&mut between);
            let is_woken = awake.is_woken.load(Ordering::SeqCst);
            match run.draw(is_woken) {
                Drawn::Task(index, task) => {
                    let node = &run.nodes[index];
                    visit.enter(node);
                    let polled = PolledTask { node: node.node, site: task.metadata().site };
                    let guard = polled.enter();
                    node.poll(task);
                    drop(guard);
                    pace.note(self, polled);
                }
                Drawn::Main => {
                    visit.enter(main);
                    self.recorder.polls_main(main.node, site);
                    awake.is_woken.store(false, Ordering::SeqCst);
                    let mut context = Context::from_waker(&waker);
                    let polled = PolledTask { node: main.node, site };
                    let guard = polled.enter();
                    if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                        return value;
                    }
                    drop(guard);
                    pace.note(self, polled);
                }
                Drawn::Nothing => {
                    pace.rest();
                    let has_ready =
                        || awake.is_woken.load(Ordering::SeqCst) || self.ready_count() > 0;
                    if let Err(deadlock) = run.host.advance(has_ready) {
                        drop(run);
                        self.report(&deadlock.to_string(), &waker, site);
                    }
                    let is_late = end.is_some_and(|end| run.host.now() > end);
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
                // What the polls themselves take is no pause.
                polls.0 = run.host.now();
            }
        }
    }

    /// Calls `use_them` with the ready tasks. Returns `None` if another thread runs the world.
    #[inline]
    fn with_own_ready<T>(&self, use_them: impl FnOnce(&mut ReadyTasks) -> T) -> Option<T> {
        let call = |runs: &RefCell<Option<RunningWorld>>| {
            let mut runs = runs.borrow_mut();
            let running = runs.as_mut().filter(|it| std::ptr::eq(&*it.world, self))?;
            Some(use_them(&mut running.ready))
        };
        RUNS.try_with(call).ok().flatten()
    }

    /// Calls `use_them` with the ready tasks: those of the run if the calling thread runs the world.
    fn with_ready<T>(&self, use_them: impl FnOnce(&mut ReadyTasks) -> T) -> T {
        let mut use_them = Some(use_them);
        let mut call =
            |ready: &mut ReadyTasks| (use_them.take().expect("invariant: called once"))(ready);
        self.with_own_ready(&mut call).unwrap_or_else(|| call(&mut lock_real(&self.ready)))
    }

    /// Queues a task that became ready.
    pub(super) fn push(&self, node: NodeId, task: Runnable) {
        let mut task = Some(task);
        let push = |ready: &mut ReadyTasks| {
            task.take().into_iter().for_each(|task| ready.push(node.index(), task));
        };
        if self.with_own_ready(push).is_some() {
            return;
        }
        let Some(task) = task else { return };
        if self.is_elsewhere() {
            tracing::error!(
                site = %task.metadata().site,
                "a thread outside of the simulation woke a task: the run is not a function of its seed"
            );
        }
        lock_real(&self.ready).push(node.index(), task);
        self.has_foreign.store(true, Ordering::SeqCst);
    }

    /// Takes a ready task of a node.
    pub(super) fn pop(&self, node: NodeId) -> Option<Runnable> {
        self.with_ready(|ready| ready.pop(node)).or_else(|| lock_real(&self.ready).pop(node))
    }

    /// Returns how many tasks can be polled by the calling thread, which runs the world.
    fn ready_count(&self) -> usize {
        if self.has_foreign.load(Ordering::Relaxed) {
            self.take_foreign();
        }
        self.with_own_ready(|ready| ready.count).unwrap_or(0)
    }

    #[cold]
    fn take_foreign(&self) {
        self.has_foreign.store(false, Ordering::SeqCst);
        let foreign = std::mem::take(&mut *lock_real(&self.ready));
        let _ = self.with_own_ready(|ready| ready.append(foreign));
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

/// The function that is called between two polls.
pub(crate) struct Between<'a> {
    pub(crate) call: &'a mut dyn FnMut(&mut SimulatedHost),
    /// Not only if there are faults or a failure.
    pub(crate) is_always: bool,
}

/// The node whose runtime is current.
struct Visit {
    entered: EnteredContext,
    /// The index of the node.
    current: usize,
    /// The runtimes that were entered, by the index of their node; the second of the current one is in use.
    known: Vec<Option<(Arc<SimulatedShared>, Option<EnteredOnce>)>>,
}

impl Visit {
    fn new(home: &Arc<SimulatedShared>) -> Self {
        let index = home.node.index();
        let mut known: Vec<_> = (0..index).map(|_| None).collect();
        known.push(Some((Arc::clone(home), None)));
        Self { entered: home.entered(), current: index, known }
    }

    #[inline]
    fn enter(&mut self, node: &Arc<SimulatedShared>) {
        // A restarted node has another one.
        let is_it = |known: &Option<(Arc<_>, _)>| {
            known.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, node))
        };
        if self.current != node.node.index() || !self.known.get(self.current).is_some_and(is_it) {
            self.switch(node);
        }
    }

    fn switch(&mut self, node: &Arc<SimulatedShared>) {
        let index = node.node.index();
        if self.known.len() <= index {
            self.known.resize_with(index + 1, || None);
        }
        let known = &mut self.known[index];
        if known.as_ref().is_none_or(|(known, _)| !Arc::ptr_eq(known, node)) {
            let once = EnteredOnce::of(&node.entered(), &node.server);
            *known = Some((Arc::clone(node), Some(once)));
        }
        if let Some((_, once)) = known
            && let Some(once) = once.take()
        {
            let left = self.entered.switch(once);
            // What was current is not kept if it is the predecessor of this one.
            if self.current != index
                && let Some((_, once)) = &mut self.known[self.current]
            {
                *once = Some(left);
            }
        }
        self.current = index;
    }
}

/// The next to run.
enum Drawn {
    /// A task of the node with this index.
    Task(usize, Runnable),
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
    /// Those of the world.
    nodes: Vec<Arc<SimulatedShared>>,
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
        let ready = std::mem::take(&mut *lock_real(&world.ready));
        let running = RunningWorld { world: Arc::clone(world), ready };
        RUNS.with(|runs| *runs.borrow_mut() = Some(running));
        Self { world, main, host, nodes: lock_real(&world.nodes).clone() }
    }

    /// Calls what is to be called between two polls. A restart replaces a node.
    #[inline]
    fn call(&mut self, between: &mut Between<'_>) {
        let has_news = self.world.has_news();
        if has_news || between.is_always {
            (between.call)(&mut self.host);
        }
        if has_news {
            self.nodes.clone_from(&lock_real(&self.world.nodes));
        }
    }

    fn draw(&mut self, is_main_woken: bool) -> Drawn {
        // With nothing ready, `advance` checks all nodes.
        if self.world.ready_count() + usize::from(is_main_woken) == 0 {
            return Drawn::Nothing;
        }
        if self.host.random().bool() {
            let host = &mut *self.host;
            contained("a poll pass", || host.detect());
        }
        let host = &mut *self.host;
        let drawn = self.world.with_own_ready(|ready| {
            let count = ready.count + usize::from(is_main_woken);
            let index = if count == 1 { 0 } else { host.draw_below(count) };
            (ready.take(index), index, count)
        });
        let (taken, index, count) = drawn.expect("invariant: this thread runs the world");
        let node = taken.as_ref().map_or(self.main, |(at, _)| self.nodes[*at].node);
        self.host.note_run_of(node, index as u64, count as u64);
        taken.map_or(Drawn::Main, |(at, task)| Drawn::Task(at, task))
    }
}

impl Drop for WorldRun<'_> {
    fn drop(&mut self) {
        self.world.trace.store(self.host.trace_hash(), RELAXED);
        // Outside the borrow: it may be the last reference.
        let left = RUNS.try_with(|runs| runs.borrow_mut().take());
        if let Ok(Some(RunningWorld { world, mut ready })) = left {
            let mut shared = lock_real(&world.ready);
            ready.append(std::mem::take(&mut *shared));
            *shared = ready;
        }
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
