//! What went through, and what was dropped for which reason.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::pipeline::Reason;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Their bytes, headers of Ethernet among them.
    pub bytes: u64,
}

#[derive(Default)]
struct Words {
    received_packets: AtomicU64,
    received_bytes: AtomicU64,
    sent_packets: AtomicU64,
    sent_bytes: AtomicU64,
    dropped: [AtomicU64; Reason::ALL.len()],
    answers: AtomicU64,
    answers_suppressed: AtomicU64,
}

/// Counters that any thread adds to and reads. Clones are the same ones.
#[derive(Clone, Default)]
pub struct Counters {
    words: Arc<Words>,
}

/// What [`Counters`] said at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterSnapshot {
    /// What was received.
    pub received: Traffic,
    /// What was sent, copies among it.
    pub sent: Traffic,
    /// What was dropped, by [`Reason::number`].
    pub dropped: [u64; Reason::ALL.len()],
    /// Senders that were told by ICMP why a packet was dropped ([`Answers`](crate::icmp::Answers)). These answers are among
    /// what was sent.
    pub answers: u64,
    /// Senders that were not told, since their interface tells no more at a time.
    pub answers_suppressed: u64,
}

/// Adds to a counter of which nothing depends: the number alone carries meaning.
#[inline]
fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counters {
    /// Counts what was received.
    #[inline]
    pub fn received(&self, packets: u64, bytes: u64) {
        add(&self.words.received_packets, packets);
        add(&self.words.received_bytes, bytes);
    }

    /// Counts what was sent.
    #[inline]
    pub fn sent(&self, packets: u64, bytes: u64) {
        add(&self.words.sent_packets, packets);
        add(&self.words.sent_bytes, bytes);
    }

    /// Counts what was dropped.
    #[inline]
    pub fn dropped(&self, reason: Reason, packets: u64) {
        if let Some(counter) = self.words.dropped.get(reason.number()) {
            add(counter, packets);
        }
    }

    /// Counts an answer to what was dropped.
    pub(crate) fn answered(&self) {
        add(&self.words.answers, 1);
    }

    /// Counts an answer that was one too many.
    pub(crate) fn answer_suppressed(&self) {
        add(&self.words.answers_suppressed, 1);
    }

    /// Returns what they say now. Each is exact; several may be of slightly different times.
    #[must_use]
    pub fn snapshot(&self) -> CounterSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let words = &self.words;
        let received =
            Traffic { packets: load(&words.received_packets), bytes: load(&words.received_bytes) };
        let sent = Traffic { packets: load(&words.sent_packets), bytes: load(&words.sent_bytes) };
        let (answers, suppressed) = (load(&words.answers), load(&words.answers_suppressed));
        let dropped = words.dropped.each_ref().map(load);
        CounterSnapshot { received, sent, dropped, answers, answers_suppressed: suppressed }
    }
}

impl CounterSnapshot {
    /// Returns how many were dropped for a reason.
    #[must_use]
    pub fn of(&self, reason: Reason) -> u64 {
        self.dropped.get(reason.number()).copied().unwrap_or(0)
    }

    /// Returns how many were dropped for any reason.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// What was received, sent, and dropped for each reason that there was.
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
        for reason in Reason::ALL.iter().filter(|reason| self.of(**reason) > 0) {
            write!(f, "{mark}{reason}: {}", self.of(*reason))?;
            mark = ", ";
        }
        if mark == ", " { f.write_str(")") } else { Ok(()) }
    }
}
