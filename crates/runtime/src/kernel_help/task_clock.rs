//! Perf events on the clock of one thread: a signal to it each time it has computed for some time.
//!
//! The kernel counts while the thread runs, and lets the event fire only if the thread is in user mode at
//! that moment. The signal is sent before the thread goes on, so it never reaches a sleeping thread. Up to
//! `perf_event_paranoid` 2, this needs no privilege.

#![expect(unsafe_code, reason = "perf events have no safe interface")]

use std::{
    error::Error,
    ffi::{c_int, c_ulong},
    fmt, fs, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use crate::sync::{OnceLock, Ordering, RealAtomicBool, thread};

/// The reason why such an event is not possible.
#[derive(Debug)]
pub(crate) enum NoTaskClock {
    Filtered,
    Unknown(io::Error),
    Paranoid { level: i32 },
    Policy(io::Error),
    Unsupported,
    NoDescriptor(io::Error),
    Other(io::Error),
}

impl fmt::Display for NoTaskClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filtered => f.write_str("perf events are not tried: a seccomp filter is in force, which may kill a process that creates one"),
            Self::Unknown(_) => f.write_str("/proc/self/status does not tell whether a seccomp filter is in force"),
            Self::Paranoid { level } => write!(f, "perf events are refused to this user: kernel.perf_event_paranoid is {level}, and must be at most 2 \
             without CAP_PERFMON"),
            Self::Policy(_) => f.write_str("perf events are refused by a security policy"),
            Self::Unsupported => f.write_str("this kernel has no perf events"),
            Self::NoDescriptor(_) => f.write_str("there is no descriptor left for a perf event: raise the limit with `ulimit -n`"),
            Self::Other(_) => f.write_str("the kernel refused to create a perf event"),
        }
    }
}

impl Error for NoTaskClock {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unknown(error)
            | Self::Policy(error)
            | Self::NoDescriptor(error)
            | Self::Other(error) => Some(error),
            _ => None,
        }
    }
}

impl NoTaskClock {
    fn new(error: io::Error, level: Option<i32>) -> Self {
        match (error.raw_os_error(), level) {
            (Some(libc::EACCES | libc::EPERM), Some(level)) if level > 2 => {
                Self::Paranoid { level }
            }
            (Some(libc::EACCES | libc::EPERM), _) => Self::Policy(error),
            (Some(libc::ENOSYS | libc::ENOENT), _) => Self::Unsupported,
            (Some(libc::EMFILE | libc::ENFILE), _) => Self::NoDescriptor(error),
            _ => Self::Other(error),
        }
    }
}

impl From<io::Error> for NoTaskClock {
    fn from(error: io::Error) -> Self {
        Self::new(error, paranoid_level())
    }
}

fn paranoid_level() -> Option<i32> {
    fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse().ok()
}

/// Returns whether the text of `/proc/self/status` reports a filter. A kernel without filters has no such
/// line.
fn is_filtered(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"))
        .is_some_and(|mode| mode.trim() != "0")
}

/// An id that no thread has: the kernel's maximum is 2^22.
const NOBODY: u32 = i32::MAX.cast_unsigned();

/// Checks that events can be created, by asking for one of a thread that does not exist: the kernel checks
/// the permission first, and this is quick.
pub(crate) fn probe() -> Result<(), NoTaskClock> {
    // A filter refuses the call, or kills the process: systemd's `SystemCallFilter=` does.
    let status = fs::read_to_string("/proc/self/status").map_err(NoTaskClock::Unknown)?;
    if is_filtered(&status) {
        return Err(NoTaskClock::Filtered);
    }
    match open(NOBODY, Duration::from_millis(1)) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error.into()),
        _ => Ok(()),
    }
}

/// A perf event that stays open so that later ones are created quickly; `None` if it could not be created.
///
/// The first event of a machine switches on the kernel's own hooks, and waits until every processor knows
/// (`synchronize_rcu`): 7 to 16 ms, against 13 µs for later ones. So a separate thread creates one, which
/// stays as long as the process lives; meanwhile no other thread waits.
static KEPT: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Returns whether events can be created quickly. The first call starts the preparation.
pub(crate) fn is_ready() -> bool {
    static HAS_BEGUN: RealAtomicBool = RealAtomicBool::new(false);
    if let Some(kept) = KEPT.get() {
        return kept.is_some();
    }
    if !HAS_BEGUN.swap(true, Ordering::Relaxed) {
        let keep = || {
            let opened = open(super::thread_number(), Duration::from_secs(1));
            let opened = opened.map_err(NoTaskClock::from).map_err(super::NoSignal::from);
            drop(KEPT.set(opened.inspect_err(super::NoSignal::report).ok()));
        };
        let spawned = thread::Builder::new().name("vigie-perf".into()).spawn(keep);
        if let Err(error) = spawned {
            // Retried at the next start.
            HAS_BEGUN.store(false, Ordering::Relaxed);
            tracing::debug!(%error, "no thread to prepare perf events");
        }
    }
    false
}

/// The part of the kernel's `struct perf_event_attr` that its first version has.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const ATTRIBUTES_BYTES: u32 = 64;
const _: () = assert!(size_of::<Attributes>() == 64, "the kernel knows this size");

const TYPE_SOFTWARE: u32 = 1;
const COUNT_TASK_CLOCK: u64 = 1;

const FLAG_DISABLED: u64 = 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HV: u64 = 1 << 6;

const FD_CLOEXEC: c_ulong = 1 << 3;

const IOC_ENABLE: c_ulong = 0x2400;
const IOC_DISABLE: c_ulong = 0x2401;
const IOC_REFRESH: c_ulong = 0x2402;

const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
const F_OWNER_TID: c_int = 0;

#[repr(C)]
struct OwnerEx {
    kind: c_int,
    number: libc::pid_t,
}

/// The `si_code` of the signal of a recurring event.
pub(crate) const CODE_PERIODIC: c_int = 1;

/// The `si_code` of the signal of an event that fired for the last time.
pub(crate) const CODE_LAST: c_int = 6;

/// Creates an event for the thread `thread`, disabled and without a signal.
fn open(thread: u32, period: Duration) -> io::Result<OwnedFd> {
    let flags = FLAG_DISABLED | FLAG_EXCLUDE_KERNEL | FLAG_EXCLUDE_HV;
    let attributes = Attributes {
        kind: TYPE_SOFTWARE,
        size: ATTRIBUTES_BYTES,
        config: COUNT_TASK_CLOCK,
        sample_period: u64::try_from(period.as_nanos()).unwrap_or(u64::MAX),
        sample_type: 0,
        read_format: 0,
        // C bit fields, which begin at the other end there.
        flags: if cfg!(target_endian = "big") { flags.reverse_bits() } else { flags },
        wakeup_events: 0,
        bp_type: 0,
        config1: 0,
    };
    let every_processor: c_int = -1;
    let no_group: c_int = -1;
    // SAFETY: `attributes` is valid for reads of its `size`, and the kernel does not keep it.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            thread,
            every_processor,
            no_group,
            FD_CLOEXEC,
        )
    };
    let descriptor = checked(c_int::try_from(descriptor).unwrap_or(-1))?;
    // SAFETY: the kernel has just created it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// An event, disabled at first. It belongs to its thread, not to the process: a forked process inherits its
/// descriptor, and must not use it.
#[derive(Debug)]
pub(crate) struct TaskClock(OwnedFd);

impl TaskClock {
    /// Creates the event of the thread `thread` of this process.
    pub(crate) fn open(thread: u32, signal: c_int, period: Duration) -> io::Result<Self> {
        let event = Self(open(thread, period)?);
        let descriptor = event.0.as_raw_fd();
        let owner =
            OwnerEx { kind: F_OWNER_TID, number: libc::pid_t::try_from(thread).unwrap_or(0) };
        // SAFETY: the descriptor is open, and `owner` is valid for reads.
        checked(unsafe { libc::fcntl(descriptor, F_SETOWN_EX, &raw const owner) })?;
        // SAFETY: the descriptor is open, and the command takes a number.
        checked(unsafe { libc::fcntl(descriptor, F_SETSIG, signal) })?;
        // SAFETY: the descriptor is open, and the command takes a number.
        checked(unsafe { libc::fcntl(descriptor, libc::F_SETFL, libc::O_ASYNC) })?;
        Ok(event)
    }

    /// Lets it fire once in each period.
    pub(crate) fn start(&self) {
        self.control(IOC_ENABLE, 0);
    }

    /// Lets it fire once.
    pub(crate) fn start_once(&self) {
        self.control(IOC_REFRESH, 1);
    }

    /// Disables it. Closing does not, while a forked process has the descriptor.
    pub(crate) fn stop(&self) {
        self.control(IOC_DISABLE, 0);
    }

    /// Returns how many nanoseconds it has counted while it was enabled.
    #[cfg(test)]
    pub(crate) fn count(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        rustix::io::read(&self.0, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn control(&self, request: c_ulong, argument: c_ulong) {
        // SAFETY: the descriptor is open, and these requests take a number.
        unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) };
    }
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the text names the cause, and never a limit that has nothing to do with it. Method: each error
    /// of the kernel, with levels of `perf_event_paranoid` that explain it and that do not.
    #[test]
    fn reasons() {
        let text =
            |code, level| NoTaskClock::new(io::Error::from_raw_os_error(code), level).to_string();
        assert!(text(libc::EACCES, Some(3)).contains("perf_event_paranoid is 3"));
        for refused in [text(libc::EACCES, Some(2)), text(libc::EPERM, None)] {
            assert!(refused.contains("security policy"), "{refused}");
            assert!(!refused.contains("ulimit"), "{refused}");
        }
        assert!(text(libc::ENOSYS, Some(2)).contains("no perf events"));
        assert!(text(libc::EMFILE, Some(3)).contains("ulimit -n"));
        assert!(text(libc::EINVAL, Some(2)).contains("refused to create a perf event"));
    }

    /// Goal: the question whether events can be made is answered as the kernel does. Method: an event of this thread.
    #[test]
    fn probes_are_right() {
        let made = open(crate::kernel_help::thread_number(), Duration::from_secs(1));
        match probe() {
            Err(NoTaskClock::Filtered | NoTaskClock::Unknown(_)) => println!("SKIPPED: a filter"),
            answer => assert_eq!(answer.is_ok(), made.is_ok(), "{answer:?}, {made:?}"),
        }
    }

    /// Goal: nothing is tried under a filter. Method: texts as the kernel writes them.
    #[test]
    fn filters() {
        assert!(is_filtered("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(is_filtered("Seccomp:\t1\n"));
        assert!(!is_filtered("Seccomp:\t0\nSeccomp_filters:\t0\n"));
        assert!(!is_filtered("Name:\tx\n"));
    }
}
