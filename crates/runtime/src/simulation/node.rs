//! The nodes of a world.

use std::{
    fmt,
    future::Future,
    net::IpAddr,
    panic::Location,
    process::{ExitCode, Termination},
    time::Duration,
};

use vigie_detect::{Link, NodeId, detectors::signal::SignalKind};

use super::world::World;
use crate::{
    flavor::simulated::{self, Disk, Failure, Fault, SimulatedShared, SimulatedWorld},
    handle::{Handle, Scheduler},
    sync::Arc,
    task_cell::{JoinHandle, Label},
};

/// A node of a [`World`]: a machine with a runtime of its own. Clones are the same node. Its methods may be called inside the
/// world's tasks, too.
#[derive(Clone)]
pub struct Node {
    world: Arc<SimulatedWorld>,
    id: NodeId,
}

impl Node {
    pub(super) fn new(world: &Arc<SimulatedWorld>, id: NodeId) -> Self {
        Self { world: Arc::clone(world), id }
    }

    /// Returns its name, by which the others connect to it: `TcpStream::connect("name:80")`.
    #[must_use]
    pub fn name(&self) -> String {
        self.world.network.name(self.id)
    }

    /// Returns its first address.
    ///
    /// # Panics
    /// Never: each node has one.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.world.network.lookup(&self.name())[0]
    }

    /// Spawns a task on it. After a crash, and before a restart, tasks are cancelled at once.
    ///
    /// # Panics
    /// If the world is gone.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Handle::from(Scheduler::Simulated(self.shared())).spawn(future)
    }

    #[track_caller]
    fn shared(&self) -> Arc<SimulatedShared> {
        let shared = self.world.with_nodes(|nodes| nodes.get(self.id.index()).cloned());
        shared.expect("the world of this node is gone")
    }

    /// Stops the machine before the next poll, as if its power was cut: all its tasks are dropped, and it answers nothing. Its
    /// peers find out by their own time-outs, or by a reset after a [`restart`](Self::restart). Of what was not synced, its disk
    /// keeps what the seed draws.
    pub fn crash(&self) {
        if self.world.recorder.admit_end(self.id, "crash") {
            self.world.request(Fault::Crash(self.id));
        }
    }

    /// Ends the process before the next poll: all its tasks are dropped, and the machine goes on and closes its sockets. Peers
    /// see the end of their connections, or a reset where bytes were unread. Files keep what was written.
    pub fn kill(&self) {
        if self.world.recorder.admit_end(self.id, "kill") {
            self.world.request(Fault::Kill(self.id));
        }
    }

    /// Starts the node's program anew before the next poll, as a new process on the same addresses. Ends the old one as
    /// [`kill`](Self::kill) does, if it is there.
    pub fn restart(&self) {
        if self.world.recorder.admit_restart(self.id, self.is_down()) {
            self.world.request(Fault::Restart(self.id));
        }
    }

    /// Stops polling its tasks, as `SIGSTOP` does: the machine still receives and acknowledges. Its timers are late when it goes
    /// on.
    pub fn pause(&self) {
        if self.world.recorder.admit(self.id, || "pause".to_owned()) {
            self.world.pause(self.id, true);
        }
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.world.pause(self.id, false);
    }

    /// Sends a signal to its process, as `kill` does. Those that have called [`signal()`](crate::signal::unix::signal) or
    /// [`ctrl_c`](crate::signal::ctrl_c) on this node get it, if they wait or will; if the process has never listened to it, the default
    /// action follows: most signals end the process as [`kill`](Self::kill) does, SIGSTOP and its like [pause](Self::pause) it, and SIGCONT
    /// resumes it; SIGCHLD, SIGPIPE, SIGURG and SIGWINCH do nothing. A node that is down has no process, and gets nothing.
    ///
    /// # Panics
    /// If the world is gone.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use vigie_runtime::{signal::unix::{SignalKind, signal}, simulation::World, time};
    ///
    /// let mut world = World::new(1);
    /// let saved = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    /// let by_service = saved.clone();
    /// let service = world.node("service").run(move || {
    ///     let saved = by_service.clone();
    ///     async move {
    ///         signal(SignalKind::terminate())?.recv().await;
    ///         saved.store(true, std::sync::atomic::Ordering::Relaxed);
    ///         Ok::<(), std::io::Error>(())
    ///     }
    /// });
    /// world.block_on(async {
    ///     time::sleep(Duration::from_secs(1)).await;
    ///     service.signal(SignalKind::terminate());
    ///     time::sleep(Duration::from_secs(1)).await;
    /// });
    /// assert!(saved.load(std::sync::atomic::Ordering::Relaxed));
    /// ```
    #[track_caller]
    pub fn signal(&self, kind: SignalKind) {
        match kind.as_raw() {
            libc::SIGCONT => self.resume(),
            libc::SIGSTOP => return self.pause(),
            number @ (libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
                if !self.shared().server.has_caught(number) =>
            {
                return self.pause();
            }
            _ => {}
        }
        self.deliver(kind);
    }

    /// Sends a signal that does not pause it, and returns whether that was left out.
    #[track_caller]
    fn deliver(&self, kind: SignalKind) -> bool {
        let (shared, number) = (self.shared(), kind.as_raw());
        // It is counted whatever becomes of it, so that the numbers of later faults do not depend on that.
        let recorder = &self.world.recorder;
        if shared.server.has_caught(number) || is_ignored(number) || self.is_down() {
            let is_admitted = recorder.admit(self.id, || kind.to_string());
            if is_admitted {
                shared.server.raise(number);
            }
            return !is_admitted;
        }
        let is_admitted = recorder.admit_end(self.id, &kind.to_string());
        if is_admitted {
            self.world.request(Fault::Kill(self.id));
        }
        !is_admitted
    }

    /// Sets how its disk behaves from now on. That is a fault, which shrinking may leave out; the default, [`Disk::new`], ends it.
    ///
    /// # Panics
    /// If the world is gone.
    #[track_caller]
    pub fn disk(&self, disk: Disk) {
        let recorder = &self.world.recorder;
        if disk == Disk::new() {
            recorder.ended(self.id, "disk");
        } else if !recorder.admit(self.id, || format!("disk: {disk:?}")) {
            return;
        }
        let _ = self.shared().machine.disk.configure(disk);
    }

    /// Moves its wall clock forward. Timers, [`Instant`](vigie_detect::Instant) and other nodes' clocks are not concerned.
    ///
    /// # Panics
    /// If the world is gone.
    #[track_caller]
    pub fn clock_forward(&self, by: Duration) {
        if self.world.recorder.admit(self.id, || format!("clock forward by {by:?}")) {
            self.shared().machine.clock.jump(by, true);
        }
    }

    /// Moves its wall clock back, at most to 1970.
    ///
    /// # Panics
    /// If the world is gone.
    #[track_caller]
    pub fn clock_back(&self, by: Duration) {
        if self.world.recorder.admit(self.id, || format!("clock back by {by:?}")) {
            self.shared().machine.clock.jump(by, false);
        }
    }

    /// Makes its wall clock gain `parts_per_million` microseconds in each second from now on, or lose them if the number is
    /// negative. Default 0.
    ///
    /// # Panics
    /// If the world is gone.
    #[track_caller]
    pub fn clock_drift(&self, parts_per_million: i32) {
        if self.world.recorder.admit(self.id, || format!("clock drifts by {parts_per_million} ppm"))
        {
            self.shared().machine.clock.drift(parts_per_million);
        }
    }

    /// Sets its wall clock right, and ends its drift.
    ///
    /// # Panics
    /// If the world is gone.
    #[track_caller]
    pub fn clock_correct(&self) {
        self.shared().machine.clock.correct();
    }

    /// Sets the link to another node and back.
    pub fn link(&self, other: &Self, link: Link) {
        self.link_to(other, link);
        other.link_to(self, link);
    }

    /// Sets the link to another node, in this direction only.
    pub fn link_to(&self, other: &Self, link: Link) {
        let what = || format!("link to {}: {link:?}", other.name());
        if self.world.recorder.admit(self.id, what) {
            self.world.network.link(self.id, other.id, link);
        }
    }

    /// Lets no packet pass to another node, nor back. Packets under way arrive.
    pub fn partition(&self, other: &Self) {
        self.cut_to(other);
        other.cut_to(self);
    }

    /// Lets no packet pass to another node, in this direction only.
    pub fn cut_to(&self, other: &Self) {
        if self.world.recorder.admit(self.id, || format!("cut to {}", other.name())) {
            self.world.network.cut(self.id, other.id);
        }
    }

    /// Lets packets pass again to another node and back.
    pub fn heal(&self, other: &Self) {
        self.world.network.heal(self.id, other.id);
        self.world.network.heal(other.id, self.id);
        self.world.recorder.healed(self.id, &other.name());
    }

    /// Returns whether it is the node of the test's own future.
    pub(super) fn is_main(&self) -> bool {
        self.world.network.node("main") == Some(self.id)
    }

    pub(super) fn seed(&self) -> u64 {
        self.world.seed
    }

    /// Sets the link to another node until the returned closure is called.
    pub(super) fn link_for_a_time(&self, other: &Self, link: Link) -> FaultEnd {
        let (world, from, to) = (Arc::clone(&self.world), self.id, other.id);
        let what = || format!("link to {}: {link:?}", other.name());
        if !world.recorder.admit(from, what) {
            return Box::new(|| {});
        }
        let before = world.network.link(from, to, link);
        Box::new(move || {
            match before {
                Some(link) => drop(world.network.link(from, to, link)),
                None => world.network.unlink(from, to),
            }
            world.recorder.ended(from, &format!("slow link to {}", world.network.name(to)));
        })
    }

    /// Sets how its disk behaves until the returned closure is called.
    pub(super) fn disk_for_a_time(&self, what: &'static str, disk: Disk) -> FaultEnd {
        let (world, id) = (Arc::clone(&self.world), self.id);
        if !world.recorder.admit(id, || what.to_owned()) {
            return Box::new(|| {});
        }
        let machine = self.shared().machine.clone();
        let before = machine.disk.configure(disk);
        Box::new(move || {
            let _ = machine.disk.configure(before);
            world.recorder.ended(id, what);
        })
    }

    /// Asks its process to end, as a service manager does, until the returned closure is called: that ends what is left of the process, and
    /// starts the next one.
    pub(super) fn terminate_for_a_time(&self) -> FaultEnd {
        let is_left_out = self.deliver(SignalKind::terminate());
        let node = self.clone();
        Box::new(move || {
            // No fault of its own: without the signal, there is nothing to start again; with it, the process may have ended by itself.
            node.world.recorder.admit_restart(node.id, true);
            if !is_left_out {
                node.world.request(Fault::Restart(node.id));
            }
        })
    }

    /// Moves its wall clock until the returned closure is called, which moves it back.
    pub(super) fn clock_for_a_time(&self, by: Duration, forward: bool) -> FaultEnd {
        let (world, id) = (Arc::clone(&self.world), self.id);
        let direction = if forward { "forward" } else { "back" };
        if !world.recorder.admit(id, || format!("clock {direction} by {by:?}")) {
            return Box::new(|| {});
        }
        let machine = self.shared().machine.clone();
        machine.clock.jump(by, forward);
        Box::new(move || {
            machine.clock.jump(by, !forward);
            world.recorder.ended(id, "wrong clock");
        })
    }

    /// Returns whether its program has ended by a fault, or is about to.
    fn is_down(&self) -> bool {
        self.world.is_to_end(self.id)
            || self
                .world
                .with_nodes(|nodes| nodes.get(self.id.index()).is_none_or(|node| node.is_ending()))
    }
}

/// Returns whether a signal does nothing to a Rust program that does not listen to it.
const fn is_ignored(number: i32) -> bool {
    matches!(number, libc::SIGCHLD | libc::SIGCONT | libc::SIGPIPE | libc::SIGURG | libc::SIGWINCH)
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.name()).finish()
    }
}

/// Ends what was done to a node for a time.
pub(super) type FaultEnd = Box<dyn FnOnce() + Send>;

/// Starts a program on a node.
pub(super) type NodeProgram = Box<dyn Fn(&Arc<SimulatedShared>)>;

/// A node that is about to be added: see [`World::node`].
#[must_use = "the node is added by `run` or `start`"]
pub struct NodeBuilder<'a> {
    world: &'a mut World,
    name: String,
    ips: Vec<IpAddr>,
}

impl<'a> NodeBuilder<'a> {
    pub(super) fn new(world: &'a mut World, name: &str) -> Self {
        Self { world, name: name.to_owned(), ips: Vec::new() }
    }

    /// Gives it an address; call it again for more. Default: 10.0.0.1 or the next one that is free.
    pub fn ip(mut self, ip: impl Into<IpAddr>) -> Self {
        self.ips.push(ip.into());
        self
    }

    /// Adds the node, and starts `program` on it, also at each [`Node::restart`]. A program that panics, or returns an error,
    /// fails the run; one that returns otherwise leaves its node alone.
    ///
    /// # Panics
    /// If there is such a name or address already.
    #[track_caller]
    pub fn run<F>(self, program: impl Fn() -> F + 'static) -> Node
    where
        F: Future + 'static,
        F::Output: Termination + 'static,
    {
        let site = Location::caller();
        let start = move |shared: &Arc<SimulatedShared>| {
            let future = program();
            let running = simulated::spawn_local(shared, Label::from(site), future);
            let (world, node) = (Arc::clone(&shared.world), shared.node);
            let watch = async move {
                match running.await {
                    Ok(result) => {
                        if result.report() != ExitCode::SUCCESS {
                            let name = world.network.name(node);
                            let text = format!("the program of node {name} failed");
                            world.fail(Failure::Message(text));
                        }
                    }
                    Err(error) => {
                        if let Ok(panic) = error.try_into_panic() {
                            world.fail(Failure::Panic(panic));
                        }
                    }
                }
            };
            simulated::spawn_local(shared, Label::from(site), watch).detach();
        };
        self.add(Box::new(start))
    }

    /// Adds the node without a program, for tasks of [`Node::spawn`].
    ///
    /// # Panics
    /// If there is such a name or address already.
    #[expect(clippy::must_use_candidate, reason = "the world has the node")]
    pub fn start(self) -> Node {
        self.add(Box::new(|_| {}))
    }

    fn add(self, program: NodeProgram) -> Node {
        self.world.add(&self.name, &self.ips, program)
    }
}

impl fmt::Debug for NodeBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, ips, .. } = self;
        f.debug_struct("NodeBuilder").field("name", name).field("ips", ips).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, convert::Infallible, future::pending, rc::Rc};

    use super::*;
    use crate::{flavor::simulated::FaultPlan, time::sleep};

    /// Goal: a node is up after its restart, whichever of the faults before it are left out. Method: it ends, ends again while it is
    /// down, and is restarted; each choice of the two faults.
    #[test]
    fn a_restart_outlives_what_is_left_out() {
        for end in [Node::crash, Node::kill] {
            for kept in [&[][..], &[0], &[1], &[0, 1]] {
                let mut world = World::new(1);
                let kept = Some(kept.iter().copied().collect());
                let plan = FaultPlan { kept, ..FaultPlan::default() };
                world.simulated().recorder.set_plan(plan.clone());
                let node = world.node("service").run(pending::<Infallible>);
                world.block_on(async {
                    for step in [end, end, Node::restart] {
                        step(&node);
                        sleep(Duration::from_millis(1)).await;
                    }
                    assert!(!node.is_down(), "{plan:?}");
                });
            }
        }
    }

    /// Goal: a drawn SIGTERM that is left out does not start its node again either. Method: the starts of a node with the fault and without it.
    #[test]
    fn a_sigterm_that_is_left_out_restarts_nothing() {
        for (kept, starts) in [(&[][..], 1), (&[0], 2)] {
            let mut world = World::new(1);
            let kept = Some(kept.iter().copied().collect());
            world.simulated().recorder.set_plan(FaultPlan { kept, ..FaultPlan::default() });
            let started = Rc::new(Cell::new(0));
            let count = Rc::clone(&started);
            let node = world.node("service").run(move || {
                count.set(count.get() + 1);
                pending::<Infallible>()
            });
            world.block_on(async {
                sleep(Duration::from_millis(1)).await;
                let end = node.terminate_for_a_time();
                sleep(Duration::from_millis(1)).await;
                end();
                sleep(Duration::from_millis(1)).await;
            });
            assert_eq!(started.get(), starts);
        }
    }
}
