//! Errors about missing capabilities.

use std::io;

use thiserror::Error;
use vigie_via::link::Capability;

/// The capabilities needed to load programs.
pub(super) const LOADING: [Capability; 2] = [Capability::Bpf, Capability::NetAdmin];

/// The reason why the kernel refused an operation.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PrivilegeError {
    /// A missing capability.
    #[error(
        "{what} needs {capability}, which this process lacks: run it as root, or give the program the \
         capabilities (`setcap cap_bpf,cap_perfmon,cap_net_admin,cap_net_raw+ep PROGRAM`)"
    )]
    MissingCapability {
        /// The operation.
        what: &'static str,
        /// The missing capability.
        capability: Capability,
    },
    /// Another error from the kernel.
    #[error("{what}: {source}")]
    Kernel {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl PrivilegeError {
    /// Converts the error of a failed call; blames a missing capability if that explains it.
    pub(super) fn of(what: &'static str, needed: &[Capability], source: io::Error) -> Self {
        // EACCES comes from the verifier, not from missing capabilities.
        if source.raw_os_error() == Some(libc::EPERM)
            && let Some(capability) = Capability::missing(needed)
        {
            return Self::MissingCapability { what, capability };
        }
        Self::Kernel { what, source }
    }

    /// Returns the missing capability, if that is the cause.
    #[must_use]
    pub const fn missing_capability(&self) -> Option<Capability> {
        match self {
            Self::MissingCapability { capability, .. } => Some(*capability),
            Self::Kernel { .. } => None,
        }
    }
}
