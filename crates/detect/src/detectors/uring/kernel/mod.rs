//! The state shared with the kernel: the rings, the provided buffers, the memory in flight.
//!
//! All `unsafe` code of the io_uring detector is here, behind an interface that is safe however it is
//! called: [`Ring::start`] takes the memory that the kernel may access by value, [`Ring::reap`]
//! returns it.
//!
//! # Invariants
//! - **uring-1**: The memory that a pushed entry names is owned by a [`Flight`](ring::Flight) from
//!   before the push until the final completion (without `F_MORE`) of its key has been read. A key has
//!   one flight.
//! - **uring-2**: The pages of a [`BufferPool`](buffers::BufferPool) are freed only after the kernel has
//!   forgotten them: no flight is left and the buffer group is unregistered. Otherwise they are leaked, as
//!   are the flights.
//! - **uring-3**: A provided buffer has one owner: the kernel, from the store of the tail that offers
//!   it to the completion that names it, or else one [`ProvidedBuffer`].
//! - **uring-4**: The ring of offers is written only under the pool's lock, at the slot of the tail,
//!   which the kernel does not read before the tail has passed it: there are as many slots as buffers.

#![expect(unsafe_code, reason = "the kernel reads and writes memory that it is given by address")]

mod buffers;
mod ring;

pub use self::buffers::ProvidedBuffer;
pub(super) use self::ring::{Completed, INDEX_MAX, Reaped, Ring};
