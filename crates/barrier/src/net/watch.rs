//! The engine at a detection server.
//!
//! Who waits looks by himself for a while. What comes meanwhile is announced to nobody: the host would only disturb.
//! When he sleeps, or stays away from the barrier for long, the host watches the transport: a member answers for its
//! process, whatever that does.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, OnceLock},
    task::{Wake, Waker},
    time::Duration,
};

use vigie_detect::{
    Arming, Bell, Detector, Instant, Interest, Key, Methods, Mode, Notice, Round, Site, Submitted,
};

use super::engine::Engine;
use crate::sync::lock;

/// Announcements in a row for which nobody waited, after which none are wanted.
const WASTED_MAX: u32 = 2;

/// How often a transport is armed in which something is each time, before others have their turn.
const ARMS_MAX: u32 = 4;

/// Who has not come to the barrier for so long is watched over: less than others wait before they ask twice.
const AWAY: Duration = Duration::from_millis(20);

/// What the user's side and the host share.
pub(super) struct Shared {
    pub(super) engine: Mutex<Engine>,
    bell: OnceLock<Bell>,
}

impl Shared {
    pub(super) fn new(engine: Engine) -> Arc<Self> {
        Arc::new(Self { engine: Mutex::new(engine), bell: OnceLock::new() })
    }

    /// Makes the host look.
    pub(super) fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }
}

/// What arrives where no descriptor tells makes the host look.
impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Nothing: there is always work.
    Background,
    Exit,
    Agreement,
    /// That nobody needs this member any more, which has left.
    Freedom,
    /// An exit, or that this member is to look by itself for probes.
    Turn,
}

pub(super) struct Watch {
    shared: Arc<Shared>,
    waker: Waker,
    /// Copies, which stay open for as long as they are watched.
    descriptors: Vec<OwnedFd>,
    site: Option<Site>,
    is_watched: bool,
    wasted: u32,
    /// When to see whether the user has been away.
    check_at: Option<Instant>,
    turns: u64,
}

impl Watch {
    pub(super) fn new(shared: &Arc<Shared>) -> io::Result<Self> {
        let engine = lock(&shared.engine);
        let descriptors =
            engine.transport().descriptors().into_iter().map(|one| one.try_clone_to_owned());
        Ok(Self {
            waker: Waker::from(Arc::clone(shared)),
            descriptors: descriptors.collect::<Result<_, _>>()?,
            shared: Arc::clone(shared),
            site: None,
            is_watched: false,
            wasted: 0,
            check_at: None,
            turns: 0,
        })
    }

    fn watch(&mut self) -> io::Result<()> {
        if let Some(site) = self.site.as_ref().filter(|_| !self.is_watched) {
            for (key, descriptor) in (0..).zip(&self.descriptors) {
                site.watch(descriptor.as_fd(), key, Interest::Readable)?;
            }
            self.is_watched = true;
            self.check_at = None;
        }
        Ok(())
    }

    #[cold]
    fn unwatch(&mut self, now: Instant, turns: u64) {
        let Some(site) = &self.site else { return };
        for descriptor in &self.descriptors {
            // It may be unwatched already, if the one before it failed.
            let _ = site.unwatch(descriptor.as_fd());
        }
        self.is_watched = false;
        self.turns = turns;
        self.check_at = Some(now.saturating_add(AWAY));
    }

    /// Prepares for sleep, and takes in what came before. Returns false if there may be more.
    fn prepare(&self, engine: &mut Engine, now: Instant) -> bool {
        for _ in 0..ARMS_MAX {
            match engine.arm(&self.waker) {
                // What is found ends the arming: without another one, the next message would wake nobody.
                Ok(true) => engine.look(now, &self.waker),
                Ok(false) => return true,
                Err(error) => {
                    // The next look meets it too.
                    tracing::debug!(%error, "a barrier's transport cannot be armed");
                    return true;
                }
            }
        }
        false
    }

    /// Sees whether the user has been away, if it is time to.
    fn check(&mut self, now: Instant, turns: u64) {
        if self.check_at.is_none_or(|at| now < at) {
            return;
        }
        if turns == self.turns {
            // What cannot be watched is looked at again and again.
            self.check_at = self.watch().is_err().then(|| now.saturating_add(AWAY));
        } else {
            self.turns = turns;
            self.check_at = Some(now.saturating_add(AWAY));
        }
    }
}

impl Detector for Watch {
    type Request = Want;
    /// That there is what was wanted; it is taken from the engine.
    type Event = ();

    fn methods(&self) -> Methods {
        Methods::NOTIFY
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn attach(&mut self, site: &Site) -> io::Result<()> {
        self.site = Some(site.clone());
        let _ = self.shared.bell.set(site.bell());
        self.watch()
    }

    fn submit(&mut self, _: Key, want: &mut Want, _: Mode) -> Submitted<()> {
        if *want == Want::Background {
            return Submitted::Queued;
        }
        self.wasted = 0;
        if let Err(error) = self.watch() {
            return Submitted::Rejected(error);
        }
        let shared = Arc::clone(&self.shared);
        let mut engine = lock(&shared.engine);
        let Some(site) = &self.site else { return Submitted::Queued };
        let now = site.now();
        if engine.is_due(now) {
            engine.look(now, &self.waker);
        }
        let armed = engine.arm(&self.waker);
        if !matches!(armed, Ok(false)) {
            engine.look(now, &self.waker);
        }
        match armed {
            Err(error) => Submitted::Rejected(error),
            _ if is_there(&engine, *want) => Submitted::Ready(()),
            // The poll arms once more: what has come has ended that.
            Ok(true) => Submitted::Queued,
            Ok(false) => Submitted::Pending,
        }
    }

    fn poll(&mut self, round: &mut Round<'_, Self>) {
        let shared = Arc::clone(&self.shared);
        let mut engine = lock(&shared.engine);
        self.check(round.now(), engine.turns);
        engine.look(round.now(), &self.waker);
        if engine.member.is_inside() && !engine.is_looked_at {
            // Nobody else looks.
            if let Err(error) = self.watch() {
                self.check_at = Some(round.now().saturating_add(AWAY));
                tracing::debug!(%error, "a barrier's transport cannot be watched");
            }
        }
        if self.is_watched && !self.prepare(&mut engine, round.now()) {
            round.more();
        }
        let mut key = round.oldest();
        while let Some(waiter) = key {
            key = round.next_after(waiter);
            if round.request_mut(waiter).is_some_and(|want| is_there(&engine, *want)) {
                round.complete(waiter, ());
            }
        }
    }

    fn notified(&mut self, _: &[Notice], round: &mut Round<'_, Self>) {
        let has_waiters = round.oldest().is_some_and(|first| round.next_after(first).is_some());
        self.wasted = if has_waiters { 0 } else { self.wasted + 1 };
        if self.wasted >= WASTED_MAX {
            let shared = Arc::clone(&self.shared);
            let engine = lock(&shared.engine);
            let (is_looked_at, turns) = (engine.is_looked_at, engine.turns);
            let is_busy = is_looked_at || turns != self.turns;
            drop(engine);
            self.turns = turns;
            if is_busy {
                self.unwatch(round.now(), turns);
            }
            if is_looked_at {
                return;
            }
        }
        self.poll(round);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let engine = lock(&self.shared.engine);
        let engine = engine.next_deadline().filter(|_| !engine.is_looked_at);
        [engine, self.check_at].into_iter().flatten().min()
    }
}

/// Whether what is wanted is there.
fn is_there(engine: &Engine, want: Want) -> bool {
    match want {
        Want::Background => false,
        Want::Exit => engine.is_over(),
        Want::Agreement => engine.is_settled(),
        Want::Freedom => engine.is_free(),
        Want::Turn => engine.is_over() || engine.probes.is_attended,
    }
}
