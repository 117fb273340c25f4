//! Packets: Ethernet frames in owned memory, parsed without copying and edited in place.
//!
//! Frames are untrusted: parsing returns headers or a typed [`ParseError`], and no bytes cause a panic here.

mod arp;
mod checksum;
mod edit;
mod error;
mod ethernet;
mod fragment;
mod headers;
mod ipv4;
mod ipv6;
mod segment;
#[cfg(feature = "host")]
mod segmented;
mod transport;

#[cfg(test)]
mod tests;

use std::fmt;

use vigie_via::link::FrameSegments;

pub use self::{
    arp::{ARP_BYTES, Arp},
    checksum::{Sum, Verified},
    edit::EditError,
    error::{ParseError, Protocol},
    ethernet::{ETHERNET_BYTES, Ethernet, TAG_BYTES, TAGS_MAX, Tag},
    headers::{Fragment, Headers, ICMP, ICMPV6, Network, TCP, Transport, UDP},
    ipv4::{IPV4_BYTES, Ipv4},
    ipv6::{EXTENSIONS_MAX, IPV6_BYTES, Ipv6},
    transport::{ICMP_BYTES, Icmp, TCP_BYTES, Tcp, TcpFlags, UDP_BYTES},
};
pub(crate) use self::{
    checksum::{put, updated},
    fragment::fragmentable,
};

/// Room before a frame, for tags that are pushed.
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

/// The position of a packet in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// The message's number, unique in the pipeline.
    pub message: u64,
    /// The packet's number in the message, from 0.
    pub index: u32,
    /// True for the last packet.
    pub is_last: bool,
}

impl Part {
    /// Creates the position of a packet in a message.
    #[must_use]
    pub const fn new(message: u64, index: u32, is_last: bool) -> Self {
        Self { message, index, is_last }
    }
}

/// A frame in owned memory, editable in place, with the port on which it arrived.
///
/// The memory is reusable: [`fill`](Self::fill) replaces the frame.
#[derive(Clone)]
pub struct Packet {
    memory: Vec<u8>,
    begin: usize,
    end: usize,
    ingress: Port,
    part: Option<Part>,
    /// The rule by which it is cut behind the pipeline if it holds several segments.
    segments: Option<FrameSegments>,
    /// The number by which the sender of ICMP errors knows how it arrived; 0: not at all.
    pub(crate) arrival: u64,
    /// The parsed headers, until they change.
    headers: Option<Result<Headers, ParseError>>,
}

impl Packet {
    /// Creates an empty packet, with memory for frames of `bytes`.
    #[must_use]
    pub fn empty(bytes: usize) -> Self {
        Self {
            memory: vec![0; HEADROOM_BYTES + bytes],
            begin: HEADROOM_BYTES,
            end: HEADROOM_BYTES,
            ingress: Port(0),
            part: None,
            segments: None,
            arrival: 0,
            headers: None,
        }
    }

    /// Creates a packet from a frame that arrived on a port.
    #[must_use]
    pub fn new(ingress: Port, frame: &[u8]) -> Self {
        let mut packet = Self::empty(frame.len());
        packet.fill(ingress, frame.len(), |bytes| bytes.copy_from_slice(frame));
        packet
    }

    /// Replaces the frame by one of `length` bytes, which `write` writes. Bytes that it does not write are unspecified:
    /// they stem from earlier frames.
    #[inline]
    pub fn fill(&mut self, ingress: Port, length: usize, write: impl FnOnce(&mut [u8])) {
        let end = HEADROOM_BYTES + length;
        if end > self.memory.len() {
            self.memory.resize(end, 0);
        }
        self.begin = HEADROOM_BYTES;
        self.end = end;
        self.ingress = ingress;
        self.part = None;
        self.segments = None;
        self.headers = None;
        write(self.memory.get_mut(HEADROOM_BYTES..end).unwrap_or_default());
    }

    /// Sets its position in a message of several packets. Default: the packet is a whole message.
    #[must_use]
    pub const fn part_of(mut self, part: Part) -> Self {
        self.part = Some(part);
        self
    }

    getters! {
        /// Returns its position in a message of several packets; `None` if it is a whole message.
        part: Option<Part>,

        /// Returns how it is to be cut if it holds several segments; `None` if it is a single packet. The outgoing interface
        /// cuts it and computes the checksums of the transport, which nothing here does.
        segments: Option<FrameSegments>,

        /// Returns the port on which it arrived.
        ingress: Port,
    }

    /// Returns the length of the IP packet, or of its longest segment, in bytes.
    #[inline]
    pub(crate) fn longest_bytes(&self, headers: &Headers) -> usize {
        let whole = headers.end_at - headers.network_at;
        match self.segments {
            Some(segments) => segment::length(self.bytes(), headers, segments).min(whole),
            None => whole,
        }
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

    /// Returns the frame for any changes; its headers are parsed again afterwards.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.headers = None;
        self.bytes_kept()
    }

    /// The frame, for changes that do not move its headers.
    #[inline]
    fn bytes_kept(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.begin..self.end).unwrap_or_default()
    }

    /// Returns the positions of its headers, parsed once, and again after [`bytes_mut`](Self::bytes_mut).
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

    /// Truncates it, or extends it with zeros.
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

    /// Cuts a TCP packet longer than `mtu` bytes (of IP, with its headers) into packets of at most that length, with
    /// their checksums: a sender on this host left both to a network card. TCP does not depend on where it is cut.
    /// `None` if the packet cannot be cut, or need not be.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn cut_segments(&mut self, mtu: usize) -> Result<Option<Vec<Self>>, ParseError> {
        segment::cut(self, mtu)
    }

    /// Cuts an IPv4 packet into fragments of at most `mtu` bytes (of IP, with their headers), in order. `None` if it must
    /// not be fragmented, or cannot be.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn fragment(&mut self, mtu: usize) -> Result<Option<Vec<Self>>, ParseError> {
        fragment::fragment(self, mtu)
    }

    /// Takes the frame, and leaves an empty one.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let empty = Self { ingress: self.ingress, ..Self::empty(0) };
        std::mem::replace(self, empty)
    }

    /// Verifies the checksums of the IPv4 header and of the transport; that of [`segments`](Self::segments) is computed
    /// only behind the pipeline, so that it is not checked.
    ///
    /// # Cost
    /// One pass over the packet.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn verify(&mut self) -> Result<Verified, ParseError> {
        let headers = self.headers()?;
        if self.segments.is_some() {
            return Ok(checksum::verify_header(self.bytes(), &headers));
        }
        Ok(checksum::verify(self.bytes(), &headers))
    }

    /// Verifies the checksum of the IPv4 header alone.
    ///
    /// # Errors
    /// [`ParseError`].
    #[inline]
    pub fn verify_header(&mut self) -> Result<Verified, ParseError> {
        let headers = self.headers()?;
        Ok(checksum::verify_header(self.bytes(), &headers))
    }

    /// Computes the checksums of the IPv4 header and of the transport. Returns whether there was one of the transport:
    /// fragments and unknown protocols have none that could be computed.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn fill_checksums(&mut self) -> Result<bool, ParseError> {
        let headers = self.headers()?;
        checksum::fill_network(self.bytes_kept(), &headers);
        Ok(checksum::fill_transport(self.bytes_kept(), &headers))
    }

    /// Computes the checksum of TCP or UDP if a sender on this host left it to a network card: the field then holds the
    /// sum over the pseudo header. Returns whether it did.
    ///
    /// A right checksum equals that sum once in 65 536 times, and recomputing it does not change it.
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
            .field("arrival", &self.ingress)
            .field("part", &self.part)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// Two packets are equal if they hold the same frame, from the same port, at the same position in a message.
impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        self.ingress == other.ingress && self.part == other.part && self.bytes() == other.bytes()
    }
}

impl Eq for Packet {}
