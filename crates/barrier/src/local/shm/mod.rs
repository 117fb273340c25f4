//! Barriers of processes on one host, over shared memory.

mod bootstrap;
mod liveness;
mod member;
mod segment;
mod wire;

pub use self::{
    bootstrap::{BootstrapNameError, BootstrapPoint, ShmBootstrap, ShmFormationError},
    member::ShmMember,
};
