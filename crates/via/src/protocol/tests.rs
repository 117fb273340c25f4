//! Two engines on a simulated network, for tests of their internals.

use vigie_detect::Instant;

use super::{
    EngineConfig, EngineEvent, MessageEngine, Pattern, Payload, RequestId, SendMode, SendState,
    incoming::DirectReceive,
    payload::Discard,
    request::{RequestEntry, SendRequest},
};
use crate::{
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{NicAttributes, Provider},
};

/// A configuration whose limits are soon reached: an area of 64 units, eight frames of eight units.
pub(super) fn small() -> EngineConfig {
    EngineConfig {
        area_bytes: 4096,
        frame_bytes_max: 512,
        window_bytes: 2048,
        descriptors: 32,
        control_entries: 8,
        unexpected_bytes_max: 8192,
        staging_frames: 2,
        ..EngineConfig::default()
    }
}

/// A pattern in context 0.
pub(super) fn tagged(tag: u32) -> Pattern {
    Pattern { context: 0, source: None, tag: Some(tag) }
}

/// Ranks 0 and 1 of three, connected to each other; the third is absent.
pub(super) struct Pair {
    pub(super) network: SimNetwork,
    pub(super) engines: [MessageEngine<SimNic>; 2],
}

impl Pair {
    pub(super) fn new(config: EngineConfig) -> Self {
        Self::with(config, NicAttributes::named("sim"))
    }

    pub(super) fn with(config: EngineConfig, attributes: NicAttributes) -> Self {
        let network = SimNetwork::new(1, FaultPlan::reliable());
        let mut engines = [0, 1].map(|rank| {
            let mut nic = network.nic_with(attributes);
            nic.listen(b"messages").expect("listens");
            MessageEngine::new(nic, rank, 3, config).expect("an engine")
        });
        let address = engines[1].nic().address();
        engines[0].connect(1, &address, b"messages", Instant::MAX).expect("asks");
        let mut connected = 0;
        for _ in 0..100 {
            for engine in &mut engines {
                engine.progress(network.now());
                while let Some(event) = engine.next_event() {
                    match event {
                        EngineEvent::Requested { request, rank: Some(rank), .. } => {
                            engine.accept(request, rank).expect("accepts");
                        }
                        EngineEvent::Connected { .. } => connected += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
            network.step();
        }
        assert_eq!(connected, 2);
        Self { network, engines }
    }

    pub(super) fn engine(&mut self, rank: usize) -> &mut MessageEngine<SimNic> {
        &mut self.engines[rank]
    }

    /// Delivers everything that was sent, without either rank taking it. Returns how much rank `from` has
    /// sent.
    pub(super) fn travel(&mut self, from: usize) -> u64 {
        let nic = self.engines[from].nic().id();
        let before = self.network.transmissions(nic);
        while self.network.step() {}
        self.network.transmissions(nic) - before
    }

    /// Lets a rank take what has arrived, and do nothing else. Returns the number of completions.
    pub(super) fn take(&mut self, rank: usize) -> usize {
        let engine = &mut self.engines[rank];
        (0..1000).take_while(|_| engine.step(&mut DirectReceive::nothing(&mut Discard))).count()
    }

    /// Lets a rank work, give its credits back and go to sleep, and delivers what it sends.
    pub(super) fn serve(&mut self, rank: usize) {
        self.travel(rank);
        let now = self.network.now();
        while self.engines[rank].progress(now) {}
        let _ = self.engines[rank].arm().expect("arms");
        self.travel(rank);
    }

    /// Sends bytes that the engine owns from rank 0 to rank 1.
    pub(super) fn send(&mut self, tag: u32, mode: SendMode, length: usize) -> SendState {
        let payload = Payload::Owned(vec![7; length]);
        self.engines[0].send(1, 0, tag, mode, payload).expect("the send begins")
    }

    /// As [`send`](Self::send), for a message that does not end at once.
    pub(super) fn begin(&mut self, tag: u32, mode: SendMode, length: usize) -> RequestId {
        match self.send(tag, mode, length) {
            SendState::Pending(id) => id,
            SendState::Done => panic!("it ended at once"),
        }
    }

    /// Returns a send of rank 0.
    pub(super) fn request(&mut self, id: RequestId) -> &mut SendRequest {
        match self.engines[0].requests.get_mut(id.0) {
            Some(RequestEntry::Send(send)) => send,
            other => panic!("{other:?}"),
        }
    }

    /// Fills `units` units of rank 1's area with empty messages.
    pub(super) fn fill(&mut self, units: usize) {
        for _ in 0..units {
            assert_eq!(self.send(99, SendMode::Standard, 0), SendState::Done);
        }
    }
}
