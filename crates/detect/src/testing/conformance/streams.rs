//! The cases with streams, step by step.

use std::task::{Context, Poll, Waker};

use super::{
    Addressing, EventIdentity, Harness, Rule, SetupError, Suite, Unclaimed, Violation, World,
    stage::{CaseRunner, Flag, Host, Slept, failed, happens},
};
use crate::{error::WaitError, server::EventStream, sync::Arc};

/// A stream driven by the suite, and how far it has come.
struct Reader<H: Harness> {
    stream: EventStream<H::Detector>,
    flag: Arc<Flag>,
    /// The number of the event that is due.
    next: usize,
    /// The end was announced, as an event or as the end itself.
    has_end: bool,
}

impl<H, F> Suite<'_, F>
where
    H: Harness,
    F: FnMut(&World) -> Result<H, SetupError>,
{
    pub(super) fn streams(&mut self, host: Host) -> Result<(), Violation> {
        let cases: [(&'static str, super::cases::Case<H>); 7] = [
            ("stream whose first event is ready", first_event_ready),
            ("stream, event after event", event_after_event),
            ("stream, event between arming and sleep", stream_before_sleep),
            ("stream that is not read", back_pressure),
            ("stream that ends", end),
            ("stream that is dropped with events in it", dropped_with_events),
            ("shutdown with a stream", shutdown_with_stream),
        ];
        for (name, case) in cases {
            let at = super::At { case: name, host: host.name(), seed: self.options.seeds.start };
            let mut stage = CaseRunner::<H>::new(self.factory, host, self.options.guard, at)?;
            if stage.harness.stream_request().is_none() {
                self.report.skipped.push((name, "the harness has no streams"));
                continue;
            }
            case(&mut stage)?;
            self.close(&stage);
            self.report.cases.push((host.name(), name));
        }
        Ok(())
    }
}

impl<H: Harness> CaseRunner<H> {
    fn stream(&mut self) -> Result<Reader<H>, Violation> {
        let request = self.harness.stream_request().expect("invariant: asked before");
        self.waits += 1;
        let stream = self.harness.handle().stream(request);
        let stream = stream.map_err(|error| failed(0, error, self.at))?;
        Ok(Reader { stream, flag: Flag::new(), next: 0, has_end: false })
    }

    fn stream_happens(&mut self) {
        let index = self.ledger.happened;
        self.ledger.happened += 1;
        let trigger = self.harness.stream_trigger(index);
        trigger();
    }

    /// Takes what is there. Returns whether the stream continues.
    fn read(&mut self, reader: &mut Reader<H>) -> Result<bool, Violation> {
        loop {
            reader.flag.clear();
            let waker = Waker::from(Arc::clone(&reader.flag));
            match reader.stream.poll_event(&Context::from_waker(&waker)) {
                Poll::Pending => return Ok(true),
                Poll::Ready(None) => {
                    reader.has_end = true;
                    return Ok(false);
                }
                Poll::Ready(Some(Err(error))) => return Err(failed(0, error, self.at)),
                Poll::Ready(Some(Ok(event))) => {
                    let identity = self.identify_stream(event);
                    self.enter_stream(reader, identity)?;
                }
            }
        }
    }

    fn enter_stream(
        &mut self,
        reader: &mut Reader<H>,
        identity: EventIdentity,
    ) -> Result<(), Violation> {
        let at = self.at;
        let happened = self.ledger.happened;
        let events = match identity {
            EventIdentity::Events(events) => events,
            EventIdentity::Unmarked => vec![reader.next],
            EventIdentity::Nothing(saw) => return Err(Violation::Spurious { request: 0, saw, at }),
            EventIdentity::End => {
                reader.has_end = true;
                return Ok(());
            }
        };
        for event in events {
            let expected = reader.next;
            if expected >= happened {
                return Err(match happened {
                    0 => Violation::Spurious { request: 0, saw: "none has".to_owned(), at },
                    // Unmarked events look alike: one too many is a duplicate.
                    _ => Violation::Twice { event: event.min(happened - 1), request: 0, at },
                });
            }
            if event < expected {
                return Err(Violation::Twice { event, request: 0, at });
            }
            if event > expected {
                return Err(Violation::OutOfOrder { expected, found: event, at });
            }
            reader.next += 1;
            self.events += 1;
        }
        Ok(())
    }

    /// Runs the host and reads until all events that have happened were read.
    fn read_all(&mut self, reader: &mut Reader<H>, rule: Rule) -> Result<(), Violation> {
        loop {
            self.read(reader)?;
            let (next, happened) = (reader.next, self.ledger.happened);
            if next == happened {
                return Ok(());
            }
            if reader.has_end {
                let saw = format!("the stream ended after {next} of {happened} events");
                return Err(self.lost(rule, 0, &saw));
            }
            if !self.settle(|_| reader.flag.is_set())? {
                let saw = format!("the stream stood still after {next} of {happened} events");
                return Err(self.lost(rule, 0, &saw));
            }
        }
    }
}

/// Rule 2.
fn first_event_ready<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    stage.stream_happens();
    stage.stream_happens();
    let mut reader = stage.stream()?;
    stage.read_all(&mut reader, Rule::Before)?;
    stage.stream_happens();
    stage.read_all(&mut reader, Rule::Announced)
}

/// Rules 4 and 9.
fn event_after_event<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    let mut reader = stage.stream()?;
    for _ in 0..24 {
        stage.stream_happens();
        match stage.random.u32(..4) {
            0 => stage.poll_pass()?,
            1 => drop(stage.read(&mut reader)?),
            2 => stage.read_all(&mut reader, Rule::Announced)?,
            _ => {}
        }
    }
    stage.read_all(&mut reader, Rule::Announced)?;
    stage.poll_pass()?;
    stage.read(&mut reader)?;
    drop(reader);
    stage.inspect()
}

/// Rule 3.
fn stream_before_sleep<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    let mut reader = stage.stream()?;
    for index in 0..8 {
        stage.read_all(&mut reader, Rule::Announced)?;
        let trigger = stage.harness.stream_trigger(index);
        stage.ledger.happened += 1;
        let slept = stage.sleep(Some(happens(trigger)), None)?;
        if slept == Slept::ForEver {
            return Err(stage.lost(Rule::Announced, 0, "the host slept for ever"));
        }
    }
    stage.read_all(&mut reader, Rule::Announced)
}

/// Rule 9: events that do not fit wait with the detector until there is room.
fn back_pressure<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    let capacity = stage.ledger.profile.stream_capacity;
    let mut reader = stage.stream()?;
    for _ in 0..2 {
        for index in 0..capacity + capacity / 2 + 3 {
            stage.stream_happens();
            if index % 7 == 0 {
                stage.poll_pass()?;
            }
        }
        // As many times as it takes to find the queue full; then nothing more is announced.
        for _ in 0..capacity / 64 + 8 {
            stage.poll_pass()?;
        }
        stage.read_all(&mut reader, Rule::Stream)?;
    }
    Ok(())
}

/// Rule 9: the end comes after the events, and stays.
fn end<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    let mut reader = stage.stream()?;
    for _ in 0..5 {
        stage.stream_happens();
    }
    stage.poll_pass()?;
    let Some(end) = stage.harness.end_stream() else {
        return stage.read_all(&mut reader, Rule::Stream);
    };
    end();
    stage.read_all(&mut reader, Rule::Stream)?;
    while stage.read(&mut reader)? {
        if !stage.settle(|_| reader.flag.is_set())? {
            return Err(stage.lost(Rule::Stream, 0, "the end of the stream did not come"));
        }
    }
    if stage.read(&mut reader)? {
        return Err(stage.lost(Rule::Stream, 0, "the stream went on after its end"));
    }
    Ok(())
}

/// Rules 5 and 9: events left by a dropped stream go to other requests if they are given back.
fn dropped_with_events<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    const COUNT: usize = 5;
    let reader = stage.stream()?;
    for _ in 0..COUNT {
        stage.stream_happens();
    }
    stage.poll_pass()?;
    drop(reader);
    stage.cancelled += 1;
    stage.poll_pass()?;
    let profile = stage.ledger.profile;
    if profile.addressing == Addressing::Shared && profile.unclaimed == Unclaimed::Returned {
        let mut reader = stage.stream()?;
        stage.read_all(&mut reader, Rule::Cancelled)?;
    } else {
        // Some were lost with the first stream; later events arrive.
        let reader = stage.stream()?;
        stage.stream_happens();
        let waker = Waker::from(Arc::clone(&reader.flag));
        if reader.stream.poll_event(&Context::from_waker(&waker)).is_pending()
            && !stage.settle(|_| reader.flag.is_set())?
        {
            return Err(stage.lost(Rule::Cancelled, 0, "a later stream stood still"));
        }
    }
    Ok(())
}

/// Rule 10.
fn shutdown_with_stream<H: Harness>(stage: &mut CaseRunner<H>) -> Result<(), Violation> {
    let mut reader = stage.stream()?;
    for _ in 0..2 {
        stage.stream_happens();
    }
    stage.read_all(&mut reader, Rule::Announced)?;
    stage.server.shutdown();
    stage.inspect()?;
    let at = stage.at;
    let waker = Waker::from(Arc::clone(&reader.flag));
    let cx = Context::from_waker(&waker);
    let not_ended = |saw: &str| Violation::NotEnded { request: 0, saw: saw.to_owned(), at };
    match reader.stream.poll_event(&cx) {
        Poll::Ready(Some(Err(WaitError::ServerClosed))) => {}
        Poll::Ready(Some(Err(error))) => return Err(failed(0, error, at)),
        Poll::Ready(Some(Ok(_))) => return Err(not_ended("an event that had not happened")),
        Poll::Ready(None) => return Err(not_ended("an end without an error")),
        Poll::Pending => return Err(not_ended("it was still pending")),
    }
    match reader.stream.poll_event(&cx) {
        Poll::Ready(None) => Ok(()),
        _ => Err(not_ended("no end after its error")),
    }
}
