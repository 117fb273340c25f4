//! World: the ranks of a program, how they find each other, and what becomes of them.
//!
//! ```
//! use std::time::Duration;
//! use vigie_detect::{Instant, Server};
//! use vigie_via::world::World;
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! // Inside a vigie runtime, `World::join` is enough: it uses the scheduler's server.
//! let host = Server::spawn_thread()?;
//! let deadline = Instant::now() + Duration::from_secs(10);
//! let world = World::join_on(host.server(), deadline).await?;
//! // Every rank says where it can be reached, and learns it of all others.
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
//! - [`World`]: what a program uses. [`World::join`] finds the launcher that the environment names, or
//!   makes a world of one rank if it names none.
//! - [`Bootstrap`]: the trait behind it, for launchers of other kinds. MPICH's Hydra and Slurm, which speak PMI-1, are
//!   found by themselves.
//! - [`tcp`]: the rendezvous of ranks on many hosts that no launcher brings together.
//! - [`local`]: several ranks on threads of one process, for tests.
//! - [`hub`]: the launcher's side, without I/O; [`wire`]: the bytes between both. `vigie-run` of the
//!   crate `vigie` puts processes, pipes and signals around them.
//!
//! # The environment
//! | variable | meaning |
//! | --- | --- |
//! | `VIGIE_RANK`, `VIGIE_SIZE` | for scripts, where a launcher has set them, which a [`World`] asks; with `tcp://`, which rank this is, and of how many |
//! | `VIGIE_RENDEZVOUS` | the number of a descriptor: one end of a pair of Unix sockets, whose other end the launcher holds; or `tcp://ADDRESS:PORT` |
//! | `VIGIE_SECRET`, `VIGIE_SECRET_FILE` | the secret of a rendezvous over TCP, 32 hexadecimal digits, or the file in which it is |
//! | `PMI_FD`, `PMI_RANK`, `PMI_SIZE` | set by launchers that speak PMI-1, used if `VIGIE_RENDEZVOUS` is not set |
//!
//! A descriptor is the right to take part: nothing of such a world has a name in the file system or in
//! the network, so nobody can attach who was not started by the launcher. Over TCP the secret is that.
//! Without any of these variables, a process is a world of its own; if they are half there, it is an error.
//!
//! # Cost and limits
//! For setting up and for hearing of ends, not for messages: each call is a round trip through the
//! launcher, tens of microseconds. Values of at most [`wire::VALUE_BYTES_MAX`] bytes.
//!
//! # What it deliberately does not do
//! It starts no processes and ends none: that is the launcher's. It has no collective operations beyond
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

use vigie_detect::{Instant, Server};

use self::environment::Launcher;
pub use self::{
    error::{Refusal, WorldError},
    local::{LocalLauncher, local},
    pmi::PmiError,
};

/// Names the descriptor through which a rank reaches its launcher.
pub const RENDEZVOUS_VARIABLE: &str = "VIGIE_RENDEZVOUS";
/// Tells a rank its number.
pub const RANK_VARIABLE: &str = "VIGIE_RANK";
/// Tells a rank how many there are.
pub const SIZE_VARIABLE: &str = "VIGIE_SIZE";

/// Holds the secret of a rendezvous over TCP: 32 hexadecimal digits.
pub const SECRET_VARIABLE: &str = "VIGIE_SECRET";
/// Names the file that holds the secret of a rendezvous over TCP.
pub const SECRET_FILE_VARIABLE: &str = "VIGIE_SECRET_FILE";

/// One of the processes of a world, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "programs compute with ranks")]
pub struct Rank(pub u32);

impl Rank {
    /// Returns the rank as an index of a slice.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Which world this is, and how its ranks know each other. Random, and told to nobody but its ranks.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Differs from world to world; no secret.
    pub id: [u8; 16],
    /// What a rank shows to another to prove that it is of this world. Not to be printed or stored.
    pub secret: [u8; 32],
}

impl Identity {
    /// Makes an identity whose secret its ranks have from elsewhere, as at a rendezvous over [TCP](tcp).
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
        let mut this = Self { id: [0; 16], secret: [0; 32] };
        // The kernel hands out up to 256 bytes at once, never fewer than asked [getrandom(2)].
        let flags = rustix::rand::GetRandomFlags::empty();
        let count = rustix::rand::getrandom(&mut this.id[..], flags)?
            + rustix::rand::getrandom(&mut this.secret[..], flags)?;
        if count != this.id.len() + this.secret.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(this)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("id", &format_args!("{:032x}", u128::from_be_bytes(self.id)))
            .finish_non_exhaustive()
    }
}

/// Who a process is in its world.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Membership {
    /// Which rank it is; less than `size`.
    pub rank: Rank,
    /// How many ranks there are, at least 1.
    pub size: u32,
    /// Which world it is.
    pub identity: Identity,
}

impl Membership {
    /// Returns a membership, for implementers of [`Bootstrap`].
    #[must_use]
    pub const fn new(rank: Rank, size: u32, identity: Identity) -> Self {
        Self { rank, size, identity }
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ending {
    /// By itself, with this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}

/// What happened to another rank, as the launcher tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// It has [left](World::leave) in order: it needs nobody any more, and nobody waits for it.
    Left {
        /// Which rank.
        rank: Rank,
    },
    /// It broke the rules of the rendezvous, or closed its connection without leaving. Its process
    /// may live, but nobody waits for it any more.
    Expelled {
        /// Which rank.
        rank: Rank,
    },
    /// Its process has ended; the last event of a rank.
    Ended {
        /// Which rank.
        rank: Rank,
        /// How.
        ending: Ending,
    },
}

impl Event {
    /// Returns the rank that it happened to.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        match self {
            Self::Left { rank } | Self::Expelled { rank } | Self::Ended { rank, .. } => *rank,
        }
    }

    /// Returns whether the rank is lost to those who still count on it: it ended or was expelled.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        matches!(self, Self::Expelled { .. } | Self::Ended { .. })
    }
}

/// What a call on a [`Bootstrap`] returns: a future on the heap, since setting up is no hot path.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, WorldError>> + Send + 'a>>;

/// How the ranks of a world find each other: a launcher of some kind.
///
/// # Implementing
/// Keys hold 1 to [`wire::KEY_BYTES_MAX`] letters, digits, `.`, `-`, `_` and `:`, values at most
/// [`wire::VALUE_BYTES_MAX`] bytes: what the simplest of launchers can carry. A [`World`] checks both,
/// and that ranks exist, before it calls. The methods may be called by several tasks at once.
///
/// # Contract
/// 1. `membership` never changes.
/// 2. A value that was `put` before its rank came to a barrier is found by `get` after that barrier. An
///    implementation may find it earlier, and may wait for it.
/// 3. `get` of a value whose rank has gone without it ends with `None`, not with the deadline.
/// 4. A barrier is passed when every rank has come to it that has neither left nor ended nor been
///    expelled; and who passes has been told of all those before.
/// 5. A `get`, `barrier` or `leave` that ends with [`WorldError::TimedOut`], or whose future is dropped,
///    may be repeated: a barrier stays entered, and the next call is for the same one, also if it was
///    passed meanwhile. A `put` that was cut off is put, or will be.
/// 6. Events have one order, the same at each call with the same index; a rank that joins late is told
///    what happened before.
/// 7. Every future ends by its deadline, or when the launcher is lost.
///
/// A launcher that speaks PMI-1 cannot keep all of it: what is not there is [`WorldError::NotPut`] instead of being
/// waited for, barriers wait for ranks that have left, and there are no events. Programs for every launcher
/// leave at their end, and not before the others need them no more.
///
/// # Conformance
/// The unit tests of this module hold for every implementation in this crate.
pub trait Bootstrap: Send + Sync + fmt::Debug {
    /// Returns who this process is.
    fn membership(&self) -> &Membership;

    /// Publishes a value.
    fn put<'a>(&'a self, key: &'a str, value: &'a [u8], deadline: Instant) -> Answer<'a, ()>;

    /// Returns the value that `rank` has put; `None`: the rank is gone without it.
    fn get<'a>(
        &'a self,
        rank: Rank,
        key: &'a str,
        deadline: Instant,
    ) -> Answer<'a, Option<Vec<u8>>>;

    /// Waits for all ranks.
    fn barrier(&self, deadline: Instant) -> Answer<'_, ()>;

    /// Returns event number `index`, counted from 0, when it has happened.
    fn event(&self, index: usize) -> Answer<'_, Event>;

    /// Says that this rank needs nobody any more.
    fn leave(&self, deadline: Instant) -> Answer<'_, ()>;

    /// Asks the launcher to end all ranks with `code`, without waiting for long: the caller ends itself
    /// next. The default asks for nothing: for launchers that see how this process ends.
    fn abort(&self, code: i32) {
        let _ = code;
    }

    /// Puts a value and returns those of all ranks by this key. The default does so by a barrier.
    fn all_gather<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        deadline: Instant,
    ) -> Answer<'a, Vec<Option<Vec<u8>>>> {
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

/// A process's place among the ranks of its program. Clones are the same place.
///
/// Any thread and any task may use it, also several at once.
#[derive(Clone, Debug)]
pub struct World {
    bootstrap: Arc<dyn Bootstrap>,
}

impl World {
    /// Joins the world that the [environment](self#the-environment) names, watching at the
    /// [current](Server::current) server; or makes one of a [single](Self::single) rank, if the program was
    /// started without a launcher. With launchers that speak PMI-1 it waits until all ranks have joined, at a
    /// rendezvous over TCP until that is there.
    ///
    /// # Cancel safety
    /// *Loses* the connection: this process cannot join again.
    ///
    /// # Errors
    /// [`WorldError::Environment`] if the variables do not lead to a launcher, [`WorldError::Refused`],
    /// [`WorldError::AlreadyJoined`] the second time (without a launcher, that is another world instead),
    /// [`WorldError::TimedOut`]; those of [`WorldError`] that a launcher can cause.
    pub async fn join(deadline: Instant) -> Result<Self, WorldError> {
        let server = Server::current().map_err(io::Error::from)?;
        Self::join_on(&server, deadline).await
    }

    /// Like [`join`](Self::join), watching at `server`.
    ///
    /// # Cancel safety
    /// As [`join`](Self::join).
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn join_on(server: &Server, deadline: Instant) -> Result<Self, WorldError> {
        match environment::find(|variable| env::var_os(variable))? {
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
    /// The kernel's, if it has no random numbers.
    pub fn single(server: &Server) -> io::Result<Self> {
        let (_, mut worlds) = local(server, 1)?;
        worlds.pop().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Returns a world over a launcher of the caller's own kind.
    #[must_use]
    pub fn from_bootstrap(bootstrap: impl Bootstrap + 'static) -> Self {
        Self { bootstrap: Arc::new(bootstrap) }
    }

    /// Returns which rank this process is.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.bootstrap.membership().rank
    }

    /// Returns how many ranks there are, at least 1.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.bootstrap.membership().size
    }

    /// Returns which world this is, with the secret that its ranks share.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.bootstrap.membership().identity
    }

    /// Publishes `value` under `key`, once.
    ///
    /// # Cancel safety
    /// It is published all the same, with the next call that says something.
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
    /// [`Bootstrap`], contract 2). `None`: the rank is gone, and has not put it.
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

    /// Publishes `value` under `key` and returns what all ranks have put there, by rank; `None` for
    /// those that are gone without having done so.
    ///
    /// # Cancel safety
    /// The value may have been published; go on with [`get`](Self::get).
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

    /// Waits until every rank is here that has neither left nor ended nor been expelled. Their
    /// [events](Self::events) are there when this returns. Launchers that speak PMI-1 wait for all ranks.
    ///
    /// # Cancel safety
    /// This rank stays in the barrier; the next call is for the same one, also if it was passed meanwhile.
    ///
    /// # Errors
    /// [`WorldError::TimedOut`]; those of [`WorldError`] that a launcher can cause.
    pub async fn barrier(&self, deadline: Instant) -> Result<(), WorldError> {
        self.bootstrap.barrier(deadline).await
    }

    /// Returns what happens to the other ranks, from the beginning. Launchers that speak PMI-1 tell nothing.
    #[must_use]
    pub fn events(&self) -> Events {
        Events { world: self.clone(), next: 0 }
    }

    /// Says that this rank needs nobody any more: barriers and values of the others do not wait for it.
    /// To be called before a regular end; what a rank drops without leaving looks like a failure to the
    /// others.
    ///
    /// # Cancel safety
    /// It leaves all the same, with the next call: leave again to be sure.
    ///
    /// # Errors
    /// Those of [`WorldError`] that a launcher can cause. Leaving twice is none.
    pub async fn leave(&self, deadline: Instant) -> Result<(), WorldError> {
        self.bootstrap.leave(deadline).await
    }

    /// Ends the program: this process with `code`, without running destructors, and by the launcher all
    /// others, unless that keeps them going (`vigie-run --keep-going`, the rendezvous over TCP).
    ///
    /// The launcher ends with `code` if it is `vigie-run` or Hydra; Slurm's `srun` ends with the largest
    /// code of any rank, which is that of those that it has killed.
    pub fn abort(&self, code: i32) -> ! {
        self.bootstrap.abort(code);
        process::exit(code)
    }
}

/// What happens to the other ranks: see [`World::events`].
#[derive(Clone, Debug)]
pub struct Events {
    world: World,
    next: usize,
}

impl Events {
    /// Returns the next event, when it has happened.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// Those of [`WorldError`] that [are final](WorldError::is_final): no event can come any more.
    pub async fn next(&mut self) -> Result<Event, WorldError> {
        let event = self.world.bootstrap.event(self.next).await?;
        self.next += 1;
        Ok(event)
    }
}

/// Returns whether `key` can be carried by every launcher.
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
