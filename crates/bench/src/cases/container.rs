//! A server with compute tasks in a control group limited to one core, or half of one, as in many
//! containers.
//!
//! Two threads that compute use up a quota of one core in half of each period; for the other half the
//! kernel stops the whole group, and no runtime can react then. So the mark is one period; with half a
//! core and ten tasks, which are stopped for three quarters of the time, it is what kernel threads reach.
//! This case cannot be measured where no control group can be made; it says so.
//!
//! If the runtime is vigie's, the server's own metrics are shown beside the client's times: how long
//! tasks that an event woke were ready before they were polled, and how often the group was stopped. A
//! stop that falls before the detection of an event is in no delay of the runtime's own, only in the
//! number of stops: a program without such a client must read both.

use std::time::Duration;

use crate::client::PingPong;
use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::host::control_group::{PERIOD, QuotaGroup};
use crate::inside::Counts;
use crate::report::progress::Progress;
use crate::report::repetition::{REACTION, Repetition, WORK_PER_S, in_repetitions};
use crate::report::show::{Show, table};
use crate::report::{Outcome, Row};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub const CASE: &str = "container";

/// The quota's period in microseconds: what a reaction may take.
pub(crate) const PERIOD_US: f64 = PERIOD.as_micros() as f64;

/// Shortest pause between an echo and the next message, and the range over which pauses spread.
const SPACING: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(3)];

/// The time limit of an echo.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Which systems react within one core's quota, beside which compute tasks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContainerPlan {
    /// The systems, in the order of the table.
    pub systems: Vec<System>,
    /// Cores that the group may use: 0.01 or more.
    pub quota: f64,
    /// Compute tasks.
    pub compute: u32,
    /// How often each compute task yields.
    pub yield_every: YieldEvery,
    /// Messages per system, at most.
    pub samples: u32,
    /// Time per system, at most.
    pub budget: Duration,
    /// Turns in which samples and budget are spent, each with new processes.
    pub rounds: u32,
    /// Worker threads, where a system has a choice.
    pub workers: usize,
    /// Seed of all chance.
    pub seed: u64,
}

impl ContainerPlan {
    /// Plans two compute tasks that yield every second, and 2000 messages in at most 16 s.
    #[must_use]
    pub const fn new(systems: Vec<System>) -> Self {
        Self {
            systems,
            quota: 1.0,
            compute: 2,
            yield_every: YieldEvery::Step(Duration::from_secs(1)),
            samples: 2_000,
            budget: Duration::from_secs(16),
            rounds: 2,
            workers: 2,
            seed: 0,
        }
    }

    /// Plans the same with half a core and ten compute tasks.
    #[must_use]
    pub const fn half_a_core(systems: Vec<System>) -> Self {
        let mut plan = Self::new(systems);
        (plan.quota, plan.compute) = (0.5, 10);
        plan
    }

    /// Returns how many cases [`run`](Self::run) measures, for its progress bar.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.systems.len() * self.rounds as usize
    }

    /// Measures all systems in turns.
    ///
    /// # Errors
    /// Those of the processes. A system that does not react is not an error: its row says so; neither is a
    /// machine on which no control group can be made: then every row says so.
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let row = |&system| {
            Row::new(system, CASE)
                .parameter("period_ms", PERIOD.as_secs_f64() * 1e3)
                .parameter("quota_cores", self.quota)
                .parameter("compute", self.compute)
                .parameter("yield_every", self.yield_every.to_string())
                .parameter("workers", self.workers)
        };
        let mut rows: Vec<_> = self.systems.iter().map(row).collect();
        if let Err(reason) = QuotaGroup::create(self.quota) {
            eprintln!("SKIPPED: the container case: {reason}");
            for row in &mut rows {
                row.failure = Some(reason.to_string());
            }
        }
        in_repetitions(rows, self.rounds, self.seed, progress, |_, row, seed, progress| {
            progress.case(format!("{}, with a quota of {} cores", row.system, self.quota));
            let group = QuotaGroup::create(self.quota)?;
            let samples = self.samples.div_ceil(self.rounds);
            let plan = ServerPlan::new(row.runtime()?).workers(self.workers);
            let plan = plan.compute(self.compute, self.yield_every);
            // Dropped before the group, which can only be removed when it is empty.
            let mut server = plan.in_group(group.path().to_owned()).start()?;
            let before = (server.usage()?, group.periods_throttled()?, server.counts()?);
            let echoes = PingPong::new(server.address())
                .samples(samples)
                .budget(self.budget / self.rounds)
                .spacing(SPACING[0], SPACING[1])
                .timeout(TIMEOUT)
                .seed(seed)
                .run(&mut |done| progress.part(done, samples as usize))?;
            let spent = server.usage()?.since(before.0);
            let throttled = group.periods_throttled()?.saturating_sub(before.1);
            let inside = server.counts()?.zip(before.2).map(|(now, before)| now.since(&before));
            let seconds = spent.at_ns as f64 / 1e9;
            let repetition = Repetition::new(echoes.priority)
                .samples(REACTION, echoes.samples)
                .figure("cores", spent.cpu_ns as f64 / spent.at_ns as f64)
                .figure("throttled_per_s", throttled as f64 / seconds)
                .figure(WORK_PER_S, spent.work_per_s());
            Ok(own_figures(repetition, inside.as_ref(), seconds))
        })
    }

    /// Shows percentiles, and how often the kernel stopped the group.
    #[must_use]
    pub fn tables(&self, rows: &[Row]) -> String {
        let title = format!(
            "Reaction with a quota of {} cores (period {PERIOD:?}), beside {} compute tasks (yield every \
             {})",
            self.quota, self.compute, self.yield_every
        );
        let columns = [
            ("samples", Show::Count("samples")),
            ("p50", Show::Time("p50_us")),
            ("p99", Show::Time("p99_us")),
            ("max", Show::Time("max_us")),
            ("cores used", Show::Number("cores")),
            ("stopped / s", Show::Number("throttled_per_s")),
            ("own p99", Show::Time("own_p99_us")),
            ("own max", Show::Time("own_us_max")),
            ("own stopped / s", Show::Number("own_throttled_per_s")),
            ("own ms stopped / s", Show::Number("own_throttled_ms_per_s")),
        ];
        let shown = table(&title, rows, &columns);
        format!(
            "{shown}own: by the metrics of the server's runtime, from ready to polled (upper ends of \
             buckets; without stops before the detection), and what it reads of its control group\n"
        )
    }
}

/// Adds what the server's own runtime says of `seconds`, if it says anything.
fn own_figures(mut repetition: Repetition, inside: Option<&Counts>, seconds: f64) -> Repetition {
    let Some(inside) = inside else { return repetition };
    let periods = inside.throttled_periods().map(|periods| periods as f64 / seconds);
    let millis = inside.throttled_ns().map(|nanos| nanos as f64 / 1e6 / seconds);
    for (key, value) in [
        ("own_p99_us", inside.delay_us(99)),
        ("own_us_max", inside.delay_us(100)),
        ("own_throttled_per_s", periods),
        ("own_throttled_ms_per_s", millis),
    ] {
        if let Some(value) = value {
            repetition = repetition.figure(key, value);
        }
    }
    repetition
}
