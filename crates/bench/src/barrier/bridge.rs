//! Network namespaces on a bridge, one for each member, as hosts on a switch would be.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Child;

use crate::host::missing::Missing;
use crate::host::namespaces::{INTERFACE, hold, missing, run};

/// The address of a member.
pub(crate) fn address(rank: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 78, 0, 1)) + rank)
}

/// The namespaces of this many members. Each lives as long as a process in it, which ends with this one.
#[derive(Debug)]
pub(crate) struct Bridge {
    /// The last one holds the bridge.
    holders: Vec<Child>,
}

impl Bridge {
    pub(crate) fn make(members: u32) -> Result<Self, Missing> {
        let mut this = Self { holders: Vec::new() };
        for _ in 0..=members {
            this.holders.push(hold()?);
        }
        let Some(switch) = this.holders.last().map(Child::id) else {
            return Err(missing("no namespace was made"));
        };
        run(switch, "ip", "link add br0 type bridge mcast_snooping 0")?;
        let _ = run(switch, "sysctl", "-q -w net.ipv6.conf.default.disable_ipv6=1");
        // A switch has no packet filter; the setting exists only if the host filters bridges.
        let _ = run(switch, "sysctl", "-q -w net.bridge.bridge-nf-call-iptables=0");
        run(switch, "ip", "link set br0 up")?;
        for (rank, holder) in (0..members).zip(&this.holders) {
            let holder = holder.id();
            let _ = run(holder, "sysctl", "-q -w net.ipv6.conf.default.disable_ipv6=1");
            let peer = format!("peer name {INTERFACE} netns {holder}");
            run(switch, "ip", &format!("link add port{rank} type veth {peer}"))?;
            run(switch, "ip", &format!("link set port{rank} master br0 up"))?;
            run(holder, "ip", &format!("addr add {}/16 dev {INTERFACE}", address(rank)))?;
            run(holder, "ip", "link set lo up")?;
            run(holder, "ip", &format!("link set {INTERFACE} up"))?;
            run(holder, "ip", &format!("route add 224.0.0.0/4 dev {INTERFACE}"))?;
        }
        // Some kernels begin to snoop when ports come; without a querier, multicast would stop after minutes.
        run(switch, "ip", "link set br0 type bridge mcast_snooping 0")?;
        Ok(this)
    }

    /// The path by which a member enters its namespace.
    pub(crate) fn path(&self, rank: u32) -> Option<PathBuf> {
        let holder = self.holders.get(usize::try_from(rank).ok()?)?;
        Some(format!("/proc/{}/ns/net", holder.id()).into())
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            drop(holder.stdin.take());
            // The closed pipe ends it; the kill bounds the wait.
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}
