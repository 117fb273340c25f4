//! Makes the endpoint of a rank in its world.

use std::sync::{Arc, Weak};

use thiserror::Error;
use vigie_detect::{Instant, NoServer, RegisterError, Server};

use super::{Endpoint, endpoint_engine::EndpointInner, watch::Watch};
use crate::{
    protocol::{EngineConfig, EngineError, MessageEngine},
    shm::Shm,
    vi::{Address, DisconnectReason, Provider, ViError},
    world::{World, WorldError},
};

/// The reason why an endpoint could not be made in its world.
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
    #[error("not every rank has made its endpoint in time: {0}")]
    Missing(WorldError),
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
}

impl Endpoint<Shm> {
    /// Makes the endpoint of this rank of `world` over shared memory, hosted by the running task's server. All ranks must
    /// call this, once for each world: it ends when all have.
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
    /// Makes the endpoint of this rank of `world`, each rank on its own NIC, once for each world; ends by `deadline`. If a rank
    /// ended before it published its address, this does not fail: sends to it and receives from it do.
    ///
    /// Ranks are connected when they first need each other: when a send, a receive that waits or a probe names the other one.
    /// That takes some 100 µs and, with the default [`EngineConfig`], less than 1 MiB of address space for each pair. The endpoint
    /// keeps the world: a rank whose process ends fails at all others, connected or not, if the world's launcher tells of it.
    ///
    /// # Cancel safety
    /// Not cancel safe: the ranks wait for each other.
    ///
    /// # Errors
    /// [`JoinError`].
    pub async fn join_over(
        server: &Server,
        world: &World,
        nic: P,
        config: EngineConfig,
        deadline: Instant,
    ) -> Result<Self, JoinError> {
        let (own, size) = (world.rank().0, world.size());
        let discriminator = [b"vigie-messages".as_slice(), &world.identity().id].concat();
        let address = nic.address();
        let mut engine = MessageEngine::new(nic, own, size, config)?;
        // A rank must not pass for another one that is not connected yet. Calls come as soon as this rank's address is known.
        let keys = world.pair_keys(deadline).await?.unwrap_or_default();
        for (rank, key) in (0..size).zip(keys).filter(|(rank, _)| *rank != own) {
            engine.require_proof(rank, key)?;
        }
        engine.connect_on_demand(&discriminator)?;
        let endpoint = Self::new(server, engine)?;

        let gathered = world.all_gather("vigie-via-address", &address.0, deadline).await;
        let addresses = gathered.map_err(|error| match error {
            WorldError::AlreadyPut { .. } => JoinError::AlreadyJoined,
            error @ WorldError::TimedOut { .. } => JoinError::Missing(error),
            error => error.into(),
        })?;

        for (rank, address) in (0..size).zip(addresses) {
            endpoint.with(|engine| match address {
                _ if rank == own => Ok(()),
                Some(address) => engine.introduce(rank, Address(address)),
                None => {
                    engine.peer_failed(rank, DisconnectReason::PeerDied);
                    Ok(())
                }
            })?;
        }
        // A rank that ended before this is among the events, which begin with the first.
        let _ = endpoint.inner.watch.set(watch(world, Arc::downgrade(&endpoint.inner)));
        Ok(endpoint)
    }
}

/// Tells an endpoint which ranks of its world have ended, until the endpoint or the world is gone.
fn watch<P: Provider>(world: &World, inner: Weak<EndpointInner<P>>) -> Arc<Watch> {
    let mut events = world.events();
    Watch::start(async move {
        while let Ok(event) = events.next().await {
            if event.is_loss() {
                let Some(inner) = inner.upgrade() else { return };
                inner.drop_with(|engine| engine.rank_is_gone(event.rank().0));
            }
        }
    })
}
