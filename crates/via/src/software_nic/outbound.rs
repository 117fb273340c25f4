//! The sending half of a connection: fragments in flight, and which of them are lost.
//!
//! Fragments are numbered, and so are packets; a fragment that is sent again goes in a new packet. An
//! ACK names the fragments that have arrived and the latest packet that has, so no measurement is
//! ambiguous; a packet sent three packets, or some time, before one that has arrived is lost [rfc9002,
//! §6.1] [rfc8985, §6].

use std::collections::VecDeque;

use super::{
    congestion::{Congestion, Nanos, RoundTrip},
    gather::Gather,
    packet::{ACK_WORDS, widen},
};

/// The most fragments in flight: as many as an ACK covers beyond the first missing one.
pub(super) const FRAGMENTS_MAX: usize = ACK_WORDS * 64;

/// A packet overtaken by this many is lost [rfc9002, §6.1.1].
const PACKET_THRESHOLD: u64 = 3;

/// Buffers kept for future fragments.
const SPARE_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// In flight.
    Sent,
    /// To be sent again.
    Lost,
    /// Arrived, or given up.
    Over,
}

#[derive(Debug)]
struct Fragment {
    bytes: Box<Gather>,
    packet_number: u64,
    sent_at: Nanos,
    is_first: bool,
    delivery: Delivery,
}

/// The packet to send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Departure {
    pub(super) sequence: u64,
    pub(super) packet_number: u64,
}

/// An ACK from the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack {
    pub(super) next: u32,
    pub(super) acked: [u64; ACK_WORDS],
    pub(super) echo: u32,
    pub(super) delay: Nanos,
    pub(super) window: u16,
}

#[derive(Debug)]
pub(super) struct Outbound {
    /// The number of the first kept fragment: all before it are over.
    base: u64,
    fragments: VecDeque<Fragment>,
    #[expect(
        clippy::vec_box,
        reason = "they go to fragments and come back, which should not move them"
    )]
    spare: Vec<Box<Gather>>,
    packets_sent: u64,
    /// The latest packet known to have arrived.
    arrived: u64,
    /// Bytes in flight.
    in_flight: usize,
    lost: usize,
    /// The first fragment that the peer does not take, and the peer's window.
    limit: u64,
    window: u64,
    pub(super) round_trip: RoundTrip,
    pub(super) congestion: Congestion,
    probes: u32,
    /// Packets allowed regardless of the window.
    free: u32,
    /// The time at which the latest ack-eliciting packet was sent.
    latest_at: Nanos,
    overdue_at: Option<Nanos>,
    /// An ack-eliciting packet without a fragment.
    ping: Option<(u64, Nanos)>,
    repeats: bool,
    /// Fragments sent again, or given up.
    pub(super) losses: u64,
}

impl Outbound {
    /// `repeats`: lost fragments are sent again; otherwise they are given up.
    pub(super) fn new(repeats: bool, window: u16, packet_bytes: usize, trip: RoundTrip) -> Self {
        Self {
            base: 0,
            fragments: VecDeque::new(),
            spare: Vec::new(),
            packets_sent: 0,
            arrived: 0,
            in_flight: 0,
            lost: 0,
            limit: u64::from(window),
            window: u64::from(window),
            round_trip: trip,
            congestion: Congestion::new(packet_bytes),
            probes: 0,
            free: 0,
            latest_at: 0,
            overdue_at: None,
            ping: None,
            repeats,
            losses: 0,
        }
    }

    /// Returns the first fragment that may still be sent again.
    pub(super) const fn oldest(&self) -> u64 {
        self.base
    }

    /// Returns the number of the next new fragment.
    pub(super) fn next(&self) -> u64 {
        self.base + to_u64(self.fragments.len())
    }

    /// Returns how many timeouts have passed in a row.
    pub(super) const fn probes(&self) -> u32 {
        self.probes
    }

    /// Returns whether anything is in flight that a live peer will acknowledge.
    pub(super) fn is_waiting(&self) -> bool {
        self.in_flight > 0 || self.lost > 0 || self.ping.is_some()
    }

    fn has_room(&self) -> bool {
        self.free > 0 || self.in_flight < self.congestion.window()
    }

    /// Returns whether a new fragment may be sent.
    pub(super) fn takes_more(&self) -> bool {
        self.lost == 0
            && self.has_room()
            && self.fragments.len() < FRAGMENTS_MAX
            && self.next() < self.limit
    }

    /// Returns whether the windows would cut a batch of this many packets short, while enough is in
    /// flight that ACKs will soon open them: sending a few packets costs as much as sending many.
    pub(super) fn is_silly(&self, batch: usize) -> bool {
        let kept = self.fragments.len();
        let allowed =
            index(self.limit.saturating_sub(self.next())).min(FRAGMENTS_MAX.saturating_sub(kept));
        let bytes = self.congestion.packet_bytes();
        let room = self.congestion.window().saturating_sub(self.in_flight) / bytes;
        let window = index(self.window).min(self.congestion.window() / bytes);
        self.free == 0
            && self.lost == 0
            && self.in_flight > 0
            && kept >= 2.max(window / 2)
            && allowed.min(room) < batch.min(window / 4)
    }

    /// Returns whether a fragment is to be sent again now.
    pub(super) fn has_repeat(&self) -> bool {
        self.lost > 0 && self.has_room()
    }

    fn first_lost(&self) -> Option<usize> {
        (self.lost > 0)
            .then(|| self.fragments.iter().position(|kept| kept.delivery == Delivery::Lost))?
    }

    /// Returns the length of the next fragment to send again.
    pub(super) fn repeat_bytes(&self) -> Option<usize> {
        self.first_lost().map(|at| self.fragments[at].bytes.len())
    }

    /// Sends a lost fragment again.
    pub(super) fn repeat(&mut self, now: Nanos) -> Option<Departure> {
        let at = self.first_lost()?;
        let packet_number = self.depart(now);
        self.lost -= 1;
        let sequence = self.base + to_u64(at);
        let kept = &mut self.fragments[at];
        (kept.delivery, kept.sent_at, kept.packet_number) = (Delivery::Sent, now, packet_number);
        kept.is_first = false;
        // If others keep writing the memory, the packet must not be refused for its CRC again.
        kept.bytes.copy_pieces();
        self.in_flight += kept.bytes.len();
        Some(Departure { sequence, packet_number })
    }

    /// Returns a buffer for a fragment.
    pub(super) fn buffer(&mut self) -> Box<Gather> {
        self.spare.pop().unwrap_or_default()
    }

    /// Gives back a buffer that was not needed.
    pub(super) fn recycle(&mut self, mut buffer: Box<Gather>) {
        if self.spare.len() < SPARE_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Sends a fragment for the first time.
    pub(super) fn send(&mut self, bytes: Box<Gather>, now: Nanos) -> Departure {
        let packet_number = self.depart(now);
        let sequence = self.next();
        self.in_flight += bytes.len();
        let (sent_at, delivery) = (now, Delivery::Sent);
        self.fragments.push_back(Fragment {
            bytes,
            packet_number,
            sent_at,
            is_first: true,
            delivery,
        });
        Departure { sequence, packet_number }
    }

    /// Returns a kept fragment.
    pub(super) fn fragment(&self, sequence: u64) -> Option<&Gather> {
        let at = index(sequence.checked_sub(self.base)?);
        self.fragments.get(at).map(|kept| &*kept.bytes)
    }

    /// Sends an ack-eliciting packet without a fragment.
    pub(super) fn send_ping(&mut self, now: Nanos) -> u64 {
        let packet_number = self.depart(now);
        self.ping = Some((packet_number, now));
        packet_number
    }

    fn depart(&mut self, now: Nanos) -> u64 {
        self.packets_sent += 1;
        self.free = self.free.saturating_sub(1);
        self.latest_at = now;
        self.packets_sent
    }

    /// Takes an ACK. `None` if it acknowledges something that was never sent.
    #[must_use]
    pub(super) fn on_ack(&mut self, ack: &Ack, now: Nanos) -> Option<()> {
        let next = widen(ack.next, self.base);
        let echo = widen(ack.echo, self.arrived);
        if next > self.next() || echo > self.packets_sent {
            return None;
        }
        let tells_nothing = next <= self.base
            && ack.acked == [0; ACK_WORDS]
            && echo <= self.arrived
            && self.ping.is_none();
        if tells_nothing {
            // Usual for all but the first of several packets that arrive together.
            self.window = u64::from(ack.window);
            self.limit = self.limit.max(next + self.window);
            return Some(());
        }

        let mut is_new = false;
        let in_flight = self.in_flight;
        let whole = next.saturating_sub(self.base);
        for at in 0..index(whole) {
            is_new |= self.arrive(at, echo, ack.delay, in_flight, now);
        }
        for (number, word) in ack.acked.iter().enumerate() {
            let mut bits = *word;
            while bits != 0 {
                let sequence = next + 1 + to_u64(number) * 64 + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                if sequence >= self.next() {
                    return None;
                }
                if let Some(at) = sequence.checked_sub(self.base) {
                    is_new |= self.arrive(index(at), echo, ack.delay, in_flight, now);
                }
            }
        }

        if let Some((packet_number, sent_at)) = self.ping
            && echo >= packet_number
        {
            if echo == packet_number {
                self.round_trip.measure(now.saturating_sub(sent_at), ack.delay);
            }
            self.ping = None;
            is_new = true;
        }

        self.arrived = self.arrived.max(echo);
        self.window = u64::from(ack.window);
        self.limit = self.limit.max(next + self.window);
        if is_new {
            self.probes = 0;
        }
        self.find_losses(now);
        self.forget();
        Some(())
    }

    /// The fragment at `at` has arrived. Returns whether that is news.
    fn arrive(&mut self, at: usize, echo: u64, delay: Nanos, in_flight: usize, now: Nanos) -> bool {
        let Some(kept) = self.fragments.get_mut(at) else { return false };
        let bytes = kept.bytes.len();
        match std::mem::replace(&mut kept.delivery, Delivery::Over) {
            Delivery::Over => return false,
            Delivery::Sent => self.in_flight -= bytes,
            Delivery::Lost => self.lost -= 1,
        }
        if kept.packet_number == echo {
            self.round_trip.measure(now.saturating_sub(kept.sent_at), delay);
        }
        if kept.is_first {
            self.arrived = self.arrived.max(kept.packet_number);
        }
        self.congestion.on_ack(bytes, kept.sent_at, in_flight);
        true
    }

    fn find_losses(&mut self, now: Nanos) {
        let loss_delay = self.round_trip.loss_delay();
        self.overdue_at = None;
        for kept in &mut self.fragments {
            if kept.delivery != Delivery::Sent || kept.packet_number >= self.arrived {
                continue;
            }
            let overdue_at = kept.sent_at + loss_delay;
            if kept.packet_number + PACKET_THRESHOLD > self.arrived && overdue_at > now {
                self.overdue_at =
                    Some(self.overdue_at.map_or(overdue_at, |other| other.min(overdue_at)));
                continue;
            }
            self.in_flight -= kept.bytes.len();
            self.losses += 1;
            self.congestion.on_congestion_event(kept.sent_at, now);
            if self.repeats {
                kept.delivery = Delivery::Lost;
                self.lost += 1;
            } else {
                kept.delivery = Delivery::Over;
            }
        }
    }

    /// Removes finished fragments from the front.
    fn forget(&mut self) {
        while let Some(kept) = self.fragments.pop_front_if(|kept| kept.delivery == Delivery::Over) {
            self.base += 1;
            self.recycle(kept.bytes);
        }
        if !self.repeats {
            // Given-up fragments do not count for the peer either: every packet tells it.
            self.limit = self.limit.max(self.base + self.window);
        }
    }

    /// Returns when to act if no ACK comes.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        if self.overdue_at.is_some() {
            return self.overdue_at;
        }
        (self.in_flight > 0 || self.ping.is_some())
            .then(|| self.latest_at + self.round_trip.probe_timeout(self.probes))
    }

    /// The deadline has passed. Returns whether to send a ping.
    #[must_use]
    pub(super) fn expire(&mut self, now: Nanos) -> bool {
        if self.overdue_at.is_some_and(|at| at <= now) {
            self.find_losses(now);
            self.forget();
            return false;
        }

        // [rfc9002, §6.2.4]: one or two packets, regardless of the window.
        self.probes += 1;
        self.latest_at = now;
        self.free = 2;
        if self.probes == 3 {
            self.congestion.on_persistent_congestion();
        }
        if !self.repeats {
            return true;
        }
        let mut marked = 0;
        for kept in &mut self.fragments {
            if marked < 2 && kept.delivery == Delivery::Sent {
                marked += 1;
                kept.delivery = Delivery::Lost;
                self.lost += 1;
                self.losses += 1;
                self.in_flight -= kept.bytes.len();
            }
        }

        marked == 0
    }
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{congestion::MILLISECOND, packet::low_u32},
        *,
    };

    fn outbound(repeats: bool) -> Outbound {
        Outbound::new(repeats, 256, 1000, RoundTrip::new())
    }

    fn ack(next: u64, bits: u64, echo: u64) -> Ack {
        let acked = [bits, 0, 0, 0];
        Ack { next: low_u32(next), acked, echo: low_u32(echo), delay: 0, window: 256 }
    }

    fn bytes(count: usize) -> Box<Gather> {
        Box::new(Gather::from(vec![0; count]))
    }

    fn send(out: &mut Outbound, count: u64, now: Nanos) {
        for _ in 0..count {
            out.send(bytes(100), now);
        }
    }

    /// Goal: what is sent again no longer changes, so that its CRC is right however often others write the memory. Method: a fragment in
    /// memory that is lost; the memory is written after it was sent again.
    #[test]
    fn what_is_sent_again_is_copied() {
        let memory = crate::vi::Memory::allocate(5000).expect("memory");
        let mut fragment = Box::new(Gather::default());
        fragment.push_memory(&memory, 0, 5000).expect("inside");
        let mut out = outbound(true);
        out.send(fragment, 0);
        send(&mut out, 3, 0);
        assert!(out.fragment(0).expect("kept").as_slice().is_none());
        out.on_ack(&ack(0, 0b111, 4), MILLISECOND / 10).expect("right");
        out.repeat(MILLISECOND / 10).expect("lost");
        memory.write(0, &[1; 5000]).expect("inside");
        assert_eq!(out.fragment(0).and_then(Gather::as_slice), Some(&[0; 5000][..]));
    }

    /// Goal: a packet overtaken by three is sent again, once, and so is a late one. Method: ACKs with gaps.
    #[test]
    fn what_was_overtaken_is_lost() {
        let mut out = outbound(true);
        send(&mut out, 5, 0);
        out.on_ack(&ack(0, 0b011, 3), MILLISECOND / 10).expect("right");
        assert!(!out.has_repeat(), "overtaken by two");
        out.on_ack(&ack(0, 0b111, 4), MILLISECOND / 10).expect("right");
        let departure = out.repeat(MILLISECOND / 10).expect("lost");
        assert_eq!(departure, Departure { sequence: 0, packet_number: 6 });
        assert!(!out.has_repeat());
        out.on_ack(&ack(4, 0, 6), MILLISECOND / 5).expect("right");
        assert_eq!((out.oldest(), out.next()), (4, 5));
        // The last one was sent before the retransmission that has arrived: it is late.
        let overdue = out.deadline().expect("something is under way");
        assert!(!out.expire(overdue));
        assert_eq!(out.repeat(overdue).map(|departure| departure.sequence), Some(4));
        assert_eq!(out.losses, 2);
    }

    /// Goal: without retransmission, lost fragments are given up, and sending goes on. Method: lose
    /// everything, and then a ping arrives.
    #[test]
    fn what_is_not_repeated_is_given_up() {
        let mut out = outbound(false);
        send(&mut out, 3, 0);
        let now = out.deadline().expect("something is under way");
        assert!(out.expire(now), "wants a ping");
        let ping = out.send_ping(now);
        out.on_ack(&ack(0, 0, ping), now + MILLISECOND).expect("right");
        assert_eq!((out.oldest(), out.is_waiting()), (3, false));
        assert!(out.takes_more());
    }

    /// Goal: ACKs for packets that were never sent are detected, and change nothing. Method: beyond the
    /// end in all three ways.
    #[test]
    fn acks_of_nothing_are_refused() {
        let mut out = outbound(true);
        send(&mut out, 3, 0);
        for wrong in [ack(4, 0, 1), ack(3, 1, 3), ack(1, 1 << 40, 1), ack(0, 0, 4)] {
            assert!(out.on_ack(&wrong, 1).is_none(), "{wrong:?}");
        }
        out.on_ack(&ack(3, 0, 3), 1).expect("right");
        assert!(!out.is_waiting());
    }

    /// Goal: a silent peer is probed at growing intervals with the oldest fragment. Method: nothing but time.
    #[test]
    fn silence_is_probed() {
        let mut out = outbound(true);
        send(&mut out, 5, 0);
        let mut last = 0;
        for _ in 0..4 {
            let now = out.deadline().expect("something is under way");
            assert!(now > last);
            assert!(!out.expire(now));
            for sequence in [0, 1] {
                let departure = out.repeat(now).expect("a probe");
                assert_eq!(departure.sequence, sequence);
            }
            assert!(out.repeat(now).is_none());
            last = now;
        }
        assert_eq!(out.congestion.window(), 2000);
    }

    /// Goal: no more is in flight than the windows allow. Method: send while it is allowed.
    #[test]
    fn windows_are_kept() {
        let mut out = outbound(true);
        while out.takes_more() {
            out.send(bytes(1000), 0);
        }
        assert_eq!(out.next(), 10);
        let mut out = Outbound::new(true, 3, 1000, RoundTrip::new());
        while out.takes_more() {
            out.send(bytes(10), 0);
        }
        assert_eq!(out.next(), 3);
    }

    /// Goal: while much is in flight, small batches wait until ACKs allow large ones, but never without
    /// something in flight that an ACK will come for. Method: fill the window, give ACKs of one, then of
    /// half, then of all.
    #[test]
    fn few_wait_for_many() {
        let mut out = Outbound::new(true, 40, 1000, RoundTrip::new());
        out.congestion.set_packet_bytes(100);
        assert!(!out.is_silly(8), "nothing is under way");
        while out.takes_more() {
            out.send(bytes(100), 0);
        }
        assert_eq!(out.next(), 40);
        let told = |out: &mut Outbound, next| {
            let mut ack = ack(next, 0, next);
            ack.window = 40;
            out.on_ack(&ack, 1).expect("right");
            out.is_silly(8)
        };
        assert!(told(&mut out, 1));
        assert!(out.takes_more(), "it is allowed, but of no use");
        assert!(!told(&mut out, 8));
        assert!(!told(&mut out, 20));
        assert!(!told(&mut out, 40));
    }
}
