//! What leaves a simulation behind its back, in a program that catches it; and tasks that get nowhere.
#![expect(unsafe_code, reason = "functions that stand for the C library's")]
#![expect(clippy::disallowed_methods, reason = "it does what a simulation is to catch")]

use std::{
    future::Future,
    net,
    os::unix::process::CommandExt,
    panic::{self, AssertUnwindSafe},
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use vigie_runtime::{
    Flavor, Runtime,
    simulation::{self, TraceEventKind, World},
    spawn, time, yield_now,
};

vigie_runtime::catch_escapes!();

/// Returns the message of the panic.
fn panic_of(run: impl FnOnce()) -> String {
    let payload = panic::catch_unwind(AssertUnwindSafe(run)).expect_err("it fails");
    *payload.downcast::<String>().expect("a text")
}

/// Runs a program in a world that must fail, and returns why.
fn failure_of<F: Future<Output = ()> + 'static>(program: impl Fn() -> F + 'static) -> String {
    let mut world = World::new(1);
    world.node("wild").run(program);
    panic_of(|| world.block_on(async { time::sleep(Duration::from_secs(1)).await }))
}

/// Goal: a thread, a sleep in the kernel and a real socket fail the run, with the place of the call. Method: a program that uses each
/// of them, on a node and on a runtime of its own; outside of tasks they work.
#[test]
fn escapes_fail_with_their_place() {
    let here = |line: u32| format!("simulation_escapes.rs:{line}");
    let thread_line = line!() + 1;
    let failure = failure_of(|| async { drop(thread::spawn(|| ()).join()) });
    assert!(failure.contains("starts a thread, at "), "{failure}");
    assert!(failure.contains(&here(thread_line)) && failure.contains("node wild"), "{failure}");

    let sleep_line = line!() + 1;
    let failure = failure_of(|| async { thread::sleep(Duration::from_secs(1 << 40)) });
    assert!(failure.contains("sleeps in the kernel, at "), "{failure}");
    assert!(failure.contains(&here(sleep_line)), "{failure}");

    let bind_line = line!() + 1;
    let failure = failure_of(|| async { drop(net::TcpListener::bind("127.0.0.1:0")) });
    assert!(failure.contains("binds a real socket"), "{failure}");
    assert!(failure.contains(&here(bind_line)), "{failure}");

    let process_line = line!() + 1;
    let failure = failure_of(|| async { drop(Command::new("true").status()) });
    assert!(failure.contains("starts a process, at "), "{failure}");
    assert!(failure.contains(&here(process_line)), "{failure}");
    let failure = failure_of(|| async {
        let mut command = Command::new("true");
        // Without `posix_spawn`.
        command.uid(rustix::process::getuid().as_raw());
        drop(command.status());
    });
    assert!(failure.contains("starts a process"), "{failure}");
    assert!(Command::new("true").status().expect("it starts").success());

    let (_sender, receiver) = mpsc::channel::<()>();
    let receiver = std::cell::RefCell::new(Some(receiver));
    let failure = failure_of(move || {
        let receiver = receiver.take().expect("it starts once");
        async move {
            let _ = receiver.recv_timeout(Duration::from_secs(1));
        }
    });
    assert!(failure.contains("waits for std's clock"), "{failure}");

    let listener = net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let failure = failure_of(move || async move { drop(net::TcpStream::connect(address)) });
    assert!(failure.contains("connects a real socket"), "{failure}");
    thread::spawn(|| ()).join().expect("it ends");

    let runtime = Runtime::builder().flavor(Flavor::Simulated { seed: 1 }).build();
    let runtime = runtime.expect("it needs no descriptor");
    let run = || {
        runtime.block_on(async {
            spawn(async { thread::sleep(Duration::from_secs(1 << 40)) }).await.expect("it ends");
            time::sleep(Duration::from_secs(1)).await;
        });
    };
    assert!(panic_of(run).contains("sleeps in the kernel"));
}

/// Goal: std's clocks are the virtual one inside of a simulation, and the system's random numbers the seed's. Method: what they say
/// before and after an hour, and after a step of the node's clock; numbers of two runs with a seed, and of another one.
#[test]
fn std_is_simulated() {
    let run = |seed: u64| {
        let mut world = World::new(seed);
        let node = world.main();
        world.block_on(async {
            let task = async move {
                let (begin, date) = (Instant::now(), SystemTime::now());
                time::sleep(Duration::from_secs(3600)).await;
                assert_eq!(begin.elapsed(), Duration::from_secs(3600));
                assert_eq!(date.elapsed().expect("it is later"), Duration::from_secs(3600));
                node.clock_forward(Duration::from_secs(60));
                assert_eq!(date.elapsed().expect("it is later"), Duration::from_secs(3660));
                assert_eq!(SystemTime::now(), time::system_time());
                assert_eq!(begin.elapsed(), Duration::from_secs(3600));
                let mut bytes = [0_u8; 16];
                // SAFETY: the call gets so many bytes as there are.
                let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
                assert_eq!(count, 16);
                (bytes, date)
            };
            spawn(task).await.expect("it ends")
        })
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
    assert!(SystemTime::now() > run(1).1 + Duration::from_secs(86_400));
}

/// Goal: a task that waits in the kernel is named, by whatever it waits. Method: a thread that answers late, some times; the record.
#[test]
fn a_task_that_waits_in_the_kernel_is_named() {
    let (ask, asked) = mpsc::channel::<()>();
    let (answer, answered) = mpsc::channel::<()>();
    let late = thread::spawn(move || {
        for () in asked {
            thread::sleep(Duration::from_millis(10));
            answer.send(()).expect("it waits");
        }
    });
    let calls = std::cell::RefCell::new(Some((ask, answered)));
    let mut world = World::new(1);
    world.record(100);
    let line = line!() + 1;
    let node = world.node("slow").run(move || {
        let (ask, answered) = calls.take().expect("it starts once");
        async move {
            for _ in 0..5 {
                ask.send(()).expect("it is there");
                answered.recv().expect("it is there");
                yield_now().await;
            }
        }
    });
    world.block_on(async { time::sleep(Duration::from_secs(1)).await });
    late.join().expect("it ends");
    let events = world.events();
    let escapes = events.iter().filter_map(|event| match &event.kind {
        TraceEventKind::Escaped { what } => Some((world.node_of(event).name(), what)),
        _ => None,
    });
    let escapes: Vec<_> = escapes.collect();
    let (name, what) = escapes.first().expect("it has waited");
    assert_eq!(*name, node.name());
    assert!(what.contains("waited in the kernel"), "{what}");
    assert!(what.contains(&format!("simulation_escapes.rs:{line}")), "{what}");
}

/// Goal: a poll with a panic is not judged, whether that ends it or is caught in it: what prints the panic reads files and takes locks. Method:
/// tasks that wait in the kernel for a plain thread and then panic, of which some catch that.
#[test]
fn a_task_that_panics_is_not_named() {
    let (ask, asked) = mpsc::channel::<mpsc::Sender<()>>();
    let late = thread::spawn(move || {
        for answer in asked {
            thread::sleep(Duration::from_millis(10));
            answer.send(()).expect("it waits");
        }
    });
    let mut world = World::new(1);
    world.record(100);
    world.block_on(async {
        for catches in [false, true].repeat(5) {
            let ask = ask.clone();
            let task = spawn(async move {
                let (answer, answered) = mpsc::channel();
                ask.send(answer).expect("it is there");
                answered.recv().expect("it is there");
                let panics = || panic!("after a wait");
                if catches {
                    panic::catch_unwind(panics).expect_err("it panics");
                } else {
                    panics();
                }
            });
            assert_eq!(task.await.is_err(), !catches);
        }
    });
    drop(ask);
    late.join().expect("it ends");
    let is_escape = |kind: &TraceEventKind| matches!(kind, TraceEventKind::Escaped { .. });
    assert!(!world.events().iter().any(|event| is_escape(&event.kind)));
}

/// Goal: tasks that only wake themselves and each other are a livelock, which names them and says what the others wait for; time that
/// passes is none. Method: a task that yields for ever, beside one that waits and one that sleeps at times; a task that yields as
/// often with pauses.
#[test]
fn a_livelock_says_who_spins() {
    let mut world = World::new(7);
    world.polls_max(50_000);
    let line = line!() + 1;
    world.node("busy").run(|| async {
        while time::Instant::now().as_nanos() != 1 {
            yield_now().await
        }
    });
    let message = panic_of(|| {
        world.block_on(async {
            let patient = vigie_runtime::task::Builder::new().name("patient");
            patient.spawn(std::future::pending::<()>()).await.expect("it never ends");
        });
    });
    for part in ["livelock at", "seed 7", "50000 polls", "patient", &format!("escapes.rs:{line}")] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(message.contains("of the last 10000 of the task"), "{message}");

    let mut world = World::new(7);
    world.polls_max(50_000);
    world.block_on(async {
        for _ in 0..6 {
            for _ in 0..20_000 {
                yield_now().await;
            }
            time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// Goal: two runs that differ name what a program can still depend on that catches escapes, and the event before the difference. Method: a
/// test whose tasks have the order of a `HashMap`, and one that polls a drawn branch of `select!` first.
#[test]
fn what_is_not_caught_is_named() {
    #[expect(clippy::disallowed_types, reason = "its order is what is to be found")]
    fn by_map(world: &mut World) {
        let map: std::collections::HashMap<u32, ()> = (0..100).map(|key| (key, ())).collect();
        world.block_on(async {
            for key in map.into_keys() {
                time::sleep(Duration::from_millis(key.into())).await;
            }
        });
    }
    fn by_select(world: &mut World) {
        world.block_on(async {
            for _ in 0..100 {
                tokio::select! {
                    () = std::future::ready(()) => time::sleep(Duration::from_millis(1)).await,
                    () = std::future::ready(()) => time::sleep(Duration::from_millis(2)).await,
                }
            }
        });
    }
    for test in [by_map, by_select] {
        let failure = panic_of(|| simulation::for_each_seed(1, test));
        assert!(failure.contains("two runs with the seed 0 differ"), "{failure}");
        assert!(failure.contains("of a `HashMap`") && failure.contains("biased;"), "{failure}");
        assert!(!failure.contains("a thread"), "{failure}");
        let (_, rest) = failure.split_once("the first event that differs").expect("which");
        assert!(
            rest.contains("; the one before it was at ") && rest.ends_with(" in both"),
            "{rest}"
        );
    }
}
