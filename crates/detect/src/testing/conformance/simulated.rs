//! Tasks in virtual time: one seed, one run.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use super::{
    At, Harness, Rule, SetupError, Suite, Violation, World, ledger::Ledger, stage::failed,
};
use crate::{
    clock::Instant,
    server::Server,
    testing::simulation::{Simulated, Simulation},
};

const NAME: &str = "simulation";
/// Requests and events of one run. Below the minimum `index_count_max`.
const COUNT: usize = 36;
/// The maximum duration of a run; an event that a task still lacks by then is lost.
const HORIZON: Duration = Duration::from_secs(3600);

/// The state that the tasks of one run share.
struct Scene<H: Harness> {
    harness: H,
    ledger: Ledger,
    at: At,
    server: Server,
    /// The first one.
    violation: Option<Violation>,
    /// Requests that wait.
    pending: BTreeSet<usize>,
    waits: u64,
    cancelled: u64,
}

impl<H, F> Suite<'_, F>
where
    H: Harness,
    F: FnMut(&World) -> Result<H, SetupError>,
{
    pub(super) fn simulations(&mut self) -> Result<(), Violation> {
        for seed in self.options.seeds.clone() {
            let at = At { case: NAME, host: "virtual", seed };
            self.deadline(at)?;
            let first = self.simulate(at)?;
            if seed % 8 == 0 {
                let second = self.simulate(at)?;
                if first != second {
                    return Err(Violation::Nondeterministic { first, second, at });
                }
            }
        }
        self.report.cases.push(("virtual", NAME));
        Ok(())
    }

    /// Rule 8, alone: only the detector's own deadline can move the clock.
    fn deadline(&mut self, at: At) -> Result<(), Violation> {
        let mut simulation = Simulation::new(at.seed);
        let scene = self.scene(&simulation, at)?;
        let Some(due) = scene.harness.happens_at(0) else { return Ok(()) };
        let scene = Rc::new(RefCell::new(scene));
        match simulation.block_on(wait(&scene, 0)) {
            Ok(outcome) => outcome,
            Err(deadlock) => {
                let saw = deadlock.to_string();
                Err(Violation::DeadlineMissed { request: 0, due, saw, at })
            }
        }
    }

    fn scene(&mut self, simulation: &Simulation, at: At) -> Result<Scene<H>, Violation> {
        let server = simulation.server().clone();
        let world = World::new(server.clone(), Some(simulation.clock()), at.seed);
        let harness = (self.factory)(&world).map_err(|error| Violation::Setup { error, at })?;
        let ledger = Ledger::new(harness.profile());
        Ok(Scene {
            harness,
            ledger,
            at,
            server,
            violation: None,
            pending: BTreeSet::new(),
            waits: 0,
            cancelled: 0,
        })
    }

    /// Returns the hash of the run's trace.
    fn simulate(&mut self, at: At) -> Result<u64, Violation> {
        let mut simulation = Simulation::new(at.seed);
        let scene = Rc::new(RefCell::new(self.scene(&simulation, at)?));
        let begin = simulation.now();
        let last = scene.borrow().harness.happens_at(COUNT - 1);
        let span_ns = last.map_or(2_000_000, |last| last.as_nanos() - begin.as_nanos());
        let mut tasks = Vec::new();
        for index in 0..COUNT {
            let random = simulation.random();
            let begin = begin + Duration::from_nanos(random.u64(..span_ns));
            // One in four leaves after a while, before its event or after it.
            let timeout = Duration::from_nanos(random.u64(..span_ns));
            let timeout = (random.u32(..4) == 0).then_some(timeout);
            let plan = Plan { index, begin, timeout, is_rude: random.bool() };
            tasks.push(simulation.spawn(waiter(Rc::clone(&scene), plan)));
        }
        let random = simulation.random();
        let pauses: Vec<_> =
            (0..COUNT).map(|_| Duration::from_nanos(random.u64(..span_ns / 16))).collect();
        tasks.push(simulation.spawn(events(Rc::clone(&scene), pauses)));
        let ended = simulation.block_on(end(Rc::clone(&scene), tasks));
        let mut scene = scene.borrow_mut();
        if let Some(violation) = scene.violation.take() {
            return Err(violation);
        }
        if let Err(deadlock) = ended {
            return Err(scene.lost(&deadlock.to_string()));
        }
        self.report.waits += scene.waits;
        self.report.cancelled += scene.cancelled;
        self.report.events += scene.ledger.delivered_count() as u64;
        Ok(simulation.trace_hash())
    }
}

impl<H: Harness> Scene<H> {
    /// Counts the events of a detector of time that have happened meanwhile.
    fn catch_up(&mut self) {
        let now = self.server.now();
        while self.ledger.happened < COUNT
            && self.harness.happens_at(self.ledger.happened).is_some_and(|at| at <= now)
        {
            self.ledger.happened += 1;
        }
    }

    fn inspect(&self) -> Result<(), Violation> {
        match self.harness.memory() {
            Some(memory) if memory.freed_in_flight > 0 => {
                Err(Violation::FreedInFlight { count: memory.freed_in_flight, at: self.at })
            }
            _ => Ok(()),
        }
    }

    /// Nothing happens any more, and a task still waits.
    fn lost(&self, saw: &str) -> Violation {
        let at = self.at;
        let request = self.pending.first().copied().unwrap_or(0);
        let saw = format!("{saw}; still pending: {:?}", self.pending);
        match self.harness.happens_at(request) {
            Some(due) => Violation::DeadlineMissed { request, due, saw, at },
            None => Violation::EventLost { rule: Rule::Announced, request, saw, at },
        }
    }
}

/// The plan of one task.
struct Plan {
    index: usize,
    begin: Instant,
    timeout: Option<Duration>,
    /// It leaves without a last poll.
    is_rude: bool,
}

type SharedScene<H> = Rc<RefCell<Scene<H>>>;

/// Waits as planned.
async fn waiter<H: Harness>(scene: SharedScene<H>, plan: Plan) {
    let outcome = async {
        let timers = scene.borrow().server.timers().clone();
        let slept = timers.wait(plan.begin).await;
        slept.map_err(|error| failed(plan.index, error, scene.borrow().at))?;
        match plan.timeout {
            None => wait(&scene, plan.index).await,
            Some(timeout) => {
                let mut waiting = pin!(wait(&scene, plan.index));
                let until = plan.begin + timeout;
                let mut timeout = pin!(timers.wait(until));
                let event = poll_fn(|cx| {
                    if plan.is_rude && timeout.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                    match waiting.as_mut().poll(cx) {
                        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                        Poll::Pending if plan.is_rude => Poll::Pending,
                        Poll::Pending => timeout.as_mut().poll(cx).map(|_| None),
                    }
                });
                event.await.unwrap_or_else(|| {
                    let mut scene = scene.borrow_mut();
                    scene.ledger.left(plan.is_rude);
                    scene.cancelled += 1;
                    scene.pending.remove(&plan.index);
                    Ok(())
                })
            }
        }
    };
    let outcome = outcome.await;
    let mut scene = scene.borrow_mut();
    let outcome = outcome.and_then(|()| scene.inspect());
    if let Err(violation) = outcome {
        scene.violation.get_or_insert(violation);
    }
}

/// Waits for the event of request `index`, and records it.
async fn wait<H: Harness>(scene: &SharedScene<H>, index: usize) -> Result<(), Violation> {
    let (waiting, begin) = {
        let mut scene = scene.borrow_mut();
        let request = scene.harness.request(index);
        scene.waits += 1;
        scene.pending.insert(index);
        (scene.harness.handle().wait_owned(request), scene.server.now())
    };
    let outcome = waiting.await;
    let mut scene = scene.borrow_mut();
    let at = scene.at;
    scene.pending.remove(&index);
    let event = outcome.map_err(|error| failed(index, error, at))?;
    let now = scene.server.now();
    if let Some(due) = scene.harness.happens_at(index)
        && now != due.max(begin)
    {
        let saw = format!("it came at {now:?}");
        return Err(Violation::DeadlineMissed { request: index, due, saw, at });
    }
    scene.catch_up();
    let identity = scene.harness.identify(index, event);
    scene.ledger.deliver(index, identity, at)
}

/// Makes all events happen, with pauses; those of a detector of time happen on their own.
async fn events<H: Harness>(scene: SharedScene<H>, pauses: Vec<Duration>) {
    let timers = scene.borrow().server.timers().clone();
    for (index, pause) in pauses.into_iter().enumerate() {
        let next = scene.borrow().server.now() + pause;
        if timers.wait(next).await.is_err() {
            return;
        }
        let trigger = {
            let mut scene = scene.borrow_mut();
            if scene.harness.happens_at(index).is_some() {
                return;
            }
            scene.ledger.happened += 1;
            scene.harness.trigger(index)
        };
        trigger();
    }
}

/// Waits for all tasks, then for the events that cancelled requests left to others.
async fn end<H: Harness>(scene: SharedScene<H>, tasks: Vec<Simulated<()>>) {
    let timers = scene.borrow().server.timers().clone();
    let horizon = scene.borrow().server.now() + HORIZON;
    let mut timeout = pin!(timers.wait(horizon));
    for task in tasks {
        let mut task = pin!(task);
        let is_late = poll_fn(|cx| {
            if task.as_mut().poll(cx).is_ready() || scene.borrow().violation.is_some() {
                return Poll::Ready(false);
            }
            timeout.as_mut().poll(cx).map(|_| true)
        });
        if is_late.await {
            let violation = scene.borrow().lost("the horizon was reached");
            scene.borrow_mut().violation.get_or_insert(violation);
        }
        if scene.borrow().violation.is_some() {
            return;
        }
    }
    loop {
        let owed = {
            let scene = scene.borrow();
            if scene.ledger.is_shared() { scene.ledger.outstanding() } else { 0 }
        };
        if owed == 0 {
            break;
        }
        let mut waiting = pin!(wait(&scene, COUNT));
        let outcome = poll_fn(|cx| match waiting.as_mut().poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => timeout.as_mut().poll(cx).map(|_| {
                let saw = format!("{owed} events of cancelled requests reached no other request");
                let (rule, at) = (Rule::Cancelled, scene.borrow().at);
                Err(Violation::EventLost { rule, request: COUNT, saw, at })
            }),
        });
        if let Err(violation) = outcome.await {
            scene.borrow_mut().violation.get_or_insert(violation);
            return;
        }
    }
    // Requests cancelled in flight are collected meanwhile.
    let later = scene.borrow().server.now() + Duration::from_secs(1);
    drop(timers.wait(later).await);
    let mut scene = scene.borrow_mut();
    let outcome = match scene.harness.memory() {
        Some(memory) if memory.live > 0 => {
            Err(Violation::Lingering { live: memory.live, at: scene.at })
        }
        _ => scene.inspect(),
    };
    if let Err(violation) = outcome {
        scene.violation.get_or_insert(violation);
    }
}
