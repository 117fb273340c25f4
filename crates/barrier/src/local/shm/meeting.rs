//! How the members of a group find each other and come to share its memory.

use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use thiserror::Error;
use vigie_detect::{AsyncFd, Instant, NoServer, Server, stock::readiness::Direction};
use vigie_via::world::{World, WorldError};

use super::{
    doors::{self, Doors},
    member::{Seat, ShmMember},
    segment::Segment,
    wire::{self, FILES_MAX, Packet, SECRET_BYTES},
};
use crate::{
    error::{BarrierError, LostRanks},
    group::{Group, GroupError, Rank},
};

/// Time between two calls at a meeting point where nobody is yet.
const CALL_AGAIN: Duration = Duration::from_millis(2);

/// Callers whose first words are awaited at once: members, and strangers of the same user.
const CALLERS_MAX: usize = 64;

/// Where members meet, for programs that no launcher has brought together.
///
/// Processes of other users are turned away, and so is who does not know the secret. Whoever knows it can take a
/// member's place.
#[derive(Clone)]
pub struct MeetingPoint {
    name: String,
    secret: [u8; SECRET_BYTES],
}

impl MeetingPoint {
    /// The longest name, in bytes.
    pub const NAME_MAX: usize = 100;

    /// Names a meeting point: a name of 1 to 100 bytes in the network namespace (an abstract Unix socket), free
    /// until rank 0 comes; and a secret that all members know.
    ///
    /// # Errors
    /// [`NameError`] if the name is empty, too long, or contains spaces or control characters.
    pub fn new(name: &str, secret: [u8; 16]) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > Self::NAME_MAX {
            return Err(NameError::TooLong { length: name.len() });
        }
        // Lists of sockets could not show them, and C programs could not name them.
        let is_bad = |character: char| character.is_whitespace() || character.is_control();
        match name.char_indices().find(|(_, character)| is_bad(*character)) {
            Some((at, character)) => Err(NameError::Character { character, at }),
            None => Ok(Self { name: name.to_owned(), secret }),
        }
    }

    /// Makes one of random numbers.
    ///
    /// # Errors
    /// The kernel's, if it has none.
    pub fn random() -> io::Result<Self> {
        let (mut name, mut secret) = ([0; 8], [0; SECRET_BYTES]);
        // Up to 256 bytes are given at once, never fewer than asked [getrandom(2)].
        for bytes in [&mut name[..], &mut secret[..]] {
            rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(Self { name: format!("vigie-barrier-{:016x}", u64::from_le_bytes(name)), secret })
    }

    fn encode(&self) -> Vec<u8> {
        [&self.secret[..], self.name.as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (secret, name) = bytes.split_first_chunk()?;
        Self::new(str::from_utf8(name).ok()?, *secret).ok()
    }
}

impl fmt::Debug for MeetingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeetingPoint").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A meeting point cannot have that name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameError {
    /// There is none.
    #[error(
        "the name is empty: all members need the same, or one that `MeetingPoint::random` has made"
    )]
    Empty,
    /// It does not fit into the address of a socket.
    #[error("a name of {length} bytes: shorten it to {} at most", MeetingPoint::NAME_MAX)]
    TooLong {
        /// How long it is, in bytes.
        length: usize,
    },
    /// It has a character that cannot be shown.
    #[error("the name has {character:?} at byte {at}: leave out spaces and control characters")]
    Character {
        /// Which.
        character: char,
        /// Where, in bytes from 0.
        at: usize,
    },
}

/// The forming of a barrier of processes on one host, as one member sees it.
///
/// ```no_run
/// use std::time::Duration;
/// use vigie_barrier::local::shm::Meeting;
/// use vigie_detect::{Instant, Server};
/// use vigie_via::world::World;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// // A program that `vigie-run` has started, on any executor; inside a vigie runtime, `join` is enough.
/// let host = Server::spawn_thread()?;
/// let deadline = Instant::now() + Duration::from_secs(10);
/// let world = World::join_on(host.server(), deadline).await?;
/// let meeting = Meeting::in_world(&world, "steps", deadline).await?;
/// let mut member = meeting.join_on(host.server(), deadline).await?;
/// for _ in 0..1000 {
///     member.wait().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a meeting forms no group before it is joined"]
pub struct Meeting {
    group: Group,
    rank: Rank,
    point: MeetingPoint,
    /// Of rank 0, where the others know the point only now.
    listener: Option<OwnedFd>,
}

impl Meeting {
    /// The most members of a group: each has a descriptor for every other one.
    pub const SIZE_MAX: u32 = 1024;

    /// Names the meeting of a group at a point that all its members know. Rank 0 listens there until all have
    /// come.
    pub fn new(group: Group, rank: Rank, point: MeetingPoint) -> Self {
        Self { group, rank, point, listener: None }
    }

    /// Lets the ranks of a world, all on this host, agree on a meeting point under `key`: a group of its own for
    /// each key.
    ///
    /// # Cancel safety
    /// The key is used up: agree on another one.
    ///
    /// # Errors
    /// [`FormError::World`], [`FormError::Group`], [`FormError::Io`]; [`FormError::Unreachable`] if rank 0 is gone.
    pub async fn in_world(world: &World, key: &str, deadline: Instant) -> Result<Self, FormError> {
        let group = Group::new(world.size())?;
        let rank = world.rank();
        let mut listener = None;
        let mut value = Vec::new();
        if rank == Rank(0) {
            let doing = "making a meeting point";
            let point = MeetingPoint::random().map_err(FormError::io(doing))?;
            let socket = wire::listen(&point.name, group.size()).map_err(FormError::io(doing))?;
            listener = Some(socket);
            value = point.encode();
        }
        let values = world.all_gather(key, &value, deadline).await?;
        let point = values.first().and_then(|value| MeetingPoint::decode(value.as_deref()?));
        let point = point
            .ok_or_else(|| FormError::Unreachable { source: io::ErrorKind::NotFound.into() })?;
        Ok(Self { group, rank, point, listener })
    }

    /// Joins, watching at the [current](Server::current) server; returns when this member knows all others.
    ///
    /// # Cancel safety
    /// *Loses* the group: the others see this member gone.
    ///
    /// # Errors
    /// [`FormError`].
    pub async fn join(self, deadline: Instant) -> Result<ShmMember, FormError> {
        let server = Server::current()?;
        self.join_on(&server, deadline).await
    }

    /// Like [`join`](Self::join), watching at `server`.
    ///
    /// # Cancel safety
    /// As [`join`](Self::join).
    ///
    /// # Errors
    /// [`FormError`].
    pub async fn join_on(self, server: &Server, deadline: Instant) -> Result<ShmMember, FormError> {
        let size = self.group.size();
        if size > Self::SIZE_MAX || !self.group.contains(self.rank) {
            return Err(FormError::TooMany { size, rank: self.rank });
        }
        let seat = if self.rank == Rank(0) {
            self.lead(server, deadline).await?
        } else {
            self.follow(server, deadline).await?
        };
        Ok(ShmMember::new(server, seat)?)
    }

    /// What rank 0 does.
    async fn lead(self, server: &Server, deadline: Instant) -> Result<Seat, FormError> {
        let Self { group, rank, point, listener } = self;
        let doing = "sharing memory with the other members";
        let (segment, file) = Segment::create(group).map_err(FormError::io(doing))?;
        let (own, door) = doors::pair().map_err(FormError::io(doing))?;
        let listener = match listener {
            Some(listener) => listener,
            None => {
                let listened = wire::listen(&point.name, group.size());
                listened.map_err(FormError::io("listening at the meeting point"))?
            }
        };
        let listener = AsyncFd::new_on(server, listener).map_err(FormError::io(doing))?;
        let mut hall =
            Hall { group, secret: point.secret, callers: Vec::new(), guests: Vec::new() };
        hall.guests.resize_with(Rank(group.size()).index(), || None);
        let came = before(server, deadline, poll_fn(|cx| hall.poll_full(server, &listener, cx)));
        match came.await {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(FormError::io("meeting the other members")(error)),
            None => {
                let ranks = LostRanks::new(hall.missing().collect());
                return Err(FormError::Missing { ranks });
            }
        }
        drop(listener);
        let mut files = vec![file, door];
        let mut lines = Vec::new();
        for (line, door) in hall.guests.into_iter().flatten() {
            lines.push(line);
            files.push(door);
        }
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        for (rank, line) in (1..).map(Rank).zip(&lines) {
            let handed = before(server, deadline, hand_out(line, &borrowed)).await;
            match handed {
                Some(handed) => handed.map_err(|source| FormError::Guest { rank, source })?,
                None => {
                    return Err(FormError::Missing { ranks: LostRanks::new(vec![rank]) });
                }
            }
        }
        let others = files.into_iter().skip(1).map(Some).collect();
        seat(group, rank, segment, (own, others))
    }

    /// What all others do.
    async fn follow(self, server: &Server, deadline: Instant) -> Result<Seat, FormError> {
        let Self { group, rank, point, .. } = self;
        let (own, door) = doors::pair().map_err(FormError::io("making a door"))?;
        let line = call(server, &point.name, deadline).await?;
        let size = group.size();
        let hello = Packet::Hello { secret: point.secret, rank: rank.0, size };
        let talk = async {
            let said = |line: &OwnedFd| wire::send(line.as_fd(), hello, &[door.as_fd()]);
            line.async_io(Direction::Write, said).await?;
            let count = Rank(size).index() + 1;
            let mut files: Vec<OwnedFd> = Vec::new();
            while files.len() < count {
                let heard = |line: &OwnedFd| wire::receive(line.as_fd());
                let (packet, more) = line.async_io(Direction::Read, heard).await?;
                let first = u32::try_from(files.len()).unwrap_or(u32::MAX);
                if packet != (Packet::Files { first }) || more.is_empty() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                files.extend(more);
            }
            let said = |line: &OwnedFd| wire::send(line.as_fd(), Packet::Received, &[]);
            line.async_io(Direction::Write, said).await?;
            Ok(files)
        };
        let files = match before(server, deadline, talk).await {
            Some(talked) => talked.map_err(|source| FormError::Refused { source })?,
            None => return Err(FormError::TimedOut),
        };
        drop(door);
        let mut files = files.into_iter();
        let memory = files.next().ok_or(FormError::TimedOut)?;
        let opened = Segment::open(memory.as_fd(), group);
        let segment = opened.map_err(FormError::io("mapping the memory of the group"))?;
        let others = files.take(Rank(size).index()).map(Some).collect();
        seat(group, rank, segment, (own, others))
    }
}

/// Puts together what a member has. Its own door it has no use for: as long as it held that, nobody else could see
/// by it that it is gone.
fn seat(
    group: Group,
    rank: Rank,
    segment: Segment,
    (own, mut others): (OwnedFd, Vec<Option<OwnedFd>>),
) -> Result<Seat, FormError> {
    if let Some(door) = others.get_mut(rank.index()) {
        *door = None;
    }
    let doors =
        Doors::new(own, others).map_err(FormError::io("watching the doors of the group"))?;
    Ok(Seat { group, rank, segment, doors })
}

/// Where rank 0 receives the others.
struct Hall {
    group: Group,
    secret: [u8; SECRET_BYTES],
    /// Who has not yet said who it is.
    callers: Vec<AsyncFd<OwnedFd>>,
    /// By rank: the line to it, and its door.
    guests: Vec<Option<(AsyncFd<OwnedFd>, OwnedFd)>>,
}

impl Hall {
    fn missing(&self) -> impl Iterator<Item = Rank> {
        let all = (0..).map(Rank).zip(&self.guests).skip(1);
        all.filter(|(_, guest)| guest.is_none()).map(|(rank, _)| rank)
    }

    fn poll_full(
        &mut self,
        server: &Server,
        listener: &AsyncFd<OwnedFd>,
        cx: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            while self.callers.len() < CALLERS_MAX {
                let accepting = |listener: &OwnedFd| wire::accept(listener.as_fd());
                match listener.poll_io(Direction::Read, cx, accepting) {
                    Poll::Ready(Ok(Some(caller))) => {
                        self.callers.push(AsyncFd::new_on(server, caller)?);
                    }
                    // Another user, or one who has hung up already.
                    Poll::Ready(Ok(None)) => {}
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => break,
                }
            }
            let mut has_heard = false;
            for caller in std::mem::take(&mut self.callers) {
                match caller.poll_io(Direction::Read, cx, |line| wire::receive(line.as_fd())) {
                    Poll::Ready(heard) => {
                        has_heard = true;
                        // Who does not belong here is hung up on.
                        if let Ok((packet, files)) = heard {
                            self.admit(caller, packet, files);
                        }
                    }
                    Poll::Pending => self.callers.push(caller),
                }
            }
            if self.missing().next().is_none() {
                return Poll::Ready(Ok(()));
            }
            if !has_heard {
                return Poll::Pending;
            }
        }
    }

    fn admit(&mut self, line: AsyncFd<OwnedFd>, packet: Packet, files: Vec<OwnedFd>) {
        let Packet::Hello { secret, rank, size } = packet else { return };
        let is_member = secret == self.secret && size == self.group.size() && rank > 0;
        let place = self.guests.get_mut(Rank(rank).index()).filter(|place| place.is_none());
        if let (true, Some(place), Ok([door])) = (is_member, place, <[_; 1]>::try_from(files)) {
            *place = Some((line, door));
        }
    }
}

/// Gives a member all files, and waits until it has them.
async fn hand_out(line: &AsyncFd<OwnedFd>, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut first = 0;
    for files in files.chunks(FILES_MAX) {
        let packet = Packet::Files { first };
        line.async_io(Direction::Write, |line| wire::send(line.as_fd(), packet, files)).await?;
        first += u32::try_from(files.len()).unwrap_or(0);
    }
    let (packet, _) = line.async_io(Direction::Read, |line| wire::receive(line.as_fd())).await?;
    if packet == Packet::Received { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Calls rank 0 until it answers.
async fn call(
    server: &Server,
    name: &str,
    deadline: Instant,
) -> Result<AsyncFd<OwnedFd>, FormError> {
    use io::ErrorKind::{ConnectionRefused, WouldBlock};
    loop {
        match wire::connect(name).and_then(|line| AsyncFd::new_on(server, line)) {
            Ok(line) => return Ok(line),
            Err(source) => {
                let is_early = matches!(source.kind(), ConnectionRefused | WouldBlock);
                if !is_early || server.now() >= deadline {
                    return Err(FormError::Unreachable { source });
                }
            }
        }
        let again = server.timers().wait(server.now() + CALL_AGAIN).await;
        again.map_err(BarrierError::from)?;
    }
}

/// Awaits a future until the deadline; `None`: that came first.
async fn before<T>(
    server: &Server,
    deadline: Instant,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    let mut timer = pin!(server.timers().wait(deadline));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        // A server that is shut down has no timers any more.
        Poll::Pending => timer.as_mut().poll(cx).map(|_| None),
    })
    .await
}

/// Why a group was not formed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FormError {
    /// The ranks of the world could not agree on a meeting point.
    #[error("the world's ranks could not agree on where to meet")]
    World(#[from] WorldError),
    /// The world has too many ranks for a group.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// There is no such member of a group that can share memory.
    #[error(
        "{rank} of {size}: groups over shared memory have at most {} members, counted from 0",
        Meeting::SIZE_MAX
    )]
    TooMany {
        /// The size of the group.
        size: u32,
        /// Who wanted to join it.
        rank: Rank,
    },
    /// Members did not come in time: rank 0 says so.
    #[error(
        "{ranks} missing at the meeting: were they all started, on this host, and have they the same name, size and secret?"
    )]
    Missing {
        /// Who did not come, or was sent away.
        ranks: LostRanks,
    },
    /// Rank 0 did not hand out the memory in time: it waits for members that do not come.
    #[error("the deadline came before all members had met: rank 0 says who was missing")]
    TimedOut,
    /// A member is gone, or said what no member says.
    #[error("{rank} left the meeting")]
    Guest {
        /// Which.
        rank: Rank,
        /// The error of its line.
        #[source]
        source: io::Error,
    },
    /// Nobody listens at the meeting point.
    #[error(
        "rank 0 is not at the meeting point: was it started, on this host and in this network namespace?"
    )]
    Unreachable {
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Rank 0 hung up: it has another secret, another size, a member of this rank already, or gave up.
    #[error("rank 0 hung up: see whether secret, size and rank are right, and what rank 0 says")]
    Refused {
        /// The error of the line.
        #[source]
        source: io::Error,
    },
    /// The kernel refused.
    #[error("{doing}")]
    Io {
        /// At what.
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

impl FormError {
    fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
