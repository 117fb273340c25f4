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
mod naive;

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_detect::{Fixed, Frequency, Strategy};
use vigie_runtime::{Flavor, Handle, Reactivity, Runtime};

pub(crate) use self::blocking::VigieBlocking;
pub(crate) use self::naive::VigieNaive;
use super::async_system::{AsyncSystem, BoxedTask};
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

/// The kernel-level flavor with its default policy.
pub type VigieKernelLevel = Vigie<KernelLevel>;

/// vigie, built as `S` says.
pub struct Vigie<S> {
    runtime: Runtime,
    setting: PhantomData<fn() -> S>,
}

impl<S> fmt::Debug for Vigie<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vigie").finish_non_exhaustive()
    }
}

/// A way to build the runtime.
pub trait Setting: 'static {
    /// Builds the runtime, on `workers` threads where the flavor has a choice.
    ///
    /// # Errors
    /// [`Failure::Runtime`] with the builder's reason.
    fn build(workers: usize) -> Result<Runtime, Failure>;

    /// What a compute task awaits between two steps.
    #[must_use]
    fn pause() -> impl Future<Output = ()> + Send {
        vigie_runtime::yield_now()
    }
}

/// Names the default of the user-level flavor.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum UserLevel {}

impl Setting for UserLevel {
    fn build(_workers: usize) -> Result<Runtime, Failure> {
        Runtime::builder().flavor(Flavor::UserLevel).build().map_err(Failure::runtime)
    }
}

/// Names the default of the hybrid flavor.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum Hybrid {}

impl Setting for Hybrid {
    fn build(workers: usize) -> Result<Runtime, Failure> {
        let builder = Runtime::builder().flavor(Flavor::Hybrid).workers(workers);
        builder.build().map_err(Failure::runtime)
    }
}

/// Names the default of the kernel-level flavor.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum KernelLevel {}

impl Setting for KernelLevel {
    fn build(_workers: usize) -> Result<Runtime, Failure> {
        Runtime::builder().flavor(Flavor::KernelLevel).build().map_err(Failure::runtime)
    }
}

/// Names the hybrid flavor that spends processor time on being early.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum LowLatency {}

impl Setting for LowLatency {
    fn build(workers: usize) -> Result<Runtime, Failure> {
        with_reactivity(workers, Reactivity::LowLatency)
    }
}

/// Names the hybrid flavor that spends none.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum LowCpu {}

impl Setting for LowCpu {
    fn build(workers: usize) -> Result<Runtime, Failure> {
        with_reactivity(workers, Reactivity::LowCpu)
    }
}

fn with_reactivity(workers: usize, reactivity: Reactivity) -> Result<Runtime, Failure> {
    let builder = Runtime::builder().flavor(Flavor::Hybrid).workers(workers);
    builder.reactivity(reactivity).build().map_err(Failure::runtime)
}

/// Names the user-level flavor whose compute tasks reach a checkpoint where others yield.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum Checkpoints {}

impl Setting for Checkpoints {
    fn build(workers: usize) -> Result<Runtime, Failure> {
        UserLevel::build(workers)
    }

    fn pause() -> impl Future<Output = ()> + Send {
        vigie_runtime::task::checkpoint()
    }
}

/// Names the paper's scheduler without detection of its own.
#[derive(Debug)]
pub(crate) enum FirstComeFirstServed {}

impl Setting for FirstComeFirstServed {
    fn build(_workers: usize) -> Result<Runtime, Failure> {
        let builder = Runtime::builder().flavor(Flavor::UserLevel).first_come_first_served(true);
        builder.build().map_err(Failure::runtime)
    }
}

/// Names the paper's "enhanced polling".
#[derive(Debug)]
pub(crate) enum EnhancedPolling {}

impl Setting for EnhancedPolling {
    fn build(_workers: usize) -> Result<Runtime, Failure> {
        let every_switch = Strategy::PollGroup { every: Frequency::Switches(1) };
        let builder = Runtime::builder().flavor(Flavor::UserLevel);
        builder.readiness_policy(Fixed(every_switch)).build().map_err(Failure::runtime)
    }
}

impl<S: Setting> AsyncSystem for Vigie<S> {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn start(workers: usize) -> Result<Self, Failure> {
        Ok(Self { runtime: S::build(workers)?, setting: PhantomData })
    }

    fn block_on<F>(&self, future: F) -> F::Output
    where
        F: Future + Send,
        F::Output: Send,
    {
        self.runtime.block_on(future)
    }

    fn spawn<F>(future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        vigie_runtime::spawn(future).detach();
    }

    fn spawner() -> impl Fn(BoxedTask) + Send + 'static {
        let handle = Handle::current().expect("invariant: a task of this runtime asks");
        move |task| handle.spawn(task).detach()
    }

    async fn call<F, T>(future: F) -> T
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        vigie_runtime::spawn(future).await.expect("invariant: a task of the workload never panics")
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        S::pause()
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + Send {
        vigie_runtime::time::sleep(duration)
    }

    fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn connect(address: SocketAddr) -> io::Result<Self::Stream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn read(stream: &mut Self::Stream, buffer: &mut [u8]) -> io::Result<usize> {
        stream.read(buffer).await
    }

    async fn write_all(stream: &mut Self::Stream, bytes: &[u8]) -> io::Result<()> {
        stream.write_all(bytes).await
    }
}
