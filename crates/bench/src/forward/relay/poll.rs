//! Many sockets that one thread watches.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::role::LoadRole;

/// Events taken from epoll at once.
const EVENTS: usize = 256;

const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Sockets by their tokens. It never sleeps if the relay has a core of its own, so that no wake-up but the relay's is measured.
pub(super) struct LoadPoll {
    epoll: OwnedFd,
    events: Vec<Event>,
    limit: Option<&'static Timespec>,
}

impl LoadPoll {
    pub(super) fn new(role: &LoadRole) -> io::Result<Self> {
        // On the relay's core, it would wait for a turn.
        let is_apart = role.relay_core != role.core || role.relay.is_none();
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS),
            limit: is_apart.then_some(&NO_WAIT),
        })
    }

    pub(super) fn add(&self, socket: impl AsFd, token: usize, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token as u64), flags)?)
    }

    /// Returns the tokens of the sockets that are ready.
    pub(super) fn wait(&mut self) -> io::Result<impl Iterator<Item = usize>> {
        let room = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, room, self.limit) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self
            .events
            .drain(..)
            .map(|event| usize::try_from(event.data.u64()).unwrap_or(usize::MAX)))
    }
}
