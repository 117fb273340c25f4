//! A dump tells of each task what it does and what it waits for.

use std::{
    os::fd::AsRawFd,
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::io::AsyncReadExt;
use vigie_detect::{detectors::channel::channel, net::UnixStream};
use vigie_runtime::{
    Flavor, Runtime,
    metrics::{Dump, TaskReport, TaskState},
    spawn, task, time,
};

use crate::{flavors::runtime, kit::guard::against_hang};

fn of<'a>(dump: &'a Dump, name: &str) -> &'a TaskReport {
    let is_it = |task: &&TaskReport| task.name.as_deref() == Some(name);
    dump.tasks.iter().find(is_it).unwrap_or_else(|| panic!("no {name} in\n{dump}"))
}

/// Waits until a dump is as it should be; whoever hangs here shows the last one.
async fn dump_when(runtime: &vigie_runtime::Handle, is_so: impl Fn(&Dump) -> bool) -> Dump {
    for _ in 0..5_000 {
        let dump = runtime.dump();
        if is_so(&dump) {
            return dump;
        }
        time::sleep(Duration::from_millis(1)).await;
    }
    panic!("this stays:\n{}", runtime.dump())
}

/// Goal: on each flavor, a dump names what each task waits for: a descriptor, a timer, a channel, two of them, or nothing that the server
/// knows; and ended tasks are not in it. Method: a task of each sort, read once all of them wait.
#[test]
fn waiting_tasks_are_told() {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel] {
        against_hang(move || {
            let runtime = runtime(flavor);
            let handle = runtime.handle().clone();
            runtime.block_on(async move {
                let (mut socket, _peer) = UnixStream::pair().expect("a pair");
                let descriptor = socket.as_raw_fd();
                let (_sender, receiver) = channel::<u32>(handle.server(), 1).expect("a channel");
                let started = |name: &'static str| task::Builder::new().name(name);
                let mut tasks = Vec::new();
                tasks.push(started("reader").spawn(async move {
                    let _ = socket.read_u8().await;
                }));
                tasks.push(started("sleeper").spawn(time::sleep(Duration::from_secs(900))));
                let both = receiver.clone();
                tasks.push(started("both").spawn(async move {
                    tokio::select! {
                        _ = both.wait(()) => {}
                        () = time::sleep(Duration::from_secs(900)) => {}
                    }
                }));
                tasks.push(started("other").spawn(std::future::pending()));
                spawn(async {}).await.expect("no panic");

                let dump = dump_when(&handle, |dump| {
                    let waits = |name, count| {
                        dump.tasks.iter().any(|task| {
                            task.name.as_deref() == Some(name)
                                && task.state == TaskState::Waiting
                                && task.waits_for.len() == count
                        })
                    };
                    waits("reader", 1)
                        && waits("sleeper", 1)
                        && waits("both", 2)
                        && waits("other", 0)
                })
                .await;
                assert_eq!(dump.tasks.len(), 4, "{dump}");
                let reader = &of(&dump, "reader").waits_for[0];
                assert!(reader.contains(&format!("descriptor {descriptor}, to read")), "{reader}");
                let sleeper = &of(&dump, "sleeper").waits_for[0];
                assert!(
                    sleeper.starts_with("timers: ") && sleeper.ends_with("s from now"),
                    "{sleeper}"
                );
                let both = &of(&dump, "both").waits_for;
                assert!(both.iter().any(|what| what == "channel"), "{both:?}");
                assert!(of(&dump, "other").site.file().ends_with("dump.rs"));
                let json = dump.to_json();
                assert!(json.starts_with("{\"vigie_tasks\":2,"), "{json}");
                assert!(json.contains("\"name\":\"both\""), "{json}");
                for task in tasks {
                    task.abort();
                    let _ = task.await;
                }
                assert_eq!(handle.dump().tasks.len(), 0);
            });
        });
    }
}

/// Goal: a task that never yields is seen running, from a thread outside, and what waits behind it is seen as ready. Method: a task that
/// blocks its one worker on the user-level flavor, and one that it has woken.
#[test]
fn a_hog_is_seen_from_outside() {
    against_hang(|| {
        let runtime =
            Arc::new(Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime"));
        let (begun, begins) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let outside = std::thread::spawn({
            let handle = runtime.handle().clone();
            move || {
                begins.recv().expect("the hog begins");
                let dump = handle.dump();
                assert_eq!(of(&dump, "hog").state, TaskState::Running, "{dump}");
                assert!(of(&dump, "hog").since.is_some(), "{dump}");
                assert_eq!(of(&dump, "behind").state, TaskState::Ready, "{dump}");
                release.send(()).expect("the hog waits");
            }
        });
        runtime.block_on(async {
            let hog = task::Builder::new().name("hog").spawn(async move {
                let behind = task::Builder::new().name("behind").spawn(async {});
                begun.send(()).expect("the thread waits");
                let _ = released.recv();
                behind.await
            });
            hog.await.expect("no panic").expect("no panic");
        });
        outside.join().expect("no panic");
    });
}
