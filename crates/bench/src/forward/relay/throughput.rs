//! Streams on many connections at once: source and sink are one thread. The sink discards bytes without copying them, so that the relay, and
//! not the load, has the most to do with each byte.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};

use rustix::event::epoll::EventFlags;
use rustix::net::{RecvFlags, recv};

use super::echo::processor_time;
use super::poll::LoadPoll;
use super::role::{LoadResult, LoadRole, WARM_UP, accept, connect};
use crate::clock::now;
use crate::error::Failure;
use crate::host::limits;

/// Bytes that a source writes at once.
const BLOCK_BYTES: usize = 128 << 10;

/// Bytes that the sink discards at once.
const DISCARDED_BYTES: usize = 1 << 20;

/// Writes as much as possible on each connection, and counts what arrives within the budget.
pub(super) fn throughput(
    role: &LoadRole,
    listener: &TcpListener,
    connections: u32,
) -> Result<LoadResult, Failure> {
    limits::allow_connections(2 * connections)?;
    let (mut sources, mut sinks) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        sources.push(connect(role)?);
        sinks.push(accept(listener)?);
    }
    let broken = |error| Failure::io("streaming through the relay")(error);
    let poll = watch(role, &sources, &sinks).map_err(broken)?;
    let room = vec![0; DISCARDED_BYTES];
    let idle = vec![true; sinks.len()];
    let mut streams = Streams { sources, sinks, poll, arrived: 0, idle, room };
    let (seconds, bytes, cost) = streams.run(role).map_err(broken)?;
    if bytes == 0 {
        return Err(Failure::because("streaming through the relay", "nothing arrived"));
    }
    let gigabytes = bytes as f64 / 1e9;
    let relay_s_per_gb = cost.map(|cost| cost / gigabytes);
    Ok(LoadResult::Carried { gb_per_s: gigabytes / seconds, relay_s_per_gb })
}

fn watch(role: &LoadRole, sources: &[TcpStream], sinks: &[TcpStream]) -> io::Result<LoadPoll> {
    let poll = LoadPoll::new(role)?;
    let ends = sources.iter().map(|one| (one, EventFlags::OUT));
    let ends = ends.chain(sinks.iter().map(|one| (one, EventFlags::IN)));
    for (token, (end, flags)) in ends.enumerate() {
        end.set_nonblocking(true)?;
        poll.add(end, token, flags)?;
    }
    Ok(poll)
}

/// Connections through the relay. The tokens of the sinks follow those of the sources.
struct Streams {
    sources: Vec<TcpStream>,
    sinks: Vec<TcpStream>,
    poll: LoadPoll,
    /// Bytes that the sinks have received.
    arrived: u64,
    /// The sinks that have not received anything.
    idle: Vec<bool>,
    /// As long as what a sink takes at once; nothing is written to it.
    room: Vec<u8>,
}

impl Streams {
    /// Returns the seconds, the bytes that arrived in them, and the relay's processor time in seconds.
    fn run(&mut self, role: &LoadRole) -> io::Result<(f64, u64, Option<f64>)> {
        let begin = now() + WARM_UP;
        // Thousands of first blocks may take longer than the warm-up.
        while now() < begin || self.idle.contains(&true) {
            self.step()?;
        }
        let (began, before) = (now(), self.arrived);
        let busy = processor_time(role.relay);
        let (end, mut at) = (began + role.budget, began);
        while at < end {
            self.step()?;
            at = now();
        }
        let cost = processor_time(role.relay).zip(busy).map(|(after, before)| after - before);
        Ok(((at - began).as_secs_f64(), self.arrived - before, cost))
    }

    fn step(&mut self) -> io::Result<()> {
        for token in self.poll.wait()? {
            let moved = match self.sources.get_mut(token) {
                Some(source) => source.write(&[5; BLOCK_BYTES]).map(|_| 0),
                None => {
                    let sink = token - self.sources.len();
                    self.idle[sink] = false;
                    discard(&self.sinks[sink], &mut self.room)
                }
            };
            match moved {
                Ok(bytes) => self.arrived += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Takes bytes out of a socket without copying them (tcp(7), `MSG_TRUNC`), and returns how many.
fn discard(sink: &TcpStream, room: &mut [u8]) -> io::Result<u64> {
    match recv(sink, room, RecvFlags::TRUNC)? {
        (_, 0) => Err(ErrorKind::UnexpectedEof.into()),
        (_, bytes) => Ok(bytes as u64),
    }
}
