//! Metadata of a file.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::flavor::simulated::{DIRECTORY, FILE, InodeStatus, LINK};

/// The bits of `st_mode` that are the type [inode(7)].
const TYPE: u32 = 0o170_000;

/// The size of a block of [`blocks`](MetadataExt::blocks).
const BLOCK_BYTES: u64 = 512;

/// The metadata of a file: [`std::fs::Metadata`], or that of a file on a simulated disk. The methods of [`MetadataExt`] work, too.
#[derive(Clone, Debug)]
pub struct Metadata {
    kind: MetadataKind,
}

#[derive(Clone, Debug)]
enum MetadataKind {
    Std(fs::Metadata),
    Simulated(InodeStatus),
}

impl Metadata {
    /// Returns the metadata of the standard library. `None` in a simulation.
    #[must_use]
    pub const fn as_std(&self) -> Option<&fs::Metadata> {
        match &self.kind {
            MetadataKind::Std(std) => Some(std),
            MetadataKind::Simulated(_) => None,
        }
    }

    /// Returns the type.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        FileType { bits: self.mode() & TYPE }
    }

    /// Returns whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Returns whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Returns whether it is a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Returns the size in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "std's name")]
    pub fn len(&self) -> u64 {
        self.size()
    }

    /// Returns the permissions.
    #[must_use]
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.mode())
    }

    /// Returns when the contents last changed; in a simulation, by the wall clock of the node.
    ///
    /// # Errors
    /// Those of [`std::fs::Metadata::modified`].
    pub fn modified(&self) -> io::Result<SystemTime> {
        match &self.kind {
            MetadataKind::Std(std) => std.modified(),
            MetadataKind::Simulated(status) => Ok(status.modified),
        }
    }

    /// Returns when the contents were last read; in a simulation, when they last changed.
    ///
    /// # Errors
    /// Those of [`std::fs::Metadata::accessed`].
    pub fn accessed(&self) -> io::Result<SystemTime> {
        match &self.kind {
            MetadataKind::Std(std) => std.accessed(),
            MetadataKind::Simulated(status) => Ok(status.modified),
        }
    }

    /// Returns when the file was created.
    ///
    /// # Errors
    /// Those of [`std::fs::Metadata::created`].
    pub fn created(&self) -> io::Result<SystemTime> {
        match &self.kind {
            MetadataKind::Std(std) => std.created(),
            MetadataKind::Simulated(status) => Ok(status.created),
        }
    }
}

impl From<fs::Metadata> for Metadata {
    fn from(std: fs::Metadata) -> Self {
        Self { kind: MetadataKind::Std(std) }
    }
}

impl From<InodeStatus> for Metadata {
    fn from(status: InodeStatus) -> Self {
        Self { kind: MetadataKind::Simulated(status) }
    }
}

/// The methods of [`MetadataExt`]: std's, or an expression of what the simulated disk knows.
macro_rules! numbers {
    ($($name:ident -> $kind:ty, $status:ident => $value:expr;)+) => {
        impl MetadataExt for Metadata {$(
            fn $name(&self) -> $kind {
                match &self.kind {
                    MetadataKind::Std(std) => std.$name(),
                    MetadataKind::Simulated($status) => $value,
                }
            }
        )+}
    };
}

numbers! {
    dev -> u64, _it => 1;
    ino -> u64, it => it.number;
    mode -> u32, it => it.mode;
    nlink -> u64, it => it.links.into();
    uid -> u32, _it => 0;
    gid -> u32, _it => 0;
    rdev -> u64, _it => 0;
    size -> u64, it => it.size_bytes;
    atime -> i64, it => seconds(it.modified).0;
    atime_nsec -> i64, it => seconds(it.modified).1;
    mtime -> i64, it => seconds(it.modified).0;
    mtime_nsec -> i64, it => seconds(it.modified).1;
    ctime -> i64, it => seconds(it.modified).0;
    ctime_nsec -> i64, it => seconds(it.modified).1;
    blksize -> u64, _it => 4096;
    blocks -> u64, it => it.size_bytes.div_ceil(BLOCK_BYTES);
}

fn seconds(time: SystemTime) -> (i64, i64) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos().into())
}

/// The type of a file, with the methods of [`std::fs::FileType`]; those of [`FileTypeExt`] work, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileType {
    bits: u32,
}

impl FileType {
    pub(super) const fn from_bits(bits: u32) -> Self {
        Self { bits }
    }

    /// Returns whether it is a directory.
    #[must_use]
    pub const fn is_dir(&self) -> bool {
        self.bits == DIRECTORY
    }

    /// Returns whether it is a regular file.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        self.bits == FILE
    }

    /// Returns whether it is a symbolic link.
    #[must_use]
    pub const fn is_symlink(&self) -> bool {
        self.bits == LINK
    }
}

impl FileTypeExt for FileType {
    fn is_block_device(&self) -> bool {
        self.bits == BLOCK_DEVICE
    }

    fn is_char_device(&self) -> bool {
        self.bits == CHARACTER_DEVICE
    }

    fn is_fifo(&self) -> bool {
        self.bits == FIFO
    }

    fn is_socket(&self) -> bool {
        self.bits == SOCKET
    }
}

const BLOCK_DEVICE: u32 = 0o060_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const FIFO: u32 = 0o010_000;
const SOCKET: u32 = 0o140_000;

impl From<fs::FileType> for FileType {
    fn from(std: fs::FileType) -> Self {
        let types = [
            (std.is_file(), FILE),
            (std.is_dir(), DIRECTORY),
            (std.is_symlink(), LINK),
            (std.is_block_device(), BLOCK_DEVICE),
            (std.is_char_device(), CHARACTER_DEVICE),
            (std.is_fifo(), FIFO),
            (std.is_socket(), SOCKET),
        ];
        let bits = types.into_iter().find(|(is_it, _)| *is_it).map_or(0, |(_, bits)| bits);
        Self { bits }
    }
}
