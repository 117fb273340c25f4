//! Strangers, and two groups at one address.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use vigie_barrier::{Algorithm, net::NetBarrier};
use vigie_detect::Server;
use vigie_via::datagram::NodeAddress;

use crate::stage::{Entries, Place, play_with};

const PORT: u8 = 3;

/// The first bytes of a datagram to a port, so that it reaches the barrier.
fn framed(packet: &[u8], from: u8) -> Vec<u8> {
    let length = u16::try_from(packet.len()).expect("short").to_be_bytes();
    [&b"MC\x01"[..], &[PORT, from, 0], &length, packet].concat()
}

/// Returns a socket that hears what is sent to a group, beside the members on this host.
fn listen(group: Ipv4Addr, port: u16, own: IpAddr) -> std::io::Result<UdpSocket> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let IpAddr::V4(own) = own else { panic!("version 4") };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::from((group, port)))?;
    sockopt::set_ip_add_membership(&socket, &group, &own)?;
    Ok(socket.into())
}

/// Goal: forged, truncated and random packets, replays of real ones, and packets of another group do not disturb, and
/// are counted. Method: a stranger that knows the port and listens to the multicast sends them while the group meets.
#[test]
fn strangers_are_dropped_and_counted() {
    let (place, size) = (Place::new(), 3);
    let host = Server::spawn_thread().expect("a host thread");
    let group: Ipv4Addr = [239, 195, 7, 7].into();
    let algorithm: Algorithm = "concurrent".parse().expect("a name");
    let builders = (0..size).map(|rank| {
        NetBarrier::builder()
            .server(host.server())
            .network(place.config(rank))
            .port(PORT)
            .algorithm(algorithm)
            .multicast_group(NodeAddress::Ip(group.into()))
    });
    let entries = Entries::default();
    let udp_port = place.udp_port(PORT);
    let counters = play_with(&host, builders.collect(), move |mut barrier| {
        let entries = entries.clone();
        async move {
            let rank = barrier.rank().0;
            let stranger = UdpSocket::bind((place.address(100 + rank), place.udp_port(9)))?;
            let ear = listen(group, udp_port, place.address(rank))?;
            let at = (place.address(rank), udp_port);
            let (mut random, mut heard) = (fastrand::Rng::with_seed(u64::from(rank)), Vec::new());
            for epoch in 0..200 {
                let mut noise = vec![0; random.usize(0..80)];
                random.fill(&mut noise);
                stranger.send_to(&framed(&noise, 9), at)?;
                let mut forged = b"vB\x02\x01".to_vec();
                forged.extend(std::iter::repeat_with(|| random.u8(..)).take(16));
                forged.extend([0; 12]);
                stranger.send_to(&framed(&forged, 9), at)?;
                stranger.send_to(&framed(&forged[..random.usize(0..30)], 9), at)?;
                if let Some(old) = random.choice(&heard) {
                    let old: &Vec<u8> = old;
                    stranger.send_to(&framed(&old[8..], 9), at)?;
                }
                entries.enter();
                barrier.wait().await?;
                entries.check(epoch, size);
                // Real packets, to be replayed from now on.
                let mut bytes = [0; 2000];
                while let Ok(length) = ear.recv(&mut bytes) {
                    heard.push(bytes[..length].to_vec());
                }
            }
            barrier.wait().await?;
            Ok(barrier.counters())
        }
    });
    for (rank, counters) in counters.into_iter().enumerate() {
        let member = counters.member;
        assert!(member.malformed > 0 && member.forged > 0, "{member:?}");
        // Rank 0 has sent what was replayed, and does not recognise it.
        let replayed =
            if rank == 0 { member.unknown_senders } else { member.stale + member.duplicates };
        assert!(replayed > 0, "{member:?}");
    }
}

/// Goal: two groups on one multicast address and one port do not disturb each other. Method: both meet often, on
/// addresses of their own; each has dropped what was for the other.
#[test]
fn two_groups_share_an_address() {
    let group: Ipv4Addr = [239, 195, 7, 8].into();
    let epochs = 100;
    let one = |place: Place| {
        let host = Server::spawn_thread().expect("a host thread");
        let builders = (0..3).map(|rank| {
            NetBarrier::builder()
                .server(host.server())
                .network(place.config(rank))
                .algorithm("concurrent".parse().expect("a name"))
                .multicast_group(NodeAddress::Ip(group.into()))
        });
        let entries = Entries::default();
        play_with(&host, builders.collect(), move |mut barrier| {
            let entries = entries.clone();
            async move {
                for epoch in 0..epochs {
                    entries.enter();
                    barrier.wait().await?;
                    entries.check(epoch, 3);
                    tokio::time::sleep(Duration::from_micros(500)).await;
                }
                Ok(barrier.counters().member.dropped())
            }
        })
    };
    // The same ports, so that each hears the other's multicasts.
    let number = std::process::id().wrapping_mul(61) ^ 0x8000;
    let places = [Place::of(number), Place::of(number ^ 0x0100)];
    let dropped = std::thread::scope(|scope| {
        let groups = places.map(|place| scope.spawn(move || one(place)));
        groups.map(|group| group.join().expect("a group"))
    });
    let dropped: u64 = dropped.iter().flatten().sum();
    assert!(dropped > 0, "they never met at that address");
}
