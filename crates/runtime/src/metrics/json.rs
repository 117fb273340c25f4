//! A snapshot as one line of JSON.

use crate::{
    json::{FORMAT_VERSION, Object, list, task},
    measure::{CurrentPoll, Histogram, LaneMetrics, Metrics, ReserveMetrics, Throttling},
    sync::thread,
};

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
        server.number("polls", self.detection.polls);
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
        object.number("polls", detection.polls);
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
