//! Links that change or go away.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vigie_detect::{ArmOutcome, Instant};
use vigie_via::{
    link::BackEnd,
    vi::{DisconnectReason, Provider, Reliability},
};

use crate::{
    kit::namespace::{inside, near},
    nics::{LENGTHS, Settings, connected, near_nic},
    pair::{Echo, End},
    veth::{Far, with_veth},
};

/// Goal: everything arrives whole between all back ends that need only CAP_NET_RAW. Method: all pairs of
/// them, all lengths.
#[test]
fn back_ends_understand_each_other() {
    with_veth("links::back_ends_understand_each_other", |far| {
        for here in [BackEnd::PacketRings, BackEnd::PacketCalls] {
            for there in [BackEnd::PacketRings, BackEnd::PacketCalls] {
                let ends =
                    [here, there].map(|back_end| Settings { back_end, ..Settings::default() });
                let (mut client, echo) = connected(far, Reliability::ReliableReception, ends);
                assert_eq!(client.nic.wire().back_end(), here);
                for _ in 0..5 {
                    client.exchange(&LENGTHS);
                }
                assert_eq!(echo.end().0, None);
                assert_eq!(client.nic.wire().counters().malformed, 0);
            }
        }
    });
}

/// Goal: the same with AF_XDP at one end, and again after its owner has ended, whose queue becomes free
/// a moment later. Method: twice.
#[test]
#[ignore = "needs privilege: CAP_BPF in the first user namespace"]
fn xdp_serves_too() {
    inside("links::xdp_serves_too", &[&["-n"]], || {
        let far = Far::new();
        let xdp = Settings { back_end: BackEnd::Xdp, ..Settings::default() };
        for _ in 0..2 {
            let level = Reliability::ReliableReception;
            let (mut client, echo) = connected(&far, level, [xdp, Settings::default()]);
            for _ in 0..5 {
                client.exchange(&LENGTHS);
            }
            assert_eq!(echo.end().0, None);
        }
    });
}

/// Goal: NICs of one interface reach each other. Method: two of them, all lengths.
#[test]
fn an_interface_is_shared() {
    with_veth("links::an_interface_is_shared", |_| {
        let server = near_nic(Settings::default());
        let echo = Echo::new(Reliability::ReliableDelivery, move || server);
        let mut client = End::new(near_nic(Settings::default()), Reliability::ReliableDelivery);
        client.call(&echo.address);
        for _ in 0..5 {
            client.exchange(&LENGTHS);
        }
        assert_eq!(echo.end().0, None);
    });
}

/// Goal: a temporary link failure is survived. Method: down during a write, up again after some of it
/// was sent unsuccessfully; from either end, with both back ends.
#[test]
fn a_link_goes_down_and_up() {
    with_veth("links::a_link_goes_down_and_up", |far| {
        for back_end in [BackEnd::PacketRings, BackEnd::PacketCalls] {
            let settings = Settings { back_end, ..Settings::default() };
            let level = Reliability::ReliableDelivery;
            let (mut client, echo) = connected(far, level, [settings; 2]);
            for is_near in [true, false] {
                let set = |state: &str| {
                    if is_near {
                        near(&format!("ip link set v0 {state}"));
                    } else {
                        far.run(&format!("ip link set v1 {state}"));
                    }
                };
                client.exchange(&LENGTHS);
                set("down");
                client.write(0, LENGTHS[0]);
                let until = Instant::now() + Duration::from_millis(300);
                client.until("time stands still", |_| Instant::now() > until);
                assert_eq!(client.nic.arm().expect("it sleeps all the same"), ArmOutcome::Armed);
                assert!(!client.nic.wire().is_up() && !client.nic.wire().is_removed());
                set("up");
                client.go_on(&LENGTHS, 1);
                let _ready_or_not = client.nic.arm().expect("it may sleep");
                assert!(client.nic.wire().is_up());
            }
            assert_eq!(echo.end().0, None);
        }
    });
}

/// Goal: an MTU change is followed, also by packets made for a longer one. Method: change both ends'
/// between exchanges, and during a transfer whose packets no longer fit a frame.
#[test]
fn the_mtu_changes() {
    with_veth("links::the_mtu_changes", |far| {
        near("ip link set v0 mtu 9000");
        far.run("ip link set v1 mtu 9000");
        let settings = [Settings::default(); 2];
        let (mut client, echo) = connected(far, Reliability::ReliableReception, settings);
        client.exchange(&LENGTHS);
        for mtu in [1500, 1300, 9000, 2000] {
            // The far end loses all but the first of it.
            far.run(&format!("ip link set v1 mtu {mtu}"));
            client.write(0, LENGTHS[2]);
            near(&format!("ip link set v0 mtu {mtu}"));
            client.go_on(&[LENGTHS[2], 1, 0, 30_000], 1);
            client.exchange(&LENGTHS);
        }
        assert!(client.nic.wire().counters().fragmented > 0);
        assert_eq!(echo.end().0, None);
    });
}

/// Goal: an interface that is removed ends the connection at both ends, with a reason, and the wire
/// reports it; a sleeper wakes up in time and not repeatedly. Method: remove it.
#[test]
fn an_interface_is_removed() {
    with_veth("links::an_interface_is_removed", |far| {
        let mut settings = Settings::default();
        settings.config = settings.config.keep_alive(Duration::from_millis(100));
        settings.config = settings.config.dead_after(Duration::from_millis(500));
        let level = Reliability::ReliableDelivery;
        let (mut client, echo) = connected(far, level, [settings; 2]);
        client.exchange(&LENGTHS);
        near("ip link del v0");
        client.write(0, 100);
        client.until("it is dead", |client| client.broken.is_some());
        assert_eq!(client.broken, Some(DisconnectReason::TransportFailed));
        assert_eq!(echo.broken().0, Some(DisconnectReason::TransportFailed));
        assert!(client.nic.counters().wire_errors > 0);
        assert!(client.nic.next_event().is_none());
        let _its_queues_have_what_was_flushed = client.nic.arm().expect("it may sleep");
        assert!(client.nic.wire().is_removed());
        assert!(!is_readable(&client.nic));
    });
}

fn is_readable(nic: &impl Provider) -> bool {
    let descriptor = nic.descriptor().expect("there is one");
    let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut descriptors, Some(&Timespec::default())).expect("polled") > 0
}
