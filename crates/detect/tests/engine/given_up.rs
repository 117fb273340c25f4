//! What is said of a detector that the server gives up.

use std::{
    fmt, io,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};
use vigie_detect::{ArmOutcome, Engine, EngineContext, EngineHost, Registration};

use super::faults::{poll, prepare, server};

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

/// Keeps the text of each event.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<String>>>);

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().expect("no panic").push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

/// Goal: the cause of an engine's failure is in the text of its waiters' errors, and is logged once with the name of the handle.
/// Method: an engine whose `arm` fails, two waiters and a late one; a listener on the thread of the host.
#[test]
fn the_cause_of_an_end_is_told() {
    let listener = Listener::default();
    tracing::subscriber::with_default(listener.clone(), || {
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
    let told = listener.0.lock().expect("no panic").clone();
    let errors: Vec<_> = told.iter().filter(|text| text.starts_with("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{told:?}");
    for part in ["handle=\"unarmed\"", "no arming"] {
        assert!(errors[0].contains(part), "{part}: {}", errors[0]);
    }
}
