//! Round trips on many connections at once: source and sink are one thread over epoll, which never sleeps if the relay has a core of
//! its own, so that no wake-up but the relay's is measured.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::role::{LoadResult, LoadRole, PING_BYTES, WARM_UP, connect};
use crate::clock::{nanoseconds, now};
use crate::error::Failure;
use crate::host::limits;

/// Events taken from epoll at once.
const EVENTS: usize = 256;

/// Round trips that are kept of one turn, evenly spread over it.
const SAMPLES_MAX: usize = 20_000;

const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// One end of a connection through the relay.
struct End {
    stream: TcpStream,
    /// Bytes that have come of the present message.
    came: usize,
    /// When the present message left.
    began: Instant,
}

/// Sends a message on each connection, and the next one once it has come back.
pub(super) fn echo(
    role: &LoadRole,
    listener: &TcpListener,
    connections: u32,
) -> Result<LoadResult, Failure> {
    limits::allow_connections(2 * connections)?;
    let (mut ends, poll) = open(role, listener, connections)?;
    // On the relay's core, it would wait for a turn.
    let limit = (role.relay_core != role.core || role.relay.is_none()).then_some(&NO_WAIT);
    let sources = connections as usize;
    let mut message = [9; PING_BYTES];
    let mut nanos = Vec::new();
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
    let begin = now() + WARM_UP;
    let (end, mut busy) = (begin + role.budget, None);
    let mut step = || -> io::Result<bool> {
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), limit) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.drain(..) {
            let token = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            let Some(one) = ends.get_mut(token) else { continue };
            match one.stream.read(&mut message[one.came..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => one.came += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            if one.came < PING_BYTES {
                continue;
            }
            one.came = 0;
            if token < sources {
                let arrived = now();
                if one.began >= begin {
                    nanos.push(nanoseconds(arrived - one.began));
                }
                one.began = arrived;
            }
            one.stream.write_all(&message)?;
        }
        let at = now();
        if at >= begin && busy.is_none() {
            busy = Some(processor_time(role.relay));
        }
        Ok(at < end)
    };
    while step().map_err(Failure::io("a round trip through the relay"))? {}
    echoed(role, nanos, busy.flatten())
}

/// What came of messages that took so long, within the budget; `before` is the relay's processor time at its beginning.
pub(super) fn echoed(
    role: &LoadRole,
    nanos: Vec<u64>,
    before: Option<f64>,
) -> Result<LoadResult, Failure> {
    let busy = processor_time(role.relay).zip(before).map(|(after, before)| after - before);
    let count = nanos.len();
    if count == 0 {
        return Err(Failure::because("sending through the relay", "nothing arrived"));
    }
    let per_s = count as f64 / role.budget.as_secs_f64();
    let relay_us = busy.map(|seconds| seconds * 1e6 / count as f64);
    let kept = nanos.into_iter().step_by(count.div_ceil(SAMPLES_MAX));
    Ok(LoadResult::Echoed { per_s, relay_us, nanoseconds: kept.collect() })
}

/// Opens all connections, the sources first and then the sinks, and sends the first messages.
fn open(
    role: &LoadRole,
    listener: &TcpListener,
    connections: u32,
) -> Result<(Vec<End>, OwnedFd), Failure> {
    let (mut ends, mut sinks) = (Vec::new(), Vec::new());
    let end = |stream| End { stream, came: 0, began: now() };
    for _ in 0..connections {
        ends.push(end(connect(role)?));
        let (sink, _) = listener.accept().map_err(Failure::io("accepting"))?;
        sink.set_nodelay(true).map_err(Failure::io("accepting"))?;
        sinks.push(end(sink));
    }
    ends.append(&mut sinks);
    let mut watch = || -> io::Result<OwnedFd> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        for (token, one) in ends.iter().enumerate() {
            one.stream.set_nonblocking(true)?;
            epoll::add(&poll, &one.stream, EventData::new_u64(token as u64), EventFlags::IN)?;
        }
        for one in &mut ends[..connections as usize] {
            one.began = now();
            one.stream.write_all(&[9; PING_BYTES])?;
        }
        Ok(poll)
    };
    let poll = watch().map_err(Failure::io("beginning round trips"))?;
    Ok((ends, poll))
}

/// Returns the processor time of a process in seconds: fields 14 and 15 of its `stat`, in hundredths.
pub(in super::super) fn processor_time(process: Option<u32>) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{}/stat", process?)).ok()?;
    let (_, behind) = text.rsplit_once(") ")?;
    let ticks = behind.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<f64>() / 100.0)
}
