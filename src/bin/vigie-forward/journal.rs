//! The log: on standard error as it happens, and its last lines in `stats`.
//!
//! The libraries report degradation and loss to `tracing`; that is logged here too.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    io::{self, Write as _},
    sync::{Mutex, PoisonError},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::set_global_default,
};

/// The number of lines kept for `stats`.
const LINES_MAX: usize = 32;

static LINES: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Writes a line to the log.
pub(crate) fn log(what: impl AsRef<str>) {
    let what = what.as_ref();
    // `eprintln!` would panic once standard error is a closed pipe. One write: lines of `log_file` may go there, too.
    let _ = io::stderr().write_all(format!("vigie-forward: {what}\n").as_bytes());
    keep(what);
}

/// Adds a line to those of `stats` alone: standard error may block.
pub(crate) fn keep(what: &str) {
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    if lines.len() == LINES_MAX {
        lines.pop_front();
    }
    lines.push_back(what.to_owned());
}

/// Returns a number of things, of which `noun` is one.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns the last lines, the oldest first.
pub(crate) fn last_lines() -> Vec<String> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Logs the libraries' warnings from now on.
pub(crate) fn install_subscriber() {
    // This process sets no other subscriber.
    let _ = set_global_default(JournalSubscriber);
}

struct JournalSubscriber;

impl Subscriber for JournalSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let level = match metadata.target() {
            // The scheduler's advice is meant for authors of tasks.
            target if target.starts_with("vigie_runtime") => Level::ERROR,
            // After a failing target was logged, log its recovery too.
            "vigie_forward::relay::health" => Level::INFO,
            _ => Level::WARN,
        };
        metadata.is_event() && *metadata.level() <= level
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine::default();
        event.record(&mut line);
        log(line.flow + &line.message + &line.fields);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The flow, if the line is about one; the message, and the fields.
#[derive(Default)]
struct LogLine {
    flow: String,
    message: String,
    fields: String,
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            // Relays have the names of their flows.
            "relay" => write!(self.flow, "flow `{value:?}`: "),
            name => write!(self.fields, "; {name}: {value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: libraries' warnings are kept, with their fields, a relay's name first, and mere information is not. Method: one event of
    /// each level.
    #[test]
    fn warnings_are_said() {
        tracing::subscriber::with_default(JournalSubscriber, || {
            tracing::warn!(count = 3, "something is lost");
            tracing::warn!(count = 3, relay = %"web", "a target is gone");
            tracing::info!("nothing much");
            tracing::info!(target: "vigie_forward::relay::health", "something is back");
        });
        let lines = last_lines();
        assert!(lines.iter().any(|line| line == "something is lost; count: 3"), "{lines:?}");
        assert!(lines.iter().any(|line| line == "flow `web`: a target is gone; count: 3"));
        assert!(lines.iter().any(|line| line == "something is back"), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("nothing much")), "{lines:?}");
    }
}
