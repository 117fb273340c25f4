//! Detectors that give a server no rest: they are ready, due or notified all the time, and have no event.

use std::{io, time::Duration};

use vigie_detect::{
    ArmOutcome, CancelOutcome, Detector, DriverHandle, Engine, EngineContext, EngineHost, Instant,
    Key, Methods, Mode, Notifier, PollContext, Registration, Server, SubmitOutcome,
};
use vigie_runtime::{Flavor, Runtime, spawn, time};

use super::alive::assert_alive;
use crate::{
    flavors::{FLAVORS, runtime},
    kit::guard::against_hang,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Says at each arming that an event has happened.
    Ready,
    /// Wants to be called at a time that is over.
    Due,
    /// Wants to be called at such a time, and to be woken for it.
    DueAwake,
    /// Calls its own notifier in each poll.
    Notifies,
}

const KINDS: [Kind; 4] = [Kind::Ready, Kind::Due, Kind::DueAwake, Kind::Notifies];

struct Restless {
    kind: Kind,
    notifier: Option<Notifier>,
}

impl Detector for Restless {
    type Request = ();
    type Event = ();

    fn methods(&self) -> Methods {
        Methods::CHECK | Methods::GROUP | Methods::NOTIFY
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        self.notifier = Some(driver.notifier());
        Ok(())
    }

    fn submit(&mut self, _: Key, _: &mut (), _: Mode) -> SubmitOutcome<()> {
        SubmitOutcome::Pending
    }

    fn check(&mut self, _: Key, _: &mut ()) -> Option<()> {
        None
    }

    fn poll(&mut self, _: &mut PollContext<'_, Self>) {
        if let (Kind::Notifies, Some(notifier)) = (self.kind, &self.notifier) {
            notifier.notify();
        }
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::ready_if(self.kind == Kind::Ready))
    }

    fn cancel(&mut self, _: Key, _: &mut ()) -> CancelOutcome {
        CancelOutcome::Released
    }

    fn next_deadline(&self) -> Option<Instant> {
        matches!(self.kind, Kind::Due | Kind::DueAwake).then(|| Instant::from_nanos(1))
    }

    fn wake_at(&self) -> Option<Instant> {
        (self.kind == Kind::DueAwake).then(|| Instant::from_nanos(1))
    }
}

/// Goal: a detector that gives the server no rest does not stop the others: tasks, timers, sockets, doorbells and closures
/// work on. Method: a request is pending at each kind of such a detector, on every flavor.
#[test]
fn restless_detectors_stop_no_other() {
    for flavor in FLAVORS {
        for kind in KINDS {
            against_hang(move || {
                let runtime = runtime(flavor);
                let detector = Restless { kind, notifier: None };
                let handle = runtime
                    .server()
                    .register(detector, Registration::named("restless"))
                    .expect("registered");
                let waiter = runtime.spawn(async move { handle.wait(()).await });
                for _ in 0..3 {
                    assert_alive(&runtime);
                }
                assert!(!waiter.is_finished());
                waiter.abort();
            });
        }
    }
}

/// Answers by their questions, as in the guide.
struct Answers(Vec<u64>);

impl Engine for Answers {
    type Request = u64;
    type Output = ();

    fn take(&mut self, question: &u64) -> Option<()> {
        let place = self.0.iter().position(|answer| answer == question)?;
        self.0.swap_remove(place);
        Some(())
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::ready_if(!self.0.is_empty()))
    }
}

/// Goal: an answer that has no waiter stops no other task, and the one that is awaited comes. Method: an engine that says at arming that it has
/// answers; one that is not awaited, then others.
#[test]
fn answers_without_a_waiter_stop_no_other() {
    for flavor in FLAVORS {
        against_hang(move || {
            let runtime = runtime(flavor);
            let answers =
                EngineHost::new(runtime.server(), Answers(vec![7]), Registration::named("answers"))
                    .expect("registered");
            let waits = answers.clone();
            let waiter = runtime.spawn(async move { waits.wait(1).await });
            for _ in 0..3 {
                assert_alive(&runtime);
            }
            answers.with(|answers| answers.0.push(1));
            runtime.block_on(waiter).expect("no panic").expect("answered");
        });
    }
}

/// Goal: the same in virtual time, which moves on. Method: timers beside each kind.
#[test]
fn restless_detectors_let_virtual_time_pass() {
    for kind in KINDS {
        against_hang(move || {
            let runtime = Runtime::builder()
                .flavor(Flavor::Simulated { seed: 1 })
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let server = Server::current().expect("in a runtime");
                let handle = server
                    .register(Restless { kind, notifier: None }, Registration::named("restless"))
                    .expect("registered");
                let waiter = spawn(async move { handle.wait(()).await });
                for _ in 0..10 {
                    time::sleep(Duration::from_millis(10)).await;
                }
                waiter.abort();
            });
        });
    }
}
