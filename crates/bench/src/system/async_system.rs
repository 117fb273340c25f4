//! The operations that the workload needs of an async runtime.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use crate::error::Failure;

/// Size of the echo's buffer; messages have eight bytes.
const BUFFER_BYTES: usize = 1024;

/// A task of an unnamed type.
pub type BoxedTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// TCP as a program of a runtime has it.
pub trait Sockets: Sized + 'static {
    /// A TCP listener.
    type Listener: Send + Sync + 'static;
    /// A TCP connection.
    type Stream: Send + 'static;

    /// Listens on a free port of the loopback interface.
    ///
    /// # Errors
    /// Those of the operating system.
    fn listen() -> io::Result<(Self::Listener, SocketAddr)>;

    /// Accepts one connection and turns Nagle's algorithm off on it.
    fn accept(listener: &Self::Listener) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Connects, and turns Nagle's algorithm off.
    fn connect(address: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Reads what is there, and waits if nothing is; 0 at the end.
    fn read(
        stream: &mut Self::Stream,
        buffer: &mut [u8],
    ) -> impl Future<Output = io::Result<usize>> + Send;

    /// Writes all of `bytes`.
    fn write_all(
        stream: &mut Self::Stream,
        bytes: &[u8],
    ) -> impl Future<Output = io::Result<()>> + Send;

    /// Starts what echoes on `stream`: a task, unless the system has another way.
    fn spawn_echo(stream: Self::Stream)
    where
        Self: AsyncSystem,
    {
        Self::spawn(echo::<Self>(stream));
    }
}

/// An async runtime, as far as the workloads use it.
///
/// Functions without `self` are called inside tasks or inside the future of
/// [`block_on`](Self::block_on), as programs call them. Dispatch is static: on each runtime the
/// workload compiles to what one would write by hand for it.
pub trait AsyncSystem: Sockets {
    /// Builds the runtime on `workers` threads, where it has a choice.
    ///
    /// # Errors
    /// [`Failure::Runtime`] with the runtime's reason.
    fn start(workers: usize) -> Result<Self, Failure>;

    /// Runs `future` to its end on the calling thread.
    fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T;

    /// Starts a detached task.
    fn spawn(future: impl Future<Output = ()> + Send + 'static);

    /// Returns what starts tasks from a thread outside of the runtime; called inside a task.
    fn spawner() -> impl Fn(BoxedTask) + Send + 'static;

    /// Starts a task and waits for its result.
    fn call<T: Send + 'static>(
        future: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = T> + Send;

    /// Gives the thread back to the scheduler once.
    fn yield_now() -> impl Future<Output = ()> + Send;

    /// Ends after `duration`.
    fn sleep(duration: Duration) -> impl Future<Output = ()> + Send;
}

/// The calls of [`Sockets`] on streams whose own calls are awaited.
macro_rules! stream_calls {
    ($stream:ty) => {
        async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        }

        async fn connect(address: SocketAddr) -> io::Result<Self::Stream> {
            let stream = <$stream>::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        }

        async fn read(stream: &mut Self::Stream, buffer: &mut [u8]) -> io::Result<usize> {
            stream.read(buffer).await
        }

        async fn write_all(stream: &mut Self::Stream, bytes: &[u8]) -> io::Result<()> {
            stream.write_all(bytes).await
        }
    };
}
pub(super) use stream_calls;

/// Sends back whatever comes, until the peer closes or fails.
pub(crate) async fn echo<S: AsyncSystem>(mut stream: S::Stream) {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        let Ok(count @ 1..) = S::read(&mut stream, &mut buffer).await else { return };
        if S::write_all(&mut stream, &buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Reads until `buffer` is full; `false` at the end of the stream.
pub(crate) async fn fill<S: AsyncSystem>(
    stream: &mut S::Stream,
    buffer: &mut [u8],
) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match S::read(stream, &mut buffer[filled..]).await? {
            0 => return Ok(false),
            count => filled += count,
        }
    }
    Ok(true)
}
