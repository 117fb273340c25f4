//! The error for a machine without io_uring, and its remedies.

use std::{error::Error, fmt, fs, io};

/// io_uring, or a part of it that the detector needs, is not available on this machine: use
/// [`AsyncFd`](crate::AsyncFd) there.
#[derive(Debug)]
#[non_exhaustive]
pub struct UringUnavailable {
    /// The missing part; its `Display` says what to do.
    pub missing: Missing,
    /// The kernel's error.
    pub source: io::Error,
}

impl fmt::Display for UringUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { missing, .. } = self;
        write!(f, "io_uring cannot be used: {missing}")
    }
}

impl Error for UringUnavailable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// The part of io_uring that this machine lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// The kernel has no io_uring, or a seccomp filter pretends so.
    Calls,
    /// The administrator has disabled it; the value of `kernel.io_uring_disabled`.
    Switch(u8),
    /// A seccomp filter or a security module refuses it.
    Permission,
    /// Locked memory, or memory in general.
    Memory,
    /// Descriptors: the limit of the process or the machine is reached.
    Descriptors,
    /// Registered rings of provided buffers (Linux 5.19).
    BufferRings,
    /// Multishot receive (Linux 6.0).
    MultishotReceive,
    /// Something else: see the source.
    Other,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calls => f.write_str(
                "the kernel, or this container's seccomp profile, has no io_uring: use Linux 6.0 or \
                 later and allow io_uring_setup, io_uring_enter and io_uring_register",
            ),
            Self::Switch(value) => write!(
                f,
                "it is switched off: set kernel.io_uring_disabled to 0 (now {value}), or join the \
                 group of kernel.io_uring_group where it is 1",
            ),
            Self::Permission => f.write_str(
                "it is refused: allow io_uring_setup, io_uring_enter and io_uring_register in this \
                 container's seccomp profile or security module",
            ),
            Self::Memory => f.write_str(
                "its memory is refused: raise RLIMIT_MEMLOCK (`ulimit -l`) or ask for fewer or \
                 smaller buffers",
            ),
            Self::Descriptors => {
                f.write_str("no descriptor is left for it: raise RLIMIT_NOFILE (`ulimit -n`)")
            }
            Self::BufferRings => f.write_str("no rings of provided buffers: use Linux 6.0 or later"),
            Self::MultishotReceive => f.write_str("no multishot receive: use Linux 6.0 or later"),
            Self::Other => f.write_str("the kernel refused it"),
        }
    }
}

impl UringUnavailable {
    pub(super) const fn new(missing: Missing, source: io::Error) -> Self {
        Self { missing, source }
    }

    /// Explains why the rings could not be created.
    pub(super) fn from_setup(source: io::Error) -> Self {
        let switch = || {
            let text = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
            text.trim().parse().ok()
        };
        Self::explain(source, Missing::Calls, switch)
    }

    /// Explains why the provided buffers could not be registered.
    pub(super) fn from_registration(source: io::Error) -> Self {
        Self::explain(source, Missing::BufferRings, || None)
    }

    fn explain(
        source: io::Error,
        unknown_call: Missing,
        switch: impl FnOnce() -> Option<u8>,
    ) -> Self {
        let missing = match source.raw_os_error() {
            Some(libc::ENOSYS | libc::EINVAL) => unknown_call,
            Some(libc::EPERM | libc::EACCES) => match switch() {
                Some(value @ 1..) => Missing::Switch(value),
                _ => Missing::Permission,
            },
            Some(libc::ENOMEM) => Missing::Memory,
            Some(libc::EMFILE | libc::ENFILE) => Missing::Descriptors,
            _ => Missing::Other,
        };
        Self::new(missing, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_what_is_missing() {
        // Goal: the error says what to do. Method: every errno of io_uring_setup(2) that a user meets.
        for (errno, switch, missing) in [
            (libc::ENOSYS, None, Missing::Calls),
            (libc::EPERM, Some(2), Missing::Switch(2)),
            (libc::EPERM, Some(0), Missing::Permission),
            (libc::EACCES, None, Missing::Permission),
            (libc::ENOMEM, None, Missing::Memory),
            (libc::EMFILE, None, Missing::Descriptors),
            (libc::EIO, None, Missing::Other),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            let error = UringUnavailable::explain(error, Missing::Calls, || switch);
            assert_eq!(error.missing, missing);
        }
        let error = io::Error::from_raw_os_error(libc::EINVAL);
        assert_eq!(UringUnavailable::from_registration(error).missing, Missing::BufferRings);
    }
}
