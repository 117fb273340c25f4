//! The network processor in this process: the same program, interpreted.

use std::collections::BTreeMap;

use thiserror::Error;
use vigie_detect::Instant;

use super::{
    NicCounters,
    compile::{Compiled, NotCompiled, Settings, compile},
    follow::{FollowError, Follower, counters},
    layout::{Layout, port_key},
};
use crate::{
    bpf::{
        Fault, Interpreter, MapError, PacketBuffer, ProgramKind, Put, Redirect, Surroundings,
        Table, UserMap, XDP_DROP, XDP_PASS, XDP_REDIRECT,
    },
    packet::Port,
    pipeline::Stage,
};

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// It left by a port; and a copy of it by another one.
    Sent {
        /// The port.
        port: Port,
        /// The port of the copy.
        copy: Option<Port>,
    },
    /// It was dropped, but a copy of it left by this port.
    Copied(Port),
    /// It was dropped.
    Dropped,
    /// It went up, as it came.
    PassedUp,
}

/// Why there is no emulator, or it has stopped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// The pipeline runs on the host alone.
    #[error(transparent)]
    NotCompiled(#[from] NotCompiled),
    /// A map is larger than the interpreter's may be.
    #[error("a map of the interpreter: {0}")]
    Map(#[from] MapError),
    /// The maps are not like the tables.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The program did what no program may: a fault of the compiler.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// No packets arrive on this port.
    #[error("no packets arrive on {0}")]
    NoPort(Port),
}

/// Runs the program of a pipeline without kernel and without privilege: for tests, and to see what it would do.
#[derive(Debug)]
pub struct Emulator {
    programs: BTreeMap<Port, Interpreter>,
    maps: Vec<UserMap>,
    layout: Layout,
    follower: Follower,
}

/// What stands for the interface of a port.
fn number(port: Port) -> u32 {
    u32::from(port.0) + 1
}

fn port_of(number: u32) -> Port {
    Port(u16::try_from(number.saturating_sub(1)).unwrap_or(u16::MAX))
}

impl Emulator {
    /// Compiles stages for packets that arrive on these ports, which are all that there are.
    ///
    /// # Errors
    /// [`EmulatorError::NotCompiled`], or that a map is too large for the interpreter.
    pub fn new(
        stages: &[&dyn Stage],
        ports: &[Port],
        settings: &Settings,
    ) -> Result<Self, EmulatorError> {
        let Compiled { layout, programs } = compile(stages, ports, settings, ProgramKind::Xdp)?;
        let maps = layout.specs.iter().map(|spec| UserMap::new(*spec));
        let mut maps: Vec<UserMap> = maps.collect::<Result<_, _>>()?;
        for port in ports {
            maps[layout.ports].put(&port_key(*port), &number(*port).to_ne_bytes(), Put::Any)?;
            if let Some(to) = layout.needs.copies {
                let pair = &mut maps[layout.pairs + usize::from(port.0)];
                for (place, one) in [(0_u32, *port), (1, to)] {
                    pair.put(&place.to_ne_bytes(), &number(one).to_ne_bytes(), Put::Any)?;
                }
            }
        }
        let follower = Follower::new(stages, layout.clone());
        let programs = ports.iter().copied().zip(programs.iter().map(Interpreter::new)).collect();
        let mut this = Self { programs, maps, layout, follower };
        this.follow()?;
        Ok(this)
    }

    /// Takes over what has changed in the tables. Returns how many changes.
    ///
    /// # Errors
    /// [`EmulatorError::Follow`].
    pub fn follow(&mut self) -> Result<usize, EmulatorError> {
        Ok(self.follower.follow(&mut self.maps)?)
    }

    /// Runs the program over a packet.
    ///
    /// # Errors
    /// [`EmulatorError::Fault`] would be a fault of the compiler; [`EmulatorError::NoPort`].
    pub fn process(
        &mut self,
        arrival: Port,
        packet: &mut PacketBuffer,
        now: Instant,
    ) -> Result<Fate, EmulatorError> {
        let program = self.programs.get(&arrival).ok_or(EmulatorError::NoPort(arrival))?;
        let surroundings = Surroundings::on(number(arrival)).at(now.as_nanos());
        let before = self.drops()?;
        let outcome = program.run(&surroundings, packet, &mut self.maps)?;
        let copies = self.layout.needs.copies;
        Ok(match (i32::try_from(outcome.action), outcome.redirect) {
            (Ok(XDP_PASS), _) => Fate::PassedUp,
            (Ok(XDP_DROP), _) => Fate::Dropped,
            (Ok(XDP_REDIRECT), Some(Redirect::Entry { value, .. })) => {
                let (port, after) = (port_of(value), self.drops()?);
                // By one redirection leaves a packet, or the copy of one that was dropped.
                if after > before { Fate::Copied(port) } else { Fate::Sent { port, copy: None } }
            }
            (Ok(XDP_REDIRECT), Some(Redirect::Everywhere { map, .. })) => {
                let pair = usize::try_from(map).unwrap_or(0).saturating_sub(self.layout.pairs);
                let port = Port(u16::try_from(pair).unwrap_or(u16::MAX));
                Fate::Sent { port, copy: copies }
            }
            _ => Fate::Dropped,
        })
    }

    fn drops(&self) -> Result<u64, MapError> {
        match self.layout.needs.copies {
            Some(_) => Ok(self.counters()?.traffic.dropped_total()),
            None => Ok(0),
        }
    }

    /// Returns what was counted.
    ///
    /// # Errors
    /// Never, of the interpreter's maps.
    pub fn counters(&self) -> Result<NicCounters, MapError> {
        Ok(NicCounters::new(&counters(&self.maps[self.layout.counters])?))
    }

    /// Keeps flows alive in the host's table that are in use here; at most `count` lines are looked at. Returns how
    /// many were.
    ///
    /// # Errors
    /// [`EmulatorError::Follow`].
    pub fn refresh(&mut self, now: Instant, count: usize) -> Result<usize, EmulatorError> {
        Ok(self.follower.refresh(&self.maps, now, count)?)
    }
}
