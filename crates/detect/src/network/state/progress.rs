//! The way of the network from event to event.

use super::{
    super::{
        event::{Act, CallId, Happening, NetworkEvent},
        sockets::SocketKind,
        tcp::Connection,
        trace::{DropReason, TraceDetail, TraceEventKind},
    },
    NetworkState,
};
use crate::{clock::Instant, detector::Ready, sync::Ordering};

/// The progress of the network.
pub(in crate::network) struct NetworkProgress {
    /// The last instant at which something has happened.
    pub(in crate::network) last: Option<Instant>,
    /// The number of such instants.
    pub(in crate::network) steps: u32,
    /// To be called once the state is unlocked: it may plan more.
    pub(in crate::network) act: Option<Act>,
}

/// The result of a step of the network.
pub(in crate::network) enum NetworkStep {
    /// No event is due.
    Nothing,
    Done,
    /// To be called once the state is unlocked: it may plan more.
    Call(Act),
}

impl NetworkState {
    pub(in crate::network) fn next_event(&mut self) -> Option<Instant> {
        loop {
            let first = self.events.first();
            if let Some(&(at, id)) = self.acks.front()
                && first.is_none_or(|(first, _)| at < first)
            {
                if self.connection(id).and_then(Connection::ack_at) == Some(at) {
                    return Some(at);
                }
                // It was sent meanwhile.
                self.acks.pop_front();
                continue;
            }
            let (at, first) = first?;
            // The clock does not stop for a timer that was set anew, nor for a call that was cancelled.
            if let &Happening::Timer(id) = first
                && !self.is_due(id, at)
            {
                self.events.pop();
                self.retime(id, at);
                continue;
            }
            if matches!(first, Happening::Call(call) if call.is_cancelled()) {
                self.events.pop();
                continue;
            }
            return Some(at);
        }
    }

    pub(in crate::network) fn connection(&self, id: u64) -> Option<&Connection> {
        match &self.sockets.get(id)?.kind {
            SocketKind::Stream(connection) => Some(connection),
            _ => None,
        }
    }

    /// Returns whether a connection's timer of the time `at` has something to do.
    fn is_due(&self, id: u64, at: Instant) -> bool {
        let deadline = self.connection(id).and_then(Connection::deadline);
        deadline.is_some_and(|deadline| deadline <= at)
            && self.sockets.get(id).is_some_and(|socket| socket.timer_at == Some(at))
    }

    /// The timer of the time `at` is used up: sets the next one.
    fn retime(&mut self, id: u64, at: Instant) {
        if let Some(socket) = self.sockets.get_mut(id)
            && socket.timer_at == Some(at)
        {
            socket.timer_at = None;
            self.settle(id);
        }
    }

    /// Something may have to happen at `at`.
    pub(super) fn need_attention(&self, at: Instant) {
        if at.as_nanos() < self.attention.load(Ordering::Relaxed) {
            self.attention.store(at.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Takes what was announced, and returns the time of the next event.
    pub(in crate::network) fn note_attention(&self) {
        let ack = self.acks.front().map(|&(at, _)| at);
        let first = self.events.first_at().into_iter().chain(ack).min();
        self.attention.store(first.map_or(u64::MAX, Instant::as_nanos), Ordering::Relaxed);
    }

    /// Returns whether something may have to happen up to `now`.
    #[inline]
    pub(in crate::network) fn has_due(&self, now: Instant) -> bool {
        self.events.first_at().is_some_and(|at| at <= now)
            || self.acks.front().is_some_and(|&(at, _)| at <= now)
    }

    /// Carries out what happens up to `now`, or until a call is to be made.
    pub(in crate::network) fn advance(&mut self, now: Instant) -> Option<Act> {
        while self.has_due(now)
            && let Some(at) = self.next_event()
            && at <= now
        {
            let act = self.happen_next(at);
            if act.is_some() {
                return act;
            }
        }
        self.now = self.now.max(now);
        None
    }

    /// Carries out what happens until `until` is over, until the end of an instant at which readiness is announced, of `steps_max`
    /// instants, or until a call is to be made.
    pub(in crate::network) fn advance_until(
        &mut self,
        until: Option<Instant>,
        steps_max: u32,
    ) -> NetworkProgress {
        let mut done = NetworkProgress { last: None, steps: 0, act: None };
        while let Some(at) = self.next_event() {
            if at > self.now || done.last.is_none() {
                let is_over = until.is_some_and(|until| at > until);
                if is_over || done.steps >= steps_max || !self.announcing.is_empty() {
                    break;
                }
                done.steps += 1;
            }
            done.act = self.happen_next(at);
            done.last = Some(self.now);
            if done.act.is_some() {
                return done;
            }
        }
        if let Some(until) = until.filter(|_| self.announcing.is_empty() && done.steps < steps_max)
        {
            self.now = self.now.max(until);
        }
        done
    }

    /// Carries out the next event, if it is due at `now`.
    pub(in crate::network) fn step(&mut self, now: Instant) -> NetworkStep {
        match self.next_event().filter(|at| *at <= now) {
            None => NetworkStep::Nothing,
            Some(at) => self.happen_next(at).map_or(NetworkStep::Done, NetworkStep::Call),
        }
    }

    /// Carries out the next event, at its time `at`, or returns the call that it is.
    fn happen_next(&mut self, at: Instant) -> Option<Act> {
        self.now = self.now.max(at);
        if self.events.first_at().is_none_or(|first| first > at) {
            self.send_ack();
            return None;
        }
        let event = self.events.pop()?;
        let Happening::Call(call) = event.happening else {
            self.happen(event);
            return None;
        };
        let (digest, act) = call.into_parts();
        self.note(at.as_nanos());
        self.note(digest);
        act
    }

    pub(in crate::network) fn plan_call(&mut self, at: Instant, digest: u64, act: Act) -> CallId {
        let (at, number) = (at.max(self.now), self.number());
        self.need_attention(at);
        self.events.push_call(at, number, digest, act)
    }

    pub(in crate::network) fn cancel(&mut self, id: CallId) -> Option<Act> {
        self.events.cancel(id)
    }

    pub(in crate::network) fn fork_random(&mut self) -> fastrand::Rng {
        self.random.fork()
    }

    /// The first ACK has waited for long enough.
    fn send_ack(&mut self) {
        let Some((at, id)) = self.acks.pop_front() else { return };
        let Some(node) = self.sockets.get(id).map(|socket| socket.node) else { return };
        self.note(at.as_nanos());
        self.note(node.index() as u64);
        self.with_connection(id, Connection::expire);
    }

    fn happen(&mut self, NetworkEvent { at, number, node, happening }: NetworkEvent) {
        self.note(at.as_nanos());
        self.note(node.index() as u64);
        if self.log.is_recording(TraceDetail::Events)
            && let Some(what) = happening.info()
        {
            let packet = number;
            let is_up = self.nodes[node.index()].is_up;
            self.log.note(at, node, || match is_up {
                true => TraceEventKind::Delivered { packet },
                false => {
                    let (to, packet, reason) = (node, Some(packet), DropReason::Off);
                    TraceEventKind::Dropped { packet, to, what, reason }
                }
            });
        }
        if !self.nodes[node.index()].is_up {
            return;
        }
        match happening {
            Happening::Segment(segment) => {
                self.note(segment.bytes.len() as u64 ^ (segment.kind as u64) << 32);
                self.deliver(node, segment);
            }
            Happening::Datagram(packet) => {
                self.note(packet.bytes.len() as u64);
                self.deliver_datagram(node, *packet);
            }
            Happening::Unreachable(id) => {
                let socket = self.sockets.get_mut(id);
                if let Some(SocketKind::Datagram(datagrams)) = socket.map(|it| &mut it.kind) {
                    datagrams.refuse();
                    self.announce(id, Ready::READABLE | Ready::WRITABLE | Ready::ERROR);
                }
            }
            Happening::Timer(id) => {
                self.with_connection(id, Connection::expire);
                self.retime(id, at);
            }
            // See `happen_next`.
            Happening::Call(_) => {}
        }
    }
}
