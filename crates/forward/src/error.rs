//! The errors of models and pipelines, and the limits that they name.

use std::time::Duration;

use thiserror::Error;

/// The longest time that a parameter may be, for one packet or one algorithm: a minute. A longer one is most likely in
/// the wrong unit; up to it no sum in this crate overflows.
pub const TIME_MAX: Duration = Duration::from_secs(60);

/// The maximum number of packets of one message.
pub const PACKETS_MAX: u32 = 1 << 20;

/// The maximum number of messages in the node at once.
pub const WINDOW_MAX: u32 = 1 << 16;

/// A cost, a message or parameters from which no model can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A bandwidth of less than one byte per second.
    #[error("a bandwidth of less than one byte per second: measure over more bytes")]
    NoBytes,
    /// A time of zero.
    #[error("a time of zero gives no bandwidth: measure over more bytes, or give a fixed cost")]
    NoTime,
    /// Two points that do not define a line.
    #[error("a line needs two sizes, the smaller first; the first was {bytes} bytes")]
    SamePoint {
        /// Bytes of the first point.
        bytes: u64,
    },
    /// A message without bytes.
    #[error("a message of no bytes has no bandwidth: give its length")]
    EmptyMessage,
    /// Packets without bytes.
    #[error("packets of no bytes carry nothing: give the largest packet of the network")]
    EmptyPackets,
    /// More packets than the model accepts.
    #[error("{count} packets are more than {PACKETS_MAX}: use larger packets, or cut the message")]
    TooManyPackets {
        /// Packets that would be needed.
        count: u64,
    },
    /// A missing parameter: none is guessed.
    #[error("{symbol} is missing: measure it, or give it")]
    Missing {
        /// The paper's symbol.
        symbol: &'static str,
    },
    /// A time out of range.
    #[error(
        "{symbol} of a packet is {time:?}: it must be more than nothing on a link, and at most {TIME_MAX:?}"
    )]
    Time {
        /// The paper's symbol.
        symbol: &'static str,
        /// The value given.
        time: Duration,
    },
    /// A window out of range.
    #[error("a window of {window} messages: it must be 1 to {WINDOW_MAX}")]
    Window {
        /// The value given.
        window: u32,
    },
}

/// The reason why a pipeline cannot be built.
#[cfg(feature = "pipeline")]
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// No packet fits into the bucket of a meter.
    #[error("a burst of {bytes} bytes passes no packet: give at least the MTU plus 14")]
    Burst {
        /// The burst given, in bytes.
        bytes: u64,
    },
    /// A stage needs whole messages.
    #[error(
        "stage {stage:?} must see a whole message before its start may leave: use store-and-forward, or \
         leave the stage out"
    )]
    NeedsWhole {
        /// The stage.
        stage: String,
    },
    /// A setting out of range.
    #[error("{name} is {value}, and must be at least 1")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: usize,
    },
}
