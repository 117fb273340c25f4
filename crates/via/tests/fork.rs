//! A process that forks without exec: the child drops its copies of an endpoint's requests without
//! touching the engine.

#![cfg(not(loom))]
#[path = "../../../tests/kit/forked.rs"]
mod forked;

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use vigie_detect::{Flavor, Server, WaitError};
use vigie_via::{
    message::{Endpoint, MessageErrorKind},
    protocol::{EngineConfig, MessageEngine, SendMode},
    shm::Shm,
};

use crate::forked::ends_in_fork;

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Goal: a child waits for nothing, and drops its copies of requests, loans and views without the
/// engine, whose lock it may never get. Method: fork under that lock; the parent's copies continue.
#[test]
fn a_child_leaves_the_engine_alone() {
    let server = Server::new(Flavor::UserLevel).expect("the kernel gives a server");
    let nic = Shm::open().expect("a NIC");
    let engine = MessageEngine::new(nic, 0, 1, EngineConfig::default()).expect("an engine");
    let endpoint = Endpoint::new(&server, engine).expect("registered");
    let all = endpoint.communicator();
    let mut receive = all.start_recv(0, 1);
    assert!(poll(receive.wait()).is_pending());
    let send = all.start_send(0, 2, SendMode::Synchronous, vec![1]).expect("begun");
    let loan = all.loan(0, 8).expect("there is room");
    let other = all.start_recv(0, 3);
    let mut held = Some((receive, other, send, loan));
    let ended = endpoint.with(|_| {
        ends_in_fork(|| {
            let (mut receive, mut other, mut send, loan) = held.take().expect("copied");
            let received = poll(receive.wait()).map(|ended| ended.map(drop));
            let received_into = poll(other.wait_into(&mut Vec::new()));
            let received_into = received_into.map(|ended| ended.map(|_| ()));
            for ended in [received, received_into, poll(send.wait())] {
                let Poll::Ready(Err(error)) = ended else { panic!("it waits") };
                assert!(matches!(error.kind(), MessageErrorKind::Wait(WaitError::ServerClosed)));
            }
            drop((receive, other, send, loan));
        })
    });
    assert!(ended, "the child hangs or panics");
    let (mut receive, _other, _send, _loan) = held.expect("it is ours");
    assert!(matches!(poll(all.send(0, 1, b"ours")), Poll::Ready(Ok(()))));
    let Poll::Ready(Ok(message)) = poll(receive.wait()) else { panic!("it has come") };
    assert_eq!(message.bytes, b"ours");
}
