//! A file that one flow has alone.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use thiserror::Error;

/// The number of attempts to lock a file whose holder is replacing it.
const ATTEMPTS: u32 = 16;

/// The reason why a file could not be locked, read or written.
#[derive(Debug, Error)]
pub(super) enum LockedFileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another flow has it: of the process `holder`, if that is known.
    #[error("another flow has it")]
    InUse { holder: Option<u32> },
}

/// A file with a lock on it (`flock(2)`), which ends with its holder, however that ends.
///
/// It is replaced as a whole: the new file is locked before it is renamed, so that the path always leads to a locked file.
#[derive(Debug)]
pub(super) struct LockedFile {
    path: PathBuf,
    /// `None`: it could not be locked yet.
    file: Option<File>,
}

impl LockedFile {
    /// Locks a file. If it does not exist, it is created.
    pub(super) fn open(path: &Path) -> Result<Self, LockedFileError> {
        Ok(Self { path: path.to_owned(), file: Some(lock(path)?) })
    }

    /// Stands for a file that cannot be locked now; [`replace`](Self::replace) tries it again.
    pub(super) fn later(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None }
    }

    /// Reads all of it.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if let Some(mut file) = self.file.as_ref() {
            file.read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    }

    /// Returns the time since it was written. A clock that was set back makes it younger.
    pub(super) fn age(&self) -> Duration {
        let metadata = self.file.as_ref().and_then(|file| file.metadata().ok());
        let written = metadata.and_then(|metadata| metadata.modified().ok());
        written.and_then(|written| written.elapsed().ok()).unwrap_or_default()
    }

    /// Writes a new file, and puts it in the place of the old one.
    pub(super) fn replace(&mut self, bytes: &[u8]) -> Result<(), LockedFileError> {
        // If it was removed, another flow may have made one of its own.
        if !self.file.as_ref().is_some_and(|file| is_at(file, &self.path)) {
            self.file = Some(lock(&self.path)?);
        }
        let mut name = self.path.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        let write = || {
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.try_lock()?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            Ok(file)
        };
        let written: io::Result<File> = write();
        if written.is_err() {
            // What was written of it takes room on a full disk.
            let _ = fs::remove_file(&new);
        }
        self.file = Some(written?);
        Ok(())
    }
}

fn lock(path: &Path) -> Result<File, LockedFileError> {
    for _ in 0..ATTEMPTS {
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            // Its holder may have put a new one in its place, and freed this one.
            Ok(()) if is_at(&file, path) => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockedFileError::InUse { holder: holder(&file) });
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
    Err(LockedFileError::InUse { holder: None })
}

/// Returns whether a path leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(file), Ok(there)) = (file.metadata(), fs::metadata(path)) else { return false };
    (file.dev(), file.ino()) == (there.dev(), there.ino())
}

/// Returns the process that has the lock on a file, if it is one of this process' namespace.
fn holder(file: &File) -> Option<u32> {
    let inode = format!(":{}", file.metadata().ok()?.ino());
    holder_in(&fs::read_to_string("/proc/locks").ok()?, &inode)
}

/// Finds the holder in the kernel's list: `1: FLOCK  ADVISORY  WRITE 712 08:01:1234 0 EOF`.
fn holder_in(locks: &str, inode: &str) -> Option<u32> {
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (kind, pid, file) = (words.next()?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && file.ends_with(inode)).then(|| pid.parse().ok())?
    };
    locks.lines().find_map(of_line).filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the holder of a lock is found, and no other. Method: a list of the kernel with other locks, a waiting one, and a
    /// holder of another namespace.
    #[test]
    fn the_holder_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 08:01:12 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 6 08:01:112 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 7 08:01:12 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 8 08:01:12 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 08:01:13 0 EOF\n";
        assert_eq!(holder_in(locks, ":12"), Some(7));
        assert_eq!(holder_in(locks, ":13"), None);
        assert_eq!(holder_in(locks, ":14"), None);
    }

    /// Goal: one has a file at a time, before and after it was replaced, and also if it was removed meanwhile; then the next
    /// one reads what was written last. Method: two that lock one path in turn.
    #[test]
    fn one_has_it_at_a_time() {
        let name = format!("vigie-forward-locked-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let is_taken = || match LockedFile::open(&path) {
            Err(LockedFileError::InUse { holder }) => {
                assert_eq!(holder, Some(std::process::id()));
                true
            }
            opened => opened.is_err(),
        };
        let mut first = LockedFile::open(&path).unwrap();
        assert_eq!(first.read().unwrap(), b"");
        assert!(is_taken());
        for bytes in [b"one", b"two"] {
            first.replace(bytes).unwrap();
            assert!(is_taken());
        }
        drop(first);
        let mut first = LockedFile::open(&path).unwrap();
        assert_eq!(first.read().unwrap(), b"two");
        fs::remove_file(&path).unwrap();
        let mut second = LockedFile::open(&path).unwrap();
        let lost = first.replace(b"first").unwrap_err();
        assert!(matches!(lost, LockedFileError::InUse { .. }), "{lost}");
        second.replace(b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        drop(second);
        first.replace(b"first").unwrap();
        assert!(is_taken());
        fs::remove_file(&path).unwrap();
    }

    /// Goal: the age of a file follows the wall clock, and one from the future, as after the clock was set back, is new. Method: a file whose time is an hour ago, and
    /// in an hour.
    #[test]
    fn a_file_from_the_future_is_new() {
        let name = format!("vigie-forward-aged-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let hour = Duration::from_secs(3600);
        let mut file = LockedFile::open(&path).unwrap();
        file.replace(b"one").unwrap();
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        let set = |to| File::open(&path).unwrap().set_modified(to).unwrap();
        set(written - hour);
        assert!(file.age() >= hour);
        set(written + hour);
        assert_eq!(file.age(), Duration::ZERO);
        fs::remove_file(&path).unwrap();
    }
}
