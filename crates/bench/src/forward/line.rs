//! A client and a server, with a router or a bridge between them: the kernel's, or `vigie-forward`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::error::Missing;
use crate::host::Namespace;

/// Who forwards, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineForwarder {
    /// The kernel's routing.
    IpForward,
    /// The same, to be replaced by the least program for one direction.
    ByHand,
    Route,
    /// As [`Route`](Self::Route), by packet sockets.
    RouteHost,
    /// The kernel's translation.
    Masquerade,
    Nat,
    /// The kernel's bridge.
    Bridge,
    Switch,
}

impl LineForwarder {
    pub(super) const fn is_kernel(self) -> bool {
        matches!(self, Self::IpForward | Self::Masquerade | Self::Bridge)
    }

    /// Returns whether both ends are in one network.
    const fn is_switch(self) -> bool {
        matches!(self, Self::Bridge | Self::Switch)
    }

    /// Returns the server's address.
    pub(super) const fn server(self) -> [u8; 4] {
        if self.is_switch() { [10, 1, 0, 3] } else { [10, 2, 0, 2] }
    }
}

/// The command of a translator between both ends.
pub(super) const NAT: &str = "nat --inside ra --outside rb --address 10.2.0.9";

/// The client's address.
pub(super) const CLIENT: [u8; 4] = [10, 1, 0, 2];

/// Both ends, and what is between them.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) client: Namespace,
    pub(super) server: Namespace,
    pub(super) router: Namespace,
    /// `None` where the kernel forwards.
    pub(super) command: Option<ForwardCommand>,
}

impl Line {
    /// Makes the namespaces, with interfaces `c0`, `ra`, `rb` and `s0`, and starts what forwards.
    pub(super) fn make(forwarder: LineForwarder) -> Result<Self, String> {
        let line = Self::bare(forwarder)?;
        let set = |program, arguments: &str| line.router.run(program, arguments).map_err(said);
        let command = match forwarder {
            LineForwarder::IpForward | LineForwarder::ByHand => {
                set("sysctl", "-q -w net.ipv4.ip_forward=1")?;
                return Ok(line);
            }
            LineForwarder::Masquerade => {
                set("sysctl", "-q -w net.ipv4.ip_forward=1")?;
                set("nft", "add table ip vigie")?;
                set("nft", "add chain ip vigie out { type nat hook postrouting priority 100 ; }")?;
                set("nft", "add rule ip vigie out oif rb masquerade")?;
                return Ok(line);
            }
            LineForwarder::Bridge => {
                set("ip", "link add br0 type bridge")?;
                for interface in ["ra", "rb"] {
                    set("ip", &format!("link set {interface} master br0"))?;
                }
                set("ip", "link set br0 up")?;
                return Ok(line);
            }
            LineForwarder::Route => "l3 ra rb",
            LineForwarder::RouteHost => "l3 ra rb --path af-packet",
            LineForwarder::Nat => NAT,
            LineForwarder::Switch => "l2 ra rb",
        };
        let command = Some(ForwardCommand::start(&line.router, command)?);
        Ok(Self { command, ..line })
    }

    /// The same before anything forwards.
    pub(super) fn bare(forwarder: LineForwarder) -> Result<Self, String> {
        let make = || Namespace::make().map_err(said);
        let (client, router, server) = (make()?, make()?, make()?);
        let on = |host: &Namespace, arguments: String| host.run("ip", &arguments).map_err(said);
        let is_switch = forwarder.is_switch();
        for (host, near, far, number) in [(&client, "ra", "c0", 1), (&server, "rb", "s0", 2)] {
            on(&router, format!("link add {near} type veth peer name {far} netns {}", host.id()))?;
            on(&router, format!("link set {near} up"))?;
            let [a, b, c, d] = if number == 1 { CLIENT } else { forwarder.server() };
            on(host, format!("addr add {a}.{b}.{c}.{d}/24 dev {far}"))?;
            on(host, format!("link set {far} up"))?;
            if !is_switch {
                on(&router, format!("addr add 10.{number}.0.1/24 dev {near}"))?;
                on(host, format!("route add default via 10.{number}.0.1"))?;
            }
        }
        router.run("sysctl", "-q -w net.ipv4.ip_forward=0").map_err(said)?;
        Ok(Self { client, server, router, command: None })
    }
}

fn said(missing: Missing) -> String {
    missing.to_string()
}

/// `vigie-forward`, until this is dropped.
#[derive(Debug)]
pub(super) struct ForwardCommand {
    child: Running,
    /// Kept open for what it says.
    output: BufReader<ChildStderr>,
}

impl ForwardCommand {
    /// Returns the number of its process.
    pub(super) fn id(&self) -> u32 {
        self.child.0.id()
    }

    pub(super) fn start(router: &Namespace, arguments: &str) -> Result<Self, String> {
        let mut command: Command = router.command(&program()?.to_string_lossy());
        command.args(arguments.split_whitespace());
        Self::spawn(command)
    }

    /// Starts it where this process is.
    pub(super) fn start_here(arguments: &str) -> Result<Self, String> {
        let mut command = Command::new(program()?);
        command.args(arguments.split_whitespace());
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Result<Self, String> {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            Running(command.spawn().map_err(|error| format!("vigie-forward: {error}"))?);
        let output = child.0.stderr.take().ok_or("vigie-forward has no output")?;
        let mut this = Self { child, output: BufReader::new(output) };
        this.until("vigie-forward: forwards;")?;
        Ok(this)
    }

    /// Waits for a line that has these words, and returns all lines up to it.
    pub(super) fn until(&mut self, words: &str) -> Result<String, String> {
        let mut said = String::new();
        while !said.contains(words) {
            let before = said.len();
            let _ = self.output.read_line(&mut said);
            if said.len() == before {
                return Err(said);
            }
        }
        Ok(said)
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<(), String> {
        kill_process(Pid::from_child(&self.child.0), signal).map_err(|error| error.to_string())
    }

    /// Ends it, and waits for that.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.signal(Signal::TERM)?;
        self.child.0.wait().map(drop).map_err(|error| error.to_string())
    }
}

/// Asks the instance at a stats socket for its report.
pub(super) fn report(socket: &Path) -> Result<Value, String> {
    let mut command = Command::new(program()?);
    let output = command.args(["stats", "--json", "--socket"]).arg(socket).output();
    let output = output.map_err(|error| format!("vigie-forward stats: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| format!("vigie-forward stats: {error}"))
}

/// Returns where `vigie-forward` is.
fn program() -> Result<PathBuf, String> {
    let beside = std::env::current_exe().map(|own| own.with_file_name("vigie-forward"));
    let program = beside.ok().filter(|path| path.exists()).ok_or(
        "vigie-forward is needed beside this program: cargo build --profile measure --features cli-forward --bin \
         vigie-forward",
    )?;
    Ok(program)
}

/// A process, until this is dropped.
#[derive(Debug)]
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
