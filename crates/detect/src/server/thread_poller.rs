//! A thread's own poller: for schedulers that give each task a kernel thread, so that the kernel wakes
//! that thread directly and no other.
//!
//! A descriptor created on such a thread is not watched in the server's poller. A pending wait for it leaves an
//! *entry* on its thread, which then sleeps in `poll(2)` on its entries and on an eventfd for everything else.
//! Readiness that the kernel reports goes through the server's readiness handle like any readiness event: the
//! same detector, poll and waker.
//!
//! ```text
//!  AsyncFd, pending ──▶ entry ─▶ ThreadPoller::wait: poll(2) ──▶ poll(Ready) ──▶ waker
//!                        │                              ▲
//!                        │ no poller on this thread,    └── Unparker::unpark, from any thread
//!                        ▼ foreign waker, too many, odd descriptors
//!                   the server's poller, from then on
//! ```
//!
//! An entry is good for one readiness event. `poll(2)` reports levels, not edges, so nothing is lost
//! between two entries. When the thread's poller is dropped, its entries are handed to the server's
//! poller.
//!
//! Only a wait under the waker of the task that the thread polls leaves an entry. Only this thread can
//! end such a wait, and no other thread is woken by it, so it does no harm that entries are read only
//! after the task's poll. A wait under any other waker, for example that of a set of futures, may belong
//! to another thread while this one still computes, so the server watches its descriptor. A task that is
//! always ready again when its poll ends never sleeps; its thread checks the entries between two polls
//! instead ([`ThreadPoller::poll_if_due`]).

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
    builtin::{Direction, IoSource, Readiness, ready_of},
    clock::{Instant, monotonic_now},
    detector::{PollerEvent, WakeList},
    fork::ForkGeneration,
    sync::{Arc, AtomicU8, OnceLock, Ordering, thread, thread_local},
};

/// The calling thread's place to sleep for one server, until it is dropped.
///
/// # Implementing a host
/// A scheduler creates one on each thread that polls tasks and sleeps only while they are pending; wakers
/// notify its [`Unparker`]. It names the task's waker before each poll ([`begin_poll`](Self::begin_poll)), and
/// calls [`poll_if_due`](Self::poll_if_due) before a poll that follows another one without a sleep. The
/// [`Server`] still needs its own host, for everything but descriptors.
#[derive(Debug)]
#[must_use = "the thread has its own poller only until this is dropped"]
pub struct ThreadPoller {
    unparker: Unparker,
    buffers: RefCell<Buffers>,
    /// The time at which the entries were last checked.
    last_poll: Cell<Instant>,
    previous: Option<PollList>,
    _not_send: PhantomData<*mut ()>,
}

/// Reused from sleep to sleep.
#[derive(Default)]
struct Buffers {
    fds: Vec<libc::pollfd>,
    batch: WakeList,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

/// Wakes the thread that sleeps in a [`ThreadPoller`], or prevents its next sleep.
#[derive(Clone, Debug)]
pub struct Unparker(Arc<UnparkerInner>);

#[derive(Debug)]
struct UnparkerInner {
    state: SleepState,
    thread: thread::Thread,
    generation: ForkGeneration,
    /// Created for the first sleep with entries.
    eventfd: OnceLock<OwnedFd>,
}

/// The place where the thread sleeps, and whether the unparker has notified since it last checked.
///
/// `tests/loom.rs` checks that no notification is lost in either place.
#[derive(Debug)]
pub(crate) struct SleepState {
    /// Moved by the thread from `AWAKE` to its place of sleep and back, by any thread to `NOTIFIED`. Each
    /// notification is a release, each end of a sleep an acquire: the notified thread sees what was done before.
    /// `SeqCst` adds nothing to that and costs nothing, since all operations but the loads are read-modify-writes.
    state: AtomicU8,
}

const AWAKE: u8 = 0;
const NOTIFIED: u8 = 1;

/// The place where a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepPlace {
    /// In `poll(2)`: the eventfd wakes it.
    Polling = 2,
    /// In its own sleep: unparking wakes it.
    Parked = 3,
}

impl SleepState {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(AWAKE) }
    }

    /// Called when the thread is about to sleep at `place`. Returns whether it may: it was not
    /// notified.
    pub(crate) fn begin_sleep(&self, place: SleepPlace) -> bool {
        let place = place as u8;
        self.state.compare_exchange(AWAKE, place, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns whether the unparker has notified: the thread must not sleep on.
    pub(crate) fn is_notified(&self) -> bool {
        self.state.load(Ordering::SeqCst) == NOTIFIED
    }

    /// The thread is awake, and takes the notification.
    pub(crate) fn end_sleep(&self) {
        self.state.swap(AWAKE, Ordering::SeqCst);
    }

    /// Notifies. Returns where the thread must be woken; `None` if it is awake or was woken
    /// already.
    pub(crate) fn notify(&self) -> Option<SleepPlace> {
        match self.state.swap(NOTIFIED, Ordering::SeqCst) {
            state if state == SleepPlace::Polling as u8 => Some(SleepPlace::Polling),
            state if state == SleepPlace::Parked as u8 => Some(SleepPlace::Parked),
            _ => None,
        }
    }
}

/// The most entries of one thread: each costs a check at every sleep.
const ENTRIES_MAX: usize = 64;

/// The longest sleep without an eventfd, in milliseconds.
const BLIND_MS: i32 = 10;

/// The time for which a thread whose task does not sleep leaves its entries unchecked, in nanoseconds: the
/// default interval between the poll passes of a server's host.
const POLL_INTERVAL_NS: u64 = 50_000;

#[derive(Debug)]
struct PollList {
    server: Server,
    list: Vec<PollEntry>,
    /// The waker of the task that this thread polls.
    waker: Option<WakerIdentity>,
}

/// Identifies a waker: compared, never dereferenced.
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
struct PollEntry {
    readiness: Handle<Readiness>,
    source: Arc<IoSource>,
    direction: Direction,
    descriptor: RawFd,
}

thread_local! {
    static POLL_LIST: RefCell<Option<PollList>> = const { RefCell::new(None) };
}

impl ThreadPoller {
    /// Gives the calling thread its own poller for the descriptors of `server`.
    pub fn new(server: &Server) -> Self {
        let entries = PollList { server: server.clone(), list: Vec::new(), waker: None };
        let previous = POLL_LIST.with(|current| current.borrow_mut().replace(entries));
        let inner = UnparkerInner {
            state: SleepState::new(),
            thread: thread::current(),
            generation: ForkGeneration::current(),
            eventfd: OnceLock::new(),
        };
        Self {
            unparker: Unparker(Arc::new(inner)),
            buffers: RefCell::default(),
            last_poll: Cell::new(Instant::from_nanos(0)),
            previous,
            _not_send: PhantomData,
        }
    }

    /// Returns the unparker that wakes this thread.
    #[must_use]
    pub fn unparker(&self) -> Unparker {
        self.unparker.clone()
    }

    /// Declares that the task which the calling thread polls from now on is woken by `waker`. Only waits
    /// under this waker are watched in the thread's own poller. Does nothing on a thread without one.
    pub fn begin_poll(waker: &Waker) {
        // There are no entries left while the thread's locals are destroyed.
        let _ = POLL_LIST.try_with(|entries| {
            if let Some(entries) = &mut *entries.borrow_mut() {
                entries.waker = Some(WakerIdentity::of(waker));
            }
        });
    }

    /// Checks the entries without sleeping, unless that was done within the last 50 µs, and wakes their
    /// waiters: for a thread whose task is ready again, and which does not [wait](Self::wait).
    ///
    /// # Cost
    /// Nothing without entries; otherwise a clock reading, and one `poll(2)` if a check is due.
    pub fn poll_if_due(&self) {
        let is_due = POLL_LIST.with(|entries| {
            entries.borrow().as_ref().is_some_and(|entries| !entries.list.is_empty())
                && monotonic_now().as_nanos()
                    >= self.last_poll.get().as_nanos().saturating_add(POLL_INTERVAL_NS)
        });
        if is_due {
            self.with_entries(|mut list| {
                retain_awaited(&mut list);
                self.poll_entries(&mut list, None, 0, || ());
                list
            });
        }
    }

    /// Sleeps until a registered descriptor is ready, and wakes its waiters, or until the unparker notifies. May
    /// return early.
    ///
    /// # Cost
    /// One `poll(2)` if descriptors are awaited, else the thread's own sleep.
    pub fn wait(&self) {
        self.with_entries(|list| self.sleep(list));
    }

    /// Passes the entries to `f`, which returns those that remain.
    fn with_entries(&self, f: impl FnOnce(Vec<PollEntry>) -> Vec<PollEntry>) {
        let list = POLL_LIST.with(|entries| {
            let mut entries = entries.borrow_mut();
            entries.as_mut().map(|entries| mem::take(&mut entries.list)).unwrap_or_default()
        });
        let mut list = f(list);
        POLL_LIST.with(|entries| {
            if let Some(entries) = &mut *entries.borrow_mut() {
                // Wakers that ran meanwhile may have left some.
                mem::swap(&mut entries.list, &mut list);
                entries.list.append(&mut list);
            }
        });
    }

    /// Returns the entries that remain. Does not allocate once as many have been there before.
    fn sleep(&self, mut list: Vec<PollEntry>) -> Vec<PollEntry> {
        let inner = &*self.unparker.0;
        retain_awaited(&mut list);
        if list.is_empty() {
            if inner.state.begin_sleep(SleepPlace::Parked) {
                while !inner.state.is_notified() {
                    thread::park();
                }
            }
            inner.state.end_sleep();
            return list;
        }
        let eventfd = inner.eventfd();
        if !inner.state.begin_sleep(SleepPlace::Polling) {
            inner.state.end_sleep();
            return list;
        }
        let timeout = if eventfd.is_some() { -1 } else { BLIND_MS };
        self.poll_entries(&mut list, eventfd, timeout, || inner.state.end_sleep());
        list
    }

    /// Polls the eventfd and the entries, calls `end_sleep`, and delivers what was found; delivered entries
    /// are removed.
    fn poll_entries(
        &self,
        list: &mut Vec<PollEntry>,
        eventfd: Option<&OwnedFd>,
        timeout_ms: i32,
        end_sleep: impl FnOnce(),
    ) {
        let mut buffers = self.buffers.borrow_mut();
        let Buffers { fds, batch } = &mut *buffers;
        fds.clear();
        // `poll(2)` ignores a negative descriptor.
        fds.push(pollfd(eventfd.map_or(-1, AsRawFd::as_raw_fd), libc::POLLIN));
        fds.extend(list.iter().map(PollEntry::pollfd));

        if let Err(error) = poll(fds, timeout_ms)
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::error!(%error, "the descriptors of a thread could not be polled");
        }

        end_sleep();
        self.last_poll.set(monotonic_now());
        if fds[0].revents != 0
            && let Some(eventfd) = eventfd
        {
            // Empty only if another thread has read it, and none does.
            let _ = rustix::io::read(eventfd, &mut [0; 8]);
        }

        let mut found = fds.iter().skip(1).map(|fd| fd.revents);
        list.retain(|entry| match found.next() {
            Some(0) | None => true,
            Some(revents) => {
                entry.deliver(revents, batch);
                false
            }
        });

        batch.wake_all();
    }
}

/// Drops entries that are no longer needed: the descriptor's owner and the detector have given up their
/// source.
fn retain_awaited(list: &mut Vec<PollEntry>) {
    list.retain(|entry| Arc::strong_count(&entry.source) > 1);
}

impl Drop for ThreadPoller {
    fn drop(&mut self) {
        let previous = self.previous.take();
        let entries =
            POLL_LIST.try_with(|entries| mem::replace(&mut *entries.borrow_mut(), previous));
        let Ok(Some(entries)) = entries else { return };
        for entry in entries.list {
            // There may still be a waiter: a part of this thread's task that has moved elsewhere.
            if let Err(error) = entry.readiness.watch_from_now_on(entry.descriptor, &entry.source) {
                tracing::error!(%error, "a descriptor with waiters is no longer watched");
            }
        }
    }
}

impl Unparker {
    /// Returns whether the thread belongs to a parent of this process, so that it cannot be woken
    /// here.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.0.generation.is_inherited()
    }

    /// Notifies: the thread wakes, or skips its next sleep. Does nothing in a forked child.
    pub fn unpark(&self) {
        if self.is_inherited() {
            return;
        }
        match self.0.state.notify() {
            Some(SleepPlace::Polling) => {
                if let Some(eventfd) = self.0.eventfd.get()
                    && let Err(error) = rustix::io::write(eventfd, &1u64.to_ne_bytes())
                {
                    tracing::error!(%error, "a task's thread could not be woken");
                }
            }
            Some(SleepPlace::Parked) => self.0.thread.unpark(),
            None => {}
        }
    }
}

impl UnparkerInner {
    fn eventfd(&self) -> Option<&OwnedFd> {
        if self.eventfd.get().is_none() {
            match eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC) {
                // Only this thread creates it.
                Ok(made) => drop(self.eventfd.set(made)),
                Err(error) => {
                    tracing::warn!(%error, "no eventfd: the thread checks its unparker every 10 ms");
                }
            }
        }
        self.eventfd.get()
    }
}

impl PollEntry {
    fn pollfd(&self) -> libc::pollfd {
        let events = match self.direction {
            Direction::Read => libc::POLLIN | libc::POLLRDHUP,
            Direction::Write => libc::POLLOUT,
        };
        pollfd(self.descriptor, events)
    }

    fn deliver(&self, revents: i16, batch: &mut WakeList) {
        let found = PollFlags::from_bits_retain(revents);
        if !found.intersects(PollFlags::IN | PollFlags::OUT) {
            // An error or a hang-up is a level that may persist although every operation would block:
            // the server's poller announces it once.
            self.source.leave_thread_pollers();
        }
        let ready = ready_of(found);
        let ready_event =
            if found.contains(PollFlags::NVAL) { self.direction.mask() } else { ready };
        self.readiness.deliver(PollerEvent { key: self.source.key(), ready: ready_event }, batch);
    }
}

const fn pollfd(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

fn poll(fds: &mut [libc::pollfd], timeout_ms: i32) -> io::Result<()> {
    let count = libc::nfds_t::try_from(fds.len()).unwrap_or(libc::nfds_t::MAX);
    // SAFETY: the array is valid for reads and writes of `count` entries. The descriptors in it are plain
    // numbers: one that is closed is reported as such, one reused for a new file costs a readiness event
    // for a source that is gone, which the detector ignores.
    if unsafe { libc::poll(fds.as_mut_ptr(), count, timeout_ms) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns whether the calling thread has its own poller for the descriptors of `readiness`, and
/// nothing else runs on it at this moment.
pub(crate) fn is_for(readiness: &Handle<Readiness>) -> bool {
    let here = POLL_LIST.try_with(|entries| {
        let entries = entries.borrow();
        entries.as_ref().is_some_and(|entries| {
            entries.server.readiness().is_same(readiness)
                // Inside another runtime's `block_on`, this thread would not sleep here.
                && with_current(|server| server.is_some_and(|s| s.readiness().is_same(readiness)))
        })
    });
    here.unwrap_or(false)
}

/// Leaves an entry for the wait of the calling thread's task for `source` under `waker`. Returns whether it
/// was left: not if `waker` is not the task's.
pub(crate) fn register(
    readiness: &Handle<Readiness>,
    source: &Arc<IoSource>,
    direction: Direction,
    descriptor: RawFd,
    waker: &Waker,
) -> bool {
    if !source.is_for_thread_pollers() || !is_for(readiness) {
        return false;
    }
    POLL_LIST.with(|entries| {
        let mut entries = entries.borrow_mut();
        let Some(entries) = entries.as_mut() else { return false };
        if !entries.waker.is_some_and(|own| own.is_of(waker)) {
            return false;
        }
        let is_known =
            |entry: &PollEntry| Arc::ptr_eq(&entry.source, source) && entry.direction == direction;
        if entries.list.iter().any(is_known) {
            return true;
        }
        if entries.list.len() >= ENTRIES_MAX {
            return false;
        }
        let (readiness, source) = (readiness.clone(), Arc::clone(source));
        entries.list.push(PollEntry { readiness, source, direction, descriptor });
        true
    })
}
