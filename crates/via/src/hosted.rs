//! What is waited for of an engine that never waits itself: one detector for links and datagrams.

use std::{
    fmt,
    future::Future,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use vigie_detect::{
    Armed, Bell, Detector, Handle, Interest, Key, Methods, Mode, Notice, RegisterError,
    Registration, Round, Server, Site, Submitted, Wait, WaitError,
};

use crate::spin::Spin;

/// Takes in what has come, and gives it out to those who want it.
pub(crate) trait Engine: Send + 'static {
    /// What somebody waits for.
    type Want: Copy + Send + 'static;
    /// What they get.
    type Found: Send + 'static;

    /// Takes what is wanted, if it is there.
    fn take(&mut self, want: Self::Want) -> Option<Self::Found>;

    /// Gives back what was taken for somebody who left.
    fn put_back(&mut self, want: Self::Want, found: Self::Found);

    /// Prepares for sleep: afterwards, whatever comes makes the descriptor readable. Returns whether
    /// something may be there already.
    fn arm(&mut self) -> io::Result<bool>;

    /// The descriptor, the same for life.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

struct Shared<E> {
    engine: Mutex<E>,
    /// Somebody else's work may have made what a pending wait wants.
    has_waiters: AtomicBool,
    bell: OnceLock<Bell>,
}

impl<E> Shared<E> {
    /// Nothing behind the lock is left half done by a panic: engines call no foreign code.
    fn lock(&self) -> MutexGuard<'_, E> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An engine at a detection server. Clones are the same one.
pub(crate) struct Hosted<E: Engine> {
    shared: Arc<Shared<E>>,
    handle: Handle<Watch<E>>,
    spin: Spin,
}

impl<E: Engine> Hosted<E> {
    pub(crate) fn new(
        server: &Server,
        name: &'static str,
        engine: E,
    ) -> Result<Self, RegisterError> {
        let descriptor = engine.descriptor().try_clone_to_owned();
        let engine = Mutex::new(engine);
        let shared =
            Arc::new(Shared { engine, has_waiters: AtomicBool::new(false), bell: OnceLock::new() });
        let watch = Watch {
            shared: Arc::clone(&shared),
            descriptor,
            site: None,
            is_watched: false,
            wasted: 0,
        };
        let handle = server.register(watch, Registration::named(name))?;
        Ok(Self { shared, handle, spin: Spin::default() })
    }

    /// Calls `f` with the engine, and makes the host look if somebody waits for what `f` has done.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        let result = f(&mut self.shared.lock());
        if self.shared.has_waiters.load(Ordering::Relaxed)
            && let Some(bell) = self.shared.bell.get()
        {
            bell.ring();
        }
        result
    }

    pub(crate) fn wait(&self, want: E::Want) -> Waiting<'_, E> {
        Waiting { hosted: self, want, wait: None }
    }
}

impl<E: Engine> Clone for Hosted<E> {
    fn clone(&self) -> Self {
        let handle = self.handle.clone();
        Self { shared: Arc::clone(&self.shared), handle, spin: Spin::default() }
    }
}

impl<E: Engine> fmt::Debug for Hosted<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// A wait that looks by itself before it hands over. Cancel safe: what came for it goes to others.
pub(crate) struct Waiting<'a, E: Engine> {
    hosted: &'a Hosted<E>,
    want: E::Want,
    wait: Option<Wait<Watch<E>, &'a Handle<Watch<E>>>>,
}

impl<E: Engine> Unpin for Waiting<'_, E> {}

impl<E: Engine> Future for Waiting<'_, E> {
    type Output = Result<E::Found, WaitError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(wait) = &mut this.wait {
            return Pin::new(wait).poll(cx).map_ok(|(_, found)| found);
        }
        let hosted = this.hosted;
        if let Some(found) = hosted.spin.until(|| hosted.shared.lock().take(this.want)) {
            return Poll::Ready(Ok(found));
        }
        let wait = this.wait.insert(hosted.handle.wait(this.want));
        Pin::new(wait).poll(cx).map_ok(|(_, found)| found)
    }
}

/// Announcements in a row for which nobody waited, after which none are wanted: whoever looks by itself at
/// what comes would be disturbed by a host that looks too.
const WASTED_MAX: u32 = 2;

/// The engine as a detector.
pub(crate) struct Watch<E: Engine> {
    shared: Arc<Shared<E>>,
    descriptor: io::Result<OwnedFd>,
    site: Option<Site>,
    is_watched: bool,
    wasted: u32,
}

impl<E: Engine> Watch<E> {
    /// Wants announcements. One comes at once if something is there already.
    fn watch(&mut self) -> io::Result<()> {
        if let Some(site) = self.site.as_ref().filter(|_| !self.is_watched) {
            match &self.descriptor {
                Ok(descriptor) => site.watch(descriptor.as_fd(), 0, Interest::Readable)?,
                Err(error) => return Err(io::Error::new(error.kind(), error.to_string())),
            }
            self.is_watched = true;
        }
        Ok(())
    }

    /// Wants none until somebody waits.
    #[cold]
    fn unwatch(&mut self) {
        if let (Some(site), Ok(descriptor)) = (&self.site, &self.descriptor)
            && site.unwatch(descriptor.as_fd()).is_ok()
        {
            self.is_watched = false;
        }
    }

    fn note_waiters(&self, has_waiters: bool) {
        self.shared.has_waiters.store(has_waiters, Ordering::Relaxed);
    }
}

impl<E: Engine> Detector for Watch<E> {
    type Request = E::Want;
    type Event = (E::Want, E::Found);

    fn methods(&self) -> Methods {
        Methods::GROUP | Methods::NOTIFY
    }

    fn attach(&mut self, site: &Site) -> io::Result<()> {
        self.site = Some(site.clone());
        let _ = self.shared.bell.set(site.bell());
        self.watch()
    }

    fn submit(&mut self, _: Key, want: &mut E::Want, _: Mode) -> Submitted<Self::Event> {
        self.note_waiters(true);
        match self.shared.lock().take(*want) {
            Some(found) => Submitted::Ready((*want, found)),
            None => Submitted::Queued,
        }
    }

    fn poll(&mut self, round: &mut Round<'_, Self>) {
        let shared = Arc::clone(&self.shared);
        let mut engine = shared.lock();
        let mut key = round.oldest();
        while let Some(waiter) = key {
            if round.is_full() {
                round.more();
                return;
            }
            let next = round.next_after(waiter);
            if let Some(want) = round.request_mut(waiter).copied()
                && let Some(found) = engine.take(want)
            {
                round.complete(waiter, (want, found));
            }
            key = next;
        }
        drop(engine);
        self.note_waiters(round.oldest().is_some());
    }

    fn notified(&mut self, _: &[Notice], round: &mut Round<'_, Self>) {
        self.wasted = if round.oldest().is_some() { 0 } else { self.wasted + 1 };
        if self.wasted >= WASTED_MAX {
            self.unwatch();
        } else {
            self.poll(round);
        }
    }

    fn arm(&mut self) -> io::Result<Armed> {
        self.wasted = 0;
        self.watch()?;
        Ok(if self.shared.lock().arm()? { Armed::Ready } else { Armed::Armed })
    }

    fn unclaimed(&mut self, (want, found): Self::Event) -> Option<Self::Event> {
        self.shared.lock().put_back(want, found);
        None
    }
}
