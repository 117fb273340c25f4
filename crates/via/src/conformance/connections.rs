//! Connections: how they are established, refused, and end.

use std::io::IoSlice;

use super::{
    Clause, Fixture, Violation,
    testbed::{ConformanceCase, Party, Queues, Testbed, descriptor},
};
use crate::vi::{
    Address, Connect, Data, DisconnectReason, NicEvent, Operation, Provider, Queue, Reliability,
    RequestId, Status, ViError, ViState,
};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, ConformanceCase<F>)> {
    vec![
        ("a client connects to a server", client_server),
        ("peers connect", peers),
        ("no NIC listens", nobody_listens),
        ("a request is rejected", rejected),
        ("a request is not answered", timed_out),
        ("levels differ", mismatch),
        ("a request is withdrawn", withdrawn),
        ("greetings, discriminators and addresses have limits", limits),
        ("calls out of season", wrong_state),
        ("a VI disconnects and connects again", disconnects),
        ("a NIC ends", nic_ends),
    ]
}

use super::violation::CaseResult;

impl<F: Fixture> Testbed<'_, F> {
    /// Calls a listening NIC.
    fn dial(&mut self, caller: &Party, to: usize, what: &[u8], greeting: &[u8]) -> CaseResult {
        let deadline = self.later();
        let address = self.nics[to].address();
        let result = self.nics[caller.nic]
            .connect(Connect::new(caller.vi, &address, what, deadline).greeting(greeting));
        self.call(Clause::Connection, "connect", result)
    }

    fn listens(&mut self, nic: usize, what: &[u8]) -> CaseResult {
        let result = self.nics[nic].listen(what);
        self.call(Clause::Connection, "listen", result)
    }

    fn requested(&mut self, nic: usize, what: &[u8], words: &[u8]) -> Result<RequestId, Violation> {
        match self.event(nic)? {
            NicEvent::Requested { request, discriminator, greeting } => {
                self.expect(Clause::Connection, "the discriminator", &&discriminator[..], &what)?;
                self.expect(Clause::Connection, "the greeting", &&greeting[..], &words)?;
                Ok(request)
            }
            event => Err(self.broken(Clause::Connection, format!("{event:?} is no request"))),
        }
    }

    fn refused_for(&mut self, party: &Party, reason: DisconnectReason) -> CaseResult {
        self.expect_event(party.nic, &NicEvent::Refused { vi: party.vi, reason })?;
        self.expect_state(party, ViState::Idle)
    }

    /// Two VIs, connected by a call and its answer.
    fn dialled(
        &mut self,
        what: &[u8],
        words: &[u8],
        answer: &[u8],
    ) -> Result<(Party, Party), Violation> {
        let (client, server) = (self.party(0, Queues::Own)?, self.party(1, Queues::Own)?);
        self.dial(&client, 1, what, words)?;
        self.expect_state(&client, ViState::PendingConnect)?;
        let request = self.requested(1, what, words)?;
        self.expect_state(&client, ViState::PendingConnect)?;
        let result = self.nics[1].accept(request, server.vi, answer);
        self.call(Clause::Connection, "accept", result)?;
        let greeting = answer.to_vec();
        self.expect_event(0, &NicEvent::Connected { vi: client.vi, greeting })?;
        self.expect_event(1, &NicEvent::Connected { vi: server.vi, greeting: words.to_vec() })?;
        self.expect_state(&client, ViState::Connected)?;
        self.expect_state(&server, ViState::Connected)?;
        Ok((client, server))
    }
}

fn client_server<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    testbed.listens(1, b"a service")?;
    testbed.listens(1, b"another")?;
    for (words, answer) in [(&b"hello"[..], &b"welcome"[..]), (b"", b"")] {
        let (client, server) = testbed.dialled(b"another", words, answer)?;
        testbed.expect_alive(&client, &server)?;
        testbed.expect_alive(&server, &client)?;
    }
    let (client, server) = testbed.dialled(b"a service", &[7; 100], &[8; 1000])?;
    testbed.expect_alive(&client, &server)
}

fn peers<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    // Each side comes first, once so late that the other's call has already arrived.
    for (first, second) in [(0, 1), (1, 0), (1, 2)] {
        for waits in [false, true] {
            let parties = [testbed.party(first, Queues::Own)?, testbed.party(second, Queues::Own)?];
            for (this, other) in [(0, 1), (1, 0)] {
                let deadline = testbed.later();
                let (caller, called) = (&parties[this], &parties[other]);
                let address = testbed.nics[called.nic].address();
                let words = [u8::try_from(caller.nic).unwrap_or(9); 3];
                let nic = &mut testbed.nics[caller.nic];
                let result = nic.connect_peer(
                    Connect::new(caller.vi, &address, b"meet", deadline).greeting(&words),
                );
                testbed.call(Clause::Connection, "connect_peer", result)?;
                if this == 0 {
                    testbed.expect_state(caller, ViState::PendingConnect)?;
                    if waits {
                        testbed.calm();
                    }
                }
            }
            for (this, other) in [(0, 1), (1, 0)] {
                let greeting = vec![u8::try_from(parties[other].nic).unwrap_or(9); 3];
                let Party { nic, vi, .. } = parties[this];
                testbed.expect_event(nic, &NicEvent::Connected { vi, greeting })?;
            }
            testbed.expect_alive(&parties[0], &parties[1])?;
            testbed.expect_alive(&parties[1], &parties[0])?;
        }
    }

    let lonely = testbed.party(0, Queues::Own)?;
    let address = testbed.nics[1].address();
    let deadline = testbed.fixture.now() + testbed.profile.notice;
    let result =
        testbed.nics[0].connect_peer(Connect::new(lonely.vi, &address, b"alone", deadline));
    testbed.call(Clause::Connection, "connect_peer", result)?;
    testbed.refused_for(&lonely, DisconnectReason::TimedOut)
}

fn nobody_listens<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let client = testbed.party(0, Queues::Own)?;
    testbed.listens(1, b"something else")?;
    testbed.dial(&client, 1, b"something", b"")?;
    testbed.refused_for(&client, DisconnectReason::NotListening)?;
    testbed.nics[1].unlisten(b"something else");
    testbed.dial(&client, 1, b"something else", b"")?;
    testbed.refused_for(&client, DisconnectReason::NotListening)?;
    testbed.listens(1, b"something else")?;
    testbed.dialled(b"something else", b"", b"").map(drop)
}

fn rejected<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let client = testbed.party(0, Queues::Own)?;
    testbed.listens(1, b"picky")?;
    testbed.dial(&client, 1, b"picky", b"let me in")?;
    let request = testbed.requested(1, b"picky", b"let me in")?;
    let result = testbed.nics[1].reject(request);
    testbed.call(Clause::Connection, "reject", result)?;
    testbed.refused_for(&client, DisconnectReason::Rejected)?;
    let again = testbed.nics[1].reject(request);
    let is_right = |error: &ViError| matches!(error, ViError::UnknownRequest(_));
    testbed.refused(Clause::Connection, "to answer a request twice", again, is_right)?;
    // The refused VI is still usable.
    testbed.dial(&client, 1, b"picky", b"please")?;
    let request = testbed.requested(1, b"picky", b"please")?;
    let server = testbed.party(1, Queues::Own)?;
    let result = testbed.nics[1].accept(request, server.vi, b"");
    testbed.call(Clause::Connection, "accept", result)?;
    testbed.expect_event(0, &NicEvent::Connected { vi: client.vi, greeting: Vec::new() })?;
    testbed
        .expect_event(1, &NicEvent::Connected { vi: server.vi, greeting: b"please".to_vec() })?;
    testbed.expect_alive(&client, &server)
}

fn timed_out<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let client = testbed.party(0, Queues::Own)?;
    testbed.listens(1, b"slow")?;
    let deadline = testbed.fixture.now() + testbed.profile.notice;
    let address = testbed.nics[1].address();
    let result = testbed.nics[0].connect(Connect::new(client.vi, &address, b"slow", deadline));
    testbed.call(Clause::Connection, "connect", result)?;
    let request = testbed.requested(1, b"slow", b"")?;
    testbed.refused_for(&client, DisconnectReason::TimedOut)?;
    if testbed.fixture.now() < deadline {
        return Err(testbed.broken(Clause::Connection, "a call timed out before its deadline"));
    }
    testbed.calm();
    testbed.answers_too_late(request)
}

impl<F: Fixture> Testbed<'_, F> {
    /// Accepting a request whose caller has gone fails at once, or soon.
    fn answers_too_late(&mut self, request: RequestId) -> CaseResult {
        let server = self.party(1, Queues::Own)?;
        match self.nics[1].accept(request, server.vi, b"") {
            Err(ViError::UnknownRequest(_)) => self.expect_no_event(1),
            Err(error) => {
                Err(self.broken(Clause::Connection, format!("a withdrawn request: {error:?}")))
            }
            Ok(()) => match self.event(1)? {
                NicEvent::Refused { vi, .. } if vi == server.vi => {
                    self.expect_state(&server, ViState::Idle)
                }
                event => Err(self.broken(
                    Clause::Connection,
                    format!("{event:?} after accepting a withdrawn request"),
                )),
            },
        }
    }
}

fn mismatch<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let other = match testbed.level() {
        Reliability::Unreliable => Reliability::ReliableDelivery,
        _ => Reliability::Unreliable,
    };
    if other > testbed.attributes().max_reliability {
        testbed.skip("there is one level only");
        return Ok(());
    }

    let client = testbed.party(0, Queues::Own)?;
    let tag = testbed.nics[1].create_tag();
    let server = testbed.party_with(1, Queues::Own, tag, other)?;
    testbed.listens(1, b"odd")?;
    testbed.dial(&client, 1, b"odd", b"")?;
    let request = testbed.requested(1, b"odd", b"")?;
    let result = testbed.nics[1].accept(request, server.vi, b"");
    testbed.call(Clause::Connection, "accept", result)?;
    for party in [&client, &server] {
        match testbed.event(party.nic)? {
            NicEvent::Refused { vi, reason: DisconnectReason::Mismatch(_) } if vi == party.vi => {
                testbed.expect_state(party, ViState::Idle)?;
            }
            event => {
                let saw = format!("{event:?} where the levels do not fit");
                return Err(testbed.broken(Clause::Connection, saw));
            }
        }
    }

    Ok(())
}

fn withdrawn<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let client = testbed.party(0, Queues::Own)?;
    testbed.listens(1, b"patience")?;
    for is_calm in [true, false] {
        testbed.dial(&client, 1, b"patience", b"")?;
        let request = testbed.requested(1, b"patience", b"")?;
        let result = testbed.nics[0].disconnect(client.vi);
        testbed.call(Clause::Connection, "disconnect", result)?;
        testbed.expect_state(&client, ViState::Idle)?;
        if is_calm {
            testbed.calm();
        }
        testbed.answers_too_late(request)?;
        testbed.expect_no_event(0)?;
    }
    testbed.dialled(b"patience", b"", b"").map(drop)
}

fn limits<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let name = [b'n'; 64];
    testbed.listens(1, &name)?;
    testbed.dialled(&name, &[1; 1024], &[2; 1024])?;
    let too_much = |error: &ViError| matches!(error, ViError::TooMuch { .. });
    let party = testbed.party(0, Queues::Own)?;
    let (address, deadline) = (testbed.nics[1].address(), testbed.later());
    let nic = &mut testbed.nics[0];
    let results = [
        ("to listen for 65 bytes", nic.listen(&[b'n'; 65])),
        ("to call 65 bytes", nic.connect(Connect::new(party.vi, &address, &[b'n'; 65], deadline))),
        (
            "to greet with 1025 bytes",
            nic.connect(Connect::new(party.vi, &address, &name, deadline).greeting(&[0; 1025])),
        ),
        (
            "to greet a peer with 1025 bytes",
            nic.connect_peer(
                Connect::new(party.vi, &address, &name, deadline).greeting(&[0; 1025]),
            ),
        ),
    ];
    for (what, result) in results {
        testbed.refused(Clause::Limit, what, result, too_much)?;
    }
    let again = testbed.nics[1].listen(&name);
    let is_listening = |error: &ViError| matches!(error, ViError::AlreadyListening);
    testbed.refused(Clause::Connection, "to listen twice", again, is_listening)?;
    for bytes in [Vec::new(), b"no such thing".to_vec(), vec![0xff; 255]] {
        let result =
            testbed.nics[0].connect(Connect::new(party.vi, &Address(bytes), &name, deadline));
        let is_bad = |error: &ViError| matches!(error, ViError::BadAddress { .. });
        testbed.refused(Clause::Connection, "a call to a strange address", result, is_bad)?;
    }

    testbed.expect_state(&party, ViState::Idle)?;
    // A greeting that is too long does not consume the request.
    testbed.dial(&party, 1, &name, b"")?;
    let request = testbed.requested(1, &name, b"")?;
    let server = testbed.party(1, Queues::Own)?;
    let result = testbed.nics[1].accept(request, server.vi, &[0; 1025]);
    testbed.refused(Clause::Limit, "to accept with 1025 bytes", result, too_much)?;
    let result = testbed.nics[1].accept(request, server.vi, b"");
    testbed.call(Clause::Connection, "accept", result)
}

fn wrong_state<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let wrong = |error: &ViError| matches!(error, ViError::WrongState { .. });
    let in_use = |error: &ViError| matches!(error, ViError::InUse { .. });
    let pieces = [IoSlice::new(b"too soon")];
    let send = descriptor(Operation::Send, 1, None, Data::Inline(&pieces));
    let idle = testbed.party(0, Queues::Own)?;
    testbed.expect_state(&idle, ViState::Idle)?;
    let result = testbed.nics[0].post_send(idle.vi, &send);
    testbed.refused(Clause::State, "to send while idle", result, wrong)?;
    testbed.listens(1, b"door")?;
    testbed.dial(&idle, 1, b"door", b"")?;
    let result = testbed.nics[0].post_send(idle.vi, &send);
    testbed.refused(Clause::State, "to send while connecting", result, wrong)?;
    let result = testbed.nics[0].destroy_vi(idle.vi);
    testbed.refused(Clause::State, "to destroy while connecting", result, in_use)?;
    let request = testbed.requested(1, b"door", b"")?;
    let (one, other) = testbed.pair()?;
    let result = testbed.nics[1].accept(request, other.vi, b"");
    testbed.refused(Clause::State, "to accept with a connected VI", result, wrong)?;
    let (address, deadline) = (testbed.nics[1].address(), testbed.later());
    let result = testbed.nics[0].connect(Connect::new(one.vi, &address, b"door", deadline));
    testbed.refused(Clause::State, "to connect a connected VI", result, wrong)?;
    let result = testbed.nics[0].connect_peer(Connect::new(one.vi, &address, b"door", deadline));
    testbed.refused(Clause::State, "to connect a connected VI to a peer", result, wrong)?;
    let result = testbed.nics[0].destroy_vi(one.vi);
    testbed.refused(Clause::State, "to destroy a connected VI", result, in_use)?;
    testbed.expect_alive(&one, &other)?;
    // The refused calls changed nothing.
    let server = testbed.party(1, Queues::Own)?;
    let result = testbed.nics[1].accept(request, server.vi, b"");
    testbed.call(Clause::State, "accept", result)?;
    testbed.expect_event(0, &NicEvent::Connected { vi: idle.vi, greeting: Vec::new() })?;
    testbed.expect_event(1, &NicEvent::Connected { vi: server.vi, greeting: Vec::new() })?;
    let result = testbed.nics[1].disconnect(server.vi);
    testbed.call(Clause::State, "disconnect", result)?;
    testbed.expect_broken(&idle, &[DisconnectReason::Disconnected])?;
    let result = testbed.nics[0].post_send(idle.vi, &send);
    testbed.refused(Clause::State, "to send while in error", result, wrong)?;
    let result = testbed.nics[0].connect(Connect::new(idle.vi, &address, b"door", deadline));
    testbed.refused(Clause::State, "to connect while in error", result, wrong)?;
    let result = testbed.nics[0].destroy_vi(idle.vi);
    testbed.call(Clause::State, "destroy_vi", result)
}

fn disconnects<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    for round in 0..3 {
        testbed.expect_alive(&one, &other)?;
        for party in [&one, &other] {
            for cookie in 0..5 {
                testbed.post_receive(party, cookie, &[])?;
            }
        }
        let (first, second) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let result = testbed.nics[first.nic].disconnect(first.vi);
        testbed.call(Clause::State, "disconnect", result)?;
        testbed.expect_state(first, ViState::Idle)?;
        testbed.expect_broken(second, &[DisconnectReason::Disconnected])?;
        for party in [first, second] {
            for cookie in 0..5 {
                testbed.expect_flushed(party, cookie)?;
            }
        }
        testbed.expect_no_event(first.nic)?;
        let result = testbed.nics[second.nic].disconnect(second.vi);
        testbed.call(Clause::State, "disconnect", result)?;
        testbed.expect_state(second, ViState::Idle)?;
        testbed.expect_no_event(first.nic)?;
        testbed.expect_no_event(second.nic)?;
        testbed.connect(&one, &other)?;
    }

    testbed.expect_alive(&other, &one)
}

impl<F: Fixture> Testbed<'_, F> {
    pub(super) fn expect_flushed(&mut self, party: &Party, cookie: u64) -> CaseResult {
        let found = self.expect_next(party, Queue::Receive, cookie)?;
        let what = "the status of a receive descriptor that was left";
        self.expect(Clause::End, what, &found.status, &Status::Flushed)
    }
}

fn nic_ends<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let one = testbed.party(0, Queues::Own)?;
    let other = testbed.party(2, Queues::Own)?;
    testbed.connect(&one, &other)?;
    let (bystander, friend) = testbed.pair()?;
    testbed.post_receive(&one, 1, &[])?;
    drop(testbed.nics.pop());
    let reasons = [
        DisconnectReason::PeerDied,
        DisconnectReason::Disconnected,
        DisconnectReason::TransportFailed,
    ];
    testbed.expect_broken(&one, &reasons)?;
    testbed.expect_flushed(&one, 1)?;
    testbed.expect_isolated(&bystander, &friend)?;
    testbed.expect_isolated(&friend, &bystander)
}
