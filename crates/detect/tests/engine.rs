//! Engines on their host: the contract, by the suite; and failures.
//!
//! Method: five small engines, each of which uses a different part of the host, run through
//! `conformance::check_engine`; and one that fails where it is told to.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::{fd::AsFd, unix::net::UnixDatagram},
    sync::Arc,
};

use vigie_detect::{
    ArmOutcome, Engine, EngineContext, EngineHost, Instant, Progress, Registration, VirtualClock,
    WatchedDescriptor,
    conformance::{
        self, EngineHarness, EventIdentity, HostKinds, Named, Profile, SetupError, Trigger, World,
    },
};

#[path = "engine/faults.rs"]
mod faults;
#[path = "engine/given_up.rs"]
mod given_up;
#[path = "../../../tests/kit/log.rs"]
mod log;
#[path = "engine/names.rs"]
mod names;
#[path = "engine/taken_in.rs"]
mod taken_in;

/// Runs the suite.
fn pass<H: EngineHarness>(mut factory: impl FnMut(&World) -> Result<H, SetupError>) {
    match conformance::check_engine(&mut factory) {
        Ok(report) => println!("{report}"),
        Err(violation) => panic!("{violation}\nreplay: SIM_SEED={}", violation.at().seed),
    }
}

fn identify(found: u64) -> EventIdentity {
    EventIdentity::Events(vec![usize::try_from(found).expect("a number of ours")])
}

/// Numbers added by calls. Posted numbers are there only once the engine has worked.
#[derive(Default)]
struct Numbers {
    posted: VecDeque<u64>,
    ready: VecDeque<u64>,
}

impl Engine for Numbers {
    type Request = ();
    type Output = u64;

    fn take(&mut self, (): &()) -> Option<u64> {
        self.ready.pop_front()
    }

    fn put_back(&mut self, (): &(), number: u64) -> Option<u64> {
        self.ready.push_front(number);
        None
    }

    fn progress(&mut self, _: &EngineContext<'_>) -> Progress {
        self.ready.append(&mut self.posted);
        Progress::Done
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::ready_if(!self.posted.is_empty()))
    }
}

struct NumbersHarness {
    host: EngineHost<Numbers>,
    is_posted: bool,
}

impl EngineHarness for NumbersHarness {
    type Engine = Numbers;

    fn host(&self) -> &EngineHost<Numbers> {
        &self.host
    }

    fn want(&mut self, _: usize) {}

    fn trigger(&mut self, index: usize) -> Trigger {
        let (host, number) = (self.host.clone(), index as u64);
        if self.is_posted {
            Box::new(move || host.post(|engine| engine.posted.push_back(number)))
        } else {
            Box::new(move || host.with(|engine| engine.ready.push_back(number)))
        }
    }

    fn identify(&mut self, _: usize, number: u64) -> EventIdentity {
        identify(number)
    }

    fn request_of_events(&mut self) -> Option<()> {
        Some(())
    }
}

/// Goal: what a call brings reaches its waiter, on every host. Method: the suite; events come by `with`.
#[test]
fn calls_conform() {
    pass(|world: &World| {
        let registration = Registration::named("numbers");
        let host = EngineHost::new(world.server(), Numbers::default(), registration)?;
        Ok(NumbersHarness { host, is_posted: false })
    });
}

/// Goal: work that a call adds is done, even by a host that has armed the engine and sleeps. Method: the suite; events
/// come by `post`.
#[test]
fn posted_work_conforms() {
    pass(|world: &World| {
        let registration = Registration::named("numbers");
        let host = EngineHost::new(world.server(), Numbers::default(), registration)?;
        Ok(NumbersHarness { host, is_posted: true })
    });
}

/// Numbers in datagrams. Counts how many times it was notified.
struct Datagrams {
    socket: UnixDatagram,
    arrived: VecDeque<u64>,
    vain_max: Option<u32>,
    told: u32,
}

impl Datagrams {
    fn pair() -> io::Result<(Self, Arc<UnixDatagram>)> {
        let (socket, peer) = UnixDatagram::pair()?;
        socket.set_nonblocking(true)?;
        let engine = Self { socket, arrived: VecDeque::new(), vain_max: None, told: 0 };
        Ok((engine, Arc::new(peer)))
    }

    fn receive(&mut self) {
        let mut bytes = [0; 8];
        while let Ok(8) = self.socket.recv(&mut bytes) {
            self.arrived.push_back(u64::from_le_bytes(bytes));
        }
    }
}

impl Engine for Datagrams {
    type Request = ();
    type Output = u64;

    fn take(&mut self, (): &()) -> Option<u64> {
        if self.arrived.is_empty() {
            self.receive();
        }
        self.arrived.pop_front()
    }

    fn put_back(&mut self, (): &(), number: u64) -> Option<u64> {
        self.arrived.push_front(number);
        None
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        self.receive();
        Ok(ArmOutcome::ready_if(!self.arrived.is_empty()))
    }

    fn notified(&mut self, _: &[vigie_detect::PollerEvent]) {
        self.told += 1;
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        each(WatchedDescriptor::readable(self.socket.as_fd()));
    }

    fn spurious_events_max(&self) -> Option<u32> {
        self.vain_max
    }
}

fn send(peer: &UnixDatagram, number: u64) {
    let sent = peer.send(&number.to_le_bytes());
    assert_eq!(sent.expect("room for a datagram"), 8);
}

struct DatagramsHarness {
    host: EngineHost<Datagrams>,
    peer: Arc<UnixDatagram>,
}

impl EngineHarness for DatagramsHarness {
    type Engine = Datagrams;
    const HOST_KINDS: HostKinds = HostKinds::Real;

    fn host(&self) -> &EngineHost<Datagrams> {
        &self.host
    }

    fn want(&mut self, _: usize) {}

    fn trigger(&mut self, index: usize) -> Trigger {
        let peer = Arc::clone(&self.peer);
        // If the queue is full, the kernel blocks the sender until the engine has read.
        Box::new(move || send(&peer, index as u64))
    }

    fn identify(&mut self, _: usize, number: u64) -> EventIdentity {
        identify(number)
    }
}

fn check_datagrams(vain_max: Option<u32>) {
    pass(move |world: &World| {
        let (mut engine, peer) = Datagrams::pair()?;
        engine.vain_max = vain_max;
        let host = EngineHost::new(world.server(), engine, Registration::named("datagrams"))?;
        Ok(DatagramsHarness { host, peer })
    });
}

/// Goal: what a descriptor announces reaches its waiter. Method: the suite, with a socket.
#[test]
fn descriptors_conform() {
    check_datagrams(None);
}

/// Goal: nothing is lost although the host stops watching. Method: the suite, with an engine that allows no spurious readiness
/// event.
#[test]
fn a_host_that_stops_to_watch_conforms() {
    check_datagrams(Some(1));
}

/// Times: each want is one, and is found once the engine has seen that time.
#[derive(Default)]
struct Alarms {
    now: Option<Instant>,
    wanted: BTreeSet<Instant>,
}

impl Engine for Alarms {
    type Request = Instant;
    type Output = ();

    fn take(&mut self, due: &Instant) -> Option<()> {
        let is_due = self.now.is_some_and(|now| now >= *due);
        if !is_due {
            self.wanted.insert(*due);
        }
        is_due.then_some(())
    }

    fn progress(&mut self, context: &EngineContext<'_>) -> Progress {
        let now = context.now();
        self.now = Some(now);
        self.wanted.retain(|due| *due > now);
        Progress::Done
    }

    fn arm(&mut self, context: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        let is_due = self.wanted.first().is_some_and(|due| *due <= context.now());
        Ok(ArmOutcome::ready_if(is_due))
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.wanted.first().copied()
    }
}

struct AlarmsHarness {
    host: EngineHost<Alarms>,
    clock: Arc<VirtualClock>,
}

impl AlarmsHarness {
    fn due(index: usize) -> Instant {
        Instant::from_nanos((index as u64 + 1) * 1_000_000_000)
    }
}

impl EngineHarness for AlarmsHarness {
    type Engine = Alarms;
    const HOST_KINDS: HostKinds = HostKinds::Virtual;

    fn host(&self) -> &EngineHost<Alarms> {
        &self.host
    }

    fn want(&mut self, index: usize) -> Instant {
        Self::due(index)
    }

    fn trigger(&mut self, index: usize) -> Trigger {
        let clock = Arc::clone(&self.clock);
        Box::new(move || clock.advance_to(Self::due(index)))
    }

    fn identify(&mut self, _: usize, (): ()) -> EventIdentity {
        EventIdentity::Unmarked
    }

    fn profile(&self) -> Profile {
        Profile::addressed()
    }

    fn happens_at(&self, index: usize) -> Option<Instant> {
        Some(Self::due(index))
    }
}

/// Goal: events of time alone come at their time. Method: the suite, in virtual time.
#[test]
fn deadlines_conform() {
    pass(|world: &World| {
        let clock = Arc::clone(world.clock().ok_or("times are tried in virtual time")?);
        let registration = Registration::named("alarms");
        let host = EngineHost::new(world.server(), Alarms::default(), registration)?;
        Ok(AlarmsHarness { host, clock })
    });
}

/// How a number is put into a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By a call, at once.
    Called,
    /// By the work that a call adds.
    Posted,
    /// By a datagram that names the box.
    Sent,
}

/// Boxes with names, each of which holds numbers: a poll of one takes one of them.
struct Boxes {
    socket: UnixDatagram,
    posted: Vec<u64>,
    numbers: BTreeMap<u64, u32>,
    served: Vec<u64>,
    /// Numbers that arrived in datagrams, for waiters of any box.
    arrived: VecDeque<u64>,
}

impl Boxes {
    fn pair() -> io::Result<(Self, Arc<UnixDatagram>)> {
        let (socket, peer) = UnixDatagram::pair()?;
        socket.set_nonblocking(true)?;
        let boxes = Self {
            socket,
            posted: Vec::new(),
            numbers: BTreeMap::new(),
            served: Vec::new(),
            arrived: VecDeque::new(),
        };
        Ok((boxes, Arc::new(peer)))
    }

    fn put(&mut self, name: u64) {
        *self.numbers.entry(name).or_default() += 1;
        self.served.push(name);
    }

    fn take_one(&mut self, name: u64) -> bool {
        let Some(count) = self.numbers.get_mut(&name) else { return false };
        let is_there = *count > 0;
        *count -= u32::from(is_there);
        is_there
    }

    fn receive(&mut self) {
        let mut bytes = [0; 8];
        while let Ok(8) = self.socket.recv(&mut bytes) {
            let name = u64::from_le_bytes(bytes);
            self.put(name);
            self.arrived.push_back(name);
        }
    }
}

impl Engine for Boxes {
    type Request = ();
    type Output = u64;

    fn take(&mut self, (): &()) -> Option<u64> {
        self.receive();
        self.arrived.pop_front()
    }

    fn put_back(&mut self, (): &(), name: u64) -> Option<u64> {
        self.arrived.push_front(name);
        None
    }

    fn progress(&mut self, _: &EngineContext<'_>) -> Progress {
        self.receive();
        for name in std::mem::take(&mut self.posted) {
            self.put(name);
        }
        Progress::Done
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        self.receive();
        Ok(if self.posted.is_empty() && self.served.is_empty() {
            ArmOutcome::Armed
        } else {
            ArmOutcome::Ready
        })
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        each(WatchedDescriptor::readable(self.socket.as_fd()));
    }

    fn served(&mut self, names: &mut Vec<u64>) {
        names.append(&mut self.served);
    }

    fn has_served(&self) -> bool {
        !self.served.is_empty()
    }

    fn has_unannounced_work(&self) -> bool {
        !self.posted.is_empty()
    }

    fn has_new_events(&self) -> bool {
        !self.arrived.is_empty()
    }
}

struct BoxesHarness {
    host: EngineHost<Boxes>,
    peer: Arc<UnixDatagram>,
    way: Way,
}

impl EngineHarness for BoxesHarness {
    type Engine = Boxes;
    const HOST_KINDS: HostKinds = HostKinds::Real;

    fn host(&self) -> &EngineHost<Boxes> {
        &self.host
    }

    fn want(&mut self, _: usize) {}

    fn trigger(&mut self, index: usize) -> Trigger {
        let peer = Arc::clone(&self.peer);
        Box::new(move || send(&peer, index as u64))
    }

    fn identify(&mut self, _: usize, name: u64) -> EventIdentity {
        identify(name)
    }

    fn named(&mut self, index: usize) -> Option<Named<Boxes>> {
        let (name, way) = (index as u64 + 100, self.way);
        let (host, peer) = (self.host.clone(), Arc::clone(&self.peer));
        let trigger = move || match way {
            Way::Called => host.post(|boxes| boxes.put(name)),
            Way::Posted => host.post(|boxes| boxes.posted.push(name)),
            Way::Sent => send(&peer, name),
        };
        Some(Named::new(name, move |boxes: &mut Boxes| boxes.take_one(name), trigger))
    }
}

/// Goal: a waiter by name is woken, whatever serves it. Method: the suite, with names that calls, the engine's own work and
/// a socket serve.
#[test]
fn names_conform() {
    for way in [Way::Called, Way::Posted, Way::Sent] {
        pass(move |world: &World| {
            let (boxes, peer) = Boxes::pair()?;
            let host = EngineHost::new(world.server(), boxes, Registration::named("boxes"))?;
            Ok(BoxesHarness { host, peer, way })
        });
    }
}
