//! Messages between ranks, awaited: `communicator.recv(source, tag).await`.
//!
//! An [`Endpoint`] is the message engine of one rank, hosted by a detection server; a [`Communicator`] sends
//! and receives in one context of it. Every call first tries inline and spins briefly where that has paid off
//! lately; then the scheduler takes over and polls or sleeps, as for any other event. The semantics are MPI's
//! [via-lam, §4.3]: messages of one sender that fit the same receive are received in the order in which they
//! were sent, whatever their mode and length.
//!
//! ```
//! use std::time::Duration;
//! use vigie_detect::{Instant, Server};
//! use vigie_via::{message::{Endpoint, SourceFilter}, protocol::EngineConfig, shm::Shm, world::World};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! // Inside a vigie runtime `World::join` and `Endpoint::join` are enough: they use the scheduler's server.
//! let host = Server::spawn_thread()?;
//! let (server, deadline) = (host.server(), Instant::now() + Duration::from_secs(10));
//! let world = World::join_on(server, deadline).await?;
//! let nic = Shm::open()?;
//! let endpoint = Endpoint::join_over(server, &world, nic, EngineConfig::default(), deadline).await?;
//! let all = endpoint.communicator();
//! // A request is posted and held: dropping a wait for it loses nothing.
//! let mut request = all.start_recv(SourceFilter::Any, 7);
//! let early = tokio::time::timeout(Duration::from_millis(1), request.wait()).await;
//! assert!(early.is_err(), "nothing has been sent");
//! // Every rank sends to the next one; a single rank sends to itself.
//! all.send((all.rank() + 1) % all.size(), 7, b"ahoy").await?;
//! assert_eq!(request.wait().await?.bytes, b"ahoy");
//! // A rank that exits without leaving looks like a failure to the others.
//! world.leave(deadline).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | MPI | here |
//! | --- | --- |
//! | `MPI_Send`, `MPI_Bsend`, `MPI_Ssend`, `MPI_Rsend` | [`send`](Communicator::send), [`send_buffered`](Communicator::send_buffered), [`send_sync`](Communicator::send_sync), [`send_ready`](Communicator::send_ready) |
//! | `MPI_Recv` | [`recv`](Communicator::recv), [`recv_into`](Communicator::recv_into) |
//! | `MPI_Isend`, `MPI_Irecv`, `MPI_Wait`, `MPI_Test`, `MPI_Cancel` | [`start_send`](Communicator::start_send), [`start_recv`](Communicator::start_recv): requests that you hold and wait for |
//! | `MPI_Waitany`, `MPI_Waitsome`, `MPI_Waitall`, and their tests | [`RequestSet`] |
//! | `MPI_Request_free` | dropping a [`SendRequest`], [`ReceiveRequest::forget`] |
//! | `MPI_Sendrecv`, `MPI_Sendrecv_replace` | [`send_recv`](Communicator::send_recv), [`send_recv_replace`](Communicator::send_recv_replace) |
//! | `MPI_Send_init`, `MPI_Recv_init`, `MPI_Start` | [`PersistentSend`], [`PersistentReceive`] |
//! | `MPI_Probe`, `MPI_Iprobe`, `MPI_Mprobe`, `MPI_Improbe` | [`probe`](Communicator::probe), [`try_probe`](Communicator::try_probe), [`matched_probe`](Communicator::matched_probe), [`try_matched_probe`](Communicator::try_matched_probe) |
//! | `MPI_Mrecv`, `MPI_Imrecv` | [`Matched::recv_into`], [`Matched::start`] |
//! | `MPI_Comm_dup` | [`duplicate_together`](Communicator::duplicate_together); [`duplicate`](Communicator::duplicate) without messages |
//! | `MPI_Comm_attach_buffer`, `MPI_Comm_flush_buffer`, `MPI_Comm_detach_buffer` | [`attach_buffer`](Communicator::attach_buffer), [`flush_buffer`](Communicator::flush_buffer), [`detach_buffer`](Communicator::detach_buffer) |
//! | `MPI_Finalize` | [`Endpoint::close`] |
//! | (none) | [`loan`](Communicator::loan), [`recv_view`](Communicator::recv_view): no copy |
//! | derived datatypes | [`Layout`](crate::protocol::Layout) |
//!
//! # Waiting for several
//! [`SendRequest`], [`ReceiveRequest`] and [`Matched`] are not futures: their `wait` and `recv` borrow them, so
//! that `select`, time-outs and `join` may drop the future and keep the request. Dropping a
//! [`recv`](Communicator::recv) or a [`ReceiveRequest`] loses a message that was matched to it.
//!
//! # Connections
//! Ranks are connected when they first need each other: when a send, a receive that waits or a probe names the other one. The
//! first send to a rank therefore waits until that rank has entered the layer, too. After [`World::leave`](crate::world::World::leave),
//! connections still work.
//!
//! # Failures and flow control
//! When a rank fails, everything that waits for it ends, as does every receive and probe from [`SourceFilter::Any`] that is waiting
//! then. If none is waiting, the next one of each communicator that finds no message ends at once: each communicator is told of each
//! failure at least once, by the error of such a call or by [`failures`](Communicator::failures). After that, its receives from any source
//! wait for the remaining ranks. A call that is dropped before it returns the error has told nothing. A rank that leaves in order has failed in this sense, too. Once all other ranks have failed, receives from any source end at once, unless a message has already
//! arrived for them: they do not wait for messages that a rank may still send to itself, which only receives from
//! its own rank do.
//!
//! Of one rank's messages that are not received, 4 MiB
//! ([`EngineConfig::unexpected_bytes_max`](crate::protocol::EngineConfig::unexpected_bytes_max)) and 262 144 in number
//! ([`EngineConfig::unexpected_messages_max`](crate::protocol::EngineConfig::unexpected_messages_max)) are kept by default.
//! Then the rank announces its further messages and keeps their bytes until they are asked for, so that no message
//! holds up another, in the same communicator or in another. Sends of short messages in standard mode are still done at
//! once, up to [`EngineConfig::held_bytes_max`](crate::protocol::EngineConfig::held_bytes_max); other sends wait for their receives.
//! Once half of what is kept has been received, the next announced messages are asked for together, in the order of sending. One that is
//! received before its turn takes a round trip more.
//! [`MessageCounters::pauses`](crate::protocol::MessageCounters::pauses) tells the receiver how often that happened.
//! A rank whose peer leaves more than
//! [`EngineConfig::announced_messages_max`](crate::protocol::EngineConfig::announced_messages_max) unreceived gets
//! [`SendError::TooManyUnmatched`](crate::protocol::SendError::TooManyUnmatched).
//!
//! # Progress
//! While an endpoint lives, its server drives it: messages are accepted, acknowledged and delivered whether or
//! not a task waits for one. A posted receive takes all of its message, although its task waits for something else
//! (MPI 5.0, section 3.5): data that has arrived waits in memory, and the sender can go on. A
//! [`start_send`](Communicator::start_send) too needs no polling. Bytes that are borrowed
//! ([`send`](Communicator::send)) are only read while its future is polled: do not leave it alone half way.

mod agreement;
mod communicator;
mod context;
mod endpoint;
mod endpoint_engine;
mod error;
mod exchange;
mod in_place;
mod join;
mod lease;
mod linger;
mod received;
mod request;
mod set;
mod watch;

pub use communicator::{Communicator, PersistentReceive, PersistentSend, SourceFilter, TagFilter};
pub use endpoint::Endpoint;
pub use error::{MessageError, MessageErrorKind};
pub use in_place::{LoanedMessage, MessageView};
pub use join::JoinError;
pub use linger::CloseError;
pub use received::Message;
pub use request::{Matched, ReceiveRequest, SendRequest};
pub use set::{Ended, RequestOutcome, RequestSet};
