//! The file that a `File` has open: one of the kernel, or one on a simulated disk.

use std::{
    fs::{self, Permissions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{FileExt, PermissionsExt},
    },
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};

use super::{Metadata, refuse_std_file};
use crate::{
    flavor::simulated::OpenedFile,
    spawn, spawn_blocking,
    sync::{Arc, OnceLock, PoisonError, RealGuard, RealMutex},
    task_cell::JoinHandle,
    time,
};

pub(super) enum OpenFile {
    Std(fs::File),
    Simulated(SimulatedFile),
}

/// A file on a simulated disk. Clones have the position in common.
pub(super) struct SimulatedFile {
    opened: Arc<OpenedFile>,
    deferred: RealMutex<DeferredWrite>,
    descriptor: OnceLock<OwnedFd>,
}

/// A write that returned before it has happened.
#[derive(Default)]
struct DeferredWrite {
    bytes: Option<Vec<u8>>,
    /// Once it has happened.
    result: Option<io::Result<()>>,
}

impl OpenFile {
    /// Runs `call`: on the blocking pool, or once the simulated disk has moved.
    pub(super) fn start<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> JoinHandle<io::Result<T>> {
        let file = Arc::clone(self);
        match &**self {
            Self::Std(_) => spawn_blocking(move || {
                refuse_std_file()?;
                call(&file)
            }),
            Self::Simulated(it) => {
                let moves = time::sleep(it.opened.disk().draw_time());
                spawn(async move {
                    moves.await;
                    call(&file)
                })
            }
        }
    }

    pub(super) fn read_at(&self, room: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Self::Std(file) => file.read_at(room, offset),
            Self::Simulated(it) => it.opened.read_at(room, offset),
        }
    }

    /// Reads at the position of the file without moving it, or the next bytes of one that has no position, such as a pipe. Returns whether it has one.
    pub(super) fn read_here(&self, room: &mut [u8]) -> io::Result<(usize, bool)> {
        match self {
            Self::Std(file) => match (&*file).stream_position() {
                Ok(position) => Ok((file.read_at(room, position)?, true)),
                Err(error) if error.kind() == io::ErrorKind::NotSeekable => {
                    Ok(((&*file).read(room)?, false))
                }
                Err(error) => Err(error),
            },
            Self::Simulated(it) => {
                let position = *it.opened.position();
                Ok((it.opened.read_at(room, position)?, true))
            }
        }
    }

    pub(super) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Std(file) => (&*file).write_all(bytes),
            Self::Simulated(it) => it.opened.write_all(bytes),
        }
    }

    pub(super) fn seek(&self, position: SeekFrom) -> io::Result<u64> {
        match self {
            Self::Std(file) => (&*file).seek(position),
            Self::Simulated(it) => it.seek(position),
        }
    }

    pub(super) fn sync_all(&self) -> io::Result<()> {
        match self {
            Self::Std(file) => file.sync_all(),
            Self::Simulated(it) => it.opened.sync(),
        }
    }

    pub(super) fn sync_data(&self) -> io::Result<()> {
        match self {
            Self::Std(file) => file.sync_data(),
            Self::Simulated(it) => it.opened.sync(),
        }
    }

    pub(super) fn set_len(&self, bytes: u64) -> io::Result<()> {
        match self {
            Self::Std(file) => file.set_len(bytes),
            Self::Simulated(it) => it.opened.set_len(bytes),
        }
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        match self {
            Self::Std(file) => file.metadata().map(Into::into),
            Self::Simulated(it) => it.opened.status().map(Into::into),
        }
    }

    pub(super) fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        match self {
            Self::Std(file) => file.set_permissions(permissions),
            Self::Simulated(it) => it.opened.set_permissions(permissions.mode()),
        }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Std(file) => file.try_clone().map(Self::Std),
            Self::Simulated(it) => Ok(SimulatedFile::new(Arc::clone(&it.opened)).into()),
        }
    }

    /// Returns the file of the standard library. In a simulation, every operation on it fails.
    pub(super) fn into_std(self) -> fs::File {
        match self {
            Self::Std(file) => file,
            Self::Simulated(it) => {
                it.descriptor();
                it.descriptor.into_inner().expect("invariant: it was just made").into()
            }
        }
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Std(file) => file.as_fd(),
            Self::Simulated(it) => it.descriptor(),
        }
    }
}

impl SimulatedFile {
    pub(super) fn new(opened: Arc<OpenedFile>) -> Self {
        Self { opened, deferred: RealMutex::default(), descriptor: OnceLock::new() }
    }

    fn deferred(&self) -> RealGuard<'_, DeferredWrite> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a write, which happens when [`settle`](Self::settle) is called next.
    pub(super) fn defer(&self, bytes: Vec<u8>) {
        *self.deferred() = DeferredWrite { bytes: Some(bytes), result: None };
    }

    /// Carries out a write that was deferred.
    pub(super) fn settle(&self) {
        let deferred = &mut *self.deferred();
        if let Some(bytes) = deferred.bytes.take() {
            deferred.result = Some(self.opened.write_all(&bytes));
        }
    }

    /// Returns what a deferred write has led to.
    pub(super) fn take_result(&self) -> io::Result<()> {
        self.deferred().result.take().unwrap_or(Ok(()))
    }

    /// Reads, if the page cache suffices.
    pub(super) fn try_read(
        &self,
        room: &mut [u8],
        offset: Option<u64>,
    ) -> Option<io::Result<usize>> {
        if !self.opened.disk().draw_cached() {
            return None;
        }
        let mut position = self.opened.position();
        let read = self.opened.read_at(room, offset.unwrap_or(*position));
        if let (None, Ok(count)) = (offset, &read) {
            *position += *count as u64;
        }
        Some(read)
    }

    /// Writes, if the page cache suffices.
    pub(super) fn try_write(&self, bytes: &[u8]) -> Option<io::Result<usize>> {
        self.opened.disk().draw_cached().then(|| self.opened.write(bytes))
    }

    fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.opened.position();
        let (base, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(by) => (*position, by),
            SeekFrom::End(by) => (self.opened.status()?.size_bytes, by),
        };
        *position = base.checked_add_signed(by).ok_or(Errno::INVAL)?;
        Ok(*position)
    }

    /// Returns a descriptor that stands for the file: every operation on it fails.
    fn descriptor(&self) -> BorrowedFd<'_> {
        let descriptor = self.descriptor.get_or_init(|| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                .unwrap_or_else(|error| panic!("no descriptor for a simulated file: {error}"))
        });
        descriptor.as_fd()
    }
}

impl From<SimulatedFile> for OpenFile {
    fn from(file: SimulatedFile) -> Self {
        Self::Simulated(file)
    }
}
