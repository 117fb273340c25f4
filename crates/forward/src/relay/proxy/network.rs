//! Networks: ranges of addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use thiserror::Error;

/// A range of addresses that share a prefix.
///
/// ```
/// use vigie_forward::relay::Network;
///
/// let network: Network = "10.1.0.0/16".parse()?;
/// assert!(network.contains("10.1.2.3".parse()?));
/// assert!(!network.contains("10.2.0.0".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
    /// Returns whether `address` is in the range. An IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => self.masked4(own) == self.masked4(other),
            (IpAddr::V6(own), IpAddr::V6(other)) => self.masked6(own) == self.masked6(other),
            _ => false,
        }
    }

    fn masked4(&self, address: Ipv4Addr) -> u32 {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_bits)).unwrap_or(0);
        u32::from(address) & mask
    }

    fn masked6(&self, address: Ipv6Addr) -> u128 {
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_bits)).unwrap_or(0);
        u128::from(address) & mask
    }
}

impl From<IpAddr> for Network {
    /// The range with only this address.
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, prefix_bits: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// A text that is not a network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` is not a network: write an address, or `ADDRESS/BITS` with at most 32 or 128 bits"
)]
#[non_exhaustive]
pub struct ParseNetworkError {
    /// The text.
    pub text: String,
}

impl FromStr for Network {
    type Err = ParseNetworkError;

    fn from_str(text: &str) -> Result<Self, ParseNetworkError> {
        let wrong = || ParseNetworkError { text: text.to_owned() };
        let Some((address, bits)) = text.split_once('/') else {
            return text.parse::<IpAddr>().map(Self::from).map_err(|_| wrong());
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix_bits: u8 = bits.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix_bits > most { Err(wrong()) } else { Ok(Self { address, prefix_bits }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: prefixes of all lengths contain the right addresses. Method: the ends of ranges, both families.
    #[test]
    fn ranges_hold_what_they_should() {
        for (network, inside, outside) in [
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
            ("10.0.0.1", "10.0.0.1", "10.0.0.0"),
            ("10.0.0.1", "::ffff:10.0.0.1", "::ffff:10.0.0.2"),
            ("fd00::/8", "fdff::1", "fe00::"),
            ("::/0", "fe80::1", "1.2.3.4"),
        ] {
            let network: Network = network.parse().expect("a network");
            assert!(network.contains(inside.parse().expect("an address")), "{network} {inside}");
            assert!(!network.contains(outside.parse().expect("an address")), "{network} {outside}");
        }
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0.0/", "a/8"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
