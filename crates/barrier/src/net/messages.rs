//! Packets as messages between the ranks of a communicator, over any provider.

use std::{
    future::Future,
    io,
    os::fd::BorrowedFd,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use vigie_via::{
    message::{Communicator, Message, MessageError, Source},
    vi::Provider,
};

use super::transport::Transport;
use crate::{
    group::Rank,
    schedule::{Network, Target},
};

/// All packets have it: the communicator is the barrier's own.
const TAG: u32 = 0;

/// Messages that one look takes in.
const LOOK: usize = 256;

type Receiving = Pin<Box<dyn Future<Output = Result<Message, MessageError>> + Send>>;

pub(super) struct Messages<P: Provider> {
    communicator: Communicator<P>,
    /// By rank: the ranks of the communicator.
    members: Vec<u32>,
    /// A receive that somebody sleeps on.
    receiving: Option<Receiving>,
    dead: Vec<u32>,
}

impl<P: Provider> Messages<P> {
    /// Duplicates the communicator.
    pub(super) fn new(communicator: &Communicator<P>) -> Result<Self, MessageError> {
        let communicator = communicator.duplicate()?;
        let members = (0..communicator.size()).collect();
        Ok(Self { communicator, members, receiving: None, dead: Vec::new() })
    }

    fn bury(&mut self, error: &MessageError) -> bool {
        let dead = error.failed_rank();
        self.dead.extend(dead.map(|(rank, _)| rank));
        dead.is_some()
    }

    fn send_to(&mut self, rank: u32, packet: &[u8]) -> io::Result<()> {
        self.communicator.send_buffered(rank, TAG, packet).map_err(|error| {
            self.bury(&error);
            io::Error::other(error)
        })
    }

    /// Polls what was begun. Returns whether the next message may be there.
    fn take_begun(
        &mut self,
        cx: &mut Context<'_>,
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<bool> {
        let Some(receiving) = &mut self.receiving else { return Ok(true) };
        let Poll::Ready(received) = receiving.as_mut().poll(cx) else { return Ok(false) };
        self.receiving = None;
        match received {
            Ok(message) => take(&message.bytes),
            // Others go on.
            Err(error) if self.bury(&error) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(true)
    }
}

impl<P: Provider> Transport for Messages<P> {
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

    fn receive(&mut self, waker: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut cx = Context::from_waker(waker);
        for _ in 0..LOOK {
            if !self.take_begun(&mut cx, take)? {
                return Ok(());
            }
            let Some(mut matched) = self.communicator.try_matched_probe(Source::Any, TAG) else {
                return Ok(());
            };
            self.receiving = Some(Box::pin(async move { matched.receive().await }));
        }
        Ok(())
    }

    fn arm(&mut self, waker: &Waker) -> io::Result<bool> {
        let mut cx = Context::from_waker(waker);
        if self.receiving.is_none() {
            let communicator = self.communicator.clone();
            self.receiving =
                Some(Box::pin(async move { communicator.receive(Source::Any, TAG).await }));
        }
        let Some(receiving) = &mut self.receiving else { return Ok(true) };
        match receiving.as_mut().poll(&mut cx) {
            Poll::Pending => Ok(false),
            Poll::Ready(received) => {
                // It is handed over by the next look.
                self.receiving = Some(Box::pin(std::future::ready(received)));
                Ok(true)
            }
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn next_dead(&mut self) -> Option<Rank> {
        let dead = self.dead.pop()?;
        let place = self.members.iter().position(|rank| *rank == dead)?;
        u32::try_from(place).ok().map(Rank)
    }

    fn shrink(&mut self, survivors: &[Rank]) {
        let members = std::mem::take(&mut self.members);
        self.members =
            survivors.iter().filter_map(|rank| members.get(rank.index()).copied()).collect();
    }
}
