//! How connections come about and end: calls, answers, deadlines.
//!
//! ```text
//! client-server                          peer-to-peer (the NIC with the lower number answers)
//! caller            listener             higher               lower
//!   | Call  --------> | Requested          | Call  ----------> | kept until a VI waits for it
//!   | <-------- Agree | accept             | <---------- Agree | connect_peer
//!   | Agreed -------> | Connected          | Agreed ---------> | Connected
//! ```
//! Either side ends an attempt or a connection with `Over`.

use super::{
    objects::{Attempt, Caller, Connection, End, Link, NicIndex},
    world::{Body, Happening, Packet, Tells, World},
};
use crate::vi::{NicEvent, Reason, RequestId, ViEvent, ViId};

/// How many requests a NIC keeps for its consumer; more are refused.
const REQUESTS_MAX: usize = 4096;

impl World {
    /// Makes the call of an idle VI.
    pub(super) fn call(
        &mut self,
        end: End,
        to: NicIndex,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: u64,
    ) {
        let link = self.begin_call(end, deadline);
        let Some(vi) = self.vi(end) else { return };
        vi.attempt = Some(Attempt::Called { link, to });
        self.send_call(end, to, link, discriminator, greeting, false);
    }

    fn begin_call(&mut self, end: End, deadline: u64) -> Link {
        let link = self.fresh_link();
        if let Some(vi) = self.vi(end) {
            vi.change(ViEvent::Connect);
        }
        if deadline < u64::MAX {
            let expiry = Happening::Expire { nic: end.nic, vi: end.vi, link };
            let expiry = self.schedule(deadline, expiry);
            if let Some(vi) = self.vi(end) {
                vi.expiry = Some(expiry);
            }
        }
        link
    }

    fn send_call(
        &mut self,
        end: End,
        to: NicIndex,
        link: Link,
        discriminator: &[u8],
        greeting: &[u8],
        is_peer: bool,
    ) {
        let Some(attributes) = self.vi(end).map(|vi| vi.attributes) else { return };
        let caller = Caller { end, link, attributes, greeting: greeting.to_vec() };
        let body = Body::Call { caller, discriminator: discriminator.to_vec(), is_peer };
        self.transmit(Packet { from: end, to, vi: None, link, body });
    }

    /// Calls a NIC that makes the same call. The lower of the two answers; on one NIC, the later VI.
    pub(super) fn call_peer(
        &mut self,
        end: End,
        to: NicIndex,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: u64,
    ) {
        let link = self.begin_call(end, deadline);
        let Some(vi) = self.vi(end) else { return };
        vi.attempt = Some(Attempt::Rendezvous {
            link,
            to,
            discriminator: discriminator.to_vec(),
            greeting: greeting.to_vec(),
        });
        if to < end.nic {
            self.send_call(end, to, link, discriminator, greeting, true);
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

    fn meet_on_one_nic(&mut self, end: End, discriminator: &[u8], greeting: &[u8]) {
        let waiting = self.waiting_peer(end.nic, end.nic, discriminator, Some(end.vi));
        let Some((id, caller_greeting)) = waiting else { return };
        let other = End { nic: end.nic, vi: id };
        let Some(vi) = self.vi(other) else { return };
        let Some(attempt) = vi.attempt.as_ref() else { return };
        let link = attempt.link();
        // From now on it waits for this answer alone.
        vi.attempt = Some(Attempt::Called { link, to: end.nic });
        let attributes = vi.attributes;
        self.agree(
            end,
            Caller { end: other, link, attributes, greeting: caller_greeting },
            greeting,
        );
    }

    /// The VI of `nic` that waits for the same call from `of`, and its greeting.
    fn waiting_peer(
        &self,
        nic: NicIndex,
        of: NicIndex,
        discriminator: &[u8],
        except: Option<ViId>,
    ) -> Option<(ViId, Vec<u8>)> {
        self.nics[nic].vis.iter().find_map(|(id, vi)| match &vi.attempt {
            Some(Attempt::Rendezvous { to, discriminator: what, greeting, .. })
                if *to == of && what == discriminator && Some(*id) != except =>
            {
                Some((*id, greeting.clone()))
            }
            _ => None,
        })
    }

    /// Answers a call with a VI that is about to be connected.
    pub(super) fn agree(&mut self, end: End, caller: Caller, greeting: &[u8]) {
        let Some(vi) = self.vi(end) else { return };
        let fits = vi.attributes.reliability == caller.attributes.reliability;
        let body = if fits {
            Body::Agree { greeting: greeting.to_vec() }
        } else {
            Body::Over(Reason::Mismatch("another level of reliability"))
        };
        let attempt = Attempt::Agreed {
            link: caller.link,
            peer: caller.end,
            greeting: caller.greeting.clone(),
        };
        vi.attempt = Some(attempt);
        self.answer(end, &caller, body);
        if !fits {
            self.refuse(end, Reason::Mismatch("another level of reliability"));
        }
    }

    /// Sends an answer to a caller; `from` may be of no VI.
    pub(super) fn answer(&mut self, from: End, caller: &Caller, body: Body) {
        let to = caller.end.nic;
        self.transmit(Packet { from, to, vi: Some(caller.end.vi), link: caller.link, body });
    }

    /// A call arrives.
    pub(super) fn called(
        &mut self,
        nic: NicIndex,
        caller: Caller,
        discriminator: Vec<u8>,
        is_peer: bool,
    ) {
        if is_peer {
            match self.waiting_peer(nic, caller.end.nic, &discriminator, None) {
                Some((vi, greeting)) => self.agree(End { nic, vi }, caller, &greeting),
                None => self.nics[nic].peer_requests.push((discriminator, caller)),
            }
            return;
        }
        let nobody = End { nic, vi: ViId(0) };
        let this = &mut self.nics[nic];
        if !this.listening.contains(&discriminator) {
            self.answer(nobody, &caller, Body::Over(Reason::NotListening));
        } else if this.requests.len() >= REQUESTS_MAX {
            self.answer(nobody, &caller, Body::Over(Reason::Rejected));
        } else {
            let request = RequestId(u64::from(this.fresh()));
            let greeting = caller.greeting.clone();
            this.requests.insert(request, caller);
            this.events.push_back(NicEvent::Requested { request, discriminator, greeting });
        }
    }

    /// The answer to a call arrives: the caller is connected, and says so.
    pub(super) fn agreed_to(&mut self, end: End, link: Link, peer: End, greeting: Vec<u8>) {
        let Some(vi) = self.vi(end) else { return };
        let waits = matches!(
            &vi.attempt,
            Some(Attempt::Called { link: own, .. } | Attempt::Rendezvous { link: own, .. })
                if *own == link
        );
        // Whoever waits no longer has said so already.
        if waits {
            self.establish(end, link, peer, greeting);
            let vi = Some(peer.vi);
            self.transmit(Packet { from: end, to: peer.nic, vi, link, body: Body::Agreed });
        }
    }

    /// The caller has heard the answer.
    pub(super) fn agreed(&mut self, end: End, link: Link, from: End) {
        let Some(vi) = self.vi(end) else { return };
        match vi.attempt.take() {
            Some(Attempt::Agreed { link: own, peer, greeting }) if own == link && peer == from => {
                self.establish(end, link, peer, greeting);
            }
            other => vi.attempt = other,
        }
    }

    fn establish(&mut self, end: End, link: Link, peer: End, greeting: Vec<u8>) {
        self.end_attempt(end);
        let Some(vi) = self.vi(end) else { return };
        vi.connection = Some(Connection { link, peer, sent: 0, newest: 0 });
        vi.is_halted = false;
        vi.change(ViEvent::Establish);
        self.nics[end.nic].events.push_back(NicEvent::Connected { vi: end.vi, greeting });
    }

    /// Forgets an attempt and its deadline.
    fn end_attempt(&mut self, end: End) -> Option<Attempt> {
        let vi = self.vi(end)?;
        let (attempt, expiry) = (vi.attempt.take(), vi.expiry.take());
        if let Some(expiry) = expiry {
            self.unschedule(expiry);
        }
        attempt
    }

    /// Makes a VI idle that waited for a connection.
    pub(super) fn refuse(&mut self, end: End, reason: Reason) {
        self.end_attempt(end);
        let Some(vi) = self.vi(end) else { return };
        vi.change(ViEvent::Refuse);
        self.nics[end.nic].events.push_back(NicEvent::Refused { vi: end.vi, reason });
    }

    pub(super) fn expire(&mut self, nic: NicIndex, vi: ViId, link: Link) {
        let end = End { nic, vi };
        let Some(attempt) = self.vi(end).and_then(|vi| vi.attempt.clone()) else { return };
        if attempt.link() == link {
            self.leave(end, &attempt, Reason::TimedOut);
            self.refuse(end, Reason::TimedOut);
        }
    }

    /// Tells the other side that an attempt is given up.
    fn leave(&mut self, end: End, attempt: &Attempt, reason: Reason) {
        let (to, vi) = match attempt {
            Attempt::Called { to, .. } | Attempt::Rendezvous { to, .. } => (*to, None),
            Attempt::Agreed { peer, .. } => (peer.nic, Some(peer.vi)),
        };
        let body = Body::Over(reason);
        self.transmit(Packet { from: end, to, vi, link: attempt.link(), body });
    }

    /// The other side ended an attempt or a connection.
    pub(super) fn over(
        &mut self,
        nic: NicIndex,
        from: End,
        vi: Option<ViId>,
        over: Link,
        reason: Reason,
    ) {
        let is_named = vi.is_some();
        let this = &mut self.nics[nic];
        let is_it = |caller: &Caller| caller.link == over && caller.end == from;
        this.requests.retain(|_, caller| !is_it(caller));
        this.peer_requests.retain(|(_, caller)| !is_it(caller));
        let ids: Vec<ViId> = vi.map_or_else(|| this.vis.keys().copied().collect(), |vi| vec![vi]);
        for id in ids {
            let end = End { nic, vi: id };
            let Some(vi) = self.vi(end) else { continue };
            let is_peer =
                |connection: Connection| connection.link == over && connection.peer == from;
            if vi.connection.is_some_and(is_peer) {
                self.break_vi(end, reason, Tells::Nobody);
                return;
            }
            match &vi.attempt {
                Some(Attempt::Agreed { link, peer, .. }) if *link == over && *peer == from => {
                    self.refuse(end, reason);
                    return;
                }
                Some(attempt) if attempt.link() == over && is_named => {
                    // Whoever answered changed its mind before this side was connected.
                    let is_late = reason == Reason::Disconnected;
                    self.refuse(end, if is_late { Reason::Rejected } else { reason });
                    return;
                }
                _ => {}
            }
        }
    }

    pub(super) fn disconnect(&mut self, end: End) {
        let Some(vi) = self.vi(end) else { return };
        let connection = vi.connection.take();
        if let Some(attempt) = self.end_attempt(end) {
            self.leave(end, &attempt, Reason::Disconnected);
        }
        if let Some(Connection { link, peer, .. }) = connection {
            let body = Body::Over(Reason::Disconnected);
            self.transmit(Packet { from: end, to: peer.nic, vi: Some(peer.vi), link, body });
        }
        self.flush(end);
        if let Some(vi) = self.vi(end) {
            vi.change(ViEvent::Disconnect);
        }
    }
}
