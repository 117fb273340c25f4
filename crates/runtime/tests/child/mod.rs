//! Tests that need a process of their own: they count threads, descriptors, system calls or
//! allocations, which tests beside them would disturb.

use std::{
    env,
    fmt::Write as _,
    fs,
    process::{Command, Stdio},
};

use crate::guard;

const VARIABLE: &str = "VIGIE_TEST_CHILD";

/// Runs `body` in a child process: this binary again, with the calling test alone. Returns what the
/// child wrote to its standard output; in the child itself, nothing is returned to.
///
/// # Panics
/// Panics in the parent if the child fails.
pub(crate) fn in_child(test: &str, body: impl FnOnce() + Send + 'static) -> Option<String> {
    if is_child(test) {
        guard::against_hang(body);
        return None;
    }
    let output = command(test).output().expect("the child starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut report = String::new();
    if !output.status.success() {
        write!(report, "{}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr))
            .expect("a string takes all");
    }
    assert!(output.status.success(), "the child of `{test}` failed: {report}");
    assert!(text.contains("1 passed"), "there is no test `{test}` in this binary: {text}");
    Some(text)
}

/// Returns whether this process is the child of `test`.
pub(crate) fn is_child(test: &str) -> bool {
    env::var_os(VARIABLE).is_some_and(|value| value == test)
}

/// Returns the command that runs the child of `test`.
pub(crate) fn command(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this binary has a path"));
    arguments(&mut command, test);
    command
}

/// Completes a command whose last argument names this binary.
pub(crate) fn arguments(command: &mut Command, test: &str) {
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, test)
        .stdin(Stdio::null());
}

/// Returns the number of threads of this process.
pub(crate) fn thread_count() -> usize {
    entries("/proc/self/task")
}

/// Returns the number of descriptors of this process, and one more, which the look itself takes.
pub(crate) fn descriptor_count() -> usize {
    entries("/proc/self/fd")
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).expect("/proc is there").count()
}
