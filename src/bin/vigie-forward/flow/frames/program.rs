//! The program at the interfaces: where it can run, and why not.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use vigie::{
    Instant,
    forward::{
        bpf::{AttachError, AttachMode},
        nic::{NicConfig, NicError, NicPipeline, TakenPorts},
        packet::Port,
        pipeline::{DropReason, Stage},
        tables::{CounterSnapshot, NatFlow, Prefix},
    },
};

use crate::{
    cli::{FlowSide, PlannedWork},
    config::PathChoice,
    journal::log,
    kernel::Interface,
    plan::{RefusedPath, path_name, ranked},
    privileges::{HeldRights, Right, lacks, listed},
};

/// Packets that a router's program leaves to the host, which answers, fragments, resolves, or drops and counts them.
const PASSED_UP: [DropReason; 8] = [
    DropReason::Malformed,
    DropReason::NotIp,
    DropReason::TtlExpired,
    DropReason::Filtered,
    DropReason::NoRoute,
    DropReason::NoNeighbour,
    DropReason::TooLong,
    // Link-local neighbours speak to the kernel.
    DropReason::Martian,
];
/// The number of translations refreshed in one check.
const REFRESHED_MAX: usize = 256;

/// An interface of the flow.
#[derive(Clone, Debug)]
pub(super) struct FlowInterface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) is_pair: bool,
    pub(super) is_up: bool,
    /// Its packets have no Ethernet header.
    pub(super) is_headerless: bool,
    /// The same, and a program at tcx may not find their IP header.
    pub(super) is_without_tcx: bool,
    /// An interface that is a VLAN of this one.
    pub(super) vlan: Option<String>,
    /// The networks reached by it.
    pub(super) networks: Vec<Prefix>,
}

/// The reason why the program is not used.
#[derive(Debug)]
pub(super) enum AttachRefusal {
    /// Missing capabilities.
    Rights(String),
    /// It could not be attached in any mode.
    NoMode(Vec<RefusedPath>),
}

impl AttachRefusal {
    /// Returns the paths that are not possible.
    pub(super) fn refused(self) -> Vec<RefusedPath> {
        match self {
            Self::Rights(because) => vec![RefusedPath { path: None, because }],
            Self::NoMode(refused) => refused,
        }
    }
}

/// A program at all interfaces of a flow, attached or paused.
#[derive(Debug)]
pub(super) struct FrameProgram {
    nic: Arc<Mutex<NicPipeline>>,
    flow: String,
    /// Names of interfaces, in the order of their ports.
    names: Vec<String>,
    interfaces: BTreeMap<Port, u32>,
    /// Those whose packets have no Ethernet header, as it was compiled.
    headerless: Vec<Port>,
    /// Interfaces that have returned as ones of another kind, for which the program is not made: it is detached until there are none.
    misfits: BTreeSet<Port>,
    /// The side that was asked for last.
    side: FlowSide,
    translates: bool,
    is_alone: bool,
    /// The flow is a wire.
    is_wire: bool,
    /// It is detached though it should not be; retried.
    is_behind: bool,
    /// The error of the last retry, which is logged once.
    failure: Option<String>,
}

/// Attaches a program in the first mode that works.
pub(super) fn attach(
    flow: &str,
    (choice, needs): (PathChoice, HostRequirement),
    (ports, taken): (&[FlowInterface], Option<TakenPorts>),
    (stages, work): (&[&dyn Stage], PlannedWork),
) -> Result<(FrameProgram, Vec<RefusedPath>), AttachRefusal> {
    let (modes, mut refused) = modes((choice, work), needs, ports);
    let missing = HeldRights::now().missing(&[Right::Bpf, Right::NetAdmin]);
    // Where none is possible, rights would not help.
    if !modes.is_empty() && !missing.is_empty() {
        let (lacks, _) = lacks(&missing);
        let missing = listed(&missing);
        return Err(AttachRefusal::Rights(format!(
            "a program at the interface needs {missing}, {lacks}"
        )));
    }

    let names: Vec<String> = ports.iter().map(|one| one.name.clone()).collect();
    let mut interfaces = BTreeMap::new();
    let headerless: Vec<Port> = (0..)
        .zip(ports)
        .filter_map(|(number, one)| one.is_headerless.then_some(Port(number)))
        .collect();
    let count = u16::try_from(ports.len()).unwrap_or(u16::MAX);
    let mut config = NicConfig::new().ports(count).pass_up(&PASSED_UP).headerless(&headerless);
    if needs == HostRequirement::Packets {
        config = config.own_frames().asked_flows().held_neighbours();
    }

    let mut builder = NicPipeline::builder().config(config);
    if let Some(taken) = taken {
        builder = builder.take_from_kernel(taken);
    }
    for (number, flow_interface) in (0..).zip(ports) {
        builder = builder.port(Port(number), flow_interface.index);
        interfaces.insert(Port(number), flow_interface.index);
    }

    let vlan = with_vlan(ports).filter(|_| needs == HostRequirement::Packets);
    let pair = ports.iter().find(|flow_interface| flow_interface.is_pair);
    for mode in modes {
        if let (AttachMode::Native, Some(FlowInterface { name, .. })) = (mode, pair) {
            log(format!(
                "flow `{flow}`: {name} is one end of a veth pair: frames that are redirected there vanish, and nothing counts \
                 them, unless the other end has a program of XDP, too"
            ));
        }
        if let (AttachMode::Native | AttachMode::Generic, Some((name, vlan))) = (mode, vlan) {
            log(format!(
                "flow `{flow}`: {name} has the VLAN {vlan}: where the tag was removed before the program, the VLAN's packets are forwarded as \
                 if they had none (`ethtool -K {name} rxvlan off` keeps it; for veth, `txvlan off` at the other end)"
            ));
        }
        match builder.clone().attach_modes(&[mode]).start(stages) {
            Ok(nic) => {
                let flow = flow.to_owned();
                let is_alone = mode == AttachMode::Tcx && needs == HostRequirement::Nothing;
                let program = FrameProgram {
                    nic: Arc::new(Mutex::new(nic)),
                    flow,
                    names,
                    interfaces,
                    headerless,
                    misfits: BTreeSet::new(),
                    side: FlowSide::Nic,
                    translates: work == PlannedWork::Nat,
                    is_alone,
                    is_wire: needs != HostRequirement::Packets,
                    is_behind: false,
                    failure: None,
                };
                return Ok((program, refused));
            }
            Err(error) => refused.push(RefusedPath::new(path_of(mode), named(&error, &names))),
        }
    }

    Err(AttachRefusal::NoMode(refused))
}

/// Returns the error's text, with the interface's name.
fn named(error: &NicError, names: &[String]) -> String {
    let name = |port: &Port| names.get(usize::from(port.0)).map_or("?", String::as_str);
    match error {
        NicError::Attach { port, source } => {
            let name = name(port);
            let hint = match source {
                AttachError::NoAttachMode { mode: AttachMode::Tcx, .. } => {
                    " (Linux has it since 6.6)"
                }
                _ => "",
            };
            format!("{name}: {source}{hint}")
        }
        NicError::Port { port, source, .. } => format!("{}: {source}", name(port)),
        error => error.to_string(),
    }
}

/// The properties of a flow that decide which attach modes are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostRequirement {
    /// Independent of the host: a wire.
    Nothing,
    /// A host that gets all frames when the flow moves there.
    Frames,
    /// A host that gets the packets that the program passes up, or all when the flow moves there.
    Packets,
}

/// The place of a program by this path.
const fn mode_of(path: PathChoice) -> Option<AttachMode> {
    match path {
        PathChoice::XdpNative => Some(AttachMode::Native),
        PathChoice::XdpGeneric => Some(AttachMode::Generic),
        PathChoice::Tcx => Some(AttachMode::Tcx),
        PathChoice::Auto | PathChoice::AfXdp | PathChoice::AfPacket => None,
    }
}

/// The path of a program at this place.
pub(super) const fn path_of(mode: AttachMode) -> PathChoice {
    match mode {
        AttachMode::Native => PathChoice::XdpNative,
        AttachMode::Generic => PathChoice::XdpGeneric,
        AttachMode::Tcx => PathChoice::Tcx,
    }
}

/// Returns the modes to try, the cheapest first, and why others are not.
fn modes(
    (choice, work): (PathChoice, PlannedWork),
    needs: HostRequirement,
    ports: &[FlowInterface],
) -> (Vec<AttachMode>, Vec<RefusedPath>) {
    // What would be dearer than packet sockets is not tried.
    let planned = || ranked(work).into_iter().map_while(mode_of).collect();
    let mut modes: Vec<AttachMode> = match choice {
        PathChoice::Auto => planned(),
        named => mode_of(named).into_iter().collect(),
    };

    let mut refused = Vec::new();
    let mut leave_out = |mode: AttachMode, because: String| {
        if modes.contains(&mode) {
            modes.retain(|one| *one != mode);
            refused.push(RefusedPath::new(path_of(mode), because));
        }
    };

    if let Some(FlowInterface { name, .. }) = ports.iter().find(|one| one.is_headerless) {
        for mode in [AttachMode::Native, AttachMode::Generic] {
            let because =
                format!("packets of {name} have no Ethernet header, with which XDP begins");
            leave_out(mode, because);
        }
    }

    if let Some(FlowInterface { name, .. }) = ports.iter().find(|one| one.is_without_tcx) {
        leave_out(
            AttachMode::Tcx,
            format!(
                "a program may not find the IP header of packets of {name}: of interfaces without Ethernet headers, it is for tun, WireGuard \
                 and tunnels of IPv4 alone"
            ),
        );
    }

    if needs == HostRequirement::Frames {
        leave_out(
            AttachMode::Tcx,
            "packet sockets of all frames see them before it does, so that the host would forward them, too"
                .to_owned(),
        );
    }

    if choice != PathChoice::Auto {
        return (modes, refused);
    }

    if let Some(FlowInterface { name, .. }) =
        ports.iter().find(|flow_interface| flow_interface.is_pair)
    {
        leave_out(
            AttachMode::Native,
            format!(
                "{name} is one end of a veth pair, where frames that are redirected vanish unless the other end has a \
                 program of XDP, too (--path xdp-native takes it all the same)"
            ),
        );
    }

    if let (Some((name, vlan)), HostRequirement::Packets) = (with_vlan(ports), needs) {
        for mode in [AttachMode::Native, AttachMode::Generic] {
            leave_out(
                mode,
                format!(
                    "{name} has the VLAN {vlan}, whose packets XDP may take for untagged ones (--path {} takes it all the same)",
                    path_name(path_of(mode))
                ),
            );
        }
    }

    if needs == HostRequirement::Nothing {
        leave_out(
            AttachMode::Generic,
            "it drops frames of several segments, which a wire must carry (--path xdp-generic takes it all the same)"
                .to_owned(),
        );
    }

    (modes, refused)
}

/// Returns the first interface that has a VLAN, and that.
fn with_vlan(ports: &[FlowInterface]) -> Option<(&str, &str)> {
    ports.iter().find_map(|one| Some((one.name.as_str(), one.vlan.as_deref()?)))
}

/// Takes over the flows of the host's table, from the thread that forwards.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowTaker(Arc<OnceLock<Arc<Mutex<NicPipeline>>>>);

impl FlowTaker {
    /// Has the program translate a flow from here on, if there is a program.
    pub(super) fn take(&self, flow: &NatFlow, now: Instant) {
        let Some(nic) = self.0.get() else { return };
        let mut nic = nic.lock().unwrap_or_else(PoisonError::into_inner);
        // The interfaces of some ports may be gone.
        if nic.is_attached() {
            // After an error it is detached, and the next check says why.
            let _ = nic.add_flow(flow, now);
        }
    }
}

impl FrameProgram {
    /// Lets `taker` take over flows for it.
    pub(super) fn takes_flows_by(&self, taker: &FlowTaker) {
        // There is one program for each flow.
        let _ = taker.0.set(Arc::clone(&self.nic));
    }

    fn nic(&self) -> MutexGuard<'_, NicPipeline> {
        self.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its attach mode, if it is attached.
    pub(super) fn mode(&self) -> Option<AttachMode> {
        let nic = self.nic();
        // The interface of a port may be gone.
        self.interfaces.keys().find_map(|port| nic.attach_mode(*port))
    }

    /// Returns the side that was asked for last, where the flow is unless the program waits for interfaces or for room in its maps.
    pub(super) const fn side(&self) -> FlowSide {
        self.side
    }

    /// Returns whether it waits for interfaces for which it is not made: it is detached until they are what they were.
    pub(super) fn waits(&self) -> bool {
        !self.misfits.is_empty()
    }

    /// Returns why it is detached, if it is and that was not asked for.
    pub(super) fn detached(&self) -> Option<String> {
        let names = self.misfits.iter().map(|port| self.name(*port)).collect::<Vec<_>>();
        if !names.is_empty() {
            return Some(format!("its program waits until {} is what it was", names.join(", ")));
        }
        let failure = self.failure.as_ref().filter(|_| self.is_behind)?;
        Some(format!("its program is detached: {failure}"))
    }

    fn name(&self, port: Port) -> &str {
        self.names.get(usize::from(port.0)).map_or("?", String::as_str)
    }

    fn should_run(&self) -> bool {
        self.side == FlowSide::Nic && self.misfits.is_empty()
    }

    /// Returns whether it handles all frames itself: no host pipeline sees what it passes up.
    pub(super) const fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Returns whether it is attached where segments pass whole.
    pub(super) fn takes_segments(&self) -> bool {
        self.mode() == Some(AttachMode::Tcx)
    }

    /// Detaches it: from here on all packets go up to the host.
    pub(super) fn pause(&mut self) {
        self.nic().pause();
        self.side = FlowSide::Host;
    }

    /// Attaches it again, or as soon as all interfaces are what they were.
    pub(super) fn resume(&mut self) -> Result<(), String> {
        if self.misfits.is_empty() {
            self.attach_again()?;
        }
        self.side = FlowSide::Nic;
        Ok(())
    }

    fn attach_again(&mut self) -> Result<(), String> {
        let resumed = self.nic().resume();
        resumed.map_err(|error| named(&error, &self.names))?;
        (self.is_behind, self.failure) = (false, None);
        Ok(())
    }

    /// Handles an interface that is up, down, gone, or replaced by another of the same name.
    pub(super) fn interface(&mut self, port: Port, interface: &Interface) {
        if !self.fits(port, interface) {
            return;
        }
        let Interface { index, is_up, .. } = *interface;
        let known = self.interfaces.insert(port, index);
        let result = if known == Some(index) {
            if is_up { self.nic().open(port) } else { self.nic().close(port) }
        } else {
            self.nic().replace(port, index)
        };
        match result {
            Err(error) => {
                let error = named(&error, &self.names);
                log(format!("flow `{}`: its program: {error}", self.flow));
            }
            Ok(()) if known != Some(index) && self.should_run() && !self.is_behind => {
                let name = self.name(port);
                log(format!("flow `{}`: its program is attached again at {name}", self.flow));
            }
            Ok(()) => {}
        }
    }

    /// Detaches the program while an interface is not of the kind for which it is made. Returns whether it is.
    fn fits(&mut self, port: Port, interface: &Interface) -> bool {
        let Interface { name, is_headerless, is_without_tcx, .. } = interface;
        let fits = *is_headerless == self.headerless.contains(&port) && !is_without_tcx;
        if fits {
            if self.misfits.remove(&port) && self.should_run() {
                // The next check attaches it.
                self.is_behind = true;
            }
            return true;
        }
        self.interfaces.remove(&port);
        if self.misfits.insert(port) {
            self.nic().pause();
            let (flow, detached) = (&self.flow, "its program is detached");
            log(if self.is_wire {
                format!(
                    "flow `{flow}`: {detached}, and nothing is forwarded until {name} is an Ethernet interface again"
                )
            } else {
                let now = match (is_headerless, is_without_tcx) {
                    (_, true) => "begin in a place that it may not find",
                    (true, false) => "have no Ethernet header now",
                    (false, false) => "have an Ethernet header now",
                };
                format!(
                    "flow `{flow}`: {detached}, the host forwards: packets of {name} {now}. Start `vigie-forward` again for another program"
                )
            });
        }
        false
    }

    /// Handles an interface that is gone.
    pub(super) fn gone(&mut self, port: Port) {
        // An interface that returns is a new one.
        self.interfaces.remove(&port);
        let closed = self.nic().close(port);
        if let Err(error) = closed {
            let error = named(&error, &self.names);
            log(format!("flow `{}`: its program: {error}", self.flow));
        }
    }

    /// Keeps its maps in step with the tables, and refreshes the tables' translations.
    pub(super) fn follow(&mut self, now: Instant) {
        if self.is_behind {
            if self.should_run() {
                self.retry();
            }
            return;
        }
        let followed = self.nic().follow();
        if let Err(error) = followed {
            let error = named(&error, &self.names);
            log(format!(
                "flow `{}`: its program is detached, the host forwards: {error}",
                self.flow
            ));
            (self.is_behind, self.failure) = (true, Some(error));
            return;
        }
        if self.translates && self.should_run() {
            // Translations not refreshed now are refreshed by the next check.
            let _ = self.nic().refresh(now, REFRESHED_MAX);
        }
    }

    fn retry(&mut self) {
        match self.attach_again() {
            Ok(()) => log(format!("flow `{}`: its program is attached again", self.flow)),
            Err(error) if self.failure.as_ref() != Some(&error) => {
                log(format!("flow `{}`: its program cannot be attached again: {error}", self.flow));
                self.failure = Some(error);
            }
            Err(_) => {}
        }
    }

    /// Adds what it has counted of each hop to the table's counters; what cannot be read now, the next call adds.
    pub(super) fn count_hops(&self) {
        let _ = self.nic().count_hops();
    }

    /// Returns its counters, and how many packets it left to the host.
    pub(super) fn counters(&self) -> Option<(CounterSnapshot, u64)> {
        let counters = self.nic().counters().ok()?;
        Some((counters.traffic, counters.passed_up))
    }
}
