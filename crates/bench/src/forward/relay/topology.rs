//! Where source, relay and sink run.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use super::links::{RELAY, RelayLinks, SINK};
use crate::host::allowed;

/// Where source, relay and sink run and listen.
#[derive(Clone, Debug)]
pub(super) struct RelayTopology {
    pub(super) sink: SocketAddr,
    pub(super) relay: SocketAddr,
    /// The core of source and sink, and that of the relay, or any.
    pub(super) core: Option<usize>,
    pub(super) relay_core: Option<usize>,
    /// The namespaces of source and sink, and that of the relay.
    pub(super) ends: Option<[PathBuf; 2]>,
    pub(super) middle: Option<PathBuf>,
}

impl RelayTopology {
    /// Over `links`, or over loopback. The relay is apart, if there are two cores; otherwise all are on one core, or over links on any.
    pub(super) fn choose(links: Option<&RelayLinks>, is_apart: bool) -> std::io::Result<Self> {
        let cores = allowed();
        let core = cores.first().copied();
        let relay_core = if is_apart { cores.last().copied() } else { core };
        let Some(links) = links else {
            let (sink, relay) = (free()?, free()?);
            return Ok(Self { sink, relay, core, relay_core, ends: None, middle: None });
        };
        // Ports of namespaces that are our own are free.
        let [source, middle, sink] = links.paths();
        Ok(Self {
            sink: (SINK, 7000).into(),
            relay: (RELAY, 7001).into(),
            core: core.filter(|_| is_apart),
            relay_core: relay_core.filter(|_| is_apart),
            ends: Some([source, sink]),
            middle: Some(middle),
        })
    }
}

/// A port that was free a moment ago.
fn free() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
