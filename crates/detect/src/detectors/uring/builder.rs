//! The builder of a [`Uring`].

use super::{Uring, UringUnavailable, kernel::Ring};

/// Builds a [`Uring`]. Every value is clamped to its range.
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct UringBuilder {
    entries: u32,
    buffer_count: u16,
    buffer_size_bytes: u32,
    operations_max: usize,
}

impl UringBuilder {
    pub(super) const fn new() -> Self {
        Self { entries: 256, buffer_count: 256, buffer_size_bytes: 4096, operations_max: 1 << 16 }
    }

    /// Sets how many requests are handed to the kernel at once: a power of two, rounded up, 1 to
    /// 32768. Default 256. The completion queue is four times as long.
    pub fn entries(mut self, count: u32) -> Self {
        self.entries = count.clamp(1, 1 << 15).next_power_of_two();
        self
    }

    /// Sets the number of provided buffers: a power of two, rounded up, 1 to 32768. Default 256.
    pub fn buffer_count(mut self, count: u16) -> Self {
        self.buffer_count = count.clamp(1, 1 << 15).next_power_of_two();
        self
    }

    /// Sets the size of each provided buffer, 1 to 2^20 bytes. Default 4096.
    pub fn buffer_size_bytes(mut self, bytes: u32) -> Self {
        self.buffer_size_bytes = bytes.clamp(1, 1 << 20);
        self
    }

    /// Sets the maximum number of requests, including dropped ones that the kernel still works on: 1
    /// to 2^20. Further ones fail with [`QuotaExceeded`](std::io::ErrorKind::QuotaExceeded). Default
    /// 65536.
    pub fn operations_max(mut self, count: usize) -> Self {
        self.operations_max = count.clamp(1, 1 << 20);
        self
    }

    /// Sets up the ring and probes the kernel for the required features.
    ///
    /// # Cost
    /// Four system calls, and the memory of the buffers, zeroed.
    ///
    /// # Errors
    /// [`UringUnavailable`] says what is missing and what to do about it.
    pub fn build(self) -> Result<Uring, UringUnavailable> {
        let ring = Ring::new(self.entries, self.buffer_count, self.buffer_size_bytes)?;
        Ok(Uring::new(ring, self.operations_max))
    }
}
