//! Stats sockets that are not in the usual folders, found by the command lines and files of running instances.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    io::Read,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use clap::Parser;
use rustix::{fs::OFlags, process::geteuid};

use crate::{
    cli::{Cli, Command},
    config::{self, Process},
};

/// The longest command line and the largest file that are read: any user can make root read them.
const READ_BYTES_MAX: u64 = 256 << 10;

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
    let line = read(&process.join("cmdline"), READ_BYTES_MAX)?;
    let words = line.strip_suffix(b"\0")?.split(|byte| *byte == 0).map(OsStr::from_bytes);
    let folder = fs::read_link(process.join("cwd")).ok()?;
    let settings = match Cli::try_parse_from(words).ok()?.command {
        Command::Relay(one) => one.process,
        Command::L2(one) => one.process,
        Command::L3(one) => one.process,
        Command::Nat(one) => one.process,
        Command::Run(run) => {
            let file = folder.join(run.config);
            // Not from a device, nor from a file of the kernel, which has no size.
            let size_bytes = fs::metadata(&file).ok().filter(fs::Metadata::is_file)?.len();
            let text = String::from_utf8(read(&file, size_bytes)?).ok()?;
            Process { stats_socket: config::stats_socket(&text), ..Process::default() }
        }
        _ => return None,
    };
    let path = folder.join(settings.stats_socket.or(settings.takeover)?);
    let is_socket = fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket());
    is_socket.then_some(path)
}

/// Reads a file of so many bytes at most, unless it has too many. A pipe is not waited for.
fn read(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).ok()?;
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(bytes_max.min(READ_BYTES_MAX + 1)).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= READ_BYTES_MAX).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what another user's process names is read within bounds. Method: a file of the largest size and one with a byte more; a file of the kernel
    /// without a size; a pipe without a writer.
    #[test]
    fn files_of_others_are_read_within_bounds() {
        let folder = std::env::temp_dir().join(format!("vigie-elsewhere-{}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        let largest = usize::try_from(READ_BYTES_MAX).expect("a size");
        let (file, pipe) = (folder.join("file"), folder.join("pipe"));
        let mut found = Vec::new();
        for length in [5, largest, largest + 1] {
            fs::write(&file, vec![b'x'; length]).expect("a file");
            found.push(read(&file, u64::MAX).map(|bytes| bytes.len()));
        }
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        found.push(read(&pipe, u64::MAX).map(|bytes| bytes.len()));
        fs::remove_dir_all(&folder).expect("it is there");
        assert_eq!(found, [Some(5), Some(largest), None, Some(0)]);
    }
}
