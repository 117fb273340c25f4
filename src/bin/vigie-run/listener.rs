//! Accepts callers from the network: checks the secret, and passes ranks to the rendezvous.
//!
//! Bounds: at most [`UNAUTHENTICATED_MAX`] callers are unauthenticated at once, each for at most
//! [`AUTHENTICATION_TIMEOUT`] and with as many bytes as an answer has; further ones are disconnected immediately.

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie::{
    detect::Server,
    net::{TcpListener, TcpStream},
    spawn_local,
    time::{sleep, timeout},
    via::{
        software_nic::Secret,
        world::{
            JoinRefusal, Rank,
            tcp::{
                handshake::{ANSWER_BYTES, Challenger, HandshakeVerdict, Session},
                set_socket_options,
            },
        },
    },
};

use crate::{job::JobEvent, mailbox::Mailbox, rendezvous::Rendezvous};

/// The maximum number of unauthenticated callers.
pub(crate) const UNAUTHENTICATED_MAX: u32 = 64;
/// The time limit for authentication.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which accepting pauses after a failure: descriptors may have run out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The most refusals for the same reason that are reported one by one.
const REPORTED_MAX: usize = 3;

/// A listener of the rendezvous.
pub(crate) struct RankListener {
    listener: TcpListener,
    address: SocketAddr,
    secret: Secret,
    size: u32,
    rendezvous: Rc<Rendezvous>,
    mailbox: Rc<Mailbox<JobEvent>>,
    unauthenticated: Cell<u32>,
    rejected: Cell<u64>,
    /// The reasons that were reported.
    reported: RefCell<Vec<Option<JoinRefusal>>>,
}

impl RankListener {
    /// Opens a listener at `address` only.
    pub(crate) fn open(
        address: SocketAddr,
        secret: Secret,
        size: u32,
        rendezvous: Rc<Rendezvous>,
        mailbox: Rc<Mailbox<JobEvent>>,
    ) -> io::Result<Rc<Self>> {
        let listener = TcpListener::bind_on(&Server::current()?, address)?;
        let listener = Rc::new(Self {
            address: listener.local_addr()?,
            listener,
            secret,
            size,
            rendezvous,
            mailbox,
            unauthenticated: Cell::new(0),
            rejected: Cell::new(0),
            reported: RefCell::new(Vec::new()),
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
            match self.listener.accept().await {
                Ok(_) if self.unauthenticated.get() >= UNAUTHENTICATED_MAX => self.reject(),
                Ok((socket, caller)) => {
                    self.unauthenticated.set(self.unauthenticated.get() + 1);
                    let listener = Rc::clone(&self);
                    let authenticating = spawn_local(async move {
                        let authenticated =
                            timeout(AUTHENTICATION_TIMEOUT, listener.authenticate(socket, caller))
                                .await;
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

    /// Lets a caller prove which rank it is. Returns false if it was refused.
    async fn authenticate(&self, mut socket: TcpStream, caller: SocketAddr) -> io::Result<bool> {
        set_socket_options(&socket)?;
        let mut nonce = [0; 16];
        getrandom(&mut nonce[..], GetRandomFlags::empty())?;
        let challenger = Challenger::new(nonce);
        socket.write_all(&challenger.challenge()).await?;
        let mut answer = [0; ANSWER_BYTES];
        let first = socket.read(&mut answer).await?;
        if first == 0 {
            // A launcher with --meet checks that a rendezvous answers here.
            return Ok(true);
        }
        socket.read_exact(&mut answer[first..]).await?;
        let admit = |rank| self.rendezvous.admit(rank);
        match challenger.judge(&answer, &self.secret, self.size, admit) {
            HandshakeVerdict::Admitted { rank, bytes, session } => {
                self.hand_over(rank, socket, &bytes, &session)?;
                Ok(true)
            }
            HandshakeVerdict::Refused { bytes, why } => {
                self.report(caller, Some(why));
                socket.write_all(&bytes).await?;
                Ok(false)
            }
            HandshakeVerdict::Stranger { bytes } => {
                self.report(caller, None);
                socket.write_all(&bytes).await?;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Lets the job say why a caller was refused, for the first of each reason. `None`: it does not know the secret.
    fn report(&self, caller: SocketAddr, why: Option<JoinRefusal>) {
        let mut reported = self.reported.borrow_mut();
        if reported.iter().filter(|&&reason| reason == why).count() < REPORTED_MAX {
            reported.push(why);
            self.mailbox.post(JobEvent::Rejected(caller, why));
        }
    }

    /// Tells a rank that it is accepted. Does not wait, so that no other caller can become the same rank meanwhile.
    fn hand_over(
        &self,
        rank: Rank,
        socket: TcpStream,
        verdict: &[u8],
        session: &Session,
    ) -> io::Result<()> {
        // Hardly anything was sent before: there is room.
        if socket.try_write(verdict)? != verdict.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.rendezvous.serve(rank, socket.into_std()?.into(), Some(session))
    }
}
