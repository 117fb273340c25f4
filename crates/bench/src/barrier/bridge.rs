//! Network namespaces on a bridge, one for each member, as hosts on a switch would be.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::error::Missing;
use crate::host::{INTERFACE, Namespace};

/// The address of a member.
pub(crate) fn address(rank: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 78, 0, 1)) + rank)
}

/// The namespaces of this many members. Each lives as long as a process in it, which ends with this one.
#[derive(Debug)]
pub(crate) struct Bridge {
    /// Those of the members, and the one in which the bridge is.
    namespaces: Vec<Namespace>,
}

impl Bridge {
    /// Makes namespaces for `members` ranks, and one for the bridge.
    pub(crate) fn make(members: u32) -> Result<Self, Missing> {
        let switch = Namespace::make()?;
        switch.run("ip", "link add br0 type bridge mcast_snooping 0")?;
        switch.quiet("default");
        // A switch has no packet filter; the setting exists only if the host filters bridges.
        let _ = switch.run("sysctl", "-q -w net.bridge.bridge-nf-call-iptables=0");
        switch.run("ip", "link set br0 up")?;
        let mut namespaces = Vec::new();
        for rank in 0..members {
            let member = Namespace::make()?;
            member.quiet("default");
            let peer = format!("peer name {INTERFACE} netns {}", member.id());
            switch.run("ip", &format!("link add port{rank} type veth {peer}"))?;
            switch.run("ip", &format!("link set port{rank} master br0 up"))?;
            member.run("ip", &format!("addr add {}/16 dev {INTERFACE}", address(rank)))?;
            member.run("ip", "link set lo up")?;
            member.run("ip", &format!("link set {INTERFACE} up"))?;
            member.run("ip", &format!("route add 224.0.0.0/4 dev {INTERFACE}"))?;
            namespaces.push(member);
        }
        // Some kernels begin to snoop when ports come; without a querier, multicast would stop after minutes.
        switch.run("ip", "link set br0 type bridge mcast_snooping 0")?;
        namespaces.push(switch);
        Ok(Self { namespaces })
    }

    /// The path by which a member enters its namespace.
    pub(crate) fn path(&self, rank: u32) -> Option<PathBuf> {
        Some(self.namespaces.get(usize::try_from(rank).ok()?)?.path())
    }
}
