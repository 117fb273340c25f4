//! One thread that serves all connections by epoll, and nothing of a runtime.
//!
//! It either never sleeps, asking with a time limit of zero again and again: the mark for a runtime that
//! wants low latency at any price of processor time. Or it sleeps in epoll: what a runtime over epoll can
//! reach at best beside threads that compute.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::interface::Runner;
use crate::error::Failure;
use crate::mix::LoadServer;
use crate::schedulers::System;
use crate::server::ServerPlan;
use crate::system::blocking_calls::accept;
use crate::system::threads::KernelThreads;
use crate::workload::server;
use crate::workload::switches::{SwitchCounts, SwitchPlan};

/// Events taken from epoll at once.
const EVENTS: usize = 64;

const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Runs the echo on one thread, and all else on [`KernelThreads`].
#[derive(Debug)]
pub(crate) struct Epoll {
    pub(crate) sleeps: bool,
}

/// Stands for the listener; connections count from zero.
const LISTENER: u64 = u64::MAX;

impl Runner for Epoll {
    fn serve(&self, plan: &ServerPlan) -> Result<(), Failure> {
        if plan.request.is_some() {
            return Err(self.unsupported("its one thread cannot compute and poll"));
        }
        let listener = server::begin::<KernelThreads>(plan)?;
        let poll = || epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from);
        let poll = poll().map_err(Failure::io("creating an epoll instance"))?;
        let mut streams: Vec<Option<TcpStream>> = Vec::new();
        // Clients prove each connection by an echo before they open the next one.
        let watch = || -> io::Result<()> {
            listener.set_nonblocking(true)?;
            Ok(epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?)
        };
        watch().map_err(Failure::io("listening"))?;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            // A sleeping thread comes here for each connection; the listener stays readable for others.
            if streams.len() < plan.connections as usize {
                match accept(&listener) {
                    Ok(stream) => {
                        let token = EventData::new_u64(streams.len() as u64);
                        let add = || -> io::Result<()> {
                            stream.set_nonblocking(true)?;
                            Ok(epoll::add(&poll, &stream, token, EventFlags::IN)?)
                        };
                        add().map_err(Failure::io("registering a connection"))?;
                        streams.push(Some(stream));
                        if plan.is_compute_last && streams.len() == plan.connections as usize {
                            server::start_compute::<KernelThreads>(plan);
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(Failure::io("accepting")(error)),
                }
            }
            self.poll_once(&poll, &mut events).map_err(Failure::io("polling"))?;
            for event in events.drain(..) {
                // The listener's is not among them: it is checked in each round.
                let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                let Some(slot) = streams.get_mut(index) else { continue };
                // Closing takes the connection out of epoll.
                if slot.as_mut().is_some_and(|stream| echo(stream).is_err()) {
                    *slot = None;
                }
            }
        }
    }

    fn load(&self, _plan: &LoadServer) -> Result<(), Failure> {
        Err(self.unsupported("its one thread has no tasks"))
    }

    fn switch(&self, _plan: &SwitchPlan) -> Result<SwitchCounts, Failure> {
        Err(self.unsupported("it has no tasks"))
    }
}

impl Epoll {
    fn unsupported(&self, reason: &str) -> Failure {
        let system = if self.sleeps { System::EpollThread } else { System::BusyPoll };
        Failure::unsupported(system, reason)
    }

    fn poll_once(&self, poll: &impl std::os::fd::AsFd, events: &mut Vec<Event>) -> io::Result<()> {
        let limit = if self.sleeps { None } else { Some(&NO_WAIT) };
        match epoll::wait(poll, rustix::buffer::spare_capacity(events), limit) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sends back what is there; an error at the end of the stream.
fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut buffer = [0; 1024];
    match stream.read(&mut buffer) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        // Messages are far smaller than the socket's buffer, so this never blocks for a client that reads.
        Ok(count) => stream.write_all(&buffer[..count]),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}
