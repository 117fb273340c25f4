//! An async runtime in which *the scheduler itself detects I/O events*.
//!
//! ```
//! use tokio_io::{AsyncReadExt, AsyncWriteExt};
//! use vigie::net::{TcpListener, TcpStream};
//! # use tokio::io as tokio_io;
//!
//! let runtime = vigie::Runtime::builder().build()?;
//! runtime.block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let address = listener.local_addr()?;
//!     let server = vigie::spawn(async move {
//!         let (mut stream, _) = listener.accept().await?;
//!         let mut message = [0; 5];
//!         stream.read_exact(&mut message).await?;
//!         stream.write_all(&message).await
//!     });
//!     let mut stream = TcpStream::connect(address).await?;
//!     stream.write_all(b"ahoy!").await?;
//!     let mut echo = [0; 5];
//!     stream.read_exact(&mut echo).await?;
//!     server.await??;
//!     assert_eq!(&echo, b"ahoy!");
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The parts
//! - [`Runtime`], [`spawn`], [`time`] and the rest of [`vigie_runtime`]: tasks and their scheduler.
//! - [`net`]: TCP, UDP and Unix sockets with tokio's `AsyncRead` and `AsyncWrite`; [`fs`], [`process`], [`signal`] and [`io`]: files,
//!   child processes, signals and the standard streams, by tokio's names.
//! - `http`, behind the feature `hyper`: servers for tower services, such as axum's routers; with `hyper-client`, a client
//!   that keeps connections.
//! - `quic`, behind the feature `quinn`: quinn's runtime.
//! - [`detect`]: what the scheduler watches. Every source of events is a [`Detector`](detect::Detector), including
//!   sockets and timers; register your own the same way.
//! - [`simulation`]: tests of services in virtual time, with several nodes and a faulty network.
//! - `via`, behind a feature of that name: Virtual Interfaces and messages between processes.
//! - `barrier`, behind a feature of that name: barriers of tasks, threads, processes and hosts. It enables `via`, whose
//!   networks it uses.
//! - `forward`, behind a feature of that name: packet pipelines on the host and on the network interface, relays, and
//!   the model that plans them. It enables `via`.
//!
//! # Features
//! All are off by default, and none changes the behaviour of existing calls.
//!
//! - `macros`: `#[vigie::main]`, `#[vigie::test]`, `select!`, `join!`. `sync`: `vigie::sync`. `io-util`: the extension traits of [`io`].
//!   `full` is these three.
//! - `via`, `barrier`, `forward`: messages, barriers, forwarding. `forward-tls`: relays with TLS.
//! - `hyper`, `hyper-client`: HTTP servers and clients. `quinn`: QUIC.
//! - `tokio`: a setting of the runtime by which libraries that need tokio's context work inside it.
//! - `spans`: a span of `tracing` for each task. `stacks`: stacks of tasks in dumps.
//! - `cli-run`, `cli-forward`: the commands `vigie-run` and `vigie-forward`, which the libraries do not need.

#![forbid(unsafe_code)]

#[cfg(feature = "barrier")]
pub use vigie_barrier as barrier;
pub use vigie_detect as detect;
#[cfg(feature = "hyper")]
pub mod http;
pub mod io;
#[cfg(feature = "forward")]
pub use vigie_forward as forward;
#[cfg(feature = "quinn")]
pub mod quic;
#[cfg(feature = "via")]
pub use vigie_via as via;

pub use vigie_detect::{Instant, detectors, net};
pub use vigie_runtime::{
    BuildError, EmbeddedRuntime, EnterGuard, Flavor, Handle, JoinError, JoinHandle, KernelHelp,
    NoRuntime, NotEmbeddable, Reactivity, Runtime, RuntimeBuilder, ShutdownTimeout, YieldNow,
    metrics, spawn, spawn_blocking, spawn_local, time, yield_now,
};
pub use vigie_runtime::{fs, process, signal, simulation};

/// Spawning and handling tasks.
pub mod task {
    #[cfg(feature = "macros")]
    pub use tokio::task::LocalKey;
    pub use vigie_runtime::task::*;
}

/// The runtime itself, where tokio has it.
pub mod runtime {
    pub use vigie_runtime::{
        BuildError, EnterGuard, Flavor, Handle, NoRuntime as TryCurrentError, Runtime,
        RuntimeBuilder as Builder, ShutdownTimeout,
    };
}

/// tokio's channels and locks. They need no runtime, and wake tasks of any; only their tasks' budget is missing, see
/// [`task::checkpoint`].
#[cfg(feature = "sync")]
pub use tokio::sync;
#[cfg(feature = "macros")]
pub use tokio::{join, pin, select, task_local, try_join};
#[cfg(feature = "macros")]
pub use vigie_macros::{main, test};

/// The README and the guide, whose examples are compiled with the tests.
#[cfg(all(doctest, feature = "barrier", feature = "forward"))]
mod guide {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/guide/getting-started.md")]
    struct GettingStarted;
    #[cfg(feature = "hyper")]
    #[doc = include_str!("../docs/guide/http.md")]
    struct Http;
    #[cfg(all(feature = "hyper", feature = "full"))]
    #[doc = include_str!("../docs/guide/service.md")]
    struct Service;
    #[cfg(all(feature = "full", feature = "hyper-client"))]
    #[doc = include_str!("../docs/guide/simulation.md")]
    struct Simulation;
    #[cfg(feature = "full")]
    #[doc = include_str!("../docs/guide/library.md")]
    struct Library;
    #[doc = include_str!("../docs/guide/flavors.md")]
    struct Flavors;
    #[doc = include_str!("../docs/guide/coming-from-tokio.md")]
    struct ComingFromTokio;
    #[doc = include_str!("../docs/guide/detectors.md")]
    struct Detectors;
    #[doc = include_str!("../docs/guide/messages.md")]
    struct Messages;
    #[doc = include_str!("../docs/guide/barriers.md")]
    struct Barriers;
    #[doc = include_str!("../docs/guide/metrics.md")]
    struct Metrics;
    #[doc = include_str!("../docs/guide/when-something-is-slow.md")]
    struct WhenSomethingIsSlow;
}
