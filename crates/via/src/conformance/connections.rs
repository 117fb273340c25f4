//! Connections: how they come about, are refused, and end.

use std::io::IoSlice;

use super::{
    Case, Clause, Fixture, Violation,
    stage::{Party, Queues, Stage, descriptor},
};
use crate::vi::{
    Address, Data, NicEvent, Operation, Provider, Queue, Reason, Reliability, RequestId, Status,
    ViError, ViState,
};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, Case<F>)> {
    vec![
        ("a client connects to a server", client_server),
        ("peers connect", peers),
        ("nobody listens", nobody_listens),
        ("a request is rejected", rejected),
        ("a request is not answered", timed_out),
        ("levels differ", mismatch),
        ("a request is withdrawn", withdrawn),
        ("greetings, discriminators and addresses have limits", limits),
        ("calls out of season", out_of_season),
        ("a VI disconnects and connects again", disconnects),
        ("a NIC ends", nic_ends),
    ]
}

type Judged = Result<(), Violation>;

impl<F: Fixture> Stage<'_, F> {
    /// Calls a listening NIC.
    fn dial(&mut self, caller: &Party, to: usize, what: &[u8], greeting: &[u8]) -> Judged {
        let deadline = self.later();
        let address = self.nics[to].address();
        let result = self.nics[caller.nic].connect(caller.vi, &address, what, greeting, deadline);
        self.call(Clause::Connection, "connect", result)
    }

    fn listens(&mut self, nic: usize, what: &[u8]) -> Judged {
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

    fn refused_for(&mut self, party: &Party, reason: Reason) -> Judged {
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

fn client_server<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    stage.listens(1, b"a service")?;
    stage.listens(1, b"another")?;
    for (words, answer) in [(&b"hello"[..], &b"welcome"[..]), (b"", b"")] {
        let (client, server) = stage.dialled(b"another", words, answer)?;
        stage.expect_alive(&client, &server)?;
        stage.expect_alive(&server, &client)?;
    }
    let (client, server) = stage.dialled(b"a service", &[7; 100], &[8; 1000])?;
    stage.expect_alive(&client, &server)
}

fn peers<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    // Either side comes first, once so late that the other's call is there already.
    for (first, second) in [(0, 1), (1, 0), (1, 2)] {
        for waits in [false, true] {
            let parties = [stage.party(first, Queues::Own)?, stage.party(second, Queues::Own)?];
            for (this, other) in [(0, 1), (1, 0)] {
                let deadline = stage.later();
                let (caller, called) = (&parties[this], &parties[other]);
                let address = stage.nics[called.nic].address();
                let words = [u8::try_from(caller.nic).unwrap_or(9); 3];
                let nic = &mut stage.nics[caller.nic];
                let result = nic.connect_peer(caller.vi, &address, b"meet", &words, deadline);
                stage.call(Clause::Connection, "connect_peer", result)?;
                if this == 0 {
                    stage.expect_state(caller, ViState::PendingConnect)?;
                    if waits {
                        stage.calm();
                    }
                }
            }
            for (this, other) in [(0, 1), (1, 0)] {
                let greeting = vec![u8::try_from(parties[other].nic).unwrap_or(9); 3];
                let Party { nic, vi, .. } = parties[this];
                stage.expect_event(nic, &NicEvent::Connected { vi, greeting })?;
            }
            stage.expect_alive(&parties[0], &parties[1])?;
            stage.expect_alive(&parties[1], &parties[0])?;
        }
    }
    let lonely = stage.party(0, Queues::Own)?;
    let address = stage.nics[1].address();
    let deadline = stage.fixture.now() + stage.profile.notice;
    let result = stage.nics[0].connect_peer(lonely.vi, &address, b"alone", b"", deadline);
    stage.call(Clause::Connection, "connect_peer", result)?;
    stage.refused_for(&lonely, Reason::TimedOut)
}

fn nobody_listens<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let client = stage.party(0, Queues::Own)?;
    stage.listens(1, b"something else")?;
    stage.dial(&client, 1, b"something", b"")?;
    stage.refused_for(&client, Reason::NotListening)?;
    stage.nics[1].unlisten(b"something else");
    stage.dial(&client, 1, b"something else", b"")?;
    stage.refused_for(&client, Reason::NotListening)?;
    stage.listens(1, b"something else")?;
    stage.dialled(b"something else", b"", b"").map(drop)
}

fn rejected<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let client = stage.party(0, Queues::Own)?;
    stage.listens(1, b"picky")?;
    stage.dial(&client, 1, b"picky", b"let me in")?;
    let request = stage.requested(1, b"picky", b"let me in")?;
    let result = stage.nics[1].reject(request);
    stage.call(Clause::Connection, "reject", result)?;
    stage.refused_for(&client, Reason::Rejected)?;
    let again = stage.nics[1].reject(request);
    let is_right = |error: &ViError| matches!(error, ViError::UnknownRequest(_));
    stage.refused(Clause::Connection, "to answer a request twice", again, is_right)?;
    // The refused VI can be used.
    stage.dial(&client, 1, b"picky", b"please")?;
    let request = stage.requested(1, b"picky", b"please")?;
    let server = stage.party(1, Queues::Own)?;
    let result = stage.nics[1].accept(request, server.vi, b"");
    stage.call(Clause::Connection, "accept", result)?;
    stage.expect_event(0, &NicEvent::Connected { vi: client.vi, greeting: Vec::new() })?;
    stage.expect_event(1, &NicEvent::Connected { vi: server.vi, greeting: b"please".to_vec() })?;
    stage.expect_alive(&client, &server)
}

fn timed_out<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let client = stage.party(0, Queues::Own)?;
    stage.listens(1, b"slow")?;
    let deadline = stage.fixture.now() + stage.profile.notice;
    let address = stage.nics[1].address();
    let result = stage.nics[0].connect(client.vi, &address, b"slow", b"", deadline);
    stage.call(Clause::Connection, "connect", result)?;
    let request = stage.requested(1, b"slow", b"")?;
    stage.refused_for(&client, Reason::TimedOut)?;
    if stage.fixture.now() < deadline {
        return Err(stage.broken(Clause::Connection, "a call timed out before its deadline"));
    }
    stage.calm();
    stage.answers_too_late(request)
}

impl<F: Fixture> Stage<'_, F> {
    /// Accepting a request whose caller has gone fails at once, or soon.
    fn answers_too_late(&mut self, request: RequestId) -> Judged {
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

fn mismatch<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let other = match stage.level() {
        Reliability::Unreliable => Reliability::ReliableDelivery,
        _ => Reliability::Unreliable,
    };
    if other > stage.attributes().reliability {
        stage.skip("there is one level only");
        return Ok(());
    }
    let client = stage.party(0, Queues::Own)?;
    let tag = stage.nics[1].create_tag();
    let server = stage.party_with(1, Queues::Own, tag, other)?;
    stage.listens(1, b"odd")?;
    stage.dial(&client, 1, b"odd", b"")?;
    let request = stage.requested(1, b"odd", b"")?;
    let result = stage.nics[1].accept(request, server.vi, b"");
    stage.call(Clause::Connection, "accept", result)?;
    for party in [&client, &server] {
        match stage.event(party.nic)? {
            NicEvent::Refused { vi, reason: Reason::Mismatch(_) } if vi == party.vi => {
                stage.expect_state(party, ViState::Idle)?;
            }
            event => {
                let saw = format!("{event:?} where the levels do not fit");
                return Err(stage.broken(Clause::Connection, saw));
            }
        }
    }
    Ok(())
}

fn withdrawn<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let client = stage.party(0, Queues::Own)?;
    stage.listens(1, b"patience")?;
    for is_calm in [true, false] {
        stage.dial(&client, 1, b"patience", b"")?;
        let request = stage.requested(1, b"patience", b"")?;
        let result = stage.nics[0].disconnect(client.vi);
        stage.call(Clause::Connection, "disconnect", result)?;
        stage.expect_state(&client, ViState::Idle)?;
        if is_calm {
            stage.calm();
        }
        stage.answers_too_late(request)?;
        stage.expect_no_event(0)?;
    }
    stage.dialled(b"patience", b"", b"").map(drop)
}

fn limits<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let name = [b'n'; 64];
    stage.listens(1, &name)?;
    stage.dialled(&name, &[1; 1024], &[2; 1024])?;
    let too_much = |error: &ViError| matches!(error, ViError::TooMuch { .. });
    let party = stage.party(0, Queues::Own)?;
    let (address, deadline) = (stage.nics[1].address(), stage.later());
    let nic = &mut stage.nics[0];
    let results = [
        ("to listen for 65 bytes", nic.listen(&[b'n'; 65])),
        ("to call 65 bytes", nic.connect(party.vi, &address, &[b'n'; 65], b"", deadline)),
        ("to greet with 1025 bytes", nic.connect(party.vi, &address, &name, &[0; 1025], deadline)),
        (
            "to greet a peer with 1025 bytes",
            nic.connect_peer(party.vi, &address, &name, &[0; 1025], deadline),
        ),
    ];
    for (what, result) in results {
        stage.refused(Clause::Limit, what, result, too_much)?;
    }
    let again = stage.nics[1].listen(&name);
    let is_listening = |error: &ViError| matches!(error, ViError::AlreadyListening);
    stage.refused(Clause::Connection, "to listen twice", again, is_listening)?;
    for bytes in [Vec::new(), b"no such thing".to_vec(), vec![0xff; 255]] {
        let result = stage.nics[0].connect(party.vi, &Address(bytes), &name, b"", deadline);
        let is_bad = |error: &ViError| matches!(error, ViError::BadAddress { .. });
        stage.refused(Clause::Connection, "a call to a strange address", result, is_bad)?;
    }
    stage.expect_state(&party, ViState::Idle)?;
    // A greeting that is too long leaves the request where it was.
    stage.dial(&party, 1, &name, b"")?;
    let request = stage.requested(1, &name, b"")?;
    let server = stage.party(1, Queues::Own)?;
    let result = stage.nics[1].accept(request, server.vi, &[0; 1025]);
    stage.refused(Clause::Limit, "to accept with 1025 bytes", result, too_much)?;
    let result = stage.nics[1].accept(request, server.vi, b"");
    stage.call(Clause::Connection, "accept", result)
}

fn out_of_season<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let wrong = |error: &ViError| matches!(error, ViError::WrongState { .. });
    let in_use = |error: &ViError| matches!(error, ViError::InUse { .. });
    let pieces = [IoSlice::new(b"too soon")];
    let send = descriptor(Operation::Send, 1, None, Data::Inline(&pieces));
    let idle = stage.party(0, Queues::Own)?;
    stage.expect_state(&idle, ViState::Idle)?;
    let result = stage.nics[0].post_send(idle.vi, &send);
    stage.refused(Clause::State, "to send while idle", result, wrong)?;
    stage.listens(1, b"door")?;
    stage.dial(&idle, 1, b"door", b"")?;
    let result = stage.nics[0].post_send(idle.vi, &send);
    stage.refused(Clause::State, "to send while connecting", result, wrong)?;
    let result = stage.nics[0].destroy_vi(idle.vi);
    stage.refused(Clause::State, "to destroy while connecting", result, in_use)?;
    let request = stage.requested(1, b"door", b"")?;
    let (one, other) = stage.pair()?;
    let result = stage.nics[1].accept(request, other.vi, b"");
    stage.refused(Clause::State, "to accept with a connected VI", result, wrong)?;
    let (address, deadline) = (stage.nics[1].address(), stage.later());
    let result = stage.nics[0].connect(one.vi, &address, b"door", b"", deadline);
    stage.refused(Clause::State, "to connect a connected VI", result, wrong)?;
    let result = stage.nics[0].connect_peer(one.vi, &address, b"door", b"", deadline);
    stage.refused(Clause::State, "to connect a connected VI to a peer", result, wrong)?;
    let result = stage.nics[0].destroy_vi(one.vi);
    stage.refused(Clause::State, "to destroy a connected VI", result, in_use)?;
    stage.expect_alive(&one, &other)?;
    // What was refused changed nothing.
    let server = stage.party(1, Queues::Own)?;
    let result = stage.nics[1].accept(request, server.vi, b"");
    stage.call(Clause::State, "accept", result)?;
    stage.expect_event(0, &NicEvent::Connected { vi: idle.vi, greeting: Vec::new() })?;
    stage.expect_event(1, &NicEvent::Connected { vi: server.vi, greeting: Vec::new() })?;
    let result = stage.nics[1].disconnect(server.vi);
    stage.call(Clause::State, "disconnect", result)?;
    stage.expect_broken(&idle, &[Reason::Disconnected])?;
    let result = stage.nics[0].post_send(idle.vi, &send);
    stage.refused(Clause::State, "to send while in error", result, wrong)?;
    let result = stage.nics[0].connect(idle.vi, &address, b"door", b"", deadline);
    stage.refused(Clause::State, "to connect while in error", result, wrong)?;
    let result = stage.nics[0].destroy_vi(idle.vi);
    stage.call(Clause::State, "destroy_vi", result)
}

fn disconnects<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let (one, other) = stage.pair()?;
    for round in 0..3 {
        stage.expect_alive(&one, &other)?;
        for party in [&one, &other] {
            for cookie in 0..5 {
                stage.post_receive(party, cookie, &[])?;
            }
        }
        let (first, second) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let result = stage.nics[first.nic].disconnect(first.vi);
        stage.call(Clause::State, "disconnect", result)?;
        stage.expect_state(first, ViState::Idle)?;
        stage.expect_broken(second, &[Reason::Disconnected])?;
        for party in [first, second] {
            for cookie in 0..5 {
                stage.expect_flushed(party, cookie)?;
            }
        }
        stage.expect_no_event(first.nic)?;
        let result = stage.nics[second.nic].disconnect(second.vi);
        stage.call(Clause::State, "disconnect", result)?;
        stage.expect_state(second, ViState::Idle)?;
        stage.expect_no_event(first.nic)?;
        stage.expect_no_event(second.nic)?;
        stage.connect(&one, &other)?;
    }
    stage.expect_alive(&other, &one)
}

impl<F: Fixture> Stage<'_, F> {
    pub(super) fn expect_flushed(&mut self, party: &Party, cookie: u64) -> Judged {
        let found = self.expect_next(party, Queue::Receive, cookie)?;
        let what = "the status of a receive descriptor that was left";
        self.expect(Clause::End, what, &found.status, &Status::Flushed)
    }
}

fn nic_ends<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let one = stage.party(0, Queues::Own)?;
    let other = stage.party(2, Queues::Own)?;
    stage.connect(&one, &other)?;
    let (bystander, friend) = stage.pair()?;
    stage.post_receive(&one, 1, &[])?;
    drop(stage.nics.pop());
    let reasons = [Reason::PeerDied, Reason::Disconnected, Reason::TransportFailed];
    stage.expect_broken(&one, &reasons)?;
    stage.expect_flushed(&one, 1)?;
    stage.expect_isolated(&bystander, &friend)?;
    stage.expect_isolated(&friend, &bystander)
}
