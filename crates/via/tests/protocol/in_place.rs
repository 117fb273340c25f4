//! Messages that are written, read or fetched in place, between NICs whose memory is mapped at the peer.

use std::task::Poll;

use crate::cluster::{Cluster, bytes_of, from};
use vigie_detect::ArmOutcome;
use vigie_via::{
    protocol::{Committed, EngineConfig, Loan, Payload, RequestId, SendError, SendMode, SendState},
    sim::FaultPlan,
    vi::{Memory, MemoryAttributes, NicAttributes, Provider, RemoteKey},
};

fn pair(has_window: bool) -> Cluster {
    let mut attributes = NicAttributes::named("sim");
    attributes.has_window = has_window;
    let config = EngineConfig::default().area_bytes(16 << 10).frame_bytes_max(4 << 10);
    Cluster::with(1, FaultPlan::reliable(), 2, config, attributes)
}

fn filled(cluster: &mut Cluster, body: &[u8]) -> Loan {
    let length = u32::try_from(body.len()).expect("short");
    let loan = cluster.engine(0).loan(1, length).expect("a loan");
    for (index, piece) in body.chunks(100).enumerate() {
        loan.write(index as u64 * 100, piece).expect("inside");
    }
    assert!(loan.write(u64::from(length), &[1]).is_err(), "outside");
    loan
}

fn commit(cluster: &mut Cluster, loan: Loan, tag: u32) {
    match cluster.engine(0).commit(loan, 0, tag).expect("the rank is there") {
        Committed::Done => {}
        other => panic!("{other:?}"),
    }
}

/// Goal: a loan is written in place and arrives whole, any number of times; without a mapping it is
/// copied. Method: lengths up to half the area, through wraps, received by copy and by view.
#[test]
fn a_loan_is_sent_without_a_copy() {
    for has_window in [true, false] {
        let mut cluster = pair(has_window);
        for number in 0..100_u64 {
            let body = bytes_of(number, usize::try_from(number * 37 % 4000).expect("small"));
            let loan = filled(&mut cluster, &body);
            assert_eq!(loan.is_in_place(), has_window);
            commit(&mut cluster, loan, 7);
            assert!(cluster.receive(1, from(0, 7)).1 == body, "message {number}");
        }
        // Half the area, without the envelope and what is before it.
        let limit = (8 << 10) - 64;
        let loan = cluster.engine(0).loan(1, limit + 1).expect("a loan");
        assert!(!loan.is_in_place(), "it is too long for that");
        cluster.engine(0).give_back(loan);
    }
}

/// Sends a loan to rank 1 and receives it there.
fn deliver(cluster: &mut Cluster, body: &[u8]) {
    let loan = filled(cluster, body);
    let committed = cluster.engine(0).commit(loan, 0, 3).expect("the rank is there");
    assert!(cluster.receive(1, from(0, 3)).1 == body, "{} bytes", body.len());
    cluster.settle();
    match committed {
        Committed::Done => {}
        Committed::Pending(id) => {
            assert_eq!(cluster.engine(0).poll_send(id, None), Poll::Ready(Ok(())));
        }
        Committed::Busy(loan) => panic!("{loan:?}"),
    }
}

/// Goal: loans that do not fit the area are sent in one copy from reusable buffers; without a mapping,
/// and to oneself, by frames. Method: many of them one after the other, and several at once; count
/// buffers and reads.
#[test]
fn long_loans_come_from_a_pool() {
    for has_window in [true, false] {
        let mut cluster = pair(has_window);
        for number in 0..20 {
            deliver(&mut cluster, &bytes_of(number, 20_000 + 600 * usize::from(number % 2 == 0)));
        }
        let counters = cluster.engine(0).registrations().counters();
        let expected = if has_window { (1, 19) } else { (0, 0) };
        assert_eq!((counters.allocations, counters.reuses), expected);
        assert_eq!(cluster.engine(1).counters().remote_reads, if has_window { 20 } else { 0 });
        let open: Vec<Loan> =
            (0..3).map(|one| filled(&mut cluster, &bytes_of(one, 30_000))).collect();
        let counters = cluster.engine(0).registrations().counters();
        assert_eq!(counters.allocations, if has_window { 3 } else { 0 }, "each has its own");
        for loan in open {
            cluster.engine(0).give_back(loan);
        }
        let own = cluster.engine(0).loan(0, 50_000).expect("a loan to oneself");
        assert!(!own.is_in_place());
        cluster.engine(0).give_back(own);
        cluster.settle();
        assert_eq!(cluster.engine(0).clear_registrations(), if has_window { 3 } else { 0 });
        deliver(&mut cluster, &bytes_of(1, 30_000));
        assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0));
    }
}

fn send_memory(cluster: &mut Cluster, memory: &Memory, length: u64) -> RequestId {
    let payload = Payload::Memory { memory: memory.clone(), offset: 10, length };
    let sent = cluster.engine(0).send(1, 0, 1, SendMode::Standard, payload);
    let SendState::Pending(id) = sent.expect("begins") else { panic!("not yet received") };
    id
}

/// Goal: user memory is registered once for many long messages, not at all for short ones, and no longer
/// after its last user has dropped it; a message whose memory is deregistered half way is still sent.
/// Method: count.
#[test]
fn memory_is_registered_once() {
    let mut cluster = pair(true);
    let body = bytes_of(3, 60_010);
    let memory = Memory::allocate(body.len()).expect("memory");
    memory.write(0, &body).expect("inside");
    let short = Payload::Memory { memory: memory.clone(), offset: 1, length: 100 };
    let sent = cluster.engine(0).send(1, 0, 1, SendMode::Standard, short).expect("begins");
    assert_eq!(sent, SendState::Done);
    assert!(cluster.receive(1, from(0, 1)).1 == body[1..101]);
    let beyond = Payload::Memory { memory: memory.clone(), offset: 11, length: 60_000 };
    let error = cluster.engine(0).send(1, 0, 1, SendMode::Standard, beyond);
    assert_eq!(error, Err(SendError::OutOfBounds { offset: 11, length: 60_000 }));
    assert!(cluster.engine(0).registrations().is_empty(), "short messages need none");
    for _ in 0..10 {
        let id = send_memory(&mut cluster, &memory, 60_000);
        assert_eq!(cluster.engine(0).clear_registrations(), 0, "it is in use");
        assert!(cluster.receive(1, from(0, 1)).1 == body[10..]);
        cluster.settle();
        assert_eq!(cluster.engine(0).poll_send(id, None), Poll::Ready(Ok(())));
    }
    let counters = cluster.engine(0).registrations().counters();
    assert_eq!((counters.misses, counters.hits), (1, 9));
    assert_eq!(cluster.engine(1).counters().remote_reads, 10);

    let id = send_memory(&mut cluster, &memory, 60_000);
    cluster.settle();
    let handle = cluster.engine(0).registrations().handles().next().expect("it is registered");
    cluster.engine(0).deregister(handle).expect("it is registered");
    assert!(cluster.receive(1, from(0, 1)).1 == body[10..], "sent after all");
    cluster.settle();
    assert_eq!(cluster.engine(0).poll_send(id, None), Poll::Ready(Ok(())));
    assert_eq!(cluster.engine(1).counters().remote_reads, 10, "not by its key");

    let id = send_memory(&mut cluster, &memory, 60_000);
    drop(memory);
    assert!(cluster.receive(1, from(0, 1)).1 == body[10..], "the request holds it");
    cluster.settle();
    assert_eq!(cluster.engine(0).poll_send(id, None), Poll::Ready(Ok(())));
    assert_eq!(cluster.engine(0).arm().expect("arms"), ArmOutcome::Armed);
    assert!(cluster.engine(0).registrations().is_empty(), "no other holder");
    let counters = cluster.engine(0).registrations().counters();
    assert_eq!((counters.misses, counters.abandoned, counters.invalidations), (2, 1, 1));
}

/// Goal: a message sent while a loan is open neither waits for the loan nor damages it. Method: several
/// loans, with messages between; committed in another order, one given back.
#[test]
fn a_loan_may_be_overtaken() {
    let mut cluster = pair(true);
    for round in 0..50 {
        let bodies: Vec<Vec<u8>> = (0..3).map(|one| bytes_of(round * 3 + one, 700)).collect();
        let first = filled(&mut cluster, &bodies[0]);
        assert_eq!(cluster.send(0, 1, 1, SendMode::Standard, &bodies[1]), SendState::Done);
        let second = filled(&mut cluster, &bodies[2]);
        let third = filled(&mut cluster, &bodies[1]);
        assert!(cluster.receive(1, from(0, None)).1 == bodies[1]);
        cluster.settle();
        commit(&mut cluster, second, 2);
        commit(&mut cluster, first, 3);
        cluster.engine(0).give_back(third);
        assert!(cluster.receive(1, from(0, None)).1 == bodies[2]);
        assert!(cluster.receive(1, from(0, None)).1 == bodies[0]);
        let last = filled(&mut cluster, &bodies[0]);
        cluster.engine(0).give_back(last);
        cluster.settle();
    }
    assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0));
}

/// Goal: a view reads the message in place, its sender waits for the space, and other messages pass.
/// Method: keep views until the area is full; release them in another order.
#[test]
fn a_view_is_released_in_any_order() {
    let mut cluster = pair(true);
    for round in 0..20 {
        let bodies: Vec<Vec<u8>> = (0..4).map(|one| bytes_of(round * 4 + one, 1500)).collect();
        for body in &bodies {
            assert_eq!(cluster.send(0, 1, 5, SendMode::Standard, body), SendState::Done, "{round}");
        }
        while cluster.network.step() {}
        let mut views = Vec::new();
        for body in &bodies {
            let (status, view) = cluster.engine(1).try_recv_view(from(0, 5)).expect("arrived");
            let mut found = vec![0; 1500];
            view.read(0, &mut found).expect("inside");
            assert!(found == *body && status.length == 1500);
            assert!(view.read(1, &mut found).is_err(), "outside");
            views.push(view);
        }
        for index in [2, 0, 1, 0] {
            let view = views.remove(index);
            cluster.engine(1).release(view);
        }
        cluster.settle();
    }
}

fn send_region(cluster: &mut Cluster, body: &[u8]) -> SendState {
    let engine = cluster.engine(0);
    let mut attributes = MemoryAttributes::private(engine.tag(1).expect("a rank"));
    attributes.allows_read = true;
    let region = engine.nic_mut().allocate(body.len() + 10, attributes).expect("memory");
    region.memory.write(10, body).expect("inside");
    let length = body.len() as u64;
    let payload = Payload::Region { region: region.clone(), offset: 10, length };
    let error =
        engine.send(1, 0, 1, SendMode::Standard, Payload::Region { region, offset: 11, length });
    assert_eq!(error, Err(SendError::OutOfBounds { offset: 11, length }));
    engine.send(1, 0, 1, SendMode::Standard, payload).expect("begins")
}

/// Goal: a message in registered memory is fetched in one copy if it is mapped, and otherwise sent; its
/// owner gets it back when the receiver has it. Method: both, into a buffer that is large enough and one
/// that is not.
#[test]
fn registered_memory_is_fetched_by_its_receiver() {
    for has_window in [true, false] {
        for room in [100_000, 10] {
            let mut cluster = pair(has_window);
            let body = bytes_of(1, 100_000);
            let SendState::Pending(sending) = send_region(&mut cluster, &body) else {
                panic!("not yet received")
            };
            cluster.settle();
            assert_eq!(cluster.engine(0).poll_send(sending, None), Poll::Pending);
            let id = cluster.engine(1).post_receive(from(0, 1));
            let mut found = vec![0; room];
            let status = cluster.receive_into(1, id, &mut found[..]).expect("received");
            assert_eq!((status.length, status.is_truncated()), (100_000, room == 10));
            assert!(found == body[..room]);
            assert_eq!(cluster.engine(1).counters().remote_reads, u64::from(has_window));
            cluster.settle();
            assert_eq!(cluster.engine(0).poll_send(sending, None), Poll::Ready(Ok(())));
            cluster.settle();
            assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0));
        }
    }
}

/// Goal: a key that is not the sender's, or was revoked, reveals nothing. Method: deregister the memory
/// before the receiver comes; the message is sent by its owner instead, from memory that it still holds.
#[test]
fn a_revoked_key_is_not_used() {
    let mut cluster = pair(true);
    let body = bytes_of(2, 50_000);
    let SendState::Pending(sending) = send_region(&mut cluster, &body) else {
        panic!("not yet received")
    };
    cluster.settle();
    let handles = (0..1000).map(vigie_via::vi::MemoryHandle);
    let newest = handles.filter(|one| cluster.engine(0).nic_mut().deregister(*one).is_ok()).last();
    assert!(newest.is_some());
    assert!(cluster.engine(1).nic().window(vigie_via::vi::ViId(0), RemoteKey(0)).is_none());
    let id = cluster.engine(1).post_receive(from(0, 1));
    let mut found = Vec::new();
    let received = cluster.receive_into(1, id, &mut found);
    assert_eq!(cluster.engine(1).counters().remote_reads, 0);
    // All of the rank's memory is inaccessible, so its connection breaks: the error names it.
    assert!(received.is_err() || found == body, "{received:?}");
    cluster.settle();
    assert!(cluster.engine(0).poll_send(sending, None).is_ready());
}

/// Goal: a loan may be anywhere in the area, up to its last byte. Method: loans that divide the area,
/// four times round.
#[test]
fn a_loan_reaches_the_end_of_the_area() {
    let mut cluster = pair(true);
    for number in 0..64 {
        let body = bytes_of(number, 1024 - 16);
        let loan = filled(&mut cluster, &body);
        assert!(loan.is_in_place(), "{number}");
        commit(&mut cluster, loan, 1);
        assert!(cluster.receive(1, from(0, 1)).1 == body, "message {number}");
        cluster.settle();
    }
}

/// Goal: a loan that is given back frees its space, whether or not something was sent meanwhile. Method:
/// far more of them than the area holds.
#[test]
fn a_loan_that_is_given_back_costs_nothing() {
    for is_overtaken in [false, true] {
        let mut cluster = pair(true);
        for number in 0..100_u8 {
            let loan = cluster.engine(0).loan(1, 3000).expect("a loan");
            assert!(loan.is_in_place(), "{number}");
            assert!(!cluster.engine(0).loan(1, 10).expect("a loan").is_in_place(), "one at a time");
            if is_overtaken {
                assert_eq!(cluster.send(0, 1, 1, SendMode::Standard, &[number]), SendState::Done);
            }
            cluster.engine(0).give_back(loan);
            if is_overtaken {
                assert_eq!(cluster.receive(1, from(0, 1)).1, [number]);
                cluster.settle();
            }
        }
        assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0));
    }
}

/// Goal: memory is registered for messages of more than one frame, but not for those of one. Method: the
/// longest frame, and one byte more.
#[test]
fn one_frame_needs_no_registration() {
    let mut cluster = pair(true);
    let body = bytes_of(5, 4096);
    let memory = Memory::allocate(body.len()).expect("memory");
    memory.write(0, &body).expect("inside");
    for (length, is_registered) in [(4096 - 16, false), (4096 - 15, true)] {
        let payload = Payload::Memory { memory: memory.clone(), offset: 0, length };
        let sent = cluster.engine(0).send(1, 0, 1, SendMode::Standard, payload).expect("begins");
        assert_eq!(sent != SendState::Done, is_registered);
        assert_eq!(cluster.engine(0).registrations().is_empty(), !is_registered);
        let length = usize::try_from(length).expect("short");
        assert!(cluster.receive(1, from(0, 1)).1 == body[..length]);
        assert_eq!(cluster.engine(1).counters().remote_reads, u64::from(is_registered));
    }
}

/// Goal: long messages are fetched piece by piece, into buffers of any length. Method: a message of more
/// than two pieces, into a buffer for all of it and into shorter ones, which end within a piece and
/// between two.
#[test]
fn long_messages_are_fetched_in_pieces() {
    const LENGTH: usize = (5 << 20) / 2;
    let body = bytes_of(6, LENGTH);
    for room in [LENGTH, 2 << 20, (1 << 20) + 7] {
        let mut cluster = pair(true);
        assert!(matches!(send_region(&mut cluster, &body), SendState::Pending(_)));
        let id = cluster.engine(1).post_receive(from(0, 1));
        let mut found = vec![0; room];
        let status = cluster.receive_into(1, id, &mut found[..]).expect("received");
        assert_eq!((status.length, status.is_truncated()), (LENGTH as u64, room < LENGTH));
        assert!(found == body[..room], "{room}");
        assert_eq!(cluster.engine(1).counters().remote_reads, 1);
    }
}
