//! The threads that are needed in a situation that the supervisor sees: a pure decision.
//!
//! The goal: as many threads compute as there are workers, one more answers events, and each thread that is
//! stuck in a long poll is replaced in its other duties. A thread that computes is replaced for reactions
//! only, since the processors are in use; one that sleeps in the kernel is replaced in both lanes.

/// The situation that the supervisor sees at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Situation {
    /// The number of workers.
    pub(crate) workers: usize,
    /// A worker sleeps for lack of work.
    pub(crate) has_idle_worker: bool,
    /// No thread is in the poller, and none polls as often as events need it.
    pub(crate) is_unwatched: bool,
    /// A reserve thread is in the poller.
    pub(crate) has_sentinel: bool,
    /// Reserve threads that are not inside a long poll, including the one in the poller.
    pub(crate) free_reserves: usize,
    /// Reserve threads inside long polls that compute.
    pub(crate) computing_reserves: usize,
    /// Reserve threads whose polls are long because they wait for a processor, as far as is known.
    pub(crate) delayed_reserves: usize,
    /// The number of long polls for which the one of them that began last has waited.
    pub(crate) delayed_long_polls: u128,
    /// A reaction waits behind a long poll.
    pub(crate) reaction_waits: bool,
    /// The number of tasks of both lanes that wait behind long polls or for any thread.
    pub(crate) waiting_count: usize,
    /// Every worker has been computing in one poll for some quanta, and a task waits that is known to compute
    /// for less.
    pub(crate) short_waits: bool,
    /// Threads that sleep in the kernel and are not replaced.
    pub(crate) vacancies: usize,
    /// The number of long polls since a reserve thread was called.
    pub(crate) long_polls_since_call: u128,
}

impl Situation {
    /// Returns whether any thread is needed, perhaps one that is on its way.
    pub(crate) fn needs_somebody(&self) -> bool {
        self.is_unwatched || self.reaction_waits || self.vacancies > 0 && self.waiting_count > 0
    }

    /// Computing tasks hold reserve threads, and the last call was too recent. Each such thread
    /// makes the next call wait longer, twice as long for events and four times for short tasks, up to a
    /// limit, so that long polls do not cause a crowd of threads.
    fn is_too_soon(&self) -> bool {
        let caught = self.computing_reserves.min(8);
        let delay = if self.is_unwatched || self.reaction_waits {
            (1 << caught).min(CALL_DELAY_MAX_EVENTS)
        } else {
            (1 << (2 * caught)).min(CALL_DELAY_MAX)
        };
        caught > 0 && self.long_polls_since_call < delay
    }
}

/// The longest delay of a call for events, in long polls: some 3 ms by default.
const CALL_DELAY_MAX_EVENTS: u128 = 16;

/// The longest delay of a call for short tasks, in long polls: some 25 ms by default.
pub(crate) const CALL_DELAY_MAX: u128 = 128;

/// The tasks that reserve threads run besides reactions, unless they compute in the place of a sleeping thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReserveMode {
    Nothing,
    /// Every worker computes for long: tasks that are known to be short.
    Short,
    /// The same, but only for the threads that run such tasks already: so many are caught by them that the next one is put off.
    NoMoreShort,
    /// Every worker computes without end: one task of any kind, then short ones. Once its poll has ended, another one gets its
    /// turn.
    AnyOne,
}

/// The threads that the supervisor calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WakePlan {
    pub(crate) wakes_worker: bool,
    pub(crate) wakes_sentinel: bool,
    /// The number of further reserve threads to call.
    pub(crate) activates: usize,
}

impl WakePlan {
    pub(crate) fn calls_anybody(&self) -> bool {
        *self != Self::default()
    }
}

/// The reserve threads, beside one for each worker, that may be held by polls which are tried although they are expected to
/// be long. Beyond, computations wait their turn: if all of them shared the processors, none would end in an overload.
const TRYING_MAX: usize = 8;

/// Returns whether a poll may be tried although it is expected to be long.
pub(crate) const fn may_try(workers: usize, serving: usize) -> bool {
    serving < workers + TRYING_MAX
}

/// Decides which threads to call.
pub(crate) fn decide(seen: &Situation) -> WakePlan {
    let mut orders = WakePlan::default();
    if seen.has_idle_worker {
        // It wakes the next one if there is more to do than it can handle.
        orders.wakes_worker = seen.is_unwatched || seen.waiting_count > 0;
        return orders;
    }
    // Reserve threads that will search for work in a moment.
    let awake = seen.free_reserves - usize::from(seen.has_sentinel && seen.free_reserves > 0);
    let serves_events = seen.is_unwatched || seen.reaction_waits;
    // A thread that waits for a processor is replaced, since one that was asleep gets a processor sooner. But
    // more threads would only wait too, so it is not replaced until those that are there have waited for
    // long: the longer, the more they are.
    let backoff = (CALL_DELAY_MAX_EVENTS * seen.delayed_reserves as u128).min(CALL_DELAY_MAX);
    let have_waited = seen.long_polls_since_call.min(seen.delayed_long_polls) >= backoff;
    let delayed = if have_waited { 0 } else { seen.delayed_reserves.saturating_sub(1) };
    let on_their_way = awake + delayed;
    if (serves_events || seen.short_waits) && on_their_way == 0 && !seen.is_too_soon() {
        orders.wakes_sentinel = seen.has_sentinel;
        orders.activates = usize::from(!seen.has_sentinel);
    }
    // In a burst of blocking calls, the number of threads at most doubles at each check, so that a short wait
    // does not cause a crowd.
    let running = awake + seen.delayed_reserves;
    let substitutes = seen.vacancies.min(seen.waiting_count).saturating_sub(running);
    orders.activates = orders.activates.max(substitutes.min(seen.workers.max(2)));
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> Situation {
        Situation { workers: 2, ..Situation::default() }
    }

    fn activated(count: usize) -> WakePlan {
        WakePlan { activates: count, ..WakePlan::default() }
    }

    /// Goal: no thread is called while events are watched and nothing waits. Method: everything that is not a reason.
    #[test]
    fn nobody_is_called_without_need() {
        for (sleeping, idle) in [(0, false), (7, false), (0, true)] {
            let seen = Situation { vacancies: sleeping, has_idle_worker: idle, ..busy() };
            assert_eq!(decide(&seen), WakePlan::default(), "{seen:?}");
        }
        assert!(!decide(&busy()).calls_anybody());
    }

    /// Goal: an idle worker goes before any reserve thread. Method: each need, with an idle worker.
    #[test]
    fn idle_workers_go_first() {
        let idle = Situation { has_idle_worker: true, ..busy() };
        let wakes = WakePlan { wakes_worker: true, ..WakePlan::default() };
        assert_eq!(decide(&Situation { is_unwatched: true, ..idle }), wakes);
        assert_eq!(decide(&Situation { waiting_count: 1, vacancies: 3, ..idle }), wakes);
    }

    /// Goal: events get one thread, whether they wait or no thread would see them; the sentinel if it is free.
    /// Method: both needs, with and without a sentinel, and with a reserve that is awake.
    #[test]
    fn events_get_one_thread() {
        for seen in [
            Situation { is_unwatched: true, ..busy() },
            Situation { reaction_waits: true, waiting_count: 9, ..busy() },
        ] {
            assert_eq!(decide(&seen), activated(1));
            let seen = Situation { free_reserves: 1, ..seen };
            assert_eq!(decide(&seen), WakePlan::default(), "it comes by itself");
        }
        let seen = Situation {
            reaction_waits: true,
            waiting_count: 1,
            has_sentinel: true,
            free_reserves: 1,
            ..busy()
        };
        assert_eq!(decide(&seen), WakePlan { wakes_sentinel: true, ..WakePlan::default() });
    }

    /// Goal: short tasks get a thread behind polls of many quanta, and another one later if that is caught.
    /// Method: with and without such threads.
    #[test]
    fn short_tasks_get_one_thread() {
        let seen = Situation { short_waits: true, waiting_count: 50, ..busy() };
        assert_eq!(decide(&seen), activated(1));
        let caught = Situation { computing_reserves: 1, ..seen };
        assert_eq!(decide(&caught), WakePlan::default());
        assert_eq!(decide(&Situation { long_polls_since_call: 4, ..caught }), activated(1));
        let crowd =
            Situation { computing_reserves: 500, long_polls_since_call: CALL_DELAY_MAX, ..seen };
        assert_eq!(decide(&crowd), activated(1), "it is put off, never refused");
    }

    /// Goal: where threads wait for processors, more of them do not help. Method: one and two that wait.
    #[test]
    fn threads_that_wait_for_processors_make_no_crowd() {
        let seen = Situation { reaction_waits: true, waiting_count: 9, ..busy() };
        assert_eq!(decide(&Situation { delayed_reserves: 1, ..seen }), activated(1));
        let two = Situation { delayed_reserves: 2, ..seen };
        assert_eq!(decide(&two), WakePlan::default());
        assert!(two.needs_somebody(), "the supervisor checks again");
        for (delayed_reserves, delay) in [(2, 32), (5, 80), (8, 128), (500, 128)] {
            for (long_polls_since_call, delayed_long_polls) in
                [(delay - 1, delay), (delay, delay - 1)]
            {
                let before = Situation {
                    delayed_reserves,
                    long_polls_since_call,
                    delayed_long_polls,
                    ..two
                };
                assert_eq!(decide(&before), WakePlan::default(), "{delayed_reserves}");
            }
            let (long_polls_since_call, delayed_long_polls) = (delay, delay);
            let long =
                Situation { delayed_reserves, long_polls_since_call, delayed_long_polls, ..two };
            assert_eq!(decide(&long), activated(1));
        }
        assert_eq!(
            decide(&Situation {
                computing_reserves: 1,
                delayed_reserves: 1,
                long_polls_since_call: 2,
                ..seen
            }),
            activated(1)
        );
    }

    /// Goal: reactions that compute call one thread after the other, later each time. Method: the number of
    /// those that are caught, and the time since the last call.
    #[test]
    fn long_reactions_make_no_crowd() {
        let seen = Situation { is_unwatched: true, computing_reserves: 3, ..busy() };
        assert_eq!(decide(&Situation { long_polls_since_call: 7, ..seen }), WakePlan::default());
        assert!(seen.needs_somebody());
        assert_eq!(decide(&Situation { long_polls_since_call: 8, ..seen }), activated(1));
        let crowd = Situation { computing_reserves: 500, long_polls_since_call: 16, ..seen };
        assert_eq!(decide(&crowd), activated(1), "it is put off, never refused");
        let first = Situation { computing_reserves: 0, ..seen };
        assert_eq!(decide(&first), activated(1), "the first one comes at once");
    }

    /// Goal: each thread that sleeps is replaced while work waits, by as many as workers at a time; those on
    /// their way count. Method: numbers around each bound.
    #[test]
    fn sleepers_are_replaced() {
        let seen = Situation { waiting_count: 100, vacancies: 50, ..busy() };
        assert_eq!(decide(&seen), activated(2));
        assert_eq!(decide(&Situation { workers: 16, ..seen }), activated(16));
        assert_eq!(decide(&Situation { waiting_count: 1, ..seen }), activated(1));
        assert_eq!(decide(&Situation { vacancies: 3, free_reserves: 2, ..seen }), activated(1));
        assert_eq!(decide(&Situation { vacancies: 3, delayed_reserves: 2, ..seen }), activated(1));
        let watched = Situation { vacancies: 1, free_reserves: 1, has_sentinel: true, ..seen };
        assert_eq!(decide(&watched), activated(1), "a thread must watch too");
    }

    /// Goal: a thread is needed for events, for reactions, and in the place of sleepers if anything waits. Method:
    /// each need alone.
    #[test]
    fn needs_are_told_apart() {
        let sleeping = Situation { vacancies: 2, ..busy() };
        let waiting = Situation { waiting_count: 2, ..busy() };
        for idle in [busy(), sleeping, waiting, Situation { short_waits: true, ..waiting }] {
            assert!(!idle.needs_somebody(), "{idle:?}");
        }
        for needy in [
            Situation { is_unwatched: true, ..busy() },
            Situation { reaction_waits: true, ..busy() },
            Situation { waiting_count: 1, ..sleeping },
            Situation { vacancies: 1, ..waiting },
        ] {
            assert!(needy.needs_somebody(), "{needy:?}");
        }
        assert!(activated(1).calls_anybody());
        assert!(WakePlan { wakes_worker: true, ..WakePlan::default() }.calls_anybody());
    }

    /// Goal: a sentinel that has left the poller a moment ago is not a contradiction. Method: it is seen there,
    /// and no reserve thread is free.
    #[test]
    fn a_sentinel_may_be_on_its_way() {
        let seen = Situation { reaction_waits: true, has_sentinel: true, ..busy() };
        assert_eq!(decide(&seen), WakePlan { wakes_sentinel: true, ..WakePlan::default() });
    }
}
