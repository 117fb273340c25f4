//! Starting, signalling and reaping one rank.

#![expect(
    unsafe_code,
    reason = "what only a process itself can arrange runs between fork and exec"
)]

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    process::{Child, Command, Stdio},
};

use rustix::{
    io::{Errno, FdFlags, fcntl_setfd},
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group,
        pidfd_open, set_parent_process_death_signal, waitid,
    },
    thread::{CpuSet, sched_setaffinity},
};
use vigie::via::world::{RANK_VARIABLE, RENDEZVOUS_VARIABLE, RankExit, SIZE_VARIABLE};

use crate::{cli::Cli, input::Input, job::RunError, rendezvous_address::RendezvousAddress};

/// A rank that runs, or is still to be reaped.
pub(crate) struct Rank {
    child: Child,
    pid: Pid,
}

/// A rank and the launcher's ends of its pipes and sockets.
pub(crate) struct Started {
    pub(crate) rank: Rank,
    /// Readable once the process has ended.
    pub(crate) pidfd: OwnedFd,
    /// The launcher's end of an inherited rendezvous, unless the rank meets others over TCP.
    pub(crate) rendezvous: Option<UnixStream>,
    /// Standard output and error, unless the rank uses the launcher's own.
    pub(crate) output: Option<[OwnedFd; 2]>,
    pub(crate) stdin: Option<std::process::ChildStdin>,
}

/// Starts rank `number`, on `processors` if it is bound. Must be called on the launcher's main thread: for the kernel,
/// the parent ends when the thread that forked ends [prctl(2), `PR_SET_PDEATHSIG`].
pub(crate) fn start(
    cli: &Cli,
    number: u32,
    input: Input,
    processors: Option<CpuSet>,
    rendezvous_address: Option<&RendezvousAddress>,
) -> Result<Started, RunError> {
    let resources = |source| RunError::Resources { number, source };
    let (rendezvous, inherited) = match rendezvous_address {
        Some(_) => (None, None),
        None => {
            let (rendezvous, inherited) = UnixStream::pair().map_err(resources)?;
            rendezvous.set_nonblocking(true).map_err(resources)?;
            (Some(rendezvous), Some(inherited))
        }
    };

    let (program, arguments) = cli.program_and_arguments();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(cli.env.iter().map(|(key, value)| (key, value)))
        .env(RANK_VARIABLE, number.to_string())
        .env(SIZE_VARIABLE, cli.ranks.to_string())
        .stdin(if number == 0 { input.stdio() } else { Stdio::null() })
        .process_group(0);
    if !cli.no_prefix {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    if let Some(inherited) = &inherited {
        command.env(RENDEZVOUS_VARIABLE, inherited.as_raw_fd().to_string());
    }
    if let Some(rendezvous_address) = rendezvous_address {
        rendezvous_address.tell(&mut command);
    }

    let launcher = getpid();
    let arrange = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(launcher) {
            // The parent died before that took effect.
            return Err(Errno::SRCH.into());
        }
        if let Some(processors) = &processors {
            sched_setaffinity(None, processors)?;
        }
        // Every other descriptor of the launcher is closed on exec.
        if let Some(inherited) = &inherited {
            fcntl_setfd(inherited, FdFlags::empty())?;
        }
        Ok(())
    };

    // SAFETY: between fork and exec of a program with several threads only what is async-signal-safe may
    // be called: these are system calls without locks and allocations, on values that were made before.
    unsafe { command.pre_exec(arrange) };
    let mut child = command.spawn().map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => resources(source),
        _ if source.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => resources(source),
        _ => RunError::Program { program: program.to_owned(), source },
    })?;

    let pid = Pid::from_child(&child);
    let output = child.stdout.take().zip(child.stderr.take());
    let output = output.map(|(stdout, stderr)| [stdout.into(), stderr.into()]);
    let stdin = child.stdin.take();
    let rank = Rank { child, pid };

    // It has not been reaped, so the number is still its own.
    match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(pidfd) => Ok(Started { rank, pidfd, rendezvous, output, stdin }),
        Err(error) => {
            rank.destroy();
            Err(resources(error.into()))
        }
    }
}

impl Rank {
    /// Sends `signal` to its process group, which includes its children unless they have left it.
    pub(crate) fn signal(&self, signal: Signal) {
        // A process that has ended needs no signal. The group's number is not reused before its leader is reaped.
        kill_process_group(self.pid, signal).unwrap_or_default();
    }

    /// Kills the rest of its group and reaps it; it must have ended.
    pub(crate) fn reap(mut self) -> io::Result<RankExit> {
        // Children left behind would hold its output open, and outlive the job.
        self.signal(Signal::KILL);
        let status = self.child.wait()?;
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => RankExit::Exited(code),
            (None, signal) => RankExit::Killed(signal.unwrap_or_default()),
        })
    }

    /// Kills it and waits for its end.
    pub(crate) fn destroy(self) {
        self.signal(Signal::KILL);
        drop(self.reap());
    }
}

/// Returns `Ok` if the process of `pidfd` has ended, without reaping it.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if it has not; other errors from the kernel.
pub(crate) fn check_end(pidfd: &OwnedFd) -> io::Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::PidFd(pidfd.as_fd()), options)? {
        Some(_) => Ok(()),
        None => Err(io::ErrorKind::WouldBlock.into()),
    }
}
