mod leaves;
mod renewal;

use std::{collections::VecDeque, sync::Mutex};

use super::*;
use crate::{member::MemberConfig, packet::GroupId};

/// The packets that a transport will deliver and the members whose end it will see, one after the other; and the
/// packets that were sent.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Coming>>, Arc<Mutex<Vec<Vec<u8>>>>);

/// Packets, and members whose end is seen.
type Coming = (VecDeque<Vec<u8>>, VecDeque<Rank>);

impl Script {
    fn deliver(&self, packet: Packet<'_>) {
        self.0.lock().expect("no panic").0.push_back(packet.encode(None));
    }

    fn end(&self, rank: Rank) {
        self.0.lock().expect("no panic").1.push_back(rank);
    }
}

impl Transport for Script {
    fn send(&mut self, _: Target, _: Network, packet: &[u8]) -> io::Result<()> {
        self.1.lock().expect("no panic").push(packet.to_vec());
        Ok(())
    }

    fn recv_each(&mut self, _: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let packets = std::mem::take(&mut self.0.lock().expect("no panic").0);
        packets.iter().for_each(|packet| take(packet));
        Ok(())
    }

    fn arm(&mut self, _: &Waker) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::Armed)
    }

    fn next_dead(&mut self) -> Option<Rank> {
        self.0.lock().expect("no panic").1.pop_front()
    }

    fn shrink(&mut self, _: &[Rank]) {}
}

const GROUP: GroupId = GroupId(1);
const NOW: Instant = Instant::from_nanos(1);

/// Rank 0 of four in a central barrier, inside the first one: it waits for all others.
fn master() -> (BarrierEngine, Script) {
    entered(Rank(0))
}

/// The same for any rank.
fn entered(rank: Rank) -> (BarrierEngine, Script) {
    let group = Group::new(4).expect("a size");
    let schedule = Arc::new(Algorithm::Central.schedule(group).expect("suits"));
    let script = Script::default();
    let member = Member::new(schedule, rank, MemberConfig::new(GROUP)).expect("a member");
    let mut engine = BarrierEngine::new(member, Algorithm::Central, Box::new(script.clone()));
    engine.enter(NOW, &[]).expect("outside");
    (engine, script)
}

fn signal(epoch: u32, from: Rank) -> Packet<'static> {
    Packet::new(GROUP, epoch, from, Body::Signal { round: crate::schedule::Round(0), value: &[] })
}

/// Goal: a view of the next barrier about a leaver, and the end of its connection, which overtake the leaver's
/// message of this one, fail only the next. Method: both in the same poll, the message in a later one.
#[test]
fn a_word_of_the_next_barrier_waits_for_this_one() {
    let (mut engine, script) = master();
    let waker = Waker::noop();
    script.deliver(signal(0, Rank(1)));
    script.deliver(Packet::new(GROUP, 1, Rank(3), Body::view(&[3, 0], false)));
    script.deliver(Packet::new(GROUP, 1, Rank(2), Body::view(&[3, 0], true)));
    script.end(Rank(3));
    engine.poll(NOW, waker);
    assert!(engine.take_exit().is_none(), "messages are missing");
    script.deliver(signal(0, Rank(2)));
    script.deliver(signal(0, Rank(3)));
    engine.poll(NOW, waker);
    let (passed, _) = engine.take_exit().expect("over").expect("all have entered");
    assert_eq!(passed.epoch, 0);
    let error = engine.enter(NOW, &[]).expect_err("one is gone");
    assert_eq!(error.lost(), [Rank(3)]);
}

/// Goal: a message that was overtaken and lost is not waited for. Method: the message never comes; questions get no
/// answer.
#[test]
fn a_word_of_the_next_barrier_is_heard_after_questions() {
    let (mut engine, script) = master();
    script.deliver(Packet::new(GROUP, 1, Rank(2), Body::view(&[3, 0], true)));
    engine.poll(NOW, Waker::noop());
    for retries in 0..DEFERRED_RETRIES {
        assert!(engine.take_exit().is_none(), "{retries} questions");
        let due = engine.member.next_deadline().expect("waits");
        engine.poll(due, Waker::noop());
    }
    let error = engine.take_exit().expect("over").expect_err("one is dead");
    assert_eq!(error.lost(), [Rank(3)]);
}

/// Goal: deaths in the barrier itself are reported at once. Method: a view of this one, and an end without a leave
/// message.
#[test]
fn a_word_of_this_barrier_does_not_wait() {
    let (mut engine, script) = master();
    script.deliver(Packet::new(GROUP, 0, Rank(2), Body::view(&[3, 0], true)));
    engine.poll(NOW, Waker::noop());
    assert_eq!(engine.take_exit().expect("over").expect_err("dead").lost(), [Rank(3)]);
    let (mut engine, script) = master();
    script.end(Rank(1));
    engine.poll(NOW, Waker::noop());
    assert_eq!(engine.take_exit().expect("over").expect_err("dead").lost(), [Rank(1)]);
}

/// Goal: members say in which barrier they have learnt of a death, so that a view of the next one is recognised.
/// Method: a member that has passed reports another one dead in the next barrier; its packet reaches one that has not
/// passed.
#[test]
fn real_words_say_of_which_barrier_they_are() {
    let (mut ahead, script) = entered(Rank(2));
    let round = crate::schedule::Round(1);
    script.deliver(Packet::new(GROUP, 0, Rank(0), Body::Signal { round, value: &[] }));
    ahead.poll(NOW, Waker::noop());
    ahead.take_exit().expect("over").expect("passed");
    script.1.lock().expect("no panic").clear();
    script.end(Rank(3));
    ahead.poll(NOW, Waker::noop());
    let said = script.1.lock().expect("no panic").clone();
    assert!(!said.is_empty(), "it tells the others");
    let (mut engine, script) = master();
    script.0.lock().expect("no panic").0.extend(said);
    engine.poll(NOW, Waker::noop());
    assert!(engine.take_exit().is_none(), "messages may be on their way");
    for from in 1..4 {
        script.deliver(signal(0, Rank(from)));
    }
    engine.poll(NOW, Waker::noop());
    engine.take_exit().expect("over").expect("all have entered");
}

/// Goal: a leaving member serves until all have passed, and tells one that asks it for more that it has left. Method:
/// the master leaves; one confirms at once, one later, one asks for its message, one asks for a later one.
#[test]
fn who_leaves_serves_the_others() {
    let (mut engine, script) = master();
    for from in 1..4 {
        script.deliver(signal(0, Rank(from)));
    }
    engine.poll(NOW, Waker::noop());
    engine.take_exit().expect("over").expect("passed");
    engine.leave(NOW);
    let ack = |epoch, from| Packet::new(GROUP, epoch, Rank(from), Body::LeaveAck);
    let ask = |epoch, from| {
        // One message to each, in the order of their ranks.
        let round = crate::schedule::Round(u16::try_from(from - 1).expect("small"));
        Packet::new(GROUP, epoch, Rank(from), Body::Nack { round, attempt: 0 })
    };
    let sent = || std::mem::take(&mut *script.1.lock().expect("no panic"));
    let kinds =
        |packets: Vec<Vec<u8>>| -> Vec<u8> { packets.iter().map(|packet| packet[3]).collect() };
    let [is_signal, is_view] =
        [signal(0, Rank(0)), Packet::new(GROUP, 1, Rank(0), Body::view(&[0, 0], true))]
            .map(|packet| packet.encode(None)[3]);
    sent();
    script.deliver(ack(1, 1));
    script.deliver(ack(0, 2));
    script.deliver(ask(0, 3));
    engine.poll(NOW, Waker::noop());
    assert_eq!(kinds(sent()), [is_signal], "it repeats its last message");
    assert!(!engine.is_released());
    script.deliver(ask(1, 3));
    engine.poll(NOW, Waker::noop());
    assert_eq!(kinds(sent()), [is_view], "it says that it has left");
    let due = engine.next_deadline().expect("it waits for two");
    engine.poll(due, Waker::noop());
    assert_eq!(kinds(sent()), [is_view; 2], "it asks those that have not confirmed");
    script.deliver(ack(1, 3));
    script.deliver(Packet::new(GROUP, 1, Rank(2), Body::view(&[2, 0], false)));
    engine.poll(due, Waker::noop());
    assert!(engine.is_released() && engine.next_deadline().is_none());
}

/// Goal: a late answer to a question of the last barrier does not confirm that its sender knows of this member's
/// leaving. Method: a member leaves, and so does the one with which it exchanges messages; its answer comes, and then
/// its confirmation.
#[test]
fn a_late_answer_confirms_nothing() {
    let (mut engine, script) = entered(Rank(1));
    let round = crate::schedule::Round(0);
    script.deliver(Packet::new(GROUP, 0, Rank(0), Body::Signal { round, value: &[] }));
    engine.poll(NOW, Waker::noop());
    engine.take_exit().expect("over").expect("passed");
    engine.leave(NOW);
    script.deliver(Packet::new(GROUP, 1, Rank(0), Body::view(&[0, 0], true)));
    script.deliver(Packet::new(GROUP, 0, Rank(0), Body::AliveReply { attempt: 0 }));
    engine.poll(NOW, Waker::noop());
    assert!(
        !engine.is_released() && engine.next_deadline().is_some(),
        "it says again that it leaves"
    );
    script.deliver(Packet::new(GROUP, 1, Rank(0), Body::LeaveAck));
    engine.poll(NOW, Waker::noop());
    assert!(engine.is_released() && engine.next_deadline().is_none());
}
