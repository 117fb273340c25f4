//! The relays written in Rust, in a separate process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process;

use serde::{Deserialize, Serialize};
use vigie_forward::relay::{FrameMode, Framing, LengthFormat, Relay, RelayBuilder, Transfer};
use vigie_runtime::{Flavor, Reactivity, Runtime, spawn};

use super::kind::{FramedKind, RelayKind};
use super::peers::RelayPeer;
use crate::error::Failure;
use crate::host::{enter, limits, pin};
use crate::process::{Message, Role};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RelayRole {
    pub(crate) kind: RelayKind,
    pub(crate) listen: SocketAddr,
    pub(crate) upstream: SocketAddr,
    pub(crate) core: Option<usize>,
    pub(crate) namespace: Option<PathBuf>,
}

const CONNECTIONS_MAX: u32 = 4096;

impl Role for RelayRole {
    const NAME: &'static str = "relay";
}

/// Becomes a relay, until the process is killed.
pub(crate) fn serve(role: &RelayRole) -> Result<(), Failure> {
    if let Some(core) = role.core {
        pin(&[core])?;
    }
    if let Some(namespace) = &role.namespace {
        enter(namespace)?;
    }
    // As many as any measurement has, with two descriptors for each.
    limits::allow_connections(2 * CONNECTIONS_MAX)?;
    let builder = Relay::builder(role.listen).upstream(role.upstream);
    let framed = |mode| Framing::new(LengthFormat::U32Be).mode(mode);
    let builder = match role.kind {
        RelayKind::VigieCopy => builder.transfer(Transfer::Copy),
        RelayKind::VigieSplice => builder.transfer(Transfer::Splice),
        RelayKind::Framed(FramedKind::Planned) => builder.framing(framed(FrameMode::Planned)),
        RelayKind::Framed(FramedKind::Stored) => {
            builder.framing(framed(FrameMode::StoreAndForward))
        }
        RelayKind::Framed(FramedKind::Cut) => builder.framing(framed(FrameMode::CutThrough)),
        RelayKind::Peer(RelayPeer::Tokio) => return tokio_relay(role),
        _ => builder,
    };
    vigie_relay(builder)
}

fn listening(echo: SocketAddr) {
    Message::Listening { process: process::id(), echo, control: None }.print();
}

fn vigie_relay(builder: RelayBuilder) -> Result<(), Failure> {
    // Source, sink and relay share a core: a process that polls before it sleeps takes it from the
    // others.
    let settings = Runtime::builder().flavor(Flavor::UserLevel).reactivity(Reactivity::LowCpu);
    let runtime = settings.build().map_err(Failure::runtime)?;
    runtime.block_on(async {
        let relay = builder.bind().map_err(Failure::runtime)?;
        if let Some(address) = relay.endpoint().address() {
            listening(address);
        }
        let served = relay.serve(|connection| drop(spawn(connection))).await;
        served.map(|_| ()).map_err(Failure::io("relaying"))
    })
}

/// The relay of a typical tokio service, with buffers as large as useful.
fn tokio_relay(role: &RelayRole) -> Result<(), Failure> {
    const BUFFER_BYTES: usize = 64 << 10;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let upstream = role.upstream;
    runtime.map_err(Failure::runtime)?.block_on(async {
        let listener = tokio::net::TcpListener::bind(role.listen).await;
        let listener = listener.map_err(Failure::io("listening"))?;
        listening(role.listen);
        loop {
            let (mut client, _) = listener.accept().await.map_err(Failure::io("accepting"))?;
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(upstream).await?;
                client.set_nodelay(true)?;
                server.set_nodelay(true)?;
                tokio::io::copy_bidirectional_with_sizes(
                    &mut client,
                    &mut server,
                    BUFFER_BYTES,
                    BUFFER_BYTES,
                )
                .await
            });
        }
    })
}
