//! The two ends of a ring: entries go one way, the count of consumed ones comes back.
//!
//! # Ordering
//! The producer writes an entry's sequence number last, with release; the consumer loads it with acquire
//! (ring-1). The consumer stores its count with release after it has copied everything of the entries and
//! of what they staged; the producer loads it with acquire before it writes over them (ring-2).
//!
//! Each end keeps its own position in memory of its own, and trusts nothing that the other wrote.

use std::collections::VecDeque;

use super::{
    entry::{Draft, Line},
    layout::{
        CHUNK_MAX_BYTES, CONSUMED_AT, ENTRIES_AT, ENTRY_BYTES, ENTRY_COUNT, GOODBYE_AT, REFUSAL_AT,
        STAGING_AT, STAGING_BYTES, WANTS_AT,
    },
};
use crate::vi::{Memory, OutOfBounds};

const SEQUENCE_MASK: u64 = u32::MAX as u64;

#[inline]
const fn entry_at(position: u64) -> u64 {
    ENTRIES_AT + (position % ENTRY_COUNT) * ENTRY_BYTES
}

/// The sending end, over the peer's ring file.
#[derive(Debug)]
pub(super) struct Producer {
    ring: Memory,
    /// How many entries were written, ever.
    tail: u64,
    /// How many of them the peer has consumed, as far as is known. Never more than `tail`.
    consumed: u64,
    /// How many bytes were staged, ever, with the gaps at the end of the area.
    staged: u64,
    /// How many of them are free again.
    unstaged: u64,
    /// For each entry with staged data: the count of entries with it, and of staged bytes.
    staged_by: VecDeque<(u64, u64)>,
}

impl Producer {
    pub(super) const fn new(ring: Memory) -> Self {
        Self { ring, tail: 0, consumed: 0, staged: 0, unstaged: 0, staged_by: VecDeque::new() }
    }

    #[inline]
    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    /// Looks how far the peer is.
    ///
    /// # Errors
    /// If it says what cannot be.
    #[inline]
    pub(super) fn refresh(&mut self) -> Result<u64, &'static str> {
        let consumed = self.ring.load(CONSUMED_AT).map_err(|_| OUTSIDE)?;
        if consumed < self.consumed || consumed > self.tail {
            return Err("a count of consumed entries that cannot be");
        }
        self.consumed = consumed;
        while let Some((entries, bytes)) = self.staged_by.front()
            && *entries <= consumed
        {
            self.unstaged = *bytes;
            self.staged_by.pop_front();
        }
        Ok(consumed)
    }

    /// Returns whether an entry can be written now.
    #[inline]
    pub(super) fn has_room(&mut self) -> Result<bool, &'static str> {
        if self.tail - self.consumed < ENTRY_COUNT {
            return Ok(true);
        }
        Ok(self.tail - self.refresh()? < ENTRY_COUNT)
    }

    /// Writes an entry; there must be room.
    #[inline]
    pub(super) fn push(&mut self, draft: &Draft) {
        debug_assert!(self.tail - self.consumed < ENTRY_COUNT, "no room");
        let position = self.tail;
        self.tail += 1;
        let [a, b, c, d, ..] = (self.tail & SEQUENCE_MASK).to_le_bytes();
        let line = draft.numbered(u32::from_le_bytes([a, b, c, d]));
        let written = self.ring.write_line(entry_at(position), line);
        debug_assert!(written.is_ok(), "inside the ring");
    }

    /// Returns where up to `length` bytes can be staged and how many of them, if any.
    pub(super) fn stage(&mut self, length: u64) -> Result<Option<(u64, u64)>, &'static str> {
        let length = length.min(CHUNK_MAX_BYTES);
        let at = self.staged % STAGING_BYTES;
        let gap = if at + length > STAGING_BYTES { STAGING_BYTES - at } else { 0 };
        if self.staged + gap + length - self.unstaged > STAGING_BYTES {
            self.refresh()?;
            if self.staged + gap + length - self.unstaged > STAGING_BYTES {
                return Ok(None);
            }
        }
        Ok(Some(((self.staged + gap) % STAGING_BYTES, length)))
    }

    /// Says that the bytes that [`stage`](Self::stage) gave are used by the entry that is written next.
    pub(super) fn use_staged(&mut self, at: u64, length: u64) {
        let gap = (at + STAGING_BYTES - self.staged % STAGING_BYTES) % STAGING_BYTES;
        // Whole lines, so that no two chunks share one.
        self.staged += gap + length.next_multiple_of(ENTRY_BYTES);
        self.staged_by.push_back((self.tail + 1, self.staged));
    }

    /// Copies bytes into the staging area.
    pub(super) fn copy_staged(
        &self,
        at: u64,
        source: &Memory,
        source_offset: u64,
        length: usize,
    ) -> Result<(), OutOfBounds> {
        self.ring.copy_from(STAGING_AT + at, source, source_offset, length)
    }

    pub(super) fn write_staged(&self, at: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.ring.write(STAGING_AT + at, bytes)
    }

    /// Returns an entry that was written and may not be consumed yet. The peer can have changed it.
    pub(super) fn written(&self, position: u64) -> Option<Line> {
        self.ring.read_line(entry_at(position)).ok()
    }

    /// Returns the status with which the peer refused the entry after the consumed ones.
    pub(super) fn refusal(&self) -> u64 {
        self.ring.load(REFUSAL_AT).unwrap_or(0)
    }

    /// Says whether to be woken when entries are consumed.
    pub(super) fn want(&self, is_wanted: bool) {
        let stored = self.ring.store(WANTS_AT, u64::from(is_wanted));
        debug_assert!(stored.is_ok(), "inside the ring");
    }

    /// Says why the connection will be closed.
    pub(super) fn say_goodbye(&self, reason: u64) {
        let stored = self.ring.store(GOODBYE_AT, reason);
        debug_assert!(stored.is_ok(), "inside the ring");
    }
}

/// The receiving end, over this side's ring file.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: Memory,
    /// How many entries were consumed, ever.
    head: u64,
    /// How many of them the peer was told of.
    told: u64,
}

impl Consumer {
    pub(super) const fn new(ring: Memory) -> Self {
        Self { ring, head: 0, told: 0 }
    }

    /// Returns whether an entry is there.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        let Ok(word) = self.ring.load(entry_at(self.head)) else { return false };
        let bytes = word.to_ne_bytes();
        let sequence = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        u64::from(sequence) == (self.head + 1) & SEQUENCE_MASK
    }

    /// Copies the next entry, if it is there.
    #[inline]
    pub(super) fn next(&self) -> Option<Line> {
        if !self.has_next() {
            return None;
        }
        self.ring.read_line(entry_at(self.head)).ok()
    }

    /// Goes past the entry that was taken care of.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.head += 1;
    }

    /// Tells the peer how many entries were consumed. Returns whether that is news.
    #[inline]
    pub(super) fn tell(&mut self) -> bool {
        if self.told == self.head {
            return false;
        }
        self.told = self.head;
        let stored = self.ring.store(CONSUMED_AT, self.head);
        debug_assert!(stored.is_ok(), "inside the ring");
        true
    }

    /// Tells the peer why the next entry is refused, for good.
    pub(super) fn refuse(&mut self, status: u64) {
        let stored = self.ring.store(REFUSAL_AT, status);
        debug_assert!(stored.is_ok(), "inside the ring");
        self.tell();
    }

    /// Returns whether the peer, if it sleeps, wants to be woken when entries are consumed.
    pub(super) fn peer_wants(&self) -> bool {
        self.ring.load(WANTS_AT).is_ok_and(|word| word != 0)
    }

    /// Returns why the peer closed the connection, if it said so.
    pub(super) fn goodbye(&self) -> u64 {
        self.ring.load(GOODBYE_AT).unwrap_or(0)
    }

    /// Copies staged bytes to where they belong.
    pub(super) fn copy_staged_to(
        &self,
        at: u64,
        target: &Memory,
        offset: u64,
        length: usize,
    ) -> Result<(), OutOfBounds> {
        target.copy_from(offset, &self.ring, STAGING_AT + at, length)
    }
}

const OUTSIDE: &str = "a ring file that is too short";
