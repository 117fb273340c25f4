//! Signals of simulated processes: graceful shutdowns, and defaults.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use vigie_detect::net::{TcpListener, TcpStream};
use vigie_runtime::{
    signal::{
        self,
        unix::{SignalKind, signal},
    },
    simulation::{self, FaultKind, Node, RandomFaults, TraceEventKind, World},
    spawn, time,
};

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A service that counts its connections and its orderly ends, and ends itself for SIGTERM or Ctrl-C.
#[derive(Clone, Default)]
struct Counts {
    served: Arc<AtomicU32>,
    ended: Arc<AtomicU32>,
}

impl Counts {
    async fn serve(self) -> io::Result<()> {
        let listener = TcpListener::bind("0.0.0.0:7").await?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let accepting = self.clone();
        let accepting = spawn(async move {
            while listener.accept().await.is_ok() {
                accepting.served.fetch_add(1, Ordering::Relaxed);
            }
        });
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        accepting.abort();
        self.ended.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn now(&self) -> (u32, u32) {
        (self.served.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed))
    }
}

fn faults(world: &World) -> Vec<String> {
    let fault = |kind: &TraceEventKind| match kind {
        TraceEventKind::Fault { index, what } => Some(format!("{index} {what}")),
        _ => None,
    };
    world.events().iter().filter_map(|event| fault(&event.kind)).collect()
}

/// Goal: a signal reaches the listeners of its node alone, and a service shuts down in order; it is recorded as a fault. Method: two
/// such services, of which one is terminated, connected to, restarted and interrupted; by eight seeds, which the comparison of two runs
/// includes.
#[test]
fn a_service_shuts_down_in_order() {
    simulation::for_each_seed(8, |world| {
        world.record(100_000);
        let counts = [Counts::default(), Counts::default()];
        let start = |world: &mut World, name: &str, counts: &Counts| {
            let counts = counts.clone();
            world.node(name).run(move || counts.clone().serve())
        };
        let one = start(world, "one", &counts[0]);
        let _other = start(world, "other", &counts[1]);
        world.block_on(async {
            let connect = async |name: &str| {
                time::sleep(secs(1)).await;
                let connected = TcpStream::connect((name, 7)).await.is_ok();
                time::sleep(secs(1)).await;
                connected
            };
            assert!(connect("one").await);
            one.signal(SignalKind::terminate());
            assert!(!connect("one").await);
            assert!(connect("other").await);
            one.restart();
            assert!(connect("one").await);
            one.signal(SignalKind::interrupt());
            assert!(!connect("one").await);
        });
        assert_eq!(counts.map(|it| it.now()), [(2, 2), (1, 0)]);
        assert_eq!(faults(world), ["0 SIGTERM", "1 restart", "2 SIGINT"]);
    });
}

/// Returns how often a task of the node has run within ten seconds.
async fn pulse(count: &AtomicU32) -> u32 {
    let before = count.load(Ordering::Relaxed);
    time::sleep(secs(10)).await;
    count.load(Ordering::Relaxed) - before
}

/// Goal: without a listener, a signal has its default action. Method: one that ends the process, one that stops it, one that continues it,
/// and those that do nothing, to a node that counts seconds; the same to a node that has listened to one of them once.
#[test]
fn signals_without_a_listener_have_their_default() {
    let mut world = World::new(3);
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let node = world.node("node").run(move || {
        let count = Arc::clone(&counted);
        async move {
            loop {
                time::sleep(secs(1)).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
            #[expect(unreachable_code, reason = "it is the type of a program")]
            Ok::<(), io::Error>(())
        }
    });
    let is_alive = async |node: &Node, kind: SignalKind| {
        node.signal(kind);
        pulse(&count).await > 5
    };
    world.block_on(async {
        for ignored in [libc::SIGCHLD, libc::SIGPIPE, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT] {
            assert!(is_alive(&node, SignalKind::from_raw(ignored)).await, "{ignored}");
        }
        for stopping in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN] {
            assert!(!is_alive(&node, SignalKind::from_raw(stopping)).await, "{stopping}");
            assert!(is_alive(&node, SignalKind::from_raw(libc::SIGCONT)).await, "{stopping}");
        }
        for ending in [libc::SIGTERM, libc::SIGKILL, libc::SIGUSR1] {
            assert!(!is_alive(&node, SignalKind::from_raw(ending)).await, "{ending}");
            // It has no process now, so nothing of it is left for the next one.
            node.signal(SignalKind::from_raw(ending));
            node.restart();
            assert!(pulse(&count).await > 5, "{ending}");
        }
        // Also once the listener is gone.
        let listened =
            node.spawn(async { time::timeout(secs(1), signal::ctrl_c()).await.is_err() });
        assert!(listened.await.expect("no panic"));
        assert!(is_alive(&node, SignalKind::INTERRUPT).await);
    });
}

/// Goal: a drawn SIGTERM asks a service to end, and its end starts the service again, whether it had listened or not; the
/// restart is no fault of its own. Method: a service that ends in order and one that does not listen, by 20 seeds; each
/// fault of the record is the signal.
#[test]
fn a_drawn_sigterm_ends_in_a_restart() {
    let (mut orderly, mut sent) = (0, 0);
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.record(100_000);
        let counts = Counts::default();
        let listening = counts.clone();
        let listening = world.node("listening").run(move || listening.clone().serve());
        let deaf = world.node("deaf").run(|| async {
            let listener = TcpListener::bind("0.0.0.0:7").await?;
            loop {
                listener.accept().await?;
            }
            #[expect(unreachable_code, reason = "it is the type of a program")]
            Ok::<(), io::Error>(())
        });
        world.block_on(async {
            let faults = RandomFaults::new([&listening, &deaf]).only([FaultKind::Terminate]);
            faults.every(FaultKind::Terminate, secs(5)).down_max(1).run().await;
            time::sleep(secs(1)).await;
            for name in ["listening", "deaf"] {
                assert!(TcpStream::connect((name, 7)).await.is_ok(), "seed {seed}: {name}");
            }
        });
        let all = faults(&world);
        assert!(all.iter().all(|fault| fault.ends_with(" SIGTERM")), "seed {seed}: {all:?}");
        sent += all.len();
        orderly += counts.now().1;
    }
    let orderly = usize::try_from(orderly).expect("it is small");
    assert!(orderly > 20 && sent > orderly + 20, "{orderly} of {sent}");
}
