//! The congestion window of a TCP connection [RFC 5681; RFC 6582]: how much may be in flight.
//!
//! ```text
//!                  ┌── third duplicate ACK ──▶ fast recovery ── everything is acknowledged ──┐
//!  slow start ─────┤                                │                                        ▼
//!      ▲           └── window at the threshold ─────┼──────────────────────▶ congestion avoidance
//!      └──────────────────────── time-out ──────────┴────────────────────────────────────────┘
//! ```
//! *Deviations:* it counts bytes, so that an ACK of a long segment counts for all packets in it, and it is kept while the
//! connection is idle.

use std::time::Duration;

/// The unit in which a segment's bytes are counted: the payload of one packet of an Ethernet.
pub(super) const PACKET_BYTES: u64 = 1460;

/// The first window, in packets [RFC 6928].
const FIRST_PACKETS: u64 = 10;

/// So many duplicates of an ACK show that the segment behind it is lost.
const DUPLICATES: u32 = 3;

#[derive(Debug)]
pub(super) struct CongestionWindow {
    size_bytes: u64,
    /// Slow start ends here.
    threshold_bytes: u64,
    duplicates: u32,
    /// The byte after the last one that had been sent when the last loss was noticed.
    recover: Option<u64>,
    /// Fast recovery: segments before `recover` are missing.
    is_recovering: bool,
}

impl Default for CongestionWindow {
    fn default() -> Self {
        Self {
            size_bytes: FIRST_PACKETS * PACKET_BYTES,
            threshold_bytes: u64::MAX,
            duplicates: 0,
            recover: None,
            is_recovering: false,
        }
    }
}

impl CongestionWindow {
    /// Returns how many bytes more may be sent.
    pub(super) const fn room(&self, in_flight_bytes: u64) -> u64 {
        self.size_bytes.saturating_sub(in_flight_bytes)
    }

    /// Returns how long a segment may be: what is sent in a millisecond, as Linux's `tcp_tso_autosize` has it. On slow paths there are
    /// then enough segments for duplicate ACKs.
    pub(super) fn segment_max(&self, round_trip: Duration) -> u64 {
        let millis = u128::from(self.size_bytes) * 1_000_000 / round_trip.as_nanos().max(1);
        u64::try_from(millis).unwrap_or(u64::MAX).max(PACKET_BYTES)
    }

    /// The handshake was lost at first [RFC 5681, §3.1].
    pub(super) const fn begin_small(&mut self) {
        self.size_bytes = PACKET_BYTES;
    }

    /// So many new bytes are acknowledged, up to `ack`. Returns whether the segment behind them is lost.
    pub(super) fn acknowledge(&mut self, ack: u64, bytes: u64) -> bool {
        self.duplicates = 0;
        if !self.is_recovering {
            let is_slow_start = self.size_bytes < self.threshold_bytes;
            let share = PACKET_BYTES * bytes / self.size_bytes;
            self.size_bytes += if is_slow_start { bytes } else { share.max(1) };
            return false;
        }
        let is_partial = self.recover.is_some_and(|recover| ack < recover);
        if is_partial {
            // [RFC 6582, §3.2, step 3]
            self.size_bytes = self.room(bytes) + PACKET_BYTES;
        } else {
            self.is_recovering = false;
            self.size_bytes = self.threshold_bytes;
        }
        is_partial
    }

    /// An ACK came again, of `acked`, while everything before `next` was sent. Returns whether the segment behind it is lost.
    pub(super) fn duplicate(&mut self, acked: u64, next: u64) -> bool {
        if self.is_recovering {
            // Another segment has left the network.
            self.size_bytes += PACKET_BYTES;
            return false;
        }
        self.duplicates += 1;
        // Those of segments that were sent again show nothing [RFC 6582, §3.2, step 2].
        let is_new = self.recover.is_none_or(|recover| acked > recover);
        if self.duplicates != DUPLICATES || !is_new {
            return false;
        }
        self.halve(next - acked);
        self.size_bytes = self.threshold_bytes + u64::from(DUPLICATES) * PACKET_BYTES;
        (self.recover, self.is_recovering) = (Some(next), true);
        true
    }

    /// No ACK came in time, for the first time of a segment or again.
    pub(super) fn time_out(&mut self, acked: u64, next: u64, is_first: bool) {
        if is_first {
            self.halve(next - acked);
        }
        self.size_bytes = PACKET_BYTES;
        self.duplicates = 0;
        (self.recover, self.is_recovering) = (Some(next), false);
    }

    /// [RFC 5681, equation 4]
    fn halve(&mut self, in_flight_bytes: u64) {
        self.threshold_bytes = (in_flight_bytes / 2).max(2 * PACKET_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the window follows RFC 5681 and RFC 6582 in each of its phases. Method: one connection, ACK by ACK: slow start, a loss that
    /// three duplicates show, a second loss in the same window, recovery, congestion avoidance, time-outs.
    #[test]
    fn the_window_follows_its_phases() {
        const P: u64 = PACKET_BYTES;
        let mut window = CongestionWindow::default();
        assert_eq!(window.room(0), 10 * P);
        assert!(!window.acknowledge(10 * P, 10 * P));
        assert_eq!((window.room(0), window.room(20 * P), window.room(30 * P)), (20 * P, 0, 0));

        // Twenty packets in flight: the 11th and the 15th are lost.
        let next = 30 * P;
        let seen: Vec<_> = (0..5).map(|_| window.duplicate(10 * P, next)).collect();
        assert_eq!(seen, [false, false, true, false, false]);
        assert_eq!(window.room(0), 10 * P + 3 * P + 2 * P);
        assert!(window.acknowledge(14 * P, 4 * P), "a partial ACK shows the next loss");
        assert_eq!(window.room(0), 15 * P - 4 * P + P);
        assert!(!window.acknowledge(next, 16 * P));
        assert_eq!(window.room(0), 10 * P);

        // Ten packets acknowledged are one more in the window.
        for packet in 0..10 {
            assert!(!window.acknowledge(next + packet * P, P));
        }
        assert!((10 * P + P * 9 / 10..=11 * P).contains(&window.room(0)), "{}", window.room(0));

        // A time-out with eight packets in flight; its repetitions halve no more.
        let (acked, next) = (40 * P, 48 * P);
        window.time_out(acked, next, true);
        window.time_out(acked, next, false);
        assert_eq!(window.room(0), P);
        for _ in 0..3 {
            assert!(!window.duplicate(next, next + P), "they may be those of repeated segments");
        }
        for packet in 1..=4 {
            assert!(!window.acknowledge(acked + packet * P, P));
        }
        assert_eq!(
            window.room(0),
            4 * P + P / 4,
            "slow start to the half, and a share of a packet"
        );
    }

    /// Goal: a window never closes, and never overflows. Method: random calls by 1000 seeds.
    #[test]
    fn one_packet_always_has_room() {
        for seed in 0..1000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut window, mut acked, mut next) = (CongestionWindow::default(), 0, 0);
            for _ in 0..300 {
                next += random.u64(..=window.room(next - acked).min(1 << 16));
                match random.u8(..4) {
                    0 => window.time_out(acked, next, random.bool()),
                    1 => _ = window.duplicate(acked, next),
                    _ => {
                        let bytes = random.u64(..=next - acked);
                        acked += bytes;
                        window.acknowledge(acked, bytes);
                    }
                }
                assert!(window.room(0) >= PACKET_BYTES, "seed {seed}");
            }
        }
    }
}
