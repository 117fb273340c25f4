//! The network processor: a pipeline as a program in the driver, which stands in for the interface's processor of
//! [fast-forward, §2].
//!
//! Stock stages are data ([`BuiltinStage`](crate::pipeline::BuiltinStage)); pipelines that a program can express are compiled to
//! XDP (or tcx), one program for each ingress port, with maps that follow the host's tables at run time. Otherwise
//! [`CompileError`] gives the reason, and the pipeline runs on the host.
//!
//! # Main types
//! - [`NicPipeline`]: the program in the kernel. [`NicPipeline::follow`] keeps its maps in step with the tables.
//! - [`Emulator`]: the same program interpreted, without privilege.
//! - [`TakenPorts`]: packets to an address of this host that are the pipeline's, not the kernel's.
//! - [`NicConfig`]: sizes, and the treatment of packets that a program cannot handle.
//!
//! # Equality
//! A packet gets the same verdict here as on the host, byte by byte and reason by reason, except for those that go up
//! unchanged: [`Exceptions`] lists them. `docs/design/forward-nic.md` says how that is tested.

mod compile;
mod emulator;
mod follow;
mod layout;
mod processor;
mod taken;

pub use self::{
    compile::{CompileError, Exceptions, NicConfig},
    emulator::{Emulator, EmulatorError, EmulatorVerdict},
    follow::FollowError,
    layout::PORTS_MAX,
    processor::{NicError, NicPipeline, NicPipelineBuilder, PassAll},
    taken::TakenPorts,
};
use crate::{
    pipeline::DropReason,
    tables::{CounterSnapshot, Traffic},
};

/// The counters of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NicCounters {
    /// Packets received, sent and dropped. Sent packets were handed to the outgoing interface; those that it loses are
    /// in its own counters.
    pub traffic: CounterSnapshot,
    /// Packets that went up unchanged.
    pub passed_up: u64,
}

impl NicCounters {
    /// In the order of the map.
    fn new(values: &[u64]) -> Self {
        let at = |number: u32| {
            usize::try_from(number).ok().and_then(|number| values.get(number)).copied().unwrap_or(0)
        };
        let traffic = |packets, bytes| Traffic { packets: at(packets), bytes: at(bytes) };
        let mut dropped = [0; DropReason::ALL.len()];
        for (count, reason) in dropped.iter_mut().zip(DropReason::ALL) {
            *count = at(layout::dropped(*reason));
        }
        Self {
            traffic: CounterSnapshot {
                received: traffic(layout::RECEIVED_PACKETS, layout::RECEIVED_BYTES),
                sent: traffic(layout::SENT_PACKETS, layout::SENT_BYTES),
                dropped,
                // A program leaves them to the host.
                icmp_errors: 0,
                icmp_errors_suppressed: 0,
            },
            passed_up: at(layout::PASSED_UP),
        }
    }
}
