//! Messages through a forwarder over real providers: threads and processes of this machine.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use vigie_detect::clock::monotonic_now;
use vigie_detect::{ArmOutcome, Clock, Instant, Reactivity};
use vigie_forward::messages::{
    Basic, Busy, DeliveryReport, Forwarder, ForwarderReport, MessageVerdict, MessagesError,
    NodeConfig, Sink, SinkEvent, Source, algorithm_fn,
};
use vigie_forward::{Bandwidth, Path, Sees};
use vigie_via::shm::Shm;
use vigie_via::software_nic::{Secret, SoftwareNic, SoftwareNicConfig, Wire};
use vigie_via::udp::{Udp, UdpWire};
use vigie_via::vi::{Address, Provider};

use crate::kit::{
    child::{command_in, role},
    speaker::Speaker,
};

const PATHS: [Path; 3] = [Path::HOST, Path::NIC, Path::NIC_CUT_THROUGH];

fn udp() -> Udp {
    let config = SoftwareNicConfig::default().keep_alive(Duration::from_millis(200));
    let config = config.dead_after(Duration::from_secs(1));
    let here = "127.0.0.1:0".parse().expect("an address");
    Udp::bind(here, Secret::new([9; 16]), config).expect("a NIC")
}

fn config() -> NodeConfig {
    NodeConfig::new().window(8).timeout(Duration::from_secs(20))
}

/// A sink on a thread of its own, until its last connection is over.
fn sink_on_a_thread<P: Provider>(
    nic: P,
    config: NodeConfig,
) -> (Address, thread::JoinHandle<Vec<Vec<u8>>>) {
    let mut sink = Sink::open(nic, config).expect("a sink");
    let address = sink.address();
    let thread = thread::spawn(move || {
        let mut received = Vec::new();
        loop {
            match sink.next_event().expect("a sink") {
                Some(SinkEvent::Message(message)) => received.push(message.bytes),
                Some(SinkEvent::Finished { .. }) => {}
                _ => return received,
            }
        }
    });
    (address, thread)
}

fn messages(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let lengths = [0, 1, 2047, 2048, 2049, 4096, 8192, 30_000];
    let message = |random: &mut fastrand::Rng| {
        let length = random.choice(lengths).unwrap_or(0);
        (0..length).map(|_| random.u8(..)).collect()
    };
    (0..count).map(|_| message(&mut random)).collect()
}

fn through<P: Provider>(
    nic: impl Fn() -> P,
    config: &NodeConfig,
    path: Path,
    sent: &[Vec<u8>],
) -> (Vec<Vec<u8>>, DeliveryReport, ForwarderReport) {
    let (address, sink) = sink_on_a_thread(nic(), config.clone());
    let stamp = algorithm_fn(Sees::Header, |envelope, bytes: &mut [u8]| {
        envelope.set_tag(envelope.tag().rotate_left(8));
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        MessageVerdict::Forward
    });
    let routes = [(5, address)];
    let forwarder = Forwarder::start(nic(), config.clone(), &routes, path, stamp).expect("one");
    let mut source =
        Source::connect(nic(), forwarder.address(), config.clone()).expect("connected");
    for (tag, bytes) in (0..).zip(sent) {
        source.send_forward(5, tag, bytes).expect("sent");
    }
    let finished = source.finish(5).expect("acknowledged");
    let report = forwarder.stop().expect("no error");
    let received = sink.join().expect("a sink");
    (received, finished, report)
}

/// Goal: over real sockets and shared memory, all paths deliver the same bytes, once and in order; the final
/// acknowledgement counts them; and the program is used only on the host's path. Method: three threads, random
/// messages.
#[test]
fn all_ways_give_the_same_bytes() {
    let sent = messages(4, 300);
    let expected: Vec<Vec<u8>> = sent
        .iter()
        .map(|bytes| {
            let mut bytes = bytes.clone();
            bytes.iter_mut().take(64).for_each(|byte| *byte ^= 0x55);
            bytes
        })
        .collect();
    let spinning = config().reactivity(Reactivity::LowLatency);
    let paced = Bandwidth::new(200_000_000).ok();
    for path in PATHS {
        let runs = [
            through(udp, &config(), path, &sent),
            through(udp, &config().pace(paced).window(1), path, &sent),
            through(|| Shm::open().expect("a NIC"), &spinning, path, &sent),
        ];
        for (received, finished, report) in runs {
            assert!(received == expected, "{path}");
            assert_eq!((finished.delivered, report.forwarded), (300, 300), "{path}");
            let handed_over = if path == Path::HOST { 300 } else { 0 };
            assert_eq!(report.channel.messages, handed_over, "{path}");
        }
    }
}

/// A wire that loses some of its sends.
struct Lossy {
    wire: UdpWire,
    random: fastrand::Rng,
    lost: Arc<AtomicU64>,
}

impl Wire for Lossy {
    type Path = SocketAddr;
    const NAME: &'static str = "lossy";

    fn now(&self) -> Instant {
        self.wire.now()
    }

    fn path(&self) -> SocketAddr {
        self.wire.path()
    }

    fn send(&mut self, to: SocketAddr, packets: &[u8], packet_bytes: usize) -> io::Result<()> {
        if self.random.u8(..) < 8 {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.wire.send(to, packets, packet_bytes)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        self.wire.recv(buffer)
    }

    fn packets_max(&self) -> usize {
        self.wire.packets_max()
    }

    fn packet_bytes(&mut self, to: SocketAddr) -> usize {
        self.wire.packet_bytes(to)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.wire.descriptor()
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        self.wire.arm()
    }
}

/// Goal: lost packets change nothing but the time: every path delivers the same bytes, once and in order. Method: each
/// node's wire loses three in a hundred sends.
#[test]
fn lost_packets_are_not_noticed() {
    let sent = messages(8, 120);
    let lost = Arc::new(AtomicU64::new(0));
    let nic = || {
        let wire = UdpWire::bind("127.0.0.1:0".parse().expect("an address")).expect("a wire");
        let random = fastrand::Rng::with_seed(6);
        let wire = Lossy { wire, random, lost: Arc::clone(&lost) };
        SoftwareNic::new(wire, Secret::new([9; 16]), SoftwareNicConfig::default(), [4; 16])
    };
    for path in PATHS {
        let (received, finished, _) = through(nic, &config(), path, &sent);
        assert_eq!((received.len(), finished.delivered), (120, 120), "{path}");
        for (found, sent) in received.iter().zip(&sent) {
            assert!(found.len() == sent.len() && found.get(64..) == sent.get(64..), "{path}");
        }
    }
    assert!(lost.load(Ordering::Relaxed) > 10, "the wires lose packets");
}

/// Goal: the algorithm's time is spent where it should be. Method: a busy algorithm on both processors, and their
/// reports.
#[test]
fn busy_time_is_spent_where_it_is_said() {
    for path in [Path::HOST, Path::NIC] {
        let (address, sink) = sink_on_a_thread(udp(), config());
        let busy = Busy::new(Duration::from_micros(300));
        let forwarder =
            Forwarder::start(udp(), config(), &[(1, address)], path, busy).expect("one");
        let mut source = Source::connect(udp(), forwarder.address(), config()).expect("one");
        for tag in 0..50 {
            source.send_forward(1, tag, &[0; 100]).expect("sent");
        }
        source.finish(1).expect("acknowledged");
        let report = forwarder.stop().expect("no error");
        sink.join().expect("a sink");
        let spent = Duration::from_micros(300 * 50);
        let (there, elsewhere) = match path {
            Path::HOST => (report.channel.algorithm, report.nic_algorithm),
            _ => (report.nic_algorithm, report.channel.algorithm),
        };
        assert!(there >= spent && elsewhere.is_zero(), "{path}: {report:?}");
        assert_eq!(report.program_cpu.is_zero(), path == Path::NIC);
    }
}

/// The test that is the forwarder in a child; its role is the sink's address.
const FORWARDER: &str = "the_forwarders_process";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|digit| u8::try_from(digit.to_digit(16)?).ok()).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The forwarder's process, if started by the test below; otherwise does nothing.
#[test]
fn the_forwarders_process() {
    let Some(next) = role(FORWARDER) else { return };
    let routes = [(1, Address(unhex(&next)))];
    let config = config().ends_with_sources(true);
    let forwarder =
        Forwarder::start(udp(), config, &routes, Path::NIC_CUT_THROUGH, Basic::default());
    let forwarder = forwarder.expect("a forwarder");
    println!("\nforwards at {}", hex(&forwarder.address().0));
    forwarder.join().expect("no error");
}

fn forwarder_process(sink: &Address) -> (Speaker, Address) {
    let child = Speaker::start(command_in(&hex(&sink.0), &[], FORWARDER));
    let address = Address(unhex(&child.line("forwards at ")));
    (child, address)
}

/// Goal: both sides notice with a typed error that a forwarder was killed, within the provider's time, and what the
/// sink has is complete and in order; one that is not killed ends with its source. Method: the forwarder as a process
/// of its own, killed in the middle, and not.
#[test]
fn a_killed_forwarder_is_noticed() {
    for is_killed in [true, false] {
        let (address, sink) = sink_on_a_thread(udp(), config());
        let (mut process, next) = forwarder_process(&address);
        let mut source = Source::connect(udp(), &next, config()).expect("connected");
        let bytes = vec![3; 9_000];
        for tag in 0..100 {
            source.send_forward(1, tag, &bytes).expect("sent");
        }
        assert_eq!(source.finish(1).expect("acknowledged").delivered, 100);
        if is_killed {
            process.kill();
            let error = (0..100_000)
                .find_map(|tag| source.send_forward(1, tag, &bytes).err())
                .expect("an error");
            assert!(matches!(error, MessagesError::Lost { .. }), "{error}");
        } else {
            drop(source);
            assert!(process.finish().success());
        }
        let received = sink.join().expect("a sink");
        assert!(received.len() >= 100 && received.iter().all(|found| *found == bytes));
    }
}

/// Goal: connecting to an address without a listener fails with a typed error, and so does a source whose sink reads no
/// more. Method: an address where no node is; a sink that only waits.
#[test]
fn nothing_waits_for_ever() {
    let soon = config().timeout(Duration::from_millis(300)).window(2);
    let nobody = udp().address();
    let error = Source::connect(udp(), &nobody, soon.clone()).expect_err("no node is there");
    assert!(matches!(error, MessagesError::Refused(_)), "{error}");
    let mut sink = Sink::open(udp(), soon.clone()).expect("a sink");
    let address = sink.address();
    let source = thread::spawn(move || {
        let mut source = Source::connect(udp(), &address, soon).expect("connected");
        (0..10).find_map(|tag| source.send_forward(1, tag, b"a word").err())
    });
    while !source.is_finished() {
        // It keeps the connection alive, but takes nothing.
        sink.tick().expect("a sink");
    }
    let error = source.join().expect("a source").expect("an error");
    assert!(matches!(error, MessagesError::Stalled { .. }), "{error}");
}

/// A clock that leaps ahead, like that of a process that was stopped, and counts how often it is read.
#[derive(Debug, Default)]
struct Leaping {
    ahead: AtomicU64,
    readings: AtomicU64,
}

impl Clock for Leaping {
    fn now(&self) -> Instant {
        self.readings.fetch_add(1, Ordering::SeqCst);
        monotonic_now() + Duration::from_secs(self.ahead.load(Ordering::SeqCst))
    }
}

impl Leaping {
    /// Leaps ahead by ten minutes, and waits until the node, if it still runs, has read the clock several times since.
    fn leap<T>(&self, node: &thread::JoinHandle<T>) {
        self.ahead.fetch_add(600, Ordering::SeqCst);
        self.wait_for_readings(self.readings.load(Ordering::SeqCst) + 10, node);
    }

    fn wait_for_readings<T>(&self, readings: u64, node: &thread::JoinHandle<T>) {
        while self.readings.load(Ordering::SeqCst) < readings && !node.is_finished() {
            thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// Goal: if all nodes were stopped for longer than their patience, they continue: the first one to run again does not
/// consider the others stalled. Method: a source's clock leaps while it connects, and while it waits for the final
/// acknowledgement; only after it has read the clock again does its sink do anything.
#[test]
fn a_stop_of_all_nodes_is_no_stall() {
    let clock = Arc::new(Leaping::default());
    let mut sink = Sink::open(Shm::open().expect("a NIC"), config()).expect("a sink");
    let address = sink.address();
    let (is_connected, connected) = mpsc::channel();
    let of_source = config().clock(clock.clone());
    let source = thread::spawn(move || {
        let nic = Shm::open().expect("a NIC");
        let mut source = Source::connect(nic, &address, of_source)?;
        is_connected.send(()).expect("the test waits");
        source.send_forward(5, 0, b"a message")?;
        source.finish(5)
    });
    // By then it has begun to connect.
    clock.wait_for_readings(6, &source);
    clock.leap(&source);
    while let Err(mpsc::RecvTimeoutError::Timeout) =
        connected.recv_timeout(Duration::from_millis(1))
    {
        sink.tick().expect("a sink");
    }
    clock.leap(&source);
    let mut received = 0;
    while let Ok(Some(SinkEvent::Message(_) | SinkEvent::Finished { .. })) = sink.next_event() {
        received += 1;
    }
    let finished = source.join().expect("no panic").expect("no error");
    assert_eq!((finished.delivered, received), (1, 2));
}
