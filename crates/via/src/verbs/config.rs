//! What a NIC is told before it is opened, and why it could not be.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use thiserror::Error;

use super::secret::Secret;

/// How a NIC is opened.
///
/// # Examples
/// ```no_run
/// use vigie_via::verbs::{Secret, Verbs, VerbsConfig};
///
/// let config = VerbsConfig::new([10, 0, 0, 1].into(), Secret::new([7; 32]));
/// let nic = Verbs::open(&config)?;
/// # Ok::<(), vigie_via::verbs::OpenError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a configuration does nothing until a NIC is opened with it"]
pub struct VerbsConfig {
    pub(super) ip: IpAddr,
    pub(super) tcp_port: u16,
    pub(super) secret: Secret,
    pub(super) device: Option<String>,
    pub(super) port: u8,
    pub(super) gid_index: Option<u8>,
}

impl VerbsConfig {
    /// A NIC at the address `ip` of this host, for those who know `secret`. It uses the RDMA device that has this
    /// address, and listens for callers there and nowhere else, at a TCP port that the kernel chooses.
    pub const fn new(ip: IpAddr, secret: Secret) -> Self {
        Self { ip, tcp_port: 0, secret, device: None, port: 1, gid_index: None }
    }

    /// Sets the device, by its name (`rdma link` shows them). Default: the one that has the address. A device of
    /// InfiniBand has none, and must be named.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Sets the port of the device, from 1. Default 1.
    pub const fn port(mut self, port: u8) -> Self {
        self.port = port;
        self
    }

    /// Sets which of the port's global identifiers packets come from. Default: the one that is the address, over
    /// Ethernet the one for RoCE version 2.
    pub const fn gid_index(mut self, index: u8) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// Sets the TCP port for callers. Default 0: the kernel chooses.
    pub const fn tcp_port(mut self, port: u16) -> Self {
        self.tcp_port = port;
        self
    }
}

/// Why a NIC could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel has no RDMA.
    #[error(
        "no RDMA devices: {0}. Load the driver of one, or make one in software: \
         `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`"
    )]
    NoRdma(#[source] io::Error),
    /// No device of that name.
    #[error("there is no RDMA device `{name}`; there are: {found}")]
    NoDevice {
        /// Which was asked for.
        name: String,
        /// Which there are.
        found: String,
    },
    /// No device has the address.
    #[error("no RDMA device has the address {ip}; name a device; there are: {found}")]
    NoAddress {
        /// Which was asked for.
        ip: IpAddr,
        /// Which devices there are.
        found: String,
    },
    /// The port does not work.
    #[error("port {port} of the RDMA device `{device}` is not active")]
    PortDown {
        /// Of which device.
        device: String,
        /// Which.
        port: u8,
    },
    /// An address that peers cannot call.
    #[error("{0} is no address of one host: peers could not call it")]
    Unspecified(IpAddr),
    /// The device does less than messages need.
    #[error("the RDMA device `{device}` does not do: {what}")]
    TooWeak {
        /// Which.
        device: String,
        /// What it lacks.
        what: &'static str,
    },
    /// The socket for callers.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The library's or the kernel's resources.
    #[error("{what}: {source}")]
    Resource {
        /// Of what.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl OpenError {
    /// For `map_err`.
    pub(super) const fn resource(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Resource { what, source }
    }
}
