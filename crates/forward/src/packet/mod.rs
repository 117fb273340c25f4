//! Packets: frames of Ethernet in memory of their own, read without copies and changed in place.
//!
//! Nothing in a frame is to be believed: reading it gives headers or a typed [`ParseError`], and nothing here
//! panics on any bytes.

mod arp;
mod checksum;
mod edit;
mod error;
mod ethernet;
mod headers;
mod ipv4;
mod ipv6;
mod segment;
mod transport;

#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use self::checksum::{put, updated};
pub use self::{
    arp::{ARP_BYTES, Arp},
    checksum::{Sum, Verified},
    edit::EditError,
    error::{ParseError, Protocol},
    ethernet::{ETHERNET_BYTES, Ethernet, TAG_BYTES, TAGS_MAX, Tag},
    headers::{Fragment, Headers, ICMP, ICMPV6, Network, TCP, Transport, UDP},
    ipv4::{IPV4_BYTES, Ipv4},
    ipv6::{EXTENSIONS_MAX, IPV6_BYTES, Ipv6},
    transport::{ICMP_BYTES, Icmp, TCP_BYTES, Tcp, TcpFlags, UDP_BYTES, Udp},
};

/// Room that is kept in front of a frame, for tags that are pushed.
const HEADROOM_BYTES: usize = 32;

/// An interface of a forwarder, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a number")]
pub struct Port(pub u16);

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.0)
    }
}

/// Which packet of which message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// The message, by a number that no other message in the pipeline has.
    pub message: u64,
    /// The packet's number in the message, from 0.
    pub index: u32,
    /// It is the last one.
    pub is_last: bool,
}

impl Part {
    /// Creates the place of a packet in a message.
    #[must_use]
    pub const fn new(message: u64, index: u32, is_last: bool) -> Self {
        Self { message, index, is_last }
    }
}

/// A frame in memory of its own, with room to change it in place, and the port on which it arrived.
///
/// The memory is used again: [`fill`](Self::fill) puts another frame in it.
#[derive(Clone)]
pub struct Packet {
    memory: Vec<u8>,
    begin: usize,
    end: usize,
    arrival: Port,
    part: Option<Part>,
    /// What reading the headers gave, as long as they have not changed.
    headers: Option<Result<Headers, ParseError>>,
}

impl Packet {
    /// Creates a packet that holds nothing, with memory for frames of `bytes`.
    #[must_use]
    pub fn empty(bytes: usize) -> Self {
        Self {
            memory: vec![0; HEADROOM_BYTES + bytes],
            begin: HEADROOM_BYTES,
            end: HEADROOM_BYTES,
            arrival: Port(0),
            part: None,
            headers: None,
        }
    }

    /// Creates a packet from a frame that arrived on a port.
    #[must_use]
    pub fn new(arrival: Port, frame: &[u8]) -> Self {
        let mut packet = Self::empty(frame.len());
        packet.fill(arrival, frame.len(), |bytes| bytes.copy_from_slice(frame));
        packet
    }

    /// Puts another frame of `length` bytes into the memory, which `write` writes. What it does not write is
    /// undetermined: bytes of frames before.
    #[inline]
    pub fn fill(&mut self, arrival: Port, length: usize, write: impl FnOnce(&mut [u8])) {
        let end = HEADROOM_BYTES + length;
        if end > self.memory.len() {
            self.memory.resize(end, 0);
        }
        self.begin = HEADROOM_BYTES;
        self.end = end;
        self.arrival = arrival;
        self.part = None;
        self.headers = None;
        write(self.memory.get_mut(HEADROOM_BYTES..end).unwrap_or_default());
    }

    /// Sets its place in a message of several packets. Default: it is a message by itself.
    #[must_use]
    pub const fn part_of(mut self, part: Part) -> Self {
        self.part = Some(part);
        self
    }

    /// Returns its place in a message of several packets, if it is not one by itself.
    #[must_use]
    pub const fn part(&self) -> Option<Part> {
        self.part
    }

    /// Returns the port on which it arrived.
    #[must_use]
    pub const fn arrival(&self) -> Port {
        self.arrival
    }

    /// Returns the length of the frame in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.end - self.begin
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Returns the frame.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.memory.get(self.begin..self.end).unwrap_or_default()
    }

    /// Returns the frame to change anything; its headers are read again afterwards.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.headers = None;
        self.bytes_kept()
    }

    /// The frame, to change what does not move its headers.
    #[inline]
    fn bytes_kept(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.begin..self.end).unwrap_or_default()
    }

    /// Returns where its headers are. They are read once, and again after [`bytes_mut`](Self::bytes_mut).
    ///
    /// # Errors
    /// [`ParseError`].
    #[inline]
    pub fn headers(&mut self) -> Result<Headers, ParseError> {
        if let Some(headers) = self.headers {
            return headers;
        }
        let headers = Headers::parse(self.bytes());
        self.headers = Some(headers);
        headers
    }

    /// Makes it longer or shorter at its end, with zeros.
    pub fn resize(&mut self, length: usize) {
        let end = self.begin + length;
        if end > self.memory.len() {
            self.memory.resize(end, 0);
        }
        if let Some(new) = self.memory.get_mut(self.end..end) {
            new.fill(0);
        }
        self.end = end;
        self.headers = None;
    }

    /// Computes the checksums, and cuts it into packets of at most `mtu` bytes (of IP, with its headers), if
    /// it is one of TCP and longer: a sender of this host has left both to a network card. TCP does not mind
    /// where it is cut. `None` if it cannot be cut, or need not be.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn cut_segments(&mut self, mtu: usize) -> Result<Option<Vec<Self>>, ParseError> {
        segment::cut(self, mtu)
    }

    /// Looks whether the checksums of IPv4's header and of the transport are right.
    ///
    /// # Cost
    /// One pass over the packet.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn verify(&mut self) -> Result<Verified, ParseError> {
        let headers = self.headers()?;
        Ok(checksum::verify(self.bytes(), &headers))
    }

    /// Computes the checksums of IPv4's header and of the transport. Returns whether there was one of the
    /// transport: fragments and unknown protocols have none that could be computed.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn fill_checksums(&mut self) -> Result<bool, ParseError> {
        let headers = self.headers()?;
        checksum::fill_network(self.bytes_kept(), &headers);
        Ok(checksum::fill_transport(self.bytes_kept(), &headers))
    }

    /// Computes the checksum of TCP or UDP if a sender of this host has left it to a network card: what
    /// stands there is the sum over the pseudo header. Returns whether it did.
    ///
    /// A right checksum looks like that once in 65 536 times, and is the same when it is computed again.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn complete_checksum(&mut self) -> Result<bool, ParseError> {
        let headers = self.headers()?;
        if !checksum::is_left_out(self.bytes(), &headers) {
            return Ok(false);
        }
        Ok(checksum::fill_transport(self.bytes_kept(), &headers))
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("arrival", &self.arrival)
            .field("part", &self.part)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// Equal if they hold the same frame, from the same port, at the same place of a message.
impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        self.arrival == other.arrival && self.part == other.part && self.bytes() == other.bytes()
    }
}

impl Eq for Packet {}
