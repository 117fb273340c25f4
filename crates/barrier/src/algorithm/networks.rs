//! The networks between which the messages of a gathering may alternate.

use crate::schedule::Network;

/// The number of networks that a gathering uses. Exits use the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Networks {
    /// Only the first one.
    #[default]
    One,
    /// The first and the second alternately.
    Two,
}

impl Networks {
    /// The network of the message with that number, if networks alternate.
    pub(super) const fn of(self, index: u32) -> Network {
        match self {
            Self::Two if index % 2 == 1 => Network::Second,
            Self::One | Self::Two => Network::First,
        }
    }

    /// The suffix of an algorithm's name.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::One => "",
            Self::Two => "-two-networks",
        }
    }
}
