//! Every stock detector keeps the contract of the `Detector` trait.
//!
//! Method: a harness each, run through the public conformance suite. A failure prints its seed, the
//! commit, and the command that replays it.

use std::{
    collections::BTreeMap,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::Command,
    sync::Arc,
};

use vigie_detect::{
    Handle, Instant, Interest, Timers, VirtualClock,
    conformance::{
        self, EventIdentity, Harness, HostKinds, Profile, SetupError, Trigger, Unclaimed, World,
    },
    detectors::{
        channel::{Receiver, Sender, channel},
        doorbell::{Button, Doorbell, doorbell},
        readiness::{Direction, IoSource, Readiness, ReadinessRequest, ReadyEvent},
    },
};

/// Runs the suite, and prints how to reproduce a violation.
fn pass<H: Harness>(test: &str, mut factory: impl FnMut(&World) -> Result<H, SetupError>) {
    match conformance::check(&mut factory) {
        Ok(report) => println!("{report}"),
        Err(violation) => {
            let commit = Command::new("git").args(["rev-parse", "HEAD"]).output();
            let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            let seed = violation.at().seed;
            panic!(
                "{violation}\nat commit {}\nreplay: SIM_SEED={seed} cargo test -p vigie-detect \
                 --test conformance {test}\n{violation:?}",
                commit.unwrap_or_default().trim()
            );
        }
    }
}

/// Deadlines a second apart: far more than any case takes otherwise.
struct TimersHarness {
    handle: Handle<Timers>,
    clock: Arc<VirtualClock>,
}

impl TimersHarness {
    fn due(index: usize) -> Instant {
        Instant::from_nanos((index as u64 + 1) * 1_000_000_000)
    }
}

impl Harness for TimersHarness {
    type Detector = Timers;
    const HOST_KINDS: HostKinds = HostKinds::Virtual;

    fn handle(&self) -> &Handle<Timers> {
        &self.handle
    }

    fn request(&mut self, index: usize) -> Instant {
        Self::due(index)
    }

    fn trigger(&mut self, index: usize) -> Trigger {
        let clock = Arc::clone(&self.clock);
        Box::new(move || clock.advance_to(Self::due(index)))
    }

    fn identify(&mut self, _: usize, (): ()) -> EventIdentity {
        EventIdentity::Unmarked
    }

    fn happens_at(&self, index: usize) -> Option<Instant> {
        Some(Self::due(index))
    }
}

#[test]
fn timers_conform() {
    pass("timers_conform", |world: &World| {
        let clock = Arc::clone(world.clock().ok_or("timers are tried in virtual time")?);
        Ok(TimersHarness { handle: world.server().timers().clone(), clock })
    });
}

/// The kind of watched descriptor.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A socket that can be read.
    Socket,
    /// A pipe that can be read.
    Pipe,
    /// A full socket that can be written again.
    Room,
}

/// One watched descriptor and its other end.
struct Pair {
    watched: OwnedFd,
    other: Arc<OwnedFd>,
    source: Arc<IoSource>,
}

struct ReadinessHarness {
    handle: Handle<Readiness>,
    kind: Kind,
    pairs: BTreeMap<usize, Pair>,
}

/// The pair that streams watch.
const STREAM: usize = usize::MAX;

impl ReadinessHarness {
    fn new(world: &World, kind: Kind) -> Self {
        Self { handle: world.server().readiness().clone(), kind, pairs: BTreeMap::new() }
    }

    fn direction(&self) -> Direction {
        match self.kind {
            Kind::Socket | Kind::Pipe => Direction::Read,
            Kind::Room => Direction::Write,
        }
    }

    fn pair(&mut self, index: usize) -> &Pair {
        let (handle, kind) = (&self.handle, self.kind);
        self.pairs.entry(index).or_insert_with(|| open(handle, kind).expect("a descriptor pair"))
    }

    fn awaited(&mut self, index: usize) -> ReadinessRequest {
        let direction = self.direction();
        ReadinessRequest { source: Arc::clone(&self.pair(index).source), direction }
    }

    fn happen(&mut self, place: usize, index: usize) -> Trigger {
        let other = Arc::clone(&self.pair(place).other);
        match self.kind {
            Kind::Socket | Kind::Pipe => Box::new(move || {
                let mark = (index as u64).to_le_bytes();
                let count = rustix::io::write(other.as_fd(), &mark).expect("room for a mark");
                assert_eq!(count, mark.len());
            }),
            Kind::Room => Box::new(move || {
                let mut bytes = [0; 65536];
                while rustix::io::read(other.as_fd(), &mut bytes).is_ok_and(|count| count > 0) {}
            }),
        }
    }

    /// Does what a program does with readiness.
    fn consume(&self, index: usize, readable: ReadyEvent) -> EventIdentity {
        let pair = &self.pairs[&index];
        let mut events = Vec::new();
        match self.kind {
            Kind::Socket | Kind::Pipe => loop {
                let mut mark = [0; 8];
                match rustix::io::read(pair.watched.as_fd(), &mut mark) {
                    Ok(8) => {
                        let event = u64::from_le_bytes(mark);
                        events.push(usize::try_from(event).expect("a mark of ours"));
                    }
                    Ok(count) => panic!("a mark of {count} bytes"),
                    Err(rustix::io::Errno::WOULDBLOCK) => break,
                    Err(error) => return EventIdentity::Nothing(error.to_string()),
                }
            },
            Kind::Room => match rustix::io::write(pair.watched.as_fd(), &[1]) {
                Ok(_) => return EventIdentity::Unmarked,
                Err(error) => return EventIdentity::Nothing(error.to_string()),
            },
        }
        pair.source.clear(readable);
        if events.is_empty() && index != STREAM {
            return EventIdentity::Nothing("there was nothing to read".to_owned());
        }
        EventIdentity::Events(events)
    }

    fn close(&mut self, index: usize) {
        if let Some(pair) = self.pairs.remove(&index) {
            self.handle.unwatch(pair.watched.as_fd(), &pair.source);
        }
    }
}

fn open(handle: &Handle<Readiness>, kind: Kind) -> io::Result<Pair> {
    let (watched, other): (OwnedFd, OwnedFd) = match kind {
        Kind::Socket | Kind::Room => {
            let (watched, other) = UnixStream::pair()?;
            (watched.into(), other.into())
        }
        Kind::Pipe => {
            let (reader, writer) = io::pipe()?;
            (reader.into(), writer.into())
        }
    };
    for end in [&watched, &other] {
        rustix::io::ioctl_fionbio(end, true)?;
    }
    if matches!(kind, Kind::Room) {
        while rustix::io::write(watched.as_fd(), &[0; 65536]).is_ok() {}
    }
    let source = handle.watch(watched.as_fd(), Interest::Both)?;
    Ok(Pair { watched, other: Arc::new(other), source })
}

impl Drop for ReadinessHarness {
    fn drop(&mut self) {
        for index in self.pairs.keys().copied().collect::<Vec<_>>() {
            self.close(index);
        }
    }
}

impl Harness for ReadinessHarness {
    type Detector = Readiness;
    const HOST_KINDS: HostKinds = HostKinds::Real;

    fn handle(&self) -> &Handle<Readiness> {
        &self.handle
    }

    fn request(&mut self, index: usize) -> ReadinessRequest {
        self.awaited(index)
    }

    fn trigger(&mut self, index: usize) -> Trigger {
        self.happen(index, index)
    }

    fn identify(&mut self, request: usize, event: ReadyEvent) -> EventIdentity {
        let identity = self.consume(request, event);
        self.close(request);
        identity
    }

    fn profile(&self) -> Profile {
        // A pair of descriptors each. Events of one direction are merged, so no stream is ever full.
        Profile::addressed().index_count_max(64).stream_capacity(16)
    }

    fn stream_request(&mut self) -> Option<ReadinessRequest> {
        match self.kind {
            Kind::Socket | Kind::Pipe => Some(self.awaited(STREAM)),
            Kind::Room => None,
        }
    }

    fn stream_trigger(&mut self, index: usize) -> Trigger {
        self.happen(STREAM, index)
    }

    fn identify_stream(&mut self, event: ReadyEvent) -> EventIdentity {
        self.consume(STREAM, event)
    }
}

#[test]
fn readiness_of_sockets_conforms() {
    pass("readiness_of_sockets_conforms", |world: &World| {
        Ok(ReadinessHarness::new(world, Kind::Socket))
    });
}

#[test]
fn readiness_of_pipes_conforms() {
    pass("readiness_of_pipes_conforms", |world: &World| {
        Ok(ReadinessHarness::new(world, Kind::Pipe))
    });
}

#[test]
fn readiness_to_write_conforms() {
    pass("readiness_to_write_conforms", |world: &World| {
        Ok(ReadinessHarness::new(world, Kind::Room))
    });
}

struct DoorbellHarness {
    button: Button,
    handle: Handle<Doorbell>,
}

impl Harness for DoorbellHarness {
    type Detector = Doorbell;

    fn handle(&self) -> &Handle<Doorbell> {
        &self.handle
    }

    fn request(&mut self, _: usize) {}

    fn trigger(&mut self, _: usize) -> Trigger {
        let button = self.button.clone();
        Box::new(move || button.press())
    }

    fn identify(&mut self, _: usize, (): ()) -> EventIdentity {
        EventIdentity::Unmarked
    }

    fn profile(&self) -> Profile {
        Profile::shared(Unclaimed::Returned)
    }

    fn stream_request(&mut self) -> Option<()> {
        Some(())
    }
}

#[test]
fn doorbells_conform() {
    pass("doorbells_conform", |world: &World| {
        let (button, handle) = doorbell(world.server())?;
        Ok(DoorbellHarness { button, handle })
    });
}

struct ChannelHarness {
    sender: Option<Sender<usize>>,
    handle: Handle<Receiver<usize>>,
}

impl Harness for ChannelHarness {
    type Detector = Receiver<usize>;

    fn handle(&self) -> &Handle<Receiver<usize>> {
        &self.handle
    }

    fn request(&mut self, _: usize) {}

    fn trigger(&mut self, index: usize) -> Trigger {
        let sender = self.sender.clone().expect("nothing happens after the end");
        // After a shutdown there is no receiver any more.
        Box::new(move || sender.try_send(index).unwrap_or_default())
    }

    fn identify(&mut self, _: usize, event: Option<usize>) -> EventIdentity {
        event.map_or(EventIdentity::End, |value| EventIdentity::Events(vec![value]))
    }

    fn profile(&self) -> Profile {
        Profile::shared(Unclaimed::Returned)
    }

    fn stream_request(&mut self) -> Option<()> {
        Some(())
    }

    fn end_stream(&mut self) -> Option<Trigger> {
        let sender = self.sender.take();
        Some(Box::new(move || drop(sender)))
    }
}

#[test]
fn channels_conform() {
    pass("channels_conform", |world: &World| {
        let (sender, handle) = channel(world.server(), 4096)?;
        Ok(ChannelHarness { sender: Some(sender), handle })
    });
}

#[cfg(feature = "uring")]
mod uring {
    use std::os::fd::OwnedFd;

    use vigie_detect::{
        Registration,
        conformance::Memory,
        detectors::uring::{Completion, Operation, Uring},
    };

    use super::*;

    /// Where the bytes go.
    #[derive(Clone, Copy, Debug)]
    enum Into {
        /// To a buffer that the ring provides.
        Provided,
        /// To a buffer that the request owns: a kernel writes to it after a cancellation.
        Owned,
    }

    struct UringHarness {
        handle: Handle<Uring>,
        into: Into,
        pairs: BTreeMap<usize, (Arc<OwnedFd>, Arc<OwnedFd>)>,
    }

    impl UringHarness {
        fn pair(&mut self, index: usize) -> &(Arc<OwnedFd>, Arc<OwnedFd>) {
            self.pairs.entry(index).or_insert_with(|| {
                let (near, far) = UnixStream::pair().expect("a pair of sockets");
                (Arc::new(near.into()), Arc::new(far.into()))
            })
        }

        fn happen(&mut self, place: usize, index: usize) -> Trigger {
            let far = Arc::clone(&self.pair(place).1);
            Box::new(move || {
                let mark = (index as u64).to_le_bytes();
                // After a cancellation or a shutdown the near end may be closed.
                let written = rustix::net::send(&far, &mark, rustix::net::SendFlags::NOSIGNAL);
                assert!(matches!(written, Ok(8) | Err(rustix::io::Errno::PIPE)), "{written:?}");
            })
        }
    }

    fn identify(event: Completion) -> EventIdentity {
        let bytes = match event {
            Completion::Received(buffer) => buffer.to_vec(),
            Completion::Transferred(transfer) => match transfer.into_parts() {
                (Ok(_), buffer) => buffer,
                (Err(error), _) => return EventIdentity::Nothing(error.to_string()),
            },
            Completion::End => return EventIdentity::End,
            other => return EventIdentity::Nothing(format!("{other:?}")),
        };
        assert_eq!(bytes.len() % 8, 0, "marks are not cut");
        let marks = bytes.chunks(8).map(|mark| {
            let mark = u64::from_le_bytes(mark.try_into().expect("eight bytes"));
            usize::try_from(mark).expect("a mark of ours")
        });
        EventIdentity::Events(marks.collect())
    }

    impl Harness for UringHarness {
        type Detector = Uring;
        const HOST_KINDS: HostKinds = HostKinds::Real;

        fn handle(&self) -> &Handle<Uring> {
            &self.handle
        }

        fn request(&mut self, index: usize) -> Operation {
            let near = Arc::clone(&self.pair(index).0);
            match self.into {
                Into::Provided => Operation::recv_provided(near),
                Into::Owned => Operation::recv(near, Vec::with_capacity(8)),
            }
        }

        fn trigger(&mut self, index: usize) -> Trigger {
            self.happen(index, index)
        }

        fn identify(&mut self, request: usize, event: Completion) -> EventIdentity {
            self.pairs.remove(&request);
            identify(event)
        }

        fn profile(&self) -> Profile {
            // A pair of descriptors each.
            Profile::addressed().index_count_max(64).stream_capacity(16)
        }

        fn stream_request(&mut self) -> Option<Operation> {
            match self.into {
                Into::Provided => Some(self.request(STREAM)),
                Into::Owned => None,
            }
        }

        fn stream_trigger(&mut self, index: usize) -> Trigger {
            self.happen(STREAM, index)
        }

        fn identify_stream(&mut self, event: Completion) -> EventIdentity {
            identify(event)
        }

        fn end_stream(&mut self) -> Option<Trigger> {
            let far = Arc::clone(&self.pair(STREAM).1);
            Some(Box::new(move || {
                rustix::net::shutdown(&far, rustix::net::Shutdown::Write).expect("an open socket");
            }))
        }

        fn memory(&self) -> Option<Memory> {
            // Memory that the kernel writes to stays with the ring, which reports how much it holds;
            // the library's own tests check for writes to freed memory.
            let statistics = self.handle.with_detector(|uring| uring.statistics())?;
            let (live, in_flight) = (statistics.operations, statistics.in_flight);
            Some(Memory { live, in_flight, freed_in_flight: 0 })
        }
    }

    fn pass_uring(test: &str, into: Into) {
        if let Err(error) = Uring::builder().build() {
            eprintln!("skipped: {error}");
            return;
        }
        pass(test, |world: &World| {
            let registration = Registration::named("uring").stream_capacity(16);
            let handle = world.server().register(Uring::builder().build()?, registration)?;
            Ok(UringHarness { handle, into, pairs: BTreeMap::new() })
        });
    }

    #[test]
    fn receives_into_provided_buffers_conform() {
        pass_uring("receives_into_provided_buffers_conform", Into::Provided);
    }

    #[test]
    fn receives_into_owned_buffers_conform() {
        pass_uring("receives_into_owned_buffers_conform", Into::Owned);
    }
}
