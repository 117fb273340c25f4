//! The state that an engine keeps for one rank: the link to it, and what waits for it.

use std::{
    collections::{BTreeSet, VecDeque},
    io::IoSlice,
};

use vigie_detect::Instant;

use super::{
    announcements::Announcements,
    config::ANNOUNCED_MAX,
    envelope::Control,
    link::{LocalResources, ReliableLink, SendOutcome, Staging},
    loopback::{LoopbackItem, LoopbackLink},
    reliable::UnreliableLink,
};
use crate::{
    auth::Secret,
    vi::{Address, DisconnectReason, ProtectionTag, Provider, RequestId, ViId},
};

/// The link to a rank.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the one in use: no pointer to follow"
)]
pub(super) enum PeerLink {
    /// Nothing is prepared.
    Absent,
    /// A VI waits for its connection.
    Prepared(LocalResources),
    /// A reliable VI.
    Reliable(ReliableLink),
    /// An unreliable VI.
    Unreliable(Box<UnreliableLink>),
    /// To this rank itself.
    Loopback(LoopbackLink),
}

/// The stage of a connection that is made on demand, between this rank and another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Approach {
    /// Nothing is under way.
    #[default]
    Apart,
    /// This rank has called, for the `tries`th time. `held`: meanwhile the other one, whose rank is lower, has called too.
    Calling { tries: u32, held: Option<RequestId> },
    /// This rank has accepted the other one's call.
    Answering,
    /// The last attempt failed; the next one is at `until`.
    Pausing { tries: u32, until: Instant },
}

/// The state that the engine keeps for one rank.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) link: PeerLink,
    /// The address at which it can be reached, if connections are made on demand.
    pub(super) address: Option<Address>,
    pub(super) approach: Approach,
    /// The key by which it must prove its rank.
    pub(super) key: Option<Secret>,
    /// The tag of the memory that is shared with it alone.
    pub(super) tag: Option<ProtectionTag>,
    pub(super) failed: Option<DisconnectReason>,
    /// The longest frame to this peer, with its envelope.
    pub(super) frame_bytes_max: u32,
    /// The bytes of a message that this peer takes without a grant.
    pub(super) window_out: u64,
    /// Sends whose first frame has not been sent, in the order of the calls.
    pub(super) outbox: VecDeque<u64>,
    /// Sends whose remaining data the engine itself sends.
    pub(super) pumps: VecDeque<u64>,
    /// Control entries that have not been sent.
    pub(super) controls: VecDeque<Control>,
    /// Sends whose owners must be told when there is credit.
    pub(super) stalled: Vec<u64>,
    /// Sends whose next bytes wait until the peer no longer pauses this side.
    pub(super) paused: BTreeSet<u64>,
    /// The peer told us to pause: messages are announced without their bytes.
    pub(super) is_paused: bool,
    /// The announced messages that the peer has not matched, and how many it allows.
    pub(super) announced_out: u32,
    pub(super) announced_out_max: u32,
    pub(super) announcements_out: Announcements,
    /// Of these, the ones whose owners were told that they are done.
    pub(super) settled: u32,
    /// We told the peer to pause.
    pub(super) has_paused: bool,
    /// Its messages that are kept here before receives match them, and their bytes.
    pub(super) parked_messages: u64,
    pub(super) parked_bytes: u64,
    /// Its announced messages that no receive has matched.
    pub(super) announced_in: u32,
    pub(super) announcements_in: Announcements,
    /// The number of times that bytes of its messages were handed to their receivers.
    pub(super) taken: u64,
    /// True if it is in the engine's list of peers with work.
    pub(super) is_listed: bool,
    /// True if it may be owed credits.
    pub(super) is_touched: bool,
    /// The messages that its streams carry; zero for a free stream.
    pub(super) streams_in: Vec<u64>,
    streams_free: Vec<u32>,
    streams_count: u32,
}

/// Returns the link to a rank, if that goes over a reliable VI.
#[inline]
pub(super) fn reliable(peers: &[Peer], rank: u32) -> Option<&ReliableLink> {
    match peers.get(rank as usize) {
        Some(Peer { link: PeerLink::Reliable(link), .. }) => Some(link),
        _ => None,
    }
}

/// Like [`reliable`], to change it.
#[inline]
pub(super) fn reliable_mut(peers: &mut [Peer], rank: u32) -> Option<&mut ReliableLink> {
    match peers.get_mut(rank as usize) {
        Some(Peer { link: PeerLink::Reliable(link), .. }) => Some(link),
        _ => None,
    }
}

/// The most messages in several frames that may be under way to one peer at once.
pub(super) const STREAMS_MAX: u32 = ANNOUNCED_MAX + (1 << 16);

impl Peer {
    pub(super) fn new(link: PeerLink) -> Self {
        Self {
            link,
            address: None,
            approach: Approach::Apart,
            key: None,
            tag: None,
            failed: None,
            frame_bytes_max: 0,
            window_out: 0,
            outbox: VecDeque::new(),
            pumps: VecDeque::new(),
            controls: VecDeque::new(),
            stalled: Vec::new(),
            paused: BTreeSet::new(),
            is_paused: false,
            announced_out: 0,
            announced_out_max: 0,
            announcements_out: Announcements::default(),
            settled: 0,
            has_paused: false,
            parked_messages: 0,
            parked_bytes: 0,
            announced_in: 0,
            announcements_in: Announcements::default(),
            taken: 0,
            is_listed: false,
            is_touched: false,
            streams_in: Vec::new(),
            streams_free: Vec::new(),
            streams_count: 0,
        }
    }

    /// Returns the VI to this peer.
    pub(super) const fn vi(&self) -> Option<ViId> {
        match &self.link {
            PeerLink::Reliable(direct) => Some(direct.vi),
            _ => None,
        }
    }

    /// Returns whether a message may be sent at once, with no other before it.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.outbox.is_empty() && !self.is_paused && self.failed.is_none()
    }

    /// Returns whether anything waits for this peer.
    pub(super) fn has_work(&self) -> bool {
        !(self.outbox.is_empty()
            && self.pumps.is_empty()
            && self.controls.is_empty()
            && self.stalled.is_empty())
    }

    #[inline]
    pub(super) fn send_frame<P: Provider>(
        &mut self,
        nic: &mut P,
        staging: &mut Staging,
        now: Instant,
        slices: &[IoSlice<'_>],
        length: u32,
    ) -> SendOutcome {
        match &mut self.link {
            PeerLink::Reliable(direct) => direct.send_frame(nic, staging, slices, length),
            PeerLink::Unreliable(lossy) => lossy.send(nic, staging, now, false, slices),
            PeerLink::Loopback(own) => own.send_frame(slices, length),
            PeerLink::Absent | PeerLink::Prepared(_) => SendOutcome::Blocked,
        }
    }

    pub(super) fn send_control<P: Provider>(
        &mut self,
        nic: &mut P,
        staging: &mut Staging,
        now: Instant,
        control: Control,
    ) -> SendOutcome {
        match &mut self.link {
            PeerLink::Reliable(direct) => direct.send_control(nic, control),
            PeerLink::Unreliable(lossy) => {
                lossy.send(nic, staging, now, true, &[IoSlice::new(&control.encode())])
            }
            PeerLink::Loopback(own) => {
                own.items.push_back(LoopbackItem::Control(control));
                SendOutcome::Done
            }
            PeerLink::Absent | PeerLink::Prepared(_) => SendOutcome::Blocked,
        }
    }

    /// Returns whether a frame of any length would find credit.
    pub(super) fn has_room(&mut self, staging: &Staging) -> bool {
        match &mut self.link {
            PeerLink::Reliable(direct) => direct.has_room(self.frame_bytes_max, staging),
            PeerLink::Unreliable(lossy) => lossy.has_room(),
            PeerLink::Loopback(own) => own.bytes + u64::from(self.frame_bytes_max) <= own.bytes_max,
            PeerLink::Absent | PeerLink::Prepared(_) => false,
        }
    }

    /// Returns whether another message may begin, given credit.
    pub(super) fn takes_heads(&self) -> bool {
        let has_stream = !self.streams_free.is_empty() || self.streams_count + 1 < STREAMS_MAX;
        has_stream && !(self.is_paused && self.announced_out >= self.announced_out_max)
    }

    pub(super) fn open_stream(&mut self) -> Option<u32> {
        self.streams_free.pop().or_else(|| {
            self.streams_count += u32::from(self.streams_count < STREAMS_MAX);
            (self.streams_count < STREAMS_MAX).then_some(self.streams_count - 1)
        })
    }

    pub(super) fn close_stream(&mut self, stream: u32) {
        self.streams_free.push(stream);
    }

    /// Returns the message that a stream of the peer carries.
    pub(super) fn stream(&self, stream: u32) -> Option<u64> {
        self.streams_in.get(stream as usize).copied().filter(|message| *message != 0)
    }

    /// Sets the message that a stream of the peer carries; zero frees the stream. Returns `false` if the peer
    /// may not have that stream, or has it already.
    pub(super) fn set_stream(&mut self, stream: u32, message: u64) -> bool {
        if stream >= STREAMS_MAX {
            return false;
        }
        let index = stream as usize;
        if self.streams_in.len() <= index {
            self.streams_in.resize(index + 1, 0);
        }
        let is_free = self.streams_in[index] == 0 || message == 0;
        self.streams_in[index] = message;
        is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a message is sent at once only with none before it, and a peer counts as having work while
    /// anything can be done for it. Method: each thing that can wait alone, with and without a pause.
    #[test]
    fn work_waits_for_a_peer() {
        for case in 0..12 {
            let mut peer = Peer::new(PeerLink::Loopback(LoopbackLink::new(10)));
            peer.is_paused = case % 2 == 1;
            match case / 2 {
                0 => {}
                1 => peer.outbox.push_back(1),
                2 => peer.pumps.push_back(1),
                3 => peer.controls.push_back(Control::Pause),
                4 => peer.stalled.push(1),
                _ => peer.failed = Some(DisconnectReason::TimedOut),
            }
            assert_eq!(peer.is_clear(), matches!(case, 0 | 4 | 6 | 8), "{case}");
            assert_eq!(peer.has_work(), matches!(case, 2..=9), "{case}");
            assert_eq!(peer.vi(), None);
        }
    }

    /// Goal: streams are told apart, used again, and bounded. Method: all that can be opened, closed in another
    /// order; numbers that a peer may not use.
    #[test]
    fn streams_are_bounded() {
        let mut peer = Peer::new(PeerLink::Absent);
        let open: Vec<u32> = std::iter::from_fn(|| peer.open_stream()).collect();
        assert!(open.iter().copied().eq(0..STREAMS_MAX - 1));
        assert_eq!(peer.open_stream(), None);
        for stream in [7, 3] {
            peer.close_stream(stream);
        }
        let again = [(); 3].map(|()| peer.open_stream());
        assert_eq!(again, [Some(3), Some(7), None]);

        assert_eq!(peer.stream(0), None);
        assert!(!peer.set_stream(STREAMS_MAX, 5) && peer.set_stream(STREAMS_MAX - 1, 5));
        assert!(peer.set_stream(0, 6));
        assert_eq!((peer.stream(0), peer.stream(1)), (Some(6), None));
        assert_eq!(peer.stream(STREAMS_MAX - 1), Some(5));
        assert!(!peer.set_stream(0, 7), "it is in use");
        assert!(peer.set_stream(0, 0) && peer.set_stream(0, 0));
        assert_eq!(peer.stream(0), None);
        assert!(peer.set_stream(0, 8));
    }
}
