//! The configuration file.

use std::{
    collections::BTreeMap,
    fs, io,
    net::Ipv4Addr,
    num::NonZeroU16,
    path::{Path, PathBuf},
};

use super::{
    BalanceChoice, CONNECT_DEFAULT, CONNECTIONS_DEFAULT, CONNECTIONS_MAX, Check, ClientTls, Config,
    EndpointUri, FlowConfig, FlowKind, FrameMode, Frames, HOLD_DEFAULT, HOST_SHARE_DEFAULT,
    IDLE_DEFAULT, Inside, L2, L3, LengthForm, LogChoice, MESSAGE_BYTES_DEFAULT, Nat, PathChoice,
    Ports, Process, Publish, RESOLVE_DEFAULT, Range, Relay, RelayMode, Retries, Route,
    SegmentsChoice, TABLE_MAIN, TargetTls, TargetUri, Time, WaitMode,
    nearest::advice,
    tables::{Many, One, TomlTable},
    tls::{read_client_tls, read_target_tls},
    values::{one_or_more, read_listener},
};
use serde::Deserialize;
use thiserror::Error;

/// The maximum size of a configuration file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The reason why a configuration is refused.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("{file} cannot be read: {source}")]
    File { file: String, source: io::Error },
    #[error("{file} has {bytes} bytes, but a configuration may have at most {FILE_BYTES_MAX}")]
    Long { file: String, bytes: u64 },
    #[error("{file}: {source}{}", advised(source))]
    Text { file: String, source: Box<toml::de::Error> },
    #[error("{}: {problem}", place(file, *line, flow))]
    Flow { file: String, line: Option<usize>, flow: String, problem: String },
    #[error("{file}: {problem}")]
    Process { file: String, problem: String },
    #[error("{file} has no flow: add a table such as [[relay]] or [[l3]]")]
    Empty { file: String },
}

/// Returns advice as a line of its own, if there is any.
fn advised(source: &toml::de::Error) -> String {
    advice(source.message()).map_or_else(String::new, |advice| advice + "\n")
}

/// Returns the position of a flow, for messages.
fn place(file: &str, line: Option<usize>, flow: &str) -> String {
    match line {
        Some(line) => format!("{file}, line {line}: flow `{flow}`"),
        None => format!("{file}: flow `{flow}`"),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    #[serde(default)]
    process: One<Process>,
    #[serde(default)]
    relay: Many<RawRelay>,
    #[serde(default)]
    l2: Many<RawL2>,
    #[serde(default)]
    l3: Many<RawL3>,
    #[serde(default)]
    nat: Many<RawNat>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRelay {
    name: Option<String>,
    #[serde(deserialize_with = "read_listener")]
    listen: EndpointUri,
    #[serde(deserialize_with = "one_or_more")]
    to: Vec<TargetUri>,
    #[serde(default)]
    balance: BalanceChoice,
    check: Option<Check>,
    retries: Option<Retries>,
    resolve: Option<Time>,
    #[serde(default)]
    mode: RelayMode,
    idle: Option<Time>,
    connect: Option<Time>,
    #[serde(default, alias = "connections", deserialize_with = "connection_count")]
    connections_max: Option<u32>,
    #[serde(default)]
    proxy_send: bool,
    #[serde(default, deserialize_with = "one_or_more")]
    proxy_from: Vec<Range>,
    #[serde(default, deserialize_with = "allowed")]
    allow: Vec<Range>,
    #[serde(default, deserialize_with = "one_or_more")]
    deny: Vec<Range>,
    per_source_max: Option<u32>,
    framed: Option<LengthForm>,
    #[serde(default)]
    frame_mode: FrameMode,
    message_max: Option<u64>,
    #[serde(default)]
    log: LogChoice,
    #[serde(default, deserialize_with = "read_client_tls")]
    tls: ClientTls,
    #[serde(default, deserialize_with = "read_target_tls")]
    to_tls: TargetTls,
    #[serde(default)]
    route: Vec<Route>,
}

/// Reads the networks that are allowed. An empty list is as if there were none: all clients would be served.
fn allowed<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Range>, D::Error> {
    let networks: Vec<Range> = one_or_more(from)?;
    if networks.is_empty() {
        return Err(serde::de::Error::custom(
            "`allow` is empty: name the networks that are served, as in [\"10.0.0.0/8\"], or leave it out to serve all clients",
        ));
    }
    Ok(networks)
}

/// Reads two names. (An array type of length two would accept three elements, and ignore the last.)
fn pair<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    if names.len() == 2 {
        return Ok(names);
    }
    Err(serde::de::Error::custom(format_args!(
        "a wire is between two interfaces, as in [\"eth0\", \"eth1\"], and not {}",
        names.len()
    )))
}

/// Reads a maximum of connections.
fn connection_count<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let given = i64::deserialize(from)?;
    let count = u32::try_from(given).ok();
    if (1..=CONNECTIONS_MAX).contains(&given) && count.is_some() {
        return Ok(count);
    }
    Err(serde::de::Error::custom(format_args!(
        "`connections_max` must be 1 to {CONNECTIONS_MAX}, and not {given}"
    )))
}

const fn table_main() -> u32 {
    TABLE_MAIN
}

const fn idle_default() -> Time {
    IDLE_DEFAULT
}

const fn host_share_default() -> u8 {
    HOST_SHARE_DEFAULT
}

const fn hold_default() -> Time {
    HOLD_DEFAULT
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMigrate {
    to_nic_above: u64,
    to_host_below: u64,
    #[serde(default = "hold_default")]
    hold: Time,
}

/// The table of a flow that moves frames: its own settings, and those of all such flows.
macro_rules! frames_table {
    ($raw:ident => $flow:ident { $($(#[$meta:meta])* $field:ident: $type:ty,)* }) => {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $raw {
            name: Option<String>,
            $($(#[$meta])* $field: $type,)*
            #[serde(default)]
            path: PathChoice,
            #[serde(default)]
            waiting: WaitMode,
            #[serde(default)]
            segments: SegmentsChoice,
            migrate: Option<One<RawMigrate>>,
        }

        impl $raw {
            fn read(self) -> (Option<String>, FlowKind) {
                let migrate = self.migrate.map(|One(migrate)| migrate);
                let frames = Frames {
                    path: self.path,
                    waiting: self.waiting,
                    segments: self.segments,
                    to_nic_above: migrate.as_ref().map(|migrate| migrate.to_nic_above),
                    to_host_below: migrate.as_ref().map(|migrate| migrate.to_host_below),
                    hold: migrate.map_or(HOLD_DEFAULT, |migrate| migrate.hold),
                };
                (self.name, FlowKind::$flow($flow { $($field: self.$field,)* frames }))
            }
        }
    };
}

frames_table! {
    RawL2 => L2 {
        #[serde(deserialize_with = "pair")]
        between: Vec<String>,
    }
}

frames_table! {
    RawL3 => L3 {
        interfaces: Vec<String>,
        #[serde(default = "table_main")]
        table: u32,
    }
}

frames_table! {
    RawNat => Nat {
        inside: Vec<String>,
        outside: String,
        #[serde(default)]
        address: Option<Ipv4Addr>,
        #[serde(default, deserialize_with = "one_or_more")]
        from: Vec<Inside>,
        #[serde(default)]
        ports: Option<Ports>,
        #[serde(default)]
        ports_per_host: Option<NonZeroU16>,
        #[serde(default = "host_share_default")]
        host_share: u8,
        #[serde(default = "idle_default")]
        idle: Time,
        #[serde(default)]
        publish: Vec<Publish>,
        #[serde(default)]
        clamp_mss: bool,
        #[serde(default)]
        log: LogChoice,
        #[serde(default)]
        state: Option<PathBuf>,
        #[serde(default = "table_main")]
        table: u32,
    }
}

macro_rules! tables {
    ($($type:ty, $word:literal;)*) => {$(
        impl TomlTable for $type {
            const WORD: &'static str = $word;
        }
    )*};
}

tables! {
    Process, "process";
    RawRelay, "relay";
    RawL2, "l2";
    RawL3, "l3";
    RawNat, "nat";
    RawMigrate, "l3.migrate";
}

impl RawRelay {
    fn read(self) -> (Option<String>, FlowKind) {
        let relay = Relay {
            listen: self.listen,
            to: self.to,
            balance: self.balance,
            check: self.check,
            retries: self.retries,
            resolve: self.resolve.unwrap_or(RESOLVE_DEFAULT),
            mode: self.mode,
            idle: self.idle.unwrap_or(IDLE_DEFAULT),
            connect: self.connect.unwrap_or(CONNECT_DEFAULT),
            connections_max: self.connections_max.unwrap_or(CONNECTIONS_DEFAULT),
            proxy_send: self.proxy_send,
            proxy_from: self.proxy_from,
            allow: self.allow,
            deny: self.deny,
            per_source_max: self.per_source_max,
            framed: self.framed,
            frame_mode: self.frame_mode,
            message_max: self.message_max.unwrap_or(MESSAGE_BYTES_DEFAULT),
            log: self.log,
            tls: self.tls,
            to_tls: self.to_tls,
            route: self.route,
        };
        (self.name, FlowKind::Relay(Box::new(relay)))
    }
}

/// Reads a file and checks it.
pub(crate) fn read(path: &Path) -> Result<Config, ConfigError> {
    let file = path.display().to_string();
    let failed = |source| ConfigError::File { file: file.clone(), source };
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(ConfigError::Long { file, bytes });
    }
    parse(&file, &fs::read_to_string(path).map_err(failed)?)
}

pub(crate) fn parse(file: &str, text: &str) -> Result<Config, ConfigError> {
    let raw: RawConfig = toml::from_str(text)
        .map_err(|source| ConfigError::Text { file: file.to_owned(), source: Box::new(source) })?;
    // The start of each, its name and its kind.
    let mut flows: Vec<(usize, (Option<String>, FlowKind))> = Vec::new();
    flows.extend(raw.relay.0.into_iter().map(|one| (one.span().start, one.into_inner().read())));
    flows.extend(raw.l2.0.into_iter().map(|one| (one.span().start, one.into_inner().read())));
    flows.extend(raw.l3.0.into_iter().map(|one| (one.span().start, one.into_inner().read())));
    flows.extend(raw.nat.0.into_iter().map(|one| (one.span().start, one.into_inner().read())));
    // In the order of the file, so that names and messages match it.
    flows.sort_by_key(|(start, _)| *start);
    let mut counts = BTreeMap::new();
    let flows = flows.into_iter().map(|(start, (name, kind))| {
        let before = text.get(..start).unwrap_or_default();
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        FlowConfig { name: name_of(name, kind.name(), &mut counts), line: Some(line), kind }
    });
    let config = Config { process: raw.process.0, flows: flows.collect() };
    if config.flows.is_empty() {
        return Err(ConfigError::Empty { file: file.to_owned() });
    }
    super::check(file, &config)?;
    Ok(config)
}

/// Numbers unnamed flows: `relay-1`, `relay-2`.
fn name_of(given: Option<String>, word: &'static str, counts: &mut BTreeMap<&str, u32>) -> String {
    let count = counts.entry(word).or_default();
    *count += 1;
    given.unwrap_or_else(|| format!("{word}-{count}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = r#"
        [process]
        drain = "2s"
        metrics = "[::1]:9100"

        [[l3]]
        interfaces = ["a", "b"]
        path = "xdp-native"
        migrate = { to_nic_above = 1000, to_host_below = 100 }

        [[relay]]
        name = "web"
        listen = "tcp://127.0.0.1:8080"
        to = "unix:/run/web"
        mode = "splice"
        check = { every = "5s", fall = 2 }
        retries = { percent = 50 }
        allow = ["10.0.0.0/8", "fd00::/8"]
        deny = "10.1.0.0/16"
        per_source_max = 10

        [[relay]]
        listen = "udp://127.0.0.1:53"
        resolve = "5s"
        to = ["udp://dns.test:53", { url = "udp://192.0.2.2:53", weight = 3 }]
        balance = "random-two"

        [[l2]]
        between = ["c", "d"]
        waiting = "spin"

        [[nat]]
        inside = ["lan"]
        outside = "wan"
        address = "198.51.100.1"
        publish = ["tcp:80=10.0.0.2:8080"]
    "#;

    /// Goal: every kind of flow is read, in the order of the file, with names, lines and defaults. Method: a
    /// file with all.
    #[test]
    fn a_file_with_everything() {
        let config = parse("f", ALL).unwrap();
        let flows = config.flows.iter().map(|flow| (flow.name.as_str(), flow.line.unwrap()));
        let expected = [("l3-1", 6), ("web", 11), ("relay-2", 22), ("l2-1", 28), ("nat-1", 32)];
        assert_eq!(flows.collect::<Vec<_>>(), expected);
        assert_eq!(config.process.drain.to_string(), "2s");
        let FlowKind::L3(l3) = &config.flows[0].kind else { panic!("{config:?}") };
        let thresholds = l3.frames.migration().unwrap();
        assert_eq!((thresholds.to_nic_above, thresholds.to_host_below), (1000, 100));
        assert_eq!((thresholds.hold.as_secs(), l3.table), (5, 254));
        let FlowKind::Relay(relay) = &config.flows[1].kind else { panic!("{config:?}") };
        assert_eq!((relay.mode, relay.idle.0.as_secs()), (RelayMode::Splice, 300));
        assert_eq!((relay.to.len(), relay.balance), (1, BalanceChoice::First));
        let check = relay.check.expect("it is set");
        assert_eq!((check.every.0.as_secs(), check.rise, check.fall), (5, 2, 2));
        assert_eq!(relay.retries, Some(Retries { percent: 50, min_per_second: 10 }));
        assert_eq!((relay.allow.len(), relay.deny.len()), (2, 1));
        assert_eq!((relay.per_source_max, relay.resolve), (Some(10), RESOLVE_DEFAULT));
        let metrics = config.process.metrics.as_ref().map(EndpointUri::to_string);
        assert_eq!(metrics.as_deref(), Some("tcp://[::1]:9100"));
        let FlowKind::Relay(relay) = &config.flows[2].kind else { panic!("{config:?}") };
        let weights: Vec<_> = relay.to.iter().map(|to| to.weight).collect();
        assert_eq!((weights, relay.balance), (vec![1, 3], BalanceChoice::RandomTwo));
    }

    /// Goal: errors are reported with the line and the remedy. Method: one error at a time, with words that the message
    /// must have.
    #[test]
    fn faults_are_named() {
        let relay = "[[relay]]\nlisten = 'tcp://127.0.0.1:1'\nto = 'tcp://127.0.0.1:2'\n";
        let l3 = "[[l3]]\ninterfaces = ['a', 'b']\n";
        let nat = "[[nat]]\ninside = ['a']\noutside = 'b'\naddress = '192.0.2.1'\n";
        for (text, words) in [
            (String::new(), &["no flow", "[[relay]]"][..]),
            ("[[relay]\n".to_owned(), &["line 1"]),
            ("[[tunnel]]\n".to_owned(), &["line 1", "tunnel", "expected one of", "relay"]),
            (format!("{relay}mod = 'copy'\n"), &["line 4", "unknown field `mod`", "mean `mode`?"]),
            (format!("{relay}mode = 'fast'\n"), &["line 4", "`fast`", "`splice`"]),
            (format!("{relay}mode = 'slice'\n"), &["line 4", "mean `splice`?"]),
            ("[[rely]]\n".to_owned(), &["line 1", "mean `relay`?"]),
            (relay.replace("[[relay]]", "[relay]"), &["line 1", "write [[relay]]", "two brackets"]),
            ("relay = { to = 'a' }\n".to_owned(), &["line 1", "write [[relay]]"]),
            ("relay = 5\n".to_owned(), &["line 1", "begins with [[relay]]"]),
            (format!("\n{}", l3.replace("[[l3]]", "[l3]")), &["line 2", "write [[l3]]"]),
            ("[l2]\nbetween = ['a', 'b']\n".to_owned(), &["line 1", "write [[l2]]"]),
            (nat.replace("[[nat]]", "[nat]"), &["line 1", "write [[nat]]"]),
            (format!("[[process]]\ndrain = '1s'\n{relay}"), &["line 1", "write [process]"]),
            (format!("[process]\ndrian = '1s'\n{relay}"), &["line 2", "mean `drain`?"]),
            (format!("{l3}[[l3.migrate]]\nto_nic_above = 5\n"), &["line 3", "write [l3.migrate]"]),
            ("[[l3]]\ninterfaces = 'a'\n".to_owned(), &["line 2", "brackets"]),
            (format!("{relay}idle = 10\n"), &["line 4", "`10` has no unit", "\"10s\""]),
            (format!("[process]\ndrain = 10\n{relay}"), &["line 2", "write \"10s\""]),
            (format!("{relay}idle = true\n"), &["line 4", "\"10s\""]),
            (format!("{relay}idle = '10'\n"), &["line 4", "with a unit", "10s"]),
            ("[[relay]]\nlisten = '127.0.0.1:1'\n".to_owned(), &["line 2", "begin with tcp://"]),
            ("[[relay]]\nlisten = 'tcp://localhost:1'\n".to_owned(), &["line 2", "not resolved"]),
            ("[[relay]]\nlisten = 'tcp://[::]:1'\n".to_owned(), &["line 1", "missing field `to`"]),
            (format!("{relay}proxy_from = ['a']\n"), &["line 4", "10.0.0.0/8"]),
            (format!("{relay}framed = 'u8'\n"), &["line 4", "`u32-be`"]),
            (format!("{relay}frame_mode = 'cut-through'\n"), &["line 1", "`framed`"]),
            (
                format!("{l3}[l3.migrate]\nto_nic_above = 5\nto_host_below = 7\n"),
                &["line 1", "below"],
            ),
            (format!("{l3}[l3.migrate]\nto_nic_above = -5\n"), &["line 4", "-5"]),
            ("\n[[l3]]\ninterfaces = []\n".to_owned(), &["line 2", "two interfaces"]),
            ("[[l2]]\nbetween = ['a', 'a']\n".to_owned(), &["line 1", "`a`"]),
            ("[[l2]]\nbetween = ['a']\n".to_owned(), &["line 2", "two interfaces", "and not 1"]),
            ("[[l2]]\nbetween = ['a', 'b', 'c']\n".to_owned(), &["line 2", "and not 3"]),
            ("[[l2]]\nbetween = ['a', 'a-name-that-is-too-long']\n".to_owned(), &["line 1", "15"]),
            (format!("{l3}{l3}"), &["line 3", "`a`", "l3-1"]),
            (format!("{relay}name = 'x'\n{relay}name = 'x'\n"), &["line 5", "`x`", "name"]),
            (format!("{relay}{relay}"), &["line 4", "relay-1", "listen"]),
            (format!("{relay}connections_max = 0\n"), &["line 4", "connections_max", "1000000"]),
            (format!("{relay}connections = 0\n"), &["line 4", "connections_max"]),
            (format!("{relay}connections_max = {}\n", i64::MAX), &["line 4", "1 to 1000000"]),
            (format!("{relay}connections_max = 'a'\n"), &["line 4", "whole number"]),
            (
                format!("{relay}connections = 5\nconnections_max = 5\n"),
                &["line 1", "one setting", "remove `connections`"],
            ),
            (
                format!("{relay}{}", relay.replace("127.0.0.1:1'", "0.0.0.0:1'")),
                &["overlaps", "relay-1"],
            ),
            (
                format!("{relay}{}", relay.replace("127.0.0.1:1'", "[::]:1'")),
                &["overlaps", "relay-1"],
            ),
            (l3.replace(", 'b'", ""), &["line 1", "two interfaces"]),
            (l3.replace("'b'", "'lo'"), &["line 1", "`lo`", "loopback"]),
        ] {
            assert_refused(&text, words);
        }
    }

    /// Goal: errors of a translation's addresses and ports are reported with the line and the remedy. Method: one error at a time.
    #[test]
    fn faults_of_translations_are_named() {
        let nat = "[[nat]]\ninside = ['a']\noutside = 'b'\naddress = '192.0.2.1'\n";
        for (text, words) in [
            (format!("{nat}ports = '9-1'\n"), &["line 5", "20000-60000"][..]),
            (format!("{nat}ports_per_host = 0\n"), &["line 5", "^", "nonzero u16"]),
            (format!("{nat}ports_per_host = 8\n"), &["line 1", "`ports`", "`from`"]),
            (
                format!("{nat}ports_per_host = 8\nfrom = '10.0.0.0/30'\nports = '2000-2030'\n"),
                &["line 1", "4 addresses", "32 ports", "31", "at most 7"],
            ),
            (
                format!("{nat}ports_per_host = 8\nfrom = '10.0.0.0/8'\nports = '2000-2030'\n"),
                &["line 1", "16777216 addresses", "31", "at most 3 addresses"],
            ),
            (
                format!(
                    "{nat}ports_per_host = 8\nfrom = ['10.0.0.0/31', '10.0.0.1']\nports = '2000-2030'\n"
                ),
                &["line 1", "10.0.0.0/31 and 10.0.0.1/32", "overlap"],
            ),
            (
                format!(
                    "{nat}ports_per_host = 8\nfrom = '10.0.0.0/31'\nports = '2000-2030'\npublish = ['tcp:2010=10.0.0.0:80']\n"
                ),
                &["line 1", "2010", "`ports` (2000-2030)"],
            ),
            (format!("{nat}from = '::/0'\n"), &["line 5", "10.0.0.0/24"]),
            (format!("{nat}publish = ['tcp:1=[::1]:1']\n"), &["line 1", "IPv4"]),
            (format!("{nat}host_share = 0\n"), &["line 1", "host_share", "1 to 100"]),
            (format!("{nat}from = '10.0.0.0/33'\n"), &["line 5", "at most 32"]),
        ] {
            assert_refused(&text, words);
        }
    }

    /// Goal: errors of a relay's targets are reported with the line and the remedy. Method: one error at a time.
    #[test]
    fn faults_of_targets_are_named() {
        let relay = "[[relay]]\nlisten = 'tcp://127.0.0.1:1'\nto = 'tcp://127.0.0.1:2'\n";
        for (text, words) in [
            (
                format!("{relay}check = {{ ever = '1s' }}\n"),
                &["line 4", "`ever`", "mean `every`?"][..],
            ),
            (format!("[process]\nmetrics = '9100'\n{relay}"), &["line 2", "127.0.0.1:9100"]),
            (format!("[process]\nmetrics = '127.0.0.1:1'\n{relay}"), &["line 3", "`metrics`"]),
            (
                format!("[process]\nstats_socket = '/{}'\n{relay}", "x".repeat(107)),
                &["line 2", "^", "108 bytes", "107"],
            ),
            (
                relay.replace("'tcp://127.0.0.1:2'", "'tcp://web.1:80'"),
                &["line 3", "`web.1:80`", "web.example:7000"],
            ),
            (format!("{relay}deny = '10.0.0.0/33'\n"), &["line 4", "10.0.0.0/8", "32 bits", "128"]),
            (format!("{relay}check = true\n"), &["line 4", "a table", "{ every = \"2s\" }"]),
            (format!("{relay}tls = true\n"), &["line 4", "a table", "certificate"]),
            (format!("{relay}to_tls = 5\n"), &["line 4", "a table", "{}"]),
            (format!("{relay}retries = {{ ratio = 1 }}\n"), &["line 4", "`ratio`", "`percent`"]),
            (format!("{relay}retries = 20\n"), &["line 4", "retries = { percent = 20"]),
            (
                format!("{}retries = {{}}\n", relay.replace("tcp:", "udp:")),
                &["`retries`", "streams"],
            ),
            (format!("{relay}per_source_max = 0\n"), &["line 1", "`per_source_max`"]),
            (format!("{relay}per_source_max = -1\n"), &["line 4", "from 0 to 4294967295"]),
            (format!("{relay}resolve = '0s'\n"), &["line 1", "`resolve`"]),
            (
                relay.replace("'tcp://127.0.0.1:2'", "['tcp://[::1]:2', 'tcp://[::1]:2']"),
                &["line 1", "twice", "`weight`"],
            ),
            (
                format!("{relay}check = {{ every = '1s', timeout = '2s' }}\n"),
                &["line 1", "`timeout`"],
            ),
            (format!("{relay}check = {{ rise = 0 }}\n"), &["line 1", "`rise`"]),
            (format!("{relay}log = 'all'\n"), &["line 4", "`all`", "`each`"]),
            (format!("{relay}log = 'sources'\n"), &["line 1", "`log`", "\"each\""]),
            (format!("[process]\nlog_file = 'log'\n{relay}"), &["line 2", "./forward.log"]),
            (format!("[process]\nlog_file = '/log'\n{relay}"), &["`log_file`", "log = \"each\""]),
            (relay.replace("tcp:", "udp:") + "check = {}\n", &["line 1", "`check`", "datagrams"]),
            (format!("{relay}balance = 'robin'\n"), &["line 4", "`robin`", "`round-robin`"]),
            (
                relay.replace("'tcp://127.0.0.1:2'", "[{ url = 'tcp://127.0.0.1:2', weight = 0 }]"),
                &["line 3", "1 to 256"],
            ),
            (
                relay.replace("'tcp://127.0.0.1:2'", "[{ url = 'tcp://127.0.0.1:2', wait = 1 }]"),
                &["line 3", "`wait`", "`weight`"],
            ),
        ] {
            assert_refused(&text, words);
        }
    }

    /// Goal: what only one flow or process can have is refused to a second one. Method: a state file that two flows name, a stats socket that two
    /// settings name, and interfaces that would pass to another process.
    #[test]
    fn what_one_alone_has_is_refused() {
        let relay = "[[relay]]\nlisten = 'tcp://127.0.0.1:1'\nto = 'tcp://127.0.0.1:2'\n";
        let nat = "[[nat]]\ninside = ['a']\noutside = 'b'\naddress = '192.0.2.1'\n";
        for (text, words) in [
            (
                format!(
                    "{nat}state = '/s'\n{}state = '/./s'\n",
                    nat.replace("'a'", "'c'").replace("'b'", "'d'")
                ),
                &["line 6", "flow `nat-1`", "/./s", "`state`"][..],
            ),
            (
                format!("[process]\ntakeover = '/a'\nstats_socket = '/b'\n{relay}"),
                &["`takeover`", "remove `stats_socket`"],
            ),
            (
                "[process]\ntakeover = '/a'\n[[l2]]\nbetween = ['a', 'b']\n".to_owned(),
                &["line 3", "`takeover`", "relays"],
            ),
        ] {
            assert_refused(&text, words);
        }
    }

    /// Goal: the files in the guide are right. Method: each of its blocks of TOML is read.
    #[test]
    fn the_files_of_the_guide_are_read() {
        let guide = include_str!("../../../../docs/guide/forwarding.md");
        let blocks: Vec<_> = guide.split("```toml\n").skip(1).collect();
        assert_eq!(blocks.len(), 2);
        for block in blocks {
            let text = block.split("```").next().unwrap();
            parse("guide", text).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Goal: a file with all settings of TLS is read, and its faults are reported with the line and the remedy. Method: one error at a time.
    #[test]
    fn settings_of_tls_are_read() {
        let relay = "[[relay]]\nlisten = 'tcp://127.0.0.1:1'\nto = 'tcp://web.test:2'\n";
        let route = "[[relay.route]]\nnames = '*.a.test'\ntls = { pass_through = true }\n";
        let all = format!(
            "{relay}tls = {{ certificate = 'c', key = 'k', alpn = 'h2' }}\nto_tls = {{}}\n{route}to = 'tcp://[::1]:3'\n\
             to_tls = {{ server_name = 'a.test', ca = 'ca', certificate = 'c', key = 'k', alpn = ['a', 'b'] }}\n"
        );
        let config = parse("f", &all).unwrap();
        let FlowKind::Relay(read) = &config.flows[0].kind else { panic!("{config:?}") };
        assert_eq!((read.tls.alpn.len(), read.to_tls.is_on, read.route.len()), (1, true, 1));
        assert_eq!(read.to_tls.name_for(&read.to[0]).as_deref(), Some("web.test"));
        let of_route = &read.route[0];
        assert_eq!(of_route.to_tls.name_for(&of_route.to[0]).as_deref(), Some("a.test"));
        assert!(of_route.tls.pass_through && of_route.to_tls.is_on);
        for (text, words) in [
            (format!("{relay}tls = {{}}\n"), &["line 1", "`certificate`", "`pass_through"][..]),
            (format!("{relay}tls = {{ certificate = 'c' }}\n"), &["line 1", "without its `key`"]),
            (format!("{relay}tls = {{ certificat = 'c' }}\n"), &["line 4", "mean `certificate`?"]),
            (format!("{relay}tls = {{ pass_through = true, alpn = 'h2' }}\n"), &["`alpn`"]),
            (format!("{relay}to_tls = {{ key = 'k' }}\n"), &["line 1", "`to_tls` needs"]),
            (format!("{relay}to_tls = {{ verify = false }}\n"), &["line 4", "`verify`"]),
            (
                relay.replace("tcp://web.test:2", "unix:/run/web") + "to_tls = {}\n",
                &["line 1", "`server_name` of unix:/run/web"],
            ),
            (relay.replace("tcp:", "udp:") + "to_tls = {}\n", &["line 1", "are for streams"]),
            (format!("{relay}{}", route.replace("'*.a.test'", "[]")), &["line 1", "`names`"]),
            (format!("{relay}{route}to_tls = {{}}\n"), &["line 1", "`to_tls` without `to`"]),
            (format!("{relay}{route}to = 'tcp://127.0.0.1:1'\n"), &["line 1", "to itself"]),
            (relay.replace("'tcp://web.test:2'", "[]") + route, &["line 1", "`to` is empty"]),
        ] {
            assert_refused(&text, words);
        }
    }

    fn assert_refused(text: &str, words: &[&str]) {
        let error = parse("f", text).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{text}\n{error}\nlacks {word}");
        }
    }

    /// Goal: what no host can do is refused without looking at it: paths, names of interfaces, a folder as a log, an empty list of allowed
    /// clients. Method: one file each.
    #[test]
    fn what_cannot_be_is_refused() {
        let l3 = |more: &str| format!("[[l3]]\ninterfaces = ['a', 'b']\n{more}");
        let nat = "[[nat]]\ninside = ['a']\noutside = 'b'\npath = 'af-xdp'\n";
        let relay = "[[relay]]\nlisten = 'tcp://127.0.0.1:1'\nto = 'tcp://127.0.0.1:2'\n";
        let cannot = &["line 1", "cannot be the name of an interface"][..];
        for (text, words) in [
            (l3("path = 'af-xdp'"), &["line 1", "`path`", "for l2 only"][..]),
            (nat.to_owned(), &["line 1", "`path`", "for l2 only"]),
            (l3("").replace("'b'", "'a/b'"), cannot),
            (l3("").replace("'b'", "'a b'"), cannot),
            (l3("").replace("'b'", "'sixteen-letters-'"), cannot),
            (
                format!("[process]\nlog_file = '/var'\n{relay}log = 'each'\n"),
                &["`log_file` is /var", "folder", "/var/forward.log"],
            ),
            (format!("{relay}allow = []\n"), &["line 4", "`allow` is empty", "10.0.0.0/8"]),
        ] {
            assert_refused(&text, words);
        }
    }

    /// Goal: a connection that would come back to its relay for ever is refused, and so is a path that no socket can have. Method:
    /// targets that are the relay's own, directly, by a wildcard, and by two other relays; a path that is too long by a byte.
    #[test]
    fn circles_and_long_paths_are_refused() {
        let relay = |listen: &str, to: &str| {
            format!("[[relay]]\nlisten = 'tcp://{listen}'\nto = 'tcp://{to}'\n")
        };
        for (text, words) in [
            (relay("127.0.0.1:1", "127.0.0.1:1"), &["line 1", "to itself"][..]),
            (relay("0.0.0.0:1", "127.0.0.1:1"), &["line 1", "to itself"]),
            (relay("[::]:1", "127.0.0.2:1"), &["line 1", "to itself"]),
            (
                relay("0.0.0.0:1", "127.0.0.1:2")
                    + &relay("[::1]:2", "[::1]:3")
                    + &relay("127.0.0.1:2", "127.0.0.1:1"),
                &["line 1", "to itself by flow `relay-3`"],
            ),
            (
                format!(
                    "[[relay]]\nlisten = 'unix:{}'\nto = 'tcp://127.0.0.1:1'\n",
                    "x".repeat(108)
                ),
                &["line 1", "108 bytes", "107"],
            ),
        ] {
            assert_refused(&text, words);
        }
        let chain = relay("0.0.0.0:1", "127.0.0.1:2") + &relay("127.0.0.1:2", "127.0.0.1:3");
        assert!(parse("f", &chain).is_ok());
    }

    /// Goal: no text makes the parser panic. Method: the file with everything, with bytes changed, from 64 seeds.
    #[test]
    fn any_text_is_read_safely() {
        for seed in 0..64 {
            let mut rng = fastrand::Rng::with_seed(seed);
            for _ in 0..20 {
                let mut text = ALL.as_bytes().to_vec();
                for _ in 0..rng.usize(1..6) {
                    let at = rng.usize(..text.len());
                    text[at] = rng.u8(0x20..0x7f);
                }
                text.truncate(rng.usize(..=text.len()));
                drop(parse("f", std::str::from_utf8(&text).unwrap()));
            }
        }
    }
}
