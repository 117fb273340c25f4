//! Stock stages. Each is data: it is fully described by its settings and tables, so that the compiler for the network
//! processor ([`BuiltinStage`](crate::pipeline::BuiltinStage)) and the host do the same.

mod checksum;
mod closure;
mod filter;
mod meter;
mod mirror;
mod nat;
mod rewrite;
mod route;
mod ttl;
mod unresolved;

#[cfg(test)]
mod tests;

pub use self::{
    checksum::{Checksum, ChecksumMode},
    closure::StageFn,
    filter::{Action, Filter, FilterRule},
    meter::Meter,
    mirror::Mirror,
    nat::{Nat, NatRule},
    rewrite::Rewrite,
    route::RouteStage,
    ttl::Ttl,
};
use crate::{
    packet::EditError,
    pipeline::{DropReason, Verdict},
};

/// The verdict on a packet that a stage could not edit.
const fn refused(error: &EditError) -> Verdict {
    Verdict::Drop(match error {
        EditError::Parse(_) => DropReason::Malformed,
        EditError::NoField { .. } => DropReason::NotIp,
        EditError::Expired => DropReason::TtlExpired,
    })
}

/// The verdict on a packet that cannot be parsed.
const UNREADABLE: Verdict = Verdict::Drop(DropReason::Malformed);
