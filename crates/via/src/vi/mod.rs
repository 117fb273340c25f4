//! Virtual Interfaces: the model of VIA [via-lam, §2], behind one [`Provider`] trait.
//!
//! A *NIC* is one provider. On it you register *memory*, make *VIs* (each a send and a receive queue) and
//! *completion queues* that many VIs share, connect each VI to one VI of a peer, and post *descriptors*.
//! Posting rings the doorbell: a software NIC does the work then, or later in [`Provider::progress`].
//!
//! # In InfiniBand's terms
//!
//! | VIA | InfiniBand | here |
//! | --- | --- | --- |
//! | VI | queue pair | [`ViId`] |
//! | descriptor | work request | [`SendDescriptor`], [`ReceiveDescriptor`] |
//! | completion queue | completion queue | [`CqId`] |
//! | memory handle | local key | [`MemoryHandle`] |
//! | protection tag | protection domain | [`ProtectionTag`] |
//! | discriminator | service ID | the bytes given to [`Provider::listen`] |

mod descriptor;
pub(crate) mod headed;
pub(crate) mod objects;
mod provider;
mod registration;
mod state;

pub use descriptor::{
    Completion, Data, LocalSegment, Operation, Queue, ReceiveDescriptor, RemoteSegment,
    SendDescriptor, Status,
};
pub use headed::{HEAD_BYTES, HeadedBody, HeadedPoll, HeadedWrite, SHORT_BODY_MAX, ShortBody};
pub use provider::{
    Address, Connect, CqId, DisconnectReason, MemoryAttributes, MemoryHandle, NicAttributes,
    NicEvent, ProtectionTag, Provider, Region, Reliability, RemoteKey, RequestId, ViAttributes,
    ViError, ViId,
};
pub use registration::{CacheCounters, Registered, RegistrationCache};
pub use state::{ViEvent, ViState};

pub use crate::memory::{CACHE_LINE, Memory, OutOfBounds};
