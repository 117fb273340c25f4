//! The bootstrap of a group: its members find each other and get its shared memory.

use std::{
    fmt,
    future::poll_fn,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    task::{Context, Poll},
    time::Duration,
};

use thiserror::Error;
use vigie_detect::{
    AsyncFd, Instant, NoServer, Server, detectors::readiness::Direction, refuse_in_simulation,
};
use vigie_via::{
    auth::random,
    world::{World, WorldError},
};

use super::{
    liveness::{self, LivenessSockets},
    member::{MemberState, ShmMember},
    segment::Segment,
    wire::{self, FILES_MAX, Handshake, SECRET_BYTES},
};
use crate::{
    deadline::with_deadline,
    error::{BarrierError, LostRanks},
    group::{Group, GroupError, Rank},
};

/// Time between two attempts to connect while no process listens at the bootstrap point.
const CONNECT_RETRY: Duration = Duration::from_millis(2);

/// The maximum number of connections whose first message is awaited: from members, and from strangers of the same
/// user.
const PENDING_MAX: usize = 64;

/// The place where members meet, for programs that were not started together by a launcher.
///
/// Processes of other users are turned away, and so are those that do not know the secret. A process that knows it
/// can take a member's place.
#[derive(Clone)]
pub struct BootstrapPoint {
    name: String,
    secret: [u8; SECRET_BYTES],
}

impl BootstrapPoint {
    /// The longest name, in bytes.
    pub const NAME_MAX: usize = 100;

    /// Creates a bootstrap point from a name of 1 to 100 bytes in the network namespace (an abstract Unix socket),
    /// which must be free until rank 0 arrives, and a secret that all members know.
    ///
    /// # Errors
    /// [`BootstrapNameError`] if the name is empty, too long, or contains spaces or control characters.
    pub fn new(name: &str, secret: [u8; 16]) -> Result<Self, BootstrapNameError> {
        if name.is_empty() {
            return Err(BootstrapNameError::Empty);
        }
        if name.len() > Self::NAME_MAX {
            return Err(BootstrapNameError::TooLong { length: name.len() });
        }
        // Lists of sockets could not show them, and C programs could not use them.
        let is_bad = |character: char| character.is_whitespace() || character.is_control();
        match name.char_indices().find(|(_, character)| is_bad(*character)) {
            Some((at, character)) => Err(BootstrapNameError::Character { character, at }),
            None => Ok(Self { name: name.to_owned(), secret }),
        }
    }

    /// Creates one from random numbers.
    ///
    /// # Errors
    /// The kernel's error, if it has no random numbers.
    pub fn random() -> io::Result<Self> {
        let name = format!("vigie-barrier-{:016x}", u64::from_le_bytes(random()?));
        Ok(Self { name, secret: random()? })
    }

    fn encode(&self) -> Vec<u8> {
        [&self.secret[..], self.name.as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (secret, name) = bytes.split_first_chunk()?;
        Self::new(str::from_utf8(name).ok()?, *secret).ok()
    }
}

impl fmt::Debug for BootstrapPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootstrapPoint").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A bootstrap point cannot have this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BootstrapNameError {
    /// The name is empty.
    #[error(
        "the name is empty: all members need the same, or one that `BootstrapPoint::random` has made"
    )]
    Empty,
    /// It does not fit into a socket address.
    #[error("a name of {length} bytes: shorten it to {} at most", BootstrapPoint::NAME_MAX)]
    TooLong {
        /// Its length, in bytes.
        length: usize,
    },
    /// It has a character that cannot be displayed.
    #[error("the name has {character:?} at byte {at}: leave out spaces and control characters")]
    Character {
        /// The character.
        character: char,
        /// Its offset, in bytes from 0.
        at: usize,
    },
}

/// The formation of a barrier of processes on one host, from the point of view of one member.
///
/// ```no_run
/// use std::time::Duration;
/// use vigie_barrier::local::shm::ShmBootstrap;
/// use vigie_detect::{Instant, Server};
/// use vigie_via::world::World;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// // A program that `vigie-run` has started, on any executor; inside a vigie runtime, `join` is enough.
/// let host = Server::spawn_thread()?;
/// let deadline = Instant::now() + Duration::from_secs(10);
/// let world = World::join_on(host.server(), deadline).await?;
/// let bootstrap = ShmBootstrap::in_world(&world, "steps", deadline).await?;
/// let mut member = bootstrap.join_on(host.server(), deadline).await?;
/// for _ in 0..1000 {
///     member.wait().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a bootstrap forms no group before it is joined"]
pub struct ShmBootstrap {
    group: Group,
    rank: Rank,
    point: BootstrapPoint,
    /// Only at rank 0, if the others learn of the point only now.
    listener: Option<OwnedFd>,
}

/// Refuses to form a group inside a simulation.
fn require_processes() -> Result<(), ShmFormationError> {
    let refused = refuse_in_simulation(
        "processes that share memory",
        "form a `NetBarrier` over UDP, or use a `TaskBarrier`",
    );
    refused.map_err(ShmFormationError::io("forming a group over shared memory"))
}

impl ShmBootstrap {
    /// The largest group: each member has a descriptor for every other one.
    pub const SIZE_MAX: u32 = 1024;

    /// Uses a bootstrap point that all members of the group know. Rank 0 listens there until all have arrived.
    pub fn new(group: Group, rank: Rank, point: BootstrapPoint) -> Self {
        Self { group, rank, point, listener: None }
    }

    /// Lets the ranks of a world, all on this host, agree on a bootstrap point under `key`: each key makes a separate
    /// group.
    ///
    /// # Cancel safety
    /// Not cancel safe: the key is used up, so agree on another one.
    ///
    /// # Errors
    /// [`ShmFormationError::World`], [`ShmFormationError::Group`], [`ShmFormationError::Io`]; [`ShmFormationError::Unreachable`] if rank 0 is gone.
    pub async fn in_world(
        world: &World,
        key: &str,
        deadline: Instant,
    ) -> Result<Self, ShmFormationError> {
        require_processes()?;
        let group = Group::new(world.size())?;
        let rank = world.rank();
        let mut listener = None;
        let mut value = Vec::new();
        if rank == Rank(0) {
            let doing = "making a bootstrap point";
            let point = BootstrapPoint::random().map_err(ShmFormationError::io(doing))?;
            let socket =
                wire::listen(&point.name, group.size()).map_err(ShmFormationError::io(doing))?;
            listener = Some(socket);
            value = point.encode();
        }
        let values = world.all_gather(key, &value, deadline).await?;
        let point = values.first().and_then(|value| BootstrapPoint::decode(value.as_deref()?));
        let point = point.ok_or_else(|| ShmFormationError::Unreachable {
            source: io::ErrorKind::NotFound.into(),
        })?;
        Ok(Self { group, rank, point, listener })
    }

    /// Joins, with the [current](Server::current) server watching; returns when this member is connected to all
    /// others.
    ///
    /// # Cancel safety
    /// *Loses* the group: to the others, this member is gone.
    ///
    /// # Errors
    /// [`ShmFormationError`].
    pub async fn join(self, deadline: Instant) -> Result<ShmMember, ShmFormationError> {
        let server = Server::current()?;
        self.join_on(&server, deadline).await
    }

    /// Like [`join`](Self::join), with `server` watching.
    ///
    /// # Cancel safety
    /// The same as [`join`](Self::join).
    ///
    /// # Errors
    /// [`ShmFormationError`].
    pub async fn join_on(
        self,
        server: &Server,
        deadline: Instant,
    ) -> Result<ShmMember, ShmFormationError> {
        require_processes()?;
        let size = self.group.size();
        if size > Self::SIZE_MAX || !self.group.contains(self.rank) {
            return Err(ShmFormationError::Impossible { size, rank: self.rank });
        }
        let state = if self.rank == Rank(0) {
            self.lead(server, deadline).await?
        } else {
            self.follow(server, deadline).await?
        };
        Ok(ShmMember::new(server, state)?)
    }

    /// The part of rank 0.
    async fn lead(
        self,
        server: &Server,
        deadline: Instant,
    ) -> Result<MemberState, ShmFormationError> {
        let Self { group, rank, point, listener } = self;
        let doing = "sharing memory with the other members";
        let (segment, file) = Segment::create(group).map_err(ShmFormationError::io(doing))?;
        let (own, socket) = liveness::pair().map_err(ShmFormationError::io(doing))?;

        let listener = match listener {
            Some(listener) => listener,
            None => {
                let listened = wire::listen(&point.name, group.size());
                listened.map_err(|error| {
                    let is_taken = error.kind() == io::ErrorKind::AddrInUse;
                    ShmFormationError::io(if is_taken {
                        "another process is rank 0 at this meeting point: end it, or take another name"
                    } else {
                        "listening at the bootstrap point"
                    })(error)
                })?
            }
        };
        let listener = AsyncFd::new_on(server, listener).map_err(ShmFormationError::io(doing))?;

        let mut acceptor =
            Acceptor { group, secret: point.secret, pending: Vec::new(), admitted: Vec::new() };
        acceptor.admitted.resize_with(Rank(group.size()).index(), || None);
        let all_here = with_deadline(
            server,
            deadline,
            poll_fn(|cx| acceptor.poll_full(server, &listener, cx)),
        );

        match all_here.await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                return Err(ShmFormationError::io("waiting for the other members")(error));
            }
            None => {
                let ranks = LostRanks::new(acceptor.missing().collect());
                return Err(ShmFormationError::Missing { ranks });
            }
        }
        drop(listener);

        let mut files = vec![file, socket];
        let mut connections = Vec::new();
        for (connection, socket) in acceptor.admitted.into_iter().flatten() {
            connections.push(connection);
            files.push(socket);
        }
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        for (rank, connection) in (1..).map(Rank).zip(&connections) {
            let sent = with_deadline(server, deadline, send_files(connection, &borrowed)).await;
            match sent {
                Some(sent) => {
                    sent.map_err(|source| ShmFormationError::MemberLeft { rank, source })?
                }
                None => {
                    return Err(ShmFormationError::Missing { ranks: LostRanks::new(vec![rank]) });
                }
            }
        }

        let others = files.into_iter().skip(1).map(Some).collect();
        assemble(group, rank, segment, (own, others))
    }

    /// The part of all other ranks.
    async fn follow(
        self,
        server: &Server,
        deadline: Instant,
    ) -> Result<MemberState, ShmFormationError> {
        let Self { group, rank, point, .. } = self;
        let (own, socket) =
            liveness::pair().map_err(ShmFormationError::io("making a liveness socket"))?;
        let connection = connect(server, &point.name, deadline).await?;
        let size = group.size();
        let hello = Handshake::Hello { secret: point.secret, rank: rank.0, size };
        let exchange = async {
            let send =
                |connection: &OwnedFd| wire::send(connection.as_fd(), hello, &[socket.as_fd()]);
            connection.async_io(Direction::Write, send).await?;
            let count = Rank(size).index() + 1;
            let mut files: Vec<OwnedFd> = Vec::new();
            while files.len() < count {
                let received = |connection: &OwnedFd| wire::receive(connection.as_fd());
                let (message, more) = connection.async_io(Direction::Read, received).await?;
                let first = u32::try_from(files.len()).unwrap_or(u32::MAX);
                if message != (Handshake::Files { first }) || more.is_empty() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                files.extend(more);
            }
            let send =
                |connection: &OwnedFd| wire::send(connection.as_fd(), Handshake::Received, &[]);
            connection.async_io(Direction::Write, send).await?;
            Ok(files)
        };
        let files = match with_deadline(server, deadline, exchange).await {
            Some(exchanged) => exchanged.map_err(|source| ShmFormationError::Refused { source })?,
            None => return Err(ShmFormationError::TimedOut),
        };
        drop(socket);
        let mut files = files.into_iter();
        let memory = files.next().ok_or(ShmFormationError::TimedOut)?;
        let opened = Segment::open(memory.as_fd(), group);
        let segment = opened.map_err(ShmFormationError::io("mapping the memory of the group"))?;
        let others = files.take(Rank(size).index()).map(Some).collect();
        assemble(group, rank, segment, (own, others))
    }
}

/// Assembles a member. It does not keep its own liveness socket: while it held that, the others could not detect its
/// end by it.
fn assemble(
    group: Group,
    rank: Rank,
    segment: Segment,
    (own, mut others): (OwnedFd, Vec<Option<OwnedFd>>),
) -> Result<MemberState, ShmFormationError> {
    if let Some(socket) = others.get_mut(rank.index()) {
        *socket = None;
    }
    let sockets = LivenessSockets::new(own, others)
        .map_err(ShmFormationError::io("watching the liveness sockets of the group"))?;
    Ok(MemberState { group, rank, segment, sockets })
}

/// Accepts the other members at rank 0.
struct Acceptor {
    group: Group,
    secret: [u8; SECRET_BYTES],
    /// Connections that have not said yet which member they are.
    pending: Vec<AsyncFd<OwnedFd>>,
    /// By rank: the connection to the member, and its liveness socket.
    admitted: Vec<Option<(AsyncFd<OwnedFd>, OwnedFd)>>,
}

impl Acceptor {
    fn missing(&self) -> impl Iterator<Item = Rank> {
        let all = (0..).map(Rank).zip(&self.admitted).skip(1);
        all.filter(|(_, member)| member.is_none()).map(|(rank, _)| rank)
    }

    fn poll_full(
        &mut self,
        server: &Server,
        listener: &AsyncFd<OwnedFd>,
        cx: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            while self.pending.len() < PENDING_MAX {
                let accepting = |listener: &OwnedFd| wire::accept(listener.as_fd());
                match listener.poll_io(Direction::Read, cx, accepting) {
                    Poll::Ready(Ok(Some(connection))) => {
                        self.pending.push(AsyncFd::new_on(server, connection)?);
                    }
                    // Another user's process, or one that has disconnected already.
                    Poll::Ready(Ok(None)) => {}
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => break,
                }
            }
            let mut has_received = false;
            for connection in std::mem::take(&mut self.pending) {
                match connection
                    .poll_io(Direction::Read, cx, |connection| wire::receive(connection.as_fd()))
                {
                    Poll::Ready(received) => {
                        has_received = true;
                        // Connections that do not belong here are closed.
                        if let Ok((message, files)) = received {
                            self.admit(connection, message, files);
                        }
                    }
                    Poll::Pending => self.pending.push(connection),
                }
            }
            if self.missing().next().is_none() {
                return Poll::Ready(Ok(()));
            }
            if !has_received {
                return Poll::Pending;
            }
        }
    }

    fn admit(&mut self, connection: AsyncFd<OwnedFd>, message: Handshake, files: Vec<OwnedFd>) {
        let Handshake::Hello { secret, rank, size } = message else { return };
        let is_member = secret == self.secret && size == self.group.size() && rank > 0;
        let slot = self.admitted.get_mut(Rank(rank).index()).filter(|slot| slot.is_none());
        if let (true, Some(slot), Ok([socket])) = (is_member, slot, <[_; 1]>::try_from(files)) {
            *slot = Some((connection, socket));
        }
    }
}

/// Sends a member all files, and waits until it has them.
async fn send_files(connection: &AsyncFd<OwnedFd>, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut first = 0;
    for files in files.chunks(FILES_MAX) {
        let message = Handshake::Files { first };
        connection
            .async_io(Direction::Write, |connection| wire::send(connection.as_fd(), message, files))
            .await?;
        first += u32::try_from(files.len()).unwrap_or(0);
    }
    let (message, _) = connection
        .async_io(Direction::Read, |connection| wire::receive(connection.as_fd()))
        .await?;
    if message == Handshake::Received { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Connects to rank 0, retrying until it answers.
async fn connect(
    server: &Server,
    name: &str,
    deadline: Instant,
) -> Result<AsyncFd<OwnedFd>, ShmFormationError> {
    use io::ErrorKind::{ConnectionRefused, WouldBlock};
    loop {
        match wire::connect(name).and_then(|connection| AsyncFd::new_on(server, connection)) {
            Ok(connection) => return Ok(connection),
            Err(source) => {
                let is_early = matches!(source.kind(), ConnectionRefused | WouldBlock);
                if !is_early || server.now() >= deadline {
                    return Err(ShmFormationError::Unreachable { source });
                }
            }
        }
        let again = server.timers().wait(server.now() + CONNECT_RETRY).await;
        again.map_err(BarrierError::from)?;
    }
}

/// The reason why a group was not formed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShmFormationError {
    /// The ranks of the world could not agree on a bootstrap point.
    #[error("the world's ranks could not agree on where to meet: {0}")]
    World(#[from] WorldError),
    /// The world has too many ranks for a group.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The group is too large for shared memory, or has no such rank.
    #[error(
        "{rank} of {size} members: a group over shared memory has 1 to {} members, whose ranks are counted from 0",
        ShmBootstrap::SIZE_MAX
    )]
    Impossible {
        /// The size of the group.
        size: u32,
        /// The rank that wanted to join it.
        rank: Rank,
    },
    /// Members did not come in time; reported by rank 0.
    #[error(
        "{ranks} missing at the meeting: were they all started, on this host, and do they have the same name, size and secret?"
    )]
    Missing {
        /// The members that did not come, or were turned away.
        ranks: LostRanks,
    },
    /// Rank 0 did not hand out the memory in time: it waits for missing members.
    #[error("the deadline came before all members had met: rank 0 says who was missing")]
    TimedOut,
    /// A member is gone, or sent something that members do not send.
    #[error("{rank} left the meeting: {source}")]
    MemberLeft {
        /// The member.
        rank: Rank,
        /// The error of its connection.
        #[source]
        source: io::Error,
    },
    /// No process listens at the bootstrap point.
    #[error(
        "rank 0 is not at the meeting point: was it started, on this host and in this network namespace? ({source})"
    )]
    Unreachable {
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Rank 0 closed the connection: it has another secret, another size, a member with this rank already, or gave
    /// up.
    #[error("rank 0 hung up: check secret, size and rank, and rank 0's own error ({source})")]
    Refused {
        /// The error of the connection.
        #[source]
        source: io::Error,
    },
    /// The kernel refused a call.
    #[error("{doing}: {source}")]
    Io {
        /// The operation that the call was for.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// There is no detection server here.
    #[error(transparent)]
    NoServer(#[from] NoServer),
    /// The watch over the barrier could not be set up.
    #[error(transparent)]
    Watch(#[from] BarrierError),
}

impl ShmFormationError {
    fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
