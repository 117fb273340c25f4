//! The properties of a disk, and its faults.

use std::time::Duration;

/// The behaviour of a node's simulated disk.
///
/// Default: an operation takes 50 to 150 µs, the disk is never full, and nothing fails.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use vigie_runtime::simulation::{Disk, World};
///
/// let mut world = World::new(7);
/// let server = world.node("server").start();
/// server.disk(Disk::new().delay(Duration::from_millis(5)).capacity(1 << 20).errors(0.001));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a disk is used only if a node gets it"]
pub struct Disk {
    delay: Duration,
    jitter: Duration,
    capacity_bytes: Option<u64>,
    errors: f64,
}

impl Disk {
    /// Returns the default.
    pub const fn new() -> Self {
        let delay = Duration::from_micros(50);
        Self { delay, jitter: Duration::from_micros(100), capacity_bytes: None, errors: 0.0 }
    }

    /// Sets the least time that an operation takes, unless the page cache suffices for it. Default 50 µs.
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets how much longer an operation may take; each draws its own time. Default 100 µs.
    pub const fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets how many bytes the files may have together: a write beyond is cut short, and fails with
    /// [`StorageFull`](std::io::ErrorKind::StorageFull) if nothing of it has room. Default: no limit.
    pub const fn capacity(mut self, bytes: u64) -> Self {
        self.capacity_bytes = Some(bytes);
        self
    }

    /// Sets the share of operations that fail with `EIO`, from 0 to 1. A write whose sync failed may be lost by a crash even if
    /// a later sync succeeds, as on Linux. Default 0.
    ///
    /// # Panics
    /// If it is not from 0 to 1.
    pub const fn errors(mut self, share: f64) -> Self {
        assert!(share >= 0.0 && share <= 1.0, "the errors of a disk are a share from 0 to 1");
        self.errors = share;
        self
    }

    pub(super) const fn capacity_bytes(&self) -> Option<u64> {
        self.capacity_bytes
    }

    /// Draws how long an operation takes.
    pub(super) fn draw_time(&self, random: &mut fastrand::Rng) -> Duration {
        let jitter = u64::try_from(self.jitter.as_nanos()).unwrap_or(u64::MAX);
        self.delay + Duration::from_nanos(random.u64(0..=jitter))
    }

    /// Draws whether an operation fails.
    pub(super) fn draw_error(&self, random: &mut fastrand::Rng) -> bool {
        // No number is drawn for what cannot happen.
        self.errors > 0.0 && random.f64() < self.errors
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}
