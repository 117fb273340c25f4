//! How long a round trip takes, and how much may be under way.

/// Time in nanoseconds, on the clock that the NIC is given.
pub(super) type Nanos = u64;

pub(super) const MILLISECOND: Nanos = 1_000_000;

/// The longest that a receiver waits before it says what has arrived. RFC 9000 has 25 ms; completions wait
/// for it here.
pub(super) const RECEIPT_DELAY: Nanos = MILLISECOND;

/// The finest time that timers are told apart by [rfc9002, §6.1.2].
const GRANULARITY: Nanos = MILLISECOND;

/// Supposed before anything was measured. *Deviation:* RFC 9002, §6.2.2 has 333 ms, for any network of the
/// world; the handshake has measured one mostly.
const INITIAL: Nanos = 50 * MILLISECOND;

/// The longest that is waited before something is sent again: so that a bound on the silence of a peer is
/// reached after several tries.
const PROBE_MAX: Nanos = 400 * MILLISECOND;

/// The estimate of a round trip.
///
/// # Source
/// [rfc6298, §2] with the minimum and the delay of receipts of [rfc9002, §5].
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    smoothed: Nanos,
    variation: Nanos,
    latest: Nanos,
    least: Nanos,
    is_measured: bool,
}

impl RoundTrip {
    pub(super) const fn new() -> Self {
        Self {
            smoothed: INITIAL,
            variation: INITIAL / 2,
            latest: INITIAL,
            least: Nanos::MAX,
            is_measured: false,
        }
    }

    /// Takes a measurement, of which the peer says that it kept the answer for `delay`.
    pub(super) fn measure(&mut self, found: Nanos, delay: Nanos) {
        self.least = self.least.min(found);
        let delay = delay.min(2 * RECEIPT_DELAY);
        let adjusted =
            if found >= self.least.saturating_add(delay) { found - delay } else { found };
        self.latest = adjusted;
        if !self.is_measured {
            // [rfc6298, §2.2]
            self.is_measured = true;
            (self.smoothed, self.variation) = (adjusted, adjusted / 2);
            return;
        }
        // [rfc6298, §2.3], with α = 1/8 and β = 1/4.
        self.variation = self.variation / 4 * 3 + self.smoothed.abs_diff(adjusted) / 4;
        self.smoothed = self.smoothed / 8 * 7 + adjusted / 8;
    }

    /// How long a transmission may be overtaken before it counts as lost [rfc9002, §6.1.2].
    pub(super) fn patience(&self) -> Nanos {
        let base = self.smoothed.max(self.latest);
        (base + base / 8).max(GRANULARITY)
    }

    /// How long to wait for a receipt before probing, after `count` probes in vain [rfc9002, §6.2.1].
    pub(super) fn probe_timeout(&self, count: u32) -> Nanos {
        let base = self.smoothed + (4 * self.variation).max(GRANULARITY) + RECEIPT_DELAY;
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
    threshold: usize,
    /// Losses of what was sent before then belong to an episode that the window has paid for.
    recovery_since: Option<Nanos>,
    packet_bytes: usize,
    /// Bytes received since the window grew by a packet.
    gained: usize,
}

impl Congestion {
    pub(super) fn new(packet_bytes: usize) -> Self {
        // [rfc6928, §2]: ten packets, of which large ones are fewer.
        let window = (10 * packet_bytes).min(14_720.max(2 * packet_bytes));
        Self { window, threshold: usize::MAX, recovery_since: None, packet_bytes, gained: 0 }
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

    fn is_paid_for(&self, sent_at: Nanos) -> bool {
        self.recovery_since.is_some_and(|since| sent_at <= since)
    }

    /// Some bytes have arrived, while `in_flight` were under way.
    pub(super) fn arrived(&mut self, bytes: usize, sent_at: Nanos, in_flight: usize) {
        // [rfc9002, §7.8]: a window that is not used says nothing about the network.
        let is_used = in_flight.saturating_mul(2) >= self.window;
        if self.is_paid_for(sent_at) || !is_used {
            return;
        }
        if self.window < self.threshold {
            self.window = self.window.saturating_add(bytes);
            return;
        }
        self.gained += bytes;
        if self.gained >= self.window {
            self.gained -= self.window;
            self.window = self.window.saturating_add(self.packet_bytes);
        }
    }

    /// Something that was sent then is lost.
    pub(super) fn lost(&mut self, sent_at: Nanos, now: Nanos) {
        if self.is_paid_for(sent_at) {
            return;
        }
        self.recovery_since = Some(now);
        self.window = (self.window / 2).max(2 * self.packet_bytes);
        self.threshold = self.window;
        self.gained = 0;
    }

    /// Nothing has arrived for several timeouts [rfc9002, §7.6].
    pub(super) fn collapse(&mut self) {
        self.window = 2 * self.packet_bytes;
        self.recovery_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the estimate follows the RFC's arithmetic. Method: a first measurement, others, and one that the
    /// peer has kept.
    #[test]
    fn the_estimate_is_that_of_the_rfc() {
        let mut found = RoundTrip::new();
        assert!(!found.is_measured);
        found.measure(8 * MILLISECOND, 0);
        assert_eq!((found.smoothed, found.variation), (8 * MILLISECOND, 4 * MILLISECOND));
        found.measure(16 * MILLISECOND, 0);
        assert_eq!((found.smoothed, found.variation), (9 * MILLISECOND, 5 * MILLISECOND));
        found.measure(11 * MILLISECOND, 2 * MILLISECOND);
        assert_eq!(found.latest, 9 * MILLISECOND);
        found.measure(8 * MILLISECOND, 2 * MILLISECOND);
        assert_eq!(found.latest, 8 * MILLISECOND, "not below the least that was measured");
        assert!(found.probe_timeout(1) >= 2 * found.probe_timeout(0) - MILLISECOND);
        assert_eq!(found.probe_timeout(u32::MAX), PROBE_MAX);
    }

    /// Goal: the window doubles in a round at first, is halved once for each episode of loss, and then grows by
    /// a packet a round. Method: rounds of receipts and losses.
    #[test]
    fn the_window_is_newreno() {
        let mut congestion = Congestion::new(1000);
        assert_eq!(congestion.window(), 10_000);
        for _ in 0..10 {
            congestion.arrived(1000, 1, 10_000);
        }
        assert_eq!(congestion.window(), 20_000);
        congestion.arrived(1000, 1, 100);
        assert_eq!(congestion.window(), 20_000, "it was not used");
        congestion.lost(5, 10);
        congestion.lost(9, 11);
        assert_eq!(congestion.window(), 10_000, "one episode");
        congestion.arrived(1000, 9, 20_000);
        assert_eq!(congestion.window(), 10_000, "sent before the loss was known");
        for _ in 0..10 {
            congestion.arrived(1000, 11, 20_000);
        }
        assert_eq!(congestion.window(), 11_000);
        congestion.lost(12, 13);
        congestion.collapse();
        for at in 20..60 {
            congestion.lost(at, at);
        }
        assert_eq!(congestion.window(), 2000, "never less than two packets");
    }
}
