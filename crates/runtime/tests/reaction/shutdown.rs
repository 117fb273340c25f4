//! A runtime ends in bounded time, and names the tasks that did not end.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use vigie_runtime::{Flavor, Runtime, ShutdownTimeout};

use crate::{hogs::Hogs, kit::guard::against_hang};

/// Goal: a shutdown while tasks hog ends after its time, and names their threads and where they were spawned. Method: two
/// hogs, which go on until they are released.
#[test]
fn hogs_are_named() {
    against_hang(|| {
        let runtime = Runtime::builder().workers(2).build().expect("a runtime");
        let handle = runtime.handle().clone();
        let hogs = Hogs::start(runtime.handle(), 2, 2);
        let ended = runtime.shutdown_timeout(Duration::from_millis(20));
        let error: ShutdownTimeout = ended.expect_err("they hog");
        assert_eq!((error.threads, error.tasks.len()), (2, 2), "{error}");
        assert_eq!(error.thread_names.len(), 2, "{error}");
        for name in &error.thread_names {
            assert!(name.starts_with("vigie-worker-"), "{name}");
        }
        for site in &error.tasks {
            assert!(site.file().ends_with("hogs.rs"), "{site}");
        }
        assert!(error.to_string().contains("hogs.rs"), "{error}");
        assert!(handle.spawn(async {}).is_finished(), "nothing runs after a shutdown");
        drop(hogs);
    });
}

/// Goal: a shutdown while closures block names where those that have begun were spawned, and no others. Method: two threads, on which
/// two closures wait until they are released; one waits in the queue, and one has ended before.
#[test]
fn closures_are_named() {
    against_hang(|| {
        for flavor in [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel] {
            let builder = Runtime::builder().flavor(flavor).blocking_threads(2);
            let runtime = builder.build().expect("a runtime");
            runtime.block_on(runtime.spawn_blocking(|| ())).expect("it ends");
            let (release, released) = mpsc::channel::<()>();
            let (begin, begun) = mpsc::channel();
            let released = Arc::new(Mutex::new(released));
            let block = || {
                let (begin, released) = (begin.clone(), Arc::clone(&released));
                move || {
                    begin.send(()).expect("the test waits");
                    // Ends with the sender.
                    drop(released.lock().map(|released| released.recv()));
                }
            };
            let line = line!() + 1;
            (0..2).for_each(|_| runtime.spawn_blocking(block()).detach());
            begun.iter().take(2).for_each(drop);
            runtime.spawn_blocking(block()).detach();
            let ended = runtime.shutdown_timeout(Duration::from_millis(20));
            let error = ended.expect_err("they block");
            let lines: Vec<_> = error.closures.iter().map(|site| site.line()).collect();
            assert_eq!(lines, vec![line; 2], "{error}");
            // On a busy machine other threads may be about to end.
            assert!(error.threads >= 2, "{error}");
            if flavor == Flavor::KernelLevel {
                // Its driver is told only when the time is over, so it is not named.
                assert_eq!(error.thread_names, ["vigie-blocking"; 2], "{error}");
            }
            let named = "; blocking closures spawned at";
            assert!(error.to_string().contains(named), "{error}");
            drop(release);
        }
    });
}

/// Goal: dropping a runtime is bounded in the same way. Method: its time is short; the hogs go on.
#[test]
fn drop_is_bounded() {
    against_hang(|| {
        let runtime = Runtime::builder()
            .workers(1)
            .shutdown_timeout(Duration::from_millis(5))
            .build()
            .expect("a runtime");
        let hogs = Hogs::start(runtime.handle(), 3, 2);
        drop(runtime);
        drop(hogs);
    });
}

/// Goal: a runtime whose tasks behave ends in time. Method: it has some that wait.
#[test]
fn in_time() {
    against_hang(|| {
        for workers in [1, 2] {
            let runtime = Runtime::builder().workers(workers).build().expect("a runtime");
            for _ in 0..10 {
                runtime.spawn(std::future::pending::<()>()).detach();
            }
            runtime.shutdown_timeout(Duration::from_secs(20)).expect("no task hogs");
        }
    });
}
