//! World: the ranks of a program, how they find each other, and how they end.
//!
//! ```
//! use std::time::Duration;
//! use vigie_detect::{Instant, Server, refuse_in_simulation};
//! use vigie_via::world::World;
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! // Inside a vigie runtime, `World::join` is enough: it uses the scheduler's server.
//! let host = Server::spawn_thread()?;
//! let deadline = Instant::now() + Duration::from_secs(10);
//! let world = World::join_on(host.server(), deadline).await?;
//! // Every rank publishes its address, and learns those of all others.
//! let addresses = world.all_gather("address", b"somewhere", deadline).await?;
//! assert_eq!(addresses.len(), world.size().try_into()?);
//! world.barrier(deadline).await?;
//! world.leave(deadline).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The parts
//! - [`World`]: what a program uses. [`World::join`] finds the launcher that the environment names, or makes
//!   a world of one rank if it names none.
//! - [`Bootstrap`]: the trait behind it, for other kinds of launchers. MPICH's Hydra and Slurm, which speak PMI-1, are
//!   found automatically.
//! - [`tcp`]: the rendezvous for ranks on many hosts without a common launcher.
//! - [`local`]: several ranks on threads of one process, for tests.
//! - [`hub`]: the launcher's side, without I/O; [`wire`]: the protocol between the two. `vigie-run` of the
//!   crate `vigie` adds processes, pipes and signals.
//!
//! # The environment
//! | variable | meaning |
//! | --- | --- |
//! | `VIGIE_RANK`, `VIGIE_SIZE` | with `tcp://`, which rank this is, of how many; other launchers set them for scripts, and a [`World`] asks the launcher instead |
//! | `VIGIE_RENDEZVOUS` | the number of a descriptor: one end of a pair of Unix sockets, the other end of which the launcher holds; or `tcp://ADDRESS:PORT` |
//! | `VIGIE_SECRET`, `VIGIE_SECRET_FILE` | the secret of a rendezvous over TCP, 32 hexadecimal digits, or the file that contains it |
//! | `PMI_FD`, `PMI_RANK`, `PMI_SIZE` | set by launchers that speak PMI-1, used if `VIGIE_RENDEZVOUS` is not set |
//!
//! A descriptor is the right to take part: such a world has no name in the file system or the network, so
//! only processes that the launcher started can attach. Over TCP, the secret is that right. Without any of
//! these variables, a process is a world of its own; an incomplete set is an error.
//!
//! # Cost and limits
//! A world is for setting up and for noticing when ranks end, not for messages: each call is a round trip
//! through the launcher, tens of microseconds. Values are at most [`wire::VALUE_BYTES_MAX`] bytes long.
//!
//! # Non-goals
//! It neither starts nor ends processes: that is the launcher's task. It has no collective operations beyond
//! what setting up needs.

mod attached;
mod environment;
mod error;
pub mod hub;
mod local;
mod member;
mod pmi;
mod rounds;
mod socket;
pub mod tcp;
mod unix;
mod waiting;
pub mod wire;

use std::{env, fmt, future::Future, io, pin::Pin, process, sync::Arc};

use vigie_detect::{Instant, Server, refuse_in_simulation};

use self::environment::Launcher;
pub use self::{
    error::{JoinRefusal, WorldError},
    local::{LocalLauncher, local},
    pmi::PmiError,
};
use crate::auth::{Secret, random};

/// Names the descriptor through which a rank reaches its launcher.
pub const RENDEZVOUS_VARIABLE: &str = "VIGIE_RENDEZVOUS";
/// Tells a rank its number.
pub const RANK_VARIABLE: &str = "VIGIE_RANK";
/// Tells a rank the number of ranks.
pub const SIZE_VARIABLE: &str = "VIGIE_SIZE";

/// Holds the secret of a rendezvous over TCP: 32 hexadecimal digits.
pub const SECRET_VARIABLE: &str = "VIGIE_SECRET";
/// Names the file that holds the secret of a rendezvous over TCP.
pub const SECRET_FILE_VARIABLE: &str = "VIGIE_SECRET_FILE";

/// One of the processes of a world, counted from 0.
///
/// ```
/// use vigie_via::{message::SourceFilter, world::Rank};
///
/// let rank = Rank::from(3);
/// assert!(rank == 3 && u32::from(rank) == 3);
/// assert_eq!(rank.to_string(), "rank 3");
/// assert_eq!(SourceFilter::from(rank), SourceFilter::Rank(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "programs compute with ranks")]
pub struct Rank(pub u32);

impl Rank {
    /// Returns the rank as an index into a slice.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl From<u32> for Rank {
    fn from(number: u32) -> Self {
        Self(number)
    }
}

impl From<Rank> for u32 {
    fn from(rank: Rank) -> Self {
        rank.0
    }
}

impl PartialEq<u32> for Rank {
    fn eq(&self, number: &u32) -> bool {
        self.0 == *number
    }
}

impl PartialEq<Rank> for u32 {
    fn eq(&self, rank: &Rank) -> bool {
        *self == rank.0
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Identifies a world, and lets its ranks authenticate each other. Random, and known only to its ranks.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Differs from world to world; not secret.
    pub id: [u8; 16],
    /// Proves to another rank that this one belongs to the world. Do not print or store it.
    pub secret: [u8; 32],
}

impl Identity {
    /// Makes an identity whose secret its ranks get from elsewhere, as at a rendezvous over [TCP](tcp).
    ///
    /// # Errors
    /// The kernel's.
    pub fn random_without_secret() -> io::Result<Self> {
        Ok(Self { secret: [0; 32], ..Self::random()? })
    }

    /// Makes the identity of a new world, from the kernel's random numbers.
    ///
    /// # Errors
    /// The kernel's.
    pub fn random() -> io::Result<Self> {
        Ok(Self { id: random()?, secret: random()? })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("id", &format_args!("{:032x}", u128::from_be_bytes(self.id)))
            .finish_non_exhaustive()
    }
}

/// A process's place in its world.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Membership {
    /// The process's rank; less than `size`.
    pub rank: Rank,
    /// The number of ranks, at least 1.
    pub size: u32,
    /// The world's identity.
    pub identity: Identity,
}

impl Membership {
    /// Returns a membership, for implementers of [`Bootstrap`].
    #[must_use]
    pub const fn new(rank: Rank, size: u32, identity: Identity) -> Self {
        Self { rank, size, identity }
    }
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RankExit {
    /// On its own, with this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl fmt::Display for RankExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}

/// An event of another rank, as the launcher reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorldEvent {
    /// It has [left](World::leave) in order: it needs the others no longer, and no rank waits for it.
    Left {
        /// The rank.
        rank: Rank,
    },
    /// It broke the rules of the rendezvous, or closed its connection without leaving. Its process may live,
    /// but no rank waits for it any more.
    Expelled {
        /// The rank.
        rank: Rank,
    },
    /// Its process has ended. This is the last event of a rank.
    Ended {
        /// The rank.
        rank: Rank,
        /// The way in which it ended.
        ending: RankExit,
    },
}

impl WorldEvent {
    /// Returns the rank of the event.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        match self {
            Self::Left { rank } | Self::Expelled { rank } | Self::Ended { rank, .. } => *rank,
        }
    }

    /// Returns whether the rank is lost to those that still count on it: it ended or was expelled.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        matches!(self, Self::Expelled { .. } | Self::Ended { .. })
    }
}

/// The result of a call on a [`Bootstrap`]: a boxed future, since setting up is not a hot path.
pub type BootstrapFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, WorldError>> + Send + 'a>>;

/// Connects the ranks of a world: the interface to one kind of launcher.
///
/// # Implementing
/// Keys hold 1 to [`wire::KEY_BYTES_MAX`] letters, digits, `.`, `-`, `_` and `:`, values at most
/// [`wire::VALUE_BYTES_MAX`] bytes, since the simplest launchers carry no more. A [`World`] checks both, and
/// that ranks exist, before it calls. Several tasks may call the methods at once.
///
/// # Contract
/// 1. `membership` never changes.
/// 2. A value that was `put` before its rank entered a barrier is found by `get` after that barrier. An
///    implementation may find it earlier, and may wait for it.
/// 3. `get` of a value whose rank is gone without having put it ends with `None`, not with the deadline.
/// 4. A barrier is passed when every rank has entered it that has neither left nor ended nor been expelled; a
///    rank that passes has been told of all those before.
/// 5. A `get`, `barrier` or `leave` that ends with [`WorldError::TimedOut`], or whose future is dropped, may
///    be repeated: a barrier stays entered, and the next call is for the same one, even if it was passed
///    meanwhile. The value of an interrupted `put` is, or will be, published.
/// 6. Events have one order, and each index always returns the same one; a rank that joins late is told what
///    happened before.
/// 7. Every future ends by its deadline, or when the launcher is lost.
///
/// A launcher that speaks PMI-1 cannot keep all of this contract: a missing value is [`WorldError::NotPut`] instead
/// of being waited for, barriers wait for ranks that have left, and there are no events. A program for every
/// launcher therefore leaves at its end, and not before the others no longer need it.
///
/// # Conformance
/// The unit tests of this module hold for every implementation in this crate.
pub trait Bootstrap: Send + Sync + fmt::Debug {
    /// Returns this process's membership.
    fn membership(&self) -> &Membership;

    /// Publishes a value.
    fn put<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        deadline: Instant,
    ) -> BootstrapFuture<'a, ()>;

    /// Returns the value that `rank` has put; `None` if the rank is gone without having put it.
    fn get<'a>(
        &'a self,
        rank: Rank,
        key: &'a str,
        deadline: Instant,
    ) -> BootstrapFuture<'a, Option<Vec<u8>>>;

    /// Waits for all ranks.
    fn barrier(&self, deadline: Instant) -> BootstrapFuture<'_, ()>;

    /// Returns event number `index`, counted from 0, once it has happened.
    fn event(&self, index: usize) -> BootstrapFuture<'_, WorldEvent>;

    /// Announces that this rank needs the others no longer.
    fn leave(&self, deadline: Instant) -> BootstrapFuture<'_, ()>;

    /// Asks the launcher to end all ranks with `code`, without waiting for long: the caller ends itself next.
    /// The default does nothing, for launchers that notice how this process ends.
    fn abort(&self, code: i32) {
        let _ = code;
    }

    /// Returns the key that this rank shares with each rank and with no third one, by rank. The default is `None`, for launchers
    /// that hand out none.
    fn pair_keys(&self, deadline: Instant) -> BootstrapFuture<'_, Option<Vec<Secret>>> {
        let _ = deadline;
        Box::pin(async { Ok(None) })
    }

    /// Puts a value and returns those of all ranks under this key. The default uses a barrier.
    fn all_gather<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        deadline: Instant,
    ) -> BootstrapFuture<'a, Vec<Option<Vec<u8>>>> {
        Box::pin(async move {
            self.put(key, value, deadline).await?;
            self.barrier(deadline).await?;
            let mut values = Vec::new();
            for rank in (0..self.membership().size).map(Rank) {
                values.push(self.get(rank, key, deadline).await?);
            }
            Ok(values)
        })
    }
}

/// A process's place among the ranks of its program. Clones share the place.
///
/// Any thread and any task may use it, also several at once.
///
/// # Death of the launcher
/// If `vigie-run` is killed, the kernel kills the ranks that it has started at once. A rank behind a shell, or on another host, lives on:
/// every wait of its world ends with [`WorldError::LauncherLost`].
#[derive(Clone, Debug)]
pub struct World {
    bootstrap: Arc<dyn Bootstrap>,
}

impl World {
    /// Joins the world that the [environment](self#the-environment) names, through the
    /// [current](Server::current) server, or makes one of a [single](Self::single) rank if the program was
    /// started without a launcher. With launchers that speak PMI-1 it waits until all ranks have joined; at a
    /// rendezvous over TCP it waits until that answers.
    ///
    /// # Cancel safety
    /// Not cancel safe: it *loses* the connection, and this process cannot join again.
    ///
    /// # Errors
    /// [`WorldError::Environment`] if the variables do not lead to a launcher, [`WorldError::Refused`],
    /// [`WorldError::AlreadyJoined`] on the second call (which without a launcher makes another world
    /// instead), [`WorldError::TimedOut`]; [`WorldError::Io`] for a launcher in a simulation; those of [`WorldError`] that a launcher can
    /// cause.
    pub async fn join(deadline: Instant) -> Result<Self, WorldError> {
        let server = Server::current().map_err(io::Error::from)?;
        Self::join_on(&server, deadline).await
    }

    /// Like [`join`](Self::join), through `server`.
    ///
    /// # Cancel safety
    /// As [`join`](Self::join).
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn join_on(server: &Server, deadline: Instant) -> Result<Self, WorldError> {
        let launcher = environment::find(|variable| env::var_os(variable))?;
        if !matches!(launcher, Launcher::None) {
            server.refuse_in_simulation("launcher", "make the ranks with `world::local`")?;
        }
        match launcher {
            Launcher::None => Ok(Self::single(server)?),
            Launcher::Inherited { descriptor } => {
                let socket = unix::inherited(RENDEZVOUS_VARIABLE, &descriptor)?;
                Ok(Self::from_bootstrap(unix::join(server, socket, deadline).await?))
            }
            Launcher::Tcp(place) => {
                Ok(Self::from_bootstrap(tcp::join(server, place, deadline).await?))
            }
            Launcher::Pmi { descriptor, rank, size } => {
                let socket = unix::inherited(environment::PMI_FD, &descriptor)?;
                Ok(Self::from_bootstrap(pmi::join(server, socket, (rank, size), deadline).await?))
            }
        }
    }

    /// Returns a world of one rank.
    ///
    /// # Errors
    /// The kernel's, if it cannot provide random numbers.
    pub fn single(server: &Server) -> io::Result<Self> {
        let (_, mut worlds) = local(server, 1)?;
        worlds.pop().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Returns a world over your own kind of launcher.
    #[must_use]
    pub fn from_bootstrap(bootstrap: impl Bootstrap + 'static) -> Self {
        Self { bootstrap: Arc::new(bootstrap) }
    }

    /// Returns this process's rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.bootstrap.membership().rank
    }

    /// Returns the number of ranks, at least 1.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.bootstrap.membership().size
    }

    /// Returns the world's identity, including the secret that its ranks share.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.bootstrap.membership().identity
    }

    /// Publishes `value` under `key`, once.
    ///
    /// # Cancel safety
    /// The value is published nevertheless, with the next call that sends something.
    ///
    /// # Errors
    /// [`WorldError::BadKey`], [`WorldError::ValueTooLong`], [`WorldError::AlreadyPut`]; those of
    /// [`WorldError`] that a launcher can cause.
    pub async fn put(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), WorldError> {
        check_key(key)?;
        check_value(value)?;
        self.bootstrap.put(key, value, deadline).await
    }

    /// Returns what `rank` has put under `key`, after waiting for it if the launcher can do that (see
    /// [`Bootstrap`], contract 2). `None` if the rank is gone without having put it.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`WorldError::NoSuchRank`], [`WorldError::BadKey`], [`WorldError::TimedOut`]; those of
    /// [`WorldError`] that a launcher can cause.
    pub async fn get(
        &self,
        rank: Rank,
        key: &str,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>, WorldError> {
        check_key(key)?;
        if rank.0 >= self.size() {
            return Err(WorldError::NoSuchRank { rank, size: self.size() });
        }
        self.bootstrap.get(rank, key, deadline).await
    }

    /// Publishes `value` under `key` and returns what all ranks have put there, by rank; `None` for those
    /// that are gone without having done so.
    ///
    /// # Cancel safety
    /// The value may have been published; continue with [`get`](Self::get).
    ///
    /// # Errors
    /// As [`put`](Self::put) and [`get`](Self::get).
    pub async fn all_gather(
        &self,
        key: &str,
        value: &[u8],
        deadline: Instant,
    ) -> Result<Vec<Option<Vec<u8>>>, WorldError> {
        check_key(key)?;
        check_value(value)?;
        self.bootstrap.all_gather(key, value, deadline).await
    }

    /// Returns the key that this rank shares with each rank and with no third one, by rank: ranks prove to each other by it who
    /// they are. `None` if the launcher hands out none, as those that speak PMI-1. At a rendezvous over TCP these keys are
    /// authenticated, but not encrypted, as all that it says.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`WorldError::TimedOut`]; those of [`WorldError`] that a launcher can cause.
    pub async fn pair_keys(&self, deadline: Instant) -> Result<Option<Vec<Secret>>, WorldError> {
        self.bootstrap.pair_keys(deadline).await
    }

    /// Waits until every rank has entered that has neither left nor ended nor been expelled. The
    /// [events](Self::events) of those are available when this returns. Launchers that speak PMI-1 wait for
    /// all ranks.
    ///
    /// # Cancel safety
    /// This rank stays in the barrier; the next call is for the same one, even if it was passed meanwhile.
    ///
    /// # Errors
    /// [`WorldError::TimedOut`]; those of [`WorldError`] that a launcher can cause.
    pub async fn barrier(&self, deadline: Instant) -> Result<(), WorldError> {
        self.bootstrap.barrier(deadline).await
    }

    /// Returns the events of the other ranks, from the beginning. Launchers that speak PMI-1 report none.
    #[must_use]
    pub fn events(&self) -> Events {
        Events { world: self.clone(), next: 0 }
    }

    /// Announces that this rank needs the others no longer: their barriers and values do not wait for it.
    /// Call this before a regular end; a rank that drops its world without leaving looks like a failure to
    /// the others.
    ///
    /// # Cancel safety
    /// It leaves nevertheless, with the next call: leave again to be sure.
    ///
    /// # Errors
    /// Those of [`WorldError`] that a launcher can cause. Leaving twice is not an error.
    pub async fn leave(&self, deadline: Instant) -> Result<(), WorldError> {
        self.bootstrap.leave(deadline).await
    }

    /// Ends the program: this process with `code`, without running destructors, and through the launcher all
    /// others, unless the launcher keeps them running (`vigie-run --keep-going`, the rendezvous over TCP).
    ///
    /// `vigie-run` and Hydra then end with `code`; Slurm's `srun` ends with the largest code of any rank,
    /// which is that of the ranks it has killed.
    ///
    /// # Panics
    /// In a simulation, whose ranks have one process in common.
    pub fn abort(&self, code: i32) -> ! {
        self.bootstrap.abort(code);
        if let Err(error) = refuse_in_simulation("process of each rank", "let its node crash") {
            panic!("a rank aborts with {code}: {error}");
        }
        process::exit(code)
    }
}

/// The events of the other ranks: see [`World::events`].
#[derive(Clone, Debug)]
pub struct Events {
    world: World,
    next: usize,
}

impl Events {
    /// Returns the next event, once it has happened.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// Those of [`WorldError`] that [are final](WorldError::is_final): no further event can come.
    pub async fn next(&mut self) -> Result<WorldEvent, WorldError> {
        let event = self.world.bootstrap.event(self.next).await?;
        self.next += 1;
        Ok(event)
    }
}

/// Returns whether every launcher can carry `key`.
fn is_key(key: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    (1..=wire::KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(is_allowed)
}

fn check_key(key: &str) -> Result<(), WorldError> {
    is_key(key).then_some(()).ok_or_else(|| WorldError::BadKey { key: key.to_owned() })
}

const fn check_value(value: &[u8]) -> Result<(), WorldError> {
    if value.len() > wire::VALUE_BYTES_MAX {
        return Err(WorldError::ValueTooLong { bytes: value.len() });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
