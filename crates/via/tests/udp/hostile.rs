//! Strangers at a real socket.

use std::net::{SocketAddr, UdpSocket};

use fastrand::Rng;
use vigie_detect::Instant;
use vigie_via::{
    software_nic::{Secret, SoftwareNicConfig, Wire},
    udp::Udp,
    vi::{Connect, Provider, Reliability},
};

use crate::pair::{Echo, End, bind};

/// Goal: garbage at the socket is counted and dropped, gets no answer, and disturbs no connection.
/// Method: datagrams of all lengths and kinds from a stranger, while a connection is in use; the
/// stranger listens for answers.
#[test]
fn rubbish_is_counted_and_not_answered() {
    let server = bind("127.0.0.1:0", SoftwareNicConfig::default());
    let to: SocketAddr = server.wire().path();
    let echo = Echo::new(Reliability::ReliableDelivery, move || server);
    let mut client =
        End::new(bind("127.0.0.1:0", SoftwareNicConfig::default()), Reliability::ReliableDelivery);
    client.call(&echo.address);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    stranger.set_nonblocking(true).expect("a socket");
    let mut random = Rng::with_seed(3);
    let mut sent = 0;
    for round in 0..40 {
        for _ in 0..50 {
            let length = if random.bool() { random.usize(1..100) } else { random.usize(1..60_000) };
            let mut packet: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            if random.bool() && length >= 4 {
                // An existing kind, and a correct length.
                let count = u16::try_from(length).expect("short").to_le_bytes();
                packet[..4].copy_from_slice(&[random.u8(1..10), 1, count[0], count[1]]);
            }
            sent += u64::from(stranger.send_to(&packet, to).is_ok());
        }
        client.exchange(&[8, 1000, round * 100, 0, 5000, 1, 2, 3]);
    }
    let mut answer = [0; 100];
    let error = stranger.recv_from(&mut answer).expect_err("no answer to a stranger");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    let (broken, counters) = echo.end();
    assert_eq!((broken, client.broken), (None, None));
    let dropped = counters.packets_refused + counters.packets_without_connection;
    assert!(dropped > 0 && sent > 0, "{sent} sent: {counters:?}");
}

/// Goal: the calls of a NIC with another secret are not answered. Method: such a NIC calls until its deadline.
#[test]
fn another_secret_is_not_answered() {
    let server = bind("127.0.0.1:0", SoftwareNicConfig::default());
    let echo = Echo::new(Reliability::ReliableDelivery, move || server);
    let other = "127.0.0.1:0".parse().expect("an address");
    let mut nic =
        Udp::bind(other, Secret::new([3; 16]), SoftwareNicConfig::default()).expect("a NIC");
    let tag = nic.create_tag();
    let vi = nic
        .create_vi(vigie_via::vi::ViAttributes {
            reliability: Reliability::ReliableDelivery,
            tag,
            send_cq: None,
            receive_cq: None,
            allows_write: false,
            allows_read: false,
        })
        .expect("a VI");
    let deadline = Instant::now() + std::time::Duration::from_millis(300);
    nic.connect(Connect::new(vi, &echo.address, crate::pair::DOOR, deadline)).expect("asked");
    let bound = Instant::now() + crate::pair::BOUND;
    let event = loop {
        assert!(Instant::now() < bound, "a call has no end");
        nic.progress(Instant::now());
        if let Some(event) = nic.next_event() {
            break event;
        }
        std::thread::yield_now();
    };
    let refused =
        vigie_via::vi::NicEvent::Refused { vi, reason: vigie_via::vi::DisconnectReason::TimedOut };
    assert_eq!(event, refused);
    assert_eq!(nic.counters().packets_received, 0, "not even a refusal");
    let (_, counters) = echo.end();
    assert!(counters.packets_refused >= 2, "{counters:?}");
    assert_eq!(counters.packets_sent, 0);
}

/// Goal: the socket is bound no wider than asked. Method: the same port of another address of this host
/// refuses datagrams.
#[test]
fn only_the_address_asked_for_is_open() {
    let nic = bind("127.0.0.1:0", SoftwareNicConfig::default());
    let mut other = nic.wire().path();
    other.set_ip([127, 0, 0, 2].into());
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(other).expect("an address");
    socket.send(&[1; 40]).expect("sent");
    let error = socket.recv(&mut [0; 40]).expect_err("no listener");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}
