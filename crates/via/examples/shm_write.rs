//! Measures RDMA writes with immediate data between two processes, beside a bare ring of cache lines.
//!
//! Run with `cargo run --release -p vigie-via --example shm_write`, on two processors or more. It starts
//! itself a second time; each process is pinned to a processor of its own, and both spin. Every figure is
//! the best tenth of many short rounds in which the bare ring and the VI take turns, so that other work on
//! the machine counts little. Expected output: a table of one-way times in nanoseconds, then the time of
//! one of many messages in a row; the ratio of the first row should be below 1.4.

use std::{
    env, error,
    hint::spin_loop,
    io::{self, IoSlice},
    os::fd::AsFd,
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    thread::{CpuSet, sched_setaffinity},
};
use vigie_detect::Instant;
use vigie_via::{
    shm::Shm,
    vi::{
        Address, CACHE_LINE, Connect, CqId, Data, LocalSegment, Memory, MemoryAttributes, NicEvent,
        Operation, Provider, Queue, ReceiveDescriptor, Region, Reliability, RemoteKey,
        RemoteSegment, SendDescriptor, ViAttributes, ViId,
    },
};

type Result<T> = std::result::Result<T, Box<dyn error::Error>>;

const ROUNDS: usize = 101;
const SIZES: [usize; 4] = [8, 64, 4096, 32_768];
const AREA_BYTES: usize = 1 << 20;
const LINES: u64 = 512;
/// Messages of a flood; the receiver says so after each 256.
const FLOOD: u64 = 400 * 256;
/// One direction of the bare ring: lines, and then the data.
const BARE_BYTES: usize = AREA_BYTES + 64 * 512;

fn main() -> Result<()> {
    match env::var("SHM_WRITE_PEER") {
        Ok(address) => child(&address),
        Err(_) => parent(),
    }
}

fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn parent() -> Result<()> {
    let mut nic = Shm::open()?;
    let file = rustix::fs::memfd_create("bare", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, u64::try_from(2 * BARE_BYTES)?)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let address: String = nic.address().0.iter().map(|byte| format!("{byte:02x}")).collect();
    nic.listen(b"shm_write")?;
    let mut peer = Command::new(env::current_exe()?)
        .env("SHM_WRITE_PEER", address)
        .stdin(Stdio::from(file.try_clone()?))
        .spawn()?;
    pin(0)?;
    let mut bare = Bare::new(&file, true)?;
    let mut end = End::new(nic)?;
    let request = loop {
        end.nic.progress(Instant::now());
        if let Some(NicEvent::Requested { request, .. }) = end.nic.next_event() {
            break request;
        }
        spin_loop();
    };
    let greeting = end.greeting();
    end.nic.accept(request, end.vi, &greeting)?;
    end.connected()?;

    println!("{:>22} {:>12} {:>12} {:>8}", "", "bare ring", "VI", "ratio");
    for size in SIZES {
        let count = round_trips(size);
        let (mut bares, mut vis) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            bares.push(time(count, || bare.ping(size, count)));
            vis.push(time(count, || end.ping(size, count)));
        }
        row(&format!("{size} B one way, ns"), best_tenth(bares) / 2.0, best_tenth(vis) / 2.0);
    }
    let count = FLOOD;
    let (mut bares, mut vis) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bares.push(time(count, || bare.flood(count)));
        vis.push(time(count, || end.flood(count)));
    }
    row("8 B pipelined, ns", best_tenth(bares), best_tenth(vis));
    drop(end);
    if !peer.wait()?.success() {
        return Err("the peer failed".into());
    }
    Ok(())
}

fn child(address: &str) -> Result<()> {
    pin(1)?;
    let bytes = (0..address.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&address[at..at + 2], 16))
        .collect::<std::result::Result<Vec<u8>, _>>()?;
    let mut bare = Bare::new(&io::stdin(), false)?;
    let mut end = End::new(Shm::open()?)?;
    let greeting = end.greeting();
    let deadline = Instant::now() + Duration::from_secs(10);
    end.nic.connect(
        Connect::new(end.vi, &Address(bytes), b"shm_write", deadline).greeting(&greeting),
    )?;
    end.connected()?;
    for size in SIZES {
        let count = round_trips(size);
        for _ in 0..ROUNDS {
            bare.pong(size, count);
            end.pong(size, count);
        }
    }
    for _ in 0..ROUNDS {
        bare.drain(FLOOD);
        end.drain(FLOOD);
    }
    // Stay until the other side leaves: what was sent last must be taken.
    loop {
        end.nic.progress(Instant::now());
        if let Some(NicEvent::Broken { .. }) = end.nic.next_event() {
            return Ok(());
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn time(count: u64, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    (Instant::now() - start).as_nanos() as f64 / count as f64
}

const fn round_trips(size: usize) -> u64 {
    if size > 1024 { 200 } else { 3000 }
}

fn best_tenth(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 10]
}

fn row(what: &str, bare: f64, vi: f64) {
    println!("{what:>22} {bare:>12.1} {vi:>12.1} {:>8.2}", vi / bare);
}

/// The bare ring: a line with a sequence number for each message, data beside it.
struct Bare {
    own: Memory,
    peers: Memory,
    private: Memory,
    sent: u64,
    received: u64,
}

impl Bare {
    fn new(file: &impl AsFd, is_first: bool) -> Result<Self> {
        let all = Memory::map(file.as_fd(), 2 * BARE_BYTES, true)?;
        // The halves are two views of one mapping.
        let (own, peers) = (all.clone(), all);
        let private = Memory::allocate(AREA_BYTES)?;
        let mut bare = Self { own, peers, private, sent: 0, received: 0 };
        if !is_first {
            std::mem::swap(&mut bare.own, &mut bare.peers);
        }
        bare.private.store(0, u64::from(is_first))?;
        Ok(bare)
    }

    fn base(&self, is_own: bool) -> u64 {
        let is_first = self.private.load(0).is_ok_and(|word| word == 1);
        if is_first == is_own { 0 } else { BARE_BYTES as u64 }
    }

    #[inline]
    fn send(&mut self, base: u64, size: usize) {
        let at = base + (self.sent % LINES) * 64;
        self.sent += 1;
        let line = [const { AtomicU64::new(0) }; CACHE_LINE / 8];
        line[0].store(self.sent, Ordering::Relaxed);
        if size > 40 {
            let _ = self.peers.copy_from(base + LINES * 64, &self.private, 4096, size);
        }
        let _ = self.peers.write_line(at, &line);
    }

    #[inline]
    fn receive(&mut self, base: u64, size: usize) {
        let at = base + (self.received % LINES) * 64;
        self.received += 1;
        while self.own.load(at).is_ok_and(|word| word != self.received) {
            spin_loop();
        }
        let _ = std::hint::black_box(self.own.read_line(at));
        if size > 40 {
            let _ = self.private.copy_from(4096, &self.own, base + LINES * 64, size);
        }
    }

    fn ping(&mut self, size: usize, count: u64) {
        let (own, peers) = (self.base(true), self.base(false));
        for _ in 0..count {
            self.send(peers, size);
            self.receive(own, size);
        }
    }

    fn pong(&mut self, size: usize, count: u64) {
        let (own, peers) = (self.base(true), self.base(false));
        for _ in 0..count {
            self.receive(own, size);
            self.send(peers, size);
        }
    }

    fn flood(&mut self, count: u64) {
        let (own, peers) = (self.base(true), self.base(false));
        for done in 1..=count {
            self.send(peers, 8);
            if done.is_multiple_of(256) && done > 256 {
                self.receive(own, 8);
            }
        }
        self.receive(own, 8);
    }

    fn drain(&mut self, count: u64) {
        let (own, peers) = (self.base(true), self.base(false));
        for done in 1..=count {
            self.receive(own, 8);
            if done.is_multiple_of(256) {
                self.send(peers, 8);
            }
        }
    }
}

/// One end of the connection.
struct End {
    nic: Shm,
    vi: ViId,
    cq: CqId,
    source: Region,
    area: Region,
    private: Memory,
    remote: RemoteKey,
}

impl End {
    fn new(mut nic: Shm) -> Result<Self> {
        let tag = nic.create_tag();
        let area = MemoryAttributes { tag, allows_write: true, allows_read: false };
        let area = nic.allocate(AREA_BYTES, area)?;
        let source = nic.register(Memory::allocate(AREA_BYTES)?, MemoryAttributes::private(tag))?;
        let cq = nic.create_cq()?;
        let vi = nic.create_vi(ViAttributes {
            reliability: Reliability::ReliableDelivery,
            tag,
            send_cq: None,
            receive_cq: Some(cq),
            allows_write: true,
            allows_read: false,
        })?;
        for cookie in 0..1024 {
            nic.post_receive(vi, &ReceiveDescriptor { cookie, segments: &[] })?;
        }
        let (private, remote) = (Memory::allocate(AREA_BYTES)?, RemoteKey(0));
        Ok(Self { nic, vi, cq, source, area, private, remote })
    }

    fn greeting(&self) -> Vec<u8> {
        self.area.key.0.to_le_bytes().to_vec()
    }

    fn connected(&mut self) -> Result<()> {
        loop {
            self.nic.progress(Instant::now());
            match self.nic.next_event() {
                Some(NicEvent::Connected { greeting, .. }) => {
                    self.remote = RemoteKey(u64::from_le_bytes(greeting.as_slice().try_into()?));
                    break;
                }
                Some(event) => return Err(format!("{event:?}").into()),
                None => spin_loop(),
            }
        }
        // The grants come behind it.
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            self.nic.progress(Instant::now());
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self, size: usize) {
        let segment = [LocalSegment {
            memory: self.source.handle,
            offset: 0,
            length: u64::try_from(size).unwrap_or(0),
        }];
        let slice = [IoSlice::new(&[7; 8])];
        let data = if size == 8 { Data::Inline(&slice) } else { Data::Segments(&segment) };
        let descriptor = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: 0,
            immediate: Some(5),
            is_signaled: false,
            remote: Some(RemoteSegment { key: self.remote, offset: 0 }),
            data,
        };
        while self.nic.post_send(self.vi, &descriptor).is_err() {
            self.nic.progress(Instant::now());
        }
    }

    #[inline]
    fn receive(&mut self, size: usize) {
        let mut idle = 0_u32;
        let completion = loop {
            if let Some(completion) = self.nic.poll_cq(self.cq) {
                break completion;
            }
            idle += 1;
            if idle.is_multiple_of(4096) {
                self.nic.progress(Instant::now());
            }
            spin_loop();
        };
        assert_eq!((completion.queue, completion.immediate), (Queue::Receive, Some(5)));
        if size > 40 {
            let _ = self.private.copy_from(0, &self.area.memory, 0, size);
        }
        let empty = ReceiveDescriptor { cookie: 0, segments: &[] };
        let _ = self.nic.post_receive(self.vi, &empty);
    }

    fn ping(&mut self, size: usize, count: u64) {
        for _ in 0..count {
            self.send(size);
            self.receive(size);
        }
    }

    fn pong(&mut self, size: usize, count: u64) {
        for _ in 0..count {
            self.receive(size);
            self.send(size);
        }
    }

    fn flood(&mut self, count: u64) {
        for done in 1..=count {
            self.send(8);
            if done.is_multiple_of(256) && done > 256 {
                self.receive(8);
            }
        }
        self.receive(8);
    }

    fn drain(&mut self, count: u64) {
        for done in 1..=count {
            self.receive(8);
            if done.is_multiple_of(256) {
                self.send(8);
            }
        }
    }
}
