//! The rings, and the requests in flight: see the invariants of the [module](super).

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
};

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};

use super::{
    super::{
        operation::{Action, OperationKind, Verb},
        unavailable::{Missing, UringUnavailable},
    },
    buffers::{BufferPool, ProvidedBuffer},
};
use crate::{detector::Key, sync::Arc};

/// The one group of provided buffers of a ring.
const GROUP: u16 = 0;

/// Marks the completion of a cancellation. Free in a key's bits: see [`INDEX_MAX`].
const CANCEL: u64 = 1 << 31;

/// Keys with a higher index are refused, so that the table of flights is bounded.
pub(crate) const INDEX_MAX: usize = 1 << 20;

/// The most bytes that the kernel moves with one entry (`MAX_RW_COUNT`).
const MOVE_BYTES_MAX: usize = 0x7FFF_F000;

/// The rings, and everything that the kernel may access on their behalf.
pub(crate) struct Ring {
    io: IoUring,
    pool: Arc<BufferPool>,
    /// By index of the key.
    flights: Vec<Option<Flight>>,
    flight_count: usize,
    owned_bytes: usize,
}

pub(super) struct Flight {
    key: Key,
    action: Action,
}

/// A completion read by [`Ring::reap`].
#[derive(Debug)]
pub(crate) enum Reaped {
    Completed(Completed),
    /// The kernel's answer to a cancellation; `NotFound` if it saw no such request.
    Cancelled(Key, io::Result<usize>),
}

/// A completion of a flight.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) key: Key,
    pub(crate) result: io::Result<usize>,
    pub(crate) provided: Option<ProvidedBuffer>,
    /// The action that the kernel had, if this was the final completion.
    pub(crate) action: Option<Action>,
}

impl Ring {
    pub(crate) fn new(
        entries: u32,
        buffer_count: u16,
        buffer_size_bytes: u32,
    ) -> Result<Self, UringUnavailable> {
        // Neither SINGLE_ISSUER nor DEFER_TASKRUN: any thread that hosts the server may enter. Nor
        // COOP_TASKRUN: a host thread inside a long poll must be interrupted to post the
        // completions of its submissions, since another thread may be waiting for them.
        let io = IoUring::builder()
            .setup_clamp()
            .setup_submit_all()
            .setup_cqsize(entries.saturating_mul(4))
            .build(entries)
            .map_err(UringUnavailable::from_setup)?;
        let mut probe = Probe::new();
        io.submitter().register_probe(&mut probe).map_err(UringUnavailable::from_setup)?;
        // Multishot receive has no probe of its own; it was added with zero-copy send, in Linux
        // 6.0.
        if !probe.is_supported(opcode::SendZc::CODE) {
            let source = io::ErrorKind::Unsupported.into();
            return Err(UringUnavailable::new(Missing::MultishotReceive, source));
        }
        let pool = BufferPool::new(buffer_count, buffer_size_bytes)
            .map_err(|error| UringUnavailable::new(Missing::Memory, error))?;
        let address = pool.offers_address();
        // SAFETY: uring-2: the pages have a slot for each buffer, and outlive the registration.
        unsafe { io.submitter().register_buf_ring_with_flags(address, buffer_count, GROUP, 0) }
            .map_err(UringUnavailable::from_registration)?;
        Ok(Self { io, pool: Arc::new(pool), flights: Vec::new(), flight_count: 0, owned_bytes: 0 })
    }

    /// Returns the descriptor that is readable while completions are there.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as `self.io` is, hence for this borrow.
        unsafe { BorrowedFd::borrow_raw(self.io.as_raw_fd()) }
    }

    pub(crate) const fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }

    pub(crate) const fn flight_count(&self) -> usize {
        self.flight_count
    }

    /// Returns how many bytes of the requests' own buffers the kernel may access.
    pub(crate) const fn owned_bytes(&self) -> usize {
        self.owned_bytes
    }

    /// Returns whether another entry fits before the next [`enter`](Self::enter).
    pub(crate) fn has_room(&mut self) -> bool {
        !self.io.submission().is_full()
    }

    /// Returns how many entries have not been submitted yet.
    pub(crate) fn unsubmitted(&mut self) -> usize {
        self.io.submission().len()
    }

    /// Returns whether completions wait inside the kernel for room in their queue.
    pub(crate) fn has_overflow(&mut self) -> bool {
        self.io.submission().cq_overflow()
    }

    /// Returns whether there is something to reap, in the queue or behind it.
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.io.completion().is_empty() || self.has_overflow()
    }

    /// Queues an entry for the kernel; [`enter`](Self::enter) submits it.
    ///
    /// # Errors
    /// Returns the action if there is no room, or if the key is in flight already.
    pub(crate) fn start(&mut self, key: Key, mut action: Action) -> Result<(), Action> {
        if key.index() >= INDEX_MAX || !self.has_room() {
            return Err(action);
        }
        if key.index() >= self.flights.len() {
            self.flights.resize_with(key.index() + 1, || None);
        }
        let flight = &mut self.flights[key.index()];
        if flight.is_some() {
            return Err(action);
        }
        let entry = entry_of(&mut action).user_data(key.to_bits());
        self.owned_bytes += action.owned_bytes();
        self.flight_count += 1;
        *flight = Some(Flight { key, action });
        // SAFETY: uring-1: the flight owns the memory that the entry names, and stays until `reap`
        // has read the final completion; moving a `Vec` or an `Arc` does not move what it points to.
        let pushed = unsafe { self.io.submission().push(&entry) };
        assert!(pushed.is_ok(), "invariant: there was room");
        Ok(())
    }

    /// Queues the cancellation of a key in flight, if there is room.
    pub(crate) fn cancel(&mut self, key: Key) {
        let entry = opcode::AsyncCancel::new(key.to_bits()).build();
        let entry = entry.user_data(key.to_bits() | CANCEL);
        // SAFETY: a cancellation names no memory.
        let pushed = unsafe { self.io.submission().push(&entry) };
        debug_assert!(pushed.is_ok(), "invariant: the caller has checked for room");
    }

    /// Submits queued entries and collects overflown completions: one system call. Returns how many
    /// entries the kernel took.
    pub(crate) fn enter(&self) -> io::Result<usize> {
        self.io.submit()
    }

    /// Takes the oldest completion.
    pub(crate) fn reap(&mut self) -> Option<Reaped> {
        loop {
            let entry = self.io.completion().next()?;
            let result = match entry.result() {
                errno if errno < 0 => Err(io::Error::from_raw_os_error(-errno)),
                count => Ok(usize::try_from(count).expect("invariant: not negative")),
            };
            let length = *result.as_ref().unwrap_or(&0);
            let provided = cqueue::buffer_select(entry.flags()).map(|id| {
                // SAFETY: uring-3: the completion names the buffer, and is read once.
                unsafe { self.pool.lend(id, length) }
            });

            let key = Key::from_bits(entry.user_data() & !CANCEL);
            if entry.user_data() & CANCEL != 0 {
                return Some(Reaped::Cancelled(key, result));
            }

            // Every flight has exactly one final completion, so there are no stale ones.
            let Some(flight) = self.flights.get_mut(key.index()) else { continue };
            if flight.as_ref().is_none_or(|flight| flight.key != key) {
                continue;
            }

            let flight = if cqueue::more(entry.flags()) { None } else { flight.take() };
            let action = flight.map(|Flight { mut action, .. }| {
                self.flight_count -= 1;
                self.owned_bytes -= action.owned_bytes();
                fill(&mut action, length);
                action
            });
            return Some(Reaped::Completed(Completed { key, result, provided, action }));
        }
    }
}

impl Drop for Ring {
    /// Frees what the kernel no longer uses. A server waits for that before it drops a detector;
    /// here it is tried once, without blocking, and the rest is leaked.
    fn drop(&mut self) {
        if self.flight_count > 0 {
            let everything = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build();
            let _ = self.enter();
            // SAFETY: a cancellation names no memory.
            let _ = unsafe { self.io.submission().push(&everything.user_data(CANCEL)) };
            let _ = self.enter();
            while self.reap().is_some() {}
        }
        if self.flight_count == 0 && self.io.submitter().unregister_buf_ring(GROUP).is_ok() {
            return;
        }
        tracing::warn!(
            requests = self.flight_count,
            bytes = self.owned_bytes,
            "an io_uring detector was dropped with requests in flight: their memory is leaked"
        );
        for flight in self.flights.drain(..).flatten() {
            // The kernel has its own reference to the file.
            mem::forget(flight.action.kind);
        }
        mem::forget(Arc::clone(&self.pool));
    }
}

/// Builds the entry for `action`: the addresses in it are valid while the action's memory is.
fn entry_of(action: &mut Action) -> squeue::Entry {
    let fd = types::Fd(action.fd.as_raw_fd());
    match &mut action.kind {
        OperationKind::Receive { multishot: true } => opcode::RecvMulti::new(fd, GROUP).build(),
        OperationKind::Receive { multishot: false } => {
            opcode::Recv::new(fd, std::ptr::null_mut(), 0)
                .buf_group(GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        }
        OperationKind::Move(moved) => {
            // -1 is the file's own position.
            let offset =
                moved.offset.map_or(u64::MAX, |offset| offset.saturating_add(moved.count as u64));
            let unsent = moved.buffer.get(moved.count..).unwrap_or_default();
            let (from, from_length) = (unsent.as_ptr(), length_of(unsent.len()));
            let spare = moved.buffer.spare_capacity_mut();
            let (into, into_length) = (spare.as_mut_ptr().cast(), length_of(spare.len()));
            match moved.verb {
                Verb::Read => opcode::Read::new(fd, into, into_length).offset(offset).build(),
                Verb::Recv => opcode::Recv::new(fd, into, into_length).build(),
                Verb::Write => opcode::Write::new(fd, from, from_length).offset(offset).build(),
                Verb::Send => {
                    // The kernel continues on its own after a short send, where it can.
                    let whole = if moved.is_unfinished() { libc::MSG_WAITALL } else { 0 };
                    let flags = libc::MSG_NOSIGNAL | whole;
                    opcode::Send::new(fd, from, from_length).flags(flags).build()
                }
            }
        }
    }
}

fn length_of(bytes: usize) -> u32 {
    u32::try_from(bytes.min(MOVE_BYTES_MAX)).expect("invariant: below MOVE_BYTES_MAX")
}

/// Counts the bytes that the kernel has moved, and extends the buffer by those that it has read.
fn fill(action: &mut Action, count: usize) {
    let OperationKind::Move(moved) = &mut action.kind else { return };
    moved.count += count;
    if moved.verb.is_reading() {
        let length = moved.buffer.len() + count;
        assert!(length <= moved.buffer.capacity(), "invariant: the entry named the spare capacity");
        // SAFETY: uring-1: the final completion says that the kernel wrote `count` bytes from the
        // buffer's end on; the buffer had no other user since.
        unsafe { moved.buffer.set_len(length) };
    }
}
