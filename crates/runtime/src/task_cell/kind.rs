//! Kinds of tasks: what is known about a task before its first poll.
//!
//! A service spawns the same futures again and again. A new task is therefore expected to behave in its first
//! polls as earlier tasks with the same future type did: one that will be short need not wait behind long
//! ones, and does not use its parent's credit. The type says more than the spawn site, which may be one
//! function that spawns everything.
//!
//! The table is shared by the process, small, and forgets: when more kinds hash to a set than it has slots,
//! they displace each other. An unknown kind costs a wait, nothing else.

use std::{
    any::TypeId,
    hash::{Hash, Hasher},
    num::NonZeroU32,
};

use vigie_detect::clock::monotonic_now;

use crate::{
    lane::{self, Credit, Early, SharedCredit},
    sync::count::{AtomicU64, RELAXED},
};

/// The type of a task's future, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskKind(NonZeroU32);

/// The number of slots in a set, among which a kind has its place, and the number of sets: a power of two.
///
/// With one slot for each of 256 hashes, two of twenty kinds shared a slot in half of all programs, and
/// neither was ever known.
const WAYS: usize = 4;
const SETS: usize = 256;

/// The knowledge about kinds.
pub(crate) struct TaskKinds {
    entries: [[KindEntry; WAYS]; SETS],
    /// The number of times that polls of a kind that were expected to be long have turned out to be short.
    turned_short: AtomicU64,
}

static KINDS: TaskKinds = TaskKinds::new();

struct KindEntry {
    /// The upper 32 bits are the kind, or zero. Below are two [`Level`]s of 16 bits: for first polls, and for
    /// the early polls after them.
    word: AtomicU64,
    /// The time at which the trials of first polls, and of early ones after them, that were begun are over, if they last as long as is
    /// expected and one after another: see [`TaskKind::may_try`]. In nanoseconds.
    trials_end: [AtomicU64; 2],
    /// The number of such polls that hold a thread, as the supervisor last saw it.
    caught: [AtomicU64; 2],
    /// The credit that pays short tasks of the kind, no more than one task may use. So a task that spawns
    /// many of them, such as an acceptor, keeps its own credit.
    credit: SharedCredit,
}

impl KindEntry {
    const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            trials_end: [const { AtomicU64::new(0) }; 2],
            caught: [const { AtomicU64::new(0) }; 2],
            credit: SharedCredit::new(),
        }
    }
}

/// The assumed time of a poll before the first is seen, so that one long poll does not make a kind long
/// either.
const PRIOR_NS: u32 = 20_000;

/// The first polls that are tried at once although they are expected to be long: so many connections that come together
/// are read at once, as threads would, and not after the computations that those before them ask for.
const FIRST_TRIALS: u64 = 8;

/// While several polls of a kind hold threads, the next trial comes no sooner than this after the last, four times for each of them, up to
/// the second value: the expected time says little while it is still being learnt, and each trial may hold one more thread.
const TRIAL_PAUSE_NS: u64 = 4_000_000;
const TRIAL_PAUSE_MAX_NS: u64 = 256_000_000;

/// The logarithm of a poll's time, zero if unknown: a single poll that is a thousand times longer does not
/// make the next ones long, but several in a row do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level(u16);

impl Level {
    const UNKNOWN: Self = Self(0);
    /// Steps per doubling, as many as fit.
    const STEPS: f64 = 2_000.0;
    /// The smallest change worth publishing: 3 %.
    const NEWS: u16 = 85;

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 64 001")]
    fn of(nanos: u64) -> Self {
        let nanos = u32::try_from(nanos).unwrap_or(u32::MAX).max(1);
        Self(1 + (f64::from(nanos).log2() * Self::STEPS) as u16)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    fn nanos(self) -> Option<u32> {
        let steps = self.0.checked_sub(1)?;
        Some((f64::from(steps) / Self::STEPS).exp2().round() as u32)
    }

    /// Moves up to `other` by an eighth of the way (from [`PRIOR_NS`] if nothing is known), by a quarter if
    /// one other such poll is running (`beside`), or by half if several are. Moves down all the way at once.
    ///
    /// Each long poll holds a thread. If it took twelve to find out, a burst of computing tasks would cost
    /// twelve threads. Expecting a long poll to be short costs a thread for a moment. Expecting a short poll
    /// to be long makes it wait behind long ones, and then short polls come too rarely to correct the
    /// estimate: a service that computes for some of its connections would answer all the others after a
    /// second.
    fn follow(self, other: Self, beside: usize) -> Self {
        let before = if self == Self::UNKNOWN { Self::of(PRIOR_NS.into()) } else { self };
        let part = 8 >> beside.min(2);
        if other.0 < before.0 { other } else { Self(before.0 - before.0 / part + other.0 / part) }
    }
}

/// A hasher that keeps the hash a type already has.
#[derive(Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 ^= hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl TaskKind {
    /// Returns the kind of tasks whose future is an `F`.
    pub(crate) fn of<F: 'static>() -> Self {
        let mut hasher = Taken::default();
        TypeId::of::<F>().hash(&mut hasher);
        Self::of_hash(hasher.finish())
    }

    pub(crate) fn of_hash(hash: u64) -> Self {
        let folded = (hash >> 32) ^ (hash & u64::from(u32::MAX));
        Self(NonZeroU32::MIN | u32::try_from(folded).unwrap_or_default())
    }

    /// Returns the expected time of such a poll of such a task, in nanoseconds, if one was seen.
    pub(crate) fn expected_ns(self, early: Early) -> Option<u32> {
        KINDS.expected_ns(self, early)
    }

    /// Pays a new task at `now` for some polls, if such tasks do not turn out to compute after a short first poll and the
    /// kind has credit left.
    pub(crate) fn pay(self, now: u64) -> Option<Credit> {
        KINDS.pay(self, now)
    }

    /// Returns whether a task whose next poll is expected to be long should be polled as if nothing were expected: the estimate
    /// may be wrong for it, and if such polls only ran after long ones, nothing would show that. Within the expected time
    /// [`FIRST_TRIALS`] first polls are tried, or one that comes later, so a kind that does compute holds no more threads
    /// for that.
    pub(crate) fn may_try(self, early: Early) -> bool {
        KINDS.may_try(self, early, || monotonic_now().as_nanos())
    }

    /// Records the time that such a poll of such a task has used, in nanoseconds.
    pub(crate) fn note_poll(self, early: Early, used_ns: u64) {
        KINDS.note_poll(self, early, used_ns, 0);
    }

    /// Records that such a poll is still running and will probably use `nanos`, while `beside` other tasks of
    /// the kind are in one too.
    pub(crate) fn note_running(self, early: Early, nanos: u64, beside: usize) {
        KINDS.note_poll(self, early, nanos, beside);
    }

    /// Records that `count` such polls of such tasks hold threads at this moment.
    pub(crate) fn note_caught(self, early: Early, count: usize) {
        KINDS.note_caught(self, early, count);
    }

    /// Returns how often polls of any kind that were expected to be long have turned out to be short: tasks that wait because of
    /// such an expectation may be short, too.
    pub(crate) fn turned_short() -> u64 {
        KINDS.turned_short()
    }

    /// Returns kind and poll as a number that is not zero.
    pub(crate) fn to_word(self, early: Early) -> u64 {
        u64::from(self.0.get()) << 1 | u64::from(early == Early::Later)
    }

    /// Returns the arguments of [`to_word`](Self::to_word).
    pub(crate) fn from_word(word: u64) -> Option<(Self, Early)> {
        let kind = NonZeroU32::new(u32::try_from(word >> 1).ok()?)?;
        Some((Self(kind), if word & 1 == 0 { Early::First } else { Early::Later }))
    }
}

impl TaskKinds {
    pub(crate) const fn new() -> Self {
        let entries = [const { [const { KindEntry::new() }; WAYS] }; SETS];
        Self { entries, turned_short: AtomicU64::new(0) }
    }

    /// See [`TaskKind::turned_short`].
    pub(crate) fn turned_short(&self) -> u64 {
        self.turned_short.load(RELAXED)
    }

    /// The slot of a kind: its own, else a free one, else one taken from another kind.
    fn slot(&self, kind: TaskKind) -> &KindEntry {
        let hash = (kind.0.get() >> 1) as usize;
        let set = &self.entries[hash % SETS];
        let holder = |slot: &&KindEntry| slot.word.load(RELAXED) >> 32;
        let is_own = |slot: &&KindEntry| holder(slot) == u64::from(kind.0.get());
        let own = set.iter().find(is_own).or_else(|| set.iter().find(|slot| holder(slot) == 0));
        own.unwrap_or(&set[hash / SETS % WAYS])
    }

    /// The levels of first and of later polls.
    fn levels(&self, kind: TaskKind) -> [Level; 2] {
        let word = self.slot(kind).word.load(RELAXED);
        let [.., first_high, first, later_high, later] = word.to_be_bytes();
        let level = |bytes| Level(u16::from_be_bytes(bytes));
        let is_of_kind = word >> 32 == u64::from(kind.0.get());
        let known = [level([first_high, first]), level([later_high, later])];
        if is_of_kind { known } else { [Level::UNKNOWN; 2] }
    }

    /// See [`TaskKind::expected_ns`].
    pub(crate) fn expected_ns(&self, kind: TaskKind, early: Early) -> Option<u32> {
        self.levels(kind)[early as usize].nanos()
    }

    /// See [`TaskKind::may_try`].
    pub(crate) fn may_try(&self, kind: TaskKind, early: Early, now: impl FnOnce() -> u64) -> bool {
        let expected = self.expected_ns(kind, early);
        let Some(expected) = expected.filter(|&expected| !lane::is_for_credit(expected)) else {
            return false;
        };
        let (now, expected) = (now(), u64::from(expected));
        let each = if early == Early::First { expected / FIRST_TRIALS } else { expected };
        let pause = self.trial_pause_ns(kind, early);
        let (each, expected) = (each.max(pause), expected.max(pause));
        let end = &self.slot(kind).trials_end[early as usize];
        let before = end.load(RELAXED);
        let after = now.max(before).saturating_add(each);
        after <= now.saturating_add(expected)
            && end.compare_exchange(before, after, RELAXED, RELAXED).is_ok()
    }

    /// Returns the least time between two trials.
    fn trial_pause_ns(&self, kind: TaskKind, early: Early) -> u64 {
        match self.slot(kind).caught[early as usize].load(RELAXED) {
            0 | 1 => 0,
            caught => (TRIAL_PAUSE_NS << (2 * caught.min(3))).min(TRIAL_PAUSE_MAX_NS),
        }
    }

    /// See [`TaskKind::note_caught`].
    pub(crate) fn note_caught(&self, kind: TaskKind, early: Early, count: usize) {
        let caught = &self.slot(kind).caught[early as usize];
        if caught.load(RELAXED) != count as u64 {
            caught.store(count as u64, RELAXED);
        }
    }

    /// See [`TaskKind::pay`].
    pub(crate) fn pay(&self, kind: TaskKind, now: u64) -> Option<Credit> {
        let [first, later] = self.levels(kind).map(Level::nanos);
        // Some of unknown tasks, and of those that are tried, begin as if they were short.
        let expected = match first.filter(|&first| lane::is_for_credit(first)) {
            Some(first) => first.max(later.unwrap_or(0)),
            None => PRIOR_NS,
        };
        self.slot(kind).credit.pay_short(now, expected)
    }

    /// See [`TaskKind::note_poll`] and [`TaskKind::note_running`].
    pub(crate) fn note_poll(&self, kind: TaskKind, early: Early, used_ns: u64, beside: usize) {
        let mut levels = self.levels(kind);
        let level = &mut levels[early as usize];
        let after = level.follow(Level::of(used_ns), beside);
        if beside == 0 {
            // One that held a thread may have ended.
            self.note_caught(kind, early, 0);
        }
        // Many threads spawn the same kind: the slot's cache line stays shared while the change is small.
        if after.0.abs_diff(level.0) <= Level::NEWS {
            return;
        }
        let is_long = |level: Level| level.nanos().is_some_and(|nanos| !lane::is_for_credit(nanos));
        let turned_short = is_long(*level) && !is_long(after);
        if after.0 < level.0 {
            // A trial has shown that they are short: the next one, should they become long, need not wait.
            self.slot(kind).trials_end[early as usize].store(0, RELAXED);
        }
        *level = after;
        let [first, later] = levels.map(|level| u64::from(level.0));
        let word = u64::from(kind.0.get()) << 32 | first << 16 | later;
        self.slot(kind).word.store(word, RELAXED);
        if turned_short {
            self.turned_short.fetch_add(1, RELAXED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind<F: Future + 'static>(_future: F) -> TaskKind {
        TaskKind::of::<F>()
    }

    /// Goal: a kind is known by the time of early polls, first and later ones separately, and follows when that
    /// changes; another kind is not mistaken for it. Method: two types of futures.
    #[test]
    fn kinds_are_told_apart() {
        let (one, other) = (kind(async { 1 }), kind(async { 1 }));
        let both =
            |kind: TaskKind| [Early::First, Early::Later].map(|early| kind.expected_ns(early));
        let is_near = |expected: Option<u32>, nanos: u32| {
            expected
                .is_some_and(|expected| (nanos / 2..nanos.saturating_mul(2)).contains(&expected))
        };
        assert_ne!(one, other);
        assert_eq!(both(one), [None; 2]);
        one.note_poll(Early::First, 10_000_000);
        assert!(one.expected_ns(Early::First) < Some(500_000), "once means little");
        (0..20).for_each(|_| one.note_poll(Early::First, 10_000_000));
        assert!(
            is_near(one.expected_ns(Early::First), 10_000_000),
            "a little is not worth a store"
        );
        assert_eq!((one.expected_ns(Early::Later), both(other)), (None, [None; 2]));
        (0..20).for_each(|_| one.note_poll(Early::Later, 7_000));
        (0..40).for_each(|_| one.note_poll(Early::First, 20_000));
        assert!(is_near(one.expected_ns(Early::First), 20_000));
        assert!(is_near(one.expected_ns(Early::Later), 7_000));
        (0..40).for_each(|_| other.note_poll(Early::First, u64::MAX));
        assert!(other.expected_ns(Early::First) > Some(u32::MAX / 2));
    }

    /// Goal: one long poll among short ones does not make a kind long, some in a row do; one short poll makes it
    /// short. Method: polls on both sides of the bound between short and long.
    #[test]
    fn several_long_polls_make_a_kind_long() {
        let (short, long) = (Level::of(5_000), Level::of(2_000_000));
        let is_long = |level: Level| level.nanos() > Some(500_000);
        let mut level = short.follow(long, 0);
        assert!(!is_long(level), "{level:?}");
        for _ in 0..12 {
            level = level.follow(long, 0);
        }
        assert!(is_long(level), "{level:?}");
        assert_eq!(level.follow(short, 2), short);
        for nanos in [0, 1, 1_000, u64::MAX] {
            assert_eq!(
                Level::of(nanos).follow(Level::of(nanos), 0).0.abs_diff(Level::of(nanos).0) / 4,
                0
            );
        }
    }

    /// Goal: a burst of tasks that compute is known after a few of them, each of which holds a thread; one short poll ends
    /// that, too. Method: polls that begin one after another, and last.
    #[test]
    fn long_polls_at_the_same_time_make_a_kind_long_soon() {
        let (kinds, kind) = (TaskKinds::new(), TaskKind::of_hash(7));
        let is_long = || kinds.expected_ns(kind, Early::Later) > Some(500_000);
        let first = (0..8).find(|&beside| {
            kinds.note_poll(kind, Early::Later, 1_000_000, beside);
            is_long()
        });
        assert_eq!(first, Some(3), "the fourth");
        kinds.note_poll(kind, Early::Later, 5_000, 0);
        assert!(!is_long());
    }

    /// Goal: a kind that is long is tried once per expected time, and again at once after a short poll; one that is short or
    /// unknown needs no trial. Method: a kind that becomes long, short and long again.
    #[test]
    fn a_long_kind_is_tried_now_and_then() {
        let (kinds, kind, early) = (TaskKinds::new(), TaskKind::of_hash(7), Early::Later);
        let learn = || (0..40).for_each(|_| kinds.note_poll(kind, early, 10_000_000, 0));
        assert!(!kinds.may_try(kind, early, || 1), "unknown");
        learn();
        assert!(kinds.may_try(kind, early, || 1) && !kinds.may_try(kind, early, || 2));
        assert!(
            !kinds.may_try(kind, early, || 5_000_000) && kinds.may_try(kind, early, || 20_000_000)
        );
        kinds.note_poll(kind, early, 10_000_000, 0);
        assert!(!kinds.may_try(kind, early, || 20_000_001), "it was long");
        kinds.note_poll(kind, early, 5_000, 0);
        assert!(!kinds.may_try(kind, early, || 20_000_002), "short");
        learn();
        assert!(kinds.may_try(kind, early, || 20_000_003));
    }

    /// Goal: where several polls of a kind hold threads, trials are rarer, the rarer the more they are, and never end; where they have ended or
    /// one was short, they come as usual. Method: when the second trial is granted, by the number of polls that hold threads.
    #[test]
    fn trials_are_rarer_while_polls_hold_threads() {
        for early in [Early::First, Early::Later] {
            for (caught, pause) in [(0, 0), (1, 0), (2, 64), (3, 256), (500, 256)] {
                let (kinds, kind) = (TaskKinds::new(), TaskKind::of_hash(7));
                (0..40).for_each(|_| kinds.note_poll(kind, early, 1_000_000, 0));
                kinds.note_caught(kind, early, caught);
                assert!(kinds.may_try(kind, early, || 0));
                let second = (1..300).find(|ms| kinds.may_try(kind, early, || ms * 1_000_000));
                assert_eq!(second, Some(pause.max(1)), "{caught}");
                kinds.note_caught(kind, early, caught);
                kinds.note_poll(kind, early, 1_000_000, 0);
                assert_eq!(kinds.trial_pause_ns(kind, early), 0, "one has ended");
            }
        }
    }

    /// Goal: several first polls of a long kind are tried at once, and further ones as time goes on. Method: as many as
    /// are, one more, and after half of the expected time.
    #[test]
    fn several_first_polls_are_tried() {
        let (kinds, kind, early) = (TaskKinds::new(), TaskKind::of_hash(7), Early::First);
        (0..40).for_each(|_| kinds.note_poll(kind, early, 10_000_000, 0));
        let tried = |now: u64| (0..20).filter(|_| kinds.may_try(kind, early, || now)).count();
        assert_eq!((tried(1), tried(1)), (8, 0));
        assert_eq!(tried(4_900_000), 4);
        assert_eq!(tried(100_000_000), 8);
    }

    /// Goal: kinds whose hashes fall into one set are all known as long as it has slots; one more displaces another, and
    /// is known. Method: five such kinds.
    #[test]
    fn kinds_share_a_set() {
        let kinds = TaskKinds::new();
        let many: Vec<_> = (0..=WAYS as u64)
            .map(|number| TaskKind::of_hash(1 | (number * SETS as u64) << 1))
            .collect();
        let known =
            || many.iter().filter(|kind| kinds.expected_ns(**kind, Early::First).is_some()).count();
        for (number, kind) in many.iter().enumerate() {
            assert_eq!(kinds.expected_ns(*kind, Early::First), None);
            kinds.note_poll(*kind, Early::First, 1_000, 0);
            assert!(kinds.expected_ns(*kind, Early::First).is_some());
            assert_eq!(known(), (number + 1).min(WAYS));
        }
    }

    /// Goal: a new task is paid for its later polls as well, which use more than the first. Method: polls of 2 µs, then
    /// of 15 µs; the pay lasts for four of these.
    #[test]
    fn pay_lasts_for_later_polls() {
        let (kinds, kind, now) = (TaskKinds::new(), TaskKind::of_hash(7), 1_000_000_000);
        let begun = (0..100).map_while(|_| kinds.pay(kind, now));
        assert_eq!(begun.count(), 9, "unknown ones are paid out of the same bucket");
        let now = now + 1_000_000_000;
        for _ in 0..20 {
            kinds.note_poll(kind, Early::First, 2_000, 0);
            kinds.note_poll(kind, Early::Later, 15_000, 0);
        }
        let paid = kinds.pay(kind, now).expect("short");
        assert!(paid.after(now, 2_000 + 4 * 15_000).is_sufficient(now));
        (0..20).for_each(|_| kinds.note_poll(kind, Early::Later, 900_000, 0));
        assert_eq!(kinds.pay(kind, now), None, "it computes after the first poll");
    }

    /// Goal: a kind and one of its polls fit in a word, and zero means neither. Method: there and back.
    #[test]
    fn a_word_names_a_poll() {
        for hash in [0, 1, u64::MAX] {
            for early in [Early::First, Early::Later] {
                let kind = TaskKind::of_hash(hash);
                assert_eq!(TaskKind::from_word(kind.to_word(early)), Some((kind, early)));
            }
        }
        assert_eq!(TaskKind::from_word(0), None);
    }
}
