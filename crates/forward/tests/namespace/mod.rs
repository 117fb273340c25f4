//! Network namespaces of a test's own, for tests that load programs into the kernel: they need root.
//!
//! A test runs itself again in a new network namespace. Where that is not possible, or this process may not load
//! programs, it is skipped, with a message on the standard error of the whole run.

use vigie_forward::bpf::Support;

pub(crate) use crate::kit::namespace::{Namespace, near as run};
use crate::kit::{
    namespace::{self, PRIVILEGED},
    skip::skip,
};

/// Runs `body` in a network namespace of its own, in which it may create others.
#[track_caller]
pub(crate) fn inside(test: &str, body: impl FnOnce()) {
    match Support::probe().xdp {
        Ok(_) => namespace::inside(test, PRIVILEGED, body),
        Err(error) => skip(test, &format!("what is missing here: {error}")),
    }
}

/// Returns the index of an interface of this namespace.
#[track_caller]
pub(crate) fn index(name: &str) -> u32 {
    // Not by /sys, which shows the namespace in which it was mounted.
    let said = run(&format!("ip -o link show dev {name}"));
    said.split(':').next().expect("an index").parse().expect("a number")
}
