//! Ethernet addresses of interfaces, and protocol numbers.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// The address of an interface, or of a group of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "six bytes, as they are on the wire")]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Every interface of the network.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns whether this is the address of a group, including broadcast.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns the `number`-th group address of a locally administered range, which no one else assigns.
    #[must_use]
    pub const fn group(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        Self([0x03, b'v', b'i', b'a', high, low])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Text that is not a [`MacAddress`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not an Ethernet address: six bytes in hexadecimal, with colons between them")]
#[non_exhaustive]
pub struct ParseMacError {
    /// The text.
    pub text: String,
}

impl FromStr for MacAddress {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let error = || ParseMacError { text: text.to_owned() };
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(error)?;
            // `from_str_radix` would take a sign.
            if !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(error());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        parts.next().map_or(Ok(Self(bytes)), |_| Err(error()))
    }
}

/// The protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a number of the wire")]
pub struct EtherType(pub u16);

impl EtherType {
    /// No protocol: a link that only sends, frames of every protocol.
    pub const NONE: Self = Self(0);
    /// Frames of every protocol.
    pub const ALL: Self = Self(0x0003);
    /// IP version 4.
    pub const IPV4: Self = Self(0x0800);
    /// The address resolution protocol of IPv4.
    pub const ARP: Self = Self(0x0806);
    /// IP version 6.
    pub const IPV6: Self = Self(0x86dd);
    /// The first of the two numbers that IEEE 802 leaves to local experiments.
    pub const EXPERIMENTAL_1: Self = Self(0x88b5);
    /// The second of those numbers.
    pub const EXPERIMENTAL_2: Self = Self(0x88b6);
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is printed can be read again, and nothing else is taken for an address. Method: texts.
    #[test]
    fn addresses_are_read_as_they_are_printed() {
        let address = MacAddress([0, 1, 0x7f, 0x80, 0xfe, 0xff]);
        assert_eq!(address.to_string().parse(), Ok(address));
        for text in
            ["", "0:1:2:3:4:5", "00:11:22:33:44", "00:11:22:33:44:55:66", "+0:11:22:33:44:55"]
        {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
        assert!(MacAddress::group(7).is_multicast() && !MacAddress([2; 6]).is_multicast());
    }
}
