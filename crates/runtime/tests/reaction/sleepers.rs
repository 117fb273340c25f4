//! Tasks that sleep in the kernel delay no computation: other threads run it in their place.

use std::{
    hint::black_box,
    io::{Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use vigie_runtime::{JoinHandle, Runtime, spawn, yield_now};

use crate::{kit::guard::against_hang, settle};

const SLEEPERS: usize = 60;
const COMPUTERS: u64 = 30;

/// Tasks inside a blocking call each.
struct Sleepers {
    peers: Vec<StdUnixStream>,
    tasks: Vec<JoinHandle<()>>,
    woken: Arc<AtomicUsize>,
}

impl Sleepers {
    /// Starts them, and waits until each is inside its call, for which it needs a thread of its own.
    fn start(runtime: &Runtime) -> Self {
        let inside = Arc::new(AtomicUsize::new(0));
        let woken = Arc::new(AtomicUsize::new(0));
        let (mut peers, mut tasks) = (Vec::new(), Vec::new());
        for _ in 0..SLEEPERS {
            let (mut stream, peer) = StdUnixStream::pair().expect("a pair of sockets");
            let (inside, woken) = (Arc::clone(&inside), Arc::clone(&woken));
            peers.push(peer);
            tasks.push(runtime.spawn(async move {
                inside.fetch_add(1, Ordering::SeqCst);
                stream.read_exact(&mut [0]).expect("a byte");
                woken.fetch_add(1, Ordering::SeqCst);
            }));
        }
        settle::until(|| inside.load(Ordering::SeqCst) == SLEEPERS);
        Self { peers, tasks, woken }
    }

    /// Ends their calls. Before, none of them must have ended.
    fn release(mut self, runtime: &Runtime) {
        assert_eq!(self.woken.load(Ordering::SeqCst), 0, "a call has ended by itself");
        for peer in &mut self.peers {
            peer.write_all(&[1]).expect("open");
        }
        for task in self.tasks {
            runtime.block_on(task).expect("no panic");
        }
    }
}

/// Uses up what a task may use with priority, some times over.
async fn compute(seed: u64) -> u64 {
    let mut sum = seed;
    for _ in 0..5 {
        for step in 0..200_000 {
            sum = black_box(sum.wrapping_mul(31).wrapping_add(step));
        }
        yield_now().await;
    }
    sum
}

/// A task that computes, and spawns others that do and of which one is spawned by the other.
fn start_computer(runtime: &Runtime, seed: u64) -> JoinHandle<()> {
    runtime.spawn(async move {
        compute(seed).await;
        let child = spawn(async move {
            compute(seed).await;
            spawn(compute(seed)).await.expect("no panic");
        });
        child.await.expect("no panic");
    })
}

/// Goal: computation and what it spawns end while more tasks sleep in the kernel than there are workers. Method: 60
/// tasks in a blocking `read`, which the test ends after all the others are done; of these some have begun before.
#[test]
fn computation_beside_sleepers() {
    against_hang(|| {
        let runtime = Runtime::builder().workers(2).build().expect("a runtime");
        let before: Vec<_> = (0..COMPUTERS).map(|seed| start_computer(&runtime, seed)).collect();
        let sleepers = Sleepers::start(&runtime);
        let after: Vec<_> = (0..COMPUTERS).map(|seed| start_computer(&runtime, seed)).collect();
        for task in before.into_iter().chain(after) {
            runtime.block_on(task).expect("no panic");
        }
        sleepers.release(&runtime);
    });
}
