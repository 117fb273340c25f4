//! Results: rows of figures, how they come about in turns, and how they are shown.

pub(crate) mod chart;
pub(crate) mod figure;
pub mod progress;
mod row;
pub(crate) mod show;
pub mod table;
pub(crate) mod turn;

pub use self::row::{Outcome, Report, Row, Subject, find};
