//! Polls that take in more than they ask for: others wait for that, and no descriptor announces it any more.

use std::{
    collections::VecDeque,
    io,
    os::{fd::AsFd, unix::net::UnixDatagram},
    pin::pin,
    task::Poll,
};

use vigie_detect::{
    ArmOutcome, Engine, EngineContext, EngineHost, Registration, WatchedDescriptor,
};

use super::{
    faults::{poll, prepare, server},
    send,
};

/// Numbers in datagrams, odd ones and even ones, each for its own waiters. A poll takes in everything that is
/// there.
struct Parity {
    socket: UnixDatagram,
    arrived: [VecDeque<u64>; 2],
}

impl Engine for Parity {
    type Request = usize;
    type Output = u64;

    fn take(&mut self, &parity: &usize) -> Option<u64> {
        let mut bytes = [0; 8];
        while let Ok(8) = self.socket.recv(&mut bytes) {
            let number = u64::from_le_bytes(bytes);
            self.arrived[usize::from(number % 2 == 1)].push_back(number);
        }
        self.arrived[parity].pop_front()
    }

    fn put_back(&mut self, &parity: &usize, number: u64) -> Option<u64> {
        self.arrived[parity].push_front(number);
        None
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        let is_empty = self.arrived.iter().all(VecDeque::is_empty);
        Ok(ArmOutcome::ready_if(!is_empty))
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        each(WatchedDescriptor::readable(self.socket.as_fd()));
    }
}

/// The poll that takes in the others' numbers.
#[derive(Clone, Copy, Debug)]
enum By {
    /// On the caller's thread; it finds something itself.
    Poll,
    /// The same, and it finds nothing.
    VainPoll,
    /// The first poll of another wait, which finds something.
    Wait,
    /// The first poll of a wait that finds nothing and stays.
    VainWait,
}

/// Goal: a host that has armed the engine and sleeps serves the waiters whose numbers another poll has taken in. Method: every way to
/// poll, between the arming and the next poll of the host.
#[test]
fn what_is_taken_in_for_others_reaches_them() {
    const EVEN: usize = 0;
    const ODD: usize = 1;
    for by in [By::Poll, By::VainPoll, By::Wait, By::VainWait] {
        let (server, mut driver) = server();
        let (socket, peer) = UnixDatagram::pair().expect("sockets");
        socket.set_nonblocking(true).expect("a socket");
        let engine = Parity { socket, arrived: Default::default() };
        let host = EngineHost::new(&server, engine, Registration::named("parity"));
        let host = host.expect("registered");
        let mut odd = pin!(host.wait(ODD));
        assert!(poll(odd.as_mut()).is_pending());
        // Has handled the submissions, and armed.
        let _ = driver.detect();
        prepare(&mut driver);
        send(&peer, 1);
        let mut even = pin!(host.wait(EVEN));
        match by {
            By::Poll => {
                send(&peer, 2);
                assert_eq!(host.try_take(&EVEN), Some(2));
            }
            By::VainPoll => assert_eq!(host.try_take(&EVEN), None),
            By::Wait => {
                send(&peer, 2);
                assert!(matches!(poll(even.as_mut()), Poll::Ready(Ok(2))));
            }
            By::VainWait => assert!(poll(even.as_mut()).is_pending()),
        }
        // Like a host that was about to sleep, until it would sleep.
        let has_call = driver.is_due(vigie_detect::Instant::from_nanos(0));
        assert!(has_call, "{by:?}: the host is not called");
        let _ = driver.detect();
        assert!(matches!(poll(odd.as_mut()), Poll::Ready(Ok(1))), "{by:?}");
    }
}
