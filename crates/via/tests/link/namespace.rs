//! A network namespace for a single test, with a veth pair in it.

use crate::kit::namespace::{WAYS, inside, near};

/// Runs `body` in a network namespace with a veth pair `v0`, `v1`, both up.
#[track_caller]
pub(crate) fn with_veth(test: &str, body: impl FnOnce()) {
    inside(test, WAYS, || {
        ip("link set lo up");
        make_veth();
        body();
    });
}

/// Makes the pair.
pub(crate) fn make_veth() {
    ip("link add name v0 type veth peer name v1");
    ip("link set v0 up");
    ip("link set v1 up");
}

/// Calls `ip` with arguments. Returns its output.
#[track_caller]
pub(crate) fn ip(arguments: &str) -> String {
    near(&format!("ip {arguments}"))
}
