//! The properties of each run, judged by its events.
//!
//! **Events.** Let an event be visible to the kernel at `t0`, whose task has credit and is first polled at
//! `t1`. Each moment between is one of these, or the scheduler has wasted it:
//! - *older*: a thread was inside a poll of a task of the reaction lane that was ready before, not counting
//!   what exceeds a long poll;
//! - *kernel*: a thread was ready to run and had no core, unless it was inside a poll that computes for long.
//!
//! The rest must be at most `(1 + s) * base + share + put_off + surprise`, where
//! - `base = 3 * long_poll + 3 * wake + start + pass + slack`: the watchdog fires between one and two delays
//!   after the beginning of a poll, it wakes the supervisor, which starts a thread; one poll that is just not
//!   long, and the interval of poll passes;
//! - `s` is the number of threads that were caught in a long poll between `t0` and `t1`: after each the
//!   supervisor may have to call another thread;
//! - `share` is what the compute lane is owed for the reactions: a third of *older*, and 0.25 ms of debt for
//!   each thread that served;
//! - `put_off` is what `need.rs` lets pass between calls while reserve threads are caught by computations:
//!   `2^k` long polls with `k` of them, at most 16, for each call;
//! - `surprise` is four long polls if a task was polled for long whose polls were brief before, and no polls were long
//!   lately: then the watchdog fires between three and six delays after the beginning.
//!
//! **Shares.** Let `h` and `a` be the tasks of the compute and of the reaction lane at a moment, those that wait and
//! those that run. While a task of the compute lane waits, the lane is owed `min(h, q * w)` of the `w` processors, where `q` is
//! `h / (h + a)`, between 5 and 25 %. In each window of 10 ms it has that, times the part of its waiting that exceeds
//! a latency of `5 ms + base` (in `share.rs`, reactions run alone for 5 ms at most). While one of the reaction lane
//! has waited for longer than `base`, and no worker sleeps, that lane is owed `min(a, 0.75 * w)`, less one poll and
//! the largest debt of each worker, 1 ms; but not in windows in which a thread sleeps in the kernel inside a poll,
//! where the bounds of events say how late it is replaced. What exceeds a long poll counts for either lane, and so
//! does a poll that sleeps in the kernel until it can be replaced, which takes `base`. Where the kernel divides the
//! cores anew at a tick only, one tick in which threads that compute wait for a core counts, too.
//!
//! **Idle workers.** A worker sleeps no longer than ten watchdogs and two wake-ups while tasks are ready and
//! no worker searches for them.
//!
//! **Threads.** At most four reserve threads serve, and 16 during the first 100 ms. Beside them one for each
//! 128 long polls since the beginning, since calls are put off and never refused; and one for each poll of the
//! reaction lane that has become long: more tasks with credit than workers that compute for long catch one thread
//! each. And three for each poll that sleeps in the kernel, as many as there were
//! at a time: its own thread, the one that computes in its place and may be inside a long poll when it is back, and
//! one that was called for it and waits for a core.
//!
//! **Liveness.** The watchdog never finds a ready task while every thread sleeps, outside polls; and once the
//! events end, every task that is ready is polled, also beside computations that never end.

use std::collections::BTreeSet;

use super::{
    hybrid::order::{self, Parts},
    kernel::TICK_NS,
    lane::Lane,
    world::{Options, RESERVES, START_NS, World},
};

const MS: u64 = 1_000_000;
const WINDOW_NS: u64 = 10 * MS;

/// How long reactions may keep computation waiting altogether: five times `reaction_slice`.
const ALONE_NS: u64 = 5 * MS;

/// Costs of switches and system calls on the way of an event.
const SLACK_NS: u64 = 30_000;

/// The debt of a thread to the compute lane from which on that goes first: a quarter of `reaction_slice`.
const DEBT_NS: u64 = 250_000;

/// The most that it owes: a poll that waited for a core counts with all its time.
const DEBT_MAX_NS: u64 = 4 * DEBT_NS;

/// The most long polls that `need.rs` puts off a call: for events, and for short tasks.
const PUT_OFF_EVENTS_MAX: u64 = 16;
const PUT_OFF_MAX: u64 = 128;

/// How many long polls later than others a poll is checked that is long for once.
const SURPRISE_MAX: u64 = 4;

/// How long a burst at the beginning may have more threads.
const BURST_NS: u64 = 100 * MS;

/// From then on, no task computes for the first time: each that begins with credit has used it up.
const SETTLED_NS: u64 = 150 * MS;

/// How many failures of a kind are told.
const TOLD: usize = 3;

#[derive(Clone, Copy, Debug)]
struct PollSpan {
    place: usize,
    lane: Lane,
    begin: u64,
    end: u64,
    ready_at: u64,
    /// The processor time that it takes.
    work: u64,
    /// Since when it sleeps in the kernel.
    asleep_from: u64,
    /// The task is brief as a rule, and no poll was long lately: if this one is, it is a surprise.
    is_vouched: bool,
}

/// The contents of the lanes, and the debt to computation in the present window.
#[derive(Debug, Default)]
struct Lanes {
    /// Tasks that wait, and those that run and do not sleep in the kernel, by lane.
    waiting: [usize; 2],
    running: [usize; 2],
    /// Until when the rest is accounted for.
    since: u64,
    /// No worker sleeps for want of work.
    is_everyone_awake: bool,
    /// Since when a reaction waits without a pause.
    busy_since: u64,
    /// For how long a computation has waited.
    waited_ns: u64,
    /// The debt to each lane, in hundredths of a nanosecond of processor time.
    owed: [u64; 2],
}

/// The parts of the processors that reactions and computations have at least, in percent.
const REACTION_PERCENT: u64 = 75;
const PERCENT_MIN: u64 = 5;

impl Lanes {
    /// Takes note of the time before anything changes.
    fn advance(&mut self, now: u64, workers: usize, base: u64) {
        let passed = now - std::mem::replace(&mut self.since, now);
        let [a, h] = [0, 1].map(|lane| (self.waiting[lane] + self.running[lane]) as u64);
        let [a_waits, h_waits] = self.waiting.map(|waiting| waiting > 0);
        let owed = |ready: u64, percent: u64| (100 * ready).min(percent * workers as u64);
        if h_waits {
            let percent = (100 * h / (h + a)).clamp(PERCENT_MIN, 100 - REACTION_PERCENT);
            self.waited_ns += passed;
            self.owed[Lane::Compute as usize] += passed * owed(h, percent);
        }
        if a_waits && self.is_everyone_awake {
            let late = now.saturating_sub(self.busy_since + base).min(passed);
            self.owed[Lane::Reaction as usize] += late * owed(a, REACTION_PERCENT);
        } else {
            self.busy_since = now;
        }
    }

    /// The present window is over. Returns what each lane must have had in it, if computation comes so much later.
    fn end_window(&mut self, latency: u64) -> [u64; 2] {
        let waited = std::mem::take(&mut self.waited_ns);
        let [reactions, computations] = std::mem::take(&mut self.owed).map(|owed| owed / 100);
        let in_time = u128::from(waited.saturating_sub(latency));
        let least = u128::from(computations) * in_time / u128::from(waited.max(1));
        [reactions, u64::try_from(least).expect("less than what is owed")]
    }
}

#[derive(Debug)]
pub(crate) struct Checks {
    options: Options,
    pub(crate) trace: u64,
    pub(crate) polls: u64,
    current: Vec<Option<PollSpan>>,
    /// By their ends.
    past: Vec<PollSpan>,
    /// When a poll ended last that had computed for long.
    last_long: Option<u64>,
    /// When reserve threads were called.
    calls: Vec<u64>,
    lanes: Lanes,
    /// Since when a worker sleeps although a task is ready.
    stranded_since: Option<u64>,
    pub(crate) failures: Vec<String>,
    /// The waits of events with credit.
    pub(crate) waits: Vec<u64>,
    /// Those of them that happened once everything that computes from the beginning was known to.
    pub(crate) settled_waits: Vec<u64>,
    /// The same of those without.
    pub(crate) late: Vec<u64>,
    pub(crate) windows: u64,
    /// Polls that sleep in the kernel at some time: now, and at most so far.
    sleepers: usize,
    most_sleepers: usize,
    pub(crate) most_reserves: usize,
}

impl Checks {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            trace: options.seed,
            polls: 0,
            current: vec![None; options.workers + RESERVES],
            past: Vec::new(),
            last_long: None,
            calls: Vec::new(),
            lanes: Lanes::default(),
            stranded_since: None,
            failures: Vec::new(),
            waits: Vec::new(),
            settled_waits: Vec::new(),
            late: Vec::new(),
            windows: 0,
            sleepers: 0,
            most_sleepers: 0,
            most_reserves: 0,
        }
    }

    fn note(&mut self, value: u64) {
        // FNV-1a over words, as in `vigie_detect::Simulation`.
        self.trace = (self.trace ^ value).wrapping_mul(0x0000_0100_0000_01B3);
    }

    /// The lanes are about to change.
    fn lanes(&mut self, now: u64) -> &mut Lanes {
        self.lanes.advance(now, self.options.processors(), self.base_ns());
        &mut self.lanes
    }

    pub(crate) fn note_queued(&mut self, now: u64, lane: Lane) {
        self.note(now);
        self.lanes(now).waiting[lane as usize] += 1;
    }

    /// A task of the reaction lane is about to be queued in the other one.
    pub(crate) fn note_put_back(&mut self, now: u64) {
        self.lanes(now).waiting[Lane::Reaction as usize] -= 1;
    }

    /// The thread at `place` is inside no poll any more.
    pub(crate) fn end_poll(&mut self, place: usize, now: u64) {
        if let Some(poll) = self.current[place].take() {
            if poll.work < u64::MAX && poll.work > self.options.long_poll_ns() {
                self.last_long = Some(now);
            }
            if poll.asleep_from == u64::MAX {
                self.lanes(now).running[poll.lane as usize] -= 1;
            }
            self.past.push(PollSpan { end: now, ..poll });
        }
    }

    /// The poll that began at `place` takes that much processor time.
    pub(crate) fn note_work(&mut self, place: usize, work: u64) {
        if let Some(poll) = &mut self.current[place] {
            poll.work = work;
        }
    }

    /// The poll at `place` falls asleep in the kernel.
    pub(crate) fn note_asleep(&mut self, place: usize, now: u64) {
        if let Some(poll) = &mut self.current[place] {
            poll.asleep_from = now;
            let lane = poll.lane;
            self.lanes(now).running[lane as usize] -= 1;
        }
    }

    /// A poll begins that will sleep in the kernel, or ends.
    pub(crate) fn note_sleeper(&mut self, begins: bool) {
        self.sleepers = if begins { self.sleepers + 1 } else { self.sleepers - 1 };
        self.most_sleepers = self.most_sleepers.max(self.sleepers);
    }

    pub(crate) fn base_ns(&self) -> u64 {
        let Options { wake_ns, pass_interval_ns, .. } = self.options;
        3 * self.options.long_poll_ns() + 3 * wake_ns + START_NS + pass_interval_ns + SLACK_NS
    }

    /// Returns whether a poll has ended in the last second that had computed for long.
    fn has_computed_lately(&self, now: u64) -> bool {
        self.last_long.is_some_and(|at| now - at < 1_000 * MS)
    }

    fn polls_after(&self, begin: u64) -> impl Iterator<Item = PollSpan> + '_ {
        // A long poll may have begun before others that have ended since: the order is that of the ends.
        let past = self.past.iter().rev().take_while(move |poll| poll.end > begin);
        past.chain(self.current.iter().flatten()).copied()
    }

    pub(crate) fn fail(&mut self, what: String) {
        let kind = what.split(':').next().unwrap_or("").to_owned();
        if self.failures.iter().filter(|failure| failure.starts_with(&kind)).count() < TOLD {
            self.failures.push(what);
        }
    }

    /// Returns how much later than at once reserve threads may have been called between `from` and `to`.
    fn put_off_ns(&self, polls: &[PollSpan], from: u64, to: u64) -> u64 {
        let long_poll = self.options.long_poll_ns();
        let is_reserve = |poll: &&PollSpan| poll.place >= self.options.workers;
        let mut edges: Vec<(u64, i32)> = Vec::new();
        for poll in polls.iter().filter(is_reserve) {
            let (begin, end) = ((poll.begin + long_poll).max(from), poll.end.min(to));
            if begin < end {
                edges.extend([(begin, 1), (end, -1)]);
            }
        }
        edges.sort_unstable();
        let (mut caught, mut most) = (0, 0);
        for (_, step) in edges {
            caught += step;
            most = most.max(caught);
        }
        let Ok(most @ 1..) = u32::try_from(most) else { return 0 };
        let calls = self.calls.iter().filter(|&&at| at > from && at <= to).count() as u64;
        (calls + 1) * long_poll * 2_u64.saturating_pow(most).min(PUT_OFF_EVENTS_MAX)
    }
}

impl World {
    /// A poll begins: the event of its task is judged.
    pub(crate) fn begin_poll(&self, place: usize, task: usize, lane: Lane) {
        let (cell, now) = (self.task(task), self.now());
        assert!(cell.is_queued.replace(false), "task {task} is polled and was not ready");
        assert!(!cell.is_running.replace(true), "task {task} is polled twice at a time");
        cell.polls.set(cell.polls.get() + 1);
        let mut checks = self.checks.borrow_mut();
        checks.polls += 1;
        checks.note(now);
        checks.note((task * 1_024 + place) as u64);
        if lane != cell.lane.get() {
            checks.fail(format!("lane: task {task} is polled in another than it was queued in"));
        }
        let lanes = checks.lanes(now);
        lanes.waiting[cell.lane.get() as usize] -= 1;
        lanes.running[lane as usize] += 1;
        let ready_at = cell.ready_at.get();
        if let Some(happened) = cell.event_at.take() {
            if lane == Lane::Compute {
                checks.late.push(now - happened);
            } else {
                checks.waits.push(now - happened);
                if happened >= SETTLED_NS {
                    checks.settled_waits.push(now - happened);
                }
                if now - happened > checks.base_ns() {
                    self.judge(&mut checks, (task, place), happened, ready_at);
                }
            }
        }
        let long_poll_ns = self.options.long_poll_ns();
        let is_vouched = order::is_brief(&cell.account, cell.trust.is_proven(), long_poll_ns)
            && !cell.sleeps.get()
            && !cell.was_late.get()
            && !checks.has_computed_lately(now);
        let (end, work, asleep_from) = (u64::MAX, u64::MAX, u64::MAX);
        let begin = now;
        let span = PollSpan { place, lane, begin, end, ready_at, work, asleep_from, is_vouched };
        checks.current[place] = Some(span);
        drop(checks);
        self.note_idle();
        self.trace(|| format!("{place} polls {task}, {lane}"));
    }

    /// Prints what happens, if `VIGIE_TRACE` asks for it.
    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:>12} {}", self.now(), what());
        }
    }

    /// Explains the wait of `task` since `happened`.
    fn judge(
        &self,
        checks: &mut Checks,
        (task, place): (usize, usize),
        happened: u64,
        ready_at: u64,
    ) {
        let now = self.now();
        let long_poll = self.options.long_poll_ns();
        let (mut older, mut caught) = (Vec::new(), 0);
        let mut servers = BTreeSet::new();
        let polls: Vec<PollSpan> = checks.polls_after(happened).collect();
        for poll in &polls {
            let long_at = poll.begin + long_poll;
            caught += u64::from(long_at > happened && long_at < now && poll.end > long_at);
            if poll.lane == Lane::Reaction && poll.ready_at <= ready_at {
                // One that computes for less is longer only if it waits for a core.
                let until = if poll.work > long_poll { poll.end.min(long_at) } else { poll.end };
                older.push((poll.begin.max(happened), until.min(now)));
                servers.insert(poll.place);
            }
        }
        let queued = self.kernel.queued_after(happened).into_iter().filter(|queued| {
            let is_caught = |poll: &PollSpan| {
                poll.place == queued.thread
                    && poll.work > long_poll
                    && poll.begin + long_poll < queued.begin
                    && poll.end > queued.begin
            };
            !polls.iter().any(is_caught)
        });
        let older_ns = union(older.clone());
        let all = older.into_iter().chain(queued.map(|q| (q.begin.max(happened), q.end.min(now))));
        let rest = (now - happened).saturating_sub(union(all.collect()));
        let share = older_ns / 3 + DEBT_NS * servers.len() as u64;
        let put_off = checks.put_off_ns(&polls, happened, now);
        let is_surprise = |poll: &PollSpan| poll.is_vouched && poll.end > poll.begin + long_poll;
        let surprise = if polls.iter().any(is_surprise) { SURPRISE_MAX * long_poll } else { 0 };
        let allowed = (1 + caught) * checks.base_ns() + share + put_off + surprise;
        if rest > allowed {
            checks.fail(format!(
                "event: task {task} waited {} ns from {happened} on, ready at {ready_at}, polled at \
                 {place}: {older_ns} older, {rest} not explained, {allowed} allowed, of it {put_off} \
                 put off, {caught} caught",
                now - happened
            ));
        }
    }

    /// A reserve thread is called.
    pub(crate) fn note_call(&self) {
        self.trace(|| "a reserve thread is called".to_owned());
        self.checks.borrow_mut().calls.push(self.now());
        self.note_threads();
    }

    /// Counts the threads; called whenever one more serves, and now and then.
    pub(crate) fn note_threads(&self) {
        let (now, serving) = (self.now(), self.serving.borrow().len());
        let mut checks = self.checks.borrow_mut();
        checks.most_reserves = checks.most_reserves.max(serving);
        let put_off = now / (PUT_OFF_MAX * self.options.long_poll_ns());
        let usual = if now < BURST_NS { 16 } else { 4 + put_off };
        let long_poll = self.options.long_poll_ns();
        let is_caught = |poll: &&PollSpan| {
            poll.lane == Lane::Reaction
                && poll.place >= self.options.workers
                && poll.begin + long_poll < now
        };
        let caught = checks.current.iter().flatten().filter(is_caught).count();
        // And one that was called a moment ago.
        let allowed = usual + (1 + caught + 3 * checks.most_sleepers) as u64;
        if serving as u64 > allowed {
            checks.fail(format!("threads: {serving} reserve threads at {now}, {allowed} allowed"));
        }
    }

    /// Checks whether a worker sleeps although a task is ready; called when either may have changed.
    pub(crate) fn note_idle(&self) {
        let (now, mut checks) = (self.now(), self.checks.borrow_mut());
        checks.lanes(now).is_everyone_awake = !self.idle().has_sleepers();
        let is_stranded = self.queued_count.get() > 0 && self.idle().may_need_waking();
        let since = checks.stranded_since;
        checks.stranded_since = is_stranded.then(|| since.unwrap_or(now));
        let allowed = 10 * self.options.long_poll_ns() + 2 * self.options.wake_ns + SLACK_NS;
        if let Some(since) = since
            && now - since > allowed
        {
            checks.fail(format!(
                "idle: a worker slept from {since} to {now} while tasks were ready, {allowed} allowed"
            ));
            checks.stranded_since = None;
        }
    }

    /// The supervisor's timer ends.
    pub(crate) fn note_ring(&self) {
        let (now, ready) = (self.now(), self.queued_count.get());
        if ready > 0 && self.kernel.is_everyone_asleep() {
            let mut checks = self.checks.borrow_mut();
            checks.fail(format!(
                "liveness: {ready} tasks are ready at {now} and every thread sleeps"
            ));
        }
        self.note_idle();
    }

    /// Judges each window.
    pub(crate) async fn audit(self: std::rc::Rc<Self>) {
        loop {
            let begin = self.now();
            self.kernel.wait_until(begin + WINDOW_NS).await;
            self.judge_window(begin);
        }
    }

    fn judge_window(&self, begin: u64) {
        let mut checks = self.checks.borrow_mut();
        let (end, long_poll) = (begin + WINDOW_NS, self.options.long_poll_ns());
        let base = checks.base_ns();
        let mut least = checks.lanes(end).end_window(ALONE_NS + base);
        let late = self.options.workers as u64 * (long_poll + DEBT_MAX_NS);
        let sleeps = checks.polls_after(begin).any(|poll| poll.asleep_from < end);
        let reactions = &mut least[Lane::Reaction as usize];
        *reactions = if sleeps { 0 } else { reactions.saturating_sub(late) };
        if least == [0, 0] {
            return;
        }
        let queued = self.kernel.queued_after(begin);
        let (mut had, mut kept_off) = ([0; 2], 0);
        for poll in checks.polls_after(begin) {
            // As long as a thread that has fallen asleep cannot have been replaced, no other thread could have run on it.
            let to = poll.end.min(poll.asleep_from.saturating_add(base)).min(end);
            let part = |from: u64| {
                let from = from.max(begin);
                let without_core = queued
                    .iter()
                    .filter(|queued| queued.thread == poll.place)
                    .map(|queued| queued.end.min(to).saturating_sub(queued.begin.max(from)));
                let passed = to.saturating_sub(from);
                let without_core = without_core.sum::<u64>().min(passed);
                (passed - without_core, without_core)
            };
            let ((all, all_kept_off), (late, late_kept_off)) =
                (part(poll.begin), part(poll.begin + long_poll));
            let is_computation = poll.lane == Lane::Compute;
            had[Lane::Reaction as usize] += if is_computation { late } else { all };
            had[Lane::Compute as usize] += if is_computation { all } else { late };
            kept_off += if is_computation { all_kept_off } else { late_kept_off };
        }
        if self.options.has_tick {
            // The kernel divides the cores among the threads anew at each tick only.
            had[Lane::Compute as usize] += kept_off.min(TICK_NS);
        }
        checks.windows += 1;
        for lane in [Lane::Reaction, Lane::Compute] {
            let (had, least) = (had[lane as usize], least[lane as usize]);
            if had < least {
                let what = format!("{had} ns from {begin} to {end}, at least {least}");
                checks.fail(format!("share of {lane}: {what}"));
            }
        }
    }
}

/// How long at least one of the intervals lasts.
fn union(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut sum, mut reached) = (0, 0);
    for (begin, end) in intervals {
        let begin = begin.max(reached);
        if end > begin {
            sum += end - begin;
            reached = end;
        }
    }
    sum
}
