//! Checks that several settings fit together.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use super::{
    Check, Config, ConfigError, EndpointUri, FlowConfig, FlowKind, FrameMode, Frames, Inside,
    LogChoice, LogTarget, Nat, Origin, PathChoice, Ports, Publish, Relay, RelayMode, TargetUri,
    mistakes::Mistakes, tls,
};

/// The interface for packets of a host to itself.
const LOOPBACK: &str = "lo";
/// The longest interface name of the kernel, in bytes.
const INTERFACE_NAME_BYTES_MAX: usize = 15;
/// The longest path of a Unix socket, in bytes.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The shortest time between two questions for the name of a target.
const RESOLVE_MIN: Duration = Duration::from_secs(1);
/// The shortest time between two checks of a target.
const CHECK_EVERY_MIN: Duration = Duration::from_millis(10);
/// Half of a relay's memory is for stored messages; one must fit, plus the bytes read beyond it.
const STORED_BYTES_MAX: u64 = 127 << 20;
/// The width of the column in `stats` and the log.
const FLOW_NAME_BYTES_MAX: usize = 32;

/// What is found in the table of one flow, or of the process.
pub(super) struct Findings<'a> {
    origin: &'a Origin,
    mistakes: &'a mut Mistakes,
}

impl Findings<'_> {
    /// Adds what is wrong with the first of these keys because of the others.
    pub(super) fn add(&mut self, keys: &[&str], problem: impl AsRef<str>) {
        self.mistakes.add(self.origin, keys, problem);
    }

    pub(super) fn check(&mut self, is_right: bool, keys: &[&str], problem: impl AsRef<str>) {
        if !is_right {
            self.add(keys, problem);
        }
    }
}

/// Checks the configuration of a command line.
pub(crate) fn check_command_line(config: &Config) -> Result<(), ConfigError> {
    let mut mistakes = Mistakes::default();
    check(config, &mut mistakes);
    mistakes.into_result().map_err(ConfigError::Mistakes)
}

/// Checks each flow alone, and all flows against each other.
pub(super) fn check(config: &Config, mistakes: &mut Mistakes) {
    // A flow that could not be read may have lines.
    let is_log_known = mistakes.is_empty();
    process(config, is_log_known, &mut Findings { origin: &config.origin, mistakes });
    let mut seen = UniqueResources::default();
    if let Some(metrics) = &config.process.metrics {
        seen.listen(metrics, "metrics", &mut Findings { origin: &config.origin, mistakes });
    }
    for flow in &config.flows {
        if mistakes.is_full() {
            return;
        }
        let mut found = Findings { origin: &flow.origin, mistakes };
        alone(flow, &mut found);
        with_process(flow, config, &mut found);
        seen.add(flow, &mut found);
    }
    circles(config, mistakes);
}

fn process(config: &Config, is_log_known: bool, found: &mut Findings<'_>) {
    let process = &config.process;
    found.check(
        process.takeover.is_none() || process.stats_socket.is_none(),
        &["stats_socket", "takeover"],
        "`takeover` is the stats socket, too: remove `stats_socket`",
    );
    found.check(
        process.log_file == LogTarget::Stdout || config.has_log() || !is_log_known,
        &["log_file"],
        "`log_file` has no lines: give a relay or nat `log = \"each\"`, or remove `log_file`",
    );
    if let LogTarget::File(path) = &process.log_file {
        no_folder("log_file", path, "forward.log", found);
    }
}

fn no_folder(key: &str, path: &Path, example: &str, found: &mut Findings<'_>) {
    if path.is_dir() {
        let (folder, example) = (path.display(), path.join(example));
        let example = example.display();
        found.add(
            &[key],
            format!(
                "`{key}` is {folder}, which is a folder: give the path of a file, as in {example}"
            ),
        );
    }
    let is_empty = path.as_os_str().is_empty();
    found.check(
        !is_empty,
        &[key],
        format!("`{key}` is empty: give the path of a file, as in {example}"),
    );
}

/// Checks that no connection comes back to the relay that accepted it, as far as the addresses tell: by a target that is the
/// relay's own, or by other relays. Any address of the host that is not a loopback one is taken for another host's.
fn circles(config: &Config, mistakes: &mut Mistakes) {
    let relays = config.flows.iter().filter_map(|flow| match &flow.kind {
        FlowKind::Relay(relay)
            if !flow.origin.is_wrong("listen") && !has_port_zero(&relay.listen) =>
        {
            Some((flow, &**relay))
        }
        _ => None,
    });
    let relays: Vec<_> = relays.collect();
    let listeners = relays.iter().enumerate();
    let listeners: BTreeMap<_, _> =
        listeners.map(|(index, (_, relay))| (canonical(&relay.listen), index)).collect();
    let hops = relays.iter().map(|(_, relay)| {
        let ends = all_targets(relay).flat_map(|(key, to)| {
            arrivals(&to.url).into_iter().map(move |listener| (key.clone(), listener))
        });
        ends.filter_map(|(key, end)| Some((key, *listeners.get(&end)?))).collect::<Vec<_>>()
    });
    let hops: Vec<_> = hops.collect();

    // Depth first: each hop is taken once.
    let (mut taken, mut is_on_way) = (vec![0; relays.len()], vec![false; relays.len()]);
    for first in 0..relays.len() {
        let mut way = vec![first];
        while let Some(&from) = way.last() {
            is_on_way[from] = true;
            let Some(&(_, to)) = hops[from].get(taken[from]) else {
                is_on_way[from] = false;
                way.pop();
                continue;
            };
            taken[from] += 1;
            if !is_on_way[to] {
                way.push(to);
                continue;
            }
            let (flow, Relay { listen, .. }) = relays[to];
            let key = &hops[to][taken[to] - 1].0;
            let by = if from == to {
                String::new()
            } else {
                format!(" by flow `{}`", relays[from].0.name)
            };
            let problem = format!(
                "{listen} would relay to itself{by}, and each connection would come back without end: give \
                 `to` another endpoint"
            );
            mistakes.add(&flow.origin, &[key], problem);
        }
    }
}

/// Returns the listeners of this host at which what is sent to `target` arrives, by the addresses alone, as a relay finds out when it starts.
fn arrivals(target: &EndpointUri) -> Vec<EndpointUri> {
    let own = canonical(target);
    let (EndpointUri::Tcp(to) | EndpointUri::Udp(to)) = own else { return vec![own] };
    // What is sent to no address goes to the loopback interface.
    let ip: IpAddr = match to.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let mut all = vec![ip];
    if ip.is_loopback() {
        if ip.is_ipv4() {
            all.push(Ipv4Addr::UNSPECIFIED.into());
        }
        all.push(Ipv6Addr::UNSPECIFIED.into());
    }
    let port = to.port();
    all.into_iter().map(|ip| with_address(&own, SocketAddr::new(ip, port))).collect()
}

/// Returns an endpoint with addresses of IPv4 that are written as ones of IPv6 as what they are.
fn canonical(endpoint: &EndpointUri) -> EndpointUri {
    match endpoint {
        EndpointUri::Tcp(at) | EndpointUri::Udp(at) => {
            with_address(endpoint, SocketAddr::new(at.ip().to_canonical(), at.port()))
        }
        other => other.clone(),
    }
}

const fn with_address(endpoint: &EndpointUri, address: SocketAddr) -> EndpointUri {
    match endpoint {
        EndpointUri::Udp(_) => EndpointUri::Udp(address),
        _ => EndpointUri::Tcp(address),
    }
}

/// A port, or the path of a Unix socket.
type PortOrPath<'a> = (u16, Option<&'a Path>);

/// Resources that only one flow can have.
#[derive(Default)]
struct UniqueResources<'a> {
    names: BTreeSet<&'a str>,
    interfaces: BTreeMap<&'a str, &'a str>,
    listeners: BTreeMap<PortOrPath<'a>, Vec<(&'a EndpointUri, &'a str)>>,
    states: BTreeMap<&'a Path, &'a str>,
}

impl<'a> UniqueResources<'a> {
    fn add(&mut self, flow: &'a FlowConfig, found: &mut Findings<'_>) {
        // A flow whose name cannot be read has a number.
        if !found.origin.is_wrong("name") && !self.names.insert(&flow.name) {
            let problem = format!("there is another flow `{}`: give it another name", flow.name);
            found.add(&["name"], problem);
        }

        for (key, interface) in flow.kind.keyed_interfaces() {
            if found.origin.is_wrong(&key) {
                continue;
            }
            match self.interfaces.insert(interface, &flow.name) {
                Some(other) if other == flow.name => found
                    .add(&[&key], format!("interface `{interface}` is named twice: it needs another")),
                Some(other) => found.add(
                    &[&key],
                    format!(
                        "interface `{interface}` belongs to flow `{other}` already, and a frame goes one way: \
                         name it in one flow"
                    ),
                ),
                None => {}
            }
        }

        if let FlowKind::Nat(Nat { state: Some(state), .. }) = &flow.kind
            && let Some(other) = self.states.insert(state, &flow.name)
        {
            let state = state.display();
            found.add(
                &["state"],
                format!(
                    "flow `{other}` keeps its translations in {state}, too, and each would replace those of the other: give \
                     `state` another file"
                ),
            );
        }

        if let FlowKind::Relay(relay) = &flow.kind
            && !found.origin.is_wrong("listen")
        {
            self.listen(&relay.listen, &flow.name, found);
        }
    }

    fn listen(&mut self, own: &'a EndpointUri, name: &'a str, found: &mut Findings<'_>) {
        let place = match own {
            EndpointUri::Unix(path) => (0, Some(path.as_path())),
            EndpointUri::Tcp(at) | EndpointUri::Udp(at) if at.port() > 0 => (at.port(), None),
            _ => return,
        };
        let listeners = self.listeners.entry(place).or_default();
        for (listen, other) in &*listeners {
            if *listen == own {
                return found.add(
                    &["listen"],
                    format!("`{other}` has the same `listen`: choose another port"),
                );
            }
            if overlaps(listen, own) {
                return found.add(
                    &["listen"],
                    format!(
                        "its `listen`, {own}, overlaps that of `{other}`, {listen}, and only one of them can have the \
                         port: choose another one"
                    ),
                );
            }
        }
        listeners.push((own, name));
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
fn alone(flow: &FlowConfig, found: &mut Findings<'_>) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=FLOW_NAME_BYTES_MAX).contains(&flow.name.len());
    found.check(
        is_name && flow.name.bytes().all(is_plain),
        &["name"],
        format!("the name must have 1 to {FLOW_NAME_BYTES_MAX} letters, digits, `-`, `_` or `.`"),
    );
    for (key, interface) in flow.kind.keyed_interfaces() {
        if let Err(problem) = interface_name(interface) {
            found.add(&[&key], problem);
        }
    }
    if let Some(frames) = flow.kind.frames() {
        frames_of(&flow.kind, frames, found);
    }
    match &flow.kind {
        FlowKind::Relay(relay) => relayed(relay, found),
        FlowKind::L3(l3) => found.check(
            l3.interfaces.len() >= 2,
            &["interfaces"],
            "it routes between networks, so it needs at least two interfaces in `interfaces`: by one alone, packets could \
             only go back to the link from which they came",
        ),
        FlowKind::Nat(nat) => translated(nat, found),
        FlowKind::L2(_) => {}
    }
}

fn interface_name(name: &str) -> Result<(), String> {
    if name == LOOPBACK {
        return Err(format!(
            "`{LOOPBACK}` is the loopback interface: its packets are this host's own, and lead nowhere else"
        ));
    }
    let is_wrong = |letter: char| letter.is_whitespace() || "/:".contains(letter);
    if !(1..=INTERFACE_NAME_BYTES_MAX).contains(&name.len())
        || name.contains(is_wrong)
        || [".", ".."].contains(&name)
    {
        return Err(format!(
            "`{name}` cannot be the name of an interface: names have 1 to {INTERFACE_NAME_BYTES_MAX} bytes, and no spaces, \
             `/` or `:` (`ip link` lists them)"
        ));
    }
    Ok(())
}

/// Checks a flow against the settings of the process.
fn with_process(flow: &FlowConfig, config: &Config, found: &mut Findings<'_>) {
    found.check(
        config.process.takeover.is_none() || flow.kind.frames().is_none(),
        &[],
        "its interfaces pass to no other process, which `takeover` asks for: it is for relays",
    );
    let migrates = flow.kind.frames().and_then(Frames::migration).is_some();
    found.check(
        !migrates || !config.process.drop_all_rights,
        &["migrate"],
        "it is to move to the network interface, which takes the rights that drop_all_rights gives up: remove one of them",
    );
}

fn frames_of(kind: &FlowKind, frames: &Frames, found: &mut Findings<'_>) {
    let routing_table = match kind {
        FlowKind::L3(l3) => Some(l3.table),
        FlowKind::Nat(nat) => Some(nat.table),
        FlowKind::L2(_) | FlowKind::Relay(_) => None,
    };
    found.check(
        routing_table.is_none() || frames.path != PathChoice::AfXdp,
        &["path"],
        "`path` cannot be af-xdp, which takes all frames from the kernel, including ARP, and so finds no neighbours: it is for l2 \
         only",
    );
    found.check(
        routing_table != Some(0),
        &["table"],
        "`table` must be at least 1: 0 is no table of the kernel (254 is the main one)",
    );
    let Some(one) = frames.migration() else { return };
    found.check(
        !matches!(frames.path, PathChoice::AfXdp | PathChoice::AfPacket),
        &["migrate", "path"],
        "it is to move to a program at the interface, which this `path` does not have: remove `path` or the thresholds",
    );
    found.check(
        one.to_host_below < one.to_nic_above,
        &["migrate.to_host_below", "migrate.to_nic_above"],
        format!(
            "a flow that moves to the interface above {} packets per second and back below {} would never rest: \
             to_host_below must be less than to_nic_above",
            one.to_nic_above, one.to_host_below
        ),
    );
    found.check(
        one.to_host_below > 0,
        &["migrate.to_host_below"],
        "`to_host_below` must be at least 1: a flow never has less than 0 packets per second, and would not come back",
    );
    found.check(
        !one.hold.is_zero(),
        &["migrate.hold"],
        "`hold` must be more than 0, since the load always varies: 1s is short",
    );
}

/// Checks what a relay does to know its targets.
fn known_targets(relay: &Relay, found: &mut Findings<'_>) {
    if let Some(Check { every, timeout, rise, fall }) = &relay.check {
        found.check(
            every.0 >= CHECK_EVERY_MIN,
            &["check.every"],
            format!("`every` must be at least {CHECK_EVERY_MIN:?}: each check is a connection to each target"),
        );
        found.check(
            !timeout.0.is_zero(),
            &["check.timeout"],
            "`timeout` of `check` must be more than 0",
        );
        found.check(
            timeout <= every || every.0 < CHECK_EVERY_MIN,
            &["check.timeout", "check.every"],
            format!("`timeout` of `check`, {timeout} (1s if it is not given), must be at most `every`, {every}"),
        );
        for (key, name, count) in [("check.rise", "rise", rise), ("check.fall", "fall", fall)] {
            found.check(*count > 0, &[key], format!("`{name}` of `check` must be at least 1"));
        }
    }
    found.check(
        relay.resolve.0 >= RESOLVE_MIN,
        &["resolve"],
        format!("`resolve` must be at least {RESOLVE_MIN:?}, since each time is a question to the resolver: 30s is usual"),
    );
    let mut seen = BTreeSet::new();
    for (key, TargetUri { url, .. }) in all_targets(relay) {
        // Of each list alone.
        let (list, _) = key.rsplit_once('.').unwrap_or_default();
        let is_new = seen.insert((list.to_owned(), url));
        found.check(is_new, &[&key], format!("`to` has {url} twice: remove one of them"));
    }
}

/// The targets of a relay and of its routes, with their places.
fn all_targets(relay: &Relay) -> impl Iterator<Item = (String, &TargetUri)> {
    let own = relay.to.iter().enumerate().map(|(at, to)| (format!("to.{at}"), to));
    let routes = relay.route.iter().enumerate();
    own.chain(routes.flat_map(|(route, one)| {
        let to = one.to.iter().enumerate();
        to.map(move |(at, to)| (format!("route.{route}.to.{at}"), to))
    }))
}

const fn is_udp(endpoint: &EndpointUri) -> bool {
    matches!(endpoint, EndpointUri::Udp(_) | EndpointUri::UdpName(_))
}

fn relayed(relay: &Relay, found: &mut Findings<'_>) {
    let has_targets = !relay.tls.is_on() && relay.route.iter().any(|route| !route.to.is_empty());
    found.check(
        !relay.to.is_empty() || has_targets,
        &["to", "tls", "route"],
        "`to` is empty: it needs at least one endpoint",
    );
    found.check(
        relay.log != LogChoice::Sources,
        &["log"],
        "`log` of a relay is \"each\": `sources` is for translations",
    );
    found.check(
        !found.origin.has("connections") || !found.origin.has("connections_max"),
        &["connections"],
        "`connections` and `connections_max` are one setting: remove `connections`",
    );

    let listener = [("listen".to_owned(), &relay.listen)];
    let targets = all_targets(relay).map(|(key, to)| (key, &to.url));
    for (key, endpoint) in targets.chain(listener) {
        if let EndpointUri::Unix(path) = endpoint
            && let Err(problem) = socket_path(path)
        {
            found.add(&[&key], problem);
        }
    }
    for (key, TargetUri { url, .. }) in all_targets(relay) {
        let problem = format!("`to` is {url}, but nothing can listen on port 0");
        found.check(!has_port_zero(url), &[&key], problem);
    }

    for (key, TargetUri { url, .. }) in all_targets(relay) {
        found.check(
            is_udp(&relay.listen) == is_udp(url),
            &[&key, "listen"],
            format!(
                "{} and {url} do not fit: datagrams go to udp://, streams to tcp:// or unix:",
                relay.listen
            ),
        );
    }
    if is_udp(&relay.listen) {
        without_streams(relay, found);
    } else {
        tls::check(relay, found);
    }
    known_targets(relay, found);
    clients(relay, found);
    messages(relay, found);
}

/// Checks that a relay of datagrams has no settings of streams.
fn without_streams(relay: &Relay, found: &mut Findings<'_>) {
    found.check(
        relay.check.is_none(),
        &["check", "listen"],
        "`check` is for streams: only an application can tell whether it gets datagrams",
    );
    found.check(
        relay.retries.is_none(),
        &["retries", "listen"],
        "`retries` is for streams: a session of datagrams tries one target",
    );
    for (key, is_used) in [
        ("proxy_send", relay.proxy_send),
        ("proxy_from", !relay.proxy_from.is_empty()),
        ("framed", relay.framed.is_some()),
        ("tls", relay.tls.is_on() || found.origin.has("tls")),
        ("to_tls", relay.to_tls.is_on),
        ("route", !relay.route.is_empty()),
    ] {
        found.check(
            !is_used,
            &[key, "listen"],
            format!("`{key}` is for streams: datagrams have none"),
        );
    }
    found.check(
        matches!(relay.mode, RelayMode::Auto | RelayMode::Copy),
        &["mode", "listen"],
        "datagrams are copied: `mode` must be auto or copy",
    );
}

/// Checks who may connect, and for how long.
fn clients(relay: &Relay, found: &mut Findings<'_>) {
    for (key, time) in [("idle", relay.idle), ("connect", relay.connect)] {
        let problem = format!("`{key}` must be more than 0: nothing would ever pass");
        found.check(!time.0.is_zero(), &[key], problem);
    }
    found.check(
        relay.per_source_max != Some(0),
        &["per_source_max"],
        "`per_source_max` must be at least 1",
    );
    // Their addresses are only known from a header.
    let has_addresses =
        !matches!(relay.listen, EndpointUri::Unix(_)) || !relay.proxy_from.is_empty();
    for (key, is_used) in [
        ("allow", !relay.allow.is_empty()),
        ("deny", !relay.deny.is_empty()),
        ("per_source_max", relay.per_source_max.is_some()),
    ] {
        let problem = format!(
            "`{key}` has no effect, since clients of a Unix socket have no address: remove it (the permissions of the path say who may \
             connect)"
        );
        found.check(has_addresses || !is_used, &[key, "listen", "proxy_from"], problem);
    }
}

/// Checks the settings of messages.
fn messages(relay: &Relay, found: &mut Findings<'_>) {
    if relay.framed.is_none() {
        for key in ["frame_mode", "message_max"] {
            let problem =
                format!("`{key}` is for messages: set `framed` to the format of their length");
            found.check(!found.origin.has(key), &[key, "framed"], problem);
        }
        return;
    }
    found.check(
        relay.frame_mode == FrameMode::CutThrough || relay.message_max <= STORED_BYTES_MAX,
        &["message_max", "frame_mode", "framed"],
        format!(
            "`message_max` is {} bytes, but messages that may be stored have at most {STORED_BYTES_MAX}: lower it, or \
             let all be cut through (`frame_mode`)",
            relay.message_max
        ),
    );
    found.check(relay.message_max > 0, &["message_max"], "`message_max` must be at least 1 byte");
    found.check(
        relay.mode == RelayMode::Auto,
        &["mode", "framed"],
        "`mode` is for bytes, and this relay is `framed`: remove one of them",
    );
}

fn translated(nat: &Nat, found: &mut Findings<'_>) {
    found.check(
        !nat.inside.is_empty(),
        &["inside"],
        "`inside` is empty: it needs at least one interface",
    );
    if let Some(address) = nat.address.filter(is_no_host) {
        found.add(
            &["address"],
            format!("{address} cannot be the address of a host: give the one of `outside`"),
        );
    }
    found.check(
        (1..=100).contains(&nat.host_share),
        &["host_share"],
        "`host_share` must be 1 to 100 percent",
    );
    found.check(
        !nat.idle.0.is_zero(),
        &["idle"],
        "`idle` must be more than 0: no answer would ever come back",
    );
    if let Some(state) = &nat.state {
        no_folder("state", state, "nat", found);
    }
    if let Err((key, problem)) = ports_of_hosts(nat) {
        found.add(&[&key, "ports_per_host", "ports", "from"], problem);
    }

    let mut taken = BTreeSet::new();
    for (at, one) in nat.publish.iter().enumerate() {
        let key = format!("publish.{at}");
        match one.to.ip() {
            IpAddr::V6(_) => found.add(
                &[&key],
                format!("{} is not IPv4, and addresses are translated in IPv4 only", one.to),
            ),
            IpAddr::V4(address) if is_no_host(&address) || one.to.port() == 0 => {
                found
                    .add(&[&key], format!("{} cannot be the address and port of a server", one.to));
            }
            IpAddr::V4(_) => {}
        }
        if let Some(Err(problem)) = nat.address.map(|address| published_elsewhere(one, address)) {
            found.add(&[&key, "address"], problem);
        }
        if let Some(Err(problem)) = nat.ports.map(|ports| published_outside(one, ports)) {
            found.add(&[&key, "ports"], problem);
        }
        let is_new = taken.insert((one.transport as u8, one.port));
        found.check(is_new, &[&key], format!("port {} is published twice", one.port));
    }
}

const fn is_no_host(address: &Ipv4Addr) -> bool {
    address.is_unspecified()
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_loopback()
}

/// Checks that each inside host has its ports, if hosts have such. Returns the key of what is wrong.
fn ports_of_hosts(nat: &Nat) -> Result<(), (String, String)> {
    let (Some(size), Some(blocks)) = (nat.ports_per_host, nat.port_blocks()) else { return Ok(()) };
    let key = || "ports_per_host".to_owned();
    let (Some(ports), false) = (nat.ports, nat.from.is_empty()) else {
        let problem =
            "`ports_per_host` needs `ports` and `from`: a host has its ports by its place in these, which must not change with the \
             kernel's settings"
                .to_owned();
        return Err((key(), problem));
    };
    for (at, one) in nat.from.iter().enumerate() {
        let overlaps = |other: &&Inside| {
            one.0.contains(other.0.address()) || other.0.contains(one.0.address())
        };
        if let Some(other) = nat.from[..at].iter().find(overlaps) {
            let problem = format!(
                "{} and {} of `from` overlap, so that a host would have two places: remove one of them",
                other.0, one.0
            );
            return Err((format!("from.{at}"), problem));
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
        let problem = format!(
            "`from` has {hosts} addresses with {size} ports each (`ports_per_host`), which takes {} ports, but `ports` ({ports}) has {all}: \
             {lower}widen `ports`, or give `from` at most {count} addresses",
            hosts.saturating_mul(u128::from(size.get()))
        );
        return Err((key(), problem));
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
