//! Packets as messages between the ranks of a communicator, over any provider.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use vigie_detect::ArmOutcome;
use vigie_via::{
    message::{Communicator, Message, MessageError, SourceFilter},
    protocol::Status,
    vi::Provider,
};

use super::transport::Transport;
use crate::{
    group::Rank,
    schedule::{Network, Target},
};

/// The tag of all packets: the communicator is the barrier's own.
const TAG: u32 = 0;

/// The maximum number of messages taken in one poll.
const MESSAGES_PER_POLL: usize = 256;

type PendingReceive = Pin<Box<dyn Future<Output = Result<Message, MessageError>> + Send>>;

/// A probe rather than a posted receive: a message that matches a posted receive belongs to it, and a poll would have
/// to leave it there until the scheduler has completed the receive.
type PendingProbe = Pin<Box<dyn Future<Output = Result<Status, MessageError>> + Send>>;

pub(super) struct MessageTransport<P: Provider> {
    communicator: Communicator<P>,
    /// By rank: the ranks of the communicator.
    members: Vec<u32>,
    /// The user sleeps until the next message.
    probing: Option<PendingProbe>,
    /// A receive that was started.
    receiving: Option<PendingReceive>,
    /// The number of failed ranks that [`next_dead`](Transport::next_dead) has seen.
    failures: usize,
    /// Failed ranks that it has not reported yet.
    dead: Vec<u32>,
}

impl<P: Provider> MessageTransport<P> {
    /// Duplicates the communicator.
    pub(super) fn new(communicator: &Communicator<P>) -> Result<Self, MessageError> {
        let communicator = communicator.duplicate()?;
        let members = (0..communicator.size()).collect();
        Ok(Self {
            communicator,
            members,
            probing: None,
            receiving: None,
            failures: 0,
            dead: Vec::new(),
        })
    }

    fn send_to(&mut self, rank: u32, packet: &[u8]) -> io::Result<()> {
        self.communicator.send_buffered(rank, TAG, packet).map_err(io::Error::other)
    }

    /// Polls what was started. Returns whether the next message may be there.
    fn poll_pending(
        &mut self,
        cx: &mut Context<'_>,
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<bool> {
        let Some(receiving) = &mut self.receiving else { return Ok(true) };
        let Poll::Ready(received) = receiving.as_mut().poll(cx) else { return Ok(false) };
        self.receiving = None;
        match received {
            Ok(message) => take(&message.bytes),
            Err(error) => result_of_error(error)?,
        }
        Ok(true)
    }
}

/// A failed rank is reported and the others continue: it is not an error of the transport.
fn result_of_error(error: MessageError) -> io::Result<()> {
    if error.failed_rank().is_some() { Ok(()) } else { Err(io::Error::other(error)) }
}

impl<P: Provider> Transport for MessageTransport<P> {
    fn send(&mut self, to: Target, _: Network, packet: &[u8]) -> io::Result<()> {
        match to {
            Target::Member(rank) => match self.members.get(rank.index()) {
                Some(rank) => self.send_to(*rank, packet),
                None => Ok(()),
            },
            Target::Everyone => {
                let mut result = Ok(());
                let own = self.communicator.rank();
                for rank in self.members.clone().into_iter().filter(|rank| *rank != own) {
                    if let Err(error) = self.send_to(rank, packet) {
                        result = Err(error);
                    }
                }
                result
            }
        }
    }

    fn recv_each(&mut self, waker: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut cx = Context::from_waker(waker);
        for _ in 0..MESSAGES_PER_POLL {
            if !self.poll_pending(&mut cx, take)? {
                return Ok(());
            }
            let Some(mut matched) = self.communicator.try_matched_probe(SourceFilter::Any, TAG)
            else {
                return Ok(());
            };
            // The awaited message has come.
            self.probing = None;
            self.receiving = Some(Box::pin(async move { matched.recv().await }));
        }
        Ok(())
    }

    fn arm(&mut self, waker: &Waker) -> io::Result<ArmOutcome> {
        let mut cx = Context::from_waker(waker);
        if let Some(receiving) = &mut self.receiving {
            let Poll::Ready(received) = receiving.as_mut().poll(&mut cx) else {
                return Ok(ArmOutcome::Armed);
            };
            // The next poll delivers it.
            self.receiving = Some(Box::pin(std::future::ready(received)));
            return Ok(ArmOutcome::Ready);
        }
        if !self.communicator.failures(self.failures).is_empty() {
            // The next poll records them.
            return Ok(ArmOutcome::Ready);
        }
        let failures = u32::try_from(self.failures).unwrap_or(u32::MAX);
        if failures.saturating_add(1) >= self.communicator.size() {
            // Nothing will arrive any more.
            return Ok(ArmOutcome::Armed);
        }
        let communicator = &self.communicator;
        let probing = self.probing.get_or_insert_with(|| {
            let communicator = communicator.clone();
            Box::pin(async move { communicator.probe(SourceFilter::Any, TAG).await })
        });
        let Poll::Ready(found) = probing.as_mut().poll(&mut cx) else {
            return Ok(ArmOutcome::Armed);
        };
        self.probing = None;
        found.map(drop).or_else(result_of_error)?;
        Ok(ArmOutcome::Ready)
    }

    fn next_dead(&mut self) -> Option<Rank> {
        if self.dead.is_empty() {
            self.dead = self.communicator.failures(self.failures);
            self.failures += self.dead.len();
        }
        while let Some(dead) = self.dead.pop() {
            // Ranks that no longer belong to the group do not matter.
            if let Some(place) = self.members.iter().position(|rank| *rank == dead) {
                return u32::try_from(place).ok().map(Rank);
            }
        }
        None
    }

    fn shrink(&mut self, survivors: &[Rank]) {
        let members = std::mem::take(&mut self.members);
        self.members =
            survivors.iter().filter_map(|rank| members.get(rank.index()).copied()).collect();
    }
}
