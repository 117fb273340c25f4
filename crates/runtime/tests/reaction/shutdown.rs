//! A runtime ends in bounded time, and names the tasks that did not end.

use std::time::Duration;

use vigie_runtime::{Runtime, ShutdownTimeout};

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
