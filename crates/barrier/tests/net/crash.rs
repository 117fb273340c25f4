//! `kill -9` of a member, on real processes: this test binary starts itself again as the members of a group.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    thread,
    time::Duration,
};

use vigie_barrier::{
    Algorithm, Rank,
    net::{MeasureError, NetBarrier},
};

use crate::{
    kit::{
        child::{command_in, role},
        speaker::Speaker,
    },
    stage::{Failed, Place, on_threads},
};

/// The test that is a member in the child.
const MEMBER: &str = "crash::in_a_role";
const SIZE: u32 = 4;
/// Stands for an algorithm.
const MEASURING: &str = "measuring";

/// Enters barriers until one fails, and without an algorithm measures before each; then reports which members are
/// gone, shrinks, and passes some more.
async fn play(
    at: SocketAddr,
    rank: Rank,
    place: Place,
    algorithm: Option<Algorithm>,
) -> Result<(), Failed> {
    let mut builder = NetBarrier::builder().network(place.config(rank.0));
    if let Some(algorithm) = algorithm {
        builder = builder.algorithm(algorithm);
    }
    let timeout = Duration::from_secs(2);
    let mut barrier = builder.failure_timeout(timeout).form_at(at, rank, SIZE).await?;
    println!("\nformed");
    let error = loop {
        if algorithm.is_none() {
            match barrier.replan().await {
                Ok(_) => {}
                Err(MeasureError::Barrier(error)) => break error,
                Err(error) => return Err(error.into()),
            }
        }
        if let Err(error) = barrier.wait().await {
            break error;
        }
    };
    let lost: Vec<String> = error.lost().iter().map(|rank| rank.0.to_string()).collect();
    println!("\nlost {}", lost.join(" "));
    let survivors = barrier.shrink().await?;
    for _ in 0..50 {
        barrier.wait().await?;
    }
    println!("\npassed among {}", survivors.len());
    barrier.leave(Duration::from_secs(5)).await?;
    Ok(())
}

/// A member. Does nothing when it is run as a test.
#[test]
fn in_a_role() {
    let Some(role) = role(MEMBER) else { return };
    let words: Vec<_> = role.split(',').collect();
    let [at, rank, place, algorithm] = words[..] else { panic!("{role}") };
    let (at, rank) = (at.parse().expect("an address"), rank.parse().expect("a rank"));
    let place = Place::of(place.parse().expect("a number"));
    let algorithm = (algorithm != MEASURING).then(|| algorithm.parse().expect("an algorithm"));
    on_threads(play(at, Rank(rank), place, algorithm)).expect("a member");
}

/// Goal: a member that is killed at whatever step is named on every other one, and the rest goes on. Method: processes
/// that meet without end, of which one is killed after some time that differs from run to run; each rank, several
/// algorithms.
#[test]
fn a_killed_member_is_named_by_all() {
    kill_each(&["concurrent", "ternary", "dissemination"], 0x4000);
}

/// Goal: the same while members measure their network, and change the algorithm by what they find: also the leader.
/// Method: as above.
#[test]
fn a_member_killed_amid_a_measurement_is_named_by_all() {
    kill_each(&[MEASURING], 0x8000);
}

fn kill_each(algorithms: &[&str], places: u32) {
    let mut random = fastrand::Rng::with_seed(6);
    let mut number = std::process::id().wrapping_mul(61) ^ places;
    for algorithm in algorithms {
        for victim in 0..SIZE {
            number = number.wrapping_add(1);
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let at = listener.local_addr().expect("an address");
            drop(listener);
            let start = |rank: u32| {
                let role = format!("{at},{rank},{number},{algorithm}");
                Speaker::start(command_in(&role, &[], MEMBER))
            };
            let mut members: Vec<_> = (0..SIZE).map(start).collect();
            for member in &members {
                member.line("formed");
            }
            // Any step will do: barriers follow on each other.
            let steps = if *algorithm == MEASURING { 40_000 } else { 2_000 };
            for _ in 0..random.u32(0..steps) {
                thread::yield_now();
            }
            members[usize::try_from(victim).expect("small")].kill();
            for (rank, member) in (0..SIZE).zip(&members).filter(|(rank, _)| *rank != victim) {
                let context = format!("{algorithm}, {victim} killed, {rank} says");
                assert_eq!(member.line("lost"), victim.to_string(), "{context}");
                assert_eq!(member.line("passed"), "among 3", "{context}");
            }
        }
    }
}
