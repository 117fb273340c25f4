//! A doorbell: plain threads ring, tasks wait. Rings are counted, each wait takes one.

use std::io;

use crate::{
    detector::{Arming, Bell, Detector, Key, Methods, Mode, Round, Site, Submitted},
    error::RegisterError,
    server::{Handle, Registration, Server},
    sync::{Arc, AtomicU64, Ordering},
};

/// The detector's side of a doorbell: made by [`doorbell`].
#[derive(Debug)]
pub struct Doorbell {
    rings: Arc<AtomicU64>,
    bell: Option<Bell>,
}

/// The button of a doorbell, for any thread.
#[derive(Clone, Debug)]
pub struct Button {
    /// Rings that no wait has taken. Raised by the button (release), lowered by the detector
    /// (acquire): a woken task sees what the ringer did before.
    rings: Arc<AtomicU64>,
    bell: Bell,
}

impl Button {
    /// Rings once: one waiting task goes on, or the next one that waits does not.
    pub fn press(&self) {
        self.rings.fetch_add(1, Ordering::Release);
        self.bell.ring();
    }
}

/// Makes a doorbell at `server`.
///
/// # Errors
/// As [`Server::register`].
pub fn doorbell(server: &Server) -> Result<(Button, Handle<Doorbell>), RegisterError> {
    let rings = Arc::new(AtomicU64::new(0));
    let doorbell = Doorbell { rings: Arc::clone(&rings), bell: None };
    let handle = server.register(doorbell, Registration::named("doorbell"))?;
    let bell = handle.with_detector(|doorbell| doorbell.bell.clone()).flatten();
    let bell = bell.ok_or(RegisterError::ServerClosed)?;
    Ok((Button { rings, bell }, handle))
}

impl Doorbell {
    fn take(&mut self) -> bool {
        // Only the detector lowers the count, under its handle's lock.
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

    fn attach(&mut self, site: &Site) -> io::Result<()> {
        self.bell = Some(site.bell());
        Ok(())
    }

    fn submit(&mut self, key: Key, request: &mut (), _: Mode) -> Submitted<()> {
        match self.check(key, request) {
            Some(()) => Submitted::Ready(()),
            None => Submitted::Pending,
        }
    }

    fn check(&mut self, _: Key, (): &mut ()) -> Option<()> {
        self.take().then_some(())
    }

    fn unclaimed(&mut self, (): ()) -> Option<()> {
        self.rings.fetch_add(1, Ordering::Release);
        None
    }

    fn poll(&mut self, round: &mut Round<'_, Self>) {
        while round.oldest().is_some() {
            if round.is_full() {
                round.more();
                return;
            }
            if !self.take() {
                return;
            }
            let key = round.oldest().expect("invariant: nobody left during the round");
            if let crate::Emitted::Full(()) | crate::Emitted::Gone(()) = round.emit(key, ()) {
                // A stream that is not read keeps its rings here.
                self.rings.fetch_add(1, Ordering::Release);
                return;
            }
        }
    }
}
