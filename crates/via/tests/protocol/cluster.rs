//! Engines of several ranks on a simulated network, driven together until nothing is left to happen.

use std::{io::IoSlice, task::Poll, time::Duration};

use vigie_detect::{ArmOutcome, Instant};
use vigie_via::{
    Secret,
    protocol::{
        EngineConfig, EngineEvent, MessageEngine, Pattern, Payload, RequestError, RequestId,
        SendMode, SendState, Sink, Status,
    },
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{NicAttributes, Provider},
};

/// A run that takes more ticks than this hangs.
const TICKS_MAX: usize = 2_000_000;

pub(crate) struct Cluster {
    pub network: SimNetwork,
    pub engines: Vec<MessageEngine<SimNic>>,
    is_up: bool,
}

/// Returns the attributes of a NIC with scarce resources.
pub(crate) fn scarce() -> NicAttributes {
    let mut attributes = NicAttributes::named("sim");
    attributes.descriptors_max = 64;
    attributes.inline_bytes_max = 64;
    attributes
}

/// Returns a configuration with tight limits.
pub(crate) fn small() -> EngineConfig {
    EngineConfig::default()
        .area_bytes(4096)
        .frame_bytes_max(512)
        .window_bytes(2048)
        .descriptors(32)
        .control_entries(8)
        .unexpected_bytes_max(8192)
}

impl Cluster {
    pub(crate) fn new(seed: u64, plan: FaultPlan, size: u32, config: EngineConfig) -> Self {
        Self::with(seed, plan, size, config, NicAttributes::named("sim"))
    }

    /// Makes engines, and connects each with each.
    pub(crate) fn with(
        seed: u64,
        plan: FaultPlan,
        size: u32,
        config: EngineConfig,
        attributes: NicAttributes,
    ) -> Self {
        let network = SimNetwork::new(seed, plan);
        let engines: Vec<_> = (0..size)
            .map(|rank| {
                let mut nic = network.nic_with(attributes);
                nic.listen(b"messages").expect("listens");
                MessageEngine::new(nic, rank, size, config).expect("an engine")
            })
            .collect();
        let mut cluster = Self { network, engines, is_up: false };
        cluster.connect_all();
        cluster
    }

    /// Makes engines that know where the others are, and connect on demand.
    pub(crate) fn on_demand(
        seed: u64,
        plan: FaultPlan,
        size: u32,
        config: EngineConfig,
        attributes: NicAttributes,
    ) -> Self {
        let network = SimNetwork::new(seed, plan);
        let mut engines: Vec<_> = (0..size)
            .map(|rank| {
                let nic = network.nic_with(attributes);
                let mut engine = MessageEngine::new(nic, rank, size, config).expect("an engine");
                engine.connect_on_demand(b"messages").expect("listens");
                engine
            })
            .collect();
        let addresses: Vec<_> = engines.iter().map(|engine| engine.nic().address()).collect();
        for (own, engine) in (0..).zip(&mut engines) {
            for (rank, address) in (0..).zip(&addresses).filter(|(rank, _)| *rank != own) {
                engine.introduce(rank, address.clone()).expect("a rank");
            }
        }
        Self { network, engines, is_up: true }
    }

    /// Gives each two ranks a key by which they prove to each other who they are.
    pub(crate) fn require_proofs(&mut self) {
        for own in 0..u32::try_from(self.engines.len()).expect("few") {
            for rank in (0..own).chain(own + 1..self.engine(own).size()) {
                self.engine(own).require_proof(rank, pair_key(own, rank)).expect("a rank");
            }
        }
    }

    fn connect_all(&mut self) {
        let size = u32::try_from(self.engines.len()).expect("few");
        let cluster = self;
        for low in 0..size {
            for high in low + 1..size {
                let address = cluster.engine(high).nic().address();
                cluster
                    .engine(low)
                    .connect(high, &address, b"messages", Instant::MAX)
                    .expect("asks for a connection");
            }
        }
        let mut connected = 0;
        for _ in 0..TICKS_MAX {
            cluster.tick();
            for rank in 0..size {
                while let Some(event) = cluster.engine(rank).next_event() {
                    match event {
                        EngineEvent::Requested { request, rank: Some(peer), .. } => {
                            cluster.engine(rank).accept(request, peer).expect("accepts");
                        }
                        EngineEvent::Connected { .. } => connected += 1,
                        other => panic!("rank {rank}: {other:?}"),
                    }
                }
            }
            if connected == size * (size - 1) {
                cluster.is_up = true;
                return;
            }
        }
        panic!("not all are connected: {connected}");
    }

    pub(crate) fn engine(&mut self, rank: u32) -> &mut MessageEngine<SimNic> {
        &mut self.engines[rank as usize]
    }

    /// Lets all engines work until all sleep, and then advances time to the next event. Returns whether
    /// anything was done.
    pub(crate) fn tick(&mut self) -> bool {
        let mut has_worked = false;
        let now = self.network.now();
        for engine in &mut self.engines {
            if self.network.has_crashed(engine.nic().id()) {
                continue;
            }
            for _ in 0..1000 {
                if !engine.progress(now) {
                    break;
                }
                has_worked = true;
            }
            if self.is_up {
                while let Some(event) = engine.next_event() {
                    assert!(matches!(event, EngineEvent::Failed { .. }), "{event:?}");
                }
            }
            let mut ready = Vec::new();
            engine.take_ready(&mut ready);
            has_worked |= !ready.is_empty();
        }
        if has_worked {
            return true;
        }
        for engine in &mut self.engines {
            if self.network.has_crashed(engine.nic().id()) {
                continue;
            }
            has_worked |= engine.arm().expect("arms") == ArmOutcome::Ready;
            engine.quiet();
        }
        let alive = |engine: &&MessageEngine<SimNic>| !self.network.has_crashed(engine.nic().id());
        let next = self.engines.iter().filter(alive).filter_map(MessageEngine::next_deadline).min();
        match (next, self.network.next_event()) {
            (Some(deadline), event) if event.is_none_or(|event| deadline <= event) => {
                let at = deadline.max(now.saturating_add(Duration::from_nanos(1)));
                self.network.advance_to(at);
                true
            }
            (_, Some(_)) => self.network.step(),
            _ => has_worked,
        }
    }

    /// Lets everything pending happen.
    pub(crate) fn settle(&mut self) {
        for _ in 0..TICKS_MAX {
            if !self.tick() {
                return;
            }
        }
        panic!("never quiet");
    }

    pub(crate) fn send(
        &mut self,
        from: u32,
        to: u32,
        tag: u32,
        mode: SendMode,
        bytes: &[u8],
    ) -> SendState {
        self.engine(from)
            .send(to, 0, tag, mode, Payload::Borrowed(&[IoSlice::new(bytes)]))
            .expect("the send begins")
    }

    /// Waits for a receive, with a place for its data.
    pub(crate) fn receive_into<S: Sink + ?Sized>(
        &mut self,
        rank: u32,
        id: RequestId,
        sink: &mut S,
    ) -> Result<Status, RequestError> {
        for _ in 0..TICKS_MAX {
            if let Poll::Ready(result) = self.engine(rank).poll_receive(id, sink) {
                return result;
            }
            assert!(self.tick(), "rank {rank} waits and nothing happens");
        }
        panic!("rank {rank} waits for ever");
    }

    /// Receives a message.
    pub(crate) fn receive(&mut self, rank: u32, pattern: Pattern) -> (Status, Vec<u8>) {
        let id = self.engine(rank).post_receive(pattern);
        let mut bytes = Vec::new();
        let status = self.receive_into(rank, id, &mut bytes).expect("a message");
        (status, bytes)
    }

    /// Waits for a send.
    pub(crate) fn finish(
        &mut self,
        rank: u32,
        state: SendState,
        body: &[u8],
    ) -> Result<(), RequestError> {
        let SendState::Pending(id) = state else { return Ok(()) };
        for _ in 0..TICKS_MAX {
            let polled = self.engine(rank).poll_send(id, Some(&[IoSlice::new(body)]));
            if let Poll::Ready(result) = polled {
                return result;
            }
            assert!(self.tick(), "rank {rank} waits and nothing happens");
        }
        panic!("rank {rank} waits for ever");
    }

    pub(crate) fn is_done(&mut self, rank: u32, id: RequestId, body: &[u8]) -> bool {
        match self.engine(rank).poll_send(id, Some(&[IoSlice::new(body)])) {
            Poll::Ready(result) => {
                result.expect("sent");
                true
            }
            Poll::Pending => false,
        }
    }
}

/// Returns the key that two ranks share.
pub(crate) fn pair_key(one: u32, other: u32) -> Secret {
    let number = u128::from(one.min(other)) << 32 | u128::from(one.max(other)) | 1 << 100;
    Secret::new(number.to_le_bytes())
}

/// Returns a pattern in context 0.
pub(crate) fn from(source: impl Into<Option<u32>>, tag: impl Into<Option<u32>>) -> Pattern {
    Pattern { context: 0, source: source.into(), tag: tag.into() }
}

/// Returns bytes that differ from place to place and from message to message.
pub(crate) fn bytes_of(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}
