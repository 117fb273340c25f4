//! Buffers, and memory that stays registered, through endpoints: over shared memory and over the simulator.

use std::io::Write;

use tokio::join;
use vigie_detect::Instant;
use vigie_via::{
    message::{Endpoint, MessageErrorKind},
    protocol::{EngineConfig, EngineEvent, MessageEngine, SendError, SendMode},
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{CacheCounters, Memory, NicAttributes, Provider},
};

use super::hosts::{Host, on_each_host};
use crate::pattern::pattern;

const LENGTH: usize = 700_000;

/// The most messages until a mapping has arrived, which another thread passes on.
const TRIES: usize = 10_000;

fn counters<P: Provider>(endpoint: &Endpoint<P>) -> CacheCounters {
    endpoint.with(|engine| engine.registrations().counters())
}

fn fetched<P: Provider>(endpoint: &Endpoint<P>) -> u64 {
    endpoint.with(|engine| engine.counters().remote_reads)
}

/// Sends a long loan, and receives it.
async fn loan<P: Provider>(ends: &[Endpoint<P>], seed: usize) {
    let (a, b) = (ends[0].communicator(), ends[1].communicator());
    let bytes = pattern(LENGTH, seed);
    let mut loan = a.loan(1, u32::try_from(LENGTH).expect("short")).expect("a loan");
    loan.write_all(&bytes).expect("inside");
    assert!(!loan.is_in_place(), "it is longer than the area");
    let (sent, received) = join!(a.send_loaned(loan, 1), b.recv(0, 1));
    sent.expect("sent");
    assert!(received.expect("received").bytes == bytes, "loan {seed}");
}

/// Sends memory, and receives it.
async fn send<P: Provider>(ends: &[Endpoint<P>], memory: &Memory, seed: usize) {
    let (a, b) = (ends[0].communicator(), ends[1].communicator());
    let bytes = pattern(LENGTH, seed);
    memory.write(0, &bytes).expect("inside");
    let piece = (memory, 0, LENGTH as u64);
    let mut sending = a.start_send_memory(1, 2, SendMode::Standard, piece).expect("begun");
    let (sent, received) = join!(sending.wait(), b.recv(0, 2));
    sent.expect("sent");
    assert!(received.expect("received").bytes == bytes, "memory {seed}");
}

/// Goal: over shared memory, long loans and messages of buffers are read by their receiver in one copy,
/// and buffers are reused; heap memory, which no peer can map, is sent too. Method: many of each; count.
#[test]
fn over_shared_memory() {
    on_each_host(|host| async move {
        let ends = host.endpoints(2, EngineConfig::default()).await;
        // A loan for a rank that is not connected yet is in other memory.
        ends[0].communicator().send(1, 3, b"").await.expect("sent");
        // The receiver of the first ones may not have the mapping yet.
        let (mut loans, mut first) = (0, 0);
        while first == 0 {
            assert!(loans < TRIES, "no mapping");
            loan(&ends, loans).await;
            (loans, first) = (loans + 1, fetched(&ends[1]));
        }
        for seed in 0..7 {
            loan(&ends, seed).await;
        }
        let loans = loans as u64 + 7;
        let found = counters(&ends[0]);
        assert_eq!((found.allocations, found.reuses, found.hits), (1, loans - 1, loans));
        assert_eq!(fetched(&ends[1]), first + 7);

        let buffer = ends[0].communicator().buffer(LENGTH).expect("a buffer");
        let (mut sends, fetched_before) = (0, fetched(&ends[1]));
        while fetched(&ends[1]) == fetched_before {
            assert!(sends < TRIES, "no mapping");
            send(&ends, &buffer, sends).await;
            sends += 1;
        }
        for seed in 0..3 {
            send(&ends, &buffer, seed).await;
        }
        let sends = sends as u64 + 3;
        // A buffer for messages to any rank must not be memory that a loan shares with one rank.
        assert_eq!((counters(&ends[0]).allocations, counters(&ends[0]).misses), (2, 1));
        let fetched_before = fetched_before + 4;
        assert_eq!(fetched(&ends[1]), fetched_before);

        let heap = Memory::allocate(LENGTH).expect("memory");
        for seed in 0..4 {
            send(&ends, &heap, seed).await;
        }
        assert_eq!(
            (counters(&ends[0]).misses, counters(&ends[0]).hits),
            (2, loans + sends - 1 + 3)
        );
        assert_eq!(fetched(&ends[1]), fetched_before, "heap memory cannot be read");
        let beyond = ends[0].communicator();
        let beyond = beyond.start_send_memory(1, 2, SendMode::Standard, (&heap, 1, LENGTH as u64));
        let error = beyond.map(drop).expect_err("beyond its end");
        let kind = error.kind();
        assert!(matches!(kind, MessageErrorKind::Send(SendError::OutOfBounds { offset: 1, .. })));
        // The buffer is in use; the loans' one, the registration for rank 1 and the memory are not.
        assert_eq!(ends[0].with(MessageEngine::clear_registrations), 3);
        drop((buffer, heap));
        assert_eq!(ends[0].with(MessageEngine::clear_registrations), 1);
    });
}

/// Connects two ranks on a simulated network.
async fn simulated(host: &Host) -> Vec<Endpoint<SimNic>> {
    let network = SimNetwork::new(3, FaultPlan::reliable());
    let mut attributes = NicAttributes::named("sim");
    attributes.has_window = true;
    let end = |rank: u32| {
        let mut nic = network.nic_with(attributes);
        nic.listen(b"buffers").expect("listens");
        let engine = MessageEngine::new(nic, rank, 2, EngineConfig::default()).expect("an engine");
        Endpoint::new(host.server(rank as usize), engine).expect("an endpoint")
    };
    let ends = vec![end(0), end(1)];
    let address = ends[1].with(|engine| engine.nic().address());
    ends[0]
        .with(|engine| engine.connect(1, &address, b"buffers", Instant::MAX))
        .expect("asks for a connection");
    let EngineEvent::Requested { request, rank: Some(0), .. } = event(host, &ends, 1).await else {
        panic!("no request")
    };
    ends[1].with(|engine| engine.accept(request, 0)).expect("accepts");
    for rank in 0..2 {
        let found = event(host, &ends, rank).await;
        assert!(matches!(found, EngineEvent::Connected { .. }), "{found:?}");
    }
    ends
}

async fn event(host: &Host, ends: &[Endpoint<SimNic>], rank: usize) -> EngineEvent {
    loop {
        if let Some(event) = ends[rank].with(MessageEngine::next_event) {
            return event;
        }
        host.pause().await;
    }
}

/// Goal: if peers reach all registered memory, heap memory is registered once for many messages, and no
/// longer once only the cache holds it. Method: as above, over the simulator.
#[test]
fn over_the_simulator() {
    on_each_host(|host| async move {
        let ends = simulated(&host).await;
        for seed in 0..4 {
            loan(&ends, seed).await;
        }
        let heap = Memory::allocate(LENGTH).expect("memory");
        for seed in 0..4 {
            send(&ends, &heap, seed).await;
        }
        let found = counters(&ends[0]);
        assert_eq!((found.allocations, found.reuses), (1, 3));
        assert_eq!((found.misses, found.hits), (1, 4 + 3));
        assert_eq!(fetched(&ends[1]), 8);
        drop(heap);
        let swept = ends[0].with(|engine| {
            engine.clear_registrations();
            (engine.registrations().len(), engine.registrations().bytes())
        });
        assert_eq!(swept, (0, 0));
    });
}
