//! A client and a server that check each other's writes.

use std::{
    io::IoSlice,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use vigie_detect::Instant;
use vigie_via::{
    software_nic::{Secret, SoftwareNic, SoftwareNicConfig, SoftwareNicCounters, Wire},
    udp::{Udp, UdpWire},
    vi::{
        Address, Connect, CqId, Data, DisconnectReason, LocalSegment, MemoryAttributes, NicEvent,
        Operation, Provider, ReceiveDescriptor, Region, Reliability, RemoteKey, RemoteSegment,
        RequestId, SendDescriptor, Status, ViAttributes, ViId,
    },
};

/// A bound for each wait, longer than it takes on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(50);

/// The slots that the writes of either side use in turn.
const SLOT_BYTES: usize = 64 << 10;
const SLOTS: usize = 8;

pub(crate) const DOOR: &[u8] = b"echo";

pub(crate) fn bind(address: &str, config: SoftwareNicConfig) -> Udp {
    let address: SocketAddr = address.parse().expect("an address");
    Udp::bind(address, Secret::new([4; 16]), config).expect("a NIC")
}

/// Returns the address of a NIC over UDP that is reached at another address than its own.
pub(crate) fn seen_at(nic: &Address, own: SocketAddr, other: SocketAddr) -> Address {
    let tail = |address: SocketAddr| match address {
        SocketAddr::V4(address) => {
            [&address.ip().octets()[..], &address.port().to_be_bytes()].concat()
        }
        SocketAddr::V6(_) => panic!("not here"),
    };
    let head = nic.0.strip_suffix(&tail(own)[..]).expect("an address ends with where it is");
    Address([head, &tail(other)].concat())
}

fn pattern(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251 + number * 7).to_le_bytes()[0]).collect()
}

pub(crate) struct End<W: Wire = UdpWire> {
    pub(crate) nic: SoftwareNic<W>,
    vi: ViId,
    cq: CqId,
    region: Region,
    source: Region,
    peer: RemoteKey,
    pub(crate) broken: Option<DisconnectReason>,
    request: Option<RequestId>,
    is_connected: bool,
    /// How many writes there were before this exchange.
    before: usize,
}

impl<W: Wire> End<W> {
    pub(crate) fn new(mut nic: SoftwareNic<W>, reliability: Reliability) -> Self {
        let tag = nic.create_tag();
        let cq = nic.create_cq().expect("a queue");
        let attributes = ViAttributes {
            reliability,
            tag,
            send_cq: None,
            receive_cq: Some(cq),
            allows_write: true,
            allows_read: false,
        };
        let vi = nic.create_vi(attributes).expect("a VI");
        let rights = MemoryAttributes { tag, allows_write: true, allows_read: false };
        let region = nic.allocate(SLOT_BYTES * SLOTS, rights).expect("memory");
        let source = nic.allocate(SLOT_BYTES * SLOTS, rights).expect("memory");
        for cookie in 0..64 {
            let receive = ReceiveDescriptor { cookie, segments: &[] };
            nic.post_receive(vi, &receive).expect("room");
        }
        let peer = RemoteKey(0);
        let (broken, request) = (None, None);
        let (is_connected, before) = (false, 0);
        Self { nic, vi, cq, region, source, peer, broken, request, is_connected, before }
    }

    fn greeting(&self) -> [u8; 8] {
        self.region.key.0.to_le_bytes()
    }

    pub(crate) fn call(&mut self, address: &Address) {
        let deadline = Instant::now() + BOUND;
        let greeting = self.greeting();
        self.nic
            .connect(Connect::new(self.vi, address, DOOR, deadline).greeting(&greeting))
            .expect("asked");
        self.until("no connection", |end| end.is_connected);
    }

    pub(crate) fn tick(&mut self) {
        self.nic.progress(Instant::now());
        while let Some(event) = self.nic.next_event() {
            match event {
                NicEvent::Requested { request, greeting, .. } => {
                    self.request = Some(request);
                    self.learn(&greeting);
                }
                NicEvent::Connected { greeting, .. } => {
                    self.is_connected = true;
                    self.learn(&greeting);
                }
                NicEvent::Broken { reason, .. } => self.broken = Some(reason),
                other => panic!("{other:?}"),
            }
        }
        thread::yield_now();
    }

    fn learn(&mut self, greeting: &[u8]) {
        self.peer = RemoteKey(u64::from_le_bytes(greeting.try_into().expect("a key")));
    }

    /// Works until a condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, otherwise: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + BOUND;
        while !is_so(self) {
            assert!(Instant::now() < end, "{otherwise}: {:?}", self.nic.counters());
            self.tick();
        }
    }

    /// Writes `length` unique bytes, as the `number`th write of this exchange, and announces them.
    pub(crate) fn write(&mut self, number: usize, length: usize) {
        let number = self.before + number;
        let offset = u64::try_from(number % SLOTS * SLOT_BYTES).expect("small");
        let bytes = pattern(number, length);
        let pieces = [IoSlice::new(&bytes)];
        self.source.memory.write(offset, &bytes).expect("inside");
        let count = u64::try_from(length).expect("small");
        let segments = [LocalSegment { memory: self.source.handle, offset, length: count }];
        let data = if length <= 64 { Data::Inline(&pieces) } else { Data::Segments(&segments) };
        let write = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: 0,
            immediate: Some(i32::try_from(length).expect("small")),
            is_signaled: false,
            remote: Some(RemoteSegment { key: self.peer, offset }),
            data,
        };
        self.nic.post_send(self.vi, &write).expect("connected, with room");
    }

    /// Takes the peer's `number`th write, if it has arrived: its length, or why there will be none.
    fn take(&mut self, number: usize) -> Option<Result<usize, Status>> {
        let number = self.before + number;
        let found = self.nic.poll_cq(self.cq)?;
        if !found.status.is_done() {
            return Some(Err(found.status));
        }
        let receive = ReceiveDescriptor { cookie: 0, segments: &[] };
        self.nic.post_receive(self.vi, &receive).expect("room");
        let length = found.immediate.and_then(|length| usize::try_from(length).ok());
        let length = length.expect("a length comes with it");
        let offset = u64::try_from(number % SLOTS * SLOT_BYTES).expect("small");
        let bytes = self.region.memory.read_to_vec(offset, length).expect("inside");
        assert!(bytes == pattern(number, length), "number {number}, {length} bytes");
        Some(Ok(length))
    }

    /// Writes of all these lengths, each of which the peer writes back. At most [`SLOTS`] are in flight.
    pub(crate) fn exchange(&mut self, lengths: &[usize]) {
        self.go_on(lengths, 0);
    }

    /// Continues an [`exchange`](Self::exchange) of which the first `sent` were already written.
    pub(crate) fn go_on(&mut self, lengths: &[usize], mut sent: usize) {
        let end = Instant::now() + BOUND;
        let mut back = 0;
        while back < lengths.len() {
            assert!(Instant::now() < end, "{sent} sent, {back} back: {:?}", self.nic.counters());
            if sent < lengths.len() && sent - back < SLOTS {
                self.write(sent, lengths[sent]);
                sent += 1;
            }
            self.tick();
            assert_eq!(self.broken, None, "{sent} sent, {back} back: {:?}", self.nic.counters());
            while let Some(taken) = self.take(back) {
                assert_eq!(taken, Ok(lengths[back]));
                back += 1;
            }
        }
        self.before += lengths.len();
    }
}

/// A server that writes back what it receives, in its own thread.
pub(crate) struct Echo {
    pub(crate) address: Address,
    stops: Arc<AtomicBool>,
    thread: thread::JoinHandle<(Option<DisconnectReason>, SoftwareNicCounters)>,
}

impl Echo {
    /// `make` is called in its thread.
    pub(crate) fn new<W: Wire>(
        reliability: Reliability,
        make: impl FnOnce() -> SoftwareNic<W> + Send + 'static,
    ) -> Self {
        let stops = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = thread::spawn({
            let stops = Arc::clone(&stops);
            move || {
                let mut end = End::new(make(), reliability);
                end.nic.listen(DOOR).expect("listens");
                sender.send(end.nic.address()).expect("the receiver waits");
                end.serve(&stops);
                (end.broken, end.nic.counters())
            }
        });
        let address = receiver.recv_timeout(BOUND).expect("the server begins");
        Self { address, stops, thread }
    }

    /// Ends it. Returns why its connection broke, if it did.
    pub(crate) fn end(self) -> (Option<DisconnectReason>, SoftwareNicCounters) {
        self.stops.store(true, Ordering::Relaxed);
        self.thread.join().expect("the server saw nothing wrong")
    }

    /// Waits until its connection breaks.
    pub(crate) fn broken(self) -> (Option<DisconnectReason>, SoftwareNicCounters) {
        self.thread.join().expect("the server saw nothing wrong")
    }
}

impl<W: Wire> End<W> {
    fn serve(&mut self, stops: &AtomicBool) {
        let end = Instant::now() + 2 * BOUND;
        let mut number = 0;
        while !stops.load(Ordering::Relaxed) && self.broken.is_none() {
            assert!(Instant::now() < end, "the server waits for its end");
            self.tick();
            if let Some(request) = self.request.take() {
                let greeting = self.greeting();
                self.nic.accept(request, self.vi, &greeting).expect("accepted");
            }
            while let Some(Ok(length)) = self.take(number) {
                self.write(number, length);
                number += 1;
            }
        }
    }
}
