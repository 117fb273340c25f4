//! Three network namespaces in a row, with links between them.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::error::Missing;
use crate::host::Namespace;

/// The source's address.
pub(super) const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The relay's address on the source's link.
pub(super) const RELAY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The sink's address, which the source reaches through the relay's namespace.
pub(super) const SINK: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 2);

/// The source's interface.
pub(super) const SOURCE_INTERFACE: &str = "right0";
/// The link addresses of the source and of the relay's interface beside it.
pub(super) const MACS: [[u8; 6]; 2] = [[2, b'v', b'f', 0, 2, 1], [2, b'v', b'f', 0, 2, 2]];

/// How fast links are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkPace {
    /// 1 Gb/s each way.
    Gigabit,
    /// As fast as the processors.
    Unbounded,
}

/// Source, relay, sink. Each namespace lives as long as a process in it, which ends with this one.
#[derive(Debug)]
pub(super) struct RelayLinks {
    namespaces: [Namespace; 3],
}

impl RelayLinks {
    pub(super) fn make(pace: LinkPace) -> Result<Self, Missing> {
        let namespaces = [Namespace::make()?, Namespace::make()?, Namespace::make()?];
        let [source, relay, sink] = &namespaces;
        for (left, right, net) in [(source, relay, 0), (relay, sink, 1)] {
            let [near, far] = [format!("right{net}"), format!("left{net}")];
            let far_side = format!("peer name {far} netns {}", right.id());
            left.run("ip", &format!("link add {near} type veth {far_side}"))?;
            for (holder, name, host) in [(left, near, 1), (right, far, 2)] {
                holder.run("ip", &format!("addr add 10.78.{net}.{host}/24 dev {name}"))?;
                holder.run("ip", &format!("link set {name} up"))?;
                if pace == LinkPace::Gigabit {
                    // A bucket of one large packet: what is sent at once is not faster than the link.
                    let bucket = "root tbf rate 1gbit burst 64kb latency 50ms";
                    holder.run("tc", &format!("qdisc add dev {name} {bucket}"))?;
                }
            }
        }
        let ends = [(source, SOURCE_INTERFACE), (relay, "left0")];
        for ((holder, name), [a, b, c, d, e, f]) in ends.into_iter().zip(MACS) {
            let address = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
            holder.run("ip", &format!("link set {name} address {address}"))?;
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
