//! A process that forks without exec: what becomes of the runtime in the child, where no thread of it runs.

use std::{
    env, fs,
    future::{Future, poll_fn},
    os::unix::net::UnixStream,
    pin::Pin,
    process,
    task::Poll,
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net;
use vigie_runtime::{Flavor, Runtime, spawn, spawn_blocking, time::sleep, yield_now};

use crate::{flavors::FLAVORS, forked::ends_in_fork, kit::child::in_child};

fn build(flavor: Flavor) -> Runtime {
    // A wait for threads that are not there lasts an hour.
    let builder = Runtime::builder().flavor(flavor).workers(2);
    builder.shutdown_timeout(Duration::from_secs(3600)).build().expect("a runtime")
}

/// Goal: a forked child can drop the runtime that it has inherited, busy or not, and the parent's goes on.
/// Method: fork beside a task that waits and an idle blocking thread; in the child drop the runtime, or end
/// it with a time-out; then use it in the parent.
#[test]
fn a_forked_child_leaves_the_runtime() {
    in_child("fork::a_forked_child_leaves_the_runtime", || {
        for flavor in FLAVORS {
            for is_dropped in [true, false] {
                let runtime = build(flavor);
                let (send, receive) = tokio::sync::oneshot::channel();
                let waiting = runtime.spawn(receive);
                runtime.block_on(async {
                    spawn_blocking(|| ()).await.expect("it runs");
                    spawn(yield_now()).await.expect("it runs");
                });
                let mut inherited = Some(runtime);
                let ended = ends_in_fork(|| {
                    let runtime = inherited.take().expect("it is there");
                    if is_dropped {
                        drop(runtime);
                    } else {
                        runtime.shutdown_timeout(Duration::from_secs(3600)).expect("nothing to do");
                    }
                });
                assert!(ended, "{flavor}: the child hangs or panics");
                let runtime = inherited.expect("the parent has it");
                send.send(3).expect("the task waits");
                assert_eq!(runtime.block_on(waiting).expect("it ends"), Ok(3), "{flavor}");
                drop(runtime);
            }
        }
    });
}

/// Goal: the metrics socket of the parent outlives a child that drops its copy. Method: drop it there, and
/// ask here.
#[test]
fn a_forked_child_leaves_the_metrics_socket() {
    in_child("fork::a_forked_child_leaves_the_metrics_socket", || {
        let path = env::temp_dir().join(format!("vigie-test-{}-fork.sock", process::id()));
        let builder = Runtime::builder().workers(1).metrics_socket(&path);
        let mut inherited = Some(builder.build().expect("a runtime"));
        assert!(ends_in_fork(|| drop(inherited.take())), "the child hangs or panics");
        assert!(fs::exists(&path).expect("the folder is there"), "the child has removed it");
        // Refused by a socket whose server was stopped.
        drop(UnixStream::connect(&path).expect("it is served"));
        drop(inherited);
        assert!(!fs::exists(&path).expect("the folder is there"));
    });
}

/// Polls `future` once. Returns whether it is pending.
async fn is_pending<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Forks while a connection, a timer, a task and a closure are waited for, and lets the child drop all of
/// that; then everything happens in the parent.
async fn drop_in_a_child() {
    let (mut near, mut far) = net::UnixStream::pair().expect("a pair");
    let (send, receive) = tokio::sync::oneshot::channel();
    let waiting = spawn(receive);
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let closure = spawn_blocking(move || held.recv().is_err());
    let mut reading = Box::pin(async move {
        let mut bytes = [0; 4];
        near.read_exact(&mut bytes).await.map(|_| bytes)
    });
    let mut sleeping = Box::pin(sleep(Duration::from_secs(3600)));
    assert!(is_pending(&mut reading).await && is_pending(&mut sleeping).await);
    // The task waits, and its sender's drop would wake it.
    yield_now().await;
    let mut inherited = Some((reading, sleeping, waiting, closure, send));
    assert!(ends_in_fork(|| drop(inherited.take())), "the child hangs or panics");

    let (reading, _sleeping, waiting, closure, send) = inherited.expect("it is ours");
    far.write_all(b"ahoy").await.expect("there is room");
    assert_eq!(reading.await.expect("it is open"), *b"ahoy");
    send.send(3).expect("the task waits");
    assert_eq!(waiting.await.expect("it ends"), Ok(3));
    drop(hold);
    assert!(closure.await.expect("it ends"));
}

/// Goal: sockets, timers, handles of tasks and senders that a forked child drops change nothing for the
/// parent, whether the fork is in `block_on` or in a task. Method: drop them there, and use them here.
#[test]
fn a_forked_child_drops_what_it_holds() {
    in_child("fork::a_forked_child_drops_what_it_holds", || {
        for flavor in FLAVORS {
            let runtime = build(flavor);
            runtime.block_on(drop_in_a_child());
            runtime.block_on(runtime.spawn(drop_in_a_child())).expect("it ends");
        }
    });
}

/// Goal: a forked child that uses the runtime is told so, and does not wait for threads that it does not have.
/// Method: in the child, each call that would start something; its panic is awaited.
#[test]
fn a_forked_child_is_refused() {
    in_child("fork::a_forked_child_is_refused", || {
        for flavor in FLAVORS {
            let runtime = build(flavor);
            let calls: [(&str, &dyn Fn()); 3] = [
                ("block_on", &|| runtime.block_on(async {})),
                ("spawn", &|| runtime.spawn(async {}).detach()),
                ("spawn_blocking", &|| runtime.spawn_blocking(|| ()).detach()),
            ];
            for (name, call) in calls {
                let refused = ends_in_fork(|| {
                    let call = std::panic::AssertUnwindSafe(call);
                    let payload = std::panic::catch_unwind(call).expect_err("it panics");
                    let text = payload.downcast_ref::<&str>().expect("a message");
                    assert!(text.contains("forked"), "{text}");
                });
                assert!(refused, "{flavor}: `{name}` hangs, or is not refused");
            }
            assert_eq!(runtime.block_on(async { 3 }), 3, "{flavor}: the parent goes on");
        }
    });
}
