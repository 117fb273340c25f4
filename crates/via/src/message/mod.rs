//! Messages between ranks, awaited: `communicator.receive(source, tag).await`.
//!
//! An [`Endpoint`] is the message engine of one rank, hosted by a detection server; a [`Communicator`] sends
//! and receives in one context of it. Every call tries inline first and looks again for a while where that
//! has paid lately; only then does the scheduler take over, which polls or sleeps as it decides for any other
//! event. The semantics are MPI's [via-lam, §4.3]: messages of one sender that fit the same receive are
//! received in the order in which they were sent, whatever their mode and length.
//!
//! | MPI | here |
//! | --- | --- |
//! | `MPI_Send`, `MPI_Bsend`, `MPI_Ssend`, `MPI_Rsend` | [`send`](Communicator::send), [`send_buffered`](Communicator::send_buffered), [`send_sync`](Communicator::send_sync), [`send_ready`](Communicator::send_ready) |
//! | `MPI_Recv` | [`receive`](Communicator::receive), [`receive_into`](Communicator::receive_into) |
//! | `MPI_Isend`, `MPI_Irecv`, `MPI_Wait`, `MPI_Cancel` | [`start_send`](Communicator::start_send), [`start_receive`](Communicator::start_receive): requests that are futures |
//! | `MPI_Send_init`, `MPI_Recv_init`, `MPI_Start` | [`PersistentSend`], [`PersistentReceive`] |
//! | `MPI_Probe`, `MPI_Iprobe`, `MPI_Mprobe` | [`probe`](Communicator::probe), [`try_probe`](Communicator::try_probe), [`matched_probe`](Communicator::matched_probe) |
//! | `MPI_Comm_dup` | [`duplicate`](Communicator::duplicate) |
//! | (none) | [`loan`](Communicator::loan), [`receive_view`](Communicator::receive_view): nobody copies |
//! | derived datatypes | [`Layout`](crate::protocol::Layout) |
//!
//! # Progress
//! While an endpoint lives, its server lets it work: messages are taken, acknowledged and handed on whether or
//! not a task waits for one.

mod communicator;
mod endpoint;
mod error;
mod in_place;
mod join;
mod request;

pub use communicator::{Communicator, Message, PersistentReceive, PersistentSend, Source, Tag};
pub use endpoint::Endpoint;
pub use error::{MessageError, MessageErrorKind};
pub use in_place::{LoanedBuffer, MessageView};
pub use join::JoinError;
pub use request::{Matched, ReceiveRequest, SendRequest};
