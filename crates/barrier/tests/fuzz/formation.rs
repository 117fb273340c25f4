//! Two members that meet through a process that changes their messages.
//!
//! An input is a list of changes of four bytes each: in which direction, at which byte, how, and with what.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    process,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use tokio::{runtime::Runtime, time::timeout};
use vigie_barrier::{
    Rank,
    net::{FormationError, NetBarrier},
};
use vigie_detect::{HostThread, Server};
use vigie_via::datagram::UdpConfig;

use crate::kit::fuzz::fuzz;

/// No attempt takes longer, whatever was changed.
const BOUND: Duration = Duration::from_secs(60);
/// For how long members wait if something is changed; what is not changed has time.
const SHORT: Duration = Duration::from_millis(150);

/// The change at a byte.
#[derive(Clone, Copy, Debug)]
enum Change {
    Turn(u8),
    Set(u8),
    Insert(u8),
    /// It is left out.
    Lose,
    /// The connection ends.
    Cut,
}

type Changes = BTreeMap<usize, Change>;

/// Returns the changes of what is said to rank 1, and to rank 0.
fn changes(input: &[u8]) -> [Changes; 2] {
    let mut both = [Changes::new(), Changes::new()];
    for change in input.chunks_exact(4) {
        let [direction, at, kind, with] = *change else { continue };
        let change = match kind % 5 {
            0 => Change::Turn(with.max(1)),
            1 => Change::Set(with),
            2 => Change::Insert(with),
            3 => Change::Lose,
            _ => Change::Cut,
        };
        both[usize::from(direction % 2)].insert(at.into(), change);
    }
    both
}

/// Hands bytes on until either side ends.
fn hand_on(mut from: TcpStream, mut to: TcpStream, changes: &Changes) {
    let (mut bytes, mut at) = ([0; 512], 0);
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        let (mut changed, mut is_cut) = (Vec::new(), false);
        for byte in &bytes[..length] {
            match changes.get(&at) {
                None => changed.push(*byte),
                Some(Change::Turn(bits)) => changed.push(byte ^ bits),
                Some(Change::Set(with)) => changed.push(*with),
                Some(Change::Insert(count)) => {
                    changed.extend((0..*count).chain([*byte]));
                }
                Some(Change::Lose) => {}
                Some(Change::Cut) => is_cut = true,
            }
            at += 1;
            if is_cut {
                break;
            }
        }
        if to.write_all(&changed).is_err() || is_cut {
            break;
        }
    }
    for side in [from, to] {
        // It may be gone already.
        let _ = side.shutdown(Shutdown::Both);
    }
}

/// Stands between rank 1, which believes it to be rank 0, and rank 0, until it is over and one more connection comes.
fn stand_between(
    listener: &TcpListener,
    rank_0: SocketAddr,
    changes: &[Changes; 2],
    is_over: &AtomicBool,
) {
    thread::scope(|scope| {
        while let Ok((stream, _)) = listener.accept() {
            if is_over.load(Ordering::SeqCst) {
                break;
            }
            // Rank 0 may not be there yet, or any more.
            let Ok(other) = TcpStream::connect(rank_0) else { continue };
            let copies = (stream.try_clone(), other.try_clone());
            let (Ok(stream_too), Ok(other_too)) = copies else { continue };
            for side in [&stream, &other] {
                side.set_read_timeout(Some(BOUND)).expect("a time");
            }
            scope.spawn(move || hand_on(other, stream, &changes[0]));
            scope.spawn(move || hand_on(stream_too, other_too, &changes[1]));
        }
    });
}

fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")
}

fn play(runtime: &Runtime, host: &HostThread, input: &[u8]) -> Result<String, String> {
    let changes = changes(input);
    let is_changed = changes.iter().any(|changes| !changes.is_empty());
    let patience = if is_changed { SHORT } else { BOUND / 2 };
    let listener = listen();
    let between = listener.local_addr().expect("an address");
    let rank_0 = listen().local_addr().expect("an address");
    let [.., high, low] = process::id().to_be_bytes();
    let meet = |rank: u8, place| {
        let address = Ipv4Addr::new(127, high | 1, low, rank + 1).into();
        let network = UdpConfig::new(address).base_port(19_000);
        let builder = NetBarrier::builder().server(host.server()).network(network);
        let builder = builder.unicast_only().formation_timeout(patience);
        timeout(BOUND, builder.form_at(place, Rank(rank.into()), 2))
    };
    let is_over = AtomicBool::new(false);
    let ends = thread::scope(|scope| {
        scope.spawn(|| stand_between(&listener, rank_0, &changes, &is_over));
        let ends = runtime.block_on(async { tokio::join!(meet(0, rank_0), meet(1, between)) });
        is_over.store(true, Ordering::SeqCst);
        TcpStream::connect(between).expect("it listens");
        ends
    });
    let mut said = Vec::new();
    for end in [ends.0, ends.1] {
        let formed = end.map_err(|_| "it hangs".to_owned())?;
        if !is_changed && let Err(error) = &formed {
            return Err(format!("nothing was changed, and {error}"));
        }
        said.push(outcome(&formed));
    }
    Ok(said.join(", "))
}

fn outcome(formed: &Result<NetBarrier, FormationError>) -> String {
    match formed {
        Ok(_) => "formed".to_owned(),
        Err(error) => format!("{error:?}").split([' ', '(']).next().unwrap_or_default().to_owned(),
    }
}

/// Goal: whatever becomes of the bytes by which members meet, each of them forms its group or gets an error that says
/// why, within its time; what is not changed forms a group. Method: a process between two members turns, inserts, loses
/// and cuts bytes, in both directions.
#[test]
fn members_meet_through_hostile_hands() {
    let host = Server::spawn_thread().expect("a host thread");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let outcomes = fuzz("formation", 60, |input| play(&runtime, &host, input));
    for what in ["formed, formed", "Missing", "Refused", "Bootstrap", "Different"] {
        assert!(outcomes.iter().any(|outcome| outcome.contains(what)), "no {what}: {outcomes:?}");
    }
}
