//! Results: rows of figures, how they are measured in turns, and how they are shown.

pub(crate) mod chart;
pub(crate) mod figure;
pub mod progress;
pub(crate) mod repetition;
mod row;
pub(crate) mod show;
pub mod table;

pub use self::row::{Outcome, Report, Row, Subject, find};
