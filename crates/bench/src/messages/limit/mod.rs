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

use super::{Carrier, CarrierKind, Measure, blocking};

/// A mailbox of one cache line.
pub(crate) static MAILBOX: Carrier = Carrier {
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
    open: |context| blocking(Mailbox::polling(context)),
    program: None,
};

/// A bare ring of entries of 64 bytes.
pub(crate) static RING: Carrier = Carrier {
    name: "ring",
    label: "bare ring of 64 B entries",
    family: "ring",
    has: |measure| {
        let fits = measure.bytes() as usize <= ENTRIES.capacity();
        fits && measure.is_plain()
    },
    link_bytes: ENTRIES.bytes(),
    open: |context| blocking(SlotRing::<Spin>::open(context, ENTRIES)),
    ..MAILBOX
};

/// A ring of larger slots, through which messages of any length are copied.
pub(crate) static COPY_RING: Carrier = Carrier {
    name: "copy-ring",
    label: "ring of copied chunks",
    family: "copy-ring",
    has: Measure::is_plain,
    link_bytes: CHUNKS.bytes(),
    open: |context| blocking(SlotRing::<Spin>::open(context, CHUNKS)),
    ..MAILBOX
};

/// A mailbox whose receiver sleeps.
pub(crate) static FUTEX_MAILBOX: Carrier = Carrier {
    name: "futex-mailbox",
    label: "futex mailbox",
    family: "futex-mailbox",
    has: |measure| {
        let sleeps = matches!(measure, Measure::Waiting { .. } | Measure::Quiet | Measure::Ring);
        sleeps && measure.bytes() as usize <= mailbox::CAPACITY
    },
    open: |context| blocking(Mailbox::sleeping(context)),
    ..MAILBOX
};

/// A ring whose receiver calls `sched_yield` between two looks.
pub(crate) static YIELD_RING: Carrier = Carrier {
    name: "yield-ring",
    label: "bare ring, sched_yield",
    family: "yield-ring",
    has: |measure| matches!(measure, Measure::Ring),
    link_bytes: ENTRIES.bytes(),
    open: |context| blocking(SlotRing::<Yield>::open(context, ENTRIES)),
    ..MAILBOX
};

/// 64 KiB of entries, one cache line each.
const ENTRIES: Geometry = Geometry { slot_bytes: 64, slots: 1024 };

/// About 1 MiB in slots of 8 KiB and a line: were they a power of two apart, all their first lines
/// would share one set of the cache.
const CHUNKS: Geometry = Geometry { slot_bytes: 8 * 1024 + 64, slots: 128 };
