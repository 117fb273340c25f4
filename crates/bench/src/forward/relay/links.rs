//! Three network namespaces in a row, with links of 1 Gb/s between them.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::error::Missing;
use crate::host::Namespace;

/// The relay's address on the source's link.
pub(super) const RELAY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The sink's address, which the source reaches through the relay's namespace.
pub(super) const SINK: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 2);

/// Source, relay, sink. Each namespace lives as long as a process in it, which ends with this one.
#[derive(Debug)]
pub(super) struct RelayLinks {
    namespaces: [Namespace; 3],
}

impl RelayLinks {
    pub(super) fn make() -> Result<Self, Missing> {
        let namespaces = [Namespace::make()?, Namespace::make()?, Namespace::make()?];
        let [source, relay, sink] = &namespaces;
        for (left, right, net) in [(source, relay, 0), (relay, sink, 1)] {
            let [near, far] = [format!("right{net}"), format!("left{net}")];
            let far_side = format!("peer name {far} netns {}", right.id());
            left.run("ip", &format!("link add {near} type veth {far_side}"))?;
            for (holder, name, host) in [(left, near, 1), (right, far, 2)] {
                holder.run("ip", &format!("addr add 10.78.{net}.{host}/24 dev {name}"))?;
                holder.run("ip", &format!("link set {name} up"))?;
                // A bucket of one large packet: what is sent at once is not faster than the link.
                let bucket = "root tbf rate 1gbit burst 64kb latency 50ms";
                holder.run("tc", &format!("qdisc add dev {name} {bucket}"))?;
            }
        }
        for holder in [source, relay, sink] {
            holder.run("ip", "link set lo up")?;
        }
        relay.run("sysctl", "-q -w net.ipv4.ip_forward=1")?;
        source.run("ip", "route add default via 10.78.0.2")?;
        sink.run("ip", "route add default via 10.78.1.1")?;
        Ok(Self { namespaces })
    }

    /// By which paths processes enter them.
    pub(super) fn paths(&self) -> [PathBuf; 3] {
        self.namespaces.each_ref().map(Namespace::path)
    }
}
