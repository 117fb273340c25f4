//! Three network namespaces in a row, with links of 1 Gb/s between them.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Child;

use crate::host::missing::Missing;
use crate::host::namespaces::{hold, run};

/// The relay's address on the source's link.
pub(super) const RELAY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The sink's address, which the source reaches through the relay's namespace.
pub(super) const SINK: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 2);

/// Source, relay, sink. Each namespace lives as long as a process in it, which ends with this one.
#[derive(Debug)]
pub(super) struct RelayLinks {
    holders: [Child; 3],
}

impl RelayLinks {
    pub(super) fn make() -> Result<Self, Missing> {
        let links = Self { holders: [hold()?, hold()?, hold()?] };
        let [source, relay, sink] = [0, 1, 2].map(|index: usize| links.holders[index].id());
        for (left, right, net) in [(source, relay, 0), (relay, sink, 1)] {
            let [near, far] = [format!("right{net}"), format!("left{net}")];
            run(left, "ip", &format!("link add {near} type veth peer name {far} netns {right}"))?;
            for (holder, name, host) in [(left, near, 1), (right, far, 2)] {
                run(holder, "ip", &format!("addr add 10.78.{net}.{host}/24 dev {name}"))?;
                run(holder, "ip", &format!("link set {name} up"))?;
                // A bucket of one large packet: what is sent at once is not faster than the link.
                let bucket = "root tbf rate 1gbit burst 64kb latency 50ms";
                run(holder, "tc", &format!("qdisc add dev {name} {bucket}"))?;
            }
        }
        for holder in [source, relay, sink] {
            run(holder, "ip", "link set lo up")?;
        }
        run(relay, "sysctl", "-q -w net.ipv4.ip_forward=1")?;
        run(source, "ip", "route add default via 10.78.0.2")?;
        run(sink, "ip", "route add default via 10.78.1.1")?;
        Ok(links)
    }

    /// By which paths processes enter them.
    pub(super) fn paths(&self) -> [PathBuf; 3] {
        [0, 1, 2].map(|index: usize| format!("/proc/{}/ns/net", self.holders[index].id()).into())
    }
}

impl Drop for RelayLinks {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            drop(holder.stdin.take());
            // The closed pipe ends it; the kill bounds the wait.
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}
