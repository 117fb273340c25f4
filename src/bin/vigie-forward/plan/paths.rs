//! Which path a flow of frames takes, and why: the planner with the terms of each path.
//!
//! The terms are times of a processor, measured once ([docs/design/forward-command.md](../../../../docs/design/forward-command.md) has the
//! machine and the commands): measuring them at each start would take a second, and noise would sometimes choose.

use std::{fmt, time::Duration};

use vigie::forward::{Bandwidth, Bus, Cost, Message, Node, Path, StageModel};

use super::measure::{PACKET_BYTES, SEGMENTS_BYTES};
use crate::{
    cli::PlannedWork,
    config::{FlowKind, PathChoice},
};

/// What can be planned, in the order of preference among equals.
const PATHS: [PathChoice; 4] =
    [PathChoice::XdpNative, PathChoice::Tcx, PathChoice::XdpGeneric, PathChoice::AfPacket];

/// The time of moving a packet of 1500 bytes, and one of several segments (65 000 bytes), between a packet socket and a pipeline, one way.
const T_PCI_NS: (u64, u64) = (1050, 5500);
/// The links between which terms are compared, the same on all paths.
const LINK_BITS_PER_S: u64 = 10_000_000_000;

/// What becomes of packets of several segments.
#[derive(Clone, Copy)]
enum SegmentTerms {
    /// They pass whole, in so many nanoseconds.
    Whole(u64),
    /// They go up to the host's pipeline.
    ByHost,
    /// There are none yet: a driver gets frames before they are merged.
    Unmerged,
    /// The kernel drops them.
    Dropped,
}

/// Returns the terms of a program, in nanoseconds from the entry of a packet to its departure.
const fn program_terms(path: PathChoice, work: PlannedWork) -> Option<(u64, SegmentTerms)> {
    Some(match (path, work) {
        (PathChoice::XdpNative, PlannedWork::L2) => (340, SegmentTerms::Unmerged),
        (PathChoice::XdpNative, PlannedWork::L3) => (380, SegmentTerms::Unmerged),
        (PathChoice::XdpNative, PlannedWork::Nat) => (380, SegmentTerms::Unmerged),
        (PathChoice::Tcx, PlannedWork::L2) => (400, SegmentTerms::Whole(590)),
        (PathChoice::Tcx, PlannedWork::L3) => (430, SegmentTerms::Whole(640)),
        (PathChoice::Tcx, PlannedWork::Nat) => (470, SegmentTerms::Whole(750)),
        (PathChoice::XdpGeneric, PlannedWork::L2) => (420, SegmentTerms::Dropped),
        (PathChoice::XdpGeneric, PlannedWork::L3) => (560, SegmentTerms::ByHost),
        (PathChoice::XdpGeneric, PlannedWork::Nat) => (570, SegmentTerms::ByHost),
        _ => return None,
    })
}

/// T_algoH: the stages of the host's pipeline, in nanoseconds, for a packet of any length.
const fn stages_ns(work: PlannedWork) -> u64 {
    match work {
        PlannedWork::L2 => 118,
        PlannedWork::L3 => 121,
        PlannedWork::Nat => 204,
    }
}

/// The time in the node of one packet of each kind: what differs between paths. Without one of segments, these do not pass as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PathCost {
    packet: Duration,
    segments: Option<Duration>,
}

/// Predicts a path by the model: T_N or T_H of a packet, without its links.
fn cost(path: PathChoice, work: PlannedWork) -> Option<PathCost> {
    let terms = match path {
        PathChoice::AfPacket => None,
        path => Some(program_terms(path, work)?),
    };
    let predicted = |bytes: u64, t_pci: u64, t_algo_n: Option<u64>| {
        let nanos = |nanos| Cost::fixed(Duration::from_nanos(nanos));
        let link = Bandwidth::new(LINK_BITS_PER_S / 8).ok()?;
        let node = Node::new(Cost::per_byte(link), nanos(t_pci)).bus(Bus::FullDuplex);
        let stage = StageModel::new("stages").on_host(nanos(stages_ns(work)));
        let stage = match t_algo_n {
            Some(time) => stage.on_nic(nanos(time)),
            None => stage.not_on_nic("it is the host's"),
        };
        let plan = node.plan(Message::whole(bytes).ok()?, &[stage]).ok()?;
        let wanted = if t_algo_n.is_some() { Path::NIC } else { Path::HOST };
        let found = plan.candidates().iter().find(|one| one.path == wanted)?;
        let time = found.outcome.as_ref().ok()?.time;
        Some(time.saturating_sub(link.time(bytes) * 2))
    };
    let segments = match terms {
        None | Some((_, SegmentTerms::ByHost)) => predicted(SEGMENTS_BYTES, T_PCI_NS.1, None),
        Some((_, SegmentTerms::Whole(time))) => predicted(SEGMENTS_BYTES, T_PCI_NS.1, Some(time)),
        Some((_, SegmentTerms::Unmerged | SegmentTerms::Dropped)) => None,
    };
    let packet = predicted(PACKET_BYTES, T_PCI_NS.0, terms.map(|(packet, _)| packet))?;
    Some(PathCost { packet, segments })
}

/// Returns the paths for this work, the cheapest first: by packets, then by segments.
pub(crate) fn ranked(work: PlannedWork) -> Vec<PathChoice> {
    let mut costs: Vec<_> = PATHS.iter().map(|path| (cost(*path, work), *path)).collect();
    costs.sort_by_key(|(cost, _)| *cost);
    costs.into_iter().map(|(_, path)| path).collect()
}

/// The work of a flow of frames.
pub(crate) const fn work_of(kind: &FlowKind) -> PlannedWork {
    match kind {
        FlowKind::L2(_) | FlowKind::Relay(_) => PlannedWork::L2,
        FlowKind::L3(_) => PlannedWork::L3,
        FlowKind::Nat(_) => PlannedWork::Nat,
    }
}

/// Why a flow of frames is forwarded as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathDecision {
    pub(crate) work: PlannedWork,
    /// The path was configured.
    pub(crate) is_named: bool,
    /// It moves by its load.
    pub(crate) migrates: bool,
    /// The path that it has unless it is moved.
    pub(crate) best: PathChoice,
    /// The paths that are not possible.
    pub(crate) refused: Vec<RefusedPath>,
}

/// A path that is not possible, or all of programs, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedPath {
    pub(crate) path: Option<PathChoice>,
    pub(crate) because: String,
}

impl RefusedPath {
    pub(crate) const fn new(path: PathChoice, because: String) -> Self {
        Self { path: Some(path), because }
    }

    /// Lists some of them.
    pub(crate) fn list(refused: &[Self]) -> String {
        refused.iter().map(Self::to_string).collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for RefusedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path {
            Some(path) => write!(f, "{}: {}", path_name(path), self.because),
            None => f.write_str(&self.because),
        }
    }
}

impl PathDecision {
    /// Explains a path in one sentence, without its beginning and end. If the program is detached though it should not be, `detached` says why.
    pub(crate) fn sentence(&self, path: PathChoice, detached: Option<&str>) -> String {
        let mut text = self.terms(path);
        // What was compared are other interfaces, or a program that is to come back.
        if let Some(because) = detached {
            text.push_str(", since ");
            text.push_str(because);
            return text;
        }
        text.push_str(match (self.migrates, path == self.best, self.is_named) {
            (true, _, _) => ", as its load decides",
            (_, false, _) => ", since it was moved here",
            (_, _, true) => ", as configured",
            (_, true, false) => ", the least of the paths available here",
        });
        let order = ranked(self.work);
        let at = order.iter().position(|one| *one == path).unwrap_or(order.len());
        let is_refused = |path| self.refused.iter().any(|refused| refused.path == Some(path));
        let dearer = order.iter().skip(at + 1).filter(|one| !self.is_named && !is_refused(**one));
        let dearer: Vec<_> =
            dearer.map(|one| format!("{} {}", path_name(*one), self.terms(*one))).collect();
        if !dearer.is_empty() {
            text.push_str(&format!("; dearer: {}", dearer.join(", ")));
        }
        if !self.refused.is_empty() {
            text.push_str(&format!("; not available: {}", RefusedPath::list(&self.refused)));
        }
        text.push_str("; packets are forwarded one by one as they come (cut-through)");
        text
    }

    /// Shows the terms of a path.
    pub(crate) fn terms(&self, path: PathChoice) -> String {
        let Some(PathCost { packet, segments }) = cost(path, self.work) else {
            return "an unmeasured time".to_owned();
        };
        match (segments, path) {
            (Some(time), _) => format!("{packet:?} a packet and {time:?} a packet of segments"),
            (None, PathChoice::XdpNative) => {
                format!("{packet:?} a packet, before the kernel merges segments")
            }
            (None, _) => format!("{packet:?} a packet and drops those of segments"),
        }
    }
}

/// The name of a path.
pub(crate) const fn path_name(path: PathChoice) -> &'static str {
    match path {
        PathChoice::XdpNative => "xdp-native",
        PathChoice::XdpGeneric => "xdp-generic",
        PathChoice::Tcx => "tcx",
        PathChoice::AfXdp => "af-xdp",
        PathChoice::AfPacket | PathChoice::Auto => "af-packet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: programs come before packet sockets, the driver's first, for each kind of work. Method: all orders.
    #[test]
    fn programs_are_cheaper() {
        for work in [PlannedWork::L2, PlannedWork::L3, PlannedWork::Nat] {
            assert_eq!(ranked(work), PATHS, "{work:?}");
        }
    }

    /// Goal: the times are those of the model: T_algoN, or 2 T_pci + T_algoH, also of segments that go up. Method: by hand.
    #[test]
    fn costs_are_the_models() {
        let nanos = |path, work| {
            let cost = cost(path, work).expect("it is measured");
            (cost.packet.as_nanos(), cost.segments.map_or(0, |time| time.as_nanos()))
        };
        assert_eq!(nanos(PathChoice::Tcx, PlannedWork::L3), (430, 640));
        assert_eq!(nanos(PathChoice::AfPacket, PlannedWork::Nat), (2304, 11_204));
        assert_eq!(nanos(PathChoice::XdpGeneric, PlannedWork::L3), (560, 11_121));
        assert_eq!(nanos(PathChoice::XdpGeneric, PlannedWork::L2), (420, 0));
        assert_eq!(nanos(PathChoice::XdpNative, PlannedWork::L3), (380, 0));
        assert_eq!(cost(PathChoice::AfXdp, PlannedWork::L2), None);
    }

    /// Goal: a sentence has the terms, what is dearer and what is not available, each path once, and of a program that is detached only why. Method: each
    /// kind of decision.
    #[test]
    fn decisions_are_explained() {
        let (tcx, sockets) = (PathChoice::Tcx, PathChoice::AfPacket);
        let decision = |best, (is_named, migrates), refused: &[RefusedPath]| PathDecision {
            best,
            work: PlannedWork::L3,
            is_named,
            migrates,
            refused: refused.to_vec(),
        };
        let refused = [(PathChoice::XdpNative, "no driver"), (PathChoice::XdpGeneric, "a VLAN")]
            .map(|(path, because)| RefusedPath::new(path, because.to_owned()));
        let auto = decision(tcx, (false, false), &refused[..1]).sentence(tcx, None);
        assert_eq!(
            auto,
            "430ns a packet and 640ns a packet of segments, the least of the paths available here; dearer: xdp-generic 560ns a \
             packet and 11.121µs a packet of segments, af-packet 2.221µs a packet and 11.121µs a packet of segments; not available: \
             xdp-native: no driver; packets are forwarded one by one as they come (cut-through)"
        );
        let auto = decision(tcx, (false, false), &refused);
        assert_eq!(
            auto.sentence(tcx, None),
            "430ns a packet and 640ns a packet of segments, the least of the paths available here; dearer: af-packet 2.221µs a packet \
             and 11.121µs a packet of segments; not available: xdp-native: no driver; xdp-generic: a VLAN; packets are forwarded one by \
             one as they come (cut-through)"
        );
        assert_eq!(
            auto.sentence(sockets, Some("its program waits")),
            "2.221µs a packet and 11.121µs a packet of segments, since its program waits"
        );
        let rights = [RefusedPath { path: None, because: "a program: no right".to_owned() }];
        let host = decision(sockets, (false, false), &rights).sentence(sockets, None);
        assert!(host.starts_with("2.221µs") && host.contains("no right"), "{host}");
        assert!(!host.contains("dearer"), "{host}");
        let of = |best, how, path| decision(best, how, &[]).sentence(path, None);
        assert!(of(tcx, (true, false), tcx).contains("segments, as configured"));
        assert!(of(tcx, (false, false), sockets).contains("since it was moved here"));
        assert!(of(tcx, (false, true), sockets).contains("as its load decides"));
    }
}
