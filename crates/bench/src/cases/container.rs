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

use clap::Args;

use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::host::control_group::{PERIOD, QuotaGroup};
use crate::inside::Counts;
use crate::report::{
    Amount, Column, Repetition, Row, Show, SystemCase, Turn, WORK_PER_S, by_default,
};
use crate::schedulers::System;

/// The time limit of an echo.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Which systems react within a quota, beside which compute tasks.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("16s")), mut_arg("rounds", by_default("2")))]
pub(crate) struct ContainerPlan {
    /// Quota of the control group, in cores; a fraction is allowed.
    #[arg(long, default_value_t = 1.0)]
    quota: f64,
    /// Number of tasks that compute.
    #[arg(long, default_value_t = 2)]
    compute: u32,
    /// Computation of each of these tasks between two yields: a time, or `never`.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    yield_every: YieldEvery,
    /// Limit of messages for each system.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    amount: Amount,
}

impl SystemCase for ContainerPlan {
    const CASE: &'static str = "container";
    const COLUMNS: &'static [Column] = &[
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

    fn amount(&self) -> &Amount {
        &self.amount
    }

    fn parameters(&self, row: Row) -> Row {
        row.parameter("period_ms", PERIOD.as_secs_f64() * 1e3)
            .parameter("quota_cores", self.quota)
            .parameter("compute", self.compute)
            .parameter("yield_every", self.yield_every.to_string())
    }

    fn prepare(&self) -> Result<(), BenchError> {
        Ok(QuotaGroup::create(self.quota).map(drop)?)
    }

    fn measure(&self, system: System, turn: &Turn<'_>) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, with a quota of {} cores", self.quota));
        let group = QuotaGroup::create(self.quota)?;
        let plan = self.amount.server(system).compute(self.compute, self.yield_every);
        // Dropped before the group, which can only be removed when it is empty.
        let mut server = plan.in_group(group.path().to_owned()).start()?;
        let before = (group.periods_throttled()?, server.counts()?);
        let client = self.amount.client(server.address(), self.samples, turn).timeout(TIMEOUT);
        let (echoes, spent) = server.spent(|| turn.run(&client))?;
        let throttled = group.periods_throttled()?.saturating_sub(before.0);
        let inside = server.counts()?.zip(before.1).map(|(now, before)| now.since(&before));
        let seconds = spent.at_ns as f64 / 1e9;
        let repetition = Repetition::of(echoes)
            .figure("cores", spent.cpu_ns as f64 / spent.at_ns as f64)
            .figure("throttled_per_s", throttled as f64 / seconds)
            .figure(WORK_PER_S, spent.work_per_s());
        Ok(own_figures(repetition, inside.as_ref(), seconds))
    }

    fn title(&self) -> String {
        format!(
            "Reaction with a quota of {} cores (period {PERIOD:?}), beside {} compute tasks (yield every \
             {})",
            self.quota, self.compute, self.yield_every
        )
    }

    fn note(&self) -> &'static str {
        "own: by the metrics of the server's runtime, from ready to polled (upper ends of \
         buckets; without stops before the detection), and what it reads of its control group\n"
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
