//! The operations that the workload needs of an async runtime.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use super::Runner;
use crate::error::Failure;
use crate::loads::{self, LoadServer};
use crate::server::ServerPlan;
use crate::switches::{self, SwitchCounts, SwitchPlan};
use crate::workload;

/// A task of a type that nobody names.
pub type BoxedTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An async runtime, as far as the workloads use it.
///
/// Functions without `self` are called inside tasks or inside the future of
/// [`block_on`](Self::block_on), as programs call them. Dispatch is static: on each runtime the
/// workload compiles to what one would write by hand for it.
pub trait AsyncSystem: Sized + 'static {
    /// A TCP listener.
    type Listener: Send + Sync + 'static;
    /// A TCP connection.
    type Stream: Send + 'static;

    /// Builds the runtime on `workers` threads, where it has a choice.
    ///
    /// # Errors
    /// [`Failure::Runtime`] with the runtime's reason.
    fn start(workers: usize) -> Result<Self, Failure>;

    /// Runs `future` to its end on the calling thread.
    fn block_on<F>(&self, future: F) -> F::Output
    where
        F: Future + Send,
        F::Output: Send;

    /// Starts a task that nobody waits for.
    fn spawn<F>(future: F)
    where
        F: Future<Output = ()> + Send + 'static;

    /// Returns what starts tasks from a thread outside of the runtime; called inside a task.
    fn spawner() -> impl Fn(BoxedTask) + Send + 'static;

    /// Starts a task and waits for its result.
    fn call<F, T>(future: F) -> impl Future<Output = T> + Send
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static;

    /// Gives the thread back to the scheduler once.
    fn yield_now() -> impl Future<Output = ()> + Send;

    /// Ends after `duration`.
    fn sleep(duration: Duration) -> impl Future<Output = ()> + Send;

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
    fn spawn_echo(stream: Self::Stream) {
        Self::spawn(workload::echo::<Self>(stream));
    }
}

/// Runs the generic workloads on `S`.
pub(crate) struct Async<S>(PhantomData<fn() -> S>);

impl<S> Async<S> {
    pub(crate) const NEW: Self = Self(PhantomData);
}

impl<S> fmt::Debug for Async<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Async")
    }
}

impl<S: AsyncSystem> Runner for Async<S> {
    fn serve(&self, plan: &ServerPlan) -> Result<(), Failure> {
        workload::serve::<S>(plan)
    }

    fn load(&self, plan: &LoadServer) -> Result<(), Failure> {
        loads::serve_on::<S>(plan)
    }

    fn switch(&self, plan: &SwitchPlan) -> Result<SwitchCounts, Failure> {
        switches::run::<S>(plan)
    }
}
