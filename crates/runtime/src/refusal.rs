//! Advice to users when the kernel refuses a resource, by error.

use std::io;

/// A resource requested from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// An epoll, an eventfd, a timerfd.
    Descriptor,
    Thread,
}

/// Returns what is known about the cause of `error`, as a suffix for a message: it begins with a colon, or is
/// empty.
pub(crate) fn cause(resource: Resource, error: &io::Error) -> &'static str {
    match (error.raw_os_error(), resource) {
        (Some(libc::EMFILE), _) => {
            ": this process may open no more descriptors (`ulimit -n`, RLIMIT_NOFILE)"
        }
        (Some(libc::ENFILE), _) => ": the system may open no more files (`fs.file-max`)",
        (Some(libc::EAGAIN), Resource::Thread) => {
            ": this user, control group or system may have no more threads (`ulimit -u`, `pids.max`, \
             `kernel.threads-max`), or there is no memory for its stack"
        }
        (Some(libc::ENOMEM), _) => ": there is no memory for it",
        (Some(libc::EPERM | libc::EACCES | libc::ENOSYS), _) => {
            ": the kernel refuses the call itself, so a seccomp filter, a container's profile or a \
             security module forbids it"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no limit is blamed for what no limit has done, and each limit is named for its own error.
    /// Method: each error that the calls can return, and one without a number.
    #[test]
    fn the_cause_follows_the_error() {
        let says = |resource, number| cause(resource, &io::Error::from_raw_os_error(number));
        for resource in [Resource::Descriptor, Resource::Thread] {
            for refused in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
                let text = says(resource, refused);
                assert!(text.contains("seccomp") && !text.contains("ulimit"), "{text}");
            }
            assert!(!says(resource, libc::ENOMEM).contains("ulimit"));
            assert_eq!(says(resource, libc::EINVAL), "");
            assert_eq!(cause(resource, &io::ErrorKind::QuotaExceeded.into()), "");
        }
        assert!(says(Resource::Descriptor, libc::EMFILE).contains("ulimit -n"));
        assert!(says(Resource::Descriptor, libc::ENFILE).contains("fs.file-max"));
        assert!(says(Resource::Thread, libc::EAGAIN).contains("ulimit -u"));
    }
}
