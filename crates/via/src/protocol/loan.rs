//! Messages without a copy: a loan is a piece of the peer's area that the sender writes in place, a view is a
//! piece of this rank's area that the receiver reads in place.

use super::{
    MessageEngine, Payload, SendError, SendMode, SendState, Status,
    area::Hold,
    envelope::{Control, ENVELOPE_BYTES, Envelope, FrameKind, Opening},
    incoming::{DirectReceive, ReceiveInterest},
    link::SendOutcome,
    matching::Pattern,
    payload::Discard,
    peer::{PeerLink, reliable_mut},
    to_u64, to_usize,
    view::{View, check},
};
use crate::vi::{Memory, OutOfBounds, Provider};

/// A message that you write in place. [`MessageEngine::commit`] sends it; [`MessageEngine::give_back`] does not.
#[derive(Debug)]
#[must_use = "a loan that is neither committed nor given back keeps a piece of the peer's area"]
pub struct Loan {
    rank: u32,
    memory: Memory,
    offset: u64,
    length: u32,
    place: LoanStorage,
}

/// The memory that a loan is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoanStorage {
    /// A piece of the peer's area.
    Area,
    /// A buffer of the engine's pool, from which the peer copies.
    Buffer,
    /// Memory of this process, from which frames are made.
    Heap,
}

impl Loan {
    /// Returns the message's length, in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.length as u64
    }

    /// Returns whether the message is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns whether the peer will read the message where you write it; otherwise it is copied once.
    #[must_use]
    pub const fn is_in_place(&self) -> bool {
        matches!(self.place, LoanStorage::Area)
    }

    /// Writes a part of the message.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        check(offset, bytes.len(), self.len())?;
        self.memory.write(self.offset + offset, bytes)
    }

    /// Returns the bytes written.
    pub(crate) fn to_vec(&self) -> Result<Vec<u8>, OutOfBounds> {
        self.memory.read_to_vec(self.offset, to_usize(self.len()))
    }

    /// Returns the rank that the message goes to.
    pub(crate) const fn rank(&self) -> u32 {
        self.rank
    }
}

/// The result of committing a loan.
#[derive(Debug)]
#[must_use = "a loan that was not sent must be committed again"]
#[expect(clippy::exhaustive_enums, reason = "there is nothing between sent and not sent")]
pub enum Committed {
    /// The message is sent.
    Done,
    /// The message was copied; this request sends it.
    Pending(super::RequestId),
    /// Earlier messages wait, or there is no credit: commit the loan again when there was progress.
    Busy(Loan),
}

impl<P: Provider> MessageEngine<P> {
    /// Loans a place for a message of `length` bytes to a rank: in the peer's own area, if it is mapped here
    /// and has room (for half of it at most); else, if the peer can map this process's memory, in a
    /// [buffer](Self::buffer), from which it takes the message in one copy; else in other memory of this
    /// process.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn loan(&mut self, dest: u32, length: u32) -> Result<Loan, SendError> {
        self.check_destination(dest)?;
        let frame = length.saturating_add(16);
        if let Some(link) = reliable_mut(&mut self.peers, dest) {
            let fits = frame <= link.writer.frame_bytes_max();
            if let Some((memory, place)) = fits.then(|| link.lend_slot(&self.nic, frame)).flatten()
            {
                let offset = u64::from(place.offset) + to_u64(ENVELOPE_BYTES);
                return Ok(Loan { rank: dest, memory, offset, length, place: LoanStorage::Area });
            }
        }
        if self.attributes.has_window
            && self.is_read_by(dest, length.into())
            && let Ok(memory) = self.buffer_for(dest, length as usize)
        {
            let place = LoanStorage::Buffer;
            return Ok(Loan { rank: dest, memory, offset: 0, length, place });
        }
        let memory = Memory::allocate(length as usize).map_err(|_| SendError::OutOfMemory)?;
        Ok(Loan { rank: dest, memory, offset: 0, length, place: LoanStorage::Heap })
    }

    /// Sends a message that was written in place.
    ///
    /// # Errors
    /// [`SendError`]: the rank has failed since.
    pub fn commit(&mut self, loan: Loan, context: u16, tag: u32) -> Result<Committed, SendError> {
        self.check_destination(loan.rank)?;
        let rank = loan.rank;

        if !loan.is_in_place() {
            let payload = if loan.place == LoanStorage::Buffer {
                let length = loan.len();
                Payload::Memory { memory: loan.memory, offset: 0, length }
            } else {
                Payload::Owned(loan.to_vec().unwrap_or_default())
            };
            let sent = self.send(rank, context, tag, SendMode::Standard, payload)?;
            return Ok(match sent {
                SendState::Done => Committed::Done,
                SendState::Pending(id) => Committed::Pending(id),
            });
        }

        let Some(peer) = self.peers.get_mut(rank as usize) else { return Ok(Committed::Done) };
        if !peer.is_clear() {
            return Ok(Committed::Busy(loan));
        }

        let length = loan.length;
        let mut head =
            Envelope { kind: FrameKind::Eager, flags: 0, context, tag, id: u32::MAX, length };
        let PeerLink::Reliable(link) = &mut peer.link else { return Ok(Committed::Done) };
        let at = loan.offset - to_u64(ENVELOPE_BYTES);
        let sent = if link.is_loaned(at) {
            link.send_loaned(&mut self.nic, &head.encode())
        } else {
            // Other frames were sent in between: the piece was announced as reserved.
            head.kind = FrameKind::Loaned;
            let opening = Opening { total: u64::from(length), offset: at, ..Opening::default() };
            let mut bytes = head.encode().to_vec();
            bytes.extend_from_slice(&opening.encode());
            self.push_frame(rank, &bytes, &[], 0, 0)
        };

        match sent {
            SendOutcome::Done => {
                self.counters.messages_sent += 1;
                Ok(Committed::Done)
            }
            SendOutcome::Blocked => Ok(Committed::Busy(loan)),
            SendOutcome::Fault(what) => {
                self.peer_fault(rank, what);
                self.check_destination(rank).map(|()| Committed::Done)
            }
        }
    }

    /// Takes back a loan without sending it.
    pub fn give_back(&mut self, loan: Loan) {
        if !loan.is_in_place() {
            return;
        }
        let at = loan.offset - to_u64(ENVELOPE_BYTES);
        if let Some(link) = reliable_mut(&mut self.peers, loan.rank)
            && !link.cancel_loan(at)
        {
            self.queue_control(loan.rank, Control::Unreserve { offset: at });
        }
    }

    /// Receives a message in place, if it fits, comes in one frame and is the next that arrives. Messages that
    /// arrived earlier are no longer in the area: [`try_recv`](Self::try_recv) gets those.
    pub fn try_recv_view(&mut self, pattern: Pattern) -> Option<(Status, View)> {
        if self.unexpected.find(&pattern).is_some() {
            return None;
        }
        let mut nowhere = Discard;
        let mut direct = DirectReceive::new(ReceiveInterest::View(&pattern), &mut nowhere);
        for _ in 0..64 {
            if !self.step(&mut direct) {
                self.flush();
                return None;
            }
            if let (Some(status), Some(view)) = (direct.result, direct.view.take()) {
                return Some((status, view));
            }
            if self.unexpected.find(&pattern).is_some() {
                return None;
            }
        }
        None
    }

    /// Gives the place of a view back to its sender.
    pub fn release(&mut self, view: View) {
        let rank = view.rank;
        if let Some(link) = reliable_mut(&mut self.peers, rank) {
            // After a new connection to the rank, its area is a different one.
            if link.area.memory.is_same(&view.memory) {
                link.reader.release_held(view.hold);
            }
        }
        self.touch(rank);
        self.return_credits(rank, false);
    }

    /// Handles the frame of a loan that other frames overtook: the message is in its reserved place.
    pub(super) fn reserved_at(&mut self, rank: u32, opening: &Opening) -> Option<(u32, Hold)> {
        let link = reliable_mut(&mut self.peers, rank)?;
        let (offset, length, hold) = link.take_reserved(opening.offset)?;
        let fits = opening.total.checked_add(to_u64(ENVELOPE_BYTES))? <= u64::from(length);
        (fits && to_usize(opening.total) <= u32::MAX as usize).then_some((offset, hold))
    }
}
