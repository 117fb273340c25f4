//! Address prefixes.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

/// The addresses that share their first bits. The bits behind these are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(IpNet);

/// The reason why a prefix is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// More bits than the address has.
    #[error("a prefix of {length} bits, but {address} has {max}")]
    Length {
        /// The address.
        address: IpAddr,
        /// The length given.
        length: u8,
        /// The maximum length.
        max: u8,
    },
    /// A text that is not a prefix.
    #[error("{text:?} is not a prefix: write an address, a slash, and the number of bits")]
    Text {
        /// The text.
        text: String,
    },
}

impl Prefix {
    /// All addresses of version 4.
    pub const ALL_V4: Self = Self(IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)));
    /// All addresses of version 6.
    pub const ALL_V6: Self = Self(IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)));

    /// Creates a prefix of the first `length` bits of an address; the other bits are set to zero.
    ///
    /// # Errors
    /// [`PrefixError::Length`].
    pub fn new(address: IpAddr, length: u8) -> Result<Self, PrefixError> {
        let max = if address.is_ipv4() { 32 } else { 128 };
        let network = IpNet::new(address, length);
        let network = network.map_err(|_| PrefixError::Length { address, length, max })?;
        Ok(Self(network.trunc()))
    }

    /// Creates the prefix of one address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self(address.into())
    }

    /// Returns its lowest address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        match self.0 {
            IpNet::V4(network) => IpAddr::V4(network.addr()),
            IpNet::V6(network) => IpAddr::V6(network.addr()),
        }
    }

    /// Returns its length in bits.
    #[must_use]
    pub const fn length_bits(&self) -> u8 {
        match self.0 {
            IpNet::V4(network) => network.prefix_len(),
            IpNet::V6(network) => network.prefix_len(),
        }
    }

    /// Returns whether an address has this prefix; one of the other version never does.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

/// The bits of an address, the first one most significant.
#[inline]
pub(super) fn key(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The first `length` bits.
#[inline]
pub(super) const fn mask(length: u8) -> u128 {
    match u128::MAX.checked_shr(length as u32) {
        Some(rest) => !rest,
        None => u128::MAX,
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let wrong = || PrefixError::Text { text: text.to_owned() };
        // The standard library reads the address: ipnet takes `010` for 10, which other programs take for 8.
        let read = |address: &str| address.parse::<IpAddr>().map_err(|_| wrong());
        let Some((address, bits)) = text.split_once('/') else {
            return Ok(Self::host(read(text)?));
        };
        Self::new(read(address)?, bits.parse().map_err(|_| wrong())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_as_they_are_printed() {
        // Goal: text round-trips, bits behind the prefix are cleared, nonsense is refused. Method: texts.
        for (text, shown) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:db8:1::5/33", "2001:db8::/33"),
            ("::1", "::1/128"),
        ] {
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(prefix.to_string(), shown);
            assert_eq!(shown.parse(), Ok(prefix));
        }
        for text in ["", "/8", "10.0.0.0/", "10.0.0.0/-1", "x/8", "010.0.0.0/8"] {
            let wrong = Err(PrefixError::Text { text: text.to_owned() });
            assert_eq!(text.parse::<Prefix>(), wrong);
        }
        for text in ["10.0.0.0/33", "::/129"] {
            let error = text.parse::<Prefix>().unwrap_err();
            assert!(matches!(error, PrefixError::Length { .. }), "{error}");
        }
    }

    #[test]
    fn a_prefix_contains_its_addresses() {
        // Goal: membership by bits and version. Method: addresses at the edges.
        let prefix: Prefix = "10.128.0.0/9".parse().unwrap();
        for (address, is_in) in [
            ("10.128.0.0", true),
            ("10.255.255.255", true),
            ("10.127.255.255", false),
            ("11.0.0.0", false),
            ("a80::", false),
        ] {
            assert_eq!(prefix.contains(address.parse().unwrap()), is_in, "{address}");
        }
        assert!(Prefix::ALL_V4.contains("255.1.1.1".parse().unwrap()));
        assert!(!Prefix::ALL_V4.contains("::1".parse().unwrap()));
        assert!(Prefix::ALL_V6.contains("::1".parse().unwrap()));
    }
}
