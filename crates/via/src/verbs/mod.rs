//! A provider over libibverbs: Virtual Interfaces for InfiniBand, RoCE and iWARP devices, and Soft-RoCE.
//!
//! A VI is a queue pair: a reliable connection (RC) for both reliable levels, otherwise an unreliable
//! one (UC). The device carries out descriptors, checks keys and bounds, and reports completions in its
//! completion queues; the consumer polls them, or sleeps on their channel's descriptor.
//!
//! | VIA | verbs |
//! | --- | --- |
//! | protection tag | protection domain |
//! | registered memory | memory region, which peers know by a made-up address |
//! | VI | queue pair, made for each connection |
//! | completion queue | one queue per 16 VIs, as many as needed |
//! | connection | a TCP connection that stays open beside the queue pair |
//!
//! # Connections
//! Two NICs agree on their queue pairs over TCP, in frames that are tagged under a secret of the world:
//! a NIC listens at its own address only, and answers only peers that know the secret. The TCP
//! connection stays open while the VI is connected. It distinguishes an orderly disconnect from a death,
//! detects a host that has vanished, and reports what queue pairs do not: that a peer's descriptor
//! failed, and why.
//!
//! # Errors
//! | device | descriptor | connection |
//! | --- | --- | --- |
//! | no receive descriptor (RNR, not retried) | [`RemoteDescriptorError`](Status::RemoteDescriptorError) | breaks: `DescriptorFailed` |
//! | message longer than its receive descriptor | [`LengthError`](Status::LengthError) on both sides | breaks |
//! | remote access | [`RdmaProtectionError`](Status::RdmaProtectionError) | breaks |
//! | eight time-outs of 67 ms or more | [`TransportError`](Status::TransportError) | breaks: `TransportFailed` |
//! | TCP: closed, or silent for some 11 s | flushed | breaks: `PeerDied` |
//!
//! Under reliable delivery the peer's errors are reported as `TransportError`. If the device stops the
//! queue pair of an unreliable VI, it is restarted; data in flight is lost.
//!
//! # Limits
//! The device's own limits apply, and at most 256 descriptors per queue, 16 segments and 256 bytes
//! inline. An unreliable VI loses data where the network does, and devices differ in how they treat a
//! message that is longer than its receive descriptor: Soft-RoCE drops it and leaves the descriptor. Nor
//! does Soft-RoCE recover from a lost packet within a message of several packets. Where packets are
//! lost, messages over unreliable VIs should therefore be no longer than
//! [`NicAttributes::unreliable_bytes`](crate::vi::NicAttributes::unreliable_bytes), as those of the message
//! layer are.

mod config;
mod connecting;
mod control;
mod device;
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
pub use secret::VerbsSecret;

/// The provider's name, for messages and metrics.
const NAME: &str = "verbs";
