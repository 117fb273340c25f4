//! Other relays, and how they are started.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio, id};

use clap::ValueEnum;
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use serde::{Deserialize, Serialize};

use super::kind::{RelayKind, RelayMeasure};
use super::programs::{self, CERTIFICATE, RelayProgram, RelayService};
use super::serve::RelayRole;
use super::topology::RelayTopology;
use crate::error::{BenchError, Failure, Missing};
use crate::host::{allowed, enter, pin};
use crate::process::Child;

/// A user without privileges, and its group.
const NOBODY: u32 = 65_534;

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
    Program { program: PeerProgram },
}

impl RunningRelay {
    /// Its process, if that is the only one.
    pub(super) fn process(&self) -> Option<u32> {
        match self {
            Self::Program { program } if program.is_alone => Some(program.process.id()),
            _ => None,
        }
    }

    /// The file of its certificate, if it ends TLS.
    pub(super) fn certificate(&self) -> Option<PathBuf> {
        match self {
            Self::Program { program } => {
                Some(program.folder.join(CERTIFICATE)).filter(|path| path.exists())
            }
            _ => None,
        }
    }
}

/// Another's program, with all processes that it starts.
#[derive(Debug)]
pub(super) struct PeerProgram {
    process: Process,
    folder: PathBuf,
    is_alone: bool,
}

impl Drop for PeerProgram {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            // It fails only if all of them have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Starts the relay of a case. Programs of others may need a moment before they listen.
pub(super) fn start(
    kind: RelayKind,
    measure: RelayMeasure,
    topology: &RelayTopology,
) -> Result<RunningRelay, BenchError> {
    let program = match kind {
        RelayKind::Direct => return Ok(RunningRelay::Nothing),
        RelayKind::Vigie if measure.is_apart() => Some(RelayProgram::Vigie("auto")),
        RelayKind::VigieCopy if measure.is_apart() => Some(RelayProgram::Vigie("copy")),
        RelayKind::VigieSplice if measure.is_apart() => Some(RelayProgram::Vigie("splice")),
        RelayKind::Peer(RelayPeer::Socat) => Some(RelayProgram::Socat),
        RelayKind::Peer(RelayPeer::Haproxy) => Some(RelayProgram::Haproxy),
        RelayKind::Peer(RelayPeer::Nginx) => Some(RelayProgram::Nginx),
        _ => None,
    };
    if let Some(program) = program {
        let service = match measure {
            RelayMeasure::Datagrams { .. } => RelayService::Datagrams,
            measure if measure.is_encrypted() => RelayService::Tls,
            _ => RelayService::Streams,
        };
        let program = run(program, service, topology)?;
        return Ok(RunningRelay::Program { program });
    }
    let role = RelayRole {
        kind,
        listen: topology.relay,
        upstream: topology.sink,
        core: topology.relay_core,
        namespace: topology.middle.clone(),
    };
    let mut child = Child::start(&role)?;
    child.listening()?;
    Ok(RunningRelay::Ours { _child: child })
}

/// Lets a relay without privileges read its configuration, whatever the umask is.
fn give_to_nobody(folder: &Path) -> std::io::Result<()> {
    for file in fs::read_dir(folder)? {
        chown(file?.path(), Some(NOBODY), Some(NOBODY))?;
    }
    chown(folder, Some(NOBODY), Some(NOBODY))
}

/// Starts a program in a network namespace.
fn spawn_in(namespace: &Path, command: &mut Command) -> Result<std::io::Result<Process>, Failure> {
    let doing = "looking up this thread's network namespace";
    let own = File::open("/proc/thread-self/ns/net").map_err(Failure::io(doing))?;
    enter(namespace)?;
    let started = command.spawn();
    enter(Path::new(&format!("/proc/self/fd/{}", own.as_raw_fd())))?;
    Ok(started)
}

fn run(
    program: RelayProgram,
    service: RelayService,
    topology: &RelayTopology,
) -> Result<PeerProgram, BenchError> {
    let name = program.name();
    let folder = std::env::temp_dir().join(format!("vigie-bench-{name}-{}", id()));
    let broken = BenchError::io("relay", "writing a peer's configuration");
    fs::create_dir_all(&folder)
        .and_then(
            |()| if service == RelayService::Tls { programs::certify(&folder) } else { Ok(()) },
        )
        .map_err(broken)?;
    let mut command = program.command(topology, &folder, service)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let failed = |failure| BenchError::Failed { role: "relay", failure };
    let is_given_up = service == RelayService::Datagrams && geteuid().is_root();
    if is_given_up {
        give_to_nobody(&folder).map_err(BenchError::io("relay", "giving a folder to nobody"))?;
        command.uid(NOBODY).gid(NOBODY);
    }
    // What is started here stays where this thread is.
    let before = allowed();
    if let Some(core) = topology.relay_core {
        pin(&[core]).map_err(failed)?;
    }
    let started = match &topology.middle {
        None => command.spawn(),
        Some(namespace) => spawn_in(namespace, &mut command).map_err(failed)?,
    };
    pin(&before).map_err(failed)?;
    match started {
        Ok(process) => {
            Ok(PeerProgram { process, folder, is_alone: program != RelayProgram::Socat })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let packages =
                if program == RelayProgram::Nginx { "nginx libnginx-mod-stream" } else { name };
            let what = format!("`{name}` is not installed");
            Err(Missing::new(what, format!("on Debian: apt install {packages}")).into())
        }
        Err(error) if is_given_up && error.kind() == ErrorKind::PermissionDenied => {
            let what = format!("the user nobody may not run `{name}`");
            Err(Missing::new(what, "build in a folder that every user may enter").into())
        }
        Err(error) => Err(BenchError::io("relay", "starting a peer")(error)),
    }
}
