//! How often the clock is read. This binary's own `clock_gettime` takes the place of the C library's, and counts.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "it stands for a function of the C library")]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::mpsc;
use vigie_detect::clock::monotonic_now;
use vigie_runtime::{Flavor, Runtime, spawn, yield_now};

static READINGS: AtomicU64 = AtomicU64::new(0);

/// clock_gettime(2), by the system call. Clocks of processor time are not counted.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    if clock == libc::CLOCK_MONOTONIC {
        READINGS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the caller's pointer is what the call wants, and is used for nothing else.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if result == 0 { 0 } else { -1 }
}

const SWITCHES: u64 = 100_000;

/// Tasks that yield.
async fn yields() {
    let tasks = [(); 2].map(|()| {
        spawn(async {
            for _ in 0..SWITCHES / 2 {
                yield_now().await;
            }
        })
    });
    for task in tasks {
        task.await.expect("no panic");
    }
}

/// Tasks that wake each other.
async fn turns() {
    let (to_second, mut second) = mpsc::channel(1);
    let (to_first, mut first) = mpsc::channel(1);
    let echo = spawn(async move {
        while second.recv().await.is_some() {
            to_first.send(()).await.expect("it listens");
        }
    });
    let play = spawn(async move {
        for _ in 0..SWITCHES / 2 {
            to_second.send(()).await.expect("it listens");
            first.recv().await.expect("it answers");
        }
    });
    play.await.expect("no panic");
    echo.await.expect("no panic");
}

/// How often a host polls by default while tasks run, and reads the clock after that: `Adaptive::every`.
const PASS_INTERVAL: Duration = Duration::from_micros(50);

/// The readings at the beginning and the end of each run.
const READINGS_BESIDE: u64 = 500;

/// Goal: a switch reads the clock twice at most: at the end of the poll, and when the first task is woken in it. Method:
/// the readings of many switches, between tasks that yield and tasks that wake each other, on one thread of each flavor
/// that has switches; those of poll passes, which come by time, are allowed beside.
#[test]
fn a_switch_reads_the_clock_twice_at_most() {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid] {
        let runtime = Runtime::builder().flavor(flavor).workers(1).build().expect("a runtime");
        let count = |what: &str, future: &dyn Fn() -> vigie_runtime::JoinHandle<()>| {
            let (before, began) = (READINGS.load(Ordering::Relaxed), monotonic_now());
            runtime.block_on(async { future().await.expect("no panic") });
            let passes_max = (monotonic_now() - began).as_nanos() / PASS_INTERVAL.as_nanos();
            let readings = READINGS.load(Ordering::Relaxed) - before;
            let text = format!("{readings} readings for {SWITCHES} switches: {what}, {flavor}");
            println!("{text}, and {passes_max} poll passes at most");
            assert!(readings >= SWITCHES / 2, "they are not seen: {text}");
            let bound = 2 * SWITCHES + u64::try_from(passes_max).expect("short") + READINGS_BESIDE;
            assert!(readings <= bound, "{text}, {bound} allowed");
        };
        count("yield", &|| spawn(yields()));
        count("wake", &|| spawn(turns()));
    }
}
