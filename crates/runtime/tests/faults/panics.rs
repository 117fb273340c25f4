//! Tasks that panic among many that do not.

use std::{
    panic,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use vigie_runtime::{JoinHandle, spawn, spawn_blocking, yield_now};

use super::alive::assert_alive;
use crate::{
    census::Census,
    flavors::{FLAVORS, runtime},
    kit::{guard::against_hang, seeds},
};

/// The action of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Ends,
    Panics,
    PanicsWithNumber,
    PanicsInClosure,
    IsForgotten,
}

const FATES: [Fate; 5] =
    [Fate::Ends, Fate::Panics, Fate::PanicsWithNumber, Fate::PanicsInClosure, Fate::IsForgotten];

async fn live(number: usize, fate: Fate, switches: usize, census: Census) -> usize {
    let _witness = census.witness();
    for _ in 0..switches {
        yield_now().await;
    }
    match fate {
        Fate::Ends => number,
        Fate::Panics | Fate::IsForgotten => panic!("planted: {number}"),
        Fate::PanicsWithNumber => panic::panic_any(number),
        Fate::PanicsInClosure => {
            let error = spawn_blocking(move || panic!("planted: {number}")).await;
            let error: Result<(), _> = error;
            assert!(error.as_ref().expect_err("it panicked").is_panic());
            panic!("planted: {number}")
        }
    }
}

async fn judge(number: usize, fate: Fate, task: JoinHandle<usize>) {
    match (fate, task.await) {
        (Fate::IsForgotten, _) => unreachable!("no task waits for it"),
        (Fate::Ends, result) => assert_eq!(result.expect("it ends"), number),
        (_, Ok(_)) => panic!("it should have panicked"),
        (Fate::PanicsWithNumber, Err(error)) => {
            assert_eq!(error.to_string(), format!("task {} panicked", error.id()));
            let payload = error.try_into_panic().expect("it panicked");
            assert_eq!(payload.downcast_ref(), Some(&number));
        }
        (_, Err(error)) => {
            assert!(error.is_panic() && !error.is_cancelled());
            let text = format!("task {} panicked with message \"planted: {number}\"", error.id());
            assert_eq!(error.to_string(), text);
        }
    }
}

/// Goal: panics stay in their tasks, whatever their number. Method: thousands of tasks of random
/// fates; each handle tells its own, each future is dropped once, and the runtime lives.
#[test]
fn tasks_panic_under_load() {
    // A thousand messages of planted panics are no help.
    panic::set_hook(Box::new({
        let previous = panic::take_hook();
        move |info| {
            let message = info.payload_as_str().unwrap_or("planted: a number");
            if !message.starts_with("planted: ") {
                previous(info);
            }
        }
    }));
    let mut random = seeds::random("tasks_panic_under_load");
    for flavor in FLAVORS {
        let mut random = random.fork();
        against_hang(move || {
            let runtime = runtime(flavor);
            let census = Census::default();
            let judged = Arc::new(AtomicUsize::new(0));
            let mut expected = 0;
            let judges: Vec<_> = (0..2000)
                .filter_map(|number| {
                    let fate = FATES[random.usize(..FATES.len())];
                    let task = live(number, fate, random.usize(..5), census.clone());
                    let task = runtime.spawn(task);
                    if fate == Fate::IsForgotten {
                        task.detach();
                        return None;
                    }
                    expected += 1;
                    let judged = Arc::clone(&judged);
                    Some(runtime.spawn(async move {
                        judge(number, fate, task).await;
                        judged.fetch_add(1, Ordering::SeqCst);
                    }))
                })
                .collect();
            runtime.block_on(async {
                for judge in judges {
                    judge.await.expect("the fate was told");
                }
                while runtime.handle().live_task_count() > 0 {
                    yield_now().await;
                }
                spawn(async {}).await.expect("it lives");
            });
            assert_eq!(judged.load(Ordering::SeqCst), expected);
            assert_eq!(census.born(), 2000);
            census.assert_settled(flavor);
            assert_alive(&runtime);
        });
    }
}
