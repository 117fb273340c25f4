//! One rank of the crash test: it exchanges messages of all kinds with all others, twice, and says goodbye.

use std::{collections::BTreeSet, io::IoSlice, task::Poll, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vigie_detect::{ArmOutcome, Instant};
use vigie_via::{
    protocol::{
        EngineConfig, EngineEvent, MessageEngine, Pattern, Payload, RequestError, RequestId,
        SendError, SendMode, SendState,
    },
    shm::Shm,
    vi::{Address, DisconnectReason, MemoryAttributes, Provider},
};

use super::killer::{Death, Killer};

/// A bound for each wait, longer than it takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The contexts of the rounds' messages; those with wildcards use the next context, and goodbyes use 9.
const ROUNDS: [u16; 2] = [1, 3];
const GOOD_BYE: u16 = 9;

/// What is sent: tag and length.
const EAGER: (u32, usize) = (0, 8);
const EMPTY: (u32, usize) = (1, 0);
const FRAMES: (u32, usize) = (2, 20_000);
const SYNCHRONOUS: (u32, usize) = (3, 24);
const SYNCHRONOUS_FRAMES: (u32, usize) = (4, 9000);
const REGION: (u32, usize) = (5, 12_000);
const BUFFERED: (u32, usize) = (6, 1000);
const OWNED: (u32, usize) = (7, 10_000);
const WILD: (u32, usize) = (8, 40);
const KINDS: [(u32, usize); 8] =
    [EAGER, EMPTY, FRAMES, SYNCHRONOUS, SYNCHRONOUS_FRAMES, REGION, BUFFERED, OWNED];

/// The rank that may die.
pub(crate) const VICTIM: u32 = 1;

fn body(from: u32, to: u32, context: u16, (tag, length): (u32, usize)) -> Vec<u8> {
    let seed = u64::from(from) << 40 | u64::from(to) << 32 | u64::from(context) << 16;
    let mut rng = fastrand::Rng::with_seed(seed | u64::from(tag));
    (0..length).map(|_| rng.u8(..)).collect()
}

struct Sending {
    to: u32,
    id: RequestId,
    body: Option<Vec<u8>>,
}

struct Receiving {
    from: u32,
    id: RequestId,
    expected: Vec<u8>,
    found: Vec<u8>,
}

pub(crate) struct Rank {
    engine: MessageEngine<Killer>,
    rank: u32,
    size: u32,
    failed: BTreeSet<u32>,
}

impl Rank {
    pub(crate) fn new(rank: u32, size: u32) -> Self {
        let mut nic = Killer::new(Shm::open().expect("a NIC"));
        nic.listen(b"crash").expect("no other listener");
        // Some messages are announced, and asked for, before a receive is there.
        let config = EngineConfig::default()
            .area_bytes(32 << 10)
            .frame_bytes_max(4096)
            .window_bytes(8192)
            .unexpected_bytes_max(16 << 10);
        let engine = MessageEngine::new(nic, rank, size, config).expect("an engine");
        Self { engine, rank, size, failed: BTreeSet::new() }
    }

    pub(crate) fn address(&self) -> Address {
        self.engine.nic().address()
    }

    /// Returns what the rank is made of.
    pub(crate) fn into_engine(self) -> MessageEngine<Killer> {
        self.engine
    }

    fn peers(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.rank;
        (0..self.size).filter(move |rank| *rank != own)
    }

    /// Works until `check` finds something; sleeps in between if there is nothing to do.
    fn until<T>(&mut self, mut check: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = Instant::now();
            assert!(now < end, "rank {} waits for ever", self.rank);
            self.engine.progress(now);
            if let Some(found) = check(self) {
                return found;
            }
            if self.engine.arm().expect("can sleep") == ArmOutcome::Ready {
                continue;
            }
            let deadline = self.engine.next_deadline().unwrap_or(end).min(end);
            let left = deadline.saturating_duration_since(now);
            let patience = Timespec::try_from(left).expect("short");
            let descriptor = self.engine.descriptor().expect("a real NIC");
            let woken = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&patience));
            assert!(woken.is_ok(), "{woken:?}");
            self.engine.quiet();
        }
    }

    pub(crate) fn connect(&mut self, addresses: &[Address]) {
        let deadline = Instant::now() + PATIENCE;
        for peer in self.peers().filter(|peer| *peer > self.rank) {
            let address = &addresses[usize::try_from(peer).expect("small")];
            self.engine.connect(peer, address, b"crash", deadline).expect("asks");
        }
        let mut missing: BTreeSet<u32> = self.peers().collect();
        self.until(|rank| {
            while let Some(event) = rank.engine.next_event() {
                match event {
                    EngineEvent::Requested { request, rank: Some(peer), .. } => {
                        rank.engine.accept(request, peer).expect("accepts");
                    }
                    EngineEvent::Connected { rank: peer } => drop(missing.remove(&peer)),
                    // The victim may die right at the start.
                    EngineEvent::Failed { rank: peer, .. } if peer == VICTIM => {}
                    event => panic!("{event:?}"),
                }
            }
            missing.is_empty().then_some(())
        });
    }

    /// Tells where the others are; they are connected when they are needed. `death`: when this rank dies.
    pub(crate) fn introduce(&mut self, addresses: &[Address], death: Option<Death>) {
        self.engine.nic_mut().unlisten(b"crash");
        self.engine.connect_on_demand(b"crash").expect("no other listener");
        for peer in self.peers() {
            let address = addresses[usize::try_from(peer).expect("small")].clone();
            self.engine.introduce(peer, address).expect("a rank");
        }
        self.engine.nic_mut().plan_early(death);
    }

    /// Lets this rank die at a transmission.
    pub(crate) const fn plan(&mut self, death: Option<Death>) {
        self.engine.nic_mut().plan(death);
    }

    /// Exchanges all messages with all other ranks.
    pub(crate) fn run(mut self) {
        for context in ROUNDS {
            self.exchange(context);
        }
        self.say_good_bye();
        assert!(self.failed.iter().all(|rank| *rank == VICTIM), "{:?}", self.failed);
    }

    fn note(&mut self, peer: u32, rank: u32, reason: DisconnectReason) {
        assert_eq!((rank, peer), (VICTIM, VICTIM), "the error names another rank");
        assert_eq!(reason, DisconnectReason::PeerDied, "no rank breaks any rule");
        self.failed.insert(rank);
    }

    fn send(&mut self, to: u32, context: u16, kind: (u32, usize)) -> Option<Sending> {
        let body = body(self.rank, to, context, kind);
        let slices = [IoSlice::new(&body)];
        let (mode, payload) = match kind {
            REGION => {
                let tag = self.engine.tag(to).expect("a rank");
                let attributes = MemoryAttributes { tag, allows_write: false, allows_read: true };
                let length = u64::try_from(body.len()).expect("small");
                let region = self.engine.nic_mut().allocate(body.len(), attributes);
                let region = region.expect("memory");
                region.memory.write(0, &body).expect("inside");
                (SendMode::Standard, Payload::Region { region, offset: 0, length })
            }
            OWNED => (SendMode::Standard, Payload::Owned(body.clone())),
            BUFFERED => (SendMode::Buffered, Payload::Borrowed(&slices)),
            SYNCHRONOUS | SYNCHRONOUS_FRAMES => (SendMode::Synchronous, Payload::Borrowed(&slices)),
            _ => (SendMode::Standard, Payload::Borrowed(&slices)),
        };
        let is_borrowed = matches!(payload, Payload::Borrowed(_));
        match self.engine.send(to, context, kind.0, mode, payload) {
            Ok(SendState::Pending(id)) => {
                Some(Sending { to, id, body: is_borrowed.then_some(body) })
            }
            Ok(SendState::Done) => None,
            Err(SendError::PeerFailed { rank, reason }) => {
                self.note(to, rank, reason);
                None
            }
            Err(error) => panic!("{kind:?} to {to}: {error}"),
        }
    }

    /// Posts the receives of a round before or after the sends, so that some messages are expected and
    /// others are not.
    fn exchange(&mut self, context: u16) {
        let peers: Vec<u32> = self.peers().collect();
        let mut receives = Vec::new();
        if self.rank.is_multiple_of(2) {
            receives = self.receives(&peers, context, &KINDS);
        }
        let mut sends = Vec::new();
        for to in &peers {
            for kind in KINDS {
                sends.extend(self.send(*to, context, kind));
            }
            sends.extend(self.send(*to, context + 1, WILD));
        }
        if receives.is_empty() {
            receives = self.receives(&peers, context, &KINDS);
        }
        let mut wild = self.post(context + 1, None, None);
        let mut heard = BTreeSet::new();
        self.until(|rank| {
            sends.retain(|sending| !rank.is_sent(sending));
            receives.retain_mut(|receiving| !rank.is_received(receiving));
            while let Some(next) = rank.hear_anybody(wild, context + 1, &mut heard) {
                wild = next;
            }
            let is_heard = peers.iter().all(|p| heard.contains(p) || rank.failed.contains(p));
            (sends.is_empty() && receives.is_empty() && is_heard).then_some(())
        });
        self.engine.drop_receive(wild);
    }

    fn post(&mut self, context: u16, source: Option<u32>, tag: Option<u32>) -> RequestId {
        self.engine.post_receive(Pattern { context, source, tag })
    }

    fn receives(&mut self, peers: &[u32], context: u16, kinds: &[(u32, usize)]) -> Vec<Receiving> {
        let mut receives = Vec::new();
        for from in peers.iter().copied() {
            for kind in kinds.iter().copied() {
                let id = self.post(context, Some(from), Some(kind.0));
                let expected = body(from, self.rank, context, kind);
                receives.push(Receiving { from, id, expected, found: Vec::new() });
            }
        }
        receives
    }

    fn is_sent(&mut self, sending: &Sending) -> bool {
        let slices = sending.body.as_deref().map(|body| [IoSlice::new(body)]);
        let body = slices.as_ref().map(|slices| slices.as_slice());
        match self.engine.poll_send(sending.id, body) {
            Poll::Pending => return false,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(RequestError::PeerFailed { rank, reason })) => {
                self.note(sending.to, rank, reason);
            }
            Poll::Ready(Err(error)) => panic!("to {}: {error}", sending.to),
        }
        true
    }

    fn is_received(&mut self, receiving: &mut Receiving) -> bool {
        match self.engine.poll_receive(receiving.id, &mut receiving.found) {
            Poll::Pending => return false,
            Poll::Ready(Ok(status)) => {
                assert_eq!((status.source, status.is_truncated()), (receiving.from, false));
                assert!(receiving.found == receiving.expected, "tag {} is changed", status.tag);
            }
            Poll::Ready(Err(RequestError::PeerFailed { rank, reason })) => {
                self.note(receiving.from, rank, reason);
            }
            Poll::Ready(Err(error)) => panic!("from {}: {error}", receiving.from),
        }
        true
    }

    /// Polls a receive with wildcards. Returns the next one if it has ended.
    fn hear_anybody(
        &mut self,
        wild: RequestId,
        context: u16,
        heard: &mut BTreeSet<u32>,
    ) -> Option<RequestId> {
        let mut found = Vec::new();
        match self.engine.poll_receive(wild, &mut found) {
            Poll::Pending => return None,
            Poll::Ready(Ok(status)) => {
                assert!(found == body(status.source, self.rank, context, WILD));
                assert!(heard.insert(status.source), "rank {} twice", status.source);
            }
            Poll::Ready(Err(RequestError::PeerFailed { rank, reason })) => {
                self.note(VICTIM, rank, reason);
            }
            Poll::Ready(Err(error)) => panic!("from any rank: {error}"),
        }
        Some(self.post(context, None, None))
    }

    /// Exchanges last words with all ranks; a rank that has heard all of them leaves at once.
    fn say_good_bye(&mut self) {
        let peers: Vec<u32> = self.peers().collect();
        let mut sends: Vec<_> =
            peers.iter().filter_map(|to| self.send(*to, GOOD_BYE, EAGER)).collect();
        let mut receives = self.receives(&peers, GOOD_BYE, &[EAGER]);
        self.until(|rank| {
            sends.retain(|sending| !rank.is_sent(sending));
            receives.retain_mut(|receiving| !rank.is_received(receiving));
            (sends.is_empty() && receives.is_empty()).then_some(())
        });
    }
}
