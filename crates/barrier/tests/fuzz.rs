//! Fuzz targets: packets, members that hostile peers talk to, and groups that are formed through a hostile network.
//!
//! Ten minutes of each: `VIGIE_FUZZ_SECONDS=600 cargo test --release -p vigie-barrier --test fuzz`.

#[cfg(not(loom))]
#[path = "fuzz/formation.rs"]
mod formation;
#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use vigie_barrier::{
    Algorithm, Group, Member, Rank, Round,
    algorithm::Networks,
    member::{Event, MemberConfig, Quorum},
    packet::{Body, GroupId, Key, PACKET_BYTES_MAX, Packet},
    reduction::{Builtin, Element, Reduction},
};
use vigie_detect::Instant;

use crate::kit::fuzz::fuzz;

/// Goal: no bytes hurt the parser, and what it takes is what would be sent. Method: mutated packets; each that is taken
/// is written again, and must be the same.
#[test]
fn packets_are_refused_or_understood() {
    let outcomes = fuzz("packet", 60_000, |input| {
        let key = Key::new([3; 16]);
        if Packet::parse(input, Some(&key)).is_ok() {
            return Err("a tag was guessed".to_owned());
        }
        match Packet::parse(input, None) {
            Err(error) => Ok(format!("{error}").chars().filter(|c| !c.is_ascii_digit()).collect()),
            Ok(packet) if packet.encode(None) != input => Err(format!("{packet:?} is another")),
            Ok(packet) => {
                let again = packet.encode(Some(&key));
                if Packet::parse(&again, Some(&key)) != Ok(packet) {
                    return Err(format!("{packet:?} is not read with a tag"));
                }
                let body = format!("{:?}", packet.body);
                Ok(body.split([' ', '(']).next().unwrap_or_default().to_owned())
            }
        }
    });
    for kind in ["Signal", "Nack", "AliveReply", "View", "Decided"] {
        assert!(outcomes.contains(kind), "{outcomes:?}");
    }
    assert!(outcomes.len() >= 9, "{outcomes:?}");
}

/// Bytes that are used up one after the other.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

const SIZE: u32 = 4;

fn schedule(algorithm: u8, size: u32) -> Arc<vigie_barrier::Schedule> {
    let all = [
        Algorithm::Pairwise,
        Algorithm::DISSEMINATION,
        Algorithm::BINARY,
        Algorithm::TERNARY,
        Algorithm::Concurrent { networks: Networks::Two },
        Algorithm::Tournament,
        Algorithm::Central,
    ];
    let group = Group::new(size).expect("a size");
    Arc::new(all[usize::from(algorithm) % all.len()].schedule(group).expect("suits"))
}

/// A packet whose every field a hostile peer has chosen, near to what could be right.
fn crafted(script: &mut Script<'_>, group: GroupId, epoch: u32) -> Option<Vec<u8>> {
    let [kind, sender, ahead, round] = *script.bytes(4) else { return None };
    let length = usize::from(script.byte()? % 20);
    let payload = script.bytes(length);
    let attempt = u32::from(payload.first().copied().unwrap_or(0));
    let body = match kind % 4 {
        0 => Body::Signal { round: Round(round.into()), value: &[1; 8] },
        1 => Body::Nack { round: Round(round.into()), attempt },
        2 => Body::AliveReply { attempt },
        // Bytes that may or may not be a list of ranks.
        _ => Body::Signal { round: Round(u16::from(round % 2)), value: payload },
    };
    let epoch = epoch.wrapping_add(u32::from(ahead)).wrapping_sub(2);
    let mut packet = Packet::new(group, epoch, Rank(u32::from(sender % 5)), body).encode(None);
    if kind % 4 == 3 {
        packet[3] = 4 + u8::from(kind >= 128);
    }
    Some(packet)
}

/// The inputs, for comparison with the outputs.
#[derive(Default)]
struct Tally {
    received: u64,
    exits: u32,
    outcome: BTreeSet<String>,
}

fn play(input: &[u8]) -> Result<String, String> {
    let mut script = Script(input);
    let algorithm = script.byte().unwrap_or(0);
    let group = GroupId(0x5eed);
    let config = MemberConfig::new(group)
        .failure_timeout(Duration::from_secs(1))
        .quorum(if algorithm < 128 { Quorum::Majority } else { Quorum::Any })
        .reduction(Reduction::builtin(Builtin::Max, Element::U64, 1).expect("short"));
    let rank = Rank(u32::from(script.byte().unwrap_or(0)) % SIZE);
    let mut member =
        Member::new(schedule(algorithm, SIZE), rank, config).map_err(|error| error.to_string())?;
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut tally = Tally::default();
    while let Some(action) = script.byte() {
        match action % 8 {
            0 => drop(member.enter(now, &[2; 8])),
            1 => {
                now = member.next_deadline().unwrap_or(now).max(now);
                member.handle_deadline(now);
                if member.next_deadline().is_some_and(|next| next <= now) {
                    return Err("a deadline that is over stays".to_owned());
                }
            }
            2 => {
                let length = usize::from(script.byte().unwrap_or(0));
                tally.received += 1;
                if let Err(why) = member.receive(now, script.bytes(length)) {
                    tally.outcome.insert(
                        format!("{why:?}").split(['(', ' ']).next().unwrap_or("").to_owned(),
                    );
                }
            }
            3..=5 => {
                let epoch = member.epoch();
                let Some(packet) = crafted(&mut script, group, epoch) else { break };
                tally.received += 1;
                match member.receive(now, &packet) {
                    Ok(()) => tally.outcome.insert(format!("taken {}", packet[3])),
                    Err(why) => tally.outcome.insert(format!("{why:?} {}", packet[3])),
                };
            }
            6 => member.report_dead(now, Rank(u32::from(script.byte().unwrap_or(0)) % 6)),
            _ => match script.byte().unwrap_or(0) {
                0 => member.leave(now),
                size => {
                    let size = u32::from(size) % SIZE + 1;
                    if member.shrink(schedule(algorithm, size)).is_ok() {
                        tally.exits = 0;
                        tally.outcome.insert("shrunk".to_owned());
                    }
                }
            },
        }
        drain(&mut member, &mut tally)?;
    }
    let counters = member.counters();
    if counters.accepted + counters.dropped() != tally.received {
        return Err(format!("{} packets, but {counters:?}", tally.received));
    }
    Ok(tally.outcome.into_iter().collect::<Vec<_>>().join(", "))
}

/// Takes everything that a member has to say, and checks what can be checked of one whose peers are all hostile.
fn drain(member: &mut Member, tally: &mut Tally) -> Result<(), String> {
    let mut sent = 0;
    while let Some(transmit) = member.poll_transmit() {
        sent += 1;
        if sent > 100 {
            return Err("says more and more".to_owned());
        }
        if transmit.packet.len() > PACKET_BYTES_MAX
            || Packet::parse(&transmit.packet, None).is_err()
        {
            return Err(format!("says what no member understands: {transmit:?}"));
        }
    }
    let (mut shrinks, mut failures) = (0, 0);
    while let Some(event) = member.poll_event() {
        match event {
            Event::Exited { epoch, value } => {
                if epoch != tally.exits || value.len() != 8 {
                    return Err(format!("left epoch {epoch} with {value:?}"));
                }
                tally.exits += 1;
                tally.outcome.insert("exited".to_owned());
            }
            Event::Failed { ranks, reason } => {
                failures += 1;
                if ranks.is_empty() || !ranks.is_sorted() {
                    return Err(format!("failed because of {ranks:?}"));
                }
                tally.outcome.insert(format!("failed: {reason:?}"));
            }
            Event::Agreed { survivors } => {
                shrinks += 1;
                if !survivors.contains(&member.rank()) {
                    return Err(format!("agrees that only {survivors:?} survive"));
                }
                tally.outcome.insert("agreed".to_owned());
            }
            Event::Minority { survivors } => {
                shrinks += 1;
                if !survivors.contains(&member.rank()) || survivors.len() > 2 {
                    return Err(format!("too few: {survivors:?}"));
                }
                tally.outcome.insert("minority".to_owned());
            }
            other => return Err(format!("{other:?}")),
        }
    }
    if shrinks > 1 || failures > 2 { Err("the same again".to_owned()) } else { Ok(()) }
}

/// Goal: whatever hostile members of the group say, in whatever order, a member does not panic, answers a bounded amount
/// that others understand, counts every packet once, and reports each barrier and each decision once. Method: scripts of
/// entering, packets, deadlines, deaths, leaving and shrinking, mutated.
#[test]
fn members_stand_hostile_peers() {
    let outcomes = fuzz("member", 40_000, play);
    let all: BTreeSet<&str> = outcomes.iter().flat_map(|outcome| outcome.split(", ")).collect();
    for what in [
        "exited",
        "agreed",
        "shrunk",
        "taken 1",
        "taken 2",
        "taken 3",
        "taken 4",
        "taken 5",
        "minority",
        "failed: Silent",
        "failed: Reported",
        "failed: Left",
        "failed: Told",
        "failed: Excluded",
        "Foreign",
    ] {
        assert!(all.iter().any(|outcome| outcome.starts_with(what)), "no {what}: {all:?}");
    }
}
