//! Virtual Interfaces over libibverbs: a provider for InfiniBand, RoCE and iWARP devices, and for Soft-RoCE.
//!
//! A VI is a queue pair: a reliable connection (RC) for both reliable levels, an unreliable one (UC) else. The
//! device carries descriptors out, checks keys and bounds, and tells of what is done by its completion queues,
//! which are polled, or slept on through their channel's descriptor.
//!
//! | VIA | verbs |
//! | --- | --- |
//! | protection tag | protection domain |
//! | registered memory | memory region, which peers know by a made-up address |
//! | VI | queue pair, made for each connection |
//! | completion queue | one queue for 16 VIs each, as many as it takes |
//! | connection | a TCP connection that stays, beside the queue pair |
//!
//! # Connections
//! The two NICs of a connection agree on their queue pairs over TCP, in frames that carry tags under a secret of
//! the world: a NIC listens at its own address only, and answers nobody who does not know the secret. The TCP
//! connection stays for as long as the VI is connected. It tells an orderly disconnect from a death, notices a
//! host that vanished, and carries what queue pairs do not say: that a peer's descriptor failed, and why.
//!
//! # Errors
//! | of the device | of the descriptor | the connection |
//! | --- | --- | --- |
//! | no receive descriptor (RNR, not retried) | [`RemoteDescriptorError`](Status::RemoteDescriptorError) | breaks: `DescriptorFailed` |
//! | message longer than its receive descriptor | [`LengthError`](Status::LengthError) on both sides | breaks |
//! | remote access | [`RdmaProtectionError`](Status::RdmaProtectionError) | breaks |
//! | eight time-outs of 67 ms or more | [`TransportError`](Status::TransportError) | breaks: `TransportFailed` |
//! | TCP: closed, or silent for some 11 s | flushed | breaks: `PeerDied` |
//!
//! Under reliable delivery the peer's errors are told as `TransportError`. The queue pair of an unreliable VI that
//! the device has stopped is started again: what was on its way is lost.
//!
//! # Limits
//! What the device says of itself, and at most 256 descriptors a queue, 16 segments and 256 bytes inline. An
//! unreliable VI loses data where the network does, and devices differ in what they do to a message that is longer
//! than its receive descriptor: Soft-RoCE drops it and leaves the descriptor. Nor does Soft-RoCE get over a lost packet inside
//! of a message of several: where packets are lost, messages over unreliable VIs should be no longer than
//! [`Attributes::unreliable_bytes`](crate::vi::Attributes::unreliable_bytes), as those of the message layer are.

mod config;
mod connecting;
mod device;
mod line;
mod nic;
mod secret;
mod sys;
mod table;
mod vi;
mod wire;

#[cfg(doc)]
use crate::vi::Status;

pub use config::{OpenError, VerbsConfig};
pub use nic::Verbs;
pub use secret::Secret;

/// The provider's name, for messages and metrics.
const NAME: &str = "verbs";
