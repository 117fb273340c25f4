//! The configuration, from the command line or from a file: see `docs/guide/forwarding.md`.

mod check;
mod file;
mod mistakes;
mod nearest;
mod numbers;
mod tables;
mod tls;
mod unique;
mod values;

use std::{fmt, net::Ipv4Addr, num::NonZeroU16, path::PathBuf, time::Duration};

use clap::Args;
use serde::Deserialize;
use vigie::forward::tables::PortBlocks;

#[cfg(test)]
pub(crate) use self::file::parse;
pub(crate) use self::{
    check::{check_command_line, has_port_zero, published_elsewhere, published_outside},
    file::{ConfigError, FileProblems, read, stats_socket},
    mistakes::{Located, Mistakes, Origin},
    tls::{ClientTls, Route, TargetTls, is_used as uses_tls},
    unique::overlaps,
    values::{
        BalanceChoice, Check, EndpointUri, FrameMode, HostPort, Inside, LengthForm, LogChoice,
        LogTarget, PathChoice, Ports, Publish, Range, RelayMode, Retries, SegmentsChoice,
        TargetUri, Time, TransportProtocol, WaitMode,
    },
};

/// The configuration of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) process: Process,
    /// The place of the settings of the process.
    pub(crate) origin: Origin,
    pub(crate) flows: Vec<FlowConfig>,
}

impl Config {
    /// Forgets the places of settings: errors must not name those of a file that has changed since, and its text is freed.
    pub(crate) fn forget_places(&mut self) {
        self.origin = Origin::default();
        self.flows.iter_mut().for_each(|flow| flow.origin = Origin::of_flow(&flow.name));
    }

    /// Returns whether a flow writes lines of the log.
    pub(crate) fn has_log(&self) -> bool {
        self.flows.iter().any(|flow| flow.kind.log() != LogChoice::Off)
    }
}

/// One named flow.
#[derive(Clone, Debug)]
pub(crate) struct FlowConfig {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    pub(crate) kind: FlowKind,
}

/// By name and settings, wherever they are.
impl PartialEq for FlowConfig {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.kind == other.kind
    }
}

impl Eq for FlowConfig {}

/// The kind of a flow, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FlowKind {
    /// Boxed, since it has many more settings than the others.
    Relay(Box<Relay>),
    L2(L2),
    L3(L3),
    Nat(Nat),
}

impl FlowKind {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Relay(_) => "relay",
            Self::L2(_) => "l2",
            Self::L3(_) => "l3",
            Self::Nat(_) => "nat",
        }
    }

    /// Returns where it listens, if it does.
    pub(crate) const fn listen(&self) -> Option<&EndpointUri> {
        match self {
            Self::Relay(relay) => Some(&relay.listen),
            Self::L2(_) | Self::L3(_) | Self::Nat(_) => None,
        }
    }

    /// Returns the interfaces that it uses.
    pub(crate) fn interfaces(&self) -> Vec<&str> {
        self.keyed_interfaces().into_iter().map(|(_, name)| name).collect()
    }

    /// Returns the interfaces that it uses, and their places among its settings.
    pub(crate) fn keyed_interfaces(&self) -> Vec<(String, &str)> {
        let (key, names, last) = match self {
            Self::Relay(_) => return Vec::new(),
            Self::L2(l2) => ("between", &l2.between, None),
            Self::L3(l3) => ("interfaces", &l3.interfaces, None),
            Self::Nat(nat) => ("inside", &nat.inside, Some(("outside".to_owned(), &nat.outside))),
        };
        let keyed = names.iter().enumerate().map(|(at, name)| (format!("{key}.{at}"), name));
        keyed.chain(last).map(|(key, name)| (key, name.as_str())).collect()
    }

    /// Returns the lines that it logs.
    pub(crate) const fn log(&self) -> LogChoice {
        match self {
            Self::Relay(relay) => relay.log,
            Self::Nat(nat) => nat.log,
            Self::L2(_) | Self::L3(_) => LogChoice::Off,
        }
    }

    /// Returns the settings of frames, if it forwards frames.
    pub(crate) const fn frames(&self) -> Option<&Frames> {
        match self {
            Self::Relay(_) => None,
            Self::L2(l2) => Some(&l2.frames),
            Self::L3(l3) => Some(&l3.frames),
            Self::Nat(nat) => Some(&nat.frames),
        }
    }
}

/// Describes the flow in one line.
impl fmt::Display for FlowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Relay(relay) => {
                let to: Vec<_> = relay.to.iter().map(TargetUri::to_string).collect();
                let between = match relay.balance {
                    BalanceChoice::First => ", or else ",
                    _ => " and ",
                };
                write!(f, "relays {} to {}", relay.listen, to.join(between))?;
                relay
                    .route
                    .iter()
                    .try_for_each(|route| write!(f, ", {} elsewhere", route.names.join(" and ")))
            }
            Self::L2(l2) => write!(f, "passes frames between {}", l2.between.join(" and ")),
            Self::L3(l3) => {
                write!(f, "routes between {} by table {}", l3.interfaces.join(", "), l3.table)
            }
            Self::Nat(nat) => {
                let address = nat.address.map(|address| format!("{address} of "));
                let address = address.unwrap_or_else(|| "the address of ".to_owned());
                write!(f, "hides {} behind {address}{}", nat.inside.join(", "), nat.outside)?;
                nat.ports.iter().try_for_each(|ports| write!(f, ", ports {ports}"))?;
                nat.ports_per_host.iter().try_for_each(|count| write!(f, ", {count} for each host"))
            }
        }
    }
}

/// The settings for all flows.
#[derive(Args, Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Process {
    /// The socket for `vigie-forward stats`, a path of at most 95 bytes. Default: vigie-forward.PID.sock in XDG_RUNTIME_DIR, or else in /run, or
    /// else in /tmp.
    #[arg(long, value_name = "PATH", value_parser = values::socket_path)]
    #[serde(deserialize_with = "values::read_socket_path")]
    pub(crate) stats_socket: Option<PathBuf>,

    /// Take over the listeners of the instance whose stats socket this is, and the path: no client is refused, and that instance drains and
    /// ends. If none runs there, start as usual with this as the stats socket. For relays only. Default: no instance.
    #[arg(long, value_name = "PATH", value_parser = values::socket_path, conflicts_with = "stats_socket")]
    #[serde(deserialize_with = "values::read_socket_path")]
    pub(crate) takeover: Option<PathBuf>,

    /// Serve metrics for Prometheus (/metrics) and the state (/health) over HTTP at ADDRESS:PORT, or at unix:PATH for this user
    /// only. Anyone who can connect can read them. Default: off.
    #[arg(long, value_name = "ENDPOINT", value_parser = values::metrics_listener)]
    #[serde(deserialize_with = "values::read_metrics_listener")]
    pub(crate) metrics: Option<EndpointUri>,

    /// The place of the lines of flows with --log: `stdout`, `stderr` or a file's path. A file is opened again at SIGHUP.
    #[arg(long, value_name = "PLACE", default_value_t)]
    pub(crate) log_file: LogTarget,

    /// Time for which connections may continue after SIGTERM or SIGINT, such as 500ms or 1m.
    #[arg(long, value_name = "TIME", default_value_t = DRAIN_DEFAULT)]
    pub(crate) drain: Time,

    /// Give up all rights after set-up, including those to attach again when an interface returns: a flow whose interface
    /// is removed then never gets it back.
    #[arg(long)]
    pub(crate) drop_all_rights: bool,
}

const DRAIN_DEFAULT: Time = Time(Duration::from_secs(10));

impl Default for Process {
    fn default() -> Self {
        Self {
            stats_socket: None,
            takeover: None,
            metrics: None,
            log_file: LogTarget::Stdout,
            drain: DRAIN_DEFAULT,
            drop_all_rights: false,
        }
    }
}

/// Streams or datagrams from one endpoint to another.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Relay {
    /// The endpoint for incoming connections or datagrams: tcp://ADDRESS:PORT, udp://ADDRESS:PORT or unix:PATH.
    #[arg(long, value_name = "ENDPOINT", value_parser = values::listener)]
    pub(crate) listen: EndpointUri,

    /// The target: an endpoint, or one with a host name, each of whose addresses becomes a target; may be repeated. With
    /// `,weight=3` it gets three times the share of a target without a weight (1 to 256), by another --balance than first.
    #[arg(long, value_name = "ENDPOINT", required = true)]
    pub(crate) to: Vec<TargetUri>,

    /// The policy that divides connections, or the senders of datagrams, among several targets. Those that cannot be reached are passed
    /// over.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) balance: BalanceChoice,

    /// Connect to each target now and then, and pass over those that do not answer, before a client meets them: settings as in
    /// every=2s,timeout=1s,rise=2,fall=3, which are the defaults of those that are not given; `every` is from 10ms. Default: no checks.
    #[arg(long, value_name = "SETTINGS", num_args = 0..=1, default_missing_value = "every=2s")]
    pub(crate) check: Option<Check>,

    /// The connections that may try another target after one that was not reached, as in percent=20,min_per_second=10: so many of 100
    /// connections, and so many for each second, over the last 10 s; further ones fail at once. These are the defaults.
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) retries: Option<Retries>,

    /// Time between two attempts to resolve names of targets, from 1s.
    #[arg(long, value_name = "TIME", default_value_t = RESOLVE_DEFAULT)]
    pub(crate) resolve: Time,

    /// The way in which bytes are moved.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) mode: RelayMode,

    /// Time without a byte in either direction after which a connection is closed; with UDP, the session of a sender.
    #[arg(long, value_name = "TIME", default_value_t = IDLE_DEFAULT)]
    pub(crate) idle: Time,

    /// Time limit for connecting to each target, and for a client to send its PROXY protocol header, and for each handshake of TLS.
    #[arg(long, value_name = "TIME", default_value_t = CONNECT_DEFAULT)]
    pub(crate) connect: Time,

    /// The maximum number of open connections, 1 to 1000000; further ones wait. With UDP, of senders; datagrams of
    /// further ones are dropped.
    #[arg(long, alias = "connections", value_name = "COUNT", default_value_t = CONNECTIONS_DEFAULT,
          value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    pub(crate) connections_max: u32,

    /// Send the client's address to the target, in a PROXY protocol header, version 2.
    #[arg(long)]
    pub(crate) proxy_send: bool,

    /// Addresses, as in 10.0.0.0/8, whose connections must begin with a PROXY protocol header, version 2, which is
    /// trusted; may be repeated. Default: none.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) proxy_from: Vec<Range>,

    /// Serve only clients from this network, as in 10.0.0.0/8; may be repeated. Default: all clients.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) allow: Vec<Range>,

    /// Refuse clients from this network, even if they are allowed; may be repeated. Default: none.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) deny: Vec<Range>,

    /// The maximum number of open connections, or with UDP of sessions, of one address of IPv4, or of one network of 64 bits of IPv6,
    /// from 1; further ones are refused. Default: no limit.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) per_source_max: Option<u32>,

    /// Split streams into messages, each of which begins with its length in this form. Default: pass on bytes as they
    /// come.
    #[arg(long, value_enum, value_name = "FORM")]
    pub(crate) framed: Option<LengthForm>,

    /// The condition under which the first byte of a message may be sent on.
    #[arg(long, value_enum, default_value_t, requires = "framed")]
    pub(crate) frame_mode: FrameMode,

    /// The length limit of a message, in bytes; a longer one resets its connection. At most 127 MiB, unless --frame-mode
    /// is cut-through.
    #[arg(long, value_name = "BYTES", default_value_t = MESSAGE_BYTES_DEFAULT, requires = "framed",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) message_max: u64,

    /// The lines of JSON that are logged, to --log-file.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log: LogChoice,

    #[command(flatten)]
    pub(crate) tls: ClientTls,

    #[command(flatten)]
    pub(crate) to_tls: TargetTls,

    /// Clients that ask for certain names by TLS; in files only.
    #[arg(skip)]
    pub(crate) route: Vec<Route>,
}

const MESSAGE_BYTES_DEFAULT: u64 = 16 << 20;

const IDLE_DEFAULT: Time = Time(Duration::from_secs(300));
const RESOLVE_DEFAULT: Time = Time(Duration::from_secs(30));
const CONNECT_DEFAULT: Time = Time(Duration::from_secs(10));
pub(crate) const PORTS_DEFAULT: Ports = Ports { first: 32_768, last: 60_999 };
const HOST_SHARE_DEFAULT: u8 = 50;
const CONNECTIONS_DEFAULT: u32 = 10_000;
const CONNECTIONS_MAX: i64 = 1_000_000;

/// The settings for frames.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frames {
    /// The way in which frames are moved. `auto` takes the first that works, and logs why others do not.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) path: PathChoice,

    /// The way in which this process waits for frames, where it forwards them itself.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) waiting: WaitMode,

    /// The treatment of frames that hold several segments (GRO, TSO) by this process.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) segments: SegmentsChoice,

    /// Start on the host, and move to the network interface above this many packets per second (from 1). Default: never
    /// move.
    #[arg(long, value_name = "PPS", requires = "to_host_below",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) to_nic_above: Option<u64>,

    /// Move back to the host below this many packets per second, from 1; less than --to-nic-above.
    #[arg(long, value_name = "PPS", requires = "to_nic_above",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) to_host_below: Option<u64>,

    /// Time for which the load must stay beyond a threshold before a flow moves.
    #[arg(long, value_name = "TIME", default_value_t = HOLD_DEFAULT, requires = "to_nic_above")]
    pub(crate) hold: Time,
}

const HOLD_DEFAULT: Time = Time(Duration::from_secs(5));

impl Frames {
    /// Returns the thresholds for moving, if the flow may move.
    pub(crate) fn migration(&self) -> Option<Thresholds> {
        let (to_nic_above, to_host_below) = self.to_nic_above.zip(self.to_host_below)?;
        Some(Thresholds { to_nic_above, to_host_below, hold: self.hold.0 })
    }
}

/// Thresholds for moving between host and network interface, in packets per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    pub(crate) to_nic_above: u64,
    pub(crate) to_host_below: u64,
    pub(crate) hold: Duration,
}

/// Frames between two interfaces, unchanged.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct L2 {
    /// The two interfaces.
    #[arg(num_args = 2, required = true, value_name = "INTERFACE")]
    pub(crate) between: Vec<String>,

    #[command(flatten)]
    pub(crate) frames: Frames,
}

/// Packets routed by the kernel's routes.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct L3 {
    /// The interfaces between which packets are routed; at least two.
    #[arg(num_args = 1.., required = true, value_name = "INTERFACE")]
    pub(crate) interfaces: Vec<String>,

    /// The kernel's routing table (`ip route show table N`), from 1; 254 is the main one.
    #[arg(long, value_name = "N", default_value_t = TABLE_MAIN,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) table: u32,

    #[command(flatten)]
    pub(crate) frames: Frames,
}

const TABLE_MAIN: u32 = 254;

/// Packets of private addresses, translated to a public one.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nat {
    /// An interface of the private network; may be repeated.
    #[arg(long, required = true, value_name = "INTERFACE")]
    pub(crate) inside: Vec<String>,

    /// The interface of the public network.
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) outside: String,

    /// The public IPv4 address: one of this host, with ports that the host itself does not use, or a free one of the outside network.
    /// Default: the one that the outside interface has, also when that changes.
    #[arg(long, value_name = "ADDRESS", value_parser = values::ipv4_address)]
    pub(crate) address: Option<Ipv4Addr>,

    /// An inside network whose addresses are translated, as in 10.0.0.0/24; may be repeated. Default: the networks that
    /// are reached by the inside interfaces when the program starts.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) from: Vec<Inside>,

    /// The public ports for connections from inside. Default: 32768-60999; of an address of this host those above the ones that the kernel
    /// gives to the host's own connections, 61000-65535 unless that was changed (`net.ipv4.ip_local_port_range`).
    #[arg(long, value_name = "FIRST-LAST")]
    pub(crate) ports: Option<Ports>,

    /// Gives each address of --from this many of --ports, from 1, for itself alone (RFC 7422): the first address has the first ports, and so
    /// on. So a port tells the inside host without a log. Default: hosts share all ports.
    #[arg(long, value_name = "COUNT", requires = "from", requires = "ports")]
    pub(crate) ports_per_host: Option<NonZeroU16>,

    /// The percentage (1 to 100) of public ports and of translations that one inside host may use, for each protocol; with --ports-per-host, of
    /// translations alone.
    #[arg(long, value_name = "PERCENT", default_value_t = HOST_SHARE_DEFAULT,
          value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) host_share: u8,

    /// Time for which a UDP translation without packets is kept, at least 1s; TCP's times are those of RFC 5382.
    #[arg(long, value_name = "TIME", default_value_t = IDLE_DEFAULT)]
    pub(crate) idle: Time,

    /// A public port that is forwarded to an inside server, as in tcp:8080=10.0.0.2:80; may be repeated. It must be
    /// outside of --ports.
    #[arg(long, value_name = "PROTOCOL:PORT=ADDRESS:PORT")]
    pub(crate) publish: Vec<Publish>,

    /// Lowers the longest segment (MSS) that new TCP connections announce, in both directions, to what the smallest MTU of the
    /// interfaces takes: for links on which ICMP is lost.
    #[arg(long)]
    pub(crate) clamp_mss: bool,

    /// The lines of JSON that are logged, to --log-file.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log: LogChoice,

    /// A file in which translations are kept, so that connections outlive a restart. It is written every 10 s and at the end.
    /// Default: none.
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,

    /// The kernel's routing table (`ip route show table N`), from 1; 254 is the main one.
    #[arg(long, value_name = "N", default_value_t = TABLE_MAIN,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) table: u32,

    #[command(flatten)]
    pub(crate) frames: Frames,
}

impl Nat {
    /// Returns the blocks of ports of inside hosts, if they have such.
    pub(crate) fn port_blocks(&self) -> Option<PortBlocks> {
        let networks = self.from.iter().map(|one| one.0).collect();
        self.ports_per_host.map(|count| PortBlocks::new(networks, count))
    }
}
