//! A flow of frames that runs.

use std::{collections::BTreeMap, net::IpAddr, rc::Rc, sync::mpsc::Receiver, time::Duration};

use vigie::{
    Instant,
    detect::{HostThread, clock::monotonic_now},
    forward::{
        host::{Forwarder, Hosted},
        packet::Port,
        pipeline::Reason,
        tables::{CounterSnapshot, Counters, NatTable, Traffic},
    },
    spawn_blocking,
};

use super::{
    program::{Program, word},
    stages::LEFT_TO_KERNEL,
    tables::Tables,
};
use crate::{
    cli::Side,
    flow::{Drained, Draining, Running},
    journal::say,
    kernel::{Change, Picture},
    migration::Migration,
    stats::FlowReport,
};

/// Turns of the pipeline in which what waits may still leave at the end.
const DRAIN_TURNS: usize = 1000;
/// How often gateways are kept fresh.
const REFRESH: Duration = Duration::from_secs(10);

/// A flow that forwards.
pub(super) struct FramesFlow {
    pub(super) head: FlowReport,
    /// Names of interfaces, in the order of their ports.
    pub(super) names: Rc<[String]>,
    pub(super) tables: Tables,
    pub(super) program: Option<Program>,
    /// Whether it follows the kernel's routes.
    pub(super) routes: bool,
    pub(super) nat: Option<NatTable>,
    pub(super) wanted: Receiver<(Port, IpAddr)>,
    pub(super) counters: Counters,
    pub(super) hosted: Hosted,
    pub(super) thread: Option<HostThread>,
    pub(super) migration: Option<Migration>,
    pub(super) refresh_at: Instant,
}

impl FramesFlow {
    /// Packets that came in, and those that went out with their bytes, on both sides. What the program left to
    /// the host is the host's.
    fn traffic(&self) -> (u64, Traffic, BTreeMap<String, u64>) {
        let host = self.counters.snapshot();
        let nic = self.program.as_ref().and_then(Program::counters);
        let (nic, passed_up) = nic.map_or((None, 0), |(seen, up)| (Some(seen), up));
        let by_nic = |of: fn(&CounterSnapshot) -> u64| nic.as_ref().map_or(0, of);
        let mut counters = BTreeMap::from([
            ("left_to_kernel".to_owned(), host.of(LEFT_TO_KERNEL)),
            ("nic: left_to_host".to_owned(), passed_up),
            ("nic: received_packets".to_owned(), by_nic(|seen| seen.received.packets)),
            ("nic: sent_packets".to_owned(), by_nic(|seen| seen.sent.packets)),
            ("nic: sent_bytes".to_owned(), by_nic(|seen| seen.sent.bytes)),
            ("host: received_packets".to_owned(), host.received.packets),
            ("host: sent_packets".to_owned(), host.sent.packets),
            ("host: sent_bytes".to_owned(), host.sent.bytes),
        ]);
        for reason in Reason::ALL.iter().filter(|reason| **reason != LEFT_TO_KERNEL) {
            let dropped = nic.as_ref().map_or(0, |seen| seen.of(*reason));
            counters.insert(format!("dropped: {reason}"), host.of(*reason).saturating_add(dropped));
        }
        counters.insert("ICMP errors sent".to_owned(), host.answers);
        counters.insert("ICMP errors suppressed".to_owned(), host.answers_suppressed);
        let taken = by_nic(|seen| seen.received.packets).saturating_sub(passed_up);
        let mut sent = host.sent;
        sent.packets = sent.packets.saturating_add(by_nic(|seen| seen.sent.packets));
        sent.bytes = sent.bytes.saturating_add(by_nic(|seen| seen.sent.bytes));
        (host.received.packets.saturating_add(taken), sent, counters)
    }

    /// Moves the flow, and counts it.
    fn go_to(&mut self, side: Side) -> Result<(), String> {
        let Some(program) = &mut self.program else {
            return Err(format!("it has no program at its interfaces: {}", self.head.because));
        };
        match (side, program.is_attached()) {
            (Side::Nic, true) | (Side::Host, false) => {
                return Err(format!("it is at the {} already", side.word()));
            }
            (Side::Host, true) if program.is_alone() => {
                return Err(
                    "by tcx there is no host beside the program: start it with another --path"
                        .to_owned(),
                );
            }
            (Side::Nic, false) => program.resume()?,
            (Side::Host, true) => program.pause(),
        }
        side.word().clone_into(&mut self.head.side);
        self.head.migrations += 1;
        if let Some(migration) = &mut self.migration {
            migration.moved(side);
        }
        Ok(())
    }

    /// Lets the program know of its interfaces.
    fn tell_program(&mut self, change: &Change) {
        let Some(program) = &mut self.program else { return };
        let port = |name: &str| {
            let at = self.names.iter().position(|one| one == name)?;
            u16::try_from(at).ok().map(Port)
        };
        match change {
            Change::Interface(interface) => {
                if let Some(port) = port(&interface.name) {
                    program.interface(port, interface.index, interface.is_up);
                }
            }
            Change::InterfaceGone { name, .. } => {
                if let Some(port) = port(name) {
                    program.gone(port);
                }
            }
            Change::Route { .. } | Change::Neighbour { .. } | Change::Addresses { .. } => {}
        }
    }

    /// Moves the flow if its load says so.
    fn migrate(&mut self, now: Instant) {
        let Some(migration) = &mut self.migration else { return };
        let host = self.counters.snapshot().received.packets;
        let nic = self.program.as_ref().and_then(Program::counters);
        let packets = nic.map_or(host, |(seen, passed_up)| {
            host.saturating_add(seen.received.packets.saturating_sub(passed_up))
        });
        let Some((side, load)) = migration.look(packets, now) else { return };
        let name = self.head.name.clone();
        match self.go_to(side) {
            Ok(()) => say(format!(
                "flow `{name}` moved to the {}: {load} packets per second",
                side.word()
            )),
            Err(problem) => {
                say(format!("flow `{name}` does not move any more: {problem}"));
                self.migration = None;
            }
        }
    }
}

impl Running for FramesFlow {
    fn report(&self) -> FlowReport {
        let (received, sent, mut counters) = self.traffic();
        let kernel_drops = self.hosted.with(Forwarder::kernel_drops);
        let kernel_drops = kernel_drops.and_then(Result::ok).unwrap_or(0);
        counters.insert("dropped: not taken in time".to_owned(), kernel_drops);
        let dropped = counters.iter().filter(|(name, _)| name.starts_with("dropped: "));
        let dropped = dropped.map(|(_, count)| *count).sum();
        counters.insert("received_packets".to_owned(), received);
        if let Some(nat) = &self.nat {
            counters.insert("translations".to_owned(), u64::try_from(nat.len()).unwrap_or(0));
        }
        let place = self.program.as_ref().filter(|program| program.is_attached());
        let place = place.and_then(Program::place).map(|place| word(place).to_owned());
        let path = place.unwrap_or_else(|| self.head.path.clone());
        let (units, bytes) = (sent.packets, sent.bytes);
        FlowReport { path, units, bytes, dropped, counters, ..self.head.clone() }
    }

    fn follow(&mut self, picture: &Picture, changes: &[Change]) {
        if self.routes {
            self.tables.follow(changes, picture);
        }
        for change in changes {
            self.tell_program(change);
        }
        if let Some(program) = &mut self.program {
            program.follow(monotonic_now());
        }
    }

    fn tick(&mut self, picture: Option<&Picture>, now: Instant) {
        self.tables.ask_for(self.wanted.try_iter());
        if let Some(nat) = &self.nat {
            nat.expire(now);
        }
        if let Some(program) = &mut self.program {
            program.follow(now);
        }
        if let Some(picture) = picture.filter(|_| self.routes && now >= self.refresh_at) {
            self.refresh_at = now + REFRESH;
            let gateways = picture.gateways_to_ask(&self.tables.indices()).into_iter();
            let gateways: Vec<_> = gateways
                .filter_map(|(index, gateway)| Some((self.tables.port(index)?, gateway)))
                .collect();
            self.tables.ask_for(gateways.into_iter());
        }
        self.migrate(now);
    }

    fn move_to(&mut self, side: Side) -> Result<(), String> {
        self.go_to(side)?;
        say(format!("flow `{}` moved to the {}, as it was told", self.head.name, side.word()));
        Ok(())
    }

    fn drain(mut self: Box<Self>, _: Instant) -> Draining {
        // What is counted in the moment that it takes is not shown.
        let last = self.report();
        let ended = Box::pin(async move {
            // First the program: what it would have taken is still forwarded by the host.
            let program = self.program.take();
            let _ = spawn_blocking(move || drop(program)).await;
            let left = self.hosted.with(|forwarder| !forwarder.drain(DRAIN_TURNS)).unwrap_or(false);
            if left {
                say(format!("flow `{}`: frames were still waiting to leave", self.head.name));
            }
            // Joins the thread, and waits for the kernel to free the interfaces.
            let thread = self.thread.take();
            let _ = spawn_blocking(move || drop(thread)).await;
            Drained::default()
        });
        Draining { report: Box::new(move || last.clone()), ended }
    }
}
