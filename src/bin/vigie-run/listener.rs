//! Accepts callers from the network: checks the secret, and passes ranks to the rendezvous.
//!
//! Bounds: at most [`UNAUTHENTICATED_MAX`] callers are unauthenticated at once, each for at most
//! [`AUTHENTICATION_TIMEOUT`] and with as many bytes as an answer has; further ones are disconnected immediately.

use std::{
    cell::Cell,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    rc::Rc,
    time::Duration,
};

use rustix::{
    net::{RecvFlags, SendFlags, recv, send},
    rand::{GetRandomFlags, getrandom},
};
use vigie::{
    detect::AsyncFd,
    spawn_local,
    stock::readiness::Direction,
    time::{sleep, timeout},
    via::{
        software_nic::Secret,
        world::{
            Rank,
            tcp::{
                handshake::{ANSWER_BYTES, Challenger, HandshakeVerdict, Session},
                prepare,
            },
        },
    },
};

use crate::rendezvous::Rendezvous;

/// The maximum number of unauthenticated callers.
pub(crate) const UNAUTHENTICATED_MAX: u32 = 64;
/// The time limit for authentication.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(5);
/// How long accepting pauses after a failure: descriptors may have run out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A listener of the rendezvous.
pub(crate) struct RankListener {
    listener: AsyncFd<TcpListener>,
    address: SocketAddr,
    secret: Secret,
    size: u32,
    rendezvous: Rc<Rendezvous>,
    unauthenticated: Cell<u32>,
    rejected: Cell<u64>,
}

impl RankListener {
    /// Opens a listener at `address` only.
    pub(crate) fn open(
        address: SocketAddr,
        secret: Secret,
        size: u32,
        rendezvous: Rc<Rendezvous>,
    ) -> io::Result<Rc<Self>> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let listener = Rc::new(Self {
            address: listener.local_addr()?,
            listener: AsyncFd::new(listener)?,
            secret,
            size,
            rendezvous,
            unauthenticated: Cell::new(0),
            rejected: Cell::new(0),
        });
        spawn_local(Rc::clone(&listener).accept_loop()).detach();
        Ok(listener)
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of refused callers.
    pub(crate) const fn rejected(&self) -> u64 {
        self.rejected.get()
    }

    fn reject(&self) {
        self.rejected.set(self.rejected.get().saturating_add(1));
    }

    async fn accept_loop(self: Rc<Self>) {
        loop {
            match self.listener.async_io(Direction::Read, TcpListener::accept).await {
                Ok(_) if self.unauthenticated.get() >= UNAUTHENTICATED_MAX => self.reject(),
                Ok((socket, _)) => {
                    self.unauthenticated.set(self.unauthenticated.get() + 1);
                    let listener = Rc::clone(&self);
                    let authenticating = spawn_local(async move {
                        let authenticated =
                            timeout(AUTHENTICATION_TIMEOUT, listener.authenticate(socket)).await;
                        listener.unauthenticated.set(listener.unauthenticated.get() - 1);
                        if !matches!(authenticated, Ok(Ok(true))) {
                            listener.reject();
                        }
                    });
                    authenticating.detach();
                }
                Err(_) => sleep(ACCEPT_RETRY_DELAY).await,
            }
        }
    }

    /// Lets a caller prove which rank it is. Returns whether it was accepted.
    async fn authenticate(&self, socket: TcpStream) -> io::Result<bool> {
        socket.set_nonblocking(true)?;
        prepare(&socket)?;
        let socket = AsyncFd::new(OwnedFd::from(socket))?;
        let mut nonce = [0; 16];
        getrandom(&mut nonce[..], GetRandomFlags::empty())?;
        let challenger = Challenger::new(nonce);
        write_all(&socket, &challenger.challenge()).await?;
        let answer = read_answer(&socket).await?;
        let admit = |rank| self.rendezvous.admit(rank);
        match challenger.judge(&answer, &self.secret, self.size, admit) {
            HandshakeVerdict::Admitted { rank, bytes, session } => {
                self.hand_over(rank, socket.into_inner(), &bytes, &session)?;
                Ok(true)
            }
            HandshakeVerdict::Refused { bytes, .. } | HandshakeVerdict::Stranger { bytes } => {
                write_all(&socket, &bytes).await?;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Tells a rank that it is accepted. Does not wait, so that no other caller can become the same rank meanwhile.
    fn hand_over(
        &self,
        rank: Rank,
        socket: OwnedFd,
        verdict: &[u8],
        session: &Session,
    ) -> io::Result<()> {
        // Hardly anything was sent before: there is room.
        if send(&socket, verdict, SendFlags::NOSIGNAL)? != verdict.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.rendezvous.serve(rank, socket, Some(session))
    }
}

async fn write_all(socket: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = socket
            .async_io(Direction::Write, |socket| Ok(send(socket, bytes, SendFlags::NOSIGNAL)?));
        bytes = &bytes[sent.await?..];
    }
    Ok(())
}

async fn read_answer(socket: &AsyncFd<OwnedFd>) -> io::Result<[u8; ANSWER_BYTES]> {
    let (mut bytes, mut count) = ([0; ANSWER_BYTES], 0);
    while count < ANSWER_BYTES {
        let read = socket.async_io(Direction::Read, |socket| {
            let (read, _) = recv(socket, &mut bytes[count..], RecvFlags::empty())?;
            Ok(read)
        });
        match read.await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => count += read,
        }
    }
    Ok(bytes)
}
