//! An engine as a detector: what the server calls, and what it watches.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    panic::resume_unwind,
};

use super::{
    contract::{Engine, Progress, Turn},
    shared::Shared,
};
use crate::{
    clock::Instant,
    detector::{
        Armed, Arming, Cancel, Detector, Emitted, Interest, Key, Methods, Mode, Notice, Round,
        Site, Submitted,
    },
    sync::Arc,
};

/// What is asked of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked<W> {
    Want(W),
    /// To work while nobody waits.
    Background,
}

/// What was found, and for which want: so that it can be put back.
pub(crate) struct EngineEvent<E: Engine> {
    want: E::Want,
    found: E::Found,
}

impl<E: Engine> EngineEvent<E> {
    pub(crate) fn into_found(self) -> E::Found {
        self.found
    }
}

/// The detector that an [`EngineHost`](crate::EngineHost) registers.
pub(crate) struct EngineWatch<E: Engine> {
    methods: Methods,
    arming: Arming,
    /// Gone after a panic in the engine, and after an error in arming: the server never frees such a detector, and the
    /// engine's descriptors must not stay open for that.
    state: Option<Box<State<E>>>,
}

struct State<E> {
    shared: Arc<Shared<E>>,
    descriptors: Descriptors,
    /// Armed just now: the poll that follows must not end that.
    is_armed: bool,
    /// How many requests are for nothing but to keep the engine at work.
    background: usize,
    /// Announcements in a row for which nobody waited.
    vain: u32,
}

impl<E: Engine> EngineWatch<E> {
    pub(super) fn new(shared: Arc<Shared<E>>) -> Self {
        let guarded = shared.lock();
        let methods = if guarded.engine.can_announce() {
            Methods::GROUP | Methods::NOTIFY
        } else {
            Methods::GROUP
        };
        let arming = guarded.engine.arming();
        drop(guarded);
        let descriptors = Descriptors { site: None, places: Vec::new() };
        let state = State { shared, descriptors, is_armed: false, background: 0, vain: 0 };
        Self { methods, arming, state: Some(Box::new(state)) }
    }

    /// Calls `f` with the state, which is gone if it panics: unwinding drops it.
    fn call<T>(&mut self, f: impl FnOnce(&mut State<E>) -> T) -> T {
        let mut state = self.state.take().expect("invariant: no call after a panic or an error");
        let result = f(&mut state);
        self.state = Some(state);
        result
    }

    fn let_go(&mut self) {
        if let Some(state) = self.state.take()
            && !state.shared.is_inherited()
        {
            state.shared.lock().engine.closed();
        }
    }
}

impl<E: Engine> State<E> {
    /// Lets the engine work, unless it has just been armed, and gives out what it has.
    fn serve(&mut self, notices: &[Notice], round: &mut Round<'_, EngineWatch<E>>) {
        let mut guarded = self.shared.lock();
        if let Some(payload) = guarded.panicked.take() {
            resume_unwind(payload);
        }
        let has_waiters = self.is_awaited(round);
        if !notices.is_empty() {
            guarded.engine.announced(notices);
            self.is_armed = false;
        }
        if !std::mem::take(&mut self.is_armed)
            && let Some(site) = &self.descriptors.site
        {
            let turn = Turn::new(site, has_waiters || !guarded.waiters.is_empty());
            if guarded.engine.progress(&turn) == Progress::More {
                round.more();
            }
            guarded.is_asleep = false;
        }
        let engine = &mut guarded.engine;
        let mut key = round.oldest();
        while let Some(waiter) = key {
            key = round.next_after(waiter);
            while let Some(Asked::Want(want)) = round.request_mut(waiter) {
                let Some(found) = engine.take(want) else { break };
                let event = EngineEvent { want: want.clone(), found };
                match round.emit(waiter, event) {
                    Emitted::Kept if round.is_full() => break,
                    Emitted::Kept => {}
                    Emitted::Ended => break,
                    Emitted::Full(EngineEvent { want, found })
                    | Emitted::Gone(EngineEvent { want, found }) => {
                        drop(engine.put_back(&want, found));
                        break;
                    }
                }
            }
            if round.is_full() {
                round.more();
                return;
            }
        }
        guarded.has_waiters = self.is_awaited(round);
        // Last: looks take in what has come for others too.
        guarded.note_served();
        while let Some(waker) = guarded.waiters.next_served() {
            round.wake(waker);
            if round.is_full() {
                round.more();
                return;
            }
        }
    }

    /// Returns whether anybody waits for a want.
    fn is_awaited(&self, round: &Round<'_, EngineWatch<E>>) -> bool {
        round.pending_count() > self.background
    }

    fn notified(&mut self, notices: &[Notice], round: &mut Round<'_, EngineWatch<E>>) {
        let guarded = self.shared.lock();
        let is_in_vain = !self.is_awaited(round) && guarded.waiters.is_empty();
        let vain_max = guarded.engine.vain_announcements_max();
        drop(guarded);
        self.vain = if is_in_vain { self.vain.saturating_add(1) } else { 0 };
        if vain_max.is_some_and(|max| self.vain >= max) {
            self.descriptors.unwatch();
        } else {
            self.serve(notices, round);
        }
    }

    fn arm(&mut self) -> io::Result<Armed> {
        self.vain = 0;
        let mut guarded = self.shared.lock();
        self.descriptors.follow(&guarded.engine)?;
        let Some(site) = &self.descriptors.site else { return Ok(Armed::Ready) };
        let armed = guarded.engine.arm(&Turn::new(site, true))?;
        self.is_armed = armed == Armed::Armed;
        guarded.is_asleep = self.is_armed;
        guarded.asleep_until = guarded.engine.next_deadline();
        // What is watched only now announces what is there already.
        self.descriptors.follow(&guarded.engine)?;
        Ok(armed)
    }
}

impl<E: Engine> Detector for EngineWatch<E> {
    type Request = Asked<E::Want>;
    type Event = EngineEvent<E>;

    fn methods(&self) -> Methods {
        self.methods
    }

    fn arming(&self) -> Arming {
        self.arming
    }

    fn attach(&mut self, site: &Site) -> io::Result<()> {
        self.call(|state| {
            state.shared.attach(site.bell());
            state.descriptors.site = Some(site.clone());
            let mut guarded = state.shared.lock();
            guarded.engine.attach(site.bell())?;
            state.descriptors.follow(&guarded.engine)
        })
    }

    fn submit(&mut self, _: Key, asked: &mut Asked<E::Want>, _: Mode) -> Submitted<Self::Event> {
        let state = self.state.as_mut().expect("invariant: no call after a panic or an error");
        let mut guarded = state.shared.lock();
        let Asked::Want(want) = asked else {
            state.background += 1;
            guarded.is_kept_at_work = true;
            return Submitted::Pending;
        };
        guarded.has_waiters = true;
        let found = guarded.engine.take(want);
        state.shared.leave_to_server(guarded);
        // An engine may have to work for what is wanted.
        found.map_or(Submitted::Queued, |found| {
            Submitted::Ready(EngineEvent { want: want.clone(), found })
        })
    }

    fn cancel(&mut self, _: Key, asked: &mut Asked<E::Want>) -> Cancel {
        if let (Asked::Background, Some(state)) = (asked, &mut self.state) {
            state.background -= 1;
        }
        Cancel::Released
    }

    fn poll(&mut self, round: &mut Round<'_, Self>) {
        self.call(|state| state.serve(&[], round));
    }

    fn notified(&mut self, notices: &[Notice], round: &mut Round<'_, Self>) {
        self.call(|state| state.notified(notices, round));
    }

    fn arm(&mut self) -> io::Result<Armed> {
        let armed = self.call(State::arm);
        if armed.is_err() {
            self.let_go();
        }
        armed
    }

    fn unclaimed(&mut self, event: Self::Event) -> Option<Self::Event> {
        self.call(|state| {
            let EngineEvent { want, found } = event;
            let mut guarded = state.shared.lock();
            let given_back = guarded.engine.put_back(&want, found);
            state.shared.leave_to_server(guarded);
            Some(EngineEvent { want, found: given_back? })
        })
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.state.as_ref()?.shared.lock().engine.next_deadline()
    }
}

impl<E: Engine> Drop for EngineWatch<E> {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// The descriptors of an engine, as they are watched.
struct Descriptors {
    /// From the registration on.
    site: Option<Site>,
    places: Vec<Place>,
}

/// One descriptor.
struct Place {
    /// The host's own: it stays open until it is watched no more.
    descriptor: OwnedFd,
    key: u32,
    generation: u32,
    interest: Interest,
    is_watched: bool,
    /// The engine has named it just now.
    is_named: bool,
}

impl Descriptors {
    /// Watches what the engine names, and nothing else.
    fn follow<E: Engine>(&mut self, engine: &E) -> io::Result<()> {
        let Self { site: Some(site), places } = self else { return Ok(()) };
        let mut is_named = Ok(());
        engine.descriptors(&mut |named| {
            let same = places.iter_mut().find(|place| {
                place.key == named.key
                    && place.generation == named.generation
                    && place.interest == named.interest
            });
            match same {
                Some(place) => place.is_named = true,
                None => match named.descriptor.try_clone_to_owned() {
                    Ok(descriptor) => places.push(Place {
                        descriptor,
                        key: named.key,
                        generation: named.generation,
                        interest: named.interest,
                        is_watched: false,
                        is_named: true,
                    }),
                    Err(error) => is_named = Err(error),
                },
            }
        });
        is_named?;
        places.retain(|place| {
            if !place.is_named && place.is_watched {
                // One that the server does not know any more announces nothing.
                let _ = site.unwatch(place.descriptor.as_fd());
            }
            place.is_named
        });
        for place in places {
            place.is_named = false;
            if !place.is_watched {
                site.watch(place.descriptor.as_fd(), place.key, place.interest)?;
                place.is_watched = true;
            }
        }
        Ok(())
    }

    /// Watches nothing until the next [`follow`](Self::follow).
    #[cold]
    fn unwatch(&mut self) {
        let Some(site) = &self.site else { return };
        for place in &mut self.places {
            if place.is_watched {
                place.is_watched = site.unwatch(place.descriptor.as_fd()).is_err();
            }
        }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        self.unwatch();
    }
}
