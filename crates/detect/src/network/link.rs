//! The way from one node to another.

use std::time::Duration;

/// A link from one node to another: the delay, loss and duplication of its packets.
///
/// Default: 1 ms of delay, up to 1 ms of jitter, and nothing is lost or duplicated.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use vigie_detect::Link;
///
/// let transatlantic = Link::new().delay(Duration::from_millis(40)).loss(0.001);
/// # let _ = transatlantic;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a link is used only if a network gets it"]
pub struct Link {
    delay: Duration,
    jitter: Duration,
    loss: f64,
    duplication: f64,
}

impl Link {
    /// Returns the default.
    pub const fn new() -> Self {
        let millisecond = Duration::from_millis(1);
        Self { delay: millisecond, jitter: millisecond, loss: 0.0, duplication: 0.0 }
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

    /// Sets how much longer a packet may take; each draws its own time, so that packets overtake each other.
    pub const fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets the share of packets that are lost, from 0 to 1. TCP sends them again; datagrams are gone.
    pub const fn loss(mut self, share: f64) -> Self {
        self.loss = share;
        self
    }

    /// Sets the share of packets that arrive twice, from 0 to 1. TCP hides that; datagrams are received twice.
    pub const fn duplication(mut self, share: f64) -> Self {
        self.duplication = share;
        self
    }

    /// Draws how long each copy of a packet takes; none if it is lost.
    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> [Option<Duration>; 2] {
        // No number is drawn for what cannot happen.
        let mut happens = |share: f64| share > 0.0 && random.f64() < share;
        if happens(self.loss) {
            return [None, None];
        }
        let is_doubled = happens(self.duplication);
        let mut time = || {
            let jitter = u64::try_from(self.jitter.as_nanos()).unwrap_or(u64::MAX);
            self.delay + Duration::from_nanos(random.u64(0..=jitter))
        };
        [Some(time()), is_doubled.then(time)]
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}
