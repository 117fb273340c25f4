//! Verdicts: what becomes of a packet.

use crate::{
    drop_reason::DropReason,
    packet::{EditError, Port},
};

/// A stage's decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "ignoring a verdict forwards packets that should be dropped"]
#[non_exhaustive]
pub enum Verdict {
    /// It continues to the next stage.
    Pass,
    /// It continues to the next stage, and leaves by this port unless a later stage names another.
    SetEgress(Port),
    /// It continues to the next stage, and a copy of it, as it is now, leaves by this port.
    Copy(Port),
    /// It continues to the next stage, and leaves by this port, unless a later stage names another, in IPv4 fragments of
    /// at most so many bytes.
    Fragment(Port, usize),
    /// The stage has [taken](crate::packet::Packet::take) it, and gives it out by
    /// [`Stage::release`](crate::pipeline::Stage::release).
    Hold,
    /// It is dropped and counted.
    Drop(DropReason),
}

/// The verdict on a packet that a stage could not edit.
pub(super) const fn refused(error: &EditError) -> Verdict {
    Verdict::Drop(match error {
        EditError::Parse(_) => DropReason::Malformed,
        EditError::NoField { .. } => DropReason::NotIp,
        EditError::Expired => DropReason::TtlExpired,
    })
}

/// The verdict on a packet that cannot be parsed.
pub(super) const UNREADABLE: Verdict = Verdict::Drop(DropReason::Malformed);
