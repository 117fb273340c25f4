//! The members of a barrier.

use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;
pub use vigie_via::world::Rank;

/// The members of a barrier: the ranks from 0 to one below the size.
///
/// The *master*, in algorithms that have one, is rank 0, the member with the lowest number [eth-barrier, §3].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    size: u32,
}

impl Group {
    /// The largest size: every rank and round fits into 16 bits.
    pub const SIZE_MAX: u32 = 65_536;

    /// Returns the group of this many members, 1 to [`Self::SIZE_MAX`].
    ///
    /// # Errors
    /// [`GroupError`] if the size is out of that range.
    pub const fn new(size: u32) -> Result<Self, GroupError> {
        if size == 0 || size > Self::SIZE_MAX {
            Err(GroupError { size })
        } else {
            Ok(Self { size })
        }
    }

    /// Returns the number of members.
    #[must_use]
    pub const fn size(self) -> u32 {
        self.size
    }

    /// Returns whether this rank is one of the members.
    #[must_use]
    pub const fn contains(self, rank: Rank) -> bool {
        rank.0 < self.size
    }

    /// Returns all ranks in order.
    pub fn ranks(self) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator {
        (0..self.size).map(Rank)
    }
}

/// A group cannot have this many members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a group has 1 to {} members, not {size}", Group::SIZE_MAX)]
#[non_exhaustive]
pub struct GroupError {
    /// The requested size.
    pub size: u32,
}

/// Returns a number that no other barrier of this process has.
pub(crate) fn next_group() -> u64 {
    // In no model: the number alone carries meaning.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
