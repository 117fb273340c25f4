//! Results: rows of figures, how they are measured in turns, and how they are shown.

pub(crate) mod chart;
mod figure;
mod plan;
mod progress;
mod repetition;
mod row;
mod show;
mod table;

pub(crate) use self::figure::{Figure, largest, smallest};
#[cfg(test)]
pub(crate) use self::plan::planned;
pub(crate) use self::plan::{
    Amount, Case, Plan, SystemCase, Systems, Turns, by_default, measure, name_of,
};
pub(crate) use self::progress::Progress;
pub(crate) use self::repetition::{REACTION, Repetition, THREADS_MAX, Turn, WORK_PER_S};
pub(crate) use self::row::{Outcome, Report, Row, Subject, find};
pub(crate) use self::show::{Column, ECHO_COLUMNS, Show, failure_word, failures, lines, table};
pub(crate) use self::table::{Table, or_dash, three_digits, time};
