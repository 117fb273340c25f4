//! Network namespaces of a test's own, for tests that load programs into the kernel: they need root.
//!
//! A test runs itself again in a new network namespace. Where that is not possible, or this process may not load
//! programs, it is skipped, with a message on the standard error of the whole run.

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, Write},
    os::fd::AsFd,
    process::{Child, Command, Stdio},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use vigie_forward::bpf::Support;

const MARK: &str = "VIGIE_FORWARD_IN_NAMESPACE";
/// The time limit of a test, in seconds.
const BOUND: &str = "120";

fn skip(test: &str, why: &str) {
    let said = format!("SKIPPED: {test}: {why}\n");
    std::io::stderr().write_all(said.as_bytes()).expect("standard error");
}

/// Runs `body` in a network namespace of its own, in which it may create others.
#[track_caller]
pub(crate) fn inside(test: &str, body: impl FnOnce()) {
    if env::var_os(MARK).is_some() {
        return body();
    }
    if let Err(error) = Support::probe().xdp {
        return skip(test, &error.to_string());
    }
    let works = Command::new("unshare").args(["-n", "--", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        return skip(test, "`unshare -n` is not allowed here");
    }
    let output = Command::new("unshare")
        .args(["-n", "--", "timeout", "--kill-after=5", BOUND])
        .arg(env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in a namespace, {}:\n{said}", output.status);
    assert!(said.contains("1 passed"), "the test did not run in its namespace:\n{said}");
}

/// Runs a shell command.
#[track_caller]
pub(crate) fn run(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().expect("sh");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{command}`: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the index of an interface of this namespace.
#[track_caller]
pub(crate) fn index(name: &str) -> u32 {
    // Not by /sys, which shows the namespace in which it was mounted.
    let said = run(&format!("ip -o link show dev {name}"));
    said.split(':').next().expect("an index").parse().expect("a number")
}

/// Another network namespace, kept by a process.
pub(crate) struct Namespace(Child);

impl Namespace {
    pub(crate) fn new() -> Self {
        let mut keeper = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo here; exec sleep 120"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut line = String::new();
        let output = keeper.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        Self(keeper)
    }

    /// The number by which `ip` knows it.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Runs a shell command there.
    #[track_caller]
    pub(crate) fn run(&self, command: &str) -> String {
        let quoted = command.replace('\'', "'\\''");
        run(&format!("nsenter -t {} -n sh -ec '{quoted}'", self.id()))
    }

    /// Runs `body` there, on a thread of its own.
    pub(crate) fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let path = format!("/proc/{}/ns/net", self.id());
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let namespace = File::open(path).expect("a namespace");
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("entered");
                body()
            });
            thread.join().expect("no panic there")
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
