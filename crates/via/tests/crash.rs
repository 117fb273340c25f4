//! `kill -9` at every transmission, on real processes: this test binary starts itself again as three ranks,
//! of which one kills itself.

#[path = "crash/killer.rs"]
mod killer;
#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "crash/member.rs"]
mod member;
#[path = "crash/rank.rs"]
mod rank;

use std::{fs, os::unix::process::ExitStatusExt, process::ExitStatus};

use killer::Death;
use kit::{
    child::{command_in, role},
    speaker::Speaker,
};
use rank::{Rank, VICTIM};
use vigie_via::vi::Address;

/// The test that is a rank in a child; its role is the rank's number, how the ranks connect, and when the victim dies.
const RANK: &str = "in_a_role";
/// All ranks connect before they exchange messages, or when they first need each other.
const AT_ONCE: &str = "at once";
const ON_DEMAND: &str = "on demand";
/// As at once, and then exchange messages by communicators.
const BY_COMMUNICATORS: &str = "by communicators";
const SIZE: u32 = 3;
/// More transmissions than a rank makes.
const DEATHS_MAX: u64 = 2000;
/// More steps than it takes to connect with both others.
const EARLY_DEATHS: u64 = 24;

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}

fn descriptor_count() -> usize {
    fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// A rank. Does nothing when run as a test.
#[test]
fn in_a_role() {
    let Some(role) = role(RANK) else { return };
    let (number, role) = role.split_once(',').expect("a number first");
    let (connects, death) = role.split_once(',').expect("how to connect, and a death");
    let number: u32 = number.parse().expect("a rank");
    let death = Some(death).filter(|_| number == VICTIM).map(|text| {
        let (when, at) = text.split_once(' ').expect("when and at what");
        let at = at.parse().expect("a number");
        if when == "before" { Death::Before(at) } else { Death::After(at) }
    });
    let before = descriptor_count();
    let mut rank = Rank::new(number, SIZE);
    println!("\naddress {}", hexadecimal(&rank.address().0));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the addresses");
    let addresses: Vec<_> = line.split_whitespace().map(|text| Address(parse(text))).collect();
    assert_eq!(addresses.len(), usize::try_from(SIZE).expect("small"));
    match connects {
        ON_DEMAND => rank.introduce(&addresses, death),
        _ => rank.connect(&addresses),
    }
    match connects {
        BY_COMMUNICATORS => member::run(rank.into_engine(), death),
        AT_ONCE => {
            rank.plan(death);
            rank.run();
        }
        _ => rank.run(),
    }
    assert_eq!(descriptor_count(), before, "descriptors are left");
    let maps = fs::read_to_string("/proc/self/maps").expect("proc");
    assert!(!maps.contains("vigie-shm"), "mappings are left: {maps}");
}

/// Lets the ranks run to their ends. Returns their addresses and how they ended.
fn run(connects: &str, death: &str) -> (Vec<String>, Vec<ExitStatus>) {
    let start = |rank| Speaker::start(command_in(&format!("{rank},{connects},{death}"), &[], RANK));
    let mut ranks: Vec<_> = (0..SIZE).map(start).collect();
    let addresses: Vec<_> = ranks.iter().map(|rank| rank.line("address ")).collect();
    for rank in &mut ranks {
        rank.tell(&addresses.join(" "));
    }
    (addresses, ranks.into_iter().map(Speaker::finish).collect())
}

/// Names of leftovers in shared places.
fn leavings() -> Vec<String> {
    ["/dev/shm", "/tmp"]
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name.contains("vigie-shm"))
        .collect()
}

/// Returns whether the victim was killed; all others must have ended in order.
fn has_died(death: &str, ends: Vec<ExitStatus>) -> bool {
    let mut has_died = false;
    for (rank, end) in (0..).zip(ends) {
        let is_killed = rank == VICTIM && end.signal() == Some(9);
        assert!(is_killed || end.success(), "{death}: rank {rank} ended by {end}");
        has_died |= is_killed;
    }
    has_died
}

/// Goal: `kill -9` of a rank at any protocol step costs the others no more than the messages from and to
/// that rank: requests that wait for it end in an error that names it, no rank hangs, the others'
/// messages continue, and nothing is left behind. Method: three processes exchange messages of every
/// kind; one kills itself before or after its k-th transmission, for each k until it ends regularly.
fn dies_at_any_transmission(connects: &str, when: &str) {
    let before = leavings();
    let mut death_count = 0;
    for k in 1..=DEATHS_MAX {
        let death = format!("{when} {k}");
        let (addresses, ends) = run(connects, &death);
        let sockets = fs::read_to_string("/proc/net/unix").expect("proc");
        for address in addresses {
            // The name of the socket is in the address, behind five bytes.
            let name = &address[10..42];
            assert!(!sockets.contains(name), "{death}: the socket {name} is left");
        }
        if !has_died(&death, ends) {
            break;
        }
        death_count += 1;
    }
    println!("{death_count} deaths, each {when} a transmission");
    assert!((40..DEATHS_MAX).contains(&death_count), "{death_count} transmissions");
    assert_eq!(leavings(), before);
}

#[test]
fn a_rank_may_die_before_any_transmission() {
    dies_at_any_transmission(AT_ONCE, "before");
}

#[test]
fn a_rank_may_die_after_any_transmission() {
    dies_at_any_transmission(AT_ONCE, "after");
}

/// Goal: the same for sets of requests, and for duplicates of a communicator that come and go. Method: three processes exchange messages in one
/// duplicate after the other, and wait for all of a round by a set.
#[test]
fn a_rank_may_die_amid_sets_and_duplicates() {
    for when in ["before", "after"] {
        dies_at_any_transmission(BY_COMMUNICATORS, when);
    }
}

/// Goal: `kill -9` of a rank while it and the others connect is told to the survivors: what they want of it ends in an error that
/// names it, and they reach each other. Method: three processes that connect when they first need each other, all at once; one
/// kills itself before or after its k-th step of that, for the first steps.
#[test]
fn a_rank_may_die_while_it_connects() {
    let before = leavings();
    for when in ["before", "after"] {
        for k in 1..=EARLY_DEATHS {
            let death = format!("{when} {k}");
            let (_, ends) = run(ON_DEMAND, &death);
            assert!(has_died(&death, ends), "{death}: it had no such step");
        }
    }
    assert_eq!(leavings(), before);
}
