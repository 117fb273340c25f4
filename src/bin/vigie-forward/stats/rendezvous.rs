//! The rendezvous of clients with instances: a socket in a well-known folder.

use std::{
    env, fs, io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process,
};

use thiserror::Error;

use super::elsewhere::{self, FoundSocket};

const PREFIX: &str = "vigie-forward.";
const SUFFIX: &str = ".sock";
/// The maximum number of files examined in a folder.
const FILES_MAX: usize = 10_000;

/// The reason why no instance was found, or the socket could not be created.
#[derive(Debug, Error)]
pub(crate) enum RendezvousError {
    #[error("another instance serves {}: end it, or choose another --stats-socket", path.display())]
    InUse { path: PathBuf },
    #[error("{} exists and is not a socket: remove it, or choose another --stats-socket", path.display())]
    NotASocket { path: PathBuf },
    #[error(
        "the stats socket {} cannot be made: {source}; the folder must exist and be writable, and a path has \
         at most 107 bytes (--stats-socket chooses another)",
        path.display()
    )]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "no running instance has its socket in {searched}: start one, or name its socket by --socket, as is needed for one with `stats_socket` or \
         `takeover`{}",
        with_others(&[], elsewhere)
    )]
    Nobody { searched: String, elsewhere: Vec<FoundSocket> },
    #[error("several instances run: name one by --socket{}", with_others(paths, elsewhere))]
    Several { paths: Vec<PathBuf>, elsewhere: Vec<FoundSocket> },
}

/// Lists sockets, if there are any.
fn with_others(paths: &[PathBuf], elsewhere: &[FoundSocket]) -> String {
    let usual = paths.iter().map(|path| format!("\n  {}", path.display()));
    let others = elsewhere.iter();
    let others =
        others.map(|FoundSocket { path, pid }| format!("\n  {} (process {pid})", path.display()));
    let all: String = usual.chain(others).collect();
    if all.is_empty() { all } else { ":".to_owned() + &all }
}

/// Returns the folders for sockets, in order of preference.
fn folders() -> Vec<PathBuf> {
    let own = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    own.into_iter().chain([PathBuf::from("/run"), env::temp_dir()]).collect()
}

/// Our own socket; removed when dropped.
#[derive(Debug)]
pub(crate) struct SocketGuard {
    pub(crate) path: PathBuf,
    /// Device and inode of the file, which identify it as ours.
    identity: (u64, u64),
}

impl SocketGuard {
    /// Puts the socket in the place of another instance's.
    pub(crate) fn place(&mut self, path: &Path) -> Result<(), RendezvousError> {
        fs::rename(&self.path, path)
            .map_err(|source| RendezvousError::Io { path: path.to_owned(), source })?;
        path.clone_into(&mut self.path);
        Ok(())
    }
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // If removing fails, the next start removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Creates the socket, accessible to this user only. Returns whether it replaced one of a dead instance.
pub(crate) fn bind(
    path: Option<&Path>,
) -> Result<(UnixListener, SocketGuard, bool), RendezvousError> {
    if let Some(path) = path {
        return bind_at(path);
    }
    let name = format!("{PREFIX}{}{SUFFIX}", process::id());
    let mut result =
        Err(RendezvousError::Nobody { searched: String::new(), elsewhere: Vec::new() });
    for folder in folders() {
        result = bind_at(&folder.join(&name));
        if !matches!(result, Err(RendezvousError::Io { .. })) {
            break;
        }
    }
    result
}

fn bind_at(path: &Path) -> Result<(UnixListener, SocketGuard, bool), RendezvousError> {
    let failed = |source| RendezvousError::Io { path: path.to_owned(), source };
    let was_left = match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(RendezvousError::NotASocket { path: path.to_owned() });
        }
        Ok(_) if is_alive(path) => return Err(RendezvousError::InUse { path: path.to_owned() }),
        Ok(_) => {
            fs::remove_file(path).map_err(failed)?;
            true
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(failed(error)),
    };

    let (listener, mut guard) = bind_beside(path)?;
    guard.place(path)?;
    Ok((listener, guard, was_left))
}

/// Creates the socket under a name of its own, until it is [placed](SocketGuard::place): before no other user can open it, or while another
/// instance has the path.
pub(crate) fn bind_beside(path: &Path) -> Result<(UnixListener, SocketGuard), RendezvousError> {
    let failed = |source| RendezvousError::Io { path: path.to_owned(), source };
    let new = path.with_extension(format!("{}.new", process::id()));
    let listener = UnixListener::bind(&new).map_err(failed)?;
    let identity = identity(&new).map_err(failed)?;
    let guard = SocketGuard { path: new, identity };
    let only_us = fs::Permissions::from_mode(0o600);
    fs::set_permissions(&guard.path, only_us).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok((listener, guard))
}

/// Returns whether a process listens.
fn is_alive(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        }
    }
}

/// Returns the sockets of instances in all folders.
fn sockets() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in folders() {
        let Ok(files) = fs::read_dir(&folder) else { continue };
        for file in files.take(FILES_MAX).flatten() {
            let name = file.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let number = number.and_then(|name| name.strip_suffix(SUFFIX));
            let is_socket = file.file_type().is_ok_and(|kind| kind.is_socket());
            if is_socket && number.is_some_and(|number| number.parse::<u32>().is_ok()) {
                found.push(file.path());
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Removes the sockets of dead instances in the usual folders. Returns their paths.
pub(crate) fn sweep() -> Vec<PathBuf> {
    let dead = sockets().into_iter().filter(|path| !is_alive(path));
    dead.filter(|path| fs::remove_file(path).is_ok()).collect()
}

/// Finds the only running instance.
pub(crate) fn find() -> Result<PathBuf, RendezvousError> {
    let mut alive: Vec<_> = sockets().into_iter().filter(|path| is_alive(path)).collect();
    match (alive.pop(), alive.is_empty()) {
        (Some(path), true) => Ok(path),
        (Some(path), false) => {
            alive.push(path);
            Err(RendezvousError::Several { paths: alive, elsewhere: elsewhere::sockets() })
        }
        (None, _) => {
            let folders = folders().into_iter().map(|folder| folder.display().to_string());
            let searched = folders.collect::<Vec<_>>().join(", ");
            Err(RendezvousError::Nobody { searched, elsewhere: elsewhere::sockets() })
        }
    }
}
