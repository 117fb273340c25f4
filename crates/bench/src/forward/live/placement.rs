//! Where the processes of a live run are: one network namespace with two veth pairs.
//!
//! ```text
//!   generator ── vf-a ═══ vf-in │ forwarder │ vf-out ═══ vf-b ── sink
//! ```

use std::path::PathBuf;
use std::process::Command;

use super::keys::{ENDS, PORTS};
use crate::error::{Failure, Missing};
use crate::host::{Namespace, enter, missing, pin};

/// A place for one process.
pub(super) struct CorePlacement {
    pub(super) namespace: PathBuf,
    pub(super) core: usize,
}

impl CorePlacement {
    /// Moves the calling thread there.
    pub(super) fn enter(&self) -> Result<(), Failure> {
        enter(&self.namespace)?;
        pin(&[self.core])
    }
}

/// Makes the namespace, which is there for as long as it is wanted.
pub(super) fn veth_namespace() -> Result<Namespace, Missing> {
    let wires = Namespace::make()?;
    for (end, port) in ENDS.iter().zip(PORTS) {
        wires.run("ip", &format!("link add {end} type veth peer name {port}"))?;
    }
    for name in ENDS.iter().chain(&PORTS) {
        wires.quiet(name);
        wires.run("ip", &format!("link set {name} up"))?;
    }
    Ok(wires)
}

/// Returns how many frames an interface of this thread's namespace has received.
pub(super) fn received(name: &str) -> Result<u64, Failure> {
    let said = Command::new("ip").args(["-s", "-j", "link", "show", "dev", name]).output();
    let said = said.map_err(Failure::io("reading the counters of an interface"))?;
    let json: serde_json::Value = serde_json::from_slice(&said.stdout)
        .map_err(|error| Failure::io("reading the counters of an interface")(error.into()))?;
    let count = json.pointer("/0/stats64/rx/packets").and_then(serde_json::Value::as_u64);
    count.ok_or_else(|| {
        Failure::io("reading the counters of an interface")(std::io::ErrorKind::InvalidData.into())
    })
}

/// Says why there is no such program here.
pub(super) fn absent(program: &str) -> Missing {
    missing(format!("`{program}` is not installed"))
}
