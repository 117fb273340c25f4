//! Measures RDMA writes over UDP on the loopback interface, beside bare UDP sockets and TCP.
//!
//! Run with `cargo run --release -p vigie-via --example udp_write`, on two processors or more. Two threads, each
//! pinned to a processor of its own, spin. Latencies are medians over short rounds in which a bare socket, a connected
//! one and the VI take turns. Expected output: the one-way time of 8 B, whose ratio to a connected socket should be below
//! 1.3, and of larger writes, for which the bare sockets send one datagram; then the bandwidth of many writes of 256 KiB beside TCP's.
//!
//! With `ONE` and `TWO` set to addresses the two ends have those, and with `NETNS` the second end is in that network
//! namespace (`NETNS=/run/netns/far`, as root). `PACKET_BYTES`, `WINDOW_BYTES` and `TAGGED` change the configuration, `ROUNDS` and `FLOOD`
//! how much is measured; with `SMALL` only 8 B are.

use std::{
    env, error,
    fs::File,
    io::{IoSlice, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    sync::mpsc::{Sender, channel},
    thread,
    time::Duration,
};

use rustix::thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_setaffinity};
use vigie_detect::Instant;
use vigie_via::{
    software_nic::{Secret, SoftwareNicConfig},
    udp::Udp,
    vi::{
        Address, Connect, CqId, Data, LocalSegment, MemoryAttributes, NicEvent, Operation,
        Provider, ReceiveDescriptor, Region, Reliability, RemoteKey, RemoteSegment, SendDescriptor,
        ViAttributes, ViId,
    },
};

type Result<T> = std::result::Result<T, Box<dyn error::Error + Send + Sync>>;

const COUNT: usize = 300;
const SIZES: [usize; 3] = [8, 1024, 8192];
const REGION_BYTES: usize = 1 << 20;
/// One write of the flood.
const CHUNK: usize = 256 << 10;
/// Writes of the flood under way.
const WINDOW: usize = 4;

fn main() -> Result<()> {
    let config = config();
    let bare_one = bare(&address("ONE")?)?;
    let mut one = End::new(Udp::bind(address("ONE")?, secret(), config)?)?;
    let own = (bare_one.local_addr()?, one.nic.address());
    let (sender, receiver) = channel();
    let echo = thread::spawn(move || echo(own, config, &sender));
    let ([to, to_wired], to_two, tcp) =
        receiver.recv().map_err(|_| "the other end did not begin")?;
    pin(0)?;
    one.meet(&to_two)?;
    println!("{:>24} {:>12} {:>12} {:>12} {:>8}", "", "bare", "connected", "VI", "ratio");
    let wired_one = bare(&address("ONE")?)?;
    wired_one.connect(to_wired)?;
    wired_one.send(&[])?;
    for size in sizes() {
        let (mut bares, mut wireds, mut vis) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds() {
            bares.push(time(|| {
                bare_one.send_to(&vec![0; size], to)?;
                bare_receive(&bare_one)
            })?);
            wireds.push(time(|| {
                wired_one.send(&vec![0; size])?;
                wired_receive(&wired_one)
            })?);
            vis.push(time(|| {
                one.send(size, 0)?;
                one.receive()
            })?);
        }
        let found = [median(bares) / 2.0, median(wireds) / 2.0, median(vis) / 2.0];
        row(&format!("{size} B one way, ns"), &found);
    }
    let mut stream = TcpStream::connect(tcp)?;
    let started = Instant::now();
    let buffer = vec![0; CHUNK];
    for _ in 0..flood() {
        stream.write_all(&buffer)?;
    }
    stream.read_exact(&mut [0])?;
    let tcp = started.elapsed();
    let started = Instant::now();
    one.flood()?;
    one.receive()?;
    row("TCP and VI, GB/s", &[rate(tcp)?, rate(started.elapsed())?]);
    println!("{:?}", one.nic.counters());
    one.linger();
    echo.join().map_err(|_| "the other thread panicked")?
}

fn number(name: &str, default: usize) -> usize {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Rounds of latencies.
fn rounds() -> usize {
    number("ROUNDS", 41)
}

/// How many writes the flood has.
fn flood() -> usize {
    number("FLOOD", 1000)
}

fn config() -> SoftwareNicConfig {
    SoftwareNicConfig::default()
        .packet_bytes_max(number("PACKET_BYTES", 65_000))
        .window_bytes(number("WINDOW_BYTES", 128 << 10))
        .is_tagged(env::var_os("TAGGED").is_some())
}

/// What the second end tells the first: where its bare socket, its NIC and its listener for TCP are.
type Places = ([SocketAddr; 2], Address, SocketAddr);

fn echo(
    (to, to_one): (SocketAddr, Address),
    config: SoftwareNicConfig,
    places: &Sender<Places>,
) -> Result<()> {
    if let Some(path) = env::var_os("NETNS") {
        let namespace = File::open(path)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    }
    pin(1)?;
    let bare_two = bare(&address("TWO")?)?;
    let wired_two = bare(&address("TWO")?)?;
    let mut two = End::new(Udp::bind(address("TWO")?, secret(), config)?)?;
    let listener = TcpListener::bind(address("TWO")?)?;
    let sockets = [bare_two.local_addr()?, wired_two.local_addr()?];
    places.send((sockets, two.nic.address(), listener.local_addr()?))?;
    two.meet(&to_one)?;
    let from = loop {
        if let Ok((_, from)) = wired_two.recv_from(&mut []) {
            break from;
        }
    };
    wired_two.connect(from)?;
    for size in sizes() {
        for _ in 0..rounds() {
            for _ in 0..COUNT {
                bare_receive(&bare_two)?;
                bare_two.send_to(&vec![0; size], to)?;
            }
            for _ in 0..COUNT {
                wired_receive(&wired_two)?;
                wired_two.send(&vec![0; size])?;
            }
            for _ in 0..COUNT {
                two.receive()?;
                two.send(size, 0)?;
            }
        }
    }
    let (mut stream, _) = listener.accept()?;
    let mut buffer = vec![0; CHUNK];
    for _ in 0..flood() {
        stream.read_exact(&mut buffer)?;
    }
    stream.write_all(&[1])?;
    for _ in 0..flood() {
        two.receive()?;
    }
    two.send(8, 0)?;
    // What was sent is on its way only once it was heard of.
    two.linger();
    Ok(())
}

fn secret() -> Secret {
    Secret::new([9; 16])
}

/// An address of the first or the second end.
fn address(name: &str) -> Result<SocketAddr> {
    let text = env::var(name).unwrap_or_else(|_| Ipv4Addr::LOCALHOST.to_string());
    Ok(SocketAddr::new(text.parse()?, 0))
}

fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn rate(time: Duration) -> Result<f64> {
    Ok(f64::from(u32::try_from(flood() * CHUNK)?) / time.as_secs_f64() / 1e9)
}

fn row(what: &str, found: &[f64]) {
    print!("{what:>24}");
    found.iter().for_each(|one| print!(" {one:>12.2}"));
    if let [.., socket, vi] = found {
        println!(" {:>8.2}", vi / socket);
    }
}

fn sizes() -> Vec<usize> {
    if env::var_os("SMALL").is_some() { vec![8] } else { SIZES.to_vec() }
}
fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Nanoseconds of one of many round trips.
fn time(mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..COUNT {
        round()?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(COUNT)?))
}

fn bare(address: &SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bare_receive(socket: &UdpSocket) -> Result<()> {
    let mut buffer = [0; 1 << 14];
    loop {
        match socket.recv_from(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            found => return Ok(found.map(drop)?),
        }
    }
}

fn wired_receive(socket: &UdpSocket) -> Result<()> {
    let mut buffer = [0; 1 << 14];
    loop {
        match socket.recv(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            found => return Ok(found.map(drop)?),
        }
    }
}

struct End {
    nic: Udp,
    vi: ViId,
    sends: CqId,
    receives: CqId,
    region: Region,
    peer: RemoteKey,
}

impl End {
    fn new(mut nic: Udp) -> Result<Self> {
        let tag = nic.create_tag();
        let (sends, receives) = (nic.create_cq()?, nic.create_cq()?);
        let vi = nic.create_vi(ViAttributes {
            reliability: Reliability::ReliableDelivery,
            tag,
            send_cq: Some(sends),
            receive_cq: Some(receives),
            allows_write: true,
            allows_read: false,
        })?;
        let rights = MemoryAttributes { tag, allows_write: true, allows_read: false };
        let region = nic.allocate(REGION_BYTES, rights)?;
        for cookie in 0..512 {
            nic.post_receive(vi, &ReceiveDescriptor { cookie, segments: &[] })?;
        }
        Ok(Self { nic, vi, sends, receives, region, peer: RemoteKey(0) })
    }

    fn meet(&mut self, peer: &Address) -> Result<()> {
        let key = self.region.key.0.to_le_bytes();
        let deadline = Instant::now() + Duration::from_secs(10);
        self.nic
            .connect_peer(Connect::new(self.vi, peer, b"udp_write", deadline).greeting(&key))?;
        loop {
            self.nic.progress(Instant::now());
            match self.nic.next_event() {
                Some(NicEvent::Connected { greeting, .. }) => {
                    self.peer = RemoteKey(u64::from_le_bytes(greeting.as_slice().try_into()?));
                    return Ok(());
                }
                Some(event) => return Err(format!("no connection: {event:?}").into()),
                None => {}
            }
        }
    }

    fn send(&mut self, size: usize, cookie: u64) -> Result<()> {
        let bytes = [0; 256];
        let pieces = [IoSlice::new(&bytes[..size.min(256)])];
        let length = u64::try_from(size)?;
        let segments = [LocalSegment { memory: self.region.handle, offset: 0, length }];
        let data = if size <= 256 { Data::Inline(&pieces) } else { Data::Segments(&segments) };
        let write = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie,
            immediate: Some(1),
            is_signaled: cookie > 0,
            remote: Some(RemoteSegment { key: self.peer, offset: 0 }),
            data,
        };
        Ok(self.nic.post_send(self.vi, &write)?)
    }

    /// Waits for a write of the peer.
    fn receive(&mut self) -> Result<()> {
        loop {
            for _ in 0..100 {
                if let Some(found) = self.nic.poll_cq(self.receives) {
                    if !found.status.is_done() {
                        return Err(format!("{found:?}").into());
                    }
                    let descriptor = ReceiveDescriptor { cookie: 0, segments: &[] };
                    return Ok(self.nic.post_receive(self.vi, &descriptor)?);
                }
            }
            self.nic.progress(Instant::now());
        }
    }

    fn flood(&mut self) -> Result<()> {
        let (mut sent, mut done) = (0, 0);
        while done < flood() {
            while sent < flood() && sent - done < WINDOW {
                self.send(CHUNK, 1)?;
                sent += 1;
            }
            self.nic.progress(Instant::now());
            while let Some(found) = self.nic.poll_cq(self.sends) {
                if !found.status.is_done() {
                    return Err(format!("{found:?}").into());
                }
                done += 1;
            }
        }
        Ok(())
    }

    fn linger(&mut self) {
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            self.nic.progress(Instant::now());
        }
    }
}
