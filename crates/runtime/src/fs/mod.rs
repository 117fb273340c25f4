//! Files and directories, by tokio's names.
//!
//! A task itself reads data that the kernel has in memory: `preadv2` with `RWF_NOWAIT` returns cached bytes and refuses to
//! wait for a disk. Only what it refuses goes to the blocking pool, as does everything that has no such form: opening,
//! writing on most file systems, directories. A cached read of 4 KiB so costs a microsecond instead of a hop to a thread and
//! back.
//!
//! In a [simulation](crate::simulation), each node has a disk of its own, with a root directory, `/tmp`, and faults.
//!
//! # Cancel safety
//! Unless a method says otherwise: a dropped future has begun its operation, or has not; what began ends on its thread.
//!
//! # Errors
//! Those of the function of the same name in [`std::fs`]; [`io::ErrorKind::Other`] if the runtime is shut down meanwhile;
//! [`io::ErrorKind::Unsupported`] in a simulation, for files and options of the standard library.
//!
//! # Panics
//! Outside a runtime.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

mod dir;
mod file;
mod metadata;
mod open_file;
mod open_options;

pub use dir::{DirBuilder, DirEntry, ReadDir, read_dir};
pub use file::File;
pub use metadata::{FileType, Metadata};
pub use open_options::OpenOptions;

use vigie_detect::refuse_in_simulation;

use crate::{
    flavor::simulated::SimulatedDisk,
    handle::{Handle, Scheduler},
    spawn, spawn_blocking,
    sync::Arc,
    task_cell::JoinHandle,
    time,
};

/// The permissions that the mask of a process removes in a simulation.
const UMASK: u32 = 0o022;

/// Runs `call` on the blocking pool.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    refuse_std_file()?;
    joined(spawn_blocking(call)).await
}

/// Refuses files of the kernel inside a simulation.
fn refuse_std_file() -> io::Result<()> {
    refuse_in_simulation("files of the standard library", "open it with `vigie::fs`")
}

async fn joined<T>(task: JoinHandle<io::Result<T>>) -> io::Result<T> {
    task.await.unwrap_or_else(|_| Err(io::Error::other("background task failed")))
}

/// Returns the disk of the simulated node that the task is on. `None` outside a simulation.
fn simulated_disk() -> Option<Arc<SimulatedDisk>> {
    match Handle::try_current().ok()?.scheduler {
        Scheduler::Simulated(shared) => Some(Arc::clone(&shared.machine.disk)),
        _ => None,
    }
}

/// Runs `call` once the disk has moved.
async fn on_disk<T: Send + 'static>(
    disk: Arc<SimulatedDisk>,
    call: impl FnOnce(&Arc<SimulatedDisk>) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let moves = time::sleep(disk.draw_time());
    joined(spawn(async move {
        moves.await;
        call(&disk)
    }))
    .await
}

/// Functions that are those of std, on the blocking pool; or the disk's, in a simulation.
macro_rules! functions {
    ($($(#[$doc:meta])+ $name:ident($($path:ident),+ $(; $other:ident: $kind:ty)?) -> $result:ty, |$disk:ident| $call:expr;)+) => {$(
        $(#[$doc])+
        ///
        /// # Errors
        #[doc = concat!("Those of [`std::fs::", stringify!($name), "`].")]
        pub async fn $name(
            $($path: impl AsRef<Path>,)+
            $($other: $kind,)?
        ) -> io::Result<$result> {
            $(let $path = $path.as_ref().to_owned();)+
            match simulated_disk() {
                Some(disk) => on_disk(disk, move |$disk| $call).await,
                None => blocking(move || Ok(fs::$name($($path,)+ $($other)?)?.into())).await,
            }
        }
    )+};
}

functions! {
    /// Returns the absolute path of a file, with all links followed.
    canonicalize(path) -> PathBuf, |disk| disk.canonical(&path);
    /// Copies the contents and permissions of a file, and returns the number of bytes.
    copy(from, to) -> u64, |disk| disk.copy(&from, &to);
    /// Creates a directory.
    create_dir(path) -> (), |disk| disk.create_dir(&path, 0o777 & !UMASK);
    /// Creates a directory and those above it that are missing.
    create_dir_all(path) -> (), |disk| disk.create_dir_all(&path, 0o777 & !UMASK);
    /// Creates a hard link.
    hard_link(original, link) -> (), |disk| disk.hard_link(&original, &link);
    /// Returns the metadata of a file, with links followed.
    metadata(path) -> Metadata, |disk| disk.status(&path, true).map(Into::into);
    /// Reads a whole file.
    read(path) -> Vec<u8>, |disk| disk.read(&path);
    /// Returns where a symbolic link points.
    read_link(path) -> PathBuf, |disk| disk.read_link(&path);
    /// Reads a whole file as UTF-8.
    read_to_string(path) -> String, |disk| {
        String::from_utf8(disk.read(&path)?)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
    };
    /// Removes an empty directory.
    remove_dir(path) -> (), |disk| disk.remove_dir(&path);
    /// Removes a directory and everything in it. Be careful.
    remove_dir_all(path) -> (), |disk| disk.remove_dir_all(&path);
    /// Removes a file.
    remove_file(path) -> (), |disk| disk.remove_file(&path);
    /// Renames a file or directory, and replaces what has the new name.
    rename(from, to) -> (), |disk| disk.rename(&from, &to);
    /// Sets the permissions of a file or directory.
    set_permissions(path; permissions: Permissions) -> (), |disk| disk.set_permissions(&path, permissions.mode());
    /// Returns the metadata of a file, or of a link itself.
    symlink_metadata(path) -> Metadata, |disk| disk.status(&path, false).map(Into::into);
}

/// Creates a symbolic link.
///
/// # Errors
/// Those of [`std::os::unix::fs::symlink`].
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let (original, link) = (original.as_ref().to_owned(), link.as_ref().to_owned());
    match simulated_disk() {
        Some(disk) => on_disk(disk, move |disk| disk.symlink(&original, &link)).await,
        None => blocking(move || std::os::unix::fs::symlink(original, link)).await,
    }
}

/// Returns whether there is a file at `path`, with links followed.
///
/// # Errors
/// Those of [`Path::try_exists`].
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    match metadata(path).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a whole file, which is created or emptied first.
///
/// # Errors
/// Those of [`std::fs::write`].
pub async fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let (path, contents) = (path.as_ref().to_owned(), contents.as_ref().to_vec());
    match simulated_disk() {
        Some(disk) => on_disk(disk, move |disk| disk.write(&path, &contents)).await,
        None => blocking(move || fs::write(path, contents)).await,
    }
}
