//! Networks: ranges of addresses.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;

use crate::relay::endpoint::ParseAddressError;

/// A range of addresses that share a prefix.
///
/// ```
/// use vigie_forward::relay::AddressRange;
///
/// let network: AddressRange = "10.1.0.0/16".parse()?;
/// assert!(network.contains("10.1.2.3".parse()?));
/// assert!(!network.contains("10.2.0.0".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// Returns whether `address` is in the range. An IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl From<IpAddr> for AddressRange {
    /// The range with only this address.
    fn from(address: IpAddr) -> Self {
        Self(address.to_canonical().into())
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for AddressRange {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let wrong = || ParseAddressError::InvalidPrefix { text: text.to_owned() };
        // The standard library reads the address: ipnet takes `010` for 10, which other programs take for 8.
        let read = |address: &str| address.parse::<IpAddr>().map_err(|_| wrong());
        let Some((address, bits)) = text.split_once('/') else {
            return Ok(Self::from(read(text)?));
        };
        let bits = bits.parse().map_err(|_| wrong())?;
        IpNet::new(read(address)?, bits).map(Self).map_err(|_| wrong())
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
            let network: AddressRange = network.parse().expect("a network");
            assert!(network.contains(inside.parse().expect("an address")), "{network} {inside}");
            assert!(!network.contains(outside.parse().expect("an address")), "{network} {outside}");
        }
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0.0/", "a/8", "010.0.0.0/8"] {
            assert!(text.parse::<AddressRange>().is_err(), "{text}");
        }
    }
}
