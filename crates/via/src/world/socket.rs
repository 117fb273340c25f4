//! A rank's connection to its launcher: a stream, and the state machine of its protocol.

use std::{
    fmt, io, mem,
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{RecvFlags, SendFlags, recv, send},
};
use vigie_detect::{AsyncFd, Server, detectors::readiness::Direction};

use super::{
    WorldError,
    member::Member,
    tcp::{handshake::Session, seal::Seal},
    waiting::{HubLink, StateMachine},
    wire::Decoder,
};

/// A state machine whose launcher is at the other end of a stream.
pub(super) trait Conversation: Send {
    /// The machine.
    type StateMachine: StateMachine;

    fn machine(&mut self) -> &mut Self::StateMachine;

    /// Returns the bytes still to be sent; the caller removes what was sent from the front.
    fn outgoing(&mut self) -> &mut Vec<u8>;

    /// Handles bytes that have arrived.
    fn receive_bytes(&mut self, bytes: &[u8]);

    /// Records that nothing more will arrive.
    fn lose(&mut self);

    /// Returns whether nothing more is expected.
    fn is_over(&self) -> bool;
}

/// Frames of a hub on a stream.
#[derive(Debug, Default)]
pub(super) struct Framed {
    member: Member,
    decoder: Decoder,
    outgoing: Vec<u8>,
    /// Present on a network.
    seal: Option<Seal>,
}

impl Framed {
    /// Frames that are tagged with the keys of a connection.
    pub(super) fn sealed(session: &Session) -> Self {
        Self { seal: Some(Seal::of_member(session)), ..Self::default() }
    }
}

impl Conversation for Framed {
    type StateMachine = Member;

    fn machine(&mut self) -> &mut Member {
        &mut self.member
    }

    fn outgoing(&mut self) -> &mut Vec<u8> {
        for request in mem::take(&mut self.member.said) {
            let frame = request.encode();
            self.outgoing.extend_from_slice(&frame);
            if let Some(seal) = &mut self.seal {
                self.outgoing.extend_from_slice(&seal.tag(&frame));
            }
        }
        &mut self.outgoing
    }

    fn receive_bytes(&mut self, bytes: &[u8]) {
        self.decoder.feed(bytes);
        loop {
            let heard = match &mut self.seal {
                Some(seal) => seal.open(&mut self.decoder),
                None => self.decoder.next_frame(),
            };
            match heard {
                Ok(Some(frame)) => self.member.receive(frame),
                Ok(None) => return,
                Err(error) => return self.member.receive_nonsense(error),
            }
        }
    }

    fn lose(&mut self) {
        self.member.lose();
    }

    fn is_over(&self) -> bool {
        self.member.is_over()
    }
}

/// A conversation on a socket.
pub(super) struct SocketLink<S: AsFd, C> {
    socket: AsyncFd<S>,
    conversation: Mutex<C>,
}

impl<S: AsFd, C: Conversation> SocketLink<S, C> {
    /// Takes a socket in non-blocking mode.
    pub(super) fn new(server: &Server, socket: S, conversation: C) -> io::Result<Self> {
        let socket = AsyncFd::new_on(server, socket)?;
        Ok(Self { socket, conversation: Mutex::new(conversation) })
    }

    fn lock(&self) -> MutexGuard<'_, C> {
        // No foreign code runs under this lock, so a poisoned one says nothing about what it holds.
        self.conversation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the other end is closed or the time is over.
    pub(super) fn wait_for_end(&self, time: Duration) {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        // A failure is no reason to wait longer.
        let time = Timespec::try_from(time).unwrap_or_default();
        let _ = poll(&mut polled, Some(&time));
    }

    fn send(&self, outgoing: &mut Vec<u8>) {
        while !outgoing.is_empty() {
            let sent = self.socket.try_io(Direction::Write, |socket| {
                Ok(send(socket, outgoing, SendFlags::NOSIGNAL)?)
            });
            match sent {
                Ok(count) => drop(outgoing.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The launcher no longer listens. The reason may still be there to be read.
                Err(_) => outgoing.clear(),
            }
        }
    }

    fn receive_bytes(&self, conversation: &mut C) {
        let mut buffer = [0; 4096];
        while !conversation.is_over() {
            let heard = self.socket.try_io(Direction::Read, |socket| {
                let (count, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
                Ok(count)
            });
            match heard {
                Ok(0) => conversation.lose(),
                Ok(count) => conversation.receive_bytes(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => conversation.lose(),
            }
        }
    }
}

impl<S: AsFd + Send + Sync, C: Conversation> HubLink for SocketLink<S, C> {
    type StateMachine = C::StateMachine;

    fn act<T>(
        &self,
        act: impl FnOnce(&mut C::StateMachine) -> Result<T, WorldError>,
    ) -> Result<T, WorldError> {
        act(self.lock().machine())
    }

    fn pump(&self) -> bool {
        let mut conversation = self.lock();
        let before = conversation.machine().waiters().generation;
        self.send(conversation.outgoing());
        self.receive_bytes(&mut conversation);
        // An answer may release the next question.
        self.send(conversation.outgoing());
        let is_sent = conversation.outgoing().is_empty();
        let waiters = conversation.machine().waiters();
        let has_heard = waiters.generation != before;
        let woken = if has_heard { waiters.take() } else { Vec::new() };
        drop(conversation);
        for (_, waker) in woken {
            waker.wake();
        }
        is_sent
    }

    async fn readable(&self) -> io::Result<()> {
        self.socket.ready(Direction::Read).await.map(drop)
    }

    async fn writable(&self) -> io::Result<()> {
        self.socket.ready(Direction::Write).await.map(drop)
    }
}

impl<S: AsFd, C> fmt::Debug for SocketLink<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketLink")
            .field("descriptor", &self.socket.as_fd())
            .finish_non_exhaustive()
    }
}
