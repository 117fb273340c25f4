//! Numbers of tasks, and handles that have returned their result.

use std::{
    collections::BTreeSet,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex},
};

use vigie_runtime::{
    spawn,
    task::{self, JoinSet},
};

use crate::{
    flavors::{FLAVORS, runtime},
    tasks::poll_once,
};

/// Goal: a task's number is its own, the same for the task, its handles, its destructor and its error, and no
/// other task has it. Method: tasks spawned by several threads, one that panics, one that is aborted.
#[test]
fn a_number_belongs_to_one_task() {
    struct NotesId(Arc<Mutex<Option<task::Id>>>);
    impl Drop for NotesId {
        fn drop(&mut self) {
            *self.0.lock().expect("no panic") = task::try_id();
        }
    }
    for flavor in FLAVORS {
        let runtime = runtime(flavor);
        let mut seen = BTreeSet::new();
        let tasks: Vec<_> = std::thread::scope(|scope| {
            let runtime = &runtime;
            let spawners = (0..4).map(|_| {
                scope.spawn(move || {
                    (0..100).map(|_| runtime.spawn(async { task::id() })).collect::<Vec<_>>()
                })
            });
            let spawners: Vec<_> = spawners.collect();
            spawners.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        for task in tasks {
            let (id, of_abort) = (task.id(), task.abort_handle().id());
            assert_eq!(runtime.block_on(task).expect("it ends"), id, "{flavor}");
            assert_eq!(of_abort, id);
            assert!(seen.insert(id), "{flavor}: {id} twice");
        }
        let panicking = runtime.spawn(async { panic!("planned") });
        let id = panicking.id();
        let error = runtime.block_on(panicking).expect_err("it panics");
        assert_eq!((error.id(), error.is_panic()), (id, true));
        assert_eq!(error.into_panic().downcast_ref::<&str>(), Some(&"planned"));

        let noted = Arc::new(Mutex::new(None));
        let notes = NotesId(Arc::clone(&noted));
        let waiting = runtime.spawn(async move {
            let _notes = notes;
            std::future::pending::<()>().await;
        });
        let id = waiting.id();
        waiting.abort();
        assert_eq!(runtime.block_on(waiting).expect_err("aborted").id(), id);
        assert_eq!(*noted.lock().expect("no panic"), Some(id), "{flavor}: of the destructor");
        assert_eq!(runtime.block_on(async { task::try_id() }), None, "{flavor}");
    }
}

/// Goal: a set says which task a result is of. Method: tasks that return their own number, and one that panics.
#[test]
fn a_set_names_its_tasks() {
    for flavor in FLAVORS {
        runtime(flavor).block_on(async {
            let mut set = JoinSet::new();
            let mut ids: BTreeSet<_> =
                (0..10).map(|_| set.spawn(async { Some(task::id()) }).id()).collect();
            let panics = set.spawn(async { panic!("planned") }).id();
            while let Some(next) = set.join_next_with_id().await {
                match next {
                    Ok((id, own)) => {
                        assert_eq!(own, Some(id));
                        assert!(ids.remove(&id), "{flavor}");
                    }
                    Err(error) => assert_eq!(error.id(), panics, "{flavor}"),
                }
            }
            assert!(ids.is_empty(), "{flavor}: {ids:?}");
        });
    }
}

/// Goal: a handle that has returned the result says so when it is polled again, instead of calling the task
/// cancelled. Method: poll twice.
#[test]
fn a_result_is_returned_once() {
    for flavor in FLAVORS {
        let runtime = runtime(flavor);
        runtime.block_on(async {
            let mut task = spawn(async { 3 });
            assert_eq!((&mut task).await.expect("it ends"), 3);
            let again = panic::catch_unwind(AssertUnwindSafe(|| poll_once(&mut task)));
            let payload = again.expect_err("it panics");
            let text = payload.downcast_ref::<&str>().expect("a message");
            assert!(text.contains("after it had returned"), "{text}");
            assert!(task.is_finished());
            task.abort();
        });
    }
}
