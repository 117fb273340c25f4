//! Strategies, the policies that choose among them, and what these know: history, costs, load.

mod adaptive;
mod cost;
mod history;
mod idle;
mod load;
mod reactivity;
mod strategies;

pub use adaptive::{Adaptive, Decision, Fixed, Flavor, Frequency, Policy, Situation, Strategy};
pub use cost::Costs;
pub(crate) use cost::{CostMeter, nanos};
pub use history::{History, Stakes};
pub(crate) use idle::IdlePeriod;
pub use load::Load;
pub(crate) use load::LoadMeter;
pub use reactivity::Reactivity;
pub use strategies::{Strategies, Watch, strategies};
