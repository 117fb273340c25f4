//! The client's own process: connects, proves each connection by an echo, then sends and times.

use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{PingPong, RemoteTask};
use crate::child::Message;
use crate::clock;
use crate::error::{BenchError, Failure};
use crate::limits;
use crate::realtime;
use crate::server::{COMMAND_BYTES, Command};

/// How often samples are handed to the parent: seldom, because each report wakes it on a core that
/// the server could use.
const REPORT_EVERY: Duration = Duration::from_millis(250);

/// Runs `plan` in this process and prints what it measures.
pub(crate) fn generate(plan: &PingPong) -> Result<(), Failure> {
    let priority = realtime::raise();
    limits::allow_connections(plan.connections)?;
    let mut connections = Connections::open(plan)?;
    let mut task = plan.task.map(|task| RunningTask::connect(&task, plan.patience)).transpose()?;
    Message::Ready { priority }.print();

    if let Some(task) = &mut task {
        task.start()?;
    }
    let start = clock::now();
    let mut report = Report::new(start);
    let mut sent = 0_u32;
    for pause in plan.spacing.pauses(plan.seed) {
        clock::sleep(pause);
        report.push(connections.round_trip()?);
        sent += 1;
        let is_over = match &mut task {
            Some(task) => task.poll(start)?,
            None => sent >= plan.samples || start.elapsed() >= plan.budget,
        };
        if is_over {
            break;
        }
    }
    report.flush();
    Ok(())
}

/// All connections of the client, and the chance that picks one.
struct Connections {
    streams: Vec<TcpStream>,
    random: fastrand::Rng,
    patience: Duration,
    /// Round trips so far; also the content of the next message.
    answered: u64,
}

impl Connections {
    /// Opens all connections, one after another, and has each echo a message: then a task of the
    /// server waits on each of them, and no queue of half-open connections distorts the beginning.
    fn open(plan: &PingPong) -> Result<Self, Failure> {
        let mut this = Self {
            streams: Vec::new(),
            random: fastrand::Rng::with_seed(plan.seed),
            patience: plan.patience,
            answered: 0,
        };
        for _ in 0..plan.connections {
            let stream = connect(plan.address, plan.patience)?;
            this.streams.push(stream);
            this.round_trip_on(this.streams.len() - 1)?;
        }
        this.answered = 0;
        Ok(this)
    }

    fn round_trip(&mut self) -> Result<Duration, Failure> {
        let index = self.random.usize(..self.streams.len());
        self.round_trip_on(index)
    }

    fn round_trip_on(&mut self, index: usize) -> Result<Duration, Failure> {
        let sent = self.answered.to_le_bytes();
        let mut received = [0; 8];
        let stream = &mut self.streams[index];
        let start = clock::now();
        let outcome = stream.write_all(&sent).and_then(|()| stream.read_exact(&mut received));
        let elapsed = start.elapsed();
        match outcome {
            Ok(()) if received == sent => {
                self.answered += 1;
                Ok(elapsed)
            }
            Ok(()) => Err(Failure::WrongEcho { sent, received }),
            // A socket with a time limit reports its end as `WouldBlock`.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(Failure::NoEcho { waited: self.patience, answered: self.answered })
            }
            Err(error) => Err(Failure::io("exchanging a message")(error)),
        }
    }
}

/// Connections that are open and have nothing to say.
pub(crate) struct OpenConnections {
    _connections: Connections,
}

impl OpenConnections {
    /// Opens `count` connections from this process, each proven by an echo.
    pub(crate) fn to(address: SocketAddr, count: u32) -> Result<Self, BenchError> {
        let plan = PingPong::new(address).connections(count);
        let connections = limits::allow_connections(count).and_then(|()| Connections::open(&plan));
        let connections =
            connections.map_err(|failure| BenchError::Failed { role: "client", failure })?;
        Ok(Self { _connections: connections })
    }
}

fn connect(address: SocketAddr, patience: Duration) -> Result<TcpStream, Failure> {
    let open = || -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(stream)
    };
    open().map_err(Failure::io(format!("connecting to {address}")))
}

/// The compute task in the server, seen from its control connection.
struct RunningTask {
    control: TcpStream,
    command: Command,
    patience: Duration,
    answer: [u8; 8],
    answer_bytes: usize,
}

impl RunningTask {
    fn connect(task: &RemoteTask, patience: Duration) -> Result<Self, Failure> {
        let control = connect(task.control, patience)?;
        let command = Command { steps: task.steps, step: task.step };
        Ok(Self { control, command, patience, answer: [0; 8], answer_bytes: 0 })
    }

    fn start(&mut self) -> Result<(), Failure> {
        let command: [u8; COMMAND_BYTES] = self.command.to_bytes();
        self.control.write_all(&command).map_err(Failure::io("starting the compute task"))?;
        self.control.set_nonblocking(true).map_err(Failure::io("watching the compute task"))
    }

    /// Tells whether the task is over, and reports its time then.
    fn poll(&mut self, start: Instant) -> Result<bool, Failure> {
        let io = Failure::io("waiting for the compute task");
        match self.control.read(&mut self.answer[self.answer_bytes..]) {
            Ok(0) => return Err(io(ErrorKind::UnexpectedEof.into())),
            Ok(count) => self.answer_bytes += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(io(error)),
        }
        let is_over = self.answer_bytes == self.answer.len();
        if is_over {
            Message::Completed { nanoseconds: u64::from_le_bytes(self.answer) }.print();
        } else if start.elapsed() > self.limit() {
            let doing = format!("waiting {:?} for the compute task", self.limit());
            return Err(Failure::io(doing)(ErrorKind::TimedOut.into()));
        }
        Ok(is_over)
    }

    /// The task's own time, and the waiting tasks' polls between its steps.
    fn limit(&self) -> Duration {
        self.patience.saturating_add(self.command.step.saturating_mul(self.command.steps) * 20)
    }
}

/// Samples that the parent has not got yet.
struct Report {
    nanoseconds: Vec<u64>,
    last: Instant,
}

impl Report {
    fn new(now: Instant) -> Self {
        Self { nanoseconds: Vec::new(), last: now }
    }

    fn push(&mut self, round_trip: Duration) {
        self.nanoseconds.push(clock::nanoseconds(round_trip));
        if self.last.elapsed() >= REPORT_EVERY {
            self.flush();
        }
    }

    fn flush(&mut self) {
        Message::RoundTrips { nanoseconds: mem::take(&mut self.nanoseconds) }.print();
        self.last = clock::now();
    }
}
