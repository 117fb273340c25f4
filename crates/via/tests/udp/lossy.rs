//! Lossy networks between real sockets, and peers that vanish behind them.

use std::time::Duration;

use vigie_via::{
    software_nic::{SoftwareNicConfig, Wire},
    vi::{DisconnectReason, Provider, Reliability},
};

use crate::{
    pair::{Echo, End, bind, seen_at},
    relay::{Faults, Relay},
};

/// From one packet to more than a window.
const LENGTHS: [usize; 16] =
    [0, 8, 64, 65, 1000, 1472, 4096, 65_536, 1, 1200, 3000, 9000, 30_000, 65_535, 0, 40_000];

fn config(is_tagged: bool) -> SoftwareNicConfig {
    SoftwareNicConfig::default().packet_bytes_max(1472).is_tagged(is_tagged)
}

fn long_packets() -> SoftwareNicConfig {
    SoftwareNicConfig::default().packet_bytes_max(20_000)
}

/// A client and a server with a relay between them.
fn connected(level: Reliability, config: SoftwareNicConfig, faults: Faults) -> (End, Echo, Relay) {
    let server = bind("127.0.0.1:0", config);
    let own = server.wire().path();
    let echo = Echo::new(level, move || server);
    let relay = Relay::new(own, 7, faults);
    let mut client = End::new(bind("127.0.0.1:0", config), level);
    client.call(&seen_at(&echo.address, own, relay.front));
    (client, echo, relay)
}

/// Goal: everything arrives once, whole and in order over real sockets, whatever is lost, repeated,
/// reordered and changed in transit, with tags and without; at both levels that guarantee it. Method: a forwarder
/// between the NICs with faults from 0.1 to 30 %; each side checks every byte that the other wrote.
#[test]
fn everything_arrives_over_lossy_networks() {
    let all = |part| Faults { lost: part, doubled: part, late: part, changed: part, longest: 0 };
    let cases = [
        (Reliability::ReliableDelivery, config(false), Faults { lost: 1, ..Faults::default() }, 20),
        (
            Reliability::ReliableReception,
            config(false),
            Faults { lost: 300, ..Faults::default() },
            1,
        ),
        (
            Reliability::ReliableDelivery,
            config(false),
            Faults { late: 200, ..Faults::default() },
            4,
        ),
        (
            Reliability::ReliableReception,
            config(false),
            Faults { doubled: 300, ..Faults::default() },
            4,
        ),
        (Reliability::ReliableDelivery, config(true), all(50), 2),
        (Reliability::ReliableReception, config(false), all(50), 2),
        (
            Reliability::ReliableDelivery,
            long_packets(),
            Faults { changed: 200, ..Faults::default() },
            8,
        ),
    ];
    for (level, config, faults, rounds) in cases {
        let (mut client, echo, relay) = connected(level, config, faults);
        for _ in 0..rounds {
            client.exchange(&LENGTHS);
        }
        let counters = client.nic.counters();
        let lost = relay.lost();
        let (_, others) = echo.end();
        let again = counters.fragments_sent_again + others.fragments_sent_again;
        assert!(faults.lost < 10 || (lost > 0 && again > 0), "{faults:?}: {counters:?}");
        let refused = counters.packets_refused + others.packets_refused;
        assert_eq!(faults.changed > 0, refused > 0, "{faults:?}: {counters:?}");
    }
}

/// Goal: a peer that vanishes silently, in both directions or in one, causes a typed error at both ends,
/// not an endless wait. Method: the forwarder stops forwarding, while one side waits for an answer, and
/// while neither does.
#[test]
fn a_peer_that_vanishes_is_noticed() {
    let config =
        config(false).keep_alive(Duration::from_millis(100)).dead_after(Duration::from_millis(500));
    for (from_client, to_client, writes) in
        [(true, true, true), (true, true, false), (true, false, false), (false, true, false)]
    {
        let level = Reliability::ReliableDelivery;
        let (mut client, echo, relay) = connected(level, config, Faults::default());
        client.exchange(&LENGTHS);
        relay.cut(from_client, to_client);
        if writes {
            client.write(0, 1000);
        }
        client.until("it is dead", |client| client.broken.is_some());
        let is_typed = |reason| {
            matches!(
                reason,
                Some(DisconnectReason::TransportFailed | DisconnectReason::Disconnected)
            )
        };
        assert!(is_typed(client.broken), "{:?}", client.broken);
        let (broken, _) = echo.broken();
        assert!(is_typed(broken), "{broken:?}");
    }
}

/// Goal: a network outage shorter than the limit loses nothing. Method: the forwarder stops in the
/// middle of transfers, and resumes after several unsuccessful attempts.
#[test]
fn a_network_that_comes_back_loses_nothing() {
    let level = Reliability::ReliableReception;
    let (mut client, echo, relay) = connected(level, config(false), Faults::default());
    for _ in 0..3 {
        relay.cut(true, true);
        let before = relay.lost();
        client.write(0, 3000);
        client.until("nothing is sent again", |_| relay.lost() > before + 8);
        relay.cut(false, false);
        client.go_on(&[3000, 1, 60_000, 2, 1472, 8, 0, 65_536], 1);
    }
    let (broken, _) = echo.end();
    assert_eq!(broken, None);
    assert!(client.nic.counters().fragments_sent_again > 0);
    assert!(client.nic.next_deadline().is_some(), "it is kept alive");
}

/// Goal: a path whose limit is lower than the kernel believes, and which reports nothing, still works.
/// Method: the forwarder drops everything longer than a limit; the loopback interface takes 64 KiB.
#[test]
fn a_path_that_is_shorter_than_it_looks() {
    for longest in [1200, 1400, 1500, 9000] {
        let faults = Faults { longest, ..Faults::default() };
        let level = Reliability::ReliableReception;
        let (mut client, echo, relay) = connected(level, SoftwareNicConfig::default(), faults);
        for _ in 0..3 {
            client.exchange(&LENGTHS);
        }
        assert!(relay.lost() > 0, "longer packets were tried");
        assert_eq!(echo.end().0, None);
    }
}
