//! What an engine knows of one rank: the link to it, and what waits for it.

use std::{collections::VecDeque, io::IoSlice};

use vigie_detect::Instant;

use super::{
    envelope::Control,
    link::{Direct, Own, Sent, Staging},
    reliable::Lossy,
    wide,
};
use crate::vi::{Provider, Reason, ViId};

/// The way to a rank.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the one in use: no pointer to follow"
)]
pub(super) enum Link {
    /// Nothing was prepared.
    Absent,
    /// A VI waits for its connection.
    Prepared(Own),
    /// A reliable VI.
    Direct(Direct),
    /// An unreliable VI.
    Lossy(Box<Lossy>),
    /// To this rank itself.
    Loop(Loop),
}

/// What a rank sends to itself.
#[derive(Debug)]
pub(super) enum Item {
    Frame(Vec<u8>),
    Control(Control),
}

/// Frames from a rank to itself: the same protocol, without a VI.
#[derive(Debug, Default)]
pub(super) struct Loop {
    items: VecDeque<Item>,
    bytes: u64,
    bytes_max: u64,
}

impl Loop {
    pub(super) fn new(bytes_max: u32) -> Self {
        Self { bytes_max: u64::from(bytes_max), ..Self::default() }
    }

    fn send_frame(&mut self, slices: &[IoSlice<'_>], length: u32) -> Sent {
        if self.bytes + u64::from(length) > self.bytes_max {
            return Sent::Blocked;
        }
        let mut frame = Vec::with_capacity(length as usize);
        for slice in slices {
            frame.extend_from_slice(slice);
        }
        self.bytes += wide(frame.len());
        self.items.push_back(Item::Frame(frame));
        Sent::Done
    }

    pub(super) fn take(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        if let Item::Frame(frame) = &item {
            self.bytes -= wide(frame.len());
        }
        Some(item)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.items.is_empty()
    }
}

/// One rank.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) link: Link,
    pub(super) failed: Option<Reason>,
    /// The longest frame to this peer, with its envelope.
    pub(super) frame_bytes_max: u32,
    /// So much of a message this peer takes without a grant.
    pub(super) window_out: u64,
    /// Sends whose first frame has not left, in the order of the calls.
    pub(super) outbox: VecDeque<u64>,
    /// Sends whose data the engine itself sends on.
    pub(super) pumps: VecDeque<u64>,
    /// Control entries that have not left.
    pub(super) controls: VecDeque<Control>,
    /// Sends whose owners are to be told when there is credit.
    pub(super) stalled: Vec<u64>,
    /// The peer told us to pause.
    pub(super) is_paused: bool,
    /// We told the peer to pause.
    pub(super) has_paused: bool,
    /// The heap that its messages take which no receive matched, in bytes.
    pub(super) parked_bytes: u64,
    /// Whether it stands in the engine's list of peers with work.
    pub(super) is_listed: bool,
    /// Whether it may be owed credits.
    pub(super) is_touched: bool,
    /// The messages that its streams carry; zero is none.
    pub(super) streams_in: Vec<u64>,
    streams_free: Vec<u32>,
    streams_count: u32,
}

/// The most messages in several frames that are on their way to one peer at a time.
pub(super) const STREAMS_MAX: u32 = 1 << 16;

impl Peer {
    pub(super) fn new(link: Link) -> Self {
        Self {
            link,
            failed: None,
            frame_bytes_max: 0,
            window_out: 0,
            outbox: VecDeque::new(),
            pumps: VecDeque::new(),
            controls: VecDeque::new(),
            stalled: Vec::new(),
            is_paused: false,
            has_paused: false,
            parked_bytes: 0,
            is_listed: false,
            is_touched: false,
            streams_in: Vec::new(),
            streams_free: Vec::new(),
            streams_count: 0,
        }
    }

    /// Returns the VI to it.
    pub(super) const fn vi(&self) -> Option<ViId> {
        match &self.link {
            Link::Direct(direct) => Some(direct.vi),
            _ => None,
        }
    }

    /// Returns whether a message may go at once, with nothing before it.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.outbox.is_empty() && !self.is_paused && self.failed.is_none()
    }

    /// Returns whether anything waits for this peer.
    pub(super) fn has_work(&self) -> bool {
        !((self.outbox.is_empty() || self.is_paused)
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
    ) -> Sent {
        match &mut self.link {
            Link::Direct(direct) => direct.send_frame(nic, staging, slices, length),
            Link::Lossy(lossy) => lossy.send(nic, staging, now, false, slices),
            Link::Loop(own) => own.send_frame(slices, length),
            Link::Absent | Link::Prepared(_) => Sent::Blocked,
        }
    }

    pub(super) fn send_control<P: Provider>(
        &mut self,
        nic: &mut P,
        staging: &mut Staging,
        now: Instant,
        control: Control,
    ) -> Sent {
        match &mut self.link {
            Link::Direct(direct) => direct.send_control(nic, control),
            Link::Lossy(lossy) => lossy.send_control(nic, staging, now, control),
            Link::Loop(own) => {
                own.items.push_back(Item::Control(control));
                Sent::Done
            }
            Link::Absent | Link::Prepared(_) => Sent::Blocked,
        }
    }

    /// Returns whether a frame of any length would find credit.
    pub(super) fn has_room(&mut self, staging: &Staging) -> bool {
        match &mut self.link {
            Link::Direct(direct) => direct.has_room(self.frame_bytes_max, staging),
            Link::Lossy(lossy) => lossy.has_room(),
            Link::Loop(own) => own.bytes + u64::from(self.frame_bytes_max) <= own.bytes_max,
            Link::Absent | Link::Prepared(_) => false,
        }
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

    /// Says what message a stream of the peer carries; zero for none. Returns `false` if the peer may not
    /// have that stream, or has it already.
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
