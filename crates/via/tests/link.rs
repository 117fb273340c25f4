//! Links over real veth pairs, in network namespaces of their own.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "link/namespace.rs"]
mod namespace;

use std::{
    io::Read,
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::timeout;
use vigie_detect::{HostThread, Server};
use vigie_via::link::{
    AsyncLink, BackEnd, Capability, Checksum, EtherType, Link, LinkBuilder, LinkError, LinkEvent,
    MacAddress, OpenError, OwnedFrame, XdpMode, complete_checksum,
};

use crate::{
    kit::{
        child::{command_in, role},
        namespace::inside,
        speaker::Speaker,
    },
    namespace::{ip, make_veth, with_veth},
};

const BACK_ENDS: [BackEnd; 2] = [BackEnd::PacketRings, BackEnd::PacketCalls];
/// A bound for each test, much longer than it takes.
const BOUND: Duration = Duration::from_secs(20);

fn open(name: &str, back_end: BackEnd) -> Link {
    let link = Link::builder(name).back_end(back_end).open().expect("a link");
    assert_eq!(link.back_end(), back_end);
    link
}

/// Takes all frames that are there.
fn take(link: &mut Link) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    link.recv_each(usize::MAX, |frame| frames.push(frame.to_vec())).expect("frames");
    frames
}

fn payload(frame: &[u8]) -> &[u8] {
    &frame[14..]
}

fn in_tokio<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("tokio").block_on(async { timeout(BOUND, future).await.expect("in time") })
}

/// Goal: frames of every size arrive, whole, in order, between all pairs of back ends; frames of other
/// protocols do not; a frame that does not fit is a typed error. Method: patterns up to the MTU and one
/// byte more; more frames than the rings have slots.
#[test]
fn frames_travel() {
    with_veth("frames_travel", || {
        for from in BACK_ENDS {
            for to in BACK_ENDS {
                let (mut sender, mut receiver) = (open("v0", from), open("v1", to));
                let mut other = Link::builder("v1")
                    .ether_type(EtherType::EXPERIMENTAL_2)
                    .open()
                    .expect("a link");
                let max = sender.payload_max();
                assert_eq!(max, 1500);
                for (number, length) in (0_u8..).zip([0, 1, 45, 46, 47, 1000, max - 1, max]) {
                    let bytes = vec![number; length];
                    let parts: Vec<&[u8]> = bytes.chunks(300).collect();
                    sender.send(receiver.address(), &parts).expect("room");
                    sender.flush().expect("sent");
                    let frames = take(&mut receiver);
                    assert_eq!(frames.len(), 1, "{from:?} to {to:?}, {length} bytes");
                    assert_eq!(frames[0][6..12], sender.address().0);
                    assert_eq!(&payload(&frames[0])[..length], bytes);
                }
                let long = vec![0; max + 1];
                let error = sender.send(MacAddress::BROADCAST, &[&long]).expect_err("too long");
                assert!(matches!(error, LinkError::TooLong { length: 1501, max: 1500 }), "{error}");
                for number in 0..2000_u32 {
                    sender.send(MacAddress::BROADCAST, &[&number.to_be_bytes()]).expect("room");
                    sender.flush().expect("sent");
                    let frames = take(&mut receiver);
                    assert_eq!(frames.len(), 1);
                    assert_eq!(payload(&frames[0])[..4], number.to_be_bytes());
                }
                let sent = sender.statistics().expect("counters").sent;
                let received = receiver.statistics().expect("counters");
                assert_eq!((sent, received.received, received.dropped), (2008, 2008, 0));
                assert_eq!(take(&mut other), Vec::<Vec<u8>>::new());
            }
        }
    });
}

/// Goal: frames beyond the rings' capacity are dropped and counted, and those that were kept arrive in
/// order. Method: more frames than fit, then one more after they were taken.
#[test]
fn a_flood_is_dropped_and_counted() {
    with_veth("a_flood_is_dropped_and_counted", || {
        for back_end in BACK_ENDS {
            let mut sender = open("v0", BackEnd::PacketRings);
            let mut receiver =
                Link::builder("v1").back_end(back_end).receive_frames(32).open().expect("a link");
            const COUNT: u32 = 5000;
            for number in 0..COUNT {
                sender.send(receiver.address(), &[&number.to_be_bytes()]).expect("room");
                sender.flush().expect("sent");
            }
            let kept = take(&mut receiver);
            assert!(kept.len() >= 32 && kept.len() < 5000, "{} were kept", kept.len());
            for (number, frame) in (0_u32..).zip(&kept) {
                assert_eq!(payload(frame)[..4], number.to_be_bytes());
            }
            let statistics = receiver.statistics().expect("counters");
            assert_eq!(statistics.received + statistics.dropped, u64::from(COUNT));
            assert_eq!(statistics.received, u64::try_from(kept.len()).expect("small"));
            sender.send(receiver.address(), &[b"after"]).expect("room");
            sender.flush().expect("sent");
            assert_eq!(take(&mut receiver).len(), 1);
        }
    });
}

/// Goal: going down, coming up, MTU changes and removal are reported, a wait for frames survives the
/// first three and ends with the last, and sending while down is a typed error. Method: `ip link` during
/// the wait.
#[test]
fn what_becomes_of_the_interface_is_told() {
    with_veth("what_becomes_of_the_interface_is_told", || {
        for back_end in BACK_ENDS {
            let host = Server::spawn_thread().expect("a host");
            let [left, right] = ["v0", "v1"].map(|name| {
                AsyncLink::new(host.server(), open(name, back_end)).expect("registered")
            });
            in_tokio(async {
                let to = right.with(|link| link.address());
                let has_arrived = Arc::new(AtomicBool::new(false));
                let receiving = tokio::spawn({
                    let (right, has_arrived) = (right.clone(), Arc::clone(&has_arrived));
                    async move {
                        let frame = right.recv().await.expect("a frame after all that");
                        has_arrived.store(true, Ordering::Relaxed);
                        loop {
                            if let Err(error) = right.recv().await {
                                return (frame, error);
                            }
                        }
                    }
                });
                tokio::task::yield_now().await;
                ip("link set v1 down");
                assert_eq!(right.next_event().await.expect("told"), LinkEvent::Down);
                let error = right.send(to, b"x").await.expect_err("it is down");
                assert!(matches!(error, LinkError::Down) && error.is_retryable(), "{error}");
                ip("link set v1 mtu 900");
                assert_eq!(right.next_event().await.expect("told"), LinkEvent::MtuChanged(900));
                let error = right.send(to, &[0; 901]).await.expect_err("too long now");
                assert!(matches!(error, LinkError::TooLong { max: 900, .. }), "{error}");
                ip("link set v1 up");
                assert_eq!(right.next_event().await.expect("told"), LinkEvent::Up);
                // The kernel may report to this end that it was down for a moment, or not at all; and it
                // drops frames sent before its work queue has reactivated the transmit queue.
                while !has_arrived.load(Ordering::Relaxed) {
                    match left.send(to, b"up again").await {
                        Ok(()) | Err(LinkError::Down) => {}
                        Err(error) => panic!("{error}"),
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                ip("link del v0");
                let (frame, error) = receiving.await.expect("no panic");
                assert_eq!(&frame.payload().expect("a frame")[..8], b"up again");
                assert!(matches!(error, LinkError::Removed) && error.is_final(), "{error}");
                while right.next_event().await.expect("told") != LinkEvent::Removed {}
                let error = right.next_event().await.expect_err("nothing follows");
                assert!(matches!(error, LinkError::Removed), "{error}");
                let error = right.send(to, b"x").await.expect_err("it is gone");
                assert!(matches!(error, LinkError::Removed), "{error}");
            });
            make_veth();
        }
    });
}

/// Goal: tags that the kernel removes from a frame are reported, and so is a checksum that a sender on
/// this host has left to a network card, which can be filled in. Method: a tagged frame; a UDP packet
/// over the pair.
#[test]
fn tags_and_missing_checksums_are_told() {
    with_veth("tags_and_missing_checksums_are_told", || {
        for back_end in BACK_ENDS {
            let open = |name: &str, ether_type| {
                Link::builder(name).ether_type(ether_type).back_end(back_end).open()
            };
            let mut untagged = open("v1", EtherType::EXPERIMENTAL_1).expect("a link");
            let mut all = open("v1", EtherType::ALL).expect("a link");
            let mut sender = open("v0", EtherType(0x8100)).expect("a link");
            for number in [7, 8] {
                let parts: [&[u8]; 3] = [&[0x60, number], &[0x88, 0xb5], b"tagged"];
                sender.send(untagged.address(), &parts).expect("room");
            }
            sender.flush().expect("sent");
            assert_eq!(take(&mut untagged), Vec::<Vec<u8>>::new(), "tags of others");
            let mut tags = Vec::new();
            all.recv_each(99, |frame| {
                if frame.to_vec().ends_with(b"tagged") {
                    tags.push(frame.tag());
                }
            })
            .expect("frames");
            assert_eq!(tags, [Some(0x6007), Some(0x6008)]);
            let mut receiver = Link::builder("v1")
                .ether_type(EtherType::IPV4)
                .back_end(back_end)
                .open()
                .expect("a link");
            ip("addr replace 10.9.0.1/24 dev v0");
            ip(&format!("neigh replace 10.9.0.2 lladdr {} dev v0", receiver.address()));
            let socket = UdpSocket::bind("10.9.0.1:0").expect("a socket");
            socket.send_to(b"checked", "10.9.0.2:9").expect("sent");
            let mut frames = Vec::new();
            receiver
                .recv_each(9, |frame| frames.push((frame.checksum(), frame.to_vec())))
                .expect("frames");
            let (checksum, mut frame) = frames.pop().expect("a packet");
            assert_eq!(checksum, Checksum::Missing);
            let before = frame.clone();
            assert!(complete_checksum(&mut frame));
            assert_ne!(before[40..42], frame[40..42], "the checksum of UDP");
            assert_eq!((&before[..40], &before[42..]), (&frame[..40], &frame[42..]));
        }
    });
}

/// Goal: waits are served by a host that polls and one that sleeps, inside tokio and inside vigie's own
/// scheduler, also for groups, and busy polling is accepted. Method: ping-pong of numbered frames.
#[test]
fn waits_are_served() {
    async fn rounds(server: &Server, back_end: BackEnd) {
        let links = ["v0", "v1"].map(|name| {
            let link = Link::builder(name).back_end(back_end).busy_poll(Duration::from_micros(50));
            AsyncLink::new(server, link.open().expect("a link")).expect("registered")
        });
        let [left, right] = &links;
        let group = MacAddress::group(1);
        right.with(|link| link.join_group(group)).expect("joined");
        let address = left.with(|link| link.address());
        let ping = async {
            for number in 0..300_u32 {
                left.send(group, &number.to_be_bytes()).await.expect("sent");
                let back = left.recv().await.expect("a frame");
                assert_eq!(back.payload().expect("a frame")[..4], number.to_be_bytes());
            }
        };
        let pong = async {
            for _ in 0..300 {
                let frame: OwnedFrame = right.recv().await.expect("a frame");
                assert_eq!(frame.header().expect("a header").destination, group);
                right.send(address, &frame.bytes[14..18]).await.expect("sent");
            }
        };
        tokio::join!(ping, pong);
    }
    with_veth("waits_are_served", || {
        for back_end in BACK_ENDS {
            let host = Server::spawn_thread().expect("a host");
            in_tokio(rounds(host.server(), back_end));
            let runtime = vigie_runtime::Runtime::builder().build().expect("a runtime");
            runtime.block_on(async {
                rounds(&Server::current().expect("the scheduler's"), back_end).await;
            });
        }
    });
}

/// Goal: a missing capability, a missing interface and settings out of range are named. Method: open
/// links without any capability; wrong names and numbers.
#[test]
fn what_is_missing_is_named() {
    inside("what_is_missing_is_named", &[&["-U"]], || {
        let error = Link::builder("lo").open().expect_err("no right");
        assert!(
            matches!(error, OpenError::MissingCapability { capability: Capability::NetRaw, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("CAP_NET_RAW") && error.to_string().contains("unshare"));
        let error = Link::builder("no such").open().expect_err("no interface");
        assert!(matches!(error, OpenError::NoInterface { .. }), "{error}");
        for builder in [
            Link::builder("lo").receive_frames(0),
            Link::builder("lo").send_frames(70_000),
            Link::builder("lo").busy_poll(Duration::from_secs(2)),
        ] {
            let error = builder.open().expect_err("out of range");
            assert!(matches!(error, OpenError::InvalidSetting { .. }), "{error}");
        }
    });
}

/// Opens a link whose queue was just closed: the kernel releases it soon after.
fn open_when_free(builder: LinkBuilder) -> Link {
    in_tokio(async {
        loop {
            match builder.clone().open() {
                Err(error) if error.is_in_use() => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                link => break link.expect("free again"),
            }
        }
    })
}

/// Frames that the XDP program passes go on to the kernel, and from there to AF_PACKET: those of other
/// protocols, and those to others' addresses.
fn what_passes(host: &HostThread, left: &AsyncLink, right: &AsyncLink) {
    let r = right.with(|link| link.address());
    let other = |name| {
        let link = Link::builder(name).ether_type(EtherType::EXPERIMENTAL_2).open();
        AsyncLink::new(host.server(), link.expect("a link")).expect("registered")
    };
    let (a, b) = (other("v0"), other("v1"));
    in_tokio(async {
        a.send(r, b"past the program").await.expect("sent");
        let frame = b.recv().await.expect("a frame");
        assert_eq!(&frame.payload().expect("a frame")[..16], b"past the program");
    });
    let all = Link::builder("v1").back_end(BackEnd::PacketRings).promiscuous().open();
    let all = AsyncLink::new(host.server(), all.expect("a link")).expect("registered");
    in_tokio(async {
        left.send(r, b"for the queue alone").await.expect("sent");
        left.send(MacAddress([2; 6]), b"for another host!").await.expect("sent");
        let frame = all.recv().await.expect("a frame");
        assert_eq!(&frame.payload().expect("a frame")[..17], b"for another host!");
        let frame = right.recv().await.expect("a frame");
        assert_eq!(&frame.payload().expect("a frame")[..19], b"for the queue alone");
        left.send(MacAddress::group(7), b"for a group").await.expect("sent");
        let frame = right.recv().await.expect("a frame");
        assert_eq!(&frame.payload().expect("a frame")[..11], b"for a group");
    });
}

/// Goal: frames of every size travel over AF_XDP, to and from AF_PACKET too; frames for others and of
/// other protocols are left to the kernel; the queue has one owner, which the error says; the program
/// goes with its link. Method: a veth pair.
#[test]
#[ignore = "needs privilege: CAP_BPF in the first user namespace"]
fn xdp_queues_have_one_owner() {
    inside("xdp_queues_have_one_owner", &[&["-n"]], || {
        make_veth();
        let host = Server::spawn_thread().expect("a host");
        let builder = |name: &str| Link::builder(name).back_end(BackEnd::Xdp);
        let open = |name: &str| {
            let link = builder(name).open().expect("a link");
            assert_eq!(link.back_end(), BackEnd::Xdp);
            println!("{name}: {:?}", link.xdp_mode().expect("a mode"));
            AsyncLink::new(host.server(), link).expect("registered")
        };
        let (left, right) = (open("v0"), open("v1"));
        let error = builder("v1").open().expect_err("taken");
        assert!(matches!(error, OpenError::QueueTaken { queue: 0, .. }), "{error}");
        assert!(error.to_string().contains("one owner"), "{error}");
        for queue in [77, 5000] {
            let error = builder("v1").queue(queue).open().expect_err("no such queue");
            assert!(matches!(error, OpenError::NoQueue { .. }), "{error}");
        }
        let [l, r] = [&left, &right].map(|link| link.with(|link| link.address()));
        in_tokio(async {
            for length in [0, 1, 46, 1000, 1500] {
                right.send(l, &vec![7; length]).await.expect("sent");
                let frame = left.recv().await.expect("a frame");
                assert_eq!(frame.payload().expect("a frame")[..length], vec![7; length]);
                left.send(MacAddress([2; 6]), b"for another host!").await.expect("sent");
                left.send(r, &frame.bytes[14..]).await.expect("sent");
                let back = right.recv().await.expect("a frame");
                assert_eq!(back.bytes[14..], frame.bytes[14..]);
                assert_eq!(back.header().expect("a header").source, l);
            }
            // More than the rings have.
            for number in 0..3000_u32 {
                left.send(r, &number.to_be_bytes()).await.expect("sent");
                let frame = right.recv().await.expect("a frame");
                assert_eq!(frame.payload().expect("a frame")[..4], number.to_be_bytes());
            }
            let error = left.send(r, &[0; 1501]).await.expect_err("too long");
            assert!(matches!(error, LinkError::TooLong { .. }), "{error}");
        });
        what_passes(&host, &left, &right);
        drop((left, right));
        let host = Server::spawn_thread().expect("a host");
        let right = open_when_free(builder("v1"));
        let right = AsyncLink::new(host.server(), right).expect("registered");
        in_tokio(async {
            let removed = async {
                tokio::task::yield_now().await;
                ip("link del v0");
            };
            let (error, ()) = tokio::join!(right.recv(), removed);
            assert!(matches!(error, Err(LinkError::Removed)), "{error:?}");
        });
    });
}

/// Goal: every way of waiting works over AF_XDP: a polling loop, with and without the kernel's own busy
/// polling, and sleep; also for a link that takes frames to all. Frames beyond the capacity are dropped
/// and counted. Method: frames one by one between two links in each way, then more than fit.
#[test]
#[ignore = "needs privilege: CAP_BPF in the first user namespace"]
fn xdp_frames_are_awaited_in_every_way() {
    inside("xdp_frames_are_awaited_in_every_way", &[&["-n"]], || {
        make_veth();
        for busy_poll in [Duration::ZERO, Duration::from_micros(20)] {
            let builder = |name: &str| {
                Link::builder(name).back_end(BackEnd::Xdp).receive_frames(64).busy_poll(busy_poll)
            };
            let mut left = open_when_free(builder("v0"));
            let mut right = open_when_free(builder("v1").promiscuous());
            for number in 0..500_u32 {
                left.send(MacAddress([2; 6]), &[&number.to_be_bytes()]).expect("room");
                left.flush().expect("sent");
                let frame = wait_for_frame(&mut right);
                assert_eq!(payload(&frame)[..4], number.to_be_bytes());
            }
            for _ in 0..200 {
                left.send(right.address(), &[b"too many"]).expect("room");
                left.flush().expect("sent");
            }
            in_tokio(async {
                let (mut kept, mut dropped) = (0, 0);
                while kept + dropped < 200 {
                    tokio::task::yield_now().await;
                    kept += u64::try_from(take(&mut right).len()).expect("small");
                    dropped = right.statistics().expect("counters").dropped;
                }
                assert_eq!(kept + dropped, 200);
                assert!(kept >= 64, "{kept} were kept");
            });
        }
    });
}

/// Goal: as many frames are kept as requested, whatever was taken before: slots return to the kernel
/// late, but none is missing, and no frame arrives twice. Method: bursts of every size up to that, for
/// few and for many frames, so that the slots wrap around several times.
#[test]
#[ignore = "needs privilege: CAP_BPF in the first user namespace"]
fn xdp_places_go_back() {
    inside("xdp_places_go_back", &[&["-n"]], || {
        make_veth();
        for kept in [1_u32, 8, 64, 100] {
            let builder = |name: &str| Link::builder(name).back_end(BackEnd::Xdp);
            let mut left = open_when_free(builder("v0"));
            let mut right = open_when_free(builder("v1").receive_frames(kept));
            let mut number = 0_u32;
            for burst in (1..=kept).cycle().take(300) {
                let first = number;
                for _ in 0..burst {
                    left.send(right.address(), &[&number.to_be_bytes()]).expect("room");
                    left.flush().expect("sent");
                    number += 1;
                }
                for expected in first..number {
                    // One by one: a frame that is not taken keeps its slot.
                    let taken = wait_for_frame_of(&mut right, 1);
                    assert_eq!(payload(&taken)[..4], expected.to_be_bytes());
                }
            }
            assert_eq!(take(&mut right), Vec::<Vec<u8>>::new());
            let statistics = right.statistics().expect("counters");
            assert_eq!((statistics.received, statistics.dropped), (number.into(), 0));
        }
    });
}

/// Goal: the program goes with its process, however that ends, and the next owner is served. Method:
/// another process opens the queue, is seen to have it, and is killed.
#[test]
#[ignore = "needs privilege: CAP_BPF in the first user namespace"]
fn xdp_programs_go_with_their_process() {
    let name = "xdp_programs_go_with_their_process";
    inside(name, &[&["-n"]], || {
        let builder = Link::builder("v1").back_end(BackEnd::Xdp);
        if role(name).is_some() {
            let _link = builder.open().expect("a link");
            println!("\nit is mine");
            // Until it is killed, at the latest with its parent's standard input.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            return;
        }
        make_veth();
        let mut owner = Speaker::start(command_in("owner", &[], name));
        owner.line("it is mine");
        let error = builder.clone().open().expect_err("taken");
        assert!(matches!(error, OpenError::QueueTaken { .. }), "{error}");
        let shown = ip("link show v1");
        assert!(shown.contains("xdp"), "no program is attached: {shown}");
        owner.kill();
        let mut link = open_when_free(builder);
        let mut sender = open("v0", BackEnd::PacketRings);
        sender.send(link.address(), &[b"to the next one"]).expect("room");
        sender.flush().expect("sent");
        let frame = wait_for_frame(&mut link);
        assert_eq!(payload(&frame)[..15], *b"to the next one");
        drop(link);
        let shown = ip("link show v1");
        assert!(!shown.contains("xdp"), "a program was left behind: {shown}");
    });
}

/// Goal: without the right to load programs, AF_XDP reports that if it was requested by name, and
/// otherwise AF_PACKET takes its place. Method: a user namespace, in which no process has that right.
#[test]
fn without_rights_packets_take_the_place_of_xdp() {
    inside("without_rights_packets_take_the_place_of_xdp", &[&["-Urn"]], || {
        make_veth();
        let error = Link::builder("v1").back_end(BackEnd::Xdp).open().expect_err("no right");
        let OpenError::MissingCapability { capability, .. } = error else { panic!("{error}") };
        assert_eq!(capability, Capability::Bpf);
        let link = Link::builder("v1").back_end(BackEnd::XdpOrPacket).open().expect("a link");
        assert_eq!(link.back_end(), BackEnd::PacketRings);
        assert_eq!(link.xdp_mode(), None);
    });
}

/// Goal: if the driver does not support XDP, the kernel's generic path works, and the mode says so; the
/// checksum that a veth pair leaves out can be completed. Method: bridges on a veth pair, frames both
/// ways, and a packet of the kernel's own.
#[test]
#[ignore = "needs privilege: CAP_BPF in the first user namespace"]
fn xdp_has_a_generic_path() {
    inside("xdp_has_a_generic_path", &[&["-n"]], || {
        make_veth();
        for (name, bridge, address) in [("v0", "b0", "10.9.7.1/24"), ("v1", "b1", "10.9.7.2/24")] {
            ip(&format!("link add {bridge} type bridge"));
            ip(&format!("link set {name} master {bridge}"));
            ip(&format!("addr add {address} dev {bridge}"));
            ip(&format!("link set {bridge} up"));
        }
        let builder = |name: &str| Link::builder(name).back_end(BackEnd::XdpOrPacket);
        let mut left = builder("b0").open().expect("a link");
        let mut right = builder("b1").open().expect("a link");
        for link in [&mut left, &mut right] {
            in_tokio(async {
                while !link.is_up() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    link.next_event().expect("the routing socket's");
                }
            });
        }
        for number in 0..200_u32 {
            for is_left in [true, false] {
                let (from, to) =
                    if is_left { (&mut left, &mut right) } else { (&mut right, &mut left) };
                assert_eq!(from.xdp_mode(), Some(XdpMode::Generic));
                from.send(to.address(), &[&number.to_be_bytes()]).expect("room");
                from.flush().expect("sent");
                let frame = wait_for_frame(to);
                assert_eq!(payload(&frame)[..4], number.to_be_bytes());
            }
        }
        drop(right);
        let to = left.address();
        let mut right = open_when_free(builder("b1").ether_type(EtherType::IPV4));
        ip(&format!("neigh replace 10.9.7.99 lladdr {} dev b0", right.address()));
        let socket = UdpSocket::bind("10.9.7.1:0").expect("a socket");
        socket.send_to(b"hello there", "10.9.7.99:9").expect("sent");
        // The kernel may send packets of its own, for groups for example.
        let mut frame = loop {
            let frame = wait_for_frame(&mut right);
            if frame[23] == 17 {
                break frame;
            }
        };
        assert_eq!(frame[6..12], to.0);
        assert!(complete_checksum(&mut frame));
        assert_eq!(sum_of_udp(&frame), 0xffff, "the checksum is not right: {frame:?}");
    });
}

/// Takes the next frame, polling until it arrives.
fn wait_for_frame(link: &mut Link) -> Vec<u8> {
    wait_for_frame_of(link, usize::MAX)
}

/// Takes at most `count` frames, polling until one arrives, and returns the first.
fn wait_for_frame_of(link: &mut Link, count: usize) -> Vec<u8> {
    in_tokio(async {
        loop {
            let mut first = None;
            link.recv_each(count, |frame| {
                first.get_or_insert_with(|| frame.to_vec());
            })
            .expect("frames");
            if let Some(frame) = first {
                return frame;
            }
            tokio::task::yield_now().await;
        }
    })
}

/// Returns the sum over a UDP packet with its pseudo header, which is all ones if its checksum is right.
fn sum_of_udp(frame: &[u8]) -> u32 {
    let length = u32::from(u16::from_be_bytes([frame[38], frame[39]]));
    let end = 34 + usize::try_from(length).expect("small");
    let words = frame[26..end].chunks(2).map(|word| {
        u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or_default()]))
    });
    let total = words.sum::<u32>() + 17 + length;
    (total & 0xffff) + (total >> 16)
}
