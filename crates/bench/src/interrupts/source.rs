//! Sources of periodic signals to one thread of this process, without privilege.
#![expect(
    unsafe_code,
    reason = "timers, perf events and signals to threads have no safe interface"
)]

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::{nanoseconds, sleep};

/// Signals that were handled so far, in all threads.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Returns how many signals this process has handled so far.
pub(crate) fn handled() -> u64 {
    HANDLED.load(Ordering::Relaxed)
}

/// How a thread is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterruptSource {
    /// Not at all.
    None,
    /// `timer_create(CLOCK_MONOTONIC)` with a signal to the thread.
    Timer,
    /// The same with `CLOCK_THREAD_CPUTIME_ID`.
    ThreadClock,
    /// Another thread looks once in a period whether the thread's processor clock has moved by half of
    /// that, and sends a signal if so.
    Supervisor,
    /// A perf event on the task clock, user mode only, with `F_SETSIG` and `F_SETOWN_EX`.
    PerfSignal,
    /// The same with `sigtrap` (Linux 5.13).
    PerfTrap,
}

impl InterruptSource {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Self; 6] = [
        Self::None,
        Self::Timer,
        Self::ThreadClock,
        Self::Supervisor,
        Self::PerfSignal,
        Self::PerfTrap,
    ];

    /// Returns the name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Timer => "timer, CLOCK_MONOTONIC",
            Self::ThreadClock => "timer, thread's clock",
            Self::Supervisor => "supervisor, clock moved",
            Self::PerfSignal => "perf event, F_SETSIG",
            Self::PerfTrap => "perf event, sigtrap",
        }
    }

    /// Begins to interrupt the calling thread every `period`.
    ///
    /// # Errors
    /// What the kernel refused; a perf event also by `perf_event_paranoid` or a seccomp filter.
    pub(crate) fn arm(self, period: Duration) -> io::Result<ArmedSource> {
        let signal = if self == Self::PerfTrap { libc::SIGTRAP } else { libc::SIGURG };
        handle(signal)?;
        Ok(match self {
            Self::None => ArmedSource::Nothing,
            Self::Timer => ArmedSource::Timer(Timer::start(libc::CLOCK_MONOTONIC, period)?),
            Self::ThreadClock => {
                ArmedSource::Timer(Timer::start(libc::CLOCK_THREAD_CPUTIME_ID, period)?)
            }
            Self::Supervisor => ArmedSource::Supervisor(Supervisor::start(period)),
            Self::PerfSignal => ArmedSource::Perf(PerfEvent::signal(period)?),
            Self::PerfTrap => ArmedSource::Perf(PerfEvent::trap(period)?),
        })
    }
}

/// A source at work, until it is dropped in the thread that armed it.
#[derive(Debug)]
#[expect(private_interfaces, reason = "callers do not look inside")]
pub(crate) enum ArmedSource {
    /// Nothing interrupts.
    Nothing,
    /// A timer of the kernel.
    Timer(Timer),
    /// A thread.
    Supervisor(#[expect(dead_code, reason = "it is ended by its drop")] Supervisor),
    /// A perf event.
    Perf(PerfEvent),
}

impl ArmedSource {
    /// Stops it and starts it again, as a scheduler does between two tasks. A supervisor stays.
    pub(crate) fn restart(&self) {
        match self {
            Self::Nothing | Self::Supervisor(_) => {}
            Self::Timer(timer) => {
                timer.set(Duration::ZERO);
                timer.set(timer.period);
            }
            Self::Perf(event) => {
                event.control(DISABLE);
                event.control(ENABLE);
            }
        }
    }
}

extern "C" fn count(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn handle(signal: c_int) -> io::Result<()> {
    // SAFETY: zeroes are valid for this plain structure.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = count as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler is async-signal-safe: it adds to an atomic number.
    check(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) })
}

fn check(result: c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn thread_number() -> libc::pid_t {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

#[derive(Debug)]
struct Timer {
    number: libc::timer_t,
    period: Duration,
}

impl Timer {
    fn start(clock: libc::clockid_t, period: Duration) -> io::Result<Self> {
        // SAFETY: zeroes are valid for this plain structure.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGURG;
        event.sigev_notify_thread_id = thread_number();
        let mut number: libc::timer_t = ptr::null_mut();
        // SAFETY: both structures are valid for the call, which keeps neither.
        check(unsafe { libc::timer_create(clock, &raw mut event, &raw mut number) })?;
        let timer = Self { number, period };
        timer.set(period);
        Ok(timer)
    }

    fn set(&self, period: Duration) {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: c_long::from(i32::try_from(period.subsec_nanos()).unwrap_or(i32::MAX)),
        };
        let value = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the timer lives as long as `self`; the call keeps nothing of `value`.
        let _ = unsafe { libc::timer_settime(self.number, 0, &raw const value, ptr::null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: made by `start`, and deleted here alone.
        unsafe { libc::timer_delete(self.number) };
    }
}

#[derive(Debug)]
struct Supervisor {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    fn start(period: Duration) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&is_over);
        let supervised = thread_number();
        let thread = std::thread::spawn(move || {
            let mut before = processor_time(supervised);
            while !end.load(Ordering::Relaxed) {
                sleep(period);
                let now = processor_time(supervised);
                if now - before >= nanoseconds(period) / 2 {
                    let process = std::process::id();
                    // SAFETY: the thread outlives this one, which `drop` joins there.
                    unsafe { libc::syscall(libc::SYS_tgkill, process, supervised, libc::SIGURG) };
                }
                before = now;
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the processor time of a thread of this process, in nanoseconds.
fn processor_time(thread: libc::pid_t) -> u64 {
    // The kernel's numbers of clocks: a thread's scheduler clock has the low bits 110.
    let clock = (!thread << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// The kernel's `struct perf_event_attr` as of Linux 5.13, which has `sig_data`.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    rest: [u64; 10],
}

const _: () = assert!(size_of::<PerfEventAttributes>() == 128, "the kernel knows this size");

const SOFTWARE: u32 = 1;
const TASK_CLOCK: u64 = 1;
const DISABLED: u64 = 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;
const FD_CLOEXEC: c_ulong = 8;
const ENABLE: c_ulong = 0x2400;
const DISABLE: c_ulong = 0x2401;
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
const F_OWNER_TID: c_int = 0;

#[repr(C)]
struct FileOwner {
    kind: c_int,
    number: libc::pid_t,
}

#[derive(Debug)]
struct PerfEvent(OwnedFd);

impl PerfEvent {
    fn signal(period: Duration) -> io::Result<Self> {
        let event = Self::open(period, 0)?;
        let descriptor = event.0.as_raw_fd();
        let owner = FileOwner { kind: F_OWNER_TID, number: thread_number() };
        // SAFETY: the descriptor is open, and `owner` valid for reads.
        check(unsafe { libc::fcntl(descriptor, F_SETOWN_EX, &raw const owner) })?;
        // SAFETY: the descriptor is open.
        check(unsafe { libc::fcntl(descriptor, F_SETSIG, libc::SIGURG) })?;
        // SAFETY: the descriptor is open.
        check(unsafe { libc::fcntl(descriptor, libc::F_SETFL, libc::O_ASYNC) })?;
        event.control(ENABLE);
        Ok(event)
    }

    fn trap(period: Duration) -> io::Result<Self> {
        let event = Self::open(period, SIGTRAP | REMOVE_ON_EXEC)?;
        event.control(ENABLE);
        Ok(event)
    }

    fn open(period: Duration, flags: u64) -> io::Result<Self> {
        let attributes = PerfEventAttributes {
            kind: SOFTWARE,
            size: 128,
            config: TASK_CLOCK,
            sample_period: nanoseconds(period),
            // Bit fields of C begin at the other end there.
            flags: if cfg!(target_endian = "big") { u64::reverse_bits } else { |flags| flags }(
                flags | DISABLED | EXCLUDE_KERNEL | EXCLUDE_HV,
            ),
            ..PerfEventAttributes::default()
        };
        // SAFETY: `attributes` is valid for reads of its `size`, and the kernel does not keep it.
        let descriptor = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, FD_CLOEXEC)
        };
        let descriptor = c_int::try_from(descriptor).unwrap_or(-1);
        check(descriptor)?;
        // SAFETY: the kernel has just made it for us.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    fn control(&self, request: c_ulong) {
        // SAFETY: the descriptor is open, and these requests take no memory.
        unsafe { libc::ioctl(self.0.as_raw_fd(), request, 0) };
    }
}
