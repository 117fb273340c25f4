//! How to open a file.

use std::{fs, io, os::unix::fs::OpenOptionsExt, path::Path};

use super::{File, blocking};

/// How to open a file: [`std::fs::OpenOptions`] whose [`open`](Self::open) is awaited.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    std: fs::OpenOptions,
}

/// Methods of the builder that are those of std.
macro_rules! forward {
    ($($name:ident: $kind:ty = $doc:literal;)+) => {$(
        #[doc = $doc]
        pub fn $name(&mut self, value: $kind) -> &mut Self {
            self.std.$name(value);
            self
        }
    )+};
}

impl OpenOptions {
    /// Creates options of which none is set.
    #[must_use]
    pub fn new() -> Self {
        fs::OpenOptions::new().into()
    }

    forward! {
        read: bool = "Sets whether the file can be read. Default off.";
        write: bool = "Sets whether the file can be written. Default off.";
        append: bool = "Sets whether each write goes to the end. Default off.";
        truncate: bool = "Sets whether the file is emptied. Default off.";
        create: bool = "Sets whether the file is created if there is none. Default off.";
        create_new: bool = "Sets whether there must not be a file yet. Default off.";
        mode: u32 = "Sets the permissions of a new file, from which the process's mask is taken. Default `0o666`.";
        custom_flags: i32 = "Sets further flags of open(2).";
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// Those of [`std::fs::OpenOptions::open`].
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let (options, path) = (self.std.clone(), path.as_ref().to_owned());
        blocking(move || options.open(path)).await.map(File::from_std)
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl From<fs::OpenOptions> for OpenOptions {
    fn from(std: fs::OpenOptions) -> Self {
        Self { std }
    }
}
