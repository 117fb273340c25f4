//! The paths through a forwarding node.

use std::fmt;

named! {
    /// The processor that runs the algorithm.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[expect(clippy::exhaustive_enums, reason = "a node has these two processors")]
    pub enum Placement {
        /// The host processor: messages cross the I/O bus twice.
        Host => "host",
        /// The processor of the network interface: messages do not cross the bus.
        Nic => "network interface",
    }
}

named! {
    /// The condition under which the first byte may leave.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[expect(clippy::exhaustive_enums, reason = "the whole message has arrived, or it has not")]
    pub enum SwitchingMode {
        /// The whole message has arrived.
        StoreAndForward => "store-and-forward",
        /// The first packet has arrived.
        CutThrough => "cut-through",
    }
}

/// A path through the node: which processor runs the algorithm, and when the first byte may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "placement and mode are all there is to a path")]
pub struct Path {
    /// The processor that runs the algorithm.
    pub placement: Placement,
    /// The condition under which the first byte may leave.
    pub mode: SwitchingMode,
}

impl Path {
    /// The paper's HP forwarding.
    pub const HOST: Self =
        Self { placement: Placement::Host, mode: SwitchingMode::StoreAndForward };
    /// Cut-through by the host, which in the model requires a full-duplex bus.
    pub const HOST_CUT_THROUGH: Self =
        Self { placement: Placement::Host, mode: SwitchingMode::CutThrough };
    /// The paper's NP forwarding, store-and-forward.
    pub const NIC: Self = Self { placement: Placement::Nic, mode: SwitchingMode::StoreAndForward };
    /// The paper's NP forwarding, cut-through.
    pub const NIC_CUT_THROUGH: Self =
        Self { placement: Placement::Nic, mode: SwitchingMode::CutThrough };

    /// All paths, in the planner's order of preference among equally fast ones: the interface relieves the host's
    /// processor, and store-and-forward never forwards a damaged message.
    pub const ALL: [Self; 4] =
        [Self::NIC, Self::NIC_CUT_THROUGH, Self::HOST, Self::HOST_CUT_THROUGH];
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.placement, self.mode)
    }
}
