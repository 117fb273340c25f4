//! A worker with a rate limit, and the bug that a jump of its clock causes: found in a simulated world, by one number.
//!
//! The worker begins at most ten jobs in a second. It counts the seconds by the time of day, which is corrected now and then.
//! After a step back, the worker pauses until its old second comes again; after a step forward, it begins a second too early. Run
//! it:
//!
//! ```text
//! cargo run --release --example rate_limiter
//! ```
//!
//! Expected output:
//!
//! ```text
//! seed 0: by the time of day, 11 jobs take 500.0ms to 2.9s
//! by the monotonic clock, 1000 seeds pass
//! ```

use std::sync::{Arc, Mutex};
use std::time::Duration;

use vigie::simulation::{self, World};
use vigie::time::{self, Instant};

const PER_SECOND: usize = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Returns the time since an epoch that no clock shall leave.
type Clock = fn() -> Duration;

fn time_of_day() -> Duration {
    time::system_time().duration_since(time::UNIX_EPOCH).unwrap_or_default()
}

fn monotonic() -> Duration {
    Instant::now().duration_since(Instant::from_nanos(0))
}

/// The worker: of the jobs that always wait, it begins ten in each second, and notes when.
async fn work(clock: Clock, begun: Arc<Mutex<Vec<Instant>>>) {
    let (mut second, mut count) = (clock(), 0);
    loop {
        let now = clock();
        if now >= second + SECOND {
            (second, count) = (now, 0);
        }
        if count < PER_SECOND {
            count += 1;
            begun.lock().expect("no panic").push(Instant::now());
        }
        time::sleep(SECOND / 20).await;
    }
}

/// Returns the least and the most time of eleven jobs in a row, in a world.
fn pace(world: &mut World, clock: Clock) -> (Duration, Duration) {
    let seed = world.seed();
    let begun = Arc::<Mutex<Vec<Instant>>>::default();
    let noted = Arc::clone(&begun);
    let worker = world.node("worker").run(move || work(clock, Arc::clone(&noted)));
    world.block_on(async {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..3 {
            time::sleep(Duration::from_millis(random.u64(..20_000))).await;
            match random.bool() {
                true => worker.clock_forward(Duration::from_millis(random.u64(..20_000))),
                false => worker.clock_back(Duration::from_millis(random.u64(..20_000))),
            }
        }
        time::sleep(Duration::from_secs(30)).await;
    });
    let begun = begun.lock().expect("no panic");
    let times = begun.windows(PER_SECOND + 1).map(|jobs| jobs[PER_SECOND].duration_since(jobs[0]));
    (times.clone().min().expect("many jobs"), times.max().expect("many jobs"))
}

fn main() {
    let is_wrong = |(least, most): &(_, _)| *least < SECOND || *most > 2 * SECOND;
    let by_day = |seed| (seed, pace(&mut World::new(seed), time_of_day));
    let found = (0..1000).map(by_day).find(|(_, it)| is_wrong(it));
    let (seed, (least, most)) = found.expect("some seed shows it");
    println!("seed {seed}: by the time of day, 11 jobs take {least:.1?} to {most:.1?}");
    simulation::for_each_seed(1000, |world| assert!(!is_wrong(&pace(world, monotonic))));
    println!("by the monotonic clock, 1000 seeds pass");
}
