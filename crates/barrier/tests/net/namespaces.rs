//! Members in network namespaces on a bridge, where the host allows it: raw Ethernet, and multicast that is blocked.

use std::{
    net::Ipv4Addr,
    sync::{Mutex, OnceLock, mpsc},
    thread,
    time::Duration,
};

use vigie_barrier::{
    Algorithm, Rank,
    net::{MulticastState, NetBarrier},
};
use vigie_detect::Server;
use vigie_via::{
    datagram::UdpConfig,
    ether::Ether,
    link::{BackEnd, Link},
    message::Endpoint,
    protocol::EngineConfig,
    software_nic::Secret,
    world::{self, World},
};

use crate::{
    kit::namespace::{Namespace, WAYS, inside, near},
    stage::Failed,
};

const SIZE: u32 = 4;

/// Namespaces on a bridge in this one, each kept by a process.
struct Bridge(Vec<Namespace>);

impl Bridge {
    fn make() -> Self {
        let mut this = Self(Vec::new());
        near(
            "ip link set lo up; ip link add br0 type bridge mcast_snooping 0 && ip link set br0 up",
        );
        for rank in 0..SIZE {
            let namespace = Namespace::new();
            let (id, last) = (namespace.id(), rank + 1);
            this.0.push(namespace);
            near(&format!(
                "ip link add port{rank} type veth peer name veth0 netns {id} && \
                 ip link set port{rank} master br0 up && \
                 nsenter -t {id} -n sh -c 'ip link set lo up; ip addr add 10.79.0.{last}/24 dev veth0 && \
                 ip link set veth0 up && ip route add 224.0.0.0/4 dev veth0'"
            ));
        }
        near("ip link set br0 type bridge mcast_snooping 0");
        this
    }

    /// Runs `body` in each namespace, on a thread of its own; returns what they return, by rank.
    fn play<T: Send + 'static>(&self, body: fn(u32) -> Result<T, Failed>) -> Vec<T> {
        let (sender, receiver) = mpsc::channel();
        for (rank, namespace) in (0..).zip(&self.0) {
            let (door, sender) = (namespace.door(), sender.clone());
            thread::spawn(move || {
                door.enter();
                let _ = sender.send((rank, body(rank).map_err(|error| error.to_string())));
            });
        }
        let mut all: Vec<_> = (0..SIZE)
            .map(|_| receiver.recv_timeout(Duration::from_secs(60)).expect("it hangs"))
            .collect();
        all.sort_by_key(|(rank, _)| *rank);
        let value = |(rank, value): (u32, Result<T, String>)| {
            value.unwrap_or_else(|error| panic!("member {rank}: {error}"))
        };
        all.into_iter().map(value).collect()
    }
}

fn address(rank: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 79, 0, u8::try_from(rank + 1).expect("small"))
}

/// Forms the group and goes through some barriers.
fn meet(
    rank: u32,
    builder: vigie_barrier::net::NetBuilder,
    name: &str,
) -> Result<MulticastState, Failed> {
    let algorithm: Algorithm = name.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let meeting =
            builder.algorithm(algorithm).form_at((address(0), 4747).into(), Rank(rank), SIZE);
        let mut barrier = meeting.await?;
        for _ in 0..200 {
            barrier.wait().await?;
        }
        let multicast = barrier.multicast().clone();
        barrier.leave(Duration::from_secs(5)).await?;
        Ok(multicast)
    })
}

fn over_udp(rank: u32, name: &str) -> Result<MulticastState, Failed> {
    meet(rank, NetBarrier::builder().network(UdpConfig::new(address(rank).into())), name)
}

fn over_ether(rank: u32, name: &str) -> Result<MulticastState, Failed> {
    let link = Link::builder("veth0").back_end(BackEnd::PacketRings).open()?;
    meet(rank, NetBarrier::builder().network(link), name)
}

/// Goal: barriers work between hosts, over UDP and raw Ethernet, with multicast through a switch. Method: namespaces on
/// a bridge, an algorithm of each family.
#[test]
fn members_on_a_bridge() {
    inside("namespaces::members_on_a_bridge", WAYS, || {
        let bridge = Bridge::make();
        let is_working = |states: Vec<MulticastState>| {
            assert!(states.iter().all(|state| *state == MulticastState::Works), "{states:?}");
        };
        is_working(bridge.play(|rank| over_udp(rank, "concurrent")));
        is_working(bridge.play(|rank| over_ether(rank, "ternary")));
        is_working(bridge.play(|rank| over_ether(rank, "concurrent")));
        bridge.play(|rank| over_ether(rank, "dissemination"));
    });
}

/// Forms a group over messages of `via` on Ethernet: a world of threads, each in its namespace.
fn over_ether_messages(rank: u32) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let host = Server::spawn_thread()?;
    let nic = Ether::builder("veth0").open(Secret::new([3; 16]))?;
    let places = WORLDS.get().ok_or("no world")?;
    let world = places.lock().map_err(|_| "poisoned")?[usize::try_from(rank)?].take();
    let world = world.ok_or("taken")?;
    runtime.block_on(async {
        let server = host.server();
        let deadline = server.now() + Duration::from_secs(30);
        let endpoint =
            Endpoint::join_over(server, &world, nic, EngineConfig::default(), deadline).await?;
        let builder = NetBarrier::builder().server(server);
        let mut barrier = builder.over(&endpoint.communicator())?;
        for _ in 0..50 {
            barrier.wait().await?;
        }
        barrier.replan().await?;
        for _ in 0..50 {
            barrier.wait().await?;
        }
        barrier.leave(Duration::from_secs(5)).await?;
        Ok(())
    })
}

/// The world of the ranks above, which take their parts out of it.
static WORLDS: OnceLock<Mutex<Vec<Option<World>>>> = OnceLock::new();

/// Goal: messages over Ethernet carry a barrier, which measures them and goes on with what it chooses. Method: a rank in
/// each namespace on a bridge.
#[test]
fn messages_over_ethernet_carry_a_barrier() {
    inside("namespaces::messages_over_ethernet_carry_a_barrier", WAYS, || {
        let host = Server::spawn_thread().expect("a host thread");
        let (_launcher, worlds) = world::local(host.server(), SIZE).expect("a world");
        let worlds = Mutex::new(worlds.into_iter().map(Some).collect());
        assert!(WORLDS.set(worlds).is_ok(), "once");
        Bridge::make().play(over_ether_messages);
    });
}

/// Goal: a network that swallows multicasts, and one without a route for them, is found out when the group is formed; the
/// barrier says what to do, and works. Method: a bridge that floods no multicast to its ports; no route in a namespace.
#[test]
fn blocked_multicast_is_found_out() {
    inside("namespaces::blocked_multicast_is_found_out", WAYS, || {
        let bridge = Bridge::make();
        let is_blocked = |states: Vec<MulticastState>, wanted: &str| {
            for state in states {
                let MulticastState::Unavailable { why } = state else { panic!("{state:?}") };
                assert!(why.contains(wanted), "{why}");
            }
        };
        for rank in 1..SIZE {
            near(&format!("bridge link set dev port{rank} mcast_flood off"));
        }
        is_blocked(bridge.play(|rank| over_udp(rank, "concurrent")), "mcast_snooping 0");
        is_blocked(bridge.play(|rank| over_ether(rank, "concurrent")), "snooping");
        let first = bridge.0[0].id();
        near(&format!("nsenter -t {first} -n ip route add prohibit 239.0.0.0/8"));
        is_blocked(bridge.play(|rank| over_udp(rank, "ternary")), "224.0.0.0/4");
    });
}
