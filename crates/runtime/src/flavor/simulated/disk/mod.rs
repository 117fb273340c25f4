//! A node's disk in virtual time: the file system's calls, without a kernel.
//!
//! ```text
//!  File ──▶ OpenedFile ──▶ Contents: cached, and unsynced changes ── sync_all ──▶ stored ──▶ after a crash
//!  fs::rename, … ────────▶ Directory: cached, and the journal ───── sync of the directory ──▶ stored
//! ```
//! The page cache survives the end of the process. A crash of the machine keeps what was synced, and draws what it keeps of the
//! rest. Permissions are stored, and refuse nothing, as for root.

mod config;
mod contents;
mod tree;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::io::Errno;

pub use self::config::Disk;
use self::{
    contents::Contents,
    tree::{Directory, Inode, InodeKind, Tree},
};
use super::wall_clock::WallClock;
use crate::sync::{Arc, PoisonError, RealGuard, RealMutex};

/// `S_IFREG`, `S_IFDIR` and `S_IFLNK` [inode(7)].
pub(crate) const FILE: u32 = 0o100_000;
pub(crate) const DIRECTORY: u32 = 0o040_000;
pub(crate) const LINK: u32 = 0o120_000;

const TEMPORARY: &str = "/tmp";

pub(crate) struct SimulatedDisk {
    state: RealMutex<DiskState>,
    clock: Arc<WallClock>,
}

struct DiskState {
    tree: Tree,
    config: Disk,
    random: fastrand::Rng,
    /// The number of times that the machine has crashed.
    crashes: u32,
}

/// The mode in which a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenMode {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    /// Each write is synced (`O_SYNC`, `O_DSYNC`).
    pub(crate) syncs: bool,
    /// Of a new file.
    pub(crate) permissions: u32,
}

/// The status of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeStatus {
    pub(crate) number: u64,
    /// Type and permissions, as in `st_mode`.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) size_bytes: u64,
    pub(crate) modified: SystemTime,
    pub(crate) created: SystemTime,
}

/// An entry of a directory: its name, the inode, and the type.
pub(crate) type ListedEntry = (OsString, u64, u32);

impl SimulatedDisk {
    /// Creates a disk with an empty `/tmp`.
    pub(crate) fn new(seed: u64, clock: Arc<WallClock>) -> Self {
        let now = clock.now();
        let random = fastrand::Rng::with_seed(seed ^ 0x6469_736B);
        let mut tree = Tree::new(now);
        let temporary = (tree::ROOT, OsString::from(&TEMPORARY[1..]));
        tree.create(temporary, InodeKind::Directory(Directory::default()), 0o777, now);
        tree.sync_directory(tree::ROOT);
        let state = DiskState { tree, config: Disk::new(), random, crashes: 0 };
        Self { state: RealMutex::new(state), clock }
    }

    fn state(&self) -> RealGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the configuration before.
    pub(crate) fn configure(&self, config: Disk) -> Disk {
        std::mem::replace(&mut self.state().config, config)
    }

    /// The machine stops.
    pub(crate) fn crash(&self) {
        let DiskState { tree, random, crashes, .. } = &mut *self.state();
        tree.crash(random);
        *crashes += 1;
    }

    /// Draws how long an operation takes.
    pub(crate) fn draw_time(&self) -> Duration {
        let DiskState { config, random, .. } = &mut *self.state();
        config.draw_time(random)
    }

    /// Draws whether the page cache suffices for a read or write.
    pub(crate) fn draw_cached(&self) -> bool {
        self.state().random.bool()
    }

    /// Draws whether an operation fails, and calls it.
    fn with<T>(&self, call: impl FnOnce(&mut DiskState) -> Result<T, Errno>) -> io::Result<T> {
        let state = &mut *self.state();
        if state.config.draw_error(&mut state.random) {
            return Err(Errno::IO.into());
        }
        Ok(call(state)?)
    }

    fn with_tree<T>(&self, call: impl FnOnce(&mut Tree) -> Result<T, Errno>) -> io::Result<T> {
        self.with(|state| call(&mut state.tree))
    }

    pub(crate) fn open(self: &Arc<Self>, path: &Path, mode: OpenMode) -> io::Result<OpenedFile> {
        let now = self.clock.now();
        let changes = mode.write || mode.append;
        let needs_changes = mode.create || mode.create_new || mode.truncate || !mode.read;
        let is_invalid =
            needs_changes && !changes || mode.append && mode.truncate && !mode.create_new;
        if is_invalid {
            return Err(Errno::INVAL.into());
        }
        self.with(|DiskState { tree, crashes, .. }| {
            let place = tree.find(path, !mode.create_new)?;
            let number = match place.inode {
                Some(_) if mode.create_new => return Err(Errno::EXIST),
                Some(number) => number,
                None if mode.create || mode.create_new => {
                    let kind = InodeKind::File(Contents::default());
                    tree.create(place.free()?, kind, mode.permissions, now)
                }
                None => return Err(Errno::NOENT),
            };
            let inode = tree.inode_mut(number);
            match &mut inode.kind {
                InodeKind::Directory(_) if changes => return Err(Errno::ISDIR),
                InodeKind::Link(_) => return Err(Errno::LOOP),
                InodeKind::File(contents) if mode.truncate && contents.len() > 0 => {
                    contents.set_len(0);
                    inode.modified = now;
                }
                InodeKind::Directory(_) | InodeKind::File(_) => {}
            }
            inode.opened += 1;
            let disk = Arc::clone(self);
            Ok(OpenedFile { disk, number, mode, crashes: *crashes, position: RealMutex::new(0) })
        })
    }

    pub(crate) fn read(self: &Arc<Self>, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path, OpenMode { read: true, ..OpenMode::default() })?;
        let room = usize::try_from(file.status()?.size_bytes).unwrap_or(usize::MAX);
        let mut bytes = vec![0; room];
        file.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    pub(crate) fn write(self: &Arc<Self>, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mode = OpenMode { write: true, create: true, truncate: true, ..OpenMode::default() };
        self.open(path, OpenMode { permissions: 0o644, ..mode })?.write_all(bytes)
    }

    pub(crate) fn copy(self: &Arc<Self>, from: &Path, to: &Path) -> io::Result<u64> {
        let bytes = self.read(from)?;
        self.write(to, &bytes)?;
        self.set_permissions(to, self.status(from, true)?.mode)?;
        Ok(bytes.len() as u64)
    }

    pub(crate) fn status(&self, path: &Path, follows: bool) -> io::Result<InodeStatus> {
        self.with_tree(|tree| {
            let number = tree.find(path, follows)?.existing()?;
            Ok(status(number, tree.inode(number)))
        })
    }

    pub(crate) fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        self.with_tree(|tree| {
            let place = tree.find(path, true)?;
            place.existing()?;
            Ok(place.path)
        })
    }

    pub(crate) fn set_permissions(&self, path: &Path, permissions: u32) -> io::Result<()> {
        self.with_tree(|tree| {
            let number = tree.find(path, true)?.existing()?;
            tree.inode_mut(number).permissions = permissions & 0o7777;
            Ok(())
        })
    }

    pub(crate) fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        let now = self.clock.now();
        self.with_tree(|tree| {
            let place = tree.find(path, false)?.free()?;
            tree.create(place, InodeKind::Directory(Directory::default()), mode, now);
            Ok(())
        })
    }

    /// Creates a directory, and those above it that are missing.
    pub(crate) fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        let missing = |path: &Path| match self.status(path, true) {
            Ok(it) if it.mode & DIRECTORY != 0 => Ok(false),
            Ok(_) => Err(Errno::EXIST.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        };
        let mut above: Vec<&Path> =
            path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        above.reverse();
        for path in above {
            if missing(path)? {
                self.create_dir(path, mode)?;
            }
        }
        Ok(())
    }

    pub(crate) fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        let now = self.clock.now();
        self.with_tree(|tree| {
            let place = tree.find(link, false)?.free()?;
            tree.create(place, InodeKind::Link(target.to_owned()), 0o777, now);
            Ok(())
        })
    }

    pub(crate) fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.with_tree(|tree| {
            let number = tree.find(path, false)?.existing()?;
            match &tree.inode(number).kind {
                InodeKind::Link(target) => Ok(target.clone()),
                _ => Err(Errno::INVAL),
            }
        })
    }

    pub(crate) fn hard_link(&self, original: &Path, link: &Path) -> io::Result<()> {
        let now = self.clock.now();
        self.with_tree(|tree| {
            let number = tree.find(original, false)?.existing()?;
            if matches!(tree.inode(number).kind, InodeKind::Directory(_)) {
                return Err(Errno::PERM);
            }
            let (directory, name) = tree.find(link, false)?.free()?;
            tree.change(vec![(directory, name, Some(number))], now);
            Ok(())
        })
    }

    pub(crate) fn remove_file(&self, path: &Path) -> io::Result<()> {
        let now = self.clock.now();
        self.with_tree(|tree| {
            remove(
                tree,
                path,
                |kind| match kind {
                    InodeKind::Directory(_) => Err(Errno::ISDIR),
                    _ => Ok(()),
                },
                now,
            )
        })
    }

    pub(crate) fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let now = self.clock.now();
        self.with_tree(|tree| {
            remove(
                tree,
                path,
                |kind| match kind {
                    InodeKind::Directory(directory) if directory.cached.is_empty() => Ok(()),
                    InodeKind::Directory(_) => Err(Errno::NOTEMPTY),
                    _ => Err(Errno::NOTDIR),
                },
                now,
            )
        })
    }

    /// Removes a file or link, or a directory with everything in it.
    pub(crate) fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        if self.status(path, false)?.mode & DIRECTORY == 0 {
            return Err(Errno::NOTDIR.into());
        }
        for (name, _, kind) in self.list(path)? {
            let path = path.join(name);
            match kind {
                DIRECTORY => self.remove_dir_all(&path)?,
                _ => self.remove_file(&path)?,
            }
        }
        self.remove_dir(path)
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let now = self.clock.now();
        self.with_tree(|tree| {
            let (from, to) = (tree.find(from, false)?, tree.find(to, false)?);
            let moved = from.existing()?;
            let (Some(from_name), Some(to_name)) = (from.name, to.name) else {
                return Err(Errno::BUSY);
            };
            if to.inode == Some(moved) {
                return Ok(());
            }
            let is_directory = matches!(tree.inode(moved).kind, InodeKind::Directory(_));
            match to.inode.map(|number| &tree.inode(number).kind) {
                Some(InodeKind::Directory(_)) if !is_directory => return Err(Errno::ISDIR),
                Some(InodeKind::Directory(it)) if !it.cached.is_empty() => {
                    return Err(Errno::NOTEMPTY);
                }
                Some(InodeKind::File(_) | InodeKind::Link(_)) if is_directory => {
                    return Err(Errno::NOTDIR);
                }
                _ => {}
            }
            if is_directory && tree.contains(moved, to.directory) {
                return Err(Errno::INVAL);
            }
            let leaves = (from.directory, from_name, None);
            tree.change(vec![(to.directory, to_name, Some(moved)), leaves], now);
            Ok(())
        })
    }

    /// Returns the entries of a directory, in the order of their names.
    pub(crate) fn list(&self, path: &Path) -> io::Result<Vec<ListedEntry>> {
        self.with_tree(|tree| {
            let number = tree.find(path, true)?.existing()?;
            let entries = tree.directory(number)?.cached.iter();
            let listed = |(name, &number): (&OsString, &u64)| {
                (name.clone(), number, kind_mode(&tree.inode(number).kind))
            };
            Ok(entries.map(listed).collect())
        })
    }
}

fn remove(
    tree: &mut Tree,
    path: &Path,
    permits: impl FnOnce(&InodeKind) -> Result<(), Errno>,
    now: SystemTime,
) -> Result<(), Errno> {
    let place = tree.find(path, false)?;
    permits(&tree.inode(place.existing()?).kind)?;
    let name = place.name.ok_or(Errno::BUSY)?;
    tree.change(vec![(place.directory, name, None)], now);
    Ok(())
}

const fn kind_mode(kind: &InodeKind) -> u32 {
    match kind {
        InodeKind::File(_) => FILE,
        InodeKind::Directory(_) => DIRECTORY,
        InodeKind::Link(_) => LINK,
    }
}

fn status(number: u64, inode: &Inode) -> InodeStatus {
    let size_bytes = match &inode.kind {
        InodeKind::File(contents) => contents.len() as u64,
        InodeKind::Directory(_) => 4096,
        InodeKind::Link(target) => target.as_os_str().len() as u64,
    };
    InodeStatus {
        number,
        mode: kind_mode(&inode.kind) | inode.permissions,
        links: inode.links(),
        size_bytes,
        modified: inode.modified,
        created: inode.created,
    }
}

/// An open file of a disk, with its position.
pub(crate) struct OpenedFile {
    disk: Arc<SimulatedDisk>,
    number: u64,
    mode: OpenMode,
    /// Those of the disk before it was opened: it is void after the next.
    crashes: u32,
    position: RealMutex<u64>,
}

impl OpenedFile {
    pub(crate) fn disk(&self) -> &Arc<SimulatedDisk> {
        &self.disk
    }

    pub(crate) fn position(&self) -> RealGuard<'_, u64> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, call: impl FnOnce(&mut Inode) -> Result<T, Errno>) -> io::Result<T> {
        self.disk.with(|DiskState { tree, crashes, .. }| {
            if *crashes != self.crashes {
                return Err(Errno::IO);
            }
            call(tree.inode_mut(self.number))
        })
    }

    pub(crate) fn status(&self) -> io::Result<InodeStatus> {
        self.with(|inode| Ok(status(self.number, inode)))
    }

    pub(crate) fn set_permissions(&self, permissions: u32) -> io::Result<()> {
        self.with(|inode| {
            inode.permissions = permissions & 0o7777;
            Ok(())
        })
    }

    pub(crate) fn read_at(&self, room: &mut [u8], offset: u64) -> io::Result<usize> {
        if !self.mode.read {
            return Err(Errno::BADF.into());
        }
        self.with(|inode| match &inode.kind {
            InodeKind::File(contents) => {
                Ok(contents.read(usize::try_from(offset).unwrap_or(usize::MAX), room))
            }
            _ => Err(Errno::ISDIR),
        })
    }

    /// Writes at the position, or at the end if it appends, and moves the position. Less than all if the disk is full.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if !self.mode.write && !self.mode.append {
            return Err(Errno::BADF.into());
        }
        let now = self.disk.clock.now();
        let room = self.disk.room_bytes();
        let mut position = self.position();
        let count = self.with(|inode| {
            let contents = file(inode)?;
            if self.mode.append {
                *position = contents.len() as u64;
            }
            let offset = usize::try_from(*position).map_err(|_| Errno::FBIG)?;
            let end_max =
                room.map_or(usize::MAX, |room| contents.len().max(offset).saturating_add(room));
            let count = bytes.len().min(end_max.saturating_sub(offset));
            if count == 0 && !bytes.is_empty() {
                return Err(Errno::NOSPC);
            }
            contents.write(offset, &bytes[..count]);
            if self.mode.syncs {
                contents.sync();
            }
            inode.modified = now;
            Ok(count)
        })?;
        *position += count as u64;
        Ok(count)
    }

    pub(crate) fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.write(bytes)?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    pub(crate) fn set_len(&self, bytes: u64) -> io::Result<()> {
        if !self.mode.write && !self.mode.append {
            return Err(Errno::INVAL.into());
        }
        let now = self.disk.clock.now();
        self.with(|inode| {
            file(inode)?.set_len(usize::try_from(bytes).map_err(|_| Errno::FBIG)?);
            inode.modified = now;
            Ok(())
        })
    }

    /// Stores the file, or a directory's entries.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let state = &mut *self.disk.state();
        let is_refused = state.crashes != self.crashes;
        let has_failed = is_refused || state.config.draw_error(&mut state.random);
        if !is_refused {
            match &mut state.tree.inode_mut(self.number).kind {
                InodeKind::File(contents) if has_failed => contents.fail_sync(&mut state.random),
                InodeKind::File(contents) => contents.sync(),
                InodeKind::Directory(_) if !has_failed => state.tree.sync_directory(self.number),
                InodeKind::Directory(_) | InodeKind::Link(_) => {}
            }
        }
        if has_failed { Err(Errno::IO.into()) } else { Ok(()) }
    }
}

impl SimulatedDisk {
    /// Returns how many bytes more it can have. `None` without a limit.
    fn room_bytes(&self) -> Option<usize> {
        let DiskState { tree, config, .. } = &*self.state();
        let room = config.capacity_bytes()?.saturating_sub(tree.used_bytes());
        Some(usize::try_from(room).unwrap_or(usize::MAX))
    }
}

fn file(inode: &mut Inode) -> Result<&mut Contents, Errno> {
    match &mut inode.kind {
        InodeKind::File(contents) => Ok(contents),
        _ => Err(Errno::ISDIR),
    }
}

impl Drop for OpenedFile {
    fn drop(&mut self) {
        let DiskState { tree, crashes, .. } = &mut *self.disk.state();
        if *crashes == self.crashes {
            let inode = tree.inode_mut(self.number);
            inode.opened -= 1;
            if inode.opened == 0 && inode.links == 0 {
                tree.collect();
            }
        }
    }
}
