//! Checks before frames are taken.

use std::{
    fs, io,
    net::Ipv4Addr,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    thread,
    time::Duration,
};

use vigie::via::link::{MacAddress, merges_packets};

use super::{
    TABLE_NONE,
    own_address::OwnAddress,
    probe::{Holder, holders},
    program::FlowInterface,
    public_side::{AddressReach, PublicSide},
};
use crate::{
    config::{FlowConfig, FlowKind, Nat},
    flow::{FlowError, FlowStart},
    journal::log,
    kernel::{Interface, NetlinkCache, snapshot},
    privileges::{HeldRights, Right, lacks, listed},
};

/// Names the missing capabilities, and the alternatives without them.
pub(super) fn check_rights() -> Result<(), FlowError> {
    let held = HeldRights::now();
    let program = held.missing(&[Right::Bpf, Right::NetAdmin]);
    if held.has(Right::NetRaw) {
        return Ok(());
    }
    let frames = listed(&[Right::NetRaw]);
    let (lacks, is_given_up) = lacks(&[Right::NetRaw]);
    if is_given_up {
        let problem = format!("frames need {frames}, {lacks}");
        return Err(FlowError::Rights { key: "", problem });
    }
    let program = match program.as_slice() {
        [] => String::new(),
        missing => format!("; and a program at the interface needs {}, too", listed(missing)),
    };
    let problem = format!(
        "frames need {frames}, {lacks}{program}. Run it as root, or give the program the rights (`setcap \
         cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon+ep`). `vigie-forward relay` needs none: it forwards TCP, UDP and Unix \
         streams."
    );
    Err(FlowError::Rights { key: "", problem })
}

/// Checks that the interfaces exist, and that the kernel does not forward between them as well. Also returns the public side of
/// translations.
pub(super) fn check_interfaces(
    names: &[String],
    kind: &FlowKind,
    (table, start): (u32, FlowStart),
) -> Result<(Vec<FlowInterface>, Option<PublicSide>), FlowError> {
    let cache = interfaces(table)?;
    let is_wire = matches!(kind, FlowKind::L2(_));
    let mut flow_interfaces = Vec::new();
    for (key, name) in kind.keyed_interfaces() {
        let interface = usable(&cache, name, is_wire)
            .map_err(|problem| FlowError::InvalidKey { key, problem })?;
        if !interface.is_up {
            log(format!("interface {name} is down or has no carrier: waiting for it"));
        }
        let (name, index, is_pair) = (name.to_owned(), interface.index, interface.is_pair);
        let networks = cache.networks(index);
        let vlan = cache.vlan_of(index).map(str::to_owned);
        flow_interfaces.push(FlowInterface {
            name,
            index,
            is_pair,
            is_up: interface.is_up,
            is_headerless: interface.is_headerless,
            is_without_tcx: interface.is_without_tcx,
            vlan,
            networks,
        });
    }

    merging(names).map_or(Ok(()), |merging| start.refuse(merging))?;
    if !is_wire && let Some(KernelForwarding { from, off }) = kernel_forwarding(names) {
        // The kernel also sees the frames of a packet socket.
        start.refuse(format!(
            "the kernel forwards packets from {from} too, so every packet would be sent twice: turn that off ({off})"
        ))?;
    }
    let public_side = match kind {
        FlowKind::Nat(nat) => Some(PublicSide::of(nat, &cache)?),
        _ => None,
    };
    Ok((flow_interfaces, public_side))
}

/// Asks the kernel for its interfaces, and for the routes of a table.
pub(super) fn interfaces(table: u32) -> Result<NetlinkCache, FlowError> {
    snapshot(table).map_err(|error| FlowError::Io {
        what: "asking the kernel for its interfaces".to_owned(),
        source: io::Error::other(error),
    })
}

/// Returns the problems of interfaces that cannot be used, by the paths of their keys.
pub(super) fn interface_problems(kind: &FlowKind, cache: &NetlinkCache) -> Vec<(String, String)> {
    let is_wire = matches!(kind, FlowKind::L2(_));
    let problem = |(key, name)| usable(cache, name, is_wire).err().map(|problem| (key, problem));
    kind.keyed_interfaces().into_iter().filter_map(problem).collect()
}

/// Returns an interface, or the reason why it cannot be used.
fn usable<'a>(cache: &'a NetlinkCache, name: &str, is_wire: bool) -> Result<&'a Interface, String> {
    let Some(interface) = cache.interface(name) else {
        return Err(format!(
            "there is no interface `{name}` in this network namespace (`ip link` lists them)"
        ));
    };
    if interface.is_headerless && is_wire {
        return Err(format!(
            "packets of interface `{name}` have no Ethernet header, so there is no frame to pass on: use `l3`"
        ));
    }
    if interface.mac.is_none() && !interface.is_headerless {
        return Err(format!(
            "interface `{name}` is neither an Ethernet interface nor one without headers (tun, WireGuard, tunnels of IPv4)"
        ));
    }
    Ok(interface)
}

/// Checks the ports of translations, if this host has the public address itself.
pub(super) fn check_own_address(
    kind: &FlowKind,
    public_side: Option<PublicSide>,
    start: FlowStart,
) -> Result<Option<OwnAddress>, FlowError> {
    let (FlowKind::Nat(nat), Some(public)) = (kind, public_side.filter(|public| public.is_own))
    else {
        return Ok(None);
    };
    let own_address = OwnAddress::new(nat, public, start)?;
    log(format!(
        "{} is an address of this host, which its own connections share: ports {} are for translations",
        public.address, public.ports
    ));
    Ok(Some(own_address))
}

/// Asks whether other hosts have the public addresses of these flows, of all at once, and blocks for up to half a second. Returns what is wrong with which of them. An answer
/// is only logged if one of the `running` flows has the address already, or if it may be that of a router that answers for all addresses (proxy ARP).
pub(crate) fn taken_addresses(
    flows: &[FlowConfig],
    running: &[FlowConfig],
) -> Vec<(usize, String)> {
    let mut asked = Vec::new();
    for (at, flow) in flows.iter().enumerate() {
        // What fails here is said when the flow is set up.
        let FlowKind::Nat(nat) = &flow.kind else { continue };
        let Ok(cache) = interfaces(nat.table) else { continue };
        let Ok(public) = PublicSide::of(nat, &cache) else { continue };
        let outside = cache.interface(&nat.outside);
        let Some(outside) = outside.filter(|one| !public.is_own && !one.is_headerless) else {
            continue;
        };
        if outside.is_up {
            asked.push((at, nat, public));
        } else {
            log_unknown(flow, (nat, public), "the interface is down or has no carrier");
        }
    }
    // A running flow may answer by another interface on the same link.
    let names = running.iter().flat_map(|one| one.kind.interfaces());
    let known = if asked.is_empty() { None } else { interfaces(TABLE_NONE).ok() };
    let mac = |name| known.as_ref()?.interface(name)?.mac.map(MacAddress);
    let own: Vec<_> = names.filter_map(mac).collect();
    let questions: Vec<_> =
        asked.iter().map(|(_, nat, public)| (nat.outside.as_str(), public.address)).collect();
    let mut taken = Vec::new();
    for ((at, nat, public), holder) in asked.into_iter().zip(holders(&questions, &own)) {
        let flow = &flows[at];
        let has_it = |one: &FlowConfig| match &one.kind {
            FlowKind::Nat(old) => (old.address, &old.outside) == (nat.address, &nat.outside),
            _ => false,
        };
        let may_refuse = public.reach == AddressReach::Outside && !running.iter().any(has_it);
        match holder {
            Ok(None) => {}
            Err(because) => log_unknown(flow, (nat, public), &because),
            Ok(Some(holder)) => {
                let refusal = refusal(flow, (nat, public.address), (holder, may_refuse));
                taken.extend(refusal.map(|problem| (at, problem)));
            }
        }
    }
    taken
}

/// Returns why a flow may not begin beside another host, or logs that host.
fn refusal(
    flow: &FlowConfig,
    (nat, address): (&Nat, Ipv4Addr),
    (holder, may_refuse): (Holder, bool),
) -> Option<String> {
    let (name, outside) = (&flow.name, &nat.outside);
    match holder {
        Holder::Has(mac) if may_refuse => {
            return Some(format!(
                "another host at `{outside}` has {address} (its Ethernet address is {mac}), and both would answer for it: stop that host or take the \
                 address from it, and try again; or give `address` another one of its network, or leave it out to take that of `{outside}`"
            ));
        }
        Holder::GoesFirst(mac) if may_refuse => {
            return Some(format!(
                "another host at `{outside}` is about to take {address} (its Ethernet address is {mac}, and of two that ask at once, the higher one gives \
                 way), and both would answer for it: stop that host, and try again; or give `address` another one of its network"
            ));
        }
        Holder::Has(mac) => log(format!(
            "flow `{name}`: another host at `{outside}` answers for {address} (its Ethernet address is {mac}): unless it is a router that answers for all \
             addresses (proxy ARP), stop it, or give `address` another one"
        )),
        Holder::GoesFirst(mac) | Holder::GoesSecond(mac) => log(format!(
            "flow `{name}`: another host at `{outside}` wants {address}, too (its Ethernet address is {mac}): unless it gives way, stop it, or give `address` \
             another one"
        )),
    }
    None
}

fn log_unknown(flow: &FlowConfig, (nat, public): (&Nat, PublicSide), because: &str) {
    let (name, outside, address) = (&flow.name, &nat.outside, public.address);
    log(format!(
        "flow `{name}`: whether another host at {outside} has the address {address} is unknown: {because}"
    ));
}

/// Interfaces that belong to this process, as long as it lives. The name of an abstract socket is one of its network
/// namespace, and is free again when the process has ended, however that was.
#[derive(Debug)]
pub(super) struct Claims(#[expect(dead_code, reason = "held, and not read")] Vec<UnixDatagram>);

/// How often, and for how long, to wait for an interface that another instance has claimed: a second in all.
const CLAIM_WAITS: u32 = 20;
const CLAIM_WAIT: Duration = Duration::from_millis(50);

/// Claims the interfaces: frames that two instances take would be sent twice.
pub(super) fn claim(names: &[String]) -> Result<Claims, FlowError> {
    let mut waits = CLAIM_WAITS;
    let claim = |name: &String| {
        let address = SocketAddr::from_abstract_name(format!("vigie-forward/interface/{name}"));
        let bind = || UnixDatagram::bind_addr(address.as_ref().map_err(|error| error.kind())?);
        let mut bound = bind();
        // Perhaps by an instance that was killed, whose rings and programs the kernel is taking down.
        while waits > 0
            && bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        {
            waits -= 1;
            thread::park_timeout(CLAIM_WAIT);
            bound = bind();
        }
        match bound {
            Ok(socket) => Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(FlowError::InvalidSetting(format!(
                    "another vigie-forward forwards by interface `{name}` already, so every packet would be sent twice: \
                     end that one, or name the interface there"
                )))
            }
            Err(source) => {
                Err(FlowError::Io { what: format!("claiming interface `{name}`"), source })
            }
        }
    };
    names.iter().map(claim).collect::<Result<_, _>>().map(Claims)
}

/// Says what to do about interfaces that merge packets, if there are any.
pub(super) fn merging(names: &[String]) -> Option<String> {
    // Drivers without flags merge nothing.
    let merge: Vec<_> = names.iter().filter(|name| merges_packets(name).unwrap_or(false)).collect();
    let off: Vec<_> = merge.iter().map(|name| format!("ethtool -K {name} lro off")).collect();
    let at: Vec<_> = merge.iter().map(|name| format!("`{name}`")).collect();
    (!merge.is_empty()).then(|| {
        format!(
            "received packets are merged at {} (LRO), and cannot be taken apart again: turn that off (`{}`; GRO may stay on)",
            at.join(" and "),
            off.join("; ")
        )
    })
}

/// The interfaces from which the kernel forwards, too, and the command that turns that off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KernelForwarding {
    pub(super) from: String,
    pub(super) off: String,
}

/// Returns the interfaces from which the kernel forwards, if there are any.
pub(super) fn kernel_forwarding(names: &[String]) -> Option<KernelForwarding> {
    let (mut from, mut off) = (Vec::new(), String::new());
    for name in names {
        let settings = forwarding_settings(name);
        if !settings.is_empty() {
            from.push(format!("`{name}`"));
        }
        off.extend(settings.iter().map(|setting| format!(" {setting}=0")));
    }
    let off = format!("`sysctl -w{off}`");
    (!from.is_empty()).then(|| KernelForwarding { from: from.join(" and "), off })
}

/// Returns the settings by which the kernel forwards from an interface.
fn forwarding_settings(name: &str) -> Vec<String> {
    // The kernel writes dots in an interface's name as slashes in names of settings; its files keep the dots.
    let is_on = |version: &str, what: &str| {
        let file = format!("/proc/sys/net/{version}/conf/{what}/forwarding");
        fs::read_to_string(file).is_ok_and(|text| text.trim() != "0")
    };
    let forwards =
        |version: &&str| is_on(version, name) && (*version == "ipv4" || is_on(version, "all"));
    let versions = ["ipv4", "ipv6"].into_iter().filter(forwards);
    let name = name.replace('.', "/");
    versions.map(|version| format!("net.{version}.conf.{name}.forwarding")).collect()
}
