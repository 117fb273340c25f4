//! A snapshot as one line of JSON. Written by hand: the fields are few, and the runtime needs no other text
//! format.

use std::{fmt::Write, panic::Location, time::Duration};

use crate::{
    measure::{CurrentPoll, Histogram, LaneMetrics, Metrics, ReserveMetrics, Throttling},
    sync::{Arc, thread},
};

/// The version of the format. It is raised when a field is removed or changes its meaning; readers must
/// accept unknown fields.
pub const FORMAT_VERSION: u32 = 1;

impl Metrics {
    /// Returns the numbers as one line of JSON without a line feed, in the format that
    /// [`serve`](super::serve) documents.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut object = Object::new();
        object.number("vigie_metrics", u64::from(FORMAT_VERSION));
        object.number("pid", u64::from(std::process::id()));
        object.string("flavor", &self.flavor.to_string());
        object.number("workers", self.workers as u64);
        let parallelism = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        object.number("available_parallelism", parallelism as u64);
        object.number("live_tasks", self.live_tasks as u64);
        object.raw("reaction", &lane(self.reaction));
        object.raw("compute", &lane(self.compute));
        object.number("long_polls", self.long_polls);
        object.number("hogs", self.hogs);
        object.raw(
            "latest_long_polls",
            &list(&self.latest_long_polls, |poll| {
                let mut object = task(poll.name.as_ref(), poll.site);
                object.string("lane", &poll.lane.to_string());
                object.nanos("duration_ns", poll.duration);
                object.end()
            }),
        );
        object.raw("event_delay", &histogram(&self.event_delay));
        object.raw("task_delay", &histogram(&self.task_delay));
        object.raw(
            "threads",
            &list(&self.threads, |thread| {
                let mut object = Object::new();
                object.raw("is_reserve", if thread.is_reserve { "true" } else { "false" });
                object.number("polls", thread.polls);
                object.number("sleeps", thread.sleeps);
                let current = thread.current.as_ref();
                object.raw("current", &current.map_or_else(null, current_poll));
                object.end()
            }),
        );
        object.raw("reserve", &self.reserve.map_or_else(null, reserve));
        let mut server = Object::new();
        server.number("rounds", self.detection.rounds);
        server.number("hits", self.detection.hits);
        server.number("events", self.detection.events);
        server.number("sleeps", self.detection.sleeps);
        object.raw("detection", &server.end());
        object.raw("handles", &list(&self.handles, handle));
        object.raw("throttling", &self.throttling.map_or_else(null, throttling));
        object.end()
    }
}

fn null() -> String {
    "null".to_owned()
}

fn lane(lane: LaneMetrics) -> String {
    let mut object = Object::new();
    object.number("polls", lane.polls);
    object.nanos("time_ns", lane.time);
    object.end()
}

fn current_poll(poll: &CurrentPoll) -> String {
    let mut object = task(poll.name.as_ref(), poll.site);
    object.nanos("elapsed_ns", poll.elapsed);
    object.end()
}

fn reserve(reserve: ReserveMetrics) -> String {
    let mut object = Object::new();
    object.number("serving", reserve.serving as u64);
    object.number("spare", reserve.spare as u64);
    object.number("limit", reserve.limit as u64);
    object.raw("has_sentinel", if reserve.has_sentinel { "true" } else { "false" });
    object.number("calls", reserve.calls);
    object.number("new_threads", reserve.new_threads);
    object.number("refused", reserve.refused);
    object.end()
}

fn handle(report: &vigie_detect::HandleReport) -> String {
    let mut object = Object::new();
    object.string("name", report.name);
    object.number("pending", report.pending as u64);
    if let Some(detection) = report.detection {
        object.string("strategy", &detection.strategy.to_string());
        object.number("rounds", detection.rounds);
        object.number("hits", detection.hits);
        object.number("events", detection.events);
    }
    object.end()
}

fn throttling(throttling: Throttling) -> String {
    let mut object = Object::new();
    object.number("periods", throttling.periods);
    object.number("throttled_periods", throttling.throttled_periods);
    object.nanos("throttled_ns", throttling.throttled_time);
    object.end()
}

fn histogram(histogram: &Histogram) -> String {
    let mut object = Object::new();
    object.number("count", histogram.count());
    for (name, percent) in [("p50_ns", 50.0), ("p99_ns", 99.0), ("p999_ns", 99.9)] {
        match histogram.percentile(percent) {
            Some(time) => object.nanos(name, time),
            None => object.raw(name, "null"),
        }
    }
    object.raw("buckets", &list(histogram.buckets(), u64::to_string));
    object.end()
}

pub(super) fn task(name: Option<&Arc<str>>, site: &Location<'_>) -> Object {
    let mut object = Object::new();
    match name {
        Some(name) => object.string("name", name),
        None => object.raw("name", "null"),
    }
    object.string("site", &site.to_string());
    object
}

pub(super) fn list<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    let items: Vec<_> = items.iter().map(show).collect();
    format!("[{}]", items.join(","))
}

pub(super) struct Object(String);

impl Object {
    pub(super) const fn new() -> Self {
        Self(String::new())
    }

    pub(super) fn raw(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        quote(&mut self.0, name);
        self.0.push(':');
        self.0.push_str(value);
    }

    pub(super) fn number(&mut self, name: &str, value: u64) {
        self.raw(name, &value.to_string());
    }

    pub(super) fn nanos(&mut self, name: &str, time: Duration) {
        self.number(name, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn string(&mut self, name: &str, value: &str) {
        self.raw(name, &text(value));
    }

    pub(super) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// Returns a JSON string.
pub(super) fn text(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quote(&mut quoted, value);
    quoted
}

/// Appends a JSON string.
fn quote(text: &mut String, value: &str) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            c if u32::from(c) < 0x20 || c == '\u{7f}' => {
                write!(text, "\\u{:04x}", u32::from(c)).expect("a string takes everything");
            }
            c => text.push(c),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no task's name can break the line or the string that it stands in. Method: what JSON
    /// forbids in strings.
    #[test]
    fn names_are_quoted() {
        let mut object = Object::new();
        object.string("a", "line\nquote\" back\\ tab\t é \u{1b}[2J");
        object.number("b", 7);
        let expected = "{\"a\":\"line\\u000aquote\\\" back\\\\ tab\\u0009 é \\u001b[2J\",\"b\":7}";
        assert_eq!(object.end(), expected);
    }
}
