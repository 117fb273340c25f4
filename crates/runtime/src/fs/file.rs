//! Open files.

use std::{
    fmt,
    fs::{self, Permissions},
    future::{Future, poll_fn},
    io::{self, IoSlice, IoSliceMut, SeekFrom},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::Path,
    pin::Pin,
    task::{Context, Poll, ready},
};

use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};
use vigie_detect::budget;

use super::{Metadata, OpenOptions, joined, open_file::OpenFile, refuse_std_file};
use crate::{
    sync::{Arc, AtomicBool, Condvar, Ordering, PoisonError, RealMutex},
    task_cell::JoinHandle,
};

/// The most bytes of one operation on the blocking pool.
const CHUNK_BYTES_MAX: usize = 2 * 1024 * 1024;

/// "At the file's own position", which then moves on (preadv2(2)).
const OWN_POSITION: u64 = u64::MAX;

/// An open file with a position, by tokio's names.
///
/// A write returns once its bytes are copied; await [`flush`](https://docs.rs/tokio/1/tokio/io/trait.AsyncWriteExt.html) to
/// know that they are written, and [`sync_all`](Self::sync_all) to know that they are on the disk. An error of a write is
/// returned by the next operation. Dropping a file does not lose what was written.
///
/// # Examples
/// ```
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use vigie_runtime::fs::File;
///
/// # let path = std::env::temp_dir().join(format!("vigie-file-example-{}", std::process::id()));
/// # vigie_runtime::Runtime::builder().workers(1).build()?.block_on(async {
/// let mut file = File::create(&path).await?;
/// file.write_all(b"sail ho").await?;
/// file.flush().await?;
///
/// let mut text = String::new();
/// File::open(&path).await?.read_to_string(&mut text).await?;
/// assert_eq!(text, "sail ho");
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct File {
    open: Arc<OpenFile>,
    can: Arc<NoWait>,
    running: Option<Running>,
    /// The position to seek to once nothing runs.
    seek: Option<SeekFrom>,
    /// Bytes that were read from what has no position, and that no reader has taken.
    left: Vec<u8>,
    /// Of a write that has ended; the next operation returns it.
    failed: Option<io::Error>,
    chunk_max: usize,
    pending: Arc<Pending>,
}

/// The support of the file system for `RWF_NOWAIT`, as far as it was tried.
#[derive(Debug)]
struct NoWait {
    read: AtomicBool,
    write: AtomicBool,
}

/// A write that was begun and has not ended. An operation that must see its effect waits for it, on the blocking pool, whose
/// closures begin in their order: so the write is never behind the operations that wait for it.
#[derive(Default)]
struct Pending {
    is_pending: RealMutex<bool>,
    has_ended: Condvar,
}

impl Pending {
    fn set(&self, is_pending: bool) {
        *self.is_pending.lock().unwrap_or_else(PoisonError::into_inner) = is_pending;
        self.has_ended.notify_all();
    }

    fn wait(&self) {
        let mut pending = self.is_pending.lock().unwrap_or_else(PoisonError::into_inner);
        while *pending {
            pending = self.has_ended.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Ends the write when it is dropped, also without having run.
struct EndsWrite(Arc<Pending>);

impl Drop for EndsWrite {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// An operation on the blocking pool.
enum Running {
    Read(JoinHandle<io::Result<Chunk>>),
    Write(JoinHandle<io::Result<()>>),
}

/// The bytes of a read.
struct Chunk {
    bytes: Vec<u8>,
    /// True if the file's position is still before them.
    has_position: bool,
}

impl Chunk {
    /// Reads up to `room` bytes, without moving the position where there is one.
    fn read(file: &OpenFile, room: usize) -> io::Result<Self> {
        let mut bytes = vec![0; room];
        let (count, has_position) = file.read_here(&mut bytes)?;
        bytes.truncate(count);
        Ok(Self { bytes, has_position })
    }
}

impl File {
    /// Opens a file to read.
    ///
    /// # Errors
    /// Those of [`std::fs::File::open`].
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().read(true).open(path).await
    }

    /// Opens a file to write, which is created or emptied.
    ///
    /// # Errors
    /// Those of [`std::fs::File::create`].
    pub async fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path).await
    }

    /// Creates a file to read and write; there must be none.
    ///
    /// # Errors
    /// Those of [`std::fs::File::create_new`].
    pub async fn create_new(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).create_new(true).open(path).await
    }

    /// Returns options that decide how to open a file.
    #[must_use]
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Takes over an open file.
    #[must_use]
    pub fn from_std(std: fs::File) -> Self {
        Self::new(OpenFile::Std(std))
    }

    pub(super) fn new(open: OpenFile) -> Self {
        let can = NoWait { read: AtomicBool::new(true), write: AtomicBool::new(true) };
        Self {
            open: Arc::new(open),
            can: Arc::new(can),
            running: None,
            seek: None,
            left: Vec::new(),
            failed: None,
            chunk_max: CHUNK_BYTES_MAX,
            pending: Arc::default(),
        }
    }

    /// Waits for the operation that runs, and returns the file of the standard library. In a simulation, every operation on
    /// that one fails: as everywhere, only vigie's own calls reach the simulated disk.
    pub async fn into_std(mut self) -> fs::File {
        let _ = self.settled().await;
        loop {
            match self.try_into_std() {
                Ok(std) => return std,
                // The blocking thread has told its result and still drops its reference.
                Err(file) => {
                    self = file;
                    crate::yield_now().await;
                }
            }
        }
    }

    /// Returns the file of the standard library.
    ///
    /// # Errors
    /// Returns the file as it was while an operation runs.
    #[expect(clippy::result_large_err, reason = "the file goes back to the caller")]
    pub fn try_into_std(mut self) -> Result<fs::File, Self> {
        if self.running.is_some() {
            return Err(self);
        }
        match Arc::try_unwrap(self.open) {
            Ok(open) => Ok(open.into_std()),
            Err(open) => {
                self.open = open;
                Err(self)
            }
        }
    }

    /// Opens the same file once more, with a position in common.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn try_clone(&self) -> io::Result<Self> {
        self.after_writes(OpenFile::try_clone).await.map(Self::new)
    }

    /// Sets how many bytes one operation on the blocking pool reads or writes. Default 2 MiB.
    pub const fn set_max_buf_size(&mut self, bytes: usize) {
        self.chunk_max = if bytes == 0 { 1 } else { bytes };
    }

    /// Returns what [`set_max_buf_size`](Self::set_max_buf_size) sets.
    #[must_use]
    pub const fn max_buf_size(&self) -> usize {
        self.chunk_max
    }

    /// Writes everything to the disk, metadata included (`fsync`).
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn sync_all(&self) -> io::Result<()> {
        self.after_writes(OpenFile::sync_all).await
    }

    /// Writes the contents to the disk, and only the metadata that is needed to read them (`fdatasync`).
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn sync_data(&self) -> io::Result<()> {
        self.after_writes(OpenFile::sync_data).await
    }

    /// Sets the length in bytes: cuts the file, or fills it up with zeros.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.after_writes(move |file| file.set_len(bytes)).await
    }

    /// Returns the metadata.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        self.after_writes(OpenFile::metadata).await
    }

    /// Sets the permissions.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        joined(self.open.start(move |file| file.set_permissions(permissions))).await
    }

    /// Reads bytes at `offset` into `buffer`, without the file's position, and returns their number; zero is the end of the
    /// file. Cached bytes are read at once. Any number of tasks may call it at once.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// The kernel's error: `ESPIPE` for what has no positions.
    pub async fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        poll_fn(|cx| budget::poll_proceed(cx)).await;
        if let Some(read) = self.can.try_read(&self.open, buffer, offset) {
            return read;
        }
        let room = buffer.len().min(self.chunk_max);
        let read = self.open.start(move |file| {
            let mut bytes = vec![0; room];
            let count = file.read_at(&mut bytes, offset)?;
            bytes.truncate(count);
            Ok(bytes)
        });
        let bytes = joined(read).await?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    /// Runs `call` where operations run, after a write that was begun.
    async fn after_writes<T: Send + 'static>(
        &self,
        call: impl FnOnce(&OpenFile) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let pending = Arc::clone(&self.pending);
        let after = self.open.start(move |file| {
            match file {
                OpenFile::Std(_) => pending.wait(),
                OpenFile::Simulated(it) => it.settle(),
            }
            call(file)
        });
        joined(after).await
    }

    /// Waits until no operation runs.
    async fn settled(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_settled(cx)).await
    }

    /// Waits until no operation runs, and returns the error of the last write. A read that was dropped has moved nothing.
    fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.running {
            None => {}
            Some(Running::Write(task)) => {
                let result = ready!(Pin::new(task).poll(cx));
                self.running = None;
                self.failed = result.unwrap_or_else(|error| Err(error.into())).err();
            }
            Some(Running::Read(task)) => {
                let result = ready!(Pin::new(task).poll(cx));
                self.running = None;
                if let Ok(Ok(Chunk { bytes, has_position: false })) = result {
                    self.left = bytes;
                }
            }
        }
        if let Some(position) = self.seek.take() {
            self.left.clear();
            // The kernel only stores a number.
            let result = self.open.seek(position);
            self.failed = self.failed.take().or_else(|| result.err());
        }
        Poll::Ready(self.failed.take().map_or(Ok(()), Err))
    }

    fn take_left(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.left.len().min(buffer.remaining());
        buffer.put_slice(&self.left[..count]);
        self.left.drain(..count);
    }

    fn begin_write(&mut self, bytes: Vec<u8>) {
        let write = match &*self.open {
            OpenFile::Std(_) => {
                self.pending.set(true);
                let ends = EndsWrite(Arc::clone(&self.pending));
                self.open.start(move |file| {
                    let _ends = ends;
                    file.write_all(&bytes)
                })
            }
            OpenFile::Simulated(it) => {
                it.defer(bytes);
                self.open.start(|file| match file {
                    OpenFile::Simulated(it) => {
                        it.settle();
                        it.take_result()
                    }
                    OpenFile::Std(_) => Ok(()),
                })
            }
        };
        self.running = Some(Running::Write(write));
    }
}

impl NoWait {
    /// Reads what is cached. `None` if the kernel would have to wait, or cannot say.
    fn try_read(&self, file: &OpenFile, room: &mut [u8], offset: u64) -> Option<io::Result<usize>> {
        let file = match file {
            OpenFile::Std(file) => file,
            OpenFile::Simulated(it) => {
                return it.try_read(room, (offset != OWN_POSITION).then_some(offset));
            }
        };
        if let Err(refused) = refuse_std_file() {
            return Some(Err(refused));
        }
        if !self.read.load(Ordering::Relaxed) {
            return None;
        }
        let mut rooms = [IoSliceMut::new(room)];
        match preadv2(file, &mut rooms, offset, ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::SPIPE | Errno::INVAL) => {
                self.read.store(false, Ordering::Relaxed);
                None
            }
            result => Some(result.map_err(io::Error::from)),
        }
    }

    /// Writes what needs no wait. `None` if the kernel would have to wait, or cannot say.
    fn try_write(&self, file: &OpenFile, bytes: &[u8]) -> Option<io::Result<usize>> {
        let file = match file {
            OpenFile::Std(file) => file,
            OpenFile::Simulated(it) => return it.try_write(bytes),
        };
        if let Err(refused) = refuse_std_file() {
            return Some(Err(refused));
        }
        if !self.write.load(Ordering::Relaxed) {
            return None;
        }
        match pwritev2(file, &[IoSlice::new(bytes)], OWN_POSITION, ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::SPIPE | Errno::INVAL) => {
                self.write.store(false, Ordering::Relaxed);
                None
            }
            result => Some(result.map_err(io::Error::from)),
        }
    }
}

impl AsyncRead for File {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(budget::poll_proceed(cx));
        loop {
            if self.seek.is_none()
                && let Some(Running::Read(task)) = &mut self.running
            {
                let result = ready!(Pin::new(task).poll(cx));
                self.running = None;
                let chunk = result.unwrap_or_else(|error| Err(error.into()))?;
                if chunk.has_position {
                    let count = chunk.bytes.len().min(buffer.remaining());
                    buffer.put_slice(&chunk.bytes[..count]);
                    let forward = i64::try_from(count).unwrap_or(i64::MAX);
                    self.open.seek(SeekFrom::Current(forward))?;
                } else {
                    self.left = chunk.bytes;
                    self.take_left(buffer);
                }
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_settled(cx))?;
            if buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if !self.left.is_empty() {
                self.take_left(buffer);
                return Poll::Ready(Ok(()));
            }
            let room_max = buffer.remaining().min(self.chunk_max);
            let room = buffer.initialize_unfilled_to(room_max);
            if let Some(read) = self.can.try_read(&self.open, room, OWN_POSITION) {
                buffer.advance(read?);
                return Poll::Ready(Ok(()));
            }
            let task = self.open.start(move |file| Chunk::read(file, room_max));
            self.running = Some(Running::Read(task));
        }
    }
}

impl AsyncWrite for File {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(budget::poll_proceed(cx));
        ready!(self.poll_settled(cx))?;
        let bytes = &bytes[..bytes.len().min(self.chunk_max)];
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if let Some(written) = self.can.try_write(&self.open, bytes) {
            return Poll::Ready(written);
        }
        self.begin_write(bytes.to_vec());
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(budget::poll_proceed(cx));
        ready!(self.poll_settled(cx))?;
        let mut bytes = Vec::new();
        for slice in slices {
            let count = slice.len().min(self.chunk_max - bytes.len());
            bytes.extend_from_slice(&slice[..count]);
        }
        let count = bytes.len();
        if count > 0 {
            self.begin_write(bytes);
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_settled(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

impl AsyncSeek for File {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        self.seek = Some(position);
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        ready!(self.poll_settled(cx))?;
        Poll::Ready(self.open.seek(SeekFrom::Current(0)))
    }
}

impl From<fs::File> for File {
    fn from(std: fs::File) -> Self {
        Self::from_std(std)
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.open.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.open.as_fd().as_raw_fd()
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> Self {
        Self::from_std(fd.into())
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("File");
        if let OpenFile::Std(std) = &*self.open {
            text.field("std", std);
        }
        text.finish_non_exhaustive()
    }
}
