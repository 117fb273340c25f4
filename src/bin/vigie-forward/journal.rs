//! What is said to the user: on standard error as it happens, and the last of it in `stats`.
//!
//! The libraries tell `tracing` of what is degraded or lost; that is said here too.

use std::{
    collections::VecDeque,
    fmt::{self, Write},
    sync::{Mutex, PoisonError},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::set_global_default,
};

/// Lines that are kept for `stats`.
const LINES_MAX: usize = 32;

static LINES: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Says something.
pub(crate) fn say(what: impl AsRef<str>) {
    let what = what.as_ref();
    eprintln!("vigie-forward: {what}");
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    if lines.len() == LINES_MAX {
        lines.pop_front();
    }
    lines.push_back(what.to_owned());
}

/// Returns what was said last, the oldest first.
pub(crate) fn last_lines() -> Vec<String> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Says from now on what the libraries warn of.
pub(crate) fn listen_to_libraries() {
    // Nobody else has set one in this process.
    let _ = set_global_default(Warnings);
}

struct Warnings;

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let level = match metadata.target() {
            // The scheduler's advice is for whoever writes tasks.
            target if target.starts_with("vigie_runtime") => Level::ERROR,
            // Whoever was told that a target fails is told that it is back.
            "vigie_forward::relay::health" => Level::INFO,
            _ => Level::WARN,
        };
        metadata.is_event() && *metadata.level() <= level
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        say(line.message + &line.fields);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message, and the fields behind it.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "; {name}: {value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what libraries warn of is kept, with its fields, and what they merely tell is not. Method: one event of
    /// each level.
    #[test]
    fn warnings_are_said() {
        tracing::subscriber::with_default(Warnings, || {
            tracing::warn!(count = 3, "something is lost");
            tracing::info!("nothing much");
            tracing::info!(target: "vigie_forward::relay::health", "something is back");
        });
        let lines = last_lines();
        assert!(lines.iter().any(|line| line == "something is lost; count: 3"), "{lines:?}");
        assert!(lines.iter().any(|line| line == "something is back"), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("nothing much")), "{lines:?}");
    }
}
