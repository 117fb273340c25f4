//! Keys of parameters and figures, and what rows are about.

use vigie_forward::Bandwidth;

use crate::report::Subject;

pub(super) const BYTES: &str = "bytes";
pub(super) const DELTA_US: &str = "delta_us";
pub(super) const WINDOW: &str = "window";
pub(super) const FLOWS: &str = "flows";
pub(super) const T_ALGO_US: &str = "t_algo_us";
pub(super) const MODEL_US: &str = "model_us";
pub(super) const SIMULATED_US: &str = "simulated_us";
pub(super) const TABLE_US: &str = "table_us";
pub(super) const MEASURED_US: &str = "measured_us";
pub(super) const MODEL_MB_S: &str = "model_mb_per_s";
pub(super) const SIMULATED_MB_S: &str = "simulated_mb_per_s";
pub(super) const MODEL_PERCENT: &str = "model_percent";
pub(super) const SIMULATED_PERCENT: &str = "simulated_percent";

pub(super) const NONE: Subject = Subject::Model { name: "no-forwarding", label: "no forwarding" };
pub(super) const HOST: Subject = Subject::Model { name: "host", label: "host" };
pub(super) const NIC: Subject = Subject::Model { name: "nic", label: "NIC, store-and-forward" };
pub(super) const NIC_CUT: Subject =
    Subject::Model { name: "nic-cut-through", label: "NIC, cut-through" };

pub(super) fn mb_per_s(bandwidth: Bandwidth) -> f64 {
    bandwidth.bytes_per_s() as f64 / 1e6
}
