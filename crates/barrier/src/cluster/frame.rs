//! Frames, and the nodes between which they go.

/// The index of a node.
pub(super) type NodeIndex = usize;

/// A frame on the wire.
#[derive(Clone, Debug)]
pub(super) struct Frame<M> {
    pub(super) from: NodeIndex,
    pub(super) to: Destination,
    pub(super) message: M,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    Node(NodeIndex),
    Others,
}

impl<M> Frame<M> {
    /// Returns whether this node should receive it.
    pub(super) fn is_for(&self, node: NodeIndex) -> bool {
        match self.to {
            Destination::Node(to) => to == node,
            Destination::Others => node != self.from,
        }
    }
}
