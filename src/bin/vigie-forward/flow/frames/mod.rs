//! Frames and packets between interfaces.
//!
//! ```text
//!              ┌── program at the interface ──┐ what it can do leaves here
//!   interface ─┤                              ├─▶ interface
//!              └─▶ packet socket ─▶ pipeline ─┘ the rest, or everything
//!                        │
//!                        └ thread of the flow    tables.rs: the kernel's routes, for both
//! ```
//! The host's pipeline always runs: a program passes up the packets that it cannot handle, and the pipeline never sees
//! the others. So attaching or detaching the program moves a flow between interface and host, while each packet is
//! forwarded by only one of them.

mod announcements;
mod checks;
mod forwarding;
mod fullness;
mod late;
mod link_states;
mod locked_file;
mod own_address;
mod probe;
mod program;
mod public_side;
mod questions;
mod running;
mod stages;
mod state_file;
mod tables;
mod translations;
mod untranslated;

use std::{fs, io, net::IpAddr, rc::Rc, sync::Arc, time::Duration};

use vigie::{
    Instant,
    detect::{Fixed, Frequency, Registration, Server, Strategy},
    forward::{
        host::{
            self, AsyncForwarder, Forwarder, ForwarderBuilder, ForwarderError, HostEvent, Segments,
        },
        icmp::IcmpErrorSender,
        packet::Port,
        pipeline::{OnFull, Pipeline, Stage},
        tables::{Fib, NatEndpoint, NatFlow},
    },
    spawn_local,
    via::link::{BackEnd, EtherType, Link, LinkBuilder, LinkEvent, OpenError},
};

pub(crate) use self::checks::taken_addresses;
use self::{
    announcements::Announcements,
    checks::{Claims, check_interfaces, check_own_address, check_rights, claim},
    forwarding::{Forwarding, forwarding_of, host_stages, program_stages, warn_unreached},
    late::LateWatch,
    link_states::LinkStates,
    own_address::{AddressWatch, OwnAddress},
    program::{AttachRefusal, FlowInterface, FlowTaker, FrameProgram, HostRequirement, path_of},
    public_side::PublicSide,
    questions::Questions,
    running::FramesFlow,
    state_file::StateFile,
    tables::Tables,
    translations::Translations,
};
use super::{FlowError, FlowStart, Prepared, Running, StartContext};
use crate::{
    cli::FlowSide,
    config::{FlowConfig, FlowKind, Frames, Nat, PathChoice, SegmentsChoice, WaitMode},
    journal::log,
    migration::Migration,
    plan::{PathDecision, RefusedPath, path_name, work_of},
    privileges::{HeldRights, Right, lacks},
    stats::FlowReport,
};

/// The time that the kernel polls the network card before a thread that busy-polls sleeps.
const BUSY_POLL: Duration = Duration::from_micros(50);
/// The number of frames of 64 KiB that the kernel buffers, 128 KiB each: of a wire, of each version of IP, and of each
/// version of IP beside a program that handles segments.
const SEGMENT_FRAMES: u32 = 512;
const SEGMENT_FRAMES_OF_VERSION: u32 = 256;
const SEGMENT_FRAMES_BESIDE: u32 = 92;
/// The number of frames of the MTU that the kernel buffers.
const PLAIN_FRAMES: u32 = 4096;
/// The number of frames that wait to be sent, and of answers to ARP.
const SENT_FRAMES: u32 = 1024;
const ARP_FRAMES: u32 = 128;

/// A flow that is set up but not running.
struct PreparedFrames {
    head: FlowReport,
    frames: Frames,
    names: Vec<String>,
    links: LinkStates,
    forwarder: Forwarder,
    fib: Fib,
    /// True if packets are routed.
    routes: bool,
    table: u32,
    nat: Option<Translations>,
    own_address: Option<OwnAddress>,
    address_watch: Option<AddressWatch>,
    announcements: Option<Announcements>,
    state_file: Option<StateFile>,
    questions: Arc<Questions>,
    program: Option<FrameProgram>,
    decision: PathDecision,
    late: LateWatch,
    claims: Claims,
}

/// Checks what does not take the interfaces, of which others have `held`.
pub(super) fn check(flow: &FlowConfig, held: &[&str]) -> Result<(), FlowError> {
    check_rights()?;
    let (_, table) = routing(&flow.kind);
    let names: Vec<String> = flow.kind.interfaces().into_iter().map(str::to_owned).collect();
    let from = (table, FlowStart::First);
    let (flow_interfaces, public_side) = check_interfaces(&names, &flow.kind, from)?;
    check_own_address(&flow.kind, public_side, FlowStart::First)?;
    check_state_folder(&flow.kind, FlowStart::First)?;
    forwarding_of((&flow.name, &flow.kind), &flow_interfaces, public_side)?;
    let free = names.into_iter().filter(|name| !held.contains(&name.as_str()));
    claim(&free.collect::<Vec<_>>()).map(drop)
}

/// Returns the problems of interfaces that cannot be used, by the paths of their keys.
pub(super) fn interface_problems(kind: &FlowKind) -> Result<Vec<(String, String)>, FlowError> {
    check_rights()?;
    Ok(checks::interface_problems(kind, &checks::interfaces(TABLE_NONE)?))
}

/// A wire follows interfaces, but no routing table.
const TABLE_NONE: u32 = 0;

/// Opens the interfaces.
pub(super) fn prepare(flow: &FlowConfig, start: FlowStart) -> Result<Box<dyn Prepared>, FlowError> {
    let no_frames = || FlowError::InvalidSetting("a relay has no frames".to_owned());
    let frames = flow.kind.frames().ok_or_else(no_frames)?;
    check_rights()?;
    let (routes, table) = routing(&flow.kind);
    let names: Vec<String> = flow.kind.interfaces().into_iter().map(str::to_owned).collect();
    let (flow_interfaces, public_side) = check_interfaces(&names, &flow.kind, (table, start))?;
    let own_address = check_own_address(&flow.kind, public_side, start)?;
    check_state_folder(&flow.kind, start)?;
    let claims = claim(&names)?;
    let fib = Fib::default();
    let questions = Arc::new(Questions::new());
    let taker = FlowTaker::default();
    let work = forwarding_of((&flow.name, &flow.kind), &flow_interfaces, public_side)?;
    warn_unreached(&flow.kind, &flow_interfaces, public_side);
    let state_file = state_file(&flow.name, &work)?;
    let mut builder = Pipeline::builder().on_full(OnFull::Drop);
    for stage in host_stages(&work, &fib, &questions, &taker) {
        builder = builder.boxed(stage);
    }

    if routes {
        // A wire has no addresses, so it sends no ICMP errors.
        builder = builder.icmp_errors(IcmpErrorSender::new(&fib));
    }

    let pipeline = builder.build().map_err(|error| FlowError::InvalidSetting(error.to_string()))?;
    let path = if frames.path == PathChoice::AfXdp { "af-xdp" } else { "af-packet" };
    let mut head = FlowReport {
        name: flow.name.clone(),
        kind: flow.kind.name().to_owned(),
        between: names.join(", "),
        path: path.to_owned(),
        side: FlowSide::Host.name().to_owned(),
        ..FlowReport::default()
    };

    let mut decision = undecided(&flow.kind, frames);
    let (by, at) = ((frames, &mut decision), (&flow_interfaces[..], &own_address));
    let program = program(&mut head, by, at, &work, &fib)?;
    if let Some(program) = &program {
        program.takes_flows_by(&taker);
    }

    let builder = Forwarder::builder(pipeline);
    let public = PublicAddress::of(&flow.kind, own_address.as_ref());
    let forwarder = with_links(builder, &names, frames, (&flow.kind, public), program.as_ref());
    let forwarder = forwarder.build().map_err(|error| cannot_open(error, &flow.kind))?;
    let announcements = announcements(&flow.kind, &flow_interfaces, public_side);
    let (nat, address_watch) = work.into_translations().unzip();
    let late = LateWatch::new(segment_frames(&flow.kind, frames, program.as_ref()), PLAIN_FRAMES);
    let frames = frames.clone();
    let links = flow_interfaces.into_iter().map(|one| (one.name, one.index, one.is_up));
    let prepared = PreparedFrames {
        head,
        frames,
        names,
        links: LinkStates::new(links),
        forwarder,
        fib,
        routes,
        table,
        nat,
        own_address,
        address_watch,
        announcements,
        state_file,
        questions,
        program,
        decision,
        late,
        claims,
    };

    Ok(Box::new(prepared))
}

/// Returns the announcements of a public address for which ARP is answered.
fn announcements(
    kind: &FlowKind,
    flow_interfaces: &[FlowInterface],
    public: Option<PublicSide>,
) -> Option<Announcements> {
    let (FlowKind::Nat(nat), Some(public)) = (kind, public) else { return None };
    let is_headerless = flow_interfaces.last().is_none_or(|outside| outside.is_headerless);
    let is_answered = !public.is_own && !is_headerless;
    is_answered.then(|| Announcements::new(nat.outside.clone(), public))
}

/// Returns whether packets are routed, and by which table.
const fn routing(kind: &FlowKind) -> (bool, u32) {
    let (routes, table) = match kind {
        FlowKind::L3(l3) => (true, l3.table),
        FlowKind::Nat(nat) => (true, nat.table),
        FlowKind::L2(_) | FlowKind::Relay(_) => (false, TABLE_NONE),
    };
    (routes, table)
}

/// Refuses a state file without a folder: it could never be written.
fn check_state_folder(kind: &FlowKind, start: FlowStart) -> Result<(), FlowError> {
    let FlowKind::Nat(Nat { state: Some(path), .. }) = kind else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.map(fs::metadata) {
        Some(Err(error))
            if error.kind() == io::ErrorKind::NotFound && start == FlowStart::First =>
        {
            Err(FlowError::of_key(
                "state",
                format!(
                    "`state`: {} cannot be written, since its folder does not exist: create the folder, or name another file",
                    path.display()
                ),
            ))
        }
        // Anything else may pass, and is said when the file is read and written.
        _ => Ok(()),
    }
}

/// Takes over the translations of before, if there is a file for them.
fn state_file(flow: &str, work: &Forwarding) -> Result<Option<StateFile>, FlowError> {
    let Forwarding::Translate { table, nat, public, .. } = work else { return Ok(None) };
    let Some(path) = &nat.state else { return Ok(None) };
    let address = IpAddr::from(public.address);
    let keeps = |flow: &NatFlow| {
        let (to, becomes) = (flow.original.destination, flow.translated.destination);
        flow.translated.source.address == address
            || nat.publish.iter().any(|one| {
                let to_it = NatEndpoint::new(one.to.ip(), one.to.port());
                (to, becomes) == (NatEndpoint::new(address, one.port), to_it)
            })
    };
    StateFile::restore(flow, path, table, keeps).map(Some)
}

/// The decision before anything is tried: by packet sockets, or by AF_XDP if that is named.
fn undecided(kind: &FlowKind, frames: &Frames) -> PathDecision {
    let host = match frames.path {
        PathChoice::AfXdp => PathChoice::AfXdp,
        _ => PathChoice::AfPacket,
    };
    PathDecision {
        work: work_of(kind),
        is_named: frames.path != PathChoice::Auto,
        migrates: frames.migration().is_some(),
        best: host,
        refused: Vec::new(),
    }
}

/// Attaches the program, if wanted and possible, and logs the alternative used instead.
fn program(
    head: &mut FlowReport,
    (frames, decision): (&Frames, &mut PathDecision),
    (flow_interfaces, own_address): (&[FlowInterface], &Option<OwnAddress>),
    work: &Forwarding,
    fib: &Fib,
) -> Result<Option<FrameProgram>, FlowError> {
    if matches!(frames.path, PathChoice::AfXdp | PathChoice::AfPacket) {
        if own_address.is_some() {
            return Err(FlowError::of_key("path", needs_program("with this --path there is none")));
        }
        "as configured".clone_into(&mut head.because);
        log_path(head, decision, decision.best);
        return Ok(None);
    }

    let stages = program_stages(work, fib)?;
    let stages: Vec<&dyn Stage> = stages.iter().map(|stage| &**stage).collect();
    let needs = match work {
        Forwarding::Wire if frames.migration().is_none() => HostRequirement::Nothing,
        Forwarding::Wire => HostRequirement::Frames,
        Forwarding::Route | Forwarding::Translate { .. } => HostRequirement::Packets,
    };

    let taken = own_address.as_ref().map(OwnAddress::taken);
    let attached = program::attach(
        &head.name,
        (frames.path, needs),
        (flow_interfaces, taken),
        (&stages, decision.work),
    );
    match attached {
        Ok((mut program, refused)) => {
            head.because = RefusedPath::list(&refused);
            let host = decision.best;
            decision.best = program.mode().map_or(decision.best, path_of);
            decision.refused = refused;
            if frames.migration().is_some() {
                // It is attached only under load.
                program.pause();
                log_path(head, decision, host);
            } else {
                log_path(head, decision, decision.best);
            }
            Ok(Some(program))
        }
        Err(AttachRefusal::NoMode(refused)) if own_address.is_some() => {
            Err(FlowError::of_key("path", needs_program(&RefusedPath::list(&refused))))
        }
        Err(AttachRefusal::Rights(text)) if own_address.is_some() => {
            Err(FlowError::Rights { key: "path", problem: needs_program(&text) })
        }
        Err(refusal) if frames.path == PathChoice::Auto => {
            decision.refused = refusal.refused();
            head.because = RefusedPath::list(&decision.refused);
            log_path(head, decision, decision.best);
            Ok(None)
        }
        Err(AttachRefusal::Rights(text)) => Err(FlowError::Rights { key: "path", problem: text }),
        Err(AttachRefusal::NoMode(refused)) => {
            let text = RefusedPath::list(&refused);
            Err(FlowError::of_key("path", format!("{text}; --path auto takes what there is")))
        }
    }
}

/// Logs by which path a flow begins to forward, and why.
fn log_path(head: &FlowReport, decision: &PathDecision, path: PathChoice) {
    let (name, path_name) = (&head.name, path_name(path));
    log(format!("flow `{name}`: forwards by {path_name}: {}", decision.sentence(path, None)));
}

/// Says why a public address of this host is not possible here.
fn needs_program(because: &str) -> String {
    format!(
        "the public address is one of this host, whose kernel would reset translated connections unless a program at tcx (Linux 6.6) \
         keeps their packets from it: {because}. Another address of the outside network needs no program: vigie-forward answers ARP \
         for it"
    )
}

/// The public address of translations, as far as links know it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PublicAddress {
    None,
    /// No host has it: ARP for it is answered.
    Answered,
    /// This host has it: packets are marked as another host's.
    Own,
}

impl PublicAddress {
    const fn of(kind: &FlowKind, own_address: Option<&OwnAddress>) -> Self {
        match (kind, own_address) {
            (FlowKind::Nat(_), None) => Self::Answered,
            (_, Some(_)) => Self::Own,
            (_, None) => Self::None,
        }
    }
}

/// Adds the links of all interfaces; none beside a program that handles all frames itself, since the host would take them
/// as well.
fn with_links(
    mut forwarder: ForwarderBuilder,
    names: &[String],
    frames: &Frames,
    (kind, public): (&FlowKind, PublicAddress),
    program: Option<&FrameProgram>,
) -> ForwarderBuilder {
    if program.is_some_and(FrameProgram::is_alone) {
        return forwarder;
    }
    let segment_frames = segment_frames(kind, frames, program);
    for (port, name) in (0..).zip(names) {
        forwarder = if let FlowKind::L2(_) = kind {
            let (link, segments) = wire_link(name, frames, segment_frames);
            forwarder.port_with(Port(port), link, segments)
        } else {
            router_links(forwarder, (Port(port), name), frames, (segment_frames, public))
        };
    }
    forwarder
}

/// Returns the settings of a wire's link: all frames.
fn wire_link(name: &str, frames: &Frames, segment_frames: Option<u32>) -> (LinkBuilder, Segments) {
    let builder = waiting(host::link(name), frames);
    match frames.path {
        PathChoice::AfXdp => (builder.back_end(BackEnd::Xdp), Segments::Refuse),
        _ => buffered(sending(builder, frames), segment_frames),
    }
}

/// Adds a router's links on an interface: one that sends, and one for each protocol of frames that are addressed to it.
/// Links of a single protocol see frames after a program at tcx, and only those that it has left.
fn router_links(
    forwarder: ForwarderBuilder,
    (port, name): (Port, &str),
    frames: &Frames,
    (segment_frames, public): (Option<u32>, PublicAddress),
) -> ForwarderBuilder {
    let link =
        |ether_type| waiting(Link::builder(name).ether_type(ether_type).adds_headers(), frames);
    let sends = link(EtherType::NONE).receive_frames(1).send_frames(SENT_FRAMES);
    let sends = sending(sends, frames);
    let mut forwarder = forwarder.port_with(port, sends, Segments::Refuse);
    for ether_type in [EtherType::IPV4, EtherType::IPV6] {
        let mut link = link(ether_type).send_frames(1);
        if public == PublicAddress::Own {
            link = link.marked_foreign();
        }
        let (link, segments) = buffered(link, segment_frames);
        forwarder = forwarder.also_from(port, link, segments);
    }
    if public == PublicAddress::Answered {
        let link = link(EtherType::ARP).receive_frames(ARP_FRAMES).send_frames(1);
        forwarder = forwarder.also_from(port, link, Segments::Refuse);
    }
    forwarder
}

fn waiting(builder: LinkBuilder, frames: &Frames) -> LinkBuilder {
    match frames.waiting {
        WaitMode::BusyPoll => builder.busy_poll(BUSY_POLL),
        WaitMode::Sleep | WaitMode::Spin => builder,
    }
}

/// Returns the number of frames of several segments that the kernel buffers at each socket; `None` if it buffers frames of the MTU.
fn segment_frames(kind: &FlowKind, frames: &Frames, program: Option<&FrameProgram>) -> Option<u32> {
    match (frames.segments, kind) {
        (SegmentsChoice::Refuse, _) => None,
        _ if frames.path == PathChoice::AfXdp => None,
        (SegmentsChoice::Cut, FlowKind::L2(_)) => Some(SEGMENT_FRAMES),
        _ if program.is_some_and(FrameProgram::takes_segments) => Some(SEGMENT_FRAMES_BESIDE),
        _ => Some(SEGMENT_FRAMES_OF_VERSION),
    }
}

fn buffered(builder: LinkBuilder, segment_frames: Option<u32>) -> (LinkBuilder, Segments) {
    match segment_frames {
        Some(count) => (builder.segments().receive_frames(count), Segments::Cut),
        None => (builder.receive_frames(PLAIN_FRAMES), Segments::Refuse),
    }
}

/// Has a link send segments whole, if there are any.
fn sending(builder: LinkBuilder, frames: &Frames) -> LinkBuilder {
    match frames.segments {
        SegmentsChoice::Cut => builder.sends_segments(),
        SegmentsChoice::Refuse => builder,
    }
}

fn cannot_open(error: ForwarderError, kind: &FlowKind) -> FlowError {
    match error {
        ForwarderError::Open {
            source: error @ OpenError::MissingCapability { what, capability },
            ..
        } => {
            let problem = match lacks(&Right::ALL) {
                (lacks, true) => format!("{what} needs {capability}, {lacks}"),
                _ => error.to_string(),
            };
            FlowError::Rights { key: "path", problem }
        }
        ForwarderError::Open { port, source } => {
            let interface = kind.keyed_interfaces().into_iter().nth(usize::from(port.0));
            let (key, name) = interface.unwrap_or_default();
            FlowError::of_key(key, format!("interface `{name}`: {source}"))
        }
        error => FlowError::InvalidSetting(error.to_string()),
    }
}

impl Prepared for PreparedFrames {
    fn rights(&self) -> Vec<Right> {
        match self.program {
            // Those that a program was loaded without are not needed again either.
            Some(_) => {
                let held = HeldRights::now();
                Right::ALL.into_iter().filter(|right| held.has(*right)).collect()
            }
            None => vec![Right::NetRaw],
        }
    }

    fn table(&self) -> Option<u32> {
        Some(self.table)
    }

    fn start(self: Box<Self>, _: &StartContext<'_>) -> Result<Box<dyn Running>, FlowError> {
        let failed =
            |source| FlowError::Io { what: "starting the flow's thread".to_owned(), source };

        // The thread inherits the capabilities that were kept, which reopening interfaces requires.
        let thread = Server::spawn_thread().map_err(failed)?;
        let mut registration = Registration::named("forwarder");
        if self.frames.waiting == WaitMode::Spin {
            let every = Frequency::Switches(1);
            registration = registration.policy(Fixed(Strategy::PollGroup { every }));
        }

        let counters = self.forwarder.counters().clone();
        let async_forwarder =
            AsyncForwarder::with_registration(thread.server(), self.forwarder, registration);
        let async_forwarder = async_forwarder.map_err(|error| failed(io::Error::other(error)))?;
        let mut events =
            async_forwarder.start().map_err(|error| failed(io::Error::other(error)))?;
        let names: Rc<[String]> = self.names.clone().into();
        let flow = self.head.name.clone();
        let of_ports = Rc::clone(&names);
        let reopened = self.announcements.as_ref().map(Announcements::reopened);
        spawn_local(async move {
            // The loop ends with the server.
            while let Some(Ok(event)) = events.next().await {
                if let (HostEvent::Reopened(_), Some(reopened)) = (&event, &reopened) {
                    reopened.set(true);
                }
                tell(&flow, &of_ports, &event);
            }
        })
        .detach();
        let migration = self.frames.migration();
        let migration = migration.map(|one| Migration::new(one, FlowSide::Host));
        let flow_name = self.head.name.clone();
        Ok(Box::new(FramesFlow {
            head: self.head,
            tables: Tables::new(&flow_name, self.fib, self.names, self.questions),
            routes: self.routes,
            names,
            links: self.links,
            program: self.program,
            decision: self.decision,
            nat: self.nat,
            own_address: self.own_address,
            address_watch: self.address_watch,
            announcements: self.announcements,
            begins_anew: false,
            state_file: self.state_file,
            counters,
            async_forwarder,
            thread: Some(thread),
            migration,
            refresh_at: Instant::from_nanos(0),
            check_at: Instant::from_nanos(0),
            kernel_forwards: None,
            merging: None,
            late: self.late,
            claims: self.claims,
        }))
    }
}

/// Logs an event of an interface; whether it is there and up, [`LinkStates`] says.
fn tell(flow: &str, names: &[String], event: &HostEvent) {
    let name = |port: &Port| names.get(usize::from(port.0)).map_or("?", String::as_str);
    log(match event {
        HostEvent::Link(_, LinkEvent::Removed | LinkEvent::Down | LinkEvent::Up) => return,
        HostEvent::Link(port, event) => match event {
            LinkEvent::MtuChanged(bytes) => {
                format!("flow `{flow}`: interface {} has an MTU of {bytes} bytes", name(port))
            }
            LinkEvent::AddressChanged(address) => {
                format!("flow `{flow}`: interface {} has the address {address}", name(port))
            }
            event => format!("flow `{flow}`: interface {}: {event:?}", name(port)),
        },
        HostEvent::Reopened(port) => {
            format!("flow `{flow}`: interface {} is back and attached again", name(port))
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
