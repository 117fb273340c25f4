//! A reliable link without the engines that drive it: credits, notices, staging buffers.

use std::task::Poll;

use super::*;
use crate::{
    protocol::{
        EngineConfig, MessageEngine, Opening, SendMode, SendState,
        peer::PeerLink,
        tests::{Pair, small, tagged},
    },
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{MemoryAttributes, NicAttributes},
};

/// Returns an engine's link to the other rank, and what it needs.
fn parts(engine: &mut MessageEngine<SimNic>) -> (&mut ReliableLink, &mut SimNic, &mut Staging) {
    let other = 1 - engine.rank as usize;
    let MessageEngine { nic, staging, peers, .. } = engine;
    let PeerLink::Reliable(link) = &mut peers[other].link else { panic!("another kind of link") };
    (link, nic, staging)
}

fn direct(pair: &mut Pair, rank: usize) -> &mut ReliableLink {
    parts(pair.engine(rank)).0
}

/// Returns how many descriptors rank 0 may still use.
fn left(pair: &mut Pair) -> u32 {
    direct(pair, 0).descriptors_out.left()
}

/// Writes rank 0's credits, as its peer would.
fn give(pair: &mut Pair, area: u32, descriptors: u32, controls: u32) {
    let word = Returned { area, descriptors, controls }.pack();
    direct(pair, 0).control.memory.store(CREDIT_WORD, word).expect("inside");
}

/// Sends a frame of `length` bytes that its receiver will never read.
fn send_frame(pair: &mut Pair, length: u32) -> SendOutcome {
    let bytes = vec![7; length as usize];
    let (link, nic, staging) = parts(pair.engine(0));
    link.send_frame(nic, staging, &[IoSlice::new(&bytes)], length)
}

fn send_control(pair: &mut Pair) -> SendOutcome {
    let (link, nic, _) = parts(pair.engine(0));
    link.send_control(nic, Control::Resume)
}

/// Takes all staging buffers.
fn take_buffers(staging: &mut Staging) -> Vec<u64> {
    std::iter::from_fn(|| staging.stage(&[], 0, 0, Some(MemoryHandle(0))))
        .map(|(cookie, _)| cookie)
        .collect()
}

fn free(staging: &mut Staging) -> usize {
    let taken = take_buffers(staging);
    taken.iter().for_each(|cookie| staging.give_back(*cookie));
    taken.len()
}

/// Goal: immediates are those of the wire, a control region has room for its words and its entries, and a cookie
/// names its rank, with and without a buffer. Method: small and large numbers.
#[test]
fn regions_and_cookies() {
    assert_eq!((CONTROL_IMMEDIATE, CREDIT_REQUEST_IMMEDIATE), (0x4000_0000, 0x4000_0001));
    assert_eq!([4, 8, 1024].map(control_region_bytes), [192, 320, 32_832]);
    for rank in [0, 1, 2, 77, (1 << 24) - 1] {
        let cookie = cookie_of(rank);
        assert_eq!((cookie >> 32, cookie & 0xffff_ffff), (rank.into(), 0));
        for more in [0, 5, COOKIE_STAGED, COOKIE_STAGED | 0xffff_ffff] {
            assert_eq!(rank_of(cookie | more), rank, "{more:x}");
        }
    }
}

/// Goal: a frame that is too long to be sent inline is copied to its own buffer, up to the buffer's length, and
/// no buffer is lost. Method: two buffers, filled from slices, refused and given back.
#[test]
fn frames_are_staged() {
    let mut nic = SimNetwork::new(1, FaultPlan::reliable()).nic();
    let tag = nic.create_tag();
    let region = nic.allocate(128, MemoryAttributes::private(tag)).expect("memory");
    let mut staging = Staging::new(region.clone(), 64, 2, 32);
    let memory = Some(region.handle);
    assert!(staging.stage(&[], 0, 0, None).is_none(), "no VI may name them");
    assert!(!staging.is_needed(32) && staging.is_needed(33));
    assert!(staging.stage(&[IoSlice::new(&[1; 65])], 65, 0, memory).is_none(), "too long");
    for (number, offset) in [(0, 0), (1, 64)] {
        let slices = [IoSlice::new(&[3; 40]), IoSlice::new(&[4; 24])];
        let (cookie, segment) = staging.stage(&slices, 64, cookie_of(7), memory).expect("a buffer");
        assert_eq!(cookie, (1 << 63) + (7 << 32) + number);
        assert_eq!((segment.offset, segment.length), (offset, 64));
        let bytes = region.memory.read_to_vec(offset, 64).expect("inside");
        assert_eq!((&bytes[..40], &bytes[40..]), (&[3; 40][..], &[4; 24][..]));
    }
    assert!(staging.stage(&[], 0, 0, memory).is_none(), "both are taken");
    staging.give_back(COOKIE_STAGED | 1);
    assert_eq!(staging.stage(&[], 0, 0, memory).map(|(_, segment)| segment.offset), Some(64));
}

/// Goal: some descriptors are kept for control entries and notices, whatever is sent, and no more entries are sent
/// than the peer has. Method: frames, entries and a notice, until none can be sent; count what is left.
#[test]
fn descriptors_are_kept_for_bells() {
    let mut pair = Pair::new(small());
    let sent = (0..100).take_while(|_| send_frame(&mut pair, 16) == SendOutcome::Done).count();
    assert_eq!((sent, left(&mut pair)), (20, 12));
    let sent = (0..100).take_while(|_| send_control(&mut pair) == SendOutcome::Done).count();
    assert_eq!((sent, left(&mut pair)), (8, 4));
    assert_eq!(pair.travel(0), 28);
    for count in [1, 0] {
        let (link, nic, _) = parts(pair.engine(0));
        assert_eq!(link.request_credit(nic), SendOutcome::Done);
        assert_eq!((pair.travel(0), left(&mut pair)), (count, 3), "one wish is enough");
    }
    // Something was given back, but not what is missing.
    give(&mut pair, 20, 0, 0);
    assert_eq!(send_frame(&mut pair, 16), SendOutcome::Blocked);
    give(&mut pair, 20, 9, 0);
    assert_eq!(send_frame(&mut pair, 16), SendOutcome::Blocked, "twelve are kept");
    assert_eq!(send_control(&mut pair), SendOutcome::Blocked, "no entry came back");
    give(&mut pair, 20, 10, 1);
    assert_eq!(send_frame(&mut pair, 16), SendOutcome::Done);
    assert_eq!(send_control(&mut pair), SendOutcome::Done);
    assert_eq!(send_control(&mut pair), SendOutcome::Blocked);
}

/// Goal: neither notices nor entries are sent without a descriptor, and news of one is polled for. Method: none
/// left, in turn without news, with other news, and with one.
#[test]
fn a_bell_needs_a_descriptor() {
    let mut pair = Pair::new(small());
    let (link, nic, _) = parts(pair.engine(0));
    link.controls_out.take();
    link.descriptors_out = Allowance::new(1);
    assert_eq!(link.has_descriptor(), Ok(true));
    link.descriptors_out.take();
    assert_eq!(link.has_descriptor(), Ok(false));
    assert_eq!(
        (link.request_credit(nic), link.has_requested_credit),
        (SendOutcome::Blocked, false)
    );
    assert_eq!(send_control(&mut pair), SendOutcome::Blocked);
    assert_eq!(pair.travel(0), 0);
    give(&mut pair, 0, 0, 1);
    assert_eq!(direct(&mut pair, 0).has_descriptor(), Ok(false), "an entry is no descriptor");
    give(&mut pair, 0, 1, 1);
    assert_eq!(direct(&mut pair, 0).has_descriptor(), Ok(true));
    assert_eq!(send_control(&mut pair), SendOutcome::Done);
    give(&mut pair, 0, 3, 1);
    assert!(direct(&mut pair, 0).has_descriptor().is_err(), "more than was used");
    assert!(matches!(send_control(&mut pair), SendOutcome::Fault(_)));
}

/// Goal: credits are news once; a peer that gives back more than it got is detected. Method: words one after
/// the other.
#[test]
fn credits_are_news_once() {
    let mut pair = Pair::new(small());
    assert_eq!(direct(&mut pair, 0).refresh(), Ok(false));
    assert_eq!(send_frame(&mut pair, 100), SendOutcome::Done);
    give(&mut pair, 2, 1, 0);
    assert_eq!(direct(&mut pair, 0).refresh(), Ok(true));
    assert_eq!(direct(&mut pair, 0).refresh(), Ok(false));
    give(&mut pair, 2, 2, 0);
    assert!(direct(&mut pair, 0).refresh().is_err());
}

/// Goal: the owners of stalled messages are told as soon as a frame may find credit, and not before. Method:
/// each thing that can be missing.
#[test]
fn room_is_credit_and_a_buffer() {
    let mut pair = Pair::new(small());
    let has_room = |pair: &mut Pair, length: u32| {
        let (link, _, staging) = parts(pair.engine(0));
        link.has_room(length, staging)
    };
    assert!(has_room(&mut pair, 512));
    let taken = take_buffers(parts(pair.engine(0)).2);
    assert_eq!(taken.len(), 2);
    assert!(!has_room(&mut pair, 512) && has_room(&mut pair, 256), "that goes inline");
    taken.iter().for_each(|cookie| parts(pair.engine(0)).2.give_back(*cookie));
    let all = direct(&mut pair, 0).descriptors_out;
    direct(&mut pair, 0).descriptors_out = Allowance::new(12);
    assert!(!has_room(&mut pair, 16), "those are kept");
    direct(&mut pair, 0).descriptors_out = Allowance::new(13);
    assert!(has_room(&mut pair, 16));
    direct(&mut pair, 0).descriptors_out = all;
    // Nine frames of seven units leave one.
    for _ in 0..9 {
        assert_eq!(send_frame(&mut pair, 400), SendOutcome::Done);
        pair.travel(0);
        pair.take(0);
    }
    assert!(!has_room(&mut pair, 65) && has_room(&mut pair, 64));
    give(&mut pair, 7, 0, 0);
    let taken = take_buffers(parts(pair.engine(0)).2);
    assert!(!has_room(&mut pair, 400), "news, and no buffer");
    taken.iter().for_each(|cookie| parts(pair.engine(0)).2.give_back(*cookie));
    assert!(has_room(&mut pair, 400));
    give(&mut pair, 100, 0, 0);
    direct(&mut pair, 0).writer.take(400);
    assert!(has_room(&mut pair, 400), "the fault shows when something is sent");
    assert!(matches!(send_frame(&mut pair, 400), SendOutcome::Fault(_)));
}

/// Goal: a frame that finds a buffer and no descriptor of the queue keeps neither the buffer nor its place in
/// the area. Method: a full queue.
#[test]
fn a_full_queue_costs_nothing() {
    let mut attributes = NicAttributes::named("sim");
    attributes.descriptors_max = 32;
    let mut pair = Pair::with(EngineConfig::default(), attributes);
    let (link, nic, _) = parts(pair.engine(0));
    let sent = (0..100)
        .take_while(|_| link.write_word(nic, CREDIT_REQUEST_WORD, 0, None) == SendOutcome::Done);
    assert_eq!(sent.count(), 32);
    let before = (left(&mut pair), direct(&mut pair, 0).writer.outstanding());
    for length in [20, 400] {
        assert_eq!(send_frame(&mut pair, length), SendOutcome::Blocked);
        let after = (left(&mut pair), direct(&mut pair, 0).writer.outstanding());
        assert_eq!((after, free(parts(pair.engine(0)).2)), (before, 16));
    }
}

/// Goal: credits that are found while a place is sought are kept, though the NIC takes no frame. Method: an area that is full until its credits
/// come, and a full queue; then room for as much as they are.
#[test]
fn credits_outlast_a_full_queue() {
    for is_headed in [false, true] {
        let mut attributes = NicAttributes::named("sim");
        attributes.descriptors_max = 32;
        let mut pair = Pair::with(small(), attributes);
        let (link, nic, _) = parts(pair.engine(0));
        while link.write_word(nic, CREDIT_REQUEST_WORD, 0, None) == SendOutcome::Done {}
        while link.writer.take(400).is_some() {}
        let taken = link.writer.outstanding();
        give(&mut pair, taken, 0, 0);
        if is_headed {
            let (link, nic, _) = parts(pair.engine(0));
            assert!(!link.send_headed(nic, 7, &[1; 384]));
        } else {
            assert_eq!(send_frame(&mut pair, 400), SendOutcome::Blocked);
        }
        assert_eq!(direct(&mut pair, 0).writer.outstanding(), 0, "all was given back");
    }
}

/// Goal: credits are due when a quarter of something has gathered. Method: one less than that and that, of
/// descriptors, area and entries.
#[test]
fn credits_are_due_by_quarters() {
    let mut pair = Pair::new(small());
    let link = direct(&mut pair, 1);
    assert!(!link.is_due());
    for (unposted, is_due) in [(7, false), (8, true), (0, false)] {
        link.unposted = unposted;
        assert_eq!(link.is_due(), is_due, "{unposted}");
    }
    for (controls, is_due) in [(1, false), (2, true), (0, false)] {
        link.returned.controls = controls;
        assert_eq!(link.is_due(), is_due, "{controls}");
    }
    for (units, is_due) in [(15, false), (1, true), (1, true)] {
        assert!(link.find(units * 64).is_some());
        link.reader.release();
        assert_eq!(link.is_due(), is_due, "{units}");
    }
    link.published.area = 10;
    assert!(!link.is_due(), "most of it was told");
}

/// Goal: credits are given back if the peer waits for them, if much has gathered, or before a sleep, and only
/// then; with a notice if the peer waits. Method: all eight cases, twice each.
#[test]
fn credits_are_given_back_when_they_should_be() {
    for case in 0..8 {
        let (is_forced, is_wished, is_due) = (case & 1 > 0, case & 2 > 0, case & 4 > 0);
        let mut pair = Pair::new(small());
        (0..8).for_each(|_| direct(&mut pair, 0).descriptors_out.take());
        let own = direct(&mut pair, 1);
        own.unposted = if is_due { 8 } else { 1 };
        if is_wished {
            own.credit_requested();
        }
        assert_eq!(own.owes(), is_wished);
        for is_new in [true, false] {
            pair.engine(1).return_credits(0, is_forced);
            let is_told = is_new && case > 0;
            assert_eq!(pair.travel(1), u64::from(is_told), "{case}");
            assert_eq!(pair.take(0), usize::from(is_told && is_wished), "{case}");
            let word = direct(&mut pair, 0).control.memory.load(CREDIT_WORD).expect("inside");
            let count = if is_due { 8 } else { 1 };
            let published = Returned { descriptors: count, ..Returned::default() }.pack();
            assert_eq!(word, if case > 0 { published } else { 0 }, "{case}");
            assert!(!direct(&mut pair, 1).owes() || case == 0);
        }
    }
}

/// Goal: a peer that falls asleep is notified of credit that it was given before without a notice, and not
/// when there is none. Method: a credit request before and after credits were given back.
#[test]
fn a_wish_is_answered_at_once_if_there_was_credit() {
    let mut pair = Pair::new(small());
    (0..9).for_each(|_| direct(&mut pair, 0).descriptors_out.take());
    direct(&mut pair, 1).credit_requested();
    pair.engine(1).return_credits(0, false);
    assert_eq!((pair.travel(1), direct(&mut pair, 1).owes()), (0, true));
    direct(&mut pair, 1).unposted = 1;
    pair.engine(1).return_credits(0, false);
    assert_eq!((pair.travel(1), pair.take(0), direct(&mut pair, 1).owes()), (1, 1, false));
    direct(&mut pair, 1).unposted = 8;
    pair.engine(1).return_credits(0, false);
    assert_eq!((pair.travel(1), pair.take(0)), (1, 0), "no side waits");
    direct(&mut pair, 1).credit_requested();
    pair.engine(1).return_credits(0, false);
    assert_eq!((pair.travel(1), pair.take(0)), (1, 1), "it may not have seen that");
}

/// Goal: a side without credit sleeps and is notified as soon as there is some, each time. Method: fill the area
/// and fall asleep, twice; the peer takes a message and does not sleep.
#[test]
fn a_sleeper_is_rung_for_credit() {
    let mut pair = Pair::new(EngineConfig { unexpected_bytes_max: 1 << 20, ..small() });
    for round in 0..2 {
        let mut sent = 0;
        let id = loop {
            match pair.send(5, SendMode::Standard, 200) {
                SendState::Done => sent += 1,
                SendState::Pending(id) => break id,
            }
        };
        assert_eq!(sent, 16);
        let _ = pair.engine(0).arm().expect("arms");
        assert!(direct(&mut pair, 0).has_requested_credit);
        pair.travel(0);
        // The credit request comes after all messages; earlier credits were given without a notice.
        pair.take(1);
        pair.travel(1);
        assert!(pair.take(0) > 0, "{round}: it was rung");
        assert!(!direct(&mut pair, 0).has_requested_credit);
        assert_eq!(pair.request(id).result, Some(Ok(())));
        assert_eq!(pair.engine(0).poll_send(id, None), Poll::Ready(Ok(())));
        pair.serve(1);
        pair.serve(0);
        let receives = (0..100).map(|_| pair.engine(1).try_recv(tagged(5), &mut Vec::new()));
        assert_eq!(receives.take_while(Option::is_some).count(), 17);
        pair.serve(1);
        pair.serve(0);
    }
}

/// Goal: now and then, a quarter of the queue at once, a descriptor is signaled to show that the queue moves.
/// Method: count completions of the sender; as many staging buffers are free as before.
#[test]
fn one_descriptor_in_a_quarter_is_signaled() {
    let mut attributes = NicAttributes::named("sim");
    attributes.descriptors_max = 64;
    let mut pair = Pair::with(EngineConfig::default(), attributes);
    assert_eq!(direct(&mut pair, 0).signal_every, 16);
    for (count, completions) in [(15, 0), (1, 1), (15, 0), (1, 1)] {
        pair.fill(count);
        pair.travel(0);
        assert_eq!(pair.take(0), completions);
    }
    assert_eq!(free(parts(pair.engine(0)).2), 16);
}

/// Goal: the peer fills no more of a reserved piece than was reserved. Method: a piece that was reserved
/// under a message, requested with its length and one byte more.
#[test]
fn a_reserved_piece_has_its_length() {
    for more in [0, 1] {
        let mut attributes = NicAttributes::named("sim");
        attributes.has_window = true;
        let mut pair = Pair::with(small(), attributes);
        let loan = pair.engine(0).loan(1, 100).expect("a loan");
        assert!(loan.is_in_place());
        pair.fill(1);
        pair.travel(0);
        pair.take(1);
        let opening = Opening { total: 100 + more, ..Opening::default() };
        assert_eq!(pair.engine(1).reserved_at(0, &opening).is_some(), more == 0);
        assert!(pair.engine(1).reserved_at(0, &opening).is_none(), "it is taken off the list");
        pair.engine(0).give_back(loan);
    }
}
