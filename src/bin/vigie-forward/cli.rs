//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, FlowConfig, FlowKind, L2, L3, Nat, Origin, Process, Relay, Time};

/// Forwards streams, frames and packets: by a program (eBPF) at the network interface where possible, otherwise in this
/// process.
#[derive(Debug, Parser)]
#[command(name = "vigie-forward", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Relay streams (TCP, Unix) or datagrams (UDP) from one endpoint to another. Needs no privilege.
    Relay(Box<Single<Relay>>),
    /// Pass frames between two interfaces unchanged, like a wire.
    L2(Single<L2>),
    /// Route packets between interfaces, following the kernel's routes and neighbours.
    L3(Single<L3>),
    /// Route packets, and hide private addresses behind a public one (IPv4).
    Nat(Single<Nat>),
    /// Run all flows (relays, and sets of interfaces) of a configuration file.
    Run(RunArgs),
    /// Check a configuration file and print what its flows would do; start nothing.
    Check {
        /// The configuration file (TOML).
        #[arg(value_name = "FILE")]
        config: PathBuf,
    },
    /// Measure the costs of forwarding on this machine, and print where the model would place a flow (host or network
    /// interface).
    Plan(PlanArgs),
    /// Show the flows and counters of a running instance.
    Stats(StatsArgs),
    /// Move a flow of a running instance between host and network interface.
    Move(MoveArgs),
}

/// One flow, and the settings of its process.
#[derive(Args, Debug)]
pub(crate) struct Single<T: Args> {
    #[command(flatten)]
    pub(crate) flow: T,
    #[command(flatten, next_help_heading = "Process")]
    pub(crate) process: Process,
}

impl<T: Args> Single<T> {
    /// Returns a configuration with one flow.
    pub(crate) fn into_config(self, kind: impl FnOnce(T) -> FlowKind) -> Config {
        let kind = kind(self.flow);
        let origin = Origin::of_flow(kind.name());
        let flow = FlowConfig { name: kind.name().to_owned(), origin, kind };
        Config { process: self.process, origin: Origin::default(), flows: vec![flow] }
    }
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The configuration file (TOML); docs/guide/forwarding.md lists its settings.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// The interface whose speed limits the links. Default: 10 Gb/s, also for an interface that reports no speed.
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,

    /// The rate of the links, in megabits per second: 1 to 4000000. Default: the speed of the interface.
    #[arg(long, value_name = "MBIT", conflicts_with = "interface",
          value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub(crate) rate: Option<u32>,

    /// A message size in bytes, 14 to 16777216; may be repeated.
    #[arg(long, value_name = "BYTES", default_values_t = [64, 1500, 65536],
          value_parser = clap::value_parser!(u32).range(14..=16 << 20))]
    pub(crate) message: Vec<u32>,

    /// The processing of each packet.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) work: PlannedWork,

    /// Number of messages that may be in the forwarder at once: 1 to 65536.
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) window: u32,

    /// Plan with frames alone. By default, messages of more than 1500 bytes travel in segments of up to 64 KiB, as TCP's do between
    /// programs of one host and from cards that merge frames.
    #[arg(long)]
    pub(crate) frames: bool,

    /// The stats socket of the instance whose flows are explained. Default: the only instance of this host, if there is one.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Measure a program here, and print nothing else: used by `plan` in a process with its own network namespace.
    #[arg(long, hide = true)]
    pub(crate) probe_program: bool,
}

/// The processing of packets, for the planner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PlannedWork {
    /// Nothing, as the command `l2`.
    L2,
    /// TTL and route, as the command `l3`.
    #[default]
    L3,
    /// TTL, route and address translation, as the command `nat`.
    Nat,
}

#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// The instance's socket. Default: the socket of the only running instance.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Print JSON, one line per report.
    #[arg(long)]
    pub(crate) json: bool,

    /// Repeat at this interval (such as 1s), with rates, until interrupted; on a terminal, with a plot of the last 30 rates. Default: one report.
    #[arg(long, value_name = "TIME")]
    pub(crate) every: Option<Time>,

    /// Stop after this many reports. Default: no limit.
    #[arg(long, value_name = "COUNT", requires = "every")]
    pub(crate) count: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct MoveArgs {
    /// The flow's name, as `stats` shows it.
    pub(crate) flow: String,

    /// The side on which it should run.
    #[arg(value_enum)]
    pub(crate) to: FlowSide,

    /// The instance's socket. Default: the socket of the only running instance.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// The side on which a flow runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FlowSide {
    /// In this process.
    Host,
    /// In a program at the network interface.
    Nic,
}

impl FlowSide {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Nic => "nic",
        }
    }
}

const AFTER_HELP: &str = "\
Rights: `relay` needs none, except to listen below port 1024. Programs at interfaces need CAP_BPF, \
CAP_NET_ADMIN and CAP_PERFMON, packet sockets need CAP_NET_RAW. If a right is missing, the log names it and the path that is taken \
instead. After set-up, the process gives up all rights except those that it needs to attach again when an interface \
returns or an address changes (with --drop-all-rights: these too).

Times have a unit: 250ms, 10s, 5m, 1h 30m.

Signals: on SIGTERM or SIGINT, no new connections are accepted, and open ones may continue for --drain; a second \
signal ends the process at once. On SIGHUP, `run` reads its file again; unchanged flows continue; --log-file is opened again. A new process with \
--takeover takes the place of one that runs, without refusing a client. Nothing stays attached to an interface, \
however the process ends.

Exit code:
  0      ended by a signal, after all connections had ended
  1      a failure, described on standard error
  2      the command line or the configuration is wrong; nothing was started
  3      a right is missing, and nothing can be forwarded without it
  4      ended by a signal; connections were cut when --drain was over
  128+N  ended at once by a second signal, of number N";

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, error::ErrorKind};

    use super::*;

    /// Goal: the definition of the command line is valid. Method: clap's own check.
    #[test]
    fn definition() {
        Cli::command().debug_assert();
    }

    /// Goal: each subcommand accepts its arguments, and gives the same flows as a file would. Method: one command line
    /// each.
    #[test]
    fn subcommands() {
        let config = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            match cli.command {
                Command::Relay(one) => one.into_config(|relay| FlowKind::Relay(Box::new(relay))),
                Command::L2(one) => one.into_config(FlowKind::L2),
                Command::L3(one) => one.into_config(FlowKind::L3),
                Command::Nat(one) => one.into_config(FlowKind::Nat),
                other => panic!("{other:?}"),
            }
        };
        let relay = config("f relay --listen tcp://[::1]:1 --to unix:/x --mode splice --drain 1s");
        assert_eq!((relay.flows[0].name.as_str(), relay.process.drain.0.as_secs()), ("relay", 1));
        let relay = "f relay --listen tcp://[::1]:1 --to tcp://web.test:2";
        let tls = "--tls-certificate c --tls-key k --tls-alpn h2 --to-tls --to-tls-ca ca";
        let FlowKind::Relay(read) = &config(&format!("{relay} {tls}")).flows[0].kind else {
            panic!("a relay")
        };
        assert!(read.tls.is_on() && read.to_tls.is_on && read.to_tls.ca.is_some());
        for half in ["--tls-certificate c", "--tls-key k", "--to-tls-name a", "--tls-alpn h2"] {
            Cli::try_parse_from(format!("{relay} {half}").split(' ')).expect_err(half);
        }
        let l2 = config("f l2 a b --path xdp-native --waiting spin");
        assert_eq!(l2.flows[0].kind.interfaces(), ["a", "b"]);
        let l3 = config("f l3 a b c --to-nic-above 100 --to-host-below 10 --hold 1s");
        let FlowKind::L3(l3) = &l3.flows[0].kind else { panic!("{l3:?}") };
        assert_eq!(l3.frames.migration().unwrap().hold.as_secs(), 1);
        let nat = config(
            "f nat --inside a --inside b --outside c --address 192.0.2.1 --publish udp:1=10.0.0.1:2",
        );
        assert_eq!(nat.flows[0].kind.interfaces(), ["a", "b", "c"]);
    }

    /// Goal: bad input is refused with code 2. Method: each kind of it.
    #[test]
    fn bad_input() {
        for (line, kind) in [
            ("f", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            ("f fly", ErrorKind::InvalidSubcommand),
            ("f relay --listen tcp://[::1]:1", ErrorKind::MissingRequiredArgument),
            ("f relay --listen 1 --to unix:/x", ErrorKind::ValueValidation),
            (
                "f relay --listen tcp://[::1]:1 --to unix:/x --connections-max 0",
                ErrorKind::ValueValidation,
            ),
            (
                "f relay --listen tcp://[::1]:1 --to unix:/x --drain soon",
                ErrorKind::ValueValidation,
            ),
            ("f l2 a", ErrorKind::WrongNumberOfValues),
            ("f l2 a b c", ErrorKind::WrongNumberOfValues),
            ("f l3", ErrorKind::MissingRequiredArgument),
            ("f l3 a --path moon", ErrorKind::InvalidValue),
            ("f l3 a --to-nic-above 5", ErrorKind::MissingRequiredArgument),
            ("f nat --inside a --outside b --address ::1", ErrorKind::ValueValidation),
            ("f run", ErrorKind::MissingRequiredArgument),
            ("f plan --rate 0", ErrorKind::ValueValidation),
            ("f stats --count 5", ErrorKind::MissingRequiredArgument),
            ("f move x moon", ErrorKind::InvalidValue),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.kind(), kind, "{line}: {error}");
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
