//! Upstreams: addresses or names to connect to, with a weight, and TLS if they speak that.

use std::{net::SocketAddr, path::PathBuf};

use super::endpoint::Endpoint;

/// A target of a relay: of streams by default, or of datagrams (`Upstream<SocketAddr>`).
///
/// ```
/// use vigie_forward::relay::{Endpoint, Upstream};
///
/// let address: Endpoint = "tcp://192.0.2.10:80".parse()?;
/// let three_times_as_much = Upstream::from(address).weight(3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream<A = Endpoint> {
    pub(super) address: UpstreamAddress<A>,
    pub(super) weight: u16,
    pub(super) tls: TargetTls,
}

/// TLS with a target, if it speaks TLS.
#[cfg(feature = "tls")]
pub(super) type TargetTls = Option<super::tls::TlsOrigination>;
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TargetTls {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UpstreamAddress<A> {
    Fixed(A),
    Name(String, u16),
}

/// The largest weight.
const WEIGHT_MAX: u16 = 256;

impl<A> Upstream<A> {
    fn at(address: A) -> Self {
        Self::new(UpstreamAddress::Fixed(address))
    }

    fn new(address: UpstreamAddress<A>) -> Self {
        Self { address, weight: 1, tls: TargetTls::default() }
    }

    /// A host by its name, and a port. The relay asks the host's resolver (`/etc/hosts`, DNS) when it begins to serve, and again every
    /// [`resolve_every`](super::RelayBuilder::resolve_every): each address that it gets, at most 64, is a target with this weight. While
    /// the name cannot be resolved, the addresses from before stay. Connections to an address that is gone go on.
    pub fn named(host: impl Into<String>, port: u16) -> Self {
        Self::new(UpstreamAddress::Name(host.into(), port))
    }

    /// Sets its share of connections, relative to other targets: 1 to 256. Default 1.
    #[must_use]
    pub fn weight(mut self, weight: u16) -> Self {
        self.weight = weight;
        self
    }
}

impl Upstream {
    /// Connects to it with TLS. A PROXY protocol header is sent before TLS begins. A target whose certificate is refused counts as one that
    /// cannot be reached, and [checks](super::RelayBuilder::check) include the handshake. Default: no TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, origination: super::tls::TlsOrigination) -> Self {
        self.tls = Some(origination);
        self
    }
}

impl From<Endpoint> for Upstream {
    fn from(endpoint: Endpoint) -> Self {
        Self::at(endpoint)
    }
}

impl From<SocketAddr> for Upstream {
    fn from(address: SocketAddr) -> Self {
        Self::at(address.into())
    }
}

impl From<PathBuf> for Upstream {
    fn from(path: PathBuf) -> Self {
        Self::at(path.into())
    }
}

impl From<SocketAddr> for Upstream<SocketAddr> {
    fn from(address: SocketAddr) -> Self {
        Self::at(address)
    }
}

/// Returns whether all weights are in range.
pub(super) fn are_weights<A>(upstreams: &[Upstream<A>]) -> bool {
    upstreams.iter().all(|one| (1..=WEIGHT_MAX).contains(&one.weight))
}
