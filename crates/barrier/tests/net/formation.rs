//! How groups are formed, and how not.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use vigie_barrier::{
    Algorithm, Rank, Reduction,
    net::{FormationError, MulticastState, NetBarrier},
    reduction::{Builtin, Element},
};
use vigie_detect::Server;
use vigie_via::{datagram::NodeAddress, world};

use crate::stage::{Place, on_threads, play};

/// An address at which no process listens.
fn free() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address")
}

/// Goal: members meet at an address without a launcher, in whatever order, though strangers connect there too. Method:
/// rank 0 comes last; a stranger that says nothing, one that says nonsense, and one with another secret.
#[test]
fn members_meet_at_an_address() {
    let (place, at) = (Place::new(), free());
    let host = Server::spawn_thread().expect("a host thread");
    let builder = |rank: u32, secret: u8| {
        NetBarrier::builder()
            .server(host.server())
            .network(place.config(rank))
            .secret([secret; 32])
            .formation_timeout(Duration::from_secs(20))
    };
    on_threads(async {
        let mut tasks = Vec::new();
        for rank in (0..4).rev() {
            let meeting = builder(rank, 1).form_at(at, Rank(rank), 4);
            tasks.push(tokio::spawn(async move {
                if rank == 0 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                let mut barrier = meeting.await?;
                for _ in 0..10 {
                    barrier.wait().await.map_err(FormationError::from)?;
                }
                Ok::<_, FormationError>(barrier.multicast().clone())
            }));
        }
        let wrong = builder(7, 2).formation_timeout(Duration::from_secs(1)).form_at(at, Rank(1), 4);
        let wrong = tokio::spawn(wrong);
        let strangers = tokio::task::spawn_blocking(move || {
            let connect = || loop {
                match TcpStream::connect(at) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::yield_now(),
                }
            };
            let mut one = connect();
            // It may be gone already.
            let _ = std::io::Write::write_all(&mut one, &[0x55; 4000]);
            one
        });
        for task in tasks {
            let multicast = task.await.expect("a member").expect("formed");
            assert_eq!(multicast, MulticastState::Works);
        }
        assert!(wrong.await.expect("a stranger").is_err());
        drop(strangers.await);
    });
}

/// Goal: where multicast cannot work, the barrier says why and what to do, and still works. Method: members with
/// different ports, members told to use an address that is not a multicast address, and a builder that wants none.
#[test]
fn without_multicast_there_is_unicast() {
    let algorithm: Algorithm = "concurrent".parse().expect("a name");
    let run =
        |change: &dyn Fn(u32, vigie_barrier::net::NetBuilder) -> vigie_barrier::net::NetBuilder| {
            let builder = |rank, builder: vigie_barrier::net::NetBuilder| {
                change(rank, builder.algorithm(algorithm))
            };
            play(4, builder, |mut barrier| async move {
                for _ in 0..50 {
                    barrier.wait().await?;
                }
                Ok(barrier.multicast().clone())
            })
        };
    let blocked = |states: Vec<MulticastState>, wanted: &str| {
        for state in states {
            let MulticastState::Unavailable { why } = state else { panic!("{state:?}") };
            assert!(why.contains(wanted), "{why}");
        }
    };
    let ports = run(&|rank, builder| builder.port(u8::try_from(40 + rank).expect("small")));
    blocked(ports, "the same");
    let no_group = NodeAddress::Ip(Ipv4Addr::new(127, 0, 0, 1).into());
    blocked(run(&|_, builder| builder.multicast_group(no_group)), "joining");
    assert!(
        run(&|_, builder| builder.unicast_only())
            .iter()
            .all(|state| *state == MulticastState::Unused)
    );
}

/// Goal: both sides learn of a wrong secret. Method: rank 1 with another secret than rank 0, which waits for it until its
/// time is over.
#[test]
fn a_wrong_secret_is_told() {
    let (place, host) = (Place::new(), Server::spawn_thread().expect("a host thread"));
    let address = free();
    let member = |rank: u32, secret| {
        let builder = NetBarrier::builder().server(host.server()).network(place.config(rank));
        let builder = builder.formation_timeout(Duration::from_secs(5)).secret([secret; 32]);
        builder.form_at(address, Rank(rank), 2)
    };
    on_threads(async {
        let (first, second) = tokio::join!(member(0, 1), member(1, 2));
        let (first, second) = (first.expect_err("missing"), second.expect_err("refused"));
        assert!(matches!(first, FormationError::Missing { rejected_count: 1, .. }), "{first:?}");
        assert!(
            first.to_string().contains("turned away for another secret, size or rank: 1"),
            "{first}"
        );
        assert!(matches!(second, FormationError::Refused { .. }), "{second:?}");
    });
}

/// Goal: an impossible group is refused with an error that says why, at all members. Method: different settings,
/// no network, three networks, an algorithm for other sizes, a taken port, a value too long for a datagram, a member
/// that never comes.
#[test]
fn what_is_no_group_is_refused() {
    let (place, host) = (Place::new(), Server::spawn_thread().expect("a host thread"));
    let base = |rank| NetBarrier::builder().server(host.server()).network(place.config(rank));
    on_threads(async {
        let form = |builders: [vigie_barrier::net::NetBuilder; 2]| {
            let (_launcher, worlds) = world::local(host.server(), 2).expect("a world");
            let [one, other] = builders;
            async move {
                let (one, other) = tokio::join!(one.form(&worlds[0]), other.form(&worlds[1]));
                [one.expect_err("refused"), other.expect_err("refused")]
            }
        };
        let [one, other] = form([base(0), base(1).algorithm(Algorithm::Central)]).await;
        assert!(matches!(one, FormationError::Different { rank: Rank(1) }), "{one}");
        assert!(matches!(other, FormationError::Different { rank: Rank(0) }), "{other}");
        let reducing = |rank, operation| {
            base(rank).reduction(Reduction::builtin(operation, Element::U64, 1).expect("short"))
        };
        let [one, _] = form([reducing(0, Builtin::Min), reducing(1, Builtin::Max)]).await;
        assert!(matches!(one, FormationError::Different { rank: Rank(1) }), "{one}");
        let none = || NetBarrier::builder().server(host.server());
        let [one, _] = form([none(), none()]).await;
        assert!(matches!(one, FormationError::NoNetwork), "{one}");
        let many = |rank| base(rank).network(place.config(rank)).network(place.config(rank));
        let [one, _] = form([many(0), many(1)]).await;
        assert!(matches!(one, FormationError::TooManyNetworks { count: 3 }), "{one}");
        let [one, _] = form([
            base(0).failure_timeout(Duration::from_micros(1)),
            base(1).failure_timeout(Duration::from_micros(1)),
        ])
        .await;
        assert!(matches!(one, FormationError::Member(_)), "{one}");
        assert!(one.to_string().starts_with("failure_timeout"), "{one}");
        let alone =
            base(0).formation_timeout(Duration::from_millis(200)).form_at(free(), Rank(0), 2);
        let error = alone.await.expect_err("no other member is there");
        assert!(error.to_string().starts_with("rank 1 is missing"), "{error}");
        let _owner = UdpSocket::bind((place.address(0), place.udp_port(47))).expect("free");
        let error = base(0).form_at(free(), Rank(0), 1).await.expect_err("the port is taken");
        let said = error.to_string();
        assert!(said.starts_with("datagram port 47 has an owner already"), "{said}");
        assert!(
            said.contains(&format!("UDP port {}", place.udp_port(47)))
                && said.contains("take another port"),
            "{said}"
        );
        for address in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(239, 1, 2, 3)] {
            let member = none().network(vigie_via::datagram::UdpConfig::new(address.into()));
            let error =
                member.form_at(free(), Rank(0), 1).await.expect_err("no peer can send to it");
            assert!(error.to_string().contains("which peers can send to"), "{error}");
        }
        let error = base(0).form_at(free(), Rank(2), 2).await.expect_err("no such rank");
        assert!(matches!(error, FormationError::Rank { .. }), "{error}");
    });
}

/// Goal: two barriers of one world are apart, and a name tells them apart. Method: both are used in turns.
#[test]
fn two_barriers_in_one_world() {
    let (place, host) = (Place::new(), Server::spawn_thread().expect("a host thread"));
    let (_launcher, worlds) = world::local(host.server(), 3).expect("a world");
    on_threads(async {
        let tasks = worlds.into_iter().zip(0..).map(|(world, rank)| {
            let base = |name: &str, port| {
                let base = NetBarrier::builder().server(host.server()).name(name).port(port);
                base.network(place.config(rank))
            };
            let (one, other) = (base("one", 1), base("other", 2));
            tokio::spawn(async move {
                let (mut one, mut other) = (one.form(&world).await?, other.form(&world).await?);
                for _ in 0..20 {
                    one.wait().await.map_err(FormationError::from)?;
                    other.wait().await.map_err(FormationError::from)?;
                }
                Ok::<_, FormationError>(())
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("a member").expect("passed");
        }
    });
}

/// Goal: a barrier works hosted by the thread of its own that it makes where there is no server. Method: neither
/// builder names one.
#[test]
fn a_barrier_hosts_itself() {
    let (place, at) = (Place::new(), free());
    on_threads(async {
        let tasks = (0..2).map(|rank| {
            let builder = NetBarrier::builder().network(place.config(rank));
            tokio::spawn(async move {
                let mut barrier = builder.form_at(at, Rank(rank), 2).await?;
                for _ in 0..20 {
                    barrier.wait().await.map_err(FormationError::from)?;
                }
                Ok::<_, FormationError>(())
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("a member").expect("passed");
        }
    });
}

/// Goal: a meeting that fails tells rank 0 which members are missing or gone, and those that rank 0 has turned away
/// what to check, long before their own time is over. Method: a group of three of which one has another size, then
/// one takes a rank that is taken, then one goes after it has come.
#[test]
fn a_meeting_that_fails_names_whom_it_misses() {
    let (place, host) = (Place::new(), Server::spawn_thread().expect("a host thread"));
    let base = |own: u32, millis| {
        let base = NetBarrier::builder().server(host.server()).network(place.config(own));
        base.formation_timeout(Duration::from_millis(millis))
    };
    let (short, long) = (700, 60_000);
    on_threads(async {
        let at = free();
        let (lead, other) = tokio::join!(
            base(0, short).form_at(at, Rank(0), 3),
            base(1, long).form_at(at, Rank(1), 2),
        );
        let (lead, other) = (lead.expect_err("two are missing"), other.expect_err("sent away"));
        assert!(lead.to_string().starts_with("ranks 1, 2 are missing"), "{lead}");
        assert!(matches!(other, FormationError::Refused { .. }), "{other}");

        let at = free();
        let (lead, one, same) = tokio::join!(
            base(0, short).form_at(at, Rank(0), 3),
            base(1, long).form_at(at, Rank(1), 3),
            base(2, long).form_at(at, Rank(1), 3),
        );
        let lead = lead.expect_err("one is missing");
        assert!(lead.to_string().starts_with("rank 2 is missing"), "{lead}");
        for error in [one.expect_err("not formed"), same.expect_err("sent away")] {
            assert!(matches!(error, FormationError::Refused { .. }), "{error}");
        }

        let at = free();
        // It goes once it has come: it has no network.
        let none = NetBarrier::builder().server(host.server());
        let (lead, gone, last) = tokio::join!(
            base(0, long).form_at(at, Rank(0), 3),
            none.form_at(at, Rank(1), 3),
            base(2, long).form_at(at, Rank(2), 3),
        );
        let (lead, last) = (lead.expect_err("one is gone"), last.expect_err("not formed"));
        assert!(matches!(lead, FormationError::Gone { rank: Rank(1) }), "{lead}");
        assert!(matches!(gone, Err(FormationError::NoNetwork)), "{gone:?}");
        assert!(matches!(last, FormationError::Refused { .. }), "{last}");
    });
}
