//! Callers that may not connect, and a process without descriptors: each in its own process, which this
//! test binary starts by running itself again.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{
    env, fs,
    fs::File,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType},
    process::{Resource, Rlimit, geteuid, getrlimit, setrlimit},
};
use vigie_detect::{ArmOutcome, Instant};
use vigie_via::{
    shm::Shm,
    vi::{
        Address, Connect, Data, MemoryAttributes, NicEvent, Operation, ProtectionTag, Provider,
        Queue, ReceiveDescriptor, Region, Reliability, RemoteSegment, SendDescriptor, Status,
        ViAttributes, ViId,
    },
};

use crate::kit::child::in_child;

const ROLE: &str = "VIGIE_STRANGER_ROLE";
const ADDRESS: &str = "VIGIE_STRANGER_ADDRESS";
/// A bound for each wait, longer than it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65_534;

fn seconds(count: i64) -> Timespec {
    Timespec { tv_sec: count, tv_nsec: 0 }
}

/// Starts this test binary again, for one test, in a role.
fn again(test: &str, role: &str) -> Command {
    // A user without access to the tests' folder can start it by this name.
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", test, "--nocapture"]).env(ROLE, role).current_dir("/");
    command
}

/// A child that is killed when the test ends, in any way.
struct Caller(Child);

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A NIC with a VI.
struct End {
    nic: Shm,
    vi: ViId,
    tag: ProtectionTag,
}

impl End {
    fn new() -> Self {
        let mut nic = Shm::open().expect("a NIC");
        nic.listen(b"test").expect("no other listener");
        let tag = nic.create_tag();
        let vi = nic.create_vi(attributes(tag)).expect("a VI");
        Self { nic, vi, tag }
    }

    fn allocate(&mut self) -> Region {
        let open = MemoryAttributes { tag: self.tag, allows_write: true, allows_read: true };
        self.nic.allocate(100_000, open).expect("memory")
    }
}

fn attributes(tag: ProtectionTag) -> ViAttributes {
    ViAttributes {
        reliability: Reliability::ReliableDelivery,
        tag,
        send_cq: None,
        receive_cq: None,
        allows_write: true,
        allows_read: true,
    }
}

/// Lets both work until `check` finds something.
fn until<T>(
    one: &mut End,
    other: &mut End,
    mut check: impl FnMut(&mut End, &mut End) -> Option<T>,
) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let now = Instant::now();
        assert!(now < end, "it did not come in {PATIENCE:?}");
        one.nic.progress(now);
        other.nic.progress(now);
        if let Some(found) = check(one, other) {
            return found;
        }
    }
}

fn call(one: &mut End, other: &End) {
    let deadline = Instant::now() + PATIENCE;
    one.nic.connect(Connect::new(one.vi, &other.nic.address(), b"test", deadline)).expect("idle");
}

fn accept(one: &mut End, other: &mut End) {
    let mut connected = 0;
    until(one, other, |one, other| {
        if let Some(event) = other.nic.next_event() {
            match event {
                NicEvent::Requested { request, .. } => {
                    other.nic.accept(request, other.vi, b"").expect("asked for");
                }
                NicEvent::Connected { .. } => connected += 1,
                event => panic!("{event:?}"),
            }
        }
        if let Some(event) = one.nic.next_event() {
            assert!(matches!(event, NicEvent::Connected { .. }), "{event:?}");
            connected += 1;
        }
        (connected == 2).then_some(())
    });
}

/// Writes 100 000 bytes to the other's memory, with a notification.
fn write(one: &mut End, other: &mut End, from: &Region, to: &Region, byte: u8) {
    let receive = ReceiveDescriptor { cookie: 1, segments: &[] };
    other.nic.post_receive(other.vi, &receive).expect("room");
    from.memory.write(0, &[byte; 100_000]).expect("inside");
    let segments =
        [vigie_via::vi::LocalSegment { memory: from.handle, offset: 0, length: 100_000 }];
    let descriptor = SendDescriptor {
        operation: Operation::RdmaWrite,
        cookie: 2,
        immediate: Some(3),
        is_signaled: false,
        remote: Some(RemoteSegment { key: to.key, offset: 0 }),
        data: Data::Segments(&segments),
    };
    one.nic.post_send(one.vi, &descriptor).expect("room");
    let received = until(one, other, |_, other| other.nic.poll_queue(other.vi, Queue::Receive));
    assert_eq!((received.status, received.immediate), (Status::Done, Some(3)));
    assert!(to.memory.read_to_vec(0, 100_000).expect("inside") == [byte; 100_000]);
}

// ---------------------------------------------------------------------- other users

/// A caller that knows the address, connects to the socket itself, and sends what the NIC expects,
/// except for its secret. Succeeds if it is dropped without an answer.
#[test]
fn in_a_role() {
    let (Ok(role), Ok(address)) = (env::var(ROLE), env::var(ADDRESS)) else { return };
    assert_eq!(geteuid().is_root(), role != "stranger", "{role}");
    let socket =
        rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    // The name is in the address, after five bytes; the secret follows it.
    let name = format!("vigie-shm-{}", &address[10..42]);
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    rustix::net::connect(&socket, &name).expect("the name is no secret");
    // A hello of version 2.
    let mut hello = vec![1, 2, 0];
    hello.extend([7; 16]);
    hello.extend([1, 1, 0, 4, 0, b't', b'e', b's', b't', 0, 0]);
    // A caller that was already dropped cannot send any more.
    let _ = rustix::net::send(&socket, &hello, SendFlags::NOSIGNAL);
    let found = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&seconds(60)));
    assert_eq!(found, Ok(1), "neither an answer nor an end");
    let mut bytes = [0; 2048];
    let heard = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT);
    assert!(!matches!(heard, Ok((1.., _))), "an answer: {heard:?}");
    let rights = rustix::net::sockopt::socket_peercred(&socket).expect("a peer");
    assert!(rights.uid.is_root());
    // And by the rules, as far as it is allowed.
    if role == "stranger" {
        let bytes: Vec<u8> = (0..address.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&address[at..at + 2], 16).expect("hexadecimal"))
            .collect();
        let mut end = End::new();
        let deadline = Instant::now() + PATIENCE;
        end.nic.connect(Connect::new(end.vi, &Address(bytes), b"test", deadline)).expect("idle");
        end.nic.progress(Instant::now());
        let event = end.nic.next_event();
        assert!(matches!(event, Some(NicEvent::Refused { .. })), "{event:?}");
    }
}

/// Goal: neither other users of the host, even if they know the whole address, nor processes without the
/// secret can attach; both are counted, and do no harm. Method: a child under another user, and one of
/// the same user, which connect to the socket itself while two honest ends exchange data.
#[test]
fn strangers_are_turned_away() {
    if !geteuid().is_root() {
        println!(
            "SKIPPED: strangers_are_turned_away must be root to start a child as another user"
        );
        return;
    }
    let (mut one, mut other) = (End::new(), End::new());
    call(&mut one, &other);
    accept(&mut one, &mut other);
    let (from, to) = (one.allocate(), other.allocate());
    for (round, role) in (1_u8..).zip(["stranger", "without the secret"]) {
        let address: String =
            other.nic.address().0.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = again("in_a_role", role);
        command.env(ADDRESS, address).stdout(Stdio::null());
        if role == "stranger" {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = Caller(command.spawn().expect("this test, once more"));
        let status = until(&mut one, &mut other, |one, other| {
            assert_eq!(
                (one.nic.next_event(), other.nic.next_event()),
                (None, None),
                "no NIC hears of it"
            );
            child.0.try_wait().expect("a child")
        });
        assert!(status.success(), "{role}: {status}");
        write(&mut one, &mut other, &from, &to, round);
        let found = other.nic.refusals();
        let expected = if role == "stranger" { (2, 0) } else { (2, 1) };
        assert_eq!((found.other_users, found.without_secret), expected, "{role}");
    }
    drop((from, to));
}

// ---------------------------------------------------------------------- no descriptors left

/// Keeps this process from opening any file until it is dropped.
struct Full(Rlimit);

impl Full {
    fn new() -> Self {
        let before = getrlimit(Resource::Nofile);
        let next = File::open("/dev/null").expect("a file").as_raw_fd();
        let current = Some(u64::try_from(next).expect("a descriptor"));
        setrlimit(Resource::Nofile, Rlimit { current, ..before }).expect("less is allowed");
        assert!(File::open("/dev/null").is_err(), "there are gaps");
        Self(before)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).expect("as before");
    }
}

fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&seconds(0))) == Ok(1)
}

/// Goal: a process that has no descriptors left keeps its connections, does not spin over callers that
/// it cannot accept, and accepts them as soon as it can. Method: in its own process, memory is granted
/// and a caller arrives while no file can be opened.
#[test]
fn without_descriptors_nothing_breaks() {
    in_child("without_descriptors_nothing_breaks", || {
        let (mut one, mut other) = (End::new(), End::new());
        call(&mut one, &other);
        accept(&mut one, &mut other);
        // Memory granted to a peer that cannot map it.
        let to = other.allocate();
        let from = one.allocate();
        let full = Full::new();
        write(&mut one, &mut other, &from, &to, 1);
        drop(full);
        write(&mut one, &mut other, &from, &to, 2);
        assert_eq!((one.nic.next_event(), other.nic.next_event()), (None, None), "nothing breaks");
        other.nic.deregister(to.handle).expect("registered");
        until(&mut one, &mut other, |one, _| {
            (one.nic.arm().ok()? == ArmOutcome::Armed).then_some(())
        });
        assert_eq!(one.nic.next_event(), None, "nor when it is taken back");
        // A caller that cannot be accepted.
        let mut late = End::new();
        call(&mut late, &other);
        let full = Full::new();
        let mut quiet_count = 0;
        until(&mut late, &mut other, |_, other| {
            let is_armed = other.nic.arm().expect("can sleep") == ArmOutcome::Armed;
            let is_quiet = is_armed && !is_readable(other.nic.descriptor().expect("a real NIC"));
            quiet_count += u32::from(is_quiet && other.nic.next_deadline().is_some());
            (quiet_count > 10).then_some(())
        });
        assert_eq!(other.nic.next_event(), None);
        drop(full);
        let vi = other.nic.create_vi(attributes(other.tag)).expect("a VI");
        other.vi = vi;
        accept(&mut late, &mut other);
    });
}

/// Goal: callers that are not answered take only a bounded number of descriptors. Method: more callers
/// than are kept; the last are told that they are rejected.
#[test]
fn callers_that_nobody_answers_are_bounded() {
    const COUNT: usize = 300;
    in_child("callers_that_nobody_answers_are_bounded", || {
        let (mut caller, mut other) = (End::new(), End::new());
        let before = fs::read_dir("/proc/self/fd").expect("proc").count();
        let mut rejected = 0;
        for _ in 0..COUNT {
            caller.vi = caller.nic.create_vi(attributes(caller.tag)).expect("a VI");
            call(&mut caller, &other);
        }
        until(&mut caller, &mut other, |caller, _| {
            while let Some(event) = caller.nic.next_event() {
                assert!(matches!(event, NicEvent::Refused { .. }), "{event:?}");
                rejected += 1;
            }
            (rejected >= COUNT - 256).then_some(())
        });
        let after = fs::read_dir("/proc/self/fd").expect("proc").count();
        assert!(after - before <= 2 * 256 + 32, "{} descriptors", after - before);
    });
}
