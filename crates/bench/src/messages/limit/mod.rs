//! The limits of the machine: the least code that can carry a message.
//!
//! | limit | a message | flow control | waiting |
//! | --- | --- | --- | --- |
//! | [`MAILBOX`] | in one cache line, the sequence word last | the answer | polls |
//! | [`RING`] | in an entry of 64 bytes | a counter of the receiver, in a line of its own | polls |
//! | [`COPY_RING`] | cut into slots of 8 KiB, copied in and out | the same | polls |
//! | [`FUTEX_MAILBOX`] | as in the mailbox | the answer | sleeps in the kernel |
//! | [`YIELD_RING`] | as in the ring | as the ring | yields its core at every look |
//!
//! They do nothing else: no tags, no matching, no checks of what a peer wrote, one sender and one
//! receiver. So they bound what a complete system can reach; they are not systems themselves.

mod mailbox;
mod ring;

use self::mailbox::Mailbox;
use self::ring::{Geometry, SlotRing, Spin, Yield};

use super::{Blocking, CarrierKind, Measure, OwnCarrier};

/// A mailbox of one cache line.
pub(crate) static MAILBOX: OwnCarrier = OwnCarrier {
    name: "mailbox",
    label: "cache-line mailbox",
    family: "mailbox",
    kind: CarrierKind::Limit,
    has: |measure| {
        let fits = measure.bytes() as usize <= mailbox::CAPACITY;
        fits && matches!(measure, Measure::Latency { .. })
    },
    link_bytes: mailbox::BYTES,
    is_remote: false,
    open: |context| Ok(Box::new(Blocking::new(Mailbox::polling(context)?))),
};

/// A bare ring of entries of 64 bytes.
pub(crate) static RING: OwnCarrier = OwnCarrier {
    name: "ring",
    label: "bare ring of 64 B entries",
    family: "ring",
    kind: CarrierKind::Limit,
    has: |measure| {
        let fits = measure.bytes() as usize <= ENTRIES.capacity();
        fits && matches!(measure, Measure::Latency { .. } | Measure::Window { .. })
    },
    link_bytes: ENTRIES.bytes(),
    is_remote: false,
    open: |context| Ok(Box::new(Blocking::new(SlotRing::<Spin>::open(context, ENTRIES)?))),
};

/// A ring of larger slots, through which messages of any length are copied.
pub(crate) static COPY_RING: OwnCarrier = OwnCarrier {
    name: "copy-ring",
    label: "ring of copied chunks",
    family: "copy-ring",
    kind: CarrierKind::Limit,
    has: |measure| matches!(measure, Measure::Latency { .. } | Measure::Window { .. }),
    link_bytes: CHUNKS.bytes(),
    is_remote: false,
    open: |context| Ok(Box::new(Blocking::new(SlotRing::<Spin>::open(context, CHUNKS)?))),
};

/// A mailbox whose receiver sleeps.
pub(crate) static FUTEX_MAILBOX: OwnCarrier = OwnCarrier {
    name: "futex-mailbox",
    label: "futex mailbox",
    family: "futex-mailbox",
    kind: CarrierKind::Limit,
    has: |measure| {
        let sleeps = matches!(measure, Measure::Waiting { .. } | Measure::Quiet | Measure::Ring);
        sleeps && measure.bytes() as usize <= mailbox::CAPACITY
    },
    link_bytes: mailbox::BYTES,
    is_remote: false,
    open: |context| Ok(Box::new(Blocking::new(Mailbox::sleeping(context)?))),
};

/// A ring whose receiver calls `sched_yield` between two looks.
pub(crate) static YIELD_RING: OwnCarrier = OwnCarrier {
    name: "yield-ring",
    label: "bare ring, sched_yield",
    family: "yield-ring",
    kind: CarrierKind::Limit,
    has: |measure| matches!(measure, Measure::Ring),
    link_bytes: ENTRIES.bytes(),
    is_remote: false,
    open: |context| Ok(Box::new(Blocking::new(SlotRing::<Yield>::open(context, ENTRIES)?))),
};

/// 64 KiB of entries, one cache line each.
const ENTRIES: Geometry = Geometry { slot_bytes: 64, slots: 1024 };

/// About 1 MiB in slots of 8 KiB and a line: were they a power of two apart, all their first lines
/// would share one set of the cache.
const CHUNKS: Geometry = Geometry { slot_bytes: 8 * 1024 + 64, slots: 128 };
