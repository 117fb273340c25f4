//! Predictions as functions of δ: the curves of figures 5 and 6 of [fast-forward, §3.4].

use std::time::Duration;

use super::parameters::Parameters;
use super::path::Path;
use super::prediction::Prediction;

/// The predictions of every path for one δ = T_algoN − T_algoH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepPoint {
    /// δ, by which the interface is slower.
    pub delta: Duration,
    /// The paper's HP forwarding, which does not depend on δ.
    pub host: Prediction,
    /// NP forwarding, store-and-forward.
    pub nic: Prediction,
    /// NP forwarding, cut-through.
    pub nic_cut_through: Prediction,
}

impl Parameters {
    /// Predicts the paper's three paths for each δ, with T_algoN = T_algoH + δ.
    pub fn sweep(
        &self,
        t_algo_h: Duration,
        deltas: impl IntoIterator<Item = Duration>,
    ) -> impl Iterator<Item = SweepPoint> {
        let parameters = *self;
        deltas.into_iter().filter_map(move |delta| {
            let t_algo_n = t_algo_h.saturating_add(delta);
            Some(SweepPoint {
                delta,
                host: parameters.predict(Path::HOST, t_algo_h)?,
                nic: parameters.predict(Path::NIC, t_algo_n)?,
                nic_cut_through: parameters.predict(Path::NIC_CUT_THROUGH, t_algo_n)?,
            })
        })
    }
}
