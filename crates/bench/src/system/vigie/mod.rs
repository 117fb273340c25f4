//! vigie, in the three ways in which programs get it and in the three ways of the paper.
//!
//! | system | flavor | who detects the echo's events |
//! | --- | --- | --- |
//! | `VigieNaive` | user-level | the echo task itself, whenever it is scheduled |
//! | `VigieEnhanced` | user-level | the scheduler, by one poll of the group at each switch |
//! | `VigieBlocking` | hybrid | the kernel: a blocking call on a thread of its own |
//! | [`VigieUserLevel`] | user-level | the scheduler, as its policy decides |
//! | [`VigieHybrid`] | hybrid | the scheduler, as its policy decides |
//! | [`VigieKernelLevel`] | kernel-level | the task's own thread, as its policy decides |

mod blocking;
mod in_tokio;
mod naive;

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_detect::{Fixed, Frequency, Server, Strategy};
use vigie_runtime::{Flavor, Handle, Reactivity, Runtime, RuntimeBuilder};

use self::blocking::BlockingSockets;
pub use self::in_tokio::VigieInTokio;
use self::naive::PolledSockets;
use super::async_system::{AsyncSystem, BoxedTask, Sockets, stream_calls};
use crate::error::Failure;

/// The user-level flavor with its default policy.
pub type VigieUserLevel = Vigie<UserLevel>;

/// The hybrid flavor with its default policy.
pub type VigieHybrid = Vigie<Hybrid>;

/// The hybrid flavor with [`Reactivity::LowLatency`].
pub type VigieLowLatency = Vigie<LowLatency>;

/// The hybrid flavor with [`Reactivity::LowCpu`].
pub type VigieLowCpu = Vigie<LowCpu>;

/// The user-level flavor whose compute tasks reach checkpoints.
pub type VigieCheckpoint = Vigie<Checkpoints>;

/// The user-level flavor with the paper's polling: the group, at each switch [bouge02, §3.1].
pub(crate) type VigieEnhanced = Vigie<EnhancedPolling>;

/// "The listening server thread tests for a network event each time it is scheduled. If no event has
/// occurred, then it immediately yields control back" [bouge02, §4.1].
pub(crate) type VigieNaive = Vigie<FirstComeFirstServed, PolledSockets>;

/// "Using blocking system calls provides better performance […]. However, a two-level thread
/// scheduler is needed to correctly handle such calls" [bouge02, §4.1].
pub(crate) type VigieBlocking = Vigie<Hybrid, BlockingSockets>;

/// The kernel-level flavor with its default policy.
pub type VigieKernelLevel = Vigie<KernelLevel>;

/// vigie, built as `S` says, with sockets of the kind `N`.
pub struct Vigie<S, N = Own> {
    runtime: Runtime,
    setting: PhantomData<fn() -> (S, N)>,
}

impl<S, N> fmt::Debug for Vigie<S, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vigie").finish_non_exhaustive()
    }
}

/// vigie's own sockets.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum Own {}

/// How a runtime is built, and what its compute tasks do between two steps.
pub trait Setting: 'static {
    /// Returns the builder of the runtime.
    fn builder(workers: usize) -> RuntimeBuilder;

    /// Ends a step of a compute task.
    #[must_use]
    fn pause() -> impl Future<Output = ()> + Send {
        vigie_runtime::yield_now()
    }
}

/// The user-level flavor.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum UserLevel {}

impl Setting for UserLevel {
    fn builder(_workers: usize) -> RuntimeBuilder {
        Runtime::builder().flavor(Flavor::UserLevel)
    }
}

/// The hybrid flavor.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum Hybrid {}

impl Setting for Hybrid {
    fn builder(workers: usize) -> RuntimeBuilder {
        Runtime::builder().flavor(Flavor::Hybrid).workers(workers)
    }
}

/// The kernel-level flavor.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum KernelLevel {}

impl Setting for KernelLevel {
    fn builder(_workers: usize) -> RuntimeBuilder {
        Runtime::builder().flavor(Flavor::KernelLevel)
    }
}

/// The hybrid flavor with [`Reactivity::LowLatency`].
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum LowLatency {}

impl Setting for LowLatency {
    fn builder(workers: usize) -> RuntimeBuilder {
        Hybrid::builder(workers).reactivity(Reactivity::LowLatency)
    }
}

/// The hybrid flavor with [`Reactivity::LowCpu`].
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum LowCpu {}

impl Setting for LowCpu {
    fn builder(workers: usize) -> RuntimeBuilder {
        Hybrid::builder(workers).reactivity(Reactivity::LowCpu)
    }
}

/// The user-level flavor, with checkpoints.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum Checkpoints {}

impl Setting for Checkpoints {
    fn builder(workers: usize) -> RuntimeBuilder {
        UserLevel::builder(workers)
    }

    fn pause() -> impl Future<Output = ()> + Send {
        vigie_runtime::task::checkpoint()
    }
}

/// The user-level flavor without lanes: tasks are polled in the order in which they became ready, as in the paper.
#[derive(Debug)]
pub(crate) enum FirstComeFirstServed {}

impl Setting for FirstComeFirstServed {
    fn builder(workers: usize) -> RuntimeBuilder {
        UserLevel::builder(workers).first_come_first_served(true)
    }
}

/// The user-level flavor that polls the group at each switch.
#[derive(Debug)]
pub(crate) enum EnhancedPolling {}

impl Setting for EnhancedPolling {
    fn builder(workers: usize) -> RuntimeBuilder {
        let every_switch = Strategy::PollGroup { every: Frequency::Switches(1) };
        UserLevel::builder(workers).readiness_policy(Fixed(every_switch))
    }
}

impl<S: Setting, N: 'static> AsyncSystem for Vigie<S, N>
where
    Self: Sockets,
{
    fn start(workers: usize) -> Result<Self, Failure> {
        let runtime = S::builder(workers).build().map_err(Failure::runtime)?;
        Ok(Self { runtime, setting: PhantomData })
    }

    fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.runtime.block_on(future)
    }

    fn spawn(future: impl Future<Output = ()> + Send + 'static) {
        vigie_runtime::spawn(future).detach();
    }

    fn spawner() -> impl Fn(BoxedTask) + Send + 'static {
        let handle = Handle::current();
        move |task| handle.spawn(task).detach()
    }

    async fn call<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
        vigie_runtime::spawn(future).await.expect("invariant: a task of the workload never panics")
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        S::pause()
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + Send {
        vigie_runtime::time::sleep(duration)
    }
}

impl<S: Setting> Sockets for Vigie<S> {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        let listener =
            TcpListener::bind_on(&Server::current()?, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    stream_calls!(TcpStream);
}
