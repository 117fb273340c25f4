//! Help from the kernel's scheduler for reactions while a thread hogs a processor.
//!
//! It does two things, without privilege:
//! - **A short slice** (`sched_setattr`, Linux 6.12 and later): a reserve thread asks for slices of 0.1 ms, so
//!   that the kernel lets it run first when it wakes up. Forked children do not inherit it.
//! - **A signal** to a thread that is stuck in a long poll, after each millisecond of computing: its handler
//!   asks with `poll(2)` whether an event waits at the poller, and yields the processor only if one does, or
//!   if a thread was [called](note_call) that has not run yet. So a thread that woke up for an event need not
//!   wait for the kernel's next tick, up to 4 ms; and a computing program keeps its share against others,
//!   which an unconditional `sched_yield` would give away.
//!
//! The signal comes from a perf event that counts the thread's processor time and fires in user mode only
//! (`task_clock.rs`), so it never reaches a thread that sleeps in the kernel: no system call of foreign code
//! ends with `EINTR`. Where perf events are refused there is no signal. No other source is used instead:
//! wall-clock timers, and signals sent by a supervisor, interrupt system calls; threads' clocks are as coarse
//! as the kernel's tick, which is what the signal has to beat (`vigie-bench interrupts` measures them all).
//!
//! The handler runs on the alternate stack if there is one, and preserves `errno`. The signal is SIGURG by
//! default, which is ignored where no handler is installed: so nothing happens to a program that a task
//! executes while the signal is pending.

#![expect(unsafe_code, reason = "signals have no safe interface")]

mod slice;
mod task_clock;
pub(crate) mod thread_state;

use std::{
    error::Error,
    ffi::{c_int, c_void},
    fmt, io, mem,
    os::fd::RawFd,
    process, ptr,
    time::Duration,
};

use vigie_detect::{Instant, clock::monotonic_now, setters};

pub(crate) use self::slice::{restore_slice, shorten_slice};
use self::task_clock::{CODE_LAST, CODE_PERIODIC, NoTaskClock, TaskClock};
use crate::sync::{
    AtomicBool, Ordering, PoisonError, RealAtomicBool, RealAtomicI32, RealAtomicU64, RealMutex,
    thread_local,
};

/// The kernel features that a runtime of the hybrid flavor may use. The other flavors use none.
///
/// Features that the machine does not allow are left out; a warning names the reason, once per process. None
/// of them interrupts code that sleeps in the kernel: `nanosleep`, `poll`, a `read` with `SO_RCVTIMEO` and
/// the like never end with `EINTR` because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a runtime's builder takes it"]
pub struct KernelHelp {
    pub(crate) short_slices: bool,
    signal: Option<i32>,
}

impl Default for KernelHelp {
    fn default() -> Self {
        Self { short_slices: true, signal: Some(libc::SIGURG) }
    }
}

/// The reason why no signal is sent to threads that hog.
#[derive(Debug)]
enum NoSignal {
    Handled(i32),
    RealTime(i32),
    Refused(i32, io::Error),
    TaskClock(NoTaskClock),
}

impl fmt::Display for NoSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handled(value) => write!(
                f,
                "the program handles signal {value} itself: choose another one in `KernelHelp`"
            ),
            Self::RealTime(value) => {
                write!(f, "{value} is a real-time signal: choose another one in `KernelHelp`")
            }
            Self::Refused(value, _) => {
                write!(f, "signal {value} cannot be handled: choose another one in `KernelHelp`")
            }
            Self::TaskClock(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl Error for NoSignal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(_, error) => Some(error),
            Self::TaskClock(error) => error.source(),
            _ => None,
        }
    }
}

impl From<NoTaskClock> for NoSignal {
    fn from(error: NoTaskClock) -> Self {
        Self::TaskClock(error)
    }
}

impl NoSignal {
    /// Logs the reason, once per process: every thread and every runtime meets the same one.
    fn report(&self) {
        static IS_TOLD: RealAtomicBool = RealAtomicBool::new(false);
        if !IS_TOLD.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                error = self as &dyn Error,
                "no signal goes into threads that hog: an event may wait for the kernel's next tick \
                 while every processor computes"
            );
        }
    }
}

impl KernelHelp {
    /// No help at all.
    pub const NONE: Self = Self { short_slices: false, signal: None };

    setters! {
        /// Sets whether reserve threads ask for slices of 0.1 ms. Default `true`. They keep the scheduling policy and
        /// the nice value of the process; under `SCHED_FIFO`, `SCHED_RR`, `SCHED_IDLE` and `SCHED_DEADLINE`, and
        /// with a nice value below zero, they do not ask. Kernels before Linux 6.12 ignore it.
        short_slices: bool,

        /// Sets the signal that makes a thread inside a long poll check whether it delays another thread. Default
        /// SIGURG; `None` for no signal.
        ///
        /// It is raised by a perf event, after each millisecond that the thread has computed in user mode. It
        /// needs `kernel.perf_event_paranoid` of 2 or less (or `CAP_PERFMON`), and a process without a seccomp
        /// filter. Where that is refused, as in most containers, there is no signal, and only short slices
        /// remain: an event may then wait for the kernel's next tick (1 to 10 ms, by the kernel's `HZ`) while
        /// every processor computes.
        ///
        /// A signal that the program handles itself is left alone, whether its handler was there when the runtime
        /// was built or is installed later. Real-time signals are refused, since the kernel replaces one that it
        /// cannot queue by SIGIO, which ends a process.
        signal: Option<i32>,
    }

    /// Installs the signal's handler, if something can raise the signal. Returns the signal's number then.
    pub(crate) fn usable_signal(self) -> Option<i32> {
        let signal = self.signal?;
        let usable = if signal >= libc::SIGRTMIN() {
            Err(NoSignal::RealTime(signal))
        } else {
            task_clock::probe().map_err(NoSignal::from).and_then(|()| install(signal))
        };
        usable.inspect_err(NoSignal::report).ok().map(|()| signal)
    }
}

/// Returns how long the thread with the kernel thread id `thread` has run on a processor, in nanoseconds;
/// `None` if this process has no such thread. A system call, 0.3 µs.
pub(crate) fn processor_time(thread: u32) -> Option<u64> {
    // clock_getcpuclockid(3): the complement of the id, and "the scheduler's clock of a thread".
    let clock = !i32::try_from(thread).ok()? << 3 | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time to where the pointer points, and refuses clocks that it does not
    // know.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let nanos =
        u64::try_from(time.tv_sec).ok()? * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?;
    (result == 0).then_some(nanos)
}

/// Returns the calling thread's kernel thread id.
pub(crate) fn thread_number() -> u32 {
    // SAFETY: the call has no arguments and cannot fail.
    u32::try_from(unsafe { libc::gettid() }).unwrap_or(0)
}

/// A thread's sleeps in the kernel so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelSleeps {
    /// The number of times that it has slept or waited in the kernel.
    pub(crate) count: u64,
    /// The number of times that it has waited for memory to be read from a disk.
    pub(crate) page_reads: u64,
    /// The time for which it has computed; zero if the kernel does not tell.
    pub(crate) computed: Duration,
    /// The time for which it could have run, and waited for a processor; zero if the kernel does not tell.
    pub(crate) waited: Duration,
}

impl KernelSleeps {
    /// Returns those of the calling thread.
    ///
    /// # Cost
    /// Six system calls, some 5 µs.
    pub(crate) fn now() -> Self {
        let mut usage = mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes one `rusage`.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        // SAFETY: zeros are a valid value, and so is what the kernel writes.
        let usage = unsafe { usage.assume_init() };
        let count = |count: libc::c_long| u64::try_from(count).unwrap_or(0);
        let thread = thread_number();
        Self {
            count: count(usage.ru_nvcsw),
            page_reads: count(usage.ru_majflt),
            computed: Duration::from_nanos(processor_time(thread).unwrap_or(0)),
            waited: Duration::from_nanos(thread_state::waited_for_processor(thread).unwrap_or(0)),
        }
    }
}

/// The time for which a call counts: longer than the kernel makes a thread wait where few compute, and short enough
/// that a call which is never answered costs no thread its share.
const CALL_LASTS: Duration = Duration::from_millis(10);

/// The time at which a thread was called that has not run since, in nanoseconds; zero if none was. A hint: if it is wrong,
/// hogs yield once too often or too rarely.
struct Call(RealAtomicU64);

/// Shared by all runtimes of the process.
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

/// Records that a thread which sleeps outside the poller is woken for an event. No event waits in the poller
/// for it, so hogs could not otherwise know that they delay it.
pub(crate) fn note_call() {
    CALL.begin(monotonic_now());
}

/// The called thread is running.
pub(crate) fn note_answer() {
    CALL.end();
}

/// Returns whether a thread was called lately that has not run since. Async-signal-safe.
pub(crate) fn is_somebody_called() -> bool {
    CALL.is_waiting(monotonic_now)
}

thread_local! {
    /// The descriptor of the poller that the handler asks on this thread; negative if none.
    static WAIT_POINT: RealAtomicI32 = const { RealAtomicI32::new(-1) };
}

/// Yields if an event waits, or a called thread.
extern "C" fn on_signal(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: `errno` of this thread; valid in a handler.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler that was installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    // A signal sent by another source has another code.
    if matches!(code, CODE_PERIODIC | CODE_LAST) {
        // A thread-local without destructor, initialised at compile time: a plain address. `bind` has touched
        // it on this thread.
        let fd = WAIT_POINT.with(|descriptor| descriptor.load(Ordering::Relaxed));
        // `poll` ignores a negative descriptor.
        let mut descriptor = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is async-signal-safe and writes only to `descriptor`. If the descriptor was closed
        // meanwhile, it says so in `revents`; if it now refers to something else, that is merely polled.
        let ready = unsafe { libc::poll(&raw mut descriptor, 1, 0) };
        let has_event = ready > 0 && descriptor.revents & libc::POLLIN != 0;
        if has_event || is_somebody_called() {
            // SAFETY: a system call without arguments, which takes no lock.
            unsafe { libc::sched_yield() };
        }
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// Returns the process's action for `signal`.
fn action(signal: i32) -> io::Result<libc::sighandler_t> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut present: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: no new action is given; the old one is written to valid memory.
    if unsafe { libc::sigaction(signal, ptr::null(), &raw mut present) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(present.sa_sigaction)
}

/// Returns whether the process handles `signal` with our handler.
fn is_ours(signal: i32) -> bool {
    action(signal).is_ok_and(|action| action == on_signal as *const () as usize)
}

/// Installs the handler, once per process and signal. A program that has replaced it since keeps its own.
fn install(signal: i32) -> Result<(), NoSignal> {
    static INSTALLING: RealMutex<()> = RealMutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if is_ours(signal) {
        return Ok(());
    }
    let present = action(signal).map_err(|error| NoSignal::Refused(signal, error))?;
    if present != libc::SIG_DFL && present != libc::SIG_IGN {
        return Err(NoSignal::Handled(signal));
    }
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // Handlers do not nest: an alternate stack has room for two frames of signals, and not always for two handlers.
    // SAFETY: the mask is ours and valid for writes.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    // SAFETY: the handler is async-signal-safe: it polls, yields, and preserves `errno`.
    if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
        return Err(NoSignal::Refused(signal, io::Error::last_os_error()));
    }
    Ok(())
}

/// The time that a thread stuck in a long poll computes between two signals.
const EVERY: Duration = Duration::from_millis(1);

/// The time that it computes before a signal that should come at once. The kernel allows no less than 10 µs.
const SOON: Duration = Duration::from_micros(10);

/// Sends the signal to one thread. Any thread can start it.
#[derive(Debug)]
pub(crate) struct HogTimer {
    /// `None` once its thread has ended.
    bound: RealMutex<Option<Bound>>,
    /// The process that has bound it. A forked child has a copy that does nothing: the events belong to a
    /// thread of its parent.
    process: RealAtomicU64,
    is_set: AtomicBool,
}

#[derive(Debug)]
struct Bound {
    signal: i32,
    thread: u32,
    /// The event that fires every millisecond, created at the first start: a thread with an event costs a
    /// little more at each of the kernel's switches.
    every: Option<TaskClock>,
    /// The event that fires once, created at the first use.
    soon: Option<TaskClock>,
    /// It cannot be started any more.
    is_refused: bool,
}

impl HogTimer {
    /// A timer that does nothing until its thread binds it.
    pub(crate) fn new() -> Self {
        Self {
            bound: RealMutex::new(None),
            process: RealAtomicU64::new(0),
            is_set: AtomicBool::new(false),
        }
    }

    /// Makes it the timer of the calling thread: the handler of `signal` polls `descriptor`, and yields the
    /// processor to the thread that serves it.
    pub(crate) fn bind(&self, signal: i32, descriptor: RawFd) {
        WAIT_POINT.with(|place| place.store(descriptor, Ordering::Relaxed));
        let (every, soon) = (None, None);
        let bound = Bound { signal, thread: thread_number(), every, soon, is_refused: false };
        self.process.store(process::id().into(), Ordering::Relaxed);
        *self.lock() = Some(bound);
    }

    /// The thread ends.
    pub(crate) fn unbind(&self) {
        WAIT_POINT.with(|place| place.store(-1, Ordering::Relaxed));
        if self.is_of_this_process()
            && let Some(mut bound) = self.lock().take()
        {
            bound.close();
        }
        self.is_set.store(false, Ordering::Relaxed);
    }

    /// Returns whether the timer runs: a hint for its own thread.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Starts the timer, unless it runs. If the program has installed a handler of its own meanwhile, this
    /// stops the timer for good instead, so call it now and then while the timer runs.
    pub(crate) fn start(&self) {
        self.with(|bound| {
            if bound.is_usable() && !self.is_set() {
                let is_set = bound.start();
                self.is_set.store(is_set, Ordering::Relaxed);
            } else if bound.is_refused {
                self.is_set.store(false, Ordering::Relaxed);
            }
        });
    }

    /// Makes the signal come once, as soon as the thread computes. The timer is not affected.
    pub(crate) fn ask_now(&self) {
        self.with(|bound| {
            if bound.is_usable() {
                bound.ask_now();
            }
        });
    }

    /// Stops the timer, if it runs.
    pub(crate) fn stop(&self) {
        if self.is_set() {
            self.with(|bound| {
                if let Some(every) = &bound.every {
                    every.stop();
                }
                self.is_set.store(false, Ordering::Relaxed);
            });
        }
    }

    /// Does nothing in a forked process, in which another thread may hold the lock for ever.
    fn with(&self, change: impl FnOnce(&mut Bound)) {
        if self.is_of_this_process()
            && let Some(bound) = &mut *self.lock()
        {
            change(bound);
        }
    }

    fn is_of_this_process(&self) -> bool {
        self.process.load(Ordering::Relaxed) == u64::from(process::id())
    }

    fn lock(&self) -> crate::sync::RealGuard<'_, Option<Bound>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bound {
    /// Returns whether the signal may be sent; once it is not ours any more, it never may again.
    fn is_usable(&mut self) -> bool {
        if !self.is_refused && !is_ours(self.signal) {
            self.close();
            self.is_refused = true;
            NoSignal::Handled(self.signal).report();
        }
        !self.is_refused && task_clock::is_ready()
    }

    fn start(&mut self) -> bool {
        let every = Self::open(&mut self.every, self.thread, self.signal, EVERY);
        if let Some(every) = every {
            every.start();
        }
        self.is_refused = every.is_none();
        !self.is_refused
    }

    fn ask_now(&mut self) {
        if let Some(soon) = Self::open(&mut self.soon, self.thread, self.signal, SOON) {
            soon.start_once();
        }
    }

    fn open(
        event: &mut Option<TaskClock>,
        thread: u32,
        signal: i32,
        period: Duration,
    ) -> Option<&TaskClock> {
        if event.is_none() {
            let opened = TaskClock::open(thread, signal, period);
            *event = opened
                .map_err(NoTaskClock::from)
                .map_err(NoSignal::from)
                .inspect_err(NoSignal::report)
                .ok();
        }
        event.as_ref()
    }

    /// Stops running events, before their descriptors are closed.
    fn close(&mut self) {
        for event in [self.every.take(), self.soon.take()].into_iter().flatten() {
            event.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a process that is forked does no harm to the events of its parent, which are those of the same
    /// thread. Method: the child stops and unbinds the timer as a thread does that rests and ends; in the
    /// parent, the event still counts.
    #[test]
    fn a_forked_process_leaves_events_alone() {
        if let Err(error) = task_clock::probe() {
            println!("SKIPPED: {error}");
            return;
        }
        install(libc::SIGURG).unwrap();
        while !task_clock::is_ready() {
            crate::sync::thread::yield_now();
        }
        let timer = HogTimer::new();
        timer.bind(libc::SIGURG, -1);
        timer.start();
        assert!(timer.is_set());
        // SAFETY: the child calls what takes no lock and allocates nothing, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            timer.stop();
            timer.unbind();
            // SAFETY: the call does not return.
            unsafe { libc::_exit(i32::from(timer.is_set())) };
        }
        assert_eq!(status_of(child), 0);
        let counted = || timer.lock().as_ref().unwrap().every.as_ref().unwrap().count().unwrap();
        let begin = counted();
        let was_on = (0..10_000_000).any(|_| counted() > begin);
        timer.unbind();
        assert!(was_on, "the child has switched the event off");
    }

    /// Goal: a real-time signal, which the kernel may replace by a deadly one, is refused, and one that
    /// cannot be handled. Method: both.
    #[test]
    fn deadly_signals_are_refused() {
        for signal in [libc::SIGRTMIN(), libc::SIGRTMAX(), libc::SIGKILL] {
            let help = KernelHelp::default().signal(Some(signal));
            assert_eq!(help.usable_signal(), None);
        }
    }

    /// Goal: the handler keeps `errno`. Method: a process whose limit of descriptors makes the call in the handler fail.
    #[test]
    fn the_handler_keeps_errors() {
        // SAFETY: the child calls what takes no lock and allocates nothing, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: zeroes are valid for this plain structure.
            let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
            info.si_code = CODE_PERIODIC;
            // SAFETY: `errno` of this thread.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: `limit` is valid for reads.
            let is_limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0;
            // SAFETY: as above.
            unsafe { *errno = 77 };
            on_signal(libc::SIGURG, &raw mut info, ptr::null_mut());
            // SAFETY: as above.
            let is_kept = unsafe { *errno } == 77;
            // SAFETY: the call does not return.
            unsafe { libc::_exit(i32::from(!is_limited || !is_kept)) };
        }
        assert_eq!(status_of(child), 0);
    }

    /// Waits until `child` has ended.
    fn status_of(child: libc::pid_t) -> i32 {
        assert!(child > 0);
        let mut status = 1;
        // SAFETY: `status` is valid for writes.
        while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {}
        status
    }

    /// Goal: a thread's processor time is what its own clock says, and known of threads of this process alone.
    /// Method: this thread, and a number that no thread has.
    #[test]
    fn processor_time_is_that_of_the_thread() {
        let own = || u64::try_from(vigie_detect::clock::thread_cpu_time().as_nanos()).unwrap();
        let before = own();
        let asked = processor_time(thread_number()).unwrap();
        assert!((before..=own()).contains(&asked));
        // The kernel's bound of numbers.
        assert_eq!(processor_time(1 << 22), None);
        assert_eq!(processor_time(u32::MAX), None);
    }

    /// Goal: a called thread is known until it answers. Method: a call and its answer, again if another test has
    /// answered meanwhile.
    #[test]
    fn calls_are_known() {
        let is_known = |_| {
            note_call();
            is_somebody_called()
        };
        assert!((0..1_000).any(is_known));
        let is_answered = |_| {
            note_answer();
            !is_somebody_called()
        };
        assert!((0..1_000).any(is_answered));
    }

    /// Goal: a program's own handler stays, and ours is installed once where there is none. Method: signals that
    /// nothing else here uses.
    #[test]
    fn handlers_of_others_stay() {
        extern "C" fn own(_: c_int) {}
        let handler = own as *const () as libc::sighandler_t;
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGUSR1, handler) };
        assert!(matches!(install(libc::SIGUSR1), Err(NoSignal::Handled(libc::SIGUSR1))));
        assert_eq!(action(libc::SIGUSR1).unwrap(), handler);
        assert!(!is_ours(libc::SIGUSR1));
        for disposition in [libc::SIG_DFL, libc::SIG_IGN] {
            // SAFETY: no handler.
            unsafe { libc::signal(libc::SIGUSR2, disposition) };
            assert!(!is_ours(libc::SIGUSR2));
            for _ in 0..2 {
                assert!(install(libc::SIGUSR2).is_ok() && is_ours(libc::SIGUSR2));
            }
        }
        assert!(matches!(install(libc::SIGKILL), Err(NoSignal::Refused(libc::SIGKILL, _))));
    }

    /// Goal: a timer runs between start and stop, and not once it is unbound or the signal is another one's.
    /// Method: what its events count.
    #[test]
    fn a_timer_runs_while_it_is_set() {
        if let Err(error) = task_clock::probe() {
            println!("SKIPPED: {error}");
            return;
        }
        install(libc::SIGURG).unwrap();
        while !task_clock::is_ready() {
            crate::sync::thread::yield_now();
        }
        let timer = HogTimer::new();
        timer.start();
        assert!(!timer.is_set(), "it has no thread");
        let asked = || WAIT_POINT.with(|descriptor| descriptor.load(Ordering::Relaxed));
        timer.bind(libc::SIGURG, 7);
        assert!(!timer.is_set() && asked() == 7);
        timer.bind(libc::SIGURG, -1);
        timer.ask_now();
        let is_made = |event: fn(&Bound) -> bool| timer.lock().as_ref().is_some_and(event);
        assert!(is_made(|bound| bound.soon.is_some() && bound.every.is_none()));
        let counted = || timer.lock().as_ref().unwrap().every.as_ref().unwrap().count().unwrap();
        let runs = || {
            let begin = counted();
            (0..1_000_000).any(|_| counted() > begin)
        };
        for _ in 0..2 {
            timer.start();
            assert!(timer.is_set() && runs());
            timer.stop();
            assert!(!timer.is_set());
            let stopped = counted();
            compute(Duration::from_millis(1));
            assert_eq!(counted(), stopped);
        }
        timer.start();
        WAIT_POINT.with(|descriptor| descriptor.store(7, Ordering::Relaxed));
        timer.unbind();
        assert!(!timer.is_set() && timer.lock().is_none() && asked() == -1);

        // SAFETY: no handler. Nothing else here uses the signal.
        unsafe { libc::signal(libc::SIGWINCH, libc::SIG_DFL) };
        install(libc::SIGWINCH).unwrap();
        timer.bind(libc::SIGWINCH, -1);
        timer.start();
        assert!(timer.is_set());
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGWINCH, libc::SIG_DFL) };
        timer.start();
        assert!(!timer.is_set(), "the signal is not ours any more");
        assert!(is_made(|bound| bound.every.is_none()));
        install(libc::SIGWINCH).unwrap();
        timer.start();
        timer.ask_now();
        assert!(!timer.is_set() && is_made(|bound| bound.soon.is_none()), "never again");
        timer.unbind();
    }

    /// Uses that much processor time.
    fn compute(time: Duration) {
        let end = vigie_detect::clock::thread_cpu_time() + time;
        while vigie_detect::clock::thread_cpu_time() < end {}
    }

    /// Goal: hogs yield to a called thread until it runs, and not for ever to one that never
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
