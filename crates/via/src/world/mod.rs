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
//! - [`local`](fn@local): several ranks on threads of one process, for tests.
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
mod bootstrap;
mod environment;
mod error;
mod event;
pub mod hub;
mod local;
mod member;
mod membership;
mod pmi;
mod rounds;
mod socket;
pub mod tcp;
mod unix;
mod variables;
mod waiting;
pub mod wire;

use std::{env, io, process, sync::Arc};

use vigie_detect::{Instant, Server, refuse_in_simulation};

pub use self::{
    bootstrap::{Bootstrap, BootstrapFuture},
    error::{JoinRefusal, WorldError},
    event::{RankExit, WorldEvent},
    local::LocalLauncher,
    membership::{Identity, Membership, Rank},
    pmi::PmiError,
    variables::{
        RANK_VARIABLE, RENDEZVOUS_VARIABLE, SECRET_FILE_VARIABLE, SECRET_VARIABLE, SIZE_VARIABLE,
    },
};
use self::{environment::Launcher, wire::is_key};
use crate::auth::Secret;

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

    /// Returns the secret for NICs and groups of this world, which all its ranks share: the first half of its
    /// [identity's](Self::identity).
    #[must_use]
    pub fn secret(&self) -> Secret {
        let whole = &self.identity().secret;
        Secret::new(std::array::from_fn(|at| whole[at]))
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
    /// [`WorldError::TimedOut`], which names the missing ranks in a [local](fn@local) world, and elsewhere those that this rank has
    /// heard from, since only the launcher knows which are missing; `vigie-run` names them when a rank ends badly inside a barrier. Also the errors
    /// of [`WorldError`] that a launcher can cause.
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

/// Makes a world of `size` ranks (at least 1) inside this process, and its launcher. Deadlines use the clock
/// of `server`.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for a size of zero; the kernel's, if it cannot provide random numbers.
pub fn local(server: &Server, size: u32) -> io::Result<(LocalLauncher, Vec<World>)> {
    let (launcher, ranks) = local::attached(server, size)?;
    Ok((launcher, ranks.into_iter().map(World::from_bootstrap).collect()))
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
