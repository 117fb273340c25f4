//! NICs in two network namespaces, over a real link that is lossy, changes or goes away.

use std::time::Duration;

use vigie_detect::Instant;
use vigie_via::{
    software_nic::SoftwareNicConfig,
    vi::{DisconnectReason, Provider, Reliability},
};

use crate::{
    kit::{
        namespace::{near, try_near},
        skip::skip,
    },
    pair::{Echo, End, bind},
    veth::{FAR, Far, NEAR, with_veth},
};

const LENGTHS: [usize; 8] = [8, 1000, 65_536, 0, 40_000, 1472, 65_535, 9000];

fn connected(far: &Far, level: Reliability, config: SoftwareNicConfig) -> (End, Echo) {
    let door = far.door();
    let echo = Echo::new(level, move || {
        door.enter();
        bind(&format!("{FAR}:0"), config)
    });
    let mut client = End::new(bind(&format!("{NEAR}:0"), config), level);
    client.call(&echo.address);
    (client, echo)
}

/// Goal: an overflowing queue loses packets, and nothing else is lost. Method: a link of 200 Mbit/s with
/// a queue shorter than a window, in both directions.
#[test]
fn a_slow_link_with_a_short_queue() {
    with_veth("links::a_slow_link_with_a_short_queue", |far| {
        let shape = "root tbf rate 200mbit burst 16kb limit 20kb";
        near(&format!("tc qdisc add dev v0 {shape}"));
        far.run(&format!("tc qdisc add dev v1 {shape}"));
        let (mut client, echo) =
            connected(far, Reliability::ReliableReception, SoftwareNicConfig::default());
        for _ in 0..20 {
            client.exchange(&LENGTHS);
        }
        let counters = client.nic.counters();
        let (broken, others) = echo.end();
        assert_eq!(broken, None);
        let again = counters.fragments_sent_again + others.fragments_sent_again;
        assert!(again > 0, "the queue never overflowed: {counters:?}");
    });
}

/// Goal: the same on links that lose, reorder and repeat at random. Method: the kernel's netem, if available.
#[test]
fn a_link_with_netem() {
    const TEST: &str = "links::a_link_with_netem";
    with_veth(TEST, |far| {
        for faults in ["loss 10%", "loss 1% delay 1ms reorder 25% duplicate 5%", "loss 0.1%"] {
            let netem = format!("tc qdisc replace dev v0 root netem {faults}");
            if let Err(said) = try_near(&netem) {
                skip(TEST, &format!("a kernel with CONFIG_NET_SCH_NETEM: {}", said.trim()));
                return;
            }
            far.run(&format!("tc qdisc replace dev v1 root netem {faults}"));
            let (mut client, echo) =
                connected(far, Reliability::ReliableReception, SoftwareNicConfig::default());
            for _ in 0..10 {
                client.exchange(&LENGTHS);
            }
            assert_eq!(echo.end().0, None);
        }
    });
}

/// Goal: a path that becomes shorter or longer is followed. Method: change the MTU of both ends, between
/// exchanges and during a transfer.
#[test]
fn the_mtu_changes() {
    with_veth("links::the_mtu_changes", |far| {
        near("ip link set v0 mtu 9000");
        far.run("ip link set v1 mtu 9000");
        let (mut client, echo) =
            connected(far, Reliability::ReliableReception, SoftwareNicConfig::default());
        client.exchange(&LENGTHS);
        for mtu in [1500, 1300, 9000] {
            client.write(0, LENGTHS[0]);
            far.run(&format!("ip link set v1 mtu {mtu}"));
            near(&format!("ip link set v0 mtu {mtu}"));
            client.go_on(&LENGTHS, 1);
            client.exchange(&LENGTHS);
        }
        assert_eq!(echo.end().0, None);
    });
}

/// Goal: a temporary link failure is survived, whatever the socket reports meanwhile. Method: down
/// during a write, up again after some of it was sent unsuccessfully.
#[test]
fn a_link_goes_down_and_up() {
    with_veth("links::a_link_goes_down_and_up", |far| {
        let (mut client, echo) =
            connected(far, Reliability::ReliableDelivery, SoftwareNicConfig::default());
        for _ in 0..2 {
            client.exchange(&LENGTHS);
            near("ip link set v0 down");
            client.write(0, LENGTHS[0]);
            let until = Instant::now() + Duration::from_millis(300);
            client.until("time stands still", |_| Instant::now() > until);
            near("ip link set v0 up");
            client.go_on(&LENGTHS, 1);
        }
        assert_eq!(echo.end().0, None);
    });
}

/// Goal: an interface that is removed ends the connection at both ends, with a reason. Method: remove it.
#[test]
fn an_interface_is_removed() {
    with_veth("links::an_interface_is_removed", |far| {
        let config = SoftwareNicConfig::default()
            .keep_alive(Duration::from_millis(100))
            .dead_after(Duration::from_millis(500));
        let (mut client, echo) = connected(far, Reliability::ReliableDelivery, config);
        client.exchange(&LENGTHS);
        near("ip link del v0");
        client.write(0, 100);
        client.until("it is dead", |client| client.broken.is_some());
        assert_eq!(client.broken, Some(DisconnectReason::TransportFailed));
        assert_eq!(echo.broken().0, Some(DisconnectReason::TransportFailed));
        assert!(client.nic.counters().wire_errors > 0);
        assert!(client.nic.next_event().is_none());
    });
}
