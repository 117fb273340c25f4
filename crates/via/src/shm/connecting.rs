//! How two VIs come together.
//!
//! ```text
//! connect                              listener
//!   Dialing --(1) socket connects-->     caller, silent
//!   Asked   --(2) hello, 2 files --->    caller, known: Requested, or a VI that awaits it
//!           <-(3) welcome, 2 files --    Agreed (accept)
//!   connected -(4) confirm ---------->   connected
//! ```
//!
//! (1) [`Shm::dial`], (2) [`Shm::hear_caller`], (3) [`Shm::agree`] and [`Shm::hear_welcome`], (4)
//! [`Shm::hear_confirm`]. Peer to peer, the NIC with the smaller name connects, and the other awaits it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::event::epoll;
use vigie_detect::Instant;

use super::{
    bell::PeerPage,
    layout::{PAGE_BYTES, RING_BYTES, size},
    link::Link,
    nic::{Shm, Source},
    ring::{Consumer, Producer},
    sys::{self, Received},
    vi::Vi,
    wire::{Hello, PACKET_MAX, Packet, Place, Terms},
};
use crate::vi::{Memory, NicEvent, Reason, RequestId, ViError, ViEvent};

/// How long a caller may be silent, and one that was welcomed.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Callers that have not said who they are. The oldest goes if there are more.
const SILENT_MAX: usize = 64;
/// Callers that wait for an answer, each with a descriptor; and what the consumer is told of at a time.
const CALLERS_MAX: usize = 256;
/// Callers taken at a time.
const ACCEPT_MAX: usize = 16;
const EVENTS_MAX: usize = 4096;
/// How long no callers are taken after there was no descriptor for one.
const DEAFNESS: Duration = Duration::from_millis(10);
/// When a socket that could not connect is tried again.
const REDIAL: Duration = Duration::from_millis(1);

/// How far the making of a VI's connection is.
#[derive(Debug)]
pub(super) enum Attempt {
    /// The listener has no room yet.
    Dialing { to: Place, hello: Hello, ring: (OwnedFd, Memory), deadline: Instant },
    /// The hello is sent.
    Asked { to: Place, hello: Hello, socket: OwnedFd, ring: Memory, deadline: Instant },
    /// The other NIC will connect.
    Awaiting { from: Place, discriminator: Vec<u8>, greeting: Vec<u8>, deadline: Instant },
    /// The welcome is sent. If the caller did not wait for it, a VI that awaits a peer goes on with `again`.
    Agreed { link: Box<Link>, greeting: Vec<u8>, deadline: Instant, again: Option<Box<Self>> },
}

impl Attempt {
    const fn deadline(&self) -> Instant {
        match self {
            Self::Dialing { deadline, .. }
            | Self::Asked { deadline, .. }
            | Self::Awaiting { deadline, .. }
            | Self::Agreed { deadline, .. } => *deadline,
        }
    }

    /// Returns whether this side connects, peer to peer, to that NIC for that.
    fn calls_peer(&self, place: &Place, what: &[u8]) -> bool {
        match self {
            Self::Dialing { to, hello, .. } | Self::Asked { to, hello, .. } => {
                to == place && hello.from.is_some() && hello.discriminator == what
            }
            Self::Awaiting { .. } | Self::Agreed { .. } => false,
        }
    }
}

/// Whoever has connected to the listener.
#[derive(Debug)]
pub(super) struct Caller {
    socket: OwnedFd,
    /// Until when it must say who it is.
    deadline: Instant,
    known: Option<Known>,
}

/// What a caller has said.
#[derive(Debug)]
struct Known {
    hello: Hello,
    /// Its ring file and its page.
    ring: Memory,
    page: Memory,
}

/// What a consumer asks for with `connect` and `connect_peer`.
pub(super) struct Wish<'a> {
    pub(super) to: Place,
    pub(super) discriminator: &'a [u8],
    pub(super) greeting: &'a [u8],
    pub(super) deadline: Instant,
}

fn map_both(files: &[OwnedFd]) -> Result<(Memory, Memory), &'static str> {
    let [ring, page] = files else { return Err("a packet without its files") };
    let ring = sys::map_file(ring.as_fd(), size(RING_BYTES), true)?;
    let page = sys::map_file(page.as_fd(), size(PAGE_BYTES), false)?;
    Ok((ring, page))
}

impl Shm {
    fn terms(&self, vi: &Vi) -> Terms {
        let reliability = vi.attributes.reliability;
        Terms { reliability, has_barrier: self.desk.page.has_barrier() }
    }

    /// Neither side has to fence if both sleep with a barrier for all.
    fn peer_page(&self, page: Memory, terms: Terms) -> PeerPage {
        PeerPage::new(page, !(terms.has_barrier && self.desk.page.has_barrier()))
    }

    // ------------------------------------------------------------------ calling

    /// Begins to connect; `is_peer`: with a VI that wants the same.
    pub(super) fn call(
        &mut self,
        name: u32,
        wish: &Wish<'_>,
        is_peer: bool,
    ) -> Result<(), ViError> {
        let Some(vi) = self.vis.get(name) else { return Ok(()) };
        let hello = Hello {
            token: wish.to.token,
            terms: self.terms(vi),
            from: is_peer.then_some(self.place),
            discriminator: wish.discriminator.to_vec(),
            greeting: wish.greeting.to_vec(),
        };
        let ring = sys::make_file(size(RING_BYTES), false)?;
        let Some(vi) = self.vis.get_mut(name) else { return Ok(()) };
        vi.change(ViEvent::Connect);
        let (to, deadline) = (wish.to, wish.deadline);
        vi.attempt = Some(Attempt::Dialing { to, hello, ring, deadline });
        self.pending.push(name);
        self.dial(name);
        Ok(())
    }

    /// Connects with a VI of the other NIC that wants the same.
    pub(super) fn call_peer(&mut self, name: u32, wish: &Wish<'_>) -> Result<(), ViError> {
        let is_caller = if wish.to == self.place {
            // Both VIs are here: the first one calls.
            !self.pending.iter().filter_map(|pending| self.vis.get(*pending)).any(|vi| {
                vi.attempt.as_ref().is_some_and(|a| a.calls_peer(&wish.to, wish.discriminator))
            })
        } else {
            self.place.name < wish.to.name
        };
        if is_caller {
            return self.call(name, wish, true);
        }
        let Some(vi) = self.vis.get_mut(name) else { return Ok(()) };
        vi.change(ViEvent::Connect);
        let discriminator = wish.discriminator.to_vec();
        let (greeting, deadline) = (wish.greeting.to_vec(), wish.deadline);
        vi.attempt = Some(Attempt::Awaiting { from: wish.to, discriminator, greeting, deadline });
        self.pending.push(name);
        self.meet_any(name);
        Ok(())
    }

    /// Looks for the peer that a VI awaits among those who have called, and lets those go who have given up since.
    fn meet_any(&mut self, name: u32) {
        for caller in self.callers.names() {
            let attempt = self.vis.get(name).and_then(|vi| vi.attempt.as_ref());
            let Some(Attempt::Awaiting { from, discriminator, .. }) = attempt else { return };
            let Some(found) = self.callers.get(caller) else { continue };
            let is_peer = found.known.as_ref().is_some_and(|known| {
                known.hello.from == Some(*from) && known.hello.discriminator == *discriminator
            });
            if !is_peer {
                continue;
            }
            match hear(&found.socket) {
                // It waits, and has nothing more to say.
                Ok(None) => self.meet(name, caller),
                Ok(Some(_)) => self.turn_away(caller, Reason::PeerFault("more than a hello")),
                Err(reason) => self.turn_away(caller, reason),
            }
        }
    }

    /// (1) Connects the socket, and says hello.
    fn dial(&mut self, name: u32) {
        let Some(vi) = self.vis.get_mut(name) else { return };
        let Some(Attempt::Dialing { to, .. }) = &vi.attempt else { return };
        let connected = sys::connect(&to.socket_name());
        let socket = match connected {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return self.refused(name, Reason::NotListening);
            }
            Err(_) => return self.refused(name, Reason::TransportFailed),
        };
        let Some(Attempt::Dialing { to, hello, ring: (file, ring), deadline }) = vi.attempt.take()
        else {
            return;
        };
        let packet = Packet::Hello(hello.clone()).encode();
        let files = [file.as_fd(), self.desk.page.file()];
        let sent = sys::send(socket.as_fd(), &packet, &files)
            .and_then(|()| self.watch(&socket, Source::Vi(name)));
        let Some(vi) = self.vis.get_mut(name) else { return };
        vi.attempt = Some(Attempt::Asked { to, hello, socket, ring, deadline });
        if sent.is_err() {
            self.refused(name, Reason::TransportFailed);
        }
    }

    /// (3) The answer to a hello.
    pub(super) fn hear_welcome(&mut self, name: u32) {
        let Some(vi) = self.vis.get_mut(name) else { return };
        let Some(Attempt::Asked { socket, .. }) = &vi.attempt else { return };
        let (packet, files) = match hear(socket) {
            Ok(Some(heard)) => heard,
            Ok(None) => return,
            Err(reason) => return self.refused(name, reason),
        };
        let own = vi.attributes.reliability;
        let (terms, greeting) = match packet {
            Packet::Welcome { terms, .. } if terms.reliability != own => {
                let reason = Reason::PeerFault("a welcome at another level of reliability");
                return self.refused(name, reason);
            }
            Packet::Welcome { terms, greeting } => (terms, greeting),
            Packet::Refusal { reason } => return self.refused(name, reason),
            _ => return self.refused(name, Reason::PeerFault("no answer to a hello")),
        };
        let (peer_ring, page) = match map_both(&files) {
            Ok(both) => both,
            Err(what) => return self.refused(name, Reason::PeerFault(what)),
        };
        if sys::send(socket.as_fd(), &Packet::Confirm.encode(), &[]).is_err() {
            return self.refused(name, Reason::PeerDied);
        }
        let Some(Attempt::Asked { socket, ring, .. }) = vi.attempt.take() else { return };
        let (producer, consumer) = (Producer::new(peer_ring), Consumer::new(ring));
        let page = self.peer_page(page, terms);
        let link = Link::new(socket, producer, consumer, page);
        self.connected(name, link, greeting);
    }

    // ------------------------------------------------------------------ being called

    /// Takes those who have connected to the listener.
    pub(super) fn take_callers(&mut self) {
        for _ in 0..ACCEPT_MAX {
            let socket = match sys::accept(self.listener.as_fd()) {
                Ok(Some(socket)) => socket,
                Ok(None) => {
                    self.refusals.strangers += 1;
                    continue;
                }
                Err(error) if is_passing(&error) => return,
                // The caller waits, and would keep this side awake for nothing.
                Err(_) => {
                    if epoll::delete(&self.epoll, &self.listener).is_ok() {
                        self.deaf_until = Some(self.now + DEAFNESS);
                    }
                    return;
                }
            };
            let silent = self.callers.iter().filter(|(_, caller)| caller.known.is_none());
            let (count, oldest) = silent.fold((0, None), |(count, oldest), (name, caller)| {
                let this = (caller.deadline, name);
                (count + 1, Some(oldest.map_or(this, |oldest: (Instant, u32)| oldest.min(this))))
            });
            if count >= SILENT_MAX
                && let Some((_, oldest)) = oldest
            {
                self.callers.remove(oldest);
            }
            // Its time begins when somebody says what time it is: after a sleep nobody has yet.
            let caller = Caller { socket, deadline: Instant::MAX, known: None };
            let Ok(name) = self.callers.insert(caller) else { continue };
            let watched = self
                .callers
                .get(name)
                .map(|caller| self.watch(&caller.socket, Source::Caller(name)));
            if !matches!(watched, Some(Ok(()))) {
                self.callers.remove(name);
            }
        }
    }

    /// (2) A caller says who it is, or leaves.
    pub(super) fn hear_caller(&mut self, name: u32) {
        let Some(caller) = self.callers.get_mut(name) else { return };
        let is_new = caller.known.is_none();
        let (packet, files) = match hear(&caller.socket) {
            Ok(Some(heard)) => heard,
            Ok(None) => return,
            Err(reason) => {
                let is_wrong = is_new && matches!(reason, Reason::PeerFault(_));
                self.refusals.without_secret += u64::from(is_wrong);
                return self.turn_away(name, reason);
            }
        };
        // Who does not know the secret, or says more than hello, hears nothing.
        let hello = match packet {
            Packet::Hello(hello) if is_new && hello.token == self.place.token => hello,
            _ => {
                self.refusals.without_secret += u64::from(is_new);
                return self.turn_away(name, Reason::PeerFault("no hello"));
            }
        };
        let Ok((ring, page)) = map_both(&files) else {
            return self.turn_away(name, Reason::PeerFault("a hello without its files"));
        };
        let (from, discriminator) = (hello.from, hello.discriminator.clone());
        let greeting = hello.greeting.clone();
        caller.known = Some(Known { hello, ring, page });
        caller.deadline = Instant::MAX;
        let known_count = self.callers.iter().filter(|(_, caller)| caller.known.is_some()).count();
        if known_count > CALLERS_MAX || self.desk.events.len() >= EVENTS_MAX {
            return self.turn_away(name, Reason::Rejected);
        }
        let Some(from) = from else {
            if !self.listening.contains(&discriminator) {
                return self.turn_away(name, Reason::NotListening);
            }
            let request = RequestId(name.into());
            let event = NicEvent::Requested { request, discriminator, greeting };
            return self.desk.events.push_back(event);
        };
        let awaiting = self.pending.iter().copied().find(|pending| {
            let attempt = self.vis.get(*pending).and_then(|vi| vi.attempt.as_ref());
            matches!(attempt, Some(Attempt::Awaiting { from: awaited, discriminator: what, .. })
                if *awaited == from && *what == discriminator)
        });
        if let Some(awaiting) = awaiting {
            self.meet(awaiting, name);
        }
    }

    /// Lets a caller go, and tells it why if it may know.
    pub(super) fn turn_away(&mut self, name: u32, reason: Reason) {
        let Some(caller) = self.callers.remove(name) else { return };
        let tells = matches!(
            reason,
            Reason::NotListening | Reason::Rejected | Reason::Mismatch(_) | Reason::TransportFailed
        );
        if tells {
            let _ = sys::send(caller.socket.as_fd(), &Packet::Refusal { reason }.encode(), &[]);
        }
    }

    /// Returns whether a request can still be answered.
    pub(super) fn is_request(&self, name: u32) -> bool {
        self.callers
            .get(name)
            .and_then(|caller| caller.known.as_ref())
            .is_some_and(|known| known.hello.from.is_none())
    }

    /// A VI that awaits a peer, and the peer that calls.
    fn meet(&mut self, name: u32, caller: u32) {
        let Some(vi) = self.vis.get_mut(name) else { return };
        let Some(Attempt::Awaiting { greeting, .. }) = &vi.attempt else { return };
        let greeting = greeting.clone();
        self.agree(name, caller, &greeting);
    }

    /// (3) Welcomes a caller to a VI that is about to connect.
    pub(super) fn agree(&mut self, name: u32, caller: u32, greeting: &[u8]) {
        let Some(vi) = self.vis.get(name) else { return };
        let terms = self.terms(vi);
        let deadline = match &vi.attempt {
            Some(attempt) => attempt.deadline(),
            None => self.now + SILENCE_MAX,
        };
        let fits = self
            .callers
            .get(caller)
            .and_then(|caller| caller.known.as_ref())
            .is_some_and(|known| known.hello.terms.reliability == terms.reliability);
        if !fits {
            let reason = Reason::Mismatch("another level of reliability");
            self.turn_away(caller, reason);
            return self.refused(name, reason);
        }
        let Some(Caller { socket, known: Some(known), .. }) = self.callers.remove(caller) else {
            return;
        };
        let Ok((file, ring)) = sys::make_file(size(RING_BYTES), false) else {
            return self.refused(name, Reason::TransportFailed);
        };
        let packet = Packet::Welcome { terms, greeting: greeting.to_vec() }.encode();
        let files = [file.as_fd(), self.desk.page.file()];
        let data = epoll::EventData::new_u64(Source::Vi(name).to_data());
        let watched = epoll::modify(&self.epoll, &socket, data, epoll::EventFlags::IN);
        if sys::send(socket.as_fd(), &packet, &files).is_err() || watched.is_err() {
            // Who awaits a peer may still be called again.
            if !self.awaits(name) {
                self.refused(name, Reason::Disconnected);
            }
            return;
        }
        let page = self.peer_page(known.page, known.hello.terms);
        let (producer, consumer) = (Producer::new(known.ring), Consumer::new(ring));
        let link = Box::new(Link::new(socket, producer, consumer, page));
        let greeting = known.hello.greeting;
        let is_awaiting = self.awaits(name);
        if let Some(vi) = self.vis.get_mut(name) {
            let again = vi.attempt.take().filter(|_| is_awaiting).map(Box::new);
            vi.attempt = Some(Attempt::Agreed { link, greeting, deadline, again });
        }
        if !self.pending.contains(&name) {
            self.pending.push(name);
        }
    }

    fn awaits(&self, name: u32) -> bool {
        let attempt = self.vis.get(name).and_then(|vi| vi.attempt.as_ref());
        matches!(attempt, Some(Attempt::Awaiting { .. }))
    }

    /// (4) The caller has heard the welcome.
    pub(super) fn hear_confirm(&mut self, name: u32) {
        let Some(vi) = self.vis.get_mut(name) else { return };
        let Some(Attempt::Agreed { link, again, .. }) = &mut vi.attempt else { return };
        match hear(&link.socket) {
            Ok(Some((Packet::Confirm, _))) => {}
            Ok(Some(_)) => return self.refused(name, Reason::PeerFault("no confirmation")),
            Ok(None) => return,
            // It did not wait any longer.
            Err(Reason::PeerDied) => {
                let Some(again) = again.take() else {
                    return self.refused(name, Reason::Disconnected);
                };
                vi.attempt = Some(*again);
                return self.meet_any(name);
            }
            Err(reason) => return self.refused(name, reason),
        }
        let Some(Attempt::Agreed { link, greeting, .. }) = vi.attempt.take() else { return };
        self.connected(name, *link, greeting);
    }

    // ------------------------------------------------------------------ the outcome

    fn connected(&mut self, name: u32, mut link: Link, greeting: Vec<u8>) {
        self.pending.retain(|pending| *pending != name);
        let Some(vi) = self.vis.get_mut(name) else { return };
        for (region, registered) in self.desk.table.regions.iter() {
            if registered.grant(&vi.attributes).is_some() {
                link.announce(crate::vi::MemoryHandle(region));
            }
        }
        link.send_news(&self.desk.table, &vi.attributes);
        vi.link = Some(link);
        vi.change(ViEvent::Establish);
        self.connected.push(name);
        self.desk.events.push_back(NicEvent::Connected { vi: vi.id, greeting });
    }

    pub(super) fn refused(&mut self, name: u32, reason: Reason) {
        self.pending.retain(|pending| *pending != name);
        let Some(vi) = self.vis.get_mut(name) else { return };
        vi.attempt = None;
        vi.change(ViEvent::Refuse);
        self.desk.events.push_back(NicEvent::Refused { vi: vi.id, reason });
    }

    // ------------------------------------------------------------------ time

    /// Ends attempts that took too long, and dials again. Returns whether anything was done.
    pub(super) fn keep_time(&mut self, now: Instant) -> bool {
        let mut is_news = false;
        if !self.pending.is_empty() {
            for name in self.pending.clone() {
                let attempt = self.vis.get(name).and_then(|vi| vi.attempt.as_ref());
                let Some(attempt) = attempt else { continue };
                if attempt.deadline() <= now {
                    is_news = true;
                    self.refused(name, Reason::TimedOut);
                } else if matches!(attempt, Attempt::Dialing { .. }) {
                    self.dial(name);
                }
            }
        }
        if self.deaf_until.is_some_and(|until| until <= now) {
            let watched = self.watch(&self.listener, Source::Listener);
            self.deaf_until = watched.is_err().then_some(now + DEAFNESS);
        }
        for name in self.callers.names() {
            let Some(caller) = self.callers.get_mut(name) else { continue };
            if caller.known.is_none() && caller.deadline == Instant::MAX {
                caller.deadline = now + SILENCE_MAX;
            }
            if caller.deadline <= now {
                is_news = true;
                self.callers.remove(name);
            }
        }
        is_news
    }

    /// Returns when [`keep_time`](Self::keep_time) has something to do.
    pub(super) fn earliest(&self) -> Option<Instant> {
        let attempts = self.pending.iter().filter_map(|name| {
            let attempt = self.vis.get(*name)?.attempt.as_ref()?;
            let deadline = attempt.deadline();
            let dials = matches!(attempt, Attempt::Dialing { .. });
            Some(if dials { deadline.min(self.now + REDIAL) } else { deadline })
        });
        let callers = self.callers.iter().map(|(_, caller)| caller.deadline);
        attempts
            .chain(callers)
            .chain(self.deaf_until)
            .filter(|deadline| *deadline < Instant::MAX)
            .min()
    }
}

/// Returns whether the next look may find a caller, whatever became of this one.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

/// Receives a packet of a connection that is being made, with as many files as belong to it.
fn hear(socket: &OwnedFd) -> Result<Option<(Packet, Vec<OwnedFd>)>, Reason> {
    let mut bytes = [0; PACKET_MAX];
    match sys::receive(socket.as_fd(), &mut bytes) {
        Received::Packet(length, files) => {
            let packet = Packet::decode(bytes.get(..length).unwrap_or(&[]))?;
            if packet.file_count() == files.len() {
                Ok(Some((packet, files)))
            } else {
                Err(Reason::PeerFault("a packet with more or fewer files than belong to it"))
            }
        }
        Received::Nothing => Ok(None),
        Received::End => Err(Reason::PeerDied),
        // There are no descriptors left in this process.
        Received::FilesLost(_) => Err(Reason::TransportFailed),
        Received::Fault(what) => Err(Reason::PeerFault(what)),
    }
}
