//! The kernel's help: what it does to the threads, and what it does not do to others.

use std::{
    io::Read,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use vigie_detect::clock::monotonic_now;
use vigie_runtime::{KernelHelp, Runtime, time};

use crate::{
    child::in_child,
    guard::against_hang,
    hogs::{Hogs, each_with, eventually},
    settle,
};

/// The slices of the threads of this process whose name begins with `prefix`, in nanoseconds. Empty if
/// this kernel does not show them.
fn slices(prefix: &str) -> Vec<u64> {
    let mut slices = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").expect("mounted").flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.starts_with(prefix) {
            let text = std::fs::read_to_string(task.path().join("sched")).unwrap_or_default();
            slices.extend(slice(&text));
        }
    }
    slices
}

fn slice(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("se.slice"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Goal: the thread that watches asks for short turns, and what it executes has the usual ones. Method:
/// `/proc` shows the slices; a child prints its own.
#[test]
fn slices_are_not_inherited() {
    in_child("kernel::slices_are_not_inherited", || {
        let own = std::fs::read_to_string("/proc/self/sched").unwrap_or_default();
        let Some(usual) = slice(&own) else {
            println!("SKIPPED: this kernel does not show slices in /proc/self/sched");
            return;
        };
        let runtime =
            Runtime::builder().workers(1).thread_name("short").build().expect("a runtime");
        let hogs = Hogs::start(runtime.handle(), 1, 1);
        // Served by the reserve thread, since the worker hogs.
        let child = runtime.spawn(async {
            Command::new("cat").arg("/proc/self/sched").output().expect("it runs")
        });
        let output = runtime.block_on(child).expect("no panic");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(slice(&text), Some(usual), "{text}");
        eventually(|| slices("short-reserve").contains(&100_000));
        let threads = runtime.spawn(async {
            std::thread::spawn(|| std::fs::read_to_string("/proc/thread-self/sched"))
                .join()
                .expect("no panic")
        });
        let text = runtime.block_on(threads).expect("no panic").expect("mounted");
        assert_eq!(slice(&text), Some(usual), "{text}");
        drop(hogs);
    });
}

/// A millisecond.
const NAP: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Goal: tasks that hog, block, and execute programs do so correctly while the signal comes. Method: a
/// hog on every thread, which also sleeps and reads from a child's pipe, with events all the while.
#[test]
fn signals_disturb_nobody() {
    against_hang(|| {
        each_with(
            |builder| builder.long_poll(Duration::from_micros(50)),
            &mut |runtime: &Runtime| {
                let is_over = Arc::new(AtomicBool::new(false));
                let ticking = Arc::clone(&is_over);
                let ticks = runtime.spawn(async move {
                    while !ticking.load(Ordering::SeqCst) {
                        time::sleep(Duration::from_micros(100)).await;
                    }
                });
                let hogs: Vec<_> = (0..3)
                    .map(|_| {
                        runtime.spawn(async {
                            for _ in 0..10 {
                                let begin = monotonic_now();
                                settle::until(|| {
                                    monotonic_now() - begin > Duration::from_millis(1)
                                });
                                // In the kernel's own sleep, which a signal may end early.
                                let _ = rustix::thread::nanosleep(&NAP);
                                let mut child = Command::new("echo")
                                    .arg("undisturbed")
                                    .stdout(std::process::Stdio::piped())
                                    .spawn()
                                    .expect("it runs");
                                let mut text = String::new();
                                let mut out = child.stdout.take().expect("a pipe");
                                out.read_to_string(&mut text).expect("read");
                                assert_eq!(text, "undisturbed\n");
                                assert!(child.wait().expect("it ends").success());
                            }
                        })
                    })
                    .collect();
                for hog in hogs {
                    runtime.block_on(hog).expect("no panic");
                }
                is_over.store(true, Ordering::SeqCst);
                runtime.block_on(ticks).expect("no panic");
            },
        );
    });
}

/// Goal: everything works without the kernel's help, and with a signal that cannot be used. Method:
/// timers while all workers hog.
#[test]
fn without_help() {
    against_hang(|| {
        for help in [KernelHelp::NONE, KernelHelp { signal: Some(9), ..KernelHelp::default() }] {
            each_with(|builder| builder.kernel_help(help), &mut |runtime: &Runtime| {
                let hogs = Hogs::everywhere(runtime);
                let sleeper = runtime.spawn(time::sleep(Duration::from_micros(300)));
                runtime.block_on(sleeper).expect("no panic");
                drop(hogs);
            });
        }
    });
}
