//! The number of a node.

/// A node of a [`SimulatedNetwork`](super::SimulatedNetwork).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    pub(super) const FIRST: Self = Self(0);

    pub(super) fn of_index(index: usize) -> Option<Self> {
        u32::try_from(index).ok().map(Self)
    }

    /// Returns its number in its network, counted from 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
