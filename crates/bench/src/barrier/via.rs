//! Groups whose packets are messages of `via`, over one of its providers.

use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vigie_barrier::net::{NetBarrier, NetBuilder};
use vigie_via::ether::Ether;
use vigie_via::message::Endpoint;
use vigie_via::shm::Shm;
use vigie_via::software_nic::{Config, Secret};
use vigie_via::udp::Udp;
use vigie_via::vi::Provider as Nic;

use crate::error::Failure;
use crate::host::{CONTROL_BYTES, INTERFACE, SharedFile};
use crate::messages::RankContext;
use crate::messages::message_layer::{DISCRIMINATOR, connect};
use crate::messages::virtual_interface::{ADDRESS_BYTES, leave_address};

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Provider {
    /// Memory that processes of one host share.
    Shm,
    /// The software NIC over UDP.
    Udp,
    /// The software NIC over Ethernet frames.
    Ether,
}

/// Shared memory with the addresses of a run's ranks.
#[derive(Debug)]
pub(super) struct RankBootstrap {
    memory: SharedFile,
    ranks: u32,
    token: u64,
}

impl RankBootstrap {
    pub(super) fn new(ranks: u32) -> Result<Self, Failure> {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let count = usize::try_from(ranks).map_err(Failure::runtime)?;
        let memory = SharedFile::create(CONTROL_BYTES + count * ADDRESS_BYTES)?;
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { memory, ranks, token: run << 32 | u64::from(std::process::id()) })
    }

    pub(super) fn context(&self, rank: u32) -> RankContext {
        let (ranks, token) = (self.ranks, self.token);
        let memory = self.memory.path();
        RankContext { rank, ranks, cores: Vec::new(), memory, token, namespace: None }
    }
}

/// Keeps the connections of a member open.
pub(super) type Connections = Box<dyn Send>;

/// Forms a group over messages.
pub(super) async fn form(
    builder: NetBuilder,
    provider: Provider,
    context: &RankContext,
) -> Result<(NetBarrier, Connections), Failure> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&context.token.to_le_bytes());
    let secret = Secret::new(bytes);
    match provider {
        Provider::Shm => over(builder, Shm::open().map_err(Failure::runtime)?, context).await,
        Provider::Udp => {
            let at = (std::net::Ipv4Addr::LOCALHOST, 0).into();
            let nic = Udp::bind(at, secret, Config::default());
            over(builder, nic.map_err(Failure::io("opening a NIC over UDP"))?, context).await
        }
        Provider::Ether => {
            let nic = Ether::builder(INTERFACE).open(secret);
            over(builder, nic.map_err(Failure::runtime)?, context).await
        }
    }
}

async fn over<P: Nic + Send + 'static>(
    builder: NetBuilder,
    mut nic: P,
    context: &RankContext,
) -> Result<(NetBarrier, Connections), Failure> {
    nic.listen(DISCRIMINATOR).map_err(Failure::runtime)?;
    leave_address(context, &nic.address())?;
    let others = (0..context.ranks).filter(|rank| *rank != context.rank).collect();
    let endpoint: Endpoint<P> = connect(context, nic, others).await?;
    let barrier = builder.over(&endpoint.communicator()).map_err(Failure::runtime)?;
    Ok((barrier, Box::new(endpoint)))
}
