//! The connection of two VIs.
//!
//! ```text
//! connect                              listener
//!   Dialing --(1) socket connects-->     caller, silent
//!   Asked   --(2) hello, 2 files --->    caller, known: Requested, or a VI that awaits it
//!           <-(3) welcome, 2 files --    Agreed (accept)
//!   connected -(4) confirm ---------->   connected
//! ```
//!
//! (1) [`Shm::dial`], (2) [`Shm::handle_caller`], (3) [`Shm::agree`] and [`Shm::handle_welcome`], (4)
//! [`Shm::handle_confirm`]. Peer to peer, the NIC with the smaller name connects, and the other awaits it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::event::epoll;
use vigie_detect::Instant;

use super::{
    attempt::{Caller, CallerHello, ConnectAttempt, ConnectRequest},
    connection::ShmConnection,
    layout::{PAGE_BYTES, RING_BYTES, size},
    nic::{EventSource, Shm},
    ring::{Consumer, Producer},
    sys::{self, SocketRead},
    vi::ShmVi,
    wakeup::PeerPage,
    wire::{ConnectionParameters, ControlPacket, Hello, PACKET_MAX},
};
use crate::vi::{DisconnectReason, Memory, NicEvent, RequestId, ViError, ViEvent};

/// The time that a new caller, or one that was welcomed, may stay silent.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most callers that have not identified themselves. Beyond that the oldest is dropped.
const UNIDENTIFIED_MAX: usize = 64;
/// The most callers that wait for an answer (each holds a descriptor), and the most of which the
/// consumer is told at once.
const CALLERS_MAX: usize = 256;
/// The most callers accepted per call.
const ACCEPT_MAX: usize = 16;
const EVENTS_MAX: usize = 4096;
/// The time for which accepting pauses after this process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// The time after which a socket that could not connect is tried again.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(1);

fn map_both(files: &[OwnedFd]) -> Result<(Memory, Memory), &'static str> {
    let [ring, page] = files else { return Err("a packet without its files") };
    let ring = sys::map_file(ring.as_fd(), size(RING_BYTES), true)?;
    let page = sys::map_file(page.as_fd(), size(PAGE_BYTES), false)?;
    Ok((ring, page))
}

impl Shm {
    fn parameters(&self, vi: &ShmVi) -> ConnectionParameters {
        let reliability = vi.core.attributes.reliability;
        ConnectionParameters { reliability, has_barrier: self.nic_state.page.has_barrier() }
    }

    /// Neither side has to fence if both announce their sleep with a barrier.
    fn peer_page(&self, page: Memory, parameters: ConnectionParameters) -> PeerPage {
        PeerPage::new(page, !(parameters.has_barrier && self.nic_state.page.has_barrier()))
    }

    // ------------------------------------------------------------------ calling

    /// Begins to connect; `is_peer`: with a VI that makes the same request.
    pub(super) fn call(
        &mut self,
        name: u32,
        connect_request: &ConnectRequest<'_>,
        is_peer: bool,
    ) -> Result<(), ViError> {
        let Some(vi) = self.vis.get(name) else { return Ok(()) };
        let hello = Hello {
            token: connect_request.to.token,
            parameters: self.parameters(vi),
            from: is_peer.then_some(self.place),
            discriminator: connect_request.discriminator.to_vec(),
            greeting: connect_request.greeting.to_vec(),
        };
        let ring = sys::make_file(size(RING_BYTES), false)?;
        let Some(vi) = self.vis.get_mut(name) else { return Ok(()) };
        vi.core.change(ViEvent::Connect);
        let (to, deadline) = (connect_request.to, connect_request.deadline);
        vi.attempt = Some(ConnectAttempt::Dialing { to, hello, ring, deadline });
        self.pending.push(name);
        self.dial(name);
        Ok(())
    }

    /// Connects with a VI of the other NIC that makes the same request.
    pub(super) fn call_peer(
        &mut self,
        name: u32,
        connect_request: &ConnectRequest<'_>,
    ) -> Result<(), ViError> {
        let is_caller = if connect_request.to == self.place {
            // Both VIs are here: the first one calls.
            !self.pending.iter().filter_map(|pending| self.vis.get(*pending)).any(|vi| {
                vi.attempt.as_ref().is_some_and(|a| {
                    a.calls_peer(&connect_request.to, connect_request.discriminator)
                })
            })
        } else {
            self.place.name < connect_request.to.name
        };
        if is_caller {
            return self.call(name, connect_request, true);
        }
        let Some(vi) = self.vis.get_mut(name) else { return Ok(()) };
        vi.core.change(ViEvent::Connect);
        let discriminator = connect_request.discriminator.to_vec();
        let (greeting, deadline) = (connect_request.greeting.to_vec(), connect_request.deadline);
        vi.attempt = Some(ConnectAttempt::Awaiting {
            from: connect_request.to,
            discriminator,
            greeting,
            deadline,
        });

        self.pending.push(name);
        self.pair_with_any(name);
        Ok(())
    }

    /// Searches the callers for the peer that a VI awaits, and drops callers that have given up.
    fn pair_with_any(&mut self, name: u32) {
        for caller in self.callers.keys().collect::<Vec<_>>() {
            let attempt = self.vis.get(name).and_then(|vi| vi.attempt.as_ref());
            let Some(ConnectAttempt::Awaiting { from, discriminator, .. }) = attempt else {
                return;
            };
            let Some(found) = self.callers.get(caller) else { continue };
            let is_peer = found.known.as_ref().is_some_and(|known| {
                known.hello.from == Some(*from) && known.hello.discriminator == *discriminator
            });
            if !is_peer {
                continue;
            }
            match receive_packet(&found.socket) {
                // It still waits, and has sent nothing more.
                Ok(None) => self.pair_with(name, caller),
                Ok(Some(_)) => {
                    self.reject_caller(caller, DisconnectReason::PeerFault("more than a hello"))
                }
                Err(reason) => self.reject_caller(caller, reason),
            }
        }
    }

    /// (1) Connects the socket and sends the hello.
    fn dial(&mut self, name: u32) {
        let Some(vi) = self.vis.get_mut(name) else { return };
        let Some(ConnectAttempt::Dialing { to, .. }) = &vi.attempt else { return };
        let connected = sys::connect(&to.socket_name());
        let socket = match connected {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return self.refused(name, DisconnectReason::NotListening);
            }
            Err(_) => return self.refused(name, DisconnectReason::TransportFailed),
        };

        let Some(ConnectAttempt::Dialing { to, hello, ring: (file, ring), deadline }) =
            vi.attempt.take()
        else {
            return;
        };
        let packet = ControlPacket::Hello(hello.clone()).encode();
        let files = [file.as_fd(), self.nic_state.page.file()];
        let sent = sys::send(socket.as_fd(), &packet, &files)
            .and_then(|()| self.watch(&socket, EventSource::Vi(name)));
        let Some(vi) = self.vis.get_mut(name) else { return };
        vi.attempt = Some(ConnectAttempt::Asked { to, hello, socket, ring, deadline });
        if sent.is_err() {
            self.refused(name, DisconnectReason::TransportFailed);
        }
    }

    /// (3) Handles the answer to a hello.
    pub(super) fn handle_welcome(&mut self, name: u32) {
        let Some(vi) = self.vis.get_mut(name) else { return };
        let Some(ConnectAttempt::Asked { socket, .. }) = &vi.attempt else { return };
        let (packet, files) = match receive_packet(socket) {
            Ok(Some(heard)) => heard,
            Ok(None) => return,
            Err(reason) => return self.refused(name, reason),
        };

        let own = vi.core.attributes.reliability;
        let (parameters, greeting) = match packet {
            ControlPacket::Welcome { parameters, .. } if parameters.reliability != own => {
                let reason =
                    DisconnectReason::PeerFault("a welcome at another level of reliability");
                return self.refused(name, reason);
            }
            ControlPacket::Welcome { parameters, greeting } => (parameters, greeting),
            ControlPacket::Refusal { reason } => return self.refused(name, reason),
            _ => return self.refused(name, DisconnectReason::PeerFault("no answer to a hello")),
        };

        let (peer_ring, page) = match map_both(&files) {
            Ok(both) => both,
            Err(what) => return self.refused(name, DisconnectReason::PeerFault(what)),
        };

        if sys::send(socket.as_fd(), &ControlPacket::Confirm.encode(), &[]).is_err() {
            return self.refused(name, DisconnectReason::PeerDied);
        }
        let Some(ConnectAttempt::Asked { socket, ring, .. }) = vi.attempt.take() else { return };
        let (producer, consumer) = (Producer::new(peer_ring), Consumer::new(ring));
        let page = self.peer_page(page, parameters);
        let connection = ShmConnection::new(socket, producer, consumer, page);
        self.connected(name, connection, greeting);
    }

    // ------------------------------------------------------------------ being called

    /// Accepts the callers that have connected to the listener.
    pub(super) fn take_callers(&mut self) {
        for _ in 0..ACCEPT_MAX {
            let socket = match sys::accept(self.listener.as_fd()) {
                Ok(Some(socket)) => socket,
                Ok(None) => {
                    self.refusals.other_users += 1;
                    continue;
                }
                Err(error) if is_passing(&error) => return,
                // Otherwise the waiting caller would keep this side awake for nothing.
                Err(_) => {
                    if epoll::delete(&self.epoll, &self.listener).is_ok() {
                        self.accept_paused_until = Some(self.now + ACCEPT_PAUSE);
                    }
                    return;
                }
            };

            let silent = self.callers.iter().filter(|(_, caller)| caller.known.is_none());
            let (count, oldest) = silent.fold((0, None), |(count, oldest), (name, caller)| {
                let this = (caller.deadline, name);
                (count + 1, Some(oldest.map_or(this, |oldest: (Instant, u32)| oldest.min(this))))
            });
            if count >= UNIDENTIFIED_MAX
                && let Some((_, oldest)) = oldest
            {
                self.callers.remove(oldest);
            }
            // Its time starts with the next `progress`: right after a sleep, `now` is stale.
            let caller = Caller { socket, deadline: Instant::MAX, known: None };
            let Ok(name) = self.callers.try_insert(caller) else { continue };
            let watched = self
                .callers
                .get(name)
                .map(|caller| self.watch(&caller.socket, EventSource::Caller(name)));
            if !matches!(watched, Some(Ok(()))) {
                self.callers.remove(name);
            }
        }
    }

    /// (2) Handles a caller that identifies itself, or leaves.
    pub(super) fn handle_caller(&mut self, name: u32) {
        let Some(caller) = self.callers.get_mut(name) else { return };
        let is_new = caller.known.is_none();
        let (packet, files) = match receive_packet(&caller.socket) {
            Ok(Some(heard)) => heard,
            Ok(None) => return,
            Err(reason) => {
                let is_wrong = is_new && matches!(reason, DisconnectReason::PeerFault(_));
                self.refusals.without_secret += u64::from(is_wrong);
                return self.reject_caller(name, reason);
            }
        };

        // A caller that does not know the secret, or sends more than a hello, gets no answer.
        let hello = match packet {
            ControlPacket::Hello(hello) if is_new && hello.token == self.place.token => hello,
            _ => {
                self.refusals.without_secret += u64::from(is_new);
                return self.reject_caller(name, DisconnectReason::PeerFault("no hello"));
            }
        };

        let Ok((ring, page)) = map_both(&files) else {
            return self
                .reject_caller(name, DisconnectReason::PeerFault("a hello without its files"));
        };
        let (from, discriminator) = (hello.from, hello.discriminator.clone());
        let greeting = hello.greeting.clone();
        caller.known = Some(CallerHello { hello, ring, page });
        caller.deadline = Instant::MAX;
        let known_count = self.callers.iter().filter(|(_, caller)| caller.known.is_some()).count();
        if known_count > CALLERS_MAX || self.nic_state.events.len() >= EVENTS_MAX {
            return self.reject_caller(name, DisconnectReason::Rejected);
        }
        let Some(from) = from else {
            if !self.listening.contains(&discriminator) {
                return self.reject_caller(name, DisconnectReason::NotListening);
            }
            let request = RequestId(name.into());
            let event = NicEvent::Requested { request, discriminator, greeting };
            return self.nic_state.events.push_back(event);
        };

        let awaiting = self.pending.iter().copied().find(|pending| {
            let attempt = self.vis.get(*pending).and_then(|vi| vi.attempt.as_ref());
            matches!(attempt, Some(ConnectAttempt::Awaiting { from: awaited, discriminator: what, .. })
                if *awaited == from && *what == discriminator)
        });
        if let Some(awaiting) = awaiting {
            self.pair_with(awaiting, name);
        }
    }

    /// Drops a caller, and tells it why if it may know.
    pub(super) fn reject_caller(&mut self, name: u32, reason: DisconnectReason) {
        let Some(caller) = self.callers.remove(name) else { return };
        let tells = matches!(
            reason,
            DisconnectReason::NotListening
                | DisconnectReason::Rejected
                | DisconnectReason::Mismatch(_)
                | DisconnectReason::TransportFailed
        );
        if tells {
            let _ =
                sys::send(caller.socket.as_fd(), &ControlPacket::Refusal { reason }.encode(), &[]);
        }
    }

    /// Returns whether a request can still be answered.
    pub(super) fn is_request(&self, name: u32) -> bool {
        self.callers
            .get(name)
            .and_then(|caller| caller.known.as_ref())
            .is_some_and(|known| known.hello.from.is_none())
    }

    /// Connects a VI that awaits a peer with the peer that calls.
    fn pair_with(&mut self, name: u32, caller: u32) {
        let Some(vi) = self.vis.get_mut(name) else { return };
        let Some(ConnectAttempt::Awaiting { greeting, .. }) = &vi.attempt else { return };
        let greeting = greeting.clone();
        self.agree(name, caller, &greeting);
    }

    /// (3) Welcomes a caller to a VI that is about to connect.
    pub(super) fn agree(&mut self, name: u32, caller: u32, greeting: &[u8]) {
        let Some(vi) = self.vis.get(name) else { return };
        let parameters = self.parameters(vi);
        let deadline = match &vi.attempt {
            Some(attempt) => attempt.deadline(),
            None => self.now + HANDSHAKE_TIMEOUT,
        };

        let fits = self
            .callers
            .get(caller)
            .and_then(|caller| caller.known.as_ref())
            .is_some_and(|known| known.hello.parameters.reliability == parameters.reliability);
        if !fits {
            let reason = DisconnectReason::Mismatch("another level of reliability");
            self.reject_caller(caller, reason);
            return self.refused(name, reason);
        }

        let Some(Caller { socket, known: Some(known), .. }) = self.callers.remove(caller) else {
            return;
        };
        let Ok((file, ring)) = sys::make_file(size(RING_BYTES), false) else {
            return self.refused(name, DisconnectReason::TransportFailed);
        };
        let packet = ControlPacket::Welcome { parameters, greeting: greeting.to_vec() }.encode();
        let files = [file.as_fd(), self.nic_state.page.file()];
        let data = epoll::EventData::new_u64(EventSource::Vi(name).to_data());
        let watched = epoll::modify(&self.epoll, &socket, data, epoll::EventFlags::IN);
        if sys::send(socket.as_fd(), &packet, &files).is_err() || watched.is_err() {
            // A VI that awaits a peer may be called again.
            if !self.awaits(name) {
                self.refused(name, DisconnectReason::Disconnected);
            }
            return;
        }

        let page = self.peer_page(known.page, known.hello.parameters);
        let (producer, consumer) = (Producer::new(known.ring), Consumer::new(ring));
        let connection = Box::new(ShmConnection::new(socket, producer, consumer, page));
        let greeting = known.hello.greeting;
        let is_awaiting = self.awaits(name);
        if let Some(vi) = self.vis.get_mut(name) {
            let again = vi.attempt.take().filter(|_| is_awaiting).map(Box::new);
            vi.attempt = Some(ConnectAttempt::Agreed { connection, greeting, deadline, again });
        }

        if !self.pending.contains(&name) {
            self.pending.push(name);
        }
    }

    fn awaits(&self, name: u32) -> bool {
        let attempt = self.vis.get(name).and_then(|vi| vi.attempt.as_ref());
        matches!(attempt, Some(ConnectAttempt::Awaiting { .. }))
    }

    /// (4) The caller confirms the welcome.
    pub(super) fn handle_confirm(&mut self, name: u32) {
        let Some(vi) = self.vis.get_mut(name) else { return };
        let Some(ConnectAttempt::Agreed { connection, again, .. }) = &mut vi.attempt else {
            return;
        };
        match receive_packet(&connection.socket) {
            Ok(Some((ControlPacket::Confirm, _))) => {}
            Ok(Some(_)) => {
                return self.refused(name, DisconnectReason::PeerFault("no confirmation"));
            }
            Ok(None) => return,
            // The caller has given up.
            Err(DisconnectReason::PeerDied) => {
                let Some(again) = again.take() else {
                    return self.refused(name, DisconnectReason::Disconnected);
                };
                vi.attempt = Some(*again);
                return self.pair_with_any(name);
            }
            Err(reason) => return self.refused(name, reason),
        }
        let Some(ConnectAttempt::Agreed { connection, greeting, .. }) = vi.attempt.take() else {
            return;
        };
        self.connected(name, *connection, greeting);
    }

    // ------------------------------------------------------------------ the outcome

    fn connected(&mut self, name: u32, mut connection: ShmConnection, greeting: Vec<u8>) {
        self.pending.retain(|pending| *pending != name);
        let Some(vi) = self.vis.get_mut(name) else { return };
        for (region, registered) in self.nic_state.table.regions.iter() {
            if registered.grant(&vi.core.attributes).is_some() {
                connection.queue_grant(crate::vi::MemoryHandle(region));
            }
        }
        connection.send_memory_updates(&self.nic_state.table, &vi.core.attributes);
        vi.connection = Some(connection);
        vi.core.change(ViEvent::Establish);
        self.connected.push(name);
        self.nic_state.events.push_back(NicEvent::Connected { vi: vi.core.id, greeting });
    }

    pub(super) fn refused(&mut self, name: u32, reason: DisconnectReason) {
        self.pending.retain(|pending| *pending != name);
        let Some(vi) = self.vis.get_mut(name) else { return };
        vi.attempt = None;
        vi.core.change(ViEvent::Refuse);
        self.nic_state.events.push_back(NicEvent::Refused { vi: vi.core.id, reason });
    }

    // ------------------------------------------------------------------ time

    /// Ends attempts that have timed out, and dials again. Returns whether anything was done.
    pub(super) fn expire_attempts(&mut self, now: Instant) -> bool {
        let mut is_news = false;
        if !self.pending.is_empty() {
            for name in self.pending.clone() {
                let attempt = self.vis.get(name).and_then(|vi| vi.attempt.as_ref());
                let Some(attempt) = attempt else { continue };
                if attempt.deadline() <= now {
                    is_news = true;
                    self.refused(name, DisconnectReason::TimedOut);
                } else if matches!(attempt, ConnectAttempt::Dialing { .. }) {
                    self.dial(name);
                }
            }
        }

        if self.accept_paused_until.is_some_and(|until| until <= now) {
            let watched = self.watch(&self.listener, EventSource::Listener);
            self.accept_paused_until = watched.is_err().then_some(now + ACCEPT_PAUSE);
        }

        for name in self.callers.keys().collect::<Vec<_>>() {
            let Some(caller) = self.callers.get_mut(name) else { continue };
            if caller.known.is_none() && caller.deadline == Instant::MAX {
                caller.deadline = now + HANDSHAKE_TIMEOUT;
            }
            if caller.deadline <= now {
                is_news = true;
                self.callers.remove(name);
            }
        }

        is_news
    }

    /// Returns when [`expire_attempts`](Self::expire_attempts) has something to do.
    pub(super) fn earliest(&self) -> Option<Instant> {
        let attempts = self.pending.iter().filter_map(|name| {
            let attempt = self.vis.get(*name)?.attempt.as_ref()?;
            let deadline = attempt.deadline();
            let dials = matches!(attempt, ConnectAttempt::Dialing { .. });
            Some(if dials { deadline.min(self.now + CONNECT_RETRY_INTERVAL) } else { deadline })
        });
        let callers = self.callers.iter().map(|(_, caller)| caller.deadline);
        attempts
            .chain(callers)
            .chain(self.accept_paused_until)
            .filter(|deadline| *deadline < Instant::MAX)
            .min()
    }
}

/// Returns whether the error concerns only this caller, so that the next `accept` may succeed.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

/// Receives a handshake packet with the files that belong to it.
fn receive_packet(
    socket: &OwnedFd,
) -> Result<Option<(ControlPacket, Vec<OwnedFd>)>, DisconnectReason> {
    let mut bytes = [0; PACKET_MAX];
    match sys::receive(socket.as_fd(), &mut bytes) {
        SocketRead::Packet(length, files) => {
            let packet = ControlPacket::decode(bytes.get(..length).unwrap_or(&[]))?;
            if packet.file_count() == files.len() {
                Ok(Some((packet, files)))
            } else {
                Err(DisconnectReason::PeerFault(
                    "a packet with more or fewer files than belong to it",
                ))
            }
        }
        SocketRead::Nothing => Ok(None),
        SocketRead::End => Err(DisconnectReason::PeerDied),
        // This process has no descriptors left.
        SocketRead::FilesLost(_) => Err(DisconnectReason::TransportFailed),
        SocketRead::Fault(what) => Err(DisconnectReason::PeerFault(what)),
    }
}
