//! Child processes, by tokio's names.
//!
//! A [`Command`] is [`std::process::Command`] whose children are awaited. The end of a child is an event of its pidfd
//! (`pidfd_open`, Linux 5.3), a descriptor of the detection server like any other; on older kernels it is found by SIGCHLD.
//! Starting one still blocks, for a millisecond or so: use `spawn_blocking` where that matters.
//!
//! A simulation has none: [`Command::spawn`] fails there with [`io::ErrorKind::Unsupported`].

use std::{
    ffi::OsStr,
    future::{Future, poll_fn},
    io, mem,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    path::Path,
    pin::{Pin, pin},
    process::{self, ExitStatus, Output, Stdio},
    task::{Context, Poll, ready},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use vigie_detect::{
    AsyncFd, Server,
    detectors::{readiness::Direction, signal::SignalKind},
    net::pipe::{Receiver, Sender},
    refuse_in_simulation,
};

use crate::{
    Handle,
    signal::unix::{Signal, signal},
    sync::{PoisonError, RealMutex},
};

/// A program to run as a child process: [`std::process::Command`] with `async` forms of [`status`](Self::status) and
/// [`output`](Self::output).
#[derive(Debug)]
pub struct Command {
    std: process::Command,
    kill_on_drop: bool,
}

/// Methods of the builder that are those of std.
macro_rules! forward {
    ($($(#[$attribute:meta])* $name:ident($($argument:ident: $kind:ty),*);)+) => {$(
        #[doc = concat!("Same as std's `", stringify!($name), "`.")]
        $(#[$attribute])*
        pub fn $name(&mut self, $($argument: $kind),*) -> &mut Self {
            self.std.$name($($argument),*);
            self
        }
    )+};
}

impl Command {
    /// Creates a command that runs `program`, with the environment and directory of this process.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        process::Command::new(program).into()
    }

    forward! {
        arg(argument: impl AsRef<OsStr>);
        args(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>);
        arg0(argument: impl AsRef<OsStr>);
        env(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>);
        envs(variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>);
        env_remove(name: impl AsRef<OsStr>);
        env_clear();
        current_dir(directory: impl AsRef<Path>);
        stdin(stream: impl Into<Stdio>);
        stdout(stream: impl Into<Stdio>);
        stderr(stream: impl Into<Stdio>);
        uid(user: u32);
        gid(group: u32);
        process_group(group: i32);
    }

    /// Returns the command of the standard library.
    #[must_use]
    pub const fn as_std(&self) -> &process::Command {
        &self.std
    }

    /// Returns the command of the standard library, for settings without a method here, such as `pre_exec`.
    #[must_use]
    pub const fn as_std_mut(&mut self) -> &mut process::Command {
        &mut self.std
    }

    /// Returns the command of the standard library.
    #[must_use]
    pub fn into_std(self) -> process::Command {
        self.std
    }

    /// Sets whether a child is killed when its [`Child`] is dropped. Default off: it goes on. In both cases it is reaped
    /// once it has ended.
    pub const fn kill_on_drop(&mut self, kills: bool) -> &mut Self {
        self.kill_on_drop = kills;
        self
    }

    /// Returns what [`kill_on_drop`](Self::kill_on_drop) sets.
    #[must_use]
    pub const fn get_kill_on_drop(&self) -> bool {
        self.kill_on_drop
    }

    /// Starts the program. Streams that are not set are those of this process.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::NotFound`], [`io::ErrorKind::PermissionDenied`], out of processes or descriptors.
    /// [`io::ErrorKind::NotConnected`] outside a runtime; [`io::ErrorKind::Unsupported`] in a simulation.
    pub fn spawn(&mut self) -> io::Result<Child> {
        reap_orphans();
        // Before there is a child which would have to be killed.
        refuse_in_simulation(
            "child processes",
            "run what the child does as a task, or as a node of its own",
        )?;
        let server = Server::current()?;
        let mut child = self.std.spawn()?;
        let streams = (|| {
            Ok((
                child.stdin.take().map(ChildStdin::from_std).transpose()?,
                child.stdout.take().map(ChildStdout::from_std).transpose()?,
                child.stderr.take().map(ChildStderr::from_std).transpose()?,
                Exit::of(&server, &child)?,
            ))
        })();
        let (stdin, stdout, stderr, exit) = match streams {
            Ok(streams) => streams,
            Err(error) => {
                let _ = child.kill();
                orphan(child);
                return Err(error);
            }
        };
        let state = ChildState::Running(child, exit);
        Ok(Child { state, kill_on_drop: self.kill_on_drop, stdin, stdout, stderr })
    }

    /// Runs the program until it ends.
    ///
    /// # Cancel safety
    /// A dropped future leaves the child running, unless [`kill_on_drop`](Self::kill_on_drop) is set.
    ///
    /// # Errors
    /// Same as [`spawn`](Self::spawn) and [`Child::wait`].
    pub fn status(&mut self) -> impl Future<Output = io::Result<ExitStatus>> + use<> {
        let child = self.spawn();
        async {
            let mut child = child?;
            // A child that waits for its input to end, or for room in its output, would wait for ever.
            drop((child.stdin.take(), child.stdout.take(), child.stderr.take()));
            child.wait().await
        }
    }

    /// Runs the program until it ends, and returns what it wrote.
    ///
    /// # Cancel safety
    /// Same as [`status`](Self::status); output that was read is lost.
    ///
    /// # Errors
    /// Same as [`spawn`](Self::spawn) and [`Child::wait_with_output`].
    pub fn output(&mut self) -> impl Future<Output = io::Result<Output>> + use<> {
        self.std.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.spawn();
        async { child?.wait_with_output().await }
    }
}

impl From<process::Command> for Command {
    fn from(std: process::Command) -> Self {
        Self { std, kill_on_drop: false }
    }
}

/// A child process: see [`Command::spawn`].
#[derive(Debug)]
pub struct Child {
    state: ChildState,
    kill_on_drop: bool,
    /// Its input, if that is [`Stdio::piped`].
    pub stdin: Option<ChildStdin>,
    /// Its output, if that is [`Stdio::piped`].
    pub stdout: Option<ChildStdout>,
    /// Its error output, if that is [`Stdio::piped`].
    pub stderr: Option<ChildStderr>,
}

#[derive(Debug)]
enum ChildState {
    Running(process::Child, Exit),
    Ended(ExitStatus),
}

/// The source from which the end of a child is learnt.
#[derive(Debug)]
enum Exit {
    Pidfd(AsyncFd<OwnedFd>),
    /// Kernels before 5.3.
    Signal(Box<Signal>),
}

impl Exit {
    fn of(server: &Server, child: &process::Child) -> io::Result<Self> {
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        match id.map(|id| pidfd_open(id, PidfdFlags::empty())) {
            Some(Ok(pidfd)) => Ok(Self::Pidfd(AsyncFd::new_on(server, pidfd)?)),
            _ => Ok(Self::Signal(Box::new(signal(SignalKind::CHILD)?))),
        }
    }

    /// Waits for the end of the child, and reaps it.
    fn poll(
        &mut self,
        child: &mut process::Child,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<ExitStatus>> {
        match self {
            // A descriptor counts as ready until an attempt shows that it is not.
            Self::Pidfd(pidfd) => pidfd.poll_io(Direction::Read, cx, |_| {
                child.try_wait()?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
            }),
            Self::Signal(signal) => loop {
                if let Some(status) = child.try_wait()? {
                    return Poll::Ready(Ok(status));
                }
                if ready!(signal.poll_recv(cx)).is_none() {
                    return Poll::Ready(Err(vigie_detect::WaitError::ServerClosed.into()));
                }
            },
        }
    }
}

impl Child {
    /// Returns its process number, until its end was seen.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        match &self.state {
            ChildState::Running(child, _) => Some(child.id()),
            ChildState::Ended(_) => None,
        }
    }

    /// Kills the child, and waits for its end.
    ///
    /// # Errors
    /// Same as [`start_kill`](Self::start_kill) and [`wait`](Self::wait).
    pub async fn kill(&mut self) -> io::Result<()> {
        self.start_kill()?;
        self.wait().await.map(drop)
    }

    /// Sends SIGKILL to the child.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if its end was seen already.
    pub fn start_kill(&mut self) -> io::Result<()> {
        match &mut self.state {
            ChildState::Running(child, _) => child.kill(),
            ChildState::Ended(_) => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "the child has already ended"))
            }
        }
    }

    /// Returns how the child ended, if it has.
    ///
    /// # Errors
    /// The kernel's error: `ECHILD` if the child was reaped by other code.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match &mut self.state {
            ChildState::Running(child, _) => {
                let status = child.try_wait()?;
                if let Some(status) = status {
                    self.state = ChildState::Ended(status);
                }
                Ok(status)
            }
            ChildState::Ended(status) => Ok(Some(*status)),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ExitStatus>> {
        if let Some(status) = self.try_wait()? {
            return Poll::Ready(Ok(status));
        }
        loop {
            let (child, exit) = match &mut self.state {
                ChildState::Running(child, exit) => (child, exit),
                ChildState::Ended(status) => return Poll::Ready(Ok(*status)),
            };
            match ready!(exit.poll(child, cx)) {
                Ok(status) => self.state = ChildState::Ended(status),
                // The runtime that started it is gone: this one watches it from now on.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    let server = Server::current()?;
                    if server.is_closed() {
                        return Poll::Ready(Err(error));
                    }
                    *exit = Exit::of(&server, child)?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Waits for the end of the child. Closes its input first, since it may wait for that.
    ///
    /// # Cancel safety
    /// Cancel safe, apart from the input.
    ///
    /// # Errors
    /// The kernel's error: `ECHILD` if the child was reaped by other code. [`io::ErrorKind::NotConnected`] once the runtime is
    /// shut down.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        poll_fn(|cx| self.poll_wait(cx)).await
    }

    /// Waits for the end of the child and of its piped output, and returns both.
    ///
    /// # Cancel safety
    /// Output that was read is lost.
    ///
    /// # Errors
    /// Same as [`wait`](Self::wait), and those of reading.
    pub async fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let (out, err) = (self.stdout.take(), self.stderr.take());
        let mut reads_out = pin!(read_to_end(out.map(|stream| stream.pipe)));
        let mut reads_err = pin!(read_to_end(err.map(|stream| stream.pipe)));
        let (mut out, mut err, mut status) = (None, None, None);
        poll_fn(|cx| {
            poll_into(&mut out, || reads_out.as_mut().poll(cx))?;
            poll_into(&mut err, || reads_err.as_mut().poll(cx))?;
            poll_into(&mut status, || self.poll_wait(cx))?;
            match (&mut out, &mut err, status) {
                (Some(stdout), Some(stderr), Some(status)) => Poll::Ready(Ok(Output {
                    status,
                    stdout: mem::take(stdout),
                    stderr: mem::take(stderr),
                })),
                _ => Poll::Pending,
            }
        })
        .await
    }
}

/// Polls what has not ended, and keeps its result.
fn poll_into<T>(
    result: &mut Option<T>,
    poll: impl FnOnce() -> Poll<io::Result<T>>,
) -> io::Result<()> {
    if result.is_none()
        && let Poll::Ready(done) = poll()
    {
        *result = Some(done?);
    }
    Ok(())
}

async fn read_to_end(pipe: Option<Receiver>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(mut pipe) = pipe else { return Ok(bytes) };
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let mut room = ReadBuf::new(&mut chunk);
        poll_fn(|cx| Pin::new(&mut pipe).poll_read(cx, &mut room)).await?;
        if room.filled().is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(room.filled());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !matches!(self.state, ChildState::Running(..)) {
            return;
        }
        if self.kill_on_drop {
            let _ = self.start_kill();
        }
        if matches!(self.try_wait(), Ok(None)) {
            // The status is never read.
            let ended = ChildState::Ended(ExitStatus::default());
            if let ChildState::Running(child, exit) = mem::replace(&mut self.state, ended) {
                drop(exit);
                reap_later(child);
            }
        }
    }
}

/// Children that have no owner any more, and have not ended.
static ORPHANS: RealMutex<Vec<process::Child>> = RealMutex::new(Vec::new());

fn orphan(child: process::Child) {
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner).push(child);
}

/// Reaps the orphans that have ended.
fn reap_orphans() {
    let mut orphans = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
    orphans.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

/// Reaps a child once it has ended: by a task, if there is a runtime, otherwise when the next child is started.
fn reap_later(child: process::Child) {
    reap_orphans();
    let Ok(runtime) = Handle::try_current() else { return orphan(child) };
    /// Becomes an orphan if the runtime ends first.
    struct Reaped(Option<process::Child>);
    impl Drop for Reaped {
        fn drop(&mut self) {
            if let Some(child) = self.0.take() {
                orphan(child);
            }
        }
    }
    let Ok(exit) = Exit::of(runtime.server(), &child) else { return orphan(child) };
    let (mut reaped, mut exit) = (Reaped(Some(child)), exit);
    let task = runtime.spawn(async move {
        let has_ended = poll_fn(|cx| match &mut reaped.0 {
            Some(child) => exit.poll(child, cx).map(|result| result.is_ok()),
            None => Poll::Ready(true),
        });
        if has_ended.await {
            drop(reaped.0.take());
        }
    });
    drop(task);
}

/// One of the streams of a child.
macro_rules! stream {
    ($type:ident, $end:ident, $std:ident, $what:literal) => {
        #[doc = concat!("The ", $what, " of a [`Child`].")]
        #[derive(Debug)]
        pub struct $type {
            pipe: $end,
        }

        impl $type {
            /// Takes over the stream of a child that the standard library started.
            ///
            /// # Errors
            /// Same as [`AsyncFd::new`].
            pub fn from_std(stream: process::$std) -> io::Result<Self> {
                Ok(Self { pipe: $end::from_owned_fd(stream.into())? })
            }

            /// Returns the descriptor, in blocking mode, for example to pass it to another child.
            ///
            /// # Errors
            /// The kernel's error.
            pub fn into_owned_fd(self) -> io::Result<OwnedFd> {
                self.pipe.into_blocking_fd()
            }
        }

        impl TryFrom<$type> for Stdio {
            type Error = io::Error;

            fn try_from(stream: $type) -> io::Result<Self> {
                Ok(stream.into_owned_fd()?.into())
            }
        }

        impl AsFd for $type {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.pipe.as_fd()
            }
        }

        impl AsRawFd for $type {
            fn as_raw_fd(&self) -> RawFd {
                self.pipe.as_raw_fd()
            }
        }
    };
}

stream!(ChildStdin, Sender, ChildStdin, "input");
stream!(ChildStdout, Receiver, ChildStdout, "output");
stream!(ChildStderr, Receiver, ChildStderr, "error output");

impl AsyncWrite for ChildStdin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Reading from a stream of a child.
macro_rules! readable {
    ($($type:ident),+) => {$(
        impl AsyncRead for $type {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.pipe).poll_read(cx, buffer)
            }
        }
    )+};
}

readable!(ChildStdout, ChildStderr);
