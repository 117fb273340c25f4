//! Frames and packets between interfaces.
//!
//! ```text
//!              ┌── program at the interface ──┐ what it can do leaves here
//!   interface ─┤                              ├─▶ interface
//!              └─▶ packet socket ─▶ pipeline ─┘ the rest, or everything
//!                        │
//!                        └ thread of the flow    tables.rs: the kernel's routes, for both
//! ```
//! The pipeline of the host always runs: a program passes up what it cannot do, and what it does the pipeline never
//! sees. So a flow moves between host and interface by attaching and taking away the program, while each packet is
//! forwarded by one of them.

mod checks;
mod program;
mod running;
mod stages;
mod tables;
mod work;

use std::{
    io,
    net::IpAddr,
    rc::Rc,
    sync::mpsc::{Receiver, sync_channel},
    time::Duration,
};

use vigie::{
    Instant,
    detect::{Fixed, Frequency, Registration, Server, Strategy},
    forward::{
        host::{self, Forwarder, ForwarderError, HostEvent, Hosted, Segments},
        icmp::Answers,
        packet::Port,
        pipeline::{OnFull, Pipeline, Stage},
        tables::{Fib, NatTable},
    },
    spawn_local,
    via::link::{BackEnd, EtherType, Link, LinkBuilder, LinkEvent, OpenError},
};

use self::{
    checks::{check_interfaces, check_rights},
    program::{Door, Needs, Program, Refusal, word},
    running::FramesFlow,
    tables::Tables,
    work::{Work, host_stages, program_stages, work_of},
};
use super::{FlowError, Place, Prepared, Running};
use crate::{
    cli::Side,
    config::{Flow, Frames, Kind, PathChoice, SegmentsChoice, Waiting},
    journal::say,
    migration::Migration,
    privileges::Right,
    stats::FlowReport,
};

/// Neighbours that are asked for at a time; more are asked for by the next packet to them.
const WANTED_MAX: usize = 256;
/// How long the kernel polls the network card before a thread that busy-polls sleeps.
const BUSY_POLL: Duration = Duration::from_micros(50);
/// Frames of 64 KiB that the kernel keeps: 128 KiB each.
const SEGMENT_FRAMES: u32 = 512;
/// Frames of the MTU that the kernel keeps.
const PLAIN_FRAMES: u32 = 4096;

/// A flow that is set up.
struct PreparedFrames {
    head: FlowReport,
    frames: Frames,
    names: Vec<String>,
    forwarder: Forwarder,
    fib: Fib,
    /// Whether packets are routed.
    routes: bool,
    table: u32,
    nat: Option<NatTable>,
    wanted: Receiver<(Port, IpAddr)>,
    program: Option<Program>,
}

/// A wire follows interfaces, and no table of routes.
const TABLE_NONE: u32 = 0;

/// Opens the interfaces.
pub(super) fn prepare(flow: &Flow) -> Result<Box<dyn Prepared>, FlowError> {
    let no_frames = || FlowError::Setting("a relay has no frames".to_owned());
    let frames = flow.kind.frames().ok_or_else(no_frames)?;
    check_rights(&flow.name)?;
    let (routes, table) = match &flow.kind {
        Kind::L3(l3) => (true, l3.table),
        Kind::Nat(nat) => (true, nat.table),
        Kind::L2(_) | Kind::Relay(_) => (false, TABLE_NONE),
    };
    if routes && frames.path == PathChoice::AfXdp {
        return Err(FlowError::Setting(
            "af-xdp takes every frame from the kernel, ARP among them, and so finds no neighbours: it is for l2".to_owned(),
        ));
    }
    let names: Vec<String> = flow.kind.interfaces().into_iter().map(str::to_owned).collect();
    let doors = check_interfaces(&names, &flow.kind, table)?;
    let fib = Fib::default();
    let (sender, wanted) = sync_channel(WANTED_MAX);
    let work = work_of(&flow.kind, &doors)?;
    let mut builder = Pipeline::builder().on_full(OnFull::Drop);
    for stage in host_stages(&work, &fib, sender) {
        builder = builder.boxed(stage);
    }
    if routes {
        // A wire has no addresses, and nobody to speak for.
        builder = builder.answers(Answers::new(&fib));
    }
    let pipeline = builder.build().map_err(|error| FlowError::Setting(error.to_string()))?;
    let path = if frames.path == PathChoice::AfXdp { "af-xdp" } else { "af-packet" };
    let mut head = FlowReport {
        name: flow.name.clone(),
        kind: flow.kind.word().to_owned(),
        between: names.join(", "),
        path: path.to_owned(),
        side: Side::Host.word().to_owned(),
        ..FlowReport::default()
    };
    let program = program(&mut head, frames, &doors, &work, &fib)?;
    let mut forwarder = Forwarder::builder(pipeline);
    // Beside a program that has all frames for itself, the host must not take them as well.
    let is_alone = program.as_ref().is_some_and(Program::is_alone);
    let taken = if is_alone { &[][..] } else { &names[..] };
    for (port, name) in (0..).zip(taken) {
        let (link, segments) = link(name, frames, &flow.kind);
        forwarder = forwarder.port_with(Port(port), link, segments);
    }
    let forwarder = forwarder.build().map_err(|error| cannot_open(error, &names))?;
    let nat = match work {
        Work::Translate { table, .. } => Some(table),
        Work::Wire | Work::Route => None,
    };
    let frames = frames.clone();
    let prepared =
        PreparedFrames { head, frames, names, forwarder, fib, routes, table, nat, wanted, program };
    Ok(Box::new(prepared))
}

/// Attaches the program, if it is wanted and can be had, and says what is taken instead.
fn program(
    head: &mut FlowReport,
    frames: &Frames,
    doors: &[Door],
    work: &Work,
    fib: &Fib,
) -> Result<Option<Program>, FlowError> {
    if matches!(frames.path, PathChoice::AfXdp | PathChoice::AfPacket) {
        "as configured".clone_into(&mut head.because);
        return Ok(None);
    }
    let stages = program_stages(work, fib)?;
    let stages: Vec<&dyn Stage> = stages.iter().map(|stage| &**stage).collect();
    let translates = matches!(work, Work::Translate { .. });
    let needs = match work {
        Work::Wire if frames.migration().is_none() => Needs::Nothing,
        _ => Needs::Host,
    };
    match program::attach(&head.name, (frames.path, needs), doors, &stages, translates) {
        Ok((mut program, reasons)) => {
            for reason in &reasons {
                say(format!("flow `{}`: not {reason}", head.name));
            }
            head.because = reasons.join("; ");
            if frames.migration().is_some() {
                // It is there, and waits for load.
                program.pause();
            } else {
                Side::Nic.word().clone_into(&mut head.side);
                let path = program.place().map_or("a program", word);
                say(format!("flow `{}`: forwards by {path}", head.name));
            }
            Ok(Some(program))
        }
        Err(refusal) if frames.path == PathChoice::Auto => {
            let text = refusal.text();
            say(format!("flow `{}`: the host forwards by packet sockets, since {text}", head.name));
            text.clone_into(&mut head.because);
            Ok(None)
        }
        Err(Refusal::Rights(text)) => Err(FlowError::Rights(text)),
        Err(Refusal::Places(text)) => {
            Err(FlowError::Setting(format!("{text}; --path auto takes what there is")))
        }
    }
}

/// Describes how an interface is opened.
fn link(name: &str, frames: &Frames, kind: &Kind) -> (LinkBuilder, Segments) {
    let is_wire = matches!(kind, Kind::L2(_));
    let mut builder = if is_wire {
        host::link(name)
    } else {
        // A router takes what is for it.
        Link::builder(name).ether_type(EtherType::ALL).receive_frames(1024).send_frames(1024)
    };
    if frames.waiting == Waiting::BusyPoll {
        builder = builder.busy_poll(BUSY_POLL);
    }
    match (frames.path, frames.segments) {
        (PathChoice::AfXdp, _) => (builder.back_end(BackEnd::Xdp), Segments::Refuse),
        (_, SegmentsChoice::Cut) => {
            (builder.segments().receive_frames(SEGMENT_FRAMES), Segments::Cut)
        }
        (_, SegmentsChoice::Refuse) => (builder.receive_frames(PLAIN_FRAMES), Segments::Refuse),
    }
}

fn cannot_open(error: ForwarderError, names: &[String]) -> FlowError {
    match error {
        ForwarderError::Open { port, source } => {
            let name = names.get(usize::from(port.0)).map_or("?", String::as_str);
            match source {
                error @ OpenError::MissingCapability { .. } => FlowError::Rights(error.to_string()),
                error => FlowError::Setting(format!("interface `{name}`: {error}")),
            }
        }
        error => FlowError::Setting(error.to_string()),
    }
}

impl Prepared for PreparedFrames {
    fn rights(&self) -> Vec<Right> {
        match self.program {
            Some(_) => Right::ALL.to_vec(),
            None => vec![Right::NetRaw],
        }
    }

    fn table(&self) -> Option<u32> {
        Some(self.table)
    }

    fn start(self: Box<Self>, _: &Place<'_>) -> Result<Box<dyn Running>, FlowError> {
        let failed =
            |source| FlowError::Io { what: "starting the flow's thread".to_owned(), source };
        // It inherits the rights that were kept, with which interfaces are opened again.
        let thread = Server::spawn_thread().map_err(failed)?;
        let mut registration = Registration::named("forwarder");
        if self.frames.waiting == Waiting::Spin {
            let every = Frequency::Switches(1);
            registration = registration.policy(Fixed(Strategy::PollGroup { every }));
        }
        let counters = self.forwarder.counters().clone();
        let hosted = Hosted::with_registration(thread.server(), self.forwarder, registration);
        let hosted = hosted.map_err(|error| failed(io::Error::other(error)))?;
        let mut events = hosted.start().map_err(|error| failed(io::Error::other(error)))?;
        let names: Rc<[String]> = self.names.clone().into();
        let flow = self.head.name.clone();
        let of_ports = Rc::clone(&names);
        spawn_local(async move {
            // It ends with the server.
            while let Some(Ok(event)) = events.next().await {
                tell(&flow, &of_ports, &event);
            }
        })
        .detach();
        let migration = self.frames.migration();
        let migration = migration.map(|one| Migration::new(one, Side::Host));
        Ok(Box::new(FramesFlow {
            head: self.head,
            tables: Tables::new(self.fib, self.names),
            routes: self.routes,
            names,
            program: self.program,
            nat: self.nat,
            wanted: self.wanted,
            counters,
            hosted,
            thread: Some(thread),
            migration,
            refresh_at: Instant::from_nanos(0),
        }))
    }
}

/// Says what happened to an interface.
fn tell(flow: &str, names: &[String], event: &HostEvent) {
    let name = |port: &Port| names.get(usize::from(port.0)).map_or("?", String::as_str);
    say(match event {
        HostEvent::Link(port, event) => match event {
            LinkEvent::Removed => {
                format!("flow `{flow}`: interface {} is gone; it is waited for", name(port))
            }
            LinkEvent::Down => format!("flow `{flow}`: interface {} is down", name(port)),
            LinkEvent::Up => format!("flow `{flow}`: interface {} is up", name(port)),
            LinkEvent::Mtu(bytes) => {
                format!("flow `{flow}`: interface {} has an MTU of {bytes} bytes", name(port))
            }
            LinkEvent::Address(address) => {
                format!("flow `{flow}`: interface {} has the address {address}", name(port))
            }
            event => format!("flow `{flow}`: interface {}: {event:?}", name(port)),
        },
        HostEvent::Reopened(port) => {
            format!("flow `{flow}`: interface {} is back, and attached again", name(port))
        }
        HostEvent::NotReopened(port, error) => {
            format!("flow `{flow}`: interface {} cannot be attached again yet: {error}", name(port))
        }
        HostEvent::Failed(port, error) => {
            format!("flow `{flow}`: interface {} fails: {error}", name(port))
        }
        event => format!("flow `{flow}`: {event:?}"),
    });
}
