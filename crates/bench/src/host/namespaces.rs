//! Two network namespaces with a veth pair between them, for as long as they are needed.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::missing::Missing;

/// The name of the interface in each namespace.
pub(crate) const INTERFACE: &str = "veth0";

/// The address of a rank on the pair.
pub(crate) fn address(rank: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 0, 1)) + rank)
}

/// Each namespace lives as long as a process in it that does nothing. It ends with its standard input, which
/// the kernel closes however this process ends.
#[derive(Debug)]
pub(crate) struct Namespaces {
    holders: [Child; 2],
}

impl Namespaces {
    /// Makes both, with addresses.
    pub(crate) fn make() -> Result<Self, Missing> {
        let namespaces = Self { holders: [hold()?, hold()?] };
        let [one, other] = [namespaces.holders[0].id(), namespaces.holders[1].id()];
        let peer = format!("peer name {INTERFACE} netns {other}");
        let make = format!("link add {INTERFACE} type veth {peer}");
        run(one, "ip", &make)?;
        for (rank, holder) in (0..).zip([one, other]) {
            run(holder, "ip", &format!("addr add {}/24 dev {INTERFACE}", address(rank)))?;
            // Otherwise the kernel sends packets of its own meanwhile.
            let quiet = format!("net.ipv6.conf.{INTERFACE}.disable_ipv6=1");
            let _ = run(holder, "sysctl", &format!("-q -w {quiet}"));
        }
        for holder in [one, other] {
            run(holder, "ip", "link set lo up")?;
            run(holder, "ip", &format!("link set {INTERFACE} up"))?;
        }
        Ok(namespaces)
    }

    /// By which paths ranks enter them.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.holders.iter().map(|holder| format!("/proc/{}/ns/net", holder.id()).into()).collect()
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            drop(holder.stdin.take());
            // The closed pipe ends it; the kill bounds the wait.
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

pub(crate) fn missing(what: impl Into<String>) -> Missing {
    Missing::new(
        what,
        "run as root with iproute2 and util-linux, or in a user namespace of your own (`unshare -Urn \
         vigie-bench …`), where AF_XDP is not allowed",
    )
}

/// Starts a process in a new namespace.
pub(crate) fn hold() -> Result<Child, Missing> {
    let started = Command::new("unshare")
        .args(["-n", "--", "sh", "-c", "echo ready; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut holder = started.map_err(|error| missing(format!("`unshare`: {error}")))?;
    let mut said = String::new();
    if let Some(output) = holder.stdout.take() {
        // What says nothing has ended.
        let _ = BufReader::new(output).read_line(&mut said);
    }
    if said.trim() == "ready" {
        return Ok(holder);
    }
    let _ = holder.kill();
    let _ = holder.wait();
    Err(missing("a network namespace of its own is not allowed here"))
}

/// Runs a command in the namespace of a process.
pub(crate) fn run(holder: u32, program: &str, arguments: &str) -> Result<(), Missing> {
    let output = Command::new("nsenter")
        .args(["-t", &holder.to_string(), "-n", "--", program])
        .args(arguments.split_whitespace())
        .output()
        .map_err(|error| missing(format!("`nsenter`: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(missing(format!("`{program} {arguments}`: {}", said.trim())))
}
