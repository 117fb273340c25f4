//! Tests that cannot be made here.

use std::io::Write;

/// Says that a test is not made, and what it needs: also where the output of tests that pass is not shown.
pub(crate) fn skip(test: &str, needs: &str) {
    say(&format!("SKIPPED: {test} needs {needs}\n"));
}

/// Passes on what a child has said so.
pub(crate) fn pass_on(errors: &str) {
    if errors.contains("SKIPPED") {
        say(errors);
    }
}

fn say(text: &str) {
    std::io::stderr().write_all(text.as_bytes()).expect("standard error");
}
