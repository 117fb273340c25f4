//! Random traffic in virtual time: over reliable VIs, over lossy ones, and with a rank that dies.
//!
//! `SIM_SEEDS` is the number of seeds of each test, `SIM_SEED` the first; a failure names its seed.

mod cluster;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use cluster::{
    Cluster, scarce,
    traffic::{Outcome, Traffic},
};
use vigie_via::{protocol::Config, sim::FaultPlan, vi::Attributes};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Runs `run` for each seed, and names the one that fails.
fn for_each_seed(default: u64, mut run: impl FnMut(u64)) {
    let first = number("SIM_SEED", 0);
    for seed in first..first + number("SIM_SEEDS", default) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!(
                "failed: SIM_SEED={seed} SIM_SEEDS=1 cargo test -p vigie-via --test protocol_sim"
            );
            resume_unwind(panic);
        }
    }
}

/// A configuration that meets its limits soon, on every second seed.
fn config(seed: u64) -> (Config, Attributes) {
    let mut config = Config::default();
    if seed.is_multiple_of(2) {
        return (config, Attributes::named("sim"));
    }
    config.area_bytes = 4096;
    config.frame_bytes_max = 512;
    config.window_bytes = 2048;
    config.descriptors = 32;
    config.control_entries = 8;
    config.staging_frames = 2;
    config.unexpected_bytes_max = 16 << 10;
    config.buffered_bytes_max = 8 << 10;
    (config, scarce())
}

const LENGTHS: [usize; 6] = [8, 64, 500, 2000, 20_000, 60_000];

fn traffic(seed: u64, plan: FaultPlan, size: u32, config: (Config, Attributes)) -> Traffic {
    Traffic::new(seed, Cluster::with(seed, plan, size, config.0, config.1), LENGTHS)
}

/// Goal: whatever is sent is received once, whole and in order, and nothing is left behind. Method: random
/// sends of all modes and lengths, receives, probes and cancellations between 1 to 4 ranks.
#[test]
fn random_traffic_over_reliable_vis() {
    let mut all = Outcome::default();
    for_each_seed(40, |seed| {
        let size = u32::try_from(seed % 4).expect("small") + 1;
        let outcome = traffic(seed, FaultPlan::reliable(), size, config(seed)).run(150);
        all.messages += outcome.messages;
        all.cancelled += outcome.cancelled;
        assert_eq!(outcome.errors, 0, "nobody died");
    });
    println!("{all:?}");
    assert!(all.messages > 0, "nothing was tested");
}

/// Goal: one seed, one run. Method: the same seed twice; the traces of the network are the same.
#[test]
fn a_seed_is_replayed() {
    let run = |seed| {
        let mut traffic = traffic(seed, FaultPlan::reliable(), 3, config(seed));
        traffic.run(100);
        traffic.cluster.network.trace_hash()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(7));
}

/// Goal: when a rank dies, wherever it is in the protocol, whatever waits for it ends in an error that names
/// it, and the others go on. Method: the same traffic, with a crash at each transmission of one rank in turn.
#[test]
fn a_crash_at_every_transmission() {
    const COUNT: usize = 70;
    let mut errors = 0;
    for_each_seed(2, |seed| {
        let start = |seed| {
            let (config, attributes) = config(seed);
            let cluster = Cluster::with(seed, FaultPlan::reliable(), 3, config, attributes);
            Traffic::new(seed, cluster, [8, 8, 64, 600, 600, 3000])
        };
        let mut whole = start(seed);
        let nic = whole.cluster.engine(1).nic().id();
        let before = whole.cluster.network.transmissions(nic);
        whole.run(COUNT);
        let after = whole.cluster.network.transmissions(nic);
        assert!(after - before >= 10, "it sends too little to be worth a crash");
        for index in before..=after {
            let mut broken = start(seed);
            let nic = broken.cluster.engine(1).nic().id();
            broken.cluster.network.crash_at_transmission(nic, index);
            errors += broken.run(COUNT).errors;
        }
    });
    println!("{errors} operations were told");
    assert!(errors > 20, "{errors}");
}
