//! A TLS stream over a socket, for the pumps of a session.

use std::{
    future::poll_fn,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use rustls::{client::UnbufferedClientConnection, server::UnbufferedServerConnection};

use super::{
    error::TlsError, machine::TlsMachine, origination::TlsOrigination, termination::TlsTermination,
};
use crate::relay::{
    buffers::Buffers, connection::Connection, error::UncleanEnd, stream::RelayStream,
};

/// A stream whose bytes are encrypted on its socket.
#[derive(Debug)]
pub(in crate::relay) struct TlsStream {
    socket: Connection,
    /// Both directions share it. They are polled by one task, so the lock is always free.
    state: Mutex<TlsStreamState>,
}

#[derive(Debug)]
struct TlsStreamState {
    machine: TlsMachine,
    /// Bytes that were encrypted, and count as written once all of them have left.
    encrypted: usize,
}

impl TlsStream {
    /// The relay's end of a client's connection, of which `received` was read.
    pub(super) fn accepting(
        termination: &TlsTermination,
        received: &[u8],
        buffers: Buffers,
    ) -> Result<TlsMachine, TlsError> {
        let side = UnbufferedServerConnection::new(Arc::clone(&termination.config))?;
        let mut machine = TlsMachine::server(side, buffers);
        machine.preload(received);
        Ok(machine)
    }

    /// The relay's end of a connection to a target.
    pub(super) fn connecting(
        origination: &TlsOrigination,
        buffers: Buffers,
    ) -> Result<TlsMachine, TlsError> {
        let (config, name) = (Arc::clone(&origination.config), origination.name.clone());
        let side = UnbufferedClientConnection::new(config, name)?;
        Ok(TlsMachine::client(side, buffers))
    }

    pub(super) const fn new(socket: Connection, machine: TlsMachine) -> Self {
        Self { socket, state: Mutex::new(TlsStreamState { machine, encrypted: 0 }) }
    }

    fn lock(&self) -> MutexGuard<'_, TlsStreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the handshake. If it fails, the peer is told why, as far as its queue has room.
    pub(super) async fn handshake(&self) -> Result<(), TlsError> {
        poll_fn(|cx| self.poll_handshake(cx)).await
    }

    fn poll_handshake(&self, cx: &Context<'_>) -> Poll<Result<(), TlsError>> {
        let machine = &mut self.lock().machine;
        loop {
            let decrypted = machine.decrypt(&mut []);
            let flushed = self.poll_flush(cx, machine);
            decrypted?;
            match flushed {
                Poll::Ready(Ok(())) if !machine.is_handshaking() => {
                    machine.rest();
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(TlsError::Closed)),
                _ => {}
            }
            if !machine.is_handshaking() {
                return Poll::Pending;
            }
            match ready!(self.poll_fill(cx, machine)) {
                Ok(0) | Err(_) => return Poll::Ready(Err(TlsError::Closed)),
                Ok(_) => {}
            }
        }
    }

    /// Reads what the peer has sent.
    fn poll_fill(&self, cx: &Context<'_>, machine: &mut TlsMachine) -> Poll<io::Result<usize>> {
        let polled = self.socket.poll_read(cx, machine.room());
        match polled {
            Poll::Ready(Ok(bytes)) => machine.received(bytes),
            Poll::Pending => machine.rest(),
            Poll::Ready(Err(_)) => {}
        }
        polled
    }

    /// Sends what is to be sent.
    fn poll_flush(&self, cx: &Context<'_>, machine: &mut TlsMachine) -> Poll<io::Result<()>> {
        while !machine.outgoing().is_empty() {
            let sent = ready!(self.socket.poll_write(cx, machine.outgoing()))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            machine.sent(sent);
        }
        Poll::Ready(Ok(()))
    }
}

impl RelayStream for TlsStream {
    /// A stream that ends without the peer's word (`close_notify`) has been cut, perhaps by a third party: that is an error.
    fn poll_read(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let machine = &mut self.lock().machine;
        loop {
            let decrypted = machine.decrypt(room);
            // Answers of the protocol itself. Whether they can leave is the writer's concern.
            let _ = self.poll_flush(cx, machine);
            let count = decrypted?;
            if count > 0 || machine.has_peer_ended() {
                return Poll::Ready(Ok(count));
            }
            if ready!(self.poll_fill(cx, machine))? == 0 {
                return Poll::Ready(Err(UncleanEnd { is_cut: machine.has_part() }.into()));
            }
        }
    }

    /// Bytes count as written when the kernel has all of them: call again with the same bytes until then.
    fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.lock();
        if state.encrypted == 0 {
            ready!(self.poll_flush(cx, &mut state.machine))?;
            state.encrypted = state.machine.encrypt(bytes)?;
        }
        ready!(self.poll_flush(cx, &mut state.machine))?;
        Poll::Ready(Ok(std::mem::take(&mut state.encrypted)))
    }

    fn poll_finish(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let machine = &mut self.lock().machine;
        let ended = machine.end();
        let flushed = ready!(self.poll_flush(cx, machine));
        // A peer that has ended its own direction may be gone.
        if !machine.has_peer_ended() {
            ended?;
            flushed?;
        }
        machine.rest();
        self.socket.poll_finish(cx)
    }

    fn reset(&self) {
        self.socket.reset();
    }

    fn unsent_bytes(&self) -> usize {
        self.socket.unsent_bytes() + self.lock().machine.outgoing().len()
    }
}
