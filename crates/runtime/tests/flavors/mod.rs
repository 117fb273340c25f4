//! Runtimes of every flavor.

use vigie_runtime::{Flavor, Runtime};

pub(crate) const FLAVORS: [Flavor; 3] = [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel];

pub(crate) fn runtime(flavor: Flavor) -> Runtime {
    // Few enough that tests beside each other leave the machine some threads.
    let builder = Runtime::builder().flavor(flavor).workers(2).task_threads(2048);
    builder.build().expect("a runtime")
}
