//! vigie's message layer over a provider: sends and receives of a communicator, awaited on vigie's
//! user-level flavor.

use std::io::IoSlice;
use std::time::Duration;

use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::message::{
    Communicator, Endpoint, MessageError, ReceiveRequest, SendRequest, SourceFilter,
};
use vigie_via::protocol::{EngineConfig, EngineEvent, MessageEngine, SendMode};
use vigie_via::shm::Shm;
use vigie_via::vi::{Memory, Provider};

use super::keys::REST;
use super::virtual_interface::{ADDRESS_BYTES, address_of, leave_address};
use super::{Carrier, CarrierKind, Measure, PingPong, RankContext, VIGIE};
use crate::clock::now;
use crate::error::Failure;

/// vigie's message layer.
pub(crate) static MESSAGES: Carrier = Carrier {
    name: VIGIE,
    label: "vigie, messages",
    family: "vigie",
    kind: CarrierKind::Vigie,
    has: |_| true,
    link_bytes: ADDRESS_BYTES,
    is_remote: false,
    open: |context| open(context, Flavor::UserLevel),
    program: None,
};

/// The same on the hybrid flavor, where a worker can move messages while another one computes.
pub(crate) static HYBRID: Carrier = Carrier {
    name: "vigie-hybrid",
    label: "vigie, messages, hybrid flavor",
    has: |measure| measure.is_busy(),
    open: |context| open(context, Flavor::Hybrid),
    ..MESSAGES
};

fn open(context: &RankContext, flavor: Flavor) -> Result<Box<dyn PingPong>, Failure> {
    let nic = Shm::open().map_err(Failure::runtime)?;
    Ok(Box::new(Messages::open_on(context, nic, flavor)?))
}

/// The discriminator of all connections of a run.
pub(crate) const DISCRIMINATOR: &[u8] = b"pingpong";

/// The same of connections that are made when a rank first needs another one.
const ON_DEMAND: &[u8] = b"crowd";

/// How long ranks wait for each other at the beginning.
const MEETING: Duration = Duration::from_secs(20);

/// Messages that long are sent by requests from memory that the receiver can read; shorter ones are copied in any case.
const LONG_BYTES: u32 = 32 << 10;

/// The first byte of a message that ends a measure.
const STOP: u8 = 0xff;

/// The first byte of every other message.
const GO: u8 = 1;

/// One rank: its runtime, and its communicator with the ranks beside it.
pub(super) struct Messages<P: Provider> {
    runtime: Runtime,
    rank: RankState<P>,
}

/// The computation of a rank: no call of the message layer.
fn compute() {
    let begun = now();
    while begun.elapsed() < REST {
        std::hint::spin_loop();
    }
}

/// A small type, so that results without an error travel in registers.
type BoxedFailure = Box<Failure>;

impl From<MessageError> for BoxedFailure {
    fn from(error: MessageError) -> Self {
        Self::new(Failure::runtime(error))
    }
}

struct RankState<P: Provider> {
    all: Communicator<P>,
    next: u32,
    before: u32,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// What long messages are sent from by requests, which the engine must be able to read until they end.
    memory: Option<Memory>,
    sends: Vec<SendRequest<P>>,
    receives: Vec<ReceiveRequest<P>>,
}

impl<P: Provider + Send + 'static> Messages<P> {
    pub(super) fn open(context: &RankContext, nic: P) -> Result<Self, Failure> {
        Self::open_on(context, nic, Flavor::UserLevel)
    }

    fn open_on(context: &RankContext, mut nic: P, flavor: Flavor) -> Result<Self, Failure> {
        let runtime = Runtime::builder().flavor(flavor).build();
        let runtime = runtime.map_err(Failure::runtime)?;
        nic.listen(DISCRIMINATOR).map_err(Failure::runtime)?;
        let address = nic.address();
        let mut engine = engine(context, nic)?;
        // Before others know where this rank is: one that has met those beside it may call at once.
        engine.connect_on_demand(ON_DEMAND).map_err(Failure::runtime)?;
        leave_address(context, &address)?;
        let mut beside = vec![context.next()];
        if context.before() != context.next() {
            beside.push(context.before());
        }
        introduce(context, &mut engine, &beside)?;
        let endpoint = runtime.block_on(connect(context, engine, beside))?;
        let all = endpoint.communicator();
        let (next, before) = (context.next(), context.before());
        let rank = RankState {
            all,
            next,
            before,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            memory: None,
            sends: Vec::new(),
            receives: Vec::new(),
        };
        Ok(Self { runtime, rank })
    }
}

/// Makes the engine of a rank.
pub(crate) fn engine<P: Provider>(
    context: &RankContext,
    nic: P,
) -> Result<MessageEngine<P>, Failure> {
    MessageEngine::new(nic, context.rank, context.ranks, EngineConfig::default())
        .map_err(Failure::runtime)
}

/// Tells where all ranks are but those beside it.
fn introduce<P: Provider>(
    context: &RankContext,
    engine: &mut MessageEngine<P>,
    beside: &[u32],
) -> Result<(), Failure> {
    let others = (0..context.ranks).filter(|rank| *rank != context.rank);
    for rank in others.filter(|rank| !beside.contains(rank)) {
        engine.introduce(rank, address_of(context, rank)?).map_err(Failure::runtime)?;
    }
    Ok(())
}

/// Connects to these ranks: of two ranks, the lower one asks. The NIC must [listen](DISCRIMINATOR), and its address be
/// known.
pub(crate) async fn connect<P: Provider + Send + 'static>(
    context: &RankContext,
    engine: MessageEngine<P>,
    mut missing: Vec<u32>,
) -> Result<Endpoint<P>, Failure> {
    let server = Server::current().map_err(Failure::runtime)?;
    let endpoint = Endpoint::new(&server, engine).map_err(Failure::runtime)?;
    let deadline = Instant::now() + MEETING;
    for &rank in missing.iter().filter(|rank| **rank > context.rank) {
        let address = address_of(context, rank)?;
        endpoint
            .with(|engine| engine.connect(rank, &address, DISCRIMINATOR, deadline))
            .map_err(Failure::runtime)?;
    }
    while !missing.is_empty() {
        match endpoint.next_event().await.map_err(Failure::runtime)? {
            EngineEvent::Requested { request, rank: Some(rank), .. } => {
                endpoint.with(|engine| engine.accept(request, rank)).map_err(Failure::runtime)?
            }
            EngineEvent::Connected { rank } => missing.retain(|other| *other != rank),
            event => return Err(Failure::runtime(format!("not connected: {event:?}"))),
        }
    }
    Ok(endpoint)
}

impl<P: Provider + Send + 'static> RankState<P> {
    /// Makes both buffers as long as a message of `measure`, every page of them touched.
    fn resize(&mut self, measure: Measure) -> Result<(), Failure> {
        let length = usize::try_from(measure.bytes()).map_err(Failure::runtime)?;
        for buffer in [&mut self.outgoing, &mut self.incoming] {
            buffer.clear();
            buffer.resize(length.max(1), GO);
        }
        self.memory = None;
        Ok(())
    }

    /// Begins to send a message; a long one from memory that the receiver can read.
    fn start_send(&mut self, bytes: u32, tag: u32) -> Result<SendRequest<P>, BoxedFailure> {
        if bytes < LONG_BYTES {
            let bytes = self.outgoing.clone();
            return Ok(self.all.start_send(self.next, tag, SendMode::Standard, bytes)?);
        }
        let memory = match &self.memory {
            Some(memory) => memory,
            None => {
                let memory = self.all.buffer(self.outgoing.len())?;
                memory.write(0, &self.outgoing).map_err(Failure::runtime)?;
                self.memory.insert(memory)
            }
        };
        let part = (memory, 0, u64::from(bytes));
        Ok(self.all.start_send_memory(self.next, tag, SendMode::Standard, part)?)
    }

    /// Sends a window of messages by requests, and waits for all of them.
    async fn send_by_requests(&mut self, bytes: u32, window: u32) -> Result<(), BoxedFailure> {
        for _ in 0..window {
            let request = self.start_send(bytes, 0)?;
            self.sends.push(request);
        }
        for mut request in self.sends.drain(..) {
            request.wait().await?;
        }
        Ok(())
    }

    /// Receives `count` messages by requests.
    async fn receive_by_requests(&mut self, count: u32) -> Result<(), BoxedFailure> {
        for _ in 0..count {
            self.receives.push(self.all.start_recv(self.before, 0));
        }
        for mut request in self.receives.drain(..) {
            request.wait_into(&mut self.incoming[..]).await?;
        }
        Ok(())
    }

    /// The messages that follow the first of an operation.
    async fn receive_rest(&mut self, measure: Measure, whole: usize) -> Result<(), BoxedFailure> {
        match measure {
            Measure::Requests { window, .. } => self.receive_by_requests(window - 1).await,
            Measure::Unexpected { window, .. } => {
                for tag in (1..=window).rev() {
                    self.all.recv_into(self.before, tag, &mut self.incoming[..]).await?;
                }
                Ok(())
            }
            Measure::Backlog { window, .. } => {
                for _ in 0..window {
                    self.all.recv_into(self.before, 1, &mut self.incoming[..]).await?;
                }
                Ok(())
            }
            _ => {
                for _ in 1..measure.window() {
                    self.receive(measure, whole).await?;
                }
                Ok(())
            }
        }
    }

    #[inline]
    async fn send(&self, measure: Measure, message: &[u8]) -> Result<(), BoxedFailure> {
        match measure {
            Measure::Synchronous { .. } => {
                let slices = [IoSlice::new(message)];
                self.all.send_slices(self.next, 0, SendMode::Synchronous, &slices).await?;
            }
            Measure::Loaned { bytes } => {
                let loan = self.all.loan(self.next, bytes)?;
                // As the peers do: the buffer is loaned and marked, and its other bytes are left as they
                // are.
                loan.write_at(0, &message[..1]).map_err(Failure::runtime)?;
                self.all.send_loaned(loan, 0).await?;
            }
            _ => self.all.send(self.next, 0, message).await?,
        }
        Ok(())
    }

    #[inline]
    async fn receive(&mut self, measure: Measure, length: usize) -> Result<(), BoxedFailure> {
        if let Measure::Loaned { .. } = measure {
            let view = self.all.recv_view(self.before, 0).await?;
            view.read_at(0, &mut self.incoming[..1]).map_err(Failure::runtime)?;
            return Ok(());
        }
        let into = &mut self.incoming[..length];
        let source = match measure {
            Measure::Any { .. } => SourceFilter::Any,
            _ => SourceFilter::Rank(self.before),
        };
        let status = self.all.recv_into(source, 0, into).await?;
        if status.length != length as u64 {
            let reason = format!("{} bytes instead of {length}", status.length);
            return Err(Box::new(Failure::runtime(reason)));
        }
        Ok(())
    }

    /// A round of all to all, or of many to one. Returns whether rank 0 says that it is the last.
    async fn round(&mut self, measure: Measure) -> Result<bool, BoxedFailure> {
        let (own, size) = (self.all.rank(), self.all.size());
        let mut is_last = false;
        let (is_root, is_all) = (own == 0, measure != Measure::ManyToOne);
        if is_all {
            for ahead in 1..size {
                self.all.send((own + ahead) % size, 0, &self.outgoing).await?;
            }
        } else if !is_root {
            self.all.send(0, 0, &self.outgoing).await?;
        }
        for ahead in 1..if is_root || is_all { size } else { 1 } {
            self.all.recv_into((own + size - ahead) % size, 0, &mut self.incoming[..]).await?;
            is_last |= own == ahead && self.incoming[0] == STOP;
        }
        if !is_all {
            for rank in 1..if is_root { size } else { 1 } {
                self.all.send(rank, 0, &self.outgoing).await?;
            }
            if !is_root {
                self.all.recv_into(0, 0, &mut self.incoming[..]).await?;
                is_last = self.incoming[0] == STOP;
            }
        }
        Ok(is_last)
    }

    /// Leads a message between ranks of which one computes.
    async fn lead_busy(&mut self, measure: Measure) -> Result<(), BoxedFailure> {
        self.all.send(self.next, 0, &self.outgoing[..1]).await?;
        self.all.recv_into(self.before, 0, &mut self.incoming[..1]).await?;
        let mut request = self.start_send(measure.bytes(), 1)?;
        if let Measure::BusySender { .. } = measure {
            compute();
        }
        request.wait().await?;
        self.all.recv_into(self.before, 0, &mut self.incoming[..1]).await?;
        Ok(())
    }

    /// Its other side.
    async fn follow_busy(&mut self, measure: Measure) -> Result<bool, BoxedFailure> {
        self.all.recv_into(self.before, 0, &mut self.incoming[..1]).await?;
        let is_last = self.incoming[0] == STOP;
        if !is_last {
            let mut request = self.all.start_recv(self.before, 1);
            self.all.send(self.next, 0, &self.outgoing[..1]).await?;
            if let Measure::BusyReceiver { .. } = measure {
                compute();
            }
            request.wait_into(&mut self.incoming[..]).await?;
        }
        self.all.send(self.next, 0, &self.outgoing[..1]).await?;
        Ok(is_last)
    }

    fn answer(&self, measure: Measure) -> usize {
        if measure.window() > 1 { 1 } else { self.incoming.len() }
    }

    async fn perform(&mut self, measure: Measure, count: u32) -> Result<(), BoxedFailure> {
        if self.outgoing.len() as u64 != u64::from(measure.bytes()) {
            self.resize(measure)?;
        }
        self.outgoing[0] = GO;
        let answer = self.answer(measure);
        for _ in 0..count {
            if measure.is_round() {
                self.round(measure).await?;
                continue;
            }
            if measure.is_busy() {
                self.lead_busy(measure).await?;
                continue;
            }
            match measure {
                Measure::Requests { bytes, window } => self.send_by_requests(bytes, window).await?,
                Measure::Unexpected { window, .. } => {
                    for tag in 1..=window {
                        self.all.send(self.next, tag, &self.outgoing).await?;
                    }
                    self.send(measure, &self.outgoing).await?;
                }
                Measure::Backlog { window, .. } => {
                    for _ in 0..window {
                        self.all.send(self.next, 1, &self.outgoing).await?;
                    }
                    self.send(measure, &self.outgoing).await?;
                }
                _ => {
                    for _ in 0..measure.window() {
                        self.send(measure, &self.outgoing).await?;
                    }
                }
            }
            self.receive(measure, answer).await?;
        }
        Ok(())
    }

    async fn follow(&mut self, measure: Measure) -> Result<(), BoxedFailure> {
        self.resize(measure)?;
        if measure.is_round() {
            while !self.round(measure).await? {}
            return Ok(());
        }
        if measure.is_busy() {
            while !self.follow_busy(measure).await? {}
            return Ok(());
        }
        let (whole, answer) = (self.incoming.len(), self.answer(measure));
        loop {
            self.receive(measure, whole).await?;
            let is_last = self.incoming[0] == STOP;
            if !is_last {
                self.receive_rest(measure, whole).await?;
            }
            self.send(measure, &self.incoming[..answer]).await?;
            if is_last {
                return Ok(());
            }
        }
    }
}

impl<P: Provider + Send + 'static> PingPong for Messages<P> {
    fn perform(&mut self, measure: Measure, count: u32) -> Result<(), Failure> {
        let performed = self.runtime.block_on(self.rank.perform(measure, count));
        performed.map_err(|failure| *failure)
    }

    fn stop(&mut self, measure: Measure) -> Result<(), Failure> {
        let Self { runtime, rank } = self;
        rank.resize(measure)?;
        rank.outgoing[0] = STOP;
        let answer = rank.answer(measure);
        let stopped = runtime.block_on(async {
            if measure.is_round() {
                return rank.round(measure).await.map(drop);
            }
            if measure.is_busy() {
                rank.all.send(rank.next, 0, &rank.outgoing[..1]).await?;
                rank.all.recv_into(rank.before, 0, &mut rank.incoming[..1]).await?;
                return Ok(());
            }
            rank.send(measure, &rank.outgoing).await?;
            rank.receive(measure, answer).await
        });
        stopped.map_err(|failure| *failure)
    }

    fn follow(&mut self, measure: Measure) -> Result<(), Failure> {
        self.runtime.block_on(self.rank.follow(measure)).map_err(|failure| *failure)
    }
}
