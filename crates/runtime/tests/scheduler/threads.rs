//! The threads of one run. Each carries out what the scheduler's own code decides; what the real ones do
//! beside that (parking, the reserve threads' life) is modelled here, and checked by loom.

use std::{rc::Rc, time::Duration};

use crossbeam::deque::Worker as Queue;
use vigie_detect::Instant;

use super::{
    hybrid::{
        census::{self, Census, SupervisorHistory},
        need,
        order::{self, Parts, ReserveMode, Turns, WakeContext},
    },
    kernel::Kernel,
    lane::{self, Cause, Credit, Lane},
    loads::Act,
    world::{CALL_NS, Local, Options, PASS_NS, Parker, START_NS, SWITCH_NS, Task, World},
};

/// As by default.
pub(crate) const REACTION_SLICE: Duration = Duration::from_millis(1);

pub(crate) struct Thread {
    world: Rc<World>,
    kernel: Rc<Kernel>,
    local: Rc<Local>,
    turns: Turns,
}

impl Thread {
    pub(crate) fn new(world: &Rc<World>, place: usize, reacting: Queue<usize>) -> Self {
        let worker = (place < world.options.workers).then_some(place);
        let local = Local {
            place,
            worker,
            reacting,
            cause: Cause::Foreign.into(),
            is_short: false.into(),
            woken_ns: 0.into(),
            switched_at: 0.into(),
        };
        Self {
            kernel: Rc::clone(&world.kernel),
            world: Rc::clone(world),
            local: Rc::new(local),
            turns: Turns::new(place, REACTION_SLICE),
        }
    }

    /// `Worker::work`.
    pub(crate) async fn work(mut self) {
        let place = self.local.place;
        self.kernel.wake(place);
        self.kernel.compute(place, 0).await;
        let mut now = self.world.now();
        loop {
            now = self.poll_if_due(now).await;
            let Self { world, local, turns, .. } = &mut self;
            let (parts, own) = (&**world, &local.own());
            if let Some((task, lane)) = turns.next(parts, own, Instant::from_nanos(now)) {
                turns.stop_searching(parts);
                turns.distribute(parts, own);
                now = self.poll(task, lane, now).await;
            } else if let Some((task, lane)) = turns.search(parts, own) {
                turns.stop_searching(parts);
                now = self.poll(task, lane, self.world.now()).await;
            } else {
                self.rest();
                self.sleep().await;
                now = self.world.now();
                self.turns.note_wake(Instant::from_nanos(now));
                self.local.switched_at.set(now);
                self.world.last_pass.set(now);
            }
        }
    }

    fn rest(&self) {
        self.world.worker_slot(self.local.place).rest(&super::kernel_help::HogTimer);
        self.world.checks.borrow_mut().end_poll(self.local.place, self.world.now());
    }

    async fn sleep(&mut self) {
        let place = self.local.place;
        let now = Instant::from_nanos(self.world.now());
        self.turns.begin_sleep(&*self.world, now, None);
        self.world.note_idle();
        loop {
            self.kernel.compute(place, CALL_NS).await;
            self.local.cause.set(Cause::Detection);
            self.local.switched_at.set(self.world.now());
            self.park(false, None).await;
            if self.turns.ends_sleep(&*self.world, &self.local.own(), false) {
                self.world.note_idle();
                return;
            }
        }
    }

    /// `Parker::park`; returns whether the poller was free. A reserve thread sleeps there only.
    async fn park(&self, is_reserve: bool, until: Option<Instant>) -> bool {
        let (world, place) = (&*self.world, self.local.place);
        if world.parker(place).replace(Parker::Awake) == Parker::Notified {
            return true;
        }
        let is_shared = |place: usize| place < world.options.workers && world.options.workers > 1;
        let is_free = match world.watchers.borrow()[..] {
            [] => true,
            [first] => is_shared(place) && is_shared(first),
            _ => false,
        };
        if is_free {
            world.watchers.borrow_mut().push(place);
            world.parker(place).set(Parker::InWaitPoint);
            let is_awaited = || world.parker(place).get() == Parker::Called;
            let must_stay = is_reserve && self.turns.become_sentinel(world, is_awaited);
            if !world.has_events() && !must_stay {
                match until {
                    Some(until) => self.kernel.sleep_until(place, until.as_nanos()).await,
                    None => self.kernel.sleep(place).await,
                }
            }
            self.local.switched_at.set(world.now());
            world.watchers.borrow_mut().retain(|watcher| *watcher != place);
            world.next_pass.set(world.now() + world.options.pass_interval_ns);
            world.deliver(&self.local);
        } else if !is_reserve {
            world.parker(place).set(Parker::OnThread);
            while world.parker(place).get() != Parker::Notified {
                self.kernel.sleep(place).await;
            }
        }
        world.parker(place).set(Parker::Awake);
        is_free
    }

    async fn poll_if_due(&self, now: u64) -> u64 {
        if !self.world.is_pass_due(now) {
            return now;
        }
        self.local.cause.set(Cause::Detection);
        self.local.switched_at.set(self.world.now());
        self.world.detect(&self.local, self.local.worker.is_none());
        self.kernel.compute(self.local.place, PASS_NS).await;
        let now = self.world.now();
        self.local.switched_at.set(now);
        now
    }

    /// Puts one whose kind has turned out to compute into the compute lane; returns whether it did. As `Worker::poll` does.
    fn is_put_back(&self, task: usize, cell: &Task, now: u64) -> bool {
        let world = &*self.world;
        if cell.trust.early().is_none() {
            return false;
        }
        let may_try = need::may_try(world.options.workers, world.serving_count());
        if !may_try {
            cell.is_tried.set(false);
        }
        let expected = world.expected_ns(cell);
        let rank = order::rank_of_late(&cell.account, expected, now, world.options.quantum);
        let Some(rank) = rank.filter(|_| !(may_try && world.may_try_now(cell))) else {
            return false;
        };
        cell.lane.set(Lane::Compute);
        world.checks.borrow_mut().note_put_back(now);
        world.checks.borrow_mut().note_queued(now, Lane::Compute);
        let cause = Cause::Poll;
        let waking = WakeContext { cause, was_running: false, is_short: false, switched_at: now };
        world.queue_here(&self.local.own(), task, Some(rank), waking);
        true
    }

    /// `Worker::poll`, with `task_cell`'s part.
    async fn poll(&mut self, task: usize, lane: Lane, now: u64) -> u64 {
        let (world, local, place) = (&*self.world, &*self.local, self.local.place);
        let (cell, instant) = (world.task(task), Instant::from_nanos(now));
        local.cause.set(Cause::Poll);
        local.woken_ns.set(0);
        local.switched_at.set(now);
        if lane == Lane::Reaction && self.is_put_back(task, &cell, now) {
            return now;
        }
        local.is_short.set(order::has_short_polls(&cell.account, cell.trust.is_proven()));
        let long_poll_ns = world.options.long_poll_ns();
        let is_brief = !cell.sleeps.get()
            && order::is_brief(&cell.account, cell.trust.is_proven(), long_poll_ns);
        world.worker_slot(place).set_brief(is_brief && place < world.options.workers);
        let is_vouched = is_brief && !cell.was_late.get();
        world.worker_slot(place).begin(instant, &world.info(&cell));
        local.own().guard(world, instant, world.is_watched(), is_vouched, |is_later| {
            let is_seen = world.is_watched() || world.is_steady(instant);
            self.turns.may_put_off(world, instant, long_poll_ns, (is_seen, is_later))
        });
        let sleeps = cell.sleeps.get();
        if sleeps && self.turns.expect_sleep(world, &local.own(), instant, world.is_watched()) {
            activate(&self.world, place).await;
        }
        world.queued_count.set(world.queued_count.get() - 1);
        world.begin_poll(place, task, lane);
        let mut credit = cell.account.credit();
        let plan = cell.kind.borrow_mut().begin(&cell, &mut world.random.borrow_mut());
        world.checks.borrow_mut().note_work(place, plan.work_ns);
        self.act(plan.first, &mut credit);
        if plan.block_ns > 0 {
            world.checks.borrow_mut().note_sleeper(true);
        }
        self.kernel.compute(place, plan.work_ns + SWITCH_NS).await;
        if plan.block_ns > 0 {
            world.checks.borrow_mut().note_asleep(place, world.now());
            self.kernel.block(place, plan.block_ns).await;
            world.checks.borrow_mut().note_sleeper(false);
        }
        let acts = cell.kind.borrow_mut().end(task, &cell, world.is_ending.get());
        self.act(acts, &mut credit);
        let end = world.now();
        let (elapsed, used) = (end - now, plan.work_ns + SWITCH_NS);
        let charged = used.min(lane::most_ns(cell.trust.is_proven()));
        cell.account.charge(credit.after(end, charged), charged);
        cell.used_ns.set(cell.used_ns.get() + used);
        world.note_poll(&cell, used);
        cell.sleeps.set(elapsed > long_poll_ns && world.worker_slot(place).is_blocked());
        cell.was_late.set(elapsed > long_poll_ns);
        cell.is_running.set(false);
        // What happened during its own poll has waited for that, and for nothing else.
        cell.event_at.set(cell.event_at.get().map(|_| end));
        if cell.was_woken.take() {
            world.queue(task, Some(local), true);
        }
        self.turns.record(world, &local.own(), lane, elapsed);
        world.checks.borrow_mut().end_poll(place, end);
        let has_slept = world.worker_slot(place).is_blocked();
        if used > long_poll_ns || elapsed > long_poll_ns && has_slept {
            world.watchdog().note_long_poll(end, elapsed);
        }
        if sleeps || elapsed > long_poll_ns {
            world.worker_slot(place).end_long_poll(world.blocked());
        }
        end
    }

    fn act(&self, acts: Vec<Act>, credit: &mut Credit) {
        let world = &*self.world;
        let now = world.now();
        for act in acts {
            match act {
                Act::Wake(task) => world.wake(task, Some(&self.local)),
                Act::Send(task) => {
                    let cell = world.task(task);
                    cell.inbox.set(cell.inbox.get() + 1);
                    world.wake(task, Some(&self.local));
                }
                Act::Spawn(kind) => {
                    let of_kind = world.kinds.pay(kind.of_future(), now);
                    let child = world.add(kind, of_kind.unwrap_or_else(|| credit.pay_child(now)));
                    world.wake(child, Some(&self.local));
                }
            }
        }
    }

    // ------------------------------------------------------------------------- reserve threads

    /// `worker::run_reserve`: it is called, serves, and is a spare again. Its keep-alive is longer than a
    /// run.
    pub(crate) async fn reserve(mut self) {
        let place = self.local.place;
        self.kernel.shorten_slice(place);
        loop {
            self.kernel.sleep(place).await;
            self.serve().await;
            self.world.serving.borrow_mut().retain(|&other| other != place);
            self.world.spares.borrow_mut().push(place);
        }
    }

    /// `Worker::serve`.
    async fn serve(&mut self) {
        let place = self.local.place;
        let mut now = self.world.now();
        self.local.switched_at.set(now);
        self.turns.answer_call(&*self.world, Instant::from_nanos(now));
        let mut has_served = true;
        loop {
            now = self.poll_if_due(now).await;
            let Self { world, local, turns, .. } = &mut *self;
            let (parts, own) = (&**world, &local.own());
            if let Some((task, lane)) = turns.next_of_reserve(parts, own, Instant::from_nanos(now))
            {
                turns.distribute(parts, own);
                now = self.poll(task, lane, now).await;
                has_served = true;
                continue;
            }
            self.rest();
            if self.world.worker_slot(place).take_long_slice() {
                self.kernel.shorten_slice(place);
            }
            self.turns.end_substitution(&*self.world);
            self.local.switched_at.set(now);
            let instant = Instant::from_nanos(now);
            if !self.turns.should_watch(&*self.world, instant, self.world.is_steady(instant)) {
                break;
            }
            self.kernel.compute(place, CALL_NS).await;
            self.local.cause.set(Cause::Detection);
            let until = self.turns.resumes_at(&*self.world, Instant::from_nanos(now));
            let is_free = self.park(true, until).await;
            self.world.sentinel().give_up(place);
            if !is_free {
                break;
            }
            now = self.world.now();
            self.local.switched_at.set(now);
            let instant = Instant::from_nanos(now);
            if std::mem::take(&mut has_served) {
                self.turns.begin_service(instant);
            } else {
                self.turns.continue_service(instant, self.world.options.long_poll);
            }
        }
        self.turns.end_substitution(&*self.world);
        self.rest();
    }
}

/// `Supervisor::work`.
pub(crate) async fn supervise(world: Rc<World>) {
    let kernel = Rc::clone(&world.kernel);
    let thread = world.supervisor();
    let Options { long_poll, quantum, .. } = world.options;
    let [mut last_call, mut last_any] = [Instant::from_nanos(0); 2];
    kernel.shorten_slice(thread);
    loop {
        while !super::timerfd::take_rung() {
            kernel.sleep(thread).await;
        }
        let was_resting = world.watchdog().is_resting();
        let now = world.instant();
        kernel.compute(thread, 2 * CALL_NS).await;
        let census = Census::take(&*world, now, long_poll);
        let is_unwatched = !world.is_watched() && !world.is_steady(now);
        let call = (now - last_call).as_nanos() / long_poll.as_nanos();
        let since = SupervisorHistory { long_poll, call, any: now - last_any };
        let (orders, needs_more) = census.decide(&*world, is_unwatched, since, quantum);
        if world.serves().load() == ReserveMode::AnyOne {
            last_any = now;
        }
        world.trace(|| {
            format!("{census:?} {orders:?}, more {needs_more}, unwatched {is_unwatched}")
        });
        if orders.activates > 0 || orders.wakes_sentinel {
            last_call = now;
        }
        for _ in 0..orders.activates {
            if !activate(&world, thread).await {
                break;
            }
        }
        give_long_slices(&world, now);
        teach(&world, now);
        let watched = (world.is_watched(), long_poll);
        census.plan_next_check(&*world, now, (needs_more, was_resting), watched);
    }
}

/// What `Supervisor::help_against_hogs` does with kinds.
fn teach(world: &World, now: Instant) {
    for place in (0..world.options.workers).chain(world.serving()) {
        let (worker_slot, long_poll) = (world.worker_slot(place), world.options.long_poll_ns());
        if worker_slot.is_caught(now, long_poll)
            && !worker_slot.is_blocked()
            && let Some(word) = worker_slot.early_word()
            && let Some((kind, early)) = super::kind::TaskKind::from_word(word)
        {
            let beside = census::caught_beside(world, place, word, now, long_poll);
            if let Some(nanos) = worker_slot.lesson(now, world.options.quantum) {
                world.kinds.note_poll(kind, early, nanos, beside);
            }
            world.kinds.note_caught(kind, early, beside + 1);
        }
    }
}

/// What `Supervisor::help_against_hogs` does with slices.
fn give_long_slices(world: &World, now: Instant) {
    for place in world.serving() {
        let worker_slot = world.worker_slot(place);
        let Some((began, _)) = worker_slot.current() else { continue };
        if worker_slot.is_caught(now, world.options.long_poll_ns())
            && !worker_slot.is_blocked()
            && worker_slot.log_once(began)
        {
            worker_slot.give_long_slice();
            world.kernel.restore_slice(place);
        }
    }
}

/// `Reserves::activate`, on the thread `caller`. Returns whether there was a thread left.
async fn activate(world: &Rc<World>, caller: usize) -> bool {
    let spare = world.spares.borrow_mut().pop();
    let is_new = spare.is_none();
    let Some(place) = spare.or_else(|| world.empty.borrow_mut().pop()) else { return false };
    world.serving.borrow_mut().push(place);
    world.note_call();
    if is_new {
        world.kernel.compute(caller, START_NS).await;
    }
    world.kernel.wake(place);
    true
}
