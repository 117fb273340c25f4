//! Address prefixes.

use std::{fmt, net::IpAddr, str::FromStr};

use thiserror::Error;

/// The addresses that share their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Why a prefix is invalid.
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
    pub const ALL_V4: Self =
        Self { address: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), length: 0 };
    /// All addresses of version 6.
    pub const ALL_V6: Self =
        Self { address: IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), length: 0 };

    /// Creates a prefix of the first `length` bits of an address; the other bits are set to zero.
    ///
    /// # Errors
    /// [`PrefixError::Length`].
    pub fn new(address: IpAddr, length: u8) -> Result<Self, PrefixError> {
        let max = bits(address);
        if length > max {
            return Err(PrefixError::Length { address, length, max });
        }
        let kept = key(address) & mask(length);
        Ok(Self { address: address_of(kept, address.is_ipv4()), length })
    }

    /// Creates the prefix of one address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self { address, length: bits(address) }
    }

    /// Returns its lowest address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns its length in bits.
    #[must_use]
    pub const fn length_bits(&self) -> u8 {
        self.length
    }

    /// Returns whether an address has this prefix; one of the other version never does.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && (key(self.address) ^ key(address)) & mask(self.length) == 0
    }
}

/// The length of an address in bits.
const fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The bits of an address, the first one most significant.
#[inline]
pub(super) fn key(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address with these bits.
pub(super) fn address_of(key: u128, is_v4: bool) -> IpAddr {
    if is_v4 {
        let [a, b, c, d, ..] = key.to_be_bytes();
        IpAddr::from([a, b, c, d])
    } else {
        IpAddr::from(key.to_be_bytes())
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
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let error = || PrefixError::Text { text: text.to_owned() };
        let Some((address, length)) = text.split_once('/') else {
            return Ok(Self::host(text.parse().map_err(|_| error())?));
        };
        let length = length.parse().map_err(|_| error())?;
        Self::new(address.parse().map_err(|_| error())?, length)
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
        for text in ["", "/8", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/33", "::/129", "x/8"] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
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
