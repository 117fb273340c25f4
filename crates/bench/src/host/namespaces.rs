//! Network namespaces, for as long as they are needed, and veth pairs between them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{Failure, Missing};

/// The name of the interface in each namespace.
pub(crate) const INTERFACE: &str = "veth0";

/// The address of a rank on the pair.
pub(crate) fn address(rank: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 0, 1)) + rank)
}

/// A network namespace, which lives as long as a process in it that does nothing. That ends with its standard input, which
/// the kernel closes however this process ends.
#[derive(Debug)]
pub(crate) struct Namespace {
    holder: Child,
}

impl Namespace {
    pub(crate) fn make() -> Result<Self, Missing> {
        let started = Command::new("unshare")
            .args(["-n", "--", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let holder = started.map_err(|error| missing(format!("`unshare`: {error}")))?;
        let mut namespace = Self { holder };
        let mut said = String::new();
        if let Some(output) = namespace.holder.stdout.take() {
            // What says nothing has ended.
            let _ = BufReader::new(output).read_line(&mut said);
        }
        if said.trim() == "ready" {
            return Ok(namespace);
        }
        Err(missing("a network namespace of its own is not allowed here"))
    }

    /// Returns the number of the process that holds it.
    pub(crate) fn id(&self) -> u32 {
        self.holder.id()
    }

    /// Returns the path by which it is entered.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.id()).into()
    }

    /// Returns a program to be run in it.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.id().to_string(), "-n", "--", program]);
        command
    }

    /// Runs a program in it.
    pub(crate) fn run(&self, program: &str, arguments: &str) -> Result<(), Missing> {
        let output = self.command(program).args(arguments.split_whitespace()).output();
        let output = output.map_err(|error| missing(format!("`nsenter`: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(missing(format!("`{program} {arguments}`: {}", said.trim())))
    }

    /// Keeps the kernel from sending packets of its own over an interface, or by default over all that come.
    pub(crate) fn quiet(&self, interface: &str) {
        let setting = format!("-q -w net.ipv6.conf.{interface}.disable_ipv6=1");
        let _ = self.run("sysctl", &setting);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // The closed pipe ends it; the kill bounds the wait.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Moves the calling thread into a network namespace. Threads and processes that it starts follow it there.
///
/// # Errors
/// [`Failure::Io`] if there is none, or the kernel refuses.
pub(crate) fn enter(path: &Path) -> Result<(), Failure> {
    let doing = || format!("entering the network namespace {}", path.display());
    let file = File::open(path).map_err(Failure::io(doing()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| Failure::io(doing())(error.into()))
}

/// Two namespaces with a veth pair between them.
#[derive(Debug)]
pub(crate) struct Namespaces([Namespace; 2]);

impl Namespaces {
    /// Makes both, with addresses.
    pub(crate) fn make() -> Result<Self, Missing> {
        let both = [Namespace::make()?, Namespace::make()?];
        let peer = format!("peer name {INTERFACE} netns {}", both[1].id());
        both[0].run("ip", &format!("link add {INTERFACE} type veth {peer}"))?;
        for (rank, namespace) in (0..).zip(&both) {
            namespace.run("ip", &format!("addr add {}/24 dev {INTERFACE}", address(rank)))?;
            namespace.quiet(INTERFACE);
        }
        for namespace in &both {
            namespace.run("ip", "link set lo up")?;
            namespace.run("ip", &format!("link set {INTERFACE} up"))?;
        }
        Ok(Self(both))
    }

    /// By which paths ranks enter them.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(Namespace::path).collect()
    }
}

pub(crate) fn missing(what: impl Into<String>) -> Missing {
    Missing::new(
        what,
        "run as root with iproute2 and util-linux, or in a user namespace of your own (`unshare -Urn \
         vigie-bench …`), where AF_XDP is not allowed",
    )
}
