//! The paper's times, and the runs that are compared with them.

use std::time::Duration;

use super::{Cluster, ClusterConfig, Medium, Runs, SimulationError};
use crate::algorithm::{Algorithm, HopTiming, Networks};
use crate::group::Group;

/// The minimum number of seeds over which a time on a hub is averaged.
pub const SEEDS: u32 = 8;

/// One time that the paper quotes, or a run of ours beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Case {
    /// The figure of [eth-barrier, §4.3] and [eth-barrier, §4.4] that it belongs to.
    pub figure: u8,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The number of members.
    pub members: u32,
    /// The kind of network that connects them: one, or two of the same kind.
    pub medium: Medium,
    /// The mean that the paper quotes, in microseconds.
    pub paper_us: Option<f64>,
    /// The sum of all times of the calibrated run, in nanoseconds, if no randomness is involved.
    pub golden_ns: Option<u64>,
}

const TERNARY_TWO: Algorithm = Algorithm::Heap { children: 2, networks: Networks::Two };
const CONCURRENT: Algorithm = Algorithm::Concurrent { networks: Networks::One };
const CONCURRENT_TWO: Algorithm = Algorithm::Concurrent { networks: Networks::Two };

/// The twelve times that the text of [eth-barrier, §4.3] and [eth-barrier, §4.4] quotes.
pub const QUOTED: [Case; 12] = [
    switch(5, Algorithm::ShuffleExchange, 32, 174.0, 552_000_000),
    switch(6, Algorithm::BINARY, 32, 204.0, 662_382_500),
    switch(7, Algorithm::TERNARY, 31, 200.0, 602_932_500),
    switch(8, CONCURRENT, 32, 309.0, 927_342_500),
    switch(9, Algorithm::TERNARY, 15, 159.0, 231_732_500),
    switch(9, TERNARY_TWO, 15, 169.0, 249_732_500),
    switch(10, CONCURRENT, 16, 179.0, 269_294_500),
    switch(10, CONCURRENT_TWO, 16, 147.0, 246_382_500),
    hub(5, Algorithm::ShuffleExchange, 32, 3743.0),
    hub(6, Algorithm::BINARY, 32, 728.0),
    hub(7, Algorithm::TERNARY, 31, 675.0),
    hub(8, CONCURRENT, 32, 1059.0),
];

const fn switch(
    figure: u8,
    algorithm: Algorithm,
    members: u32,
    paper_us: f64,
    golden_ns: u64,
) -> Case {
    let golden_ns = Some(golden_ns);
    let paper_us = Some(paper_us);
    Case { figure, algorithm, members, medium: Medium::Switch, paper_us, golden_ns }
}

const fn hub(figure: u8, algorithm: Algorithm, members: u32, paper_us: f64) -> Case {
    let paper_us = Some(paper_us);
    Case { figure, algorithm, members, medium: Medium::Hub, paper_us, golden_ns: None }
}

impl Case {
    /// A run that is not in the paper.
    #[must_use]
    pub const fn new(figure: u8, algorithm: Algorithm, members: u32, medium: Medium) -> Self {
        Self { figure, algorithm, members, medium, paper_us: None, golden_ns: None }
    }

    /// Returns the cluster that it runs on, with seed 0.
    pub fn cluster(&self, config: ClusterConfig) -> Cluster {
        let networks = match self.algorithm.networks() {
            Networks::One => 1,
            Networks::Two => 2,
        };
        Cluster::new(vec![self.medium; networks]).config(config)
    }

    /// Simulates it: once on a switch, on a hub with `seeds` seeds from `seed` on.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub fn run(
        &self,
        config: ClusterConfig,
        seed: u64,
        seeds: u32,
    ) -> Result<Runs, SimulationError> {
        let group = Group::new(self.members)?;
        let schedule = self.algorithm.schedule(group)?;
        let seeds = if self.medium == Medium::Hub { seeds } else { 1 };
        self.cluster(config).seed(seed).run_seeds(&schedule, seeds)
    }
}

/// Returns the tree that is optimal for these parameters: a hop is o_s + L + o_r and a wait; messages for one member
/// follow each other as fast as its wire allows or, if that is slower, its processor.
#[must_use]
pub fn optimal(config: &ClusterConfig) -> Algorithm {
    let hop_ns = config.send_ns + config.latency_ns + config.receive_one_ns() + config.wait_ns;
    let gap_ns = config.gap_ns().max(config.receive_frame_ns);
    Algorithm::Optimal(HopTiming::new(Duration::from_nanos(hop_ns), Duration::from_nanos(gap_ns)))
}

/// Returns the fraction by which a 4-ary tree of 16 members is faster than shuffle exchange with this o_r and links
/// of this rate, other parameters bare; the paper's prospect [eth-barrier, §5.1.2].
///
/// # Errors
/// [`SimulationError`] if the rate is too low for L.
pub fn four_ary_gain(receive_ns: u64, rate_mbps: u64) -> Result<f64, SimulationError> {
    let set = ClusterConfig { rate_mbps, ..ClusterConfig::BARE }.receive_ns(receive_ns);
    let mean_ns = |algorithm| {
        let case = Case::new(0, algorithm, 16, Medium::Switch);
        case.run(set, 0, 1).map(|runs| runs.mean_ns())
    };
    let tree_ns = mean_ns(Algorithm::Nomial { k: 4 })?;
    Ok(1.0 - tree_ns / mean_ns(Algorithm::ShuffleExchange)?)
}

/// Returns the largest o_r up to 10 µs, in nanoseconds, with which the 4-ary tree is not slower over links of this
/// rate; `None` if it is always slower.
///
/// # Errors
/// The same as [`four_ary_gain`].
pub fn four_ary_crossing(rate_mbps: u64) -> Result<Option<u64>, SimulationError> {
    // In steps from well above the paper's prospect, then by bisection.
    const STEP_NS: u64 = 200;
    let mut low_ns = 10_000;
    while four_ary_gain(low_ns, rate_mbps)? < 0.0 {
        let Some(lower_ns) = u64::checked_sub(low_ns, STEP_NS) else { return Ok(None) };
        low_ns = lower_ns;
    }
    let mut high_ns = low_ns + STEP_NS;
    while high_ns - low_ns > 1 {
        let middle_ns = u64::midpoint(low_ns, high_ns);
        let is_faster = four_ary_gain(middle_ns, rate_mbps)? >= 0.0;
        *(if is_faster { &mut low_ns } else { &mut high_ns }) = middle_ns;
    }
    Ok(Some(low_ns))
}
