//! Sleep and wake: every waiter is woken, whatever else happens.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use vigie_via::{
    message::{SourceFilter, TagFilter},
    protocol::{EngineConfig, SendMode},
};

use super::hosts::{Host, scarce, with_ranks};
use crate::pattern::pattern;

/// Computes or yields for a short time, or lets all hosts fall asleep.
async fn dawdle(host: &Host, rng: &mut Rng) {
    match rng.u32(..200) {
        0 => host.wait(Duration::from_micros(rng.u64(..300))).await,
        1..20 => {
            for _ in 0..rng.u32(..2000) {
                std::hint::spin_loop();
            }
        }
        20..60 => host.pause().await,
        _ => {}
    }
}

/// Goal: a sleeping rank is woken by each message. Method: many rounds in which the receiver is idle,
/// before the message is sent, for longer than any host polls.
#[test]
fn sleepers_are_woken() {
    with_ranks(2, EngineConfig::default(), |host, ranks| async move {
        const ROUNDS: u32 = 100;
        let b = ranks[1].clone();
        let receiver = host.spawn(async move {
            for round in 0..ROUNDS {
                let message = b.recv(SourceFilter::Any, TagFilter::Any).await.expect("received");
                assert_eq!(message.status.tag, round);
                b.send(0, round, &message.bytes).await.expect("sent");
            }
        });
        for round in 0..ROUNDS {
            host.wait(Duration::from_millis(1)).await;
            let bytes = pattern([0, 8, 3000, 50_000][round as usize % 4], 0);
            ranks[0].send(1, round, &bytes).await.expect("sent");
            assert!(ranks[0].recv(1, round).await.expect("received").bytes == bytes);
        }
        receiver.await.expect("no panic");
    });
}

/// Goal: no wake-up is lost, whatever the timing. Method: two tasks on each side pass messages to and
/// fro thousands of times, with short random delays, waiting by receives, requests and probes.
#[test]
fn no_wake_up_is_lost() {
    with_ranks(2, EngineConfig::default(), |host, ranks| async move {
        const ROUNDS: u32 = 3000;
        let tasks: Vec<_> = (0..4u32)
            .map(|task| {
                let own = ranks[task as usize % 2].clone();
                let (peer, channel) = ((task + 1) % 2, task / 2);
                let begins = task % 2 == 0;
                let next = host.clone();
                host.spawn(async move {
                    let host = next;
                    let mut rng = Rng::with_seed(task.into());
                    for round in 0..ROUNDS {
                        let bytes = u64::from(round).to_le_bytes();
                        if begins {
                            own.send(peer, channel, &bytes).await.expect("sent");
                        }
                        let message = match rng.u32(..4) {
                            0 => {
                                own.probe(peer, channel).await.expect("probed");
                                own.recv(peer, channel).await
                            }
                            1 => own.start_recv(peer, channel).wait().await,
                            2 => {
                                let matched = own.matched_probe(peer, channel).await;
                                matched.expect("matched").recv().await
                            }
                            _ => own.recv(peer, channel).await,
                        };
                        assert_eq!(message.expect("received").bytes, bytes, "round {round}");
                        dawdle(&host, &mut rng).await;
                        if !begins {
                            own.send(peer, channel, &bytes).await.expect("sent");
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

/// Goal: sends that wait for credit continue without being awaited, even if their host slept when they
/// began. Method: requests that no task awaits send much more than fits; the receiver takes it later,
/// and reports that by a message after all of them.
#[test]
fn forgotten_sends_go_on() {
    with_ranks(2, scarce(), |host, ranks| async move {
        for round in 0..20 {
            // Both hosts fall asleep, if they are separate threads.
            host.wait(Duration::from_millis(2)).await;
            let count = 100;
            for tag in 0..count {
                let bytes = pattern(900, tag as usize + round);
                drop(ranks[0].start_send(1, tag, SendMode::Standard, bytes).expect("begun"));
            }
            host.wait(Duration::from_millis(2)).await;
            for tag in 0..count {
                let message = ranks[1].recv(0, tag).await.expect("received");
                assert!(message.bytes == pattern(900, tag as usize + round), "tag {tag}");
            }
        }
    });
}

/// Goal: with little credit no request waits for ever, whatever the traffic. Method: both ranks send and
/// receive messages of random lengths at once, each in its own tasks.
#[test]
fn scarce_credit() {
    with_ranks(2, scarce(), |host, ranks| async move {
        const COUNT: usize = 600;
        let mut tasks = Vec::new();
        let lengths: Arc<Vec<usize>> = Arc::new({
            let mut rng = Rng::with_seed(7);
            (0..COUNT)
                .map(|_| if rng.u32(..20) == 0 { rng.usize(..60_000) } else { rng.usize(..1500) })
                .collect()
        });
        for rank in 0..2u32 {
            let peer = 1 - rank;
            let (all, order, own) =
                (ranks[rank as usize].clone(), Arc::clone(&lengths), host.clone());
            tasks.push(host.spawn(async move {
                let mut rng = Rng::with_seed(rank.into());
                for &length in &*order {
                    all.send(peer, 0, &pattern(length, length)).await.expect("sent");
                    dawdle(&own, &mut rng).await;
                }
            }));
            let (all, order, own) =
                (ranks[rank as usize].clone(), Arc::clone(&lengths), host.clone());
            tasks.push(host.spawn(async move {
                let mut rng = Rng::with_seed(100 + u64::from(rank));
                for &length in &*order {
                    let message = all.recv(peer, 0).await.expect("received");
                    assert!(message.bytes == pattern(length, length));
                    dawdle(&own, &mut rng).await;
                }
            }));
        }
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}
