//! Predictions for a path with several messages in the node.

use std::time::Duration;

use super::parameters::{Bus, Parameters, WorkCosts};
use super::path::{Path, Placement};
use crate::cost::Bandwidth;

named! {
    /// The resource that limits the bandwidth of a path.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Limit {
        /// The window: messages follow each other too slowly to keep any resource busy.
        Window => "window",
        /// The link on which messages arrive.
        ReceiveLink => "receive link",
        /// The I/O bus.
        Bus => "bus",
        /// The processor that runs the algorithm.
        Processor => "processor",
        /// The link on which messages leave.
        SendLink => "send link",
        /// The processors that all nodes share.
        SharedProcessors => "processors that all nodes share",
    }
}

/// The model's prediction for one path.
///
/// With one message in the node, a message takes T, and the bandwidth is ℓ / T, as in the paper. With a window of w, at
/// most w messages leave per T, and no resource works faster than for one message:
///
/// ```text
/// time per message ≥ max( (T + T_idle) / w, nb T_rcv, bus, T_algo, nb T_snd, shared )
/// bus = 2 nb T_pci (half-duplex), nb T_pci (full-duplex), 0 (interface)
/// shared = processor time of one message at all nodes / processors, if they share them; else 0
/// ```
/// This is exact at w = 1 and a bound beyond: it ignores how messages collide on the bus.
/// [`simulation`](crate::simulation) shows the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prediction {
    /// The path.
    pub path: Path,
    /// T, the time of one message alone in the node.
    pub time: Duration,
    /// The time in which as many messages as the window holds leave the node.
    pub span: Duration,
    /// The maximum number of messages in the node at once.
    pub window: u32,
    /// The bandwidth.
    pub bandwidth: Bandwidth,
    /// The limiting resource.
    pub limit: Limit,
    /// The algorithm's time.
    pub t_algo: Duration,
}

impl Prediction {
    /// Returns the share of the host's processor that the algorithm uses, 0 to 1: 0 on the interface.
    #[must_use]
    pub fn host_cpu_share(&self) -> f64 {
        match self.path.placement {
            Placement::Nic => 0.0,
            Placement::Host => {
                let busy = self.t_algo.as_secs_f64() * f64::from(self.window);
                (busy / self.span.as_secs_f64()).min(1.0)
            }
        }
    }
}

impl Parameters {
    /// Predicts a path with the algorithm's time there; `None` for cut-through by the host on a half-duplex bus.
    #[must_use]
    pub fn predict(&self, path: Path, t_algo: Duration) -> Option<Prediction> {
        Some(self.predicted(path, self.time(path, t_algo)?, t_algo))
    }

    /// Returns the prediction that follows from the time of one message alone in the node.
    pub(super) fn predicted(&self, path: Path, time: Duration, t_algo: Duration) -> Prediction {
        let span = self.span(path.placement, time, t_algo);
        let bytes = self.message.bytes().saturating_mul(u64::from(self.window));
        let bandwidth = Bandwidth::measured(bytes, span).unwrap_or(Bandwidth::SLOWEST);
        let limits = self.works(path.placement, t_algo).into_iter();
        let busiest = limits.max_by_key(|(_, work)| *work).map(|(limit, _)| limit);
        let limit = if span == time.saturating_add(self.t_idle) {
            Limit::Window
        } else {
            busiest.unwrap_or(Limit::Window)
        };
        Prediction { path, time, span, window: self.window, bandwidth, limit, t_algo }
    }

    /// Returns the shortest time in which as many messages as the window holds can leave: their latency, or the busiest
    /// resource's work on them.
    pub(super) fn span(&self, placement: Placement, time: Duration, t_algo: Duration) -> Duration {
        let works = self.works(placement, t_algo).into_iter().map(|(_, work)| work);
        let busiest = works.max().unwrap_or_default();
        time.saturating_add(self.t_idle).max(busiest.saturating_mul(self.window))
    }

    /// Returns the time that the interface's processor spends on one message besides the algorithm.
    pub(super) fn engine(&self) -> Duration {
        self.nb_times(self.work.engine) + self.work.engine_message
    }

    /// Returns each resource's work on one message.
    fn works(&self, placement: Placement, t_algo: Duration) -> [(Limit, Duration); 5] {
        let bus = match (placement, self.bus) {
            (Placement::Nic, _) => Duration::ZERO,
            (Placement::Host, Bus::HalfDuplex) => 2 * self.nb_times(self.t_pci),
            (Placement::Host, Bus::FullDuplex) => self.nb_times(self.t_pci),
        };

        let WorkCosts { processors, links, bus: bus_work, handover, .. } = self.work;
        let engine = self.engine();
        let moving = match placement {
            Placement::Nic => self.nb_times(links),
            Placement::Host => self.nb_times(links + bus_work) + handover,
        };

        let shared = moving.saturating_add(t_algo).checked_div(processors).unwrap_or_default();

        // The interface's processor moves packets too; for the host, the interface does that.
        let processor = match placement {
            Placement::Nic => t_algo.saturating_add(engine),
            Placement::Host => t_algo.max(engine + self.nb_times(bus_work)),
        };

        [
            (Limit::SharedProcessors, shared),
            (Limit::Processor, processor),
            (Limit::Bus, bus),
            (Limit::SendLink, self.nb_times(self.t_snd)),
            // Among equals the last one is named: the first resource on the way stalls first.
            (Limit::ReceiveLink, self.nb_times(self.t_rcv)),
        ]
    }
}
