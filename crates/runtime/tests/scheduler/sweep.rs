//! Machines of 1 to 256 workers, one size after the other: what must grow neither with the number of hogs, nor with that of the workers.

use std::time::Duration;

use super::{
    MS, Report, US,
    checks::Checks,
    loads::{self, Source},
    run_with,
    world::{Options, World},
};

const SIZES: [usize; 5] = [1, 2, 8, 64, 256];

/// How long the polls of hogs are, by turns.
const HOGS_NS: [u64; 4] = [20 * MS, 400 * US, 2 * MS, 60 * MS];

fn machine(workers: usize, cores: usize, seed: u64) -> Options {
    Options {
        seed,
        workers,
        cores,
        wake_ns: 10 * US,
        has_tick: false,
        long_poll: Duration::from_micros(200),
        quantum: Duration::from_millis(1),
        pass_interval_ns: 50 * US,
        length_ns: 300 * MS,
        polls_max: 1_000_000,
    }
}

fn check(report: &Report) {
    let Report { options, words, failures, .. } = report;
    assert!(failures.is_empty(), "{words}, {options:?}: {failures:#?}");
}

/// Goal: an event whose task has credit is polled within one bound, however many tasks compute, and however many workers there are, and no
/// task starves; but for the beginning, while hogs have the credit of new tasks. Method: a probe each 3 ms beside none, one, as many hogs as workers, and several times as
/// many, whose polls take 0.4 to 60 ms.
#[test]
fn hogs_do_not_delay_events() {
    for workers in SIZES {
        for count in [0, 1, workers, workers + 3 * workers.min(64)] {
            let hogs: Vec<_> = HOGS_NS.into_iter().cycle().take(count).collect();
            let options = machine(workers, workers, 1);
            let report = run_with(options, |world| loads::probe_beside(world, &hogs));
            check(&report);
            let most = report.settled_waits.iter().max().expect("events");
            let bound = Checks::new(options).base_ns();
            assert!(*most <= bound, "{most} ns beside {count} hogs on {workers} workers");
        }
    }
}

/// Goal: an event wakes no more threads than it makes tasks ready, however many workers sleep. Method: isolated events, each for one task
/// that makes some others ready; at the beginning, each worker wakes once.
#[test]
fn an_event_wakes_few_threads() {
    for workers in SIZES {
        for count in [1, 8, 32] {
            let options = machine(workers, workers, 1);
            let report = run_with(options, |world| loads::broadcast(world, count, 20 * US));
            check(&report);
            let events = report.waits.len() as u64;
            let bound = workers as u64 + events * (1 + count as u64);
            assert!(report.wakes <= bound, "{} of {bound} with {workers} workers", report.wakes);
        }
    }
}

/// Goal: the promise of `checks.rs` holds with fewer cores than workers, and with more. Method: loads drawn by seed, on a quarter and a half of as many
/// cores, and on twice as many.
#[test]
fn other_numbers_of_cores_keep_the_promise() {
    let of_cores = |workers: usize| [workers.div_ceil(4), workers.div_ceil(2), 2 * workers];
    let machines =
        SIZES.into_iter().flat_map(|workers| of_cores(workers).map(|cores| (workers, cores)));
    for (workers, cores) in machines {
        for seed in 0..if workers < 256 { 3 } else { 1 } {
            let options = Options { polls_max: 1_000, ..machine(workers, cores, seed) };
            check(&run_with(options, |world| draw_loads(world, seed)));
        }
    }
}

fn draw_loads(world: &World, seed: u64) -> (Vec<Source>, String) {
    loads::draw_loads(world, &mut fastrand::Rng::with_seed(seed))
}

/// Goal: a worker without others, on a machine with a core to spare, pays what a long poll of the reaction lane owes the compute lane in pieces so short
/// that events keep their bound, although reserve threads serve while it is inside that poll, and not while it pays. Method: loads drawn by seed, of which the first once missed it.
#[test]
fn a_lone_worker_pays_its_debt_in_short_pieces() {
    for seed in 0..8 {
        check(&run_with(machine(1, 2, seed), |world| draw_loads(world, seed)));
    }
}
