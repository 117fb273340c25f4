//! The job: from the start of the first rank to the end of the last.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    future::{Future, poll_fn},
    io, mem,
    net::SocketAddr,
    path::Path,
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use rustix::process::{Resource, Signal, getpid, getrlimit, kill_process};
use thiserror::Error;
use vigie::{
    BuildError, Flavor, JoinHandle, Runtime,
    detect::{AsyncFd, Server},
    detectors::readiness::Direction,
    spawn_local,
    time::{Instant, sleep},
    via::world::{self, Identity, JoinRefusal, RankExit, tcp::SCHEME},
};

use crate::{
    binding,
    cli::{BindTo, Cli},
    input::{self, Input},
    listener::{RankListener, UNAUTHENTICATED_MAX},
    mailbox::Mailbox,
    output::{Pipe, Sink, Stream},
    rank::{self, Rank, Started},
    rendezvous::Rendezvous,
    rendezvous_address::{self, RendezvousAddress},
    signals,
};

/// The reason why a job could not be started.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    #[error("`{}` cannot be run: {source}{}", program.display(), remedy(program, source))]
    Program { program: OsString, source: io::Error },
    #[error("rank {number} cannot be started: {source}; ask for fewer, or raise the limits")]
    Resources { number: u32, source: io::Error },
    #[error(
        "{ranks} ranks need {needed} descriptors, and `ulimit -n` allows {limit}: raise it, ask for \
         fewer ranks, or use --no-prefix, which needs fewer"
    )]
    Descriptors { ranks: u32, needed: u64, limit: u64 },
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("{place}: {problem}")]
    Secret { place: &'static str, problem: String },
    #[error("the launcher cannot be started: {0}")]
    Launcher(#[from] io::Error),
    #[error("the launcher cannot be started: {0}")]
    Runtime(#[from] BuildError),
}

/// Returns what to do about a program that cannot be run, if that is known.
fn remedy(program: &OsStr, source: &io::Error) -> String {
    let is_here = source.kind() == io::ErrorKind::NotFound
        && Path::new(program).components().count() == 1
        && Path::new(program).is_file();
    if is_here {
        format!("; the one in this directory is `./{}`", program.display())
    } else {
        String::new()
    }
}

impl RunError {
    /// Returns the exit code, as in shells.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Program { .. } => 126,
            _ => 2,
        }
    }
}

/// The time for the output of a job that its user has interrupted twice.
const HURRIED_DRAIN_TIME: Duration = Duration::from_secs(1);
/// The pause between attempts to reach the rendezvous of `--meet`.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between messages that it does not answer.
const REMINDER_INTERVAL: Duration = Duration::from_secs(10);
/// The exit code if ranks of other hosts were lost.
const LOST_CODE: u8 = 1;

/// A signal that comes again within this time of the first is the same one: `timeout` signals its child and then the group of both.
const SAME_SIGNAL: Duration = Duration::from_millis(200);

/// The exit code on a time-out, as in `timeout(1)`.
const TIMED_OUT_CODE: u8 = 124;
/// Runs the job and returns its exit code.
pub(crate) fn run(cli: Cli) -> Result<u8, RunError> {
    check_descriptors(&cli)?;
    // One thread: it forks all ranks and lives as long as the launcher. The pool writes to two streams.
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).blocking_threads(2).build()?;
    let code = runtime.block_on(async { Job::start(cli)?.finish().await });
    // The process ends with its threads, one of which may wait for a reader that never comes.
    mem::forget(runtime);
    code
}

/// Checks that there are enough descriptors before the first rank is started.
fn check_descriptors(cli: &Cli) -> Result<(), RunError> {
    /// Used by the launcher itself, and by the rank that is being started.
    const OWN: u64 = 32;
    let each = if cli.no_prefix { 2 } else { 4 };
    let callers = cli.listen.map_or(0, |_| u64::from(cli.ranks) + u64::from(UNAUTHENTICATED_MAX));
    let here = u64::try_from(cli.here().len()).unwrap_or(u64::MAX);
    let needed = OWN + each * here + callers;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => {
            Err(RunError::Descriptors { ranks: cli.ranks, needed, limit })
        }
        _ => Ok(()),
    }
}

/// An event of the job.
#[derive(Debug)]
pub(crate) enum JobEvent {
    /// The process of this rank has ended, and must be reaped.
    Ended(usize),
    /// The launcher received this signal.
    Signal(i32),
    /// All ranks of the rendezvous have departed.
    AllDeparted,
    /// The listener has refused this caller, which may not know the secret.
    Rejected(SocketAddr, Option<JoinRefusal>),
    /// The rendezvous of `--meet` does not answer yet, for this reason.
    Unanswered(String),
    /// The rendezvous of `--meet` answers.
    Answered,
    /// `--arrival` has expired.
    ArrivalOver,
    /// `--timeout` has expired.
    TimedOut,
    /// `--timeout-end` has expired.
    GraceOver,
}

struct Job {
    cli: Cli,
    /// This host's ranks in order, until they are reaped.
    ranks: Vec<Option<Rank>>,
    /// The address at which they meet the ranks of other hosts.
    rendezvous_address: Option<RendezvousAddress>,
    /// The reason why the rendezvous of `--meet` does not answer, as logged.
    unanswered: Option<String>,
    /// Ranks that had not arrived in time, which was logged.
    not_arrived: Vec<world::Rank>,
    /// Accepts the ranks of other hosts, until all have departed.
    listener: Option<Rc<RankListener>>,
    mailbox: Rc<Mailbox<JobEvent>>,
    rendezvous: Rc<Rendezvous>,
    stdout: Rc<Sink>,
    stderr: Rc<Sink>,
    /// The output of the ranks, and the launcher's own messages.
    pipes: Vec<Pipe>,
    messages: Vec<JoinHandle<()>>,
    /// The exit code, once something has failed.
    code: Option<u8>,
    /// The ranks were told to end.
    is_ending: bool,
    /// The time at which the first signal came that asked the job to end.
    interrupted_at: Option<Instant>,
    /// The user has interrupted it twice: do not wait for output that is not read.
    skips_drain: bool,
}

impl Job {
    /// Starts all ranks, or none.
    fn start(cli: Cli) -> Result<Self, RunError> {
        let server = Server::current().map_err(io::Error::from)?;
        let mailbox = Rc::new(Mailbox::new());
        signals::pass_to(&mailbox, signals::listen(&server)?);
        let identity =
            if cli.has_tcp() { Identity::random_without_secret()? } else { Identity::random()? };
        let rendezvous = Rendezvous::new(cli.ranks, identity, Rc::clone(&mailbox))?;
        let mut job = Self {
            ranks: Vec::new(),
            rendezvous_address: None,
            unanswered: None,
            not_arrived: Vec::new(),
            listener: None,
            mailbox,
            rendezvous,
            stdout: Sink::new(Stream::Output),
            stderr: Sink::new(Stream::Error),
            pipes: Vec::new(),
            messages: Vec::new(),
            code: None,
            is_ending: false,
            interrupted_at: None,
            skips_drain: false,
            cli,
        };

        job.open_listener()?;
        match job.start_ranks() {
            Ok(()) => Ok(job),
            Err(error) => {
                job.ranks.drain(..).flatten().for_each(Rank::destroy);
                Err(error)
            }
        }
    }

    /// Opens the listener for ranks of other hosts, if configured.
    fn open_listener(&mut self) -> Result<(), RunError> {
        let file = self.cli.secret_file.clone();
        let file = file.as_deref();
        if let Some(path) = file.filter(|path| rendezvous_address::is_public(path)) {
            self.log(&format!("every user can read the secret in {}: chmod 600", path.display()));
        }
        if let Some(address) = self.cli.meet {
            // Report a missing secret once, and here.
            rendezvous_address::secret(file)?;
            self.rendezvous_address = Some(RendezvousAddress::new(address, file));
            spawn_local(wait_for_answer(address, Rc::clone(&self.mailbox))).detach();
        } else if let Some(address) = self.cli.listen {
            let secret = rendezvous_address::secret(file)?;
            let (rendezvous, mailbox) = (Rc::clone(&self.rendezvous), Rc::clone(&self.mailbox));
            let listener = RankListener::open(address, secret, self.cli.ranks, rendezvous, mailbox);
            let listener = listener.map_err(|source| RunError::Listen { address, source })?;
            let address = listener.address();
            self.rendezvous_address = Some(RendezvousAddress::new(address, file));
            self.listener = Some(listener);
            self.log(&format!("ranks meet at {SCHEME}{address}"));
            self.post_after(self.cli.arrival, JobEvent::ArrivalOver);
        }
        Ok(())
    }

    fn start_ranks(&mut self) -> Result<(), RunError> {
        let processors = match self.cli.bind_to {
            BindTo::None => None,
            BindTo::Core => Some(binding::processors()?),
        };
        let (ranks, here) = (self.cli.here().count(), processors.as_ref().map(Vec::len));
        if let Some(here) = here.filter(|&here| here < ranks) {
            self.log(&format!("some ranks share a processor: {ranks} ranks, processors: {here}"));
        }
        let input = Input::find();
        for (index, number) in self.cli.here().enumerate() {
            let processors = processors.as_ref().map(|all| binding::of_rank(all, index));
            let started = rank::start(
                &self.cli,
                number,
                input,
                processors,
                self.rendezvous_address.as_ref(),
            )?;
            self.adopt(index, number, started)?;
        }
        Ok(())
    }

    /// Watches the launcher's connections to a rank.
    fn adopt(&mut self, index: usize, number: u32, started: Started) -> io::Result<()> {
        self.ranks.push(Some(started.rank));
        if let Some(socket) = started.rendezvous {
            self.rendezvous.serve(world::Rank(number), socket.into(), None)?;
        }
        let (exit, mailbox) = (AsyncFd::new(started.pidfd)?, Rc::clone(&self.mailbox));
        let watcher = spawn_local(async move {
            // An error means that the server is gone, and the job with it.
            if exit.async_io(Direction::Read, rank::check_end).await.is_ok() {
                mailbox.post(JobEvent::Ended(index));
            }
        });
        watcher.detach();
        if let Some(stdin) = started.stdin {
            input::pass_on(stdin)?;
        }
        let width = (self.cli.ranks - 1).to_string().len();
        for (pipe, sink) in started.output.into_iter().flatten().zip([&self.stdout, &self.stderr]) {
            let prefix = format!("[{number:>width$}] ");
            self.pipes.push(Pipe::pass_on(pipe, Rc::clone(sink), prefix)?);
        }
        Ok(())
    }

    /// Runs the job to its end.
    async fn finish(mut self) -> Result<u8, RunError> {
        if let Some(time) = self.cli.timeout {
            self.post_after(time, JobEvent::TimedOut);
        }

        while self.ranks.iter().any(Option::is_some) || self.listener.is_some() {
            match self.mailbox.next().await {
                JobEvent::Ended(index) => self.reap(index)?,
                JobEvent::Signal(number) => self.pass_on(number),
                JobEvent::TimedOut => {
                    let time = self.cli.timeout.unwrap_or_default();
                    self.log(&format!("the job has taken longer than {time:?}; ending it"));
                    let running = self.running();
                    if !running.is_empty() {
                        self.log(&format!("still running: {}", RankList(&running)));
                    }
                    self.code.get_or_insert(TIMED_OUT_CODE);
                    self.skips_drain = true;
                    self.listener = None;
                    self.end_all();
                }
                JobEvent::GraceOver => self.signal_all(Signal::KILL),
                JobEvent::Rejected(caller, Some(why)) => {
                    self.log(&format!("a rank at {caller} was refused: {why}"));
                }
                JobEvent::Rejected(caller, None) => self.log(&format!(
                    "a caller at {caller} was refused: it has another secret, or is no rank"
                )),
                JobEvent::Unanswered(problem) => self.log_unanswered(problem),
                JobEvent::Answered => {
                    if self.unanswered.take().is_some() {
                        self.log("the rendezvous answers");
                    }
                }
                JobEvent::ArrivalOver => self.give_up_missing(),
                JobEvent::AllDeparted => self.close_listener().await,
            }
            self.give_up_if_ending();
        }

        if let (Some(problem), Some(address), Some(_)) =
            (self.unanswered.take(), self.cli.meet, self.code)
        {
            self.log(&format!("nothing has answered at {SCHEME}{address}: {problem}"));
        }
        self.drain().await;
        for failure in [self.stdout.failure(), self.stderr.failure()].into_iter().flatten() {
            eprintln!("vigie-run: {failure}");
            self.code.get_or_insert(1);
        }

        Ok(self.code.unwrap_or(0))
    }

    fn log_unanswered(&mut self, problem: String) {
        if let Some(address) = self.cli.meet {
            self.log(&format!(
                "waiting for the rendezvous at {SCHEME}{address}, where nothing answers yet ({problem}): is `vigie-run --listen` running there?"
            ));
        }
        self.unanswered = Some(problem);
    }

    /// Stops waiting for ranks that have not arrived.
    fn give_up_missing(&mut self) {
        let missing = self.rendezvous.missing();
        if self.listener.is_some() && !missing.is_empty() {
            self.log(&format!("not arrived in {:?}: {}", self.cli.arrival, RankList(&missing)));
            self.code.get_or_insert(LOST_CODE);
            self.not_arrived = missing;
            self.rendezvous.give_up(!self.cli.keep_going);
        }
    }

    /// Ends the rendezvous once this host's ranks have ended on request: others are told, and ranks that have not
    /// arrived need not come.
    fn give_up_if_ending(&mut self) {
        let is_told = self.interrupted_at.is_some() || self.is_ending;
        if is_told && self.listener.is_some() && self.ranks.iter().all(Option::is_none) {
            self.rendezvous.give_up(true);
        }
    }

    /// Reports on the ranks, after all have departed.
    async fn close_listener(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        self.rendezvous.flush_final_frames().await;
        if listener.rejected() > 0 {
            self.log(&format!("callers that were not let in: {}", listener.rejected()));
        }
        let (mut never_joined, lost) = (self.rendezvous.never_joined(), self.rendezvous.lost());
        let code_of_lost = (!never_joined.is_empty() || !lost.is_empty()).then_some(LOST_CODE);
        self.code = self.code.or(code_of_lost);
        never_joined.retain(|rank| !self.not_arrived.contains(rank));
        for (what, ranks) in [("never joined", never_joined), ("lost", lost)] {
            if !ranks.is_empty() {
                self.log(&format!("{what}: {}", RankList(&ranks)));
            }
        }
    }

    /// Waits until all output is written. Slow readers may take any time, unless a signal or `--timeout` ends the
    /// waiting.
    async fn drain(&mut self) {
        if self.skips_drain {
            self.post_after(HURRIED_DRAIN_TIME, JobEvent::TimedOut);
        }

        let messages = mem::take(&mut self.messages);
        let pipes = mem::take(&mut self.pipes);
        let mut writing = pin!(async {
            for pipe in pipes {
                pipe.finish().await;
            }
            for message in messages {
                // It can only have failed by the end of the runtime.
                drop(message.await);
            }
        });

        loop {
            let event = poll_fn(|cx| {
                if writing.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                pin!(self.mailbox.next()).poll(cx).map(Some)
            });
            match event.await {
                None => return,
                Some(JobEvent::TimedOut) => {
                    self.code.get_or_insert(TIMED_OUT_CODE);
                    return;
                }
                Some(JobEvent::Signal(number)) if is_end(number) => {
                    self.code.get_or_insert_with(|| code_of(RankExit::Killed(number)));
                    return;
                }
                Some(_) => {}
            }
        }
    }

    /// Returns this host's ranks that have not ended.
    fn running(&self) -> Vec<world::Rank> {
        let ranks = self.cli.here().zip(&self.ranks);
        ranks.filter(|(_, rank)| rank.is_some()).map(|(number, _)| world::Rank(number)).collect()
    }

    fn reap(&mut self, index: usize) -> Result<(), RunError> {
        let Some(slot) = self.ranks.get_mut(index) else { return Ok(()) };
        let Some(rank) = slot.take() else { return Ok(()) };
        let ending = rank.reap()?;
        let index = self.cli.here().nth(index).unwrap_or_default();
        self.rendezvous.end(world::Rank(index), ending);
        let code = code_of(ending);
        if code == 0 {
            return Ok(());
        }
        let is_first = self.code.is_none();
        self.code.get_or_insert(code);
        let place = match self.rendezvous.awaited_by(world::Rank(index)).as_slice() {
            [] => String::new(),
            awaited => format!(" inside a barrier, not entered by {}", RankList(awaited)),
        };
        let ended = format!("rank {index} {}{place}", EndingText(ending));
        if self.cli.keep_going {
            self.log(&format!("{ended}; the others go on"));
        } else if !self.is_ending {
            self.log(&format!("{ended}; ending the others"));
            self.end_all();
        } else if is_first {
            self.log(&ended);
        }
        Ok(())
    }

    fn pass_on(&mut self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        if is_end(number) {
            let now = Instant::now();
            if let Some(first) = self.interrupted_at.replace(self.interrupted_at.unwrap_or(now)) {
                if now - first < SAME_SIGNAL {
                    return;
                }
                self.log(&format!("{} again: killing all ranks", signals::name(number)));
                self.code.get_or_insert_with(|| code_of(RankExit::Killed(number)));
                (self.is_ending, self.skips_drain) = (true, true);
                self.listener = None;
                self.signal_all(Signal::KILL);
                return;
            }
        }
        if is_end(number) {
            self.log(&format!("{} received, and passed on to the ranks", signals::name(number)));
        }
        self.signal_all(signal);
        if is_end(number) && self.ranks.iter().all(Option::is_none) {
            // No rank is left to pass it on to.
            self.code.get_or_insert_with(|| code_of(RankExit::Killed(number)));
        }
        if signal == Signal::TSTP {
            // The ranks have been signalled; now stop the launcher itself.
            if let Err(error) = kill_process(getpid(), Signal::STOP) {
                self.log(&format!("the launcher cannot be stopped: {error}"));
            }
        }
    }

    /// Tells all ranks to end, and kills those that do not.
    fn end_all(&mut self) {
        if !self.is_ending {
            self.is_ending = true;
            self.signal_all(Signal::TERM);
            // A stopped rank would not receive it.
            self.signal_all(Signal::CONT);
            self.post_after(self.cli.timeout_end, JobEvent::GraceOver);
        }
    }

    fn signal_all(&self, signal: Signal) {
        self.ranks.iter().flatten().for_each(|rank| rank.signal(signal));
    }

    fn post_after(&self, time: Duration, event: JobEvent) {
        let mailbox = Rc::clone(&self.mailbox);
        let timer = spawn_local(async move {
            sleep(time).await;
            mailbox.post(event);
        });
        timer.detach();
    }

    /// Writes a message to standard error, between the lines of the ranks.
    fn log(&mut self, text: &str) {
        let (sink, line) = (Rc::clone(&self.stderr), format!("vigie-run: {text}\n"));
        self.messages.push(spawn_local(async move {
            sink.write(line.into_bytes()).await;
        }));
    }
}

/// Posts whether a rendezvous answers, until it does.
async fn wait_for_answer(address: SocketAddr, mailbox: Rc<Mailbox<JobEvent>>) {
    let mut told_at = None;
    while let Err(problem) = rendezvous_address::probe(address).await {
        let now = Instant::now();
        if told_at.is_none_or(|told_at| now - told_at >= REMINDER_INTERVAL) {
            told_at = Some(now);
            mailbox.post(JobEvent::Unanswered(problem));
        }
        sleep(PROBE_INTERVAL).await;
    }
    mailbox.post(JobEvent::Answered);
}

/// The most ranks that one message names.
const NAMED_MAX: usize = 100;

/// Shows ranks for users: the first [`NAMED_MAX`], and the number of the others.
struct RankList<'a>(&'a [world::Rank]);

impl fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rank) in self.0.iter().take(NAMED_MAX).enumerate() {
            let before = match index {
                0 if self.0.len() == 1 => "rank ",
                0 => "ranks ",
                _ => ", ",
            };
            write!(f, "{before}{}", rank.0)?;
        }
        match self.0.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Shows how a rank ended, for users.
struct EndingText(RankExit);

impl fmt::Display for EndingText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            RankExit::Killed(signal) => write!(f, "was killed by {}", signals::name(signal)),
            ending => write!(f, "{ending}"),
        }
    }
}

/// Returns whether a signal asks the job to end, so that a second one forces it.
fn is_end(number: i32) -> bool {
    number == Signal::INT.as_raw() || number == Signal::TERM.as_raw()
}

/// Returns the exit code for an ending, as in shells.
fn code_of(ending: RankExit) -> u8 {
    match ending {
        // The kernel keeps eight bits of it.
        RankExit::Exited(code) => u8::try_from(code & 0xff).unwrap_or(1),
        RankExit::Killed(signal) => u8::try_from(128 + signal).unwrap_or(255),
        _ => 1,
    }
}
