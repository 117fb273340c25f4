//! The cases with waits, step by step.

use std::task::Poll;

use super::{
    At, EventIdentity, Harness, Rule, SetupError, Suite, Violation, World,
    stage::{CaseRunner, Host, Slept},
};
use crate::error::WaitError;

/// The progress of a request when it is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// Its future was never polled.
    New,
    /// The detector has it.
    Submitted,
    /// The detector has it and has been polled since.
    Polled,
    /// Its event has happened; no poll has seen it.
    Happened,
    /// Its event was reported; the waiter has not taken it.
    Reported,
}

const POINTS: [Point; 5] =
    [Point::New, Point::Submitted, Point::Polled, Point::Happened, Point::Reported];

pub(super) type Case<H> = fn(&mut CaseRunner<H>) -> Result<(), Violation>;

impl<H, F> Suite<'_, F>
where
    H: Harness,
    F: FnMut(&World) -> Result<H, SetupError>,
{
    pub(super) fn cases(&mut self, host: Host) -> Result<(), Violation> {
        let cases: [(&'static str, Case<H>); 12] = [
            ("event before the wait", event_before_wait),
            ("event before the wait, while the host sleeps", event_before_wait_asleep),
            ("polls with nothing pending", idle_polls),
            ("event after the wait", event_after_wait),
            ("event between arming and sleep", event_before_sleep),
            ("sleep without an event", sleep_without_event),
            ("many requests in random order", many_in_random_order),
            ("cancelled request", cancelled_request),
            ("event of a cancelled request", stale_event),
            ("younger requests than a cancelled one", younger_requests),
            ("shutdown with requests pending", shutdown_with_pending),
            ("shutdown with requests in flight", shutdown_in_flight),
        ];
        for (name, case) in cases {
            self.case(host, name, case)?;
        }
        Ok(())
    }

    /// Runs one case on its own stage.
    pub(super) fn case(
        &mut self,
        host: Host,
        name: &'static str,
        case: Case<H>,
    ) -> Result<(), Violation> {
        let at = At { case: name, host: host.name(), seed: self.options.seeds.start };
        let mut stage = CaseRunner::new(self.factory, host, self.options.guard, at)?;
        case(&mut stage)?;
        self.close(&stage);
        self.report.cases.push((host.name(), name));
        Ok(())
    }

    /// Adds up the counts of a stage.
    pub(super) fn close(&mut self, stage: &CaseRunner<H>) {
        self.report.waits += stage.waits;
        self.report.cancelled += stage.cancelled;
        self.report.events += stage.ledger.delivered_count() as u64 + stage.events;
    }
}

/// Rule 2: the event is not lost for lack of a waiter.
fn event_before_wait<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    for index in 0..4 {
        stage.happen()?;
        if index % 2 == 1 {
            stage.poll_pass()?;
        }
        let waiter = stage.wait(index)?;
        stage.expect_end(waiter, Rule::Before)?;
    }
    stage.expect_nothing_left()
}

/// Rule 2, when the host sleeps for another request and no poll is due.
fn event_before_wait_asleep<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    if stage.ledger.is_shared() {
        // The event would be the other request's.
        return Ok(());
    }
    for index in (0..8).step_by(2) {
        let mut other = stage.pending(index + 1)?;
        stage.happen()?;
        stage.expect_pending(&mut other)?;
        let mut waiter = stage.request(index);
        let mut polled = Poll::Pending;
        let until_next = stage.harness.happens_at(index + 1);
        let between = || {
            polled = waiter.poll();
            polled.is_ready()
        };
        let slept = stage.sleep(Some(Box::new(between)), until_next)?;
        if let Poll::Ready(polled) = polled {
            stage.enter(index, polled)?;
        } else if slept == Slept::ForEver || !waiter.is_woken() {
            // Unless the other request has the event.
            stage.expect_pending(&mut other)?;
            let saw = "no poll was made for it";
            return Err(stage.lost(Rule::Before, index, saw));
        } else {
            stage.expect_event(waiter, Rule::Before)?;
        }
        stage.happen()?;
        stage.expect_event(other, Rule::Announced)?;
    }
    stage.expect_nothing_left()
}

/// Rule 7: neither before nor after events, nor while events wait for a request.
fn idle_polls<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    stage.poll_idly()?;
    for index in 0..3 {
        stage.happen()?;
        stage.poll_idly()?;
        let waiter = stage.wait(index)?;
        stage.expect_end(waiter, Rule::Idle)?;
        stage.poll_idly()?;
    }
    let mut waiter = stage.pending(3)?;
    stage.expect_pending(&mut waiter)?;
    stage.cancel(waiter)?;
    stage.poll_idly()
}

fn event_after_wait<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    for index in 0..4 {
        let mut waiter = stage.pending(index)?;
        stage.expect_pending(&mut waiter)?;
        stage.happen()?;
        stage.expect_event(waiter, Rule::Announced)?;
    }
    stage.expect_nothing_left()
}

/// Rule 3, at the critical moment: the host has armed and polled, and does not sleep yet.
fn event_before_sleep<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    for index in 0..12 {
        let mut waiter = stage.pending(index)?;
        if index % 2 == 1 {
            stage.expect_pending(&mut waiter)?;
        }
        let slept = stage.happen_before_sleep()?;
        if slept == Slept::ForEver {
            let saw = "the host slept for ever";
            return Err(stage.lost(Rule::Announced, index, saw));
        }
        stage.expect_event(waiter, Rule::Announced)?;
    }
    Ok(())
}

/// Rule 3: a detector without an event lets the host sleep.
fn sleep_without_event<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    for index in 0..2 {
        let mut waiter = stage.pending(index)?;
        stage.expect_pending(&mut waiter)?;
        if !stage.can_sleep()? {
            return Err(Violation::NeverSleeps { at: stage.at });
        }
        stage.happen()?;
        stage.expect_event(waiter, Rule::Announced)?;
    }
    stage.expect_nothing_left()
}

/// Rule 4: each event once, to one request, whatever the order of the requests.
fn many_in_random_order<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    const COUNT: usize = 24;
    let mut order: Vec<usize> = (0..COUNT).collect();
    stage.random.shuffle(&mut order);
    let mut waiters = Vec::new();
    for index in order {
        waiters.push(stage.pending(index)?);
    }
    for waiter in &mut waiters {
        stage.expect_pending(waiter)?;
    }
    for _ in 0..COUNT {
        stage.happen()?;
        if stage.random.bool() {
            stage.poll_pass()?;
        }
    }
    stage.random.shuffle(&mut waiters);
    for waiter in waiters {
        stage.expect_event(waiter, Rule::Announced)?;
    }
    // An event delivered twice would go to a further request.
    let mut further = stage.pending(COUNT)?;
    stage.expect_pending(&mut further)?;
    stage.happen()?;
    stage.expect_event(further, Rule::Announced)?;
    stage.expect_nothing_left()
}

/// Rule 5: at every point; later requests still work.
fn cancelled_request<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    for (point, first) in POINTS.into_iter().zip((0..).step_by(3)) {
        cancel_at(stage, point, first)?;
    }
    stage.expect_nothing_left()
}

/// Cancels request `first` at `point`, while request `first + 1` waits, and checks a later request
/// `first + 2`.
fn cancel_at<H: Harness>(
    stage: &mut CaseRunner<H>,
    point: Point,
    first: usize,
) -> Result<(), Violation> {
    let mut waiter = stage.request(first);
    if point != Point::New && stage.take(&mut waiter)? {
        let saw = "it was ready at once".to_owned();
        return Err(Violation::Spurious { request: first, saw, at: stage.at });
    }
    match point {
        Point::New | Point::Submitted => {}
        Point::Polled => stage.expect_pending(&mut waiter)?,
        Point::Happened => stage.happen()?,
        Point::Reported => {
            stage.happen()?;
            if !stage.settle(|_| waiter.is_woken())? {
                let saw = "it was to be cancelled with its event ready";
                return Err(stage.lost(Rule::Announced, first, saw));
            }
        }
    }
    let second = if point == Point::Reported { None } else { stage.wait(first + 1)? };
    stage.cancel(waiter)?;
    stage.poll_pass()?;
    let second = if point == Point::Reported { stage.wait(first + 1)? } else { second };
    while stage.ledger.happened < first + 2 {
        stage.happen()?;
    }
    stage.expect_end(second, Rule::Cancelled)?;
    // The first request's event, if it goes to another request; otherwise its own.
    let third = stage.wait(first + 2)?;
    stage.happen()?;
    stage.expect_end(third, Rule::Cancelled)?;
    // If events are shared, one is left over: request `first` did not take its own.
    while stage.ledger.is_shared() && stage.ledger.outstanding() > 0 {
        let waiter = stage.wait(first)?;
        stage.expect_end(waiter, Rule::Cancelled)?;
    }
    Ok(())
}

/// Rules 4 and 5: the event of a cancelled request does not go to a request that has taken its
/// place.
fn stale_event<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    for first in (0..20).step_by(2) {
        let waiter = stage.pending(first)?;
        stage.cancel(waiter)?;
        let second = stage.pending(first + 1)?;
        stage.happen()?;
        if stage.ledger.is_shared() {
            stage.expect_event(second, Rule::Cancelled)?;
            stage.happen()?;
            let waiter = stage.wait(first)?;
            stage.expect_end(waiter, Rule::Cancelled)?;
            continue;
        }
        let mut second = second;
        stage.expect_pending(&mut second)?;
        stage.happen()?;
        stage.expect_event(second, Rule::Cancelled)?;
    }
    stage.expect_nothing_left()
}

/// Rule 5: waiting requests are not disturbed when an older one, and one among them, leave.
fn younger_requests<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    const COUNT: usize = 8;
    let mut waiters = Vec::new();
    for index in 0..COUNT {
        waiters.push(stage.pending(index)?);
    }
    let middle = waiters.remove(COUNT / 2);
    let oldest = waiters.remove(0);
    stage.cancel(oldest)?;
    stage.poll_pass()?;
    stage.cancel(middle)?;
    for _ in 0..COUNT {
        stage.happen()?;
    }
    for waiter in waiters {
        stage.expect_event(waiter, Rule::Cancelled)?;
    }
    stage.expect_nothing_left()
}

/// Rule 10: a pending wait ends, and a later one fails.
fn shutdown_with_pending<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    let mut waiters = Vec::new();
    for index in 0..3 {
        waiters.push(stage.pending(index)?);
    }
    stage.poll_pass()?;
    let cancelled = waiters.pop().expect("invariant: three waits");
    stage.cancel(cancelled)?;
    let late = stage.request(3);
    let triggers: Vec<_> = (0..4).map(|_| stage.next_trigger()).collect();
    stage.server.shutdown();
    stage.inspect()?;
    for waiter in waiters {
        expect_closed(stage, waiter)?;
    }
    expect_closed(stage, late)?;
    // If a device writes now, the memory is still there.
    for trigger in triggers {
        trigger();
    }
    stage.inspect()
}

/// Rules 6 and 10: events that happen around the shutdown.
fn shutdown_in_flight<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    let reported = stage.pending(0)?;
    let happened = stage.pending(1)?;
    let waiting = stage.pending(2)?;
    stage.happen()?;
    stage.settle(|_| reported.is_woken())?;
    stage.happen()?;
    let trigger = stage.next_trigger();
    stage.server.shutdown();
    stage.inspect()?;
    trigger();
    for mut waiter in [reported, happened] {
        // Either is correct: the event came with the end.
        if waiter.poll().is_pending() {
            return Err(not_ended(stage, waiter.index, "it was still pending"));
        }
    }
    expect_closed(stage, waiting)
}

fn expect_closed<H: Harness>(
    stage: &mut CaseRunner<H>,
    mut waiter: super::stage::TestWaiter<H::Detector>,
) -> Result<(), Violation> {
    match waiter.poll() {
        Poll::Ready(Err(WaitError::ServerClosed)) => stage.inspect(),
        Poll::Ready(Err(error)) => Err(super::stage::failed(waiter.index, error, stage.at)),
        Poll::Ready(Ok(event)) => {
            match stage.harness.identify(waiter.index, event) {
                // A request in flight came back with its memory, not an event.
                EventIdentity::Nothing(_) => stage.inspect(),
                _ => Err(not_ended(stage, waiter.index, "an event that had not happened")),
            }
        }
        Poll::Pending => Err(not_ended(stage, waiter.index, "it was still pending")),
    }
}

fn not_ended<H: Harness>(stage: &CaseRunner<H>, request: usize, saw: &str) -> Violation {
    Violation::NotEnded { request, saw: saw.to_owned(), at: stage.at }
}
