//! A running flow of frames.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use vigie::{
    Instant,
    detect::{HostThread, clock::monotonic_now},
    forward::{
        bpf::AttachMode,
        host::{AsyncForwarder, Forwarder},
        packet::Port,
        pipeline::DropReason,
        tables::{CounterSnapshot, Prefix, Traffic, TrafficCounters},
    },
    spawn_blocking,
};

use super::{
    announcements::Announcements,
    checks::{Claims, KernelForwarding, kernel_forwarding, merging},
    late::LateWatch,
    link_states::LinkStates,
    own_address::{AddressChange, AddressWatch, OwnAddress},
    program::{FrameProgram, path_of},
    stages::LEFT_TO_KERNEL,
    state_file::StateFile,
    tables::Tables,
    translations::Translations,
};
use crate::{
    cli::FlowSide,
    config::PathChoice,
    flow::{Drained, Draining, Running},
    journal::log,
    kernel::{Change, NetlinkCache},
    migration::Migration,
    plan::{PathDecision, path_name},
    stats::FlowReport,
};

/// Ticks of the pipeline at the end, for packets that still wait.
const DRAIN_TICKS: usize = 1000;
/// The interval at which neighbours that the kernel has not confirmed for a while are asked.
const REFRESH: Duration = Duration::from_secs(5);

/// A running flow.
pub(super) struct FramesFlow {
    pub(super) head: FlowReport,
    /// Names of interfaces, in the order of their ports.
    pub(super) names: Rc<[String]>,
    pub(super) links: LinkStates,
    pub(super) tables: Tables,
    pub(super) program: Option<FrameProgram>,
    pub(super) decision: PathDecision,
    /// True if it follows the kernel's routes.
    pub(super) routes: bool,
    pub(super) nat: Option<Translations>,
    /// The public address, if this host has it itself.
    pub(super) own_address: Option<OwnAddress>,
    pub(super) address_watch: Option<AddressWatch>,
    pub(super) announcements: Option<Announcements>,
    /// The address that it follows is another one.
    pub(super) begins_anew: bool,
    /// The file that keeps translations.
    pub(super) state_file: Option<StateFile>,
    pub(super) counters: TrafficCounters,
    pub(super) async_forwarder: AsyncForwarder,
    pub(super) thread: Option<HostThread>,
    pub(super) migration: Option<Migration>,
    pub(super) refresh_at: Instant,
    /// The time at which the interfaces' drivers are asked again.
    pub(super) check_at: Instant,
    /// Where the kernel has begun to forward the same packets.
    pub(super) kernel_forwards: Option<KernelForwarding>,
    /// What was said of interfaces that have begun to merge packets.
    pub(super) merging: Option<String>,
    pub(super) late: LateWatch,
    /// Held until the interfaces are free.
    pub(super) claims: Claims,
}

impl FramesFlow {
    /// Received packets; sent packets and bytes; and all counters, of both sides. Packets that the program left to the
    /// host count as the host's.
    fn traffic(&self) -> (u64, Traffic, BTreeMap<String, u64>) {
        let host = self.counters.snapshot();
        let nic = self.program.as_ref().and_then(FrameProgram::counters);
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
        for reason in DropReason::ALL.iter().filter(|reason| **reason != LEFT_TO_KERNEL) {
            let dropped = nic.as_ref().map_or(0, |seen| seen.of(*reason));
            counters.insert(format!("dropped: {reason}"), host.of(*reason).saturating_add(dropped));
        }

        counters.insert("ICMP errors sent".to_owned(), host.icmp_errors);
        counters.insert("ICMP errors suppressed".to_owned(), host.icmp_errors_suppressed);
        let taken = by_nic(|seen| seen.received.packets).saturating_sub(passed_up);
        let mut sent = host.sent;
        sent.packets = sent.packets.saturating_add(by_nic(|seen| seen.sent.packets));
        sent.bytes = sent.bytes.saturating_add(by_nic(|seen| seen.sent.bytes));
        (host.received.packets.saturating_add(taken), sent, counters)
    }

    /// Explains the flow in one sentence.
    fn sentence(
        &self,
        place: Option<AttachMode>,
        path: &str,
        counters: &BTreeMap<String, u64>,
    ) -> String {
        let FlowReport { name, between, .. } = &self.head;
        let at_host = match self.decision.best {
            PathChoice::AfXdp => PathChoice::AfXdp,
            _ => PathChoice::AfPacket,
        };
        let detached = self
            .program
            .as_ref()
            .filter(|program| place.is_none() && program.side() == FlowSide::Nic);
        let detached = detached.and_then(|program| Some((program.detached()?, program.is_alone())));
        if let Some((because, true)) = detached {
            return format!("`{name}` ({between}) is not forwarded, since {because}.");
        }
        let because = detached.as_ref().map(|(because, _)| because.as_str());
        let because = self.decision.sentence(place.map_or(at_host, path_of), because);
        let count = |name: &str| counters.get(name).copied().unwrap_or(0);
        let (by_program, by_host) = (count("nic: sent_packets"), count("host: sent_packets"));
        let share = by_program.saturating_mul(100).checked_div(by_program.saturating_add(by_host));
        let share = share.filter(|_| self.program.is_some());
        let share = share.map_or_else(String::new, |percent| {
            format!("; the program has sent {percent} % of the packets")
        });
        format!("`{name}` ({between}) is forwarded by {path}: {because}{share}.")
    }

    /// Moves the flow, and counts the move.
    fn go_to(&mut self, side: FlowSide) -> Result<(), String> {
        let Some(program) = &mut self.program else {
            return Err(format!("it has no program at its interfaces: {}", self.head.because));
        };
        let mode = program.mode();
        match (side, program.side(), program.detached()) {
            (FlowSide::Nic, FlowSide::Nic, Some(because)) => {
                return Err(format!("it goes back to the nic by itself, but {because}"));
            }
            (FlowSide::Nic, FlowSide::Nic, None) | (FlowSide::Host, FlowSide::Host, _) => {
                return Err(format!("it is at the {} already", side.name()));
            }
            (FlowSide::Host, FlowSide::Nic, _) if program.is_alone() => {
                return Err(
                    "by tcx there is no host beside the program: start it with another --path"
                        .to_owned(),
                );
            }
            (FlowSide::Nic, FlowSide::Host, _) => program.resume()?,
            (FlowSide::Host, FlowSide::Nic, _) => program.pause(),
        }
        if program.mode() != mode {
            self.head.migrations += 1;
        }
        if let Some(migration) = &mut self.migration {
            migration.moved(side);
        }
        Ok(())
    }

    /// Tells the program about changed interfaces.
    fn tell_program(&mut self, change: &Change) {
        let Some(program) = &mut self.program else { return };
        let port = |name: &str| {
            let at = self.names.iter().position(|one| one == name)?;
            u16::try_from(at).ok().map(Port)
        };
        match change {
            Change::Interface(interface) => {
                if let Some(port) = port(&interface.name) {
                    program.interface(port, interface);
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

    /// Says when the kernel begins to forward the same packets, which then arrive twice, and when that ends.
    fn watch_kernel(&mut self) {
        let forwards = kernel_forwarding(&self.names);
        if forwards == self.kernel_forwards {
            return;
        }
        let name = &self.head.name;
        let begins =
            if self.kernel_forwards.is_none() { "has begun to forward" } else { "forwards" };
        log(match &forwards {
            Some(KernelForwarding { from, off }) => format!(
                "flow `{name}`: the kernel {begins}, too, from {from}, and packets arrive twice: turn that off ({off})"
            ),
            None => format!("flow `{name}`: the kernel no longer forwards, too"),
        });
        self.kernel_forwards = forwards;
    }

    /// Says when interfaces begin to merge packets, which then cannot be forwarded as they came, and when that ends.
    fn watch_merging(&mut self) {
        let merging = merging(&self.names);
        if merging != self.merging {
            let said = merging.as_deref().unwrap_or("no interface merges packets any more");
            log(format!("flow `{}`: {said}", self.head.name));
            self.merging = merging;
        }
    }

    fn kernel_drops(&self) -> u64 {
        let drops = self.async_forwarder.with(Forwarder::kernel_drops);
        drops.and_then(Result::ok).unwrap_or(0)
    }

    /// Says when the kernel begins to drop packets that the host does not take in time.
    fn watch_late(&mut self, now: Instant) {
        if let Some(said) = self.late.check(self.kernel_drops(), now) {
            log(format!("flow `{}`: {said}", self.head.name));
        }
    }

    /// Moves the flow if its load requires it.
    fn migrate(&mut self, now: Instant) {
        let Some(migration) = &mut self.migration else { return };
        if self.program.as_ref().is_some_and(FrameProgram::waits) {
            return migration.pause();
        }
        let host = self.counters.snapshot().received.packets;
        let nic = self.program.as_ref().and_then(FrameProgram::counters);
        let packets = nic.map_or(host, |(seen, passed_up)| {
            host.saturating_add(seen.received.packets.saturating_sub(passed_up))
        });
        let Some((side, load)) = migration.check(packets, now) else { return };
        let name = self.head.name.clone();
        match self.go_to(side) {
            Ok(()) => log(format!(
                "flow `{name}` moved to the {}: {load} packets per second",
                side.name()
            )),
            Err(problem) => {
                log(format!("flow `{name}` does not move any more: {problem}"));
                self.migration = None;
            }
        }
    }
}

impl Running for FramesFlow {
    fn report(&self) -> FlowReport {
        let (received, sent, mut counters) = self.traffic();
        counters.insert("dropped: not taken in time".to_owned(), self.kernel_drops());
        let dropped = counters.iter().filter(|(name, _)| name.starts_with("dropped: "));
        let dropped = dropped.map(|(_, count)| *count).sum();
        counters.insert("received_packets".to_owned(), received);
        if let Some(nat) = &self.nat {
            nat.count(&mut counters);
        }
        self.program.iter().for_each(FrameProgram::count_hops);
        let hops = self.tables.hop_traffic();
        let place = self.program.as_ref().and_then(FrameProgram::mode);
        let side = if place.is_some() { FlowSide::Nic } else { FlowSide::Host };
        let path = place
            .map_or_else(|| self.head.path.clone(), |mode| path_name(path_of(mode)).to_owned());
        let sentence = self.sentence(place, &path, &counters);
        let (units, bytes) = (sent.packets, sent.bytes);
        let side = side.name().to_owned();
        let head = self.head.clone();
        FlowReport { side, path, sentence, units, bytes, dropped, counters, hops, ..head }
    }

    fn follow(&mut self, cache: &NetlinkCache, changes: &[Change]) {
        if self.routes {
            self.tables.follow(changes, cache);
        }
        for change in changes {
            for said in self.links.change(change) {
                log(format!("flow `{}`: {said}", self.head.name));
            }
            self.tell_program(change);
            if let Some(announcements) = &mut self.announcements {
                announcements.follow(change);
            }
        }
        if let Some(program) = &mut self.program {
            program.follow(monotonic_now());
        }
    }

    fn tick(&mut self, cache: Option<&NetlinkCache>, now: Instant) {
        if let Some(nat) = &mut self.nat {
            nat.table.expire(now);
            if let Some(state_file) = &mut self.state_file {
                state_file.tick(&nat.table, now);
            }
            nat.check(now).for_each(|said| log(format!("flow `{}`: {said}", self.head.name)));
        }
        if let Some(program) = &mut self.program {
            program.follow(now);
        }
        if let Some(cache) = cache.filter(|_| self.routes && now >= self.refresh_at) {
            self.refresh_at = now + REFRESH;
            self.watch_kernel();
            if let Some(watch) = &mut self.address_watch {
                match watch.check(cache) {
                    Some(AddressChange::Said(said)) => {
                        log(format!("flow `{}`: {said}", self.head.name));
                    }
                    Some(AddressChange::Moved) => self.begins_anew = true,
                    None => {}
                }
            }
            let asked = cache.neighbours_to_ask(&self.tables.indices()).into_iter();
            let asked = asked.filter_map(|(index, one)| Some((self.tables.port(index)?, one)));
            self.tables.ask_for(asked);
        }
        if now >= self.check_at {
            self.check_at = now + REFRESH;
            self.watch_merging();
            self.watch_late(now);
        }
        if let Some(said) = self.own_address.as_mut().and_then(|own| own.check(now)) {
            log(format!("flow `{}`: {said}", self.head.name));
        }
        if let Some(said) = self.announcements.as_mut().and_then(|one| one.tick(now)) {
            log(format!("flow `{}`: {said}", self.head.name));
        }
        self.migrate(now);
    }

    fn begins_anew(&mut self) -> Option<Vec<Prefix>> {
        let inside = || self.nat.as_ref().map_or(Vec::new(), |nat| nat.inside.clone());
        std::mem::take(&mut self.begins_anew).then(inside)
    }

    fn move_to(&mut self, side: FlowSide) -> Result<Option<String>, String> {
        self.go_to(side)?;
        let (name, side_name) = (&self.head.name, side.name());
        // At the host it is already.
        let detached = self.program.as_ref().and_then(FrameProgram::detached);
        let deferred = detached.filter(|_| side == FlowSide::Nic);
        log(match &deferred {
            Some(because) => {
                format!("flow `{name}` does not move to the {side_name} yet: {because}")
            }
            None => format!("flow `{name}` moved to the {side_name} as requested"),
        });
        Ok(deferred)
    }

    fn drain(mut self: Box<Self>, _: Instant) -> Draining {
        self.watch_late(monotonic_now());
        // Counts that arrive while this runs are not shown.
        let last = self.report();
        let state_file = self.state_file.take();
        let logs_end = state_file.is_none();
        if let (Some(state_file), Some(nat)) = (state_file, &self.nat) {
            // Now, since a flow with other settings may begin with it at once.
            state_file.end(&nat.table);
        }
        let ended = Box::pin(async move {
            // First the program: its packets are then still forwarded by the host.
            let program = self.program.take();
            let _ = spawn_blocking(move || drop(program)).await;
            let left = self
                .async_forwarder
                .with(|forwarder| !forwarder.drain(DRAIN_TICKS))
                .unwrap_or(false);
            if left {
                log(format!("flow `{}`: frames were still waiting to leave", self.head.name));
            }
            // Joins the thread, and waits for the kernel to free the interfaces.
            let thread = self.thread.take();
            let _ = spawn_blocking(move || drop(thread)).await;
            drop(self.claims);
            // Not before: until the thread has ended, translations begin and end, and are logged.
            if let Some(nat) = self.nat.as_ref().filter(|_| logs_end) {
                nat.log_end(&self.head.name);
            }
            Drained::default()
        });
        Draining { report: Box::new(move || last.clone()), ended }
    }
}
