//! Destructors of tasks may do anything, at the end of their task and at that of the runtime.

use std::{
    cell::{Cell, RefCell},
    future::{Future, pending, poll_fn},
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
};

use vigie_runtime::{Flavor, JoinHandle, Runtime, spawn, spawn_blocking, spawn_local, yield_now};

use crate::{
    census::{Census, Witness},
    flavors::{FLAVORS, runtime},
    kit::guard::against_hang,
    leftovers::alone_for_each_flavor,
    tasks::{poll_once, run_until_polled},
};

/// A future that does something when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<F: FnMut() + Unpin> Future for OnDrop<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// Goal: actions of destructors during the shutdown do no harm: spawning (cancelled at once), spawning
/// closures, waking and aborting others, dropping another runtime. Method: all of that in one task's
/// destructor.
#[test]
fn busy_destructors_at_shutdown() {
    alone_for_each_flavor("destructors::busy_destructors_at_shutdown", |flavor| {
        let census = Census::default();
        let runtime = runtime(flavor);
        let polled = Arc::new(AtomicUsize::new(0));
        let wakers = Arc::new(Mutex::new(Vec::<Waker>::new()));
        let waiting: Vec<_> = (0..10)
            .map(|_| {
                let witness = census.witness();
                let (wakers, polled) = (Arc::clone(&wakers), Arc::clone(&polled));
                runtime.spawn(poll_fn(move |cx| {
                    let _ = &witness;
                    wakers.lock().expect("no panic").push(cx.waker().clone());
                    polled.fetch_add(1, Ordering::SeqCst);
                    Poll::<()>::Pending
                }))
            })
            .collect();
        let (counted, witness, spawned) = (Arc::clone(&polled), census.witness(), census.clone());
        let cancelled = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&cancelled);
        let destructor = OnDrop(move || {
            let _ = &witness;
            for waker in wakers.lock().expect("no panic").iter() {
                waker.wake_by_ref();
            }
            waiting.iter().for_each(JoinHandle::abort);
            for flavor in FLAVORS {
                let (witness, other) = (spawned.witness(), self::runtime(flavor));
                let owner = spawn(async move {
                    let _owned = (witness, other);
                });
                let witness = spawned.witness();
                let closure = spawn_blocking(move || drop(witness));
                // Runs still, or is cancelled: the shutdown waits for either.
                closure.detach();
                let is_cancelled =
                    matches!(poll_once(owner), Poll::Ready(Err(error)) if error.is_cancelled());
                seen.fetch_add(usize::from(is_cancelled), Ordering::SeqCst);
            }
        });
        runtime
            .spawn(async move {
                counted.fetch_add(1, Ordering::SeqCst);
                destructor.await;
            })
            .detach();
        run_until_polled(&runtime, &polled, 11);
        drop(runtime);
        census.assert_settled(flavor);
        assert_eq!(cancelled.load(Ordering::SeqCst), FLAVORS.len(), "spawned by the destructor");
    });
}

/// Panics when it is dropped, but for the counting.
struct Bomb(#[expect(dead_code, reason = "is counted when it is dropped")] Witness);

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("planted: a destructor");
    }
}

/// Goal: a destructor that panics takes neither the process nor the runtime with it, whether it runs
/// at the task's end, its panic, its abort, its cancellation or the shutdown. Method: a task for each,
/// on both flavors; afterwards the runtime works and ends.
#[test]
fn panics_in_destructors() {
    alone_for_each_flavor("destructors::panics_in_destructors", |flavor| {
        let census = Census::default();
        let runtime = runtime(flavor);
        let bomb = || Bomb(census.witness());
        runtime.block_on(async {
            let at_its_end = bomb();
            let result = spawn(async move {
                let _bomb = at_its_end;
                7
            });
            // The future's locals are dropped inside its last poll.
            assert!(result.await.expect_err("it panicked").is_panic());
            let while_pending = bomb();
            let aborted = spawn(async move {
                let _bomb = while_pending;
                pending::<()>().await;
            });
            yield_now().await;
            aborted.abort();
            assert!(aborted.await.expect_err("aborted").is_cancelled());
            // The state of the future is dropped after its last poll.
            let kept = bomb();
            let result = spawn(poll_fn(move |_| {
                let _ = &kept;
                Poll::Ready(7)
            }));
            assert_eq!(result.await.expect("it had its result"), 7);
            let (output, is_made) = (bomb(), Arc::new(AtomicBool::new(false)));
            let made = Arc::clone(&is_made);
            // The result is not taken.
            spawn(poll_fn({
                let mut output = Some(output);
                move |_| {
                    made.store(true, Ordering::SeqCst);
                    Poll::Ready(output.take())
                }
            }))
            .detach();
            while !is_made.load(Ordering::SeqCst) {
                yield_now().await;
            }
            let payload = bomb();
            spawn(async move { panic::panic_any(payload) }).detach();
            assert_eq!(spawn(async { 8 }).await.expect("others run"), 8);
        });
        for _ in 0..3 {
            let (kept, polled) = (bomb(), Arc::new(AtomicUsize::new(0)));
            let counted = Arc::clone(&polled);
            runtime
                .spawn(async move {
                    let _bomb = kept;
                    counted.fetch_add(1, Ordering::SeqCst);
                    pending::<()>().await;
                })
                .detach();
            run_until_polled(&runtime, &polled, 1);
        }
        let handle = runtime.handle().clone();
        drop(runtime);
        census.assert_settled(flavor);
        let kept = bomb();
        let refused =
            panic::catch_unwind(AssertUnwindSafe(|| handle.spawn(async move { drop(kept) })));
        drop(refused);
        census.assert_settled(flavor);
    });
}

/// Goal: a destructor that panics takes no blocking thread with it. Method: one thread; a queued
/// closure that owns a bomb is aborted; another one runs after it.
#[test]
fn panics_in_destructors_of_closures() {
    alone_for_each_flavor("destructors::panics_in_destructors_of_closures", |flavor| {
        let census = Census::default();
        let runtime =
            Runtime::builder().flavor(flavor).workers(2).blocking_threads(1).build().expect("ok");
        let (release, released) = mpsc::channel::<()>();
        let handle = runtime.handle();
        let first = handle.spawn_blocking(move || released.recv().expect("the test releases"));
        let bomb = Bomb(census.witness());
        let second = handle.spawn_blocking(move || drop(bomb));
        second.abort();
        let bomb = Bomb(census.witness());
        let third = handle.spawn_blocking(move || drop(bomb));
        let last = handle.spawn_blocking(|| 9);
        release.send(()).expect("the closure waits");
        runtime.block_on(async {
            first.await.expect("it ends");
            assert!(second.await.expect_err("aborted").is_cancelled());
            assert!(third.await.expect_err("it panicked").is_panic());
            assert_eq!(last.await.expect("it ends"), 9);
        });
        census.assert_settled(flavor);
    });
}

/// Goal: local tasks whose runtime ends on another thread are leaked, and touched no more. Method: an
/// `Rc` and a drop that would tell; the runtime is dropped there, and in a second round run there before.
#[test]
fn local_tasks_on_the_wrong_thread() {
    against_hang(|| {
        for runs_there in [false, true] {
            let runtime = runtime(Flavor::UserLevel);
            let dropped = Rc::new(Cell::new(false));
            let polls = Rc::new(Cell::new(0));
            let mut task = None;
            runtime.block_on(async {
                let (dropped, polls) = (Rc::clone(&dropped), Rc::clone(&polls));
                let local = OnDrop(move || dropped.set(true));
                let counted = Rc::clone(&polls);
                task = Some(spawn_local(async move {
                    let _local = local;
                    loop {
                        counted.set(counted.get() + 1);
                        yield_now().await;
                    }
                }));
                while polls.get() == 0 {
                    yield_now().await;
                }
            });
            let before = polls.get();
            let aside = thread::spawn(move || {
                if runs_there {
                    runtime.block_on(async {
                        for _ in 0..100 {
                            yield_now().await;
                        }
                    });
                    assert_eq!(runtime.handle().live_task_count(), 1, "it waits for its thread");
                }
                drop(runtime);
            });
            aside.join().expect("no panic leaves the runtime");
            assert_eq!(polls.get(), before, "polled on its thread alone");
            assert!(!dropped.get(), "leaked, not dropped on the wrong thread");
            let task = task.expect("spawned");
            let Poll::Ready(Err(error)) = poll_once(task) else { panic!("the task is over") };
            assert!(error.is_cancelled(), "{error}");
        }
    });
}

/// Goal: local tasks are dropped, not leaked, where they can be. Method: the runtime ends on the
/// thread that spawned them, with and without having polled them.
#[test]
fn local_tasks_at_shutdown() {
    against_hang(|| {
        let dropped = Rc::new(RefCell::new(Vec::new()));
        let runtime = runtime(Flavor::UserLevel);
        runtime.block_on(async {
            for n in 0..2 {
                let dropped = Rc::clone(&dropped);
                spawn_local(OnDrop(move || dropped.borrow_mut().push(n))).detach();
                if n == 0 {
                    yield_now().await;
                }
            }
        });
        drop(runtime);
        dropped.borrow_mut().sort_unstable();
        assert_eq!(*dropped.borrow(), [0, 1]);
    });
}

/// Goal: a runtime in a thread's variable ends with the thread. Method: a thread that has used one of each flavor.
#[test]
fn runtimes_of_a_thread_end_with_it() {
    thread_local! {
        static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
    }
    against_hang(|| {
        for flavor in FLAVORS {
            let use_one = move || {
                RUNTIME.with(|kept| {
                    let mut kept = kept.borrow_mut();
                    let runtime = kept.insert(runtime(flavor));
                    runtime.block_on(async { spawn(yield_now()).await.expect("it runs") });
                    runtime.spawn(pending::<()>()).detach();
                });
            };
            thread::spawn(use_one).join().expect("no panic");
        }
    });
}
