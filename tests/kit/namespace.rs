//! Network namespaces of a test's own, without privileges if the host allows it.
//!
//! A test runs itself again under `unshare`: in its own user and network namespaces or, as root where
//! user namespaces are forbidden, in a network namespace. If neither is possible, the test is skipped.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::fd::AsFd,
    process::{Child, Command, Stdio},
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{child, skip::skip};

/// The longest duration of a test, in seconds.
const BOUND: &str = "240";

/// The ways of `unshare` to a network namespace.
pub(crate) const WAYS: &[&[&str]] = &[&["-Urn"], &["-n"]];
/// The ways to one in which this process keeps its capabilities over the kernel.
pub(crate) const PRIVILEGED: &[&[&str]] = &[&["-n"]];

/// Runs `body` in its own namespaces; `test` is the name of the calling test. `ways` are arguments of
/// `unshare`, of which the first that works is used.
#[track_caller]
pub(crate) fn inside(test: &str, ways: &[&[&str]], body: impl FnOnce()) {
    if child::is_child(test) {
        return body();
    }
    let works = |way: &&[&str]| {
        let output = Command::new("unshare").args(*way).args(["--", "true"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.iter().copied().find(works) else {
        skip(test, "a network namespace: user namespaces, or CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return;
    };
    let bound = &["--", "timeout", "--kill-after=5", BOUND];
    child::run(child::command(&[&["unshare"], way, bound].concat(), test), test);
}

/// Another network namespace, which a process keeps alive.
pub(crate) struct Namespace(Child);

impl Namespace {
    pub(crate) fn new() -> Self {
        let mut keeper = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo here; exec cat"])
            // It ends with this process, at the latest.
            .stdin(Stdio::piped())
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

    /// Runs a shell command there that must succeed. Returns its output.
    #[track_caller]
    pub(crate) fn run(&self, command: &str) -> String {
        let quoted = command.replace('\'', "'\\''");
        near(&format!("nsenter -t {} -n sh -ec '{quoted}'", self.id()))
    }

    /// Runs `body` there, on a thread of its own.
    pub(crate) fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let door = self.door();
        thread::scope(|scope| {
            let there = scope.spawn(move || {
                door.enter();
                body()
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
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

pub(crate) struct Door(pub(crate) File);

impl Door {
    /// Moves this thread into the namespace.
    pub(crate) fn enter(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("this process made it");
    }
}

/// Runs a shell command that must succeed. Returns its output.
#[track_caller]
pub(crate) fn near(command: &str) -> String {
    try_near(command).unwrap_or_else(|said| panic!("{command}: {said}"))
}

/// Runs a shell command. Returns its output, or what it says if it fails.
pub(crate) fn try_near(command: &str) -> Result<String, String> {
    let output = Command::new("sh").args(["-ec", command]).output().expect("a shell");
    let said = if output.status.success() { output.stdout } else { output.stderr };
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}
