//! A process that forks without exec: the child drops its copies of an endpoint's requests without
//! touching the engine.

#![cfg(not(loom))]
#![expect(unsafe_code, reason = "fork and waitpid have no safe interface")]

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::{Context, Poll, Waker},
};

use vigie_detect::{Flavor, Server, WaitError};
use vigie_via::{
    message::{Endpoint, MessageErrorKind},
    protocol::{Config, MessageEngine, Mode},
    shm::Shm,
};

/// After this many seconds a signal ends a child that hangs.
const HANG_SECONDS: u32 = 20;

/// Runs `body` in a forked child. Returns whether it came to its end, without a panic.
fn ends_in_fork(body: impl FnOnce()) -> bool {
    // SAFETY: the child calls `body` and `_exit`; glibc makes its allocator usable in the child, and this process has no
    // other thread that the child would need.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no fork");
    if child == 0 {
        // SAFETY: no memory is concerned.
        unsafe { libc::alarm(HANG_SECONDS) };
        let ended = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends the process at once, without destructors that belong to the parent.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the child was just made, and `status` is valid for a write.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Goal: a child waits for nothing, and drops its copies of requests, loans and views without the
/// engine, whose lock it may never get. Method: fork under that lock; the parent's copies continue.
#[test]
fn a_child_leaves_the_engine_alone() {
    let server = Server::new(Flavor::UserLevel).expect("the kernel gives a server");
    let nic = Shm::open().expect("a NIC");
    let engine = MessageEngine::new(nic, 0, 1, Config::default()).expect("an engine");
    let endpoint = Endpoint::new(&server, engine).expect("registered");
    let all = endpoint.communicator();
    let mut receive = all.start_recv(0, 1);
    assert!(poll(receive.wait()).is_pending());
    let send = all.start_send(0, 2, Mode::Synchronous, vec![1]).expect("begun");
    let loan = all.loan(0, 8).expect("there is room");
    let mut held = Some((receive, send, loan));
    let ended = endpoint.with(|_| {
        ends_in_fork(|| {
            let (mut receive, mut send, loan) = held.take().expect("copied");
            for ended in [poll(receive.wait()).map(|ended| ended.map(drop)), poll(send.wait())] {
                let Poll::Ready(Err(error)) = ended else { panic!("it waits") };
                assert!(matches!(error.kind(), MessageErrorKind::Wait(WaitError::ServerClosed)));
            }
            drop((receive, send, loan));
        })
    });
    assert!(ended, "the child hangs or panics");
    let (mut receive, _send, _loan) = held.expect("it is ours");
    assert!(matches!(poll(all.send(0, 1, b"ours")), Poll::Ready(Ok(()))));
    let Poll::Ready(Ok(message)) = poll(receive.wait()) else { panic!("it has come") };
    assert_eq!(message.bytes, b"ours");
}
