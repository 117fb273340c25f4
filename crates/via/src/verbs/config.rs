//! The configuration of a NIC, and why opening one may fail.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use thiserror::Error;
use vigie_detect::setters;

use super::secret::VerbsSecret;

/// The configuration of a NIC.
///
/// # Examples
/// ```no_run
/// use vigie_via::verbs::{VerbsSecret, Verbs, VerbsConfig};
///
/// let config = VerbsConfig::new([10, 0, 0, 1].into(), VerbsSecret::new([7; 32]));
/// let nic = Verbs::open(&config)?;
/// # Ok::<(), vigie_via::verbs::OpenError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a configuration does nothing until a NIC is opened with it"]
pub struct VerbsConfig {
    pub(super) ip: IpAddr,
    pub(super) tcp_port: u16,
    pub(super) secret: VerbsSecret,
    pub(super) device: Option<String>,
    pub(super) port: u8,
    pub(super) gid_index: Option<u8>,
}

impl VerbsConfig {
    /// Configures a NIC at the address `ip` of this host, for peers that know `secret`. It uses the RDMA
    /// device that has this address, and listens for callers at this address only, on a TCP port that
    /// the kernel chooses.
    pub const fn new(ip: IpAddr, secret: VerbsSecret) -> Self {
        Self { ip, tcp_port: 0, secret, device: None, port: 1, gid_index: None }
    }

    /// Sets the device by its name (`rdma link` lists them). Default: the one that has the address.
    /// InfiniBand devices have no IP address and must be named.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    setters! {
        /// Sets the port of the device, from 1. Default 1.
        port: u8,

        /// Sets which of the port's global identifiers is the source of packets. Default: the one that equals the address; over
        /// Ethernet, the one for RoCE version 2.
        gid_index: u8 => Some,

        /// Sets the TCP port for callers. Default 0: the kernel chooses.
        tcp_port: u16,
    }
}

/// The reason why a NIC was not opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel has no RDMA devices.
    #[error(
        "no RDMA devices: {0}. Load the driver of one, or make one in software: \
         `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`"
    )]
    NoRdma(#[source] io::Error),
    /// There is no device of that name.
    #[error("there is no RDMA device `{name}`; there are: {found}")]
    NoDevice {
        /// The name that was asked for.
        name: String,
        /// The devices that exist.
        found: String,
    },
    /// No device has the address.
    #[error("no RDMA device has the address {ip}; name a device; there are: {found}")]
    NoAddress {
        /// The address that was asked for.
        ip: IpAddr,
        /// The devices that exist.
        found: String,
    },
    /// The port is not active.
    #[error("port {port} of the RDMA device `{device}` is not active")]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The address is not one that peers can call.
    #[error("{0} is not the address of a single host: peers could not call it")]
    Unspecified(IpAddr),
    /// The device lacks something that messages need.
    #[error("the RDMA device `{device}` lacks {what}")]
    TooWeak {
        /// The device.
        device: String,
        /// The feature that it lacks.
        what: &'static str,
    },
    /// The socket for callers failed.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// A resource of the library or the kernel failed.
    #[error("{what}: {source}")]
    Resource {
        /// The step that failed.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl OpenError {
    /// Returns a closure for `map_err`.
    pub(super) const fn resource(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Resource { what, source }
    }
}
