//! A bridge that damages frames.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use fastrand::Rng;
use vigie_via::{
    link::{EtherType, Link},
    software_nic::SoftwareNicConfig,
    vi::Reliability,
};

use crate::{
    kit::namespace::near,
    nics::{LENGTHS, Settings, builder, far_nic, secret},
    pair::{Echo, End},
    veth::with_veth,
};

/// An Ethernet header, and that of the wire behind it, whose damage only loses the frame or sends it elsewhere.
const HEADERS_BYTES: usize = 14 + 8;

/// Forwards frames between two interfaces, and damages one in `one_in`: one bit of it, behind its headers. Ends with its owner.
struct Bridge {
    stops: Arc<AtomicBool>,
    damaged: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Bridge {
    fn new(interfaces: [&str; 2], seed: u64, one_in: u32) -> Self {
        let mut links = interfaces.map(|name| {
            let link = Link::builder(name).ether_type(EtherType::EXPERIMENTAL_2).promiscuous();
            link.open().expect("a link")
        });
        let stops = Arc::new(AtomicBool::new(false));
        let damaged = Arc::new(AtomicU64::new(0));
        let (stop, count) = (Arc::clone(&stops), Arc::clone(&damaged));
        let thread = thread::spawn(move || {
            let mut random = Rng::with_seed(seed);
            while !stop.load(Ordering::Relaxed) {
                for side in 0..2 {
                    let mut frames = Vec::new();
                    links[side].recv_each(64, |frame| frames.push(frame.to_vec())).expect("up");
                    for mut frame in frames {
                        if random.u32(..one_in) == 0 && frame.len() > HEADERS_BYTES {
                            let bit = random.usize(8 * HEADERS_BYTES..8 * frame.len());
                            frame[bit / 8] ^= 1 << (bit % 8);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        // A full queue loses the frame, as bridges do.
                        let _ = links[1 - side].send_frame(&frame);
                    }
                    links[1 - side].flush().expect("up");
                }
                thread::yield_now();
            }
        });
        Self { stops, damaged, thread: Some(thread) }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Goal: no damaged byte is delivered, and nothing else is lost. Method: a bridge between two NICs flips one bit in one of 20 frames, with
/// tags and without, at both levels; what comes back is compared.
#[test]
fn damaged_frames_are_sent_again() {
    with_veth("damage::damaged_frames_are_sent_again", |far| {
        near("ip link add name n0 type veth peer name m0");
        near("ip link set n0 up");
        near("ip link set m0 up");
        let levels = [Reliability::ReliableDelivery, Reliability::ReliableReception];
        for (seed, level) in (0..).zip(levels) {
            for is_tagged in [false, true] {
                let config = SoftwareNicConfig::default().is_tagged(is_tagged);
                let settings = Settings { config, ..Settings::default() };
                let bridge = Bridge::new(["m0", "v0"], seed, 20);
                let server = far_nic(far, settings);
                let echo = Echo::new(level, move || server);
                let nic = builder("n0", settings).open(secret()).expect("a NIC");
                let mut client = End::new(nic, level);
                client.call(&echo.address);
                for _ in 0..5 {
                    client.exchange(&LENGTHS);
                }
                assert_eq!((echo.end().0, client.broken), (None, None));
                let counters = client.nic.counters();
                let seen = counters.packets_refused + client.nic.wire().counters().malformed;
                assert!(bridge.damaged.load(Ordering::Relaxed) > 20 && seen > 0, "{counters:?}");
            }
        }
    });
}
