//! Entering runtimes, and calls where there is none: errors name the caller and say what to do.

use std::{
    cell::RefCell,
    panic::{self, AssertUnwindSafe, Location},
    time::Duration,
};

use vigie_runtime::{Flavor, Handle, Runtime, spawn, spawn_blocking, task::JoinSet, time};

use crate::flavors::{FLAVORS, runtime};

thread_local! {
    static PANIC: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
}

/// Runs `body`, which must panic. Returns the file and line of the panic, and its message.
fn panic_of<T>(body: impl FnOnce() -> T) -> ((String, u32), String) {
    let before = panic::take_hook();
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| (at.file().to_owned(), at.line()));
        PANIC.with(|last| *last.borrow_mut() = place);
    }));
    let caught = panic::catch_unwind(AssertUnwindSafe(|| drop(body())));
    panic::set_hook(before);
    let payload = caught.expect_err("it panics");
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let place = PANIC.with(|last| last.borrow_mut().take()).expect("the hook ran here");
    (place, text.expect("a message"))
}

#[track_caller]
fn assert_here(place: &(String, u32)) {
    let here = Location::caller();
    assert_eq!(place.0, here.file());
    assert!(place.1.abs_diff(here.line()) <= 4, "line {} instead of {}", place.1, here.line());
}

/// Goal: a call outside any runtime panics with the place of the call, not one inside of vigie. Method: every
/// such call, on a thread without a runtime; the hook says where the panic was.
///
/// One test, since the panic hook is the process's.
#[test]
fn panics_name_the_caller() {
    let (place, text) = panic_of(|| spawn(async {}));
    assert_here(&place);
    assert!(text.contains("no vigie runtime"), "{text}");
    let (place, _) = panic_of(|| spawn_blocking(|| ()));
    assert_here(&place);
    let (place, _) = panic_of(|| JoinSet::new().spawn(async {}));
    assert_here(&place);
    let (place, _) = panic_of(|| JoinSet::new().spawn_blocking(|| ()));
    assert_here(&place);
    let (place, _) = panic_of(|| time::interval(Duration::ZERO));
    assert_here(&place);
    let (place, _) = panic_of(vigie_runtime::task::id);
    assert!(place.0.ends_with("function.rs"), "called by the standard library: {place:?}");

    let runtime = runtime(Flavor::Hybrid);
    let (handle, inner) = (runtime.handle().clone(), runtime.handle().clone());
    let inside = runtime.spawn(async move {
        let (place, text) = panic_of(|| inner.block_on(async {}));
        assert_here(&place);
        assert!(text.contains("inside a task"), "{text}");
    });
    runtime.block_on(inside).expect("its asserts hold");

    // Guards that are dropped out of order would leave the thread in a runtime.
    let (one, other) = (handle.enter(), handle.enter());
    let (_, text) = panic_of(|| drop(one));
    assert!(text.contains("reverse order"), "{text}");
    drop(other);
}

/// Goal: guards nest, and the last one leaves no runtime behind. Method: two runtimes, entered one inside the
/// other.
#[test]
fn guards_nest() {
    let (outer, inner) = (runtime(Flavor::Hybrid), runtime(Flavor::UserLevel));
    let flavor = || Handle::try_current().ok().map(|handle| handle.flavor());
    assert_eq!(flavor(), None);
    let entered = outer.enter();
    assert_eq!(flavor(), Some(Flavor::Hybrid));
    {
        let _entered = inner.enter();
        assert_eq!(flavor(), Some(Flavor::UserLevel));
    }
    assert_eq!(flavor(), Some(Flavor::Hybrid));
    drop(entered);
    assert_eq!(flavor(), None);
}

/// Goal: a closure on a blocking thread can run a future of its own runtime. Method: `Handle::block_on` there,
/// with a timer and a task, on each flavor.
#[test]
fn a_blocking_closure_runs_a_future() {
    for flavor in FLAVORS {
        let runtime = runtime(flavor);
        let handle = runtime.handle().clone();
        let closure = runtime.spawn_blocking(move || {
            handle.block_on(async {
                time::sleep(Duration::from_millis(1)).await;
                spawn(async { 7 }).await
            })
        });
        let value = runtime.block_on(closure).expect("the closure ends").expect("the task ends");
        assert_eq!(value, 7, "{flavor}");
    }
}

/// Goal: a runtime that is left in the background takes its tasks with it, and waits for nothing. Method: one
/// task that waits for ever and one blocking closure that waits for the test.
#[test]
fn a_runtime_is_left_in_the_background() {
    for flavor in FLAVORS {
        let runtime = runtime(flavor);
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let closure = runtime.spawn_blocking(move || held.recv().is_err());
        let (alive, over) = tokio::sync::oneshot::channel::<()>();
        let task = runtime.spawn(async move {
            std::future::pending::<()>().await;
            drop(alive);
        });
        runtime.shutdown_background();
        // Its future is dropped by one of the threads.
        assert!(over.blocking_recv().is_err(), "{flavor}");
        drop((task, hold, closure));
    }
}

/// Goal: settings that do not fit the flavor do no harm. Method: build with them.
#[test]
fn workers_of_one_thread() {
    let builder = Runtime::builder().flavor(Flavor::UserLevel).workers(4);
    assert_eq!(builder.build().expect("a warning is logged").block_on(async { 3 }), 3);
}
