//! The layout of the memory that two processes share.
//!
//! A *ring file* belongs to one direction of one connection. The receiver creates it, the sender maps it:
//!
//! ```text
//! line 0      receiver writes: entries consumed; why it refused the next one
//! line 1      sender writes: whether it wants to be woken when entries are consumed; how it left
//! 4096        512 entries of 64 bytes
//! 36864       the staging area, 256 KiB
//! ```
//!
//! A *NIC's page* belongs to one NIC, the only one that can write it (`F_SEAL_FUTURE_WRITE`):
//!
//! ```text
//! word 0      odd while the NIC sleeps; grows with each change
//! 4096        for each place in the table of registered memory, the key in use there, or 0
//! ```

/// The version of the layout, the entries and the packets. NICs of different versions do not connect.
pub(super) const VERSION: u16 = 2;

/// The number of entries of a ring. Models have few of everything, so that they reach the end soon.
pub(super) const ENTRY_COUNT: u64 = if cfg!(loom) { 2 } else { 512 };
/// The size of an entry in bytes.
pub(super) const ENTRY_BYTES: u64 = 64;

/// The receiver's word: how many entries it has consumed in total.
pub(super) const CONSUMED_AT: u64 = 0;
/// The receiver's word: the status with which it refused the next entry, or 0.
pub(super) const REFUSAL_AT: u64 = 8;
/// The sender's word: whether it waits, asleep, for entries to be consumed.
pub(super) const WAKEUP_WANTED_AT: u64 = 64;
/// The sender's word: why it closed the connection, or 0.
pub(super) const CLOSE_REASON_AT: u64 = 72;
/// The offset at which the entries begin.
pub(super) const ENTRIES_AT: u64 = if cfg!(loom) { 128 } else { 4096 };
/// The offset at which the staging area begins.
pub(super) const STAGING_AT: u64 = ENTRIES_AT + ENTRY_COUNT * ENTRY_BYTES;
/// The size of the staging area. It holds data that cannot be written directly: of sends, and for
/// unshared memory.
pub(super) const STAGING_BYTES: u64 = if cfg!(loom) { 64 } else { 256 * 1024 };
/// The most bytes of staged data per entry, so that both sides copy concurrently.
pub(super) const CHUNK_MAX_BYTES: u64 = if cfg!(loom) { 64 } else { 32 * 1024 };
/// The size of a ring file.
pub(super) const RING_BYTES: u64 = STAGING_AT + STAGING_BYTES;

/// The NIC's word: odd while it sleeps.
pub(super) const SLEEP_AT: u64 = 0;
/// The offset at which the table of live keys begins.
pub(super) const KEYS_AT: u64 = if cfg!(loom) { 64 } else { 4096 };
/// The size of a NIC's page. Only the used part takes memory.
pub(super) const PAGE_BYTES: u64 = KEYS_AT + 8 * if cfg!(loom) { 1 } else { 65_536 };

/// The longest transfer of one descriptor.
pub(super) const TRANSFER_MAX_BYTES: u64 = (1 << 31) - 1;

/// Returns a length as the size of a mapping, or a size that no mapping has if it does not fit.
pub(super) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Returns a length in memory as a fixed-width number.
#[inline]
pub(super) fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
