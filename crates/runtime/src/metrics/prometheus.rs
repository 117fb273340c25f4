//! A snapshot in the text format of Prometheus (version 0.0.4).

use std::{collections::BTreeMap, fmt};

use crate::measure::{Histogram, Metrics};

impl Metrics {
    /// Returns the numbers in Prometheus' text format: what a service answers at `/metrics`, with the content type
    /// `text/plain; version=0.0.4`. All names begin with `vigie_`; times are in seconds, and counters only grow.
    ///
    /// # Examples
    /// ```
    /// # vigie_runtime::Runtime::builder().build()?.block_on(async {
    /// let text = vigie_runtime::Handle::current().metrics().to_prometheus();
    /// assert!(text.contains("\nvigie_live_tasks 0\n"), "{text}");
    /// # });
    /// # Ok::<(), vigie_runtime::BuildError>(())
    /// ```
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut text = Text(String::new());
        text.gauge("live_tasks", "Tasks that have not ended.", self.live_tasks);
        text.gauge("workers", "Threads that run tasks, besides reserve threads.", self.workers);

        let lanes = [("reaction", self.reaction), ("compute", self.compute)];
        text.family("polls_total", "counter", "Polls of tasks, by lane.");
        for (lane, metrics) in lanes {
            text.sample("polls_total", format_args!("{{lane=\"{lane}\"}}"), metrics.polls);
        }
        text.family("poll_seconds_total", "counter", "Time in polls of tasks, by lane.");
        for (lane, metrics) in lanes {
            let labels = format_args!("{{lane=\"{lane}\"}}");
            text.sample("poll_seconds_total", labels, metrics.time.as_secs_f64());
        }

        let detection = self.detection;
        for (name, help, value) in [
            ("long_polls_total", "Polls longer than the builder's `long_poll`.", self.long_polls),
            ("hogs_total", "Polls longer than the builder's `quantum`.", self.hogs),
            ("detection_polls_total", "Polls for events.", detection.polls),
            ("detection_hits_total", "Polls that found an event.", detection.hits),
            ("detection_events_total", "Events delivered.", detection.events),
            ("detection_sleeps_total", "Sleeps until an event.", detection.sleeps),
        ] {
            text.family(name, "counter", help);
            text.sample(name, "", value);
        }
        let delay = "From an event to the poll of its task.";
        text.histogram("event_delay_seconds", delay, &self.event_delay);
        let delay = "From a wake-up by a task to the poll; one in about 16 is counted.";
        text.histogram("task_delay_seconds", delay, &self.task_delay);

        text.family("pending_requests", "gauge", "Pending requests, by the detector's name.");
        for (name, pending) in self.pending_by_name() {
            text.sample("pending_requests", format_args!("{{detector={name:?}}}"), pending);
        }
        if let Some(reserve) = self.reserve {
            let help = "Threads that stand in for workers inside long polls.";
            text.family("reserve_threads", "gauge", help);
            text.sample("reserve_threads", "{state=\"serving\"}", reserve.serving);
            text.sample("reserve_threads", "{state=\"spare\"}", reserve.spare);
        }
        if let Some(throttling) = self.throttling {
            let help = "Time for which the control group was stopped.";
            text.family("throttled_seconds_total", "counter", help);
            text.sample("throttled_seconds_total", "", throttling.throttled_time.as_secs_f64());
        }
        text.0
    }

    /// Several detectors may have one name, of which there must be one sample.
    fn pending_by_name(&self) -> BTreeMap<&'static str, usize> {
        let mut by_name = BTreeMap::new();
        for handle in &self.handles {
            *by_name.entry(handle.name).or_default() += handle.pending;
        }
        by_name
    }
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP vigie_{name} {help}\n# TYPE vigie_{name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: impl fmt::Display, value: impl fmt::Display) {
        self.line(format_args!("vigie_{name}{labels} {value}"));
    }

    fn gauge(&mut self, name: &str, help: &str, value: usize) {
        self.family(name, "gauge", help);
        self.sample(name, "", value);
    }

    /// The sum is that of the buckets' upper ends, since single times are not kept.
    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        let (mut below, mut sum, mut end) = (0_u64, 0.0, 1e-9);
        let (last, finite) = histogram.counts.split_last().expect("invariant: there are buckets");
        for &count in finite {
            below += count;
            #[expect(clippy::cast_precision_loss, reason = "the sum is a bound only")]
            let many = count as f64;
            sum += many * end;
            self.sample(name, format_args!("_bucket{{le=\"{end:e}\"}}"), below);
            end *= 2.0;
        }
        below += last;
        self.sample(name, "_bucket{le=\"+Inf\"}", below);
        self.sample(name, "_sum", sum);
        self.sample(name, "_count", below);
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0.push_str(&line.to_string());
        self.0.push('\n');
    }
}

#[cfg(test)]
mod tests {
    /// Goal: the text is what Prometheus reads: each sample after its family's type, no sample twice, buckets that only grow and
    /// whose last is the count. Method: each line of a histogram with three times and of a server's metrics.
    #[test]
    fn every_line_is_in_the_format() {
        let runtime = crate::Runtime::builder().workers(1).build().expect("a runtime");
        let mut metrics = runtime.handle().metrics();
        metrics.event_delay.counts[0] = 1;
        metrics.event_delay.counts[10] = 2;
        let text = metrics.to_prometheus();
        let (mut family, mut seen) = (String::new(), std::collections::BTreeSet::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a kind");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                family = name.to_owned();
            } else if !line.starts_with("# HELP ") {
                let (sample, value) = line.rsplit_once(' ').expect("a value");
                assert!(sample.starts_with(&family), "{line} in the family {family}");
                assert!(value.parse::<f64>().expect("a number") >= 0.0, "{line}");
                assert!(seen.insert(sample.to_owned()), "{line} is there twice");
            }
        }
        let buckets: Vec<u64> = text
            .lines()
            .filter_map(|line| line.strip_prefix("vigie_event_delay_seconds_bucket"))
            .map(|line| line.rsplit_once(' ').expect("a value").1.parse().expect("a count"))
            .collect();
        assert!(buckets.is_sorted() && buckets[0] == 1 && buckets.ends_with(&[3]), "{buckets:?}");
        assert!(text.contains("\nvigie_event_delay_seconds_count 3\n"), "{text}");
    }
}
