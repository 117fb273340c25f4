//! The retry timer of a waiting member: how long it waits, when it asks, and which members it believes dead.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vigie_detect::Instant;

use super::config::MemberConfig;
use crate::group::Rank;

/// This many questions in a row without an answer do not lengthen the interval.
const QUICK_RETRIES: u32 = 4;

/// The silence of a member that is waited for.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    /// The time for which it has not answered: the sum of the intervals after which it was asked.
    duration: Duration,
    /// The number of questions of this wait that are answered, or too old to be: the same answer counts once.
    answered: u32,
}

/// Returns an instant that is earlier by that much.
pub(super) fn earlier(instant: Instant, by: Duration) -> Instant {
    Instant::from_nanos(
        u64::try_from((instant - Instant::from_nanos(0)).saturating_sub(by).as_nanos())
            .unwrap_or(0),
    )
}

/// The state of one wait.
#[derive(Clone, Debug)]
pub(super) struct RetryTimer {
    interval_min: Duration,
    interval_max: Duration,
    silence_max: Option<Duration>,
    interval: Duration,
    deadline: Option<Instant>,
    silent: BTreeMap<Rank, Silence>,
    /// The number of the next question, and of the first one of this wait.
    attempt: u32,
    first_attempt: u32,
    /// Questions in a row that were not answered by all.
    unanswered: u32,
}

impl RetryTimer {
    pub(super) fn new(config: &MemberConfig) -> Self {
        Self {
            interval_min: config.repeat_after,
            interval_max: config.interval_max(),
            silence_max: config.silence_max(),
            interval: config.repeat_after,
            deadline: None,
            silent: BTreeMap::new(),
            attempt: 0,
            first_attempt: 0,
            unanswered: 0,
        }
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Begins to wait for something else.
    pub(super) fn start(&mut self, now: Instant) {
        self.interval = self.interval_min;
        self.deadline = Some(now.saturating_add(self.interval));
        self.silent.clear();
        self.unanswered = 0;
        self.first_attempt = self.attempt;
    }

    /// The clock has gone back by `back`.
    pub(super) fn rewind(&mut self, back: Duration) {
        self.deadline = self.deadline.map(|deadline| earlier(deadline, back));
    }

    /// If it is time to ask, adds the interval to the silence of each awaited member. Returns the question's number.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        missing: impl Iterator<Item = Rank>,
    ) -> Option<u32> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return None;
        }
        let missing: BTreeSet<Rank> = missing.collect();
        let is_answered = self.is_answered(&missing);
        for rank in missing {
            // However late this is called, only the interval counts: no member was asked for longer.
            self.silent.entry(rank).or_default().duration += self.interval;
        }
        // An unanswered question, or its answer, was lost: for a while, that is no reason to wait longer.
        self.unanswered = if is_answered { 0 } else { self.unanswered + 1 };
        if !(1..=QUICK_RETRIES).contains(&self.unanswered) {
            self.interval = (self.interval * 2).min(self.interval_max);
        }
        self.deadline = Some(now.saturating_add(self.interval));
        self.attempt = self.attempt.wrapping_add(1);
        Some(self.attempt.wrapping_sub(1))
    }

    /// Returns whether all awaited members have answered the last question, if there was one.
    fn is_answered(&self, missing: &BTreeSet<Rank>) -> bool {
        let asked = self.attempt.wrapping_sub(self.first_attempt);
        let has_answered = |rank| self.silent.get(rank).is_some_and(|one| one.answered == asked);
        asked == 0 || missing.iter().all(has_answered)
    }

    /// Something awaited has arrived, though not everything.
    pub(super) fn reset_backoff(&mut self) {
        self.unanswered = 0;
        self.interval = self.interval_min;
    }

    /// Returns the members that have been silent for too long.
    pub(super) fn dead(&self) -> BTreeSet<Rank> {
        let Some(most) = self.silence_max else { return BTreeSet::new() };
        let is_dead = |silence: &Silence| silence.duration >= most;
        self.silent.iter().filter(|(_, silence)| is_dead(silence)).map(|(rank, _)| *rank).collect()
    }

    /// Records an answer. Returns whether it answers a question of this wait, and a later one than before.
    pub(super) fn record_reply(&mut self, rank: Rank, attempt: u32) -> bool {
        let (number, asked) = (
            attempt.wrapping_sub(self.first_attempt),
            self.attempt.wrapping_sub(self.first_attempt),
        );
        let Some(silence) = self.silent.get_mut(&rank) else { return false };
        let is_new = (silence.answered..asked).contains(&number);
        if is_new {
            *silence = Silence { duration: Duration::ZERO, answered: number + 1 };
        }
        is_new
    }
}
