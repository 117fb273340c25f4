//! What the kernel's scheduler does for the reaction, while some thread hogs a processor.
//!
//! Two things, without privilege:
//! - **A short slice** (`sched_setattr`, Linux 6.12 and later): a reserve thread asks for turns of
//!   0.1 ms, so that the kernel lets it go first when it wakes up. It is reset in what the thread forks.
//! - **A timer signal** into a thread that is caught in a long poll: its handler asks with `poll(2)`
//!   whether an event waits at the wait point, and gives up the processor only if one does, or if a
//!   thread was [called](note_call) that has not run yet. So a thread that woke up for an event need not
//!   wait for the kernel's next tick, up to 4 ms; and a program that computes keeps its share against
//!   others, which an unconditional `sched_yield` would give away.
//!
//! The handler runs on the alternative stack if there is one, and keeps `errno`. System calls are
//! restarted after it where the kernel can; those that it cannot restart (`nanosleep`, `poll`,
//! `epoll_wait`, …) end with `EINTR` when foreign code makes them inside a poll that is longer than
//! [`RuntimeBuilder::long_poll`](crate::RuntimeBuilder::long_poll). Rust's standard library handles
//! that. The signal is SIGURG by default, which is ignored where no handler is installed: so nothing
//! happens to a program that a task executes while the signal is pending.

#![expect(unsafe_code, reason = "signals and scheduling attributes have no safe interface")]

use std::{
    ffi::{c_int, c_void},
    io, mem,
    os::fd::RawFd,
    ptr,
    time::Duration,
};

use vigie_detect::{Instant, clock::monotonic_now};

use crate::sync::{
    AtomicBool, Ordering, PoisonError, RealAtomicBool, RealAtomicU64, RealMutex, thread_local,
};

/// Which help of the kernel a runtime may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers must be able to make one")]
pub struct KernelHelp {
    /// Reserve threads ask for short turns. Default `true`.
    pub short_slices: bool,
    /// The signal that makes a thread inside a long poll look whether it holds somebody up. Default
    /// SIGURG; `None` for no signal. One that the program handles itself is left to it, which is
    /// reported.
    pub signal: Option<i32>,
}

impl Default for KernelHelp {
    fn default() -> Self {
        Self { short_slices: true, signal: Some(libc::SIGURG) }
    }
}

impl KernelHelp {
    /// No help at all.
    pub const NONE: Self = Self { short_slices: false, signal: None };

    /// Installs the handler of the signal. Returns its number if it is there.
    pub(crate) fn usable_signal(self) -> Option<i32> {
        let signal = self.signal?;
        match install(signal) {
            Ok(()) => Some(signal),
            Err(error) => {
                tracing::warn!(
                    %error,
                    signal,
                    "no signal goes into threads that hog: choose another one in `KernelHelp`; an \
                     event may wait for the kernel's next tick, 4 ms, until then"
                );
                None
            }
        }
    }
}

/// The kernel's `struct sched_attr`, as of its first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    sched_policy: u32,
    sched_flags: u64,
    sched_nice: i32,
    sched_priority: u32,
    sched_runtime: u64,
    sched_deadline: u64,
    sched_period: u64,
}

const SCHED_ATTR_BYTES: u32 = 48;
const _: () = assert!(size_of::<SchedAttr>() == 48, "the kernel knows this size");

const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

/// The shortest slice that the kernel grants.
const SLICE: Duration = Duration::from_micros(100);

/// Asks for short turns for the calling thread. A kernel that does not know them ignores this.
pub(crate) fn shorten_slice() {
    set_slice(0, u64::try_from(SLICE.as_nanos()).unwrap_or(0));
}

/// Gives the thread `thread` the kernel's default turns again.
pub(crate) fn restore_slice(thread: u32) {
    set_slice(thread, 0);
}

fn set_slice(thread: u32, nanos: u64) {
    // SAFETY: the call takes no memory of ours. It may return -1 for a valid nice value.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, thread) };
    let attr = SchedAttr {
        size: SCHED_ATTR_BYTES,
        sched_policy: libc::SCHED_OTHER.cast_unsigned(),
        sched_flags: SCHED_FLAG_RESET_ON_FORK,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: nanos,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: `attr` is valid for reads of its `size`, and the kernel does not keep it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attr, 0) };
    if result != 0 {
        let error = io::Error::last_os_error();
        tracing::debug!(%error, "the kernel grants no slice of our own");
    }
}

/// Returns the calling thread's number.
pub(crate) fn thread_number() -> u32 {
    // SAFETY: the call has no arguments and cannot fail.
    u32::try_from(unsafe { libc::gettid() }).unwrap_or(0)
}

thread_local! {
    /// The handler saw an event that waits while this thread computes.
    static IS_AWAITED: RealAtomicBool = const { RealAtomicBool::new(false) };
}

/// Returns whether the signal's handler has left a mark: an event waited while this thread computed.
#[inline]
pub(crate) fn is_awaited() -> bool {
    IS_AWAITED.with(|mark| mark.load(Ordering::Relaxed))
}

/// Takes the mark of the signal's handler.
pub(crate) fn take_awaited() -> bool {
    is_awaited() && IS_AWAITED.with(|mark| mark.swap(false, Ordering::Relaxed))
}

/// How long a call counts: longer than the kernel lets a thread wait where few compute, and so short that
/// one which is never answered costs nobody his share.
const CALL_LASTS: Duration = Duration::from_millis(10);

/// When a thread was called that has not run since, in nanoseconds; zero if none was. A hint, by which
/// hogs yield once too often or too rarely.
struct Call(RealAtomicU64);

/// One for all runtimes of the process.
static CALL: Call = Call(RealAtomicU64::new(0));

impl Call {
    fn begin(&self, now: Instant) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn end(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    fn is_waiting(&self, now: impl FnOnce() -> Instant) -> bool {
        let began = self.0.load(Ordering::Relaxed);
        began != 0 && now() - Instant::from_nanos(began) < CALL_LASTS
    }
}

/// Takes note that a thread which sleeps outside of the wait point is woken for an event. No event waits
/// in the wait point for it, by which hogs would know that they hold it up.
pub(crate) fn note_call() {
    CALL.begin(monotonic_now());
}

/// The thread that was called runs.
pub(crate) fn note_answer() {
    CALL.end();
}

/// Returns whether a thread was called lately that has not run since. Async-signal-safe.
pub(crate) fn is_somebody_called() -> bool {
    CALL.is_waiting(monotonic_now)
}

/// Beside the descriptor in the value of a signal: another thread may serve the event, and should have
/// the processor.
const YIELDS: usize = 1 << 31;

/// Leaves a mark if an event waits at the descriptor that came with the signal, and yields.
extern "C" fn on_timer(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: `errno` of this thread; valid in a handler.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: the kernel gives a valid `siginfo_t` to a handler that was installed with SA_SIGINFO.
    let info = unsafe { &*info };
    // Sent by somebody else, the signal carries no descriptor.
    if info.si_code == libc::SI_TIMER {
        // SAFETY: a timer's signal carries the value that `timer_create` was given.
        let value = unsafe { info.si_value() };
        let word = value.sival_ptr as usize;
        // Below zero, `poll` leaves it out.
        let fd = c_int::try_from(word & !YIELDS).unwrap_or(-1);
        let mut descriptor = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is async-signal-safe and writes to `descriptor` alone. If the descriptor was
        // closed meanwhile, it says so in `revents`; if it stands for something else by now, nothing
        // is done with that but asking.
        let ready = unsafe { libc::poll(&raw mut descriptor, 1, 0) };
        let has_event = ready > 0 && descriptor.revents & libc::POLLIN != 0;
        if has_event {
            // A thread variable without destructor, initialised at compile time: an address.
            IS_AWAITED.with(|mark| mark.store(true, Ordering::Relaxed));
        }
        if word & YIELDS != 0 && (has_event || is_somebody_called()) {
            // SAFETY: a system call without arguments, which takes no lock.
            unsafe { libc::sched_yield() };
        }
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// Installs the handler, once for the process and each signal.
pub(crate) fn install(signal: i32) -> io::Result<()> {
    static INSTALLED: RealMutex<Vec<i32>> = RealMutex::new(Vec::new());
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if installed.contains(&signal) {
        return Ok(());
    }
    // SAFETY: zeroes are valid for this plain structure.
    let mut present: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: no new action is given; the old one is written to valid memory.
    if unsafe { libc::sigaction(signal, ptr::null(), &raw mut present) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if present.sa_sigaction != libc::SIG_DFL && present.sa_sigaction != libc::SIG_IGN {
        return Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "the program handles this signal itself",
        ));
    }
    // SAFETY: zeroes are valid for this plain structure.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = on_timer as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the mask is ours and valid for writes.
    unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
    // SAFETY: the handler is async-signal-safe: it polls, yields, and keeps `errno`.
    if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    installed.push(signal);
    Ok(())
}

/// How often a thread that is caught in a long poll is asked.
const EVERY: Duration = Duration::from_millis(1);

/// When it is asked that should be at once.
const SOON: Duration = Duration::from_micros(10);

/// Who serves events while a thread hogs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// The hogging thread itself, at its next checkpoint or switch.
    SameThread,
    OtherThread,
}

/// The timer that sends the signal to one thread. It can be set by any thread.
#[derive(Debug)]
pub(crate) struct HogTimer {
    /// The kernel's number of it; gone when its thread ends.
    timer: RealMutex<Option<usize>>,
    is_set: AtomicBool,
}

impl HogTimer {
    /// A timer that does nothing until its thread binds it.
    pub(crate) fn new() -> Self {
        Self { timer: RealMutex::new(None), is_set: AtomicBool::new(false) }
    }

    /// Makes the timer for the calling thread: `signal` asks about `descriptor`, and yields the processor
    /// to the thread that serves it if there is one.
    pub(crate) fn bind(&self, signal: i32, descriptor: RawFd, serves: Serves) {
        // SAFETY: zeroes are valid for this plain structure.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        let word = usize::try_from(descriptor).unwrap_or(0)
            | if serves == Serves::OtherThread { YIELDS } else { 0 };
        event.sigev_value = libc::sigval { sival_ptr: word as *mut c_void };
        event.sigev_notify_thread_id = i32::try_from(thread_number()).unwrap_or(0);
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: both structures are valid for the call, which keeps neither.
        let result =
            unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        if result == 0 {
            *self.lock() = Some(timer as usize);
        } else {
            let error = io::Error::last_os_error();
            tracing::debug!(%error, "no timer for a thread that computes");
        }
    }

    /// Like [`bind`](Self::bind), unless that was done.
    pub(crate) fn bind_once(&self, signal: i32, descriptor: RawFd, serves: Serves) {
        if self.lock().is_none() {
            self.bind(signal, descriptor, serves);
        }
    }

    /// The thread ends.
    pub(crate) fn unbind(&self) {
        if let Some(timer) = self.lock().take() {
            // SAFETY: made by `bind` and deleted once: the number is gone from its place.
            unsafe { libc::timer_delete(timer as libc::timer_t) };
        }
        self.is_set.store(false, Ordering::Relaxed);
    }

    /// Returns whether the timer runs: a hint for its own thread.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Starts the timer, unless it runs.
    pub(crate) fn start(&self) {
        if !self.is_set() {
            self.set(EVERY, EVERY);
        }
    }

    /// Starts the timer such that it asks at once, and then as usual.
    pub(crate) fn ask_now(&self) {
        self.set(SOON, EVERY);
    }

    /// Stops the timer, if it runs.
    pub(crate) fn stop(&self) {
        if self.is_set() {
            self.set(Duration::ZERO, Duration::ZERO);
        }
    }

    fn set(&self, first: Duration, every: Duration) {
        let timer = self.lock();
        let Some(number) = *timer else { return };
        let time = |time: Duration| libc::timespec {
            tv_sec: 0,
            tv_nsec: libc::c_long::from(i32::try_from(time.subsec_nanos()).unwrap_or(0)),
        };
        let value = libc::itimerspec { it_interval: time(every), it_value: time(first) };
        // SAFETY: the timer exists as long as its number stands in the place that is locked here.
        unsafe {
            libc::timer_settime(number as libc::timer_t, 0, &raw const value, ptr::null_mut())
        };
        self.is_set.store(!every.is_zero(), Ordering::Relaxed);
    }

    fn lock(&self) -> crate::sync::RealGuard<'_, Option<usize>> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: hogs give way to a thread that was called until it runs, and not for ever to one that never
    /// does. Method: calls at given times.
    #[test]
    fn calls_are_answered_or_forgotten() {
        let call = Call(RealAtomicU64::new(0));
        let at = |micros: u64| move || Instant::from_nanos(micros * 1_000);
        assert!(!call.is_waiting(at(0)));
        call.begin(at(100)());
        assert!(call.is_waiting(at(100)) && call.is_waiting(at(10_099)));
        assert!(!call.is_waiting(at(10_100)));
        call.end();
        assert!(!call.is_waiting(at(101)));
    }
}
