//! The values of settings, parsed from text: the same on the command line and in a file.

use std::{
    fmt,
    marker::PhantomData,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use clap::ValueEnum;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{
        self, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use thiserror::Error;
use vigie::forward::{relay::AddressRange, tables::Prefix};

use super::{
    check,
    numbers::{U32_MAX, number},
};

/// The error of a text that is not a valid value; it says which texts are.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct BadValue(String);

impl BadValue {
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// An endpoint of streams or datagrams.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EndpointUri {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Unix(PathBuf),
    /// A host by its name, for targets.
    TcpName(HostPort),
    UdpName(HostPort),
}

/// A name and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostPort {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The longest name, and the longest label of one, in bytes (RFC 1035).
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

impl HostPort {
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let name = host.strip_suffix('.').unwrap_or(host);
        let is_label = |label: &str| {
            (1..=LABEL_BYTES_MAX).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        // A last label of digits is a mistyped address.
        let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
        let is_name = name.len() <= NAME_BYTES_MAX
            && name.split('.').all(is_label)
            && !name.rsplit('.').next().is_some_and(is_number);
        is_name.then(|| Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for EndpointUri {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let (scheme, rest) = text.split_once(':').unwrap_or(("", text));
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let read = |address: fn(SocketAddr) -> Self, name: fn(HostPort) -> Self| {
            let by_name = || HostPort::parse(rest).map(name);
            rest.parse().ok().map(address).or_else(by_name).ok_or_else(|| {
                BadValue::new(format!(
                    "`{rest}` must be an address or the name of a host, with a port, as in 192.0.2.1:7000, [::1]:7000 or \
                     web.example:7000"
                ))
            })
        };
        match scheme {
            "tcp" => read(Self::Tcp, Self::TcpName),
            "udp" => read(Self::Udp, Self::UdpName),
            "unix" if rest.is_empty() => Err(BadValue::new("a path must follow `unix:`")),
            "unix" => Ok(Self::Unix(PathBuf::from(rest))),
            _ => Err(BadValue::new(format!(
                "`{text}` must begin with tcp://, udp:// or unix:, as in tcp://0.0.0.0:8080"
            ))),
        }
    }
}

impl fmt::Display for EndpointUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Udp(address) => write!(f, "udp://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::TcpName(name) => write!(f, "tcp://{name}"),
            Self::UdpName(name) => write!(f, "udp://{name}"),
        }
    }
}

/// Parses an endpoint to listen on.
pub(crate) fn listener(text: &str) -> Result<EndpointUri, BadValue> {
    match text.parse()? {
        EndpointUri::TcpName(_) | EndpointUri::UdpName(_) => Err(BadValue::new(format!(
            "`{text}` must be an address of this host, as in tcp://0.0.0.0:8080: names are not resolved to listen \
             (`ip addr` lists the addresses)"
        ))),
        EndpointUri::Tcp(at) | EndpointUri::Udp(at) if is_of_many(at.ip()) => {
            Err(BadValue::new(format!(
                "`{text}` must be an address of this host, as in tcp://0.0.0.0:8080, and {} is one of many hosts",
                at.ip()
            )))
        }
        EndpointUri::Tcp(at) | EndpointUri::Udp(at) if lacks_interface(&at) => {
            Err(BadValue::new(format!("`{text}` {NEEDS_INTERFACE}")))
        }
        endpoint => Ok(endpoint),
    }
}

/// What is said of an address of one link.
pub(super) const NEEDS_INTERFACE: &str =
    "needs the number of its interface, as in tcp://[fe80::1%2]:8080 (`ip link` lists them)";

/// Returns whether an address is one of a link, and does not say of which.
pub(super) const fn lacks_interface(at: &SocketAddr) -> bool {
    matches!(at, SocketAddr::V6(at) if at.ip().is_unicast_link_local() && at.scope_id() == 0)
}

/// Returns whether an address is that of a group, or of all hosts.
pub(super) fn is_of_many(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Parses an endpoint for metrics: `tcp://` may be left out.
pub(crate) fn metrics_listener(text: &str) -> Result<EndpointUri, BadValue> {
    let is_address = text.parse::<SocketAddr>().is_ok();
    let endpoint = if is_address { listener(&format!("tcp://{text}")) } else { listener(text) };
    match endpoint {
        Ok(endpoint @ EndpointUri::Tcp(_)) => Ok(endpoint),
        Ok(EndpointUri::Unix(path)) => {
            check::served_path(&path).map(|()| EndpointUri::Unix(path)).map_err(BadValue)
        }
        Err(error) if is_address => Err(error),
        _ => Err(BadValue::new(format!(
            "`{text}` must be where HTTP is served, as in 127.0.0.1:9100 or unix:/run/metrics.sock"
        ))),
    }
}

/// Parses the path of a Unix socket that this process serves.
pub(crate) fn socket_path(text: &str) -> Result<PathBuf, BadValue> {
    let path = PathBuf::from(text);
    check::served_path(&path).map(|()| path).map_err(BadValue)
}

/// Parses an address of IPv4.
pub(crate) fn ipv4_address(text: &str) -> Result<Ipv4Addr, BadValue> {
    text.parse().map_err(|_| {
        BadValue(format!("`{text}` must be an address of IPv4, without a prefix, as in 192.0.2.1"))
    })
}

/// Reads an address of IPv4.
pub(super) fn read_ipv4_address<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Ipv4Addr>, D::Error> {
    ipv4_address(&String::deserialize(from)?).map(Some).map_err(de::Error::custom)
}

/// Reads the path of a Unix socket.
pub(super) fn read_socket_path<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<PathBuf>, D::Error> {
    socket_path(&String::deserialize(from)?).map(Some).map_err(de::Error::custom)
}

/// Reads an endpoint for metrics.
pub(super) fn read_metrics_listener<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<EndpointUri>, D::Error> {
    metrics_listener(&String::deserialize(from)?).map(Some).map_err(de::Error::custom)
}

/// Reads an endpoint to listen on.
pub(super) fn read_listener<'de, D: Deserializer<'de>>(from: D) -> Result<EndpointUri, D::Error> {
    listener(&String::deserialize(from)?).map_err(de::Error::custom)
}

/// A target of a relay, with its weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TargetUri {
    pub(crate) url: EndpointUri,
    pub(crate) weight: u16,
}

/// The largest weight of a target.
const WEIGHT_MAX: i64 = 256;

impl FromStr for TargetUri {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let Some((url, weight)) = text.rsplit_once(",weight=") else {
            return Ok(Self { url: text.parse()?, weight: 1 });
        };
        let number = weight.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
        let number = number.and_then(|weight| u16::try_from(weight).ok()).ok_or_else(|| {
            BadValue::new(format!(
                "`{weight}` must be a weight from 1 to {WEIGHT_MAX}, as in tcp://192.0.2.1:80,weight=3"
            ))
        })?;
        Ok(Self { url: url.parse()?, weight: number })
    }
}

impl fmt::Display for TargetUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { url, weight: 1 } => url.fmt(f),
            Self { url, weight } => write!(f, "{url},weight={weight}"),
        }
    }
}

impl<'de> Deserialize<'de> for TargetUri {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            url: EndpointUri,
            #[serde(default = "one", deserialize_with = "number::<_, _, 1, WEIGHT_MAX>")]
            weight: u16,
        }

        const fn one() -> u16 {
            1
        }

        struct TargetVisitor;

        impl<'de> Visitor<'de> for TargetVisitor {
            type Value = TargetUri;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a string, or a table as in { url = \"tcp://192.0.2.1:80\", weight = 3 }",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TargetUri, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<TargetUri, A::Error> {
                let Table { url, weight } = Table::deserialize(MapAccessDeserializer::new(table))?;
                Ok(TargetUri { url, weight })
            }
        }

        deserializer.deserialize_any(TargetVisitor)
    }
}

/// Active checks of a relay's targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Check {
    pub(crate) every: Time,
    pub(crate) timeout: Time,
    #[serde(deserialize_with = "number::<_, _, 1, U32_MAX>")]
    pub(crate) rise: u32,
    #[serde(deserialize_with = "number::<_, _, 1, U32_MAX>")]
    pub(crate) fall: u32,
}

impl Default for Check {
    fn default() -> Self {
        let time = |seconds| Time(Duration::from_secs(seconds));
        Self { every: time(2), timeout: time(1), rise: 2, fall: 3 }
    }
}

impl FromStr for Check {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let mut check = Self::default();
        for setting in text.split(',') {
            let bad = || {
                BadValue::new(format!(
                    "`{setting}` must be a setting of checks, as in every=2s,timeout=1s,rise=2,fall=3"
                ))
            };
            let (name, value) = setting.split_once('=').ok_or_else(bad)?;
            match name {
                "every" => check.every = value.parse()?,
                "timeout" => check.timeout = value.parse()?,
                "rise" => check.rise = value.parse().map_err(|_| bad())?,
                "fall" => check.fall = value.parse().map_err(|_| bad())?,
                _ => return Err(bad()),
            }
        }
        Ok(check)
    }
}

/// The budget of retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retries {
    #[serde(deserialize_with = "number::<_, _, 0, U32_MAX>")]
    pub(crate) percent: u32,
    #[serde(deserialize_with = "number::<_, _, 0, U32_MAX>")]
    pub(crate) min_per_second: u32,
}

impl Default for Retries {
    fn default() -> Self {
        Self { percent: 20, min_per_second: 10 }
    }
}

impl FromStr for Retries {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let mut retries = Self::default();
        for setting in text.split(',') {
            let bad = || {
                BadValue::new(format!(
                    "`{setting}` must be a setting of retries, as in percent=20,min_per_second=10"
                ))
            };
            let (name, value) = setting.split_once('=').ok_or_else(bad)?;
            let value = value.parse().map_err(|_| bad())?;
            match name {
                "percent" => retries.percent = value,
                "min_per_second" => retries.min_per_second = value,
                _ => return Err(bad()),
            }
        }
        Ok(retries)
    }
}

/// A duration: `250ms`, `10s`, `5m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeVisitor;

        impl Visitor<'_> for TimeVisitor {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string with a time and its unit, as in \"10s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Time, E> {
                Err(E::custom(format_args!(
                    "`{number}` has no unit: write \"{number}s\" for seconds, or \"{number}ms\""
                )))
            }
        }

        deserializer.deserialize_any(TimeVisitor)
    }
}

/// The shortest duration accepted besides zero.
const TIME_MIN: Duration = Duration::from_millis(1);

/// The longest duration accepted: a longer one is most likely in the wrong unit.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl FromStr for Time {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        // Read by humantime, `M` is a month, which is hardly ever meant, and a zero needs no unit.
        let is_clear = !text.contains('M') && text != "0";
        match humantime::parse_duration(text) {
            Ok(time) if is_clear && (time.is_zero() || (TIME_MIN..=TIME_MAX).contains(&time)) => {
                Ok(Self(time))
            }
            _ => Err(BadValue::new(format!(
                "`{text}` must be a time with a unit (250ms, 10s, 5m, 1h 30m): 0s, or from 1ms to a year"
            ))),
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// A range of ports, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

impl FromStr for Ports {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err(BadValue::new(format!(
                "`{text}` must be the first and the last port, as in 20000-60000"
            ))),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The transport of a published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportProtocol {
    Tcp,
    Udp,
}

/// A public port forwarded to an inside server: `tcp:8080=10.0.0.2:80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Publish {
    pub(crate) transport: TransportProtocol,
    pub(crate) port: u16,
    pub(crate) to: SocketAddr,
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            TransportProtocol::Tcp => "tcp",
            TransportProtocol::Udp => "udp",
        };
        write!(f, "{transport}:{}={}", self.port, self.to)
    }
}

impl FromStr for Publish {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let read = || {
            let (transport, rest) = text.split_once(':')?;
            let (port, to) = rest.split_once('=')?;
            let transport = match transport {
                "tcp" => TransportProtocol::Tcp,
                "udp" => TransportProtocol::Udp,
                _ => return None,
            };
            let port = port.parse().ok().filter(|port| *port > 0)?;
            Some(Self { transport, port, to: to.parse().ok()? })
        };
        read().ok_or_else(|| {
            BadValue::new(format!(
                "`{text}` must be the outside port and who gets it, as in tcp:8080=10.0.0.2:80"
            ))
        })
    }
}

/// The method that moves frames.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Deserialize, Serialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PathChoice {
    /// The first of xdp-native, xdp-generic, tcx, af-packet that works.
    #[default]
    Auto,
    /// An eBPF program in the driver.
    XdpNative,
    /// The same program, after the driver.
    XdpGeneric,
    /// The same program, at the entry of the kernel's traffic control.
    Tcx,
    /// This process, with rings that the driver fills.
    AfXdp,
    /// This process, with packet sockets.
    AfPacket,
}

/// The way in which the host's threads wait for frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WaitMode {
    /// Until the kernel wakes them: no processor time while no frames arrive.
    #[default]
    Sleep,
    /// Poll the network card for a while before sleeping.
    BusyPoll,
    /// Poll continuously: the shortest delay, and a whole processor.
    Spin,
}

/// The treatment of frames with several segments, which senders on this host leave to a network card that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SegmentsChoice {
    /// Accept them whole, up to 64 KiB, and cut them to the MTU: 64 MiB of memory per interface.
    #[default]
    Cut,
    /// Drop and count them: 8 MiB of memory per interface, and more frames can wait.
    Refuse,
}

/// The method that moves the bytes of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RelayMode {
    /// Measure both, and take the faster one; if they are equally fast, the one that takes less processor time.
    #[default]
    Auto,
    /// Through a buffer of this process.
    Copy,
    /// Through a pipe of the kernel, without a copy.
    Splice,
}

/// The policy by which a relay chooses a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BalanceChoice {
    /// The first that can be reached.
    #[default]
    First,
    /// In turn, as often as the weights say.
    RoundRobin,
    /// The one with the fewest open connections for its weight.
    LeastConnections,
    /// The less busy one of two that chance picks.
    RandomTwo,
    /// Always the same for the same client's address.
    Hash,
}

/// The lines of the log that a flow writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogChoice {
    /// None.
    #[default]
    Off,
    /// One at the end of each connection; one at the beginning and one at the end of each translation.
    Each,
    /// Of translations, the same without the remote end, as RFC 6888 (REQ-12) recommends.
    Sources,
}

/// The place of the log's lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogTarget {
    #[default]
    Stdout,
    Stderr,
    File(PathBuf),
}

impl FromStr for LogTarget {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        match text {
            "stdout" => Ok(Self::Stdout),
            "stderr" => Ok(Self::Stderr),
            path if path.contains('/') => Ok(Self::File(path.into())),
            other => Err(BadValue::new(format!(
                "`{other}` must be `stdout`, `stderr` or the path of a file, as in /var/log/forward.log or ./forward.log"
            ))),
        }
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::Stderr => f.write_str("stderr"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// The encoding of the length before a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LengthForm {
    /// Two bytes, the most significant first.
    U16Be,
    /// Four bytes, the most significant first.
    U32Be,
    /// Four bytes, the least significant first.
    U32Le,
    /// Eight bytes, the most significant first.
    U64Be,
    /// One to ten bytes, as in protocol buffers.
    Varint,
}

/// The moment at which the first byte of a message may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FrameMode {
    /// Whichever the model predicts to be faster, by the measured links.
    #[default]
    Planned,
    /// After the whole message has arrived.
    StoreAndForward,
    /// As soon as it has arrived, before the rest of the message.
    CutThrough,
}

/// A range of addresses: `10.0.0.0/8`, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range(pub(crate) AddressRange);

impl FromStr for Range {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || {
            BadValue::new(format!(
                "`{text}` must be addresses, as in 10.0.0.0/8 or ::1, with at most 32 bits after `/`, or 128 in version 6"
            ))
        };
        network(text, bad)?;
        text.parse().map(Self).map_err(|_| bad())
    }
}

/// Reads a network, or one address, of which it must be clear which is meant.
fn network(text: &str, bad: impl Fn() -> BadValue) -> Result<Prefix, BadValue> {
    let network = text.parse::<Prefix>().map_err(|_| bad())?;
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    let address = address.parse::<IpAddr>().map_err(|_| bad())?;
    if network.address() != address {
        return Err(BadValue(format!(
            "`{text}` is an address with the length of a network: write {network} for the whole network, or {address} for the one address"
        )));
    }
    if text.contains('/') && address.is_ipv6() && address.to_canonical().is_ipv4() {
        return Err(BadValue(format!(
            "`{text}` is a network of IPv4 in the form of IPv6: write it as one of IPv4, as in 10.0.0.0/8"
        )));
    }
    Ok(network)
}

/// A network whose addresses are translated: `10.0.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inside(pub(crate) Prefix);

impl FromStr for Inside {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || {
            BadValue::new(format!(
                "`{text}` must be a network of IPv4, as in 10.0.0.0/24, with at most 32 bits after `/`"
            ))
        };
        let prefix = network(text, bad)?;
        if prefix.address().is_ipv4() { Ok(Self(prefix)) } else { Err(bad()) }
    }
}

/// Reads a list, or a single value without brackets.
pub(super) fn one_or_more<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + FromStr<Err: fmt::Display>,
{
    struct ListVisitor<T>(PhantomData<T>);

    impl<'de, T> Visitor<'de> for ListVisitor<T>
    where
        T: Deserialize<'de> + FromStr<Err: fmt::Display>,
    {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string, or a list of strings, as in [\"...\", \"...\"]")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
            text.parse().map(|one| vec![one]).map_err(E::custom)
        }

        fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Vec<T>, A::Error> {
            T::deserialize(MapAccessDeserializer::new(table)).map(|one| vec![one])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(list))
        }
    }

    deserializer.deserialize_any(ListVisitor(PhantomData))
}

/// Parses a string. (serde's `try_from` would lose its place.)
struct TextVisitor<T>(PhantomData<T>);

impl<T: FromStr<Err = BadValue>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! from_text {
    ($($type:ty),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(TextVisitor(PhantomData))
            }
        }
    )*};
}

from_text!(EndpointUri, LogTarget, Ports, Publish, Range, Inside);

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a budget of retries is read, and mistakes in it are refused. Method: each setting, alone and together, and wrong ones.
    #[test]
    fn retries_are_read() {
        let read = |text: &str| text.parse::<Retries>();
        assert_eq!(
            read("percent=0,min_per_second=1"),
            Ok(Retries { percent: 0, min_per_second: 1 })
        );
        assert_eq!(read("percent=50"), Ok(Retries { percent: 50, ..Retries::default() }));
        for bad in ["", "percent", "percent=-1", "percent=20%", "ratio=1"] {
            assert!(read(bad).unwrap_err().to_string().contains("percent=20"), "{bad}");
        }
    }

    /// Goal: valid texts are parsed, and others are refused with advice. Method: each kind.
    #[test]
    fn texts_are_read() {
        let tcp = EndpointUri::Tcp("[::1]:7".parse().unwrap());
        assert_eq!("tcp://[::1]:7".parse(), Ok(tcp.clone()));
        assert_eq!(tcp.to_string().parse(), Ok(tcp.clone()));
        assert_eq!("unix:/run/x".parse(), Ok(EndpointUri::Unix("/run/x".into())));
        assert_eq!("unix:///run/x".parse(), Ok(EndpointUri::Unix("/run/x".into())));
        for bad in [
            "",
            "tcp",
            "tcp://a b:80",
            "tcp://1.2.3.400:80",
            "tcp://web:0",
            "tcp://web",
            "udp://a..b:1",
            "tcp://1.2.3.4",
            "http://1.2.3.4:80",
            "unix:",
        ] {
            let error = bad.parse::<EndpointUri>().unwrap_err().to_string();
            assert!(error.contains("must"), "{bad}: {error}");
        }
        let name = HostPort { host: "web-1.example.".to_owned(), port: 80 };
        let named = EndpointUri::TcpName(name);
        assert_eq!("tcp://web-1.example.:80".parse(), Ok(named.clone()));
        assert_eq!(named.to_string().parse(), Ok(named));
        assert!(listener("udp://localhost:80").is_err() && listener("udp://[::1]:80").is_ok());
        assert_eq!(metrics_listener("[::1]:7"), Ok(tcp.clone()));
        assert_eq!(metrics_listener("tcp://[::1]:7"), Ok(tcp));
        assert!(metrics_listener("unix:/run/m").is_ok());
        for bad in ["9100", "udp://[::1]:7", "localhost:9100", "http://127.0.0.1:9100"] {
            let error = metrics_listener(bad).unwrap_err().to_string();
            assert!(error.contains("127.0.0.1:9100"), "{bad}: {error}");
        }
        let target: TargetUri = "unix:/run/a,weight=3,weight=4".parse().unwrap();
        assert_eq!((target.url.to_string().as_str(), target.weight), ("unix:/run/a,weight=3", 4));
        assert_eq!(target.to_string().parse(), Ok(target));
        for bad in ["tcp://[::1]:7,weight=0", "tcp://[::1]:7,weight=257", "tcp://[::1]:7,weight=x"]
        {
            let error = bad.parse::<TargetUri>().unwrap_err().to_string();
            assert!(error.contains("weight"), "{bad}: {error}");
        }
        let check =
            Check { rise: 5, timeout: Time(Duration::from_millis(300)), ..Check::default() };
        assert_eq!("timeout=300ms,rise=5".parse(), Ok(check));
        for bad in ["", "rise", "rise=-1", "every=1", "often=2s"] {
            assert!(bad.parse::<Check>().is_err(), "{bad}");
        }
        assert_eq!("250ms".parse(), Ok(Time(Duration::from_millis(250))));
        assert_eq!("2h".parse(), Ok(Time(Duration::from_secs(7200))));
        assert_eq!("1h 30m".parse(), Ok(Time(Duration::from_secs(5400))));
        for bad in
            ["", "s", "0", "10", "-1s", "5M", "500us", "soon", "99999999999999999999s", "9000h"]
        {
            assert!(bad.parse::<Time>().is_err(), "{bad}");
        }
        assert_eq!("80".parse(), Ok(Ports { first: 80, last: 80 }));
        for bad in ["", "0-1", "9-8", "1-65536", "a-b"] {
            assert!(bad.parse::<Ports>().is_err(), "{bad}");
        }
        let to = "10.0.0.2:80".parse().unwrap();
        let publish = Publish { transport: TransportProtocol::Tcp, port: 8080, to };
        assert_eq!("tcp:8080=10.0.0.2:80".parse(), Ok(publish));
        for bad in ["", "8080=10.0.0.2:80", "sctp:1=10.0.0.2:80", "tcp:0=10.0.0.2:80", "tcp:1=x:80"]
        {
            assert!(bad.parse::<Publish>().is_err(), "{bad}");
        }
    }
}
