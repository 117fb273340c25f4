//! The tasks of a run, drawn by its seed: everyday kinds of load.

use std::rc::Rc;

use super::{
    kind,
    lane::Credit,
    world::{Task, World},
};

/// The effect of a poll on other tasks.
pub(crate) enum Act {
    Wake(usize),
    /// Wakes a task that has one message more.
    Send(usize),
    Spawn(Kind),
}

/// One poll: acts at its beginning, then processor time, then a sleep in the kernel.
pub(crate) struct Plan {
    pub(crate) first: Vec<Act>,
    pub(crate) work_ns: u64,
    pub(crate) block_ns: u64,
}

/// The action of a task. Times in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Computes, and yields after each poll.
    Yields { work: u64 },
    /// One poll, which may sleep in the kernel.
    Once { work: u64, block: u64 },
    /// Each event spawns `count` of the kind.
    Spawns { count: u32, child: Box<Self> },
    /// Each event or message is answered in one poll, between `least` and `most` long; one in `rare` is
    /// `long`. Afterwards the message goes on to `next`.
    Answers { least: u64, most: u64, rare: u32, long: u64, block: u64, next: Option<usize> },
    /// Takes up to 64 messages at once, each for `work`, and wakes one of `clients` for each.
    Actor { work: u64, clients: Vec<usize>, taken: u32 },
    /// Wakes its peer, which wakes it: for ever.
    Pong { work: u64, peer: usize },
    /// Wakes the peers first, then computes.
    WakesFirst { peers: Vec<usize>, work: u64 },
}

impl Kind {
    /// The task's kind for the runtime: here, what it does and for how long.
    pub(crate) fn of_future(&self) -> kind::TaskKind {
        let (what, most) = match self {
            Self::Yields { work } => (1, *work),
            Self::Once { work, block } => (2, work + block),
            Self::Spawns { .. } => (3, 0),
            Self::Answers { most, long, block, .. } => (4, most + long + block),
            Self::Actor { work, .. } => (5, *work),
            Self::Pong { work, .. } => (6, *work),
            Self::WakesFirst { work, .. } => (7, *work),
        };
        // Multiplied by an odd number, so that the upper half differs, too.
        kind::TaskKind::of_hash((most * 8 + what).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn begin(&mut self, task: &Task, random: &mut fastrand::Rng) -> Plan {
        let plan = |work_ns| Plan { first: Vec::new(), work_ns, block_ns: 0 };
        match self {
            Self::Yields { work } => plan(*work),
            Self::Once { work, block } => Plan { block_ns: *block, ..plan(*work) },
            Self::Spawns { .. } => plan(20_000),
            Self::Answers { least, most, rare, long, block, .. } => {
                let is_rare = *rare > 0 && random.u32(..*rare) == 0;
                let work = if is_rare { *long } else { random.u64(*least..=*most) };
                Plan { block_ns: *block, ..plan(work) }
            }
            Self::Actor { work, taken, .. } => {
                *taken = task.inbox.get().min(64);
                plan(1_000 + *work * u64::from(*taken))
            }
            Self::Pong { work, .. } => plan(*work),
            Self::WakesFirst { peers, work } => {
                let first = peers.iter().map(|&peer| Act::Send(peer)).collect();
                Plan { first, ..plan(*work) }
            }
        }
    }

    pub(crate) fn end(&mut self, this: usize, task: &Task, is_ending: bool) -> Vec<Act> {
        match self {
            Self::Pong { .. } if is_ending => Vec::new(),
            Self::Yields { .. } => vec![Act::Wake(this)],
            Self::Once { .. } => Vec::new(),
            Self::Spawns { count, child } => {
                task.inbox.set(0);
                (0..*count).map(|_| Act::Spawn((**child).clone())).collect()
            }
            Self::Answers { next, .. } => {
                let left = task.inbox.get().saturating_sub(1);
                task.inbox.set(left);
                let again = (left > 0).then_some(Act::Wake(this));
                next.map(Act::Send).into_iter().chain(again).collect()
            }
            Self::Actor { clients, taken, .. } => {
                let left = task.inbox.get() - *taken;
                task.inbox.set(left);
                let answers = (0..*taken as usize).map(|at| Act::Wake(clients[at % clients.len()]));
                let again = (left > 0).then_some(Act::Wake(this));
                answers.chain(again).collect()
            }
            Self::Pong { peer, .. } => vec![Act::Wake(*peer)],
            Self::WakesFirst { .. } => {
                task.inbox.set(0);
                Vec::new()
            }
        }
    }
}

/// Something that happens again and again: to one of the targets, or a new task from outside.
pub(crate) struct Source {
    targets: Vec<usize>,
    foreign: Option<(u32, Kind)>,
    /// The mean gap; exponential unless the source is regular.
    gap_ns: u64,
    is_regular: bool,
    random: fastrand::Rng,
}

impl Source {
    pub(crate) async fn run(mut self, world: Rc<World>) {
        loop {
            let gap = if self.is_regular {
                self.gap_ns
            } else {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "small"
                )]
                let gap = (-(1.0 - self.random.f64()).ln() * self.gap_ns as f64) as u64;
                gap
            };
            world.kernel.wait_until(world.now() + gap.max(1_000)).await;
            if world.is_ending.get() {
                return;
            }
            if let Some((count, kind)) = &self.foreign {
                for _ in 0..*count {
                    world.spawn_from_outside(kind.clone());
                }
            } else {
                world.happen(self.targets[self.random.usize(..self.targets.len())]);
            }
        }
    }
}

/// Between `least` and `most`, equally on a logarithmic scale.
fn draw(random: &mut fastrand::Rng, least: u64, most: u64) -> u64 {
    let (from, to) = ((least as f64).ln(), (most as f64).ln());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the bounds"
    )]
    let drawn = (from + (to - from) * random.f64()).exp() as u64;
    drawn.clamp(least, most)
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Draws what runs: always a probe, one or two kinds of computation or none, one to three kinds of events.
/// Returns the sources, and what was drawn in words.
pub(crate) fn draw_loads(world: &World, random: &mut fastrand::Rng) -> (Vec<Source>, String) {
    let mut drawing = Drawing { world, random, sources: Vec::new(), words: String::new() };
    let probe = drawing.answers(10 * US, 10 * US, None);
    drawing.source(vec![probe], 3 * MS);
    let (computations, events) = (drawing.random.u32(..3), drawing.random.u32(1..4));
    for _ in 0..computations {
        drawing.computation();
    }
    for _ in 0..events {
        drawing.events();
    }
    (drawing.sources, drawing.words)
}

/// A probe each 3 ms, and as many tasks as there are in `hogs` that compute for ever, so many nanoseconds in each poll.
pub(crate) fn probe_beside(world: &World, hogs: &[u64]) -> (Vec<Source>, String) {
    let random = &mut fastrand::Rng::with_seed(world.options.seed);
    let mut drawing = Drawing { world, random, sources: Vec::new(), words: String::new() };
    let probe = drawing.answers(10 * US, 10 * US, None);
    drawing.source(vec![probe], 3 * MS);
    for &work in hogs {
        let hog = drawing.add(Kind::Yields { work });
        world.wake(hog, None);
    }
    (drawing.sources, format!("a probe beside {} hogs", hogs.len()))
}

/// Each 3 ms an event whose task wakes `count` others, each with `work` nanoseconds to do.
pub(crate) fn broadcast(world: &World, count: usize, work: u64) -> (Vec<Source>, String) {
    let random = &mut fastrand::Rng::with_seed(world.options.seed);
    let mut drawing = Drawing { world, random, sources: Vec::new(), words: String::new() };
    let peers = (0..count).map(|_| drawing.answers(work, work, None)).collect();
    let task = drawing.add(Kind::WakesFirst { peers, work: 5 * US });
    drawing.source(vec![task], 3 * MS);
    (drawing.sources, format!("each event for {count} tasks of {work} ns"))
}

struct Drawing<'a> {
    world: &'a World,
    random: &'a mut fastrand::Rng,
    sources: Vec<Source>,
    words: String,
}

impl Drawing<'_> {
    fn draw(&mut self, least: u64, most: u64) -> u64 {
        draw(self.random, least, most)
    }

    fn source(&mut self, targets: Vec<usize>, gap_ns: u64) {
        let random = self.random.fork();
        self.sources.push(Source { targets, foreign: None, gap_ns, is_regular: false, random });
    }

    fn add(&mut self, kind: Kind) -> usize {
        self.world.add(kind, Credit::FULL)
    }

    fn answers(&mut self, least: u64, most: u64, next: Option<usize>) -> usize {
        self.add(Kind::Answers { least, most, rare: 0, long: 0, block: 0, next })
    }

    /// Polls of so little work are drawn more rarely on many workers, so that a run has an end.
    fn yields(&mut self, name: &str, least: u64, most: u64) {
        let workers = self.world.options.workers as u64;
        let count = self.draw(1, 3 * workers.min(32));
        let work = self.draw(least, most) * workers.div_ceil(4);
        self.words += &format!(" {name}({count} of {work} ns)");
        for _ in 0..count {
            let task = self.add(Kind::Yields { work });
            self.world.wake(task, None);
        }
    }

    fn computation(&mut self) {
        match self.random.u32(..5) {
            0 => self.yields("polite", 50 * US, 900 * US),
            1 => self.yields("hogs", 2 * MS, 60 * MS),
            2 | 3 => {
                let count = u32::try_from(self.draw(20, 400)).expect("few");
                let work = self.draw(50 * US, 4 * MS);
                let cores = self.world.kernel.core_count() as u64;
                let part = self.draw(30, 90);
                let gap_ns = (u64::from(count) * work * 100 / part / cores).max(20 * MS);
                let is_foreign = self.random.bool();
                self.words += &format!(" fresh({count} of {work} ns, foreign: {is_foreign})");
                let child = Kind::Once { work, block: 0 };
                let spawner = self.add(Kind::Spawns { count, child: Box::new(child.clone()) });
                let random = self.random.fork();
                let foreign = is_foreign.then_some((count, child));
                let targets = vec![spawner];
                self.sources.push(Source { targets, foreign, gap_ns, is_regular: true, random });
            }
            _ => {
                let count = u32::try_from(self.draw(2, 30)).expect("few");
                let block = self.draw(2 * MS, 50 * MS);
                self.words += &format!(" sleepers({count} for {block} ns)");
                let child = Box::new(Kind::Once { work: 20 * US, block });
                let spawner = self.add(Kind::Spawns { count, child });
                let gap = self.draw(20 * MS, 80 * MS);
                self.source(vec![spawner], gap);
            }
        }
    }

    fn events(&mut self) {
        match self.random.u32(..10) {
            0 => {
                let (count, work) = (self.draw(1, 10), self.draw(4 * US, 20 * US));
                self.words += &format!(" ping-pong({count} of {work} ns)");
                for _ in 0..count {
                    let first = self.add(Kind::Once { work, block: 0 });
                    let second = self.add(Kind::Pong { work, peer: first });
                    *self.world.task(first).kind.borrow_mut() = Kind::Pong { work, peer: second };
                    self.world.wake(first, None);
                }
            }
            1 => {
                let (count, work) = (self.draw(1, 10), self.draw(6 * US, 40 * US));
                self.words += &format!(" flood({count} of {work} ns)");
                for _ in 0..count {
                    let task = self.answers(work, work, None);
                    self.source(vec![task], work + 4 * US);
                }
            }
            2 => self.actor(),
            3 => self.chain(),
            4 => {
                let (count, work) = (self.draw(10, 300), self.draw(5 * US, 25 * US));
                self.words += &format!(" broadcast({count} of {work} ns)");
                let peers: Vec<_> = (0..count).map(|_| self.answers(work, work, None)).collect();
                let task = self.add(Kind::WakesFirst { peers, work: 30 * US });
                let gap = self.draw(20 * MS, 100 * MS);
                self.source(vec![task], gap);
            }
            5 => self.service("bimodal", 8 * US, 12 * US, 0),
            6 => {
                let work = self.draw(10 * US, 200 * US);
                self.service("service", work / 2, work * 3 / 2, 0);
            }
            7 => {
                let block = self.draw(500 * US, 50 * MS);
                self.service("blocking", 20 * US, 20 * US, block);
            }
            8 => {
                // Each has credit for ever, and together they want more than there is.
                let (cores, work) =
                    (self.world.options.workers as u64, self.draw(80 * US, 160 * US));
                // Several sources: one alone is no faster than an event each microsecond. Each event that waits is judged by
                // all polls meanwhile, so few runs have more than 16 cores in use.
                let is_large = cores == 64 && self.random.u32(..8) == 0;
                let source_count = if is_large { 4 } else { 1 };
                let count = (40 * cores).min(640) * source_count;
                self.words += &format!(" crowd({count} of {work} ns)");
                for _ in 0..source_count {
                    let count = count / source_count;
                    let targets = (0..count).map(|_| self.answers(work, work, None)).collect();
                    self.source(targets, (work * 10 / 13 / cores.min(16)).max(4 * US));
                }
                // Some windows in which every worker has more reactions than it can run.
                let polls = if is_large || cores <= 16 { 250 * cores } else { 0 };
                self.world.polls_max.set(self.world.polls_max.get().max(polls));
            }
            _ => {
                let work = self.draw(100 * US, 10 * MS);
                let peers = vec![self.answers(10 * US, 10 * US, None)];
                self.words += &format!(" wakes-first({work} ns)");
                let task = self.add(Kind::WakesFirst { peers, work });
                self.source(vec![task], 4 * work);
            }
        }
    }

    fn service(&mut self, name: &str, least: u64, most: u64, block: u64) {
        let count = if block > 0 { self.draw(1, 40) } else { self.draw(2, 200) };
        let cores = self.world.kernel.core_count().min(8) as u64;
        let is_bimodal = name == "bimodal";
        let (rare, long) = if is_bimodal { (200, 10 * MS) } else { (0, 0) };
        let mean = (least + most) / 2 + long / 200;
        let gap = if block > 0 { 2 * block / count } else { mean * 100 / self.draw(5, 70) / cores };
        self.words += &format!(" {name}({count}, {least} to {most} ns, {block} ns asleep)");
        let kind = Kind::Answers { least, most, rare, long, block, next: None };
        let targets = (0..count).map(|_| self.add(kind.clone())).collect();
        self.source(targets, gap.max(20 * US));
    }

    fn actor(&mut self) {
        let work = self.draw(20 * US, 500 * US);
        self.words += &format!(" actor({work} ns)");
        let actor = self.add(Kind::Once { work, block: 0 });
        let clients: Vec<_> = (0..20).map(|_| self.answers(5 * US, 5 * US, Some(actor))).collect();
        let answered = (0..20).map(|_| self.answers(5 * US, 5 * US, None)).collect();
        *self.world.task(actor).kind.borrow_mut() =
            Kind::Actor { work, clients: answered, taken: 0 };
        let gap = work * 100 / self.draw(5, 60);
        self.source(clients, gap);
    }

    fn chain(&mut self) {
        let gap = self.draw(200 * US, 5 * MS);
        self.words += &format!(" chain(each {gap} ns)");
        let mut next = None;
        for _ in 0..10 {
            next = Some(self.answers(5 * US, 5 * US, next));
        }
        let first = next.expect("ten");
        self.source(vec![first], gap);
    }
}
