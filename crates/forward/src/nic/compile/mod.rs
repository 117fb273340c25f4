//! From stock stages to one program for the network processor.
//!
//! ```text
//!   arrival --> stages that read no header --> headers --+--> IPv4:  stages --+--> send (redirect)
//!                                                        +--> IPv6:  stages --+--> drop, counted by reason
//!                                                        +--> ARP:   stages --+--> up, as it came
//!                                                        +--> other: stages --+
//! ```
//! The stages are compiled once for each kind of packet, so that what is known of it is not asked again. The program
//! for each port of arrival is another one, for the same reason; all have the same maps.

mod edit;
mod emitter;
mod filter;
mod headers;
mod nat;
mod route;
mod simple;

use std::borrow::Cow;

use thiserror::Error;

use self::emitter::{Emitter, Kind};
use super::layout::{Layout, Needs, PORTS_MAX, Sizes};
use crate::{
    bpf::{AssembleError, Program, ProgramKind},
    packet::Port,
    pipeline::{Offload, Reason, Stage, Stock},
    stages::Meter,
};

/// What is done with packets that a program cannot handle: those with extension headers of IPv6; and where flows are
/// translated, everything but whole packets of flows that the host has begun, and segments of TCP that open or close
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Exceptions {
    /// They go up as they came: to the host path, or to the kernel.
    #[default]
    PassUp,
    /// They are dropped, and counted: as [`Reason::Malformed`] with extension headers, else as [`Reason::NatUnknown`].
    Drop,
}

/// How a pipeline is compiled.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[must_use = "`compile` takes it"]
pub struct Settings {
    pub(super) sizes: Sizes,
    pub(super) exceptions: Exceptions,
    pub(super) pass_up: Vec<Reason>,
    pub(super) otherwise: Option<Port>,
}

impl Settings {
    /// Creates settings with all defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how large the maps are.
    pub const fn sizes(mut self, sizes: Sizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// Sets what is done with packets that a program cannot handle. Default: [`Exceptions::PassUp`].
    pub const fn exceptions(mut self, exceptions: Exceptions) -> Self {
        self.exceptions = exceptions;
        self
    }

    /// Lets packets that would be dropped for one of these reasons go up to the kernel, as they came: a router wants
    /// [`Reason::NotIp`] there (ARP), [`Reason::NoRoute`] (packets to itself), [`Reason::NoNeighbour`] (the kernel
    /// then asks) and [`Reason::TtlExpired`] (the kernel then tells). Default: none.
    pub fn pass_up(mut self, reasons: &[Reason]) -> Self {
        self.pass_up = reasons.to_vec();
        self
    }

    /// Sets the port of packets for which no stage has named one. Default: none, and they are dropped
    /// ([`Reason::NoPort`]).
    pub const fn otherwise(mut self, port: Port) -> Self {
        self.otherwise = Some(port);
        self
    }
}

/// Why a pipeline runs on the host alone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotCompiled {
    /// A stage is none that a program can express.
    #[error("stage {stage} ({name}) cannot run on the interface: {because}")]
    Stage {
        /// Its place, from 0.
        stage: usize,
        /// Its name.
        name: String,
        /// Why.
        because: Cow<'static, str>,
    },
    /// A setting is outside of its range.
    #[error("{name} is {value}, and must be {range}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// The program would be too long.
    #[error("the stages make no program: {0}; shorten filters, or leave them to the host")]
    Program(#[from] AssembleError),
}

/// A pipeline that was compiled: a program for each port of arrival.
#[derive(Clone, Debug)]
pub(super) struct Compiled {
    pub(super) layout: Layout,
    pub(super) programs: Vec<Program>,
}

fn check(settings: &Settings) -> Result<(), NotCompiled> {
    let Sizes { ports, routes, neighbours, flows } = settings.sizes;
    let in_range = |name, value: u32, max: u32, range| {
        let error = NotCompiled::Setting { name, value: value.into(), range };
        if (1..=max).contains(&value) { Ok(()) } else { Err(error) }
    };
    in_range("ports", ports.into(), PORTS_MAX.into(), "from 1 to 64")?;
    in_range("routes", routes, 1 << 24, "from 1 to 16 777 216")?;
    in_range("neighbours", neighbours, 1 << 20, "from 1 to 1 048 576")?;
    in_range("flows", flows, 1 << 24, "from 1 to 16 777 216")
}

/// The descriptions of all stages, or which one has none.
fn stock<'a>(stages: &[&'a dyn Stage]) -> Result<Vec<Stock<'a>>, NotCompiled> {
    let describe = |(stage, one): (usize, &&'a dyn Stage)| match one.offload() {
        Offload::Stock(stock) => Ok(stock),
        Offload::HostOnly(because) => {
            Err(NotCompiled::Stage { stage, name: one.model().name().to_owned(), because })
        }
    };
    stages.iter().enumerate().map(describe).collect()
}

/// Whether a stage changes bytes.
fn writes(stock: &Stock<'_>) -> bool {
    match stock {
        Stock::Rewrite(rewrite) => {
            let (macs, addresses) = (rewrite.macs(), rewrite.addresses());
            macs != (None, None) || addresses != (None, None)
        }
        Stock::Ttl(_) | Stock::Nat(_) | Stock::Route(_) => true,
        _ => false,
    }
}

/// Whether a stage may change bytes that a checksum of the transport covers.
fn changes_transport(stock: &Stock<'_>) -> bool {
    match stock {
        Stock::Rewrite(rewrite) => rewrite.addresses() != (None, None),
        Stock::Nat(_) => true,
        _ => false,
    }
}

/// What stands in the way of one stage.
fn obstacle(stocks: &[Stock<'_>], at: usize, kind: ProgramKind) -> Option<&'static str> {
    let stock = stocks.get(at)?;
    let is_tcx = kind == ProgramKind::Tcx;
    match stock {
        Stock::Checksum(_) => {
            Some("a checksum covers every byte, and a program looks at a bounded number of them")
        }
        Stock::Mirror(_) if is_tcx => Some("copies are made by XDP alone"),
        Stock::Mirror(_) if stocks[at + 1..].iter().any(writes) => {
            Some("XDP sends copies of the frame as it leaves, but later stages change it")
        }
        Stock::Mirror(_) if stocks[..at].iter().any(|one| matches!(one, Stock::Mirror(_))) => {
            Some("XDP makes one copy of a frame")
        }
        one if is_tcx && changes_transport(one) => {
            Some("at tcx, checksums that were left to the network card cannot be kept right")
        }
        Stock::Rewrite(_)
        | Stock::Ttl(_)
        | Stock::Nat(_)
        | Stock::Filter(_)
        | Stock::Mirror(_)
        | Stock::Meter(_)
        | Stock::Route(_) => None,
    }
}

/// Looks what maps the stages need; several tables of one kind cannot be told apart.
fn needs(stocks: &[Stock<'_>]) -> Result<Needs, (usize, &'static str)> {
    let mut needs = Needs::default();
    for (at, stock) in stocks.iter().enumerate() {
        match stock {
            Stock::Route(_) if needs.routes => {
                return Err((at, "there is room for one table of routes"));
            }
            Stock::Nat(_) if needs.nat => return Err((at, "there is room for one table of flows")),
            Stock::Route(_) => needs.routes = true,
            Stock::Nat(_) => needs.nat = true,
            Stock::Meter(_) => needs.meters += 1,
            Stock::Mirror(mirror) => needs.copies = Some(mirror.port()),
            _ => {}
        }
    }
    Ok(needs)
}

/// Compiles a pipeline for packets that arrive on `arrivals`, one program for each.
pub(super) fn compile(
    stages: &[&dyn Stage],
    arrivals: &[Port],
    settings: &Settings,
    kind: ProgramKind,
) -> Result<Compiled, NotCompiled> {
    check(settings)?;
    let stocks = stock(stages)?;
    let refused = |stage: usize, because: &'static str| NotCompiled::Stage {
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
    let layout = Layout::new(needs, settings.sizes, kind);
    let program = |arrival: &Port| program(&stocks, *arrival, settings, &layout, kind);
    let programs = arrivals.iter().map(program).collect::<Result<_, _>>()?;
    Ok(Compiled { layout, programs })
}

/// Whether a stage works without reading headers.
fn reads_nothing(stock: &Stock<'_>) -> bool {
    match stock {
        Stock::Rewrite(rewrite) => rewrite.addresses() == (None, None),
        Stock::Meter(_) | Stock::Mirror(_) => true,
        _ => false,
    }
}

fn program(
    stocks: &[Stock<'_>],
    arrival: Port,
    settings: &Settings,
    layout: &Layout,
    kind: ProgramKind,
) -> Result<Program, NotCompiled> {
    let mut emitter = Emitter::new(arrival, settings, layout, kind);
    let needs_time = stocks.iter().any(|one| matches!(one, Stock::Meter(_) | Stock::Nat(_)));
    let may_go_up_changed = stocks.iter().any(writes);
    emitter.prologue(needs_time, may_go_up_changed);
    let headless = stocks.iter().take_while(|stock| reads_nothing(stock)).count();
    let mut meters = 0;
    for stock in &stocks[..headless] {
        stage(&mut emitter, stock, Kind::Unread, &mut meters);
    }
    if headless < stocks.len() {
        let kinds = emitter.headers();
        for (kind, label) in kinds {
            let mut meters = meters;
            emitter.begin(kind, label, may_go_up_changed);
            for stock in &stocks[headless..] {
                stage(&mut emitter, stock, kind, &mut meters);
            }
            emitter.end(kind, may_go_up_changed);
        }
    } else {
        emitter.end(Kind::Unread, may_go_up_changed);
    }
    Ok(emitter.finish()?)
}

fn stage(emitter: &mut Emitter<'_>, stock: &Stock<'_>, kind: Kind, meters: &mut u32) {
    match stock {
        Stock::Rewrite(rewrite) => emitter.rewrite(rewrite, kind),
        Stock::Ttl(_) => emitter.ttl(kind),
        Stock::Nat(_) => emitter.nat(kind),
        Stock::Filter(filter) => emitter.filter(filter, kind),
        Stock::Mirror(mirror) => emitter.mirror(mirror),
        Stock::Meter(meter) => {
            emitter.meter(meter, *meters);
            *meters += 1;
        }
        Stock::Route(_) => emitter.route(kind),
        // Refused before.
        _ => {}
    }
}

/// The constants of a meter: half the rate, the rate, and the depth of its bucket in nanoseconds.
fn depth_ns(meter: &Meter) -> u64 {
    let depth = meter.rate().time(meter.burst_bytes()).as_nanos();
    u64::try_from(depth).unwrap_or(u64::MAX).saturating_add(1)
}
