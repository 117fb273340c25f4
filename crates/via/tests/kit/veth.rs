//! Two network namespaces with a veth pair between them.

use crate::kit::namespace::{Door, Namespace, WAYS, inside, near};

/// The addresses of the near and the far end of the pair.
pub(crate) const NEAR: &str = "10.77.0.1";
pub(crate) const FAR: &str = "10.77.0.2";

/// Runs `body` with two namespaces; `test` is the name of the calling test.
#[track_caller]
pub(crate) fn with_veth(test: &str, body: impl FnOnce(&Far)) {
    inside(test, WAYS, || body(&Far::new()));
}

/// The namespace at the far end.
pub(crate) struct Far(Namespace);

impl Far {
    pub(crate) fn new() -> Self {
        let far = Self(Namespace::new());
        near("ip link set lo up");
        near("ip link add name v0 type veth peer name v1");
        near(&format!("ip link set v1 netns {}", far.0.id()));
        near(&format!("ip addr add {NEAR}/24 dev v0"));
        near("ip link set v0 up");
        far.run("ip link set lo up");
        far.run(&format!("ip addr add {FAR}/24 dev v1"));
        far.run("ip link set v1 up");
        far
    }

    /// Runs a command there.
    #[track_caller]
    pub(crate) fn run(&self, command: &str) {
        self.0.run(command);
    }

    /// Returns what a thread needs to enter it.
    pub(crate) fn door(&self) -> Door {
        self.0.door()
    }
}
