//! The way from one node to another.

use std::time::Duration;

use crate::clock::{Instant, nanos};

/// The most bytes that wait for a slow link by default: more than one connection has under way.
const QUEUE_BYTES: u64 = 256 * 1024;

/// A link from one node to another: the delay, bandwidth, loss and duplication of its packets.
///
/// Default: 1 ms of delay, up to 1 ms of jitter, no limit of bandwidth, and nothing is lost or duplicated.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use vigie_detect::Link;
///
/// let transatlantic = Link::new().delay(Duration::from_millis(40)).loss(0.001);
/// let modem = Link::new().delay(Duration::from_millis(80)).bandwidth(7_000).queue(20_000);
/// # let _ = (transatlantic, modem);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a link is used only if a network gets it"]
pub struct Link {
    delay: Duration,
    jitter: Duration,
    loss: f64,
    duplication: f64,
    /// In bytes per second.
    bandwidth: Option<u64>,
    queue_bytes: u64,
}

impl Link {
    /// Returns the default.
    pub const fn new() -> Self {
        let millisecond = Duration::from_millis(1);
        Self {
            delay: millisecond,
            jitter: millisecond,
            loss: 0.0,
            duplication: 0.0,
            bandwidth: None,
            queue_bytes: QUEUE_BYTES,
        }
    }

    /// The way of a node to itself: 10 to 20 µs.
    pub(super) const fn loopback() -> Self {
        let time = Duration::from_micros(10);
        Self { delay: time, jitter: time, ..Self::new() }
    }

    /// Sets the least time that a packet takes.
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets how much longer a packet may take. Each draws its own time, so that packets are reordered; with zero, they arrive in
    /// the order in which they were sent.
    pub const fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets the share of packets that are lost, from 0 to 1. TCP sends them again; datagrams are gone.
    ///
    /// # Panics
    /// If it is not from 0 to 1.
    pub const fn loss(mut self, share: f64) -> Self {
        assert!(share >= 0.0 && share <= 1.0, "the loss of a link is a share from 0 to 1");
        self.loss = share;
        self
    }

    /// Sets the share of packets that arrive twice, from 0 to 1. TCP hides that; datagrams are received twice.
    ///
    /// # Panics
    /// If it is not from 0 to 1.
    pub const fn duplication(mut self, share: f64) -> Self {
        assert!(share >= 0.0 && share <= 1.0, "the duplication of a link is a share from 0 to 1");
        self.duplication = share;
        self
    }

    /// Sets how many bytes the link carries in a second, with the headers of TCP, UDP and IP. Packets that come faster
    /// [wait](Self::queue) for each other, all in one queue. Default: no limit.
    ///
    /// # Panics
    /// If it is zero.
    pub const fn bandwidth(mut self, bytes_per_second: u64) -> Self {
        assert!(
            bytes_per_second > 0,
            "a link with a bandwidth of zero: use `partition` or `cut_to`"
        );
        self.bandwidth = Some(bytes_per_second);
        self
    }

    /// Sets how many bytes wait at most for a link with a [`bandwidth`](Self::bandwidth): a packet that finds more of them is
    /// lost. With zero, only an idle link takes a packet. Default 256 KiB.
    pub const fn queue(mut self, bytes: u64) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// Returns when a packet has left that is sent at `now`, if those before it have left at `free`. `None` if too many wait.
    pub(super) fn departure(
        &self,
        now: Instant,
        free: Instant,
        wire_bytes: u64,
    ) -> Option<Instant> {
        let Some(bandwidth) = self.bandwidth else { return Some(now) };
        let time_of = |bytes: u64| {
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth);
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        };
        let begin = now.max(free);
        (begin - now <= time_of(self.queue_bytes)).then(|| begin + time_of(wire_bytes))
    }

    /// Draws how many nanoseconds each copy of a packet takes; none if it is lost.
    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> [Option<u64>; 2] {
        // No number is drawn for what cannot happen.
        let mut happens = |share: f64| share > 0.0 && random.f64() < share;
        if happens(self.loss) {
            return [None, None];
        }
        let is_doubled = happens(self.duplication);
        let (delay, jitter) = (nanos(self.delay), nanos(self.jitter));
        let mut time = || delay.saturating_add(random.u64(0..=jitter));
        [Some(time()), is_doubled.then(time)]
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}
