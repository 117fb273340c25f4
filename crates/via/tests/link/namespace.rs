//! Network namespaces for a single test, with a veth pair, without privileges if the host allows it.
//!
//! A test runs itself again under `unshare`: in its own user and network namespace or, as root where
//! user namespaces are forbidden, in a network namespace. If neither is possible, the test is skipped,
//! which is reported on standard error.

use std::{
    env,
    io::Write,
    process::{Command, Output},
};

const MARK: &str = "VIGIE_IN_NAMESPACE";
/// The longest duration of a test, in seconds.
const BOUND: &str = "60";

/// Runs `body` in its own namespaces; `test` is the name of the calling test. `ways` are arguments of
/// `unshare`, of which the first that works is used.
#[track_caller]
pub(crate) fn inside(test: &str, ways: &[&[&str]], body: impl FnOnce()) {
    if env::var_os(MARK).is_some() {
        body();
        return;
    }
    let Some(way) = ways.iter().find(|way| {
        Command::new("unshare")
            .args(**way)
            .args(["--", "true"])
            .output()
            .is_ok_and(|output| output.status.success())
    }) else {
        let said =
            format!("skipped: {test}: `unshare {}` is not allowed here\n", ways[0].join(" "));
        std::io::stderr().write_all(said.as_bytes()).expect("standard error");
        return;
    };
    let program = env::current_exe().expect("this test's program");
    let output = Command::new("unshare")
        .args(*way)
        .args(["--", "timeout", "--kill-after=5", BOUND])
        .arg(program)
        .args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in a namespace, {}:\n{said}", output.status);
    assert!(said.contains("1 passed"), "the test did not run in its namespace:\n{said}");
}

/// Runs `body` in a network namespace with a veth pair `v0`, `v1`, both up.
#[track_caller]
pub(crate) fn with_veth(test: &str, body: impl FnOnce()) {
    inside(test, &[&["-Urn"], &["-n"]], || {
        ip("link set lo up");
        make_veth();
        body();
    });
}

/// Makes the pair.
pub(crate) fn make_veth() {
    ip("link add name v0 type veth peer name v1");
    ip("link set v0 up");
    ip("link set v1 up");
}

/// Calls `ip` with arguments.
#[track_caller]
pub(crate) fn ip(arguments: &str) -> Output {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("the command `ip`: install iproute2");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {said}");
    output
}
