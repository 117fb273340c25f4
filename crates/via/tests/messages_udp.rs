//! Messages over UDP: ranks in one process, each with a NIC of its own on the loopback interface.

use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use vigie_detect::Instant;
use vigie_runtime::{Flavor, Runtime};
use vigie_via::{
    message::{Communicator, Endpoint},
    protocol::{Config as Protocol, EngineEvent, MessageEngine, Mode, Pattern, SendState},
    software_nic::{Config, Secret},
    udp::Udp,
    vi::Provider,
    world::local,
};

/// A bound for each test, longer than it takes on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

fn nic() -> Udp {
    let address = "127.0.0.1:0".parse().expect("an address");
    Udp::bind(address, Secret::new([6; 16]), Config::default()).expect("a NIC")
}

async fn endpoints(size: u32) -> Vec<Endpoint<Udp>> {
    let server = vigie_detect::Server::current().expect("inside a runtime");
    let (_, worlds) = local(&server, size).expect("a world");
    let joins: Vec<_> = worlds
        .into_iter()
        .map(|world| {
            let server = server.clone();
            vigie_runtime::spawn(async move {
                let deadline = Instant::now() + BOUND;
                Endpoint::join_over(&server, &world, nic(), Protocol::default(), deadline).await
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
    size: u32,
    body: fn(Vec<Communicator<Udp>>) -> F,
) {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid] {
        let (sender, receiver) = channel();
        let thread = thread::spawn(move || {
            let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
            runtime.block_on(async move {
                let endpoints = endpoints(size).await;
                body(endpoints.iter().map(Endpoint::communicator).collect()).await;
            });
            let _ = sender.send(());
        });
        match receiver.recv_timeout(BOUND) {
            Err(RecvTimeoutError::Timeout) => panic!("{flavor:?}: it hangs"),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => thread.join().expect("no panic"),
        }
    }
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251 + seed).to_le_bytes()[0]).collect()
}

/// Goal: messages of all lengths arrive whole and in order. Method: there and back, with pauses in which both
/// ranks fall asleep.
#[test]
fn messages_go_there_and_back() {
    with_ranks(2, |ranks| async move {
        let [one, other] = <[_; 2]>::try_from(ranks).unwrap_or_else(|_| panic!("two ranks"));
        let lengths = [0, 1, 8, 63, 64, 1000, 1473, 4096, 16_384, 70_000, 1 << 20];
        let echo = vigie_runtime::spawn(async move {
            for tag in 0..33 {
                let message = other.receive(0, tag).await.expect("a message");
                other.send(0, tag, &message.bytes).await.expect("sent");
            }
        });
        let timers = vigie_detect::Server::current().expect("inside a runtime").timers().clone();
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

/// Goal: a message that arrives together with the packet that establishes the connection is not lost,
/// whichever call takes both. Method: two engines by hand. The answerer accepts and does not poll until
/// the other is connected and has sent; then it receives in each of the ways that take arrivals.
#[test]
fn a_message_comes_with_its_connection() {
    let engine = |rank| MessageEngine::new(nic(), rank, 2, Protocol::default()).expect("an engine");
    let whole = pattern(1000, 7);
    let from = Pattern { context: 0, source: Some(0), tag: Some(1) };
    for way in 0..3 {
        let (mut one, mut other) = (engine(0), engine(1));
        other.nic_mut().listen(b"messages").expect("no other listener");
        let address = other.nic().address();
        one.connect(1, &address, b"messages", Instant::MAX).expect("idle");
        let bound = Instant::now() + BOUND;
        let mut is_accepted = false;
        loop {
            assert!(Instant::now() < bound, "they do not meet");
            one.progress(Instant::now());
            if !is_accepted && let Some(EngineEvent::Requested { request, .. }) = other.event() {
                other.accept(request, 0).expect("it is asked for");
                is_accepted = true;
            }
            match one.event() {
                Some(EngineEvent::Connected { rank: 1 }) => break,
                None => {}
                Some(event) => panic!("{event:?}"),
            }
        }
        let sent = one.send_bytes(1, 0, 1, Mode::Standard, &whole);
        assert_eq!(sent.expect("connected"), SendState::Done);
        one.progress(Instant::now());
        let mut found = vec![0; whole.len()];
        let request = (way == 1).then(|| other.post_receive(from));
        loop {
            assert!(Instant::now() < bound, "it is lost, by way {way}");
            let done = match request {
                Some(request) => other.poll_receive(request, &mut found[..]).is_ready(),
                None if way == 2 && other.probe(from).is_none() => false,
                None => other.receive_now(from, &mut found[..]).is_some(),
            };
            if done {
                break;
            }
            one.progress(Instant::now());
        }
        assert_eq!(found, whole);
    }
}

/// Goal: many ranks exchange messages at once. Method: five ranks, all to all, several rounds.
#[test]
fn all_to_all() {
    with_ranks(5, |ranks| async move {
        let tasks: Vec<_> = (0_u32..)
            .zip(ranks)
            .map(|(own, all)| {
                vigie_runtime::spawn(async move {
                    for round in 0..10_u32 {
                        let mut sends = Vec::new();
                        let length = 1000 * usize::try_from(round).expect("few");
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
