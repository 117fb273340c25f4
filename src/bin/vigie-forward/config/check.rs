//! Checks that several settings fit together.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use super::{
    Check, Config, ConfigError, EndpointUri, FlowConfig, FlowKind, FrameMode, Frames, Inside,
    LogChoice, LogTarget, Nat, PathChoice, Ports, Publish, Relay, RelayMode, tls, values::is_v4,
};

/// The interface for packets of a host to itself.
const LOOPBACK: &str = "lo";
/// The longest interface name of the kernel, in bytes.
const INTERFACE_NAME_BYTES_MAX: usize = 15;
/// The longest path of a Unix socket, in bytes.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Half of a relay's memory is for stored messages; one must fit, plus the bytes read beyond it.
const STORED_BYTES_MAX: u64 = 127 << 20;
/// The width of the column in `stats` and the log.
const FLOW_NAME_BYTES_MAX: usize = 32;

/// Checks each flow alone, and all flows against each other. `file` is their origin, for the message.
pub(crate) fn check(file: &str, config: &Config) -> Result<(), ConfigError> {
    let mut seen = UniqueResources::default();
    if config.process.takeover.is_some() && config.process.stats_socket.is_some() {
        return Err(ConfigError::Process {
            file: file.to_owned(),
            problem: "`takeover` is the stats socket, too: remove `stats_socket`".to_owned(),
        });
    }
    if config.process.log_file != LogTarget::Stdout && !config.has_log() {
        return Err(ConfigError::Process {
            file: file.to_owned(),
            problem: "`log_file` has no lines: give a relay or nat `log = \"each\"`, or remove `log_file`"
                .to_owned(),
        });
    }
    if let LogTarget::File(path) = &config.process.log_file
        && path.is_dir()
    {
        return Err(ConfigError::Process {
            file: file.to_owned(),
            problem: format!(
                "`log_file` is {}, which is a folder: give the path of a file, as in {}",
                path.display(),
                path.join("forward.log").display()
            ),
        });
    }
    if let Some(metrics) = &config.process.metrics {
        seen.listeners.insert(metrics, "metrics");
    }
    for flow in &config.flows {
        let alone = alone(flow).and_then(|()| with_process(flow, config));
        alone.and_then(|()| seen.add(flow)).map_err(|problem| ConfigError::Flow {
            file: file.to_owned(),
            line: flow.line,
            flow: flow.name.clone(),
            problem,
        })?;
    }
    circles(file, config)
}

/// Checks that no connection comes back to the relay that accepted it, as far as the addresses tell: by a target that is the
/// relay's own, or by other relays. Any address of the host that is not a loopback one is taken for another host's.
fn circles(file: &str, config: &Config) -> Result<(), ConfigError> {
    let mut relays = Vec::new();
    for flow in &config.flows {
        if let FlowKind::Relay(relay) = &flow.kind {
            relays.push((flow, relay));
        }
    }
    for (index, (flow, _)) in relays.iter().enumerate() {
        let mut passed = vec![index];
        let mut next = 0;
        while let Some(&from) = passed.get(next) {
            next += 1;
            for (at, (_, to)) in relays.iter().enumerate() {
                if !all_targets(relays[from].1).any(|target| arrives_at(target, &to.listen)) {
                    continue;
                }
                if at == index {
                    let by = if from == index {
                        String::new()
                    } else {
                        format!(" by flow `{}`", relays[from].0.name)
                    };
                    let problem = format!(
                        "{} would relay to itself{by}, and each connection would come back without end: give \
                         `to` another endpoint",
                        to.listen
                    );
                    let (file, line, flow) = (file.to_owned(), flow.line, flow.name.clone());
                    return Err(ConfigError::Flow { file, line, flow, problem });
                }
                if !passed.contains(&at) {
                    passed.push(at);
                }
            }
        }
    }
    Ok(())
}

/// Returns whether what is sent to `target` arrives at the listener of this host.
fn arrives_at(target: &EndpointUri, listen: &EndpointUri) -> bool {
    let ((EndpointUri::Tcp(to), EndpointUri::Tcp(own))
    | (EndpointUri::Udp(to), EndpointUri::Udp(own))) = (target, listen)
    else {
        return target == listen;
    };
    let is_own = to.ip().is_loopback() || to.ip().is_unspecified();
    to.port() == own.port()
        && (to.ip() == own.ip()
            || (is_own && (own.ip().is_unspecified() && (own.is_ipv6() || to.is_ipv4()))))
}

/// Resources that only one flow can have.
#[derive(Default)]
struct UniqueResources<'a> {
    names: BTreeMap<&'a str, ()>,
    interfaces: BTreeMap<&'a str, &'a str>,
    listeners: BTreeMap<&'a EndpointUri, &'a str>,
    states: BTreeMap<&'a Path, &'a str>,
}

impl<'a> UniqueResources<'a> {
    fn add(&mut self, flow: &'a FlowConfig) -> Result<(), String> {
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

        if let FlowKind::Nat(Nat { state: Some(state), .. }) = &flow.kind
            && let Some(other) = self.states.insert(state, &flow.name)
        {
            return Err(format!(
                "flow `{other}` keeps its translations in {}, too, and each would replace those of the other: give `state` \
                 another file",
                state.display()
            ));
        }

        let FlowKind::Relay(relay) = &flow.kind else { return Ok(()) };
        for (listen, other) in &self.listeners {
            if **listen == relay.listen && !has_port_zero(listen) {
                return Err(format!("`{other}` has the same `listen`: choose another port"));
            }
            if overlaps(listen, &relay.listen) {
                return Err(format!(
                    "its `listen`, {}, overlaps that of `{other}`, {listen}, and only one of them can have the \
                     port: choose another one",
                    relay.listen
                ));
            }
        }
        self.listeners.insert(&relay.listen, &flow.name);
        Ok(())
    }
}

/// Returns whether two listeners cannot exist at once: the same port, and an address that includes the other.
pub(crate) fn overlaps(one: &EndpointUri, other: &EndpointUri) -> bool {
    let ((EndpointUri::Tcp(one), EndpointUri::Tcp(other))
    | (EndpointUri::Udp(one), EndpointUri::Udp(other))) = (one, other)
    else {
        return false;
    };
    // [::] has the port in both versions of IP.
    let includes = |one: &SocketAddr, other: &SocketAddr| {
        one.ip().is_unspecified() && (one.is_ipv6() || other.is_ipv4())
    };
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || includes(one, other) || includes(other, one))
}

/// Any free port: two flows get different ones.
pub(crate) const fn has_port_zero(endpoint: &EndpointUri) -> bool {
    match endpoint {
        EndpointUri::Tcp(address) | EndpointUri::Udp(address) => address.port() == 0,
        EndpointUri::Unix(_) | EndpointUri::TcpName(_) | EndpointUri::UdpName(_) => false,
    }
}

/// Checks the length of the path of a Unix socket.
pub(super) fn socket_path(path: &Path) -> Result<(), String> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        return Err(format!(
            "the path {} has {length} bytes, and that of a Unix socket may have {SOCKET_PATH_BYTES_MAX}: take a shorter one",
            path.display()
        ));
    }
    Ok(())
}

/// Checks one flow alone.
fn alone(flow: &FlowConfig) -> Result<(), String> {
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
        if interface == LOOPBACK {
            return Err(format!(
                "`{LOOPBACK}` is the loopback interface: its packets are this host's own, and lead nowhere else"
            ));
        }
        let is_wrong = |letter: char| letter.is_whitespace() || "/:".contains(letter);
        if !(1..=INTERFACE_NAME_BYTES_MAX).contains(&interface.len())
            || interface.contains(is_wrong)
            || [".", ".."].contains(&interface)
        {
            return Err(format!(
                "`{interface}` cannot be the name of an interface: names have 1 to {INTERFACE_NAME_BYTES_MAX} bytes, and no spaces, \
                 `/` or `:` (`ip link` lists them)"
            ));
        }
    }

    let routes = matches!(flow.kind, FlowKind::L3(_) | FlowKind::Nat(_));
    if routes && flow.kind.frames().is_some_and(|frames| frames.path == PathChoice::AfXdp) {
        return Err(
            "`path` cannot be af-xdp, which takes all frames from the kernel, including ARP, and so finds no neighbours: it is for l2 \
             only"
                .to_owned(),
        );
    }

    flow.kind.frames().map_or(Ok(()), migration)?;
    match &flow.kind {
        FlowKind::Relay(relay) => relayed(relay),
        FlowKind::L3(l3) if l3.interfaces.len() < 2 => Err(
            "it routes between networks, so it needs at least two interfaces in `interfaces`: by one alone, packets could \
             only go back to the link from which they came"
                .to_owned(),
        ),
        FlowKind::Nat(nat) => translated(nat),
        FlowKind::L2(_) | FlowKind::L3(_) => Ok(()),
    }
}

/// Checks a flow against the settings of the process.
fn with_process(flow: &FlowConfig, config: &Config) -> Result<(), String> {
    if config.process.takeover.is_some() && flow.kind.frames().is_some() {
        return Err(
            "its interfaces pass to no other process, which `takeover` asks for: it is for relays"
                .to_owned(),
        );
    }
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
            Err("`hold` must be more than 0, since the load always varies: 1s is short".to_owned())
        }
        _ => Ok(()),
    }
}

/// Checks what a relay does to know its targets.
fn known_targets(relay: &Relay) -> Result<(), String> {
    if let Some(Check { every, timeout, rise, fall }) = &relay.check {
        if timeout.0.is_zero() || timeout > every {
            return Err("`timeout` of `check` must be more than 0, and at most `every`".to_owned());
        }
        if *rise == 0 || *fall == 0 {
            return Err("`rise` and `fall` of `check` must be at least 1".to_owned());
        }
    }

    if relay.resolve.0.is_zero() {
        return Err("`resolve` must be more than 0: 30s is usual".to_owned());
    }
    for (at, to) in relay.to.iter().enumerate() {
        if relay.to[..at].iter().any(|other| other.url == to.url) {
            return Err(format!("`to` has {} twice: give it a `weight`", to.url));
        }
    }
    Ok(())
}

/// The targets of a relay and of its routes.
fn all_targets(relay: &Relay) -> impl Iterator<Item = &EndpointUri> {
    let of_routes = relay.route.iter().flat_map(|route| &route.to);
    relay.to.iter().chain(of_routes).map(|to| &to.url)
}

fn relayed(relay: &Relay) -> Result<(), String> {
    let is_udp =
        |endpoint: &EndpointUri| matches!(endpoint, EndpointUri::Udp(_) | EndpointUri::UdpName(_));
    if relay.to.is_empty()
        && (relay.tls.is_on() || relay.route.iter().all(|route| route.to.is_empty()))
    {
        return Err("`to` is empty: it needs at least one endpoint".to_owned());
    }

    if relay.log == LogChoice::Sources {
        return Err("`log` of a relay is \"each\": `sources` is for translations".to_owned());
    }

    for endpoint in all_targets(relay).chain([&relay.listen]) {
        if let EndpointUri::Unix(path) = endpoint {
            socket_path(path)?;
        }
    }

    for to in all_targets(relay) {
        if is_udp(&relay.listen) != is_udp(to) {
            return Err(format!(
                "{} and {to} do not fit: datagrams go to udp://, streams to tcp:// or unix:",
                relay.listen
            ));
        }
        if has_port_zero(to) {
            return Err(format!("`to` is {to}, but nothing can listen on port 0"));
        }
    }

    known_targets(relay)?;
    if is_udp(&relay.listen) {
        without_streams(relay)?;
    }

    tls::check(relay)?;

    if relay.framed.is_none() && relay.frame_mode != FrameMode::default() {
        return Err(
            "`frame_mode` is for messages: set `framed` to the format of their length".to_owned()
        );
    }

    if relay.framed.is_some()
        && relay.frame_mode != FrameMode::CutThrough
        && relay.message_max > STORED_BYTES_MAX
    {
        return Err(format!(
            "`message_max` is {} bytes, but messages that may be stored have at most {STORED_BYTES_MAX}: lower it, or \
             let all be cut through (`frame_mode`)",
            relay.message_max
        ));
    }

    if relay.framed.is_some() && relay.mode != RelayMode::Auto {
        return Err(
            "`mode` is for bytes, and this relay is `framed`: remove one of them".to_owned()
        );
    }

    limits(relay)
}

/// Checks that a relay of datagrams has no settings of streams.
fn without_streams(relay: &Relay) -> Result<(), String> {
    if relay.check.is_some() {
        return Err(
            "`check` is for streams: only an application can tell whether it gets datagrams"
                .to_owned(),
        );
    }
    if relay.retries.is_some() {
        return Err("`retries` is for streams: a session of datagrams tries one target".to_owned());
    }
    if relay.proxy_send || !relay.proxy_from.is_empty() || relay.framed.is_some() {
        return Err("`proxy_send`, `proxy_from` and `framed` are for streams".to_owned());
    }
    if tls::is_used(relay) {
        return Err("`tls`, `to_tls` and `route` are for streams".to_owned());
    }
    if !matches!(relay.mode, RelayMode::Auto | RelayMode::Copy) {
        return Err("datagrams are copied: `mode` must be auto or copy".to_owned());
    }
    Ok(())
}

fn limits(relay: &Relay) -> Result<(), String> {
    if relay.idle.0.is_zero() || relay.connect.0.is_zero() {
        return Err("`idle` and `connect` must be more than 0: nothing would ever pass".to_owned());
    }
    if relay.per_source_max == Some(0) {
        return Err("`per_source_max` must be at least 1".to_owned());
    }

    Ok(())
}

fn translated(nat: &Nat) -> Result<(), String> {
    if nat.inside.is_empty() {
        return Err("`inside` is empty: it needs at least one interface".to_owned());
    }
    let is_no_host = |address: &Ipv4Addr| {
        address.is_unspecified()
            || address.is_multicast()
            || address.is_broadcast()
            || address.is_loopback()
    };
    if let Some(address) = nat.address.filter(is_no_host) {
        return Err(format!(
            "{address} cannot be the address of a host: give the one of `outside`"
        ));
    }
    if !(1..=100).contains(&nat.host_share) {
        return Err("`host_share` must be 1 to 100 percent".to_owned());
    }
    if nat.idle.0.is_zero() {
        return Err("`idle` must be more than 0: no answer would ever come back".to_owned());
    }

    ports_of_hosts(nat)?;

    let mut taken = BTreeMap::new();
    for one in &nat.publish {
        if !is_v4(&one.to) {
            return Err(format!(
                "{} is not IPv4, and addresses are translated in IPv4 only",
                one.to
            ));
        }
        if let Some(address) = nat.address {
            published_elsewhere(one, address)?;
        }
        if taken.insert((one.transport as u8, one.port), ()).is_some() {
            return Err(format!("port {} is published twice", one.port));
        }
        if let Some(ports) = nat.ports {
            published_outside(one, ports)?;
        }
    }

    Ok(())
}

/// Checks that each inside host has its ports, if hosts have such.
fn ports_of_hosts(nat: &Nat) -> Result<(), String> {
    let (Some(size), Some(blocks)) = (nat.ports_per_host, nat.port_blocks()) else { return Ok(()) };
    let (Some(ports), false) = (nat.ports, nat.from.is_empty()) else {
        return Err(
            "`ports_per_host` needs `ports` and `from`: a host has its ports by its place in these, which must not change with the \
             kernel's settings"
                .to_owned(),
        );
    };
    for (at, one) in nat.from.iter().enumerate() {
        let overlaps = |other: &&Inside| {
            one.0.contains(other.0.address()) || other.0.contains(one.0.address())
        };
        if let Some(other) = nat.from[..at].iter().find(overlaps) {
            return Err(format!(
                "{} and {} of `from` overlap, so that a host would have two places: remove one of them",
                other.0, one.0
            ));
        }
    }
    let (hosts, count) = (blocks.hosts(), blocks.count((ports.first, ports.last)));
    if hosts > u128::try_from(count).unwrap_or(u128::MAX) {
        let all = usize::from(ports.last - ports.first) + 1;
        let most = u128::try_from(all).unwrap_or(u128::MAX) / hosts;
        let lower = match most {
            0 => String::new(),
            most => format!("lower `ports_per_host` to at most {most}, or "),
        };
        return Err(format!(
            "`from` has {hosts} addresses with {size} ports each (`ports_per_host`), which takes {} ports, but `ports` ({ports}) has {all}: \
             {lower}widen `ports`, or give `from` at most {count} addresses",
            hosts.saturating_mul(u128::from(size.get()))
        ));
    }
    Ok(())
}

/// Checks a published port against the public address.
pub(crate) fn published_elsewhere(one: &Publish, address: Ipv4Addr) -> Result<(), String> {
    if one.to.ip() == address {
        return Err(format!("port {} is published to the public address itself", one.port));
    }
    Ok(())
}

/// Checks a published port against the ports of translations.
pub(crate) fn published_outside(one: &Publish, ports: Ports) -> Result<(), String> {
    if (ports.first..=ports.last).contains(&one.port) {
        return Err(format!(
            "port {} is published, but also in the range `ports` ({ports}): exclude it there",
            one.port
        ));
    }
    Ok(())
}
