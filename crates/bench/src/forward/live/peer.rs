//! Forwarders of others.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::keys::PORTS;
use super::load::NOBODY;
use super::placement::absent;
use crate::error::{BenchError, Failure};
use crate::host::Namespace;

/// How long a peer may take to begin.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    TestpmdXdp,
    TestpmdPacket,
}

/// A peer that runs.
pub(super) struct Process {
    child: Child,
}

impl Peer {
    /// Starts it on the second core; the first one is for its console.
    pub(super) fn start(self, wires: &Namespace, cores: [usize; 2]) -> Result<Process, BenchError> {
        let device = |number: usize, name: &str| match self {
            Self::TestpmdXdp => format!("--vdev=net_af_xdp{number},iface={name}"),
            Self::TestpmdPacket => format!("--vdev=net_af_packet{number},iface={name}"),
        };
        // It reports its start only if its lines are not buffered for a pipe.
        let mut command = wires.command("stdbuf");
        command
            .args(["-oL", "dpdk-testpmd"])
            .args(["--no-huge", "-m", "256", "--no-pci", "--no-telemetry"])
            .arg(format!("--lcores=0@{},1@{}", cores[0], cores[1]))
            .args(PORTS.iter().enumerate().map(|(number, name)| device(number, name)))
            .args(["--", "-i", "--nb-cores=1", "--forward-mode=mac", "--total-num-mbufs=16384"])
            .arg(format!("--eth-peer=1,{NOBODY}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().map_err(BenchError::io("forwarder", "starting `nsenter`"))?;
        let mut process = Process { child };
        process.begin().map_err(|said| {
            if said.contains("No such file") || said.contains("not found") {
                absent("dpdk-testpmd").into()
            } else {
                let failure = Failure::because("starting dpdk-testpmd", said);
                BenchError::Failed { role: "forwarder", failure }
            }
        })?;
        Ok(process)
    }
}

impl Process {
    /// Lets it forward, and waits until it says so.
    fn begin(&mut self) -> Result<(), String> {
        let (sender, said) = mpsc::channel();
        for output in [
            self.child.stdout.take().map(|out| Box::new(out) as Box<dyn std::io::Read + Send>),
            self.child.stderr.take().map(|out| Box::new(out) as Box<dyn std::io::Read + Send>),
        ]
        .into_iter()
        .flatten()
        {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    // Its output is not used once it has begun, but it must not block on it.
                    let _ = sender.send(line);
                }
            });
        }
        drop(sender);
        if let Some(stdin) = &mut self.child.stdin {
            let _ = stdin.write_all(b"start\n").and_then(|()| stdin.flush());
        }
        let mut last = String::from("it said nothing");
        while let Ok(line) = said.recv_timeout(TIMEOUT) {
            if line.contains("packet forwarding - ports=") {
                return Ok(());
            }
            last = line;
        }
        Err(last)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            let _ = stdin.write_all(b"quit\n");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
