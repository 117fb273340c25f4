//! Tests that need a process of their own: they change what a process has once, or count threads, descriptors, system calls or
//! allocations, which tests beside them would disturb.

use std::{
    env,
    process::{Command, Stdio},
};

use super::guard;

const VARIABLE: &str = "VIGIE_TEST_CHILD";
const ROLE: &str = "VIGIE_TEST_ROLE";

/// Runs `body` in a child process: this binary again, with the test of this name alone.
///
/// # Panics
/// Panics in the parent if the child fails.
pub(crate) fn in_child(test: &str, body: impl FnOnce() + Send + 'static) {
    if is_child(test) {
        guard::against_hang(body);
    } else {
        run(command(&[], test), test);
    }
}

/// Returns whether this process is the child of `test`.
pub(crate) fn is_child(test: &str) -> bool {
    env::var_os(VARIABLE).is_some_and(|value| value == test)
}

/// Returns the command of the child of `test`, under a program that is given the child's command line. The test runs even if it is
/// ignored.
pub(crate) fn command(program: &[&str], test: &str) -> Command {
    let this = env::current_exe().expect("this binary has a path");
    let mut command = match program {
        [] => Command::new(this),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(this);
            command
        }
    };
    command.args([test, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"]);
    command.env(VARIABLE, test).stdin(Stdio::null());
    command
}

/// Returns the command of the child of `test` in a role, for tests that need several children or several kinds of them.
pub(crate) fn command_in(role: &str, program: &[&str], test: &str) -> Command {
    let mut command = command(program, test);
    command.env(ROLE, role);
    command
}

/// Returns the role of this process, if it is the child of `test` in one.
pub(crate) fn role(test: &str) -> Option<String> {
    if is_child(test) { env::var(ROLE).ok() } else { None }
}

/// Runs the child of `test` to its end, and passes on what it says.
///
/// # Panics
/// Panics if the child fails.
#[track_caller]
pub(crate) fn run(mut command: Command, test: &str) {
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the child of `{test}`: {}\n{text}\n{errors}", output.status);
    assert!(
        text.contains("1 passed"),
        "there is no test `{test}` in this binary: {text}\n{errors}"
    );
    print!("{text}");
    super::skip::pass_on(&errors);
}
