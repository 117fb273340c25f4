//! What all systems of the figures have, and how their ranks wait.

use std::hint;
use std::time::Duration;

use crate::clock::now;
use crate::error::Failure;
use crate::messages::Measure;

/// The longest datagram that fits into a packet of UDP on Ethernet, in bytes: that of every system here.
pub(crate) const BYTES_MAX: u32 = 1_464;

/// Datagrams before an answer where bandwidth is measured: fewer than any buffer on the way holds.
pub(super) const WINDOW: u32 = 32;

/// How long a datagram may be under way before it counts as lost.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Latency and bandwidth, which all systems here have.
pub(super) fn has(measure: Measure) -> bool {
    let is_asked = measure.is_plain();
    is_asked && measure.bytes() <= BYTES_MAX
}

/// Looks until there is something, or for so long that it must be lost.
pub(super) fn polling<T>(
    timeout: Duration,
    mut poll: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    // The clock is read now and then only.
    const LOOKS: u32 = 1 << 16;
    let mut begun = None;
    loop {
        for _ in 0..LOOKS {
            if let Some(found) = poll()? {
                return Ok(found);
            }
            hint::spin_loop();
        }
        if begun.get_or_insert_with(now).elapsed() > timeout {
            return Err(Failure::runtime("a datagram was lost, or the other rank"));
        }
    }
}
