//! System calls on the hot path, as strace sees them.

use std::{
    collections::BTreeMap,
    env, fs,
    process::{self, Command, Stdio},
    time::Duration,
};

use vigie_detect::clock::monotonic_now;
use vigie_runtime::{Flavor, Runtime, spawn, yield_now};

use crate::kit::{
    child::{command, is_child, run},
    guard::against_hang,
};

const SWITCHES: u64 = 200_000;

/// How often a server polls by default while tasks run: `Adaptive::every`.
const PASS_INTERVAL: Duration = Duration::from_micros(50);

/// The system calls of a poll pass: one at the poller, one at the processor time of the thread.
const CALLS_PER_PASS: u64 = 2;

/// The beginnings and ends of threads and sleeps around the switches.
const CALLS_BESIDE: u64 = 200;

/// Tasks on one thread switch; the child says so before and after, and how often it may have polled for events.
fn switch(flavor: Flavor) {
    let runtime = Runtime::builder().flavor(flavor).workers(1).build().expect("a runtime");
    let tasks = [(); 2].map(|()| async {
        for _ in 0..SWITCHES / 2 {
            yield_now().await;
        }
    });
    let began = monotonic_now();
    println!("\nswitching");
    runtime.block_on(async {
        for task in tasks.map(spawn) {
            task.await.expect("no panic");
        }
    });
    let passes_max = (monotonic_now() - began).as_nanos() / PASS_INTERVAL.as_nanos();
    println!("\nswitched {passes_max}");
}

/// Returns the calls between the two lines, by name, and the most poll passes that there may have been.
fn read_trace(trace: &str) -> (BTreeMap<&str, u64>, u64) {
    let mut calls = BTreeMap::new();
    let mut is_switching = false;
    for line in trace.lines() {
        if line.contains("\"switching\\n\"") {
            is_switching = true;
        } else if let Some((_, rest)) = line.split_once("\"switched ") {
            let (passes_max, _) = rest.split_once("\\n").expect("the end of the line");
            return (calls, passes_max.parse().expect("a number"));
        } else if is_switching
            && let Some((name, _)) = line.split_once('(')
            && let Some(name) = name.split_whitespace().last()
        {
            *calls.entry(name).or_default() += 1;
        }
    }
    panic!("the trace has no end");
}

fn assert_few_calls(test: &str, flavor: Flavor) {
    if is_child(test) {
        against_hang(move || switch(flavor));
        return;
    }
    let mut strace = Command::new("strace");
    strace.args(["-o", "/dev/null", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !strace.status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: {test} needs strace, and the right to trace; install it");
        eprintln!("SKIPPED: {test} needs strace, and the right to trace; install it");
        return;
    }
    let file = env::temp_dir().join(format!("vigie-{}-{flavor}.strace", process::id()));
    let name = file.display().to_string();
    run(command(&["strace", "-f", "-o", &name], test), test);
    let trace = fs::read_to_string(&file).expect("strace wrote it");
    fs::remove_file(&file).expect("it is there");
    let (calls, passes_max) = read_trace(&trace);
    let total: u64 = calls.values().sum();
    let bound = CALLS_PER_PASS * passes_max + CALLS_BESIDE;
    assert!(total <= bound, "{total} calls where poll passes may make {bound}: {calls:?}");
    let count = |name: &str| calls.get(name).copied().unwrap_or(0);
    let passes = count("epoll_wait") + count("epoll_pwait") + count("clock_gettime");
    assert!(total - passes <= CALLS_BESIDE, "{calls:?}");
    // Debug code under strace switches so slowly that even the poll passes are more than that.
    if !cfg!(debug_assertions) {
        assert!(total < SWITCHES / 100, "{total} calls for {SWITCHES} switches: {calls:?}");
    }
}

/// Goal: a task switch makes no system call; only poll passes do, and they come by time. Method: strace
/// over a million switches of the user-level flavor.
#[test]
fn switches_of_the_user_level_flavor() {
    assert_few_calls("system_calls::switches_of_the_user_level_flavor", Flavor::UserLevel);
}

/// Goal: as above. Method: on a worker of the hybrid flavor.
#[test]
fn switches_of_the_hybrid_flavor() {
    assert_few_calls("system_calls::switches_of_the_hybrid_flavor", Flavor::Hybrid);
}
