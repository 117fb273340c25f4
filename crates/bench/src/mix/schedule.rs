//! When which request leaves: a pure function of the mix and its seed.
//!
//! Arrivals do not wait for answers, so a server that is slow is asked as often as one that is fast,
//! and a request's time begins when it is due (no coordinated omission).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::behaviour::Behaviour;
use super::draw::Mix;
use super::service_time::{ServiceTime, exponential};
use super::wire::Hello;
use crate::clock;

/// Old connections that are probed, each by a request every few milliseconds.
const PROBES: u32 = 4;

/// Mean time between two requests on all of them.
const PROBE_EVERY_NS: f64 = 1_000_000.0;

/// Whose time an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// Old connections that ask for nothing.
    Probe,
    /// Requests of the load.
    Request,
}

/// Connections with the same purpose and the same behaviour behind them.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) purpose: Purpose,
    pub(crate) hello: Hello,
    pub(crate) connections: u32,
    /// Mean time between two requests of the group.
    gap_ns: f64,
    is_poisson: bool,
    service: ServiceTime,
}

impl Group {
    /// Returns the groups of a mix, the probes first if there are to be any.
    pub(crate) fn of(mix: &Mix, has_probes: bool) -> Vec<Self> {
        let probes = Self {
            purpose: Purpose::Probe,
            hello: Hello::Compute,
            connections: PROBES,
            gap_ns: PROBE_EVERY_NS,
            is_poisson: false,
            service: ServiceTime::Fixed { us: 0.0 },
        };
        let behaviours = mix.behaviours.iter().enumerate();
        let groups = behaviours.filter_map(|(index, behaviour)| {
            // A mix has a few behaviours.
            let index = u8::try_from(index).ok()?;
            Self::of_behaviour(index, behaviour)
        });
        has_probes.then_some(probes).into_iter().chain(groups).collect()
    }

    fn of_behaviour(index: u8, behaviour: &Behaviour) -> Option<Self> {
        let group = |hello, connections, per_s: u32, service| Self {
            purpose: Purpose::Request,
            hello,
            connections,
            gap_ns: 1e9 / f64::from(per_s.max(1)),
            is_poisson: true,
            service,
        };
        let nothing = ServiceTime::Fixed { us: 0.0 };
        match *behaviour {
            Behaviour::Service { connections, per_s, service } => {
                Some(group(Hello::Compute, connections, per_s, service))
            }
            Behaviour::Stages { connections, per_s, .. } => {
                Some(group(Hello::Behaviour(index), connections, per_s, nothing))
            }
            Behaviour::WakeThenCompute { per_s, step_us } => {
                let step = ServiceTime::Fixed { us: step_us as f64 };
                Some(group(Hello::Behaviour(index), 1, per_s, step))
            }
            _ => None,
        }
    }
}

/// A request that is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// When, from the beginning.
    pub(crate) at_ns: u64,
    /// For which group.
    pub(crate) group: usize,
    /// On which of its connections.
    pub(crate) connection: u32,
    /// How long the server is to compute.
    pub(crate) service_ns: u64,
}

/// Returns when the requests of a mix come within `span`, without probes, and how long each computes,
/// both in nanoseconds.
pub(crate) fn arrivals(mix: &Mix, span: Duration) -> impl Iterator<Item = (u64, u64)> + use<> {
    let end = clock::nanoseconds(span);
    let schedule = Schedule::new(&Group::of(mix, false), mix.seed);
    schedule.take_while(move |due| due.at_ns < end).map(|due| (due.at_ns, due.service_ns))
}

/// All requests in the order in which they are due; they never end.
#[derive(Debug)]
pub(crate) struct Schedule {
    groups: Vec<(Group, fastrand::Rng)>,
    /// The next instant of each group.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Schedule {
    pub(crate) fn new(groups: &[Group], seed: u64) -> Self {
        let mut seeds = fastrand::Rng::with_seed(seed);
        let groups = groups.iter().map(|group| {
            let random = fastrand::Rng::with_seed(seeds.u64(..));
            (group.clone(), random)
        });
        let mut this = Self { groups: groups.collect(), next: BinaryHeap::new() };
        for index in 0..this.groups.len() {
            this.push_next(index, 0);
        }
        this
    }

    #[expect(clippy::cast_possible_truncation, reason = "gaps are seconds at most")]
    #[expect(clippy::cast_sign_loss, reason = "gaps are positive")]
    fn push_next(&mut self, index: usize, now_ns: u64) {
        let (group, random) = &mut self.groups[index];
        let gap = if group.is_poisson {
            exponential(random, group.gap_ns)
        } else {
            group.gap_ns * (0.5 + random.f64())
        };
        self.next.push(Reverse((now_ns + gap as u64, index)));
    }
}

impl Iterator for Schedule {
    type Item = Due;

    fn next(&mut self) -> Option<Due> {
        let Reverse((at_ns, group)) = self.next.pop()?;
        self.push_next(group, at_ns);
        let (Group { connections, service, .. }, random) = &mut self.groups[group];
        let connection = random.u32(..*connections);
        let service_ns = clock::nanoseconds(service.draw(random));
        Some(Due { at_ns, group, connection, service_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_ordered_and_a_function_of_its_seed() {
        // Goal: requests leave in order, at the rate that the mix asks for, and a seed repeats them all.
        // Method: ten seconds of a service of 2000/s, twice.
        let service = ServiceTime::Exponential { mean_us: 50.0 };
        let service = Behaviour::Service { connections: 3, per_s: 2_000, service };
        let mix = Mix { name: "test".to_owned(), seed: 5, behaviours: vec![service] };
        let groups = Group::of(&mix, true);
        let of = |seed| -> Vec<_> {
            let schedule = Schedule::new(&groups, seed);
            schedule.take_while(|due| due.at_ns < 10_000_000_000).collect()
        };
        let all = of(5);
        assert!(all.is_sorted_by_key(|due| due.at_ns));
        assert_eq!(all, of(5));
        assert_ne!(all, of(6));
        let requests = all.iter().filter(|due| due.group == 1).count();
        // Five standard deviations of a Poisson count.
        assert!(requests.abs_diff(20_000) < 5 * 142, "{requests}");
        let probes = all.iter().filter(|due| due.group == 0);
        assert!(probes.clone().count().abs_diff(10_000) < 500);
        assert!(probes.clone().all(|due| due.service_ns == 0 && due.connection < PROBES));
    }
}
