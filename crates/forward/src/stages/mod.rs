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
pub(crate) mod stage;
mod stock;
mod ttl;
mod unresolved;
pub(crate) mod verdict;

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
