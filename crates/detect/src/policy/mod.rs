//! Strategies, the policies that choose among them, and what these decide from: history, costs, load.
//!
//! A [`Strategy`] is what the server does for one handle; a [`Policy`] is a pure function from the
//! [`Situation`] (flavor, methods, history, load) to a [`Decision`].

mod adaptive;
mod cost;
mod history;
mod idle;
mod load;
mod reactivity;
mod strategies;
mod strategy;

pub use adaptive::{Adaptive, Decision, Fixed, Policy, Situation};
pub(crate) use cost::CostMeter;
pub use cost::Costs;
pub use history::{History, Stakes};
pub(crate) use idle::IdlePeriod;
pub use load::Load;
pub(crate) use load::LoadMeter;
pub use reactivity::Reactivity;
pub use strategies::{Strategies, Watch, strategies};
pub use strategy::{Frequency, Strategy};
