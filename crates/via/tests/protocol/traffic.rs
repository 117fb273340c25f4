//! Random traffic between all ranks, and the check that every message was received once, whole and in order.

use std::{io::IoSlice, task::Poll};

use vigie_via::{
    protocol::{
        CancelState, Pattern, Payload, RequestError, RequestId, SendError, SendMode, SendState,
    },
    vi::Provider,
};

use crate::cluster::{Cluster, bytes_of};

/// A run that takes more steps hangs.
const STEPS_MAX: usize = 400_000;

#[derive(Clone, Debug)]
struct Sent {
    from: u32,
    to: u32,
    context: u16,
    tag: u32,
    length: usize,
    receipts: usize,
    is_cancelled: bool,
    /// Its sender wanted it back.
    is_asked: bool,
    /// Its sender has gone: it may never be received.
    may_be_lost: bool,
}

#[derive(Debug)]
struct Sending {
    number: usize,
    id: RequestId,
    body: Vec<u8>,
    is_borrowed: bool,
}

#[derive(Debug)]
struct Receiving {
    rank: u32,
    id: RequestId,
    pattern: Pattern,
    buffer: Vec<u8>,
    order: usize,
}

#[derive(Debug)]
struct Receipt {
    rank: u32,
    pattern: Pattern,
    order: usize,
    number: usize,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub messages: usize,
    pub errors: usize,
    pub cancelled: usize,
    /// Sends and receives whose owners dropped them.
    pub dropped: usize,
}

pub(crate) struct Traffic {
    pub cluster: Cluster,
    random: fastrand::Rng,
    lengths: [usize; 6],
    messages: Vec<Sent>,
    sending: Vec<Sending>,
    receiving: Vec<Receiving>,
    receipts: Vec<Receipt>,
    posted: usize,
    errors: usize,
    /// Whether owners drop sends and receives.
    drops: bool,
    dropped_sends: usize,
    dropped_receives: usize,
}

impl Traffic {
    pub(crate) fn new(seed: u64, cluster: Cluster, lengths: [usize; 6]) -> Self {
        Self {
            cluster,
            random: fastrand::Rng::with_seed(seed),
            lengths,
            messages: Vec::new(),
            sending: Vec::new(),
            receiving: Vec::new(),
            receipts: Vec::new(),
            posted: 0,
            errors: 0,
            drops: false,
            dropped_sends: 0,
            dropped_receives: 0,
        }
    }

    /// Lets owners drop sends and receives before these have ended.
    pub(crate) fn with_drops(mut self) -> Self {
        self.drops = true;
        self
    }

    fn size(&self) -> u32 {
        u32::try_from(self.cluster.engines.len()).expect("few")
    }

    fn is_alive(&self, rank: u32) -> bool {
        let nic = self.cluster.engines[rank as usize].nic();
        !self.cluster.network.has_crashed(nic.id())
    }

    fn alive_rank(&mut self) -> u32 {
        loop {
            let rank = self.random.u32(0..self.size());
            if self.is_alive(rank) {
                return rank;
            }
        }
    }

    /// Checks that an error names a rank that has crashed, or one that gave up what it was sending.
    fn check_error(&mut self, error: RequestError) {
        if let RequestError::Aborted { rank } = error {
            let gave_up = |one: &Sent| one.from == rank && one.may_be_lost;
            assert!(self.messages.iter().any(gave_up), "{error}, which is not so");
            return;
        }
        let RequestError::PeerFailed { rank, .. } = error else { panic!("{error}") };
        assert!(!self.is_alive(rank), "{error}, which is not so");
        self.errors += 1;
    }

    fn send(&mut self) {
        let (from, to) = (self.alive_rank(), self.random.u32(0..self.size()));
        let (context, tag) = (self.random.u16(0..2), self.random.u32(0..3));
        let longest = self.lengths[self.random.usize(0..6)];
        let length = self.random.usize(0..=longest);
        let modes = [
            SendMode::Standard,
            SendMode::Standard,
            SendMode::Synchronous,
            SendMode::Buffered,
            SendMode::Ready,
        ];
        let mode = modes[self.random.usize(0..5)];
        let number = self.messages.len();
        let mut body = bytes_of(number as u64, length);
        if let Some(start) = body.get_mut(..4) {
            start.copy_from_slice(&u32::try_from(number).expect("few").to_le_bytes());
        }
        let is_borrowed = self.random.bool();
        let cut = self.random.usize(0..=length);
        let slices = [IoSlice::new(&body[..cut]), IoSlice::new(&body[cut..])];
        let engine = self.cluster.engine(from);
        let payload = if is_borrowed {
            Payload::Borrowed(&slices)
        } else if tag == 2 && length > 0 {
            let memory = vigie_via::vi::Memory::allocate(length).expect("memory");
            memory.write(0, &body).expect("inside");
            let tag = engine.tag(to).expect("a rank");
            let mut attributes = vigie_via::vi::MemoryAttributes::private(tag);
            attributes.allows_read = true;
            let region = engine.nic_mut().register(memory, attributes).expect("registers");
            Payload::Region { region, offset: 0, length: length as u64 }
        } else {
            Payload::Owned(body.clone())
        };
        let state = match engine.send(to, context, tag, mode, payload) {
            Ok(state) => state,
            Err(SendError::BufferFull { .. }) => return,
            Err(SendError::PeerFailed { rank, .. }) => {
                assert!(!self.is_alive(rank), "rank {rank} has not failed");
                self.errors += 1;
                return;
            }
            Err(other) => panic!("{other}"),
        };
        self.messages.push(Sent {
            from,
            to,
            context,
            tag,
            length,
            receipts: 0,
            is_cancelled: false,
            is_asked: false,
            may_be_lost: false,
        });
        if let SendState::Pending(id) = state {
            self.sending.push(Sending { number, id, body, is_borrowed });
            if self.random.u32(0..20) == 0 {
                let asked = self.cluster.engine(from).cancel_send(id);
                self.messages[number].is_asked = true;
                if asked == CancelState::Cancelled {
                    self.sending.pop();
                    self.messages[number].is_cancelled = true;
                }
            }
        }
    }

    fn post(&mut self, rank: u32, pattern: Pattern) {
        let id = self.cluster.engine(rank).post_receive(pattern);
        self.posted += 1;
        let order = self.posted;
        self.receiving.push(Receiving { rank, id, pattern, buffer: Vec::new(), order });
    }

    fn receive(&mut self) {
        let rank = self.alive_rank();
        let (context, size) = (self.random.u16(0..2), self.size());
        let source = self.random.bool().then(|| self.random.u32(0..size));
        let tag = self.random.bool().then(|| self.random.u32(0..3));
        let pattern = Pattern { context, source, tag };
        match self.random.u32(0..4) {
            0 => {
                let mut buffer = Vec::new();
                let status = self.cluster.engine(rank).try_recv(pattern, &mut buffer);
                if let Some(status) = status {
                    self.posted += 1;
                    let order = self.posted;
                    self.received(rank, pattern, order, status, &buffer);
                }
            }
            1 => {
                let probed = self.cluster.engine(rank).probe(pattern);
                let found = self.cluster.engine(rank).matched_probe(pattern);
                if let (Some(probed), Some((id, status))) = (probed, found) {
                    assert_eq!(probed, status, "a probed message is the one that is got");
                    self.posted += 1;
                    let (order, buffer) = (self.posted, Vec::new());
                    self.receiving.push(Receiving { rank, id, pattern, buffer, order });
                } else {
                    assert_eq!(probed, None);
                    if let Some((id, _)) = found {
                        self.posted += 1;
                        let (order, buffer) = (self.posted, Vec::new());
                        self.receiving.push(Receiving { rank, id, pattern, buffer, order });
                    }
                }
            }
            _ => self.post(rank, pattern),
        }
    }

    fn received(
        &mut self,
        rank: u32,
        pattern: Pattern,
        order: usize,
        status: vigie_via::protocol::Status,
        buffer: &[u8],
    ) {
        let length = usize::try_from(status.length).expect("short");
        assert_eq!(buffer.len(), length, "all of it");
        // Short messages do not carry their number: the first that fits is meant.
        let number = match buffer.first_chunk::<4>() {
            Some(start) => u32::from_le_bytes(*start) as usize,
            None => {
                let fits = |one: &Sent| {
                    one.receipts == 0
                        && !one.is_cancelled
                        && (one.from, one.to, one.context, one.tag, one.length)
                            == (status.source, rank, pattern.context, status.tag, length)
                };
                let fitting =
                    (0..self.messages.len()).filter(|&number| fits(&self.messages[number]));
                fitting
                    .min_by_key(|&number| self.messages[number].may_be_lost)
                    .expect("a message that was sent")
            }
        };
        let message = &mut self.messages[number];
        message.receipts += 1;
        assert_eq!((message.from, message.to), (status.source, rank), "message {number}");
        assert_eq!((message.context, message.tag), (pattern.context, status.tag));
        assert!(!message.is_cancelled, "message {number} was cancelled and received");
        let mut body = bytes_of(number as u64, message.length);
        if let Some(start) = body.get_mut(..4) {
            start.copy_from_slice(&buffer[..4]);
            assert!(body == buffer, "message {number} is damaged");
        }
        self.receipts.push(Receipt { rank, pattern, order, number });
    }

    fn poll(&mut self) {
        for sending in std::mem::take(&mut self.sending) {
            let from = self.messages[sending.number].from;
            if !self.is_alive(from) {
                continue;
            }
            let slices = [IoSlice::new(&sending.body)];
            let body = sending.is_borrowed.then_some(&slices[..]);
            match self.cluster.engine(from).poll_send(sending.id, body) {
                Poll::Pending => self.sending.push(sending),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(RequestError::Cancelled)) => {
                    self.messages[sending.number].is_cancelled = true;
                }
                Poll::Ready(Err(error)) => self.check_error(error),
            }
        }
        for mut receiving in std::mem::take(&mut self.receiving) {
            let rank = receiving.rank;
            if !self.is_alive(rank) {
                continue;
            }
            let id = receiving.id;
            match self.cluster.engine(rank).poll_receive(id, &mut receiving.buffer) {
                Poll::Pending => self.receiving.push(receiving),
                Poll::Ready(Ok(status)) => {
                    let Receiving { pattern, order, buffer, .. } = receiving;
                    self.received(rank, pattern, order, status, &buffer);
                }
                Poll::Ready(Err(error)) => self.check_error(error),
            }
        }
    }

    /// Drops a send or a receive, as its owner might.
    fn drop_one(&mut self) {
        let is_send = self.random.bool();
        if is_send && !self.sending.is_empty() {
            let index = self.random.usize(0..self.sending.len());
            let sending = self.sending.swap_remove(index);
            let message = &mut self.messages[sending.number];
            // What the engine already has is still delivered.
            message.may_be_lost = sending.is_borrowed || message.is_asked;
            let from = message.from;
            if self.is_alive(from) {
                self.cluster.engine(from).drop_send(sending.id);
                self.dropped_sends += 1;
            }
        } else if !is_send && !self.receiving.is_empty() {
            let index = self.random.usize(0..self.receiving.len());
            let receiving = self.receiving.swap_remove(index);
            if self.is_alive(receiving.rank) {
                self.cluster.engine(receiving.rank).drop_receive(receiving.id);
                self.dropped_receives += 1;
            }
        }
    }

    /// Sends one more message from each rank to each, long and short, and receives it.
    pub(crate) fn still_passes(&mut self) {
        for from in 0..self.size() {
            for to in 0..self.size() {
                for length in [5, 20_000] {
                    let body = bytes_of(length, usize::try_from(length).expect("short"));
                    let engine = self.cluster.engine(from);
                    let sent =
                        engine.send(to, 0, 77, SendMode::Standard, Payload::Owned(body.clone()));
                    let sent = sent.expect("the send begins");
                    let pattern = Pattern { context: 0, source: Some(from), tag: Some(77) };
                    assert!(self.cluster.receive(to, pattern).1 == body, "from {from} to {to}");
                    self.cluster.finish(from, sent, &body).expect("sent");
                }
            }
        }
        self.cluster.settle();
        for engine in &self.cluster.engines {
            assert_eq!((engine.kept(), engine.has_all_left()), (0, true), "{}", engine.rank());
        }
    }

    /// Runs `count` random operations, and then continues until every message is received and nothing is left.
    pub(crate) fn run(&mut self, count: usize) -> Outcome {
        let mut left = count;
        for _ in 0..STEPS_MAX {
            if left > 0 && self.random.u32(0..3) > 0 {
                left -= 1;
                if self.random.bool() { self.send() } else { self.receive() }
            }
            if self.drops && self.random.u32(0..12) == 0 {
                self.drop_one();
            }
            if self.random.bool() {
                self.poll();
            }
            let is_quiet = (left == 0 || self.random.bool()) && !self.cluster.tick();
            if is_quiet && left == 0 {
                self.poll();
                if !self.cluster.tick() && self.clear_up() {
                    self.check();
                    let cancelled = self.messages.iter().filter(|one| one.is_cancelled).count();
                    let (messages, errors) = (self.receipts.len(), self.errors);
                    let dropped = self.dropped_sends + self.dropped_receives;
                    return Outcome { messages, errors, cancelled, dropped };
                }
            }
        }
        let sends: Vec<_> =
            self.sending.iter().map(|one| (one.number, &self.messages[one.number])).collect();
        let receives: Vec<_> =
            self.receiving.iter().map(|one| (one.rank, one.pattern, one.buffer.len())).collect();
        panic!("hangs with {left} to do, sends {sends:?} and receives {receives:?}");
    }

    /// Called once nothing happens any more. Cancels receives that no message fits, and posts some that
    /// any message fits. Returns whether nothing is left to do.
    fn clear_up(&mut self) -> bool {
        let mut matched = Vec::new();
        for receiving in std::mem::take(&mut self.receiving) {
            if self.cluster.engine(receiving.rank).cancel_receive(receiving.id)
                == CancelState::TooLate
            {
                matched.push(receiving);
            }
        }
        self.receiving = matched;
        let mut is_clear = self.receiving.is_empty();
        for rank in 0..self.size() {
            for context in 0..2 {
                let pattern = Pattern { context, source: None, tag: None };
                while self.is_alive(rank)
                    && let Some((id, _)) = self.cluster.engine(rank).matched_probe(pattern)
                {
                    is_clear = false;
                    self.posted += 1;
                    let (order, buffer) = (self.posted, Vec::new());
                    self.receiving.push(Receiving { rank, id, pattern, buffer, order });
                }
            }
        }
        if is_clear {
            assert!(self.sending.is_empty(), "sends that never end: {:?}", self.sending.len());
        }
        is_clear
    }

    fn check(&mut self) {
        // A dropped receive may have had a message; which one is unknown.
        let mut lost_max = self.dropped_receives;
        for (number, message) in self.messages.iter().enumerate() {
            let is_safe = self.is_alive(message.from) && self.is_alive(message.to);
            let expected = usize::from(!message.is_cancelled);
            assert!(message.receipts <= expected, "message {number}: {message:?}");
            if is_safe && !message.may_be_lost && message.receipts < expected {
                assert!(lost_max > 0, "message {number}: {message:?}");
                lost_max -= 1;
            }
        }
        self.receipts.sort_by_key(|receipt| receipt.order);
        for (index, late) in self.receipts.iter().enumerate() {
            let overtaken = &self.messages[late.number];
            for early in &self.receipts[..index] {
                let winner = &self.messages[early.number];
                let is_wrong = early.rank == late.rank
                    && winner.from == overtaken.from
                    && winner.context == overtaken.context
                    && late.number < early.number
                    && early.pattern.tag.is_none_or(|tag| tag == overtaken.tag)
                    && overtaken.length >= 4
                    && winner.length >= 4;
                assert!(!is_wrong, "message {} overtook {}", early.number, late.number);
            }
        }
        for rank in 0..self.size() {
            if self.is_alive(rank) {
                let engine = self.cluster.engine(rank);
                assert_eq!(engine.kept(), 0, "rank {rank} keeps something");
                assert!(engine.has_all_left(), "rank {rank} has something to send");
            }
        }
    }
}
