//! What a detector is: the trait, and what its callbacks are given and return.
//!
//! [`Detector`] is where to begin. A detector reaches its server through a [`Site`], which knows it only as a
//! [`Home`]; what its requests are, the room `request` says.

mod address;
mod batch;
mod blocker;
mod contract;
mod flavor;
mod listener;
mod methods;
mod notice;
mod round;
mod site;

pub(crate) use address::{Address, HANDLES_MAX};
pub(crate) use batch::Batch;
pub use blocker::Blocker;
pub(crate) use blocker::{Call, Interrupt};
pub use contract::{Armed, Arming, Detector, Submitted};
pub use flavor::Flavor;
pub(crate) use listener::Listener;
pub use methods::Methods;
pub use notice::{Interest, Notice, Ready};
pub use round::{Emitted, Pending, Round};
pub(crate) use site::Home;
pub use site::{Bell, Site};

pub use crate::request::{Cancel, Key, Mode};
