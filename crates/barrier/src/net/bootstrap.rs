//! The exchange of addresses between future members: through a world's launcher, or at an address.

use std::{io, net::SocketAddr, time::Duration};

use vigie_detect::{
    Instant, Interest, Server,
    net::{TcpListener, TcpStream},
};
use vigie_via::world::{Identity, World};

use super::error::FormationError;
use crate::{
    deadline::with_deadline,
    error::LostRanks,
    group::Rank,
    packet::{GroupId, Key},
};

/// The maximum size of one value that a member sends, in bytes.
const VALUE_BYTES_MAX: usize = 4096;
/// The time that an unknown connection may take to identify itself.
const HELLO_TIME: Duration = Duration::from_secs(2);
/// The most callers that are logged when they are turned away.
const LOGGED_MAX: u32 = 10;
/// Time between two attempts to reach rank 0.
const CONNECT_RETRY: Duration = Duration::from_millis(20);

const MAGIC: [u8; 8] = *b"vBmeet\0\x01";
const NONCE_BYTES: usize = 32;
const HELLO_BYTES: usize = 8 + 4 + 4 + 8;

/// Secrets known only to members, the same at all of them.
pub(super) struct Secrets {
    pub(super) id: GroupId,
    pub(super) key: Key,
}

impl Secrets {
    /// Derives both from secret and public data.
    pub(super) fn derive(secret: &[u8; 32], public: &[&[u8]]) -> Self {
        let [low, high] = [0, 16].map(|at| {
            let mut half = [0; 16];
            half.copy_from_slice(&secret[at..at + 16]);
            Key::new(half)
        });
        // The lengths separate the parts.
        let mut text = Vec::new();
        for part in public {
            text.extend(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            text.extend(*part);
        }
        let word = |half: &Key, purpose: u8| half.short_tag(&[&[purpose], &text[..]].concat());
        let mut key = [0; 16];
        key[..8].copy_from_slice(&word(&low, 1));
        key[8..].copy_from_slice(&word(&high, 2));
        let id = u64::from_le_bytes(word(&low, 3)) ^ u64::from_le_bytes(word(&high, 4));
        Self { id: GroupId(id), key: Key::new(key) }
    }
}

/// A place where each member can send a value to all members, several times.
pub(super) enum NetBootstrap {
    World { world: World, name: String },
    Tcp(Box<TcpBootstrap>),
}

impl NetBootstrap {
    pub(super) fn rank(&self) -> Rank {
        match self {
            Self::World { world, .. } => world.rank(),
            Self::Tcp(tcp) => tcp.rank,
        }
    }

    pub(super) fn size(&self) -> u32 {
        match self {
            Self::World { world, .. } => world.size(),
            Self::Tcp(tcp) => tcp.size,
        }
    }

    pub(super) fn secrets(&self) -> Secrets {
        match self {
            Self::World { world, name } => {
                let identity = world.identity();
                Secrets::derive(&identity.secret, &[b"barrier", &identity.id, name.as_bytes()])
            }
            Self::Tcp(tcp) => {
                let secret = tcp.secret.unwrap_or(tcp.nonce);
                Secrets::derive(&secret, &[b"barrier", &tcp.nonce])
            }
        }
    }

    /// Sends `value`, and returns the values of all members, by rank. Each `what` is used once.
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
            Self::Tcp(tcp) => tcp.all_gather(value, deadline).await,
        }
    }
}

/// Members that meet at an address, where rank 0 listens.
pub(super) struct TcpBootstrap {
    server: Server,
    address: SocketAddr,
    rank: Rank,
    size: u32,
    secret: Option<[u8; 32]>,
    /// Of this bootstrap: random, created by rank 0.
    nonce: [u8; NONCE_BYTES],
    /// By rank, at rank 0; elsewhere only the one to rank 0.
    streams: Vec<Option<TcpStream>>,
    /// The number of callers that rank 0 has turned away.
    rejected_count: u32,
}

impl TcpBootstrap {
    /// Connects the members.
    pub(super) async fn start(
        server: &Server,
        address: SocketAddr,
        (rank, size): (Rank, u32),
        secret: Option<[u8; 32]>,
        deadline: Instant,
    ) -> Result<Self, FormationError> {
        let failed = |source| FormationError::Bootstrap { address, source };
        // Both halves of an identity are random.
        let nonce = Identity::random().map_err(failed)?.secret;
        let streams = (0..size).map(|_| None).collect();
        let mut this = Self {
            server: server.clone(),
            address,
            rank,
            size,
            secret,
            nonce,
            streams,
            rejected_count: 0,
        };
        let server = server.clone();
        let result = if rank == Rank(0) {
            with_deadline(&server, deadline, this.listen()).await
        } else {
            with_deadline(&server, deadline, this.connect()).await
        };
        match result {
            Some(result) => result.map_err(failed)?,
            None => return Err(this.timed_out()),
        }
        Ok(this)
    }

    /// The error for a formation that timed out: rank 0 knows which members were missing.
    fn timed_out(&self) -> FormationError {
        let missing = (0..).map(Rank).zip(&self.streams).skip(1);
        let missing = missing.filter(|(_, stream)| stream.is_none()).map(|(rank, _)| rank);
        let missing: Vec<Rank> = missing.collect();
        if self.rank == Rank(0) && !missing.is_empty() {
            return FormationError::Missing {
                address: self.address,
                ranks: LostRanks::new(missing),
                rejected_count: self.rejected_count,
            };
        }
        FormationError::TimedOut { address: Some(self.address) }
    }

    async fn listen(&mut self) -> io::Result<()> {
        let listener = TcpListener::bind_on(&self.server, self.address)?;
        while self.streams.iter().skip(1).any(Option::is_none) {
            let (stream, caller) = listener.accept().await?;
            let until = self.server.now() + HELLO_TIME;
            let hello = with_deadline(&self.server, until, self.accept_hello(&stream)).await;
            let reason = match hello {
                Some(Ok(rank)) => match self.streams.get_mut(rank.index()) {
                    Some(slot) if slot.is_none() => {
                        *slot = Some(stream);
                        continue;
                    }
                    _ => "another member has its rank".to_owned(),
                },
                Some(Err(error)) => error.to_string(),
                None => "it did not say who it is".to_owned(),
            };
            // Rank 0 keeps waiting for the others.
            self.rejected_count = self.rejected_count.saturating_add(1);
            if self.rejected_count <= LOGGED_MAX {
                tracing::warn!(%caller, reason, "a caller of a barrier's meeting was turned away");
            }
        }
        Ok(())
    }

    /// Sends the nonce of this bootstrap, and learns which member connected.
    async fn accept_hello(&self, stream: &TcpStream) -> io::Result<Rank> {
        stream.set_nodelay(true)?;
        write(stream, &[&MAGIC[..], &self.nonce].concat()).await?;
        let mut hello = [0; HELLO_BYTES];
        read(stream, &mut hello).await?;
        let word = |at: usize| {
            u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]])
        };
        let (rank, size) = (Rank(word(8)), word(12));
        let problem = if hello[..8] != MAGIC {
            "it is another program, or another version".to_owned()
        } else if hello[16..] != self.tag(&hello[8..16]) {
            format!("its secret is a different one (it says that it is {rank} of {size})")
        } else if size != self.size {
            format!("it is {rank} of a group of {size}, and this one has {} members", self.size)
        } else if rank.0 == 0 || rank.0 >= size {
            format!("it says that it is {rank}, and members 1 to {} join", size.saturating_sub(1))
        } else {
            return Ok(rank);
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, problem))
    }

    /// Proof of knowing the secret.
    fn tag(&self, said: &[u8]) -> [u8; 8] {
        let secret = self.secret.unwrap_or([0; 32]);
        let proof = Secrets::derive(&secret, &[b"hello", &self.nonce, said]);
        proof.id.0.to_le_bytes()
    }

    async fn connect(&mut self) -> io::Result<()> {
        loop {
            // Rank 0 is not there yet, or the process that was there is gone.
            if let Ok(stream) = TcpStream::connect_on(&self.server, self.address).await {
                match self.send_hello(&stream).await {
                    Ok(()) => {
                        self.streams[0] = Some(stream);
                        return Ok(());
                    }
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
                    Err(_) => {}
                }
            }
            let _ = self.server.timers().wait(self.server.now() + CONNECT_RETRY).await;
        }
    }

    async fn send_hello(&mut self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut header = [0; MAGIC.len() + NONCE_BYTES];
        read(stream, &mut header).await?;
        let (magic, nonce) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            let what = "another program, or another version, listens there";
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
        let gathered = with_deadline(&self.server, deadline, self.gather(value)).await;
        gathered.ok_or(FormationError::TimedOut { address: Some(self.address) })?
    }

    /// All members send their value to rank 0, which sends all of them to each.
    async fn gather(&self, value: &[u8]) -> Result<Vec<Vec<u8>>, FormationError> {
        let mut values = Vec::new();
        let streams = (0..).map(Rank).zip(&self.streams);
        let streams = streams.filter_map(|(rank, stream)| Some((rank, stream.as_ref()?)));
        if self.rank == Rank(0) {
            values.push(value.to_vec());
            for (rank, stream) in streams.clone() {
                values.push(
                    read_value(stream).await.map_err(|error| self.connection_error(rank, error))?,
                );
            }
            let all: Vec<u8> = values.iter().flat_map(|value| framed(value)).collect();
            for (rank, stream) in streams {
                write(stream, &all).await.map_err(|error| self.connection_error(rank, error))?;
            }
        } else {
            for (rank, stream) in streams {
                let failed = |error| self.connection_error(rank, error);
                write(stream, &framed(value)).await.map_err(failed)?;
                for _ in 0..self.size {
                    values.push(read_value(stream).await.map_err(failed)?);
                }
            }
        }
        Ok(values)
    }

    /// Returns the error for a failed connection to a member.
    fn connection_error(&self, rank: Rank, source: io::Error) -> FormationError {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let address = self.address;
        match (source.kind(), rank) {
            (BrokenPipe | ConnectionReset | UnexpectedEof, Rank(0)) => {
                FormationError::Refused { address }
            }
            (BrokenPipe | ConnectionReset | UnexpectedEof, _) => FormationError::Gone { rank },
            _ => FormationError::Bootstrap { address, source },
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
