//! What a detector is: the trait, and what its callbacks are given and return.

mod contract;
mod site;

pub use contract::{
    Armed, Arming, Cancel, Detector, Emitted, Key, Methods, Mode, Notice, Pending, Ready, Round,
    Submitted,
};
pub use site::{Bell, Site};
