//! The failure of a rank: everything that waits for it ends in an error that names it.

use super::{
    EngineEvent, MessageEngine, RequestError,
    matching::Pattern,
    peer::PeerLink,
    request::{ReceiveState, RequestEntry, Status},
};
use crate::vi::{DisconnectReason, Provider};

/// The most arrivals that are taken before a receive fails.
const ARRIVALS_MAX: usize = 4096;

impl<P: Provider> MessageEngine<P> {
    /// Cuts off a peer that broke the protocol, and no other.
    #[cold]
    pub(super) fn peer_fault(&mut self, rank: u32, what: &'static str) {
        self.peer_failed(rank, DisconnectReason::PeerFault(what));
    }

    /// Records that a rank has failed. Sends to it and receives from it end in [`RequestError::PeerFailed`],
    /// as do posted receives from any source, since they may have waited for it. If none of a context is posted, the
    /// next one that finds no message ends so; once a context was told, its receives wait for the
    /// remaining ranks. Messages that had wholly arrived can still be received. Does nothing if the rank has
    /// failed before.
    #[cold]
    pub fn peer_failed(&mut self, rank: u32, reason: DisconnectReason) {
        let own = self.rank;
        let Some(peer) = self.peers.get_mut(rank as usize).filter(|_| rank != own) else { return };
        if peer.failed.is_some() {
            return;
        }

        peer.failed = Some(reason);
        self.broken.retain(|broken| broken.rank != rank);
        self.failures.push(rank);
        peer.outbox.clear();
        peer.pumps.clear();
        peer.controls.clear();
        peer.stalled.clear();
        peer.paused.clear();
        peer.streams_in.clear();
        (peer.announcements_in, peer.announcements_out) = Default::default();

        let vi = match &peer.link {
            PeerLink::Reliable(direct) => {
                Some((direct.vi, &direct.area, &direct.control, direct.staged))
            }
            PeerLink::Unreliable(lossy) => {
                let own = &lossy.own;
                Some((own.vi, &own.area, &own.control, own.staged))
            }
            PeerLink::Prepared(own) => Some((own.vi, &own.area, &own.control, own.staged)),
            PeerLink::Absent | PeerLink::Loopback(_) => None,
        };
        if let Some((vi, area, control, staged)) = vi {
            // Whatever this returns, the peer is now out of reach.
            drop(self.nic.disconnect(vi));
            for memory in [Some(area.handle), Some(control.handle), staged].into_iter().flatten() {
                drop(self.nic.deregister(memory));
            }
        }
        self.end_approach(rank);

        self.events.push_back(EngineEvent::Failed { rank, reason });
        let error = RequestError::PeerFailed { rank, reason };
        let incomplete: Vec<u64> = self
            .messages
            .keys()
            .filter(|key| {
                self.messages.get(*key).is_some_and(|message| {
                    message.label.source == rank && !message.has_all_arrived()
                })
            })
            .collect();
        for key in incomplete {
            self.fail_message(key, error);
        }
        self.fail_requests(rank, error);
    }

    fn fail_requests(&mut self, rank: u32, error: RequestError) {
        for key in self.requests.keys().collect::<Vec<_>>() {
            match self.requests.get_mut(key) {
                Some(RequestEntry::Send(send)) if send.peer == rank => {
                    send.stage = super::request::SendPhase::Sent;
                    if send.result.is_none() {
                        self.end_send(key, Err(error));
                    } else if send.is_detached {
                        self.requests.remove(key);
                    }
                }
                Some(RequestEntry::Receive(receive)) => {
                    let ReceiveState::Posted { node } = receive.state else { continue };
                    if receive.pattern.source.is_none_or(|source| source == rank) {
                        receive.state = ReceiveState::Failed(error);
                        self.posted.remove(node);
                        self.announce(key);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns why no message that fits can arrive any more; `None` if one can.
    pub(super) fn hopeless(&self, pattern: &Pattern) -> Option<RequestError> {
        let failed = |rank: u32| {
            let reason = self.peers.get(rank as usize)?.failed?;
            Some(RequestError::PeerFailed { rank, reason })
        };
        match pattern.source {
            Some(rank) if rank as usize >= self.peers.len() => {
                Some(RequestError::NoSuchRank { rank, size: self.size() })
            }
            Some(rank) => failed(rank),
            None => {
                let mut others = (0..self.size()).filter(|rank| *rank != self.rank).peekable();
                others.peek()?;
                others.map(failed).collect::<Option<Vec<_>>>()?.pop()
            }
        }
    }

    /// Returns the error of the first failure that a context does not know yet, given that it knows the first `known`.
    fn unknown(&self, known: usize) -> Option<RequestError> {
        let rank = *self.failures.get(known)?;
        Some(RequestError::PeerFailed { rank, reason: self.failure(rank)? })
    }

    /// Returns how many of the failures, from the first on, a context has been told.
    pub(crate) fn told_count(&self, context: u16) -> usize {
        self.told.get(&context).copied().unwrap_or_default()
    }

    /// Returns why a new receive must not wait: no message can arrive any more, or its context does not know yet that a rank that it may
    /// wait for has failed. A message that has arrived comes first.
    pub(super) fn not_to_wait(&self, pattern: &Pattern) -> Option<RequestError> {
        self.gave_up(pattern, self.told_count(pattern.context))
    }

    /// Returns why a probe whose context knew `known` failures when it began must end: for the same reasons as a posted receive with
    /// its pattern.
    fn gave_up(&self, pattern: &Pattern, known: usize) -> Option<RequestError> {
        let news = if pattern.source.is_none() { self.unknown(known) } else { None };
        news.or_else(|| self.hopeless(pattern))
    }

    /// Returns a message that fits, after what has arrived was taken. It does not call [`progress`](Self::progress), which is the server's: the NIC
    /// would no longer be armed while the server sleeps.
    #[cold]
    pub(super) fn look_again(&mut self, pattern: &Pattern) -> Option<u64> {
        for _ in 0..ARRIVALS_MAX {
            let found = self.find_unexpected(pattern);
            if found.is_some() || !self.step_aside() {
                return found;
            }
        }
        self.find_unexpected(pattern)
    }

    /// Probes for a caller that waits: see [`told_count`](Self::told_count). Pass an error that is returned to [`tell`](Self::tell).
    pub(crate) fn probe_or_fail(
        &mut self,
        pattern: Pattern,
        known: usize,
    ) -> Option<Result<Status, RequestError>> {
        if let Some(status) = self.probe(pattern) {
            return Some(Ok(status));
        }
        self.gave_up(&pattern, known)?;
        if let Some(key) = self.look_again(&pattern) {
            return self.messages.get(key).map(|message| Ok(message.status()));
        }
        self.gave_up(&pattern, known).map(Err)
    }

    /// Records that a program gets this error: from then on, other receives of the context wait for the remaining ranks.
    #[cold]
    pub(crate) fn tell(&mut self, pattern: &Pattern, error: RequestError) {
        if let RequestError::PeerFailed { rank, .. } = error
            && pattern.source.is_none()
            && let Some(index) = self.failures.iter().position(|failed| *failed == rank)
        {
            let told = self.told.entry(pattern.context).or_default();
            *told = (*told).max(index + 1);
        }
    }

    /// Returns the ranks that have failed, in the order in which the failures were found, without the first
    /// `known`. The context has then been told all.
    pub(crate) fn tell_failures(&mut self, context: u16, known: usize) -> Vec<u32> {
        if !self.failures.is_empty() {
            self.told.insert(context, self.failures.len());
        }
        self.failures.get(known..).unwrap_or_default().to_vec()
    }

    /// Returns why a rank has failed, if it has.
    #[must_use]
    pub fn failure(&self, rank: u32) -> Option<DisconnectReason> {
        self.peers.get(rank as usize)?.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::{Control, EngineConfig, incoming::CONTROLS_WAITING_MAX},
        sim::{FaultPlan, SimNetwork},
    };

    /// Goal: a peer that keeps asking and takes no answer is cut off before it uses all memory. Method: as
    /// many answers as are kept, to a rank that takes none, and one more.
    #[test]
    fn answers_that_nobody_takes_are_bounded() {
        let network = SimNetwork::new(1, FaultPlan::reliable());
        let config = EngineConfig { unexpected_messages_max: 0, ..EngineConfig::default() };
        let mut engine = MessageEngine::new(network.nic(), 0, 3, config).expect("an engine");
        for _ in 0..CONTROLS_WAITING_MAX {
            engine.queue_control(1, Control::Cancelled { request: 1, is_cancelled: false });
        }
        assert_eq!(
            (engine.failure(1), engine.peers[1].controls.len()),
            (None, CONTROLS_WAITING_MAX)
        );
        engine.queue_control(1, Control::Cancelled { request: 1, is_cancelled: false });
        assert!(matches!(engine.failure(1), Some(DisconnectReason::PeerFault(_))));
        assert!(engine.peers[1].controls.is_empty());
        assert_eq!(engine.failure(2), None, "no other rank fails");
    }
}
