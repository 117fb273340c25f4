//! The limit on open descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::Failure;

/// Descriptors that a process has open beside its connections: standard streams, epoll, timers, doorbells.
const DESCRIPTORS_BESIDE: u64 = 64;

/// Makes sure that this process may open `connections` sockets, and raises its own limit if it must.
///
/// # Errors
/// [`Failure::DescriptorLimit`] if the limit is lower and may not be raised.
pub(crate) fn allow_connections(connections: u32) -> Result<(), Failure> {
    let needed = u64::from(connections) + DESCRIPTORS_BESIDE;
    let limit = getrlimit(Resource::Nofile);
    // `None` stands for "no limit".
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    // Raising the hard limit takes a privilege, so what the hard limit allows is tried second.
    let maximum = limit.maximum.map(|maximum| maximum.max(needed));
    let attempts = [
        Rlimit { current: Some(needed), maximum: limit.maximum },
        Rlimit { current: Some(needed), maximum },
    ];
    if attempts.into_iter().any(|attempt| setrlimit(Resource::Nofile, attempt).is_ok()) {
        return Ok(());
    }
    Err(Failure::DescriptorLimit { needed, limit: limit.current.unwrap_or(u64::MAX) })
}
