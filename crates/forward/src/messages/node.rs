//! A node as an engine of `detect`, and the thread that drives it.
//!
//! ```text
//!   wait() ──────▶ step, tick: the node's own work ──▶ found
//!      ▲                 │ nothing to do
//!      │                 ▼
//!      │           Waiter: polls, yields, as its strategy says
//!      │                 │ time to sleep
//!      │                 ▼
//!      └─────────── Driver::park: arms the provider; a packet, the clock or the waker ends the sleep
//! ```

use std::{convert::Infallible, future::poll_fn, io, time::Duration};

use vigie_detect::{
    Adaptive, ArmOutcome, Driver, Engine, EngineContext, EngineHost, Flavor, Instant, Notifier,
    PollerEvent, Progress, Reactivity, Registration, Server, Waiter, WatchedDescriptor,
};
use vigie_via::vi::Provider;

use super::{error::MessagesError, port::NodePort};

/// The name of a node's only waiter.
const WAITER_NAME: u64 = 0;

/// The node and its peer: as far as a node knows, each has a core of its own.
const PEERS: u32 = 2;

/// Polls per reading of the clock. Each is a tick of the node, which takes a microsecond if the provider makes a system
/// call.
const POLLS_PER_CLOCK_READ: u32 = 4;

/// The result of one step of a wait, if any.
pub(super) type StepResult<T> = Result<Option<T>, MessagesError>;

/// A source, a forwarder or a sink; it never waits.
pub(super) trait NodeMachine: Send + 'static {
    /// Its provider.
    type Nic: Provider;

    fn port(&self) -> &NodePort<Self::Nic>;

    fn port_mut(&mut self) -> &mut NodePort<Self::Nic>;

    /// Does pending work. Returns whether anything was done. The default is for nodes whose calls do the rest.
    fn tick(&mut self) -> Result<bool, MessagesError> {
        self.port_mut().tick()
    }

    /// Returns whether a tick that did something may have produced what is waited for.
    fn has_updates(&self) -> bool {
        true
    }
}

/// A node on a detection server.
struct NodeEngine<N> {
    node: N,
    /// Set on registration.
    waker: Option<Notifier>,
    /// The waiting thread does its work, not the server's rounds.
    has_thread: bool,
    /// The deadline of its user's wait.
    until: Option<Instant>,
    /// Its user should poll.
    has_updates: bool,
    /// The error that ended it, for its user.
    failed: Option<MessagesError>,
}

impl<N: NodeMachine> NodeEngine<N> {
    /// Registers a node with a server.
    fn register(
        server: &Server,
        node: N,
        has_thread: bool,
        registration: Registration,
    ) -> Result<EngineHost<Self>, MessagesError> {
        let (waker, until, has_updates, failed) = (None, None, false, None);
        let engine = Self { node, waker, has_thread, until, has_updates, failed };
        let host = EngineHost::new(server, engine, registration).map_err(io::Error::other)?;
        host.run_in_background().map_err(io::Error::other)?;
        Ok(host)
    }
}

impl<N: NodeMachine> Engine for NodeEngine<N> {
    type Request = Infallible;
    type Output = Infallible;

    fn take(&mut self, want: &Infallible) -> Option<Infallible> {
        match *want {}
    }

    fn progress(&mut self, _: &EngineContext<'_>) -> Progress {
        if self.has_thread || self.failed.is_some() {
            return Progress::Done;
        }
        let had_updates = self.node.has_updates();
        let worked = self.node.tick();
        let is_due = |until: &mut Instant| *until <= self.node.port().now();
        self.has_updates |= self.until.take_if(is_due).is_some();
        match worked {
            Ok(false) => return Progress::Done,
            Ok(true) => self.has_updates |= had_updates || self.node.has_updates(),
            Err(error) => (self.failed, self.has_updates) = (Some(error), true),
        }
        Progress::More
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        self.node.port_mut().arm()
    }

    fn notified(&mut self, _: &[PollerEvent]) {
        self.node.port_mut().quiet();
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        if let Some(descriptor) = self.node.port().descriptor() {
            each(WatchedDescriptor::readable(descriptor));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.node.port().next_deadline(), self.until];
        deadlines.into_iter().flatten().min().filter(|_| !self.has_thread && self.failed.is_none())
    }

    fn can_announce(&self) -> bool {
        self.node.port().can_announce()
    }

    fn has_served(&self) -> bool {
        self.has_updates
    }

    fn served(&mut self, names: &mut Vec<u64>) {
        if std::mem::take(&mut self.has_updates) {
            names.push(WAITER_NAME);
        }
    }

    fn attach(&mut self, waker: Notifier) -> io::Result<()> {
        self.node.port_mut().attach(waker.clone());
        self.waker = Some(waker);
        Ok(())
    }

    /// Calls do all pending work.
    fn has_unannounced_work(&self) -> bool {
        false
    }
}

/// A node and the detection server that the calling thread drives.
pub(super) struct BlockingNode<N: NodeMachine> {
    host: EngineHost<NodeEngine<N>>,
    server: Server,
    driver: Driver,
    waiter: Waiter,
}

impl<N: NodeMachine> BlockingNode<N> {
    pub(super) fn new(node: N, reactivity: Reactivity) -> Result<Self, MessagesError> {
        let policy = Adaptive::new(reactivity);
        let server = Server::with_policies(Flavor::KernelLevel, policy, policy)?;
        // The waiter polls before each sleep, even at providers that announce nothing until they are armed.
        let registration = Registration::named("node").policy(Adaptive::new(Reactivity::LowCpu));
        let host = NodeEngine::register(&server, node, true, registration)?;
        let (driver, waiter) = (server.driver(), Waiter::at(&server, PEERS, POLLS_PER_CLOCK_READ));
        Ok(Self { host, server, driver, waiter })
    }

    /// Returns the server, which others use to wake the thread.
    pub(super) const fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the waker for threads that have work for the node.
    pub(super) fn waker(&self) -> Notifier {
        self.host
            .post(|engine| engine.waker.clone())
            .expect("invariant: attached when it was registered")
    }

    /// Calls `call` with the node.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut N) -> T) -> T {
        self.host.post(|engine| call(&mut engine.node))
    }

    /// Blocks until `step` returns a result or fails. It is called before the node's first tick and after each, and
    /// returns the latest time at which to check again.
    pub(super) fn wait<T>(
        &mut self,
        mut step: impl FnMut(&mut N, &mut Option<Instant>) -> StepResult<T>,
    ) -> Result<T, MessagesError> {
        let Self { host, server, driver, waiter } = self;
        let mut until = None;
        if let Some(found) = host.post(|engine| step(&mut engine.node, &mut until))? {
            return Ok(found);
        }
        loop {
            waiter.begin();
            let found = waiter.spin_blocking(|| {
                host.post(|engine| {
                    work(&mut engine.node, |node| step(node, &mut until)).transpose()
                })
            });
            match found {
                Some(Ok(WorkResult::Output(found))) => return Ok(found),
                Some(Ok(WorkResult::More)) => continue,
                Some(Err(error)) => return Err(error),
                None => {}
            }
            let span = host.post(|engine| span(engine.node.port(), until));
            driver.park(span.map(|span| server.now() + span));
            waiter.slept();
        }
    }
}

impl<N: NodeMachine> Drop for BlockingNode<N> {
    fn drop(&mut self) {
        self.server.shutdown();
    }
}

/// A node driven by a detection server, for tasks.
pub(super) struct AsyncNode<N: NodeMachine>(EngineHost<NodeEngine<N>>);

impl<N: NodeMachine> AsyncNode<N> {
    pub(super) fn new(server: &Server, node: N) -> Result<Self, MessagesError> {
        Ok(Self(NodeEngine::register(server, node, false, Registration::named("node"))?))
    }

    /// Calls `call` with the node.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut N) -> T) -> T {
        self.0.post(|engine| call(&mut engine.node))
    }

    /// As [`BlockingNode::wait`], for a task.
    pub(super) async fn wait<T>(
        &self,
        mut step: impl FnMut(&mut N, &mut Option<Instant>) -> StepResult<T>,
    ) -> Result<T, MessagesError> {
        let mut waiter = self.0.waiter(WAITER_NAME);
        let mut is_first = true;
        let mut poll = |engine: &mut NodeEngine<N>| {
            let NodeEngine { node, until, failed, .. } = engine;
            *until = None;
            let begun = if std::mem::take(&mut is_first) { step(node, until) } else { Ok(None) };
            let found = match begun {
                Ok(None) if failed.is_none() => work(node, |node| step(node, until)),
                Ok(found) => Ok(found.map(WorkResult::Output)),
                Err(error) => Err(error),
            };
            match (found, failed.take()) {
                (Ok(Some(WorkResult::Output(found))), _) => Some(Ok(found)),
                (Err(error), _) | (_, Some(error)) => Some(Err(error)),
                _ => None,
            }
        };
        poll_fn(|cx| waiter.poll(cx, &mut poll)).await.map_err(io::Error::other)?
    }
}

/// The result of a poll.
enum WorkResult<T> {
    Output(T),
    /// The node has worked; there may be more to do.
    More,
}

/// Lets the node work, and calls `step`, until there is nothing to do: `None` if there was nothing from the start.
fn work<N: NodeMachine, T>(
    node: &mut N,
    mut step: impl FnMut(&mut N) -> StepResult<T>,
) -> Result<Option<WorkResult<T>>, MessagesError> {
    let mut found = None;
    loop {
        let has_worked = node.tick()?;
        if let Some(found) = step(node)? {
            return Ok(Some(WorkResult::Output(found)));
        }
        if !has_worked {
            return Ok(found);
        }
        found = Some(WorkResult::More);
    }
}

/// Returns how long a node that waits `until` then may sleep. The node's clock may differ from the server's.
fn span<P: Provider>(port: &NodePort<P>, until: Option<Instant>) -> Option<Duration> {
    let deadline = [port.next_deadline(), until].into_iter().flatten().min()?;
    Some(deadline.saturating_duration_since(port.now()))
}
