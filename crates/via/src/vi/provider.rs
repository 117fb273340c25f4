//! The provider trait: what a NIC must do, whether it is shared memory, a network or a simulation.

use std::{fmt, io, os::fd::BorrowedFd};

use thiserror::Error;
use vigie_detect::{ArmOutcome, Instant, Notifier};

use super::{
    Completion, HeadedPoll, Memory, Queue, ReceiveDescriptor, RemoteSegment, SendDescriptor,
    ViState,
};

/// A VI of this NIC. One NIC never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct ViId(pub u32);

/// A completion queue of this NIC. One NIC never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct CqId(pub u32);

/// A protection tag: a VI reaches only memory that was registered with its own tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct ProtectionTag(pub u32);

/// Registered memory, as its own NIC names it. One NIC never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct MemoryHandle(pub u32);

/// Registered memory, as peers name it. The memory's owner gives it to the peers that may use it; it is valid
/// for VIs with the memory's protection tag, until the memory is deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "consumers send it as a number")]
pub struct RemoteKey(pub u64);

/// A connection request that a listening NIC has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct RequestId(pub u64);

/// The address of a NIC: bytes that only the provider interprets, at most 255, for the consumer to pass
/// on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "consumers carry it from process to process")]
pub struct Address(pub Vec<u8>);

/// The peer that a VI is to be connected to: the argument of [`Provider::connect`] and [`Provider::connect_peer`].
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "providers read all of it")]
pub struct Connect<'a> {
    /// The VI, which must be idle.
    pub vi: ViId,
    /// The peer's NIC.
    pub address: &'a Address,
    /// The name under which the peer listens, or calls this VI: 1 to 64 bytes.
    pub discriminator: &'a [u8],
    /// Bytes for the peer's consumer, at most 1024.
    pub greeting: &'a [u8],
    /// The time by which the connection is there or has failed.
    pub deadline: Instant,
}

impl<'a> Connect<'a> {
    /// Names a peer, without a greeting.
    #[must_use]
    pub const fn new(
        vi: ViId,
        address: &'a Address,
        discriminator: &'a [u8],
        deadline: Instant,
    ) -> Self {
        Self { vi, address, discriminator, greeting: &[], deadline }
    }

    /// Sets the greeting. Default: none.
    #[must_use]
    pub const fn greeting(mut self, greeting: &'a [u8]) -> Self {
        self.greeting = greeting;
        self
    }
}

/// The guarantees of a VI: VIA's three levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reliability {
    /// Data may be lost, duplicated, reordered or corrupted. Errors at the peer are not reported, and do not
    /// break the connection.
    Unreliable,
    /// All data arrives once, in order and whole, or the connection breaks. A descriptor is done when its
    /// data can no longer be lost on the way.
    #[default]
    ReliableDelivery,
    /// As reliable delivery, but a descriptor is done only when its data is in the peer's memory, so that an
    /// error there is this descriptor's own.
    ReliableReception,
}

/// The capabilities of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NicAttributes {
    /// The provider's name, for messages and metrics.
    pub name: &'static str,
    /// The longest transfer of one descriptor, in bytes.
    pub transfer_bytes_max: u64,
    /// The most bytes of [`Data::Inline`](super::Data::Inline).
    pub inline_bytes_max: u64,
    /// The most data segments of a descriptor.
    pub segments_max: usize,
    /// The most descriptors that one queue of a VI holds.
    pub descriptors_max: usize,
    /// The highest level that its VIs may request.
    pub max_reliability: Reliability,
    /// The NIC offers RDMA reads.
    pub has_rdma_read: bool,
    /// Peers' memory may be mapped here: see [`Provider::window`].
    pub has_window: bool,
    /// The longest transfer over an unreliable VI, in bytes, that is lost no more easily than a shorter one:
    /// the most that travels as one packet. The default, `u64::MAX`, means that the length does not matter.
    pub unreliable_bytes: u64,
}

impl NicAttributes {
    /// Returns the attributes of a NIC called `name`: transfers of at most 2^31 - 1 bytes, 256 of them
    /// inline, 16 segments, 1024 descriptors per queue, reliable reception, RDMA reads.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self {
            name,
            transfer_bytes_max: (1 << 31) - 1,
            inline_bytes_max: 256,
            segments_max: 16,
            descriptors_max: 1024,
            max_reliability: Reliability::ReliableReception,
            has_rdma_read: true,
            has_window: false,
            unreliable_bytes: u64::MAX,
        }
    }
}

/// The access rights to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct MemoryAttributes {
    /// The tag that a VI needs to reach it.
    pub tag: ProtectionTag,
    /// Peers may write it.
    pub allows_write: bool,
    /// Peers may read it.
    pub allows_read: bool,
}

impl MemoryAttributes {
    /// Returns attributes under which no peer can reach the memory.
    #[must_use]
    pub const fn private(tag: ProtectionTag) -> Self {
        Self { tag, allows_write: false, allows_read: false }
    }
}

/// Registered memory: the bytes, and their names.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Region {
    /// The bytes. They live as long as any clone of this, even after deregistration.
    pub memory: Memory,
    /// For the data segments of this NIC's descriptors.
    pub handle: MemoryHandle,
    /// For the address segments of peers' descriptors.
    pub key: RemoteKey,
}

impl Region {
    /// Returns a region. For implementers of providers.
    #[must_use]
    pub const fn new(memory: Memory, handle: MemoryHandle, key: RemoteKey) -> Self {
        Self { memory, handle, key }
    }
}

/// The attributes of a new VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct ViAttributes {
    /// Its guarantees. Both ends of a connection must have the same level.
    pub reliability: Reliability,
    /// The tag of the memory that it reaches.
    pub tag: ProtectionTag,
    /// The queue for completions of its send queue; if `None`, use [`Provider::poll_queue`].
    pub send_cq: Option<CqId>,
    /// The queue for completions of its receive queue; likewise.
    pub receive_cq: Option<CqId>,
    /// The peer may write this side's memory through it.
    pub allows_write: bool,
    /// The peer may read this side's memory through it.
    pub allows_read: bool,
}

/// The cause of a connection's end, or of its failure to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The peer does not listen for the discriminator.
    #[error("nothing listens there")]
    NotListening,
    /// The peer refused.
    #[error("the peer refused")]
    Rejected,
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The two VIs do not match: a different level of reliability, or a different version.
    #[error("the two ends do not match: {0}")]
    Mismatch(&'static str),
    /// The peer disconnected in order.
    #[error("the peer disconnected")]
    Disconnected,
    /// The peer's process ended.
    #[error("the peer's process ended")]
    PeerDied,
    /// The peer broke the rules of the provider, and was cut off.
    #[error("the peer broke the protocol: {0}")]
    PeerFault(&'static str),
    /// A descriptor failed, which breaks a reliable connection.
    #[error("a descriptor failed")]
    DescriptorFailed,
    /// The transport gave up: over UDP and Ethernet after
    /// [`SoftwareNicConfig::dead_after`](crate::software_nic::SoftwareNicConfig) without an answer.
    #[error(
        "the transport gave up (over UDP and Ethernet: no answer for `SoftwareNicConfig::dead_after`, by default 10 s; a rank that computes for longer \
         must yield or run on the hybrid flavor, or its peers raise this limit)"
    )]
    TransportFailed,
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NicEvent {
    /// A peer wants to connect to what this NIC [listens](Provider::listen) for.
    Requested {
        /// For [`Provider::accept`] or [`Provider::reject`].
        request: RequestId,
        /// The discriminator that was listened for.
        discriminator: Vec<u8>,
        /// The peer's bytes, as it gave them to [`Provider::connect`].
        greeting: Vec<u8>,
    },
    /// The VI is connected.
    Connected {
        /// The VI.
        vi: ViId,
        /// The peer's greeting, from its [`connect`](Provider::connect) or [`accept`](Provider::accept).
        greeting: Vec<u8>,
    },
    /// The connection was not made; the VI is idle again.
    Refused {
        /// The VI.
        vi: ViId,
        /// The reason.
        reason: DisconnectReason,
    },
    /// The connection broke: the VI is in error, and posted descriptors are flushed.
    Broken {
        /// The VI.
        vi: ViId,
        /// The reason.
        reason: DisconnectReason,
    },
}

/// The error of a call on a NIC. The call changed nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ViError {
    /// No such VI: it was destroyed, or belongs to another NIC.
    #[error("there is no VI {}: it was destroyed, or belongs to another NIC", .0.0)]
    UnknownVi(ViId),
    /// No such completion queue.
    #[error("there is no completion queue {}", .0.0)]
    UnknownCq(CqId),
    /// No such registered memory.
    #[error("there is no registered memory {}: it was deregistered", .0.0)]
    UnknownMemory(MemoryHandle),
    /// No such connection request: it was answered, or its peer has gone.
    #[error("there is no such connection request: it was answered, or its peer has gone")]
    UnknownRequest(RequestId),
    /// The VI's state does not allow the call.
    #[error("the VI is {state}, which does not allow to {what}")]
    WrongState {
        /// The state.
        state: ViState,
        /// The effect that the call would have.
        what: &'static str,
    },
    /// The queue is full: take completions, or let the peer go on.
    #[error("the {queue:?} queue is full: take a completion before you post again")]
    QueueFull {
        /// The queue.
        queue: Queue,
    },
    /// More than this provider supports.
    #[error("{what} is more than the provider {provider} supports (at most {limit})")]
    TooMuch {
        /// The quantity that is too large.
        what: &'static str,
        /// The provider.
        provider: &'static str,
        /// The largest amount that it supports.
        limit: u64,
    },
    /// Not offered by this provider.
    #[error("the provider {provider} does not offer {what}")]
    Unsupported {
        /// The feature that is not offered.
        what: &'static str,
        /// The provider.
        provider: &'static str,
    },
    /// The address is not one of this provider's.
    #[error("that is not an address of the provider {provider}")]
    BadAddress {
        /// The provider.
        provider: &'static str,
    },
    /// This discriminator is already listened for.
    #[error("another listener has this discriminator")]
    AlreadyListening,
    /// It is still in use: a connected VI, memory with posted descriptors, a queue with VIs.
    #[error("{what} is still in use")]
    InUse {
        /// The object that is in use.
        what: &'static str,
    },
    /// The kernel's error.
    #[error("the provider's resources: {0}")]
    Io(#[from] io::Error),
}

impl fmt::Display for ViId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VI {}", self.0)
    }
}

/// A NIC: VIA's *VI provider*.
///
/// It has one owner at a time; to share it, put it behind a lock. No call blocks.
///
/// # Contract
/// 1. The send descriptors of one VI are carried out, and complete, in the order in which they were posted;
///    so do its receive descriptors. There is no order between VIs.
/// 2. Data is in place before the completion that announces it: all data of its message, and of earlier RDMA
///    writes on the same connection.
/// 3. An RDMA write or read of 8 bytes at a multiple of 8 is atomic: others see the old word or the new one.
/// 4. A receive descriptor is consumed by each send and by each RDMA write with immediate data, and by
///    nothing else. If the queue is empty, an unreliable VI drops the data; a reliable one breaks, with
///    [`Status::RemoteDescriptorError`](super::Status::RemoteDescriptorError) at the sender under reliable
///    reception.
/// 5. A peer can only access registered memory with the VI's protection tag and the needed right; nothing else is ever read
///    or written on its behalf. [Deregistered](Self::deregister) memory is out of reach from the
///    moment the call returns, as far as the provider carries out the access. (A peer process that has mapped
///    the memory keeps that mapping: such memory is never used for anything else afterwards.)
/// 6. Every posted send descriptor ends: done, failed or flushed. One that is not signaled reports only
///    errors. Every receive descriptor that was not consumed is flushed when the VI breaks or disconnects.
/// 7. A completion is returned once: by [`poll_cq`](Self::poll_cq) if the VI's queue is attached to a completion
///    queue, otherwise by [`poll_queue`](Self::poll_queue). A write that [`poll_headed_write`](Self::poll_headed_write) returns has no
///    completion beside.
/// 8. After [`arm`](Self::arm) returned [`ArmOutcome::Armed`], new completions and events make
///    [`descriptor`](Self::descriptor) readable, notify the [attached](Self::attach_notifier) host, or come at
///    [`next_deadline`](Self::next_deadline). If an action of others makes that deadline earlier, they notify it, too.
/// 9. Whatever a peer does, it can only harm VIs connected to it: they break, with
///    [`DisconnectReason::PeerFault`] where the peer's fault is known.
/// 10. When a receive completion of a VI is returned, [`next_event`](Self::next_event) has reported, or reports when called next,
///     that the VI is connected.
pub trait Provider: Send + 'static {
    /// Returns what this NIC can do; this never changes.
    fn attributes(&self) -> NicAttributes;

    /// Returns the address by which peers reach this NIC.
    fn address(&self) -> Address;

    // ------------------------------------------------------------------ memory

    /// Makes a protection tag.
    fn create_tag(&mut self) -> ProtectionTag;

    /// Allocates and registers zeroed memory, of the kind that peers reach fastest. By default, that is any memory.
    ///
    /// # Errors
    /// [`ViError::Io`].
    fn allocate(&mut self, length: usize, attributes: MemoryAttributes) -> Result<Region, ViError> {
        self.register(Memory::allocate(length)?, attributes)
    }

    /// Registers memory.
    ///
    /// # Errors
    /// [`ViError::Io`], for example beyond `RLIMIT_MEMLOCK`.
    fn register(&mut self, memory: Memory, attributes: MemoryAttributes)
    -> Result<Region, ViError>;

    /// Returns the memory that `key` names at the VI's peer, if it is mapped into this process: plain copies then replace RDMA
    /// operations. Bytes written there are in place before the next descriptor of that VI is carried out. Its
    /// attributes bound what you may do with it.
    fn window(&self, vi: ViId, key: RemoteKey) -> Option<Memory> {
        let _ = (vi, key);
        None
    }

    /// Deregisters memory. Descriptors that name it and were not carried out yet fail.
    ///
    /// # Errors
    /// [`ViError::UnknownMemory`].
    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError>;

    // ------------------------------------------------------------------ VIs and queues

    /// Makes a completion queue. It never overflows: it holds as many completions as descriptors can be
    /// posted.
    ///
    /// # Errors
    /// [`ViError::Io`].
    fn create_cq(&mut self) -> Result<CqId, ViError>;

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`ViError::InUse`] while a VI is attached, [`ViError::UnknownCq`].
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ViError>;

    /// Makes a VI.
    ///
    /// # Errors
    /// [`ViError::UnknownCq`], [`ViError::Unsupported`], [`ViError::Io`].
    fn create_vi(&mut self, attributes: ViAttributes) -> Result<ViId, ViError>;

    /// Destroys a VI that is idle or in error. Completions that were not taken are dropped.
    ///
    /// # Errors
    /// [`ViError::InUse`] while connected or connecting, [`ViError::UnknownVi`].
    fn destroy_vi(&mut self, vi: ViId) -> Result<(), ViError>;

    /// Returns the state of a VI.
    ///
    /// # Errors
    /// [`ViError::UnknownVi`].
    fn state(&self, vi: ViId) -> Result<ViState, ViError>;

    // ------------------------------------------------------------------ connections

    /// Listens for requests that name `discriminator`, at most 64 bytes.
    ///
    /// # Errors
    /// [`ViError::AlreadyListening`], [`ViError::TooMuch`].
    fn listen(&mut self, discriminator: &[u8]) -> Result<(), ViError>;

    /// Stops listening. Requests that were already received stay.
    fn unlisten(&mut self, discriminator: &[u8]);

    /// Requests a connection (client-server). The result is [`NicEvent::Connected`] or [`NicEvent::Refused`],
    /// by the deadline at the latest.
    ///
    /// # Errors
    /// [`ViError::WrongState`], [`ViError::BadAddress`], [`ViError::TooMuch`], [`ViError::UnknownVi`].
    fn connect(&mut self, to: Connect<'_>) -> Result<(), ViError>;

    /// Connects a VI to a peer's VI (peer-to-peer): the peer's NIC must call this for this VI, with the same
    /// discriminator. Ends as [`connect`](Self::connect) does.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    fn connect_peer(&mut self, to: Connect<'_>) -> Result<(), ViError>;

    /// Accepts a request with an idle VI.
    ///
    /// # Errors
    /// [`ViError::UnknownRequest`], [`ViError::WrongState`], [`ViError::UnknownVi`], [`ViError::TooMuch`].
    fn accept(&mut self, request: RequestId, vi: ViId, greeting: &[u8]) -> Result<(), ViError>;

    /// Refuses a request.
    ///
    /// # Errors
    /// [`ViError::UnknownRequest`].
    fn reject(&mut self, request: RequestId) -> Result<(), ViError>;

    /// Disconnects: flushes posted descriptors, tells the peer, and makes the VI idle.
    ///
    /// # Errors
    /// [`ViError::UnknownVi`].
    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError>;

    /// Returns the next event.
    fn next_event(&mut self) -> Option<NicEvent>;

    // ------------------------------------------------------------------ descriptors

    /// Posts a descriptor to the send queue: rings the doorbell. Faults of the descriptor itself are reported
    /// in its completion's status.
    ///
    /// # Errors
    /// [`ViError::QueueFull`], [`ViError::WrongState`] unless connected, [`ViError::TooMuch`],
    /// [`ViError::UnknownVi`].
    fn post_send(&mut self, vi: ViId, descriptor: &SendDescriptor<'_>) -> Result<(), ViError>;

    /// Posts a descriptor to the receive queue, in any state.
    ///
    /// # Errors
    /// [`ViError::QueueFull`], [`ViError::TooMuch`], [`ViError::UnknownVi`].
    fn post_receive(&mut self, vi: ViId, descriptor: &ReceiveDescriptor<'_>)
    -> Result<(), ViError>;

    /// Returns the next completion of a completion queue, after polling for new ones.
    fn poll_cq(&mut self, cq: CqId) -> Option<Completion>;

    /// As [`poll_cq`](Self::poll_cq) for a caller that awaits a completion of `vi`: those of other VIs may be left until later calls, but
    /// not for more than a bounded number of them.
    #[inline]
    fn poll_cq_for(&mut self, cq: CqId, vi: ViId) -> Option<Completion> {
        let _ = vi;
        self.poll_cq(cq)
    }

    // ------------------------------------------------------------------ writes with a head

    /// Posts an RDMA write of a head of 16 bytes and of `body`, with immediate data, as an unsignaled descriptor, if that can be carried
    /// out at once. `head` is a little-endian number. Returns `false` if it cannot: nothing has happened then, and
    /// [`post_send`](Self::post_send) does it or says why not. By default, none can.
    #[inline]
    fn post_headed_write(
        &mut self,
        vi: ViId,
        to: RemoteSegment,
        immediate: i32,
        head: u128,
        body: &[u8],
    ) -> bool {
        let _ = (vi, to, immediate, head, body);
        false
    }

    /// From now on, [`poll_headed_write`](Self::poll_headed_write) may return RDMA writes of the VI's peer into `memory`; those whose
    /// bytes come with them then do not change that memory. At most two memories of a VI can be named. [`progress`](Self::progress) may leave
    /// such a write, and what the peer has sent behind it, until the next poll for completions. By default, it returns none.
    fn take_headed_writes(&mut self, vi: ViId, memory: MemoryHandle) {
        let _ = (vi, memory);
    }

    /// Returns the next RDMA write with immediate data into the memory that was named to
    /// [`take_headed_writes`](Self::take_headed_writes), of any VI or as [`poll_cq_for`](Self::poll_cq_for), if it is the next completion
    /// of `cq` and its head has come with it.
    #[inline]
    fn poll_headed_write(&mut self, cq: CqId, vi: Option<ViId>) -> HeadedPoll {
        let _ = (cq, vi);
        HeadedPoll::Other
    }

    /// Returns the next completion of a VI's queue that is not attached to a completion queue.
    fn poll_queue(&mut self, vi: ViId, queue: Queue) -> Option<Completion>;

    // ------------------------------------------------------------------ the engine, time and sleep

    /// Lets the NIC work: it takes announcements, continues descriptors that could not be carried out, and
    /// handles timeouts. Returns whether anything was done.
    fn progress(&mut self, now: Instant) -> bool;

    /// Returns when [`progress`](Self::progress) has timed work to do.
    fn next_deadline(&self) -> Option<Instant>;

    /// Returns the descriptor that becomes readable while the NIC is armed and has work; `None` in virtual
    /// time. It never changes.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Prepares for sleep; [`progress`](Self::progress) ends it. [`ArmOutcome::Ready`]: there is work already.
    ///
    /// # Errors
    /// The kernel's.
    fn arm(&mut self) -> io::Result<ArmOutcome>;

    /// Makes [`descriptor`](Self::descriptor) quiet, after it was readable.
    fn quiet(&mut self) {}

    /// Attaches the notifier of the NIC's host, at most once: a NIC without a descriptor notifies through it.
    fn attach_notifier(&mut self, notifier: Notifier) {
        let _ = notifier;
    }

    /// Returns whether completions and events announce themselves to a host once the NIC is armed; this never changes.
    /// By default, the descriptor does that.
    fn can_announce(&self) -> bool {
        self.descriptor().is_some()
    }

    /// Returns whether posted descriptors wait for a peer. If some were posted while the NIC was armed,
    /// [arm](Self::arm) it again: otherwise their end may not be announced.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Returns whether a VI that is connected has posted sends or writes that would be lost if the NIC were dropped now. By default, the
    /// device carries on.
    fn has_unsent(&self, vi: ViId) -> bool {
        let _ = vi;
        false
    }
}
