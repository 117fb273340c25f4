//! A small replicated key-value store over messages, which survives the death of a rank.
//!
//! ```text
//! cargo build --features cli-run --bins --examples
//! target/debug/vigie-run -n 4 --keep-going target/debug/examples/kv
//! ```
//!
//! Every rank keeps all keys. The lowest living rank is the primary: it assigns each write a version, sends it to all
//! other living ranks, and acknowledges it when all of them have it. So the next primary has every acknowledged write;
//! a client whose primary has died asks the next one.
//!
//! In this demonstration every rank writes its own keys. Half way the last rank (or `--victim RANK`: try 0, the
//! primary) kills itself with SIGKILL in the middle of its writes. The survivors continue, and then each of them
//! checks, in its own copy and by asking the primary, that every acknowledged write is still there. It prints, in some
//! order:
//!
//! ```text
//! rank 3: killing myself after 100 acknowledged writes, with others on their way
//! rank 0: rank 3 has died (the peer's process ended); the primary is rank 0
//! rank 0: all 700 acknowledged writes are here: 200 of each of 3 survivors, 100 of rank 3
//! …
//! vigie-run: rank 3 was killed by signal 9 (SIGKILL); the others go on
//! ```
//!
//! `vigie-run` ends with the status of the rank that was killed, 137.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use rustix::process::{Signal, getpid, kill_process};
use vigie::via::message::{Communicator, Endpoint, MessageError, Source};
use vigie::via::shm::Shm;
use vigie::via::vi::Reason;
use vigie::via::world::World;
use vigie::{Flavor, Instant, Runtime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SECONDS: Duration = Duration::from_secs(30);

/// A replicated key-value store that survives the death of a rank.
#[derive(Debug, Parser)]
struct Arguments {
    /// Writes of each rank
    #[arg(long, default_value_t = 200)]
    writes: u64,
    /// The rank that kills itself half way. Default: the last
    #[arg(long)]
    victim: Option<u32>,
}

// ---- the protocol --------------------------------------------------------------------------------

/// The tag of all requests; answers have the tag that the request names.
const REQUESTS: u32 = 0;
/// The tag of the message in which the victim says how many of its writes were acknowledged.
const FAREWELL: u32 = 1;
const FIRST_REPLY: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// From a client: write this.
    Put = 1,
    /// From the primary: store this write with its version.
    Replicate = 2,
    /// From a client: what is the value?
    Get = 3,
}

struct Request {
    kind: Kind,
    /// The tag of the answer.
    reply: u32,
    version: u64,
    key: u64,
    value: Vec<u8>,
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8];
        bytes.extend(self.reply.to_le_bytes());
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.key.to_le_bytes());
        bytes.extend(&self.value);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let (reply, rest) = rest.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (key, value) = rest.split_first_chunk()?;
        let kind =
            [Kind::Put, Kind::Replicate, Kind::Get].into_iter().find(|one| *one as u8 == kind)?;
        Some(Self {
            kind,
            reply: u32::from_le_bytes(*reply),
            version: u64::from_le_bytes(*version),
            key: u64::from_le_bytes(*key),
            value: value.to_vec(),
        })
    }
}

// ---- a rank ------------------------------------------------------------------------------------

/// The state that all tasks of a rank share; they run on one thread.
struct Store {
    endpoint: Endpoint<Shm>,
    requests: Communicator<Shm>,
    replies: Communicator<Shm>,
    /// Values with their versions.
    entries: RefCell<BTreeMap<u64, (u64, Vec<u8>)>>,
    /// The highest version seen.
    version: Cell<u64>,
    next_reply: Cell<u32>,
}

impl Store {
    fn new(endpoint: Endpoint<Shm>) -> Result<Rc<Self>> {
        let requests = endpoint.communicator();
        let replies = requests.duplicate()?;
        Ok(Rc::new(Self {
            endpoint,
            requests,
            replies,
            entries: RefCell::default(),
            version: Cell::new(0),
            next_reply: Cell::new(FIRST_REPLY),
        }))
    }

    fn living(&self) -> Vec<u32> {
        let ranks = 0..self.requests.size();
        self.endpoint.with(|engine| ranks.filter(|rank| engine.failure(*rank).is_none()).collect())
    }

    /// The lowest living rank; this one lives.
    fn primary(&self) -> u32 {
        self.living().first().copied().unwrap_or_else(|| self.requests.rank())
    }

    /// Stores a value, unless a newer one is present.
    fn keep(&self, version: u64, key: u64, value: &[u8]) {
        self.version.set(self.version.get().max(version));
        let mut entries = self.entries.borrow_mut();
        let entry = entries.entry(key).or_default();
        if entry.0 < version {
            *entry = (version, value.to_vec());
        }
    }

    // ---- as a server

    /// Answers requests for ever.
    async fn serve(self: Rc<Self>) {
        let own = self.requests.rank();
        loop {
            // Receiving from any source ends once all others are gone; the last rank still asks itself.
            let is_alone = self.living().len() < 2;
            let source = if is_alone { Source::Rank(own) } else { Source::Any };
            match self.requests.receive(source, REQUESTS).await {
                Ok(message) => {
                    if let Some(request) = Request::decode(&message.bytes) {
                        let store = Rc::clone(&self);
                        let from = message.status.source;
                        vigie::spawn_local(async move { store.answer(from, request).await })
                            .detach();
                    }
                }
                // A rank has died; the others may still have requests.
                Err(error) => match error.failed_rank() {
                    Some((rank, reason)) => {
                        let primary = self.primary();
                        // A rank that has disconnected had nothing left to do.
                        if reason != Reason::Disconnected {
                            println!(
                                "rank {own}: rank {rank} has died ({reason}); the primary is rank {primary}"
                            );
                        }
                    }
                    None => return,
                },
            }
        }
    }

    async fn answer(&self, from: u32, request: Request) {
        let Request { kind, reply, version, key, value } = request;
        let answer = match kind {
            Kind::Put => {
                self.replicate(key, value).await;
                Vec::new()
            }
            Kind::Replicate => {
                self.keep(version, key, &value);
                Vec::new()
            }
            Kind::Get => self.entries.borrow().get(&key).cloned().unwrap_or_default().1,
        };
        // A rank that has died does not need it any more.
        drop(self.replies.send(from, reply, &answer).await);
    }

    /// As the primary: sends a write to all living ranks.
    async fn replicate(&self, key: u64, value: Vec<u8>) {
        let version = self.version.get() + 1;
        self.keep(version, key, &value);
        let backups = self.living().into_iter().filter(|rank| *rank != self.requests.rank());
        let mut answers = Vec::new();
        for backup in backups {
            let request =
                Request { kind: Kind::Replicate, reply: 0, version, key, value: value.clone() };
            answers.push(self.ask(backup, request));
        }
        // All requests are sent before the first answer is awaited. A rank that has died does not count.
        let answers: Vec<_> = answers.into_iter().map(vigie::spawn_local).collect();
        for answer in answers {
            drop(answer.await);
        }
    }

    // ---- as a client

    /// Sends a request; the returned future waits for the answer.
    fn ask(
        &self,
        rank: u32,
        mut request: Request,
    ) -> impl Future<Output = std::result::Result<Vec<u8>, MessageError>> + use<> {
        request.reply = self.next_reply.get();
        self.next_reply.set(request.reply + 1);
        let mut answer = self.replies.start_receive(rank, request.reply);
        let requests = self.requests.clone();
        async move {
            requests.send(rank, REQUESTS, &request.encode()).await?;
            Ok(answer.wait().await?.bytes)
        }
    }

    /// Asks the primary, and the next one if it dies.
    async fn ask_primary(&self, kind: Kind, key: u64, value: &[u8]) -> Result<Vec<u8>> {
        loop {
            let primary = self.primary();
            let request = Request { kind, reply: 0, version: 0, key, value: value.to_vec() };
            match self.ask(primary, request).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.failed_rank().is_some_and(|(rank, _)| rank == primary) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

// ---- the demonstration ---------------------------------------------------------------------------

/// The `number`th write of rank `writer`.
fn write_of(writer: u32, number: u64) -> (u64, Vec<u8>) {
    let key = u64::from(writer) << 32 | number;
    (key, format!("value {number} of rank {writer}").into_bytes())
}

fn main() -> ExitCode {
    // A `main` that returned the error would print its fields, not its text, which says what to do.
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build()?;
    runtime.block_on(async {
        let world = World::join(Instant::now() + SECONDS).await?;
        let (rank, size) = (world.rank().0, world.size());
        let victim = arguments.victim.unwrap_or(size - 1);
        if size < 2 || victim >= size {
            return Err("start several of me: vigie-run -n 4 --keep-going kv".into());
        }
        let store = Store::new(Endpoint::join(&world, Instant::now() + SECONDS).await?)?;
        // Posted before any rank can die.
        let mut farewell = store.replies.start_receive(victim, FAREWELL);
        vigie::spawn_local(Rc::clone(&store).serve()).detach();
        world.barrier(Instant::now() + SECONDS).await?;
        for number in 0..arguments.writes {
            if rank == victim && number == arguments.writes / 2 {
                die(&store, number).await?;
            }
            let (key, value) = write_of(rank, number);
            store.ask_primary(Kind::Put, key, &value).await?;
        }
        let of_victim = farewell.wait().await?.bytes;
        let of_victim = u64::from_le_bytes(of_victim.as_slice().try_into()?);
        // All survivors have finished writing; the launcher excludes the dead.
        world.barrier(Instant::now() + SECONDS).await?;
        check(&store, size, (victim, of_victim), arguments.writes).await?;
        // No rank leaves before all have asked.
        world.barrier(Instant::now() + SECONDS).await?;
        world.leave(Instant::now() + SECONDS).await?;
        Ok(())
    })
}

/// Tells the others how many writes were acknowledged, starts some more, and dies.
async fn die(store: &Store, acknowledged: u64) -> Result<()> {
    let own = store.requests.rank();
    for rank in (0..store.requests.size()).filter(|rank| *rank != own) {
        // Completes when it has been received.
        store.replies.send_sync(rank, FAREWELL, &acknowledged.to_le_bytes()).await?;
    }
    println!(
        "rank {own}: killing myself after {acknowledged} acknowledged writes, with others on their way"
    );
    for number in acknowledged..acknowledged + 10 {
        let (key, value) = write_of(own, number);
        let request = Request { kind: Kind::Put, reply: 0, version: 0, key, value };
        vigie::spawn_local(store.ask(store.primary(), request)).detach();
    }
    vigie::yield_now().await;
    kill_process(getpid(), Signal::KILL)?;
    Ok(())
}

/// Checks that every acknowledged write is in this copy of the store, and known to the primary.
async fn check(store: &Store, size: u32, victim: (u32, u64), writes: u64) -> Result<()> {
    let rank = store.requests.rank();
    let mut checked = 0;
    for writer in 0..size {
        let acknowledged = if writer == victim.0 { victim.1 } else { writes };
        for number in 0..acknowledged {
            let (key, value) = write_of(writer, number);
            let here = store.entries.borrow().get(&key).is_some_and(|(_, here)| *here == value);
            let there = store.ask_primary(Kind::Get, key, &[]).await? == value;
            if !(here && there) {
                return Err(format!("rank {rank}: write {number} of rank {writer} is lost").into());
            }
            checked += 1;
        }
    }
    println!(
        "rank {rank}: all {checked} acknowledged writes are here: {writes} of each of {} survivors, {} of rank {}",
        size - 1,
        victim.1,
        victim.0
    );
    Ok(())
}
