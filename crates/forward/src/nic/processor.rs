//! The program of a pipeline in the kernel.

use std::{collections::BTreeMap, io, os::fd::BorrowedFd, sync::Arc, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use thiserror::Error;
use vigie_detect::{Instant, refuse_in_simulation};
use vigie_via::link::Capability;

use super::{
    NicCounters,
    compile::{CompileError, Compiled, NicConfig, compile},
    follow::{FlowMaps, FollowError, Follower, counters},
    layout::{Layout, port_key},
    taken::TakenPorts,
};
use crate::{
    bpf::{
        AttachError, AttachMode, Attachment, KernelMap, LoadError, LoadedProgram, MapError,
        PrivilegeError, ProgramKind, UpdateMode, XDP_PASS, constant_program,
    },
    packet::Port,
    pipeline::Stage,
    tables::NatFlow,
};

/// The reason why a pipeline does not run on interfaces.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NicError {
    /// It can only run on the host.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The kernel refused the program.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map could not be created.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// The program could not be attached.
    #[error("{port}: {source}")]
    Attach {
        /// The port.
        port: Port,
        /// The cause.
        source: AttachError,
    },
    /// The interface cannot be redirected to.
    #[error("{port} (interface {interface}): {source}")]
    Port {
        /// The port.
        port: Port,
        /// The interface's index.
        interface: u32,
        /// The cause.
        source: MapError,
    },
    /// The maps differ from the tables.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The pipeline has no such port.
    #[error("there is no {0} here")]
    NoPort(Port),
    /// Entering another network namespace failed.
    #[error("entering a network namespace: {0}")]
    Namespace(#[source] io::Error),
}

impl NicError {
    /// Returns the missing capability, if that is the cause.
    #[must_use]
    pub const fn missing_capability(&self) -> Option<Capability> {
        match self {
            Self::Load(error) => error.missing_capability(),
            Self::Privilege(error) => error.missing_capability(),
            Self::Attach { source, .. } => source.missing_capability(),
            _ => None,
        }
    }
}

/// One port.
#[derive(Debug)]
struct NicPort {
    interface: u32,
    program: Arc<LoadedProgram>,
    taker: Option<Arc<LoadedProgram>>,
    /// What keeps the taken ports' packets from the kernel, whether the program is attached or not.
    taking: Option<Attachment>,
    attachment: Option<Attachment>,
    /// Its interface was gone when the programs were attached again.
    is_gone: bool,
}

/// The settings of a [`NicPipeline`].
#[derive(Clone, Debug, Default)]
#[must_use = "`start` makes the processor"]
pub struct NicPipelineBuilder {
    config: NicConfig,
    ports: BTreeMap<Port, u32>,
    modes: Option<Vec<AttachMode>>,
    taken: Option<TakenPorts>,
}

impl NicPipelineBuilder {
    /// Sets how the pipeline is compiled.
    pub fn config(mut self, config: NicConfig) -> Self {
        self.config = config;
        self
    }

    /// Adds a port: an interface, by its index in this thread's network namespace.
    pub fn port(mut self, port: Port, interface: u32) -> Self {
        self.ports.insert(port, interface);
        self
    }

    /// Sets the attach modes to try, in this order. Default: all of them, the fastest first.
    pub fn attach_modes(mut self, modes: &[AttachMode]) -> Self {
        self.modes = Some(modes.to_vec());
        self
    }

    /// Keeps packets to these ports of an address of this host from the kernel, on all ports, as long as the pipeline exists: also while it
    /// is [paused](NicPipeline::pause). Needs tcx (Linux 6.6), wherever the pipeline's programs are. Default: none.
    pub fn take_from_kernel(mut self, ports: TakenPorts) -> Self {
        self.taken = Some(ports);
        self
    }

    /// Compiles the stages, loads the programs, fills the maps, and attaches the programs to all ports.
    ///
    /// # Errors
    /// [`NicError`]; then nothing is attached.
    pub fn start(self, stages: &[&dyn Stage]) -> Result<NicPipeline, NicError> {
        let modes = self.modes.as_deref().unwrap_or(&AttachMode::ALL);
        let mut last = None;
        let has_headers = !self.ports.keys().any(|port| self.config.is_headerless(*port));
        let has_tcx = modes.contains(&AttachMode::Tcx);
        for kind in [ProgramKind::Xdp, ProgramKind::Tcx] {
            let modes: Vec<AttachMode> =
                modes.iter().copied().filter(|mode| mode.kind() == kind).collect();
            if modes.is_empty() || kind == ProgramKind::Xdp && has_tcx && !has_headers {
                continue;
            }
            match self.start_as(stages, kind, modes) {
                Ok(nic) => return Ok(nic),
                // Tcx may be available where XDP is not; but report why XDP is not.
                Err(error @ NicError::Attach { source: AttachError::NoAttachMode { .. }, .. })
                | Err(error @ NicError::Attach { source: AttachError::Taken { .. }, .. }) => {
                    last.get_or_insert(error);
                }
                Err(error) => return Err(last.unwrap_or(error)),
            }
        }
        Err(last.unwrap_or(NicError::Compile(CompileError::InvalidSetting {
            name: "attach_modes",
            value: 0,
            range: "at least one",
        })))
    }

    fn start_as(
        &self,
        stages: &[&dyn Stage],
        kind: ProgramKind,
        modes: Vec<AttachMode>,
    ) -> Result<NicPipeline, NicError> {
        let ports: Vec<Port> = self.ports.keys().copied().collect();
        let Compiled { layout, programs } = compile(stages, &ports, &self.config, kind)?;
        let maps = layout.specs.iter().map(|spec| KernelMap::new(*spec, "vigie_nic"));
        let maps: Vec<KernelMap> = maps.collect::<Result<_, _>>()?;
        let follower = Follower::new(stages, layout.clone(), self.config.asked_flows);
        let shown = follower.show_flows(&maps);
        let mut nic_ports = BTreeMap::new();
        let mut takers = BTreeMap::new();
        for ((port, interface), program) in self.ports.iter().zip(&programs) {
            let program = Arc::new(LoadedProgram::load_with(program, maps.clone())?);
            let taker = self.taker(self.config.is_headerless(*port), &mut takers)?;
            let (interface, taking, attachment) = (*interface, None, None);
            let nic_port =
                NicPort { interface, program, taker, taking, attachment, is_gone: false };
            nic_ports.insert(*port, nic_port);
        }
        let mut nic = NicPipeline {
            layout,
            maps,
            follower,
            _shown_flows: shown,
            nic_ports,
            modes,
            kind,
            is_paused: false,
        };
        nic.follow()?;
        for port in &ports {
            nic.open(*port)?;
        }
        for port in ports {
            nic.attach(port)?;
        }
        Ok(nic)
    }

    /// Returns the program that keeps packets from the kernel, one for all ports with Ethernet headers and one for those without. Both
    /// remember the same fragments.
    fn taker(
        &self,
        is_headerless: bool,
        takers: &mut BTreeMap<bool, Arc<LoadedProgram>>,
    ) -> Result<Option<Arc<LoadedProgram>>, NicError> {
        let Some(taken) = &self.taken else { return Ok(None) };
        if !takers.contains_key(&is_headerless) {
            let program = taken.program(is_headerless).map_err(CompileError::from)?;
            let loaded = match takers.values().next() {
                Some(other) => LoadedProgram::load_with(&program, other.maps().to_vec())?,
                None => LoadedProgram::load(&program)?,
            };
            takers.insert(is_headerless, Arc::new(loaded));
        }
        Ok(takers.get(&is_headerless).cloned())
    }
}

/// A pipeline that runs on interfaces. Dropping it detaches the programs; the kernel does so too when the process ends,
/// however it ends.
#[derive(Debug)]
#[must_use = "the programs are detached when this is dropped"]
pub struct NicPipeline {
    layout: Layout,
    maps: Vec<KernelMap>,
    follower: Follower,
    /// What the table of flows asks, as long as this exists.
    _shown_flows: Option<Arc<FlowMaps<KernelMap>>>,
    nic_ports: BTreeMap<Port, NicPort>,
    modes: Vec<AttachMode>,
    kind: ProgramKind,
    is_paused: bool,
}

impl NicPipeline {
    /// Starts the settings of a network processor.
    pub fn builder() -> NicPipelineBuilder {
        NicPipelineBuilder::default()
    }

    /// Applies changes of the tables to the maps. Returns the number of changes. Forwarding goes on meanwhile, by the
    /// old entry or the new one.
    ///
    /// # Errors
    /// [`NicError::Follow`]: the programs were detached, so that no packet is forwarded by outdated maps; packets then
    /// go up to the host. Call [`resume`](Self::resume) when there is room again.
    pub fn follow(&mut self) -> Result<usize, NicError> {
        if !self.follower.has_updates() {
            return Ok(0);
        }
        self.follower.follow(&mut self.maps).map_err(|error| {
            self.pause();
            error.into()
        })
    }

    /// Takes over a flow of the host's table, after all pending changes. Call it before the host sends the packet of the flow that
    /// it has, so that none overtakes it. The program translates the packets of a TCP connection that arrive from `now` on. Of
    /// other flows, the host may have more packets than that one: the program begins when none has arrived for 10 ms, and passes
    /// the flow's packets up until then, at most 256. A flow for which there is no room stays with the host.
    ///
    /// # Errors
    /// As [`follow`](Self::follow).
    pub fn add_flow(&mut self, flow: &NatFlow, now: Instant) -> Result<(), NicError> {
        self.follower.add_flow(&mut self.maps, flow, now).map_err(|error| {
            self.pause();
            error.into()
        })
    }

    /// Detaches the programs; the maps stay.
    pub fn pause(&mut self) {
        self.is_paused = true;
        for nic_port in self.nic_ports.values_mut() {
            nic_port.attachment = None;
        }
    }

    /// Attaches the programs where they are detached, and applies changes of the tables. A port whose interface is gone is left out, and is
    /// among the [lost ones](Self::lost_ports).
    ///
    /// # Errors
    /// [`NicError::Follow`], [`NicError::Attach`]; then all programs are detached.
    pub fn resume(&mut self) -> Result<(), NicError> {
        self.follow()?;
        self.is_paused = false;
        let ports: Vec<Port> = self.nic_ports.keys().copied().collect();
        for port in ports {
            let attached = self.attach(port);
            let is_gone = matches!(
                attached,
                Err(NicError::Attach { source: AttachError::NoInterface { .. }, .. })
            );
            if let Some(nic_port) = self.nic_ports.get_mut(&port) {
                nic_port.is_gone = is_gone;
            }
            if !is_gone && attached.is_err() {
                self.pause();
                return attached;
            }
        }
        Ok(())
    }

    fn attach(&mut self, port: Port) -> Result<(), NicError> {
        let nic_port = self.nic_ports.get_mut(&port).ok_or(NicError::NoPort(port))?;
        if let Some(program) = &nic_port.taker
            && !nic_port.taking.as_ref().is_some_and(Attachment::is_attached)
        {
            let taking = Attachment::new(program, nic_port.interface, AttachMode::Tcx);
            let taking = taking.map_err(|source| NicError::Attach { port, source })?;
            nic_port.taking = Some(taking);
        }
        if self.is_paused || nic_port.attachment.as_ref().is_some_and(Attachment::is_attached) {
            return Ok(());
        }
        let mut last = None;
        for mode in &self.modes {
            // Behind the one that takes packets from the kernel, a program would take them for another host's.
            let taking = nic_port.taking.as_ref();
            let interface = nic_port.interface;
            match Attachment::before(&nic_port.program, interface, *mode, taking) {
                Ok(attachment) => {
                    nic_port.attachment = Some(attachment);
                    return Ok(());
                }
                Err(source @ AttachError::NoAttachMode { .. }) => {
                    last.get_or_insert(source);
                }
                Err(source) => return Err(NicError::Attach { port, source }),
            }
        }
        let interface = nic_port.interface;
        let source = last.unwrap_or(AttachError::NoInterface { interface });
        Err(NicError::Attach { port, source })
    }

    /// Opens a port for outgoing packets.
    ///
    /// # Errors
    /// [`NicError::Port`] if its interface does not exist, [`NicError::NoPort`].
    pub fn open(&mut self, port: Port) -> Result<(), NicError> {
        let interface = self.nic_ports.get(&port).ok_or(NicError::NoPort(port))?.interface;
        let failed = |source| NicError::Port { port, interface, source };
        let value = interface.to_ne_bytes();
        let ports = &self.maps[self.layout.ports];
        ports.write(&port_key(port), &value, UpdateMode::Any).map_err(failed)?;
        let Some(to) = self.layout.needs.copies else { return Ok(()) };
        let watcher = self.nic_ports.get(&to).ok_or(NicError::NoPort(to))?.interface;
        let pair = &self.maps[self.layout.pairs + usize::from(port.0)];
        for (slot, one) in [(0_u32, interface), (1, watcher)] {
            pair.write(&slot.to_ne_bytes(), &one.to_ne_bytes(), UpdateMode::Any).map_err(failed)?;
        }
        Ok(())
    }

    /// Closes a port for outgoing packets: they are dropped and counted
    /// ([`DropReason::Gone`](crate::pipeline::DropReason::Gone)). The kernel silently loses packets to an interface that is
    /// down; call this when you see one go down.
    ///
    /// # Errors
    /// [`NicError::NoPort`], or the kernel's error.
    pub fn close(&mut self, port: Port) -> Result<(), NicError> {
        let interface = self.nic_ports.get(&port).ok_or(NicError::NoPort(port))?.interface;
        let ports = &self.maps[self.layout.ports];
        let closed = match self.kind {
            ProgramKind::Xdp => ports.delete(&port_key(port)),
            _ => ports.write(&port_key(port), &[0; 4], UpdateMode::Any),
        };
        match closed {
            Ok(()) | Err(MapError::Missing) => Ok(()),
            Err(source) => Err(NicError::Port { port, interface, source }),
        }
    }

    /// Moves a port to another interface, for instance after its interface was removed and came back. Attaches the
    /// program there, unless the pipeline is [paused](Self::pause).
    ///
    /// # Errors
    /// [`NicError`]; then the port has no interface.
    pub fn replace(&mut self, port: Port, interface: u32) -> Result<(), NicError> {
        let nic_port = self.nic_ports.get_mut(&port).ok_or(NicError::NoPort(port))?;
        (nic_port.taking, nic_port.attachment) = (None, None);
        nic_port.interface = interface;
        nic_port.is_gone = false;
        self.open(port)?;
        self.attach(port)
    }

    /// Returns the ports whose interface was removed or moved to another network namespace. Packets to them are dropped
    /// and counted.
    #[must_use]
    pub fn lost_ports(&self) -> Vec<Port> {
        let is_lost = |nic_port: &NicPort| {
            nic_port.is_gone || nic_port.attachment.as_ref().is_some_and(|one| !one.is_attached())
        };
        self.nic_ports
            .iter()
            .filter(|(_, nic_port)| is_lost(nic_port))
            .map(|(port, _)| *port)
            .collect()
    }

    /// Returns the attach mode of a port's program, if it is attached.
    #[must_use]
    pub fn attach_mode(&self, port: Port) -> Option<AttachMode> {
        self.nic_ports.get(&port)?.attachment.as_ref().map(Attachment::mode)
    }

    /// Returns whether the program of some port is attached: the interfaces of others may be gone.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.nic_ports.keys().any(|port| self.attach_mode(*port).is_some())
    }

    /// Returns the program of a port, for test runs or live frames.
    #[must_use]
    pub fn program(&self, port: Port) -> Option<Arc<LoadedProgram>> {
        self.nic_ports.get(&port).map(|nic_port| Arc::clone(&nic_port.program))
    }

    /// Returns the counters, summed over all ports.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counters(&self) -> Result<NicCounters, MapError> {
        Ok(NicCounters::new(&counters(&self.maps[self.layout.counters])?))
    }

    /// Adds what the programs have counted for each hop of a route with several to the counters of the table
    /// ([`FibSnapshot::hop_traffic`](crate::tables::FibSnapshot::hop_traffic)). Also done when a hop goes.
    ///
    /// # Cost
    /// A system call for each such hop.
    ///
    /// # Errors
    /// [`NicError::Follow`].
    pub fn count_hops(&mut self) -> Result<(), NicError> {
        Ok(self.follower.count_hops(&self.maps)?)
    }

    /// Refreshes flows in the host's table that are in use here; examines at most `count` translations, and the next
    /// call continues after them. Returns how many.
    ///
    /// # Cost
    /// A system call for each translation.
    ///
    /// # Errors
    /// [`NicError::Follow`].
    pub fn refresh(&mut self, now: Instant, count: usize) -> Result<usize, NicError> {
        Ok(self.follower.refresh(&self.maps, now, count)?)
    }
}

/// The program that passes everything, for the peer of a veth pair: without any program there, frames redirected into
/// the pair are lost.
#[derive(Debug)]
#[must_use = "the program is detached when this is dropped"]
pub struct PassAll {
    _attachment: Attachment,
}

impl PassAll {
    /// Attaches it to an interface, by its index in this thread's network namespace.
    ///
    /// # Errors
    /// [`NicError::Load`], [`NicError::Attach`].
    pub fn new(interface: u32) -> Result<Self, NicError> {
        let program = LoadedProgram::load(&constant_program(ProgramKind::Xdp, XDP_PASS))?;
        let attached = Attachment::new(&program, interface, AttachMode::Native);
        let attachment =
            attached.map_err(|source| NicError::Attach { port: Port::default(), source })?;
        Ok(Self { _attachment: attachment })
    }

    /// Attaches it to an interface of another network namespace. Blocks briefly, while a thread enters that namespace.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`NicError::Namespace`]; entering requires `CAP_SYS_ADMIN`.
    pub fn inside(namespace: BorrowedFd<'_>, interface: u32) -> Result<Self, NicError> {
        refuse_in_simulation("network namespaces of the kernel", "cut its links between nodes")
            .map_err(NicError::Namespace)?;
        thread::scope(|scope| {
            let enter = || {
                move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
                    .map_err(|error| NicError::Namespace(error.into()))?;
                Self::new(interface)
            };
            let failed = |_| NicError::Namespace(io::ErrorKind::Other.into());
            scope.spawn(enter).join().map_err(failed)?
        })
    }
}
