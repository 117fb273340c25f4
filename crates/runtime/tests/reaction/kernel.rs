//! The kernel's help: its effect on the threads, and that it has none on other code.

use std::{
    io::{ErrorKind, Read},
    net::UdpSocket,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use rustix::{
    event::{Timespec, epoll, poll},
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{NanosleepRelativeResult, futex, nanosleep},
};
use vigie_detect::{
    Server,
    clock::monotonic_now,
    detectors::signal::{SignalKind, signal},
};
use vigie_runtime::{KernelHelp, Runtime, RuntimeBuilder, time};

use crate::{
    hogs::{Hogs, each_with, eventually},
    kit::{
        child::{command, in_child, is_child, run},
        guard::against_hang,
    },
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

/// Goal: the thread that watches asks for short slices, and what it executes has the usual ones. Method:
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

/// Whether this machine lets an unprivileged process have perf events.
fn has_perf_events() -> bool {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let is_allowed = paranoid.is_ok_and(|text| text.trim().parse::<i32>().is_ok_and(|it| it <= 2));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_allowed && status.lines().any(|line| line == "Seccomp:\t0")
}

/// Perf events of this process that stand for a thread to be signalled. One more is kept, so that making
/// others is quick.
fn perf_events() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("mounted").flatten();
    let targets = descriptors.flat_map(|entry| std::fs::read_link(entry.path()));
    targets
        .filter(|target| target.to_string_lossy().contains("[perf_event]"))
        .count()
        .saturating_sub(1)
}

/// Runs `body` in a task, beside `hogs`, while events come all the time.
fn beside_events<T: Send + 'static>(
    runtime: &Runtime,
    hogs: Option<Hogs>,
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let is_over = Arc::new(AtomicBool::new(false));
    let ticking = Arc::clone(&is_over);
    let ticks = runtime.spawn(async move {
        while !ticking.load(Ordering::SeqCst) {
            time::sleep(Duration::from_micros(100)).await;
        }
    });
    let value = runtime.block_on(runtime.spawn(async { body() })).expect("no panic");
    drop(hogs);
    is_over.store(true, Ordering::SeqCst);
    runtime.block_on(ticks).expect("no panic");
    value
}

/// Computes for two milliseconds in user mode, after which a thread inside this poll has been helped.
fn compute() {
    let begin = monotonic_now();
    while monotonic_now() - begin < Duration::from_millis(2) {
        std::hint::spin_loop();
    }
}

/// A millisecond and a half: longer than the time between two signals.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_500_000 };

/// Sleeps in the kernel in every way that a signal ends, each after some computation. Returns which were
/// ended.
fn sleeps() -> Vec<&'static str> {
    let mut ended = Vec::new();
    let mut note = |name, is_ended| ended.extend(Some(name).filter(|_| is_ended));
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    socket.set_read_timeout(Some(Duration::from_millis(1))).expect("not zero");
    let group = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor");
    let word = AtomicU32::new(0);
    for _ in 0..20 {
        compute();
        note("nanosleep", !matches!(nanosleep(&NAP), NanosleepRelativeResult::Ok));
        compute();
        note("poll", poll(&mut [], Some(&NAP)) != Ok(0));
        compute();
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        note("epoll_wait", epoll::wait(&group, &mut events[..], Some(&NAP)) != Ok(0));
        compute();
        let waited = futex::wait(&word, futex::Flags::PRIVATE, 0, Some(&NAP));
        note("futex", waited != Err(Errno::TIMEDOUT));
        compute();
        let error = socket.recv(&mut [0]).expect_err("no peer sends");
        note("recv", error.kind() != ErrorKind::WouldBlock);
    }
    ended
}

/// Goal: no call of foreign code that sleeps in the kernel is interrupted by the help against hogs. Method:
/// a task sleeps in many ways beside hogs that are sent signals, and computes before each sleep, so that it
/// counts as one of them.
#[test]
fn sleepers_are_not_interrupted() {
    in_child("kernel::sleepers_are_not_interrupted", || {
        if !has_perf_events() {
            println!("SKIPPED: no perf events here, so there is no signal that could interrupt");
            return;
        }
        let set = |builder: RuntimeBuilder| builder.long_poll(Duration::from_micros(50));
        each_with(set, &mut |runtime| {
            let ended = beside_events(runtime, Some(Hogs::everywhere(runtime)), || {
                eventually(|| perf_events() > 0);
                sleeps()
            });
            assert!(ended.is_empty(), "ended early: {ended:?}");
        });
    });
}

/// Goal: the handler keeps `errno`. Method: with a limit of no descriptors, the call in the handler fails; a
/// hog that has an error of its own finds that one after many signals.
#[test]
fn errors_of_hogs_are_kept() {
    in_child("kernel::errors_of_hogs_are_kept", || {
        if !has_perf_events() {
            println!("SKIPPED: no perf events here, so there is no handler that runs");
            return;
        }
        let runtime = Runtime::builder().workers(1).build().expect("a runtime");
        let found = beside_events(&runtime, None, || {
            // The only hog: the event is this thread's.
            settle::until(|| perf_events() > 0);
            let usual = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..usual }).expect("lower");
            let own = std::fs::read("/").expect_err("no descriptor is allowed");
            for _ in 0..10 {
                compute();
            }
            let later = std::io::Error::last_os_error();
            setrlimit(Resource::Nofile, usual).expect("as before");
            (own.raw_os_error(), later.raw_os_error())
        });
        assert_eq!(found.0, Some(Errno::MFILE.raw_os_error()));
        assert_eq!(found.1, found.0);
    });
}

/// Goal: a program that installs a handler of its own later gets its signals alone. Method: it does so while
/// hogs are sent ours; the events that raise them disappear.
#[test]
fn the_programs_own_handler_is_respected() {
    in_child("kernel::the_programs_own_handler_is_respected", || {
        if !has_perf_events() {
            println!("SKIPPED: no perf events here, so there is no signal");
            return;
        }
        let kind = SignalKind::WINDOW_CHANGE;
        let help = KernelHelp::default().signal(Some(kind.as_raw()));
        let runtime = Runtime::builder().workers(2).kernel_help(help).build().expect("a runtime");
        let hogs = Hogs::everywhere(&runtime);
        let ticks = runtime.spawn(async {
            loop {
                time::sleep(Duration::from_micros(100)).await;
            }
        });
        eventually(|| perf_events() > 0);
        let host = Server::spawn_thread().expect("a host");
        let _signals = signal(host.server(), kind).expect("a handler");
        eventually(|| perf_events() == 0);
        drop(ticks);
        drop(hogs);
    });
}

/// Returns the fields of `/proc/…/stat` behind the name, of the threads whose name begins with `prefix`.
fn stats(prefix: &str) -> Vec<Vec<i64>> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("mounted").flatten();
    let texts = tasks.filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let text = std::fs::read_to_string(task.path().join("stat")).ok()?;
        name.starts_with(prefix).then_some(text)
    });
    let fields = |text: String| {
        let rest = text.rsplit_once(") ").expect("a name in parentheses").1.to_owned();
        rest.split(' ').map(|field| field.trim().parse().unwrap_or(0)).collect()
    };
    texts.map(fields).collect()
}

/// Goal: reserve threads keep the scheduling policy and the nice value of the process. Method: a child under
/// each policy that needs no privilege; `/proc` shows what its threads have.
#[test]
fn the_scheduling_class_is_kept() {
    const TEST: &str = "kernel::the_scheduling_class_is_kept";
    if is_child(TEST) {
        against_hang(|| {
            let expected = stats("");
            let runtime =
                Runtime::builder().workers(1).thread_name("class").build().expect("a runtime");
            let hogs = Hogs::start(runtime.handle(), 1, 1);
            // Served by the reserve thread, since the worker hogs.
            runtime.block_on(runtime.spawn(async {})).expect("no panic");
            let found = stats("class-reserve");
            // Of the fields from the third on, the 19th is the nice value and the 41st the policy.
            let class = |fields: &Vec<i64>| (fields[19 - 3], fields[41 - 3]);
            assert!(!found.is_empty());
            assert!(found.iter().all(|it| class(it) == class(&expected[0])), "{found:?}");
            println!("policy {} nice {}", class(&expected[0]).1, class(&expected[0]).0);
            drop(hogs);
        });
        return;
    }
    let programs: [&[&str]; 4] = [
        &["chrt", "--other", "0"],
        &["chrt", "--batch", "0"],
        &["chrt", "--idle", "0"],
        &["nice", "-n", "5", "chrt", "--batch", "0"],
    ];
    for program in programs {
        if Command::new(program[0]).arg("--version").output().is_err() {
            println!("SKIPPED: there is no {}", program[0]);
            continue;
        }
        run(command(program, TEST), TEST);
    }
}

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
                                let _ = nanosleep(&NAP);
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
        for help in [KernelHelp::NONE, KernelHelp::default().signal(Some(9))] {
            each_with(|builder| builder.kernel_help(help), &mut |runtime: &Runtime| {
                let hogs = Hogs::everywhere(runtime);
                let sleeper = runtime.spawn(time::sleep(Duration::from_micros(300)));
                runtime.block_on(sleeper).expect("no panic");
                drop(hogs);
            });
        }
    });
}
