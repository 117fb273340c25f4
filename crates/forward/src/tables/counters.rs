//! Counters of forwarded packets, and of drops by reason.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::drop_reason::DropReason;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Their bytes, including Ethernet headers.
    pub bytes: u64,
}

#[derive(Default)]
struct CounterCells {
    received_packets: AtomicU64,
    received_bytes: AtomicU64,
    sent_packets: AtomicU64,
    sent_bytes: AtomicU64,
    dropped: [AtomicU64; DropReason::ALL.len()],
    icmp_errors: AtomicU64,
    icmp_errors_suppressed: AtomicU64,
}

/// Counters that any thread may update and read. Clones share them.
#[derive(Clone, Default)]
pub struct TrafficCounters {
    cells: Arc<CounterCells>,
}

/// The values of [`TrafficCounters`] at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterSnapshot {
    /// Packets received.
    pub received: Traffic,
    /// Packets sent, including copies.
    pub sent: Traffic,
    /// Packets dropped, by [`DropReason::number`].
    pub dropped: [u64; DropReason::ALL.len()],
    /// ICMP errors sent about dropped packets ([`IcmpErrorSender`](crate::icmp::IcmpErrorSender)). They are included in
    /// `sent`.
    pub icmp_errors: u64,
    /// ICMP errors suppressed because their interface had reached its rate.
    pub icmp_errors_suppressed: u64,
}

/// Adds to a counter. Only the number matters: it synchronises no other memory.
#[inline]
fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl TrafficCounters {
    /// Counts received packets.
    #[inline]
    pub fn count_received(&self, packets: u64, bytes: u64) {
        add(&self.cells.received_packets, packets);
        add(&self.cells.received_bytes, bytes);
    }

    /// Counts sent packets.
    #[inline]
    pub fn count_sent(&self, packets: u64, bytes: u64) {
        add(&self.cells.sent_packets, packets);
        add(&self.cells.sent_bytes, bytes);
    }

    /// Counts dropped packets.
    #[inline]
    pub fn count_dropped(&self, reason: DropReason, packets: u64) {
        if let Some(counter) = self.cells.dropped.get(reason.number()) {
            add(counter, packets);
        }
    }

    /// Counts an ICMP error sent.
    pub(crate) fn icmp_error_sent(&self) {
        add(&self.cells.icmp_errors, 1);
    }

    /// Counts an ICMP error suppressed by the rate.
    pub(crate) fn icmp_error_suppressed(&self) {
        add(&self.cells.icmp_errors_suppressed, 1);
    }

    /// Returns the current values. Each is exact, but they may be read at slightly different times.
    #[must_use]
    pub fn snapshot(&self) -> CounterSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let cells = &self.cells;
        let received =
            Traffic { packets: load(&cells.received_packets), bytes: load(&cells.received_bytes) };
        let sent = Traffic { packets: load(&cells.sent_packets), bytes: load(&cells.sent_bytes) };
        let (icmp_errors, suppressed) =
            (load(&cells.icmp_errors), load(&cells.icmp_errors_suppressed));
        let dropped = cells.dropped.each_ref().map(load);
        CounterSnapshot { received, sent, dropped, icmp_errors, icmp_errors_suppressed: suppressed }
    }
}

impl CounterSnapshot {
    /// Returns the number of packets dropped for a reason.
    #[must_use]
    pub fn of(&self, reason: DropReason) -> u64 {
        self.dropped.get(reason.number()).copied().unwrap_or(0)
    }

    /// Returns the number of packets dropped for any reason.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

impl fmt::Debug for TrafficCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// Shows packets received and sent, and drops for each reason that occurred.
impl fmt::Display for CounterSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { received, sent, .. } = self;
        write!(f, "received {} ({} bytes), ", received.packets, received.bytes)?;
        write!(
            f,
            "sent {} ({} bytes), dropped {}",
            sent.packets,
            sent.bytes,
            self.dropped_total()
        )?;
        let mut mark = " (";
        for reason in DropReason::ALL.iter().filter(|reason| self.of(**reason) > 0) {
            write!(f, "{mark}{reason}: {}", self.of(*reason))?;
            mark = ", ";
        }
        if mark == ", " { f.write_str(")") } else { Ok(()) }
    }
}
