//! Other relays, and how they are started.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child as Process, Command, Stdio, id};

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use super::kind::RelayKind;
use super::serve::RelayRole;
use super::topology::RelayTopology;
use crate::error::{BenchError, Missing};
use crate::host::{allowed, pin};
use crate::process::Child;

/// Another relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum RelayPeer {
    /// socat: a process for each connection.
    Socat,
    /// HAProxy in TCP mode, with splicing.
    Haproxy,
    /// nginx with its stream module.
    Nginx,
    /// `copy_bidirectional` of tokio with buffers of 64 KiB.
    Tokio,
}

impl RelayPeer {
    /// Returns the name on the command line and in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Socat => "socat",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Tokio => "tokio",
        }
    }

    /// Returns the label in tables.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Socat => "socat, 64 KiB",
            Self::Haproxy => "HAProxy, splice-auto",
            Self::Nginx => "nginx stream, 64 KiB",
            Self::Tokio => "tokio copy, 64 KiB",
        }
    }
}

/// A relay that runs; dropping it ends it.
#[derive(Debug)]
pub(super) enum RunningRelay {
    Nothing,
    Ours { _child: Child },
    Program { _program: PeerProgram },
}

/// Another's program, with all processes that it starts.
#[derive(Debug)]
pub(super) struct PeerProgram {
    process: Process,
    folder: Option<PathBuf>,
}

impl Drop for PeerProgram {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            // It fails only if all of them have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.process.wait();
        if let Some(folder) = &self.folder {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Starts the relay of a case. Programs of others may need a moment before they listen.
pub(super) fn start(kind: RelayKind, topology: &RelayTopology) -> Result<RunningRelay, BenchError> {
    match kind {
        RelayKind::Direct => Ok(RunningRelay::Nothing),
        RelayKind::Peer(peer @ (RelayPeer::Socat | RelayPeer::Haproxy | RelayPeer::Nginx)) => {
            program(peer, topology).map(|program| RunningRelay::Program { _program: program })
        }
        _ => {
            let role = RelayRole {
                kind,
                listen: topology.relay,
                upstream: topology.sink,
                core: topology.core,
                namespace: topology.middle.clone(),
            };
            let mut child = Child::start(&role)?;
            child.listening()?;
            Ok(RunningRelay::Ours { _child: child })
        }
    }
}

fn program(peer: RelayPeer, topology: &RelayTopology) -> Result<PeerProgram, BenchError> {
    let (mut command, folder) = match peer {
        RelayPeer::Haproxy => haproxy(topology)?,
        RelayPeer::Nginx => nginx(topology)?,
        _ => (socat(topology), None),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let failed = |failure| BenchError::Failed { role: "relay", failure };
    // What is started here stays where this thread is.
    let before = allowed();
    if let Some(core) = topology.core {
        pin(&[core]).map_err(failed)?;
    }
    let started = command.spawn();
    pin(&before).map_err(failed)?;
    match started {
        Ok(process) => Ok(PeerProgram { process, folder }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let name = peer.name();
            let packages =
                if peer == RelayPeer::Nginx { "nginx libnginx-mod-stream" } else { name };
            let what = format!("`{name}` is not installed");
            Err(Missing::new(what, format!("on Debian: apt install {packages}")).into())
        }
        Err(error) => Err(BenchError::io("relay", "starting a peer")(error)),
    }
}

fn socat(topology: &RelayTopology) -> Command {
    let mut command = Command::new("socat");
    let (relay, sink) = (topology.relay, topology.sink);
    let listen = format!("TCP-LISTEN:{},bind={},reuseaddr,fork,nodelay", relay.port(), relay.ip());
    command.args(["-b", "65536", &listen, &format!("TCP:{sink},nodelay")]);
    command
}

fn haproxy(topology: &RelayTopology) -> Result<(Command, Option<PathBuf>), BenchError> {
    let (relay, sink) = (topology.relay, topology.sink);
    let text = format!(
        "global\n  nbthread 1\n  maxconn 1000\n  tune.bufsize 65536\n\
         defaults\n  mode tcp\n  timeout client 60s\n  timeout server 60s\n  timeout connect 5s\n  option splice-auto\n\
         frontend relay\n  bind {relay}\n  default_backend sink\n\
         backend sink\n  server one {sink}\n"
    );
    let folder = folder("haproxy", &text)?;
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(folder.join("configuration"));
    Ok((command, Some(folder)))
}

fn nginx(topology: &RelayTopology) -> Result<(Command, Option<PathBuf>), BenchError> {
    let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
    let load = if fs::exists(module).unwrap_or(false) {
        format!("load_module {module};\n")
    } else {
        String::new()
    };
    let (relay, sink) = (topology.relay, topology.sink);
    let text = format!(
        "{load}daemon off;\nmaster_process off;\nworker_processes 1;\nerror_log /dev/null crit;\npid nginx.pid;\n\
         events {{ worker_connections 1024; }}\n\
         stream {{ server {{ listen {relay}; proxy_pass {sink}; proxy_buffer_size 64k; tcp_nodelay on; }} }}\n"
    );
    let folder = folder("nginx", &text)?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(&folder).arg("-c").arg(folder.join("configuration"));
    Ok((command, Some(folder)))
}

/// A folder for a program, with its configuration.
fn folder(name: &str, configuration: &str) -> Result<PathBuf, BenchError> {
    let folder = std::env::temp_dir().join(format!("vigie-bench-{name}-{}", id()));
    let made = fs::create_dir_all(&folder);
    let written = made.and_then(|()| fs::write(folder.join("configuration"), configuration));
    written.map_err(BenchError::io("relay", "writing a peer's configuration"))?;
    Ok(folder)
}
