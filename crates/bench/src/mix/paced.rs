//! The client of a load that sends by the clock and times the answers: probes, requests, new
//! connections. It has real-time priority where that is allowed.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use serde::{Deserialize, Serialize};

use super::behaviour::Behaviour;
use super::draw::Mix;
use super::schedule::{Due, Group, Purpose, Schedule};
use super::wire::{HELLO_BYTES, Hello, REQUEST_BYTES, Request};
use crate::client::connect;
use crate::clock;
use crate::error::Failure;
use crate::host::Usage;
use crate::host::limits;
use crate::host::realtime;
use crate::process::{Message, Role, print_result, wait_for_go};

/// How long an answer may take before a connection counts as dead.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long answers are waited for after the last request. What has not come by then counts with the
/// time that it has waited.
const GRACE: Duration = Duration::from_secs(1);

/// How often the receiver looks whether it is over.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Events taken from epoll at once.
const EVENTS: usize = 256;

/// Threads that open new connections; each waits for its answer.
const OPENERS: u32 = 12;

/// The requests to send, and for how long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PacedClient {
    pub(crate) address: SocketAddr,
    pub(crate) mix: Mix,
    /// How long the load runs before the measurement begins.
    pub(crate) warm_up: Duration,
    /// How long is measured.
    pub(crate) span: Duration,
    /// New connections per second beside those of the mix.
    pub(crate) opened_per_s: u32,
    /// Whether a request's time begins when it was due, its slowdown is reported, it takes the connection
    /// that is idle for longest, and there are no probes; otherwise its time begins when it leaves, and
    /// its connection is drawn.
    pub(crate) counts_from_due: bool,
}

impl Role for PacedClient {
    const NAME: &'static str = "paced client";
}

/// The measurements of the client: nanoseconds until answers were there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResponseTimes {
    pub(crate) probes: Vec<u64>,
    pub(crate) opened: Vec<u64>,
    pub(crate) requests: Vec<u64>,
    /// For each request: its time divided by what it computed, in thousandths.
    pub(crate) slowdowns: Vec<u64>,
    /// Requests among them without an answer.
    pub(crate) unanswered: u64,
    /// How late requests left, by the client's own doing.
    pub(crate) lateness: Vec<u64>,
    /// Processor time of this process while it measured.
    pub(crate) cpu_ns: u64,
}

impl PacedClient {
    /// Sends in this process, and prints what was measured.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let groups = Group::of(&self.mix, !self.counts_from_due);
        let count = groups.iter().map(|group| group.connections).sum::<u32>();
        limits::allow_connections(count + 2 * OPENERS)?;
        let priority = realtime::raise();
        let connections = Connections::open(self.address, &groups, self.counts_from_due)?;
        let mut starter = open(self.address, Hello::Begin)?;
        Message::Ready { priority }.print();
        wait_for_go();

        exchange(&mut starter)?;
        let start = clock::now();
        let opener = ConnectionOpener::new(self, start);
        let counted = thread::scope(|scope| {
            // Threads inherit the priority of the one that starts them.
            for _ in 0..OPENERS {
                scope.spawn(|| opener.run());
            }
            let sender = scope.spawn(|| self.send(&connections, &groups, start));
            let received = self.receive(&connections, &groups, start, &sender);
            let sent = sender
                .join()
                .map_err(|_panic| Failure::because("sending requests", "the sender panicked"))??;
            Ok::<_, Failure>((sent, received?))
        });
        let (sent, received) = counted?;
        let mut answers = received.answers;
        for (index, connection) in connections.streams.iter().enumerate() {
            // Answers come in the order of the requests.
            for (due, _) in sent[index].iter().skip(received.counted[index]) {
                answers.unanswered += 1;
                let request = Request { due_ns: due.at_ns, time_ns: due.service_ns };
                self.note(&groups[connection.group], request, received.end_ns, &mut answers);
            }
        }
        answers.lateness = sent.iter().flatten().map(|(_, late_ns)| *late_ns).collect();
        answers.opened = opener.times.into_inner().unwrap_or_else(PoisonError::into_inner);
        print_result(&answers);
        Ok(())
    }

    fn begin_ns(&self) -> u64 {
        clock::nanoseconds(self.warm_up)
    }

    fn end_ns(&self) -> u64 {
        clock::nanoseconds(self.warm_up + self.span)
    }

    /// Sends each request when it is due, and returns those of each connection that belong to the
    /// measurement.
    fn send(
        &self,
        connections: &Connections,
        groups: &[Group],
        start: Instant,
    ) -> Result<SentRequests, Failure> {
        let mut sent: SentRequests = vec![Vec::new(); connections.streams.len()];
        let mut has_begun = false;
        for mut due in Schedule::new(groups, self.mix.seed) {
            if due.at_ns >= self.end_ns() {
                break;
            }
            let pause = Duration::from_nanos(due.at_ns).saturating_sub(start.elapsed());
            if !pause.is_zero() {
                clock::sleep(pause);
            }
            let late_ns = clock::nanoseconds(start.elapsed()).saturating_sub(due.at_ns);
            if !self.counts_from_due {
                // The server is not to blame if the client woke late, and the client's requests do
                // not depend on answers.
                due.at_ns = clock::nanoseconds(start.elapsed());
            } else if let Some(index) = connections.take_idle() {
                // Each group of a slowdown has all connections, since there is one only.
                due.connection = u32::try_from(index).unwrap_or(due.connection);
            }
            if due.at_ns >= self.begin_ns() {
                if !has_begun {
                    connections.cpu_before.store(cpu_ns(), Ordering::Relaxed);
                    Message::MeasurementBegins.print();
                }
                has_begun = true;
                sent[connections.index(due)].push((due, late_ns));
            }
            connections.send(due)?;
        }
        Ok(sent)
    }

    /// Reads answers until all have come, or the grace is over.
    fn receive(
        &self,
        connections: &Connections,
        groups: &[Group],
        start: Instant,
        sender: &thread::ScopedJoinHandle<'_, Result<SentRequests, Failure>>,
    ) -> Result<ReceivedResponses, Failure> {
        let mut answers = ResponseTimes::default();
        let mut counted = vec![0; connections.streams.len()];
        let end = self.warm_up + self.span + GRACE;
        let mut partial: Vec<Vec<u8>> = vec![Vec::new(); connections.streams.len()];
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        while start.elapsed() < end {
            let is_last = sender.is_finished() && connections.outstanding() == 0;
            if is_last {
                break;
            }
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&connections.poll, buffer, Some(&LOOK_EVERY)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::io("waiting for answers")(error.into())),
            }
            for event in events.drain(..) {
                let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                let Some(connection) = connections.streams.get(index) else { continue };
                let (partial, counted) = (&mut partial[index], &mut counted[index]);
                read_available(&connection.stream, partial)?;
                let now = clock::nanoseconds(start.elapsed());
                let whole = partial.len() / REQUEST_BYTES * REQUEST_BYTES;
                for bytes in partial.drain(..whole).as_slice().chunks_exact(REQUEST_BYTES) {
                    let answer = Request::from_bytes(bytes.try_into().unwrap_or_default());
                    connections.answered.fetch_add(1, Ordering::Relaxed);
                    connections.note_answer(index);
                    if answer.due_ns >= self.begin_ns() {
                        *counted += 1;
                        self.note(&groups[connection.group], answer, now, &mut answers);
                    }
                }
            }
        }
        answers.cpu_ns = cpu_ns() - connections.cpu_before.load(Ordering::Relaxed);
        Ok(ReceivedResponses { answers, counted, end_ns: clock::nanoseconds(start.elapsed()) })
    }

    /// Takes note of an answer.
    fn note(&self, group: &Group, answer: Request, now_ns: u64, answers: &mut ResponseTimes) {
        let mut time = now_ns.saturating_sub(answer.due_ns);
        match (group.purpose, group.hello) {
            (Purpose::Probe, _) => answers.probes.push(time),
            (Purpose::Request, hello) => {
                let index =
                    if let Hello::Behaviour(index) = hello { index.into() } else { usize::MAX };
                let behaviour = self.mix.behaviours.get(index);
                if matches!(behaviour, Some(Behaviour::WakeThenCompute { .. })) {
                    time = answer.time_ns;
                }
                answers.requests.push(time);
                if self.counts_from_due && answer.time_ns > 0 {
                    answers.slowdowns.push(time.saturating_mul(1_000) / answer.time_ns);
                }
            }
        }
    }
}

/// For each connection: its requests in the order in which they were sent, and by how many nanoseconds
/// each was late.
type SentRequests = Vec<Vec<(Due, u64)>>;

/// The receiver's observations.
struct ReceivedResponses {
    answers: ResponseTimes,
    /// Answers of each connection.
    counted: Vec<usize>,
    /// When it stopped waiting.
    end_ns: u64,
}

/// Open connections of all groups, each proven by one answer.
struct Connections {
    streams: Vec<Connection>,
    /// For each group: the index of its first connection.
    first: Vec<usize>,
    poll: OwnedFd,
    /// Requests sent by the sender, and answered as the receiver saw; each only adds.
    sent: AtomicU64,
    answered: AtomicU64,
    /// Processor time of this process when the measurement began.
    cpu_before: AtomicU64,
    /// If requests take idle connections.
    idle: Option<Mutex<Idle>>,
}

/// Connections without a request, in the order in which they became idle.
struct Idle {
    queue: VecDeque<usize>,
    /// Requests that each connection has not answered.
    outstanding: Vec<u32>,
}

struct Connection {
    stream: TcpStream,
    group: usize,
}

impl Connections {
    fn open(address: SocketAddr, groups: &[Group], has_idle: bool) -> Result<Self, Failure> {
        let doing = || Failure::io("creating an epoll instance");
        let poll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| doing()(error.into()))?;
        let (mut streams, mut first) = (Vec::new(), Vec::new());
        for (index, group) in groups.iter().enumerate() {
            first.push(streams.len());
            for _ in 0..group.connections {
                let mut stream = open(address, group.hello)?;
                exchange(&mut stream)?;
                stream.set_nonblocking(true).map_err(doing())?;
                let token = EventData::new_u64(streams.len() as u64);
                epoll::add(&poll, &stream, token, EventFlags::IN)
                    .map_err(|error| doing()(error.into()))?;
                streams.push(Connection { stream, group: index });
            }
        }
        let count = streams.len();
        Ok(Self {
            streams,
            first,
            poll,
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            cpu_before: AtomicU64::new(cpu_ns()),
            idle: has_idle.then(|| {
                Mutex::new(Idle { queue: (0..count).collect(), outstanding: vec![0; count] })
            }),
        })
    }

    /// Takes the connection that has been idle for longest, if one is.
    fn take_idle(&self) -> Option<usize> {
        self.idle()?.queue.pop_front()
    }

    fn idle(&self) -> Option<MutexGuard<'_, Idle>> {
        Some(self.idle.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note_answer(&self, index: usize) {
        let Some(mut idle) = self.idle() else { return };
        idle.outstanding[index] = idle.outstanding[index].saturating_sub(1);
        if idle.outstanding[index] == 0 {
            idle.queue.push_back(index);
        }
    }

    fn index(&self, due: Due) -> usize {
        self.first[due.group] + due.connection as usize
    }

    fn send(&self, due: Due) -> Result<(), Failure> {
        let index = self.index(due);
        let request = Request { due_ns: due.at_ns, time_ns: due.service_ns };
        self.sent.fetch_add(1, Ordering::Relaxed);
        if let Some(mut idle) = self.idle() {
            idle.outstanding[index] += 1;
        }
        match (&self.streams[index].stream).write_all(&request.to_bytes()) {
            // A socket's buffer holds thousands of requests: the server is dead, and this one is lost.
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            done => done.map_err(Failure::io("sending a request")),
        }
    }

    fn outstanding(&self) -> u64 {
        let answered = self.answered.load(Ordering::Relaxed);
        self.sent.load(Ordering::Relaxed).saturating_sub(answered)
    }
}

/// Processor time of this process so far.
fn cpu_ns() -> u64 {
    Usage::of_this_process().cpu_ns
}

fn read_available(mut stream: &TcpStream, into: &mut Vec<u8>) -> Result<(), Failure> {
    let mut buffer = [0; 4_096];
    match stream.read(&mut buffer) {
        Ok(0) => Err(Failure::io("reading an answer")(ErrorKind::UnexpectedEof.into())),
        Ok(count) => {
            into.extend_from_slice(&buffer[..count]);
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(Failure::io("reading an answer")(error)),
    }
}

/// Opens a connection and says what it is for.
pub(crate) fn open(address: SocketAddr, hello: Hello) -> Result<TcpStream, Failure> {
    let mut stream = connect(address, TIMEOUT)?;
    stream.write_all(&hello.to_bytes()).map_err(Failure::io("connecting"))?;
    Ok(stream)
}

/// Sends a request for nothing and waits for its answer.
fn exchange(stream: &mut TcpStream) -> Result<(), Failure> {
    let request = Request { due_ns: 0, time_ns: 0 }.to_bytes();
    let mut answer = [0; REQUEST_BYTES];
    let outcome = stream.write_all(&request).and_then(|()| stream.read_exact(&mut answer));
    outcome.map_err(Failure::no_answer("exchanging a request", TIMEOUT, 0))
}

/// Opens new connections when they are due, whether or not earlier ones are answered.
struct ConnectionOpener<'a> {
    client: &'a PacedClient,
    start: Instant,
    /// The time at which no connection waits any more.
    end: Duration,
    per_s: u32,
    next: AtomicU64,
    times: Mutex<Vec<u64>>,
}

impl<'a> ConnectionOpener<'a> {
    fn new(client: &'a PacedClient, start: Instant) -> Self {
        let of_mix = client.mix.behaviours.iter().map(|behaviour| match behaviour {
            Behaviour::Connections { per_s } => *per_s,
            _ => 0,
        });
        let per_s = client.opened_per_s + of_mix.sum::<u32>();
        let (next, times) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        let end = client.warm_up + client.span + GRACE;
        Self { client, start, end, per_s, next, times }
    }

    /// Repeatedly takes the next free connection and waits until it is due.
    fn run(&self) {
        if self.per_s == 0 {
            return;
        }
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            // Evenly spaced, by a step that has no common measure with anything in the server.
            let due = Duration::from_secs_f64((number as f64 + 0.5) / f64::from(self.per_s));
            if due >= self.client.warm_up + self.client.span {
                return;
            }
            let pause = due.saturating_sub(self.start.elapsed());
            let mut from = due;
            if !pause.is_zero() {
                clock::sleep(pause);
                // The server is not to blame if the client woke late, but it is if no opener was
                // free.
                from = self.start.elapsed();
            }
            let left = self.end.saturating_sub(self.start.elapsed());
            if !left.is_zero() {
                // One that fails has waited for as long as it took to fail.
                let _ = self.round_trip(left.min(TIMEOUT));
            }
            if due >= self.client.warm_up {
                let time = self.start.elapsed().saturating_sub(from);
                let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
                times.push(clock::nanoseconds(time));
            }
        }
    }

    fn round_trip(&self, timeout: Duration) -> Result<(), Failure> {
        let mut stream = connect(self.client.address, timeout)?;
        let mut bytes = [0; HELLO_BYTES + REQUEST_BYTES];
        bytes[..HELLO_BYTES].copy_from_slice(&Hello::Compute.to_bytes());
        let asked = stream.write_all(&bytes);
        let answered = asked.and_then(|()| stream.read_exact(&mut bytes[..REQUEST_BYTES]));
        answered.map_err(Failure::no_answer("exchanging a request", timeout, 0))
    }
}
