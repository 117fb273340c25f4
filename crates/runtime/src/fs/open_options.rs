//! Options for opening a file.

use std::{fs, io, os::unix::fs::OpenOptionsExt, path::Path};

use libc::{O_CLOEXEC, O_DIRECT, O_DSYNC, O_NOATIME, O_NONBLOCK, O_SYNC};

use super::{
    File, UMASK, blocking, on_disk,
    open_file::{OpenFile, SimulatedFile},
    simulated_disk,
};
use crate::{flavor::simulated::OpenMode, sync::Arc};

/// Options for opening a file: [`std::fs::OpenOptions`] whose [`open`](Self::open) is awaited.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    std: fs::OpenOptions,
    /// The same for a simulated disk. `None` if they came from std, which does not tell them.
    simulated: Option<OpenMode>,
    flags: i32,
}

/// Methods of the builder that are those of std.
macro_rules! forward {
    ($($name:ident: $kind:ty = $doc:literal, |$mode:ident| $set:expr;)+) => {$(
        #[doc = $doc]
        pub fn $name(&mut self, value: $kind) -> &mut Self {
            self.std.$name(value);
            if let Some($mode) = &mut self.simulated {
                $set = value;
            }
            self
        }
    )+};
}

impl OpenOptions {
    /// Creates options of which none is set.
    #[must_use]
    pub fn new() -> Self {
        let simulated = Some(OpenMode { permissions: 0o666, ..OpenMode::default() });
        Self { std: fs::OpenOptions::new(), simulated, flags: 0 }
    }

    forward! {
        read: bool = "Sets whether the file can be read. Default off.", |it| it.read;
        write: bool = "Sets whether the file can be written. Default off.", |it| it.write;
        append: bool = "Sets whether each write goes to the end. Default off.", |it| it.append;
        truncate: bool = "Sets whether the file is emptied. Default off.", |it| it.truncate;
        create: bool = "Sets whether the file is created if there is none. Default off.", |it| it.create;
        create_new: bool = "Sets whether the file is created, which fails if there already is one. Default off.", |it| it.create_new;
        mode: u32 = "Sets the permissions of a new file, from which the process's mask is taken. Default `0o666`.", |it| it.permissions;
    }

    /// Sets further flags of open(2). A simulated disk knows `O_SYNC` and `O_DSYNC`, ignores `O_DIRECT`, `O_NOATIME`, `O_NONBLOCK` and
    /// `O_CLOEXEC`, and refuses others.
    pub fn custom_flags(&mut self, value: i32) -> &mut Self {
        self.std.custom_flags(value);
        self.flags = value;
        self
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// Those of [`std::fs::OpenOptions::open`]. In a simulation, [`io::ErrorKind::Unsupported`] for flags that the disk does not
    /// know, and for options that were made from those of std, which do not tell what they are.
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref().to_owned();
        let Some(disk) = simulated_disk() else {
            let options = self.std.clone();
            return blocking(move || options.open(path)).await.map(File::from_std);
        };
        let mode = self.simulated_mode()?;
        let opened = on_disk(disk, move |disk| disk.open(&path, mode)).await?;
        Ok(File::new(OpenFile::Simulated(SimulatedFile::new(Arc::new(opened)))))
    }

    fn simulated_mode(&self) -> io::Result<OpenMode> {
        let (ignored, syncs) = (O_DIRECT | O_NOATIME | O_NONBLOCK | O_CLOEXEC, O_SYNC | O_DSYNC);
        match self.simulated {
            Some(mode) if self.flags & !(ignored | syncs) == 0 => Ok(OpenMode {
                syncs: self.flags & syncs != 0,
                permissions: mode.permissions & 0o7777 & !UMASK,
                ..mode
            }),
            _ => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a simulated disk does not know these options",
            )),
        }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl From<fs::OpenOptions> for OpenOptions {
    fn from(std: fs::OpenOptions) -> Self {
        Self { std, simulated: None, flags: 0 }
    }
}
