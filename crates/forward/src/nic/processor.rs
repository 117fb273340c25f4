//! The program of a pipeline in the kernel.

use std::{collections::BTreeMap, io, os::fd::BorrowedFd, sync::Arc, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use thiserror::Error;
use vigie_detect::Instant;
use vigie_via::link::Capability;

use super::{
    NicCounters,
    compile::{Compiled, NotCompiled, Settings, compile},
    follow::{FollowError, Follower, counters},
    layout::{Layout, port_key},
};
use crate::{
    bpf::{
        AttachError, Attachment, KernelMap, LoadError, LoadedProgram, MapError, Place,
        PrivilegeError, ProgramKind, Put, XDP_PASS, constant_program,
    },
    packet::Port,
    pipeline::Stage,
};

/// Why a pipeline does not run on interfaces.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NicError {
    /// It runs on the host alone.
    #[error(transparent)]
    NotCompiled(#[from] NotCompiled),
    /// The kernel does not take the program.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map was not made.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// The program was not attached.
    #[error("{port}: {source}")]
    Attach {
        /// The port.
        port: Port,
        /// What is in the way.
        source: AttachError,
    },
    /// The interface cannot be redirected to.
    #[error("{port} (interface {interface}): {source}")]
    Port {
        /// The port.
        port: Port,
        /// The interface's index.
        interface: u32,
        /// What is wrong.
        source: MapError,
    },
    /// The maps are not like the tables.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The pipeline has no such port.
    #[error("there is no {0} here")]
    NoPort(Port),
    /// Another network namespace was not entered.
    #[error("entering a network namespace: {0}")]
    Namespace(#[source] io::Error),
}

impl NicError {
    /// Returns the right that is missing, if that is it.
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
struct Door {
    interface: u32,
    program: Arc<LoadedProgram>,
    attachment: Option<Attachment>,
}

/// The settings of a [`Nic`].
#[derive(Clone, Debug, Default)]
#[must_use = "`start` makes the processor"]
pub struct NicBuilder {
    settings: Settings,
    ports: BTreeMap<Port, u32>,
    places: Option<Vec<Place>>,
}

impl NicBuilder {
    /// Sets how the pipeline is compiled.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Adds a port: an interface, by its index in this thread's network namespace.
    pub fn port(mut self, port: Port, interface: u32) -> Self {
        self.ports.insert(port, interface);
        self
    }

    /// Sets which places are tried, in this order. Default: all of them, the fastest first.
    pub fn places(mut self, places: &[Place]) -> Self {
        self.places = Some(places.to_vec());
        self
    }

    /// Compiles the stages, loads the programs, fills the maps, and attaches the programs to all ports.
    ///
    /// # Errors
    /// [`NicError`]; nothing is attached then.
    pub fn start(self, stages: &[&dyn Stage]) -> Result<Nic, NicError> {
        let places = self.places.as_deref().unwrap_or(&Place::ALL);
        let mut last = None;
        for kind in [ProgramKind::Xdp, ProgramKind::Tcx] {
            let places: Vec<Place> =
                places.iter().copied().filter(|place| place.kind() == kind).collect();
            if places.is_empty() {
                continue;
            }
            match self.start_as(stages, kind, places) {
                Ok(nic) => return Ok(nic),
                // Tcx may have a place where XDP has none; but why XDP has none is what is to be said.
                Err(error @ NicError::Attach { source: AttachError::NoPlace { .. }, .. })
                | Err(error @ NicError::Attach { source: AttachError::Taken { .. }, .. }) => {
                    last.get_or_insert(error);
                }
                Err(error) => return Err(last.unwrap_or(error)),
            }
        }
        Err(last.unwrap_or(NicError::NotCompiled(NotCompiled::Setting {
            name: "places",
            value: 0,
            range: "at least one",
        })))
    }

    fn start_as(
        &self,
        stages: &[&dyn Stage],
        kind: ProgramKind,
        places: Vec<Place>,
    ) -> Result<Nic, NicError> {
        let ports: Vec<Port> = self.ports.keys().copied().collect();
        let Compiled { layout, programs } = compile(stages, &ports, &self.settings, kind)?;
        let maps = layout.specs.iter().map(|spec| KernelMap::new(*spec, "vigie_nic"));
        let maps: Vec<KernelMap> = maps.collect::<Result<_, _>>()?;
        let follower = Follower::new(stages, layout.clone());
        let mut doors = BTreeMap::new();
        for ((port, interface), program) in self.ports.iter().zip(&programs) {
            let program = Arc::new(LoadedProgram::load_with(program, maps.clone())?);
            doors.insert(*port, Door { interface: *interface, program, attachment: None });
        }
        let mut nic = Nic { layout, maps, follower, doors, places, kind };
        nic.follow()?;
        for port in &ports {
            nic.open(*port)?;
        }
        nic.resume()?;
        Ok(nic)
    }
}

/// A pipeline that runs on interfaces. Dropping it takes the programs away; so does the kernel when the process ends,
/// however it ends.
#[derive(Debug)]
#[must_use = "the programs are taken away when this is dropped"]
pub struct Nic {
    layout: Layout,
    maps: Vec<KernelMap>,
    follower: Follower,
    doors: BTreeMap<Port, Door>,
    places: Vec<Place>,
    kind: ProgramKind,
}

impl Nic {
    /// Begins with the settings of a network processor.
    pub fn builder() -> NicBuilder {
        NicBuilder::default()
    }

    /// Returns why stages cannot run on interfaces, if so: for the planner.
    ///
    /// # Errors
    /// [`NotCompiled`] says why.
    pub fn can_run(stages: &[&dyn Stage], settings: &Settings) -> Result<(), NotCompiled> {
        compile(stages, &[Port(0)], settings, ProgramKind::Xdp).map(|_| ())
    }

    /// Takes over what has changed in the tables. Returns how many changes. Packets are forwarded meanwhile, by the old
    /// entry or the new one.
    ///
    /// # Errors
    /// [`NicError::Follow`]: the programs were taken away, so that nothing goes by maps that are not like the tables;
    /// packets then go up to the host. Call [`resume`](Self::resume) when there is room again.
    pub fn follow(&mut self) -> Result<usize, NicError> {
        if !self.follower.has_news() {
            return Ok(0);
        }
        self.follower.follow(&mut self.maps).map_err(|error| {
            self.pause();
            error.into()
        })
    }

    /// Takes the programs away; the maps stay.
    pub fn pause(&mut self) {
        for door in self.doors.values_mut() {
            door.attachment = None;
        }
    }

    /// Attaches the programs where they are not, and takes over what has changed.
    ///
    /// # Errors
    /// [`NicError::Follow`], [`NicError::Attach`].
    pub fn resume(&mut self) -> Result<(), NicError> {
        self.follow()?;
        let ports: Vec<Port> = self.doors.keys().copied().collect();
        for port in ports {
            self.attach(port)?;
        }
        Ok(())
    }

    fn attach(&mut self, port: Port) -> Result<(), NicError> {
        let door = self.doors.get_mut(&port).ok_or(NicError::NoPort(port))?;
        if door.attachment.as_ref().is_some_and(Attachment::is_attached) {
            return Ok(());
        }
        let mut last = None;
        for place in &self.places {
            match Attachment::new(&door.program, door.interface, *place) {
                Ok(attachment) => {
                    door.attachment = Some(attachment);
                    return Ok(());
                }
                Err(source @ AttachError::NoPlace { .. }) => {
                    last.get_or_insert(source);
                }
                Err(source) => return Err(NicError::Attach { port, source }),
            }
        }
        let interface = door.interface;
        let source = last.unwrap_or(AttachError::NoInterface { interface });
        Err(NicError::Attach { port, source })
    }

    /// Lets packets leave by a port.
    ///
    /// # Errors
    /// [`NicError::Port`] if its interface is not there, [`NicError::NoPort`].
    pub fn open(&mut self, port: Port) -> Result<(), NicError> {
        let interface = self.doors.get(&port).ok_or(NicError::NoPort(port))?.interface;
        let failed = |source| NicError::Port { port, interface, source };
        let value = interface.to_ne_bytes();
        let ports = &self.maps[self.layout.ports];
        ports.write(&port_key(port), &value, Put::Any).map_err(failed)?;
        let Some(to) = self.layout.needs.copies else { return Ok(()) };
        let watcher = self.doors.get(&to).ok_or(NicError::NoPort(to))?.interface;
        let pair = &self.maps[self.layout.pairs + usize::from(port.0)];
        for (place, one) in [(0_u32, interface), (1, watcher)] {
            pair.write(&place.to_ne_bytes(), &one.to_ne_bytes(), Put::Any).map_err(failed)?;
        }
        Ok(())
    }

    /// Lets no packet leave by a port: they are dropped, and counted ([`Reason::Gone`](crate::pipeline::Reason::Gone)).
    /// The kernel loses packets to an interface that is down without a word; who watches interfaces calls this.
    ///
    /// # Errors
    /// [`NicError::NoPort`], or what the kernel said.
    pub fn close(&mut self, port: Port) -> Result<(), NicError> {
        let interface = self.doors.get(&port).ok_or(NicError::NoPort(port))?.interface;
        let ports = &self.maps[self.layout.ports];
        let closed = match self.kind {
            ProgramKind::Xdp => ports.delete(&port_key(port)),
            _ => ports.write(&port_key(port), &[0; 4], Put::Any),
        };
        match closed {
            Ok(()) | Err(MapError::Missing) => Ok(()),
            Err(source) => Err(NicError::Port { port, interface, source }),
        }
    }

    /// Gives a port another interface: after the one before was removed and came back, say. The program is attached there.
    ///
    /// # Errors
    /// [`NicError`]; the port is then without an interface.
    pub fn replace(&mut self, port: Port, interface: u32) -> Result<(), NicError> {
        let door = self.doors.get_mut(&port).ok_or(NicError::NoPort(port))?;
        door.attachment = None;
        door.interface = interface;
        self.open(port)?;
        self.attach(port)
    }

    /// Returns the ports whose interface was removed, or went to another network namespace. Packets to them are
    /// dropped, and counted.
    #[must_use]
    pub fn lost_ports(&self) -> Vec<Port> {
        let is_lost = |door: &Door| door.attachment.as_ref().is_some_and(|one| !one.is_attached());
        self.doors.iter().filter(|(_, door)| is_lost(door)).map(|(port, _)| *port).collect()
    }

    /// Returns where the program of a port runs, if it does.
    #[must_use]
    pub fn place(&self, port: Port) -> Option<Place> {
        self.doors.get(&port)?.attachment.as_ref().map(Attachment::place)
    }

    /// Returns the program of a port, to run tests with it or to feed it with live frames.
    #[must_use]
    pub fn program(&self, port: Port) -> Option<Arc<LoadedProgram>> {
        self.doors.get(&port).map(|door| Arc::clone(&door.program))
    }

    /// Returns what was counted, over all ports.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn counters(&self) -> Result<NicCounters, MapError> {
        Ok(NicCounters::new(&counters(&self.maps[self.layout.counters])?))
    }

    /// Keeps flows alive in the host's table that are in use here; at most `count` lines are looked at, and the next call
    /// goes on behind them. Returns how many were.
    ///
    /// # Cost
    /// A system call for each line.
    ///
    /// # Errors
    /// [`NicError::Follow`].
    pub fn refresh(&mut self, now: Instant, count: usize) -> Result<usize, NicError> {
        Ok(self.follower.refresh(&self.maps, now, count)?)
    }

    /// Returns how many lines of flows had no room in the maps: the host translates those.
    #[must_use]
    pub const fn unmapped_flows(&self) -> u64 {
        self.follower.unmapped()
    }
}

/// The program that lets everything pass, on the peer of a veth pair: without any program there, frames that are
/// redirected into the pair vanish.
#[derive(Debug)]
#[must_use = "the program is taken away when this is dropped"]
pub struct PassAll {
    attachment: Attachment,
}

impl PassAll {
    /// Attaches it to an interface, by its index in this thread's network namespace.
    ///
    /// # Errors
    /// [`NicError::Load`], [`NicError::Attach`].
    pub fn new(interface: u32) -> Result<Self, NicError> {
        let program = LoadedProgram::load(&constant_program(ProgramKind::Xdp, XDP_PASS))?;
        let attached = Attachment::new(&program, interface, Place::Native);
        let attachment =
            attached.map_err(|source| NicError::Attach { port: Port::default(), source })?;
        Ok(Self { attachment })
    }

    /// Attaches it to an interface of another network namespace. It blocks for a moment: a thread goes there.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`NicError::Namespace`], which takes `CAP_SYS_ADMIN`.
    pub fn inside(namespace: BorrowedFd<'_>, interface: u32) -> Result<Self, NicError> {
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

    /// Returns whether the interface is still there.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.attachment.is_attached()
    }
}
