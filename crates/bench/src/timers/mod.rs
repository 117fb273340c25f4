//! Timers: what a fired one costs, and how late it is.
//!
//! | load | what runs | figure |
//! | --- | --- | --- |
//! | periodic | 100 tasks, each of which sleeps for 1 ms again and again | processor time, lateness |
//! | one | one task, which sleeps for 1 to 2 ms again and again | the same |
//! | beside | 2000 tasks that sleep for 100 µs, and an echo | time until the echo |
//! | past | one task that waits for deadlines which have passed | time until it goes on |
//!
//! Question: what does a timer cost at equal lateness? tokio's fire at the millisecond after the deadline,
//! so they are late by half a millisecond to more than one, and share a wake-up within it. vigie's are late
//! by some 60 µs with the default slack (50 µs); with a slack of 1 ms each may be as late as tokio's.
//! Prediction: at equal lateness, processor time is that of as many wake-ups; with the default slack, of up
//! to ten times as many. Method: each row in a process of its own, in turns; processor time is the whole
//! process's, after a warm-up. Lateness is taken from one timer in 16.

mod inside;

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

pub(crate) use self::inside::run_here;
use crate::compute::parse_duration;
use crate::error::BenchError;
use crate::host::Priority;
use crate::process::{Child, Role};
use crate::report::{Case, REACTION, Repetition, Row, Show, Systems, Turn, table};
use crate::schedulers::System;

/// Name of the case in rows.
pub(crate) const CASE: &str = "timers";

/// Key of the processor time of a fired timer.
pub(crate) const CPU_PER_TIMER: &str = "cpu_per_timer_us";

/// The slack at which vigie's timers may be as late as tokio's, in microseconds.
pub(crate) const EQUAL_SLACK_US: u64 = 1_000;

/// How long a process may take beyond what it measures.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The behaviour of a process's timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TimerLoad {
    /// 100 tasks, each of which sleeps for 1 ms again and again.
    Periodic,
    /// One task that sleeps for 1 to 2 ms again and again.
    One,
    /// 2000 tasks that sleep for 100 µs again and again, and an echo.
    Beside,
    /// One task that waits for deadlines which have passed.
    Past,
}

impl TimerLoad {
    /// All of them, in the order of the tables.
    pub(crate) const ALL: [Self; 4] = [Self::Periodic, Self::One, Self::Beside, Self::Past];

    /// Returns the name in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Periodic => "periodic",
            Self::One => "one",
            Self::Beside => "beside",
            Self::Past => "past",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Periodic => "100 timers of 1 ms, set again and again",
            Self::One => "One timer of 1 to 2 ms at a time",
            Self::Beside => "2000 timers of 100 µs beside an echo",
            Self::Past => "A deadline that has passed",
        }
    }

    /// Whether more than one timer is pending, so that slack could matter.
    const fn has_several(self) -> bool {
        matches!(self, Self::Periodic | Self::Beside)
    }
}

/// What is measured by default, before the peers.
const OWN: [System; 2] = [System::Vigie, System::VigieUserLevel];

/// Which systems are measured, and for how long.
#[derive(Clone, Debug, Args)]
pub(crate) struct TimersPlan {
    /// Time for each row and round.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    time: Duration,
    /// Number of rounds; figures are medians over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    systems: Systems,
}

impl Case for TimersPlan {
    type Setting = TimerPlan;

    fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Every load on every system; vigie's with a second slack where that could matter.
    fn rows(&self) -> Vec<(TimerPlan, Row)> {
        let (workers, time) = (self.systems.workers, self.time);
        let mut children = Vec::new();
        for load in TimerLoad::ALL {
            for system in self.systems.or(&OWN) {
                let child = TimerPlan { system, load, slack_us: None, workers, time, seed: 0 };
                children.push(child);
                if load.has_several() && has_slack(system) {
                    children.push(TimerPlan { slack_us: Some(EQUAL_SLACK_US), ..child });
                }
            }
        }
        children.into_iter().map(|child| (child, child.row())).collect()
    }

    fn measure(&self, plan: &TimerPlan, turn: &Turn<'_>) -> Result<Repetition, BenchError> {
        turn.shows(format!("{}, timers: {}", plan.system, plan.load.name()));
        Ok(TimerPlan { seed: turn.seed, ..*plan }.run()?.repetition())
    }

    /// Shows a table for each load.
    fn tables(&self, rows: &[Row]) -> String {
        let of = |load: TimerLoad| {
            let own = |row: &&Row| row.parameters.get("load").is_some_and(|it| it == load.name());
            let rows: Vec<_> = rows.iter().filter(own).cloned().collect();
            let slack = ("slack", Show::Parameter("slack"));
            let fired = ("fired / s", Show::Count("fired_per_s"));
            let cores = ("cores", Show::Number("cpu_cores"));
            let each = ("processor time / timer", Show::Time(CPU_PER_TIMER));
            let columns = match load {
                TimerLoad::Periodic | TimerLoad::One => vec![
                    slack,
                    fired,
                    cores,
                    each,
                    ("late p50", Show::Time("late_p50_us")),
                    ("late p99", Show::Time("late_p99_us")),
                ],
                TimerLoad::Beside => vec![
                    slack,
                    fired,
                    cores,
                    ("echo p50", Show::Time("p50_us")),
                    ("echo p99", Show::Time("p99_us")),
                    ("echo max", Show::Time("max_us")),
                ],
                TimerLoad::Past => {
                    vec![("p50", Show::Time("p50_us")), ("p99", Show::Time("p99_us"))]
                }
            };
            table(load.title(), &rows, &columns)
        };
        TimerLoad::ALL.map(of).join("\n")
    }
}

fn has_slack(system: System) -> bool {
    matches!(system, System::Vigie | System::VigieUserLevel)
}

/// The timers of one process, and its system.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct TimerPlan {
    system: System,
    load: TimerLoad,
    slack_us: Option<u64>,
    workers: usize,
    time: Duration,
    seed: u64,
}

impl Role for TimerPlan {
    const NAME: &'static str = "timers";
}

/// The result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TimerFigures {
    fired: u64,
    cpu_ns: u64,
    elapsed_ns: u64,
    lateness_ns: Vec<u64>,
    /// Times of echoes, or until a wait for a deadline that has passed was over.
    reaction_ns: Vec<u64>,
    priority: Priority,
}

impl TimerPlan {
    fn row(&self) -> Row {
        let slack = match self.slack_us {
            _ if !has_slack(self.system) => "–".to_owned(),
            Some(us) => format!("{us} µs"),
            None => "default".to_owned(),
        };
        Row::new(self.system, CASE)
            .parameter("load", self.load.name())
            .parameter("slack", slack)
            .parameter("workers", self.workers)
    }

    fn run(&self) -> Result<TimerFigures, BenchError> {
        let mut child = Child::start(self)?;
        child.result(self.time + TIMEOUT)
    }
}

impl TimerFigures {
    fn repetition(self) -> Repetition {
        let (fired, seconds) = (self.fired as f64, self.elapsed_ns as f64 / 1e9);
        let repetition = Repetition::new(self.priority)
            .samples(REACTION, self.reaction_ns.into_iter().collect())
            .samples("late", self.lateness_ns.into_iter().collect())
            .figure("cpu_cores", self.cpu_ns as f64 / self.elapsed_ns as f64);
        if self.fired == 0 {
            return repetition;
        }
        repetition
            .figure("fired_per_s", fired / seconds)
            .figure(CPU_PER_TIMER, self.cpu_ns as f64 / 1e3 / fired)
    }
}
