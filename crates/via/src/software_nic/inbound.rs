//! The receiving half of a connection: what has arrived, the order in which it is taken, and when to
//! acknowledge.

use std::collections::VecDeque;

use super::{
    congestion::{MAX_ACK_DELAY, Nanos},
    outbound::FRAGMENTS_MAX,
    packet::{ACK_WORDS, DataHeader, low_u32, widen},
};

/// An ACK is due at once after this many packets [rfc5681, §4.2].
const ACK_EVERY: u32 = 2;

#[derive(Debug)]
enum FragmentSlot {
    Missing,
    /// It has arrived, and waits for those before it.
    Held(Vec<u8>),
    /// It was taken on arrival.
    Taken,
}

/// The fate of an arriving fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the fragment is taken now or never"]
pub(super) enum FragmentArrival {
    /// Take it now. After a gap, a transfer begun before it will not be continued.
    Now { is_after_gap: bool },
    /// Kept for later.
    Kept,
    /// A duplicate, or no longer useful.
    Old,
    /// Beyond the window: no correct sender sends it.
    TooFar,
}

#[derive(Debug)]
pub(super) struct Inbound {
    /// The first fragment that has not arrived.
    next: u64,
    /// The slots from `next` on.
    slots: VecDeque<FragmentSlot>,
    window: u16,
    /// The widest window that the peer was told of, or may have been.
    widest: u16,
    /// Without retransmission, fragments are taken as they come; this is the first that was not taken yet.
    newest: u64,
    repeats: bool,
    echo: u64,
    echo_at: Nanos,
    /// Ack-eliciting packets since the last ACK.
    acks_pending: u32,
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
            acks_pending: 0,
            due: None,
            repeated: 0,
        }
    }

    /// Changes the window, in fragments. Fragments that the peer was allowed to send before are still taken.
    pub(super) fn set_window(&mut self, window: u16) {
        self.window = within_bounds(window);
        self.widest = self.widest.max(self.window);
    }

    /// Notes the arrival of an ack-eliciting packet.
    pub(super) fn note(&mut self, packet_number: u32, now: Nanos) {
        let packet_number = widen(packet_number, self.echo);
        if packet_number >= self.echo {
            (self.echo, self.echo_at) = (packet_number, now);
        }
        self.acks_pending += 1;
        if self.acks_pending >= ACK_EVERY {
            self.due = Some(now);
        } else {
            self.due.get_or_insert(now + MAX_ACK_DELAY);
        }
    }

    /// Makes an ACK due at once.
    pub(super) const fn hurry(&mut self, now: Nanos) {
        self.due = Some(now);
    }

    /// Returns when an ACK is due.
    pub(super) const fn due(&self) -> Option<Nanos> {
        self.due
    }

    /// Handles a fragment from a sender that retransmits nothing before `oldest`.
    pub(super) fn arrive(&mut self, sequence: u32, oldest: u32, bytes: &[u8]) -> FragmentArrival {
        let sequence = widen(sequence, self.next);
        if !self.repeats {
            return self.arrive_once(sequence, widen(oldest, self.next));
        }
        let Some(ahead) = sequence.checked_sub(self.next) else {
            self.repeated += 1;
            return FragmentArrival::Old;
        };
        if ahead >= u64::from(self.widest) {
            return FragmentArrival::TooFar;
        }
        if ahead == 0 {
            return FragmentArrival::Now { is_after_gap: false };
        }
        let slot = self.slot(ahead);
        if !matches!(slot, FragmentSlot::Missing) {
            self.repeated += 1;
            return FragmentArrival::Old;
        }
        *slot = FragmentSlot::Held(bytes.to_vec());
        FragmentArrival::Kept
    }

    fn slot(&mut self, ahead: u64) -> &mut FragmentSlot {
        let ahead = usize::try_from(ahead).unwrap_or(usize::MAX).min(FRAGMENTS_MAX);
        while self.slots.len() <= ahead {
            self.slots.push_back(FragmentSlot::Missing);
        }
        &mut self.slots[ahead]
    }

    fn arrive_once(&mut self, sequence: u64, oldest: u64) -> FragmentArrival {
        if sequence < oldest || sequence - oldest >= u64::from(self.widest) {
            return FragmentArrival::TooFar;
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
            return FragmentArrival::Old;
        };
        if ahead >= u64::from(self.widest) {
            return FragmentArrival::TooFar;
        }
        let slot = self.slot(ahead);
        if !matches!(slot, FragmentSlot::Missing) {
            self.repeated += 1;
            return FragmentArrival::Old;
        }

        *slot = FragmentSlot::Taken;
        while self.slots.pop_front_if(|slot| matches!(slot, FragmentSlot::Taken)).is_some() {
            self.next += 1;
        }
        if sequence < self.newest {
            // A later fragment was already taken.
            self.repeated += 1;
            return FragmentArrival::Old;
        }

        let is_after_gap = sequence > self.newest;
        self.newest = sequence + 1;
        FragmentArrival::Now { is_after_gap }
    }

    /// Records that the current fragment was taken. Returns the next one, if it has arrived.
    pub(super) fn taken(&mut self) -> Option<Vec<u8>> {
        if !self.repeats {
            return None;
        }
        self.next += 1;
        self.slots.pop_front();
        match self.slots.front_mut() {
            Some(slot @ FragmentSlot::Held(_)) => {
                match std::mem::replace(slot, FragmentSlot::Taken) {
                    FragmentSlot::Held(bytes) => Some(bytes),
                    FragmentSlot::Missing | FragmentSlot::Taken => None,
                }
            }
            _ => None,
        }
    }

    /// Returns whether a fragment is missing before those that have arrived.
    pub(super) fn has_gap(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Writes the ACK into a header, using at most `words` words, and marks it as given.
    pub(super) fn write_ack(&mut self, header: &mut DataHeader, words: usize, now: Nanos) {
        header.next = low_u32(self.next);
        header.echo = low_u32(self.echo);
        header.window = self.window;
        let delay = now.saturating_sub(self.echo_at) / 16_000;
        header.delay = u16::try_from(delay).unwrap_or(u16::MAX);
        header.acked = [0; ACK_WORDS];
        let ahead = self.slots.len().saturating_sub(1).min(FRAGMENTS_MAX - 1);
        let words = ahead.div_ceil(64).min(words);
        for (at, slot) in self.slots.iter().skip(1).take(words * 64).enumerate() {
            if !matches!(slot, FragmentSlot::Missing) {
                header.acked[at / 64] |= 1 << (at % 64);
            }
        }
        header.words = u8::try_from(words).unwrap_or(0);
        if words == ahead.div_ceil(64) {
            (self.acks_pending, self.due) = (0, None);
        }
    }
}

fn within_bounds(window: u16) -> u16 {
    window.clamp(1, u16::try_from(FRAGMENTS_MAX).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written_ack(inbound: &mut Inbound) -> (u32, u64) {
        let mut header = DataHeader::default();
        inbound.write_ack(&mut header, ACK_WORDS, 0);
        (header.next, header.acked[0])
    }

    /// Goal: fragments are taken in order, each once, whatever the order of arrival. Method: all orders
    /// of four, each arriving twice.
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
                if let FragmentArrival::Now { .. } = inbound.arrive(sequence, 0, &[byte]) {
                    taken.push(byte);
                    while let Some(bytes) = inbound.taken() {
                        taken.extend(bytes);
                    }
                }
            }
            assert_eq!(taken, [0, 1, 2, 3], "{order:?}");
            assert_eq!(written_ack(&mut inbound), (4, 0));
            assert_eq!(inbound.repeated, 4);
            assert!(!inbound.has_gap());
        }
    }

    /// Goal: ACKs report exactly what has arrived. Method: gaps.
    #[test]
    fn acks_tell_of_gaps() {
        let mut inbound = Inbound::new(true, 256);
        for sequence in [1, 3, 4, 64] {
            assert_eq!(inbound.arrive(sequence, 0, &[]), FragmentArrival::Kept);
        }
        assert_eq!(written_ack(&mut inbound), (0, 0b1101 | 1 << 63));
        assert_eq!(inbound.arrive(256, 0, &[]), FragmentArrival::TooFar);
        assert_eq!(inbound.arrive(u32::MAX, 0, &[]), FragmentArrival::TooFar);
    }

    /// Goal: without retransmission, fragments are taken on arrival, late ones are not, and those that
    /// the sender has given up are not waited for. Method: gaps, late ones, far jumps.
    #[test]
    fn without_repeats_nothing_waits() {
        let mut inbound = Inbound::new(false, 4);
        assert_eq!(inbound.arrive(0, 0, &[]), FragmentArrival::Now { is_after_gap: false });
        assert_eq!(inbound.arrive(2, 0, &[]), FragmentArrival::Now { is_after_gap: true });
        assert_eq!(inbound.arrive(1, 0, &[]), FragmentArrival::Old);
        assert_eq!(inbound.arrive(2, 0, &[]), FragmentArrival::Old);
        assert_eq!(written_ack(&mut inbound), (3, 0));
        assert_eq!(inbound.arrive(102, 100, &[]), FragmentArrival::Now { is_after_gap: true });
        assert_eq!(written_ack(&mut inbound), (100, 0b10));
        assert_eq!(inbound.arrive(104, 100, &[]), FragmentArrival::TooFar);
        assert_eq!(inbound.arrive(103, 104, &[]), FragmentArrival::TooFar);
    }

    /// Goal: narrowing the window revokes nothing. Method: wide, then narrow.
    #[test]
    fn a_narrower_window_takes_what_was_allowed() {
        let mut inbound = Inbound::new(true, 4);
        assert_eq!(inbound.arrive(4, 0, &[]), FragmentArrival::TooFar);
        inbound.set_window(8);
        inbound.set_window(2);
        assert_eq!(inbound.arrive(7, 0, &[]), FragmentArrival::Kept);
        assert_eq!(inbound.arrive(8, 0, &[]), FragmentArrival::TooFar);
        let mut header = DataHeader::default();
        inbound.write_ack(&mut header, ACK_WORDS, 0);
        assert_eq!(header.window, 2);
    }
}
