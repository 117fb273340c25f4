//! The pool of blocking threads: `blocking_pool.rs` as it stands, over locks and threads of loom.

use std::{panic::Location, time::Duration};

use loom::sync::{Arc, Condvar, Mutex};

use super::{
    blocking_pool::BlockingPool,
    context::{Enter, EnteredContext},
    reserves::blocking::IS_MUTE,
    whole::Fault,
};

/// A runtime that closures do not need.
#[derive(Clone)]
struct Nothing;

impl Enter for Nothing {
    fn enter(self) -> EnteredContext {
        EnteredContext
    }
}

/// Three closures, of which the second waits for the third: whatever the first one's thread does meanwhile, both have a
/// thread. A thread that has had nothing to do ends at any moment, or never.
fn closures(keep_alive: Duration) {
    let pool = Arc::new(BlockingPool::new(2, keep_alive));
    let begun = Arc::new((Mutex::new(0), Condvar::new()));
    for number in 0..3 {
        let begun = Arc::clone(&begun);
        let work = move || {
            let (count, changed) = &*begun;
            let mut count = count.lock().expect("no panic");
            *count += 1;
            changed.notify_all();
            while number == 1 && *count < 3 {
                count = changed.wait(count).expect("no panic");
            }
        };
        drop(BlockingPool::spawn(&pool, Location::caller(), Nothing, work));
    }
    let (count, changed) = &*begun;
    let mut count = count.lock().expect("no panic");
    while *count < 3 {
        count = changed.wait(count).expect("no panic");
    }
    drop(count);
    for thread in pool.begin_shutdown() {
        thread.join().expect("it ends");
    }
}

pub(crate) fn all_run(fault: Fault) {
    IS_MUTE.set(fault == Fault::NoNotice);
    closures(Duration::MAX);
}

/// Goal: a closure has a thread although others block, whether an idle one takes it or a new one.
#[test]
fn closures_wait_for_no_others() {
    loom::model(|| all_run(Fault::None));
}

/// Goal: the same, while threads that were idle for long enough end.
#[test]
fn closures_outlive_idle_threads() {
    loom::model(|| closures(Duration::ZERO));
}
