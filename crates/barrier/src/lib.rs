//! Barriers: no member leaves before every member has entered.
//!
//! ```
//! use std::sync::Arc;
//! use vigie_barrier::{Algorithm, Group, Member, Rank, checker, member::{Event, MemberConfig}, packet::GroupId};
//! use vigie_detect::Instant;
//!
//! // An algorithm is a value that can be checked before it is used.
//! let schedule = Arc::new(Algorithm::ShuffleExchange.schedule(Group::new(2)?)?);
//! assert_eq!(checker::prove(&schedule)?.hops, 1);
//!
//! // A member is a state machine; the caller carries its packets.
//! let settings = MemberConfig::new(GroupId(0x1234_5678_9abc_def0));
//! let mut one = Member::new(Arc::clone(&schedule), Rank(0), settings.clone())?;
//! let mut other = Member::new(schedule, Rank(1), settings)?;
//! let now = Instant::from_nanos(0);
//! one.enter(now, &[])?;
//! assert!(one.poll_event().is_none(), "the other has not entered");
//! other.enter(now, &[])?;
//! one.receive(now, &other.poll_transmit().expect("a message").packet)?;
//! assert!(matches!(one.poll_event(), Some(Event::Exited { epoch: 0, .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!   group, LogP parameters
//!          |
//!       planner ----> schedule (a value: which member sends to which, in which round)
//!                        |
//!                     member (a state machine: arrivals and `now` in; sends, deadlines, exit out)
//!                        |
//!      transport: tasks and threads | shared memory | datagrams | messages | simulated cluster
//! ```
//!
//! - **Algorithms** are pure schedules, which tests can check for every group size: shuffle exchange
//!   [eth-barrier, §3.1.1] and, for sizes that are not powers of two, dissemination; trees of any arity with a multicast exit
//!   [eth-barrier, §3.2.1]; all members to one master [eth-barrier, §3.2.3]; the variants over two networks
//!   [eth-barrier, §3.3].
//! - **Reliability** by colours: a message never overtakes a barrier, so two colours tell a late duplicate from the
//!   next episode [eth-barrier, §2.3]. Timeouts trigger retransmission. A member that is gone becomes an error that
//!   names it, on every survivor.
//! - **Cost model**: LogP's closed forms [eth-barrier, §5.1.2] with overheads, latency and gap that are typical of
//!   the transport, given, or measured on it. The planner picks the algorithm and arity and gives its reasons; a
//!   barrier reports expected and observed times.
//! - **Simulated cluster**: nodes with the costs of sending, receiving and interrupts, a switch, a repeater hub; it
//!   drives the same members and reproduces the figures of [eth-barrier, §4.3].
//!
//! # Its place
//!
//! `barrier` depends on `vigie-detect` and, for datagrams and messages, on `vigie-via`. Waiting in a barrier is a
//! detector like any other, so members that outnumber the cores sleep instead of spinning away their peers' time.
//!
//! # What it deliberately does not do
//!
//! - It never imports `vigie-runtime`: its futures run on any executor.
//! - It has no other collectives: no broadcast or gather of data, and no reduction except of one value of at most 1
//!   KiB that travels with the messages of the barrier.
//! - A group never continues silently without a member: after an error the group is unusable until its survivors
//!   agree on a smaller one.

#![deny(unsafe_code)]
// Not every part uses all of the shared code.
#![cfg_attr(not(all(feature = "local", feature = "net")), allow(dead_code, unused_imports))]

pub mod algorithm;
pub mod checker;
#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(all(any(feature = "local", feature = "net"), not(loom)))]
mod deadline;
mod error;
mod group;
#[cfg(feature = "local")]
pub mod local;
pub mod logp;
#[cfg(all(feature = "local", loom))]
#[doc(hidden)]
pub mod loom_exports;
pub mod member;
#[cfg(all(feature = "net", not(loom)))]
pub mod net;
pub mod packet;
pub mod reduction;
mod schedule;
mod sync;

pub use algorithm::Algorithm;
pub use error::{Arrived, BarrierError, LostRanks, Passed};
pub use group::{Group, GroupError, Rank};
pub use member::Member;
pub use reduction::Reduction;
pub use schedule::{Network, Round, Schedule, Source, Step, Target};
