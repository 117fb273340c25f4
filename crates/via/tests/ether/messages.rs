//! Messages over Ethernet: ranks in one process, with NICs at both ends of a veth pair in turns.

use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::{
    ether::{Ether, EtherWire},
    message::{Communicator, Endpoint},
    protocol::{Config as Protocol, Mode},
    software_nic::SoftwareNic,
    world::local,
};

use crate::{
    namespace::with_veth,
    nics::{Settings, far_nic, near_nic},
};

/// A bound for each test, longer than it takes on a busy machine.
const BOUND: Duration = Duration::from_secs(40);

async fn endpoints(nics: Vec<Ether>) -> Vec<Endpoint<SoftwareNic<EtherWire>>> {
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
                Endpoint::join_over(&server, &world, nic, Protocol::default(), deadline).await
            })
        })
        .collect();
    let mut endpoints = Vec::new();
    for join in joins {
        endpoints.push(join.await.expect("no panic").expect("all ranks are connected"));
    }
    endpoints
}

/// Runs `body` on each flavor, in a thread with a bound.
fn with_ranks<F: Future<Output = ()> + Send + 'static>(
    test: &str,
    size: usize,
    body: fn(Vec<Communicator<Ether>>) -> F,
) {
    with_veth(test, |far| {
        for flavor in [Flavor::UserLevel, Flavor::Hybrid] {
            let settings = Settings::default();
            let nic = |at| if at % 2 == 0 { near_nic(settings) } else { far_nic(far, settings) };
            let nics: Vec<_> = (0..size).map(nic).collect();
            let (sender, receiver) = channel();
            let thread = thread::spawn(move || {
                let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
                runtime.block_on(async move {
                    let endpoints = endpoints(nics).await;
                    body(endpoints.iter().map(Endpoint::communicator).collect()).await;
                });
                let _ = sender.send(());
            });
            match receiver.recv_timeout(BOUND) {
                Err(RecvTimeoutError::Timeout) => panic!("{flavor:?}: it hangs"),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => thread.join().expect("no panic"),
            }
        }
    });
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251 + seed).to_le_bytes()[0]).collect()
}

/// Goal: messages of all lengths arrive whole and in order. Method: there and back, with pauses in which both ranks fall
/// asleep.
#[test]
fn messages_go_there_and_back() {
    with_ranks("messages::messages_go_there_and_back", 2, |ranks| async move {
        let [one, other] = <[_; 2]>::try_from(ranks).unwrap_or_else(|_| panic!("two ranks"));
        let lengths = [0, 1, 8, 63, 64, 1000, 1473, 4096, 16_384, 70_000, 1 << 20];
        let echo = vigie_runtime::spawn(async move {
            for tag in 0..33 {
                let message = other.receive(0, tag).await.expect("a message");
                other.send(0, tag, &message.bytes).await.expect("sent");
            }
        });
        let timers = Server::current().expect("inside a runtime").timers().clone();
        for (tag, length) in (0..33).zip(lengths.into_iter().cycle()) {
            let sent = pattern(length, length);
            one.send(1, tag, &sent).await.expect("sent");
            let back = one.receive(1, tag).await.expect("a message");
            assert!(back.bytes == sent, "{length} bytes");
            if tag % 4 == 0 {
                let soon = Instant::now() + Duration::from_millis(3);
                timers.wait(soon).await.expect("the server lives");
            }
        }
        echo.await.expect("no panic");
    });
}

/// Goal: many ranks exchange messages at once, some over the wire and some on one interface. Method:
/// five, all to all, several rounds.
#[test]
fn all_to_all() {
    with_ranks("messages::all_to_all", 5, |ranks| async move {
        let tasks: Vec<_> = (0_u32..)
            .zip(ranks)
            .map(|(own, all)| {
                vigie_runtime::spawn(async move {
                    for round in 0..10_u32 {
                        let length = 1000 * usize::try_from(round).expect("few");
                        let mut sends = Vec::new();
                        for rank in (0..5).filter(|rank| *rank != own) {
                            let bytes = pattern(length, usize::try_from(own).expect("few"));
                            let sent = all.start_send(rank, round, Mode::Standard, bytes);
                            sends.push(sent.expect("taken"));
                        }
                        for rank in (0..5).filter(|rank| *rank != own) {
                            let found = all.receive(rank, round).await.expect("a message");
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
    });
}
