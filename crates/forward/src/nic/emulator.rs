//! The network processor in this process: the same program, interpreted.

use std::collections::BTreeMap;

use thiserror::Error;
use vigie_detect::Instant;

use super::{
    NicCounters,
    compile::{CompileError, Compiled, NicConfig, compile},
    follow::{FollowError, Follower, counters},
    layout::{Layout, port_key},
};
use crate::{
    bpf::{
        AttachMode, BpfMap, Fault, Interpreter, MapError, PacketBuffer, ProgramKind, Redirect,
        RunContext, TCX_NEXT, TCX_REDIRECT, UpdateMode, UserMap, XDP_DROP, XDP_PASS, XDP_REDIRECT,
    },
    packet::Port,
    pipeline::Stage,
    tables::NatFlow,
};

/// The outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmulatorVerdict {
    /// It was sent by a port, and possibly a copy of it by another.
    Sent {
        /// The port.
        port: Port,
        /// The port of the copy.
        copy: Option<Port>,
    },
    /// It was dropped, but a copy was sent by this port.
    Copied(Port),
    /// It was dropped.
    Dropped,
    /// It went up, unchanged.
    PassedUp,
}

/// The reason why the emulator was not created, or has failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// The pipeline can only run on the host.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A map that exceeds the interpreter's limit.
    #[error("a map of the interpreter: {0}")]
    Map(#[from] MapError),
    /// The maps differ from the tables.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The program made an illegal access: a bug in the compiler.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// No packets arrive on this port.
    #[error("no packets arrive on {0}")]
    NoPort(Port),
}

/// Runs the program of a pipeline without the kernel or privileges: for tests, and to see its effect.
#[derive(Debug)]
pub struct Emulator {
    kind: ProgramKind,
    programs: BTreeMap<Port, Interpreter>,
    maps: Vec<UserMap>,
    layout: Layout,
    follower: Follower,
    sum_change: u16,
    config: NicConfig,
}

/// The number that stands for a port's interface.
fn number(port: Port) -> u32 {
    u32::from(port.0) + 1
}

fn port_of(number: u32) -> Port {
    Port(u16::try_from(number.saturating_sub(1)).unwrap_or(u16::MAX))
}

impl Emulator {
    /// Compiles stages to programs of XDP, for packets that arrive on these ports; there are no others.
    ///
    /// # Errors
    /// [`EmulatorError::Compile`], or an error if a map is too large for the interpreter.
    pub fn new(
        stages: &[&dyn Stage],
        ports: &[Port],
        config: &NicConfig,
    ) -> Result<Self, EmulatorError> {
        Self::at(AttachMode::Native, stages, ports, config)
    }

    /// As [`new`](Self::new), with the programs that would run at this place.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn at(
        mode: AttachMode,
        stages: &[&dyn Stage],
        ports: &[Port],
        config: &NicConfig,
    ) -> Result<Self, EmulatorError> {
        let kind = mode.kind();
        let Compiled { layout, programs } = compile(stages, ports, config, kind)?;
        let maps = layout.specs.iter().map(|spec| UserMap::new(*spec));
        let mut maps: Vec<UserMap> = maps.collect::<Result<_, _>>()?;
        for port in ports {
            maps[layout.ports].put(
                &port_key(*port),
                &number(*port).to_ne_bytes(),
                UpdateMode::Any,
            )?;
            if let Some(to) = layout.needs.copies {
                let pair = &mut maps[layout.pairs + usize::from(port.0)];
                for (place, one) in [(0_u32, *port), (1, to)] {
                    pair.put(&place.to_ne_bytes(), &number(one).to_ne_bytes(), UpdateMode::Any)?;
                }
            }
        }
        let follower = Follower::new(stages, layout.clone(), config.asked_flows);
        let programs = ports.iter().copied().zip(programs.iter().map(Interpreter::new)).collect();
        let mut this =
            Self { kind, programs, maps, layout, follower, sum_change: 0, config: config.clone() };
        this.follow()?;
        Ok(this)
    }

    /// Applies changes of the tables to the maps. Returns the number of changes.
    ///
    /// # Errors
    /// [`EmulatorError::Follow`].
    pub fn follow(&mut self) -> Result<usize, EmulatorError> {
        Ok(self.follower.follow(&mut self.maps)?)
    }

    /// Takes over a flow: see [`NicPipeline::add_flow`](super::NicPipeline::add_flow).
    ///
    /// # Errors
    /// [`EmulatorError::Follow`].
    pub fn add_flow(&mut self, flow: &NatFlow, now: Instant) -> Result<(), EmulatorError> {
        Ok(self.follower.add_flow(&mut self.maps, flow, now)?)
    }

    /// Runs the program on a packet. One that arrives on a [headerless](NicConfig::headerless) port begins with IP, and so does one that was
    /// sent by such a port.
    ///
    /// # Errors
    /// [`EmulatorError::NoPort`]; [`EmulatorError::Fault`] would be a bug in the compiler.
    pub fn process(
        &mut self,
        ingress: Port,
        packet: &mut PacketBuffer,
        now: Instant,
    ) -> Result<EmulatorVerdict, EmulatorError> {
        let program = self.programs.get(&ingress).ok_or(EmulatorError::NoPort(ingress))?;
        let mut run_context = RunContext::on(number(ingress)).at(now.as_nanos());
        if self.config.is_headerless(ingress) {
            run_context = run_context.headerless();
        }
        let before = self.drops()?;
        let outcome = program.run(&run_context, packet, &mut self.maps)?;
        self.sum_change = outcome.sum_change;
        let copies = self.layout.needs.copies;
        if self.kind == ProgramKind::Tcx {
            return Ok(match (outcome.action.cast_signed(), outcome.redirect) {
                (TCX_NEXT, _) => EmulatorVerdict::PassedUp,
                (TCX_REDIRECT, Some(Redirect::Interface(interface))) => {
                    let port = port_of(interface);
                    let is_headerless = |port| self.config.is_headerless(port);
                    if is_headerless(port) && !is_headerless(ingress) {
                        // As the kernel does.
                        packet.remove_header();
                    }
                    EmulatorVerdict::Sent { port, copy: None }
                }
                _ => EmulatorVerdict::Dropped,
            });
        }
        Ok(match (i32::try_from(outcome.action), outcome.redirect) {
            (Ok(XDP_PASS), _) => EmulatorVerdict::PassedUp,
            (Ok(XDP_DROP), _) => EmulatorVerdict::Dropped,
            (Ok(XDP_REDIRECT), Some(Redirect::Entry { value, .. })) => {
                let (port, after) = (port_of(value), self.drops()?);
                // A single redirection sends a packet, or the copy of a dropped one.
                if after > before {
                    EmulatorVerdict::Copied(port)
                } else {
                    EmulatorVerdict::Sent { port, copy: None }
                }
            }
            (Ok(XDP_REDIRECT), Some(Redirect::Broadcast { map, .. })) => {
                let pair = usize::try_from(map).unwrap_or(0).saturating_sub(self.layout.pairs);
                let port = Port(u16::try_from(pair).unwrap_or(u16::MAX));
                EmulatorVerdict::Sent { port, copy: copies }
            }
            _ => EmulatorVerdict::Dropped,
        })
    }

    /// Returns what the kernel has added, in the last run, to the sum that a network card may have computed over the packet from
    /// its network header on; `None` for programs of XDP, which run before there is one.
    #[must_use]
    pub fn sum_change(&self) -> Option<u16> {
        (self.kind == ProgramKind::Tcx).then_some(self.sum_change)
    }

    fn drops(&self) -> Result<u64, MapError> {
        match self.layout.needs.copies {
            Some(_) => Ok(self.counters()?.traffic.dropped_total()),
            None => Ok(0),
        }
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// Never, with the interpreter's maps.
    pub fn counters(&self) -> Result<NicCounters, MapError> {
        Ok(NicCounters::new(&counters(&self.maps[self.layout.counters])?))
    }

    /// Adds what the programs have counted for each hop to the counters of the table: see
    /// [`NicPipeline::count_hops`](super::NicPipeline::count_hops).
    ///
    /// # Errors
    /// [`EmulatorError::Follow`].
    pub fn count_hops(&mut self) -> Result<(), EmulatorError> {
        Ok(self.follower.count_hops(&self.maps)?)
    }

    /// Refreshes flows in the host's table that are in use here; examines at most `count` translations. Returns how
    /// many.
    ///
    /// # Errors
    /// [`EmulatorError::Follow`].
    pub fn refresh(&mut self, now: Instant, count: usize) -> Result<usize, EmulatorError> {
        Ok(self.follower.refresh(&self.maps, now, count)?)
    }
}
