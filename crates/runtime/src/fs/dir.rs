//! Directories.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs,
    future::{Future, poll_fn},
    io,
    os::unix::fs::{DirBuilderExt, DirEntryExt},
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{FileType, Metadata, UMASK, blocking, on_disk, simulated_disk};
use crate::{
    flavor::simulated::{ListedEntry, SimulatedDisk},
    spawn_blocking,
    sync::Arc,
    task_cell::JoinHandle,
};

/// The number of entries that one visit to the blocking pool reads.
const BATCH: usize = 32;

/// Begins to read a directory.
///
/// # Errors
/// Those of [`std::fs::read_dir`].
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref().to_owned();
    let batch = match simulated_disk() {
        Some(disk) => on_disk(disk, move |disk| Batch::list(disk, &path)).await?,
        None => blocking(move || Batch::read(fs::read_dir(path)?)).await?,
    };
    Ok(ReadDir { batch, running: None })
}

/// The entries of a directory, in no particular order: see [`read_dir`].
#[derive(Debug)]
#[must_use = "nothing is read until `next_entry` is awaited"]
pub struct ReadDir {
    batch: Batch,
    running: Option<JoinHandle<io::Result<Batch>>>,
}

#[derive(Debug, Default)]
struct Batch {
    entries: VecDeque<io::Result<DirEntry>>,
    /// `None` at the end.
    rest: Option<fs::ReadDir>,
}

impl Batch {
    #[expect(clippy::unnecessary_wraps, reason = "it continues a fallible call")]
    fn read(mut rest: fs::ReadDir) -> io::Result<Self> {
        let mut entries = VecDeque::with_capacity(BATCH);
        while entries.len() < BATCH {
            match rest.next() {
                Some(entry) => {
                    // Known by the directory on most file systems, so it costs nothing more here.
                    entries.push_back(entry.map(|std| DirEntry {
                        kind: std.file_type().ok().map(Into::into),
                        source: EntrySource::Std(Arc::new(std)),
                    }));
                }
                None => return Ok(Self { entries, rest: None }),
            }
        }
        Ok(Self { entries, rest: Some(rest) })
    }

    fn list(disk: &Arc<SimulatedDisk>, path: &Path) -> io::Result<Self> {
        let on_disk = |(name, number, bits): ListedEntry| DirEntry {
            kind: Some(FileType::from_bits(bits)),
            source: EntrySource::Simulated { path: path.join(name), number },
        };
        let entries = disk.list(path)?.into_iter().map(|entry| Ok(on_disk(entry))).collect();
        Ok(Self { entries, rest: None })
    }
}

impl ReadDir {
    /// Returns the next entry; `None` at the end.
    ///
    /// # Cancel safety
    /// Cancel safe: no entry is lost.
    ///
    /// # Errors
    /// The kernel's error for this entry; later ones may follow.
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        poll_fn(|cx| self.poll_next_entry(cx)).await
    }

    /// The poll-style [`next_entry`](Self::next_entry).
    ///
    /// # Errors
    /// Same as [`next_entry`](Self::next_entry).
    pub fn poll_next_entry(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<DirEntry>>> {
        loop {
            if let Some(running) = &mut self.running {
                let batch = ready!(Pin::new(running).poll(cx));
                self.running = None;
                self.batch = batch.unwrap_or_else(|error| Err(error.into()))?;
            }
            if let Some(entry) = self.batch.entries.pop_front() {
                return Poll::Ready(entry.map(Some));
            }
            let Some(rest) = self.batch.rest.take() else { return Poll::Ready(Ok(None)) };
            self.running = Some(spawn_blocking(|| Batch::read(rest)));
        }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    source: EntrySource,
    kind: Option<FileType>,
}

#[derive(Clone, Debug)]
enum EntrySource {
    Std(Arc<fs::DirEntry>),
    Simulated { path: PathBuf, number: u64 },
}

impl DirEntry {
    /// Returns the path of the directory with this name at its end.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match &self.source {
            EntrySource::Std(std) => std.path(),
            EntrySource::Simulated { path, .. } => path.clone(),
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn file_name(&self) -> OsString {
        match &self.source {
            EntrySource::Std(std) => std.file_name(),
            EntrySource::Simulated { path, .. } => path.file_name().unwrap_or_default().to_owned(),
        }
    }

    /// Returns the number of the inode.
    #[must_use]
    pub fn ino(&self) -> u64 {
        match &self.source {
            EntrySource::Std(std) => std.ino(),
            EntrySource::Simulated { number, .. } => *number,
        }
    }

    /// Returns the metadata of the file, or of a link itself.
    ///
    /// # Errors
    /// Those of [`std::fs::DirEntry::metadata`].
    pub async fn metadata(&self) -> io::Result<Metadata> {
        match &self.source {
            EntrySource::Std(std) => {
                let std = Arc::clone(std);
                blocking(move || std.metadata()).await.map(Into::into)
            }
            EntrySource::Simulated { path, .. } => super::symlink_metadata(path).await,
        }
    }

    /// Returns the type of the file, or that it is a link.
    ///
    /// # Errors
    /// Those of [`std::fs::DirEntry::file_type`].
    pub async fn file_type(&self) -> io::Result<FileType> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => Ok(self.metadata().await?.file_type()),
        }
    }
}

/// Options for the creation of directories.
#[derive(Debug, Default)]
pub struct DirBuilder {
    is_recursive: bool,
    mode: Option<u32>,
}

impl DirBuilder {
    /// Creates the default: one directory, open to all as far as the process's mask allows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether directories above that are missing are created too. Default off.
    pub const fn recursive(&mut self, is_recursive: bool) -> &mut Self {
        self.is_recursive = is_recursive;
        self
    }

    /// Sets the permissions, from which the process's mask is taken. Default `0o777`.
    pub const fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// Those of [`std::fs::DirBuilder::create`].
    pub async fn create(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(self.is_recursive);
        if let Some(mode) = self.mode {
            builder.mode(mode);
        }
        let path = path.as_ref().to_owned();
        let Some(disk) = simulated_disk() else {
            return blocking(move || builder.create(path)).await;
        };
        let (mode, is_recursive) = (self.mode.unwrap_or(0o777) & !UMASK, self.is_recursive);
        let create = move |disk: &Arc<SimulatedDisk>| match is_recursive {
            true => disk.create_dir_all(&path, mode),
            false => disk.create_dir(&path, mode),
        };
        on_disk(disk, create).await
    }
}
