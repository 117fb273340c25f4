//! Other processes of a measurement: this program, started again in another role.
//!
//! ```text
//!            VIGIE_BENCH_CHILD={role}            stdout: one message per line (JSON)
//!   parent ───────────────────────────▶ child ────────────────────────────────────▶ parent
//!             stdin: kept open; each               stderr: inherited, for people
//!             byte asks for the usage,
//!             or for the runtime's counts
//! ```
//!
//! Server and client of a measurement never share a process with each other or with the command
//! that compares them, so that no allocator, timer or thread of one disturbs the other. A child ends
//! when it has said everything, when its parent kills it, or when its standard input ends, which the
//! kernel brings about however the parent dies.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::barriers::found::Found;
use crate::barriers::{self, GroupCosts, lap::MemberCosts, network, processes};
use crate::client::{self, Crowd, PingPong, Requests};
use crate::error::{BenchError, Failure};
use crate::forward::live;
use crate::forward::relay::{self, LoadRole, RelayRole};
use crate::forward::via::node::{self, NodePlan, NodeSaid};
use crate::http::{HttpClient, HttpServer};
use crate::inside::{self, Counts};
use crate::loads::{Answers, ClosedClients, LoadServer, PacedClient};
use crate::messages::Played;
use crate::messages::ranks::{self, RankPlan};
use crate::outside;
use crate::realtime::Priority;
use crate::server::{self, ServerPlan};
use crate::switches::{self, SwitchCounts, SwitchPlan};
use crate::timers::{self, TimerFigures, TimerPlan};
use crate::usage::Usage;

/// The environment variable that holds a child's role.
const VARIABLE: &str = "VIGIE_BENCH_CHILD";

/// How long a child may take to say what it has used, beside whatever computes there.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

/// The question for what the process has used.
const ASKS_USAGE: u8 = b'?';

/// The question for what its runtime has counted.
const ASKS_COUNTS: u8 = b'#';

/// Not a question: what waits in [`wait_for_go`] may go on.
const GO: u8 = b'!';

/// Whether the parent has said [`GO`].
static MAY_GO: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Becomes a child of a measurement if this process was started as one; returns at once otherwise.
///
/// Every program that measures through this crate calls this first in `main`: the load generator is
/// the same program, started again.
///
/// # Panics
/// Panics if the environment variable `VIGIE_BENCH_CHILD` holds something that this crate did not write.
///
/// # Examples
/// ```
/// // The first line of `main`:
/// vigie_bench::child::maybe_run_child();
/// // From here on: the program itself.
/// ```
pub fn maybe_run_child() {
    let Some(role) = env::var_os(VARIABLE) else { return };
    let role = role.into_string().expect("VIGIE_BENCH_CHILD is written by vigie-bench, as UTF-8");
    let role: Role =
        serde_json::from_str(&role).expect("VIGIE_BENCH_CHILD is written by vigie-bench, as JSON");
    end_with_parent();
    let last = match role.run() {
        Ok(()) => Message::Finished,
        Err(failure) => Message::Failed { failure },
    };
    last.print();
    process::exit(0);
}

/// Ends this process when its standard input ends, and answers what is asked there. The thread that sees to it is asleep when this
/// returns, so that its start is no part of what is measured.
fn end_with_parent() {
    let (ready, is_ready) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let _ = ready.send(());
        drop(ready);
        // An error is an end too.
        while let Ok([question, ..]) = stdin.fill_buf() {
            match *question {
                GO => {
                    *MAY_GO.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
                    MAY_GO.1.notify_all();
                }
                ASKS_COUNTS => Message::Counts(inside::counts_here()).print(),
                _ => Message::Usage(Usage::of_this_process()).print(),
            }
            stdin.consume(1);
        }
        process::exit(0);
    });
    let _ = is_ready.recv();
}

/// Waits in a child until its parent calls [`Child::go`].
pub(crate) fn wait_for_go() {
    let may_go = MAY_GO.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(MAY_GO.1.wait_while(may_go, |may_go| !*may_go));
}

/// What a child is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    Client(PingPong),
    Server(ServerPlan),
    Switches(SwitchPlan),
    Timers(TimerPlan),
    Crowd(Crowd),
    Requests(Requests),
    Outside,
    Rank(RankPlan),
    Group(barriers::GroupPlan),
    Member(processes::MemberPlan),
    NetMember(network::NetPlan),
    Node(NodePlan),
    Forwarder(live::ForwarderPlan),
    Load(live::LoadPlan),
    Relay(RelayRole),
    RelayLoad(LoadRole),
    LoadServer(LoadServer),
    PacedClient(PacedClient),
    ClosedClients(ClosedClients),
    HttpServer(HttpServer),
    HttpClient(HttpClient),
}

impl Role {
    fn name(&self) -> &'static str {
        match self {
            Self::Client(_) => "client",
            Self::Server(_) => "server",
            Self::Switches(_) => "switches",
            Self::Timers(_) => "timers",
            Self::Crowd(_) => "crowd",
            Self::Requests(_) => "requests",
            Self::Outside => "outside",
            Self::Rank(_) => "rank",
            Self::Group(_) => "group",
            Self::Member(_) | Self::NetMember(_) => "member",
            Self::Node(_) => "node",
            Self::Forwarder(_) => "forwarder",
            Self::Load(_) => "load",
            Self::Relay(_) => "relay",
            Self::RelayLoad(_) => "relay load",
            Self::LoadServer(_) => "load server",
            Self::PacedClient(_) => "paced client",
            Self::ClosedClients(_) => "closed clients",
            Self::HttpServer(_) => "HTTP server",
            Self::HttpClient(_) => "HTTP client",
        }
    }

    fn run(self) -> Result<(), Failure> {
        match self {
            Self::Client(plan) => client::generate(&plan),
            Self::Server(plan) => server::serve(&plan),
            Self::Switches(plan) => switches::count_here(&plan),
            Self::Timers(plan) => timers::run_here(&plan),
            Self::Crowd(plan) => client::send_as_crowd(&plan),
            Self::Requests(plan) => client::request(&plan),
            Self::Outside => outside::compute(),
            Self::Rank(plan) => ranks::play(&plan),
            Self::Group(plan) => barriers::play(&plan),
            Self::Member(plan) => processes::play(&plan),
            Self::NetMember(plan) => network::play(&plan),
            Self::Node(plan) => node::play(&plan),
            Self::Forwarder(plan) => live::forward(&plan),
            Self::Load(plan) => live::load(&plan),
            Self::Relay(role) => relay::serve(&role),
            Self::RelayLoad(role) => relay::load(&role),
            Self::LoadServer(plan) => plan.serve(),
            Self::PacedClient(plan) => plan.run(),
            Self::ClosedClients(plan) => plan.run(),
            Self::HttpServer(plan) => plan.serve(),
            Self::HttpClient(plan) => plan.run(),
        }
    }
}

/// What a child says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A server waits for connections.
    Listening { process: u32, echo: SocketAddr, control: Option<SocketAddr> },
    /// A client has proven each of its connections by one echo, and begins.
    Ready { priority: Priority },
    /// Round trips, in the order in which they were made.
    RoundTrips { nanoseconds: Vec<u64> },
    /// A client has sent this many messages since it was ready, and had an answer to each.
    Sent { messages: u64 },
    /// A compute task that the client asked for has ended.
    Completed { nanoseconds: u64 },
    /// Switches between tasks have been counted.
    Switches(SwitchCounts),
    /// Timers have fired.
    Timers(TimerFigures),
    /// A process of others computes, or sends its requests.
    Computing { process: u32 },
    /// What this process has used so far, because it was asked.
    Usage(Usage),
    /// What the runtime of this process has counted so far, because it was asked.
    Counts(Option<Counts>),
    /// Messages that were still without an answer at the end; their samples are what they had waited.
    Unanswered { messages: u64 },
    /// A rank has played its part of a measure.
    Played(Played),
    /// The barriers of a group have been measured.
    Group(GroupCosts),
    /// The barriers of one member have been measured.
    Laps { costs: MemberCosts, used: Usage, found: Option<Found> },
    /// What a node that forwards messages, or sends or receives them, says.
    Node(NodeSaid),
    /// Frames through a forwarder have been counted or timed.
    Load(live::Found),
    /// So many bytes came through a relay.
    Carried { bytes: u64, nanoseconds: u64 },
    /// What is sent from now on counts.
    MeasurementBegins,
    /// Requests of a load have been timed.
    Answers(Answers),
    /// Nothing more will come, and all went well.
    Finished,
    /// Nothing more will come.
    Failed { failure: Failure },
}

impl Message {
    /// Prints this message for the parent. A parent that has gone away is no error: the end of
    /// standard input is about to end this process.
    pub(crate) fn print(&self) {
        let mut line = serde_json::to_string(self).expect("invariant: a message is plain data");
        line.push('\n');
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(line.as_bytes());
        let _ = stdout.flush();
    }
}

/// A running child; dropping it kills it.
#[derive(Debug)]
pub(crate) struct Child {
    role: &'static str,
    process: process::Child,
    lines: Receiver<String>,
    /// Open as long as the child is to live.
    stdin: ChildStdin,
}

impl Child {
    /// Starts this program again in `role`.
    pub(crate) fn start(role: &Role) -> Result<Self, BenchError> {
        Self::start_under(&[], role)
    }

    /// Starts this program again in `role`, under a tracer: `wrapper` is its command line, to which
    /// ours is appended.
    pub(crate) fn start_under(wrapper: &[String], role: &Role) -> Result<Self, BenchError> {
        let name = role.name();
        let cannot = |source| BenchError::Start { role: name, source };
        let program = env::current_exe().map_err(cannot)?;
        let mut command = match wrapper {
            [] => Command::new(program),
            [tracer, arguments @ ..] => {
                let mut command = Command::new(tracer);
                command.args(arguments).arg(program);
                command
            }
        };
        let role = serde_json::to_string(role).expect("invariant: a role is plain data");
        command.env(VARIABLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(cannot)?;
        let stdin = process.stdin.take().expect("invariant: standard input was asked for");
        let stdout = process.stdout.take().expect("invariant: standard output was asked for");
        Ok(Self { role: name, process, lines: lines_of(stdout), stdin })
    }

    /// Returns the next message, waiting for it for at most `patience`.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<Message, BenchError> {
        let role = self.role;
        match self.lines.recv_timeout(patience) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Message::Failed { failure }) => Err(BenchError::Failed { role, failure }),
                Ok(message) => Ok(message),
                Err(_) => Err(BenchError::Protocol { role, line }),
            },
            Err(RecvTimeoutError::Timeout) => Err(BenchError::Silent { role, waited: patience }),
            Err(RecvTimeoutError::Disconnected) => match self.process.wait() {
                Ok(status) => Err(BenchError::Ended { role, status }),
                Err(source) => Err(BenchError::Start { role, source }),
            },
        }
    }

    /// Asks the child what it has used so far.
    pub(crate) fn usage(&mut self) -> Result<Usage, BenchError> {
        match self.ask(ASKS_USAGE)? {
            Message::Usage(usage) => Ok(usage),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Asks the child what its runtime has counted so far; nothing if that is not vigie's.
    pub(crate) fn counts(&mut self) -> Result<Option<Counts>, BenchError> {
        match self.ask(ASKS_COUNTS)? {
            Message::Counts(counts) => Ok(counts),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Lets a child go on that waits in [`wait_for_go`].
    pub(crate) fn go(&mut self) {
        // If the child has ended, whoever waits for its next message learns how.
        let _ = self.stdin.write_all(&[GO]).and_then(|()| self.stdin.flush());
    }

    fn ask(&mut self, question: u8) -> Result<Message, BenchError> {
        // If the child has ended, waiting for its answer tells how.
        let _ = self.stdin.write_all(&[question]).and_then(|()| self.stdin.flush());
        self.next(ANSWER_PATIENCE)
    }

    /// Returns the error for a message that does not belong here.
    pub(crate) fn unexpected(&self, message: &Message) -> BenchError {
        BenchError::Protocol { role: self.role, line: format!("{message:?}") }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only if the child has ended already and was waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads lines on a thread of its own, because a pipe cannot be read with a time limit. The thread
/// ends with the child, which closes the pipe.
fn lines_of(stdout: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
