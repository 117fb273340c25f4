//! System calls of a process, counted or dated by `strace`.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::BenchError;

/// A file that strace writes; dropping this removes it.
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
        let mut command = Command::new("strace");
        command.args(["-o", "/dev/null", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// The command line that counts calls per name, of all threads.
    pub(crate) fn counting(&self) -> Vec<String> {
        self.command(&["-f", "-c", "-U", "calls,name"])
    }

    /// The command line that writes each call of all threads with its date.
    pub(crate) fn dating(&self) -> Vec<String> {
        self.command(&["-f", "-ttt"])
    }

    fn command(&self, options: &[&str]) -> Vec<String> {
        let file = self.path.display().to_string();
        let words = ["strace"].into_iter().chain(options.iter().copied()).chain(["-o", &file]);
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

/// The last line of `strace -c -U calls,name` is the sum.
fn total_calls(summary: &str) -> u64 {
    let total = summary.lines().rev().find(|line| line.trim_end().ends_with(" total"));
    total.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
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
        // Goal: the number of calls is found. Method: an output of strace 6.1.
        let summary = "    calls syscall\n--------- ----------------\n       37 mmap\n        4 clone3\n--------- ----------------\n       41 total\n";
        assert_eq!(total_calls(summary), 41);
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
