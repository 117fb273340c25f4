//! A scheduler that knows the sizes: simulated, in virtual time, without any cost of
//! switching.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

/// A request: when it comes, and how much it computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Job {
    pub(super) arrival_ns: f64,
    pub(super) size_ns: f64,
}

/// How a scheduler divides the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Discipline {
    /// Shortest remaining processing time, with preemption: the scheduler knows the sizes.
    ShortestRemaining,
    /// Processor sharing: all get the same, in slices without length.
    Sharing,
}

/// Processors, all of the same speed; 1 is the speed of an idle core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Processors {
    pub(super) count: usize,
    pub(super) speed: f64,
}

/// An instant or an amount in a heap; never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl fmt::Display for Discipline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ShortestRemaining => "oracle: shortest remaining",
            Self::Sharing => "ideal: processor sharing",
        })
    }
}

/// Returns each job's time from its arrival to its end. Jobs are in the order of their arrival.
pub(super) fn responses(jobs: &[Job], on: Processors, discipline: Discipline) -> Vec<f64> {
    match discipline {
        Discipline::ShortestRemaining => shortest_remaining(jobs, on),
        Discipline::Sharing => sharing(jobs, on),
    }
}

fn shortest_remaining(jobs: &[Job], on: Processors) -> Vec<f64> {
    let mut responses = vec![0.0; jobs.len()];
    // What remains of each, in nanoseconds of work.
    let mut running: Vec<(f64, usize)> = Vec::with_capacity(on.count);
    let mut waiting: BinaryHeap<Reverse<(Ordered, usize)>> = BinaryHeap::new();
    let (mut now, mut next) = (0.0, 0);
    while next < jobs.len() || !running.is_empty() {
        let end = running.iter().map(|job| job.0).fold(f64::INFINITY, f64::min);
        let end = now + end / on.speed;
        let arrival = jobs.get(next).map_or(f64::INFINITY, |job| job.arrival_ns);
        let then = end.min(arrival);
        for job in &mut running {
            job.0 -= (then - now) * on.speed;
        }
        now = then;
        if end <= arrival {
            let done = (0..running.len()).min_by(|a, b| running[*a].0.total_cmp(&running[*b].0));
            let Some(done) = done else { break };
            let (_, index) = running.swap_remove(done);
            responses[index] = now - jobs[index].arrival_ns;
        } else {
            waiting.push(Reverse((Ordered(jobs[next].size_ns), next)));
            next += 1;
        }
        // The shortest of all run.
        while let Some(Reverse((Ordered(shortest), index))) = waiting.peek().copied() {
            if running.len() < on.count {
                waiting.pop();
                running.push((shortest, index));
                continue;
            }
            let Some(longest) = running.iter_mut().max_by(|a, b| a.0.total_cmp(&b.0)) else {
                break;
            };
            if shortest >= longest.0 {
                break;
            }
            waiting.pop();
            waiting.push(Reverse((Ordered(longest.0), longest.1)));
            *longest = (shortest, index);
        }
    }
    responses
}

fn sharing(jobs: &[Job], on: Processors) -> Vec<f64> {
    let mut responses = vec![0.0; jobs.len()];
    // All active jobs advance at the same rate, so a job ends when the work that each has got since the
    // beginning reaches a mark that is known on its arrival.
    let mut marks: BinaryHeap<Reverse<(Ordered, usize)>> = BinaryHeap::new();
    let (mut now, mut got, mut next) = (0.0, 0.0, 0);
    while next < jobs.len() || !marks.is_empty() {
        let rate = on.speed * (on.count as f64 / marks.len().max(1) as f64).min(1.0);
        let end =
            marks.peek().map_or(f64::INFINITY, |Reverse((mark, _))| now + (mark.0 - got) / rate);
        let arrival = jobs.get(next).map_or(f64::INFINITY, |job| job.arrival_ns);
        let then = end.min(arrival);
        if !marks.is_empty() {
            got += (then - now) * rate;
        }
        now = then;
        if end <= arrival {
            let Some(Reverse((_, index))) = marks.pop() else { break };
            responses[index] = now - jobs[index].arrival_ns;
        } else {
            marks.push(Reverse((Ordered(got + jobs[next].size_ns), next)));
            next += 1;
        }
    }
    responses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::{ServiceTime, exponential};

    const ONE: Processors = Processors { count: 1, speed: 1.0 };

    fn poisson(service: ServiceTime, load: f64, count: usize, seed: u64) -> Vec<Job> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut arrival_ns = 0.0;
        let gap = service.mean_us() * 1e3 / load;
        let job = |_| {
            arrival_ns += exponential(&mut random, gap);
            Job { arrival_ns, size_ns: service.draw(&mut random).as_secs_f64() * 1e9 }
        };
        (0..count).map(job).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn sharing_has_the_mean_of_the_closed_form() {
        // Goal: the simulation queues as theory says: M/G/1 under processor sharing has the mean response
        // E[S] / (1 - load), whatever the distribution. Method: fixed seeds, two distributions, within 4 %.
        let bimodal = ServiceTime::Bimodal { short_us: 1.0, long_us: 100.0, long_share: 0.5 };
        for service in [ServiceTime::Exponential { mean_us: 20.0 }, bimodal] {
            for load in [0.3, 0.7] {
                let jobs = poisson(service, load, 200_000, 11);
                let found = mean(&responses(&jobs, ONE, Discipline::Sharing)) / 1e3;
                let expected = service.mean_us() / (1.0 - load);
                assert!((found / expected - 1.0).abs() < 0.04, "{service}: {found} {expected}");
            }
        }
    }

    #[test]
    fn two_processors_have_the_mean_of_the_closed_form() {
        // Goal: several processors, and their speed, count as they should: M/M/2 under sharing has the mean
        // number of jobs of any discipline that loses no work, 2r / (1 - r²) with r = load of each; by
        // Little's law the response is E[S] / (1 - r²). Method: speed 0.8, a fixed seed, within 4 %.
        let service = ServiceTime::Exponential { mean_us: 20.0 };
        let jobs = poisson(service, 1.0, 200_000, 3);
        let on = Processors { count: 2, speed: 0.8 };
        let r: f64 = 1.0 / 1.6;
        let found = mean(&responses(&jobs, on, Discipline::Sharing)) / 1e3;
        let expected = 20.0 / 0.8 / (1.0 - r * r);
        assert!((found / expected - 1.0).abs() < 0.04, "{found} {expected}");
    }

    #[test]
    fn the_shortest_goes_first() {
        // Goal: preemption, resumption, two processors. Method: a few jobs, by hand.
        let job = |arrival_ns, size_ns| Job { arrival_ns, size_ns };
        let jobs = [job(0.0, 10.0), job(2.0, 3.0), job(3.0, 1.0), job(4.0, 20.0)];
        // 0..2 first, 2..3 second, 3..4 third, 4..6 second, 6..14 first, 14..34 fourth.
        let found = responses(&jobs, ONE, Discipline::ShortestRemaining);
        assert_eq!(found, [14.0, 4.0, 1.0, 30.0]);
        // The third preempts the first at 3; that goes on at 4, and the fourth waits until 5.
        let two = Processors { count: 2, speed: 1.0 };
        let found = responses(&jobs, two, Discipline::ShortestRemaining);
        assert_eq!(found, [11.0, 3.0, 1.0, 21.0]);
    }

    #[test]
    fn the_oracle_is_never_behind_sharing() {
        // Goal: on one processor shortest remaining time has the least mean response of all disciplines.
        // Method: three seeds of a dispersive load, beside sharing.
        let service = ServiceTime::Bimodal { short_us: 10.0, long_us: 10_000.0, long_share: 0.005 };
        for seed in 0..3 {
            let jobs = poisson(service, 0.8, 50_000, seed);
            let shortest = mean(&responses(&jobs, ONE, Discipline::ShortestRemaining));
            assert!(shortest < mean(&responses(&jobs, ONE, Discipline::Sharing)));
        }
    }
}
