//! Rights of this process: which it has, which a path needs, and giving up the others.

use std::{fmt, fs, io};

use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, capabilities, capability_is_in_bounding_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};
use thiserror::Error;

/// Rights that forwarding may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// Raw sockets: AF_PACKET and AF_XDP.
    NetRaw,
    /// Attaching programs to interfaces.
    NetAdmin,
    /// Loading programs into the kernel; in the first user namespace, which alone can give it.
    Bpf,
}

impl Right {
    pub(crate) const ALL: [Self; 3] = [Self::NetRaw, Self::NetAdmin, Self::Bpf];

    const fn capability(self) -> CapabilitySet {
        match self {
            Self::NetRaw => CapabilitySet::NET_RAW,
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::Bpf => CapabilitySet::BPF,
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetRaw => "CAP_NET_RAW",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::Bpf => "CAP_BPF",
        })
    }
}

/// Shows several rights as a sentence has them.
pub(crate) fn listed(rights: &[Right]) -> String {
    let names = rights.iter().map(Right::to_string).collect::<Vec<_>>();
    match names.split_last() {
        None => "no right".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}

/// The rights that this thread has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    effective: CapabilitySet,
    is_in_first_user_namespace: bool,
}

impl Held {
    pub(crate) fn now() -> Self {
        let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        Self { effective, is_in_first_user_namespace: is_in_first_user_namespace() }
    }

    pub(crate) const fn has(self, right: Right) -> bool {
        let is_held = self.effective.contains(right.capability());
        // In other namespaces this right is an empty word.
        is_held && (!matches!(right, Right::Bpf) || self.is_in_first_user_namespace)
    }

    /// Returns those of `needed` that are missing.
    pub(crate) fn missing(self, needed: &[Right]) -> Vec<Right> {
        needed.iter().copied().filter(|right| !self.has(*right)).collect()
    }
}

fn is_in_first_user_namespace() -> bool {
    let ids = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    ids.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Why rights were not given up. The process must not go on then.
#[derive(Debug, Error)]
pub(crate) enum DropError {
    #[error("rights cannot be given up ({what}): {source}")]
    Kernel { what: &'static str, source: io::Error },
    #[error("thread {thread} still has the rights {rights:x}: this is a mistake of vigie-forward")]
    Thread { thread: String, rights: u64 },
}

/// Gives up all rights of this thread but those to `keep`, for good: also those that a program could gain by
/// `execve`. Threads inherit them from here on; that there are no others yet that have more is checked.
pub(crate) fn give_up_all_but(keep: &[Right]) -> Result<(), DropError> {
    check_threads(give_up(keep)?)
}

/// Gives up all rights of this thread alone, and of those that it makes.
pub(crate) fn give_up_all_of_thread() -> Result<(), DropError> {
    give_up(&[]).map(drop)
}

/// Returns what is kept.
fn give_up(keep: &[Right]) -> Result<CapabilitySet, DropError> {
    let failed = |what| move |error: Errno| DropError::Kernel { what, source: error.into() };
    let kept = keep.iter().fold(CapabilitySet::empty(), |set, right| set | right.capability());
    let mut sets = capabilities(None).map_err(failed("reading the sets"))?;
    // First what limits the sets, which itself takes a right.
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().iter().filter(|one| !kept.contains(*one)) {
            // What this kernel does not know is not in the set either.
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
        // One that has ended meanwhile has no rights.
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

    /// Goal: what is missing is named, and the right to load programs counts in the first user namespace
    /// only. Method: sets by hand.
    #[test]
    fn what_is_missing_is_named() {
        let effective = CapabilitySet::NET_RAW | CapabilitySet::BPF;
        let mut held = Held { effective, is_in_first_user_namespace: true };
        assert_eq!(held.missing(&Right::ALL), [Right::NetAdmin]);
        held.is_in_first_user_namespace = false;
        assert_eq!(held.missing(&Right::ALL), [Right::NetAdmin, Right::Bpf]);
        assert_eq!(listed(&[]), "no right");
        assert_eq!(listed(&[Right::Bpf]), "CAP_BPF");
        assert_eq!(listed(&Right::ALL), "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF");
    }
}
