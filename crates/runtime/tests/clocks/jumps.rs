//! Sleeps, time-outs and intervals in virtual time, where hours pass between two instructions.

use std::{cell::RefCell, future::pending, rc::Rc, time::Duration};

use vigie_detect::{Instant, Simulation};
use vigie_runtime::time::{self, MissedTickBehavior};

const HOUR: Duration = Duration::from_secs(3600);
const PERIOD: Duration = Duration::from_secs(60);

/// Goal: an interval does about the ticks that a jump has passed what its behaviour says, and keeps its
/// rhythm from then on. Method: ten hours and a half minute pass between the second and the third tick.
#[test]
fn intervals_after_a_jump() {
    let jump = HOUR * 10 + PERIOD / 2;
    let minutes = |count: u32| Instant::from_nanos(0) + PERIOD * count;
    for (missed, after) in [
        // One for each minute: none is left out.
        (MissedTickBehavior::Burst, (3..=620).map(minutes).collect::<Vec<_>>()),
        // A minute from when the late one was had, and so on.
        (MissedTickBehavior::Delay, (2..10).map(|count| minutes(count) + jump).collect()),
        // The full minutes from then on.
        (MissedTickBehavior::Skip, (602..=610).map(minutes).collect()),
    ] {
        let mut simulation = Simulation::new(1);
        let clock = simulation.clock();
        let ticks = simulation.block_on(async {
            let mut interval = time::interval(PERIOD);
            interval.set_missed_tick_behavior(missed);
            assert_eq!(interval.tick().await, minutes(0));
            assert_eq!(interval.tick().await, minutes(1));
            clock.advance(jump);
            assert_eq!(interval.tick().await, minutes(2), "{missed:?}: the tick that was due");
            let mut ticks = Vec::new();
            while ticks.len() < after.len() {
                let tick = interval.tick().await;
                assert!(tick <= Instant::now(), "{missed:?}: early");
                ticks.push(tick);
            }
            ticks
        });
        assert_eq!(ticks, Ok(after), "{missed:?}");
    }
}

/// Goal: a jump ends every sleep and time-out that it passes, once, and no other; a future that is ready
/// by then wins over its time-out. Method: tasks with deadlines on both sides of jumps.
#[test]
fn sleeps_and_timeouts_after_jumps() {
    for seed in 0..64 {
        let mut simulation = Simulation::new(seed);
        let clock = simulation.clock();
        let ended = Rc::new(RefCell::new(Vec::new()));
        for hours in 1..=20 {
            let ended = Rc::clone(&ended);
            drop(simulation.spawn(async move {
                let begin = Instant::now();
                if hours % 2 == 0 {
                    time::sleep(HOUR * hours).await;
                } else {
                    let timed_out = time::timeout(HOUR * hours, pending::<()>()).await;
                    assert!(timed_out.is_err());
                }
                assert!(Instant::now() >= begin + HOUR * hours, "early");
                ended.borrow_mut().push(hours);
            }));
        }
        let seen = Rc::clone(&ended);
        let done = simulation.block_on(async move {
            // All of them have begun.
            time::sleep(Duration::from_millis(1)).await;
            for hours in [5_u32, 10, 15, 20] {
                let ready = time::timeout(HOUR, async { clock.advance(HOUR * 5) }).await;
                assert!(ready.is_ok(), "it was ready when the time was over");
                time::sleep(Duration::from_millis(1)).await;
                let mut ended = seen.borrow().clone();
                ended.sort_unstable();
                assert_eq!(ended, (1..=hours).collect::<Vec<_>>(), "seed {seed}");
            }
        });
        assert!(done.is_ok(), "seed {seed}: {done:?}");
    }
}
