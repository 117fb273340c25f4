//! Connections: how two NICs agree on their queue pairs over a line, and how they part.
//!
//! ```text
//! caller:    Dialing --Welcome--> Calling --Accept--> Up --Bye, Failed, the end--> (gone)
//! answerer:  Fresh --Hello--> Welcomed --Call--> Requested, Parked --accept--> Accepted --Ready--> Up
//! either:    Ending, once this side has said its last word, until the other's
//! ```
//!
//! Of two peers that want each other, the one whose NIC has the lesser identifier calls; the other waits, and a
//! call that comes before its wish is parked.

use std::{
    io,
    mem::{self, MaybeUninit},
    time::Duration,
};

use rustix::event::{Timespec, epoll};
use vigie_detect::Instant;

use super::{
    NAME,
    line::{Line, LineEnd},
    nic::{Verbs, limit},
    secret::random,
    sys::{End, QueuePair},
    vi::{Fault, Link, Vi, Wish},
    wire::{Answer, Call, DISCRIMINATOR_MAX, Frame, GREETING_MAX, PACKET_NUMBER_MAX, Place},
};
use crate::vi::{Address, NicEvent, Reason, RequestId, Status, ViError, ViEvent, ViId, ViState};

/// A caller has so long to say who it is, and an accepted one to come.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// What was said last is kept for so long, for the other side to read.
const FAREWELL_TIME: Duration = Duration::from_secs(2);
/// The device has so long to complete what the peer has said to have failed, and the peer to say why a descriptor
/// has failed: more than the device retries.
pub(super) const WITNESS_TIME: Duration = Duration::from_secs(5);
/// The most callers that have not shown that they know the secret, and the most that wait for an answer.
const STRANGERS_MAX: usize = 256;
const REQUESTS_MAX: usize = 4096;
/// The most sockets served in one look, and the most frames of each.
const EVENTS_MAX: usize = 64;
const FRAMES_MAX: usize = 16;
/// How often a queue is looked at for what is flushed, when a queue pair ends: devices take microseconds.
const FLUSH_LOOKS: usize = 32;

/// A line, and how far it has come.
#[derive(Debug)]
pub(super) struct Talk {
    pub(super) line: Line,
    stage: Stage,
    deadline: Option<Instant>,
}

#[derive(Debug)]
enum Stage {
    Dialing { vi: u32, call: Box<Call> },
    Calling { vi: u32 },
    Fresh,
    Welcomed,
    Requested { request: RequestId, call: Box<Call> },
    Parked { call: Box<Call> },
    Accepted { vi: u32, greeting: Vec<u8> },
    Up { vi: u32 },
    Ending,
}

/// Which descriptor is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Listener,
    Channel,
    Line(u32),
}

impl Source {
    pub(super) fn to_data(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Channel => 1,
            Self::Line(name) => 1 << 32 | u64::from(name),
        }
    }

    fn from_data(data: u64) -> Self {
        match (data, u32::try_from(data & u64::from(u32::MAX))) {
            (0, _) => Self::Listener,
            (_, Ok(name)) if data >> 32 == 1 => Self::Line(name),
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

    /// Checks what a connection is asked for with.
    pub(super) fn wished(
        &self,
        vi: ViId,
        address: &Address,
        discriminator: &[u8],
        greeting: &[u8],
    ) -> Result<Place, ViError> {
        let to = Place::decode(&address.0).ok_or(ViError::BadAddress { provider: NAME })?;
        if to.socket.is_ipv4() != self.place.socket.is_ipv4() {
            return Err(ViError::BadAddress { provider: NAME });
        }
        self.may_connect(vi)?;
        limit("the discriminator", discriminator.len(), DISCRIMINATOR_MAX)?;
        limit("the greeting", greeting.len(), GREETING_MAX)?;
        Ok(to)
    }

    /// Calls a NIC.
    pub(super) fn call(
        &mut self,
        vi: ViId,
        to: Place,
        is_peer: bool,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: Instant,
    ) -> Result<(), ViError> {
        let answer = self.own_answer(vi.0, greeting)?;
        let (discriminator, from) = (discriminator.to_vec(), self.place.id);
        let call = Box::new(Call { to: to.id, from, is_peer, discriminator, answer });
        let name = self.name("the number of connections")?;
        let dialed = Line::dial(self.place.socket, to.socket);
        let found = self.vi_mut(vi)?;
        found.state = ViState::PendingConnect;
        match dialed {
            Ok(line) => {
                found.line = Some(name);
                let talk = Talk { line, stage: Stage::Dialing { vi: vi.0, call }, deadline: None };
                self.begin(name, talk, deadline);
            }
            Err(end) => self.refused(vi.0, reason_of(end, Reason::TransportFailed)),
        }
        Ok(())
    }

    /// Connects to a peer that wants this one too.
    pub(super) fn meet(
        &mut self,
        vi: ViId,
        to: Place,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: Instant,
    ) -> Result<(), ViError> {
        let is_waited_for = |other: &Vi| {
            let wish = other.wish.as_ref();
            wish.is_some_and(|wish| wish.peer == to.id && wish.discriminator == discriminator)
        };
        let calls = if to.id == self.place.id {
            // Of two VIs of one NIC the second calls.
            self.vis.values().any(is_waited_for)
        } else {
            self.place.id < to.id
        };
        if calls {
            return self.call(vi, to, true, discriminator, greeting, deadline);
        }
        let wish = Wish {
            peer: to.id,
            discriminator: discriminator.to_vec(),
            greeting: greeting.to_vec(),
            deadline,
        };
        let parked = self.talks.iter().find(|(_, talk)| match &talk.stage {
            Stage::Parked { call } => wish.is_for(call),
            _ => false,
        });
        let parked = parked.map(|(name, _)| *name);
        let found = self.vi_mut(vi)?;
        found.state = ViState::PendingConnect;
        found.wish = Some(wish);
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
        self.finish(name, Some(&Frame::Refuse(Reason::Rejected)));
        Ok(())
    }

    // -------------------------------------------------------------- queue pairs

    /// Makes the queue pair of a VI, unless it has one, and returns what the peer must know.
    fn own_answer(&mut self, name: u32, greeting: &[u8]) -> Result<Answer, ViError> {
        let link_name = self.name("the number of connections")?;
        let vi = self.vis.get(&name).ok_or(ViError::UnknownVi(ViId(name)))?;
        let reliability = vi.attributes.reliability;
        let [sends, receives] = vi.queues.map(|queue| self.device_queue(queue));
        let (Some(sends), Some(receives)) = (sends, receives) else {
            return Err(ViError::Io(io::ErrorKind::NotFound.into()));
        };
        let shape = self.device.shape(vi.is_reliable());
        let pair = QueuePair::new(&vi.domain, &sends, &receives, &shape)?;
        pair.reset(self.device.exit, &vi.attributes)?;
        let own = End {
            number: pair.number,
            first_packet: u32::from_le_bytes(random()?) & PACKET_NUMBER_MAX,
            gid: self.device.gid,
            lid: self.device.limits.lid,
            mtu: self.device.limits.mtu,
            reads: self.device.limits.reads,
        };
        self.links.insert(link_name, name);
        if let Some(vi) = self.vis.get_mut(&name) {
            vi.link = Some(Link::new(pair, link_name, own));
        }
        Ok(Answer { reliability, end: own, greeting: greeting.to_vec() })
    }

    /// Posts the receive descriptors of a VI, and connects its queue pair with the peer's.
    fn activate(&mut self, name: u32, peer: &End) -> io::Result<()> {
        let Some(vi) = self.vis.get_mut(&name) else { return Ok(()) };
        let Some(link) = &mut vi.link else { return Ok(()) };
        let most = self.device.attributes.max_transfer;
        for posted in &vi.receives {
            let mut pieces = self.table.scatter(vi.attributes.tag, &posted.segments, most);
            link.pair.post_receive(link.receive_number(), pieces.as_mut_slice())?;
            link.posted();
        }
        link.pair.connect(self.device.exit, &link.own, peer)?;
        link.peer = Some(*peer);
        Ok(())
    }

    /// Ends the queue pair of a VI, after taking what it has completed.
    fn unplug(&mut self, name: u32) {
        let Some(vi) = self.vis.get(&name) else { return };
        let Some(link) = &vi.link else { return };
        let (link_name, queues) = (link.name, vi.queues);
        if link.is_active() {
            // Those that are done come first, then those that are flushed.
            for queue in queues {
                self.drain(queue);
            }
            let is_failing = self.vis.get(&name).and_then(|vi| vi.link.as_ref());
            let is_failing = is_failing.is_some_and(|link| link.pair.fail().is_ok());
            for _ in 0..if is_failing { FLUSH_LOOKS } else { 0 } {
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

    /// Starts the queue pair of an unreliable VI again, which the device has stopped.
    fn revive(&mut self, name: u32) -> Result<(), ViError> {
        let link_name = self.name("the number of connections")?;
        let Some(vi) = self.vis.get(&name) else { return Ok(()) };
        for queue in vi.queues {
            self.drain(queue);
        }
        let exit = self.device.exit;
        let Some(vi) = self.vis.get_mut(&name) else { return Ok(()) };
        vi.fault = None;
        vi.silent = 0;
        let Some(link) = &mut vi.link else { return Ok(()) };
        let Some(peer) = link.peer.take() else { return Ok(()) };
        link.pair.reset(exit, &vi.attributes)?;
        self.links.remove(&link.name);
        link.rename(link_name);
        self.links.insert(link_name, name);
        vi.flush_sends(&mut self.desk);
        Ok(self.activate(name, &peer)?)
    }

    // -------------------------------------------------------------- lines

    /// Counts a line in.
    fn begin(&mut self, name: u32, mut talk: Talk, deadline: Instant) {
        talk.deadline = Some(deadline);
        talk.line.wants_room = talk.line.needs_room();
        let watched = self.watch(&talk.line.socket, Source::Line(name), talk.line.wants_room);
        self.talks.insert(name, talk);
        self.expect(deadline);
        if watched.is_err() {
            self.lost(name, LineEnd::Closed);
        }
    }

    /// Sees to it that somebody looks at the time then.
    pub(super) fn expect(&mut self, deadline: Instant) {
        self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
    }

    /// Says the last word on a line, which stays until the other side has read it.
    fn finish(&mut self, name: u32, last: Option<&Frame>) {
        let deadline = self.now + FAREWELL_TIME;
        let Some(talk) = self.talks.get_mut(&name) else { return };
        if let Some(frame) = last {
            talk.line.send(frame);
        }
        talk.line.finish();
        talk.stage = Stage::Ending;
        talk.deadline = Some(deadline);
        self.expect(deadline);
    }

    /// Looks at the sockets. Returns whether anything was there.
    pub(super) fn look_at_sockets(&mut self) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut room = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut room, Some(&none)) {
            Ok((events, _)) => events,
            Err(_) => &[],
        };
        for event in events {
            match Source::from_data(event.data.u64()) {
                Source::Listener => self.take_callers(),
                Source::Channel => drop(self.quiet_channel()),
                Source::Line(name) => self.hear(name),
            }
        }
        !events.is_empty()
    }

    fn take_callers(&mut self) {
        for _ in 0..FRAMES_MAX {
            let Ok((stream, _)) = self.listener.accept() else { return };
            let is_stranger = |talk: &&Talk| matches!(talk.stage, Stage::Fresh | Stage::Welcomed);
            if self.talks.values().filter(is_stranger).count() >= STRANGERS_MAX {
                continue;
            }
            let is_set = stream.set_nonblocking(true).is_ok();
            let (Ok(line), true) = (Line::answer(stream.into()), is_set) else { continue };
            let Ok(name) = self.name("the number of connections") else { return };
            let talk = Talk { line, stage: Stage::Fresh, deadline: None };
            self.begin(name, talk, self.now + ANSWER_TIME);
        }
    }

    /// Takes what has come on a line.
    fn hear(&mut self, name: u32) {
        for _ in 0..FRAMES_MAX {
            let Some(talk) = self.talks.get_mut(&name) else { return };
            if matches!(talk.stage, Stage::Ending) {
                if talk.line.has_finished() {
                    self.talks.remove(&name);
                }
                return;
            }
            let heard = match talk.line.has_connected() {
                Ok(true) => random().map_err(|_| LineEnd::Closed).map(|nonce| {
                    talk.line.hello(&self.secret, nonce);
                    None
                }),
                Ok(false) if talk.line.is_dialing() => return,
                Ok(false) => talk.line.receive(),
                Err(end) => Err(end),
            };
            let heard = match heard {
                Ok(Some(frame)) => self.heard(name, frame),
                Ok(None) => break,
                Err(end) => Err(end),
            };
            if let Err(end) = heard {
                return self.lost(name, end);
            }
        }
        self.tend(name);
    }

    /// Gives the kernel what waits, and asks to be told when it takes more.
    fn tend(&mut self, name: u32) {
        let Some(talk) = self.talks.get_mut(&name) else { return };
        talk.line.flush();
        let wants_room = talk.line.needs_room();
        if wants_room == talk.line.wants_room {
            return;
        }
        talk.line.wants_room = wants_room;
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wants_room);
        let data = epoll::EventData::new_u64(Source::Line(name).to_data());
        let changed = epoll::modify(&self.epoll, &talk.line.socket, data, flags);
        if changed.is_err() {
            self.lost(name, LineEnd::Closed);
        }
    }

    fn heard(&mut self, name: u32, frame: Frame) -> Result<(), LineEnd> {
        let Some(talk) = self.talks.get_mut(&name) else { return Ok(()) };
        match (&mut talk.stage, frame) {
            (Stage::Dialing { vi, .. }, Frame::Welcome { .. }) => {
                let next = Stage::Calling { vi: *vi };
                if let Stage::Dialing { call, .. } = mem::replace(&mut talk.stage, next) {
                    talk.line.send(&Frame::Call(*call));
                }
            }
            (Stage::Calling { vi }, Frame::Accept(answer)) => {
                let vi = *vi;
                self.answered(name, vi, answer);
            }
            (Stage::Calling { vi } | Stage::Accepted { vi, .. }, Frame::Refuse(reason)) => {
                let vi = *vi;
                self.finish(name, None);
                self.refused(vi, reason);
            }
            (Stage::Fresh, Frame::Hello { nonce }) => {
                let own = random().map_err(|_| LineEnd::Closed)?;
                talk.line.set_key(self.secret.line_key(&nonce, &own));
                talk.line.send(&Frame::Welcome { nonce: own });
                talk.stage = Stage::Welcomed;
            }
            (Stage::Welcomed, Frame::Call(call)) => self.called(name, call),
            (Stage::Accepted { vi, .. }, Frame::Ready) => {
                let vi = *vi;
                self.ready(vi);
            }
            // It stands already, since data has come.
            (Stage::Up { .. }, Frame::Ready) => {}
            (Stage::Up { vi }, Frame::Bye) => {
                let vi = *vi;
                self.broken(vi, Reason::Disconnected, None);
            }
            (Stage::Up { vi }, Frame::Failed { reason, report }) => {
                let vi = *vi;
                self.peer_failed(vi, reason, report);
            }
            _ => return Err(LineEnd::Fault("a frame out of turn")),
        }
        Ok(())
    }

    /// A line has ended by itself.
    fn lost(&mut self, name: u32, end: LineEnd) {
        let Some(talk) = self.talks.remove(&name) else { return };
        match talk.stage {
            // Whoever hangs up on a greeting does not think that this one knows the secret.
            Stage::Dialing { vi, .. } => self.refused(vi, reason_of(end, Reason::Rejected)),
            Stage::Calling { vi } | Stage::Accepted { vi, .. } => {
                self.refused(vi, reason_of(end, Reason::PeerDied));
            }
            Stage::Requested { request, .. } => drop(self.requests.remove(&request.0)),
            // It has said why, and ended: the device's word on which descriptor that befell is still to come.
            Stage::Up { vi } if end == LineEnd::Closed && self.is_told(vi) => {}
            Stage::Up { vi } => self.broken(vi, reason_of(end, Reason::PeerDied), None),
            Stage::Fresh | Stage::Welcomed | Stage::Parked { .. } | Stage::Ending => {}
        }
    }

    fn is_told(&self, vi: u32) -> bool {
        self.vis.get(&vi).is_some_and(|vi| vi.told.is_some())
    }

    // -------------------------------------------------------------- the answerer's side

    /// A caller that knows the secret has said what it wants.
    fn called(&mut self, name: u32, call: Call) {
        let is_known = self.listening.contains(&call.discriminator);
        let refusal = if call.to != self.place.id || !(is_known || call.is_peer) {
            Some(Reason::NotListening)
        } else if self.requests.len() >= REQUESTS_MAX {
            Some(Reason::Rejected)
        } else {
            None
        };
        if let Some(reason) = refusal {
            return self.finish(name, Some(&Frame::Refuse(reason)));
        }
        let request = self.next_request();
        let Some(talk) = self.talks.get_mut(&name) else { return };
        // The caller's own deadline counts from here on.
        talk.deadline = None;
        let call = Box::new(call);
        if call.is_peer {
            let is_meant = |vi: &&Vi| vi.wish.as_ref().is_some_and(|wish| wish.is_for(&call));
            let waiting = self.vis.values().find(is_meant).map(|vi| vi.id.0);
            talk.stage = Stage::Parked { call };
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
        talk.stage = Stage::Requested { request, call };
        self.requests.insert(request.0, name);
        self.desk.events.push_back(event);
    }

    /// Answers a parked call with the VI that wished for it.
    fn answer_peer(&mut self, name: u32, vi: u32) {
        let wish = self.vis.get_mut(&vi).and_then(|vi| vi.wish.take());
        let Some(wish) = wish else { return };
        match self.own_answer(vi, &wish.greeting) {
            Ok(own) => self.agree(name, vi, own),
            Err(_) => {
                self.finish(name, Some(&Frame::Refuse(Reason::Rejected)));
                self.refused(vi, Reason::TransportFailed);
            }
        }
    }

    /// Connects a VI to a caller, and tells it.
    fn agree(&mut self, name: u32, vi: u32, own: Answer) {
        let deadline = self.now + ANSWER_TIME;
        let Some(talk) = self.talks.get_mut(&name) else {
            return self.refused(vi, Reason::PeerDied);
        };
        let (Stage::Requested { call, .. } | Stage::Parked { call }) = &talk.stage else {
            return self.refused(vi, Reason::PeerDied);
        };
        let peer = call.answer.clone();
        let refusal = if peer.reliability != own.reliability {
            Some(MISMATCH)
        } else if self.activate(vi, &peer.end).is_err() {
            Some(Reason::TransportFailed)
        } else {
            None
        };
        if let Some(reason) = refusal {
            self.finish(name, Some(&Frame::Refuse(reason)));
            return self.refused(vi, reason);
        }
        let Some(talk) = self.talks.get_mut(&name) else { return };
        talk.stage = Stage::Accepted { vi, greeting: peer.greeting };
        talk.deadline = Some(deadline);
        talk.line.send(&Frame::Accept(own));
        if let Some(vi) = self.vis.get_mut(&vi) {
            vi.line = Some(name);
        }
        self.expect(deadline);
        self.tend(name);
    }

    /// The caller uses the connection, or says that it will: it stands.
    pub(super) fn ready(&mut self, name: u32) {
        let Some(vi) = self.vis.get_mut(&name) else { return };
        if vi.state != ViState::PendingConnect {
            return;
        }
        let Some(talk) = vi.line.and_then(|line| self.talks.get_mut(&line)) else { return };
        let Stage::Accepted { greeting, .. } = &mut talk.stage else { return };
        let greeting = mem::take(greeting);
        talk.stage = Stage::Up { vi: name };
        talk.deadline = None;
        vi.state = vi.state.after(ViEvent::Establish).unwrap_or(vi.state);
        self.desk.events.push_back(NicEvent::Connected { vi: vi.id, greeting });
    }

    // -------------------------------------------------------------- the caller's side

    fn answered(&mut self, name: u32, vi: u32, answer: Answer) {
        let Some(found) = self.vis.get(&vi) else { return };
        let id = found.id;
        let refusal = if answer.reliability != found.attributes.reliability {
            Some(MISMATCH)
        } else if self.activate(vi, &answer.end).is_err() {
            Some(Reason::TransportFailed)
        } else {
            None
        };
        if let Some(reason) = refusal {
            self.finish(name, Some(&Frame::Refuse(reason)));
            return self.refused(vi, reason);
        }
        if let Some(talk) = self.talks.get_mut(&name) {
            talk.stage = Stage::Up { vi };
            talk.deadline = None;
            talk.line.send(&Frame::Ready);
        }
        if let Some(found) = self.vis.get_mut(&vi) {
            found.state = found.state.after(ViEvent::Establish).unwrap_or(found.state);
        }
        let greeting = answer.greeting;
        self.desk.events.push_back(NicEvent::Connected { vi: id, greeting });
    }

    /// A VI is idle again, without a connection. What was posted to receive stays.
    fn refused(&mut self, name: u32, reason: Reason) {
        let Some(vi) = self.vis.get_mut(&name) else { return };
        if let Some(link) = vi.link.take() {
            self.links.remove(&link.name);
        }
        vi.line = None;
        vi.forget();
        vi.state = vi.state.after(ViEvent::Refuse).unwrap_or(vi.state);
        self.desk.events.push_back(NicEvent::Refused { vi: vi.id, reason });
    }

    // -------------------------------------------------------------- the end

    /// Ends what a VI has of a connection: its wish, its queue pair, and its line with a last word.
    pub(super) fn part(&mut self, name: u32, last: Option<&Frame>) {
        self.unplug(name);
        let Some(vi) = self.vis.get_mut(&name) else { return };
        vi.wish = None;
        let Some(line) = vi.line.take() else { return };
        let is_up =
            self.talks.get(&line).is_some_and(|talk| matches!(talk.stage, Stage::Up { .. }));
        self.finish(line, last.filter(|_| is_up));
    }

    /// A connection has broken.
    fn broken(&mut self, name: u32, reason: Reason, last: Option<&Frame>) {
        self.part(name, last);
        let Some(vi) = self.vis.get_mut(&name) else { return };
        vi.flush_sends(&mut self.desk);
        vi.flush_receives(&mut self.desk);
        vi.forget();
        vi.state = vi.state.after(ViEvent::Break).unwrap_or(vi.state);
        self.desk.events.push_back(NicEvent::Broken { vi: vi.id, reason });
    }

    /// The peer has broken the connection, and perhaps says what befell a descriptor of this side. Which one, the
    /// device tells; if the peer's answer to it was lost, once it has retried enough.
    fn peer_failed(&mut self, name: u32, reason: Reason, report: Option<Status>) {
        let deadline = self.now + WITNESS_TIME;
        let Some(vi) = self.vis.get_mut(&name) else { return };
        match report {
            Some(status) if vi.is_reliable() => {
                vi.told = Some((status, deadline));
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
                    let last = Frame::Failed { reason: Reason::TransportFailed, report: None };
                    self.broken(name, Reason::TransportFailed, Some(&last));
                }
                continue;
            }
            // The better witness may come with what the queue pair leaves behind.
            self.unplug(name);
            if self.vis.get(&name).is_some_and(|vi| vi.unclear.is_some()) {
                continue;
            }
            let fault = self.vis.get(&name).and_then(|vi| vi.fault).unwrap_or(Fault::Send);
            let last = Frame::Failed { reason: fault.reason(), report: fault.report() };
            self.broken(name, fault.reason(), Some(&last));
        }
        is_news
    }

    /// Ends what has taken too long. Returns whether there was anything.
    pub(super) fn keep_time(&mut self) -> bool {
        if self.due.is_none_or(|due| due > self.now) {
            return false;
        }
        let now = self.now;
        let late = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let lines = self.talks.iter().filter(|(_, talk)| late(talk.deadline));
        for name in lines.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.too_late(name);
        }
        let wishes =
            self.vis.values().filter(|vi| late(vi.wish.as_ref().map(|wish| wish.deadline)));
        for name in wishes.map(|vi| vi.id.0).collect::<Vec<_>>() {
            self.refused(name, Reason::TimedOut);
        }
        let told = |vi: &Vi| late(vi.told.map(|(_, deadline)| deadline)) || late(vi.unclear);
        let told = self.vis.values().filter(|vi| told(vi));
        for name in told.map(|vi| vi.id.0).collect::<Vec<_>>() {
            let reason = Reason::DescriptorFailed;
            self.broken(name, reason, Some(&Frame::Failed { reason, report: None }));
        }
        self.due = self.next_due();
        true
    }

    fn too_late(&mut self, name: u32) {
        let Some(talk) = self.talks.get(&name) else { return };
        match talk.stage {
            Stage::Dialing { vi, .. } | Stage::Calling { vi } | Stage::Accepted { vi, .. } => {
                self.finish(name, None);
                self.refused(vi, Reason::TimedOut);
            }
            _ => drop(self.talks.remove(&name)),
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let lines = self.talks.values().filter_map(|talk| talk.deadline);
        let wishes = self.vis.values().filter_map(|vi| vi.wish.as_ref().map(|wish| wish.deadline));
        let told = self.vis.values().filter_map(|vi| vi.told.map(|(_, deadline)| deadline));
        let unclear = self.vis.values().filter_map(|vi| vi.unclear);
        lines.chain(wishes).chain(told).chain(unclear).min()
    }
}

const MISMATCH: Reason = Reason::Mismatch("another level of reliability");

impl Wish {
    fn is_for(&self, call: &Call) -> bool {
        self.peer == call.from && self.discriminator == call.discriminator
    }
}

const fn reason_of(end: LineEnd, closed: Reason) -> Reason {
    match end {
        LineEnd::Unanswered => Reason::NotListening,
        LineEnd::Closed => closed,
        LineEnd::Fault(what) => Reason::PeerFault(what),
    }
}
