//! The errors of a link, and what to do about them.

use std::{fmt, io};

use thiserror::Error;

use super::segments::SegmentError;

/// A capability that this process lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// Raw sockets: AF_PACKET and AF_XDP.
    NetRaw,
    /// Attaching programs to interfaces.
    NetAdmin,
    /// Loading programs into the kernel; only the first user namespace can grant it.
    Bpf,
    /// Loading programs that calculate with addresses; only the first user namespace can grant it.
    PerfMon,
}

impl Capability {
    /// Returns the capability's bit in the sets of `/proc/self/status`.
    const fn bit(self) -> u32 {
        match self {
            Self::NetAdmin => 12,
            Self::NetRaw => 13,
            Self::PerfMon => 38,
            Self::Bpf => 39,
        }
    }

    /// Returns the first of `needed` that is not in this thread's effective set, or has no effect in its user
    /// namespace.
    #[must_use]
    pub fn missing(needed: &[Self]) -> Option<Self> {
        let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        let effective = u64::from_str_radix(line.trim(), 16).ok()?;
        let is_held = |capability: &Self| {
            let is_of_first = matches!(capability, Self::Bpf | Self::PerfMon);
            effective >> capability.bit() & 1 != 0 && (!is_of_first || is_first())
        };
        needed.iter().copied().find(|capability| !is_held(capability))
    }
}

/// Returns whether this is the first user namespace: in others, the capability to load programs has no
/// effect.
fn is_first() -> bool {
    let ids = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    ids.split_whitespace().eq(["0", "0", "4294967295"])
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetRaw => "CAP_NET_RAW",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::Bpf => "CAP_BPF",
            Self::PerfMon => "CAP_PERFMON",
        })
    }
}

/// The reason why a link was not opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A capability is missing.
    #[error(
        "{what} needs {capability}, which this process lacks: run it as root, give the program the \
         capability (`setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM`), or, for AF_PACKET alone, run it \
         in a user and network namespace of its own (`unshare -Urn`)"
    )]
    MissingCapability {
        /// The operation.
        what: &'static str,
        /// The missing capability.
        capability: Capability,
    },
    /// There is no such interface in this network namespace.
    #[error("there is no interface {name:?} in this network namespace (`ip link` lists them)")]
    NoInterface {
        /// The name that was given.
        name: String,
    },
    /// The interface is not Ethernet, nor one without headers for a link that [adds](super::LinkBuilder::adds_headers) them.
    #[error("interface {name:?} has no Ethernet addresses; use datagrams over UDP there")]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// The AF_XDP queue has an owner.
    #[error(
        "queue {queue} of interface {name:?} belongs to another AF_XDP socket, and a queue has one owner: \
         close the other one (`ss --xdp` shows it), take another queue, or take AF_PACKET, which many can share"
    )]
    QueueTaken {
        /// The interface.
        name: String,
        /// The queue.
        queue: u32,
    },
    /// Another XDP program is attached.
    #[error(
        "interface {name:?} has an XDP program already, and takes one: remove it (`ip link set dev {name} xdp \
         off`), or take AF_PACKET"
    )]
    ProgramAttached {
        /// The interface.
        name: String,
    },
    /// The interface has no such queue.
    #[error("interface {name:?} has no receive queue {queue}")]
    NoQueue {
        /// The interface.
        name: String,
        /// The queue.
        queue: u32,
    },
    /// A setting is out of its range.
    #[error("{name} is {value}, and must be {range}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        range: &'static str,
    },
    /// The kernel refused an operation.
    #[error("{what}: {source}")]
    Kernel {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl OpenError {
    /// Returns whether another owner has what was to be opened: a later attempt may succeed.
    #[must_use]
    pub const fn is_in_use(&self) -> bool {
        matches!(self, Self::QueueTaken { .. } | Self::ProgramAttached { .. })
    }

    /// Makes an error of a failed call: a missing capability, if that explains it.
    pub(super) fn from_call(
        what: &'static str,
        needed: &[Capability],
        error: impl Into<io::Error>,
    ) -> Self {
        let source = error.into();
        if source.kind() == io::ErrorKind::PermissionDenied
            && let Some(capability) = Capability::missing(needed)
        {
            return Self::MissingCapability { what, capability };
        }
        Self::Kernel { what, source }
    }
}

/// The reason why a link does not work now, or ever again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The interface is gone for good, or was moved to another network namespace.
    #[error("the interface was removed; open it again when it is back")]
    Removed,
    /// The interface is down. Frames are received and sent again when it is up.
    #[error("the interface is down")]
    Down,
    /// The send queue is full: wait for room, or drop the frame.
    #[error("the send queue is full")]
    Full,
    /// The payload does not fit into a frame.
    #[error("a payload of {length} bytes, but the interface takes {max}")]
    TooLong {
        /// The length in bytes.
        length: usize,
        /// The longest possible, in bytes.
        max: usize,
    },
    /// The link was not opened to send segments, or the kernel refuses them.
    #[error("the link sends no segments")]
    NoSegments,
    /// The segments of a frame cannot be described.
    #[error(transparent)]
    Segments(#[from] SegmentError),
    /// The detection server ended.
    #[error(transparent)]
    Wait(#[from] vigie_detect::WaitError),
    /// The kernel refused an operation.
    #[error("{what}: {source}")]
    Kernel {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl LinkError {
    /// Returns whether the link will never work again.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Removed | Self::Wait(_))
    }

    /// Returns whether a later retry may succeed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Full | Self::Down)
    }
}
