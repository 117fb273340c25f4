//! The state of a TCP connection in the table: enough to tell a segment of its ends from a forged one.

use crate::packet::{Tcp, TcpFlags};

/// The largest shift of a window (RFC 7323, §2.3).
const SHIFT_MAX: u8 = 14;

/// The fields of a TCP segment that a [`NatTable`](super::NatTable) follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpProgress {
    /// The flags.
    pub flags: TcpFlags,
    /// The first sequence number.
    pub sequence: u32,
    /// The number of sequence numbers: bytes of payload, SYN, FIN.
    pub length: u32,
    /// The next sequence number that its sender expects; meaningless without [`TcpFlags::ACK`].
    pub acknowledged: u32,
    /// The window of its sender, in bytes, before it is scaled.
    pub window: u16,
    /// The shift of its sender's windows, which only a SYN has.
    pub shift: Option<u8>,
}

impl TcpProgress {
    /// Creates a segment without payload.
    #[must_use]
    pub const fn new(flags: TcpFlags, sequence: u32, acknowledged: u32, window: u16) -> Self {
        let length = (flags.0 & 1) as u32 + (flags.0 >> 1 & 1) as u32;
        Self { flags, sequence, length, acknowledged, window, shift: None }
    }

    /// Reads a segment.
    #[must_use]
    #[inline]
    pub fn of(tcp: &Tcp<'_>) -> Self {
        let mut this = Self::new(tcp.flags(), tcp.sequence(), tcp.acknowledgement(), tcp.window());
        this.length = this.length.wrapping_add(u32::try_from(tcp.payload().len()).unwrap_or(0));
        if this.flags.contains(TcpFlags::SYN) {
            this.shift = tcp.window_shift();
        }
        this
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TcpSide {
    /// The next sequence number that it expects, once known.
    expects: Option<u32>,
    /// Its window, in bytes.
    window: u32,
    shift: u8,
    /// True if it has sent a FIN.
    has_closed: bool,
    /// A segment with FIN or RST outside the other end's window as far as that was known.
    doubtful: Option<TcpProgress>,
}

impl TcpSide {
    /// Returns whether this end accepts a segment: it overlaps the window (RFC 9293, §3.10.7.4; RFC 5961, §3.2).
    fn accepts(&self, tcp: &TcpProgress) -> bool {
        let Some(expects) = self.expects else { return false };
        let before = |a: u32, b: u32| a.wrapping_sub(b) > u32::MAX / 2;
        let end = tcp.sequence.wrapping_add(tcp.length);
        !before(end, expects) && !before(expects.wrapping_add(self.window), tcp.sequence)
    }

    fn heard(&mut self, tcp: &TcpProgress) {
        if let Some(shift) = tcp.shift {
            self.shift = shift.min(SHIFT_MAX);
        }
        if tcp.flags.contains(TcpFlags::ACK) && !tcp.flags.contains(TcpFlags::RST) {
            self.expects = Some(tcp.acknowledged);
            // The window of a SYN is never scaled.
            let is_syn = tcp.flags.contains(TcpFlags::SYN);
            self.window = u32::from(tcp.window) << if is_syn { 0 } else { self.shift };
        }
    }
}

/// Both ends of a connection: the one that began the flow, and the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TcpSides([TcpSide; 2]);

impl TcpSides {
    /// Notes a segment. Returns whether it has ended the connection.
    pub(super) fn note(&mut self, is_reply: bool, tcp: &TcpProgress) -> bool {
        let [first, second] = &mut self.0;
        let (sender, receiver) = if is_reply { (second, first) } else { (first, second) };
        sender.heard(tcp);
        if !tcp.flags.contains(TcpFlags::FIN) && !tcp.flags.contains(TcpFlags::RST) {
            return false;
        }
        if receiver.accepts(tcp) {
            return self.close(is_reply, tcp);
        }
        sender.doubtful = Some(*tcp);
        false
    }

    /// Notes a segment that another processor has forwarded some time ago: what seemed to be outside its sender's window
    /// meanwhile is judged again, once. Returns whether the connection has ended.
    pub(super) fn note_old(&mut self, is_reply: bool, tcp: &TcpProgress) -> bool {
        let [first, second] = &mut self.0;
        let (sender, peer) = if is_reply { (second, first) } else { (first, second) };
        sender.heard(tcp);
        match peer.doubtful.take() {
            Some(of_peer) if sender.accepts(&of_peer) => self.close(!is_reply, &of_peer),
            _ => false,
        }
    }

    fn close(&mut self, is_reply: bool, tcp: &TcpProgress) -> bool {
        let [first, second] = &mut self.0;
        if is_reply {
            second.has_closed = true
        } else {
            first.has_closed = true
        };
        tcp.flags.contains(TcpFlags::RST) || first.has_closed && second.has_closed
    }
}
