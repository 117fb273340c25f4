//! Inodes and directories, and which of the directories' changes the disk has.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::{OsStr, OsString},
    path::{Component, Path, PathBuf},
    time::SystemTime,
};

use rustix::io::Errno;

use super::contents::Contents;

pub(super) const ROOT: u64 = 1;

/// After this many changes of directories without a sync, the simulated kernel writes back the oldest one.
const JOURNAL_MAX: usize = 1024;

/// The number of symbolic links that a path may lead through [path_resolution(7)].
const LINKS_MAX: u32 = 40;

const NAME_BYTES_MAX: usize = 255;

pub(super) struct Inode {
    pub(super) kind: InodeKind,
    pub(super) permissions: u32,
    pub(super) created: SystemTime,
    pub(super) modified: SystemTime,
    /// The number of its names.
    pub(super) links: u32,
    /// The number of times that it is open.
    pub(super) opened: u32,
}

pub(super) enum InodeKind {
    File(Contents),
    Directory(Directory),
    Link(PathBuf),
}

#[derive(Default)]
pub(super) struct Directory {
    /// The entries that the tasks see.
    pub(super) cached: Entries,
    /// The entries that the disk surely has.
    stored: Entries,
}

pub(super) type Entries = BTreeMap<OsString, u64>;

/// A change of an entry: its directory, its name, and the inode that it then has.
pub(super) type EntryChange = (u64, OsString, Option<u64>);

pub(super) struct Tree {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    /// Changes of directories that were not synced, in their order. Each happens completely or not at all.
    journal: VecDeque<Vec<EntryChange>>,
}

/// The place that a path leads to.
pub(super) struct Place {
    pub(super) directory: u64,
    /// `None` if the path ends with the root or `..`.
    pub(super) name: Option<OsString>,
    /// `None` if there is no such entry.
    pub(super) inode: Option<u64>,
    /// The path without links.
    pub(super) path: PathBuf,
}

impl Place {
    pub(super) fn existing(&self) -> Result<u64, Errno> {
        self.inode.ok_or(Errno::NOENT)
    }

    /// Returns the name, which must not be in use.
    pub(super) fn free(self) -> Result<(u64, OsString), Errno> {
        match (self.name, self.inode) {
            (Some(name), None) => Ok((self.directory, name)),
            _ => Err(Errno::EXIST),
        }
    }
}

impl Inode {
    fn new(kind: InodeKind, permissions: u32, now: SystemTime) -> Self {
        Self { kind, permissions, created: now, modified: now, links: 0, opened: 0 }
    }

    pub(super) fn links(&self) -> u32 {
        match self.kind {
            // Its name and its own `.`.
            InodeKind::Directory(_) => self.links + 1,
            _ => self.links,
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self.kind, InodeKind::Directory(_))
    }
}

impl Tree {
    pub(super) fn new(now: SystemTime) -> Self {
        let mut root = Inode::new(InodeKind::Directory(Directory::default()), 0o755, now);
        root.links = 1;
        let (inodes, journal) = (BTreeMap::from([(ROOT, root)]), VecDeque::new());
        Self { inodes, next: ROOT + 1, journal }
    }

    pub(super) fn inode(&self, number: u64) -> &Inode {
        self.inodes.get(&number).expect("invariant: a reachable or open inode is kept")
    }

    pub(super) fn inode_mut(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("invariant: a reachable or open inode is kept")
    }

    /// Returns the bytes of all files that have a name or are open.
    pub(super) fn used_bytes(&self) -> u64 {
        let size = |inode: &Inode| match &inode.kind {
            InodeKind::File(contents) if inode.links + inode.opened > 0 => contents.len() as u64,
            _ => 0,
        };
        self.inodes.values().map(size).sum()
    }

    pub(super) fn directory(&self, number: u64) -> Result<&Directory, Errno> {
        match &self.inode(number).kind {
            InodeKind::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn directory_mut(&mut self, number: u64) -> &mut Directory {
        match &mut self.inode_mut(number).kind {
            InodeKind::Directory(directory) => directory,
            _ => unreachable!("only directories have entries"),
        }
    }

    /// Follows a path from the root, and a link at its end if `follows`.
    pub(super) fn find(&self, path: &Path, follows: bool) -> Result<Place, Errno> {
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT);
        }
        let mut rest: VecDeque<OsString> = parts(path).collect();
        let mut above = vec![(ROOT, OsString::from("/"))];
        let mut links = 0;
        loop {
            let place = |directory, name, inode| {
                let path = above.iter().map(|(_, name)| name).chain(&name).collect();
                Ok(Place { directory, name, inode, path })
            };
            let (here, _) = *above.last().expect("invariant: the root is never left");
            let directory = self.directory(here)?;
            let Some(name) = rest.pop_front() else {
                let (parent, name) = match above.as_slice() {
                    [.., (parent, _), (_, name)] => (*parent, Some(name.clone())),
                    _ => (ROOT, None),
                };
                let mut found = place(parent, None, Some(here))?;
                found.name = name;
                return Ok(found);
            };
            if name == ".." {
                above.truncate((above.len() - 1).max(1));
                continue;
            }
            if name.len() > NAME_BYTES_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            let is_last = rest.is_empty();
            let Some(&inode) = directory.cached.get(&name) else {
                return if is_last { place(here, Some(name), None) } else { Err(Errno::NOENT) };
            };
            match &self.inode(inode).kind {
                InodeKind::Link(target) if follows || !is_last => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP);
                    }
                    if target.is_absolute() {
                        above.truncate(1);
                    }
                    for part in parts(target).collect::<Vec<_>>().into_iter().rev() {
                        rest.push_front(part);
                    }
                }
                InodeKind::Directory(_) => above.push((inode, name)),
                _ if is_last => return place(here, Some(name), Some(inode)),
                _ => return Err(Errno::NOTDIR),
            }
        }
    }

    /// Creates an inode with a name.
    pub(super) fn create(
        &mut self,
        (directory, name): (u64, OsString),
        kind: InodeKind,
        permissions: u32,
        now: SystemTime,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        self.inodes.insert(number, Inode::new(kind, permissions, now));
        self.change(vec![(directory, name, Some(number))], now);
        number
    }

    /// Changes entries, all at once.
    pub(super) fn change(&mut self, changes: Vec<EntryChange>, now: SystemTime) {
        let mut replaced = Vec::new();
        for (directory, name, inode) in &changes {
            let entries = &mut self.directory_mut(*directory).cached;
            replaced.extend(match inode {
                Some(inode) => entries.insert(name.clone(), *inode),
                None => entries.remove(name),
            });
            self.inode_mut(*directory).modified = now;
            if let Some(inode) = inode {
                self.inode_mut(*inode).links += 1;
            }
        }
        for inode in replaced {
            self.inode_mut(inode).links -= 1;
        }
        self.journal.push_back(changes);
        if self.journal.len() > JOURNAL_MAX
            && let Some(oldest) = self.journal.pop_front()
        {
            self.store(oldest);
            self.collect();
        }
    }

    fn store(&mut self, changes: Vec<EntryChange>) {
        for (directory, name, inode) in changes {
            // A directory that was removed has no entries any more.
            let Some(Inode { kind: InodeKind::Directory(directory), .. }) =
                self.inodes.get_mut(&directory)
            else {
                continue;
            };
            match inode {
                Some(inode) => directory.stored.insert(name, inode),
                None => directory.stored.remove(&name),
            };
        }
    }

    /// Stores a directory's entries; and those of others as far as something moved between them, with what happened there
    /// before.
    pub(super) fn sync_directory(&mut self, number: u64) {
        let mut wanted = BTreeSet::from([number]);
        let (mut due, mut rest) = (Vec::new(), VecDeque::new());
        while let Some(changes) = self.journal.pop_back() {
            if changes.iter().any(|(directory, ..)| wanted.contains(directory)) {
                wanted.extend(changes.iter().map(|(directory, ..)| *directory));
                due.push(changes);
            } else {
                rest.push_front(changes);
            }
        }
        self.journal = rest;
        for changes in due.into_iter().rev() {
            self.store(changes);
        }
        self.collect();
    }

    /// Forgets inodes that have no name, neither now nor after a crash, and are not open.
    pub(super) fn collect(&mut self) {
        let mut named: BTreeSet<u64> =
            self.journal.iter().flatten().filter_map(|(.., inode)| *inode).collect();
        for inode in self.inodes.values() {
            if let InodeKind::Directory(directory) = &inode.kind {
                named.extend(directory.stored.values());
            }
        }
        self.inodes
            .retain(|number, inode| inode.links > 0 || inode.opened > 0 || named.contains(number));
    }

    /// The machine stops. Of what was not synced, the directories keep the changes up to a drawn one, as a journal does, and each
    /// file whatever is drawn.
    pub(super) fn crash(&mut self, random: &mut fastrand::Rng) {
        let kept = random.usize(0..=self.journal.len());
        let journal = std::mem::take(&mut self.journal);
        for changes in journal.into_iter().take(kept) {
            self.store(changes);
        }
        for inode in self.inodes.values_mut() {
            (inode.links, inode.opened) = (0, 0);
            match &mut inode.kind {
                InodeKind::File(contents) => contents.crash(random),
                InodeKind::Directory(directory) => directory.cached.clone_from(&directory.stored),
                InodeKind::Link(_) => {}
            }
        }
        self.inode_mut(ROOT).links = 1;
        let mut directories = vec![ROOT];
        while let Some(directory) = directories.pop() {
            for child in self.directory_mut(directory).cached.clone().into_values() {
                let inode = self.inode_mut(child);
                inode.links += 1;
                if inode.is_directory() {
                    directories.push(child);
                }
            }
        }
        self.inodes.retain(|_, inode| inode.links > 0);
    }

    /// Returns whether `inner` is in the directory `outer`, or is it.
    pub(super) fn contains(&self, outer: u64, inner: u64) -> bool {
        outer == inner
            || self.directory(outer).is_ok_and(|directory| {
                directory.cached.values().any(|&child| self.contains(child, inner))
            })
    }
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}
