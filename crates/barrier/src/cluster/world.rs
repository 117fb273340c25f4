//! The world of a simulation: its time, its randomness, and its future events.

use std::collections::{BTreeMap, VecDeque};

use super::config::ClusterConfig;
use super::event::{HubEvent, NodeReport, SimEvent};
use super::frame::{Frame, NodeIndex};
use super::times::Counts;

#[derive(Debug)]
pub(super) struct SimWorld<M> {
    pub(super) now_ns: u64,
    pub(super) config: ClusterConfig,
    pub(super) random: fastrand::Rng,
    /// The probability that a copy of a frame does not arrive.
    pub(super) loss: f64,
    pub(super) counts: Counts,
    /// Reports of nodes that have not been taken yet.
    pub(super) reports: VecDeque<(NodeIndex, NodeReport)>,
    /// Ordered by time; at one time, attempts to send on a hub come last, since they depend on what else is heard
    /// then; then by age.
    event_queue: BTreeMap<(u64, bool, u64), SimEvent<M>>,
    event_count: u64,
}

impl<M> SimWorld<M> {
    pub(super) fn new(config: ClusterConfig, loss: f64, seed: u64) -> Self {
        Self {
            now_ns: 0,
            config,
            random: fastrand::Rng::with_seed(seed),
            loss,
            counts: Counts::default(),
            reports: VecDeque::new(),
            event_queue: BTreeMap::new(),
            event_count: 0,
        }
    }

    /// Adds an event to the queue.
    pub(super) fn schedule_event(&mut self, delay_ns: u64, event: SimEvent<M>) {
        let at_ns = self.now_ns.saturating_add(delay_ns);
        let is_last = matches!(event, SimEvent::Hub { what: HubEvent::Attempt(_), .. });
        self.event_queue.insert((at_ns, is_last, self.event_count), event);
        self.event_count += 1;
    }

    /// Moves on to the time of the next event.
    pub(super) fn next(&mut self) -> Option<SimEvent<M>> {
        let ((at_ns, ..), event) = self.event_queue.pop_first()?;
        self.now_ns = at_ns;
        Some(event)
    }
}

impl<M: Clone> SimWorld<M> {
    /// Lets a frame land in the ring of a receiving node, unless it is lost on the way.
    pub(super) fn land(&mut self, delay_ns: u64, nic: usize, node: NodeIndex, frame: &Frame<M>) {
        // Without loss, no random number is drawn: a switch is the same with every seed.
        if self.loss > 0.0 && self.random.f64() < self.loss {
            self.counts.lost += 1;
            return;
        }
        self.counts.delivered += 1;
        let landed_ns = delay_ns + self.config.dma_ns;
        self.schedule_event(
            landed_ns,
            SimEvent::Land { nic, node, message: frame.message.clone() },
        );
    }
}
