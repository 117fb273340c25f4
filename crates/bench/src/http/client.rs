//! Pings by the clock, and requests that compute.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::client::connect;
use crate::clock;
use crate::error::{BenchError, Failure};
use crate::host::realtime::{self, Priority};
use crate::process::{Child, Message, Role, print_result};

/// The path at which the service computes.
pub(super) const COMPUTE: &str = "/compute";

/// The path at which it computes where it stands, on every runtime.
pub(super) const WORK: &str = "/work";

/// What it answers.
pub(super) const HELLO_BODY: &str = "hello, world\n";

/// Connections over which the pings are spread, a thread for each: so one late answer does not hold up the next ping.
const CONNECTIONS: u32 = 25;

/// What a client does when it fails.
const ASKING: &str = "asking the service";

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A client that pings, whether or not the last ping was answered, and asks for computations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HttpClient {
    pub(super) address: SocketAddr,
    pub(super) pings_per_s: u32,
    pub(super) computations_per_s: u32,
    pub(super) span: Duration,
    pub(super) seed: u64,
}

impl Role for HttpClient {
    const NAME: &'static str = "HTTP client";
}

/// The results of such a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HttpResult {
    /// From when each ping was due until its answer was read.
    pub(super) pings_ns: Vec<u64>,
    /// Computations that were answered within the span.
    pub(super) computations: u64,
}

impl HttpClient {
    /// Starts the client's process, and waits for what it finds.
    pub(super) fn start(self) -> Result<(HttpResult, Priority), BenchError> {
        let timeout = self.span + 2 * TIMEOUT;
        let (mut child, priority) = Child::start_ready(&self, timeout)?;
        Ok((child.result(timeout)?, priority))
    }

    /// Runs in the client's process.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        // Threads that are started from here on have it, too.
        let priority = realtime::raise();
        let connections = CONNECTIONS.min(self.pings_per_s.max(1));
        let mut streams = Vec::new();
        for _ in 0..connections {
            let mut stream = connect(self.address, TIMEOUT)?;
            ask(&mut stream, "/").map_err(Failure::no_answer(ASKING, TIMEOUT, 0))?;
            streams.push(stream);
        }
        Message::Ready { priority }.print();

        let (start, computed) = (clock::now(), Arc::new(AtomicU64::new(0)));
        let gap = Duration::from_secs(1) * connections / self.pings_per_s.max(1);
        let ping = |(index, stream)| {
            let client = self.clone();
            thread::spawn(move || client.ping(stream, index, gap, start))
        };
        let pingers: Vec<_> = (0..).zip(streams).map(ping).collect();
        if self.computations_per_s > 0 {
            let (client, computed) = (self.clone(), Arc::clone(&computed));
            thread::spawn(move || client.compute(&computed, start));
        }
        let mut pings_ns = Vec::new();
        for pinger in pingers {
            pings_ns.extend(pinger.join().expect("invariant: a pinger never panics")?);
        }
        print_result(&HttpResult { pings_ns, computations: computed.load(Ordering::Relaxed) });
        Ok(())
    }

    /// Pings on one connection, at times drawn in advance, and returns how long each took since it was due.
    fn ping(
        &self,
        mut stream: TcpStream,
        index: u64,
        gap: Duration,
        start: Instant,
    ) -> Result<Vec<u64>, Failure> {
        let mut random = fastrand::Rng::with_seed(self.seed ^ index);
        let (mut due, mut times) = (Duration::ZERO, Vec::new());
        loop {
            due += gap.mul_f64(-(1.0 - random.f64()).ln());
            if due >= self.span {
                return Ok(times);
            }
            let pause = due.saturating_sub(start.elapsed());
            if !pause.is_zero() {
                clock::sleep(pause);
            }
            let answered = times.len() as u64;
            ask(&mut stream, "/").map_err(Failure::no_answer(ASKING, TIMEOUT, answered))?;
            times.push(clock::nanoseconds(start.elapsed().saturating_sub(due)));
        }
    }

    /// Asks for computations at even times, each on a connection and a thread of its own.
    fn compute(&self, computed: &Arc<AtomicU64>, start: Instant) {
        let gap = Duration::from_secs(1) / self.computations_per_s;
        let (address, span) = (self.address, self.span);
        let mut due = Duration::ZERO;
        while due < span {
            clock::sleep(due.saturating_sub(start.elapsed()));
            let computed = Arc::clone(computed);
            thread::spawn(move || {
                let answer = connect(address, TIMEOUT).and_then(|mut stream| {
                    ask(&mut stream, COMPUTE).map_err(Failure::no_answer(ASKING, TIMEOUT, 0))
                });
                // One that fails is missing in the count.
                if answer.is_ok() && start.elapsed() < span {
                    computed.fetch_add(1, Ordering::Relaxed);
                }
            });
            due += gap;
        }
    }
}

/// Has `clients` threads ask the service to compute, again and again, until the service is gone. Returns when each of them has had
/// an answer, or has failed: what comes before is a start, at which all of them compute at the same time.
pub(super) fn keep_busy(address: SocketAddr, clients: u32) {
    let (answered, all_answered) = mpsc::channel::<()>();
    for _ in 0..clients {
        let mut first = Some(answered.clone());
        thread::spawn(move || {
            let mut stream = connect(address, TIMEOUT)?;
            while ask(&mut stream, WORK).is_ok() {
                drop(first.take());
            }
            Ok::<(), Failure>(())
        });
    }
    drop(answered);
    // Nothing is sent: the channel ends when the last thread has dropped its end.
    let _ = all_answered.recv();
}

/// Sends one request and reads its answer.
fn ask(stream: &mut TcpStream, path: &str) -> io::Result<()> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: vigie\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let (mut buffer, mut length) = ([0; 1024], 0);
    while !buffer[..length].ends_with(HELLO_BODY.as_bytes()) {
        match stream.read(&mut buffer[length..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => length += count,
        }
    }
    if buffer.starts_with(b"HTTP/1.1 200 ") { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}
