//! Length-prefixed messages, forwarded whole or as they arrive.

mod format;
mod planner;
mod pump;

pub use format::{FrameError, FrameHeader, LengthFormat};
pub use planner::FrameMode;
pub(super) use pump::FramedPump;

/// The division of a relay's streams into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "give it to `RelayBuilder::framing`"]
pub struct Framing {
    pub(super) format: LengthFormat,
    pub(super) mode: FrameMode,
    pub(super) message_bytes_max: u64,
}

impl Framing {
    /// Messages with lengths in `format`, of at most 16 MiB, forwarded as planned.
    pub const fn new(format: LengthFormat) -> Self {
        Self { format, mode: FrameMode::Planned, message_bytes_max: 16 << 20 }
    }

    vigie_detect::setters! {
        /// Sets how messages are forwarded. Default [`FrameMode::Planned`].
        mode: FrameMode,

        /// Sets the maximum length of a message after its header, in bytes. Default 16 MiB. Unless messages are always
        /// cut through, the relay's memory must hold one such message.
        message_bytes_max: u64,
    }
}
