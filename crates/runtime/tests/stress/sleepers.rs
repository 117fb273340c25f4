//! Timers and short-lived tasks: thousands, some of which panic, some of which are aborted.

use std::{future::pending, panic, time::Duration};

use vigie_detect::clock::monotonic_now;
use vigie_runtime::{Runtime, spawn, time, yield_now};

use super::{PLANTED, Tasks, World};

pub(crate) fn lie_down(
    runtime: &Runtime,
    world: &World,
    random: &mut fastrand::Rng,
    tasks: &mut Tasks,
) {
    for _ in 0..random.usize(1000..2000) {
        let task = runtime.spawn(sleep(world.clone(), random.fork()));
        match random.u8(..8) {
            0 => task.abort(),
            1 => {
                task.detach();
                continue;
            }
            _ => {}
        }
        tasks.push(task);
    }
}

async fn sleep(world: World, mut random: fastrand::Rng) {
    let _witness = world.census.witness();
    for _ in 0..random.usize(1..6) {
        let span = Duration::from_micros(random.u64(..2000));
        let deadline = monotonic_now() + span;
        match random.u8(..6) {
            0 => time::sleep(span).await,
            1 => {
                time::timeout_at(deadline, pending::<()>()).await.expect_err("it takes for ever");
            }
            2 => {
                // Not needed, and given up.
                time::timeout(Duration::from_secs(3600), yield_now()).await.expect("in time");
                continue;
            }
            3 => {
                let witness = world.census.witness();
                let child = spawn(async move {
                    let _witness = witness;
                    time::sleep_until(deadline).await;
                });
                child.await.expect("it ends well");
            }
            4 => {
                let mut sleep = time::sleep(Duration::from_secs(3600));
                sleep.reset(deadline);
                sleep.await;
            }
            _ => {
                if random.u8(..8) == 0 {
                    panic::panic_any(PLANTED);
                }
                yield_now().await;
                continue;
            }
        }
        assert!(monotonic_now() >= deadline, "a timer was early");
    }
}
