//! The world of a simulation: its time, its chance, and what is going to happen.

use std::collections::{BTreeMap, VecDeque};

use super::hub::HubHappening;
use super::parameters::Parameters;
use super::{Counts, Frame, NodeIndex};

/// Something that will happen at its time.
#[derive(Debug)]
pub(super) enum Happening<M> {
    /// The processor of a node has done what it did, unless that was interrupted: its turn has another number then.
    Done { node: NodeIndex, turn: u64 },
    /// A frame lies in the transmit memory of this NIC of its sender.
    Offer { nic: usize, frame: Frame<M> },
    /// The last bit of a frame is on its sender's link to a switch.
    Sent { node: NodeIndex },
    /// A switch may send on.
    Forward { nic: usize, frame: Frame<M> },
    /// A frame lies in the ring of a NIC, in the host's memory.
    Land { nic: usize, node: NodeIndex, message: M },
    /// Something on the wire of the hub that connects these NICs.
    Hub { nic: usize, what: HubHappening },
    /// A program wanted to be called.
    Deadline { node: NodeIndex },
}

/// What a node says to those who watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    Entered,
    Exited,
    Failed(String),
}

#[derive(Debug)]
pub(super) struct World<M> {
    pub(super) now_ns: u64,
    pub(super) parameters: Parameters,
    pub(super) random: fastrand::Rng,
    /// The probability that a copy of a frame does not arrive.
    pub(super) loss: f64,
    pub(super) counts: Counts,
    /// What nodes have said since somebody listened.
    pub(super) reports: VecDeque<(NodeIndex, Report)>,
    /// By time; of one time, attempts to send on a hub come last, since they depend on what else is heard then; and by age.
    agenda: BTreeMap<(u64, bool, u64), Happening<M>>,
    planned: u64,
}

impl<M> World<M> {
    pub(super) fn new(parameters: Parameters, loss: f64, seed: u64) -> Self {
        Self {
            now_ns: 0,
            parameters,
            random: fastrand::Rng::with_seed(seed),
            loss,
            counts: Counts::default(),
            reports: VecDeque::new(),
            agenda: BTreeMap::new(),
            planned: 0,
        }
    }

    /// Puts something on the agenda.
    pub(super) fn plan(&mut self, delay_ns: u64, happening: Happening<M>) {
        let at_ns = self.now_ns.saturating_add(delay_ns);
        let is_last = matches!(happening, Happening::Hub { what: HubHappening::Attempt(_), .. });
        self.agenda.insert((at_ns, is_last, self.planned), happening);
        self.planned += 1;
    }

    /// Goes to the time of the next happening.
    pub(super) fn next(&mut self) -> Option<Happening<M>> {
        let ((at_ns, ..), happening) = self.agenda.pop_first()?;
        self.now_ns = at_ns;
        Some(happening)
    }
}

impl<M: Clone> World<M> {
    /// Lets a frame land in the ring of a node that it is for, if it is not lost on the way.
    pub(super) fn land(&mut self, delay_ns: u64, nic: usize, node: NodeIndex, frame: &Frame<M>) {
        // No number is drawn where nothing is lost: a switch is the same with every seed.
        if self.loss > 0.0 && self.random.f64() < self.loss {
            self.counts.lost += 1;
            return;
        }
        self.counts.delivered += 1;
        let landed_ns = delay_ns + self.parameters.dma_ns;
        self.plan(landed_ns, Happening::Land { nic, node, message: frame.message.clone() });
    }
}
