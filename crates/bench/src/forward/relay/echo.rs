//! Round trips on many connections at once: source and sink are one thread.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::kind::RelayMeasure;
use super::poll::LoadPoll;
use super::role::{LoadResult, LoadRole, PING_BYTES, WARM_UP, accept, connect};
use super::tls::{self, TlsStream};
use crate::clock::{nanoseconds, now};
use crate::error::Failure;
use crate::host::limits;

/// Round trips that are kept of one turn, evenly spread over it.
const SAMPLES_MAX: usize = 20_000;

/// One end of a connection through the relay.
struct End {
    stream: EndStream,
    /// Bytes that have come of the present message.
    came: usize,
    /// When the present message left.
    began: Instant,
}

enum EndStream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream>),
}

impl EndStream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Encrypted(stream) => &stream.sock,
        }
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(room),
            Self::Encrypted(stream) => stream.read(room),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes),
            Self::Encrypted(stream) => stream.write_all(bytes),
        }
    }
}

/// Sends a message on each connection, and the next one once it has come back.
pub(super) fn echo(
    role: &LoadRole,
    listener: &TcpListener,
    connections: u32,
) -> Result<LoadResult, Failure> {
    limits::allow_connections(2 * connections)?;
    let (mut ends, mut poll) = open(role, listener, connections)?;
    let sources = connections as usize;
    let mut message = [9; PING_BYTES];
    let mut nanos = Vec::new();
    let begin = now() + WARM_UP;
    let (end, mut busy) = (begin + role.budget, None);
    let mut step = || -> io::Result<bool> {
        for token in poll.wait()? {
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
) -> Result<(Vec<End>, LoadPoll), Failure> {
    let broken = |error| Failure::io("speaking TLS with the relay")(error);
    let is_encrypted = matches!(role.measure, RelayMeasure::TlsEcho { .. });
    let config = is_encrypted.then(|| tls::trusting(role)).transpose().map_err(broken)?;
    let (mut ends, mut sinks) = (Vec::new(), Vec::new());
    let end = |stream| End { stream, came: 0, began: now() };
    for _ in 0..connections {
        let socket = connect(role)?;
        // Before the sink accepts: some relays connect to it only after the handshake.
        ends.push(end(match &config {
            Some(config) => {
                EndStream::Encrypted(Box::new(tls::shaken(socket, config).map_err(broken)?))
            }
            None => EndStream::Plain(socket),
        }));
        sinks.push(end(EndStream::Plain(accept(listener)?)));
    }
    ends.append(&mut sinks);
    let mut watch = || -> io::Result<LoadPoll> {
        let poll = LoadPoll::new(role)?;
        for (token, one) in ends.iter().enumerate() {
            one.stream.socket().set_nonblocking(true)?;
            poll.add(one.stream.socket(), token, EventFlags::IN)?;
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
