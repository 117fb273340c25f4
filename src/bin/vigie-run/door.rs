//! Who comes in from the network: callers are asked for the secret, and ranks among them led to the rendezvous.
//!
//! Bounds: [`STRANGERS_MAX`] callers at a time that have not proved anything yet, each for at most
//! [`PATIENCE`] and with as many bytes as an answer has; more of them are hung up on at once.

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
                handshake::{ANSWER_BYTES, Challenger, Session, Verdict},
                prepare,
            },
        },
    },
};

use crate::rendezvous::Rendezvous;

/// How many callers may be about to prove who they are.
pub(crate) const STRANGERS_MAX: u32 = 64;
/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody is let in after that was not possible: descriptors have run out, perhaps.
const PAUSE: Duration = Duration::from_millis(100);

/// A door of the rendezvous.
pub(crate) struct Door {
    listener: AsyncFd<TcpListener>,
    address: SocketAddr,
    secret: Secret,
    size: u32,
    rendezvous: Rc<Rendezvous>,
    strangers: Cell<u32>,
    turned_away: Cell<u64>,
}

impl Door {
    /// Opens a door at `address`, and nowhere else.
    pub(crate) fn open(
        address: SocketAddr,
        secret: Secret,
        size: u32,
        rendezvous: Rc<Rendezvous>,
    ) -> io::Result<Rc<Self>> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let door = Rc::new(Self {
            address: listener.local_addr()?,
            listener: AsyncFd::new(listener)?,
            secret,
            size,
            rendezvous,
            strangers: Cell::new(0),
            turned_away: Cell::new(0),
        });
        spawn_local(Rc::clone(&door).attend()).detach();
        Ok(door)
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many callers were not let in.
    pub(crate) const fn turned_away(&self) -> u64 {
        self.turned_away.get()
    }

    fn turn_away(&self) {
        self.turned_away.set(self.turned_away.get().saturating_add(1));
    }

    async fn attend(self: Rc<Self>) {
        loop {
            match self.listener.async_io(Direction::Read, TcpListener::accept).await {
                Ok(_) if self.strangers.get() >= STRANGERS_MAX => self.turn_away(),
                Ok((socket, _)) => {
                    self.strangers.set(self.strangers.get() + 1);
                    let door = Rc::clone(&self);
                    let asking = spawn_local(async move {
                        let asked = timeout(PATIENCE, door.ask(socket)).await;
                        door.strangers.set(door.strangers.get() - 1);
                        if !matches!(asked, Ok(Ok(true))) {
                            door.turn_away();
                        }
                    });
                    asking.detach();
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Lets a caller prove which rank it is. Returns whether it was let in.
    async fn ask(&self, socket: TcpStream) -> io::Result<bool> {
        socket.set_nonblocking(true)?;
        prepare(&socket)?;
        let socket = AsyncFd::new(OwnedFd::from(socket))?;
        let mut nonce = [0; 16];
        getrandom(&mut nonce[..], GetRandomFlags::empty())?;
        let challenger = Challenger::new(nonce);
        say(&socket, &challenger.challenge()).await?;
        let answer = hear(&socket).await?;
        let admit = |rank| self.rendezvous.admit(rank);
        match challenger.judge(&answer, &self.secret, self.size, admit) {
            Verdict::Admitted { rank, bytes, session } => {
                self.lead(rank, socket.into_inner(), &bytes, &session)?;
                Ok(true)
            }
            Verdict::Refused { bytes, .. } | Verdict::Stranger { bytes } => {
                say(&socket, &bytes).await?;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Tells a rank that it is let in. Without waiting, so that nobody else comes as the same rank meanwhile.
    fn lead(
        &self,
        rank: Rank,
        socket: OwnedFd,
        verdict: &[u8],
        session: &Session,
    ) -> io::Result<()> {
        // Hardly anything was sent before: it has room.
        if send(&socket, verdict, SendFlags::NOSIGNAL)? != verdict.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.rendezvous.serve(rank, socket, Some(session))
    }
}

async fn say(socket: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = socket
            .async_io(Direction::Write, |socket| Ok(send(socket, bytes, SendFlags::NOSIGNAL)?));
        bytes = &bytes[sent.await?..];
    }
    Ok(())
}

async fn hear(socket: &AsyncFd<OwnedFd>) -> io::Result<[u8; ANSWER_BYTES]> {
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
