//! Network namespaces for a single test, without privileges if the host allows it.
//!
//! A test runs itself again under `unshare`: in its own user and network namespaces or, as root where
//! user namespaces are forbidden, in a network namespace. If neither is possible, the test is skipped,
//! which is reported on standard error.

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, Write},
    os::fd::AsFd,
    process::{Child, Command, Stdio},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const MARK: &str = "VIGIE_IN_NAMESPACE";

/// The longest duration of a test, in seconds.
const BOUND: &str = "240";

/// The ways of `unshare` to a network namespace.
pub(crate) const WAYS: &[&[&str]] = &[&["-Urn"], &["-n"]];

/// Reports that a test was skipped, even if the output of passing tests is hidden.
pub(crate) fn skip(test: &str, needs: &str) {
    let said = format!("SKIPPED: {test} needs {needs}\n");
    std::io::stderr().write_all(said.as_bytes()).expect("standard error");
}

/// Runs `body` in its own namespaces; `test` is the name of the calling test. `ways` are arguments of
/// `unshare`, of which the first that works is used.
#[track_caller]
pub(crate) fn inside(test: &str, ways: &[&[&str]], body: impl FnOnce()) {
    if env::var_os(MARK).is_some() {
        body();
        return;
    }
    let works = |way: &&[&str]| {
        let output = Command::new("unshare").args(*way).args(["--", "true"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.iter().copied().find(works) else {
        skip(test, "a network namespace: user namespaces, or CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return;
    };
    let output = Command::new("unshare")
        .args(way)
        .args(["--", "timeout", "--kill-after=5", BOUND])
        .arg(env::current_exe().expect("this test's program"))
        .args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .expect("unshare");
    let (said, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "in a namespace, {}:\n{said}{errors}", output.status);
    assert!(said.contains("1 passed"), "it did not run in its namespace:\n{said}{errors}");
    if errors.contains("SKIPPED") {
        std::io::stderr().write_all(errors.as_bytes()).expect("standard error");
    }
}

/// Another network namespace, which a process keeps alive.
pub(crate) struct Namespace(Child);

impl Namespace {
    pub(crate) fn new() -> Self {
        let mut keeper = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo here; exec sleep 300"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut line = String::new();
        let output = keeper.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "here\n");
        Self(keeper)
    }

    /// Returns the id of the process, by which commands name the namespace.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns what a thread needs to enter it.
    pub(crate) fn door(&self) -> Door {
        let path = format!("/proc/{}/ns/net", self.id());
        Door(File::open(path).expect("a namespace"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct Door(File);

impl Door {
    /// Moves this thread into the namespace.
    pub(crate) fn enter(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("this process made it");
    }
}

/// Runs a command that must succeed. Returns its output.
#[track_caller]
pub(crate) fn near(command: &str) -> String {
    try_near(command).unwrap_or_else(|said| panic!("{command}: {said}"))
}

/// Runs a command. Returns its output, or what it says if it fails.
pub(crate) fn try_near(command: &str) -> Result<String, String> {
    let output = Command::new("sh").args(["-c", command]).output().expect("a shell");
    let said = if output.status.success() { output.stdout } else { output.stderr };
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}
