//! Round-trip estimation and congestion control.

/// Time in nanoseconds, on the clock passed to the NIC.
pub(super) type Nanos = u64;

pub(super) const MILLISECOND: Nanos = 1_000_000;

/// The longest that a receiver delays an ACK. RFC 9000 has 25 ms; here completions wait for it.
pub(super) const MAX_ACK_DELAY: Nanos = MILLISECOND;

/// The timer granularity [rfc9002, §6.1.2].
const GRANULARITY: Nanos = MILLISECOND;

/// The assumed round trip before any measurement. *Deviation:* RFC 9002, §6.2.2 has 333 ms, for any
/// network in the world; here the handshake has usually measured one.
const INITIAL_RTT: Nanos = 50 * MILLISECOND;

/// The longest probe interval, so that several probes are sent before a silent peer counts as dead.
const PROBE_MAX: Nanos = 400 * MILLISECOND;

/// The round-trip estimate.
///
/// # Source
/// [rfc6298, §2], with the minimum and the ACK delay of [rfc9002, §5].
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    smoothed_rtt: Nanos,
    rttvar: Nanos,
    latest_rtt: Nanos,
    min_rtt: Nanos,
    is_measured: bool,
}

impl RoundTrip {
    pub(super) const fn new() -> Self {
        Self {
            smoothed_rtt: INITIAL_RTT,
            rttvar: INITIAL_RTT / 2,
            latest_rtt: INITIAL_RTT,
            min_rtt: Nanos::MAX,
            is_measured: false,
        }
    }

    /// Takes a measurement. The peer reports that it delayed the answer by `delay`.
    pub(super) fn measure(&mut self, found: Nanos, delay: Nanos) {
        self.min_rtt = self.min_rtt.min(found);
        let delay = delay.min(2 * MAX_ACK_DELAY);
        let adjusted =
            if found >= self.min_rtt.saturating_add(delay) { found - delay } else { found };
        self.latest_rtt = adjusted;
        if !self.is_measured {
            // [rfc6298, §2.2]
            self.is_measured = true;
            (self.smoothed_rtt, self.rttvar) = (adjusted, adjusted / 2);
            return;
        }
        // [rfc6298, §2.3], with α = 1/8 and β = 1/4.
        self.rttvar = self.rttvar / 4 * 3 + self.smoothed_rtt.abs_diff(adjusted) / 4;
        self.smoothed_rtt = self.smoothed_rtt / 8 * 7 + adjusted / 8;
    }

    /// Returns the lateness from which a packet counts as lost [rfc9002, §6.1.2].
    pub(super) fn loss_delay(&self) -> Nanos {
        let base = self.smoothed_rtt.max(self.latest_rtt);
        (base + base / 8).max(GRANULARITY)
    }

    /// Returns the time to wait for an ACK before probing, after `count` unanswered probes [rfc9002, §6.2.1].
    pub(super) fn probe_timeout(&self, count: u32) -> Nanos {
        let base = self.smoothed_rtt + (4 * self.rttvar).max(GRANULARITY) + MAX_ACK_DELAY;
        base.saturating_mul(1 << count.min(16)).min(PROBE_MAX)
    }
}

/// The congestion window: NewReno.
///
/// # Source
/// [rfc9002, §7], which is [rfc6582, §3] in terms of packets that are never repeated.
/// *Deviation:* no pacing; bursts are bounded by the receiver's window, which fits its socket's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Congestion {
    window: usize,
    ssthresh: usize,
    /// Losses of packets sent before this time belong to an episode for which the window was already reduced.
    recovery_start: Option<Nanos>,
    packet_bytes: usize,
    /// Bytes acknowledged since the window last grew by a packet.
    bytes_acked: usize,
}

impl Congestion {
    pub(super) fn new(packet_bytes: usize) -> Self {
        // [rfc6928, §2]: ten packets, or fewer if they are large.
        let window = (10 * packet_bytes).min(14_720.max(2 * packet_bytes));
        Self { window, ssthresh: usize::MAX, recovery_start: None, packet_bytes, bytes_acked: 0 }
    }

    pub(super) fn set_packet_bytes(&mut self, bytes: usize) {
        self.packet_bytes = bytes;
        self.window = self.window.max(Self::new(bytes).window);
    }

    /// The length of a packet: at least one byte.
    pub(super) fn packet_bytes(&self) -> usize {
        self.packet_bytes.max(1)
    }

    pub(super) const fn window(&self) -> usize {
        self.window
    }

    fn is_in_recovery(&self, sent_at: Nanos) -> bool {
        self.recovery_start.is_some_and(|since| sent_at <= since)
    }

    /// Handles an ACK of `bytes`, received while `in_flight` were in flight.
    pub(super) fn on_ack(&mut self, bytes: usize, sent_at: Nanos, in_flight: usize) {
        // [rfc9002, §7.8]: an underused window says nothing about the network.
        let is_used = in_flight.saturating_mul(2) >= self.window;
        if self.is_in_recovery(sent_at) || !is_used {
            return;
        }
        if self.window < self.ssthresh {
            self.window = self.window.saturating_add(bytes);
            return;
        }
        self.bytes_acked += bytes;
        if self.bytes_acked >= self.window {
            self.bytes_acked -= self.window;
            self.window = self.window.saturating_add(self.packet_bytes);
        }
    }

    /// Handles the loss of a packet sent at `sent_at`.
    pub(super) fn on_congestion_event(&mut self, sent_at: Nanos, now: Nanos) {
        if self.is_in_recovery(sent_at) {
            return;
        }
        self.recovery_start = Some(now);
        self.window = (self.window / 2).max(2 * self.packet_bytes);
        self.ssthresh = self.window;
        self.bytes_acked = 0;
    }

    /// Handles persistent congestion: no ACK for several timeouts [rfc9002, §7.6].
    pub(super) fn on_persistent_congestion(&mut self) {
        self.window = 2 * self.packet_bytes;
        self.recovery_start = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the estimate follows the RFC's arithmetic. Method: a first measurement, others, and one
    /// that the peer delayed.
    #[test]
    fn the_estimate_is_that_of_the_rfc() {
        let mut found = RoundTrip::new();
        assert!(!found.is_measured);
        found.measure(8 * MILLISECOND, 0);
        assert_eq!((found.smoothed_rtt, found.rttvar), (8 * MILLISECOND, 4 * MILLISECOND));
        found.measure(16 * MILLISECOND, 0);
        assert_eq!((found.smoothed_rtt, found.rttvar), (9 * MILLISECOND, 5 * MILLISECOND));
        found.measure(11 * MILLISECOND, 2 * MILLISECOND);
        assert_eq!(found.latest_rtt, 9 * MILLISECOND);
        found.measure(8 * MILLISECOND, 2 * MILLISECOND);
        assert_eq!(found.latest_rtt, 8 * MILLISECOND, "not below the least that was measured");
        assert!(found.probe_timeout(1) >= 2 * found.probe_timeout(0) - MILLISECOND);
        assert_eq!(found.probe_timeout(u32::MAX), PROBE_MAX);
    }

    /// Goal: the window doubles each round at first, is halved once per episode of loss, and then grows
    /// by one packet per round. Method: rounds of ACKs and losses.
    #[test]
    fn the_window_is_newreno() {
        let mut congestion = Congestion::new(1000);
        assert_eq!(congestion.window(), 10_000);
        for _ in 0..10 {
            congestion.on_ack(1000, 1, 10_000);
        }
        assert_eq!(congestion.window(), 20_000);
        congestion.on_ack(1000, 1, 100);
        assert_eq!(congestion.window(), 20_000, "it was not used");
        congestion.on_congestion_event(5, 10);
        congestion.on_congestion_event(9, 11);
        assert_eq!(congestion.window(), 10_000, "one episode");
        congestion.on_ack(1000, 9, 20_000);
        assert_eq!(congestion.window(), 10_000, "sent before the loss was known");
        for _ in 0..10 {
            congestion.on_ack(1000, 11, 20_000);
        }
        assert_eq!(congestion.window(), 11_000);
        congestion.on_congestion_event(12, 13);
        congestion.on_persistent_congestion();
        for at in 20..60 {
            congestion.on_congestion_event(at, at);
        }
        assert_eq!(congestion.window(), 2000, "never less than two packets");
    }
}
