//! Compiles stock stages to one program for the network processor.
//!
//! ```text
//!   arrival --> stages that read no header --> headers --+--> IPv4:  stages --+--> send (redirect)
//!                                                        +--> IPv6:  stages --+--> drop, counted by reason
//!                                                        +--> ARP:   stages --+--> up, as it came
//!                                                        +--> other: stages --+
//! ```
//! The stages are compiled separately for each kind of packet, so that nothing already known is checked again. For the
//! same reason each ingress port has its own program; all have the same maps.

mod edit;
mod emitter;
mod filter;
mod headers;
mod nat;
mod recent;
mod route;
mod simple;

use std::borrow::Cow;

use thiserror::Error;

use self::emitter::{Emitter, Needs, NetworkKind};
use super::layout::{Layout, MapRequirements, MapSizes, PORTS_MAX};
use crate::{
    bpf::{Program, ProgramError, ProgramKind},
    packet::Port,
    pipeline::{BuiltinStage, DropReason, Offload, Stage},
    stages::{ChecksumMode, Meter},
};

/// The treatment of packets that a program cannot handle: those with IPv6 extension headers; IPv4 packets that are to be
/// fragmented; long ones that arrive [without a header](NicConfig::headerless); and where flows are translated, everything but
/// complete packets of flows that the host has begun, as well as TCP segments that open or close a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Exceptions {
    /// They go up unchanged: to the host path, or to the kernel.
    #[default]
    PassUp,
    /// They are dropped and counted: as [`DropReason::Malformed`] with extension headers, as [`DropReason::TooLong`] if they are
    /// to be fragmented or too long to get a header, else as [`DropReason::NatUnknown`].
    Drop,
}

/// The configuration of a pipeline on an interface.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
#[must_use = "a NIC takes it"]
pub struct NicConfig {
    pub(super) sizes: MapSizes,
    pub(super) exceptions: Exceptions,
    pub(super) pass_up: Vec<DropReason>,
    pub(super) default_port: Option<Port>,
    pub(super) own_frames: bool,
    pub(super) asked_flows: bool,
    pub(super) held_neighbours: bool,
    pub(super) headerless: Vec<Port>,
}

impl NicConfig {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    vigie_detect::setters! {
        /// Sets how to treat packets that a program cannot handle. Default: [`Exceptions::PassUp`].
        exceptions: Exceptions,
    }

    /// Sets the number of ports, starting at 0: 1 to 64. Default: 16.
    pub const fn ports(mut self, count: u16) -> Self {
        self.sizes.ports = count;
        self
    }

    /// Sets the number of routes, for each version of IP: 1 to 16 777 216. Default: 65 536.
    pub const fn routes(mut self, count: u32) -> Self {
        self.sizes.routes = count;
        self
    }

    /// Sets the number of neighbours on the links themselves, for each version of IP, and of routers: 1 to 1 048 576. Default:
    /// 8192.
    pub const fn neighbours(mut self, count: u32) -> Self {
        self.sizes.neighbours = count;
        self
    }

    /// Sets the number of translated flows, for each version of IP: 1 to 16 777 216. Default: 65 536.
    pub const fn flows(mut self, count: u32) -> Self {
        self.sizes.flows = count;
        self
    }

    /// Lets frames with VLAN tags, and those that are addressed to other stations or to groups, go up unchanged, as a router must. The latter only
    /// at tcx, where the kernel has compared the addresses; elsewhere the program handles them like others. XDP does not see a tag that the
    /// network card has removed. Default: no.
    pub const fn own_frames(mut self) -> Self {
        self.own_frames = true;
        self
    }

    /// Sets the number of groups of [several hops](crate::tables::Fib::set_hops), each of which takes 4 KiB: 1 to 4096. Prefixes with the same
    /// hops share a group. Default: 256.
    pub const fn hop_groups(mut self, count: u32) -> Self {
        self.sizes.groups = count;
        self
    }

    /// Takes over only the translated flows that [`NicPipeline::add_flow`](super::NicPipeline::add_flow) names, so that flows of one packet
    /// cost nothing here. The host translates the others. Default: no, all flows are taken over.
    pub const fn asked_flows(mut self) -> Self {
        self.asked_flows = true;
        self
    }

    /// Tells that a host behind the program [holds](crate::stages::RouteStage::hold_unresolved) packets to unknown neighbours. If one becomes
    /// known while it holds some, the program goes on passing the neighbour's packets up until none has come for 10 ms, at most 256, so that they
    /// do not overtake those that the host has; but not those of TCP, of which a new connection sends no second one before its first has been
    /// answered. With [`Exceptions::Drop`] they would be dropped. Default: no, the program sends them at once.
    pub const fn held_neighbours(mut self) -> Self {
        self.held_neighbours = true;
        self
    }

    /// Lets packets that would be dropped for one of these reasons go up to the kernel, unchanged. A router needs this
    /// for [`DropReason::NotIp`] (ARP), [`DropReason::NoRoute`] (packets to the router itself), [`DropReason::NoNeighbour`] (the
    /// kernel resolves it) and [`DropReason::TtlExpired`] (the kernel reports it). Default: no reasons.
    pub fn pass_up(mut self, reasons: &[DropReason]) -> Self {
        self.pass_up = reasons.to_vec();
        self
    }

    /// Names the ports whose packets begin with IP, without an Ethernet header (tun, WireGuard, tunnels of IPv4): from 0 to 63. A packet
    /// gets a header when it goes to a port with headers, and loses it when it goes to one without. The program then runs at
    /// [tcx](crate::bpf::AttachMode::Tcx) alone. Packets of more than 15 500 bytes that arrive there and have no segments are
    /// [exceptions](Exceptions) if some port has headers. Default: none.
    pub fn headerless(mut self, ports: &[Port]) -> Self {
        self.headerless = ports.to_vec();
        self
    }

    pub(super) fn is_headerless(&self, port: Port) -> bool {
        self.headerless.contains(&port)
    }

    /// A bit for each port without headers.
    fn headerless_bits(&self) -> u64 {
        self.headerless.iter().fold(0, |bits, port| bits | 1 << port.0)
    }

    /// Sets the port of packets for which no stage names one. Default: `None`, and they are dropped
    /// ([`DropReason::NoPort`]).
    pub const fn default_port(mut self, port: Port) -> Self {
        self.default_port = Some(port);
        self
    }
}

/// The reason why a pipeline can only run on the host.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// A stage that a program cannot express.
    #[error("stage {stage} ({name}) cannot run on the interface: {because}")]
    Stage {
        /// Its position, starting at 0.
        stage: usize,
        /// Its name.
        name: String,
        /// The reason.
        because: Cow<'static, str>,
    },
    /// XDP at ports without Ethernet headers.
    #[error(
        "packets of {port} have no Ethernet header, with which XDP begins: a program can run there at traffic control (tcx) alone"
    )]
    Headerless {
        /// The first of them.
        port: Port,
    },
    /// A setting out of range.
    #[error("{name} is {value}, and must be {range}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The range.
        range: &'static str,
    },
    /// The program would be too long.
    #[error("the stages cannot be compiled: {0}; shorten filters, or leave them to the host")]
    Program(#[from] ProgramError),
}

/// A compiled pipeline: one program for each ingress port.
#[derive(Clone, Debug)]
pub(super) struct Compiled {
    pub(super) layout: Layout,
    pub(super) programs: Vec<Program>,
}

fn check(config: &NicConfig) -> Result<(), CompileError> {
    let MapSizes { ports, routes, neighbours, flows, groups } = config.sizes;
    let in_range = |name, value: u32, max: u32, range| {
        let error = CompileError::InvalidSetting { name, value: value.into(), range };
        if (1..=max).contains(&value) { Ok(()) } else { Err(error) }
    };
    in_range("ports", ports.into(), PORTS_MAX.into(), "from 1 to 64")?;
    in_range("routes", routes, 1 << 24, "from 1 to 16 777 216")?;
    in_range("neighbours", neighbours, 1 << 20, "from 1 to 1 048 576")?;
    in_range("flows", flows, 1 << 24, "from 1 to 16 777 216")?;
    in_range("hop_groups", groups, 1 << 12, "from 1 to 4096")?;
    match config.headerless.iter().find(|port| port.0 >= PORTS_MAX) {
        None => Ok(()),
        Some(port) => Err(CompileError::InvalidSetting {
            name: "headerless",
            value: port.0.into(),
            range: "ports from 0 to 63",
        }),
    }
}

/// The descriptions of all stages, or an error that names the one without.
fn stock<'a>(stages: &[&'a dyn Stage]) -> Result<Vec<BuiltinStage<'a>>, CompileError> {
    let describe = |(stage, one): (usize, &&'a dyn Stage)| match one.offload() {
        Offload::Builtin(stock) => Ok(stock),
        Offload::HostOnly(because) => {
            Err(CompileError::Stage { stage, name: one.model().name().to_owned(), because })
        }
    };
    stages.iter().enumerate().map(describe).collect()
}

/// Returns whether a stage changes bytes.
fn writes(stock: &BuiltinStage<'_>) -> bool {
    match stock {
        BuiltinStage::Rewrite(rewrite) => {
            let (macs, addresses) = (rewrite.macs(), rewrite.addresses());
            macs != (None, None) || addresses != (None, None)
        }
        BuiltinStage::Ttl(_) | BuiltinStage::Nat(_) | BuiltinStage::Route(_) => true,
        _ => false,
    }
}

/// Returns whether a stage may change bytes covered by a checksum of the transport.
fn changes_transport(stock: &BuiltinStage<'_>) -> bool {
    match stock {
        BuiltinStage::Rewrite(rewrite) => rewrite.addresses() != (None, None),
        BuiltinStage::Nat(_) => true,
        _ => false,
    }
}

/// The reason why one stage cannot be compiled, if any.
fn obstacle(stocks: &[BuiltinStage<'_>], at: usize, kind: ProgramKind) -> Option<&'static str> {
    let stock = stocks.get(at)?;
    let is_tcx = kind == ProgramKind::Tcx;
    match stock {
        BuiltinStage::Checksum(checksum) if checksum.mode() != ChecksumMode::VerifyHeader => {
            Some("a checksum covers every byte, and a program reads a bounded number of them")
        }
        BuiltinStage::Mirror(_) if is_tcx => Some("copies are made by XDP alone"),
        BuiltinStage::Mirror(_) if stocks[at + 1..].iter().any(writes) => {
            Some("XDP sends copies of the frame as it leaves, but later stages change it")
        }
        BuiltinStage::Mirror(_)
            if stocks[..at].iter().any(|one| matches!(one, BuiltinStage::Mirror(_))) =>
        {
            Some("XDP makes one copy of a frame")
        }
        BuiltinStage::Checksum(_)
        | BuiltinStage::Rewrite(_)
        | BuiltinStage::Ttl(_)
        | BuiltinStage::Nat(_)
        | BuiltinStage::Filter(_)
        | BuiltinStage::Mirror(_)
        | BuiltinStage::Meter(_)
        | BuiltinStage::Route(_) => None,
    }
}

/// Determines the maps that the stages need; several tables of one kind cannot be told apart.
fn needs(stocks: &[BuiltinStage<'_>]) -> Result<MapRequirements, (usize, &'static str)> {
    let mut needs = MapRequirements::default();
    for (at, stock) in stocks.iter().enumerate() {
        match stock {
            BuiltinStage::Route(_) if needs.routes => {
                return Err((at, "there is room for one table of routes"));
            }
            BuiltinStage::Nat(_) if needs.nat => {
                return Err((at, "there is room for one table of flows"));
            }
            BuiltinStage::Route(_) => needs.routes = true,
            BuiltinStage::Nat(_) => needs.nat = true,
            BuiltinStage::Meter(_) => needs.meters += 1,
            BuiltinStage::Mirror(mirror) => needs.copies = Some(mirror.port()),
            _ => {}
        }
    }
    Ok(needs)
}

/// Compiles a pipeline for packets that arrive on `ingress_ports`, one program for each.
pub(super) fn compile(
    stages: &[&dyn Stage],
    ingress_ports: &[Port],
    config: &NicConfig,
    kind: ProgramKind,
) -> Result<Compiled, CompileError> {
    check(config)?;
    if kind == ProgramKind::Xdp
        && let Some(port) = ingress_ports.iter().find(|port| config.is_headerless(**port))
    {
        return Err(CompileError::Headerless { port: *port });
    }
    let stocks = stock(stages)?;
    let refused = |stage: usize, because: &'static str| CompileError::Stage {
        stage,
        name: stages.get(stage).map_or_else(String::new, |one| one.model().name().to_owned()),
        because: because.into(),
    };
    for at in 0..stocks.len() {
        if let Some(because) = obstacle(&stocks, at, kind) {
            return Err(refused(at, because));
        }
    }
    let needs = needs(&stocks).map_err(|(at, because)| refused(at, because))?;
    let layout = Layout::new(needs, config.sizes, kind);
    let program =
        |ingress: &Port| program(&stocks, (*ingress, ingress_ports), config, &layout, kind);
    let programs = ingress_ports.iter().map(program).collect::<Result<_, _>>()?;
    Ok(Compiled { layout, programs })
}

/// Returns whether a stage works without reading headers.
fn reads_nothing(stock: &BuiltinStage<'_>) -> bool {
    match stock {
        BuiltinStage::Rewrite(rewrite) => rewrite.addresses() == (None, None),
        BuiltinStage::Meter(_) | BuiltinStage::Mirror(_) => true,
        _ => false,
    }
}

fn program(
    stocks: &[BuiltinStage<'_>],
    (ingress, ports): (Port, &[Port]),
    config: &NicConfig,
    layout: &Layout,
    kind: ProgramKind,
) -> Result<Program, CompileError> {
    let headless = stocks.iter().take_while(|stock| reads_nothing(stock)).count();
    let needs = Needs {
        headers: headless < stocks.len(),
        time: stocks.iter().any(|one| matches!(one, BuiltinStage::Meter(_))),
        saving: stocks.iter().any(writes),
        transport: stocks.iter().any(changes_transport),
        hops: stocks.iter().map(|one| i32::from(matches!(one, BuiltinStage::Ttl(_)))).sum(),
        added_header: config.is_headerless(ingress)
            && ports.iter().any(|port| !config.is_headerless(*port)),
    };
    let mut emitter = Emitter::new(ingress, config, layout, kind, needs);
    emitter.prologue();
    let mut meters = 0;
    for stock in &stocks[..headless] {
        stage(&mut emitter, stock, NetworkKind::Unread, &mut meters);
    }
    if needs.headers {
        let kinds = emitter.headers();
        for (kind, label) in kinds {
            let mut meters = meters;
            emitter.begin(kind, label);
            for stock in &stocks[headless..] {
                stage(&mut emitter, stock, kind, &mut meters);
            }
            emitter.end(kind);
        }
    } else {
        emitter.end(NetworkKind::Unread);
    }
    Ok(emitter.finish()?)
}

fn stage(emitter: &mut Emitter<'_>, stock: &BuiltinStage<'_>, kind: NetworkKind, meters: &mut u32) {
    match stock {
        BuiltinStage::Rewrite(rewrite) => emitter.rewrite(rewrite, kind),
        BuiltinStage::Ttl(_) => emitter.ttl(kind),
        BuiltinStage::Nat(_) => emitter.nat(kind),
        BuiltinStage::Filter(filter) => emitter.filter(filter, kind),
        BuiltinStage::Mirror(mirror) => emitter.mirror(mirror),
        BuiltinStage::Meter(meter) => {
            emitter.meter(meter, *meters);
            *meters += 1;
        }
        BuiltinStage::Route(_) => emitter.route(kind),
        // Of the header: others were refused earlier.
        BuiltinStage::Checksum(_) => emitter.header_checksum(kind),
    }
}

/// The constants of a meter: half the rate, the rate, and the depth of its bucket in nanoseconds.
fn depth_ns(meter: &Meter) -> u64 {
    let depth = meter.rate().time(meter.burst_bytes()).as_nanos();
    u64::try_from(depth).unwrap_or(u64::MAX).saturating_add(1)
}
