//! Files and directories, by tokio's names.
//!
//! What the kernel has in memory is read by the task itself: `preadv2` with `RWF_NOWAIT` returns cached bytes and refuses to
//! wait for a disk. Only what it refuses goes to the blocking pool, as does everything that has no such form: opening,
//! writing on most file systems, directories. A cached read of 4 KiB so costs a microsecond instead of a hop to a thread and
//! back.
//!
//! # Cancel safety
//! Unless a method says otherwise: a dropped future has begun its operation, or has not; what began ends on its thread.
//!
//! # Errors
//! Those of the function of the same name in [`std::fs`]; [`io::ErrorKind::Other`] if the runtime is shut down meanwhile;
//! [`io::ErrorKind::Unsupported`] in a simulation.
//!
//! # Panics
//! Outside a runtime.

use std::{
    fs::{self, Metadata, Permissions},
    io,
    path::{Path, PathBuf},
};

mod dir;
mod file;
mod open_options;

pub use dir::{DirBuilder, DirEntry, ReadDir, read_dir};
pub use file::File;
pub use open_options::OpenOptions;

use crate::{flavor::simulated, spawn_blocking};

/// Runs `call` on the blocking pool.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    simulated::refuse("files")?;
    spawn_blocking(call).await.unwrap_or_else(|_| Err(io::Error::other("background task failed")))
}

/// Functions that are those of std, on the blocking pool.
macro_rules! functions {
    ($($(#[$doc:meta])+ $name:ident($($path:ident),+ $(; $other:ident: $kind:ty)?) -> $result:ty;)+) => {$(
        $(#[$doc])+
        ///
        /// # Errors
        #[doc = concat!("Those of [`std::fs::", stringify!($name), "`].")]
        pub async fn $name(
            $($path: impl AsRef<Path>,)+
            $($other: $kind,)?
        ) -> io::Result<$result> {
            $(let $path = $path.as_ref().to_owned();)+
            blocking(move || fs::$name($($path,)+ $($other)?)).await
        }
    )+};
}

functions! {
    /// Returns the absolute path of a file, with all links followed.
    canonicalize(path) -> PathBuf;
    /// Copies the contents and permissions of a file, and returns the number of bytes.
    copy(from, to) -> u64;
    /// Creates a directory.
    create_dir(path) -> ();
    /// Creates a directory and those above it that are missing.
    create_dir_all(path) -> ();
    /// Creates a hard link.
    hard_link(original, link) -> ();
    /// Returns the metadata of a file, with links followed.
    metadata(path) -> Metadata;
    /// Reads a whole file.
    read(path) -> Vec<u8>;
    /// Returns where a symbolic link points.
    read_link(path) -> PathBuf;
    /// Reads a whole file as UTF-8.
    read_to_string(path) -> String;
    /// Removes an empty directory.
    remove_dir(path) -> ();
    /// Removes a directory and everything in it. Be careful.
    remove_dir_all(path) -> ();
    /// Removes a file.
    remove_file(path) -> ();
    /// Renames a file or directory, and replaces what has the new name.
    rename(from, to) -> ();
    /// Sets the permissions of a file or directory.
    set_permissions(path; permissions: Permissions) -> ();
    /// Returns the metadata of a file, or of a link itself.
    symlink_metadata(path) -> Metadata;
}

/// Creates a symbolic link.
///
/// # Errors
/// Those of [`std::os::unix::fs::symlink`].
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let (original, link) = (original.as_ref().to_owned(), link.as_ref().to_owned());
    blocking(move || std::os::unix::fs::symlink(original, link)).await
}

/// Returns whether there is a file at `path`, with links followed.
///
/// # Errors
/// Those of [`Path::try_exists`].
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    let path = path.as_ref().to_owned();
    blocking(move || path.try_exists()).await
}

/// Writes a whole file, which is created or emptied first.
///
/// # Errors
/// Those of [`std::fs::write`].
pub async fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let (path, contents) = (path.as_ref().to_owned(), contents.as_ref().to_vec());
    blocking(move || fs::write(path, contents)).await
}
