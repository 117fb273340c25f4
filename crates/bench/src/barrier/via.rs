//! Groups whose packets are messages of `via`, over one of its providers.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vigie_barrier::net::{NetBarrier, NetBuilder};
use vigie_via::ether::Ether;
use vigie_via::message::Endpoint;
use vigie_via::shm::Shm;
use vigie_via::software_nic::{Secret, SoftwareNicConfig};
use vigie_via::udp::Udp;
use vigie_via::vi::Provider as Nic;

use crate::error::Failure;
use crate::host::INTERFACE;
use crate::messages::RankContext;
use crate::messages::message_layer::{DISCRIMINATOR, connect, engine};
use crate::messages::virtual_interface::leave_address;

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
            let nic = Udp::bind(at, secret, SoftwareNicConfig::default());
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
    let endpoint: Endpoint<P> = connect(context, engine(context, nic)?, others).await?;
    let barrier = builder.over(&endpoint.communicator()).map_err(Failure::runtime)?;
    Ok((barrier, Box::new(endpoint)))
}
