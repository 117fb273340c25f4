//! Many connections that each send a message now and then, whether or not the last one was answered.
//!
//! A client that waits for each answer sends less when the server is slow, and so asks least when it
//! has to wait longest. Here every message has its time in advance, and the sample begins at that time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use serde::{Deserialize, Serialize};

use super::connections::{connect, exchange};
use crate::clock;
use crate::error::{BenchError, Failure};
use crate::host::limits;
use crate::host::realtime::{self, Priority};
use crate::process::{Child, Message, Role, print_result};
use crate::statistics::Samples;

/// How long the parent waits for a sign of life beyond what the plan takes.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(30);

/// How often the receiver looks whether it is over.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Events taken from epoll at once.
const EVENTS: usize = 256;

/// Some connections, each of which sends one message per period; the messages of all are evenly spaced.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[must_use = "a plan sends nothing before `run`"]
pub struct Crowd {
    address: SocketAddr,
    connections: u32,
    period: Duration,
    span: Duration,
    timeout: Duration,
}

impl Role for Crowd {
    const NAME: &'static str = "crowd";
}

impl Crowd {
    /// Plans 1000 connections with a message per 100 ms each, for 2 s.
    pub const fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connections: 1_000,
            period: Duration::from_millis(100),
            span: Duration::from_secs(2),
            timeout: Duration::from_secs(10),
        }
    }

    /// Sets how many connections there are. Default: 1000.
    pub const fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Sets the time between two messages of one connection. Default: 100 ms.
    pub const fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// Sets how long messages are sent. Default: 2 s.
    pub const fn span(mut self, span: Duration) -> Self {
        self.span = span;
        self
    }

    /// Sets how long answers are waited for after the last message. Messages without an answer by then
    /// count with the time that they have waited. Default: 10 s.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Starts the client process, waits for its end, and returns what it measured.
    ///
    /// # Errors
    /// [`BenchError::Failed`] if a connection could not be opened, or no message was answered at all;
    /// other variants if the process itself fails.
    pub fn run(&self) -> Result<CrowdEchoes, BenchError> {
        let timeout = self.span + self.timeout + TIMEOUT_MARGIN;
        let (mut child, priority) = Child::start_ready(self, timeout)?;
        let (nanoseconds, unanswered): (Vec<u64>, u64) = child.result(timeout)?;
        Ok(CrowdEchoes { samples: nanoseconds.into_iter().collect(), unanswered, priority })
    }
}

/// The measurements of a [`Crowd`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CrowdEchoes {
    /// Time from the instant at which each message was to be sent until its echo was read.
    pub samples: Samples,
    /// Messages among them whose echo had not come at the end.
    pub unanswered: u64,
    /// How the client was scheduled.
    pub priority: Priority,
}

/// Runs `plan` in this process and prints what it measures.
pub(crate) fn send_as_crowd(plan: &Crowd) -> Result<(), Failure> {
    limits::allow_connections(plan.connections)?;
    let priority = realtime::raise();
    let mut streams = Vec::new();
    for _ in 0..plan.connections {
        streams.push(open(plan)?);
    }
    Message::Ready { priority }.print();

    let start = clock::now();
    let sent = thread::scope(|scope| {
        // A thread inherits the priority of the one that starts it.
        let sender = scope.spawn(|| send(&streams, plan, start));
        let received = receive(&streams, plan, start);
        let sent = sender
            .join()
            .map_err(|_panic| Failure::because("sending messages", "the sender panicked"))??;
        Ok::<_, Failure>((sent, received?))
    });
    let (sent, received) = sent?;
    if received.round_trips.is_empty() {
        return Err(Failure::NoEcho { waited: plan.timeout, answered: 0 });
    }
    let mut nanoseconds = received.round_trips;
    let answered = nanoseconds.len() as u64;
    // A missing answer has taken at least this long.
    for (index, count) in received.answered.iter().enumerate() {
        for round in *count..rounds(plan) {
            let due = due(plan, round, index);
            nanoseconds.push(clock::nanoseconds(received.end.saturating_sub(due)));
        }
    }
    print_result(&(nanoseconds, sent - answered));
    Ok(())
}

/// Opens one connection and proves it by an echo; from then on a server task waits on it.
fn open(plan: &Crowd) -> Result<TcpStream, Failure> {
    let mut stream = connect(plan.address, plan.timeout)?;
    exchange(&mut stream, [0xA5; 8], plan.timeout)?;
    stream.set_nonblocking(true).map_err(Failure::io("connecting"))?;
    Ok(stream)
}

/// How many messages each connection sends.
fn rounds(plan: &Crowd) -> u32 {
    let rounds = plan.span.as_nanos() / plan.period.as_nanos().max(1);
    u32::try_from(rounds).unwrap_or(u32::MAX).max(1)
}

/// When a connection's message of a round is to leave, counted from the start.
fn due(plan: &Crowd, round: u32, index: usize) -> Duration {
    let part = index as f64 / f64::from(plan.connections);
    plan.period * round + plan.period.mul_f64(part)
}

/// Sends every message when it is due, its round as the content, and returns how many.
fn send(streams: &[TcpStream], plan: &Crowd, start: Instant) -> Result<u64, Failure> {
    let mut sent = 0;
    for round in 0..rounds(plan) {
        for (index, mut stream) in streams.iter().enumerate() {
            let pause = due(plan, round, index).saturating_sub(start.elapsed());
            if !pause.is_zero() {
                clock::sleep(pause);
            }
            // A socket's buffer holds thousands of these: one that is full is a server that is dead.
            let message = u64::from(round).to_le_bytes();
            stream.write_all(&message).map_err(Failure::io("sending a message"))?;
            sent += 1;
        }
    }
    Ok(sent)
}

/// The receiver's observations.
struct ReceivedEchoes {
    /// Nanoseconds from when each message was due.
    round_trips: Vec<u64>,
    /// Echoes of each connection.
    answered: Vec<u32>,
    /// When it stopped waiting, counted from the start.
    end: Duration,
}

/// Reads echoes until all have come or the timeout is over.
fn receive(streams: &[TcpStream], plan: &Crowd, start: Instant) -> Result<ReceivedEchoes, Failure> {
    let poll = watch(streams).map_err(Failure::io("creating an epoll instance"))?;
    let expected = streams.len() * rounds(plan) as usize;
    let end = plan.period * rounds(plan) + plan.timeout;
    let mut round_trips = Vec::with_capacity(expected);
    let mut answered = vec![0_u32; streams.len()];
    let mut partial: Vec<Vec<u8>> = vec![Vec::new(); streams.len()];
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
    while round_trips.len() < expected && start.elapsed() < end {
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&LOOK_EVERY)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::io("waiting for echoes")(error.into())),
        }
        for event in events.drain(..) {
            let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            let Some(mut stream) = streams.get(index) else { continue };
            let mut buffer = [0; 512];
            let count = match stream.read(&mut buffer) {
                Ok(0) => {
                    return Err(Failure::io("reading an echo")(ErrorKind::UnexpectedEof.into()));
                }
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(Failure::io("reading an echo")(error)),
            };
            let now = start.elapsed();
            partial[index].extend_from_slice(&buffer[..count]);
            let whole = partial[index].len() / 8 * 8;
            for received in partial[index].drain(..whole).as_slice().chunks_exact(8) {
                // Echoes come in the order of the messages.
                let sent = u64::from(answered[index]).to_le_bytes();
                if received != sent {
                    let received = received.try_into().unwrap_or_default();
                    return Err(Failure::WrongEcho { sent, received });
                }
                let due = due(plan, answered[index], index);
                round_trips.push(clock::nanoseconds(now.saturating_sub(due)));
                answered[index] += 1;
            }
        }
    }
    Ok(ReceivedEchoes { round_trips, answered, end: start.elapsed() })
}

/// Has a new epoll instance watch all streams; each has its index as token.
fn watch(streams: &[TcpStream]) -> io::Result<std::os::fd::OwnedFd> {
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    for (index, stream) in streams.iter().enumerate() {
        epoll::add(&poll, stream, EventData::new_u64(index as u64), EventFlags::IN)?;
    }
    Ok(poll)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_evenly_spaced() {
        // Goal: the messages of all connections together leave at one even rate, and none is left out.
        // Method: the times of a small plan, in the order of sending.
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        let plan = Crowd::new(address)
            .connections(4)
            .period(Duration::from_millis(100))
            .span(Duration::from_millis(250));
        assert_eq!(rounds(&plan), 2);
        let times = (0..2).flat_map(|round| (0..4).map(move |index| (round, index)));
        let times: Vec<_> = times.map(|(round, index)| due(&plan, round, index)).collect();
        let even: Vec<_> = (0..8).map(|i| Duration::from_millis(25) * i).collect();
        assert_eq!(times, even);
    }
}
