//! A Unix socket that serves this program's metrics to other programs.
//!
//! A plain thread serves it, so it answers even while every worker is hogged. It never blocks on a reader:
//! descriptors are non-blocking, and each reader has a bounded buffer and a deadline.

use std::{
    error::Error,
    fmt, fs, io,
    io::{Read, Write},
    mem,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::geteuid,
};
use vigie_detect::{Instant, clock::monotonic_now};

use crate::{
    handle::Handle,
    json::FORMAT_VERSION,
    refusal::{self, Resource},
    sync::thread,
};

/// The maximum number of readers at once; a further one is told to come back later, and disconnected.
const READERS_MAX: usize = 8;

/// The longest request.
const REQUEST_BYTES_MAX: usize = 64;

/// The longest time that a reader may leave an answer unread.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// The longest time that a reader may stay without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum age of an answer; a reader that asks more often gets the same one again.
const ANSWER_AGE_MAX: Duration = Duration::from_millis(10);

/// The number of times to wait, 10 ms each, for another program that is creating or replacing the same socket.
const LOCK_TRIES: u32 = 100;

/// The longest time to wait for the end of the thread.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// The reason why metrics could not be served.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// A live program serves at the path.
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something that is not a socket is at the path, and stays there.
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The kernel refused.
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { path } => write!(
                f,
                "another program serves {}: end it, or choose another path",
                path.display()
            ),
            Self::NotASocket { path } => write!(
                f,
                "{} exists and is not a socket: remove it, or choose another path",
                path.display()
            ),
            Self::Io { path, source } => {
                write!(f, "cannot serve metrics at {}{}", path.display(), cause_of(source))
            }
        }
    }
}

impl Error for ServeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Returns what a user can do about it, as a suffix for the message.
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

/// Serves the metrics of a runtime until the returned guard is dropped, at a Unix stream socket with mode
/// 0600: only programs of this user and of root can connect. A socket that a dead program left at `path` is
/// replaced; during that check there is a lock file beside it, named after it with `.lock` appended.
/// [`RuntimeBuilder::metrics_socket`](crate::RuntimeBuilder::metrics_socket) makes one that lives as long as
/// its runtime.
///
/// # Protocol
/// The reader sends the line `snapshot` and gets one line of JSON, as often as it likes; for the line `tasks`, that of
/// [`Dump::to_json`](super::Dump::to_json). Any other request is
/// answered with `{"vigie_metrics":2,"error":"…"}` and ends the connection. At most 8 readers are served at
/// once. A reader that leaves an answer unread for 2 s, or sends no request for 60 s, is disconnected.
/// Answers are up to 10 ms old.
///
/// # Format
/// The fields are those of [`Metrics`](super::Metrics); times are in nanoseconds, with the suffix `_ns`. In
/// addition, `vigie_metrics` is the version of the format, [`FORMAT_VERSION`], and `pid` is the process.
/// Within a version, fields may be added but not changed.
///
/// # Errors
/// [`ServeError`]: a live program already serves at the path, something else is there, or the kernel refuses; the runtime is simulated.
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
    let simulated = handle.server().refuse_in_simulation("metrics socket", "ask `Handle::metrics`");
    simulated.map_err(failed)?;
    let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| failed(error.into()))?;
    let thread_stop = stop.try_clone().map_err(failed)?;
    let (listener, identity) = bind(path)?;
    let handle = handle.clone();
    let service = Service {
        answers: Answers { handle, last: None, last_tasks: None },
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
    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MetricsSocket {
    fn drop(&mut self) {
        if self.process != process::id() {
            // In a forked child: file, eventfd and thread belong to the parent.
            mem::forget(self.thread.take());
            return;
        }
        remove(&self.path, self.identity);
        // Never full: there is no other writer.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        let Some(thread) = self.thread.take() else { return };
        // The thread itself may drop the last handle of its runtime, and this guard with it.
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

/// Device and inode number of the file, which identify it as ours.
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
                // A full backlog means alive too.
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
        let socket = fs::File::from(new_socket()?);
        // Before it is bound, so that no other user can connect in between.
        socket.set_permissions(fs::Permissions::from_mode(0o600))?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, 16)?;
        Ok(UnixListener::from(OwnedFd::from(socket)))
    })();
    Ok((listener.map_err(failed)?, identity(path).map_err(failed)?))
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// A lock against other programs that create a socket at the same path: a file beside it, removed when the
/// lock is released.
///
/// The file has mode 0600, so no other user can open and thus lock it. If another user has put something else
/// in its place, which takes a world-writable directory, there is no lock: that user could replace the socket
/// as well.
struct Lock {
    path: PathBuf,
    file: fs::File,
}

impl Lock {
    /// Returns `None` if we cannot have a lock at this path.
    fn take(socket: &Path) -> io::Result<Option<Self>> {
        let Some(name) = socket.file_name() else { return Ok(None) };
        let mut lock_name = name.to_owned();
        lock_name.push(".lock");
        let path = socket.with_file_name(lock_name);
        for _ in 0..LOCK_TRIES {
            let Some(file) = open_lock(&path) else { return Ok(None) };
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Some(Self { path, file })),
                // Its last holder has removed it: other programs lock a new file.
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => pause(Duration::from_millis(10)),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "another program is making a socket there"))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still held: a program that waits for it sees that it is gone.
        if is_at(&self.file, &self.path)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(%error, path = %self.path.display(), "a lock file stays behind");
        }
    }
}

/// Opens or creates the lock file. `None` if something else or another user's file is there, or if nothing
/// can be created there, which creating the socket will report.
fn open_lock(path: &Path) -> Option<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    let found = file.metadata().ok()?;
    let is_private = found.mode() & 0o077 == 0 && found.uid() == geteuid().as_raw();
    (found.is_file() && is_private).then_some(file)
}

/// Returns whether `file` is the file at `path`.
fn is_at(file: &fs::File, path: &Path) -> bool {
    let Ok(found) = file.metadata() else { return false };
    identity(path).is_ok_and(|at| at == (found.dev(), found.ino()))
}

/// Sleeps, on a thread that runs no tasks.
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
    last_tasks: Option<(Instant, Vec<u8>)>,
}

struct Reader {
    stream: UnixStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// The number of bytes of the answer that have been sent.
    sent_bytes: usize,
    /// The connection ends after the answer.
    is_last: bool,
    /// The time at which the reader is dropped unless something happens.
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
            self.readers.retain_mut(|reader| reader.tick(answers, now).is_ok_and(|stays| stays));
        }
    }

    /// Waits until a reader needs attention. Returns whether the service should end.
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

    /// Accepts waiting readers, a bounded number per tick.
    fn accept(&mut self) {
        for _ in 0..2 * READERS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // For example, out of descriptors: the listener stays ready, so wait a little.
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
                deadline: monotonic_now() + IDLE_TIMEOUT,
            });
        }
    }
}

fn refusal(why: &str) -> Vec<u8> {
    format!("{{\"vigie_metrics\":{},\"error\":\"{why}\"}}\n", FORMAT_VERSION).into_bytes()
}

impl Answers {
    fn next(&mut self, now: Instant) -> Vec<u8> {
        recent(&mut self.last, now, || self.handle.metrics().to_json())
    }

    fn tasks(&mut self, now: Instant) -> Vec<u8> {
        recent(&mut self.last_tasks, now, || self.handle.dump().to_json())
    }
}

/// Returns the last answer if it is not too old, otherwise a new one.
fn recent(
    last: &mut Option<(Instant, Vec<u8>)>,
    now: Instant,
    make: impl FnOnce() -> String,
) -> Vec<u8> {
    match last {
        Some((at, answer)) if now - *at < ANSWER_AGE_MAX => answer.clone(),
        _ => {
            let mut answer = make().into_bytes();
            answer.push(b'\n');
            *last = Some((now, answer.clone()));
            answer
        }
    }
}

impl Reader {
    /// Does what can be done without waiting. Returns whether the reader stays.
    fn tick(&mut self, answers: &mut Answers, now: Instant) -> io::Result<bool> {
        if self.answer.is_empty() && !self.has_request() && !self.read()? {
            return Ok(false);
        }
        // Bounded by the buffer: anything that the reader sends meanwhile waits for the next tick.
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

    /// Returns whether a request is complete, or never will be.
    fn has_request(&self) -> bool {
        self.request.len() >= REQUEST_BYTES_MAX || self.request.contains(&b'\n')
    }

    /// Reads what is available, up to the longest request. Returns false at the end of the stream.
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

    /// Prepares the answer to the first request.
    fn take_request(&mut self, answers: &mut Answers, now: Instant) {
        let end = self.request.iter().position(|&byte| byte == b'\n');
        let line: Vec<u8> = match end {
            Some(end) => self.request.drain(..=end).collect(),
            None => Vec::new(),
        };
        if line.trim_ascii() == b"snapshot" {
            self.answer = answers.next(now);
        } else if line.trim_ascii() == b"tasks" {
            self.answer = answers.tasks(now);
        } else {
            self.answer = refusal("unknown request: send a line `snapshot` or `tasks`");
            self.is_last = true;
        }
        self.sent_bytes = 0;
        self.deadline = now + ANSWER_PATIENCE;
    }

    /// Writes what the reader accepts. Returns whether that was everything.
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
        self.deadline = now + IDLE_TIMEOUT;
        Ok(true)
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
