//! What several settings say together must make sense.

use std::collections::BTreeMap;

use super::{
    Config, ConfigError, Endpoint, Flow, FrameMode, Frames, Kind, Nat, Relay, RelayMode,
    file::is_connection_count, values::is_v4,
};

/// The kernel's names of interfaces are no longer, in bytes.
const INTERFACE_NAME_BYTES_MAX: usize = 15;
/// Half of a relay's memory is for messages that are stored; one must fit, with what is read beyond it.
const STORED_BYTES_MAX: u64 = 127 << 20;
/// What `stats` and the log show in one column.
const FLOW_NAME_BYTES_MAX: usize = 32;

/// Checks all flows by themselves and against each other. `file` is where they come from, for the message.
pub(crate) fn check(file: &str, config: &Config) -> Result<(), ConfigError> {
    let mut seen = Seen::default();
    for flow in &config.flows {
        let alone = alone(flow).and_then(|()| with_process(flow, config));
        alone.and_then(|()| seen.add(flow)).map_err(|problem| ConfigError::Flow {
            file: file.to_owned(),
            line: flow.line,
            flow: flow.name.clone(),
            problem,
        })?;
    }
    Ok(())
}

/// What flows have that can be had once.
#[derive(Default)]
struct Seen<'a> {
    names: BTreeMap<&'a str, ()>,
    interfaces: BTreeMap<&'a str, &'a str>,
    listeners: BTreeMap<&'a Endpoint, &'a str>,
    /// The kernel's table of routes that is followed, and for whom.
    table: Option<(u32, &'a str)>,
}

impl<'a> Seen<'a> {
    fn add(&mut self, flow: &'a Flow) -> Result<(), String> {
        if self.names.insert(&flow.name, ()).is_some() {
            return Err(format!("there is another flow `{}`: give it another name", flow.name));
        }
        for interface in flow.kind.interfaces() {
            match self.interfaces.insert(interface, &flow.name) {
                Some(other) if other == flow.name => {
                    return Err(format!(
                        "interface `{interface}` is named twice: it needs another"
                    ));
                }
                Some(other) => {
                    return Err(format!(
                        "interface `{interface}` belongs to flow `{other}` already, and a frame goes one way: \
                         name it in one flow"
                    ));
                }
                None => {}
            }
        }
        let table = match &flow.kind {
            Kind::L3(l3) => Some(l3.table),
            Kind::Nat(nat) => Some(nat.table),
            Kind::L2(_) | Kind::Relay(_) => None,
        };
        match (table, self.table) {
            (Some(own), Some((table, other))) if own != table => {
                return Err(format!(
                    "it routes by table {own}, and flow `{other}` by {table}: a process follows one; start another one"
                ));
            }
            (Some(own), None) => self.table = Some((own, &flow.name)),
            _ => {}
        }
        if let Kind::Relay(relay) = &flow.kind
            && !has_port_zero(&relay.listen)
            && let Some(other) = self.listeners.insert(&relay.listen, &flow.name)
        {
            return Err(format!("flow `{other}` has the same `listen`: choose another port"));
        }
        Ok(())
    }
}

/// Any port that is free: two flows get two.
fn has_port_zero(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Tcp(address) | Endpoint::Udp(address) => address.port() == 0,
        Endpoint::Unix(_) => false,
    }
}

/// Checks one flow by itself.
fn alone(flow: &Flow) -> Result<(), String> {
    let is_name = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        (1..=FLOW_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
    };
    if !is_name(&flow.name) {
        return Err(format!(
            "the name must have 1 to {FLOW_NAME_BYTES_MAX} letters, digits, `-`, `_` or `.`"
        ));
    }
    for interface in flow.kind.interfaces() {
        if interface.is_empty() || interface.len() > INTERFACE_NAME_BYTES_MAX {
            return Err(format!(
                "`{interface}` is no name of an interface: they have 1 to {INTERFACE_NAME_BYTES_MAX} bytes \
                 (`ip link` lists them)"
            ));
        }
    }
    flow.kind.frames().map_or(Ok(()), migration)?;
    match &flow.kind {
        Kind::Relay(relay) => relayed(relay),
        Kind::L3(l3) if l3.interfaces.is_empty() => {
            Err("`interfaces` names none: it needs at least one interface".to_owned())
        }
        Kind::Nat(nat) => translated(nat),
        Kind::L2(_) | Kind::L3(_) => Ok(()),
    }
}

/// Checks what a flow wants against what the process is told.
fn with_process(flow: &Flow, config: &Config) -> Result<(), String> {
    let migrates = flow.kind.frames().and_then(Frames::migration).is_some();
    if migrates && config.process.drop_all_rights {
        return Err(
            "it is to move to the network interface, which takes the rights that drop_all_rights \
                    gives up: remove one of them"
                .to_owned(),
        );
    }
    Ok(())
}

fn migration(frames: &Frames) -> Result<(), String> {
    match frames.migration() {
        Some(one) if one.to_host_below >= one.to_nic_above => Err(format!(
            "a flow that moves to the interface above {} packets per second and back below {} would never rest: \
             to_host_below must be less than to_nic_above",
            one.to_nic_above, one.to_host_below
        )),
        Some(one) if one.hold.is_zero() => {
            Err("`hold` is 0, and the load is never steady: 1s is short".to_owned())
        }
        _ => Ok(()),
    }
}

fn relayed(relay: &Relay) -> Result<(), String> {
    let is_udp = |endpoint: &Endpoint| matches!(endpoint, Endpoint::Udp(_));
    if relay.to.is_empty() {
        return Err("`to` names nobody: it needs at least one endpoint".to_owned());
    }
    for to in &relay.to {
        if is_udp(&relay.listen) != is_udp(to) {
            return Err(format!(
                "{} and {to} do not fit: datagrams go to udp://, streams to tcp:// or unix:",
                relay.listen
            ));
        }
        if has_port_zero(to) {
            return Err(format!("`to` is {to}, and nobody listens at port 0"));
        }
    }
    if relay.to.contains(&relay.listen) {
        return Err(format!("{} would relay to itself: give `to` another endpoint", relay.listen));
    }
    if is_udp(&relay.listen) {
        if relay.to.len() > 1 {
            return Err(
                "datagrams go to one endpoint: nobody answers whether it is there".to_owned()
            );
        }
        if relay.proxy_send || !relay.proxy_from.is_empty() || relay.framed.is_some() {
            return Err("`proxy_send`, `proxy_from` and `framed` are for streams".to_owned());
        }
        if !matches!(relay.mode, RelayMode::Auto | RelayMode::Copy) {
            return Err("datagrams are copied: `mode` must be auto or copy".to_owned());
        }
    }
    if relay.framed.is_none() && relay.frame_mode != FrameMode::default() {
        return Err(
            "`frame_mode` is for messages: say by `framed` how their length is written".to_owned()
        );
    }
    if relay.framed.is_some()
        && relay.frame_mode != FrameMode::CutThrough
        && relay.message_max > STORED_BYTES_MAX
    {
        return Err(format!(
            "`message_max` is {} bytes, and messages that may be stored have at most {STORED_BYTES_MAX}: lower it, or \
             let all be cut through (`frame_mode`)",
            relay.message_max
        ));
    }
    if relay.framed.is_some() && relay.mode != RelayMode::Auto {
        return Err(
            "`mode` is for bytes, and this relay is `framed`: remove one of them".to_owned()
        );
    }
    if relay.idle.0.is_zero() || relay.connect.0.is_zero() {
        return Err("`idle` and `connect` must be more than 0: nothing would ever pass".to_owned());
    }
    if !is_connection_count(relay.connections) {
        return Err("`connections` must be 1 to 1000000".to_owned());
    }
    Ok(())
}

fn translated(nat: &Nat) -> Result<(), String> {
    if nat.inside.is_empty() {
        return Err("`inside` names none: it needs at least one interface".to_owned());
    }
    if nat.address.is_unspecified() || nat.address.is_multicast() || nat.address.is_broadcast() {
        return Err(format!("{} is nobody's address: give the one of `outside`", nat.address));
    }
    if nat.idle.0.is_zero() {
        return Err("`idle` must be more than 0: no answer would ever come back".to_owned());
    }
    let mut taken = BTreeMap::new();
    for one in &nat.publish {
        if !is_v4(&one.to) {
            return Err(format!(
                "{} is not IPv4, and addresses are translated in IPv4 only",
                one.to
            ));
        }
        if taken.insert((one.transport as u8, one.port), ()).is_some() {
            return Err(format!("port {} is published twice", one.port));
        }
        if (nat.ports.first..=nat.ports.last).contains(&one.port) {
            return Err(format!(
                "port {} is published, and also one of those that are lent ({}): take it out there",
                one.port, nat.ports
            ));
        }
    }
    Ok(())
}
