//! A task that blocks its thread, and then panics: which tasks that delays on each flavor.

use std::{
    io::Write,
    os::unix::net::UnixStream as StdUnixStream,
    sync::{Arc, Mutex, mpsc},
    thread,
};

use tokio::io::AsyncReadExt;
use vigie_detect::net::UnixStream;
use vigie_runtime::{Flavor, Runtime};

use super::alive::assert_alive;
use crate::{flavors::FLAVORS, kit::guard::against_hang};

/// Goal: while a task blocks its thread, the event of another one is delivered on the hybrid and the
/// kernel-level flavor, and waits on the user-level one, which has one thread; a panic of the first harms
/// no other task. Method: the task makes the event and blocks until the other one has had it, or, on the user-level
/// flavor, until a foreign thread lets it go; then it panics.
#[test]
fn a_task_that_blocks_and_panics() {
    for flavor in FLAVORS {
        against_hang(move || {
            let runtime = Runtime::builder().flavor(flavor).workers(1).build().expect("a runtime");
            let order = Arc::new(Mutex::new(Vec::new()));
            let log = |what: &'static str| {
                let order = Arc::clone(&order);
                move || order.lock().expect("no panic").push(what)
            };
            let (note_event, note_end) = (log("event"), log("end"));
            let (near, mut far) = StdUnixStream::pair().expect("a pair of sockets");
            let (release, released) = mpsc::channel::<()>();
            let (block, blocks) = mpsc::channel::<()>();
            let by_event = release.clone();
            let waiting = runtime.spawn(async move {
                let mut near = UnixStream::from_std(near).expect("watched");
                near.read_u8().await.expect("a byte");
                note_event();
                // The other one is over, on the user-level flavor.
                let _ = by_event.send(());
            });
            let blocking = runtime.spawn(async move {
                far.write_all(&[1]).expect("room");
                block.send(()).expect("the foreign thread listens");
                released.recv().expect("the test releases it");
                note_end();
                panic!("planted: after blocking");
            });
            let foreign = thread::spawn(move || {
                blocks.recv().expect("it blocks");
                if flavor == Flavor::UserLevel {
                    release.send(()).expect("it waits");
                }
            });
            runtime.block_on(async {
                assert!(blocking.await.expect_err("planted").is_panic());
                waiting.await.expect("it has had its event");
            });
            foreign.join().expect("no panic");
            let expected = match flavor {
                Flavor::UserLevel => ["end", "event"],
                _ => ["event", "end"],
            };
            assert_eq!(*order.lock().expect("no panic"), expected, "{flavor}");
            assert_alive(&runtime);
        });
    }
}
