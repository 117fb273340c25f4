//! A live view of a running program, through the metrics socket that it opened.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use thiserror::Error;
use vigie_runtime::metrics::FORMAT_VERSION;

use crate::compute::parse_duration;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer that is accepted: the tasks of a program with some millions of them.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// Clears the screen and goes to its upper left corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// A program that cannot be watched.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WatchError {
    /// Nothing is there.
    #[error(
        "there is no socket {}: start the program with `Runtime::builder().metrics_socket(…)`, and \
         give the same path here",
        path.display()
    )]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// No program serves the socket.
    #[error("no program serves {}: the one that made it has ended; start it again", path.display())]
    Dead {
        /// Where.
        path: PathBuf,
    },
    /// Another user's.
    #[error("{} belongs to another user: run this as the one who runs the program", path.display())]
    Forbidden {
        /// Where.
        path: PathBuf,
    },
    /// The program ended while it was watched.
    #[error("the program has ended, or closed the connection")]
    Ended,
    /// Something else failed.
    #[error("cannot talk to {}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something else than vigie's metrics came.
    #[error("what serves there sends no metrics of vigie: is it the right socket?")]
    Foreign,
    /// Another version of the format.
    #[error(
        "the program sends format version {found}, and this command reads {FORMAT_VERSION}: use the \
         vigie-bench of the program's version of vigie"
    )]
    Version {
        /// What came.
        found: u64,
    },
    /// The program refused.
    #[error("the program refused: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// The standard output is gone.
    #[error("cannot write to the standard output")]
    Output(#[source] io::Error),
}

/// The view to show, and its format.
#[derive(Clone, Debug, Args)]
pub(crate) struct Watch {
    /// The path that the program gave to `Runtime::builder().metrics_socket(…)`.
    socket: PathBuf,
    /// Time between two views; ignored with --once.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_duration)]
    interval: Duration,
    /// Print one view and exit.
    #[arg(long)]
    once: bool,
    /// Print also the N tasks that have been in their state for longest, as `dump` does. In a program with the feature `stacks`,
    /// each view interrupts the threads that are inside a poll.
    #[arg(long, value_name = "N", default_value_t = 0)]
    tasks: usize,
    /// Print each snapshot as a line of JSON.
    #[arg(long, conflicts_with = "tasks")]
    json: bool,
}

impl Watch {
    /// Shows what the program does, until it ends or the standard output is closed. In a terminal each
    /// view takes the place of the last one; elsewhere each is one line.
    ///
    /// # Errors
    /// [`WatchError`]: no program, no metrics, another version, or the program's end.
    pub(crate) fn run(&self) -> Result<(), WatchError> {
        let mut source = MetricsConnection::connect(&self.socket)?;
        let is_screen = io::stdout().is_terminal();
        let mut last = None;
        loop {
            let line = source.ask("snapshot")?;
            let view = parse(&line, "vigie_metrics")?;
            let text = if self.json {
                line
            } else if is_screen || self.once {
                let clear = if is_screen && !self.once { CLEAR } else { "" };
                let tasks = self.longest_tasks(&mut source)?;
                format!("{clear}{}{tasks}", screen(&view, last.as_ref(), self.interval))
            } else {
                format!("{}\n", summary(&view))
            };
            let mut output = io::stdout().lock();
            match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
                Ok(()) => {}
                // The reader has closed its end.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(WatchError::Output(error)),
            }
            drop(output);
            if self.once {
                return Ok(());
            }
            last = Some(view);
            source.pause(self.interval)?;
        }
    }

    fn longest_tasks(&self, source: &mut MetricsConnection<'_>) -> Result<String, WatchError> {
        if self.tasks == 0 {
            return Ok(String::new());
        }
        let view = parse(&source.ask("tasks")?, "vigie_tasks")?;
        let shown = tasks(&view, self.tasks);
        let (_, tasks) = shown.split_once('\n').unwrap_or_default();
        Ok(format!("\ntasks, the longest in their state\n{tasks}"))
    }
}

/// The tasks of a program, once.
#[derive(Clone, Debug, Args)]
pub(crate) struct Dump {
    /// The path that the program gave to `Runtime::builder().metrics_socket(…)`.
    socket: PathBuf,
    /// Print a line of JSON instead of a table.
    #[arg(long)]
    json: bool,
}

impl Dump {
    /// Shows all tasks of the program, what each does, since when, and what it waits for. The program need not get to run its
    /// tasks for that: a thread of its own answers.
    ///
    /// # Errors
    /// Those of [`Watch::run`].
    pub(crate) fn run(&self) -> Result<(), WatchError> {
        let line = MetricsConnection::connect(&self.socket)?.ask("tasks")?;
        let view = parse(&line, "vigie_tasks")?;
        let shown = if self.json { line } else { tasks(&view, usize::MAX) };
        match io::stdout().lock().write_all(shown.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(WatchError::Output(error))
            }
            _ => Ok(()),
        }
    }
}

/// The tasks of a view, at most `limit` of them, after a line that counts all.
fn tasks(view: &Value, limit: usize) -> String {
    let tasks = view["tasks"].as_array().map_or(&[][..], Vec::as_slice);
    let mut shown = format!("vigie: pid {}, {} tasks\n", number(view, &["pid"]), tasks.len());
    for task in tasks.iter().take(limit) {
        let name = task["name"].as_str().map_or_else(String::new, |_| text(&task["name"]) + " ");
        let waits = task["waits_for"].as_array().map_or(&[][..], Vec::as_slice);
        let waits = waits.iter().map(text).collect::<Vec<_>>().join("; ");
        let (id, state, site) = (text(&task["id"]), text(&task["state"]), text(&task["site"]));
        let since = time(&task["since_ns"]);
        let _ = write!(shown, "{id:>6}  {state:<8}{since:>14}  {name}({site})");
        shown.push_str(&if waits.is_empty() {
            "\n".to_owned()
        } else {
            format!("  for {waits}\n")
        });
        for frame in task["stack"].as_array().into_iter().flatten() {
            let _ = writeln!(shown, "            in {}", text(frame));
        }
        if task["stack_is_complete"] == false {
            shown.push_str("            in … (the rest is not known)\n");
        }
        if task["no_stack"].is_string() {
            let _ =
                writeln!(shown, "            stack: not available: {}", text(&task["no_stack"]));
        }
    }
    shown
}

struct MetricsConnection<'a> {
    path: &'a Path,
    stream: BufReader<UnixStream>,
}

impl<'a> MetricsConnection<'a> {
    fn connect(path: &'a Path) -> Result<Self, WatchError> {
        let stream = UnixStream::connect(path).map_err(|source| {
            let path = path.to_owned();
            match source.kind() {
                io::ErrorKind::NotFound => WatchError::Missing { path },
                io::ErrorKind::ConnectionRefused => WatchError::Dead { path },
                io::ErrorKind::PermissionDenied => WatchError::Forbidden { path },
                _ => WatchError::Io { path, source },
            }
        })?;
        let source = Self { path, stream: BufReader::new(stream) };
        source.set_timeout(TIMEOUT)?;
        Ok(source)
    }

    fn failed(&self, source: io::Error) -> WatchError {
        match source.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => WatchError::Ended,
            _ => WatchError::Io { path: self.path.to_owned(), source },
        }
    }

    fn set_timeout(&self, timeout: Duration) -> Result<(), WatchError> {
        let stream = self.stream.get_ref();
        let set = stream.set_read_timeout(Some(timeout));
        set.and_then(|()| stream.set_write_timeout(Some(TIMEOUT))).map_err(|e| self.failed(e))
    }

    fn ask(&mut self, request: &str) -> Result<String, WatchError> {
        // A program that serves eight readers already has answered, and closed the connection.
        let sent = self.stream.get_mut().write_all(format!("{request}\n").as_bytes());
        let mut line = String::new();
        let read = (&mut self.stream).take(ANSWER_BYTES_MAX).read_line(&mut line);
        match read {
            Ok(_) if line.ends_with('\n') => Ok(line),
            Ok(0) => Err(WatchError::Ended),
            Ok(_) => Err(WatchError::Foreign),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(WatchError::Foreign),
            Err(error) => Err(self.failed(sent.err().unwrap_or(error))),
        }
    }

    /// Lets `time` pass, or less if the program ends.
    fn pause(&mut self, time: Duration) -> Result<(), WatchError> {
        self.set_timeout(time.max(Duration::from_millis(1)))?;
        let waited = self.stream.fill_buf().map(<[u8]>::is_empty);
        match waited {
            Ok(true) => return Err(WatchError::Ended),
            Ok(false) => return Err(WatchError::Foreign),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(self.failed(error)),
        }
        self.set_timeout(TIMEOUT)
    }
}

/// Reads an answer whose version is at `key`.
fn parse(line: &str, key: &str) -> Result<Value, WatchError> {
    let view: Value = serde_json::from_str(line).map_err(|_| WatchError::Foreign)?;
    // A refusal has the version of the metrics.
    let found = view[key].as_u64().or_else(|| view["vigie_metrics"].as_u64());
    let found = found.ok_or(WatchError::Foreign)?;
    if found != u64::from(FORMAT_VERSION) {
        return Err(WatchError::Version { found });
    }
    match view["error"].as_str() {
        Some(reason) => Err(WatchError::Refused { reason: reason.to_owned() }),
        None => Ok(view),
    }
}

/// The number at `path`, or zero.
fn number(view: &Value, path: &[&str]) -> u64 {
    path.iter().fold(view, |view, name| &view[*name]).as_u64().unwrap_or(0)
}

/// Text of the program's, without what a terminal would take for a command.
fn text(value: &Value) -> String {
    let text = value.as_str().unwrap_or("?");
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn time(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), |ns| format!("{:?}", Duration::from_nanos(ns)))
}

fn summary(view: &Value) -> String {
    let delay = &view["event_delay"];
    format!(
        "pid {} live {} polls {}+{} long {} hogs {} event-delay p50 {} p99 {} reserve {} events {}",
        number(view, &["pid"]),
        number(view, &["live_tasks"]),
        number(view, &["reaction", "polls"]),
        number(view, &["compute", "polls"]),
        number(view, &["long_polls"]),
        number(view, &["hogs"]),
        time(&delay["p50_ns"]),
        time(&delay["p99_ns"]),
        number(view, &["reserve", "serving"]),
        number(view, &["detection", "events"]),
    )
}

/// A screenful. Rates are against `last`, `interval` ago.
fn screen(view: &Value, last: Option<&Value>, interval: Duration) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    let rate = |path: &[&str]| match last {
        Some(last) => {
            let change = number(view, path).saturating_sub(number(last, path));
            format!("{:.0}/s", change as f64 / interval.as_secs_f64())
        }
        None => "-".to_owned(),
    };
    line(format!(
        "vigie: pid {}, {}, {} workers on {} processors, {} tasks",
        number(view, &["pid"]),
        text(&view["flavor"]),
        number(view, &["workers"]),
        number(view, &["available_parallelism"]),
        number(view, &["live_tasks"])
    ));
    for lane in ["reaction", "compute"] {
        let (polls, nanos) = (number(view, &[lane, "polls"]), &view[lane]["time_ns"]);
        line(format!("{lane:<9} {polls} polls ({}), {}", rate(&[lane, "polls"]), time(nanos)));
    }
    for (name, label) in [("event_delay", "by event"), ("task_delay", "by task")] {
        let delay = &view[name];
        line(format!(
            "ready to run, {label:<8}: {} times, p50 {} p99 {} p99.9 {}",
            number(delay, &["count"]),
            time(&delay["p50_ns"]),
            time(&delay["p99_ns"]),
            time(&delay["p999_ns"])
        ));
    }
    let detection = |name| number(view, &["detection", name]);
    line(format!(
        "detection: {} polls ({}), {} hits, {} events, {} sleeps",
        detection("polls"),
        rate(&["detection", "polls"]),
        detection("hits"),
        detection("events"),
        detection("sleeps")
    ));
    if view["reserve"].is_object() {
        let reserve = |name| number(view, &["reserve", name]);
        let sentinel = view["reserve"]["has_sentinel"].as_bool() == Some(true);
        line(format!(
            "reserve: {} serving{}, {} spare of {}; {} calls, {} new threads, {} refused",
            reserve("serving"),
            if sentinel { " (one watches)" } else { "" },
            reserve("spare"),
            reserve("limit"),
            reserve("calls"),
            reserve("new_threads"),
            reserve("refused")
        ));
    }
    if view["throttling"].is_object() {
        line(format!(
            "quota: throttled in {} of {} periods, {}",
            number(view, &["throttling", "throttled_periods"]),
            number(view, &["throttling", "periods"]),
            time(&view["throttling"]["throttled_ns"])
        ));
    }
    out.push_str(&lists(view));
    out
}

fn lists(view: &Value) -> String {
    let mut out = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| {
        out.write_fmt(text).and_then(|()| out.write_char('\n')).expect("a string takes everything");
    };
    let list = |name: &str| view[name].as_array().map_or(&[][..], Vec::as_slice);
    line(format_args!("\nthreads"));
    for (index, thread) in list("threads").iter().enumerate() {
        let kind = if thread["is_reserve"] == true { "reserve" } else { "worker" };
        let polls = number(thread, &["polls"]);
        let current = &thread["current"];
        if current.is_object() {
            let (task, elapsed) = (task(current), time(&current["elapsed_ns"]));
            line(format_args!(
                "  {index:>3} {kind:<8} {polls:>12} polls, now {task} for {elapsed}"
            ));
        } else {
            line(format_args!("  {index:>3} {kind:<8} {polls:>12} polls"));
        }
    }
    line(format_args!("\nhandles"));
    for handle in list("handles") {
        line(format_args!(
            "  {:<12} {:<12} pending {:>6}, {} polls, {} hits, {} events",
            text(&handle["name"]),
            text(&handle["strategy"]),
            number(handle, &["pending"]),
            number(handle, &["polls"]),
            number(handle, &["hits"]),
            number(handle, &["events"])
        ));
    }
    let counts = (number(view, &["long_polls"]), number(view, &["hogs"]));
    line(format_args!("\nlong polls: {}, hogs: {}; the latest:", counts.0, counts.1));
    for poll in list("latest_long_polls").iter().rev() {
        let (lane, duration) = (text(&poll["lane"]), time(&poll["duration_ns"]));
        line(format_args!("  {duration:>14} {lane:<8} {}", task(poll)));
    }
    out
}

/// A task by its name and its place.
fn task(value: &Value) -> String {
    let site = text(&value["site"]);
    if value["name"].is_string() { format!("{} ({site})", text(&value["name"])) } else { site }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what comes from a stranger, a refusal and another version are told apart. Method: lines.
    #[test]
    fn answers_are_checked() {
        assert!(matches!(parse("hello\n", "vigie_metrics"), Err(WatchError::Foreign)));
        assert!(matches!(parse("{\"a\":1}", "vigie_metrics"), Err(WatchError::Foreign)));
        assert!(matches!(
            parse("{\"vigie_metrics\":99}", "vigie_metrics"),
            Err(WatchError::Version { found: 99 })
        ));
        let refused = parse(
            &format!("{{\"vigie_metrics\":{FORMAT_VERSION},\"error\":\"later\"}}"),
            "vigie_metrics",
        );
        assert!(matches!(refused, Err(WatchError::Refused { reason }) if reason == "later"));
        assert!(parse(&format!("{{\"vigie_metrics\":{FORMAT_VERSION}}}"), "vigie_metrics").is_ok());
    }

    /// Goal: a dump shows the stack of a task that is in a poll, or why there is none, and nothing for others. Method: four tasks.
    #[test]
    fn stacks_are_shown_below_their_task() {
        let task = |stack: &str| {
            let text = format!(
                "{{\"id\":\"7\",\"name\":\"t\",\"site\":\"a.rs:1:1\",\"state\":\"running\",\"since_ns\":null,\
                 \"waits_for\":[]{stack}}}"
            );
            let task: Value = serde_json::from_str(&text).expect("it is JSON");
            let view = serde_json::json!({ "pid": 1, "tasks": [task] });
            let shown = tasks(&view, 1);
            assert_eq!(tasks(&view, 0).lines().count(), 1, "all are counted");
            shown.lines().skip(2).map(str::trim).map(str::to_owned).collect::<Vec<_>>()
        };
        let stack = |is_complete| {
            format!(",\"stack\":[\"f at a.rs:2\",\"g\"],\"stack_is_complete\":{is_complete}")
        };
        assert_eq!(task(&stack(true)), ["in f at a.rs:2", "in g"]);
        let rest = "in … (the rest is not known)";
        assert_eq!(task(&stack(false)), ["in f at a.rs:2", "in g", rest]);
        let ended = task(",\"no_stack\":\"the poll has ended\"");
        assert_eq!(ended, ["stack: not available: the poll has ended"]);
        assert!(task("").is_empty());
    }

    /// Goal: a program cannot command the terminal through a task's name. Method: an escape sequence.
    #[test]
    fn escapes_are_not_shown() {
        let view = serde_json::json!({
            "latest_long_polls": [{ "name": "\u{1b}[2Jx", "site": "a.rs:1:1", "lane": "compute" }]
        });
        let shown = screen(&view, None, Duration::from_secs(1));
        assert!(shown.contains("?[2Jx (a.rs:1:1)") && !shown.contains('\u{1b}'), "{shown}");
    }
}
