//! A server that never sleeps: one thread asks epoll with a time limit of zero, again and again.
//!
//! What this achieves while nothing else runs is the mark for a runtime that wants low latency at any
//! price of processor time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::{Runner, System, threads};
use crate::error::Failure;
use crate::server::ServerPlan;
use crate::switches::{SwitchCounts, SwitchPlan};

/// Events taken from epoll at once.
const EVENTS: usize = 64;

const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Runs the echo on one spinning thread, and all else as [`threads`] does.
#[derive(Debug)]
pub(crate) struct BusyPoll;

impl Runner for BusyPoll {
    fn serve(&self, plan: &ServerPlan) -> Result<(), Failure> {
        if plan.request.is_some() {
            return Err(unsupported("its one thread cannot compute and poll"));
        }
        let listener = threads::begin(plan)?;
        let poll = || epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from);
        let poll = poll().map_err(Failure::io("creating an epoll instance"))?;
        let mut streams: Vec<Option<TcpStream>> = Vec::new();
        // Clients prove each connection by an echo before they open the next one.
        listener.set_nonblocking(true).map_err(Failure::io("listening"))?;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            if streams.len() < plan.connections as usize {
                match threads::accept(&listener) {
                    Ok(stream) => {
                        let token = EventData::new_u64(streams.len() as u64);
                        let add = || -> io::Result<()> {
                            stream.set_nonblocking(true)?;
                            Ok(epoll::add(&poll, &stream, token, EventFlags::IN)?)
                        };
                        add().map_err(Failure::io("registering a connection"))?;
                        streams.push(Some(stream));
                        if plan.is_compute_last && streams.len() == plan.connections as usize {
                            threads::start_compute(plan)?;
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(Failure::io("accepting")(error)),
                }
            }
            poll_once(&poll, &mut events).map_err(Failure::io("polling"))?;
            for event in events.drain(..) {
                let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                let Some(slot) = streams.get_mut(index) else { continue };
                // Closing takes the connection out of epoll.
                if slot.as_mut().is_some_and(|stream| echo(stream).is_err()) {
                    *slot = None;
                }
            }
        }
    }

    fn switch(&self, _plan: &SwitchPlan) -> Result<SwitchCounts, Failure> {
        Err(unsupported("it has no tasks"))
    }
}

fn unsupported(reason: &str) -> Failure {
    Failure::Unsupported { system: System::BusyPoll.name().to_owned(), reason: reason.to_owned() }
}

fn poll_once(poll: &impl std::os::fd::AsFd, events: &mut Vec<Event>) -> io::Result<()> {
    match epoll::wait(poll, rustix::buffer::spare_capacity(events), Some(&NO_WAIT)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
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
