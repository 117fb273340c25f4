//! One virtual time for everything: timers, ranks that exchange messages and meet in a barrier, and a forwarder between its source
//! and its sink, all at one detection server, with one seed.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use vigie_barrier::{Algorithm, net::NetBarrier};
use vigie_detect::{Instant, Server, Simulated, Simulation};
use vigie_forward::{
    Path, Sees,
    messages::{
        AsyncForwarder, AsyncSink, AsyncSource, DeliveryReport, MessageVerdict, MessagesError,
        NodeConfig, SinkEvent, algorithm_fn,
    },
};
use vigie_via::{
    message::Endpoint,
    protocol::{EngineConfig, EngineEvent, MessageEngine},
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{Provider, Reliability},
};

const DESTINATION: u32 = 9;
const MESSAGES: u32 = 40;
const RANKS: u32 = 4;
const EPOCHS: u32 = 10;
const TICK: Duration = Duration::from_micros(70);
const TICKS: u32 = 50;

/// The results of a run.
#[derive(Debug, PartialEq)]
struct Run {
    /// When each timer fired, in ticks and nanoseconds beyond them.
    ticks: Vec<Duration>,
    /// The messages that each rank received from the one before it, and when it passed each barrier.
    ranks: Vec<(Vec<Vec<u8>>, Vec<Instant>)>,
    received: Vec<(u32, Vec<u8>)>,
    finished: DeliveryReport,
    forwarded: u64,
    ended_at: Instant,
    lost: u64,
    network_trace: u64,
    trace: u64,
}

fn bytes_of(tag: u32) -> Vec<u8> {
    (0..tag * 7).map(|at| u8::try_from((at + tag) % 251).expect("small")).collect()
}

/// Connects ranks with each other, over VIs that may lose, duplicate and reorder.
async fn ranks(server: &Server, network: &SimNetwork) -> Vec<Endpoint<SimNic>> {
    let config = EngineConfig::default().reliability(Reliability::Unreliable);
    let ends: Vec<_> = (0..RANKS)
        .map(|rank| {
            let mut nic = network.nic();
            nic.listen(b"ranks").expect("listens");
            let engine = MessageEngine::new(nic, rank, RANKS, config).expect("an engine");
            Endpoint::new(server, engine).expect("an endpoint")
        })
        .collect();
    for (one, first) in (0..).zip(&ends) {
        for (other, second) in (0..).zip(&ends).filter(|(other, _)| *other > one) {
            let address = second.with(|engine| engine.nic().address());
            let asked =
                first.with(|engine| engine.connect(other, &address, b"ranks", Instant::MAX));
            asked.expect("asks");
            let event = second.next_event().await.expect("a server");
            let EngineEvent::Requested { request, .. } = event else { panic!("{event:?}") };
            second.with(|engine| engine.accept(request, one)).expect("accepts");
            for end in [first, second] {
                let event = end.next_event().await.expect("a server");
                assert!(matches!(event, EngineEvent::Connected { .. }), "{event:?}");
            }
        }
    }
    ends
}

/// Passes messages on in a ring, and meets the others in a barrier after each. `entries` counts all ranks'.
async fn exchange(
    server: Server,
    end: Endpoint<SimNic>,
    entries: Rc<Cell<u32>>,
) -> (Vec<Vec<u8>>, Vec<Instant>) {
    let communicator = end.communicator();
    let builder = NetBarrier::builder().server(&server).algorithm(Algorithm::DISSEMINATION);
    let builder = builder.repeat_after(Duration::from_millis(1));
    let mut barrier = builder.over(&communicator).expect("a barrier");
    let own = communicator.rank();
    let (mut found, mut passed) = (Vec::new(), Vec::new());
    for epoch in 0..EPOCHS {
        communicator.send((own + 1) % RANKS, epoch, &bytes_of(own + epoch)).await.expect("sent");
        entries.set(entries.get() + 1);
        barrier.wait().await.expect("passed");
        assert!(entries.get() >= (epoch + 1) * RANKS, "rank {own} has left barrier {epoch} alone");
        passed.push(server.now());
        let before = (own + RANKS - 1) % RANKS;
        found.push(communicator.recv(before, epoch).await.expect("received").bytes);
    }
    barrier.leave(Duration::from_secs(1)).await.expect("a server");
    (found, passed)
}

async fn receive(mut sink: AsyncSink<SimNic>) -> Result<Vec<(u32, Vec<u8>)>, MessagesError> {
    let mut received = Vec::new();
    loop {
        match sink.next_event().await? {
            Some(SinkEvent::Message(message)) => received.push((message.tag, message.bytes)),
            Some(SinkEvent::Finished { .. }) => {}
            Some(SinkEvent::Lost { .. }) => return Ok(received),
            other => panic!("{other:?}"),
        }
    }
}

fn run(seed: u64, path: Path) -> Run {
    let mut simulation = Simulation::new(seed);
    let plan = FaultPlan::lossy(0.02).jitter(Duration::from_micros(5));
    let network = SimNetwork::over(simulation.network(), plan);
    let server = simulation.server().clone();
    let clock = simulation.clock();

    let ticks = Rc::new(RefCell::new(Vec::new()));
    let (timers, noted) = (server.timers().clone(), Rc::clone(&ticks));
    let ticking = simulation.spawn(async move {
        for tick in 1..=TICKS {
            let due = Instant::from_nanos(0) + TICK * tick;
            timers.wait(due).await.expect("a server");
            noted.borrow_mut().push(Instant::now() - due);
        }
    });

    let ends = simulation.block_on(ranks(&server, &network)).expect("no deadlock");
    let entries = Rc::new(Cell::new(0));
    let mut member = |end: &Endpoint<SimNic>| {
        simulation.spawn(exchange(server.clone(), end.clone(), Rc::clone(&entries)))
    };
    let members: Vec<Simulated<_>> = ends.iter().map(&mut member).collect();

    let settings = NodeConfig::new().packet_bytes(64).packets(16).window(4).clock(clock);
    let settings = settings.ends_with_sources(true);
    let net = network.clone();
    let sink = AsyncSink::open(&server, net.nic(), settings.clone()).expect("a sink");
    let routes = [(DESTINATION, sink.address())];
    let sinking = simulation.spawn(receive(sink));

    let (received, finished, report, ranks) = simulation
        .block_on(async {
            let stamp = algorithm_fn(Sees::Header, |envelope, _| {
                envelope.set_tag(envelope.tag() + 1000);
                if envelope.tag() % 5 == 0 { MessageVerdict::Drop } else { MessageVerdict::Forward }
            });
            let start =
                AsyncForwarder::start(&server, net.nic(), settings.clone(), &routes, path, stamp);
            let mut forwarder = start.await.expect("a forwarder");
            let address = forwarder.address().clone();
            let connect = AsyncSource::connect(&server, net.nic(), &address, settings.clone());
            let mut source = connect.await.expect("a source");
            for tag in 0..MESSAGES {
                source.send_forward(DESTINATION, tag, &bytes_of(tag)).await.expect("sent");
            }
            let finished = source.finish(DESTINATION).await.expect("acknowledged");
            drop(source);
            let report = forwarder.ended().await.expect("no error");
            drop(forwarder);
            let received = sinking.await.expect("a sink");
            ticking.await;
            let mut ranks = Vec::new();
            for member in members {
                ranks.push(member.await);
            }
            (received, finished, report, ranks)
        })
        .expect("no deadlock");
    let ticks = ticks.take();
    Run {
        ticks,
        ranks,
        received,
        finished,
        forwarded: report.forwarded,
        ended_at: simulation.now(),
        lost: network.counts().lost,
        network_trace: network.trace_hash(),
        trace: simulation.trace_hash(),
    }
}

/// Goal: timers, messages of ranks, their barrier, a source, a forwarder and a sink run in one virtual time: everything
/// arrives once and in order though the ranks' packets get lost, no rank leaves a barrier alone, timers fire on time
/// beside it, and a seed gives the same run again, to the nanosecond, and another seed another run. Method: for some
/// seeds, on both paths by the interface, twice each.
#[test]
fn everything_runs_in_one_virtual_time() {
    let expected: Vec<_> = (0..MESSAGES)
        .filter(|tag| (tag + 1000) % 5 != 0)
        .map(|tag| (tag + 1000, bytes_of(tag)))
        .collect();
    let dropped = MESSAGES / 5;
    for path in [Path::NIC, Path::NIC_CUT_THROUGH] {
        let mut runs = Vec::new();
        for seed in 0..8 {
            let found = run(seed, path);
            assert!(found.received == expected, "{path} {seed}");
            for (rank, (messages, _)) in (0..RANKS).zip(&found.ranks) {
                let before = (rank + RANKS - 1) % RANKS;
                let sent = (0..EPOCHS).map(|epoch| bytes_of(before + epoch));
                assert!(messages.iter().cloned().eq(sent), "{path} {seed}: rank {rank}");
            }
            let counts = (found.finished.delivered, found.finished.dropped);
            assert_eq!(counts, (MESSAGES - dropped, dropped), "{path} {seed}");
            assert_eq!(found.forwarded, u64::from(MESSAGES - dropped), "{path} {seed}");
            assert_eq!(found.ticks, [Duration::ZERO; TICKS as usize], "{path} {seed}");
            let again = run(seed, path);
            assert!(again == found, "seed {seed} on {path} is not replayed");
            let is_same = |run: &Run| run.ranks == found.ranks;
            assert!(!runs.iter().any(is_same), "seed {seed} on {path} changes nothing");
            runs.push(found);
        }
        assert!(runs.iter().any(|run| run.lost > 0), "nothing was lost");
    }
}
