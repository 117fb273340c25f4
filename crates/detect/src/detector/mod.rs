//! Detectors: the trait, and the types that its callbacks take and return.
//!
//! [`Detector`] is where to begin. A detector reaches its server through a [`DriverHandle`], which knows the server
//! only as a [`Registry`]; its requests are described in the module `request`.

mod address;
mod blocker;
mod contract;
mod driver_handle;
mod flavor;
mod methods;
mod poll_context;
mod readiness_event;
mod signal_listener;
mod wake_list;

pub(crate) use address::{HANDLES_MAX, HandleAddress};
pub use blocker::Blocker;
pub(crate) use blocker::{Call, Interrupt};
pub use contract::{ArmOutcome, Arming, Detector, SubmitOutcome};
pub use driver_handle::{DriverHandle, Notifier};
pub(crate) use driver_handle::{Registry, Watch};
pub use flavor::Flavor;
pub use methods::Methods;
pub use poll_context::{EmitOutcome, Pending, PollContext};
pub use readiness_event::{Interest, PollerEvent, Ready};
pub(crate) use signal_listener::SignalListener;
pub(crate) use wake_list::WakeList;

pub use crate::request::{CancelOutcome, Key, Mode};
