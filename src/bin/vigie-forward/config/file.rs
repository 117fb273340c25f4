//! The configuration file.

use std::{
    fs, io,
    net::Ipv4Addr,
    num::NonZeroU16,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    BalanceChoice, CONNECT_DEFAULT, CONNECTIONS_DEFAULT, CONNECTIONS_MAX, Check, ClientTls, Config,
    EndpointUri, FlowConfig, FlowKind, FrameMode, Frames, HOLD_DEFAULT, HOST_SHARE_DEFAULT,
    IDLE_DEFAULT, Inside, L2, L3, LengthForm, LogChoice, MESSAGE_BYTES_DEFAULT, Nat, PathChoice,
    Ports, Process, Publish, RESOLVE_DEFAULT, Range, Relay, RelayMode, Retries, Route,
    SegmentsChoice, TABLE_MAIN, TargetTls, TargetUri, Time, WaitMode,
    check::check,
    mistakes::{Mistakes, Origin, Source},
    nearest::worded,
    numbers::{U32_MAX, number, some_number},
    tables::{self, One, TomlTable, many, tables},
    tls::{read_client_tls, read_target_tls},
    values::{one_or_more, read_ipv4_address, read_listener},
};
use serde::Deserialize;
use thiserror::Error;
use toml::de::DeTable;

/// The maximum size of a configuration file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The reason why a configuration is refused.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("{file} cannot be read: {source}")]
    File { file: String, source: io::Error },
    #[error("{file} has {bytes} bytes, but a configuration may have at most {FILE_BYTES_MAX}")]
    Long { file: String, bytes: u64 },
    #[error("{0}")]
    Mistakes(Mistakes),
}

impl ConfigError {
    /// Returns each problem, on one line.
    pub(crate) fn problems(&self) -> Vec<String> {
        match self {
            Self::Mistakes(mistakes) => {
                mistakes.list().iter().map(|one| one.text.clone()).collect()
            }
            other => vec![other.to_string()],
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRelay {
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(deserialize_with = "read_listener")]
    listen: EndpointUri,
    #[serde(deserialize_with = "one_or_more")]
    to: Vec<TargetUri>,
    #[serde(default)]
    balance: BalanceChoice,
    check: Option<One<Check>>,
    retries: Option<One<Retries>>,
    resolve: Option<Time>,
    #[serde(default)]
    mode: RelayMode,
    idle: Option<Time>,
    connect: Option<Time>,
    #[serde(default, deserialize_with = "some_number::<_, _, 1, CONNECTIONS_MAX>")]
    connections_max: Option<u32>,
    /// The same, as it was called before.
    #[serde(default, deserialize_with = "some_number::<_, _, 1, CONNECTIONS_MAX>")]
    connections: Option<u32>,
    #[serde(default)]
    proxy_send: bool,
    #[serde(default, deserialize_with = "one_or_more")]
    proxy_from: Vec<Range>,
    #[serde(default, deserialize_with = "allowed")]
    allow: Vec<Range>,
    #[serde(default, deserialize_with = "one_or_more")]
    deny: Vec<Range>,
    #[serde(default, deserialize_with = "some_number::<_, _, 1, U32_MAX>")]
    per_source_max: Option<u32>,
    framed: Option<LengthForm>,
    #[serde(default)]
    frame_mode: FrameMode,
    #[serde(default, deserialize_with = "some_number::<_, _, 1, { i64::MAX }>")]
    message_max: Option<u64>,
    #[serde(default)]
    log: LogChoice,
    #[serde(default, deserialize_with = "read_client_tls")]
    tls: ClientTls,
    #[serde(default, deserialize_with = "read_target_tls")]
    to_tls: TargetTls,
    #[serde(default)]
    route: Vec<One<Route>>,
}

/// Reads the networks that are allowed. An empty list is as if there were none: all clients would be served.
fn allowed<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Range>, D::Error> {
    some(
        one_or_more(from)?,
        "`allow` is empty: name the networks that are served, as in [\"10.0.0.0/8\"], or leave it out to serve all clients",
    )
}

/// Reads the networks that are translated. An empty list is as if there were none: all that the inside interfaces reach would be translated.
fn translated<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Inside>, D::Error> {
    some(
        one_or_more(from)?,
        "`from` is empty: name the networks that are translated, as in [\"10.0.0.0/24\"], or leave it out to translate those that `inside` \
         reaches",
    )
}

/// Refuses an empty list.
fn some<T, E: serde::de::Error>(list: Vec<T>, empty: &str) -> Result<Vec<T>, E> {
    if list.is_empty() { Err(E::custom(empty)) } else { Ok(list) }
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

/// Reads a number of ports.
fn ports_per_host<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<NonZeroU16>, D::Error> {
    number::<D, u16, 1, 65_535>(from).map(NonZeroU16::new)
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
    #[serde(deserialize_with = "number::<_, _, 1, { i64::MAX }>")]
    to_nic_above: u64,
    #[serde(deserialize_with = "number::<_, _, 1, { i64::MAX }>")]
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
            #[serde(rename = "name")]
            _name: Option<String>,
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
            fn into_kind(self) -> FlowKind {
                let migrate = self.migrate.map(|One(migrate)| migrate);
                let frames = Frames {
                    path: self.path,
                    waiting: self.waiting,
                    segments: self.segments,
                    to_nic_above: migrate.as_ref().map(|migrate| migrate.to_nic_above),
                    to_host_below: migrate.as_ref().map(|migrate| migrate.to_host_below),
                    hold: migrate.map_or(HOLD_DEFAULT, |migrate| migrate.hold),
                };
                FlowKind::$flow($flow { $($field: self.$field,)* frames })
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
        #[serde(default = "table_main", deserialize_with = "number::<_, _, 1, U32_MAX>")]
        table: u32,
    }
}

frames_table! {
    RawNat => Nat {
        inside: Vec<String>,
        outside: String,
        #[serde(default, deserialize_with = "read_ipv4_address")]
        address: Option<Ipv4Addr>,
        #[serde(default, deserialize_with = "translated")]
        from: Vec<Inside>,
        #[serde(default)]
        ports: Option<Ports>,
        #[serde(default, deserialize_with = "ports_per_host")]
        ports_per_host: Option<NonZeroU16>,
        #[serde(default = "host_share_default", deserialize_with = "number::<_, _, 1, 100>")]
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
        #[serde(default = "table_main", deserialize_with = "number::<_, _, 1, U32_MAX>")]
        table: u32,
    }
}

tables! {
    RawMigrate: "one table: write [l3.migrate], with one bracket, or migrate = { to_nic_above = 50000, to_host_below = 10000 }";
}

impl RawRelay {
    fn into_kind(self) -> FlowKind {
        let relay = Relay {
            listen: self.listen,
            to: self.to,
            balance: self.balance,
            check: self.check.map(|One(check)| check),
            retries: self.retries.map(|One(retries)| retries),
            resolve: self.resolve.unwrap_or(RESOLVE_DEFAULT),
            mode: self.mode,
            idle: self.idle.unwrap_or(IDLE_DEFAULT),
            connect: self.connect.unwrap_or(CONNECT_DEFAULT),
            connections_max: self
                .connections_max
                .or(self.connections)
                .unwrap_or(CONNECTIONS_DEFAULT),
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
            route: self.route.into_iter().map(|One(route)| route).collect(),
        };
        FlowKind::Relay(Box::new(relay))
    }
}

/// What is wrong with the files that a flow names: the paths of keys, and the problems.
pub(crate) type FileProblems = Vec<(String, String)>;

/// Reads a file and checks it, and by `files` those that its flows name.
pub(crate) fn read(
    path: &Path,
    files: impl Fn(&FlowConfig) -> FileProblems,
) -> Result<Config, ConfigError> {
    let file = path.display().to_string();
    let failed = |source| ConfigError::File { file: file.clone(), source };
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(ConfigError::Long { file, bytes });
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    parse_with(file, text, files)
}

/// Reads a text without reading other files.
#[cfg(test)]
pub(crate) fn parse(file: &str, text: &str) -> Result<Config, ConfigError> {
    parse_with(file.to_owned(), text.to_owned(), |_| Vec::new())
}

fn parse_with(
    file: String,
    text: String,
    files: impl Fn(&FlowConfig) -> FileProblems,
) -> Result<Config, ConfigError> {
    let source = Arc::new(Source::new(file, text));
    let mut mistakes = Mistakes::default();
    let config = read_tables(&source, &mut mistakes);
    check(&config, &mut mistakes);
    for flow in &config.flows {
        if mistakes.is_full() {
            break;
        }
        for (key, problem) in files(flow) {
            mistakes.add(&flow.origin, &[&key], problem);
        }
    }
    mistakes.into_result().map_err(ConfigError::Mistakes)?;
    Ok(config)
}

/// Returns the stats socket that a configuration names, right or wrong as the rest of it may be.
pub(crate) fn stats_socket(text: &str) -> Option<PathBuf> {
    let (root, _) = DeTable::parse_recoverable(text);
    let process = root.get_ref().get("process")?.get_ref();
    let path = |key| process.get(key)?.get_ref().as_str().map(PathBuf::from);
    path("stats_socket").or_else(|| path("takeover"))
}

/// The kinds of tables.
const TABLES: [&str; 5] = ["process", "relay", "l2", "l3", "nat"];

/// Reads what can be read.
fn read_tables(source: &Arc<Source>, mistakes: &mut Mistakes) -> Config {
    let mut config = Config { origin: Origin::default().in_file(source), ..Config::default() };
    let root = match DeTable::parse(&source.text) {
        Ok(root) => root.into_inner(),
        Err(error) => {
            let place = error.span().unwrap_or_default();
            let problem = format!("TOML syntax: {}", error.message());
            mistakes.add_at(&config.origin, place, problem);
            return config;
        }
    };

    let mut tables = Vec::new();
    for (key, value) in root {
        let word = key.get_ref().as_ref();
        let Some(word) = TABLES.into_iter().find(|known| *known == word) else {
            let message = worded(&format!(
                "unknown table `{word}`, expected one of `process`, `relay`, `l2`, `l3` or `nat`"
            ));
            mistakes.add_at(&config.origin, key.span(), message);
            continue;
        };
        if word == "process" {
            let read = tables::read::<One<Process>>(value, &mut config.origin, mistakes);
            config.process = read.map(|One(process)| process).unwrap_or_default();
            continue;
        }
        let place = value.span();
        match many(word, value.into_inner()) {
            Ok(list) => tables
                .extend(list.into_iter().zip(1..).map(|(table, number)| (word, number, table))),
            Err(problem) => mistakes.add_at(&config.origin, place, problem),
        }
    }
    // In the order of the file, so that names and messages match it.
    tables.sort_by_key(|(_, _, table)| table.span().start);
    if tables.is_empty() && mistakes.is_empty() {
        mistakes.add(
            &config.origin,
            &[],
            "there is no flow: add a table such as [[relay]] or [[l3]]",
        );
    }
    for (word, number, table) in tables {
        if mistakes.is_full() {
            break;
        }
        let name = table.get_ref().get("name").and_then(|name| name.get_ref().as_str());
        // Unnamed flows are numbered: `relay-1`, `relay-2`.
        let name = name.map_or_else(|| format!("{word}-{number}"), str::to_owned);
        let mut origin = Origin::of_flow(&name).in_file(source);
        let kind = match word {
            "relay" => tables::read(table, &mut origin, mistakes).map(RawRelay::into_kind),
            "l2" => tables::read(table, &mut origin, mistakes).map(RawL2::into_kind),
            "l3" => tables::read(table, &mut origin, mistakes).map(RawL3::into_kind),
            _ => tables::read(table, &mut origin, mistakes).map(RawNat::into_kind),
        };
        config.flows.extend(kind.map(|kind| FlowConfig { name, origin, kind }));
    }
    config
}

#[cfg(test)]
mod tests;
