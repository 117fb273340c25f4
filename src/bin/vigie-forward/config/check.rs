//! Checks that several settings fit together.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use vigie::forward::{nic::PORTS_MAX, tables::Prefix};

use super::{
    BalanceChoice, Check, Config, ConfigError, EndpointUri, FlowConfig, FlowKind, FrameMode,
    Frames, LogChoice, LogTarget, Nat, Origin, PathChoice, Ports, Publish, Relay, RelayMode,
    SegmentsChoice, TargetUri, WaitMode,
    mistakes::Mistakes,
    tls,
    unique::UniqueResources,
    values::{NEEDS_INTERFACE, is_of_many, lacks_interface},
};

/// The interface for packets of a host to itself.
const LOOPBACK: &str = "lo";
/// The longest interface name of the kernel, in bytes.
const INTERFACE_NAME_BYTES_MAX: usize = 15;
/// The longest path of a Unix socket, in bytes.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The largest number of a process.
const PROCESS_ID_MAX: u32 = 1 << 22;
/// The shortest time between two questions for the name of a target.
const RESOLVE_MIN: Duration = Duration::from_secs(1);
/// The shortest time for which a translation is kept: more than the 640 ms that may pass until a program notes its packets.
const TRANSLATION_IDLE_MIN: Duration = Duration::from_secs(1);
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

impl<'a> Findings<'a> {
    pub(super) const fn new(origin: &'a Origin, mistakes: &'a mut Mistakes) -> Self {
        Self { origin, mistakes }
    }

    /// Returns whether the value of this key, or a part of it, is not what the file says.
    pub(super) fn is_wrong(&self, key: &str) -> bool {
        self.origin.is_wrong(key)
    }

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
    let mut seen = UniqueResources::default();
    let mut found = Findings::new(&config.origin, mistakes);
    process(config, is_log_known, &mut found);
    seen.add_process(config, &mut found);
    for flow in &config.flows {
        if mistakes.is_full() {
            return;
        }
        let mut found = Findings::new(&flow.origin, mistakes);
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
        written_file("log_file", path, "forward.log", found);
    }
}

/// Checks the path of a file that this process writes.
fn written_file(key: &str, path: &Path, example: &str, found: &mut Findings<'_>) {
    let bytes = path.as_os_str().as_encoded_bytes();
    let (said, example) = if bytes.is_empty() {
        (format!("`{key}` is empty"), Path::new(".").join(example))
    } else if path.is_dir() || !has_file_name(path) {
        (format!("`{key}` is {}, which is a folder", path.display()), path.join(example))
    } else if bytes.contains(&0) {
        (format!("`{key}` cannot be {path:?}"), Path::new(".").join(example))
    } else {
        return;
    };
    found.add(&[key], format!("{said}: give the path of a file, as in {}", example.display()));
}

/// Returns whether a path does not end as one of a folder does.
fn has_file_name(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    path.file_name().is_some() && !bytes.ends_with(b"/") && !bytes.ends_with(b"/.")
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
    let ip = to.ip();
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

/// Any free port: two flows get different ones.
pub(crate) const fn has_port_zero(endpoint: &EndpointUri) -> bool {
    match endpoint {
        EndpointUri::Tcp(address) | EndpointUri::Udp(address) => address.port() == 0,
        EndpointUri::Unix(_) | EndpointUri::TcpName(_) | EndpointUri::UdpName(_) => false,
    }
}

/// Checks the path of a Unix socket.
pub(super) fn socket_path(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.contains(&0) || !has_file_name(path) {
        return Err(format!(
            "{path:?} cannot be the path of a socket: give that of a file, as in /run/web.sock"
        ));
    }
    if bytes.starts_with(b"@") {
        return Err(format!(
            "abstract sockets are not supported, and {0} would be one: give a path, as in /run/web.sock (./{0} is a file with this name)",
            path.display()
        ));
    }
    let length = bytes.len();
    if length > SOCKET_PATH_BYTES_MAX {
        return Err(format!(
            "the path {} has {length} bytes, and that of a Unix socket may have {SOCKET_PATH_BYTES_MAX}: take a shorter one",
            path.display()
        ));
    }
    Ok(())
}

/// As [`socket_path`], of a socket that this process serves, which it makes under a longer name at first.
pub(super) fn served_path(path: &Path) -> Result<(), String> {
    socket_path(path)?;
    let longest = path.with_extension(format!("{PROCESS_ID_MAX}.new")).as_os_str().len();
    if longest > SOCKET_PATH_BYTES_MAX {
        return Err(format!(
            "the path {} is too long by {} bytes: it is made under the name of {} first, and may have {SOCKET_PATH_BYTES_MAX} bytes with that",
            path.display(),
            longest - SOCKET_PATH_BYTES_MAX,
            "FILE.PID.new",
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
    let is_wrong = |letter: char| letter.is_whitespace() || "/:\0".contains(letter);
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
    host_of_frames(kind, frames, found);
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
        !one.hold.is_zero(),
        &["migrate.hold"],
        "`hold` must be more than 0, since the load always varies: 1s is short",
    );
}

/// Checks that a path fits what the host has to do beside it.
fn host_of_frames(kind: &FlowKind, frames: &Frames, found: &mut Findings<'_>) {
    let is_wire = matches!(kind, FlowKind::L2(_));
    // A wire at tcx passes frames by the program alone.
    found.check(
        !is_wire || frames.path != PathChoice::Tcx || frames.migration().is_none(),
        &["migrate", "path"],
        "it is to move between the interface and the host, whose packet sockets see all frames before a program at tcx (`path`) does, so that \
         each would be forwarded twice: let `path` be xdp-native or xdp-generic, or remove the thresholds",
    );
    let without_host = is_wire && frames.path == PathChoice::Tcx;
    found.check(
        !without_host || frames.waiting == WaitMode::default(),
        &["waiting", "path"],
        "`waiting` has no effect, since no frame of a wire at tcx (`path`) reaches this process: remove it",
    );
    found.check(
        !without_host || frames.segments == SegmentsChoice::default(),
        &["segments", "path"],
        "`segments` has no effect, since no frame of a wire at tcx (`path`) reaches this process: remove it",
    );
    found.check(
        frames.path != PathChoice::AfXdp
            || frames.segments == SegmentsChoice::Refuse
            || !found.origin.has("segments"),
        &["segments", "path"],
        "`segments` must be \"refuse\" with af-xdp (`path`), which has no frames of several segments",
    );

    let follows_address = matches!(kind, FlowKind::Nat(Nat { address: None, .. }));
    found.check(
        !follows_address || frames.path != PathChoice::AfPacket,
        &["path", "address"],
        "`path` cannot be af-packet if the public address is the one that this host has: its kernel would reset translated connections \
         unless a program keeps their packets from it. Remove `path`, or give `address` a free one of the outside network",
    );
    let has_program = follows_address
        || matches!(frames.path, PathChoice::XdpNative | PathChoice::XdpGeneric | PathChoice::Tcx);
    let count = kind.interfaces().len();
    found.check(
        !has_program || count <= usize::from(PORTS_MAX),
        &["path"],
        format!(
            "a program at the interfaces has at most {PORTS_MAX} of them, and this flow has {count}: let `path` be af-packet (with a free \
             `address`, if it translates), or divide the flow"
        ),
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
    let mut routes = relay.route.iter();
    let has_targets =
        !relay.tls.is_on() && routes.len() > 0 && routes.all(|route| !route.to.is_empty());
    found.check(
        !relay.to.is_empty() || has_targets,
        &["to", "tls", "route"],
        "`to` is empty: it needs at least one endpoint, unless all clients have a route with `to`",
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
        if let Some(problem) = no_target(url) {
            found.add(&[&key], problem);
        }
    }
    weights(relay, found);

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

/// Returns why nothing can answer at this address, if that is so.
fn no_target(url: &EndpointUri) -> Option<String> {
    let (EndpointUri::Tcp(at) | EndpointUri::Udp(at)) = url else { return None };
    if at.ip().to_canonical().is_unspecified() {
        return Some(format!(
            "`to` is {url}, which is the address of no host: for this one, write 127.0.0.1 or [::1]"
        ));
    }
    if lacks_interface(at) {
        return Some(format!("`to` is {url}, which {NEEDS_INTERFACE}"));
    }
    is_of_many(at.ip()).then(|| {
        format!("`to` is {url}, which is the address of many hosts, whose answers would be lost: give that of one")
    })
}

/// Checks that weights have an effect.
fn weights(relay: &Relay, found: &mut Findings<'_>) {
    if relay.balance != BalanceChoice::First {
        return;
    }
    for (key, _) in all_targets(relay).filter(|(_, to)| to.weight != 1) {
        let weight = format!("{key}.weight");
        let at = if found.origin.has(&weight) { &weight } else { &key };
        found.add(
            &[at, "balance"],
            "a weight has no effect with the policy `first`, which is the default: remove it, or let `balance` be another, such as \
             \"round-robin\"",
        );
    }
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
        nat.idle.0 >= TRANSLATION_IDLE_MIN,
        &["idle"],
        format!(
            "`idle` must be at least {TRANSLATION_IDLE_MIN:?}: a program notes the packets of a translation only every 64 to 640 ms, and a shorter time \
             would end those in use"
        ),
    );
    if let Some(state) = &nat.state {
        written_file("state", state, "nat", found);
    }
    ports_of_hosts(nat, found);

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

/// Checks that each inside host has its ports, if hosts have such.
fn ports_of_hosts(nat: &Nat, found: &mut Findings<'_>) {
    let (Some(size), Some(blocks)) = (nat.ports_per_host, nat.port_blocks()) else { return };
    let keys = ["ports_per_host", "ports", "from"];
    let (Some(ports), false) = (nat.ports, nat.from.is_empty()) else {
        return found.add(
            &keys,
            "`ports_per_host` needs `ports` and `from`: a host has its ports by its place in these, which must not change with the \
             kernel's settings",
        );
    };
    let networks: Vec<_> = nat.from.iter().map(|one| one.0).collect();
    let overlapping = overlapping(&networks, |outer, inner| outer.contains(inner));
    for (first, second) in &overlapping {
        found.add(
            &[&format!("from.{second}"), "ports_per_host", "ports"],
            format!(
                "{} and {} of `from` overlap, so that a host would have two places: remove one of them",
                networks[*first], networks[*second]
            ),
        );
    }
    let (hosts, count) = (blocks.hosts(), blocks.count((ports.first, ports.last)));
    if overlapping.is_empty() && hosts > u128::try_from(count).unwrap_or(u128::MAX) {
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
        found.add(&keys, problem);
    }
}

/// Returns the networks that are in another one, each with the smallest of those. `contains` is asked at most twice for each network: sorted,
/// a network comes behind those that it is in, and before what is behind these.
pub(super) fn overlapping(
    networks: &[Prefix],
    mut contains: impl FnMut(&Prefix, IpAddr) -> bool,
) -> Vec<(usize, usize)> {
    let mut sorted: Vec<_> = (0..networks.len()).collect();
    sorted.sort_by_key(|at| (networks[*at].address(), networks[*at].length_bits(), *at));
    let mut outer: Vec<usize> = Vec::new();
    let mut found = Vec::new();
    for at in sorted {
        while let Some(last) = outer.last() {
            if contains(&networks[*last], networks[at].address()) {
                found.push((*last.min(&at), *last.max(&at)));
                break;
            }
            outer.pop();
        }
        outer.push(at);
    }
    found
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
