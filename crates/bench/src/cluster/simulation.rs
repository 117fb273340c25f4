//! The paper's cluster in simulation: figures 5 to 10, what is left out of the model in turn, and what the paper does not have.
//!
//! Nothing here depends on the machine that runs it.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use vigie_barrier::cluster::paper::{
    Case, QUOTED, SEEDS, four_ary_crossing, four_ary_gain, optimal,
};
use vigie_barrier::cluster::{
    Arrival, BARRIERS_DEFAULT, ClusterConfig, Completion, Counts, FramesPerInterrupt, Medium, Runs,
    SimulationError,
};
use vigie_barrier::{Algorithm, Group};

use super::{plot, tables};
use crate::error::BenchError;
use crate::report::chart;
use crate::report::{Outcome, Plan, Progress, Row, Subject};

/// What the rows are about.
const SIMULATED: Subject = Subject::Carrier { name: "simulated", label: "simulated cluster" };

/// The case of a barrier's row.
pub(crate) const CASE: &str = "barrier-sim";

/// The case of the row that compares a 4-ary tree with shuffle exchange.
pub(crate) const FOUR_ARY_CASE: &str = "barrier-sim-four-ary";

/// Name of the algorithm.
pub(crate) const ALGORITHM: &str = "algorithm";

/// Number of members.
pub(crate) const MEMBERS: &str = "members";

/// Kind of the networks.
pub(crate) const NETWORK: &str = "network";

/// Name of the set of parameters.
pub(crate) const SET: &str = "parameters";

/// What runs on the nodes: bare steps, or the member machine.
pub(crate) const DRIVER: &str = "driver";

/// Number of the paper's figure; 0: none.
pub(crate) const FIGURE: &str = "figure";

/// The mean time of a barrier, in microseconds, averaged over members and runs.
pub(crate) const MEAN_US: &str = "mean_us";

/// The mean that the paper quotes.
pub(crate) const PAPER_US: &str = "paper_us";

/// How far the sum of all times is from the stored one, in nanoseconds.
pub(crate) const GOLDEN_DIFFERENCE_NS: &str = "golden_difference_ns";

/// Longer than any barrier: a member asks for nothing.
const NEVER: Duration = Duration::from_secs(60);

/// A named set of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ParameterSet {
    /// The paper's cluster, with four fitted constants.
    Calibrated,
    /// The paper's LogP alone.
    Bare,
    /// Calibrated, but no sender waits until its frames have left.
    NoCompletionWait,
    /// Calibrated, but each frame has an interrupt of its own.
    OneFrame,
}

impl ParameterSet {
    /// Returns the name on the command line and in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Calibrated => "calibrated",
            Self::Bare => "bare",
            Self::NoCompletionWait => "no-completion-wait",
            Self::OneFrame => "one-frame",
        }
    }

    /// Returns the parameters.
    pub(crate) const fn parameters(self) -> ClusterConfig {
        let calibrated = ClusterConfig::CALIBRATED;
        match self {
            Self::Calibrated => calibrated,
            Self::Bare => ClusterConfig::BARE,
            Self::NoCompletionWait => calibrated.completion(Completion::Ignored),
            Self::OneFrame => calibrated.frames_per_interrupt(FramesPerInterrupt::One),
        }
    }
}

/// Returns the name of a kind of network on the command line and in results.
pub(crate) const fn medium_name(medium: Medium) -> &'static str {
    match medium {
        Medium::Hub => "hub",
        _ => "switch",
    }
}

/// The simulated system.
#[derive(Clone, Debug)]
pub(crate) struct SimulationPlan {
    /// Each barrier, and with which parameters.
    pub(crate) cases: Vec<(Case, ParameterSet)>,
    /// Whether a 4-ary tree is compared with shuffle exchange over o_r.
    pub(crate) has_four_ary: bool,
    /// Barriers of a run.
    pub(crate) barriers: u32,
    /// Seeds of which a time on a hub is the mean; and any time, if members are spread or frames lost.
    pub(crate) seeds: u32,
    /// When members enter.
    pub(crate) arrival: Arrival,
    /// The probability that a receiver does not get a frame.
    pub(crate) loss: f64,
    /// Runs the member machine, which asks for what it misses after this time, instead of the bare steps.
    pub(crate) repeat_after: Option<Duration>,
    /// Barriers that the member machine runs beside those that the bare steps run; it repeats nothing.
    pub(crate) of_members: Vec<(Case, ParameterSet)>,
    /// Where figures are drawn: each to a file beside this one.
    pub(crate) plot: Option<PathBuf>,
}

impl SimulationPlan {
    /// Plans these barriers.
    pub(crate) const fn new(cases: Vec<(Case, ParameterSet)>) -> Self {
        Self {
            cases,
            has_four_ary: false,
            barriers: BARRIERS_DEFAULT,
            seeds: SEEDS,
            arrival: Arrival::Together,
            loss: 0.0,
            repeat_after: None,
            of_members: Vec::new(),
            plot: None,
        }
    }

    /// Plans figures 5 to 10, and what the paper quotes of them with the bare parameters too.
    pub(crate) fn figures() -> Self {
        let [exchange, binary, ternary, concurrent, ternary_two, concurrent_two] =
            Algorithm::OF_THE_PAPER;
        let (powers, trees) = ([2, 4, 8, 16, 32], [3, 7, 15, 31]);
        let mut cases = Vec::new();
        let lines: [(u8, Algorithm, &[u32]); 4] = [
            (5, exchange, &powers),
            (6, binary, &powers),
            (7, ternary, &trees),
            (8, concurrent, &powers),
        ];
        for (figure, algorithm, members) in lines {
            for medium in [Medium::Switch, Medium::Hub] {
                cases.extend(members.iter().map(|n| case(figure, algorithm, *n, medium)));
            }
        }
        let pairs: [(u8, [Algorithm; 2], &[u32]); 2] = [
            (9, [ternary, ternary_two], &trees[..3]),
            (10, [concurrent, concurrent_two], &powers[..4]),
        ];
        for (figure, algorithms, members) in pairs {
            for algorithm in algorithms {
                let of = |n: &u32| case(figure, algorithm, *n, Medium::Switch);
                cases.extend(members.iter().map(of));
            }
        }
        let calibrated = cases.into_iter().map(|case| (case, ParameterSet::Calibrated));
        Self::new(calibrated.chain(QUOTED.map(|case| (case, ParameterSet::Bare))).collect())
    }

    /// Plans what the goals need.
    pub(crate) fn goals() -> Self {
        let both = [ParameterSet::Calibrated, ParameterSet::Bare];
        let mut cases: Vec<_> =
            both.iter().flat_map(|set| QUOTED.map(|case| (case, *set))).collect();
        let switch = |algorithm, members, set| (case(0, algorithm, members, Medium::Switch), set);
        let [exchange, _, _, concurrent, _, concurrent_two] = Algorithm::OF_THE_PAPER;
        cases.push((case(0, exchange, 32, Medium::Hub), ParameterSet::NoCompletionWait));
        for (algorithm, members) in [(concurrent, 32), (concurrent, 16), (concurrent_two, 16)] {
            cases.push(switch(algorithm, members, ParameterSet::OneFrame));
        }
        cases.push(switch(Algorithm::Nomial { k: 3 }, 31, ParameterSet::Calibrated));
        for set in both {
            // With 32 members the paper has it too.
            cases.extend([16, 64].map(|members| switch(exchange, members, set)));
            for members in [16, 32, 64] {
                cases.push(switch(Algorithm::Dissemination { ways: 3 }, members, set));
            }
            cases.push(switch(optimal(&set.parameters()), 32, set));
        }
        let of_members = QUOTED.map(|case| (case, ParameterSet::Calibrated)).to_vec();
        Self { has_four_ary: true, of_members, ..Self::new(cases) }
    }

    fn row(
        &self,
        case: &Case,
        set: ParameterSet,
        repeat_after: Option<Duration>,
        seed: u64,
    ) -> Row {
        let row = Row::new(SIMULATED, CASE)
            .parameter(FIGURE, case.figure)
            .parameter(ALGORITHM, case.algorithm.to_string())
            .parameter(MEMBERS, case.members)
            .parameter(NETWORK, medium_name(case.medium))
            .parameter(SET, set.name())
            .parameter(DRIVER, if repeat_after.is_some() { "members" } else { "steps" })
            .parameter("barriers", self.barriers)
            .parameter("loss", self.loss);
        let row = match self.arrival {
            Arrival::Spread(most_ns) => row.parameter("spread_us", most_ns as f64 / 1e3),
            Arrival::OneLate(late_ns) => row.parameter("late_us", late_ns as f64 / 1e3),
            _ => row,
        };
        match self.simulate(case, set, repeat_after, seed) {
            Ok(runs) => self.found(row, (case, set), &runs),
            Err(error) => Row { failure: Some(error.to_string()), ..row },
        }
    }

    fn simulate(
        &self,
        case: &Case,
        set: ParameterSet,
        repeat_after: Option<Duration>,
        first_seed: u64,
    ) -> Result<Runs, SimulationError> {
        let schedule = case.algorithm.schedule(Group::new(case.members)?)?;
        let is_chance = case.medium == Medium::Hub
            || matches!(self.arrival, Arrival::Spread(_))
            || self.loss > 0.0;
        let cluster = case
            .cluster(set.parameters())
            .barriers(self.barriers)
            .arrival(self.arrival)
            .loss(self.loss);
        let seeds = if is_chance { self.seeds } else { 1 };
        let run = |seed: u64| {
            let cluster = cluster.clone().seed(first_seed.wrapping_add(seed));
            match repeat_after {
                Some(repeat_after) => cluster.run_members(&schedule, repeat_after),
                None => cluster.run(&schedule),
            }
        };
        let runs: Result<Vec<_>, _> = (0..u64::from(seeds)).map(run).collect();
        Ok(Runs::new(runs?))
    }

    /// Adds the figures.
    fn found(&self, row: Row, (case, set): (&Case, ParameterSet), runs: &Runs) -> Row {
        let us = |ns: f64| ns / 1e3;
        let barriers: u64 = runs.runs.iter().map(|times| u64::from(times.barriers())).sum();
        let per_barrier = |of: fn(&Counts) -> u64| {
            runs.runs.iter().map(|times| of(&times.counts)).sum::<u64>() as f64 / barriers as f64
        };
        let mut row = row
            .with_figure("samples", barriers)
            .with_figure("runs", runs.runs.len())
            .with_figure("min_us", us(runs.mean_min_ns()))
            .with_figure(MEAN_US, us(runs.mean_ns()))
            .with_figure("deviation_us", us(runs.deviation_ns()))
            .with_figure("max_us", us(runs.mean_max_ns()))
            .with_figure("frames_per_barrier", per_barrier(|counts| counts.sent))
            .with_figure("collisions_per_barrier", per_barrier(|counts| counts.collisions));
        if !self.is_of_the_paper() {
            return row;
        }
        if let Some(paper_us) = case.paper_us {
            row = row.with_figure(PAPER_US, paper_us);
        }
        if let (ParameterSet::Calibrated, Some(golden_ns), [times]) =
            (set, case.golden_ns, &runs.runs[..])
        {
            row = row.with_figure(GOLDEN_DIFFERENCE_NS, times.sum_ns().abs_diff(golden_ns));
        }
        row
    }

    /// Whether it is the paper's method that runs, so that its numbers can be held beside.
    fn is_of_the_paper(&self) -> bool {
        self.barriers == BARRIERS_DEFAULT && self.arrival == Arrival::Together && self.loss == 0.0
    }
}

impl Plan for SimulationPlan {
    fn cases(&self) -> usize {
        self.cases.len() + self.of_members.len() + usize::from(self.has_four_ary)
    }

    fn run(&self, seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let mut outcome = Outcome::default();
        let steps = self.cases.iter().map(|case| (case, self.repeat_after));
        let of_members = self.of_members.iter().map(|case| (case, Some(NEVER)));
        for ((case, set), repeat_after) in steps.chain(of_members) {
            progress.case(format!("{}, {} members", case.algorithm, case.members));
            outcome.rows.push(self.row(case, *set, repeat_after, seed));
            progress.case_done();
        }
        if self.has_four_ary {
            progress.case("4-ary tree");
            outcome.rows.push(four_ary());
            progress.case_done();
        }
        Ok(outcome)
    }

    fn tables(&self, rows: &[Row]) -> String {
        tables::all(rows)
    }

    fn draw(&self, rows: &[Row]) -> Result<(), BenchError> {
        let Some(path) = &self.plot else { return Ok(()) };
        plot::figures(rows).into_iter().try_for_each(|figure| {
            let path = path.with_extension(format!("{figure}.svg"));
            chart::write(&path, plot::means(rows, figure))
        })
    }
}

/// The case of these, with what the paper quotes for it.
fn case(figure: u8, algorithm: Algorithm, members: u32, medium: Medium) -> Case {
    let mut case = Case::new(figure, algorithm, members, medium);
    let is_same = |quoted: &&Case| {
        (quoted.algorithm, quoted.members, quoted.medium) == (algorithm, members, medium)
    };
    if let Some(quoted) = QUOTED.iter().find(is_same) {
        (case.paper_us, case.golden_ns) = (quoted.paper_us, quoted.golden_ns);
    }
    case
}

/// Where a 4-ary tree crosses shuffle exchange on 1 Gb/s, and what it gains at most on 100 Mb/s, by o_r.
fn four_ary() -> Row {
    let row = Row::new(SIMULATED, FOUR_ARY_CASE).parameter(MEMBERS, 16);
    let found = || -> Result<(Option<u64>, f64), SimulationError> {
        let gains = (0..=95).map(|tenths| four_ary_gain(tenths * 100, 100));
        let gains = gains.collect::<Result<Vec<_>, _>>()?;
        Ok((four_ary_crossing(1_000)?, gains.into_iter().fold(f64::MIN, f64::max)))
    };
    match found() {
        Ok((Some(crossing_ns), gain)) => row
            .with_figure("samples", 1)
            .with_figure("crossing_us", crossing_ns as f64 / 1e3)
            .with_figure("gain", gain),
        Ok((None, _)) => Row { failure: Some("there is no crossing".to_owned()), ..row },
        Err(error) => Row { failure: Some(error.to_string()), ..row },
    }
}
