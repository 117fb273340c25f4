//! The model of forwarding [fast-forward, §2], in the paper's symbols.
//!
//! | symbol | here |
//! | --- | --- |
//! | ℓ, nb(ℓ), sz(ℓ) | [`Message`]: [`bytes`](Message::bytes), [`nb`](Message::nb), [`sz`](Message::sz) |
//! | T_rcv(sz), T_snd(sz), T_pci(sz) | [`Parameters`], times of one packet |
//! | T_net | T_rcv and T_snd if they are equal: [`ParametersBuilder::t_net`] |
//! | T_algoH, T_algoN | arguments of the formulas: the rest does not depend on the algorithm |
//! | T_H | [`Parameters::t_h`] |
//! | T_N | [`Parameters::t_n_store_and_forward`], [`Parameters::t_n_cut_through`] |
//! | δ = T_algoN − T_algoH | `delta_ns`, signed |
//! | δ* | [`Parameters::delta_star`] |
//!
//! The paper's times are those of one message alone in the node; [`Parameters::predict`] extends them to a window of
//! several: see [`Prediction`].

mod formulas;
mod message;
mod parameters;
mod path;
mod planner;
mod prediction;
mod stage;
mod sweep;
#[cfg(test)]
mod tests;

pub use self::message::{Message, PACKETS_MAX};
pub use self::parameters::{
    Bus, Node, Parameters, ParametersBuilder, SharedProcessors, WINDOW_MAX,
};
pub use self::path::{Path, Placement, SwitchingMode};
pub use self::planner::{Candidate, Plan, Refusal};
pub use self::prediction::{Limit, Prediction};
pub use self::stage::{Sees, StageModel, Writes};
pub use self::sweep::SweepPoint;
