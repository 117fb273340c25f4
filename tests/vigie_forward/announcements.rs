//! Announcements of public addresses, and hosts that want the same one.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use vigie::via::link::{EtherType, Link, MacAddress};

use crate::{
    instance::{BOUND, Folder, Instance},
    network::{Host, Network, with_network},
};

const ADDRESS: [u8; 4] = [10, 2, 0, 9];

const NAT: [&str; 9] =
    ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9", "--path", "af-packet"];

fn nat(router: &Host, folder: &Folder) -> Instance {
    router.forwarder(folder, &NAT)
}

/// Opens a link of the server that hears ARP.
fn arp_link(network: &Network) -> Link {
    let open = || Link::builder("s0").ether_type(EtherType::ARP).open().expect("a link");
    network.server.inside(open)
}

/// Waits for announcements of the address, from this Ethernet address alone.
#[track_caller]
fn announced(link: &mut Link, by: MacAddress, count: usize) {
    let expected = [&by.0[..], &ADDRESS, &[0; 6], &ADDRESS].concat();
    let mut found = 0;
    for _ in 0..BOUND.as_millis() {
        let received = link.recv_each(64, |frame| {
            let mut bytes = vec![0; frame.len()];
            frame.read(0, &mut bytes);
            if bytes.get(20..22) == Some(&[0, 1]) && bytes.get(28..32) == Some(&ADDRESS) {
                assert_eq!(bytes[..12], [&[0xff; 6][..], &by.0].concat());
                assert_eq!(bytes[22..42], expected);
                found += 1;
            }
        });
        received.expect("it is there");
        if found >= count {
            return;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
    panic!("{found} announcements have come from {by}");
}

/// Goal: hosts outside learn at once where the public address is: when a flow begins, and when its outside interface has another Ethernet address, gets its carrier back or is
/// replaced; also without rights. Method: a server that knows the Ethernet address of an earlier router, and what it hears.
#[test]
fn public_addresses_are_announced() {
    with_network("announcements::public_addresses_are_announced", |network| {
        let earlier = "ip neigh replace 10.2.0.9 lladdr 02:00:00:00:00:99 dev s0 nud reachable";
        network.server.run(earlier);
        let (folder, mut link) = (Folder::new(), arp_link(network));
        let mut nat = nat(&network.router, &folder).ready();
        announced(&mut link, network.address_of("rb"), 2);
        let (known, mac) = ("ip neigh show 10.2.0.9 dev s0", network.address_of("rb").to_string());
        let mut tries = 0..100;
        while !network.server.run(known).contains(&mac) {
            assert!(tries.next().is_some(), "{}", network.server.run(known));
        }

        network.router.run("ip link set rb address 02:00:00:00:00:77");
        announced(&mut link, MacAddress([2, 0, 0, 0, 0, 0x77]), 2);
        network.server.run("ip link set s0 down");
        nat.until("interface rb is down or has no carrier");
        network.server.run("ip link set s0 up");
        // The first one may have come before.
        let mut link = arp_link(network);
        announced(&mut link, MacAddress([2, 0, 0, 0, 0, 0x77]), 1);

        network.router.run("ip link del rb");
        nat.until("interface rb is gone");
        network.wire("rb", "10.2.0.1/24", &network.server, "s0", "10.2.0.2/24");
        let mut link = arp_link(network);
        announced(&mut link, network.address_of("rb"), 1);
        assert_eq!(nat.end().code(), 0);

        let mut link = arp_link(network);
        let arguments = [&NAT[..], &["--drop-all-rights"]].concat();
        let nat = network.router.forwarder(&folder, &arguments).ready();
        announced(&mut link, network.address_of("rb"), 2);
        network.router.run("ip link set rb address 02:00:00:00:00:77");
        announced(&mut link, MacAddress([2, 0, 0, 0, 0, 0x77]), 2);
        assert_eq!(nat.end().code(), 0);
    });
}

/// A request for the address from no one, of a host with this Ethernet address.
fn probe(from: MacAddress) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, 1], &from.0[..], &[0; 4], &[0; 6], &ADDRESS].concat()
}

/// Goal: of two hosts that ask for the address at once, that with the higher Ethernet address does not start, and the other one names its rival. Method: a server that sends
/// probes with the lowest and the highest Ethernet address.
#[test]
fn one_of_two_that_ask_at_once_starts() {
    with_network("announcements::one_of_two_that_ask_at_once_starts", |network| {
        let asking = |from: MacAddress| {
            let mut link = arp_link(network);
            let (asks, ended) = mpsc::channel::<()>();
            let between = Duration::from_millis(20);
            thread::spawn(move || {
                while ended.recv_timeout(between) == Err(RecvTimeoutError::Timeout) {
                    link.send(MacAddress::BROADCAST, &[&probe(from)]).expect("there is room");
                    link.flush().expect("it is up");
                }
            });
            asks
        };
        let asks = asking(MacAddress([0, 0, 0, 0, 0, 1]));
        let ended = nat(&network.router, &Folder::new()).wait();
        assert_eq!(ended.code(), 2, "{}", ended.said);
        let expected = "another host at `rb` is about to take 10.2.0.9 (its Ethernet address is 00:00:00:00:00:01,";
        assert!(ended.said.contains(expected), "{}", ended.said);
        drop(asks);

        let asks = asking(MacAddress([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]));
        let mut nat = nat(&network.router, &Folder::new());
        nat.until(
            "another host at `rb` wants 10.2.0.9, too (its Ethernet address is fe:ff:ff:ff:ff:ff)",
        );
        drop(asks);
        assert_eq!(nat.ready().end().code(), 0);
    });
}

/// Goal: another host is told that answers only when the start has asked already, and one that cannot be asked before its link has a carrier. Method: an answer to the fourth
/// probe, and a server that has the address behind a link that is down at first.
#[test]
fn hosts_that_answer_later_are_told() {
    with_network("announcements::hosts_that_answer_later_are_told", |network| {
        let mut link = arp_link(network);
        let (hears, ended) = mpsc::channel::<()>();
        let by = [2, 0, 0, 0, 0, 0x55];
        thread::spawn(move || {
            let mut probes = 0;
            while ended.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
                let mut asked = None;
                let received = link.recv_each(64, |frame| {
                    let mut bytes = vec![0; frame.len()];
                    frame.read(0, &mut bytes);
                    if bytes.get(28..32) == Some(&[0; 4]) && bytes.get(38..42) == Some(&ADDRESS) {
                        probes += 1;
                        asked = bytes.get(6..12).map(<[u8]>::to_vec);
                    }
                });
                received.expect("it is up");
                if let Some(to) = asked.filter(|_| probes > 3) {
                    let fields: [&[u8]; 5] =
                        [&[0, 1, 8, 0, 6, 4, 0, 2], &by, &ADDRESS, &to, &[0; 4]];
                    let to = MacAddress(to.as_slice().try_into().expect("six bytes"));
                    link.send(to, &fields).expect("there is room");
                    link.flush().expect("it is up");
                }
            }
        });
        let mut late = nat(&network.router, &Folder::new()).ready();
        late.until("has 10.2.0.9, too (its Ethernet address is 02:00:00:00:00:55)");
        drop(hears);
        assert_eq!(late.end().code(), 0);

        network.server.run("ip addr add 10.2.0.9/24 dev s0");
        network.server.run("ip link set s0 down");
        let mut down = nat(&network.router, &Folder::new()).ready();
        down.until("whether another host at rb has the address 10.2.0.9 is unknown: the interface");
        network.server.run("ip link set s0 up");
        down.until("another host at `rb` has 10.2.0.9, too (its Ethernet address is ");
        assert_eq!(down.end().code(), 0);
    });
}
