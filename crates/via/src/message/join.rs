//! Connects an endpoint to all ranks of a world.

use std::{
    collections::BTreeSet,
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use thiserror::Error;
use vigie_detect::{Instant, NoServer, RegisterError, Server, WaitError};

use super::Endpoint;
use crate::{
    protocol::{EngineConfig, EngineError, EngineEvent, MessageEngine},
    shm::Shm,
    vi::{Address, Provider, Reason, ViError},
    world::{World, WorldError, WorldEvent},
};

/// Why an endpoint could not be connected to the ranks of its world.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The launcher failed.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A world carries one endpoint for each rank, and learns of it only once, even if the deadline comes
    /// first.
    #[error(
        "this rank has made its endpoint before, which a world takes once: clone that, or duplicate its \
         communicator"
    )]
    AlreadyJoined,
    /// The deadline came first, and some ranks had not made their endpoint.
    #[error("the deadline passed before every rank had made its endpoint")]
    Missing,
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The provider failed.
    #[error(transparent)]
    Vi(#[from] ViError),
    /// There is no detection server here.
    #[error(transparent)]
    NoServer(#[from] NoServer),
    /// The detection server does not accept the endpoint.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The detection server ended.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A rank could not be connected to.
    #[error("no connection to rank {rank}: {reason}")]
    Refused {
        /// The rank.
        rank: u32,
        /// The reason.
        reason: Reason,
    },
}

impl Endpoint<Shm> {
    /// Connects to all ranks of `world` over shared memory, hosted by the running task's server. All ranks must
    /// call this, once for each world.
    ///
    /// # Cancel safety
    /// Not cancel safe: the ranks wait for each other.
    ///
    /// # Errors
    /// [`JoinError`].
    pub async fn join(world: &World, deadline: Instant) -> Result<Self, JoinError> {
        let server = Server::current()?;
        Self::join_over(&server, world, Shm::open()?, EngineConfig::default(), deadline).await
    }
}

impl<P: Provider> Endpoint<P> {
    /// Connects to all ranks of `world` by `deadline`, each rank on its own NIC; once for each world. If a rank
    /// ended before it published its address, this does not fail: sends to it and receives from it do.
    ///
    /// # Cancel safety
    /// Not cancel safe: the ranks wait for each other.
    ///
    /// # Errors
    /// [`JoinError`].
    pub async fn join_over(
        server: &Server,
        world: &World,
        mut nic: P,
        config: EngineConfig,
        deadline: Instant,
    ) -> Result<Self, JoinError> {
        let (own, size) = (world.rank().0, world.size());
        let discriminator = [b"vigie-messages".as_slice(), &world.identity().id].concat();
        nic.listen(&discriminator)?;
        let address = nic.address();
        let endpoint = Self::new(server, MessageEngine::new(nic, own, size, config)?)?;

        let gathered = world.all_gather("vigie-via-address", &address.0, deadline).await;
        let addresses = gathered.map_err(|error| match error {
            WorldError::AlreadyPut { .. } => JoinError::AlreadyJoined,
            WorldError::TimedOut { .. } => JoinError::Missing,
            error => error.into(),
        })?;

        let mut missing = BTreeSet::new();
        for (rank, address) in (0..size).zip(addresses) {
            match address {
                _ if rank == own => {}
                None => endpoint.with(|engine| engine.peer_failed(rank, Reason::PeerDied)),
                Some(address) => {
                    missing.insert(rank);
                    if rank > own {
                        let address = Address(address);
                        endpoint.with(|engine| {
                            engine.connect(rank, &address, &discriminator, deadline)
                        })?;
                    }
                }
            }
        }

        let mut losses = world.events();
        let mut timer = pin!(server.timers().wait(deadline));

        while let Some(&waited_for) = missing.first() {
            let happened = {
                let mut event = pin!(endpoint.next_event());
                let mut loss = pin!(losses.next());
                poll_fn(|cx| {
                    if let Poll::Ready(event) = event.as_mut().poll(cx) {
                        return Poll::Ready(event.map(JoinEvent::Event));
                    }
                    // If the launcher cannot tell, the connections still do.
                    if let Poll::Ready(Ok(loss)) = loss.as_mut().poll(cx) {
                        return Poll::Ready(Ok(JoinEvent::World(loss)));
                    }
                    timer.as_mut().poll(cx).map(|fired| fired.map(|_| JoinEvent::Deadline))
                })
                .await?
            };

            match happened {
                JoinEvent::Event(event) => endpoint.joined(event, &mut missing)?,
                JoinEvent::World(event) if event.is_loss() => {
                    let rank = event.rank().0;
                    if missing.remove(&rank) {
                        endpoint.with(|engine| engine.peer_failed(rank, Reason::PeerDied));
                    }
                }
                JoinEvent::World(_) => {}
                JoinEvent::Deadline => {
                    return Err(JoinError::Refused { rank: waited_for, reason: Reason::TimedOut });
                }
            }
        }
        // Every rank is connected or lost, so any further caller is not one of them.
        endpoint.with(|engine| engine.nic_mut().unlisten(&discriminator));
        Ok(endpoint)
    }

    fn joined(&self, event: EngineEvent, missing: &mut BTreeSet<u32>) -> Result<(), JoinError> {
        match event {
            EngineEvent::Requested { request, rank, .. } => self.with(|engine| {
                let own = engine.rank();
                match rank.filter(|rank| missing.contains(rank) && *rank < own) {
                    Some(rank) => engine.accept(request, rank),
                    None => Ok(engine.nic_mut().reject(request)?),
                }
            })?,
            EngineEvent::Refused { rank, reason: Reason::PeerDied } => {
                missing.remove(&rank);
                self.with(|engine| engine.peer_failed(rank, Reason::PeerDied));
            }
            EngineEvent::Refused { rank, reason } => {
                return Err(JoinError::Refused { rank, reason });
            }
            EngineEvent::Connected { rank } | EngineEvent::Failed { rank, .. } => {
                missing.remove(&rank);
            }
        }
        Ok(())
    }
}

enum JoinEvent {
    Event(EngineEvent),
    World(WorldEvent),
    Deadline,
}
