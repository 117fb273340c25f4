//! The suite for engines: an engine on its host is a detector, and is tested as one.

use std::{
    fmt,
    task::{Context, Poll, Waker},
};

use super::{
    At, EventIdentity, Harness, HostKinds, Profile, Report, Rule, SetupError, Suite, SuiteConfig,
    Trigger, Unclaimed, Violation, World, check_with,
    stage::{CaseRunner, Flag, Host},
};
use crate::{
    clock::Instant,
    engine::{Asked, Engine, EngineDetector, EngineEvent, EngineHost, EngineWaiter},
    error::WaitError,
    server::Handle,
    sync::Arc,
};

/// The suite's requirements of an [`Engine`]: its host, and a way to make its events happen. [`Harness`] explains how
/// the suite numbers requests and events; an engine's wants take the place of requests.
pub trait EngineHarness: Sized + 'static {
    /// The engine.
    type Engine: Engine;

    /// The kinds of hosts on which it works: in virtual time, in real time, or both (default). An engine with descriptors
    /// works in real time only.
    const HOST_KINDS: HostKinds = HostKinds::Both;

    /// Returns the host of the engine, at the server of the [`World`].
    fn host(&self) -> &EngineHost<Self::Engine>;

    /// Makes want number `index`.
    fn want(&mut self, index: usize) -> <Self::Engine as Engine>::Request;

    /// Returns a call that makes event number `index` happen: it has happened once the call
    /// returns.
    fn trigger(&mut self, index: usize) -> Trigger;

    /// Returns which event want number `want` received.
    fn identify(&mut self, want: usize, found: <Self::Engine as Engine>::Output) -> EventIdentity;

    /// Returns what the suite may expect. Default: any event is for any want, and the engine takes back what a waiter has
    /// left.
    fn profile(&self) -> Profile {
        Profile::shared(Unclaimed::Returned)
    }

    /// Returns the time at which event `index` happens without a trigger: see [`Harness::happens_at`].
    /// Default: none.
    fn happens_at(&self, index: usize) -> Option<Instant> {
        let _ = index;
        None
    }

    /// Makes event number `index` for its waiters [by name](EngineHost::waiter); `None`, the default, if the engine serves
    /// no names.
    fn named(&mut self, index: usize) -> Option<Named<Self::Engine>> {
        let _ = index;
        None
    }

    /// Makes the want for [`EngineHost::events`]; `None`, the default, if they are not used.
    fn request_of_events(&mut self) -> Option<<Self::Engine as Engine>::Request> {
        None
    }
}

/// An event for waiters by name.
pub struct Named<E> {
    name: u64,
    take: Box<dyn FnMut(&mut E) -> bool>,
    trigger: Trigger,
}

impl<E> Named<E> {
    /// Sets an event's name, the `take` by which a waiter finds it (it returns whether it did), and the trigger that makes
    /// it happen.
    #[must_use]
    pub fn new(
        name: u64,
        take: impl FnMut(&mut E) -> bool + 'static,
        trigger: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self { name, take: Box::new(take), trigger: Box::new(trigger) }
    }
}

impl<E> fmt::Debug for Named<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Tests the contract of [`Engine`] on the engine that `factory` makes, on its host, with [`SuiteConfig::from_env`].
///
/// # Errors
/// The first [`Violation`]. It names the rules of [`Detector`](crate::Detector), since an engine on its host is one.
pub fn check_engine<H: EngineHarness>(
    factory: &mut impl FnMut(&World) -> Result<H, SetupError>,
) -> Result<Report, Violation> {
    check_engine_with(&SuiteConfig::from_env(), factory)
}

/// Like [`check_engine`], with options.
///
/// # Errors
/// Those of [`check_engine`].
pub fn check_engine_with<H: EngineHarness>(
    options: &SuiteConfig,
    factory: &mut impl FnMut(&World) -> Result<H, SetupError>,
) -> Result<Report, Violation> {
    let factory = &mut |world: &World| factory(world).map(OnHost);
    let report = check_with(options, factory)?;
    let mut suite = Suite { options, factory, report };
    for (host, other) in [(Host::Virtual, HostKinds::Real), (Host::Real, HostKinds::Virtual)] {
        if H::HOST_KINDS != other {
            suite.named(host)?;
        }
    }
    Ok(suite.report)
}

/// A case with waiters by name: the stage, and its host.
type NamedCase<H> = fn(
    &mut CaseRunner<OnHost<H>>,
    &EngineHost<<H as EngineHarness>::Engine>,
) -> Result<(), Violation>;

impl<H, F> Suite<'_, F>
where
    H: EngineHarness,
    F: FnMut(&World) -> Result<OnHost<H>, SetupError>,
{
    fn named(&mut self, host: Host) -> Result<(), Violation> {
        let cases: [(&'static str, NamedCase<H>); 6] = [
            ("name, event before the wait", named_before),
            ("name, event after the wait", named_after),
            ("name, event between arming and sleep", named_before_sleep),
            ("name, a waiter that is polled again", named_renewed),
            ("name, a waiter that leaves", named_dropped),
            ("name, shutdown", named_shutdown),
        ];
        for (name, case) in cases {
            let at = At { case: name, host: host.name(), seed: self.options.seeds.start };
            let mut stage =
                CaseRunner::<OnHost<H>>::new(self.factory, host, self.options.guard, at)?;
            if stage.harness.0.named(0).is_none() {
                self.report.skipped.push((name, "the engine serves no names"));
                continue;
            }
            let on_host = stage.harness.0.host().clone();
            case(&mut stage, &on_host)?;
            self.close(&stage);
            self.report.cases.push((host.name(), name));
        }
        Ok(())
    }
}

/// A waiter for event `index` by name.
struct Task<'a, E: Engine> {
    waiter: EngineWaiter<'a, E>,
    flag: Arc<Flag>,
}

impl<'a, E: Engine> Task<'a, E> {
    fn new(host: &'a EngineHost<E>, named: &Named<E>) -> Self {
        Self { waiter: host.waiter(named.name), flag: Flag::new() }
    }

    fn poll(&mut self, named: &mut Named<E>) -> Poll<Result<(), WaitError>> {
        self.flag.clear();
        let waker = Waker::from(Arc::clone(&self.flag));
        let take = |engine: &mut E| (named.take)(engine).then_some(());
        self.waiter.poll(&Context::from_waker(&waker), take)
    }
}

impl<H: EngineHarness> CaseRunner<OnHost<H>> {
    fn named(&mut self, index: usize) -> Named<H::Engine> {
        self.waits += 1;
        self.harness.0.named(index).expect("invariant: asked before")
    }

    /// Makes a task that asks for an event, and must wait.
    fn begins<'a>(
        &self,
        host: &'a EngineHost<H::Engine>,
        named: &mut Named<H::Engine>,
    ) -> Result<Task<'a, H::Engine>, Violation> {
        let mut task = Task::new(host, named);
        let saw = match task.poll(named) {
            Poll::Pending => return Ok(task),
            Poll::Ready(ended) => format!("{ended:?} at once"),
        };
        Err(Violation::Spurious { request: 0, saw, at: self.at })
    }

    /// Runs the host until `task` has found its event.
    fn finds(
        &mut self,
        task: &mut Task<'_, H::Engine>,
        named: &mut Named<H::Engine>,
        rule: Rule,
    ) -> Result<(), Violation> {
        let flag = Arc::clone(&task.flag);
        while self.settle(|_| flag.is_set())? {
            match task.poll(named) {
                Poll::Ready(Ok(())) => {
                    self.events += 1;
                    return Ok(());
                }
                Poll::Ready(Err(error)) => {
                    return Err(Violation::Failed { request: 0, error, at: self.at });
                }
                Poll::Pending => {}
            }
        }
        Err(self.lost(rule, 0, "nothing could happen any more, and it was not woken"))
    }
}

/// Replaced by a no-op: a trigger is called once.
fn trigger_of<E>(named: &mut Named<E>) -> Trigger {
    std::mem::replace(&mut named.trigger, Box::new(|| {}))
}

/// Rule 2: the first poll finds the event.
fn named_before<H: EngineHarness>(
    stage: &mut CaseRunner<OnHost<H>>,
    host: &EngineHost<H::Engine>,
) -> Result<(), Violation> {
    let mut named = stage.named(0);
    trigger_of(&mut named)();
    let mut task = Task::new(host, &named);
    // An engine may have to work for the event.
    match task.poll(&mut named) {
        Poll::Ready(Ok(())) => Ok(()),
        _ => stage.finds(&mut task, &mut named, Rule::Before),
    }
}

/// Rule 3: a waiter is woken, even once the host sleeps.
fn named_after<H: EngineHarness>(
    stage: &mut CaseRunner<OnHost<H>>,
    host: &EngineHost<H::Engine>,
) -> Result<(), Violation> {
    for index in 0..4 {
        let mut named = stage.named(index);
        let mut task = stage.begins(host, &mut named)?;
        for _ in 0..index {
            stage.poll_pass()?;
        }
        trigger_of(&mut named)();
        stage.finds(&mut task, &mut named, Rule::Announced)?;
    }
    Ok(())
}

/// Rule 3: an event that happens while a host goes to sleep wakes it.
fn named_before_sleep<H: EngineHarness>(
    stage: &mut CaseRunner<OnHost<H>>,
    host: &EngineHost<H::Engine>,
) -> Result<(), Violation> {
    let mut named = stage.named(0);
    let mut task = stage.begins(host, &mut named)?;
    stage.poll_pass()?;
    let (trigger, flag) = (trigger_of(&mut named), Arc::clone(&task.flag));
    let between = || {
        trigger();
        // A host is told of a task that can run.
        flag.is_set()
    };
    stage.sleep(Some(Box::new(between)), None)?;
    stage.finds(&mut task, &mut named, Rule::Announced)
}

/// Rule 3: a waiter that moved to another task is woken there, and a served waiter reports it.
fn named_renewed<H: EngineHarness>(
    stage: &mut CaseRunner<OnHost<H>>,
    host: &EngineHost<H::Engine>,
) -> Result<(), Violation> {
    let mut named = stage.named(0);
    let mut task = stage.begins(host, &mut named)?;
    let first = std::mem::replace(&mut task.flag, Flag::new());
    let waker = Waker::from(Arc::clone(&task.flag));
    let cx = Context::from_waker(&waker);
    if !task.waiter.renew_waker(&cx) {
        return Err(stage.lost(Rule::Announced, 0, "it waited no more, and nothing had happened"));
    }
    trigger_of(&mut named)();
    stage.finds(&mut task, &mut named, Rule::Announced)?;
    if first.is_set() || task.waiter.renew_waker(&cx) {
        return Err(stage.lost(Rule::Announced, 0, "the wrong task was woken, or it still waits"));
    }
    Ok(())
}

/// Rule 5: a waiter that leaves, woken or not, takes nothing with it.
fn named_dropped<H: EngineHarness>(
    stage: &mut CaseRunner<OnHost<H>>,
    host: &EngineHost<H::Engine>,
) -> Result<(), Violation> {
    for (index, leaves_first) in [(0, false), (1, true)] {
        let mut named = stage.named(index);
        let leaver = stage.begins(host, &mut named)?;
        let mut task = stage.begins(host, &mut named)?;
        let trigger = trigger_of(&mut named);
        if leaves_first {
            drop(leaver);
            trigger();
        } else {
            trigger();
            let flag = Arc::clone(&leaver.flag);
            if !stage.settle(|_| flag.is_set())? {
                return Err(stage.lost(Rule::Announced, index, "it was not woken"));
            }
            drop(leaver);
        }
        stage.cancelled += 1;
        stage.finds(&mut task, &mut named, Rule::Cancelled)?;
    }
    Ok(())
}

/// Rule 10: the end wakes all waiters, and later ones get an error.
fn named_shutdown<H: EngineHarness>(
    stage: &mut CaseRunner<OnHost<H>>,
    host: &EngineHost<H::Engine>,
) -> Result<(), Violation> {
    let mut named = stage.named(0);
    let mut task = stage.begins(host, &mut named)?;
    stage.server.shutdown();
    let mut later = Task::new(host, &named);
    for (is_woken, task) in [(task.flag.is_set(), &mut task), (true, &mut later)] {
        let ended = task.poll(&mut named);
        if !is_woken || !matches!(ended, Poll::Ready(Err(WaitError::ServerClosed))) {
            let saw = format!("{ended:?}, woken: {is_woken}");
            return Err(Violation::NotEnded { request: 0, saw, at: stage.at });
        }
    }
    Ok(())
}

/// Presents an engine's harness as the harness of the detector on its host.
pub(super) struct OnHost<H>(H);

impl<H: EngineHarness> Harness for OnHost<H> {
    type Detector = EngineDetector<H::Engine>;

    const HOST_KINDS: HostKinds = H::HOST_KINDS;

    fn handle(&self) -> &Handle<Self::Detector> {
        self.0.host().handle()
    }

    fn request(&mut self, index: usize) -> Asked<<H::Engine as Engine>::Request> {
        Asked::Request(self.0.want(index))
    }

    fn trigger(&mut self, index: usize) -> Trigger {
        self.0.trigger(index)
    }

    fn identify(&mut self, request: usize, event: EngineEvent<H::Engine>) -> EventIdentity {
        self.0.identify(request, event.into_output())
    }

    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn happens_at(&self, index: usize) -> Option<Instant> {
        self.0.happens_at(index)
    }

    fn stream_request(&mut self) -> Option<Asked<<H::Engine as Engine>::Request>> {
        self.0.request_of_events().map(Asked::Request)
    }
}
