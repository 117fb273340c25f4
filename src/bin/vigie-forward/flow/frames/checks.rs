//! What must be so before frames are taken.

use std::{fs, io};

use vigie::forward::tables::Prefix;

use super::program::Door;
use crate::{
    config::Kind,
    flow::FlowError,
    journal::say,
    kernel::{self, Target, snapshot},
    privileges::{Held, Right, listed},
};

/// Names what is missing, and what there is without it.
pub(super) fn check_rights(name: &str) -> Result<(), FlowError> {
    let held = Held::now();
    let program = held.missing(&[Right::Bpf, Right::NetAdmin]);
    if held.has(Right::NetRaw) {
        return Ok(());
    }
    let program = match program.as_slice() {
        [] => String::new(),
        missing => format!("; and a program at the interface needs {}, too", listed(missing)),
    };
    Err(FlowError::Rights(format!(
        "frames need {}, which this process lacks{program}. Run it as root, or give the program the rights (`setcap \
         cap_net_raw,cap_net_admin,cap_bpf+ep`). `vigie-forward relay` needs none: it forwards TCP, UDP and Unix \
         streams. (Flow `{name}` is not forwarded, and neither are others.)",
        listed(&[Right::NetRaw])
    )))
}

/// Checks that the interfaces are there, and that the kernel does not forward between them as well.
pub(super) fn check_interfaces(
    names: &[String],
    kind: &Kind,
    table: u32,
) -> Result<Vec<Door>, FlowError> {
    let picture = snapshot(table).map_err(|error| FlowError::Io {
        what: "asking the kernel for its interfaces".to_owned(),
        source: io::Error::other(error),
    })?;
    let mut doors = Vec::new();
    for name in names {
        let Some(interface) = picture.interface(name) else {
            return Err(FlowError::Setting(format!(
                "there is no interface `{name}` in this network namespace (`ip link` lists them)"
            )));
        };
        if interface.mac.is_none() {
            return Err(FlowError::Setting(format!("interface `{name}` is no Ethernet")));
        }
        if !matches!(kind, Kind::L2(_)) {
            check_kernel_forwarding(name)?;
        }
        if !interface.is_up {
            say(format!("interface {name} is down, or has no carrier: it is waited for"));
        }
        let (name, index, is_pair) = (name.clone(), interface.index, interface.is_pair);
        let networks = picture.networks(index).into_iter();
        let networks = networks.filter_map(|one| Prefix::new(one.address, one.bits).ok()).collect();
        doors.push(Door { name, index, is_pair, networks });
    }
    if let Kind::Nat(nat) = kind {
        let prefix = kernel::Prefix { address: nat.address.into(), bits: 32 };
        if picture.target(prefix) == Some(Target::Local) {
            return Err(FlowError::Setting(format!(
                "{0} is an address of this host, whose kernel would answer and reset what is not its own: give another \
                 address of the network of `{1}` (vigie-forward answers ARP for it), or take it away (`ip addr del {0} \
                 dev {1}`)",
                nat.address, nat.outside
            )));
        }
    }
    Ok(doors)
}

/// The kernel sees what a packet socket sees: if both forward, everything arrives twice.
fn check_kernel_forwarding(name: &str) -> Result<(), FlowError> {
    // The kernel writes dots of a name as slashes in names of settings, and its files have them as they are.
    let is_on = |version: &str, what: &str| {
        let file = format!("/proc/sys/net/{version}/conf/{what}/forwarding");
        fs::read_to_string(file).is_ok_and(|text| text.trim() != "0")
    };
    let doubled = if is_on("ipv4", name) {
        "ipv4"
    } else if is_on("ipv6", name) && is_on("ipv6", "all") {
        "ipv6"
    } else {
        return Ok(());
    };
    Err(FlowError::Setting(format!(
        "the kernel forwards what arrives at `{name}` too, and every packet would leave twice: turn that off (`sysctl \
         -w net.{doubled}.conf.{}.forwarding=0`)",
        name.replace('.', "/")
    )))
}
