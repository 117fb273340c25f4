//! The addresses that stand for the names of Unix sockets.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The addresses of names: those of the prefix whose packets every router discards [RFC 6666].
const PREFIX: u128 = 0x0100 << 112;

/// Returns whether an address stands for a name.
pub(super) fn is_name(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.to_bits() >> 64 == PREFIX >> 64)
}

/// Returns the address of a name that is known by this number.
pub(super) fn address(number: u64) -> SocketAddr {
    // Port 0, which no socket with a port has.
    SocketAddr::new(Ipv6Addr::from_bits(PREFIX | u128::from(number)).into(), 0)
}
