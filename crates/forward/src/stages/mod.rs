//! Stock stages. Each is data: its settings and its tables are all that it does, so that the compiler for
//! the network processor ([`Stock`](crate::pipeline::Stock)) and the host do the same.

mod checksum;
mod closure;
mod filter;
mod meter;
mod mirror;
mod nat;
mod rewrite;
mod route;
mod ttl;

#[cfg(test)]
mod tests;

pub use self::{
    checksum::{Checksum, ChecksumWork},
    closure::Closure,
    filter::{Action, Filter, Rule},
    meter::{Meter, MeterError},
    mirror::Mirror,
    nat::{Nat, NatRule},
    rewrite::Rewrite,
    route::RouteStage,
    ttl::Ttl,
};
use crate::{
    packet::{EditError, ParseError},
    pipeline::{Reason, Verdict},
};

/// What becomes of a packet that cannot be changed as a stage wants.
const fn refused(error: &EditError) -> Verdict {
    Verdict::Drop(match error {
        EditError::Parse(_) => Reason::Malformed,
        EditError::NoField { .. } => Reason::NotIp,
        EditError::Expired => Reason::TtlExpired,
    })
}

/// What becomes of a packet that cannot be read.
const fn unreadable(_: &ParseError) -> Verdict {
    Verdict::Drop(Reason::Malformed)
}
