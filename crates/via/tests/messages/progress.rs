//! Programs that are legal by MPI 5.0, section 3.5, and end only if messages move by themselves: a rank waits for one
//! request while another must go on.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use tokio::join;
use vigie_via::{message::Communicator, protocol::EngineConfig, shm::Shm};

use super::hosts::{scarce, with_ranks};
use crate::pattern::pattern;

/// Longer than what is sent before a receive has matched it.
const LONG: usize = 1 << 20;

/// All ranks tell rank 0 that they are there, and wait for its answer.
async fn barrier(all: &Communicator<Shm>) {
    if all.rank() > 0 {
        all.send(0, 99, b"here").await.expect("sent");
        all.recv(0, 99).await.expect("an answer");
        return;
    }
    for rank in 1..all.size() {
        all.recv(rank, 99).await.expect("it is there");
    }
    for rank in 1..all.size() {
        all.send(rank, 99, b"on").await.expect("sent");
    }
}

/// Goal: a receive that is posted takes its message, although its owner waits for something else first. Method: each of
/// two ranks posts a long receive, sends a long message, and then waits; with a barrier in between; with buffers that the
/// receiver reads itself.
#[test]
fn posted_receives_take_their_messages() {
    for config in [EngineConfig::default(), scarce()] {
        with_ranks(2, config, |host, ranks| async move {
            let mut tasks = Vec::new();
            for all in ranks {
                tasks.push(host.spawn(async move {
                    let peer = 1 - all.rank();
                    let mut request = all.start_recv(peer, 1);
                    all.send(peer, 1, &pattern(LONG, LONG)).await.expect("sent");
                    assert!(request.wait().await.expect("received").bytes == pattern(LONG, LONG));

                    let mut request = all.start_recv(peer, 2);
                    all.send_sync(peer, 2, &pattern(LONG, 3)).await.expect("sent");
                    barrier(&all).await;
                    assert!(request.wait().await.expect("received").bytes == pattern(LONG, 3));

                    let mut request = all.start_recv(peer, 3);
                    let memory = all.buffer(LONG).expect("memory");
                    memory.write(0, &pattern(LONG, 4)).expect("inside");
                    let whole = (&memory, 0, LONG as u64);
                    let mode = vigie_via::protocol::SendMode::Standard;
                    let mut sent = all.start_send_memory(peer, 3, mode, whole).expect("begins");
                    sent.wait().await.expect("sent");
                    assert!(request.wait().await.expect("received").bytes == pattern(LONG, 4));
                }));
            }
            for task in tasks {
                task.await.expect("no panic");
            }
        });
    }
}

/// Goal: the same for a receive into a buffer whose future was polled and is then left alone, and for a rank that sends
/// to itself. Method: one poll, then a long send; 20 MiB.
#[test]
fn receives_that_are_left_alone_take_their_messages() {
    with_ranks(2, EngineConfig::default(), |host, ranks| async move {
        let mut tasks = Vec::new();
        for all in ranks {
            tasks.push(host.spawn(async move {
                let peer = 1 - all.rank();
                let mut buffer = vec![0; LONG];
                {
                    let mut receive = pin!(all.recv_into(peer, 1, &mut buffer[..]));
                    let first = poll_fn(|cx| Poll::Ready(receive.as_mut().poll(cx))).await;
                    assert!(first.is_pending());
                    all.send(peer, 1, &pattern(LONG, 5)).await.expect("sent");
                    receive.await.expect("received");
                }
                assert!(buffer == pattern(LONG, 5));

                let mut request = all.start_recv(all.rank(), 2);
                all.send(all.rank(), 2, &pattern(20 << 20, 6)).await.expect("sent");
                assert!(request.wait().await.expect("received").bytes == pattern(20 << 20, 6));
            }));
        }
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

/// Goal: messages that are not received hold up no others: in another communicator, or with a receive that is posted.
/// Method: far more than are accepted, sent one after the other; then a barrier in a duplicate, and only then they are
/// received, in order.
#[test]
fn a_flood_holds_no_barrier_up() {
    with_ranks(2, EngineConfig::default(), |_, ranks| async move {
        let floods = 20_000_u32;
        let other: Vec<_> = ranks.iter().map(|all| all.duplicate().expect("a context")).collect();
        let send = async {
            for number in 0..floods {
                ranks[0].send(1, 0, &number.to_le_bytes()).await.expect("sent");
            }
            barrier(&other[0]).await;
        };
        let receive = async {
            barrier(&other[1]).await;
            for number in 0..floods {
                let message = ranks[1].recv(0, 0).await.expect("a message");
                assert_eq!(message.bytes, number.to_le_bytes(), "in order");
            }
        };
        join!(send, receive);
    });
}
