//! The receiving half of a connection: what has arrived, in which order it is taken, and when to say so.

use std::collections::VecDeque;

use super::{
    congestion::{Nanos, RECEIPT_DELAY},
    outbound::FRAGMENTS_MAX,
    packet::{Header, RECEIPT_WORDS, narrow, widen},
};

/// Every so many packets a receipt is due at once [rfc5681, §4.2].
const RECEIPT_EVERY: u32 = 2;

#[derive(Debug)]
enum Slot {
    Missing,
    /// It waits for those before it.
    Held(Vec<u8>),
    /// It was taken at once.
    Taken,
}

/// What becomes of a fragment that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the fragment is taken now or never"]
pub(super) enum Arrival {
    /// It is to be taken now. After a gap, what was begun before it will not be continued.
    Now { is_after_gap: bool },
    /// It is kept for later.
    Kept,
    /// It was here before, or is of no use any more.
    Old,
    /// No sender that keeps to the window sends it.
    TooFar,
}

#[derive(Debug)]
pub(super) struct Inbound {
    /// The first fragment that has not arrived.
    next: u64,
    /// From `next` on.
    slots: VecDeque<Slot>,
    window: u16,
    /// The widest window that the peer was told of, or may have been.
    widest: u16,
    /// Without repeats fragments are taken as they come: the first that was not taken yet.
    newest: u64,
    repeats: bool,
    echo: u64,
    echo_at: Nanos,
    /// Packets that want a receipt since the last one was given.
    unheard: u32,
    due: Option<Nanos>,
    /// Fragments that arrived twice, or late.
    pub(super) repeated: u64,
}

impl Inbound {
    pub(super) fn new(repeats: bool, window: u16) -> Self {
        let window = within_bounds(window);
        Self {
            next: 0,
            slots: VecDeque::new(),
            window,
            widest: window,
            newest: 0,
            repeats,
            echo: 0,
            echo_at: 0,
            unheard: 0,
            due: None,
            repeated: 0,
        }
    }

    /// Changes how many fragments are taken at a time. What the peer was allowed to send before is still taken.
    pub(super) fn set_window(&mut self, window: u16) {
        self.window = within_bounds(window);
        self.widest = self.widest.max(self.window);
    }

    /// A packet has arrived that wants a receipt.
    pub(super) fn note(&mut self, transmission: u32, now: Nanos) {
        let transmission = widen(transmission, self.echo);
        if transmission >= self.echo {
            (self.echo, self.echo_at) = (transmission, now);
        }
        self.unheard += 1;
        if self.unheard >= RECEIPT_EVERY {
            self.due = Some(now);
        } else {
            self.due.get_or_insert(now + RECEIPT_DELAY);
        }
    }

    /// A receipt is due at once.
    pub(super) const fn hurry(&mut self, now: Nanos) {
        self.due = Some(now);
    }

    /// When a receipt is due.
    pub(super) const fn due(&self) -> Option<Nanos> {
        self.due
    }

    /// A fragment has arrived, from a sender that repeats nothing before `oldest`.
    pub(super) fn arrive(&mut self, sequence: u32, oldest: u32, bytes: &[u8]) -> Arrival {
        let sequence = widen(sequence, self.next);
        if !self.repeats {
            return self.arrive_once(sequence, widen(oldest, self.next));
        }
        let Some(ahead) = sequence.checked_sub(self.next) else {
            self.repeated += 1;
            return Arrival::Old;
        };
        if ahead >= u64::from(self.widest) {
            return Arrival::TooFar;
        }
        if ahead == 0 {
            return Arrival::Now { is_after_gap: false };
        }
        let slot = self.slot(ahead);
        if !matches!(slot, Slot::Missing) {
            self.repeated += 1;
            return Arrival::Old;
        }
        *slot = Slot::Held(bytes.to_vec());
        Arrival::Kept
    }

    fn slot(&mut self, ahead: u64) -> &mut Slot {
        let ahead = usize::try_from(ahead).unwrap_or(usize::MAX).min(FRAGMENTS_MAX);
        while self.slots.len() <= ahead {
            self.slots.push_back(Slot::Missing);
        }
        &mut self.slots[ahead]
    }

    fn arrive_once(&mut self, sequence: u64, oldest: u64) -> Arrival {
        if sequence < oldest || sequence - oldest >= u64::from(self.widest) {
            return Arrival::TooFar;
        }
        while self.next < oldest {
            if self.slots.pop_front().is_none() {
                self.next = oldest;
                break;
            }
            self.next += 1;
        }
        let Some(ahead) = sequence.checked_sub(self.next) else {
            self.repeated += 1;
            return Arrival::Old;
        };
        if ahead >= u64::from(self.widest) {
            return Arrival::TooFar;
        }
        let slot = self.slot(ahead);
        if !matches!(slot, Slot::Missing) {
            self.repeated += 1;
            return Arrival::Old;
        }
        *slot = Slot::Taken;
        while self.slots.pop_front_if(|slot| matches!(slot, Slot::Taken)).is_some() {
            self.next += 1;
        }
        if sequence < self.newest {
            // What came after it was taken already.
            self.repeated += 1;
            return Arrival::Old;
        }
        let is_after_gap = sequence > self.newest;
        self.newest = sequence + 1;
        Arrival::Now { is_after_gap }
    }

    /// The fragment that was to be taken now was taken; returns the one after it, if that is here.
    pub(super) fn taken(&mut self) -> Option<Vec<u8>> {
        if !self.repeats {
            return None;
        }
        self.next += 1;
        self.slots.pop_front();
        match self.slots.front_mut() {
            Some(slot @ Slot::Held(_)) => match std::mem::replace(slot, Slot::Taken) {
                Slot::Held(bytes) => Some(bytes),
                Slot::Missing | Slot::Taken => None,
            },
            _ => None,
        }
    }

    /// Whether something is missing before what has arrived.
    pub(super) fn has_gap(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Writes the receipt into a header; it is given then. At most `words` words of it.
    pub(super) fn tell(&mut self, header: &mut Header, words: usize, now: Nanos) {
        header.next = narrow(self.next);
        header.echo = narrow(self.echo);
        header.window = self.window;
        let delay = now.saturating_sub(self.echo_at) / 16_000;
        header.delay = u16::try_from(delay).unwrap_or(u16::MAX);
        header.receipts = [0; RECEIPT_WORDS];
        let ahead = self.slots.len().saturating_sub(1).min(FRAGMENTS_MAX - 1);
        let words = ahead.div_ceil(64).min(words);
        for (at, slot) in self.slots.iter().skip(1).take(words * 64).enumerate() {
            if !matches!(slot, Slot::Missing) {
                header.receipts[at / 64] |= 1 << (at % 64);
            }
        }
        header.words = u8::try_from(words).unwrap_or(0);
        if words == ahead.div_ceil(64) {
            (self.unheard, self.due) = (0, None);
        }
    }
}

fn within_bounds(window: u16) -> u16 {
    window.clamp(1, u16::try_from(FRAGMENTS_MAX).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(inbound: &mut Inbound) -> (u32, u64) {
        let mut header = Header::default();
        inbound.tell(&mut header, RECEIPT_WORDS, 0);
        (header.next, header.receipts[0])
    }

    /// Goal: fragments are taken in order, each once, whatever the order of arrival. Method: all orders of four,
    /// each arriving twice.
    #[test]
    fn fragments_are_taken_in_order() {
        for number in 0..4_u32.pow(4) {
            let order = [64, 16, 4, 1].map(|unit| number / unit % 4);
            if (0..4).any(|wanted| !order.contains(&wanted)) {
                continue;
            }
            let mut inbound = Inbound::new(true, 8);
            let mut taken = Vec::new();
            for sequence in order.into_iter().flat_map(|sequence| [sequence, sequence]) {
                let byte = u8::try_from(sequence).expect("small");
                if let Arrival::Now { .. } = inbound.arrive(sequence, 0, &[byte]) {
                    taken.push(byte);
                    while let Some(bytes) = inbound.taken() {
                        taken.extend(bytes);
                    }
                }
            }
            assert_eq!(taken, [0, 1, 2, 3], "{order:?}");
            assert_eq!(told(&mut inbound), (4, 0));
            assert_eq!(inbound.repeated, 4);
            assert!(!inbound.has_gap());
        }
    }

    /// Goal: receipts tell exactly what is here. Method: gaps.
    #[test]
    fn receipts_tell_of_gaps() {
        let mut inbound = Inbound::new(true, 256);
        for sequence in [1, 3, 4, 64] {
            assert_eq!(inbound.arrive(sequence, 0, &[]), Arrival::Kept);
        }
        assert_eq!(told(&mut inbound), (0, 0b1101 | 1 << 63));
        assert_eq!(inbound.arrive(256, 0, &[]), Arrival::TooFar);
        assert_eq!(inbound.arrive(u32::MAX, 0, &[]), Arrival::TooFar);
    }

    /// Goal: without repeats, what arrives is taken at once, what is late is not, and what the sender has given
    /// up is not waited for. Method: gaps, late ones, far jumps.
    #[test]
    fn without_repeats_nothing_waits() {
        let mut inbound = Inbound::new(false, 4);
        assert_eq!(inbound.arrive(0, 0, &[]), Arrival::Now { is_after_gap: false });
        assert_eq!(inbound.arrive(2, 0, &[]), Arrival::Now { is_after_gap: true });
        assert_eq!(inbound.arrive(1, 0, &[]), Arrival::Old);
        assert_eq!(inbound.arrive(2, 0, &[]), Arrival::Old);
        assert_eq!(told(&mut inbound), (3, 0));
        assert_eq!(inbound.arrive(102, 100, &[]), Arrival::Now { is_after_gap: true });
        assert_eq!(told(&mut inbound), (100, 0b10));
        assert_eq!(inbound.arrive(104, 100, &[]), Arrival::TooFar);
        assert_eq!(inbound.arrive(103, 104, &[]), Arrival::TooFar);
    }

    /// Goal: a window that becomes narrower takes nothing back. Method: wide, then narrow.
    #[test]
    fn a_narrower_window_takes_what_was_allowed() {
        let mut inbound = Inbound::new(true, 4);
        assert_eq!(inbound.arrive(4, 0, &[]), Arrival::TooFar);
        inbound.set_window(8);
        inbound.set_window(2);
        assert_eq!(inbound.arrive(7, 0, &[]), Arrival::Kept);
        assert_eq!(inbound.arrive(8, 0, &[]), Arrival::TooFar);
        let mut header = Header::default();
        inbound.tell(&mut header, RECEIPT_WORDS, 0);
        assert_eq!(header.window, 2);
    }
}
