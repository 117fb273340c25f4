//! Strategies, the policies that choose among them, and the inputs of a decision: history, costs,
//! load.
//!
//! A [`Strategy`] is how the server watches one handle; a [`Policy`] is a pure function from the
//! [`Situation`] (flavor, methods, history, load) to a [`Decision`].

mod adaptive;
mod backoff;
mod cost;
mod history;
mod idle;
mod load;
mod reactivity;
mod spin_balance;
mod spin_wait;
mod strategies;
mod strategy;
mod wait_history;

pub use adaptive::{Adaptive, Decision, Fixed, Policy, Situation};
pub use backoff::YieldBackoff;
pub use cost::Costs;
pub(crate) use cost::{CostMeter, of_threads};
pub use history::{History, SpinCosts};
pub(crate) use idle::IdlePeriod;
pub use load::Load;
pub(crate) use load::{LoadMeter, processor_count};
pub use reactivity::Reactivity;
pub(crate) use spin_balance::{SpinBalance, amount};
pub use spin_wait::{Peers, SpinStep, SpinWait, WaitPlan, WaitSituation};
pub use strategies::{Strategies, StrategyKind, strategies};
pub use strategy::{Frequency, Strategy};
pub(crate) use wait_history::WaitHistory;
