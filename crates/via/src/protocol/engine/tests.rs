//! What the engine reports of itself: whether it has worked, may sleep, and has sent everything.

use super::*;
use crate::{
    protocol::{
        Control, Payload, SendMode, SendState,
        tests::{Pair, small, tagged},
    },
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{NicAttributes, Reliability, ViId},
};

/// Returns rank 0 of three that are not connected.
fn lone() -> MessageEngine<SimNic> {
    let nic = SimNetwork::new(1, FaultPlan::reliable()).nic();
    MessageEngine::new(nic, 0, 3, small()).expect("an engine")
}

/// Gives an engine something to do.
type Change = fn(&mut MessageEngine<SimNic>, BrokenPeer);

fn unreliable() -> EngineConfig {
    EngineConfig { reliability: Reliability::Unreliable, ..small() }
}

fn send_to_self(engine: &mut MessageEngine<SimNic>) {
    let own = engine.rank();
    let sent = engine.send(own, 0, 1, SendMode::Standard, Payload::Owned(vec![1]));
    assert_eq!(sent, Ok(SendState::Done));
}

/// Goal: an engine is made only on a NIC that can carry it, within the NIC's limits. Method: each limit, and
/// one below it.
#[test]
fn an_engine_needs_a_nic_that_carries_it() {
    let network = SimNetwork::new(1, FaultPlan::reliable());
    let make = |change: fn(&mut NicAttributes), rank: u32, config: EngineConfig| {
        let mut attributes = NicAttributes::named("sim");
        change(&mut attributes);
        MessageEngine::new(network.nic_with(attributes), rank, 3, config)
    };
    let found = make(|_| {}, 2, small()).expect("an engine");
    assert_eq!((found.rank(), found.size(), found.kept()), (2, 3, 0));
    assert_eq!(found.config.frame_bytes_max, 512);
    assert!(matches!(make(|_| {}, 3, small()), Err(EngineError::NoSuchRank { rank: 3, size: 3 })));
    assert!(make(|one| one.inline_bytes_max = 64, 0, small()).is_ok());
    assert!(make(|one| one.inline_bytes_max = 63, 0, small()).is_err());
    let reliable = EngineConfig { reliability: Reliability::ReliableReception, ..small() };
    assert!(make(|_| {}, 0, reliable).is_ok());
    let lower: fn(&mut NicAttributes) = |one| one.max_reliability = Reliability::ReliableDelivery;
    assert!(make(lower, 0, small()).is_ok() && make(lower, 0, reliable).is_err());
    // As many as its queues hold.
    let found = make(|one| one.descriptors_max = 20, 0, small()).expect("an engine");
    assert_eq!((found.config.descriptors, found.config.control_entries), (20, 5));
    // Over unreliable VIs, frames fit into a packet; over others the packet does not matter.
    let short: fn(&mut NicAttributes) = |one| one.unreliable_bytes = 300;
    let found = make(short, 0, unreliable()).expect("an engine");
    assert_eq!(found.config.frame_bytes_max, 300 - 40);
    assert_eq!(make(short, 0, small()).expect("an engine").config.frame_bytes_max, 512);
}

/// Goal: a rank prepares one connection to each rank that exists, and none to itself. Method: each kind.
#[test]
fn connections_are_prepared_once() {
    let mut engine = lone();
    let first = engine.greeting(1).expect("a greeting");
    assert_eq!(engine.greeting(1).expect("the same"), first);
    for rank in [0, 3] {
        let error = engine.greeting(rank).expect_err("no rank to connect to");
        assert!(matches!(error, EngineError::NoSuchRank { size: 3, .. }), "{error}");
    }
    assert!(engine.accept_greeting(2, &first.1).is_err(), "it is of another rank");
    assert_eq!((engine.rank_with(first.0), engine.rank_with(ViId(99_999))), (Some(1), None));
}

/// Goal: unanswered connection requests are bounded; further ones are refused. Method: more requests than are
/// kept.
#[test]
fn unanswered_requests_are_bounded() {
    let network = SimNetwork::new(1, FaultPlan::reliable());
    let mut nic = network.nic();
    nic.listen(b"messages").expect("listens");
    let mut engine = MessageEngine::new(nic, 0, 3, small()).expect("an engine");
    let address = engine.nic().address();
    let mut callers: Vec<_> = (0..80)
        .map(|_| {
            let mut caller = MessageEngine::new(network.nic(), 1, 3, small()).expect("an engine");
            caller.connect(0, &address, b"messages", Instant::MAX).expect("asks");
            caller
        })
        .collect();
    while network.step() {}
    assert!(engine.take_nic_events());
    assert!(!engine.take_nic_events());
    while network.step() {}
    let mut requested = 0;
    while let Some(EngineEvent::Requested { rank: Some(1), .. }) = engine.next_event() {
        requested += 1;
    }
    let is_refused = |caller: &mut MessageEngine<SimNic>| {
        matches!(caller.next_event(), Some(EngineEvent::Refused { rank: 0, .. }))
    };
    let refused = callers.iter_mut().map(is_refused).filter(|is_refused| *is_refused).count();
    assert_eq!((requested, refused), (64 + 4 * 3, 4));
}

/// Goal: a program waits until everything is sent. Method: each thing that may wait, for a rank that lives and
/// for one that has failed.
#[test]
fn all_has_left_when_nothing_waits() {
    let mut engine = lone();
    assert!(engine.has_all_left());
    let waits: [fn(&mut Peer); 3] = [
        |peer| peer.outbox.push_back(1),
        |peer| peer.pumps.push_back(1),
        |peer| peer.controls.push_back(Control::Pause),
    ];
    for wait in waits {
        wait(&mut engine.peers[1]);
        assert!(!engine.has_all_left());
        engine.peers[1].failed = Some(DisconnectReason::TimedOut);
        assert!(engine.has_all_left(), "no rank is there");
        engine.peers[1] = Peer::new(PeerLink::Absent);
    }
    send_to_self(&mut engine);
    assert!(!engine.has_all_left() && engine.has_own() && engine.has_silent_work());
    engine.serve_own();
    assert!(engine.has_all_left() && !engine.has_own() && !engine.has_silent_work());
    assert_eq!((engine.kept(), engine.unexpected.len()), (1, 1));
}

/// Goal: an engine keeps what has begun: requests and messages. Method: some of both.
#[test]
fn requests_and_messages_are_kept() {
    let mut engine = lone();
    send_to_self(&mut engine);
    send_to_self(&mut engine);
    engine.serve_own();
    let ids = [7, 8, 9].map(|tag| engine.post_receive(tagged(tag)));
    assert_eq!((engine.kept(), engine.requests.len(), engine.unexpected.wholes()), (5, 3, 2));
    ids.iter().for_each(|id| engine.drop_receive(*id));
    assert_eq!(engine.kept(), 2);
}

/// Goal: there is silent work while something waits that nothing will announce. Method: each thing alone.
#[test]
fn silent_work_is_found() {
    let broken = BrokenPeer { rank: 1, reason: DisconnectReason::TimedOut, until: 9 };
    let changes: [Change; 4] = [
        |_, _| {},
        |engine, _| send_to_self(engine),
        |engine, broken| engine.broken.push(broken),
        |engine, _| engine.list(1),
    ];
    for (case, change) in (0..).zip(changes) {
        let mut engine = lone();
        change(&mut engine, broken);
        assert_eq!(engine.has_silent_work(), case > 0, "{case}");
    }
}

/// Goal: an engine sleeps unless there is work: something ready, its own messages, connections that ended, or
/// events, for which it stays awake once. Method: each thing alone.
#[test]
fn an_engine_sleeps_without_work() {
    let broken = BrokenPeer { rank: 1, reason: DisconnectReason::TimedOut, until: 9 };
    let event = |engine: &mut MessageEngine<SimNic>, _: BrokenPeer| {
        engine.events.push_back(EngineEvent::Connected { rank: 1 });
    };
    let changes: [(Change, [ArmOutcome; 2]); 6] = [
        (|_, _| {}, [ArmOutcome::Armed; 2]),
        (|engine, _| send_to_self(engine), [ArmOutcome::Ready; 2]),
        (|engine, broken| engine.broken.push(broken), [ArmOutcome::Ready; 2]),
        (|engine, _| engine.ready.push(RequestId(1)), [ArmOutcome::Ready; 2]),
        (event, [ArmOutcome::Ready, ArmOutcome::Armed]),
        // Nothing can be asked of a rank without a link.
        (|engine, _| engine.list(1), [ArmOutcome::Armed; 2]),
    ];
    for (case, (change, expected)) in (0..).zip(changes) {
        let mut engine = lone();
        change(&mut engine, broken);
        let found = [(); 2].map(|()| engine.arm().expect("arms"));
        assert_eq!(found, expected, "{case}");
    }
    // Each of several events is reported once, however many were taken meanwhile.
    let mut engine = lone();
    event(&mut engine, broken);
    event(&mut engine, broken);
    assert_eq!(engine.arm().expect("arms"), ArmOutcome::Ready);
    assert!(engine.next_event().is_some());
    assert_eq!(engine.arm().expect("arms"), ArmOutcome::Armed);
    event(&mut engine, broken);
    assert_eq!(engine.arm().expect("arms"), ArmOutcome::Ready);
}

/// Goal: a rank whose connection ended fails when everything that it had sent was taken: when nothing is left, or
/// so many bytes were taken that they must include it. Method: two ranks, at the border.
#[test]
fn a_broken_rank_is_heard_first() {
    let mut engine = lone();
    for (rank, until) in [(1, 5), (2, 6)] {
        engine.broken.push(BrokenPeer { rank, reason: DisconnectReason::TimedOut, until });
    }
    engine.worked = 4;
    assert!(!engine.fail_broken(false) && engine.failures.is_empty());
    engine.worked = 5;
    assert!(engine.fail_broken(false));
    assert_eq!((&engine.failures[..], engine.broken.len()), (&[1][..], 1));
    assert!(!engine.fail_broken(false));
    assert!(engine.fail_broken(true));
    assert_eq!((&engine.failures[..], engine.broken.len()), (&[1, 2][..], 0));
    assert!(!engine.fail_broken(true), "none is left");
    // Also as part of normal progress.
    let mut engine = lone();
    engine.broken.push(BrokenPeer { rank: 1, reason: DisconnectReason::TimedOut, until: 1 << 40 });
    assert!(engine.progress(Instant::from_nanos(1)));
    assert_eq!(engine.failure(1), Some(DisconnectReason::TimedOut));
}

/// Goal: the caller that drives an engine knows whether anything was done. Method: each thing that can be done
/// alone, then nothing; and two at once.
#[test]
fn progress_tells_whether_anything_was_done() {
    let mut pair = Pair::new(EngineConfig { unexpected_bytes_max: 1 << 20, ..small() });
    let now = pair.network.now();
    assert!(!pair.engine(0).progress(now) && !pair.engine(1).progress(now));
    // Messages that arrive.
    pair.fill(3);
    pair.travel(0);
    let now = pair.network.now();
    assert!(pair.engine(1).progress(now) && !pair.engine(1).progress(now));
    assert_eq!(pair.engine(1).unexpected.len(), 3);
    // A message that is sent, now that there is credit.
    pair.fill(17);
    pair.begin(1, SendMode::Standard, 100);
    pair.travel(0);
    let now = pair.network.now();
    assert!(!pair.engine(0).progress(now));
    pair.serve(1);
    let now = pair.network.now();
    assert!(pair.engine(0).progress(now), "it leaves");
    pair.travel(0);
    let now = pair.network.now();
    assert!(!pair.engine(0).progress(now));
    // One arrives and one is sent.
    let sent = pair.engine(1).send(0, 0, 5, SendMode::Standard, Payload::Owned(vec![1]));
    assert_eq!(sent, Ok(SendState::Done));
    pair.travel(1);
    pair.engine(0).peers[1].controls.push_back(Control::Resume);
    pair.engine(0).list(1);
    let now = pair.network.now();
    assert!(pair.engine(0).progress(now), "both");
    assert!(pair.engine(0).peers[1].controls.is_empty() && pair.engine(0).unexpected.len() == 1);
    // A message to itself.
    pair.travel(0);
    send_to_self(pair.engine(0));
    assert!(pair.engine(0).progress(now) && !pair.engine(0).progress(now));
    // Only a limited number at once.
    for _ in 0..BUDGET + 1 {
        send_to_self(pair.engine(1));
    }
    assert!(pair.engine(1).progress(now) && pair.engine(1).has_own());
    assert!(pair.engine(1).progress(now) && !pair.engine(1).has_own());
}

/// Goal: a retransmission over an unreliable VI counts as work, also beside other work. Method: one packet at
/// its deadline, with and without a message that arrives at the same time.
#[test]
fn what_is_sent_again_is_work() {
    for arrives in [false, true] {
        let mut pair = Pair::new(unreliable());
        pair.fill(1);
        let sent = pair.engine(1).send(0, 0, 5, SendMode::Standard, Payload::Owned(vec![1]));
        assert_eq!(sent, Ok(SendState::Done));
        if arrives {
            while pair.network.step() {}
        } else {
            pair.network.set_plan(FaultPlan::reliable().loss(1.0));
            while pair.network.step() {}
            pair.take(0);
        }
        let before = pair.engine(0).error_control_counters(1).expect("a link").retransmissions;
        let due = pair.engine(0).next_deadline().expect("a deadline");
        assert!(pair.engine(0).progress(due));
        let after = pair.engine(0).error_control_counters(1).expect("a link").retransmissions;
        assert_eq!(after - before, 1, "{arrives}");
        assert!(pair.engine(0).error_control_counters(2).is_none());
    }
}

/// Goal: a request that became ready is reported once. Method: take it twice.
#[test]
fn what_is_ready_is_told_once() {
    let mut engine = lone();
    engine.ready.push(RequestId(4));
    let mut ready = vec![RequestId(3)];
    for _ in 0..2 {
        engine.take_ready(&mut ready);
        assert_eq!(ready, [RequestId(3), RequestId(4)]);
    }
}

/// Goal: a rank is listed once while something waits for it, and not after it has failed. Method: list it.
#[test]
fn a_rank_is_listed_once() {
    let mut engine = lone();
    engine.list(1);
    engine.list(1);
    engine.touch(2);
    engine.touch(2);
    assert_eq!((&engine.listed[..], &engine.touched[..]), (&[1][..], &[2][..]));
    assert!(!engine.flush() && engine.listed.is_empty());
    engine.peers[1].failed = Some(DisconnectReason::TimedOut);
    engine.list(1);
    assert!(engine.listed.is_empty());
}
