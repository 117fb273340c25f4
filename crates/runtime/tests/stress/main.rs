//! Everything at once, at random: tasks, channels, timers, sockets, closures, aborts, panics and foreign
//! threads, on runtimes of random shape. In the end every message was received once, every timer was
//! late enough, and nothing is left.

#[path = "../census/mod.rs"]
mod census;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

mod clients;
mod ledger;
mod market;
mod sleepers;

use std::{panic, sync::Arc, time::Duration};

use census::Census;
use kit::guard::against_hang;
use ledger::Ledger;
use vigie_detect::{Adaptive, Fixed, Frequency, Strategy};
use vigie_runtime::{Flavor, JoinError, JoinHandle, Runtime, RuntimeBuilder, yield_now};

/// The state that all actors of one run share.
#[derive(Clone)]
struct World {
    census: Census,
    ledger: Arc<Ledger>,
}

/// The tasks of one run that are waited for.
type Tasks = Vec<JoinHandle<()>>;

const RUNS: usize = 4;

/// Goal: no run of events breaks an invariant. Method: as the module says; some seconds.
#[test]
fn everything_at_once() {
    hide_planted_panics();
    let mut random = kit::seeds::random("everything_at_once");
    for run in 0..RUNS {
        let mut random = random.fork();
        against_hang(move || {
            let (builder, shape) = shape(run, &mut random);
            println!("run {run}: {shape}");
            let runtime = builder.build().expect("a runtime");
            live(runtime, &mut random);
        });
    }
}

/// A runtime of random shape, the flavors in turn.
fn shape(run: usize, random: &mut fastrand::Rng) -> (RuntimeBuilder, String) {
    let flavor = [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel][run % 3];
    let workers = random.usize(1..5);
    let quantum = Duration::from_micros(random.u64(10..2000));
    let slice = Duration::from_micros(random.u64(0..2000));
    let closures = random.usize(1..5);
    let every = match random.bool() {
        true => Frequency::Switches(random.u32(1..20)),
        false => Frequency::Time(Duration::from_micros(random.u64(0..200))),
    };
    let builder = Runtime::builder()
        .flavor(flavor)
        .workers(workers)
        .quantum(quantum)
        .reaction_slice(slice)
        .blocking_threads(closures);
    let spin = Duration::from_micros(random.u64(0..50));
    let (builder, policy) = match random.u32(..4) {
        0 => (builder.readiness_policy(Adaptive::default()), "adaptive"),
        1 => (builder.readiness_policy(Fixed(Strategy::Sleep { every })), "sleep"),
        2 => (builder.readiness_policy(Fixed(Strategy::PollGroup { every })), "poll"),
        _ => {
            let strategy = Strategy::PollThenSleep { every, spin };
            (builder.readiness_policy(Fixed(strategy)), "poll, then sleep")
        }
    };
    let shape = format!(
        "{flavor}, {workers} workers, quantum {quantum:?}, slice {slice:?}, {closures} blocking \
         threads, {policy} every {every:?}"
    );
    (builder, shape)
}

/// One run, from the first task to the last check.
fn live(runtime: Runtime, random: &mut fastrand::Rng) {
    let world = World { census: Census::default(), ledger: Arc::new(Ledger::new()) };
    let mut tasks = Tasks::new();
    let mut threads = Vec::new();
    for _ in 0..3 {
        market::open(&runtime, &world, random, &mut tasks, &mut threads);
    }
    clients::come(&runtime, &world, random, &mut tasks);
    sleepers::lie_down(&runtime, &world, random, &mut tasks);
    runtime.block_on(async {
        for task in tasks {
            if let Err(error) = task.await {
                assert_is_planted(error);
            }
        }
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
    world.ledger.assert_balanced();
    runtime.block_on(async {
        // Aborted tasks leave children and closures behind, which end on their own.
        while runtime.handle().live_task_count() > 0 || !world.census.is_settled() {
            yield_now().await;
        }
    });
    let server = runtime.server();
    assert_eq!(server.timers().pending_count(), 0, "timers");
    assert_eq!(server.readiness().pending_count(), 0, "waits for sockets");
    drop(runtime);
    world.census.assert_settled("witnesses");
}

fn assert_is_planted(error: JoinError) {
    let text = error.to_string();
    assert!(error.is_cancelled() || text.contains(PLANTED), "{text}");
}

const PLANTED: &str = "planted";

/// Messages of hundreds of planted panics are no help.
fn hide_planted_panics() {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() != Some(PLANTED) {
            previous(info);
        }
    }));
}
