//! The kernel interfaces that can carry frames.

/// The kernel interface that carries the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackEnd {
    /// The first AF_PACKET back end that the kernel grants.
    #[default]
    Automatic,
    /// AF_PACKET with rings in memory shared with the kernel.
    PacketRings,
    /// AF_PACKET with one system call for a batch.
    PacketCalls,
    /// AF_XDP: one [queue](super::LinkBuilder::queue), which belongs to this link alone.
    Xdp,
    /// AF_XDP where the kernel and the driver support it and this process may use it, otherwise as
    /// [`Automatic`](Self::Automatic). The log (`tracing`) says which, and why; [`Link::back_end`](super::Link::back_end) returns
    /// it. A queue or an interface with another owner is still an error: the frames might go there.
    XdpOrPacket,
}
