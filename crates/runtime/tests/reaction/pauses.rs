//! Tasks that wait for peers pause between two bursts of polls. What runs meanwhile must not keep them.

use std::{
    future::poll_fn,
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use vigie_detect::Waiter;
use vigie_runtime::{Flavor, Runtime, spawn};

use crate::kit::guard::against_hang;

/// More than any machine has cores: such a wait gives the core away after its first poll.
const PEERS: u32 = 1_000;

const ROUNDS: usize = 50;

/// Goal: a task that pauses goes on although its worker takes up one that computes without end, while another worker has nothing to
/// do and watches. Method: a task that waits and, from its first poll, spawns one that computes until the second poll has come.
#[test]
fn a_pause_ends_beside_a_task_that_computes() {
    against_hang(|| {
        let runtime = Runtime::builder().flavor(Flavor::Hybrid).workers(2).build().expect("built");
        for _ in 0..ROUNDS {
            let (server, is_over) = (runtime.server().clone(), Arc::new(AtomicBool::new(false)));
            let waiting = runtime.spawn(async move {
                let (mut waiter, mut computing) = (Waiter::at(&server, PEERS, 8), None);
                poll_fn(|cx| {
                    if computing.is_some() {
                        is_over.store(true, Ordering::SeqCst);
                        return Poll::Ready(());
                    }
                    assert!(waiter.poll_spin(cx, || None::<()>).is_pending());
                    let is_over = Arc::clone(&is_over);
                    computing = Some(spawn(async move {
                        while !is_over.load(Ordering::SeqCst) {
                            spin_loop();
                        }
                    }));
                    Poll::Pending
                })
                .await;
                computing.expect("spawned").await
            });
            runtime.block_on(waiting).expect("no panic").expect("no panic");
        }
    });
}
