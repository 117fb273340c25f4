//! Random programs that are legal by MPI 5.0, section 3.5, among ranks that threads or tasks carry out, over shared memory
//! and UDP, by all kinds of sends, receives, probes and sets of requests: none may hang. `SIM_RUNS=10000` tries more of them; `SIM_SEED` draws a program again, though not the order in
//! which threads run it. `protocol/progress.rs` runs the same programs over the simulated network.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "kit/pattern.rs"]
mod pattern;
#[path = "kit/programs.rs"]
mod programs;
#[path = "kit/ranks.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod ranks;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime, yield_now};
use vigie_via::{
    message::{
        Communicator, Endpoint, Message, MessageError, MessageErrorKind, ReceiveRequest,
        RequestOutcome, RequestSet, SendRequest, SourceFilter,
    },
    protocol::{EngineConfig, SendError, SendMode, Status},
    shm::Shm,
    software_nic::{Secret, SoftwareNicConfig},
    udp::Udp,
    vi::{Provider, Reliability},
    world::local,
};

use crate::{
    kit::{guard::against_hang, seeds::for_each_seed},
    programs::{Step, Transfer, programs},
    ranks::{BOUND, endpoints},
};

/// The tag of what ranks say to each other when their programs have ended.
const END: u32 = u32::MAX;

/// What a rank carries out.
struct Program {
    transfers: Arc<Vec<Transfer>>,
    steps: Vec<Step>,
    /// Draws what the rank does between two steps.
    random: fastrand::Rng,
}

/// Returns a configuration with little credit and small budgets.
fn scarce(random: &mut fastrand::Rng) -> EngineConfig {
    EngineConfig::default()
        .area_bytes(4096)
        .frame_bytes_max(512)
        .window_bytes(2048)
        .descriptors(32)
        .control_entries(8)
        .staging_frames(2)
        .unexpected_bytes_max(random.u64(0..4000))
        .unexpected_messages_max(random.u32(0..20))
        .held_bytes_max(random.u64(0..4000))
}

impl Program {
    /// A rank may compute, let others run, or wait for something else between two steps.
    async fn pause(&mut self) {
        match self.random.u32(0..40) {
            0 => {
                let timers = Server::current().expect("inside a runtime").timers().clone();
                let soon = Instant::now() + Duration::from_millis(self.random.u64(0..3));
                timers.wait(soon).await.expect("the server lives");
            }
            1..20 => yield_now().await,
            _ => {}
        }
    }

    fn tag(number: usize) -> u32 {
        u32::try_from(number).expect("few")
    }

    fn source(&self, number: usize) -> SourceFilter {
        let Transfer { from, has_wildcard, .. } = self.transfers[number];
        if has_wildcard { SourceFilter::Any } else { SourceFilter::Rank(from) }
    }

    fn check(&self, number: usize, (status, bytes): &Received) {
        let Transfer { from, body, .. } = &self.transfers[number];
        assert_eq!(status.source, *from);
        assert!(bytes == body, "message {number}");
    }

    /// Carries the program out; in the end no rank has anything left to do.
    async fn run<P: Provider>(mut self, all: Communicator<P>) {
        let all = [all.clone(), all.duplicate().expect("a context")];
        let mut requests = Requests::new(&all[0]);
        let transfers = Arc::clone(&self.transfers);
        for step in std::mem::take(&mut self.steps) {
            self.pause().await;
            let (Step::Send(number)
            | Step::Receive(number)
            | Step::StartSend(number)
            | Step::WaitSend(number)
            | Step::StartReceive(number)
            | Step::WaitReceive(number)) = step;
            let transfer = &transfers[number];
            let way = &all[usize::from(transfer.context)];
            match step {
                Step::Send(_) => self.send(way, number).await.expect("sent"),
                Step::StartSend(_) => {
                    let Transfer { to, ref body, mode, .. } = *transfer;
                    let started = if number.is_multiple_of(3) && !body.is_empty() {
                        let memory = way.buffer(body.len()).expect("memory");
                        memory.write(0, body).expect("inside");
                        let part = (&memory, 0, body.len() as u64);
                        way.start_send_memory(to, Self::tag(number), mode, part)
                    } else if number % 3 == 1 {
                        way.start_send_kept(to, Self::tag(number), mode, body.clone())
                    } else {
                        way.start_send(to, Self::tag(number), mode, body.clone())
                    };
                    requests.add_send(number, started.expect("begins"), self.random.bool());
                }
                Step::WaitSend(_) => requests.sent(number).await,
                Step::StartReceive(_) => {
                    let started = way.start_recv(self.source(number), Self::tag(number));
                    requests.add_receive(number, started, self.random.bool());
                }
                Step::WaitReceive(_) => self.check(number, &requests.received(number).await),
                Step::Receive(_) => {
                    let message = self.receive(way, number).await.expect("received");
                    self.check(number, &message);
                }
            }
        }
        let [all, _] = &all;
        for rank in (0..all.size()).filter(|rank| *rank != all.rank()) {
            all.send(rank, END, b"").await.expect("sent");
        }
        for rank in (0..all.size()).filter(|rank| *rank != all.rank()) {
            all.recv(rank, END).await.expect("it ends, too");
        }
    }

    /// Sends a message by one of the calls that return when its bytes may be changed.
    async fn send<P: Provider>(
        &mut self,
        way: &Communicator<P>,
        number: usize,
    ) -> Result<(), MessageError> {
        let (tag, transfers) = (Self::tag(number), Arc::clone(&self.transfers));
        let Transfer { to, ref body, mode, .. } = transfers[number];
        if mode == SendMode::Synchronous {
            return way.send_sync(to, tag, body).await;
        }
        match self.random.u32(0..4) {
            0 => {
                let loan = way.loan(to, u32::try_from(body.len()).expect("short"))?;
                loan.write_at(0, body).expect("inside");
                way.send_loaned(loan, tag).await
            }
            1 => match way.send_buffered(to, tag, body) {
                Err(error) if is_full(&error) => way.send(to, tag, body).await,
                sent => sent,
            },
            _ => way.send(to, tag, body).await,
        }
    }

    /// Receives a message by one of the calls that return with it.
    async fn receive<P: Provider>(
        &mut self,
        way: &Communicator<P>,
        number: usize,
    ) -> Result<Received, MessageError> {
        let (tag, source) = (Self::tag(number), self.source(number));
        match self.random.u32(0..6) {
            0 => way.matched_probe(source, tag).await?.recv().await.map(parts),
            1 => {
                let found = way.probe(source, tag).await?;
                let message = way.recv(found.source, tag).await?;
                assert_eq!(found.length, message.status.length);
                Ok(parts(message))
            }
            2 => {
                let view = way.recv_view(source, tag).await?;
                let status = view.status();
                let mut bytes = vec![0; usize::try_from(status.length).expect("it fits")];
                view.read_at(0, &mut bytes).expect("inside");
                Ok((status, bytes))
            }
            3 => {
                let mut bytes = vec![0; self.transfers[number].body.len()];
                let status = way.recv_into(source, tag, &mut bytes[..]).await?;
                Ok((status, bytes))
            }
            _ => way.recv(source, tag).await.map(parts),
        }
    }
}

/// A message: its status and its bytes.
type Received = (Status, Vec<u8>);

fn parts(message: Message) -> Received {
    (message.status, message.bytes)
}

/// Whether a send failed because the buffer for such sends is full.
fn is_full(error: &MessageError) -> bool {
    matches!(error.kind(), MessageErrorKind::Send(SendError::BufferFull { .. }))
}

/// The requests of a rank that have begun, by the numbers of their messages; some are in a set.
struct Requests<P: Provider> {
    sends: BTreeMap<usize, SendRequest<P>>,
    receives: BTreeMap<usize, ReceiveRequest<P>>,
    set: RequestSet<P>,
    /// The messages of the set's requests.
    members: BTreeMap<usize, usize>,
    /// What the set returned before it was asked for.
    sent: BTreeSet<usize>,
    received: BTreeMap<usize, Received>,
}

impl<P: Provider> Requests<P> {
    fn new(all: &Communicator<P>) -> Self {
        Self {
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            set: all.request_set(),
            members: BTreeMap::new(),
            sent: BTreeSet::new(),
            received: BTreeMap::new(),
        }
    }

    fn add_send(&mut self, number: usize, request: SendRequest<P>, joins_set: bool) {
        if joins_set {
            let member = self.set.push_send(request).expect("of the same endpoint");
            self.members.insert(member, number);
        } else {
            self.sends.insert(number, request);
        }
    }

    fn add_receive(&mut self, number: usize, request: ReceiveRequest<P>, joins_set: bool) {
        if joins_set {
            let member = self.set.push_recv(request).expect("of the same endpoint");
            self.members.insert(member, number);
        } else {
            self.receives.insert(number, request);
        }
    }

    /// Waits for the next request of the set.
    async fn take_next(&mut self) {
        let (member, ended) = self.set.wait_any().await.expect("it was started");
        let number = self.members[&member];
        match ended.expect("sent or received") {
            RequestOutcome::Sent => drop(self.sent.insert(number)),
            RequestOutcome::Received(message) => {
                self.received.insert(number, parts(message));
            }
        }
    }

    async fn sent(&mut self, number: usize) {
        if let Some(mut request) = self.sends.remove(&number) {
            return request.wait().await.expect("sent");
        }
        while !self.sent.remove(&number) {
            self.take_next().await;
        }
    }

    async fn received(&mut self, number: usize) -> Received {
        if let Some(mut request) = self.receives.remove(&number) {
            return request.wait().await.map(parts).expect("received");
        }
        loop {
            if let Some(message) = self.received.remove(&number) {
                return message;
            }
            self.take_next().await;
        }
    }
}

/// Runs programs as tasks of one runtime.
fn run_as_tasks<P: Provider>(
    flavor: Flavor,
    config: EngineConfig,
    nics: Vec<P>,
    programs: Vec<Program>,
) {
    let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
    runtime.block_on(async {
        let endpoints = endpoints(nics, config).await;
        let tasks: Vec<_> = endpoints
            .iter()
            .zip(programs)
            .map(|(endpoint, program)| vigie_runtime::spawn(program.run(endpoint.communicator())))
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        // All are kept until then: a rank that is gone acknowledges nothing.
        for endpoint in &endpoints {
            while !endpoint.with(|engine| engine.has_all_left()) {
                yield_now().await;
            }
        }
    });
}

/// Runs programs on a thread with a runtime for each.
fn run_on_threads<P: Provider>(config: EngineConfig, nics: Vec<P>, programs: Vec<Program>) {
    let host = Server::spawn_thread().expect("a thread");
    let size = u32::try_from(nics.len()).expect("few");
    let (_, worlds) = local(host.server(), size).expect("a world");
    let ended = AtomicU32::new(0);
    thread::scope(|scope| {
        for ((nic, program), world) in nics.into_iter().zip(programs).zip(worlds) {
            let ended = &ended;
            scope.spawn(move || {
                let builder = Runtime::builder().flavor(Flavor::UserLevel);
                let runtime = builder.build().expect("a runtime");
                runtime.block_on(async {
                    let (server, deadline) = (runtime.server(), Instant::now() + BOUND);
                    let joined = Endpoint::join_over(server, &world, nic, config, deadline);
                    let endpoint = joined.await.expect("all ranks are connected");
                    program.run(endpoint.communicator()).await;
                    while !endpoint.with(|engine| engine.has_all_left()) {
                        yield_now().await;
                    }
                    ended.fetch_add(1, Ordering::Relaxed);
                    // The others may still want acknowledgements.
                    while ended.load(Ordering::Relaxed) < size {
                        yield_now().await;
                    }
                });
            });
        }
    });
}

/// Runs as many programs as `SIM_RUNS` says.
fn run_programs<P: Provider>(nic: fn() -> P) {
    for_each_seed(24, |seed| {
        let random = &mut fastrand::Rng::with_seed(seed);
        let config = if random.bool() { scarce(random) } else { EngineConfig::default() };
        let is_reliable = random.u32(0..4) > 0;
        let config = if is_reliable { config } else { config.reliability(Reliability::Unreliable) };
        let size = random.u32(1..5);
        let (transfers, steps) = programs(random, size, 30);
        let transfers = Arc::new(transfers);
        let programs = steps.into_iter().map(|steps| {
            let random = fastrand::Rng::with_seed(random.u64(..));
            Program { transfers: Arc::clone(&transfers), steps, random }
        });
        let (programs, nics) = (programs.collect(), (0..size).map(|_| nic()).collect());
        let place = random.u32(0..3);
        println!("{seed}: {size} ranks, at {place}, reliable VIs: {is_reliable}");
        against_hang(move || match place {
            0 => run_as_tasks(Flavor::UserLevel, config, nics, programs),
            1 => run_as_tasks(Flavor::Hybrid, config, nics, programs),
            _ => run_on_threads(config, nics, programs),
        });
    });
}

/// Goal: no legal program hangs over shared memory, and each receive gets its message. Method: random programs, as tasks of
/// one runtime or on a thread for each rank, over VIs of both kinds, with tight limits and without.
#[test]
fn random_legal_programs_end_over_shared_memory() {
    run_programs(|| Shm::open().expect("a NIC"));
}

/// Goal: the same over UDP. Method: on the loopback interface.
#[test]
fn random_legal_programs_end_over_udp() {
    run_programs(|| {
        let address = "127.0.0.1:0".parse().expect("an address");
        let config = SoftwareNicConfig::default();
        Udp::bind(address, Secret::new([7; 16]), config).expect("a NIC")
    });
}
