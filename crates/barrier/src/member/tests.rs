use super::*;
use crate::{algorithm::Algorithm, group::Group, packet::GroupId, reduction::Reduction};

fn members(algorithm: Algorithm, size: u32, config: &MemberConfig) -> Vec<Member> {
    let group = Group::new(size).expect("a size");
    let schedule = Arc::new(algorithm.schedule(group).expect("suits"));
    let new = |rank| Member::new(Arc::clone(&schedule), rank, config.clone());
    group.ranks().map(|rank| new(rank).expect("a member")).collect()
}

const NOW: Instant = Instant::from_nanos(1);

/// Carries packets until no more are sent; those for which `is_lost` of sender, receiver and packet is true are lost.
fn carry(members: &mut [Member], is_lost: impl Fn(usize, usize, &[u8]) -> bool) {
    let mut is_quiet = false;
    while !is_quiet {
        is_quiet = true;
        for sender in 0..members.len() {
            while let Some(transmit) = members[sender].poll_transmit() {
                is_quiet = false;
                for (receiver, member) in members.iter_mut().enumerate() {
                    let is_for = match transmit.to {
                        Target::Member(rank) => rank.index() == receiver,
                        Target::Everyone => receiver != sender,
                    };
                    if is_for && !is_lost(sender, receiver, &transmit.packet) {
                        // What is of no use is dropped.
                        let _ = member.receive(NOW, &transmit.packet);
                    }
                }
            }
        }
    }
}

/// Goal: epochs go round the corner of their 32 bits. Method: six barriers of members that begin three before it; in
/// each, one misses the exit, and asks a master that is one epoch further.
#[test]
fn epochs_go_round_the_corner() {
    let mut members = members(Algorithm::BINARY, 4, &MemberConfig::new(GroupId(1)));
    for member in &mut members {
        member.epoch = u32::MAX - 2;
    }
    for ahead in 0..6_u32 {
        let epoch = (u32::MAX - 2).wrapping_add(ahead);
        for member in &mut members {
            member.enter(NOW, &[]).expect("outside");
        }
        // Rank 3 misses the master's multicast, and the master and all others go on without it.
        carry(&mut members, |_, receiver, packet| receiver == 3 && packet[3] == 1);
        let exited = Some(Event::Exited { epoch, value: Vec::new() });
        for member in &mut members[..3] {
            assert_eq!(member.poll_event(), exited);
        }
        assert!(members[3].is_inside() && members[3].poll_event().is_none());
        let due = members[3].next_deadline().expect("waits");
        members[3].handle_deadline(due);
        carry(&mut members, |_, _, _| false);
        assert_eq!(members[3].poll_event(), exited, "the master repeats what the last barrier was");
    }
    assert_eq!(members[0].epoch(), 3);
    assert_eq!(members[0].counters().retransmitted, 6);
}

/// Goal: the amount that a member can be made to store or send is bounded. Method: a transport that takes nothing, and peers
/// that ask for ever.
#[test]
fn questions_do_not_pile_up() {
    let mut members = members(Algorithm::Central, 4, &MemberConfig::new(GroupId(1)));
    let ask = Packet::new(GroupId(1), 0, Rank(1), Body::Nack { round: Round(0), attempt: 0 });
    let ask = ask.encode(None);
    for _ in 0..10_000 {
        members[0].receive(NOW, &ask).expect("a question");
    }
    assert!(members[0].outbox.len() <= 64 + 4 * 4);
    let view = Packet::new(GroupId(1), 0, Rank(1), Body::view(&[3, 0], true)).encode(None);
    for _ in 0..10_000 {
        members[0].receive(NOW, &view).expect("a view");
    }
    assert!(members[0].outbox.len() <= 64 + 4 * 4 + 1);
    assert_eq!(members[0].poll_event().into_iter().count(), 1);
    assert_eq!(members[0].poll_event(), None, "one failure");
}

/// Goal: errors say what to do, in words. Method: the failure of a group.
#[test]
fn failures_name_ranks() {
    let mut members = members(Algorithm::Central, 4, &MemberConfig::new(GroupId(1)));
    members[0].report_dead(NOW, Rank(3));
    members[0].report_dead(NOW, Rank(1));
    members[0].report_dead(NOW, Rank(9));
    let error = members[0].enter(NOW, &[]).expect_err("failed");
    assert_eq!(error.to_string(), "members are dead (rank 1, rank 3): shrink the group, or end");
    let smaller = Algorithm::Central.schedule(Group::new(2).expect("two")).expect("suits");
    assert_eq!(members[0].shrink(Arc::new(smaller)), Err(ShrinkError::Undecided));
    let sum = Reduction::user(8, crate::reduction::Counting::Once, |_, _| ()).expect("short");
    assert!(format!("{sum:?}").contains("Once"));
}
