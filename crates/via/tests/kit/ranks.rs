//! Ranks in one process, each with a NIC of its own that reaches those of the others, and what they must be able to do.

use std::time::Duration;

use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::{
    message::{Communicator, Endpoint},
    protocol::{EngineConfig, SendMode},
    vi::Provider,
    world::local,
};

use crate::{kit::guard::against_hang, pattern::pattern};

/// A bound for each test, longer than it takes on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// Connects ranks with a NIC each, all in the running task's runtime.
pub(crate) async fn endpoints<P: Provider>(nics: Vec<P>, config: EngineConfig) -> Vec<Endpoint<P>> {
    let server = Server::current().expect("inside a runtime");
    let size = u32::try_from(nics.len()).expect("few");
    let (_, worlds) = local(&server, size).expect("a world");
    let joins: Vec<_> = worlds
        .into_iter()
        .zip(nics)
        .map(|(world, nic)| {
            let server = server.clone();
            vigie_runtime::spawn(async move {
                let deadline = Instant::now() + BOUND;
                Endpoint::join_over(&server, &world, nic, config, deadline).await
            })
        })
        .collect();
    let mut endpoints = Vec::new();
    for join in joins {
        endpoints.push(join.await.expect("no panic").expect("all ranks are connected"));
    }
    endpoints
}

/// Runs `body` with a rank for each of the NICs that `nics` makes, on each flavor, in a thread with a bound.
pub(crate) fn with_ranks<P: Provider, F: Future<Output = ()> + Send + 'static>(
    nics: impl Fn() -> Vec<P>,
    body: fn(Vec<Communicator<P>>) -> F,
) {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid] {
        let nics = nics();
        println!("{flavor:?}");
        against_hang(move || {
            let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
            runtime.block_on(async move {
                let endpoints = endpoints(nics, EngineConfig::default()).await;
                body(endpoints.iter().map(Endpoint::communicator).collect()).await;
            });
        });
    }
}

/// Messages of all lengths go there and back between two ranks, with pauses in which both fall asleep.
pub(crate) async fn there_and_back<P: Provider>(ranks: Vec<Communicator<P>>) {
    let [one, other] = <[_; 2]>::try_from(ranks).unwrap_or_else(|_| panic!("two ranks"));
    let lengths = [0, 1, 8, 63, 64, 1000, 1473, 4096, 16_384, 70_000, 1 << 20];
    let echo = vigie_runtime::spawn(async move {
        for tag in 0..33 {
            let message = other.recv(0, tag).await.expect("a message");
            other.send(0, tag, &message.bytes).await.expect("sent");
        }
    });
    let timers = Server::current().expect("inside a runtime").timers().clone();
    for (tag, length) in (0..33).zip(lengths.into_iter().cycle()) {
        let sent = pattern(length, length);
        one.send(1, tag, &sent).await.expect("sent");
        let back = one.recv(1, tag).await.expect("a message");
        assert!(back.bytes == sent, "{length} bytes");
        if tag % 4 == 0 {
            let soon = Instant::now() + Duration::from_millis(3);
            timers.wait(soon).await.expect("the server lives");
        }
    }
    echo.await.expect("no panic");
}

/// Five ranks exchange messages, all to all, in several rounds.
pub(crate) async fn all_to_all<P: Provider>(ranks: Vec<Communicator<P>>) {
    let tasks: Vec<_> = (0_u32..)
        .zip(ranks)
        .map(|(own, all)| {
            vigie_runtime::spawn(async move {
                for round in 0..10_u32 {
                    let length = 1000 * usize::try_from(round).expect("few");
                    let mut sends = Vec::new();
                    for rank in (0..5).filter(|rank| *rank != own) {
                        let bytes = pattern(length, usize::try_from(own).expect("few"));
                        let sent = all.start_send(rank, round, SendMode::Standard, bytes);
                        sends.push(sent.expect("taken"));
                    }
                    for rank in (0..5).filter(|rank| *rank != own) {
                        let found = all.recv(rank, round).await.expect("a message");
                        let seed = usize::try_from(rank).expect("few");
                        assert!(found.bytes == pattern(length, seed), "{rank} to {own}");
                    }
                    for mut sent in sends {
                        sent.wait().await.expect("sent");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}
