//! Editing packets in place, with incremental updates of their checksums (RFC 1624).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;
use vigie_via::link::{EtherType, MacAddress};

use super::{
    ETHERNET_BYTES, HEADROOM_BYTES, Packet, ParseError, TAG_BYTES, TAGS_MAX, Tag,
    checksum::{Sum, put, updated},
    error::{Protocol, bytes_at},
    headers::{Headers, Network, Transport},
    transport::{Tcp, TcpFlags},
};

/// The reason why a packet was not edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EditError {
    /// The packet cannot be parsed.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// It has no such field: not IP, another version, or no ports.
    #[error("the packet has no {field}")]
    NoField {
        /// The field.
        field: &'static str,
    },
    /// Its hop limit would reach zero.
    #[error("the hop limit of the packet is exhausted")]
    Expired,
}

#[derive(Clone, Copy)]
enum AddressSide {
    Source,
    Destination,
}

impl Packet {
    /// Sets the frame's destination address.
    #[inline]
    pub fn set_destination_mac(&mut self, address: MacAddress) {
        put(self.bytes_kept(), 0, address.0);
    }

    /// Sets the frame's source address.
    #[inline]
    pub fn set_source_mac(&mut self, address: MacAddress) {
        put(self.bytes_kept(), 6, address.0);
    }

    /// Sets the IP source address, and updates the checksums.
    ///
    /// # Errors
    /// [`EditError::NoField`] if it is not a packet of that version of IP, [`EditError::Parse`].
    #[inline]
    pub fn set_source(&mut self, address: IpAddr) -> Result<(), EditError> {
        self.set_address(AddressSide::Source, address)
    }

    /// Sets the IP destination address, and updates the checksums.
    ///
    /// # Errors
    /// As [`set_source`](Self::set_source).
    #[inline]
    pub fn set_destination(&mut self, address: IpAddr) -> Result<(), EditError> {
        self.set_address(AddressSide::Destination, address)
    }

    fn set_address(&mut self, side: AddressSide, address: IpAddr) -> Result<(), EditError> {
        let headers = self.headers()?;
        match (headers.network, address, side) {
            (Network::Ipv4, IpAddr::V4(address), AddressSide::Source) => {
                self.replace_v4(&headers, headers.network_at + 12, address);
            }
            (Network::Ipv4, IpAddr::V4(address), AddressSide::Destination) => {
                self.replace_v4(&headers, headers.network_at + 16, address);
            }
            (Network::Ipv6, IpAddr::V6(address), AddressSide::Source) => {
                self.replace_v6(&headers, headers.network_at + 8, address);
            }
            (Network::Ipv6, IpAddr::V6(address), AddressSide::Destination) => {
                self.replace_v6(&headers, headers.network_at + 24, address);
            }
            (_, IpAddr::V4(_), _) => return Err(EditError::NoField { field: "IPv4 address" }),
            (_, IpAddr::V6(_), _) => return Err(EditError::NoField { field: "IPv6 address" }),
        }
        Ok(())
    }

    #[inline]
    fn replace_v4(&mut self, headers: &Headers, at: usize, address: Ipv4Addr) {
        let frame = self.bytes_kept();
        let Ok(before) = bytes_at::<4>(frame, at, Protocol::Ipv4) else { return };
        put(frame, at, address.octets());
        let taken = Sum::ZERO.bytes(&before).folded();
        let new = Sum::ZERO.bytes(&address.octets()).folded();
        update(frame, headers.network_at + 10, taken, new);
        if headers.covers_addresses() {
            update_transport(frame, headers, taken, new);
        }
    }

    fn replace_v6(&mut self, headers: &Headers, at: usize, address: Ipv6Addr) {
        let frame = self.bytes_kept();
        let Ok(before) = bytes_at::<16>(frame, at, Protocol::Ipv6) else { return };
        put(frame, at, address.octets());
        if headers.covers_addresses() {
            let taken = Sum::ZERO.bytes(&before).folded();
            let new = Sum::ZERO.bytes(&address.octets()).folded();
            update_transport(frame, headers, taken, new);
        }
    }

    /// Sets the source port of TCP or UDP, and updates the checksum.
    ///
    /// # Errors
    /// [`EditError::NoField`] for other protocols and later fragments, [`EditError::Parse`].
    #[inline]
    pub fn set_source_port(&mut self, port: u16) -> Result<(), EditError> {
        self.set_port(0, port)
    }

    /// Sets the destination port of TCP or UDP, and updates the checksum.
    ///
    /// # Errors
    /// As [`set_source_port`](Self::set_source_port).
    #[inline]
    pub fn set_destination_port(&mut self, port: u16) -> Result<(), EditError> {
        self.set_port(2, port)
    }

    fn set_port(&mut self, offset: usize, port: u16) -> Result<(), EditError> {
        let headers = self.headers()?;
        if !matches!(headers.transport, Transport::Tcp | Transport::Udp) {
            return Err(EditError::NoField { field: "port" });
        }
        self.replace_word(&headers, headers.transport_at + offset, port);
        Ok(())
    }

    /// Sets the identifier of an ICMP echo, and updates the checksum.
    ///
    /// # Errors
    /// [`EditError::NoField`] for everything but ICMP, [`EditError::Parse`].
    pub fn set_identifier(&mut self, identifier: u16) -> Result<(), EditError> {
        let headers = self.headers()?;
        if !matches!(headers.transport, Transport::Icmp | Transport::Icmpv6) {
            return Err(EditError::NoField { field: "identifier" });
        }
        self.replace_word(&headers, headers.transport_at + 4, identifier);
        Ok(())
    }

    /// Lowers the longest segment that a SYN of TCP [announces](Tcp::segment_bytes_max) to `bytes`, if it is longer, and updates the
    /// checksum. Returns whether it was.
    ///
    /// # Errors
    /// [`EditError::Parse`].
    pub fn clamp_segment_bytes(&mut self, bytes: u16) -> Result<bool, EditError> {
        let headers = self.headers()?;
        if headers.transport != Transport::Tcp {
            return Ok(false);
        }
        let tcp = Tcp::parse(self.bytes().get(headers.transport_at..).unwrap_or_default())?;
        let is_longer = tcp.segment_bytes_max().is_some_and(|announced| announced > bytes);
        if !is_longer || !tcp.flags().contains(TcpFlags::SYN) {
            return Ok(false);
        }
        let Some(at) = tcp.segment_bytes_max_at() else { return Ok(false) };
        let at = headers.transport_at + at;
        let frame = self.bytes_kept();
        let before = u16::from_be_bytes(bytes_at::<2>(frame, at, Protocol::Tcp)?);
        put(frame, at, bytes.to_be_bytes());
        // Options may begin anywhere: at an odd place, a word's bytes belong to two words of the sum.
        let is_odd = (at - headers.transport_at) % 2 == 1;
        let in_sum = |word: u16| if is_odd { word.swap_bytes() } else { word };
        update_transport(frame, &headers, in_sum(before), in_sum(bytes));
        Ok(true)
    }

    /// Replaces a word that the transport's checksum covers.
    fn replace_word(&mut self, headers: &Headers, at: usize, word: u16) {
        let frame = self.bytes_kept();
        let Ok(before) = bytes_at::<2>(frame, at, Protocol::Tcp) else { return };
        put(frame, at, word.to_be_bytes());
        update_transport(frame, headers, u16::from_be_bytes(before), word);
    }

    /// Decrements the TTL or hop limit, and updates the checksum. Returns the new value, at least one.
    ///
    /// # Errors
    /// [`EditError::Expired`] if it would reach zero, in which case nothing is changed; [`EditError::NoField`] without
    /// IP; [`EditError::Parse`].
    #[inline]
    pub fn decrement_ttl(&mut self) -> Result<u8, EditError> {
        let headers = self.headers()?;
        let frame = self.bytes_kept();
        let at = match headers.network {
            Network::Ipv4 => headers.network_at + 8,
            Network::Ipv6 => headers.network_at + 7,
            _ => return Err(EditError::NoField { field: "hop limit" }),
        };
        let [before] = bytes_at::<1>(frame, at, Protocol::Ipv4)?;
        if before <= 1 {
            return Err(EditError::Expired);
        }
        put(frame, at, [before - 1]);
        if headers.network == Network::Ipv4 {
            let word = u16::from(before) << 8;
            update(frame, headers.network_at + 10, word, word - 0x100);
        }
        Ok(before - 1)
    }

    /// Inserts a tag before the existing ones.
    ///
    /// # Errors
    /// [`ParseError`] if the frame is not Ethernet, or would have more than [`TAGS_MAX`] tags.
    pub fn push_tag(&mut self, tag: Tag) -> Result<(), ParseError> {
        let ethernet = super::Ethernet::parse(self.bytes())?;
        if ethernet.tags.iter().all(Option::is_some) {
            return Err(ParseError::TooManyTags { max: TAGS_MAX });
        }
        if self.begin < TAG_BYTES {
            // Tags were pushed until the room was used up. A frame never keeps more than two, so many must have been
            // removed again: move everything back to its original place.
            let bytes = self.bytes().to_vec();
            let (ingress, part) = (self.ingress, self.part);
            self.fill(ingress, bytes.len(), |place| place.copy_from_slice(&bytes));
            self.part = part;
        }
        debug_assert!(self.begin <= HEADROOM_BYTES + TAG_BYTES * TAGS_MAX);
        let addresses = bytes_at::<12>(self.bytes(), 0, Protocol::Ethernet)?;
        self.begin -= TAG_BYTES;
        let frame = self.bytes_mut();
        put(frame, 0, addresses);
        put(frame, 12, tag.ether_type.0.to_be_bytes());
        put(frame, 14, tag.control.to_be_bytes());
        Ok(())
    }

    /// Removes the outermost tag, if there is one.
    ///
    /// # Errors
    /// [`ParseError`] if the frame is not Ethernet.
    pub fn pop_tag(&mut self) -> Result<Option<Tag>, ParseError> {
        let header = bytes_at::<ETHERNET_BYTES>(self.bytes(), 0, Protocol::Ethernet)?;
        let [addresses @ .., high, low] = header;
        let ether_type = EtherType(u16::from_be_bytes([high, low]));
        if !Tag::announces(ether_type) {
            return Ok(None);
        }
        let [high, low, ..] = bytes_at::<TAG_BYTES>(self.bytes(), ETHERNET_BYTES, Protocol::Vlan)?;
        self.begin += TAG_BYTES;
        put(self.bytes_mut(), 0, addresses);
        Ok(Some(Tag { ether_type, control: u16::from_be_bytes([high, low]) }))
    }
}

/// Updates the checksum at an offset.
#[inline]
fn update(frame: &mut [u8], at: usize, taken: u16, new: u16) {
    if let Ok(before) = bytes_at::<2>(frame, at, Protocol::Ipv4) {
        put(frame, at, updated(u16::from_be_bytes(before), taken, new).to_be_bytes());
    }
}

/// Updates the checksum of the transport, if it has one; also in the first fragment, whose checksum covers all
/// fragments.
#[inline]
fn update_transport(frame: &mut [u8], headers: &Headers, taken: u16, new: u16) {
    let Some(at) = headers.checksum_at() else { return };
    let Ok(before) = bytes_at::<2>(frame, at, Protocol::Udp) else { return };
    let is_udp = headers.transport == Transport::Udp;
    if is_udp && before == [0, 0] {
        // The sender did not compute one.
        return;
    }
    let after = match updated(u16::from_be_bytes(before), taken, new) {
        0 if is_udp => 0xffff,
        after => after,
    };
    put(frame, at, after.to_be_bytes());
}
