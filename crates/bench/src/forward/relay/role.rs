//! What the process of source and sink is told, and what it answers.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::kind::RelayMeasure;
use crate::clock::{now, sleep};
use crate::error::Failure;
use crate::process::Role;

/// A message whose time is taken.
pub(super) const PING_BYTES: usize = 64;

/// How long a relay may take to listen.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// The warm-up before anything is counted.
pub(super) const WARM_UP: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LoadRole {
    pub(crate) measure: RelayMeasure,
    pub(crate) sink: SocketAddr,
    pub(crate) target: SocketAddr,
    pub(crate) core: Option<usize>,
    pub(crate) relay_core: Option<usize>,
    /// The relay's process, if that is the only one.
    pub(crate) relay: Option<u32>,
    /// The file of its certificate, if it ends TLS.
    pub(crate) certificate: Option<PathBuf>,
    /// Of the source and of the sink.
    pub(crate) namespaces: Option<[PathBuf; 2]>,
    pub(crate) budget: Duration,
    pub(crate) samples: u32,
}

/// What source and sink have measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum LoadResult {
    /// How much was carried, and the relay's processor time for it.
    Carried { gb_per_s: f64, relay_s_per_gb: Option<f64> },
    /// How long each message took.
    Times { nanoseconds: Vec<u64> },
    /// Messages echoed in a second, the relay's processor time for one, and how long some of them took.
    Echoed { per_s: f64, relay_us: Option<f64>, nanoseconds: Vec<u64> },
    /// What was encrypted, and the relay's processor time for it, as for handshakes.
    Encrypted { gb_per_s: f64, relay_s_per_gb: f64, handshakes_per_s: f64, relay_handshake_us: f64 },
}

impl Role for LoadRole {
    const NAME: &'static str = "relay load";
}

/// Connects once the relay listens, and has a connection of its own for it: a relay that cannot reach the sink closes.
pub(super) fn connect(role: &LoadRole) -> Result<TcpStream, Failure> {
    let until = now() + CONNECT_PATIENCE;
    loop {
        match TcpStream::connect(role.target) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(Failure::io("setting up the source"))?;
                return Ok(stream);
            }
            Err(error) if now() > until => {
                return Err(Failure::io("connecting to the relay")(error));
            }
            Err(_) => sleep(Duration::from_millis(5)),
        }
    }
}

/// Accepts the other end of a connection through the relay.
pub(super) fn accept(listener: &TcpListener) -> Result<TcpStream, Failure> {
    let (sink, _) = listener.accept().map_err(Failure::io("accepting"))?;
    sink.set_nodelay(true).map_err(Failure::io("accepting"))?;
    Ok(sink)
}
