//! The shared-memory provider between real processes: this test binary runs itself again as the peer, in
//! a role that an environment variable names.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{collections::BTreeSet, fs, io::IoSlice, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vigie_detect::{ArmOutcome, Instant};
use vigie_via::{
    shm::Shm,
    vi::{
        Address, Completion, Connect, Data, DisconnectReason, LocalSegment, MemoryAttributes,
        NicEvent, Operation, Provider, Queue, ReceiveDescriptor, Region, Reliability, RemoteKey,
        RemoteSegment, SendDescriptor, Status, ViAttributes, ViId,
    },
};

use crate::kit::{
    child::{command_in, in_child, role},
    speaker::Speaker,
};

/// The test that is the peer in a child.
const PEER: &str = "in_a_role";
/// Several times what one call of a NIC copies.
const AREA_BYTES: usize = 12 << 20;
/// A bound for each wait, longer than it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One end of a connection, in this process.
struct End {
    nic: Shm,
    vi: ViId,
    shared: Region,
    private: Region,
    peer_shared: RemoteKey,
    peer_private: RemoteKey,
}

impl End {
    fn new(reliability: Reliability) -> Self {
        let mut nic = Shm::open().expect("a NIC");
        let tag = nic.create_tag();
        let open = MemoryAttributes { tag, allows_write: true, allows_read: true };
        let shared = nic.allocate(AREA_BYTES, open).expect("memory");
        let heap = vigie_via::vi::Memory::allocate(AREA_BYTES).expect("memory");
        let private = nic.register(heap, open).expect("memory");
        let attributes = ViAttributes {
            reliability,
            tag,
            send_cq: None,
            receive_cq: None,
            allows_write: true,
            allows_read: true,
        };
        let vi = nic.create_vi(attributes).expect("a VI");
        let none = RemoteKey(0);
        Self { nic, vi, shared, private, peer_shared: none, peer_private: none }
    }

    fn greeting(&self) -> Vec<u8> {
        [self.shared.key.0.to_le_bytes(), self.private.key.0.to_le_bytes()].concat()
    }

    /// Lets the NIC work until `check` finds something; sleeps in between if there is nothing to do.
    fn until<T>(&mut self, mut check: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = Instant::now();
            assert!(now < end, "it did not come in {PATIENCE:?}");
            self.nic.progress(now);
            if let Some(found) = check(self) {
                return found;
            }
            self.sleep();
        }
    }

    /// Sleeps until the descriptor is readable, unless there is something already. Returns whether it slept.
    fn sleep(&mut self) -> bool {
        if self.nic.arm().expect("can sleep") == ArmOutcome::Ready {
            return false;
        }
        // A lost wake-up makes the test take this long, and then fail.
        let seconds = i64::try_from(PATIENCE.as_secs()).expect("small");
        let patience = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let descriptor = self.nic.descriptor().expect("a real NIC");
        let found = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&patience));
        assert_eq!(found, Ok(1), "a wake-up was lost");
        self.nic.quiet();
        true
    }

    fn next_event(&mut self) -> NicEvent {
        self.until(|end| end.nic.next_event())
    }

    fn completion(&mut self, queue: Queue) -> Completion {
        self.until(|end| end.nic.poll_queue(end.vi, queue))
    }

    fn connected(&mut self) {
        match self.next_event() {
            NicEvent::Connected { greeting, .. } => {
                let key = |at: usize| {
                    let bytes = greeting[at..at + 8].try_into().expect("eight bytes");
                    RemoteKey(u64::from_le_bytes(bytes))
                };
                (self.peer_shared, self.peer_private) = (key(0), key(8));
            }
            event => panic!("{event:?} instead of a connection"),
        }
    }

    fn post_receives(&mut self, count: u64, length: u64) {
        let segment = [LocalSegment { memory: self.private.handle, offset: 0, length }];
        for cookie in 0..count {
            let segments: &[_] = if length == 0 { &[] } else { &segment };
            let receive = ReceiveDescriptor { cookie, segments };
            self.nic.post_receive(self.vi, &receive).expect("room");
        }
    }

    fn post(&mut self, operation: Operation, immediate: Option<i32>, piece: Piece) {
        let Piece { from, to, length } = piece;
        let segment = [LocalSegment { memory: from, offset: 0, length }];
        let descriptor = SendDescriptor {
            operation,
            cookie: 5,
            immediate,
            is_signaled: true,
            remote: to.map(|key| RemoteSegment { key, offset: 0 }),
            data: Data::Segments(&segment),
        };
        self.nic.post_send(self.vi, &descriptor).expect("room");
    }

    /// Sends a word without data segments: an RDMA write of eight bytes with immediate data.
    fn say(&mut self, word: u64, immediate: i32) {
        let bytes = word.to_ne_bytes();
        let slices = [IoSlice::new(&bytes)];
        let descriptor = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: 6,
            immediate: Some(immediate),
            is_signaled: false,
            remote: Some(RemoteSegment { key: self.peer_shared, offset: 0 }),
            data: Data::Inline(&slices),
        };
        self.nic.post_send(self.vi, &descriptor).expect("room");
    }
}

#[derive(Clone, Copy)]
struct Piece {
    from: vigie_via::vi::MemoryHandle,
    to: Option<RemoteKey>,
    length: u64,
}

/// The peer's process. It is killed when the test ends, in any way.
struct Peer(Speaker);

impl Peer {
    fn start(role: &str, end: &mut End) -> Self {
        end.nic.listen(b"test").expect("no other listener");
        let address: String =
            end.nic.address().0.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(Speaker::start(command_in(&format!("{role} {address}"), &[], PEER)))
    }

    /// Starts the peer and connects with it.
    fn connected(role: &str, end: &mut End) -> Self {
        let peer = Self::start(role, end);
        match end.next_event() {
            NicEvent::Requested { request, .. } => {
                let greeting = end.greeting();
                end.nic.accept(request, end.vi, &greeting).expect("asked for");
            }
            event => panic!("{event:?} instead of a request"),
        }
        end.connected();
        peer
    }

    /// Waits until the peer has ended well.
    fn finish(self) {
        assert!(self.0.finish().success(), "the peer failed");
    }
}

/// The peer's side of each test. Does nothing when run as a test.
#[test]
fn in_a_role() {
    let Some(role) = role(PEER) else { return };
    let (role, address) = role.split_once(' ').expect("two words");
    let bytes: Vec<u8> = (0..address.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&address[at..at + 2], 16).expect("hexadecimal"))
        .collect();
    let level = match role.split('-').nth(1) {
        Some("unreliable") => Reliability::Unreliable,
        Some("reception") => Reliability::ReliableReception,
        _ => Reliability::ReliableDelivery,
    };
    let mut end = End::new(level);
    let receive_bytes = if role.starts_with("mirror") { AREA_BYTES } else { 0 };
    end.post_receives(512, u64::try_from(receive_bytes).expect("small"));
    let (greeting, deadline) = (end.greeting(), Instant::now() + PATIENCE);
    end.nic
        .connect(Connect::new(end.vi, &Address(bytes), b"test", deadline).greeting(&greeting))
        .expect("idle");
    end.connected();
    match role.split('-').next() {
        Some("mirror") => mirror(&mut end),
        Some("echo") => echo(&mut end, 0),
        // Mostly awake, so that its answer meets the other side on the way to sleep.
        Some("quick") => echo(&mut end, 20_000),
        // Asleep until it is killed.
        _ => drop(end.next_event()),
    }
}

/// Sends every message back to where its immediate data says, until the peer leaves.
fn mirror(end: &mut End) {
    let memory = end.private.handle;
    loop {
        let received = end.completion(Queue::Receive);
        if received.status == Status::Flushed {
            return;
        }
        assert_eq!(received.status, Status::Done);
        let to = match received.immediate {
            Some(1) => end.peer_shared,
            _ => end.peer_private,
        };
        let piece = Piece { from: memory, to: Some(to), length: received.length };
        end.post(Operation::RdmaWrite, received.immediate, piece);
        let sent = end.completion(Queue::Send);
        assert_eq!(sent.status, Status::Done);
        let length = u64::try_from(AREA_BYTES).expect("small");
        end.post_receives(1, length);
    }
}

/// Answers every word with the next one, until the peer leaves.
fn echo(end: &mut End, spins: u32) {
    let mut last = 0;
    loop {
        let found = (0..spins).find_map(|_| end.nic.poll_queue(end.vi, Queue::Receive));
        let received = found.unwrap_or_else(|| end.completion(Queue::Receive));
        if received.status == Status::Flushed {
            return;
        }
        let word = end.shared.memory.load(0).expect("inside");
        assert!(word > last, "{word} after {last}: the data must be there before its completion");
        last = word;
        end.post_receives(1, 0);
        end.say(word, received.immediate.expect("always sent"));
    }
}

const LEVELS: [(Reliability, &str); 3] = [
    (Reliability::Unreliable, "mirror-unreliable"),
    (Reliability::ReliableDelivery, "mirror-delivery"),
    (Reliability::ReliableReception, "mirror-reception"),
];

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at ^ (at >> 8) ^ seed).wrapping_mul(167) & 0xff).to_le_bytes()[0])
        .collect()
}

/// Goal: data of every length arrives whole in another process by every way: inline, staged in one and
/// in many chunks, and directly into the peer's memory. Method: a process that sends back what it gets,
/// into private and into shared memory, at each level; then reads of that memory.
#[test]
fn data_goes_to_another_process_and_back() {
    for (level, role) in LEVELS {
        let mut end = End::new(level);
        let peer = Peer::connected(role, &mut end);
        for (seed, length) in
            [0, 1, 8, 40, 41, 64, 4095, 4096, 32_768, 100_000, AREA_BYTES].into_iter().enumerate()
        {
            for (way, own) in [(1, end.shared.clone()), (2, end.private.clone())] {
                let sent = pattern(seed + way, length);
                end.shared.memory.write(0, &sent).expect("inside");
                end.post_receives(1, 0);
                let wide = u64::try_from(length).expect("small");
                let piece = Piece { from: end.shared.handle, to: None, length: wide };
                let immediate = i32::try_from(way).expect("small");
                end.post(Operation::Send, Some(immediate), piece);
                assert_eq!(
                    end.completion(Queue::Send).status,
                    Status::Done,
                    "{length} at {level:?}"
                );
                let received = end.completion(Queue::Receive);
                assert_eq!((received.status, received.length), (Status::Done, wide));
                let found = own.memory.read_to_vec(0, length).expect("inside");
                assert!(found == sent, "{length} bytes at {level:?} arrived otherwise");
                if level == Reliability::Unreliable {
                    continue;
                }
                // The peer's private memory holds the message: a read must return it too.
                let to = end.private.clone();
                to.memory.write(0, &vec![0; length]).expect("inside");
                let piece = Piece { from: to.handle, to: Some(end.peer_private), length: wide };
                end.post(Operation::RdmaRead, None, piece);
                assert_eq!(
                    end.completion(Queue::Send).status,
                    Status::Done,
                    "{length} at {level:?}"
                );
                let found = to.memory.read_to_vec(0, length).expect("inside");
                assert!(found == sent, "{length} bytes at {level:?} were read otherwise");
            }
        }
        end.nic.disconnect(end.vi).expect("a VI");
        peer.finish();
    }
}

/// Goal: the death of a peer is noticed, also by a sleeping NIC, and leaves nothing behind; posted
/// descriptors end. Method: kill -9 while both sleep, while data flows, and with descriptors that only
/// the peer could have ended.
#[test]
fn a_killed_peer_is_noticed() {
    for kill_after in [0_u64, 1, 100] {
        let mut end = End::new(Reliability::ReliableReception);
        end.post_receives(512, 0);
        let mut peer = Peer::connected("echo-reception", &mut end);
        for word in 1..=kill_after {
            end.say(word, 1);
            if word < kill_after {
                assert_eq!(end.completion(Queue::Receive).status, Status::Done);
            }
        }
        peer.0.kill();
        let event = end.next_event();
        let expected = NicEvent::Broken { vi: end.vi, reason: DisconnectReason::PeerDied };
        assert_eq!(event, expected);
        let mut flushed = 0;
        while let Some(found) = end.nic.poll_queue(end.vi, Queue::Receive) {
            flushed += u64::from(found.status == Status::Flushed);
        }
        let answered = kill_after.saturating_sub(1);
        assert!(flushed >= 512 - answered - 1, "{flushed} flushed");
        end.nic.disconnect(end.vi).expect("in error");
        end.nic.destroy_vi(end.vi).expect("idle");
    }
}

fn descriptors() -> BTreeSet<String> {
    fs::read_dir("/proc/self/fd")
        .expect("proc")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .filter(|link| link.contains("vigie-shm"))
        .collect()
}

fn mappings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("proc");
    maps.lines().filter(|line| line.contains("vigie-shm")).count()
}

/// Goal: NICs, connections and killed peers leave no file, mapping or socket name. Method: in its own
/// process, inspect `/proc` before and after.
#[test]
fn nothing_is_left_behind() {
    in_child("nothing_is_left_behind", || {
        let count = || fs::read_dir("/proc/self/fd").expect("proc").count();
        let before = count();
        let mut names = Vec::new();
        for is_killed in [false, true] {
            let mut end = End::new(Reliability::ReliableDelivery);
            let mut peer = Peer::connected("mirror-delivery", &mut end);
            names.push(format!("{:?}", end.nic));
            assert!(!descriptors().is_empty() && mappings() > 0, "the test reads the right place");
            if is_killed {
                peer.0.kill();
                assert!(matches!(end.next_event(), NicEvent::Broken { .. }));
            } else {
                end.nic.disconnect(end.vi).expect("a VI");
                peer.finish();
            }
        }
        assert_eq!(descriptors(), BTreeSet::new());
        assert_eq!(mappings(), 0);
        // The thread that reads a killed peer's output ends a moment after the peer; the guard bounds this.
        while count() != before {
            std::thread::yield_now();
        }
        let sockets = fs::read_to_string("/proc/net/unix").expect("proc");
        for name in names {
            let name = name.split('"').nth(1).expect("the name of the socket");
            assert!(name.starts_with("vigie-shm-") && !sockets.contains(name), "{name} is left");
        }
    });
}

/// Goal: no wake-up is lost, whatever the order of publishing, sleeping and polling. Method: many rounds
/// in which this side goes to sleep after a time that differs from round to round, while the other side
/// is about to sleep, or answers at once; a lost wake-up would end the test by its bound.
#[test]
fn no_wake_up_is_lost() {
    for (role, rounds) in [("echo-delivery", 10_000), ("quick-delivery", 40_000)] {
        sleep_and_wake(role, rounds);
    }
}

fn sleep_and_wake(role: &str, rounds: u64) {
    let mut end = End::new(Reliability::ReliableDelivery);
    end.post_receives(512, 0);
    let peer = Peer::connected(role, &mut end);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut slept = 0_u64;
    for word in 1..=rounds {
        end.say(word, 1);
        for _ in 0..rng.u32(..100) {
            std::hint::spin_loop();
        }
        let received = loop {
            if let Some(received) = end.nic.poll_queue(end.vi, Queue::Receive) {
                break received;
            }
            slept += u64::from(end.sleep());
            end.nic.progress(Instant::now());
        };
        assert_eq!((received.status, received.immediate), (Status::Done, Some(1)));
        assert_eq!(end.shared.memory.load(0), Ok(word));
        end.post_receives(1, 0);
    }
    assert!(slept > rounds / 1000, "slept only {slept} times: nothing was tried");
    end.nic.disconnect(end.vi).expect("a VI");
    peer.finish();
}

/// Goal: a caller that does not know the secret cannot connect, and an address of another provider is
/// refused. Method: an address with one byte changed in the secret.
#[test]
fn the_secret_is_needed() {
    let (mut one, mut other) = (End::new(Reliability::default()), End::new(Reliability::default()));
    one.nic.listen(b"test").expect("no other listener");
    let mut address = one.nic.address();
    *address.0.last_mut().expect("not empty") ^= 1;
    let deadline = Instant::now() + PATIENCE;
    other.nic.connect(Connect::new(other.vi, &address, b"test", deadline)).expect("idle");
    let refused = loop {
        let now = Instant::now();
        assert!(now < deadline);
        one.nic.progress(now);
        assert_eq!(one.nic.next_event(), None, "the event is not announced");
        other.nic.progress(now);
        if let Some(event) = other.nic.next_event() {
            break event;
        }
    };
    assert!(matches!(refused, NicEvent::Refused { .. }), "{refused:?}");
}

/// Lets two NICs of this process work, at the same instant.
fn both(ends: &mut [End; 2], now: Instant) {
    for end in ends {
        end.nic.progress(now);
    }
}

/// Goal: a peer that called and gave up does not keep two NICs from meeting later, whether its call was
/// heard before or is found when it is answered. Method: of two NICs, each in turn calls alone until its
/// deadline, while the other one hears the call and not its end, or neither; then both call.
#[test]
fn peers_meet_after_one_gave_up() {
    for (alone, hears) in [(0, true), (1, true), (0, false), (1, false)] {
        let mut ends = [0; 2].map(|_| End::new(Reliability::ReliableDelivery));
        let addresses = [ends[0].nic.address(), ends[1].nic.address()];
        let other = 1 - alone;
        let start = Instant::now();
        let soon = start.saturating_add(Duration::from_millis(20));
        let end = &mut ends[alone];
        end.nic
            .connect_peer(Connect::new(end.vi, &addresses[other], b"meet", soon))
            .expect("asked");
        if hears {
            both(&mut ends, start);
        }
        let end = &mut ends[alone];
        end.nic.progress(soon);
        let event = end.nic.next_event();
        let is_late =
            matches!(event, Some(NicEvent::Refused { reason: DisconnectReason::TimedOut, .. }));
        assert!(is_late, "{event:?}");

        let deadline = soon.saturating_add(PATIENCE);
        for (at, vi) in [(other, ends[other].vi), (alone, ends[alone].vi)] {
            let nic = &mut ends[at].nic;
            nic.connect_peer(Connect::new(vi, &addresses[1 - at], b"meet", deadline))
                .expect("asked");
            // The NIC that awaits hears the old call before the new one.
            nic.progress(soon);
        }
        let mut connected = [false; 2];
        for step in 1..1_000 {
            both(&mut ends, soon.saturating_add(Duration::from_micros(step)));
            for (end, connected) in ends.iter_mut().zip(&mut connected) {
                match end.nic.next_event() {
                    Some(NicEvent::Connected { .. }) => *connected = true,
                    Some(event) => panic!("alone {alone}, hears {hears}: {event:?}"),
                    None => {}
                }
            }
        }
        assert_eq!(connected, [true; 2], "alone {alone}, hears {hears}");
    }
}

/// Goal: of the VIs at one completion queue, the awaited one's completions come first, and those of another one come too, even if only the
/// former's are asked for. Method: a message of the other one, then some of the awaited one, taken without any other call; both ways round.
#[test]
fn the_awaited_comes_first_and_others_come_too() {
    for awaited in [0, 1] {
        let mut receiver = Shm::open().expect("a NIC");
        let (tag, cq) = (receiver.create_tag(), receiver.create_cq().expect("a queue"));
        let attributes = ViAttributes {
            reliability: Reliability::ReliableDelivery,
            tag,
            send_cq: None,
            receive_cq: Some(cq),
            allows_write: false,
            allows_read: false,
        };
        let deadline = Instant::now() + PATIENCE;
        let mut senders = [0; 2].map(|_| End::new(Reliability::ReliableDelivery));
        let vis = [b"one", b"two"].map(|_| receiver.create_vi(attributes).expect("a VI"));
        for ((sender, vi), name) in senders.iter_mut().zip(vis).zip([b"one", b"two"]) {
            let (own, its) = (receiver.address(), sender.nic.address());
            sender.nic.connect_peer(Connect::new(sender.vi, &own, name, deadline)).expect("asked");
            receiver.connect_peer(Connect::new(vi, &its, name, deadline)).expect("asked");
            for cookie in 0..32 {
                let receive = ReceiveDescriptor { cookie, segments: &[] };
                receiver.post_receive(vi, &receive).expect("room");
            }
        }
        let mut connected = 0;
        while connected < 4 {
            let now = Instant::now();
            assert!(now < deadline, "{connected} of 4 ends are connected");
            receiver.progress(now);
            connected += usize::from(receiver.next_event().is_some());
            for sender in &mut senders {
                sender.nic.progress(now);
                connected += usize::from(sender.nic.next_event().is_some());
            }
        }

        let mut send = |from: usize| {
            let End { nic, vi, .. } = &mut senders[from];
            let descriptor = SendDescriptor {
                operation: Operation::Send,
                cookie: 5,
                immediate: Some(1),
                is_signaled: false,
                remote: None,
                data: Data::Segments(&[]),
            };
            nic.post_send(*vi, &descriptor).expect("room");
        };
        send(1 - awaited);
        (0..32).for_each(|_| send(awaited));
        let mut next = || receiver.poll_cq_for(cq, vis[awaited]).map(|completion| completion.vi);
        assert_eq!(next(), Some(vis[awaited]));
        let rest: Vec<_> = (0..100).filter_map(|_| next()).collect();
        assert_eq!(rest.len(), 32, "{rest:?}");
        assert_eq!(rest.iter().filter(|vi| **vi == vis[1 - awaited]).count(), 1);
    }
}
