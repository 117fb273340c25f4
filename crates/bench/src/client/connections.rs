//! The client's sockets, and the exchange of one message.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::ping_pong::{PingPong, RemoteTask};
use crate::clock;
use crate::error::Failure;
use crate::host::limits;
use crate::server::LoadCommand;

/// How much slower than its steps alone a compute task may be before the client gives up: naive
/// polling of 64 sockets takes about ten times as long as the steps.
const SLOWDOWN_MAX: u32 = 40;

/// Open connections to an echo server, each proven by one echo.
///
/// A [`PingPong`] that runs has these in a process of its own; a Criterion bench, which wants one
/// message at a time, has them in its own, with ordinary priority: [`PingPong::open`].
pub struct Connections {
    streams: Vec<TcpStream>,
    /// Where each message gets a connection of its own, if it does.
    fresh: Option<SocketAddr>,
    is_spinning: bool,
    control: Option<(TcpStream, RemoteTask)>,
    pauses: Box<dyn Iterator<Item = Duration>>,
    random: fastrand::Rng,
    timeout: Duration,
    /// Messages since the connections were proven.
    sent: u64,
    /// Echoes among them; also the content of the next message.
    answered: u64,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { streams, answered, .. } = self;
        let mut shown = f.debug_struct("Connections");
        shown.field("count", &streams.len()).field("answered", answered).finish_non_exhaustive()
    }
}

impl PingPong {
    /// Opens the connections in this process, with the priority that it has.
    ///
    /// # Errors
    /// Those of the first echo on each connection, and
    /// [`Failure::DescriptorLimit`].
    pub fn open(&self) -> Result<Connections, Failure> {
        Connections::open(self)
    }
}

impl Connections {
    /// Opens all connections, one after another, and has each echo a message: then a task of the
    /// server waits on each of them, and no queue of half-open connections distorts the beginning.
    pub(super) fn open(plan: &PingPong) -> Result<Self, Failure> {
        limits::allow_connections(plan.connections)?;
        let mut this = Self {
            streams: Vec::new(),
            fresh: plan.is_fresh.then_some(plan.address),
            is_spinning: plan.is_spinning,
            control: None,
            pauses: Box::new(plan.spacing.pauses(plan.seed)),
            random: fastrand::Rng::with_seed(plan.seed),
            timeout: plan.timeout,
            sent: 0,
            answered: 0,
        };
        for index in 0..plan.connections {
            if plan.is_fresh {
                this.round_trip_on_new(plan.address)?;
                continue;
            }
            let stream = connect(plan.address, plan.timeout)?;
            stream.set_nonblocking(plan.is_spinning).map_err(Failure::io("connecting"))?;
            this.streams.push(stream);
            this.round_trip_on(index as usize)?;
        }
        (this.sent, this.answered) = (0, 0);
        if let Some(task) = plan.task {
            this.control = Some((connect(task.control, plan.timeout)?, task));
        }
        Ok(this)
    }

    /// Pauses, sends one message on a connection drawn at random, and returns how long its echo took.
    ///
    /// # Errors
    /// [`Failure::NoEcho`] after the plan's timeout; [`Failure::WrongEcho`] and [`Failure::Io`] if
    /// the server fails.
    pub fn exchange(&mut self) -> Result<Duration, Failure> {
        let pause = self.pauses.next().unwrap_or_default();
        if !pause.is_zero() {
            clock::sleep(pause);
        }
        if let Some(address) = self.fresh {
            return self.round_trip_on_new(address);
        }
        let index = self.random.usize(..self.streams.len());
        self.round_trip_on(index)
    }

    /// Starts the plan's compute task in the server, exchanges messages until it is over, and returns
    /// how long it took by the server's clock. `on_echo` gets the time of each echo.
    ///
    /// # Errors
    /// [`Failure::Unsupported`] if the plan has no compute task, and those of
    /// [`exchange`](Self::exchange).
    pub fn exchange_until_completed(
        &mut self,
        on_echo: &mut dyn FnMut(Duration),
    ) -> Result<Duration, Failure> {
        let Some((control, task)) = &mut self.control else {
            return Err(Failure::unsupported("the client", "its plan has no compute task"));
        };
        let command = LoadCommand { steps: task.steps, step: task.step };
        control.write_all(&command.to_bytes()).map_err(Failure::io("starting the compute task"))?;
        let limit = task.step.saturating_mul(task.steps).saturating_mul(SLOWDOWN_MAX);
        let limit = limit.saturating_add(self.timeout);
        let start = clock::now();
        while start.elapsed() < limit {
            on_echo(self.exchange()?);
            if let Some(elapsed) = self.completed()? {
                return Ok(elapsed);
            }
        }
        Err(Failure::io(format!("waiting {limit:?} for the compute task"))(
            ErrorKind::TimedOut.into(),
        ))
    }

    /// Returns how many messages were sent by [`exchange`](Self::exchange) so far.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the time of the compute task if it is over.
    fn completed(&mut self) -> Result<Option<Duration>, Failure> {
        let Some((control, _)) = &mut self.control else { return Ok(None) };
        let mut read = || -> io::Result<Option<Duration>> {
            let mut answer = [0; 8];
            control.set_nonblocking(true)?;
            let first = control.peek(&mut answer);
            control.set_nonblocking(false)?;
            match first {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {
                    control.read_exact(&mut answer)?;
                    Ok(Some(Duration::from_nanos(u64::from_le_bytes(answer))))
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error),
            }
        };
        read().map_err(Failure::io("waiting for the compute task"))
    }

    fn round_trip_on(&mut self, index: usize) -> Result<Duration, Failure> {
        let sent = self.answered.to_le_bytes();
        self.sent += 1;
        let (stream, timeout) = (&mut self.streams[index], self.timeout);
        let start = clock::now();
        let received = if self.is_spinning {
            exchange_spinning(stream, sent, timeout)
        } else {
            exchange_sleeping(stream, sent)
        };
        let elapsed = start.elapsed();
        self.judge(sent, received)?;
        Ok(elapsed)
    }

    /// The same on a connection that is opened for it; opening counts.
    fn round_trip_on_new(&mut self, address: SocketAddr) -> Result<Duration, Failure> {
        let sent = self.answered.to_le_bytes();
        self.sent += 1;
        let start = clock::now();
        let mut stream = connect(address, self.timeout)?;
        let received = exchange_sleeping(&mut stream, sent);
        let elapsed = start.elapsed();
        self.judge(sent, received)?;
        Ok(elapsed)
    }

    /// Compares what was received with what was sent.
    fn judge(&mut self, sent: [u8; 8], received: io::Result<[u8; 8]>) -> Result<(), Failure> {
        match received {
            Ok(received) if received == sent => {
                self.answered += 1;
                Ok(())
            }
            Ok(received) => Err(Failure::WrongEcho { sent, received }),
            Err(error) => {
                let (waited, answered) = (self.timeout, self.answered);
                Err(Failure::no_answer("exchanging a message", waited, answered)(error))
            }
        }
    }
}

fn exchange_sleeping(stream: &mut TcpStream, sent: [u8; 8]) -> io::Result<[u8; 8]> {
    let mut received = [0; 8];
    stream.write_all(&sent)?;
    stream.read_exact(&mut received)?;
    Ok(received)
}

/// Asks a non-blocking socket until the whole answer is there.
fn exchange_spinning(
    stream: &mut TcpStream,
    sent: [u8; 8],
    timeout: Duration,
) -> io::Result<[u8; 8]> {
    let start = clock::now();
    let mut received = [0; 8];
    let mut filled = 0;
    stream.write_all(&sent)?;
    while filled < received.len() {
        match stream.read(&mut received[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if start.elapsed() >= timeout {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(received)
}

/// Connects without Nagle's algorithm, for reads that take this long at most.
pub(crate) fn connect(address: SocketAddr, timeout: Duration) -> Result<TcpStream, Failure> {
    let open = || -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        Ok(stream)
    };
    open().map_err(Failure::no_answer(format!("connecting to {address}"), timeout, 0))
}

/// Sends a message of eight bytes, and waits for its echo.
pub(super) fn exchange(
    stream: &mut TcpStream,
    sent: [u8; 8],
    timeout: Duration,
) -> Result<(), Failure> {
    let received = exchange_sleeping(stream, sent);
    match received.map_err(Failure::no_answer("exchanging a message", timeout, 0))? {
        received if received == sent => Ok(()),
        received => Err(Failure::WrongEcho { sent, received }),
    }
}
