//! Runtimes of every flavor.

use vigie_runtime::{Flavor, Runtime};

pub(crate) const FLAVORS: [Flavor; 3] = [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel];

pub(crate) fn runtime(flavor: Flavor) -> Runtime {
    Runtime::builder().flavor(flavor).workers(2).build().expect("a runtime")
}
