//! Packets of several segments, as a link receives and sends them.

use vigie_via::link::{FrameSegments, SegmentKind, SegmentedFrame};

use super::{Fragment, Headers, Network, Packet, Transport, checksum};

impl Packet {
    /// Takes it for several segments, as its headers must say, too. Returns whether they do.
    pub(crate) fn set_segments(&mut self, segments: FrameSegments) -> bool {
        let Ok(headers) = self.headers() else { return false };
        let is_so = headers.fragment == Fragment::Whole
            && match segments.kind {
                SegmentKind::TcpV4 => {
                    (headers.network, headers.transport) == (Network::Ipv4, Transport::Tcp)
                }
                SegmentKind::TcpV6 => {
                    (headers.network, headers.transport) == (Network::Ipv6, Transport::Tcp)
                }
                SegmentKind::Udp => headers.transport == Transport::Udp,
                _ => false,
            };
        self.segments = Some(segments).filter(|_| is_so);
        is_so
    }

    /// Makes one packet of its segments, which only TCP allows. Returns whether it did.
    pub(crate) fn join_segments(&mut self) -> bool {
        let is_tcp = self.headers().is_ok_and(|headers| headers.transport == Transport::Tcp);
        if is_tcp {
            self.segments = None;
            let _ = self.fill_checksums();
        }
        is_tcp
    }

    /// Returns it as a link sends segments, if it holds several.
    pub(crate) fn segmented(&self) -> Option<SegmentedFrame<'_>> {
        let (segments, bytes) = (self.segments?, self.bytes());
        let headers = Headers::parse(bytes).ok()?;
        let pseudo_header_sum = checksum::pseudo_header(bytes, &headers)?.folded();
        Some(SegmentedFrame {
            bytes,
            segments,
            transport_at: headers.transport_at,
            pseudo_header_sum,
        })
    }
}
