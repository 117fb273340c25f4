//! Stats sockets that are not in the usual folders, found by the command lines and files of running instances.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use clap::Parser;
use rustix::process::geteuid;

use crate::{
    cli::{Cli, Command},
    config,
};

/// A running instance, and its socket.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FoundSocket {
    pub(super) path: PathBuf,
    pub(super) pid: u32,
}

/// Returns those of this user's instances; root's are all. Nothing is connected to.
pub(super) fn sockets() -> Vec<FoundSocket> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let user = geteuid();
    let mut found = Vec::new();
    for process in processes.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let is_ours = || process.metadata().is_ok_and(|of| of.uid() == user.as_raw());
        if (user.is_root() || is_ours())
            && let Some(path) = socket_of(&process.path())
        {
            found.push(FoundSocket { path, pid });
        }
    }
    found.sort();
    found
}

/// Returns the path that a process was given for its stats socket, if it is an instance and the socket is there.
fn socket_of(process: &Path) -> Option<PathBuf> {
    if fs::read(process.join("comm")).ok()? != b"vigie-forward\n" {
        return None;
    }
    let line = fs::read(process.join("cmdline")).ok()?;
    let words = line.strip_suffix(b"\0")?.split(|byte| *byte == 0).map(OsStr::from_bytes);
    let folder = fs::read_link(process.join("cwd")).ok()?;
    let settings = match Cli::try_parse_from(words).ok()?.command {
        Command::Relay(one) => one.process,
        Command::L2(one) => one.process,
        Command::L3(one) => one.process,
        Command::Nat(one) => one.process,
        Command::Run(run) => {
            let file = folder.join(run.config);
            // A pipe, or /dev/stdin, which is another one here, would be waited for.
            let is_file = fs::metadata(&file).is_ok_and(|found| found.is_file());
            is_file.then(|| config::read(&file, |_| Vec::new()).ok())??.process
        }
        _ => return None,
    };
    let path = folder.join(settings.stats_socket.or(settings.takeover)?);
    let is_socket = fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket());
    is_socket.then_some(path)
}
