//! Strategies, the policies that choose among them, and what these decide from: history, costs, load.
//!
//! A [`Strategy`] is what the server does for one handle; a [`Policy`] is a pure function from the
//! [`Situation`] (flavor, methods, history, load) to a [`Decision`].

mod account;
mod adaptive;
mod cost;
mod history;
mod idle;
mod load;
mod reactivity;
mod stage;
mod strategies;
mod strategy;
mod waits;

pub(crate) use account::{Account, amount};
pub use adaptive::{Adaptive, Decision, Fixed, Policy, Situation};
pub use cost::Costs;
pub(crate) use cost::{CostMeter, of_threads};
pub use history::{History, Stakes};
pub(crate) use idle::IdlePeriod;
pub use load::Load;
pub(crate) use load::LoadMeter;
pub use reactivity::Reactivity;
pub use stage::{Peers, Stage, Step, WaitPlan, WaitSituation};
pub use strategies::{Strategies, Watch, strategies};
pub use strategy::{Frequency, Strategy};
pub(crate) use waits::Waits;
