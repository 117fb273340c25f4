//! Small measurements: each takes some milliseconds, and the best of several rounds counts, since disturbances only
//! make them longer.

use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use vigie::{
    detect::clock::monotonic_now,
    forward::{
        Cost,
        bpf::AttachMode,
        nic::{NicConfig, NicPipeline},
        packet::{Packet, Port},
        pipeline::{DropReason, Pipeline, Stage},
        stages::{Nat, NatRule, Rewrite, RouteStage, Ttl},
        tables::{Fib, Interface, NatTable, Route},
    },
    via::link::{EtherType, Link, MacAddress},
};

use crate::cli::PlannedWork;

/// The payload of a frame: Ethernet's.
pub(super) const PACKET_BYTES: u64 = 1500;
/// The longest segments that pass as one packet, in bytes.
pub(super) const SEGMENTS_BYTES: u64 = 65_000;
/// The sizes of the points of a cost, in bytes, and of those of a program, whose test run takes no longer ones.
const SIZES: [usize; 3] = [64, 1500, 65_000];
const PROGRAM_SIZES: [usize; 2] = [64, 1500];
/// The MTU of the interfaces, which lets all sizes pass.
const MTU: usize = 65_535;
/// Packets per round.
const BATCH: usize = 64;
/// The number of rounds.
const ROUNDS: u32 = 200;
/// The number of polls for a sent packet before it counts as lost.
const POLLS_MAX: u32 = 1_000_000;
/// The TTL of frames at first; a program that runs again sees one less.
const TTL: u8 = 255;
const REPEATS: u32 = 200;

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const NEXT: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
/// Addresses for measurements [RFC 2544].
const SOURCE: [u8; 4] = [198, 18, 0, 2];
const DESTINATION: [u8; 4] = [198, 19, 0, 2];
const PUBLIC: [u8; 4] = [192, 0, 2, 1];

/// The cost of a packet by its length: up to a frame's, and beyond, as segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketCosts {
    pub(super) frames: Cost,
    pub(super) segments: Cost,
}

/// Returns the cost of moving a packet to a program or back: T_pci, one way; and how it was measured.
pub(super) fn hand_over() -> io::Result<(PacketCosts, &'static str)> {
    let mut times = [Duration::ZERO; 3];
    let link = Link::builder("lo").ether_type(EtherType::EXPERIMENTAL_1).open();
    let by = if let Ok(mut link) = link {
        for (time, size) in times.iter_mut().zip(SIZES) {
            *time = best(|| by_link(&mut link, size))?;
        }
        "packet sockets on lo"
    } else {
        for (time, size) in times.iter_mut().zip(SIZES) {
            *time = best(|| by_datagrams(size))?;
        }
        "UDP on loopback, since packet sockets need CAP_NET_RAW"
    };
    Ok((lines(times)?, by))
}

fn lines([small, frame, segments]: [Duration; 3]) -> io::Result<PacketCosts> {
    let frame = (PACKET_BYTES, frame);
    let frames = Cost::through((64, small), frame).map_err(io::Error::other)?;
    let segments = Cost::through(frame, (SEGMENTS_BYTES, segments)).map_err(io::Error::other)?;
    Ok(PacketCosts { frames, segments })
}

/// Returns the time of one packet in the best round.
fn best(mut round: impl FnMut() -> io::Result<Duration>) -> io::Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        best = best.min(round()?);
    }
    Ok(best.max(Duration::from_nanos(1)))
}

/// Sends a batch of frames to this host, and receives them. Returns the time of one frame, one way.
fn by_link(link: &mut Link, size: usize) -> io::Result<Duration> {
    let payload = vec![0; size - 14];
    let begin = monotonic_now();
    for _ in 0..BATCH {
        link.send(MacAddress([0; 6]), &[&payload]).map_err(io::Error::other)?;
    }
    link.flush().map_err(io::Error::other)?;
    let mut received = 0;
    let mut polls = 0;
    while received < BATCH {
        received += link.recv_each(BATCH, |_| {}).map_err(io::Error::other)?;
        polls += 1;
        if polls > POLLS_MAX {
            return Err(io::Error::other("frames on lo do not arrive"));
        }
    }
    each_way(monotonic_now() - begin)
}

fn by_datagrams(size: usize) -> io::Result<Duration> {
    let (from, to) =
        (UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?);
    from.connect(to.local_addr()?)?;
    to.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut payload = vec![0; size - 42];
    let begin = monotonic_now();
    for _ in 0..BATCH {
        from.send(&payload)?;
        to.recv(&mut payload)?;
    }
    each_way(monotonic_now() - begin)
}

fn each_way(time: Duration) -> io::Result<Duration> {
    let ways = u32::try_from(2 * BATCH).map_err(io::Error::other)?;
    Ok(time / ways)
}

/// A UDP packet of this size.
fn packet(size: usize) -> io::Result<Packet> {
    let length = u16::try_from(size - 14).map_err(io::Error::other)?;
    let mut frame = [&OWN.0[..], &NEXT.0, &[8, 0]].concat();
    frame.extend([0x45, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([0, 1, 0, 0, TTL, 17, 0, 0]);
    frame.extend(SOURCE);
    frame.extend(DESTINATION);
    frame.extend([0x12, 0x34, 0, 9]);
    frame.extend((length - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(size, 0);
    let mut packet = Packet::new(Port(0), &frame);
    packet.fill_checksums().map_err(io::Error::other)?;
    Ok(packet)
}

/// Builds the stages, and the table by which they route.
fn stages(work: PlannedWork) -> io::Result<Vec<Box<dyn Stage>>> {
    let fib = Fib::default();
    for port in [Port(0), Port(1)] {
        fib.set_interface(port, Some(Interface::new(OWN, MTU)));
    }
    let network = "198.19.0.0/16".parse().map_err(io::Error::other)?;
    fib.set_route(network, Some(Route::on_link(Port(1))));
    fib.set_neighbour(Port(1), DESTINATION.into(), Some(NEXT));
    let route = RouteStage::new(fib);
    Ok(match work {
        PlannedWork::L2 => vec![Box::new(Rewrite::new().ingress(Port(0)).send(Port(1)))],
        PlannedWork::L3 => vec![Box::new(Ttl::new()), Box::new(route)],
        PlannedWork::Nat => {
            let from = "198.18.0.0/16".parse().map_err(io::Error::other)?;
            let rule = NatRule::Source { ingress: Port(0), from, external: PUBLIC.into() };
            let nat = Nat::new(NatTable::builder().build()).rule(rule);
            vec![Box::new(nat), Box::new(Ttl::new()), Box::new(route)]
        }
    })
}

/// Returns the cost of the stages on the host: T_algoH.
pub(super) fn host_cost(work: PlannedWork) -> io::Result<PacketCosts> {
    let mut builder = Pipeline::builder();
    for stage in stages(work)? {
        builder = builder.boxed(stage);
    }
    let mut pipeline = builder.build().map_err(io::Error::other)?;
    let mut times = [Duration::ZERO; 3];
    for (time, size) in times.iter_mut().zip(SIZES) {
        let model = packet(size)?;
        *time = best(|| {
            let mut packets = vec![model.clone(); BATCH];
            let begin = monotonic_now();
            for packet in &mut packets {
                let port = pipeline.decide(packet, begin, &mut |_, _| {});
                if port != Ok(Some(Port(1))) {
                    return Err(io::Error::other(format!("a packet went astray: {port:?}")));
                }
            }
            let count = u32::try_from(BATCH).map_err(io::Error::other)?;
            Ok((monotonic_now() - begin) / count)
        })?;
    }
    lines(times)
}

/// Measures a program, and returns sizes and nanoseconds as text: T_algoN. For a process with a network namespace of
/// its own, whose loopback interface it uses.
pub(crate) fn program_cost(work: PlannedWork) -> Result<String, String> {
    let stages = stages(work).map_err(|error| error.to_string())?;
    let stages: Vec<&dyn Stage> = stages.iter().map(|stage| &**stage).collect();
    // The first interface of every namespace is lo. The outgoing port has none: nothing is sent, and the code path up
    // to that point is as long.
    let nic = NicPipeline::builder()
        .config(NicConfig::new().pass_up(&[DropReason::NoRoute]))
        .attach_modes(&[AttachMode::Generic])
        .port(Port(0), 1)
        .start(&stages)
        .map_err(|error| error.to_string())?;
    let program = nic.program(Port(0)).ok_or("there is no program")?;
    let mut text = String::new();
    for size in PROGRAM_SIZES {
        let model = packet(size).map_err(|error| error.to_string())?;
        let run = || {
            let run = program.test_run(model.bytes(), 0, REPEATS).map_err(io::Error::other)?;
            Ok(Duration::from_nanos(run.duration_ns.into()))
        };
        let time = best(run).map_err(|error| error.to_string())?;
        text.push_str(&format!("{size} {}\n", time.as_nanos()));
    }
    Ok(text)
}
