//! Sleep and wake-ups.
//!
//! A NIC that is going to sleep makes its sleep word odd and polls its rings once more; a sender that
//! has published an entry reads the word, and notifies the NIC if it is odd. Each side writes one word
//! and reads the other's, so each needs a full fence in between (Dekker's pattern), or both may miss the
//! other. A fence per message is expensive, so the sleeper executes one for all: `membarrier` interrupts
//! every processor that runs a thread of a registered process. A sender then either published before the
//! barrier, and the sleeper's last poll finds the entry, or it reads the word after the barrier and
//! finds it odd (wakeup-1). Between the sender's two accesses only the compiler must keep the order.
//!
//! [`sleep`](super::sleep) is the word alone, which `tests/loom.rs` checks.
//!
//! If one of the two processes has no such barrier, the sender executes a fence (wakeup-2).
//!
//! A wake-up is a packet on the connection's socket, at most one per sleep: the sender remembers for
//! which value of the word it notified. A peer that notifies more often than this NIC slept is at fault.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::{
    layout::{KEYS_AT, PAGE_BYTES, SLEEP_AT, size},
    sleep::{Notifier, SleepWordReader, SleepWordWriter, Sleeper},
    sys,
};
use crate::{
    slots::SlotKey,
    sync::{Ordering, fence, light_fence},
    vi::{Memory, RemoteKey},
};

/// This NIC's page: it alone writes it, peers read it.
#[derive(Debug)]
pub(super) struct NicPage {
    file: OwnedFd,
    memory: Memory,
    sleeper: Sleeper,
    has_barrier: bool,
}

/// The sleep word in this NIC's page.
struct OwnSleepWord<'a> {
    memory: &'a Memory,
    has_barrier: bool,
}

impl SleepWordWriter for OwnSleepWord<'_> {
    fn store(&self, sleeps: u64) {
        store(self.memory, SLEEP_AT, sleeps);
    }

    /// # Errors
    /// The kernel's error, if the barrier no longer works.
    fn heavy_fence(&self) -> io::Result<()> {
        if self.has_barrier {
            sys::barrier()?;
        }
        // Also for peers that need a fence of their own (wakeup-2).
        fence(Ordering::SeqCst);
        Ok(())
    }
}

impl NicPage {
    pub(super) fn new() -> io::Result<Self> {
        let (file, memory) = sys::make_file(size(PAGE_BYTES), true)?;
        Ok(Self { file, memory, sleeper: Sleeper::default(), has_barrier: sys::register_barrier() })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) const fn has_barrier(&self) -> bool {
        self.has_barrier
    }

    pub(super) const fn is_asleep(&self) -> bool {
        self.sleeper.is_asleep()
    }

    /// Returns how often the NIC has gone to sleep.
    pub(super) const fn sleep_count(&self) -> u64 {
        self.sleeper.sleep_count()
    }

    /// Announces the sleep. The rings must be polled once more after this.
    ///
    /// # Errors
    /// The kernel's error, if the barrier no longer works.
    pub(super) fn fall_asleep(&mut self) -> io::Result<()> {
        let word = OwnSleepWord { memory: &self.memory, has_barrier: self.has_barrier };
        self.sleeper.fall_asleep(&word)
    }

    pub(super) fn wake_up(&mut self) {
        let word = OwnSleepWord { memory: &self.memory, has_barrier: self.has_barrier };
        self.sleeper.wake_up(&word);
    }

    /// Marks the key as valid, or no longer valid.
    pub(super) fn set_live(&self, key: RemoteKey, is_live: bool) {
        store(&self.memory, key_at(key), if is_live { key.0 } else { 0 });
    }
}

fn store(page: &Memory, offset: u64, word: u64) {
    let stored = page.store(offset, word);
    debug_assert!(stored.is_ok(), "inside the page");
}

/// Returns where the page says whether a key is live: the upper half of a key is its region's name.
fn key_at(key: RemoteKey) -> u64 {
    let name = u32::try_from(key.0 >> 32).unwrap_or(0);
    KEYS_AT + 8 * u64::from(name.index())
}

/// A peer's page, and what this side knows of the peer's sleep.
#[derive(Debug)]
pub(super) struct PeerPage {
    word: PeerSleepWord,
    notifier: Notifier,
}

/// The sleep word in a peer's page.
#[derive(Debug)]
struct PeerSleepWord {
    memory: Memory,
    /// True if this side must fence before it reads the word (wakeup-2).
    needs_fence: bool,
}

impl SleepWordReader for PeerSleepWord {
    #[inline]
    fn light_fence(&self) {
        if self.needs_fence {
            fence(Ordering::SeqCst);
        } else {
            // wakeup-1: the sleeper's barrier fences this processor.
            light_fence();
        }
    }

    #[inline]
    fn load(&self) -> Option<u64> {
        self.memory.load(SLEEP_AT).ok()
    }
}

impl PeerPage {
    pub(super) const fn new(memory: Memory, needs_fence: bool) -> Self {
        Self { word: PeerSleepWord { memory, needs_fence }, notifier: Notifier::new() }
    }

    /// Returns whether the peer's page says that the key is valid.
    pub(super) fn is_live(&self, key: RemoteKey) -> bool {
        self.word.memory.load(key_at(key)).is_ok_and(|word| word == key.0)
    }

    /// Returns, after something was published, whether the peer sleeps, has not been notified yet, and cares.
    #[inline]
    pub(super) fn must_notify(&mut self, cares: impl FnOnce() -> bool) -> bool {
        self.notifier.must_notify(&self.word, cares)
    }
}
