//! The word between a host that goes to sleep and those who ring for it.
//!
//! ```text
//!              begin_park (1)
//!      awake ─────────────────▶ parked
//!        │  ▲     end_park (2)    │
//!   ring │  └─────────────────────┘ ring: the ringer wakes the host
//!        ▼
//!      rung: begin_park refuses, the host looks again
//! ```
//!
//! All transitions are read-modify-writes of one word, so they have one total order: either the host
//! sees the ring when it parks, or the ringer sees the parked host and wakes it. There is no third
//! case in which a wake-up is lost.

use crate::sync::{AtomicU32, Ordering};

const PARKED: u32 = 1;
const RUNG: u32 = 2;

#[derive(Debug)]
pub(crate) struct ParkWord {
    /// Written by the host (`PARKED`, clears `RUNG`) and by ringers (`RUNG`). The ringer's release
    /// pairs with the host's acquire in [`take_ring`](Self::take_ring) and
    /// [`begin_park`](Self::begin_park), so that the host sees what the ringer did before it rang.
    /// `SeqCst` because deadlines are published beside the word: see `Shared::publish_deadline`.
    bits: AtomicU32,
}

/// What a host finds when it wants to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a host that sleeps although it was rung for loses an event"]
pub(crate) enum Park {
    Sleep,
    Rung,
}

impl ParkWord {
    pub(crate) fn new() -> Self {
        Self { bits: AtomicU32::new(0) }
    }

    /// Announces that the host will sleep, unless somebody rang.
    pub(crate) fn begin_park(&self) -> Park {
        if self.bits.fetch_or(PARKED, Ordering::SeqCst) & RUNG == 0 {
            Park::Sleep
        } else {
            Park::Rung
        }
    }

    /// Announces that the host is awake.
    pub(crate) fn end_park(&self) {
        self.bits.fetch_and(!PARKED, Ordering::SeqCst);
    }

    /// Returns whether the host sleeps or is about to.
    pub(crate) fn is_parked(&self) -> bool {
        self.bits.load(Ordering::SeqCst) & PARKED != 0
    }

    /// Returns whether somebody rang since the last [`take_ring`](Self::take_ring): one load.
    pub(crate) fn is_rung(&self) -> bool {
        self.bits.load(Ordering::Relaxed) & RUNG != 0
    }

    /// Takes the ring: what was done before it is visible now.
    pub(crate) fn take_ring(&self) -> bool {
        self.is_rung() && self.bits.fetch_and(!RUNG, Ordering::SeqCst) & RUNG != 0
    }

    /// Rings. Returns whether the caller must wake the host: it sleeps, and this ring was the first.
    #[must_use = "a parked host sleeps on if it is not woken"]
    pub(crate) fn ring(&self) -> bool {
        self.bits.fetch_or(RUNG, Ordering::SeqCst) == PARKED
    }
}
