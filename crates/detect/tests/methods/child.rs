//! Tests that change process-wide state, each in its own process.

use std::{
    env,
    process::{Command, Stdio},
};

const VARIABLE: &str = "VIGIE_TEST_CHILD";

/// Runs `body` in a child process: this binary again, with the test of this name alone.
pub(crate) fn in_child(test: &str, body: impl FnOnce()) {
    if env::var_os(VARIABLE).is_some_and(|value| value == test) {
        return body();
    }
    let output = Command::new(env::current_exe().expect("this binary has a path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, test)
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the child of `{test}`: {}\n{text}\n{errors}", output.status);
    assert!(text.contains("1 passed"), "there is no test `{test}` in this binary: {text}");
    print!("{text}");
}
