//! No thread gets a signal unless a task is in a poll. In a program of its own: a handler stays once it is installed.
#![cfg(all(feature = "stacks", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::{fs, sync::mpsc, time::Duration};

use vigie_runtime::{Flavor, Runtime, metrics::TaskState, task, time};

/// The signals that the process handles, one bit each.
fn handled() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("readable");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("it is there");
    u64::from_str_radix(mask.trim(), 16).expect("a number")
}

/// Goal: where no task is in a poll, a dump sends no signal. Method: the handler, without which a signal would end the process, is
/// installed by the first dump that finds a task in a poll, and not before.
#[test]
fn no_signal_without_a_task_that_computes() {
    let runtime = Runtime::builder().flavor(Flavor::Hybrid).workers(2).build().expect("a runtime");
    let handle = runtime.handle().clone();
    runtime.spawn(time::sleep(Duration::from_secs(900))).detach();
    // Its first poll is over when it is counted.
    while handle.metrics().reaction.polls == 0 {
        std::thread::yield_now();
    }
    let before = handled();
    let dump = handle.dump();
    assert_eq!(dump.tasks.len(), 1, "{dump}");
    assert_eq!(dump.tasks[0].state, TaskState::Waiting, "{dump}");
    assert!(dump.tasks[0].stack.is_none(), "{dump}");
    assert_eq!(handled(), before);

    let (begins, has_begun) = mpsc::channel();
    let (ends, is_over) = mpsc::channel::<()>();
    let blocked = task::Builder::new().spawn_on(
        async move {
            begins.send(()).expect("the test waits");
            is_over.recv().expect("the test ends it");
        },
        &handle,
    );
    has_begun.recv().expect("it begins");
    assert!(handle.dump().tasks.iter().any(|task| task.stack.is_some()));
    assert_ne!(handled(), before, "this one asked");
    ends.send(()).expect("it waits");
    runtime.block_on(blocked).expect("no panic");
}
