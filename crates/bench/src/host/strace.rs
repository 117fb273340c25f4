//! System calls of a process: counted by `perf`, which does not slow it, or else by `strace`; dated by `strace`.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::BenchError;

/// A file that perf or strace writes; dropping this removes it.
#[derive(Debug)]
pub(crate) struct Trace {
    path: PathBuf,
}

impl Trace {
    /// Chooses a new file in the directory for temporary files.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            path: env::temp_dir().join(format!("vigie-bench-{}-{number}.strace", process::id())),
        }
    }

    /// Tells whether strace is installed and may trace here.
    pub(crate) fn is_possible() -> bool {
        succeeds(&["strace"])
    }

    /// The command line that counts the calls of all threads; `None` where nothing can count them.
    ///
    /// A call that strace stops takes 20 µs and more, and a scheduler that measures what polls take makes more calls for that.
    /// So the kernel counts, where perf is installed and may ask it to.
    pub(crate) fn counting(&self) -> Option<Vec<String>> {
        const PERF: [&str; 5] = ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter"];
        if succeeds(&PERF) {
            return Some(self.command(&PERF));
        }
        Self::is_possible().then(|| self.command(&["strace", "-f", "-c", "-U", "calls,name"]))
    }

    /// The command line that writes each call of all threads with its date.
    pub(crate) fn dating(&self) -> Vec<String> {
        self.command(&["strace", "-f", "-ttt"])
    }

    fn command(&self, words: &[&str]) -> Vec<String> {
        let file = self.path.display().to_string();
        let words = words.iter().copied().chain(["-o", &file]);
        words.map(str::to_owned).collect()
    }

    /// Returns the sum of a [`counting`](Self::counting) trace.
    pub(crate) fn total_calls(&self) -> Result<u64, BenchError> {
        self.read().map(|text| total_calls(&text))
    }

    /// Returns the calls of a [`dating`](Self::dating) trace that began or ended in a span of time
    /// since the epoch.
    pub(crate) fn calls_between(
        &self,
        from: Duration,
        to: Duration,
    ) -> Result<Vec<String>, BenchError> {
        self.read().map(|text| calls_between(&text, from, to))
    }

    fn read(&self) -> Result<String, BenchError> {
        fs::read_to_string(&self.path)
            .map_err(|source| BenchError::File { path: self.path.clone(), source })
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // There is no file if strace never ran.
        let _ = fs::remove_file(&self.path);
    }
}

/// Tells whether the tracer with these arguments may trace a program here.
fn succeeds(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["-o", "/dev/null", "true"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The last line of `strace -c -U calls,name` is the sum, and so is the only one of `perf stat -x,`.
fn total_calls(summary: &str) -> u64 {
    let is_sum =
        |line: &&str| line.trim_end().ends_with(" total") || line.contains(",raw_syscalls:");
    let total = summary.lines().rev().find(is_sum);
    let count = |line: &str| line.split([' ', ',']).find(|word| !word.is_empty())?.parse().ok();
    total.and_then(count).unwrap_or(0)
}

/// A line of `strace -f -ttt` is "process seconds.microseconds call".
fn calls_between(trace: &str, from: Duration, to: Duration) -> Vec<String> {
    let dated = trace.lines().filter_map(|line| {
        let (_process, rest) = line.split_once(' ')?;
        let (date, call) = rest.trim_start().split_once(' ')?;
        let date = Duration::try_from_secs_f64(date.parse().ok()?).ok()?;
        (from..to).contains(&date).then(|| call.to_owned())
    });
    dated.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_a_summary() {
        // Goal: the number of calls is found. Method: outputs of strace 6.1 and perf 6.1.
        let summary = "    calls syscall\n--------- ----------------\n       37 mmap\n        4 clone3\n--------- ----------------\n       41 total\n";
        assert_eq!(total_calls(summary), 41);
        let summary = "# started on Fri Nov 27 21:58:40 2026\n\n2964,,raw_syscalls:sys_enter,108605000,100.00,,\n";
        assert_eq!(total_calls(summary), 2964);
        assert_eq!(total_calls(""), 0);
    }

    #[test]
    fn the_calls_of_a_span() {
        // Goal: calls before and after the span are left out. Method: an output of strace 6.1.
        let trace = "7  10.500000 epoll_wait(3 <unfinished ...>\n8  11.250000 read(0, \n7  12.000001 <... epoll_wait resumed>) = 0\n";
        let calls =
            |from, to| calls_between(trace, Duration::from_secs(from), Duration::from_secs(to));
        assert_eq!(calls(11, 12), ["read(0, "]);
        assert_eq!(calls(10, 13).len(), 3);
        assert!(calls(13, 20).is_empty());
    }
}
