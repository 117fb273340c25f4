//! Capabilities of this process: which it has, which a path needs, and dropping the others.

use std::{
    fmt, fs, io,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, capabilities, capability_is_in_bounding_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};
use thiserror::Error;

/// Capabilities that forwarding may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// Raw sockets: AF_PACKET and AF_XDP.
    NetRaw,
    /// Attaching programs to interfaces.
    NetAdmin,
    /// Loading programs into the kernel; only valid in the initial user namespace.
    Bpf,
    /// Loading those that read headers of any length.
    PerfMon,
}

impl Right {
    pub(crate) const ALL: [Self; 4] = [Self::NetRaw, Self::NetAdmin, Self::Bpf, Self::PerfMon];

    const fn capability(self) -> CapabilitySet {
        match self {
            Self::NetRaw => CapabilitySet::NET_RAW,
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::Bpf => CapabilitySet::BPF,
            Self::PerfMon => CapabilitySet::PERFMON,
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetRaw => "CAP_NET_RAW",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::Bpf => "CAP_BPF",
            Self::PerfMon => "CAP_PERFMON",
        })
    }
}

/// Lists several capabilities for a sentence.
pub(crate) fn listed(rights: &[Right]) -> String {
    let names = rights.iter().map(Right::to_string).collect::<Vec<_>>();
    match names.split_last() {
        None => "no right".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}

/// The capabilities of this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldRights {
    effective: CapabilitySet,
    is_in_first_user_namespace: bool,
}

impl HeldRights {
    pub(crate) fn now() -> Self {
        let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        Self { effective, is_in_first_user_namespace: is_in_first_user_namespace() }
    }

    pub(crate) const fn has(self, right: Right) -> bool {
        let is_held = self.effective.contains(right.capability());
        // In other namespaces this capability has no effect.
        is_held && (!matches!(right, Right::Bpf) || self.is_in_first_user_namespace)
    }

    /// Returns the missing ones among `needed`.
    pub(crate) fn missing(self, needed: &[Right]) -> Vec<Right> {
        needed.iter().copied().filter(|right| !self.has(*right)).collect()
    }
}

/// The capabilities that this process had, and has given up. Written once, before other threads begin to read it.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Returns whether this process had one of these capabilities, and has given it up: it only returns with a new process.
pub(crate) fn has_given_up(capabilities: CapabilitySet) -> bool {
    GIVEN_UP.load(Ordering::Relaxed) & capabilities.bits() != 0
}

/// Says in a relative clause why this process has not got some rights, and what to do if it had them; else the caller has advice.
pub(crate) fn lacks(missing: &[Right]) -> (&'static str, bool) {
    if missing.iter().any(|right| has_given_up(right.capability())) {
        ("which this process gave up after its start: restart it", true)
    } else {
        ("which this process lacks", false)
    }
}

fn is_in_first_user_namespace() -> bool {
    let ids = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    ids.split_whitespace().eq(["0", "0", "4294967295"])
}

/// The reason why capabilities could not be dropped. The process must not continue then.
#[derive(Debug, Error)]
pub(crate) enum DropError {
    #[error("rights cannot be given up ({what}): {source}")]
    Kernel { what: &'static str, source: io::Error },
    #[error("thread {thread} still has the rights {rights:x}: this is a bug in vigie-forward")]
    Thread { thread: String, rights: u64 },
}

/// Drops all capabilities of this thread except `keep`, for good: also those that a program could gain by `execve`. New
/// threads inherit this; checks that no existing thread has more.
pub(crate) fn give_up_all_but(keep: &[Right]) -> Result<(), DropError> {
    let before = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted);
    let kept = give_up(keep)?;
    GIVEN_UP.store((before - kept).bits(), Ordering::Relaxed);
    check_threads(kept)
}

/// Drops all capabilities of this thread, and so of threads that it creates.
pub(crate) fn give_up_all_of_thread() -> Result<(), DropError> {
    give_up(&[]).map(drop)
}

/// Returns the capabilities kept.
fn give_up(keep: &[Right]) -> Result<CapabilitySet, DropError> {
    let failed = |what| move |error: Errno| DropError::Kernel { what, source: error.into() };
    let kept = keep.iter().fold(CapabilitySet::empty(), |set, right| set | right.capability());
    let mut sets = capabilities(None).map_err(failed("reading the sets"))?;
    // First the limiting sets, which themselves require a capability.
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().iter().filter(|one| !kept.contains(*one)) {
            // Capabilities unknown to this kernel are not in the set either.
            if capability_is_in_bounding_set(capability).unwrap_or(false) {
                remove_capability_from_bounding_set(capability)
                    .map_err(failed("the bounding set"))?;
            }
        }
    }
    set_no_new_privs(true).map_err(failed("no_new_privs"))?;
    sets.effective &= kept;
    sets.permitted &= kept;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets).map_err(failed("the sets"))?;
    Ok(kept)
}

/// Checks that no thread of this process has more.
fn check_threads(kept: CapabilitySet) -> Result<(), DropError> {
    let unreadable = |source| DropError::Kernel { what: "reading /proc/self/task", source };
    for thread in fs::read_dir("/proc/self/task").map_err(unreadable)? {
        let thread = thread.map_err(unreadable)?;
        // A thread that has ended meanwhile has no capabilities.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
        let permitted = permitted.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        let more = permitted.unwrap_or(u64::MAX) & !kept.bits();
        if more != 0 {
            let thread = thread.file_name().to_string_lossy().into_owned();
            return Err(DropError::Thread { thread, rights: more });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: missing capabilities are named, and the one to load programs counts only in the initial user namespace.
    /// Method: sets by hand.
    #[test]
    fn what_is_missing_is_named() {
        let effective = CapabilitySet::NET_RAW | CapabilitySet::BPF;
        let mut held = HeldRights { effective, is_in_first_user_namespace: true };
        assert_eq!(held.missing(&Right::ALL), [Right::NetAdmin, Right::PerfMon]);
        held.is_in_first_user_namespace = false;
        assert_eq!(held.missing(&Right::ALL), [Right::NetAdmin, Right::Bpf, Right::PerfMon]);
        assert_eq!(listed(&[]), "no right");
        assert_eq!(listed(&[Right::Bpf]), "CAP_BPF");
        assert_eq!(listed(&Right::ALL), "CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON");
    }
}
