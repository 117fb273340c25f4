//! One interface of a forwarder: its link, and the packets that wait for it.

use std::{collections::VecDeque, time::Duration};

use vigie_detect::Instant;
use vigie_via::link::{
    BackEnd, Checksum, Frame, FrameSegments, HEADER_BYTES, Link, LinkBuilder, LinkError, LinkEvent,
    OpenError, SegmentError,
};

use super::{HostEvent, Segments};
use crate::{
    packet::{Packet, Port, Sum, TAG_BYTES, TAGS_MAX, TCP, Tag, UDP},
    pipeline::DropReason,
};

/// The memory of a packet until it holds a longer frame.
const PACKET_BYTES: usize = 2048;

/// A frame as it was received, before the stages.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) packet: Packet,
    checksum: Checksum,
    segments: Result<Option<FrameSegments>, SegmentError>,
    is_cut: bool,
    is_odd: bool,
}

impl Default for Inbound {
    fn default() -> Self {
        let packet = Packet::empty(PACKET_BYTES);
        let (checksum, segments) = (Checksum::Unknown, Ok(None));
        Self { packet, checksum, segments, is_cut: false, is_odd: false }
    }
}

/// The treatment of an interface's frames before the stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameRules {
    segments: Segments,
    /// Its MTU.
    mtu: usize,
    /// The size to which segments are cut: the smallest MTU of all interfaces.
    cut_to: usize,
    /// True if all interfaces that send can send segments whole.
    sends_segments: bool,
    /// True if missing checksums must be guessed: the back end does not report them.
    guesses: bool,
}

impl FrameRules {
    /// Cuts segments so that the other interface accepts them, too.
    #[inline]
    pub(super) fn cut_like(mut self, other: Self) -> Self {
        self.cut_to = self.cut_to.min(other.mtu);
        self.sends_segments &= other.sends_segments;
        self
    }
}

impl Inbound {
    /// Copies a frame out of its slot, and reinserts the tag that the kernel removed.
    #[inline]
    fn take(&mut self, port: Port, frame: &Frame<'_>) -> usize {
        self.packet.fill(port, frame.len(), |bytes| {
            frame.read(0, bytes);
        });
        self.checksum = frame.checksum();
        self.segments = frame.segments();
        self.is_cut = frame.is_cut();
        self.is_odd = false;
        if let Some(tag) = frame.vlan_tag() {
            self.put_back(Tag { ether_type: tag.protocol, control: tag.control });
        }
        self.packet.len()
    }

    #[cold]
    fn put_back(&mut self, tag: Tag) {
        self.is_odd = self.packet.push_tag(tag).is_err();
    }

    /// Does what the sender left undone. Returns the pieces if segments were cut.
    #[inline]
    pub(super) fn prepare(&mut self, rules: FrameRules) -> Result<Option<Vec<Packet>>, DropReason> {
        if self.is_odd {
            return Err(DropReason::Malformed);
        }
        if self.is_cut {
            return Err(DropReason::Segments);
        }
        match self.segments {
            Ok(None) => {}
            Ok(Some(segments)) => return self.pass_segments(segments, rules),
            Err(_) => return Err(DropReason::SegmentHeader),
        }
        if self.packet.len() > rules.mtu + HEADER_BYTES {
            return self.cut(rules);
        }
        match self.checksum {
            // An unreadable packet has nothing to complete; the stages decide whether it passes.
            Checksum::Missing => {
                let _ = self.packet.complete_checksum();
            }
            Checksum::Unknown if rules.guesses && may_lack_checksum(self.packet.bytes()) => {
                let _ = self.packet.complete_checksum();
            }
            _ => {}
        }
        Ok(None)
    }

    /// Lets segments pass whole, or cuts them where an interface would not take them.
    fn pass_segments(
        &mut self,
        segments: FrameSegments,
        rules: FrameRules,
    ) -> Result<Option<Vec<Packet>>, DropReason> {
        if rules.segments == Segments::Refuse {
            return Err(DropReason::Segments);
        }
        if !self.packet.set_segments(segments) {
            return Err(DropReason::SegmentHeader);
        }
        let headers = self.packet.headers().map_err(|_| DropReason::SegmentHeader)?;
        if rules.sends_segments && self.packet.longest_bytes(&headers) <= rules.cut_to {
            return Ok(None);
        }
        if headers.end_at - headers.network_at <= rules.cut_to && self.packet.join_segments() {
            return Ok(None);
        }
        self.packet.cut_segments(rules.cut_to).ok().flatten().map(Some).ok_or(DropReason::Segments)
    }

    #[cold]
    fn cut(&mut self, rules: FrameRules) -> Result<Option<Vec<Packet>>, DropReason> {
        let headers = self.packet.headers().map_err(|_| DropReason::Segments)?;
        let length = self.packet.len() - headers.network_at;
        if length <= rules.mtu {
            // Only its tags make it so long.
            let _ = self.packet.complete_checksum();
            return Ok(None);
        }
        if rules.segments == Segments::Refuse {
            return Err(DropReason::Segments);
        }
        self.packet.cut_segments(rules.cut_to).ok().flatten().map(Some).ok_or(DropReason::Segments)
    }
}

/// Returns whether a checksum may be missing, without reading all headers of common frames: IPv4 without tags, options
/// and fragments. [`Packet::complete_checksum`] decides.
#[inline]
fn may_lack_checksum(frame: &[u8]) -> bool {
    let Some(head) = frame.first_chunk::<42>() else { return true };
    let is_common = head[12..15] == [0x08, 0x00, 0x45] && head[20] & 0x3f == 0 && head[21] == 0;
    let place = match head[23] {
        UDP => 40,
        TCP => 50,
        _ => return true,
    };
    let (true, Some([high, low])) = (is_common, frame.get(place..).and_then(<[u8]>::first_chunk))
    else {
        return true;
    };
    let length = u16::from_be_bytes([head[16], head[17]]);
    let Some(length) = length.checked_sub(20) else { return true };
    let sum = Sum::ZERO.bytes(&head[26..34]).word(length).word(u16::from(head[23]));
    sum.folded() == u16::from_be_bytes([*high, *low])
}

/// The outcome of sending a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    Now,
    Waits,
    Dropped(DropReason),
}

/// An interface.
#[derive(Debug)]
pub(super) struct AttachedInterface {
    port: Port,
    /// True if it only receives for a port that has another link, which reports events and sends.
    is_more: bool,
    builder: LinkBuilder,
    segments: Segments,
    /// `None` while the interface is gone.
    link: Option<Link>,
    /// Packets that wait for room, oldest first.
    waiting: VecDeque<Packet>,
    /// The time at which to reopen it.
    retry_at: Option<Instant>,
    /// True if a failure to reopen was reported.
    is_reported: bool,
    rules: FrameRules,
    /// Packets that the kernel dropped on earlier links.
    dropped_before: u64,
    /// The number of times that it was opened.
    generation: u32,
}

impl AttachedInterface {
    pub(super) fn open(
        port: Port,
        is_more: bool,
        builder: LinkBuilder,
        segments: Segments,
    ) -> Result<Self, OpenError> {
        let sends_segments = false;
        let rules = FrameRules { segments, mtu: 0, cut_to: 0, sends_segments, guesses: false };
        let mut this = Self {
            port,
            is_more,
            builder,
            segments,
            link: None,
            waiting: VecDeque::new(),
            retry_at: None,
            is_reported: false,
            rules,
            dropped_before: 0,
            generation: 0,
        };
        this.reopen()?;
        Ok(this)
    }

    fn reopen(&mut self) -> Result<(), OpenError> {
        let link = self.builder.clone().open()?;
        self.rules = FrameRules {
            segments: self.segments,
            mtu: link.payload_max(),
            cut_to: link.payload_max(),
            sends_segments: self.is_more || link.sends_segments(),
            guesses: link.back_end() == BackEnd::Xdp,
        };
        self.link = Some(link);
        self.generation = self.generation.wrapping_add(1);
        self.retry_at = None;
        self.is_reported = false;
        Ok(())
    }

    pub(super) const fn port(&self) -> Port {
        self.port
    }

    /// Returns whether its port sends by it.
    pub(super) const fn sends(&self) -> bool {
        !self.is_more
    }

    pub(super) const fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// Returns a number that differs for each link that it has had.
    pub(super) const fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) const fn rules(&self) -> FrameRules {
        self.rules
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) const fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Receives frames. Returns their number and bytes.
    #[inline]
    pub(super) fn receive(&mut self, batch: &mut [Inbound]) -> Result<(usize, u64), LinkError> {
        let Some(link) = &mut self.link else { return Ok((0, 0)) };
        let (port, count) = (self.port, batch.len());
        let mut places = batch.iter_mut();
        let mut bytes = 0;
        let received = link.recv_each(count, |frame| {
            if let Some(inbound) = places.next() {
                bytes += inbound.take(port, frame);
            }
        })?;
        Ok((received, super::to_u64(bytes)))
    }

    /// Sends a packet, or queues it behind others; if there is no room, it is dropped if `drops`.
    #[inline]
    pub(super) fn send(&mut self, packet: &Packet, waiting_max: usize, drops: bool) -> SendOutcome {
        if self.waiting.is_empty() {
            match self.give(packet) {
                Ok(()) => return SendOutcome::Now,
                Err(LinkError::Full) => {}
                Err(error) => return SendOutcome::Dropped(reason(&error)),
            }
        }
        if drops && self.waiting.len() >= waiting_max {
            return SendOutcome::Dropped(DropReason::BufferFull);
        }
        self.waiting.push_back(packet.clone());
        SendOutcome::Waits
    }

    /// Gives a packet to the kernel; if there is no room, makes the kernel send what it has and tries again.
    #[inline]
    fn give(&mut self, packet: &Packet) -> Result<(), LinkError> {
        let Some(link) = &mut self.link else { return Err(LinkError::Removed) };
        if packet.segments().is_some() {
            let frame = packet.segmented().ok_or(LinkError::NoSegments)?;
            return link.send_segments(&frame);
        }
        match link.send_frame(packet.bytes()) {
            Err(LinkError::Full) => {
                link.flush()?;
                link.send_frame(packet.bytes())
            }
            sent => sent,
        }
    }

    /// Sends waiting packets while there is room. Returns the number of packets and bytes, and how many were dropped
    /// because they can no longer be sent.
    pub(super) fn send_waiting(&mut self) -> (usize, u64, Option<(DropReason, usize)>) {
        let (mut packets, mut bytes) = (0, 0);
        let mut lost = None;
        while let Some(packet) = self.waiting.pop_front() {
            match self.give(&packet) {
                Ok(()) => {
                    packets += 1;
                    bytes += super::to_u64(packet.len());
                }
                Err(LinkError::Full) => {
                    self.waiting.push_front(packet);
                    break;
                }
                Err(error) if matches!(error, LinkError::Down | LinkError::Removed) => {
                    lost = Some((reason(&error), self.waiting.len() + 1));
                    self.waiting.clear();
                }
                Err(error) => {
                    let before = lost.map_or(0, |(_, count)| count);
                    lost = Some((reason(&error), before + 1));
                }
            }
        }

        // Sent with the next flush.
        if packets > 0 {
            let _ = self.flush();
        }

        (packets, bytes, lost)
    }

    #[inline]
    pub(super) fn flush(&mut self) -> Result<(), LinkError> {
        self.link.as_mut().map_or(Ok(()), Link::flush)
    }

    pub(super) fn is_sending(&mut self) -> bool {
        self.link.as_mut().is_some_and(Link::is_sending)
    }

    /// Closes the link; it is reopened when due.
    pub(super) fn close(&mut self, now: Instant) {
        if let Some(mut link) = self.link.take() {
            self.dropped_before += link.statistics().map_or(0, |statistics| statistics.dropped);
        }
        self.retry_at = Some(now);
    }

    /// Reports changes of the interface, and reopens it if it is gone or was closed.
    pub(super) fn watch(
        &mut self,
        now: Instant,
        every: Option<Duration>,
        report: &mut dyn FnMut(HostEvent),
    ) {
        let is_more = self.is_more;
        let mut on_event = |event| {
            if !is_more {
                report(event);
            }
        };
        while let Some(link) = &mut self.link {
            match link.next_event() {
                Ok(Some(event)) => {
                    on_event(HostEvent::Link(self.port, event));
                    match event {
                        LinkEvent::Removed => self.close(now),
                        LinkEvent::MtuChanged(mtu) => self.mtu_changed(mtu, now),
                        _ => {}
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    on_event(HostEvent::Failed(self.port, error));
                    self.close(now);
                }
            }
        }

        let (Some(every), Some(at)) = (every, self.retry_at) else { return };
        if now < at {
            return;
        }

        match self.reopen() {
            Ok(()) => on_event(HostEvent::Reopened(self.port)),
            Err(error) => {
                self.retry_at = Some(now + every);
                if !self.is_reported {
                    self.is_reported = true;
                    on_event(HostEvent::NotReopened(self.port, error));
                }
            }
        }
    }

    /// A link's slots keep the size they were made with: longer frames need a new link.
    fn mtu_changed(&mut self, mtu: u32, now: Instant) {
        let mtu = usize::try_from(mtu).unwrap_or(usize::MAX);
        if mtu > self.link.as_ref().map_or(0, Link::payload_max) {
            self.close(now);
        } else {
            (self.rules.mtu, self.rules.cut_to) = (mtu, mtu);
        }
    }

    pub(super) fn kernel_drops(&mut self) -> Result<u64, LinkError> {
        let now = self
            .link
            .as_mut()
            .map_or(Ok(0), |link| link.statistics().map(|statistics| statistics.dropped))?;
        Ok(self.dropped_before + now)
    }

    /// Prepares to sleep. Returns whether something may be ready already.
    pub(super) fn arm(&mut self, takes_in: bool) -> Result<bool, LinkError> {
        let waits = !self.waiting.is_empty();
        let Some(link) = &mut self.link else { return Ok(false) };
        let _ = link.flush();
        let awaits_room = (waits || link.has_unsent()) && link.is_up();
        link.await_room(awaits_room)?;
        Ok(if takes_in { link.is_ready() } else { waits && link.has_room() })
    }
}

/// Returns the reason why a packet could not be sent.
#[cold]
const fn reason(error: &LinkError) -> DropReason {
    match error {
        LinkError::Removed => DropReason::Gone,
        LinkError::TooLong { .. } => DropReason::TooLong,
        LinkError::Full => DropReason::BufferFull,
        LinkError::NoSegments => DropReason::Segments,
        LinkError::Segments(_) => DropReason::SegmentHeader,
        _ => DropReason::Down,
    }
}

const _: () = assert!(TAGS_MAX * TAG_BYTES <= 8, "a link's places have room for two tags");

#[cfg(test)]
mod tests {
    use vigie_via::link::SegmentKind;

    use super::*;
    use crate::packet::Verified;

    /// A random frame, of a few kinds; half of them lack the checksum.
    fn frame(chance: &mut fastrand::Rng) -> Vec<u8> {
        let mut pick = |among: &[u8]| among[chance.usize(..among.len())];
        let mut frame = vec![0; usize::from(pick(&[33, 41, 42, 50, 51, 52, 54, 60, 90]))];
        let length =
            u16::try_from(frame.len().saturating_sub(usize::from(pick(&[13, 14, 14, 14, 20]))));
        let [high, low] = length.unwrap_or(0).to_be_bytes();
        let protocol = pick(&[UDP, UDP, TCP, TCP, 1]);
        let head = [
            [0x08, pick(&[0, 0, 0, 6]), pick(&[0x45, 0x45, 0x45, 0x46, 0x65]), 0],
            [high, low, 0, 0],
            [pick(&[0, 0x40, 0x40, 0x20]), pick(&[0, 0, 0, 1]), 64, protocol],
            [0, 0, 10, 9],
            [9, 1, 10, pick(&[9, 200])],
        ];
        for (place, byte) in frame[12..].iter_mut().zip(head.as_flattened()) {
            *place = *byte;
        }
        let left_out = pick(&[0, 1]) == 0;
        let pseudo = Sum::ZERO.bytes(&frame[26..frame.len().min(34)]).word(u16::from(protocol));
        let pseudo = pseudo.word(u16::from_be_bytes([high, low]).wrapping_sub(20)).folded();
        let at = if protocol == UDP { 40 } else { 50 };
        if left_out && frame.len() >= at + 2 {
            frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        }
        // The remaining mandatory fields of a UDP or TCP header.
        if protocol == UDP && frame.len() >= 40 {
            frame[38..40]
                .copy_from_slice(&u16::from_be_bytes([high, low]).wrapping_sub(20).to_be_bytes());
        } else if frame.len() >= 47 {
            frame[46] = 0x50;
        }
        frame
    }

    /// Goal: the short check completes exactly the checksums that reading all headers would.
    /// Method: random frames of few kinds, compared with the full check; both answers must occur.
    #[test]
    fn left_out_checksums_are_found_shortly() {
        let mut chance = fastrand::Rng::with_seed(7);
        let (mut completed, mut spared) = (0, 0);
        for _ in 0..50_000 {
            let bytes = frame(&mut chance);
            let mut packet = Packet::new(Port(0), &bytes);
            let is_completed = packet.complete_checksum() == Ok(true);
            let may_lack = may_lack_checksum(&bytes);
            assert!(may_lack || !is_completed, "{bytes:02x?}");
            completed += u32::from(is_completed);
            spared += u32::from(!may_lack);
        }
        assert!(completed > 1000 && spared > 1000, "{completed} completed, {spared} spared");
    }

    /// Goal: whatever the kernel says about the segments of a frame, the frame passes as segments that its headers confirm and
    /// that fit, is cut into pieces that fit, or is dropped for a reason. Method: random frames, right ones among them, with
    /// random descriptions.
    #[test]
    fn segments_are_what_the_headers_say() {
        let mut chance = fastrand::Rng::with_seed(3);
        let kinds = [SegmentKind::TcpV4, SegmentKind::TcpV6, SegmentKind::Udp];
        let mut seen = [0; 4];
        for _ in 0..20_000 {
            let mut frame = frame(&mut chance);
            if chance.bool() {
                // A TCP packet of any length with right headers.
                let payload = chance.u16(..3000);
                frame.truncate(12);
                frame.resize(12, 0);
                frame.extend([0x08, 0, 0x45, 0]);
                frame.extend((40 + payload).to_be_bytes());
                frame.extend([0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 9, 9, 1, 10, 9, 9, 2]);
                frame.extend([0, 80, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 4, 0, 0, 0, 0, 0]);
                frame.resize(54 + usize::from(payload), 7);
            }
            let size = chance.u16(..2000);
            let segments = match FrameSegments::new(kinds[chance.usize(..3)], size) {
                FrameSegments { size_bytes: 0, .. } => Err(SegmentError::Empty),
                segments => Ok(Some(segments)),
            };
            let packet = Packet::new(Port(0), &frame);
            let mut inbound = Inbound { packet, segments, ..Inbound::default() };
            let rules = FrameRules {
                segments: Segments::Cut,
                mtu: 1500,
                cut_to: chance.usize(60..1600),
                sends_segments: chance.bool(),
                guesses: false,
            };
            match inbound.prepare(rules) {
                Ok(None) if inbound.packet.segments().is_some() => {
                    seen[0] += 1;
                    let headers = inbound.packet.headers().expect("they were read");
                    assert!(inbound.packet.longest_bytes(&headers) <= rules.cut_to);
                    assert!(rules.sends_segments && inbound.packet.segmented().is_some());
                }
                Ok(None) => {
                    seen[1] += 1;
                    assert!(inbound.packet.len() <= rules.cut_to + HEADER_BYTES);
                    assert_eq!(inbound.packet.verify(), Ok(Verified::Right));
                }
                Ok(Some(pieces)) => {
                    seen[2] += 1;
                    for mut piece in pieces {
                        assert!(piece.len() <= rules.cut_to + HEADER_BYTES);
                        assert_eq!(piece.verify(), Ok(Verified::Right));
                    }
                }
                Err(DropReason::Segments | DropReason::SegmentHeader) => seen[3] += 1,
                Err(reason) => panic!("{reason}"),
            }
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
    }
}
