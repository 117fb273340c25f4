//! A runtime does nothing while nothing happens. Each context switch of a thread is a wake-up.

use std::{
    collections::BTreeMap,
    fs,
    future::pending,
    io::{BufRead, BufReader},
    process::Stdio,
    thread,
    time::Duration,
};

use vigie_detect::net::TcpListener;
use vigie_runtime::{Flavor, Runtime, spawn, spawn_blocking, time};

use crate::{
    flavors::runtime,
    kit::{
        child::{command, is_child},
        guard::against_hang,
    },
};

/// For how long nothing may happen.
const SPAN: Duration = Duration::from_secs(2);

/// In one of this many spans.
const SPANS: u32 = 5;

/// A runtime that has worked, and now waits: for clients, an hour, a task.
fn idle(flavor: Flavor) {
    let runtime = runtime(flavor);
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let serving = spawn(async move {
            listener.accept().await.expect("no client ever comes");
        });
        spawn(time::sleep(Duration::from_secs(3600))).detach();
        spawn(pending::<()>()).detach();
        time::sleep(Duration::from_millis(1)).await;
        spawn_blocking(|| println!("\nidle")).await.expect("no panic");
        serving.await.expect("no panic");
    });
}

/// Returns the context switches so far of each thread of a process.
fn switches_of(process: u32) -> BTreeMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("the child lives");
    let count = |status: &str| {
        let lines = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        lines.map(|(_, count)| count.trim().parse::<u64>().expect("a number")).sum()
    };
    threads
        .map(|thread| {
            let path = thread.expect("an entry").path();
            let status = fs::read_to_string(path.join("status")).expect("the thread lives");
            (path.display().to_string(), count(&status))
        })
        .collect()
}

fn assert_idle(test: &'static str, flavor: Flavor) {
    if is_child(test) {
        against_hang(move || idle(flavor));
        return;
    }
    let mut child = command(&[], test).stdout(Stdio::piped()).spawn().expect("it starts");
    let outcome = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
            let mut lines = lines.map(|line| line.expect("text"));
            assert!(lines.any(|line| line == "idle"), "the child ended before it was idle");
            // A clock of our own, since these tests do not sleep.
            let clock = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
            let during_a_span = || {
                let before = switches_of(child.id());
                clock.block_on(time::sleep(SPAN));
                (before, switches_of(child.id()))
            };
            // On a busy machine the last threads go to sleep, or end, later than one checks; but they do.
            for _ in 1..SPANS {
                let (before, after) = during_a_span();
                if before == after {
                    return (before, after);
                }
            }
            during_a_span()
        });
        watch.join()
    });
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    let (before, after) = outcome.expect("the child was watched");
    assert_eq!(before, after, "context switches of an idle runtime");
}

/// Goal: an idle runtime wakes up never. Method: context switches of a process that has a listener, a
/// timer far away and a waiting task, user-level flavor.
#[test]
fn the_user_level_flavor() {
    assert_idle("idleness::the_user_level_flavor", Flavor::UserLevel);
}

/// Goal: as above. Method: hybrid flavor.
#[test]
fn the_hybrid_flavor() {
    assert_idle("idleness::the_hybrid_flavor", Flavor::Hybrid);
}

/// Goal: as above. Method: kernel-level flavor.
#[test]
fn the_kernel_level_flavor() {
    assert_idle("idleness::the_kernel_level_flavor", Flavor::KernelLevel);
}
