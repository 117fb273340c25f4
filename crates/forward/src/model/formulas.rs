//! The formulas of [fast-forward, §2.2 and §2.3].
//!
//! Sums saturate, since the algorithm's time may be anything; everything else is bounded when
//! [`Parameters`] are built.

use std::time::Duration;

use super::parameters::{Bus, Parameters};
use super::path::{Path, Placement, SwitchingMode};

impl Parameters {
    /// Returns nb(ℓ) × T_net(sz(ℓ)): the time of the message without a node between source and destination,
    /// by the slower of the two links.
    ///
    /// # Source
    /// The no-forwarding curve of [fast-forward, §3.4].
    #[must_use]
    pub fn t_none(&self) -> Duration {
        self.nb_times(self.t_rcv.max(self.t_snd))
    }

    /// Returns T_H, the time in the node if the host forwards:
    ///
    /// ```text
    /// T_H = T_rcv + (nb − 1) × max(T_rcv, T_pci) + T_pci
    ///     + T_algoH
    ///     + T_pci + (nb − 1) × max(T_pci, T_snd) + T_snd
    /// ```
    /// which is 2 nb × T_net + 2 T_pci + T_algoH where the bus is no slower than the network. Where a hand-over takes
    /// [T_handover](super::ParametersBuilder::t_handover) beside that, it counts twice.
    ///
    /// # Source
    /// [fast-forward, §2.2].
    #[must_use]
    pub fn t_h(&self, t_algo_h: Duration) -> Duration {
        self.t_h_moves().saturating_add(t_algo_h)
    }

    /// Returns the time in the node if the host forwards with cut-through; `None` on a half-duplex bus:
    ///
    /// ```text
    /// max( T_rcv + T_pci + T_algoH + T_pci + T_snd + (nb − 1) × max(T_pci, T_snd),
    ///      T_rcv + T_pci           + T_pci + T_snd + (nb − 1) × max(T_rcv, T_pci) )
    /// ```
    /// In the second line the algorithm is hidden by packets that are still arriving.
    ///
    /// # Source
    /// *Deviation:* not in the paper, which excludes cut-through by the host since its bus is half-duplex
    /// [fast-forward, §3.2].
    #[must_use]
    pub fn t_h_cut_through(&self, t_algo_h: Duration) -> Option<Duration> {
        if self.bus == Bus::HalfDuplex {
            return None;
        }
        let first = self.t_rcv + 2 * (self.t_pci + self.t_handover) + self.t_snd;
        let departing = first + self.rest_times(self.t_pci.max(self.t_snd));
        let arriving = first + self.rest_times(self.t_rcv.max(self.t_pci));
        Some(departing.saturating_add(t_algo_h).max(arriving))
    }

    /// Returns T_N for store-and-forward: nb × T_rcv + T_algoN + nb × T_snd, the paper's
    /// 2 nb × T_net + T_algoN.
    ///
    /// # Source
    /// [fast-forward, §2.2].
    #[must_use]
    pub fn t_n_store_and_forward(&self, t_algo_n: Duration) -> Duration {
        (self.nb_times(self.t_rcv) + self.nb_times(self.t_snd)).saturating_add(t_algo_n)
    }

    /// Returns T_N for cut-through: max(T_rcv + T_algoN + nb × T_snd, nb × T_rcv + T_snd), the paper's
    /// (nb + 1) × T_net + T_algoN where both links are equal.
    ///
    /// The algorithm runs once, when the first packet is there; later packets arrive meanwhile. *Deviation:*
    /// links may differ; if the first is the slower one, the last packet may come after everything else
    /// is done.
    ///
    /// # Source
    /// [fast-forward, §2.2].
    #[must_use]
    pub fn t_n_cut_through(&self, t_algo_n: Duration) -> Duration {
        let departing = (self.t_rcv + self.nb_times(self.t_snd)).saturating_add(t_algo_n);
        departing.max(self.nb_times(self.t_rcv) + self.t_snd)
    }

    /// Returns the time of one message alone in the node on a path, with the algorithm's time there; `None` for
    /// cut-through by the host on a half-duplex bus.
    #[must_use]
    pub fn time(&self, path: Path, t_algo: Duration) -> Option<Duration> {
        match (path.placement, path.mode) {
            (Placement::Host, SwitchingMode::StoreAndForward) => Some(self.t_h(t_algo)),
            (Placement::Host, SwitchingMode::CutThrough) => self.t_h_cut_through(t_algo),
            (Placement::Nic, SwitchingMode::StoreAndForward) => {
                Some(self.t_n_store_and_forward(t_algo))
            }
            (Placement::Nic, SwitchingMode::CutThrough) => Some(self.t_n_cut_through(t_algo)),
        }
    }

    /// Returns δ*, the δ = T_algoN − T_algoH up to which the interface forwards one message no slower than
    /// the host (with store-and-forward, as in the paper):
    ///
    /// ```text
    /// store-and-forward   2 T_pci                      + what the max() terms of T_H exceed T_net by
    /// cut-through         2 T_pci + (nb − 1) × T_net   + the same
    /// ```
    /// It does not depend on T_algoH. With a window, see [`crossover`](Self::crossover).
    ///
    /// # Source
    /// [fast-forward, §2.3].
    #[must_use]
    pub fn delta_star(&self, mode: SwitchingMode) -> Duration {
        let t_n = match mode {
            SwitchingMode::StoreAndForward => self.t_n_store_and_forward(Duration::ZERO),
            // The branch in which T_algoN counts: T_H exceeds the other one by at least 2 T_pci.
            SwitchingMode::CutThrough => self.t_rcv + self.nb_times(self.t_snd),
        };
        self.t_h_moves().saturating_sub(t_n)
    }

    /// Returns δ* with this window: the largest δ for which the interface's period is no longer than the
    /// host's (with store-and-forward), given T_algoH. At window 1 it is [`delta_star`](Self::delta_star).
    ///
    /// # Source
    /// *Deviation:* the paper has no windows. With P the host's time per message, δ is bounded by
    /// T_N(T_algoH + δ) ≤ window × P and, since one processor runs one algorithm at a time,
    /// T_algoH + δ ≤ P.
    #[must_use]
    pub fn crossover(&self, mode: SwitchingMode, t_algo_h: Duration) -> Duration {
        self.crossover_to(mode, self.span(Placement::Host, self.t_h(t_algo_h), t_algo_h), t_algo_h)
    }

    /// The same, against a host from which as many messages as the window holds leave in `span`.
    pub(super) fn crossover_to(
        &self,
        mode: SwitchingMode,
        span: Duration,
        t_algo_h: Duration,
    ) -> Duration {
        let t_n = match mode {
            SwitchingMode::StoreAndForward => self.t_n_store_and_forward(t_algo_h),
            SwitchingMode::CutThrough => {
                (self.t_rcv + self.nb_times(self.t_snd)).saturating_add(t_algo_h)
            }
        };
        let by_time = span.saturating_sub(t_n.saturating_add(self.t_idle));
        let by_processor = (span / self.window).saturating_sub(self.engine());
        let by_processor = by_processor.saturating_sub(t_algo_h);
        let least = by_time.min(by_processor);
        if self.work.processors == 0 {
            return least;
        }
        // The total work on one message is at most what the processors can do in that time.
        let moving = self.nb_times(self.work.links);
        let by_shared = ((span / self.window) * self.work.processors).saturating_sub(moving);
        least.min(by_shared.saturating_sub(t_algo_h))
    }

    /// T_H without the algorithm.
    fn t_h_moves(&self) -> Duration {
        let arriving = self.t_rcv + self.rest_times(self.t_rcv.max(self.t_pci)) + self.t_pci;
        let departing = self.t_pci + self.rest_times(self.t_pci.max(self.t_snd)) + self.t_snd;
        arriving + 2 * self.t_handover + departing
    }

    /// nb(ℓ) × `time`.
    pub(super) fn nb_times(&self, time: Duration) -> Duration {
        time * self.message.nb()
    }

    /// (nb(ℓ) − 1) × `time`.
    fn rest_times(&self, time: Duration) -> Duration {
        time * (self.message.nb() - 1)
    }
}
