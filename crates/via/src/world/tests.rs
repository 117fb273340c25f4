use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use super::{
    wire::{Decoder, HubReply, HubRequest, WireError},
    *,
};
use vigie_detect::HostThread;

fn host() -> HostThread {
    Server::spawn_thread().expect("a thread")
}

fn soon(host: &HostThread) -> Instant {
    host.server().now() + Duration::from_secs(60)
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// Goal: ranks on threads meet: each finds the others' values, and passes barriers with them. Method:
/// four threads, several rounds.
#[test]
fn local_ranks_meet() {
    let host = host();
    let deadline = soon(&host);
    let (_, worlds) = local(host.server(), 4).unwrap();
    std::thread::scope(|scope| {
        for world in worlds {
            scope.spawn(move || {
                block_on(async {
                    for round in 0..50_u32 {
                        let key = format!("round-{round}");
                        let own = [world.rank().0, round].map(u32::to_be_bytes).concat();
                        let all = world.all_gather(&key, &own, deadline).await.unwrap();
                        let expected = (0..4).map(|rank| [rank, round].map(u32::to_be_bytes));
                        let expected = expected.map(|words| Some(words.concat()));
                        assert_eq!(all, expected.collect::<Vec<_>>());
                        world.barrier(deadline).await.unwrap();
                    }
                });
            });
        }
    });
}

/// Goal: a world without a launcher waits for no rank. Method: every call.
#[test]
fn single_rank() {
    let host = host();
    let deadline = soon(&host);
    let world = World::single(host.server()).unwrap();
    assert_eq!((world.rank(), world.size()), (Rank(0), 1));
    block_on(async {
        world.barrier(deadline).await.unwrap();
        let all = world.all_gather("k", b"v", deadline).await.unwrap();
        assert_eq!(all, [Some(b"v".to_vec())]);
        world.leave(deadline).await.unwrap();
        world.leave(deadline).await.unwrap();
        assert!(matches!(world.barrier(deadline).await, Err(WorldError::Left)));
        assert_eq!(world.get(Rank(0), "k", deadline).await.unwrap(), Some(b"v".to_vec()));
    });
    assert_ne!(world.identity(), World::single(host.server()).unwrap().identity());
    assert!(local(host.server(), 0).is_err());
    assert!(!format!("{world:?}").contains("secret"));
}

/// Goal: bad arguments are refused before anything is sent. Method: each kind.
#[test]
fn bad_arguments() {
    let host = host();
    let deadline = soon(&host);
    let world = World::single(host.server()).unwrap();
    block_on(async {
        for key in ["", "a b", "a=b", "ä", &"k".repeat(wire::KEY_BYTES_MAX + 1)] {
            let error = world.put(key, b"", deadline).await.unwrap_err();
            assert!(matches!(error, WorldError::BadKey { .. }), "{key}: {error}");
            assert!(world.get(Rank(0), key, deadline).await.is_err());
            assert!(world.all_gather(key, b"", deadline).await.is_err());
        }
        let error = world.put("k", &[0; wire::VALUE_BYTES_MAX + 1], deadline).await.unwrap_err();
        assert!(matches!(error, WorldError::ValueTooLong { bytes: 501 }), "{error}");
        world.put("k", b"", deadline).await.unwrap();
        let error = world.put("k", b"", deadline).await.unwrap_err();
        assert!(matches!(error, WorldError::AlreadyPut { .. }), "{error}");
        let error = world.get(Rank(1), "k", deadline).await.unwrap_err();
        assert!(matches!(error, WorldError::NoSuchRank { rank: Rank(1), size: 1 }), "{error}");
        // This rank must keep the bounds: otherwise the launcher would expel it.
        for i in 1..hub::KEYS_MAX {
            world.put(&format!("k{i}"), b"", deadline).await.unwrap();
        }
        let error = world.put("more", b"", deadline).await.unwrap_err();
        assert!(matches!(error, WorldError::TooMany { what: "keys", .. }), "{error}");
    });
}

/// Goal: a wait ends with its deadline, may be repeated, and ends when what it waits for is gone; and all
/// ranks see the same order of events. Method: two of three ranks; the third leaves, then ends.
#[test]
fn deadlines_and_departures() {
    let host = host();
    let deadline = soon(&host);
    let (launcher, worlds) = local(host.server(), 3).unwrap();
    block_on(async {
        for awaited in [["1, 2", "2"], ["2", "2"]] {
            let early = host.server().now();
            for (world, awaited) in worlds.iter().zip(awaited) {
                let error = world.barrier(early).await.unwrap_err();
                let awaited = format!("before these ranks came to barrier 1: {awaited}");
                assert!(error.to_string().ends_with(&awaited), "{error}");
                assert!(matches!(&error, WorldError::TimedOut { .. }), "{error}");
                assert!(!error.is_final());
            }
            let error = worlds[0].get(Rank(2), "k", early).await.unwrap_err();
            assert!(error.to_string().contains("rank 2"), "{error}");
        }
        let error = worlds[1].all_gather("all", b"", host.server().now()).await.unwrap_err();
        assert!(
            error.to_string().ends_with("these ranks had put a value for `all`: 0, 2"),
            "{error}"
        );
        worlds[2].leave(deadline).await.unwrap();
        worlds[0].barrier(deadline).await.unwrap();
        worlds[1].barrier(deadline).await.unwrap();
        assert_eq!(worlds[0].get(Rank(2), "k", deadline).await.unwrap(), None);
        launcher.end(Rank(2), RankExit::Exited(0));
        for world in &worlds[..2] {
            let mut events = world.events();
            assert_eq!(events.next().await.unwrap(), WorldEvent::Left { rank: Rank(2) });
            let last = WorldEvent::Ended { rank: Rank(2), ending: RankExit::Exited(0) };
            assert_eq!(events.next().await.unwrap(), last);
            assert!(last.is_loss());
        }
    });
}

/// Goal: an end on another thread wakes every waiter, even several tasks of one rank. Method: a task for an
/// event and one for a barrier; the launcher ends the rank that both wait for, then itself.
#[test]
fn several_wait_at_once() {
    let host = host();
    let deadline = soon(&host);
    let (launcher, worlds) = local(host.server(), 2).unwrap();
    let waiters: Vec<_> = [true, false]
        .into_iter()
        .map(|is_event| {
            let world = worlds[0].clone();
            std::thread::spawn(move || {
                block_on(async {
                    if is_event {
                        let mut events = world.events();
                        events.next().await.map(|event| event.rank())?;
                        events.next().await.map(drop)
                    } else {
                        world.barrier(deadline).await
                    }
                })
            })
        })
        .collect();
    launcher.end(Rank(1), RankExit::Killed(9));
    block_on(worlds[0].barrier(deadline))
        .or_else(|error| match error {
            // The other task has passed it; this is the next barrier, in which rank 0 is alone.
            WorldError::TimedOut { .. } => Err(error),
            _ => Ok(()),
        })
        .unwrap();
    launcher.vanish();
    let results: Vec<_> = waiters.into_iter().map(|one| one.join().unwrap()).collect();
    assert!(matches!(results[0], Err(WorldError::LauncherLost)), "{results:?}");
    assert!(matches!(results[1], Ok(()) | Err(WorldError::LauncherLost)), "{results:?}");
}

/// Joins over a socket whose other end is the test's.
async fn join_by(
    host: &HostThread,
    script: impl FnOnce(UnixStream) + Send + 'static,
) -> Result<World, WorldError> {
    let (socket, other) = UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    let launcher = std::thread::spawn(move || script(other));
    let world = unix::join(host.server(), socket, soon(host)).await.map(World::from_bootstrap);
    launcher.join().unwrap();
    world
}

fn welcome() -> Vec<u8> {
    let identity = Identity { id: [1; 16], secret: [2; 32] };
    HubReply::Welcome(Membership::new(Rank(0), 2, identity)).encode()
}

/// Goal: a launcher that sends nonsense, or nothing, is reported, and nothing hangs or panics. Method: a
/// socket with each kind of it at its other end.
#[test]
fn broken_launcher() {
    let host = host();
    block_on(async {
        let lost = join_by(&host, drop).await.unwrap_err();
        assert!(matches!(lost, WorldError::LauncherLost) && lost.is_final(), "{lost}");
        for (bytes, is_wire) in [
            (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), true),
            (vec![1, 0, 0, 0, 99], true),
            (HubReply::Event(WorldEvent::Left { rank: Rank(0) }).encode(), false),
            (HubReply::Passed { round: 1 }.encode(), false),
        ] {
            let sent = bytes.clone();
            let script = move |mut socket: UnixStream| socket.write_all(&sent).unwrap();
            let error = join_by(&host, script).await.unwrap_err();
            let is_expected = match error {
                WorldError::Wire(_) => is_wire,
                WorldError::Disorder(_) => !is_wire,
                _ => false,
            };
            assert!(is_expected, "{bytes:?}: {error}");
        }
        let why = HubReply::Expelled { why: "reason".to_owned() }.encode();
        let script = move |mut socket: UnixStream| socket.write_all(&why).unwrap();
        let error = join_by(&host, script).await.unwrap_err();
        assert!(matches!(&error, WorldError::Expelled { why } if why == "reason"), "{error}");
    });
}

/// Goal: after the welcome too, invalid messages of a launcher are refused. Method: each such message.
#[test]
fn launcher_out_of_order() {
    let host = host();
    let key = || "k".to_owned();
    block_on(async {
        for reply in [
            HubReply::Value { rank: Rank(1), key: key(), value: Vec::new() },
            HubReply::Absent { rank: Rank(1), key: key() },
            HubReply::Passed { round: 1 },
            HubReply::Event(WorldEvent::Left { rank: Rank(2) }),
        ] {
            let bytes = [welcome(), reply.encode()].concat();
            let script = move |mut socket: UnixStream| socket.write_all(&bytes).unwrap();
            let world = join_by(&host, script).await.unwrap();
            let error = world.events().next().await.unwrap_err();
            assert!(matches!(error, WorldError::Disorder(_)), "{reply:?}: {error}");
            assert!(error.is_final());
        }
    });
}

/// Goal: a rank on a socket sends what the protocol prescribes. Method: the other end reads it until the rank
/// is gone.
#[test]
fn said_over_a_socket() {
    let host = host();
    let deadline = soon(&host);
    let (socket, mut other) = UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    other.write_all(&welcome()).unwrap();
    block_on(async {
        let world = unix::join(host.server(), socket, deadline).await.unwrap();
        let world = World::from_bootstrap(world);
        assert_eq!((world.rank(), world.size()), (Rank(0), 2));
        world.put("k", b"v", deadline).await.unwrap();
        assert!(world.get(Rank(1), "k", host.server().now()).await.is_err());
        // Asked once, however often it is waited for.
        assert!(world.get(Rank(1), "k", host.server().now()).await.is_err());
        let error = world.barrier(host.server().now()).await.unwrap_err();
        assert!(error.to_string().ends_with("; no other rank has been heard from"), "{error}");
        world.leave(deadline).await.unwrap();
    });
    let mut bytes = Vec::new();
    other.read_to_end(&mut bytes).unwrap();
    let mut decoder = Decoder::new();
    decoder.feed(&bytes);
    let mut said = Vec::new();
    while let Some(frame) = decoder.next_frame().unwrap() {
        said.push(HubRequest::decode(frame).unwrap());
    }
    let key = || "k".to_owned();
    let expected = [
        HubRequest::Hello { version: wire::VERSION },
        HubRequest::Put { key: key(), value: b"v".to_vec() },
        HubRequest::Get { rank: Some(Rank(1)), key: key() },
        HubRequest::Enter { round: 1 },
        HubRequest::Leave,
    ];
    assert_eq!(said, expected);
}

/// Goal: only the number of a descriptor that can be the launcher's is accepted. Method: text, standard
/// streams, a closed one, a file, sockets of other kinds.
#[test]
fn environment_that_leads_nowhere() {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open("/dev/null").unwrap();
    let datagram = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let network = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let numbers = [file.as_raw_fd(), datagram.as_raw_fd(), network.as_raw_fd()];
    let texts = ["", "x", "-1", "0", "2", "99999999999", "1000000", "3 "].map(str::to_owned);
    for text in texts.into_iter().chain(numbers.map(|number| number.to_string())) {
        let error = unix::inherited(RENDEZVOUS_VARIABLE, text.as_ref()).unwrap_err();
        assert!(matches!(error, WorldError::Environment { .. }), "{text}: {error}");
        assert!(error.to_string().contains(RENDEZVOUS_VARIABLE), "{error}");
    }
    // They are still open, and still their owners'.
    assert!(file.metadata().is_ok() && network.local_addr().is_ok());
    let nonsense = WireError::FrameLength { bytes: 0 };
    assert!(WorldError::from(nonsense).is_final());
}
