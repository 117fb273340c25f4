//! io_uring operations: multishot receive into provided buffers, and transfers of owned buffers.
//!
//! One ring serves all requests of the handle. A waiter only *queues* its request; the thread that
//! hosts the server submits it in its next poll, since the kernel cancels a thread's submissions
//! when the thread exits. (A host thread that exits costs its requests one more submission.)
//! Completions are read from shared memory, without a system call; for a sleep the poller watches the
//! ring's own descriptor.
//!
//! ```text
//!  waiter's thread            host's thread                       kernel
//!  submit ──▶ backlog ──────▶ flush: entries, io_uring_enter ───▶ works on memory that the
//!  cancel ──▶ backlog ──────▶   (also from `arm`)                 detector's flights own
//!  event  ◀── slot ◀───────── reap: completions ◀───────────────┘
//!  ProvidedBuffer::drop ────▶ offered to the kernel again, notifier if a receive was starved
//! ```
//!
//! # Memory
//! Memory that the kernel reads or writes belongs to the detector from flush to completion: a future
//! may be dropped at any time; the buffer stays until its completion has arrived. A detector that is
//! dropped before that leaks it.
//!
//! # Bounds
//! At most [`operations_max`](UringBuilder::operations_max) requests, counting dropped ones until
//! their completion has arrived. When all provided buffers are lent, receives pause until one is
//! dropped. A stream that is not read is paused once its queue is full; until then it may hold as many
//! buffers as the queue has places.
//!
//! # Examples
//! ```
//! use std::{os::{fd::OwnedFd, unix::net::UnixStream}, sync::Arc};
//! use vigie_detect::{Registration, Server, detectors::uring::{Operation, Uring}};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let host = Server::spawn_thread()?;
//! # if Uring::builder().build().is_err() { return Ok(()) }
//! let uring = host.server().register(Uring::builder().build()?, Registration::named("uring"))?;
//! let (near, far) = UnixStream::pair()?;
//! let (near, far) = (Arc::new(OwnedFd::from(near)), Arc::new(OwnedFd::from(far)));
//!
//! let mut received = uring.stream(Operation::recv_provided(near))?;
//! let sent = uring.wait(Operation::send_all(far, b"ahoy".to_vec())).await?;
//! assert_eq!(sent.into_transfer().map(|transfer| transfer.count), Some(4));
//! let bytes = received.next().await.transpose()?.and_then(|event| event.into_received());
//! assert_eq!(bytes.as_deref(), Some(&b"ahoy"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
mod flow;
mod kernel;
mod operation;
mod traffic;
mod unavailable;

use std::{collections::VecDeque, fmt, io, mem};

pub use self::{
    builder::UringBuilder,
    kernel::ProvidedBuffer,
    operation::{Completion, Operation, Transfer},
    unavailable::{Missing, UringUnavailable},
};
use self::{
    flow::{Cancelled, Flow},
    kernel::Ring,
    operation::{Action, OperationKind},
    traffic::Job,
};
use crate::{
    clock::Instant,
    detector::{
        ArmOutcome, CancelOutcome, Detector, DriverHandle, Interest, Key, Methods, Mode,
        PollContext, SubmitOutcome,
    },
};

/// The detector of io_uring completions: see the [module](self).
///
/// # Contract
/// Its callbacks are safe to call from anywhere: they trust no caller with memory (see `kernel`).
pub struct Uring {
    ring: Ring,
    driver: Option<DriverHandle>,
    /// By index of the key.
    flows: Vec<Option<Flow>>,
    flow_count: usize,
    operations_max: usize,
    /// The jobs for the kernel: for each request a start, or at most a pause and a cancellation.
    backlog: VecDeque<Job>,
    /// Receives that found no buffer, and streams whose waiter has no room, oldest first.
    starved: Vec<Key>,
    lagging: Vec<Key>,
    /// The time at which to try again after the kernel had no resources for an entry.
    retry_at: Option<Instant>,
    /// Set once the ring cannot be entered any more.
    failed: Option<i32>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    restarts: u64,
    starvations: u64,
    overflows: u64,
}

/// The state and the counts of a [`Uring`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UringStatistics {
    /// Requests known to the detector, including dropped ones.
    pub operations: usize,
    /// The requests among these that the kernel works on.
    pub in_flight: usize,
    /// Bytes of owned buffers that the kernel may access.
    pub in_flight_bytes: usize,
    /// Provided buffers with received bytes that have not been dropped yet.
    pub lent_buffers: usize,
    /// Requests that were submitted more than once.
    pub restarts: u64,
    /// Completions that found no provided buffer.
    pub starvations: u64,
    /// Polls that found completions waiting inside the kernel for room in their queue.
    pub overflows: u64,
}

impl Uring {
    /// Returns a builder with its defaults.
    pub const fn builder() -> UringBuilder {
        UringBuilder::new()
    }

    const fn new(ring: Ring, operations_max: usize) -> Self {
        Self {
            ring,
            driver: None,
            flows: Vec::new(),
            flow_count: 0,
            operations_max,
            backlog: VecDeque::new(),
            starved: Vec::new(),
            lagging: Vec::new(),
            retry_at: None,
            failed: None,
            counts: Counts { restarts: 0, starvations: 0, overflows: 0 },
        }
    }

    /// Returns what is in flight, lent and counted. Call it through
    /// [`Handle::with_detector`](crate::Handle::with_detector).
    #[must_use]
    pub fn statistics(&self) -> UringStatistics {
        UringStatistics {
            operations: self.flow_count,
            in_flight: self.ring.flight_count(),
            in_flight_bytes: self.ring.owned_bytes(),
            lent_buffers: self.ring.pool().lent_count(),
            restarts: self.counts.restarts,
            starvations: self.counts.starvations,
            overflows: self.counts.overflows,
        }
    }

    /// Returns why a request cannot be taken.
    fn refusal(&self, key: Key, action: &Action, mode: Mode) -> Option<io::Error> {
        if let Some(errno) = self.failed {
            return Some(io::Error::from_raw_os_error(errno));
        }
        if mode == Mode::Stream && matches!(action.kind, OperationKind::Move(_)) {
            return Some(io::Error::new(
                io::ErrorKind::InvalidInput,
                "only `Operation::recv_provided` can be a stream: a transfer of a buffer has one event",
            ));
        }
        let is_taken = self.flows.get(key.index()).is_some_and(Option::is_some);
        if is_taken || key.index() >= kernel::INDEX_MAX || self.flow_count >= self.operations_max {
            return Some(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "the kernel still works on as many requests as `operations_max` allows, dropped ones \
                 included",
            ));
        }
        None
    }
}

impl Detector for Uring {
    type Request = Operation;
    type Event = Completion;

    fn methods(&self) -> Methods {
        Methods::GROUP | Methods::NOTIFY
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        driver.watch(self.ring.descriptor(), 0, Interest::Readable)?;
        self.ring.pool().set_notifier(Some(driver.notifier()));
        self.driver = Some(driver.clone());
        Ok(())
    }

    fn submit(
        &mut self,
        key: Key,
        request: &mut Operation,
        mode: Mode,
    ) -> SubmitOutcome<Completion> {
        let Some(mut action) = request.action.take() else {
            return SubmitOutcome::Rejected(io::ErrorKind::InvalidInput.into());
        };
        if let Some(error) = self.refusal(key, &action, mode) {
            return match action.kind {
                // The buffer is returned with the error. A stream cannot end at once.
                OperationKind::Move(moved) if mode == Mode::Once => {
                    SubmitOutcome::Ready(moved.into_completion(Some(error)))
                }
                OperationKind::Move(_) | OperationKind::Receive { .. } => {
                    SubmitOutcome::Rejected(error)
                }
            };
        }
        if let OperationKind::Receive { multishot } = &mut action.kind {
            *multishot = mode == Mode::Stream;
        }
        if key.index() >= self.flows.len() {
            self.flows.resize_with(key.index() + 1, || None);
        }
        self.flows[key.index()] = Some(Flow::new(key, mode, action));
        self.flow_count += 1;
        self.backlog.push_back(Job::Start(key));
        // Not entered here: the kernel cancels a thread's submissions when the thread exits.
        SubmitOutcome::Queued
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        self.run(context);
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        let now = self.driver.as_ref().map(DriverHandle::now);
        self.flush(now)?;
        // A later completion is an edge of the ring's descriptor.
        Ok(ArmOutcome::ready_if(self.ring.has_completions()))
    }

    fn cancel(&mut self, key: Key, request: &mut Operation) -> CancelOutcome {
        let Some(flow) = self.flow(key) else { return CancelOutcome::Released };
        request.leftover = mem::take(&mut flow.held);
        let cancelled = flow.cancel();
        self.lagging.retain(|&lagging| lagging != key);
        match cancelled {
            Cancelled::Idle(action) => {
                // Dropped with the request, outside the handle's lock.
                request.action = action;
                self.backlog.retain(|&job| job != Job::Start(key));
                self.starved.retain(|&starved| starved != key);
                self.forget(key);
                CancelOutcome::Released
            }
            Cancelled::InFlight => {
                self.backlog.push_back(Job::Cancel(key));
                CancelOutcome::InFlight
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.ring.pool().set_notifier(None);
        if let Some(driver) = &self.driver
            && let Err(error) = driver.unwatch(self.ring.descriptor())
        {
            tracing::debug!(%error, "the ring was no longer watched");
        }
    }
}

const _: fn() = || {
    fn sendable<T: Send>() {}
    fn shareable<T: Send + Sync>() {}
    sendable::<Uring>();
    shareable::<ProvidedBuffer>();
};

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}
