//! Two network namespaces with a veth pair between them, without privileges if the host allows it.
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

const MARK: &str = "VIGIE_UDP_IN_NAMESPACE";

/// The longest duration of a test, in seconds.
const BOUND: &str = "240";

/// The addresses of the near and the far end of the pair.
pub(crate) const NEAR: &str = "10.77.0.1";
pub(crate) const FAR: &str = "10.77.0.2";

/// Reports that a test was skipped, even if the output of passing tests is hidden.
pub(crate) fn skip(test: &str, needs: &str) {
    let said = format!("SKIPPED: {test} needs {needs}\n");
    std::io::stderr().write_all(said.as_bytes()).expect("standard error");
}

/// Runs `body` with two namespaces; `test` is the name of the calling test.
#[track_caller]
pub(crate) fn with_veth(test: &str, body: impl FnOnce(&Far)) {
    inside(test, &[&["-Urn"], &["-n"]], || body(&Far::new()));
}

/// Runs `body` in its own namespaces: `ways` are arguments of `unshare`, of which the first that works
/// is used.
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

/// The namespace at the far end.
pub(crate) struct Far {
    /// A process that keeps the namespace alive.
    keeper: Child,
}

impl Far {
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
        let far = Self { keeper };
        near("ip link set lo up");
        near("ip link add name v0 type veth peer name v1");
        near(&format!("ip link set v1 netns {}", far.keeper.id()));
        near(&format!("ip addr add {NEAR}/24 dev v0"));
        near("ip link set v0 up");
        far.run("ip link set lo up");
        far.run(&format!("ip addr add {FAR}/24 dev v1"));
        far.run("ip link set v1 up");
        far
    }

    /// Runs a command there.
    #[track_caller]
    pub(crate) fn run(&self, command: &str) {
        near(&format!("nsenter -t {} -n {command}", self.keeper.id()));
    }

    /// Returns what a thread needs to enter it.
    pub(crate) fn door(&self) -> Door {
        let path = format!("/proc/{}/ns/net", self.keeper.id());
        Door(File::open(path).expect("a namespace"))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
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

/// Runs a command that must succeed.
#[track_caller]
pub(crate) fn near(command: &str) {
    if let Err(said) = try_near(command) {
        panic!("{command}: {said}");
    }
}

/// Runs a command. Returns its output if it fails.
pub(crate) fn try_near(command: &str) -> Result<(), String> {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| format!("{program}: {error}; install iproute2"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
