//! What a rank has sent reaches its receiver, although the rank drops its endpoint right after, or ends: over shared memory and UDP, by
//! reliable and unreliable VIs. The receiver takes nothing before the sender has dropped its endpoint.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "kit/pattern.rs"]
mod pattern;
#[path = "kit/ranks.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod ranks;

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::{
    message::{CloseError, Communicator, Endpoint},
    protocol::{EngineConfig, SendMode},
    shm::Shm,
    software_nic::{Secret, SoftwareNicConfig},
    udp::Udp,
    vi::{Provider, Reliability},
    world::{World, local},
};

use crate::{kit::guard::against_hang, pattern::pattern};

/// A bound for each step, longer than it takes on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// The tag of the message that tells the receiver to take nothing more for now.
const LAST: u32 = u32::MAX;

fn udp() -> Udp {
    let address = "127.0.0.1:0".parse().expect("an address");
    Udp::bind(address, Secret::new([6; 16]), SoftwareNicConfig::default()).expect("a NIC")
}

/// How the sender ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// It drops its endpoint, and its runtime goes on.
    Drop,
    /// It drops its endpoint and then its runtime, as a process that ends.
    End,
    /// It closes its endpoint, and then drops its runtime.
    Close,
}

/// What the sender leaves behind, each with its length, in the order of sending.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// Short messages, as many as credit allows.
    Short,
    /// More than credit allows, in the buffer for that.
    Buffered,
    /// Short messages to a receiver that has told this rank to pause.
    Held,
    /// Long messages without a wait for their requests.
    Started,
    /// The same, in memory that the receiver may read.
    Memory,
}

impl Left {
    const ALL: [Self; 5] = [Self::Short, Self::Buffered, Self::Held, Self::Started, Self::Memory];

    fn lengths(self) -> Vec<usize> {
        match self {
            Self::Short => vec![1000; 10],
            Self::Buffered => vec![8; 2000],
            Self::Held => vec![100; 55],
            Self::Started => vec![200_000; 3],
            Self::Memory => vec![300_000; 2],
        }
    }

    fn config(self) -> EngineConfig {
        match self {
            Self::Held => EngineConfig::default().unexpected_bytes_max(4000),
            _ => EngineConfig::default(),
        }
    }

    async fn send<P: Provider>(self, all: &Communicator<P>) {
        for (tag, length) in (0..).zip(self.lengths()) {
            let bytes = pattern(length, usize::try_from(tag).expect("few"));
            match self {
                Self::Held if tag == 50 => {
                    // By its answer, the receiver has told this rank to pause.
                    all.send_sync(1, LAST, b"").await.expect("matched");
                    all.send(1, tag, &bytes).await.expect("held");
                }
                Self::Short | Self::Held => all.send(1, tag, &bytes).await.expect("sent"),
                Self::Buffered => all.send_buffered(1, tag, &bytes).expect("room"),
                Self::Started => drop(all.start_send(1, tag, SendMode::Standard, bytes)),
                Self::Memory => {
                    let memory = all.buffer(length).expect("memory");
                    memory.write(0, &bytes).expect("inside");
                    let whole = (&memory, 0, u64::try_from(length).expect("short"));
                    drop(all.start_send_memory(1, tag, SendMode::Standard, whole));
                }
            }
        }
    }
}

/// The rank that sends and leaves.
fn send_and_leave<P: Provider>(
    (world, nic): (World, P),
    (left, config, leaving): (Left, EngineConfig, Leaving),
    (tell, done): (Sender<()>, Receiver<()>),
) {
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    runtime.block_on(async {
        let deadline = Instant::now() + BOUND;
        let joined = Endpoint::join_over(runtime.server(), &world, nic, config, deadline);
        let endpoint = joined.await.expect("all ranks are here");
        let all = endpoint.communicator();
        all.send_sync(1, LAST, b"").await.expect("matched");
        left.send(&all).await;
        drop(all);
        if leaving == Leaving::Close {
            tell.send(()).expect("the receiver waits");
            endpoint.close(deadline).await.expect("handed over");
            return;
        }
        drop(endpoint);
        tell.send(()).expect("the receiver waits");
        while leaving == Leaving::Drop && done.try_recv().is_err() {
            let soon = Instant::now() + Duration::from_millis(1);
            runtime.server().timers().wait(soon).await.expect("the server lives");
        }
    });
}

/// The rank that receives once the other one has left.
fn receive<P: Provider>(
    (world, nic): (World, P),
    (left, config): (Left, EngineConfig),
    (told, done): (Receiver<()>, Sender<()>),
) {
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    runtime.block_on(async {
        let deadline = Instant::now() + BOUND;
        let joined = Endpoint::join_over(runtime.server(), &world, nic, config, deadline);
        let endpoint = joined.await.expect("all ranks are here");
        let all = endpoint.communicator();
        for _ in 0..if matches!(left, Left::Held) { 2 } else { 1 } {
            all.recv(0, LAST).await.expect("told");
        }
        // The thread sleeps: nothing is taken.
        told.recv_timeout(BOUND).expect("the sender leaves");
        for (tag, length) in (0..).zip(left.lengths()) {
            let message = all.recv(0, tag).await.unwrap_or_else(|error| panic!("{tag}: {error}"));
            let seed = usize::try_from(tag).expect("few");
            assert!(message.bytes == pattern(length, seed), "message {tag}");
        }
    });
    // The sender may have ended.
    let _ = done.send(());
}

fn nothing_is_lost<P: Provider>(nic: fn() -> P) {
    for reliability in [Reliability::ReliableDelivery, Reliability::Unreliable] {
        for leaving in [Leaving::Drop, Leaving::End, Leaving::Close] {
            for left in Left::ALL {
                println!("{reliability:?}, {leaving:?}, {left:?}");
                let config = left.config().reliability(reliability);
                against_hang(move || {
                    let host = Server::spawn_thread().expect("a thread");
                    let (_, worlds) = local(host.server(), 2).expect("a world");
                    let [one, other] = <[World; 2]>::try_from(worlds).expect("two");
                    let ((tell, told), (finish, done)) = (channel(), channel());
                    thread::scope(|scope| {
                        let (here, there) = ((one, nic()), (other, nic()));
                        let how = (left, config, leaving);
                        scope.spawn(move || send_and_leave(here, how, (tell, done)));
                        scope.spawn(move || receive(there, (left, config), (told, finish)));
                    });
                });
            }
        }
    }
}

/// Goal: a rank that drops its endpoint, closes it or ends loses nothing that it has sent. Method: short messages, more than credit
/// allows, held ones, and long ones whose requests are dropped, to a receiver that takes them afterwards.
#[test]
fn nothing_is_lost_over_shared_memory() {
    nothing_is_lost(|| Shm::open().expect("a NIC"));
}

/// Goal and method: as above, where what was sent must be acknowledged.
#[test]
fn nothing_is_lost_over_udp() {
    nothing_is_lost(udp);
}

/// Goal: a close that cannot hand over says to which ranks, and what has not been handed over then still is. Method: a long message that its
/// receiver does not take; it is closed with a deadline that has passed, and received afterwards.
#[test]
fn a_close_in_vain_names_the_ranks() {
    against_hang(|| {
        let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
        runtime.block_on(async {
            let nics = (0..3).map(|_| Shm::open().expect("a NIC")).collect();
            let [one, two, three] =
                <[_; 3]>::try_from(ranks::endpoints(nics, EngineConfig::default()).await)
                    .unwrap_or_else(|_| panic!("three ranks"));
            let long = pattern(1 << 20, 1);
            let sender = one.communicator();
            drop(sender.start_send(1, 7, SendMode::Standard, long.clone()).expect("taken"));
            sender.send(0, 7, b"to itself, which is not waited for").await.expect("sent");
            drop(sender);
            let closed = one.close(Instant::from_nanos(1)).await;
            assert!(
                matches!(&closed, Err(CloseError::TimedOut { ranks }) if *ranks == [1]),
                "{closed:?}"
            );
            let message = two.communicator().recv(0, 7).await.expect("handed over");
            assert!(message.bytes == long);
            let closed = three.close(Instant::from_nanos(1)).await;
            closed.expect("it has sent nothing");
        });
    });
}
