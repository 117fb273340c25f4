//! Credit: how much processor time a task may still use before it counts as computing.
//!
//! Each task has a bucket of processor time. Polls are paid from it, it refills slowly, and a new task is
//! paid from the bucket of the task that spawned it. Operating systems give priority to threads that have
//! used less than their share (virtual time, lag: [duda99]); this is the same rule for tasks.
//!
//! A bucket is one number, the time at which it will be full again: using `t` of processor time moves it `t *
//! REFILL_NS` into the future. So refilling costs nothing, and the tasks that have used least are those whose
//! buckets are full first.

use crate::sync::{
    AtomicU8, AtomicU32, AtomicU64, Ordering,
    count::{AtomicU64 as Count, RELAXED},
};

use super::Lane;

/// The capacity of a bucket, in nanoseconds of processor time. Halving or doubling it makes no difference
/// that the simulation could show.
const CAPACITY_NS: u64 = 1_000_000;

/// The number of nanoseconds in which one nanosecond of credit comes back: a twentieth of a processor per
/// task.
const REFILL_NS: u64 = 20;

/// The furthest below zero that a bucket can go: overuse is remembered for at most 0.4 s.
const DEBT_NS: u64 = 20_000_000;

/// The least that a bucket must hold for its task to be in the reaction lane: about one switch with its
/// system calls.
const LEAST_NS: u64 = 20_000;

/// A task whose usual poll is no longer than this may begin it with a smaller credit.
const OVERDRAFT_NS: u64 = CAPACITY_NS / 2;

/// The most that a kind pays for a new task.
const CHILDS_MOST_NS: u64 = 100_000;

/// The number of polls of the expected length for which a short new task is paid.
const CHILDS_POLLS: u64 = 6;

/// The credit of a task: the time at which its bucket is full, in nanoseconds on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Credit(u64);

impl Credit {
    /// A full bucket, now and later.
    pub(crate) const FULL: Self = Self(0);

    /// Returns whether the bucket holds enough at `now` for its task to react.
    pub(crate) const fn is_sufficient(self, now: u64) -> bool {
        self.0 < now.saturating_add((CAPACITY_NS - LEAST_NS) * REFILL_NS)
    }

    /// Returns the remaining credit after `used` nanoseconds of processor time until `now`.
    #[must_use]
    pub(crate) fn after(self, now: u64, used: u64) -> Self {
        let full_at = self.0.max(now).saturating_add(used.saturating_mul(REFILL_NS));
        Self(full_at.min(now.saturating_add((CAPACITY_NS + DEBT_NS) * REFILL_NS)))
    }

    /// Pays a new task at `now` with half of the remaining credit. Returns the new task's credit.
    pub(crate) fn pay_child(&mut self, now: u64) -> Self {
        self.pay(now, self.level(now) / 2)
    }

    /// Returns how much the bucket holds at `now`, zero if it is in debt.
    fn level(self, now: u64) -> u64 {
        CAPACITY_NS.saturating_sub(self.0.saturating_sub(now) / REFILL_NS)
    }

    fn pay(&mut self, now: u64, amount: u64) -> Self {
        *self = self.after(now, amount);
        Self(now + (CAPACITY_NS - amount) * REFILL_NS)
    }

    /// Returns the place in the compute lane of a task that is queued at `now`: the lowest goes first. A task
    /// that has used nothing for long is placed beside a new one, not before it.
    pub(crate) fn place(self, now: u64) -> u64 {
        self.0.max(now)
    }
}

/// Returns whether polls that are expected to use this many nanoseconds are short enough to be paid by credit.
pub(crate) fn is_for_credit(expected: u32) -> bool {
    u64::from(expected) <= OVERDRAFT_NS
}

/// A shared bucket: it pays for all tasks spawned by threads that run no task.
#[derive(Debug)]
pub(crate) struct SharedCredit(Count);

impl SharedCredit {
    pub(crate) const fn new() -> Self {
        Self(Count::new(Credit::FULL.0))
    }

    /// Pays a new task at `now`; see [`Credit::pay_child`].
    pub(crate) fn pay_child(&self, now: u64) -> Credit {
        self.change(|credit| Some(credit.pay_child(now))).unwrap_or(Credit::FULL)
    }

    /// Pays a new task at `now` for some polls that use `expected` nanoseconds each; `None` if these are
    /// long, or too little credit is left.
    pub(crate) fn pay_short(&self, now: u64, expected: u32) -> Option<Credit> {
        let expected = u64::from(expected);
        let polls = (CHILDS_POLLS * expected).clamp(LEAST_NS, CHILDS_MOST_NS - LEAST_NS);
        let amount = LEAST_NS + polls;
        let can_pay = |credit: &Credit| expected <= OVERDRAFT_NS && amount <= credit.level(now) / 2;
        self.change(|credit| can_pay(credit).then(|| credit.pay(now, amount)))
    }

    fn change(&self, mut change: impl FnMut(&mut Credit) -> Option<Credit>) -> Option<Credit> {
        let mut before = self.0.load(RELAXED);
        loop {
            let mut credit = Credit(before);
            let result = change(&mut credit)?;
            match self.0.compare_exchange_weak(before, credit.0, RELAXED, RELAXED) {
                Ok(_) => return Some(result),
                Err(present) => before = present,
            }
        }
    }
}

/// A task's recent use of processor time. Written by the thread that polls the task or, before the first
/// poll, by the one that spawns it; the lane by the thread that queues it. Read by threads that wake it: a
/// stale value misplaces one wake-up.
#[derive(Debug)]
pub(crate) struct Account {
    credit: AtomicU64,
    /// The usual poll in nanoseconds of processor time: see [`average`].
    usual_ns: AtomicU32,
    /// The expected time of the next poll, from other tasks of the same kind, while it is one of the first.
    /// Written like the credit, and by the thread that takes the task from its lane.
    expected_ns: AtomicU32,
    /// The number of times in a row that the task was woken while it ran.
    self_wakes: AtomicU8,
    /// The place in the compute lane where its present turn began, or zero, and the time used since. Written
    /// by the thread that queues the task, and by the one that polls it.
    turn_place: AtomicU64,
    turn_ns: AtomicU32,
}

/// The number of times in a row that a task may wake itself before it counts as computing. One `yield_now` for fairness is
/// not computation; and an event that another thread delivers while the task runs looks like a wake-up from
/// inside.
const SELF_WAKES_MAX: u8 = 2;

/// Not polled yet.
const UNKNOWN: u32 = u32::MAX;

/// Polls below this are all alike.
const LEAST_POLL_NS: u32 = 1_000;

/// Returns the moving average of polls after one of `used` nanoseconds. A poll near the average counts a quarter. One
/// that is more than twice or less than half of it moves the average by a quarter of the way up or an eighth down, on a logarithmic
/// scale: a single long request on a connection does not make the next twenty wait as if they were long, and a task that computes in
/// every second poll still counts as one that computes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between two numbers of 32 bits"
)]
pub(crate) fn average(before: u32, used: u32) -> u32 {
    if used / 2 <= before && before / 2 <= used {
        return before - before / 4 + used / 4;
    }
    if before.max(used) <= LEAST_POLL_NS {
        // What the square roots below would come to: they are most of the cost of such a poll's accounting.
        return LEAST_POLL_NS;
    }
    let [old, new] = [before, used].map(|nanos| f64::from(nanos.max(LEAST_POLL_NS)));
    let quarter = (old * (old * new).sqrt()).sqrt();
    let after = if new > old { quarter } else { (old * quarter).sqrt() };
    after as u32
}

fn known(nanos: &AtomicU32) -> Option<u32> {
    Some(nanos.load(Ordering::Relaxed)).filter(|&nanos| nanos != UNKNOWN)
}

impl Account {
    /// Creates the account of a new task, with the expected time of its first poll, in nanoseconds.
    pub(crate) fn new(credit: Credit, expected_ns: Option<u32>) -> Self {
        Self {
            credit: AtomicU64::new(credit.0),
            usual_ns: AtomicU32::new(UNKNOWN),
            expected_ns: AtomicU32::new(expected_ns.unwrap_or(UNKNOWN)),
            self_wakes: AtomicU8::new(0),
            turn_place: AtomicU64::new(0),
            turn_ns: AtomicU32::new(0),
        }
    }

    pub(crate) fn credit(&self) -> Credit {
        Credit(self.credit.load(Ordering::Relaxed))
    }

    /// Records a poll that used `used` nanoseconds and left `credit`, after paying any children.
    pub(crate) fn charge(&self, credit: Credit, used: u64) {
        self.credit.store(credit.0, Ordering::Relaxed);
        let used = u32::try_from(used).unwrap_or(UNKNOWN).min(UNKNOWN - 1);
        let usual = match self.usual_ns.load(Ordering::Relaxed) {
            UNKNOWN => used,
            before => average(before, used),
        };
        self.usual_ns.store(usual, Ordering::Relaxed);
        if self.turn_place.load(Ordering::Relaxed) != 0 {
            let before = self.turn_ns.load(Ordering::Relaxed);
            self.turn_ns.store(before.saturating_add(used), Ordering::Relaxed);
        }
    }

    /// Returns the task's place in the compute lane when it is queued at `now`. If it yielded at the end of
    /// its budget, it keeps the place at which its turn began until it has used `turn_ns`: otherwise an
    /// acceptor, for example, would get only a small part of the share of tasks that compute without a
    /// budget.
    pub(crate) fn place(&self, gave_way: bool, now: u64, turn_ns: u64) -> u64 {
        let began = self.turn_place.load(Ordering::Relaxed);
        let has_turn = || u64::from(self.turn_ns.load(Ordering::Relaxed)) < turn_ns;
        if gave_way && began != 0 && has_turn() {
            return began;
        }
        let place = self.credit().place(now);
        self.turn_place.store(place, Ordering::Relaxed);
        self.turn_ns.store(0, Ordering::Relaxed);
        place
    }

    /// Sets the time of the next poll that other tasks of its kind suggest, or `None`.
    pub(crate) fn expect(&self, expected_ns: Option<u32>) {
        let expected = expected_ns.unwrap_or(UNKNOWN);
        if self.expected_ns.load(Ordering::Relaxed) != expected {
            self.expected_ns.store(expected, Ordering::Relaxed);
        }
    }

    /// Returns the task's usual poll in nanoseconds of processor time, or the expected time of the next one
    /// if that is more, if either is known.
    pub(crate) fn usual_ns(&self) -> Option<u32> {
        self.own_usual_ns().max(known(&self.expected_ns))
    }

    /// Returns the usual poll of the task itself, if it was polled.
    pub(crate) fn own_usual_ns(&self) -> Option<u32> {
        known(&self.usual_ns)
    }

    /// Returns when the task becomes ready: `ready` if known, else a time good enough to judge the task by.
    /// The waking thread may have switched long ago, before a long poll or a sleep, and the task may
    /// have been polled elsewhere since: at that earlier time, credit that has refilled meanwhile would be
    /// missing.
    pub(crate) fn woken_at(
        &self,
        ready: Option<u64>,
        switched_at: u64,
        clock: impl FnOnce() -> u64,
    ) -> u64 {
        let known = ready.or_else(|| self.is_credit_sufficient(switched_at).then_some(switched_at));
        known.unwrap_or_else(clock)
    }

    /// Returns the lane for the task, which becomes ready at `now`. A task that keeps waking itself has no
    /// priority over those that an event wakes.
    pub(crate) fn choose_lane(&self, was_running: bool, now: u64) -> Lane {
        let before = self.self_wakes.load(Ordering::Relaxed);
        let self_wakes = if was_running { before.saturating_add(1) } else { 0 };
        if self_wakes != before {
            self.self_wakes.store(self_wakes, Ordering::Relaxed);
        }
        let reacts = self_wakes <= SELF_WAKES_MAX && self.is_credit_sufficient(now);
        if reacts && self.turn_place.load(Ordering::Relaxed) != 0 {
            self.turn_place.store(0, Ordering::Relaxed);
        }
        if reacts { Lane::Reaction } else { Lane::Compute }
    }

    /// A task whose next poll would probably use much more than its credit does not react.
    pub(crate) fn is_credit_sufficient(&self, now: u64) -> bool {
        let credit = self.credit();
        let most = credit.level(now).max(OVERDRAFT_NS);
        credit.is_sufficient(now) && self.usual_ns().is_none_or(|usual| u64::from(usual) <= most)
    }
}

// The models of `tests/loom.rs` compile this file too, but not the tests below.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Goal: a task that another thread has polled while a long poll lasted is judged by what it has at its end. Method: a
    /// poll of 30 us in the last of 500 ms, with the time known, unknown, and unknown where it makes no difference.
    #[test]
    fn long_polls_do_not_make_others_poor() {
        let (began, end) = (1_000 * MS, 1_500 * MS);
        let account = Account::new(Credit::FULL.after(end - MS, 30_000), None);
        assert_eq!(account.choose_lane(false, began), Lane::Compute, "so it would seem");
        for ready in [None, Some(end)] {
            let at = account.woken_at(ready, began, || end);
            assert_eq!(account.choose_lane(false, at), Lane::Reaction);
        }
        let rich = Account::new(Credit::FULL, None);
        assert_eq!(rich.woken_at(None, began, || panic!("the clock is read")), began);
    }

    /// Goal: a bucket is empty after its capacity, and full again twenty times as long after. Method: known
    /// times around both edges.
    #[test]
    fn credit_is_used_and_comes_back() {
        let now = 1_000 * MS;
        assert!(Credit::FULL.is_sufficient(now));
        let spent = Credit::FULL.after(now, CAPACITY_NS - LEAST_NS);
        assert!(!spent.is_sufficient(now) && spent.is_sufficient(now + 1));
        let empty = Credit::FULL.after(now, CAPACITY_NS);
        assert!(!empty.is_sufficient(now + LEAST_NS * REFILL_NS));
        assert!(empty.is_sufficient(now + LEAST_NS * REFILL_NS + 1));
        assert_eq!(empty.place(now + 20 * MS), now + 20 * MS, "as if it had used nothing");
    }

    /// Goal: debts are forgotten after 0.42 s, however large. Method: an hour of processor time.
    #[test]
    fn debts_are_bounded() {
        let now = 5 * MS;
        let hog = Credit::FULL.after(now, 3_600_000 * MS);
        assert_eq!(hog.place(now), now + 420 * MS);
        assert!(!hog.is_sufficient(now + 400 * MS));
        assert!(hog.is_sufficient(now + 401 * MS));
    }

    /// Goal: children share what their parent has; a thousand of them have no more than one. Method: sum
    /// what each could use before it leaves the reaction lane.
    #[test]
    fn children_are_paid_by_their_parent() {
        let now = 1_000 * MS;
        let mut parent = Credit::FULL;
        let mut sum = 0;
        let mut reacting = 0;
        for _ in 0..1_000 {
            let child = parent.pay_child(now);
            let missing = child.place(now) - now;
            sum += CAPACITY_NS - missing / REFILL_NS;
            reacting += usize::from(child.is_sufficient(now));
        }
        assert!(sum <= CAPACITY_NS, "{sum}");
        assert_eq!(reacting, 5, "a half, a quarter, … of a millisecond");
        assert!(!parent.is_sufficient(now));
    }

    /// Goal: threads that run no task share one bucket. Method: as many children as a task could pay.
    #[test]
    fn foreign_threads_share_a_bucket() {
        let shared = SharedCredit::new();
        let reacting = (0..100).filter(|_| shared.pay_child(MS).is_sufficient(MS)).count();
        assert_eq!(reacting, 5);
        assert!(shared.pay_child(100 * MS).is_sufficient(100 * MS), "it refills");
    }

    /// Goal: priority is for tasks with credit that an event wakes. Method: wake-ups from inside and outside,
    /// with credit and without.
    #[test]
    fn priority_is_for_tasks_with_credit_that_events_wake() {
        let now = 1_000 * MS;
        let account = Account::new(Credit::FULL, None);
        for _ in 0..SELF_WAKES_MAX {
            assert_eq!(account.choose_lane(true, now), Lane::Reaction);
        }
        assert_eq!(account.choose_lane(true, now), Lane::Compute);
        assert_eq!(account.choose_lane(false, now), Lane::Reaction);
        for _ in 0..8 {
            account.charge(account.credit().after(now, MS / 4), MS / 4);
        }
        assert_eq!(account.choose_lane(false, now), Lane::Compute);
        assert_eq!(account.choose_lane(false, now + 100 * MS), Lane::Reaction);
    }

    /// Goal: tasks that compute without end get equal time, however long their polls are. Method: four of
    /// them in virtual time, by least use.
    #[test]
    fn computation_shares_time() {
        let polls = [1_000, 50_000, 200_000, 3_000_000];
        let mut credits = [Credit::FULL; 4];
        let (mut now, mut used) = (1_000 * MS, [0; 4]);
        // Shorter than what is remembered: afterwards all have the same debt, and take turns.
        while now < 1_060 * MS {
            let next = (0..4).min_by_key(|&task| credits[task].0).expect("four");
            now += polls[next];
            used[next] += polls[next];
            credits[next] = credits[next].after(now, polls[next]);
        }
        let (least, most) = (used.iter().min(), used.iter().max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 6 * MS), "{used:?}");
    }

    /// Goal: many short new tasks can react, until a bucket of theirs is half empty; long ones are not paid so.
    /// Method: an acceptor's tasks of some microseconds, and one of milliseconds.
    #[test]
    fn short_tasks_are_paid_for_some_polls() {
        let now = 1_000 * MS;
        let shared = SharedCredit::new();
        let paid: Vec<Credit> = std::iter::from_fn(|| shared.pay_short(now, 10_000)).collect();
        assert_eq!(paid.len(), 11, "80 µs each");
        assert!(paid.iter().all(|credit| credit.is_sufficient(now)));
        assert!(paid[0].after(now, 50_000).is_sufficient(now), "for several polls");
        assert!(shared.pay_short(now + MS / 2, 10_000).is_none());
        assert!(shared.pay_short(now + 3 * MS, 10_000).is_some(), "it refills");
        assert!(SharedCredit::new().pay_short(now, 500_001).is_none());
        let shared = SharedCredit::new();
        let paid = std::iter::from_fn(|| shared.pay_short(now, 500_000)).count();
        assert_eq!(paid, 9, "100 µs each");
    }

    /// Goal: a task that gives way keeps its place until it has used a turn's time; one that yields, or that an event wakes, begins a new
    /// turn, and so does one that has reacted since. Method: polls of a fifth of a turn, and how they end.
    #[test]
    fn turns_take_time_and_not_polls() {
        let (turn, now) = (MS / 2, 1_000 * MS);
        let account = Account::new(Credit::FULL, None);
        let polled = |account: &Account, now| {
            account.charge(account.credit().after(now, turn / 5), turn / 5);
        };
        polled(&account, now);
        assert_eq!(account.place(false, now, turn), now + 2 * MS, "by what it has used");
        for poll in 1..5 {
            polled(&account, now + poll * MS);
            assert_eq!(account.place(true, now + poll * MS, turn), now + 2 * MS, "{poll}");
        }
        polled(&account, now + 5 * MS);
        let second = account.place(true, now + 5 * MS, turn);
        assert!(second > now + 10 * MS, "its time is over");
        polled(&account, now + 6 * MS);
        assert_eq!(account.place(true, now + 6 * MS, turn), second);
        assert!(account.place(false, now + 6 * MS, turn) > second, "it yielded");
        let third = account.place(true, now + 6 * MS, turn);
        assert_eq!(account.choose_lane(false, now + 100 * MS), Lane::Reaction);
        assert!(account.place(true, now + 100 * MS, turn) > third, "it has reacted");
    }

    /// Goal: the expected time of a task counts beside its usual one, until nothing is expected any more. Method:
    /// an account before and after a poll, with more and less expected.
    #[test]
    fn expectations_count_while_there_are_any() {
        for (expected, both) in [(None, 1_000), (Some(10_000_000), 10_000_000), (Some(10), 1_000)] {
            let account = Account::new(Credit::FULL, expected);
            assert_eq!(account.usual_ns(), expected);
            account.charge(Credit::FULL, 1_000);
            assert_eq!(account.usual_ns(), Some(both));
            account.expect(None);
            assert_eq!(account.usual_ns(), Some(1_000));
            account.expect(expected);
            assert_eq!(account.usual_ns(), Some(both));
        }
    }

    /// Goal: a task reacts if it can pay for what is expected of its next poll, or that is half a millisecond at most.
    /// Method: new tasks and others, around both bounds.
    #[test]
    fn who_will_probably_overdraw_does_not_react() {
        let now = 1_000 * MS;
        let little = Credit::FULL.after(now, MS - MS / 10);
        for (credit, usual, reacts) in [
            (little, MS / 2, true),
            (little, MS / 2 + 1, false),
            (Credit::FULL, MS, true),
            (Credit::FULL, MS + 1, false),
        ] {
            let new = Account::new(credit, u32::try_from(usual).ok());
            let old = Account::new(Credit::FULL, None);
            old.charge(credit, usual);
            for account in [new, old] {
                assert_eq!(account.choose_lane(false, now) == Lane::Reaction, reacts, "{usual}");
            }
        }
        assert_eq!(Account::new(little, None).choose_lane(false, now), Lane::Reaction);
    }

    /// Goal: polls of less than a microsecond are alike, however they differ, and no jump leads out of them. Method: pairs of short polls, far from
    /// each other and at the edge, beside the first that is longer.
    #[test]
    fn very_short_polls_are_alike() {
        for (before, used) in [(100, 300), (300, 100), (0, 1_000), (1_000, 0), (1_000, 400)] {
            assert_eq!(average(before, used), 1_000, "{before} then {used}");
        }
        assert_eq!(average(0, 16_000), 2_000, "a quarter of the way up");
        assert_eq!(average(200, 250), 212, "near");
    }

    /// Goal: the usual poll follows what the task does. Method: one long poll among short ones, one kind after the other, and
    /// both by turns.
    #[test]
    fn the_usual_poll_is_an_average() {
        let account = Account::new(Credit::FULL, None);
        assert_eq!(account.usual_ns(), None);
        account.charge(Credit::FULL, 4_000);
        assert_eq!(account.usual_ns(), Some(4_000));
        account.charge(Credit::FULL, 2_000);
        assert_eq!(account.usual_ns(), Some(3_500), "near the average");
        account.charge(Credit::FULL, 10_000_000);
        assert!(account.usual_ns().is_some_and(|usual| usual < 30_000));
        for _ in 0..20 {
            account.charge(Credit::FULL, 4_000);
        }
        assert!(account.usual_ns().is_some_and(|usual| usual < 6_000));
        for _ in 0..20 {
            account.charge(Credit::FULL, 10_000_000);
        }
        assert!(account.usual_ns().is_some_and(|usual| usual > 9_000_000));
        for _ in 0..20 {
            account.charge(Credit::FULL, 0);
            assert!(account.usual_ns().is_some_and(|usual| usual >= 1_000));
        }
        for _ in 0..20 {
            account.charge(Credit::FULL, 10_000_000);
            account.charge(Credit::FULL, 10_000);
        }
        assert!(account.usual_ns().is_some_and(|usual| usual > 600_000), "every second one");
        // No poll is so long that it counts as none.
        for used in [u64::from(UNKNOWN), u64::MAX] {
            let account = Account::new(Credit::FULL, None);
            account.charge(Credit::FULL, used);
            assert_eq!(account.usual_ns(), Some(UNKNOWN - 1));
        }
    }
}
