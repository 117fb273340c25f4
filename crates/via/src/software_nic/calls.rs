//! The establishment and the end of connections.
//!
//! ```text
//! caller              answerer
//!   | Hello  ------------> | no state is kept
//!   | <-------- Challenge  | a cookie made of the caller's path and name, and the time
//!   | Call (cookie) -----> | Requested, or kept until a VI waits for it
//!   | <------------- Hold  | it has arrived
//!   | <------------ Agree  | accept, or connect_peer
//!   | Agreed (or data) --> | Connected
//! ```
//! All of them carry a tag under the world's secret. A packet without a valid tag is not answered, and
//! no answer is longer than its question. A replayed Hello yields a cookie that its sender does not see;
//! a replayed Call comes from another path, or too late, or is already known. Connection names are drawn
//! anew for each attempt.
//!
//! Peer to peer, the NIC with the lower name answers. Either side ends an attempt or a connection with
//! `Over`, which is repeated until a `Heard` answers it, or up to a limit.

use super::{
    attempt::{Caller, ConnectAttempt, OutgoingCall, PendingClose, RETRY_MAX, RETRY_MIN, Retry},
    congestion::{MILLISECOND, Nanos, RoundTrip},
    connection::{ConnectionParameters, SoftwareConnection},
    engine::{NotifyPeer, SoftwareEngine, TimerEvent, nanos},
    packet::{CallPacket, CloseNotice, ControlPacket, PACKET_BYTES_MIN},
    wire::Path,
};
use crate::auth::{TAG_BYTES, is_same};
use crate::vi::{DisconnectReason, NicEvent, RequestId, ViEvent, ViId};

/// The most requests that a NIC keeps for its consumer, and the most callers that it remembers as heard;
/// further callers are refused.
const REQUESTS_MAX: usize = 4096;

/// The minimum lifetime of a cookie.
const COOKIE_LIFE: Nanos = 5_000 * MILLISECOND;

/// The interval at which a held call is repeated, in case the answerer has forgotten it.
const HELD_RETRY: Nanos = 1_000 * MILLISECOND;

/// The number of times that an end is announced.
const CLOSE_TRIES: u32 = 10;

/// The arguments of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectRequest<'a, P> {
    pub(super) path: P,
    pub(super) nic: u64,
    pub(super) discriminator: &'a [u8],
    pub(super) greeting: &'a [u8],
    pub(super) expires_at: Nanos,
}

impl<P: Path> SoftwareEngine<P> {
    // -------------------------------------------------------------- calls

    /// Makes the call of an idle VI.
    pub(super) fn call(
        &mut self,
        now: Nanos,
        id: ViId,
        wanted: ConnectRequest<'_, P>,
        is_peer: bool,
    ) {
        let ConnectRequest { path, nic, discriminator, greeting, expires_at } = wanted;
        let name = self.names.fresh();
        let Some(vi) = self.vis.get_mut(&id) else { return };
        vi.core.change(ViEvent::Connect);
        vi.attempt = Some(ConnectAttempt::Calling(Box::new(OutgoingCall {
            path,
            nic,
            name,
            cookie: None,
            is_held: false,
            is_peer,
            discriminator: discriminator.to_vec(),
            greeting: greeting.to_vec(),
            expires_at,
            retry: Retry::new(now),
            round_trip: RoundTrip::new(),
        })));

        self.names_of.insert(name, id);
        self.retransmit_call(now, id);
        self.set_timer(id);
    }

    /// Calls a NIC that makes the same call. The one with the lower name answers; within one NIC, the
    /// earlier VI.
    pub(super) fn call_peer(&mut self, now: Nanos, id: ViId, wanted: ConnectRequest<'_, P>) {
        let is_own = wanted.nic == self.nic;
        let waits = is_own && self.meeting(self.nic, wanted.discriminator).is_some();
        if wanted.nic < self.nic || waits {
            self.call(now, id, wanted, true);
            return;
        }

        let is_it = |caller: &Caller<P>| caller.nic == wanted.nic;
        let waiting = self
            .peer_requests
            .iter()
            .position(|(what, caller)| what == wanted.discriminator && is_it(caller));
        let Some(vi) = self.vis.get_mut(&id) else { return };
        vi.core.change(ViEvent::Connect);
        if let Some(at) = waiting {
            let (_, caller) = self.peer_requests.remove(at);
            self.answer(now, id, caller, wanted.greeting);
            return;
        }

        vi.attempt = Some(ConnectAttempt::Meeting {
            nic: wanted.nic,
            discriminator: wanted.discriminator.to_vec(),
            greeting: wanted.greeting.to_vec(),
            expires_at: wanted.expires_at,
        });

        self.set_timer(id);
    }

    /// Returns the VI that waits for that call from NIC `from`, and its greeting.
    fn meeting(&self, from: u64, what: &[u8]) -> Option<(ViId, Vec<u8>)> {
        self.vis.values().find_map(|vi| match &vi.attempt {
            Some(ConnectAttempt::Meeting { nic, discriminator, greeting, .. })
                if *nic == from && discriminator == what =>
            {
                Some((vi.core.id, greeting.clone()))
            }
            _ => None,
        })
    }

    /// Sends, or repeats, the packet whose answer an attempt waits for.
    fn retransmit_call(&mut self, now: Nanos, id: ViId) {
        let (own_nic, own_window) = (self.nic, self.own_window());
        let is_tagged = self.config.is_tagged;
        let Some(vi) = self.vis.get(&id) else { return };
        let (path, control) = match (&vi.attempt, &vi.connection) {
            (Some(ConnectAttempt::Calling(calling)), _) => {
                let (to_nic, from_nic) = (calling.nic, own_nic);
                let left = calling.expires_at.saturating_sub(now) / MILLISECOND;
                let control = match calling.cookie {
                    None => ControlPacket::Hello { to_nic, from_nic, caller: calling.name },
                    Some(cookie) => ControlPacket::Call(CallPacket {
                        to_nic,
                        from_nic,
                        caller: calling.name,
                        cookie,
                        is_peer: calling.is_peer,
                        is_tagged,
                        level: vi.core.attributes.reliability,
                        timeout_ms: u32::try_from(left).unwrap_or(u32::MAX),
                        window: own_window,
                        discriminator: calling.discriminator.clone(),
                        greeting: calling.greeting.clone(),
                    }),
                };
                (calling.path, control)
            }
            (Some(ConnectAttempt::Answered { greeting, .. }), Some(connection)) => {
                let (caller, answerer) = (connection.peer, connection.own);
                let greeting = greeting.clone();
                let window = own_window;
                (connection.path, ControlPacket::Agree { caller, answerer, window, greeting })
            }
            _ => return,
        };

        self.send(path, &control);
    }

    /// An attempt is due: repeats its packet, or gives up.
    pub(super) fn expire_attempt(&mut self, now: Nanos, id: ViId) {
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let Some(attempt) = vi.attempt.as_mut() else { return };
        if attempt.expires_at() <= now {
            self.leave(now, id, DisconnectReason::TimedOut);
            self.refuse(id, DisconnectReason::TimedOut);
            return;
        }

        let is_due = match attempt {
            ConnectAttempt::Calling(calling) if calling.retry.at <= now => {
                calling.retry.again(now);
                if calling.is_held {
                    calling.retry.at = now + HELD_RETRY;
                } else if calling.retry.count % 8 == 7 {
                    // The cookie may be stale.
                    calling.cookie = None;
                }
                true
            }
            ConnectAttempt::Answered { retry, .. } if retry.at <= now => {
                retry.again(now);
                true
            }
            _ => false,
        };
        if is_due {
            self.retransmit_call(now, id);
        }
    }

    /// Tells the other side that this side gives up an attempt.
    pub(super) fn leave(&mut self, now: Nanos, id: ViId, reason: DisconnectReason) {
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let over = match (vi.attempt.take(), &vi.connection) {
            (Some(ConnectAttempt::Calling(calling)), _) => {
                self.names_of.remove(&calling.name);
                let from = calling.name;
                // An answerer that has not even received a Hello need not be told.
                Some((calling.path, CloseNotice { to: 0, from, reason, failed: None }))
                    .filter(|_| calling.cookie.is_some())
            }
            (Some(ConnectAttempt::Answered { .. }), Some(connection)) => {
                let (to, from) = (connection.peer, connection.own);
                let path = connection.path;
                self.names_of.remove(&from);
                vi.connection = None;
                Some((path, CloseNotice { to, from, reason, failed: None }))
            }
            _ => None,
        };
        if let Some((path, over)) = over {
            self.part(now, path, over);
        }
    }

    /// Returns a VI that waited for a connection to idle.
    fn refuse(&mut self, id: ViId, reason: DisconnectReason) {
        let Some(vi) = self.vis.get_mut(&id) else { return };
        if let Some(ConnectAttempt::Calling(calling)) = vi.attempt.take() {
            self.names_of.remove(&calling.name);
        }
        if let Some(connection) = vi.connection.take() {
            self.names_of.remove(&connection.own);
        }
        vi.core.change(ViEvent::Refuse);
        self.events.push_back(NicEvent::Refused { vi: id, reason });
    }

    // -------------------------------------------------------------- ends

    /// Announces an end until it is acknowledged.
    pub(super) fn part(&mut self, now: Nanos, path: P, over: CloseNotice) {
        self.send(path, &ControlPacket::Over(over));
        let key = (over.from, over.to);
        if self.pending_closes.insert(key, PendingClose { path, over, tries: 0 }).is_none() {
            self.set(now + RETRY_MIN, TimerEvent::Close(key.0, key.1));
        }
    }

    pub(super) fn expire_close(&mut self, now: Nanos, key: (u64, u64)) {
        let Some(parting) = self.pending_closes.get_mut(&key) else { return };
        parting.tries += 1;
        let PendingClose { path, over, tries } = *parting;
        if tries >= CLOSE_TRIES {
            self.pending_closes.remove(&key);
            return;
        }
        self.send(path, &ControlPacket::Over(over));
        let pause = (RETRY_MIN << tries).min(RETRY_MAX);
        self.set(now + pause, TimerEvent::Close(key.0, key.1));
    }

    /// Handles a notice that the other side has ended an attempt or a connection.
    fn over(&mut self, now: Nanos, from: P, over: CloseNotice) {
        self.send(from, &ControlPacket::Heard { to: over.from, from: over.to });
        let named = self.names_of.get(&over.to).copied();
        let id = named.or_else(|| {
            // A caller that has not received the answer knows only its own name.
            self.requests.retain(|_, caller| caller.name != over.from);
            self.peer_requests.retain(|(_, caller)| caller.name != over.from);
            self.remember(now, over.from);
            let is_it = |vi: &&super::vi::SoftwareVi<P>| {
                matches!(vi.attempt, Some(ConnectAttempt::Answered { .. }))
                    && vi.connection.as_ref().is_some_and(|it| it.peer == over.from)
            };
            (over.to == 0 && over.from != 0)
                .then(|| self.vis.values().find(is_it).map(|vi| vi.core.id))
                .flatten()
        });

        let Some(vi) = id.and_then(|id| self.vis.get(&id)) else { return };
        let id = vi.core.id;
        // The answerer changed its mind before this side was connected.
        let early = |reason| {
            if reason == DisconnectReason::Disconnected {
                DisconnectReason::Rejected
            } else {
                reason
            }
        };
        let late = |reason| {
            if reason == DisconnectReason::Rejected {
                DisconnectReason::Disconnected
            } else {
                reason
            }
        };
        match (&vi.attempt, &vi.connection) {
            (Some(ConnectAttempt::Calling(_)), _) => self.refuse(id, early(over.reason)),
            (Some(_), Some(connection)) if connection.peer == over.from => {
                self.refuse(id, over.reason);
            }
            (None, Some(connection)) if connection.peer == over.from => {
                self.break_vi(now, id, late(over.reason), over.failed, NotifyPeer::No);
            }
            _ => {}
        }
    }

    // -------------------------------------------------------------- arrivals

    /// Takes a packet whose tag was valid.
    pub(super) fn receive_control(&mut self, now: Nanos, from: P, control: ControlPacket) {
        match control {
            ControlPacket::Hello { to_nic, caller, .. } => self.hello(now, from, to_nic, caller),
            ControlPacket::Challenge { caller, cookie } => {
                self.challenged(now, from, caller, cookie)
            }
            ControlPacket::Call(call) => self.called(now, from, call),
            ControlPacket::Hold { caller } => {
                if let Some(calling) = self.calling(caller) {
                    calling.is_held = true;
                    calling.retry.at = now + HELD_RETRY;
                }
            }
            ControlPacket::Agree { caller, answerer, window, greeting } => {
                self.answered(now, from, caller, answerer, window, greeting);
            }
            ControlPacket::Agreed { caller, answerer } => {
                let id = self.names_of.get(&answerer).copied();
                let is_it = |id: &ViId| {
                    let vi = self.vis.get(id);
                    vi.and_then(|vi| vi.connection.as_ref()).is_some_and(|it| it.peer == caller)
                };
                if let Some(id) = id.filter(is_it) {
                    self.agreed(now, id);
                }
            }
            ControlPacket::Over(over) => self.over(now, from, over),
            ControlPacket::Heard { to, from } => {
                self.pending_closes.remove(&(to, from));
            }
        }
    }

    fn calling(&mut self, name: u64) -> Option<&mut OutgoingCall<P>> {
        let id = self.names_of.get(&name)?;
        match self.vis.get_mut(id)?.attempt.as_mut()? {
            ConnectAttempt::Calling(calling) => Some(calling),
            _ => None,
        }
    }

    fn hello(&mut self, now: Nanos, from: P, to_nic: u64, caller: u64) {
        if to_nic != self.nic {
            // The Hello is for a NIC that had this path before.
            let reason = DisconnectReason::NotListening;
            self.send(
                from,
                &ControlPacket::Over(CloseNotice { to: caller, from: 0, reason, failed: None }),
            );
            return;
        }
        let cookie = self.names.cookie(&from.to_bytes(), caller, now / COOKIE_LIFE);
        self.send(from, &ControlPacket::Challenge { caller, cookie });
    }

    fn challenged(&mut self, now: Nanos, from: P, caller: u64, cookie: [u8; TAG_BYTES]) {
        let Some(id) = self.names_of.get(&caller).copied() else { return };
        let Some(calling) = self.calling(caller) else { return };
        if calling.path != from || calling.cookie.is_some() {
            return;
        }
        if let Some(found) = calling.retry.measured(now) {
            calling.round_trip.measure(found, 0);
        }
        calling.cookie = Some(cookie);
        calling.retry = Retry::new(now);
        self.retransmit_call(now, id);
        self.set_timer(id);
    }

    /// Remembers a caller. Returns whether it is new.
    fn remember(&mut self, now: Nanos, caller: u64) -> bool {
        self.sweep_later(now);
        self.seen_calls.insert(caller, now + 3 * COOKIE_LIFE).is_none()
    }

    /// Handles a call.
    fn called(&mut self, now: Nanos, from: P, call: CallPacket) {
        let epoch = now / COOKIE_LIFE;
        let is_right =
            |epoch| is_same(&self.names.cookie(&from.to_bytes(), call.caller, epoch), &call.cookie);
        if call.to_nic != self.nic || !(is_right(epoch) || is_right(epoch.wrapping_sub(1))) {
            self.counters.packets_refused += 1;
            return;
        }

        if self.called_again(now, from, call.caller) {
            return;
        }
        if self.seen_calls.len() >= REQUESTS_MAX {
            self.deny(now, from, call.caller, DisconnectReason::Rejected);
            return;
        }

        self.remember(now, call.caller);
        let patience = u64::from(call.timeout_ms).saturating_mul(MILLISECOND);
        let caller = Caller {
            path: from,
            nic: call.from_nic,
            name: call.caller,
            level: call.level,
            is_tagged: call.is_tagged,
            window: call.window,
            greeting: call.greeting,
            expires_at: now.saturating_add(patience),
        };

        if call.is_peer {
            match self.meeting(call.from_nic, &call.discriminator) {
                Some((id, greeting)) => self.answer(now, id, caller, &greeting),
                None if self.peer_requests.len() >= REQUESTS_MAX => {
                    self.deny(now, from, call.caller, DisconnectReason::Rejected);
                }
                None => {
                    self.send(from, &ControlPacket::Hold { caller: call.caller });
                    self.peer_requests.push((call.discriminator, caller));
                }
            }
        } else if !self.objects.listens(&call.discriminator) {
            self.deny(now, from, call.caller, DisconnectReason::NotListening);
        } else if self.requests.len() >= REQUESTS_MAX {
            self.deny(now, from, call.caller, DisconnectReason::Rejected);
        } else {
            self.send(from, &ControlPacket::Hold { caller: call.caller });
            let request = RequestId(u64::from(self.objects.fresh()));
            let greeting = caller.greeting.clone();
            self.requests.insert(request, caller);
            let discriminator = call.discriminator;
            self.events.push_back(NicEvent::Requested { request, discriminator, greeting });
        }
    }

    /// Handles a repeated call by repeating the answer. Returns whether the call was a repeat.
    fn called_again(&mut self, now: Nanos, from: P, caller: u64) -> bool {
        if !self.seen_calls.contains_key(&caller) {
            return false;
        }
        self.remember(now, caller);
        let mut kept = self.requests.values().chain(self.peer_requests.iter().map(|(_, it)| it));
        if kept.any(|known| known.name == caller) {
            self.send(from, &ControlPacket::Hold { caller });
            return true;
        }
        let is_it = |vi: &&super::vi::SoftwareVi<P>| {
            matches!(vi.attempt, Some(ConnectAttempt::Answered { .. }))
                && vi.connection.as_ref().is_some_and(|it| it.peer == caller)
        };
        if let Some(id) = self.vis.values().find(is_it).map(|vi| vi.core.id) {
            self.retransmit_call(now, id);
        }
        true
    }

    fn deny(&mut self, now: Nanos, path: P, caller: u64, reason: DisconnectReason) {
        self.part(now, path, CloseNotice { to: caller, from: 0, reason, failed: None });
    }

    /// Rejects a request.
    pub(super) fn reject(&mut self, now: Nanos, request: RequestId) -> bool {
        let Some(caller) = self.requests.remove(&request) else { return false };
        self.deny(now, caller.path, caller.name, DisconnectReason::Rejected);
        true
    }

    /// Answers a call with a VI that is about to be connected.
    pub(super) fn answer(&mut self, now: Nanos, id: ViId, caller: Caller<P>, greeting: &[u8]) {
        let (own_window, own_tagged) = (self.own_window(), self.config.is_tagged);
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let wrong = if vi.core.attributes.reliability != caller.level {
            Some(DisconnectReason::Mismatch("another level of reliability"))
        } else if own_tagged != caller.is_tagged {
            Some(DisconnectReason::Mismatch("packets have tags on one side only"))
        } else {
            None
        };
        if let Some(reason) = wrong {
            self.refuse(id, reason);
            self.deny(now, caller.path, caller.name, reason);
            return;
        }

        let own = self.names.fresh();
        let parameters = ConnectionParameters {
            own,
            peer: caller.name,
            path: caller.path,
            key: own_tagged.then(|| self.secret.of_connection(caller.name, own)),
            is_reliable: vi.is_reliable(),
            own_window,
            peer_window: caller.window,
            packet_bytes: PACKET_BYTES_MIN,
            round_trip: RoundTrip::new(),
        };

        vi.connection = Some(Box::new(SoftwareConnection::new(parameters, now)));
        vi.attempt = Some(ConnectAttempt::Answered {
            greeting: greeting.to_vec(),
            caller_greeting: caller.greeting,
            expires_at: now.saturating_add(nanos(self.config.dead_after)),
            retry: Retry::new(now),
        });

        self.names_of.insert(own, id);
        self.retransmit_call(now, id);
        self.set_timer(id);
    }

    /// Handles the answer to a call: the caller is connected, and confirms.
    fn answered(
        &mut self,
        now: Nanos,
        from: P,
        caller: u64,
        answerer: u64,
        window: u16,
        greeting: Vec<u8>,
    ) {
        let (own_window, is_tagged) = (self.own_window(), self.config.is_tagged);
        let id = self.names_of.get(&caller).copied();
        let Some(vi) = id.and_then(|id| self.vis.get_mut(&id)) else {
            // Given up here, or already over; then the reason is known.
            let reason = DisconnectReason::Rejected;
            let over = CloseNotice { to: answerer, from: caller, reason, failed: None };
            let over =
                self.pending_closes.get(&(caller, answerer)).map_or(over, |parting| parting.over);
            self.send(from, &ControlPacket::Over(over));
            return;
        };

        let id = vi.core.id;
        match vi.attempt.take() {
            Some(ConnectAttempt::Calling(calling)) if calling.path == from => {
                let parameters = ConnectionParameters {
                    own: caller,
                    peer: answerer,
                    path: from,
                    key: is_tagged.then(|| self.secret.of_connection(caller, answerer)),
                    is_reliable: vi.is_reliable(),
                    own_window,
                    peer_window: window,
                    packet_bytes: PACKET_BYTES_MIN,
                    round_trip: calling.round_trip,
                };
                vi.connection = Some(Box::new(SoftwareConnection::new(parameters, now)));
                self.establish(now, id, greeting);
            }
            attempt => {
                let is_it = vi.connection.as_ref().is_some_and(|it| it.peer == answerer);
                vi.attempt = attempt;
                if !is_it {
                    return;
                }
            }
        }

        self.send(from, &ControlPacket::Agreed { caller, answerer });
    }

    /// Handles the caller's confirmation of the answer.
    pub(super) fn agreed(&mut self, now: Nanos, id: ViId) {
        let Some(vi) = self.vis.get_mut(&id) else { return };
        match vi.attempt.take() {
            Some(ConnectAttempt::Answered { caller_greeting, retry, .. }) => {
                if let (Some(connection), Some(found)) =
                    (vi.connection.as_mut(), retry.measured(now))
                {
                    connection.out.round_trip.measure(found, 0);
                }
                self.establish(now, id, caller_greeting);
            }
            other => vi.attempt = other,
        }
    }

    fn establish(&mut self, now: Nanos, id: ViId, greeting: Vec<u8>) {
        let Some(vi) = self.vis.get_mut(&id) else { return };
        vi.attempt = None;
        vi.is_halted = false;
        vi.core.change(ViEvent::Establish);
        if let Some(connection) = vi.connection.as_mut() {
            connection.last_received_at = now;
            let path = connection.path;
            self.wants_measure(path);
        }
        self.events.push_back(NicEvent::Connected { vi: id, greeting });
        self.wake(id);
        self.set_timer(id);
    }
}
