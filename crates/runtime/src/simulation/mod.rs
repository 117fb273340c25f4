//! Services in a simulated world: several nodes with a runtime each, on one thread, in virtual time, with a network that
//! delays and loses packets, partitions and crashes. One seed determines everything that happens.
//!
//! A service runs as it is: the world is chosen where the test is, by [`World`], and the service uses the same sockets, timers
//! and tasks as ever.
//!
//! ```
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use vigie_detect::net::{TcpListener, TcpStream};
//! use vigie_runtime::{simulation::World, time};
//!
//! async fn serve() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("0.0.0.0:7").await?;
//!     loop {
//!         let (mut stream, _) = listener.accept().await?;
//!         stream.write_all(b"ahoy").await?;
//!     }
//! }
//!
//! let mut world = World::new(42);
//! let server = world.node("server").run(serve);
//! let begin = std::time::Instant::now();
//! world.block_on(async {
//!     server.crash();
//!     time::sleep(time::Duration::from_secs(3600)).await;
//!     server.restart();
//!     time::sleep(time::Duration::from_secs(1)).await;
//!     let mut heard = String::new();
//!     TcpStream::connect("server:7").await?.read_to_string(&mut heard).await?;
//!     assert_eq!(heard, "ahoy");
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`for_each_seed`] runs a test in as many worlds as you want; one number replays a failure.

#[doc(hidden)]
pub mod escapes;
mod failure;
mod node;
mod random_faults;
mod seeds;
mod shrink;
mod timeline;
mod world;

pub use self::{
    escapes::catch_escapes,
    node::{Node, NodeBuilder},
    random_faults::{FaultKind, RandomFaults},
    seeds::{TestOutcome, for_each_seed, run_test},
    world::World,
};
pub use crate::flavor::simulated::Disk;
pub use vigie_detect::{
    DropReason, Link, NodeChange, TaskEnd, TraceEvent, TraceEventKind, TracedPacket, TracedTask,
};
