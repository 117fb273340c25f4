//! The kernel's clocks: which of them the runtime gives times to, and one that is a hundred years old.

use std::{
    env, fs,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use vigie_detect::clock::monotonic_now;
use vigie_runtime::{Flavor, Runtime, spawn, spawn_blocking, time};

use crate::kit::{
    child::{command, is_child, run},
    guard::against_hang,
};

/// Everything that waits for a time, on each flavor.
fn use_times() {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel] {
        let mut builder = Runtime::builder()
            .flavor(flavor)
            .reserve_keep_alive(Duration::from_millis(1))
            .blocking_keep_alive(Duration::from_millis(1));
        if flavor == Flavor::Hybrid {
            builder = builder.workers(2);
        }
        let runtime = builder.build().expect("a runtime");
        runtime.block_on(async {
            let sleeps = [3, 1, 2].map(|millis| {
                spawn(async move {
                    let due = time::Instant::now() + Duration::from_millis(millis);
                    time::sleep_until(due).await;
                    assert!(time::Instant::now() >= due, "early");
                })
            });
            let mut interval = time::interval(Duration::from_millis(1));
            let first = interval.tick().await;
            for count in 1..5 {
                assert_eq!(interval.tick().await, first + Duration::from_millis(count));
            }
            let never = time::timeout(Duration::from_millis(1), std::future::pending::<()>());
            assert!(never.await.is_err(), "nothing is ready");
            assert_eq!(time::timeout(Duration::from_secs(60), async { 7 }).await, Ok(7));
            for sleep in sleeps {
                sleep.await.expect("no panic");
            }
            assert_eq!(spawn_blocking(|| 5).await.expect("no panic"), 5);
        });
        if flavor != Flavor::UserLevel {
            // Timers while the workers hog: the supervisor, reserve threads and their keep-alive.
            let is_over = Arc::new(AtomicBool::new(false));
            let hogs = [(); 2].map(|()| {
                let is_over = Arc::clone(&is_over);
                runtime.spawn(async move {
                    while !is_over.load(Ordering::SeqCst) {
                        std::hint::spin_loop();
                    }
                })
            });
            let ticks = runtime.spawn(async {
                for _ in 0..20 {
                    time::sleep(Duration::from_micros(300)).await;
                }
            });
            runtime.block_on(ticks).expect("no panic");
            is_over.store(true, Ordering::SeqCst);
            for hog in hogs {
                runtime.block_on(hog).expect("no panic");
            }
        }
        runtime.shutdown_timeout(Duration::from_secs(20)).expect("nothing is left");
    }
}

/// Says on both channels that a test has shown nothing, and why.
fn skip(test: &str, needs: &str) {
    println!("SKIPPED: {test} needs {needs}");
    eprintln!("SKIPPED: {test} needs {needs}");
}

/// Returns whether the command can be run here.
fn runs(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The largest that the kernel grants is half of its own range, 146 years: close to that.
const AGE_S: u64 = 4_600_000_000;

/// Goal: a clock that shows a hundred years is one like any other: nothing is rounded, packed or added up
/// such that it overflows. Method: a child in a time namespace of its own, whose monotonic clock is that
/// old, uses everything that waits for a time.
#[test]
fn a_clock_of_a_hundred_years() {
    const TEST: &str = "kernel::a_clock_of_a_hundred_years";
    if is_child(TEST) {
        assert!(monotonic_now().as_nanos() > AGE_S * 1_000_000_000, "no other clock in here");
        against_hang(use_times);
        return;
    }
    let age = AGE_S.to_string();
    let as_root = ["--time", "--fork", "--monotonic", &age];
    let as_user = ["--user", "--map-root-user", "--time", "--fork", "--monotonic", &age];
    let works = |options: &&[&str]| runs("unshare", &[options, &["true"][..]].concat());
    let Some(options) = [&as_root[..], &as_user[..]].into_iter().find(works) else {
        skip(
            TEST,
            "a time namespace: Linux 5.6, unshare of util-linux 2.36, and root or user namespaces",
        );
        return;
    };
    run(command(&[&["unshare"], options].concat(), TEST), TEST);
}

/// The calls that give the kernel a time, and those that choose a clock.
const TIMED_CALLS: &str = "trace=timerfd_create,timerfd_settime,timer_create,timer_settime,futex,\
                           clock_nanosleep,nanosleep,epoll_wait,epoll_pwait2,ppoll,setitimer,alarm,\
                           clock_gettime,gettimeofday";

/// Goal: setting the machine's clock, by hand or by NTP, changes nothing, because no time that the runtime
/// gives to the kernel is one of that clock. Method: strace shows each such call of a child that uses
/// everything that waits for a time. (To set the clock itself would disturb the machine.)
#[test]
fn no_time_is_one_of_the_wall_clock() {
    const TEST: &str = "kernel::no_time_is_one_of_the_wall_clock";
    if is_child(TEST) {
        against_hang(use_times);
        return;
    }
    if !runs("strace", &["-o", "/dev/null", "true"]) {
        skip(TEST, "strace, and the right to trace; install it");
        return;
    }
    let file = env::temp_dir().join(format!("vigie-clocks-{}.strace", std::process::id()));
    let path = file.to_str().expect("a path in UTF-8");
    run(command(&["strace", "-f", "-e", TIMED_CALLS, "-o", path], TEST), TEST);
    let trace = fs::read_to_string(&file).expect("written by strace");
    // It does no harm if it stays.
    let _ = fs::remove_file(&file);
    // These calls must be there, or the trace shows nothing.
    for call in ["timerfd_create(CLOCK_MONOTONIC", "tv_nsec="] {
        assert!(trace.contains(call), "no `{call}` in the trace:\n{trace}");
    }
    // Without a time, the clock says nothing: so glibc waits for the end of a thread.
    let is_timeless = |line: &str| line.contains("futex(") && line.contains(", NULL, ");
    let wall: Vec<_> = trace
        .lines()
        .filter(|line| line.contains("CLOCK_REALTIME") || line.contains("gettimeofday"))
        .filter(|line| !is_timeless(line))
        .collect();
    assert!(wall.is_empty(), "times of the wall clock: {wall:#?}");
}
