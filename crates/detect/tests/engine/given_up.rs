//! What is said of a detector that the server gives up.

use std::{io, pin::pin, task::Poll};

use vigie_detect::{ArmOutcome, Engine, EngineContext, EngineHost, Registration};

use super::{
    faults::{poll, prepare, server},
    log::Log,
};

/// Cannot be armed.
struct Unarmed;

impl Engine for Unarmed {
    type Request = ();
    type Output = ();

    fn take(&mut self, (): &()) -> Option<()> {
        None
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        Err(io::Error::other("no arming"))
    }
}

/// Goal: the cause of an engine's failure is in the text of its waiters' errors, and is logged once with the name of the handle.
/// Method: an engine whose `arm` fails, two waiters and a late one; a listener on the thread of the host.
#[test]
fn the_cause_of_an_end_is_told() {
    let log = Log::new(|_| true);
    tracing::subscriber::with_default(log.clone(), || {
        let (server, mut driver) = server();
        let host = EngineHost::new(&server, Unarmed, Registration::named("unarmed"));
        let host = host.expect("it is registered");
        let mut waits = [pin!(host.wait(())), pin!(host.wait(()))];
        assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
        // Work that was announced comes before the sleep.
        driver.detect();
        prepare(&mut driver);
        let late = pin!(host.wait(()));
        for wait in waits.into_iter().chain([late]) {
            let Poll::Ready(Err(error)) = poll(wait) else { panic!("the engine has failed") };
            assert_eq!(error.to_string(), "the detector failed the request: no arming");
        }
    });
    let errors = log.with("ERROR");
    assert_eq!(errors.len(), 1, "{:?}", log.with(""));
    for part in ["handle=\"unarmed\"", "no arming"] {
        assert!(errors[0].contains(part), "{part}: {}", errors[0]);
    }
}

/// Goal: a test's log has what the test's thread does, whichever thread comes to an event first. Method: a thread without a
/// subscriber comes first.
#[test]
fn logs_are_complete() {
    let log = Log::new(|_| true);
    tracing::subscriber::with_default(log.clone(), || {
        let event = || tracing::info!(what = "both threads come here");
        std::thread::scope(|threads| threads.spawn(event).join()).expect("it ends");
        event();
    });
    assert_eq!(log.with("both threads").len(), 1);
}
