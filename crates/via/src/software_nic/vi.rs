//! A VI of a software NIC, with its posted descriptors.

use std::collections::VecDeque;

use super::attempt::ConnectAttempt;
use super::connection::SoftwareConnection;
use crate::vi::{
    Operation, Reliability, Status,
    objects::{self, Objects, PostedReceive, ViCore},
};

/// A posted send descriptor.
pub(super) type PostedSend = objects::PendingSend<SendStage>;

#[derive(Debug)]
pub(super) struct SoftwareVi<P> {
    pub(super) core: ViCore,
    pub(super) attempt: Option<ConnectAttempt<P>>,
    pub(super) connection: Option<Box<SoftwareConnection<P>>>,
    pub(super) sends: VecDeque<PostedSend>,
    /// The number of descriptors at the front of `sends` that have begun to depart.
    pub(super) begun: usize,
    /// The number of send descriptors of this connection that have ended: the ordinal of the first in `sends`.
    pub(super) ended: u64,
    pub(super) receives: VecDeque<PostedReceive>,
    /// A descriptor has failed, which breaks the connection once those before it are done.
    pub(super) is_halted: bool,
    /// Its earliest pending timer.
    pub(super) timer: Option<u64>,
    /// True if it is in the queue of VIs with something to send.
    pub(super) is_ready: bool,
}

impl<P> SoftwareVi<P> {
    pub(super) const fn new(core: ViCore) -> Self {
        Self {
            core,
            attempt: None,
            connection: None,
            sends: VecDeque::new(),
            begun: 0,
            ended: 0,
            receives: VecDeque::new(),
            is_halted: false,
            timer: None,
            is_ready: false,
        }
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.core.attributes.is_reliable()
    }

    /// Flushes everything posted. `failed`: the peer reports that this one failed, so those before it
    /// did not. The outcome of others that have departed is unknown.
    pub(super) fn flush(&mut self, objects: &mut Objects, failed: Option<(u64, Status)>) {
        let (sends, receives) =
            (std::mem::take(&mut self.sends), std::mem::take(&mut self.receives));
        let level = self.core.attributes.reliability;
        for (ordinal, posted) in (self.ended..).zip(sends) {
            let is_read = posted.operation == Operation::RdmaRead;
            let status = match (posted.stage, failed) {
                (SendStage::Over(status), _) => status,
                (SendStage::Waiting, _) => Status::Flushed,
                (_, Some((first, _))) if ordinal < first && !is_read => Status::Done,
                (_, Some((first, status)))
                    if ordinal == first && (is_read || level == Reliability::ReliableReception) =>
                {
                    status
                }
                _ => Status::TransportError,
            };
            self.core.complete_send(objects, &posted, status);
        }
        for posted in receives {
            self.core.flush_receive(objects, posted.cookie);
        }
        (self.begun, self.ended, self.is_halted) = (0, 0, false);
    }
}

/// The stage of a send descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendStage {
    Waiting,
    /// Part of it has departed: this many bytes.
    Departing(u64),
    /// All of it has departed, the last part in this fragment.
    Departed(u64),
    /// It has ended; those before it may not have.
    Over(Status),
}
