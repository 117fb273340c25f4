//! Faults that a seed draws.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use vigie_detect::{Link, Server};

use super::node::{FaultEnd, Node};
use crate::flavor::simulated::Disk;

/// A kind of fault that [`RandomFaults`] causes in nodes, and in links between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// A node [crashes](Node::crash), and restarts later.
    Crash,
    /// A node's process is [killed](Node::kill), and restarts later.
    Kill,
    /// A node's process [restarts](Node::restart) at once.
    Restart,
    /// A node is [paused](Node::pause), and resumed later.
    Pause,
    /// No packet passes between some of the nodes and the others.
    Partition,
    /// The same, in one direction.
    Cut,
    /// A link is slow in one direction: see [`RandomFaults::slow_link`].
    SlowLink,
    /// Each operation of a node's disk takes 50 to 200 ms.
    SlowDisk,
    /// One of ten operations of a node's disk fails with `EIO`.
    DiskErrors,
    /// A node's disk has no room for more bytes.
    FullDisk,
    /// A node's wall clock jumps forward or back, and is set right later: see [`RandomFaults::clock_jump`].
    ClockJump,
    /// A node's process gets SIGTERM, as from a service manager, and is started again later. If it has not ended by then, it is killed; one
    /// that does not [listen](crate::signal::unix::signal) to SIGTERM ends at once. What other signals mean is the service's own affair:
    /// send them with [`Node::signal`].
    Terminate,
}

impl FaultKind {
    /// In the order in which they get their generators: a new one comes last, so that it moves none of the others.
    const ALL: [Self; 12] = [
        Self::Crash,
        Self::Kill,
        Self::Restart,
        Self::Pause,
        Self::Partition,
        Self::Cut,
        Self::SlowLink,
        Self::SlowDisk,
        Self::DiskErrors,
        Self::FullDisk,
        Self::ClockJump,
        Self::Terminate,
    ];
}

/// Faults of the nodes of a world, drawn from its seed while the test goes on: their kinds, nodes, moments and durations. They shrink and are
/// recorded like those that a test asks for by name.
///
/// Default: each [kind](FaultKind) once in 20 s, of 100 ms to 5 s, for 60 s; at most a minority of the nodes is down or paused at the same
/// time, so that a majority can always make progress.
///
/// The node [`main`](super::World::main) never ends and is never paused; give it along with the others if its links are to be cut, too.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use vigie_runtime::{simulation::{self, FaultKind, RandomFaults}, time};
///
/// simulation::for_each_seed(10, |world| {
///     let nodes = ["one", "two", "three"].map(|name| world.node(name).run(|| async { /* the service */ }));
///     world.block_on(async {
///         RandomFaults::new(&nodes).every(FaultKind::Crash, Duration::from_secs(5)).run().await;
///         // Nothing is broken any more: after some time, what must hold at last.
///         time::sleep(Duration::from_secs(10)).await;
///     });
/// });
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `run` is awaited"]
pub struct RandomFaults {
    nodes: Vec<Node>,
    every: BTreeMap<FaultKind, Duration>,
    lasting: RangeInclusive<Duration>,
    length: Duration,
    down_max: usize,
    slow_link: Link,
    clock_jump: Duration,
}

impl RandomFaults {
    /// Describes faults of these nodes and of the links between them.
    pub fn new<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        let nodes: Vec<_> = nodes.into_iter().cloned().collect();
        let every = FaultKind::ALL.map(|kind| (kind, Duration::from_secs(20)));
        let down_max = nodes.iter().filter(|node| !node.is_main()).count().saturating_sub(1) / 2;
        Self {
            nodes,
            every: every.into(),
            lasting: Duration::from_millis(100)..=Duration::from_secs(5),
            length: Duration::from_secs(60),
            down_max,
            slow_link: Link::new()
                .delay(Duration::from_millis(100))
                .jitter(Duration::from_millis(200))
                .loss(0.05)
                .bandwidth(50_000)
                .queue(50_000),
            clock_jump: Duration::from_secs(3600),
        }
    }

    /// Leaves out all other kinds. Default: all kinds.
    pub fn only(mut self, kinds: impl IntoIterator<Item = FaultKind>) -> Self {
        let kinds: Vec<_> = kinds.into_iter().collect();
        self.every.retain(|kind, _| kinds.contains(kind));
        self
    }

    /// Sets the mean time between two faults of a kind, at any of the nodes; the time itself is drawn from zero to twice that. Default 20 s.
    /// A fault is left out if there is one of its kind at the same place, or if too many nodes are down.
    ///
    /// # Panics
    /// If it is zero.
    pub fn every(mut self, kind: FaultKind, mean: Duration) -> Self {
        assert!(!mean.is_zero(), "the mean time between two faults is not zero");
        self.every.insert(kind, mean);
        self
    }

    /// Sets how long faults last. Default 100 ms to 5 s; all end with the [time](Self::length) of the faults.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn lasting(mut self, range: RangeInclusive<Duration>) -> Self {
        assert!(!range.is_empty(), "faults last from {:?} to {:?}", range.start(), range.end());
        self.lasting = range;
        self
    }

    /// Sets the time of the faults: when it is over, all of them are. Default 60 s.
    pub const fn length(mut self, length: Duration) -> Self {
        self.length = length;
        self
    }

    /// Sets how many nodes are down or paused at most at the same time. Default: as many as are a minority, 1 of 3 or 4, 2 of 5. What
    /// partitions separate does not count.
    pub const fn down_max(mut self, count: usize) -> Self {
        self.down_max = count;
        self
    }

    /// Sets what becomes of a [slow link](FaultKind::SlowLink). Default: 100 to 300 ms of delay, 5 % of loss, and 50 kB/s with a queue of a
    /// second.
    pub const fn slow_link(mut self, link: Link) -> Self {
        self.slow_link = link;
        self
    }

    /// Sets how far a [wall clock jumps](FaultKind::ClockJump) at most. Default an hour.
    pub const fn clock_jump(mut self, by_max: Duration) -> Self {
        self.clock_jump = by_max;
        self
    }

    /// Carries out the faults, and returns when their [time](Self::length) is over and all of them have ended: nodes run again, links and
    /// disks are what they were before, and clocks are right. Await it on `main`, beside what clients do: with `join!`, or spawned.
    ///
    /// The seed alone determines the faults, not what the service does or what becomes of them.
    ///
    /// # Cancel safety
    /// Faults that have not ended when it is dropped last on.
    ///
    /// # Panics
    /// Outside of a simulation.
    pub async fn run(self) {
        let Some(first) = self.nodes.first() else { return };
        let faults = self.draw(first.seed());
        let mut steps: Vec<_> =
            faults.iter().enumerate().map(|(index, it)| (it.begin, true, index)).collect();
        steps.extend(faults.iter().enumerate().map(|(index, it)| (it.end, false, index)));
        // At one moment, ends come first, but for a fault without a duration.
        steps.sort_by_key(|&(at, begins, index)| {
            (at, begins || faults[index].begin == at, index, !begins)
        });
        let server = Server::current().expect("faults are carried out in a simulation");
        let origin = server.now();
        let mut ends: BTreeMap<usize, FaultEnd> = BTreeMap::new();
        for (at, begins, index) in steps {
            sleep_until(&server, origin + at).await;
            if begins {
                ends.insert(index, self.begin(&faults[index].what));
            } else if let Some(end) = ends.remove(&index) {
                end();
            }
        }
        sleep_until(&server, origin + self.length).await;
    }

    /// Draws all faults in advance: what a run leaves out or does not moves none of them.
    fn draw(&self, seed: u64) -> Vec<DrawnFault> {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x6661_756C_7473_0000);
        let mut all = Vec::new();
        for kind in FaultKind::ALL {
            // Each has a generator of its own: another one that is left out does not move it, either.
            let mut random = random.fork();
            let Some(mean) = self.every.get(&kind) else { continue };
            let mut begin = Duration::ZERO;
            loop {
                begin += draw_time(&mut random, Duration::ZERO..=*mean * 2);
                if begin >= self.length {
                    break;
                }
                let lasting = draw_time(&mut random, self.lasting.clone());
                let lasting = if kind == FaultKind::Restart { Duration::ZERO } else { lasting };
                let end = (begin + lasting).min(self.length);
                if let Some(what) = self.draw_what(kind, &mut random) {
                    all.push(DrawnFault { begin, end, what });
                }
            }
        }
        all.sort_by_key(|fault| fault.begin);
        let mut kept: Vec<DrawnFault> = Vec::new();
        for fault in all {
            let others =
                || kept.iter().filter(|it| it.end >= fault.begin).map(|it| it.what.place());
            let place = fault.what.place();
            let is_free = !others().any(|it| it == place);
            let down = others().filter(|it| matches!(it, FaultPlace::Process(_))).count();
            let is_down = matches!(place, FaultPlace::Process(_));
            if is_free && (!is_down || down < self.down_max) {
                kept.push(fault);
            }
        }
        kept
    }

    /// Draws where a fault is; `None` if there is no such place.
    fn draw_what(&self, kind: FaultKind, random: &mut fastrand::Rng) -> Option<FaultAction> {
        let all: Vec<_> = (0..self.nodes.len()).collect();
        let of = |random: &mut fastrand::Rng, nodes: &[usize]| {
            let index = random.u64(..nodes.len().max(1) as u64);
            nodes.get(usize::try_from(index).unwrap_or(0)).copied()
        };
        Some(match kind {
            FaultKind::Crash
            | FaultKind::Kill
            | FaultKind::Restart
            | FaultKind::Pause
            | FaultKind::Terminate => {
                let can_end = |index: &usize| !self.nodes[*index].is_main();
                let node = of(random, &all.into_iter().filter(can_end).collect::<Vec<_>>())?;
                FaultAction::Process { kind, node }
            }
            FaultKind::Partition | FaultKind::Cut => {
                let side: Vec<bool> = all.iter().map(|_| random.bool()).collect();
                let (one, other): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| side[*it]);
                if one.is_empty() || other.is_empty() {
                    return None;
                }
                FaultAction::Cut { one, other, is_one_way: kind == FaultKind::Cut }
            }
            FaultKind::SlowLink => {
                let from = of(random, &all)?;
                let others: Vec<_> = all.into_iter().filter(|it| *it != from).collect();
                FaultAction::Slow { from, to: of(random, &others)? }
            }
            FaultKind::SlowDisk | FaultKind::DiskErrors | FaultKind::FullDisk => {
                FaultAction::Disk { kind, node: of(random, &all)? }
            }
            FaultKind::ClockJump => {
                let (by, forward) =
                    (draw_time(random, Duration::ZERO..=self.clock_jump), random.bool());
                FaultAction::Clock { node: of(random, &all)?, by, forward }
            }
        })
    }

    /// Begins a fault, and returns what ends it.
    fn begin(&self, what: &FaultAction) -> FaultEnd {
        let at = |index: &usize| self.nodes[*index].clone();
        match what {
            FaultAction::Process { kind, node } => {
                let node = at(node);
                match kind {
                    FaultKind::Crash => node.crash(),
                    FaultKind::Kill => node.kill(),
                    FaultKind::Terminate => return node.terminate_for_a_time(),
                    FaultKind::Pause => {
                        node.pause();
                        return Box::new(move || node.resume());
                    }
                    _ => {
                        node.restart();
                        return Box::new(|| {});
                    }
                }
                Box::new(move || node.restart())
            }
            FaultAction::Cut { one, other, is_one_way } => {
                let pairs = one.iter().flat_map(|a| other.iter().map(move |b| (at(a), at(b))));
                let pairs: Vec<_> = pairs.collect();
                for (a, b) in &pairs {
                    a.cut_to(b);
                    if !is_one_way {
                        b.cut_to(a);
                    }
                }
                Box::new(move || pairs.iter().for_each(|(a, b)| a.heal(b)))
            }
            FaultAction::Slow { from, to } => at(from).link_for_a_time(&at(to), self.slow_link),
            FaultAction::Disk { kind, node } => {
                let (what, disk) = match kind {
                    FaultKind::SlowDisk => {
                        let (delay, jitter) =
                            (Duration::from_millis(50), Duration::from_millis(150));
                        ("slow disk", Disk::new().delay(delay).jitter(jitter))
                    }
                    FaultKind::DiskErrors => ("disk with errors", Disk::new().errors(0.1)),
                    _ => ("full disk", Disk::new().capacity(0)),
                };
                at(node).disk_for_a_time(what, disk)
            }
            FaultAction::Clock { node, by, forward } => at(node).clock_for_a_time(*by, *forward),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DrawnFault {
    /// Since the beginning of all.
    begin: Duration,
    end: Duration,
    what: FaultAction,
}

/// A fault of nodes, which are known by their index.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FaultAction {
    Process { kind: FaultKind, node: usize },
    Cut { one: Vec<usize>, other: Vec<usize>, is_one_way: bool },
    Slow { from: usize, to: usize },
    Disk { kind: FaultKind, node: usize },
    Clock { node: usize, by: Duration, forward: bool },
}

/// The parts of the world that only one fault at a time may concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultPlace {
    Process(usize),
    Partition,
    Link(usize, usize),
    Disk(usize),
    Clock(usize),
}

impl FaultAction {
    const fn place(&self) -> FaultPlace {
        match self {
            Self::Process { node, .. } => FaultPlace::Process(*node),
            Self::Cut { .. } => FaultPlace::Partition,
            Self::Slow { from, to } => FaultPlace::Link(*from, *to),
            Self::Disk { node, .. } => FaultPlace::Disk(*node),
            Self::Clock { node, .. } => FaultPlace::Clock(*node),
        }
    }
}

fn draw_time(random: &mut fastrand::Rng, range: RangeInclusive<Duration>) -> Duration {
    let nanos = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(random.u64(nanos(range.start())..=nanos(range.end())))
}

async fn sleep_until(server: &Server, at: vigie_detect::Instant) {
    let slept = server.timers().wait(at).await;
    slept.expect("invariant: the server of a running task is open");
}
