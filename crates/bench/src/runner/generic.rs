//! The workloads on any async runtime.

use std::fmt;
use std::marker::PhantomData;

use super::interface::Runner;
use crate::error::Failure;
use crate::mix::{self, LoadServer};
use crate::server::ServerPlan;
use crate::system::AsyncSystem;
use crate::workload::server;
use crate::workload::switches::{self, SwitchCounts, SwitchPlan};

/// Runs the generic workloads on `S`.
pub(crate) struct Async<S>(PhantomData<fn() -> S>);

impl<S> Async<S> {
    pub(crate) const NEW: Self = Self(PhantomData);
}

impl<S> fmt::Debug for Async<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Async")
    }
}

impl<S: AsyncSystem> Runner for Async<S> {
    fn serve(&self, plan: &ServerPlan) -> Result<(), Failure> {
        server::serve::<S>(plan)
    }

    fn load(&self, plan: &LoadServer) -> Result<(), Failure> {
        mix::serve_on::<S>(plan)
    }

    fn switch(&self, plan: &SwitchPlan) -> Result<SwitchCounts, Failure> {
        switches::run::<S>(plan)
    }
}
