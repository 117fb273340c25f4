//! Strangers on the same network.

use std::thread;

use fastrand::Rng;
use vigie_via::{
    link::{EtherType, Link},
    software_nic::Wire,
    vi::Reliability,
};

use crate::{
    nics::{LENGTHS, Settings, connected},
    veth::with_veth,
};

/// Goal: garbage frames are dropped, get no answer, and disturb no connection. Method: frames of all
/// lengths from the far end while a connection is in use: random, with a valid header, with fragments
/// that never become a packet, with the peer's header; the stranger listens for answers to its own port.
#[test]
fn rubbish_is_dropped_and_not_answered() {
    with_veth("strangers::rubbish_is_dropped_and_not_answered", |far| {
        let level = Reliability::ReliableDelivery;
        let (mut client, echo) = connected(far, level, [Settings::default(); 2]);
        let door = far.door();
        let opened = thread::spawn(move || {
            door.enter();
            let link = Link::builder("v1").ether_type(EtherType::EXPERIMENTAL_2);
            link.open().expect("a link")
        });
        let mut stranger = opened.join().expect("no panic");
        let own = client.nic.wire().path();
        let mut random = Rng::with_seed(5);
        for round in 0..40 {
            for _ in 0..50 {
                let length = random.usize(0..1400);
                let mut frame: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
                let [high, low] = own.port.to_be_bytes();
                if length >= 12 && random.u8(..4) > 0 {
                    frame[4..8].copy_from_slice(&[high, low, 0, 9]);
                }
                if length >= 12 && random.bool() {
                    let pieces = if random.bool() { 1 } else { random.u8(..) };
                    frame[..4].copy_from_slice(&[b'V', 1, random.u8(..3), pieces]);
                    let count = u16::try_from(length - 8).expect("short").to_le_bytes();
                    frame[8..12].copy_from_slice(&[random.u8(1..10), 1, count[0], count[1]]);
                }
                stranger.send(own.address, &[&frame]).expect("room");
                stranger.flush().expect("it is up");
            }
            client.exchange(&[8, 1000, round * 100, 0, 5000, 1, 2, 3]);
        }
        let mut answers = 0;
        while stranger
            .recv_each(64, |frame| {
                let mut front = [0; 22];
                frame.read(0, &mut front);
                answers += usize::from(front[18..20] == [0, 9]);
            })
            .expect("it is up")
            > 0
        {}
        assert_eq!(answers, 0);
        client.exchange(&LENGTHS);
        let (broken, _) = echo.end();
        assert_eq!((broken, client.broken), (None, None));
        let counters = client.nic.counters();
        assert!(client.nic.wire().counters().malformed > 0);
        assert!(counters.packets_refused + counters.packets_without_connection > 0, "{counters:?}");
    });
}
