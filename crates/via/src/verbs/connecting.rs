//! Connections: how two NICs agree on their queue pairs over a control connection, and how they disconnect.
//!
//! ```text
//! caller:    Dialing --Welcome--> Calling --Accept--> Up --Bye, Failed, the end--> (gone)
//! answerer:  Fresh --Hello--> Welcomed --Call--> Requested, Parked --accept--> Accepted --Ready--> Up
//! either:    Ending, from this side's last frame until the other side's
//! ```
//!
//! If two peers call each other, the one whose NIC has the lower identifier calls; the other waits. A
//! call that arrives before this side's connect request is parked.

use std::{
    io,
    mem::{self, MaybeUninit},
    time::Duration,
};

use rustix::event::{Timespec, epoll};
use vigie_detect::Instant;

use super::{
    NAME,
    control::{ControlConnection, ControlError},
    nic::{Verbs, limit},
    sys::{QpEndpoint, QueuePair},
    vi::{ConnectRequest, QpConnection, VerbsVi, ViFault},
    wire::{
        CallFrame, ControlFrame, DISCRIMINATOR_MAX, GREETING_MAX, PACKET_NUMBER_MAX,
        PeerParameters, VerbsAddress,
    },
};
use crate::{
    auth::random,
    vi::{
        Connect, DisconnectReason, NicEvent, Reliability, RequestId, Status, ViError, ViEvent,
        ViId, ViState,
    },
};

/// The time that a caller may take to identify itself, and an accepted one to confirm.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which the last frame is kept for the other side to read.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// The time that the device may take to complete a descriptor that the peer has reported as failed, and the
/// peer to report why a descriptor has failed: longer than the device retries.
pub(super) const FAILURE_REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most callers that have not yet proved that they know the secret, and the most that wait for an answer.
const UNAUTHENTICATED_MAX: usize = 256;
const REQUESTS_MAX: usize = 4096;
/// The most sockets served per poll, and the most frames of each.
const EVENTS_MAX: usize = 64;
const FRAMES_MAX: usize = 16;
/// The number of polls of a queue for flushed completions when a queue pair ends: devices take microseconds.
const FLUSH_POLLS: usize = 32;

/// A control connection and its stage.
#[derive(Debug)]
pub(super) struct ControlSession {
    pub(super) control: ControlConnection,
    stage: SessionState,
    deadline: Option<Instant>,
}

#[derive(Debug)]
enum SessionState {
    Dialing { vi: u32, call: Box<CallFrame> },
    Calling { vi: u32 },
    Fresh,
    Welcomed,
    Requested { request: RequestId, call: Box<CallFrame> },
    Parked { call: Box<CallFrame> },
    Accepted { vi: u32, greeting: Vec<u8> },
    Up { vi: u32 },
    Ending,
}

/// The descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventSource {
    Listener,
    Channel,
    Control(u32),
}

impl EventSource {
    pub(super) fn to_data(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Channel => 1,
            Self::Control(name) => 1 << 32 | u64::from(name),
        }
    }

    fn from_data(data: u64) -> Self {
        match (data, u32::try_from(data & u64::from(u32::MAX))) {
            (0, _) => Self::Listener,
            (_, Ok(name)) if data >> 32 == 1 => Self::Control(name),
            _ => Self::Channel,
        }
    }
}

impl Verbs {
    // -------------------------------------------------------------- the consumer's calls

    pub(super) fn start_listening(&mut self, discriminator: &[u8]) -> Result<(), ViError> {
        limit("the discriminator", discriminator.len(), DISCRIMINATOR_MAX)?;
        if self.listening.insert(discriminator.to_vec()) {
            return Ok(());
        }
        Err(ViError::AlreadyListening)
    }

    /// Checks the arguments of a connect call.
    pub(super) fn wished(&self, to: Connect<'_>) -> Result<VerbsAddress, ViError> {
        let Connect { vi, address, discriminator, greeting, .. } = to;
        let to = VerbsAddress::decode(&address.0).ok_or(ViError::BadAddress { provider: NAME })?;
        if to.socket.is_ipv4() != self.place.socket.is_ipv4() {
            return Err(ViError::BadAddress { provider: NAME });
        }
        self.may_connect(vi)?;
        limit("the discriminator", discriminator.len(), DISCRIMINATOR_MAX)?;
        limit("the greeting", greeting.len(), GREETING_MAX)?;
        Ok(to)
    }

    /// Calls the NIC at `to`.
    pub(super) fn call(
        &mut self,
        to: VerbsAddress,
        connect: Connect<'_>,
        is_peer: bool,
    ) -> Result<(), ViError> {
        let Connect { vi, discriminator, greeting, deadline, .. } = connect;
        let answer = self.own_answer(vi.0, greeting)?;
        let (discriminator, from) = (discriminator.to_vec(), self.place.id);
        let call = Box::new(CallFrame { to: to.id, from, is_peer, discriminator, answer });
        let name = self.name("the number of connections")?;
        let dialed = ControlConnection::dial(self.place.socket, to.socket);
        let found = self.vi_mut(vi)?;
        found.state = ViState::PendingConnect;
        match dialed {
            Ok(control) => {
                found.control = Some(name);
                let session = ControlSession {
                    control,
                    stage: SessionState::Dialing { vi: vi.0, call },
                    deadline: None,
                };
                self.begin(name, session, deadline);
            }
            Err(end) => self.refused(vi.0, reason_of(end, DisconnectReason::TransportFailed)),
        }

        Ok(())
    }

    /// Connects to a peer at `to` that makes the same request.
    pub(super) fn meet(&mut self, to: VerbsAddress, connect: Connect<'_>) -> Result<(), ViError> {
        let Connect { vi, discriminator, greeting, deadline, .. } = connect;
        let is_waited_for = |other: &VerbsVi| {
            let connect_request = other.connect_request.as_ref();
            connect_request.is_some_and(|connect_request| {
                connect_request.peer == to.id && connect_request.discriminator == discriminator
            })
        };

        let calls = if to.id == self.place.id {
            // Of two VIs of one NIC, the second calls.
            self.vis.values().any(is_waited_for)
        } else {
            self.place.id < to.id
        };
        if calls {
            return self.call(to, connect, true);
        }
        let connect_request = ConnectRequest {
            peer: to.id,
            discriminator: discriminator.to_vec(),
            greeting: greeting.to_vec(),
            deadline,
        };

        let parked = self.sessions.iter().find(|(_, session)| match &session.stage {
            SessionState::Parked { call } => connect_request.is_for(call),
            _ => false,
        });

        let parked = parked.map(|(name, _)| *name);
        let found = self.vi_mut(vi)?;
        found.state = ViState::PendingConnect;
        found.connect_request = Some(connect_request);
        self.expect(deadline);
        if let Some(name) = parked {
            self.answer_peer(name, vi.0);
        }
        Ok(())
    }

    pub(super) fn accept_request(
        &mut self,
        request: RequestId,
        vi: ViId,
        greeting: &[u8],
    ) -> Result<(), ViError> {
        let name = self.requests.get(&request.0).copied();
        let name = name.ok_or(ViError::UnknownRequest(request))?;
        self.may_connect(vi)?;
        limit("the greeting", greeting.len(), GREETING_MAX)?;
        let own = self.own_answer(vi.0, greeting)?;
        self.requests.remove(&request.0);
        let found = self.vi_mut(vi)?;
        found.state = ViState::PendingConnect;
        self.agree(name, vi.0, own);
        Ok(())
    }

    pub(super) fn reject_request(&mut self, request: RequestId) -> Result<(), ViError> {
        let name = self.requests.remove(&request.0);
        let name = name.ok_or(ViError::UnknownRequest(request))?;
        self.finish(name, Some(&ControlFrame::Refuse(DisconnectReason::Rejected)));
        Ok(())
    }

    // -------------------------------------------------------------- queue pairs

    /// Makes the queue pair of a VI, unless it has one, and returns what the peer must know.
    fn own_answer(&mut self, name: u32, greeting: &[u8]) -> Result<PeerParameters, ViError> {
        let link_name = self.name("the number of connections")?;
        let vi = self.vis.get(&name).ok_or(ViError::UnknownVi(ViId(name)))?;
        let reliability = vi.attributes.reliability;
        let [sends, receives] = vi.queues.map(|queue| self.device_queue(queue));
        let (Some(sends), Some(receives)) = (sends, receives) else {
            return Err(ViError::Io(io::ErrorKind::NotFound.into()));
        };
        let shape = self.device.shape(vi.is_reliable());
        let pair = QueuePair::new(&vi.domain, &sends, &receives, &shape)?;
        pair.reset(self.device.local_port, &vi.attributes)?;
        let own = QpEndpoint {
            number: pair.number,
            first_packet: u32::from_le_bytes(random()?) & PACKET_NUMBER_MAX,
            gid: self.device.gid,
            lid: self.device.limits.lid,
            mtu: self.device.limits.mtu,
            reads: self.device.limits.reads,
        };
        self.links.insert(link_name, name);
        if let Some(vi) = self.vis.get_mut(&name) {
            vi.link = Some(QpConnection::new(pair, link_name, own));
        }
        Ok(PeerParameters { reliability, end: own, greeting: greeting.to_vec() })
    }

    /// Posts the receive descriptors of a VI, and connects its queue pair with the peer's.
    fn activate(&mut self, name: u32, peer: &QpEndpoint) -> io::Result<()> {
        let Some(vi) = self.vis.get_mut(&name) else { return Ok(()) };
        let Some(link) = &mut vi.link else { return Ok(()) };
        let most = self.device.attributes.transfer_bytes_max;
        for posted in &vi.receives {
            let mut pieces = self.table.scatter(vi.attributes.tag, &posted.segments, most);
            link.pair.post_receive(link.receive_number(), pieces.as_mut_slice())?;
            link.posted();
        }
        link.pair.connect(self.device.local_port, &link.own, peer)?;
        link.peer = Some(*peer);
        Ok(())
    }

    /// Ends the queue pair of a VI, after taking its completions.
    fn unplug(&mut self, name: u32) {
        let Some(vi) = self.vis.get(&name) else { return };
        let Some(link) = &vi.link else { return };
        let (link_name, queues) = (link.name, vi.queues);
        if link.is_active() {
            // Completed descriptors come first, then the flushed ones.
            for queue in queues {
                self.drain(queue);
            }
            let is_failing = self.vis.get(&name).and_then(|vi| vi.link.as_ref());
            let is_failing = is_failing.is_some_and(|link| link.pair.fail().is_ok());
            for _ in 0..if is_failing { FLUSH_POLLS } else { 0 } {
                for queue in queues {
                    self.drain(queue);
                }
                let vi = self.vis.get(&name);
                if vi.is_none_or(|vi| vi.sends.is_empty() && vi.receives.is_empty()) {
                    break;
                }
            }
        }
        self.links.remove(&link_name);
        if let Some(vi) = self.vis.get_mut(&name) {
            vi.link = None;
        }
    }

    /// Restarts the queue pair of an unreliable VI after the device has stopped it.
    fn revive(&mut self, name: u32) -> Result<(), ViError> {
        let link_name = self.name("the number of connections")?;
        let Some(vi) = self.vis.get(&name) else { return Ok(()) };
        for queue in vi.queues {
            self.drain(queue);
        }
        let local_port = self.device.local_port;
        let Some(vi) = self.vis.get_mut(&name) else { return Ok(()) };
        vi.fault = None;
        vi.unsignaled_count = 0;
        let Some(link) = &mut vi.link else { return Ok(()) };
        let Some(peer) = link.peer.take() else { return Ok(()) };
        link.pair.reset(local_port, &vi.attributes)?;
        self.links.remove(&link.name);
        link.rename(link_name);
        self.links.insert(link_name, name);
        vi.flush_sends(&mut self.nic_state);
        Ok(self.activate(name, &peer)?)
    }

    // -------------------------------------------------------------- control connections

    /// Registers a control connection.
    fn begin(&mut self, name: u32, mut session: ControlSession, deadline: Instant) {
        session.deadline = Some(deadline);
        session.control.wants_room = session.control.needs_room();
        let watched = self.watch(
            &session.control.socket,
            EventSource::Control(name),
            session.control.wants_room,
        );
        self.sessions.insert(name, session);
        self.expect(deadline);
        if watched.is_err() {
            self.lost(name, ControlError::Closed);
        }
    }

    /// Ensures that timeouts are checked at `deadline`.
    pub(super) fn expect(&mut self, deadline: Instant) {
        self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
    }

    /// Sends the last frame on a control connection, which stays until the other side has read it.
    fn finish(&mut self, name: u32, last: Option<&ControlFrame>) {
        let deadline = self.now + LINGER_TIME;
        let Some(session) = self.sessions.get_mut(&name) else { return };
        if let Some(frame) = last {
            session.control.send(frame);
        }
        session.control.finish();
        session.stage = SessionState::Ending;
        session.deadline = Some(deadline);
        self.expect(deadline);
    }

    /// Polls the sockets. Returns whether anything was there.
    pub(super) fn poll_sockets(&mut self) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut room = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut room, Some(&none)) {
            Ok((events, _)) => events,
            Err(_) => &[],
        };
        for event in events {
            match EventSource::from_data(event.data.u64()) {
                EventSource::Listener => self.take_callers(),
                EventSource::Channel => drop(self.quiet_channel()),
                EventSource::Control(name) => self.receive_frames(name),
            }
        }
        !events.is_empty()
    }

    fn take_callers(&mut self) {
        for _ in 0..FRAMES_MAX {
            let Ok((stream, _)) = self.listener.accept() else { return };
            let is_stranger = |session: &&ControlSession| {
                matches!(session.stage, SessionState::Fresh | SessionState::Welcomed)
            };
            if self.sessions.values().filter(is_stranger).count() >= UNAUTHENTICATED_MAX {
                continue;
            }
            let is_set = stream.set_nonblocking(true).is_ok();
            let (Ok(control), true) = (ControlConnection::answer(stream.into()), is_set) else {
                continue;
            };
            let Ok(name) = self.name("the number of connections") else { return };
            let session = ControlSession { control, stage: SessionState::Fresh, deadline: None };
            self.begin(name, session, self.now + HANDSHAKE_TIMEOUT);
        }
    }

    /// Takes the frames that have arrived on a control connection.
    fn receive_frames(&mut self, name: u32) {
        for _ in 0..FRAMES_MAX {
            let Some(session) = self.sessions.get_mut(&name) else { return };
            if matches!(session.stage, SessionState::Ending) {
                if session.control.has_finished() {
                    self.sessions.remove(&name);
                }
                return;
            }
            let heard = match session.control.has_connected() {
                Ok(true) => random().map_err(|_| ControlError::Closed).map(|nonce| {
                    session.control.hello(&self.secret, nonce);
                    None
                }),
                Ok(false) if session.control.is_dialing() => return,
                Ok(false) => session.control.receive(),
                Err(end) => Err(end),
            };
            let heard = match heard {
                Ok(Some(frame)) => self.handle_frame(name, frame),
                Ok(None) => break,
                Err(end) => Err(end),
            };
            if let Err(end) = heard {
                return self.lost(name, end);
            }
        }

        self.tend(name);
    }

    /// Writes pending bytes to the kernel, and asks to be woken when it takes more.
    fn tend(&mut self, name: u32) {
        let Some(session) = self.sessions.get_mut(&name) else { return };
        session.control.flush();
        let wants_room = session.control.needs_room();
        if wants_room == session.control.wants_room {
            return;
        }
        session.control.wants_room = wants_room;
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wants_room);
        let data = epoll::EventData::new_u64(EventSource::Control(name).to_data());
        let changed = epoll::modify(&self.epoll, &session.control.socket, data, flags);
        if changed.is_err() {
            self.lost(name, ControlError::Closed);
        }
    }

    fn handle_frame(&mut self, name: u32, frame: ControlFrame) -> Result<(), ControlError> {
        let Some(session) = self.sessions.get_mut(&name) else { return Ok(()) };
        match (&mut session.stage, frame) {
            (SessionState::Dialing { vi, .. }, ControlFrame::Welcome { .. }) => {
                let next = SessionState::Calling { vi: *vi };
                if let SessionState::Dialing { call, .. } = mem::replace(&mut session.stage, next) {
                    session.control.send(&ControlFrame::Call(*call));
                }
            }
            (SessionState::Calling { vi }, ControlFrame::Accept(answer)) => {
                let vi = *vi;
                self.answered(name, vi, answer);
            }
            (
                SessionState::Calling { vi } | SessionState::Accepted { vi, .. },
                ControlFrame::Refuse(reason),
            ) => {
                let vi = *vi;
                self.finish(name, None);
                self.refused(vi, reason);
            }
            (SessionState::Fresh, ControlFrame::Hello { nonce }) => {
                let own = random().map_err(|_| ControlError::Closed)?;
                session.control.set_key(self.secret.control_key(&nonce, &own));
                session.control.send(&ControlFrame::Welcome { nonce: own });
                session.stage = SessionState::Welcomed;
            }
            (SessionState::Welcomed, ControlFrame::Call(call)) => self.called(name, call),
            (SessionState::Accepted { vi, .. }, ControlFrame::Ready) => {
                let vi = *vi;
                self.ready(vi);
            }
            // Already connected, since data has arrived.
            (SessionState::Up { .. }, ControlFrame::Ready) => {}
            (SessionState::Up { vi }, ControlFrame::Bye) => {
                let vi = *vi;
                self.broken(vi, DisconnectReason::Disconnected, None);
            }
            (SessionState::Up { vi }, ControlFrame::Failed { reason, report }) => {
                let vi = *vi;
                self.peer_failed(vi, reason, report);
            }
            _ => return Err(ControlError::Fault("a frame out of turn")),
        }

        Ok(())
    }

    /// Handles the unexpected end of a control connection.
    fn lost(&mut self, name: u32, end: ControlError) {
        let Some(session) = self.sessions.remove(&name) else { return };
        match session.stage {
            // A peer that hangs up on a Hello does not accept that this side knows the secret.
            SessionState::Dialing { vi, .. } => {
                self.refused(vi, reason_of(end, DisconnectReason::Rejected))
            }
            SessionState::Calling { vi } | SessionState::Accepted { vi, .. } => {
                self.refused(vi, reason_of(end, DisconnectReason::PeerDied));
            }
            SessionState::Requested { request, .. } => drop(self.requests.remove(&request.0)),
            // The peer reported why and closed; the device still has to tell which descriptor failed.
            SessionState::Up { vi } if end == ControlError::Closed && self.is_told(vi) => {}
            SessionState::Up { vi } => {
                self.broken(vi, reason_of(end, DisconnectReason::PeerDied), None)
            }
            SessionState::Fresh
            | SessionState::Welcomed
            | SessionState::Parked { .. }
            | SessionState::Ending => {}
        }
    }

    fn is_told(&self, vi: u32) -> bool {
        self.vis.get(&vi).is_some_and(|vi| vi.peer_report.is_some())
    }

    // -------------------------------------------------------------- the answerer's side

    /// Handles the call of a caller that knows the secret.
    fn called(&mut self, name: u32, call: CallFrame) {
        let is_known = self.listening.contains(&call.discriminator);
        let refusal = if call.to != self.place.id || !(is_known || call.is_peer) {
            Some(DisconnectReason::NotListening)
        } else if self.requests.len() >= REQUESTS_MAX {
            Some(DisconnectReason::Rejected)
        } else {
            None
        };
        if let Some(reason) = refusal {
            return self.finish(name, Some(&ControlFrame::Refuse(reason)));
        }
        let request = self.next_request();
        let Some(session) = self.sessions.get_mut(&name) else { return };
        // From here on the caller's own deadline applies.
        session.deadline = None;
        let call = Box::new(call);
        if call.is_peer {
            let is_meant = |vi: &&VerbsVi| {
                vi.connect_request
                    .as_ref()
                    .is_some_and(|connect_request| connect_request.is_for(&call))
            };
            let waiting = self.vis.values().find(is_meant).map(|vi| vi.id.0);
            session.stage = SessionState::Parked { call };
            if let Some(vi) = waiting {
                self.answer_peer(name, vi);
            }
            return;
        }

        let event = NicEvent::Requested {
            request,
            discriminator: call.discriminator.clone(),
            greeting: call.answer.greeting.clone(),
        };

        session.stage = SessionState::Requested { request, call };
        self.requests.insert(request.0, name);
        self.nic_state.events.push_back(event);
    }

    /// Answers a parked call with the VI that made the same request.
    fn answer_peer(&mut self, name: u32, vi: u32) {
        let connect_request = self.vis.get_mut(&vi).and_then(|vi| vi.connect_request.take());
        let Some(connect_request) = connect_request else { return };
        match self.own_answer(vi, &connect_request.greeting) {
            Ok(own) => self.agree(name, vi, own),
            Err(_) => {
                self.finish(name, Some(&ControlFrame::Refuse(DisconnectReason::Rejected)));
                self.refused(vi, DisconnectReason::TransportFailed);
            }
        }
    }

    /// Connects a VI to a caller, and tells it.
    fn agree(&mut self, name: u32, vi: u32, own: PeerParameters) {
        let deadline = self.now + HANDSHAKE_TIMEOUT;
        let Some(session) = self.sessions.get_mut(&name) else {
            return self.refused(vi, DisconnectReason::PeerDied);
        };
        let (SessionState::Requested { call, .. } | SessionState::Parked { call }) = &session.stage
        else {
            return self.refused(vi, DisconnectReason::PeerDied);
        };
        let peer = call.answer.clone();
        if !self.activate_or_refuse(name, vi, own.reliability, &peer) {
            return;
        }

        let Some(session) = self.sessions.get_mut(&name) else { return };
        session.stage = SessionState::Accepted { vi, greeting: peer.greeting };
        session.deadline = Some(deadline);
        session.control.send(&ControlFrame::Accept(own));
        if let Some(vi) = self.vis.get_mut(&vi) {
            vi.control = Some(name);
        }
        self.expect(deadline);
        self.tend(name);
    }

    /// Activates a VI, or refuses the peer and the VI. Returns whether it is active.
    fn activate_or_refuse(
        &mut self,
        name: u32,
        vi: u32,
        reliability: Reliability,
        peer: &PeerParameters,
    ) -> bool {
        let reason = if peer.reliability != reliability {
            MISMATCH
        } else if self.activate(vi, &peer.end).is_err() {
            DisconnectReason::TransportFailed
        } else {
            return true;
        };
        self.finish(name, Some(&ControlFrame::Refuse(reason)));
        self.refused(vi, reason);
        false
    }

    /// The connection is established: the caller uses it, or confirms it.
    pub(super) fn ready(&mut self, name: u32) {
        let Some(vi) = self.vis.get_mut(&name) else { return };
        if vi.state != ViState::PendingConnect {
            return;
        }
        let Some(session) = vi.control.and_then(|control| self.sessions.get_mut(&control)) else {
            return;
        };
        let SessionState::Accepted { greeting, .. } = &mut session.stage else { return };
        let greeting = mem::take(greeting);
        session.stage = SessionState::Up { vi: name };
        session.deadline = None;
        vi.state = vi.state.after(ViEvent::Establish).unwrap_or(vi.state);
        self.nic_state.events.push_back(NicEvent::Connected { vi: vi.id, greeting });
    }

    // -------------------------------------------------------------- the caller's side

    fn answered(&mut self, name: u32, vi: u32, answer: PeerParameters) {
        let Some(found) = self.vis.get(&vi) else { return };
        let (id, reliability) = (found.id, found.attributes.reliability);
        if !self.activate_or_refuse(name, vi, reliability, &answer) {
            return;
        }
        if let Some(session) = self.sessions.get_mut(&name) {
            session.stage = SessionState::Up { vi };
            session.deadline = None;
            session.control.send(&ControlFrame::Ready);
        }
        if let Some(found) = self.vis.get_mut(&vi) {
            found.state = found.state.after(ViEvent::Establish).unwrap_or(found.state);
        }
        let greeting = answer.greeting;
        self.nic_state.events.push_back(NicEvent::Connected { vi: id, greeting });
    }

    /// Returns a VI without a connection to idle. Posted receive descriptors stay.
    fn refused(&mut self, name: u32, reason: DisconnectReason) {
        let Some(vi) = self.vis.get_mut(&name) else { return };
        if let Some(link) = vi.link.take() {
            self.links.remove(&link.name);
        }
        vi.control = None;
        vi.forget();
        vi.state = vi.state.after(ViEvent::Refuse).unwrap_or(vi.state);
        self.nic_state.events.push_back(NicEvent::Refused { vi: vi.id, reason });
    }

    // -------------------------------------------------------------- the end

    /// Ends everything that belongs to a VI's connection: its connect request, its queue pair, and its
    /// control connection with a final frame.
    pub(super) fn part(&mut self, name: u32, last: Option<&ControlFrame>) {
        self.unplug(name);
        let Some(vi) = self.vis.get_mut(&name) else { return };
        vi.connect_request = None;
        let Some(control) = vi.control.take() else { return };
        let is_up = self
            .sessions
            .get(&control)
            .is_some_and(|session| matches!(session.stage, SessionState::Up { .. }));
        self.finish(control, last.filter(|_| is_up));
    }

    /// Breaks a connection.
    fn broken(&mut self, name: u32, reason: DisconnectReason, last: Option<&ControlFrame>) {
        self.part(name, last);
        let Some(vi) = self.vis.get_mut(&name) else { return };
        vi.flush_sends(&mut self.nic_state);
        vi.flush_receives(&mut self.nic_state);
        vi.forget();
        vi.state = vi.state.after(ViEvent::Break).unwrap_or(vi.state);
        self.nic_state.events.push_back(NicEvent::Broken { vi: vi.id, reason });
    }

    /// The peer has broken the connection, and perhaps reports how a descriptor of this side failed. The
    /// device tells which one; if the peer's reply to it was lost, only after its retries.
    fn peer_failed(&mut self, name: u32, reason: DisconnectReason, report: Option<Status>) {
        let deadline = self.now + FAILURE_REPORT_TIMEOUT;
        let Some(vi) = self.vis.get_mut(&name) else { return };
        match report {
            Some(status) if vi.is_reliable() => {
                vi.peer_report = Some((status, deadline));
                for queue in vi.queues {
                    self.drain(queue);
                }
                let left =
                    self.vis.get(&name).map(|vi| vi.sends.is_empty() || vi.unclear.is_some());
                match left {
                    Some(true) => self.broken(name, reason, None),
                    _ => self.expect(deadline),
                }
            }
            _ => self.broken(name, reason, None),
        }
    }

    /// Breaks the connections of VIs that have met errors. Returns whether there were any.
    pub(super) fn settle(&mut self) -> bool {
        let mut is_news = false;
        while let Some(name) = self.failed.pop_front() {
            let Some(vi) = self.vis.get(&name) else { continue };
            if vi.fault.is_none() || !vi.state.is_connected() {
                continue;
            }
            is_news = true;
            if !vi.is_reliable() {
                if self.revive(name).is_err() {
                    let last = ControlFrame::Failed {
                        reason: DisconnectReason::TransportFailed,
                        report: None,
                    };
                    self.broken(name, DisconnectReason::TransportFailed, Some(&last));
                }
                continue;
            }
            // What the queue pair leaves behind may reveal the cause better.
            self.unplug(name);
            if self.vis.get(&name).is_some_and(|vi| vi.unclear.is_some()) {
                continue;
            }
            let fault = self.vis.get(&name).and_then(|vi| vi.fault).unwrap_or(ViFault::Send);
            let last = ControlFrame::Failed { reason: fault.reason(), report: fault.report() };
            self.broken(name, fault.reason(), Some(&last));
        }

        is_news
    }

    /// Ends what has timed out. Returns whether there was anything.
    pub(super) fn keep_time(&mut self) -> bool {
        if self.due.is_none_or(|due| due > self.now) {
            return false;
        }
        let now = self.now;
        let late = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let lines = self.sessions.iter().filter(|(_, session)| late(session.deadline));
        for name in lines.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.too_late(name);
        }
        let connect_requests = self.vis.values().filter(|vi| {
            late(vi.connect_request.as_ref().map(|connect_request| connect_request.deadline))
        });
        for name in connect_requests.map(|vi| vi.id.0).collect::<Vec<_>>() {
            self.refused(name, DisconnectReason::TimedOut);
        }
        let told =
            |vi: &VerbsVi| late(vi.peer_report.map(|(_, deadline)| deadline)) || late(vi.unclear);
        let told = self.vis.values().filter(|vi| told(vi));
        for name in told.map(|vi| vi.id.0).collect::<Vec<_>>() {
            let reason = DisconnectReason::DescriptorFailed;
            self.broken(name, reason, Some(&ControlFrame::Failed { reason, report: None }));
        }
        self.due = self.next_due();
        true
    }

    fn too_late(&mut self, name: u32) {
        let Some(session) = self.sessions.get(&name) else { return };
        match session.stage {
            SessionState::Dialing { vi, .. }
            | SessionState::Calling { vi }
            | SessionState::Accepted { vi, .. } => {
                self.finish(name, None);
                self.refused(vi, DisconnectReason::TimedOut);
            }
            _ => drop(self.sessions.remove(&name)),
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let lines = self.sessions.values().filter_map(|session| session.deadline);
        let connect_requests = self.vis.values().filter_map(|vi| {
            vi.connect_request.as_ref().map(|connect_request| connect_request.deadline)
        });
        let told = self.vis.values().filter_map(|vi| vi.peer_report.map(|(_, deadline)| deadline));
        let unclear = self.vis.values().filter_map(|vi| vi.unclear);
        lines.chain(connect_requests).chain(told).chain(unclear).min()
    }
}

const MISMATCH: DisconnectReason = DisconnectReason::Mismatch("another level of reliability");

impl ConnectRequest {
    fn is_for(&self, call: &CallFrame) -> bool {
        self.peer == call.from && self.discriminator == call.discriminator
    }
}

const fn reason_of(end: ControlError, closed: DisconnectReason) -> DisconnectReason {
    match end {
        ControlError::Unanswered => DisconnectReason::NotListening,
        ControlError::Closed => closed,
        ControlError::Fault(what) => DisconnectReason::PeerFault(what),
    }
}
