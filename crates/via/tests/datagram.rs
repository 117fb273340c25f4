//! Datagrams between numbered ports: over UDP on the loopback interface, without privilege, and over links in
//! network namespaces.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "link/namespace.rs"]
mod namespace;

use std::{
    net::{Ipv4Addr, Ipv6Addr, UdpSocket},
    sync::atomic::{AtomicU8, Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::timeout;
use vigie_detect::{HostThread, Server};
use vigie_via::{
    datagram::{DatagramError, Device, HEADER_BYTES, Header, NodeAddress, Port, UdpConfig},
    link::{BackEnd, EtherType, Link, MacAddress},
};

use crate::{
    kit::{
        child::{command_in, role},
        speaker::Speaker,
    },
    namespace::{ip, with_veth},
};

const BASE: u16 = 22_016;
/// A bound for each test, much longer than it takes.
const BOUND: Duration = Duration::from_secs(20);

/// Returns a host and a loopback address that no other test of this run uses.
fn udp() -> (HostThread, Ipv4Addr, Device) {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [high, low] = u16::try_from(std::process::id() % 0xffff).expect("16 bits").to_be_bytes();
    let own = NEXT.fetch_add(1, Ordering::Relaxed);
    let address = Ipv4Addr::new(127, high, low, own);
    let host = Server::spawn_thread().expect("a host");
    let device = Device::over_udp(host.server(), UdpConfig::new(address.into())).expect("a device");
    (host, address, device)
}

fn over(server: &Server, name: &str, back_end: BackEnd) -> Device {
    let link = Link::builder(name).back_end(back_end).open().expect("a link");
    Device::over_link(server, link).expect("a device")
}

fn in_tokio<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("tokio").block_on(async { timeout(BOUND, future).await.expect("in time") })
}

fn post(port: &Port, count: usize, length: usize) {
    for _ in 0..count {
        port.post(vec![0; length]).expect("room");
    }
}

/// The contract over every carrier: `left` can send to `right` and back.
async fn check(left: &Device, right: &Device) {
    let max = left.payload_max();
    let (a, b, silent) = (
        left.acquire_port(1).expect("free"),
        right.acquire_port(255).expect("free"),
        right.acquire_port(7),
    );
    let silent = silent.expect("free");
    post(&b, 10, max);
    // Every size, whole, in order, with its buffer back.
    for (number, length) in (1_u8..).zip([0, 1, 37, 38, 39, 700, max - 1, max]) {
        let sent = vec![number; length];
        let back = a.send(right.node(), 255, sent.clone()).await.expect("sent");
        assert_eq!(back, sent);
        let received = b.recv().await.expect("a datagram");
        assert_eq!(received.payload(), sent);
        assert_eq!((received.from, received.from_port), (left.node(), 1));
        assert!(!received.is_multicast);
        b.post(received.buffer).expect("room");
    }
    let failed = a.send(right.node(), 255, vec![0; max + 1]).await.expect_err("too long");
    assert_eq!(failed.payload.len(), max + 1);
    match failed.error {
        DatagramError::TooLong { length, max: said } => assert_eq!((length, said), (max + 1, max)),
        error => panic!("{error}"),
    }
    // No buffer, and one that is too small: dropped and counted. The last datagram shows that the rest
    // are done.
    for _ in 0..4 {
        for number in 0..25_u8 {
            a.send(right.node(), 7, vec![number; 50]).await.expect("sent");
        }
        assert!(silent.try_recv().expect("works").is_none());
    }
    post(&silent, 1, 10);
    a.send(right.node(), 7, vec![1; 11]).await.expect("sent");
    a.send(right.node(), 7, vec![2; 10]).await.expect("sent");
    assert_eq!(silent.recv().await.expect("a datagram").payload(), [2; 10]);
    let counters = silent.counters();
    assert_eq!((counters.received, counters.no_buffer, counters.too_small), (1, 100, 1));
    // An answer.
    post(&a, 1, 20);
    b.send(left.node(), 1, b"answer".to_vec()).await.expect("sent");
    assert_eq!(a.recv().await.expect("a datagram").payload(), b"answer");
    // A wait that is dropped loses nothing.
    drop(timeout(Duration::from_millis(1), b.recv()).await);
    a.send(right.node(), 255, b"later".to_vec()).await.expect("sent");
    assert_eq!(b.recv().await.expect("a datagram").payload(), b"later");
    // Buffers have a bound.
    let refused = (0..2000).filter(|_| silent.post(Vec::new()).is_err()).count();
    assert_eq!(refused, 2000 - 1024);
}

/// Goal: the contract over UDP, versions 4 and 6. Method: two ports of one address.
#[test]
fn datagrams_travel_over_udp() {
    let (host, _, device) = udp();
    in_tokio(check(&device, &device));
    let base = BASE + 256 + 256 * u16::try_from(std::process::id() % 64).expect("small");
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return kit::skip::skip("datagrams_travel_over_udp", "a loopback address of IPv6");
    }
    let config = UdpConfig::new(Ipv6Addr::LOCALHOST.into()).base_port(base);
    let device = Device::over_udp(host.server(), config).expect("a device");
    assert_eq!(device.payload_max(), 1500 - 48 - HEADER_BYTES);
    in_tokio(check(&device, &device));
}

/// Goal: the contract over links of both kinds, in tokio and in vigie's own scheduler. Method: a veth pair.
#[test]
fn datagrams_travel_over_links() {
    with_veth("datagrams_travel_over_links", || {
        for back_end in [BackEnd::PacketRings, BackEnd::PacketCalls] {
            let host = Server::spawn_thread().expect("a host");
            let [left, right] = ["v0", "v1"].map(|name| over(host.server(), name, back_end));
            assert_eq!(left.payload_max(), 1500 - HEADER_BYTES);
            in_tokio(check(&left, &right));
            drop((left, right));
            let runtime = vigie_runtime::Runtime::builder().build().expect("a runtime");
            runtime.block_on(async {
                let server = Server::current().expect("the scheduler's");
                let [left, right] = ["v0", "v1"].map(|name| over(&server, name, back_end));
                in_tokio_time(check(&left, &right)).await;
            });
        }
    });
}

/// Lets tokio's timers run outside its runtime.
async fn in_tokio_time<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    let runtime = runtime.expect("tokio");
    let mut future = std::pin::pin!(future);
    let value = std::future::poll_fn(|cx| {
        let _entered = runtime.enter();
        future.as_mut().poll(cx)
    })
    .await;
    runtime.shutdown_background();
    value
}

/// Goal: datagrams beyond what the kernel takes wait, are sent in order and complete; dropped sends are
/// sent too, and beyond the bound a send fails with its payload. Method: UDP to a neighbour whose
/// address is not known yet, so that the socket's buffer fills; then it is made known, and a link sees
/// what is sent.
#[test]
fn sends_wait_for_room() {
    with_veth("sends_wait_for_room", || {
        ip("addr add 10.8.0.1/24 dev v0");
        // The neighbour's queue must hold more than a socket may send.
        std::fs::write("/proc/sys/net/ipv4/neigh/v0/unres_qlen_bytes", "10000000")
            .expect("a setting");
        let builder = Link::builder("v1").ether_type(EtherType::IPV4).receive_frames(2048);
        let mut wire = builder.open().expect("a link");
        let host = Server::spawn_thread().expect("a host");
        let config = UdpConfig::new(Ipv4Addr::new(10, 8, 0, 1).into());
        let device = Device::over_udp(host.server(), config).expect("a device");
        let port = device.acquire_port(1).expect("free");
        let to = NodeAddress::Ip(Ipv4Addr::new(10, 8, 0, 2).into());
        let (mut sends, mut refused) = (Vec::new(), None);
        for number in 0..2000_u32 {
            let mut payload = vec![0; 1000];
            payload[..4].copy_from_slice(&number.to_be_bytes());
            let mut send = Box::pin(port.send(to, 2, payload));
            match send.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(_)) => assert!(sends.is_empty(), "in order"),
                Poll::Ready(Err(failed)) => {
                    refused = Some(failed);
                    break;
                }
                Poll::Pending => sends.push((number, send)),
            }
        }
        assert_eq!(sends.len(), 256);
        sends.retain(|(number, _)| !number.is_multiple_of(3));
        let refused = refused.expect("the bound was reached");
        assert!(matches!(refused.error, DatagramError::Full), "{refused}");
        let count = u32::from_be_bytes(refused.payload[..4].try_into().expect("four"));
        assert!(count > 256);
        ip(&format!("neigh replace 10.8.0.2 lladdr {} dev v0", wire.address()));
        in_tokio(async {
            for (number, send) in sends {
                let payload = send.await.expect("sent");
                assert_eq!(payload[..4], number.to_be_bytes());
            }
            // The last may have been one that no task waits for.
            while device.counters().expect("counters").sent < u64::from(count) {
                drop(timeout(Duration::from_millis(1), port.recv()).await);
            }
        });
        let mut numbers = Vec::new();
        wire.recv_each(usize::MAX, |frame| {
            let bytes = frame.to_vec();
            let payload = bytes.get(14 + 28 + HEADER_BYTES..).unwrap_or_default();
            if payload.len() == 1000 {
                numbers.push(u32::from_be_bytes(payload[..4].try_into().expect("four")));
            }
        })
        .expect("frames");
        // While the kernel empties the neighbour's queue, waiting datagrams may overtake its last ones.
        let (queued, waited): (Vec<_>, Vec<_>) =
            numbers.into_iter().partition(|number| *number < count - 256);
        assert_eq!(queued, (0..count - 256).collect::<Vec<_>>());
        assert_eq!(waited, (count - 256..count).collect::<Vec<_>>());
    });
}

/// Goal: a datagram to a group reaches every member at that port and no other port, and not its sender.
/// Method: two members and a non-member, over UDP and over links.
#[test]
fn groups_are_reached() {
    async fn reach(sender: &Device, members: [&Device; 1], group: NodeAddress) {
        let port = sender.acquire_port(9).expect("free");
        post(&port, 5, 100);
        let ports = members.map(|member| {
            let early = member.acquire_port(11).expect("free");
            member.join_group(group).expect("joined");
            let late = member.acquire_port(10).expect("free");
            post(&early, 5, 100);
            post(&late, 5, 100);
            (early, late)
        });
        for number in [10, 11, 9] {
            port.send(group, number, vec![number; 5]).await.expect("sent");
        }
        for (early, late) in &ports {
            for port in [early, late] {
                let received = port.recv().await.expect("a datagram");
                assert_eq!(received.payload(), [port.number(); 5]);
                assert!(received.is_multicast);
                assert_eq!((received.from, received.from_port), (sender.node(), 9));
                assert!(port.try_recv().expect("works").is_none());
            }
        }
        assert!(port.try_recv().expect("works").is_none(), "not the sender");
    }
    with_veth("groups_are_reached", || {
        let host = Server::spawn_thread().expect("a host");
        let server = host.server();
        for back_end in [BackEnd::PacketRings, BackEnd::PacketCalls] {
            let (left, right) = (over(server, "v0", back_end), over(server, "v1", back_end));
            in_tokio(reach(&left, [&right], MacAddress::group(3).into()));
            let error =
                right.join_group(NodeAddress::Mac(MacAddress([2; 6]))).expect_err("no group");
            assert!(matches!(error, DatagramError::WrongNode { .. }), "{error}");
        }
        ip("addr add 10.7.0.1/24 dev v0");
        let udp = |address: [u8; 4]| {
            let config = UdpConfig::new(Ipv4Addr::from(address).into());
            Device::over_udp(server, config).expect("a device")
        };
        ip("addr add 10.7.0.2/24 dev v0");
        let (left, right) = (udp([10, 7, 0, 1]), udp([10, 7, 0, 2]));
        let group = NodeAddress::Ip(Ipv4Addr::new(239, 1, 2, 3).into());
        in_tokio(reach(&left, [&right], group));
        let error = left.join_group(left.node()).expect_err("no group");
        assert!(matches!(error, DatagramError::WrongNode { .. }), "{error}");
    });
}

fn good(to: u8, length: u16, payload: &[u8]) -> Vec<u8> {
    [&Header::new(6, to, length).bytes()[..], payload].concat()
}

/// Goal: malformed and forged datagrams are dropped and counted, and disturb nothing. Method: raw
/// packets from a foreign socket, with a valid datagram behind each.
#[test]
fn malformed_datagrams_are_counted_over_udp() {
    let (_host, address, device) = udp();
    let port = device.acquire_port(5).expect("free");
    let foreign = UdpSocket::bind((address, 0)).expect("a socket");
    // The last three are well formed, but come from a UDP port that is not the device's.
    let bad = [
        Vec::new(),
        vec![0; 7],
        vec![0xff; 60],
        good(5, 9, b"short"),
        good(5, 2, b"longer"),
        good(4, 5, b"wrong"),
        good(5, 6, b"forged"),
    ];
    in_tokio(async {
        post(&port, 3, 100);
        for (count, packet) in (1_u64..).zip(&bad) {
            foreign.send_to(packet, (address, BASE + 5)).expect("sent");
            port.send(device.node(), 5, b"true".to_vec()).await.expect("sent");
            let received = port.recv().await.expect("a datagram");
            assert_eq!(received.payload(), b"true");
            port.post(received.buffer).expect("room");
            assert_eq!(device.counters().expect("counters").malformed, count);
        }
    });
    assert_eq!(port.counters().received, 7);
}

/// Goal: as above. Method: frames from a foreign link.
#[test]
fn malformed_datagrams_are_counted_over_links() {
    with_veth("malformed_datagrams_are_counted_over_links", || {
        let host = Server::spawn_thread().expect("a host");
        let device = over(host.server(), "v1", BackEnd::Automatic);
        let port = device.acquire_port(5).expect("free");
        let mut foreign = Link::builder("v0").open().expect("a link");
        in_tokio(async {
            post(&port, 3, 1000);
            for packet in [&b""[..], b"MC", &[0xff; 100], &good(5, 1400, b"padded")] {
                foreign.send(MacAddress::BROADCAST, &[packet]).expect("room");
            }
            foreign.send(MacAddress::BROADCAST, &[&good(99, 4, b"lost")]).expect("room");
            foreign.send(MacAddress::BROADCAST, &[&good(5, 4, b"true")]).expect("room");
            foreign.flush().expect("sent");
            let received = port.recv().await.expect("a datagram");
            assert_eq!((received.payload(), received.from_port), (&b"true"[..], 6));
            assert!(received.is_multicast);
            let counters = device.counters().expect("counters");
            assert_eq!((counters.malformed, counters.no_port), (4, 1));
        });
    });
}

/// Goal: a port that this or another process has is refused with its owner's name, becomes free once the
/// owner has ended or dropped it, and is independent of the other carrier's. Method: this program as
/// another process, killed while it holds ports.
#[test]
fn a_port_has_one_owner() {
    const TEST: &str = "a_port_has_one_owner";
    let devices = |host: &HostThread| {
        let config = UdpConfig::new(Ipv4Addr::LOCALHOST.into());
        let udp = Device::over_udp(host.server(), config).expect("a device");
        (over(host.server(), "v1", BackEnd::Automatic), udp)
    };
    if role(TEST).is_some() {
        let host = Server::spawn_thread().expect("a host");
        let (link, udp) = devices(&host);
        let _held = (link.acquire_port(8).expect("free"), udp.acquire_port(8).expect("free"));
        println!("\nheld");
        // Until it is killed, or its parent ends.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        return;
    }
    with_veth(TEST, || {
        let host = Server::spawn_thread().expect("a host");
        let (link, udp) = devices(&host);
        let mut other = Speaker::start(command_in("holds", &[], TEST));
        other.line("held");
        let pid = i32::try_from(other.id()).expect("a process");
        let error = link.acquire_port(8).expect_err("taken");
        assert!(
            matches!(error, DatagramError::PortTaken { number: 8, owner: Some(owner), .. } if owner == pid),
            "{error}"
        );
        let error = udp.acquire_port(8).expect_err("taken");
        assert!(matches!(error, DatagramError::PortTaken { number: 8, .. }), "{error}");
        let _others = (link.acquire_port(9).expect("free"), udp.acquire_port(9).expect("free"));
        other.kill();
        let again =
            (link.acquire_port(8).expect("free again"), udp.acquire_port(8).expect("free again"));
        assert!(link.acquire_port(8).is_err() && udp.acquire_port(8).is_err());
        drop(again);
        let _again =
            (link.acquire_port(8).expect("free again"), udp.acquire_port(8).expect("free again"));
    });
}

/// Goal: a wait ends with a typed error when the interface disappears, and so do sends. Method: remove
/// the pair during a wait.
#[test]
fn what_is_gone_is_told() {
    with_veth("what_is_gone_is_told", || {
        let host = Server::spawn_thread().expect("a host");
        let device = over(host.server(), "v1", BackEnd::Automatic);
        in_tokio(async {
            let port = device.acquire_port(1).expect("free");
            post(&port, 1, 10);
            let removed = async {
                tokio::task::yield_now().await;
                ip("link del v0");
            };
            let (error, ()) = tokio::join!(port.recv(), removed);
            assert!(matches!(error, Err(DatagramError::Removed)), "{error:?}");
            let failed = port.send(MacAddress::BROADCAST.into(), 1, b"x".to_vec()).await;
            let failed = failed.expect_err("it is gone");
            assert!(matches!(failed.error, DatagramError::Removed), "{failed}");
            assert_eq!(failed.payload, b"x");
            let error = port.try_send(NodeAddress::Ip(Ipv4Addr::LOCALHOST.into()), 1, b"x");
            assert!(matches!(error, Err(DatagramError::WrongNode { .. })), "{error:?}");
        });
    });
}

/// Goal: datagrams for an unbound port are counted at the sender over UDP, and disturb nothing. Method:
/// send to a free port.
#[test]
fn a_free_port_over_udp_is_told() {
    let (_host, _, device) = udp();
    in_tokio(async {
        let port = device.acquire_port(1).expect("free");
        post(&port, 1, 10);
        for _ in 0..5 {
            port.send(device.node(), 200, b"unbound".to_vec()).await.expect("sent");
        }
        // A later datagram shows that the answers were processed.
        port.send(device.node(), 1, b"bound".to_vec()).await.expect("sent");
        assert_eq!(port.recv().await.expect("a datagram").payload(), b"bound");
        assert_eq!(device.counters().expect("counters").unreachable, 5);
        assert_eq!(device.counters().expect("counters").sent, 6);
    });
}

/// Goal: settings out of range are refused. Method: both ends of each range.
#[test]
fn settings_are_checked() {
    let host = Server::spawn_thread().expect("a host");
    let config = UdpConfig::new(Ipv4Addr::LOCALHOST.into());
    for config in
        [config.base_port(0), config.base_port(65_281), config.mtu(575), config.mtu(65_536)]
    {
        let error = Device::over_udp(host.server(), config).expect_err("out of range");
        assert!(matches!(error, DatagramError::InvalidSetting { .. }), "{error}");
    }
}
