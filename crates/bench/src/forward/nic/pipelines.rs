//! The programs that are compared: by hand, and compiled from pipelines.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use vigie_detect::Instant;
use vigie_forward::bpf::{
    Assembler, AttachMode, Attachment, Condition, Helper, LoadedProgram, MapSpec, ProgramKind,
    Register::{R0, R1, R2, R3, R6, R7, R10},
    Size, UpdateMode, XDP_DROP, XDP_PASS, XDP_REDIRECT,
};
use vigie_forward::nic::{NicError, NicPipeline};
use vigie_forward::packet::{Packet, Port};
use vigie_forward::pipeline::{Stage, Verdict};
use vigie_forward::stages::{Nat, NatRule, Rewrite, RouteStage, Ttl};
use vigie_forward::tables::{Fib, Interface, NatTable, Route};
use vigie_via::link::MacAddress;

use super::super::live_frames::sum;
use super::wires::{DESTINATION, SOURCE, VethPairs, frame};

const FROM: MacAddress = MacAddress([2, b'v', b'n', 0, 0, 1]);
const TO: MacAddress = MacAddress([2, b'v', b'n', 0, 0, 2]);
/// The counter of packets sent, in the map of counters.
const SENT: usize = 2;

/// One program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NicProgram {
    /// The least that does it: bounds, two addresses, one count, redirect.
    ByHand,
    /// Rewrite, as above.
    Rewrite,
    /// Ttl and Route.
    Route,
    /// The same, while its tables change.
    RouteChanging,
    /// Nat, Ttl and Route: one flow.
    Nat,
}

impl NicProgram {
    /// The one to which others are compared comes first.
    pub(super) const ALL: [Self; 5] =
        [Self::ByHand, Self::Rewrite, Self::Route, Self::RouteChanging, Self::Nat];

    pub(super) const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::ByHand => ("nic-by-hand", "a program by hand"),
            Self::Rewrite => ("nic-rewrite", "rewrite"),
            Self::Route => ("nic-route", "TTL, route"),
            Self::RouteChanging => ("nic-route-changing", "TTL, route, tables change"),
            Self::Nat => ("nic-nat", "NAT, TTL, route"),
        }
    }

    pub(super) const fn changes(self) -> bool {
        matches!(self, Self::RouteChanging)
    }

    /// Starts it in this thread's network namespace.
    pub(super) fn start(self, wires: &VethPairs) -> Result<Forwarding, NicError> {
        let fib = fib();
        let route = RouteStage::new(fib.clone());
        let (ttl, nat) = (Ttl::new(), nat());
        let rewrite = Rewrite::new().source_mac(FROM).destination_mac(TO).send(Port(1));
        let stages: Vec<&dyn Stage> = match self {
            Self::ByHand => {
                return Ok(Forwarding::of(Runs::ByHand(by_hand(wires)?), fib));
            }
            Self::Rewrite => vec![&rewrite],
            Self::Route | Self::RouteChanging => vec![&ttl, &route],
            Self::Nat => vec![&nat, &ttl, &route],
        };
        let builder = NicPipeline::builder().attach_modes(&[AttachMode::Native]);
        let builder = builder.port(Port(0), wires.arrival).port(Port(1), wires.departure);
        Ok(Forwarding::of(Runs::Compiled(Box::new(Mutex::new(builder.start(&stages)?))), fib))
    }
}

fn ip(address: [u8; 4]) -> IpAddr {
    address.into()
}

fn fib() -> Fib {
    let fib = Fib::default();
    fib.set_interface(Port(0), Some(Interface::new(FROM, 1500)));
    fib.set_interface(Port(1), Some(Interface::new(FROM, 1500)));
    if let Ok(prefix) = "10.9.1.0/24".parse() {
        fib.set_route(prefix, Some(Route::on_link(Port(1))));
    }
    fib.set_neighbour(Port(1), ip(DESTINATION), Some(TO));
    fib
}

/// With the flow of the frames begun.
fn nat() -> Nat {
    let table = NatTable::builder().build();
    let from = "10.9.0.0/24".parse();
    let external = ip([10, 9, 1, 77]);
    let Ok(from) = from else { return Nat::new(table) };
    let mut nat = Nat::new(table).rule(NatRule::Source { ingress: Port(0), from, external });
    let mut packet = Packet::new(Port(0), &frame());
    // What the host does with the first packet; the time does not matter here.
    let begun = nat.process(&mut packet, Instant::from_nanos(1));
    debug_assert_eq!(begun, Verdict::Pass);
    nat
}

/// The running program, and the operations on it.
#[derive(Debug)]
pub(super) struct Forwarding {
    runs: Runs,
    fib: Fib,
    is_over: AtomicBool,
}

#[derive(Debug)]
enum Runs {
    ByHand((LoadedProgram, Attachment, Attachment)),
    Compiled(Box<Mutex<NicPipeline>>),
}

impl Forwarding {
    const fn of(runs: Runs, fib: Fib) -> Self {
        Self { runs, fib, is_over: AtomicBool::new(false) }
    }

    /// Frames that were handed on so far.
    pub(super) fn forwarded(&self) -> Result<u64, String> {
        match &self.runs {
            Runs::ByHand((program, ..)) => sum(program, 1, 0),
            Runs::Compiled(nic) => {
                let nic = nic.lock().unwrap_or_else(PoisonError::into_inner);
                let program = nic.program(Port(0)).ok_or("no program")?;
                sum(&program, 0, SENT)
            }
        }
    }

    /// The program's own time for a frame, in nanoseconds: without the way of the frame.
    pub(super) fn program_ns(&self) -> Result<u32, NicError> {
        // Each run sees what the one before has left of the frame, whose TTL ends: the least of single runs.
        let least = |program: &LoadedProgram| -> Result<u32, NicError> {
            let mut least = u32::MAX;
            for _ in 0..200 {
                least = least.min(program.test_run(&frame(), 0, 1)?.duration_ns);
            }
            Ok(least)
        };
        match &self.runs {
            Runs::ByHand((program, ..)) => least(program),
            Runs::Compiled(nic) => {
                let nic = nic.lock().unwrap_or_else(PoisonError::into_inner);
                nic.program(Port(0)).map_or(Ok(0), |program| least(&program))
            }
        }
    }

    /// Changes routes and neighbours until it is stopped. Returns how many changes there were.
    pub(super) fn change(&self) -> Result<u64, String> {
        let Runs::Compiled(nic) = &self.runs else { return Ok(0) };
        let [wide, narrow] = ["10.9.1.0/24", "10.9.1.2/32"].map(str::parse);
        let (Ok(wide), Ok(narrow)) = (wide, narrow) else { return Err("no prefix".to_owned()) };
        let mut count = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let router = Route::via(Port(1), ip(DESTINATION));
            let route = if count % 2 == 0 { router } else { Route::on_link(Port(1)) };
            self.fib.set_route(wide, Some(route));
            self.fib.set_route(narrow, (count % 3 == 0).then_some(route));
            self.fib.set_neighbour(Port(1), ip(SOURCE), (count % 5 == 0).then_some(TO));
            let mut nic = nic.lock().unwrap_or_else(PoisonError::into_inner);
            count += u64::try_from(nic.follow().map_err(|error| error.to_string())?).unwrap_or(0);
            drop(nic);
            std::thread::park_timeout(super::PAUSE);
        }
        Ok(count)
    }

    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The least program that a person would write: it looks whether the header is there, writes both addresses, counts the
/// frame, and redirects it.
fn by_hand(wires: &VethPairs) -> Result<(LoadedProgram, Attachment, Attachment), NicError> {
    let mut a = Assembler::new("vigie_by_hand", ProgramKind::Xdp);
    let ports = a.map(MapSpec::devices(2));
    let counts = a.map(MapSpec::per_cpu_array(8, 1));
    let drop = a.label();
    a.load(Size::Word, R6, R1, 0).load(Size::Word, R7, R1, 4).set(R2, R6).add(R2, 14);
    a.branch(Condition::Greater, R2, R7, drop);
    let [a0, b0, c0, d0, e0, f0] = TO.0;
    let [a1, b1, c1, d1, e1, f1] = FROM.0;
    a.store(Size::Word, R6, 0, i32::from_ne_bytes([a0, b0, c0, d0]));
    a.store(Size::Word, R6, 4, i32::from_ne_bytes([e0, f0, a1, b1]));
    a.store(Size::Word, R6, 8, i32::from_ne_bytes([c1, d1, e1, f1]));
    a.store(Size::Word, R10, -4, 0).set(R2, R10).add(R2, -4).load_map(R1, counts);
    a.call(Helper::MapLookup).branch(Condition::Equal, R0, 0, drop);
    a.load(Size::Double, R1, R0, 0).add(R1, 1).store(Size::Double, R0, 0, R1);
    a.load_map(R1, ports).set(R2, 1).set(R3, XDP_DROP).call(Helper::RedirectMap).exit();
    a.bind(drop).set(R0, XDP_DROP).exit();
    let made = a.finish().map_err(vigie_forward::nic::CompileError::from)?;
    let program = LoadedProgram::load(&made)?;
    let failed = |source| NicError::Port { port: Port(1), interface: wires.departure, source };
    let value = wires.departure.to_ne_bytes();
    program.maps()[0].write(&1_u32.to_ne_bytes(), &value, UpdateMode::Any).map_err(failed)?;
    let attach = |program: &LoadedProgram, port, interface| {
        let attached = Attachment::new(program, interface, AttachMode::Native);
        attached.map_err(|source| NicError::Attach { port, source })
    };
    let pass =
        LoadedProgram::load(&vigie_forward::bpf::constant_program(ProgramKind::Xdp, XDP_PASS))?;
    let arrival = attach(&program, Port(0), wires.arrival)?;
    let departure = attach(&pass, Port(1), wires.departure)?;
    debug_assert_eq!(XDP_REDIRECT, 4);
    Ok((program, arrival, departure))
}
