//! The two ends of a ring: entries go one way, the count of consumed entries comes back.
//!
//! # Ordering
//! The producer writes an entry's sequence number last, with release; the consumer loads it with acquire
//! (ring-1). The consumer stores its count with release after it has copied all of the entries and of
//! the data they staged; the producer loads it with acquire before it overwrites them (ring-2).
//!
//! Each end keeps its own position in private memory, and trusts nothing that the other wrote.

use std::collections::VecDeque;

use super::{
    entry::{CacheLine, HeadedEntry, headed_write_of, numbered},
    layout::{
        CHUNK_MAX_BYTES, CLOSE_REASON_AT, CONSUMED_AT, ENTRIES_AT, ENTRY_BYTES, ENTRY_COUNT,
        REFUSAL_AT, STAGING_AT, STAGING_BYTES, WAKEUP_WANTED_AT,
    },
};
use crate::{
    sync::Ordering,
    vi::{CACHE_LINE, Memory, OutOfBounds},
};

/// The number of entries behind the next one at which a line is claimed. Measured: 1 gains less, and 7 nothing.
const CLAIMED_AHEAD: u64 = 3;

const SEQUENCE_MASK: u64 = u32::MAX as u64;

#[inline]
const fn entry_at(position: u64) -> u64 {
    ENTRIES_AT + (position % ENTRY_COUNT) * ENTRY_BYTES
}

/// The sending end, over the peer's ring file.
#[derive(Debug)]
pub(super) struct Producer {
    ring: Memory,
    /// The number of entries that were written in total.
    tail: u64,
    /// The number of them that the peer is known to have consumed. Never more than `tail`.
    consumed: u64,
    /// The number of bytes that were staged in total, including the gaps at the end of the area.
    staged: u64,
    /// The number of them that are free again.
    unstaged: u64,
    /// For each entry with staged data: the count of entries with it, and of staged bytes.
    staged_by: VecDeque<(u64, u64)>,
    /// Nothing has arrived from the peer since the last entry was written.
    is_in_burst: bool,
}

impl Producer {
    pub(super) const fn new(ring: Memory) -> Self {
        Self {
            ring,
            tail: 0,
            consumed: 0,
            staged: 0,
            unstaged: 0,
            staged_by: VecDeque::new(),
            is_in_burst: false,
        }
    }

    #[inline]
    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    /// Reads how many entries the peer has consumed.
    ///
    /// # Errors
    /// If the peer's count is impossible.
    #[inline]
    pub(super) fn refresh(&mut self) -> Result<u64, &'static str> {
        let consumed = self.ring.load(CONSUMED_AT).map_err(|_| OUTSIDE)?;
        if consumed < self.consumed || consumed > self.tail {
            return Err("an impossible count of consumed entries");
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
    pub(super) fn push(&mut self, mut words: [u64; CACHE_LINE / 8]) {
        debug_assert!(self.tail - self.consumed < ENTRY_COUNT, "no room");
        let position = self.tail;
        self.tail += 1;
        let [a, b, c, d, ..] = (self.tail & SEQUENCE_MASK).to_le_bytes();
        words[0] = numbered(words[0], u32::from_le_bytes([a, b, c, d]));
        let written = self.ring.store_line(entry_at(position), words);
        debug_assert!(written.is_ok(), "inside the ring");
    }

    /// Claims the line of an entry that is written soon, if entries follow each other without an answer: the peer's processor gives it up
    /// while this one writes others. The stores of a few messages fill the store buffer, so that without this each line would be waited
    /// for. The peer polls the next line all the time; that one is left to it.
    #[inline]
    pub(super) fn claim_ahead(&mut self) {
        if std::mem::replace(&mut self.is_in_burst, true) {
            self.ring.prefetch_to_write(entry_at(self.tail + CLAIMED_AHEAD), CACHE_LINE);
        }
    }

    /// An entry of the peer has arrived, which may answer those of this side.
    #[inline]
    pub(super) const fn end_burst(&mut self) {
        self.is_in_burst = false;
    }

    /// Returns where bytes can be staged and how many, up to `length`, if any.
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

    /// Assigns the bytes that [`stage`](Self::stage) returned to the entry that is written next.
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

    /// Returns an entry that was written and may not be consumed yet. The peer may have changed it.
    pub(super) fn written(&self, position: u64) -> Option<CacheLine> {
        self.ring.read_line(entry_at(position)).ok()
    }

    /// Returns the status with which the peer refused the entry after the consumed ones.
    pub(super) fn refusal(&self) -> u64 {
        self.ring.load(REFUSAL_AT).unwrap_or(0)
    }

    /// Sets whether to be woken when entries are consumed.
    pub(super) fn set_wakeup_wanted(&self, is_wanted: bool) {
        let stored = self.ring.store(WAKEUP_WANTED_AT, u64::from(is_wanted));
        debug_assert!(stored.is_ok(), "inside the ring");
    }

    /// Writes why the connection is about to be closed.
    pub(super) fn write_close_reason(&self, reason: u64) {
        let stored = self.ring.store(CLOSE_REASON_AT, reason);
        debug_assert!(stored.is_ok(), "inside the ring");
    }
}

/// The receiving end, over this side's ring file.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: Memory,
    /// The number of entries that were consumed in total.
    head: u64,
    /// The count that the peer was told.
    published: u64,
}

impl Consumer {
    pub(super) const fn new(ring: Memory) -> Self {
        Self { ring, head: 0, published: 0 }
    }

    /// Returns whether an entry is there.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.ring.load(entry_at(self.head)).is_ok_and(|first| self.is_next(first))
    }

    /// Returns whether the first word of an entry is that of the next one.
    #[inline]
    const fn is_next(&self, first: u64) -> bool {
        let [a, b, c, d, ..] = first.to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d]) as u64 == (self.head + 1) & SEQUENCE_MASK
    }

    /// Returns the next entry, if it is there, and if it is a headed write.
    #[inline(always)]
    #[expect(clippy::option_option, reason = "there may be an entry that is no such write")]
    pub(super) fn next_headed_write(&self) -> Option<Option<HeadedEntry>> {
        let line = self.ring.line(entry_at(self.head)).ok()?;
        let first = line[0].load(Ordering::Acquire);
        self.is_next(first).then(|| headed_write_of(line, first))
    }

    /// Copies the next entry, if it is there.
    #[inline]
    pub(super) fn next(&self) -> Option<CacheLine> {
        if !self.has_next() {
            return None;
        }
        self.ring.read_line(entry_at(self.head)).ok()
    }

    /// Advances past an entry that was handled.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.head += 1;
    }

    /// Returns how many consumed entries the peer was not told of.
    #[inline]
    pub(super) const fn unpublished(&self) -> u64 {
        self.head - self.published
    }

    /// Publishes the count of consumed entries. Returns whether it has changed.
    #[inline]
    pub(super) fn publish_consumed(&mut self) -> bool {
        if self.published == self.head {
            return false;
        }
        self.published = self.head;
        let stored = self.ring.store(CONSUMED_AT, self.head);
        debug_assert!(stored.is_ok(), "inside the ring");
        true
    }

    /// Tells the peer why the next entry is refused, permanently.
    pub(super) fn refuse(&mut self, status: u64) {
        let stored = self.ring.store(REFUSAL_AT, status);
        debug_assert!(stored.is_ok(), "inside the ring");
        self.publish_consumed();
    }

    /// Returns whether the peer, if it sleeps, wants to be woken when entries are consumed.
    pub(super) fn peer_wants_wakeup(&self) -> bool {
        self.ring.load(WAKEUP_WANTED_AT).is_ok_and(|word| word != 0)
    }

    /// Returns why the peer closed the connection, if it said so.
    pub(super) fn close_reason(&self) -> u64 {
        self.ring.load(CLOSE_REASON_AT).unwrap_or(0)
    }

    /// Copies staged bytes to their destination.
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
