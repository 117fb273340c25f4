//! What this process may do, and what it lacks.

use std::io;

use thiserror::Error;
use vigie_via::link::Capability;

/// What loading takes.
pub(super) const LOADING: [Capability; 2] = [Capability::Bpf, Capability::NetAdmin];

/// Why the kernel made nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PrivilegeError {
    /// A right is missing.
    #[error(
        "{what} needs {capability}, which this process lacks: run it as root, or give the program the \
         capabilities (`setcap cap_bpf,cap_perfmon,cap_net_admin,cap_net_raw+ep PROGRAM`)"
    )]
    MissingCapability {
        /// What was to be done.
        what: &'static str,
        /// What it takes.
        capability: Capability,
    },
    /// The kernel said no.
    #[error("{what}: {source}")]
    Kernel {
        /// What was to be done.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl PrivilegeError {
    /// Makes an error of a call that failed: of a missing right, if that explains it.
    pub(super) fn of(what: &'static str, needed: &[Capability], source: io::Error) -> Self {
        // EACCES is the verifier's word, not that of rights.
        if source.raw_os_error() == Some(libc::EPERM)
            && let Some(capability) = Capability::missing(needed)
        {
            return Self::MissingCapability { what, capability };
        }
        Self::Kernel { what, source }
    }

    /// Returns the right that is missing, if that is it.
    #[must_use]
    pub const fn missing_capability(&self) -> Option<Capability> {
        match self {
            Self::MissingCapability { capability, .. } => Some(*capability),
            Self::Kernel { .. } => None,
        }
    }
}
