//! Keys of rows, and constants of several measurements.

use std::time::Duration;

/// Parameter of a row: bytes of a message.
pub(crate) const BYTES: &str = "bytes";

/// Parameter of a row: messages per answer.
pub(crate) const WINDOW: &str = "window";

/// Parameter of a row: ranks of a ring, or 2.
pub(crate) const RANKS: &str = "ranks";

/// Figure: time of a message one way, or of a hop; the median over the samples.
pub(crate) const MESSAGE_US: &str = "message_us";

/// Figure: the same, 99th percentile. A sample is the mean of the operations that fill 50 µs.
pub(crate) const MESSAGE_P99_US: &str = "message_p99_us";

/// Figure: the mean of the samples of which [`MESSAGE_US`] is the median.
pub(crate) const MESSAGE_MEAN_US: &str = "message_mean_us";

/// Parameter of a row: other processes that compute meanwhile.
pub(crate) const BESIDE: &str = "beside";

/// Figure: processor time of all ranks per message.
pub(crate) const CPU_PER_MESSAGE_US: &str = "cpu_per_message_us";

/// Figure: processor time of all ranks by the time that passed.
pub(crate) const CPU_CORES: &str = "cpu_cores";

/// Figure: the same of that follower which used most.
pub(crate) const CPU_CORES_FOLLOWER: &str = "cpu_cores_follower";

/// Pause before each message to a peer that waits: much longer than any system polls.
pub(crate) const REST: Duration = Duration::from_millis(2);

/// Sizes of the paper's Table 1, in bytes [via-lam, §5].
pub(crate) const PAPER_SIZES: [u32; 16] =
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768];
