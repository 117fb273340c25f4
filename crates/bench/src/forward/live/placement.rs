//! Where the processes of a live run are: one network namespace with two veth pairs.
//!
//! ```text
//!   generator ── vf-a ═══ vf-in │ forwarder │ vf-out ═══ vf-b ── sink
//! ```

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command};

use rustix::thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_setaffinity};

use super::keys::{ENDS, PORTS};
use crate::error::Failure;
use crate::host::missing::Missing;
use crate::host::namespaces::{hold, missing, run};

/// A place for one process.
pub(super) struct CorePlacement {
    pub(super) namespace: PathBuf,
    pub(super) core: usize,
}

impl CorePlacement {
    /// Moves the calling thread there.
    pub(super) fn enter(&self) -> Result<(), Failure> {
        let doing = "entering the network namespace";
        let file = File::open(&self.namespace).map_err(Failure::io(doing))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| Failure::io(doing)(error.into()))?;
        let mut set = CpuSet::new();
        if self.core < CpuSet::MAX_CPU {
            set.set(self.core);
        }
        sched_setaffinity(None, &set).map_err(|error| Failure::io("pinning")(error.into()))
    }
}

/// The namespace, for as long as it is wanted.
#[derive(Debug)]
pub(super) struct VethNamespace {
    holder: Child,
}

impl VethNamespace {
    pub(super) fn make() -> Result<Self, Missing> {
        let wires = Self { holder: hold()? };
        let holder = wires.holder.id();
        for (end, port) in ENDS.iter().zip(PORTS) {
            run(holder, "ip", &format!("link add {end} type veth peer name {port}"))?;
        }
        for name in ENDS.iter().chain(&PORTS) {
            // Otherwise the kernel sends packets of its own meanwhile.
            let quiet = format!("-q -w net.ipv6.conf.{name}.disable_ipv6=1");
            let _ = run(holder, "sysctl", &quiet);
            run(holder, "ip", &format!("link set {name} up"))?;
        }
        Ok(wires)
    }

    pub(super) fn namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.holder.id()).into()
    }

    pub(super) fn process(&self) -> u32 {
        self.holder.id()
    }
}

impl Drop for VethNamespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // The closed pipe ends it; the kill bounds the wait.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
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
