//! The latest long polls by name, and the log event that names a hog.

use std::{
    collections::{BTreeMap, VecDeque},
    panic::Location,
    time::Duration,
};

use vigie_detect::Instant;

use super::readings::LongPoll;
use crate::{
    lane::Lane,
    panics::contained,
    sync::{Arc, PoisonError, RealGuard, RealMutex},
    task_cell::poll::EndedPoll,
};

/// The number of quanta that make a long poll a hog: no page fault takes that long.
const HOG_FACTOR: u32 = 10;

/// The number of long polls that are remembered.
const LATEST_MAX: usize = 16;

/// The time for which a spawn site is not reported again, for each of the two log events.
const PAUSE: Duration = Duration::from_secs(1);

/// The maximum number of spawn sites told apart; all others share one entry.
const SITES_MAX: usize = 1024;

/// The long polls of one runtime. Locked only by threads that had one, the supervisor, and readers.
#[derive(Debug)]
pub(crate) struct Hogs {
    /// A poll of this length makes its task a hog.
    threshold: Duration,
    state: RealMutex<HogLogState>,
}

#[derive(Debug)]
struct HogLogState {
    latest: VecDeque<LongPoll>,
    /// Limits log events for polls that are still running.
    lasting: Throttle,
    /// Limits log events for polls that have ended.
    ended: Throttle,
}

impl Hogs {
    pub(crate) fn new(quantum: Duration) -> Self {
        Self {
            threshold: quantum * HOG_FACTOR,
            state: RealMutex::new(HogLogState {
                latest: VecDeque::with_capacity(LATEST_MAX),
                lasting: Throttle::default(),
                ended: Throttle::default(),
            }),
        }
    }

    pub(crate) fn is_hog(&self, elapsed: Duration) -> bool {
        elapsed >= self.threshold
    }

    pub(crate) fn latest(&self) -> Vec<LongPoll> {
        self.lock().latest.iter().cloned().collect()
    }

    /// Records a long poll that ended at `now`, and names its task if it was a hog. Returns whether it was.
    pub(crate) fn record(&self, poll: EndedPoll, lane: Lane, now: Instant) -> bool {
        let duration = Duration::from_nanos(poll.elapsed_ns);
        let is_hog = self.is_hog(duration);
        let name = poll.name.clone();
        let mut state = self.lock();
        let oldest = if state.latest.len() < LATEST_MAX { None } else { state.latest.pop_front() };
        state.latest.push_back(LongPoll { name: poll.name, site: poll.site, lane, duration });
        let admitted = if is_hog { state.ended.admit(poll.site, now) } else { None };
        drop(state);
        drop(oldest);
        if let Some(suppressed) = admitted {
            contained("a subscriber", || {
                tracing::warn!(
                    target: "vigie_runtime::hog",
                    task = name.as_deref(),
                    spawned_at = %poll.site,
                    ?duration,
                    %lane,
                    suppressed,
                    "a task held its thread: let it await `checkpoint` or `yield_now`, or move the \
                     work to `spawn_blocking`"
                );
            });
        }
        is_hog
    }

    /// Names the task of a poll that is still running and has lasted this long, as seen by the supervisor.
    pub(crate) fn log_running(
        &self,
        name: Option<Arc<str>>,
        site: &'static Location<'static>,
        elapsed: Duration,
        now: Instant,
    ) {
        let Some(suppressed) = self.lock().lasting.admit(site, now) else { return };
        contained("a subscriber", || {
            tracing::warn!(
                target: "vigie_runtime::hog",
                task = name.as_deref(),
                spawned_at = %site,
                for_at_least = ?elapsed,
                suppressed,
                "a task holds its thread"
            );
        });
    }

    fn lock(&self) -> RealGuard<'_, HogLogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets one log event through per spawn site in each [`PAUSE`], and counts the suppressed ones.
#[derive(Debug, Default)]
struct Throttle {
    sites: BTreeMap<Option<SpawnSite>, LastReport>,
}

/// File, line and column of a spawn site.
type SpawnSite = (&'static str, u32, u32);

#[derive(Debug)]
struct LastReport {
    at: Instant,
    suppressed: u64,
}

impl Throttle {
    /// Returns how many events were suppressed since the last one, if this one may be logged.
    fn admit(&mut self, site: &'static Location<'static>, now: Instant) -> Option<u64> {
        let key = Some((site.file(), site.line(), site.column()));
        let is_known = self.sites.contains_key(&key);
        let key = if is_known || self.sites.len() < SITES_MAX { key } else { None };
        let Some(report) = self.sites.get_mut(&key) else {
            self.sites.insert(key, LastReport { at: now, suppressed: 0 });
            return Some(0);
        };
        if now - report.at < PAUSE {
            report.suppressed += 1;
            return None;
        }
        report.at = now;
        Some(std::mem::take(&mut report.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> &'static Location<'static> {
        Location::caller()
    }

    fn poll(name: Option<&str>, millis: u64) -> EndedPoll {
        let elapsed_ns = millis * 1_000_000;
        EndedPoll { has_computed: true, name: name.map(Arc::from), site: here(), elapsed_ns }
    }

    /// Goal: a flood from one site gives one event a second and says how many there were besides;
    /// another site is not silenced by it. Method: virtual times.
    #[test]
    fn a_flood_is_thinned_out() {
        let mut throttle = Throttle::default();
        let (first, second) = (here(), Location::caller());
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let report: Vec<_> = (0..10_000).filter_map(|ms| throttle.admit(first, at(ms))).collect();
        assert_eq!(report, [&[0][..], &[999; 9]].concat());
        assert_eq!(throttle.admit(second, at(9_999)), Some(0));
        assert_eq!(throttle.admit(first, at(10_000)), Some(999));
    }

    /// Goal: the latest long polls are kept, the oldest goes first, and only hogs are told as such.
    /// Method: more of them than are kept, around the threshold of ten quanta.
    #[test]
    fn the_latest_are_kept() {
        let hogs = Hogs::new(Duration::from_millis(1));
        for index in 0..20 {
            let name = format!("task {index}");
            let now = Instant::from_nanos(index);
            assert!(!hogs.record(poll(Some(&name), 9), Lane::Reaction, now));
        }
        assert!(hogs.record(poll(None, 10), Lane::Compute, Instant::from_nanos(30)));
        let latest = hogs.latest();
        assert_eq!(latest.len(), LATEST_MAX);
        assert_eq!(latest[0].name.as_deref(), Some("task 5"));
        let last = latest.last().expect("there are 16");
        assert_eq!((last.name.as_deref(), last.lane), (None, Lane::Compute));
        assert_eq!(last.duration, Duration::from_millis(10));
    }
}
