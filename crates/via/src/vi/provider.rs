//! The provider trait: what a NIC must do, whether it is shared memory, a network or a simulation.

use std::{fmt, io, os::fd::BorrowedFd};

use thiserror::Error;
use vigie_detect::{Armed, Instant};

use super::{Completion, Memory, Queue, ReceiveDescriptor, SendDescriptor, ViState};

/// A VI of this NIC. Never used twice by one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct ViId(pub u32);

/// A completion queue of this NIC. Never used twice by one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct CqId(pub u32);

/// A protection tag: a VI reaches only memory that was registered with its own tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct ProtectionTag(pub u32);

/// Registered memory, as its own NIC calls it. Never used twice by one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct MemoryHandle(pub u32);

/// Registered memory, as peers call it. The owner of the memory gives it to those who may use it; it
/// holds for VIs of the memory's protection tag, until the memory is deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "consumers send it as a number")]
pub struct RemoteKey(pub u64);

/// A request for a connection that a listening NIC has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct RequestId(pub u64);

/// Where a NIC can be reached: the provider's own bytes, at most 255, for the consumer to pass on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "consumers carry it from process to process")]
pub struct Address(pub Vec<u8>);

/// What a VI promises: VIA's three levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reliability {
    /// Data may be lost, doubled, reordered or corrupted. Errors at the peer are told to nobody, and do
    /// not break the connection.
    Unreliable,
    /// All data arrives once, in order and whole, or the connection breaks. A descriptor is done when its
    /// data cannot be lost any more on the way.
    #[default]
    ReliableDelivery,
    /// As reliable delivery; and a descriptor is done when its data is in the peer's memory, so that an
    /// error there is this descriptor's own.
    ReliableReception,
}

/// What a NIC can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// The provider's name, for messages and metrics.
    pub name: &'static str,
    /// The longest transfer of one descriptor, in bytes.
    pub max_transfer: u64,
    /// The most bytes of [`Data::Inline`](super::Data::Inline).
    pub max_inline: u64,
    /// The most data segments of a descriptor.
    pub max_segments: usize,
    /// The most descriptors that one queue of a VI holds.
    pub max_descriptors: usize,
    /// The highest level that its VIs may ask for.
    pub reliability: Reliability,
    /// Whether RDMA reads are offered.
    pub has_rdma_read: bool,
    /// Whether peers' memory may be mapped here: see [`Provider::window`].
    pub has_window: bool,
    /// How long a transfer over an unreliable VI may be, in bytes, without being more easily lost than a shorter one: what
    /// travels as one packet. `u64::MAX`, the default: that does not matter.
    pub unreliable_bytes: u64,
}

impl Attributes {
    /// Returns the attributes of a NIC called `name`: transfers of at most 2^31 - 1 bytes, 256 of them
    /// inline, 16 segments, 1024 descriptors a queue, reliable reception, RDMA reads.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self {
            name,
            max_transfer: (1 << 31) - 1,
            max_inline: 256,
            max_segments: 16,
            max_descriptors: 1024,
            reliability: Reliability::ReliableReception,
            has_rdma_read: true,
            has_window: false,
            unreliable_bytes: u64::MAX,
        }
    }
}

/// What may be done with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct MemoryAttributes {
    /// The tag that a VI must have to reach it.
    pub tag: ProtectionTag,
    /// Whether peers may write it.
    pub allows_write: bool,
    /// Whether peers may read it.
    pub allows_read: bool,
}

impl MemoryAttributes {
    /// Returns attributes with which no peer reaches the memory.
    #[must_use]
    pub const fn private(tag: ProtectionTag) -> Self {
        Self { tag, allows_write: false, allows_read: false }
    }
}

/// Registered memory: the bytes, and the names for them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Region {
    /// The bytes. They stay alive while anybody holds them, also after the deregistration.
    pub memory: Memory,
    /// For the data segments of this NIC's descriptors.
    pub handle: MemoryHandle,
    /// For the address segments of peers' descriptors.
    pub key: RemoteKey,
}

impl Region {
    /// Returns a region, for providers.
    #[must_use]
    pub const fn new(memory: Memory, handle: MemoryHandle, key: RemoteKey) -> Self {
        Self { memory, handle, key }
    }
}

/// How a VI is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct ViAttributes {
    /// What it promises. Both ends of a connection must say the same.
    pub reliability: Reliability,
    /// Which memory it reaches.
    pub tag: ProtectionTag,
    /// Where completions of its send queue go; `None`: they are asked for one by one.
    pub send_cq: Option<CqId>,
    /// Where completions of its receive queue go.
    pub receive_cq: Option<CqId>,
    /// Whether the peer may write this side's memory through it.
    pub allows_write: bool,
    /// Whether the peer may read this side's memory through it.
    pub allows_read: bool,
}

/// Why a connection ended or did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Reason {
    /// Nobody listens there.
    #[error("nobody listens there")]
    NotListening,
    /// The peer refused.
    #[error("the peer refused")]
    Rejected,
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The two VIs do not fit: another level of reliability, another version.
    #[error("the two ends do not fit together: {0}")]
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
    /// The transport gave up.
    #[error("the transport gave up")]
    TransportFailed,
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NicEvent {
    /// A peer wants to connect to what this NIC [listens](Provider::listen) for.
    Requested {
        /// For [`Provider::accept`] or [`Provider::reject`].
        request: RequestId,
        /// What it was listened for.
        discriminator: Vec<u8>,
        /// The peer's bytes, as it gave them to [`Provider::connect`].
        greeting: Vec<u8>,
    },
    /// The VI is connected.
    Connected {
        /// Which.
        vi: ViId,
        /// What the peer said with its [`connect`](Provider::connect) or [`accept`](Provider::accept).
        greeting: Vec<u8>,
    },
    /// The VI, which waited for a connection, is idle again.
    Refused {
        /// Which.
        vi: ViId,
        /// Why.
        reason: Reason,
    },
    /// The VI, which was connected, is in error; what was posted is flushed.
    Broken {
        /// Which.
        vi: ViId,
        /// Why.
        reason: Reason,
    },
}

/// Why a call on a NIC failed. Nothing was changed then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ViError {
    /// No such VI: it was destroyed, or is another NIC's.
    #[error("there is no VI {}: it was destroyed, or belongs to another NIC", .0.0)]
    UnknownVi(ViId),
    /// No such completion queue.
    #[error("there is no completion queue {}", .0.0)]
    UnknownCq(CqId),
    /// No such registered memory.
    #[error("there is no registered memory {}: it was deregistered", .0.0)]
    UnknownMemory(MemoryHandle),
    /// No such request for a connection: it was answered, or its peer has gone.
    #[error("there is no such request for a connection: it was answered, or its peer has gone")]
    UnknownRequest(RequestId),
    /// The VI's state does not allow that.
    #[error("the VI is {state}, which does not allow to {what}")]
    WrongState {
        /// What it is in.
        state: ViState,
        /// What was asked for.
        what: &'static str,
    },
    /// The queue is full: take completions, or let the peer go on.
    #[error("the {queue:?} queue is full; go on when a completion has been taken")]
    QueueFull {
        /// Which.
        queue: Queue,
    },
    /// More than this provider does.
    #[error("{what} is more than the provider {provider} does (at most {limit})")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// Which provider.
        provider: &'static str,
        /// How much it does.
        limit: u64,
    },
    /// Not offered by this provider.
    #[error("the provider {provider} does not offer {what}")]
    Unsupported {
        /// What.
        what: &'static str,
        /// Which provider.
        provider: &'static str,
    },
    /// The address is not one of this provider's.
    #[error("that is no address of the provider {provider}")]
    BadAddress {
        /// Which provider.
        provider: &'static str,
    },
    /// Somebody listens for that already.
    #[error("somebody listens for this discriminator already")]
    AlreadyListening,
    /// Still in use: a VI that is connected, memory with descriptors posted, a queue with VIs.
    #[error("{what} is still in use")]
    InUse {
        /// What.
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
/// It is used by one owner at a time; whoever shares it puts it behind a lock. Nothing here blocks.
///
/// # Contract
/// 1. Send descriptors of one VI are carried out in the order in which they were posted, and complete in
///    that order; so do receive descriptors. Nothing is promised between VIs.
/// 2. Data is in place before the completion that tells of it: all of a message's, and all of earlier RDMA
///    writes on the same connection.
/// 3. An RDMA write or read of 8 bytes at a multiple of 8 is one access: others see the old word or the new
///    one.
/// 4. A receive descriptor is consumed by each send and by each RDMA write with immediate data, and by
///    nothing else. If there is none, an unreliable VI drops the data; a reliable one breaks, with
///    [`Status::RemoteDescriptorError`](super::Status::RemoteDescriptorError) at the sender under reliable
///    reception.
/// 5. Nothing outside registered memory of the VI's protection tag, with the right asked for, is ever read
///    or written on behalf of a peer; what was [deregistered](Self::deregister) is out of reach from the
///    moment the call returns, as far as the provider carries out the access. (A peer process with mapped
///    memory keeps that mapping: such memory is never used for anything else afterwards.)
/// 6. Every posted send descriptor ends: done, failed or flushed. One that is not signaled tells only of
///    errors. Every receive descriptor that was not consumed is flushed when the VI breaks or disconnects.
/// 7. A completion is found once: by [`poll`](Self::poll) if the VI's queue is attached to a completion
///    queue, else by [`completed`](Self::completed).
/// 8. After [`arm`](Self::arm) returned [`Armed::Armed`], new completions and events make
///    [`descriptor`](Self::descriptor) readable, or come at [`next_deadline`](Self::next_deadline).
/// 9. Whatever a peer does, only VIs connected to it suffer: they break, with
///    [`Reason::PeerFault`] where it is known.
/// 10. When a completion is found of what came over a VI, [`event`](Self::event) has told, or tells when asked next,
///     that the VI is connected.
pub trait Provider: Send + 'static {
    /// Returns what this NIC can do; constant over its life.
    fn attributes(&self) -> Attributes;

    /// Returns where peers reach this NIC.
    fn address(&self) -> Address;

    // ------------------------------------------------------------------ memory

    /// Makes a protection tag.
    fn create_tag(&mut self) -> ProtectionTag;

    /// Allocates and registers zeroed memory, of the kind that peers reach fastest.
    ///
    /// # Errors
    /// [`ViError::Io`].
    fn allocate(&mut self, length: usize, attributes: MemoryAttributes) -> Result<Region, ViError>;

    /// Registers memory.
    ///
    /// # Errors
    /// [`ViError::Io`], for example beyond `RLIMIT_MEMLOCK`.
    fn register(&mut self, memory: Memory, attributes: MemoryAttributes)
    -> Result<Region, ViError>;

    /// Returns the memory of a VI's peer, if it is mapped here, so that what RDMA operations may do with it
    /// can be done by plain copies: bytes written there are in place before the next descriptor of that VI
    /// is carried out. Nothing else may be done with it than its attributes allow.
    fn window(&self, vi: ViId, key: RemoteKey) -> Option<Memory> {
        let _ = (vi, key);
        None
    }

    /// Takes a registration back. Descriptors that name it and were not carried out yet fail.
    ///
    /// # Errors
    /// [`ViError::UnknownMemory`].
    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError>;

    // ------------------------------------------------------------------ VIs and queues

    /// Makes a completion queue. It holds as many completions as descriptors can be posted: it never
    /// overflows.
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

    /// Listens no more. Requests that were received stay.
    fn unlisten(&mut self, discriminator: &[u8]);

    /// Asks for a connection (client-server): ends in [`NicEvent::Connected`] or [`NicEvent::Refused`], the
    /// latter at `deadline` at the latest. `greeting`, at most 1024 bytes, is for the peer's consumer.
    ///
    /// # Errors
    /// [`ViError::WrongState`], [`ViError::BadAddress`], [`ViError::TooMuch`], [`ViError::UnknownVi`].
    fn connect(
        &mut self,
        vi: ViId,
        address: &Address,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: Instant,
    ) -> Result<(), ViError>;

    /// Connects a VI with the one whose NIC calls this for this one with the same discriminator
    /// (peer-to-peer). Ends as [`connect`](Self::connect) does.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    fn connect_peer(
        &mut self,
        vi: ViId,
        address: &Address,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: Instant,
    ) -> Result<(), ViError>;

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

    /// Disconnects: flushes what is posted, tells the peer, makes the VI idle.
    ///
    /// # Errors
    /// [`ViError::UnknownVi`].
    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError>;

    /// Takes the next event.
    fn event(&mut self) -> Option<NicEvent>;

    // ------------------------------------------------------------------ descriptors

    /// Posts a descriptor to the send queue: rings the doorbell. What is wrong with the descriptor itself is
    /// its completion's status.
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

    /// Takes the next completion of a completion queue, after looking for new ones.
    fn poll(&mut self, cq: CqId) -> Option<Completion>;

    /// Takes the next completion of a VI's queue that is attached to no completion queue.
    fn completed(&mut self, vi: ViId, queue: Queue) -> Option<Completion>;

    // ------------------------------------------------------------------ the engine, time and sleep

    /// Lets the NIC work: takes announcements, goes on with descriptors that could not be carried out, keeps
    /// the time. Returns whether anything was done.
    fn progress(&mut self, now: Instant) -> bool;

    /// Returns when [`progress`](Self::progress) has work that only time brings.
    fn next_deadline(&self) -> Option<Instant>;

    /// Returns what becomes readable while the NIC is armed and has work; `None` in virtual time. The same
    /// over its whole life.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Prepares for sleep; [`progress`](Self::progress) ends it. [`Armed::Ready`]: something is there
    /// already.
    ///
    /// # Errors
    /// The kernel's.
    fn arm(&mut self) -> io::Result<Armed>;

    /// Makes [`descriptor`](Self::descriptor) quiet, after it was readable.
    fn quiet(&mut self) {}

    /// Returns whether posted descriptors wait for a peer. Of the end of those that were posted while the NIC
    /// was armed, its descriptor may tell only once it has been [armed](Self::arm) again.
    fn has_backlog(&self) -> bool {
        false
    }
}
