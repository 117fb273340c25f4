//! Mixes of behaviour: drawn by seed, or named.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::behaviour::{Behaviour, Call, Stage};
use super::service_time::ServiceTime;

/// Behaviours that run side by side in one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mix {
    /// Where it comes from: `seed 17`, or a name.
    pub(crate) name: String,
    /// Seed of arrivals and of the requests' sizes.
    pub(crate) seed: u64,
    /// What runs.
    pub(crate) behaviours: Vec<Behaviour>,
}

/// Requests that the paced client sends for one behaviour at most: it shares the cores.
const PER_S_MAX: f64 = 3_000.0;

/// Wake-ups by timers at most.
const TIMERS_PER_S_MAX: f64 = 20_000.0;

impl Mix {
    /// Draws a mix: one or two kinds of computation, of bursts or of blocking calls, and one to three
    /// kinds of events. How likely each kind is, is drawn first, so that some seeds prefer kinds that
    /// others avoid.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut draw = Draw { random: &mut random };
        let weights = |draw: &mut Draw<'_>, kinds: usize| -> Vec<f64> {
            (0..kinds).map(|_| draw.log(0.1, 1.0)).collect()
        };
        let (background, events) =
            (weights(&mut draw, BACKGROUND.len()), weights(&mut draw, EVENTS.len()));
        let backgrounds = 1 + usize::from(draw.random.u32(..3) == 0);
        let mut behaviours: Vec<_> =
            (0..backgrounds).map(|_| BACKGROUND[draw.weighted(&background)](&mut draw)).collect();
        for _ in 0..draw.random.usize(1..=3) {
            let event = EVENTS[draw.weighted(&events)](&mut draw);
            behaviours.push(event);
        }
        Self { name: format!("seed {seed}"), seed, behaviours }
    }

    /// Returns the mix of this name; see [`CASES`].
    pub(crate) fn named(name: &str) -> Option<Self> {
        let case = CASES.iter().find(|case| case.0 == name)?;
        Some(Self { name: name.to_owned(), seed: 1, behaviours: (case.2)() })
    }

    /// Tells whether any of it sleeps in the kernel.
    pub(crate) fn blocks(&self) -> bool {
        self.behaviours.iter().any(Behaviour::blocks)
    }

    /// Tells whether any of it computes.
    pub(crate) fn computes(&self) -> bool {
        self.behaviours.iter().any(Behaviour::computes)
    }

    /// Returns how many connections its clients hold open.
    pub(crate) fn connections(&self) -> u32 {
        self.behaviours.iter().map(Behaviour::connections).sum()
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        for (index, behaviour) in self.behaviours.iter().enumerate() {
            write!(f, "{}{behaviour}", if index > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// Draws sizes.
struct Draw<'a> {
    random: &'a mut fastrand::Rng,
}

impl Draw<'_> {
    /// A size from `low` to `high`, evenly spread over its logarithm.
    fn log(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.random.f64())
    }

    fn count(&mut self, low: f64, high: f64) -> u32 {
        // Far below the limits of either type.
        self.us(low, high).try_into().unwrap_or(u32::MAX)
    }

    #[expect(clippy::cast_possible_truncation, reason = "sizes are positive and below 2^32")]
    #[expect(clippy::cast_sign_loss, reason = "sizes are positive")]
    fn us(&mut self, low: f64, high: f64) -> u64 {
        self.log(low, high).round() as u64
    }

    /// A rate at which requests of `step_us` are `low` to `high` of a core.
    #[expect(clippy::cast_possible_truncation, reason = "the rate is at most `PER_S_MAX`")]
    #[expect(clippy::cast_sign_loss, reason = "sizes are positive")]
    fn rate(&mut self, step_us: f64, low: f64, high: f64) -> u32 {
        (1e6 / step_us * self.log(low, high)).clamp(1.0, PER_S_MAX) as u32
    }

    /// An index with a probability that is in proportion to its weight.
    fn weighted(&mut self, weights: &[f64]) -> usize {
        let mut left = self.random.f64() * weights.iter().sum::<f64>();
        for (index, weight) in weights.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                return index;
            }
        }
        weights.len() - 1
    }

    fn burst(&mut self, is_foreign: bool) -> Behaviour {
        let tasks = self.log(20.0, 1_500.0).round();
        let step = self.log(50.0, 10_000.0).round();
        // Three to nine tenths of two cores.
        let every = (tasks * step / 2.0 / self.log(0.3, 0.9)).max(20_000.0);
        Behaviour::Burst {
            tasks: whole(tasks).try_into().unwrap_or(u32::MAX),
            step_us: whole(step),
            every_us: whole(every),
            is_foreign,
        }
    }

    fn calls(&mut self, call: Call) -> Behaviour {
        Behaviour::Calls { tasks: self.count(1.0, 6.0), call, span_us: self.us(500.0, 3_000.0) }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "sizes are positive and below 2^53")]
#[expect(clippy::cast_sign_loss, reason = "sizes are positive and below 2^53")]
const fn whole(size: f64) -> u64 {
    size as u64
}

type BehaviourGenerator = fn(&mut Draw<'_>) -> Behaviour;

/// Kinds that run without requests: computation, bursts of tasks, blocking calls.
const BACKGROUND: &[BehaviourGenerator] = &[
    |draw| {
        let (tasks, step_us) = (draw.count(1.0, 12.0), draw.us(50.0, 3_000.0));
        Behaviour::Compute { tasks, step_us, yields: true }
    },
    |draw| {
        let (tasks, step_us) = (draw.count(1.0, 12.0), draw.us(2_000.0, 400_000.0));
        Behaviour::Compute { tasks, step_us, yields: true }
    },
    |draw| Behaviour::Compute { tasks: draw.count(1.0, 12.0), step_us: 1_000, yields: false },
    |draw| Behaviour::Resting {
        tasks: draw.count(2.0, 30.0),
        rest_us: draw.us(5_000.0, 50_000.0),
        step_us: draw.us(2_000.0, 200_000.0),
    },
    |draw| draw.burst(false),
    |draw| draw.burst(true),
    |draw| {
        let us = draw.us(500.0, 100_000.0);
        Behaviour::Calls { tasks: draw.count(1.0, 60.0), call: Call::Sleep { us }, span_us: 1 }
    },
    |draw| draw.calls(Call::File),
    |draw| draw.calls(Call::Urandom),
    |draw| draw.calls(Call::Exec),
    |draw| draw.calls(Call::Allocate),
    |draw| Behaviour::Lock { tasks: draw.count(2.0, 60.0), hold_us: draw.us(100.0, 5_000.0) },
];

/// Kinds that events drive.
const EVENTS: &[BehaviourGenerator] = &[
    |draw| Behaviour::PingPong { pairs: draw.count(1.0, 10.0), step_us: draw.us(1.0, 10.0) },
    |draw| Behaviour::Flood {
        clients: draw.count(1.0, 10.0),
        step_us: draw.us(6.0, 40.0),
        in_flight: 1,
    },
    |draw| {
        let clients = draw.count(2.0, 100.0);
        Behaviour::BlockingHandlers { clients, sleep_us: draw.us(1_000.0, 100_000.0) }
    },
    |draw| {
        let tasks = draw.log(1.0, 2_000.0).round();
        // So many tasks may not sleep for less.
        let shortest = (1e6 * tasks / TIMERS_PER_S_MAX).max(100.0);
        Behaviour::Timers {
            tasks: whole(tasks).try_into().unwrap_or(u32::MAX),
            period_us: draw.us(shortest, 100_000.0),
        }
    },
    |draw| Behaviour::Broadcast {
        tasks: 1_000,
        step_us: draw.us(5.0, 25.0),
        every_us: draw.us(40_000.0, 200_000.0),
    },
    |draw| {
        let mean_us = draw.log(20.0, 400.0);
        let per_s = draw.rate(mean_us, 0.1, 0.8);
        let service = ServiceTime::Exponential { mean_us: mean_us.round() };
        Behaviour::Service { connections: draw.count(2.0, 300.0), per_s, service }
    },
    |draw| {
        let service = ServiceTime::Bimodal { short_us: 10.0, long_us: 10_000.0, long_share: 0.005 };
        Behaviour::Service { connections: 200, per_s: draw.count(1_000.0, 3_000.0), service }
    },
    |draw| {
        let service = ServiceTime::Fixed { us: 20.0 };
        Behaviour::Service { connections: 1_000, per_s: draw.count(500.0, 3_000.0), service }
    },
    |draw| {
        let step = draw.log(50.0, 500.0);
        let per_s = draw.rate(step, 0.05, 0.6);
        Behaviour::Stages { connections: 20, per_s, stages: vec![Stage::new(1, whole(step))] }
    },
    |draw| {
        let stages = vec![Stage::new(1, draw.us(2.0, 10.0))];
        Behaviour::Stages { connections: 200, per_s: draw.count(300.0, 3_000.0), stages }
    },
    |draw| {
        let stages = vec![Stage::new(1, 5); 10];
        Behaviour::Stages { connections: 1, per_s: draw.count(200.0, 3_000.0), stages }
    },
    |draw| {
        let stages = vec![Stage::new(1, 3), Stage::new(500, 10)];
        Behaviour::Stages { connections: 20, per_s: draw.count(300.0, 3_000.0), stages }
    },
    |draw| Behaviour::Connections { per_s: draw.count(100.0, 1_000.0) },
    |draw| Behaviour::WakeThenCompute {
        per_s: draw.count(2.0, 20.0),
        step_us: draw.us(1_000.0, 20_000.0),
    },
];

/// A load with a name, a line about it, and what it consists of.
pub(crate) type NamedLoad = (&'static str, &'static str, fn() -> Vec<Behaviour>);

const POLITE: Behaviour = Behaviour::Compute { tasks: 2, step_us: 100, yields: true };

const TEN_HOGS_20MS: Behaviour = Behaviour::Compute { tasks: 10, step_us: 20_000, yields: true };

const fn flood(clients: u32) -> Behaviour {
    Behaviour::Flood { clients, step_us: 2, in_flight: 1 }
}

const fn echo_64(in_flight: u32) -> Behaviour {
    Behaviour::Flood { clients: 64, step_us: 0, in_flight }
}

const fn blocking(clients: u32) -> Behaviour {
    Behaviour::BlockingHandlers { clients, sleep_us: 100_000 }
}

const fn burst(tasks: u32, step_us: u64, every_us: u64, is_foreign: bool) -> Behaviour {
    Behaviour::Burst { tasks, step_us, every_us, is_foreign }
}

const fn calls(tasks: u32, call: Call) -> Behaviour {
    Behaviour::Calls { tasks, call, span_us: 3_000 }
}

/// Loads with names.
pub(crate) const CASES: &[NamedLoad] = &[
    ("nothing", "the probes alone", Vec::new),
    ("blocking-4", "handlers that block for 100 ms, 4 clients", || vec![blocking(4)]),
    ("blocking-10", "the same, 10 clients", || vec![blocking(10)]),
    ("blocking-60", "the same, 60 clients", || vec![blocking(60)]),
    ("blocking-500", "the same, 500 clients", || vec![blocking(500)]),
    ("burst-50x10ms", "50 new tasks of 10 ms from a timer's task each 500 ms", || {
        vec![burst(50, 10_000, 500_000, false)]
    }),
    ("fresh-1000x150us", "1000 new tasks of 150 µs each 100 ms", || {
        vec![burst(1_000, 150, 100_000, false)]
    }),
    ("foreign-1000x150us", "the same from a foreign thread", || {
        vec![burst(1_000, 150, 100_000, true)]
    }),
    ("ping-pong-8", "8 pairs of ping-pong and 2 tasks that yield each 100 µs", || {
        vec![Behaviour::PingPong { pairs: 8, step_us: 0 }, POLITE]
    }),
    ("flood-1", "1 client that floods and 2 tasks that yield each 100 µs", || {
        vec![flood(1), POLITE]
    }),
    ("flood-2", "the same, 2 clients", || vec![flood(2), POLITE]),
    ("flood-8", "the same, 8 clients", || vec![flood(8), POLITE]),
    ("echo-64", "64 clients that send again as soon as they are answered", || vec![echo_64(1)]),
    ("echo-64x16", "the same, with 16 messages of each in flight", || vec![echo_64(16)]),
    ("timers-2000x100us", "2000 tasks with timers of 100 µs", || {
        vec![Behaviour::Timers { tasks: 2_000, period_us: 100 }]
    }),
    ("timers-100x1ms", "100 tasks with timers of 1 ms", || {
        vec![Behaviour::Timers { tasks: 100, period_us: 1_000 }]
    }),
    ("hogs-10", "10 tasks that never yield", || {
        vec![Behaviour::Compute { tasks: 10, step_us: 1_000, yields: false }]
    }),
    ("polite-2", "2 tasks that compute and yield each 100 µs", || vec![POLITE]),
    ("wake-then-compute", "a task wakes another, then computes 20 ms", || {
        vec![Behaviour::WakeThenCompute { per_s: 20, step_us: 20_000 }]
    }),
    ("blocking-300", "300 tasks that block in thread::sleep", || {
        vec![Behaviour::Calls { tasks: 300, call: Call::Sleep { us: 100_000 }, span_us: 1 }]
    }),
    ("lock-100", "100 tasks that share a blocking lock whose holder awaits", || {
        vec![Behaviour::Lock { tasks: 100, hold_us: 1_000 }]
    }),
    (
        "calls-mixed",
        "tasks that allocate, read /dev/urandom, fork and exec, yield each 3 ms",
        || [Call::Allocate, Call::Urandom, Call::Exec].map(|call| calls(2, call)).to_vec(),
    ),
    ("calls-allocate", "4 tasks that allocate", || vec![calls(4, Call::Allocate)]),
    ("calls-urandom", "4 tasks that read /dev/urandom", || vec![calls(4, Call::Urandom)]),
    ("calls-exec", "4 tasks that fork and exec", || vec![calls(4, Call::Exec)]),
    ("actor-hogs", "an actor at 10 % of a core, 10 tasks that yield each 20 ms", || {
        let stages = vec![Stage::new(1, 275)];
        vec![Behaviour::Stages { connections: 20, per_s: 370, stages }, TEN_HOGS_20MS]
    }),
    ("chain-hogs", "a chain of 10 actors, 10 tasks that yield each 20 ms", || {
        let stages = vec![Stage::new(1, 5); 10];
        vec![Behaviour::Stages { connections: 1, per_s: 2_000, stages }, TEN_HOGS_20MS]
    }),
    ("router-hogs", "a router and 500 consumers, 10 tasks that yield each 20 ms", || {
        let stages = vec![Stage::new(1, 3), Stage::new(500, 10)];
        vec![Behaviour::Stages { connections: 20, per_s: 3_000, stages }, TEN_HOGS_20MS]
    }),
    (
        "broadcast-1000",
        "a broadcast to 1000 tasks each 100 ms and 2 that yield each 100 µs",
        || vec![Behaviour::Broadcast { tasks: 1_000, step_us: 20, every_us: 100_000 }, POLITE],
    ),
    ("connections-hogs", "1000 new connections/s, 10 tasks that yield each 20 ms", || {
        vec![Behaviour::Connections { per_s: 1_000 }, TEN_HOGS_20MS]
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_a_function_of_its_seed() {
        // Goal: a seed replays its mix, and seeds differ. Method: a thousand seeds, each twice; nearly
        // all sizes are drawn from wide ranges, so equal neighbours would be a seed that is ignored.
        let mut same = 0;
        for seed in 0..1_000 {
            let mix = Mix::draw(seed);
            assert_eq!(mix, Mix::draw(seed));
            same += u32::from(mix.behaviours == Mix::draw(seed + 1).behaviours);
        }
        assert_eq!(same, 0);
    }

    #[test]
    fn every_kind_is_drawn_and_sizes_are_bounded() {
        // Goal: no kind is forgotten, and no mix asks for more than the client and a test machine bear.
        // Method: a thousand seeds, by their words and sizes.
        let mixes: Vec<_> = (0..1_000).map(Mix::draw).collect();
        let words: String = mixes.iter().map(|mix| format!("{mix}\n")).collect();
        for part in [
            "never yield",
            "yield every",
            "in turn",
            "from a task",
            "foreign thread",
            "thread::sleep",
            "read files",
            "urandom",
            "exec",
            "allocate",
            "blocking lock",
            "ping-pong",
            "flood",
            "handlers block",
            "timers of",
            "broadcast",
            "(exponential)",
            "0.5 % 10000",
            "through an actor",
            "one of 500",
            "new connections/s",
            "wakes another",
        ] {
            assert!(words.contains(part), "{part}");
        }
        for mix in mixes {
            assert!((2..=5).contains(&mix.behaviours.len()), "{mix}");
            assert!(mix.connections() <= 3_000, "{mix}");
            for behaviour in &mix.behaviours {
                match behaviour {
                    Behaviour::Service { per_s, .. } | Behaviour::Stages { per_s, .. } => {
                        assert!((1..=3_000).contains(per_s), "{mix}");
                    }
                    Behaviour::Timers { tasks, period_us } => {
                        assert!(u64::from(*tasks) * 1_000_000 / period_us <= 20_100, "{mix}");
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn cases_have_names_of_their_own() {
        // Goal: each name finds its own case. Method: exhaustive.
        for (name, _, behaviours) in CASES {
            assert_eq!(Mix::named(name).unwrap().behaviours, behaviours(), "{name}");
            assert_eq!(CASES.iter().filter(|case| case.0 == *name).count(), 1, "{name}");
        }
        assert_eq!(Mix::named("none"), None);
    }
}
