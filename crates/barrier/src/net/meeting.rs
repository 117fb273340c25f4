//! How those who will be members tell each other where they are: through a world's launcher, or at an address.

use std::{
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::pin,
    task::Poll,
    time::Duration,
};

use siphasher::sip::SipHasher24;
use vigie_detect::{
    Instant, Interest, Server,
    net::{TcpListener, TcpStream},
};
use vigie_via::world::{Identity, World};

use super::error::FormationError;
use crate::{
    error::LostRanks,
    group::Rank,
    packet::{GroupId, Key},
};

/// The most that a member says at once, in bytes.
const VALUE_BYTES_MAX: usize = 4096;
/// How long a stranger may take to say who he is.
const HELLO_TIME: Duration = Duration::from_secs(2);
/// Between two attempts to reach rank 0.
const AGAIN: Duration = Duration::from_millis(20);

const MAGIC: [u8; 8] = *b"vBmeet\0\x01";
const NONCE_BYTES: usize = 32;
const HELLO_BYTES: usize = 8 + 4 + 4 + 8;

/// What only members know; the same at all.
pub(super) struct Secrets {
    pub(super) id: GroupId,
    pub(super) key: Key,
}

impl Secrets {
    /// Derives both from what is secret and what is public.
    pub(super) fn derive(secret: &[u8; 32], public: &[&[u8]]) -> Self {
        let [low, high] = [0, 16].map(|at| {
            let mut half = [0; 16];
            half.copy_from_slice(&secret[at..at + 16]);
            SipHasher24::new_with_key(&half)
        });
        // The lengths keep the parts apart.
        let mut text = Vec::new();
        for part in public {
            text.extend(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            text.extend(*part);
        }
        let word = |hasher: &SipHasher24, purpose: u8| {
            hasher.hash(&[&[purpose], &text[..]].concat()).to_le_bytes()
        };
        let mut key = [0; 16];
        key[..8].copy_from_slice(&word(&low, 1));
        key[8..].copy_from_slice(&word(&high, 2));
        let id = u64::from_le_bytes(word(&low, 3)) ^ u64::from_le_bytes(word(&high, 4));
        Self { id: GroupId(id), key: Key::new(key) }
    }
}

/// A place where all members say something to all, several times.
pub(super) enum Meeting {
    World { world: World, name: String },
    Address(Box<Rendezvous>),
}

impl Meeting {
    pub(super) fn rank(&self) -> Rank {
        match self {
            Self::World { world, .. } => world.rank(),
            Self::Address(rendezvous) => rendezvous.rank,
        }
    }

    pub(super) fn size(&self) -> u32 {
        match self {
            Self::World { world, .. } => world.size(),
            Self::Address(rendezvous) => rendezvous.size,
        }
    }

    pub(super) fn secrets(&self) -> Secrets {
        match self {
            Self::World { world, name } => {
                let identity = world.identity();
                Secrets::derive(&identity.secret, &[b"barrier", &identity.id, name.as_bytes()])
            }
            Self::Address(rendezvous) => {
                let secret = rendezvous.secret.unwrap_or(rendezvous.nonce);
                Secrets::derive(&secret, &[b"barrier", &rendezvous.nonce])
            }
        }
    }

    /// Says `value`, and returns what all have said, by rank. `what` is said once.
    pub(super) async fn all_gather(
        &mut self,
        what: &str,
        value: &[u8],
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>, FormationError> {
        match self {
            Self::World { world, name } => {
                let key = format!("vigie-barrier-{name}-{what}");
                let values = world.all_gather(&key, value, deadline).await?;
                let value = |(rank, value): (u32, Option<Vec<u8>>)| {
                    value.ok_or(FormationError::Gone { rank: Rank(rank) })
                };
                (0..).zip(values).map(value).collect()
            }
            Self::Address(rendezvous) => rendezvous.all_gather(value, deadline).await,
        }
    }
}

/// Members that meet at an address, where rank 0 listens.
pub(super) struct Rendezvous {
    server: Server,
    place: SocketAddr,
    rank: Rank,
    size: u32,
    secret: Option<[u8; 32]>,
    /// Of this meeting: random, made by rank 0.
    nonce: [u8; NONCE_BYTES],
    /// By rank, at rank 0; else the one to rank 0.
    streams: Vec<Option<TcpStream>>,
}

impl Rendezvous {
    /// Meets.
    pub(super) async fn meet(
        server: &Server,
        place: SocketAddr,
        (rank, size): (Rank, u32),
        secret: Option<[u8; 32]>,
        deadline: Instant,
    ) -> Result<Self, FormationError> {
        let failed = |source| FormationError::Meeting { place, source };
        // Both halves of an identity are random.
        let nonce = Identity::random().map_err(failed)?.secret;
        let streams = (0..size).map(|_| None).collect();
        let mut this = Self { server: server.clone(), place, rank, size, secret, nonce, streams };
        let server = server.clone();
        let met = if rank == Rank(0) {
            within(&server, deadline, this.listen()).await
        } else {
            within(&server, deadline, this.connect()).await
        };
        match met {
            Some(met) => met.map_err(failed)?,
            None => return Err(this.too_late()),
        }
        Ok(this)
    }

    /// Why it did not come about in time: rank 0 knows who was missing.
    fn too_late(&self) -> FormationError {
        let missing = (0..).map(Rank).zip(&self.streams).skip(1);
        let missing = missing.filter(|(_, stream)| stream.is_none()).map(|(rank, _)| rank);
        let missing: Vec<Rank> = missing.collect();
        if self.rank == Rank(0) && !missing.is_empty() {
            return FormationError::Missing { place: self.place, ranks: LostRanks::new(missing) };
        }
        FormationError::TimedOut { place: Some(self.place) }
    }

    async fn listen(&mut self) -> io::Result<()> {
        let listener = TcpListener::bind_on(&self.server, self.place)?;
        while self.streams.iter().skip(1).any(Option::is_none) {
            let (stream, _) = listener.accept().await?;
            let until = self.server.now() + HELLO_TIME;
            // A stranger is sent away, and the others are waited for.
            let hello = within(&self.server, until, self.greet(&stream)).await;
            let Some(Ok(rank)) = hello else { continue };
            if let Some(place) = self.streams.get_mut(rank.index())
                && place.is_none()
            {
                *place = Some(stream);
            }
        }
        Ok(())
    }

    /// Says who this meeting is, and learns who that is.
    async fn greet(&self, stream: &TcpStream) -> io::Result<Rank> {
        stream.set_nodelay(true)?;
        write(stream, &[&MAGIC[..], &self.nonce].concat()).await?;
        let mut hello = [0; HELLO_BYTES];
        read(stream, &mut hello).await?;
        let word = |at: usize| {
            u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]])
        };
        let rank = Rank(word(8));
        let is_right = hello[..8] == MAGIC
            && word(12) == self.size
            && rank.0 > 0
            && rank.0 < self.size
            && hello[16..] == self.tag(&hello[8..16]);
        if is_right { Ok(rank) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// What proves to know the secret.
    fn tag(&self, said: &[u8]) -> [u8; 8] {
        let secret = self.secret.unwrap_or([0; 32]);
        let proof = Secrets::derive(&secret, &[b"hello", &self.nonce, said]);
        proof.id.0.to_le_bytes()
    }

    async fn connect(&mut self) -> io::Result<()> {
        loop {
            // Rank 0 is not there yet, or whoever was there has gone.
            if let Ok(stream) = TcpStream::connect_on(&self.server, self.place).await {
                match self.introduce(&stream).await {
                    Ok(()) => {
                        self.streams[0] = Some(stream);
                        return Ok(());
                    }
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
                    Err(_) => {}
                }
            }
            let _ = self.server.timers().wait(self.server.now() + AGAIN).await;
        }
    }

    async fn introduce(&mut self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut front = [0; MAGIC.len() + NONCE_BYTES];
        read(stream, &mut front).await?;
        let (magic, nonce) = front.split_at(MAGIC.len());
        if magic != MAGIC {
            let what = "somebody else, or another version, listens there";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        self.nonce.copy_from_slice(nonce);
        let said = [self.rank.0.to_le_bytes(), self.size.to_le_bytes()].concat();
        let tag = self.tag(&said);
        write(stream, &[&MAGIC[..], &said, &tag].concat()).await
    }

    async fn all_gather(
        &mut self,
        value: &[u8],
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>, FormationError> {
        let gathered = within(&self.server, deadline, self.gather(value)).await;
        gathered.ok_or(FormationError::TimedOut { place: Some(self.place) })?
    }

    /// All say it to rank 0, which says all of it to all.
    async fn gather(&self, value: &[u8]) -> Result<Vec<Vec<u8>>, FormationError> {
        let mut values = Vec::new();
        let streams = (0..).map(Rank).zip(&self.streams);
        let streams = streams.filter_map(|(rank, stream)| Some((rank, stream.as_ref()?)));
        if self.rank == Rank(0) {
            values.push(value.to_vec());
            for (rank, stream) in streams.clone() {
                values.push(read_value(stream).await.map_err(|error| self.broken(rank, error))?);
            }
            let all: Vec<u8> = values.iter().flat_map(|value| framed(value)).collect();
            for (rank, stream) in streams {
                write(stream, &all).await.map_err(|error| self.broken(rank, error))?;
            }
        } else {
            for (rank, stream) in streams {
                let failed = |error| self.broken(rank, error);
                write(stream, &framed(value)).await.map_err(failed)?;
                for _ in 0..self.size {
                    values.push(read_value(stream).await.map_err(failed)?);
                }
            }
        }
        Ok(values)
    }

    /// What it means that the line to a member has failed.
    fn broken(&self, rank: Rank, source: io::Error) -> FormationError {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let place = self.place;
        match (source.kind(), rank) {
            (BrokenPipe | ConnectionReset | UnexpectedEof, Rank(0)) => {
                FormationError::Refused { place }
            }
            (BrokenPipe | ConnectionReset | UnexpectedEof, _) => FormationError::Gone { rank },
            _ => FormationError::Meeting { place, source },
        }
    }
}

fn framed(value: &[u8]) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), value].concat()
}

async fn read_value(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    read(stream, &mut length).await?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > VALUE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut value = vec![0; length];
    read(stream, &mut value).await?;
    Ok(value)
}

async fn read(stream: &TcpStream, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.ready(Interest::Readable).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn write(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.ready(Interest::Writable).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns what `future` does, unless it is not done by then.
pub(super) async fn within<T>(
    server: &Server,
    deadline: Instant,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    let mut timer = pin!(server.timers().wait(deadline));
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        // A server that has ended wakes nobody any more.
        timer.as_mut().poll(cx).map(|_| None)
    })
    .await
}
