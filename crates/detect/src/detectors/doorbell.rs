//! A doorbell: plain threads ring, tasks wait. Rings are counted; each wait takes one.

use std::io;

use crate::{
    detector::{
        Arming, Detector, DriverHandle, Key, Methods, Mode, Notifier, PollContext, SubmitOutcome,
    },
    error::RegisterError,
    server::{Handle, Registration, Server, Wait},
    sync::{Arc, AtomicU64, Ordering},
};

/// The detector's side of a doorbell: created by [`doorbell`].
#[derive(Debug)]
pub struct Doorbell {
    rings: Arc<AtomicU64>,
    notifier: Option<Notifier>,
}

/// The button of a doorbell, for any thread.
#[derive(Clone, Debug)]
pub struct Button {
    /// Rings that no wait has taken. Incremented by the button (release), decremented by the
    /// detector (acquire): a woken task sees what the ringing thread did before.
    rings: Arc<AtomicU64>,
    notifier: Notifier,
}

impl Button {
    /// Rings once: one waiting task continues, or the next wait returns at once.
    pub fn press(&self) {
        self.rings.fetch_add(1, Ordering::Release);
        self.notifier.notify();
    }
}

/// Creates a doorbell at `server`.
///
/// # Errors
/// Same as [`Server::register`].
pub fn doorbell(server: &Server) -> Result<(Button, Handle<Doorbell>), RegisterError> {
    let rings = Arc::new(AtomicU64::new(0));
    let doorbell = Doorbell { rings: Arc::clone(&rings), notifier: None };
    let handle = server.register(doorbell, Registration::named("doorbell"))?;
    let notifier = handle.with_detector(|doorbell| doorbell.notifier.clone()).flatten();
    let notifier = notifier.ok_or(RegisterError::ServerClosed)?;
    Ok((Button { rings, notifier }, handle))
}

impl Handle<Doorbell> {
    /// Waits until the doorbell has rung, and takes one ring.
    ///
    /// # Cancel safety
    /// Cancel safe: no ring is lost.
    ///
    /// # Errors
    /// [`WaitError`](crate::WaitError).
    pub fn rung(&self) -> Wait<Doorbell, &Self> {
        self.wait(())
    }
}

impl Doorbell {
    fn take(&mut self) -> bool {
        // Only the detector decrements the count, under its handle's lock.
        let has_ring = self.rings.load(Ordering::Acquire) > 0;
        if has_ring {
            self.rings.fetch_sub(1, Ordering::AcqRel);
        }
        has_ring
    }
}

impl Detector for Doorbell {
    type Request = ();
    type Event = ();

    fn methods(&self) -> Methods {
        Methods::CHECK | Methods::GROUP | Methods::NOTIFY
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        self.notifier = Some(driver.notifier());
        Ok(())
    }

    fn submit(&mut self, key: Key, request: &mut (), _: Mode) -> SubmitOutcome<()> {
        match self.check(key, request) {
            Some(()) => SubmitOutcome::Ready(()),
            None => SubmitOutcome::Pending,
        }
    }

    fn check(&mut self, _: Key, (): &mut ()) -> Option<()> {
        self.take().then_some(())
    }

    fn unclaimed(&mut self, (): ()) -> Option<()> {
        self.rings.fetch_add(1, Ordering::Release);
        None
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        while context.oldest().is_some() {
            if context.is_full() {
                context.more();
                return;
            }
            if !self.take() {
                return;
            }
            let key = context.oldest().expect("invariant: no waiter left during the poll");
            if let crate::EmitOutcome::Full(()) | crate::EmitOutcome::Gone(()) =
                context.emit(key, ())
            {
                // A stream that is not read leaves its rings here.
                self.rings.fetch_add(1, Ordering::Release);
                return;
            }
        }
    }
}
