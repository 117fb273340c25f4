//! Tests that need a process of their own: they count threads, descriptors, system calls or
//! allocations, which tests beside them would disturb.

use std::{
    env,
    process::{Command, Stdio},
};

use crate::guard;

const VARIABLE: &str = "VIGIE_TEST_CHILD";

/// Runs `body` in a child process: this binary again, with the test of this name alone.
///
/// # Panics
/// Panics in the parent if the child fails.
pub(crate) fn in_child(test: &str, body: impl FnOnce() + Send + 'static) {
    in_child_under(&[], test, body);
}

/// Like [`in_child`], under a program that is given the child's command line. Returns what both wrote
/// to their standard output; in the child, nothing.
pub(crate) fn in_child_under(
    program: &[&str],
    test: &str,
    body: impl FnOnce() + Send + 'static,
) -> String {
    if env::var_os(VARIABLE).is_some_and(|value| value == test) {
        guard::against_hang(body);
        return String::new();
    }
    let this = env::current_exe().expect("this binary has a path");
    let mut command = match program {
        [] => Command::new(this),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(this);
            command
        }
    };
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    let output = command.env(VARIABLE, test).stdin(Stdio::null()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the child of `{test}`: {}\n{text}\n{errors}", output.status);
    assert!(text.contains("1 passed"), "there is no test `{test}` in this binary: {text}");
    text
}
