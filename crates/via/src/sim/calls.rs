//! The establishment and the end of connections: calls, answers, deadlines.
//!
//! ```text
//! client-server                          peer-to-peer (the NIC with the lower number answers)
//! caller            listener             higher               lower
//!   | Call  --------> | Requested          | Call  ----------> | kept until a VI waits for it
//!   | <-------- Agree | accept             | <---------- Agree | connect_peer
//!   | Agreed -------> | Connected          | Agreed ---------> | Connected
//! ```
//! Either side ends an attempt or a connection with `Over`.

use vigie_detect::Instant;

use super::{
    network::{NetworkState, NotifyPeer},
    objects::{ConnectAttempt, SimConnection},
    packet::{Caller, ConnectionId, NicIndex, PacketBody, SimEvent, SimPacket, ViEndpoint},
};
use crate::vi::{Connect, DisconnectReason, NicEvent, RequestId, ViEvent, ViId};

/// The most requests that a NIC keeps for its consumer; further ones are refused.
const REQUESTS_MAX: usize = 4096;

impl NetworkState {
    /// Makes the call of an idle VI.
    pub(super) fn call(&mut self, end: ViEndpoint, to: NicIndex, call: Connect<'_>) {
        let connection_id = self.begin_call(end, call.deadline);
        let Some(vi) = self.vi(end) else { return };
        vi.attempt = Some(ConnectAttempt::Called { connection_id, to });
        self.send_call(end, to, connection_id, call, false);
    }

    fn begin_call(&mut self, end: ViEndpoint, deadline: Instant) -> ConnectionId {
        let connection_id = self.next_connection_id();
        if let Some(vi) = self.vi(end) {
            vi.core.change(ViEvent::Connect);
        }
        if deadline < Instant::MAX {
            let expiry = SimEvent::Expire { nic: end.nic, vi: end.vi, connection_id };
            let expiry = self.schedule(deadline, expiry);
            if let Some(vi) = self.vi(end) {
                vi.expiry = Some(expiry);
            }
        }
        connection_id
    }

    fn send_call(
        &mut self,
        end: ViEndpoint,
        to: NicIndex,
        connection_id: ConnectionId,
        call: Connect<'_>,
        is_peer: bool,
    ) {
        let Some(attributes) = self.vi(end).map(|vi| vi.core.attributes) else { return };
        let caller = Caller { end, connection_id, attributes, greeting: call.greeting.to_vec() };
        let discriminator = call.discriminator.to_vec();
        let body = PacketBody::Call { caller, discriminator, is_peer };
        self.transmit(SimPacket { from: end, to, vi: None, connection_id, body });
    }

    /// Calls a NIC that makes the same call. The lower of the two answers; within one NIC, the later VI.
    pub(super) fn call_peer(&mut self, end: ViEndpoint, to: NicIndex, call: Connect<'_>) {
        let Connect { discriminator, greeting, .. } = call;
        let connection_id = self.begin_call(end, call.deadline);
        let Some(vi) = self.vi(end) else { return };
        vi.attempt = Some(ConnectAttempt::Rendezvous {
            connection_id,
            to,
            discriminator: discriminator.to_vec(),
            greeting: greeting.to_vec(),
        });

        if to < end.nic {
            self.send_call(end, to, connection_id, call, true);
        } else if to == end.nic {
            self.meet_on_one_nic(end, discriminator, greeting);
        } else {
            let requests = &mut self.nics[end.nic].peer_requests;
            let found = requests
                .iter()
                .position(|(what, caller)| what == discriminator && caller.end.nic == to);
            if let Some(found) = found {
                let (_, caller) = requests.remove(found);
                self.agree(end, caller, greeting);
            }
        }
    }

    fn meet_on_one_nic(&mut self, end: ViEndpoint, discriminator: &[u8], greeting: &[u8]) {
        let waiting = self.waiting_peer(end.nic, end.nic, discriminator, Some(end.vi));
        let Some((id, caller_greeting)) = waiting else { return };
        let other = ViEndpoint { nic: end.nic, vi: id };
        let Some(vi) = self.vi(other) else { return };
        let Some(attempt) = vi.attempt.as_ref() else { return };
        let connection_id = attempt.connection_id();
        // From now on it waits for this answer only.
        vi.attempt = Some(ConnectAttempt::Called { connection_id, to: end.nic });
        let attributes = vi.core.attributes;
        self.agree(
            end,
            Caller { end: other, connection_id, attributes, greeting: caller_greeting },
            greeting,
        );
    }

    /// Returns the VI of `nic` that waits for the same call from `of`, and its greeting.
    fn waiting_peer(
        &self,
        nic: NicIndex,
        of: NicIndex,
        discriminator: &[u8],
        except: Option<ViId>,
    ) -> Option<(ViId, Vec<u8>)> {
        self.nics[nic].vis.iter().find_map(|(id, vi)| match &vi.attempt {
            Some(ConnectAttempt::Rendezvous { to, discriminator: what, greeting, .. })
                if *to == of && what == discriminator && Some(*id) != except =>
            {
                Some((*id, greeting.clone()))
            }
            _ => None,
        })
    }

    /// Answers a call with a VI that is about to be connected.
    pub(super) fn agree(&mut self, end: ViEndpoint, caller: Caller, greeting: &[u8]) {
        let Some(vi) = self.vi(end) else { return };
        let fits = vi.core.attributes.reliability == caller.attributes.reliability;
        let body = if fits {
            PacketBody::Agree { greeting: greeting.to_vec() }
        } else {
            PacketBody::Over(DisconnectReason::Mismatch("another level of reliability"))
        };
        let attempt = ConnectAttempt::Agreed {
            connection_id: caller.connection_id,
            peer: caller.end,
            greeting: caller.greeting.clone(),
        };
        vi.attempt = Some(attempt);
        self.answer(end, &caller, body);
        if !fits {
            self.refuse(end, DisconnectReason::Mismatch("another level of reliability"));
        }
    }

    /// Sends an answer to a caller; `from` may name no VI.
    pub(super) fn answer(&mut self, from: ViEndpoint, caller: &Caller, body: PacketBody) {
        let to = caller.end.nic;
        self.transmit(SimPacket {
            from,
            to,
            vi: Some(caller.end.vi),
            connection_id: caller.connection_id,
            body,
        });
    }

    /// Handles a call.
    pub(super) fn handle_call(
        &mut self,
        nic: NicIndex,
        caller: Caller,
        discriminator: Vec<u8>,
        is_peer: bool,
    ) {
        if is_peer {
            match self.waiting_peer(nic, caller.end.nic, &discriminator, None) {
                Some((vi, greeting)) => self.agree(ViEndpoint { nic, vi }, caller, &greeting),
                None => self.nics[nic].peer_requests.push((discriminator, caller)),
            }
            return;
        }

        let nowhere = ViEndpoint { nic, vi: ViId(0) };
        let this = &mut self.nics[nic];
        if !this.objects.listens(&discriminator) {
            self.answer(nowhere, &caller, PacketBody::Over(DisconnectReason::NotListening));
        } else if this.requests.len() >= REQUESTS_MAX {
            self.answer(nowhere, &caller, PacketBody::Over(DisconnectReason::Rejected));
        } else {
            let request = RequestId(u64::from(this.objects.fresh()));
            let greeting = caller.greeting.clone();
            this.requests.insert(request, caller);
            self.announce(nic, NicEvent::Requested { request, discriminator, greeting });
        }
    }

    /// Handles the answer to a call: the caller is connected, and confirms.
    pub(super) fn agreed_to(
        &mut self,
        end: ViEndpoint,
        connection_id: ConnectionId,
        peer: ViEndpoint,
        greeting: Vec<u8>,
    ) {
        let Some(vi) = self.vi(end) else { return };
        let waits = matches!(
            &vi.attempt,
            Some(ConnectAttempt::Called { connection_id: own, .. } | ConnectAttempt::Rendezvous { connection_id: own, .. })
                if *own == connection_id
        );
        // A caller that no longer waits has already said so.
        if waits {
            self.establish(end, connection_id, peer, greeting);
            let vi = Some(peer.vi);
            self.transmit(SimPacket {
                from: end,
                to: peer.nic,
                vi,
                connection_id,
                body: PacketBody::Agreed,
            });
        }
    }

    /// Handles the caller's confirmation of the answer.
    pub(super) fn agreed(
        &mut self,
        end: ViEndpoint,
        connection_id: ConnectionId,
        from: ViEndpoint,
    ) {
        let Some(vi) = self.vi(end) else { return };
        match vi.attempt.take() {
            Some(ConnectAttempt::Agreed { connection_id: own, peer, greeting })
                if own == connection_id && peer == from =>
            {
                self.establish(end, connection_id, peer, greeting);
            }
            other => vi.attempt = other,
        }
    }

    fn establish(
        &mut self,
        end: ViEndpoint,
        connection_id: ConnectionId,
        peer: ViEndpoint,
        greeting: Vec<u8>,
    ) {
        self.end_attempt(end);
        let Some(vi) = self.vi(end) else { return };
        vi.connection = Some(SimConnection { connection_id, peer, sent: 0, newest: 0 });
        vi.is_halted = false;
        vi.core.change(ViEvent::Establish);
        self.announce(end.nic, NicEvent::Connected { vi: end.vi, greeting });
    }

    /// Removes an attempt and its deadline.
    fn end_attempt(&mut self, end: ViEndpoint) -> Option<ConnectAttempt> {
        let vi = self.vi(end)?;
        let (attempt, expiry) = (vi.attempt.take(), vi.expiry.take());
        if let Some(expiry) = expiry {
            self.network.cancel_call(expiry);
        }
        attempt
    }

    /// Returns a VI that waited for a connection to idle.
    pub(super) fn refuse(&mut self, end: ViEndpoint, reason: DisconnectReason) {
        self.end_attempt(end);
        let Some(vi) = self.vi(end) else { return };
        vi.core.change(ViEvent::Refuse);
        self.announce(end.nic, NicEvent::Refused { vi: end.vi, reason });
    }

    pub(super) fn expire(&mut self, nic: NicIndex, vi: ViId, connection_id: ConnectionId) {
        let end = ViEndpoint { nic, vi };
        let Some(attempt) = self.vi(end).and_then(|vi| vi.attempt.clone()) else { return };
        if attempt.connection_id() == connection_id {
            self.leave(end, &attempt, DisconnectReason::TimedOut);
            self.refuse(end, DisconnectReason::TimedOut);
        }
    }

    /// Tells the other side that this side gives up an attempt.
    fn leave(&mut self, end: ViEndpoint, attempt: &ConnectAttempt, reason: DisconnectReason) {
        let (to, vi) = match attempt {
            ConnectAttempt::Called { to, .. } | ConnectAttempt::Rendezvous { to, .. } => {
                (*to, None)
            }
            ConnectAttempt::Agreed { peer, .. } => (peer.nic, Some(peer.vi)),
        };
        let body = PacketBody::Over(reason);
        self.transmit(SimPacket {
            from: end,
            to,
            vi,
            connection_id: attempt.connection_id(),
            body,
        });
    }

    /// Handles the end of an attempt or a connection by the other side.
    pub(super) fn over(
        &mut self,
        nic: NicIndex,
        from: ViEndpoint,
        vi: Option<ViId>,
        over: ConnectionId,
        reason: DisconnectReason,
    ) {
        let is_named = vi.is_some();
        let this = &mut self.nics[nic];
        let is_it = |caller: &Caller| caller.connection_id == over && caller.end == from;
        this.requests.retain(|_, caller| !is_it(caller));
        this.peer_requests.retain(|(_, caller)| !is_it(caller));
        let ids: Vec<ViId> = vi.map_or_else(|| this.vis.keys().copied().collect(), |vi| vec![vi]);
        for id in ids {
            let end = ViEndpoint { nic, vi: id };
            let Some(vi) = self.vi(end) else { continue };
            let is_peer = |connection: SimConnection| {
                connection.connection_id == over && connection.peer == from
            };
            if vi.connection.is_some_and(is_peer) {
                self.break_vi(end, reason, NotifyPeer::No);
                return;
            }

            match &vi.attempt {
                Some(ConnectAttempt::Agreed { connection_id, peer, .. })
                    if *connection_id == over && *peer == from =>
                {
                    self.refuse(end, reason);
                    return;
                }
                Some(attempt) if attempt.connection_id() == over && is_named => {
                    // The answerer changed its mind before this side was connected.
                    let is_late = reason == DisconnectReason::Disconnected;
                    self.refuse(end, if is_late { DisconnectReason::Rejected } else { reason });
                    return;
                }
                _ => {}
            }
        }
    }

    pub(super) fn disconnect(&mut self, end: ViEndpoint) {
        let Some(vi) = self.vi(end) else { return };
        let connection = vi.connection.take();
        if let Some(attempt) = self.end_attempt(end) {
            self.leave(end, &attempt, DisconnectReason::Disconnected);
        }
        if let Some(connection) = connection {
            self.transmit(connection.packet(end, PacketBody::Over(DisconnectReason::Disconnected)));
        }
        self.flush(end);
        if let Some(vi) = self.vi(end) {
            vi.core.change(ViEvent::Disconnect);
        }
    }
}
