//! Tasks that are alike, such as the connections of a relay, each with an event as soon as its last one is handled: the turns of one thread.

use crossbeam::deque::Worker as Queue;
use vigie_detect::Instant;

use super::{
    MS, US,
    census::{QUANTUM, world_and_queues},
    hybrid::order::{self, Limits, OwnQueues, Parts, Turns, WakeContext},
    lane::{Account, Cause, Credit, Rank},
    threads::REACTION_SLICE,
    world::World,
};

/// The thread polls for events at such intervals, and a poll pass takes so long.
const PASS_INTERVAL_NS: u64 = 50 * US;
const PASS_NS: u64 = 2 * US;

struct Alike<'a> {
    world: &'a World,
    queue: &'a Queue<usize>,
    accounts: Vec<Account>,
    now: u64,
}

impl Alike<'_> {
    fn new<'a>(world: &'a World, queue: &'a Queue<usize>, count: usize) -> Alike<'a> {
        let accounts = (0..count).map(|_| Account::new(Credit::FULL, None)).collect();
        Alike { world, queue, accounts, now: 1_000 * MS }
    }

    const fn own(&self) -> OwnQueues<'_, usize> {
        OwnQueues { reacting: self.queue, worker: Some(0) }
    }

    /// An event comes for a task.
    fn wake(&self, task: usize) {
        let (now, own) = (self.now, self.own());
        let limits = Limits {
            brief_ns: self.world.injected().brief_ns(now),
            quantum: QUANTUM,
            gave_way: false,
            is_free: own.is_free(self.world),
        };
        let rank = order::choose_rank(&self.accounts[task], None, false, now, limits);
        let cause = Cause::Detection;
        let waking = WakeContext { cause, was_running: false, is_short: true, switched_at: now };
        self.world.queue_here(&own, task, rank, waking);
    }

    /// Lets all tasks run for `nanos`, with polls of 5 to 15 us, and of 50 us one in a hundred. Returns by how many polls any task was ahead of
    /// another one.
    fn most_ahead(&mut self, nanos: u64) -> usize {
        let count = self.accounts.len();
        let (mut turns, mut random) = (Turns::new(0, REACTION_SLICE), fastrand::Rng::with_seed(0));
        let mut polls = vec![0; count];
        // The number of tasks that were polled so often, and the lowest such number.
        let (mut having, mut least, mut most_ahead) = (vec![count], 0, 0);
        let (mut ended, mut pass_at): (Vec<usize>, u64) = ((0..count).collect(), self.now);
        let end = self.now + nanos;
        while self.now < end {
            if self.now >= pass_at {
                ended.drain(..).for_each(|task| self.wake(task));
                self.now += PASS_NS;
                pass_at = self.now + PASS_INTERVAL_NS;
            }
            let next = turns.next(self.world, &self.own(), Instant::from_nanos(self.now));
            let Some((task, lane)) = next else {
                self.now = pass_at;
                continue;
            };
            let is_odd = random.u32(..100) == 0;
            let used = if is_odd { 50 * US } else { random.u64(5 * US..=15 * US) };
            self.now += used;
            let account = &self.accounts[task];
            account.charge(account.credit().after(self.now, used), used);
            turns.record(self.world, &self.own(), lane, used);

            having[polls[task]] -= 1;
            polls[task] += 1;
            having.resize(having.len().max(polls[task] + 1), 0);
            having[polls[task]] += 1;
            while having[least] == 0 {
                least += 1;
            }
            most_ahead = most_ahead.max(polls[task] - least);
            ended.push(task);
        }
        assert!(least > 20, "each has had many polls");
        most_ahead
    }
}

/// Goal: of tasks that are alike, each that is ready is polled once before any is polled again, whether they use up their credit or are so many
/// that the lane never runs empty. Method: their polls in virtual time; none may be further ahead than by the one that comes next.
#[test]
fn tasks_that_are_alike_take_turns() {
    for (count, nanos) in [(2, 300 * MS), (16, 2_000 * MS), (256, 1_000 * MS), (1_024, 1_000 * MS)]
    {
        let (world, queues) = world_and_queues();
        let most_ahead = Alike::new(&world, &queues[0], count).most_ahead(nanos);
        assert!(most_ahead <= 2, "{count} tasks: one was {most_ahead} polls ahead");
    }
}

/// Goal: a task that has used up its credit does not go before computation that waits. Method: such a task beside none, beside a computation
/// in the thread's own lane, and beside one that waits for any thread.
#[test]
fn only_those_that_delay_no_computation_react_without_credit() {
    for waits in [None, Some(true), Some(false)] {
        let (world, queues) = world_and_queues();
        let alike = Alike::new(&world, &queues[0], 2);
        let computation = Rank { place: u64::MAX, needs_ns: 0, is_short: false };
        match waits {
            Some(true) => world.computing()[0].push(1, computation),
            Some(false) => world.injected().compute.push(1, computation),
            None => {}
        }
        let spent = Credit::FULL.after(alike.now, 2 * MS);
        alike.accounts[0].charge(spent, 10 * US);
        alike.wake(0);
        assert_eq!(queues[0].pop().is_some(), waits.is_none(), "{waits:?}");
    }
}
