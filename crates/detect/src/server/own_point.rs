//! A thread's own wait point: for schedulers that give each task a kernel thread, so that the kernel wakes
//! the task's thread itself and no other.
//!
//! A descriptor that is made on such a thread is not watched in the server's wait point. A wait for it
//! that turns out pending leaves a *note* on its thread, which then sleeps in `poll(2)` on what is noted,
//! beside an eventfd for everything else. What the kernel finds ready goes through the server's readiness
//! handle like any announcement: the same detector, round and waker.
//!
//! ```text
//!  AsyncFd, pending ──▶ note ──▶ OwnWaitPoint::wait: poll(2) ──▶ round(Notices) ──▶ waker
//!                        │                              ▲
//!                        │ thread without own point,    └── Alarm::ring, from any thread
//!                        ▼ foreign waker, too many, odd descriptors
//!                   the server's wait point, from then on
//! ```
//!
//! A note holds for one readiness. `poll(2)` shows levels, not edges, so nothing is lost between two
//! notes. What is noted when the point is given up is handed to the server's wait point.
//!
//! A note is left only for a wait under the waker of the task that the thread polls. Such a wait can be
//! ended by this thread alone: nobody else is woken by it, so it does no harm that the note is read only
//! when the task's poll is over. A wait under any other waker, that of a set of futures for example, may
//! already belong to another thread while this one still computes, so the server watches its descriptor.
//! A task that is ready again whenever its poll ends never sleeps; its thread looks at the notes between
//! two polls instead ([`OwnWaitPoint::look_if_due`]).

#![expect(unsafe_code, reason = "poll(2) on descriptors that may be closed meanwhile")]

use std::{
    cell::{Cell, RefCell},
    fmt, io,
    marker::PhantomData,
    mem,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    ptr,
    task::{RawWakerVTable, Waker},
};

use rustix::event::{EventfdFlags, PollFlags, eventfd};

use super::{Server, current::with_current, handle::Handle};
use crate::{
    builtin::{Direction, Readiness, Source, ready_of},
    clock::{Instant, monotonic_now},
    detector::{Batch, Notice},
    fork::ForkGeneration,
    sync::{Arc, AtomicU8, OnceLock, Ordering, thread, thread_local},
};

/// The place where the calling thread sleeps for one server, until it is dropped.
///
/// # Implementing a host
/// A scheduler makes one on each thread that polls tasks and sleeps only while they are pending; wakers
/// ring its [`Alarm`]. It names the task's waker before each poll ([`begin_poll`](Self::begin_poll)), and
/// calls [`look_if_due`](Self::look_if_due) before a poll that follows another one without a sleep. The
/// [`Server`] needs a host of its own beside, for everything but descriptors.
#[derive(Debug)]
#[must_use = "the thread has its own wait point only until this is dropped"]
pub struct OwnWaitPoint {
    alarm: Alarm,
    buffers: RefCell<Buffers>,
    /// When the notes were last looked at.
    last_look: Cell<Instant>,
    previous: Option<Notes>,
    _not_send: PhantomData<*mut ()>,
}

/// Kept from sleep to sleep.
#[derive(Default)]
struct Buffers {
    fds: Vec<libc::pollfd>,
    batch: Batch,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

/// Wakes the thread that sleeps in an [`OwnWaitPoint`], or keeps it from its next sleep.
#[derive(Clone, Debug)]
pub struct Alarm(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    word: SleepWord,
    thread: thread::Thread,
    generation: ForkGeneration,
    /// Made for the first sleep with notes.
    eventfd: OnceLock<OwnedFd>,
}

/// Where the thread is, and whether the alarm has rung since it last looked.
///
/// `tests/loom.rs` checks that no ring is lost, in either place.
#[derive(Debug)]
pub(crate) struct SleepWord {
    /// Moved by the thread from `AWAKE` to where it sleeps and back, by anybody to `RUNG`. Each ring is a
    /// release, each end of a sleep an acquire: who was rung for sees what was done before. `SeqCst` adds
    /// nothing to that but costs nothing either, since all but the loads read and write at once.
    state: AtomicU8,
}

const AWAKE: u8 = 0;
const RUNG: u8 = 1;

/// Where a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In `poll(2)`: the eventfd wakes it.
    Polling = 2,
    /// In its own sleep: unparking wakes it.
    Parked = 3,
}

impl SleepWord {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(AWAKE) }
    }

    /// The thread is about to sleep at `place`. Returns whether it may: it was not rung for.
    pub(crate) fn begin_sleep(&self, place: Place) -> bool {
        let place = place as u8;
        self.state.compare_exchange(AWAKE, place, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns whether the alarm has rung: the thread must not go on sleeping.
    pub(crate) fn is_rung(&self) -> bool {
        self.state.load(Ordering::SeqCst) == RUNG
    }

    /// The thread is awake, and takes the ring.
    pub(crate) fn end_sleep(&self) {
        self.state.swap(AWAKE, Ordering::SeqCst);
    }

    /// Rings. Returns where the thread must be woken; none if it is awake, or was woken already.
    pub(crate) fn ring(&self) -> Option<Place> {
        match self.state.swap(RUNG, Ordering::SeqCst) {
            state if state == Place::Polling as u8 => Some(Place::Polling),
            state if state == Place::Parked as u8 => Some(Place::Parked),
            _ => None,
        }
    }
}

/// The most notes of one thread: each costs a look at every sleep.
const NOTES_MAX: usize = 64;

/// How long a sleep without an eventfd takes at most, in milliseconds.
const BLIND_MS: i32 = 10;

/// How long a thread whose task does not sleep leaves its notes unread, in nanoseconds: as long as a
/// server's host, by default, goes without a look.
const LOOK_EVERY_NS: u64 = 50_000;

#[derive(Debug)]
struct Notes {
    server: Server,
    list: Vec<Note>,
    /// Of the task that this thread polls.
    waker: Option<WakerIdentity>,
}

/// By which a waker is known again: compared, never followed.
#[derive(Clone, Copy, Debug)]
struct WakerIdentity {
    data: *const (),
    vtable: *const RawWakerVTable,
}

impl WakerIdentity {
    fn of(waker: &Waker) -> Self {
        Self { data: waker.data(), vtable: ptr::from_ref(waker.vtable()) }
    }

    fn is_of(self, waker: &Waker) -> bool {
        ptr::eq(self.data, waker.data()) && ptr::eq(self.vtable, waker.vtable())
    }
}

#[derive(Debug)]
struct Note {
    readiness: Handle<Readiness>,
    source: Arc<Source>,
    direction: Direction,
    descriptor: RawFd,
}

thread_local! {
    static NOTES: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

impl OwnWaitPoint {
    /// Gives the calling thread a wait point of its own for the descriptors of `server`.
    pub fn new(server: &Server) -> Self {
        let notes = Notes { server: server.clone(), list: Vec::new(), waker: None };
        let previous = NOTES.with(|current| current.borrow_mut().replace(notes));
        let inner = Inner {
            word: SleepWord::new(),
            thread: thread::current(),
            generation: ForkGeneration::current(),
            eventfd: OnceLock::new(),
        };
        Self {
            alarm: Alarm(Arc::new(inner)),
            buffers: RefCell::default(),
            last_look: Cell::new(Instant::from_nanos(0)),
            previous,
            _not_send: PhantomData,
        }
    }

    /// Returns what wakes this thread.
    #[must_use]
    pub fn alarm(&self) -> Alarm {
        self.alarm.clone()
    }

    /// Says that the task which the calling thread polls from now on is woken by `waker`. Only waits under
    /// this waker are watched in the thread's own wait point. Nothing happens on a thread that has none.
    pub fn begin_poll(waker: &Waker) {
        // There are no notes any more while the thread's variables go.
        let _ = NOTES.try_with(|notes| {
            if let Some(notes) = &mut *notes.borrow_mut() {
                notes.waker = Some(WakerIdentity::of(waker));
            }
        });
    }

    /// Looks at what is noted without sleeping, unless that was done within the last 50 µs, and wakes
    /// whom it concerns: for a thread whose task is ready again, and which does not [wait](Self::wait).
    ///
    /// # Cost
    /// Nothing if nothing is noted; else a reading of the clock, and one `poll(2)` if a look is due.
    pub fn look_if_due(&self) {
        let is_due = NOTES.with(|notes| {
            notes.borrow().as_ref().is_some_and(|notes| !notes.list.is_empty())
                && monotonic_now().as_nanos()
                    >= self.last_look.get().as_nanos().saturating_add(LOOK_EVERY_NS)
        });
        if is_due {
            self.with_notes(|mut list| {
                retain_awaited(&mut list);
                self.poll_notes(&mut list, None, 0, || ());
                list
            });
        }
    }

    /// Sleeps until a noted descriptor is ready, whose waiters are woken, or the alarm rings. May return
    /// early.
    ///
    /// # Cost
    /// One `poll(2)` if descriptors are awaited, else the thread's own sleep.
    pub fn wait(&self) {
        self.with_notes(|list| self.sleep(list));
    }

    /// Lets `f` have the notes, which returns those that still hold.
    fn with_notes(&self, f: impl FnOnce(Vec<Note>) -> Vec<Note>) {
        let list = NOTES.with(|notes| {
            let mut notes = notes.borrow_mut();
            notes.as_mut().map(|notes| mem::take(&mut notes.list)).unwrap_or_default()
        });
        let mut list = f(list);
        NOTES.with(|notes| {
            if let Some(notes) = &mut *notes.borrow_mut() {
                // Wakers that ran meanwhile may have left some.
                mem::swap(&mut notes.list, &mut list);
                notes.list.append(&mut list);
            }
        });
    }

    /// Returns the notes that still hold. Allocates nothing once as many were there before.
    fn sleep(&self, mut list: Vec<Note>) -> Vec<Note> {
        let inner = &*self.alarm.0;
        retain_awaited(&mut list);
        if list.is_empty() {
            if inner.word.begin_sleep(Place::Parked) {
                while !inner.word.is_rung() {
                    thread::park();
                }
            }
            inner.word.end_sleep();
            return list;
        }
        let eventfd = inner.eventfd();
        if !inner.word.begin_sleep(Place::Polling) {
            inner.word.end_sleep();
            return list;
        }
        let timeout = if eventfd.is_some() { -1 } else { BLIND_MS };
        self.poll_notes(&mut list, eventfd, timeout, || inner.word.end_sleep());
        list
    }

    /// Polls the eventfd and what is noted, calls `end_sleep`, and delivers what was found: those notes
    /// hold no more.
    fn poll_notes(
        &self,
        list: &mut Vec<Note>,
        eventfd: Option<&OwnedFd>,
        timeout_ms: i32,
        end_sleep: impl FnOnce(),
    ) {
        let mut buffers = self.buffers.borrow_mut();
        let Buffers { fds, batch } = &mut *buffers;
        fds.clear();
        // A negative descriptor is passed over.
        fds.push(pollfd(eventfd.map_or(-1, AsRawFd::as_raw_fd), libc::POLLIN));
        fds.extend(list.iter().map(Note::pollfd));
        if let Err(error) = poll(fds, timeout_ms)
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::error!(%error, "the descriptors of a thread could not be polled");
        }
        end_sleep();
        self.last_look.set(monotonic_now());
        if fds[0].revents != 0
            && let Some(eventfd) = eventfd
        {
            // Empty only if somebody else has read it, and nobody else does.
            let _ = rustix::io::read(eventfd, &mut [0; 8]);
        }
        let mut found = fds.iter().skip(1).map(|fd| fd.revents);
        list.retain(|note| match found.next() {
            Some(0) | None => true,
            Some(revents) => {
                note.deliver(revents, batch);
                false
            }
        });
        batch.wake_all();
    }
}

/// Drops notes that nobody needs: the descriptor's owner and the detector have given their source up.
fn retain_awaited(list: &mut Vec<Note>) {
    list.retain(|note| Arc::strong_count(&note.source) > 1);
}

impl Drop for OwnWaitPoint {
    fn drop(&mut self) {
        let previous = self.previous.take();
        let notes = NOTES.try_with(|notes| mem::replace(&mut *notes.borrow_mut(), previous));
        let Ok(Some(notes)) = notes else { return };
        for note in notes.list {
            // Somebody may still wait: a part of this thread's task that has moved elsewhere.
            if let Err(error) = note.readiness.watch_from_now_on(note.descriptor, &note.source) {
                tracing::error!(%error, "a descriptor that is waited for is watched no more");
            }
        }
    }
}

impl Alarm {
    /// Returns whether the thread is one of a parent of this process, so that nobody can wake it here.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.0.generation.is_inherited()
    }

    /// Rings: the thread wakes, or does not sleep the next time. In a forked child, nothing happens.
    pub fn ring(&self) {
        if self.is_inherited() {
            return;
        }
        match self.0.word.ring() {
            Some(Place::Polling) => {
                if let Some(eventfd) = self.0.eventfd.get()
                    && let Err(error) = rustix::io::write(eventfd, &1u64.to_ne_bytes())
                {
                    tracing::error!(%error, "a task's thread could not be woken");
                }
            }
            Some(Place::Parked) => self.0.thread.unpark(),
            None => {}
        }
    }
}

impl Inner {
    fn eventfd(&self) -> Option<&OwnedFd> {
        if self.eventfd.get().is_none() {
            match eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC) {
                // Only this thread makes it.
                Ok(made) => drop(self.eventfd.set(made)),
                Err(error) => {
                    tracing::warn!(%error, "no eventfd: the thread looks every 10 ms for its alarm");
                }
            }
        }
        self.eventfd.get()
    }
}

impl Note {
    fn pollfd(&self) -> libc::pollfd {
        let events = match self.direction {
            Direction::Read => libc::POLLIN | libc::POLLRDHUP,
            Direction::Write => libc::POLLOUT,
        };
        pollfd(self.descriptor, events)
    }

    fn deliver(&self, revents: i16, batch: &mut Batch) {
        let found = PollFlags::from_bits_retain(revents);
        if !found.intersects(PollFlags::IN | PollFlags::OUT) {
            // An error or a hang-up is a level that may stay although every operation would block: the
            // server's wait point announces it once.
            self.source.leave_own_points();
        }
        let ready = ready_of(found);
        let notice = if found.contains(PollFlags::NVAL) { self.direction.mask() } else { ready };
        self.readiness.deliver(Notice { key: self.source.key(), ready: notice }, batch);
    }
}

const fn pollfd(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

fn poll(fds: &mut [libc::pollfd], timeout_ms: i32) -> io::Result<()> {
    let count = libc::nfds_t::try_from(fds.len()).unwrap_or(libc::nfds_t::MAX);
    // SAFETY: the array is valid for reads and writes of `count` entries. The descriptors in it are plain
    // numbers: one that is closed is reported as such, one that was opened again in its place costs an
    // announcement for a source that is gone, which the detector passes over.
    if unsafe { libc::poll(fds.as_mut_ptr(), count, timeout_ms) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns whether the calling thread has a wait point of its own for the descriptors of `readiness`, and
/// nothing else runs on it at this moment.
pub(crate) fn is_for(readiness: &Handle<Readiness>) -> bool {
    let here = NOTES.try_with(|notes| {
        let notes = notes.borrow();
        notes.as_ref().is_some_and(|notes| {
            notes.server.readiness().is_same(readiness)
                // Inside another runtime's `block_on`, nobody would come to sleep here.
                && with_current(|server| server.is_some_and(|s| s.readiness().is_same(readiness)))
        })
    });
    here.unwrap_or(false)
}

/// Leaves a note that the calling thread's task waits for `source` under `waker`. Returns whether it took
/// it: not if the waker is another one than the task's.
pub(crate) fn note(
    readiness: &Handle<Readiness>,
    source: &Arc<Source>,
    direction: Direction,
    descriptor: RawFd,
    waker: &Waker,
) -> bool {
    if !source.is_for_own_points() || !is_for(readiness) {
        return false;
    }
    NOTES.with(|notes| {
        let mut notes = notes.borrow_mut();
        let Some(notes) = notes.as_mut() else { return false };
        if !notes.waker.is_some_and(|own| own.is_of(waker)) {
            return false;
        }
        let is_known =
            |note: &Note| Arc::ptr_eq(&note.source, source) && note.direction == direction;
        if notes.list.iter().any(is_known) {
            return true;
        }
        if notes.list.len() >= NOTES_MAX {
            return false;
        }
        let (readiness, source) = (readiness.clone(), Arc::clone(source));
        notes.list.push(Note { readiness, source, direction, descriptor });
        true
    })
}
