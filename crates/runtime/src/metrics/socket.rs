//! A Unix socket at which other programs ask for the metrics of this one.
//!
//! A plain thread serves it, so that it answers also while every worker hogs. It never blocks on a
//! reader: descriptors do not block, each reader has a bounded buffer and a deadline.

use std::{
    fmt, fs, io,
    io::{Read, Write},
    mem,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::{FileType, FlockOperation, Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::geteuid,
};
use thiserror::Error;
use vigie_detect::{Instant, clock::monotonic_now};

use super::json::FORMAT_VERSION;
use crate::{
    handle::Handle,
    refusal::{self, Resource},
    sync::thread,
};

/// The most readers at a time; one more is told to come again and sent away.
const READERS_MAX: usize = 8;

/// The longest request.
const REQUEST_BYTES_MAX: usize = 64;

/// How long a reader may leave an answer untaken.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// How long a reader may stay without asking.
const IDLE_PATIENCE: Duration = Duration::from_secs(60);

/// How old an answer may be: whoever asks more often gets the same one again.
const ANSWER_AGE_MAX: Duration = Duration::from_millis(10);

/// How often a program that is making or replacing the same socket is waited for, 10 ms each time.
const LOCK_TRIES: u32 = 100;

/// How long the end of the thread is waited for.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Why metrics could not be served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A living program serves there.
    #[error("another program serves {}: end it, or choose another path", path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// Something that is no socket is there, and stays.
    #[error("{} exists and is no socket: remove it, or choose another path", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot serve metrics at {}{}", path.display(), cause_of(source))]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Returns what a user can do about it, as an addition to the message.
fn cause_of(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => ": the folder must exist",
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
            ": the folder must be writable, and seccomp filters and security modules must allow the socket"
        }
        Some(libc::ENAMETOOLONG) => ": a socket's path has at most 107 bytes",
        _ => refusal::cause(Resource::Descriptor, error),
    }
}

/// Serves the metrics of a runtime until the returned guard is dropped, at a Unix stream socket with
/// mode 0600: only this user's programs, and root's, can connect. A socket that a dead program left at
/// `path` is replaced; while that is found out, there is a lock file beside it, with `.lock` after its name.
/// See [`RuntimeBuilder::metrics_socket`](crate::RuntimeBuilder::metrics_socket) for one that goes with its
/// runtime.
///
/// # Protocol
/// The reader sends a line, `snapshot`, and gets one line of JSON; as often as it wants. The answer to
/// anything else is `{"vigie_metrics":1,"error":"…"}` and the end of the connection. At most 8 readers
/// are served at a time. Who leaves an answer untaken for 2 s, or asks nothing for 60 s, is dropped.
/// Answers are up to 10 ms old.
///
/// # Format
/// The fields are those of [`Metrics`](super::Metrics), times in nanoseconds with the ending `_ns`;
/// besides, `vigie_metrics` is the version of the format, [`FORMAT_VERSION`],
/// and `pid` names the process. A version stays readable for those who know it: fields may be added.
///
/// # Errors
/// [`ServeError`]: a living program serves there already, something else is there, or the kernel
/// refuses.
///
/// # Examples
/// ```no_run
/// let runtime = vigie_runtime::Runtime::builder().build()?;
/// let _served = vigie_runtime::metrics::serve(runtime.handle(), "/run/user/1000/my-service.vigie")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn serve(handle: &Handle, path: impl AsRef<Path>) -> Result<MetricsSocket, ServeError> {
    let path = path.as_ref();
    let failed = |source: io::Error| ServeError::Io { path: path.to_owned(), source };
    let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| failed(error.into()))?;
    let thread_stop = stop.try_clone().map_err(failed)?;
    let (listener, identity) = bind(path)?;
    let handle = handle.clone();
    let service = Service {
        answers: Answers { handle, last: None },
        listener,
        stop: thread_stop,
        readers: Vec::new(),
    };
    let name = "vigie-metrics".to_owned();
    match thread::Builder::new().name(name).spawn(move || service.run()) {
        Ok(thread) => {
            let (path, process) = (path.to_owned(), process::id());
            Ok(MetricsSocket { path, identity, process, stop, thread: Some(thread) })
        }
        Err(error) => {
            remove(path, identity);
            Err(failed(error))
        }
    }
}

/// Serves the metrics of a runtime; dropping it ends the service and removes the socket.
#[must_use = "the service ends when this is dropped"]
pub struct MetricsSocket {
    path: PathBuf,
    identity: Identity,
    /// The process that serves.
    process: u32,
    stop: OwnedFd,
    thread: Option<thread::JoinHandle<()>>,
}

impl MetricsSocket {
    /// Returns where the socket is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MetricsSocket {
    fn drop(&mut self) {
        if self.process != process::id() {
            // A forked child: file, eventfd and thread are the parent's.
            mem::forget(self.thread.take());
            return;
        }
        remove(&self.path, self.identity);
        // Never full: nobody else writes.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        let Some(thread) = self.thread.take() else { return };
        // It may be the one that drops the last handle of its runtime, and this with it.
        if thread.thread().id() == thread::current().id() {
            return;
        }
        let deadline = monotonic_now() + END_PATIENCE;
        while !thread.is_finished() && monotonic_now() < deadline {
            pause(Duration::from_millis(1));
        }
        if thread.is_finished() && thread.join().is_err() {
            tracing::error!("the thread that serves metrics panicked");
        }
    }
}

impl fmt::Debug for MetricsSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsSocket").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Device and number of the file, by which we know it for ours.
type Identity = (u64, u64);

fn identity(path: &Path) -> io::Result<Identity> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn remove(path: &Path, ours: Identity) {
    if identity(path).is_ok_and(|found| found == ours)
        && let Err(error) = fs::remove_file(path)
    {
        tracing::warn!(%error, path = %path.display(), "the metrics socket stays behind");
    }
}

fn bind(path: &Path) -> Result<(UnixListener, Identity), ServeError> {
    let failed = |source: io::Error| ServeError::Io { path: path.to_owned(), source };
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    // Two programs that find the same dead socket must not both replace it.
    let _lock = Lock::take(path).map_err(failed)?;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServeError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {
            let probe = new_socket().map_err(failed)?;
            match rustix::net::connect(&probe, &address) {
                Err(rustix::io::Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed)?,
                Err(rustix::io::Errno::NOENT) => {}
                // Full is alive as well.
                Ok(()) | Err(rustix::io::Errno::AGAIN) => {
                    return Err(ServeError::InUse { path: path.to_owned() });
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = (|| {
        let socket = new_socket()?;
        // Before it is bound, so that nobody else can connect in between.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, 16)?;
        Ok(UnixListener::from(socket))
    })();
    Ok((listener.map_err(failed)?, identity(path).map_err(failed)?))
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// A lock against other programs that make a socket at the same path: a file beside it, which is removed
/// with the lock.
///
/// The file has mode 0600, so no other user can open it, and thus lock it. Where one has put something
/// else in its place, which takes a folder that everybody may write, there is no lock: who may do that can
/// put something in the place of the socket as well.
struct Lock {
    path: PathBuf,
    file: OwnedFd,
}

impl Lock {
    /// Returns none if there can be no lock of ours at this path.
    fn take(socket: &Path) -> io::Result<Option<Self>> {
        let Some(name) = socket.file_name() else { return Ok(None) };
        let mut lock_name = name.to_owned();
        lock_name.push(".lock");
        let path = socket.with_file_name(lock_name);
        for _ in 0..LOCK_TRIES {
            let Some(file) = open_lock(&path) else { return Ok(None) };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&file, &path) => return Ok(Some(Self { path, file })),
                // Its last holder has removed it: others lock a new one.
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => pause(Duration::from_millis(10)),
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "another program is making a socket there"))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still held: whoever waits for it sees that it is gone.
        if is_at(&self.file, &self.path)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(%error, path = %self.path.display(), "a lock file stays behind");
        }
    }
}

/// Opens the lock file, or makes it. None if something else is there, or somebody else's; and if nothing
/// can be made there, of which the making of the socket tells.
fn open_lock(path: &Path) -> Option<OwnedFd> {
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).ok()?;
    let found = rustix::fs::fstat(&file).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    let is_private = found.st_mode & 0o077 == 0 && found.st_uid == geteuid().as_raw();
    (is_file && is_private).then_some(file)
}

/// Returns whether `file` is what stands at `path`.
fn is_at(file: &OwnedFd, path: &Path) -> bool {
    let Ok(found) = rustix::fs::fstat(file) else { return false };
    identity(path).is_ok_and(|at| at == (found.st_dev, found.st_ino))
}

/// Lets a moment pass, on a thread that serves no tasks.
fn pause(time: Duration) {
    let _ = poll(&mut [], Some(&timespec(time)));
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

struct Service {
    answers: Answers,
    listener: UnixListener,
    stop: OwnedFd,
    readers: Vec<Reader>,
}

/// Snapshots as text.
struct Answers {
    handle: Handle,
    last: Option<(Instant, Vec<u8>)>,
}

struct Reader {
    stream: UnixStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// How much of the answer has been taken.
    sent_bytes: usize,
    /// The connection ends after the answer.
    is_last: bool,
    /// When it is dropped unless something happens.
    deadline: Instant,
}

impl Service {
    fn run(mut self) {
        loop {
            match self.wait() {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(%error, "metrics are not served any more");
                    return;
                }
            }
            self.accept();
            let now = monotonic_now();
            let answers = &mut self.answers;
            self.readers.retain_mut(|reader| reader.turn(answers, now).is_ok_and(|stays| stays));
        }
    }

    /// Waits until somebody wants something. Returns whether this is the end.
    fn wait(&self) -> io::Result<bool> {
        let now = monotonic_now();
        let next = self.readers.iter().map(|reader| reader.deadline).min();
        let timeout = next.map(|deadline| timespec(deadline - now));
        let mut waited = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        waited.extend(self.readers.iter().map(|reader| {
            let wanted = if reader.answer.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            PollFd::new(&reader.stream, wanted)
        }));
        match poll(&mut waited, timeout.as_ref()) {
            Ok(_) => Ok(!waited[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Accepts those who wait, a bounded number at a time.
    fn accept(&mut self) {
        for _ in 0..2 * READERS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // No descriptors, for example: the listener stays ready, so wait a little.
                    tracing::debug!(%error, "a reader of metrics was not accepted");
                    pause(Duration::from_millis(10));
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.readers.len() >= READERS_MAX {
                let _ = (&stream).write(&refusal("too many readers: try again later"));
                continue;
            }
            self.readers.push(Reader {
                stream,
                request: Vec::with_capacity(REQUEST_BYTES_MAX),
                answer: Vec::new(),
                sent_bytes: 0,
                is_last: false,
                deadline: monotonic_now() + IDLE_PATIENCE,
            });
        }
    }
}

fn refusal(why: &str) -> Vec<u8> {
    format!("{{\"vigie_metrics\":{},\"error\":\"{why}\"}}\n", FORMAT_VERSION).into_bytes()
}

impl Answers {
    fn next(&mut self, now: Instant) -> Vec<u8> {
        match &self.last {
            Some((at, answer)) if now - *at < ANSWER_AGE_MAX => answer.clone(),
            _ => {
                let mut answer = self.handle.metrics().to_json().into_bytes();
                answer.push(b'\n');
                self.last = Some((now, answer.clone()));
                answer
            }
        }
    }
}

impl Reader {
    /// Does what can be done without waiting. Returns whether the reader stays.
    fn turn(&mut self, answers: &mut Answers, now: Instant) -> io::Result<bool> {
        if self.answer.is_empty() && !self.has_request() && !self.read()? {
            return Ok(false);
        }
        // Bounded by the buffer: what the reader sends meanwhile waits for the next turn.
        loop {
            if self.answer.is_empty() && self.has_request() {
                self.take_request(answers, now);
            }
            if self.answer.is_empty() || !self.write(now)? {
                return Ok(now < self.deadline);
            }
            if self.is_last {
                return Ok(false);
            }
        }
    }

    /// Returns whether a request is complete, or will never be.
    fn has_request(&self) -> bool {
        self.request.len() >= REQUEST_BYTES_MAX || self.request.contains(&b'\n')
    }

    /// Reads what there is, up to the longest request. Returns false at the end of the stream.
    fn read(&mut self) -> io::Result<bool> {
        let mut bytes = [0; REQUEST_BYTES_MAX];
        let room = REQUEST_BYTES_MAX - self.request.len();
        match self.stream.read(&mut bytes[..room]) {
            Ok(0) => return Ok(false),
            Ok(count) => self.request.extend_from_slice(&bytes[..count]),
            Err(error) if is_for_later(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Puts the answer to the first request down.
    fn take_request(&mut self, answers: &mut Answers, now: Instant) {
        let end = self.request.iter().position(|&byte| byte == b'\n');
        let line: Vec<u8> = match end {
            Some(end) => self.request.drain(..=end).collect(),
            None => Vec::new(),
        };
        if line.trim_ascii() == b"snapshot" {
            self.answer = answers.next(now);
        } else {
            self.answer = refusal("unknown request: send a line `snapshot`");
            self.is_last = true;
        }
        self.sent_bytes = 0;
        self.deadline = now + ANSWER_PATIENCE;
    }

    /// Writes what the reader takes. Returns whether that was all.
    fn write(&mut self, now: Instant) -> io::Result<bool> {
        while self.sent_bytes < self.answer.len() {
            match self.stream.write(&self.answer[self.sent_bytes..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent_bytes += count,
                Err(error) if is_for_later(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.answer = Vec::new();
        self.deadline = now + IDLE_PATIENCE;
        Ok(true)
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
