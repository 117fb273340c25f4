//! The network processor: a pipeline as a program at the driver, in the place of [fast-forward, §2]'s processor on the
//! interface.
//!
//! Stock stages are data ([`Stock`](crate::pipeline::Stock)); what a program can express is compiled to XDP (or tcx),
//! one program for each port of arrival, with maps that follow the tables of the host while it runs. What cannot be
//! compiled says why ([`NotCompiled`]), and the pipeline runs on the host.
//!
//! # Main types
//! - [`Nic`]: the program in the kernel. [`Nic::follow`] keeps its maps like the tables.
//! - [`Emulator`]: the same program interpreted, without privilege.
//! - [`Settings`]: sizes, and what becomes of packets that a program cannot handle.
//!
//! # Equality
//! A packet has the same fate here as on the host, byte by byte and reason by reason, except for those that go up to it
//! as they came: [`Exceptions`] lists them. `docs/design/forward-nic.md` says how that is tested.

mod compile;
mod emulator;
mod follow;
mod layout;
mod processor;

pub use self::{
    compile::{Exceptions, NotCompiled, Settings},
    emulator::{Emulator, EmulatorError, Fate},
    follow::FollowError,
    layout::{PORTS_MAX, Sizes},
    processor::{Nic, NicBuilder, NicError, PassAll},
};
use crate::{
    pipeline::Reason,
    tables::{CounterSnapshot, Traffic},
};

/// What a program has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NicCounters {
    /// Packets received, sent and dropped. What is sent was handed to the outgoing interface; if that one loses it, its
    /// own counters say so.
    pub traffic: CounterSnapshot,
    /// Packets that went up as they came.
    pub passed_up: u64,
}

impl NicCounters {
    /// In the order of the map.
    fn new(values: &[u64]) -> Self {
        let at = |number: u32| {
            usize::try_from(number).ok().and_then(|number| values.get(number)).copied().unwrap_or(0)
        };
        let traffic = |packets, bytes| Traffic { packets: at(packets), bytes: at(bytes) };
        let mut dropped = [0; Reason::ALL.len()];
        for (count, reason) in dropped.iter_mut().zip(Reason::ALL) {
            *count = at(layout::dropped(*reason));
        }
        Self {
            traffic: CounterSnapshot {
                received: traffic(layout::RECEIVED_PACKETS, layout::RECEIVED_BYTES),
                sent: traffic(layout::SENT_PACKETS, layout::SENT_BYTES),
                dropped,
                // A program leaves them to the host.
                answers: 0,
                answers_suppressed: 0,
            },
            passed_up: at(layout::PASSED_UP),
        }
    }
}
